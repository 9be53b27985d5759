//! The repair of one flagged participant: a pure state machine and the decisions around it (escrow-details 6).
//!
//! ```text
//!  raise ─► Waiting ─due + permit─► Teaching ─at the target─► Verifying ─proof─► flag removed
//!              ▲  │                     │ fails                   │ fails
//!              └──┼──────── backoff ────┴─────────────────────────┘
//!                 └─ deadline or operator ─► GaveUp      the session ends ─► Stopped
//! ```
//!
//! [`step`] is a function of a [`RepairContext`], a [`RepairState`] and a [`RepairEvent`]: it reads no clock, draws no
//! numbers and sends nothing. What must be done comes back as [`Effect`]s, whose docs say how a driver carries them
//! out. [`crate::divergence`] keeps the state and calls [`step`] together with the writes that belong to it.
//!
//! A flag is cleared by a [`ClearProof`] alone, and nothing but [`verify_proof`] makes one.

mod bisect;
mod config;
mod delay;
mod event;
mod proof;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod weight;

pub use bisect::{Answer, BISECT_CALLS, Bisect};
pub use config::{ConfigError, RepairConfig};
pub use delay::backoff_ms;
pub use event::{Effect, Failure, LogStage, RepairEvent};
pub use proof::{Attempt, ClearProof, Doubt, OurPoint, ProofReply, ProofVerdict, Verification, verify_proof};
pub use state::{Forgiven, NonceUse, RepairPhase, RepairState, Verdict, nonce_use};
pub use step::{Outcome, RepairContext, RepairError, step};
pub use weight::{SelfVerdict, census, majority_unreachable, quorum, quorum_at_risk, suspicion_ends};
