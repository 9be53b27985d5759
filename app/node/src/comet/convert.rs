//! Between the app's types and the raw ABCI types.

use anyhow::{Result, bail};
use bytes::Bytes;
use holdfast_app::app::{FinalizedBlock, TxResult};
use holdfast_app::settings::ChainSettings;
use holdfast_types::{Event, ValidatorUpdate};
use tendermint_proto::google::protobuf::{Duration, Timestamp};
use tendermint_proto::v0_38::{abci as pb, crypto, types};

/// Version of the application in every block header. Changes only with a migration of what headers mean.
pub const APP_VERSION: u64 = 1;
/// Blocks for which misbehaviour can be reported. CometBFT's default.
pub const EVIDENCE_BLOCKS: i64 = 100_000;
/// Seconds for which misbehaviour can be reported. CometBFT's default of 48 hours.
const EVIDENCE_SECONDS: i64 = 172_800;
/// Most bytes of evidence in a block; never above the block's own limit.
const EVIDENCE_BYTES: i64 = 1_048_576;

fn saturated(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// An event, every attribute searchable.
pub(crate) fn event(event: Event) -> pb::Event {
    let attribute = |(key, value)| pb::EventAttribute { key, value, index: true };
    pb::Event { r#type: event.kind, attributes: event.attributes.into_iter().map(attribute).collect() }
}

/// The result of one transaction.
pub(crate) fn tx_result(result: TxResult) -> pb::ExecTxResult {
    let TxResult { code, codespace, data, log, gas_wanted, gas_used, events } = result;
    pb::ExecTxResult {
        code,
        codespace,
        data: data.into(),
        log,
        info: String::new(),
        gas_wanted: saturated(gas_wanted),
        gas_used: saturated(gas_used),
        events: events.into_iter().map(event).collect(),
    }
}

/// A validator's key: 32 bytes are ed25519, 33 are secp256k1.
///
/// # Errors
/// Another length, a negative power.
pub(crate) fn validator(update: ValidatorUpdate) -> Result<pb::ValidatorUpdate> {
    let ValidatorUpdate { public_key, power } = update;
    let sum = match public_key.len() {
        32 => crypto::public_key::Sum::Ed25519(public_key),
        33 => crypto::public_key::Sum::Secp256k1(public_key),
        length => bail!("validator key of {length} bytes: 32 (ed25519) or 33 (secp256k1) are expected"),
    };
    if power < 0 {
        bail!("validator power {power} is negative");
    }
    Ok(pb::ValidatorUpdate { pub_key: Some(crypto::PublicKey { sum: Some(sum) }), power })
}

/// A validator as the engine names it.
///
/// # Errors
/// A key of no known type.
pub(crate) fn validator_update(update: &pb::ValidatorUpdate) -> Result<ValidatorUpdate> {
    let public_key = match update.pub_key.as_ref().and_then(|key| key.sum.clone()) {
        Some(crypto::public_key::Sum::Ed25519(bytes) | crypto::public_key::Sum::Secp256k1(bytes)) => bytes,
        None => bail!("validators: pub_key: neither ed25519 nor secp256k1"),
    };
    Ok(ValidatorUpdate { public_key, power: update.power })
}

/// What a block did.
///
/// # Errors
/// A validator key that is none.
pub(crate) fn finalized(block: FinalizedBlock) -> Result<pb::ResponseFinalizeBlock> {
    let FinalizedBlock { tx_results, events, validator_updates, app_hash } = block;
    Ok(pb::ResponseFinalizeBlock {
        events: events.into_iter().map(event).collect(),
        tx_results: tx_results.into_iter().map(tx_result).collect(),
        validator_updates: validator_updates.into_iter().map(validator).collect::<Result<_>>()?,
        consensus_param_updates: None,
        app_hash: Bytes::copy_from_slice(&app_hash),
    })
}

/// Nanoseconds since 1970.
///
/// # Errors
/// A time that is missing, before 1970 or after 2500.
pub(crate) fn time_ns(time: Option<&Timestamp>) -> Result<u64> {
    let Some(Timestamp { seconds, nanos }) = time else { bail!("time: is missing") };
    let parts = u64::try_from(*seconds).ok().zip(u64::try_from(*nanos).ok().filter(|n| *n < 1_000_000_000));
    let total = parts.and_then(|(s, n)| s.checked_mul(1_000_000_000)?.checked_add(n));
    let Some(total) = total else { bail!("time: {seconds} s {nanos} ns lies outside 1970 to 2500") };
    Ok(total)
}

/// All groups of consensus parameters: CometBFT's own genesis knows none of ours, and a group left out would keep its
/// default.
pub(crate) fn consensus_params(settings: &ChainSettings) -> types::ConsensusParams {
    let max_bytes = saturated(settings.max_block_bytes);
    types::ConsensusParams {
        block: Some(types::BlockParams { max_bytes, max_gas: settings.max_block_gas.map_or(-1, saturated) }),
        evidence: Some(types::EvidenceParams {
            max_age_num_blocks: EVIDENCE_BLOCKS,
            max_age_duration: Some(Duration { seconds: EVIDENCE_SECONDS, nanos: 0 }),
            max_bytes: EVIDENCE_BYTES.min(max_bytes),
        }),
        validator: Some(types::ValidatorParams { pub_key_types: vec!["ed25519".into(), "secp256k1".into()] }),
        version: Some(types::VersionParams { app: APP_VERSION }),
        // Vote extensions stay off.
        abci: Some(types::AbciParams { vote_extensions_enable_height: 0 }),
    }
}

/// The lowest height whose block this node's operator and the network still need: blocks below may go. 0 keeps all.
/// A block is needed for `min_retain` heights, for as long as misbehaviour in it can be reported, and for as long as a
/// peer that joins by a snapshot of `snapshots` heights ago has to replay it.
pub(crate) fn retain_height(height: i64, min_retain: u64, snapshots: u64) -> i64 {
    if min_retain == 0 {
        return 0;
    }
    let kept = saturated(min_retain.max(snapshots)).max(EVIDENCE_BLOCKS);
    height.saturating_sub(kept).max(0)
}
