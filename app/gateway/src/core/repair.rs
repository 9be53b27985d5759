//! Drives the repair of flagged participants: carries out the effects of the pure machine in `holdfast_escrow`, and
//! turns replies into its events. Calls are admission-free, one Teach per participant at a time, eight attempts at a
//! time in the process; nothing of it waits inside a step.

use holdfast_escrow::divergence::{
    DivergenceFlag, DivergenceKeeper, Evidence, EvidenceKind, FlagChange, Moment, Subject,
};
use holdfast_escrow::repair::{
    Answer, Attempt, Bisect, Effect as RepairEffect, Failure, LogStage, NonceUse, OurPoint, ProofReply,
    ProofVerdict, RepairEvent, RepairPhase, majority_unreachable, nonce_use, verify_proof,
};
use holdfast_escrow::session::{Diff, Hash, Phase, Signature};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, CallId, Effect, HostCall, Lane, Metric, Ticket, Verb, VerbError};
use super::evidence::Mismatch;
use super::members::Bound;
use super::{GatewayCore, Purpose};

/// Steps that one event may lead to: each ends an attempt or sends a call.
const MAX_CHAIN: usize = 8;

/// The attempt that runs.
#[derive(Debug)]
struct Running {
    generation: u64,
    attempt: u32,
    target: u64,
    challenge: Hash,
    began_ms: u64,
    bytes: u64,
}

/// A search of the first bad nonce.
#[derive(Debug)]
struct Search {
    bisect: Bisect,
    generation: u64,
    call: Option<CallId>,
}

/// The worker of one flag.
#[derive(Debug, Default)]
pub(super) struct Worker {
    stepped_ms: Option<u64>,
    due_at_ms: Option<u64>,
    ticket: Option<Ticket>,
    running: Option<Running>,
    call: Option<CallId>,
    /// Transactions that its last reply offered.
    offered: Vec<Vec<u8>>,
    reopened_ms: Option<u64>,
    search: Option<Search>,
}

/// What a step brings beside its event.
#[derive(Debug, Default)]
struct Brought {
    evidence: Option<Evidence>,
}

impl GatewayCore {
    pub(super) fn flagged(&self, participant: &Address) -> bool {
        self.flags.contains_key(participant)
    }

    pub(super) fn repairing(&self, participant: &Address) -> bool {
        self.flags
            .get(participant)
            .is_some_and(|flag| !matches!(flag.repair.phase, RepairPhase::GaveUp | RepairPhase::Stopped))
    }

    pub(super) fn nonce_use(&self, participant: &Address) -> NonceUse {
        nonce_use(self.flags.get(participant).map(|flag| &flag.repair), self.suspected())
    }

    /// A signed mismatch from a live call, a vote or the finalization.
    pub(super) fn trip(&mut self, participant: &Address, mismatch: &Mismatch) {
        if self.census_holds(participant, mismatch) {
            return;
        }
        let evidence = evidence_of(mismatch, &self.terms.chain_id, self.terms.escrow_id);
        self.repair_event(
            participant,
            RepairEvent::Mismatch { nonce: mismatch.nonce },
            Brought { evidence: Some(evidence) },
        );
    }

    /// A dispatch from before the flag ended without success. Its due row stands; nothing else follows.
    pub(super) fn late_end(&mut self, participant: &Address, nonce: u64) {
        if self.flagged(participant) {
            let fields = vec![("nonce", nonce.to_string())];
            self.log("escrow_late_end", false, Some(*participant), fields);
        }
    }

    /// One event of one repair, and all that follows from it.
    fn repair_event(&mut self, participant: &Address, event: RepairEvent, brought: Brought) {
        let mut next = Some((event, brought));
        for _ in 0..MAX_CHAIN {
            let Some((event, brought)) = next.take() else { return };
            match self.repair_step(participant, &event, &brought) {
                Ok(effects) => next = self.carry_out(participant, effects),
                Err(error) => {
                    let fields = vec![("event", format!("{event:?}")), ("error", error.to_string())];
                    self.log("escrow_repair_step_failed", true, Some(*participant), fields);
                    return;
                }
            }
        }
    }

    fn repair_step(
        &mut self,
        participant: &Address,
        event: &RepairEvent,
        brought: &Brought,
    ) -> Result<Vec<RepairEffect>, holdfast_escrow::divergence::DivergenceError> {
        let now = self.now;
        let unreachable: u64 = self
            .members
            .values()
            .filter(|member| member.limiter.is_open(now.mono_ms))
            .map(super::members::Member::weight)
            .sum();
        let since_ms = self
            .workers
            .get(participant)
            .and_then(|worker| worker.stepped_ms)
            .map_or(0, |stepped| now.mono_ms.saturating_sub(stepped));
        let config = self.repair_config();
        let moment = Moment {
            config: &config,
            active: self.state.phase() == Phase::Active && !self.stopping,
            tip: self.state.nonce(),
            self_suspect: self.suspected(),
            majority_unreachable: majority_unreachable(unreachable, self.terms.group_size()),
            since_ms,
            at_ms: now.unix_ms,
        };
        let subject = Subject { escrow_id: self.terms.escrow_id, participant: *participant };
        let mut advance = None;
        let mut refused = None;
        let written = self.ledger.write(|store| {
            match DivergenceKeeper.advance(store, &subject, &moment, event, brought.evidence.as_ref()) {
                Ok(done) => {
                    advance = Some(done);
                    Ok(())
                }
                Err(error) => {
                    refused = Some(error);
                    Err(holdfast_store::StoreError::ReadOnly)
                }
            }
        });
        if let Some(error) = refused {
            return Err(error);
        }
        written?;
        let Some(advance) = advance else { return Ok(Vec::new()) };
        let flagged = advance.flag.is_some();
        match advance.flag {
            Some(flag) => drop(self.flags.insert(*participant, flag)),
            None => drop(self.flags.remove(participant)),
        }
        if flagged {
            self.workers.entry(*participant).or_default().stepped_ms = Some(now.mono_ms);
        }
        for change in advance.changes {
            self.announce_change(change);
        }
        self.urgent = true;
        Ok(advance.effects)
    }

    /// Carries out effects; the event that follows at once, if one does.
    fn carry_out(
        &mut self,
        participant: &Address,
        effects: Vec<RepairEffect>,
    ) -> Option<(RepairEvent, Brought)> {
        let mut next = None;
        for effect in effects {
            match effect {
                RepairEffect::InsertFlag
                | RepairEffect::RecordEvidence { .. }
                | RepairEffect::HandleTimeout => {}
                RepairEffect::ClearFlag => {
                    if let Some(member) = self.member(participant) {
                        member.bound = Bound::Agreed;
                    }
                }
                RepairEffect::MoveCursor(nonce) => self.set_cursor(participant, nonce),
                RepairEffect::QueueTxs => {
                    let offered = self
                        .workers
                        .get_mut(participant)
                        .map(|w| std::mem::take(&mut w.offered))
                        .unwrap_or_default();
                    for tx in offered.iter().take(super::pending::MAX_PENDING) {
                        self.intake(tx);
                    }
                }
                RepairEffect::WakeIn(ms) => {
                    let at = self.now.mono_ms.saturating_add(ms);
                    self.workers.entry(*participant).or_default().due_at_ms = Some(at);
                }
                RepairEffect::QueueForPermit => {
                    let ticket = self.permits.ticket();
                    let worker = self.workers.entry(*participant).or_default();
                    worker.due_at_ms = None;
                    if worker.ticket.is_none() {
                        worker.ticket = Some(ticket);
                    }
                }
                RepairEffect::ReleasePermit => self.release_permit(participant),
                RepairEffect::StartAttempt { generation, attempt, target } => {
                    let challenge = self.entropy.draw();
                    let began_ms = self.now.mono_ms;
                    let worker = self.workers.entry(*participant).or_default();
                    worker.running =
                        Some(Running { generation, attempt, target, challenge, began_ms, bytes: 0 });
                    self.metric_count("gateway_repair_attempts_total", Some(*participant), 1);
                }
                RepairEffect::TakeCensus => self.take_census(participant),
                RepairEffect::CallReset => {
                    let generation = self.flags.get(participant).map_or(0, |flag| flag.generation);
                    let request = pb::ResetSessionRequest { escrow_id: self.terms.escrow_id, generation };
                    self.repair_call(participant, HostCall::ResetSession(request), self.cfg.ask_ms);
                }
                RepairEffect::SendBind => {
                    let request = pb::BindRequest {
                        escrow_id: self.terms.escrow_id,
                        config_digest: self.state.config_digest().to_vec(),
                    };
                    self.repair_call(participant, HostCall::Bind(request), self.cfg.ask_ms);
                }
                RepairEffect::Teach { max_diffs } => {
                    if let Some(event) = self.teach(participant, max_diffs) {
                        next = Some((event, Brought::default()));
                    }
                }
                RepairEffect::AskSignature { nonce } => {
                    let request = pb::GetSignaturesRequest {
                        escrow_id: self.terms.escrow_id,
                        nonce,
                        challenge: self.challenge(participant),
                    };
                    self.repair_call(participant, HostCall::GetSignatures(request), self.cfg.ask_ms);
                }
                RepairEffect::FindFirstBad { bad } => self.search_first_bad(participant, bad),
                RepairEffect::Cancel => {
                    if let Some(call) =
                        self.workers.get_mut(participant).and_then(|worker| worker.call.take())
                    {
                        self.forget_call(call);
                        self.emit(Effect::AbortCall { call_id: call });
                    }
                }
                RepairEffect::StopWorker => self.stop_worker(participant),
                RepairEffect::Log(_) => {}
                RepairEffect::Ignored => {
                    self.metric_count("gateway_repair_events_ignored_total", Some(*participant), 1);
                }
            }
        }
        next
    }

    fn release_permit(&mut self, participant: &Address) {
        let mut held = false;
        if let Some(worker) = self.workers.get_mut(participant) {
            held = worker.running.is_some() || worker.ticket.is_some();
            worker.ticket = None;
            worker.running = None;
            worker.call = None;
        }
        let mut resume = false;
        if let Some(member) = self.member(participant) {
            resume = member.gate_repair && held;
            member.gate_repair = false;
        }
        if resume {
            // Votes and signatures that waited for the gate go on.
            self.resume_waiting(participant);
        }
    }

    fn stop_worker(&mut self, participant: &Address) {
        self.release_permit(participant);
        if let Some(mut worker) = self.workers.remove(participant) {
            if let Some(call) = worker.search.take().and_then(|search| search.call) {
                self.forget_call(call);
                self.emit(Effect::AbortCall { call_id: call });
            }
            if self.flagged(participant) {
                // What gave up can be reopened, and remembers when it was last.
                let kept = Worker {
                    stepped_ms: worker.stepped_ms,
                    reopened_ms: worker.reopened_ms,
                    ..Worker::default()
                };
                self.workers.insert(*participant, kept);
            }
        }
    }

    fn challenge(&self, participant: &Address) -> Option<pb::Challenge> {
        let running = self.workers.get(participant)?.running.as_ref()?;
        Some(pb::Challenge { generation: running.generation, challenge: running.challenge.to_vec() })
    }

    fn repair_call(&mut self, participant: &Address, call: HostCall, timeout_ms: u64) {
        let id = self.call(participant, call, timeout_ms, Lane::Free, Purpose::Repair);
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.call = Some(id);
        }
    }

    /// Sends the next chunk, or says that the attempt's budget is used up.
    fn teach(&mut self, participant: &Address, max_diffs: u32) -> Option<RepairEvent> {
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

    /// Timers of the workers: waits that end, permits that come, attempts that run out of time.
    pub(super) fn run_repairs(&mut self) {
        let now = self.now.mono_ms;
        let all: Vec<Address> = self.workers.keys().copied().collect();
        for participant in all {
            let gate_busy = self.members.get(&participant).is_none_or(|m| m.gate.is_some());
            let Some(worker) = self.workers.get_mut(&participant) else { continue };
            let late = worker
                .running
                .as_ref()
                .is_some_and(|running| now >= running.began_ms.saturating_add(self.cfg.attempt_ms));
            let event = if late {
                Some(RepairEvent::BudgetUsed)
            } else if worker.running.is_some() {
                None
            } else if let Some(ticket) = worker.ticket.as_mut() {
                if ticket.try_acquire() && !gate_busy {
                    if let Some(member) = self.members.get_mut(&participant) {
                        member.gate_repair = true;
                    }
                    Some(RepairEvent::Due { permit: true })
                } else {
                    None
                }
            } else if worker.due_at_ms.is_some_and(|at| at <= now) {
                worker.due_at_ms = None;
                Some(RepairEvent::Due { permit: false })
            } else {
                None
            };
            if let Some(event) = event {
                let again = event == RepairEvent::Due { permit: false };
                self.repair_event(&participant, event, Brought::default());
                if again {
                    // A free permit is taken in the same look.
                    self.take_permit(&participant);
                }
            }
        }
    }

    fn take_permit(&mut self, participant: &Address) {
        let gate_busy = self.members.get(participant).is_none_or(|m| m.gate.is_some());
        let Some(worker) = self.workers.get_mut(participant) else { return };
        if worker.running.is_none() && !gate_busy && worker.ticket.as_mut().is_some_and(Ticket::try_acquire) {
            if let Some(member) = self.members.get_mut(participant) {
                member.gate_repair = true;
            }
            self.repair_event(participant, RepairEvent::Due { permit: true }, Brought::default());
        }
    }

    /// When the workers need a look.
    pub(super) fn repairs_at(&self) -> Option<u64> {
        let poll = self.now.mono_ms.saturating_add(200);
        self.workers
            .values()
            .filter_map(|worker| {
                let end = worker.running.as_ref().map(|r| r.began_ms.saturating_add(self.cfg.attempt_ms));
                let queued = (worker.running.is_none() && worker.ticket.is_some()).then_some(poll);
                end.into_iter().chain(queued).chain(worker.due_at_ms).min()
            })
            .min()
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
            Err(error) => self.repair_error(participant, error),
        };
        self.repair_event(participant, event, Brought { evidence });
    }

    fn verdict(&self, participant: &Address, reply: &ProofReply<'_>) -> Option<ProofVerdict> {
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

    fn taught(&mut self, participant: &Address, applied: &pb::Applied) -> (RepairEvent, Option<Evidence>) {
        let offered: Vec<Vec<u8>> =
            applied.stale.iter().chain(&applied.pending).take(super::pending::MAX_PENDING).cloned().collect();
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
            ProofVerdict::Diverged { .. } | ProofVerdict::AboveTip { .. } => {
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

    fn proof_shown(
        &mut self,
        participant: &Address,
        reply: &pb::GetSignaturesResponse,
    ) -> (RepairEvent, Option<Evidence>) {
        let stale: Vec<Vec<u8>> = reply.stale.iter().take(super::pending::MAX_PENDING).cloned().collect();
        if let Some(worker) = self.workers.get_mut(participant) {
            worker.offered.extend(stale);
        }
        let Some(verdict) = self.verdict(participant, &ProofReply::from(reply)) else {
            return (RepairEvent::Failed(Failure::Malformed), None);
        };
        self.judge(participant, reply.nonce, &reply.root, &reply.state_signature);
        (verdict.event(reply.nonce), self.verdict_evidence(&verdict))
    }

    fn verdict_evidence(&self, verdict: &ProofVerdict) -> Option<Evidence> {
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

    fn repair_error(&mut self, participant: &Address, error: CallError) -> (RepairEvent, Option<Evidence>) {
        use pb::escrow_error::Code;
        let failed = |failure| (RepairEvent::Failed(failure), None);
        let error = match error {
            CallError::Timeout => return failed(Failure::TimedOut),
            CallError::Host(error) => error,
            CallError::Status { .. } | CallError::Transport | CallError::Aborted => {
                return failed(Failure::Unavailable);
            }
        };
        match error.code() {
            Code::Behind => {
                (RepairEvent::ChunkBehind { have: error.have_nonce.min(self.state.nonce()) }, None)
            }
            Code::SessionNotFound => (RepairEvent::NotFound, None),
            Code::RootMismatch => match self.refusal(participant, &error) {
                Some(mismatch) => {
                    let evidence = evidence_of(&mismatch, &self.terms.chain_id, self.terms.escrow_id);
                    let event = match evidence.kind {
                        EvidenceKind::Refusal => RepairEvent::ChunkRefused { nonce: mismatch.nonce },
                        _ => RepairEvent::Forked { nonce: mismatch.nonce },
                    };
                    (event, Some(evidence))
                }
                None => failed(Failure::Unavailable),
            },
            Code::DiffFork => {
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
                (RepairEvent::Forked { nonce }, evidence)
            }
            Code::TooLarge => failed(Failure::TooLarge),
            // Only a reset can be answered so without harm; everything else ends the attempt.
            Code::Policy | Code::SessionClosed | Code::Busy if self.resetting(participant) => {
                (RepairEvent::ResetRefused, None)
            }
            Code::Policy | Code::SessionClosed => failed(Failure::Policy),
            Code::ConfigMismatch => failed(Failure::ConfigMismatch),
            Code::BadTx => failed(Failure::Malformed),
            Code::Unavailable | Code::Busy | Code::Unspecified => failed(Failure::Unavailable),
        }
    }

    fn resetting(&self, participant: &Address) -> bool {
        self.resetting.contains(participant)
    }

    /// Notes whether the call in flight is a reset: its refusal has another meaning.
    pub(super) fn note_reset(&mut self, participant: &Address, reset: bool) {
        if reset {
            self.resetting.insert(*participant);
        } else {
            self.resetting.remove(participant);
        }
    }

    fn search_first_bad(&mut self, participant: &Address, bad: u64) {
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

    fn probe(&mut self, participant: &Address) {
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

    pub(super) fn census_taken(&mut self, participant: &Address) {
        self.repair_event(participant, RepairEvent::CensusTaken, Brought::default());
    }

    /// A host started anew.
    pub(super) fn announced(&mut self, participant: &Address, boot_id: String) {
        let now = self.now.mono_ms;
        let Some(member) = self.members.get_mut(participant) else { return };
        if boot_id.is_empty() || boot_id.len() > 128 || member.boot_id == boot_id {
            return;
        }
        member.boot_id = boot_id;
        member.dirty = true;
        member.bound = Bound::Unknown;
        if self.flagged(participant) {
            let since = self.workers.get(participant).and_then(|worker| worker.reopened_ms);
            let since_reopen_ms = now.saturating_sub(since.unwrap_or(self.opened_ms));
            let generation = self.flags.get(participant).map(|flag| flag.generation);
            self.repair_event(participant, RepairEvent::Announced { since_reopen_ms }, Brought::default());
            if self.flags.get(participant).map(|flag| flag.generation) != generation {
                self.workers.entry(*participant).or_default().reopened_ms = Some(now);
            }
        } else {
            self.bind(participant);
        }
    }

    /// A verb of an operator.
    pub(super) fn operator(&mut self, op_id: u64, participant: &Address, verb: Verb) {
        let event = match verb {
            Verb::ForceTeach => RepairEvent::ForceTeach,
            Verb::GiveUp => RepairEvent::GiveUp,
            Verb::Release => RepairEvent::Release,
        };
        let result = match self.repair_step(participant, &event, &Brought::default()) {
            Ok(effects) => {
                let ignored = effects.contains(&RepairEffect::Ignored);
                if let Some((event, brought)) = self.carry_out(participant, effects) {
                    self.repair_event(participant, event, brought);
                }
                match self.flag(participant) {
                    Some(flag) if !ignored => Ok(Box::new(flag)),
                    Some(_) => Err(VerbError::WrongPhase),
                    None => Err(VerbError::NotFlagged),
                }
            }
            Err(holdfast_escrow::divergence::DivergenceError::Repair(error)) => Err(match error {
                holdfast_escrow::repair::RepairError::NotFlagged => VerbError::NotFlagged,
                holdfast_escrow::repair::RepairError::Stopped => VerbError::WrongPhase,
            }),
            Err(_) => Err(VerbError::Storage),
        };
        self.emit(Effect::OperatorDone { op_id, result });
    }

    /// The session leaves the phase Active, or the process stops: every worker ends.
    pub(super) fn stop_repairs(&mut self) {
        let all: Vec<Address> = self.flags.keys().copied().collect();
        for participant in all {
            self.repair_event(&participant, RepairEvent::SessionEnded, Brought::default());
        }
        self.censuses.clear();
    }

    /// After a restart: the same repairs go on.
    pub(super) fn resume_repairs(&mut self) {
        let all: Vec<Address> = self.flags.keys().copied().collect();
        for participant in all {
            self.repair_event(&participant, RepairEvent::Restarted, Brought::default());
        }
    }

    fn announce_change(&mut self, change: FlagChange) {
        let participant = change.flag.subject.participant;
        let stage = change.stage.as_str();
        let flag = &change.flag;
        let mut fields = vec![
            ("generation", flag.generation.to_string()),
            ("diverged_nonce", flag.diverged_nonce.to_string()),
            ("phase", flag.repair.phase.as_str().to_owned()),
            ("attempt", flag.repair.attempt.to_string()),
            ("elapsed_ms", flag.repair.elapsed_ms.to_string()),
        ];
        if change.stage == LogStage::RepairAttempt {
            let cursor = self.members.get(&participant).map_or(0, |member| member.cursor);
            fields.push(("catch_up", format!("{cursor} of {}", flag.repair.target)));
            fields.push(("verify", flag.repair.last_verdict.as_str().to_owned()));
        }
        let alarm = matches!(change.stage, LogStage::Blocked | LogStage::GaveUp);
        self.log(stage, alarm, Some(participant), fields);
        let blocked = change.at_ms.saturating_sub(flag.flagged_at_ms);
        match change.stage {
            LogStage::Unblocked => {
                let name = "gateway_repair_time_to_unblock_ms";
                self.emit(Effect::Metric(Metric::Time { name, participant: Some(participant), ms: blocked }));
                self.gauge("gateway_participant_blocked", Some(participant), 0);
            }
            LogStage::Blocked => self.gauge("gateway_participant_blocked", Some(participant), 1),
            LogStage::GaveUp => self.metric_count("gateway_repair_give_ups_total", Some(participant), 1),
            LogStage::RepairStarted | LogStage::RepairAttempt => {}
        }
        let at = change.at_ms / 1000;
        let view = Box::new(self.view(flag));
        self.emit(Effect::FlagChanged { stage, at, flag: view, change: Box::new(change) });
    }

    /// Flags as stored.
    pub fn divergence_flags(&self) -> impl Iterator<Item = &DivergenceFlag> {
        self.flags.values()
    }
}

fn evidence_of(mismatch: &Mismatch, chain_id: &str, escrow_id: u64) -> Evidence {
    let Mismatch { nonce, our_root, their_root, signature, digest } = *mismatch;
    let state = holdfast_escrow::session::digest::state(chain_id, escrow_id, nonce, &their_root);
    let kind = if digest == state { EvidenceKind::State } else { EvidenceKind::Refusal };
    let signature: Signature = signature;
    Evidence { kind, nonce, our_root, their_root, digest, signature, generation: 0, at_ms: 0 }
}
