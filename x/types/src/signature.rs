//! Signatures from which the signer's address is read: secp256k1, 65 bytes r‖s‖v over a 32-byte digest
//! (escrow-details 1).

use ripemd::Ripemd160;
use secp256k1::ecdsa::{self, RecoverableSignature, RecoveryId};
use secp256k1::{Message, SECP256K1};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::Address;

/// 65 bytes r‖s‖v.
pub type Signature = [u8; 65];

/// Not a recoverable signature in its one canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("signature: give the 65 bytes r, s, v of secp256k1 with a low s and v 0 or 1")]
pub struct SignatureError;

/// Address of the key that made `signature` over `digest`. Whatever the digest, some address comes out: compare it.
///
/// # Errors
/// [`SignatureError`] for a high s, a v above 1, and bytes that are no signature.
pub fn recover(digest: &[u8; 32], signature: &Signature) -> Result<Address, SignatureError> {
    let (compact, v) = signature.split_at(64);
    let v = match v {
        [v @ (0 | 1)] => i32::from(*v),
        _ => return Err(SignatureError),
    };
    let wrong = |_| SignatureError;
    let mut low = ecdsa::Signature::from_compact(compact).map_err(wrong)?;
    low.normalize_s();
    if low.serialize_compact() != compact {
        return Err(SignatureError);
    }
    let recovery = RecoveryId::try_from(v).map_err(wrong)?;
    let signature = RecoverableSignature::from_compact(compact, recovery).map_err(wrong)?;
    let point = SECP256K1.recover_ecdsa(Message::from_digest(*digest), &signature).map_err(wrong)?;
    Ok(address_of(&point.serialize()))
}

/// RIPEMD-160 of SHA-256 of a compressed public key, as in the Cosmos SDK.
pub fn address_of(compressed: &[u8; 33]) -> Address {
    Address(Ripemd160::digest(Sha256::digest(compressed)).into())
}
