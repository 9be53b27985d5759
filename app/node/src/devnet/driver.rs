//! One arm of a devnet: the input, block by block, against a real node in this process.
//!
//! Per block `h`: the requests that fall into it (and the refused ones of the block before) are drawn at the
//! committed height `h - 1` and started; executors send what is due; then the node makes the block. Nothing here
//! depends on who is faster: draws are pinned and seeded, each account sends in order, and the mempool orders
//! by fee, sender and sequence.
//!
//! A run that was killed goes on: the blocks it has are gone through again with what was stored of them
//! ([`super::resume`]), by the same code, so that draws, retries, sequences and the report's counts stand as they stood.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_app::app::{App, AppOptions, FinalizedBlock, TxResult, state_spaces};
use holdfast_app::grpc::client::GrpcChannel;
use holdfast_app::mempool::MempoolConfig;
use holdfast_app::state::{CommitStore, DiskStore, StateOptions};
use holdfast_app::tx::{TxHash, tx_hash};
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_runner::WorkLedger;
use holdfast_types::{Event, Hrp};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use super::clients::{Signer, broadcast, draw, message};
use super::config::{DevnetConfig, Preset};
use super::executors::{Action, ResolvedProfile, behaviour, models_served};
use super::generation::{ANSWER_MAX, Ended as Generated, Job, Mishap, PROMPT_MAX, Runners, prompt};
use super::genesis::{Accounts, document};
use super::report::{Lane, Outcome, Recorder, Report, RunInfo, State};
use super::resume::{Ended, Note, RunError, Stored, lane_number, numbered_lane};
use super::trace::{Request, TraceError};
use super::view::{ExecutorView, ViewState};
use super::workload::{Input, Requests, SplitMix64, model_of_request};
use crate::solo::{BlockStore, Engine, NodeBackend};

/// Streams of the run's seed; 1 to 3 belong to the workload.
const DRAW_STREAM: u64 = 11;
const MISS_STREAM: u64 = 12;
const PROMPT_STREAM: u64 = 13;
/// Times a refused Start is asked again.
const RETRIES_MAX: u64 = 3;
/// Blocks between two checks of the invariants; the last block is always checked.
const INVARIANT_BLOCKS: u64 = 50;
/// Time of block 1: the beginning of 2024, so that times look like times. Blocks follow `--block-seconds` apart.
const GENESIS_SECONDS: u64 = 1_704_067_200;
/// An answer takes this long for each context token, microseconds.
const CONTEXT_TOKEN_US: u64 = 200;
/// And this for each generated token.
const GENERATED_TOKEN_US: u64 = 20_000;

/// A try to start a request.
#[derive(Clone)]
struct Attempt {
    request: Request,
    model: usize,
    number: u64,
}

impl Attempt {
    fn id(&self) -> String {
        format!("r{}-{}", self.request.index, self.number)
    }
}

/// A transaction whose result is awaited.
enum Awaited {
    Start { attempt: Attempt, executor: usize },
    Other,
}

/// An inference that has been started and not ended.
struct Open {
    executor: usize,
    attempt: Attempt,
}

/// What an executor does in a block.
enum Due {
    Finish(String),
    Report(String),
    FinishOthers,
    /// What its runner made of an inference.
    Generated(Box<Generated>),
}

/// Messages to sign, by position of the account, each with what its result is awaited for.
type Batches = BTreeMap<usize, Vec<(Any, Awaited)>>;

/// Executor (position) and lane of each draw; `None`: nobody was eligible.
type Draws = Vec<Option<(usize, Lane)>>;

/// The requests not yet offered.
type Coming<'a> = std::iter::Peekable<Requests<'a>>;

/// One run.
pub struct Arm<'a> {
    config: &'a DevnetConfig,
    preset: Preset,
    input: &'a Input,
    run_blocks: u64,
    models: Vec<String>,
    profiles: Vec<ResolvedProfile>,
    engine: Arc<Engine<DiskStore>>,
    channel: GrpcChannel,
    gateways: Vec<Signer>,
    executors: Vec<Signer>,
    index_of: HashMap<String, usize>,
    recorder: Recorder,
    awaited: HashMap<TxHash, Awaited>,
    retries: Vec<Attempt>,
    due: BTreeMap<u64, Vec<(usize, Due)>>,
    open: BTreeMap<String, Open>,
    epoch: u64,
    /// Blocks that were there when this process began.
    stored: u64,
    /// How the block before ended.
    before: Option<Ended>,
    /// The time earlier processes were at work.
    worked: Duration,
    started: Instant,
    /// With `--runner`.
    runners: Option<Runners>,
}

/// Blocks of a run without `--blocks`: until the last request has expired.
pub fn default_blocks(input: &Input, config: &DevnetConfig) -> u64 {
    let expiration = super::genesis::preset_params(config.preset).expiration_blocks;
    input.last_block(config.block_seconds * 1_000_000) + u64::try_from(expiration).unwrap_or(0) + 1
}

/// Runs one preset from genesis, or from where the run in `home` stopped, to its report. `progress` is called after every
/// block that is made, and once where the run goes on. With `--runner` also what the executors' work ledgers hold.
pub async fn run_arm(
    config: &DevnetConfig,
    stored: &Stored,
    preset: Preset,
    input: &Input,
    home: &Path,
    mut progress: impl FnMut(&ViewState, &Recorder) -> Result<()>,
) -> Result<(Report, Option<WorkLedger>)> {
    let run_blocks = config.blocks.unwrap_or_else(|| default_blocks(input, config));
    let accounts = Accounts::derive(config.seed, config.executors.len());
    let doc = document(&accounts, &config.executors, preset)?;
    let options = AppOptions::default();
    let options_of_state = StateOptions { block_cache_bytes: 32 << 20, ..StateOptions::default() };
    let state = DiskStore::open(home.join("state"), &state_spaces(), options_of_state)?;
    let app = match state.latest_height() {
        0 => App::from_genesis(state, options, &doc)?,
        _ => App::open(state, options)?,
    };
    let blocks = BlockStore::open(&home.join("blocks"))?;
    let mempool = MempoolConfig { max_txs: 200_000, max_per_signer: 100_000, ..MempoolConfig::default() };
    let engine = Arc::new(Engine::new(app, blocks, mempool)?);
    let made = u64::try_from(*engine.heights().borrow())?;

    let listener = tokio::net::TcpListener::bind(config.listen)
        .await
        .map_err(|e| crate::cli::in_use("--listen", config.listen, &e))?;
    let address = listener.local_addr()?;
    let proposer = holdfast_types::Address::module("devnet-validator");
    let backend = Arc::new(NodeBackend::new(engine.clone(), "devnet", &proposer.0));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(holdfast_app::grpc::serve(listener, backend, async {
        let _ = stopped.await;
    }));
    let channel = GrpcChannel::connect(&address.to_string()).await?;

    let hrp = Hrp::default();
    let names: Vec<String> = accounts.executors.iter().map(|a| a.address.to_bech32(&hrp)).collect();
    let info = RunInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        command: stored.command.clone(),
        seed: config.seed,
        preset: preset.name().into(),
        trace: stored.trace(input),
        block_seconds: config.block_seconds,
        run_blocks,
    };
    let listed: Vec<_> = names.iter().cloned().zip(config.executors.iter().cloned()).collect();
    let profiles =
        config.executors.iter().map(|e| e.profile.resolve(run_blocks)).collect::<Result<Vec<_>, _>>()?;
    let mut arm = Arm {
        config,
        preset,
        input,
        run_blocks,
        models: models_served(&config.executors),
        profiles,
        engine,
        channel,
        gateways: accounts.gateways.iter().map(Signer::new).collect(),
        executors: accounts.executors.iter().map(Signer::new).collect(),
        index_of: names.into_iter().enumerate().map(|(i, name)| (name, i)).collect(),
        recorder: Recorder::new(info, &listed)?,
        awaited: HashMap::new(),
        retries: Vec::new(),
        due: BTreeMap::new(),
        open: BTreeMap::new(),
        epoch: 0,
        stored: made,
        before: None,
        worked: Duration::ZERO,
        started: Instant::now(),
        runners: config.runner.then(|| Runners::start(config.executors.len())).transpose()?,
    };
    arm.run(&mut progress).await?;
    let app_hash = hex::encode(arm.engine.app_hash());
    let elapsed_ms = u64::try_from(arm.elapsed().as_millis()).unwrap_or(u64::MAX);
    let work = match &arm.runners {
        Some(runners) => Some(runners.work().await?),
        None => None,
    };
    let report = arm.recorder.finish(app_hash, arm.open.len() as u64, elapsed_ms);
    let _ = stop.send(());
    server.await??;
    report.check()?;
    Ok((report, work))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Signs and sends, all accounts at once and each one's messages in order; returns what is awaited.
async fn send_all(
    channel: &GrpcChannel,
    signers: &mut [Signer],
    batches: Batches,
) -> Result<Vec<(TxHash, Awaited)>> {
    let mut senders = JoinSet::new();
    for (index, batch) in batches {
        let (channel, mut signer) = (channel.clone(), signers[index].clone());
        senders.spawn(async move {
            let mut sent = Vec::with_capacity(batch.len());
            for (message, awaited) in batch {
                let (hash, raw) = signer.sign(message);
                broadcast(&channel, raw).await?;
                sent.push((hash, awaited));
            }
            Ok::<_, anyhow::Error>((index, signer, sent))
        });
    }
    let mut all = Vec::new();
    while let Some(joined) = senders.join_next().await {
        let (index, signer, sent) = joined??;
        signers[index] = signer;
        all.extend(sent);
    }
    Ok(all)
}

/// Signs what an earlier process signed and sent.
fn sign_all(signers: &mut [Signer], batches: Batches) -> impl Iterator<Item = (TxHash, Vec<u8>, Awaited)> {
    batches.into_iter().flat_map(move |(index, batch)| {
        let signed = batch.into_iter().map(|(message, awaited)| {
            let (hash, raw) = signers[index].sign(message);
            (hash, raw, awaited)
        });
        signed.collect::<Vec<_>>()
    })
}

impl Arm<'_> {
    /// The machine's time at work on this run.
    fn elapsed(&self) -> Duration {
        self.worked.saturating_add(self.started.elapsed())
    }

    async fn run(&mut self, progress: &mut impl FnMut(&ViewState, &Recorder) -> Result<()>) -> Result<()> {
        let input = self.input;
        let mut requests = input.requests()?.peekable();
        if self.stored > 0 {
            self.go_through_stored(&mut requests).await?;
            progress(&ViewState { resumed: true, ..self.view(self.stored) }, &self.recorder)?;
        }
        for height in self.stored + 1..=self.run_blocks {
            self.make(height, &mut requests).await?;
            progress(&self.view(height), &self.recorder)?;
        }
        // What was to be asked again in a block after the last has no more tries.
        for _ in std::mem::take(&mut self.retries) {
            self.recorder.refused();
        }
        Ok(())
    }

    /// Makes a block.
    async fn make(&mut self, height: u64, requests: &mut Coming<'_>) -> Result<()> {
        let attempts = self.attempts(height, requests)?;
        let draws = self.draw_all(height, &attempts).await?;
        let noted = draws.iter().map(|drawn| {
            let noted = drawn.map(|(executor, lane)| Ok((u32::try_from(executor)?, lane_number(lane))));
            noted.transpose()
        });
        let noted = noted.collect::<Result<Vec<_>, std::num::TryFromIntError>>()?;
        let note = Note { draws: noted, before: self.before.take() };
        let starts = self.starts(attempts, draws)?;
        let sent = send_all(&self.channel, &mut self.gateways, starts).await?;
        self.awaited.extend(sent);
        if let Some(runners) = &mut self.runners {
            for ended in runners.settle().await? {
                let (at, executor) = (height.max(ended.not_before), ended.executor);
                self.due.entry(at).or_default().push((executor, Due::Generated(Box::new(ended))));
            }
        }
        let due = self.due_messages(height);
        let sent = send_all(&self.channel, &mut self.executors, due).await?;
        self.awaited.extend(sent);
        if self.config.realtime {
            let due = Duration::from_secs(self.config.block_seconds * (height - self.stored));
            tokio::time::sleep_until((self.started + due).into()).await;
        }
        let (engine, time_ns) = (self.engine.clone(), self.time_ns(height));
        let produced =
            tokio::task::spawn_blocking(move || engine.produce_noted(time_ns, &note.encode())).await??;
        ensure!(produced.block.height == i64::try_from(height)?, "the node made another block");
        self.absorb(height, &produced.hashes, &produced.finalized)?;
        let invariant_checks = self.check_invariants(height)?;
        let (finalize, commit) = (micros(produced.times.finalize), micros(produced.times.commit));
        self.recorder.end_block(finalize, commit);
        let elapsed_us = micros(self.elapsed());
        self.before = Some(Ended { times_us: Some((finalize, commit)), elapsed_us, invariant_checks });
        Ok(())
    }

    /// Does again what the driver did for the stored blocks.
    async fn go_through_stored(&mut self, requests: &mut Coming<'_>) -> Result<()> {
        // Sent, and in no block yet.
        let mut waiting: Vec<(TxHash, Vec<u8>)> = Vec::new();
        for height in 1..=self.stored {
            let ended = self.repeat(height, requests, &mut waiting).map_err(|error| {
                match error.downcast::<TraceError>() {
                    Ok(error) => anyhow::Error::from(error),
                    Err(error) => RunError::Blocks { height, found: error.to_string() }.into(),
                }
            })?;
            let ended = match ended {
                Some(ended) => ended,
                // The kill came before the next block could say it, but the state stands at this one and can be asked.
                None => Ended {
                    times_us: None,
                    elapsed_us: micros(self.worked),
                    invariant_checks: self.invariants(height)?,
                },
            };
            if ended.invariant_checks > 0 {
                self.recorder.invariants_held(ended.invariant_checks);
            }
            match ended.times_us {
                Some((finalize, commit)) => self.recorder.end_block(finalize, commit),
                None => self.recorder.end_untimed_block(),
            }
            self.worked = Duration::from_micros(ended.elapsed_us);
            self.before = Some(ended);
            // This may take a while, and an interrupt should not.
            tokio::task::yield_now().await;
        }
        // The pool in which they waited is gone. Behind the last block nothing comes of them.
        for (_, raw) in waiting.into_iter().filter(|_| self.stored < self.run_blocks) {
            broadcast(&self.channel, raw).await?;
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Does again what the driver did for one stored block; how it ended, if the next block's note tells.
    fn repeat(
        &mut self,
        height: u64,
        requests: &mut Coming<'_>,
        waiting: &mut Vec<(TxHash, Vec<u8>)>,
    ) -> Result<Option<Ended>> {
        ensure!(height <= self.run_blocks, "the run has {} blocks", self.run_blocks);
        let note = self.note(height)?;
        let attempts = self.attempts(height, requests)?;
        ensure!(note.draws.len() == attempts.len(), "{} draws are noted", note.draws.len());
        let draws = note.draws.iter().map(|noted| match noted {
            None => Ok(None),
            Some((executor, lane)) => {
                let executor = usize::try_from(*executor)?;
                ensure!(executor < self.executors.len(), "the note names executor {executor}");
                Ok(Some((executor, numbered_lane(*lane).context("the note names no lane")?)))
            }
        });
        let draws = draws.collect::<Result<Draws>>()?;
        let starts = self.starts(attempts, draws)?;
        for (hash, raw, awaited) in sign_all(&mut self.gateways, starts) {
            self.awaited.insert(hash, awaited);
            waiting.push((hash, raw));
        }
        let due = self.due_messages(height);
        for (hash, raw, awaited) in sign_all(&mut self.executors, due) {
            self.awaited.insert(hash, awaited);
            waiting.push((hash, raw));
        }
        let (hashes, finalized) = self.stored_block(height)?;
        self.absorb(height, &hashes, &finalized)?;
        waiting.retain(|(hash, _)| self.awaited.contains_key(hash));
        if height == self.stored {
            return Ok(None);
        }
        Ok(Some(self.note(height + 1)?.before.context("the next note says nothing about it")?))
    }

    fn note(&self, height: u64) -> Result<Note> {
        let bytes = self.engine.blocks().note(i64::try_from(height)?)?.context("it has no note")?;
        Note::decode(&bytes).context("its note is malformed")
    }

    /// Transaction hashes of a stored block, and what it did.
    fn stored_block(&self, height: u64) -> Result<(Vec<TxHash>, FinalizedBlock)> {
        let (store, at) = (self.engine.blocks(), i64::try_from(height)?);
        let block = store.block(at)?.context("it is missing")?;
        ensure!(block.time_ns == self.time_ns(height), "it has another time");
        let results = store.results(at)?.context("its results are missing")?;
        let hashes: Vec<TxHash> = block.txs.iter().map(|raw| tx_hash(raw)).collect();
        let mut tx_results = Vec::with_capacity(hashes.len());
        for hash in &hashes {
            let tx = store.tx(hash)?.filter(|tx| tx.height == at).context("a result is missing")?;
            tx_results.push(TxResult::from(tx.result));
        }
        let events = results.events.into_iter().map(|(kind, attributes)| Event { kind, attributes });
        let events = events.collect();
        let app_hash = results.app_hash;
        Ok((hashes, FinalizedBlock { tx_results, events, app_hash, ..FinalizedBlock::default() }))
    }

    fn time_ns(&self, height: u64) -> u64 {
        (GENESIS_SECONDS + height * self.config.block_seconds) * 1_000_000_000
    }

    /// Checks the invariants if it is time to, and tells the recorder; how many were checked.
    fn check_invariants(&mut self, height: u64) -> Result<u64> {
        let checks = self.invariants(height)?;
        if checks > 0 {
            self.recorder.invariants_held(checks);
        }
        Ok(checks)
    }

    fn invariants(&self, height: u64) -> Result<u64> {
        if !height.is_multiple_of(INVARIANT_BLOCKS) && height != self.run_blocks {
            return Ok(0);
        }
        let checks = self.engine.shared().check_invariants();
        checks.map_err(|e| anyhow::anyhow!("invariant broken at block {height}: {e}"))
    }

    /// What is to be started in a block: what was refused in the one before, and the requests that fall into it.
    fn attempts(&mut self, height: u64, requests: &mut Coming<'_>) -> Result<Vec<Attempt>> {
        let block_us = self.config.block_seconds * 1_000_000;
        let mut attempts = std::mem::take(&mut self.retries);
        while let Some(next) = requests.peek() {
            // An error surfaces by being taken.
            if matches!(next, Ok(request) if request.arrival_us / block_us + 1 > height) {
                break;
            }
            let Some(request) = requests.next().transpose()? else { break };
            self.recorder.offered();
            let model = model_of_request(self.config.seed, request.index, self.models.len());
            attempts.push(Attempt { request, model, number: 0 });
        }
        Ok(attempts)
    }

    /// Draws at the last committed height, all at once.
    async fn draw_all(&self, height: u64, attempts: &[Attempt]) -> Result<Draws> {
        let pinned = i64::try_from(height - 1)?;
        let mut draws = JoinSet::new();
        for (at, attempt) in attempts.iter().enumerate() {
            let (channel, model) = (self.channel.clone(), self.models[attempt.model].clone());
            let parts = [self.config.seed, DRAW_STREAM, attempt.request.index, attempt.number];
            let seed = SplitMix64::keyed(&parts).next_bytes32();
            draws.spawn(async move { (at, draw(&channel, &model, seed, pinned).await) });
        }
        let mut drawn: Draws = attempts.iter().map(|_| None).collect();
        while let Some(joined) = draws.join_next().await {
            let (at, answer) = joined?;
            if let Some(answer) = answer? {
                let executor = self.index_of.get(&answer.executor).context("drawn an unknown executor")?;
                drawn[at] = Some((*executor, answer.lane));
            }
        }
        Ok(drawn)
    }

    /// The Starts of a block, each gateway's in order; what found nobody is tried again.
    fn starts(&mut self, attempts: Vec<Attempt>, draws: Draws) -> Result<Batches> {
        let mut batches = Batches::new();
        for (attempt, drawn) in attempts.into_iter().zip(draws) {
            let Some((executor, lane)) = drawn else {
                self.try_again(attempt);
                continue;
            };
            self.recorder.drawn(lane);
            let gateway = usize::try_from(attempt.request.index)? % self.gateways.len();
            let signer = self.gateways[gateway].address();
            let start = self.start_message(&attempt, &signer, &self.executors[executor].address());
            batches.entry(gateway).or_default().push((start, Awaited::Start { attempt, executor }));
        }
        Ok(batches)
    }

    fn start_message(&self, attempt: &Attempt, gateway: &str, executor: &str) -> Any {
        let parts = [self.config.seed, PROMPT_STREAM, attempt.request.index];
        let Request { mut context_tokens, mut generated_tokens, .. } = attempt.request;
        let mut prompt_hash = SplitMix64::keyed(&parts).next_bytes32().to_vec();
        if self.runners.is_some() {
            prompt_hash = Sha256::digest(self.prompt(&attempt.request)).to_vec();
            context_tokens = context_tokens.clamp(1, PROMPT_MAX);
            generated_tokens = generated_tokens.min(ANSWER_MAX);
        }
        message(&pb::MsgStartInference {
            signer: gateway.to_owned(),
            requested_by: gateway.to_owned(),
            inference_id: attempt.id(),
            model: self.models[attempt.model].clone(),
            assigned_to: executor.to_owned(),
            prompt_hash,
            prompt_tokens: context_tokens.into(),
            max_tokens: generated_tokens.into(),
        })
    }

    /// The prompt that a runner gets.
    fn prompt(&self, request: &Request) -> String {
        prompt(self.config.seed, PROMPT_STREAM, request.index, request.context_tokens)
    }

    fn try_again(&mut self, mut attempt: Attempt) {
        if attempt.number < RETRIES_MAX {
            attempt.number += 1;
            self.retries.push(attempt);
        } else {
            self.recorder.refused();
        }
    }

    /// What every executor sends in this block.
    fn due_messages(&mut self, height: u64) -> Batches {
        let mut batches = Batches::new();
        for (executor, due) in self.due.remove(&height).unwrap_or_default() {
            let address = self.executors[executor].address();
            let message = match due {
                Due::Finish(id) => self.finish_message(&address, &id),
                Due::Report(inference_id) => {
                    Some(message(&pb::MsgReportFailure { executor: address, inference_id, kind: 1 }))
                }
                Due::FinishOthers => {
                    let other = self.open.iter().find(|(_, open)| open.executor != executor);
                    other.map(|(id, _)| id.clone()).and_then(|id| self.finish_message(&address, &id))
                }
                Due::Generated(ended) => Some(ended.message(address)),
            };
            batches.entry(executor).or_default().extend(message.map(|message| (message, Awaited::Other)));
        }
        batches
    }

    fn finish_message(&self, executor: &str, id: &str) -> Option<Any> {
        // A late answer may come when the inference has expired; it is sent all the same, and refused.
        let request = self.open.get(id).map(|open| open.attempt.request);
        let (prompt, completion) = request.map_or((1, 1), |r| (r.context_tokens, r.generated_tokens));
        let parts = [self.config.seed, PROMPT_STREAM, request.map_or(0, |r| r.index), 1];
        Some(message(&pb::MsgFinishInference {
            executed_by: executor.to_owned(),
            inference_id: id.to_owned(),
            response_hash: SplitMix64::keyed(&parts).next_bytes32().to_vec(),
            prompt_tokens: prompt.into(),
            completion_tokens: completion.into(),
        }))
    }

    /// Takes in what a block did: results of our transactions, outcomes and transitions from its events.
    fn absorb(&mut self, height: u64, hashes: &[TxHash], finalized: &FinalizedBlock) -> Result<()> {
        let (begin, end): (Vec<_>, Vec<_>) =
            finalized.events.iter().partition(|e| e.get("mode") == Some("BeginBlock"));
        for event in begin {
            self.event(event)?;
        }
        for (hash, result) in hashes.iter().zip(&finalized.tx_results) {
            self.recorder.transaction(result.code == 0);
            for event in &result.events {
                self.event(event)?;
            }
            match self.awaited.remove(hash) {
                Some(Awaited::Start { attempt, executor }) => {
                    self.start_result(height, attempt, executor, result)?
                }
                Some(Awaited::Other) => {}
                None => bail!("a transaction nobody sent"),
            }
        }
        for event in end {
            self.event(event)?;
        }
        Ok(())
    }

    fn start_result(
        &mut self,
        height: u64,
        attempt: Attempt,
        executor: usize,
        result: &TxResult,
    ) -> Result<()> {
        if result.code != 0 {
            self.try_again(attempt);
            return Ok(());
        }
        self.recorder.started(executor);
        let request = attempt.request;
        let latency = u64::from(request.context_tokens) * CONTEXT_TOKEN_US
            + u64::from(request.generated_tokens) * GENERATED_TOKEN_US;
        let block_us = self.config.block_seconds * 1_000_000;
        let answer = ((request.arrival_us + latency) / block_us + 1).max(height + 1);
        let parts = [self.config.seed, MISS_STREAM, request.index, attempt.number];
        let chance = SplitMix64::keyed(&parts).below(10_000);
        let (start_height, answer_height) = (i64::try_from(height)?, i64::try_from(answer)?);
        let id = attempt.id();
        let action = behaviour(&self.profiles[executor], start_height, answer_height, chance);
        if let Some(runners) = &mut self.runners {
            let profile = &self.profiles[executor];
            let (mishap, not_before) = match action {
                Action::Answer => (None, height),
                Action::AnswerLate { height } => (None, u64::try_from(height)?),
                Action::Silent => (Some(Mishap::of(profile, profile.is_down(answer_height))), height),
                Action::ReportFailure | Action::FinishOthers => (None, u64::MAX),
            };
            if not_before < u64::MAX {
                let prompt = prompt(self.config.seed, PROMPT_STREAM, request.index, request.context_tokens);
                let (inference_id, answer_tokens) = (id.clone(), request.generated_tokens);
                runners.run(executor, Job { inference_id, prompt, answer_tokens, mishap, not_before })?;
                self.open.insert(id, Open { executor, attempt });
                return Ok(());
            }
        }
        let (at, due) = match action {
            Action::Answer => (answer, Some(Due::Finish(id.clone()))),
            Action::AnswerLate { height } => (u64::try_from(height)?, Some(Due::Finish(id.clone()))),
            Action::ReportFailure => (answer, Some(Due::Report(id.clone()))),
            Action::FinishOthers => (answer, Some(Due::FinishOthers)),
            Action::Silent => (answer, None),
        };
        if let Some(due) = due {
            self.due.entry(at).or_default().push((executor, due));
        }
        self.open.insert(id, Open { executor, attempt });
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        let get = |name: &str| event.get(name).unwrap_or_default();
        if let Some(kind) = event.kind.strip_prefix("holdfast.inference.v1.EventInference") {
            let outcome = match kind {
                "Finished" => Outcome::Finished,
                "Missed" => Outcome::Missed,
                "Released" => Outcome::Released,
                _ => return Ok(()),
            };
            let open = self.open.remove(get("inference_id")).context("an outcome of an unknown inference")?;
            let model = self.models[open.attempt.model].clone();
            self.recorder.outcome(open.executor, &model, get("epoch").parse()?, outcome);
            return Ok(());
        }
        let Some(kind) = event.kind.strip_prefix("holdfast.breaker.v1.Event") else { return Ok(()) };
        let (to, rule) = match kind {
            "ExecutorExcluded" => (State::Excluded, get("rule")),
            "ProbeOpened" => (State::Probe, get("cause")),
            "ProbeClaimed" => (State::ProbeClaimed, "claimed"),
            "ExecutorRestored" => (State::Healthy, get("cause")),
            "BreakerReset" => {
                self.epoch = get("epoch").parse()?;
                self.recorder.epoch_began();
                return Ok(());
            }
            "StepDiscarded" => bail!("a block step failed: {}: {}", get("step"), get("reason")),
            _ => return Ok(()),
        };
        let executor =
            *self.index_of.get(get("participant")).context("an event about an unknown executor")?;
        self.recorder.transition(executor, self.epoch, get("model"), to, rule);
        Ok(())
    }

    fn view(&self, height: u64) -> ViewState {
        let counts = self.recorder.requests();
        let tx = self.recorder.transactions();
        let listed = self.recorder.executors().iter().enumerate();
        let arms = if self.config.compare { Preset::ALL.len() as u64 } else { 1 };
        let arm = Preset::ALL.iter().position(|p| *p == self.preset).map_or(1, |i| i as u64 + 1).min(arms);
        ViewState {
            preset: self.preset.name().into(),
            arm: (arm, arms),
            source: self.input.source(),
            block: height,
            blocks: self.run_blocks,
            offered: counts.offered,
            rows: self.input.rows(),
            finished: counts.finished,
            missed: counts.missed,
            refused: counts.refused,
            open: self.open.len() as u64,
            transactions: tx.delivered + tx.failed,
            resumed: false,
            elapsed_ms: u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX),
            executors: listed
                .map(|(i, e)| ExecutorView {
                    profile: e.profile.clone(),
                    state: self.recorder.state(i),
                    finished: e.finished,
                    missed: e.missed,
                })
                .collect(),
            transitions: self.recorder.last_transitions(8).to_vec(),
        }
    }
}
