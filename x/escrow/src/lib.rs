//! Escrow sessions: coins that a creator spends by signed diffs over a group of hosts, and what keeps the replicas of
//! that group equal.
//!
//! | part | what it is | who runs it |
//! |---|---|---|
//! | [`session`] | the state machine of one session: pure `apply`, roots, signatures, settlement | chain, gateway, hosts |
//! | [`divergence`] | flags of participants whose state differs, over a typed store | gateway |
//! | [`repair`] | the repair of one flagged participant as a pure state machine | gateway |
//! | the rest of this crate | the escrow on the chain: coins in, a group drawn, a settlement or dispute paid | chain |
//!
//! The specification of the chain's part is this crate's README. Its block steps are [`close`] and [`prune`]; the app puts
//! them into its order.

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
mod calc;
mod deps;
pub mod divergence;
mod errors;
mod events;
mod forms;
mod genesis;
pub mod invariants;
mod keeper;
mod keys;
mod module;
pub mod msg_server;
mod msgs;
mod params;
pub mod query_server;
pub mod repair;
pub mod session;
mod state;
#[cfg(test)]
mod tests;
mod types;

pub use abci::{CLOSE_MAX, PRUNE_MAX, close, prune};
pub use deps::Deps;
pub use errors::{CODES, EscrowError};
pub use forms::{config_from_pb, config_to_pb, settlement_from_pb, settlement_to_pb};
pub use keeper::{Keeper, module_account};
pub use keys::{COLLECTIONS, MODULE_NAME};
pub use module::EscrowModule;
pub use msgs::{BringState, CreateEscrow, URL_MAX};
pub use params::Params;
pub use types::{Dispute, Escrow, EscrowId, HostTally, Outcome, Status};
