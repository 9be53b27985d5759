//! Errors with their stable codes. Codes are API.

use holdfast_types::ModuleError;
use thiserror::Error;

/// The module's codespace.
pub const CODESPACE: &str = "bank";

/// Every code of the module. Transfers fail with the SDK's own codes of codespace `sdk`: 4, 5, 7 and 10.
pub const CODES: &[(u32, &str)] = &[(2, "invalid genesis"), (3, "supply overflow")];

/// What x/bank refuses beside transfers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BankError {
    /// A genesis field that cannot be.
    #[error("genesis {field}: {rule}")]
    InvalidGenesis {
        /// Field with its position.
        field: String,
        /// What is allowed.
        rule: String,
    },
    /// More coins than can be counted.
    #[error("supply of {0} would pass 2^128 - 1; mint less")]
    SupplyOverflow(String),
}

impl BankError {
    /// Stable code within [`CODESPACE`].
    pub fn code(&self) -> u32 {
        match self {
            Self::InvalidGenesis { .. } => 2,
            Self::SupplyOverflow(_) => 3,
        }
    }

    pub(crate) fn genesis(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::InvalidGenesis { field: field.into(), rule: rule.into() }
    }
}

impl From<BankError> for ModuleError {
    fn from(error: BankError) -> Self {
        Self::new(CODESPACE, error.code(), error.to_string())
    }
}
