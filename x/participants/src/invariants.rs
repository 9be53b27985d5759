//! Checks for tests and simulation; never run by a block step.

use std::collections::BTreeMap;

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, BlockContext};

use crate::calc::TOTAL_POWER_MAX;
use crate::keeper::Keeper;
use crate::keys::MODULE_NAME;
use crate::state::{
    IN_MAINTENANCE, MEMBERS, NEXT_TOTALS, NEXT_WEIGHTS, PARAMS, PARTICIPANTS, POWER_TOTALS, VALIDATORS,
};
use crate::types::{NextTotals, NextWeight};

/// The next epoch's sums equal a scan; only registered models of a participant carry its next weight. So do the
/// weights that validators and votes are counted by; the validators are a set that CometBFT takes.
pub fn check(_keeper: &Keeper<'_>, store: &dyn KvRead, block: &BlockContext) -> Result<(), String> {
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
    if kept != scanned {
        return Err(format!("next totals: kept {kept:?}, scanned {scanned:?}"));
    }
    powers(store, block)
}

fn powers(store: &dyn KvRead, block: &BlockContext) -> Result<(), String> {
    let text = |e: StoreError| e.to_string();
    // Every row, also of models not served: nobody weighs through one of those.
    let (mut now, mut next): (BTreeMap<_, u64>, BTreeMap<_, u64>) = Default::default();
    for row in MEMBERS.iter(store, Order::Ascending) {
        let ((_, participant), record) = row.map_err(text)?;
        let most = |map: &mut BTreeMap<_, u64>, weight: u64| {
            let entry = map.entry(participant).or_default();
            *entry = weight.max(*entry);
        };
        most(&mut now, record.at(block.epoch).weight);
        most(&mut next, record.next_weight);
    }
    let mut scanned = BTreeMap::new();
    for (participant, weight) in next.into_iter().filter(|(_, weight)| *weight > 0) {
        let validator_key =
            PARTICIPANTS.get(store, &participant).map_err(text)?.unwrap_or_default().validator_key;
        scanned.insert(participant, NextWeight { weight, validator_key });
    }
    let kept: BTreeMap<_, _> =
        NEXT_WEIGHTS.entries().iter(store, Order::Ascending).collect::<Result<_, _>>().map_err(text)?;
    if kept != scanned {
        return Err(format!("next weights: kept {kept:?}, scanned {scanned:?}"));
    }
    let sum = |weights: &mut dyn Iterator<Item = u64>| {
        weights.fold(0_u128, |sum, weight| sum.saturating_add(weight.into()))
    };
    let totals = POWER_TOTALS.get(store).map_err(text)?.unwrap_or_default().at(block.epoch);
    let found = (sum(&mut now.into_values()), sum(&mut scanned.into_values().map(|next| next.weight)));
    if (totals.weight, totals.next_weight) != found {
        return Err(format!("power totals: kept {totals:?}, scanned {found:?}"));
    }
    let mut power = 0_u128;
    for row in VALIDATORS.iter(store, Order::Ascending) {
        let (key, validator) = row.map_err(text)?;
        if validator.power == 0 {
            return Err(format!("a validator without power: {key:?}"));
        }
        power = power.saturating_add(validator.power.into());
    }
    if power > TOTAL_POWER_MAX.into() { Err(format!("validators: total power {power}")) } else { Ok(()) }
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
