//! Raw keys and their proofs: the query path `/store/<module>/key` (cosmos-conventions 1.6).
//!
//! The answer for height H verifies against the app hash after H, which is in the header of H + 1. At the latest height that
//! header does not exist yet: who wants to check at once asks at latest − 1.
//!
//! | asked | answer |
//! |---|---|
//! | height 0 | the latest height, which the answer names |
//! | height in the future | codespace `sdk`, code 26 |
//! | negative height | `sdk` 18 |
//! | height that is pruned | `state` 7, never an absent value |
//! | unknown module, `/subspace`, any other path | `sdk` 6 |
//! | empty key | `sdk` 18 |
//!
//! Two things differ from the Cosmos SDK: a pruned height is an error without a proof too, and a proof at the first height is
//! given.

use std::borrow::Cow;

use holdfast_store::{KvRead, StoreError};
use holdfast_types::sdk;
use thiserror::Error;

use crate::echo::shown;
use crate::state::{CommitStore, ProofOp, SENTINEL_KEY, SENTINEL_VALUE, StateError, committed_value};

/// Codespace of errors of the state database; their codes are [`StateError::code`].
pub const STATE_CODESPACE: &str = "state";

/// What an ABCI query asks of the store.
#[derive(Debug, Clone, Copy)]
pub struct KeyRequest<'a> {
    /// `/store/<module>/key`.
    pub path: &'a str,
    /// Key inside the module: what stands behind `<module>/` in docs/store-keys.md.
    pub key: &'a [u8],
    /// Height of the state; 0 is the latest.
    pub height: i64,
    /// Whether the answer carries proof operations.
    pub prove: bool,
}

/// Value of a key at a height, or that it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAnswer {
    /// Height of the state, never 0.
    pub height: i64,
    /// Key inside the module.
    pub key: Vec<u8>,
    /// The value as modules store it; `None` when the key is absent.
    pub value: Option<Vec<u8>>,
    /// `ics23:jmt` (the key in the module's tree), then `ics23:simple` (the tree in the app hash). Empty unless asked for.
    pub ops: Vec<ProofOp>,
}

impl KeyAnswer {
    /// The value a verifier has to compare: [`committed_value`] of [`Self::value`]. The two differ for an empty value, which
    /// ICS 23 cannot prove, and for no other that a module stores.
    ///
    /// An ABCI answer with proof carries this one: to clients an empty value there means absent.
    pub fn proven_value(&self) -> Option<Cow<'_, [u8]>> {
        self.value.as_deref().map(committed_value)
    }
}

/// A query for a key that has no answer.
#[derive(Debug, Error)]
pub enum ProofError {
    /// No query of the store.
    #[error("path {path:?} is no query: ask /store/<module>/key")]
    Path {
        /// What was asked.
        path: String,
    },
    /// Ranges have no proof and are not served raw.
    #[error("path {path:?}: only single keys are served; ask /store/<module>/key")]
    Subspace {
        /// What was asked.
        path: String,
    },
    /// A module that the chain has not.
    #[error("no store {name:?} at height {height}: known are {known}")]
    UnknownStore {
        /// Name asked for.
        name: String,
        /// Height asked for.
        height: i64,
        /// Names there are now.
        known: String,
    },
    /// A key without bytes.
    #[error("data: the key is empty; give the bytes behind \"<module>/\"")]
    EmptyKey,
    /// A height below 0.
    #[error("height {0}: give 0 for the latest height, or a height from 1 up")]
    NegativeHeight(i64),
    /// A height with no block yet.
    #[error("height {height} is in the future, the latest is {latest}: ask again later")]
    FutureHeight {
        /// Height asked for.
        height: i64,
        /// Latest height.
        latest: i64,
    },
    /// A pruned height, or a failing database.
    #[error(transparent)]
    State(StateError),
}

impl ProofError {
    /// Codespace and code of the answer, both stable.
    pub fn code(&self) -> (&'static str, u32) {
        match self {
            Self::Path { .. } | Self::Subspace { .. } | Self::UnknownStore { .. } => {
                (sdk::CODESPACE, sdk::UNKNOWN_REQUEST)
            }
            Self::EmptyKey | Self::NegativeHeight(_) => (sdk::CODESPACE, sdk::INVALID_REQUEST),
            Self::FutureHeight { .. } => (sdk::CODESPACE, sdk::INVALID_HEIGHT),
            Self::State(error) => (STATE_CODESPACE, error.code()),
        }
    }
}

impl From<StateError> for ProofError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Future { height, latest } => Self::FutureHeight { height, latest },
            other => Self::State(other),
        }
    }
}

impl From<StoreError> for ProofError {
    fn from(error: StoreError) -> Self {
        Self::State(error.into())
    }
}

/// Whether `path` belongs to the store: [`query`] answers it, or says what is wrong with it.
pub fn is_store_path(path: &str) -> bool {
    let path = path.strip_prefix('/').unwrap_or(path);
    path == "store" || path.starts_with("store/")
}

/// Module of a path `/store/<module>/key`; the first slash may be left out.
fn module_of(path: &str) -> Result<&str, ProofError> {
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).splitn(4, '/').collect();
    match parts.as_slice() {
        ["store", module, "key"] => Ok(module),
        ["store", _, "subspace"] => Err(ProofError::Subspace { path: shown(path) }),
        _ => Err(ProofError::Path { path: shown(path) }),
    }
}

/// Answers a query for one key from the committed state.
///
/// # Errors
/// As the table above, or a failing database.
pub fn query<S: CommitStore>(store: &S, request: &KeyRequest<'_>) -> Result<KeyAnswer, ProofError> {
    let name = module_of(request.path)?;
    let latest = store.latest_height();
    let height = match request.height {
        0 => latest,
        height => height,
    };
    let unknown =
        || ProofError::UnknownStore { name: shown(name), height, known: store.modules().join(", ") };
    if height < 0 {
        return Err(ProofError::NegativeHeight(height));
    }
    if height == 0 || height > latest {
        // Before the first block there is no state to speak of.
        return Err(ProofError::FutureHeight { height, latest });
    }
    if !store.modules().iter().any(|known| known == name) {
        return Err(unknown());
    }
    if request.key.is_empty() {
        return Err(ProofError::EmptyKey);
    }
    let key = request.key.to_vec();
    if request.prove {
        let proof = store.prove(height, name, &key).map_err(|error| match error {
            StateError::UnknownModule { .. } => unknown(),
            other => other.into(),
        })?;
        return Ok(KeyAnswer { height, key, value: proof.value, ops: proof.ops.into() });
    }
    let view = store.snapshot_at(height)?;
    // With and without a proof the answer is the same: the tree's own leaf is a leaf.
    let value = if key == SENTINEL_KEY {
        Some(SENTINEL_VALUE.to_vec())
    } else {
        view.get(&[name.as_bytes(), b"/", &key].concat())?
    };
    Ok(KeyAnswer { height, key, value, ops: Vec::new() })
}

#[cfg(test)]
mod tests;
