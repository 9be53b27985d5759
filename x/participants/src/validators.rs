//! Who validates blocks, and whose vote weighs what (breaker-details 3, steps B2 and E4).
//!
//! ```text
//! weights of the next epoch, kept in order as they change
//!     │ B2 of an epoch's first block: the heaviest max_validators, a walk of as many rows
//! candidates ── who leaves, drops its last model or is made inactive in this very block falls out
//!     │ E4: target powers
//! validators ── one bounded step towards the target, told to the engine, which applies it two blocks later
//! ```

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::VotingPower;
use holdfast_types::{Address, BlockContext, Context, Epoch, ModuleError, ValidatorUpdate};

use crate::calc::{self, Powers, TOTAL_POWER_MAX};
use crate::errors::ParticipantsError;
use crate::keeper::Keeper;
use crate::msgs::check_key;
use crate::state::{CANDIDATES, MEMBERS, NEXT_WEIGHTS, PARTICIPANTS, POWER_TOTALS, VALIDATORS};
use crate::types::{NextWeight, Participant, PowerTotals, Validator};

/// Most validators of a set that is taken over or imported: as many as CometBFT can have.
pub(crate) const SET_MAX: usize = 10_000;

/// Weight of a participant that serves `models` in the group of `epoch`, whatever the model.
pub(crate) fn group_weight(
    store: &dyn KvRead,
    epoch: Epoch,
    participant: &Address,
    models: &[String],
) -> Result<u64, StoreError> {
    let mut most = 0;
    for model in models {
        let record = MEMBERS.get(store, &(model.clone(), *participant))?.unwrap_or_default();
        most = most.max(record.at(epoch).weight);
    }
    Ok(most)
}

/// Every stored validator.
pub(crate) fn stored(store: &dyn KvRead) -> Result<BTreeMap<Vec<u8>, Validator>, StoreError> {
    VALIDATORS.iter(store, Order::Ascending).collect()
}

/// Powers of the heaviest `max` of `weights`, by key. Keys are distinct.
pub(crate) fn heaviest(
    mut weights: Vec<(Address, NextWeight)>,
    max: u32,
) -> (Powers, BTreeMap<Vec<u8>, Address>) {
    weights.retain(|(_, next)| next.weight > 0 && next.can_validate());
    weights.sort_by_key(|(address, next)| (std::cmp::Reverse(next.weight), *address));
    weights.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    let plain: Vec<u64> = weights.iter().map(|(_, next)| next.weight).collect();
    let (mut powers, mut owners) = (Powers::new(), BTreeMap::new());
    for ((address, next), power) in weights.into_iter().zip(calc::powers(&plain)) {
        powers.insert(next.validator_key.clone(), power);
        owners.insert(next.validator_key, address);
    }
    (powers, owners)
}

fn update(public_key: Vec<u8>, power: u64) -> Result<ValidatorUpdate, ParticipantsError> {
    let power = i64::try_from(power).map_err(|_| ParticipantsError::Corrupt("power of a validator"))?;
    Ok(ValidatorUpdate { public_key, power })
}

impl Keeper<'_> {
    /// B2 of an epoch's first block: rolls the sums and notes the heaviest, before this block changes anything.
    pub(crate) fn list_candidates(&self, ctx: &mut Context<'_>) -> Result<(), ParticipantsError> {
        let totals = POWER_TOTALS.get(ctx.store)?.unwrap_or_default().at(ctx.block.epoch);
        POWER_TOTALS.set(ctx.store, &totals)?;
        // A store without a commit step may still hold those of an epoch whose E4 never ran.
        self.take_candidates(ctx)?;
        let max = usize::try_from(self.params(ctx.store)?.max_validators).unwrap_or(usize::MAX);
        let mut addresses = Vec::new();
        NEXT_WEIGHTS.walk_up_to(ctx.store, 0, &u64::MAX, |_: u64, address: Address| {
            addresses.push(address);
            if addresses.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        for address in addresses {
            let next = NEXT_WEIGHTS.load(ctx.store, &address)?;
            CANDIDATES.set(ctx.store, &address, &next)?;
        }
        Ok(())
    }

    /// Removes and returns the candidates; at most as many as there can be validators.
    fn take_candidates(&self, ctx: &mut Context<'_>) -> Result<Vec<(Address, NextWeight)>, StoreError> {
        let rows: Vec<_> = CANDIDATES.iter(ctx.store, Order::Ascending).collect::<Result<_, _>>()?;
        for (address, _) in &rows {
            CANDIDATES.remove(ctx.store, address)?;
        }
        Ok(rows)
    }

    /// Stages what `participant` weighs from the next epoch on: for validating and for voting.
    pub(crate) fn stage_weight(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        participant: &Participant,
        weight: u64,
    ) -> Result<(), ParticipantsError> {
        let old = NEXT_WEIGHTS.get(ctx.store, address)?;
        let next = NextWeight { weight, validator_key: participant.validator_key.clone() };
        let new = (weight > 0).then_some(next);
        if old == new {
            return Ok(());
        }
        match &new {
            Some(next) => NEXT_WEIGHTS.set(ctx.store, address, next)?,
            None => {
                NEXT_WEIGHTS.take(ctx.store, address)?;
            }
        }
        let totals = POWER_TOTALS.get(ctx.store)?.unwrap_or_default().at(ctx.block.epoch);
        let sum = totals.next_weight.checked_sub(old.map_or(0, |next| next.weight).into());
        let sum = sum.and_then(|sum| sum.checked_add(weight.into()));
        let next_weight = sum.ok_or(ParticipantsError::Corrupt("sum of next weights out of range"))?;
        Ok(POWER_TOTALS.set(ctx.store, &PowerTotals { next_weight, ..totals })?)
    }

    /// Takes what a participant lost inside the epoch out of the sum; without weight it is no candidate either.
    pub(crate) fn lose_weight(
        &self,
        ctx: &mut Context<'_>,
        address: &Address,
        before: u64,
        after: u64,
    ) -> Result<(), ParticipantsError> {
        if after == 0 {
            CANDIDATES.remove(ctx.store, address)?;
        }
        let lost = before.saturating_sub(after);
        if lost == 0 {
            return Ok(());
        }
        let totals = POWER_TOTALS.get(ctx.store)?.unwrap_or_default().at(ctx.block.epoch);
        let weight = totals.weight.checked_sub(lost.into());
        let weight = weight.ok_or(ParticipantsError::Corrupt("sum of weights out of range"))?;
        Ok(POWER_TOTALS.set(ctx.store, &PowerTotals { weight, ..totals })?)
    }

    /// E4: what the consensus engine is to change, in order of the keys. Empty but in the first block of an epoch,
    /// and then at most two keys for each of `max_validators`.
    ///
    /// The target is the group of the epoch that begins: each participant with weight for any model and an ed25519
    /// key, the heaviest `max_validators`, power = weight × [`crate::POWER_PER_WEIGHT`]. The set moves towards it by
    /// at most `max_validator_change_permille` of its power, falls before rises; the rest moves at the next boundaries.
    ///
    /// Every answer must reach the engine: it is stored as told.
    ///
    /// # Errors
    /// Only of a store that fails or holds what no message writes.
    pub fn validator_updates(&self, ctx: &mut Context<'_>) -> Result<Vec<ValidatorUpdate>, ModuleError> {
        let candidates = self.take_candidates(ctx)?;
        if candidates.is_empty() {
            // No first block, or nobody to hand the power to: the set stays.
            return Ok(Vec::new());
        }
        let params = self.params(ctx.store)?;
        let (target, owners) = heaviest(candidates, params.max_validators);
        let old = stored(ctx.store)?;
        let powers: Powers = old.iter().map(|(key, validator)| (key.clone(), validator.power)).collect();
        // One more than there may be: a single validator hands over to a newcomer.
        let limit = usize::try_from(params.max_validators).unwrap_or(usize::MAX).saturating_add(1);
        let next = calc::step(&powers, &target, params.max_validator_change_permille, limit);
        let mut updates = Vec::new();
        for key in powers.keys().filter(|key| !next.contains_key(*key)) {
            VALIDATORS.remove(ctx.store, key)?;
            updates.push(update(key.clone(), 0)?);
        }
        for (key, power) in next {
            let before = old.get(&key);
            let owner = owners.get(&key).copied();
            let participant = owner.or_else(|| before.and_then(|validator| validator.participant));
            let validator = Validator { participant, power };
            if before != Some(&validator) {
                VALIDATORS.set(ctx.store, &key, &validator)?;
            }
            if before.is_none_or(|before| before.power != power) {
                updates.push(update(key, power)?);
            }
        }
        updates.sort_by(|a, b| a.public_key.cmp(&b.public_key));
        Ok(updates)
    }

    /// The validators as stored, for the answer to InitChain after genesis has been written. Empty when no
    /// participant that could validate has weight and none were taken over: the engine's own genesis then decides.
    ///
    /// # Errors
    /// Of the store.
    pub fn genesis_validators(&self, store: &dyn KvRead) -> Result<Vec<ValidatorUpdate>, ModuleError> {
        let rows = stored(store)?.into_iter();
        Ok(rows.map(|(key, validator)| update(key, validator.power)).collect::<Result<_, _>>()?)
    }

    /// Takes over the validators of the engine's genesis where this chain's own names none, so that their power
    /// passes to participants in bounded steps. Small powers are multiplied, all by the same power of ten: answer
    /// with [`Self::genesis_validators`] afterwards. Does nothing when there are validators already.
    ///
    /// # Errors
    /// A key of no known length or given twice, a negative power, more than 10,000 keys or more power than
    /// CometBFT can count.
    pub fn adopt_validators(
        &self,
        ctx: &mut Context<'_>,
        given: &[ValidatorUpdate],
    ) -> Result<(), ModuleError> {
        if VALIDATORS.iter(ctx.store, Order::Ascending).next().is_some() {
            return Ok(());
        }
        let bad = |rule: &str| ParticipantsError::field("validators", rule);
        let mut powers = Powers::new();
        for ValidatorUpdate { public_key, power } in given {
            check_key(public_key)?;
            let power = u64::try_from(*power).map_err(|_| bad("a power is negative"))?;
            if power > 0 && powers.insert(public_key.clone(), power).is_some() {
                return Err(bad("a key is given twice").into());
            }
        }
        if powers.len() > SET_MAX || calc::total(&powers) > TOTAL_POWER_MAX.into() {
            return Err(bad("at most 10000 keys with a total power of (2^63 - 1) / 8").into());
        }
        for (key, power) in calc::adopted(powers) {
            let participant = PARTICIPANTS.by_unique(ctx.store, 0, &key)?;
            VALIDATORS.set(ctx.store, &key, &Validator { participant, power })?;
        }
        Ok(())
    }
}

/// Votes weigh what their voter weighs in the epoch's group, whatever the model. A verdict of the slow breaker takes
/// work away, not the vote; leaving, or dropping the last model, takes the vote too.
impl VotingPower for Keeper<'_> {
    fn power(&self, store: &dyn KvRead, block: &BlockContext, voter: &Address) -> Result<u128, StoreError> {
        let Some(participant) = PARTICIPANTS.get(store, voter)? else { return Ok(0) };
        Ok(group_weight(store, block.epoch, voter, &participant.models)?.into())
    }

    fn total_power(&self, store: &dyn KvRead, block: &BlockContext) -> Result<u128, StoreError> {
        Ok(POWER_TOTALS.get(store)?.unwrap_or_default().at(block.epoch).weight)
    }
}
