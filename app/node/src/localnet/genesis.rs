//! Genesis of a test network: every validator is a participant with equal collateral, and a few accounts have coins to
//! ask for inferences with.

use holdfast_app::genesis::{GenesisDoc, GenesisError};
use holdfast_proto::holdfast::gov;
use holdfast_proto::{Duration, Message};
use holdfast_types::{Address, Hrp, ValidationParams};

use crate::devnet::config::Preset;
use crate::devnet::genesis::{Start, Worker, preset_params, state};

/// Models that every participant serves.
pub const MODELS: [&str; 2] = ["model-a", "model-b"];
/// Accounts that ask for inferences.
pub const GATEWAYS: usize = 4;
/// Collateral of each participant in base units, one for each unit of weight.
pub const COLLATERAL: u64 = 1_000;

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
        let accounts = self.members.iter().map(|member| member.address).chain(self.gateways.iter().copied());
        let models = || MODELS.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let worker = |member: &Member| Worker {
            address: member.address,
            validator_key: member.validator_key.to_vec(),
            models: models(),
            weight: COLLATERAL,
        };
        let start = Start {
            accounts: accounts.zip(0..).collect(),
            workers: self.members.iter().map(worker).collect(),
            models: models(),
            epoch_length: self.epoch_length,
            validation: self.breaker(),
        };
        start.fill(&mut doc, &self.hrp)?;
        if let Some(seconds) = self.voting_period {
            let mut gov: gov::v1::GenesisState = state(&doc, "gov")?;
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
