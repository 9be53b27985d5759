//! Who calls: the `rpc` signature in the metadata `holdfast-auth-bin` (escrow-details 1).

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_app::keys::{self, SecretKey};
use holdfast_proto::Message;
use holdfast_types::Address;
use sha2::{Digest, Sha256};

/// Key of the metadata.
pub const METADATA: &str = "holdfast-auth-bin";

/// How far a caller's clock may be off, milliseconds.
pub const WINDOW_MS: u64 = 60_000;

/// What is signed. Borsh of it is hashed with SHA-256.
#[derive(BorshSerialize)]
struct Call<'a> {
    tag: &'static str,
    chain_id: &'a str,
    escrow_id: u64,
    method: &'a str,
    body_hash: [u8; 32],
    issued_at_ms: u64,
}

/// What the metadata holds, in borsh: 73 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
struct Credential {
    issued_at_ms: u64,
    signature: [u8; 65],
}

/// Why a caller is not known. Codes are stable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No metadata.
    #[error("metadata {METADATA} is missing; sign the call")]
    Missing,
    /// Other bytes.
    #[error(
        "metadata {METADATA} must be 73 bytes: issued_at_ms (u64, little-endian) and the signature r, s, v"
    )]
    Malformed,
    /// The clocks differ, or the call was kept.
    #[error(
        "issued_at_ms is {off_ms} ms away from this host's clock, more than {WINDOW_MS}; set the clock, sign anew"
    )]
    OutsideWindow {
        /// Distance.
        off_ms: u64,
    },
    /// No key made the signature.
    #[error("the signature is none: {0}")]
    Signature(String),
}

impl AuthError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::Missing => 1,
            Self::Malformed => 2,
            Self::OutsideWindow { .. } => 3,
            Self::Signature(_) => 4,
        }
    }
}

/// The digest that a caller of `method` (such as `Serve`) signs. `request` goes in by the hash of its canonical
/// protobuf bytes, so that no field of it can be exchanged.
fn digest(
    chain_id: &str,
    escrow_id: u64,
    method: &str,
    request: &impl Message,
    issued_at_ms: u64,
) -> [u8; 32] {
    let call = Call {
        tag: "holdfast.escrow.rpc.v1",
        chain_id,
        escrow_id,
        method,
        body_hash: Sha256::digest(request.encode_to_vec()).into(),
        issued_at_ms,
    };
    Sha256::digest(borsh::to_vec(&call).expect("writing to memory does not fail")).into()
}

/// Bytes for the metadata of a call.
#[must_use]
pub fn sign(
    key: &SecretKey,
    chain_id: &str,
    escrow_id: u64,
    method: &str,
    request: &impl Message,
    issued_at_ms: u64,
) -> Vec<u8> {
    let signature = key.sign_recoverable(digest(chain_id, escrow_id, method, request, issued_at_ms));
    borsh::to_vec(&Credential { issued_at_ms, signature }).expect("writing to memory does not fail")
}

/// Whether the metadata can be a credential at all and is of now: what is known of a call before its message was read.
///
/// # Errors
/// [`AuthError`] but `Signature`.
pub fn check_form(metadata: Option<&[u8]>, now_ms: u64) -> Result<(), AuthError> {
    read(metadata, Some(now_ms)).map(drop)
}

fn read(metadata: Option<&[u8]>, now_ms: Option<u64>) -> Result<Credential, AuthError> {
    let bytes = metadata.ok_or(AuthError::Missing)?;
    let credential: Credential = borsh::from_slice(bytes).map_err(|_| AuthError::Malformed)?;
    match now_ms.map(|now_ms| now_ms.abs_diff(credential.issued_at_ms)) {
        Some(off_ms) if off_ms > WINDOW_MS => Err(AuthError::OutsideWindow { off_ms }),
        _ => Ok(credential),
    }
}

/// The address that signed the call.
///
/// # Errors
/// [`AuthError`].
pub fn verify(
    metadata: Option<&[u8]>,
    chain_id: &str,
    escrow_id: u64,
    method: &str,
    request: &impl Message,
    now_ms: u64,
) -> Result<Address, AuthError> {
    recover(read(metadata, Some(now_ms))?, chain_id, escrow_id, method, request)
}

/// The address that signed a call which is kept as evidence, whenever that was.
///
/// # Errors
/// [`AuthError`] but `OutsideWindow`.
pub fn verify_kept(
    metadata: &[u8],
    chain_id: &str,
    escrow_id: u64,
    method: &str,
    request: &impl Message,
) -> Result<Address, AuthError> {
    recover(read(Some(metadata), None)?, chain_id, escrow_id, method, request)
}

fn recover(
    credential: Credential,
    chain_id: &str,
    escrow_id: u64,
    method: &str,
    request: &impl Message,
) -> Result<Address, AuthError> {
    let digest = digest(chain_id, escrow_id, method, request, credential.issued_at_ms);
    keys::recover(digest, &credential.signature).map_err(|e| AuthError::Signature(e.to_string()))
}

#[cfg(test)]
mod tests {
    use holdfast_proto::holdfast::host::v1::ServeRequest;

    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn request() -> ServeRequest {
        ServeRequest { inference_id: "i-1".into(), body: b"{}".to_vec(), deadline_ms: 0 }
    }

    #[test]
    fn a_call_names_its_signer_and_any_change_names_somebody_else() {
        let key = SecretKey::from_seed_label(b"auth", "requester");
        let bytes = sign(&key, "c-1", 0, "Serve", &request(), NOW);
        assert_eq!(bytes.len(), 73);
        let who = |chain: &str, escrow, method: &str, request: &ServeRequest| {
            verify(Some(&bytes), chain, escrow, method, request, NOW + WINDOW_MS)
        };
        assert_eq!(who("c-1", 0, "Serve", &request()), Ok(key.address()));
        let other = ServeRequest { deadline_ms: 1, ..request() };
        for changed in [
            who("c-2", 0, "Serve", &request()),
            who("c-1", 1, "Serve", &request()),
            who("c-1", 0, "Infer", &request()),
            who("c-1", 0, "Serve", &other),
        ] {
            assert_ne!(changed, Ok(key.address()));
        }
    }

    #[test]
    fn a_call_outside_the_window_or_without_a_signature_is_refused() {
        let key = SecretKey::from_seed_label(b"auth", "requester");
        let bytes = sign(&key, "c-1", 0, "Serve", &request(), NOW);
        let at = |bytes: Option<&[u8]>, now| verify(bytes, "c-1", 0, "Serve", &request(), now);
        assert_eq!(at(None, NOW), Err(AuthError::Missing));
        assert_eq!(at(Some(&bytes[1..]), NOW), Err(AuthError::Malformed));
        let late = NOW + WINDOW_MS + 1;
        assert_eq!(at(Some(&bytes), late), Err(AuthError::OutsideWindow { off_ms: WINDOW_MS + 1 }));
        let mut high_v = bytes.clone();
        high_v[72] = 2;
        assert!(matches!(at(Some(&high_v), NOW), Err(AuthError::Signature(_))));
        assert_eq!(
            verify_kept(&bytes, "c-1", 0, "Serve", &request()),
            Ok(key.address()),
            "as evidence for ever"
        );
        assert_ne!(verify_kept(&bytes, "c-1", 0, "Infer", &request()), Ok(key.address()));
    }
}
