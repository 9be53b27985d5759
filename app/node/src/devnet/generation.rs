//! Executors that run the reference model for real (`--runner`): one runner each, over a shard in this process.
//!
//! ```text
//!  driver ── Job{inference, prompt, mishap} ──► an executor's task ── runner ── FaultyAdapter ── shard
//!     ▲                                                               │
//!     └────────────── Ended{counts and hash, or kind} ◄── work ledger ┘
//! ```
//!
//! Jobs without a mishap run together, as their runner batches them; those with one run after them, each over a worker of
//! its own that is killed, stalled or cut, so that nobody else is hurt.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_runner::backends::reference::{DEFAULT_SEED, LAYERS, ReferenceModel, decode, encode};
use holdfast_runner::deadline::DeadlineOverrides;
use holdfast_runner::fault::{Fault, FaultKind, FaultyAdapter, FaultyPool};
use holdfast_runner::ledger::{IdempotencyLedger, LedgerConfig, MemoryStore};
use holdfast_runner::shard::{LocalShard, ShardSettings};
use holdfast_runner::{
    BoundaryAdapter, Clock, GenerateRequest, Generation, GenerationEvent, HardenedSessionRunner, Report,
    RunnerConfig, RunnerHandle, SessionId, ShardPool, SystemClock, WorkLedger, WorkStatus,
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::clients::message;
use super::executors::ResolvedProfile;
use super::genesis::CHAIN_ID;
use super::workload::SplitMix64;

/// Longest prompt, tokens; longer ones are cut.
pub(crate) const PROMPT_MAX: u32 = 64;
/// Longest answer, tokens.
pub(crate) const ANSWER_MAX: u32 = 32;
/// How long a stalled worker is waited for, milliseconds.
const STALLED_MS: u64 = 300;
/// Longest wait for a block's generations. One that takes longer is answered in a later block.
const SETTLE: Duration = Duration::from_secs(20);
/// Epochs that a runner tries, and that a mishap has to befall.
const EPOCHS: u32 = 3;

/// What befalls a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// Its worker is killed, and so is each one after it.
    Kill,
    /// Its worker does not answer.
    Stall,
    /// Its worker's stream breaks, and it has no other worker to go on with.
    Cut,
}

impl Mishap {
    /// How a profile fails.
    pub(crate) fn of(profile: &ResolvedProfile, down: bool) -> Self {
        match profile {
            ResolvedProfile::Dying { .. } | ResolvedProfile::Recovering { .. } if down => Self::Kill,
            ResolvedProfile::Flapping { .. } if down => Self::Cut,
            _ => Self::Stall,
        }
    }

    /// After the first token of an answer of so many, if it has a second one.
    fn faults(self, answer_tokens: u32) -> Vec<Fault> {
        let step = u32::from(answer_tokens > 1);
        let kind = match self {
            Self::Kill => FaultKind::Die,
            Self::Stall => FaultKind::Stall,
            Self::Cut => FaultKind::Reset,
        };
        (0..EPOCHS).map(|epoch| Fault { kind, step, epoch }).collect()
    }
}

/// The prompt of a request: printable text of so many characters, each a token.
pub(crate) fn prompt(seed: u64, stream: u64, request: u64, tokens: u32) -> String {
    let mut letters = SplitMix64::keyed(&[seed, stream, request]);
    let letter = |_| char::from(b' ' + u8::try_from(letters.below(95)).unwrap_or(0));
    (0..tokens.clamp(1, PROMPT_MAX)).map(letter).collect()
}

/// A generation to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) inference_id: String,
    pub(crate) prompt: String,
    pub(crate) answer_tokens: u32,
    pub(crate) mishap: Option<Mishap>,
    /// The block in which its report may be sent at the earliest.
    pub(crate) not_before: u64,
}

/// What became of a job, from the work ledger.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) executor: usize,
    pub(crate) not_before: u64,
    inference_id: String,
    report: Report,
}

impl Ended {
    /// The report of `executor`.
    pub(crate) fn message(self, executor: String) -> Any {
        let Self { inference_id, report: Report { record, tokens, .. }, .. } = self;
        if record.status == WorkStatus::Completed {
            return message(&pb::MsgFinishInference {
                executed_by: executor,
                inference_id,
                response_hash: Sha256::digest(decode(&tokens)).to_vec(),
                prompt_tokens: record.prompt_tokens.into(),
                completion_tokens: record.tokens.unwrap_or(0).into(),
            });
        }
        let kind = record.failure_kind.map_or(0, |kind| kind.number());
        message(&pb::MsgReportFailure { executor, inference_id, kind })
    }
}

/// The runners of all executors. Their tasks end with it.
pub(crate) struct Runners {
    jobs: Vec<mpsc::UnboundedSender<Job>>,
    handles: Vec<RunnerHandle>,
    // Not longer than the chain has open inferences.
    ended: mpsc::UnboundedReceiver<Result<Ended>>,
    running: usize,
    _tasks: JoinSet<()>,
}

impl Runners {
    /// One runner for each of `count` executors.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (ends, ended) = mpsc::unbounded_channel();
        let mut runners = Self {
            jobs: Vec::with_capacity(count),
            handles: Vec::with_capacity(count),
            ended,
            running: 0,
            _tasks: JoinSet::new(),
        };
        for index in 0..count {
            let model = ReferenceModel::new(DEFAULT_SEED, (0, u32::try_from(LAYERS)?))?;
            let shard =
                LocalShard::new(model, ShardSettings::new(format!("executor-{index}")), clock.clone());
            let shard = Arc::new(shard) as Arc<dyn BoundaryAdapter>;
            let place = Arc::new(Place { workers: Mutex::new(Arc::new(vec![shard.clone()])) });
            let ledger =
                IdempotencyLedger::open(MemoryStore::new(), LedgerConfig::default(), clock.as_ref())?.0;
            let config = RunnerConfig::default();
            let (handle, driver) = HardenedSessionRunner::new(config, clock.clone(), ledger, place.clone());
            let (sender, jobs) = mpsc::unbounded_channel();
            let executor = Executor { index, handle: handle.clone(), clock: clock.clone(), shard, place };
            let ends = ends.clone();
            runners._tasks.spawn(async move { drop(driver.await) });
            runners._tasks.spawn(executor.run(jobs, ends));
            runners.jobs.push(sender);
            runners.handles.push(handle);
        }
        Ok(runners)
    }

    /// Gives a job to an executor.
    pub(crate) fn run(&mut self, executor: usize, job: Job) -> Result<()> {
        let sender = self.jobs.get(executor).context("no such executor")?;
        sender.send(job).ok().context("an executor's runner has ended")?;
        self.running += 1;
        Ok(())
    }

    /// What has ended, once everything has or the wait is over.
    pub(crate) async fn settle(&mut self) -> Result<Vec<Ended>> {
        let mut all = Vec::new();
        let until = tokio::time::Instant::now() + SETTLE;
        while self.running > 0 {
            match tokio::time::timeout_at(until, self.ended.recv()).await {
                Ok(Some(ended)) => {
                    self.running -= 1;
                    all.push(ended?);
                }
                Ok(None) => anyhow::bail!("the executors' runners have ended"),
                Err(_) => break,
            }
        }
        // Who was first depends on the machine; the order of reports need not.
        all.sort_by(|a, b| (a.executor, &a.inference_id).cmp(&(b.executor, &b.inference_id)));
        Ok(all)
    }

    /// The sum of all work ledgers.
    pub(crate) async fn work(&self) -> Result<WorkLedger> {
        let mut sum = WorkLedger::default();
        for handle in &self.handles {
            let work = handle.work().await?;
            sum.completed += work.completed;
            sum.cancelled += work.cancelled;
            sum.failed += work.failed;
            sum.unverified += work.unverified;
            sum.billable_tokens += work.billable_tokens;
        }
        Ok(sum)
    }
}

/// Where an executor's workers are: its good one, or the one that a mishap is about to befall.
struct Place {
    workers: Mutex<Arc<dyn ShardPool>>,
}

impl Place {
    fn set(&self, workers: Arc<dyn ShardPool>) {
        *self.workers.lock().unwrap_or_else(PoisonError::into_inner) = workers;
    }
}

impl ShardPool for Place {
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        workers.live()
    }
}

struct Executor {
    index: usize,
    handle: RunnerHandle,
    clock: Arc<dyn Clock>,
    shard: Arc<dyn BoundaryAdapter>,
    place: Arc<Place>,
}

impl Executor {
    async fn run(self, mut jobs: mpsc::UnboundedReceiver<Job>, ends: mpsc::UnboundedSender<Result<Ended>>) {
        while let Some(first) = jobs.recv().await {
            let mut batch = vec![first];
            while let Ok(next) = jobs.try_recv() {
                batch.push(next);
            }
            let (befallen, clean): (Vec<Job>, Vec<Job>) =
                batch.into_iter().partition(|job| job.mishap.is_some());
            let mut generations = Vec::with_capacity(clean.len());
            for job in clean {
                let generation = self.submit(&job).await;
                generations.push((job, generation));
            }
            for (job, generation) in generations {
                // The devnet has stopped when nobody listens.
                let _ = ends.send(self.end(job, generation).await);
            }
            for job in befallen {
                let faults = job.mishap.map_or_else(Vec::new, |mishap| mishap.faults(job.answer_tokens));
                let faulty = FaultyAdapter::new(self.shard.clone(), self.clock.clone(), 0, faults);
                self.place.set(Arc::new(FaultyPool::new(Vec::new(), faulty)));
                let generation = self.submit(&job).await;
                let ended = self.end(job, generation).await;
                self.place.set(Arc::new(vec![self.shard.clone()]));
                let _ = ends.send(ended);
            }
        }
    }

    async fn submit(&self, job: &Job) -> Result<Generation> {
        let stalls = job.mishap == Some(Mishap::Stall);
        // A worker that is alive is not taken again by the session that it failed, and not replaced either.
        let max_restarts = if job.mishap == Some(Mishap::Cut) { 0 } else { u32::MAX };
        let request = GenerateRequest {
            chain_id: CHAIN_ID.into(),
            deadlines: DeadlineOverrides { total_ms: stalls.then_some(STALLED_MS), ..Default::default() },
            max_restarts,
            ..GenerateRequest::new(
                job.inference_id.as_str(),
                encode(&job.prompt),
                job.answer_tokens.clamp(1, ANSWER_MAX),
            )
        };
        Ok(self.handle.submit(request).await?)
    }

    /// Waits for the end and takes the report from the ledger.
    async fn end(&self, job: Job, generation: Result<Generation>) -> Result<Ended> {
        let mut generation = generation?;
        let session: SessionId = generation.session();
        loop {
            match generation.next().await.context("the runner ended before the generation")? {
                GenerationEvent::Token { index, .. } => generation.delivered(index + 1),
                GenerationEvent::Wait => {}
                GenerationEvent::Done(_) => break,
            }
        }
        let reports = self.handle.unsubmitted().await?;
        let report = reports.into_iter().find(|report| report.record.key.session == session);
        let report = report.context("the ledger has no record of a generation")?;
        // The devnet's transactions all arrive.
        self.handle.mark_submitted(report.record.key, job.inference_id.clone()).await?;
        self.handle.mark_closed(session).await?;
        let Job { inference_id, not_before, .. } = job;
        Ok(Ended { executor: self.index, not_before, inference_id, report })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::Message as _;
    use holdfast_runner::FailureKind;
    use holdfast_runner::backends::reference::oracle::Oracle;

    use super::*;

    fn job(id: &str, mishap: Option<Mishap>) -> Job {
        let prompt = prompt(1, 13, 7, 1_000);
        Job { inference_id: id.into(), prompt, answer_tokens: 1_000, mishap, not_before: 5 }
    }

    #[tokio::test]
    async fn an_answer_is_the_models_and_its_counts_are_the_ledgers() {
        let mut runners = Runners::start(2).unwrap();
        for id in ["a", "b", "c"] {
            runners.run(1, job(id, None)).unwrap();
        }
        let ended = runners.settle().await.unwrap();
        assert_eq!(
            ended.iter().map(|ended| ended.inference_id.as_str()).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
        let text = prompt(1, 13, 7, 64);
        assert_eq!(text.len(), 64);
        let answer = decode(&Oracle::new(DEFAULT_SEED).generate(&encode(&text), 32));
        for ended in ended {
            assert_eq!((ended.executor, ended.not_before), (1, 5));
            let finish = pb::MsgFinishInference::decode(ended.message("me".into()).value.as_slice()).unwrap();
            assert_eq!((finish.prompt_tokens, finish.completion_tokens), (64, 32));
            assert_eq!(finish.response_hash, Sha256::digest(&answer).to_vec());
        }
        let work = runners.work().await.unwrap();
        assert_eq!((work.completed, work.billable_tokens), (3, 96));
    }

    #[tokio::test]
    async fn each_mishap_is_reported_as_its_kind_and_hurts_nobody_else() {
        let mut runners = Runners::start(1).unwrap();
        let cases = [
            ("a", Mishap::Kill, FailureKind::WorkerDeath),
            ("b", Mishap::Stall, FailureKind::DeadlineExceeded),
            ("c", Mishap::Cut, FailureKind::StreamReset),
        ];
        for (id, mishap, _) in cases {
            runners.run(0, job(id, Some(mishap))).unwrap();
            runners.run(0, job(&format!("{id}-after"), None)).unwrap();
        }
        let mut ended = runners.settle().await.unwrap().into_iter();
        for (id, _, kind) in cases {
            let report =
                pb::MsgReportFailure::decode(ended.next().unwrap().message("me".into()).value.as_slice());
            let report = report.unwrap();
            assert_eq!((report.inference_id.as_str(), report.kind), (id, kind.number()));
            assert_eq!(ended.next().unwrap().report.record.status, WorkStatus::Completed);
        }
        assert_eq!(runners.work().await.unwrap().completed, 3);
    }
}
