//! From group and health to a candidate table (breaker-details 2.4, 4).

use holdfast_store::{KvRead, StoreError};
use holdfast_types::traits::{BreakerRead, HealthClass, ParticipantsRead, Standing};
use holdfast_types::{Address, BlockContext, QueryError, QueryKind};

use crate::draw::{Candidate, CandidateTable, Filter, TableHeader};

/// Where an address stands with regard to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Not in the group.
    Absent,
    /// In the group, but not eligible.
    Filtered(Filter),
    /// Eligible.
    Candidate(Candidate),
}

/// Place of one address: what changes when its health, membership, status or maintenance does.
pub fn candidate_row(
    store: &dyn KvRead,
    block: &BlockContext,
    participants: &dyn ParticipantsRead,
    breaker: &dyn BreakerRead,
    model: &str,
    address: &Address,
) -> Result<Place, StoreError> {
    let standing = participants.standing(store, block, model, address)?;
    place(store, block, breaker, model, address, standing)
}

fn place(
    store: &dyn KvRead,
    block: &BlockContext,
    breaker: &dyn BreakerRead,
    model: &str,
    address: &Address,
    standing: Standing,
) -> Result<Place, StoreError> {
    if !standing.member {
        return Ok(Place::Absent);
    }
    if !standing.serving() {
        return Ok(Place::Filtered(Filter::Inactive));
    }
    let health = breaker.health(store, block, model, address)?;
    if health == HealthClass::ForcedOut {
        return Ok(Place::Filtered(Filter::ForcedOut));
    }
    if standing.in_maintenance {
        return Ok(Place::Filtered(Filter::Maintenance));
    }
    if block.poc && !standing.preserved {
        return Ok(Place::Filtered(Filter::Poc));
    }
    let filtering = block.params.health_cb_enabled && !block.params.health_cb_shadow;
    let (class, since) = match health {
        _ if !filtering => (0, 0),
        HealthClass::Healthy => (0, 0),
        HealthClass::ProbeReady { since } => {
            let corrupt = |_| StoreError::Decode {
                collection: "candidates",
                reason: format!("waits since height {since}"),
            };
            (1, u64::try_from(since).map_err(corrupt)?)
        }
        HealthClass::Out | HealthClass::ForcedOut => (2, 0),
    };
    Ok(Place::Candidate(Candidate { address: *address, weight: standing.weight, class, since }))
}

/// The whole table of `model` at `block`: O(members). An empty one says why
/// ([`CandidateTable::empty_reason`]). Errors: `NotFound` model unknown, `Internal` corrupt state.
pub fn build_table(
    store: &dyn KvRead,
    block: &BlockContext,
    participants: &dyn ParticipantsRead,
    breaker: &dyn BreakerRead,
    model: &str,
) -> Result<CandidateTable, QueryError> {
    if !participants.has_model(store, model)? {
        return Err(QueryError::not_found(format!("model {model:?} is not registered")));
    }
    let (mut rows, mut filtered) = (Vec::new(), Vec::new());
    for (address, standing) in participants.members(store, block, model)? {
        match place(store, block, breaker, model, &address, standing)? {
            Place::Absent => {}
            Place::Filtered(filter) => filtered.push((address, filter)),
            Place::Candidate(row) => rows.push(row),
        }
    }
    let internal = |e: String| QueryError::new(QueryKind::Internal, e);
    let header = TableHeader {
        epoch: block.epoch,
        model: model.to_owned(),
        share_bp: u16::try_from(block.params.health_cb_probe_share_bp)
            .map_err(|e| internal(e.to_string()))?,
        poc: block.poc,
    };
    CandidateTable::new(header, rows, filtered).map_err(|e| internal(e.to_string()))
}
