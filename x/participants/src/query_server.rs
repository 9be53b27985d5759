//! `holdfast.participants.v1.Query`: reads only.

use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_store::StoreError;
use holdfast_types::traits::ParticipantsRead;
use holdfast_types::{Address, Epoch, Hrp, QueryContext, QueryError, paginate};

use crate::keeper::Keeper;
use crate::state::{INACTIVE, MEMBERS, MODELS, PARAMS, PARTICIPANTS, VALIDATORS, WINDOWS};
use crate::types::{Participant, Validator, Window};

/// A participant in wire form; `inactive` is the epoch the slow breaker took it out in.
pub(crate) fn to_pb(
    address: &Address,
    p: Participant,
    inactive: Option<Epoch>,
    now: Option<Epoch>,
    hrp: &Hrp,
) -> pb::Participant {
    let status = match (p.left, inactive.is_some() && inactive == now) {
        (true, _) => pb::ParticipantStatus::Left,
        (false, true) => pb::ParticipantStatus::Inactive,
        (false, false) => pb::ParticipantStatus::Active,
    };
    let worker = |w: crate::types::Worker| pb::WorkerEndpoint {
        url: w.url,
        first_layer: w.first_layer,
        last_layer: w.last_layer,
    };
    pb::Participant {
        address: address.to_bech32(hrp),
        validator_key: p.validator_key,
        host_url: p.host_url,
        workers: p.workers.into_iter().map(worker).collect(),
        models: p.models,
        poc_preserved: p.poc_preserved,
        collateral: p.collateral.to_string(),
        unbonding: p.unbonding.to_string(),
        unbonding_epoch: p.unbonding_epoch,
        status: status.into(),
        inactive_epoch: inactive.unwrap_or(0),
        joined_epoch: p.joined_epoch,
    }
}

pub(crate) fn window_to_pb(
    address: &Address,
    start: i64,
    window: Window,
    hrp: &Hrp,
) -> pb::MaintenanceWindow {
    pb::MaintenanceWindow {
        participant: address.to_bech32(hrp),
        start_height: start,
        end_height: window.end_height,
        announced_at: window.announced_at,
    }
}

pub(crate) fn validator_to_pb(key: Vec<u8>, validator: Validator, hrp: &Hrp) -> pb::Validator {
    pb::Validator {
        validator_key: key,
        participant: validator.participant.map(|address| address.to_bech32(hrp)).unwrap_or_default(),
        power: i64::try_from(validator.power).unwrap_or(i64::MAX),
    }
}

/// Parameters.
pub fn params(
    q: QueryContext<'_>,
    _req: pb::QueryParamsRequest,
) -> Result<pb::QueryParamsResponse, QueryError> {
    Ok(pb::QueryParamsResponse { params: Some(PARAMS.load(q.store)?.to_pb()) })
}

/// One participant, for callers that hold the address.
///
/// # Errors
/// `NotFound` when it never registered.
pub fn participant_by_address(q: QueryContext<'_>, address: &Address) -> Result<pb::Participant, QueryError> {
    let participant = PARTICIPANTS.get(q.store, address)?.ok_or_else(|| {
        QueryError::not_found(format!("participant: {} is not registered", address.to_bech32(&q.block.hrp)))
    })?;
    let inactive = INACTIVE.get(q.store, address)?;
    Ok(to_pb(address, participant, inactive, Some(q.block.epoch), &q.block.hrp))
}

/// One participant.
pub fn participant(
    q: QueryContext<'_>,
    req: pb::QueryParticipantRequest,
) -> Result<pb::QueryParticipantResponse, QueryError> {
    let address = q.address("participant", &req.participant)?;
    Ok(pb::QueryParticipantResponse { participant: Some(participant_by_address(q, &address)?) })
}

/// The registry, by address.
pub fn participants(
    q: QueryContext<'_>,
    req: pb::QueryParticipantsRequest,
) -> Result<pb::QueryParticipantsResponse, QueryError> {
    let prefix = PARTICIPANTS.entries().prefix_key(&());
    let (participants, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        let address = Address::from_slice(tail).map_err(|e| StoreError::Backend(e.to_string()))?;
        let participant = PARTICIPANTS.entries().decode_value(value)?;
        let inactive = INACTIVE.get(q.store, &address)?;
        Ok(Some(to_pb(&address, participant, inactive, Some(q.block.epoch), &q.block.hrp)))
    })?;
    Ok(pb::QueryParticipantsResponse { participants, pagination: Some(pagination) })
}

/// Registered models.
pub fn models(
    q: QueryContext<'_>,
    req: pb::QueryModelsRequest,
) -> Result<pb::QueryModelsResponse, QueryError> {
    let prefix = MODELS.prefix_key();
    let (models, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, _| {
        let full = [prefix.as_slice(), tail].concat();
        let id = MODELS.parse_key(&full).ok_or_else(|| StoreError::Backend("model key".into()))?;
        Ok(Some(pb::Model { id }))
    })?;
    Ok(pb::QueryModelsResponse { models, pagination: Some(pagination) })
}

/// Members of a model's group in the current epoch, by address.
pub fn epoch_group(
    keeper: &Keeper<'_>,
    q: QueryContext<'_>,
    req: pb::QueryEpochGroupRequest,
) -> Result<pb::QueryEpochGroupResponse, QueryError> {
    if req.model.is_empty() {
        return Err(QueryError::invalid("model: must not be empty"));
    }
    if !keeper.has_model(q.store, &req.model)? {
        return Err(QueryError::not_found(format!("model: {:?} is not registered", req.model)));
    }
    let prefix = MEMBERS.prefix_key(&req.model);
    let (members, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, _| {
        let address = Address::from_slice(tail).map_err(|e| StoreError::Backend(e.to_string()))?;
        let standing = keeper.standing(q.store, q.block, &req.model, &address)?;
        Ok(standing.member.then(|| pb::Member {
            participant: address.to_bech32(&q.block.hrp),
            weight: standing.weight,
            preserved: standing.preserved,
            in_maintenance: standing.in_maintenance,
            active: standing.active,
        }))
    })?;
    let epoch = q.block.epoch;
    Ok(pb::QueryEpochGroupResponse { epoch, model: req.model, members, pagination: Some(pagination) })
}

/// Announced windows of a participant that have not ended.
pub fn maintenance(
    q: QueryContext<'_>,
    req: pb::QueryMaintenanceRequest,
) -> Result<pb::QueryMaintenanceResponse, QueryError> {
    let address = q.address("participant", &req.participant)?;
    let mut windows = Vec::new();
    for row in WINDOWS.prefix(q.store, &address, holdfast_store::Order::Ascending) {
        let ((_, start), window) = row?;
        windows.push(window_to_pb(&address, start, window, &q.block.hrp));
    }
    Ok(pb::QueryMaintenanceResponse { windows })
}

/// The validators as the consensus engine has been told, by key.
pub fn validators(
    q: QueryContext<'_>,
    req: pb::QueryValidatorsRequest,
) -> Result<pb::QueryValidatorsResponse, QueryError> {
    let prefix = VALIDATORS.prefix_key(&());
    let (validators, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, value| {
        let full = [prefix.as_slice(), tail].concat();
        let key = VALIDATORS.parse_key(&full).ok_or_else(|| StoreError::Backend("validator key".into()))?;
        Ok(Some(validator_to_pb(key, VALIDATORS.decode_value(value)?, &q.block.hrp)))
    })?;
    Ok(pb::QueryValidatorsResponse { validators, pagination: Some(pagination) })
}
