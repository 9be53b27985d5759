//! Checks for tests and simulation; never run by a block step.

use std::collections::BTreeMap;

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::GroupTotals;
use holdfast_types::{Address, BlockContext};

use crate::errors::BreakerError;
use crate::keeper::{Keeper, Sign, count};
use crate::state::{DUE, ENTRIES};
use crate::types::ModelTally;

impl Keeper<'_> {
    /// The group totals by a scan of every member.
    pub fn scan_totals(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
    ) -> Result<Vec<GroupTotals>, StoreError> {
        let mut out = Vec::new();
        for model in self.group.models(store)? {
            let mut totals =
                GroupTotals { model: model.clone(), eligible_weight: 0, members: 0, preserved: 0 };
            for (_, standing) in self.group.members(store, block, &model)? {
                let weight = standing.eligibility().weight;
                totals.eligible_weight = totals.eligible_weight.saturating_add(weight.into());
                totals.members = totals.members.saturating_add(u32::from(weight > 0));
                totals.preserved =
                    totals.preserved.saturating_add(u32::from(weight > 0 && standing.preserved));
            }
            out.push(totals);
        }
        Ok(out)
    }

    /// The model's sums by a scan of every member and its entry.
    pub fn scan_tally(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
    ) -> Result<ModelTally, BreakerError> {
        let mut tally = ModelTally::default();
        for (participant, standing) in self.group.members(store, block, model)? {
            count(&mut tally, &self.entry(store, block, model, &participant)?, &standing, Sign::In)?;
        }
        Ok(tally)
    }
}

/// The running sums equal the scans, and the due queue holds exactly one row per entry that changes by itself.
pub fn check(keeper: &Keeper<'_>, store: &dyn KvRead, block: &BlockContext) -> Result<(), String> {
    let text = |e: StoreError| e.to_string();
    for model in keeper.group.models(store).map_err(text)? {
        let kept = keeper.tally(store, block, &model).map_err(text)?;
        let scanned = keeper.scan_tally(store, block, &model).map_err(|e| e.to_string())?;
        if kept != scanned {
            return Err(format!("sums of {model}: kept {kept:?}, scanned {scanned:?}"));
        }
    }
    let mut expected: BTreeMap<(i64, u64, String, Address), ()> = BTreeMap::new();
    for row in ENTRIES.iter(store, Order::Ascending) {
        let ((epoch, model, participant), entry) = row.map_err(text)?;
        if let Some(due) = entry.due()
            && epoch == block.epoch
        {
            expected.insert((due, epoch, model, participant), ());
        }
    }
    let mut found = BTreeMap::new();
    for row in DUE.iter(store, Order::Ascending) {
        let row = row.map_err(text)?;
        if row.1 == block.epoch {
            found.insert(row, ());
        }
    }
    if expected == found { Ok(()) } else { Err(format!("due queue: expected {expected:?}, found {found:?}")) }
}
