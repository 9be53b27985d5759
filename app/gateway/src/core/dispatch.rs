//! Starts that are sent: the Infer, its stream, and what happens when it fails.

use holdfast_escrow::session::{InferenceStatus, KIND_CANCELLED, Tx, TxKey};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use super::api::{CallError, CallId, ClientEvent, Effect, HostCall, Lane, RequestError, RequestId};
use super::members::{Bound, Shown, Then};
use super::queue::{Asking, Refused};
use super::{GatewayCore, Purpose};

/// A Start that was sent, until its stream ends.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub(super) participant: Address,
    pub(super) asking: Option<Asking>,
    pub(super) body: Vec<u8>,
    pub(super) label: String,
    pub(super) call: Option<CallId>,
    pub(super) deadline_ms: u64,
    pub(super) resent: bool,
    pub(super) receipt: bool,
    pub(super) first_token: bool,
    pub(super) text: Sha256,
    pub(super) heard_ms: u64,
    pub(super) cancel: Option<&'static str>,
    pub(super) cancel_tries: u8,
    pub(super) cancel_call: Option<CallId>,
    pub(super) cancel_at_ms: Option<u64>,
    pub(super) enough: bool,
    pub(super) refused: Refused,
}

impl GatewayCore {
    pub(super) fn tell(&mut self, request_id: RequestId, event: ClientEvent) {
        self.emit(Effect::ToClient { request_id, event });
    }

    /// The Start is durable: tell the client and send it.
    pub(super) fn start_flight(&mut self, nonce: u64, mut asking: Asking) {
        let slot = self.terms.executor_slot(nonce);
        let Some(executor) = self.terms.executor_of(nonce) else { return };
        asking.excluded.insert(executor);
        let gone = asking.gone;
        let refused = asking.refused.take();
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
            refused,
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

    pub(super) fn has_receipt(&self, nonce: u64) -> bool {
        self.pending.has(&holdfast_escrow::session::TxKey::Confirm(nonce))
            || self.state.record(nonce).is_some_and(|record| record.confirmed_at > 0)
    }

    pub(super) fn finished(&mut self, nonce: u64, finished: pb::InferFinished) {
        let said = match Tx::from_bytes(&finished.tx) {
            Ok(Tx::FinishInference { id, response_hash, .. }) if id == nonce => response_hash,
            _ => {
                // Without a signed finish the answer is not known to be whole: as good as a stream that breaks.
                let Some(participant) = self.flights.get(&nonce).map(|flight| flight.participant) else {
                    return;
                };
                self.blame(&participant, &CallError::Transport);
                return self.flight_failed(nonce, CallError::Transport);
            }
        };
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
        if !(taken || self.finish_known(nonce, &finished.tx)) || said != text {
            let fields = vec![("nonce", nonce.to_string()), ("taken", taken.to_string())];
            self.log("escrow_finish_doubtful", true, Some(flight.participant), fields);
        }
        if let Some(asking) = flight.asking {
            let usage = finished.usage.unwrap_or_default();
            let event = if said == text {
                ClientEvent::Finished {
                    finish_reason: finished.finish_reason,
                    prompt_tokens: usage.prompt_tokens,
                    completion_tokens: usage.completion_tokens,
                }
            } else {
                // What the client has is not what the host signs for: a piece is lost, or another one.
                ClientEvent::Failed(RequestError::HostFailed { kind: super::KIND_STREAM_RESET })
            };
            self.tell(asking.request.request_id, event);
        }
    }

    /// Whether this finish came before, by a list of what is pending, and waits or stands in the log.
    fn finish_known(&self, nonce: u64, bytes: &[u8]) -> bool {
        let waits =
            self.pending.get(&TxKey::Finish(nonce)).is_some_and(|waiting| waiting.tx().to_bytes() == bytes);
        let stands = || match self.state.record(nonce) {
            Some(record) => record.status == InferenceStatus::Finished,
            // Folded: it has an end.
            None => nonce <= self.state.nonce(),
        };
        waits || stands()
    }

    pub(super) fn host_failed(&mut self, nonce: u64, failed: pb::InferFailed) {
        let Some(flight) = self.flights.get_mut(&nonce) else { return };
        let kind = failed.kind;
        let participant = flight.participant;
        if let Some(asking) = flight.asking.as_mut() {
            asking.kind = Some(kind);
        }
        let taken = self.intake(&failed.tx);
        if !taken && kind != i32::from(KIND_CANCELLED) {
            // A failure without a signed word that fits is as good as no answer.
            self.blame(&participant, &CallError::Transport);
        }
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
            // The time of the call is that of the client: whichever clock rings first, nobody is to blame (`expire`).
            Err(CallError::Timeout) if flight.deadline_ms <= self.now.mono_ms => {}
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
        let policy = matches!(&error, CallError::Host(e) if e.code() == pb::escrow_error::Code::Policy);
        // Only as long as every host so far said that it cannot serve the body.
        let mut refused = flight.refused.filter(|_| policy && !flight.receipt && !flight.first_token);
        if let Some(refused) = refused.as_mut() {
            refused.insert(nonce, flight.participant);
        }
        // Of what tripped a flag the votes decide: a host that differs must not sign itself free.
        let free = !self.flagged(&flight.participant) || self.own_forked(&flight.participant);
        if free && !flight.receipt && !flight.first_token && !self.pending.speaks_of(nonce) {
            self.take_back(nonce);
        }
        let Some(mut asking) = flight.asking else { return };
        asking.refused = refused;
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
            return self.end_asking(asking, error);
        }
        if let Some(error) = self.closed() {
            return self.end_asking(asking, error);
        }
        // It was there first.
        self.queue.push_front(asking);
    }
}
