//! The space and its prefix table.

use holdfast_store::{Prefix, assert_distinct};

/// Store space of the flags: the gateway's own, apart from the space of the chain's module.
pub const SPACE: &str = "divergence";

pub(super) const FLAGS: Prefix = Prefix::new(SPACE, 1, "flags");
pub(super) const HISTORIES: Prefix = Prefix::new(SPACE, 2, "histories");
pub(super) const EVIDENCE: Prefix = Prefix::new(SPACE, 3, "evidence");
pub(super) const CHANGES: Prefix = Prefix::new(SPACE, 4, "changes");
pub(super) const CHANGE_SEQ: Prefix = Prefix::new(SPACE, 5, "change_seq");
pub(super) const AUDITS: Prefix = Prefix::new(SPACE, 6, "audits");
pub(super) const AUDIT_SEQ: Prefix = Prefix::new(SPACE, 7, "audit_seq");

/// Every collection. Numbers are never reused.
pub const PREFIXES: &[Prefix] = &[FLAGS, HISTORIES, EVIDENCE, CHANGES, CHANGE_SEQ, AUDITS, AUDIT_SEQ];
const _: () = assert_distinct(PREFIXES);
