//! Rows.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::Address;

use crate::repair::{Forgiven, LogStage, RepairState};
use crate::session::{Hash, Signature};

/// Why a participant is flagged: it signed another root.
pub const REASON: &str = "escrow_state_root_diverged";

/// Why a participant is flagged: it holds another diff that we signed. Our fault; nothing of it is charged.
pub const REASON_OWN_FORK: &str = "escrow_own_fork";

/// Evidence rows of one participant in one escrow: the first, and the last ones.
pub const EVIDENCE_KEPT: u32 = 32;

/// Whom a flag is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Subject {
    /// The escrow.
    pub escrow_id: u64,
    /// Owner of slots in its group.
    pub participant: Address,
}

impl Subject {
    /// As a store key.
    pub(super) fn key(&self) -> (u64, Address) {
        (self.escrow_id, self.participant)
    }
}

/// What kind of signature shows the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum EvidenceKind {
    /// Over the `refusal` digest: it computes another root for our diff.
    Refusal,
    /// Over the `state` digest: it holds another root.
    State,
    /// Over the `state` digest at a nonce that we never made.
    AboveTip,
    /// A diff at our nonce that we did not sign; the digest is its own, the signature the one it bears.
    DiffFork,
    /// A diff at our nonce that is not the one of our log, and that we signed; the digest is its own, the signature ours.
    OwnFork,
}

/// One proof of a difference. `generation` and `at_ms` are set by the keeper.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Evidence {
    /// What it is.
    pub kind: EvidenceKind,
    /// Nonce that differs.
    pub nonce: u64,
    /// Our root there; zeros above our tip.
    pub our_root: Hash,
    /// Its root there.
    pub their_root: Hash,
    /// Digest that it signed.
    pub digest: Hash,
    /// Its signature.
    pub signature: Signature,
    /// Generation of the flag at that time.
    pub generation: u64,
    /// Unix ms.
    pub at_ms: u64,
}

/// A participant that gets no traffic in one escrow, and its repair.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct DivergenceFlag {
    /// Whom it is about.
    pub subject: Subject,
    /// Lowest nonce of the evidence.
    pub diverged_nonce: u64,
    /// Our root there.
    pub our_root: Hash,
    /// Its root there.
    pub their_root: Hash,
    /// Digest that it signed.
    pub signed_digest: Hash,
    /// Its signature.
    pub signature: Signature,
    /// Counts raises, voided attempts and reopenings; never the same twice.
    pub generation: u64,
    /// Unix ms of the raise.
    pub flagged_at_ms: u64,
    /// First nonce that differs, found by bisecting; 0 = not known.
    pub first_bad_nonce: u64,
    /// Where the repair stands.
    pub repair: RepairState,
}

impl DivergenceFlag {
    /// Whether it was raised, or is upheld, by a fork of our own.
    pub fn own_fork(&self) -> bool {
        self.repair.released == Forgiven::OwnFork
    }

    /// [`REASON_OWN_FORK`] or [`REASON`].
    pub fn reason(&self) -> &'static str {
        if self.own_fork() { REASON_OWN_FORK } else { REASON }
    }
}

/// What survives the flag.
#[derive(Debug, Clone, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub struct History {
    /// The last generation given.
    pub generation: u64,
    /// Flags raised.
    pub raised: u32,
    /// Flags cleared by proof.
    pub restored: u32,
    /// Times that a repair gave up.
    pub gave_up: u32,
    /// Repair attempts, over all flags.
    pub attempts: u64,
    /// Time under flags that are cleared.
    pub blocked_ms: u64,
    /// Unix ms of the last raise; 0 = never.
    pub raised_at_ms: u64,
    /// Unix ms of the last restore; 0 = never.
    pub restored_at_ms: u64,
    /// Number of the next evidence row.
    pub evidence: u32,
}

impl History {
    /// Whether a raise at `at_ms` is a relapse: within `relapse_ms` of the last restore. A clock that was set back does
    /// not hide one.
    pub fn is_relapse(&self, at_ms: u64, relapse_ms: u64) -> bool {
        self.restored > 0 && at_ms < self.restored_at_ms.saturating_add(relapse_ms)
    }

    /// Time under flags up to `at_ms`, the present one included.
    pub fn blocked_ms(&self, flag: Option<&DivergenceFlag>, at_ms: u64) -> u64 {
        let present = flag.map_or(0, |flag| at_ms.saturating_sub(flag.flagged_at_ms));
        self.blocked_ms.saturating_add(present)
    }
}

/// A change of a flag: one row of the stream.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct FlagChange {
    /// What happened.
    pub stage: LogStage,
    /// Unix ms.
    pub at_ms: u64,
    /// The flag after it; after an unblock, as it was.
    pub flag: DivergenceFlag,
}

/// A verb of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum Verb {
    /// Teach now.
    ForceTeach,
    /// Stop teaching.
    GiveUp,
    /// Charge nothing.
    Release,
}

/// What an operator asked for. Written before it takes effect.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct AuditRow {
    /// Whom it is about.
    pub subject: Subject,
    /// Who asks; 1 to 128 bytes.
    pub operator: String,
    /// What.
    pub verb: Verb,
    /// Why; 1 to 512 bytes.
    pub reason: String,
    /// Unix ms.
    pub at_ms: u64,
}
