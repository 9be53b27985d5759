//! Text to tokens and back.
//!
//! A [`TextCodec`] belongs to a model. Tokens of an answer come one at a time and need not end where a character ends:
//! [`TextStream`] gives out whole characters only, and what it gives out, joined, is what the tokens give as a whole.

/// Longest text that is turned into tokens, bytes.
pub const TEXT_MAX_BYTES: usize = 1 << 20;

/// Why a text, a token or a conversation was refused. Codes are stable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Longer than [`TEXT_MAX_BYTES`].
    #[error("text of {len} bytes: at most {TEXT_MAX_BYTES} are taken")]
    TooLong {
        /// Its length, bytes.
        len: usize,
    },
    /// The vocabulary has no such token.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The model says nothing of conversations, or says it in a form that is not understood.
    #[error("no conversations with this model: {0}")]
    NoChat(String),
    /// A role that is no lower-case word, or a message that holds text which only the template may write.
    #[error("message malformed: {0}")]
    Message(String),
    /// The vocabulary cannot express the text.
    #[error("text cannot be turned into tokens: {0}")]
    Encoding(String),
}

impl TextError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::TooLong { .. } => 1,
            Self::UnknownToken { .. } => 2,
            Self::NoChat(_) => 3,
            Self::Message(_) => 4,
            Self::Encoding(_) => 5,
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or another lower-case word the model knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl ChatMessage {
    /// Shorthand.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// The vocabulary of a model.
pub trait TextCodec: Send + Sync + 'static {
    /// Tokens of a prompt, with the token that begins a text if the model wants one.
    ///
    /// # Errors
    /// [`TextError::TooLong`], [`TextError::Encoding`].
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError>;

    /// Bytes that a token stands for: none for a token that steers the model, and not always whole characters.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`].
    fn token_bytes(&self, token: u32) -> Result<Vec<u8>, TextError>;

    /// Tokens that end an answer, ascending.
    fn stop_tokens(&self) -> &[u32];

    /// The prompt of a conversation whose next message is the assistant's.
    ///
    /// # Errors
    /// [`TextError::NoChat`], [`TextError::Message`], [`TextError::TooLong`].
    fn chat(&self, messages: &[ChatMessage]) -> Result<String, TextError>;

    /// The text of tokens that are all there; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`].
    fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        let mut bytes = Vec::new();
        for token in tokens {
            bytes.extend(self.token_bytes(*token)?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Text of an answer whose tokens come one by one. It holds back at most the 3 bytes of an unfinished character.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    unfinished: Vec<u8>,
}

impl TextStream {
    /// Takes a token and gives the characters that are now complete, perhaps none.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`]; the stream is then as before.
    pub fn push(&mut self, codec: &dyn TextCodec, token: u32) -> Result<String, TextError> {
        let bytes = codec.token_bytes(token)?;
        self.unfinished.extend(bytes);
        let mut text = String::new();
        // Chunks end where UTF-8 breaks, as in a lossy conversion of the whole. Only the last can be unfinished rather
        // than wrong: one that more bytes may still mend.
        let mut rest: &[u8] = &self.unfinished;
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, broken) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &broken[len..];
                        }
                        None => {
                            rest = broken;
                            break;
                        }
                    }
                }
            }
        }
        self.unfinished = rest.to_vec();
        Ok(text)
    }

    /// What is left at the end: U+FFFD for a character that was never finished, else nothing.
    #[must_use]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.unfinished).into_owned()
    }
}

/// Whether a text may be turned into tokens at all.
pub(crate) fn check_len(text: &str) -> Result<(), TextError> {
    if text.len() > TEXT_MAX_BYTES { Err(TextError::TooLong { len: text.len() }) } else { Ok(()) }
}

/// The byte vocabulary of the reference model (runner-details 3): the UTF-8 bytes of a text are its tokens, and a
/// token shows as the printable character 0x20 + token mod 95. No token ends an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByteCodec;

/// Tokens of [`ByteCodec`].
const BYTES: u32 = 256;

impl TextCodec for ByteCodec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        check_len(text)?;
        Ok(text.bytes().map(u32::from).collect())
    }

    fn token_bytes(&self, token: u32) -> Result<Vec<u8>, TextError> {
        if token >= BYTES {
            return Err(TextError::UnknownToken { token, vocab: BYTES });
        }
        let shown = 0x20 + token % 95;
        Ok(vec![u8::try_from(shown).expect("at most 0x7e")])
    }

    fn stop_tokens(&self) -> &[u32] {
        &[]
    }

    /// The messages' texts, a line each: the reference model knows no roles.
    fn chat(&self, messages: &[ChatMessage]) -> Result<String, TextError> {
        if messages.is_empty() {
            return Err(TextError::Message("a conversation has at least one message".into()));
        }
        let lines: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
        let text = lines.join("\n");
        check_len(&text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Token n is the n-th of these byte strings.
    struct Pieces(Vec<Vec<u8>>);

    impl TextCodec for Pieces {
        fn encode(&self, _: &str) -> Result<Vec<u32>, TextError> {
            Ok(Vec::new())
        }
        fn token_bytes(&self, token: u32) -> Result<Vec<u8>, TextError> {
            let unknown = TextError::UnknownToken { token, vocab: self.0.len() as u32 };
            self.0.get(token as usize).cloned().ok_or(unknown)
        }
        fn stop_tokens(&self) -> &[u32] {
            &[]
        }
        fn chat(&self, _: &[ChatMessage]) -> Result<String, TextError> {
            Ok(String::new())
        }
    }

    fn streamed(pieces: &Pieces) -> Vec<String> {
        let mut stream = TextStream::default();
        let mut out: Vec<String> =
            (0..pieces.0.len() as u32).map(|token| stream.push(pieces, token).unwrap()).collect();
        out.push(stream.finish());
        out
    }

    #[test]
    fn text_goes_in_as_its_bytes_and_out_as_printable_characters() {
        assert_eq!(ByteCodec.encode("Hé").unwrap(), [0x48, 0xc3, 0xa9]);
        // By hand: 0 -> ' ', 94 -> '~', 95 -> ' ' again, 185 = 95 + 90 -> 0x7a 'z'.
        assert_eq!(ByteCodec.decode(&[0, 94, 95, 185]).unwrap(), " ~ z");
        assert_eq!(ByteCodec.decode(&[256]), Err(TextError::UnknownToken { token: 256, vocab: 256 }));
        assert!(ByteCodec.stop_tokens().is_empty());
    }

    #[test]
    fn a_text_beyond_the_limit_is_refused() {
        let text = "x".repeat(TEXT_MAX_BYTES + 1);
        assert_eq!(ByteCodec.encode(&text), Err(TextError::TooLong { len: TEXT_MAX_BYTES + 1 }));
        assert_eq!(ByteCodec.chat(&[ChatMessage::new("user", text)]).unwrap_err().code(), 1);
    }

    #[test]
    fn a_character_cut_between_tokens_comes_out_whole_with_its_last_byte() {
        // U+1F600 is f0 9f 98 80.
        let pieces = Pieces(vec![b"a\xf0".to_vec(), b"\x9f\x98".to_vec(), b"\x80b".to_vec()]);
        assert_eq!(streamed(&pieces), ["a", "", "\u{1f600}b", ""]);
    }

    #[test]
    fn a_broken_character_becomes_a_replacement_when_it_is_known_to_be_broken() {
        let pieces = Pieces(vec![b"\xe2\x82".to_vec(), b"x".to_vec(), b"\xff".to_vec(), b"\xc3".to_vec()]);
        assert_eq!(streamed(&pieces), ["", "\u{fffd}x", "\u{fffd}", "", "\u{fffd}"]);
    }

    #[test]
    fn an_unknown_token_leaves_the_stream_as_it_was() {
        let pieces = Pieces(vec![b"\xc3".to_vec(), b"\xa9".to_vec()]);
        let mut stream = TextStream::default();
        assert_eq!(stream.push(&pieces, 0).unwrap(), "");
        assert_eq!(stream.push(&pieces, 9).unwrap_err().code(), 2);
        assert_eq!(stream.push(&pieces, 1).unwrap(), "é");
    }

    proptest! {
        #[test]
        fn a_stream_gives_what_the_whole_gives(
            pieces in prop::collection::vec(prop::collection::vec(
                prop::sample::select(vec![b'a', 0x80, 0xa9, 0xc3, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0xff]), 0..4), 0..12)
        ) {
            let whole = String::from_utf8_lossy(&pieces.concat()).into_owned();
            let pieces = Pieces(pieces);
            let mut stream = TextStream::default();
            let mut joined = String::new();
            for token in 0..pieces.0.len() as u32 {
                joined += &stream.push(&pieces, token).unwrap();
                prop_assert!(stream.unfinished.len() <= 3);
            }
            prop_assert_eq!(joined + &stream.finish(), whole);
        }
    }
}
