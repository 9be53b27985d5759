//! What computes.

pub mod openai_http;
pub mod reference;
