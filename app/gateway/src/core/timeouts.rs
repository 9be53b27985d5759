//! HandleTimeout: votes on starts whose record stays open (escrow-details 7). Every start in the log has a due row
//! from the moment it is durable, sent or not, so that nothing can skip it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_escrow::session::{
    InferenceStatus, Phase, REASON_EXECUTION, REASON_REFUSED, Recovered, Signature, Signers, Tx, Vote, digest,
};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, HostCall, Lane};
use super::members::Then;
use super::store::{BODIES, DUES, DueRow};
use super::{GatewayCore, Purpose};

/// When a voter that was busy for other sessions is looked at again.
const VOTER_MS: u64 = 200;
/// How long a vote may wait for its turn.
const QUEUE_MS: u64 = 120_000;
/// Rounds.
const ROUNDS: u8 = 2;
/// Wait after something of the inference was found pending.
const SETTLE_MS: u64 = 2_000;

/// A round of votes.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    reason: u8,
    began_ms: u64,
    /// To be asked.
    open: BTreeSet<Address>,
    /// Asked.
    out: BTreeSet<Address>,
    yes: BTreeMap<Address, Vote>,
    signers: Signers,
    no: u32,
    errors: u32,
}

/// A start whose record is open.
#[derive(Debug, Clone)]
pub(super) struct Due {
    pub(super) row: DueRow,
    pub(super) round: Option<Round>,
    /// Not before, on the monotonic clock.
    pub(super) not_before_ms: u64,
    /// Its host was asked to take it back, for the round that comes.
    pub(super) reminded: bool,
    /// When its host is asked for its end, and how long that wait was; `None` = it was not asked for yet.
    pub(super) listen: Option<(u64, u64)>,
}

impl Due {
    pub(super) fn new(row: DueRow) -> Self {
        Self { row, round: None, not_before_ms: 0, reminded: false, listen: None }
    }
}

impl GatewayCore {
    /// Reason and unix second at which the record of `id` is late; `None` when it is not open.
    fn late_at(&self, id: u64) -> Option<(u8, u64)> {
        let record = self.state.record(id)?;
        let slack = self.cfg.timeout_slack_ms / 1000;
        match record.status {
            InferenceStatus::Pending => {
                let wait = u64::from(self.terms.refusal_timeout_s);
                Some((REASON_REFUSED, record.started_at.saturating_add(wait).saturating_add(slack)))
            }
            InferenceStatus::Started => {
                let wait = u64::from(self.terms.execution_timeout_s);
                Some((REASON_EXECUTION, record.confirmed_at.saturating_add(wait).saturating_add(slack)))
            }
            _ => None,
        }
    }

    /// When the next due row needs a look, on the monotonic clock.
    pub(super) fn timeouts_at(&self) -> Option<u64> {
        let now = self.now;
        self.dues
            .iter()
            .filter(|(id, due)| !self.exhausted(**id, due) && !self.ripe.contains_key(id))
            .filter_map(|(id, due)| {
                if let Some(round) = &due.round {
                    let end = round.began_ms.saturating_add(QUEUE_MS);
                    // A place that another session gives back tells nobody.
                    let look = (!round.open.is_empty()).then_some(now.mono_ms.saturating_add(VOTER_MS));
                    return Some(look.map_or(end, |look| look.min(end)));
                }
                let (_, at) = self.late_at(*id)?;
                let wait = at.saturating_mul(1000).saturating_sub(now.unix_ms);
                Some(now.mono_ms.saturating_add(wait).max(due.not_before_ms))
            })
            .min()
    }

    /// Whether the votes of this reason are used up and the drain decides, or there is nothing to vote on: a host that holds
    /// another diff of ours is not late by its fault.
    pub(super) fn exhausted(&self, id: u64, due: &Due) -> bool {
        self.terms.executor_of(id).is_some_and(|executor| self.own_forked(&executor))
            || due.row.rounds >= ROUNDS && self.late_at(id).is_none_or(|(reason, _)| reason == due.row.reason)
    }

    /// Whether votes may still end an open record: finalization waits for these. What has its end and waits for a diff needs
    /// no more of them.
    pub(super) fn votes_pending(&self) -> bool {
        let voted = |id| self.ripe.contains_key(&id) && !self.pending.speaks_of(id);
        let ends = |id: &u64| self.end_spoken(*id) || voted(*id);
        self.dues.iter().any(|(id, due)| !self.exhausted(*id, due) && !ends(id))
    }

    /// Begins rounds that are due, and ends rounds that took too long.
    pub(super) fn run_timeouts(&mut self) {
        if self.state.phase() == Phase::Frozen || self.stopping {
            return;
        }
        let now = self.now;
        let mut begin = Vec::new();
        let mut end = Vec::new();
        for (id, due) in &self.dues {
            if self.ripe.contains_key(id) || self.exhausted(*id, due) {
                continue;
            }
            match &due.round {
                Some(round) if now.mono_ms >= round.began_ms.saturating_add(QUEUE_MS) => end.push(*id),
                Some(_) => {}
                None => {
                    if let Some((reason, at)) = self.late_at(*id)
                        && now.unix_s() >= at
                        && now.mono_ms >= due.not_before_ms
                    {
                        begin.push((*id, reason));
                    }
                }
            }
        }
        for id in end {
            self.round_over(id);
        }
        for (id, reason) in begin {
            self.begin_round(id, reason);
        }
        if self.dues.values().any(|due| due.round.as_ref().is_some_and(|round| !round.open.is_empty())) {
            self.ask_votes();
        }
    }

    fn begin_round(&mut self, id: u64, reason: u8) {
        let now = self.now.mono_ms;
        if self.pending.speaks_of(id) {
            // The next diff publishes it; then the record is judged anew.
            if let Some(due) = self.dues.get_mut(&id) {
                due.not_before_ms = now.saturating_add(SETTLE_MS);
            }
            return;
        }
        let executor = self.state.record(id).and_then(|record| self.terms.owner_of(record.executor_slot));
        let Some(executor) = executor else { return };
        if self.remind(id) {
            return;
        }
        // What the executor may have for us, before others are asked.
        self.poll_pending(&executor);
        let open: BTreeSet<Address> =
            self.members.keys().filter(|p| **p != executor && !self.flagged(p)).copied().collect();
        if let Some(due) = self.dues.get_mut(&id) {
            due.round = Some(Round { reason, began_ms: now, open, ..Round::default() });
        }
        self.log(
            "escrow_timeout_round",
            false,
            Some(executor),
            vec![("id", id.to_string()), ("reason", reason.to_string())],
        );
        self.ask_votes();
        self.judge_round(id);
    }

    /// Asks for votes as far as the voters have room.
    pub(super) fn ask_votes(&mut self) {
        let wanted: Vec<(u64, Address)> = self
            .dues
            .iter()
            .filter_map(|(id, due)| due.round.as_ref().map(|round| (id, round)))
            .flat_map(|(id, round)| round.open.iter().map(|voter| (*id, *voter)))
            .collect();
        for (id, voter) in wanted {
            if self.flagged(&voter) {
                // Flagged since the round began: its word is not asked for.
                if let Some(round) = self.dues.get_mut(&id).and_then(|due| due.round.as_mut()) {
                    round.open.remove(&voter);
                }
                self.judge_round(id);
                continue;
            }
            let Some(member) = self.members.get_mut(&voter) else { continue };
            let Some(permit) = self.permits.vote(&voter) else { continue };
            member.votes.push(permit);
            if let Some(round) = self.dues.get_mut(&id).and_then(|due| due.round.as_mut()) {
                round.open.remove(&voter);
                round.out.insert(voter);
            }
            self.bring(&voter, Then::Vote(id));
        }
    }

    /// Sends the question with the tail.
    pub(super) fn send_vote(&mut self, voter: &Address, id: u64, diffs: Vec<Vec<u8>>) {
        let reason = self.dues.get(&id).and_then(|due| due.round.as_ref()).map(|round| round.reason);
        let Some(reason) = reason else { return self.vote_done(voter, id, Err(CallError::Aborted)) };
        let body = BODIES.get(self.ledger.durable(), &(self.terms.escrow_id, id)).ok().flatten();
        let call = HostCall::VoteTimeout(pb::VoteTimeoutRequest {
            escrow_id: self.terms.escrow_id,
            inference_id: id,
            reason: u32::from(reason),
            diffs,
            body: body.unwrap_or_default(),
        });
        self.call(voter, call, self.cfg.vote_ms, Lane::Free, Purpose::Vote { id });
    }

    /// A vote came back, or will not.
    pub(super) fn vote_done(
        &mut self,
        voter: &Address,
        id: u64,
        result: Result<pb::VoteTimeoutResponse, CallError>,
    ) {
        if let Some(member) = self.member(voter) {
            // Any of them: they are alike.
            drop(member.votes.pop());
        }
        let reason = match self.dues.get_mut(&id).and_then(|due| due.round.as_mut()) {
            Some(round) if round.out.contains(voter) => {
                round.out.remove(voter);
                round.reason
            }
            // An answer to a round that is over.
            _ => return self.ask_votes(),
        };
        match result {
            Ok(reply) => {
                for tx in reply.executor_txs.iter().take(8) {
                    self.intake(tx);
                }
                self.stop_challenged(id);
                let mut signers = Signers::default();
                let vote = self.verified_vote(voter, id, reason, &reply, &mut signers);
                if let Some(round) = self.dues.get_mut(&id).and_then(|due| due.round.as_mut()) {
                    match vote {
                        Some(vote) => {
                            round.signers.extend(signers);
                            round.yes.insert(*voter, vote);
                        }
                        None if reply.accept => round.errors += 1,
                        None => round.no += 1,
                    }
                }
            }
            Err(error) => {
                if let CallError::Host(error) = &error {
                    self.vote_error(voter, error);
                } else {
                    self.blame(voter, &error);
                }
                if let Some(round) = self.dues.get_mut(&id).and_then(|due| due.round.as_mut()) {
                    round.errors += 1;
                }
            }
        }
        self.judge_round(id);
        self.ask_votes();
    }

    fn vote_error(&mut self, voter: &Address, error: &pb::EscrowError) {
        use pb::escrow_error::Code;
        match error.code() {
            Code::Behind => self.set_cursor(voter, error.have_nonce.min(self.state.nonce())),
            Code::SessionNotFound => {
                self.set_cursor(voter, 0);
                self.bind(voter);
            }
            _ => self.host_error(voter, error),
        }
    }

    /// The vote, if its signature is by a key of the slot it names and that slot is the voter's own.
    fn verified_vote(
        &self,
        voter: &Address,
        id: u64,
        reason: u8,
        reply: &pb::VoteTimeoutResponse,
        signers: &mut Signers,
    ) -> Option<Vote> {
        let voter_slot = u8::try_from(reply.voter_slot).ok()?;
        let sig = Signature::try_from(reply.signature.as_slice()).ok()?;
        let signed =
            digest::vote(&self.terms.chain_id, self.terms.escrow_id, id, reason, voter_slot, reply.accept);
        let signer = signers.recover(&signed, &sig)?;
        let counts = reply.accept
            && self.terms.owner_of(voter_slot) == Some(*voter)
            && self.state.authorised(voter_slot, &signer);
        counts.then_some(Vote { voter_slot, accept: true, sig })
    }

    /// Enough votes, or nobody left to ask?
    fn judge_round(&mut self, id: u64) {
        let Some(round) = self.dues.get(&id).and_then(|due| due.round.as_ref()) else { return };
        let mut votes: Vec<Vote> = round.yes.values().cloned().collect();
        votes.sort_by_key(|vote| vote.voter_slot);
        let tx = Tx::TimeoutInference { id, reason: round.reason, votes };
        // The state machine is the only judge of weight.
        if !round.yes.is_empty()
            && let Ok(tx) = Recovered::new(tx, round.signers.clone()).check(&self.state, None)
        {
            let now = self.now.mono_ms;
            self.ripe.insert(id, (tx, now));
            if let Some(due) = self.dues.get_mut(&id) {
                due.round = None;
            }
            return;
        }
        if round.open.is_empty() && round.out.is_empty() {
            self.round_over(id);
        }
    }

    fn round_over(&mut self, id: u64) {
        let now = self.now.mono_ms;
        let wait = self.cfg.vote_round_ms;
        let spoken = self.pending.speaks_of(id);
        let escrow = self.terms.escrow_id;
        let executor = self.state.record(id).and_then(|record| self.terms.owner_of(record.executor_slot));
        let Some(due) = self.dues.get_mut(&id) else { return };
        let Some(round) = due.round.take() else { return };
        due.not_before_ms = now.saturating_add(if spoken { SETTLE_MS } else { wait });
        if spoken {
            // The voters brought the executor's word: that decides, not the votes.
            return;
        }
        if due.row.reason != round.reason {
            (due.row.reason, due.row.rounds) = (round.reason, 0);
        }
        due.row.rounds = due.row.rounds.saturating_add(1);
        let row = due.row.clone();
        self.ledger.set(&DUES, &(escrow, id), &row);
        let status = if row.rounds >= ROUNDS { "insufficient_votes" } else { "vote_collection_failed" };
        self.log(
            "escrow_timeout",
            row.rounds >= ROUNDS,
            executor,
            vec![
                ("id", id.to_string()),
                ("status", status.to_owned()),
                ("yes", round.yes.len().to_string()),
                ("no", round.no.to_string()),
                ("errors", round.errors.to_string()),
                ("unasked", (round.open.len() + round.out.len()).to_string()),
            ],
        );
    }

    /// The timeout stands in a durable diff.
    pub(super) fn timeout_applied(&mut self, id: u64, reason: u8) {
        let executor = self.terms.executor_of(id);
        self.metric_count("gateway_timeouts_total", executor, 1);
        self.log(
            "escrow_timeout",
            false,
            executor,
            vec![("id", id.to_string()), ("reason", reason.to_string()), ("status", "applied".to_owned())],
        );
    }

    /// The state did not take the timeout: its votes are void.
    pub(super) fn timeout_refused(&mut self, id: Option<u64>) {
        let Some(id) = id else { return };
        self.ripe.remove(&id);
        let at = self.now.mono_ms.saturating_add(SETTLE_MS);
        if let Some(due) = self.dues.get_mut(&id) {
            due.not_before_ms = at;
        }
        self.log(
            "escrow_timeout",
            true,
            self.terms.executor_of(id),
            vec![("id", id.to_string()), ("status", "diff_send_failed".to_owned())],
        );
    }
}
