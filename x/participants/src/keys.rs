//! The module's name and prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Module name: store space, codespace, module account.
pub const MODULE_NAME: &str = "participants";

pub(crate) const PARAMS: Prefix = Prefix::new(MODULE_NAME, 1, "params");
pub(crate) const MODELS: Prefix = Prefix::new(MODULE_NAME, 2, "models");
pub(crate) const PARTICIPANTS: Prefix = Prefix::new(MODULE_NAME, 3, "participants");
pub(crate) const PARTICIPANTS_BY_KEY: Prefix = Prefix::new(MODULE_NAME, 4, "participants_by_validator_key");
pub(crate) const MEMBERS: Prefix = Prefix::new(MODULE_NAME, 5, "members");
pub(crate) const NEXT_TOTALS: Prefix = Prefix::new(MODULE_NAME, 6, "next_totals");
pub(crate) const INACTIVE: Prefix = Prefix::new(MODULE_NAME, 7, "inactive");
pub(crate) const IN_MAINTENANCE: Prefix = Prefix::new(MODULE_NAME, 8, "in_maintenance");
pub(crate) const WINDOWS: Prefix = Prefix::new(MODULE_NAME, 9, "windows");
pub(crate) const DUE: Prefix = Prefix::new(MODULE_NAME, 10, "due");
pub(crate) const UNAVAILABILITY: Prefix = Prefix::new(MODULE_NAME, 11, "unavailability");
pub(crate) const UNAVAILABILITY_BY_END: Prefix = Prefix::new(MODULE_NAME, 12, "unavailability_by_end");
pub(crate) const REFRESH_CURSOR: Prefix = Prefix::new(MODULE_NAME, 13, "refresh_cursor");
pub(crate) const VALIDATORS: Prefix = Prefix::new(MODULE_NAME, 14, "validators");
pub(crate) const NEXT_WEIGHTS: Prefix = Prefix::new(MODULE_NAME, 15, "next_weights");
pub(crate) const NEXT_WEIGHTS_BY_WEIGHT: Prefix = Prefix::new(MODULE_NAME, 16, "next_weights_by_weight");
pub(crate) const POWER_TOTALS: Prefix = Prefix::new(MODULE_NAME, 17, "power_totals");
pub(crate) const CANDIDATES: Prefix = Prefix::new(MODULE_NAME, 18, "candidates");

/// Every collection of this module. Numbers are never reused.
pub const COLLECTIONS: &[Prefix] = &[
    PARAMS,
    MODELS,
    PARTICIPANTS,
    PARTICIPANTS_BY_KEY,
    MEMBERS,
    NEXT_TOTALS,
    INACTIVE,
    IN_MAINTENANCE,
    WINDOWS,
    DUE,
    UNAVAILABILITY,
    UNAVAILABILITY_BY_END,
    REFRESH_CURSOR,
    VALIDATORS,
    NEXT_WEIGHTS,
    NEXT_WEIGHTS_BY_WEIGHT,
    POWER_TOTALS,
    CANDIDATES,
];
const _: () = assert_distinct(COLLECTIONS);
