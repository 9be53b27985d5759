//! Checks for tests and simulation; never run by a block step.

use std::collections::BTreeMap;

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, BlockContext};

use crate::keeper::Keeper;
use crate::keys::MODULE_NAME;
use crate::state::{IN_MAINTENANCE, MEMBERS, NEXT_TOTALS, PARAMS, PARTICIPANTS};
use crate::types::NextTotals;

/// The next epoch's sums equal a scan; only registered models of a participant carry its next weight.
pub fn check(_keeper: &Keeper<'_>, store: &dyn KvRead, _block: &BlockContext) -> Result<(), String> {
    let text = |e: StoreError| e.to_string();
    let mut scanned: BTreeMap<String, NextTotals> = BTreeMap::new();
    for row in MEMBERS.iter(store, Order::Ascending) {
        let ((model, participant), record) = row.map_err(text)?;
        if record.next_weight == 0 {
            continue;
        }
        let serves = PARTICIPANTS.get(store, &participant).map_err(text)?.unwrap_or_default().models;
        if !serves.contains(&model) {
            return Err(format!("{participant:?} weighs for {model} without serving it"));
        }
        if !IN_MAINTENANCE.has(store, &participant).map_err(text)? {
            let totals = scanned.entry(model).or_default();
            totals.eligible_weight = totals.eligible_weight.saturating_add(record.next_weight.into());
            totals.members = totals.members.saturating_add(1);
            totals.preserved = totals.preserved.saturating_add(u32::from(record.next_preserved));
        }
    }
    let mut kept = BTreeMap::new();
    for row in NEXT_TOTALS.iter(store, Order::Ascending) {
        let (model, totals) = row.map_err(text)?;
        if totals != NextTotals::default() {
            kept.insert(model, totals);
        }
    }
    if kept == scanned { Ok(()) } else { Err(format!("next totals: kept {kept:?}, scanned {scanned:?}")) }
}

/// The module account holds exactly what is bonded or unbonding.
pub fn collateral_is_backed(store: &dyn KvRead, bank: &dyn BankKeeper) -> Result<(), String> {
    let text = |e: StoreError| e.to_string();
    let mut sum = 0_u128;
    for row in PARTICIPANTS.entries().iter(store, Order::Ascending) {
        let (_, participant) = row.map_err(text)?;
        sum = sum.saturating_add(participant.collateral).saturating_add(participant.unbonding);
    }
    let denom = PARAMS.load(store).map_err(text)?.collateral_denom;
    let held = bank.balance(store, &Address::module(MODULE_NAME), &denom).map_err(text)?;
    if held == sum { Ok(()) } else { Err(format!("collateral: {sum}{denom} owed, {held}{denom} held")) }
}
