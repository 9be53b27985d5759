//! Inferences: who was given what work, who paid, how it ended, and how executors are chosen.
//!
//! ```text
//!            Start                     Finish in time
//! (none) ──────────────▶ Started ──────────────────────▶ Finished   executor paid, rest refunded
//!    │                    │  │  └── ReportFailure ──────▶ Failed     a miss, all refunded
//!    │ Finish             │  └───── Cancel ─────────────▶ Cancelled  released, all refunded
//!    ▼                    │
//! FinishedFirst           └─ E1, height ≥ expires_at ───▶ Expired    a miss, all refunded
//!    │   │                                           └──▶ Released   the same with an excuse
//!    │   └─ E1: removed
//!    └───── Start ─────▶ Finished, in one step
//! ```
//!
//! Money: the signer of the start pays `(prompt_tokens + max_tokens) · token_price` into the module account,
//! which therefore always holds the sum of what [`Status::Started`] inferences paid in
//! ([`invariants::escrow_is_backed`]).
//!
//! The module reads its neighbours through [`Deps`], an argument of each call. The block steps of
//! breaker-details 3 that belong here are [`begin_block`] (B1), [`expire`] (E1), [`sprt_step`] (E2) and
//! [`prune`] (E4); the app puts them into its order. Choosing an executor is a pure function of a
//! [`CandidateTable`] and a seed ([`draw`]).

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
pub mod draw;
mod errors;
mod events;
mod genesis;
mod group;
pub mod invariants;
mod keeper;
mod keys;
mod module;
pub mod msg_server;
mod msgs;
mod params;
pub mod query_server;
mod selection;
pub mod sprt;
mod state;
#[cfg(test)]
mod tests;
mod types;

pub use abci::{EXPIRE_MAX, PRUNE_MAX, begin_block, expire, prune, sprt_step};
pub use deps::{Deps, Requesters};
pub use draw::{Candidate, CandidateTable, Draw, Filter, Lane, TableHeader};
pub use errors::{CODES, InferenceError};
pub use group::Groups;
pub use keeper::{Keeper, module_account};
pub use keys::{COLLECTIONS, MODULE_NAME};
pub use module::InferenceModule;
pub use msgs::{CancelInference, FinishInference, ReportFailure, StartInference, UpdateParams};
pub use params::Params;
pub use selection::{Place, build_table, candidate_row};
pub use types::{Answer, EpochStats, Inference, SprtIncrements, SprtState, Start, Status};
