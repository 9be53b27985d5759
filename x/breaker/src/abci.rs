//! Begin and end of a block (breaker-details 3, steps B4, E3, E4).

use holdfast_store::Order;
use holdfast_types::{Address, Context, Epoch, Height};

use crate::errors::BreakerError;
use crate::events;
use crate::keeper::{DUE_ROWS_MAX, Keeper, PRUNE_ROWS_MAX};
use crate::state::{DUE, ENTRIES, EntryKey, MODEL_TALLIES, OVERRIDES, TRIP_RINGS};
use crate::types::{ForcedTo, State};

impl Keeper<'_> {
    /// B4: entries that are due by now, oldest first, at most [`DUE_ROWS_MAX`]; the rest waits a block. A row
    /// that fails is removed and recorded and never stops its neighbours.
    pub fn begin_block(&self, ctx: &mut Context<'_>) -> Result<(), BreakerError> {
        let due: Vec<_> =
            DUE.up_to(ctx.store, &ctx.block.height).take(DUE_ROWS_MAX).collect::<Result<_, _>>()?;
        for row in due {
            if let Err(error) = ctx.branch(|ctx| self.process_due(ctx, &row)) {
                DUE.remove(ctx.store, &row)?;
                events::discarded(ctx, "due", &format!("{row:?}"), &error.to_string());
            }
        }
        Ok(())
    }

    fn process_due(
        &self,
        ctx: &mut Context<'_>,
        row: &(Height, Epoch, String, Address),
    ) -> Result<(), BreakerError> {
        let (height, epoch, model, participant) = row;
        let key: EntryKey = (*epoch, model.clone(), *participant);
        if *epoch != ctx.block.epoch {
            DUE.remove(ctx.store, row)?;
            return Ok(());
        }
        let entry = ENTRIES.load(ctx.store, &key)?;
        if entry.due() != Some(*height) {
            return Err(BreakerError::Corrupt("due row of an entry that is not due".into()));
        }
        if entry.forced.is_some() {
            OVERRIDES.remove(ctx.store, &(model.clone(), *participant))?;
            return self.end_override(ctx, &key, &entry, "height");
        }
        let cause = if entry.state == State::Excluded { "cooldown" } else { "deadline" };
        self.open_probe(ctx, &key, &entry, cause)
    }

    /// Row 16: forced Healthy becomes Healthy, forced Excluded becomes Probe ready.
    pub(crate) fn end_override(
        &self,
        ctx: &mut Context<'_>,
        key: &EntryKey,
        old: &crate::types::Entry,
        cause: &str,
    ) -> Result<(), BreakerError> {
        let Some(forced) = old.forced else {
            return Err(BreakerError::Corrupt("override without a forced entry".into()));
        };
        match forced.to {
            ForcedTo::Healthy => {
                let mut entry = old.clone();
                entry.forced = None;
                Self::next_generation(&mut entry)?;
                self.save(ctx, key, old, &entry)?;
                events::override_ended(ctx, &key.1, &key.2, entry.generation, forced.to, cause);
                Ok(())
            }
            ForcedTo::Excluded => {
                events::override_ended(ctx, &key.1, &key.2, old.generation, forced.to, cause);
                self.open_probe(ctx, key, old, "override_ended")
            }
        }
    }

    /// E3: the judge, after every outcome of the block.
    pub fn end_block(&self, ctx: &mut Context<'_>) -> Result<(), BreakerError> {
        self.judge(ctx)
    }

    /// E4: rows of past epochs, from the front, at most [`PRUNE_ROWS_MAX`] of each collection.
    pub fn prune(&self, ctx: &mut Context<'_>) -> Result<(), BreakerError> {
        let epoch = ctx.block.epoch;
        let old: Vec<_> = ENTRIES
            .iter(ctx.store, Order::Ascending)
            .take(PRUNE_ROWS_MAX)
            .take_while(|row| row.as_ref().map_or(true, |(key, _)| key.0 < epoch))
            .collect::<Result<_, _>>()?;
        for (key, entry) in old {
            ENTRIES.remove(ctx.store, &key)?;
            if let Some(due) = entry.due() {
                DUE.remove(ctx.store, &(due, key.0, key.1, key.2))?;
            }
        }
        let tallies: Vec<_> = MODEL_TALLIES
            .iter(ctx.store, Order::Ascending)
            .take(PRUNE_ROWS_MAX)
            .map(|row| row.map(|(key, _)| key))
            .take_while(|key| key.as_ref().map_or(true, |key| key.0 < epoch))
            .collect::<Result<_, _>>()?;
        for key in &tallies {
            MODEL_TALLIES.remove(ctx.store, key)?;
        }
        let rings: Vec<_> = TRIP_RINGS
            .iter(ctx.store, Order::Ascending)
            .take(PRUNE_ROWS_MAX)
            .map(|row| row.map(|(key, _)| key))
            .take_while(|key| key.as_ref().map_or(true, |key| key.0 < epoch))
            .collect::<Result<_, _>>()?;
        for key in &rings {
            TRIP_RINGS.remove(ctx.store, key)?;
        }
        Ok(())
    }
}
