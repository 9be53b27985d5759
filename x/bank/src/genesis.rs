//! Genesis: balances, and the supply they add up to.

use std::collections::BTreeMap;

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::bank::v1 as pb;
use holdfast_store::{KvRead, Order};
use holdfast_types::{Address, Coin, Context, Hrp, ModuleError};

use crate::msgs::parse_coins;
use crate::{BALANCES, BankError, SUPPLY};

/// A genesis state, checked.
pub(crate) struct Genesis {
    balances: Vec<(Address, Vec<Coin>)>,
    supply: BTreeMap<String, u128>,
}

/// Addresses ascending, coins as in a message, the supply equal to the sums or left out.
pub(crate) fn parse(genesis: &pb::GenesisState, hrp: &Hrp) -> Result<Genesis, BankError> {
    let mut balances: Vec<(Address, Vec<Coin>)> = Vec::new();
    let mut supply: BTreeMap<String, u128> = BTreeMap::new();
    for (n, row) in genesis.balances.iter().enumerate() {
        let field = |name: &str| format!("balances[{n}].{name}");
        let address = Address::parse(&row.address, hrp)
            .map_err(|e| BankError::genesis(field("address"), e.to_string()))?;
        if balances.last().is_some_and(|(last, _)| *last >= address) {
            return Err(BankError::genesis(field("address"), "sort balances by raw address, each once"));
        }
        let coins =
            parse_coins("coins", &row.coins).map_err(|e| BankError::genesis(format!("balances[{n}]"), e))?;
        for coin in &coins {
            let sum = supply.entry(coin.denom.clone()).or_default();
            *sum =
                sum.checked_add(coin.amount).ok_or_else(|| BankError::SupplyOverflow(coin.denom.clone()))?;
        }
        balances.push((address, coins));
    }
    if !genesis.supply.is_empty() {
        let stated = parse_coins("supply", &genesis.supply).map_err(|e| BankError::genesis("supply", e))?;
        let stated: BTreeMap<_, _> = stated.into_iter().map(|c| (c.denom, c.amount)).collect();
        if stated != supply {
            let rule = "must equal the sums of the balances; leave it out to have it computed";
            return Err(BankError::genesis("supply", rule));
        }
    }
    Ok(Genesis { balances, supply })
}

pub(crate) fn init(ctx: &mut Context<'_>, genesis: &pb::GenesisState) -> Result<(), ModuleError> {
    let Genesis { balances, supply } = parse(genesis, &ctx.block.hrp)?;
    for (address, coins) in balances {
        for coin in coins {
            BALANCES.set(ctx.store, &(address, coin.denom), &coin.amount)?;
        }
    }
    for (denom, amount) in supply {
        SUPPLY.set(ctx.store, &denom, &amount)?;
    }
    Ok(())
}

pub(crate) fn export(store: &dyn KvRead, hrp: &Hrp) -> Result<pb::GenesisState, ModuleError> {
    let mut balances: Vec<pb::Balance> = Vec::new();
    for row in BALANCES.iter(store, Order::Ascending) {
        let ((address, denom), amount) = row?;
        let (address, coin) = (address.to_bech32(hrp), PbCoin { denom, amount: amount.to_string() });
        match balances.last_mut() {
            Some(last) if last.address == address => last.coins.push(coin),
            _ => balances.push(pb::Balance { address, coins: vec![coin] }),
        }
    }
    let mut supply = Vec::new();
    for row in SUPPLY.iter(store, Order::Ascending) {
        let (denom, amount) = row?;
        supply.push(PbCoin { denom, amount: amount.to_string() });
    }
    Ok(pb::GenesisState { balances, supply })
}
