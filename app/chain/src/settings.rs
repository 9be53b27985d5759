//! What a chain is set up with at genesis and never changes by itself. Stored in state, so that a node that
//! joins by snapshot has it too.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::{Item, Prefix};
use holdfast_types::{AddressError, Height, Hrp};

use crate::composition::APP_SPACE;

/// Chain settings.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ChainSettings {
    /// Chain id, 3 to 50 characters.
    pub chain_id: String,
    /// Bech32 prefix of addresses.
    pub bech32_prefix: String,
    /// The one denomination of fees.
    pub fee_denom: String,
    /// First height.
    pub initial_height: Height,
    /// Most bytes of a block's transactions.
    pub max_block_bytes: u64,
    /// Most gas of a block; `None` = no limit.
    pub max_block_gas: Option<u64>,
}

impl ChainSettings {
    /// The prefix, checked.
    pub fn hrp(&self) -> Result<Hrp, AddressError> {
        Hrp::new(&self.bech32_prefix)
    }
}

/// The settings' place in state.
pub const SETTINGS: Item<ChainSettings> = Item::new(Prefix::new(APP_SPACE, 1, "settings"));
