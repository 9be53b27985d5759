//! What is asked of the runner and what it answers.

use std::fmt;

use crate::adapter::{Sampling, SessionId};
use crate::deadline::DeadlineOverrides;
use crate::failure::{Cause, FailureKind, WorkStatus};
use crate::record::WorkRecord;
use crate::trace::TraceContext;

/// Most stop tokens of a request.
pub const STOP_TOKENS_MAX: usize = 16;

/// Most bytes of each name in a request.
pub const NAME_MAX: usize = 128;

/// One generation. `chain_id`, `escrow_id` and `inference_id` make its session, which is never used for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateRequest {
    /// The chain, at most 128 bytes.
    pub chain_id: String,
    /// The escrow; 0 on the chain path.
    pub escrow_id: u64,
    /// The inference, 1 to 128 bytes.
    pub inference_id: String,
    /// Who asks, for fairness between clients; at most 128 bytes.
    pub client: String,
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate, at least one.
    pub max_new: u32,
    /// Tokens that end the answer; they count and are given out. At most 16.
    pub stop_tokens: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Limits of the node that this request lowers.
    pub deadlines: DeadlineOverrides,
    /// Most further epochs after a restartable failure; capped by the node's own limit.
    pub max_restarts: u32,
    /// Trace that it belongs to; for logs only.
    pub trace: Option<TraceContext>,
}

impl GenerateRequest {
    /// A greedy request of a local client with the node's deadlines and as many restarts as the node allows.
    #[must_use]
    pub fn new(inference_id: impl Into<String>, prompt: Vec<u32>, max_new: u32) -> Self {
        Self {
            chain_id: String::new(),
            escrow_id: 0,
            inference_id: inference_id.into(),
            client: String::new(),
            prompt,
            max_new,
            stop_tokens: Vec::new(),
            sampling: Sampling::GREEDY,
            deadlines: DeadlineOverrides::default(),
            max_restarts: u32::MAX,
            trace: None,
        }
    }

    /// The session it makes.
    #[must_use]
    pub fn session(&self) -> SessionId {
        SessionId::new(&self.chain_id, self.escrow_id, &self.inference_id)
    }
}

/// Why a request was not taken. Nothing was written and no shard was called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue has no room.
    #[error("the queue is full, try again in {retry_after_ms} ms")]
    QueueFull {
        /// When to try again, milliseconds.
        retry_after_ms: u64,
    },
    /// The ledger has no room for another session.
    #[error("the work ledger is full")]
    LedgerFull,
    /// A field is not acceptable.
    #[error("{field}: {reason}")]
    BadRequest {
        /// Which field of the request.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// The session runs now, or its records are closed.
    #[error("session {session} {state}")]
    Duplicate {
        /// The session.
        session: SessionId,
        /// What it is.
        state: &'static str,
    },
    /// The connected shards do not cover a model.
    #[error("the connected shards do not cover a model")]
    NoRoute,
    /// The runner takes no more work.
    #[error("the runner is stopped")]
    Stopped,
}

impl SubmitError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue-full",
            Self::LedgerFull => "ledger-full",
            Self::BadRequest { .. } => "bad-request",
            Self::Duplicate { .. } => "duplicate-session",
            Self::NoRoute => "no-route",
            Self::Stopped => "stopped",
        }
    }
}

/// Why a completed answer ends where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was generated.
    Stop,
    /// As many tokens as asked.
    Length,
}

impl FinishReason {
    /// Stable string.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The session.
    pub session: SessionId,
    /// Status of the session. Not always the last record's: a cancel between two epochs leaves the failed epoch's
    /// record as it is and makes none (runner-details 7).
    pub status: WorkStatus,
    /// Why, unless completed.
    pub kind: Option<FailureKind>,
    /// By whom, unless completed.
    pub cause: Option<Cause>,
    /// Whether the deadline that ended it had been lowered by the request: then no node is at fault.
    pub lowered_by_request: bool,
    /// Records of all its epochs on this node, in order.
    pub records: Vec<WorkRecord>,
    /// Why the answer ends, if it is complete.
    pub finish_reason: Option<FinishReason>,
    /// Tokens that were given to the client, all epochs together.
    pub tokens: Vec<u32>,
}

impl Outcome {
    /// Whether the node is at fault (runner-details 9).
    #[must_use]
    pub fn node_at_fault(&self) -> bool {
        self.kind.is_some_and(FailureKind::node_at_fault) && !self.lowered_by_request
    }
}
