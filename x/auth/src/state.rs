//! All state of the module.

use holdfast_store::{Item, Map, Sequence};
use holdfast_types::Address;

use crate::{Account, Params, keys};

/// Every account by address.
pub const ACCOUNTS: Map<Address, Account> = Map::new(keys::ACCOUNTS);

/// The number the next new account gets.
pub const NEXT_ACCOUNT_NUMBER: Sequence = Sequence::new(keys::NEXT_ACCOUNT_NUMBER);

/// Limits and gas prices of transactions; absent in state made without them, which means the defaults.
pub const PARAMS: Item<Params> = Item::new(keys::PARAMS);
