//! What an escrow asks of its neighbours: a group of hosts, the state of their breakers, and somebody who hears how it ended.

use holdfast_store::{KvRead, StoreError};

use super::Stamp;
use crate::{Address, BlockContext, Context, ModuleError};

/// Outcomes of one participant in one settled escrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscrowCounts {
    /// Model of the escrow.
    pub model: String,
    /// The host.
    pub participant: Address,
    /// Stamp taken when the escrow was created; stale counts are statistics, not evidence.
    pub stamp: Stamp,
    /// Given to it; at least the sum of the outcomes.
    pub assigned: u64,
    /// Finished.
    pub ok: u64,
    /// Missed, or failed by its own report.
    pub missed: u64,
    /// Ended without fault.
    pub released: u64,
    /// Earned, base units.
    pub earned: u128,
}

/// Fired once per host when an escrow settles.
pub trait EscrowHooks {
    /// Counts never claim or settle a probe (breaker-details 1, row 23).
    fn after_escrow_settled(&self, ctx: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError>;
}

/// The stamps of a new escrow.
pub trait EscrowStamps {
    /// State of `participant`'s breaker entry for `model` now, to be handed back with the counts.
    fn stamp(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        model: &str,
        participant: &Address,
    ) -> Result<Stamp, StoreError>;
}

/// A group that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRequest<'a> {
    /// Model to be served.
    pub model: &'a str,
    /// Decides the draw.
    pub seed: [u8; 32],
    /// Slots, at least 1.
    pub slots: u8,
    /// Most slots of one owner, at least 1.
    pub cap: u8,
}

/// What a draw gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrawnGroup {
    /// Owner of each slot.
    Slots(Vec<Address>),
    /// No such model.
    ModelUnknown,
    /// So many healthy members cannot fill the slots.
    TooFew {
        /// Healthy members.
        owners: usize,
    },
}

/// Draws groups from a model's eligible healthy members.
pub trait GroupDraw {
    /// Each slot by weight; whoever holds `cap` slots is left out of the further draws.
    fn draw_group(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        request: &GroupRequest<'_>,
    ) -> Result<DrawnGroup, ModuleError>;
}
