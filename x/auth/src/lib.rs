//! Accounts: who may sign, with which number, sequence and key.
//!
//! The specification is this crate's README. An account is made when its address first receives coins; modules
//! have accounts whose address is derived from their name, which nobody can sign for.

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
mod genesis;
mod keeper;
mod keys;
mod module;
pub mod msg_server;
mod msgs;
mod params;
pub mod query_server;
mod state;
#[cfg(test)]
mod tests;
mod types;

pub use errors::{AuthError, CODES, CODESPACE};
pub use keeper::Keeper;
pub use keys::COLLECTIONS;
pub use module::AuthModule;
pub use msgs::UpdateParams;
pub use params::{GAS_COST_MAX, MEMO_CHARACTERS_MAX, PARAMS_FIELDS, Params, TX_SIG_LIMIT_MAX};
pub use state::{ACCOUNTS, NEXT_ACCOUNT_NUMBER, PARAMS};
pub use types::Account;
