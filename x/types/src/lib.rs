//! Types every Holdfast module shares: addresses, coins, the block context, events, error codes, and the
//! traits through which modules read and notify each other ([`traits`]).
//!
//! Nothing here touches the outside: no clock, no randomness, no floats, no hash maps.

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

mod address;
mod coin;
mod context;
mod decimal;
mod errors;
mod event;
mod module;
mod params;
mod signature;
#[cfg(test)]
mod tests;
pub mod traits;
mod validator;
mod wire;

pub use address::{Address, AddressError, Hrp};
pub use coin::{Coin, CoinError};
pub use context::{BlockContext, Context};
pub use decimal::{Decimal12, DecimalError, ONE};
pub use errors::{ModuleError, QueryError, QueryKind, sdk};
pub use event::Event;
pub use module::{Module, check_prefix_table};
pub use params::{FieldError, ValidationParams, apply_mask};
pub use signature::{Signature, SignatureError, address_of, recover};
pub use validator::ValidatorUpdate;
pub use wire::{
    PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, PAGE_SCAN_MAX, Paging, QueryContext, decode_msg, paginate,
};

/// Block height, 1 and up; 0 means "never".
pub type Height = i64;

/// Epoch index; epoch 0 begins at the initial height (breaker-details 0.11).
pub type Epoch = u64;
