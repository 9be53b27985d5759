//! One validator in this process: persistent, for development, tests and small deployments.

mod backend;
mod blocks;
mod engine;
pub mod telemetry;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use holdfast_app::app::AppError;
use holdfast_app::state::DiskStore;
use holdfast_app::upgrades;

pub use backend::NodeBackend;
pub use blocks::{BlockStore, BlockStoreError, StoredBlock, StoredResult, StoredResults, StoredTx};
pub use engine::{BlockTimes, Engine, EngineError, ProducedBlock};

use crate::cli::{StartConfig, in_use};
use crate::say;
use crate::upkeep::Upkeep;

/// Opens the node of a home folder: its state, or genesis when there is none yet.
///
/// # Errors
/// A folder in use, a bad genesis, databases that do not belong together.
pub fn open(config: &StartConfig) -> Result<Engine<DiskStore>> {
    let app = crate::open::app(config)?;
    let blocks = BlockStore::open(&config.home.join("data/blocks"))?;
    Ok(Engine::new(app, blocks, config.mempool)?)
}

/// Runs the node until SIGINT or SIGTERM.
///
/// # Errors
/// What [`open`] refuses, a port in use, and any failure that must stop a chain. When the chain waits for another binary,
/// `data/upgrade-info.json` is written before.
pub async fn start(config: StartConfig) -> Result<()> {
    let data = config.home.join("data");
    run(config).await.map_err(|error| {
        let app = match error.downcast_ref::<EngineError>() {
            Some(EngineError::App(app)) => Some(app),
            _ => error.downcast_ref::<AppError>(),
        };
        let plan = app.and_then(upgrades::needed).cloned();
        crate::open::tell_supervisor(&data, plan, error)
    })
}

async fn run(config: StartConfig) -> Result<()> {
    let engine = Arc::new(open(&config)?);
    let upkeep =
        crate::open::upkeep(&config, engine.shared().store().clone(), crate::open::snapshots(&config)?)?;
    let listener = tokio::net::TcpListener::bind(config.grpc_listen)
        .await
        .map_err(|e| in_use("--grpc-listen", config.grpc_listen, &e))?;
    say::notice(format_args!("gRPC listens on {}", listener.local_addr()?));
    if let Some(addr) = config.metrics_listen {
        telemetry::install(addr)?;
        say::notice(format_args!("metrics at http://{addr}/metrics"));
    }
    let backend = Arc::new(NodeBackend::new(engine.clone(), &config.moniker, &config.validator.0));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let shutdown = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let server = tokio::spawn(holdfast_app::grpc::serve(listener, backend, shutdown(stopped)));
    let made = make_blocks(&engine, &upkeep, &config).await;
    // Blocks have ended, in order or not: the last commit is durable, answer what is under way and go.
    let _ = stop.send(true);
    server.await??;
    upkeep.stop();
    made
}

async fn make_blocks(
    engine: &Arc<Engine<DiskStore>>,
    upkeep: &Upkeep<DiskStore>,
    config: &StartConfig,
) -> Result<()> {
    let mut signals = Signals::new()?;
    let mut ticks = tokio::time::interval(config.block_time);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            name = signals.next() => {
                say::notice(format_args!("{name}: stopped after height {}", *engine.heights().borrow()));
                return Ok(());
            }
            _ = ticks.tick() => {}
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let now = u64::try_from(now.as_nanos()).context("the clock is after 2500")?;
        let (engine, last) = (engine.clone(), engine.blocks().latest()?.map_or(0, |block| block.time_ns));
        // Block time never runs backwards, whatever the clock does.
        let time_ns = now.max(last.saturating_add(1));
        let metered = config.metrics_listen.is_some();
        let block = tokio::task::spawn_blocking(move || {
            let block = engine.produce(time_ns)?;
            if metered {
                telemetry::record(&engine, &block)?;
            }
            Ok::<_, anyhow::Error>(block)
        });
        let block = block.await??;
        upkeep.committed(block.block.height);
        let (height, txs) = (block.block.height, block.block.txs.len());
        let app_hash = hex::encode_upper(block.finalized.app_hash);
        tracing::info!(height, txs, app_hash, "committed block");
    }
}

#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
