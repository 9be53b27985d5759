//! Messages as domain types, checked as far as no state is needed.

use std::collections::BTreeSet;

use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_proto::holdfast::participants::v1 as pb;
use holdfast_types::{Address, Coin, Hrp};

use crate::errors::ParticipantsError;
use crate::params::MODELS_LIMIT;
use crate::types::Worker;

/// Longest URL, bytes.
pub(crate) const URL_MAX: usize = 256;
/// Most workers of a participant.
pub(crate) const WORKERS_MAX: usize = 64;
/// Highest layer index.
pub(crate) const LAYER_MAX: u32 = 10_000;

/// What a participant serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// Where its host listens; may be empty.
    pub host_url: String,
    /// Its workers.
    pub workers: Vec<Worker>,
    /// Models, ascending and distinct.
    pub models: Vec<String>,
    /// Serves during PoC phases.
    pub poc_preserved: bool,
}

/// A registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Consensus key.
    pub validator_key: Vec<u8>,
    /// What it serves.
    pub serving: Serving,
    /// First collateral; may be 0.
    pub collateral: Coin,
}

fn bad(field: &'static str, rule: impl Into<String>) -> ParticipantsError {
    ParticipantsError::field(field, rule)
}

/// The signer in field 1.
pub(crate) fn signer(text: &str, hrp: &Hrp) -> Result<Address, ParticipantsError> {
    Address::parse(text, hrp).map_err(|e| bad("participant", e.to_string()))
}

/// A model id: 1 to 64 of letters, digits and `. _ - / :`.
pub(crate) fn check_model(model: &str) -> Result<(), ParticipantsError> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || b"._-/:".contains(&b);
    if (1..=64).contains(&model.len()) && model.bytes().all(ok) {
        Ok(())
    } else {
        Err(bad("model", "use 1 to 64 letters, digits or . _ - / :"))
    }
}

fn check_url(field: &'static str, url: &str) -> Result<(), ParticipantsError> {
    let scheme = ["http://", "https://", "grpc://"].iter().any(|s| url.len() > s.len() && url.starts_with(s));
    let ok = scheme && url.len() <= URL_MAX && url.bytes().all(|b| b.is_ascii_graphic());
    if ok { Ok(()) } else { Err(bad(field, "use http://, https:// or grpc://, at most 256 characters")) }
}

/// A positive coin.
pub(crate) fn amount(coin: Option<&PbCoin>) -> Result<Coin, ParticipantsError> {
    let coin = coin.ok_or_else(|| bad("amount", "is missing"))?;
    let coin = Coin::try_from(coin).map_err(|e| bad("amount", e.to_string()))?;
    if coin.amount == 0 { Err(bad("amount", "must be above 0")) } else { Ok(coin) }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), ParticipantsError> {
    if matches!(key.len(), 32 | 33) {
        return Ok(());
    }
    Err(bad("validator_key", "give 32 bytes (ed25519) or 33 bytes (secp256k1, compressed)"))
}

impl Serving {
    /// From the wire fields.
    pub fn from_pb(
        host_url: String,
        workers: Vec<pb::WorkerEndpoint>,
        mut models: Vec<String>,
        poc_preserved: bool,
    ) -> Result<Self, ParticipantsError> {
        if !host_url.is_empty() {
            check_url("host_url", &host_url)?;
        }
        if workers.len() > WORKERS_MAX {
            return Err(bad("workers", format!("at most {WORKERS_MAX}")));
        }
        let mut checked = Vec::with_capacity(workers.len());
        for w in workers {
            check_url("workers.url", &w.url)?;
            if w.first_layer > w.last_layer || w.last_layer > LAYER_MAX {
                return Err(bad("workers.last_layer", format!("must be first_layer to {LAYER_MAX}")));
            }
            checked.push(Worker { url: w.url, first_layer: w.first_layer, last_layer: w.last_layer });
        }
        if models.len() > usize::try_from(MODELS_LIMIT).unwrap_or(usize::MAX) {
            return Err(bad("models", format!("at most {MODELS_LIMIT}")));
        }
        for model in &models {
            check_model(model).map_err(|_| bad("models", format!("{model:?} is no model id")))?;
        }
        let distinct: BTreeSet<&String> = models.iter().collect();
        if distinct.len() != models.len() {
            return Err(bad("models", "names a model twice"));
        }
        models.sort();
        Ok(Self { host_url, workers: checked, models, poc_preserved })
    }
}

impl Registration {
    /// From the wire form.
    pub fn from_pb(msg: pb::MsgRegisterParticipant) -> Result<Self, ParticipantsError> {
        check_key(&msg.validator_key)?;
        let collateral = msg.collateral.as_ref().ok_or_else(|| bad("collateral", "is missing"))?;
        let collateral = Coin::try_from(collateral).map_err(|e| bad("collateral", e.to_string()))?;
        let serving = Serving::from_pb(msg.host_url, msg.workers, msg.models, msg.poc_preserved)?;
        Ok(Self { validator_key: msg.validator_key, serving, collateral })
    }
}
