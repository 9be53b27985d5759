//! Errors with stable codes (breaker-details 5).

use holdfast_store::StoreError;
use holdfast_types::{Height, ModuleError, sdk};
use thiserror::Error;

use crate::keys::MODULE;

/// Every code of this codespace with its meaning.
pub const CODES: &[(u32, &str)] = &[
    (2, "invalid signer: only the governance account may do this"),
    (3, "invalid override: unknown model or participant, or until_block out of range"),
    (4, "too many overrides"),
    (5, "no override to clear"),
    (10, "executor excluded"),
    (11, "probe claimed by another inference"),
    (12, "a probe cannot be settled by the executor's own request"),
    (13, "executor forced out by governance"),
];

/// A refused message or start.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BreakerError {
    /// Not the governance account.
    #[error("authority: expected the gov module account {expected}, got {found}")]
    InvalidSigner {
        /// Gov account.
        expected: String,
        /// Signer.
        found: String,
    },
    /// A field of an override.
    #[error("{field}: {reason}")]
    InvalidOverride {
        /// Field name.
        field: &'static str,
        /// What is allowed.
        reason: String,
    },
    /// The limit of live overrides is reached.
    #[error("participant: {limit} overrides are live, clear one first")]
    TooManyOverrides {
        /// Limit.
        limit: usize,
    },
    /// `to` is NONE and there is nothing to clear.
    #[error("to: there is no override for this model and participant")]
    NoOverride,
    /// Excluded until its cooldown ends.
    #[error("assigned_to: executor is excluded until height {until}; ask for another executor")]
    ExecutorExcluded {
        /// End of the cooldown.
        until: Height,
    },
    /// Another inference holds the probe.
    #[error(
        "assigned_to: the executor's probe is claimed until height {until} at the latest; ask for another executor"
    )]
    ProbeClaimed {
        /// Deadline of the claim.
        until: Height,
    },
    /// Requester or signer is the executor.
    #[error("requested_by: an executor cannot request its own probe")]
    ProbeSelfRequest,
    /// Governance holds it out.
    #[error("assigned_to: executor is forced out by governance until height {until}")]
    ExecutorForcedOut {
        /// End of the override.
        until: Height,
    },
    /// State that no transition makes.
    #[error("corrupt breaker state: {0}")]
    Corrupt(String),
    /// Storage.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BreakerError {
    /// Code within the codespace; `None` for internal failures.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::InvalidSigner { .. } => Some(2),
            Self::InvalidOverride { .. } => Some(3),
            Self::TooManyOverrides { .. } => Some(4),
            Self::NoOverride => Some(5),
            Self::ExecutorExcluded { .. } => Some(10),
            Self::ProbeClaimed { .. } => Some(11),
            Self::ProbeSelfRequest => Some(12),
            Self::ExecutorForcedOut { .. } => Some(13),
            Self::Corrupt(_) | Self::Store(_) => None,
        }
    }
}

impl From<BreakerError> for ModuleError {
    fn from(error: BreakerError) -> Self {
        match (error.code(), error) {
            (Some(code), error) => Self::new(MODULE, code, error.to_string()),
            (None, BreakerError::Store(error)) => error.into(),
            (None, error) => Self::sdk(sdk::LOGIC, error.to_string()),
        }
    }
}
