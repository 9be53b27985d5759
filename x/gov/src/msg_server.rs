//! `cosmos.gov.v1.Msg` and `cosmos.upgrade.v1beta1.Msg`. The signer of each message: [`SIGNERS`](crate::SIGNERS).

use holdfast_proto::cosmos::gov::v1 as pb;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_types::{Address, Context, FieldError, ModuleError, apply_mask, sdk};

use crate::calc::timestamp;
use crate::deps::Deps;
use crate::errors::GovError;
use crate::keeper::Keeper;
use crate::keys::MODULE_NAME;
use crate::msgs::{Submission, address, coins};
use crate::params::FIELDS;
use crate::state::{PARAMS, UPGRADE_PLAN};
use crate::types::{Plan, Vote};

fn check_authority(ctx: &Context<'_>, authority: String) -> Result<(), GovError> {
    let expected = ctx.bech32(&Address::module(MODULE_NAME));
    if authority == expected {
        return Ok(());
    }
    Err(GovError::InvalidSigner { field: "authority".into(), expected, found: authority })
}

/// Makes a proposal. Codes: `sdk` 7, 5, 22, 15, `sdk` 10, 11, 25, 24, 18, 23, 16, 10, 12, 13, bank.
pub fn submit_proposal(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgSubmitProposal,
) -> Result<pb::MsgSubmitProposalResponse, ModuleError> {
    let submission = Submission::from_pb(msg, &ctx.block.hrp)?;
    let (proposal_id, _) = Keeper.submit(ctx, deps, submission)?;
    Ok(pb::MsgSubmitProposalResponse { proposal_id })
}

/// Puts coins on a proposal. Codes: `sdk` 7, `sdk` 10, 2, 3, 18, 23, 16, bank.
pub fn deposit(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgDeposit,
) -> Result<pb::MsgDepositResponse, ModuleError> {
    let depositor = address("depositor", &msg.depositor, &ctx.block.hrp)?;
    let coins = coins("amount", &msg.amount)?;
    if coins.is_empty() {
        let text = "amount: name at least one coin: invalid coins";
        return Err(ModuleError::sdk(sdk::INVALID_COINS, text));
    }
    Keeper.deposit(ctx, deps, msg.proposal_id, &depositor, &coins)?;
    Ok(pb::MsgDepositResponse {})
}

/// Votes for one option. Codes: `sdk` 7, 15, 7, 2, 3, 20, 26.
pub fn vote(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgVote,
) -> Result<pb::MsgVoteResponse, ModuleError> {
    let voter = address("voter", &msg.voter, &ctx.block.hrp)?;
    let vote = Vote::single(msg.option, msg.metadata)?;
    Keeper.vote(ctx, deps, msg.proposal_id, &voter, &vote)?;
    Ok(pb::MsgVoteResponse {})
}

/// Votes in parts. Codes: `sdk` 7, 15, 7, 2, 3, 20, 26.
pub fn vote_weighted(
    ctx: &mut Context<'_>,
    deps: &Deps<'_>,
    msg: pb::MsgVoteWeighted,
) -> Result<pb::MsgVoteWeightedResponse, ModuleError> {
    let voter = address("voter", &msg.voter, &ctx.block.hrp)?;
    let vote = Vote::weighted(&msg.options, msg.metadata)?;
    Keeper.vote(ctx, deps, msg.proposal_id, &voter, &vote)?;
    Ok(pb::MsgVoteWeightedResponse {})
}

/// Takes the signer's proposal back. Codes: `sdk` 7, 2, 18, 21, 20.
pub fn cancel_proposal(
    ctx: &mut Context<'_>,
    msg: pb::MsgCancelProposal,
) -> Result<pb::MsgCancelProposalResponse, ModuleError> {
    let proposer = address("proposer", &msg.proposer, &ctx.block.hrp)?;
    Keeper.cancel(ctx, msg.proposal_id, &proposer)?;
    Ok(pb::MsgCancelProposalResponse {
        proposal_id: msg.proposal_id,
        canceled_time: Some(timestamp(ctx.block.time_ns)),
        canceled_height: u64::try_from(ctx.block.height).unwrap_or(0),
    })
}

/// Changes the named parameters. Codes: 13, `sdk` 18.
pub fn update_params(
    ctx: &mut Context<'_>,
    msg: pb::MsgUpdateParams,
) -> Result<pb::MsgUpdateParamsResponse, ModuleError> {
    check_authority(ctx, msg.authority)?;
    let mask = msg.update_mask.unwrap_or_default().paths;
    let fields = apply_mask(&mask, FIELDS).map_err(GovError::from)?;
    let given = msg.params.ok_or_else(|| GovError::from(FieldError::new("params", "is missing")))?;
    let old = Keeper.params(ctx.store)?;
    let new = old.with_fields(&given, &fields, &ctx.block.hrp).map_err(GovError::from)?;
    new.validate().map_err(GovError::from)?;
    PARAMS.set(ctx.store, &new)?;
    Ok(pb::MsgUpdateParamsResponse {})
}

/// Plans an upgrade. Codes: 13, `sdk` 18.
pub fn software_upgrade(
    ctx: &mut Context<'_>,
    msg: upgrade::MsgSoftwareUpgrade,
) -> Result<upgrade::MsgSoftwareUpgradeResponse, ModuleError> {
    check_authority(ctx, msg.authority)?;
    let plan = msg.plan.ok_or_else(|| GovError::from(FieldError::new("plan", "is missing")))?;
    Keeper.plan_upgrade(ctx, &Plan::from_pb(plan)?)?;
    Ok(upgrade::MsgSoftwareUpgradeResponse {})
}

/// Drops the planned upgrade. Codes: 13, 27.
pub fn cancel_upgrade(
    ctx: &mut Context<'_>,
    msg: upgrade::MsgCancelUpgrade,
) -> Result<upgrade::MsgCancelUpgradeResponse, ModuleError> {
    check_authority(ctx, msg.authority)?;
    if UPGRADE_PLAN.get(ctx.store)?.is_none() {
        return Err(GovError::NoPlan.into());
    }
    Keeper.clear_upgrade_plan(ctx)?;
    Ok(upgrade::MsgCancelUpgradeResponse {})
}
