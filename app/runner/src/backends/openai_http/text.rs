//! Ids for the texts of an upstream, which shows no ids of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::text::{ChatMessage, TextCodec, TextError, check_len};

/// The upstream's answer is whole: the token after its last piece. It has no text; a request names it as a stop token.
pub const END_TOKEN: u32 = 256;

/// The prompt is whole: the last token of every prompt, without text. The upstream wants a prompt at once, and this is how
/// it is known which of its chunks is the last.
pub const PROMPT_END_TOKEN: u32 = 257;

/// First id of a piece.
const PIECE_FIRST: u32 = 258;
/// Most pieces that are known at a time.
const PIECES_MAX: usize = 1 << 18;
/// Most bytes of text that are known at a time.
const BYTES_MAX: usize = 16 << 20;

/// Token ids of text pieces.
///
/// | id | text |
/// |---|---|
/// | 0–255 | one byte of a prompt's UTF-8 |
/// | [`END_TOKEN`] | none: the answer is whole |
/// | [`PROMPT_END_TOKEN`] | none: the prompt is whole |
/// | 258 and up | a piece of an answer, numbered as it first came |
///
/// The same piece has the same id at all upstreams that share the table, so attempts at different upstreams compare. At
/// 262 144 pieces or 16 MiB the piece unused for longest is forgotten; an id never comes to mean another text.
#[derive(Debug, Default)]
pub struct PieceTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    ids: BTreeMap<Arc<str>, u32>,
    pieces: BTreeMap<u32, (Arc<str>, u64)>,
    by_use: BTreeMap<u64, u32>,
    uses: u64,
    made: u32,
    bytes: usize,
}

impl PieceTable {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Id of a piece, new if need be; `None` once all ids were given out.
    pub(super) fn intern(&self, text: &str) -> Option<u32> {
        let mut inner = self.lock();
        inner.uses += 1;
        let now = inner.uses;
        if let Some(id) = inner.ids.get(text).copied() {
            let before = inner.pieces.get_mut(&id).map(|(_, used)| std::mem::replace(used, now));
            before.and_then(|used| inner.by_use.remove(&used));
            inner.by_use.insert(now, id);
            return Some(id);
        }
        let id = PIECE_FIRST.checked_add(inner.made).filter(|id| *id < u32::MAX)?;
        inner.made += 1;
        inner.bytes += text.len();
        let text: Arc<str> = Arc::from(text);
        inner.ids.insert(text.clone(), id);
        inner.pieces.insert(id, (text, now));
        inner.by_use.insert(now, id);
        while inner.pieces.len() > PIECES_MAX || inner.bytes > BYTES_MAX {
            let Some((_, oldest)) = inner.by_use.pop_first() else { break };
            if let Some((text, _)) = inner.pieces.remove(&oldest) {
                inner.ids.remove(&text);
                inner.bytes -= text.len();
            }
        }
        Some(id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TextCodec for PieceTable {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        check_len(text)?;
        Ok(text.bytes().map(u32::from).chain([PROMPT_END_TOKEN]).collect())
    }

    /// An id that is not known (any more) is [`TextError::UnknownToken`].
    fn token_bytes(&self, token: u32) -> Result<Vec<u8>, TextError> {
        match u8::try_from(token) {
            Ok(byte) => Ok(vec![byte]),
            Err(_) if token == END_TOKEN || token == PROMPT_END_TOKEN => Ok(Vec::new()),
            Err(_) => match self.lock().pieces.get(&token) {
                Some((text, _)) => Ok(text.as_bytes().to_vec()),
                None => Err(TextError::UnknownToken { token, vocab: u32::MAX }),
            },
        }
    }

    fn stop_tokens(&self) -> &[u32] {
        &[END_TOKEN]
    }

    /// The template is the upstream's and does not show in completions.
    fn chat(&self, _: &[ChatMessage]) -> Result<String, TextError> {
        Err(TextError::NoChat("an upstream's template is not known here".into()))
    }
}
