//! What can go wrong with a snapshot.

use std::path::{Path, PathBuf};

use holdfast_store::StoreError;
use thiserror::Error;

use crate::state::StateError;

/// A failed snapshot operation. [`SnapshotError::code`] is stable.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Another process uses the snapshot folder.
    #[error("snapshots {path} are in use by another process: stop the node that uses this home first")]
    Locked {
        /// Folder.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}: check the path, its permissions and the free space")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// There is no such snapshot.
    #[error("no snapshot of height {height} and format {format}: `snapshot list` shows which there are")]
    Missing {
        /// Height asked for.
        height: u64,
        /// Format asked for.
        format: u32,
    },
    /// Bytes that are no snapshot of this format, or contradict each other.
    #[error("snapshot is malformed: {what}")]
    Malformed {
        /// What is wrong.
        what: String,
    },
    /// A file on disk that is not what was written.
    #[error("{path} is damaged: {what}: delete the snapshot and create or fetch it again")]
    Damaged {
        /// File.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The state does not fit into the format.
    #[error("state cannot be made a snapshot: {what}")]
    TooLarge {
        /// Which limit.
        what: String,
    },
    /// A database without a chain.
    #[error(
        "the state of height {height} holds no chain: start the chain from genesis or restore a snapshot"
    )]
    NoChain {
        /// Height asked for.
        height: i64,
    },
    /// A restore into a database that has state.
    #[error(
        "the state database is at height {height}: a snapshot is restored into an empty one; move data/state of this home away"
    )]
    NotEmpty {
        /// Latest height.
        height: i64,
    },
    /// A snapshot that does not fit this node or is not what it claims.
    #[error("snapshot refused: {what}")]
    Refused {
        /// Why.
        what: String,
    },
    /// The state database.
    #[error(transparent)]
    State(#[from] StateError),
}

impl SnapshotError {
    /// Stable number of the variant; those of [`StateError`] start at 100.
    pub fn code(&self) -> u32 {
        match self {
            Self::Locked { .. } => 2,
            Self::Io { .. } => 3,
            Self::Missing { .. } => 4,
            Self::Malformed { .. } => 5,
            Self::Damaged { .. } => 6,
            Self::TooLarge { .. } => 7,
            Self::NoChain { .. } => 8,
            Self::NotEmpty { .. } => 9,
            Self::Refused { .. } => 10,
            Self::State(error) => error.code().saturating_add(100),
        }
    }

    /// For `map_err` beside a file operation on `path`.
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    pub(super) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        Self::State(error.into())
    }
}
