//! The module's name and prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Module name: store space, codespace, module account.
pub const MODULE_NAME: &str = "gov";

pub(crate) const PARAMS: Prefix = Prefix::new(MODULE_NAME, 1, "params");
pub(crate) const NEXT_PROPOSAL_ID: Prefix = Prefix::new(MODULE_NAME, 2, "next_proposal_id");
pub(crate) const PROPOSALS: Prefix = Prefix::new(MODULE_NAME, 3, "proposals");
pub(crate) const CONTENTS: Prefix = Prefix::new(MODULE_NAME, 4, "contents");
pub(crate) const DEPOSIT_QUEUE: Prefix = Prefix::new(MODULE_NAME, 5, "deposit_queue");
pub(crate) const VOTING_QUEUE: Prefix = Prefix::new(MODULE_NAME, 6, "voting_queue");
pub(crate) const DEPOSITS: Prefix = Prefix::new(MODULE_NAME, 7, "deposits");
pub(crate) const VOTES: Prefix = Prefix::new(MODULE_NAME, 8, "votes");
pub(crate) const HELD: Prefix = Prefix::new(MODULE_NAME, 9, "held");
pub(crate) const TALLIES: Prefix = Prefix::new(MODULE_NAME, 10, "tallies");
pub(crate) const SETTLEMENTS: Prefix = Prefix::new(MODULE_NAME, 11, "settlements");
pub(crate) const UPGRADE_PLAN: Prefix = Prefix::new(MODULE_NAME, 12, "upgrade_plan");
pub(crate) const APPLIED_UPGRADES: Prefix = Prefix::new(MODULE_NAME, 13, "applied_upgrades");
pub(crate) const LAST_APPLIED: Prefix = Prefix::new(MODULE_NAME, 14, "last_applied");
pub(crate) const MODULE_VERSIONS: Prefix = Prefix::new(MODULE_NAME, 15, "module_versions");

/// Every collection of this module. Numbers are never reused.
pub const COLLECTIONS: &[Prefix] = &[
    PARAMS,
    NEXT_PROPOSAL_ID,
    PROPOSALS,
    CONTENTS,
    DEPOSIT_QUEUE,
    VOTING_QUEUE,
    DEPOSITS,
    VOTES,
    HELD,
    TALLIES,
    SETTLEMENTS,
    UPGRADE_PLAN,
    APPLIED_UPGRADES,
    LAST_APPLIED,
    MODULE_VERSIONS,
];
const _: () = assert_distinct(COLLECTIONS);
