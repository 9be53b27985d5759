//! What holds after every block. For tests, simulation and audits: O(inferences).

use std::collections::BTreeMap;

use holdfast_store::{KvRead, Order};
use holdfast_types::Height;
use holdfast_types::traits::BankKeeper;

use crate::keeper::module_account;
use crate::state::{CHANGED, INFERENCES};
use crate::types::Status;

/// The module account holds exactly what started inferences paid in, in each denomination they paid with
/// and in `denom`. The error text says what differs.
pub fn escrow_is_backed(store: &dyn KvRead, bank: &dyn BankKeeper, denom: &str) -> Result<(), String> {
    let mut expected = BTreeMap::from([(denom.to_owned(), 0_u128)]);
    for row in INFERENCES.entries().iter(store, Order::Ascending) {
        let (id, inference) = row.map_err(|e| e.to_string())?;
        let Some(start) = inference.start else { continue };
        let sum = expected.entry(start.token_price.denom).or_default();
        if inference.status == Status::Started {
            *sum = sum.checked_add(start.escrowed).ok_or("escrows overflow")?;
            continue;
        }
        if inference.paid.checked_add(inference.refunded) != Some(start.escrowed) {
            return Err(format!("{id}: paid and refunded do not add up to the escrow"));
        }
    }
    for (denom, expected) in expected {
        let held = bank.balance(store, &module_account(), &denom).map_err(|e| e.to_string())?;
        if held != expected {
            return Err(format!("module account holds {held}{denom}, started inferences paid in {expected}"));
        }
    }
    Ok(())
}

/// After the block at `height`, with no more than [`EXPIRE_MAX`](crate::EXPIRE_MAX) due at once: nothing
/// open is due, and no participant waits to be judged.
pub fn nothing_is_due(store: &dyn KvRead, height: Height) -> Result<(), String> {
    for row in INFERENCES.entries().iter(store, Order::Ascending) {
        let (id, inference) = row.map_err(|e| e.to_string())?;
        if inference.status.is_open() && inference.expires_at <= height {
            return Err(format!("{id} is open after height {height}, due at {}", inference.expires_at));
        }
    }
    match CHANGED.iter(store, Order::Ascending).next() {
        None => Ok(()),
        Some(_) => Err("a participant with changed counts was not judged".to_owned()),
    }
}
