//! Why a trace is refused, and where in it.

use std::io;

use super::lines::HEADER;

/// Code and meaning of every [`TraceError`], for the error table of the documentation.
pub const TRACE_ERROR_CODES: &[(u32, &str)] = &[
    (101, "trace file cannot be read"),
    (102, "trace header missing or wrong"),
    (103, "trace has no rows"),
    (104, "trace line too long"),
    (105, "trace row has the wrong number of columns"),
    (106, "trace timestamp malformed"),
    (107, "trace timestamp earlier than the row before"),
    (108, "trace token count malformed"),
    (109, "trace token count out of range"),
    (110, "trace changed while it was in use"),
];

/// Why a trace was refused. [`TraceError::code`] is stable.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("--trace: cannot read {file}: {source} (devnet error 101); check the path and its permissions")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The first line is not [`HEADER`].
    #[error(
        "{file}:1:{column}: header: expected \"{HEADER}\", found {found} (devnet error 102); add the header as line 1"
    )]
    Header {
        /// The file.
        file: String,
        /// First byte that differs, from 1.
        column: usize,
        /// The line, shortened.
        found: String,
    },
    /// No good row after the header.
    #[error(
        "--trace: {file} holds no request after its header ({bad_rows} bad rows) (devnet error 103); give a trace with at least one row"
    )]
    Empty {
        /// The file.
        file: String,
        /// Bad rows skipped on the way.
        bad_rows: u64,
    },
    /// A malformed row.
    #[error("{0}; correct the row or pass --skip-bad-rows")]
    Row(RowError),
    /// The second pass read other bytes than the first.
    #[error(
        "--trace: {file} changed between the check and the run: sha256 was {expected}, is {found} (devnet error 110); leave the file alone while a run reads it"
    )]
    Changed {
        /// The file.
        file: String,
        /// Digest of the first pass.
        expected: String,
        /// Digest of the second pass.
        found: String,
    },
}

impl TraceError {
    /// The stable code, as listed in [`TRACE_ERROR_CODES`].
    pub fn code(&self) -> u32 {
        match self {
            TraceError::Read { .. } => 101,
            TraceError::Header { .. } => 102,
            TraceError::Empty { .. } => 103,
            TraceError::Row(row) => row.fault.code(),
            TraceError::Changed { .. } => 110,
        }
    }
}

/// A malformed row: where it is and what should stand there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {}: expected {expected}, found {found} (devnet error {})", fault.field(), fault.code())]
pub struct RowError {
    /// The file as it was named.
    pub file: String,
    /// Line, from 1; the header is line 1.
    pub line: u64,
    /// Column in bytes, from 1, of the first byte that is wrong.
    pub column: usize,
    /// What is wrong.
    pub fault: RowFault,
    /// What should stand there.
    pub expected: String,
    /// What stands there, quoted and shortened.
    pub found: String,
}

/// The kinds of malformed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFault {
    /// Longer than [`MAX_LINE_BYTES`](super::MAX_LINE_BYTES).
    LineTooLong,
    /// Fewer or more than three columns.
    Columns,
    /// Not `YYYY-MM-DD HH:MM:SS[.fraction]`, or no such day or time.
    Timestamp,
    /// Earlier than the good row before.
    OutOfOrder,
    /// A context token count that is no whole number.
    ContextTokens,
    /// A generated token count that is no whole number.
    GeneratedTokens,
    /// A context token count above [`MAX_TOKENS`](super::MAX_TOKENS).
    ContextTokensRange,
    /// A generated token count above [`MAX_TOKENS`](super::MAX_TOKENS).
    GeneratedTokensRange,
}

impl RowFault {
    /// The stable code, as listed in [`TRACE_ERROR_CODES`].
    pub fn code(self) -> u32 {
        match self {
            RowFault::LineTooLong => 104,
            RowFault::Columns => 105,
            RowFault::Timestamp => 106,
            RowFault::OutOfOrder => 107,
            RowFault::ContextTokens | RowFault::GeneratedTokens => 108,
            RowFault::ContextTokensRange | RowFault::GeneratedTokensRange => 109,
        }
    }

    /// Name of the column or of the part of the row the fault lies in.
    pub fn field(self) -> &'static str {
        match self {
            RowFault::LineTooLong | RowFault::Columns => "row",
            RowFault::Timestamp | RowFault::OutOfOrder => "TIMESTAMP",
            RowFault::ContextTokens | RowFault::ContextTokensRange => "ContextTokens",
            RowFault::GeneratedTokens | RowFault::GeneratedTokensRange => "GeneratedTokens",
        }
    }
}
