//! All state of the module.

use holdfast_store::Map;
use holdfast_types::Address;

use crate::keys;

/// Base units by holder and denomination. No zero rows.
pub const BALANCES: Map<(Address, String), u128> = Map::new(keys::BALANCES);

/// Base units in existence by denomination. No zero rows.
pub const SUPPLY: Map<String, u128> = Map::new(keys::SUPPLY);
