//! Settings of an upstream.

use std::fmt;

/// An upstream server and the limits it is used within.
#[derive(Clone)]
pub struct OpenAiHttpConfig {
    /// `http://host[:port][/prefix]`; `/v1/completions` follows.
    pub base_url: String,
    /// Name of the model at the upstream.
    pub model: String,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Requests the upstream may have at a time.
    pub slots: u32,
    /// Context length, tokens; prompts are measured in bytes, which are hardly ever fewer.
    pub max_positions: u32,
    /// Longest wait for a connection, milliseconds.
    pub connect_ms: u64,
    /// Longest wait for the next byte, milliseconds. The runner's deadlines are to be shorter.
    pub silence_ms: u64,
    /// Longest wait before a request that found no room is sent again, milliseconds.
    pub retry_after_max_ms: u64,
    /// Longest wait until a closed request is gone from the upstream, milliseconds.
    pub stop_wait_ms: u64,
    /// Time between two questions for the load, milliseconds.
    pub beat_ms: u64,
}

impl OpenAiHttpConfig {
    /// The usual limits: 5 s to connect, 60 s of silence, 5 s of `Retry-After`, 10 s to stop, a beat each second.
    #[must_use]
    pub fn new(
        base_url: impl Into<String>,
        model: impl Into<String>,
        slots: u32,
        max_positions: u32,
    ) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api_key: None,
            slots,
            max_positions,
            connect_ms: 5_000,
            silence_ms: 60_000,
            retry_after_max_ms: 5_000,
            stop_wait_ms: 10_000,
            beat_ms: 1_000,
        }
    }
}

impl fmt::Debug for OpenAiHttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base_url, model, api_key, slots, max_positions, .. } = self;
        f.debug_struct("OpenAiHttpConfig")
            .field("base_url", base_url)
            .field("model", model)
            .field("api_key", &api_key.as_ref().map(|_| "…"))
            .field("slots", slots)
            .field("max_positions", max_positions)
            .finish_non_exhaustive()
    }
}
