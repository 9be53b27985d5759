//! Streaming reader of the Azure LLM inference trace format.
//!
//! ```text
//! TIMESTAMP,ContextTokens,GeneratedTokens
//! 2023-11-16 18:17:03.9799600,4808,10
//! ```
//!
//! A trace is read twice. [`scan`] counts, checks and hashes the whole file; [`TraceReader`] then yields
//! one [`Request`] a row. Both hold one line at a time, so a file of any length takes the same memory, and
//! the second pass fails if the file is no longer the one that was scanned.
//!
//! Accepted beyond the plain form: CRLF line ends, a missing final line end, a UTF-8 byte order mark, 0 to 9
//! fractional digits, and the `+00:00` suffix that later traces of the same publisher carry.

mod error;
mod lines;
mod passes;
mod row;
#[cfg(test)]
mod tests;

pub use self::error::{RowError, RowFault, TRACE_ERROR_CODES, TraceError};
pub use self::lines::{HEADER, MAX_LINE_BYTES};
pub use self::passes::{
    MAX_BAD_ROW_SAMPLES, Request, TraceFile, TraceReader, TraceSummary, scan, scan_bytes,
};
pub use self::row::MAX_TOKENS;
