//! The answer of a completions request as it comes in: server-sent events, each a JSON chunk, then `[DONE]`. Pure:
//! bytes in, events out; every size has a limit.

use std::collections::VecDeque;

use serde::Deserialize;

use crate::adapter::Counts;

/// Longest line of the stream, bytes.
pub const LINE_MAX: usize = 1 << 20;
/// Longest text of one chunk, bytes.
pub const PIECE_MAX: usize = 64 << 10;
/// Longest text of an answer, bytes.
pub const TEXT_MAX: usize = 8 << 20;
/// Bytes of stream that are paid for once and again for each token asked for.
const WIRE_BASE: u64 = 1 << 20;
const WIRE_PER_TOKEN: u64 = 4 << 10;
/// Chunks without text that are put up with beside one per token.
const IDLE_CHUNKS: u64 = 1024;

/// What a stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The text of one chunk, not empty.
    Piece(String),
    /// The answer is whole: a reason, a count and `[DONE]` were there.
    End(Counts),
}

/// Reads one stream.
///
/// ```text
/// chunks with text ──► chunk with finish_reason ──► usage (with it or after it) ──► [DONE]
/// ```
///
/// A piece leaves at once, but for the last one asked for: it waits for `[DONE]`, so that an answer of full length is
/// not taken for whole before the upstream says so.
#[derive(Debug)]
pub(super) struct Decoder {
    max_tokens: u32,
    prompt_rows: u32,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
    wire: u64,
    text: usize,
    chunks: u64,
    pieces: u32,
    last: Option<String>,
    finished: bool,
    usage: Option<UsageField>,
    done: bool,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<UsageField>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct UsageField {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

impl Decoder {
    /// For an answer of at most `max_tokens` to a prompt of `prompt_rows` ids.
    pub(super) fn new(max_tokens: u32, prompt_rows: u32) -> Self {
        Self {
            max_tokens,
            prompt_rows,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            wire: 0,
            text: 0,
            chunks: 0,
            pieces: 0,
            last: None,
            finished: false,
            usage: None,
            done: false,
        }
    }

    /// Whether `[DONE]` was read: the rest does not matter.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the answer has all the tokens that were asked for: nobody will ask for its end.
    pub(super) fn is_full(&self) -> bool {
        self.pieces == self.max_tokens
    }

    /// Takes the next bytes; what they complete goes to `out`.
    ///
    /// # Errors
    /// A text that says how the stream is wrong; the stream cannot be followed any more.
    pub(super) fn feed(&mut self, bytes: &[u8], out: &mut VecDeque<Event>) -> Result<(), String> {
        self.wire = self.wire.saturating_add(bytes.len() as u64);
        if self.wire > WIRE_BASE + WIRE_PER_TOKEN * u64::from(self.max_tokens) {
            return Err("more bytes than the answer can need".into());
        }
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            if self.done {
                return Ok(());
            }
            // A line ends with \n, \r or \r\n: the \n of a pair is no line of its own.
            if std::mem::take(&mut self.after_cr) && part == b"\n" {
                continue;
            }
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                Some((b'\r', text)) => {
                    self.after_cr = true;
                    (text, true)
                }
                _ => (part, false),
            };
            if self.line.len() + text.len() > LINE_MAX {
                return Err(format!("a line over {LINE_MAX} bytes"));
            }
            self.line.extend_from_slice(text);
            if ends {
                let line = std::mem::take(&mut self.line);
                self.line(&line, out)?;
            }
        }
        Ok(())
    }

    /// The stream is over.
    ///
    /// # Errors
    /// It was not whole.
    pub(super) fn finish(&self) -> Result<(), String> {
        if self.done { Ok(()) } else { Err("the stream ended without [DONE]".into()) }
    }

    fn line(&mut self, line: &[u8], out: &mut VecDeque<Event>) -> Result<(), String> {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return if std::mem::take(&mut self.has_data) { self.event(&data, out) } else { Ok(()) };
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        match field {
            // A comment: keeps the connection open and says nothing about tokens.
            b"" | b"event" | b"id" | b"retry" => Ok(()),
            b"data" => {
                let value = value.strip_prefix(b" ").unwrap_or(value);
                if self.data.len() + value.len() + 1 > LINE_MAX {
                    return Err(format!("an event over {LINE_MAX} bytes"));
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                Ok(())
            }
            b"error" => Err(format!("the upstream failed: {}", excerpt(value))),
            other => Err(format!("no event stream: {}", excerpt(other))),
        }
    }

    fn event(&mut self, data: &[u8], out: &mut VecDeque<Event>) -> Result<(), String> {
        if data == b"[DONE]" {
            return self.end(out);
        }
        self.chunks += 1;
        if self.chunks > IDLE_CHUNKS + 2 * u64::from(self.max_tokens) {
            return Err("more chunks than the answer can need".into());
        }
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|error| format!("a chunk is no JSON: {}", excerpt(error.to_string().as_bytes())))?;
        if let Some(error) = chunk.error {
            return Err(format!("the upstream failed: {}", excerpt(error.to_string().as_bytes())));
        }
        if chunk.usage.is_some() {
            self.usage = chunk.usage;
        }
        if chunk.choices.len() > 1 || chunk.choices.iter().any(|choice| choice.index != 0) {
            return Err("more choices than asked for".into());
        }
        let Some(choice) = chunk.choices.into_iter().next() else { return Ok(()) };
        if let Some(text) = choice.text.filter(|text| !text.is_empty()) {
            self.piece(text, out)?;
        }
        match choice.finish_reason.as_deref() {
            None => {}
            Some("stop" | "length") => self.finished = true,
            Some(other) => return Err(format!("finished for another reason: {}", excerpt(other.as_bytes()))),
        }
        Ok(())
    }

    fn piece(&mut self, text: String, out: &mut VecDeque<Event>) -> Result<(), String> {
        if self.finished {
            return Err("text after the finish reason".into());
        }
        if text.len() > PIECE_MAX {
            return Err(format!("a chunk with over {PIECE_MAX} bytes of text"));
        }
        self.text += text.len();
        if self.text > TEXT_MAX {
            return Err(format!("an answer over {TEXT_MAX} bytes"));
        }
        if self.pieces == self.max_tokens {
            return Err("more tokens than asked for".into());
        }
        self.pieces += 1;
        if self.pieces == self.max_tokens {
            self.last = Some(text);
        } else {
            out.push_back(Event::Piece(text));
        }
        Ok(())
    }

    fn end(&mut self, out: &mut VecDeque<Event>) -> Result<(), String> {
        if !self.finished {
            return Err("[DONE] without a finish reason".into());
        }
        let usage = self.usage.ok_or("[DONE] without a usage")?;
        // One token never makes two chunks with text: then chunks came twice, or the count is wrong.
        if usage.completion_tokens < u64::from(self.pieces) {
            return Err(format!("{} chunks, but a usage of {} tokens", self.pieces, usage.completion_tokens));
        }
        let clamp = |count: u64, max: u32| u32::try_from(count).unwrap_or(u32::MAX).min(max);
        out.extend(self.last.take().map(Event::Piece));
        out.push_back(Event::End(Counts {
            prompt_tokens: clamp(usage.prompt_tokens, self.prompt_rows),
            completion_tokens: clamp(usage.completion_tokens, self.max_tokens),
        }));
        self.done = true;
        Ok(())
    }
}

/// The beginning of what somebody else wrote, fit for an error text.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}
