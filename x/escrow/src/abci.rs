//! Block steps: windows that are over, and pruning. Both take a bad row out, record it and go on.
//!
//! The queues are read from the front and what was dealt with leaves them, so a backlog is gone on with in the next block.

use holdfast_types::traits::EpochsRead;
use holdfast_types::{Context, ModuleError};

use crate::keeper::due;
use crate::state::{BY_DUE, BY_END, BY_OWNER, ESCROWS, index_row};
use crate::{Deps, Keeper, events, keys};

/// Escrows paid in one block; the rest waits in the queue. One pays up to 130 accounts.
pub const CLOSE_MAX: usize = 50;
/// Escrows pruned in one block.
pub const PRUNE_MAX: usize = 50;

/// Pays disputes whose window is over, and pays back what nobody settled or disputed; oldest first, at most
/// [`CLOSE_MAX`]. Before the slow breaker and the breaker judge, for it hands counts to both.
///
/// Each row works on its own branch. If it fails (say, a listener refuses), it is recorded and paid without listeners; if
/// even that fails, it leaves the queue and its coins stay with the module account until somebody settles it.
pub fn close(ctx: &mut Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    for (at, id) in due(&*ctx.store, BY_DUE, ctx.block.height, CLOSE_MAX)? {
        let Err(error) = ctx.branch(|ctx| Keeper.close(ctx, deps, id, true)) else { continue };
        events::step_discarded(ctx, "close", id, &error);
        if ctx.branch(|ctx| Keeper.close(ctx, deps, id, false)).is_err() {
            ctx.store.remove(&index_row(keys::ESCROWS_BY_DUE, at, id))?;
        }
    }
    Ok(())
}

/// Removes escrows that ended two epochs ago or earlier, oldest first, at most [`PRUNE_MAX`].
pub fn prune(ctx: &mut Context<'_>, epochs: &dyn EpochsRead) -> Result<(), ModuleError> {
    let Some(previous) = ctx.block.epoch.checked_sub(1) else { return Ok(()) };
    let Some(previous) = epochs.epoch(&*ctx.store, previous)? else { return Ok(()) };
    let last = previous.start_height.saturating_sub(1);
    for (at, id) in due(&*ctx.store, BY_END, last, PRUNE_MAX)? {
        match ESCROWS.take(ctx.store, &id) {
            Ok(Some(escrow)) => {
                for owner in escrow.config.owners().into_keys() {
                    BY_OWNER.remove(ctx.store, &(owner, id))?;
                }
            }
            Ok(None) => {}
            Err(error) => events::step_discarded(ctx, "prune", id, &error.into()),
        }
        // Gone already, unless the entry could not be read or was missing.
        ctx.store.remove(&index_row(keys::ESCROWS_BY_END, at, id))?;
    }
    Ok(())
}
