//! The neighbours this module works with.

use holdfast_store::{KvRead, StoreError};
use holdfast_types::Address;
use holdfast_types::traits::{
    BankKeeper, BreakerGate, EpochsRead, InferenceHooks, ParticipantsRead, ParticipantsWrite,
};

/// Who may ask for inferences.
pub trait Requesters {
    /// Whether `requester` is known to the chain; an app that has accounts answers with "has an account".
    fn is_known(&self, store: &dyn KvRead, requester: &Address) -> Result<bool, StoreError>;
}

/// Neighbours of one call; the app composes them, nothing here is kept.
#[derive(Clone, Copy)]
pub struct Deps<'a> {
    /// Moves payments.
    pub bank: &'a dyn BankKeeper,
    /// Models, participants, groups and excuses.
    pub participants: &'a dyn ParticipantsRead,
    /// Receives the slow breaker's verdict.
    pub deactivation: &'a dyn ParticipantsWrite,
    /// Admits or refuses a start.
    pub gate: &'a dyn BreakerGate,
    /// Hears of starts and outcomes.
    pub hooks: &'a dyn InferenceHooks,
    /// The epoch schedule.
    pub epochs: &'a dyn EpochsRead,
    /// Known requesters.
    pub requesters: &'a dyn Requesters,
}
