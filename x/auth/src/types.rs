//! The stored type.

use borsh::{BorshDeserialize, BorshSerialize};

/// One account. The address is its key in [`crate::ACCOUNTS`].
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Account {
    /// Unique on the chain, given in the order in which accounts came to be.
    pub number: u64,
    /// Transactions sent so far; the next one must carry this number.
    pub sequence: u64,
    /// Compressed secp256k1 key, known from the first transaction on.
    pub pub_key: Option<[u8; 33]>,
    /// Name of the module that owns the account; `None` for key holders.
    pub module: Option<String>,
}
