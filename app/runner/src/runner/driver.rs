//! The loop.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::adapter::{AdapterError, AdapterFuture, BoundaryAdapter, KvKey, SessionId, ShardInfo};
use crate::clock::{Clock, Sleep};
use crate::ledger::{IdempotencyLedger, LedgerError, Retired};
use crate::record::WorkRecord;
use crate::restart::ShardPool;
use crate::runner::generation::{Generation, Outbox};
use crate::runner::inbox::{Cancel, Commands, Inbox, Question, Reply};
use crate::runner::{Report, RunnerConfig};
use crate::session::{Effect, Event, Now, SessionCore, ShardNo, SubmitError};

/// Most answers of shards in one turn.
const ANSWERS_MAX: usize = 1_024;

/// Time between two looks for sessions that the ledger may forget, milliseconds.
const RETIRE_MS: u64 = 10_000;

/// The same while there are some: each look forgets a bounded number.
const RETIRE_MORE_MS: u64 = 100;

/// Names a call: by key and shard, so that all calls of a key at a shard are found together.
type CallId = (KvKey, ShardNo, u64);

type Call = Pin<Box<dyn Future<Output = Option<(CallId, Event)>> + Send>>;

/// An answer that may go out only when the ledger was flushed.
type Answer = Box<dyn FnOnce() + Send>;

struct Shard {
    adapter: Arc<dyn BoundaryAdapter>,
    info: Arc<ShardInfo>,
    live: bool,
}

pub(super) struct Driver {
    clock: Arc<dyn Clock>,
    ledger: IdempotencyLedger,
    pool: Arc<dyn ShardPool>,
    inbox: Arc<Inbox>,
    core: SessionCore,
    shards: BTreeMap<ShardNo, Shard>,
    next_shard: u32,
    calls: FuturesUnordered<Call>,
    aborts: BTreeMap<CallId, AbortHandle>,
    next_call: u64,
    outboxes: BTreeMap<SessionId, Arc<Outbox>>,
    submits: BTreeMap<u64, Reply<Result<Generation, SubmitError>>>,
    next_ticket: u64,
    timer: Option<(u64, Sleep)>,
    /// Events of the driver's own making, for the next turn.
    carried: Vec<Event>,
    effects: Vec<Effect>,
    stopping: bool,
    retire_at_ms: u64,
}

/// What one turn begins with.
#[derive(Default)]
struct Ready {
    commands: Option<Commands>,
    tick: bool,
    answers: Vec<Event>,
}

impl Driver {
    pub(super) fn new(
        config: RunnerConfig,
        clock: Arc<dyn Clock>,
        ledger: IdempotencyLedger,
        pool: Arc<dyn ShardPool>,
        inbox: Arc<Inbox>,
    ) -> Self {
        Self {
            core: SessionCore::new(config.session),
            clock,
            ledger,
            pool,
            inbox,
            shards: BTreeMap::new(),
            next_shard: 0,
            calls: FuturesUnordered::new(),
            aborts: BTreeMap::new(),
            next_call: 0,
            outboxes: BTreeMap::new(),
            submits: BTreeMap::new(),
            next_ticket: 0,
            timer: None,
            carried: Vec::new(),
            effects: Vec::new(),
            stopping: false,
            retire_at_ms: 0,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), LedgerError> {
        while !self.finished() {
            let ready = poll_fn(|context| self.poll_ready(context)).await;
            self.turn(ready).await?;
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.stopping && self.core.is_idle() && self.carried.is_empty()
    }

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Ready> {
        let mut ready = Ready { commands: self.inbox.take(context), ..Ready::default() };
        ready.answers.append(&mut self.carried);
        while ready.answers.len() < ANSWERS_MAX
            && let Poll::Ready(Some(answer)) = self.calls.poll_next_unpin(context)
        {
            if let Some((id, event)) = answer {
                self.aborts.remove(&id);
                ready.answers.push(event);
            }
        }
        // After the shards: one that computes in this process takes time.
        if let Some((_, sleep)) = &mut self.timer
            && sleep.as_mut().poll(context).is_ready()
        {
            self.timer = None;
            ready.tick = true;
        }
        if ready.commands.is_some() || ready.tick || !ready.answers.is_empty() {
            return Poll::Ready(ready);
        }
        Poll::Pending
    }

    async fn turn(&mut self, ready: Ready) -> Result<(), LedgerError> {
        let now = Now { ms: self.clock.now_ms(), unix_ms: self.clock.unix_ms() };
        let steps_only = ready.commands.is_none()
            && !ready.tick
            && ready.answers.iter().all(|event| matches!(event, Event::StepEnded { result: Ok(_), .. }));
        if !steps_only {
            self.look_at_shards(now);
        }
        let mut answers: Vec<Answer> = Vec::new();
        let mut cancels = Vec::new();
        if let Some(commands) = ready.commands {
            self.command(commands, now, &mut answers, &mut cancels);
        }
        if ready.tick {
            self.hear_beats(now);
            self.handle(Event::Tick, now);
        }
        for event in ready.answers {
            self.handle(event, now);
        }
        self.core.plan(now, &mut self.ledger, &mut self.effects);
        for Cancel { session, reply, .. } in cancels {
            // The driver may be told of a cancel that nobody waits for.
            if let Some(reply) = reply {
                let outcome = self.core.cancellation_outcome(session);
                answers.push(Box::new(move || drop(reply.send(outcome))));
            }
        }
        if self.ledger.needs_sync() {
            self.give_back().await;
        }
        self.flush(now)?;
        answers.into_iter().for_each(|answer| answer());
        self.act().await;
        Ok(())
    }

    fn handle(&mut self, event: Event, now: Now) {
        self.core.handle(event, now, &mut self.ledger, &mut self.effects);
    }

    fn command(
        &mut self,
        commands: Commands,
        now: Now,
        answers: &mut Vec<Answer>,
        cancels: &mut Vec<Cancel>,
    ) {
        for (request, reply) in commands.submits {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            self.submits.insert(ticket, reply);
            self.handle(Event::Submit { ticket, request: Box::new(request) }, now);
        }
        for cancel in commands.cancels {
            let Cancel { session, epoch, cause, .. } = cancel;
            self.handle(Event::Cancel { session, epoch, cause }, now);
            cancels.push(cancel);
        }
        for (session, count) in commands.delivered {
            self.handle(Event::Delivered { session, count }, now);
        }
        for question in commands.questions {
            answers.push(self.answer(question, now));
        }
        if let Some(within_ms) = commands.stop_ms {
            self.stopping = true;
            self.handle(Event::Drain { until_ms: now.ms.saturating_add(within_ms) }, now);
        }
    }

    /// The answer to a question, to be given after the flush. Who no longer waits gets none.
    fn answer(&mut self, question: Question, now: Now) -> Answer {
        fn give<T: Send + 'static>(reply: Reply<T>, value: T) -> Answer {
            Box::new(move || drop(reply.send(value)))
        }
        match question {
            Question::Telemetry(reply) => give(reply, self.core.telemetry().clone()),
            Question::Work(reply) => give(reply, *self.ledger.work()),
            Question::Records(session, reply) => {
                let last = self.ledger.last_epoch(session);
                let epochs = last.map_or(0..0, |last| 0..last.saturating_add(1));
                let records =
                    epochs.filter_map(|epoch| self.ledger.record(KvKey::new(session, epoch)).cloned());
                give(reply, records.collect())
            }
            Question::Unsubmitted(reply) => give(reply, self.unsubmitted()),
            Question::MarkSubmitted { record, reference, reply } => {
                give(reply, self.ledger.submitted(record.session, record.epoch, &reference))
            }
            Question::MarkClosed(session, reply) => give(reply, self.ledger.closed(session, now.ms)),
        }
    }

    /// Of sessions that neither run nor wait for their next epoch.
    fn unsubmitted(&self) -> Vec<Report> {
        let over = self.ledger.unsubmitted().filter(|record| !self.core.runs(record.key.session));
        over.map(|record| {
            let WorkRecord { key, .. } = record;
            let opened = self.ledger.opened(*key);
            Report {
                record: record.clone(),
                inference_id: opened.map_or_else(String::new, |opened| opened.inference_id.clone()),
                tokens: self.ledger.committed_tokens(key.session, key.epoch).to_vec(),
            }
        })
        .collect()
    }

    /// One write, and one sync if something must be durable. On tokio's threads the others of the pool go on meanwhile.
    fn flush(&mut self, now: Now) -> Result<(), LedgerError> {
        if now.ms >= self.retire_at_ms {
            let retired = self.ledger.retire(now.ms)?;
            let more = retired != Retired::default();
            self.retire_at_ms = now.ms.saturating_add(if more { RETIRE_MORE_MS } else { RETIRE_MS });
        }
        if self.ledger.needs_sync()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
            && runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread
        {
            return tokio::task::block_in_place(|| self.ledger.flush());
        }
        self.ledger.flush()
    }

    // ── shards ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Tells the core which shards are connected, if that changed, and forgets those that nothing refers to.
    fn look_at_shards(&mut self, now: Now) {
        let live = guarded(|| self.pool.live()).unwrap_or_default();
        let mut seen = Vec::with_capacity(live.len());
        let mut changed = false;
        for adapter in live {
            let known = self
                .shards
                .iter()
                .find(|(_, shard)| std::ptr::addr_eq(Arc::as_ptr(&shard.adapter), Arc::as_ptr(&adapter)))
                .map(|(no, _)| *no);
            let no = match known {
                Some(no) => no,
                None => {
                    let Some(info) = guarded(|| adapter.describe()) else { continue };
                    let no = ShardNo(self.next_shard);
                    self.next_shard += 1;
                    self.shards.insert(no, Shard { adapter, info: Arc::new(info), live: false });
                    no
                }
            };
            if !seen.contains(&no) {
                seen.push(no);
            }
        }
        for (no, shard) in &mut self.shards {
            let live = seen.contains(no);
            changed |= shard.live != live;
            shard.live = live;
        }
        if changed {
            let live = self.shards.iter().filter(|(_, shard)| shard.live);
            let shards = live.map(|(no, shard)| (*no, shard.info.clone())).collect();
            self.handle(Event::Shards(shards), now);
            let used: BTreeSet<ShardNo> = self.core.holdings().flat_map(|(_, shards)| shards).collect();
            self.shards.retain(|no, shard| shard.live || used.contains(no));
        }
    }

    fn hear_beats(&mut self, now: Now) {
        let beats: Vec<(ShardNo, u64)> = self
            .shards
            .iter()
            .filter_map(|(no, shard)| Some((*no, guarded(|| shard.adapter.last_beat_ms())??)))
            .collect();
        for (shard, at_ms) in beats {
            self.handle(Event::Alive { shard, at_ms }, now);
        }
    }

    /// Stops and releases of this turn leave before its sync, which takes longer than they do: no record has to be
    /// durable before KV is free. Only where no other call of their key would be overtaken.
    async fn give_back(&mut self) {
        let effects = std::mem::take(&mut self.effects);
        let others: BTreeSet<KvKey> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Open { key, .. } | Effect::Step { key, .. } | Effect::QueryStep { key, .. } => {
                    Some(*key)
                }
                _ => None,
            })
            .collect();
        let mut calls = Vec::new();
        for effect in effects {
            match effect {
                Effect::Forget { shard, key } => self.forget(shard, key),
                Effect::Stop { key, .. } | Effect::Release { key, .. } if !others.contains(&key) => {
                    calls.push(effect);
                }
                effect => self.effects.push(effect),
            }
        }
        if calls.is_empty() {
            return;
        }
        for effect in calls {
            self.call(effect);
        }
        // Sends them. What is answered by now is for the next turn.
        poll_fn(|context| {
            while let Poll::Ready(Some(answer)) = self.calls.poll_next_unpin(context) {
                if let Some((id, event)) = answer {
                    self.aborts.remove(&id);
                    self.carried.push(event);
                }
            }
            Poll::Ready(())
        })
        .await;
        // Whoever writes them to their sockets may be waiting for this thread.
        yield_once().await;
        yield_once().await;
    }

    // ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn act(&mut self) {
        let effects = std::mem::take(&mut self.effects);
        let (mut calls, mut delivered) = (Vec::new(), false);
        for effect in effects {
            match effect {
                Effect::Accepted { ticket, session, .. } => {
                    let outbox = Arc::new(Outbox::default());
                    let generation = Generation::new(session, outbox.clone(), self.inbox.clone());
                    self.outboxes.insert(session, outbox);
                    if let Some(reply) = self.submits.remove(&ticket) {
                        // Nobody waits any more: dropping the generation cancels it.
                        drop(reply.send(Ok(generation)));
                    }
                }
                Effect::Refused { ticket, error } => {
                    if let Some(reply) = self.submits.remove(&ticket) {
                        drop(reply.send(Err(error)));
                    }
                }
                Effect::Attempt { token } => self.inbox.attempt(token),
                Effect::Deliver { session, index, token } => {
                    if let Some(outbox) = self.outboxes.get(&session) {
                        outbox.token(index, token);
                        delivered = true;
                    }
                }
                Effect::Wait { session } => {
                    if let Some(outbox) = self.outboxes.get(&session) {
                        outbox.wait();
                    }
                }
                Effect::Done { outcome } => {
                    self.inbox.ended(outcome.session);
                    if let Some(outbox) = self.outboxes.remove(&outcome.session) {
                        outbox.done(outcome);
                    }
                }
                Effect::WakeAt(at_ms) => self.timer = Some((at_ms, self.clock.sleep_until(at_ms))),
                Effect::Beat { shard, keys } => {
                    if let Some(shard) = self.shards.get(&shard) {
                        guarded(|| shard.adapter.beat(&keys));
                    }
                }
                Effect::Forget { shard, key } => self.forget(shard, key),
                call => calls.push(call),
            }
        }
        if delivered && calls.iter().any(|call| matches!(call, Effect::Step { .. })) {
            // A client on this thread sees its token, and may cancel, before the next step of its session.
            yield_once().await;
        }
        for effect in calls {
            self.call(effect);
        }
    }

    fn forget(&mut self, shard: ShardNo, key: KvKey) {
        let range = (key, shard, 0)..=(key, shard, u64::MAX);
        let calls: Vec<CallId> = self.aborts.range(range).map(|(id, _)| *id).collect();
        for id in calls {
            if let Some(abort) = self.aborts.remove(&id) {
                abort.abort();
            }
        }
    }

    fn call(&mut self, effect: Effect) {
        match effect {
            Effect::Open { shard, key, plan } => self.start(shard, key, async move |adapter| {
                let result = ask(adapter.as_ref(), |adapter| adapter.open(key, plan)).await;
                let usage = adapter.and_then(|adapter| guarded(|| adapter.usage())).unwrap_or_default();
                let held = usage.keys.into_iter().filter(|held| held.key.session == key.session).collect();
                Event::Opened { shard, key, result, held }
            }),
            Effect::Step { shard, token, key, step, prefill, bundle } => {
                if token.is_some_and(|token| token.cancelled().is_some()) {
                    self.carried.push(Event::StepUnsent { key, step: step.step });
                    return;
                }
                self.start(shard, key, async move |adapter| {
                    let result = ask(adapter.as_ref(), |adapter| {
                        if prefill {
                            adapter.prefill(key, step, bundle)
                        } else {
                            adapter.decode(key, step, bundle)
                        }
                    });
                    let result = result.await;
                    let counts = adapter.and_then(|adapter| guarded(|| adapter.counts(key)).flatten());
                    Event::StepEnded { shard, key, step: step.step, result, counts }
                });
            }
            Effect::QueryStep { shard, key, step } => self.start(shard, key, async move |adapter| {
                let result = ask(adapter.as_ref(), |adapter| adapter.query_step(key, step)).await;
                Event::QueryEnded { shard, key, step, result }
            }),
            Effect::Stop { shard, key, cause } => self.start(shard, key, async move |adapter| {
                let result = ask(adapter.as_ref(), |adapter| adapter.stop(key, cause)).await;
                Event::StopEnded { shard, key, result }
            }),
            Effect::Release { shard, key, cause } => self.start(shard, key, async move |adapter| {
                let result = ask(adapter.as_ref(), |adapter| adapter.release(key, cause)).await;
                Event::ReleaseEnded { shard, key, result }
            }),
            _ => {}
        }
    }

    fn start<F>(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        call: impl FnOnce(Option<Arc<dyn BoundaryAdapter>>) -> F,
    ) where
        F: Future<Output = Event> + Send + 'static,
    {
        let id = (key, shard, self.next_call);
        self.next_call += 1;
        let adapter = self.shards.get(&shard).map(|shard| shard.adapter.clone());
        let (abort, registration) = AbortHandle::new_pair();
        self.aborts.insert(id, abort);
        let call = Abortable::new(call(adapter), registration);
        self.calls.push(Box::pin(async move { call.await.ok().map(|event| (id, event)) }));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inbox.close();
        for outbox in self.outboxes.values() {
            outbox.close();
        }
    }
}

/// A call to a shard. One that is gone is dead; one that panics has a defect, and only the session feels it.
async fn ask<'a, T>(
    adapter: Option<&'a Arc<dyn BoundaryAdapter>>,
    call: impl FnOnce(&'a dyn BoundaryAdapter) -> AdapterFuture<'a, T>,
) -> Result<T, AdapterError> {
    let Some(adapter) = adapter else {
        return Err(AdapterError::WorkerDeath("the shard is no longer connected".to_owned()));
    };
    AssertUnwindSafe(async { call(adapter.as_ref()).await })
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(AdapterError::Internal("the adapter panicked".to_owned())))
}

/// `None` if an adapter panics where it answers at once.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).inspect_err(|_| tracing::error!("a shard's adapter panicked")).ok()
}

/// Lets the other futures of this task or thread run once.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
