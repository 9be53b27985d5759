//! What other modules need of x/epochs.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::{KvRead, StoreError};

use crate::{Context, Epoch, Height, ModuleError};

/// An epoch's schedule, fixed when it begins (breaker-details 0.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EpochInfo {
    /// Index.
    pub epoch: Epoch,
    /// First block.
    pub start_height: Height,
    /// Blocks.
    pub length: i64,
    /// The last `poc_length` blocks are the PoC phase; 0 = none.
    pub poc_length: i64,
}

impl EpochInfo {
    /// First height of the next epoch.
    pub fn end(&self) -> Height {
        self.start_height.saturating_add(self.length)
    }

    /// First height of the PoC phase; equals [`Self::end`] when there is none.
    pub fn poc_start(&self) -> Height {
        self.end().saturating_sub(self.poc_length)
    }

    /// Whether `height` lies in this epoch's PoC phase.
    pub fn is_poc(&self, height: Height) -> bool {
        (self.poc_start()..self.end()).contains(&height)
    }
}

/// The schedule.
pub trait EpochsRead {
    /// Schedule of `epoch`; kept for the current one and at least two before it.
    fn epoch(&self, store: &dyn KvRead, epoch: Epoch) -> Result<Option<EpochInfo>, StoreError>;

    /// Blocks of the epoch that will follow `current`, as decided so far. By default as many as it has itself.
    fn next_length(&self, store: &dyn KvRead, current: Epoch) -> Result<Option<i64>, StoreError> {
        Ok(self.epoch(store, current)?.map(|epoch| epoch.length))
    }
}

/// What other modules' parameters ask of the schedule.
pub trait ScheduleLimits {
    /// Blocks that must fit into one epoch, and the parameter that says so.
    fn longest_span(&self, store: &dyn KvRead) -> Result<(i64, &'static str), StoreError>;
}

/// Fired in step B2 at the first height of an epoch: ended, then started.
pub trait EpochHooks {
    /// The old epoch is over. `ctx.block.epoch` is still its index.
    fn after_epoch_ended(&self, ctx: &mut Context<'_>, ended: &EpochInfo) -> Result<(), ModuleError>;

    /// The new epoch begins. `ctx.block.epoch` is its index. Not preceded by an end for the very first epoch.
    fn after_epoch_started(&self, ctx: &mut Context<'_>, started: &EpochInfo) -> Result<(), ModuleError>;
}
