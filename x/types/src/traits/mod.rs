//! The reads and hooks that modules offer each other, one file per offering module. A listener implements a
//! hook, the app composes, the emitter gets `&dyn Hooks` as an argument and stores nothing (ARCHITECTURE 1).

mod auth;
mod bank;
mod breaker;
mod epochs;
mod escrow;
mod gov;
mod inference;
mod participants;

pub use auth::AccountKeeper;
pub use bank::BankKeeper;
pub use breaker::{Admission, BreakerGate, BreakerRead, HealthClass, StartAttempt};
pub use epochs::{EpochHooks, EpochInfo, EpochsRead, ScheduleLimits};
pub use escrow::{DrawnGroup, EscrowCounts, EscrowHooks, EscrowStamps, GroupDraw, GroupRequest};
pub use gov::{MessageRouter, VotingPower};
pub use inference::{InferenceHooks, InferenceOutcome, InferenceStarted, Stamp};
pub use participants::{
    Eligibility, EligibilityHooks, Excuse, GroupTotals, ParticipantsRead, ParticipantsWrite, Standing,
    WeightSource,
};
