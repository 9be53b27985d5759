//! The chain of a gateway and its hosts: one model, every host a member of equal weight, timeouts that fit a rehearsal.

use holdfast_app::genesis::{GenesisDoc, GenesisError};
use holdfast_app::keys::SecretKey;
use holdfast_proto::Message;
use holdfast_proto::holdfast::{escrow, participants};
use holdfast_types::{Hrp, ValidationParams};

use crate::devnet::config::Preset;
use crate::devnet::genesis::{DENOM, Start, Worker, preset_params, state};

/// Name of the small deterministic model.
pub const REFERENCE: &str = "ref-llama";
/// Blocks in an epoch: an escrow never outlives the one after its own, and no run should end that way.
pub const EPOCH_LENGTH: i64 = 100_000;
/// Coins that the escrow takes.
pub const AMOUNT: u128 = 1_000_000_000_000;
/// Seconds for a receipt.
pub const REFUSAL_S: u32 = 10;
/// Seconds from a receipt to the end.
pub const EXECUTION_S: u32 = 60;
const WEIGHT: u64 = 1_000;

/// What the document is made from.
pub struct Chain<'a> {
    /// Chain id.
    pub chain_id: &'a str,
    /// RFC 3339.
    pub genesis_time: String,
    /// The model that every host serves.
    pub model: &'a str,
    /// Pays the escrow in and signs its diffs. Account 0.
    pub gateway: &'a SecretKey,
    /// Key of each host and where it is reached. Accounts 1 and up.
    pub hosts: Vec<(&'a SecretKey, String)>,
    /// Highest nonce of a session.
    pub max_nonce: u64,
}

impl Chain<'_> {
    /// The genesis document.
    ///
    /// # Errors
    /// A chain id that is none.
    pub fn document(&self) -> Result<GenesisDoc, GenesisError> {
        let hrp = Hrp::default();
        let mut doc = GenesisDoc::default_for(self.chain_id, &hrp)?;
        doc.genesis_time.clone_from(&self.genesis_time);
        let addresses = || self.hosts.iter().map(|(key, _)| key.address());
        let accounts = std::iter::once(self.gateway.address()).chain(addresses());
        let worker = |(key, _): &(&SecretKey, String)| Worker {
            address: key.address(),
            validator_key: key.public_key().to_bytes().to_vec(),
            models: vec![self.model.into()],
            weight: WEIGHT,
        };
        let start = Start {
            accounts: accounts.zip(0..).collect(),
            workers: self.hosts.iter().map(worker).collect(),
            models: vec![self.model.into()],
            epoch_length: EPOCH_LENGTH,
            validation: ValidationParams {
                downtime_sprt_enabled: false,
                ..preset_params(Preset::Recommended)
            },
        };
        start.fill(&mut doc, &hrp)?;

        let mut members: participants::v1::GenesisState = state(&doc, "participants")?;
        for row in &mut members.participants {
            let at = self.hosts.iter().find(|(key, _)| key.address().to_bech32(&hrp) == row.address);
            if let Some((_, url)) = at {
                row.host_url.clone_from(url);
            }
        }
        doc.set_module("participants", &members.encode_to_vec())?;

        let mut escrows: escrow::v1::GenesisState = state(&doc, "escrow")?;
        if let Some(params) = &mut escrows.params {
            params.denom = DENOM.into();
            params.refusal_timeout_s = REFUSAL_S;
            params.execution_timeout_s = EXECUTION_S;
            params.max_slots_per_owner = 1;
            params.max_nonce = self.max_nonce;
            params.max_lifetime_blocks = EPOCH_LENGTH;
        }
        doc.set_module("escrow", &escrows.encode_to_vec())?;
        Ok(doc)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_app::composition::Composition;

    use super::*;

    #[test]
    fn the_document_is_valid_and_says_where_each_host_is() {
        let key = |n: u8| SecretKey::from_seed_label(&[n], "test");
        let (gateway, first, second) = (key(1), key(2), key(3));
        let chain = Chain {
            chain_id: "test-1",
            genesis_time: "2026-01-31T12:00:00Z".into(),
            model: REFERENCE,
            gateway: &gateway,
            hosts: vec![(&first, "http://127.0.0.1:1".into()), (&second, "http://127.0.0.1:2".into())],
            max_nonce: 30_000,
        };
        let doc = chain.document().unwrap();
        doc.validate(&Composition::default()).unwrap();
        for (key, url) in &chain.hosts {
            let rows = doc.app_state["participants"]["participants"].as_array().unwrap();
            let row = rows.iter().find(|row| row["address"] == key.address().to_bech32(&Hrp::default()));
            assert_eq!(row.unwrap()["host_url"], *url);
        }
        let params = &doc.app_state["escrow"]["params"];
        let texts = ["refusal_timeout_s", "execution_timeout_s", "max_slots_per_owner"];
        assert_eq!(texts.map(|name| params[name].to_string()), ["10", "60", "1"]);
    }
}
