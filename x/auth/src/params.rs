//! Parameters of every transaction's first steps.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::cosmos::auth::v1beta1 as pb;
use holdfast_types::FieldError;

/// Most signatures that a transaction is decoded with; no parameter goes beyond it.
pub const TX_SIG_LIMIT_MAX: u64 = 7;
/// Longest memo that a parameter may allow, bytes.
pub const MEMO_CHARACTERS_MAX: u64 = 65_536;
/// Highest gas price of a byte or a signature: a block's gas could not hold a transaction beyond it.
pub const GAS_COST_MAX: u64 = 1_000_000;

/// Field names an update mask may hold.
pub const PARAMS_FIELDS: &[&str] =
    &["max_memo_characters", "tx_sig_limit", "tx_size_cost_per_byte", "sig_verify_cost_secp256k1"];

/// Limits and gas prices (cosmos-conventions 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Params {
    /// Most bytes of a memo, 0 to 65,536.
    pub max_memo_characters: u64,
    /// Most signatures of a transaction, 1 to 7.
    pub tx_sig_limit: u64,
    /// Gas for each byte of a transaction, 1 to 1,000,000.
    pub tx_size_cost_per_byte: u64,
    /// Gas for each signature, 1 to 1,000,000.
    pub sig_verify_cost_secp256k1: u64,
}

impl Default for Params {
    /// The Cosmos SDK's.
    fn default() -> Self {
        Self {
            max_memo_characters: 256,
            tx_sig_limit: 7,
            tx_size_cost_per_byte: 10,
            sig_verify_cost_secp256k1: 1000,
        }
    }
}

impl Params {
    /// Every rule. Genesis, messages and migrations all come through here.
    pub fn validate(&self) -> Result<(), FieldError> {
        let Self { max_memo_characters, tx_sig_limit, tx_size_cost_per_byte, sig_verify_cost_secp256k1 } =
            self;
        if *max_memo_characters > MEMO_CHARACTERS_MAX {
            return Err(FieldError::new("max_memo_characters", "must be 0 to 65536"));
        }
        if !(1..=TX_SIG_LIMIT_MAX).contains(tx_sig_limit) {
            return Err(FieldError::new("tx_sig_limit", "must be 1 to 7"));
        }
        if !(1..=GAS_COST_MAX).contains(tx_size_cost_per_byte) {
            return Err(FieldError::new("tx_size_cost_per_byte", "must be 1 to 1000000"));
        }
        if !(1..=GAS_COST_MAX).contains(sig_verify_cost_secp256k1) {
            return Err(FieldError::new("sig_verify_cost_secp256k1", "must be 1 to 1000000"));
        }
        Ok(())
    }

    /// These parameters with `fields` taken from `new`.
    pub(crate) fn merged(mut self, new: &Self, fields: &[&str]) -> Self {
        let Self { max_memo_characters, tx_sig_limit, tx_size_cost_per_byte, sig_verify_cost_secp256k1 } =
            &mut self;
        for field in fields {
            match *field {
                "max_memo_characters" => *max_memo_characters = new.max_memo_characters,
                "tx_sig_limit" => *tx_sig_limit = new.tx_sig_limit,
                "tx_size_cost_per_byte" => *tx_size_cost_per_byte = new.tx_size_cost_per_byte,
                "sig_verify_cost_secp256k1" => *sig_verify_cost_secp256k1 = new.sig_verify_cost_secp256k1,
                // `fields` come from PARAMS_FIELDS; a test keeps the two lists equal.
                _ => {}
            }
        }
        self
    }
}

impl From<&pb::Params> for Params {
    fn from(params: &pb::Params) -> Self {
        let pb::Params {
            max_memo_characters,
            tx_sig_limit,
            tx_size_cost_per_byte,
            sig_verify_cost_secp256k1,
        } = *params;
        Self { max_memo_characters, tx_sig_limit, tx_size_cost_per_byte, sig_verify_cost_secp256k1 }
    }
}

impl From<&Params> for pb::Params {
    fn from(params: &Params) -> Self {
        let Params { max_memo_characters, tx_sig_limit, tx_size_cost_per_byte, sig_verify_cost_secp256k1 } =
            *params;
        Self { max_memo_characters, tx_sig_limit, tx_size_cost_per_byte, sig_verify_cost_secp256k1 }
    }
}
