//! Lines of bounded length.

use std::io::{self, BufRead, BufReader, Read};

use sha2::{Digest, Sha256};

/// The header line every trace begins with.
pub const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Longest line accepted, in bytes, without its line end.
pub const MAX_LINE_BYTES: usize = 4096;

/// Lines of bounded length out of a byte stream, hashed as they pass.
pub(super) struct Lines<R: Read> {
    source: BufReader<R>,
    pub(super) hash: Sha256,
    /// The current line without its line end; at most [`MAX_LINE_BYTES`] + 1 bytes.
    pub(super) line: Vec<u8>,
    /// The current line was longer than that, and its tail was dropped.
    pub(super) too_long: bool,
    /// Number of the current line, from 1.
    pub(super) number: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Lines {
            source: BufReader::with_capacity(64 * 1024, source),
            hash: Sha256::new(),
            line: Vec::new(),
            too_long: false,
            number: 0,
        }
    }

    /// Reads the next line into `self.line`; false at the end of the source.
    pub(super) fn next_line(&mut self) -> io::Result<bool> {
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
