//! Messages from the wire to the [`Keeper`]. The app runs each on a branch of its own.

use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_types::{Context, ModuleError};

use crate::msgs::{CancelInference, FinishInference, ReportFailure, StartInference};
use crate::{Deps, Keeper};

/// `MsgStartInference`; refusals as [`Keeper::start`].
pub fn start_inference(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgStartInference,
) -> Result<pb::MsgStartInferenceResponse, ModuleError> {
    let msg = StartInference::from_pb(msg, &ctx.block.hrp)?;
    Keeper.start(ctx, deps, msg)?;
    Ok(pb::MsgStartInferenceResponse {})
}

/// `MsgFinishInference`; refusals as [`Keeper::finish`].
pub fn finish_inference(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgFinishInference,
) -> Result<pb::MsgFinishInferenceResponse, ModuleError> {
    let msg = FinishInference::from_pb(msg, &ctx.block.hrp)?;
    Keeper.finish(ctx, deps, msg)?;
    Ok(pb::MsgFinishInferenceResponse {})
}

/// `MsgReportFailure`; refusals as [`Keeper::report_failure`].
pub fn report_failure(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgReportFailure,
) -> Result<pb::MsgReportFailureResponse, ModuleError> {
    let msg = ReportFailure::from_pb(msg, &ctx.block.hrp)?;
    Keeper.report_failure(ctx, deps, msg)?;
    Ok(pb::MsgReportFailureResponse {})
}

/// `MsgCancelInference`; refusals as [`Keeper::cancel`].
pub fn cancel_inference(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgCancelInference,
) -> Result<pb::MsgCancelInferenceResponse, ModuleError> {
    let msg = CancelInference::from_pb(msg, &ctx.block.hrp)?;
    Keeper.cancel(ctx, deps, msg)?;
    Ok(pb::MsgCancelInferenceResponse {})
}

/// `MsgUpdateParams`; refusals as [`Keeper::update_params`].
pub fn update_params(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    Keeper.update_params(ctx, deps, msg.into())?;
    Ok(pb::MsgUpdateParamsResponse {})
}
