//! What the runner's promises cost, and how soon a cancel has freed everything.
//!
//! | rows | ours | beside it, in the same run |
//! |---|---|---|
//! | `runner.*` | one session through the whole runner, its ledger in a folder | a loop of bare [`ShardModel::forward`] |
//! | `grpc.*` | a step at a shard behind loopback gRPC | the same at a shard in this process; a TCP echo |
//! | `cancel.*` | from the cancel until the last of three workers has freed its KV | one decode step plus one round trip |
//! | `scheduler.*` | 64 sessions at a time, more in the queue | a loop over 64 KV in turn |
//! | `ledger.*` | intents and results, one write or sync for an iteration | the same bytes by raw writes and syncs |
//!
//! Models: the reference model, whose step takes some ten microseconds, and the same with each step repeated until it takes
//! about a millisecond, as that of a small real model does. Both sides take turns, and where single steps are timed the
//! median counts: it does not feel who else is on the machine. Workers have a runtime of their own in threads of their
//! own, as their processes do.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_runner::adapter::{
    AdapterFuture, Counts, Digest, OpenPlan, Opened, ReleaseAck, Sampling, ShardInfo, StepState, StopAck,
    Usage, fingerprint,
};
use holdfast_runner::backends::reference::{DEFAULT_SEED, LAYERS, ReferenceKv, ReferenceModel, VOCAB};
use holdfast_runner::kv::StaleCoordinator;
use holdfast_runner::ledger::{
    Durability, EpochOpened, FileStore, IdempotencyLedger, LedgerConfig, MemoryStore, StepKey,
};
use holdfast_runner::shard::{
    Compute, Input, LocalShard, ModelError, ModelFacts, Output, ShardCounters, ShardHost, ShardModel,
    ShardSettings, splitmix64,
};
use holdfast_runner::worker::{
    RemoteConfig, RemoteLimits, RemoteShard, WorkerAddress, WorkerLimits, WorkerServer,
};
use holdfast_runner::{
    BoundaryAdapter, Bundle, Cause, Clock, GenerateRequest, GenerationEvent, HardenedSessionRunner, KvKey,
    Payload, RunnerConfig, RunnerHandle, SessionId, StepOut, StepRef, SystemClock, WorkStatus,
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::measure::cpu_so_far;
use crate::store::folder_bytes;
use crate::{Better, Outcome, Row, median, percentile};

mod cancel;
mod grpc;
mod hardening;
mod ledger;
mod running;
mod scheduler;

use running::*;

const PROMPT: u32 = 16;
const ROWS: u32 = 16_384;
/// Step of the slower model, microseconds.
const SLOW_US: f64 = 1_000.0;
/// What the runner may add to a token, percent.
const OVERHEAD: f64 = 5.0;
/// What a step across loopback gRPC may add, microseconds.
const GRPC_US: f64 = 300.0;
/// What the scheduler has to keep of the bare loop's throughput.
const THROUGHPUT: f64 = 0.9;
/// Sessions that run at a time.
const AT_ONCE: usize = 64;
/// Bytes of a step's frame with one token, about.
const FRAME: usize = 128;
/// Layers of the three workers.
const CUT: [(u32, u32); 3] = [(0, 2), (2, 3), (3, 4)];
/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Generations of each kind with the reference model.
    pub rounds: usize,
    /// The same with the slower one.
    pub slow_rounds: usize,
    /// Tokens of a generation.
    pub tokens: u32,
    /// Cancels.
    pub cancels: usize,
    /// Sessions submitted at once to the scheduler.
    pub sessions: usize,
    /// Rounds of them.
    pub scheduler_rounds: usize,
    /// Iterations of the ledger between two looks at the clock.
    pub iterations: u32,
    /// The same where each syncs.
    pub syncs: u32,
    /// Looks at the clock.
    pub ledger_rounds: u32,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self {
        rounds: 100,
        slow_rounds: 6,
        tokens: 128,
        cancels: 1_000,
        sessions: 256,
        scheduler_rounds: 9,
        iterations: 1_000,
        syncs: 50,
        ledger_rounds: 9,
    };
    /// A check that everything runs.
    pub const QUICK: Self = Self {
        rounds: 3,
        slow_rounds: 1,
        tokens: 8,
        cancels: 10,
        sessions: 80,
        scheduler_rounds: 1,
        iterations: 20,
        syncs: 2,
        ledger_rounds: 2,
    };
}

/// Runs all five.
pub fn run(size: Size) -> Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let mut rows = Vec::new();
    let slow = slow_times()?;
    let details = json!({
        "slow_times": slow,
        "hardening": hardening::hardening(size, slow, dir.path(), &mut rows)?,
        "grpc": grpc::grpc(size, dir.path(), &mut rows)?,
        "cancel": cancel::cancel(size, 1, dir.path(), &mut rows)?,
        "cancel_1ms": cancel::cancel(size, slow, dir.path(), &mut rows)?,
        "scheduler": scheduler::scheduler(size, slow, dir.path(), &mut rows)?,
        "ledger": ledger::ledger(size, dir.path(), &mut rows)?,
    });
    Ok(Outcome { rows, details })
}

/// The reference model, each step computed this many times.
struct Repeated {
    model: ReferenceModel,
    times: u32,
}

impl Repeated {
    fn new(times: u32, layers: (u32, u32)) -> Result<Self> {
        Ok(Self { model: ReferenceModel::new(DEFAULT_SEED, layers)?, times })
    }

    fn whole(times: u32) -> Result<Self> {
        Self::new(times, (0, LAYERS as u32))
    }
}

impl ShardModel for Repeated {
    type Kv = ReferenceKv;

    fn facts(&self) -> ModelFacts {
        self.model.facts()
    }

    fn new_kv(&self, max_positions: u32) -> ReferenceKv {
        self.model.new_kv(max_positions)
    }

    fn rows(&self, kv: &ReferenceKv) -> u32 {
        self.model.rows(kv)
    }

    fn truncate(&self, kv: &mut ReferenceKv, rows: u32) {
        self.model.truncate(kv, rows);
    }

    fn forward(
        &self,
        kv: &mut ReferenceKv,
        position: u32,
        input: Input<'_>,
        sampling: Sampling,
    ) -> Result<Output, ModelError> {
        for _ in 1..self.times {
            std::hint::black_box(self.model.forward(kv, position, input, sampling)?);
            self.model.truncate(kv, position);
        }
        self.model.forward(kv, position, input, sampling)
    }
}

/// How often a step has to be repeated to take [`SLOW_US`].
fn slow_times() -> Result<u32> {
    let model = Repeated::whole(1)?;
    let mut gaps = Vec::new();
    for _ in 0..20 {
        gaps.extend(bare(&model, 128)?.gaps);
    }
    Ok((SLOW_US / median(&gaps)).round().max(1.0) as u32)
}

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|at| (7 * at + 3) % VOCAB as u32).collect()
}

/// A generation.
struct Generated {
    tokens: Vec<u32>,
    /// Microseconds between its tokens.
    gaps: Vec<f64>,
    /// Processor microseconds of this process for each of these.
    cpu: f64,
    /// Milliseconds before the first token and after the last.
    around: f64,
}

/// Watches a generation.
struct Watch {
    begun: Instant,
    expected: usize,
    cpu: Duration,
    first: Instant,
    last: Instant,
    run: Generated,
}

impl Watch {
    fn start(expected: u32) -> Self {
        let now = Instant::now();
        let run = Generated { tokens: Vec::new(), gaps: Vec::new(), cpu: 0.0, around: 0.0 };
        Self { begun: now, expected: expected as usize, cpu: Duration::ZERO, first: now, last: now, run }
    }

    fn token(&mut self, token: u32) {
        let now = Instant::now();
        if self.run.tokens.is_empty() {
            self.cpu = cpu_so_far();
            self.first = now;
        } else {
            self.run.gaps.push((now - self.last).as_secs_f64() * 1e6);
        }
        self.run.tokens.push(token);
        if self.run.tokens.len() == self.expected {
            let cpu = cpu_so_far().saturating_sub(self.cpu);
            self.run.cpu = cpu.as_secs_f64() * 1e6 / self.run.gaps.len().max(1) as f64;
        }
        self.last = now;
    }

    fn end(mut self) -> Result<Generated> {
        ensure!(self.run.tokens.len() == self.expected, "{} tokens", self.run.tokens.len());
        self.run.around = (self.begun.elapsed() - (self.last - self.first)).as_secs_f64() * 1e3;
        Ok(self.run)
    }
}

fn forward(model: &Repeated, kv: &mut ReferenceKv, position: u32, input: &[u32]) -> Result<u32> {
    match model.forward(kv, position, Input::Tokens(input), Sampling::GREEDY)? {
        Output::Token { token, .. } => Ok(token),
        Output::Hidden(_) => bail!("activations of a whole model"),
    }
}

/// By the model alone.
fn bare(model: &Repeated, tokens: u32) -> Result<Generated> {
    let mut watch = Watch::start(tokens);
    let mut kv = model.new_kv(PROMPT + tokens);
    let mut token = forward(model, &mut kv, 0, &prompt())?;
    watch.token(token);
    for position in PROMPT..PROMPT + tokens - 1 {
        token = forward(model, &mut kv, position, &[token])?;
        watch.token(token);
    }
    watch.end()
}

fn session(number: usize) -> SessionId {
    SessionId::new("bench", 1, &number.to_string())
}

/// By calls to one shard that holds the whole model.
async fn by_shard(shard: &dyn BoundaryAdapter, number: usize, tokens: u32) -> Result<Generated> {
    let model = shard.describe().model_digest;
    let key = KvKey::new(session(number), 0);
    let mut watch = Watch::start(tokens);
    let plan = OpenPlan {
        max_positions: PROMPT + tokens,
        lease_ms: 60_000,
        sampling: Sampling::GREEDY,
        trace: None,
    };
    shard.open(key, plan).await?;
    let mut position = 0;
    let mut input = prompt();
    for step in 0..tokens {
        let rows = input.len() as u32;
        let fingerprint = fingerprint(&model, key.session, position, &input, Sampling::GREEDY);
        let at = StepRef { step, fingerprint };
        let bundle = Bundle::new(position, Payload::Tokens(input));
        let out = match step {
            0 => shard.prefill(key, at, bundle).await?,
            _ => shard.decode(key, at, bundle).await?,
        };
        let StepOut::Token { token, .. } = out else { bail!("activations of a whole model") };
        watch.token(token);
        position += rows;
        input = vec![token];
    }
    shard.release(key, Cause::Client).await?;
    watch.end()
}

fn request(id: &str, tokens: u32) -> GenerateRequest {
    GenerateRequest::new(id, prompt(), tokens)
}

/// By the whole runner, each token acknowledged as a client's stream does. The client is a task of its own: what blocks
/// on a runtime has its turn only now and then.
async fn by_runner(handle: &RunnerHandle, id: &str, tokens: u32) -> Result<Generated> {
    let (handle, request) = (handle.clone(), request(id, tokens));
    let client = async move {
        let mut watch = Watch::start(tokens);
        let mut generation = handle.submit(request).await?;
        loop {
            match generation.next().await.context("the runner ended")? {
                GenerationEvent::Token { index, token } => {
                    watch.token(token);
                    generation.delivered(index + 1);
                }
                GenerationEvent::Wait => {}
                GenerationEvent::Done(outcome) => {
                    ensure!(outcome.status == WorkStatus::Completed, "{outcome:?}");
                    return watch.end();
                }
            }
        }
    };
    timeout(PATIENCE, tokio::spawn(client)).await.context("a generation does not end")??
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_the_outputs_agree_and_nothing_is_left_on_the_workers() {
        let size = Size { rounds: 2, slow_rounds: 1, tokens: 4, cancels: 3, sessions: 66, ..Size::QUICK };
        let outcome = run(size).unwrap();
        let names: Vec<&str> = outcome.rows.iter().map(|row| row.name.as_str()).collect();
        for name in [
            "runner.reference.overhead",
            "runner.1ms_threaded.overhead_cpu",
            "grpc.runner_step_adds_p99",
            "cancel.released_max",
            "cancel_1ms.released_p50",
            "scheduler.1ms.of_bare",
            "ledger.power.batch_16",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(outcome.rows.iter().all(|row| row.value.is_finite()));
        // Two iterations of one session: an intent and a result each.
        assert!(outcome.details["ledger"]["process_1"]["bytes"].as_u64().unwrap() > 100);
    }
}
