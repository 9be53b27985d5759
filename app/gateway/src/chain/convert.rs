//! Rows of the chain as the session's types, and back.

use holdfast_escrow::session::settle::Settlement;
use holdfast_escrow::session::{FrozenConfig, PROTOCOL, Phase};
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Hrp};

use super::{EscrowRow, EscrowStatus};

/// A row of the chain that no session can run by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("escrow_row: {field}: {reason}")]
pub struct RowError {
    /// Field of the row.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

fn bad(field: &'static str, reason: impl ToString) -> RowError {
    RowError { field, reason: reason.to_string() }
}

fn amount(field: &'static str, text: &str) -> Result<u128, RowError> {
    text.parse().map_err(|e| bad(field, e))
}

/// The terms of a session.
///
/// # Errors
/// [`RowError`] for a field that is malformed, another protocol, and terms that are not valid.
pub fn frozen(row: &pb::FrozenConfig, hrp: &Hrp) -> Result<FrozenConfig, RowError> {
    let address = |field, text: &str| Address::parse(text, hrp).map_err(|e| bad(field, e));
    if row.protocol != PROTOCOL {
        return Err(bad("protocol", format!("is {:?}, this gateway speaks {PROTOCOL:?}", row.protocol)));
    }
    let config = FrozenConfig {
        chain_id: row.chain_id.clone(),
        escrow_id: row.escrow_id,
        creator: address("creator", &row.creator)?,
        gateway: address("gateway", &row.gateway)?,
        model: row.model.clone(),
        slots: row.slots.iter().map(|slot| address("slots", slot)).collect::<Result<_, _>>()?,
        amount: amount("amount", &row.amount)?,
        create_fee: amount("create_fee", &row.create_fee)?,
        fee_per_nonce: amount("fee_per_nonce", &row.fee_per_nonce)?,
        token_price: amount("token_price", &row.token_price)?,
        refusal_timeout_s: row.refusal_timeout_s,
        execution_timeout_s: row.execution_timeout_s,
        vote_threshold_bp: u16::try_from(row.vote_threshold_bp).map_err(|e| bad("vote_threshold_bp", e))?,
        cancel_charge_bp: u16::try_from(row.cancel_charge_bp).map_err(|e| bad("cancel_charge_bp", e))?,
        seal_grace_nonces: row.seal_grace_nonces,
        max_nonce: row.max_nonce,
        max_live: row.max_live,
    };
    config.validate().map_err(|e| bad("config", e))?;
    Ok(config)
}

/// An escrow.
pub(super) fn escrow(answer: pb::QueryEscrowResponse, hrp: &Hrp) -> Result<EscrowRow, RowError> {
    let row = answer.escrow.ok_or_else(|| bad("escrow", "is missing"))?;
    let digest = <[u8; 32]>::try_from(answer.config_digest.as_slice());
    let row = plain(row, hrp)?;
    let digest = digest.map_err(|_| bad("config_digest", "must be 32 bytes"))?;
    if digest != row.config_digest {
        return Err(bad(
            "config_digest",
            "is not the hash of the terms: chain and gateway differ in version",
        ));
    }
    Ok(row)
}

/// An escrow of a list, which comes without its digest.
pub(super) fn plain(row: pb::Escrow, hrp: &Hrp) -> Result<EscrowRow, RowError> {
    let status = match row.status() {
        pb::EscrowStatus::Open => EscrowStatus::Open,
        pb::EscrowStatus::Disputed => EscrowStatus::Disputed,
        pb::EscrowStatus::Settled => EscrowStatus::Settled,
        pb::EscrowStatus::Expired => EscrowStatus::Expired,
        pb::EscrowStatus::Unspecified => return Err(bad("status", "is not given")),
    };
    let config = frozen(row.config.as_ref().ok_or_else(|| bad("config", "is missing"))?, hrp)?;
    Ok(EscrowRow {
        config_digest: config.digest(),
        config,
        status,
        created_at: u64::try_from(row.created_at_height).unwrap_or(0),
        expires_at: u64::try_from(row.expires_at_height).unwrap_or(0),
        dispute_window: u64::try_from(row.dispute_window_blocks).unwrap_or(0),
        disputed_nonce: row.dispute.map(|dispute| dispute.nonce),
        paid_nonce: row.outcome.map(|outcome| outcome.nonce),
    })
}

/// A summary as the chain takes it.
#[must_use]
pub fn settlement(summary: &Settlement, hrp: &Hrp) -> pb::Settlement {
    let stats = summary.stats.iter().map(|row| pb::SlotStats {
        slot: row.slot.into(),
        started: row.started,
        completed: row.completed,
        missed: row.missed,
        errored: row.errored,
        released: row.released,
        drained: row.drained,
        cost: row.cost.to_string(),
    });
    let keys = summary.keys.iter().map(|(owner, key)| pb::BoundKey {
        owner: owner.to_bech32(hrp),
        // A revoked key is all zeros in the state and empty here.
        warm: if key.warm == Address([0; 20]) { String::new() } else { key.warm.to_bech32(hrp) },
        seq: key.seq,
        signature: key.sig.to_vec(),
    });
    let signatures = summary
        .signatures
        .iter()
        .map(|s| pb::SlotSignature { slot: s.slot.into(), signature: s.sig.to_vec() });
    pb::Settlement {
        nonce: summary.nonce,
        phase: match summary.phase {
            Phase::Active => pb::SessionPhase::Active,
            Phase::Finalizing => pb::SessionPhase::Finalizing,
            Phase::Frozen => pb::SessionPhase::Frozen,
        }
        .into(),
        finalize_nonce: summary.finalize_nonce,
        balance: summary.balance.to_string(),
        fees: summary.fees.to_string(),
        stats: stats.collect(),
        sealed_acc: summary.sealed_acc.to_vec(),
        live_hash: summary.live_hash.to_vec(),
        keys: keys.collect(),
        signatures: signatures.collect(),
    }
}
