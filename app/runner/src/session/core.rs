//! Sessions from submission to their end: queue, epochs, deadlines, cancel, failover, release.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::adapter::{
    AdapterError, Counts, Digest, KeyUsage, KvKey, OpenPlan, Opened, SessionId, ShardInfo, StepState,
};
use crate::cancel::{
    CancelEffect, CancelPhase, CancellationOutcome, CancellationToken, ShardCancellationGroup, ShardOutcome,
};
use crate::deadline::{DeadlineGuard, StreamTerminated};
use crate::failure::{Cause, FailureKind, WorkStatus, classify, work_status_for};
use crate::ledger::{EpochOpened, IdempotencyLedger, LedgerError, output_digest};
use crate::record::{KvOutcome, WorkRecord};
use crate::restart::{
    Decision, FailedAttempt, Fence, FreshReport, Inhibitions, PrefixCheck, RestartController, RouteWish,
    assert_fresh_start, plan_route,
};
use crate::scheduler::{self, CancelledFrom, ContinuousBatchScheduler};
use crate::session::steps::Flight;
use crate::session::{
    Effect, Event, FinishReason, GenerateRequest, NAME_MAX, Now, Outcome, STOP_TOKENS_MAX, SessionConfig,
    ShardNo, SubmitError,
};
use crate::telemetry::{Load, Snapshot, Telemetry};

mod admission;
mod ending;

/// Most ended attempts whose cancel outcome is remembered.
const ENDED_MAX: usize = 1_024;

/// What an event is handled with.
pub(super) struct Turn<'a> {
    pub(super) now: Now,
    pub(super) ledger: &'a mut IdempotencyLedger,
    pub(super) effects: &'a mut Vec<Effect>,
}

/// One shard of a route.
#[derive(Debug, Clone)]
pub(super) struct Hop {
    pub(super) no: ShardNo,
    pub(super) info: Arc<ShardInfo>,
}

pub(super) type Route = Arc<[Hop]>;

pub(super) struct Session {
    pub(super) request: Box<GenerateRequest>,
    prompt_digest: Digest,
    pub(super) submitted_ms: u64,
    pub(super) guard: DeadlineGuard,
    pub(super) restarts: RestartController,
    /// Of the current epoch.
    pub(super) token: CancellationToken,
    /// Tokens handed to the client, over all epochs.
    pub(super) given: Vec<u32>,
    delivered: u32,
    records: Vec<WorkRecord>,
    /// What ended the last attempt.
    failed: Option<StreamTerminated>,
    /// Whether a shard opened the current epoch before it went back to the queue.
    was_open: bool,
    pub(super) state: State,
    pub(super) last_token_ms: u64,
    /// When its client is told to wait.
    pub(super) wait_at_ms: u64,
    armed_ms: Option<u64>,
}

pub(super) enum State {
    /// In the scheduler's queue; with a route if its epoch is in the ledger already.
    Queued(Option<Route>),
    /// A shard of the route was full: the others are being released.
    Retreating(Route),
    /// Failing over, no epoch open.
    Between {
        not_before_ms: u64,
    },
    /// As `Between`, but the old epoch must be gone everywhere first.
    AwaitingFence(FailedAttempt),
    Live(Box<Attempt>),
}

/// One epoch from its record in the ledger to its terminal record.
pub(super) struct Attempt {
    pub(super) key: KvKey,
    pub(super) route: Route,
    started_unix_ms: u64,
    pub(super) phase: Phase,
    /// Tokens committed in this epoch.
    pub(super) tokens: Vec<u32>,
    pub(super) next_step: u32,
    pub(super) flight: Option<Flight>,
    /// Tokens as the last shard counts them, if it does.
    pub(super) counts: Option<Counts>,
    pub(super) check: PrefixCheck,
    /// The first reason to end, and the shard at fault.
    end: Option<(StreamTerminated, Option<usize>)>,
    pub(super) uncertain: Option<u32>,
    /// Shards that opened.
    opened: usize,
    /// Whether an uncertain step was asked about before.
    pub(super) queried: bool,
}

pub(super) enum Phase {
    /// Older epochs of the session are not released yet on all shards of the route.
    Fencing,
    /// Answers by shard.
    Opening(Vec<Option<OpenAnswer>>),
    Running,
    /// A stream broke in a step: what the shards say of it.
    Querying {
        error: AdapterError,
        hop: usize,
        states: Vec<Option<StepState>>,
    },
    Stopping,
}

pub(super) struct OpenAnswer {
    result: Result<Opened, AdapterError>,
    held: Vec<KeyUsage>,
}

/// What a key may hold on its shards.
struct Holding {
    group: ShardCancellationGroup,
    route: Route,
    rows: u32,
    /// Completed: until when it is kept.
    hold_until_ms: Option<u64>,
    /// Shards that have let go, and whose open calls were dropped.
    forgotten: Vec<bool>,
    armed_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Session(SessionId),
    Holding(KvKey),
    Beat,
    Admission,
    Drain,
}

/// See the [module](super).
pub struct SessionCore {
    pub(super) config: SessionConfig,
    pub(super) scheduler: ContinuousBatchScheduler,
    pub(super) telemetry: Telemetry,
    inhibitions: Inhibitions,
    shards: Vec<Hop>,
    infos: Vec<ShardInfo>,
    alive: BTreeMap<ShardNo, u64>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// Sessions in [`State::Between`].
    between: BTreeSet<SessionId>,
    holdings: BTreeMap<KvKey, Holding>,
    /// Completed keys whose KV is kept, oldest first.
    held: VecDeque<KvKey>,
    ended: BTreeMap<SessionId, CancellationOutcome>,
    ended_order: VecDeque<SessionId>,
    timers: BTreeSet<(u64, Timer)>,
    beat_armed: bool,
    admission_armed: bool,
    woken_at_ms: Option<u64>,
    admit_after_ms: u64,
    draining: bool,
    load_changed: bool,
}

impl SessionCore {
    /// Without sessions and shards.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        Self {
            scheduler: ContinuousBatchScheduler::new(config.scheduler.clone()),
            telemetry: Telemetry::new(),
            inhibitions: Inhibitions::new(),
            shards: Vec::new(),
            infos: Vec::new(),
            alive: BTreeMap::new(),
            sessions: BTreeMap::new(),
            between: BTreeSet::new(),
            holdings: BTreeMap::new(),
            held: VecDeque::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            timers: BTreeSet::new(),
            beat_armed: false,
            admission_armed: false,
            woken_at_ms: None,
            admit_after_ms: 0,
            draining: false,
            load_changed: true,
            config,
        }
    }

    /// The counters.
    #[must_use]
    pub fn telemetry(&self) -> &Snapshot {
        self.telemetry.snapshot()
    }

    /// Whether nothing runs, waits or is held anywhere.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.holdings.is_empty()
    }

    /// Keys that may hold something on a shard, with their shards, ascending.
    pub fn holdings(&self) -> impl Iterator<Item = (KvKey, impl Iterator<Item = ShardNo> + '_)> {
        self.holdings.iter().map(|(key, holding)| (*key, holding.route.iter().map(|hop| hop.no)))
    }

    /// What a cancel of the session has done so far, or did (runner-details 7).
    #[must_use]
    pub fn cancellation_outcome(&self, session: SessionId) -> CancellationOutcome {
        let keys = KvKey::new(session, 0)..=KvKey::new(session, u32::MAX);
        let holding =
            self.holdings.range(keys).next_back().map(|(_, holding)| holding.group.outcome().clone());
        let known = holding.or_else(|| self.ended.get(&session).cloned());
        known.unwrap_or_else(|| CancellationOutcome::unknown(KvKey::new(session, 0), 0))
    }

    /// Takes an event. Records go to the ledger's buffer: flush it before any effect is executed. Nothing that arrives
    /// here is fatal: what fits nothing is counted and dropped.
    pub fn handle(
        &mut self,
        event: Event,
        now: Now,
        ledger: &mut IdempotencyLedger,
        effects: &mut Vec<Effect>,
    ) {
        let t = &mut Turn { now, ledger, effects };
        match event {
            Event::Shards(shards) => self.shards_changed(shards),
            Event::Submit { ticket, request } => self.submit(ticket, request, t),
            Event::Cancel { session, epoch, cause } => self.cancel(session, epoch, cause, t),
            Event::Delivered { session, count } => self.delivered(session, count, t),
            Event::Alive { shard, at_ms } => {
                let last = self.alive.entry(shard).or_default();
                *last = at_ms.max(*last);
            }
            Event::Tick => self.tick(t),
            Event::Opened { shard, key, result, held } => self.opened(shard, key, result, held, t),
            Event::StepEnded { shard, key, step, result, counts } => {
                self.step_ended(shard, key, step, result, counts, t);
            }
            Event::StepUnsent { key, step } => self.step_unsent(key, step, t),
            Event::QueryEnded { shard, key, step, result } => self.query_ended(shard, key, step, result, t),
            Event::StopEnded { shard, key, result } => {
                self.with_group(shard, key, t, |group, index, now| group.stop_answered(index, &result, now));
            }
            Event::ReleaseEnded { shard, key, result } => {
                self.with_group(shard, key, t, |group, index, now| {
                    group.release_answered(index, &result, now)
                });
            }
            Event::Drain { until_ms } => {
                self.draining = true;
                self.timers.insert((until_ms, Timer::Drain));
            }
        }
    }

    /// Whether the session is not over: queued, live, or between two epochs.
    #[must_use]
    pub fn runs(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Ends a turn: begins epochs, admits, puts the next iteration together and names the time of the next tick.
    pub fn plan(&mut self, now: Now, ledger: &mut IdempotencyLedger, effects: &mut Vec<Effect>) {
        let t = &mut Turn { now, ledger, effects };
        let due: Vec<SessionId> = self
            .between
            .iter()
            .filter(|id| {
                let state = self.sessions.get(id).map(|session| &session.state);
                matches!(state, Some(State::Between { not_before_ms }) if *not_before_ms <= now.ms)
            })
            .copied()
            .collect();
        for id in due {
            self.begin_attempt(id, t);
        }
        self.admit(t);
        for slot in self.scheduler.next_iteration(now.ms) {
            self.start_step(slot, t);
        }
        if self.draining {
            while let Some(key) = self.held.front().copied() {
                self.reap(key, Cause::Node, t);
            }
        }
        self.arm_beat(now.ms);
        if std::mem::take(&mut self.load_changed) {
            self.note_load();
        }
        let first = self.timers.first().map(|(at, _)| *at);
        if let Some(at) = first
            && first != self.woken_at_ms
        {
            t.effects.push(Effect::WakeAt(at));
        }
        self.woken_at_ms = first;
    }

    fn note_load(&mut self) {
        let live = self.sessions.values().filter(|session| matches!(session.state, State::Live(_))).count();
        let rows = self.holdings.values().map(|holding| u64::from(holding.rows) * holding.route.len() as u64);
        let load = Load {
            queued: (self.sessions.len() - live) as u64,
            active: live as u64,
            held: self.held.len() as u64,
            releasing: self
                .holdings
                .values()
                .filter(|holding| holding.group.phase() != CancelPhase::Running)
                .count() as u64,
            kv_rows: rows.sum(),
        };
        self.telemetry.load(load);
    }

    /// A shard that left answers every call with a worker's death: nothing else follows from its absence.
    fn shards_changed(&mut self, shards: Vec<(ShardNo, Arc<ShardInfo>)>) {
        let live: BTreeSet<ShardNo> = shards.iter().map(|(no, _)| *no).collect();
        self.infos = shards.iter().map(|(_, info)| ShardInfo::clone(info)).collect();
        self.shards = shards.into_iter().map(|(no, info)| Hop { no, info }).collect();
        self.alive.retain(|no, _| live.contains(no));
    }

    // ── submission ──────────────────────────────────────────────────────────────────────────────────────────────────

    fn tick(&mut self, t: &mut Turn<'_>) {
        // What is armed while the due ones are handled is for a later tick, even if it is due now.
        let later = self.timers.split_off(&(t.now.ms.saturating_add(1), Timer::Session(SessionId([0; 16]))));
        let due = std::mem::replace(&mut self.timers, later);
        for (_, timer) in due {
            match timer {
                Timer::Session(id) => self.session_timer(id, t),
                Timer::Holding(key) => self.holding_timer(key, t),
                Timer::Beat => self.beat(t),
                Timer::Admission => self.admission_armed = false,
                Timer::Drain => {
                    let all: Vec<SessionId> = self.sessions.keys().copied().collect();
                    for id in all {
                        self.cancel(id, None, Cause::Node, t);
                    }
                }
            }
        }
        self.woken_at_ms = None;
    }

    fn session_timer(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.armed_ms = None;
        if self.check_guard(id, t) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.wait_at_ms <= t.now.ms {
            session.wait_at_ms = t.now.ms.saturating_add(self.config.wait_ms);
            t.effects.push(Effect::Wait { session: id });
        }
        self.rearm(id, t.now.ms);
    }

    /// Sees to it that a session's next moment has a timer: one may be early, none is late.
    pub(super) fn rearm(&mut self, id: SessionId, now_ms: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let mut due = session.wait_at_ms;
        match &session.state {
            // The shards' own timers bound the end.
            State::Live(attempt) if matches!(attempt.phase, Phase::Stopping) => return,
            // Once it is over, what is waited for is a route.
            State::Between { not_before_ms } if *not_before_ms > now_ms => due = due.min(*not_before_ms),
            _ => {}
        }
        due = due.min(session.guard.next_expiry().at_ms);
        if session.armed_ms.is_none_or(|armed| due < armed) {
            if let Some(armed) = session.armed_ms.replace(due) {
                self.timers.remove(&(armed, Timer::Session(id)));
            }
            self.timers.insert((due, Timer::Session(id)));
        }
    }

    fn rearm_holding(&mut self, key: KvKey) {
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let due = holding.group.next_timer().or(holding.hold_until_ms);
        if due != holding.armed_ms {
            if let Some(armed) = holding.armed_ms {
                self.timers.remove(&(armed, Timer::Holding(key)));
            }
            holding.armed_ms = due;
            if let Some(due) = due {
                self.timers.insert((due, Timer::Holding(key)));
            }
        }
    }

    fn holding_timer(&mut self, key: KvKey, t: &mut Turn<'_>) {
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        holding.armed_ms = None;
        if holding.hold_until_ms.is_some_and(|until| until <= t.now.ms) {
            self.reap(key, Cause::Node, t);
            return;
        }
        let effects = holding.group.timer(t.now.ms);
        self.group_effects(key, effects, t);
    }

    fn arm_beat(&mut self, now_ms: u64) {
        if !self.beat_armed && !self.is_idle() {
            self.beat_armed = true;
            self.timers.insert((now_ms.saturating_add(self.config.beat_ms), Timer::Beat));
        }
    }

    /// Renews the leases of all keys that are wanted. One that is being released is left out, so that its lease ends.
    fn beat(&mut self, t: &mut Turn<'_>) {
        self.beat_armed = false;
        let mut keys: BTreeMap<ShardNo, Vec<KvKey>> = BTreeMap::new();
        for (key, holding) in &mut self.holdings {
            if holding.group.phase() > CancelPhase::Quiescing {
                continue;
            }
            for (index, hop) in holding.route.iter().enumerate() {
                holding.group.beat_sent(index, t.now.ms);
                keys.entry(hop.no).or_default().push(*key);
            }
        }
        t.effects.extend(keys.into_iter().map(|(shard, keys)| Effect::Beat { shard, keys }));
    }

    /// Ends the session if a cancel or a deadline says so; gives whether it did.
    pub(super) fn check_guard(&mut self, id: SessionId, t: &mut Turn<'_>) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let mut at_work = None;
        if let State::Live(attempt) = &session.state {
            if matches!(attempt.phase, Phase::Stopping) {
                return false;
            }
            let beats = |hop: &Hop| self.alive.get(&hop.no).copied();
            at_work = attempt.flight.as_ref().map(|flight| flight.hop);
            // A shard without beats of its own shows life by its answers only.
            let all = match at_work {
                Some(hop) => attempt.route.get(hop).and_then(beats).is_some(),
                None => attempt.route.iter().all(|hop| beats(hop).is_some()),
            };
            if let Some(oldest) = attempt.route.iter().filter_map(beats).min().filter(|_| all) {
                session.guard.beat(oldest);
            }
        }
        let Err(why) = session.guard.decide(t.now.ms, session.token.cancelled(), None) else { return false };
        let at_fault = at_work.filter(|_| why.kind == FailureKind::HeartbeatLost);
        self.end(id, why, at_fault, t);
        true
    }

    // ── the end of an attempt ───────────────────────────────────────────────────────────────────────────────────────
}

fn shard_ids(route: &[Hop]) -> Vec<String> {
    route.iter().map(|hop| hop.info.shard_id.clone()).collect()
}

fn prompt_tokens(request: &GenerateRequest) -> u32 {
    u32::try_from(request.prompt.len()).unwrap_or(u32::MAX)
}

/// The end of a session whose answer is whole.
fn completed(
    session: SessionId,
    request: &GenerateRequest,
    records: Vec<WorkRecord>,
    tokens: Vec<u32>,
) -> Outcome {
    let stopped = tokens.last().is_some_and(|last| request.stop_tokens.contains(last));
    Outcome {
        session,
        status: WorkStatus::Completed,
        kind: None,
        cause: None,
        lowered_by_request: false,
        records,
        finish_reason: Some(if stopped { FinishReason::Stop } else { FinishReason::Length }),
        tokens,
    }
}
