//! Why the ledger refuses.

use std::io;

use super::format::VERSION;
use crate::adapter::KvKey;

/// Why the ledger refused. Codes are stable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Another process has the folder.
    #[error("the ledger in {0} is in use by another process")]
    Locked(String),
    /// Reading or writing failed.
    #[error("ledger I/O: {0}")]
    Io(String),
    /// No room on the disk.
    #[error("ledger I/O: the disk is full: {0}")]
    DiskFull(String),
    /// A record or header that no crash explains. The node must not work with this ledger.
    #[error("LedgerCorrupt: {file} at offset {offset}: {what}")]
    Corrupt {
        /// Name of the segment.
        file: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Written by another version of this program.
    #[error("{file} has version {version} of the format; this program knows {VERSION}")]
    UnknownVersion {
        /// Name of the segment.
        file: String,
        /// Its version.
        version: u16,
    },
    /// A write or sync failed before; open the ledger again.
    #[error("the ledger stopped after: {0}")]
    Stopped(String),
    /// No room for a new session until others are closed and their time is over.
    #[error("LedgerFull: {sessions} sessions, {bytes} bytes")]
    Full {
        /// Sessions it holds.
        sessions: usize,
        /// Memory they take, bytes.
        bytes: usize,
    },
    /// Something is too long, or contradicts itself.
    #[error("invalid record: {0}")]
    Invalid(&'static str),
    /// The attempt has its record.
    #[error("session {} epoch {} has a terminal record", .0.session, .0.epoch)]
    DuplicateTerminal(KvKey),
    /// The session is at this epoch or a later one.
    #[error("stale epoch: the session is at {have}")]
    StaleEpoch {
        /// Its last epoch.
        have: u32,
    },
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// No such session or attempt.
    #[error("the attempt was never opened")]
    NotOpened,
    /// The attempt has no terminal record yet.
    #[error("epoch {epoch} of the session has no terminal record")]
    Unfinished {
        /// The attempt.
        epoch: u32,
    },
    /// The step has no intent that this could end.
    #[error("step {0} is not in that state")]
    WrongStep(u32),
}

impl LedgerError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::Locked(_) => 1,
            Self::Io(_) => 2,
            Self::DiskFull(_) => 3,
            Self::Corrupt { .. } => 4,
            Self::UnknownVersion { .. } => 5,
            Self::Stopped(_) => 6,
            Self::Full { .. } => 7,
            Self::Invalid(_) => 8,
            Self::DuplicateTerminal(_) => 9,
            Self::StaleEpoch { .. } => 10,
            Self::Closed => 11,
            Self::NotOpened => 12,
            Self::Unfinished { .. } => 13,
            Self::WrongStep(_) => 14,
        }
    }
}

impl From<io::Error> for LedgerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}
