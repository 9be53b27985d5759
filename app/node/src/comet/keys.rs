//! Ed25519 keys of validators and nodes, in the files that CometBFT reads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_consensus::SigningKey;
use holdfast_types::Address;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Type names in CometBFT's JSON.
pub const PUBLIC_TYPE: &str = "tendermint/PubKeyEd25519";
/// As [`PUBLIC_TYPE`], of secrets.
pub const SECRET_TYPE: &str = "tendermint/PrivKeyEd25519";

/// A validator's or node's key. Its address is the first 20 bytes of SHA-256 of the public key.
#[derive(Clone)]
pub struct Ed25519Key(SigningKey);

impl Ed25519Key {
    /// The key of 32 secret bytes; any will do.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(SigningKey::from(seed))
    }

    /// Reads the 64 bytes of CometBFT's files: seed, then public key.
    ///
    /// # Errors
    /// What is expected.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let rule = "give 64 bytes, the seed and its ed25519 public key";
        let (seed, public) = bytes.split_first_chunk::<32>().ok_or(rule)?;
        let key = Self::from_seed(*seed);
        if public == key.public_key() { Ok(key) } else { Err(rule.into()) }
    }

    /// The 64 bytes of CometBFT's files.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let (seed, public) = bytes.split_at_mut(32);
        seed.copy_from_slice(self.0.as_bytes());
        public.copy_from_slice(&self.public_key());
        bytes
    }

    /// 32 bytes.
    pub fn public_key(&self) -> [u8; 32] {
        self.0.verification_key().to_bytes()
    }

    /// Consensus address.
    pub fn address(&self) -> Address {
        let digest: [u8; 32] = Sha256::digest(self.public_key()).into();
        let mut address = [0; 20];
        address.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        Address(address)
    }

    /// Id of a node with this key: its address in lower-case hex.
    pub fn node_id(&self) -> String {
        hex::encode(self.address().0)
    }

    /// Text of `priv_validator_key.json`.
    pub fn validator_json(&self) -> String {
        let value = json!({
            "address": hex::encode_upper(self.address().0),
            "pub_key": { "type": PUBLIC_TYPE, "value": STANDARD.encode(self.public_key()) },
            "priv_key": { "type": SECRET_TYPE, "value": STANDARD.encode(self.to_bytes()) },
        });
        format!("{value:#}\n")
    }

    /// Text of `node_key.json`.
    pub fn node_json(&self) -> String {
        let value = json!({ "priv_key": { "type": SECRET_TYPE, "value": STANDARD.encode(self.to_bytes()) } });
        format!("{value:#}\n")
    }
}

/// Text of `priv_validator_state.json` before the first vote. CometBFT does not start without the file.
pub fn fresh_validator_state() -> String {
    format!("{:#}\n", json!({ "height": "0", "round": 0, "step": 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_that_cometbft_reads() {
        // RFC 8032, test 1: secret and public key.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        let key = Ed25519Key::from_seed(hex::decode(seed).unwrap().try_into().unwrap());
        assert_eq!(hex::encode(key.public_key()), public);
        assert_eq!(hex::encode(key.to_bytes()), format!("{seed}{public}"));
        // sha256 of the public key, by another program.
        assert_eq!(key.node_id(), "21fe31dfa154a261626bf854046fd2271b7bed4b");
        assert_eq!(Ed25519Key::from_bytes(&key.to_bytes()).map(|k| k.address()), Ok(key.address()));
        let mut other = key.to_bytes();
        other[63] ^= 1;
        assert!(Ed25519Key::from_bytes(&other).is_err());
        assert!(Ed25519Key::from_bytes(&other[..32]).is_err());
    }
}
