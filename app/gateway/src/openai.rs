//! The OpenAI-compatible HTTP API.

mod backend;

pub use backend::{
    Answer, Dispatch, Event, Failure, FinishReason, ModelInfo, Readiness, Sessions, Submission, Usage,
};
