//! The neighbours this module works with.

use holdfast_types::Address;
use holdfast_types::traits::{AccountKeeper, BankKeeper, EpochsRead, EscrowHooks, EscrowStamps, GroupDraw};

/// Neighbours of one call; the app composes them, nothing here is kept.
#[derive(Clone, Copy)]
pub struct Deps<'a> {
    /// Moves coins.
    pub bank: &'a dyn BankKeeper,
    /// Makes accounts for those who are paid.
    pub accounts: &'a dyn AccountKeeper,
    /// The epoch schedule.
    pub epochs: &'a dyn EpochsRead,
    /// Draws the slots of a group.
    pub groups: &'a dyn GroupDraw,
    /// State of the owners' breakers.
    pub stamps: &'a dyn EscrowStamps,
    /// Hears of the counts of each host.
    pub hooks: &'a dyn EscrowHooks,
    /// Account that fees go to.
    pub fee_collector: Address,
}
