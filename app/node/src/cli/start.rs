//! `holdfastd start`: one validator in this process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use holdfast_app::mempool::MempoolConfig;
use holdfast_types::Address;
use tracing_subscriber::EnvFilter;

use super::error::fail;
use super::files::{self, HomeArgs};
use super::{app_toml, init, values, wiring};

/// Runs a node: one validator in this process, until SIGINT or SIGTERM
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    home: HomeArgs,
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
    #[arg(long, env = "HOLDFASTD_LOG_LEVEL", value_name = "LEVEL", default_value = "info,fjall=warn,lsm_tree=warn", value_parser = log_level)]
    log_level: String,
}

fn log_level(text: &str) -> Result<String, String> {
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
        validator: init::validator_key(&home)?.address(),
        grpc_listen: args.grpc_listen.unwrap_or(file.grpc_listen),
        metrics_listen: args.metrics_listen,
        block_time: args.block_seconds.unwrap_or(file.block_time),
        min_gas_price,
        mempool: file.mempool,
        genesis: home.genesis(),
        home: home.0,
    })
}

pub(crate) fn run(args: &StartArgs) -> Result<()> {
    wiring::start(config(args)?, EnvFilter::builder().parse(&args.log_level)?)
}
