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

/// A participant at genesis.
pub(crate) struct Worker {
    pub(crate) address: Address,
    /// Consensus public key.
    pub(crate) validator_key: Vec<u8>,
    /// Models that it serves.
    pub(crate) models: Vec<String>,
    /// Its weight; one unit of collateral is one unit of weight.
    pub(crate) weight: u64,
}

/// What a network that begins at once has in its genesis.
pub(crate) struct Start {
    /// Accounts with [`BALANCE`] each, and their numbers.
    pub(crate) accounts: Vec<(Address, u64)>,
    pub(crate) workers: Vec<Worker>,
    /// Registered models.
    pub(crate) models: Vec<String>,
    pub(crate) epoch_length: i64,
    pub(crate) validation: ValidationParams,
}

impl Start {
    /// Puts it into a fresh document.
    pub(crate) fn fill(mut self, doc: &mut GenesisDoc, hrp: &Hrp) -> Result<(), GenesisError> {
        let bech32 = |address: &Address| address.to_bech32(hrp);
        self.accounts.sort();
        let mut auth: auth::v1::GenesisState = state(doc, "auth")?;
        let account = |(address, number): &(Address, u64)| auth::v1::Account {
            address: bech32(address),
            account_number: *number,
            ..auth::v1::Account::default()
        };
        auth.accounts = self.accounts.iter().map(account).collect();
        auth.next_account_number = self.accounts.len() as u64;
        doc.set_module("auth", &auth.encode_to_vec())?;

        let coin = |amount: u128| Coin { denom: DENOM.into(), amount: amount.to_string() };
        let collateral: u128 = self.workers.iter().map(|worker| u128::from(worker.weight)).sum();
        let mut balances: Vec<(Address, u128)> = self.accounts.iter().map(|(a, _)| (*a, BALANCE)).collect();
        balances.push((Address::module("participants"), collateral));
        balances.sort();
        let mut bank: bank::v1::GenesisState = state(doc, "bank")?;
        bank.supply = vec![coin(balances.iter().map(|(_, amount)| amount).sum())];
        bank.balances = balances
            .iter()
            .map(|(a, amount)| bank::v1::Balance { address: bech32(a), coins: vec![coin(*amount)] })
            .collect();
        doc.set_module("bank", &bank.encode_to_vec())?;

        let mut epochs: epochs::v1::GenesisState = state(doc, "epochs")?;
        epochs.params = Some(epochs::v1::Params { epoch_length: self.epoch_length, poc_length: 0 });
        doc.set_module("epochs", &epochs.encode_to_vec())?;
        let mut inference: inference::v1::GenesisState = state(doc, "inference")?;
        let token_price = holdfast_types::Coin { denom: DENOM.into(), amount: 1 };
        let params = holdfast_inference::Params { validation: self.validation.clone(), token_price };
        inference.params = Some(params.to_pb());
        doc.set_module("inference", &inference.encode_to_vec())?;
        let participants = self.participants(state(doc, "participants")?, hrp);
        doc.set_module("participants", &participants.encode_to_vec())
    }

    fn participants(
        mut self,
        mut state: participants::v1::GenesisState,
        hrp: &Hrp,
    ) -> participants::v1::GenesisState {
        use participants::v1 as pb;
        if let Some(params) = &mut state.params {
            params.collateral_denom = DENOM.into();
            params.collateral_per_weight = "1".into();
        }
        self.models.sort();
        state.models = self.models.iter().map(|id| pb::Model { id: id.clone() }).collect();
        self.workers.sort_by_key(|worker| worker.address);
        for worker in &mut self.workers {
            worker.models.sort();
            state.participants.push(pb::Participant {
                address: worker.address.to_bech32(hrp),
                validator_key: worker.validator_key.clone(),
                models: worker.models.clone(),
                collateral: worker.weight.to_string(),
                unbonding: "0".into(),
                status: pb::ParticipantStatus::Active.into(),
                ..pb::Participant::default()
            });
        }
        for model in &self.models {
            for worker in self.workers.iter().filter(|worker| worker.models.contains(model)) {
                state.members.push(pb::GenesisMember {
                    model: model.clone(),
                    participant: worker.address.to_bech32(hrp),
                    weight: worker.weight,
                    next_weight: worker.weight,
                    ..pb::GenesisMember::default()
                });
            }
        }
        state
    }
}

/// The state a module has in `doc`.
pub(crate) fn state<M: Message + Default>(doc: &GenesisDoc, module: &str) -> Result<M, GenesisError> {
    let state = M::decode(doc.module(module)?.as_slice());
    state.map_err(|e| GenesisError::Field { field: format!("app_state.{module}"), reason: e.to_string() })
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
    let worker = |(account, spec): (&Account, &ExecutorSpec)| Worker {
        address: account.address,
        validator_key: account.key.public_key().to_bytes().to_vec(),
        models: spec.models.clone(),
        weight: spec.weight,
    };
    let all = accounts.gateways.iter().chain(&accounts.executors);
    let start = Start {
        accounts: all.map(|account| (account.address, account.number)).collect(),
        workers: accounts.executors.iter().zip(executors).map(worker).collect(),
        models: models_served(executors),
        epoch_length: EPOCH_LENGTH,
        validation: preset_params(preset),
    };
    start.fill(&mut doc, &hrp)?;
    Ok(doc)
}
