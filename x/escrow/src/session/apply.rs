//! Applying diffs.

use std::sync::Arc;

use holdfast_types::{Address, Signature, recover};

use super::errors::VoteFault;
use super::live::{InferenceRecord, InferenceStatus};
use super::signers::Signers;
use super::state::{BoundKey, Keys};
use super::{
    ApplyError, Diff, Hash, HostStats, KIND_CANCELLED, KIND_MAX, MAX_DIFF_BYTES, MAX_TXS, Phase,
    REASON_EXECUTION, REASON_REFUSED, SEAL_INTERVAL, State, Tx, Vote, digest,
};

/// Encoded bytes of a diff without its transactions.
const DIFF_FRAME: usize = 8 + 8 + 4 + 32 + 65;

/// The state after `diff`, and its root (escrow-details 3).
///
/// # Errors
/// [`ApplyError`]; `state` is as it was in any case.
pub fn apply(state: &State, diff: &Diff) -> Result<(State, Hash), ApplyError> {
    let config = state.config();
    if diff.escrow_id != config.escrow_id {
        return Err(ApplyError::WrongEscrow { expected: config.escrow_id, got: diff.escrow_id });
    }
    check_position(state, diff.nonce)?;
    check_size(&diff.txs)?;
    let diff_digest = diff.digest(&config.chain_id);
    if recover(&diff_digest, &diff.signature).ok() != Some(config.gateway) {
        return Err(ApplyError::BadDiffSignature);
    }
    check_reserve(state, diff.nonce, &diff.txs)?;

    let mut next = state.clone();
    let last = diff.txs.len().saturating_sub(1);
    for (position, tx) in diff.txs.iter().enumerate() {
        if position != last && matches!(tx, Tx::StartInference { .. } | Tx::FinalizeRound) {
            return Err(ApplyError::NotLast);
        }
        next.apply_tx(diff.nonce, tx, &mut Signers::default())?;
    }
    let root = next.close(diff.nonce)?;
    if root != diff.post_state_root {
        return Err(ApplyError::RootMismatch {
            nonce: diff.nonce,
            computed: root,
            claimed: diff.post_state_root,
            digest: diff_digest,
        });
    }
    Ok((next, root))
}

pub(super) fn check_position(state: &State, nonce: u64) -> Result<(), ApplyError> {
    if state.phase == Phase::Frozen {
        return Err(ApplyError::Frozen { nonce: state.nonce });
    }
    let expected = state.nonce.checked_add(1).ok_or(ApplyError::Overflow("nonce"))?;
    if nonce != expected {
        return Err(ApplyError::WrongNonce { expected, got: nonce });
    }
    let max = state.config.max_nonce;
    if nonce > max {
        return Err(ApplyError::NonceLimit { nonce, max });
    }
    Ok(())
}

pub(super) fn check_size(txs: &[Tx]) -> Result<(), ApplyError> {
    if txs.len() > MAX_TXS {
        return Err(ApplyError::TooManyTxs(txs.len()));
    }
    match encoded_len(txs) {
        bytes if bytes > MAX_DIFF_BYTES => Err(ApplyError::TooLarge(bytes)),
        _ => Ok(()),
    }
}

pub(super) fn encoded_len(txs: &[Tx]) -> usize {
    txs.iter().fold(DIFF_FRAME, |sum, tx| sum.saturating_add(tx.to_bytes().len()))
}

/// `nonce` is the next one.
pub(super) fn check_reserve(state: &State, nonce: u64, txs: &[Tx]) -> Result<(), ApplyError> {
    if state.must_finalize() && !matches!(txs.last(), Some(Tx::FinalizeRound)) {
        return Err(ApplyError::NonceReserve { nonce, max: state.config.max_nonce });
    }
    Ok(())
}

pub(super) fn name(tx: &Tx) -> &'static str {
    match tx {
        Tx::StartInference { .. } => "StartInference",
        Tx::ConfirmStart { .. } => "ConfirmStart",
        Tx::FinishInference { .. } => "FinishInference",
        Tx::TimeoutInference { .. } => "TimeoutInference",
        Tx::ReportError { .. } => "ReportError",
        Tx::BindWarmKey { .. } => "BindWarmKey",
        Tx::FinalizeRound => "FinalizeRound",
    }
}

/// Each step checks everything first and changes the state last, so that a refused transaction of a host can be left
/// out of a diff that goes on.
impl State {
    pub(super) fn apply_tx(&mut self, nonce: u64, tx: &Tx, signers: &mut Signers) -> Result<(), ApplyError> {
        match tx {
            Tx::StartInference { prompt_hash, input_limit, output_limit, started_at } => {
                self.start(nonce, *prompt_hash, *input_limit, *output_limit, *started_at)
            }
            Tx::ConfirmStart { id, confirmed_at, sig } => self.confirm(*id, *confirmed_at, sig, signers),
            Tx::FinishInference { id, input_tokens, output_tokens, response_hash, sig } => {
                self.finish(*id, (*input_tokens, *output_tokens), response_hash, sig, signers)
            }
            Tx::TimeoutInference { id, reason, votes } => self.timeout(*id, *reason, votes, signers),
            Tx::ReportError { id, kind, input_tokens, output_tokens, sig } => {
                self.report_error(*id, *kind, (*input_tokens, *output_tokens), sig, signers)
            }
            Tx::BindWarmKey { owner, warm, seq, sig } => self.bind(owner, warm, *seq, sig, signers),
            Tx::FinalizeRound => self.finalize(nonce),
        }
    }

    fn start(
        &mut self,
        nonce: u64,
        prompt_hash: Hash,
        input_limit: u32,
        output_limit: u32,
        started_at: u64,
    ) -> Result<(), ApplyError> {
        if self.phase != Phase::Active {
            return Err(ApplyError::WrongPhase { tx: "StartInference", phase: self.phase });
        }
        if self.live.len() >= self.config.max_live {
            return Err(ApplyError::TooManyLive(self.live.len()));
        }
        for (field, limit) in [("input_limit", input_limit), ("output_limit", output_limit)] {
            if limit == 0 {
                return Err(ApplyError::ZeroLimit(field));
            }
        }
        let reserved = self.price(input_limit, output_limit)?;
        let balance = self
            .balance
            .checked_sub(reserved)
            .ok_or(ApplyError::BalanceTooLow { balance: self.balance, needed: reserved })?;
        let held = self.reserved.checked_add(reserved).ok_or(ApplyError::Overflow("reserved"))?;
        let executor_slot = self.config.executor_slot(nonce);
        self.count(executor_slot, |row| &mut row.started)?;
        (self.balance, self.reserved) = (balance, held);
        self.live.put(InferenceRecord {
            id: nonce,
            status: InferenceStatus::Pending,
            executor_slot,
            prompt_hash,
            input_limit,
            output_limit,
            reserved,
            started_at,
            confirmed_at: 0,
            response_hash: [0; 32],
            input_tokens: 0,
            output_tokens: 0,
            cost: 0,
        });
        Ok(())
    }

    fn confirm(
        &mut self,
        id: u64,
        confirmed_at: u64,
        sig: &Signature,
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        let mut record = self.record_in(id, "ConfirmStart", |status| status == InferenceStatus::Pending)?;
        let config = &self.config;
        let digest = digest::receipt(&config.chain_id, config.escrow_id, &record, confirmed_at);
        self.signed_for(record.executor_slot, &digest, sig, signers)?;
        record.status = InferenceStatus::Started;
        record.confirmed_at = confirmed_at;
        self.live.put(record);
        Ok(())
    }

    fn finish(
        &mut self,
        id: u64,
        tokens: (u32, u32),
        response_hash: &Hash,
        sig: &Signature,
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        let mut record =
            self.record_in(id, "FinishInference", |status| status == InferenceStatus::Started)?;
        within_limits(&record, tokens)?;
        let slot = record.executor_slot;
        let config = &self.config;
        let digest =
            digest::finish(&config.chain_id, config.escrow_id, id, slot, tokens.0, tokens.1, response_hash);
        self.signed_for(slot, &digest, sig, signers)?;
        let cost = self.price(tokens.0, tokens.1)?;
        record.response_hash = *response_hash;
        self.end(record, InferenceStatus::Finished, tokens, cost, |row| &mut row.completed)
    }

    fn report_error(
        &mut self,
        id: u64,
        kind: u8,
        tokens: (u32, u32),
        sig: &Signature,
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        let record = self.record_in(id, "ReportError", InferenceStatus::is_open)?;
        if kind == 0 || kind > KIND_MAX {
            return Err(ApplyError::UnknownKind(kind));
        }
        within_limits(&record, tokens)?;
        let slot = record.executor_slot;
        let config = &self.config;
        let digest = digest::error(&config.chain_id, config.escrow_id, id, slot, kind, tokens.0, tokens.1);
        self.signed_for(slot, &digest, sig, signers)?;
        if kind == KIND_CANCELLED {
            let share = u128::from(self.config.cancel_charge_bp);
            let cost = self.price(tokens.0, tokens.1)?.checked_mul(share).map(|cost| cost / 10_000);
            let cost = cost.ok_or(ApplyError::Overflow("cost"))?.min(record.reserved);
            self.end(record, InferenceStatus::Released, tokens, cost, |row| &mut row.released)
        } else {
            self.end(record, InferenceStatus::Errored, tokens, 0, |row| &mut row.errored)
        }
    }

    fn timeout(
        &mut self,
        id: u64,
        reason: u8,
        votes: &[Vote],
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        let needed = match reason {
            REASON_REFUSED => InferenceStatus::Pending,
            REASON_EXECUTION => InferenceStatus::Started,
            other => return Err(ApplyError::UnknownReason(other)),
        };
        let record = self.record_in(id, "TimeoutInference", |status| status == needed)?;
        self.count_votes(id, reason, record.executor_slot, votes, signers)?;
        let tokens = (record.input_tokens, record.output_tokens);
        self.end(record, InferenceStatus::Missed, tokens, 0, |row| &mut row.missed)
    }

    /// Weight rule: `accept_weight · 10 000 > E · vote_threshold_bp`, E = slots that are not the executor's owner's.
    fn count_votes(
        &self,
        id: u64,
        reason: u8,
        executor: u8,
        votes: &[Vote],
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        let config = &self.config;
        let executor_owner = config.owner_of(executor).ok_or(ApplyError::Overflow("executor_slot"))?;
        let mut owners: Vec<Address> = Vec::new();
        let mut weight = 0u64;
        let mut last: Option<u8> = None;
        for vote in votes {
            let slot = vote.voter_slot;
            let bad = |why| ApplyError::BadVote { slot, why };
            if last.is_some_and(|last| last >= slot) {
                return Err(bad(VoteFault::Order));
            }
            last = Some(slot);
            let owner = config.owner_of(slot).ok_or(bad(VoteFault::UnknownSlot))?;
            if owner == executor_owner {
                return Err(bad(VoteFault::Executor));
            }
            if owners.contains(&owner) {
                return Err(bad(VoteFault::SameOwner));
            }
            if !vote.accept {
                return Err(bad(VoteFault::Against));
            }
            let digest = digest::vote(&config.chain_id, config.escrow_id, id, reason, slot, true);
            if !signers.recover(&digest, &vote.sig).is_some_and(|signer| self.authorised(slot, &signer)) {
                return Err(bad(VoteFault::Signature));
            }
            weight = weight.saturating_add(config.weight(&owner));
            owners.push(owner);
        }
        let eligible = config.group_size().saturating_sub(config.weight(&executor_owner));
        let threshold_bp = config.vote_threshold_bp;
        let enough = u128::from(weight).saturating_mul(10_000)
            > u128::from(eligible).saturating_mul(u128::from(threshold_bp));
        if eligible == 0 || !enough {
            return Err(ApplyError::InsufficientVotes { weight, eligible, threshold_bp });
        }
        Ok(())
    }

    fn bind(
        &mut self,
        owner: &Address,
        warm: &Address,
        seq: u32,
        sig: &Signature,
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        let config = &self.config;
        if config.weight(owner) == 0 {
            return Err(ApplyError::NotAMember(*owner));
        }
        let last = self.keys.rows.get(owner).map_or(0, |key| key.seq);
        let expected = u64::from(last).saturating_add(1);
        if u64::from(seq) != expected {
            return Err(ApplyError::WrongKeySeq { expected, got: seq });
        }
        let key = BoundKey { warm: *warm, seq, sig: *sig };
        if signers.recover(&key.digest(config, owner), sig) != Some(*owner) {
            return Err(ApplyError::BadBinding);
        }
        let mut rows = self.keys.rows.clone();
        rows.insert(*owner, key);
        self.keys = Arc::new(Keys { hash: digest::keys(&rows), rows });
        Ok(())
    }

    fn finalize(&mut self, nonce: u64) -> Result<(), ApplyError> {
        if self.phase != Phase::Active {
            return Err(ApplyError::WrongPhase { tx: "FinalizeRound", phase: self.phase });
        }
        (self.phase, self.finalize_nonce) = (Phase::Finalizing, nonce);
        Ok(())
    }

    /// Steps 3 to 6: fee, sealing, draining, root.
    pub(super) fn close(&mut self, nonce: u64) -> Result<Hash, ApplyError> {
        if self.phase == Phase::Active {
            let fee = self.config.fee_per_nonce;
            let low = ApplyError::BalanceTooLow { balance: self.balance, needed: fee };
            self.balance = self.balance.checked_sub(fee).ok_or(low)?;
            self.fees = self.fees.checked_add(fee).ok_or(ApplyError::Overflow("fees"))?;
        }
        if nonce.checked_rem(SEAL_INTERVAL) == Some(0) {
            let grace = u64::from(self.config.seal_grace_nonces);
            self.seal(nonce, |record| !record.status.is_open() && record.id.saturating_add(grace) <= nonce);
        }
        let frozen_at = self.finalize_nonce.saturating_add(self.config.group_size());
        if self.phase == Phase::Finalizing && nonce == frozen_at {
            self.drain()?;
            self.seal(nonce, |_| true);
            self.phase = Phase::Frozen;
        }
        self.nonce = nonce;
        Ok(self.root())
    }

    fn seal(&mut self, nonce: u64, which: impl FnMut(&InferenceRecord) -> bool) {
        for leaf in self.live.take(which) {
            self.sealed_acc = digest::seal(&self.sealed_acc, nonce, &leaf);
        }
    }

    /// The sole sequencer could have left a receipt out, so what is open is paid in full; a refund needs votes.
    fn drain(&mut self) -> Result<(), ApplyError> {
        let open: Vec<InferenceRecord> =
            self.live.iter().filter(|record| record.status.is_open()).cloned().collect();
        for record in open {
            let (tokens, cost) = ((record.input_tokens, record.output_tokens), record.reserved);
            self.end(record, InferenceStatus::Drained, tokens, cost, |row| &mut row.drained)?;
        }
        Ok(())
    }

    /// Ends an open inference: `cost` to its slot, the rest of its reserve to the balance.
    fn end(
        &mut self,
        mut record: InferenceRecord,
        status: InferenceStatus,
        tokens: (u32, u32),
        cost: u128,
        counter: impl FnOnce(&mut HostStats) -> &mut u32,
    ) -> Result<(), ApplyError> {
        let surplus = record.reserved.checked_sub(cost).ok_or(ApplyError::Overflow("cost"))?;
        let balance = self.balance.checked_add(surplus).ok_or(ApplyError::Overflow("balance"))?;
        let held = self.reserved.checked_sub(record.reserved).ok_or(ApplyError::Overflow("reserved"))?;
        let slot = record.executor_slot;
        let earned = self.stats.get(usize::from(slot)).and_then(|row| row.cost.checked_add(cost));
        let earned = earned.ok_or(ApplyError::Overflow("cost"))?;
        self.count(slot, counter)?;
        if let Some(row) = self.stats.get_mut(usize::from(slot)) {
            row.cost = earned;
        }
        (self.balance, self.reserved) = (balance, held);
        (record.status, record.cost) = (status, cost);
        (record.input_tokens, record.output_tokens) = tokens;
        self.live.put(record);
        Ok(())
    }

    fn count(
        &mut self,
        slot: u8,
        counter: impl FnOnce(&mut HostStats) -> &mut u32,
    ) -> Result<(), ApplyError> {
        let row = self.stats.get_mut(usize::from(slot)).ok_or(ApplyError::Overflow("executor_slot"))?;
        let count = counter(row);
        *count = count.checked_add(1).ok_or(ApplyError::Overflow("stats"))?;
        Ok(())
    }

    fn price(&self, input: u32, output: u32) -> Result<u128, ApplyError> {
        u128::from(input)
            .saturating_add(u128::from(output))
            .checked_mul(self.config.token_price)
            .ok_or(ApplyError::Overflow("cost"))
    }

    fn record_in(
        &self,
        id: u64,
        tx: &'static str,
        fits: impl FnOnce(InferenceStatus) -> bool,
    ) -> Result<InferenceRecord, ApplyError> {
        let record = self.live.get(id).ok_or(ApplyError::InferenceNotLive(id))?;
        if !fits(record.status) {
            return Err(ApplyError::WrongStatus { id, status: record.status, tx });
        }
        Ok(record.clone())
    }

    fn signed_for(
        &self,
        slot: u8,
        digest: &Hash,
        sig: &Signature,
        signers: &mut Signers,
    ) -> Result<(), ApplyError> {
        match signers.recover(digest, sig) {
            Some(signer) if self.authorised(slot, &signer) => Ok(()),
            _ => Err(ApplyError::BadSignature { slot }),
        }
    }
}

fn within_limits(record: &InferenceRecord, (input, output): (u32, u32)) -> Result<(), ApplyError> {
    for (field, limit, got) in
        [("input_tokens", record.input_limit, input), ("output_tokens", record.output_limit, output)]
    {
        if got > limit {
            return Err(ApplyError::AboveLimit { id: record.id, field, limit, got });
        }
    }
    Ok(())
}
