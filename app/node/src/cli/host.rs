//! `holdfastd host`: an executor's service, and `holdfastd infer`, which asks one.

mod infer;
mod sessions;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use holdfast_app::grpc::ChainError;
use holdfast_app::keys::SecretKey;
use holdfast_host::chain::GrpcChain;
use holdfast_host::session::rules::Drill;
use holdfast_host::{Host, HostConfig, Pace, owner, server};
use holdfast_runner::ledger::{FileStore, LedgerConfig, LedgerError};
use holdfast_runner::worker::{
    ParticipantWorker, RemoteLimits, RemotePool, WorkerAddress, from_participant, from_urls,
};
use holdfast_runner::{
    BoundaryAdapter, Clock, HardenedSessionRunner, IdempotencyLedger, RunnerConfig, ShardPool, SystemClock,
};
use holdfast_types::{Coin, Hrp};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing_subscriber::EnvFilter;

pub(crate) use infer::{InferArgs, infer};

use super::backend::{self, BackendArgs, Opened};
use super::error::fail;
use super::files::{Home, HomeArgs};
use super::keys::{Keyring, PrefixArgs};
use super::output::{Format, Io};
use super::{start, values, wiring};
use crate::solo::Signals;
use crate::workers::{WorkerCommand, WorkerProcess};

/// Time for running inferences when the host is told to stop.
const DRAIN_RUNS: Duration = Duration::from_secs(10);
/// Time for their reports then.
const DRAIN_REPORTS: Duration = Duration::from_secs(15);
/// Time for the shards to give back what they hold then.
const DRAIN_SHARDS: Duration = Duration::from_secs(3);
/// Time between two looks at whether a worker process has ended.
const LOOK: Duration = Duration::from_millis(200);
/// Pause before a worker that has ended is started again; it doubles while that fails.
const RESTART: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Executes inferences that the chain gives to a participant: streams answers to requesters and reports to the chain
#[derive(Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Name or address of the participant's key, which signs its reports
    #[arg(long, env = "HOLDFASTD_FROM", value_name = "KEY")]
    from: String,
    #[command(flatten)]
    home: HomeArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
    /// Host and port of the gRPC server of a node
    #[arg(long, alias = "node", env = "HOLDFASTD_GRPC_ADDR", value_name = "ADDR", default_value = "127.0.0.1:9090", value_parser = values::grpc_addr)]
    grpc_addr: String,
    /// IP and port to listen on for requesters; port 0 takes a free one
    #[arg(long, env = "HOLDFASTD_HOST_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:9200", value_parser = values::listen)]
    listen: SocketAddr,
    /// Fee of each report, such as 10uhold [default: none]
    #[arg(long, env = "HOLDFASTD_FEES", value_name = "COIN", value_parser = values::coin)]
    fees: Option<Coin>,
    /// Folder of the work ledger [default: data/runner in the home folder]
    #[arg(long, env = "HOLDFASTD_LEDGER", value_name = "DIR")]
    ledger: Option<PathBuf>,
    /// Ids of the models on the chain that this backend is, with commas; inferences of others are refused [default: any]
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    models: Vec<String>,
    /// Longest answer in tokens, whatever was paid for
    #[arg(long, value_name = "N", default_value = "4096", value_parser = values::max_tokens)]
    max_tokens: u32,
    /// Folder of the replicas of escrow sessions [default: data/sessions in the home folder]
    #[arg(long, env = "HOLDFASTD_SESSIONS", value_name = "DIR")]
    sessions: Option<PathBuf>,
    /// Let the gateway of an escrow drop the replica of its session, so that one that has parted from the others can be taught anew
    #[arg(long, env = "HOLDFASTD_ALLOW_RESET")]
    allow_reset: bool,
    /// Sign states even while the gateway leaves this host's transactions out
    #[arg(long, env = "HOLDFASTD_NO_WITHHOLD")]
    no_withhold: bool,
    /// Go wrong on purpose: fork@nonceK, restart-empty@nonceK, lie@nonceK, slow@MS or mute
    #[arg(long, env = "HOLDFASTD_HOST_DRILL", value_name = "SPEC", hide = true)]
    drill: Option<Drill>,
    #[command(flatten)]
    backend: BackendArgs,
    /// Start N worker processes, and start them again when they end [default: compute in this process]
    #[arg(long, value_name = "N", value_parser = backend::workers, conflicts_with_all = ["worker_url", "worker_from_chain"])]
    workers: Option<u32>,
    /// A running worker, such as http://127.0.0.1:9100; once for each
    #[arg(long, value_name = "URL", conflicts_with = "worker_from_chain")]
    worker_url: Vec<String>,
    /// The running workers that the participant lists on the chain
    #[arg(long)]
    worker_from_chain: bool,
    /// Form of the line that says where it listens
    #[arg(
        long,
        short,
        alias = "format",
        env = "HOLDFASTD_OUTPUT",
        value_name = "FORM",
        default_value = "text"
    )]
    output: Format,
    /// What to log on standard error: error, warn, info, debug, trace, or pairs such as holdfast_host=debug with commas
    #[arg(long, env = "HOLDFASTD_LOG_LEVEL", value_name = "LEVEL", default_value = start::LOG_LEVEL, value_parser = start::log_level)]
    log_level: String,
}

pub(crate) fn run(args: &HostArgs, io: &mut Io<'_>) -> Result<()> {
    let home = args.home.home()?;
    let hrp = args.prefix.hrp(&home)?;
    let key = Keyring::new(&home).find(&args.from, &hrp)?;
    let opened = args.backend.open()?;
    let log = EnvFilter::builder().parse(&args.log_level)?;
    wiring::worker(log, serve(args, &home, &hrp, key, &opened, io))
}

/// Runs until a signal. Worker processes end with the thread that started them, so nothing here that starts one is
/// given to another thread.
async fn serve(
    args: &HostArgs,
    home: &Home,
    hrp: &Hrp,
    key: SecretKey,
    opened: &Opened,
    io: &mut Io<'_>,
) -> Result<()> {
    // Before the line: whoever reads it may send a signal at once.
    let mut signals = Signals::new()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let folder = args.ledger.clone().unwrap_or_else(|| home.data().join("runner"));
    let ledger = open_ledger(&folder, clock.as_ref())?;
    let generation = ledger.generation();

    let executor = key.address();
    let session_key = key.clone();
    let fee = args.fees.clone().unwrap_or(Coin { denom: "none".into(), amount: 0 });
    let chain = GrpcChain::connect(&args.grpc_addr, key, hrp.clone(), fee).await.map_err(refused)?;
    let chain_id = chain.chain_id().to_owned();
    owner::claim(&folder, &chain_id, &executor.to_bech32(hrp))
        .map_err(|e| fail(95, "--ledger", e.to_string()))?;
    let participant = chain.participant().await.map_err(refused)?;
    if participant.is_none() {
        let me = executor.to_bech32(hrp);
        tracing::warn!(participant = me, "the chain has no such participant yet; nothing is given to it");
    }

    let mut keeper = match args.workers {
        Some(count) => Some(Keeper::start(args.backend.worker_command()?, &opened.ranges(count)?).await?),
        None => None,
    };
    let remote = match &keeper {
        Some(keeper) => Some(keeper.addresses()?),
        None if args.worker_from_chain => {
            let listed = participant.map(|participant| participant.workers).unwrap_or_default();
            if listed.is_empty() {
                let text =
                    "the participant lists no workers; `tx participants update-participant` names them";
                return Err(fail(42, "--worker-from-chain", text));
            }
            let listed: Vec<ParticipantWorker> = listed
                .into_iter()
                .map(|worker| ParticipantWorker {
                    url: worker.url,
                    first_layer: worker.first_layer,
                    last_layer: worker.last_layer,
                })
                .collect();
            Some(from_participant(&listed).map_err(|e| fail(12, "--worker-from-chain", e.to_string()))?)
        }
        None if !args.worker_url.is_empty() => {
            Some(from_urls(&args.worker_url).map_err(|e| fail(12, "--worker-url", e.to_string()))?)
        }
        None => None,
    };
    let shown: Vec<String> = remote.iter().flatten().map(ToString::to_string).collect();
    let pool: Arc<dyn ShardPool> = match remote {
        Some(addresses) => {
            let limits = RemoteLimits::default();
            Arc::new(RemotePool::start(addresses, generation, None, limits, clock.clone()))
        }
        None => {
            let shard = opened.shard("shard", None, clock.clone()).await? as Arc<dyn BoundaryAdapter>;
            Arc::new(vec![shard])
        }
    };

    let (runner, driver) = HardenedSessionRunner::new(RunnerConfig::default(), clock.clone(), ledger, pool);
    let chain = Arc::new(chain);
    let (replicas, sessions) =
        sessions::open(args, home, hrp, &session_key, &chain, &runner, opened.codec(), clock.clone())?;
    let config = HostConfig {
        chain_id: chain_id.clone(),
        hrp: hrp.clone(),
        executor,
        models: args.models.clone(),
        max_tokens: args.max_tokens,
        pace: Pace::default(),
    };
    let host = Host::new(config, runner.clone(), chain, opened.codec(), clock).with_sessions(sessions);
    let listener =
        TcpListener::bind(args.listen).await.map_err(|e| super::worker::cannot_listen(args.listen, &e))?;
    let address = listener.local_addr()?;

    let mut driver = tokio::spawn(driver);
    let background = tokio::spawn({
        let host = host.clone();
        async move { host.background().await }
    });
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn({
        let (host, mut stopped) = (host.clone(), stopped);
        async move {
            let told = async {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            server::serve(&host, listener, told).await;
        }
    });

    let backend = args.backend.backend.name();
    let me = executor.to_bech32(hrp);
    match args.output {
        Format::Json => {
            let value = json!({
                "address": address.to_string(),
                "executor": me,
                "chain_id": chain_id,
                "backend": backend,
                "workers": shown,
                "ledger": folder.display().to_string(),
                "sessions": replicas.display().to_string(),
                "generation": generation,
            });
            writeln!(io.out, "{value}")?;
        }
        Format::Text => {
            let workers =
                if shown.is_empty() { String::new() } else { format!(" over {}", shown.join(", ")) };
            writeln!(io.out, "host {me} listens on {address}: {backend}{workers}, chain {chain_id}")?;
        }
    }
    io.out.flush()?;

    let signal = tokio::select! {
        signal = signals.next() => signal,
        ended = &mut driver => return Err(runner_ended(ended)),
        () = keep(keeper.as_mut()) => return Ok(()),
    };
    tracing::info!(signal, "host: lets running inferences end and reports");
    tokio::select! {
        reported = host.drain(DRAIN_RUNS, DRAIN_REPORTS) => {
            if !reported {
                tracing::warn!("host: not everything is reported yet; the next start reports the rest");
            }
        }
        ended = &mut driver => return Err(runner_ended(ended)),
        () = keep(keeper.as_mut()) => {}
        signal = signals.next() => tracing::warn!(signal, "host: stops at once"),
    }
    let _ = stop.send(true);
    let _ = serving.await;
    runner.stop(0);
    let _ = timeout(DRAIN_SHARDS, &mut driver).await;
    driver.abort();
    background.abort();
    Ok(())
}

fn open_ledger(folder: &Path, clock: &dyn Clock) -> Result<IdempotencyLedger> {
    let refused = |e: LedgerError| {
        let remedy = match e {
            LedgerError::Locked(_) => "; one host at a time, or give another --ledger to a second one",
            _ => "",
        };
        fail(95, "--ledger", format!("{}: {e}{remedy}", folder.display()))
    };
    let store = FileStore::open(folder).map_err(refused)?;
    let (ledger, recovery) =
        IdempotencyLedger::open(store, LedgerConfig::default(), clock).map_err(refused)?;
    if !recovery.terminated.is_empty() {
        let inferences = recovery.terminated.len();
        tracing::warn!(inferences, "the last run was broken off; its inferences are reported as failed");
    }
    Ok(ledger)
}

fn refused(error: ChainError) -> anyhow::Error {
    match error {
        ChainError::Unreachable(text) => {
            fail(41, "--grpc-addr", format!("{text}; start a node, or give the address of one"))
        }
        ChainError::Refused { .. } => fail(42, "--grpc-addr", error.to_string()),
    }
}

fn runner_ended(ended: Result<Result<(), LedgerError>, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(Err(error)) => fail(95, "--ledger", error.to_string()),
        Ok(Ok(())) => fail(93, "host", "the runner stopped"),
        Err(error) => fail(93, "host", error.to_string()),
    }
}

/// Worker processes of this host.
struct Keeper {
    command: WorkerCommand,
    kept: Vec<Kept>,
}

struct Kept {
    layers: (u32, u32),
    addr: SocketAddr,
    process: Option<WorkerProcess>,
    pause: Duration,
    start_at: Instant,
}

impl Keeper {
    async fn start(command: WorkerCommand, layers: &[(u32, u32)]) -> Result<Self> {
        let mut kept = Vec::with_capacity(layers.len());
        for layers in layers {
            let process = WorkerProcess::start(&command, ([127, 0, 0, 1], 0).into(), *layers, &[])
                .await
                .map_err(|e| fail(93, "--workers", format!("{e:#}")))?;
            let (addr, pause, start_at) = (process.addr(), RESTART.0, Instant::now());
            kept.push(Kept { layers: *layers, addr, process: Some(process), pause, start_at });
        }
        Ok(Self { command, kept })
    }

    fn addresses(&self) -> Result<Vec<WorkerAddress>> {
        let parsed = self.kept.iter().map(|kept| {
            let (from, to) = kept.layers;
            Ok(WorkerAddress::parse(&kept.addr.to_string())
                .context("a socket address")?
                .with_layers(from, to))
        });
        parsed.collect()
    }

    /// Starts those that have ended again, where they were.
    async fn look(&mut self) {
        for kept in &mut self.kept {
            if let Some(process) = &mut kept.process {
                let Some(status) = process.ended() else { continue };
                tracing::warn!(%status, layers = ?kept.layers, "a worker ended; it is started again");
                kept.process = None;
                kept.start_at = Instant::now() + kept.pause;
            }
            if Instant::now() < kept.start_at {
                continue;
            }
            match WorkerProcess::start(&self.command, kept.addr, kept.layers, &[]).await {
                Ok(process) => {
                    kept.process = Some(process);
                    kept.pause = RESTART.0;
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "a worker did not come back");
                    kept.pause = (kept.pause * 2).min(RESTART.1);
                    kept.start_at = Instant::now() + kept.pause;
                }
            }
        }
    }
}

/// Keeps workers running, if there are any; never ends.
async fn keep(keeper: Option<&mut Keeper>) {
    let Some(keeper) = keeper else { return std::future::pending().await };
    loop {
        sleep(LOOK).await;
        keeper.look().await;
    }
}
