//! The intra-epoch circuit breaker: decides, each block, who is fit to receive work.
//!
//! ```text
//!                 trip rule met, judged at the end of the block
//!        ┌───────────────────────────────────────────────────────┐
//!        │                                                       ▼
//!    Healthy ◄──claimed inference finished── Probe(claimed)   Excluded ◄─┐
//!    (start)                                  │  ▲  │             │      │
//!                          released, deadline │  │  └─missed──────┼──────┘ cooldown doubled
//!                                             ▼  │ start assigned │
//!                                          Probe(ready) ◄─────────┘ cooldown passed, begin of block
//! ```
//!
//! One entry per `(epoch, model, participant)`; no entry means Healthy. Transitions happen only while a block
//! executes. An outcome counts only under the generation it was started in, so work given before a change of
//! state can neither fail nor restore anybody. Rules: `README.md` of this crate; each function names its source.
//!
//! To embed: implement [`ParticipantsRead`](holdfast_types::traits::ParticipantsRead) over your own membership,
//! call [`Keeper::begin_block`], the hooks as inferences start and end, and [`Keeper::end_block`]; ask
//! [`BreakerRead::health`](holdfast_types::traits::BreakerRead::health) when you select.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::arithmetic_side_effects,
        clippy::float_arithmetic,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::disallowed_types,
        clippy::disallowed_methods,
        clippy::iter_over_hash_type,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::exit
    )
)]
#![cfg_attr(test, allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::iter_over_hash_type))]

mod abci;
pub mod calc;
mod errors;
mod events;
mod genesis;
mod hooks;
pub mod invariants;
mod judge;
mod keeper;
pub mod keys;
mod module;
pub mod msg_server;
mod msgs;
pub mod query_server;
pub mod state;
#[cfg(test)]
mod tests;
mod types;

pub use errors::{BreakerError, CODES};
pub use keeper::{DUE_ROWS_MAX, Keeper, OVERRIDES_MAX, PRUNE_ROWS_MAX};
pub use module::BreakerModule;
pub use msgs::MsgSetBreakerOverride;
pub use types::{
    Bucket, Entry, Forced, ForcedTo, ModelTally, Override, ProbeClaim, RingBucket, State, Tally, Trip,
    TripRing, Window,
};
