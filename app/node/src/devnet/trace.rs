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

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The header line every trace begins with.
pub const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Longest line accepted, in bytes, without its line end.
pub const MAX_LINE_BYTES: usize = 4096;

/// Largest token count accepted in either column.
pub const MAX_TOKENS: u32 = 10_000_000;

/// How many bad rows [`TraceSummary`] describes; the rest are only counted.
pub const MAX_BAD_ROW_SAMPLES: usize = 10;

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

/// One request of a trace or of the built-in workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Position among the good rows, from 0.
    pub index: u64,
    /// Microseconds since the first good row, rounded down.
    pub arrival_us: u64,
    /// Prompt length in tokens.
    pub context_tokens: u32,
    /// Answer length in tokens.
    pub generated_tokens: u32,
}

/// What the first pass found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSummary {
    /// Good rows.
    pub rows: u64,
    /// Rows left out under `--skip-bad-rows`.
    pub bad_rows: u64,
    /// The first [`MAX_BAD_ROW_SAMPLES`] of them, as error texts with file, line and column.
    pub bad_row_samples: Vec<String>,
    /// SHA-256 of the bytes of the file, lower-case hex.
    pub sha256: String,
    /// Timestamp of the first good row, as written.
    pub first_ts: String,
    /// Timestamp of the last good row, as written.
    pub last_ts: String,
    /// Microseconds from the first good row to the last.
    pub span_us: u64,
}

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
    /// Longer than [`MAX_LINE_BYTES`].
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
    /// A context token count above [`MAX_TOKENS`].
    ContextTokensRange,
    /// A generated token count above [`MAX_TOKENS`].
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

/// First pass over a trace file: counts, checks every row, hashes the bytes.
///
/// With `skip_bad_rows` a malformed row is counted and left out; without it the first one is the error. A
/// wrong header, an unreadable file and a trace without rows are errors either way.
pub fn scan(path: &Path, skip_bad_rows: bool) -> Result<TraceSummary, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|source| TraceError::Read { file: name.clone(), source })?;
    scan_bytes(&name, file, skip_bad_rows)
}

/// [`scan`] over any byte source; `name` stands for the file in errors.
pub fn scan_bytes<R: Read>(name: &str, source: R, skip_bad_rows: bool) -> Result<TraceSummary, TraceError> {
    let mut rows = Rows::new(name.to_owned(), source, skip_bad_rows)?;
    let mut count = 0u64;
    let mut first = None;
    let mut last = None;
    let mut samples = Vec::new();
    loop {
        match rows.next_row(&mut samples)? {
            None => break,
            Some(row) => {
                count += 1;
                first.get_or_insert((row.at, row.timestamp.clone()));
                last = Some((row.at, row.timestamp));
            }
        }
    }
    let (Some((first_at, first_ts)), Some((last_at, last_ts))) = (first, last) else {
        return Err(TraceError::Empty { file: rows.name, bad_rows: rows.bad_rows });
    };
    Ok(TraceSummary {
        rows: count,
        bad_rows: rows.bad_rows,
        bad_row_samples: samples,
        sha256: hex::encode(rows.lines.hash.finalize()),
        first_ts,
        last_ts,
        span_us: last_at.micros_since(first_at),
    })
}

/// Second pass: the requests of a scanned trace, in file order and bounded memory.
///
/// After an error the iterator ends. At the end of the file the digest is compared with the summary's, and a
/// difference is the last item.
pub struct TraceReader<R: Read> {
    rows: Rows<R>,
    expected_sha256: String,
    first_at: Option<Instant>,
    index: u64,
    done: bool,
}

impl TraceReader<File> {
    /// Opens the file that `summary` was made from, with the same `skip_bad_rows`.
    pub fn open(path: &Path, summary: &TraceSummary, skip_bad_rows: bool) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| TraceError::Read { file: name.clone(), source })?;
        Self::from_bytes(&name, file, summary, skip_bad_rows)
    }
}

impl<R: Read> TraceReader<R> {
    /// [`TraceReader::open`] over any byte source.
    pub fn from_bytes(
        name: &str,
        source: R,
        summary: &TraceSummary,
        skip_bad_rows: bool,
    ) -> Result<Self, TraceError> {
        Ok(TraceReader {
            rows: Rows::new(name.to_owned(), source, skip_bad_rows)?,
            expected_sha256: summary.sha256.clone(),
            first_at: None,
            index: 0,
            done: false,
        })
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.rows.next_row(&mut Vec::new()) {
            Ok(Some(row)) => {
                let first_at = *self.first_at.get_or_insert(row.at);
                let request = Request {
                    index: self.index,
                    arrival_us: row.at.micros_since(first_at),
                    context_tokens: row.context_tokens,
                    generated_tokens: row.generated_tokens,
                };
                self.index += 1;
                Some(Ok(request))
            }
            Ok(None) => {
                self.done = true;
                let found = hex::encode(self.rows.lines.hash.finalize_reset());
                if found == self.expected_sha256 {
                    return None;
                }
                Some(Err(TraceError::Changed {
                    file: self.rows.name.clone(),
                    expected: self.expected_sha256.clone(),
                    found,
                }))
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }
}

/// Where the requests of a run come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFile {
    /// The file.
    pub path: PathBuf,
    /// Whether malformed rows are left out.
    pub skip_bad_rows: bool,
    /// Result of the first pass.
    pub summary: TraceSummary,
}

impl TraceFile {
    /// Scans `path`; the result can be read any number of times.
    pub fn scan(path: &Path, skip_bad_rows: bool) -> Result<Self, TraceError> {
        let summary = scan(path, skip_bad_rows)?;
        Ok(TraceFile { path: path.to_owned(), skip_bad_rows, summary })
    }

    /// The requests, from the first row.
    pub fn requests(&self) -> Result<TraceReader<File>, TraceError> {
        TraceReader::open(&self.path, &self.summary, self.skip_bad_rows)
    }
}

/// A point in time: seconds since 1970 and nanoseconds, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Instant {
    seconds: u64,
    nanos: u32,
}

impl Instant {
    /// Microseconds from `earlier`, rounded down; years end at 9999, so this fits with room to spare.
    fn micros_since(self, earlier: Instant) -> u64 {
        let nanos = |at: Instant| u128::from(at.seconds) * 1_000_000_000 + u128::from(at.nanos);
        u64::try_from(nanos(self).saturating_sub(nanos(earlier)) / 1000).unwrap_or(u64::MAX)
    }
}

struct Row {
    at: Instant,
    timestamp: String,
    context_tokens: u32,
    generated_tokens: u32,
}

/// The checked rows of a trace; the rules that both passes share.
struct Rows<R: Read> {
    name: String,
    lines: Lines<R>,
    skip_bad_rows: bool,
    bad_rows: u64,
    before: Option<(Instant, String)>,
}

impl<R: Read> Rows<R> {
    fn new(name: String, source: R, skip_bad_rows: bool) -> Result<Self, TraceError> {
        let mut rows = Rows { name, lines: Lines::new(source), skip_bad_rows, bad_rows: 0, before: None };
        let found = rows.read_line()?;
        let line = rows.lines.line.as_slice();
        let text = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        if !found || rows.lines.too_long || text != HEADER.as_bytes() {
            let same = text.iter().zip(HEADER.as_bytes()).take_while(|(a, b)| a == b).count();
            let column = same + 1 + (line.len() - text.len());
            let found = if found { quoted(text) } else { "an empty file".to_owned() };
            return Err(TraceError::Header { file: rows.name, column, found });
        }
        Ok(rows)
    }

    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.lines.next_line().map_err(|source| TraceError::Read { file: self.name.clone(), source })
    }

    fn next_row(&mut self, samples: &mut Vec<String>) -> Result<Option<Row>, TraceError> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            match self.check_row() {
                Ok(row) => {
                    self.before = Some((row.at, row.timestamp.clone()));
                    return Ok(Some(row));
                }
                Err(fault) => {
                    let error = RowError {
                        file: self.name.clone(),
                        line: self.lines.number,
                        column: fault.column,
                        fault: fault.fault,
                        expected: fault.expected,
                        found: fault.found,
                    };
                    if !self.skip_bad_rows {
                        return Err(TraceError::Row(error));
                    }
                    self.bad_rows += 1;
                    if samples.len() < MAX_BAD_ROW_SAMPLES {
                        samples.push(error.to_string());
                    }
                }
            }
        }
    }

    fn check_row(&self) -> Result<Row, Fault> {
        if self.lines.too_long {
            return Err(Fault {
                column: MAX_LINE_BYTES + 1,
                fault: RowFault::LineTooLong,
                expected: format!("a line of at most {MAX_LINE_BYTES} bytes"),
                found: "a longer one".to_owned(),
            });
        }
        let row = parse_row(&self.lines.line)?;
        if let Some((before, text)) = &self.before
            && row.at < *before
        {
            return Err(Fault {
                column: 1,
                fault: RowFault::OutOfOrder,
                expected: format!("a time not before {text}, the row above"),
                found: quoted(row.timestamp.as_bytes()),
            });
        }
        Ok(row)
    }
}

/// A fault inside a line, before file and line number are known.
struct Fault {
    column: usize,
    fault: RowFault,
    expected: String,
    found: String,
}

fn parse_row(line: &[u8]) -> Result<Row, Fault> {
    let mut fields = [(0usize, &line[..0]); 3];
    let mut count = 0;
    let mut start = 0;
    for (at, byte) in line.iter().chain(b",").enumerate() {
        if *byte != b',' {
            continue;
        }
        if count == 3 {
            return Err(Fault {
                column: start,
                fault: RowFault::Columns,
                expected: "the end of the row after 3 columns".to_owned(),
                found: quoted(&line[start - 1..]),
            });
        }
        fields[count] = (start, &line[start..at]);
        count += 1;
        start = at + 1;
    }
    if count < 3 {
        let found = match (line.is_empty(), count) {
            (true, _) => "an empty line".to_owned(),
            (_, 1) => "1 column".to_owned(),
            _ => format!("{count} columns"),
        };
        return Err(Fault {
            column: line.len() + 1,
            fault: RowFault::Columns,
            expected: format!("3 columns, {HEADER}"),
            found,
        });
    }
    let at = parse_timestamp(fields[0].1)?;
    let context_tokens = parse_tokens(fields[1], RowFault::ContextTokens, RowFault::ContextTokensRange)?;
    let generated_tokens =
        parse_tokens(fields[2], RowFault::GeneratedTokens, RowFault::GeneratedTokensRange)?;
    let timestamp = String::from_utf8_lossy(fields[0].1).into_owned();
    Ok(Row { at, timestamp, context_tokens, generated_tokens })
}

fn parse_tokens((start, field): (usize, &[u8]), form: RowFault, range: RowFault) -> Result<u32, Fault> {
    let expected = || format!("a whole number from 0 to {MAX_TOKENS}");
    let bad_digit = field.iter().position(|byte| !byte.is_ascii_digit());
    if let Some(at) = bad_digit.or(field.is_empty().then_some(0)) {
        return Err(Fault {
            column: start + at + 1,
            fault: form,
            expected: expected(),
            found: quoted(field),
        });
    }
    let value = field
        .iter()
        .fold(0u64, |value, byte| value.saturating_mul(10).saturating_add(u64::from(byte - b'0')));
    match u32::try_from(value) {
        Ok(value) if value <= MAX_TOKENS => Ok(value),
        _ => Err(Fault { column: start + 1, fault: range, expected: expected(), found: quoted(field) }),
    }
}

/// Reads `YYYY-MM-DD HH:MM:SS`, then optionally `.` and 1 to 9 digits, then optionally `+00:00`.
fn parse_timestamp(field: &[u8]) -> Result<Instant, Fault> {
    const PATTERN: &[u8] = b"dddd-dd-dd dd:dd:dd";
    let fault = |at: usize, expected: &str| Fault {
        column: at + 1,
        fault: RowFault::Timestamp,
        expected: expected.to_owned(),
        found: quoted(field),
    };
    for (at, pattern) in PATTERN.iter().enumerate() {
        let fits = match (pattern, field.get(at)) {
            (b'd', Some(byte)) => byte.is_ascii_digit(),
            (pattern, Some(byte)) => pattern == byte,
            (_, None) => false,
        };
        if !fits {
            let expected = match pattern {
                b'd' => "a digit of YYYY-MM-DD HH:MM:SS.fraction",
                b'-' => "\"-\" of YYYY-MM-DD HH:MM:SS.fraction",
                b':' => "\":\" of YYYY-MM-DD HH:MM:SS.fraction",
                _ => "the space of YYYY-MM-DD HH:MM:SS.fraction",
            };
            return Err(fault(at, expected));
        }
    }
    let number = |from: usize, to: usize| {
        field[from..to].iter().fold(0u64, |value, byte| value * 10 + u64::from(byte - b'0'))
    };
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let (hour, minute, second) = (number(11, 13), number(14, 16), number(17, 19));
    if year < 1970 {
        return Err(fault(0, "a year from 1970 to 9999"));
    }
    if !(1..=12).contains(&month) {
        return Err(fault(5, "a month from 01 to 12"));
    }
    if day < 1 || day > days_in_month(year, month) {
        return Err(fault(8, "a day of that month"));
    }
    if hour > 23 {
        return Err(fault(11, "an hour from 00 to 23"));
    }
    if minute > 59 {
        return Err(fault(14, "a minute from 00 to 59"));
    }
    if second > 59 {
        return Err(fault(17, "a second from 00 to 59"));
    }
    let mut rest = &field[PATTERN.len()..];
    let mut nanos = 0u32;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || digits > 9 {
            return Err(fault(PATTERN.len() + 1 + digits.min(9), "1 to 9 digits of a second after \".\""));
        }
        for at in 0..9 {
            nanos = nanos * 10 + fraction[..digits].get(at).map_or(0, |byte| u32::from(byte - b'0'));
        }
        rest = &fraction[digits..];
    }
    if !rest.is_empty() && rest != b"+00:00" {
        return Err(fault(field.len() - rest.len(), "the end of the timestamp, or \"+00:00\""));
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Ok(Instant { seconds, nanos })
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let whole_years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    whole_years + (1..month).map(|month| days_in_month(year, month)).sum::<u64>() + day - 1
}

/// Quotes at most 40 bytes of what was found, escaping what a terminal would act on.
fn quoted(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(40)];
    let more = if bytes.len() > shown.len() { "..." } else { "" };
    format!("\"{}{more}\"", shown.escape_ascii())
}

/// Lines of bounded length out of a byte stream, hashed as they pass.
struct Lines<R: Read> {
    source: BufReader<R>,
    hash: Sha256,
    /// The current line without its line end; at most [`MAX_LINE_BYTES`] + 1 bytes.
    line: Vec<u8>,
    /// The current line was longer than that, and its tail was dropped.
    too_long: bool,
    /// Number of the current line, from 1.
    number: u64,
}

impl<R: Read> Lines<R> {
    fn new(source: R) -> Self {
        Lines {
            source: BufReader::with_capacity(64 * 1024, source),
            hash: Sha256::new(),
            line: Vec::new(),
            too_long: false,
            number: 0,
        }
    }

    /// Reads the next line into `self.line`; false at the end of the source.
    fn next_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let mut length = 0usize;
        let mut ended = false;
        while !ended {
            let chunk = match self.source.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                if length == 0 {
                    return Ok(false);
                }
                break;
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            ended = end.is_some();
            let part = &chunk[..end.unwrap_or(chunk.len())];
            // One byte over the limit is kept, so that a CR at the very limit can still be taken off.
            let room = (MAX_LINE_BYTES + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(ended);
            length = length.saturating_add(used);
            self.hash.update(&chunk[..used]);
            self.source.consume(used);
        }
        let kept_whole = length - usize::from(ended) == self.line.len();
        if kept_whole && self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        self.too_long = !kept_whole || self.line.len() > MAX_LINE_BYTES;
        self.number += 1;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
        2023-11-16 18:17:03.9799600,4808,10\n\
        2023-11-16 18:17:04.0319600,3180,8\n";

    fn with_row(row: &str) -> String {
        format!("{HEADER}\n2024-02-29 10:00:00.5,7,8\n{row}\n2024-02-29 10:00:09.25,9,10\n")
    }

    fn refused(text: &str) -> TraceError {
        scan_bytes("t.csv", text.as_bytes(), false).expect_err("must be refused")
    }

    fn refused_row(row: &str) -> RowError {
        match refused(&with_row(row)) {
            TraceError::Row(error) => error,
            other => panic!("not a row error: {other}"),
        }
    }

    fn requests(text: &str, skip: bool) -> Vec<Request> {
        let summary = scan_bytes("t.csv", text.as_bytes(), skip).expect("scan");
        TraceReader::from_bytes("t.csv", text.as_bytes(), &summary, skip)
            .expect("open")
            .collect::<Result<_, _>>()
            .expect("rows")
    }

    #[test]
    fn a_good_trace_is_counted_hashed_and_read() {
        let summary = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
        assert_eq!(summary.rows, 2);
        assert_eq!(summary.bad_rows, 0);
        assert_eq!(summary.first_ts, "2023-11-16 18:17:03.9799600");
        assert_eq!(summary.last_ts, "2023-11-16 18:17:04.0319600");
        assert_eq!(summary.span_us, 52_000);
        assert_eq!(summary.sha256, hex::encode(Sha256::digest(GOOD.as_bytes())));
        assert_eq!(
            requests(GOOD, false),
            [
                Request { index: 0, arrival_us: 0, context_tokens: 4808, generated_tokens: 10 },
                Request { index: 1, arrival_us: 52_000, context_tokens: 3180, generated_tokens: 8 },
            ]
        );
    }

    #[test]
    fn the_digest_is_that_of_the_known_bytes() {
        // sha256("TIMESTAMP,ContextTokens,GeneratedTokens\n2000-01-01 00:00:00,1,2"), from sha256sum.
        let text = format!("{HEADER}\n2000-01-01 00:00:00,1,2");
        let summary = scan_bytes("t.csv", text.as_bytes(), false).expect("scan");
        assert_eq!(summary.sha256, "5455fd006674b245969df68590297abc1e5810037e8a41a82743935ea97abb36");
    }

    #[test]
    fn crlf_byte_order_mark_and_a_missing_final_line_end_are_tolerated() {
        let plain = requests(GOOD, false);
        assert_eq!(requests(&GOOD.replace('\n', "\r\n"), false), plain);
        assert_eq!(requests(GOOD.trim_end(), false), plain);
        assert_eq!(requests(GOOD.replace('\n', "\r\n").trim_end_matches('\n'), false), plain);
        assert_eq!(requests(&format!("\u{feff}{GOOD}"), false), plain);
    }

    #[test]
    fn fractions_of_zero_to_nine_digits_are_read_and_rounded_down_to_microseconds() {
        let text = format!(
            "{HEADER}\n2023-01-01 00:00:00,1,1\n2023-01-01 00:00:00.000000999,1,1\n\
             2023-01-01 00:00:00.1,1,1\n2023-01-01 00:00:00.123456789,1,1\n2023-01-01 00:00:01.0000015+00:00,1,1\n"
        );
        let arrivals: Vec<u64> = requests(&text, false).iter().map(|request| request.arrival_us).collect();
        assert_eq!(arrivals, [0, 0, 100_000, 123_456, 1_000_001]);
    }

    #[test]
    fn calendar_boundaries_are_counted_in_true_days() {
        let text = format!(
            "{HEADER}\n1999-12-31 23:59:59,1,1\n2000-01-01 00:00:00,1,1\n2000-02-28 00:00:00,1,1\n\
             2000-03-01 00:00:00,1,1\n2100-02-28 00:00:00,1,1\n2100-03-01 00:00:00,1,1\n"
        );
        let seconds: Vec<u64> = requests(&text, false).iter().map(|r| r.arrival_us / 1_000_000).collect();
        // 58 days to 28 February; 2000 has a 29 February, 2100 has none; 36,525 days from 2000 to 2100.
        let day = 86_400;
        assert_eq!(seconds, [0, 1, 1 + 58 * day, 1 + 60 * day, 1 + 36_583 * day, 1 + 36_584 * day]);
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(2023, 11, 16), 19_677);
    }

    #[test]
    fn equal_timestamps_are_in_order() {
        let text = format!("{HEADER}\n2023-01-01 00:00:00.5,1,1\n2023-01-01 00:00:00.50,2,2\n");
        assert_eq!(requests(&text, false).len(), 2);
    }

    #[test]
    fn the_header_is_required_and_the_first_difference_is_named() {
        let error = refused("TIMESTAMP,Context,GeneratedTokens\n");
        assert_eq!(error.code(), 102);
        assert!(error.to_string().starts_with("t.csv:1:18: header:"), "{error}");
        assert_eq!(refused("").code(), 102);
        assert!(refused("").to_string().contains("an empty file"));
        assert_eq!(refused("2023-11-16 18:17:03,1,2\n").code(), 102);
        assert_eq!(refused(&format!("{HEADER},Extra\n")).code(), 102);
        let skipped = scan_bytes("t.csv", "x\n".as_bytes(), true).expect_err("header is never skipped");
        assert_eq!(skipped.code(), 102);
    }

    #[test]
    fn a_trace_without_rows_is_refused() {
        assert_eq!(refused(HEADER).code(), 103);
        let error = scan_bytes("t.csv", format!("{HEADER}\nx\ny\n").as_bytes(), true).expect_err("no rows");
        assert_eq!(error.code(), 103);
        assert!(error.to_string().contains("2 bad rows"), "{error}");
    }

    #[test]
    fn a_row_error_names_file_line_column_field_and_expectation() {
        let error = refused(&with_row("2024-02-29 10:00:01,12x,5"));
        assert_eq!(error.code(), 108);
        assert_eq!(
            error.to_string(),
            "t.csv:3:23: ContextTokens: expected a whole number from 0 to 10000000, found \"12x\" \
             (devnet error 108); correct the row or pass --skip-bad-rows"
        );
    }

    #[test]
    fn every_malformed_row_has_its_code_and_column() {
        use RowFault::*;
        let ts = "2024-02-29 10:00:01";
        let long_number = format!("{ts},5,{}", "9".repeat(60));
        let cases: Vec<(String, RowFault, usize)> = vec![
            (String::new(), Columns, 1),
            (ts.to_owned(), Columns, 20),
            (format!("{ts},5"), Columns, 22),
            (format!("{ts},5,6,7"), Columns, 24),
            (format!("{ts},5,6,"), Columns, 24),
            (format!("{ts},,6"), ContextTokens, 21),
            (format!("{ts},5,"), GeneratedTokens, 23),
            (format!("{ts},-5,6"), ContextTokens, 21),
            (format!("{ts}, 5,6"), ContextTokens, 21),
            (format!("{ts},+5,6"), ContextTokens, 21),
            (format!("{ts},5,6.0"), GeneratedTokens, 24),
            (format!("{ts},5,6\r\r"), GeneratedTokens, 24),
            (format!("{ts},5,\"6\""), GeneratedTokens, 23),
            (format!("{ts},10000001,6"), ContextTokensRange, 21),
            (format!("{ts},5,4294967296"), GeneratedTokensRange, 23),
            (long_number, GeneratedTokensRange, 23),
            (",5,6".to_owned(), Timestamp, 1),
            ("2024/02/29 10:00:01,5,6".to_owned(), Timestamp, 5),
            ("2024-02-29T10:00:01,5,6".to_owned(), Timestamp, 11),
            ("2024-02-29 10:00,5,6".to_owned(), Timestamp, 17),
            ("2024-02-29 10:00:0,5,6".to_owned(), Timestamp, 19),
            ("24-02-29 10:00:01,5,6".to_owned(), Timestamp, 3),
            ("2024-02-29 10.00:01,5,6".to_owned(), Timestamp, 14),
            ("1969-02-28 10:00:01,5,6".to_owned(), Timestamp, 1),
            ("2024-00-29 10:00:01,5,6".to_owned(), Timestamp, 6),
            ("2024-13-29 10:00:01,5,6".to_owned(), Timestamp, 6),
            ("2024-02-30 10:00:01,5,6".to_owned(), Timestamp, 9),
            ("2023-02-29 10:00:01,5,6".to_owned(), Timestamp, 9),
            ("2024-04-31 10:00:01,5,6".to_owned(), Timestamp, 9),
            ("2024-02-00 10:00:01,5,6".to_owned(), Timestamp, 9),
            ("2024-02-29 24:00:01,5,6".to_owned(), Timestamp, 12),
            ("2024-02-29 10:60:01,5,6".to_owned(), Timestamp, 15),
            ("2024-02-29 10:00:60,5,6".to_owned(), Timestamp, 18),
            ("2024-02-29 10:00:01.,5,6".to_owned(), Timestamp, 21),
            ("2024-02-29 10:00:01.0123456789,5,6".to_owned(), Timestamp, 30),
            ("2024-02-29 10:00:01.5Z,5,6".to_owned(), Timestamp, 22),
            ("2024-02-29 10:00:01+01:00,5,6".to_owned(), Timestamp, 20),
            ("2024-02-29 09:59:59,5,6".to_owned(), OutOfOrder, 1),
            ("2024-02-29 10:00:00.499999999,5,6".to_owned(), OutOfOrder, 1),
            ("x".repeat(MAX_LINE_BYTES + 1), LineTooLong, MAX_LINE_BYTES + 1),
        ];
        for (row, fault, column) in cases {
            let error = refused_row(&row);
            assert_eq!((error.fault, error.column, error.line), (fault, column, 3), "{row:?}: {error}");
            assert!(TRACE_ERROR_CODES.iter().any(|(code, _)| *code == fault.code()));
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_refused_and_escaped() {
        let mut bytes = format!("{HEADER}\n2024-02-29 10:00:01,").into_bytes();
        bytes.extend_from_slice(b"\xff\x1b[2J,6\n");
        let error = scan_bytes("t.csv", bytes.as_slice(), false).expect_err("refused");
        assert_eq!(error.code(), 108);
        assert!(error.to_string().contains(r#""\xff\x1b[2J""#), "{error}");
        assert!(!error.to_string().contains('\u{1b}'));
    }

    #[test]
    fn the_line_limit_is_exact_and_a_longer_line_takes_no_more_memory() {
        let at_limit = "y".repeat(MAX_LINE_BYTES);
        assert_eq!(refused_row(&at_limit).fault, RowFault::Columns);
        let crlf = with_row(&format!("{at_limit}\r"));
        let TraceError::Row(error) = refused(&crlf) else { panic!("row error") };
        assert_eq!(error.fault, RowFault::Columns);
        let text = with_row(&"z".repeat(1 << 20));
        let mut lines = Lines::new(text.as_bytes());
        while lines.next_line().expect("line") {
            assert!(lines.line.capacity() <= 4 * MAX_LINE_BYTES);
        }
        let summary = scan_bytes("t.csv", text.as_bytes(), true).expect("scan");
        assert_eq!((summary.rows, summary.bad_rows), (2, 1));
    }

    #[test]
    fn skipped_rows_are_counted_the_first_ten_kept_and_the_rest_of_the_trace_read() {
        let mut text = format!("{HEADER}\n");
        for second in 10..40 {
            text.push_str(&format!("2024-02-29 10:00:{second},1,{second}\nbad {second}\n"));
        }
        text.push_str("2024-02-29 10:00:00,1,1\n");
        let summary = scan_bytes("t.csv", text.as_bytes(), true).expect("scan");
        assert_eq!((summary.rows, summary.bad_rows), (30, 31));
        assert_eq!(summary.bad_row_samples.len(), MAX_BAD_ROW_SAMPLES);
        assert!(summary.bad_row_samples[0].starts_with("t.csv:3:7: row: expected 3 columns"));
        assert!(summary.bad_row_samples[9].starts_with("t.csv:21:7:"));
        let rows = requests(&text, true);
        assert_eq!(rows.len(), 30);
        assert_eq!(rows[29].index, 29);
        assert_eq!(rows[29].arrival_us, 29_000_000);
        // Without the flag the same file stops at the first bad row.
        assert_eq!(refused(&text).code(), 105);
    }

    #[test]
    fn a_file_that_changes_between_the_passes_is_noticed() {
        let summary = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
        let other = GOOD.replace("4808", "4809");
        let items: Vec<_> =
            TraceReader::from_bytes("t.csv", other.as_bytes(), &summary, false).expect("open").collect();
        assert_eq!(items.len(), 3);
        let error = items[2].as_ref().expect_err("changed");
        assert_eq!(error.code(), 110);
    }

    #[test]
    fn the_reader_ends_after_an_error() {
        let summary = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
        let text = with_row("bad");
        let items: Vec<_> =
            TraceReader::from_bytes("t.csv", text.as_bytes(), &summary, false).expect("open").collect();
        assert_eq!(items.len(), 2);
        assert_eq!(items[1].as_ref().expect_err("bad row").code(), 105);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = scan(Path::new("no/such/trace.csv"), false).expect_err("missing");
        assert_eq!(error.code(), 101);
        assert!(error.to_string().contains("no/such/trace.csv"));
    }

    #[test]
    fn a_failing_source_is_an_error_and_not_a_short_trace() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("disk gone"))
            }
        }
        let error = scan_bytes("t.csv", GOOD.as_bytes().chain(Broken), false).expect_err("broken");
        assert_eq!(error.code(), 101);
        assert!(error.to_string().contains("disk gone"));
    }

    #[test]
    fn a_line_split_over_many_reads_is_one_line() {
        struct OneByte<'a>(&'a [u8]);
        impl Read for OneByte<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let Some((first, rest)) = self.0.split_first() else {
                    return Ok(0);
                };
                buffer[0] = *first;
                self.0 = rest;
                Ok(1)
            }
        }
        let whole = scan_bytes("t.csv", GOOD.as_bytes(), false).expect("scan");
        let parts = scan_bytes("t.csv", OneByte(GOOD.as_bytes()), false).expect("scan");
        assert_eq!(whole, parts);
    }
}
