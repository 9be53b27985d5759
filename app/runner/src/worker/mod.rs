//! A shard in another process, over `holdfast.runner.v1.Worker` (runner-details 4 and 6).
//!
//! ```text
//!  coordinator: RemotePool ─ RemoteShard                     worker: WorkerServer ─ dyn ShardHost
//!
//!   Control  Hello{generation, model} ──────────────────────▶  HelloAck{boot_id, shard} | Refused
//!            Beat{keys} each second  ───────────────────────▶  leases renewed
//!            last_beat_ms            ◀───────────────────────  WorkerBeat each second, after each step
//!   Run      Open{key, plan} | Open{key, attach}  ──────────▶  Opened | Failed, and the stream ends
//!   (one a   Step ──────────────────────────────────────────▶  StepEnded | StepFailed   one at a time
//!    key)    Stop · Release · QueryStep ────────────────────▶  answered at once, while a step runs too
//! ```
//!
//! All streams of a coordinator share one HTTP/2 connection, on which its Hello has to be accepted first. What one key
//! does wrong ends its own stream with a typed [`Failed`](holdfast_proto::holdfast::runner::v1::Failed) and nothing
//! else. A Run stream that breaks stops its session; the KV stays until it is released or its lease ends. When the
//! process is gone, every key of it gets [`WorkerDeath`](crate::AdapterError::WorkerDeath) at once.

mod convert;
mod discover;
mod pool;
mod remote;
mod server;
#[cfg(test)]
mod tests;

use std::fmt;

pub use discover::{
    AddressError, ParticipantWorker, WORKERS_MAX, WorkerAddress, from_participant, from_urls,
};
pub use pool::{PoolMember, RemotePool};
pub use remote::{ConnectError, RemoteConfig, RemoteLimits, RemoteShard};
pub use server::{WorkerError, WorkerLimits, WorkerServer};

/// Longest frame either side sends or takes, in bytes (runner-details 6).
pub const FRAME_BYTES_MAX: usize = 8 << 20;

/// A start of a worker process: random, so that one that came back is another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// The first four bytes in hex, for names.
    #[must_use]
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
