//! The two passes over a trace, and the rules that both share.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::Digest;

use super::error::{RowError, RowFault, TraceError};
use super::lines::{HEADER, Lines, MAX_LINE_BYTES};
use super::row::{Fault, Instant, Row, parse_row, quoted};

/// How many bad rows [`TraceSummary`] describes; the rest are only counted.
pub const MAX_BAD_ROW_SAMPLES: usize = 10;

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
