//! `holdfast.breaker.v1.Query`: reads only.

use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_store::StoreError;
use holdfast_types::{Address, Hrp, QueryContext, QueryError, paginate};

use crate::calc;
use crate::keeper::Keeper;
use crate::state::{ENTRIES, EntryKey, OVERRIDES, TRIP_RINGS};
use crate::types::{Entry, Forced, ForcedTo, State};

pub(crate) fn to_pb(to: ForcedTo) -> i32 {
    match to {
        ForcedTo::Healthy => pb::OverrideTo::Healthy.into(),
        ForcedTo::Excluded => pb::OverrideTo::Excluded.into(),
    }
}

pub(crate) fn forced_from_pb(to: i32, until_block: i64) -> Result<Forced, &'static str> {
    let to = match pb::OverrideTo::try_from(to) {
        Ok(pb::OverrideTo::Healthy) => ForcedTo::Healthy,
        Ok(pb::OverrideTo::Excluded) => ForcedTo::Excluded,
        _ => return Err("must be HEALTHY or EXCLUDED"),
    };
    Ok(Forced { to, until_block })
}

fn state_to_pb(state: State) -> pb::State {
    match state {
        State::Healthy => pb::State::Healthy,
        State::Excluded => pb::State::Excluded,
        State::Probe => pb::State::Probe,
    }
}

pub(crate) fn entry_to_pb(entry: &Entry) -> pb::CircuitBreakerEntry {
    // Destructured so that a new field forces a decision here.
    let Entry {
        state,
        generation,
        excluded_at,
        cooldown_blocks,
        ready_since,
        restored_at,
        refused_at,
        probe_attempts,
        backoff_level,
        consecutive_misses,
        probe,
        window,
        trip,
        forced,
    } = entry.clone();
    let buckets = window.buckets.iter();
    pb::CircuitBreakerEntry {
        state: state_to_pb(state).into(),
        generation,
        excluded_at,
        cooldown_blocks,
        ready_since,
        restored_at,
        refused_at,
        probe_attempts,
        backoff_level,
        consecutive_misses,
        probe: probe
            .map(|p| pb::ProbeClaim { inference_id: p.inference_id, deadline_block: p.deadline_block }),
        window: Some(pb::OutcomeWindow {
            width: window.width,
            touched_at: window.touched_at,
            buckets: buckets
                .map(|b| pb::OutcomeBucket { index: b.index, ok: b.ok, missed: b.missed })
                .collect(),
        }),
        trip: trip.map(|t| pb::TripMark { block: t.block, weight: t.weight }),
        forced: forced.map(|f| pb::ForcedOverride { to: to_pb(f.to), until_block: f.until_block }),
    }
}

pub(crate) fn row_to_pb(key: &EntryKey, entry: pb::CircuitBreakerEntry, hrp: &Hrp) -> pb::BreakerRow {
    let (epoch, model, participant) = key;
    pb::BreakerRow {
        epoch: *epoch,
        model: model.clone(),
        participant: participant.to_bech32(hrp),
        entry: Some(entry),
    }
}

fn check_model(keeper: &Keeper<'_>, q: QueryContext<'_>, model: &str) -> Result<(), QueryError> {
    if model.is_empty() {
        return Err(QueryError::invalid("model: name one"));
    }
    if !keeper.group.has_model(q.store, model)? {
        return Err(QueryError::not_found(format!("model: {model:?} is not registered")));
    }
    Ok(())
}

/// One entry; absent rows answer Healthy, generation 0.
pub fn circuit_breaker(
    keeper: &Keeper<'_>,
    q: QueryContext<'_>,
    req: pb::QueryCircuitBreakerRequest,
) -> Result<pb::QueryCircuitBreakerResponse, QueryError> {
    let participant = q.address("participant", &req.participant)?;
    check_model(keeper, q, &req.model)?;
    if !keeper.group.has_participant(q.store, &participant)? {
        return Err(QueryError::not_found(format!("participant: {} is not registered", req.participant)));
    }
    let entry = keeper.entry(q.store, q.block, &req.model, &participant)?;
    Ok(pb::QueryCircuitBreakerResponse {
        effective_state: state_to_pb(entry.effective_state(q.block.height)).into(),
        entry: Some(entry_to_pb(&entry)),
        height: q.block.height,
        epoch: q.block.epoch,
    })
}

/// Stored entries of the current epoch, by model, state and participant; paged in key order.
pub fn circuit_breakers(
    keeper: &Keeper<'_>,
    q: QueryContext<'_>,
    req: pb::QueryCircuitBreakersRequest,
) -> Result<pb::QueryCircuitBreakersResponse, QueryError> {
    let state = req.state.map(pb::State::try_from).transpose();
    let state = state.map_err(|_| QueryError::invalid("state: must be HEALTHY, EXCLUDED or PROBE"))?;
    let participant =
        if req.participant.is_empty() { None } else { Some(q.address("participant", &req.participant)?) };
    let epoch = q.block.epoch;
    let prefix = if req.model.is_empty() {
        ENTRIES.prefix_key(&epoch)
    } else {
        check_model(keeper, q, &req.model)?;
        ENTRIES.prefix_key(&(epoch, req.model.clone()))
    };
    let (entries, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        let full = [prefix.as_slice(), tail].concat();
        let key = ENTRIES.parse_key(&full).ok_or_else(|| StoreError::Backend("entry key".into()))?;
        let entry = ENTRIES.decode_value(value)?;
        let wanted =
            state.is_none_or(|s| s == state_to_pb(entry.state)) && participant.is_none_or(|p| p == key.2);
        Ok(wanted.then(|| row_to_pb(&key, entry_to_pb(&entry), &q.block.hrp)))
    })?;
    Ok(pb::QueryCircuitBreakersResponse { entries, pagination: Some(pagination) })
}

/// Why the detector cannot exclude anybody of this model now; empty when it can.
fn idle_reason(
    q: QueryContext<'_>,
    eligible: u128,
    lightest: Option<u64>,
    out: u128,
    frozen: bool,
) -> &'static str {
    let params = &q.block.params;
    let after = lightest.map(|w| out.saturating_add(w.into()));
    if !params.health_cb_enabled {
        "health_cb_enabled is false"
    } else if params.health_cb_shadow {
        "health_cb_shadow is true: trips are reported, nobody is filtered"
    } else if params.health_cb_miss_threshold_pct >= 100 && params.health_cb_consecutive_misses == 0 {
        "a threshold of 100 % never trips and the streak rule is off"
    } else if lightest.is_none() {
        "no healthy eligible member"
    } else if frozen {
        "frozen: too much weight met a rule lately"
    } else if after.is_some_and(|a| calc::exceeds_pct(a, eligible, params.health_cb_max_excluded_weight_pct))
    {
        "the cap on excluded weight leaves no room for any member"
    } else {
        ""
    }
}

/// Counts and shares of a model, and whether the breaker could exclude anybody there.
pub fn breaker_summary(
    keeper: &Keeper<'_>,
    q: QueryContext<'_>,
    req: pb::QueryBreakerSummaryRequest,
) -> Result<pb::QueryBreakerSummaryResponse, QueryError> {
    check_model(keeper, q, &req.model)?;
    let tally = keeper.tally(q.store, q.block, &req.model)?;
    let mut out = pb::QueryBreakerSummaryResponse::default();
    let mut lightest: Option<u64> = None;
    for (participant, standing) in keeper.group.members(q.store, q.block, &req.model)? {
        let entry = keeper.entry(q.store, q.block, &req.model, &participant)?;
        let slot = match (entry.state, &entry.probe) {
            (State::Healthy, _) => &mut out.healthy,
            (State::Excluded, _) => &mut out.excluded,
            (State::Probe, None) => &mut out.probe_ready,
            (State::Probe, Some(_)) => &mut out.probe_claimed,
        };
        *slot = slot.saturating_add(1);
        out.forced = out.forced.saturating_add(u32::from(entry.forced.is_some()));
        if entry.state == State::Healthy && entry.forced.is_none() && standing.eligible() {
            lightest = Some(lightest.map_or(standing.weight, |w| w.min(standing.weight)));
        }
    }
    let ring = TRIP_RINGS.get(q.store, &(q.block.epoch, req.model.clone()))?;
    out.frozen = ring.is_some_and(|ring| ring.frozen);
    let reason = idle_reason(q, tally.eligible_weight, lightest, tally.out_weight, out.frozen);
    out.can_fire = reason.is_empty();
    out.can_fire_reason = reason.to_owned();
    let share = tally.out_weight.saturating_mul(10_000).checked_div(tally.eligible_weight).unwrap_or(0);
    out.excluded_share_bp = u32::try_from(share).unwrap_or(u32::MAX);
    out.eligible_weight = tally.eligible_weight.to_string();
    out.out_weight = tally.out_weight.to_string();
    Ok(out)
}

/// Live overrides.
pub fn overrides(
    q: QueryContext<'_>,
    req: pb::QueryOverridesRequest,
) -> Result<pb::QueryOverridesResponse, QueryError> {
    let prefix = OVERRIDES.prefix_key(&());
    let (overrides, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        let full = [prefix.as_slice(), tail].concat();
        let key: Option<(String, Address)> = OVERRIDES.parse_key(&full);
        let (model, participant) = key.ok_or_else(|| StoreError::Backend("override key".into()))?;
        let forced = OVERRIDES.decode_value(value)?;
        let participant = participant.to_bech32(&q.block.hrp);
        Ok(Some(pb::Override { model, participant, to: to_pb(forced.to), until_block: forced.until_block }))
    })?;
    Ok(pb::QueryOverridesResponse { overrides, pagination: Some(pagination) })
}
