//! Escrow sessions: coins that a creator spends by signed diffs over a group of hosts, and what keeps the replicas of
//! that group equal.
//!
//! | part | what it is | who runs it |
//! |---|---|---|
//! | [`session`] | the state machine of one session: pure `apply`, roots, signatures, settlement | chain, gateway, hosts |
//! | [`divergence`] | flags of participants whose state differs, over a typed store | gateway |
//! | [`repair`] | the repair of one flagged participant as a pure state machine | gateway |

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

pub mod divergence;
pub mod repair;
pub mod session;
