//! Questions that cost nothing: pings of throttled participants, and what hosts have for the log.

use std::collections::BTreeSet;

use holdfast_escrow::session::{InferenceStatus, TxKey};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, HostCall, Lane};
use super::limiter::Verdict;
use super::timeouts::Due;
use super::{GatewayCore, Purpose};

/// Wait before the first question for the end of an inference that no stream speaks of; each further one is twice as long.
const LISTEN_MS: u64 = 2_000;
/// The longest such wait.
const LISTEN_MAX_MS: u64 = 30_000;

impl GatewayCore {
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
    pub(super) fn ping_throttled(&mut self) {
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
            for tx in reply.txs.iter().take(super::pending::OFFERED_MAX) {
                self.intake(tx);
            }
        }
    }

    /// Asks for what the host has for the log: a finish reaches us without traffic.
    pub(super) fn poll_pending(&mut self, participant: &Address) {
        let call = HostCall::GetPending(pb::GetPendingRequest { escrow_id: self.terms.escrow_id });
        self.call(participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Poll);
    }
    /// Whether the end of `id` can reach us by a question only: its host took it, and no stream is open. So it is when a
    /// voter's challenge brought the receipt, a stream was lost, or the process is a new one.
    fn unheard(&self, id: u64, due: &Due) -> bool {
        let taken = || {
            self.pending.has(&TxKey::Confirm(id))
                || self.state.record(id).is_some_and(|record| record.status == InferenceStatus::Started)
        };
        !self.flights.contains_key(&id)
            && taken()
            && !self.end_spoken(id)
            && !self.exhausted(id, due)
            && !self.terms.executor_of(id).is_some_and(|executor| self.flagged(&executor))
    }

    /// Asks the hosts of what nobody listens to, more and more seldom, until the votes decide.
    pub(super) fn run_listening(&mut self) {
        let now = self.now.mono_ms;
        let ids: Vec<u64> =
            self.dues.iter().filter(|(id, due)| self.unheard(**id, due)).map(|(id, _)| *id).collect();
        let mut ask = BTreeSet::new();
        for id in ids {
            let Some(due) = self.dues.get_mut(&id) else { continue };
            let wait = match due.listen {
                None => LISTEN_MS,
                Some((at, wait)) if at <= now => {
                    ask.extend(self.terms.executor_of(id));
                    wait.saturating_mul(2).min(LISTEN_MAX_MS)
                }
                Some(_) => continue,
            };
            due.listen = Some((now.saturating_add(wait), wait));
        }
        for participant in ask {
            self.poll_pending(&participant);
        }
    }

    /// When [`GatewayCore::run_listening`] has something to ask.
    pub(super) fn listening_at(&self) -> Option<u64> {
        let unheard = self.dues.iter().filter(|(id, due)| self.unheard(**id, due));
        unheard.filter_map(|(_, due)| due.listen.map(|(at, _)| at)).min()
    }
}
