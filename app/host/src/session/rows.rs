//! What a host keeps of its sessions.
//!
//! | collection | key | value |
//! |---|---|---|
//! | `sessions` | escrow | terms, and what became of the replica |
//! | `log` | escrow, nonce | signed diff, its digest, root after it |
//! | `snapshots` | escrow, nonce | state, and a hash over it |
//! | `pending` | escrow, number | transaction of this host that waits for a diff |
//! | `jobs` | escrow, inference | what this host did about an inference that it took |

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_escrow::session::{FrozenConfig, Hash};
use holdfast_store::{Map, Prefix, assert_distinct};
use sha2::{Digest, Sha256};

const SPACE: &str = "host";
const TABLE: &[Prefix] = &[
    Prefix::new(SPACE, 1, "sessions"),
    Prefix::new(SPACE, 2, "log"),
    Prefix::new(SPACE, 3, "snapshots"),
    Prefix::new(SPACE, 4, "pending"),
    Prefix::new(SPACE, 5, "jobs"),
];
const _: () = assert_distinct(TABLE);

pub(super) const SESSIONS: Map<u64, SessionRow> = Map::new(TABLE[0]);
pub(super) const LOG: Map<(u64, u64), LogRow> = Map::new(TABLE[1]);
pub(super) const SNAPSHOTS: Map<(u64, u64), SnapshotRow> = Map::new(TABLE[2]);
pub(super) const PENDING: Map<(u64, u64), PendingRow> = Map::new(TABLE[3]);
pub(super) const JOBS: Map<(u64, u64), JobRow> = Map::new(TABLE[4]);

/// What became of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) enum Presence {
    /// It is there.
    Live,
    /// It was dropped by ResetSession and has to be bound again.
    Dropped,
    /// The chain has paid the escrow out; nothing is kept but this row.
    Closed,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct SessionRow {
    pub(super) config: FrozenConfig,
    pub(super) presence: Presence,
    /// How often it was dropped.
    pub(super) resets: u32,
    /// Generation of the last drop.
    pub(super) reset_generation: u64,
}

/// A diff that was applied.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct LogRow {
    pub(super) diff: Vec<u8>,
    pub(super) digest: Hash,
    /// As computed here.
    pub(super) root: Hash,
}

/// A state, to start from.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct SnapshotRow {
    pub(super) state: Vec<u8>,
    pub(super) hash: Hash,
}

impl SnapshotRow {
    pub(super) fn new(state: Vec<u8>) -> Self {
        let hash = Sha256::digest(&state).into();
        Self { state, hash }
    }

    /// The state, if the bytes are those that were written.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        let hash: Hash = Sha256::digest(&self.state).into();
        (hash == self.hash).then_some(&self.state)
    }
}

/// A transaction that waits.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct PendingRow {
    pub(super) tx: Vec<u8>,
    /// Nonce of the replica when it was made.
    pub(super) since: u64,
}

/// An inference that this host took, or refused by its signature.
#[derive(Debug, Clone, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub(super) struct JobRow {
    /// ConfirmStart; empty when the work was refused.
    pub(super) receipt: Vec<u8>,
    /// FinishInference or ReportError; empty while it runs.
    pub(super) outcome: Vec<u8>,
    /// `stop` or `length`.
    pub(super) finish_reason: String,
    /// Tokens of the answer that were made or delivered.
    pub(super) output_tokens: u32,
    /// CancelInference of the gateway and its credential.
    pub(super) cancel: Option<(Vec<u8>, Vec<u8>)>,
    /// SHA-256 of the body.
    pub(super) prompt_hash: Hash,
    /// Limits of the record.
    pub(super) limits: (u32, u32),
    /// Slot that executes it.
    pub(super) slot: u8,
}
