//! What computes: models behind [`crate::shard::LocalShard`], and upstream servers.

#[cfg(feature = "candle")]
pub mod candle;
pub mod openai_http;
pub mod reference;
