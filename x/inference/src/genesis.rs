//! Genesis: the whole state of the module, checked, written and read back.

use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_store::{KvRead, KvWrite, Order};
use holdfast_types::{Address, Epoch, Hrp, ModuleError};

use crate::abci::increments;
use crate::errors::InferenceError;
use crate::state::{INFERENCES, PARAMS, SPRT, SPRT_INCREMENTS, STATS};
use crate::types::{EpochStats, Inference, SprtState, Status};
use crate::{Params, calc, msgs};

/// A parsed and checked genesis state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Genesis {
    params: Params,
    inferences: Vec<(String, Inference)>,
    stats: Vec<((Epoch, Address), EpochStats)>,
    sprt: Vec<((Epoch, Address), SprtState)>,
}

fn ascending<K: Ord, V>(field: &'static str, rows: &[(K, V)]) -> Result<(), InferenceError> {
    if rows.is_sorted_by(|a, b| a.0 < b.0) {
        return Ok(());
    }
    Err(InferenceError::invalid(field, "must ascend by key, each key once"))
}

/// Whether the parts of a record fit its status.
fn check_inference(inference: &Inference) -> Result<(), &'static str> {
    // Destructured so that a new field forces a decision here.
    let Inference { status, expires_at, start, answer, paid, refunded, end_height, failure_kind } = inference;
    let fits = match status {
        Status::Started => start.is_some() && answer.is_none(),
        Status::FinishedFirst => start.is_none() && answer.is_some(),
        Status::Finished => start.is_some() && answer.is_some(),
        Status::Expired | Status::Failed | Status::Cancelled | Status::Released => {
            start.is_some() && answer.is_none()
        }
    };
    if !fits {
        return Err("start and answer do not fit the status");
    }
    if *failure_kind != 0 && *status != Status::Failed {
        return Err("failure_kind is for failed ones");
    }
    if status.is_open() != (*end_height == 0) || *end_height < 0 {
        return Err("end_height must be 0 while open and above 0 afterwards");
    }
    if *expires_at < 1 {
        return Err("expires_at must be above 0");
    }
    if let Some(start) = start {
        if start.height < 1 || start.height > *expires_at {
            return Err("start_height must be 1 to expires_at");
        }
        if start.model.is_empty() {
            return Err("model must not be empty");
        }
        if calc::escrow(start.prompt_tokens, start.max_tokens, start.token_price.amount)
            != Some(start.escrowed)
        {
            return Err("escrowed must be the tokens times token_price");
        }
    }
    if let Some(answer) = answer {
        if answer.height < 1 {
            return Err("finish_height must be above 0");
        }
        if start.as_ref().is_some_and(|start| start.assigned_to != answer.executed_by) {
            return Err("executed_by must be assigned_to");
        }
    }
    let escrowed = start.as_ref().map_or(0, |start| start.escrowed);
    let settled = match status {
        Status::Started | Status::FinishedFirst => *paid == 0 && *refunded == 0,
        Status::Finished => paid.checked_add(*refunded) == Some(escrowed),
        _ => *paid == 0 && *refunded == escrowed,
    };
    if settled { Ok(()) } else { Err("paid and refunded do not fit the status") }
}

impl Genesis {
    /// Reads and checks the protobuf form; errors are code 3.
    pub(crate) fn from_pb(pb: &pb::GenesisState, hrp: &Hrp) -> Result<Self, InferenceError> {
        let params = pb.params.as_ref().ok_or_else(|| InferenceError::invalid("params", "must be given"))?;
        let params = Params::from_pb(params)?;
        let mut inferences = Vec::with_capacity(pb.inferences.len());
        for row in &pb.inferences {
            let id = msgs::id(row.inference_id.clone())?;
            let inference = Inference::from_pb(row, hrp)?;
            check_inference(&inference)
                .map_err(|rule| InferenceError::invalid("inferences", format!("{id}: {rule}")))?;
            inferences.push((id, inference));
        }
        let stats =
            pb.stats.iter().map(|row| EpochStats::from_pb(row, hrp)).collect::<Result<Vec<_>, _>>()?;
        let sprt = pb.sprt.iter().map(|row| SprtState::from_pb(row, hrp)).collect::<Result<Vec<_>, _>>()?;
        ascending("inferences", &inferences)?;
        ascending("stats", &stats)?;
        ascending("sprt", &sprt)?;
        for (_, row) in &stats {
            let ended = row.inference_count.checked_add(row.missed_requests);
            if ended.and_then(|n| n.checked_add(row.released)).is_none_or(|n| n > row.assigned) {
                return Err(InferenceError::invalid(
                    "stats.assigned",
                    "must be at least the sum of what ended",
                ));
            }
        }
        for (key, row) in &sprt {
            // Rows of past epochs are pruned separately, so a ratio may have lost its statistics.
            let Ok(at) = stats.binary_search_by_key(key, |(key, _)| *key) else { continue };
            let Some((_, counts)) = stats.get(at) else { continue };
            if row.absorbed_ok > counts.inference_count || row.absorbed_missed > counts.missed_requests {
                return Err(InferenceError::invalid("sprt", "has absorbed more than the statistics count"));
            }
        }
        Ok(Self { params, inferences, stats, sprt })
    }

    /// The protobuf form.
    pub(crate) fn to_pb(&self, hrp: &Hrp) -> pb::GenesisState {
        pb::GenesisState {
            params: Some(self.params.to_pb()),
            inferences: self.inferences.iter().map(|(id, row)| row.to_pb(id, hrp)).collect(),
            stats: self.stats.iter().map(|((epoch, who), row)| row.to_pb(*epoch, who, hrp)).collect(),
            sprt: self.sprt.iter().map(|((epoch, who), row)| row.to_pb(*epoch, who, hrp)).collect(),
        }
    }

    /// Writes the state; indexes follow.
    pub(crate) fn write(&self, store: &mut dyn KvWrite) -> Result<(), ModuleError> {
        PARAMS.set(store, &self.params)?;
        let increments = increments(&*store, &self.params.validation)?;
        SPRT_INCREMENTS.set(store, &increments)?;
        for (id, inference) in &self.inferences {
            INFERENCES.set(store, id, inference)?;
        }
        for (key, row) in &self.stats {
            STATS.set(store, key, row)?;
        }
        for (key, row) in &self.sprt {
            SPRT.set(store, key, row)?;
        }
        Ok(())
    }

    /// Reads the state back.
    pub(crate) fn read(store: &dyn KvRead) -> Result<Self, ModuleError> {
        Ok(Self {
            params: PARAMS.load(store)?,
            inferences: INFERENCES.entries().iter(store, Order::Ascending).collect::<Result<_, _>>()?,
            stats: STATS.iter(store, Order::Ascending).collect::<Result<_, _>>()?,
            sprt: SPRT.iter(store, Order::Ascending).collect::<Result<_, _>>()?,
        })
    }
}
