//! Reads and writes of accounts.

use holdfast_store::{KvRead, KvWrite, StoreError};
use holdfast_types::traits::AccountKeeper;
use holdfast_types::{Address, Context, ModuleError, sdk};

use crate::{ACCOUNTS, Account, AuthError, NEXT_ACCOUNT_NUMBER, PARAMS, Params};

/// The account keeper. Holds no state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keeper;

impl Keeper {
    /// The parameters in force.
    pub fn params(&self, store: &dyn KvRead) -> Result<Params, StoreError> {
        Ok(PARAMS.get(store)?.unwrap_or_default())
    }

    /// The account of `address`, if it has one.
    pub fn account(&self, store: &dyn KvRead, address: &Address) -> Result<Option<Account>, StoreError> {
        ACCOUNTS.get(store, address)
    }

    /// Replaces the account of `address`. The caller keeps numbers unique: take them from
    /// [`Keeper::ensure_account`](AccountKeeper::ensure_account).
    pub fn set_account(
        &self,
        store: &mut dyn KvWrite,
        address: &Address,
        account: &Account,
    ) -> Result<(), StoreError> {
        ACCOUNTS.set(store, address, account)
    }

    /// Counts one transaction of `address` and returns the new sequence. Fails with `sdk` 9 without an account,
    /// 3 for a module's, `sdk` 32 when the sequence is used up.
    pub fn increment_sequence(&self, store: &mut dyn KvWrite, address: &Address) -> Result<u64, ModuleError> {
        let mut account = self.signer(store, address)?;
        account.sequence = account.sequence.checked_add(1).ok_or_else(|| {
            ModuleError::sdk(sdk::WRONG_SEQUENCE, "sequence: the account's numbers are used up")
        })?;
        ACCOUNTS.set(store, address, &account)?;
        Ok(account.sequence)
    }

    /// Records the key that `address` signs with. The caller has checked that the address is the key's. Fails
    /// as [`Keeper::increment_sequence`].
    pub fn set_pub_key(
        &self,
        store: &mut dyn KvWrite,
        address: &Address,
        pub_key: [u8; 33],
    ) -> Result<(), ModuleError> {
        let mut account = self.signer(store, address)?;
        account.pub_key = Some(pub_key);
        Ok(ACCOUNTS.set(store, address, &account)?)
    }

    /// Makes the account of module `name` and returns its address. An ordinary account that already lies there
    /// (made by a transfer before the module existed) becomes the module's.
    pub fn ensure_module_account(&self, store: &mut dyn KvWrite, name: &str) -> Result<Address, ModuleError> {
        let address = Address::module(name);
        let number = match ACCOUNTS.get(store, &address)? {
            Some(account) if account.module.as_deref() == Some(name) => return Ok(address),
            Some(account) => account.number,
            None => NEXT_ACCOUNT_NUMBER.next(store)?,
        };
        // Key and sequence are dropped, not carried over: a module's account has neither, in genesis too.
        let account = Account { number, module: Some(name.to_owned()), ..Account::default() };
        ACCOUNTS.set(store, &address, &account)?;
        Ok(address)
    }

    /// Whether `address` belongs to a module.
    pub fn is_module_account(&self, store: &dyn KvRead, address: &Address) -> Result<bool, StoreError> {
        Ok(ACCOUNTS.get(store, address)?.is_some_and(|account| account.module.is_some()))
    }

    fn signer(&self, store: &dyn KvRead, address: &Address) -> Result<Account, ModuleError> {
        let account = ACCOUNTS.get(store, address)?.ok_or_else(|| {
            let text = format!("account {} does not exist; send coins to it first", address.to_hex());
            ModuleError::sdk(sdk::UNKNOWN_ADDRESS, text)
        })?;
        match account.module {
            Some(name) => Err(AuthError::ModuleAccount(name).into()),
            None => Ok(account),
        }
    }
}

impl AccountKeeper for Keeper {
    fn ensure_account(&self, ctx: &mut Context<'_>, address: &Address) -> Result<(), ModuleError> {
        if !ACCOUNTS.has(ctx.store, address)? {
            let account = Account { number: NEXT_ACCOUNT_NUMBER.next(ctx.store)?, ..Account::default() };
            ACCOUNTS.set(ctx.store, address, &account)?;
        }
        Ok(())
    }
}
