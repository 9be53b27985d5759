//! Who acts, and the random genesis that knows them.

use anyhow::{Context, Result};
use holdfast_app::genesis::GenesisDoc;
use holdfast_app::keys::SecretKey;
use holdfast_proto::Message;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::{auth, bank, breaker, epochs, escrow, inference, participants};
use holdfast_types::{Address, Hrp, ValidatorUpdate};
use serde_json::{Value, json};

use crate::params;
use crate::rng::Rng;

/// Chain id of every simulated chain.
pub(crate) const CHAIN_ID: &str = "holdfast-sim-1";
/// Denomination of fees and payments.
pub(crate) const DENOM: &str = "uhold";
/// Denomination of collateral on some chains.
const BOND: &str = "ubond";

/// An account with its key.
#[derive(Clone)]
pub(crate) struct Account {
    pub(crate) key: SecretKey,
    pub(crate) address: Address,
    pub(crate) bech32: String,
}

/// The accounts of a chain: gateways ask, executors are participants at genesis, outsiders may become some.
pub(crate) struct Cast {
    pub(crate) hrp: Hrp,
    pub(crate) accounts: Vec<Account>,
    pub(crate) gateways: Vec<usize>,
    pub(crate) executors: Vec<usize>,
    pub(crate) outsiders: Vec<usize>,
    /// Model ids that are, or may come to be, registered.
    pub(crate) models: Vec<String>,
    pub(crate) collateral_denom: String,
    /// Validators of the engine's own genesis, for where the chain's names none; none on some chains.
    pub(crate) engine: Vec<ValidatorUpdate>,
    /// Some seed of its own for the executors' moods.
    pub(crate) moods: u64,
}

impl Cast {
    pub(crate) fn gov(&self) -> String {
        Address::module("gov").to_bech32(&self.hrp)
    }

    pub(crate) fn index_of(&self, bech32: &str) -> Option<usize> {
        self.accounts.iter().position(|account| account.bech32 == bech32)
    }

    /// Per cent of its work that an executor answers and reports at a height. Moods last sixteen blocks.
    pub(crate) fn mood(&self, executor: usize, height: i64) -> (usize, usize) {
        let spell = height.unsigned_abs() / 16;
        let mut rng = Rng::new(self.moods ^ spell.wrapping_mul(131) ^ ((executor as u64) << 32), "mood");
        *rng.pick(&[(80, 0), (60, 1), (5, 5), (0, 0), (20, 50), (45, 10)])
    }
}

fn coin(denom: &str, amount: u128) -> PbCoin {
    PbCoin { denom: denom.to_owned(), amount: amount.to_string() }
}

fn balance(rng: &mut Rng) -> u128 {
    match rng.below(20) {
        0 if rng.percent(50) => 0,
        1 => 1 << 100,
        2 => rng.unsigned(1, 2_000).into(),
        _ => rng.unsigned(1_000_000_000, 1_000_000_000_000).into(),
    }
}

fn weight(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0 => 0,
        1 => 1,
        2 => u64::MAX / 4,
        _ => rng.unsigned(2, 60),
    }
}

/// A consensus key: the account's own, or 32 bytes that look like an ed25519 key.
pub(crate) fn validator_key(rng: &mut Rng, account: &Account) -> Vec<u8> {
    if rng.percent(60) { account.key.public_key().to_bytes().to_vec() } else { rng.bytes(32) }
}

/// A random chain.
pub(crate) fn genesis(seed: u64) -> Result<(Cast, GenesisDoc)> {
    let mut rng = Rng::new(seed, "genesis");
    let rng = &mut rng;
    let hrp = if rng.percent(80) { Hrp::default() } else { Hrp::new("cosmos")? };
    let (gateways, executors, outsiders) = (rng.range(2, 4), rng.range(3, 9), rng.range(2, 4));
    let account = |role: &str, index: i64| {
        let key = SecretKey::from_seed_label(&seed.to_be_bytes(), &format!("{role}/{index}"));
        let address = key.address();
        Account { bech32: address.to_bech32(&hrp), address, key }
    };
    let mut accounts: Vec<Account> = Vec::new();
    let mut group = |role: &str, count: i64| {
        let first = accounts.len();
        accounts.extend((0..count).map(|index| account(role, index)));
        (first..accounts.len()).collect::<Vec<_>>()
    };
    let (gateways, executors, outsiders) =
        (group("gateway", gateways), group("executor", executors), group("outsider", outsiders));
    let models: Vec<String> = (1..=6).map(|n| format!("org/model-{n}")).collect();
    let collateral_denom = if rng.percent(80) { DENOM } else { BOND };
    let moods = rng.next_u64();
    let count = *rng.pick(&[0, 1, 4]);
    let engine = |_| ValidatorUpdate { public_key: rng.bytes(32), power: rng.range(1, 10) };
    let engine = (0..count).map(engine).collect();
    let cast = Cast {
        hrp: hrp.clone(),
        accounts,
        gateways,
        executors,
        outsiders,
        models,
        collateral_denom: collateral_denom.to_owned(),
        engine,
        moods,
    };

    let mut doc = GenesisDoc::default_for(CHAIN_ID, &hrp)?;
    doc.initial_height = if rng.percent(70) { 1 } else { rng.range(2, 5_000) };
    doc.consensus.params.block.max_gas = if rng.percent(60) { -1 } else { rng.range(4_000_000, 40_000_000) };
    doc.consensus.params.block.max_bytes =
        if rng.percent(60) { 22_020_096 } else { rng.range(4_096, 200_000) };

    let mut order: Vec<&Account> = cast.accounts.iter().collect();
    order.sort_by_key(|account| account.address);
    let rows = order.iter().enumerate().map(|(number, account)| auth::v1::Account {
        address: account.bech32.clone(),
        account_number: number as u64,
        ..auth::v1::Account::default()
    });
    let mut state = auth::v1::GenesisState::decode(doc.module("auth")?.as_slice())?;
    state.accounts = rows.collect();
    state.next_account_number = order.len() as u64;
    doc.set_module("auth", &state.encode_to_vec())?;

    let (epoch_length, poc_length) = loop {
        let lengths = params::epochs(rng);
        // A chain of one-block epochs judges nobody; some are enough.
        if lengths.0 > 4 || rng.percent(30) {
            break lengths;
        }
    };
    let state = epochs::v1::GenesisState {
        params: Some(epochs::v1::Params { epoch_length, poc_length }),
        ..epochs::v1::GenesisState::default()
    };
    doc.set_module("epochs", &state.encode_to_vec())?;

    let registered = cast.models.get(..rng.range(1, 4) as usize).unwrap_or_default().to_vec();
    let (state, bonded) = participants_state(rng, &cast, &registered);
    doc.set_module("participants", &state.encode_to_vec())?;

    let mut balances: Vec<(Address, Vec<(&str, u128)>)> = Vec::new();
    for account in &cast.accounts {
        let mut coins = vec![(DENOM, balance(rng))];
        if collateral_denom != DENOM {
            coins.insert(0, (collateral_denom, balance(rng)));
        }
        balances.push((account.address, coins));
    }
    balances.push((Address::module("participants"), vec![(collateral_denom, bonded)]));
    for (_, coins) in &mut balances {
        coins.retain(|(_, amount)| *amount > 0);
    }
    balances.retain(|(_, coins)| !coins.is_empty());
    balances.sort();
    let sum = |denom: &str| {
        let amounts =
            balances.iter().flat_map(|(_, coins)| coins.iter().filter(|c| c.0 == denom).map(|c| c.1));
        coin(denom, amounts.sum())
    };
    let mut supply = vec![sum(DENOM)];
    if collateral_denom != DENOM {
        supply.insert(0, sum(collateral_denom));
    }
    supply.retain(|coin| coin.amount != "0");
    let rows = balances.iter().map(|(address, coins)| bank::v1::Balance {
        address: address.to_bech32(&hrp),
        coins: coins.iter().map(|(denom, amount)| coin(denom, *amount)).collect(),
    });
    let state = bank::v1::GenesisState { balances: rows.collect(), supply };
    doc.set_module("bank", &state.encode_to_vec())?;

    let validation = params::validation(rng, epoch_length.min(40));
    let mut token_price = params::token_price(rng, DENOM);
    // Prices that nobody can pay come by proposal only.
    token_price.amount = token_price.amount.min(5);
    let params = holdfast_inference::Params { validation, token_price };
    let state = inference::v1::GenesisState { params: Some(params.to_pb()), ..Default::default() };
    doc.set_module("inference", &state.encode_to_vec())?;

    let overrides = breaker_overrides(rng, &cast, &registered, doc.initial_height);
    let state = breaker::v1::GenesisState { overrides, ..Default::default() };
    doc.set_module("breaker", &state.encode_to_vec())?;

    // Of its own stream: what else a seed gives does not depend on it.
    let mut own = Rng::new(seed, "escrow genesis");
    let state = escrow::v1::GenesisState {
        params: Some(params::escrow(&mut own, DENOM).to_pb()),
        next_escrow_id: 1,
        ..escrow::v1::GenesisState::default()
    };
    doc.set_module("escrow", &state.encode_to_vec())?;

    if let Some(gov) = doc.app_state.get_mut("gov") {
        gov_params(rng, gov.get_mut("params").context("gov genesis without params")?);
    }
    Ok((cast, doc))
}

fn participants_state(
    rng: &mut Rng,
    cast: &Cast,
    models: &[String],
) -> (participants::v1::GenesisState, u128) {
    use participants::v1 as pb;
    let mut params = params::participants(rng, &cast.collateral_denom);
    // Weights are drawn below; a price beyond every collateral would make them all 0.
    params.collateral_per_weight = params.collateral_per_weight.min(1_000);
    let mut order: Vec<usize> = cast.executors.clone();
    order.sort_by_key(|index| cast.accounts[*index].address);
    let mut bonded = 0;
    let mut rows = Vec::new();
    for index in order {
        let account = &cast.accounts[index];
        let left = rng.percent(6);
        let unbonding: u128 = if left || rng.percent(10) { rng.unsigned(0, 50).into() } else { 0 };
        let collateral = if left { 0 } else { u128::from(weight(rng)) * params.collateral_per_weight };
        bonded += collateral + unbonding;
        let mut served = if left { Vec::new() } else { rng.part(models) };
        if served.is_empty() && !left && rng.percent(90) {
            served.push(rng.pick(models).clone());
        }
        let status = if left { pb::ParticipantStatus::Left } else { pb::ParticipantStatus::Active };
        rows.push(pb::Participant {
            address: account.bech32.clone(),
            validator_key: validator_key(rng, account),
            host_url: if rng.percent(50) { "https://host.example:8443".into() } else { String::new() },
            models: served,
            poc_preserved: rng.percent(40),
            collateral: collateral.to_string(),
            unbonding: unbonding.to_string(),
            unbonding_epoch: rng.unsigned(0, 1),
            status: status.into(),
            ..pb::Participant::default()
        });
    }
    let state = pb::GenesisState {
        params: Some(params.to_pb()),
        models: models.iter().map(|id| pb::Model { id: id.clone() }).collect(),
        participants: rows,
        ..pb::GenesisState::default()
    };
    (state, bonded)
}

fn breaker_overrides(
    rng: &mut Rng,
    cast: &Cast,
    models: &[String],
    initial_height: i64,
) -> Vec<breaker::v1::Override> {
    let mut rows = Vec::new();
    for model in models {
        for index in &cast.executors {
            if rng.percent(4) {
                rows.push((model, cast.accounts[*index].address));
            }
        }
    }
    rows.sort();
    let row = |(model, address): (&String, Address)| breaker::v1::Override {
        model: model.clone(),
        participant: address.to_bech32(&cast.hrp),
        to: if rng.percent(50) {
            breaker::v1::OverrideTo::Healthy
        } else {
            breaker::v1::OverrideTo::Excluded
        }
        .into(),
        until_block: initial_height + rng.range(1, 60),
    };
    rows.into_iter().map(row).collect()
}

/// Short periods, so that proposals come to their end within a run.
fn gov_params(rng: &mut Rng, params: &mut Value) {
    let seconds = |n: i64| json!(format!("{n}s"));
    let voting = rng.range(12, 60);
    params["voting_period"] = seconds(voting);
    params["expedited_voting_period"] = seconds(rng.range(5, voting - 1));
    params["max_deposit_period"] = seconds(rng.range(10, 60));
    let deposit = rng.range(1, 1_000);
    params["min_deposit"] = json!([{ "denom": DENOM, "amount": deposit.to_string() }]);
    let expedited = (deposit * rng.range(2, 5)).to_string();
    params["expedited_min_deposit"] = json!([{ "denom": DENOM, "amount": expedited }]);
    params["quorum"] = json!(*rng.pick(&["0.334", "0.1", "0.6"]));
    params["threshold"] = json!(*rng.pick(&["0.5", "0.4"]));
    params["burn_vote_quorum"] = json!(rng.percent(50));
    params["burn_proposal_deposit_prevote"] = json!(rng.percent(50));
    params["burn_vote_veto"] = json!(rng.percent(50));
    params["min_initial_deposit_ratio"] = json!(*rng.pick(&["0", "0.25", "1"]));
    params["min_deposit_ratio"] = json!(*rng.pick(&["0", "0.01", "0.5"]));
}

#[cfg(test)]
mod tests {
    use holdfast_app::composition::Composition;

    use super::*;

    #[test]
    fn every_random_genesis_is_valid_and_no_two_are_equal() {
        let mut texts = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let (_, doc) = genesis(seed).unwrap();
            doc.validate(&Composition::default()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(texts.insert(doc.to_json().unwrap()), "seed {seed}");
        }
    }
}
