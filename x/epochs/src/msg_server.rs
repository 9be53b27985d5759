//! Messages.

use holdfast_proto::holdfast::epochs::v1 as pb;
use holdfast_types::{Context, ModuleError};

use crate::{Keeper, STAGED_PARAMS, UpdateParams};

/// Stages new lengths; they hold from the next epoch. A second update before then changes what the first staged.
///
/// Fails with `sdk` 7 (address), 2 (not gov), 3 (mask or params).
pub fn update_params(
    ctx: &mut Context<'_>,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    let UpdateParams { params, fields } = UpdateParams::from_pb(&msg, &ctx.block.hrp)?;
    let base = match STAGED_PARAMS.get(ctx.store)? {
        Some(staged) => staged,
        None => Keeper.params(ctx.store)?,
    };
    Keeper.stage_params(ctx.store, &base.merged(&params, &fields))?;
    Ok(pb::MsgUpdateParamsResponse {})
}
