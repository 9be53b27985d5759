//! Queries of `cosmos.auth.v1beta1`, as clients of the Cosmos SDK ask them.

use holdfast_proto::cosmos::auth::v1beta1 as pb;
use holdfast_proto::cosmos::crypto::secp256k1::PubKey;
use holdfast_proto::{Any, Message, Name, type_url};
use holdfast_types::{Address, Hrp, QueryContext, QueryError, paginate};

use holdfast_store::{KeyCodec, StoreError};

use crate::{ACCOUNTS, Account, Keeper};

fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: type_url::<M>(), value: message.encode_to_vec() }
}

/// The account as an `Any` of `BaseAccount`, or of `ModuleAccount` for a module's.
pub fn to_any(address: &Address, account: &Account, hrp: &Hrp) -> Any {
    let base = pb::BaseAccount {
        address: address.to_bech32(hrp),
        pub_key: account.pub_key.map(|key| pack(&PubKey { key: key.to_vec() })),
        account_number: account.number,
        sequence: account.sequence,
    };
    match &account.module {
        None => pack(&base),
        Some(name) => {
            pack(&pb::ModuleAccount { base_account: Some(base), name: name.clone(), permissions: Vec::new() })
        }
    }
}

/// One account. `InvalidArgument` for a bad address, `NotFound` naming the address when there is none.
pub fn account(
    q: QueryContext<'_>,
    req: pb::QueryAccountRequest,
) -> Result<pb::QueryAccountResponse, QueryError> {
    let address = q.address("address", &req.address)?;
    let account = ACCOUNTS
        .get(q.store, &address)?
        .ok_or_else(|| QueryError::not_found(format!("account {} not found", req.address)))?;
    Ok(pb::QueryAccountResponse { account: Some(to_any(&address, &account, &q.block.hrp)) })
}

/// A page of accounts by ascending address.
pub fn accounts(
    q: QueryContext<'_>,
    req: pb::QueryAccountsRequest,
) -> Result<pb::QueryAccountsResponse, QueryError> {
    let (accounts, page) =
        paginate(q.store, &ACCOUNTS.prefix_key(&()), req.pagination.as_ref(), |key, value| {
            let address = Address::from_bytes(key)
                .map_err(|e| StoreError::Decode { collection: "accounts", reason: e.to_string() })?;
            Ok(Some(to_any(&address, &ACCOUNTS.decode_value(value)?, &q.block.hrp)))
        })?;
    Ok(pb::QueryAccountsResponse { accounts, pagination: Some(page) })
}

/// The account of a module. `NotFound` when no such module has one.
pub fn module_account_by_name(
    q: QueryContext<'_>,
    req: pb::QueryModuleAccountByNameRequest,
) -> Result<pb::QueryModuleAccountByNameResponse, QueryError> {
    if req.name.is_empty() {
        return Err(QueryError::invalid("name: must not be empty"));
    }
    let address = Address::module(&req.name);
    let account = ACCOUNTS
        .get(q.store, &address)?
        .filter(|account| account.module.as_deref() == Some(req.name.as_str()))
        .ok_or_else(|| QueryError::not_found(format!("module account {} not found", req.name)))?;
    Ok(pb::QueryModuleAccountByNameResponse { account: Some(to_any(&address, &account, &q.block.hrp)) })
}

/// The parameters.
pub fn params(
    q: QueryContext<'_>,
    _req: pb::QueryParamsRequest,
) -> Result<pb::QueryParamsResponse, QueryError> {
    Ok(pb::QueryParamsResponse { params: Some((&Keeper.params(q.store)?).into()) })
}
