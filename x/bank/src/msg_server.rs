//! Messages.

use holdfast_proto::cosmos::bank::v1beta1 as pb;
use holdfast_types::traits::AccountKeeper;
use holdfast_types::{Address, Context, ModuleError, sdk};

use crate::{Keeper, Send};

/// Moves coins from the signer. `blocked` are the addresses that take no transfers, the module accounts of the
/// app. The receiver gets an account if it has none.
///
/// Fails with `sdk` 7 (address), 10 (coins), 4 (blocked receiver), 5 (funds).
pub fn send(
    ctx: &mut Context<'_>,
    accounts: &dyn AccountKeeper,
    blocked: &[Address],
    msg: pb::MsgSend,
) -> Result<pb::MsgSendResponse, ModuleError> {
    let Send { from, to, coins } = Send::from_pb(&msg, &ctx.block.hrp)?;
    if blocked.contains(&to) {
        let text = format!(
            "to_address: {} is a module account, which takes no transfers: unauthorized",
            msg.to_address
        );
        return Err(ModuleError::sdk(sdk::UNAUTHORIZED, text));
    }
    accounts.ensure_account(ctx, &to)?;
    Keeper.send_coins(ctx, &from, &to, &coins)?;
    Ok(pb::MsgSendResponse {})
}
