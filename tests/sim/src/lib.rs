//! A simulator of whole chains: accounts, genesis, parameters and operations are drawn from a seed, blocks are decided and
//! executed as by a consensus engine, and after each block everything that must hold is checked. See `docs/simulation.md`.
//!
//! ```text
//! seed ─ cast (accounts, genesis) ─ users (operations ─ transactions) ─ driver (rounds, blocks) ─ nodes
//!                                      ▲                                                           │
//!                                      └────────────────── results, last state ────────────────────┘
//! ```

mod binary;
mod cast;
mod chain;
mod child;
mod diff;
pub mod escrow;
mod load;
mod memory;
mod modes;
mod node;
mod ops;
mod params;
mod rng;
#[cfg(test)]
mod tests;
mod trace;

pub use child::{Launch, speak};
pub use diff::NOT_EQUAL;
pub use memory::{Counts, Tally};
pub use modes::{Failure, Mode, Plan, run};
pub use rng::Rng;
