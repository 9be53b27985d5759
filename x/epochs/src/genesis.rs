//! Genesis: parameters, staged parameters, and the epochs of an exported chain.

use holdfast_proto::holdfast::epochs::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::traits::EpochInfo;
use holdfast_types::{Context, ModuleError};

use crate::query_server::to_pb;
use crate::{CURRENT, EPOCHS, EpochsError, PARAMS, Params, STAGED_PARAMS};

/// Highest index of an imported epoch: no more epochs than heights, so indexes never run out.
const INDEX_MAX: u64 = i64::MAX.unsigned_abs();

/// A genesis state, checked.
pub(crate) struct Genesis {
    params: Params,
    staged: Option<Params>,
    epochs: Vec<EpochInfo>,
}

/// Params valid, epochs consecutive in index and not overlapping.
pub(crate) fn parse(genesis: &pb::GenesisState) -> Result<Genesis, EpochsError> {
    let params = |name: &str, params: &pb::Params| {
        let params = Params::from(params);
        params.validate().map_err(|e| EpochsError::genesis(format!("{name}.{}", e.field), e.rule))?;
        Ok(params)
    };
    let given = genesis.params.as_ref().ok_or_else(|| EpochsError::genesis("params", "must be given"))?;
    let mut epochs: Vec<EpochInfo> = Vec::new();
    for (n, row) in genesis.epochs.iter().enumerate() {
        let field = |name: &str| format!("epochs[{n}].{name}");
        let pb::EpochInfo { index, start_height, length, poc_length } = *row;
        let lengths = Params { epoch_length: length, poc_length };
        lengths.validate().map_err(|e| {
            let name = if e.field == "epoch_length" { "length" } else { e.field };
            EpochsError::genesis(field(name), e.rule)
        })?;
        if index > INDEX_MAX {
            return Err(EpochsError::genesis(field("index"), "must be below 2^63"));
        }
        if start_height < 1 {
            return Err(EpochsError::genesis(field("start_height"), "must be at least 1"));
        }
        if let Some(last) = epochs.last() {
            if last.epoch.checked_add(1) != Some(index) {
                return Err(EpochsError::genesis(field("index"), "must follow the one before"));
            }
            if start_height < last.end() {
                return Err(EpochsError::genesis(field("start_height"), "must not lie in the epoch before"));
            }
        }
        epochs.push(EpochInfo { epoch: index, start_height, length, poc_length });
    }
    Ok(Genesis {
        params: params("params", given)?,
        staged: genesis.staged_params.as_ref().map(|p| params("staged_params", p)).transpose()?,
        epochs,
    })
}

pub(crate) fn init(ctx: &mut Context<'_>, genesis: &pb::GenesisState) -> Result<(), ModuleError> {
    let Genesis { params, staged, epochs } = parse(genesis)?;
    PARAMS.set(ctx.store, &params)?;
    if let Some(staged) = staged {
        STAGED_PARAMS.set(ctx.store, &staged)?;
    }
    for info in &epochs {
        EPOCHS.set(ctx.store, &info.epoch, info)?;
    }
    if let Some(current) = epochs.last() {
        CURRENT.set(ctx.store, &current.epoch)?;
    }
    Ok(())
}

pub(crate) fn export(store: &dyn KvRead) -> Result<pb::GenesisState, ModuleError> {
    let mut epochs = Vec::new();
    for row in EPOCHS.iter(store, Order::Ascending) {
        epochs.push(to_pb(&row?.1));
    }
    Ok(pb::GenesisState {
        params: Some((&PARAMS.get(store)?.unwrap_or_default()).into()),
        staged_params: STAGED_PARAMS.get(store)?.as_ref().map(Into::into),
        epochs,
    })
}
