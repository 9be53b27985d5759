//! The prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Module name and store space.
pub(crate) const NAME: &str = "bank";

pub(crate) const BALANCES: Prefix = Prefix::new(NAME, 1, "balances");
pub(crate) const SUPPLY: Prefix = Prefix::new(NAME, 2, "supply");

/// Every collection of the module.
pub const COLLECTIONS: &[Prefix] = &[BALANCES, SUPPLY];
const _: () = assert_distinct(COLLECTIONS);
