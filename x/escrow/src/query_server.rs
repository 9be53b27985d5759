//! `holdfast.escrow.v1.Query`: reads only.

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_store::{KeyCodec, StoreError};
use holdfast_types::{QueryContext, QueryError, paginate};

use crate::state::{BY_OWNER, ESCROWS, PARAMS};
use crate::types::{Escrow, EscrowId, Status};

/// Parameters that the next escrow takes its values from.
pub fn params(
    q: QueryContext<'_>,
    _req: pb::QueryParamsRequest,
) -> Result<pb::QueryParamsResponse, QueryError> {
    Ok(pb::QueryParamsResponse { params: Some(PARAMS.load(q.store)?.to_pb()) })
}

/// One escrow with the digest of its terms. `NotFound` if it never was or is pruned.
pub fn escrow(
    q: QueryContext<'_>,
    req: pb::QueryEscrowRequest,
) -> Result<pb::QueryEscrowResponse, QueryError> {
    let id = req.escrow_id;
    if id == 0 {
        return Err(QueryError::invalid("escrow_id: must be at least 1"));
    }
    let unknown = || QueryError::not_found(format!("escrow_id: no escrow {id}, or it ended two epochs ago"));
    let escrow = ESCROWS.get(q.store, &id)?.ok_or_else(unknown)?;
    Ok(pb::QueryEscrowResponse {
        config_digest: escrow.config.digest().to_vec(),
        escrow: Some(escrow.to_pb(&q.block.hrp)),
    })
}

fn status(number: Option<i32>) -> Result<Option<Status>, QueryError> {
    let unknown = || QueryError::invalid("status: must be a known status other than UNSPECIFIED");
    number.map(|n| Status::from_pb(n).ok_or_else(unknown)).transpose()
}

/// Escrows in the order of their ids, those for which every filter given holds.
pub fn escrows(
    q: QueryContext<'_>,
    req: pb::QueryEscrowsRequest,
) -> Result<pb::QueryEscrowsResponse, QueryError> {
    let status = status(req.status)?;
    let creator = (!req.creator.is_empty()).then(|| q.address("creator", &req.creator)).transpose()?;
    let wanted = |escrow: &Escrow| {
        status.is_none_or(|s| escrow.status == s)
            && creator.is_none_or(|c| escrow.config.creator == c)
            && (req.model.is_empty() || escrow.config.model == req.model)
    };
    let prefix = ESCROWS.entries().prefix_key(&());
    let (escrows, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |_, value| {
        let escrow = ESCROWS.entries().decode_value(value)?;
        Ok(wanted(&escrow).then(|| escrow.to_pb(&q.block.hrp)))
    })?;
    Ok(pb::QueryEscrowsResponse { escrows, pagination: Some(pagination) })
}

/// Escrows in which a participant holds a slot, in the order of their ids.
pub fn escrows_by_participant(
    q: QueryContext<'_>,
    req: pb::QueryEscrowsByParticipantRequest,
) -> Result<pb::QueryEscrowsByParticipantResponse, QueryError> {
    let status = status(req.status)?;
    let mut prefix = BY_OWNER.prefix_key();
    q.address("participant", &req.participant)?.encode(&mut prefix);
    let (escrows, pagination) = paginate(q.store, &prefix, req.pagination.as_ref(), |tail, _| {
        let id = EscrowId::from_bytes(tail)
            .map_err(|e| StoreError::Decode { collection: "escrows_by_owner", reason: e.to_string() })?;
        let escrow = ESCROWS.load(q.store, &id)?;
        Ok(status.is_none_or(|s| escrow.status == s).then(|| escrow.to_pb(&q.block.hrp)))
    })?;
    Ok(pb::QueryEscrowsByParticipantResponse { escrows, pagination: Some(pagination) })
}
