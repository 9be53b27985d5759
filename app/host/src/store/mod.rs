//! Where a host and a gateway keep their sessions: an ordered store with atomic commits.
//!
//! ```text
//!  read ──► BranchKv over the store ──► typed writes ──► into_writes ──► commit(writes, sync) ──► send
//! ```
//!
//! A step is one write set: all of it is there after a crash, or nothing. What leaves the process only follows a commit with
//! `sync`.

mod disk;
mod mem;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use holdfast_store::{KvRead, WriteSet};

pub use disk::{FORMAT, FjallDb};
pub use mem::{Fault, MemDb};

/// Longest key, bytes.
pub const KEY_MAX: usize = 1 << 10;
/// Longest value, bytes: a snapshot of a session is the largest.
pub const VALUE_MAX: usize = 64 << 20;
/// Most bytes of keys and values in one commit.
pub const COMMIT_MAX: usize = 256 << 20;

/// Why a store does not take or hold something. Codes are stable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DbError {
    /// Another process has the folder open.
    #[error("{}: another process has this store open; stop it, or give another folder", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// What is on disk is not what was written.
    #[error(
        "the store is corrupt: {what}; keep the folder for a look, and start with an empty one or a backup"
    )]
    Corrupt {
        /// What was found.
        what: String,
    },
    /// Written by another version, or for something else.
    #[error("{}: holds {found}, expected {expected}; give another folder", path.display())]
    Format {
        /// The folder.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// No space left.
    #[error("the disk is full: {what}; make room")]
    Full {
        /// What the system said.
        what: String,
    },
    /// A key, a value or a commit above its limit.
    #[error("{what} of {bytes} bytes, at most {limit}")]
    TooLarge {
        /// `key`, `value` or `commit`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// An empty key.
    #[error("a key must not be empty")]
    EmptyKey,
    /// The engine or the system failed; nothing is known about what is on disk, and nothing more is taken.
    #[error("the store failed: {what}; start again")]
    Failed {
        /// What was said.
        what: String,
    },
}

impl DbError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::Locked { .. } => 1,
            Self::Corrupt { .. } => 2,
            Self::Format { .. } => 3,
            Self::Full { .. } => 4,
            Self::TooLarge { .. } => 5,
            Self::EmptyKey => 6,
            Self::Failed { .. } => 7,
        }
    }
}

/// An ordered key-value store of this process with atomic commits. Handles are shared; a commit is seen by every later read.
pub trait LocalDb: KvRead + Send + Sync {
    /// Applies all writes or none. With `sync` they survive a power cut once this returns, and so does everything that was
    /// committed before; without it they survive the end of the process only.
    ///
    /// # Errors
    /// [`DbError`]. After `Full` or `Failed` the store takes no more commits until it is opened again: what is on disk is
    /// not known. After `TooLarge` and `EmptyKey` nothing has changed.
    fn commit(&self, writes: WriteSet, sync: bool) -> Result<(), DbError>;
}

/// Whether the writes keep to the limits.
fn check(writes: &WriteSet) -> Result<(), DbError> {
    let mut total = 0usize;
    let within = |what, bytes: usize, limit| {
        if bytes > limit { Err(DbError::TooLarge { what, bytes, limit }) } else { Ok(()) }
    };
    for (key, value) in writes {
        let value = value.as_ref().map_or(0, Vec::len);
        if key.is_empty() {
            return Err(DbError::EmptyKey);
        }
        within("key", key.len(), KEY_MAX)?;
        within("value", value, VALUE_MAX)?;
        total = total.saturating_add(key.len()).saturating_add(value);
    }
    within("commit", total, COMMIT_MAX)
}
