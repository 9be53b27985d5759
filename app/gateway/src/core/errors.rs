//! Why something did not work out: verbs, calls, requests, opening a session.

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use thiserror::Error;

/// Why a verb did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VerbError {
    /// No flag is set for this participant.
    #[error("not_flagged: the participant has no divergence flag in this escrow")]
    NotFlagged,
    /// The phase of the repair has no use for the verb.
    #[error("wrong_phase: the repair is in a phase in which this verb does nothing")]
    WrongPhase,
    /// The store refused; nothing changed.
    #[error("storage: the store refused the change")]
    Storage,
}

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum CallError {
    /// The host's own typed error. Only this can carry a signed mismatch.
    Host(Box<pb::EscrowError>),
    /// A status without a typed error: `code` is the gRPC code. 16 and 7 (unauthenticated, denied) are the
    /// requester's fault, 8 and 14 mean throttled; bodies are never read.
    Status {
        /// gRPC code.
        code: i32,
        /// What the host asked to wait, 0 = nothing.
        retry_after_ms: u64,
    },
    /// No connection, or it broke.
    Transport,
    /// The call's time was up.
    Timeout,
    /// Aborted on our side: by [`Effect::AbortCall`](super::api::Effect::AbortCall) or the driver's own limits. Blames nobody.
    Aborted,
}

/// Why a request failed. `code` is that of escrow-details 9.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Nobody may serve it: flagged, throttled, absent, or its 2·N nonces are used up.
    #[error("no_available_host: no host can serve this request now")]
    NoAvailableHost,
    /// The escrow has no nonces or coins left, or it is being settled.
    #[error("escrow_exhausted: the escrow takes no more requests")]
    EscrowExhausted,
    /// The gateway may itself be wrong.
    #[error("gateway_self_suspect: the gateway doubts its own state")]
    SelfSuspect,
    /// Dearer than what is left, while smaller requests still fit.
    #[error("insufficient_quota: the request reserves {reserve}, the escrow has {balance}")]
    TooDear {
        /// Coins that the Start would reserve.
        reserve: u128,
        /// Coins that are free.
        balance: u128,
    },
    /// More bytes than a host takes.
    #[error("request_too_large: the body is above {limit} bytes")]
    TooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// Limits of zero tokens, an empty body, or a name that is in use.
    #[error("invalid_request_error: {0}")]
    Invalid(&'static str),
    /// The queue is full.
    #[error("rate_limit_exceeded: too many requests wait")]
    QueueFull,
    /// Three dispatches failed.
    #[error("upstream_failed: {attempts} hosts failed")]
    DispatchesFailed {
        /// How many.
        attempts: u32,
    },
    /// Every host that got it said that nobody can serve this body: an empty prompt, or one beyond the context. The client's
    /// fault; their Starts are taken back.
    #[error("body_refused: {attempts} hosts say that the body cannot be served")]
    BodyRefused {
        /// How many.
        attempts: u32,
    },
    /// The host signed a failure, or its stream broke after the first token.
    #[error("host_failed: the host failed with kind {kind}")]
    HostFailed {
        /// `FailureKind` of the runner.
        kind: i32,
    },
    /// Its time is up.
    #[error("deadline_exceeded: the request's time is up")]
    Deadline,
    /// The store refused; nothing was spent.
    #[error("storage: the gateway cannot write its log")]
    Storage,
    /// The session stops.
    #[error("stopping: the gateway stops")]
    Stopping,
}

impl RequestError {
    /// The stable code, as in the error objects of the HTTP API.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoAvailableHost => "no_available_host",
            Self::EscrowExhausted => "escrow_exhausted",
            Self::SelfSuspect => "gateway_self_suspect",
            Self::TooDear { .. } => "insufficient_quota",
            Self::TooLarge { .. } => "request_too_large",
            Self::Invalid(_) => "invalid_request_error",
            Self::QueueFull => "rate_limit_exceeded",
            Self::DispatchesFailed { .. } => "upstream_failed",
            Self::BodyRefused { .. } => "invalid_request_error",
            Self::HostFailed { .. } => "host_failed",
            Self::Deadline => "deadline_exceeded",
            Self::Storage => "storage",
            Self::Stopping => "stopping",
        }
    }
}

/// Why a session cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store failed. Try again; nothing was concluded.
    #[error("storage: {0}")]
    Storage(String),
    /// Diffs are missing from the log: the escrow can only be paid by dispute.
    #[error("log_gap: no diff at nonce {nonce}")]
    Gap {
        /// First nonce that is missing.
        nonce: u64,
    },
    /// A row of the log is not a diff that follows from the one before.
    #[error("self_corrupt: the log does not replay at nonce {nonce}: {reason}")]
    SelfCorrupt {
        /// First such nonce.
        nonce: u64,
        /// What is wrong.
        reason: String,
    },
    /// The terms are not those that the store was begun with, or not valid.
    #[error("config_mismatch: {0}")]
    Config(String),
    /// The key is not the one that this escrow names.
    #[error("wrong_key: the escrow's gateway is {expected:?}, the key is {found:?}")]
    WrongKey {
        /// As in the terms.
        expected: Address,
        /// Of the signer.
        found: Address,
    },
}
