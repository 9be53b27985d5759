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
        "hardening": hardening(size, slow, dir.path(), &mut rows)?,
        "grpc": grpc(size, dir.path(), &mut rows)?,
        "cancel": cancel(size, 1, dir.path(), &mut rows)?,
        "cancel_1ms": cancel(size, slow, dir.path(), &mut rows)?,
        "scheduler": scheduler(size, slow, dir.path(), &mut rows)?,
        "ledger": ledger(size, dir.path(), &mut rows)?,
    });
    Ok(Outcome { rows, details })
}

// ── the models and a generation ─────────────────────────────────────────────────────────────────────────────────────

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
    let plan = OpenPlan { max_positions: PROMPT + tokens, lease_ms: 60_000, sampling: Sampling::GREEDY };
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

// ── runners and workers ─────────────────────────────────────────────────────────────────────────────────────────────

/// The same for all: what one says of a moment another one understands.
fn clock() -> Arc<dyn Clock> {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    Arc::new(CLOCK.clone())
}

fn local(model: Repeated, compute: Compute) -> Arc<LocalShard<Repeated>> {
    let settings = ShardSettings { compute, capacity: ROWS, ..ShardSettings::new("bench") };
    Arc::new(LocalShard::new(model, settings, clock()))
}

/// A runner whose driver is a task of the current runtime.
struct Running {
    handle: RunnerHandle,
    driver: tokio::task::JoinHandle<Result<(), holdfast_runner::ledger::LedgerError>>,
    generation: u64,
}

/// `folder`: where the ledger is; `None`: in memory.
fn start(
    folder: Option<&Path>,
    durability: Durability,
    shards: Vec<Arc<dyn BoundaryAdapter>>,
) -> Result<Running> {
    let clock = clock();
    let settings = LedgerConfig { durability, ..LedgerConfig::default() };
    let (ledger, _) = match folder {
        Some(folder) => IdempotencyLedger::open(FileStore::open(folder)?, settings, clock.as_ref())?,
        None => IdempotencyLedger::open(MemoryStore::new(), settings, clock.as_ref())?,
    };
    let mut config = RunnerConfig::default();
    // Nothing of a completed session is in the next one's way.
    config.session.hold_ms = 0;
    config.session.scheduler.active_sessions = AT_ONCE;
    let generation = ledger.generation();
    let (handle, driver) = HardenedSessionRunner::new(config, clock, ledger, Arc::new(shards));
    Ok(Running { handle, driver: tokio::spawn(driver), generation })
}

impl Running {
    async fn stop(self) -> Result<()> {
        self.handle.stop(0);
        timeout(PATIENCE, self.driver).await.context("the runner does not end")???;
        Ok(())
    }
}

/// On one thread: whatever its tasks take is seen.
fn one_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// As the node's own.
fn threads() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// A worker in threads of its own. Ends when dropped.
struct Worker {
    address: SocketAddr,
    host: Arc<dyn ShardHost>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(host: Arc<dyn ShardHost>) -> Result<Self> {
        let runtime = threads()?;
        let server = WorkerServer::new(Arc::clone(&host), "bench", WorkerLimits::default())?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(server.serve(listener, async { drop(stopped.await) }));
        });
        Ok(Self { address, host, stop: Some(stop), thread: Some(thread) })
    }

    async fn connect(&self, generation: u64) -> Result<Arc<RemoteShard>> {
        let address = WorkerAddress::parse(&self.address.to_string())?;
        let config = RemoteConfig { address, generation, model: None, limits: RemoteLimits::default() };
        Ok(RemoteShard::connect(config, clock()).await?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has told so.
            drop(thread.join());
        }
    }
}

// ── hardening ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// What one kind of generation took, over all rounds.
#[derive(Default)]
struct Arm {
    gaps: Vec<f64>,
    cpu: Vec<f64>,
    around: Vec<f64>,
}

impl Arm {
    fn add(&mut self, run: Generated, tokens: &mut Option<Vec<u32>>) -> Result<()> {
        ensure!(*tokens.get_or_insert_with(|| run.tokens.clone()) == run.tokens, "other tokens");
        self.gaps.extend(run.gaps);
        self.cpu.push(run.cpu);
        self.around.push(run.around);
        Ok(())
    }

    fn gap(&self) -> f64 {
        median(&self.gaps)
    }

    fn cpu(&self) -> f64 {
        median(&self.cpu)
    }

    fn details(&self) -> Value {
        json!({
            "gap_us": { "p50": self.gap(), "p99": percentile(&self.gaps, 99), "mean": mean(&self.gaps) },
            "cpu_us": self.cpu(),
            "around_ms": median(&self.around),
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn percent(ours: f64, bare: f64) -> f64 {
    (ours / bare - 1.0) * 100.0
}

/// The bare model, calls to its shard, the runner with its ledger in memory, and with it in a folder.
struct Hardening {
    arms: [Arm; 4],
}

fn harden(model: u32, compute: Compute, rounds: usize, tokens: u32, dir: &Path) -> Result<Hardening> {
    let mut arms: [Arm; 4] = Default::default();
    let bare_model = Repeated::whole(model)?;
    one_thread()?.block_on(async {
        let shards = [(); 3].map(|()| Repeated::whole(model).map(|model| local(model, compute)));
        let [called, in_memory, in_folder] = shards;
        let called = called?;
        let folder = tempfile::tempdir_in(dir)?;
        let memory = start(None, Durability::Process, vec![in_memory?])?;
        let file = start(Some(folder.path()), Durability::Process, vec![in_folder?])?;
        let mut expected = None;
        for round in 0..rounds {
            for turn in 0..arms.len() {
                let at = (round + turn) % arms.len();
                let id = round.to_string();
                let run = match at {
                    0 => bare(&bare_model, tokens)?,
                    1 => by_shard(called.as_ref(), round, tokens).await?,
                    2 => by_runner(&memory.handle, &id, tokens).await?,
                    _ => by_runner(&file.handle, &id, tokens).await?,
                };
                arms[at].add(run, &mut expected)?;
                // What the runner still has to do after an end is not the next one's.
                while [&memory, &file]
                    .iter()
                    .any(|runner| runner.handle.usage().iter().any(|(_, usage)| !usage.keys.is_empty()))
                {
                    tokio::task::yield_now().await;
                }
            }
        }
        memory.stop().await?;
        file.stop().await
    })?;
    Ok(Hardening { arms })
}

fn hardening(size: Size, slow: u32, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let mut details = serde_json::Map::new();
    let raw_sync_ms = median(&raw_syncs(dir, FRAME, 101)?) / 1e3;
    let kinds = [
        ("reference", 1, Compute::Inline, size.rounds),
        ("1ms", slow, Compute::Inline, size.slow_rounds),
        ("1ms_threaded", slow, Compute::Threaded, size.slow_rounds),
    ];
    for (name, times, compute, rounds) in kinds {
        let Hardening { arms: [bare, shard, memory, file] } =
            harden(times, compute, rounds, size.tokens, dir)?;
        let row =
            |what: &str, unit: &str, value: f64| Row::new(&format!("runner.{name}.{what}"), unit, value);
        rows.push(row("token", "us", file.gap()).against("bare forward", bare.gap(), Better::Lower));
        rows.push(row("overhead", "%", percent(file.gap(), bare.gap())).below(OVERHEAD));
        rows.push(row("overhead_cpu", "%", percent(file.cpu(), bare.cpu())).below(OVERHEAD));
        if times == 1 {
            rows.push(row("part_shard", "us", shard.gap() - bare.gap()));
            rows.push(row("part_session", "us", memory.gap() - shard.gap()));
            rows.push(row("part_write", "us", file.gap() - memory.gap()));
            let around = median(&file.around) - median(&bare.around);
            rows.push(row("begin_and_end", "ms", around).against(
                "two raw fdatasync",
                2.0 * raw_sync_ms,
                Better::Lower,
            ));
        }
        let all = [("bare", bare), ("shard", shard), ("runner_memory", memory), ("runner", file)];
        details.insert(name.into(), all.map(|(arm, of)| json!({ arm: of.details() })).to_vec().into());
    }
    Ok(details.into())
}

// ── a step across loopback gRPC ─────────────────────────────────────────────────────────────────────────────────────

/// A TCP connection whose other end sends back what comes, by frames of [`FRAME`] bytes.
fn echo() -> Result<TcpStream> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nodelay(true)?;
    let (mut other, _) = listener.accept()?;
    other.set_nodelay(true)?;
    std::thread::spawn(move || {
        let mut frame = [0; FRAME];
        while other.read_exact(&mut frame).and_then(|()| other.write_all(&frame)).is_ok() {}
    });
    Ok(stream)
}

fn echoes(stream: &mut TcpStream, count: u32, times: &mut Vec<f64>) -> Result<()> {
    let mut frame = [7; FRAME];
    for _ in 0..count {
        let begun = Instant::now();
        stream.write_all(&frame)?;
        stream.read_exact(&mut frame)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(())
}

fn grpc(size: Size, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let worker = Worker::start(local(Repeated::whole(1)?, Compute::Inline))?;
    let bare_model = Repeated::whole(1)?;
    let mut stream = echo()?;
    let [mut alone, mut near, mut far, mut whole]: [Arm; 4] = Default::default();
    let mut raw = Vec::new();
    let (runs, tokens) = (size.rounds, size.tokens);
    threads()?.block_on(async {
        let folder = tempfile::tempdir_in(dir)?;
        let here = local(Repeated::whole(1)?, Compute::Inline);
        let remote = worker.connect(1).await?;
        let running = start(Some(folder.path()), Durability::Process, vec![remote.clone()])?;
        ensure!(running.generation == 1, "the folder is not fresh");
        let mut expected = None;
        for round in 0..runs {
            tokio::task::block_in_place(|| {
                alone.add(bare(&bare_model, tokens)?, &mut expected)?;
                echoes(&mut stream, tokens, &mut raw)
            })?;
            near.add(by_shard(here.as_ref(), round, tokens).await?, &mut expected)?;
            // In a task, as the driver of a node is.
            let shard = remote.clone();
            let run = tokio::spawn(async move { by_shard(shard.as_ref(), round, tokens).await });
            far.add(run.await??, &mut expected)?;
            whole.add(by_runner(&running.handle, &round.to_string(), tokens).await?, &mut expected)?;
        }
        running.stop().await
    })?;
    let raw_p = |q| percentile(&raw, q);
    for (what, arm, base) in [("step", &far, &near), ("runner_step", &whole, &alone)] {
        for q in [50, 99] {
            let added = percentile(&arm.gaps, q) - base.gap();
            rows.push(
                Row::new(&format!("grpc.{what}_adds_p{q}"), "us", added)
                    .against("TCP echo", raw_p(q), Better::Lower)
                    .below(GRPC_US),
            );
        }
    }
    Ok(json!({
        "bare": alone.details(), "local": near.details(), "remote": far.details(), "runner": whole.details(),
        "echo_us": { "p50": raw_p(50), "p99": raw_p(99) },
    }))
}

// ── cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/// When shards let go.
#[derive(Default)]
struct Releases {
    by_session: Mutex<BTreeMap<SessionId, Vec<Instant>>>,
    changed: Notify,
}

impl Releases {
    fn note(&self, session: SessionId) {
        let now = Instant::now();
        let mut all = self.by_session.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(session).or_default().push(now);
        drop(all);
        self.changed.notify_one();
    }

    /// When the last of `shards` did.
    async fn all(&self, session: SessionId, shards: usize) -> Instant {
        loop {
            {
                let mut all = self.by_session.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(times) = all.get(&session).filter(|times| times.len() >= shards)
                    && let Some(last) = times.iter().max().copied()
                {
                    all.remove(&session);
                    return last;
                }
            }
            self.changed.notified().await;
        }
    }
}

/// A shard whose releases are noted: where the KV is, or where the coordinator hears of it.
struct Watched<A> {
    shard: Arc<A>,
    releases: Arc<Releases>,
}

impl<A: ShardHost> ShardHost for Watched<A> {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        self.shard.hello(generation)
    }

    fn reap(&self) {
        self.shard.reap();
    }

    fn counters(&self) -> ShardCounters {
        self.shard.counters()
    }
}

impl<A: BoundaryAdapter> BoundaryAdapter for Watched<A> {
    fn describe(&self) -> ShardInfo {
        self.shard.describe()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        self.shard.open(key, plan)
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.shard.prefill(key, step, bundle)
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.shard.decode(key, step, bundle)
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        self.shard.query_step(key, step)
    }

    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        self.shard.stop(key, cause)
    }

    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(async move {
            let ack = self.shard.release(key, cause).await?;
            if !matches!(ack, ReleaseAck::Busy { .. }) {
                self.releases.note(key.session);
            }
            Ok(ack)
        })
    }

    fn beat(&self, keys: &[KvKey]) {
        self.shard.beat(keys);
    }

    fn last_beat_ms(&self) -> Option<u64> {
        self.shard.last_beat_ms()
    }

    fn counts(&self, key: KvKey) -> Option<Counts> {
        self.shard.counts(key)
    }

    fn usage(&self) -> Usage {
        self.shard.usage()
    }
}

/// What the cancels took, milliseconds.
#[derive(Default)]
struct Cancels {
    answered: Vec<f64>,
    released: Vec<f64>,
    /// Until the coordinator knows.
    known: Vec<f64>,
    step: Vec<f64>,
    round_trip: Vec<f64>,
}

fn ms_since(begun: Instant, at: Instant) -> f64 {
    at.saturating_duration_since(begun).as_secs_f64() * 1e3
}

/// One cancel: after some tokens, at some point of the step that follows.
async fn cancel_one(
    running: &Running,
    [there, here]: &[Arc<Releases>; 2],
    number: usize,
    step_ms: f64,
    took: &mut Cancels,
) -> Result<()> {
    let draw = |of: u64| splitmix64(of, number as u64);
    // Long enough not to end by itself when this task waits for a processor.
    let mut generation = running.handle.submit(request(&format!("cancel-{number}"), 480)).await?;
    let wanted = 1 + (draw(1) % 8) as u32;
    loop {
        match generation.next().await.context("the runner ended")? {
            GenerationEvent::Token { index, .. } => {
                generation.delivered(index + 1);
                if index + 1 == wanted {
                    break;
                }
            }
            GenerationEvent::Wait => {}
            GenerationEvent::Done(outcome) => bail!("ended before the cancel: {outcome:?}"),
        }
    }
    let until = Instant::now() + Duration::from_secs_f64(step_ms / 1e3 * (draw(2) % 1_000) as f64 / 1e3);
    while Instant::now() < until {
        tokio::task::yield_now().await;
    }
    let session = generation.session();
    let begun = Instant::now();
    running.handle.cancel(session, Cause::Client).await?;
    took.answered.push(ms_since(begun, Instant::now()));
    took.released.push(ms_since(begun, there.all(session, CUT.len()).await));
    took.known.push(ms_since(begun, here.all(session, CUT.len()).await));
    loop {
        if let GenerationEvent::Done(outcome) = generation.next().await.context("the runner ended")? {
            ensure!(outcome.status == WorkStatus::Cancelled, "{outcome:?}");
            return Ok(());
        }
    }
}

/// Cancels between which the unit is measured again.
const BETWEEN: usize = 10;

fn cancel(size: Size, times: u32, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    // A model of some weight computes beside the connections.
    let compute = if times == 1 { Compute::Inline } else { Compute::Threaded };
    // At the workers, and at the coordinator.
    let releases: [Arc<Releases>; 2] = Default::default();
    let mut workers = Vec::new();
    for layers in CUT {
        let shard = local(Repeated::new(times, layers)?, compute);
        workers.push(Worker::start(Arc::new(Watched { shard, releases: releases[0].clone() }))?);
    }
    let folder = tempfile::tempdir_in(dir)?;
    let took = threads()?.block_on(async {
        let mut shards: Vec<Arc<dyn BoundaryAdapter>> = Vec::new();
        let mut first = None;
        for worker in &workers {
            let shard = worker.connect(1).await?;
            first.get_or_insert_with(|| shard.clone());
            shards.push(Arc::new(Watched { shard, releases: releases[1].clone() }));
        }
        let first = first.context("no worker")?;
        let running = start(Some(folder.path()), Durability::Process, shards)?;
        ensure!(running.generation == 1, "the folder is not fresh");
        let task = tokio::spawn(async move {
            let mut took = Cancels::default();
            for number in 0..size.cancels {
                if number % BETWEEN == 0 {
                    unit(&running, &releases, &first, number, &mut took).await?;
                }
                let step_ms = median(&took.step);
                timeout(PATIENCE, cancel_one(&running, &releases, number, step_ms, &mut took))
                    .await
                    .with_context(|| format!("cancel {number} does not end"))??;
            }
            let work = running.handle.work().await?;
            ensure!(work.cancelled == size.cancels as u64, "{work:?}");
            running.stop().await?;
            anyhow::Ok(took)
        });
        task.await?
    })?;
    for worker in &workers {
        ensure!(worker.host.usage().keys.is_empty(), "KV is left: {:?}", worker.host.usage());
    }
    let (step, trip) = (median(&took.step), median(&took.round_trip));
    let units: Vec<f64> = took.released.iter().map(|ms| ms / (step + trip)).collect();
    let name = if times == 1 { "cancel" } else { "cancel_1ms" };
    rows.push(Row::new(&format!("{name}.step_and_round_trip"), "ms", step + trip));
    for (what, at) in [("p50", 50), ("p99", 99), ("max", 100)] {
        let ms = percentile(&took.released, at);
        rows.push(Row::new(&format!("{name}.released_{what}"), "ms", ms).against(
            "step + round trip",
            step + trip,
            Better::Lower,
        ));
        rows.push(Row::new(&format!("{name}.units_{what}"), "times", percentile(&units, at)).at_most(1.0));
    }
    rows.push(Row::new(&format!("{name}.known_p99"), "ms", percentile(&took.known, 99)));
    rows.push(Row::new(&format!("{name}.answer_p99"), "ms", percentile(&took.answered, 99)));
    let tenths: Vec<f64> = (1..=10).map(|tenth| percentile(&units, tenth * 10)).collect();
    let within = units.iter().filter(|unit| **unit <= 1.0).count();
    Ok(json!({
        "step_ms": step, "round_trip_ms": trip, "units_by_tenths": tenths,
        "units_p95": percentile(&units, 95), "units_p99": percentile(&units, 99), "within": within,
        "known_ms": { "p50": median(&took.known), "p99": percentile(&took.known, 99) },
        "answer_ms": { "p50": median(&took.answered), "p99": percentile(&took.answered, 99) },
    }))
}

/// Times of a decode step over the route and of a round trip to its first shard.
async fn unit(
    running: &Running,
    releases: &[Arc<Releases>; 2],
    first: &Arc<RemoteShard>,
    number: usize,
    took: &mut Cancels,
) -> Result<()> {
    let id = format!("whole-{number}");
    let run = by_runner(&running.handle, &id, 32).await?;
    took.step.extend(run.gaps.iter().map(|us| us / 1e3));
    for releases in releases {
        releases.all(request(&id, 32).session(), CUT.len()).await;
    }
    let key = KvKey::new(session(number), 0);
    let plan = OpenPlan { max_positions: 1, lease_ms: 60_000, sampling: Sampling::GREEDY };
    first.open(key, plan).await?;
    for _ in 0..20 {
        let begun = Instant::now();
        first.query_step(key, 0).await?;
        took.round_trip.push(ms_since(begun, Instant::now()));
    }
    first.release(key, Cause::Client).await?;
    Ok(())
}

// ── scheduler ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// The bare batched loop; tokens in a second, by elapsed and by processor time.
fn batched(model: &Repeated, sessions: usize, tokens: u32) -> Result<(f64, f64)> {
    let (begun, cpu) = (Instant::now(), cpu_so_far());
    let mut left = sessions;
    while left > 0 {
        let now = left.min(AT_ONCE);
        let mut all = Vec::with_capacity(now);
        for _ in 0..now {
            let mut kv = model.new_kv(PROMPT + tokens);
            let token = forward(model, &mut kv, 0, &prompt())?;
            all.push((kv, token));
        }
        for position in PROMPT..PROMPT + tokens - 1 {
            for (kv, token) in &mut all {
                *token = forward(model, kv, position, &[*token])?;
            }
        }
        left -= now;
    }
    let made = sessions as f64 * f64::from(tokens);
    let cpu = cpu_so_far().saturating_sub(cpu);
    Ok((made / begun.elapsed().as_secs_f64(), made / cpu.as_secs_f64()))
}

struct Scheduled {
    rate: f64,
    cpu_rate: f64,
    wait_ms: [f64; 2],
}

/// The same by the runner, everything submitted at once.
fn scheduled(
    model: Repeated,
    sessions: usize,
    tokens: u32,
    durability: Durability,
    dir: &Path,
) -> Result<Scheduled> {
    let folder = tempfile::tempdir_in(dir)?;
    one_thread()?.block_on(async {
        let running = start(Some(folder.path()), durability, vec![local(model, Compute::Inline)])?;
        let (begun, cpu) = (Instant::now(), cpu_so_far());
        let clients: Vec<_> = (0..sessions)
            .map(|number| {
                let handle = running.handle.clone();
                tokio::spawn(async move { handle.run(request(&number.to_string(), tokens)).await })
            })
            .collect();
        for client in clients {
            let outcome = timeout(4 * PATIENCE, client).await.context("a session does not end")???;
            ensure!(outcome.status == WorkStatus::Completed, "{outcome:?}");
        }
        let (elapsed, cpu) = (begun.elapsed(), cpu_so_far().saturating_sub(cpu));
        let telemetry = running.handle.telemetry().await?;
        let wait_ms = [50, 99].map(|q| telemetry.queue_wait.percentile_ms(q) as f64);
        running.stop().await?;
        let made = sessions as f64 * f64::from(tokens);
        let (rate, cpu_rate) = (made / elapsed.as_secs_f64(), made / cpu.as_secs_f64());
        Ok(Scheduled { rate, cpu_rate, wait_ms })
    })
}

fn scheduler(size: Size, slow: u32, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let mut details = serde_json::Map::new();
    let kinds = [
        ("reference", 1, size.sessions, 64_u32.min(8 * size.tokens), size.scheduler_rounds),
        // Fewer, so that it takes no minute.
        ("1ms", slow, (size.sessions / 2).max(AT_ONCE + 1), 16, size.scheduler_rounds.div_ceil(4)),
    ];
    for (name, times, sessions, tokens, rounds) in kinds {
        let model = Repeated::whole(times)?;
        let [mut alone, mut alone_cpu, mut rate, mut cpu_rate, mut p50, mut p99]: [Vec<f64>; 6] =
            Default::default();
        for _ in 0..rounds {
            let (bare, bare_cpu) = batched(&model, sessions, tokens)?;
            alone.push(bare);
            alone_cpu.push(bare_cpu);
            let ours = scheduled(Repeated::whole(times)?, sessions, tokens, Durability::Process, dir)?;
            rate.push(ours.rate);
            cpu_rate.push(ours.cpu_rate);
            p50.push(ours.wait_ms[0]);
            p99.push(ours.wait_ms[1]);
        }
        let row =
            |what: &str, unit: &str, value: f64| Row::new(&format!("scheduler.{name}.{what}"), unit, value);
        let (ours, bare) = (median(&rate), median(&alone));
        rows.push(row("tokens", "1/s", ours).against("bare batched loop", bare, Better::Higher));
        rows.push(row("of_bare", "times", ours / bare).at_least(THROUGHPUT));
        rows.push(row("of_bare_cpu", "times", median(&cpu_rate) / median(&alone_cpu)).at_least(THROUGHPUT));
        rows.push(row("queue_wait_p50", "ms", median(&p50)));
        rows.push(row("queue_wait_p99", "ms", median(&p99)));
        let all = json!({ "rate": rate, "bare": alone, "cpu_rate": cpu_rate, "bare_cpu": alone_cpu,
            "sessions": sessions, "tokens": tokens, "wait_p99_ms": p99 });
        details.insert(name.into(), all);
    }
    Ok(details.into())
}

// ── ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────────

fn raw_file(dir: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).append(true).open(dir.join("raw"))?)
}

/// Microseconds of `count` appends of `bytes`, each synced.
fn raw_syncs(dir: &Path, bytes: usize, count: u32) -> Result<Vec<f64>> {
    let mut file = raw_file(dir)?;
    let block = vec![0x5a; bytes];
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Iterations in a second of `batch` sessions: results of the last one and intents of this one, one flush.
struct Iterations {
    ledger: IdempotencyLedger,
    sessions: Vec<KvKey>,
    step: u32,
}

impl Iterations {
    fn new(folder: &Path, batch: usize, durability: Durability) -> Result<Self> {
        let settings = LedgerConfig { durability, ..LedgerConfig::default() };
        let (mut ledger, _) = IdempotencyLedger::open(FileStore::open(folder)?, settings, clock().as_ref())?;
        let sessions: Vec<KvKey> = (0..batch).map(|number| KvKey::new(session(number), 0)).collect();
        for key in &sessions {
            ledger.epoch_opened(EpochOpened {
                key: *key,
                generation: ledger.generation(),
                inference_id: "bench".to_owned(),
                model_digest: [1; 32],
                prompt_digest: [2; 32],
                prompt_tokens: PROMPT,
                sampling: Sampling::GREEDY,
                shards: vec!["bench".to_owned()],
            })?;
        }
        ledger.flush()?;
        Ok(Self { ledger, sessions, step: 0 })
    }

    fn rate(&mut self, count: u32) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..count {
            for key in &self.sessions {
                if let Some(last) = self.step.checked_sub(1) {
                    self.ledger.commit(StepKey::new(*key, last), Some(last % 256), digest(last))?;
                }
                self.ledger.begin(StepKey::new(*key, self.step), digest(self.step))?;
            }
            self.ledger.flush()?;
            self.step += 1;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }
}

fn digest(step: u32) -> Digest {
    let mut digest = [0x5a; 32];
    digest[..4].copy_from_slice(&step.to_le_bytes());
    digest
}

fn ledger(size: Size, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let mut details = serde_json::Map::new();
    for batch in [1_usize, 16] {
        for (name, durability, count) in
            [("process", Durability::Process, size.iterations), ("power", Durability::Power, size.syncs)]
        {
            let folder = tempfile::tempdir_in(dir)?;
            let mut iterations = Iterations::new(folder.path(), batch, durability)?;
            // What an iteration writes: from the second on they are alike.
            iterations.rate(1)?;
            let before = folder_bytes(folder.path());
            iterations.rate(1)?;
            let bytes = (folder_bytes(folder.path()) - before) as usize;
            let mut raw = raw_file(folder.path())?;
            let block = vec![0x5a; bytes];
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..size.ledger_rounds {
                ours.push(iterations.rate(count)?);
                let begun = Instant::now();
                for _ in 0..count {
                    raw.write_all(&block)?;
                    if durability == Durability::Power {
                        raw.sync_data()?;
                    }
                }
                theirs.push(f64::from(count) / begun.elapsed().as_secs_f64());
            }
            let peer = if durability == Durability::Power { "raw fdatasync" } else { "raw write" };
            let steps = |rates: &[f64]| median(rates) * batch as f64;
            rows.push(Row::new(&format!("ledger.{name}.batch_{batch}"), "steps/s", steps(&ours)).against(
                peer,
                steps(&theirs),
                Better::Higher,
            ));
            details.insert(
                format!("{name}_{batch}"),
                json!({ "bytes": bytes, "iterations_per_s": ours, "raw_per_s": theirs }),
            );
        }
    }
    // The whole runner, each iteration synced.
    let ours = scheduled(Repeated::whole(1)?, AT_ONCE, size.tokens.min(32), Durability::Power, dir)?;
    let raw = 1e6 / median(&raw_syncs(dir, 16 * 2 * FRAME, 101)?);
    rows.push(Row::new("ledger.power.runner_64_sessions", "steps/s", ours.rate).against(
        "raw fdatasync",
        raw,
        Better::Higher,
    ));
    Ok(details.into())
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
