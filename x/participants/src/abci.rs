//! Begin and end of a block (breaker-details 3, steps B3, E4).

use holdfast_types::traits::EligibilityHooks;
use holdfast_types::{Context, ModuleError};

use crate::events;
use crate::keeper::Keeper;
use crate::state::{PARTICIPANTS, REFRESH_CURSOR, UNAVAILABILITY};
use crate::weights::REFRESH_MAX;

/// Rows pruned in one block.
const PRUNE_ROWS_MAX: usize = 1_000;
/// Epochs before the current one whose intervals are kept.
const EPOCHS_KEPT: u64 = 2;

impl Keeper<'_> {
    /// B3: maintenance windows, then the weight sweep.
    pub fn begin_block(
        &self,
        ctx: &mut Context<'_>,
        hooks: &dyn EligibilityHooks,
    ) -> Result<(), ModuleError> {
        self.open_and_close(ctx, hooks)?;
        self.sweep(ctx)
    }

    /// Asks the weight source again for a bounded number of participants: after a change of the price of
    /// weight, or without end when the source is polled. The answers count from the next epoch.
    fn sweep(&self, ctx: &mut Context<'_>) -> Result<(), ModuleError> {
        let cursor = match REFRESH_CURSOR.get(ctx.store)? {
            Some(cursor) => cursor,
            None if self.weights.polled() => None,
            None => return Ok(()),
        };
        // One more than is worked off tells whether the sweep goes on.
        let page: Vec<_> = PARTICIPANTS
            .entries()
            .after(ctx.store, cursor.as_ref())
            .take(REFRESH_MAX.saturating_add(1))
            .collect::<Result<_, _>>()?;
        for (address, participant) in page.iter().take(REFRESH_MAX) {
            if let Err(error) = ctx.branch(|ctx| self.refresh(ctx, address, participant)) {
                let key = ctx.bech32(address);
                events::step_discarded(ctx, "weights", key, error);
            }
        }
        match page.get(REFRESH_MAX.saturating_sub(1)) {
            Some((last, _)) if page.len() > REFRESH_MAX => REFRESH_CURSOR.set(ctx.store, &Some(*last))?,
            _ => REFRESH_CURSOR.remove(ctx.store)?,
        }
        Ok(())
    }

    /// E4: intervals that ended more than two epochs ago, oldest first.
    pub fn end_block(&self, ctx: &mut Context<'_>) -> Result<(), ModuleError> {
        let Some(kept) = ctx.block.epoch.checked_sub(EPOCHS_KEPT) else { return Ok(()) };
        let Some(info) = self.epochs.epoch(ctx.store, kept)? else { return Ok(()) };
        let mut old = Vec::new();
        UNAVAILABILITY.walk_up_to(ctx.store, 0, &info.start_height.saturating_sub(1), |_: i64, key| {
            old.push(key);
            if old.len() < PRUNE_ROWS_MAX {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        })?;
        for key in old {
            UNAVAILABILITY.take(ctx.store, &key)?;
        }
        Ok(())
    }
}
