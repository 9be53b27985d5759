//! The breaker itself over a recorded group: the same code that judged the blocks, fed with what they heard.

use std::collections::BTreeMap;

use holdfast_breaker::state::{DUE, ENTRIES, MODEL_TALLIES, OVERRIDES, TRIP_RINGS};
use holdfast_breaker::{Keeper, MsgSetBreakerOverride, keys};
use holdfast_store::{KvRead, MemKv, StoreError};
use holdfast_types::traits::{
    Admission, BreakerGate, Eligibility, EligibilityHooks, EscrowCounts, EscrowHooks, GroupTotals,
    InferenceHooks, InferenceOutcome, InferenceStarted, ParticipantsRead, Stamp, Standing, StartAttempt,
};
use holdfast_types::{Address, BlockContext, Context, Event, Hrp, ModuleError, ValidationParams};

use super::log::Head;
use super::record::{
    BlockRecord, Checkpoint, EpochStart, GroupRows, Input, Item, Place, Transition, Verdict,
};
use super::tracks::Tracks;

/// Members as recorded.
#[derive(Default)]
struct Group(BTreeMap<String, BTreeMap<Address, Place>>);

impl Group {
    fn of(rows: &GroupRows, of_model: &str) -> Self {
        let wanted = rows.iter().filter(|(model, _)| of_model.is_empty() || model == of_model);
        Self(wanted.map(|(model, members)| (model.clone(), members.iter().copied().collect())).collect())
    }

    fn totals(&self) -> Vec<GroupTotals> {
        let totals = |(model, members): (&String, &BTreeMap<Address, Place>)| {
            let mut out = GroupTotals { model: model.clone(), eligible_weight: 0, members: 0, preserved: 0 };
            for place in members.values().filter(|place| place.weight > 0) {
                out.eligible_weight = out.eligible_weight.saturating_add(place.weight.into());
                out.members = out.members.saturating_add(1);
                out.preserved = out.preserved.saturating_add(u32::from(place.preserved));
            }
            out
        };
        self.0.iter().map(totals).collect()
    }
}

fn standing(place: Place) -> Standing {
    let Place { weight, preserved } = place;
    Standing { member: true, active: true, weight, preserved, in_maintenance: false }
}

impl ParticipantsRead for Group {
    // Only recorded pairs are asked for, and those were registered.
    fn has_model(&self, _store: &dyn KvRead, _model: &str) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn standing(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Standing, StoreError> {
        let place = self.0.get(model).and_then(|members| members.get(participant)).copied();
        Ok(place.map(standing).unwrap_or_default())
    }

    fn members(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        model: &str,
    ) -> Result<Vec<(Address, Standing)>, StoreError> {
        let members = self.0.get(model).into_iter().flatten();
        Ok(members.map(|(who, place)| (*who, standing(*place))).collect())
    }

    fn models(&self, _store: &dyn KvRead) -> Result<Vec<String>, StoreError> {
        Ok(self.0.keys().cloned().collect())
    }
}

/// A breaker that lives through the recorded blocks.
pub(super) struct Replay {
    store: MemKv,
    group: Group,
    block: BlockContext,
    of_model: String,
    /// Stamps that this replay gave to work which is still open.
    open: BTreeMap<String, Stamp>,
    /// Stamps that this replay gave to owners of escrows which are not paid yet.
    escrows: BTreeMap<(u64, Address), Stamp>,
    pub(super) tracks: Tracks,
}

impl Replay {
    /// At the beginning of a record, for one model or (empty) all.
    pub(super) fn new(head: &Head, hrp: &Hrp, of_model: &str) -> Result<Self, StoreError> {
        let mut block = BlockContext::new(head.height, head.params.clone());
        (block.hrp, block.epoch) = (hrp.clone(), head.epoch);
        let mut out = Self {
            store: MemKv::default(),
            group: Group::default(),
            block,
            of_model: of_model.to_owned(),
            open: BTreeMap::new(),
            escrows: BTreeMap::new(),
            tracks: Tracks::new(hrp.clone()),
        };
        if let Some(checkpoint) = &head.checkpoint {
            out.load(checkpoint)?;
            out.tracks.begin_with(checkpoint, of_model);
        }
        Ok(out)
    }

    fn wants(&self, model: &str) -> bool {
        self.of_model.is_empty() || self.of_model == model
    }

    fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let epoch = self.block.epoch;
        self.group = Group::of(&checkpoint.group, &self.of_model);
        for ((model, participant), entry) in &checkpoint.entries {
            let key = (epoch, model.clone(), *participant);
            if self.wants(model) {
                if let Some(due) = entry.due() {
                    DUE.insert(&mut self.store, &(due, epoch, model.clone(), *participant))?;
                }
                ENTRIES.set(&mut self.store, &key, entry)?;
            }
        }
        for (model, tally) in &checkpoint.tallies {
            MODEL_TALLIES.set(&mut self.store, &(epoch, model.clone()), tally)?;
        }
        for (model, ring) in &checkpoint.rings {
            TRIP_RINGS.set(&mut self.store, &(epoch, model.clone()), ring)?;
        }
        self.load_overrides(&checkpoint.overrides)
    }

    fn load_overrides(&mut self, rows: &super::record::OverrideRows) -> Result<(), StoreError> {
        for (key, forced) in rows {
            if self.wants(&key.0) {
                OVERRIDES.set(&mut self.store, key, forced)?;
            }
        }
        Ok(())
    }

    /// Lives through a block under `params`; returns the transitions made.
    pub(super) fn step(
        &mut self,
        record: &BlockRecord,
        params: ValidationParams,
    ) -> Result<Vec<Transition>, ModuleError> {
        let block = &mut self.block;
        (block.height, block.epoch, block.poc, block.params) =
            (record.height, record.epoch, record.poc, params);
        let mut made = Vec::new();
        match &record.epoch_start {
            Some(start) => self.start_epoch(start, &mut made)?,
            None => self.move_members(record, &mut made)?,
        }
        self.run(&mut made, |breaker, ctx| Ok(breaker.begin_block(ctx)?))?;
        let mut after = Vec::new();
        for item in &record.items {
            match item {
                Item::Heard(input) if self.wants(input.model()) => self.hear(input, &mut made)?,
                Item::HeardAfter(input) if self.wants(input.model()) => after.push(input),
                _ => {}
            }
        }
        self.run(&mut made, |breaker, ctx| Ok(breaker.end_block(ctx)?))?;
        for input in after {
            self.hear(input, &mut made)?;
        }
        Ok(made)
    }

    /// One call of the breaker; its transitions are tracked and kept.
    fn run<T>(
        &mut self,
        made: &mut Vec<Transition>,
        call: impl FnOnce(&Keeper<'_>, &mut Context<'_>) -> Result<T, ModuleError>,
    ) -> Result<T, ModuleError> {
        let mut events: Vec<Event> = Vec::new();
        let value =
            call(&Keeper::new(&self.group), &mut Context::new(&self.block, &mut self.store, &mut events))?;
        for transition in events.iter().filter_map(Transition::of) {
            self.tracks.made(self.block.height, &transition);
            made.push(transition);
        }
        Ok(value)
    }

    fn start_epoch(&mut self, start: &EpochStart, made: &mut Vec<Transition>) -> Result<(), ModuleError> {
        self.group = Group::of(&start.group, &self.of_model);
        self.load_overrides(&start.overrides)?;
        let totals = self.group.totals();
        self.run(made, |breaker, ctx| Ok(breaker.start_epoch(ctx, &totals)?))
    }

    fn move_members(&mut self, record: &BlockRecord, made: &mut Vec<Transition>) -> Result<(), ModuleError> {
        for (model, participant, new) in &record.places {
            if !self.wants(model) {
                continue;
            }
            let members = self.group.0.entry(model.clone()).or_default();
            let old = members.get(participant).copied().unwrap_or_default();
            if old == *new {
                continue;
            }
            members.insert(*participant, *new);
            let counts = |place: Place| Eligibility { weight: place.weight, preserved: place.preserved };
            let (old, new) = (counts(old), counts(*new));
            self.run(made, |breaker, ctx| {
                breaker.after_member_eligibility_changed(ctx, model, participant, old, new)
            })?;
        }
        Ok(())
    }

    fn hear(&mut self, input: &Input, made: &mut Vec<Transition>) -> Result<(), ModuleError> {
        self.tracks.heard(input);
        match input {
            Input::Start { id, model, executor, by_itself, finished_at, expires_at } => {
                let attempt = StartAttempt {
                    model,
                    requester: if *by_itself { *executor } else { somebody_else(executor) },
                    signer: somebody_else(executor),
                    executor: *executor,
                    finished_at: *finished_at,
                };
                let admission = self.run(made, |breaker, ctx| match breaker.admit(ctx, &attempt) {
                    // The work was given all the same: then as the breaker lets work pass that it would not give.
                    Err(refusal) if refusal.codespace == keys::MODULE => {
                        let stamp = Stamp { epoch: ctx.block.epoch, generation: 0, evidence: false };
                        Ok(Admission { stamp, claim: false })
                    }
                    other => other,
                })?;
                self.open.insert(id.clone(), admission.stamp);
                let started = InferenceStarted {
                    inference_id: id.clone(),
                    model: model.clone(),
                    executor: *executor,
                    stamp: admission.stamp,
                    claim: admission.claim,
                    expires_at: *expires_at,
                };
                self.run(made, |breaker, ctx| breaker.after_inference_started(ctx, &started))
            }
            Input::Outcome { id, model, executor, stamp, verdict } => {
                let outcome = InferenceOutcome {
                    inference_id: id.clone(),
                    model: model.clone(),
                    executor: *executor,
                    stamp: self.open.remove(id).unwrap_or(*stamp),
                };
                self.run(made, |breaker, ctx| match verdict {
                    Verdict::Finished => breaker.after_inference_finished(ctx, &outcome),
                    Verdict::Missed => breaker.after_inference_missed(ctx, &outcome),
                    Verdict::Released => breaker.after_inference_released(ctx, &outcome),
                })
            }
            Input::Override { model, participant, forced } => {
                let msg = MsgSetBreakerOverride {
                    authority: String::new(),
                    model: model.clone(),
                    participant: *participant,
                    to: forced.map(|forced| forced.to),
                    until_block: forced.map_or(0, |forced| forced.until_block),
                };
                self.run(made, |breaker, ctx| Ok(breaker.set_override(ctx, &msg)?))
            }
            Input::Stamped { escrow_id, model, owners } => {
                for owner in owners {
                    let stamp = Keeper::new(&self.group).stamp(&self.store, &self.block, model, owner)?;
                    self.escrows.insert((*escrow_id, *owner), stamp);
                }
                Ok(())
            }
            Input::Counts { escrow_id, model, participant, stamp, ok, missed } => {
                let counts = EscrowCounts {
                    model: model.clone(),
                    participant: *participant,
                    stamp: self.escrows.remove(&(*escrow_id, *participant)).unwrap_or(*stamp),
                    assigned: ok.saturating_add(*missed),
                    ok: *ok,
                    missed: *missed,
                    released: 0,
                    earned: 0,
                };
                self.run(made, |breaker, ctx| breaker.after_escrow_settled(ctx, &counts))
            }
        }
    }
}

/// Any address but `executor`.
fn somebody_else(executor: &Address) -> Address {
    let gov = Address::module("gov");
    if gov == *executor { Address::module(keys::MODULE) } else { gov }
}
