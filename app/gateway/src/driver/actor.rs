//! The one task that owns a session: events in, effects out, in order.
//!
//! ```text
//!  requests ─┐                                       ┌─► calls of hosts (tasks) ──► their events
//!  calls    ─┼─► inbox ─► machine (blocking thread) ─┼─► clients (bounded, never waited for)
//!  chain    ─┤            one batch at a time        ├─► log, metrics, changes of flags
//!  wake-up  ─┘                                       └─► what is owed to the chain
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::FutureExt;
use holdfast_proto::Message;
use holdfast_types::Address;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::calls::{Caller, Sink, child};
use super::journal::Owed;
use super::machine::{self, Machine, View};
use super::{Counted, Inner, Session};
use crate::core::{
    CallError, CallId, ClientEvent, Effect, Event, FlagView, HostCall, Lane, LogLine, RequestError,
    RequestId, RetireReason, UserRequest, Verb, VerbError,
};
use crate::metrics;

/// The line about a host that keeps a session from being paid.
const ESCROW_SIGNATURE_MISSING: &str = "escrow_signature_missing";
/// Events that are handled on one trip to the blocking thread.
const BATCH: usize = 64;

/// What reaches a session.
pub(super) enum Input {
    /// For the machine.
    Event(Event),
    /// A request and where its events go.
    Submit {
        /// The request.
        request: UserRequest,
        /// W3C trace context.
        traceparent: String,
        /// Where its events go.
        events: mpsc::Sender<ClientEvent>,
    },
    /// A verb; its audit row is written.
    Operator {
        /// Whom it is about.
        participant: Address,
        /// What.
        verb: Verb,
        /// The flag after it.
        done: oneshot::Sender<Result<Box<FlagView>, VerbError>>,
    },
    /// A host started; `signer` signed that.
    Announce {
        /// The host.
        participant: Address,
        /// Who signed.
        signer: Address,
        /// Of its process.
        boot_id: String,
        /// Whether the signer may say so.
        done: oneshot::Sender<bool>,
    },
    /// What the service shows.
    View(oneshot::Sender<View>),
}

/// Why the task ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its session is over; the last of it as protobuf.
    Retired { reason: RetireReason, last: Vec<u8> },
    /// The machine panicked, or its store takes no commit any more. The store is as its last commit left it.
    Broken,
}

struct Client {
    events: mpsc::Sender<ClientEvent>,
    traceparent: String,
    label: String,
}

/// What the machine does on the blocking thread.
enum Work {
    Event(Event),
    View(oneshot::Sender<View>),
    Announce { participant: Address, signer: Address, boot_id: String, done: oneshot::Sender<bool> },
}

pub(super) struct Actor {
    pub(super) escrow_id: u64,
    inner: Arc<Inner>,
    session: Arc<Session>,
    caller: Caller,
    inbox: mpsc::Receiver<Input>,
    /// Events of our own, ahead of the inbox.
    own: VecDeque<Event>,
    calls: JoinSet<()>,
    by_call: BTreeMap<CallId, AbortHandle>,
    clients: BTreeMap<RequestId, Client>,
    verbs: BTreeMap<u64, oneshot::Sender<Result<Box<FlagView>, VerbError>>>,
    next_verb: u64,
    wake: Option<u64>,
    end: Option<RetireReason>,
}

impl Actor {
    pub(super) fn new(
        inner: Arc<Inner>,
        session: Arc<Session>,
        inbox: mpsc::Receiver<Input>,
        caller: Caller,
    ) -> Self {
        Self {
            escrow_id: session.escrow_id,
            inner,
            session,
            caller,
            inbox,
            own: VecDeque::new(),
            calls: JoinSet::new(),
            by_call: BTreeMap::new(),
            clients: BTreeMap::new(),
            verbs: BTreeMap::new(),
            next_verb: 0,
            wake: None,
            end: None,
        }
    }

    /// Runs the session to its end. Nothing of it is left then but the inbox, which goes back.
    pub(super) async fn run(
        mut self,
        mut machine: Box<dyn Machine>,
        effects: Vec<Effect>,
    ) -> (End, mpsc::Receiver<Input>) {
        self.session.look(machine.glance(self.inner.clock.now()));
        self.execute(effects).await;
        let mut inputs = Vec::with_capacity(BATCH);
        while self.end.is_none() {
            let mut work: Vec<Work> = self.own.drain(..).map(Work::Event).collect();
            if work.is_empty() {
                let wake = self.wake.map(|at| self.inner.clock.instant(at));
                tokio::select! {
                    _ = self.inbox.recv_many(&mut inputs, BATCH) => {}
                    Some(_) = self.calls.join_next() => {}
                    () = sleep_until(wake) => {
                        self.wake = None;
                        work.push(Work::Event(Event::Tick));
                    }
                }
            }
            work.extend(inputs.drain(..).filter_map(|input| self.take(input)));
            if work.is_empty() {
                continue;
            }
            match self.step(machine, work).await {
                Some((back, effects)) => {
                    machine = back;
                    self.execute(effects).await;
                    if self.end.is_none() && self.session.glance().storage_failed {
                        tracing::error!(
                            escrow = self.escrow_id,
                            "gateway_store_failed: the session is opened again"
                        );
                        self.session.break_down(RequestError::Storage);
                        self.close().await;
                        let _ = tokio::task::spawn_blocking(move || drop(machine)).await;
                        return (End::Broken, self.inbox);
                    }
                }
                None => {
                    self.session.break_down(RequestError::Stopping);
                    self.close().await;
                    return (End::Broken, self.inbox);
                }
            }
        }
        self.close().await;
        let hrp = self.inner.hrp.clone();
        // The store is closed with it, which takes a disk's time.
        let last = tokio::task::spawn_blocking(move || machine.view(&hrp).session.encode_to_vec()).await;
        let reason = self.end.unwrap_or(RetireReason::Stopped);
        (End::Retired { reason, last: last.unwrap_or_default() }, self.inbox)
    }

    /// One trip to the blocking thread; `None` when the machine panicked.
    async fn step(
        &self,
        mut machine: Box<dyn Machine>,
        work: Vec<Work>,
    ) -> Option<(Box<dyn Machine>, Vec<Effect>)> {
        let (clock, hrp, session) = (self.inner.clock, self.inner.hrp.clone(), Arc::clone(&self.session));
        let stepped = tokio::task::spawn_blocking(move || {
            let mut effects = Vec::new();
            for work in work {
                match work {
                    Work::Event(event) => effects.extend(machine.handle(clock.now(), event)),
                    // Whoever asked may be gone.
                    Work::View(done) => drop(done.send(machine.view(&hrp))),
                    Work::Announce { participant, signer, boot_id, done } => {
                        let known = machine.speaks_for(&signer, &participant);
                        if known {
                            effects.extend(
                                machine.handle(clock.now(), Event::Announce { participant, boot_id }),
                            );
                        }
                        let _ = done.send(known);
                    }
                }
            }
            session.look(machine.glance(clock.now()));
            (machine, effects)
        });
        match stepped.await {
            Ok(stepped) => Some(stepped),
            Err(error) => {
                metrics::panicked("session");
                tracing::error!(escrow = self.escrow_id, %error, "gateway_session_panicked");
                None
            }
        }
    }

    fn take(&mut self, input: Input) -> Option<Work> {
        Some(match input {
            Input::Event(event) => {
                match &event {
                    Event::CallDone { call_id, .. } | Event::StreamEnded { call_id, .. } => {
                        self.by_call.remove(call_id);
                    }
                    Event::ClientLeft { request_id } => drop(self.clients.remove(request_id)),
                    _ => {}
                }
                Work::Event(event)
            }
            Input::Submit { request, traceparent, events } => {
                let label = request.label.clone();
                self.clients.insert(request.request_id, Client { events, traceparent, label });
                Work::Event(Event::Request(request))
            }
            Input::Operator { participant, verb, done } => {
                self.next_verb = self.next_verb.wrapping_add(1);
                self.verbs.insert(self.next_verb, done);
                Work::Event(Event::Operator { op_id: self.next_verb, participant, verb })
            }
            Input::Announce { participant, signer, boot_id, done } => {
                Work::Announce { participant, signer, boot_id, done }
            }
            Input::View(done) => Work::View(done),
        })
    }

    async fn execute(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Call { call_id, participant, call, timeout_ms, lane } => {
                    self.call(call_id, participant, call, timeout_ms, lane);
                }
                Effect::AbortCall { call_id } => {
                    if let Some(task) = self.by_call.remove(&call_id) {
                        task.abort();
                    }
                }
                Effect::ToClient { request_id, event } => self.tell(request_id, event),
                Effect::WakeAt { mono_ms } => self.wake = Some(mono_ms),
                Effect::OperatorDone { op_id, result } => {
                    if let Some(done) = self.verbs.remove(&op_id) {
                        // Whoever asked may be gone; the audit row stays.
                        let _ = done.send(result);
                    }
                }
                Effect::SettlementReady(settlement) => {
                    self.inner.owe(self.escrow_id, Owed { dispute: false, settlement: *settlement });
                }
                Effect::DisputeReady(settlement) => {
                    self.inner.owe(self.escrow_id, Owed { dispute: true, settlement: *settlement });
                }
                Effect::Log(line) => self.log(&line),
                Effect::Metric(metric) => metrics::session(self.escrow_id, &self.inner.hrp, &metric),
                Effect::FlagChanged { stage, at, flag, change: _ } => self.changed(stage, at, *flag).await,
                Effect::Retired { reason } => self.end = Some(reason),
            }
        }
        self.session.calls.store(self.by_call.len(), Ordering::Release);
    }

    fn call(&mut self, call_id: CallId, member: Address, call: HostCall, timeout_ms: u64, lane: Lane) {
        let (caller, session, counted) =
            (self.caller.clone(), Arc::clone(&self.session), Counted::new(&self.inner.alive.calls));
        let traceparent = match &call {
            HostCall::Infer(body) => self.trace(&body.request_id, body.target_nonce),
            _ => None,
        };
        let task = async move {
            let _counted = counted;
            let (name, began) = (call_name(&call), Instant::now());
            let (end, result) = match call {
                HostCall::Infer(body) => {
                    let sink = Sink { inbox: &session.inbox, call_id };
                    let called = caller.infer(member, body, timeout_ms, lane, traceparent, sink);
                    let result = AssertUnwindSafe(called).catch_unwind().await.unwrap_or_else(|_| panicked());
                    let label = result_name(result.as_ref().err());
                    (Event::StreamEnded { call_id, result }, label)
                }
                call => {
                    let called = caller.unary(member, call, timeout_ms, lane);
                    let result = AssertUnwindSafe(called).catch_unwind().await.unwrap_or_else(|_| panicked());
                    let label = result_name(result.as_ref().err());
                    (Event::CallDone { call_id, result }, label)
                }
            };
            metrics::call(name, result, began.elapsed());
            let _ = session.inbox.send(Input::Event(end)).await;
        };
        let task = self.calls.spawn(task);
        self.by_call.insert(call_id, task);
    }

    /// The context for the host: the client's trace, a span of this call.
    fn trace(&self, label: &str, nonce: u64) -> Option<String> {
        let client = self.clients.values().find(|client| client.label == label)?;
        let mut span = [0; 8];
        getrandom::fill(&mut span).ok()?;
        let context = child(&client.traceparent, span)?;
        tracing::info!(
            escrow = self.escrow_id,
            nonce,
            request_id = label,
            traceparent = context,
            "gateway_dispatched"
        );
        Some(context)
    }

    fn tell(&mut self, request_id: RequestId, event: ClientEvent) {
        let over = matches!(event, ClientEvent::Finished { .. } | ClientEvent::Failed(_));
        let Some(client) = self.clients.get(&request_id) else { return };
        if matches!(event, ClientEvent::Delta { .. }) {
            self.session.alive(self.inner.clock.now().mono_ms);
        }
        match client.events.try_send(event) {
            Ok(()) if !over => return,
            Ok(()) => {}
            Err(error) => {
                if matches!(error, TrySendError::Full(_)) {
                    metrics::slow_client();
                    tracing::warn!(escrow = self.escrow_id, request = client.label, "gateway_slow_client");
                }
                if !over {
                    self.own.push_back(Event::ClientLeft { request_id });
                }
            }
        }
        self.clients.remove(&request_id);
    }

    fn log(&self, line: &LogLine) {
        let participant = line.participant.map(|address| address.to_bech32(&self.inner.hrp));
        let participant = participant.as_deref();
        let fields: Vec<String> = line.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let (escrow, stage, mut fields) = (self.escrow_id, line.stage, fields.join(" "));
        if let (ESCROW_SIGNATURE_MISSING, Some(address)) = (stage, &line.participant) {
            // What the core does not know: where the host is, and when coins come without it.
            let (reach, expires_at) = (self.inner.hosts.reach(address), self.session.row.expires_at);
            let _ =
                write!(fields, " url={} cause={:?} dispute_from_block={expires_at}", reach.url, reach.cause);
        }
        match line.alarm {
            true => tracing::warn!(escrow, participant, "{stage} {fields}"),
            false => tracing::info!(escrow, participant, "{stage} {fields}"),
        }
    }

    async fn changed(&self, stage: &'static str, at: u64, flag: FlagView) {
        let (inner, escrow_id) = (Arc::clone(&self.inner), self.escrow_id);
        let kept = tokio::task::spawn_blocking(move || inner.log_flag(escrow_id, stage, at, &flag)).await;
        if !matches!(kept, Ok(Ok(_))) {
            tracing::error!(escrow = escrow_id, stage, "gateway_flag_change_not_logged");
        }
    }

    /// Ends all that belongs to the session, and waits for it.
    async fn close(&mut self) {
        self.by_call.clear();
        self.calls.shutdown().await;
        let why = self.session.broken().unwrap_or(RequestError::Stopping);
        for (_, client) in std::mem::take(&mut self.clients) {
            let _ = client.events.try_send(ClientEvent::Failed(why.clone()));
        }
        for (_, verb) in std::mem::take(&mut self.verbs) {
            let _ = verb.send(Err(VerbError::WrongPhase));
        }
        self.session.look(machine::Glance::default());
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn panicked<T>() -> Result<T, CallError> {
    metrics::panicked("call");
    tracing::error!("gateway_call_panicked");
    Err(CallError::Aborted)
}

fn call_name(call: &HostCall) -> &'static str {
    match call {
        HostCall::Bind(_) => "bind",
        HostCall::Teach(_) => "teach",
        HostCall::Infer(_) => "infer",
        HostCall::Cancel(_) => "cancel",
        HostCall::GetSignatures(_) => "get_signatures",
        HostCall::GetPending(_) => "get_pending",
        HostCall::GetDiffs(_) => "get_diffs",
        HostCall::VoteTimeout(_) => "vote_timeout",
        HostCall::ResetSession(_) => "reset_session",
    }
}

fn result_name(error: Option<&CallError>) -> &'static str {
    match error {
        None => "ok",
        Some(CallError::Host(_)) => "host",
        Some(CallError::Status { .. }) => "status",
        Some(CallError::Transport) => "transport",
        Some(CallError::Timeout) => "timeout",
        Some(CallError::Aborted) => "aborted",
    }
}
