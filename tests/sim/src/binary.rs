//! The app as a binary with some upgrades in it.

use holdfast_app::app::{AppError, AppOptions};
use holdfast_app::upgrades::{self, Upgrade, Upgrades};

/// Options of a binary that knows the upgrades `known`.
pub(crate) fn options(known: &[String], check_tables: bool) -> AppOptions {
    let upgrades = Upgrades::new(known.iter().map(Upgrade::new).collect());
    AppOptions { check_tables, upgrades, ..AppOptions::default() }
}

/// Name and height of the plan for which a node has to stop.
pub(crate) fn needed(error: &AppError) -> Option<(String, i64)> {
    upgrades::needed(error).map(|plan| (plan.name.clone(), plan.height))
}
