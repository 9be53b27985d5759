//! What can go wrong with a flag.

use holdfast_store::StoreError;
use thiserror::Error;

use crate::repair::RepairError;

/// A refused change, or a store that failed; nothing of it counts and the caller drops its writes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DivergenceError {
    /// The store failed or holds what was never written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An operator's verb that does not apply.
    #[error(transparent)]
    Repair(#[from] RepairError),
    /// A flag is raised on evidence only.
    #[error("a flag needs evidence of kind refusal or state at the nonce of the mismatch")]
    NoEvidence,
    /// A field is out of range.
    #[error("{field}: {rule}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// An import into a store that holds flags, histories or a journal.
    #[error("import needs an empty store")]
    NotEmpty,
    /// An import that contradicts itself.
    #[error("import: {0}")]
    Import(String),
}

impl DivergenceError {
    /// Stable number.
    pub fn code(&self) -> u32 {
        match self {
            Self::Store(_) => 10,
            Self::Repair(error) => error.code(),
            Self::NoEvidence => 11,
            Self::Field { .. } => 12,
            Self::NotEmpty => 13,
            Self::Import(_) => 14,
        }
    }
}
