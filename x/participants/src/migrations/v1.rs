//! From version 1, which knew no validators, to 2: two more parameters, weights by participant with their sums, and no rows
//! of zeros among the sums by model.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::{Item, Order};
use holdfast_types::{Context, Height, ModuleError};

use crate::keys;
use crate::params::Params;
use crate::state::{MEMBERS, NEXT_TOTALS, NEXT_WEIGHTS, PARAMS, PARTICIPANTS, POWER_TOTALS};
use crate::types::{NextTotals, NextWeight, PowerTotals};

/// Parameters as version 1 stored them.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct ParamsV1 {
    pub(crate) collateral_denom: String,
    pub(crate) collateral_per_weight: u128,
    pub(crate) max_models: u32,
    pub(crate) min_announce_blocks: Height,
    pub(crate) max_maintenance_blocks: Height,
    pub(crate) max_maintenance_windows: u32,
}

pub(crate) const PARAMS_V1: Item<ParamsV1> = Item::new(keys::PARAMS);

/// Runs once, in the block of an upgrade; work grows with the registry. `ctx.block.epoch` is the epoch the state stands in.
/// The set of validators stays empty: the engine's own goes on until the next epoch hands its power to participants.
pub(crate) fn migrate(ctx: &mut Context<'_>) -> Result<(), ModuleError> {
    let old = PARAMS_V1.load(ctx.store)?;
    let new = Params {
        collateral_denom: old.collateral_denom,
        collateral_per_weight: old.collateral_per_weight,
        max_models: old.max_models,
        min_announce_blocks: old.min_announce_blocks,
        max_maintenance_blocks: old.max_maintenance_blocks,
        max_maintenance_windows: old.max_maintenance_windows,
        ..Params::default()
    };
    new.validate().map_err(|e| ModuleError::from(crate::ParticipantsError::from(e)))?;
    PARAMS.set(ctx.store, &new)?;

    let epoch = ctx.block.epoch;
    let mut totals = PowerTotals { epoch, ..PowerTotals::default() };
    let participants: Vec<_> =
        PARTICIPANTS.entries().iter(ctx.store, Order::Ascending).collect::<Result<_, _>>()?;
    for (address, participant) in participants {
        let (mut now, mut next) = (0, 0);
        for model in &participant.models {
            if let Some(record) = MEMBERS.get(ctx.store, &(model.clone(), address))? {
                now = record.at(epoch).weight.max(now);
                next = record.next_weight.max(next);
            }
        }
        if next > 0 {
            let validator_key = participant.validator_key;
            NEXT_WEIGHTS.set(ctx.store, &address, &NextWeight { weight: next, validator_key })?;
        }
        totals.weight = totals.weight.saturating_add(now.into());
        totals.next_weight = totals.next_weight.saturating_add(next.into());
    }
    POWER_TOTALS.set(ctx.store, &totals)?;

    let sums: Vec<_> = NEXT_TOTALS.iter(ctx.store, Order::Ascending).collect::<Result<_, _>>()?;
    for (model, _) in sums.into_iter().filter(|(_, sums)| *sums == NextTotals::default()) {
        NEXT_TOTALS.remove(ctx.store, &model)?;
    }
    Ok(())
}
