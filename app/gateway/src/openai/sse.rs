//! Replies as bytes: the JSON of a whole answer, and the frames of a streamed one.

use bytes::Bytes;
use serde::Serialize;

use super::backend::{Dispatch, FinishReason, Usage};
use super::errors::ApiError;
use super::parse::Endpoint;

/// The frame after the last one of a whole stream. A stream without it is incomplete.
pub(crate) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
/// A comment while nothing comes, so that nothing in between takes the connection for dead.
pub(crate) const WAIT: Bytes = Bytes::from_static(b": wait\n\n");

/// What all parts of one reply share.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    endpoint: Endpoint,
    id: String,
    /// Unix seconds.
    created: u64,
    model: String,
    /// Whether a stream tells its usage.
    include_usage: bool,
}

#[derive(Serialize)]
struct Wire<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Content<'a> {
    Message(Message<'a>),
    Delta(Delta<'a>),
    Text(&'a str),
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Serialize, Default)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Serialize)]
struct WireUsage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        let Usage { prompt_tokens, completion_tokens } = usage;
        let total_tokens = u64::from(prompt_tokens) + u64::from(completion_tokens);
        Self { prompt_tokens, completion_tokens, total_tokens }
    }
}

impl Reply {
    /// Its id is `chatcmpl-<escrow>-<nonce>`, or `cmpl-…`.
    pub(crate) fn new(
        endpoint: Endpoint,
        dispatch: Dispatch,
        created: u64,
        model: &str,
        include_usage: bool,
    ) -> Self {
        let kind = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Text => "cmpl",
        };
        let id = format!("{kind}-{}-{}", dispatch.escrow, dispatch.nonce);
        Self { endpoint, id, created, model: model.to_owned(), include_usage }
    }

    /// A whole answer.
    pub(crate) fn whole(&self, text: &str, reason: FinishReason, usage: Usage) -> Bytes {
        let (object, content) = match self.endpoint {
            Endpoint::Chat => {
                let message = Message { role: "assistant", content: text, refusal: None };
                ("chat.completion", Content::Message(message))
            }
            Endpoint::Text => ("text_completion", Content::Text(text)),
        };
        let choice = Choice { index: 0, content, logprobs: None, finish_reason: Some(reason.as_str()) };
        self.json(object, &[choice], Some(Some(usage.into()))).into()
    }

    /// First frame of a conversation's answer: who speaks. A text has none.
    pub(crate) fn opening(&self) -> Option<Bytes> {
        let delta = Delta { role: Some("assistant"), content: Some("") };
        (self.endpoint == Endpoint::Chat).then(|| self.chunk(Content::Delta(delta), None))
    }

    /// A frame of text.
    pub(crate) fn text(&self, text: &str) -> Bytes {
        let content = match self.endpoint {
            Endpoint::Chat => Content::Delta(Delta { role: None, content: Some(text) }),
            Endpoint::Text => Content::Text(text),
        };
        self.chunk(content, None)
    }

    /// The last frames before [`DONE`]: the reason, and the usage if it was asked for.
    pub(crate) fn closing(&self, reason: FinishReason, usage: Usage) -> Vec<Bytes> {
        let content = match self.endpoint {
            Endpoint::Chat => Content::Delta(Delta::default()),
            Endpoint::Text => Content::Text(""),
        };
        let mut frames = vec![self.chunk(content, Some(reason))];
        if self.include_usage {
            frames.push(frame(&self.json(self.chunk_object(), &[], Some(Some(usage.into())))));
        }
        frames
    }

    fn chunk(&self, content: Content<'_>, reason: Option<FinishReason>) -> Bytes {
        let choice =
            Choice { index: 0, content, logprobs: None, finish_reason: reason.map(FinishReason::as_str) };
        // With usage asked for, each chunk has the field, null in all but the last.
        let usage = self.include_usage.then_some(None);
        frame(&self.json(self.chunk_object(), &[choice], usage))
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Text => "text_completion",
        }
    }

    fn json(
        &self,
        object: &'static str,
        choices: &[Choice<'_>],
        usage: Option<Option<WireUsage>>,
    ) -> Vec<u8> {
        let Self { id, created, model, .. } = self;
        let wire = Wire { id, object, created: *created, model, choices, usage };
        // Strings and numbers always become JSON.
        serde_json::to_vec(&wire).unwrap_or_default()
    }
}

/// The last frame of a stream that failed: no reason, and no [`DONE`] after it.
pub(crate) fn error(error: &ApiError) -> Bytes {
    frame(&error.body())
}

/// JSON has no raw line break, so it is one line.
fn frame(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}
