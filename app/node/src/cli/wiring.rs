//! Where the command line meets the rest: the node's engine, the devnet, the genesis document, the gRPC client and the
//! system's randomness and clock.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use holdfast_app::app::AppError;
use holdfast_app::composition::Composition;
use holdfast_app::genesis::GenesisDoc;
use holdfast_app::grpc::GrpcChannel;
use holdfast_app::keys::{SecretKey, mnemonic_from_entropy};
use holdfast_app::snapshots::SnapshotError;
use holdfast_app::state::StateError;
use holdfast_proto::Timestamp;
use holdfast_types::Hrp;
use tokio::runtime::{Builder, Runtime};
use tonic::{Code, Status};
use tracing_subscriber::EnvFilter;

use super::error::{fail, io_failure};
use super::files::{self, Home};
use super::node::{CallFailure, Node};
use super::start::StartConfig;
use crate::comet::CometConfig;
use crate::comet::keys::Ed25519Key;
use crate::devnet::config::DevnetConfig;
use crate::localnet::gateway::GatewayNet;
use crate::localnet::gateway::report::Outcome;
use crate::localnet::{LocalnetConfig, NodeReport};

/// Runs the solo engine until it is told to stop. `log` has the form of `RUST_LOG`.
pub(crate) fn start(config: StartConfig, log: EnvFilter) -> Result<()> {
    log_to_stderr(log);
    runtime()?.block_on(crate::solo::start(config))
}

/// Runs the application behind CometBFT until it is told to stop. `log` has the form of `RUST_LOG`.
pub(crate) fn start_comet(config: CometConfig, log: EnvFilter) -> Result<()> {
    log_to_stderr(log);
    let runtime = runtime()?;
    let ended = runtime.block_on(crate::comet::start(config));
    // A query that is still running reads a view; nothing waits for it.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Runs a worker to its end. `log` has the form of `RUST_LOG`.
pub(crate) fn worker(log: EnvFilter, served: impl Future<Output = Result<()>>) -> Result<()> {
    log_to_stderr(log);
    let runtime = runtime()?;
    let ended = runtime.block_on(served);
    // A step that outlasted the wait for it is left behind.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Runs what may start processes: on this thread alone, as the children end when the thread that started them does.
pub(crate) fn on_this_thread<T>(run: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| io_failure("runtime".as_ref(), &e))?.block_on(run)
}

/// The same, ended by SIGINT.
pub(crate) fn children<T>(run: impl Future<Output = Result<T>>) -> Result<T> {
    on_this_thread(async {
        tokio::select! {
            ended = run => ended,
            signal = tokio::signal::ctrl_c() => {
                signal?;
                Err(fail(51, "command", "interrupted"))
            }
        }
    })
}

/// A failure of a home's databases with its code, wherever it comes up; any other error as it is.
pub(crate) fn coded(error: anyhow::Error) -> anyhow::Error {
    let snapshots = error.downcast_ref::<SnapshotError>();
    let state = match (error.downcast_ref::<AppError>(), snapshots) {
        (Some(AppError::State(state)), _) | (_, Some(SnapshotError::State(state))) => Some(state),
        _ => error.downcast_ref::<StateError>(),
    };
    let code = match (state, snapshots) {
        (Some(StateError::Locked { .. }), _) | (_, Some(SnapshotError::Locked { .. })) => 22,
        (Some(StateError::Format { .. } | StateError::Modules { .. }), _)
        | (Some(StateError::Corrupt { .. } | StateError::Engine(_)), _) => 73,
        _ => return error,
    };
    fail(code, "--home", error.to_string())
}

fn log_to_stderr(log: EnvFilter) {
    // A second subscriber in one process is refused; the first one then serves.
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).with_ansi(colours);
    // A line that cannot be written is lost. Told about on the same closed stream, it would be a panic.
    let _ = log.log_internal_errors(false).try_init();
}

/// Runs the devnet to its end; SIGINT ends it early, and what it keeps in temporary folders goes.
pub(crate) fn devnet(config: DevnetConfig) -> Result<()> {
    runtime()?.block_on(async {
        tokio::select! {
            report = crate::devnet::run(&config) => report.map(drop),
            signal = tokio::signal::ctrl_c() => {
                signal?;
                Err(fail(51, "devnet", "interrupted; there is no report"))
            }
        }
    })
}

/// Runs a network of nodes to its end.
pub(crate) fn localnet(config: &LocalnetConfig) -> Result<Vec<NodeReport>> {
    // On this thread alone: the children end when the thread that started them does.
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| io_failure("runtime".as_ref(), &e))?.block_on(crate::localnet::run(config))
}

/// Runs a gateway and its hosts to their end.
pub(crate) fn gateway_net(plan: &GatewayNet) -> Result<Option<Outcome>> {
    on_this_thread(crate::localnet::gateway::run(plan))
}

fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().map_err(|e| io_failure("runtime".as_ref(), &e))
}

/// Genesis of a new chain that begins now.
pub(crate) fn fresh_genesis(chain_id: &str, hrp: &Hrp) -> Result<GenesisDoc> {
    let mut doc = GenesisDoc::default_for(chain_id, hrp).map_err(|e| fail(27, "genesis", e.to_string()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Whole seconds: nobody needs more, and every reader takes them.
    doc.genesis_time = Timestamp { seconds: i64::try_from(now.as_secs()).unwrap_or(0), nanos: 0 }.to_string();
    Ok(doc)
}

/// Reads `genesis.json`, without checking the modules.
pub(crate) fn read_genesis(home: &Home) -> Result<GenesisDoc> {
    let path = home.genesis();
    let text = home.read(&path)?;
    GenesisDoc::parse(text.as_bytes()).map_err(|e| fail(27, path.display().to_string(), e.to_string()))
}

/// Prefix of the chain in `home`.
pub(crate) fn genesis_hrp(home: &Home) -> Result<Hrp> {
    let prefix = read_genesis(home)?.bech32_prefix;
    Hrp::new(&prefix)
        .map_err(|e| fail(27, format!("{}: bech32_prefix", home.genesis().display()), e.to_string()))
}

/// Checks a document and every module in it.
pub(crate) fn validate_genesis(doc: &GenesisDoc, home: &Home) -> Result<()> {
    let checked = doc.validate(&Composition::default());
    checked.map_err(|e| fail(27, home.genesis().display().to_string(), e.to_string()))
}

/// Writes `genesis.json`.
pub(crate) fn write_genesis(home: &Home, doc: &GenesisDoc) -> Result<()> {
    files::write_whole(&home.genesis(), doc.to_json()?.as_bytes(), false)
}

/// A new key with its phrase of 24 words.
pub(crate) fn fresh_key() -> Result<(SecretKey, String)> {
    let mut entropy = [0; 32];
    getrandom::fill(&mut entropy)
        .map_err(|e| fail(36, "randomness", format!("{e}; the system gives none")))?;
    let mnemonic = mnemonic_from_entropy(&entropy)?;
    Ok((SecretKey::from_mnemonic(&mnemonic, 0)?, mnemonic))
}

/// 32 bytes nobody knows.
pub(crate) fn randomness() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| fail(36, "randomness", format!("{e}; the system gives none")))?;
    Ok(bytes)
}

/// A new key of a validator or a node.
pub(crate) fn fresh_consensus_key() -> Result<Ed25519Key> {
    randomness().map(Ed25519Key::from_seed)
}

/// A node over gRPC.
struct GrpcNode {
    runtime: Runtime,
    channel: GrpcChannel,
}

fn failure(status: &Status) -> CallFailure {
    let code = (status.code() != Code::Unavailable).then_some(i32::from(status.code()));
    CallFailure { status: code, message: status.message().to_owned() }
}

impl Node for GrpcNode {
    fn unary(&mut self, path: &str, request: &[u8], height: Option<i64>) -> Result<Vec<u8>, CallFailure> {
        let answer = self.runtime.block_on(self.channel.unary_raw(path, request, height));
        answer.map(|(bytes, _)| bytes.to_vec()).map_err(|status| failure(&status))
    }
}

/// Connects to HOST:PORT.
pub(crate) fn connect(addr: &str) -> Result<Box<dyn Node>> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(|e| io_failure("runtime".as_ref(), &e))?;
    let channel =
        runtime.block_on(GrpcChannel::connect(addr)).map_err(|status| failure(&status).refusal("connect"))?;
    Ok(Box::new(GrpcNode { runtime, channel }))
}
