//! What computes: models behind [`crate::shard::LocalShard`].

pub mod openai_http;
pub mod reference;
