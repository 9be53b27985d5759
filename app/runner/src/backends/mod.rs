//! What computes: models behind [`crate::shard::LocalShard`].

#[cfg(feature = "candle")]
pub mod candle;
pub mod reference;
