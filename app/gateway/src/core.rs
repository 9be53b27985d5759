//! One session as a machine without sockets and clock: events and the time go in, effects come out.
//!
//! ```text
//!  client ─► queue ─► picker ─► sequencer: compose, sign, PERSIST, install ─► Infer to the owner of the nonce
//!                       │            ▲                                          │
//!                       │ flags      │ receipts, finishes, errors, timeouts     │ signed mismatch
//!                       └────────── repair of that participant ◄────────────────┘
//! ```
//!
//! Everything that a call tells a host is durable before the call is an effect. Nothing here waits: a step takes what
//! happened, decides, and returns. Rules: escrow-details 5 to 8.

mod api;
mod attempt;
mod cancel;
mod census;
mod checkpoints;
mod config;
mod dispatch;
mod errors;
mod evidence;
mod finalize;
mod history;
mod limiter;
mod members;
mod pending;
mod permits;
mod picker;
mod ping;
mod queue;
mod recover;
mod repair;
mod sequencer;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod timeouts;
mod verbs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use holdfast_escrow::divergence::DivergenceFlag;
use holdfast_escrow::repair::RepairConfig;
use holdfast_escrow::session::{FrozenConfig, Recovered, Signature, State};
use holdfast_types::Address;

pub use api::{
    CallError, CallId, ChainNews, ClientEvent, Effect, Entropy, Event, HostCall, HostReply, Lane, LogLine,
    Metric, Now, OpenError, RequestError, RequestId, RetireReason, Signer, UserRequest, Verb, VerbError,
};
pub use config::GatewayConfig;
pub use permits::{PermitPool, Ticket, VotePermit};
pub use status::{FlagView, ParticipantStatus, RepairTotals, RepairView, SessionStatus};
pub use store::{Counters, StartKind};

/// `FailureKind` of a stream that ended before its answer.
const KIND_STREAM_RESET: i32 = 2;

/// Effects held back while the store fails.
const MAX_HELD: usize = 4096;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Infer { nonce: u64 },
    CatchUp,
    Bind,
    Ping,
    Poll,
    Cancel { nonce: u64 },
    Vote { id: u64 },
    Sign,
    Repair,
    Refused { nonce: u64 },
    Probe { nonce: u64 },
    Census { about: Address, nonce: u64 },
    Above,
    Below,
    Held,
}

/// One escrow session of a gateway: its only sequencer.
pub struct GatewayCore {
    cfg: GatewayConfig,
    terms: Arc<FrozenConfig>,
    signer: Box<dyn Signer>,
    entropy: Box<dyn Entropy>,
    permits: PermitPool,
    ledger: store::Ledger,
    now: Now,
    opened_ms: u64,
    // The session.
    state: State,
    history: history::History,
    pending: pending::Pending,
    meta: store::Meta,
    members: BTreeMap<Address, members::Member>,
    staged: Option<sequencer::Staged>,
    // Work.
    queue: VecDeque<queue::Asking>,
    flights: BTreeMap<u64, dispatch::Flight>,
    /// Starts that were taken back, until their hosts have signed it.
    withdrawn: BTreeMap<u64, cancel::Withdrawn>,
    dues: BTreeMap<u64, timeouts::Due>,
    /// Timeouts with enough votes, and since when.
    ripe: BTreeMap<u64, (Recovered, u64)>,
    /// Verified signatures by nonce, for settlement.
    kept: BTreeMap<u64, BTreeMap<Address, Signature>>,
    calls: BTreeMap<CallId, (Address, Purpose)>,
    next_call: CallId,
    // Divergence.
    flags: BTreeMap<Address, DivergenceFlag>,
    workers: BTreeMap<Address, repair::Worker>,
    /// Whose repair call in flight is a reset.
    resetting: BTreeSet<Address>,
    censuses: BTreeMap<Address, census::Census>,
    suspicion: census::Suspicion,
    corrupt: Option<u64>,
    above_until_ms: Option<u64>,
    above_asked: BTreeMap<Address, u64>,
    // The end, and the step.
    checkpoint: checkpoints::Checkpoint,
    closing: finalize::Closing,
    settle_until_ms: u64,
    alive_ms: Option<u64>,
    stopping: bool,
    over: Option<RetireReason>,
    /// What the repairs came to, once their rows are removed.
    totals: BTreeMap<Address, RepairTotals>,
    /// The rows of this step must be durable before its effects leave.
    urgent: bool,
    wake_ms: Option<u64>,
    out: Vec<Effect>,
    held: Vec<Effect>,
}

impl GatewayCore {
    /// Takes what happened and says what to do. Never waits; never fails: what goes wrong comes out as an effect.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Effect> {
        if self.over.is_some() {
            return Vec::new();
        }
        self.now = now;
        if let Event::StreamItem { call_id, event } = event {
            let Some((_, Purpose::Infer { nonce })) = self.calls.get(&call_id).copied() else {
                return Vec::new();
            };
            let short = matches!(
                event,
                holdfast_proto::holdfast::host::v1::infer_response::Event::Delta(_)
                    | holdfast_proto::holdfast::host::v1::infer_response::Event::Beat(_)
            );
            self.stream_item(nonce, event);
            if short {
                // Text changes nothing but its client: a thousand streams must not cost a look at all of them.
                return std::mem::take(&mut self.out);
            }
        } else {
            self.take(event);
        }
        self.run();
        self.finish_step()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Request(request) => self.request(request),
            Event::ClientLeft { request_id } => self.client_left(request_id, false),
            Event::Enough { request_id } => self.client_left(request_id, true),
            Event::CallDone { call_id, result } => self.call_done(call_id, result),
            Event::StreamEnded { call_id, result } => {
                if let Some((_, Purpose::Infer { nonce })) = self.calls.remove(&call_id) {
                    self.stream_ended(nonce, result);
                }
            }
            Event::Tick | Event::StreamItem { .. } => {}
            Event::Operator { op_id, participant, verb } => self.operator(op_id, &participant, verb),
            Event::Announce { participant, boot_id } => self.announced(&participant, boot_id),
            Event::Chain(news) => self.chain_news(news),
            Event::Finalize => self.finalize(),
            Event::Stop => {
                self.stopping = true;
                self.fail_queue(RequestError::Stopping);
                for (nonce, flight) in std::mem::take(&mut self.flights) {
                    if let Some(asking) = flight.asking {
                        self.tell(asking.request.request_id, ClientEvent::Failed(RequestError::Stopping));
                    }
                    self.log(
                        "escrow_flight_left",
                        false,
                        Some(flight.participant),
                        vec![("nonce", nonce.to_string())],
                    );
                }
                // The repairs go on after the restart: no flag is stopped.
                self.workers.clear();
                self.over = Some(RetireReason::Stopped);
                self.emit(Effect::Retired { reason: RetireReason::Stopped });
            }
        }
    }

    fn call_done(&mut self, call_id: CallId, result: Result<HostReply, CallError>) {
        let Some((participant, purpose)) = self.calls.remove(&call_id) else { return };
        let p = &participant;
        macro_rules! only {
            ($kind:ident) => {
                result.and_then(|reply| match reply {
                    HostReply::$kind(reply) => Ok(reply),
                    // The driver answered with the reply of another method.
                    _ => Err(CallError::Transport),
                })
            };
        }
        match purpose {
            Purpose::Infer { nonce } => {
                self.stream_ended(nonce, Err(result.err().unwrap_or(CallError::Transport)));
            }
            Purpose::CatchUp => self.caught_up(p, only!(Teach)),
            Purpose::Bind => self.bind_done(p, only!(Bind)),
            Purpose::Ping => self.pinged(p, only!(GetPending)),
            Purpose::Poll => {
                if let Ok(reply) = only!(GetPending) {
                    for tx in reply.txs.iter().take(pending::MAX_PENDING) {
                        self.intake(tx);
                    }
                }
            }
            Purpose::Cancel { nonce } => self.cancelled(p, nonce, only!(Cancel)),
            Purpose::Vote { id } => self.vote_done(p, id, only!(VoteTimeout)),
            Purpose::Sign => self.signed(p, call_id, result),
            Purpose::Repair => self.repair_reply(p, call_id, result),
            Purpose::Probe { nonce } => self.probed(p, nonce, only!(GetSignatures)),
            Purpose::Census { about, nonce } => self.census_reply(p, &about, nonce, call_id, result),
            Purpose::Refused { nonce } => self.refused_further(p, nonce, call_id, only!(GetSignatures)),
            Purpose::Above => self.above_reply(p, only!(GetDiffs)),
            Purpose::Below => self.below_reply(p, only!(GetDiffs)),
            Purpose::Held => self.held_reply(p, only!(GetDiffs)),
        }
    }

    /// Everything that is due.
    fn run(&mut self) {
        self.wake_ms = None;
        if self.over.is_some() {
            return;
        }
        self.retry_staged();
        self.expire();
        self.run_doubts();
        if self.corrupt.is_none() {
            self.run_timeouts();
            self.run_listening();
            self.run_repairs();
            self.pick_all();
            self.run_checkpoint();
        }
        self.run_closing();
    }

    /// Makes the step durable and returns its effects. What a failed commit concerns is held back until one succeeds.
    fn finish_step(&mut self) -> Vec<Effect> {
        // Cursors and counts wait for other rows: a lost cursor costs a longer tail. What hosts gave and still hold is
        // written without a sync; what a call of this step rests on is synced first.
        if self.staged.is_none() && (self.ledger.is_dirty() || self.urgent) {
            self.note_members();
            match self.ledger.commit(&BTreeMap::new(), self.urgent) {
                Ok(()) => self.urgent = false,
                Err(error) => self.storage_failed(&error),
            }
        }
        let mut effects = std::mem::take(&mut self.held);
        effects.append(&mut self.out);
        if self.ledger.failed {
            let (hold, go): (Vec<_>, Vec<_>) = effects.into_iter().partition(|effect| {
                matches!(
                    effect,
                    Effect::Call { .. } | Effect::OperatorDone { .. } | Effect::FlagChanged { .. }
                )
            });
            self.held = hold;
            // A store that failed takes nothing until the process starts again; what is held is bounded.
            self.held.truncate(MAX_HELD);
            effects = go;
        }
        if self.over.is_none()
            && let Some(mono_ms) = self.next_wake()
        {
            effects.push(Effect::WakeAt { mono_ms });
        }
        effects
    }

    fn next_wake(&self) -> Option<u64> {
        let retry = self.staged.as_ref().map(|staged| staged.retry_at_ms);
        let failed = self.ledger.failed.then(|| self.now.mono_ms.saturating_add(1_000));
        let settle = (self.now.mono_ms < self.settle_until_ms).then_some(self.settle_until_ms);
        let work = (self.corrupt.is_none())
            .then(|| {
                let flush = self.flush_at().filter(|_| self.may_flush());
                [self.timeouts_at(), self.listening_at(), self.repairs_at(), flush]
            })
            .into_iter()
            .flatten()
            .flatten();
        // A wish that has passed is one for the next moment.
        let soonest = self.now.mono_ms.saturating_add(1);
        [retry, failed, settle, self.wake_ms, self.expire_at(), self.doubts_at(), self.closing_at()]
            .into_iter()
            .flatten()
            .chain(work)
            .map(|at| at.max(soonest))
            .min()
    }

    fn wake_at(&mut self, at: Option<u64>) {
        if let Some(at) = at {
            self.wake_ms = Some(self.wake_ms.map_or(at, |old| old.min(at)));
        }
    }

    /// Calls a host. The effect leaves after the step is durable.
    fn call(
        &mut self,
        participant: &Address,
        call: HostCall,
        timeout_ms: u64,
        lane: Lane,
        purpose: Purpose,
    ) -> CallId {
        let call_id = self.next_call;
        self.next_call = call_id.wrapping_add(1);
        if purpose == Purpose::Repair {
            self.note_reset(participant, matches!(call, HostCall::ResetSession(_)));
        }
        if matches!(purpose, Purpose::Infer { .. }) && self.flagged(participant) {
            // Never reached: the counter would show it.
            if let Some(member) = self.member(participant) {
                member.counters.starts_while_flagged += 1;
                member.dirty = true;
            }
        }
        self.calls.insert(call_id, (*participant, purpose));
        self.emit(Effect::Call { call_id, participant: *participant, call, timeout_ms, lane });
        call_id
    }

    fn forget_call(&mut self, call_id: CallId) {
        self.calls.remove(&call_id);
    }

    fn log(
        &mut self,
        stage: &'static str,
        alarm: bool,
        participant: Option<Address>,
        fields: Vec<(&'static str, String)>,
    ) {
        self.emit(Effect::Log(LogLine { stage, alarm, participant, fields }));
    }

    fn metric_count(&mut self, name: &'static str, participant: Option<Address>, add: u64) {
        self.emit(Effect::Metric(Metric::Count { name, participant, add }));
    }

    fn gauge(&mut self, name: &'static str, participant: Option<Address>, value: u64) {
        self.emit(Effect::Metric(Metric::Gauge { name, participant, value }));
    }

    /// The settings of the repairs, as the pure machine takes them.
    fn repair_config(&self) -> RepairConfig {
        RepairConfig {
            give_up_ms: self.cfg.give_up_ms,
            give_up_floor_ms: self.cfg.give_up_floor_ms,
            allow_reset: self.cfg.allow_reset,
            chunk_diffs: u32::try_from(self.cfg.chunk_diffs).unwrap_or(u32::MAX),
            ..RepairConfig::default()
        }
    }
}
