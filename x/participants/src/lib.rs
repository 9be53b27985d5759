//! Who serves what: the registry of participants, their models and weights, epoch groups, maintenance.
//!
//! A group is frozen when its epoch begins and only shrinks inside it: joining, a new model and more weight count
//! from the next epoch; leaving and dropping a model count at once (breaker-details 0.2). Nothing here scans all
//! participants in a block, not even at the boundary: each member carries the weight of this epoch and of the
//! next ([`MemberRecord::at`]), and a model's sums for the next epoch are kept as they change.

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
mod errors;
mod events;
mod genesis;
pub mod invariants;
mod keeper;
mod keys;
mod maintenance;
mod migrations;
mod module;
pub mod msg_server;
mod msgs;
mod params;
pub mod query_server;
mod reads;
pub mod state;
#[cfg(test)]
mod tests;
mod types;
mod validators;
mod weights;

pub use calc::{POWER_PER_WEIGHT, TOTAL_POWER_MAX};
pub use errors::{CODES, ParticipantsError};
pub use keeper::Keeper;
pub use keys::{COLLECTIONS, MODULE_NAME};
pub use maintenance::DUE_ROWS_MAX;
pub use module::ParticipantsModule;
pub use params::Params;
pub use reads::{Watched, watched};
pub use types::{
    Cause, Interval, MemberRecord, NextTotals, NextWeight, Participant, PowerTotals, Validator, Window,
    Worker,
};
pub use weights::{CollateralWeight, REFRESH_MAX};
