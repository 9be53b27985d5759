//! `holdfastd localnet --gateway`: folders, keys and genesis of a gateway's network, and its run.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use holdfast_app::composition::Composition;
use holdfast_app::keys::SecretKey;
use holdfast_types::Hrp;

use super::backend::{Backend, BackendArgs};
use super::error::{fail, io_failure};
use super::files::{self, Home};
use super::keys::Keyring;
use super::localnet::LocalnetArgs;
use super::{app_toml, values, wiring};
use crate::comet::keys::fresh_validator_state;
use crate::devnet::genesis::DENOM;
use crate::localnet::gateway::faults::{self, Fault};
use crate::localnet::gateway::genesis::{Chain, REFERENCE};
use crate::localnet::gateway::{GatewayNet, HostPlan};

/// Most hosts: each is a process of its own, with its workers.
const HOSTS_MAX: u64 = 64;
/// Highest nonce of a session at most.
const NONCES: (u64, u64) = (20_000, 10_000_000);
/// Nonces that a request may take.
const NONCES_A_REQUEST: u64 = 20;

/// What a gateway's network is made of.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayArgs {
    /// A chain, a gateway and its hosts instead of validators, each in processes of its own
    #[arg(long)]
    pub(super) gateway: bool,
    /// With --gateway: hosts, 1 to 64, one slot each [default: 4]
    #[arg(long, value_name = "N", requires = "gateway", value_parser = hosts)]
    hosts: Option<u64>,
    /// With --gateway: requests of the load; 0 sends none and runs until SIGINT [default: 200]
    #[arg(long, value_name = "R", requires = "gateway", value_parser = requests)]
    requests: Option<u64>,
    /// With --gateway: requests at a time [default: 4]
    #[arg(long, value_name = "N", requires = "gateway", value_parser = clients)]
    clients: Option<u64>,
    /// With --gateway: requests a second at most [default: as fast as the clients go]
    #[arg(long, value_name = "N", requires = "gateway", value_parser = rate)]
    rate: Option<u64>,
    /// With --gateway: every so-manieth client leaves after its first token [default: none]
    #[arg(long, value_name = "N", requires = "gateway", value_parser = cancels)]
    cancel_every: Option<u64>,
    /// With --gateway: what goes wrong, as fork:host2@nonce40,restart-empty:host3@nonce60,slow:host0@200ms,lie:host1@nonce30
    #[arg(long, value_name = "SPEC", requires = "gateway", value_parser = fault_spec)]
    fault: Option<Faults>,
    /// With --gateway: gateway and hosts agree to drop a replica whose state is another
    #[arg(long, requires = "gateway")]
    allow_reset: bool,
    /// With --gateway: what hosts compute with, reference or candle [default: reference]
    #[arg(long, value_name = "NAME", requires = "gateway", value_parser = own_backend)]
    backend: Option<Backend>,
    /// With --gateway: GGUF file of --backend candle; its name without ending is the model's on the chain
    #[arg(long, value_name = "FILE", requires = "gateway")]
    model: Option<PathBuf>,
    /// With --gateway: worker processes of each host; 0 lets hosts compute themselves [default: 1]
    #[arg(long, value_name = "N", requires = "gateway", value_parser = workers)]
    workers: Option<u32>,
    /// With --gateway: new or empty folder for homes and logs [default: a temporary one]
    #[arg(long, value_name = "DIR", requires = "gateway")]
    home: Option<PathBuf>,
    /// With --gateway: folder for report.json, timeline.svg and report.html
    #[arg(long, value_name = "DIR", requires = "gateway")]
    report: Option<PathBuf>,
    /// With --gateway: IP and port of the HTTP API; port 0 takes a free one [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR", requires = "gateway", value_parser = values::listen)]
    http: Option<SocketAddr>,
    /// With --gateway: seconds between two blocks, 0.01 to 3600 [default: 0.3]
    #[arg(long, value_name = "S", requires = "gateway", value_parser = block_seconds)]
    block_seconds: Option<String>,
    /// With --gateway: plain lines instead of the live view
    #[arg(long, requires = "gateway")]
    headless: bool,
    /// Another argument of the gateway, once for each
    #[arg(long, value_name = "ARG", requires = "gateway", allow_hyphen_values = true, hide = true)]
    gateway_arg: Vec<String>,
    /// Another argument of each host, once for each
    #[arg(long, value_name = "ARG", requires = "gateway", allow_hyphen_values = true, hide = true)]
    host_arg: Vec<String>,
}

/// Faults as one value of a flag.
#[derive(Debug, Clone)]
struct Faults(Vec<Fault>);

fn fault_spec(text: &str) -> Result<Faults, String> {
    faults::parse(text).map(Faults)
}

fn hosts(text: &str) -> Result<u64, String> {
    values::within(text, 1, HOSTS_MAX)
}

fn requests(text: &str) -> Result<u64, String> {
    values::within(text, 0, NONCES.1 / NONCES_A_REQUEST)
}

fn clients(text: &str) -> Result<u64, String> {
    values::within(text, 1, 1_000)
}

fn rate(text: &str) -> Result<u64, String> {
    values::within(text, 1, 100_000)
}

fn cancels(text: &str) -> Result<u64, String> {
    values::within(text, 2, 1 << 40)
}

fn workers(text: &str) -> Result<u32, String> {
    values::within_u32(text, 0, 4)
}

/// A backend that needs no other server.
fn own_backend(text: &str) -> Result<Backend, String> {
    let known = [Backend::Reference, Backend::Candle];
    known.into_iter().find(|known| known.name() == text).ok_or_else(|| "give reference or candle".into())
}

/// The model's name on the chain.
fn model_name(backend: &BackendArgs) -> String {
    let stem = backend.model.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy());
    let usual = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    match stem {
        Some(stem) => stem.chars().map(usual).take(64).collect(),
        None => REFERENCE.to_owned(),
    }
}

fn block_seconds(text: &str) -> Result<String, String> {
    values::block_time(text).map(|_| text.to_owned())
}

/// So many ports that nobody listens on now, all different.
fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    let bound: std::io::Result<Vec<TcpListener>> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect();
    let addrs: std::io::Result<Vec<SocketAddr>> =
        bound.and_then(|bound| bound.iter().map(TcpListener::local_addr).collect());
    addrs.map_err(|e| super::in_use("localnet", "127.0.0.1:0", &e))
}

fn write_home(home: &Home, moniker: &str, genesis: &str) -> Result<()> {
    files::create_dir(&home.config())?;
    files::create_dir(&home.data())?;
    files::write_whole(&home.app_toml(), app_toml::fresh(moniker, DENOM).as_bytes(), false)?;
    files::write_whole(&home.genesis(), genesis.as_bytes(), false)
}

/// The network's folders in `root`, which is new or empty.
fn create(args: &LocalnetArgs, net: &GatewayArgs, root: &Path, words: &[String]) -> Result<GatewayNet> {
    let count = usize::try_from(net.hosts.unwrap_or(4)).unwrap_or(usize::MAX);
    let faults = net.fault.clone().map(|faults| faults.0).unwrap_or_default();
    faults::check(&faults, count).map_err(|rule| fail(12, "--fault", rule))?;
    let mut ports = free_ports(count.saturating_add(1))?.into_iter();
    let gateway_grpc = ports.next().context("a port")?;
    let key = wiring::fresh_key()?.0;
    let keys: Vec<SecretKey> = (0..count).map(|_| Ok(wiring::fresh_key()?.0)).collect::<Result<_>>()?;
    let hosts: Vec<HostPlan> = keys
        .iter()
        .zip(ports)
        .enumerate()
        .map(|(index, (key, listen))| {
            let name = format!("host{index}");
            HostPlan { address: key.address(), home: root.join(&name), name, listen }
        })
        .collect();
    let model = net.model.as_deref().map(std::path::absolute).transpose();
    let model = model.map_err(|e| io_failure(net.model.as_deref().unwrap_or(Path::new("--model")), &e))?;
    let backend = BackendArgs::of(net.backend.unwrap_or(Backend::Reference), model);
    let (context, token_bytes) = backend.limits()?;
    let model = model_name(&backend);
    let requests = net.requests.unwrap_or(200);
    let chain_id = "holdfast-local-1";
    let chain = Chain {
        chain_id,
        genesis_time: wiring::fresh_genesis(chain_id, &Hrp::default())?.genesis_time,
        model: &model,
        gateway: &key,
        hosts: keys.iter().zip(&hosts).map(|(key, host)| (key, format!("http://{}", host.listen))).collect(),
        max_nonce: requests.saturating_mul(NONCES_A_REQUEST).clamp(NONCES.0, NONCES.1),
    };
    let doc = chain.document().map_err(|e| fail(27, "genesis", e.to_string()))?;
    doc.validate(&Composition::default()).map_err(|e| fail(27, "genesis", e.to_string()))?;
    let genesis = doc.to_json()?;

    let home = Home(root.join("chain"));
    write_home(&home, "localnet", &genesis)?;
    let validator = wiring::fresh_consensus_key()?;
    files::write_whole(&home.validator_key(), validator.validator_json().as_bytes(), true)?;
    files::write_whole(&home.validator_state(), fresh_validator_state().as_bytes(), true)?;
    let home = Home(root.join("gateway"));
    write_home(&home, "gateway", &genesis)?;
    Keyring::new(&home).add("gateway", &key)?;
    let operator_token = hex::encode(wiring::randomness()?);
    files::write_whole(&home.0.join("operator-token"), format!("{operator_token}\n").as_bytes(), true)?;
    for (host, key) in hosts.iter().zip(&keys) {
        let home = Home(host.home.clone());
        write_home(&home, &host.name, &genesis)?;
        Keyring::new(&home).add(&host.name, key)?;
    }
    Ok(GatewayNet {
        holdfastd: std::env::current_exe().map_err(|e| io_failure("holdfastd".as_ref(), &e))?,
        home: root.to_path_buf(),
        temporary: net.home.is_none(),
        chain_id: chain_id.to_owned(),
        block_seconds: net.block_seconds.clone().unwrap_or_else(|| "0.3".into()),
        key,
        gateway_grpc,
        gateway_http: net.http.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        operator_token,
        hosts,
        workers: net.workers.unwrap_or(1),
        model,
        backend: backend.words(),
        context,
        token_bytes,
        faults,
        allow_reset: net.allow_reset,
        requests,
        clients: usize::try_from(net.clients.unwrap_or(4)).unwrap_or(1),
        rate: net.rate.unwrap_or(0),
        cancel_every: net.cancel_every.unwrap_or(0),
        seed: args.seed,
        report: net.report.clone(),
        headless: net.headless,
        command: words.join(" "),
        gateway_args: net.gateway_arg.clone(),
        host_args: net.host_arg.clone(),
    })
}

pub(crate) fn run(args: &LocalnetArgs, net: &GatewayArgs, words: &[String]) -> Result<()> {
    if let Some(file) = args.json.as_deref().filter(|file| file.is_dir()) {
        return Err(fail(12, "--json", format!("{} is a folder; give a file", file.display())));
    }
    if let Some(folder) = &net.report {
        // Found out now, not after the run.
        let writable = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        writable.map_err(|e| io_failure(folder, &e))?;
    }
    let temporary = match &net.home {
        Some(home) if home.exists() && !home.is_dir() => {
            return Err(fail(12, "--home", format!("{} is no folder; give a folder", home.display())));
        }
        Some(home) if !files::is_vacant(home)? => {
            return Err(fail(22, home.display().to_string(), "is not empty; give a new or empty folder"));
        }
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("holdfast-localnet-").tempdir()?),
    };
    let root = net.home.as_deref().or(temporary.as_ref().map(tempfile::TempDir::path)).context("a folder")?;
    let root = std::path::absolute(root).map_err(|e| io_failure(root, &e))?;
    let plan = create(args, net, &root, words)?;
    let ended = wiring::gateway_net(&plan);
    if let (Err(_), Some(kept)) = (&ended, temporary) {
        // The logs say why.
        crate::say::notice(format_args!("logs are kept in {}", kept.keep().display()));
    }
    let Some(outcome) = ended? else { return Ok(()) };
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&outcome)? + "\n";
        files::write_whole(file, text.as_bytes(), false)?;
    }
    match (outcome.coins.settled, outcome.coins.conserved) {
        (true, true) => Ok(()),
        (false, true) => Err(fail(
            98,
            "localnet",
            "the escrow was not settled in time: too few hosts sign its end; the chain still holds its coins",
        )),
        (_, false) => Err(fail(98, "localnet", "balances of the chain are not what the settlement says")),
    }
}
