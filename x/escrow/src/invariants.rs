//! What must hold in every state. For tests and simulation: O(escrows).

use std::collections::{BTreeMap, BTreeSet};

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::Height;
use holdfast_types::traits::BankKeeper;

use crate::keeper::module_account;
use crate::state::{BY_OWNER, ESCROWS, PARAMS};

fn text(error: StoreError) -> String {
    format!("escrow: {error}")
}

/// Every invariant of the module. The error names the first that does not hold, and where.
pub fn check(store: &dyn KvRead, bank: &dyn BankKeeper) -> Result<(), String> {
    coins_are_backed(store, bank)?;
    rows_belong_together(store)
}

/// The module account holds exactly the amounts of open and disputed escrows, in each denomination in use.
pub fn coins_are_backed(store: &dyn KvRead, bank: &dyn BankKeeper) -> Result<(), String> {
    let mut sums = BTreeMap::from([(PARAMS.load(store).map_err(text)?.denom, 0_u128)]);
    for row in ESCROWS.entries().iter(store, Order::Ascending) {
        let (id, escrow) = row.map_err(text)?;
        let sum = sums.entry(escrow.denom).or_default();
        if escrow.status.holds_coins() {
            *sum = sum.checked_add(escrow.config.amount).ok_or("escrow: amounts pass 2^128")?;
        } else if let Some(outcome) = &escrow.outcome {
            let parts = [outcome.paid, outcome.fees, outcome.refunded];
            let all = parts.iter().try_fold(0_u128, |sum, part| sum.checked_add(*part));
            if all != Some(escrow.config.amount) {
                return Err(format!("escrow {id} paid {all:?} of {}", escrow.config.amount));
            }
        }
    }
    for (denom, sum) in sums {
        let held = bank.balance(store, &module_account(), &denom).map_err(text)?;
        if held != sum {
            return Err(format!("escrow: the module account holds {held}{denom}, escrows {sum}{denom}"));
        }
    }
    Ok(())
}

/// Status, dispute and outcome of each row agree, and the rows by owner are those of the slots.
pub fn rows_belong_together(store: &dyn KvRead) -> Result<(), String> {
    let mut expected = BTreeSet::new();
    for row in ESCROWS.entries().iter(store, Order::Ascending) {
        let (id, escrow) = row.map_err(text)?;
        if escrow.config.escrow_id != id {
            return Err(format!("escrow {id} has the terms of {}", escrow.config.escrow_id));
        }
        if escrow.status.holds_coins() == escrow.outcome.is_some()
            || escrow.due_at().is_some() == escrow.outcome.is_some()
        {
            return Err(format!("escrow {id} is {}, its parts are not", escrow.status.as_str()));
        }
        expected.extend(escrow.config.owners().into_keys().map(|owner| (owner, id)));
    }
    let found: BTreeSet<_> =
        BY_OWNER.iter(store, Order::Ascending).collect::<Result<_, _>>().map_err(text)?;
    if found == expected {
        Ok(())
    } else {
        Err("escrow: the rows by owner are not those of the slots".into())
    }
}

/// After the block at `height`, with no more than [`CLOSE_MAX`](crate::CLOSE_MAX) due at once: nothing that holds coins is
/// due.
pub fn nothing_is_due(store: &dyn KvRead, height: Height) -> Result<(), String> {
    for row in ESCROWS.entries().iter(store, Order::Ascending) {
        let (id, escrow) = row.map_err(text)?;
        if escrow.due_at().is_some_and(|due| due <= height) {
            return Err(format!("escrow {id} was due after height {height}"));
        }
    }
    Ok(())
}
