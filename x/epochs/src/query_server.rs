//! Queries.

use holdfast_proto::holdfast::epochs::v1 as pb;
use holdfast_types::traits::{EpochInfo, EpochsRead};
use holdfast_types::{QueryContext, QueryError, QueryKind};

use crate::{CURRENT, Keeper};

pub(crate) fn to_pb(info: &EpochInfo) -> pb::EpochInfo {
    let EpochInfo { epoch, start_height, length, poc_length } = *info;
    pb::EpochInfo { index: epoch, start_height, length, poc_length }
}

/// The parameters in force in the current epoch.
pub fn params(
    q: QueryContext<'_>,
    _req: pb::QueryParamsRequest,
) -> Result<pb::QueryParamsResponse, QueryError> {
    Ok(pb::QueryParamsResponse { params: Some((&Keeper.params(q.store)?).into()) })
}

/// Epoch and phase of the queried height. `Unavailable` before the schedule has started.
pub fn current_epoch(
    q: QueryContext<'_>,
    _req: pb::QueryCurrentEpochRequest,
) -> Result<pb::QueryCurrentEpochResponse, QueryError> {
    let info = match CURRENT.get(q.store)? {
        Some(current) => Keeper.epoch(q.store, current)?,
        None => None,
    };
    let info = info
        .ok_or_else(|| QueryError::new(QueryKind::Unavailable, "no epoch yet: the chain has no genesis"))?;
    let height = q.block.height;
    let phase = if info.is_poc(height) { pb::Phase::Poc } else { pb::Phase::Inference };
    Ok(pb::QueryCurrentEpochResponse {
        epoch: Some(to_pb(&info)),
        phase: phase.into(),
        height,
        blocks_left: info.end().saturating_sub(1).saturating_sub(height).max(0),
    })
}

/// One epoch by index. `NotFound` for a future one and for one no longer kept.
pub fn epoch(q: QueryContext<'_>, req: pb::QueryEpochRequest) -> Result<pb::QueryEpochResponse, QueryError> {
    let info = Keeper.epoch(q.store, req.index)?.ok_or_else(|| {
        QueryError::not_found(format!("index: epoch {} is not begun or no longer kept", req.index))
    })?;
    Ok(pb::QueryEpochResponse { epoch: Some(to_pb(&info)) })
}
