//! The CometBFT engine: this program is the application behind a CometBFT node, which brings peers, votes and blocks.
//!
//! ```text
//!  CometBFT ──proxy_app──▶ [server] ─▶ [Adapter] ─▶ App           FinalizeBlock, Commit, …
//!      ▲                                   └──────▶ Shared        Query, CheckTx
//!      └── rpc.laddr ◀── [CometBackend] ◀── gRPC clients
//! ```
//!
//! Both programs use one home folder and one `genesis.json`. When this one ends, CometBFT ends too, with exit code 0: it has
//! to be started again always, not only on failure.

mod adapter;
mod backend;
mod convert;
pub mod keys;
mod query;
mod rpc;
#[cfg(test)]
mod rpc_tests;
mod server;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use holdfast_app::app::AppError;
use holdfast_app::grpc::GrpcLimits;
use holdfast_app::snapshots::{Restorer, SnapshotStore};
use holdfast_app::state::{CommitStore, DiskStore};
use holdfast_app::upgrades;

pub use adapter::{Adapter, AdapterConfig};
pub use backend::CometBackend;
pub use convert::{APP_VERSION, EVIDENCE_BLOCKS};
pub use rpc::{Rpc, RpcError};
pub use server::{
    Application, MAX_CONNECTIONS, MAX_FRAME_BYTES, MAX_REPLY_BYTES, Method, ProxyAddr, ProxyListener,
    refusal, serve,
};

use crate::cli::{StartConfig, in_use};
use crate::say;

/// All that the CometBFT engine needs to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CometConfig {
    /// What every engine needs.
    pub node: StartConfig,
    /// Where CometBFT finds the application.
    pub proxy_app: ProxyAddr,
    /// CometBFT's RPC.
    pub rpc: Rpc,
}

/// Calls to CometBFT wait for it, so more of them run at once than of calls that compute.
const BLOCKING_CALLS: usize = 16;

/// Serves CometBFT until SIGINT or SIGTERM.
///
/// # Errors
/// A home folder in use, a port in use, and any failure that must stop a chain. When the chain waits for another binary,
/// the text is the one cosmovisor knows, and `data/upgrade-info.json` is written before.
pub async fn start(config: CometConfig) -> Result<()> {
    let data = config.node.home.join("data");
    run(config).await.map_err(|error| {
        let plan = error.downcast_ref::<AppError>().and_then(upgrades::needed).cloned();
        crate::open::tell_supervisor(&data, plan, error)
    })
}

/// Starts the upkeep at the first commit: before it the database may be filled from a snapshot.
fn follow_commits(
    node: &StartConfig,
    state: DiskStore,
    snapshots: SnapshotStore,
) -> Box<dyn Fn(i64) + Send + Sync> {
    let (node, upkeep) = (node.clone(), OnceLock::new());
    Box::new(move |height| {
        let started = upkeep.get_or_init(|| {
            crate::open::upkeep(&node, state.clone(), snapshots.clone())
                .map_err(|error| tracing::error!(%error, "no pruning and no snapshots"))
                .ok()
        });
        if let Some(upkeep) = started {
            upkeep.committed(height);
        }
    })
}

async fn run(config: CometConfig) -> Result<()> {
    let CometConfig { node, proxy_app, rpc } = config;
    // Ports first: nothing is opened for a start that cannot be.
    let listener =
        ProxyListener::bind(&proxy_app).await.map_err(|e| in_use("--proxy-app", &proxy_app, &e))?;
    let grpc = tokio::net::TcpListener::bind(node.grpc_listen)
        .await
        .map_err(|e| in_use("--grpc-listen", node.grpc_listen, &e))?;
    let (state, snapshots) = (crate::open::state(&node)?, crate::open::snapshots(&node)?);
    // Only an empty database is ever filled from a snapshot. Without the genesis file InitChain will say so; a node that joins
    // by a snapshot takes the chain id from the light client then.
    let restorer = (state.latest_height() == 0).then(|| {
        let chain_id = crate::open::genesis(&node.genesis).ok().map(|doc| doc.chain_id);
        Restorer::new(state.clone(), chain_id.as_deref())
    });
    let adapter = Arc::new(Adapter::new(
        state.clone(),
        AdapterConfig {
            genesis: node.genesis.clone(),
            options: crate::open::app_options(&node),
            min_retain_blocks: node.min_retain_blocks,
            // A snapshot is in use until the next ones have pushed it out.
            snapshot_heights: node
                .snapshot_interval
                .saturating_mul(u64::from(node.snapshot_keep_recent).max(1)),
            restorer,
            snapshots: Some(snapshots.clone()),
            metered: node.metrics_listen.is_some(),
            after_commit: follow_commits(&node, state, snapshots),
        },
    )?);
    if let Some(addr) = node.metrics_listen {
        crate::solo::telemetry::install(addr)?;
        say::notice(format_args!("metrics at http://{addr}/metrics"));
    }
    say::notice(format_args!("gRPC listens on {}", grpc.local_addr()?));
    say::notice(format_args!("ABCI listens on {}, at height {}", listener.addr(), adapter.height()));
    let mut signals = crate::solo::Signals::new()?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let shutdown = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let backend = CometBackend::new(adapter.clone(), rpc, tokio::runtime::Handle::current());
    let limits = GrpcLimits { max_blocking: BLOCKING_CALLS, ..GrpcLimits::default() };
    let answering = tokio::spawn(holdfast_app::grpc::serve_with(
        grpc,
        Arc::new(backend),
        limits,
        shutdown(stopped.clone()),
    ));
    let mut serving = tokio::spawn(serve(listener, adapter.clone(), stopped));
    let served = tokio::select! {
        served = &mut serving => served?,
        name = signals.next() => {
            let _ = stop.send(true);
            let served = serving.await?;
            say::notice(format_args!("{name}: stopped after height {}", adapter.height()));
            served
        }
    };
    let _ = stop.send(true);
    answering.await??;
    served
}
