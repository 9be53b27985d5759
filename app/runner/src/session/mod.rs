//! All sessions of a runner as one state machine without I/O: events and time go in, records go to the ledger, typed
//! effects come out.
//!
//! ```text
//!          admit            released below      opened everywhere        last token
//!  Queued ───────► Fencing ───────────────► Opening ──────────────► Running ─────────► completed, KV held
//!   │ ▲                                      │ full     any failure,  │ │  ▲
//!   │ └───────────── Retreating ◄────────────┘ deadline or cancel, in │ │  │ all shards agree
//!   │                                        every state              │ ▼  │
//!   │ deadline, cancel                                  ┌─────────────┤ Querying (stream reset, shards alive)
//!   ▼                                                   ▼             │
//!  record without KV                                 Stopping ◄───────┘
//!                                                       │ quiescent, or the wait is over: record
//!                            Between (next epoch) ◄─────┴─────► done
//! ```
//!
//! What a shard may hold outlives the session: a [`ShardCancellationGroup`](crate::cancel::ShardCancellationGroup) per
//! (session, epoch) lives from the first open to the last acknowledgement, on its own timer, whether or not anything is
//! admitted meanwhile.

mod core;
mod event;
mod request;
mod steps;
#[cfg(test)]
mod tests;

pub use self::core::SessionCore;
pub use event::{Effect, Event, Now, ShardNo};
pub use request::{FinishReason, GenerateRequest, NAME_MAX, Outcome, STOP_TOKENS_MAX, SubmitError};

use crate::deadline::Deadlines;
use crate::restart::RESTARTS_MAX;
use crate::scheduler::SchedulerLimits;

/// Settings of the session core. The default is runner-details 4 to 12.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Limits that a request may lower.
    pub deadlines: Deadlines,
    /// Limits of the queue and of an iteration.
    pub scheduler: SchedulerLimits,
    /// How long a shard keeps a key without a beat, milliseconds.
    pub lease_ms: u64,
    /// How long the KV of a completed session is kept, milliseconds. It goes earlier when somebody waits for room.
    pub hold_ms: u64,
    /// Time between two beats, milliseconds.
    pub beat_ms: u64,
    /// Time without a token after which a client is told to wait, milliseconds.
    pub wait_ms: u64,
    /// Wait before the next admission after a shard had no room, milliseconds.
    pub full_retry_ms: u64,
    /// Most further epochs of a session; a request may ask for less.
    pub max_restarts: u32,
    /// Whether a lost heartbeat is restartable, once every old shard has released or its lease has ended.
    pub restart_after_fence: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            deadlines: Deadlines::default(),
            scheduler: SchedulerLimits::default(),
            lease_ms: 10_000,
            hold_ms: 30_000,
            beat_ms: 1_000,
            wait_ms: 5_000,
            full_retry_ms: 100,
            max_restarts: RESTARTS_MAX,
            restart_after_fence: false,
        }
    }
}
