//! Reads, the admission gate, and the one function through which every entry is written.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{
    Admission, BreakerGate, BreakerRead, HealthClass, ParticipantsRead, Stamp, Standing, StartAttempt,
};
use holdfast_types::{Address, BlockContext, Context, Height, ModuleError};

use crate::errors::BreakerError;
use crate::events;
use crate::state::{DUE, ENTRIES, EntryKey, MODEL_TALLIES, set_model_tally};
use crate::types::{Entry, ForcedTo, ModelTally, State, Window};

/// Due rows handled in one block; the rest waits for the next.
pub const DUE_ROWS_MAX: usize = 5_000;
/// Rows of past epochs removed in one block, per collection.
pub const PRUNE_ROWS_MAX: usize = 1_000;
/// Live overrides.
pub const OVERRIDES_MAX: usize = 256;

/// The breaker over a membership. Holds no state: make one wherever it is needed.
#[derive(Clone, Copy)]
pub struct Keeper<'a> {
    /// Who is in which group, with what weight.
    pub group: &'a dyn ParticipantsRead,
}

impl<'a> Keeper<'a> {
    /// The breaker over `group`.
    pub fn new(group: &'a dyn ParticipantsRead) -> Self {
        Self { group }
    }

    /// The entry of the current epoch; absent is Healthy, generation 0.
    pub fn entry(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Entry, StoreError> {
        Ok(ENTRIES.get(store, &(block.epoch, model.to_owned(), *participant))?.unwrap_or_default())
    }

    /// The model's running sums in the current epoch.
    pub fn tally(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
    ) -> Result<ModelTally, StoreError> {
        Ok(MODEL_TALLIES.get(store, &(block.epoch, model.to_owned()))?.unwrap_or_default())
    }

    /// The stamp a new escrow takes for its settlement (breaker.md 6).
    pub fn stamp(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Stamp, StoreError> {
        let entry = self.entry(store, block, model, participant)?;
        Ok(Stamp { epoch: block.epoch, generation: entry.generation, evidence: true })
    }

    /// Writes `new` over `old`, keeps the due queue at one row per entry, and moves the model's sums.
    pub(crate) fn save(
        &self,
        ctx: &mut Context<'_>,
        key: &EntryKey,
        old: &Entry,
        new: &Entry,
    ) -> Result<(), BreakerError> {
        if old.due() != new.due() {
            if let Some(due) = old.due() {
                DUE.remove(ctx.store, &(due, key.0, key.1.clone(), key.2))?;
            }
            if let Some(due) = new.due() {
                DUE.insert(ctx.store, &(due, key.0, key.1.clone(), key.2))?;
            }
        }
        if old.state != new.state || old.is_forced_out() != new.is_forced_out() {
            let standing = self.group.standing(ctx.store, ctx.block, &key.1, &key.2)?;
            let mut tally = self.tally(ctx.store, ctx.block, &key.1)?;
            count(&mut tally, old, &standing, Sign::Out)?;
            count(&mut tally, new, &standing, Sign::In)?;
            set_model_tally(ctx.store, key.0, &key.1, &tally)?;
        }
        ENTRIES.set(ctx.store, key, new)?;
        Ok(())
    }

    /// `generation + 1` and a fresh window: what ends all older evidence.
    pub(crate) fn next_generation(entry: &mut Entry) -> Result<(), BreakerError> {
        let next = entry.generation.checked_add(1);
        entry.generation = next.ok_or_else(|| BreakerError::Corrupt("generation overflow".into()))?;
        entry.window = Window::default();
        entry.consecutive_misses = 0;
        Ok(())
    }

    /// Probe ready from `ready_since = height` on: the back of the lane (rows 5, 11, 12, 16).
    pub(crate) fn open_probe(
        &self,
        ctx: &mut Context<'_>,
        key: &EntryKey,
        old: &Entry,
        cause: &str,
    ) -> Result<(), BreakerError> {
        let mut entry = old.clone();
        entry.state = State::Probe;
        entry.probe = None;
        entry.forced = None;
        entry.ready_since = ctx.block.height;
        self.save(ctx, key, old, &entry)?;
        events::probe_opened(ctx, &key.1, &key.2, &entry, cause);
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    In,
    Out,
}

/// Adds or takes away what `entry` with `standing` contributes to the sums.
pub(crate) fn count(
    tally: &mut ModelTally,
    entry: &Entry,
    standing: &Standing,
    sign: Sign,
) -> Result<(), BreakerError> {
    let weight = standing.eligibility().weight;
    if weight == 0 || entry.is_forced_out() {
        return Ok(());
    }
    let corrupt = || BreakerError::Corrupt("model sums out of range".into());
    let weights = |sum: u128| match sign {
        Sign::In => sum.checked_add(weight.into()).ok_or_else(corrupt),
        Sign::Out => sum.checked_sub(weight.into()).ok_or_else(corrupt),
    };
    let heads = |n: u32| match sign {
        Sign::In => n.checked_add(1).ok_or_else(corrupt),
        Sign::Out => n.checked_sub(1).ok_or_else(corrupt),
    };
    tally.eligible_weight = weights(tally.eligible_weight)?;
    if entry.state == State::Healthy {
        tally.healthy_all = heads(tally.healthy_all)?;
        if standing.preserved {
            tally.healthy_poc = heads(tally.healthy_poc)?;
        }
    } else {
        tally.out_weight = weights(tally.out_weight)?;
    }
    Ok(())
}

fn override_end(entry: &Entry) -> Height {
    entry.forced.map_or(0, |f| f.until_block)
}

impl BreakerGate for Keeper<'_> {
    /// Rows 1 and 2 of breaker-details 1, and its rule for a finish that arrived first.
    fn admit(&self, ctx: &Context<'_>, attempt: &StartAttempt<'_>) -> Result<Admission, ModuleError> {
        let StartAttempt { model, requester, signer, executor, finished_at } = attempt;
        let params = &ctx.block.params;
        let entry = self.entry(ctx.store, ctx.block, model, executor)?;
        let stamp = |evidence| Stamp { epoch: ctx.block.epoch, generation: entry.generation, evidence };
        let bypass = Ok(Admission { stamp: stamp(false), claim: false });
        let by_itself = requester == executor || signer == executor;

        if let Some(finished_at) = *finished_at {
            // The work is done: never refused, evidence only if done under the present state.
            let current = finished_at >= entry.ready_since.max(entry.restored_at) && !by_itself;
            let claims = entry.is_ready() && params.health_cb_enabled;
            let counts = entry.state == State::Healthy || claims;
            if !current || !counts || entry.is_forced_out() {
                return bypass;
            }
            return Ok(Admission { stamp: stamp(true), claim: claims });
        }
        if entry.is_forced_out() {
            return Err(BreakerError::ExecutorForcedOut { until: override_end(&entry) }.into());
        }
        if entry.state == State::Healthy {
            return Ok(Admission { stamp: stamp(!by_itself), claim: false });
        }
        if !params.health_cb_enabled {
            return bypass;
        }
        if entry.is_ready() && !by_itself {
            return Ok(Admission { stamp: stamp(true), claim: true });
        }
        // The query falls back when nobody is healthy; the gate must let its answers through.
        if params.health_cb_shadow || self.tally(ctx.store, ctx.block, model)?.healthy(ctx.block.poc) == 0 {
            return bypass;
        }
        Err(match (entry.state, &entry.probe) {
            (State::Probe, None) => BreakerError::ProbeSelfRequest,
            (State::Probe, Some(claim)) => BreakerError::ProbeClaimed { until: claim.deadline_block },
            _ => BreakerError::ExecutorExcluded { until: entry.due().unwrap_or(0) },
        }
        .into())
    }
}

impl BreakerRead for Keeper<'_> {
    fn health(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<HealthClass, StoreError> {
        let entry = self.entry(store, block, model, participant)?;
        if entry.forced.is_some_and(|f| f.to == ForcedTo::Excluded) {
            return Ok(HealthClass::ForcedOut);
        }
        if !block.params.health_cb_enabled || block.params.health_cb_shadow || entry.state == State::Healthy {
            return Ok(HealthClass::Healthy);
        }
        Ok(if entry.is_ready() {
            HealthClass::ProbeReady { since: entry.ready_since }
        } else {
            HealthClass::Out
        })
    }
}
