//! Queries. They read only. `GetRandomExecutor` and `CandidateTable` are answered from a
//! [`CandidateTable`] that the app keeps per height; the pieces are here.

use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_proto::holdfast::participants::v1::Participant;
use holdfast_store::{KeyCodec, KvIter, KvRead, Order, StoreError};
use holdfast_types::{Height, Hrp, QueryContext, QueryError, QueryKind, paginate};

use crate::abci::increments;
use crate::draw::{CandidateTable, Draw, Lane};
use crate::state::{INFERENCES, PARAMS, SPRT, STATS};
use crate::types::Status;

/// Parameters in force from the next block on.
pub fn params(
    q: QueryContext<'_>,
    _req: pb::QueryParamsRequest,
) -> Result<pb::QueryParamsResponse, QueryError> {
    Ok(pb::QueryParamsResponse { params: Some(PARAMS.load(q.store)?.to_pb()) })
}

/// One inference. `NotFound` if it never was or is pruned.
pub fn inference(
    q: QueryContext<'_>,
    req: pb::QueryInferenceRequest,
) -> Result<pb::QueryInferenceResponse, QueryError> {
    if req.inference_id.is_empty() {
        return Err(QueryError::invalid("inference_id: must not be empty"));
    }
    let Some(inference) = INFERENCES.get(q.store, &req.inference_id)? else {
        let id: String = req.inference_id.chars().take(80).collect();
        return Err(QueryError::not_found(format!("inference {id:?} is not known, or was pruned")));
    };
    Ok(pb::QueryInferenceResponse { inference: Some(inference.to_pb(&req.inference_id, &q.block.hrp)) })
}

/// Inferences in id order, by executor and status.
pub fn inferences(
    q: QueryContext<'_>,
    req: pb::QueryInferencesRequest,
) -> Result<pb::QueryInferencesResponse, QueryError> {
    let executor = match req.executor.as_str() {
        "" => None,
        text => Some(q.address("executor", text)?),
    };
    let unknown = || QueryError::invalid("status: must be a known status other than UNSPECIFIED");
    let status = req.status.map(|n| Status::from_pb(n).ok_or_else(unknown)).transpose()?;
    let prefix = INFERENCES.entries().prefix_key(&());
    let (inferences, page) = paginate(q.store, &prefix, req.pagination.as_ref(), |key, value| {
        let inference = INFERENCES.entries().decode_value(value)?;
        let wanted = executor.is_none_or(|e| inference.executor() == Some(e))
            && status.is_none_or(|s| inference.status == s);
        if !wanted {
            return Ok(None);
        }
        let id = String::from_bytes(key)
            .map_err(|e| StoreError::Decode { collection: "inferences", reason: e.to_string() })?;
        Ok(Some(inference.to_pb(&id, &q.block.hrp)))
    })?;
    Ok(pb::QueryInferencesResponse { inferences, pagination: Some(page) })
}

/// What a participant did in an epoch, the current one if none is named; zeros if nothing.
pub fn participant_stats(
    q: QueryContext<'_>,
    req: pb::QueryParticipantStatsRequest,
) -> Result<pb::QueryParticipantStatsResponse, QueryError> {
    let participant = q.address("participant", &req.participant)?;
    let epoch = req.epoch.unwrap_or(q.block.epoch);
    let stats = STATS.get(q.store, &(epoch, participant))?.unwrap_or_default();
    Ok(pb::QueryParticipantStatsResponse { stats: Some(stats.to_pb(epoch, &participant, &q.block.hrp)) })
}

/// The slow breaker's ratio of a participant in the current epoch; zeros if it was never judged.
pub fn sprt(q: QueryContext<'_>, req: pb::QuerySprtRequest) -> Result<pb::QuerySprtResponse, QueryError> {
    let participant = q.address("participant", &req.participant)?;
    let state = SPRT.get(q.store, &(q.block.epoch, participant))?.unwrap_or_default();
    let by = increments(q.store, &q.block.params)
        .map_err(|e| QueryError::new(QueryKind::Internal, e.to_string()))?;
    Ok(pb::QuerySprtResponse {
        llr: state.llr.to_string(),
        absorbed_ok: state.absorbed_ok,
        absorbed_missed: state.absorbed_missed,
        up: by.up.to_string(),
        down: by.down.to_string(),
        h: q.block.params.downtime_h_threshold.0.to_string(),
    })
}

/// Checks a `GetRandomExecutor` request: `InvalidArgument` for an empty model or a seed that is neither
/// empty nor 32 bytes. `None`: the caller, outside consensus code, must draw a seed.
pub fn requested_seed(req: &pb::QueryGetRandomExecutorRequest) -> Result<Option<[u8; 32]>, QueryError> {
    if req.model.is_empty() {
        return Err(QueryError::invalid("model: must not be empty"));
    }
    match req.seed.as_slice() {
        [] => Ok(None),
        seed => match seed.try_into() {
            Ok(seed) => Ok(Some(seed)),
            Err(_) => {
                Err(QueryError::invalid(format!("seed: must be empty or 32 bytes, has {}", seed.len())))
            }
        },
    }
}

/// Draws; `FailedPrecondition` with the reason when nobody is eligible.
pub fn draw(table: &CandidateTable, seed: [u8; 32]) -> Result<Draw, QueryError> {
    if let Some(reason) = table.empty_reason() {
        let model = &table.header().model;
        let text = format!("nobody is eligible for model {model:?}: {reason}");
        return Err(QueryError::new(QueryKind::FailedPrecondition, text));
    }
    table.draw(seed).ok_or_else(|| QueryError::new(QueryKind::Internal, "the draw found no row"))
}

/// The answer to `GetRandomExecutor`. `executor` is the record of the drawn row's participant, `generation`
/// that of its breaker entry, both at `height`.
pub fn executor_response(
    table: &CandidateTable,
    height: Height,
    seed: [u8; 32],
    draw: Draw,
    executor: Participant,
    generation: u32,
) -> pb::QueryGetRandomExecutorResponse {
    let lane = match draw.lane {
        Lane::Healthy => pb::Lane::Healthy,
        Lane::Probe => pb::Lane::Probe,
        Lane::Fallback => pb::Lane::Fallback,
    };
    pb::QueryGetRandomExecutorResponse {
        executor: Some(executor),
        height,
        seed: seed.to_vec(),
        table_digest: table.digest().to_vec(),
        lane: lane.into(),
        fallback: draw.lane == Lane::Fallback,
        epoch: table.header().epoch,
        generation,
        eligible_count: count(table),
    }
}

/// The answer to `CandidateTable`: header, digest of the whole table, and a page of its rows. Page keys are
/// raw addresses.
pub fn candidate_table(
    table: &CandidateTable,
    height: Height,
    hrp: &Hrp,
    req: &pb::QueryCandidateTableRequest,
) -> Result<pb::QueryCandidateTableResponse, QueryError> {
    if req.model.is_empty() {
        return Err(QueryError::invalid("model: must not be empty"));
    }
    let (rows, page) = paginate(&TableRows(table), &[], req.pagination.as_ref(), |_, value| {
        let corrupt = || StoreError::Backend("a table row cannot be found".to_owned());
        let index = u64::from_bytes(value).ok().and_then(|index| usize::try_from(index).ok());
        let row = index.and_then(|index| table.rows().get(index)).ok_or_else(corrupt)?;
        Ok(Some(pb::CandidateRow {
            participant: row.address.to_bech32(hrp),
            weight: row.weight,
            class: i32::from(row.class),
            since: i64::try_from(row.since).map_err(|_| corrupt())?,
        }))
    })?;
    let header = table.header();
    Ok(pb::QueryCandidateTableResponse {
        epoch: header.epoch,
        model: header.model.clone(),
        share_bp: u32::from(header.share_bp),
        poc: header.poc,
        height,
        digest: table.digest().to_vec(),
        eligible_count: count(table),
        rows,
        pagination: Some(page),
    })
}

fn count(table: &CandidateTable) -> u32 {
    // A table never has 2^32 rows.
    u32::try_from(table.rows().len()).unwrap_or(u32::MAX)
}

/// A table's rows as a store (address → row index), so that its pages obey the rules of all pages.
struct TableRows<'t>(&'t CandidateTable);

impl KvRead for TableRows<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.scan(key, None, Order::Ascending).next() {
            Some(Ok((found, value))) if found == key => Ok(Some(value)),
            Some(Err(error)) => Err(error),
            _ => Ok(None),
        }
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let rows = self.0.rows();
        let position = |key: &[u8]| rows.partition_point(|row| row.address.0.as_slice() < key);
        let range = position(start)..end.map_or(rows.len(), position);
        let pair = |index: usize| {
            let address = rows.get(index)?.address.0.to_vec();
            Some(Ok((address, u64::try_from(index).ok()?.to_bytes())))
        };
        match order {
            Order::Ascending => Box::new(range.filter_map(pair)),
            Order::Descending => Box::new(range.rev().filter_map(pair)),
        }
    }
}
