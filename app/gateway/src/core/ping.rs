//! Questions that cost nothing: pings of throttled participants, and what hosts have for the log.

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, HostCall, Lane};
use super::limiter::Verdict;
use super::{GatewayCore, Purpose};

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
