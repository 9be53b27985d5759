//! Changes of the set of validators, as the consensus engine takes them.

/// A validator's new power.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatorUpdate {
    /// Consensus public key: 32 bytes ed25519 or 33 bytes secp256k1 (compressed).
    pub public_key: Vec<u8>,
    /// Power from now on; 0 takes the validator out.
    pub power: i64,
}
