//! Messages to their modules.

use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_proto::cosmos::{
    auth::v1beta1 as auth, bank::v1beta1 as bank, gov::v1 as gov, upgrade::v1beta1 as upgrade,
};
use holdfast_proto::holdfast::{breaker, epochs, escrow, inference, participants};
use holdfast_proto::{Any, Message, Name};
use holdfast_types::traits::MessageRouter;
use holdfast_types::{Address, Context, Hrp, ModuleError, decode_msg, sdk};

use crate::ante::FEE_COLLECTOR;
use crate::app::panic_error;
use crate::composition::{Composition, Hooks, MODULE_NAMES};
use crate::tx::{message_signer, pack};

/// Whether `url` is the type URL of `M`, without building it.
fn is<M: Name>(url: &str) -> bool {
    let name = url.strip_prefix('/').and_then(|name| name.strip_prefix(M::PACKAGE));
    name.and_then(|name| name.strip_prefix('.')) == Some(M::NAME)
}

/// Accounts that take no transfers: those of the modules.
fn blocked() -> Vec<Address> {
    MODULE_NAMES.iter().chain(&[FEE_COLLECTOR]).map(|name| Address::module(name)).collect()
}

macro_rules! table {
    ($($msg:ty => |$ctx:ident, $hooks:ident, $value:ident| $call:expr;)*) => {
        /// Type URLs of every message the app routes.
        pub fn message_types() -> Vec<String> {
            vec![$(holdfast_proto::type_url::<$msg>()),*]
        }

        /// Whether a message of this type is routed.
        pub fn is_routed(url: &str) -> bool {
            $(is::<$msg>(url))||*
        }

        fn dispatch(ctx: &mut Context<'_>, hooks: &Hooks<'_>, message: &Any) -> Result<Any, ModuleError> {
            $(if is::<$msg>(&message.type_url) {
                let ($ctx, $hooks, $value) = (ctx, hooks, decode_msg::<$msg>(&message.value)?);
                return Ok(pack(&$call?));
            })*
            Err(unknown(&message.type_url))
        }

        /// Decodes a message of a routed type strictly and drops it.
        pub fn check_message(message: &Any) -> Result<(), ModuleError> {
            $(if is::<$msg>(&message.type_url) {
                return decode_msg::<$msg>(&message.value).map(|_| ());
            })*
            Err(unknown(&message.type_url))
        }
    };
}

fn unknown(url: &str) -> ModuleError {
    let url: String = url.chars().take(100).collect();
    ModuleError::sdk(sdk::UNKNOWN_REQUEST, format!("messages: no module takes {url:?}"))
}

table! {
    auth::MsgUpdateParams => |ctx, _hooks, msg| holdfast_auth::msg_server::update_params(ctx, msg);
    bank::MsgSend => |ctx, _hooks, msg| holdfast_bank::msg_server::send(ctx, &holdfast_auth::Keeper, &blocked(), msg);
    epochs::v1::MsgUpdateParams => |ctx, _hooks, msg| holdfast_epochs::msg_server::update_params(ctx, &holdfast_inference::Keeper, msg);
    participants::v1::MsgRegisterParticipant => |ctx, hooks, msg|
        holdfast_participants::msg_server::register_participant(ctx, &hooks.participants, &holdfast_bank::Keeper, msg);
    participants::v1::MsgUpdateParticipant => |ctx, hooks, msg|
        holdfast_participants::msg_server::update_participant(ctx, &hooks.participants, hooks, msg);
    participants::v1::MsgLeaveNetwork => |ctx, hooks, msg|
        holdfast_participants::msg_server::leave_network(ctx, &hooks.participants, hooks, msg);
    participants::v1::MsgDepositCollateral => |ctx, hooks, msg|
        holdfast_participants::msg_server::deposit_collateral(ctx, &hooks.participants, &holdfast_bank::Keeper, msg);
    participants::v1::MsgWithdrawCollateral => |ctx, hooks, msg|
        holdfast_participants::msg_server::withdraw_collateral(ctx, &hooks.participants, msg);
    participants::v1::MsgClaimCollateral => |ctx, hooks, msg|
        holdfast_participants::msg_server::claim_collateral(ctx, &hooks.participants, &holdfast_bank::Keeper, msg);
    participants::v1::MsgAnnounceMaintenance => |ctx, hooks, msg|
        holdfast_participants::msg_server::announce_maintenance(ctx, &hooks.participants, msg);
    participants::v1::MsgCancelMaintenance => |ctx, hooks, msg|
        holdfast_participants::msg_server::cancel_maintenance(ctx, &hooks.participants, hooks, msg);
    participants::v1::MsgRegisterModel => |ctx, hooks, msg|
        holdfast_participants::msg_server::register_model(ctx, &hooks.participants, msg);
    participants::v1::MsgUpdateParams => |ctx, hooks, msg|
        holdfast_participants::msg_server::update_params(ctx, &hooks.participants, msg);
    inference::v1::MsgStartInference => |ctx, hooks, msg|
        hooks.inference(|deps| holdfast_inference::msg_server::start_inference(ctx, deps, msg));
    inference::v1::MsgFinishInference => |ctx, hooks, msg|
        hooks.inference(|deps| holdfast_inference::msg_server::finish_inference(ctx, deps, msg));
    inference::v1::MsgReportFailure => |ctx, hooks, msg|
        hooks.inference(|deps| holdfast_inference::msg_server::report_failure(ctx, deps, msg));
    inference::v1::MsgCancelInference => |ctx, hooks, msg|
        hooks.inference(|deps| holdfast_inference::msg_server::cancel_inference(ctx, deps, msg));
    inference::v1::MsgUpdateParams => |ctx, hooks, msg|
        hooks.inference(|deps| holdfast_inference::msg_server::update_params(ctx, deps, msg));
    breaker::v1::MsgSetBreakerOverride => |ctx, hooks, msg|
        holdfast_breaker::msg_server::set_breaker_override(ctx, &hooks.breaker(), msg);
    escrow::v1::MsgCreateEscrow => |ctx, hooks, msg|
        hooks.escrow(|deps| holdfast_escrow::msg_server::create_escrow(ctx, deps, msg));
    escrow::v1::MsgSettleEscrow => |ctx, hooks, msg|
        hooks.escrow(|deps| holdfast_escrow::msg_server::settle_escrow(ctx, deps, msg));
    escrow::v1::MsgDisputeEscrow => |ctx, _hooks, msg| holdfast_escrow::msg_server::dispute_escrow(ctx, msg);
    escrow::v1::MsgUpdateParams => |ctx, _hooks, msg| holdfast_escrow::msg_server::update_params(ctx, msg);
    gov::MsgSubmitProposal => |ctx, hooks, msg|
        hooks.gov(|deps| holdfast_gov::msg_server::submit_proposal(ctx, deps, msg));
    gov::MsgDeposit => |ctx, hooks, msg| hooks.gov(|deps| holdfast_gov::msg_server::deposit(ctx, deps, msg));
    gov::MsgVote => |ctx, hooks, msg| hooks.gov(|deps| holdfast_gov::msg_server::vote(ctx, deps, msg));
    gov::MsgVoteWeighted => |ctx, hooks, msg|
        hooks.gov(|deps| holdfast_gov::msg_server::vote_weighted(ctx, deps, msg));
    gov::MsgCancelProposal => |ctx, _hooks, msg| holdfast_gov::msg_server::cancel_proposal(ctx, msg);
    gov::MsgUpdateParams => |ctx, _hooks, msg| holdfast_gov::msg_server::update_params(ctx, msg);
    upgrade::MsgSoftwareUpgrade => |ctx, _hooks, msg| holdfast_gov::msg_server::software_upgrade(ctx, msg);
    upgrade::MsgCancelUpgrade => |ctx, _hooks, msg| holdfast_gov::msg_server::cancel_upgrade(ctx, msg);
}

impl MessageRouter for Hooks<'_> {
    fn check(&self, message: &Any) -> Result<(), ModuleError> {
        check_message(message)
    }

    fn signers(&self, message: &Any, hrp: &Hrp) -> Result<Vec<Address>, ModuleError> {
        Ok(vec![message_signer(message, hrp)?])
    }

    fn deliver(&self, ctx: &mut Context<'_>, message: &Any) -> Result<Any, ModuleError> {
        // A handler's panic is a failed proposal. What it left on the branch is dropped with the branch.
        let guarded = AssertUnwindSafe(|| dispatch(ctx, self, message));
        catch_unwind(guarded).unwrap_or_else(|panic| Err(panic_error(&*panic)))
    }
}

impl Composition {
    /// Runs one message. `ctx` is a branch: the caller keeps or drops it.
    ///
    /// # Errors
    /// `sdk` 6 for an unrouted type, 34 for bytes that are not the message's one encoding, else the module's.
    pub fn deliver(&self, ctx: &mut Context<'_>, message: &Any) -> Result<Any, ModuleError> {
        self.with(|hooks| dispatch(ctx, hooks, message))
    }
}

/// Decodes a packed response; for clients of [`Composition::deliver`] in the same process.
pub fn unpack<M: Message + Name + Default>(any: &Any) -> Option<M> {
    is::<M>(&any.type_url).then(|| M::decode(any.value.as_slice()).ok()).flatten()
}
