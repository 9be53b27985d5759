//! Test support for Holdfast modules and for those who embed them. A dev-dependency only: nothing here is
//! consensus code, and a failed expectation panics.
//!
//! - [`TestChain`]: a store, a block and the events so far, handed to a closure as a
//!   [`Context`](holdfast_types::Context).
//! - [`StaticGroup`], [`StaticEpochs`], [`MemBank`], [`MemAccounts`], [`OpenGate`]: neighbours of a module under test.
//! - [`Recorder`]: every hook, written down in order.
//! - [`conformance`]: what each [`KvRead`](holdfast_store::KvRead) and [`KvWrite`](holdfast_store::KvWrite) must do.
//!
//! ```
//! use holdfast_store::{KvRead, KvWrite};
//! use holdfast_testkit::{TestChain, addr};
//!
//! let mut chain = TestChain::new(10);
//! chain.ctx(|ctx| ctx.store.set(b"k", b"v")).unwrap();
//! assert_eq!(chain.store.get(b"k").unwrap(), Some(b"v".to_vec()));
//! assert_eq!(addr(1).0, [1; 20]);
//! ```

#![forbid(unsafe_code)]

mod chain;
pub mod conformance;
mod group;
mod hooks;
mod neighbours;
mod random;
#[cfg(test)]
mod tests;

pub use chain::{TestChain, addr, addr_n};
pub use group::{StaticGroup, StaticMember};
pub use hooks::{NoHooks, Recorder, Seen};
pub use neighbours::{MemAccounts, MemBank, OpenGate, StaticEpochs};
pub use random::Rng;
