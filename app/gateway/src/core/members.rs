//! Participants: what we know of each, and how it is brought up to our tip without a session lock over the network.

use std::collections::BTreeMap;

use holdfast_escrow::session::{Hash, Signature, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, CallId, HostCall, Lane};
use super::evidence::Mismatch;
use super::limiter::Limiter;
use super::permits::VotePermit;
use super::store::{Counters, MEMBERS, MemberRow};
use super::{GatewayCore, Purpose};

/// Most that waits for one participant's teach gate.
const MAX_WAITING: usize = 2048;

/// Whether a participant knows the terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// Not asked, or no answer.
    Unknown,
    /// Asked.
    Asking,
    /// It holds the same terms.
    Agreed,
    /// It holds other terms: it cannot take part.
    Differs,
}

/// What is done once a participant holds our tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Send the Infer of this nonce.
    Infer(u64),
    /// Ask it for a vote on this inference.
    Vote(u64),
    /// Ask for its signature at this nonce.
    Sign(u64),
    /// Take the Start of this nonce back.
    TakeBack(u64),
}

/// One participant.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) slots: Vec<u8>,
    pub(super) cursor: u64,
    pub(super) counters: Counters,
    pub(super) limiter: Limiter,
    pub(super) boot_id: String,
    /// Excused by the chain.
    pub(super) absent: bool,
    pub(super) bound: Bound,
    /// Its Teach in flight; one at a time.
    pub(super) gate: Option<CallId>,
    /// Its cursor when that chunk was sent: a dispatch beside it may have moved it since.
    pub(super) taught_from: u64,
    /// A repair attempt holds the gate between its calls.
    pub(super) gate_repair: bool,
    pub(super) waiting: Vec<Then>,
    /// Votes asked of it that are out.
    pub(super) votes: Vec<VotePermit>,
    /// Its latest verified signature over a root of ours.
    pub(super) signed: Option<(u64, Signature)>,
    /// Diffs per chunk; halved when it says TooLarge.
    pub(super) chunk: usize,
    /// Row to be written with the next commit.
    pub(super) dirty: bool,
}

impl Member {
    pub(super) fn new(slots: Vec<u8>, row: MemberRow, chunk: usize) -> Self {
        Self {
            slots,
            cursor: row.cursor,
            counters: row.counters,
            limiter: Limiter::from_row(row.limiter),
            boot_id: row.boot_id,
            absent: false,
            bound: Bound::Unknown,
            gate: None,
            taught_from: 0,
            gate_repair: false,
            waiting: Vec::new(),
            votes: Vec::new(),
            signed: None,
            chunk,
            dirty: false,
        }
    }

    pub(super) fn weight(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn row(&self) -> MemberRow {
        MemberRow {
            cursor: self.cursor,
            limiter: self.limiter.row(),
            counters: self.counters,
            boot_id: self.boot_id.clone(),
        }
    }
}

/// What a reply about a replica shows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    /// Our root at this nonce.
    Ours(u64),
    /// Another root, signed.
    Mismatch(Box<Mismatch>),
    /// A nonce above our tip, signed or not.
    Above(u64),
    /// Unsigned or garbled: as good as no answer.
    Garbage,
}

/// The group as the terms name it.
pub(super) fn group(owners: BTreeMap<Address, Vec<u8>>, chunk: usize) -> BTreeMap<Address, Member> {
    owners
        .into_iter()
        .map(|(owner, slots)| (owner, Member::new(slots, MemberRow::default(), chunk)))
        .collect()
}

impl GatewayCore {
    pub(super) fn member(&mut self, participant: &Address) -> Option<&mut Member> {
        self.members.get_mut(participant)
    }

    /// Puts changed rows of participants into the next commit.
    pub(super) fn note_members(&mut self) {
        let escrow = self.terms.escrow_id;
        for (participant, member) in &mut self.members {
            if std::mem::take(&mut member.dirty) {
                self.ledger.set(&MEMBERS, &(escrow, *participant), &member.row());
            }
        }
    }

    pub(super) fn set_cursor(&mut self, participant: &Address, cursor: u64) {
        if let Some(member) = self.member(participant)
            && member.cursor != cursor
        {
            member.cursor = cursor;
            member.dirty = true;
        }
    }

    /// A verified state signature by `participant` over `root` at `nonce`.
    pub(super) fn state_signature(
        &self,
        participant: &Address,
        nonce: u64,
        root: &Hash,
        signature: &[u8],
    ) -> Option<Signature> {
        let signature = Signature::try_from(signature).ok()?;
        let digest = digest::state(&self.terms.chain_id, self.terms.escrow_id, nonce, root);
        let signer = recover(&digest, &signature).ok()?;
        // Above our tip the newest keys that we know are the best judge.
        self.history.speaks_for(participant, &signer, nonce).then_some(signature)
    }

    /// Judges a replica's nonce, root and signature, and keeps a good signature.
    pub(super) fn judge(
        &mut self,
        participant: &Address,
        nonce: u64,
        root: &[u8],
        signature: &[u8],
    ) -> Shown {
        let Ok(root) = Hash::try_from(root) else { return Shown::Garbage };
        let Some(ours) = self.history.root(nonce) else { return Shown::Above(nonce) };
        let signed = self.state_signature(participant, nonce, &root, signature);
        match (ours == root, signed) {
            (true, Some(signature)) => {
                if let Some(member) = self.member(participant)
                    && member.signed.is_none_or(|(at, _)| at <= nonce)
                {
                    member.signed = Some((nonce, signature));
                }
                if self.keeps(nonce) {
                    self.keep_signature(nonce, *participant, signature);
                }
                self.suspect_signature(participant, nonce);
                Shown::Ours(nonce)
            }
            (true, None) => Shown::Ours(nonce),
            (false, Some(signature)) => Shown::Mismatch(Box::new(Mismatch {
                nonce,
                our_root: ours,
                their_root: root,
                signature,
                digest: digest::state(&self.terms.chain_id, self.terms.escrow_id, nonce, &root),
            })),
            (false, None) => Shown::Garbage,
        }
    }

    /// Takes the reply of a live call: cursor, signature, pending transactions, or a trip.
    pub(super) fn absorb(&mut self, participant: &Address, applied: &pb::Applied) -> Shown {
        let shown = self.judge(participant, applied.nonce, &applied.root, &applied.state_signature);
        match &shown {
            Shown::Ours(nonce) => {
                // Replies of concurrent calls overtake each other: an older one moves nothing back.
                let cursor = self.members.get(participant).map_or(0, |member| member.cursor);
                self.set_cursor(participant, cursor.max(*nonce));
                for tx in applied.pending.iter().chain(&applied.stale).take(super::pending::OFFERED_MAX) {
                    self.intake(tx);
                }
            }
            Shown::Mismatch(mismatch) => self.trip(participant, mismatch),
            Shown::Above(nonce) => {
                let root = Hash::try_from(applied.root.as_slice()).unwrap_or_default();
                let signed =
                    self.state_signature(participant, *nonce, &root, &applied.state_signature).is_some();
                self.look_above(participant, signed);
            }
            Shown::Garbage => {}
        }
        shown
    }

    /// Next chunk for `participant` on the way to `target`; whether it ends there.
    pub(super) fn chunk(&self, participant: &Address, target: u64) -> Option<(Vec<Vec<u8>>, bool)> {
        let member = self.members.get(participant)?;
        let from = member.cursor.saturating_add(1);
        let count = member.chunk.clamp(1, self.cfg.chunk_diffs.max(1));
        let diffs = self.ledger.diffs(from, target, count, self.cfg.chunk_bytes).ok()?;
        let end = member.cursor.saturating_add(diffs.len() as u64);
        Some((diffs, end >= target))
    }

    /// Does `then` with the tail that `participant` lacks; teaches it first when that is more than one chunk.
    pub(super) fn bring(&mut self, participant: &Address, then: Then) {
        let target = match then {
            Then::Infer(nonce) | Then::Sign(nonce) | Then::TakeBack(nonce) => nonce,
            Then::Vote(_) => self.teach_tip(),
        };
        match self.chunk(participant, target) {
            // A cancellation carries no diffs.
            Some((diffs, true)) if diffs.is_empty() || !matches!(then, Then::TakeBack(_)) => {
                self.deliver(participant, then, diffs);
            }
            Some(_) => {
                if let Some(member) = self.member(participant)
                    && member.waiting.len() < MAX_WAITING
                {
                    if !member.waiting.contains(&then) {
                        member.waiting.push(then);
                    }
                    self.catch_up(participant);
                } else {
                    self.undeliverable(participant, then, &CallError::Aborted);
                }
            }
            None => self.undeliverable(participant, then, &CallError::Aborted),
        }
    }

    /// Sends the next chunk if the gate is free.
    fn catch_up(&mut self, participant: &Address) {
        let tip = self.teach_tip();
        let busy = self.members.get(participant).is_none_or(|m| m.gate.is_some() || m.gate_repair);
        if busy {
            return;
        }
        let Some((diffs, _)) = self.chunk(participant, tip) else {
            return self.fail_waiting(participant, &CallError::Aborted);
        };
        let call =
            HostCall::Teach(pb::TeachRequest { escrow_id: self.terms.escrow_id, diffs, challenge: None });
        let id = self.call(participant, call, self.cfg.teach_ms, Lane::Free, Purpose::CatchUp);
        if let Some(member) = self.member(participant) {
            member.gate = Some(id);
            member.taught_from = member.cursor;
        }
    }

    /// A chunk came back.
    pub(super) fn caught_up(&mut self, participant: &Address, result: Result<pb::TeachResponse, CallError>) {
        let before = self.members.get(participant).map_or(0, |member| member.taught_from);
        if let Some(member) = self.member(participant) {
            member.gate = None;
        }
        match result {
            Ok(reply) => {
                let applied = reply.applied.unwrap_or_default();
                match self.absorb(participant, &applied) {
                    Shown::Ours(nonce) if nonce > before => self.resume_waiting(participant),
                    // Progress is demanded after each chunk: a cursor that stands still ends the catch-up.
                    _ => self.fail_waiting(participant, &CallError::Transport),
                }
            }
            Err(CallError::Host(error)) => match error.code() {
                pb::escrow_error::Code::Behind if error.have_nonce < before => {
                    self.set_cursor(participant, error.have_nonce);
                    self.resume_waiting(participant);
                }
                pb::escrow_error::Code::SessionNotFound => {
                    self.set_cursor(participant, 0);
                    self.bind(participant);
                }
                pb::escrow_error::Code::TooLarge => {
                    let small = self.members.get(participant).is_none_or(|member| member.chunk <= 1);
                    if let Some(member) = self.member(participant) {
                        member.chunk = (member.chunk / 2).max(1);
                    }
                    let error = CallError::Host(error);
                    if small {
                        self.fail_waiting(participant, &error)
                    } else {
                        self.resume_waiting(participant)
                    }
                }
                _ => {
                    self.host_error(participant, &error);
                    self.fail_waiting(participant, &CallError::Host(error));
                }
            },
            Err(error) => {
                self.blame(participant, &error);
                self.fail_waiting(participant, &error);
            }
        }
    }

    /// Compares the terms with `participant`.
    pub(super) fn bind(&mut self, participant: &Address) {
        if self.members.get(participant).is_none_or(|member| member.bound == Bound::Asking) {
            return;
        }
        if let Some(member) = self.member(participant) {
            member.bound = Bound::Asking;
        }
        let call = HostCall::Bind(pb::BindRequest {
            escrow_id: self.terms.escrow_id,
            config_digest: self.state.config_digest().to_vec(),
        });
        self.call(participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Bind);
    }

    /// Bind came back.
    pub(super) fn bind_done(&mut self, participant: &Address, result: Result<pb::BindResponse, CallError>) {
        match result {
            Ok(reply) => {
                if let Some(member) = self.member(participant) {
                    member.bound = Bound::Agreed;
                    if !reply.boot_id.is_empty()
                        && reply.boot_id.len() <= 128
                        && member.boot_id != reply.boot_id
                    {
                        member.boot_id = reply.boot_id.clone();
                        member.dirty = true;
                    }
                }
                match self.judge(participant, reply.nonce, &reply.root, &[]) {
                    // Exactly what it holds: lower than we thought after a restart from an old snapshot.
                    Shown::Ours(nonce) => self.set_cursor(participant, nonce),
                    Shown::Above(_) => self.look_above(participant, false),
                    // Unsigned: it blames nobody; the next Teach brings the signed word.
                    Shown::Mismatch(_) | Shown::Garbage => {}
                }
                self.resume_waiting(participant);
            }
            Err(error) => {
                let differs = matches!(&error, CallError::Host(e) if e.code() == pb::escrow_error::Code::ConfigMismatch);
                if let Some(member) = self.member(participant) {
                    member.bound = if differs { Bound::Differs } else { Bound::Unknown };
                }
                if differs {
                    self.log("escrow_config_mismatch", true, Some(*participant), Vec::new());
                }
                self.blame(participant, &error);
                self.fail_waiting(participant, &error);
            }
        }
    }

    pub(super) fn resume_waiting(&mut self, participant: &Address) {
        let waiting =
            self.member(participant).map(|member| std::mem::take(&mut member.waiting)).unwrap_or_default();
        for then in waiting {
            self.bring(participant, then);
        }
    }

    pub(super) fn fail_waiting(&mut self, participant: &Address, error: &CallError) {
        let waiting =
            self.member(participant).map(|member| std::mem::take(&mut member.waiting)).unwrap_or_default();
        for then in waiting {
            self.undeliverable(participant, then, error);
        }
    }

    fn deliver(&mut self, participant: &Address, then: Then, diffs: Vec<Vec<u8>>) {
        match then {
            Then::Infer(nonce) => self.send_infer(participant, nonce, diffs),
            Then::Vote(id) => self.send_vote(participant, id, diffs),
            Then::Sign(nonce) => self.send_sign(participant, nonce, diffs),
            Then::TakeBack(nonce) => self.send_take_back(participant, nonce),
        }
    }

    fn undeliverable(&mut self, participant: &Address, then: Then, error: &CallError) {
        match then {
            Then::Infer(nonce) => self.flight_failed(nonce, error.clone()),
            Then::Vote(id) => self.vote_done(participant, id, Err(error.clone())),
            Then::Sign(_) => {}
            Then::TakeBack(nonce) => self.cancelled(participant, nonce, Err(CallError::Aborted)),
        }
    }

    /// Counts what the host itself did wrong; our refusals and the requester's faults never (escrow 5).
    pub(super) fn blame(&mut self, participant: &Address, error: &CallError) {
        let now = self.now.mono_ms;
        let Some(member) = self.members.get_mut(participant) else { return };
        use pb::escrow_error::Code;
        match error {
            CallError::Transport | CallError::Timeout => member.limiter.transport_failed(now),
            CallError::Host(error) => match error.code() {
                Code::Unavailable | Code::Busy => member.limiter.throttled(now, error.retry_after_ms),
                Code::Unspecified => member.limiter.transport_failed(now),
                // Typed answers are no fault of the connection. A mismatch has its own path.
                _ => return,
            },
            // Unauthenticated, permission denied, cancelled: the requester's fault.
            CallError::Status { code: 16 | 7 | 1, .. } | CallError::Aborted => return,
            CallError::Status { code: 8 | 14, retry_after_ms } => {
                member.limiter.throttled(now, *retry_after_ms)
            }
            CallError::Status { .. } => member.limiter.transport_failed(now),
        }
        member.dirty = true;
    }

    /// A typed error of a live call, beside what its caller does with it: only signed words have consequences.
    pub(super) fn host_error(&mut self, participant: &Address, error: &pb::EscrowError) {
        use pb::escrow_error::Code;
        match error.code() {
            Code::RootMismatch => match self.refusal(participant, error) {
                Some(mismatch) => self.trip(participant, &mismatch),
                None => self.blame(participant, &CallError::Transport),
            },
            Code::DiffFork => {
                self.fork_shown(participant, error);
            }
            _ => self.blame(participant, &CallError::Host(Box::new(error.clone()))),
        }
    }
}
