//! Groups of escrows: several draws from one candidate table (escrow-details 4).

use holdfast_store::KvRead;
use holdfast_types::traits::{
    BreakerRead, DrawnGroup, EscrowCounts, EscrowHooks, GroupDraw, GroupRequest, ParticipantsRead,
};
use holdfast_types::{Address, BlockContext, Context, ModuleError, QueryKind, sdk};

use crate::draw::{CandidateTable, DrawStream};
use crate::keeper::count;
use crate::state::CHANGED;
use crate::{Keeper, build_table};

impl CandidateTable {
    /// Owners of `slots` slots, each drawn by weight from the healthy rows; a row that holds `cap` slots is left out of
    /// the further draws. `None` when the healthy rows cannot fill the slots. O(slots · rows).
    ///
    /// The numbers are those of [`DrawStream`] over `seed` and the table's digest, one for each slot: the first row, by
    /// ascending address, whose running sum of weights passes the number.
    pub fn draw_group(&self, seed: [u8; 32], slots: u8, cap: u8) -> Option<Vec<Address>> {
        let mut rows: Vec<(Address, u64, u8)> =
            self.rows().iter().filter(|row| row.class == 0).map(|row| (row.address, row.weight, 0)).collect();
        let room = u64::try_from(rows.len()).ok()?.checked_mul(u64::from(cap))?;
        if room < u64::from(slots) {
            return None;
        }
        // Fewer than 2^32 rows of less than 2^64 each.
        let mut total: u128 = rows.iter().map(|(_, weight, _)| u128::from(*weight)).sum();
        let mut stream = DrawStream::new(seed, self.digest());
        let mut drawn = Vec::with_capacity(usize::from(slots));
        while drawn.len() < usize::from(slots) {
            let mut number = stream.below(total)?;
            let at =
                rows.iter().position(|(_, weight, _)| match number.checked_sub(u128::from(*weight)) {
                    Some(rest) => {
                        number = rest;
                        false
                    }
                    None => true,
                })?;
            let (address, weight, held) = rows.get_mut(at)?;
            drawn.push(*address);
            *held = held.checked_add(1)?;
            if *held >= cap {
                total = total.checked_sub(u128::from(*weight))?;
                rows.remove(at);
            }
        }
        Some(drawn)
    }
}

/// Draws groups from the members of x/participants that x/breaker finds healthy.
#[derive(Clone, Copy)]
pub struct Groups<'a> {
    /// Members of the model.
    pub participants: &'a dyn ParticipantsRead,
    /// Their health.
    pub breaker: &'a dyn BreakerRead,
}

impl GroupDraw for Groups<'_> {
    fn draw_group(
        &self,
        store: &dyn KvRead,
        block: &BlockContext,
        request: &GroupRequest<'_>,
    ) -> Result<DrawnGroup, ModuleError> {
        let table = match build_table(store, block, self.participants, self.breaker, request.model) {
            Ok(table) => table,
            Err(error) if error.kind == QueryKind::NotFound => return Ok(DrawnGroup::ModelUnknown),
            Err(error) => return Err(ModuleError::sdk(sdk::INTERNAL, error.message)),
        };
        let drawn = table.draw_group(request.seed, request.slots, request.cap);
        Ok(drawn.map_or_else(
            || DrawnGroup::TooFew { owners: table.rows().iter().filter(|row| row.class == 0).count() },
            DrawnGroup::Slots,
        ))
    }
}

impl EscrowHooks for Keeper {
    /// Adds the counts to the statistics of the epoch the escrow was created in, while those are kept. Counts of the
    /// current epoch are judged by the slow breaker of this block, older ones never.
    fn after_escrow_settled(&self, ctx: &mut Context<'_>, counts: &EscrowCounts) -> Result<(), ModuleError> {
        // Destructured so that a new field forces a decision here.
        let EscrowCounts { model: _, participant, stamp, assigned, ok, missed, released, earned } = counts;
        if *assigned == 0 {
            return Ok(());
        }
        count(ctx, stamp.epoch, participant, |stats| {
            stats.assigned = stats.assigned.checked_add(*assigned)?;
            stats.inference_count = stats.inference_count.checked_add(*ok)?;
            stats.missed_requests = stats.missed_requests.checked_add(*missed)?;
            stats.released = stats.released.checked_add(*released)?;
            stats.earned = stats.earned.checked_add(*earned)?;
            Some(())
        })?;
        let judged = *ok > 0 || *missed > 0;
        if judged && stamp.epoch == ctx.block.epoch {
            CHANGED.set(ctx.store, participant, &())?;
        }
        Ok(())
    }
}
