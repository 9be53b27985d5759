//! The epoch schedule: which epoch and phase a height lies in, and the one boundary at which everything that is
//! kept per epoch changes over (breaker-details 0.11 and 3, step B2).
//!
//! The specification is this crate's README.
//!
//! ```text
//!            epoch 0                    epoch 1
//! | inference ......... | PoC ... || inference ......... | PoC ... ||
//! ^ initial height                 ^ ended(0), started(1) fire here, in begin_block
//!   started(0) fires
//! ```

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
mod errors;
mod events;
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

pub use errors::{CODES, CODESPACE, EpochsError};
pub use keeper::{Keeper, Position};
pub use keys::COLLECTIONS;
pub use module::EpochsModule;
pub use msgs::UpdateParams;
pub use params::{EPOCH_LENGTH_MAX, PARAMS_FIELDS, Params};
pub use state::{CURRENT, EPOCHS, PARAMS, STAGED_PARAMS};
