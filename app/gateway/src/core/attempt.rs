//! The calls of one repair attempt, and how their replies are judged: nothing but a fresh signature over our root
//! clears, and nothing but signed words counts against a host.

use holdfast_escrow::divergence::{DivergenceKeeper, Evidence, EvidenceKind, Subject};
use holdfast_escrow::repair::{
    Answer, Attempt, Bisect, Doubt, Failure, OurPoint, ProofReply, ProofVerdict, RepairEvent, verify_proof,
};
use holdfast_escrow::session::Diff;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, CallId, HostCall, Lane};
use super::repair::{Brought, Search, evidence_of};
use super::{GatewayCore, Purpose};

impl GatewayCore {
    pub(super) fn challenge(&self, participant: &Address) -> Option<pb::Challenge> {
        let running = self.workers.get(participant)?.running.as_ref()?;
        Some(pb::Challenge { generation: running.generation, challenge: running.challenge.to_vec() })
    }

    pub(super) fn repair_call(&mut self, participant: &Address, call: HostCall, timeout_ms: u64) {
        let id = self.call(participant, call, timeout_ms, Lane::Free, Purpose::Repair);
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.call = Some(id);
        }
    }

    /// Sends the next chunk, or says that the attempt's budget is used up.
    pub(super) fn teach(&mut self, participant: &Address, max_diffs: u32) -> Option<RepairEvent> {
        let cursor = self.members.get(participant).map_or(0, |member| member.cursor);
        let running = self.workers.get(participant)?.running.as_ref()?;
        let target = running.target;
        let count = usize::try_from(max_diffs).unwrap_or(1).clamp(1, self.cfg.chunk_diffs.max(1));
        let Ok(diffs) = self.ledger.diffs(cursor.saturating_add(1), target, count, self.cfg.chunk_bytes)
        else {
            return Some(RepairEvent::StoreUnreadable);
        };
        let bytes: u64 = diffs.iter().map(|diff| diff.len() as u64).sum();
        let left = self.cfg.attempt_ms.saturating_sub(self.now.mono_ms.saturating_sub(running.began_ms));
        if running.bytes.saturating_add(bytes) > self.cfg.attempt_bytes || left == 0 {
            return Some(RepairEvent::BudgetUsed);
        }
        let last = cursor.saturating_add(diffs.len() as u64) >= target;
        let challenge = if last { self.challenge(participant) } else { None };
        let timeout_ms = self.cfg.teach_ms.min(left);
        if let Some(running) = self.workers.get_mut(participant).and_then(|worker| worker.running.as_mut()) {
            running.bytes = running.bytes.saturating_add(bytes);
        }
        let request = pb::TeachRequest { escrow_id: self.terms.escrow_id, diffs, challenge };
        self.repair_call(participant, HostCall::Teach(request), timeout_ms);
        None
    }

    /// A call of an attempt ended.
    pub(super) fn repair_reply(
        &mut self,
        participant: &Address,
        call_id: CallId,
        result: Result<super::api::HostReply, CallError>,
    ) {
        use super::api::HostReply;
        let Some(worker) = self.workers.get_mut(participant).filter(|worker| worker.call == Some(call_id))
        else {
            return;
        };
        worker.call = None;
        let (event, evidence) = match result {
            Ok(HostReply::Bind(_)) => (RepairEvent::Bound, None),
            Ok(HostReply::ResetSession(_)) => (RepairEvent::ResetDone, None),
            Ok(HostReply::Teach(reply)) => self.taught(participant, &reply.applied.unwrap_or_default()),
            Ok(HostReply::GetSignatures(reply)) => self.proof_shown(participant, &reply),
            Ok(_) => (RepairEvent::Failed(Failure::Malformed), None),
            Err(error) => match self.repair_error(participant, error) {
                Some(judged) => judged,
                // Another question comes first.
                None => return,
            },
        };
        self.repair_event(participant, event, Brought { evidence });
    }

    /// A refusal shows that the next diff leads it elsewhere; whether it is elsewhere already, its signature one nonce
    /// below tells. Only then is it forked, and a reset of use.
    pub(super) fn look_below(&mut self, participant: &Address, refused: u64, evidence: Evidence) {
        let escrow_id = self.terms.escrow_id;
        let nonce = refused.saturating_sub(1);
        if nonce == 0 {
            let brought = Brought { evidence: Some(evidence) };
            return self.repair_event(participant, RepairEvent::ChunkRefused { nonce: refused }, brought);
        }
        let request = pb::GetSignaturesRequest { escrow_id, nonce, challenge: None };
        let purpose = Purpose::Refused { nonce: refused };
        let call = HostCall::GetSignatures(request);
        let id = self.call(participant, call, self.cfg.ask_ms, Lane::Free, purpose);
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.call = Some(id);
            worker.refused = Some(evidence);
        }
    }

    /// The answer to [`GatewayCore::look_below`].
    pub(super) fn refused_further(
        &mut self,
        participant: &Address,
        refused: u64,
        call_id: CallId,
        result: Result<pb::GetSignaturesResponse, CallError>,
    ) {
        let Some(worker) = self.workers.get_mut(participant).filter(|worker| worker.call == Some(call_id))
        else {
            return;
        };
        worker.call = None;
        let evidence = worker.refused.take();
        let reply = result.ok();
        let elsewhere = reply.as_ref().is_some_and(|reply| {
            reply.withheld && self.history.root(reply.nonce).is_some_and(|ours| reply.root != ours[..])
        });
        if elsewhere {
            let event = RepairEvent::Forked { nonce: refused.saturating_sub(1) };
            return self.repair_event(participant, event, Brought { evidence });
        }
        let shown =
            reply.map(|reply| self.judge(participant, reply.nonce, &reply.root, &reply.state_signature));
        if let Some(super::members::Shown::Mismatch(mismatch)) = shown {
            let evidence = evidence_of(&mismatch, &self.terms.chain_id, self.terms.escrow_id);
            let event = RepairEvent::Forked { nonce: mismatch.nonce };
            return self.repair_event(participant, event, Brought { evidence: Some(evidence) });
        }
        self.repair_event(participant, RepairEvent::ChunkRefused { nonce: refused }, Brought { evidence });
    }

    pub(super) fn verdict(&self, participant: &Address, reply: &ProofReply<'_>) -> Option<ProofVerdict> {
        let running = self.workers.get(participant)?.running.as_ref()?;
        let attempt = Attempt {
            chain_id: &self.terms.chain_id,
            escrow_id: self.terms.escrow_id,
            generation: running.generation,
            attempt: running.attempt,
            target: running.target,
            tip: self.state.nonce(),
            challenge: running.challenge,
        };
        let at = reply.nonce.min(attempt.tip);
        let authorised = |signer: &Address| self.history.speaks_for(participant, signer, at);
        Some(verify_proof(&attempt, reply, |nonce| {
            self.history.root(nonce).map(|root| OurPoint { root, authorised: &authorised })
        }))
    }

    pub(super) fn taught(
        &mut self,
        participant: &Address,
        applied: &pb::Applied,
    ) -> (RepairEvent, Option<Evidence>) {
        let offered: Vec<Vec<u8>> =
            applied.stale.iter().chain(&applied.pending).take(super::pending::OFFERED_MAX).cloned().collect();
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.offered = offered;
        }
        let before = self.members.get(participant).map_or(0, |member| member.cursor);
        let Some(verdict) = self.verdict(participant, &ProofReply::from(applied)) else {
            return (RepairEvent::Failed(Failure::Malformed), None);
        };
        let ours = self.history.root(applied.nonce).is_some_and(|root| applied.root == root[..]);
        match verdict {
            ProofVerdict::Verified(proof) => (RepairEvent::Proof(proof), None),
            ProofVerdict::Diverged { .. }
            | ProofVerdict::AboveTip { .. }
            | ProofVerdict::CannotTell(Doubt::WithheldElsewhere) => {
                (verdict.event(applied.nonce), self.verdict_evidence(&verdict))
            }
            _ if ours && applied.nonce < before => (RepairEvent::ChunkBehind { have: applied.nonce }, None),
            _ if ours && applied.withheld => (RepairEvent::Withheld { nonce: applied.nonce }, None),
            _ if ours => {
                self.judge(participant, applied.nonce, &applied.root, &applied.state_signature);
                let target =
                    self.workers.get(participant).and_then(|w| w.running.as_ref()).map_or(0, |r| r.target);
                if applied.nonce == before && before < target {
                    // A chunk that moves nothing would be sent for ever.
                    (RepairEvent::Failed(Failure::Malformed), None)
                } else {
                    (RepairEvent::ChunkApplied { nonce: applied.nonce }, None)
                }
            }
            _ => (RepairEvent::Failed(Failure::Malformed), None),
        }
    }

    pub(super) fn proof_shown(
        &mut self,
        participant: &Address,
        reply: &pb::GetSignaturesResponse,
    ) -> (RepairEvent, Option<Evidence>) {
        let stale: Vec<Vec<u8>> = reply.stale.iter().take(super::pending::OFFERED_MAX).cloned().collect();
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.offered.extend(stale);
        }
        let Some(verdict) = self.verdict(participant, &ProofReply::from(reply)) else {
            return (RepairEvent::Failed(Failure::Malformed), None);
        };
        self.judge(participant, reply.nonce, &reply.root, &reply.state_signature);
        (verdict.event(reply.nonce), self.verdict_evidence(&verdict))
    }

    pub(super) fn verdict_evidence(&self, verdict: &ProofVerdict) -> Option<Evidence> {
        let (kind, nonce, their_root, digest, signature) = match *verdict {
            ProofVerdict::Diverged { nonce, root, digest, signature } => {
                (EvidenceKind::State, nonce, root, digest, signature)
            }
            ProofVerdict::AboveTip { nonce, root, digest, signature } => {
                (EvidenceKind::AboveTip, nonce, root, digest, signature)
            }
            _ => return None,
        };
        let our_root = self.history.root(nonce).unwrap_or([0; 32]);
        Some(Evidence { kind, nonce, our_root, their_root, digest, signature, generation: 0, at_ms: 0 })
    }

    pub(super) fn repair_error(
        &mut self,
        participant: &Address,
        error: CallError,
    ) -> Option<(RepairEvent, Option<Evidence>)> {
        use pb::escrow_error::Code;
        let failed = |failure| Some((RepairEvent::Failed(failure), None));
        let error = match error {
            CallError::Timeout => return failed(Failure::TimedOut),
            CallError::Host(error) => error,
            CallError::Status { .. } | CallError::Transport | CallError::Aborted => {
                return failed(Failure::Unavailable);
            }
        };
        match error.code() {
            Code::Behind => {
                let have = error.have_nonce.min(self.state.nonce());
                Some((RepairEvent::ChunkBehind { have }, None))
            }
            Code::SessionNotFound => Some((RepairEvent::NotFound, None)),
            Code::RootMismatch => match self.refusal(participant, &error) {
                Some(mismatch) => {
                    let evidence = evidence_of(&mismatch, &self.terms.chain_id, self.terms.escrow_id);
                    let event = match evidence.kind {
                        EvidenceKind::Refusal => {
                            self.look_below(participant, mismatch.nonce, evidence);
                            return None;
                        }
                        _ => RepairEvent::Forked { nonce: mismatch.nonce },
                    };
                    Some((event, Some(evidence)))
                }
                None => failed(Failure::Unavailable),
            },
            Code::DiffFork => {
                if let Some(evidence) = self.own_fork_shown(&error) {
                    self.take_all_back(participant);
                    return Some((RepairEvent::OwnFork { nonce: evidence.nonce }, Some(evidence)));
                }
                if self.fork_shown(participant, &error) {
                    return failed(Failure::Malformed);
                }
                let foreign = Diff::from_bytes(&error.diff).ok().filter(|diff| !self.is_ours(diff));
                let evidence = foreign.and_then(|diff| {
                    let our_root = self.history.root(diff.nonce)?;
                    Some(Evidence {
                        kind: EvidenceKind::DiffFork,
                        nonce: diff.nonce,
                        our_root,
                        their_root: diff.post_state_root,
                        digest: diff.digest(&self.terms.chain_id),
                        signature: diff.signature,
                        generation: 0,
                        at_ms: 0,
                    })
                });
                let nonce = evidence.as_ref().map_or(error.nonce, |evidence| evidence.nonce);
                if nonce == 0 || nonce > self.state.nonce() {
                    return failed(Failure::Malformed);
                }
                Some((RepairEvent::Forked { nonce }, evidence))
            }
            Code::TooLarge => failed(Failure::TooLarge),
            // Only a reset can be answered so without harm; everything else ends the attempt.
            Code::Policy | Code::SessionClosed | Code::Busy if self.resetting(participant) => {
                Some((RepairEvent::ResetRefused, None))
            }
            Code::Policy | Code::SessionClosed => failed(Failure::Policy),
            Code::ConfigMismatch => failed(Failure::ConfigMismatch),
            Code::BadTx => failed(Failure::Malformed),
            Code::Unavailable | Code::Busy | Code::Unspecified => failed(Failure::Unavailable),
        }
    }

    pub(super) fn search_first_bad(&mut self, participant: &Address, bad: u64) {
        let Some(flag) = self.flags.get(participant) else { return };
        let known = flag.first_bad_nonce != 0;
        let generation = flag.generation;
        let bad = bad.min(flag.diverged_nonce);
        let worker = self.workers.entry(*participant).or_default();
        if known || worker.search.is_some() {
            return;
        }
        worker.search = Some(Search { bisect: Bisect::new(bad), generation, call: None });
        self.probe(participant);
    }

    pub(super) fn probe(&mut self, participant: &Address) {
        let search = self.workers.get(participant).and_then(|worker| worker.search.as_ref());
        let Some(search) = search else { return };
        let (generation, bisect) = (search.generation, search.bisect);
        if let Some(nonce) = bisect.probe() {
            let request =
                pb::GetSignaturesRequest { escrow_id: self.terms.escrow_id, nonce, challenge: None };
            let call = HostCall::GetSignatures(request);
            let id = self.call(participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Probe { nonce });
            if let Some(search) = self.workers.get_mut(participant).and_then(|worker| worker.search.as_mut())
            {
                search.call = Some(id);
            }
            return;
        }
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.search = None;
        }
        if !bisect.exact() {
            return;
        }
        let subject = Subject { escrow_id: self.terms.escrow_id, participant: *participant };
        let stored = self.ledger.write(|store| {
            DivergenceKeeper
                .set_first_bad(store, &subject, generation, bisect.bad())
                .map_err(|error| holdfast_store::StoreError::Backend(error.to_string()))
        });
        if let (Ok(true), Some(flag)) = (stored, self.flags.get_mut(participant)) {
            flag.first_bad_nonce = bisect.bad();
            let fields = vec![("nonce", bisect.bad().to_string())];
            self.log("escrow_first_bad_nonce", false, Some(*participant), fields);
        }
    }

    /// A probe of the search came back.
    pub(super) fn probed(
        &mut self,
        participant: &Address,
        nonce: u64,
        result: Result<pb::GetSignaturesResponse, CallError>,
    ) {
        let answer = match result {
            Ok(reply) if reply.nonce == nonce => {
                match self.judge(participant, nonce, &reply.root, &reply.state_signature) {
                    super::members::Shown::Ours(_)
                        if self
                            .history
                            .root(nonce)
                            .and_then(|root| {
                                self.state_signature(participant, nonce, &root, &reply.state_signature)
                            })
                            .is_some() =>
                    {
                        Answer::Ours
                    }
                    super::members::Shown::Mismatch(_) => Answer::Other,
                    _ => Answer::Unknown,
                }
            }
            _ => Answer::Unknown,
        };
        if let Some(search) = self.workers.get_mut(participant).and_then(|worker| worker.search.as_mut()) {
            search.call = None;
            search.bisect.answer(answer);
            self.probe(participant);
        }
    }
}
