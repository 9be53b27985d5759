//! `holdfastd start`: one validator in this process, or the application behind a CometBFT node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use holdfast_app::mempool::MempoolConfig;
use holdfast_app::state::Pruning;
use holdfast_types::Address;
use tracing_subscriber::EnvFilter;

use super::error::{fail, io_failure};
use super::files::{self, HomeArgs};
use super::{app_toml, init, values, wiring};
use crate::comet::{CometConfig, ProxyAddr, Rpc};

/// Runs a node until SIGINT or SIGTERM: one validator in this process, or the application behind CometBFT
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    home: HomeArgs,
    /// Who makes blocks
    #[arg(long, env = "HOLDFASTD_ENGINE", value_name = "ENGINE", default_value = "solo")]
    engine: Engine,
    /// With --engine comet: where CometBFT finds this program, tcp://HOST:PORT or unix:///PATH, before `proxy_app` of
    /// config.toml [default: tcp://127.0.0.1:26658]
    #[arg(long, env = "HOLDFASTD_PROXY_APP", value_name = "ADDR", value_parser = ProxyAddr::parse)]
    proxy_app: Option<ProxyAddr>,
    /// With --engine comet: HOST:PORT of CometBFT's RPC, before `rpc.laddr` of config.toml [default: 127.0.0.1:26657]
    #[arg(long, env = "HOLDFASTD_RPC_LADDR", value_name = "ADDR", value_parser = values::grpc_addr)]
    rpc_laddr: Option<String>,
    /// With --engine comet: blocks CometBFT keeps at least, before `min-retain-blocks` of app.toml
    #[arg(long, env = "HOLDFASTD_MIN_RETAIN_BLOCKS", value_name = "N")]
    min_retain_blocks: Option<u64>,
    /// Heights of upgrade plans to pass over, with commas; all validators must do the same
    #[arg(long, value_name = "HEIGHTS", value_delimiter = ',')]
    unsafe_skip_upgrades: Vec<i64>,
    /// IP and port of the gRPC server, before `grpc.address` of app.toml; port 0 takes a free one
    #[arg(long, env = "HOLDFASTD_GRPC_LISTEN", value_name = "ADDR", value_parser = values::listen)]
    grpc_listen: Option<SocketAddr>,
    /// IP and port of the Prometheus endpoint; without it no metrics are kept
    #[arg(long, env = "HOLDFASTD_METRICS_LISTEN", value_name = "ADDR", value_parser = values::listen)]
    metrics_listen: Option<SocketAddr>,
    /// Seconds between two blocks, 0.01 to 3600, before `solo.block-seconds` of app.toml
    #[arg(long, env = "HOLDFASTD_BLOCK_SECONDS", value_name = "S", value_parser = values::block_time)]
    block_seconds: Option<Duration>,
    /// Least gas price such as 0.025uhold, before `minimum-gas-prices` of app.toml
    #[arg(long, env = "HOLDFASTD_MINIMUM_GAS_PRICES", value_name = "PRICE", value_parser = values::gas_price)]
    minimum_gas_prices: Option<(u128, String)>,
    /// What to log on standard error: error, warn, info, debug, trace, or pairs such as holdfast_node=debug with commas
    #[arg(long, env = "HOLDFASTD_LOG_LEVEL", value_name = "LEVEL", default_value = LOG_LEVEL, value_parser = log_level)]
    log_level: String,
}

/// Who makes blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// This process alone
    Solo,
    /// CometBFT, with this process as its application
    Comet,
}

/// What is logged unless it is said: the stores below tell much that nobody asked for.
pub(crate) const LOG_LEVEL: &str = "info,fjall=warn,lsm_tree=warn";

/// Rules of what is logged, in the form of `RUST_LOG`.
pub(crate) fn log_level(text: &str) -> Result<String, String> {
    let rule = |_| {
        "give error, warn, info, debug, trace, or pairs such as holdfast_node=debug with commas".to_owned()
    };
    EnvFilter::builder().parse(text).map(|_| text.to_owned()).map_err(rule)
}

/// All that the solo engine needs to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartConfig {
    /// Folder of the node; the state goes into `data` below it.
    pub home: PathBuf,
    /// `config/genesis.json`, read when the state is empty.
    pub genesis: PathBuf,
    /// Name of the node.
    pub moniker: String,
    /// Address of the validator's key.
    pub validator: Address,
    /// Where the gRPC server listens; port 0 takes a free one.
    pub grpc_listen: SocketAddr,
    /// Where the Prometheus endpoint listens; `None`: nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// Time between two blocks.
    pub block_time: Duration,
    /// Least gas price taken into the pool, in 10^-12 base units a gas unit.
    pub min_gas_price: u128,
    /// Limits of the pool.
    pub mempool: MempoolConfig,
    /// Heights that stay readable.
    pub pruning: Pruning,
    /// Heights between two snapshots; 0 makes none.
    pub snapshot_interval: u64,
    /// Snapshots that are kept; 0 keeps all.
    pub snapshot_keep_recent: u32,
    /// Blocks that CometBFT keeps at least; 0 keeps all.
    pub min_retain_blocks: u64,
    /// Heights of upgrade plans to pass over.
    pub skip_upgrades: Vec<i64>,
}

/// The configuration from file, environment and flags.
pub(crate) fn config(args: &StartArgs) -> Result<StartConfig> {
    let home = args.home.home()?;
    let path = home.app_toml();
    let file = app_toml::parse(&home.read(&path)?, &path)?;
    let price = args.minimum_gas_prices.clone().or(file.min_gas_price);
    let (min_gas_price, denom) = price.ok_or_else(|| {
        let text = "must be set here or by --minimum-gas-prices; \"0uhold\" takes transactions without a fee";
        fail(26, format!("{}: minimum-gas-prices", path.display()), text)
    })?;
    let genesis = wiring::read_genesis(&home)?;
    if denom != genesis.fee_denom {
        let rule = format!("{denom:?}: fees of this chain are paid in {}", genesis.fee_denom);
        return Err(fail(26, "minimum-gas-prices", rule));
    }
    files::create_dir(&home.data())?;
    Ok(StartConfig {
        moniker: file.moniker,
        validator: init::validator_address(&home)?,
        grpc_listen: args.grpc_listen.unwrap_or(file.grpc_listen),
        metrics_listen: args.metrics_listen,
        block_time: args.block_seconds.unwrap_or(file.block_time),
        min_gas_price,
        mempool: file.mempool,
        pruning: file.pruning,
        snapshot_interval: file.snapshot_interval,
        snapshot_keep_recent: file.snapshot_keep_recent,
        skip_upgrades: args.unsafe_skip_upgrades.clone(),
        min_retain_blocks: args.min_retain_blocks.unwrap_or(file.min_retain_blocks),
        genesis: home.genesis(),
        home: home.0,
    })
}

/// What CometBFT's config.toml beside app.toml says that both programs have to agree on; its defaults where it is silent.
fn comet_toml(home: &Path) -> Result<(ProxyAddr, String)> {
    let path = home.join("config/config.toml");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(io_failure(&path, &e)),
    };
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        fail(24, path.display().to_string(), format!("{}; correct the line", e.message()))
    })?;
    let bad = |key: &str, given: &str, rule: String| {
        fail(26, format!("{}: {key}", path.display()), format!("{given:?}: {rule}"))
    };
    let app = table.get("proxy_app").and_then(toml::Value::as_str).unwrap_or("tcp://127.0.0.1:26658");
    let laddr = table.get("rpc").and_then(|rpc| rpc.get("laddr")).and_then(toml::Value::as_str);
    // A wildcard is where it listens, not where it is reached.
    let laddr = laddr.unwrap_or("tcp://127.0.0.1:26657").replacen("//0.0.0.0:", "//127.0.0.1:", 1);
    Ok((
        ProxyAddr::parse(app).map_err(|rule| bad("proxy_app", app, rule))?,
        values::grpc_addr(&laddr).map_err(|rule| bad("rpc.laddr", &laddr, rule))?,
    ))
}

pub(crate) fn run(args: &StartArgs) -> Result<()> {
    let node = config(args)?;
    let log = EnvFilter::builder().parse(&args.log_level)?;
    match args.engine {
        Engine::Solo => wiring::start(node, log),
        Engine::Comet => {
            let (proxy_app, rpc) = match (&args.proxy_app, &args.rpc_laddr) {
                (Some(app), Some(rpc)) => (app.clone(), rpc.clone()),
                (app, rpc) => {
                    let file = comet_toml(&node.home)?;
                    (app.clone().unwrap_or(file.0), rpc.clone().unwrap_or(file.1))
                }
            };
            wiring::start_comet(CometConfig { node, proxy_app, rpc: Rpc::new(rpc) }, log)
        }
    }
}
