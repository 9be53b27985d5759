//! What ends early: clients that leave, deadlines, silent streams. Our own doing blames nobody.

use std::collections::VecDeque;

use holdfast_escrow::session::{InferenceStatus, Tx, TxKey};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, ClientEvent, Effect, HostCall, Lane, RequestError, RequestId};
use super::members::Then;
use super::queue::Asking;
use super::store::{DUES, StartKind};
use super::{GatewayCore, Purpose};

/// Tries of one CancelInference.
const CANCEL_TRIES: u8 = 5;
/// Wait between two.
const CANCEL_WAIT_MS: u64 = 5_000;

/// A Start that no host took and that nobody wants any more.
#[derive(Debug, Clone)]
pub(super) struct Withdrawn {
    participant: Address,
    tries: u8,
    /// Next try; `None` while one is out.
    at_ms: Option<u64>,
}

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
            self.end_asking(asking, RequestError::Deadline);
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
        let due = |(nonce, start): (&u64, &Withdrawn)| start.at_ms.filter(|at| *at <= now).map(|_| *nonce);
        let withdrawn: Vec<u64> = self.withdrawn.iter().filter_map(due).collect();
        for nonce in withdrawn {
            self.pursue_withdrawn(nonce);
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
        queued.chain(flights).chain(self.withdrawn.values().filter_map(|start| start.at_ms)).min()
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

    /// Takes a Start back that its host is not known to have taken: the client is served elsewhere or gone, and nobody waits
    /// for it any more. A host that can be reached signs that it ends without tokens; of one that cannot, the votes decide.
    pub(super) fn take_back(&mut self, nonce: u64) {
        let Some(participant) = self.terms.executor_of(nonce) else { return };
        let Some(due) = self.dues.get_mut(&nonce) else { return };
        due.row.cancelled = true;
        self.urgent = true;
        let row = due.row.clone();
        self.ledger.set(&DUES, &(self.terms.escrow_id, nonce), &row);
        self.log("escrow_start_withdrawn", false, Some(participant), vec![("nonce", nonce.to_string())]);
        self.withdrawn.insert(nonce, Withdrawn { participant, tries: 0, at_ms: None });
        self.pursue_withdrawn(nonce);
    }

    /// Takes back every open record of a participant that no stream speaks of: what became of it is our fault. No votes on
    /// it are asked for or used.
    pub(super) fn take_all_back(&mut self, participant: &Address) {
        let ids: Vec<u64> = self
            .dues
            .keys()
            .filter(|id| self.terms.executor_of(**id) == Some(*participant))
            .copied()
            .collect();
        for id in ids {
            self.ripe.remove(&id);
            let Some(due) = self.dues.get_mut(&id) else { continue };
            due.round = None;
            if !due.row.cancelled && !self.flights.contains_key(&id) {
                self.take_back(id);
            }
        }
    }

    /// Our store is an older one: what we cancelled since then is not in it. Of what was open in it, hosts are believed that we
    /// did; each is asked once more before anybody votes on it.
    pub(super) fn distrust_cancellations(&mut self) {
        let escrow = self.terms.escrow_id;
        for (id, due) in &mut self.dues {
            let sent = due.row.kind == StartKind::Sent && !self.flights.contains_key(id);
            if sent && !due.row.cancelled {
                due.row.cancelled = true;
                self.ledger.set(&DUES, &(escrow, *id), &due.row);
            }
        }
    }

    /// What was cancelled, of everybody (after a restart) or of `only`, and of which no word stands in the log.
    pub(super) fn resume_withdrawn(&mut self, only: Option<&Address>) {
        let at_ms = Some(self.now.mono_ms);
        let pending =
            |id: u64| self.state.record(id).is_some_and(|record| record.status == InferenceStatus::Pending);
        let again: Vec<(u64, Withdrawn)> = self
            .dues
            .iter()
            .filter(|(id, due)| due.row.cancelled && pending(**id))
            .filter_map(|(id, _)| {
                let participant = self.terms.executor_of(*id)?;
                let wanted = only.is_none_or(|only| *only == participant);
                wanted.then_some((*id, Withdrawn { participant, tries: 0, at_ms }))
            })
            .collect();
        self.withdrawn.extend(again);
    }

    /// Before votes on what was taken back: its host is asked once more, or a voter's challenge would make it run what nobody
    /// waits for. Whether the round has to wait for that.
    pub(super) fn remind(&mut self, id: u64) -> bool {
        let until_ms = self.now.mono_ms.saturating_add(self.cfg.ask_ms);
        let Some(participant) = self.terms.executor_of(id) else { return false };
        let Some(due) = self.dues.get_mut(&id).filter(|due| due.row.cancelled) else { return false };
        due.reminded = !due.reminded;
        if !due.reminded {
            return false;
        }
        due.not_before_ms = until_ms;
        self.withdrawn.insert(id, Withdrawn { participant, tries: CANCEL_TRIES - 1, at_ms: None });
        self.pursue_withdrawn(id);
        true
    }

    /// The word of an executor came by a voter: what it took although it was taken back must not run on.
    pub(super) fn stop_challenged(&mut self, id: u64) {
        let cancelled = self.dues.get(&id).is_some_and(|due| due.row.cancelled);
        if cancelled && self.has_receipt(id) && !self.end_spoken(id) && !self.flights.contains_key(&id) {
            let Some(participant) = self.terms.executor_of(id) else { return };
            self.withdrawn.insert(id, Withdrawn { participant, tries: 0, at_ms: None });
            self.pursue_withdrawn(id);
        }
    }

    /// Whether the executor's word on the end of `id` waits for a diff.
    pub(super) fn end_spoken(&self, id: u64) -> bool {
        self.pending.has(&TxKey::Finish(id)) || self.pending.has(&TxKey::Error(id))
    }

    fn pursue_withdrawn(&mut self, nonce: u64) {
        let open = self.dues.contains_key(&nonce);
        let Some(start) = self.withdrawn.get_mut(&nonce) else { return };
        if !open || start.tries >= CANCEL_TRIES {
            // What is left goes through HandleTimeout.
            self.withdrawn.remove(&nonce);
            return;
        }
        start.tries += 1;
        start.at_ms = None;
        let participant = start.participant;
        if self.flagged(&participant) {
            // Only its repair teaches it.
            self.send_take_back(&participant, nonce);
        } else {
            self.bring(&participant, Then::TakeBack(nonce));
        }
    }

    /// The host holds the Start, or what it holds is not ours to change.
    pub(super) fn send_take_back(&mut self, participant: &Address, nonce: u64) {
        let call = HostCall::Cancel(pb::CancelInferenceRequest {
            escrow_id: self.terms.escrow_id,
            inference_id: nonce,
            cause: "taken_back".to_owned(),
        });
        self.call(participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Cancel { nonce });
    }

    /// The answer to a cancellation.
    pub(super) fn cancelled(
        &mut self,
        participant: &Address,
        nonce: u64,
        result: Result<pb::CancelInferenceResponse, CallError>,
    ) {
        let retry_at = self.now.mono_ms.saturating_add(CANCEL_WAIT_MS);
        if let Some(flight) = self.flights.get_mut(&nonce) {
            flight.cancel_call = None;
        }
        match result {
            Ok(reply) => {
                for tx in reply.pending.iter().take(super::pending::OFFERED_MAX) {
                    self.intake(tx);
                }
                let word = self.pending.get(&TxKey::Error(nonce)).map(|waiting| waiting.tx().clone());
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
        if let Some(due) = self.dues.get_mut(&nonce).filter(|due| due.reminded) {
            due.not_before_ms = self.now.mono_ms;
        }
        if self.end_spoken(nonce) {
            self.withdrawn.remove(&nonce);
        } else if let Some(start) = self.withdrawn.get_mut(&nonce) {
            start.at_ms = Some(retry_at);
        }
    }
}
