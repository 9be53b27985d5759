//! The failure matrix: what becomes of a generation in a clean run and in eight mishaps (runner-details 10).
//!
//! A [`Scenario`] is run on a [`Stage`]: shards of which one will fail, on a virtual clock in this process or as worker
//! processes that are killed, stopped and cut off for real. The [`Row`] must be the same on every stage.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::future::{Either, select};
use serde::Serialize;

use crate::adapter::{BoundaryAdapter, KvKey, OpenPlan, Sampling, Usage};
use crate::clock::Clock;
use crate::deadline::DeadlineOverrides;
use crate::failure::{Cause, FailureKind, WorkStatus};
use crate::fault::{Fault, FaultKind, FaultyAdapter, FaultyPool};
use crate::ledger::{IdempotencyLedger, LedgerConfig, LedgerError, MemoryStore};
use crate::record::{KvOutcome, WorkLedger};
use crate::restart::ShardPool;
use crate::runner::{
    GenerateRequest, Generation, GenerationEvent, HardenedSessionRunner, Outcome, RunnerConfig, RunnerHandle,
    Stopped, SubmitError, drive_while,
};

/// Longest wait for KV to be released at the end of a run that keeps none.
const RELEASE_MS: u64 = 3_000;
/// Tokens that each generation asks for.
pub const TOKENS: u32 = 8;
/// The reference model's prompt.
pub const PROMPT: [u32; 4] = [7, 3, 9, 1];

/// A mishap, by the name the matrix knows it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// Nothing happens.
    Clean,
    /// Step 2 hangs until the total deadline.
    Deadline,
    /// Step 3 hangs without a sign of life.
    HeartbeatLoss,
    /// The client withdraws when it gets its third token.
    Cancel,
    /// The worker dies in step 3, after it changed its KV.
    WorkerDeath,
    /// The prefill's stream breaks.
    StreamReset,
    /// The session was already in a later epoch.
    StaleEpoch,
    /// The KV is gone before step 4.
    CacheMiss,
    /// As `WorkerDeath`, with a second epoch.
    AlphaFailover,
}

impl Scenario {
    /// All, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Clean,
        Self::Deadline,
        Self::HeartbeatLoss,
        Self::Cancel,
        Self::WorkerDeath,
        Self::StreamReset,
        Self::StaleEpoch,
        Self::CacheMiss,
        Self::AlphaFailover,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Deadline => "deadline",
            Self::HeartbeatLoss => "heartbeat_loss",
            Self::Cancel => "cancel",
            Self::WorkerDeath => "worker_death",
            Self::StreamReset => "stream_reset",
            Self::StaleEpoch => "stale_epoch",
            Self::CacheMiss => "cache_miss",
            Self::AlphaFailover => "alpha_failover",
        }
    }

    /// Whether its records go into the ledger line.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Clean | Self::Cancel | Self::WorkerDeath | Self::AlphaFailover)
    }

    /// What the faulty shard does in a process of its own or in this one; a stage may bring it about another way.
    #[must_use]
    pub const fn fault(self) -> Option<Fault> {
        let (kind, step) = match self {
            Self::Clean | Self::Cancel | Self::StaleEpoch => return None,
            Self::Deadline => (FaultKind::Stall, 2),
            Self::HeartbeatLoss => (FaultKind::Stall, 3),
            Self::WorkerDeath | Self::AlphaFailover => (FaultKind::Die, 3),
            Self::StreamReset => (FaultKind::Reset, 0),
            Self::CacheMiss => (FaultKind::Evict, 4),
        };
        Some(Fault { kind, step, epoch: 0 })
    }
}

/// What became of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The mishap.
    pub scenario: Scenario,
    /// How the last attempt ended.
    pub status: WorkStatus,
    /// Why, unless completed.
    pub failure_kind: Option<FailureKind>,
    /// Tokens of the last attempt, null if it has none.
    pub tokens: Option<u32>,
    /// Whether another attempt could help; null when completed.
    pub restartable: Option<bool>,
    /// What became of its KV.
    pub kv: KvOutcome,
    /// KV rows and buffers still reserved anywhere, after the time for which finished work is held.
    pub kv_entries_left: u64,
    /// The last attempt.
    pub epoch: u32,
    /// The step whose outcome is not known.
    pub uncertain_step: Option<u32>,
    /// What the client got, as token ids.
    pub output: Vec<u32>,
}

/// The whole table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// One row for each mishap.
    pub rows: Vec<Row>,
    /// Sums over the attempts of clean, cancel, worker_death and alpha_failover.
    pub ledger: WorkLedger,
}

/// Why a matrix could not be run. What a row says is never an error.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// The stage could not be set.
    #[error("{scenario}: {reason}")]
    Stage {
        /// The mishap.
        scenario: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The runner refused the request.
    #[error("the runner refused the request: {0}")]
    Submit(#[from] SubmitError),
    /// The runner ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// With another shard at fault the row is another one.
    #[error("{scenario}: with shard {shard} at fault the row is {got:?}, with shard 0 {first:?}")]
    Differs {
        /// The mishap.
        scenario: &'static str,
        /// The shard.
        shard: usize,
        /// Its row.
        got: Box<Row>,
        /// The first shard's.
        first: Box<Row>,
    },
}

/// A future of this module.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a stage does while a generation runs.
pub type Act = BoxFuture<'static, ()>;

/// Shards set up for one run.
pub struct Scene {
    /// The shards, one of which will fail.
    pub pool: Arc<dyn ShardPool>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Limits that bring about the mishap.
    pub deadlines: DeadlineOverrides,
    /// How long the KV of completed work is held, milliseconds.
    pub hold_ms: u64,
    /// What happens beside the run.
    pub act: Option<Act>,
    /// What all shards really hold, asked after the run.
    pub held: Box<dyn Fn() -> BoxFuture<'static, u64> + Send + Sync>,
}

/// What a run is told to do beyond its scenario.
#[derive(Default)]
pub struct Wish<'a> {
    /// The client gets a token: its index and its id.
    pub on_token: Option<&'a mut dyn FnMut(u32, u32)>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// Tokens to ask for instead of [`TOKENS`].
    pub max_new: Option<u32>,
    /// Longest time for all of it, milliseconds, instead of the scene's.
    pub total_ms: Option<u64>,
    /// Hold no KV of completed work, and end when all of it is free or after three seconds.
    pub release_at_once: bool,
    /// Try further epochs, whatever the scenario.
    pub failover: bool,
    /// When it ends, the client withdraws.
    pub withdrawn: Option<BoxFuture<'a, ()>>,
    /// A ledger to write to instead of one in memory.
    pub ledger: Option<IdempotencyLedger>,
    /// Id of the inference; by default one that the ledger in memory has not seen.
    pub inference_id: Option<String>,
}

/// What a run gave.
pub struct Run {
    /// Its row.
    pub row: Row,
    /// All of its attempts, and how it ended.
    pub outcome: Outcome,
    /// Sums over its attempts.
    pub work: WorkLedger,
}

/// Where scenarios are run.
pub trait Stage {
    /// How many shards it has; each is the faulty one in turn.
    fn shards(&self) -> usize;
    /// The prompt.
    fn prompt(&self) -> Vec<u32>;
    /// Sets up fresh shards for `scenario`, with shard `faulty` about to fail.
    fn set(&mut self, scenario: Scenario, faulty: usize) -> BoxFuture<'_, Result<Scene, MatrixError>>;
}

/// Runs every scenario with each shard at fault in turn.
///
/// # Errors
/// [`MatrixError`], also when it matters which shard is at fault.
pub async fn run(stage: &mut (dyn Stage + Send)) -> Result<Matrix, MatrixError> {
    let mut matrix = Matrix { rows: Vec::new(), ledger: WorkLedger::default() };
    for scenario in Scenario::ALL {
        let Run { row: first, work, .. } = run_scenario(stage, scenario, 0, Wish::default()).await?;
        if scenario.is_counted() {
            matrix.ledger.merge(work);
        }
        for shard in 1..stage.shards() {
            let Run { row, .. } = run_scenario(stage, scenario, shard, Wish::default()).await?;
            if row != first {
                let (got, first) = (Box::new(row), Box::new(first));
                return Err(MatrixError::Differs { scenario: scenario.as_str(), shard, got, first });
            }
        }
        matrix.rows.push(first);
    }
    Ok(matrix)
}

/// Runs one scenario with shard `faulty` at fault.
///
/// # Errors
/// [`MatrixError`].
pub async fn run_scenario(
    stage: &mut (dyn Stage + Send),
    scenario: Scenario,
    faulty: usize,
    wish: Wish<'_>,
) -> Result<Run, MatrixError> {
    let prompt = stage.prompt();
    let Scene { pool, clock, deadlines, hold_ms, act, held } = stage.set(scenario, faulty).await?;
    let mut config = RunnerConfig::default();
    config.session.hold_ms = if wish.release_at_once { 0 } else { hold_ms };
    let lease_ms = config.session.lease_ms;
    let ledger = match wish.ledger {
        Some(ledger) => ledger,
        None => IdempotencyLedger::open(MemoryStore::default(), LedgerConfig::default(), clock.as_ref())?.0,
    };
    let id = wish.inference_id.unwrap_or_else(|| format!("matrix-{}", scenario.as_str()));
    let mut request = GenerateRequest::new(id, prompt, wish.max_new.unwrap_or(TOKENS));
    request.deadlines = deadlines;
    request.deadlines.total_ms = wish.total_ms.or(deadlines.total_ms);
    request.stop_tokens = wish.stop_tokens;
    let failover = wish.failover || scenario == Scenario::AlphaFailover;
    request.max_restarts = if failover { u32::MAX } else { 0 };
    if scenario == Scenario::StaleEpoch {
        let plan = OpenPlan { max_positions: 1, lease_ms, sampling: Sampling::GREEDY, trace: None };
        let later = KvKey::new(request.session(), 1);
        for shard in pool.live() {
            let fenced = async {
                shard.open(later, plan).await?;
                shard.release(later, Cause::Coordinator).await
            };
            let stage = |e: crate::AdapterError| MatrixError::Stage {
                scenario: scenario.as_str(),
                reason: e.to_string(),
            };
            fenced.await.map_err(stage)?;
        }
    }
    let (handle, driver) = HardenedSessionRunner::new(config, clock.clone(), ledger, pool);
    let work = async {
        let act = async {
            if let Some(act) = act {
                act.await;
            }
        };
        let client = client(&handle, request, scenario, wish.on_token, wish.withdrawn);
        let (outcome, ()) = futures_util::future::join(client, act).await;
        let outcome = outcome?;
        let mut left = 0;
        let work = handle.work().await?;
        if wish.release_at_once {
            // The runner ends when every shard has let go, also of what may have been opened unheard.
            handle.stop(0);
            let until = clock.now_ms().saturating_add(RELEASE_MS);
            while clock.now_ms() < until && handle.telemetry().await.is_ok() {
                clock.sleep_until(clock.now_ms().saturating_add(10)).await;
            }
        } else {
            // Completed work is held for a while; nothing may be left after it.
            let until = clock.now_ms().saturating_add(hold_ms + 15_000);
            left = held().await;
            while left > 0 && clock.now_ms() < until {
                clock.sleep_until(clock.now_ms().saturating_add(100)).await;
                left = held().await;
            }
        }
        Ok::<_, MatrixError>((outcome, left, work))
    };
    let (outcome, kv_entries_left, work) = drive_while(driver, work).await?;
    let last = outcome.records.last().ok_or(MatrixError::Stage {
        scenario: scenario.as_str(),
        reason: "the attempt left no record".into(),
    })?;
    let row = Row {
        scenario,
        status: last.status,
        failure_kind: last.failure_kind,
        tokens: last.tokens,
        restartable: last.restartable,
        kv: last.kv,
        kv_entries_left,
        epoch: last.key.epoch,
        uncertain_step: last.uncertain_step,
        output: outcome.tokens.clone(),
    };
    Ok(Run { row, outcome, work })
}

/// The client: takes every token, and in [`Scenario::Cancel`] withdraws at the third.
async fn client(
    handle: &RunnerHandle,
    request: GenerateRequest,
    scenario: Scenario,
    mut on_token: Option<&mut dyn FnMut(u32, u32)>,
    withdrawn: Option<BoxFuture<'_, ()>>,
) -> Result<Outcome, MatrixError> {
    let mut generation: Generation = handle.submit(request).await?;
    let mut withdrawn = withdrawn.unwrap_or_else(|| Box::pin(std::future::pending()));
    loop {
        let event = match select(pin!(generation.next()), withdrawn.as_mut()).await {
            Either::Left((event, _)) => Some(event),
            Either::Right(_) => None,
        };
        let Some(event) = event else {
            withdrawn = Box::pin(std::future::pending());
            generation.cancel(Cause::Client);
            continue;
        };
        match event {
            Some(GenerationEvent::Token { index, token }) => {
                if let Some(on_token) = &mut on_token {
                    on_token(index, token);
                }
                generation.delivered(index + 1);
                if scenario == Scenario::Cancel && index == 2 {
                    generation.cancel(Cause::Client);
                }
            }
            Some(GenerationEvent::Wait) => {}
            Some(GenerationEvent::Done(outcome)) => return Ok(*outcome),
            None => return Err(SubmitError::Stopped.into()),
        }
    }
}

/// How long things take on a stage.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// What a step of the faulty shard takes beside its computing, milliseconds.
    pub step_ms: u64,
    /// The total deadline of [`Scenario::Deadline`], milliseconds: reached in step 2.
    pub total_ms: u64,
    /// The heartbeat of [`Scenario::HeartbeatLoss`], milliseconds: more than a step takes.
    pub heartbeat_ms: u64,
    /// How long the KV of completed work is held, milliseconds.
    pub hold_ms: u64,
}

impl Pace {
    /// On a virtual clock (runner-details 10).
    pub const VIRTUAL: Self = Self { step_ms: 10, total_ms: 25, heartbeat_ms: 15, hold_ms: 30_000 };

    /// Limits that bring about the scenario.
    #[must_use]
    pub fn deadlines(&self, scenario: Scenario) -> DeadlineOverrides {
        let mut deadlines = DeadlineOverrides::default();
        match scenario {
            Scenario::Deadline => deadlines.total_ms = Some(self.total_ms),
            Scenario::HeartbeatLoss => deadlines.heartbeat_ms = Some(self.heartbeat_ms),
            _ => {}
        }
        deadlines
    }
}

/// Shards in this process. On a [`VirtualClock`](crate::VirtualClock), its `run` must run the matrix.
pub struct LocalStage<F> {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Makes the shards anew, in layer order.
    pub shards: F,
    /// How many there are.
    pub count: usize,
    /// How long things take.
    pub pace: Pace,
}

impl<F> Stage for LocalStage<F>
where
    F: Fn(Arc<dyn Clock>) -> Result<Vec<Arc<dyn BoundaryAdapter>>, String> + Send,
{
    fn shards(&self) -> usize {
        self.count
    }

    fn prompt(&self) -> Vec<u32> {
        self.prompt.clone()
    }

    fn set(&mut self, scenario: Scenario, faulty: usize) -> BoxFuture<'_, Result<Scene, MatrixError>> {
        let clock = self.clock.clone();
        let scene = (self.shards)(clock.clone()).and_then(|mut shards| {
            let all = shards.clone();
            if faulty >= shards.len() {
                return Err(format!("there are {} shards, none of number {faulty}", shards.len()));
            }
            let failing =
                FaultyAdapter::new(shards.remove(faulty), clock.clone(), self.pace.step_ms, scenario.fault());
            let held = Box::new(move || {
                let left = all.iter().map(|shard| entries(&shard.usage())).sum();
                Box::pin(std::future::ready(left)) as BoxFuture<'static, u64>
            });
            let pool = Arc::new(FaultyPool::new(shards, failing));
            Ok(Scene {
                pool,
                clock,
                deadlines: self.pace.deadlines(scenario),
                hold_ms: self.pace.hold_ms,
                act: None,
                held,
            })
        });
        let scene = scene.map_err(|reason| MatrixError::Stage { scenario: scenario.as_str(), reason });
        Box::pin(std::future::ready(scene))
    }
}

/// KV rows and buffers that are not free.
#[must_use]
pub fn entries(usage: &Usage) -> u64 {
    usage.reserved() + usage.rows() + usage.buffers()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VirtualClock;
    use crate::backends::reference::{DEFAULT_SEED, ReferenceModel};
    use crate::shard::{LocalShard, ShardSettings};

    /// Shards cut at these layers.
    fn matrix(cuts: &[u32]) -> Matrix {
        let clock = VirtualClock::new();
        let cuts = cuts.to_vec();
        let count = cuts.len() - 1;
        let shards = move |clock: Arc<dyn Clock>| {
            let shard = |layers: &[u32]| {
                let model =
                    ReferenceModel::new(DEFAULT_SEED, (layers[0], layers[1])).map_err(|e| e.to_string())?;
                let settings = ShardSettings::new(format!("layers-{}", layers[0]));
                Ok(Arc::new(LocalShard::new(model, settings, clock.clone())) as Arc<dyn BoundaryAdapter>)
            };
            cuts.windows(2).map(shard).collect()
        };
        let time = Arc::new(clock.clone());
        let mut stage =
            LocalStage { clock: time, prompt: PROMPT.to_vec(), shards, count, pace: Pace::VIRTUAL };
        clock.run(run(&mut stage)).unwrap()
    }

    /// The table as the source gives it, and the reference model's golden tokens. Every attempt that ends in a step has
    /// that step's outcome in doubt (runner-details 5).
    fn wanted() -> Matrix {
        use FailureKind as K;
        use KvOutcome as Kv;
        use WorkStatus as S;
        let golden = [8, 185, 33, 96, 154, 45, 82, 93];
        let row =
            |scenario, status, failure_kind, tokens: Option<u32>, restartable, kv, uncertain_step| Row {
                scenario,
                status,
                failure_kind,
                tokens,
                restartable,
                kv,
                kv_entries_left: 0,
                epoch: u32::from(scenario == Scenario::AlphaFailover),
                uncertain_step,
                output: golden[..tokens.unwrap_or(0) as usize].to_vec(),
            };
        let rows = vec![
            row(Scenario::Clean, S::Completed, None, Some(8), None, Kv::Held, None),
            row(
                Scenario::Deadline,
                S::Failed,
                Some(K::DeadlineExceeded),
                Some(2),
                Some(false),
                Kv::Released,
                Some(2),
            ),
            row(
                Scenario::HeartbeatLoss,
                S::Failed,
                Some(K::HeartbeatLost),
                Some(3),
                Some(false),
                Kv::Released,
                Some(3),
            ),
            row(Scenario::Cancel, S::Cancelled, Some(K::Cancelled), Some(3), Some(false), Kv::Released, None),
            row(
                Scenario::WorkerDeath,
                S::Unverified,
                Some(K::WorkerDeath),
                Some(3),
                Some(true),
                Kv::Released,
                Some(3),
            ),
            row(
                Scenario::StreamReset,
                S::Failed,
                Some(K::StreamReset),
                None,
                Some(true),
                Kv::Released,
                Some(0),
            ),
            row(
                Scenario::StaleEpoch,
                S::Failed,
                Some(K::StaleEpoch),
                None,
                Some(false),
                Kv::NeverOpened,
                None,
            ),
            row(
                Scenario::CacheMiss,
                S::Failed,
                Some(K::CacheMiss),
                Some(4),
                Some(true),
                Kv::AlreadyEvicted,
                Some(4),
            ),
            row(Scenario::AlphaFailover, S::Completed, None, Some(8), None, Kv::Held, None),
        ];
        let ledger = WorkLedger { completed: 2, cancelled: 1, failed: 0, unverified: 2, billable_tokens: 16 };
        Matrix { rows, ledger }
    }

    #[test]
    fn one_shard_gives_the_nine_rows_and_sixteen_billable_tokens() {
        assert_eq!(matrix(&[0, 4]), wanted());
    }

    #[test]
    fn two_and_three_shards_give_the_same_rows_whichever_of_them_fails() {
        assert_eq!(matrix(&[0, 2, 4]), wanted());
        assert_eq!(matrix(&[0, 1, 3, 4]), wanted());
    }
}
