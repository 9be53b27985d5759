//! The prompt of an inference: the JSON that OpenAI's completion endpoints take, in the fields that a host obeys.

use serde::Deserialize;

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

#[derive(Deserialize)]
struct Wire {
    prompt: Option<String>,
    messages: Option<Vec<WireMessage>>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    stop: Option<WireStop>,
    seed: Option<u64>,
    temperature: Option<serde_json::Number>,
    n: Option<u32>,
    tools: Option<serde_json::Value>,
    tool_choice: Option<serde_json::Value>,
    response_format: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WireMessage {
    role: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireStop {
    One(String),
    Many(Vec<String>),
}

impl Body {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BodyError`] names the field. Fields that change the answer and that a host cannot obey are refused; others are
    /// passed over, as the endpoints do.
    pub fn parse(bytes: &[u8]) -> Result<Self, BodyError> {
        if bytes.len() > BODY_MAX {
            return Err(bad("body", format!("at most {BODY_MAX} bytes")));
        }
        let wire: Wire = serde_json::from_slice(bytes)
            .map_err(|e| bad("json", format!("{e}; give a JSON object with prompt or messages")))?;
        let prompt = match (wire.prompt, wire.messages) {
            (Some(text), None) if !text.is_empty() => Prompt::Text(text),
            (None, Some(messages)) if !messages.is_empty() => {
                for message in &messages {
                    if !matches!(message.role.as_str(), "system" | "developer" | "user" | "assistant") {
                        return Err(bad("messages.role", "use system, developer, user or assistant"));
                    }
                }
                Prompt::Chat(messages.into_iter().map(|m| (m.role, m.content)).collect())
            }
            (Some(_), Some(_)) => return Err(bad("prompt", "give prompt or messages, not both")),
            _ => return Err(bad("prompt", "give a prompt, or messages, that is not empty")),
        };
        if wire.n.is_some_and(|n| n != 1) {
            return Err(bad("n", "only 1 answer is made; leave n out"));
        }
        let given = |value: &Option<serde_json::Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if given(&wire.tools) || given(&wire.tool_choice) {
            return Err(bad("tools", "not supported; leave tools and tool_choice out"));
        }
        let format = wire.response_format.as_ref();
        if format.is_some_and(|format| !format.is_null() && format["type"] != "text") {
            return Err(bad("response_format", "only text is supported; leave it out"));
        }
        let stop = match wire.stop {
            None => Vec::new(),
            Some(WireStop::One(text)) => vec![text],
            Some(WireStop::Many(texts)) => texts,
        };
        if stop.len() > STOP_MAX || stop.iter().any(|text| text.is_empty() || text.len() > STOP_BYTES_MAX) {
            let rule = format!("at most {STOP_MAX} texts of 1 to {STOP_BYTES_MAX} bytes");
            return Err(bad("stop", rule));
        }
        let max_tokens = wire.max_completion_tokens.or(wire.max_tokens);
        if max_tokens == Some(0) {
            return Err(bad("max_tokens", "must be above 0"));
        }
        let greedy = wire.temperature.as_ref().is_none_or(|t| t.as_f64() == Some(0.0));
        if !greedy && wire.seed.is_none() {
            return Err(bad(
                "seed",
                "give a seed with a temperature above 0, so that the answer can be made again",
            ));
        }
        let seed = wire.seed.filter(|_| !greedy);
        Ok(Self { prompt, max_tokens, stop, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let cases: [(&[u8], &str); 12] = [
            (b"", "json"),
            (b"[]", "json"),
            (br#"{"prompt":["a"]}"#, "json"),
            (br#"{"prompt":""}"#, "prompt"),
            (br#"{"prompt":"a","messages":[]}"#, "prompt"),
            (br#"{"messages":[{"role":"tool","content":"x"}]}"#, "messages.role"),
            (br#"{"prompt":"a","n":2}"#, "n"),
            (br#"{"prompt":"a","tools":[]}"#, "tools"),
            (br#"{"prompt":"a","response_format":{"type":"json_object"}}"#, "response_format"),
            (br#"{"prompt":"a","stop":["",""]}"#, "stop"),
            (br#"{"prompt":"a","max_tokens":0}"#, "max_tokens"),
            (br#"{"prompt":"a","temperature":1}"#, "seed"),
        ];
        for (bytes, field) in cases {
            let error = Body::parse(bytes).unwrap_err();
            assert_eq!(error.field, field, "{}", String::from_utf8_lossy(bytes));
        }
    }
}
