//! Reads of the schedule, and its start.

use holdfast_store::{KvRead, KvWrite, StoreError};
use holdfast_types::traits::{EpochInfo, EpochsRead};
use holdfast_types::{Context, Epoch, Height, ModuleError};

use crate::{CURRENT, EPOCHS, EpochsError, PARAMS, Params, STAGED_PARAMS};

/// The epochs keeper. Holds no state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeper;

/// Where a height lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Epoch.
    pub epoch: Epoch,
    /// Whether the height lies in its PoC phase.
    pub poc: bool,
}

impl Position {
    /// Place of `height` in the epoch `info`.
    pub fn of(info: &EpochInfo, height: Height) -> Self {
        Self { epoch: info.epoch, poc: info.is_poc(height) }
    }
}

impl Keeper {
    /// Parameters in force; the defaults before genesis.
    pub fn params(&self, store: &dyn KvRead) -> Result<Params, StoreError> {
        Ok(PARAMS.get(store)?.unwrap_or_default())
    }

    /// Checks `params` and stages them for the next epoch. Fails with 3.
    pub fn stage_params(&self, store: &mut dyn KvWrite, params: &Params) -> Result<(), ModuleError> {
        params.validate().map_err(EpochsError::InvalidParams)?;
        Ok(STAGED_PARAMS.set(store, params)?)
    }

    /// Schedule of the current epoch. Fails with 5 before [`Keeper::start`].
    pub fn current(&self, store: &dyn KvRead) -> Result<EpochInfo, ModuleError> {
        let epoch = CURRENT.get(store)?.ok_or(EpochsError::NoEpoch("start the schedule at genesis"))?;
        Ok(EPOCHS.load(store, &epoch)?)
    }

    /// Creates epoch 0 at `initial_height`, unless genesis brought epochs along. Fires nothing: the first
    /// block's [`Keeper::begin_block`] does. Fails with 4 when the current epoch of genesis begins later.
    pub fn start(&self, ctx: &mut Context<'_>, initial_height: Height) -> Result<(), ModuleError> {
        if CURRENT.get(ctx.store)?.is_some() {
            if self.current(ctx.store)?.start_height > initial_height {
                let rule =
                    "the last one must not begin after the initial height; leave epochs out to begin anew";
                return Err(EpochsError::genesis("epochs", rule).into());
            }
            return Ok(());
        }
        let Params { epoch_length, poc_length } = self.params(ctx.store)?;
        let info = EpochInfo { epoch: 0, start_height: initial_height, length: epoch_length, poc_length };
        EPOCHS.set(ctx.store, &0, &info)?;
        Ok(CURRENT.set(ctx.store, &0)?)
    }

    /// Epoch and phase of `height`, the height the state stands at. For queries: the current epoch, without a
    /// switch that the next block would make. Fails with 5 before [`Keeper::start`].
    pub fn position(&self, store: &dyn KvRead, height: Height) -> Result<Position, ModuleError> {
        Ok(Position::of(&self.current(store)?, height))
    }
}

impl EpochsRead for Keeper {
    fn epoch(&self, store: &dyn KvRead, epoch: Epoch) -> Result<Option<EpochInfo>, StoreError> {
        EPOCHS.get(store, &epoch)
    }

    fn next_length(&self, store: &dyn KvRead, _current: Epoch) -> Result<Option<i64>, StoreError> {
        let staged = STAGED_PARAMS.get(store)?;
        Ok(Some(staged.map_or_else(|| self.params(store), Ok)?.epoch_length))
    }
}
