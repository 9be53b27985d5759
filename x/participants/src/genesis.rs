//! Genesis: everything but what follows from it (totals, due queue, open windows) crosses.

use std::collections::BTreeSet;

use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::{Address, Coin, Context, Epoch, Hrp, ModuleError, sdk};

use crate::calc::TOTAL_POWER_MAX;
use crate::keeper::Keeper;
use crate::msgs::{Serving, check_key, check_model};
use crate::params::{MODELS_LIMIT, Params};
use crate::query_server::{to_pb, validator_to_pb, window_to_pb};
use crate::state::{
    DUE, IN_MAINTENANCE, INACTIVE, IntervalKey, MEMBERS, MODELS, NEXT_WEIGHTS, PARAMS, PARTICIPANTS,
    POWER_TOTALS, REFRESH_CURSOR, UNAVAILABILITY, VALIDATORS, WINDOWS,
};
use crate::types::{Cause, Interval, MemberRecord, NextWeight, Participant, PowerTotals, Validator, Window};
use crate::validators::{SET_MAX, heaviest};

fn bad(field: impl std::fmt::Display, reason: impl std::fmt::Display) -> ModuleError {
    ModuleError::sdk(sdk::INVALID_REQUEST, format!("participants genesis: {field}: {reason}"))
}

fn ascending<K: Ord>(field: &str, keys: impl Iterator<Item = K>) -> Result<(), ModuleError> {
    let keys: Vec<K> = keys.collect();
    if keys.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err(bad(field, "rows must be ascending and distinct"))
    }
}

/// A genesis state in domain types.
pub(crate) struct Genesis {
    params: Params,
    models: Vec<String>,
    participants: Vec<(Address, Participant, Option<u64>)>,
    members: Vec<((String, Address), MemberRecord)>,
    intervals: Vec<(IntervalKey, Interval)>,
    windows: Vec<((Address, i64), Window)>,
    validators: Vec<(Vec<u8>, Validator)>,
}

fn participant_from_pb(
    row: &pb::Participant,
    hrp: &Hrp,
) -> Result<(Address, Participant, Option<u64>), ModuleError> {
    let address = Address::parse(&row.address, hrp).map_err(|e| bad("participants.address", e))?;
    check_key(&row.validator_key).map_err(|e| bad("participants", e))?;
    let amount = |field: &str, text: &str| {
        if text.is_empty() {
            return Ok(0);
        }
        Coin::parse_amount(text).map_err(|e| bad(format!("participants.{field}"), e))
    };
    let serving =
        Serving::from_pb(row.host_url.clone(), row.workers.clone(), row.models.clone(), row.poc_preserved);
    let serving = serving.map_err(|e| bad("participants", e))?;
    let (left, inactive) = match pb::ParticipantStatus::try_from(row.status) {
        Ok(pb::ParticipantStatus::Active) => (false, None),
        Ok(pb::ParticipantStatus::Inactive) => (false, Some(row.inactive_epoch)),
        Ok(pb::ParticipantStatus::Left) => (true, None),
        _ => return Err(bad("participants.status", "must be ACTIVE, INACTIVE or LEFT")),
    };
    let participant = Participant {
        validator_key: row.validator_key.clone(),
        host_url: serving.host_url,
        workers: serving.workers,
        models: serving.models,
        poc_preserved: serving.poc_preserved,
        collateral: amount("collateral", &row.collateral)?,
        unbonding: amount("unbonding", &row.unbonding)?,
        unbonding_epoch: row.unbonding_epoch,
        left,
        joined_epoch: row.joined_epoch,
    };
    if left && (participant.collateral > 0 || !participant.models.is_empty()) {
        return Err(bad("participants.status", "who left has neither models nor collateral"));
    }
    Ok((address, participant, inactive))
}

impl Genesis {
    /// Parses and checks everything that needs no other module.
    pub(crate) fn from_pb(genesis: &pb::GenesisState, hrp: &Hrp) -> Result<Self, ModuleError> {
        let params = genesis.params.as_ref().ok_or_else(|| bad("params", "is missing"))?;
        let mut params = Params::from_pb(params).map_err(|e| bad("params", e))?;
        if (params.max_validators, params.max_validator_change_permille) == (0, 0) {
            // A text from before there were validators.
            let Params { max_validators, max_validator_change_permille, .. } = Params::default();
            params = Params { max_validators, max_validator_change_permille, ..params };
        }
        params.validate().map_err(|e| bad("params", e))?;
        let address = |field: &str, text: &str| Address::parse(text, hrp).map_err(|e| bad(field, e));

        let models: Vec<String> = genesis.models.iter().map(|m| m.id.clone()).collect();
        for model in &models {
            check_model(model).map_err(|e| bad("models", e))?;
        }
        ascending("models", models.iter())?;
        // Not params.max_models: it can be set below the number of models there are.
        if models.len() > usize::try_from(MODELS_LIMIT).unwrap_or(usize::MAX) {
            return Err(bad("models", format!("at most {MODELS_LIMIT}")));
        }
        let mut participants = Vec::new();
        let mut keys = BTreeSet::new();
        for row in &genesis.participants {
            let row = participant_from_pb(row, hrp)?;
            if let Some(model) = row.1.models.iter().find(|m| models.binary_search(m).is_err()) {
                return Err(bad("participants.models", format!("{model:?} is not in models")));
            }
            if !keys.insert(row.1.validator_key.clone()) {
                return Err(bad("participants.validator_key", "belongs to two participants"));
            }
            participants.push(row);
        }
        ascending("participants", participants.iter().map(|p| p.0))?;
        let find = |a: &Address| {
            let at = participants.binary_search_by_key(a, |p| p.0).ok()?;
            participants.get(at).map(|p| &p.1)
        };
        let mut members = Vec::new();
        for row in &genesis.members {
            let key = (row.model.clone(), address("members.participant", &row.participant)?);
            if models.binary_search(&key.0).is_err() {
                return Err(bad("members.model", format!("{:?} is not in models", key.0)));
            }
            let participant = find(&key.1).ok_or_else(|| bad("members.participant", "is not registered"))?;
            if (row.weight > 0 || row.next_weight > 0) && !participant.models.contains(&key.0) {
                return Err(bad("members.weight", "must be 0, as next_weight, for a model not served"));
            }
            let record = MemberRecord {
                epoch: row.epoch,
                weight: row.weight,
                preserved: row.preserved,
                prev_weight: row.prev_weight,
                prev_preserved: row.prev_preserved,
                next_weight: row.next_weight,
                next_preserved: row.next_preserved,
            };
            members.push((key, record));
        }
        ascending("members", members.iter().map(|m| &m.0))?;
        let mut intervals = Vec::new();
        for row in &genesis.unavailability {
            let cause = u8::try_from(row.cause).ok().and_then(Cause::from_byte);
            let cause = cause.ok_or_else(|| bad("unavailability.cause", "is none of the causes"))?;
            let key: IntervalKey = (
                address("unavailability.participant", &row.participant)?,
                row.from_height,
                row.model.clone(),
                cause.byte(),
            );
            if find(&key.0).is_none() {
                return Err(bad("unavailability.participant", "is not registered"));
            }
            if !row.model.is_empty() && models.binary_search(&row.model).is_err() {
                return Err(bad("unavailability.model", format!("{:?} is not in models", row.model)));
            }
            if row.to_height < row.from_height {
                return Err(bad("unavailability.to_height", "must not be before from_height"));
            }
            if row.announced_at > row.from_height {
                return Err(bad("unavailability.announced_at", "must not be after from_height"));
            }
            intervals.push((key, Interval { to_height: row.to_height, announced_at: row.announced_at }));
        }
        ascending("unavailability", intervals.iter().map(|i| &i.0))?;
        let mut windows: Vec<((Address, i64), Window)> = Vec::new();
        for row in &genesis.windows {
            let key = (address("windows.participant", &row.participant)?, row.start_height);
            if find(&key.0).is_none() {
                return Err(bad("windows.participant", "is not registered"));
            }
            if row.end_height <= row.start_height {
                return Err(bad("windows.end_height", "must be above start_height"));
            }
            if row.announced_at >= row.start_height {
                return Err(bad("windows.announced_at", "must be below start_height"));
            }
            if let Some((before, window)) = windows.last()
                && before.0 == key.0
                && window.end_height > key.1
            {
                return Err(bad("windows.start_height", "overlaps the window before it, or is out of order"));
            }
            windows.push((key, Window { end_height: row.end_height, announced_at: row.announced_at }));
        }
        ascending("windows", windows.iter().map(|w| w.0))?;
        let (mut validators, mut total) = (Vec::new(), 0_u64);
        for row in &genesis.validators {
            check_key(&row.validator_key).map_err(|e| bad("validators", e))?;
            let participant = match row.participant.as_str() {
                "" => None,
                text => Some(address("validators.participant", text)?),
            };
            if participant.is_some_and(|p| find(&p).is_none()) {
                return Err(bad("validators.participant", "is not registered"));
            }
            let power = u64::try_from(row.power).ok().filter(|power| *power > 0);
            let power = power.ok_or_else(|| bad("validators.power", "must be at least 1"))?;
            total = total.saturating_add(power);
            validators.push((row.validator_key.clone(), Validator { participant, power }));
        }
        if total > TOTAL_POWER_MAX || validators.len() > SET_MAX {
            let most = format!("at most {SET_MAX} with a total power of {TOTAL_POWER_MAX}");
            return Err(bad("validators", most));
        }
        ascending("validators", validators.iter().map(|v| &v.0))?;
        Ok(Self { params, models, participants, members, intervals, windows, validators })
    }

    /// No epoch of a row may lie in the future of the one the state stands in.
    fn check_epochs(&self, now: Epoch) -> Result<(), ModuleError> {
        let next = now.saturating_add(1);
        let check = |field: &str, epoch: Epoch, most: Epoch| {
            if epoch <= most { Ok(()) } else { Err(bad(field, format!("must be at most {most}"))) }
        };
        for (_, participant, inactive) in &self.participants {
            check("participants.inactive_epoch", inactive.unwrap_or(0), now)?;
            check("participants.unbonding_epoch", participant.unbonding_epoch, next)?;
            check("participants.joined_epoch", participant.joined_epoch, next)?;
        }
        self.members.iter().try_for_each(|(_, record)| check("members.epoch", record.epoch, now))
    }

    /// Writes the state; `ctx.block.epoch` is the epoch it stands in. A participant without a member row for one
    /// of its models is a member of this epoch with the weight its source gives. Where a row's next weight is not
    /// what the source gives, a sweep was under way, and goes on.
    pub(crate) fn init(self, ctx: &mut Context<'_>, keeper: &Keeper<'_>) -> Result<(), ModuleError> {
        self.check_epochs(ctx.block.epoch)?;
        // The state of a running chain stands inside its epoch, that of a fresh one before the first block.
        let epoch = keeper.epochs.epoch(ctx.store, ctx.block.epoch)?;
        let fresh = epoch.is_none_or(|epoch| epoch.start_height >= ctx.block.height);
        if fresh && self.participants.iter().any(|row| row.2 == Some(ctx.block.epoch)) {
            return Err(bad("participants.status", "nobody can be inactive in an epoch that has not begun"));
        }
        PARAMS.set(ctx.store, &self.params)?;
        for model in &self.models {
            MODELS.insert(ctx.store, model)?;
        }
        for (key, interval) in &self.intervals {
            UNAVAILABILITY.set(ctx.store, key, interval)?;
        }
        for (key, window) in &self.windows {
            let (participant, start) = *key;
            WINDOWS.set(ctx.store, key, window)?;
            // A window is open once its interval has been written.
            let open = UNAVAILABILITY
                .has(ctx.store, &(participant, start, String::new(), Cause::Maintenance.byte()))?;
            if open {
                if IN_MAINTENANCE.has(ctx.store, &participant)? {
                    return Err(bad("unavailability", "opens two windows of one participant"));
                }
                IN_MAINTENANCE.set(ctx.store, &participant, &start)?;
                DUE.insert(ctx.store, &(window.end_height, true, participant, start))?;
            } else {
                DUE.insert(ctx.store, &(start, false, participant, start))?;
            }
        }
        for (key, record) in &self.members {
            MEMBERS.set(ctx.store, key, record)?;
        }
        let (mut stale, mut before) = (None, None);
        let mut totals = PowerTotals { epoch: ctx.block.epoch, ..PowerTotals::default() };
        let mut candidates = Vec::new();
        for (address, participant, inactive) in &self.participants {
            PARTICIPANTS.set(ctx.store, address, participant)?;
            if let Some(epoch) = inactive {
                INACTIVE.set(ctx.store, address, epoch)?;
            }
            let weight = keeper.weights.weight(ctx.store, address, participant.collateral)?;
            let mut weighs = (0, 0);
            for model in &participant.models {
                let key = (model.clone(), *address);
                let preserved = participant.poc_preserved;
                let record = if let Some(record) = MEMBERS.get(ctx.store, &key)? {
                    if (record.next_weight, record.next_preserved) != (weight, preserved) {
                        stale = stale.or(Some(before));
                    }
                    record
                } else {
                    let record = MemberRecord {
                        epoch: ctx.block.epoch,
                        weight,
                        preserved,
                        prev_weight: 0,
                        prev_preserved: false,
                        next_weight: weight,
                        next_preserved: preserved,
                    };
                    MEMBERS.set(ctx.store, &key, &record)?;
                    record
                };
                weighs = (record.at(ctx.block.epoch).weight.max(weighs.0), record.next_weight.max(weighs.1));
            }
            let of = |weight| NextWeight { weight, validator_key: participant.validator_key.clone() };
            if weighs.1 > 0 {
                NEXT_WEIGHTS.set(ctx.store, address, &of(weighs.1))?;
            }
            if *inactive != Some(ctx.block.epoch) {
                candidates.push((*address, of(weighs.0)));
            }
            totals.weight = totals.weight.saturating_add(weighs.0.into());
            totals.next_weight = totals.next_weight.saturating_add(weighs.1.into());
            before = Some(*address);
        }
        POWER_TOTALS.set(ctx.store, &totals)?;
        // A running chain without validators has none on purpose: nobody could be one when it began.
        if fresh && self.validators.is_empty() {
            let (powers, owners) = heaviest(candidates, self.params.max_validators);
            for (key, power) in powers {
                let participant = owners.get(&key).copied();
                VALIDATORS.set(ctx.store, &key, &Validator { participant, power })?;
            }
        }
        for (key, validator) in &self.validators {
            VALIDATORS.set(ctx.store, key, validator)?;
        }
        if let Some(cursor) = stale {
            REFRESH_CURSOR.set(ctx.store, &cursor)?;
        }
        let members: Vec<_> = MEMBERS.iter(ctx.store, Order::Ascending).collect::<Result<_, _>>()?;
        for ((model, participant), record) in members {
            if !IN_MAINTENANCE.has(ctx.store, &participant)? {
                keeper.count_next(ctx, &model, &record, true)?;
            }
        }
        Ok(())
    }
}

/// The whole state back in wire form.
pub(crate) fn export(store: &dyn KvRead, hrp: &Hrp) -> Result<pb::GenesisState, ModuleError> {
    let mut out =
        pb::GenesisState { params: Some(PARAMS.load(store)?.to_pb()), ..pb::GenesisState::default() };
    for model in MODELS.iter(store, Order::Ascending) {
        out.models.push(pb::Model { id: model? });
    }
    for row in PARTICIPANTS.entries().iter(store, Order::Ascending) {
        let (address, participant) = row?;
        let inactive = INACTIVE.get(store, &address)?;
        out.participants.push(to_pb(&address, participant, inactive, inactive, hrp));
    }
    for row in MEMBERS.iter(store, Order::Ascending) {
        let ((model, participant), record) = row?;
        out.members.push(pb::GenesisMember {
            model,
            participant: participant.to_bech32(hrp),
            epoch: record.epoch,
            weight: record.weight,
            preserved: record.preserved,
            prev_weight: record.prev_weight,
            prev_preserved: record.prev_preserved,
            next_weight: record.next_weight,
            next_preserved: record.next_preserved,
        });
    }
    for row in UNAVAILABILITY.entries().iter(store, Order::Ascending) {
        let ((participant, from_height, model, cause), interval) = row?;
        out.unavailability.push(pb::Unavailability {
            participant: participant.to_bech32(hrp),
            model,
            from_height,
            to_height: interval.to_height,
            cause: cause.into(),
            announced_at: interval.announced_at,
        });
    }
    for row in WINDOWS.iter(store, Order::Ascending) {
        let ((participant, start), window) = row?;
        out.windows.push(window_to_pb(&participant, start, window, hrp));
    }
    for row in VALIDATORS.iter(store, Order::Ascending) {
        let (key, validator) = row?;
        out.validators.push(validator_to_pb(key, validator, hrp));
    }
    Ok(out)
}
