//! Where the module's collections lie.

use holdfast_store::{Prefix, assert_distinct};

/// Module name: store space, codespace, package name, and the name of the account that holds the coins.
pub const MODULE_NAME: &str = "escrow";

pub(crate) const PARAMS: Prefix = Prefix::new(MODULE_NAME, 1, "params");
pub(crate) const NEXT_ESCROW_ID: Prefix = Prefix::new(MODULE_NAME, 2, "next_escrow_id");
pub(crate) const ESCROWS: Prefix = Prefix::new(MODULE_NAME, 3, "escrows");
pub(crate) const ESCROWS_BY_DUE: Prefix = Prefix::new(MODULE_NAME, 4, "escrows_by_due");
pub(crate) const ESCROWS_BY_END: Prefix = Prefix::new(MODULE_NAME, 5, "escrows_by_end");
pub(crate) const ESCROWS_BY_OWNER: Prefix = Prefix::new(MODULE_NAME, 6, "escrows_by_owner");

/// Every collection of the module on the chain. Numbers are never reused.
pub const COLLECTIONS: &[Prefix] =
    &[PARAMS, NEXT_ESCROW_ID, ESCROWS, ESCROWS_BY_DUE, ESCROWS_BY_END, ESCROWS_BY_OWNER];
const _: () = assert_distinct(COLLECTIONS);
