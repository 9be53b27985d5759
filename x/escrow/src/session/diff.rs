//! Diffs and their transactions.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::{Address, Signature};
use thiserror::Error;

use super::{Hash, MAX_DIFF_BYTES, digest};

/// One entry of the log: transactions and the root after them, signed by the gateway.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Diff {
    /// The escrow.
    pub escrow_id: u64,
    /// Position, from 1, without a gap.
    pub nonce: u64,
    /// Applied in this order.
    pub txs: Vec<Tx>,
    /// Root after them.
    pub post_state_root: Hash,
    /// Of the gateway, over [`Diff::digest`].
    pub signature: Signature,
}

/// A change of the session. Its proposer is the gateway, or the host that signed it.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Tx {
    /// Gateway: work for the slot of this nonce.
    StartInference {
        /// SHA-256 of the request body as sent to the host.
        prompt_hash: Hash,
        /// Tokens of the prompt, at most.
        input_limit: u32,
        /// Tokens of the answer, at most.
        output_limit: u32,
        /// Unix seconds by the gateway's clock.
        started_at: u64,
    },
    /// Executor: takes the work.
    ConfirmStart {
        /// The inference.
        id: u64,
        /// Unix seconds by the executor's clock.
        confirmed_at: u64,
        /// Over [`digest::receipt`].
        sig: Signature,
    },
    /// Executor: done.
    FinishInference {
        /// The inference.
        id: u64,
        /// Tokens of the prompt.
        input_tokens: u32,
        /// Tokens of the answer.
        output_tokens: u32,
        /// SHA-256 of the answer's text.
        response_hash: Hash,
        /// Over [`digest::finish`].
        sig: Signature,
    },
    /// Gateway: too late, as others of the group saw too.
    TimeoutInference {
        /// The inference.
        id: u64,
        /// [`REASON_REFUSED`](super::REASON_REFUSED) or [`REASON_EXECUTION`](super::REASON_EXECUTION).
        reason: u8,
        /// Ascending by slot, one for each owner.
        votes: Vec<Vote>,
    },
    /// Executor: failed.
    ReportError {
        /// The inference.
        id: u64,
        /// Position in the runner's list of failures, from 1.
        kind: u8,
        /// Tokens of the prompt.
        input_tokens: u32,
        /// Tokens delivered.
        output_tokens: u32,
        /// Over [`digest::error`].
        sig: Signature,
    },
    /// Host: another key that may sign for its slots.
    BindWarmKey {
        /// The host.
        owner: Address,
        /// Its warm key; zeros revoke.
        warm: Address,
        /// One more than the last.
        seq: u32,
        /// Of the owner's own key, over [`digest::bind`].
        sig: Signature,
    },
    /// Gateway: no more starts.
    FinalizeRound,
}

/// A vote that an inference is late.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Vote {
    /// Slot of the voter.
    pub voter_slot: u8,
    /// Only `true` is counted.
    pub accept: bool,
    /// Over [`digest::vote`].
    pub sig: Signature,
}

/// What two transactions have in common when the second says nothing new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum TxKey {
    /// Start; one in a diff.
    Start,
    /// Receipt of an inference.
    Confirm(u64),
    /// Finish of an inference.
    Finish(u64),
    /// Timeout of an inference.
    Timeout(u64, u8),
    /// Error of an inference.
    Error(u64),
    /// Binding by an owner.
    Bind(Address, u32),
    /// The end.
    Finalize,
}

/// Why bytes are no diff or transaction.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DiffError {
    /// Too many bytes.
    #[error("a diff has at most {MAX_DIFF_BYTES} bytes, this one {0}")]
    TooLarge(usize),
    /// Not borsh of the type.
    #[error("not the borsh encoding of a {0}")]
    Malformed(&'static str),
}

impl Diff {
    /// What the gateway signs, and the identity of the diff.
    pub fn digest(&self, chain_id: &str) -> Hash {
        digest::diff(chain_id, self.escrow_id, self.nonce, &self.txs, &self.post_state_root)
    }

    /// Borsh.
    pub fn to_bytes(&self) -> Vec<u8> {
        borsh::to_vec(self).unwrap_or_default()
    }

    /// From borsh, strictly: no byte may be left over.
    ///
    /// # Errors
    /// [`DiffError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DiffError> {
        if bytes.len() > MAX_DIFF_BYTES {
            return Err(DiffError::TooLarge(bytes.len()));
        }
        borsh::from_slice(bytes).map_err(|_| DiffError::Malformed("diff"))
    }

    /// The start it carries, if any: it stands last.
    pub fn start(&self) -> Option<&Tx> {
        self.txs.last().filter(|tx| matches!(tx, Tx::StartInference { .. }))
    }
}

impl Tx {
    /// Key under which a duplicate is recognised.
    pub fn key(&self) -> TxKey {
        match self {
            Self::StartInference { .. } => TxKey::Start,
            Self::ConfirmStart { id, .. } => TxKey::Confirm(*id),
            Self::FinishInference { id, .. } => TxKey::Finish(*id),
            Self::TimeoutInference { id, reason, .. } => TxKey::Timeout(*id, *reason),
            Self::ReportError { id, .. } => TxKey::Error(*id),
            Self::BindWarmKey { owner, seq, .. } => TxKey::Bind(*owner, *seq),
            Self::FinalizeRound => TxKey::Finalize,
        }
    }

    /// Whether a host may contribute it.
    pub fn from_host(&self) -> bool {
        self.rank().is_some()
    }

    /// Inference it speaks of.
    pub fn inference_id(&self) -> Option<u64> {
        match self {
            Self::ConfirmStart { id, .. }
            | Self::FinishInference { id, .. }
            | Self::TimeoutInference { id, .. }
            | Self::ReportError { id, .. } => Some(*id),
            Self::StartInference { .. } | Self::BindWarmKey { .. } | Self::FinalizeRound => None,
        }
    }

    /// Order among the transactions of hosts: a receipt must precede its finish.
    pub(super) fn rank(&self) -> Option<u8> {
        match self {
            Self::ConfirmStart { .. } => Some(0),
            Self::FinishInference { .. } => Some(1),
            Self::ReportError { .. } => Some(2),
            Self::BindWarmKey { .. } => Some(3),
            Self::StartInference { .. } | Self::TimeoutInference { .. } | Self::FinalizeRound => None,
        }
    }

    /// Borsh.
    pub fn to_bytes(&self) -> Vec<u8> {
        borsh::to_vec(self).unwrap_or_default()
    }

    /// From borsh, strictly.
    ///
    /// # Errors
    /// [`DiffError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DiffError> {
        if bytes.len() > MAX_DIFF_BYTES {
            return Err(DiffError::TooLarge(bytes.len()));
        }
        borsh::from_slice(bytes).map_err(|_| DiffError::Malformed("transaction"))
    }
}
