//! Escrows of the chain as the gateway has them.

use holdfast_app::grpc::ChainError;
use holdfast_escrow::config_from_pb;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::Hrp;

use super::{EscrowRow, EscrowStatus};

/// A row that no session can run by.
fn malformed(field: &str, reason: impl std::fmt::Display) -> ChainError {
    let log = format!("escrow_row: {field}: {reason}");
    ChainError::Refused { codespace: "gateway".into(), code: 2, log }
}

/// An escrow.
pub(super) fn escrow(answer: pb::QueryEscrowResponse, hrp: &Hrp) -> Result<EscrowRow, ChainError> {
    let row = plain(answer.escrow.ok_or_else(|| malformed("escrow", "is missing"))?, hrp)?;
    if row.config_digest[..] != answer.config_digest {
        let reason = "is not the hash of the terms: chain and gateway differ in version";
        return Err(malformed("config_digest", reason));
    }
    Ok(row)
}

/// An escrow of a list, which comes without its digest.
pub(super) fn plain(row: pb::Escrow, hrp: &Hrp) -> Result<EscrowRow, ChainError> {
    let status = match row.status() {
        pb::EscrowStatus::Open => EscrowStatus::Open,
        pb::EscrowStatus::Disputed => EscrowStatus::Disputed,
        pb::EscrowStatus::Settled => EscrowStatus::Settled,
        pb::EscrowStatus::Expired => EscrowStatus::Expired,
        pb::EscrowStatus::Unspecified => return Err(malformed("status", "is not given")),
    };
    let config = row.config.as_ref().ok_or_else(|| malformed("config", "is missing"))?;
    let config = config_from_pb(config, hrp).map_err(|e| malformed("config", e))?;
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
