//! Messages.

use holdfast_proto::cosmos::auth::v1beta1 as pb;
use holdfast_types::{Context, ModuleError};

use crate::{AuthError, Keeper, PARAMS, UpdateParams};

/// Changes parameters from the next block on.
///
/// Fails with `sdk` 7 (address), 4 (not gov), 5 (mask or params).
pub fn update_params(
    ctx: &mut Context<'_>,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    let UpdateParams { params, fields } = UpdateParams::from_pb(&msg, &ctx.block.hrp)?;
    let merged = Keeper.params(ctx.store)?.merged(&params, &fields);
    merged.validate().map_err(AuthError::InvalidParams)?;
    PARAMS.set(ctx.store, &merged)?;
    Ok(pb::MsgUpdateParamsResponse {})
}
