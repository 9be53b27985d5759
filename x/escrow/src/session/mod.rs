//! The state machine of one session: what chain, gateway and hosts compute alike.
//!
//! ```text
//!  diff = txs + root, signed by the gateway          FinalizeRound            N diffs later
//!   Active ───────────────────────────────► Active ───────────────► Finalizing ───────────► Frozen
//!   (starts, confirms, finishes, timeouts,           (all but starts)          (nothing more; settled on chain)
//!    errors, key bindings)
//!
//!  a Start:   Pending ──confirm──► Started ──finish──► Finished
//!                │ └──error──► Errored | Released ◄──error──┤
//!                └──timeout(refused)──► Missed ◄──timeout(execution)
//!             still open when the session freezes: Drained
//! ```
//!
//! [`apply`] is a function of state and diff: no clock, no I/O, no oracle. A refused diff leaves nothing behind. After
//! every diff `balance + reserved(Pending, Started) + Σ cost + fees = amount`.
//!
//! Everything that is signed or hashed is the borsh encoding of one struct whose first field is the text
//! `holdfast.escrow.<name>.v1` ([`digest`]). Rules: escrow-details 1 to 4.

mod apply;
mod compose;
mod config;
mod diff;
pub mod digest;
mod errors;
mod live;
pub mod settle;
mod signers;
mod state;
#[cfg(test)]
mod tests;

pub use apply::apply;
pub use compose::{Composed, check_tx, compose, compose_recovered};
pub use config::{ConfigError, FrozenConfig, PROTOCOL, max_slots_per_owner};
pub use diff::{Diff, DiffError, Tx, TxKey, Vote};
pub use errors::ApplyError;
pub use holdfast_types::{Signature, recover};
pub use live::{InferenceRecord, InferenceStatus};
pub use signers::{Recovered, Signers};
pub use state::{BoundKey, HostStats, Phase, SnapshotError, State};

/// SHA-256.
pub type Hash = [u8; 32];

/// Transactions of a diff, at most.
pub const MAX_TXS: usize = 256;
/// Encoded bytes of a diff, at most.
pub const MAX_DIFF_BYTES: usize = 256 * 1024;
/// Slots of a group, at most.
pub const MAX_SLOTS: usize = 128;
/// Terminal records are folded every so many nonces.
pub const SEAL_INTERVAL: u64 = 32;
/// Timeout reason: no receipt came.
pub const REASON_REFUSED: u8 = 1;
/// Timeout reason: a receipt came, but no finish.
pub const REASON_EXECUTION: u8 = 2;
/// Largest `kind` of a ReportError: positions in the runner's list of failures.
pub const KIND_MAX: u8 = 10;
/// The `kind` of a cancelled inference.
pub const KIND_CANCELLED: u8 = 8;
