//! One replica: diffs on its state, and the transactions of this host that wait for a diff.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_escrow::session::{
    ApplyError, Diff, Hash, InferenceStatus, MAX_DIFF_BYTES, Phase, State, Tx, TxKey, check_tx, digest,
    recover,
};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_store::{BranchKv, KvRead, WriteSet};

use super::rows::{JOBS, LOG, LogRow, PENDING, PendingRow, SNAPSHOTS, SnapshotRow};
use super::rules::{Place, Via};
use super::{DIFFS_MAX, HostCore, PENDING_LISTED, SNAPSHOT_EVERY, errors};

/// A replica in memory.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) state: State,
    pub(super) resets: u32,
    /// By what they say; the number orders them.
    pub(super) pending: BTreeMap<TxKey, (u64, PendingRow)>,
    pub(super) next_number: u64,
    /// Inferences without an outcome.
    pub(super) running: BTreeSet<u64>,
    /// Transactions of executors that a challenge brought to light.
    pub(super) learned: BTreeMap<TxKey, Tx>,
    /// Bytes of its diffs.
    pub(super) bytes: u64,
}

/// What a call would make of a replica; nothing of it is there before the commit.
pub(super) struct Stage {
    pub(super) writes: WriteSet,
    pub(super) replica: Replica,
}

impl Replica {
    pub(super) fn new(state: State, resets: u32) -> Self {
        Self {
            state,
            resets,
            pending: BTreeMap::new(),
            next_number: 0,
            running: BTreeSet::new(),
            learned: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub(super) fn escrow_id(&self) -> u64 {
        self.state.config().escrow_id
    }

    pub(super) fn root(&self) -> Hash {
        self.state.root()
    }

    /// Keys of own transactions that were left out for more than 2·N nonces.
    pub(super) fn stale(&self) -> Vec<Vec<u8>> {
        let patience = self.state.config().group_size().saturating_mul(2);
        let old = |row: &PendingRow| self.state.nonce() > row.since.saturating_add(patience);
        self.listed(|row| old(row))
    }

    /// Waiting transactions, oldest first, as many as a diff holds.
    pub(super) fn listed(&self, which: impl Fn(&PendingRow) -> bool) -> Vec<Vec<u8>> {
        let mut rows: Vec<_> = self.pending.values().filter(|(_, row)| which(row)).collect();
        rows.sort_by_key(|(number, _)| *number);
        rows.into_iter().take(PENDING_LISTED).map(|(_, row)| row.tx.clone()).collect()
    }

    /// Whether a transaction may still go into a diff after this state.
    fn may_follow(&self, key: &TxKey) -> bool {
        let (TxKey::Confirm(id) | TxKey::Finish(id) | TxKey::Error(id)) = key else {
            return match key {
                TxKey::Bind(owner, seq) => self.state.keys().get(owner).is_none_or(|key| key.seq < *seq),
                _ => false,
            };
        };
        if *id > self.state.nonce() {
            // A replica that was dropped is taught again.
            return true;
        }
        match self.state.record(*id).map(|record| record.status) {
            Some(InferenceStatus::Pending) => true,
            Some(InferenceStatus::Started) => !matches!(key, TxKey::Confirm(_)),
            _ => false,
        }
    }

    /// Forgets what the diff carried and what can follow no more; removed rows go into `branch`.
    fn prune(&mut self, branch: &mut BranchKv<'_>, diff: &Diff) -> Result<(), holdfast_store::StoreError> {
        let escrow_id = self.escrow_id();
        let frozen = self.state.phase() == Phase::Frozen;
        let touched: BTreeSet<TxKey> = diff
            .txs
            .iter()
            .flat_map(|tx| match tx.inference_id() {
                Some(id) => vec![TxKey::Confirm(id), TxKey::Finish(id), TxKey::Error(id)],
                None => vec![tx.key()],
            })
            .collect();
        let keys: Vec<TxKey> =
            if frozen { self.pending.keys().copied().collect() } else { touched.into_iter().collect() };
        for key in keys {
            if !frozen && self.may_follow(&key) {
                continue;
            }
            self.learned.remove(&key);
            if let Some((number, _)) = self.pending.remove(&key) {
                PENDING.remove(branch, &(escrow_id, number))?;
            }
        }
        Ok(())
    }

    /// Adds a transaction of this host.
    pub(super) fn add_pending(
        &mut self,
        branch: &mut BranchKv<'_>,
        tx: &Tx,
    ) -> Result<(), holdfast_store::StoreError> {
        if self.pending.contains_key(&tx.key()) || !self.may_follow(&tx.key()) {
            return Ok(());
        }
        let row = PendingRow { tx: tx.to_bytes(), since: self.state.nonce() };
        let number = self.next_number;
        PENDING.set(branch, &(self.escrow_id(), number), &row)?;
        self.next_number = number.saturating_add(1);
        self.pending.insert(tx.key(), (number, row));
        Ok(())
    }
}

impl HostCore {
    /// Applies diffs to a copy of the replica. What comes with the second error was applied before it and is to be
    /// committed all the same.
    pub(super) fn stage(
        &mut self,
        escrow_id: u64,
        diffs: &[Vec<u8>],
        via: Via,
    ) -> Result<(Stage, Option<pb::EscrowError>), pb::EscrowError> {
        let mut replica = self.replica(escrow_id)?.clone();
        if diffs.len() > DIFFS_MAX {
            return Err(errors::too_large("diffs", diffs.len(), DIFFS_MAX));
        }
        let room = self.config.bytes_max.saturating_sub(self.bytes());
        let mut branch = self.branch(WriteSet::new());
        let before = replica.bytes;
        let mut stop = None;
        for bytes in diffs {
            if replica.bytes.saturating_sub(before).saturating_add(bytes.len() as u64) > room {
                stop = Some(errors::unavailable("no room for more diffs on this host"));
                break;
            }
            let step = self.step(&mut replica, &mut branch, bytes, via);
            if let Err(error) = step {
                stop = Some(error);
                break;
            }
        }
        Ok((Stage { writes: branch.into_writes(), replica }, stop))
    }

    fn step(
        &self,
        replica: &mut Replica,
        branch: &mut BranchKv<'_>,
        bytes: &[u8],
        via: Via,
    ) -> Result<(), pb::EscrowError> {
        if bytes.len() > MAX_DIFF_BYTES {
            return Err(errors::too_large("diff", bytes.len(), MAX_DIFF_BYTES));
        }
        let diff = Diff::from_bytes(bytes).map_err(|error| errors::bad_tx(error.to_string()))?;
        let have = replica.state.nonce();
        let config = replica.state.config().clone();
        if diff.escrow_id != config.escrow_id {
            let cause = ApplyError::WrongEscrow { expected: config.escrow_id, got: diff.escrow_id };
            return Err(errors::refused(have, diff.nonce, &cause));
        }
        if diff.nonce > have.saturating_add(1) {
            return Err(errors::behind(have));
        }
        let diff_digest = diff.digest(&config.chain_id);
        if diff.nonce <= have {
            return known(branch, have, &diff, diff_digest, &config.gateway);
        }
        let place = Place { resets: replica.resets, via };
        let (state, root) = self.rules.apply(place, &replica.state, &diff).map_err(|error| match error {
            ApplyError::RootMismatch { nonce, computed, digest: refused, .. } => {
                let what = digest::refusal(&config.chain_id, config.escrow_id, nonce, &refused, &computed);
                errors::mismatch(have, nonce, computed, refused, self.key.sign_recoverable(what))
            }
            error => errors::refused(have, diff.nonce, &error),
        })?;
        replica.state = state;
        replica.bytes = replica.bytes.saturating_add(bytes.len() as u64);
        let key = (config.escrow_id, diff.nonce);
        let row = LogRow { diff: bytes.to_vec(), digest: diff_digest, root };
        LOG.set(branch, &key, &row)
            .and_then(|()| forget_others(branch, replica, diff.nonce))
            .and_then(|()| replica.prune(branch, &diff))
            .and_then(|()| snapshot(branch, &replica.state))
            .map_err(|error| errors::store(&error))
    }
}

/// What was taught again after a reset may be another log than the one that was dropped: a gateway whose store was an older
/// one signs its nonces anew. What this host did about another inference of the same number is no word about this one: it
/// could never go into a diff, so it must not be missed there, nor stand before this one.
fn forget_others(
    branch: &mut BranchKv<'_>,
    replica: &mut Replica,
    id: u64,
) -> Result<(), holdfast_store::StoreError> {
    let escrow_id = replica.escrow_id();
    let job = if replica.resets > 0 { JOBS.get(branch, &(escrow_id, id))? } else { None };
    let Some(job) = job else { return Ok(()) };
    let same = match (replica.state.record(id), Tx::from_bytes(&job.receipt)) {
        (None, _) => false,
        // The receipt's signature is over the whole Start.
        (Some(_), Ok(receipt)) => check_tx(&replica.state, &receipt).is_ok(),
        (Some(record), Err(_)) => {
            (job.prompt_hash, job.limits) == (record.prompt_hash, (record.input_limit, record.output_limit))
        }
    };
    if same {
        return Ok(());
    }
    JOBS.remove(branch, &(escrow_id, id))?;
    replica.running.remove(&id);
    for key in [TxKey::Confirm(id), TxKey::Finish(id), TxKey::Error(id)] {
        replica.learned.remove(&key);
        if let Some((number, _)) = replica.pending.remove(&key) {
            PENDING.remove(branch, &(escrow_id, number))?;
        }
    }
    Ok(())
}

/// A diff at or below the replica's nonce: the one that was applied is passed over, another one is a fork.
fn known(
    store: &dyn KvRead,
    have: u64,
    diff: &Diff,
    diff_digest: Hash,
    gateway: &holdfast_types::Address,
) -> Result<(), pb::EscrowError> {
    let row = LOG.get(store, &(diff.escrow_id, diff.nonce)).map_err(|error| errors::store(&error))?;
    let Some(row) = row else {
        return Err(errors::refused(
            have,
            diff.nonce,
            &ApplyError::WrongNonce { expected: have.saturating_add(1), got: diff.nonce },
        ));
    };
    if row.digest == diff_digest {
        return Ok(());
    }
    // Anybody can write another diff; only the gateway can fork its log.
    if recover(&diff_digest, &diff.signature).ok() != Some(*gateway) {
        return Err(errors::refused(have, diff.nonce, &ApplyError::BadDiffSignature));
    }
    Err(errors::fork(have, diff.nonce, row.digest, row.diff))
}

/// Writes a snapshot when one is due, and drops the one before the last.
fn snapshot(branch: &mut BranchKv<'_>, state: &State) -> Result<(), holdfast_store::StoreError> {
    let nonce = state.nonce();
    if !nonce.is_multiple_of(SNAPSHOT_EVERY) && state.phase() != Phase::Frozen {
        return Ok(());
    }
    let escrow_id = state.config().escrow_id;
    SNAPSHOTS.set(branch, &(escrow_id, nonce), &SnapshotRow::new(state.to_bytes()))?;
    let due = nonce - nonce % SNAPSHOT_EVERY;
    match due.checked_sub(2 * SNAPSHOT_EVERY) {
        Some(old) => SNAPSHOTS.remove(branch, &(escrow_id, old)),
        None => Ok(()),
    }
}
