//! Typed collections over an ordered key-value store (ARCHITECTURE 4).
//!
//! A module declares its state as constants of [`Item`], [`Map`], [`KeySet`], [`Sequence`] and
//! [`IndexedMap`]; each call takes the store it works on, so a keeper holds no state:
//!
//! ```
//! use holdfast_store::{Item, KvWrite, Map, MemKv, Prefix};
//!
//! const BALANCES: Map<(String, u32), u64> = Map::new(Prefix::new("example", 1, "balances"));
//!
//! let mut store = MemKv::default();
//! BALANCES.set(&mut store, &("alice".into(), 7), &100)?;
//! assert_eq!(BALANCES.get(&store, &("alice".into(), 7))?, Some(100));
//! # Ok::<(), holdfast_store::StoreError>(())
//! ```
//!
//! A full key is `space ‖ "/" ‖ collection byte ‖ encoded key`: the space is the module's name, so one
//! store holds every module and a commitment tree per module is a split at the first slash.
//! Keys are order-preserving and self-delimiting ([`KeyCodec`]); values are borsh.
//!
//! An embedder brings its own store by implementing [`KvRead`] and [`KvWrite`]; the conformance suite
//! of `holdfast-testkit` tells whether it got the contract right.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::float_arithmetic,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod branch;
mod codec;
mod collections;
mod errors;
mod kv;
mod metered;
mod prefix;
mod read_only;
mod space;
#[cfg(test)]
mod tests;

pub use branch::{BranchKv, WriteSet};
pub use codec::{HasPrefix, KeyCodec};
pub use collections::{Index, IndexedMap, Item, KeySet, Map, Sequence, Transient};
pub use errors::{KeyError, StoreError};
pub use kv::{KvIter, KvRead, KvWrite, MemKv, Order, Pair, successor};
pub use metered::{GasConfig, GasMeter, MeteredKv};
pub use prefix::{Prefix, TRANSIENT_SPACE, assert_distinct};
pub use read_only::ReadOnlyKv;
pub use space::SpaceKv;
