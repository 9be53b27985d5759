//! `holdfastd testnet`: home folders of a whole network on this machine, ready to start.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use holdfast_app::composition::Composition;
use holdfast_app::keys::{SecretKey, mnemonic_from_entropy};
use holdfast_types::Hrp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::error::{fail, io_failure};
use super::files::{self, Home};
use super::keys::Keyring;
use super::output::{Format, Io};
use super::{app_toml, values, wiring};
use crate::comet::keys::{Ed25519Key, fresh_validator_state};
use crate::devnet::genesis::DENOM;
use crate::localnet::Ports;
use crate::localnet::genesis::{Chain, GATEWAYS, Member};

/// Most validators of a test network: each is two processes on this machine.
const VALIDATORS_MAX: u64 = 32;
/// Where the network's own description lies below its folder.
pub(crate) const MANIFEST: &str = "testnet.json";

/// Makes home folders for a network of CometBFT validators on this machine
#[derive(Debug, clap::Args)]
pub(crate) struct TestnetArgs {
    #[command(flatten)]
    network: NetworkArgs,
    /// New or empty folder for node0, node1 and so on
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    format: Format,
}

/// What a network is made of.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NetworkArgs {
    /// Validators, 1 to 32, all of equal weight
    #[arg(long, value_name = "N", default_value = "4", value_parser = validators)]
    pub(crate) validators: u64,
    /// Id of the chain, 3 to 50 letters, digits or '-'
    #[arg(long, env = "HOLDFASTD_CHAIN_ID", value_name = "ID", default_value = "holdfast-local-1", value_parser = values::chain_id)]
    chain_id: String,
    /// Prefix of the chain's addresses, 1 to 20 lower-case letters or digits
    #[arg(long, env = "HOLDFASTD_BECH32_PREFIX", value_name = "PREFIX", default_value = "hold", value_parser = values::hrp)]
    bech32_prefix: Hrp,
    /// First port; node I has BASE + 10 I for peers, then +1 for RPC, +2 for ABCI, +3 for gRPC
    #[arg(long, value_name = "PORT", default_value = "26656", value_parser = base_port)]
    base_port: u16,
    /// Blocks in an epoch
    #[arg(long, value_name = "N", default_value = "1000", value_parser = epoch_length)]
    epoch_length: i64,
    /// Milliseconds that CometBFT waits after a block, 1 to 60000
    #[arg(long, value_name = "MS", default_value = "500", value_parser = commit_millis)]
    timeout_commit: Duration,
    /// Seconds for votes on a governance proposal and for its deposits, 2 to 31536000; an expedited one has half of it
    /// [default: the two days of the gov module]
    #[arg(long, value_name = "S", value_parser = voting_period)]
    voting_period: Option<i64>,
    /// Blocks between two snapshots, from which other nodes join; 0 makes none
    #[arg(long, value_name = "N", default_value = "0")]
    snapshot_interval: u64,
    /// Derives every key from this number: the same keys on every run, known to everybody [default: fresh keys]
    #[arg(long, value_name = "SEED", value_parser = seed)]
    key_seed: Option<u64>,
}

fn base_port(text: &str) -> Result<u16, String> {
    let port = values::within(text, 1, u16::MAX.into())?;
    u16::try_from(port).map_err(|e| e.to_string())
}

fn validators(text: &str) -> Result<u64, String> {
    values::within(text, 1, VALIDATORS_MAX)
}

fn epoch_length(text: &str) -> Result<i64, String> {
    let blocks = values::within(text, 1, 1 << 40)?;
    i64::try_from(blocks).map_err(|e| e.to_string())
}

fn commit_millis(text: &str) -> Result<Duration, String> {
    values::within(text, 1, 60_000).map(Duration::from_millis)
}

fn voting_period(text: &str) -> Result<i64, String> {
    let seconds = values::within(text, 2, 31_536_000)?;
    i64::try_from(seconds).map_err(|e| e.to_string())
}

fn seed(text: &str) -> Result<u64, String> {
    values::within(text, 0, u64::MAX)
}

/// An account of the network; a test key, its secret is in the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ManifestAccount {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) mnemonic: String,
}

/// A node of the network.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ManifestNode {
    /// Also the name of its folder.
    pub(crate) name: String,
    pub(crate) ports: Ports,
    pub(crate) node_id: String,
    /// Upper-case hex.
    pub(crate) validator_address: String,
    /// The participant.
    pub(crate) account: ManifestAccount,
}

/// `testnet.json`: what `localnet` and tests need to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) chain_id: String,
    pub(crate) bech32_prefix: String,
    pub(crate) nodes: Vec<ManifestNode>,
    /// Accounts with coins and no other part.
    pub(crate) gateways: Vec<ManifestAccount>,
}

impl Manifest {
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let text = std::fs::read_to_string(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                let text =
                    "not found: the folder is not empty and no test network; give a new or empty folder";
                fail(23, path.display().to_string(), text)
            }
            _ => io_failure(&path, &e),
        })?;
        serde_json::from_str(&text).map_err(|e| {
            let text = format!("{e}; make the network anew in an empty folder");
            fail(26, path.display().to_string(), text)
        })
    }
}

/// Every secret of a network, from one seed.
struct Secrets([u8; 32]);

impl Secrets {
    fn new(seed: Option<u64>) -> Result<Self> {
        match seed {
            Some(seed) => Ok(Self(Sha256::digest(seed.to_be_bytes()).into())),
            None => wiring::randomness().map(Self),
        }
    }

    fn bytes(&self, label: &str) -> [u8; 32] {
        let digest = Sha256::new().chain_update(b"holdfast/testnet/v1").chain_update(self.0);
        digest.chain_update(label.as_bytes()).finalize().into()
    }

    fn consensus(&self, label: &str) -> Ed25519Key {
        Ed25519Key::from_seed(self.bytes(label))
    }

    fn account(&self, name: &str, hrp: &Hrp) -> Result<(SecretKey, ManifestAccount)> {
        let mnemonic = mnemonic_from_entropy(&self.bytes(name))?;
        let key = SecretKey::from_mnemonic(&mnemonic, 0)?;
        let address = key.address().to_bech32(hrp);
        Ok((key, ManifestAccount { name: name.to_owned(), address, mnemonic }))
    }
}

/// Checks that nobody listens on a node's ports.
pub(crate) fn check_ports<'a>(nodes: impl IntoIterator<Item = (&'a str, Ports)>) -> Result<()> {
    for (name, ports) in nodes {
        for (what, port) in ports.all() {
            if let Err(e) = TcpListener::bind(("127.0.0.1", port)) {
                let text = format!(
                    "{name} needs port {port} for {what}: {e}; stop the program that uses it, or make the network with \
                     another --base-port"
                );
                return Err(fail(81, format!("127.0.0.1:{port}"), text));
            }
        }
    }
    Ok(())
}

/// CometBFT's settings, those of a test network only.
fn config_toml(node: &ManifestNode, peers: &str, timeout_commit: Duration) -> String {
    let Ports { p2p, rpc, abci, .. } = node.ports;
    let (name, millis) = (&node.name, timeout_commit.as_millis());
    format!(
        r#"# CometBFT 0.38. A key that is not here has CometBFT's default; `cometbft init` in an empty folder shows them all.

moniker = "{name}"
# Where holdfastd listens: `holdfastd start --engine comet` takes it from here.
proxy_app = "tcp://127.0.0.1:{abci}"

[rpc]
laddr = "tcp://127.0.0.1:{rpc}"

[p2p]
laddr = "tcp://127.0.0.1:{p2p}"
persistent_peers = "{peers}"
# All nodes share one address, and one that is not on the internet.
allow_duplicate_ip = true
addr_book_strict = false

[consensus]
# Wait after a block, so that late votes still count; the least time between two blocks.
timeout_commit = "{millis}ms"
"#
    )
}

/// Makes the network in `dir`, which is new or empty. All that can be refused is refused before the first write.
pub(crate) fn create(args: &NetworkArgs, dir: &Path) -> Result<Manifest> {
    if dir.as_os_str().is_empty() || (dir.exists() && !dir.is_dir()) {
        return Err(fail(
            12,
            "--output",
            format!("{:?} is no folder; give a folder", dir.display().to_string()),
        ));
    }
    if !files::is_vacant(dir)? {
        return Err(fail(22, dir.display().to_string(), "is not empty; give a new or empty folder"));
    }
    let (hrp, secrets) = (&args.bech32_prefix, Secrets::new(args.key_seed)?);
    let count = usize::try_from(args.validators).unwrap_or(usize::MAX);
    let (mut nodes, mut members, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..count {
        let name = format!("node{index}");
        let Some(ports) = Ports::of(args.base_port, index) else {
            let text = format!("{}: {count} nodes need ports up to 65535", args.base_port);
            return Err(fail(12, "--base-port", text));
        };
        let validator = secrets.consensus(&format!("{name}/validator"));
        let peer = secrets.consensus(&format!("{name}/peer"));
        let (key, account) = secrets.account(&format!("validator{index}"), hrp)?;
        members.push(Member { address: key.address(), validator_key: validator.public_key() });
        let validator_address = hex::encode_upper(validator.address().0);
        nodes.push(ManifestNode { name, ports, node_id: peer.node_id(), validator_address, account });
        keys.push((validator, peer, key));
    }
    check_ports(nodes.iter().map(|node| (node.name.as_str(), node.ports)))?;
    let gateways: Vec<(SecretKey, ManifestAccount)> =
        (0..GATEWAYS).map(|n| secrets.account(&format!("gateway{n}"), hrp)).collect::<Result<_>>()?;
    let doc = Chain {
        chain_id: args.chain_id.clone(),
        hrp: hrp.clone(),
        genesis_time: wiring::fresh_genesis(&args.chain_id, hrp)?.genesis_time,
        epoch_length: args.epoch_length,
        voting_period: args.voting_period,
        members,
        gateways: gateways.iter().map(|(key, _)| key.address()).collect(),
    };
    let doc = doc.document().map_err(|e| fail(27, "genesis", e.to_string()))?;
    doc.validate(&Composition::default()).map_err(|e| fail(27, "genesis", e.to_string()))?;
    let genesis = doc.to_json()?;

    let ids: Vec<String> =
        nodes.iter().map(|node| format!("{}@127.0.0.1:{}", node.node_id, node.ports.p2p)).collect();
    for (index, (node, (validator, peer, account))) in nodes.iter().zip(&keys).enumerate() {
        let home = Home(dir.join(&node.name));
        files::create_dir(&home.config())?;
        files::create_dir(&home.data())?;
        let write = |path: PathBuf, text: &str, secret| files::write_whole(&path, text.as_bytes(), secret);
        let peers = ids.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, id)| id.as_str());
        let peers = peers.collect::<Vec<_>>().join(",");
        write(home.config().join("config.toml"), &config_toml(node, &peers, args.timeout_commit), false)?;
        let app = app_toml::fresh(&node.name, DENOM)
            .replacen("\"127.0.0.1:9090\"", &format!("\"127.0.0.1:{}\"", node.ports.grpc), 1)
            .replacen("snapshot-interval = 0", &format!("snapshot-interval = {}", args.snapshot_interval), 1);
        write(home.app_toml(), &app, false)?;
        write(home.genesis(), &genesis, false)?;
        write(home.config().join("node_key.json"), &peer.node_json(), true)?;
        write(home.validator_key(), &validator.validator_json(), true)?;
        write(home.validator_state(), &fresh_validator_state(), true)?;
        let keyring = Keyring::new(&home);
        keyring.add(&node.account.name, account)?;
        for (key, account) in &gateways {
            keyring.add(&account.name, key)?;
        }
    }
    let manifest = Manifest {
        chain_id: args.chain_id.clone(),
        bech32_prefix: hrp.as_str().to_owned(),
        nodes,
        gateways: gateways.into_iter().map(|(_, account)| account).collect(),
    };
    // Last: a folder with it is whole.
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    files::write_whole(&dir.join(MANIFEST), text.as_bytes(), true)?;
    Ok(manifest)
}

pub(crate) fn run(args: &TestnetArgs, io: &mut Io<'_>) -> Result<()> {
    let manifest = create(&args.network, &args.output)?;
    let accounts = manifest.nodes.iter().map(|node| &node.account).chain(&manifest.gateways);
    let accounts: Vec<_> =
        accounts.map(|account| json!({ "name": account.name, "address": account.address })).collect();
    let home = |node: &ManifestNode| args.output.join(&node.name).display().to_string();
    let nodes: Vec<_> = manifest
        .nodes
        .iter()
        .map(|node| {
            json!({
                "home": home(node),
                "rpc": format!("127.0.0.1:{}", node.ports.rpc),
                "grpc": format!("127.0.0.1:{}", node.ports.grpc),
                "validator_address": node.validator_address,
            })
        })
        .collect();
    let value = json!({
        "chain_id": manifest.chain_id,
        "nodes": nodes,
        "accounts": accounts,
        // With the mnemonics of all accounts.
        "description": args.output.join(MANIFEST).display().to_string(),
    });
    io.print(&value, args.format)
}
