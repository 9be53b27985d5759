//! Governance and upgrade plans, wire-compatible with `cosmos.gov.v1` and `cosmos.upgrade.v1beta1`.
//!
//! The specification is this crate's README. A proposal carries messages that the gov module account signs; they are
//! rehearsed when it is submitted and run, all or none, when it has passed. Votes weigh what
//! [`VotingPower`](holdfast_types::traits::VotingPower) says of their voter; nobody votes for somebody else. No step
//! of a block walks all proposals, votes or deposits: queues by end time, a bound for each step and stored cursors.

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

pub mod abci;
pub mod calc;
mod deps;
mod errors;
mod events;
mod genesis;
pub mod invariants;
mod keeper;
mod keys;
mod messages;
mod module;
pub mod msg_server;
mod msgs;
mod params;
pub mod query_server;
pub mod state;
#[cfg(test)]
mod tests;
mod types;

pub use deps::Deps;
pub use errors::{CODES, GovError};
pub use keeper::Keeper;
pub use keys::{COLLECTIONS, MODULE_NAME};
pub use messages::PROPOSAL_GAS_MAX;
pub use module::GovModule;
pub use msgs::{
    MESSAGES_BYTES_MAX, MESSAGES_MAX, METADATA_MAX, NESTING_MAX, PLAN_INFO_MAX, PLAN_NAME_MAX, SIGNERS,
    SUMMARY_MAX, Submission, TITLE_MAX,
};
pub use params::Params;
pub use types::{
    Content, Plan, Proposal, ProposalId, ProposalStatus, Settlement, SettlementKind, StoredMessage, Tally,
    TallyProgress, TimeNs, Vote, VoteOption, Voting, WeightedOption,
};
