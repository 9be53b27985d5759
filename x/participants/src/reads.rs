//! Reads that other modules make, and the keys behind them.

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::{Excuse, ParticipantsRead, Standing};
use holdfast_types::{Address, BlockContext, Height};

use crate::keeper::{Keeper, overlaps};
use crate::state::{IN_MAINTENANCE, INACTIVE, MEMBERS, MODELS, PARTICIPANTS, UNAVAILABILITY};
use crate::types::{Cause, MemberRecord};

/// Whose standing a committed key can have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// For this model; `None` = all.
    pub model: Option<String>,
    /// Participant.
    pub participant: Address,
}

/// What a committed key means for standings; `None` when nothing. The candidate table follows these keys.
pub fn watched(key: &[u8]) -> Option<Watched> {
    if let Some((model, participant)) = MEMBERS.parse_key(key) {
        return Some(Watched { model: Some(model), participant });
    }
    let participant = INACTIVE.parse_key(key).or_else(|| IN_MAINTENANCE.parse_key(key))?;
    Some(Watched { model: None, participant })
}

/// Standing of a participant that has weight in the epoch of `block`; `record` is rolled to it.
fn member(
    store: &dyn KvRead,
    block: &BlockContext,
    participant: &Address,
    record: &MemberRecord,
) -> Result<Standing, StoreError> {
    Ok(Standing {
        member: true,
        active: INACTIVE.get(store, participant)? != Some(block.epoch),
        weight: record.weight,
        preserved: record.preserved,
        in_maintenance: IN_MAINTENANCE.has(store, participant)?,
    })
}

impl ParticipantsRead for Keeper<'_> {
    fn has_model(&self, store: &dyn KvRead, model: &str) -> Result<bool, StoreError> {
        MODELS.has(store, &model.to_owned())
    }

    fn has_participant(&self, store: &dyn KvRead, participant: &Address) -> Result<bool, StoreError> {
        PARTICIPANTS.has(store, participant)
    }

    fn standing(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Standing, StoreError> {
        let record =
            MEMBERS.get(store, &(model.to_owned(), *participant))?.unwrap_or_default().at(block.epoch);
        if record.weight == 0 { Ok(Standing::default()) } else { member(store, block, participant, &record) }
    }

    fn members(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
    ) -> Result<Vec<(Address, Standing)>, StoreError> {
        let mut out = Vec::new();
        for row in MEMBERS.prefix(store, &model.to_owned(), Order::Ascending) {
            let ((_, participant), record) = row?;
            let record = record.at(block.epoch);
            if record.weight > 0 {
                out.push((participant, member(store, block, &participant, &record)?));
            }
        }
        Ok(out)
    }

    fn models(&self, store: &dyn KvRead) -> Result<Vec<String>, StoreError> {
        MODELS.iter(store, Order::Ascending).collect()
    }

    /// breaker-details 3, "At expiry". Asked in this order: maintenance, PoC, left.
    fn excuse(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
        from: Height,
        to: Height,
    ) -> Result<Option<Excuse>, StoreError> {
        let mut left = false;
        // Bounded: intervals of one participant, kept two epochs.
        for row in UNAVAILABILITY.entries().prefix(store, participant, Order::Ascending) {
            let ((_, first, of_model, cause), interval) = row?;
            let concerns = of_model.is_empty() || of_model == model;
            if !concerns || !overlaps(from, to, first, interval.to_height) {
                continue;
            }
            match Cause::from_byte(cause) {
                Some(Cause::Maintenance) if interval.announced_at < from => {
                    return Ok(Some(Excuse::Maintenance));
                }
                Some(Cause::Left | Cause::Inactive | Cause::ModelDropped) => left = true,
                _ => {}
            }
        }
        let record = MEMBERS.get(store, &(model.to_owned(), *participant))?.unwrap_or_default();
        let record = record.at(block.epoch);
        // The epoch of this block and the one before: an inference lives at most one epoch beyond its own.
        let mut epoch = block.epoch;
        for (preserved, weight) in
            [(record.preserved, record.weight), (record.prev_preserved, record.prev_weight)]
        {
            let Some(info) = self.epochs.epoch(store, epoch)? else { break };
            let poc =
                info.poc_length > 0 && overlaps(from, to, info.poc_start(), info.end().saturating_sub(1));
            if poc && weight > 0 && !preserved {
                return Ok(Some(Excuse::Poc));
            }
            // Absent from the group of an epoch that the inference reached after it had begun.
            if weight == 0 && info.start_height > from && info.start_height <= to {
                left = true;
            }
            let Some(before) = epoch.checked_sub(1).filter(|_| info.start_height > from) else { break };
            epoch = before;
        }
        Ok(left.then_some(Excuse::Left))
    }
}
