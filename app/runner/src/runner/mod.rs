//! The driver: one task that owns the session core, the ledger and the calls to the shards.
//!
//! ```text
//!  RunnerHandle ── commands ──┐                                   ┌── tokens ──► Generation
//!  clock ──────── ticks ──────┤   turn: handle all ready events   │
//!  shards ─────── answers ────┴─► ──► plan ──► ledger.flush() ────┴── calls ──► shards
//! ```
//!
//! A turn takes everything that is ready, has the [`SessionCore`](crate::session::SessionCore) decide, writes the
//! ledger once, syncs it at most once, and only then acts: tokens first, then calls; what gives KV back does not wait for
//! a sync. It spawns nothing and waits for nothing but the clock, the shards and its handle, so it runs on tokio as on
//! [`VirtualClock::run`].
//!
//! [`VirtualClock::run`]: crate::clock::VirtualClock::run

mod driver;
mod generation;
mod inbox;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

pub use self::generation::{Generation, GenerationEvent};
use self::inbox::{Inbox, Question};
use crate::adapter::{KvKey, SessionId, ShardInfo, Usage};
use crate::cancel::CancellationOutcome;
use crate::clock::Clock;
use crate::failure::Cause;
use crate::ledger::{IdempotencyLedger, LedgerError};
use crate::record::{WorkLedger, WorkRecord};
use crate::restart::ShardPool;
pub use crate::session::{FinishReason, GenerateRequest, Outcome, SessionConfig, SubmitError};
use crate::telemetry::Snapshot;

/// Settings of a runner. The default is runner-details 4 to 12.
#[derive(Debug, Clone, Default)]
pub struct RunnerConfig {
    /// Everything that decides.
    pub session: SessionConfig,
}

/// What became of an inference, to be reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Record of the last epoch.
    pub record: WorkRecord,
    /// The inference, as the request named it; empty for a session that never opened an epoch.
    pub inference_id: String,
    /// Tokens committed in this epoch.
    pub tokens: Vec<u32>,
}

/// The runner is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the runner is stopped")]
pub struct Stopped;

/// What went wrong with a record of the ledger.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// There is no runner to do it.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The ledger refused.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The runner. See [`HardenedSessionRunner::new`].
#[derive(Debug)]
pub struct HardenedSessionRunner;

impl HardenedSessionRunner {
    /// A runner over the shards of `pool`: the handle that gives it work, and the driver, which must be polled for
    /// anything to happen. The driver ends when the runner was stopped and nothing is left to do, or with the error of a
    /// ledger that cannot be written: nothing goes on without it.
    #[expect(clippy::new_ret_no_self, reason = "the runner is its driver and its handle")]
    pub fn new(
        config: RunnerConfig,
        clock: Arc<dyn Clock>,
        ledger: IdempotencyLedger,
        pool: Arc<dyn ShardPool>,
    ) -> (RunnerHandle, impl Future<Output = Result<(), LedgerError>> + Send) {
        let inbox = Arc::new(Inbox::default());
        let handle = RunnerHandle { inbox: inbox.clone(), pool: pool.clone() };
        (handle, driver::Driver::new(config, clock, ledger, pool, inbox).run())
    }
}

/// Runs `work` with `driver` beside it, and drops the driver when `work` is done.
pub async fn drive_while<T>(driver: impl Future, work: impl Future<Output = T>) -> T {
    let (mut driver, mut work) = (pin!(driver), pin!(work));
    match select(work.as_mut(), driver.as_mut()).await {
        Either::Left((value, _)) => value,
        Either::Right((_, work)) => work.await,
    }
}

/// Gives the runner work and asks it questions. Clones are the same runner.
#[derive(Clone)]
pub struct RunnerHandle {
    inbox: Arc<Inbox>,
    pool: Arc<dyn ShardPool>,
}

impl std::fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerHandle").finish_non_exhaustive()
    }
}

impl RunnerHandle {
    /// Queues a generation. A session that completed before gives its recorded tokens and record again, without a
    /// shard being called.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn submit(&self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        let (reply, answer) = oneshot::channel();
        self.inbox.submit(request, reply)?;
        answer.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// Withdraws a session: no token is delivered and no step begun after this. The answer comes after phase 1; what
    /// the shards have not yet let go of is named in it (runner-details 7).
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn cancel(&self, session: SessionId, cause: Cause) -> Result<CancellationOutcome, Stopped> {
        self.cancel_epoch(session, None, cause).await
    }

    /// As [`RunnerHandle::cancel`], but only if the session is in this epoch.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn cancel_epoch(
        &self,
        session: SessionId,
        epoch: Option<u32>,
        cause: Cause,
    ) -> Result<CancellationOutcome, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.inbox.cancel(session, epoch, cause, Some(reply));
        answer.await.map_err(|_| Stopped)
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.inbox.ask(question(reply));
        answer.await.map_err(|_| Stopped)
    }

    /// The counters.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn telemetry(&self) -> Result<Snapshot, Stopped> {
        self.ask(Question::Telemetry).await
    }

    /// Sums over the records of the ledger.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn work(&self) -> Result<WorkLedger, Stopped> {
        self.ask(Question::Work).await
    }

    /// Records of a session, by epoch.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn records(&self, session: SessionId) -> Result<Vec<WorkRecord>, Stopped> {
        self.ask(|reply| Question::Records(session, reply)).await
    }

    /// What has not been reported, after a crash too (runner-details 5): the last record of each session that is over.
    /// A session that runs, or waits for its next epoch, has nothing to report yet.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn unsubmitted(&self) -> Result<Vec<Report>, Stopped> {
        self.ask(Question::Unsubmitted).await
    }

    /// The chain or the gateway accepted the report of this record; durable when this returns.
    ///
    /// # Errors
    /// [`MarkError`].
    pub async fn mark_submitted(&self, record: KvKey, reference: impl Into<String>) -> Result<(), MarkError> {
        let reference = reference.into();
        Ok(self.ask(|reply| Question::MarkSubmitted { record, reference, reply }).await??)
    }

    /// Nobody will ask for the session any more: its records may go after ten minutes.
    ///
    /// # Errors
    /// [`MarkError`].
    pub async fn mark_closed(&self, session: SessionId) -> Result<(), MarkError> {
        Ok(self.ask(|reply| Question::MarkClosed(session, reply)).await??)
    }

    /// What the connected shards hold, by shard id.
    #[must_use]
    pub fn usage(&self) -> Vec<(String, Usage)> {
        self.pool.live().iter().map(|shard| (shard.describe().shard_id, shard.usage())).collect()
    }

    /// The connected shards.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardInfo> {
        self.pool.live().iter().map(|shard| shard.describe()).collect()
    }

    /// No new work from now on; what runs may go on for `within_ms`, then it is cancelled, cause node. The driver ends
    /// when all KV is free or its lease has ended.
    pub fn stop(&self, within_ms: u64) {
        self.inbox.stop(within_ms);
    }

    /// One generation to its end, every token delivered as it comes; no second epoch.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn run(&self, mut request: GenerateRequest) -> Result<Outcome, SubmitError> {
        request.max_restarts = 0;
        self.run_with_failover(request).await
    }

    /// One generation to its end, every token delivered as it comes, with as many further epochs as the request and the
    /// node allow.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Stopped`] also when the runner ends before the generation.
    pub async fn run_with_failover(&self, request: GenerateRequest) -> Result<Outcome, SubmitError> {
        let mut generation = self.submit(request).await?;
        loop {
            match generation.next().await {
                Some(GenerationEvent::Token { index, .. }) => generation.delivered(index + 1),
                Some(GenerationEvent::Wait) => {}
                Some(GenerationEvent::Done(outcome)) => return Ok(*outcome),
                None => return Err(SubmitError::Stopped),
            }
        }
    }
}
