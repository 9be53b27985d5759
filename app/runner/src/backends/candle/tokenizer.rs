//! The vocabulary inside a GGUF file: byte-level BPE (`gpt2`), as SmolLM and Llama 3 have it.

use std::collections::BTreeMap;

use candle_core::quantized::gguf_file::{Content, Value};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, PreTokenizerWrapper, Tokenizer};

use super::CandleError;
use super::gguf::{Gguf, number, string};
use crate::text::{ChatMessage, TextCodec, TextError, check_len};

/// Begins a message of a conversation, ends one (ChatML).
pub(super) const IM_START: &str = "<|im_start|>";
pub(super) const IM_END: &str = "<|im_end|>";

/// Character that stands for each byte in a byte-level vocabulary: printable bytes of Latin-1 for themselves, the
/// others, ascending, for U+0100 and on.
pub(super) const BYTE_CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut other) = (0_u8, 0x100_u32);
    loop {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        chars[byte as usize] = if printable {
            byte as char
        } else {
            other += 1;
            match char::from_u32(other - 1) {
                Some(c) => c,
                None => panic!("U+0100 to U+0143 are characters"),
            }
        };
        if byte == 255 {
            break;
        }
        byte += 1;
    }
    chars
};

/// Splits text for Llama 3: words, up to three digits, punctuation, blanks.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Text of a GGUF model: tokens, and the form of its conversations.
#[derive(Debug)]
pub struct GgufCodec {
    tokenizer: Tokenizer,
    /// Bytes of each token.
    pieces: Vec<Box<[u8]>>,
    /// Tokens that steer the model, as they would be read in a text.
    reserved: Vec<String>,
    begin: Option<u32>,
    stop: Vec<u32>,
    chat: Result<ChatMl, String>,
}

/// A template of the ChatML form.
#[derive(Debug, PartialEq, Eq)]
struct ChatMl {
    /// Text of the system message that stands first when the conversation brings none.
    system: Option<String>,
}

impl GgufCodec {
    /// Reads the vocabulary of a file. A template that is no ChatML is an error of [`TextCodec::chat`] only.
    ///
    /// # Errors
    /// [`CandleError`]: a vocabulary of another kind, or one that contradicts itself or the model.
    pub fn read(file: &Gguf) -> Result<Self, CandleError> {
        let content = file.content();
        let model = string(content, "tokenizer.ggml.model")?;
        if model != "gpt2" {
            let model: String = model.chars().take(40).collect();
            return Err(CandleError::Unsupported(format!("tokenizer.ggml.model `{model}`: only gpt2 is")));
        }
        let pre = match content.metadata.get("tokenizer.ggml.pre") {
            None => "gpt-2",
            Some(_) => string(content, "tokenizer.ggml.pre")?,
        };
        let (pre_tokenizer, llama3) = split(pre)?;
        let tokens = strings(content, "tokenizer.ggml.tokens")?;
        let wrong = |key: &str, text: String| CandleError::Key { key: key.into(), text };
        if tokens.len() != file.shape().vocab {
            let text = format!("{} tokens, but the model has {}", tokens.len(), file.shape().vocab);
            return Err(wrong("tokenizer.ggml.tokens", text));
        }
        let kinds = kinds(content, tokens.len())?;
        let mut ids = BTreeMap::new();
        for (id, token) in (0_u32..).zip(&tokens) {
            if ids.insert(*token, id).is_some() {
                return Err(wrong("tokenizer.ggml.tokens", format!("{token:?} is there twice")));
            }
        }

        let mut merges = Vec::new();
        for merge in strings(content, "tokenizer.ggml.merges")? {
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(wrong("tokenizer.ggml.merges", format!("{merge:?} is no pair")));
            };
            merges.push((left.to_owned(), right.to_owned()));
        }
        let vocabulary: Vocab = ids.iter().map(|(token, id)| ((*token).to_owned(), *id)).collect();
        let failed = |error: tokenizers::Error| wrong("tokenizer.ggml.merges", error.to_string());
        let bpe = BPE::builder().vocab_and_merges(vocabulary, merges);
        let mut tokenizer = Tokenizer::new(bpe.ignore_merges(llama3).build().map_err(failed)?);
        tokenizer.with_pre_tokenizer(Some(pre_tokenizer));

        let bytes: BTreeMap<char, u8> = BYTE_CHARS.into_iter().zip(0..=255).collect();
        let (mut pieces, mut added, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
        for (token, kind) in tokens.iter().zip(kinds) {
            match kind {
                Kind::Text => {}
                Kind::Verbatim => added.push(AddedToken::from(*token, false).normalized(false)),
                Kind::Control => {
                    added.push(AddedToken::from(*token, true));
                    reserved.push((*token).to_owned());
                }
            }
            pieces.push(piece(token, kind, &bytes));
        }
        tokenizer.add_tokens(added).map_err(failed)?;
        reserved.retain(|text| !text.is_empty());

        let token_of = |key: &str| match number(content, key)? {
            Some(id) if id < tokens.len() => Ok(u32::try_from(id).ok()),
            Some(id) => Err(wrong(key, format!("{id} is not in the vocabulary of {}", tokens.len()))),
            None => Ok(None),
        };
        let mut stop = Vec::new();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
            stop.extend(token_of(key)?);
        }
        let chat = match content.metadata.get("tokenizer.chat_template") {
            None => Err("its file has no template for them".into()),
            Some(_) => chat_ml(string(content, "tokenizer.chat_template")?, &ids),
        };
        if chat.is_ok() {
            stop.extend(ids.get(IM_END));
        }
        stop.sort_unstable();
        stop.dedup();
        let begins = match content.metadata.get("tokenizer.ggml.add_bos_token") {
            None => llama3,
            Some(Value::Bool(begins)) => *begins,
            Some(_) => return Err(wrong("tokenizer.ggml.add_bos_token", "neither true nor false".into())),
        };
        let begin = if begins { token_of("tokenizer.ggml.bos_token_id")? } else { None };
        Ok(Self { tokenizer, pieces, reserved, begin, stop, chat })
    }
}

impl TextCodec for GgufCodec {
    /// The text may name tokens that steer the model, as a finished template does.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        check_len(text)?;
        let encoding =
            self.tokenizer.encode(text, false).map_err(|error| TextError::Encoding(error.to_string()))?;
        let ids = encoding.get_ids();
        let begin = self.begin.filter(|begin| ids.first() != Some(begin));
        Ok(begin.into_iter().chain(ids.iter().copied()).collect())
    }

    fn token_bytes(&self, token: u32) -> Result<Vec<u8>, TextError> {
        let vocab = u32::try_from(self.pieces.len()).unwrap_or(u32::MAX);
        let piece = usize::try_from(token).ok().and_then(|token| self.pieces.get(token));
        Ok(piece.ok_or(TextError::UnknownToken { token, vocab })?.to_vec())
    }

    fn stop_tokens(&self) -> &[u32] {
        &self.stop
    }

    fn chat(&self, messages: &[ChatMessage]) -> Result<String, TextError> {
        let form = self.chat.as_ref().map_err(|why| TextError::NoChat(why.clone()))?;
        let Some(first) = messages.first() else {
            return Err(TextError::Message("a conversation has at least one message".into()));
        };
        let mut text = String::new();
        let mut write = |role: &str, content: &str| {
            for part in [IM_START, role, "\n", content, IM_END, "\n"] {
                text.push_str(part);
            }
        };
        if let Some(system) = &form.system
            && first.role != "system"
        {
            write("system", system);
        }
        for ChatMessage { role, content } in messages {
            if role.is_empty() || role.len() > 16 || !role.bytes().all(|byte| byte.is_ascii_lowercase()) {
                return Err(TextError::Message("a role is a word of 1 to 16 lower-case letters".into()));
            }
            // It would end the message, and begin another one in anybody's name.
            if let Some(token) = self.reserved.iter().find(|token| content.contains(*token)) {
                return Err(TextError::Message(format!("{token} may not stand in a message")));
            }
            check_len(content)?;
            write(role, content);
        }
        text.push_str(IM_START);
        text.push_str("assistant\n");
        check_len(&text)?;
        Ok(text)
    }
}

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Bytes, written as [`BYTE_CHARS`].
    Text,
    /// The text as it stands.
    Verbatim,
    /// Steers the model; no text.
    Control,
}

fn kinds(content: &Content, count: usize) -> Result<Vec<Kind>, CandleError> {
    let key = "tokenizer.ggml.token_type";
    let wrong = |text: &str| CandleError::Key { key: key.into(), text: text.into() };
    let values = match content.metadata.get(key) {
        None => return Ok(vec![Kind::Text; count]),
        Some(Value::Array(values)) if values.len() == count => values,
        Some(_) => return Err(wrong("not one number for each token")),
    };
    let kind = |value: &Value| match value {
        Value::I32(1) | Value::U32(1) => Ok(Kind::Text),
        // Unknown, control, unused.
        Value::I32(2 | 3 | 5) | Value::U32(2 | 3 | 5) => Ok(Kind::Control),
        Value::I32(4) | Value::U32(4) => Ok(Kind::Verbatim),
        _ => Err(wrong("a kind other than 1 to 5")),
    };
    values.iter().map(kind).collect()
}

fn strings<'c>(content: &'c Content, key: &str) -> Result<Vec<&'c str>, CandleError> {
    let wrong = || CandleError::Key { key: key.into(), text: "not a list of strings".into() };
    match content.metadata.get(key) {
        Some(Value::Array(values)) => values
            .iter()
            .map(|value| if let Value::String(text) = value { Ok(text.as_str()) } else { Err(wrong()) })
            .collect(),
        Some(_) => Err(wrong()),
        None => Err(CandleError::MissingKey { key: key.into() }),
    }
}

/// How text is split before it is merged into tokens, by the name that the file gives it; and whether it is Llama 3's,
/// which takes a word that is a token whole and begins each text with a token.
fn split(pre: &str) -> Result<(PreTokenizerWrapper, bool), CandleError> {
    // No blank is put before a text: a model that was trained without it would see another word.
    let words = ByteLevel::new(false, false, true);
    match pre {
        "gpt-2" | "gpt2" | "default" => Ok((words.into(), false)),
        // Digits stand alone.
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            Ok((Sequence::new(vec![Digits::new(true).into(), words.into()]).into(), false))
        }
        "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => {
            let pattern = SplitPattern::Regex(LLAMA3.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| CandleError::Backend(error.to_string()))?;
            let bytes = ByteLevel::new(false, false, false);
            Ok((Sequence::new(vec![split.into(), bytes.into()]).into(), true))
        }
        other => {
            let other: String = other.chars().take(40).collect();
            Err(CandleError::Unsupported(format!("tokenizer.ggml.pre `{other}`")))
        }
    }
}

fn piece(token: &str, kind: Kind, bytes: &BTreeMap<char, u8>) -> Box<[u8]> {
    match kind {
        Kind::Control => Box::default(),
        Kind::Verbatim => token.as_bytes().into(),
        Kind::Text => {
            let bytes: Option<Vec<u8>> = token.chars().map(|c| bytes.get(&c).copied()).collect();
            bytes.unwrap_or_else(|| token.as_bytes().to_vec()).into()
        }
    }
}

/// Reads a template. It is a program; what is understood of it is the ChatML form and a fixed system message.
fn chat_ml(template: &str, ids: &BTreeMap<&str, u32>) -> Result<ChatMl, String> {
    let known = [IM_START, IM_END].iter().all(|token| ids.contains_key(token) && template.contains(token));
    if !known {
        return Err("the template of its file is not of the ChatML form".into());
    }
    let fixed = || {
        let otherwise = template.split_once("['role'] != 'system'")?.1;
        let text = otherwise.split_once(IM_START)?.1.strip_prefix("system")?;
        let text = text.strip_prefix('\n').or_else(|| text.strip_prefix("\\n"))?;
        let text = text.split_once(IM_END)?.0;
        (!text.contains(['{', '}', '\'', '"', '\\'])).then(|| text.to_owned())
    };
    Ok(ChatMl { system: fixed() })
}
