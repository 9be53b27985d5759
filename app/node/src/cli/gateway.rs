//! `holdfastd gateway`: spends escrows over groups of hosts and speaks the OpenAI API; and the verbs of its operator.

mod api_keys;
mod operate;
mod refusals;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use holdfast_app::grpc::ChainError;
use holdfast_gateway::chain::{GrpcChain, NewEscrow};
use holdfast_gateway::core::OpenError;
use holdfast_gateway::driver::{
    self, Clock, CoreOpener, Gateway, GatewayError, Journal, JournalError, Parts, StraysError,
};
use holdfast_gateway::openai::{self, Api, ApiConfig, KeyConfig, Limits, MemBudgets, Seams};
use holdfast_gateway::service::{self, OperatorToken, Operators};
use holdfast_gateway::settings::{Connections, Offer, Prober, Rotation, Settings};
use holdfast_host::store::{DbError, FjallDb, LocalDb};
use holdfast_types::{Coin, Hrp};
use metrics_exporter_prometheus::PrometheusBuilder;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::interval;
use tracing_subscriber::EnvFilter;

use super::error::{fail, in_use};
use super::files::{HomeArgs, create_dir};
use super::keys::{Keyring, PrefixArgs};
use super::output::{Format, Io};
use super::{start, values, wiring};
use crate::solo::Signals;
use refusals::{creation_remedy, unreadable};

/// Between two tidyings of histograms.
const TIDY: Duration = Duration::from_secs(5);

/// Spends escrows over groups of hosts by signed diffs, and serves applications by an OpenAI-compatible API
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    verb: Option<operate::GatewayVerb>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Name or address of the key that signs diffs, settlements and probes
    #[arg(long, alias = "key", env = "HOLDFASTD_FROM", value_name = "KEY", required = true)]
    from: Option<String>,
    #[command(flatten)]
    home: HomeArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
    /// Host and port of the gRPC server of a node
    #[arg(long, alias = "node", env = "HOLDFASTD_GRPC_ADDR", value_name = "ADDR", default_value = "127.0.0.1:9090", value_parser = values::grpc_addr)]
    grpc_addr: String,
    /// Ids of the models to serve, with commas
    #[arg(
        long,
        alias = "model",
        env = "HOLDFASTD_GATEWAY_MODELS",
        value_name = "IDS",
        value_delimiter = ',',
        required = true
    )]
    models: Vec<String>,
    /// Ids of escrows to spend, with commas; those of an earlier start are taken up again by themselves
    #[arg(long, env = "HOLDFASTD_GATEWAY_ESCROWS", value_name = "IDS", value_delimiter = ',', value_parser = id)]
    escrow: Vec<u64>,
    /// Create an escrow of this many base units for each model that has none here
    #[arg(long, env = "HOLDFASTD_GATEWAY_CREATE", value_name = "AMOUNT", value_parser = amount)]
    create: Option<u128>,
    /// Take up escrows whose sessions are in the data folder and whose journal was lost; what API keys spent counts from 0
    #[arg(long, env = "HOLDFASTD_GATEWAY_ADOPT")]
    adopt: bool,
    /// Slots of the group of an escrow that is created
    #[arg(long, env = "HOLDFASTD_GATEWAY_SLOTS", value_name = "N", default_value = "4", value_parser = slots)]
    slots: u32,
    /// IP or localhost, and port, for applications; port 0 takes a free one
    #[arg(long, env = "HOLDFASTD_GATEWAY_HTTP", value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = values::listen)]
    http: SocketAddr,
    /// IP or localhost, and port, for hosts and operators; port 0 takes a free one
    #[arg(long, env = "HOLDFASTD_GATEWAY_GRPC", value_name = "ADDR", default_value = "127.0.0.1:9300", value_parser = values::listen)]
    grpc: SocketAddr,
    /// URL at which hosts reach --grpc, written into escrows that are created [default: http:// and --grpc]
    #[arg(long, env = "HOLDFASTD_GATEWAY_URL", value_name = "URL", value_parser = url)]
    gateway_url: Option<String>,
    /// File with the token that operators give; without it no verb is taken
    #[arg(long, env = "HOLDFASTD_OPERATOR_TOKEN_FILE", value_name = "FILE")]
    operator_token_file: Option<PathBuf>,
    /// TOML file with API keys; without it the API is open to whoever reaches it
    #[arg(long, env = "HOLDFASTD_GATEWAY_API_KEYS", value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// Folder of sessions and what belongs to them [default: data/gateway in the home folder]
    #[arg(long, env = "HOLDFASTD_GATEWAY_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Fee of each transaction, such as 10uhold [default: none]
    #[arg(long, env = "HOLDFASTD_FEES", value_name = "COIN", value_parser = values::coin)]
    fees: Option<Coin>,
    /// Base units that further escrows may cost in all, opened before the old one ends; 0 opens none
    #[arg(long, env = "HOLDFASTD_GATEWAY_ROTATION_BUDGET", value_name = "AMOUNT", default_value = "0", value_parser = amount_or_none)]
    rotation_budget: u128,
    /// Base units that probes of excluded members may cost in all; 0 sends none
    #[arg(long, env = "HOLDFASTD_GATEWAY_PROBE_BUDGET", value_name = "AMOUNT", default_value = "1000000", value_parser = amount_or_none)]
    probe_budget: u128,
    /// Tokens of prompt and answer together that the models take
    #[arg(long, env = "HOLDFASTD_GATEWAY_CONTEXT_LENGTH", value_name = "N", default_value = "4096", value_parser = values::max_tokens)]
    context_length: u32,
    /// Most bytes of text that one token of the models stands for; 0 for unknown
    #[arg(long, env = "HOLDFASTD_GATEWAY_TOKEN_BYTES_MAX", value_name = "N", default_value = "0", value_parser = token_bytes)]
    token_bytes_max: u32,
    /// Longest answer in tokens of a request that sets no limit
    #[arg(long, env = "HOLDFASTD_GATEWAY_MAX_TOKENS", value_name = "N", default_value = "1024", value_parser = values::max_tokens)]
    max_tokens: u32,
    /// Seconds from a request to the end of its answer at most
    #[arg(long, env = "HOLDFASTD_GATEWAY_DEADLINE", value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    deadline: u64,
    /// Origins whose pages may use the API, with commas, such as https://app.example
    #[arg(long, env = "HOLDFASTD_GATEWAY_CORS_ORIGINS", value_name = "ORIGINS", value_delimiter = ',', value_parser = origin)]
    cors_origins: Vec<String>,
    /// Ask a host that holds another state to drop it and learn anew; hosts refuse unless they allow it too
    #[arg(long, env = "HOLDFASTD_GATEWAY_ALLOW_RESET")]
    allow_reset: bool,
    /// Seconds of attempts after which the repair of a host is given up
    #[arg(long, env = "HOLDFASTD_GATEWAY_GIVE_UP", value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    give_up: u64,
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
    /// What to log on standard error: error, warn, info, debug, trace, or pairs such as holdfast_gateway=debug with commas
    #[arg(long, env = "HOLDFASTD_LOG_LEVEL", value_name = "LEVEL", default_value = start::LOG_LEVEL, value_parser = start::log_level)]
    log_level: String,
}

fn id(text: &str) -> Result<u64, String> {
    values::within(text, 1, u64::MAX)
}

fn amount_or_none(text: &str) -> Result<u128, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| "give a whole number of base units".to_owned())
}

fn amount(text: &str) -> Result<u128, String> {
    amount_or_none(text).ok().filter(|n| *n > 0).ok_or_else(|| "give base units, at least 1".to_owned())
}

fn slots(text: &str) -> Result<u32, String> {
    values::within_u32(text, 1, 128)
}

fn token_bytes(text: &str) -> Result<u32, String> {
    values::within_u32(text, 0, 1024)
}

fn seconds(text: &str) -> Result<u64, String> {
    values::within(text, 1, 86_400)
}

fn url(text: &str) -> Result<String, String> {
    match text.parse::<http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some() => Ok(text.to_owned()),
        _ => Err("give an http URL, such as http://127.0.0.1:9300".to_owned()),
    }
}

fn origin(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains(['/', '*', ' ']) => Ok(text.to_owned()),
        _ => Err("give a scheme and a host, such as https://app.example".to_owned()),
    }
}

pub(crate) fn run(args: &GatewayArgs, io: &mut Io<'_>) -> Result<()> {
    match &args.verb {
        Some(verb) => operate::run(verb, io),
        None => {
            let log = EnvFilter::builder().parse(&args.run.log_level)?;
            wiring::worker(log, serve(&args.run, io))
        }
    }
}

async fn serve(args: &RunArgs, io: &mut Io<'_>) -> Result<()> {
    // Before the line: whoever reads it may send a signal at once.
    let mut signals = Signals::new()?;
    let home = args.home.home()?;
    let hrp = args.prefix.hrp(&home)?;
    let from = args.from.as_deref().ok_or_else(|| fail(14, "--from", "give the gateway's key"))?;
    let key = Arc::new(Keyring::new(&home).find(from, &hrp)?);
    let token = args.operator_token_file.as_deref().map(operate::token).transpose()?;
    let keys = args.api_keys.as_deref().map(api_keys::read).transpose()?.unwrap_or_default();

    let data = args.data.clone().unwrap_or_else(|| home.data().join("gateway"));
    create_dir(&data)?;
    // Its lock is the lock of the folder.
    let folder = data.join("journal");
    let open_journal =
        move || FjallDb::open(&folder, "gateway journal").map(|db| -> Box<dyn LocalDb> { Box::new(db) });
    let journal = Arc::new(Journal::reopening(open_journal).map_err(|e| journal_failure(&data, &e))?);
    let strays = strays(args, &data, &journal)?;
    let connections = connections();

    let http = TcpListener::bind(args.http).await.map_err(|e| in_use("--http", args.http, &e))?;
    let grpc = TcpListener::bind(args.grpc).await.map_err(|e| in_use("--grpc", args.grpc, &e))?;
    let (http_addr, grpc_addr) = (http.local_addr()?, grpc.local_addr()?);

    let fee = args.fees.clone().unwrap_or(Coin { denom: "none".into(), amount: 0 });
    let chain = GrpcChain::connect(&args.grpc_addr, Arc::clone(&key), hrp.clone(), fee).await;
    let chain = chain.map_err(chain_failure)?;
    let chain_id = chain.chain_id().to_owned();
    let gateway_url = args.gateway_url.clone().unwrap_or_else(|| format!("http://{grpc_addr}"));
    let settings = settings(args, &gateway_url);
    let opener = CoreOpener::new(data.clone(), settings.core.clone(), Arc::clone(&key), settings.repairs);
    let gateway = Gateway::new(Parts {
        settings,
        chain: Arc::new(chain),
        chain_id: chain_id.clone(),
        hrp: hrp.clone(),
        key: Arc::clone(&key),
        opener: Arc::new(opener),
        journal: Arc::clone(&journal),
        models: args.models.clone(),
        clock: Clock::start(),
    });
    let opened = tokio::select! {
        opened = open(args, &hrp, &gateway, &gateway_url, &strays) => opened,
        signal = signals.next() => Err(fail(51, "gateway", format!("interrupted by {signal} before it was ready"))),
    };
    if let Err(error) = opened {
        gateway.stop().await;
        return Err(error);
    }
    if keys.is_empty() {
        tracing::warn!("gateway_api_open: without --api-keys whoever reaches --http spends the escrows");
    }
    gateway.begin();

    let prometheus =
        PrometheusBuilder::new().install_recorder().map_err(|e| fail(83, "metrics", e.to_string()))?;
    let api = api(args, &hrp, keys, &gateway, &journal, connections, prometheus.clone())?;
    let (stop, stopped) = watch::channel(false);
    let told = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let ended = gateway.clone();
    let ending = async move { ended.stop().await };
    let mut applications = tokio::spawn(openai::serve(api, http, told(stopped.clone()), ending));
    let operators = Operators::new(gateway.clone(), token).with_connections(connections.grpc);
    let (close, closed) = watch::channel(false);
    let operators = tokio::spawn(service::serve(operators, grpc, told(closed)));
    let tidy = tokio::spawn(async move {
        let mut ticks = interval(TIDY);
        loop {
            ticks.tick().await;
            prometheus.run_upkeep();
        }
    });

    let me = key.address().to_bech32(&hrp);
    let escrows = gateway.escrows();
    match args.output {
        Format::Json => {
            let value = json!({
                "http": http_addr.to_string(),
                "grpc": grpc_addr.to_string(),
                "gateway": me,
                "chain_id": chain_id,
                "models": args.models,
                "escrows": escrows,
                "data": data.display().to_string(),
            });
            writeln!(io.out, "{value}")?;
        }
        Format::Text => {
            let (models, escrows) = (args.models.join(", "), list(&escrows));
            writeln!(
                io.out,
                "gateway {me} serves {models} on http://{http_addr}/v1, hosts and operators on {grpc_addr}, escrows {escrows}, chain {chain_id}"
            )?;
        }
    }
    io.out.flush()?;

    let signal = signals.next().await;
    tracing::info!(signal, "gateway: takes no more requests, lets answers end");
    let _ = stop.send(true);
    tokio::select! {
        _ = &mut applications => {}
        signal = signals.next() => {
            tracing::warn!(signal, "gateway: stops at once");
            gateway.stop().await;
            let _ = tokio::time::timeout(openai::LAST_WORD, applications).await;
        }
    }
    gateway.stop().await;
    let _ = close.send(true);
    let _ = operators.await;
    tidy.abort();
    Ok(())
}

/// Escrows of the folder that its journal does not know: to be taken up with `--adopt`, refused without.
fn strays(args: &RunArgs, data: &Path, journal: &Journal) -> Result<Vec<u64>> {
    let strays = driver::strays(data, journal).map_err(|error| match error {
        StraysError::Folder(error) => fail(96, "--data", format!("{}: {error}", data.display())),
        StraysError::Journal(error) => journal_failure(data, &error),
    })?;
    if strays.is_empty() || args.adopt {
        return Ok(strays);
    }
    let text = format!(
        "{}: holds sessions of escrow {}, and a journal that does not know them: it was lost, and with it what API keys \
         spent and which payments are owed; restore the folder from a backup, take the escrows up again with --adopt, or \
         give an empty folder",
        data.display(),
        list(&strays)
    );
    Err(fail(96, "--data", text))
}

/// As many connections as the system allows, with a reserve of file descriptors for hosts, chain and stores.
fn connections() -> Connections {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let most = Rlimit { current: limit.maximum, ..limit };
        match setrlimit(Resource::Nofile, most) {
            Ok(()) => limit = getrlimit(Resource::Nofile),
            Err(error) => tracing::warn!(%error, "the limit of open files was not raised"),
        }
    }
    let connections = Connections::within(limit.current.unwrap_or(u64::MAX));
    if connections != Connections::within(u64::MAX) {
        let Connections { http, grpc } = connections;
        tracing::warn!(open_files = limit.current, http, grpc, "gateway_connections_lowered");
    }
    connections
}

fn settings(args: &RunArgs, gateway_url: &str) -> Settings {
    let mut settings = Settings::default();
    settings.core.allow_reset = args.allow_reset;
    settings.core.give_up_ms = args.give_up.saturating_mul(1000);
    settings.core.give_up_floor_ms = settings.core.give_up_floor_ms.min(settings.core.give_up_ms);
    settings.offer = Offer { context_length: args.context_length, token_bytes_max: args.token_bytes_max };
    settings.rotation = Rotation {
        budget: args.rotation_budget,
        amount: args.create.unwrap_or(0),
        slots: if args.create.is_some() { args.slots } else { 0 },
        gateway_url: gateway_url.to_owned(),
        ..settings.rotation
    };
    settings.prober = Prober { budget: args.probe_budget, ..settings.prober };
    settings
}

/// Opens what there is, what is named, and what is to be created.
async fn open(args: &RunArgs, hrp: &Hrp, gateway: &Gateway, gateway_url: &str, strays: &[u64]) -> Result<()> {
    gateway.resume().await.map_err(|e| gateway_failure(hrp, "gateway", e))?;
    for id in strays {
        match gateway.open(*id).await {
            Ok(()) => tracing::warn!(escrow = id, "gateway_escrow_adopted"),
            Err(GatewayError::Ended(_)) => {}
            Err(error) => return Err(gateway_failure(hrp, "--adopt", error)),
        }
    }
    for id in &args.escrow {
        gateway.open(*id).await.map_err(|e| gateway_failure(hrp, "--escrow", e))?;
    }
    if let Some(amount) = args.create {
        for model in args.models.iter().filter(|model| !gateway.serves(model)) {
            let new = NewEscrow {
                model: model.clone(),
                amount,
                slots: args.slots,
                gateway_url: gateway_url.to_owned(),
            };
            match gateway.create_first(new).await {
                Ok(id) => tracing::info!(escrow = id, model, "gateway_escrow_created"),
                // Other models are served all the same.
                Err(error @ GatewayError::Unopened { .. }) if !gateway.escrows().is_empty() => {
                    tracing::error!(model, %error, "gateway_escrow_not_created");
                }
                Err(error) => return Err(gateway_failure(hrp, "--create", error)),
            }
        }
    }
    if gateway.escrows().is_empty() {
        for model in &args.models {
            let ids = gateway.unopened(model);
            if !ids.is_empty() {
                let error = GatewayError::Unopened { model: model.clone(), ids };
                return Err(gateway_failure(hrp, "--data", error));
            }
        }
        let text = "this gateway has no open escrow; name one, or let --create AMOUNT make one";
        return Err(fail(14, "--escrow", text));
    }
    Ok(())
}

fn api(
    args: &RunArgs,
    hrp: &Hrp,
    keys: Vec<KeyConfig>,
    gateway: &Gateway,
    journal: &Arc<Journal>,
    connections: Connections,
    prometheus: metrics_exporter_prometheus::PrometheusHandle,
) -> Result<Arc<Api>> {
    let config = ApiConfig {
        hrp: hrp.clone(),
        keys,
        cors_origins: args.cors_origins.clone(),
        default_max_tokens: args.max_tokens,
        deadline: Duration::from_secs(args.deadline),
        limits: Limits { connections: connections.http, ..Limits::default() },
    };
    let seams = Seams {
        sessions: Arc::new(gateway.clone()),
        // Without keys nobody has a budget.
        budgets: if config.keys.is_empty() { Arc::new(MemBudgets::default()) } else { journal.clone() },
        replies: journal.clone(),
        metrics: Arc::new(move || prometheus.render()),
    };
    Api::new(config, seams).map_err(|e| match e {
        openai::ApiConfigError::DuplicateKey(_) => fail(12, "--api-keys", e.to_string()),
        _ => fail(96, "--data", e.to_string()),
    })
}

fn list(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn store_failure(data: &Path, error: &DbError) -> anyhow::Error {
    match error {
        DbError::Locked { .. } => {
            let text = format!(
                "{}: another gateway has it open; stop that one, or give another --data",
                data.display()
            );
            fail(22, "--data", text)
        }
        error => fail(96, "--data", error.to_string()),
    }
}

fn journal_failure(data: &Path, error: &JournalError) -> anyhow::Error {
    match error {
        JournalError::Db(error) => store_failure(data, error),
        error => fail(96, "--data", error.to_string()),
    }
}

fn chain_failure(error: ChainError) -> anyhow::Error {
    match error {
        ChainError::Unreachable(text) => {
            fail(41, "--grpc-addr", format!("{text}; start a node, or give the address of one"))
        }
        ChainError::Refused { .. } => fail(42, "--grpc-addr", error.to_string()),
    }
}

fn gateway_failure(hrp: &Hrp, field: &str, error: GatewayError) -> anyhow::Error {
    use holdfast_gateway::chain::DeliverError;
    match error {
        GatewayError::Chain(error) => chain_failure(error),
        GatewayError::Deliver(DeliverError::Chain(ChainError::Unreachable(text))) => {
            chain_failure(ChainError::Unreachable(text))
        }
        GatewayError::Deliver(DeliverError::Chain(error)) => {
            let (field, remedy) = creation_remedy(field, &error);
            fail(43, field, format!("{error}{remedy}"))
        }
        GatewayError::Deliver(error @ DeliverError::Void { .. }) => fail(44, field, error.to_string()),
        GatewayError::NotOurs { escrow_id, expected, found } => {
            let (expected, found) = (expected.to_bech32(hrp), found.to_bech32(hrp));
            let text = format!(
                "wrong_key: escrow {escrow_id} names the gateway {expected}, the key of --from is {found}; give the other key"
            );
            fail(97, field, text)
        }
        error @ GatewayError::TooSmall { .. } => fail(12, field, error.to_string()),
        GatewayError::Open { source: OpenError::Storage(_), .. }
        | GatewayError::Journal(_)
        | GatewayError::Unopened { .. } => fail(96, "--data", error.to_string()),
        error => fail(97, field, error.to_string()),
    }
}

/// The token in a file, without white space around it.
pub(super) fn operator_token(path: &Path, text: &str) -> Result<OperatorToken> {
    OperatorToken::new(text.trim())
        .map_err(|e| fail(12, "--operator-token-file", format!("{}: {e}", path.display())))
}
