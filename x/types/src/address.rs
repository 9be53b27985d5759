//! Account addresses: 20 bytes in state, bech32 at the edges.

use std::fmt;

use bech32::Bech32;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::{KeyCodec, KeyError};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// A 20-byte account address. Compares and sorts as bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct Address(pub [u8; 20]);

/// The chain's human-readable bech32 prefix, 1 to 20 lower-case letters or digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hrp(bech32::Hrp);

/// Why a text is no address of this chain.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// Not bech32, or a wrong checksum.
    #[error("not a bech32 address: {0}")]
    Malformed(String),
    /// An address of another chain.
    #[error("bech32 prefix is {found}, this chain uses {expected}")]
    WrongPrefix {
        /// Prefix of this chain.
        expected: String,
        /// Prefix in the text.
        found: String,
    },
    /// Not 20 bytes.
    #[error("an address has 20 bytes, this one {0}")]
    WrongLength(usize),
    /// Upper case: one address has one spelling here.
    #[error("write the address in lower case")]
    UpperCase,
    /// The prefix itself is unusable.
    #[error("bech32 prefix must be 1 to 20 lower-case letters or digits")]
    BadPrefix,
}

impl Hrp {
    /// Checks a prefix.
    pub fn new(prefix: &str) -> Result<Self, AddressError> {
        let ok = (1..=20).contains(&prefix.len())
            && prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        match bech32::Hrp::parse(prefix) {
            Ok(hrp) if ok => Ok(Self(hrp)),
            _ => Err(AddressError::BadPrefix),
        }
    }

    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Default for Hrp {
    /// `hold`.
    fn default() -> Self {
        Self(bech32::Hrp::parse_unchecked("hold"))
    }
}

impl Address {
    /// The account of a module: first 20 bytes of SHA-256 of its name, as in the Cosmos SDK.
    pub fn module(name: &str) -> Self {
        let mut out = [0; 20];
        for (to, from) in out.iter_mut().zip(Sha256::digest(name.as_bytes())) {
            *to = from;
        }
        Self(out)
    }

    /// From raw bytes.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, AddressError> {
        bytes.try_into().map(Self).map_err(|_| AddressError::WrongLength(bytes.len()))
    }

    /// Parses a bech32 address of the chain with prefix `hrp`.
    pub fn parse(text: &str, hrp: &Hrp) -> Result<Self, AddressError> {
        // Bech32 allows all upper case, which would give one account two names.
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(AddressError::UpperCase);
        }
        let checked = bech32::primitives::decode::CheckedHrpstring::new::<Bech32>(text)
            .map_err(|e| AddressError::Malformed(e.to_string()))?;
        if checked.hrp() != hrp.0 {
            let (expected, found) = (hrp.as_str().to_owned(), checked.hrp().to_string());
            return Err(AddressError::WrongPrefix { expected, found });
        }
        Self::from_slice(&checked.byte_iter().collect::<Vec<_>>())
    }

    /// The bech32 form.
    pub fn to_bech32(&self, hrp: &Hrp) -> String {
        // 20 bytes under a checked prefix always fit bech32's length limit.
        bech32::encode::<Bech32>(hrp.0, &self.0).unwrap_or_default()
    }

    /// Lower-case hex.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl KeyCodec for Address {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
        <[u8; 20]>::decode(input).map(Self)
    }
}
