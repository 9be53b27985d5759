//! Why a diff is refused.

use holdfast_types::Address;
use thiserror::Error;

use super::{Hash, InferenceStatus, MAX_DIFF_BYTES, MAX_TXS, Phase};

/// Why a diff or a transaction is refused. The state is as it was.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    /// Of another session.
    #[error("escrow_id: this session is {expected}, the diff is for {got}")]
    WrongEscrow {
        /// This session.
        expected: u64,
        /// In the diff.
        got: u64,
    },
    /// The session takes no more diffs.
    #[error("the session is frozen: nothing follows nonce {nonce}")]
    Frozen {
        /// Its last nonce.
        nonce: u64,
    },
    /// A gap, or a nonce that was there before.
    #[error("nonce: expected {expected}, got {got}")]
    WrongNonce {
        /// The next nonce.
        expected: u64,
        /// In the diff.
        got: u64,
    },
    /// Past the last nonce of the terms.
    #[error("nonce: {nonce} is above max_nonce {max}")]
    NonceLimit {
        /// In the diff.
        nonce: u64,
        /// Of the terms.
        max: u64,
    },
    /// What is left of the nonces is needed to finalize.
    #[error("nonce {nonce} must carry FinalizeRound: the nonces up to {max} are needed to finalize")]
    NonceReserve {
        /// In the diff.
        nonce: u64,
        /// Of the terms.
        max: u64,
    },
    /// Too many transactions.
    #[error("txs: at most {MAX_TXS}, got {0}")]
    TooManyTxs(usize),
    /// Too many bytes.
    #[error("a diff has at most {MAX_DIFF_BYTES} bytes, this one {0}")]
    TooLarge(usize),
    /// Not signed by the gateway of the escrow.
    #[error("signature: not by the gateway of the escrow")]
    BadDiffSignature,
    /// A Start or FinalizeRound that others follow, or both.
    #[error("txs: StartInference or FinalizeRound stands last, and only one of them")]
    NotLast,
    /// Too late for this transaction.
    #[error("{tx} needs an Active session, this one is {phase:?}")]
    WrongPhase {
        /// Name of the transaction.
        tx: &'static str,
        /// Phase of the session.
        phase: Phase,
    },
    /// Balance below the fee or the reserve.
    #[error("balance: {balance} does not cover {needed}")]
    BalanceTooLow {
        /// Left.
        balance: u128,
        /// Needed.
        needed: u128,
    },
    /// Too many records.
    #[error("max_live: {0} inferences are live; wait until ended ones are folded")]
    TooManyLive(u32),
    /// A limit of zero.
    #[error("{0}: must not be zero")]
    ZeroLimit(&'static str),
    /// Never started, or folded.
    #[error("inference {0} is not live")]
    InferenceNotLive(u64),
    /// Its status does not allow this.
    #[error("inference {id} is {status:?}: {tx} does not fit")]
    WrongStatus {
        /// Inference.
        id: u64,
        /// Its status.
        status: InferenceStatus,
        /// Name of the transaction.
        tx: &'static str,
    },
    /// More tokens than were reserved.
    #[error("{field}: inference {id} allows {limit}, got {got}")]
    AboveLimit {
        /// Inference.
        id: u64,
        /// Name of the count.
        field: &'static str,
        /// Allowed.
        limit: u32,
        /// Reported.
        got: u32,
    },
    /// Not by a key of the executor's slot.
    #[error("sig: not by a key of slot {slot}")]
    BadSignature {
        /// Slot whose key was expected.
        slot: u8,
    },
    /// No such timeout reason.
    #[error("reason: 1 (refused) or 2 (execution), got {0}")]
    UnknownReason(u8),
    /// No such failure.
    #[error("kind: 1 to 10, got {0}")]
    UnknownKind(u8),
    /// One vote spoils the transaction.
    #[error("votes: slot {slot}: {why}")]
    BadVote {
        /// Slot of the vote.
        slot: u8,
        /// What is wrong.
        why: VoteFault,
    },
    /// Not enough weight.
    #[error("votes: weight {weight} of {eligible} is not above {threshold_bp} basis points")]
    InsufficientVotes {
        /// Slots of those who voted.
        weight: u64,
        /// Slots that can vote.
        eligible: u64,
        /// Of the terms.
        threshold_bp: u16,
    },
    /// The owner holds no slot.
    #[error("owner: {0:?} holds no slot of this escrow")]
    NotAMember(Address),
    /// Not the next binding.
    #[error("seq: expected {expected}, got {got}")]
    WrongKeySeq {
        /// Next.
        expected: u64,
        /// Given.
        got: u32,
    },
    /// Not signed by the cold key.
    #[error("sig: a binding is signed by the owner's own key")]
    BadBinding,
    /// The root differs: this state and the gateway's have parted.
    #[error("post_state_root: nonce {nonce} gives {}, the diff says {}", Hex(computed), Hex(claimed))]
    RootMismatch {
        /// Nonce of the diff.
        nonce: u64,
        /// Root computed here.
        computed: Hash,
        /// Root in the diff.
        claimed: Hash,
        /// Digest of the diff.
        digest: Hash,
    },
    /// Beyond the range of an integer; cannot happen in a session whose terms are valid.
    #[error("{0} is out of range")]
    Overflow(&'static str),
}

/// What is wrong with a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VoteFault {
    /// Slots must ascend.
    #[error("slots must ascend")]
    Order,
    /// No such slot.
    #[error("no such slot")]
    UnknownSlot,
    /// The owner has voted.
    #[error("its owner has voted before")]
    SameOwner,
    /// The executor's own.
    #[error("it belongs to the executor")]
    Executor,
    /// A vote against.
    #[error("a vote against is not counted")]
    Against,
    /// Not by a key of the slot.
    #[error("not signed by a key of the slot")]
    Signature,
}

impl ApplyError {
    /// A stable number for logs, metrics and foreign callers.
    pub fn code(&self) -> u32 {
        match self {
            Self::WrongEscrow { .. } => 1,
            Self::Frozen { .. } => 2,
            Self::WrongNonce { .. } => 3,
            Self::NonceLimit { .. } => 4,
            Self::NonceReserve { .. } => 5,
            Self::TooManyTxs(_) => 6,
            Self::TooLarge(_) => 7,
            Self::BadDiffSignature => 8,
            Self::NotLast => 9,
            Self::WrongPhase { .. } => 10,
            Self::BalanceTooLow { .. } => 11,
            Self::TooManyLive(_) => 12,
            Self::ZeroLimit(_) => 13,
            Self::InferenceNotLive(_) => 14,
            Self::WrongStatus { .. } => 15,
            Self::AboveLimit { .. } => 16,
            Self::BadSignature { .. } => 17,
            Self::UnknownReason(_) => 18,
            Self::UnknownKind(_) => 19,
            Self::BadVote { .. } => 20,
            Self::InsufficientVotes { .. } => 21,
            Self::NotAMember(_) => 22,
            Self::WrongKeySeq { .. } => 23,
            Self::BadBinding => 24,
            Self::RootMismatch { .. } => 25,
            Self::Overflow(_) => 26,
        }
    }
}

struct Hex<'a>(&'a Hash);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
