//! What the module's calls are handed: the modules next door.

use holdfast_types::traits::{AccountKeeper, BankKeeper, MessageRouter, VotingPower};

/// Neighbours of a call. The app composes them anew each time.
#[derive(Clone, Copy)]
pub struct Deps<'a> {
    /// Holds, gives back and burns deposits.
    pub bank: &'a dyn BankKeeper,
    /// Accounts of those who receive coins.
    pub accounts: &'a dyn AccountKeeper,
    /// What votes weigh.
    pub power: &'a dyn VotingPower,
    /// Carries a proposal's messages to their modules.
    pub router: &'a dyn MessageRouter,
}
