//! Errors of codespace `inference` (breaker-details 5). Codes are never renumbered.

use holdfast_types::{FieldError, Height, ModuleError};
use thiserror::Error;

use crate::MODULE_NAME;

/// A refused message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InferenceError {
    /// The signer may not do this.
    #[error("{field}: only {allowed} may sign this message")]
    InvalidSigner {
        /// Field that names the signer.
        field: &'static str,
        /// Who may.
        allowed: String,
    },
    /// A field that cannot be.
    #[error("{field}: {rule}")]
    InvalidRequest {
        /// Field name as in the protobuf message.
        field: &'static str,
        /// What is allowed.
        rule: String,
    },
    /// No such model.
    #[error("model: {0:?} is not registered; see the models of x/participants")]
    ModelUnknown(String),
    /// No such requester.
    #[error("requested_by: {0} has no account yet; send it coins first")]
    RequesterUnknown(String),
    /// No such executor.
    #[error("{field}: {executor} is not a registered participant")]
    ExecutorUnknown {
        /// Field name as in the protobuf message.
        field: &'static str,
        /// Its address.
        executor: String,
    },
    /// The id is taken.
    #[error("inference_id: {0} was started already; retry under a new id")]
    InferenceExists(String),
    /// The executor has no part in the model's group.
    #[error("assigned_to: {0} does not serve this model in this epoch; ask for another executor")]
    ExecutorNotServing(String),
    /// The executor serves, but not now.
    #[error("assigned_to: {executor} is away ({why}); ask for another executor")]
    ExecutorUnavailable {
        /// Its address.
        executor: String,
        /// `maintenance` or `poc`.
        why: &'static str,
    },
    /// The signer cannot pay.
    #[error("signer: needs {needed} to pay for prompt_tokens and max_tokens: {reason}")]
    InsufficientFunds {
        /// Amount and denomination.
        needed: String,
        /// What the bank said.
        reason: String,
    },
    /// No such inference.
    #[error("inference_id: no inference {0} was started")]
    InferenceNotFound(String),
    /// Ended already.
    #[error("inference_id: {id} is closed ({status})")]
    InferenceClosed {
        /// Its id.
        id: String,
        /// Where it stands.
        status: &'static str,
    },
    /// Too late.
    #[error("inference_id: {id} expired at height {at}")]
    InferenceExpired {
        /// Its id.
        id: String,
        /// Last height at which an answer was taken.
        at: Height,
    },
    /// Another executor's work.
    #[error("{field}: inference {id} belongs to executor {executor}")]
    ExecutorMismatch {
        /// Field name as in the protobuf message.
        field: &'static str,
        /// Id of the inference.
        id: String,
        /// Whose work it is.
        executor: String,
    },
}

/// Every code of the codespace with its meaning.
pub const CODES: &[(u32, &str)] = &[
    (2, "invalid signer"),
    (3, "invalid request"),
    (4, "model unknown"),
    (5, "requester unknown"),
    (6, "executor unknown"),
    (7, "inference exists"),
    (8, "executor not serving"),
    (9, "executor unavailable"),
    (10, "insufficient funds"),
    (11, "inference not found"),
    (12, "inference closed"),
    (13, "inference expired"),
    (14, "executor mismatch"),
];

impl InferenceError {
    /// Code within codespace `inference`.
    pub fn code(&self) -> u32 {
        match self {
            Self::InvalidSigner { .. } => 2,
            Self::InvalidRequest { .. } => 3,
            Self::ModelUnknown(_) => 4,
            Self::RequesterUnknown(_) => 5,
            Self::ExecutorUnknown { .. } => 6,
            Self::InferenceExists(_) => 7,
            Self::ExecutorNotServing(_) => 8,
            Self::ExecutorUnavailable { .. } => 9,
            Self::InsufficientFunds { .. } => 10,
            Self::InferenceNotFound(_) => 11,
            Self::InferenceClosed { .. } => 12,
            Self::InferenceExpired { .. } => 13,
            Self::ExecutorMismatch { .. } => 14,
        }
    }

    pub(crate) fn invalid(field: &'static str, rule: impl Into<String>) -> Self {
        Self::InvalidRequest { field, rule: rule.into() }
    }
}

impl From<FieldError> for InferenceError {
    fn from(error: FieldError) -> Self {
        Self::InvalidRequest { field: error.field, rule: error.rule }
    }
}

impl From<InferenceError> for ModuleError {
    fn from(error: InferenceError) -> Self {
        Self::new(MODULE_NAME, error.code(), error.to_string())
    }
}
