//! What computes: models behind [`crate::shard::LocalShard`].

pub mod reference;
