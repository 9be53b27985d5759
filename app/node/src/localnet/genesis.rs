//! Genesis of a test network: every validator is a participant with equal collateral, and a few accounts have coins to
//! ask for inferences with.

use holdfast_app::genesis::{GenesisDoc, GenesisError};
use holdfast_proto::cosmos::base::v1beta1::Coin;
use holdfast_proto::holdfast::{auth, bank, epochs, gov, inference, participants};
use holdfast_proto::{Duration, Message};
use holdfast_types::{Address, Hrp, ValidationParams};

use crate::devnet::config::Preset;
use crate::devnet::genesis::{DENOM, preset_params};

/// Models that every participant serves.
pub const MODELS: [&str; 2] = ["model-a", "model-b"];
/// Accounts that ask for inferences.
pub const GATEWAYS: usize = 4;
/// Collateral of each participant in base units, one for each unit of weight.
pub const COLLATERAL: u64 = 1_000;
/// Coins of every account.
const BALANCE: u128 = 1_000_000_000_000_000_000;

/// A participant.
#[derive(Debug, Clone)]
pub struct Member {
    /// Account.
    pub address: Address,
    /// Ed25519 key that CometBFT signs with.
    pub validator_key: [u8; 32],
}

/// The chain of a test network.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    /// Chain id.
    pub chain_id: String,
    /// Prefix of addresses.
    pub hrp: Hrp,
    /// RFC 3339.
    pub genesis_time: String,
    /// Blocks in an epoch.
    pub epoch_length: i64,
    /// Seconds for votes on a proposal, at least 2, and for its deposits; an expedited one has half of it. `None`: the
    /// module's own periods.
    pub voting_period: Option<i64>,
    /// One for each validator. Account numbers follow this order, then that of `gateways`.
    pub members: Vec<Member>,
    /// Accounts beside them.
    pub gateways: Vec<Address>,
}

impl Chain {
    /// The genesis document.
    ///
    /// # Errors
    /// A chain id or another setting that cannot be.
    pub fn document(&self) -> Result<GenesisDoc, GenesisError> {
        let mut doc = GenesisDoc::default_for(&self.chain_id, &self.hrp)?;
        doc.genesis_time.clone_from(&self.genesis_time);
        let bech32 = |address: &Address| address.to_bech32(&self.hrp);
        let accounts = self.members.iter().map(|member| member.address).chain(self.gateways.iter().copied());
        let mut numbered: Vec<(Address, u64)> = accounts.zip(0..).collect();
        numbered.sort();

        let mut auth: auth::v1::GenesisState = default(&doc, "auth")?;
        auth.accounts = numbered
            .iter()
            .map(|(address, number)| auth::v1::Account {
                address: bech32(address),
                account_number: *number,
                ..auth::v1::Account::default()
            })
            .collect();
        auth.next_account_number = numbered.len() as u64;
        doc.set_module("auth", &auth.encode_to_vec())?;

        let coin = |amount: u128| Coin { denom: DENOM.into(), amount: amount.to_string() };
        let collateral = u128::from(COLLATERAL).saturating_mul(self.members.len() as u128);
        let mut balances: Vec<(Address, u128)> = numbered.iter().map(|(a, _)| (*a, BALANCE)).collect();
        balances.push((Address::module("participants"), collateral));
        balances.sort();
        let supply = balances.iter().map(|(_, amount)| amount).sum();
        let mut bank: bank::v1::GenesisState = default(&doc, "bank")?;
        bank.balances = balances
            .iter()
            .map(|(a, amount)| bank::v1::Balance { address: bech32(a), coins: vec![coin(*amount)] })
            .collect();
        bank.supply = vec![coin(supply)];
        doc.set_module("bank", &bank.encode_to_vec())?;

        let mut epochs: epochs::v1::GenesisState = default(&doc, "epochs")?;
        epochs.params = Some(epochs::v1::Params { epoch_length: self.epoch_length, poc_length: 0 });
        doc.set_module("epochs", &epochs.encode_to_vec())?;
        let state = self.participants(default(&doc, "participants")?);
        doc.set_module("participants", &state.encode_to_vec())?;

        let mut inference: inference::v1::GenesisState = default(&doc, "inference")?;
        inference.params = Some(
            holdfast_inference::Params {
                validation: self.breaker(),
                token_price: holdfast_types::Coin { denom: DENOM.into(), amount: 1 },
            }
            .to_pb(),
        );
        doc.set_module("inference", &inference.encode_to_vec())?;
        if let Some(seconds) = self.voting_period {
            let mut gov: gov::v1::GenesisState = default(&doc, "gov")?;
            if let Some(params) = &mut gov.params {
                let period = |seconds| Some(Duration { seconds, nanos: 0 });
                params.voting_period = period(seconds);
                params.max_deposit_period = period(seconds);
                params.expedited_voting_period = period(seconds / 2);
            }
            doc.set_module("gov", &gov.encode_to_vec())?;
        }
        Ok(doc)
    }

    /// The recommended breaker, its cooldowns cut to what fits into an epoch.
    fn breaker(&self) -> ValidationParams {
        let params = preset_params(Preset::Recommended);
        let max = params.health_cb_max_cooldown_blocks.min(self.epoch_length);
        ValidationParams {
            health_cb_max_cooldown_blocks: max,
            health_cb_initial_cooldown_blocks: params.health_cb_initial_cooldown_blocks.min(max),
            ..params
        }
    }

    fn participants(&self, mut state: participants::v1::GenesisState) -> participants::v1::GenesisState {
        use participants::v1 as pb;
        if let Some(params) = &mut state.params {
            params.collateral_denom = DENOM.into();
            params.collateral_per_weight = "1".into();
        }
        state.models = MODELS.iter().map(|id| pb::Model { id: (*id).into() }).collect();
        let mut members: Vec<&Member> = self.members.iter().collect();
        members.sort_by_key(|member| member.address);
        for member in &members {
            state.participants.push(pb::Participant {
                address: member.address.to_bech32(&self.hrp),
                validator_key: member.validator_key.to_vec(),
                models: MODELS.iter().map(|id| (*id).into()).collect(),
                collateral: COLLATERAL.to_string(),
                unbonding: "0".into(),
                status: pb::ParticipantStatus::Active.into(),
                ..pb::Participant::default()
            });
        }
        for model in MODELS {
            state.members.extend(members.iter().map(|member| pb::GenesisMember {
                model: model.into(),
                participant: member.address.to_bech32(&self.hrp),
                weight: COLLATERAL,
                next_weight: COLLATERAL,
                ..pb::GenesisMember::default()
            }));
        }
        state
    }
}

/// The state a module begins with.
fn default<M: Message + Default>(doc: &GenesisDoc, module: &str) -> Result<M, GenesisError> {
    let state = M::decode(doc.module(module)?.as_slice());
    state.map_err(|e| GenesisError::Field { field: format!("app_state.{module}"), reason: e.to_string() })
}

#[cfg(test)]
mod tests {
    use holdfast_app::composition::Composition;

    use super::*;

    #[test]
    fn the_document_is_valid_also_with_short_epochs() {
        for epoch_length in [1, 10, 49, 50, 1_000] {
            let member =
                |n: u8| Member { address: Address([n; 20]), validator_key: [n.wrapping_add(100); 32] };
            let chain = Chain {
                chain_id: "test-1".into(),
                hrp: Hrp::default(),
                genesis_time: "2026-01-31T12:00:00Z".into(),
                epoch_length,
                voting_period: Some(2),
                members: vec![member(9), member(2), member(5)],
                gateways: vec![Address([7; 20])],
            };
            let doc = chain.document().unwrap();
            doc.validate(&Composition::default()).unwrap();
            let accounts = doc.app_state["auth"]["accounts"].as_array().unwrap();
            let numbers: Vec<_> = accounts.iter().map(|a| a["account_number"].as_str().unwrap()).collect();
            // By address: 2, 5, 7, 9; by number: members as listed, then gateways.
            assert_eq!(numbers, ["1", "2", "3", "0"]);
        }
    }
}
