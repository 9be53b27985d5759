//! Genesis: entries, overrides and trip rings cross; the due queue and the sums are rebuilt.

use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::{Address, Coin, Context, Hrp, ModuleError, sdk};

use crate::calc::LEVEL_MAX;
use crate::keeper::{Keeper, OVERRIDES_MAX};
use crate::query_server::{entry_to_pb, forced_from_pb, row_to_pb, to_pb};
use crate::state::{DUE, ENTRIES, EntryKey, OVERRIDES, TRIP_RINGS, set_model_tally};
use crate::types::{Bucket, Entry, Forced, ForcedTo, ProbeClaim, RingBucket, State, Trip, TripRing, Window};

/// A genesis state in domain types.
#[derive(Debug, Clone, Default)]
pub(crate) struct Genesis {
    entries: Vec<(EntryKey, Entry)>,
    overrides: Vec<((String, Address), Forced)>,
    rings: Vec<((u64, String), TripRing)>,
}

fn bad(field: &str, reason: impl std::fmt::Display) -> ModuleError {
    ModuleError::sdk(sdk::INVALID_REQUEST, format!("breaker genesis: {field}: {reason}"))
}

fn ascending<K: Ord>(field: &str, keys: impl Iterator<Item = K>) -> Result<(), ModuleError> {
    let keys: Vec<K> = keys.collect();
    if keys.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err(bad(field, "rows must be ascending and distinct"))
    }
}

fn named(field: &str, model: &str) -> Result<(), ModuleError> {
    match model.len() {
        1..=64 => Ok(()),
        _ => Err(bad(field, "must not be empty, and have at most 64 bytes")),
    }
}

fn forced_state(to: ForcedTo) -> State {
    match to {
        ForcedTo::Healthy => State::Healthy,
        ForcedTo::Excluded => State::Excluded,
    }
}

fn entry_from_pb(entry: &pb::CircuitBreakerEntry) -> Result<Entry, ModuleError> {
    let state = match pb::State::try_from(entry.state) {
        Ok(pb::State::Healthy) => State::Healthy,
        Ok(pb::State::Excluded) => State::Excluded,
        Ok(pb::State::Probe) => State::Probe,
        Err(_) => return Err(bad("entries.entry.state", "must be HEALTHY, EXCLUDED or PROBE")),
    };
    let window = entry.window.clone().unwrap_or_default();
    let bucket = |b: &pb::OutcomeBucket| Bucket { index: b.index, ok: b.ok, missed: b.missed };
    ascending("entries.entry.window.buckets", window.buckets.iter().map(|b| b.index))?;
    if window.buckets.len() > 10 || window.buckets.iter().any(|b| b.ok == 0 && b.missed == 0) {
        return Err(bad("entries.entry.window.buckets", "at most ten, none empty"));
    }
    if state != State::Probe && entry.probe.is_some() {
        return Err(bad("entries.entry.probe", "only a probe has a claim"));
    }
    for (field, height) in [
        ("excluded_at", entry.excluded_at),
        ("cooldown_blocks", entry.cooldown_blocks),
        ("ready_since", entry.ready_since),
        ("restored_at", entry.restored_at),
        ("refused_at", entry.refused_at),
        ("window.touched_at", window.touched_at),
        ("probe.deadline_block", entry.probe.as_ref().map_or(0, |p| p.deadline_block)),
        ("trip.block", entry.trip.as_ref().map_or(0, |t| t.block)),
        ("forced.until_block", entry.forced.as_ref().map_or(0, |f| f.until_block)),
    ] {
        if height < 0 {
            return Err(bad(&format!("entries.entry.{field}"), "must not be negative"));
        }
    }
    if entry.backoff_level > LEVEL_MAX {
        return Err(bad("entries.entry.backoff_level", format!("at most {LEVEL_MAX}")));
    }
    let forced = entry.forced.as_ref().map(|f| forced_from_pb(f.to, f.until_block)).transpose();
    let forced = forced.map_err(|e| bad("entries.entry.forced.to", e))?;
    if forced.is_some_and(|f| state != forced_state(f.to)) {
        return Err(bad("entries.entry.forced.to", "must agree with entries.entry.state"));
    }
    Ok(Entry {
        state,
        generation: entry.generation,
        excluded_at: entry.excluded_at,
        cooldown_blocks: entry.cooldown_blocks,
        ready_since: entry.ready_since,
        restored_at: entry.restored_at,
        refused_at: entry.refused_at,
        probe_attempts: entry.probe_attempts,
        backoff_level: entry.backoff_level,
        consecutive_misses: entry.consecutive_misses,
        probe: entry
            .probe
            .as_ref()
            .map(|p| ProbeClaim { inference_id: p.inference_id.clone(), deadline_block: p.deadline_block }),
        window: Window {
            width: window.width,
            touched_at: window.touched_at,
            buckets: window.buckets.iter().map(bucket).collect(),
        },
        trip: entry.trip.as_ref().map(|t| Trip { block: t.block, weight: t.weight }),
        forced,
    })
}

impl Genesis {
    /// Parses and checks everything that needs no other module.
    pub(crate) fn from_pb(genesis: &pb::GenesisState, hrp: &Hrp) -> Result<Self, ModuleError> {
        let address = |field, text: &str| Address::parse(text, hrp).map_err(|e| bad(field, e));
        let mut out = Self::default();
        for row in &genesis.entries {
            let participant = address("entries.participant", &row.participant)?;
            named("entries.model", &row.model)?;
            let entry = row.entry.as_ref().ok_or_else(|| bad("entries.entry", "is missing"))?;
            out.entries.push(((row.epoch, row.model.clone(), participant), entry_from_pb(entry)?));
        }
        for row in &genesis.overrides {
            let forced = forced_from_pb(row.to, row.until_block).map_err(|e| bad("overrides.to", e))?;
            named("overrides.model", &row.model)?;
            if row.until_block < 0 {
                return Err(bad("overrides.until_block", "must not be negative"));
            }
            out.overrides
                .push(((row.model.clone(), address("overrides.participant", &row.participant)?), forced));
        }
        for ring in &genesis.rings {
            let mut buckets = Vec::new();
            for b in &ring.buckets {
                let weight = Coin::parse_amount(&b.weight).map_err(|e| bad("rings.buckets.weight", e))?;
                buckets.push(RingBucket { index: b.index, weight });
            }
            named("rings.model", &ring.model)?;
            if ring.since_block < 0 {
                return Err(bad("rings.since_block", "must not be negative"));
            }
            if ring.width == 0 {
                return Err(bad("rings.width", "must be above 0"));
            }
            if buckets.len() > 10 || buckets.iter().any(|b| b.weight == 0) {
                return Err(bad("rings.buckets", "at most ten, none empty"));
            }
            ascending("rings.buckets", buckets.iter().map(|b| b.index))?;
            let ring_state =
                TripRing { since_block: ring.since_block, width: ring.width, frozen: ring.frozen, buckets };
            out.rings.push(((ring.epoch, ring.model.clone()), ring_state));
        }
        ascending("entries", out.entries.iter().map(|(k, _)| k))?;
        ascending("overrides", out.overrides.iter().map(|(k, _)| k))?;
        ascending("rings", out.rings.iter().map(|(k, _)| k))?;
        if out.overrides.len() > OVERRIDES_MAX {
            return Err(bad("overrides", format!("at most {OVERRIDES_MAX}")));
        }
        Ok(out)
    }

    /// Writes the state; `ctx.block.epoch` is the epoch the state belongs to.
    pub(crate) fn init(self, ctx: &mut Context<'_>, keeper: &Keeper<'_>) -> Result<(), ModuleError> {
        for (key, entry) in self.entries {
            if let Some(due) = entry.due() {
                DUE.insert(ctx.store, &(due, key.0, key.1.clone(), key.2))?;
            }
            ENTRIES.set(ctx.store, &key, &entry)?;
        }
        for (key, forced) in &self.overrides {
            OVERRIDES.set(ctx.store, key, forced)?;
        }
        for (key, ring) in &self.rings {
            TRIP_RINGS.set(ctx.store, key, ring)?;
        }
        for model in keeper.group.models(ctx.store)? {
            let tally = keeper.scan_tally(ctx.store, ctx.block, &model)?;
            set_model_tally(ctx.store, ctx.block.epoch, &model, &tally)?;
        }
        Ok(())
    }
}

/// The whole state back in wire form.
pub(crate) fn export(store: &dyn KvRead, hrp: &Hrp) -> Result<pb::GenesisState, ModuleError> {
    let mut out = pb::GenesisState::default();
    for row in ENTRIES.iter(store, Order::Ascending) {
        let (key, entry) = row?;
        out.entries.push(row_to_pb(&key, entry_to_pb(&entry), hrp));
    }
    for row in OVERRIDES.iter(store, Order::Ascending) {
        let ((model, participant), forced) = row?;
        let (to, until_block) = (to_pb(forced.to), forced.until_block);
        out.overrides.push(pb::Override { model, participant: participant.to_bech32(hrp), to, until_block });
    }
    for row in TRIP_RINGS.iter(store, Order::Ascending) {
        let ((epoch, model), ring) = row?;
        let bucket = |b: &RingBucket| pb::TripBucket { index: b.index, weight: b.weight.to_string() };
        out.rings.push(pb::TripRing {
            epoch,
            model,
            since_block: ring.since_block,
            width: ring.width,
            frozen: ring.frozen,
            buckets: ring.buckets.iter().map(bucket).collect(),
        });
    }
    Ok(out)
}
