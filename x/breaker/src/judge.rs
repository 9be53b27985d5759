//! The judge: trip rules, cap and freeze, once per block (breaker-details 2.3).

use holdfast_store::Order;
use holdfast_types::{Address, Context};

use crate::calc;
use crate::errors::BreakerError;
use crate::events::{self, Evidence, Refusal};
use crate::keeper::Keeper;
use crate::state::{ENTRIES, EntryKey, MODEL_TALLIES, TALLIES, TRIP_RINGS};
use crate::types::{Entry, ForcedTo, RingBucket, State, Tally, Trip, TripRing};

/// An entry that met a rule in this block.
struct Tripped {
    participant: Address,
    entry: Entry,
    evidence: Evidence,
    weight: u64,
}

impl Keeper<'_> {
    /// Judges every entry with an outcome in this block, model by model. A model whose state is corrupt is
    /// skipped and recorded; its neighbours are judged.
    pub(crate) fn judge(&self, ctx: &mut Context<'_>) -> Result<(), BreakerError> {
        // Bounded by the block's messages and expiries; drained so that nothing is left for the next block.
        let rows: Vec<_> = TALLIES.iter(ctx.store, Order::Ascending).collect::<Result<_, _>>()?;
        for (key, _) in &rows {
            TALLIES.remove(ctx.store, key)?;
        }
        for rows in rows.chunk_by(|((a, _), _), ((b, _), _)| a == b) {
            let Some(((model, _), _)) = rows.first() else { continue };
            if let Err(error) = ctx.branch(|ctx| self.judge_model(ctx, model, rows)) {
                events::discarded(ctx, "judge", model, &error.to_string());
            }
        }
        Ok(())
    }

    fn judge_model(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        rows: &[((String, Address), Tally)],
    ) -> Result<(), BreakerError> {
        let epoch = ctx.block.epoch;
        let mut tripped = self.store_windows(ctx, model, rows)?;
        let tally_key = (epoch, model.to_owned());
        let eligible_weight = MODEL_TALLIES.get(ctx.store, &tally_key)?.unwrap_or_default().eligible_weight;
        let frozen = mark_trips(ctx, model, &mut tripped, eligible_weight)?;

        let counts = |t: &Tripped| (t.evidence.ok, t.evidence.missed);
        tripped.sort_by(|a, b| calc::worse(counts(a), counts(b)).then(a.participant.cmp(&b.participant)));
        for item in tripped {
            let key: EntryKey = (epoch, model.to_owned(), item.participant);
            let out_weight = MODEL_TALLIES.get(ctx.store, &tally_key)?.unwrap_or_default().out_weight;
            let params = &ctx.block.params;
            let after = out_weight.saturating_add(item.weight.into());
            let cap = params.health_cb_max_excluded_weight_pct;
            let refusal = if item.entry.forced.is_some_and(|f| f.to == ForcedTo::Healthy) {
                Some(("forced", 0))
            } else if item.weight == 0 {
                None
            } else if frozen {
                Some(("freeze", params.health_cb_freeze_pct))
            } else {
                calc::exceeds_pct(after, eligible_weight, cap).then_some(("cap", cap))
            };
            match refusal {
                Some((reason, limit_pct)) => {
                    let refusal =
                        Refusal { reason, weight: item.weight, out_weight, eligible_weight, limit_pct };
                    refuse(ctx, &key, item, &refusal)?;
                }
                None => {
                    let Tripped { entry: old, evidence, .. } = item;
                    let mut entry = old.clone();
                    entry.backoff_level =
                        calc::level_at_trip(params, ctx.block.height, old.restored_at, old.backoff_level);
                    self.exclude(ctx, &key, &old, entry, &evidence)?;
                }
            }
        }
        Ok(())
    }

    /// Step (a): windows and streaks of all touched Healthy entries; returns those that meet a rule.
    fn store_windows(
        &self,
        ctx: &mut Context<'_>,
        model: &str,
        rows: &[((String, Address), Tally)],
    ) -> Result<Vec<Tripped>, BreakerError> {
        let (height, params) = (ctx.block.height, &ctx.block.params);
        let width = calc::width(params.health_cb_window_blocks);
        let mut tripped = Vec::new();
        for ((_, participant), tally) in rows {
            let key: EntryKey = (ctx.block.epoch, model.to_owned(), *participant);
            let mut entry = ENTRIES.get(ctx.store, &key)?.unwrap_or_default();
            if entry.state != State::Healthy || entry.generation != tally.generation {
                continue;
            }
            entry.window = calc::record(&entry.window, height, width, tally);
            entry.consecutive_misses = calc::streak(entry.consecutive_misses, tally);
            // State and due row stay, so this write needs no bookkeeping.
            ENTRIES.set(ctx.store, &key, &entry)?;
            let (ok, missed) = calc::totals(&entry.window, height);
            if let Some(rule) = calc::met_rule(params, ok, missed, entry.consecutive_misses) {
                let evidence = Evidence { rule, ok, missed, consecutive_misses: entry.consecutive_misses };
                let standing = self.group.standing(ctx.store, ctx.block, model, participant)?;
                let weight = standing.eligibility().weight;
                tripped.push(Tripped { participant: *participant, entry, evidence, weight });
            }
        }
        Ok(tripped)
    }
}

/// Row 9: only the report is new, at most one per initial cooldown.
fn refuse(
    ctx: &mut Context<'_>,
    key: &EntryKey,
    item: Tripped,
    refusal: &Refusal,
) -> Result<(), BreakerError> {
    let Tripped { participant, mut entry, evidence, .. } = item;
    let height = ctx.block.height;
    let quiet = ctx.block.params.health_cb_initial_cooldown_blocks;
    if entry.refused_at != 0 && height.saturating_sub(entry.refused_at) < quiet {
        return Ok(());
    }
    entry.refused_at = height;
    ENTRIES.set(ctx.store, key, &entry)?;
    events::refused(ctx, &key.1, &participant, entry.generation, &evidence, refusal);
    Ok(())
}

/// Steps (b) and (c): marks every trip, in the ring too while the freeze is on; says whether the model is frozen.
fn mark_trips(
    ctx: &mut Context<'_>,
    model: &str,
    tripped: &mut [Tripped],
    eligible_weight: u128,
) -> Result<bool, BreakerError> {
    let (height, params) = (ctx.block.height, &ctx.block.params);
    let ring_key = (ctx.block.epoch, model.to_owned());
    let freeze_pct = params.health_cb_freeze_pct;
    let width = calc::width(params.health_cb_window_blocks);
    let stored = TRIP_RINGS.get(ctx.store, &ring_key)?;
    let was_frozen = stored.as_ref().is_some_and(|ring| ring.frozen);
    if freeze_pct == 0 || width == 0 {
        if stored.is_some() {
            TRIP_RINGS.remove(ctx.store, &ring_key)?;
        }
        for item in tripped {
            item.entry.trip = Some(Trip { block: height, weight: item.weight });
            ENTRIES.set(ctx.store, &(ring_key.0, ring_key.1.clone(), item.participant), &item.entry)?;
        }
        if was_frozen {
            events::frozen(ctx, model, false, 0, eligible_weight);
        }
        return Ok(false);
    }
    let mut ring = match stored {
        Some(ring) if ring.width == width => ring,
        _ => TripRing { since_block: height, width, frozen: was_frozen, buckets: Vec::new() },
    };
    ring.buckets.retain(|b| calc::is_live(b.index, height, width));
    for item in tripped {
        if let Some(mark) = item.entry.trip.filter(|mark| mark.block >= ring.since_block) {
            let index = calc::bucket_index(mark.block, width);
            // A bucket that is gone has aged out together with its marks.
            if let Some(bucket) = ring.buckets.iter_mut().find(|b| b.index == index) {
                let less = bucket.weight.checked_sub(mark.weight.into());
                bucket.weight = less.ok_or_else(|| BreakerError::Corrupt("trip ring below zero".into()))?;
            }
        }
        let index = calc::bucket_index(height, width);
        match ring.buckets.last_mut().filter(|b| b.index == index) {
            Some(bucket) => bucket.weight = bucket.weight.saturating_add(item.weight.into()),
            None => ring.buckets.push(RingBucket { index, weight: item.weight.into() }),
        }
        item.entry.trip = Some(Trip { block: height, weight: item.weight });
        ENTRIES.set(ctx.store, &(ring_key.0, ring_key.1.clone(), item.participant), &item.entry)?;
    }
    ring.buckets.retain(|b| b.weight > 0);
    let tripped_weight = ring.buckets.iter().fold(0_u128, |sum, b| sum.saturating_add(b.weight));
    ring.frozen = calc::exceeds_pct(tripped_weight, eligible_weight, freeze_pct);
    TRIP_RINGS.set(ctx.store, &ring_key, &ring)?;
    if ring.frozen != was_frozen {
        events::frozen(ctx, model, ring.frozen, tripped_weight, eligible_weight);
    }
    Ok(ring.frozen)
}
