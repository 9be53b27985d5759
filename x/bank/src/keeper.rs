//! Moves of coins.

use holdfast_store::{KvRead, KvWrite, StoreError};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Address, Coin, Context, ModuleError, sdk};

use crate::{BALANCES, BankError, SUPPLY, events};

/// The bank keeper. Holds no state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeper;

fn write<K: holdfast_store::KeyCodec>(
    store: &mut dyn KvWrite,
    map: &holdfast_store::Map<K, u128>,
    key: &K,
    amount: u128,
) -> Result<(), StoreError> {
    if amount == 0 { map.remove(store, key) } else { map.set(store, key, &amount) }
}

impl Keeper {
    /// Takes `coin` from `account`. Fails with `sdk` 5 when it has less.
    fn subtract(&self, ctx: &mut Context<'_>, account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        let key = (*account, coin.denom.clone());
        let had = BALANCES.get(ctx.store, &key)?.unwrap_or(0);
        let left = had.checked_sub(coin.amount).ok_or_else(|| {
            let Coin { denom, amount } = coin;
            let text =
                format!("spendable balance {had}{denom} is smaller than {amount}{denom}: insufficient funds");
            ModuleError::sdk(sdk::INSUFFICIENT_FUNDS, text)
        })?;
        Ok(write(ctx.store, &BALANCES, &key, left)?)
    }

    fn add(&self, ctx: &mut Context<'_>, account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        let key = (*account, coin.denom.clone());
        let has = BALANCES.get(ctx.store, &key)?.unwrap_or(0);
        // A balance is part of a supply, and the supply fits: passing 2^128 means corrupt state.
        let sum = has.checked_add(coin.amount).ok_or_else(|| {
            ModuleError::sdk(
                sdk::LOGIC,
                format!("balance of {} in {} passes its supply", account.to_hex(), coin.denom),
            )
        })?;
        Ok(write(ctx.store, &BALANCES, &key, sum)?)
    }

    /// Moves several coins, of distinct denominations, with one set of events. Fails as
    /// [`send`](BankKeeper::send); run it on a branch, for an earlier coin may already have moved.
    pub fn send_coins(
        &self,
        ctx: &mut Context<'_>,
        from: &Address,
        to: &Address,
        coins: &[Coin],
    ) -> Result<(), ModuleError> {
        for coin in coins {
            self.subtract(ctx, from, coin)?;
            self.add(ctx, to, coin)?;
        }
        events::moved(ctx, from, to, coins);
        Ok(())
    }

    /// Makes `coin` out of nothing and gives it to `account`: genesis and modules with that right. Fails with 3
    /// when the supply cannot be counted.
    pub fn mint(&self, ctx: &mut Context<'_>, account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        if coin.amount == 0 {
            return Ok(());
        }
        let supply = self.supply(ctx.store, &coin.denom)?;
        let supply =
            supply.checked_add(coin.amount).ok_or_else(|| BankError::SupplyOverflow(coin.denom.clone()))?;
        SUPPLY.set(ctx.store, &coin.denom, &supply)?;
        self.add(ctx, account, coin)?;
        events::minted(ctx, account, std::slice::from_ref(coin));
        events::received(ctx, account, std::slice::from_ref(coin));
        Ok(())
    }

    /// Takes `coin` from `account` out of existence. Fails with `sdk` 5 when it has less.
    pub fn burn(&self, ctx: &mut Context<'_>, account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        if coin.amount == 0 {
            return Ok(());
        }
        self.subtract(ctx, account, coin)?;
        let supply = self.supply(ctx.store, &coin.denom)?.checked_sub(coin.amount).ok_or_else(|| {
            ModuleError::sdk(sdk::LOGIC, format!("supply of {} is below its balances", coin.denom))
        })?;
        write(ctx.store, &SUPPLY, &coin.denom, supply)?;
        events::spent(ctx, account, std::slice::from_ref(coin));
        events::burned(ctx, account, std::slice::from_ref(coin));
        Ok(())
    }

    /// Base units of `denom` in existence.
    pub fn supply(&self, store: &dyn KvRead, denom: &str) -> Result<u128, StoreError> {
        Ok(SUPPLY.get(store, &denom.to_owned())?.unwrap_or(0))
    }
}

impl BankKeeper for Keeper {
    fn send(
        &self,
        ctx: &mut Context<'_>,
        from: &Address,
        to: &Address,
        coin: &Coin,
    ) -> Result<(), ModuleError> {
        if coin.amount == 0 {
            return Ok(());
        }
        self.send_coins(ctx, from, to, std::slice::from_ref(coin))
    }

    fn burn(&self, ctx: &mut Context<'_>, account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        Self::burn(self, ctx, account, coin)
    }

    fn balance(&self, store: &dyn KvRead, account: &Address, denom: &str) -> Result<u128, StoreError> {
        Ok(BALANCES.get(store, &(*account, denom.to_owned()))?.unwrap_or(0))
    }
}
