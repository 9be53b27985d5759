//! Where the module's collections lie.

use holdfast_store::{Prefix, assert_distinct};

/// Module name: store space, codespace, package name, and the name of the account that holds escrows.
pub const MODULE_NAME: &str = "inference";

pub(crate) const PARAMS: Prefix = Prefix::new(MODULE_NAME, 1, "params");
pub(crate) const INFERENCES: Prefix = Prefix::new(MODULE_NAME, 2, "inferences");
pub(crate) const INFERENCES_BY_TIMEOUT: Prefix = Prefix::new(MODULE_NAME, 3, "inferences_by_timeout");
pub(crate) const INFERENCES_BY_END: Prefix = Prefix::new(MODULE_NAME, 4, "inferences_by_end");
pub(crate) const STATS: Prefix = Prefix::new(MODULE_NAME, 5, "stats");
pub(crate) const SPRT: Prefix = Prefix::new(MODULE_NAME, 6, "sprt");
pub(crate) const SPRT_INCREMENTS: Prefix = Prefix::new(MODULE_NAME, 7, "sprt_increments");
pub(crate) const CHANGED: Prefix = Prefix::new(MODULE_NAME, 8, "changed");
pub(crate) const BLOCK_PRICE: Prefix = Prefix::new(MODULE_NAME, 9, "block_price");

/// Every collection of the module.
pub const COLLECTIONS: &[Prefix] = &[
    PARAMS,
    INFERENCES,
    INFERENCES_BY_TIMEOUT,
    INFERENCES_BY_END,
    STATS,
    SPRT,
    SPRT_INCREMENTS,
    CHANGED,
    BLOCK_PRICE,
];
const _: () = assert_distinct(COLLECTIONS);
