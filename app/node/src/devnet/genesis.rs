//! Genesis of a devnet: gateways with coins, executors with collateral, one breaker preset.

use holdfast_app::genesis::{GenesisDoc, GenesisError};
use holdfast_app::keys::SecretKey;
use holdfast_proto::Message;
use holdfast_proto::cosmos::base::v1beta1::Coin;
use holdfast_proto::holdfast::{auth, bank, epochs, inference, participants};
use holdfast_types::{Address, Hrp, ValidationParams};

use super::config::Preset;
use super::executors::{ExecutorSpec, models_served};

/// Chain id of every devnet.
pub const CHAIN_ID: &str = "holdfast-devnet-1";
/// Denomination of everything.
pub const DENOM: &str = "uhold";
/// Epoch length in blocks; there is no PoC phase.
pub const EPOCH_LENGTH: i64 = 1_000;
/// Accounts that ask for inferences.
pub const GATEWAYS: usize = 4;
/// Coins of each gateway and executor.
const BALANCE: u128 = 1_000_000_000_000_000_000;

/// A signing account of the devnet.
#[derive(Clone)]
pub struct Account {
    /// Key.
    pub key: SecretKey,
    /// Address.
    pub address: Address,
    /// Account number at genesis.
    pub number: u64,
}

/// The accounts of a run: gateways, then executors, in account-number order.
pub struct Accounts {
    /// Gateways.
    pub gateways: Vec<Account>,
    /// Executors, in the order of `--executors`.
    pub executors: Vec<Account>,
}

impl Accounts {
    /// Keys derived from the run's seed: the same accounts on every run.
    pub fn derive(seed: u64, executors: usize) -> Self {
        let account = |role: &str, index: usize, number: usize| {
            let key = SecretKey::from_seed_label(&seed.to_be_bytes(), &format!("devnet/{role}/{index}"));
            Account { address: key.address(), key, number: number as u64 }
        };
        Self {
            gateways: (0..GATEWAYS).map(|i| account("gateway", i, i)).collect(),
            executors: (0..executors).map(|i| account("executor", i, GATEWAYS + i)).collect(),
        }
    }
}

/// Parameters of a preset. The slow breaker is off in all of them: at its defaults no failing executor would come back
/// inside an epoch (breaker.md 8).
pub fn preset_params(preset: Preset) -> ValidationParams {
    let params = match preset {
        Preset::Off => ValidationParams { health_cb_enabled: false, ..ValidationParams::default() },
        Preset::Seed => ValidationParams::default(),
        Preset::Recommended => ValidationParams::recommended(),
    };
    ValidationParams { downtime_sprt_enabled: false, ..params }
}

/// The genesis document of a run.
///
/// # Errors
/// None for accounts and executors that belong together.
pub fn document(
    accounts: &Accounts,
    executors: &[ExecutorSpec],
    preset: Preset,
) -> Result<GenesisDoc, GenesisError> {
    let hrp = Hrp::default();
    let mut doc = GenesisDoc::default_for(CHAIN_ID, &hrp)?;
    let bech32 = |address: &Address| address.to_bech32(&hrp);
    let mut all: Vec<&Account> = accounts.gateways.iter().chain(&accounts.executors).collect();
    all.sort_by_key(|account| account.address);

    let auth = auth::v1::GenesisState {
        accounts: all
            .iter()
            .map(|a| auth::v1::Account {
                address: bech32(&a.address),
                account_number: a.number,
                ..auth::v1::Account::default()
            })
            .collect(),
        next_account_number: all.len() as u64,
        ..auth::v1::GenesisState::default()
    };
    doc.set_module("auth", &auth.encode_to_vec())?;

    let coin = |amount: u128| Coin { denom: DENOM.into(), amount: amount.to_string() };
    let collateral: u128 = executors.iter().map(|e| u128::from(e.weight)).sum();
    let mut balances: Vec<(Address, u128)> = all.iter().map(|a| (a.address, BALANCE)).collect();
    balances.push((Address::module("participants"), collateral));
    balances.sort();
    let supply = balances.iter().map(|(_, amount)| amount).sum();
    let bank = bank::v1::GenesisState {
        balances: balances
            .iter()
            .map(|(a, amount)| bank::v1::Balance { address: bech32(a), coins: vec![coin(*amount)] })
            .collect(),
        supply: vec![coin(supply)],
    };
    doc.set_module("bank", &bank.encode_to_vec())?;

    let epochs = epochs::v1::GenesisState {
        params: Some(epochs::v1::Params { epoch_length: EPOCH_LENGTH, poc_length: 0 }),
        ..epochs::v1::GenesisState::default()
    };
    doc.set_module("epochs", &epochs.encode_to_vec())?;
    doc.set_module("participants", &participants_state(&doc, accounts, executors, &hrp)?)?;

    let mut inference =
        inference::v1::GenesisState::decode(doc.module("inference")?.as_slice()).unwrap_or_default();
    inference.params = Some(
        holdfast_inference::Params {
            validation: preset_params(preset),
            token_price: holdfast_types::Coin { denom: DENOM.into(), amount: 1 },
        }
        .to_pb(),
    );
    doc.set_module("inference", &inference.encode_to_vec())?;
    Ok(doc)
}

/// One unit of collateral is one unit of weight.
fn participants_state(
    doc: &GenesisDoc,
    accounts: &Accounts,
    executors: &[ExecutorSpec],
    hrp: &Hrp,
) -> Result<Vec<u8>, GenesisError> {
    use participants::v1 as pb;
    let mut state = pb::GenesisState::decode(doc.module("participants")?.as_slice()).unwrap_or_default();
    if let Some(params) = &mut state.params {
        params.collateral_denom = DENOM.into();
        params.collateral_per_weight = "1".into();
    }
    let mut models = models_served(executors);
    models.sort();
    state.models = models.iter().map(|id| pb::Model { id: id.clone() }).collect();
    let mut rows: Vec<(&Account, &ExecutorSpec)> = accounts.executors.iter().zip(executors).collect();
    rows.sort_by_key(|(account, _)| account.address);
    for (account, spec) in &rows {
        let mut served = spec.models.clone();
        served.sort();
        state.participants.push(pb::Participant {
            address: account.address.to_bech32(hrp),
            validator_key: account.key.public_key().to_bytes().to_vec(),
            models: served,
            collateral: spec.weight.to_string(),
            unbonding: "0".into(),
            status: pb::ParticipantStatus::Active.into(),
            ..pb::Participant::default()
        });
    }
    for model in &models {
        for (account, spec) in rows.iter().filter(|(_, spec)| spec.models.contains(model)) {
            state.members.push(pb::GenesisMember {
                model: model.clone(),
                participant: account.address.to_bech32(hrp),
                weight: spec.weight,
                next_weight: spec.weight,
                ..pb::GenesisMember::default()
            });
        }
    }
    Ok(state.encode_to_vec())
}
