//! The genesis document: `genesis.json` in the shape Cosmos tools expect.

use holdfast_proto::holdfast::{epochs, inference, participants};
use holdfast_proto::{Message, Timestamp, from_json, to_json};
use holdfast_types::{Coin, Height, Hrp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::composition::Composition;
use crate::settings::ChainSettings;

/// Largest genesis file read, bytes.
pub const GENESIS_BYTES_MAX: usize = 1 << 30;

/// Highest height at which a chain can begin: far enough from the last number for every sum of a height and a duration.
pub const INITIAL_HEIGHT_MAX: Height = i64::MAX / 2;

/// A refused genesis document. Every refusal has code 18 of codespace `sdk`.
#[derive(Debug, Error)]
pub enum GenesisError {
    /// Not JSON, or a field of the wrong type or name.
    #[error("genesis: {0}")]
    Json(#[from] serde_json::Error),
    /// A field that cannot be.
    #[error("genesis: {field}: {reason}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is allowed.
        reason: String,
    },
}

fn bad(field: impl Into<String>, reason: impl ToString) -> GenesisError {
    GenesisError::Field { field: field.into(), reason: reason.to_string() }
}

/// Numbers as strings, as in Cosmos genesis files.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(n: &i64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&n.to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
        String::deserialize(d)?.parse().map_err(|_| D::Error::custom("write the number as a decimal string"))
    }
}

/// Block limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockParams {
    /// Most bytes of a block.
    #[serde(with = "text")]
    pub max_bytes: i64,
    /// Most gas of a block; -1 = no limit.
    #[serde(with = "text")]
    pub max_gas: i64,
}

/// Consensus parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsensusParams {
    /// Block limits.
    pub block: BlockParams,
}

/// The `consensus` part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsensusGenesis {
    /// Parameters.
    pub params: ConsensusParams,
}

/// A genesis document. `app_state` holds one proto3-JSON `GenesisState` per module, original field names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenesisDoc {
    /// Always `holdfastd`, or the embedder's name.
    pub app_name: String,
    /// Version that wrote the file.
    pub app_version: String,
    /// RFC 3339, UTC.
    pub genesis_time: String,
    /// Chain id.
    pub chain_id: String,
    /// First height.
    #[serde(with = "text")]
    pub initial_height: i64,
    /// Bech32 prefix of addresses.
    pub bech32_prefix: String,
    /// The one denomination of fees.
    pub fee_denom: String,
    /// Modules.
    pub app_state: Map<String, Value>,
    /// Consensus.
    pub consensus: ConsensusGenesis,
}

impl GenesisDoc {
    /// The document of a fresh chain: default state of every module, nobody has anything.
    ///
    /// # Errors
    /// A bad chain id or prefix.
    pub fn default_for(chain_id: &str, hrp: &Hrp) -> Result<Self, GenesisError> {
        let mut doc = Self {
            app_name: "holdfastd".into(),
            app_version: env!("CARGO_PKG_VERSION").into(),
            genesis_time: "1970-01-01T00:00:00Z".into(),
            chain_id: chain_id.into(),
            initial_height: 1,
            bech32_prefix: hrp.as_str().into(),
            fee_denom: "uhold".into(),
            app_state: Map::new(),
            consensus: ConsensusGenesis {
                params: ConsensusParams { block: BlockParams { max_bytes: 22_020_096, max_gas: -1 } },
            },
        };
        for module in Composition::default().modules() {
            doc.set_module(module.name(), &module.default_genesis())?;
        }
        doc.settings()?;
        Ok(doc)
    }

    /// Parses `genesis.json`. Unknown fields are refused by name.
    ///
    /// # Errors
    /// Anything that is not a genesis document of this app.
    pub fn parse(json: &[u8]) -> Result<Self, GenesisError> {
        Ok(serde_json::from_slice(json)?)
    }

    /// The file's text: indented, stable order.
    ///
    /// # Errors
    /// None in practice.
    pub fn to_json(&self) -> Result<String, GenesisError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    fn state_name(module: &str) -> String {
        format!("holdfast.{module}.v1.GenesisState")
    }

    /// Encoded genesis of `module`.
    ///
    /// # Errors
    /// Missing, or not its `GenesisState`; names the field.
    pub fn module(&self, module: &str) -> Result<Vec<u8>, GenesisError> {
        let field = format!("app_state.{module}");
        let value = self.app_state.get(module).ok_or_else(|| bad(&field, "is missing"))?;
        from_json(&Self::state_name(module), value).map_err(|e| bad(field, e))
    }

    /// Replaces the state of `module`.
    ///
    /// # Errors
    /// Bytes that are not its `GenesisState`.
    pub fn set_module(&mut self, module: &str, genesis: &[u8]) -> Result<(), GenesisError> {
        let value =
            to_json(&Self::state_name(module), genesis).map_err(|e| bad(format!("app_state.{module}"), e))?;
        self.app_state.insert(module.to_owned(), value);
        Ok(())
    }

    /// The settings that go into state.
    ///
    /// # Errors
    /// A bad field, by name.
    pub fn settings(&self) -> Result<ChainSettings, GenesisError> {
        for (field, text) in [("app_name", &self.app_name), ("app_version", &self.app_version)] {
            if !(1..=64).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(bad(field, "use 1 to 64 printable characters without spaces"));
            }
        }
        // Timestamps parse in more forms than RFC 3339 has.
        let time = &self.genesis_time;
        let in_form = time.len() >= 20 && time.as_bytes().get(10) == Some(&b'T') && time.ends_with('Z');
        if !in_form || time.parse::<Timestamp>().is_err() {
            return Err(bad("genesis_time", "write RFC 3339 in UTC, such as 2026-01-31T12:00:00Z"));
        }
        let id = &self.chain_id;
        if !(3..=50).contains(&id.len()) || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(bad("chain_id", "use 3 to 50 letters, digits or -"));
        }
        Hrp::new(&self.bech32_prefix).map_err(|e| bad("bech32_prefix", e))?;
        Coin::new(&self.fee_denom, 0).map_err(|e| bad("fee_denom", e))?;
        let initial_height: Height = self.initial_height;
        if !(1..=INITIAL_HEIGHT_MAX).contains(&initial_height) {
            return Err(bad("initial_height", format!("must be 1 to {INITIAL_HEIGHT_MAX}")));
        }
        let block = &self.consensus.params.block;
        let max_block_bytes = u64::try_from(block.max_bytes).ok().filter(|n| (1024..=100 << 20).contains(n));
        let max_block_bytes = max_block_bytes
            .ok_or_else(|| bad("consensus.params.block.max_bytes", "must be 1024 to 104857600"))?;
        let max_block_gas =
            match block.max_gas {
                -1 => None,
                gas => Some(u64::try_from(gas).map_err(|_| {
                    bad("consensus.params.block.max_gas", "must be -1 (no limit) or at least 0")
                })?),
            };
        Ok(ChainSettings {
            chain_id: id.clone(),
            bech32_prefix: self.bech32_prefix.clone(),
            fee_denom: self.fee_denom.clone(),
            initial_height,
            max_block_bytes,
            max_block_gas,
        })
    }

    /// Checks the whole document: settings, each module by itself, and that no module is missing or unknown.
    ///
    /// # Errors
    /// The first refusal, with the path of the field.
    pub fn validate(&self, composition: &Composition) -> Result<(), GenesisError> {
        self.states(composition).map(|_| ())
    }

    /// The same, and the encoded state of each module in genesis order: turning JSON into it is most of a start's work.
    pub(crate) fn states(&self, composition: &Composition) -> Result<Vec<Vec<u8>>, GenesisError> {
        let settings = self.settings()?;
        let hrp = settings.hrp().map_err(|e| bad("bech32_prefix", e))?;
        let modules = composition.modules();
        for name in self.app_state.keys() {
            if !modules.iter().any(|m| m.name() == name) {
                return Err(bad(format!("app_state.{name}"), "no such module"));
            }
        }
        let mut states = Vec::with_capacity(modules.len());
        let (mut epochs, mut participants, mut inference) = Default::default();
        for module in modules {
            let name = module.name();
            let genesis = self.module(name)?;
            module
                .validate_genesis(&genesis, &hrp)
                .map_err(|e| bad(format!("app_state.{name}"), e.message))?;
            match name {
                "epochs" => epochs = decode(name, &genesis)?,
                "participants" => participants = decode(name, &genesis)?,
                "inference" => inference = decode(name, &genesis)?,
                _ => {}
            }
            states.push(genesis);
        }
        check_fresh(&epochs, &participants)?;
        check_cooldown(&epochs, inference)?;
        Ok(states)
    }
}

fn decode<M: Message + Default>(module: &str, genesis: &[u8]) -> Result<M, GenesisError> {
    M::decode(genesis).map_err(|e| bad(format!("app_state.{module}"), e))
}

/// Before the first block of a chain nobody can have been found unreliable.
fn check_fresh(
    epochs: &epochs::v1::GenesisState,
    participants: &participants::v1::GenesisState,
) -> Result<(), GenesisError> {
    let inactive = participants.participants.iter().position(|row| {
        row.status() == participants::v1::ParticipantStatus::Inactive && epochs.epochs.is_empty()
    });
    match inactive {
        None => Ok(()),
        Some(n) => {
            let field = format!("app_state.participants.participants[{n}].status");
            Err(bad(field, "nobody is inactive before the first block; use PARTICIPANT_STATUS_ACTIVE"))
        }
    }
}

/// The longest cooldown fits into an epoch (breaker.md 5), as it does after every change of either.
fn check_cooldown(
    epochs: &epochs::v1::GenesisState,
    inference: inference::v1::GenesisState,
) -> Result<(), GenesisError> {
    let length = epochs.params.as_ref().map_or(0, |params| params.epoch_length);
    let params = inference.params.and_then(|params| params.validation);
    let cooldown = params.map_or(0, |params| params.health_cb_max_cooldown_blocks);
    if cooldown > length {
        let rule = format!("must be at most app_state.epochs.params.epoch_length, {length}");
        return Err(bad("app_state.inference.params.validation.health_cb_max_cooldown_blocks", rule));
    }
    Ok(())
}
