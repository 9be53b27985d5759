//! Errors with their stable codes. Codes are API.

use holdfast_types::{FieldError, ModuleError};
use thiserror::Error;

/// The module's codespace.
pub const CODESPACE: &str = "epochs";

/// Every code of the module.
pub const CODES: &[(u32, &str)] =
    &[(2, "invalid signer"), (3, "invalid params"), (4, "invalid genesis"), (5, "no epoch")];

/// What x/epochs refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EpochsError {
    /// Not the governance account.
    #[error("authority: only {expected} may change params; submit a proposal")]
    InvalidSigner {
        /// The authority, bech32.
        expected: String,
    },
    /// A parameter or the mask.
    #[error("params.{0}")]
    InvalidParams(FieldError),
    /// A genesis field that cannot be.
    #[error("genesis {field}: {rule}")]
    InvalidGenesis {
        /// Field with its position.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// The schedule was never started, or its indexes are used up.
    #[error("no epoch: {0}")]
    NoEpoch(&'static str),
}

impl EpochsError {
    /// Stable code within [`CODESPACE`].
    pub fn code(&self) -> u32 {
        match self {
            Self::InvalidSigner { .. } => 2,
            Self::InvalidParams(_) => 3,
            Self::InvalidGenesis { .. } => 4,
            Self::NoEpoch(_) => 5,
        }
    }

    pub(crate) fn genesis(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::InvalidGenesis { field: field.into(), rule: rule.into() }
    }
}

impl From<EpochsError> for ModuleError {
    fn from(error: EpochsError) -> Self {
        Self::new(CODESPACE, error.code(), error.to_string())
    }
}
