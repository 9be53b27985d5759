//! What ends early: clients that leave, deadlines, silent streams. Our own doing blames nobody.

use std::collections::VecDeque;

use holdfast_escrow::session::Tx;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, ClientEvent, Effect, HostCall, Lane, RequestError, RequestId};
use super::queue::Asking;
use super::store::DUES;
use super::{GatewayCore, Purpose};

/// Tries of one CancelInference.
const CANCEL_TRIES: u8 = 5;
impl GatewayCore {
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

    /// The client had all it wanted: its answer ends with the host's signed counts.
    pub(super) fn enough(&mut self, nonce: u64, prompt_tokens: u32, completion_tokens: u32) -> bool {
        let Some(flight) = self.flights.get(&nonce).filter(|flight| flight.enough) else { return false };
        let id = flight.asking.as_ref().map(|asking| asking.request.request_id);
        self.flights.remove(&nonce);
        if let Some(id) = id {
            let finish_reason = "stop".to_owned();
            self.tell(id, ClientEvent::Finished { finish_reason, prompt_tokens, completion_tokens });
        }
        true
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
    pub(super) fn pursue_cancel(&mut self, nonce: u64) {
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
}
