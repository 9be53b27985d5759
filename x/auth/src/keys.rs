//! The prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Module name and store space.
pub(crate) const NAME: &str = "auth";

pub(crate) const ACCOUNTS: Prefix = Prefix::new(NAME, 1, "accounts");
pub(crate) const NEXT_ACCOUNT_NUMBER: Prefix = Prefix::new(NAME, 2, "next_account_number");
pub(crate) const PARAMS: Prefix = Prefix::new(NAME, 3, "params");

/// Every collection of the module.
pub const COLLECTIONS: &[Prefix] = &[ACCOUNTS, NEXT_ACCOUNT_NUMBER, PARAMS];
const _: () = assert_distinct(COLLECTIONS);
