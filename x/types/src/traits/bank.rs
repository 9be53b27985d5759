//! What other modules need of x/bank.

use holdfast_store::{KvRead, StoreError};

use crate::{Address, Coin, Context, ModuleError, sdk};

/// Moves coins. Coins are never made or lost by a move.
pub trait BankKeeper {
    /// Moves `coin` from one account to another; an amount of 0 does nothing.
    /// Fails with `sdk` 5 when `from` has less.
    fn send(
        &self,
        ctx: &mut Context<'_>,
        from: &Address,
        to: &Address,
        coin: &Coin,
    ) -> Result<(), ModuleError>;

    /// Takes `coin` from `account` out of existence; the supply goes down with it. An amount of 0 does nothing.
    /// Fails with `sdk` 5 when the account has less, with `sdk` 37 in a bank that burns nothing, as by default.
    fn burn(&self, _ctx: &mut Context<'_>, _account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        Err(ModuleError::sdk(sdk::NOT_SUPPORTED, format!("this bank cannot burn {}", coin.denom)))
    }

    /// Balance in base units; 0 for an unknown account or denomination.
    fn balance(&self, store: &dyn KvRead, account: &Address, denom: &str) -> Result<u128, StoreError>;
}
