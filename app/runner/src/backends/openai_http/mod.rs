//! A whole model behind an upstream server that speaks the OpenAI completions API with streaming: vLLM, the llama.cpp
//! server, SGLang (runner-details 14).
//!
//! | call | at the upstream |
//! |---|---|
//! | `open` | one of the upstream's slots is taken; none free, or draining: [`AdapterError::Full`] |
//! | `prefill` | kept until the prompt is whole; then `POST /v1/completions`, streamed, gives the first piece of text |
//! | `decode` | the next piece |
//! | `stop` | the connection is closed |
//! | `release` | the same, then the upstream's load is asked for until the request is gone from it |
//! | `query_step` | [`StepState::Unknown`]: an upstream remembers nothing, so a step in doubt means a new attempt |
//!
//! **Tokens** are the pieces of text that the upstream sends: a chunk is a step, whatever it holds, and has the id that
//! the [`PieceTable`] gives it. Chunks without text are no steps. The step after the last piece gives [`END_TOKEN`].
//! What is billed are the [`Counts`] of the upstream's `usage`, never more than was asked for; a usage below the
//! number of chunks ends the stream, for then chunks came twice. The digest of a token's logits is that of its text.
//!
//! **A prompt** is the bytes of its text and [`PROMPT_END_TOKEN`] ([`PieceTable`] puts it there), in chunks as for any
//! shard. `max_tokens` is what the plan leaves after the prompt: `max_positions` = prompt + new tokens.
//!
//! **Slots.** An upstream belongs to one adapter alone, since its load must be ours: the sum of the gauges for running
//! and waiting requests at `GET /metrics` (vLLM, SGLang, llama.cpp with `--metrics`), else the busy slots at
//! `GET /slots`; an upstream with neither is refused. A closed request is gone when the load is no more than the requests
//! that are being answered. The load names none: one that the upstream has answered in full, but whose end is not yet
//! read here, can hide another. vLLM's gauges stand still once everything was aborted, so one request of one token sets
//! them going again. What is not gone after 10 s is leaked: its slot is lost and nothing is opened until the load shows
//! that it did end.
//!
//! **Failover** compares pieces: adapters of one model share a table, so that equal pieces are equal tokens. An upstream
//! that puts several tokens into one chunk may cut the same text differently the next time; that attempt then ends as a
//! mismatch and is not billed.
//!
//! **Liveness.** The load is asked for each second, and an answer is a beat of the process, as is a part of a stream.
//! Progress is another matter and judged by the deadlines of first token and inter-token time. Every wait here has an
//! end of its own as well.
//!
//! Plain HTTP only: the workspace has no TLS. An upstream on another machine needs a TLS proxy in front of this node.
//!
//! [`AdapterError::Full`]: crate::adapter::AdapterError::Full
//! [`StepState::Unknown`]: crate::adapter::StepState::Unknown
//! [`Counts`]: crate::adapter::Counts

mod adapter;
mod client;
mod config;
mod kv;
mod line;
mod site;
mod sse;
mod stream;
#[cfg(test)]
mod tests;
mod text;
pub mod upstream;

pub use self::adapter::OpenAiHttpAdapter;
pub use self::config::OpenAiHttpConfig;
pub use self::sse::{LINE_MAX, PIECE_MAX, TEXT_MAX};
pub use self::text::{END_TOKEN, PROMPT_END_TOKEN, PieceTable};
