//! The module's name and prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Module name: store space and codespace.
pub const MODULE: &str = "breaker";

pub(crate) const ENTRIES: Prefix = Prefix::new(MODULE, 1, "entries");
pub(crate) const DUE: Prefix = Prefix::new(MODULE, 2, "due");
pub(crate) const MODEL_TALLIES: Prefix = Prefix::new(MODULE, 3, "model_tallies");
pub(crate) const TRIP_RINGS: Prefix = Prefix::new(MODULE, 4, "trip_rings");
pub(crate) const OVERRIDES: Prefix = Prefix::new(MODULE, 5, "overrides");
pub(crate) const TALLIES: Prefix = Prefix::new(MODULE, 6, "tallies");

/// Every collection of this module. Numbers are never reused.
pub const PREFIXES: &[Prefix] = &[ENTRIES, DUE, MODEL_TALLIES, TRIP_RINGS, OVERRIDES, TALLIES];
const _: () = assert_distinct(PREFIXES);
