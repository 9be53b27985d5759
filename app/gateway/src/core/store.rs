//! What a session keeps on disk, and how: one atomic durable commit per step, then the step counts.

use std::mem;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_escrow::session::{Hash, Signature};
use holdfast_host::store::LocalDb;
use holdfast_store::{
    BranchKv, KeyCodec, KvRead, KvWrite, Map, Order, Prefix, StoreError, WriteSet, assert_distinct,
};
use holdfast_types::Address;

use super::limiter::LimiterRow;

const SPACE: &str = "gateway";
const P_META: Prefix = Prefix::new(SPACE, 1, "meta");
const P_DIFFS: Prefix = Prefix::new(SPACE, 2, "diffs");
const P_SNAPSHOTS: Prefix = Prefix::new(SPACE, 3, "snapshots");
const P_PENDING: Prefix = Prefix::new(SPACE, 4, "pending");
const P_DUES: Prefix = Prefix::new(SPACE, 5, "dues");
const P_BODIES: Prefix = Prefix::new(SPACE, 6, "bodies");
const P_MEMBERS: Prefix = Prefix::new(SPACE, 7, "members");
const P_SIGNATURES: Prefix = Prefix::new(SPACE, 8, "signatures");
const _: () =
    assert_distinct(&[P_META, P_DIFFS, P_SNAPSHOTS, P_PENDING, P_DUES, P_BODIES, P_MEMBERS, P_SIGNATURES]);

/// By escrow: what the session was begun with, and what must not be forgotten.
pub(super) const META: Map<u64, Meta> = Map::new(P_META);
/// By (escrow, nonce): the signed bytes.
pub(super) const DIFFS: Map<(u64, u64), Vec<u8>> = Map::new(P_DIFFS);
/// By (escrow, nonce): the last two.
pub(super) const SNAPSHOTS: Map<(u64, u64), Snapshot> = Map::new(P_SNAPSHOTS);
/// By (escrow, number): transactions of hosts that wait for a diff.
pub(super) const PENDING: Map<(u64, u64), Vec<u8>> = Map::new(P_PENDING);
/// By (escrow, inference): every start whose record is open.
pub(super) const DUES: Map<(u64, u64), DueRow> = Map::new(P_DUES);
/// By (escrow, inference): its body, for the voters.
pub(super) const BODIES: Map<(u64, u64), Vec<u8>> = Map::new(P_BODIES);
/// By (escrow, participant).
pub(super) const MEMBERS: Map<(u64, Address), MemberRow> = Map::new(P_MEMBERS);
/// By (escrow, nonce, participant): verified signatures over our root there.
pub(super) const SIGNATURES: Map<(u64, u64, Address), Signature> = Map::new(P_SIGNATURES);

/// Facts of the session that no diff carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct Meta {
    /// Digest of the terms.
    pub(super) config_digest: Hash,
    /// No new requests: it is being finalized.
    pub(super) closing: bool,
    /// The chain can only pay it by dispute.
    pub(super) expired: bool,
    /// The chain paid it.
    pub(super) settled: bool,
    /// Our tip when we began to doubt ourselves; 0 = we do not.
    pub(super) suspect_at: u64,
}

/// A state at a nonce.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct Snapshot {
    /// `State::to_bytes`.
    pub(super) state: Vec<u8>,
    /// Signatures over our roots, the latest of each participant: (participant, nonce, signature).
    pub(super) signatures: Vec<(Address, u64, Signature)>,
}

/// Why a start is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum StartKind {
    /// For a client: it was or will be sent.
    Sent,
    /// Not sent: the participant answers no ping.
    GhostThrottled,
    /// Not sent: the repair was given up.
    GhostCapability,
}

/// A start whose record is open.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct DueRow {
    /// Why it is in the log.
    pub(super) kind: StartKind,
    /// We asked the executor to stop; a signed `cancelled` counts only then.
    pub(super) cancelled: bool,
    /// Rounds of votes that brought nothing.
    pub(super) rounds: u8,
    /// Of these, for a missing finish.
    pub(super) reason: u8,
}

/// Counts of one participant (gateway service, `Participant`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Counters {
    /// Starts that were sent while it was flagged; always 0.
    pub starts_while_flagged: u64,
    /// Ghosts.
    pub ghosts: u64,
    /// Ghosts while a repair ran; always 0.
    pub accountable_ghosts_during_repair: u64,
    /// Nonces passed without a charge.
    pub passes: u64,
    /// Time flagged.
    pub blocked_ms: u64,
    /// Repair attempts, over all flags.
    pub repair_attempts: u64,
    /// Times restored.
    pub restored: u64,
    /// Times given up.
    pub gave_up: u64,
}

/// What is kept of one participant.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct MemberRow {
    /// Highest nonce that it confirmed.
    pub(super) cursor: u64,
    /// Its limiter.
    pub(super) limiter: LimiterRow,
    /// Its counts.
    pub(super) counters: Counters,
    /// Process that it announced last.
    pub(super) boot_id: String,
}

/// The store of one session: rows that wait for the next commit, and the commit.
pub(super) struct Ledger {
    db: Box<dyn LocalDb>,
    pub(super) escrow: u64,
    waiting: WriteSet,
    /// The last commit failed; the same rows are tried again.
    pub(super) failed: bool,
}

impl Ledger {
    pub(super) fn new(db: Box<dyn LocalDb>, escrow: u64) -> Self {
        Self { db, escrow, waiting: WriteSet::new(), failed: false }
    }

    /// What is durable.
    pub(super) fn durable(&self) -> &dyn KvRead {
        &*self.db
    }

    /// Writes rows that the next commit makes durable.
    pub(super) fn write<T>(
        &mut self,
        change: impl FnOnce(&mut dyn KvWrite) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let waiting = mem::take(&mut self.waiting);
        let mut branch = BranchKv::with_writes(&*self.db, waiting.clone());
        let done = change(&mut branch);
        // A change that failed half-way leaves no row behind.
        self.waiting = if done.is_ok() { branch.into_writes() } else { waiting };
        done
    }

    /// Reads durable rows under those that wait.
    pub(super) fn read<T>(&self, look: impl FnOnce(&dyn KvRead) -> T) -> T {
        if self.waiting.is_empty() {
            look(&*self.db)
        } else {
            look(&BranchKv::with_writes(&*self.db, self.waiting.clone()))
        }
    }

    pub(super) fn set<K: KeyCodec, V: BorshSerialize + BorshDeserialize>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) {
        // Encoding into memory does not fail; a backend is not touched by a plain set.
        if let Err(error) = self.write(|store| map.set(store, key, value)) {
            tracing::error!(%error, "a row could not be encoded");
        }
    }

    /// Whether rows wait.
    pub(super) fn is_dirty(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Commits what waits, with `more` on top: all or nothing. After a failure the rows wait on and `more` is the
    /// caller's to bring again. With `sync` it survives a power cut, otherwise the end of the process only.
    pub(super) fn commit(&mut self, more: &WriteSet, sync: bool) -> Result<(), StoreError> {
        let mut rows = self.waiting.clone();
        rows.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
        if rows.is_empty() {
            return Ok(());
        }
        let done = self.db.commit(rows, sync);
        self.failed = done.is_err();
        if done.is_ok() {
            self.waiting.clear();
        }
        done.map_err(|error| StoreError::Backend(error.to_string()))
    }

    /// Signed diffs from `from` to `to`, at most `count` of them and `bytes` together (one at least).
    pub(super) fn diffs(
        &self,
        from: u64,
        to: u64,
        count: usize,
        bytes: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut out = Vec::new();
        let mut size = 0;
        let mut nonce = from;
        while nonce <= to && out.len() < count {
            let row = DIFFS.load(&*self.db, &(self.escrow, nonce))?;
            size += row.len() + 8;
            if size > bytes && !out.is_empty() {
                break;
            }
            out.push(row);
            nonce += 1;
        }
        Ok(out)
    }

    /// Nonces of the snapshots, newest first.
    pub(super) fn snapshots(&self) -> Result<Vec<u64>, StoreError> {
        let (start, end) = (SNAPSHOTS.prefix_key(&self.escrow), None::<Vec<u8>>);
        let end = end.or_else(|| holdfast_store::successor(&start));
        let mut nonces = Vec::new();
        for row in self.db.scan(&start, end.as_deref(), Order::Descending) {
            // Only the key is looked at: a snapshot that does not decode is no reason to fail.
            if let Some((_, nonce)) = SNAPSHOTS.parse_key(&row?.0) {
                nonces.push(nonce);
            }
        }
        Ok(nonces)
    }
}
