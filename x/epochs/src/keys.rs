//! The prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Module name and store space.
pub(crate) const NAME: &str = "epochs";

pub(crate) const PARAMS: Prefix = Prefix::new(NAME, 1, "params");
pub(crate) const STAGED_PARAMS: Prefix = Prefix::new(NAME, 2, "staged_params");
pub(crate) const CURRENT: Prefix = Prefix::new(NAME, 3, "current");
pub(crate) const EPOCHS: Prefix = Prefix::new(NAME, 4, "epochs");

/// Every collection of the module.
pub const COLLECTIONS: &[Prefix] = &[PARAMS, STAGED_PARAMS, CURRENT, EPOCHS];
const _: () = assert_distinct(COLLECTIONS);
