//! Runners and workers to measure.

use super::*;

/// The same for all: what one says of a moment another one understands.
pub(super) fn clock() -> Arc<dyn Clock> {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    Arc::new(CLOCK.clone())
}

pub(super) fn local(model: Repeated, compute: Compute) -> Arc<LocalShard<Repeated>> {
    let settings = ShardSettings { compute, capacity: ROWS, ..ShardSettings::new("bench") };
    Arc::new(LocalShard::new(model, settings, clock()))
}

/// A runner whose driver is a task of the current runtime.
pub(super) struct Running {
    pub(super) handle: RunnerHandle,
    pub(super) driver: tokio::task::JoinHandle<Result<(), holdfast_runner::ledger::LedgerError>>,
    pub(super) generation: u64,
}

/// `folder`: where the ledger is; `None`: in memory.
pub(super) fn start(
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
    pub(super) async fn stop(self) -> Result<()> {
        self.handle.stop(0);
        timeout(PATIENCE, self.driver).await.context("the runner does not end")???;
        Ok(())
    }
}

/// On one thread: whatever its tasks take is seen.
pub(super) fn one_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// As the node's own.
pub(super) fn threads() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// A worker in threads of its own. Ends when dropped.
pub(super) struct Worker {
    pub(super) address: SocketAddr,
    pub(super) host: Arc<dyn ShardHost>,
    pub(super) stop: Option<oneshot::Sender<()>>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(host: Arc<dyn ShardHost>) -> Result<Self> {
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

    pub(super) async fn connect(&self, generation: u64) -> Result<Arc<RemoteShard>> {
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
