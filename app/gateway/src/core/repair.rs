//! Drives the repair of flagged participants: carries out the effects of the pure machine in `holdfast_escrow`, and
//! turns replies into its events. Calls are admission-free, one Teach per participant at a time, eight attempts at a
//! time in the process; nothing of it waits inside a step.

use holdfast_escrow::divergence::{
    DivergenceFlag, DivergenceKeeper, Evidence, EvidenceKind, Moment, Subject,
};
use holdfast_escrow::repair::{
    Bisect, Effect as RepairEffect, NonceUse, RepairEvent, RepairPhase, majority_unreachable, nonce_use,
};
use holdfast_escrow::session::{Hash, Phase, Signature};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::GatewayCore;
use super::api::{CallError, CallId, Effect, HostCall};
use super::evidence::Mismatch;
use super::members::{Bound, Then};
use super::permits::Ticket;

/// Steps that one event may lead to: each ends an attempt or sends a call.
const MAX_CHAIN: usize = 8;

/// The attempt that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) generation: u64,
    pub(super) attempt: u32,
    pub(super) target: u64,
    pub(super) challenge: Hash,
    pub(super) began_ms: u64,
    pub(super) bytes: u64,
}

/// A search of the first bad nonce.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) bisect: Bisect,
    pub(super) generation: u64,
    pub(super) call: Option<CallId>,
}

/// The worker of one flag.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) stepped_ms: Option<u64>,
    pub(super) due_at_ms: Option<u64>,
    pub(super) ticket: Option<Ticket>,
    pub(super) running: Option<Running>,
    pub(super) call: Option<CallId>,
    /// Transactions that its last reply offered.
    pub(super) offered: Vec<Vec<u8>>,
    /// Its refusal, while it is asked one nonce below.
    pub(super) refused: Option<Evidence>,
    pub(super) reopened_ms: Option<u64>,
    pub(super) search: Option<Search>,
}

/// What a step brings beside its event.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) evidence: Option<Evidence>,
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
        let evidence = evidence_of(mismatch, &self.terms.chain_id, self.terms.escrow_id);
        self.repair_event(
            participant,
            RepairEvent::Mismatch { nonce: mismatch.nonce },
            Brought { evidence: Some(evidence) },
        );
    }

    /// Whether it holds another diff that we signed.
    pub(super) fn own_forked(&self, participant: &Address) -> bool {
        self.flags.get(participant).is_some_and(DivergenceFlag::own_fork)
    }

    /// A host holds another diff that we signed: after a restored backup, or beside a second gateway. It keeps what it was
    /// given, so nothing of it may be charged: it gets no traffic, and its open records are taken back.
    pub(super) fn own_fork(&mut self, participant: &Address, evidence: Evidence) {
        let nonce = evidence.nonce;
        self.log("escrow_own_fork", true, Some(*participant), vec![("nonce", nonce.to_string())]);
        let brought = Brought { evidence: Some(evidence) };
        self.repair_event(participant, RepairEvent::OwnFork { nonce }, brought);
        self.take_all_back(participant);
        self.distrust_cancellations();
    }

    /// A dispatch from before the flag ended without success. Its due row stands; nothing else follows.
    pub(super) fn late_end(&mut self, participant: &Address, nonce: u64) {
        if self.flagged(participant) {
            let fields = vec![("nonce", nonce.to_string())];
            self.log("escrow_late_end", false, Some(*participant), fields);
        }
    }

    /// One event of one repair, and all that follows from it.
    pub(super) fn repair_event(&mut self, participant: &Address, event: RepairEvent, brought: Brought) {
        if let Some(evidence) = brought.evidence.as_ref().filter(|shown| shown.kind == EvidenceKind::State) {
            self.ask_held(participant, evidence.nonce);
        }
        let mut next = Some((event, brought));
        for _ in 0..MAX_CHAIN {
            let Some((event, brought)) = next.take() else { return };
            if event == RepairEvent::StoreUnreadable {
                self.pause_others(participant);
            }
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

    /// A store that one repair cannot read is there for none: no attempt of another is counted against its host.
    fn pause_others(&mut self, reader: &Address) {
        let running = |(participant, worker): (&Address, &Worker)| {
            (participant != reader && worker.running.is_some()).then_some(*participant)
        };
        let others: Vec<Address> = self.workers.iter().filter_map(running).collect();
        for participant in others {
            match self.repair_step(&participant, &RepairEvent::StoreUnreadable, &Brought::default()) {
                // A pause asks for nothing that could follow at once.
                Ok(effects) => drop(self.carry_out(&participant, effects)),
                Err(error) => {
                    let fields = vec![("event", "StoreUnreadable".to_owned()), ("error", error.to_string())];
                    self.log("escrow_repair_step_failed", true, Some(participant), fields);
                }
            }
        }
    }

    /// When the attempt of `participant` is out of time: only while it teaches, as the one call after that has its own.
    fn attempt_ends(&self, participant: &Address) -> Option<u64> {
        let teaches =
            self.flags.get(participant).is_some_and(|flag| flag.repair.phase == RepairPhase::Teaching);
        let running = self.workers.get(participant)?.running.as_ref().filter(|_| teaches)?;
        Some(running.began_ms.saturating_add(self.cfg.attempt_ms))
    }

    pub(super) fn repair_step(
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
        let at_risk = self.quorum_at_risk();
        match advance.flag {
            Some(flag) => drop(self.flags.insert(*participant, flag)),
            None => drop(self.flags.remove(participant)),
        }
        self.note_quorum(at_risk);
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
    pub(super) fn carry_out(
        &mut self,
        participant: &Address,
        effects: Vec<RepairEffect>,
    ) -> Option<(RepairEvent, Brought)> {
        let mut next = None;
        for effect in effects {
            match effect {
                RepairEffect::InsertFlag => self.withhold(participant),
                RepairEffect::RecordEvidence { .. } | RepairEffect::HandleTimeout => {}
                RepairEffect::ClearFlag => {
                    if let Some(member) = self.member(participant) {
                        member.bound = Bound::Agreed;
                    }
                    // What it could not know before.
                    self.resume_withdrawn(Some(participant));
                }
                RepairEffect::MoveCursor(nonce) => self.set_cursor(participant, nonce),
                RepairEffect::QueueTxs => {
                    let offered = self
                        .workers
                        .get_mut(participant)
                        .map(|w| std::mem::take(&mut w.offered))
                        .unwrap_or_default();
                    for tx in offered.iter().take(super::pending::OFFERED_MAX) {
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

    /// Requests that wait for this participant's catch-up move on at once.
    fn withhold(&mut self, participant: &Address) {
        let Some(member) = self.member(participant) else { return };
        let (infers, rest) =
            std::mem::take(&mut member.waiting).into_iter().partition(|then| matches!(then, Then::Infer(_)));
        member.waiting = rest;
        let infers: Vec<Then> = infers;
        for then in infers {
            if let Then::Infer(nonce) = then {
                self.flight_failed(nonce, CallError::Aborted);
            }
        }
    }

    pub(super) fn release_permit(&mut self, participant: &Address) {
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

    pub(super) fn stop_worker(&mut self, participant: &Address) {
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

    /// Timers of the workers: waits that end, permits that come, attempts that run out of time.
    pub(super) fn run_repairs(&mut self) {
        let now = self.now.mono_ms;
        let all: Vec<Address> = self.workers.keys().copied().collect();
        for participant in all {
            let gate_busy = self.members.get(&participant).is_none_or(|m| m.gate.is_some());
            let late = self.attempt_ends(&participant).is_some_and(|end| end <= now);
            let Some(worker) = self.workers.get_mut(&participant) else { continue };
            let event = if late {
                Some(RepairEvent::BudgetUsed)
            } else if worker.running.is_some() {
                None
            } else if let Some(ticket) = worker.ticket.as_mut() {
                // The gate first: a permit that waits for it would be missing elsewhere.
                if !gate_busy && ticket.try_acquire() {
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

    pub(super) fn take_permit(&mut self, participant: &Address) {
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
            .iter()
            .filter_map(|(participant, worker)| {
                let end = self.attempt_ends(participant);
                let queued = (worker.running.is_none() && worker.ticket.is_some()).then_some(poll);
                end.into_iter().chain(queued).chain(worker.due_at_ms).min()
            })
            .min()
    }

    pub(super) fn resetting(&self, participant: &Address) -> bool {
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

    pub(super) fn census_taken(&mut self, participant: &Address) {
        self.repair_event(participant, RepairEvent::CensusTaken, Brought::default());
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
            self.gauge("gateway_participant_blocked", Some(participant), 1);
            self.repair_event(&participant, RepairEvent::Restarted, Brought::default());
        }
    }

    /// Flags as stored.
    pub fn divergence_flags(&self) -> impl Iterator<Item = &DivergenceFlag> {
        self.flags.values()
    }
}

pub(super) fn evidence_of(mismatch: &Mismatch, chain_id: &str, escrow_id: u64) -> Evidence {
    let Mismatch { nonce, our_root, their_root, signature, digest } = *mismatch;
    let state = holdfast_escrow::session::digest::state(chain_id, escrow_id, nonce, &their_root);
    let kind = if digest == state { EvidenceKind::State } else { EvidenceKind::Refusal };
    let signature: Signature = signature;
    Evidence { kind, nonce, our_root, their_root, digest, signature, generation: 0, at_ms: 0 }
}
