//! One arm of a devnet: the input, block by block, against a real node in this process.
//!
//! Per block `h`: the requests that fall into it (and the refused ones of the block before) are drawn at the
//! committed height `h - 1` and started; executors send what is due; then the node makes the block. Nothing here
//! depends on who is faster: draws are pinned and seeded, each account sends in order, and the mempool orders
//! by fee, sender and sequence.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_app::app::{App, AppOptions, TxResult};
use holdfast_app::grpc::client::GrpcChannel;
use holdfast_app::mempool::MempoolConfig;
use holdfast_app::state::{DiskStore, StateOptions};
use holdfast_app::tx::TxHash;
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_types::{Event, Hrp};
use tokio::task::JoinSet;

use super::clients::{Drawn, Signer, draw, message};
use super::config::{DevnetConfig, Preset};
use super::executors::{Action, ResolvedProfile, behaviour, models_served};
use super::genesis::{Accounts, document};
use super::report::{Outcome, Recorder, Report, RunInfo, State, TraceInfo};
use super::trace::Request;
use super::view::{ExecutorView, ViewState};
use super::workload::{Input, SplitMix64, model_of_request};
use crate::solo::{BlockStore, Engine, NodeBackend, ProducedBlock};

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
}

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
    started: Instant,
}

/// Blocks of a run without `--blocks`: until the last request has expired.
pub fn default_blocks(input: &Input, config: &DevnetConfig) -> u64 {
    let expiration = super::genesis::preset_params(config.preset).expiration_blocks;
    input.last_block(config.block_seconds * 1_000_000) + u64::try_from(expiration).unwrap_or(0) + 1
}

/// Runs one preset from genesis to report. `progress` is called after every block.
pub async fn run_arm(
    config: &DevnetConfig,
    preset: Preset,
    input: &Input,
    home: &Path,
    mut progress: impl FnMut(&ViewState, &Recorder),
) -> Result<Report> {
    let run_blocks = config.blocks.unwrap_or_else(|| default_blocks(input, config));
    let accounts = Accounts::derive(config.seed, config.executors.len());
    let doc = document(&accounts, &config.executors, preset)?;
    let options = AppOptions::default();
    let state = DiskStore::open(
        home.join("state"),
        &holdfast_app::app::state_spaces(),
        StateOptions { block_cache_bytes: 32 << 20, ..StateOptions::default() },
    )?;
    let app = App::from_genesis(state, options, &doc)?;
    let blocks = BlockStore::open(&home.join("blocks"))?;
    let mempool = MempoolConfig { max_txs: 200_000, max_per_signer: 100_000, ..MempoolConfig::default() };
    let engine = Arc::new(Engine::new(app, blocks, mempool)?);

    let listener = tokio::net::TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("--listen: cannot listen on {}; is the port in use?", config.listen))?;
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
    let (bad_rows, samples) = input.bad_rows();
    let info = RunInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        command: config.command.clone(),
        seed: config.seed,
        preset: preset.name().into(),
        trace: TraceInfo {
            source: input.source(),
            rows: input.rows(),
            sha256: input.sha256().to_owned(),
            bad_rows,
            bad_row_samples: samples.to_vec(),
        },
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
        started: Instant::now(),
    };
    arm.run(&mut progress).await?;
    let app_hash = hex::encode(arm.engine.app_hash());
    let elapsed_ms = u64::try_from(arm.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let report = arm.recorder.finish(app_hash, arm.open.len() as u64, elapsed_ms);
    let _ = stop.send(());
    server.await??;
    report.check()?;
    Ok(report)
}

impl Arm<'_> {
    async fn run(&mut self, progress: &mut impl FnMut(&ViewState, &Recorder)) -> Result<()> {
        let block_us = self.config.block_seconds * 1_000_000;
        let mut requests = self.input.requests()?.peekable();
        for height in 1..=self.run_blocks {
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
            self.start_all(height, attempts).await?;
            self.send_due(height).await?;
            if self.config.realtime {
                let due = self.started + Duration::from_secs(self.config.block_seconds * height);
                tokio::time::sleep_until(due.into()).await;
            }
            let time_ns = (GENESIS_SECONDS + height * self.config.block_seconds) * 1_000_000_000;
            let engine = self.engine.clone();
            let produced = tokio::task::spawn_blocking(move || engine.produce(time_ns)).await??;
            self.absorb(height, &produced)?;
            if height.is_multiple_of(INVARIANT_BLOCKS) || height == self.run_blocks {
                let checks = self.engine.shared().check_invariants();
                let checks =
                    checks.map_err(|e| anyhow::anyhow!("invariant broken at block {height}: {e}"))?;
                self.recorder.invariants_held(checks);
            }
            let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
            self.recorder.end_block(micros(produced.times.finalize), micros(produced.times.commit));
            progress(&self.view(height), &self.recorder);
        }
        // What was to be asked again in a block after the last has no more tries.
        for _ in std::mem::take(&mut self.retries) {
            self.recorder.refused();
        }
        Ok(())
    }

    /// Draws at the last committed height, all at once; then each gateway starts its requests in order.
    async fn start_all(&mut self, height: u64, attempts: Vec<Attempt>) -> Result<()> {
        if attempts.is_empty() {
            return Ok(());
        }
        let pinned = i64::try_from(height - 1)?;
        let mut draws = JoinSet::new();
        for (at, attempt) in attempts.iter().enumerate() {
            let (channel, model) = (self.channel.clone(), self.models[attempt.model].clone());
            let parts = [self.config.seed, DRAW_STREAM, attempt.request.index, attempt.number];
            let seed = SplitMix64::keyed(&parts).next_bytes32();
            draws.spawn(async move { (at, draw(&channel, &model, seed, pinned).await) });
        }
        let mut drawn: Vec<Option<Drawn>> = attempts.iter().map(|_| None).collect();
        while let Some(joined) = draws.join_next().await {
            let (at, answer) = joined?;
            drawn[at] = answer?;
        }
        let mut by_gateway: Vec<Vec<(Attempt, usize, Any)>> =
            self.gateways.iter().map(|_| Vec::new()).collect();
        for (attempt, drawn) in attempts.into_iter().zip(drawn) {
            let Some(drawn) = drawn else {
                self.try_again(attempt);
                continue;
            };
            self.recorder.drawn(drawn.lane);
            let executor = *self.index_of.get(&drawn.executor).context("drawn an unknown executor")?;
            let gateway = usize::try_from(attempt.request.index)? % by_gateway.len();
            let signer = self.gateways[gateway].address();
            let start = self.start_message(&attempt, &signer, &drawn.executor);
            by_gateway[gateway].push((attempt, executor, start));
        }
        let mut senders = JoinSet::new();
        for (index, batch) in by_gateway.into_iter().enumerate().filter(|(_, batch)| !batch.is_empty()) {
            let (channel, mut signer) = (self.channel.clone(), self.gateways[index].clone());
            senders.spawn(async move {
                let mut sent = Vec::with_capacity(batch.len());
                for (attempt, executor, start) in batch {
                    sent.push((signer.send(&channel, start).await?, attempt, executor));
                }
                Ok::<_, anyhow::Error>((index, signer, sent))
            });
        }
        while let Some(joined) = senders.join_next().await {
            let (index, signer, sent) = joined??;
            self.gateways[index] = signer;
            for (hash, attempt, executor) in sent {
                self.awaited.insert(hash, Awaited::Start { attempt, executor });
            }
        }
        Ok(())
    }

    fn start_message(&self, attempt: &Attempt, gateway: &str, executor: &str) -> Any {
        let parts = [self.config.seed, PROMPT_STREAM, attempt.request.index];
        message(&pb::MsgStartInference {
            signer: gateway.to_owned(),
            requested_by: gateway.to_owned(),
            inference_id: attempt.id(),
            model: self.models[attempt.model].clone(),
            assigned_to: executor.to_owned(),
            prompt_hash: SplitMix64::keyed(&parts).next_bytes32().to_vec(),
            prompt_tokens: attempt.request.context_tokens.into(),
            max_tokens: attempt.request.generated_tokens.into(),
        })
    }

    fn try_again(&mut self, mut attempt: Attempt) {
        if attempt.number < RETRIES_MAX {
            attempt.number += 1;
            self.retries.push(attempt);
        } else {
            self.recorder.refused();
        }
    }

    /// Every executor sends what is due in this block.
    async fn send_due(&mut self, height: u64) -> Result<()> {
        let mut by_executor: BTreeMap<usize, Vec<Any>> = BTreeMap::new();
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
            };
            by_executor.entry(executor).or_default().extend(message);
        }
        let mut senders = JoinSet::new();
        for (index, batch) in by_executor {
            let (channel, mut signer) = (self.channel.clone(), self.executors[index].clone());
            senders.spawn(async move {
                let mut sent = Vec::with_capacity(batch.len());
                for message in batch {
                    sent.push(signer.send(&channel, message).await?);
                }
                Ok::<_, anyhow::Error>((index, signer, sent))
            });
        }
        while let Some(joined) = senders.join_next().await {
            let (index, signer, sent) = joined??;
            self.executors[index] = signer;
            self.awaited.extend(sent.into_iter().map(|hash| (hash, Awaited::Other)));
        }
        Ok(())
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
    fn absorb(&mut self, height: u64, produced: &ProducedBlock) -> Result<()> {
        ensure!(produced.block.height == i64::try_from(height)?, "the node made another block");
        let (begin, end): (Vec<_>, Vec<_>) =
            produced.finalized.events.iter().partition(|e| e.get("mode") == Some("BeginBlock"));
        for event in begin {
            self.event(event)?;
        }
        for (hash, result) in produced.hashes.iter().zip(&produced.finalized.tx_results) {
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
        let (at, due) = match behaviour(&self.profiles[executor], start_height, answer_height, chance) {
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
            elapsed_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
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
