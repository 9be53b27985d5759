//! The block step B2 (breaker-details 3): the epoch switch.

use holdfast_types::traits::{EpochHooks, EpochInfo};
use holdfast_types::{Context, Epoch, ModuleError};

use crate::{CURRENT, EPOCHS, EpochsError, Keeper, PARAMS, Params, Position, STAGED_PARAMS, events};

/// Epochs kept before the current one: excuses and statistics look back two.
const KEPT: u64 = 3;
/// Most old epochs removed at one switch. One falls due each time; an import may bring more.
const PRUNED_AT_ONCE: usize = 8;

impl Keeper {
    /// Places the block `ctx.block.height` and returns where it lies. At the first height of an epoch: staged
    /// parameters come into force, then `after_epoch_ended` (context: the old epoch) and `after_epoch_started`
    /// (context: the new one) fire. The initial height fires only the start.
    ///
    /// The caller puts the result into the block context of the steps that follow. Fails only when a hook fails,
    /// state is corrupt or the schedule was never started (5).
    pub fn begin_block(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EpochHooks,
    ) -> Result<Position, ModuleError> {
        let height = ctx.block.height;
        let current = self.current(ctx.store)?;
        if height < current.end() {
            // Later epochs are made below in the block they begin with, so only the very first gets here.
            if height == current.start_height {
                started(ctx, hooks, &current)?;
            }
            return Ok(Position::of(&current, height));
        }

        let mut block = ctx.block.clone();
        block.epoch = current.epoch;
        block.poc = false;
        ctx.emit(events::ended(&current, height.saturating_sub(1)));
        hooks.after_epoch_ended(&mut ctx.with_block(&block), &current)?;

        if let Some(staged) = STAGED_PARAMS.get(ctx.store)? {
            PARAMS.set(ctx.store, &staged)?;
            STAGED_PARAMS.remove(ctx.store)?;
        }
        let Params { epoch_length, poc_length } = self.params(ctx.store)?;
        let epoch = current.epoch.checked_add(1).ok_or(EpochsError::NoEpoch("indexes are used up"))?;
        // `height` rather than the old end: a chain that skips heights still has each block in one epoch.
        let next = EpochInfo { epoch, start_height: height, length: epoch_length, poc_length };
        EPOCHS.set(ctx.store, &epoch, &next)?;
        CURRENT.set(ctx.store, &epoch)?;
        prune(ctx, epoch)?;
        started(ctx, hooks, &next)?;
        Ok(Position::of(&next, height))
    }
}

fn started(ctx: &mut Context<'_>, hooks: &dyn EpochHooks, info: &EpochInfo) -> Result<(), ModuleError> {
    let mut block = ctx.block.clone();
    let at = Position::of(info, block.height);
    (block.epoch, block.poc) = (at.epoch, at.poc);
    ctx.emit(events::started(info));
    hooks.after_epoch_started(&mut ctx.with_block(&block), info)
}

fn prune(ctx: &mut Context<'_>, current: Epoch) -> Result<(), ModuleError> {
    let Some(last) = current.checked_sub(KEPT.saturating_add(1)) else { return Ok(()) };
    let old: Vec<Epoch> = EPOCHS
        .after(ctx.store, None)
        .take(PRUNED_AT_ONCE)
        .map(|row| row.map(|(epoch, _)| epoch))
        .collect::<Result<_, _>>()?;
    for epoch in old.iter().filter(|epoch| **epoch <= last) {
        EPOCHS.remove(ctx.store, epoch)?;
    }
    Ok(())
}
