//! One model, some executors, and the calls x/inference would make, block by block.

use std::collections::BTreeMap;

use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_testkit::{StaticGroup, TestChain, addr};
use holdfast_types::traits::{
    Admission, BreakerGate, BreakerRead, EligibilityHooks, EscrowCounts, EscrowHooks, HealthClass,
    InferenceHooks, InferenceOutcome, InferenceStarted, Stamp, Standing, StartAttempt,
};
use holdfast_types::{Address, Context, Event, Height, ModuleError, ValidationParams};

use crate::state::ENTRIES;
use crate::{Entry, Keeper, ModelTally, State};

pub(super) const M: &str = "m1";
/// Asks for inferences.
pub(super) const REQUESTER: u8 = 200;
/// Signs and pays.
pub(super) const SIGNER: u8 = 201;

#[derive(Clone)]
pub(super) struct Scene {
    pub(super) chain: TestChain,
    pub(super) group: StaticGroup,
    /// In force from the next block on.
    pub(super) committed: ValidationParams,
    running: BTreeMap<String, InferenceOutcome>,
    issued: u32,
}

impl Scene {
    /// In block 1, the first of epoch 0, its begin-block done.
    pub(super) fn new(params: ValidationParams, members: &[(u8, u64)]) -> Self {
        assert_eq!(params.validate(), Ok(()));
        let mut group = StaticGroup::new();
        group.add_model(M);
        for (n, weight) in members {
            group.add_member(M, addr(*n), *weight);
        }
        let mut chain = TestChain::new(1);
        chain.block.params = params.clone();
        let mut scene = Self { chain, group, committed: params, running: BTreeMap::new(), issued: 0 };
        let totals = scene.group.totals();
        scene.run(|k, ctx| k.start_epoch(ctx, &totals)).unwrap();
        scene
    }

    /// Executors 1, 2 and 3 of equal weight under the seed's parameters.
    pub(super) fn three() -> Self {
        Self::new(ValidationParams::default(), &[(1, 10), (2, 10), (3, 10)])
    }

    pub(super) fn run<T, E: From<holdfast_store::StoreError>>(
        &mut self,
        step: impl FnOnce(&Keeper<'_>, &mut Context<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let keeper = Keeper::new(&self.group);
        self.chain.message(|ctx| step(&keeper, ctx))
    }

    pub(super) fn height(&self) -> Height {
        self.chain.block.height
    }

    /// Judge and pruning.
    pub(super) fn end(&mut self) {
        self.run(|k, ctx| k.end_block(ctx)).unwrap();
        self.run(|k, ctx| k.prune(ctx)).unwrap();
        self.check();
    }

    pub(super) fn check(&self) {
        crate::invariants::check(&Keeper::new(&self.group), &self.chain.store, &self.chain.block).unwrap();
    }

    fn begin(&mut self) {
        self.chain.block.height += 1;
        self.chain.block.params = self.committed.clone();
        self.run(|k, ctx| k.begin_block(ctx)).unwrap();
    }

    /// Ends this block, begins the next.
    pub(super) fn next(&mut self) {
        self.end();
        self.begin();
    }

    /// Block by block to the begin of `height`.
    pub(super) fn go(&mut self, height: Height) {
        assert!(height >= self.height());
        while self.height() < height {
            self.next();
        }
    }

    /// Ends this block; the next is the first of the next epoch.
    pub(super) fn next_epoch(&mut self) {
        self.next_epoch_with(|_| ());
    }

    /// The same with other members.
    pub(super) fn next_epoch_with(&mut self, regroup: impl FnOnce(&mut StaticGroup)) {
        self.end();
        regroup(&mut self.group);
        self.chain.block.epoch += 1;
        self.chain.block.height += 1;
        self.chain.block.params = self.committed.clone();
        let totals = self.group.totals();
        self.run(|k, ctx| k.start_epoch(ctx, &totals)).unwrap();
        self.run(|k, ctx| k.begin_block(ctx)).unwrap();
        self.check();
    }

    /// Parameters in force from this block on, as if committed in the block before.
    pub(super) fn set(&mut self, change: impl FnOnce(&mut ValidationParams)) {
        change(&mut self.committed);
        assert_eq!(self.committed.validate(), Ok(()));
        self.chain.block.params = self.committed.clone();
    }

    pub(super) fn attempt(&mut self, attempt: &StartAttempt<'_>) -> Result<(String, Admission), ModuleError> {
        self.issued += 1;
        let id = format!("i{}", self.issued);
        let expires_at = self.height() + self.chain.block.params.expiration_blocks;
        let (inference_id, executor) = (id.clone(), attempt.executor);
        let admission = self.run(|k, ctx| {
            let Admission { stamp, claim } = k.admit(ctx, attempt)?;
            let model = attempt.model.to_owned();
            let started = InferenceStarted { inference_id, model, executor, stamp, claim, expires_at };
            k.after_inference_started(ctx, &started)?;
            Ok::<_, ModuleError>(Admission { stamp, claim })
        })?;
        let model = attempt.model.to_owned();
        let outcome = InferenceOutcome { inference_id: id.clone(), model, executor, stamp: admission.stamp };
        self.running.insert(id.clone(), outcome);
        Ok((id, admission))
    }

    pub(super) fn admit(&mut self, n: u8) -> Result<(String, Admission), ModuleError> {
        self.attempt(&attempt(n, REQUESTER, SIGNER, None))
    }

    pub(super) fn start(&mut self, n: u8) -> String {
        self.admit(n).unwrap().0
    }

    fn outcome(&self, id: &str) -> InferenceOutcome {
        self.running[id].clone()
    }

    pub(super) fn finish(&mut self, id: &str) {
        let outcome = self.outcome(id);
        self.run(|k, ctx| k.after_inference_finished(ctx, &outcome)).unwrap();
    }

    pub(super) fn miss(&mut self, id: &str) {
        let outcome = self.outcome(id);
        self.run(|k, ctx| k.after_inference_missed(ctx, &outcome)).unwrap();
    }

    pub(super) fn release(&mut self, id: &str) {
        let outcome = self.outcome(id);
        self.run(|k, ctx| k.after_inference_released(ctx, &outcome)).unwrap();
    }

    /// Starts and finishes `count` in this block.
    pub(super) fn good(&mut self, n: u8, count: usize) {
        for _ in 0..count {
            let id = self.start(n);
            self.finish(&id);
        }
    }

    /// Starts and misses `count` in this block, as by reported failures.
    pub(super) fn bad(&mut self, n: u8, count: usize) {
        for _ in 0..count {
            let id = self.start(n);
            self.miss(&id);
        }
    }

    /// Four misses now: excluded in this block. Stands in the next.
    pub(super) fn trip(&mut self, n: u8) -> Height {
        let height = self.height();
        self.bad(n, 4);
        self.next();
        assert_eq!(self.letter(n), 'X');
        height
    }

    /// Four misses now, which a limit refuses.
    pub(super) fn trip_refused(&mut self, n: u8) {
        self.bad(n, 4);
        self.next();
        assert_eq!(self.letter(n), 'H');
    }

    /// Excluded, then on to the block in which its probe is ready.
    pub(super) fn ready(&mut self, n: u8) {
        self.trip(n);
        let due = self.entry(n).due().unwrap();
        self.go(due);
        assert_eq!(self.letter(n), 'R');
    }

    /// Excluded, ready, and its probe given out now.
    pub(super) fn claimed(&mut self, n: u8) -> String {
        self.ready(n);
        let id = self.start(n);
        assert_eq!(self.letter(n), 'C');
        id
    }

    pub(super) fn key(&self, n: u8) -> crate::state::EntryKey {
        (self.chain.block.epoch, M.to_owned(), addr(n))
    }

    pub(super) fn entry(&self, n: u8) -> Entry {
        ENTRIES.get(&self.chain.store, &self.key(n)).unwrap().unwrap_or_default()
    }

    /// H, X, R or C as in breaker-details 1.
    pub(super) fn letter(&self, n: u8) -> char {
        match self.entry(n) {
            e if e.state == State::Healthy => 'H',
            e if e.state == State::Excluded => 'X',
            e if e.probe.is_none() => 'R',
            _ => 'C',
        }
    }

    pub(super) fn health(&self, n: u8) -> HealthClass {
        Keeper::new(&self.group).health(&self.chain.store, &self.chain.block, M, &addr(n)).unwrap()
    }

    pub(super) fn tally(&self) -> ModelTally {
        Keeper::new(&self.group).tally(&self.chain.store, &self.chain.block, M).unwrap()
    }

    pub(super) fn stamp(&self, n: u8) -> Stamp {
        Keeper::new(&self.group).stamp(&self.chain.store, &self.chain.block, M, &addr(n)).unwrap()
    }

    pub(super) fn escrow(&mut self, n: u8, stamp: Stamp, ok: u64, missed: u64) {
        let (assigned, participant) = (ok + missed, addr(n));
        let counts = EscrowCounts {
            model: M.into(),
            participant,
            stamp,
            assigned,
            ok,
            missed,
            released: 0,
            earned: 0,
        };
        self.run(|k, ctx| k.after_escrow_settled(ctx, &counts)).unwrap();
    }

    /// Eligibility moves, with its hook.
    pub(super) fn avail(&mut self, n: u8, change: impl FnOnce(&mut Standing)) {
        let (old, new) = self.group.change(M, addr(n), change);
        self.run(|k, ctx| k.after_member_eligibility_changed(ctx, M, &addr(n), old, new)).unwrap();
    }

    pub(super) fn force(&mut self, n: u8, to: pb::OverrideTo, until_block: Height) {
        let msg = self.override_msg(n, to, until_block);
        self.run(|k, ctx| crate::msg_server::set_breaker_override(ctx, k, msg)).unwrap();
    }

    pub(super) fn override_msg(
        &self,
        n: u8,
        to: pb::OverrideTo,
        until_block: Height,
    ) -> pb::MsgSetBreakerOverride {
        pb::MsgSetBreakerOverride {
            authority: self.chain.bech32(&Address::module("gov")),
            model: M.into(),
            participant: self.chain.bech32(&addr(n)),
            to: to.into(),
            until_block,
        }
    }

    /// Takes all events so far; those of `kind` come back.
    pub(super) fn events(&mut self, kind: &str) -> Vec<Event> {
        let kind = format!("holdfast.breaker.v1.{kind}");
        self.chain.take_events().into_iter().filter(|e| e.kind == kind).collect()
    }
}

pub(super) fn attempt(
    n: u8,
    requester: u8,
    signer: u8,
    finished_at: Option<Height>,
) -> StartAttempt<'static> {
    StartAttempt {
        model: M,
        requester: addr(requester),
        signer: addr(signer),
        executor: addr(n),
        finished_at,
    }
}

/// `name=value` of an event's attributes.
pub(super) fn values(event: &Event, names: &[&str]) -> Vec<String> {
    names.iter().map(|n| event.get(n).unwrap().to_owned()).collect()
}
