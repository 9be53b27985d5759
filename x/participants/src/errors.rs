//! Errors with stable codes.

use holdfast_store::StoreError;
use holdfast_types::{FieldError, Height, ModuleError, sdk};
use thiserror::Error;

use crate::keys::MODULE_NAME;

/// Every code of this codespace with its meaning.
pub const CODES: &[(u32, &str)] = &[
    (2, "invalid signer: only the governance account may do this"),
    (3, "invalid request: a field that cannot be"),
    (4, "model unknown"),
    (5, "participant unknown, or it left"),
    (6, "already registered"),
    (7, "validator key taken by another participant"),
    (8, "less bonded collateral than that"),
    (9, "nothing to claim, or not yet"),
    (10, "maintenance window not allowed there"),
    (11, "too many maintenance windows"),
    (12, "maintenance window unknown"),
    (13, "model exists"),
    (14, "too many models"),
];

/// A refused message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParticipantsError {
    /// Not the governance account.
    #[error("authority: expected the gov module account {expected}, got {found}")]
    InvalidSigner {
        /// Gov account.
        expected: String,
        /// Signer.
        found: String,
    },
    /// A field that cannot be.
    #[error("{0}")]
    Invalid(#[from] FieldError),
    /// Not registered as a model.
    #[error("models: {0:?} is not a registered model")]
    UnknownModel(String),
    /// Not registered as a participant.
    #[error("participant: {0} is not registered; register first")]
    UnknownParticipant(String),
    /// Registered and did not leave.
    #[error("participant: {0} is registered already; update it instead")]
    AlreadyRegistered(String),
    /// Key of another.
    #[error("validator_key: belongs to another participant; use a key of your own")]
    KeyTaken,
    /// More than is bonded.
    #[error("amount: {bonded} is bonded, {asked} was asked for")]
    NotBonded {
        /// Bonded.
        bonded: u128,
        /// Asked for.
        asked: u128,
    },
    /// No collateral to pay out.
    #[error("participant: no collateral is unbonding")]
    NothingToClaim,
    /// Collateral still backs a weight.
    #[error("participant: collateral can be claimed from epoch {0} on")]
    NotYet(u64),
    /// Where a window may not be.
    #[error("{field}: {rule}")]
    Window {
        /// Field name.
        field: &'static str,
        /// What is allowed.
        rule: String,
    },
    /// Limit of pending windows.
    #[error("start_height: at most {0} maintenance windows may be pending; wait or cancel one")]
    TooManyWindows(u32),
    /// No window starts there.
    #[error("start_height: no maintenance window starts at {0}")]
    UnknownWindow(Height),
    /// Registered already.
    #[error("model: {0:?} is registered already")]
    ModelExists(String),
    /// Limit of models.
    #[error("model: at most {0} models can be registered")]
    TooManyModels(u32),
    /// State that no message makes.
    #[error("corrupt participants state: {0}")]
    Corrupt(&'static str),
    /// Storage.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ParticipantsError {
    /// A refusal of `field`.
    pub(crate) fn field(field: &'static str, rule: impl Into<String>) -> Self {
        Self::Invalid(FieldError::new(field, rule))
    }

    /// Code within the codespace; `None` for internal failures.
    pub fn code(&self) -> Option<u32> {
        Some(match self {
            Self::InvalidSigner { .. } => 2,
            Self::Invalid(_) => 3,
            Self::UnknownModel(_) => 4,
            Self::UnknownParticipant(_) => 5,
            Self::AlreadyRegistered(_) => 6,
            Self::KeyTaken => 7,
            Self::NotBonded { .. } => 8,
            Self::NothingToClaim | Self::NotYet(_) => 9,
            Self::Window { .. } => 10,
            Self::TooManyWindows(_) => 11,
            Self::UnknownWindow(_) => 12,
            Self::ModelExists(_) => 13,
            Self::TooManyModels(_) => 14,
            Self::Corrupt(_) | Self::Store(_) => return None,
        })
    }
}

impl From<ParticipantsError> for ModuleError {
    fn from(error: ParticipantsError) -> Self {
        match (error.code(), error) {
            (Some(code), error) => Self::new(MODULE_NAME, code, error.to_string()),
            (None, ParticipantsError::Store(error)) => error.into(),
            (None, error) => Self::sdk(sdk::LOGIC, error.to_string()),
        }
    }
}
