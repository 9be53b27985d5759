//! The durable work ledger (runner-details 5): what was about to run, what ran, what is in doubt, how each attempt
//! ended and what was reported of it. Format: `docs/ledger.md`.
//!
//! ```text
//!          begin                 commit
//! unknown ───────► open ───────────────────────────► committed
//!    ▲              │ mark_uncertain, terminal,           ▲
//!    │              ▼ restart                             │
//!    │          uncertain ── resolve(Ran) ────────────────┘
//!    └──────────────┴─────── resolve(NotRun)
//! ```
//!
//! Calls change memory and fill a buffer. Nothing may be done about them in the world until [`IdempotencyLedger::flush`]
//! returned `Ok`. After a write or a sync failed the ledger refuses everything: what is on the disk is known again only
//! after it was opened again.

mod attempts;
mod error;
mod format;
mod index;
mod log;
mod queries;
mod recovery;
mod retire;
mod steps;
mod store;
#[cfg(test)]
mod tests;

pub use attempts::{NAME_MAX, SHARDS_MAX, output_digest};
pub use error::LedgerError;
pub use format::{
    BODY_MAX, BadHeader, EpochOpened, HEADER_BYTES, Header, PREFIX_BYTES, Read, Record, StepKey, VERSION,
    read_record,
};
pub use log::{Durability, IdempotencyLedger, LedgerConfig, SyncTicket};
pub use recovery::{Cut, Recovery};
pub use retire::Retired;
pub use steps::{BeginError, Resolution, StepDisposition, UncertainMutationError};
pub use store::{Crash, FileStore, LedgerStore, MemoryDisk, MemoryStore, Syncer, segment_name};
