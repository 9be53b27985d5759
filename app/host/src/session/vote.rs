//! Votes on timeouts (escrow-details 7).
//!
//! ```text
//!  VoteTimeout ─► diffs applied, record late, nothing known here ─► ChallengeStart at the executor ─► vote
//!                     │ fails                    │ something known              10 s at most
//!                     ▼                          ▼
//!                  an error, no vote           a vote against, with it
//! ```

use holdfast_escrow::session::{
    Diff, InferenceRecord, InferenceStatus, KIND_CANCELLED, REASON_EXECUTION, REASON_REFUSED, State, Tx,
    TxKey, check_tx, digest, recover,
};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use super::rows::LOG;
use super::rules::Via;
use super::{GET_DIFFS_MAX, HostCore, Refusal, errors, read};
use crate::auth;
use crate::body::BODY_MAX;

/// Transactions of executors that are remembered of one session.
const LEARNED_MAX: usize = 256;
/// How much later than the question a receipt may be, seconds: ten for the answer, and the clocks differ as those of signed
/// calls may.
pub const AHEAD_S: u64 = 10 + auth::WINDOW_MS / 1_000;

/// What VoteTimeout leads to.
#[derive(Debug, Clone, PartialEq)]
pub enum VoteStep {
    /// The vote.
    Voted(pb::VoteTimeoutResponse),
    /// Ask the executor first, ten seconds at most, and hand its answer to [`HostCore::vote_answered`].
    Ask {
        /// Whom.
        executor: Address,
        /// What.
        request: pb::ChallengeStartRequest,
        /// For the second half.
        ticket: VoteTicket,
    },
}

/// A vote that waits for the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteTicket {
    escrow_id: u64,
    id: u64,
    reason: u8,
    slot: u8,
    /// When it was asked for.
    unix_s: u64,
}

impl HostCore {
    /// First half of a vote: the diffs are applied, and all that can be known here is looked at; `unix_s` is now.
    ///
    /// # Errors
    /// As Teach; Policy when this host may not vote or the body is another; BadTx for an inference that is not open, is not
    /// late yet, or a reason that is none; Policy also for a body that this host would not take either. An error is no vote.
    pub fn vote_timeout(
        &mut self,
        unix_s: u64,
        request: &pb::VoteTimeoutRequest,
    ) -> Result<VoteStep, pb::EscrowError> {
        let pb::VoteTimeoutRequest { escrow_id, inference_id: id, .. } = request;
        if request.body.len() > BODY_MAX {
            return Err(errors::too_large("body", request.body.len(), BODY_MAX));
        }
        self.absorb(*escrow_id, &request.diffs, Via::Peer)?;
        let owner = self.config.owner;
        let replica = self.replica(*escrow_id)?;
        let state = &replica.state;
        if *id > state.nonce() {
            return Err(errors::behind(state.nonce()));
        }
        let reason = u8::try_from(request.reason).unwrap_or(0);
        let record = open(state, *id, reason)?;
        let config = state.config();
        let executor = config.owner_of(record.executor_slot).unwrap_or(owner);
        let slot = config.slots_of(&owner).first().copied();
        let Some(slot) = slot.filter(|_| executor != owner) else {
            return Err(errors::policy("an executor has no vote on its own work"));
        };
        let late_at = match reason {
            REASON_REFUSED => record.started_at.saturating_add(config.refusal_timeout_s.into()),
            _ => record.confirmed_at.saturating_add(config.execution_timeout_s.into()),
        };
        if unix_s < late_at {
            return Err(errors::bad_tx(format!("inference {id} is late at {late_at}, it is {unix_s} here")));
        }
        let body_fits = record.prompt_hash[..] == Sha256::digest(&request.body)[..];
        if !body_fits && (reason == REASON_REFUSED || !request.body.is_empty()) {
            return Err(errors::policy("the body is not the one whose SHA-256 was started"));
        }
        let ticket = VoteTicket { escrow_id: *escrow_id, id: *id, reason, slot, unix_s };
        let known: Vec<Tx> = [TxKey::Confirm(*id), TxKey::Finish(*id), TxKey::Error(*id)]
            .iter()
            .filter_map(|key| replica.learned.get(key).cloned())
            .filter(|tx| check_tx(state, tx).is_ok())
            .collect();
        if !known.is_empty() {
            return Ok(VoteStep::Voted(self.vote(&ticket, &known)));
        }
        // Work that nobody could do is no refusal. A host that has no room now still knows what it could do otherwise.
        if reason == REASON_REFUSED {
            let (input_limit, output_limit) = (record.input_limit, record.output_limit);
            if let Err(Refusal::Policy(message)) =
                self.admission.check(&request.body, input_limit, output_limit)
            {
                return Err(errors::policy(message));
            }
        }
        let request = pb::ChallengeStartRequest {
            escrow_id: *escrow_id,
            inference_id: *id,
            diffs: request.diffs.clone(),
            body: request.body.clone(),
        };
        Ok(VoteStep::Ask { executor, request, ticket })
    }

    /// Second half: `answer` is the executor's, `None` when it gave none in time.
    ///
    /// # Errors
    /// BadTx when the inference has ended meanwhile; as any call of the session.
    pub fn vote_answered(
        &mut self,
        ticket: &VoteTicket,
        answer: Option<&pb::ChallengeStartResponse>,
    ) -> Result<pb::VoteTimeoutResponse, pb::EscrowError> {
        let replica = self.replica(ticket.escrow_id)?;
        let state = &replica.state;
        let record = open(state, ticket.id, ticket.reason)?;
        let words = answer.map_or_else(Vec::new, |answer| words(state, record, ticket, answer));
        let vote = self.vote(ticket, &words);
        let mut replica = self.replica(ticket.escrow_id)?.clone();
        for tx in words {
            if replica.learned.len() < LEARNED_MAX {
                replica.learned.insert(tx.key(), tx);
            }
        }
        self.commit(holdfast_store::WriteSet::new(), replica)?;
        Ok(vote)
    }

    /// The challenge once more, for an executor that answered Behind at `have_nonce`: with what it lacks from the own log,
    /// as many diffs as a call carries. `None` when that brings it no further. A gateway that taught the voters alone must
    /// not make an executor late that never heard of the start.
    ///
    /// # Errors
    /// As any call of the session.
    pub fn challenge_with_log(
        &mut self,
        request: &pb::ChallengeStartRequest,
        have_nonce: u64,
    ) -> Result<Option<pb::ChallengeStartRequest>, pb::EscrowError> {
        self.replica(request.escrow_id)?;
        let diffs = self.log(request.escrow_id, have_nonce.saturating_add(1), GET_DIFFS_MAX)?;
        if diffs.is_empty() || diffs.first() == request.diffs.first() {
            return Ok(None);
        }
        Ok(Some(pb::ChallengeStartRequest { diffs, ..request.clone() }))
    }

    /// The challenge once more, with the own diff at `nonce` alone: an executor that was given another one there says so.
    ///
    /// # Errors
    /// As any call of the session.
    pub fn challenge_at(
        &mut self,
        request: &pb::ChallengeStartRequest,
        nonce: u64,
    ) -> Result<pb::ChallengeStartRequest, pb::EscrowError> {
        self.replica(request.escrow_id)?;
        let diffs = self.log(request.escrow_id, nonce, 1)?;
        Ok(pb::ChallengeStartRequest { diffs, ..request.clone() })
    }

    /// Whether the refusal of a challenged executor shows two diffs of the gateway at one nonce, of which it was given the
    /// other: that it cannot take the work up is the gateway's doing, and no vote is given.
    pub fn forked_by_gateway(&mut self, escrow_id: u64, error: &pb::EscrowError) -> bool {
        let Ok(diff) = Diff::from_bytes(&error.diff) else { return false };
        let Ok(replica) = self.replica(escrow_id) else { return false };
        let config = replica.state.config().clone();
        let Ok(ours) = LOG.get(read(self.db.as_ref()), &(escrow_id, diff.nonce)) else { return false };
        let digest = diff.digest(&config.chain_id);
        diff.escrow_id == escrow_id
            && ours.is_some_and(|ours| ours.digest != digest)
            && recover(&digest, &diff.signature) == Ok(config.gateway)
    }

    /// Signs: yes when the executor gave nothing that counts.
    fn vote(&self, ticket: &VoteTicket, words: &[Tx]) -> pb::VoteTimeoutResponse {
        let VoteTicket { escrow_id, id, reason, slot, .. } = *ticket;
        let accept = words.is_empty();
        let digest = digest::vote(&self.config.chain_id, escrow_id, id, reason, slot, accept);
        pb::VoteTimeoutResponse {
            accept,
            voter_slot: slot.into(),
            signature: self.sign(digest),
            executor_txs: words.iter().map(Tx::to_bytes).collect(),
        }
    }
}

/// The record, if it is in the status that the reason is about.
fn open(state: &State, id: u64, reason: u8) -> Result<&InferenceRecord, pb::EscrowError> {
    let wanted = match reason {
        REASON_REFUSED => InferenceStatus::Pending,
        REASON_EXECUTION => InferenceStatus::Started,
        other => return Err(errors::bad_tx(format!("reason: 1 (refused) or 2 (execution), got {other}"))),
    };
    let record = state.record(id).ok_or_else(|| errors::bad_tx(format!("inference {id} is not live")))?;
    if record.status == wanted {
        Ok(record)
    } else {
        Err(errors::bad_tx(format!("inference {id} is {:?}, not {wanted:?}", record.status)))
    }
}

/// What of an executor's answer counts: transactions that apply, a receipt only of now, since one of a time to come would
/// never be late, and a cancellation only beside the gateway's own word.
fn words(
    state: &State,
    record: &InferenceRecord,
    ticket: &VoteTicket,
    answer: &pb::ChallengeStartResponse,
) -> Vec<Tx> {
    let mut words = Vec::new();
    let receipt = Tx::from_bytes(&answer.receipt).ok();
    let outcome = Tx::from_bytes(&answer.outcome).ok();
    if let Some(tx @ Tx::ConfirmStart { id, confirmed_at, .. }) = receipt
        && ticket.reason == REASON_REFUSED
        && id == record.id
        && confirmed_at <= ticket.unix_s.saturating_add(AHEAD_S)
        && check_tx(state, &tx).is_ok()
    {
        words.push(tx);
    }
    match outcome {
        Some(tx @ Tx::FinishInference { id, .. }) if id == record.id && check_tx(state, &tx).is_ok() => {
            words.push(tx);
        }
        Some(tx @ Tx::ReportError { id, kind, .. })
            if id == record.id
                && check_tx(state, &tx).is_ok()
                && (kind != KIND_CANCELLED || cancelled_by_gateway(state, id, answer)) =>
        {
            words.push(tx);
        }
        _ => {}
    }
    words
}

fn cancelled_by_gateway(state: &State, id: u64, answer: &pb::ChallengeStartResponse) -> bool {
    let Some(pb::SignedCancel { request: Some(request), auth }) = &answer.cancel else { return false };
    let config = state.config();
    request.escrow_id == config.escrow_id
        && request.inference_id == id
        && auth::verify_kept(auth, &config.chain_id, config.escrow_id, "CancelInference", request)
            == Ok(config.gateway)
}
