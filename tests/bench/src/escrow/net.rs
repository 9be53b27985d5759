//! A gateway with its HTTP API and three hosts with the reference model, on sockets of the loopback.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use holdfast_app::grpc::{ChainError, ChainFuture};
use holdfast_app::keys::SecretKey;
use holdfast_escrow::session::{ApplyError, Diff, FrozenConfig, Hash, State, apply};
use holdfast_gateway::chain::{Chain, EscrowRow, EscrowStatus, Order, Prices, ProbeReady, TxOutcome};
use holdfast_gateway::driver::{Clock as GatewayClock, CoreOpener, Gateway, Journal, Parts};
use holdfast_gateway::openai::{self, Api, ApiConfig, MemBudgets, MemReplies, Seams};
use holdfast_gateway::settings::Settings;
use holdfast_host::chain::Chain as HostChain;
use holdfast_host::driver::{RunnerAdmission, Sessions, SessionsConfig};
use holdfast_host::escrows::{EscrowInfo, MemoryEscrows};
use holdfast_host::session::rules::{Place, Rules, Via};
use holdfast_host::session::{CoreConfig, EscrowStatus as HostEscrowStatus, HostCore, Terms};
use holdfast_host::store::FjallDb;
use holdfast_host::{Host, HostConfig, Pace, server};
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1::Inference;
use holdfast_runner::backends::reference::{DEFAULT_SEED, LAYERS, ReferenceModel};
use holdfast_runner::ledger::{FileStore, LedgerConfig};
use holdfast_runner::shard::{LocalShard, ShardSettings};
use holdfast_runner::{
    BoundaryAdapter, ByteCodec, Clock, HardenedSessionRunner, IdempotencyLedger, RunnerConfig, RunnerHandle,
    ShardPool, SystemClock, TextCodec,
};
use holdfast_types::{Address, Hrp};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(super) const CHAIN: &str = "bench-1";
pub(super) const HOSTS: usize = 3;
/// Escrow of the gateway, and its model: all is well.
pub(super) const WELL: (u64, &str) = (1, "well");
/// Escrow of the gateway in which the last host goes wrong.
pub(super) const ILL: (u64, &str) = (2, "ill");
/// Escrow of all hosts that is spent without a gateway.
pub(super) const DIRECT: u64 = 3;
/// The same of the first host alone.
pub(super) const SINGLE: u64 = 4;

/// The key with this name.
pub(super) fn key(name: &str) -> SecretKey {
    SecretKey::from_seed_label(b"bench", name)
}

/// Terms of an escrow that never runs out.
pub(super) fn terms(escrow_id: u64, model: &str, hosts: usize) -> FrozenConfig {
    FrozenConfig {
        chain_id: CHAIN.into(),
        escrow_id,
        creator: key("gateway").address(),
        gateway: key("gateway").address(),
        model: model.into(),
        slots: (0..hosts).map(|index| key(&format!("host-{index}")).address()).collect(),
        amount: u128::from(u64::MAX),
        create_fee: 1,
        fee_per_nonce: 1,
        token_price: 1,
        refusal_timeout_s: 600,
        execution_timeout_s: 1_200,
        vote_threshold_bp: 5_000,
        cancel_charge_bp: 0,
        seal_grace_nonces: 64,
        max_nonce: 1_000_000,
        max_live: 4_096,
    }
}

/// A chain on which nothing happens.
struct Still {
    rows: BTreeMap<u64, EscrowRow>,
    urls: BTreeMap<Address, String>,
}

impl Chain for Still {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async { Ok(1) })
    }

    fn escrow(&self, id: u64) -> ChainFuture<'_, Option<EscrowRow>> {
        Box::pin(async move { Ok(self.rows.get(&id).cloned()) })
    }

    fn own_open(&self, _: &str) -> ChainFuture<'_, Vec<EscrowRow>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn host_urls(&self) -> ChainFuture<'_, BTreeMap<Address, String>> {
        Box::pin(async { Ok(self.urls.clone()) })
    }

    fn absent(&self, _: &str) -> ChainFuture<'_, Vec<Address>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn probe_ready(&self, _: &str) -> ChainFuture<'_, Vec<ProbeReady>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn token_price(&self) -> ChainFuture<'_, u128> {
        Box::pin(async { Ok(1) })
    }

    fn prices(&self) -> ChainFuture<'_, Prices> {
        Box::pin(async { Ok(Prices { create_fee: 1, fee_per_nonce: 1, token_price: 1 }) })
    }

    fn submit(&self, _: Order, _: u64) -> ChainFuture<'_, String> {
        Box::pin(async { Err(ChainError::Unreachable("nothing is settled here".into())) })
    }

    fn outcome(&self, _: &str) -> ChainFuture<'_, Option<TxOutcome>> {
        Box::pin(async { Ok(None) })
    }
}

/// The same for a host.
struct StillHost;

impl HostChain for StillHost {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async { Ok(1) })
    }

    fn inference<'a>(&'a self, _: &'a str) -> ChainFuture<'a, Option<Inference>> {
        Box::pin(async { Ok(None) })
    }

    fn broadcast(&self, _: Vec<Any>) -> ChainFuture<'_, Vec<Result<String, ChainError>>> {
        Box::pin(async { Err(ChainError::Unreachable("nothing is reported here".into())) })
    }
}

/// A host that computes as it should, and in escrow [`ILL`] refuses by its signature whatever comes from a nonce on.
#[derive(Clone)]
pub(super) struct Refuses {
    /// The nonce; `u64::MAX` = none.
    pub(super) from: Arc<AtomicU64>,
}

impl Rules for Refuses {
    fn apply(&self, place: Place, state: &State, diff: &Diff) -> Result<(State, Hash), ApplyError> {
        let applied = apply(state, diff)?;
        let from = self.from.load(Ordering::Relaxed);
        if diff.escrow_id != ILL.0 || diff.nonce < from || place.via == Via::Replay {
            return Ok(applied);
        }
        let mut computed = applied.1;
        computed[0] ^= 1;
        let digest = diff.digest(CHAIN);
        Err(ApplyError::RootMismatch { nonce: diff.nonce, computed, claimed: diff.post_state_root, digest })
    }
}

/// All of it.
pub(super) struct Net {
    pub(super) gateway: Gateway,
    /// Of the HTTP API.
    pub(super) api: SocketAddr,
    /// Where the hosts listen.
    pub(super) urls: Vec<String>,
    pub(super) refuses: Refuses,
    runners: Vec<RunnerHandle>,
    tasks: JoinSet<()>,
    // Goes last.
    _dir: TempDir,
}

impl Net {
    pub(super) async fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?;
        let all = [
            terms(WELL.0, WELL.1, HOSTS),
            terms(ILL.0, ILL.1, HOSTS),
            terms(DIRECT, "direct", HOSTS),
            terms(SINGLE, "direct", 1),
        ];
        let escrows = Arc::new(MemoryEscrows::default());
        for config in &all {
            let terms = Terms { config: config.clone(), status: HostEscrowStatus::Open };
            escrows.put(EscrowInfo { terms, gateway_url: String::new() });
        }
        let refuses = Refuses { from: Arc::new(AtomicU64::new(u64::MAX)) };
        let (mut tasks, mut urls, mut runners) = (JoinSet::new(), Vec::new(), Vec::new());
        for index in 0..HOSTS {
            let folder = dir.path().join(format!("host-{index}"));
            let (url, runner) = host(index, &folder, &escrows, &refuses, &mut tasks).await?;
            urls.push(url);
            runners.push(runner);
        }
        let row = |config: &FrozenConfig| EscrowRow {
            config: config.clone(),
            config_digest: config.digest(),
            status: EscrowStatus::Open,
            created_at: 1,
            expires_at: 1_000_000,
            dispute_window: 600,
            disputed_nonce: None,
            paid_nonce: None,
        };
        let chain = Still {
            rows: all.iter().map(|config| (config.escrow_id, row(config))).collect(),
            urls: urls.iter().enumerate().map(|(i, url)| (all[0].slots[i], url.clone())).collect(),
        };
        let gateway = gateway(chain, dir.path()).await?;
        let seams = Seams {
            sessions: Arc::new(gateway.clone()),
            budgets: Arc::new(MemBudgets::default()),
            replies: Arc::new(MemReplies::default()),
            metrics: Arc::new(String::new),
        };
        let api = Api::new(ApiConfig::default(), seams)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        tasks.spawn(async move {
            openai::serve(api, listener, std::future::pending(), std::future::ready(())).await
        });
        Ok(Self { gateway, api: address, urls, refuses, runners, tasks, _dir: dir })
    }

    pub(super) async fn stop(mut self) {
        self.gateway.stop().await;
        for runner in &self.runners {
            runner.stop(0);
        }
        self.tasks.shutdown().await;
    }
}

/// The host with this number: where it listens, and its runner.
async fn host(
    index: usize,
    folder: &Path,
    escrows: &Arc<MemoryEscrows>,
    refuses: &Refuses,
    tasks: &mut JoinSet<()>,
) -> Result<(String, RunnerHandle)> {
    std::fs::create_dir_all(folder)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let model = ReferenceModel::new(DEFAULT_SEED, (0, LAYERS as u32))?;
    let shard = Arc::new(LocalShard::new(model, ShardSettings::new("shard"), clock.clone()));
    let pool: Arc<dyn ShardPool> = Arc::new(vec![shard as Arc<dyn BoundaryAdapter>]);
    let store = FileStore::open(folder.join("ledger"))?;
    let (ledger, _) = IdempotencyLedger::open(store, LedgerConfig::default(), clock.as_ref())?;
    let (runner, driver) = HardenedSessionRunner::new(RunnerConfig::default(), clock.clone(), ledger, pool);
    let codec: Arc<dyn TextCodec> = Arc::new(ByteCodec);
    let admission = RunnerAdmission::new(runner.clone(), codec.clone(), 1_024);
    let key = key(&format!("host-{index}"));
    let config = CoreConfig { allow_reset: true, ..CoreConfig::new(CHAIN, key.address(), "boot-1") };
    let rules: Box<dyn Rules> = if index + 1 == HOSTS {
        Box::new(refuses.clone())
    } else {
        Box::new(holdfast_host::session::rules::Honest)
    };
    let db = FjallDb::open(&folder.join("sessions"), "host")?;
    let core = HostCore::open(Box::new(db), key.clone(), config, rules, Box::new(admission.clone()))
        .map_err(|error| anyhow!("host {index}: {}", error.message))?;
    let config = SessionsConfig { hrp: Hrp::default(), beat: Pace::default().beat, delay: Duration::ZERO };
    let sessions = Sessions::new(config, core, key.clone(), admission, clock.clone(), escrows.clone());
    let config = HostConfig {
        chain_id: CHAIN.into(),
        hrp: Hrp::default(),
        executor: key.address(),
        models: Vec::new(),
        max_tokens: 1_024,
        pace: Pace::default(),
    };
    let host = Host::new(config, runner.clone(), Arc::new(StillHost), codec, clock).with_sessions(sessions);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tasks.spawn(async move { drop(driver.await) });
    let background = host.clone();
    tasks.spawn(async move { background.background().await });
    tasks.spawn(async move { server::serve(&host, listener, std::future::pending()).await });
    Ok((url, runner))
}

/// A gateway with both of its sessions.
async fn gateway(chain: Still, folder: &Path) -> Result<Gateway> {
    let mut settings = Settings::default();
    settings.prober.budget = 0;
    let home = folder.join("gateway");
    std::fs::create_dir_all(&home)?;
    let key = Arc::new(key("gateway"));
    let opener = CoreOpener::new(home.clone(), settings.core.clone(), key.clone(), settings.repairs);
    let journal = Journal::open(Box::new(FjallDb::open(&home.join("journal"), "gateway journal")?))?;
    let gateway = Gateway::new(Parts {
        settings,
        chain: Arc::new(chain),
        chain_id: CHAIN.into(),
        hrp: Hrp::default(),
        key,
        opener: Arc::new(opener),
        journal: Arc::new(journal),
        models: vec![WELL.1.into(), ILL.1.into()],
        clock: GatewayClock::start(),
    });
    gateway.resume().await?;
    for (escrow_id, model) in [WELL, ILL] {
        gateway.open(escrow_id).await.with_context(|| format!("the escrow of {model} does not open"))?;
    }
    gateway.begin();
    Ok(gateway)
}
