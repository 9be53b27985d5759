//! Messages.

use holdfast_proto::holdfast::epochs::v1 as pb;
use holdfast_types::traits::ScheduleLimits;
use holdfast_types::{Context, FieldError, ModuleError};

use crate::{EpochsError, Keeper, STAGED_PARAMS, UpdateParams};

/// Stages new lengths; they hold from the next epoch. A second update before then changes what the first staged.
///
/// Fails with `sdk` 7 (address), 2 (not gov), 3 (mask or params; an epoch made too short for what `limits` says must fit).
pub fn update_params(
    ctx: &mut Context<'_>,
    limits: &dyn ScheduleLimits,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    let UpdateParams { params, fields } = UpdateParams::from_pb(&msg, &ctx.block.hrp)?;
    let base = match STAGED_PARAMS.get(ctx.store)? {
        Some(staged) => staged,
        None => Keeper.params(ctx.store)?,
    };
    let length = base.epoch_length;
    let merged = base.merged(&params, &fields);
    // Only a change is asked: a chain whose epochs are shorter already must still be able to change the rest.
    if merged.epoch_length != length {
        let (span, why) = limits.longest_span(ctx.store)?;
        if merged.epoch_length < span {
            let rule = format!("must be at least {span}, the {why}; lower that first");
            return Err(EpochsError::InvalidParams(FieldError::new("epoch_length", rule)).into());
        }
    }
    Keeper.stage_params(ctx.store, &merged)?;
    Ok(pb::MsgUpdateParamsResponse {})
}
