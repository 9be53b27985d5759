//! Requests: queue, dispatch, stream, and what happens when one of these fails.

use std::collections::{BTreeSet, VecDeque};

use holdfast_escrow::session::{KIND_CANCELLED, Phase, Tx};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use super::api::{
    CallError, CallId, ClientEvent, Effect, HostCall, Lane, RequestError, RequestId, UserRequest,
};
use super::limiter::Verdict;
use super::members::{Bound, Shown, Then};
use super::picker::{Look, Pick, Standing, pick};
use super::sequencer::{Step, StepError};
use super::store::{DUES, StartKind};
use super::{GatewayCore, Purpose};

/// Body of a ghost. It can be run: a voter may challenge it.
pub(super) const GHOST_BODY: &[u8] = br#"{"messages":[{"role":"user","content":"ping"}],"max_tokens":1}"#;
/// Limits of a ghost: tokens of prompt and answer.
pub(super) const GHOST_LIMITS: (u32, u32) = (64, 1);
/// Tries of one CancelInference.
const CANCEL_TRIES: u8 = 5;
/// Steps of the picker per event: every step spends a nonce, answers a request or ends the loop.
const MAX_STEPS: usize = 512;

/// A request on its way to a host.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    pub(super) request: UserRequest,
    /// Participants that had it.
    pub(super) excluded: BTreeSet<Address>,
    pub(super) dispatches: u32,
    /// Passes and ghosts that it caused.
    pub(super) burned: u64,
    pub(super) since_ms: u64,
    /// Kind of the last signed failure.
    pub(super) kind: Option<i32>,
    /// The client left while its Start was staged.
    pub(super) gone: bool,
}

/// A Start that was sent, until its stream ends.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub(super) participant: Address,
    pub(super) asking: Option<Asking>,
    body: Vec<u8>,
    label: String,
    call: Option<CallId>,
    deadline_ms: u64,
    resent: bool,
    pub(super) receipt: bool,
    first_token: bool,
    text: Sha256,
    pub(super) heard_ms: u64,
    cancel: Option<&'static str>,
    cancel_tries: u8,
    cancel_call: Option<CallId>,
    pub(super) cancel_at_ms: Option<u64>,
    enough: bool,
}

impl GatewayCore {
    /// A client asks.
    pub(super) fn request(&mut self, request: UserRequest) {
        let id = request.request_id;
        let known = self.queue.iter().any(|asking| asking.request.request_id == id)
            || self.flights.values().any(|f| f.asking.as_ref().is_some_and(|a| a.request.request_id == id));
        let price = self.terms.token_price;
        let tokens = u128::from(request.input_limit) + u128::from(request.output_limit);
        let reserve = tokens.saturating_mul(price);
        let free = self.state.balance().saturating_sub(self.terms.fee_per_nonce);
        let error = if known {
            Some(RequestError::Invalid("the request id is in use"))
        } else if request.body.is_empty() || request.input_limit == 0 || request.output_limit == 0 {
            Some(RequestError::Invalid("an empty body or a limit of zero tokens"))
        } else if request.body.len() > self.cfg.body_bytes {
            Some(RequestError::TooLarge { limit: self.cfg.body_bytes as u64 })
        } else if request.deadline_ms <= self.now.mono_ms {
            Some(RequestError::Deadline)
        } else if let Some(error) = self.closed() {
            Some(error)
        } else if self.queue.len() >= self.cfg.queue {
            Some(RequestError::QueueFull)
        } else if reserve > free {
            Some(RequestError::TooDear { reserve, balance: free })
        } else {
            None
        };
        if let Some(error) = error {
            return self.tell(id, ClientEvent::Failed(error));
        }
        self.queue.push_back(Asking {
            since_ms: self.now.mono_ms,
            request,
            excluded: BTreeSet::new(),
            dispatches: 0,
            burned: 0,
            kind: None,
            gone: false,
        });
    }

    /// Why no request is taken now, whoever sends it.
    pub(super) fn closed(&self) -> Option<RequestError> {
        if self.stopping {
            return Some(RequestError::Stopping);
        }
        if self.staged.is_some() || self.ledger.failed {
            return Some(RequestError::Storage);
        }
        if self.suspected() {
            return Some(RequestError::SelfSuspect);
        }
        let smallest = self.terms.token_price.saturating_mul(2).saturating_add(self.terms.fee_per_nonce);
        let over = self.meta.closing
            || self.meta.expired
            || self.state.phase() != Phase::Active
            || self.must_finalize()
            || self.state.balance() < smallest && self.state.reserved() == 0;
        over.then_some(RequestError::EscrowExhausted)
    }

    pub(super) fn tell(&mut self, request_id: RequestId, event: ClientEvent) {
        self.emit(Effect::ToClient { request_id, event });
    }

    /// Answers everyone who waits.
    pub(super) fn fail_queue(&mut self, error: RequestError) {
        for asking in std::mem::take(&mut self.queue) {
            self.tell(asking.request.request_id, ClientEvent::Failed(error.clone()));
        }
    }

    /// The client is gone, or has all that it wants (`enough`).
    pub(super) fn client_left(&mut self, id: RequestId, enough: bool) {
        self.queue.retain(|asking| asking.request.request_id != id);
        if let Some(staged) = self.staged.as_mut()
            && let Some((_, Some(asking))) = staged.start.as_mut()
            && asking.request.request_id == id
        {
            asking.gone = true;
        }
        let flight = self
            .flights
            .iter_mut()
            .find(|(_, f)| f.asking.as_ref().is_some_and(|asking| asking.request.request_id == id));
        if let Some((nonce, flight)) = flight {
            let nonce = *nonce;
            flight.enough = enough;
            if !enough {
                flight.asking = None;
            }
            self.cancel(nonce, "client_left");
        }
    }

    /// Runs the picker until it holds.
    pub(super) fn pick_all(&mut self) {
        for _ in 0..MAX_STEPS {
            if self.staged.is_some() || self.settling_in() || self.stopping || self.over.is_some() {
                return;
            }
            let Some(look) = self.look() else { return };
            match pick(&look, self.cfg.hold_ms) {
                Pick::Hold(until) => return self.wake_at(until),
                Pick::Pass => {
                    if !self.pass() {
                        return;
                    }
                }
                Pick::Refuse(error) => {
                    self.ping_throttled();
                    self.fail_queue(error);
                }
                Pick::Ghost(kind) => {
                    if !self.ghost(kind) {
                        return;
                    }
                }
                Pick::Ping(until) => {
                    if let Some(owner) = self.next_owner() {
                        self.ping(&owner);
                    }
                    return self.wake_at(Some(until));
                }
                Pick::Dispatch(index) => {
                    if !self.dispatch(index) {
                        return;
                    }
                }
            }
        }
        // More is to be done, but not in this event.
        self.wake_at(Some(self.now.mono_ms.saturating_add(1)));
    }

    pub(super) fn next_owner(&self) -> Option<Address> {
        self.terms.executor_of(self.state.nonce().saturating_add(1))
    }

    /// What the picker looks at; `None` when no diff can follow.
    fn look(&mut self) -> Option<Look> {
        self.end_hopeless();
        let queued = !self.queue.is_empty();
        let now = self.now.mono_ms;
        let flush_at_ms = self.flush_at();
        if !queued && (self.state.phase() != Phase::Active || self.must_finalize() || self.broke()) {
            return None;
        }
        let owner = self.next_owner()?;
        let member = self.members.get(&owner)?;
        let hold_until_ms = self.queue.front().map_or(now, |a| a.since_ms.saturating_add(self.cfg.hold_ms));
        let candidate = self.queue.iter().position(|asking| {
            let tokens = u128::from(asking.request.input_limit) + u128::from(asking.request.output_limit);
            let needed =
                tokens.saturating_mul(self.terms.token_price).saturating_add(self.terms.fee_per_nonce);
            !asking.excluded.contains(&owner) && needed <= self.state.balance()
        });
        Some(Look {
            queued,
            flush_due: flush_at_ms.is_some_and(|at| at <= now),
            flush_at_ms,
            refuse: self.closed().or_else(|| self.nobody()),
            standing: self.standing(&owner),
            limiter: member.limiter.verdict(now, self.cfg.ping_ms, self.cfg.hold_ms),
            candidate,
            hold_until_ms,
            live_full: self.state.live_len() >= self.terms.max_live,
            now_ms: now,
        })
    }

    /// When the oldest pending transaction or timeout is to be published without traffic.
    pub(super) fn flush_at(&self) -> Option<u64> {
        let ripe = self.ripe.values().map(|(_, since)| *since).min();
        let oldest = self.pending.oldest_ms().into_iter().chain(ripe).min();
        oldest.map(|since| since.saturating_add(self.cfg.flush_ms))
    }

    /// Whether a participant can be sent anything: not flagged, not excused, not open, not of other terms.
    pub(super) fn usable(&self, participant: &Address) -> bool {
        self.members.get(participant).is_some_and(|member| {
            !member.absent
                && member.bound != Bound::Differs
                && !member.limiter.is_open(self.now.mono_ms)
                && !self.flagged(participant)
        })
    }

    /// Row 2: no unflagged reachable participant. A participant whose ping is due or out is not unreachable yet.
    fn nobody(&self) -> Option<RequestError> {
        let now = self.now.mono_ms;
        let some = self.members.iter().any(|(participant, member)| {
            let open = matches!(
                member.limiter.verdict(now, self.cfg.ping_ms, self.cfg.hold_ms),
                Verdict::Failed | Verdict::Undecided
            );
            !open && !member.absent && member.bound != Bound::Differs && !self.flagged(participant)
        });
        (!some).then_some(RequestError::NoAvailableHost)
    }

    fn standing(&self, owner: &Address) -> Standing {
        use holdfast_escrow::repair::NonceUse;
        let absent = self.members.get(owner).is_some_and(|m| m.absent || m.bound == Bound::Differs);
        match self.nonce_use(owner) {
            _ if absent => Standing::Passed,
            NonceUse::Pass => Standing::Passed,
            NonceUse::Ghost => Standing::GaveUp,
            NonceUse::Free => Standing::Clear,
        }
    }

    /// Ends requests that nobody is left for: 2·N passes and ghosts, or every usable participant tried.
    fn end_hopeless(&mut self) {
        let budget = self.terms.group_size().saturating_mul(2);
        let usable: Vec<Address> = self.members.keys().filter(|p| self.usable(p)).copied().collect();
        let hopeless = |asking: &Asking| {
            asking.burned >= budget
                || !asking.excluded.is_empty() && usable.iter().all(|p| asking.excluded.contains(p))
        };
        let (gone, rest) = std::mem::take(&mut self.queue).into_iter().partition(hopeless);
        self.queue = rest;
        let gone: VecDeque<Asking> = gone;
        for asking in gone {
            let error = self.last_error(&asking);
            self.tell(asking.request.request_id, ClientEvent::Failed(error));
        }
    }

    fn last_error(&self, asking: &Asking) -> RequestError {
        match (asking.kind, asking.dispatches) {
            (Some(kind), _) => RequestError::HostFailed { kind },
            (None, 0) => RequestError::NoAvailableHost,
            (None, attempts) => RequestError::DispatchesFailed { attempts },
        }
    }

    /// The oldest request pays for a nonce that serves nobody.
    fn burn(&mut self) {
        if let Some(asking) = self.queue.front_mut() {
            asking.burned += 1;
        }
    }

    fn pass(&mut self) -> bool {
        let owner = self.next_owner();
        let counted = !self.queue.is_empty();
        match self.advance(Step::Pass) {
            Ok(_) => {
                if counted {
                    self.burn();
                    if let Some(member) = owner.and_then(|owner| self.members.get_mut(&owner)) {
                        member.counters.passes += 1;
                        member.dirty = true;
                    }
                }
                true
            }
            Err(StepError::Refused(error)) => {
                self.log("escrow_pass_refused", true, None, vec![("error", error.to_string())]);
                self.fail_queue(RequestError::EscrowExhausted);
                false
            }
            Err(StepError::Storage(_)) => false,
        }
    }

    fn ghost(&mut self, kind: StartKind) -> bool {
        let (input_limit, output_limit) = GHOST_LIMITS;
        let body = GHOST_BODY.to_vec();
        match self.advance(Step::Start { input_limit, output_limit, body, kind, asking: None }) {
            Ok(_) => {
                self.burn();
                true
            }
            // Without coins for a ghost the nonce is passed.
            Err(StepError::Refused(..)) => self.pass(),
            Err(StepError::Storage(_)) => false,
        }
    }

    pub(super) fn count_ghost(&mut self, nonce: u64, kind: StartKind) {
        let Some(owner) = self.terms.executor_of(nonce) else { return };
        let repairing = self.repairing(&owner);
        if let Some(member) = self.member(&owner) {
            member.counters.ghosts += 1;
            member.counters.accountable_ghosts_during_repair += u64::from(repairing);
            member.dirty = true;
        }
        self.metric_count("gateway_ghosts_total", Some(owner), 1);
        self.log(
            "escrow_ghost",
            false,
            Some(owner),
            vec![("nonce", nonce.to_string()), ("kind", format!("{kind:?}"))],
        );
    }

    fn dispatch(&mut self, index: usize) -> bool {
        let Some(mut asking) = self.queue.remove(index) else { return false };
        asking.dispatches += 1;
        let body = asking.request.body.clone();
        let (input_limit, output_limit) = (asking.request.input_limit, asking.request.output_limit);
        let (kind, id) = (StartKind::Sent, asking.request.request_id);
        let step = Step::Start { input_limit, output_limit, body, kind, asking: Some(asking) };
        match self.advance(step) {
            Ok(_) => true,
            Err(StepError::Refused(error)) => {
                self.log("escrow_start_refused", true, None, vec![("error", error.to_string())]);
                self.tell(id, ClientEvent::Failed(RequestError::EscrowExhausted));
                true
            }
            Err(StepError::Storage(given_back)) => {
                if given_back.is_some() {
                    self.tell(id, ClientEvent::Failed(RequestError::Storage));
                }
                false
            }
        }
    }

    /// The Start is durable: tell the client and send it.
    pub(super) fn start_flight(&mut self, nonce: u64, mut asking: Asking) {
        let slot = self.terms.executor_slot(nonce);
        let Some(executor) = self.terms.executor_of(nonce) else { return };
        asking.excluded.insert(executor);
        let gone = asking.gone;
        if !gone {
            let event = ClientEvent::Dispatched { nonce, executor, slot };
            self.tell(asking.request.request_id, event);
        }
        let flight = Flight {
            participant: executor,
            body: asking.request.body.clone(),
            label: asking.request.label.clone(),
            deadline_ms: asking.request.deadline_ms,
            asking: (!gone).then_some(asking),
            call: None,
            resent: false,
            receipt: false,
            first_token: false,
            text: Sha256::new(),
            heard_ms: self.now.mono_ms,
            cancel: gone.then_some("client_left"),
            cancel_tries: 0,
            cancel_call: None,
            cancel_at_ms: None,
            enough: false,
        };
        self.flights.insert(nonce, flight);
        if self.members.get(&executor).is_some_and(|member| member.bound == Bound::Unknown) {
            self.bind(&executor);
        }
        self.bring(&executor, Then::Infer(nonce));
    }

    /// Sends the Infer of `nonce` with the tail.
    pub(super) fn send_infer(&mut self, participant: &Address, nonce: u64, diffs: Vec<Vec<u8>>) {
        let flagged = self.flagged(participant);
        let now = self.now.mono_ms;
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        if flagged {
            // Flagged between the Start and its sending: it is not sent, and the next one is not charged for it.
            return self.flight_failed(nonce, CallError::Aborted);
        }
        let left = flight.deadline_ms.saturating_sub(now).max(1);
        let call = HostCall::Infer(pb::InferRequest {
            escrow_id: self.terms.escrow_id,
            target_nonce: nonce,
            diffs,
            body: flight.body.clone(),
            deadline_ms: left,
            request_id: flight.label.clone(),
        });
        flight.heard_ms = now;
        // After the deadline the stream stays open for a while: the executor's word on the cancellation comes through it.
        let timeout_ms = left.saturating_add(self.cfg.ask_ms);
        let id = self.call(participant, call, timeout_ms, Lane::User, Purpose::Infer { nonce });
        if let Some(flight) = self.flights.get_mut(&nonce) {
            flight.call = Some(id);
        }
    }

    /// A piece of a stream. Texts take the short way: they change nothing but the client.
    pub(super) fn stream_item(&mut self, nonce: u64, event: pb::infer_response::Event) {
        use pb::infer_response::Event as Item;
        let now = self.now.mono_ms;
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        flight.heard_ms = now;
        let participant = flight.participant;
        match event {
            Item::Delta(delta) => {
                flight.first_token = true;
                flight.text.update(delta.text.as_bytes());
                self.alive_ms = Some(now);
                if let Some(asking) = flight.asking.as_ref().filter(|_| !flight.enough) {
                    let id = asking.request.request_id;
                    let pb::Delta { index, text, token_ids } = delta;
                    self.tell(id, ClientEvent::Delta { index, text, token_ids });
                }
            }
            Item::Beat(_) => {}
            Item::Applied(applied) => match self.absorb(&participant, &applied) {
                Shown::Ours(_) => {}
                Shown::Mismatch(_) => self.flight_failed(nonce, CallError::Aborted),
                Shown::Above(_) | Shown::Garbage => {
                    self.blame(&participant, &CallError::Transport);
                    self.flight_failed(nonce, CallError::Aborted);
                }
            },
            Item::Receipt(receipt) => {
                let ours =
                    matches!(Tx::from_bytes(&receipt.tx), Ok(Tx::ConfirmStart { id, .. }) if id == nonce);
                let taken = ours && (self.intake(&receipt.tx) || self.has_receipt(nonce));
                if let Some(flight) = self.flights.get_mut(&nonce) {
                    flight.receipt |= taken;
                }
                self.pursue_cancel(nonce);
            }
            Item::Finished(finished) => self.finished(nonce, finished),
            Item::Failed(failed) => self.host_failed(nonce, failed),
        }
    }

    fn has_receipt(&self, nonce: u64) -> bool {
        self.pending.has(&holdfast_escrow::session::TxKey::Confirm(nonce))
            || self.state.record(nonce).is_some_and(|record| record.confirmed_at > 0)
    }

    fn finished(&mut self, nonce: u64, finished: pb::InferFinished) {
        let Some(flight) = self.flights.remove(&nonce) else { return };
        let taken = self.intake(&finished.tx);
        if let Some(call) = flight.call {
            self.forget_call(call);
        }
        if let Some(member) = self.member(&flight.participant) {
            member.limiter.served();
            member.dirty = true;
        }
        self.alive_ms = Some(self.now.mono_ms);
        let text: [u8; 32] = flight.text.finalize().into();
        let said = match Tx::from_bytes(&finished.tx) {
            Ok(Tx::FinishInference { id, response_hash, .. }) if id == nonce => Some(response_hash),
            _ => None,
        };
        if !taken || said != Some(text) {
            let fields = vec![("nonce", nonce.to_string()), ("taken", taken.to_string())];
            self.log("escrow_finish_doubtful", true, Some(flight.participant), fields);
        }
        if let Some(asking) = flight.asking {
            let usage = finished.usage.unwrap_or_default();
            let event = if said.is_some() {
                ClientEvent::Finished {
                    finish_reason: finished.finish_reason,
                    prompt_tokens: usage.prompt_tokens,
                    completion_tokens: usage.completion_tokens,
                }
            } else {
                // Without a signed finish the answer is not known to be whole.
                ClientEvent::Failed(RequestError::HostFailed { kind: 0 })
            };
            self.tell(asking.request.request_id, event);
        }
    }

    fn host_failed(&mut self, nonce: u64, failed: pb::InferFailed) {
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        let kind = failed.kind;
        let participant = flight.participant;
        if let Some(asking) = flight.asking.as_mut() {
            asking.kind = Some(kind);
        }
        self.intake(&failed.tx);
        if let Ok(Tx::ReportError { id, kind: KIND_CANCELLED, input_tokens, output_tokens, .. }) =
            Tx::from_bytes(&failed.tx)
            && id == nonce
            && self.enough(nonce, input_tokens, output_tokens)
        {
            return;
        }
        let signed = !failed.tx.is_empty();
        self.log(
            "escrow_inference_failed",
            false,
            Some(participant),
            vec![("nonce", nonce.to_string()), ("kind", kind.to_string()), ("signed", signed.to_string())],
        );
        self.flight_failed(nonce, CallError::Aborted);
    }

    /// The client had all it wanted: its answer ends with the host's signed counts.
    fn enough(&mut self, nonce: u64, prompt_tokens: u32, completion_tokens: u32) -> bool {
        let Some(flight) = self.flights.get(&nonce).filter(|flight| flight.enough) else { return false };
        let id = flight.asking.as_ref().map(|asking| asking.request.request_id);
        self.flights.remove(&nonce);
        if let Some(id) = id {
            let finish_reason = "stop".to_owned();
            self.tell(id, ClientEvent::Finished { finish_reason, prompt_tokens, completion_tokens });
        }
        true
    }

    /// A stream ended.
    pub(super) fn stream_ended(&mut self, nonce: u64, result: Result<(), CallError>) {
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        flight.call = None;
        let participant = flight.participant;
        let resend = !flight.resent && !flight.receipt && !flight.first_token;
        let cancelled = flight.cancel.is_some() || flight.deadline_ms <= self.now.mono_ms;
        use pb::escrow_error::Code;
        match result {
            // Our own cancellation or deadline is never the host's fault.
            Ok(()) | Err(CallError::Timeout | CallError::Transport) if cancelled => {
                self.flight_failed(nonce, CallError::Aborted);
            }
            Ok(()) => {
                // A stream that ends without Finished or Failed is broken.
                self.blame(&participant, &CallError::Transport);
                self.flight_failed(nonce, CallError::Transport);
            }
            Err(CallError::Host(error)) => match error.code() {
                Code::Behind if resend => {
                    flight.resent = true;
                    self.set_cursor(&participant, error.have_nonce.min(self.state.nonce()));
                    self.bring(&participant, Then::Infer(nonce));
                }
                Code::SessionNotFound if resend => {
                    flight.resent = true;
                    self.set_cursor(&participant, 0);
                    if let Some(member) = self.member(&participant) {
                        member.waiting.push(Then::Infer(nonce));
                    }
                    self.bind(&participant);
                }
                _ => {
                    self.host_error(&participant, &error);
                    self.flight_failed(nonce, CallError::Host(error));
                }
            },
            Err(error) => {
                self.blame(&participant, &error);
                self.flight_failed(nonce, error);
            }
        }
    }

    /// The dispatch came to nothing. Its nonce goes through HandleTimeout by itself: the due row stands since the Start.
    pub(super) fn flight_failed(&mut self, nonce: u64, error: CallError) {
        let Some(flight) = self.flights.remove(&nonce) else { return };
        if let Some(call) = flight.call {
            self.forget_call(call);
            self.emit(Effect::AbortCall { call_id: call });
        }
        self.late_end(&flight.participant, nonce);
        if flight.receipt {
            self.poll_pending(&flight.participant);
        }
        let Some(asking) = flight.asking else { return };
        let id = asking.request.request_id;
        if flight.enough {
            let finish_reason = "stop".to_owned();
            return self
                .tell(id, ClientEvent::Finished { finish_reason, prompt_tokens: 0, completion_tokens: 0 });
        }
        if flight.first_token {
            let kind = asking.kind.unwrap_or(super::KIND_STREAM_RESET);
            return self.tell(id, ClientEvent::Failed(RequestError::HostFailed { kind }));
        }
        let too_large = matches!(&error, CallError::Host(e) if e.code() == pb::escrow_error::Code::TooLarge);
        self.log(
            "escrow_dispatch_failed",
            false,
            Some(flight.participant),
            vec![
                ("nonce", nonce.to_string()),
                ("too_large", too_large.to_string()),
                ("dispatches", asking.dispatches.to_string()),
            ],
        );
        if asking.dispatches >= self.cfg.dispatches {
            let error = self.last_error(&asking);
            return self.tell(id, ClientEvent::Failed(error));
        }
        if let Some(error) = self.closed() {
            return self.tell(id, ClientEvent::Failed(error));
        }
        // It was there first.
        self.queue.push_front(asking);
    }

    /// Ends what is too late: requests in the queue, flights past their deadline or silent for too long.
    pub(super) fn expire(&mut self) {
        let now = self.now.mono_ms;
        let (late, rest) =
            std::mem::take(&mut self.queue).into_iter().partition(|a: &Asking| a.request.deadline_ms <= now);
        self.queue = rest;
        let late: VecDeque<Asking> = late;
        for asking in late {
            self.tell(asking.request.request_id, ClientEvent::Failed(RequestError::Deadline));
        }
        if let Some(staged) = self.staged.as_mut()
            && let Some((_, Some(asking))) = staged.start.as_mut()
            && asking.request.deadline_ms <= now
            && !asking.gone
        {
            asking.gone = true;
            let id = asking.request.request_id;
            self.tell(id, ClientEvent::Failed(RequestError::Deadline));
        }
        let silent = self.cfg.beat_ms;
        let mut past = Vec::new();
        let mut lost = Vec::new();
        let mut again = Vec::new();
        for (nonce, flight) in &self.flights {
            if flight.call.is_some() && now >= flight.heard_ms.saturating_add(silent) {
                lost.push(*nonce);
            } else if flight.deadline_ms <= now && flight.asking.is_some() {
                past.push(*nonce);
            } else if flight.cancel_at_ms.is_some_and(|at| at <= now) {
                again.push(*nonce);
            }
        }
        for nonce in past {
            let id = self.flights.get_mut(&nonce).and_then(|flight| flight.asking.take());
            if let Some(asking) = id {
                self.tell(asking.request.request_id, ClientEvent::Failed(RequestError::Deadline));
            }
            self.cancel(nonce, "deadline");
        }
        for nonce in lost {
            let flight = self.flights.get(&nonce).map(|flight| (flight.participant, flight.cancel.is_some()));
            if let Some((participant, cancelled)) = flight {
                // What we cancelled may end without a word: our doing.
                if !cancelled {
                    self.blame(&participant, &CallError::Timeout);
                }
                self.flight_failed(nonce, CallError::Timeout);
            }
        }
        for nonce in again {
            self.pursue_cancel(nonce);
        }
    }

    /// Next time at which [`GatewayCore::expire`] has something to do.
    pub(super) fn expire_at(&self) -> Option<u64> {
        let queued = self.queue.iter().map(|asking| asking.request.deadline_ms);
        let flights = self.flights.values().flat_map(|flight| {
            let silent = flight.call.map(|_| flight.heard_ms.saturating_add(self.cfg.beat_ms));
            let deadline = flight.asking.as_ref().map(|_| flight.deadline_ms);
            silent.into_iter().chain(deadline).chain(flight.cancel_at_ms)
        });
        queued.chain(flights).min()
    }

    /// Stops an inference. It blames nobody; the executor's signed word ends the record.
    pub(super) fn cancel(&mut self, nonce: u64, cause: &'static str) {
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        if flight.cancel.is_none() {
            flight.cancel = Some(cause);
        }
        self.pursue_cancel(nonce);
    }

    /// Sends the cancellation once the host has taken the work: earlier it would not know the inference, and a Start
    /// that is sent and never run would cost it a miss.
    fn pursue_cancel(&mut self, nonce: u64) {
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        let Some(cause) = flight.cancel else { return };
        flight.cancel_at_ms = None;
        if !flight.receipt || flight.cancel_call.is_some() || flight.cancel_tries >= CANCEL_TRIES {
            return;
        }
        flight.cancel_tries += 1;
        let participant = flight.participant;
        if let Some(due) = self.dues.get_mut(&nonce)
            && !due.row.cancelled
        {
            due.row.cancelled = true;
            self.urgent = true;
            let row = due.row.clone();
            self.ledger.set(&DUES, &(self.terms.escrow_id, nonce), &row);
        }
        let call = HostCall::Cancel(pb::CancelInferenceRequest {
            escrow_id: self.terms.escrow_id,
            inference_id: nonce,
            cause: cause.to_owned(),
        });
        let id = self.call(&participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Cancel { nonce });
        if let Some(flight) = self.flights.get_mut(&nonce) {
            flight.cancel_call = Some(id);
        }
    }

    /// The answer to a cancellation.
    pub(super) fn cancelled(
        &mut self,
        participant: &Address,
        nonce: u64,
        result: Result<pb::CancelInferenceResponse, CallError>,
    ) {
        let retry_at = self.now.mono_ms.saturating_add(5_000);
        if let Some(flight) = self.flights.get_mut(&nonce) {
            flight.cancel_call = None;
        }
        match result {
            Ok(reply) => {
                for tx in reply.pending.iter().take(super::pending::MAX_PENDING) {
                    self.intake(tx);
                }
                let word = self.pending.get(&holdfast_escrow::session::TxKey::Error(nonce)).cloned();
                if let Some(Tx::ReportError { input_tokens, output_tokens, .. }) = word {
                    // The executor's word ends the record; its stream has nothing more to say.
                    let call = self.flights.get(&nonce).and_then(|flight| flight.call);
                    if !self.enough(nonce, input_tokens, output_tokens) {
                        self.flights.remove(&nonce);
                    }
                    if let Some(call) = call {
                        self.forget_call(call);
                        self.emit(Effect::AbortCall { call_id: call });
                    }
                }
            }
            Err(error) => {
                if let CallError::Host(error) = &error {
                    self.host_error(participant, error);
                }
                if let Some(flight) = self.flights.get_mut(&nonce) {
                    flight.cancel_at_ms = Some(retry_at);
                }
            }
        }
    }

    /// Pings a participant whose limiter is open; costs nothing.
    pub(super) fn ping(&mut self, participant: &Address) {
        let now = self.now.mono_ms;
        if let Some(member) = self.member(participant) {
            member.limiter.pinged(now);
        }
        let call = HostCall::GetPending(pb::GetPendingRequest { escrow_id: self.terms.escrow_id });
        self.call(participant, call, self.cfg.ask_ms.min(self.cfg.ping_ms), Lane::User, Purpose::Ping);
    }

    /// Nobody is usable while requests come: ask those that are only throttled, so that the pool heals by itself.
    fn ping_throttled(&mut self) {
        let now = self.now.mono_ms;
        let due: Vec<Address> = self
            .members
            .iter()
            .filter(|(participant, member)| {
                !self.flagged(participant)
                    && member.limiter.verdict(now, self.cfg.ping_ms, self.cfg.hold_ms) == Verdict::PingDue
            })
            .map(|(participant, _)| *participant)
            .collect();
        for participant in due {
            self.ping(&participant);
        }
    }

    /// A ping came back, well or not.
    pub(super) fn pinged(
        &mut self,
        participant: &Address,
        result: Result<pb::GetPendingResponse, CallError>,
    ) {
        // A typed answer, as that it knows no session, is an answer.
        let served = matches!(&result, Ok(_) | Err(CallError::Host(_)))
            && !matches!(&result, Err(CallError::Host(e))
                if matches!(e.code(), pb::escrow_error::Code::Unavailable | pb::escrow_error::Code::Busy | pb::escrow_error::Code::Unspecified));
        if matches!(&result, Err(CallError::Aborted)) {
            return;
        }
        if served {
            self.alive_ms = Some(self.now.mono_ms);
        }
        if let Some(member) = self.member(participant) {
            member.limiter.ping_done(served);
            member.dirty = true;
        }
        if let Ok(reply) = result {
            for tx in reply.txs.iter().take(super::pending::MAX_PENDING) {
                self.intake(tx);
            }
        }
    }

    /// Asks for what the host has for the log: a finish reaches us without traffic.
    pub(super) fn poll_pending(&mut self, participant: &Address) {
        let call = HostCall::GetPending(pb::GetPendingRequest { escrow_id: self.terms.escrow_id });
        self.call(participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Poll);
    }
}
