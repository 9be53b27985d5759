//! The loop.

use std::collections::BTreeMap;
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
use crate::ledger::{IdempotencyLedger, LedgerError};
use crate::restart::ShardPool;
use crate::runner::RunnerConfig;
use crate::runner::generation::{Generation, Outbox};
use crate::runner::inbox::{Cancel, Commands, Inbox, Question, Reply};
use crate::session::{Effect, Event, Now, SessionCore, ShardNo, SubmitError};

/// Most answers of shards in one turn.
const ANSWERS_MAX: usize = 1_024;

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
        }
    }

    pub(super) async fn run(mut self) -> Result<(), LedgerError> {
        while !self.finished() {
            let ready = poll_fn(|context| self.poll_ready(context)).await;
            self.turn(ready).await?;
        }
        Ok(())
    }

    /// Stopped, or nobody is left who could give it work: the driver itself holds one of the inbox's references.
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
        self.flush()?;
        answers.into_iter().for_each(|answer| answer());
        self.act().await;
        Ok(())
    }

    fn handle(&mut self, event: Event, now: Now) {
        self.core.handle(event, now, &mut self.ledger, &mut self.effects);
    }
