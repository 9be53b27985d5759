//! The inference runner of a node: no generation hangs, leaks, runs twice or is billed falsely.
//!
//! | part | what it is |
//! |---|---|
//! | [`adapter`] | [`BoundaryAdapter`], the one contract of a shard, and what crosses it |
//! | [`failure`] | [`FailureKind`], [`Cause`], [`WorkStatus`]: what went wrong and what follows |
//! | [`record`] | [`WorkRecord`], the one record of an attempt |
//! | [`clock`] | the injected clock, real and virtual |
//! | [`deadline`], [`cancel`], [`restart`] | every wait bounded; one cancel for all shards; failover from token zero |
//! | [`scheduler`] | continuous batching over a bounded queue |
//! | [`session`] | all sessions as one state machine without I/O |
//! | [`runner`] | the driver that composes all of it |
//! | [`telemetry`] | counters and gauges |
//! | [`ledger`] | the durable work ledger |
//! | [`kv`], [`shard`] | a shard in this process |
//! | [`backends`] | what computes |
//! | [`text`] | text to tokens and back |
//! | [`worker`] | a shard in another process |
//! | [`fault`], [`proxy`], [`matrix`] | faults on purpose, a wire that can be cut, and the failure matrix |

pub mod adapter;
pub mod backends;
pub mod cancel;
pub mod clock;
pub mod deadline;
pub mod failure;
pub mod fault;
pub mod kv;
pub mod ledger;
pub mod matrix;
pub mod proxy;
pub mod record;
pub mod restart;
pub mod runner;
pub mod scheduler;
pub mod session;
pub mod shard;
pub mod telemetry;
pub mod text;
pub mod trace;
pub mod worker;

pub use adapter::{AdapterError, BoundaryAdapter, Bundle, KvKey, Payload, SessionId, StepOut, StepRef};
pub use cancel::{CancellationOutcome, CancellationToken, ShardCancellationGroup};
pub use clock::{Clock, SystemClock, VirtualClock};
pub use deadline::{DeadlineGuard, Deadlines, StreamTerminated};
pub use failure::{Cause, FailureKind, WorkStatus, classify, work_status_for};
pub use ledger::{IdempotencyLedger, StepDisposition, StepKey, UncertainMutationError};
pub use record::{KvOutcome, WorkLedger, WorkRecord};
pub use restart::{RestartController, ShardPool};
pub use runner::{
    Generation, GenerationEvent, HardenedSessionRunner, Report, RunnerConfig, RunnerHandle, drive_while,
};
pub use scheduler::{ContinuousBatchScheduler, SchedulerTelemetry};
pub use session::{FinishReason, GenerateRequest, Outcome, SessionConfig, SubmitError};
pub use text::{ByteCodec, ChatMessage, TextCodec, TextError, TextStream};
pub use trace::TraceContext;
