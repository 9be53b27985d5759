//! What the breaker does when others report: inference outcomes, epochs, eligibility, settlements.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{
    Eligibility, EligibilityHooks, EpochHooks, EpochInfo, EscrowCounts, EscrowHooks, EscrowStamps,
    GroupTotals, InferenceHooks, InferenceOutcome, InferenceStarted, Stamp, Standing,
};
use holdfast_types::{Address, BlockContext, Context, ModuleError};

use crate::calc::{self, Rule};
use crate::errors::BreakerError;
use crate::events::{self, Evidence};
use crate::keeper::{Keeper, Sign, count};
use crate::state::{ENTRIES, EntryKey, OVERRIDES, TALLIES, set_model_tally};
use crate::types::{Entry, ModelTally, ProbeClaim, State, Tally};

/// How an inference ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Finished,
    Missed,
    Released,
}

impl Keeper<'_> {
    fn settle(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
        verdict: Verdict,
    ) -> Result<(), BreakerError> {
        let key: EntryKey = (ctx.block.epoch, event.model.clone(), event.executor);
        let entry = ENTRIES.get(ctx.store, &key)?.unwrap_or_default();
        if !is_current(ctx, &entry, &event.stamp) {
            return Ok(());
        }
        let claimed = entry.probe.as_ref().is_some_and(|claim| claim.inference_id == event.inference_id);
        match verdict {
            Verdict::Finished if claimed => self.restore(ctx, &key, &entry, &event.inference_id),
            Verdict::Missed if claimed => self.fail_probe(ctx, &key, &entry),
            Verdict::Released if claimed => self.open_probe(ctx, &key, &entry, "released"),
            Verdict::Released => Ok(()),
            Verdict::Finished => add_tally(ctx, &key, &entry, 1, 0),
            Verdict::Missed => add_tally(ctx, &key, &entry, 0, 1),
        }
    }

    /// Row 3: the probe passed.
    fn restore(
        &self,
        ctx: &mut Context<'_>,
        key: &EntryKey,
        old: &Entry,
        inference_id: &str,
    ) -> Result<(), BreakerError> {
        let mut entry = old.clone();
        entry.state = State::Healthy;
        entry.probe = None;
        entry.probe_attempts = 0;
        entry.restored_at = ctx.block.height;
        Self::next_generation(&mut entry)?;
        self.save(ctx, key, old, &entry)?;
        events::restored(ctx, &key.1, &key.2, &entry, "probe", inference_id, old.probe_attempts);
        Ok(())
    }

    /// Row 4: the probe failed. Never refused by cap or freeze: the weight is out already.
    fn fail_probe(&self, ctx: &mut Context<'_>, key: &EntryKey, old: &Entry) -> Result<(), BreakerError> {
        let mut entry = old.clone();
        entry.probe = None;
        entry.backoff_level = calc::level_up(old.backoff_level);
        self.exclude(
            ctx,
            key,
            old,
            entry,
            &Evidence { rule: Rule::Probe, ok: 0, missed: 0, consecutive_misses: 0 },
        )
    }

    /// Excluded from this block on, under the level already in `entry`.
    pub(crate) fn exclude(
        &self,
        ctx: &mut Context<'_>,
        key: &EntryKey,
        old: &Entry,
        mut entry: Entry,
        evidence: &Evidence,
    ) -> Result<(), BreakerError> {
        let height = ctx.block.height;
        entry.state = State::Excluded;
        entry.excluded_at = height;
        entry.cooldown_blocks =
            calc::cooldown(&ctx.block.params, entry.backoff_level, &key.1, &key.2, height);
        Self::next_generation(&mut entry)?;
        self.save(ctx, key, old, &entry)?;
        events::excluded(ctx, &key.1, &key.2, &entry, evidence);
        Ok(())
    }

    /// A new epoch (row 13): a fresh key space, sums from the group totals, live overrides applied again.
    pub fn start_epoch(&self, ctx: &mut Context<'_>, totals: &[GroupTotals]) -> Result<(), BreakerError> {
        let epoch = ctx.block.epoch;
        for group in totals {
            let tally = ModelTally {
                eligible_weight: group.eligible_weight,
                out_weight: 0,
                healthy_all: group.members,
                healthy_poc: group.preserved,
            };
            set_model_tally(ctx.store, epoch, &group.model, &tally)?;
        }
        if let Some(from_epoch) = epoch.checked_sub(1) {
            events::reset(ctx, from_epoch);
        }
        let overrides: Vec<_> =
            OVERRIDES.iter(ctx.store, holdfast_store::Order::Ascending).collect::<Result<_, _>>()?;
        for ((model, participant), forced) in overrides {
            if forced.until_block > ctx.block.height {
                self.force(ctx, &(epoch, model, participant), forced)?;
            } else {
                OVERRIDES.remove(ctx.store, &(model, participant))?;
            }
        }
        Ok(())
    }
}

/// Whether an outcome with `stamp` is evidence about `entry` (breaker-details 0.1).
fn is_current(ctx: &Context<'_>, entry: &Entry, stamp: &Stamp) -> bool {
    stamp.evidence && stamp.epoch == ctx.block.epoch && stamp.generation == entry.generation
}

/// Rows 6 and 23: only a Healthy entry collects evidence, and only while the breaker is on.
fn add_tally(
    ctx: &mut Context<'_>,
    key: &EntryKey,
    entry: &Entry,
    ok: u64,
    missed: u64,
) -> Result<(), BreakerError> {
    if entry.state != State::Healthy || !ctx.block.params.health_cb_enabled || (ok == 0 && missed == 0) {
        return Ok(());
    }
    let key = (key.1.clone(), key.2);
    let fresh = Tally { generation: entry.generation, ok: 0, missed: 0 };
    let mut tally =
        TALLIES.get(ctx.store, &key)?.filter(|tally| tally.generation == entry.generation).unwrap_or(fresh);
    tally.ok = tally.ok.saturating_add(ok);
    tally.missed = tally.missed.saturating_add(missed);
    Ok(TALLIES.set(ctx.store, &key, &tally)?)
}

impl InferenceHooks for Keeper<'_> {
    /// Row 1: takes the probe slot when the gate said so.
    fn after_inference_started(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceStarted,
    ) -> Result<(), ModuleError> {
        if !event.claim {
            return Ok(());
        }
        let key: EntryKey = (ctx.block.epoch, event.model.clone(), event.executor);
        let old = ENTRIES.get(ctx.store, &key)?.unwrap_or_default();
        if !old.is_ready() {
            return Err(BreakerError::Corrupt("claim on an entry that is not probe-ready".into()).into());
        }
        let deadline_block = event.expires_at.saturating_add(ctx.block.params.expiration_blocks);
        let mut entry = old.clone();
        entry.probe_attempts = old.probe_attempts.saturating_add(1);
        entry.probe = Some(ProbeClaim { inference_id: event.inference_id.clone(), deadline_block });
        self.save(ctx, &key, &old, &entry)?;
        events::probe_claimed(ctx, &key.1, &key.2, &entry, &event.inference_id, deadline_block);
        Ok(())
    }

    fn after_inference_finished(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError> {
        Ok(self.settle(ctx, event, Verdict::Finished)?)
    }

    fn after_inference_missed(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError> {
        Ok(self.settle(ctx, event, Verdict::Missed)?)
    }

    fn after_inference_released(
        &self,
        ctx: &mut Context<'_>,
        event: &InferenceOutcome,
    ) -> Result<(), ModuleError> {
        Ok(self.settle(ctx, event, Verdict::Released)?)
    }
}

impl EscrowHooks for Keeper<'_> {
    fn after_escrow_settled(&self, ctx: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError> {
        let key: EntryKey = (ctx.block.epoch, counts.model.clone(), counts.participant);
        let entry = ENTRIES.get(ctx.store, &key)?.unwrap_or_default();
        if is_current(ctx, &entry, &counts.stamp) {
            add_tally(ctx, &key, &entry, counts.ok, counts.missed)?;
        }
        Ok(())
    }
}

impl EscrowStamps for Keeper<'_> {
    fn stamp(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Stamp, StoreError> {
        Keeper::stamp(self, store, block, model, participant)
    }
}

impl EpochHooks for Keeper<'_> {
    fn after_epoch_ended(&self, _ctx: &mut Context<'_>, _ended: &EpochInfo) -> Result<(), ModuleError> {
        // Old rows turn invisible by their key; pruning is end-block work.
        Ok(())
    }

    /// For embedders without group totals at hand: sums them up by one scan of the group. Holdfast's own app
    /// calls [`Keeper::start_epoch`] with the totals x/participants keeps.
    fn after_epoch_started(&self, ctx: &mut Context<'_>, _started: &EpochInfo) -> Result<(), ModuleError> {
        let totals = self.scan_totals(ctx.store, ctx.block)?;
        Ok(self.start_epoch(ctx, &totals)?)
    }
}

impl EligibilityHooks for Keeper<'_> {
    /// Row 18 and 19: the state stays, the sums follow.
    fn after_member_eligibility_changed(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        participant: &Address,
        old: Eligibility,
        new: Eligibility,
    ) -> Result<(), ModuleError> {
        let entry = self.entry(ctx.store, ctx.block, model, participant)?;
        let standing = |e: Eligibility| Standing {
            member: true,
            active: true,
            weight: e.weight,
            preserved: e.preserved,
            in_maintenance: false,
        };
        let mut tally = self.tally(ctx.store, ctx.block, model)?;
        count(&mut tally, &entry, &standing(old), Sign::Out)?;
        count(&mut tally, &entry, &standing(new), Sign::In)?;
        set_model_tally(ctx.store, ctx.block.epoch, model, &tally)?;
        Ok(())
    }
}
