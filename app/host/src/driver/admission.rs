//! Whether the runner can do a piece of work, and the request that it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_runner::adapter::Sampling;
use holdfast_runner::runner::{GenerateRequest, RunnerHandle};
use holdfast_runner::text::{ChatMessage, TextCodec};

use crate::body::{Body, Prompt};
use crate::session::{Admission, Refusal, StartJob};

/// When to try again if the host is stopping or has no worker, milliseconds.
const RETRY_MS: u64 = 2_000;

/// The runner's model and limits. Clones are the same.
#[derive(Clone)]
pub struct RunnerAdmission {
    runner: RunnerHandle,
    codec: Arc<dyn TextCodec>,
    max_tokens: u32,
    stopping: Arc<AtomicBool>,
}

/// A body as the runner needs it.
pub(super) struct Ready {
    pub(super) prompt: Vec<u32>,
    pub(super) max_new: u32,
    pub(super) stop: Vec<String>,
    pub(super) sampling: Sampling,
}

impl RunnerAdmission {
    /// Of a runner whose answers have at most `max_tokens`.
    #[must_use]
    pub fn new(runner: RunnerHandle, codec: Arc<dyn TextCodec>, max_tokens: u32) -> Self {
        Self { runner, codec, max_tokens, stopping: Arc::default() }
    }

    pub(super) fn parts(&self) -> (RunnerHandle, Arc<dyn TextCodec>) {
        (self.runner.clone(), self.codec.clone())
    }

    pub(super) fn stop_taking(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Reads a body, and what an answer to it may be.
    pub(super) fn read(&self, body: &[u8], output_limit: u32) -> Result<Ready, Refusal> {
        let policy = |text: String| Refusal::Policy(text);
        let body = Body::parse(body).map_err(|error| policy(error.to_string()))?;
        let text = match body.prompt {
            Prompt::Text(text) => text,
            Prompt::Chat(messages) => {
                let messages: Vec<_> =
                    messages.into_iter().map(|(role, content)| ChatMessage::new(role, content)).collect();
                self.codec.chat(&messages).map_err(|error| policy(format!("body: messages: {error}")))?
            }
        };
        let prompt = self.codec.encode(&text).map_err(|error| policy(format!("body: prompt: {error}")))?;
        if prompt.is_empty() {
            return Err(policy("body: prompt: it has no tokens".into()));
        }
        let context = self.runner.shards().iter().map(|shard| shard.max_positions.min(shard.capacity)).min();
        let Some(context) = context else {
            return Err(Refusal::Busy { message: "no worker".into(), retry_after_ms: RETRY_MS });
        };
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let room = context.saturating_sub(length);
        if room == 0 {
            return Err(policy(format!("body: prompt: {length} tokens, the model has room for {context}")));
        }
        let max_new = body.max_tokens.unwrap_or(u32::MAX).min(output_limit).min(self.max_tokens).min(room);
        let sampling = body.seed.map_or(Sampling::GREEDY, |seed| Sampling { greedy: false, seed });
        Ok(Ready { prompt, max_new, stop: body.stop, sampling })
    }

    /// The runner's request for a job.
    pub(super) fn request(
        &self,
        chain_id: &str,
        client: String,
        job: &StartJob,
        ready: &Ready,
    ) -> GenerateRequest {
        GenerateRequest {
            chain_id: chain_id.to_owned(),
            escrow_id: job.escrow_id,
            client,
            stop_tokens: self.codec.stop_tokens().to_vec(),
            sampling: ready.sampling,
            ..GenerateRequest::new(job.id.to_string(), ready.prompt.clone(), ready.max_new)
        }
    }
}

impl Admission for RunnerAdmission {
    fn check(&self, body: &[u8], _: u32, output_limit: u32) -> Result<(), Refusal> {
        if self.stopping.load(Ordering::Acquire) {
            let message = "the host is stopping; try again in a minute".into();
            return Err(Refusal::Busy { message, retry_after_ms: RETRY_MS });
        }
        self.read(body, output_limit).map(drop)
    }
}
