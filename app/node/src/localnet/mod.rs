//! A network of validators on this machine: an application and a CometBFT for each, started, watched and kept running.
//!
//! ```text
//!  localnet ─┬─ node0: holdfastd start --engine comet   ◀─ cometbft node
//!            ├─ node1: …                                         │ rpc: heights, app hashes
//!            └─ load: transactions over gRPC          watch ◀────┘
//! ```
//!
//! Whatever of these ends is started again, with whatever exit code: CometBFT ends with 0 when its application goes. One that
//! ends right after its start a few times in a row ends the run. No process outlives this one, not even when it is killed ([`child`]).

pub mod child;
pub mod gateway;
pub mod genesis;
mod load;
mod processes;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use holdfast_app::keys::SecretKey;
use holdfast_types::Hrp;
use tokio::sync::{mpsc, watch as channel};

pub use watch::NodeReport;

use processes::{Phase, Process};

/// Ports of one node on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ports {
    /// CometBFT's peers.
    pub p2p: u16,
    /// CometBFT's RPC.
    pub rpc: u16,
    /// The application's ABCI socket.
    pub abci: u16,
    /// The application's gRPC.
    pub grpc: u16,
}

impl Ports {
    /// Ports from one node's first to the next one's.
    pub const STEP: u16 = 10;

    /// Ports of node `index` of a network whose ports begin at `base`; `None` beyond 65,535.
    pub fn of(base: u16, index: usize) -> Option<Self> {
        let first = u16::try_from(index).ok()?.checked_mul(Self::STEP)?.checked_add(base)?;
        let port = |n: u16| first.checked_add(n);
        Some(Self { p2p: port(0)?, rpc: port(1)?, abci: port(2)?, grpc: port(3)? })
    }

    /// With their names.
    pub fn all(&self) -> [(&'static str, u16); 4] {
        let Self { p2p, rpc, abci, grpc } = *self;
        [("p2p", p2p), ("rpc", rpc), ("abci", abci), ("grpc", grpc)]
    }
}

/// A node of the network.
#[derive(Debug, Clone)]
pub struct Node {
    /// `node0` and so on.
    pub name: String,
    /// Home folder of both programs.
    pub home: PathBuf,
    /// Where they listen.
    pub ports: Ports,
}

/// An account that sends load.
#[derive(Clone)]
pub struct Sender {
    /// Key.
    pub key: SecretKey,
}

/// A run.
pub struct LocalnetConfig {
    /// Chain id.
    pub chain_id: String,
    /// Prefix of addresses.
    pub hrp: Hrp,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The nodes' participants, in their order: they answer inferences.
    pub participants: Vec<Sender>,
    /// Accounts that send coins and ask for inferences.
    pub gateways: Vec<Sender>,
    /// This program.
    pub holdfastd: PathBuf,
    /// CometBFT.
    pub cometbft: PathBuf,
    /// Height at which the run ends; `None`: at a signal.
    pub until: Option<i64>,
    /// Whether app hashes are collected for the report.
    pub collect: bool,
    /// Seed of the load; `None`: no load.
    pub load: Option<u64>,
}

/// Longest time without a block in a run that ends at a height.
const STALL: Duration = Duration::from_secs(180);

/// Runs the network until every node has reached the height asked for, or a signal comes. Gives the reports in the nodes'
/// order.
///
/// # Errors
/// A process that does not stay up, a network that makes no blocks, app hashes that differ.
pub async fn run(config: &LocalnetConfig) -> Result<Vec<NodeReport>> {
    let (phase, phases) = channel::channel(Phase::Run);
    let (failed, mut failures) = mpsc::channel(1);
    let mut running = tokio::task::JoinSet::new();
    for node in &config.nodes {
        for process in Process::of(config, node) {
            running.spawn(processes::keep(process, phases.clone(), failed.clone()));
        }
    }
    drop(failed);
    let heights = channel::Sender::new(0);
    let load = config.load.map(|seed| load::spawn(config, seed, heights.subscribe()));
    let mut signals = crate::solo::Signals::new()?;
    let mut watcher = watch::Watcher::new(config);
    let ended = tokio::select! {
        done = watcher.follow(&heights, STALL) => done,
        Some(error) = failures.recv() => Err(error),
        name = signals.next() => {
            crate::say::notice(format_args!("{name}: stopping"));
            Ok(())
        }
    };
    if let Some(load) = load {
        load.abort();
    }
    // CometBFT first: it would take the end of its application for a failure.
    let _ = phase.send(Phase::StopComet);
    while running.join_next().await.is_some() {
        if running.len() <= config.nodes.len() {
            let _ = phase.send(Phase::StopAll);
        }
    }
    ended?;
    let reports = watcher.reports();
    watch::compare(&reports)?;
    Ok(reports)
}
