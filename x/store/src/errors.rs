//! What can go wrong below a collection.

use thiserror::Error;

/// A failed store access. `Decode` means corrupt state and is never mapped to a default.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// `load` found nothing.
    #[error("{collection}: no entry for key {key}")]
    NotFound {
        /// Collection name.
        collection: &'static str,
        /// Encoded key, hex.
        key: String,
    },
    /// A key or value on disk is not what the collection writes.
    #[error("{collection}: corrupt entry: {reason}")]
    Decode {
        /// Collection name.
        collection: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// A unique index already names another primary key.
    #[error("{collection}: another entry already holds this index key")]
    Duplicate {
        /// Index name.
        collection: &'static str,
    },
    /// The gas limit of the transaction is used up.
    #[error("out of gas: limit {limit}, needed {needed}")]
    OutOfGas {
        /// Limit in gas units.
        limit: u64,
        /// Gas the refused step would have reached.
        needed: u64,
    },
    /// A write through a read-only view.
    #[error("the store view is read-only")]
    ReadOnly,
    /// A sequence ran out of numbers.
    #[error("{collection}: sequence exhausted")]
    Exhausted {
        /// Collection name.
        collection: &'static str,
    },
    /// The engine below failed.
    #[error("storage backend: {0}")]
    Backend(String),
}

/// Bytes that no [`crate::KeyCodec`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Fewer bytes than the key type needs.
    #[error("key ends early")]
    Short,
    /// Bytes left after the key.
    #[error("key has trailing bytes")]
    Trailing,
    /// A byte pattern outside the encoding.
    #[error("key is not canonical")]
    Invalid,
}
