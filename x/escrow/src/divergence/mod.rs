//! Flags of participants whose state differs from ours, over a typed store (escrow-details 6).
//!
//! | row | key | lives |
//! |---|---|---|
//! | [`DivergenceFlag`] | escrow, participant | until a proof clears it; a restart of the gateway is no amnesty |
//! | [`History`] | escrow, participant | as long as the escrow: a generation is never given twice |
//! | [`Evidence`] | escrow, participant, number | as long as the escrow; the first and the last 31 |
//! | [`FlagChange`] | sequence number | the last 10 000 |
//! | [`AuditRow`] | sequence number | the last 100 000 |
//!
//! [`DivergenceKeeper::advance`] is the only way to change a flag: it loads flag and history, takes one
//! [`crate::repair::step`] and writes what follows from it, all into the store it is given. The caller makes these writes
//! durable in one commit, and carries out the effects after it. Flags are the gateway's own; they are never chain state,
//! and their collections have a space of their own.

mod errors;
mod export;
mod journal;
mod keeper;
mod keys;
#[cfg(test)]
mod tests;
mod types;

pub use errors::DivergenceError;
pub use export::{Export, export, import};
pub use journal::{AUDITS_KEPT, CHANGES_KEPT, DivergenceJournal};
pub use keeper::{Advance, DivergenceKeeper, FlagPage, Moment, PAGE_MAX};
pub use keys::{PREFIXES, SPACE};
pub use types::{
    AuditRow, DivergenceFlag, EVIDENCE_KEPT, Evidence, EvidenceKind, FlagChange, History, REASON,
    REASON_OWN_FORK, Subject, Verb,
};
