//! Messages from the wire to the [`Keeper`]. The app runs each on a branch of its own.

use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Context, ModuleError};

use crate::errors::EscrowError;
use crate::msgs::{BringState, CreateEscrow};
use crate::state::PARAMS;
use crate::{Deps, Keeper};

/// `MsgCreateEscrow`; refusals as [`Keeper::create`].
pub fn create_escrow(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgCreateEscrow,
) -> Result<pb::MsgCreateEscrowResponse, ModuleError> {
    let msg = CreateEscrow::from_pb(msg, &ctx.block.hrp)?;
    Ok(pb::MsgCreateEscrowResponse { escrow_id: Keeper.create(ctx, deps, msg)? })
}

/// `MsgSettleEscrow`; refusals 3, then as [`Keeper::settle`].
pub fn settle_escrow(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgSettleEscrow,
) -> Result<pb::MsgSettleEscrowResponse, ModuleError> {
    let hrp = &ctx.block.hrp;
    let msg = BringState::from_pb(&msg.sender, msg.escrow_id, msg.settlement.as_ref(), hrp)?;
    Keeper.settle(ctx, deps, &msg)?;
    Ok(pb::MsgSettleEscrowResponse {})
}

/// `MsgDisputeEscrow`; refusals 3, then as [`Keeper::dispute`].
pub fn dispute_escrow(
    ctx: &mut Context<'_>,
    msg: pb::MsgDisputeEscrow,
) -> Result<pb::MsgDisputeEscrowResponse, ModuleError> {
    let hrp = &ctx.block.hrp;
    let msg = BringState::from_pb(&msg.sender, msg.escrow_id, msg.settlement.as_ref(), hrp)?;
    Keeper.dispute(ctx, &msg)?;
    Ok(pb::MsgDisputeEscrowResponse {})
}

/// `MsgUpdateParams`: 2 not the gov module account · 3 bad mask or value. Acts on escrows created later.
pub fn update_params(
    ctx: &mut Context<'_>,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    let gov = ctx.bech32(&Address::module("gov"));
    if msg.authority != gov {
        let allowed = format!("the gov module account {gov}");
        return Err(EscrowError::InvalidSigner { field: "authority", allowed }.into());
    }
    let mask = msg.update_mask.unwrap_or_default().paths;
    let given = msg.params.ok_or_else(|| EscrowError::invalid("params", "must be given"))?;
    let params = PARAMS.load(&*ctx.store)?.updated(&given, &mask).map_err(EscrowError::from)?;
    PARAMS.set(ctx.store, &params)?;
    Ok(pb::MsgUpdateParamsResponse {})
}
