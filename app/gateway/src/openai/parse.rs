//! Reading a request: every field is obeyed, known to be harmless, or refused by name.
//!
//! | field | |
//! |---|---|
//! | `model`, `messages` or `prompt`, `max_tokens`, `max_completion_tokens`, `stop`, `seed`, `temperature`, `stream`, `stream_options` | obeyed |
//! | `name` of a message; `user`, `metadata`, `store`, `service_tier`, `safety_identifier`, `prompt_cache_key`, `prompt_cache_retention` | passed over: they do not change the answer |
//! | `top_p`, `n`, penalties, `logprobs`, `response_format` and the like | only with the value that changes nothing |
//! | tools, functions, guided decoding, audio, and whatever is not known | 400 `unsupported_parameter` |
//!
//! Without `temperature`, and with 0, hosts answer greedily. Above 0 they sample from `seed`, so that the answer can be
//! made again; without one the gateway draws it. Hosts do not scale by the value.

use std::fmt;

use bytes::Bytes;
use holdfast_host::body::{STOP_BYTES_MAX, STOP_MAX, joined_bytes};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};

use super::errors::ApiError;

/// Longest name of a model, bytes.
const MODEL_BYTES_MAX: usize = 256;
/// Most messages of a conversation.
const MESSAGES_MAX: usize = 4096;
/// What a message may cost beside its content, tokens (escrow-details 9); once more for the whole.
const FRAME_TOKENS: u64 = 64;

/// The two endpoints that make an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Text,
}

impl Endpoint {
    /// The field that holds the prompt.
    pub(crate) const fn prompt_field(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Text => "prompt",
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    pub(crate) prompt: Prompt,
    /// The field that limits the answer, and its value.
    pub(crate) max_tokens: Option<(&'static str, u32)>,
    pub(crate) stop: Vec<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) temperature: Option<Number>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Prompt {
    Messages(Vec<Message>),
    #[serde(rename = "prompt")]
    Text(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: String,
}

/// The bytes for the host: nothing but what it reads, in one order.
#[derive(Serialize)]
struct HostBody<'a> {
    #[serde(flatten)]
    prompt: &'a Prompt,
    max_tokens: u32,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a Number>,
}

impl Asked {
    /// Whether hosts need a seed for it.
    pub(crate) fn samples(&self) -> bool {
        self.temperature.as_ref().and_then(Number::as_f64).is_some_and(|t| t > 0.0)
    }

    /// Least bytes of the text that a host makes of it: all content, and what stands between messages.
    pub(crate) fn prompt_bytes(&self) -> u64 {
        match &self.prompt {
            Prompt::Text(text) => text.len() as u64,
            Prompt::Messages(messages) => joined_bytes(messages.iter().map(|m| m.content.len())),
        }
    }

    /// Bytes of all content.
    fn content_bytes(&self) -> u64 {
        match &self.prompt {
            Prompt::Text(text) => text.len() as u64,
            Prompt::Messages(messages) => messages.iter().map(|m| m.content.len() as u64).sum(),
        }
    }

    /// The most that the prompt takes of a key's budget: with a byte vocabulary just its bytes, otherwise the bound of the
    /// Start.
    pub(crate) fn prompt_charge(&self, context_length: u32, token_bytes_max: u32) -> u32 {
        let bound = self.input_limit(context_length);
        match token_bytes_max {
            1 => u32::try_from(self.prompt_bytes()).unwrap_or(u32::MAX).min(bound),
            _ => bound,
        }
    }

    /// Upper bound of the prompt's tokens (escrow-details 9); what stands between messages is within their 64 tokens.
    pub(crate) fn input_limit(&self, context_length: u32) -> u32 {
        let messages = match &self.prompt {
            Prompt::Text(_) => 0,
            Prompt::Messages(messages) => messages.len() as u64,
        };
        let bound = self.content_bytes() + FRAME_TOKENS * messages + FRAME_TOKENS;
        u32::try_from(bound).unwrap_or(u32::MAX).min(context_length)
    }

    /// The exact bytes that a host gets. `seed` is drawn by the caller when it [`samples`](Self::samples) without one.
    pub(crate) fn host_body(&self, max_tokens: u32, seed: Option<u64>) -> Bytes {
        let Self { prompt, stop, temperature, .. } = self;
        let body = HostBody { prompt, max_tokens, stop, seed, temperature: temperature.as_ref() };
        // Strings and numbers always become JSON.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }
}

/// The fields of a body, and the first that stands in it twice: readers differ on which one counts.
struct Top {
    fields: Map<String, Value>,
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Top {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Top;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Top, A::Error> {
                let (mut fields, mut twice) = (Map::new(), None);
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) && twice.is_none() {
                        twice = Some(name.clone());
                    }
                    fields.insert(name, value);
                }
                Ok(Top { fields, twice })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// Reads a body.
///
/// # Errors
/// 400, and the field at fault.
pub(crate) fn parse(endpoint: Endpoint, bytes: &[u8]) -> Result<Asked, ApiError> {
    // Nesting ends at 128 levels, inside serde_json.
    let Top { fields, twice } = serde_json::from_slice(bytes).map_err(|error| {
        // Only what is no object is of a wrong type: every value of a field is taken.
        if error.is_data() {
            ApiError::bad_request("the body must be a JSON object")
        } else {
            ApiError::bad_request(format!("the body is not JSON: {error}"))
        }
    })?;
    if let Some(name) = twice {
        return Err(ApiError::bad_field(name, "stands twice in the body; give it once"));
    }
    let get = |name: &str| fields.get(name).filter(|value| !value.is_null());
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        neutral(endpoint, name, value)?;
    }

    let model = match get("model") {
        Some(Value::String(model)) if (1..=MODEL_BYTES_MAX).contains(&model.len()) => model.clone(),
        _ => {
            return Err(ApiError::bad_field("model", format!("give a name of 1 to {MODEL_BYTES_MAX} bytes")));
        }
    };
    let prompt = match endpoint {
        Endpoint::Chat => Prompt::Messages(messages(get("messages"))?),
        Endpoint::Text => Prompt::Text(text_prompt(get("prompt"))?),
    };
    // The newer name counts; the other one is no less looked at.
    let limit = |name| get(name).map(|value| Ok((name, positive(name, value)?))).transpose();
    let (newer, older) = (limit("max_completion_tokens")?, limit("max_tokens")?);
    let max_tokens = newer.or(older);
    let temperature = get("temperature").map(|value| number("temperature", value, 2.0)).transpose()?;
    if let Some(value) = get("top_p") {
        let top_p = number("top_p", value, 1.0)?.as_f64();
        let greedy = temperature.as_ref().is_none_or(|t| t.as_f64() == Some(0.0));
        if !greedy && top_p != Some(1.0) {
            return Err(ApiError::unsupported(
                "top_p",
                "hosts sample from all tokens; leave it out, or give 1",
            ));
        }
    }
    let seed = match get("seed") {
        None => None,
        Some(value) => Some(
            value
                .as_u64()
                .or_else(|| value.as_i64().map(i64::cast_unsigned))
                .ok_or_else(|| ApiError::bad_field("seed", "give an integer of 64 bits"))?,
        ),
    };
    let stream = flag("stream", get("stream"))?;
    let include_usage = match get("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(ApiError::bad_field("stream_options", "only together with `stream: true`"));
        }
        Some(Value::Object(options)) => stream_options(options)?,
        Some(_) => return Err(ApiError::bad_field("stream_options", "give an object")),
    };
    let stop = stop(get("stop"))?;
    Ok(Asked { endpoint, model, prompt, max_tokens, stop, seed, temperature, stream, include_usage })
}

/// Refuses a field that no host obeys, unless its value changes nothing.
fn neutral(endpoint: Endpoint, name: &str, value: &Value) -> Result<(), ApiError> {
    let only = |holds: bool, remedy: &str| {
        if holds { Ok(()) } else { Err(ApiError::unsupported(name, remedy)) }
    };
    let is = |wanted: f64| value.as_f64() == Some(wanted);
    match name {
        "model"
        | "max_tokens"
        | "stop"
        | "seed"
        | "temperature"
        | "top_p"
        | "stream"
        | "stream_options"
        | "user"
        | "metadata"
        | "store"
        | "service_tier"
        | "safety_identifier"
        | "prompt_cache_key"
        | "prompt_cache_retention" => Ok(()),
        "messages" | "max_completion_tokens" if endpoint == Endpoint::Chat => Ok(()),
        "prompt" if endpoint == Endpoint::Text => Ok(()),
        "n" | "best_of" => only(is(1.0), "one answer is made; leave it out"),
        "presence_penalty" | "frequency_penalty" => only(is(0.0), "leave it out, or give 0"),
        "logprobs" | "echo" => only(*value == Value::Bool(false), "leave it out"),
        "top_logprobs" => only(is(0.0), "leave it out"),
        "suffix" => only(*value == "", "leave it out"),
        "logit_bias" => only(value.as_object().is_some_and(Map::is_empty), "leave it out"),
        "response_format" => only(value["type"] == "text", "answers are plain text; leave it out"),
        "modalities" => only(*value == serde_json::json!(["text"]), "answers are plain text; leave it out"),
        _ => only(false, "leave it out"),
    }
}

fn messages(value: Option<&Value>) -> Result<Vec<Message>, ApiError> {
    let list = match value {
        Some(Value::Array(list)) if (1..=MESSAGES_MAX).contains(&list.len()) => list,
        _ => return Err(ApiError::bad_field("messages", format!("give 1 to {MESSAGES_MAX} messages"))),
    };
    let messages: Vec<Message> =
        list.iter().enumerate().map(|(i, value)| message(i, value)).collect::<Result<_, _>>()?;
    if messages.iter().all(|message| message.content.is_empty()) {
        return Err(ApiError::bad_field("messages", "at least one content must not be empty"));
    }
    Ok(messages)
}

fn message(i: usize, value: &Value) -> Result<Message, ApiError> {
    let Value::Object(fields) = value else {
        return Err(ApiError::bad_field(format!("messages[{i}]"), "give an object of role and content"));
    };
    nothing_beside(&format!("messages[{i}]"), fields, &["role", "content", "name"])?;
    let param = format!("messages[{i}].role");
    let role = match fields.get("role").and_then(Value::as_str) {
        Some(role @ ("system" | "developer" | "user" | "assistant")) => role.to_owned(),
        Some("tool" | "function") => return Err(ApiError::unsupported(param, "there are no tools")),
        _ => return Err(ApiError::bad_field(param, "use system, developer, user or assistant")),
    };
    let param = format!("messages[{i}].content");
    let content = match fields.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) if !parts.is_empty() => content_parts(&param, parts)?,
        _ => return Err(ApiError::bad_field(param, "give text")),
    };
    Ok(Message { role, content })
}

/// Refuses what is not in `known`. Null and an empty list say nothing: answers that are sent back are full of them.
fn nothing_beside(param: &str, fields: &Map<String, Value>, known: &[&str]) -> Result<(), ApiError> {
    let says = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    match fields.iter().find(|(name, value)| !known.contains(&name.as_str()) && says(value)) {
        Some((name, _)) => Err(ApiError::unsupported(format!("{param}.{name}"), "leave it out")),
        None => Ok(()),
    }
}

/// The texts of a content in parts, a line each.
fn content_parts(param: &str, parts: &[Value]) -> Result<String, ApiError> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(piece)) => {
                if let Value::Object(fields) = part {
                    nothing_beside(&format!("{param}[{i}]"), fields, &["type", "text"])?;
                }
                if i > 0 {
                    text.push('\n');
                }
                text.push_str(piece);
            }
            (Some("image_url" | "input_audio" | "file" | "refusal"), _) => {
                return Err(ApiError::unsupported(format!("{param}[{i}]"), "only text is read"));
            }
            _ => {
                return Err(ApiError::bad_field(
                    format!("{param}[{i}]"),
                    "give {\"type\":\"text\",\"text\":…}",
                ));
            }
        }
    }
    Ok(text)
}

fn text_prompt(value: Option<&Value>) -> Result<String, ApiError> {
    let text = match value {
        Some(Value::String(text)) => text,
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => text,
            _ => {
                return Err(ApiError::unsupported(
                    "prompt",
                    "one text at a time, and no token ids; give a string",
                ));
            }
        },
        _ => return Err(ApiError::bad_field("prompt", "give a string")),
    };
    if text.is_empty() {
        return Err(ApiError::bad_field("prompt", "must not be empty"));
    }
    Ok(text.clone())
}

fn positive(name: &str, value: &Value) -> Result<u32, ApiError> {
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    number.ok_or_else(|| ApiError::bad_field(name, "give an integer above 0"))
}

fn number(name: &str, value: &Value, most: f64) -> Result<Number, ApiError> {
    match value {
        Value::Number(number) if number.as_f64().is_some_and(|n| (0.0..=most).contains(&n)) => {
            Ok(number.clone())
        }
        _ => Err(ApiError::bad_field(name, format!("give a number from 0 to {most}"))),
    }
}

fn flag(name: &str, value: Option<&Value>) -> Result<bool, ApiError> {
    match value {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::bad_field(name, "give true or false")),
    }
}

fn stream_options(options: &Map<String, Value>) -> Result<bool, ApiError> {
    let mut include_usage = false;
    for (name, value) in options.iter().filter(|(_, value)| !value.is_null()) {
        let param = format!("stream_options.{name}");
        match name.as_str() {
            "include_usage" => include_usage = flag(&param, Some(value))?,
            // Padding against traffic analysis, which only TLS needs; nothing is padded here.
            "include_obfuscation" => drop(flag(&param, Some(value))?),
            _ => return Err(ApiError::unsupported(param, "leave it out")),
        }
    }
    Ok(include_usage)
}

fn stop(value: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let rule = || {
        let rule = format!("give a text or at most {STOP_MAX} of them, each of 1 to {STOP_BYTES_MAX} bytes");
        ApiError::bad_field("stop", rule)
    };
    let texts: Vec<&str> = match value {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) if list.len() <= STOP_MAX => {
            list.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(rule)?
        }
        Some(_) => return Err(rule()),
    };
    if texts.iter().any(|text| !(1..=STOP_BYTES_MAX).contains(&text.len())) {
        return Err(rule());
    }
    Ok(texts.into_iter().map(str::to_owned).collect())
}
