//! Account keys: secp256k1, addresses, and the two ways a key comes to be without randomness (a seed with a
//! label, a BIP39 phrase).

use std::fmt;

use bip32::{DerivationPath, XPrv};
use bip39::{Language, Mnemonic};
use holdfast_types::Address;
use secp256k1::{Message, SECP256K1};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// SLIP-44 coin type of Cosmos wallets.
pub const COIN_TYPE: u32 = 118;

/// Why bytes or words are no key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Zero, or not below the group order, or not 32 bytes.
    #[error("secret key: give 32 bytes that are neither zero nor above the order of secp256k1")]
    Secret,
    /// Not a compressed point of the curve.
    #[error(
        "public key: give the 33 bytes of a compressed secp256k1 point, this is {length} bytes that are none"
    )]
    Public {
        /// Bytes given.
        length: usize,
    },
    /// Not a recoverable signature in its one canonical form.
    #[error("signature: give the 65 bytes r, s, v of secp256k1 with a low s and v 0 or 1")]
    Signature,
    /// Not a BIP39 phrase.
    #[error("mnemonic: {0}; give 12, 15, 18, 21 or 24 words of the English BIP39 list")]
    Mnemonic(String),
    /// The index lies outside BIP32's non-hardened range.
    #[error("address index {0}: give at most 2147483647")]
    Index(u32),
    /// BIP32 found no key on the path; has a chance of 2^-127 a step.
    #[error("no key at {0}; take the next address index")]
    Derivation(String),
}

/// A secret key. Shows nothing of itself in `Debug`, and its bytes are overwritten when it is dropped.
#[derive(Clone)]
pub struct SecretKey(secp256k1::SecretKey);

impl SecretKey {
    /// From 32 bytes, big-endian.
    ///
    /// # Errors
    /// [`KeyError::Secret`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| KeyError::Secret)?;
        secp256k1::SecretKey::from_byte_array(bytes).map(Self).map_err(|_| KeyError::Secret)
    }

    /// The key number `label` of a seed: the same on every machine, different for every pair. For development
    /// networks and tests; whoever knows the seed has every key.
    pub fn from_seed_label(seed: &[u8], label: &str) -> Self {
        // The seed goes in as its hash, so that no seed and label run into each other.
        let seed = Sha256::digest(seed);
        let mut round: u64 = 0;
        loop {
            let digest = Sha256::new()
                .chain_update(b"holdfast/key/v1")
                .chain_update(seed)
                .chain_update(round.to_be_bytes())
                .chain_update(label.as_bytes())
                .finalize();
            // One digest in 2^128 is no key; two in a row have never been seen.
            if let Ok(key) = Self::from_bytes(&digest) {
                return key;
            }
            round = round.wrapping_add(1);
        }
    }

    /// The key of a BIP39 phrase at `m/44'/118'/0'/0/index`, without a BIP39 password: what Cosmos wallets derive.
    ///
    /// # Errors
    /// [`KeyError::Mnemonic`] when words, count or checksum are wrong, [`KeyError::Index`].
    pub fn from_mnemonic(phrase: &str, index: u32) -> Result<Self, KeyError> {
        // Wallets print phrases over several lines; the words are what counts.
        let phrase = phrase.split_whitespace().collect::<Vec<_>>().join(" ");
        let mnemonic = Mnemonic::parse_in_normalized(Language::English, &phrase)
            .map_err(|e| KeyError::Mnemonic(e.to_string()))?;
        if index >= 1 << 31 {
            return Err(KeyError::Index(index));
        }
        let text = format!("m/44'/{COIN_TYPE}'/0'/0/{index}");
        let path: DerivationPath = text.parse().map_err(|_| KeyError::Derivation(text.clone()))?;
        let derived = XPrv::derive_from_path(mnemonic.to_seed_normalized(""), &path)
            .map_err(|_| KeyError::Derivation(text))?;
        Self::from_bytes(&derived.private_key().to_bytes())
    }

    /// The 32 bytes. For a key file that only its owner can read.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.secret_bytes()
    }

    /// The public key.
    pub fn public_key(&self) -> PublicKey {
        let point = self.0.public_key(SECP256K1);
        PublicKey { bytes: point.serialize(), point }
    }

    /// Address of the public key.
    pub fn address(&self) -> Address {
        self.public_key().address()
    }

    /// Signs SHA-256 of `message`: 64 bytes r‖s, low s, nonce by RFC 6979, so the same input gives the same bytes.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let digest = Message::from_digest(Sha256::digest(message).into());
        SECP256K1.sign_ecdsa(digest, &self.0).serialize_compact()
    }

    /// Signs `digest` so that the key can be read off the signature: 65 bytes r‖s‖v, low s, v 0 or 1, nonce by
    /// RFC 6979 (escrow-details 1).
    pub fn sign_recoverable(&self, digest: [u8; 32]) -> [u8; 65] {
        let (recovery, compact) =
            SECP256K1.sign_ecdsa_recoverable(Message::from_digest(digest), &self.0).serialize_compact();
        let mut bytes = [0; 65];
        bytes[..64].copy_from_slice(&compact);
        bytes[64] = u8::from(i32::from(recovery) & 1 == 1);
        bytes
    }
}

/// Address of the key that made `signature` over `digest`; see [`SecretKey::sign_recoverable`].
///
/// # Errors
/// [`KeyError::Signature`] for a high s, a v above 1, and bytes that are no signature.
pub fn recover(digest: [u8; 32], signature: &[u8; 65]) -> Result<Address, KeyError> {
    holdfast_types::recover(&digest, signature).map_err(|_| KeyError::Signature)
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.non_secure_erase();
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {:?})", self.address())
    }
}

/// A new phrase of 12, 15, 18, 21 or 24 words from 16, 20, 24, 28 or 32 bytes of entropy. The caller brings the
/// randomness: this crate has none.
///
/// # Errors
/// [`KeyError::Mnemonic`] for another number of bytes.
pub fn mnemonic_from_entropy(entropy: &[u8]) -> Result<String, KeyError> {
    let mnemonic = Mnemonic::from_entropy_in(Language::English, entropy)
        .map_err(|e| KeyError::Mnemonic(e.to_string()))?;
    Ok(mnemonic.words().collect::<Vec<_>>().join(" "))
}

/// A public key that is a point of the curve. Holds the point beside its 33 bytes, so that decompressing is paid once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey {
    bytes: [u8; 33],
    point: secp256k1::PublicKey,
}

impl PublicKey {
    /// Checks length and that the point lies on the curve.
    ///
    /// # Errors
    /// [`KeyError::Public`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let wrong = KeyError::Public { length: bytes.len() };
        let bytes = <[u8; 33]>::try_from(bytes).map_err(|_| wrong.clone())?;
        let point = secp256k1::PublicKey::from_byte_array_compressed(bytes).map_err(|_| wrong)?;
        Ok(Self { bytes, point })
    }

    /// The 33 bytes of the compressed form.
    pub fn to_bytes(&self) -> [u8; 33] {
        self.bytes
    }

    /// RIPEMD-160 of SHA-256 of the 33 bytes, as in the Cosmos SDK.
    pub fn address(&self) -> Address {
        holdfast_types::address_of(&self.bytes)
    }

    /// The decompressed point.
    pub(crate) fn point(&self) -> &secp256k1::PublicKey {
        &self.point
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.bytes))
    }
}

#[cfg(test)]
mod tests;
