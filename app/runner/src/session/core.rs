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

    fn submit(&mut self, ticket: u64, request: Box<GenerateRequest>, t: &mut Turn<'_>) {
        if let Err(error) = self.try_submit(ticket, request, t) {
            t.effects.push(Effect::Refused { ticket, error });
        }
    }

    fn try_submit(
        &mut self,
        ticket: u64,
        request: Box<GenerateRequest>,
        t: &mut Turn<'_>,
    ) -> Result<(), SubmitError> {
        if self.draining {
            return Err(SubmitError::Stopped);
        }
        check_shape(&request)?;
        let id = request.session();
        if self.sessions.contains_key(&id) {
            return Err(SubmitError::Duplicate { session: id, state: "runs now" });
        }
        let prompt_digest = output_digest(&request.prompt);
        let last = t.ledger.last_epoch(id);
        if let Some(epoch) = last {
            let key = KvKey::new(id, epoch);
            if let Some(record) = t.ledger.record(key).filter(|record| record.status == WorkStatus::Completed)
            {
                let record = record.clone();
                return Self::replay(ticket, &request, &prompt_digest, record, t);
            }
        }
        let epoch = match last {
            None => 0,
            Some(last) => last
                .checked_add(1)
                .ok_or(SubmitError::Duplicate { session: id, state: "has no epoch left" })?,
        };
        let key = KvKey::new(id, epoch);
        let restarts = RestartController::new(key);
        let deadlines =
            self.config.deadlines.lowered_by(&request.deadlines).map_err(|refused| {
                SubmitError::BadRequest { field: "deadlines", reason: refused.to_string() }
            })?;
        let route = plan_route(&self.infos, &restarts.wish(&self.inhibitions, t.now.ms))
            .map_err(|_| SubmitError::NoRoute)?;
        for index in &route {
            check_fit(&request, &self.infos[*index])?;
        }
        if last.is_none() && !t.ledger.has_room() {
            return Err(SubmitError::LedgerFull);
        }
        let queued = scheduler::Request {
            key,
            client: request.client.clone(),
            prompt_len: u32::try_from(request.prompt.len()).unwrap_or(u32::MAX),
            max_new: request.max_new,
        };
        self.scheduler.submit(t.now.ms, queued).map_err(|error| refusal(id, error))?;
        let token = CancellationToken::new(key);
        t.effects.push(Effect::Accepted { ticket, session: id, max_new: request.max_new });
        t.effects.push(Effect::Attempt { token: token.clone() });
        let session = Session {
            prompt_digest,
            submitted_ms: t.now.ms,
            guard: DeadlineGuard::new(deadlines, t.now.ms),
            restarts,
            token,
            given: Vec::new(),
            delivered: 0,
            records: Vec::new(),
            failed: None,
            was_open: false,
            state: State::Queued(None),
            last_token_ms: t.now.ms,
            wait_at_ms: t.now.ms.saturating_add(self.config.wait_ms),
            armed_ms: None,
            request,
        };
        self.sessions.insert(id, session);
        self.load_changed = true;
        self.rearm(id, t.now.ms);
        Ok(())
    }

    /// The answer of a session that completed before, from the ledger.
    fn replay(
        ticket: u64,
        request: &GenerateRequest,
        prompt_digest: &Digest,
        record: WorkRecord,
        t: &mut Turn<'_>,
    ) -> Result<(), SubmitError> {
        let id = record.key.session;
        let tokens = t.ledger.committed_tokens(id, record.key.epoch).to_vec();
        let same = t.ledger.opened(record.key).is_some_and(|opened| {
            opened.prompt_digest == *prompt_digest && opened.sampling == request.sampling
        });
        if !same || tokens.len() > request.max_new as usize {
            return Err(SubmitError::Duplicate { session: id, state: "completed with other content" });
        }
        t.effects.push(Effect::Accepted { ticket, session: id, max_new: request.max_new });
        for (index, token) in (0..).zip(&tokens) {
            t.effects.push(Effect::Deliver { session: id, index, token: *token });
        }
        let records =
            (0..=record.key.epoch).filter_map(|epoch| t.ledger.record(KvKey::new(id, epoch)).cloned());
        let outcome = Outcome {
            session: id,
            status: WorkStatus::Completed,
            kind: None,
            cause: None,
            lowered_by_request: false,
            records: records.collect(),
            finish_reason: Some(finish_reason(request, &tokens)),
            tokens,
        };
        t.effects.push(Effect::Done { outcome: Box::new(outcome) });
        Ok(())
    }

    // ── admission and epochs ────────────────────────────────────────────────────────────────────────────────────────

    fn admit(&mut self, t: &mut Turn<'_>) {
        if !self.scheduler.has_queued() {
            return;
        }
        if t.now.ms < self.admit_after_ms {
            self.arm_admission();
            return;
        }
        let wish = RouteWish { avoided: self.inhibitions.avoided(t.now.ms), ..RouteWish::default() };
        let Ok(route) = plan_route(&self.infos, &wish) else { return };
        let capacity = route.iter().map(|index| self.infos[*index].capacity).min().unwrap_or(0);
        for key in self.scheduler.admit(t.now.ms, capacity.into()) {
            self.begin_attempt(key.session, t);
        }
        if self.scheduler.has_queued() {
            // Somebody waits for room: completed sessions' KV goes, one key for each that waits.
            let waiting =
                self.sessions.values().filter(|session| matches!(session.state, State::Queued(_))).count();
            for _ in 0..waiting {
                let Some(key) = self.held.front().copied() else { break };
                self.reap(key, Cause::Node, t);
            }
            // Time lets sessions pass each other, and ends that.
            self.admit_after_ms = t.now.ms;
        }
    }

    fn hold_admission(&mut self, now_ms: u64) {
        self.admit_after_ms = now_ms.saturating_add(self.config.full_retry_ms);
        self.arm_admission();
    }

    fn arm_admission(&mut self) {
        if !std::mem::replace(&mut self.admission_armed, true) {
            self.timers.insert((self.admit_after_ms, Timer::Admission));
        }
    }

    /// Opens the session's next epoch, if there is a route for it.
    fn begin_attempt(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let now_ms = t.now.ms;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = session.restarts.key();
        let failing_over = matches!(session.state, State::Between { .. });
        let (route, in_ledger): (Route, bool) = match &session.state {
            State::Queued(Some(route)) => (route.clone(), true),
            State::Queued(None) | State::Between { .. } => {
                let planned = plan_route(&self.infos, &session.restarts.wish(&self.inhibitions, now_ms)).ok();
                let planned = planned.filter(|route| {
                    route.iter().all(|index| check_fit(&session.request, &self.infos[*index]).is_ok())
                });
                let Some(planned) = planned else {
                    // Between epochs the session waits for a shard as long as its deadlines let it.
                    if !failing_over {
                        self.scheduler.put_back(key);
                        self.hold_admission(now_ms);
                    }
                    return;
                };
                (planned.into_iter().map(|index| self.shards[index].clone()).collect(), false)
            }
            State::Retreating(_) | State::AwaitingFence(_) | State::Live(_) => return,
        };
        let Some(first) = route.first() else { return };
        if !in_ledger {
            let opened = EpochOpened {
                key,
                generation: t.ledger.generation(),
                inference_id: session.request.inference_id.clone(),
                model_digest: first.info.model_digest,
                prompt_digest: session.prompt_digest,
                prompt_tokens: prompt_tokens(&session.request),
                sampling: session.request.sampling,
                shards: route.iter().map(|hop| hop.info.shard_id.clone()).collect(),
            };
            if let Err(error) = t.ledger.epoch_opened(opened) {
                self.ledger_refused(id, &error, t);
                return;
            }
        }
        self.between.remove(&id);
        session.restarts.ran_on(first.info.model_digest);
        if failing_over {
            self.telemetry.restart();
        } else if !in_ledger {
            self.telemetry.queue_wait(now_ms.saturating_sub(session.submitted_ms));
        }
        let rows = prompt_tokens(&session.request).saturating_add(session.request.max_new);
        self.holdings.insert(
            key,
            Holding {
                group: ShardCancellationGroup::new(key, route.len(), self.config.lease_ms),
                route: route.clone(),
                rows,
                hold_until_ms: None,
                forgotten: vec![false; route.len()],
                armed_ms: None,
            },
        );
        session.state = State::Live(Box::new(Attempt {
            key,
            route,
            started_unix_ms: t.now.unix_ms,
            phase: Phase::Fencing,
            tokens: Vec::new(),
            next_step: 0,
            flight: None,
            counts: None,
            check: PrefixCheck::new(session.given.clone()),
            end: None,
            uncertain: None,
            opened: 0,
            queried: false,
        }));
        self.load_changed = true;
        self.open_if_fenced(id, t);
    }

    /// Opens the epoch on its shards as soon as none of them may still hold an older one.
    fn open_if_fenced(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        if !matches!(attempt.phase, Phase::Fencing) {
            return;
        }
        let key = attempt.key;
        let older = self.holdings.range(KvKey::new(id, 0)..key).any(|(_, holding)| {
            let pending = holding.group.outcome().shards.iter().zip(holding.route.iter());
            let mut pending =
                pending.filter(|(shard, _)| **shard == ShardOutcome::Pending).map(|(_, hop)| hop.no);
            pending.any(|no| attempt.route.iter().any(|hop| hop.no == no))
        });
        if older {
            return;
        }
        attempt.phase = Phase::Opening(attempt.route.iter().map(|_| None).collect());
        session.guard.call_started(t.now.ms);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let plan = OpenPlan {
            max_positions: holding.rows,
            lease_ms: self.config.lease_ms,
            sampling: session.request.sampling,
        };
        for (index, hop) in attempt.route.iter().enumerate() {
            holding.group.open_sent(index, t.now.ms);
            t.effects.push(Effect::Open { shard: hop.no, key, plan });
        }
        self.rearm(id, t.now.ms);
    }

    fn opened(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        result: Result<Opened, AdapterError>,
        held: Vec<KeyUsage>,
        t: &mut Turn<'_>,
    ) {
        let Some(holding) = self.holdings.get_mut(&key) else {
            self.telemetry.stale_event();
            if result.is_ok() {
                // It came to life after it was given up.
                t.effects.push(Effect::Release { shard, key, cause: Cause::Coordinator });
            }
            return;
        };
        let Some(index) = holding.route.iter().position(|hop| hop.no == shard) else {
            self.telemetry.stale_event();
            return;
        };
        if let Some(attempt) = self.live(key)
            && result.is_ok()
        {
            attempt.opened += 1;
        }
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        if result.is_ok() {
            // The lease runs from the moment the shard opened, which is not later than this.
            holding.group.beat_sent(index, t.now.ms);
        }
        let mut effects = holding.group.open_answered(index, t.now.ms);
        if matches!(result, Err(AdapterError::WorkerDeath(_))) {
            effects.extend(holding.group.shard_died(index, t.now.ms));
        }
        self.group_effects(key, effects, t);
        let id = key.session;
        if self.check_guard(id, t) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        let Phase::Opening(answers) = &mut attempt.phase else {
            self.telemetry.stale_event();
            return;
        };
        if attempt.key != key || answers[index].is_some() {
            self.telemetry.stale_event();
            return;
        }
        session.guard.beat(t.now.ms);
        if let Err(error) = &result
            && !matches!(error, AdapterError::Full(_))
        {
            let kind = classify(error);
            tracing::debug!(%error, session = %id, epoch = key.epoch, "a shard did not open");
            self.end(id, StreamTerminated::of(kind, kind.default_cause()), Some(index), t);
            return;
        }
        answers[index] = Some(OpenAnswer { result, held });
        if answers.iter().any(Option::is_none) {
            return;
        }
        session.guard.call_ended(t.now.ms);
        if answers.iter().flatten().any(|answer| answer.result.is_err()) {
            self.retreat(id, t);
            return;
        }
        let reports: Vec<FreshReport> = std::mem::take(answers)
            .into_iter()
            .zip(attempt.route.iter())
            .map(|(answer, hop)| FreshReport {
                shard_id: hop.info.shard_id.clone(),
                opened: answer.as_ref().and_then(|answer| answer.result.as_ref().ok().copied()),
                usage: answer.map(|answer| crate::adapter::Usage { keys: answer.held }),
            })
            .collect();
        attempt.phase = Phase::Running;
        if let Err(error) = assert_fresh_start(key, &reports) {
            tracing::warn!(%error, session = %id, epoch = key.epoch, "the epoch does not start clean");
            let kind = FailureKind::Internal;
            self.end(id, StreamTerminated::of(kind, kind.default_cause()), None, t);
            return;
        }
        let chunk = attempt.route.iter().map(|hop| hop.info.chunk_max).min().unwrap_or(1);
        session.guard.prefilling(t.now.ms);
        self.scheduler.opened(key, chunk);
        self.rearm(id, t.now.ms);
    }

    /// No room on a shard: what opened is released, then the session goes back to the front of the queue.
    fn retreat(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &session.state else { return };
        let key = attempt.key;
        session.was_open |= attempt.opened > 0;
        session.state = State::Retreating(attempt.route.clone());
        self.load_changed = true;
        self.hold_admission(t.now.ms);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let effects = holding.group.cancel(t.now.ms, Cause::Node, 0);
        self.group_effects(key, effects, t);
        self.rearm(id, t.now.ms);
    }

    /// The ledger does not take the epoch: there is nothing to record, and nothing runs without it.
    fn ledger_refused(&mut self, id: SessionId, error: &LedgerError, t: &mut Turn<'_>) {
        tracing::error!(%error, session = %id, "the ledger refused an epoch");
        let kind = FailureKind::Internal;
        self.finish(id, StreamTerminated::of(kind, kind.default_cause()), t);
    }

    // ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

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

    fn cancel(&mut self, id: SessionId, epoch: Option<u32>, cause: Cause, t: &mut Turn<'_>) {
        self.telemetry.cancel(cause);
        let Some(session) = self.sessions.get(&id) else {
            // Completed: its KV goes now. Ended otherwise: it is going.
            let held = self
                .held
                .iter()
                .find(|key| key.session == id && epoch.is_none_or(|epoch| epoch == key.epoch));
            if let Some(key) = held.copied() {
                self.reap(key, cause, t);
            }
            return;
        };
        let key = session.restarts.key();
        if epoch.is_some_and(|epoch| epoch != key.epoch) {
            self.telemetry.stale_event();
            return;
        }
        session.token.cancel(key, cause);
        let cause = session.token.cancelled().unwrap_or(cause);
        self.end(id, StreamTerminated::of(FailureKind::Cancelled, cause), None, t);
    }

    /// Ends what the session is doing, at whatever point it is. The first reason stands.
    pub(super) fn end(
        &mut self,
        id: SessionId,
        why: StreamTerminated,
        at_fault: Option<usize>,
        t: &mut Turn<'_>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (key, asking) = match &mut session.state {
            State::Live(attempt) => {
                let asking = matches!(attempt.phase, Phase::Querying { .. });
                attempt.end.get_or_insert((why, at_fault));
                attempt.phase = Phase::Stopping;
                (attempt.key, asking)
            }
            State::Queued(_) | State::Retreating(_) => return self.end_queued(id, why, t),
            State::Between { .. } | State::AwaitingFence(_) => {
                // The failed attempt keeps its own record, and no new epoch was opened.
                let why = session.failed.filter(|_| why.kind != FailureKind::Cancelled).unwrap_or(why);
                return self.finish(id, why, t);
            }
        };
        let left = session.guard.deadline_left(t.now.ms);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let effects = holding.group.cancel(t.now.ms, why.cause, left);
        self.group_effects(key, effects, t);
        if asking {
            // The step itself is over; what the shards would say of it comes too late.
            self.step_lost(key, t);
        }
    }

    /// Ends a session that holds no KV.
    fn end_queued(&mut self, id: SessionId, why: StreamTerminated, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = session.restarts.key();
        let shards = match &session.state {
            State::Queued(Some(route)) | State::Retreating(route) => shard_ids(route),
            _ => Vec::new(),
        };
        let record = WorkRecord {
            key,
            status: work_status_for(why.kind),
            failure_kind: Some(why.kind),
            cause: Some(why.cause),
            tokens: None,
            delivered_tokens: session.delivered,
            prompt_tokens: prompt_tokens(&session.request),
            restartable: Some(why.kind.restartable()),
            kv: if session.was_open { KvOutcome::Released } else { KvOutcome::NeverOpened },
            uncertain_step: None,
            excluded_node: None,
            shards,
            output_digest: output_digest(&[]),
            started_ms: t.now.unix_ms,
            ended_ms: t.now.unix_ms,
        };
        if !self.holdings.contains_key(&key) {
            let mut group = ShardCancellationGroup::new(key, 0, self.config.lease_ms);
            group.cancel(t.now.ms, why.cause, 0);
            self.remember(group.outcome().clone());
        }
        self.record(id, record, t);
        self.finish(id, why, t);
    }

    /// Writes the one record of an attempt.
    fn record(&mut self, id: SessionId, record: WorkRecord, t: &mut Turn<'_>) {
        let key = record.key;
        self.telemetry.ended(record.status, record.failure_kind);
        let record = match t.ledger.terminal(record.clone()) {
            // The ledger adds a step in doubt.
            Ok(()) => t.ledger.record(key).cloned().unwrap_or(record),
            Err(error) => {
                tracing::error!(%error, session = %id, epoch = key.epoch, "the ledger refused a record");
                return;
            }
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.records.push(record);
        }
    }

    /// All tokens are there.
    pub(super) fn complete(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &session.state else { return };
        let key = attempt.key;
        // Who counts for himself is believed up to what was asked for (runner-details 14).
        let counted = attempt.counts.unwrap_or(Counts {
            prompt_tokens: prompt_tokens(&session.request),
            completion_tokens: u32::try_from(attempt.tokens.len()).unwrap_or(u32::MAX),
        });
        let tokens = counted.completion_tokens.min(session.request.max_new);
        let record = WorkRecord {
            key,
            status: WorkStatus::Completed,
            failure_kind: None,
            cause: None,
            tokens: Some(tokens),
            delivered_tokens: session.delivered,
            prompt_tokens: counted.prompt_tokens,
            restartable: None,
            kv: KvOutcome::Held,
            uncertain_step: None,
            excluded_node: None,
            shards: shard_ids(&attempt.route),
            output_digest: output_digest(&attempt.tokens),
            started_ms: attempt.started_unix_ms,
            ended_ms: t.now.unix_ms,
        };
        self.record(id, record, t);
        if let Some(holding) = self.holdings.get_mut(&key) {
            holding.hold_until_ms = Some(t.now.ms.saturating_add(self.config.hold_ms));
            self.held.push_back(key);
            self.rearm_holding(key);
        }
        let Some(session) = self.take_session(id) else { return };
        self.scheduler.finish(id, WorkStatus::Completed);
        let outcome = Outcome {
            session: id,
            status: WorkStatus::Completed,
            kind: None,
            cause: None,
            lowered_by_request: false,
            records: session.records,
            finish_reason: Some(finish_reason(&session.request, &session.given)),
            tokens: session.given,
        };
        t.effects.push(Effect::Done { outcome: Box::new(outcome) });
    }

    /// Gives the KV of a completed session back.
    fn reap(&mut self, key: KvKey, cause: Cause, t: &mut Turn<'_>) {
        self.held.retain(|held| *held != key);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        holding.hold_until_ms = None;
        let effects = holding.group.cancel(t.now.ms, cause, 0);
        self.group_effects(key, effects, t);
    }

    /// Phase 2 of an attempt is over: its record is due, and then its next epoch or its end.
    fn quiesced(&mut self, key: KvKey, t: &mut Turn<'_>) {
        let id = key.session;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        if attempt.key != key {
            return;
        }
        let Some((why, at_fault)) = attempt.end else { return };
        let at_fault =
            at_fault.and_then(|index| attempt.route.get(index)).map(|hop| hop.info.shard_id.clone());
        let kind = why.kind;
        let tokens = u32::try_from(attempt.tokens.len()).unwrap_or(u32::MAX);
        let kv = match kind {
            _ if attempt.opened == 0 => KvOutcome::NeverOpened,
            FailureKind::CacheMiss => KvOutcome::AlreadyEvicted,
            FailureKind::StaleEpoch => KvOutcome::Stale,
            _ => KvOutcome::Released,
        };
        let fence = self.config.restart_after_fence && kind == FailureKind::HeartbeatLost;
        let record = WorkRecord {
            key,
            status: work_status_for(kind),
            failure_kind: Some(kind),
            cause: Some(why.cause),
            tokens: (tokens > 0).then_some(tokens),
            delivered_tokens: session.delivered,
            prompt_tokens: prompt_tokens(&session.request),
            restartable: Some(kind.restartable() || fence),
            kv,
            uncertain_step: attempt.uncertain,
            excluded_node: at_fault.clone(),
            shards: shard_ids(&attempt.route),
            output_digest: output_digest(&attempt.tokens),
            started_ms: attempt.started_unix_ms,
            ended_ms: t.now.unix_ms,
        };
        let slot_out = attempt.flight.take().is_some();
        let failed = FailedAttempt {
            kind,
            shard_id: at_fault,
            delivered: u32::try_from(session.given.len()).unwrap_or(u32::MAX),
            // Greedy, or drawn from the seed of the request.
            reproducible: true,
            total_left_ms: session.guard.total_left(t.now.ms),
            fence: if fence { Fence::Open } else { Fence::Off },
        };
        session.failed = Some(why);
        session.was_open = false;
        session.guard.requeued(t.now.ms);
        session.state = State::Between { not_before_ms: u64::MAX };
        self.load_changed = true;
        if slot_out {
            self.scheduler.step_done(key, t.now.ms, false);
        }
        self.record(id, record, t);
        if kind == FailureKind::Cancelled {
            self.finish(id, why, t);
        } else {
            self.restart_or_finish(id, failed, why, t);
        }
    }

    fn restart_or_finish(
        &mut self,
        id: SessionId,
        failed: FailedAttempt,
        why: StreamTerminated,
        t: &mut Turn<'_>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let most = session.request.max_restarts.min(self.config.max_restarts);
        if session.restarts.used() >= most || self.draining {
            if let Some(shard_id) = failed.shard_id.as_ref().filter(|_| failed.kind.node_at_fault()) {
                self.inhibitions.note(shard_id, t.now.ms);
            }
            return self.finish(id, why, t);
        }
        match session.restarts.may_restart(t.now.ms, &failed, &mut self.inhibitions) {
            Decision::Restart { epoch, not_before_ms, excluded } => {
                let Some(token) = session.token.next_epoch() else {
                    let cause = session.token.cancelled().unwrap_or(Cause::Client);
                    return self.finish(id, StreamTerminated::of(FailureKind::Cancelled, cause), t);
                };
                tracing::debug!(session = %id, epoch, ?excluded, kind = failed.kind.as_str(), "the session fails over");
                session.token = token.clone();
                session.state = State::Between { not_before_ms };
                self.between.insert(id);
                self.scheduler.requeue(KvKey::new(id, epoch));
                t.effects.push(Effect::Attempt { token });
                self.rearm(id, t.now.ms);
            }
            Decision::AwaitFence => {
                session.state = State::AwaitingFence(failed);
                self.rearm(id, t.now.ms);
                self.fence_closed(id, t);
            }
            Decision::No { .. } => self.finish(id, why, t),
        }
    }

    /// Asks again about a restart once no shard may hold an old epoch of the session.
    fn fence_closed(&mut self, id: SessionId, t: &mut Turn<'_>) {
        if self.holds(id) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (State::AwaitingFence(failed), Some(why)) = (&session.state, session.failed) else { return };
        let mut failed = failed.clone();
        failed.fence = Fence::Closed;
        failed.total_left_ms = session.guard.total_left(t.now.ms);
        self.restart_or_finish(id, failed, why, t);
    }

    fn holds(&self, id: SessionId) -> bool {
        self.holdings.range(KvKey::new(id, 0)..=KvKey::new(id, u32::MAX)).next().is_some()
    }

    fn take_session(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        if let Some(armed) = session.armed_ms {
            self.timers.remove(&(armed, Timer::Session(id)));
        }
        self.between.remove(&id);
        self.load_changed = true;
        Some(session)
    }

    /// The session is over, and did not complete.
    fn finish(&mut self, id: SessionId, why: StreamTerminated, t: &mut Turn<'_>) {
        let Some(session) = self.take_session(id) else { return };
        let status = work_status_for(why.kind);
        match self.scheduler.cancel(id, status) {
            Ok(
                CancelledFrom::Queued
                | CancelledFrom::Active
                | CancelledFrom::Done(_)
                | CancelledFrom::Unknown,
            ) => {}
            Err(refused) => tracing::error!(%refused, session = %id, "a failed session cannot be completed"),
        }
        self.free_rows(id);
        let outcome = Outcome {
            session: id,
            status,
            kind: Some(why.kind),
            cause: Some(why.cause),
            lowered_by_request: why.lowered_by_request,
            records: session.records,
            finish_reason: None,
            tokens: session.given,
        };
        t.effects.push(Effect::Done { outcome: Box::new(outcome) });
    }

    fn free_rows(&mut self, id: SessionId) {
        if !self.sessions.contains_key(&id) && !self.holds(id) {
            self.scheduler.rows_freed(id);
        }
    }

    fn remember(&mut self, outcome: CancellationOutcome) {
        let id = outcome.key.session;
        if self.ended.insert(id, outcome).is_none() {
            self.ended_order.push_back(id);
        }
        if self.ended_order.len() > ENDED_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    /// The attempt of a key, while it has no record.
    pub(super) fn live(&mut self, key: KvKey) -> Option<&mut Attempt> {
        match &mut self.sessions.get_mut(&key.session)?.state {
            State::Live(attempt) if attempt.key == key => Some(attempt),
            _ => None,
        }
    }

    // ── shards of a key ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Lets an answer of a shard change the group of its key.
    fn with_group(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        t: &mut Turn<'_>,
        change: impl FnOnce(&mut ShardCancellationGroup, usize, u64) -> Vec<CancelEffect>,
    ) {
        let holding = self.holdings.get_mut(&key);
        let found = holding.and_then(|holding| {
            let index = holding.route.iter().position(|hop| hop.no == shard)?;
            Some((index, holding))
        });
        let Some((index, holding)) = found else {
            self.telemetry.stale_event();
            return;
        };
        let effects = change(&mut holding.group, index, t.now.ms);
        self.group_effects(key, effects, t);
        // One shard more may have let go of an older epoch.
        self.open_if_fenced(key.session, t);
    }

    /// Changes the group of a live key and does what follows.
    pub(super) fn with_key(
        &mut self,
        key: KvKey,
        t: &mut Turn<'_>,
        change: impl FnOnce(&mut ShardCancellationGroup, u64) -> Vec<CancelEffect>,
    ) {
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let effects = change(&mut holding.group, t.now.ms);
        if !effects.is_empty() {
            self.group_effects(key, effects, t);
        }
    }

    fn group_effects(&mut self, key: KvKey, effects: Vec<CancelEffect>, t: &mut Turn<'_>) {
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let route = holding.route.clone();
        // A call that is still open at a shard that has let go must not bring the key to life again.
        for (index, outcome) in holding.group.outcome().shards.iter().enumerate() {
            if *outcome != ShardOutcome::Pending && !std::mem::replace(&mut holding.forgotten[index], true) {
                t.effects.push(Effect::Forget { shard: route[index].no, key });
            }
        }
        for effect in effects {
            match effect {
                CancelEffect::SendStop { shard, cause } => {
                    t.effects.push(Effect::Stop { shard: route[shard].no, key, cause });
                }
                CancelEffect::MarkUncertain { step } => {
                    if let Some(attempt) = self.live(key) {
                        attempt.uncertain = Some(step);
                    }
                }
                CancelEffect::Quiesced => self.quiesced(key, t),
                CancelEffect::SendRelease { shard, cause } => {
                    t.effects.push(Effect::Release { shard: route[shard].no, key, cause });
                }
                CancelEffect::Settled => self.settled(key, t),
            }
        }
        self.rearm_holding(key);
    }

    /// No shard holds anything of the key any more.
    fn settled(&mut self, key: KvKey, t: &mut Turn<'_>) {
        let Some(holding) = self.holdings.remove(&key) else { return };
        if let Some(armed) = holding.armed_ms {
            self.timers.remove(&(armed, Timer::Holding(key)));
        }
        self.held.retain(|held| *held != key);
        self.remember(holding.group.outcome().clone());
        self.load_changed = true;
        let id = key.session;
        self.free_rows(id);
        let gone = !self.holds(id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match &session.state {
            State::Retreating(route) if gone => {
                let key = session.restarts.key();
                session.state = State::Queued(Some(route.clone()));
                self.scheduler.put_back(key);
            }
            State::AwaitingFence(_) => self.fence_closed(id, t),
            State::Live(_) => self.open_if_fenced(id, t),
            _ => {}
        }
    }

    fn delivered(&mut self, id: SessionId, count: u32, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let count = count.min(u32::try_from(session.given.len()).unwrap_or(u32::MAX));
        let more = count.saturating_sub(session.delivered);
        if more == 0 {
            return;
        }
        session.delivered = count;
        if let Err(error) = t.ledger.delivered(id, count) {
            tracing::warn!(%error, session = %id, "the ledger does not take a delivery");
        }
        let key = session.restarts.key();
        if let Some(holding) = self.holdings.get_mut(&key) {
            holding.group.delivered(more);
        }
    }
}

fn shard_ids(route: &[Hop]) -> Vec<String> {
    route.iter().map(|hop| hop.info.shard_id.clone()).collect()
}

fn prompt_tokens(request: &GenerateRequest) -> u32 {
    u32::try_from(request.prompt.len()).unwrap_or(u32::MAX)
}

fn finish_reason(request: &GenerateRequest, tokens: &[u32]) -> FinishReason {
    if tokens.last().is_some_and(|last| request.stop_tokens.contains(last)) {
        FinishReason::Stop
    } else {
        FinishReason::Length
    }
}

fn bad(field: &'static str, reason: impl Into<String>) -> SubmitError {
    SubmitError::BadRequest { field, reason: reason.into() }
}

/// What can be said without a model.
fn check_shape(request: &GenerateRequest) -> Result<(), SubmitError> {
    for (field, name) in [("chain_id", &request.chain_id), ("client", &request.client)] {
        if name.len() > NAME_MAX {
            return Err(bad(field, format!("at most {NAME_MAX} bytes")));
        }
    }
    if !(1..=NAME_MAX).contains(&request.inference_id.len()) {
        return Err(bad("inference_id", format!("1 to {NAME_MAX} bytes")));
    }
    if request.prompt.is_empty() {
        return Err(bad("prompt", "at least one token"));
    }
    if request.max_new == 0 {
        return Err(bad("max_new", "at least one token"));
    }
    if request.stop_tokens.len() > STOP_TOKENS_MAX {
        return Err(bad("stop_tokens", format!("at most {STOP_TOKENS_MAX}")));
    }
    Ok(())
}

/// Whether a shard could ever run the request.
fn check_fit(request: &GenerateRequest, shard: &ShardInfo) -> Result<(), SubmitError> {
    let prompt = request.prompt.len() as u64;
    let rows = prompt + u64::from(request.max_new);
    let most = u64::from(shard.max_positions.min(shard.capacity));
    if prompt >= most {
        return Err(bad("prompt", format!("{prompt} tokens where less than {most} are possible")));
    }
    if rows > most {
        return Err(bad(
            "max_new",
            format!("prompt and answer have {rows} tokens where {most} are possible"),
        ));
    }
    if let Some(id) = request.prompt.iter().find(|id| **id >= shard.vocab) {
        return Err(bad("prompt", format!("token {id} is not below {}", shard.vocab)));
    }
    if let Some(id) = request.stop_tokens.iter().find(|id| **id >= shard.vocab) {
        return Err(bad("stop_tokens", format!("token {id} is not below {}", shard.vocab)));
    }
    Ok(())
}

fn refusal(id: SessionId, error: scheduler::SubmitError) -> SubmitError {
    match error {
        scheduler::SubmitError::QueueFull { retry_after_ms } => SubmitError::QueueFull { retry_after_ms },
        scheduler::SubmitError::Duplicate(_) => {
            SubmitError::Duplicate { session: id, state: "has ended here" }
        }
        scheduler::SubmitError::Size { .. } => bad("max_new", error.to_string()),
        scheduler::SubmitError::Client { .. } => bad("client", error.to_string()),
    }
}
