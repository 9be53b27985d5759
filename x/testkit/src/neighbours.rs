//! Small working versions of the modules next door.

use holdfast_store::{KvRead, Map, Prefix, StoreError};
use holdfast_types::traits::{
    AccountKeeper, Admission, BankKeeper, BreakerGate, BreakerRead, EpochInfo, EpochsRead, HealthClass,
    Stamp, StartAttempt,
};
use holdfast_types::{Address, BlockContext, Coin, Context, Epoch, Height, ModuleError, sdk};

const BALANCES: Map<(Address, String), u128> = Map::new(Prefix::new("membank", 1, "balances"));
const ACCOUNTS: Map<Address, bool> = Map::new(Prefix::new("memauth", 1, "accounts"));

/// A bank whose balances lie in the store of the call, in a space of their own, so branches work.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemBank;

impl MemBank {
    /// Gives `account` exactly `amount` of `denom`, out of nothing.
    pub fn set(&self, ctx: &mut Context<'_>, account: &Address, denom: &str, amount: u128) {
        BALANCES.set(ctx.store, &(*account, denom.to_owned()), &amount).expect("test store");
    }
}

impl BankKeeper for MemBank {
    fn send(
        &self,
        ctx: &mut Context<'_>,
        from: &Address,
        to: &Address,
        coin: &Coin,
    ) -> Result<(), ModuleError> {
        let had = self.balance(ctx.store, from, &coin.denom)?;
        let left = had.checked_sub(coin.amount).ok_or_else(|| {
            ModuleError::sdk(
                sdk::INSUFFICIENT_FUNDS,
                format!("{had} is less than {} {}", coin.amount, coin.denom),
            )
        })?;
        BALANCES.set(ctx.store, &(*from, coin.denom.clone()), &left)?;
        let has = self.balance(ctx.store, to, &coin.denom)?;
        let sum = has
            .checked_add(coin.amount)
            .ok_or_else(|| ModuleError::sdk(sdk::INTERNAL, "balance overflow"))?;
        Ok(BALANCES.set(ctx.store, &(*to, coin.denom.clone()), &sum)?)
    }

    fn burn(&self, ctx: &mut Context<'_>, account: &Address, coin: &Coin) -> Result<(), ModuleError> {
        let had = self.balance(ctx.store, account, &coin.denom)?;
        let left = had.checked_sub(coin.amount);
        let left = left.ok_or_else(|| ModuleError::sdk(sdk::INSUFFICIENT_FUNDS, "less than is to burn"))?;
        Ok(BALANCES.set(ctx.store, &(*account, coin.denom.clone()), &left)?)
    }

    fn balance(&self, store: &dyn KvRead, account: &Address, denom: &str) -> Result<u128, StoreError> {
        Ok(BALANCES.get(store, &(*account, denom.to_owned()))?.unwrap_or(0))
    }
}

/// Accounts as a set of addresses in the store of the call.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemAccounts;

impl MemAccounts {
    /// Whether `address` has an account; a module's account counts.
    pub fn has(&self, store: &dyn KvRead, address: &Address) -> bool {
        ACCOUNTS.has(store, address).expect("test store")
    }

    /// Makes `address` a module's account.
    pub fn set_module(&self, ctx: &mut Context<'_>, address: &Address) {
        ACCOUNTS.set(ctx.store, address, &true).expect("test store");
    }

    /// Whether `address` is a module's account.
    pub fn is_module(&self, store: &dyn KvRead, address: &Address) -> Result<bool, StoreError> {
        Ok(ACCOUNTS.get(store, address)?.unwrap_or(false))
    }
}

impl AccountKeeper for MemAccounts {
    fn ensure_account(&self, ctx: &mut Context<'_>, address: &Address) -> Result<(), ModuleError> {
        if !ACCOUNTS.has(ctx.store, address)? {
            ACCOUNTS.set(ctx.store, address, &false)?;
        }
        Ok(())
    }
}

/// Epochs of one length, epoch 0 at `start_height`.
#[derive(Debug, Clone, Copy)]
pub struct StaticEpochs {
    /// First block of epoch 0.
    pub start_height: Height,
    /// Blocks of an epoch.
    pub length: i64,
    /// Blocks of its PoC phase.
    pub poc_length: i64,
}

impl StaticEpochs {
    /// The epoch that `height` lies in.
    pub fn at(&self, height: Height) -> EpochInfo {
        self.info(((height - self.start_height) / self.length) as u64)
    }

    fn info(&self, epoch: Epoch) -> EpochInfo {
        EpochInfo {
            epoch,
            start_height: self.start_height + epoch as i64 * self.length,
            length: self.length,
            poc_length: self.poc_length,
        }
    }

    /// Moves `block` to `height`, with epoch and phase.
    pub fn move_to(&self, block: &mut BlockContext, height: Height) {
        let info = self.at(height);
        block.height = height;
        block.epoch = info.epoch;
        block.poc = info.is_poc(height);
    }
}

impl EpochsRead for StaticEpochs {
    fn epoch(&self, _store: &dyn KvRead, epoch: Epoch) -> Result<Option<EpochInfo>, StoreError> {
        Ok(Some(self.info(epoch)))
    }
}

/// A breaker that admits everybody as evidence of generation 0 and finds everybody healthy.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenGate;

impl BreakerGate for OpenGate {
    fn admit(&self, ctx: &Context<'_>, _attempt: &StartAttempt<'_>) -> Result<Admission, ModuleError> {
        Ok(Admission { stamp: Stamp { epoch: ctx.block.epoch, generation: 0, evidence: true }, claim: false })
    }
}

impl BreakerRead for OpenGate {
    fn health(
        &self,
        _store: &dyn KvRead,
        _block: &BlockContext,
        _model: &str,
        _participant: &Address,
    ) -> Result<HealthClass, StoreError> {
        Ok(HealthClass::Healthy)
    }
}
