//! What computes.

#[cfg(feature = "candle")]
pub mod candle;
pub mod reference;
