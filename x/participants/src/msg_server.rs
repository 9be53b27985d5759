//! `holdfast.participants.v1.Msg`.

use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_types::traits::{BankKeeper, EligibilityHooks};
use holdfast_types::{Address, Context, ModuleError, apply_mask};

use crate::errors::ParticipantsError;
use crate::keeper::Keeper;
use crate::msgs::{Registration, Serving, amount, check_model, signer};
use crate::params::{FIELDS, Params};

fn check_authority(ctx: &Context<'_>, authority: String) -> Result<(), ParticipantsError> {
    let expected = ctx.bech32(&Address::module("gov"));
    if authority == expected {
        return Ok(());
    }
    Err(ParticipantsError::InvalidSigner { expected, found: authority })
}

/// Registers the signer. Codes: 3, 6, 4, 7, bank.
pub fn register_participant(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    bank: &dyn BankKeeper,
    msg: pb::MsgRegisterParticipant,
) -> Result<pb::MsgRegisterParticipantResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    keeper.register(ctx, bank, &participant, Registration::from_pb(msg)?)?;
    Ok(pb::MsgRegisterParticipantResponse {})
}

/// Replaces what the signer serves. Codes: 3, 5, 4.
pub fn update_participant(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    hooks: &dyn EligibilityHooks,
    msg: pb::MsgUpdateParticipant,
) -> Result<pb::MsgUpdateParticipantResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    let serving = Serving::from_pb(msg.host_url, msg.workers, msg.models, msg.poc_preserved)?;
    keeper.update(ctx, hooks, &participant, serving)?;
    Ok(pb::MsgUpdateParticipantResponse {})
}

/// The signer leaves at once. Codes: 3, 5.
pub fn leave_network(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    hooks: &dyn EligibilityHooks,
    msg: pb::MsgLeaveNetwork,
) -> Result<pb::MsgLeaveNetworkResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    keeper.leave(ctx, hooks, &participant)?;
    Ok(pb::MsgLeaveNetworkResponse {})
}

/// Bonds more. Codes: 3, 5, bank.
pub fn deposit_collateral(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    bank: &dyn BankKeeper,
    msg: pb::MsgDepositCollateral,
) -> Result<pb::MsgDepositCollateralResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    keeper.deposit(ctx, bank, &participant, &amount(msg.amount.as_ref())?)?;
    Ok(pb::MsgDepositCollateralResponse {})
}

/// Takes collateral out of the bond. Codes: 3, 5, 8.
pub fn withdraw_collateral(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    msg: pb::MsgWithdrawCollateral,
) -> Result<pb::MsgWithdrawCollateralResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    let unbonding_epoch = keeper.withdraw(ctx, &participant, &amount(msg.amount.as_ref())?)?;
    Ok(pb::MsgWithdrawCollateralResponse { unbonding_epoch })
}

/// Pays out what has unbonded. Codes: 3, 5, 9.
pub fn claim_collateral(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    bank: &dyn BankKeeper,
    msg: pb::MsgClaimCollateral,
) -> Result<pb::MsgClaimCollateralResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    let coin = keeper.claim(ctx, bank, &participant)?;
    Ok(pb::MsgClaimCollateralResponse { amount: Some((&coin).into()) })
}

/// Announces a maintenance window. Codes: 3, 5, 10, 11.
pub fn announce_maintenance(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    msg: pb::MsgAnnounceMaintenance,
) -> Result<pb::MsgAnnounceMaintenanceResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    keeper.announce(ctx, &participant, msg.start_height, msg.end_height)?;
    Ok(pb::MsgAnnounceMaintenanceResponse {})
}

/// Takes a window back, or ends it. Codes: 3, 12.
pub fn cancel_maintenance(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    hooks: &dyn EligibilityHooks,
    msg: pb::MsgCancelMaintenance,
) -> Result<pb::MsgCancelMaintenanceResponse, ModuleError> {
    let participant = signer(&msg.participant, &ctx.block.hrp)?;
    keeper.cancel(ctx, hooks, &participant, msg.start_height)?;
    Ok(pb::MsgCancelMaintenanceResponse {})
}

/// Registers a model. Codes: 2, 3, 13, 14.
pub fn register_model(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    msg: pb::MsgRegisterModel,
) -> Result<pb::MsgRegisterModelResponse, ModuleError> {
    check_authority(ctx, msg.authority)?;
    let model = msg.model.ok_or_else(|| ParticipantsError::field("model", "is missing"))?;
    check_model(&model.id)?;
    keeper.register_model(ctx, &model.id)?;
    Ok(pb::MsgRegisterModelResponse {})
}

/// Changes the named parameters. Codes: 2, 3.
pub fn update_params(
    ctx: &mut Context<'_>,
    keeper: &Keeper<'_>,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    check_authority(ctx, msg.authority)?;
    let mask = msg.update_mask.unwrap_or_default().paths;
    let fields = apply_mask(&mask, FIELDS).map_err(ParticipantsError::from)?;
    let given = msg.params.ok_or_else(|| ParticipantsError::field("params", "is missing"))?;
    let given = if fields.contains(&"collateral_per_weight") {
        given
    } else {
        // An amount that the mask leaves out need not be given.
        pb::Params { collateral_per_weight: "1".into(), ..given }
    };
    let given = Params::from_pb(&given).map_err(ParticipantsError::from)?;
    let old = keeper.params(ctx.store)?;
    let mut new = old.clone();
    new.merge(given, &fields);
    new.validate().map_err(ParticipantsError::from)?;
    if new.collateral_denom != old.collateral_denom {
        let rule = "cannot change: collateral is bonded in it";
        return Err(ParticipantsError::field("collateral_denom", rule).into());
    }
    keeper.set_params(ctx, &new)?;
    Ok(pb::MsgUpdateParamsResponse {})
}
