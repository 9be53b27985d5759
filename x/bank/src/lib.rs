//! Coins: balances, supply, transfers.
//!
//! The specification is this crate's README. Coins are moved, never made or lost, except by [`Keeper::mint`] and
//! [`Keeper::burn`], which move the supply along; the balances of a denomination always add up to its supply.

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

mod errors;
mod events;
mod genesis;
pub mod invariants;
mod keeper;
mod keys;
mod module;
pub mod msg_server;
mod msgs;
pub mod query_server;
mod state;
#[cfg(test)]
mod tests;

pub use errors::{BankError, CODES, CODESPACE};
pub use keeper::Keeper;
pub use keys::COLLECTIONS;
pub use module::BankModule;
pub use msgs::Send;
pub use state::{BALANCES, SUPPLY};
