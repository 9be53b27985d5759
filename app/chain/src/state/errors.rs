//! What can go wrong in the state database, each with what the operator can do about it.

use std::path::PathBuf;

use holdfast_store::StoreError;
use thiserror::Error;

/// A failed state database operation. [`StateError::code`] is stable.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another process has the folder open.
    #[error(
        "state database {path} is locked by another process: stop the other node that uses this home, or pass a different --home"
    )]
    Locked {
        /// Database folder.
        path: PathBuf,
    },
    /// The folder was written by an incompatible program.
    #[error(
        "state database {path} has format {found}, this program reads format {expected}: use the program version that wrote it, or state-sync into an empty folder"
    )]
    Format {
        /// Database folder.
        path: PathBuf,
        /// Format on disk.
        found: String,
        /// Format of this program.
        expected: u32,
    },
    /// The modules on disk are not the modules of this program, and no upgrade accounts for the difference.
    #[error(
        "state database holds modules [{stored}], this program has [{given}]: start the program version that matches the chain"
    )]
    Modules {
        /// Module names on disk.
        stored: String,
        /// Module names given.
        given: String,
    },
    /// The list of modules itself is unusable.
    #[error("modules: {reason}: give distinct non-empty names without '/' that do not start with '~'")]
    ModuleList {
        /// What is wrong.
        reason: String,
    },
    /// Data on disk contradicts itself.
    #[error(
        "state database is corrupt: {what}: restore a backup or snapshot, or state-sync into an empty folder"
    )]
    Corrupt {
        /// Which rule is broken.
        what: String,
    },
    /// The height has left the retention window.
    #[error(
        "height {height} is pruned, the oldest kept height is {earliest}: ask a node that keeps more history"
    )]
    Pruned {
        /// Height asked for.
        height: i64,
        /// Oldest height that can be read.
        earliest: i64,
    },
    /// The height is not committed yet.
    #[error("height {height} is in the future, the latest committed height is {latest}: ask again later")]
    Future {
        /// Height asked for.
        height: i64,
        /// Latest committed height.
        latest: i64,
    },
    /// A height that no chain has.
    #[error("height {height} is invalid: give a height from 1 up")]
    InvalidHeight {
        /// Height given.
        height: i64,
    },
    /// Commits are one height apart; this one is not.
    #[error(
        "height {height} does not follow the latest committed height {latest}: replay the blocks in between first"
    )]
    NotContiguous {
        /// Height given.
        height: i64,
        /// Latest committed height.
        latest: i64,
    },
    /// The prepared state builds on a height that is no longer the latest.
    #[error("prepared height {height} builds on height {base}, but {latest} is committed: prepare again")]
    Stale {
        /// Prepared height.
        height: i64,
        /// Height it was prepared on.
        base: i64,
        /// Latest committed height.
        latest: i64,
    },
    /// A key outside every module.
    #[error("key {key} belongs to no module: keys are \"<module>/<rest>\" with a module of [{modules}]")]
    UnknownModule {
        /// Key, hex, or module name.
        key: String,
        /// Known modules.
        modules: String,
    },
    /// An empty key, an oversized key, or the key reserved for the tree's own leaf.
    #[error("key {key} cannot be committed: {reason}")]
    Key {
        /// Key, hex.
        key: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A proof that does not hold.
    #[error("proof does not verify: {0}")]
    Proof(String),
    /// A read of the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A folder that should hold a chain and does not.
    #[error("state database {path} holds no chain: give the --home of a node that has run")]
    NoState {
        /// Database folder.
        path: PathBuf,
    },
    /// The database is being filled from a snapshot.
    #[error("a snapshot is being restored into the state database: let it finish, or give it up first")]
    Restoring,
    /// The engine failed. After a failed write nothing more is accepted: stop and reopen.
    #[error("state database engine: {0}: check the disk, then restart the node")]
    Engine(String),
}

impl StateError {
    /// Stable number of the variant.
    pub fn code(&self) -> u32 {
        match self {
            Self::Locked { .. } => 2,
            Self::Format { .. } => 3,
            Self::Modules { .. } => 4,
            Self::ModuleList { .. } => 5,
            Self::Corrupt { .. } => 6,
            Self::Pruned { .. } => 7,
            Self::Future { .. } => 8,
            Self::InvalidHeight { .. } => 9,
            Self::NotContiguous { .. } => 10,
            Self::Stale { .. } => 11,
            Self::UnknownModule { .. } => 12,
            Self::Key { .. } => 13,
            Self::Proof(_) => 14,
            Self::Store(_) => 15,
            Self::Engine(_) => 16,
            Self::NoState { .. } => 17,
            Self::Restoring => 18,
        }
    }

    /// Every number that [`StateError::code`] gives, with its meaning, ascending.
    pub const CODES: &'static [(u32, &'static str)] = &[
        (2, "state database locked by another process"),
        (3, "state database of another format"),
        (4, "state database of other modules"),
        (5, "list of modules unusable"),
        (6, "state database corrupt"),
        (7, "height pruned"),
        (8, "height not reached yet (queries answer `sdk` 26)"),
        (9, "invalid height"),
        (10, "height does not follow the latest one"),
        (11, "prepared state out of date"),
        (12, "key of no module"),
        (13, "key that cannot be committed"),
        (14, "proof does not verify"),
        (15, "read of the store failed"),
        (16, "database engine failed"),
        (17, "folder without a chain"),
        (18, "snapshot being restored"),
    ];

    pub(super) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}

/// `Key` and `UnknownModule` texts show keys as hex, cut to 64 bytes.
pub(super) fn hex_key(key: &[u8]) -> String {
    let shown = key.get(..64).unwrap_or(key);
    let mut out = String::with_capacity(shown.len().saturating_mul(2));
    for byte in shown {
        out.push_str(&format!("{byte:02x}"));
    }
    if shown.len() < key.len() {
        out.push_str("..");
    }
    out
}
