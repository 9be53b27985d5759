//! The core against simulated shards that answer late, twice, wrongly or never, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::core::State;
use super::*;
use crate::adapter::{AdapterError, Bundle, KvKey, Payload, SessionId, ShardInfo, StepOut, StepRef, StopAck};
use crate::clock::VirtualClock;
use crate::failure::{Cause, WorkStatus};
use crate::kv::{Begin, HotKvStateManager, KvLimits};
use crate::ledger::{IdempotencyLedger, LedgerConfig, MemoryDisk};
use crate::telemetry::Load;

const CAPACITY: u32 = 48;
const MAX_POSITIONS: u32 = 32;

/// The model of these tests: a token follows from the number of rows alone.
fn token_after(rows: u32) -> u32 {
    (rows * 7 + 3) % 256
}

struct SimShard {
    kv: HotKvStateManager<()>,
    info: Arc<ShardInfo>,
    dead: bool,
}

impl SimShard {
    fn new(no: u32, first: bool) -> Self {
        let limits = KvLimits { capacity: CAPACITY, max_positions: MAX_POSITIONS, fences: 1_000 };
        let info = ShardInfo {
            shard_id: format!("s{no}"),
            layers: if first { (0, 1) } else { (1, 2) },
            model_layers: 2,
            model_digest: [1; 32],
            d_model: 1,
            vocab: 256,
            max_positions: MAX_POSITIONS,
            capacity: CAPACITY,
            chunk_max: 4,
        };
        Self { kv: HotKvStateManager::new(limits), info: Arc::new(info), dead: false }
    }

    fn step(
        &mut self,
        key: KvKey,
        step: StepRef,
        bundle: &Bundle,
        now_ms: u64,
    ) -> Result<StepOut, AdapterError> {
        let rows = bundle.payload.rows();
        match self.kv.begin(key, step, bundle.position, rows, now_ms)? {
            Begin::Replay(out) => Ok(out),
            Begin::Run { kv, .. } => {
                let out = if self.info.is_last() {
                    StepOut::Token { token: token_after(bundle.position + rows), logits_digest: [2; 32] }
                } else {
                    let payload = Payload::Hidden { rows, cols: 1, data: vec![0; rows as usize * 4] };
                    StepOut::Hidden(Bundle::new(bundle.position, payload))
                };
                self.kv.finish(key, kv, &out, now_ms)?;
                Ok(out)
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Submit {
        prompt: u32,
        max_new: u32,
        restarts: u32,
        stop: bool,
    },
    Cancel {
        which: usize,
        epoch: Option<u32>,
    },
    /// A pending call is executed, or not, and answered, or not.
    Answer {
        which: usize,
        how: How,
    },
    Delivered {
        which: usize,
        count: u32,
    },
    Pass {
        ms: u64,
    },
    /// An answer that nobody asked for.
    Stray {
        which: usize,
        epoch: u32,
        step: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum How {
    Well,
    Twice,
    BrokenBefore,
    BrokenAfter,
    /// Executed; the answer never comes.
    Unheard,
    Refused,
    Killed,
}

fn op() -> impl Strategy<Value = Op> {
    let how = prop_oneof![
        12 => Just(How::Well),
        1 => Just(How::Twice),
        1 => Just(How::BrokenBefore),
        1 => Just(How::BrokenAfter),
        1 => Just(How::Unheard),
        1 => Just(How::Refused),
        1 => Just(How::Killed),
    ];
    prop_oneof![
        3 => (1_u32..12, 1_u32..8, 0_u32..3, any::<bool>())
            .prop_map(|(prompt, max_new, restarts, stop)| Op::Submit { prompt, max_new, restarts, stop }),
        1 => (any::<usize>(), prop::option::of(0_u32..2)).prop_map(|(which, epoch)| Op::Cancel { which, epoch }),
        24 => (any::<usize>(), how).prop_map(|(which, how)| Op::Answer { which, how }),
        2 => (any::<usize>(), 0_u32..9).prop_map(|(which, count)| Op::Delivered { which, count }),
        2 => prop_oneof![1_u64..50, 400_u64..1_200, 5_000_u64..40_000].prop_map(|ms| Op::Pass { ms }),
        1 => (any::<usize>(), 0_u32..3, 0_u32..9).prop_map(|(which, epoch, step)| Op::Stray { which, epoch, step }),
    ]
}

struct Sim {
    core: SessionCore,
    ledger: IdempotencyLedger,
    now_ms: u64,
    wake_at_ms: Option<u64>,
    shards: Vec<SimShard>,
    pending: Vec<Effect>,
    requests: BTreeMap<SessionId, GenerateRequest>,
    order: Vec<SessionId>,
    given: BTreeMap<SessionId, Vec<u32>>,
    done: BTreeMap<SessionId, Outcome>,
    /// Opened without the core ever hearing of it: the lease is what ends these.
    unheard: BTreeSet<(ShardNo, KvKey)>,
}

impl Sim {
    fn new() -> Self {
        let config = LedgerConfig::default();
        let ledger =
            IdempotencyLedger::open(MemoryDisk::new().store().unwrap(), config, &VirtualClock::new());
        let mut sim = Self {
            core: SessionCore::new(SessionConfig { lease_ms: 2_000, ..SessionConfig::default() }),
            ledger: ledger.unwrap().0,
            now_ms: 0,
            wake_at_ms: None,
            shards: vec![SimShard::new(0, true), SimShard::new(1, false)],
            pending: Vec::new(),
            requests: BTreeMap::new(),
            order: Vec::new(),
            given: BTreeMap::new(),
            done: BTreeMap::new(),
            unheard: BTreeSet::new(),
        };
        sim.tell_shards();
        sim
    }

    fn tell_shards(&mut self) {
        let live = self.shards.iter().enumerate().filter(|(_, shard)| !shard.dead);
        let live = live.map(|(no, shard)| (ShardNo(no as u32), shard.info.clone())).collect();
        self.turn(vec![Event::Shards(live)]);
    }

    fn turn(&mut self, events: Vec<Event>) {
        let now = Now { ms: self.now_ms, unix_ms: self.now_ms };
        let mut effects = Vec::new();
        for event in events {
            self.core.handle(event, now, &mut self.ledger, &mut effects);
        }
        self.core.plan(now, &mut self.ledger, &mut effects);
        self.ledger.flush().unwrap();
        let mut unsent = Vec::new();
        for effect in effects {
            match effect {
                Effect::Accepted { session, .. } => {
                    assert!(self.given.insert(session, Vec::new()).is_none());
                }
                Effect::Refused { error, .. } => assert_ne!(error.code(), "bad-request", "{error}"),
                Effect::Attempt { .. } | Effect::Wait { .. } => {}
                Effect::Deliver { session, index, token } => {
                    let given = self.given.get_mut(&session).unwrap();
                    assert_eq!(index as usize, given.len(), "a token twice or out of order");
                    assert!(!self.done.contains_key(&session), "a token after the end");
                    let rows = self.requests[&session].prompt.len() as u32 + index;
                    assert_eq!(token, token_after(rows));
                    given.push(token);
                }
                Effect::Done { outcome } => {
                    assert!(self.done.insert(outcome.session, *outcome).is_none(), "two ends");
                }
                Effect::WakeAt(at_ms) => self.wake_at_ms = Some(at_ms),
                Effect::Beat { shard, keys } => self.shards[shard.0 as usize].kv.renew(&keys, self.now_ms),
                Effect::Forget { shard, key } => self.pending.retain(|call| target(call) != (shard, key)),
                Effect::Step { token: Some(token), key, step, .. } if token.cancelled().is_some() => {
                    unsent.push(Event::StepUnsent { key, step: step.step });
                }
                call => self.pending.push(call),
            }
        }
        if !unsent.is_empty() {
            self.turn(unsent);
        }
    }

    fn execute(&mut self, call: &Effect) -> Event {
        let (shard, key) = target(call);
        let now_ms = self.now_ms;
        let sim = &mut self.shards[shard.0 as usize];
        let dead = || AdapterError::WorkerDeath("killed".to_owned());
        match call {
            Effect::Open { plan, .. } => {
                let result = if sim.dead { Err(dead()) } else { sim.kv.open(key, *plan, now_ms, || ()) };
                let held = sim.kv.usage(now_ms).keys;
                let held = held.into_iter().filter(|held| held.key.session == key.session).collect();
                Event::Opened { shard, key, result, held }
            }
            Effect::Step { step, bundle, .. } => {
                let result = if sim.dead { Err(dead()) } else { sim.step(key, *step, bundle, now_ms) };
                Event::StepEnded { shard, key, step: step.step, result, counts: None }
            }
            Effect::QueryStep { step, .. } => {
                let result = if sim.dead { Err(dead()) } else { sim.kv.query(key, *step, now_ms) };
                Event::QueryEnded { shard, key, step: *step, result }
            }
            Effect::Stop { .. } => {
                let result = if sim.dead { Err(dead()) } else { Ok(sim.kv.stop(key)) };
                Event::StopEnded { shard, key, result }
            }
            Effect::Release { .. } => {
                let result = if sim.dead { Err(dead()) } else { Ok(sim.kv.release(key, now_ms)) };
                Event::ReleaseEnded { shard, key, result }
            }
            other => panic!("not a call: {other:?}"),
        }
    }

    /// The answer of a call that was not executed.
    fn failed(call: &Effect, error: AdapterError) -> Event {
        let (shard, key) = target(call);
        match call {
            Effect::Open { .. } => Event::Opened { shard, key, result: Err(error), held: Vec::new() },
            Effect::Step { step, .. } => {
                Event::StepEnded { shard, key, step: step.step, result: Err(error), counts: None }
            }
            Effect::QueryStep { step, .. } => {
                Event::QueryEnded { shard, key, step: *step, result: Err(error) }
            }
            Effect::Stop { .. } => Event::StopEnded { shard, key, result: Err(error) },
            _ => Event::ReleaseEnded { shard, key, result: Err(error) },
        }
    }

    fn answer(&mut self, which: usize, how: How) {
        if self.pending.is_empty() {
            return;
        }
        let call = self.pending.remove(which % self.pending.len());
        let reset = || AdapterError::StreamReset("cut".to_owned());
        let (shard, _) = target(&call);
        match how {
            How::Well => {
                let event = self.execute(&call);
                self.turn(vec![event]);
            }
            How::Twice => {
                let events = vec![self.execute(&call), self.execute(&call)];
                self.turn(events);
            }
            How::BrokenBefore => self.turn(vec![Self::failed(&call, reset())]),
            How::BrokenAfter => {
                if matches!(call, Effect::Open { .. }) {
                    self.unheard.insert(target(&call));
                }
                self.execute(&call);
                self.turn(vec![Self::failed(&call, reset())]);
            }
            How::Unheard => {
                if matches!(call, Effect::Open { .. }) {
                    self.unheard.insert(target(&call));
                }
                drop(self.execute(&call));
            }
            How::Refused => {
                let error = match &call {
                    Effect::Open { .. } => AdapterError::Full("elsewhere".to_owned()),
                    _ => AdapterError::Conflict("elsewhere".to_owned()),
                };
                self.turn(vec![Self::failed(&call, error)]);
            }
            How::Killed => {
                // At most so many, or nothing would ever run.
                if self.shards.len() < 12 && !self.shards[shard.0 as usize].dead {
                    let no = self.shards.len() as u32;
                    let first = self.shards[shard.0 as usize].info.is_first();
                    self.shards[shard.0 as usize].dead = true;
                    self.shards.push(SimShard::new(no, first));
                }
                let event = self.execute(&call);
                self.tell_shards();
                self.turn(vec![event]);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        let mut turns = 0;
        while let Some(at_ms) = self.wake_at_ms.filter(|at_ms| *at_ms <= end_ms) {
            self.wake_at_ms = None;
            self.now_ms = self.now_ms.max(at_ms);
            self.turn(vec![Event::Tick]);
            turns += 1;
            assert!(turns < 100_000, "time stands still at {}", self.now_ms);
        }
        self.now_ms = end_ms;
    }

    fn apply(&mut self, op: Op) {
        let pick = |order: &[SessionId], which: usize| {
            if order.is_empty() { None } else { Some(order[which % order.len()]) }
        };
        match op {
            Op::Submit { prompt, max_new, restarts, stop } => {
                let id = format!("i{}", self.order.len());
                let mut request = GenerateRequest::new(id, (0..prompt).collect(), max_new);
                request.max_restarts = restarts;
                if stop {
                    request.stop_tokens = vec![token_after(prompt + 2)];
                }
                request.client = format!("c{}", self.order.len() % 3);
                let session = request.session();
                self.order.push(session);
                self.requests.insert(session, request.clone());
                self.turn(vec![Event::Submit { ticket: 0, request: Box::new(request) }]);
            }
            Op::Cancel { which, epoch } => {
                if let Some(session) = pick(&self.order, which) {
                    self.turn(vec![Event::Cancel { session, epoch, cause: Cause::Client }]);
                    let _ = self.core.cancellation_outcome(session);
                }
            }
            Op::Answer { which, how } => self.answer(which, how),
            Op::Delivered { which, count } => {
                if let Some(session) = pick(&self.order, which) {
                    self.turn(vec![Event::Delivered { session, count }]);
                }
            }
            Op::Pass { ms } => self.pass(ms),
            Op::Stray { which, epoch, step } => {
                if let Some(session) = pick(&self.order, which) {
                    let (key, shard) = (KvKey::new(session, epoch), ShardNo(step % 3));
                    // Its number fits no step in flight of that shard, or it is a double that changes nothing.
                    let step = step + 100;
                    let out = StepOut::Token { token: 0, logits_digest: [0; 32] };
                    self.turn(vec![
                        Event::StepEnded { shard, key, step, result: Ok(out), counts: None },
                        Event::StepUnsent { key, step },
                        Event::QueryEnded { shard, key, step, result: Err(AdapterError::LeaseExpired) },
                        Event::StopEnded { shard: ShardNo(99), key, result: Ok(StopAck::Quiescent) },
                    ]);
                }
            }
        }
        self.check();
    }

    /// What is in use is what live keys own.
    fn check(&mut self) {
        let mut owned: BTreeSet<(ShardNo, KvKey)> = BTreeSet::new();
        for (key, shards) in self.core.holdings() {
            owned.extend(shards.map(|shard| (shard, key)));
        }
        for (no, shard) in self.shards.iter_mut().enumerate().filter(|(_, shard)| !shard.dead) {
            shard.kv.reap(self.now_ms);
            for held in shard.kv.usage(self.now_ms).keys {
                let at = (ShardNo(no as u32), held.key);
                let going = self
                    .pending
                    .iter()
                    .any(|call| matches!(call, Effect::Release { .. }) && target(call) == at);
                let leased = self.unheard.contains(&at);
                assert!(owned.contains(&at) || going || leased, "{at:?} is nobody's");
            }
        }
        let mut holders: BTreeSet<SessionId> = owned.iter().map(|(_, key)| key.session).collect();
        for (id, session) in &self.core.sessions {
            match session.state {
                State::Queued(_) => assert!(!holders.contains(id), "a queued session holds KV"),
                _ => drop(holders.insert(*id)),
            }
        }
        let rows =
            |id: &SessionId| self.requests[id].prompt.len() as u64 + u64::from(self.requests[id].max_new);
        let reserved: u64 = holders.iter().map(rows).sum();
        assert_eq!(self.core.scheduler.telemetry().reserved_rows, reserved);
        // Exactly one record per attempt that has ended.
        for (id, outcome) in &self.done {
            let epochs: Vec<u32> = outcome.records.iter().map(|record| record.key.epoch).collect();
            assert_eq!(epochs, (0..epochs.len() as u32).collect::<Vec<_>>());
            for record in &outcome.records {
                assert_eq!(self.ledger.record(record.key), Some(record));
            }
            assert_eq!(outcome.tokens, self.given[id]);
        }
        let records = self.order.iter().flat_map(|id| {
            let last = self.ledger.last_epoch(*id);
            let epochs = last.map_or(0..0, |last| 0..last + 1);
            epochs.filter_map(|epoch| self.ledger.record(KvKey::new(*id, epoch)))
        });
        assert_eq!(self.core.telemetry().done.values().sum::<u64>(), records.count() as u64);
    }

    fn finish(mut self) {
        self.turn(vec![Event::Drain { until_ms: self.now_ms + 5_000 }]);
        for _ in 0..400 {
            while !self.pending.is_empty() {
                self.answer(0, How::Well);
            }
            self.pass(1_000);
            self.check();
        }
        assert!(self.core.is_idle());
        assert_eq!(self.core.telemetry().load, Load::default());
        for shard in self.shards.iter().filter(|shard| !shard.dead) {
            assert_eq!(shard.kv.free_rows(), CAPACITY);
        }
        assert_eq!(self.core.scheduler.telemetry().reserved_rows, 0);
        for id in self.given.keys() {
            let outcome = self.done.get(id).unwrap_or_else(|| panic!("{id} never ended"));
            // Every epoch that was opened has its record.
            for epoch in self.ledger.last_epoch(*id).map_or(0..0, |last| 0..last + 1) {
                assert!(self.ledger.record(KvKey::new(*id, epoch)).is_some(), "{id} {epoch}");
            }
            if outcome.status == WorkStatus::Completed {
                let request = &self.requests[id];
                let reason = outcome.finish_reason.unwrap();
                assert!(reason == FinishReason::Stop || outcome.tokens.len() == request.max_new as usize);
            }
        }
    }
}

fn target(call: &Effect) -> (ShardNo, KvKey) {
    match call {
        Effect::Open { shard, key, .. }
        | Effect::Step { shard, key, .. }
        | Effect::QueryStep { shard, key, .. }
        | Effect::Stop { shard, key, .. }
        | Effect::Release { shard, key, .. } => (*shard, *key),
        other => panic!("not a call: {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A failure prints the seed and the shortest row of events.
    #[test]
    fn resources_in_use_are_those_of_live_keys_after_every_event(ops in prop::collection::vec(op(), 1..160)) {
        let mut sim = Sim::new();
        for op in ops {
            sim.apply(op);
        }
        sim.finish();
    }
}

#[test]
fn five_thousand_sessions_with_cancels_end_at_zero() {
    let mut sim = Sim::new();
    // A linear congruential row: any order of events will do, the same each time.
    let mut draw = {
        let mut state = 42_u64;
        move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    };
    for n in 0..5_000_usize {
        sim.order = vec![SessionId([0; 16]); n];
        sim.apply_quietly(&mut draw);
    }
    let sessions = sim.given.len();
    assert!(sessions > 4_000, "{sessions} were taken");
    sim.order = sim.requests.keys().copied().collect();
    sim.check();
    sim.finish();
}

impl Sim {
    /// A session more, some answers, now and then a cancel; without the checks, which grow with the sessions.
    fn apply_quietly(&mut self, draw: &mut impl FnMut(u64) -> u64) {
        let prompt = 1 + draw(8) as u32;
        let id = format!("soak {}", self.order.len());
        let mut request = GenerateRequest::new(id, (0..prompt).collect(), 1 + draw(4) as u32);
        request.max_restarts = 0;
        let session = request.session();
        self.requests.insert(session, request.clone());
        self.turn(vec![Event::Submit { ticket: 0, request: Box::new(request) }]);
        for _ in 0..24 {
            let (which, how) = (draw(1 << 20) as usize, draw(400));
            let how = match how {
                0 => How::BrokenBefore,
                1 => How::BrokenAfter,
                2 => How::Twice,
                _ => How::Well,
            };
            self.answer(which, how);
        }
        if draw(4) == 0 {
            self.turn(vec![Event::Cancel { session, epoch: None, cause: Cause::Client }]);
        }
        self.pass(draw(40));
    }
}
