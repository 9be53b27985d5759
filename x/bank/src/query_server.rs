//! Queries of `cosmos.bank.v1beta1`.

use holdfast_proto::cosmos::bank::v1beta1 as pb;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_store::{KeyCodec, StoreError};
use holdfast_types::traits::BankKeeper;
use holdfast_types::{Coin, QueryContext, QueryError, paginate};

use crate::{BALANCES, Keeper, SUPPLY};

fn denom(text: &str) -> Result<&str, QueryError> {
    Coin::new(text, 0).map_err(|e| QueryError::invalid(e.to_string()))?;
    Ok(text)
}

fn coin(key: &[u8], amount: u128) -> Result<Option<PbCoin>, StoreError> {
    let denom = String::from_bytes(key)
        .map_err(|e| StoreError::Decode { collection: "balances or supply", reason: e.to_string() })?;
    Ok(Some(PbCoin { denom, amount: amount.to_string() }))
}

/// One balance; an unknown account or denomination has `0`.
pub fn balance(
    q: QueryContext<'_>,
    req: pb::QueryBalanceRequest,
) -> Result<pb::QueryBalanceResponse, QueryError> {
    let address = q.address("address", &req.address)?;
    let amount = Keeper.balance(q.store, &address, denom(&req.denom)?)?;
    Ok(pb::QueryBalanceResponse { balance: Some(PbCoin { denom: req.denom, amount: amount.to_string() }) })
}

/// A page of an account's balances by denomination. `resolve_denom` changes nothing: there are no display names.
pub fn all_balances(
    q: QueryContext<'_>,
    req: pb::QueryAllBalancesRequest,
) -> Result<pb::QueryAllBalancesResponse, QueryError> {
    let address = q.address("address", &req.address)?;
    let (balances, page) =
        paginate(q.store, &BALANCES.prefix_key(&address), req.pagination.as_ref(), |key, value| {
            coin(key, BALANCES.decode_value(value)?)
        })?;
    Ok(pb::QueryAllBalancesResponse { balances, pagination: Some(page) })
}

/// Supply of one denomination; `0` when there is none.
pub fn supply_of(
    q: QueryContext<'_>,
    req: pb::QuerySupplyOfRequest,
) -> Result<pb::QuerySupplyOfResponse, QueryError> {
    let amount = Keeper.supply(q.store, denom(&req.denom)?)?;
    Ok(pb::QuerySupplyOfResponse { amount: Some(PbCoin { denom: req.denom, amount: amount.to_string() }) })
}

/// A page of supplies by denomination.
pub fn total_supply(
    q: QueryContext<'_>,
    req: pb::QueryTotalSupplyRequest,
) -> Result<pb::QueryTotalSupplyResponse, QueryError> {
    let (supply, page) =
        paginate(q.store, &SUPPLY.prefix_key(&()), req.pagination.as_ref(), |key, value| {
            coin(key, SUPPLY.decode_value(value)?)
        })?;
    Ok(pb::QueryTotalSupplyResponse { supply, pagination: Some(page) })
}
