//! Block steps (breaker-details 3). [`begin_block`] halts on error; every other step takes a bad row out,
//! records it and goes on.

use std::ops::ControlFlow;

use holdfast_store::{KvRead, Order, StoreError};
use holdfast_types::traits::{EpochsRead, Excuse};
use holdfast_types::{Address, Context, Height, ModuleError, ValidationParams, sdk};

use crate::keeper::Ending;
use crate::sprt::{self, Verdict};
use crate::state::{
    BLOCK_PRICE, BY_END, BY_TIMEOUT, CHANGED, INFERENCES, PARAMS, SPRT, SPRT_INCREMENTS, STATS, index_row,
};
use crate::types::{SprtIncrements, Status};
use crate::{Deps, Keeper, events, keys};

/// Most timeouts worked off in one block; the rest waits in the queue.
pub const EXPIRE_MAX: usize = 5_000;
/// Most rows of each kind pruned in one block.
pub const PRUNE_MAX: usize = 1_000;

/// B1: the slow breaker's logarithms follow `ctx.block.params`, and the block's token price is copied.
pub fn begin_block(ctx: &mut Context<'_>) -> Result<(), ModuleError> {
    let increments = increments(&*ctx.store, &ctx.block.params)?;
    if SPRT_INCREMENTS.get(&*ctx.store)? != Some(increments) {
        SPRT_INCREMENTS.set(ctx.store, &increments)?;
    }
    let price = PARAMS.load(&*ctx.store)?.token_price;
    Ok(BLOCK_PRICE.set(ctx.store, &(), &price)?)
}

/// Increments for `params`: cached, or computed when the cache is of others.
pub(crate) fn increments(
    store: &dyn KvRead,
    params: &ValidationParams,
) -> Result<SprtIncrements, ModuleError> {
    let (p0, p1) = (params.downtime_good_percentage, params.downtime_bad_percentage);
    if let Some(cached) = SPRT_INCREMENTS.get(store)?.filter(|c| c.p0 == p0 && c.p1 == p1) {
        return Ok(cached);
    }
    let (up, down) = sprt::increments(p0, p1)
        .ok_or_else(|| ModuleError::sdk(sdk::LOGIC, "downtime percentages have no logarithms"))?;
    Ok(SprtIncrements { p0, p1, up, down })
}

/// E1: ends what is due, oldest first, at most [`EXPIRE_MAX`]: a miss, or with an excuse a release; refunded
/// always. A waiting finish whose start never came is removed.
///
/// Each row works on its own branch. If it fails (say, a listener refuses), it is recorded and refunded
/// without statistics of blame or listeners; if even that fails, its timeout is removed and what was paid in
/// stays with the module account until someone repairs the state.
pub fn expire(ctx: &mut Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    for (at, id) in due(&*ctx.store, BY_TIMEOUT, ctx.block.height, EXPIRE_MAX)? {
        let Err(error) = ctx.branch(|ctx| expire_one(ctx, deps, &id)) else { continue };
        events::step_discarded(ctx, "expire", &id, &error);
        let refund = |ctx: &mut Context<'_>| {
            let record = INFERENCES.load(&*ctx.store, &id)?;
            Keeper.end(ctx, deps, &id, record, Ending::Released(Status::Released, "discarded"), false)
        };
        if ctx.branch(refund).is_err() {
            ctx.store.remove(&index_row(keys::INFERENCES_BY_TIMEOUT, at, &id))?;
        }
    }
    Ok(())
}

/// At most `max` rows of index `n` up to height `last`, oldest first.
fn due(store: &dyn KvRead, n: usize, last: Height, max: usize) -> Result<Vec<(Height, String)>, StoreError> {
    let mut rows = Vec::new();
    INFERENCES.walk_up_to(store, n, &last, |at, id| {
        rows.push((at, id));
        if rows.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(rows)
}

fn expire_one(ctx: &mut Context<'_>, deps: &Deps<'_>, id: &String) -> Result<(), ModuleError> {
    let record = INFERENCES.load(&*ctx.store, id)?;
    let start = match (record.status, &record.start) {
        (Status::FinishedFirst, None) => {
            INFERENCES.take(ctx.store, id)?;
            return Ok(());
        }
        (Status::Started, Some(start)) => start,
        _ => return Err(ModuleError::sdk(sdk::LOGIC, "a timeout names an inference that is not open")),
    };
    let (store, executor) = (&*ctx.store, &start.assigned_to);
    // A participant the registry no longer knows cannot be asked for an excuse, and is not blamed.
    let excuse = if deps.participants.has_participant(store, executor)? {
        deps.participants.excuse(store, ctx.block, &start.model, executor, start.height, record.expires_at)?
    } else {
        Some(Excuse::Left)
    };
    let ending = match excuse {
        Some(excuse) => Ending::Released(Status::Released, excuse.as_str()),
        None => Ending::Missed(Status::Expired, "expired"),
    };
    Keeper.end(ctx, deps, id, record, ending, true)
}

/// E2: the slow breaker, once for each participant whose counts of the current epoch changed in this block
/// (so at most one per outcome), by ascending address.
pub fn sprt_step(ctx: &mut Context<'_>, deps: &Deps<'_>) -> Result<(), ModuleError> {
    let changed: Vec<Address> = CHANGED
        .iter(&*ctx.store, Order::Ascending)
        .map(|row| row.map(|(a, ())| a))
        .collect::<Result<_, _>>()?;
    for participant in changed {
        CHANGED.remove(ctx.store, &participant)?;
        if let Err(error) = ctx.branch(|ctx| sprt_one(ctx, deps, &participant)) {
            let row = ctx.bech32(&participant);
            events::step_discarded(ctx, "sprt", &row, &error);
        }
    }
    Ok(())
}

fn sprt_one(ctx: &mut Context<'_>, deps: &Deps<'_>, participant: &Address) -> Result<(), ModuleError> {
    let corrupt = || ModuleError::sdk(sdk::LOGIC, "counts of the slow breaker run backwards or overflow");
    let params = &ctx.block.params;
    let key = (ctx.block.epoch, *participant);
    let stats = STATS.get(&*ctx.store, &key)?.unwrap_or_default();
    let mut state = SPRT.get(&*ctx.store, &key)?.unwrap_or_default();
    let ok = stats.inference_count.checked_sub(state.absorbed_ok).ok_or_else(corrupt)?;
    let missed = stats.missed_requests.checked_sub(state.absorbed_missed).ok_or_else(corrupt)?;
    if params.downtime_sprt_enabled {
        let by = increments(&*ctx.store, params)?;
        state.llr = sprt::advance(state.llr, (by.up, by.down), ok, missed).ok_or_else(corrupt)?;
    }
    state.absorbed_ok = stats.inference_count;
    state.absorbed_missed = stats.missed_requests;
    SPRT.set(ctx.store, &key, &state)?;
    let failed = params.downtime_sprt_enabled
        && sprt::verdict(state.llr, params.downtime_h_threshold) == Verdict::Fail;
    if failed && is_active(ctx, deps, participant)? {
        events::deactivated(ctx, participant, &state);
        deps.deactivation.deactivate(ctx, participant)?;
    }
    Ok(())
}

/// Whether any group still counts on `participant`. Misses of work given before a verdict keep arriving
/// after it; they must not deactivate again. At most `max_models` reads.
fn is_active(ctx: &Context<'_>, deps: &Deps<'_>, participant: &Address) -> Result<bool, StoreError> {
    for model in deps.participants.models(&*ctx.store)? {
        let standing = deps.participants.standing(&*ctx.store, ctx.block, &model, participant)?;
        if standing.member && standing.active {
            return Ok(true);
        }
    }
    Ok(false)
}

/// E4: removes inferences that ended two epochs ago or earlier, and statistics and ratios older than two
/// epochs, at most [`PRUNE_MAX`] each, oldest first.
pub fn prune(ctx: &mut Context<'_>, epochs: &dyn EpochsRead) -> Result<(), ModuleError> {
    BLOCK_PRICE.remove(ctx.store, &())?;
    let epoch = ctx.block.epoch;
    if let Some(previous) = epoch.checked_sub(1)
        && let Some(previous) = epochs.epoch(&*ctx.store, previous)?
    {
        let last = previous.start_height.saturating_sub(1);
        for (at, id) in due(&*ctx.store, BY_END, last, PRUNE_MAX)? {
            if let Err(error) = INFERENCES.take(ctx.store, &id) {
                events::step_discarded(ctx, "prune", &id, &error.into());
            }
            // Gone already, unless the entry could not be read or was missing.
            ctx.store.remove(&index_row(keys::INFERENCES_BY_END, at, &id))?;
        }
    }
    if let Some(oldest_kept) = epoch.checked_sub(2) {
        let ranges = [
            (STATS.prefix_key(&()), STATS.prefix_key(&oldest_kept)),
            (SPRT.prefix_key(&()), SPRT.prefix_key(&oldest_kept)),
        ];
        for (from, to) in ranges {
            let rows = ctx.store.scan(&from, Some(&to), Order::Ascending).take(PRUNE_MAX);
            let old: Vec<Vec<u8>> = rows.map(|row| row.map(|(key, _)| key)).collect::<Result<_, _>>()?;
            for key in old {
                ctx.store.remove(&key)?;
            }
        }
    }
    Ok(())
}
