//! Errors with their stable codes. Codes are API.

use holdfast_types::{FieldError, ModuleError};
use thiserror::Error;

/// The module's codespace.
pub const CODESPACE: &str = "auth";

/// Every code of the module.
pub const CODES: &[(u32, &str)] =
    &[(2, "invalid genesis"), (3, "module account"), (4, "invalid signer"), (5, "invalid params")];

/// What x/auth refuses. A missing account is `sdk` 9, a sequence past 2^64 - 1 is `sdk` 32.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AuthError {
    /// A genesis field that cannot be.
    #[error("genesis {field}: {rule}")]
    InvalidGenesis {
        /// Field with its position.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// A key or sequence for an account that nobody signs for.
    #[error("account of module {0}: nobody can sign for it; use an account with a key")]
    ModuleAccount(String),
    /// Not the governance account.
    #[error("authority: only {expected} may change params; submit a proposal")]
    InvalidSigner {
        /// The authority, bech32.
        expected: String,
    },
    /// A parameter or the mask.
    #[error("params.{0}")]
    InvalidParams(FieldError),
}

impl AuthError {
    /// Stable code within [`CODESPACE`].
    pub fn code(&self) -> u32 {
        match self {
            Self::InvalidGenesis { .. } => 2,
            Self::ModuleAccount(_) => 3,
            Self::InvalidSigner { .. } => 4,
            Self::InvalidParams(_) => 5,
        }
    }

    pub(crate) fn genesis(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::InvalidGenesis { field: field.into(), rule: rule.into() }
    }
}

impl From<AuthError> for ModuleError {
    fn from(error: AuthError) -> Self {
        Self::new(CODESPACE, error.code(), error.to_string())
    }
}
