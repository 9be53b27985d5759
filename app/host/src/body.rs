//! The prompt of an inference: the JSON that OpenAI's completion endpoints take, in the fields that a host obeys.

use serde_json::{Map, Value};

/// Longest body, bytes.
pub const BODY_MAX: usize = 3 << 20;
/// Most stop texts.
pub const STOP_MAX: usize = 4;
/// Longest stop text, bytes.
pub const STOP_BYTES_MAX: usize = 256;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// Plain text or a conversation.
    pub prompt: Prompt,
    /// Most tokens of the answer, if limited.
    pub max_tokens: Option<u32>,
    /// Texts at which the answer ends.
    pub stop: Vec<String>,
    /// Seed of the sampling; without one it is greedy.
    pub seed: Option<u64>,
}

/// Plain text or a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text to go on with.
    Text(String),
    /// Role and content of each message.
    Chat(Vec<(String, String)>),
}

/// A body that cannot be served: the field, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("body: {field}: {remedy}")]
pub struct BodyError {
    /// The field.
    pub field: &'static str,
    /// What to do.
    pub remedy: String,
}

fn bad(field: &'static str, remedy: impl Into<String>) -> BodyError {
    BodyError { field, remedy: remedy.into() }
}

/// Least bytes of the text that hosts make of messages whose contents have these lengths: every codec puts at least a byte
/// between two, and that of a byte vocabulary no more than that. A gateway counts by it as the hosts do.
pub fn joined_bytes(contents: impl IntoIterator<Item = usize>) -> u64 {
    let join = |sum: Option<u64>, len: usize| {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        Some(sum.map_or(len, |sum| sum.saturating_add(1).saturating_add(len)))
    };
    contents.into_iter().fold(None, join).unwrap_or(0)
}

/// The fields of a body; each error names its field.
struct Fields(Map<String, Value>);

impl Fields {
    /// A field that is there and not null.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, BodyError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(bad(name, "must be a text")),
        }
    }

    fn count(&mut self, name: &'static str) -> Result<Option<u32>, BodyError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        let rule = "must be a whole number from 0 to 4294967295";
        count.map(Some).ok_or_else(|| bad(name, rule))
    }

    fn number(&mut self, name: &'static str, most: f64) -> Result<Option<f64>, BodyError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (0.0..=most).contains(number));
        number.map(Some).ok_or_else(|| bad(name, format!("must be a number from 0 to {most}")))
    }
}

fn messages(value: Value) -> Result<Vec<(String, String)>, BodyError> {
    let rule = "must be a list of objects with role and content";
    let Value::Array(items) = value else { return Err(bad("messages", rule)) };
    let read = |item: Value| {
        let Value::Object(mut fields) = item else { return Err(bad("messages", rule)) };
        let Some(Value::String(role)) = fields.remove("role") else {
            return Err(bad("messages.role", "must be a text"));
        };
        let Some(Value::String(content)) = fields.remove("content") else {
            return Err(bad("messages.content", "must be a text"));
        };
        if !matches!(role.as_str(), "system" | "developer" | "user" | "assistant") {
            return Err(bad("messages.role", "use system, developer, user or assistant"));
        }
        Ok((role, content))
    };
    items.into_iter().map(read).collect()
}

fn stops(value: Option<Value>) -> Result<Vec<String>, BodyError> {
    let rule = || bad("stop", format!("at most {STOP_MAX} texts of 1 to {STOP_BYTES_MAX} bytes"));
    let texts = match value {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => {
            let text = |item: Value| match item {
                Value::String(text) => Ok(text),
                _ => Err(rule()),
            };
            items.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(rule()),
    };
    let fits = |text: &String| !text.is_empty() && text.len() <= STOP_BYTES_MAX;
    if texts.len() <= STOP_MAX && texts.iter().all(fits) { Ok(texts) } else { Err(rule()) }
}

impl Body {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BodyError`] names the field. Fields that change the answer and that a host cannot obey are refused; others are
    /// passed over, as the endpoints do. Of `max_completion_tokens` and `max_tokens`, its older name, the first counts.
    pub fn parse(bytes: &[u8]) -> Result<Self, BodyError> {
        if bytes.len() > BODY_MAX {
            return Err(bad("body", format!("at most {BODY_MAX} bytes")));
        }
        let rule = "give a JSON object with prompt or messages";
        let value = serde_json::from_slice(bytes).map_err(|e| bad("json", format!("{e}; {rule}")))?;
        let Value::Object(fields) = value else { return Err(bad("json", rule)) };
        let mut fields = Fields(fields);
        let prompt = match (fields.text("prompt")?, fields.take("messages").map(messages).transpose()?) {
            (Some(text), None) if !text.is_empty() => Prompt::Text(text),
            (None, Some(messages)) if !messages.is_empty() => Prompt::Chat(messages),
            (Some(_), Some(_)) => return Err(bad("prompt", "give prompt or messages, not both")),
            _ => return Err(bad("prompt", "give a prompt, or messages, that is not empty")),
        };
        if fields.count("n")?.is_some_and(|n| n != 1) {
            return Err(bad("n", "only 1 answer is made; leave n out"));
        }
        if fields.take("tools").is_some() || fields.take("tool_choice").is_some() {
            return Err(bad("tools", "not supported; leave tools and tool_choice out"));
        }
        let format = fields.take("response_format");
        if format.is_some_and(|format| format.get("type").is_none_or(|kind| kind != "text")) {
            return Err(bad("response_format", "only text is supported; leave it out"));
        }
        let stop = stops(fields.take("stop"))?;
        let (older, max_tokens) = (fields.count("max_tokens")?, fields.count("max_completion_tokens")?);
        for (name, limit) in [("max_tokens", older), ("max_completion_tokens", max_tokens)] {
            if limit == Some(0) {
                return Err(bad(name, "must be above 0"));
            }
        }
        let max_tokens = max_tokens.or(older);
        let temperature = fields.number("temperature", 2.0)?;
        fields.number("top_p", 1.0)?;
        let seed = match fields.take("seed") {
            None => None,
            Some(value) => {
                let rule = "must be a whole number from 0 to 18446744073709551615";
                Some(value.as_u64().ok_or_else(|| bad("seed", rule))?)
            }
        };
        let greedy = temperature.is_none_or(|temperature| temperature == 0.0);
        if !greedy && seed.is_none() {
            return Err(bad(
                "seed",
                "give a seed with a temperature above 0, so that the answer can be made again",
            ));
        }
        Ok(Self { prompt, max_tokens, stop, seed: seed.filter(|_| !greedy) })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_runner::text::{ByteCodec, ChatMessage, TextCodec};

    use super::*;

    #[test]
    fn messages_are_counted_as_the_codec_of_bytes_joins_them() {
        for contents in [&["Hi"][..], &["", ""], &["a", "bc", "é"], &["x"; 300], &[""]] {
            let messages: Vec<_> = contents.iter().map(|text| ChatMessage::new("user", *text)).collect();
            let tokens = ByteCodec.encode(&ByteCodec.chat(&messages).unwrap()).unwrap().len() as u64;
            assert_eq!(joined_bytes(contents.iter().map(|text| text.len())), tokens, "{contents:?}");
        }
        assert_eq!(joined_bytes(["x"; 300].iter().map(|text| text.len())), 599);
        assert_eq!(joined_bytes([]), 0);
    }

    #[test]
    fn a_plain_prompt_and_a_conversation_are_read() {
        let body =
            Body::parse(br#"{"prompt":"Hi","max_tokens":3,"stop":"\n","model":"m","stream":true}"#).unwrap();
        let wanted = Body {
            prompt: Prompt::Text("Hi".into()),
            max_tokens: Some(3),
            stop: vec!["\n".into()],
            seed: None,
        };
        assert_eq!(body, wanted);
        let body =
            Body::parse(br#"{"messages":[{"role":"user","content":"Hi"}],"seed":7,"temperature":0.5}"#)
                .unwrap();
        assert_eq!(body.prompt, Prompt::Chat(vec![("user".into(), "Hi".into())]));
        assert_eq!(body.seed, Some(7));
        assert_eq!(Body::parse(br#"{"prompt":"Hi","seed":7,"temperature":0}"#).unwrap().seed, None);
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused_by_field() {
        let cases: [(&[u8], &str); 27] = [
            (b"", "json"),
            (b"[]", "json"),
            (b"{", "json"),
            (br#"[{"prompt":"a"}]"#, "json"),
            (br#"{"prompt":["a"]}"#, "prompt"),
            (br#"{"prompt":""}"#, "prompt"),
            (br#"{"prompt":"a","messages":[]}"#, "prompt"),
            (br#"{"messages":{}}"#, "messages"),
            (br#"{"messages":[["user","x"]]}"#, "messages"),
            (br#"{"messages":[{"role":"tool","content":"x"}]}"#, "messages.role"),
            (br#"{"messages":[{"role":"user","content":7}]}"#, "messages.content"),
            (br#"{"prompt":"a","n":2}"#, "n"),
            (br#"{"prompt":"a","tools":[]}"#, "tools"),
            (br#"{"prompt":"a","response_format":{"type":"json_object"}}"#, "response_format"),
            (br#"{"prompt":"a","response_format":7}"#, "response_format"),
            (br#"{"prompt":"a","stop":["",""]}"#, "stop"),
            (br#"{"prompt":"a","stop":[1]}"#, "stop"),
            (br#"{"prompt":"a","max_tokens":0}"#, "max_tokens"),
            (br#"{"prompt":"a","max_tokens":-1}"#, "max_tokens"),
            (br#"{"prompt":"a","max_completion_tokens":1.5}"#, "max_completion_tokens"),
            (br#"{"prompt":"a","temperature":1}"#, "seed"),
            (br#"{"prompt":"a","seed":-1}"#, "seed"),
            (br#"{"prompt":"a","seed":1,"temperature":-1}"#, "temperature"),
            (br#"{"prompt":"a","seed":1,"temperature":2.01}"#, "temperature"),
            (br#"{"prompt":"a","seed":1,"temperature":"warm"}"#, "temperature"),
            (br#"{"prompt":"a","top_p":1.1}"#, "top_p"),
            (br#"{"prompt":"a","top_p":-0.1}"#, "top_p"),
        ];
        for (bytes, field) in cases {
            let error = Body::parse(bytes).unwrap_err();
            assert_eq!(error.field, field, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn an_error_of_a_body_names_no_type_of_this_program() {
        for bytes in [&b"[]"[..], b"7", br#"{"messages":[[]]}"#, br#"{"prompt":"a","max_tokens":"b"}"#] {
            let text = Body::parse(bytes).unwrap_err().to_string();
            assert!(!text.contains("struct") && !text.contains("u32") && !text.contains("Wire"), "{text}");
        }
        assert_eq!(
            Body::parse(b"[]").unwrap_err().to_string(),
            "body: json: give a JSON object with prompt or messages"
        );
    }

    #[test]
    fn the_newer_name_of_the_limit_counts_when_both_are_given() {
        let limit = |body: &str| Body::parse(body.as_bytes()).unwrap().max_tokens;
        assert_eq!(limit(r#"{"prompt":"a","max_tokens":9,"max_completion_tokens":5}"#), Some(5));
        assert_eq!(limit(r#"{"prompt":"a","max_tokens":5,"max_completion_tokens":9}"#), Some(9));
        assert_eq!(limit(r#"{"prompt":"a","max_tokens":5,"max_completion_tokens":null}"#), Some(5));
    }

    #[test]
    fn a_temperature_at_the_edge_of_its_range_is_taken() {
        for temperature in ["0", "0.0", "2", "2.0"] {
            let body = format!(r#"{{"prompt":"a","seed":1,"top_p":1,"temperature":{temperature}}}"#);
            assert!(Body::parse(body.as_bytes()).is_ok(), "{temperature}");
        }
    }
}
