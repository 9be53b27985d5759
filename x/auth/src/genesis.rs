//! Genesis: the accounts and the next number.

use std::collections::BTreeSet;

use holdfast_proto::holdfast::auth::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::{Address, Context, Hrp, ModuleError};
use ripemd::Ripemd160;
use sha2::{Digest, Sha256};

use crate::{ACCOUNTS, Account, AuthError, NEXT_ACCOUNT_NUMBER, PARAMS, Params};

/// The address of a key, as the Cosmos SDK derives it: RIPEMD-160 of SHA-256 of its 33 bytes.
fn address_of(key: &[u8; 33]) -> Address {
    Address(Ripemd160::digest(Sha256::digest(key)).into())
}

/// The accounts of a genesis state, checked: ascending, numbers unique and below the next one, keys
/// those of their addresses.
pub(crate) fn parse(genesis: &pb::GenesisState, hrp: &Hrp) -> Result<Vec<(Address, Account)>, AuthError> {
    let mut out: Vec<(Address, Account)> = Vec::new();
    let mut numbers = BTreeSet::new();
    for (n, row) in genesis.accounts.iter().enumerate() {
        let bad = |field: &str, rule: String| Err(AuthError::genesis(format!("accounts[{n}].{field}"), rule));
        let address = match Address::parse(&row.address, hrp) {
            Ok(address) => address,
            Err(e) => return bad("address", e.to_string()),
        };
        if out.last().is_some_and(|(last, _)| *last >= address) {
            return bad("address", "sort accounts by raw address, each once".into());
        }
        if !numbers.insert(row.account_number) {
            return bad("account_number", format!("{} is used twice", row.account_number));
        }
        if row.account_number >= genesis.next_account_number {
            return bad("account_number", "must be below next_account_number".into());
        }
        let pub_key = match <[u8; 33]>::try_from(row.pub_key.as_slice()) {
            Ok(key) if matches!(key.first(), Some(2 | 3)) => Some(key),
            Err(_) if row.pub_key.is_empty() => None,
            _ => return bad("pub_key", "must be empty or a compressed secp256k1 key of 33 bytes".into()),
        };
        let module = (!row.module_name.is_empty()).then(|| row.module_name.clone());
        if let Some(name) = &module {
            if Address::module(name) != address {
                return bad("module_name", format!("the account of {name:?} has another address"));
            }
            if pub_key.is_some() || row.sequence != 0 {
                return bad("module_name", "a module's account has no key and no sequence".into());
            }
        }
        // A stored key signs without being compared to its address again: a foreign one would own the account.
        if pub_key.is_some_and(|key| address_of(&key) != address) {
            return bad(
                "pub_key",
                "is the key of another address; give the account's own or leave it empty".into(),
            );
        }
        out.push((address, Account { number: row.account_number, sequence: row.sequence, pub_key, module }));
    }
    Ok(out)
}

/// The parameters of a genesis state, checked; the defaults when it has none.
pub(crate) fn params(genesis: &pb::GenesisState) -> Result<Params, AuthError> {
    let params = genesis.params.as_ref().map_or_else(Params::default, Params::from);
    params.validate().map_err(|e| AuthError::genesis(format!("params.{}", e.field), e.rule))?;
    Ok(params)
}

pub(crate) fn init(ctx: &mut Context<'_>, genesis: &pb::GenesisState) -> Result<(), ModuleError> {
    for (address, account) in parse(genesis, &ctx.block.hrp)? {
        ACCOUNTS.set(ctx.store, &address, &account)?;
    }
    PARAMS.set(ctx.store, &params(genesis)?)?;
    Ok(NEXT_ACCOUNT_NUMBER.set(ctx.store, genesis.next_account_number)?)
}

pub(crate) fn export(store: &dyn KvRead, hrp: &Hrp) -> Result<pb::GenesisState, ModuleError> {
    let mut accounts = Vec::new();
    for row in ACCOUNTS.iter(store, Order::Ascending) {
        let (address, account) = row?;
        accounts.push(pb::Account {
            address: address.to_bech32(hrp),
            account_number: account.number,
            sequence: account.sequence,
            pub_key: account.pub_key.map(|key| key.to_vec()).unwrap_or_default(),
            module_name: account.module.unwrap_or_default(),
        });
    }
    let params = PARAMS.get(store)?.unwrap_or_default();
    Ok(pb::GenesisState {
        accounts,
        next_account_number: NEXT_ACCOUNT_NUMBER.peek(store)?,
        params: Some((&params).into()),
    })
}
