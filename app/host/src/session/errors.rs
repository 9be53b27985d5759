//! Causes of refusals, in the words of the wire (escrow-details 8).

use holdfast_escrow::session::{ApplyError, Hash};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code;
use holdfast_store::StoreError;

use crate::store::DbError;

/// When to try again after a store did not answer or there was no room, milliseconds.
pub(crate) const RETRY_MS: u64 = 1_000;

fn error(code: Code, message: impl Into<String>) -> pb::EscrowError {
    pb::EscrowError { code: code.into(), message: message.into(), ..pb::EscrowError::default() }
}

pub(crate) fn behind(have_nonce: u64) -> pb::EscrowError {
    let message = format!("this replica is at nonce {have_nonce}; bring the diffs after it");
    pb::EscrowError { have_nonce, ..error(Code::Behind, message) }
}

pub(crate) fn not_found(escrow_id: u64) -> pb::EscrowError {
    error(Code::SessionNotFound, format!("no replica of escrow {escrow_id} here; bind it first"))
}

pub(crate) fn closed(escrow_id: u64) -> pb::EscrowError {
    error(Code::SessionClosed, format!("escrow {escrow_id} is settled or expired"))
}

pub(crate) fn policy(message: impl Into<String>) -> pb::EscrowError {
    error(Code::Policy, message)
}

pub(crate) fn bad_tx(message: impl Into<String>) -> pb::EscrowError {
    error(Code::BadTx, message)
}

pub(crate) fn config(message: impl Into<String>) -> pb::EscrowError {
    error(Code::ConfigMismatch, message)
}

pub(crate) fn too_large(what: &str, bytes: usize, limit: usize) -> pb::EscrowError {
    let message = format!("{what}: {bytes}, at most {limit}");
    pb::EscrowError { limit: limit as u64, ..error(Code::TooLarge, message) }
}

pub(crate) fn unavailable(message: impl Into<String>) -> pb::EscrowError {
    pb::EscrowError { retry_after_ms: RETRY_MS, ..error(Code::Unavailable, message) }
}

pub(crate) fn busy(message: impl Into<String>, retry_after_ms: u64) -> pb::EscrowError {
    pb::EscrowError { retry_after_ms, ..error(Code::Busy, message) }
}

pub(crate) fn mismatch(
    have_nonce: u64,
    nonce: u64,
    root: Hash,
    diff_digest: Hash,
    signature: [u8; 65],
) -> pb::EscrowError {
    pb::EscrowError {
        have_nonce,
        nonce,
        root: root.to_vec(),
        diff_digest: diff_digest.to_vec(),
        signature: signature.to_vec(),
        ..error(Code::RootMismatch, format!("nonce {nonce} gives another root here"))
    }
}

pub(crate) fn fork(have_nonce: u64, nonce: u64, diff_digest: Hash, diff: Vec<u8>) -> pb::EscrowError {
    pb::EscrowError {
        have_nonce,
        nonce,
        diff_digest: diff_digest.to_vec(),
        diff,
        ..error(Code::DiffFork, format!("another diff was applied at nonce {nonce}"))
    }
}

/// A diff that no replica would take.
pub(crate) fn refused(have_nonce: u64, nonce: u64, cause: &ApplyError) -> pb::EscrowError {
    pb::EscrowError { have_nonce, nonce, ..bad_tx(format!("nonce {nonce}: {cause}")) }
}

pub(crate) fn store(cause: &StoreError) -> pb::EscrowError {
    unavailable(format!("the host's store: {cause}"))
}

pub(crate) fn db(cause: &DbError) -> pb::EscrowError {
    unavailable(format!("the host's store: {cause}"))
}
