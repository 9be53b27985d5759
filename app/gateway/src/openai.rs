//! The OpenAI-compatible HTTP API (escrow-details 9).
//!
//! ```text
//! socket → server (HTTP/1.1, limits) → routes → key, body, idempotency key, parse
//!                                         → Sessions::submit → run (stop texts, counts) → reply (JSON or SSE) → socket
//! ```
//!
//! | path | |
//! |---|---|
//! | `POST /v1/chat/completions`, `POST /v1/completions` | an answer, whole or streamed |
//! | `GET /v1/models`, `GET /v1/models/{id}` | what the key may use |
//! | `GET /healthz` | the process lives |
//! | `GET /readyz` | 200, or 503 and why not |
//! | `GET /metrics` | Prometheus |
//!
//! The future of a request, and the body of its reply, are dropped when its client leaves; with them goes the
//! [`Answer`], which is how the sessions learn of it.

mod backend;
mod cors;
mod errors;
mod idempotency;
mod keys;
mod parse;
mod patience;
mod record;
mod reply;
mod routes;
mod run;
mod server;
mod sse;
mod stop;
mod trace;
mod upload;

#[cfg(test)]
mod tests;

pub use backend::{
    Answer, Dispatch, Event, Failure, FinishReason, ModelInfo, Readiness, Sessions, Submission, Usage,
};
pub use idempotency::{MemReplies, ReplyId, ReplyMark, ReplyStore, StoredReply};
pub use keys::{DuplicateKey, KeyBudgets, KeyConfig, MemBudgets, StoreError};
pub use routes::{Api, ApiConfig, ApiConfigError, Limits, Seams};
pub use server::{LAST_WORD, serve};
