//! All state of the module.

use holdfast_store::{Map, Sequence};
use holdfast_types::Address;

use crate::{Account, keys};

/// Every account by address.
pub const ACCOUNTS: Map<Address, Account> = Map::new(keys::ACCOUNTS);

/// The number the next new account gets.
pub const NEXT_ACCOUNT_NUMBER: Sequence = Sequence::new(keys::NEXT_ACCOUNT_NUMBER);
