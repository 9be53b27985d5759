//! `holdfastd localnet`: a network of validators on this machine, made if need be, started and watched; with `--gateway` a
//! gateway and its hosts instead.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_app::keys::SecretKey;
use holdfast_types::Hrp;
use serde_json::json;

use super::error::{fail, io_failure};
use super::files;
use super::localnet_gateway::{self, GatewayArgs};
use super::testnet::{self, Manifest, NetworkArgs};
use super::{values, wiring};
use crate::localnet::{LocalnetConfig, Node, Sender};

/// Runs a network on this machine, with a load: CometBFT validators, until SIGINT or a height; or a gateway and its hosts
#[derive(Debug, clap::Args)]
pub(crate) struct LocalnetArgs {
    /// Folder of the network; a new or empty one gets a new network, else it goes on
    #[arg(value_name = "DIR", required_unless_present = "gateway")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    network: NetworkArgs,
    /// Stop when every node has reached this height
    #[arg(long, value_name = "N", value_parser = blocks)]
    blocks: Option<u64>,
    /// File for the result: height and app hashes of each node; with --gateway requests, coins and hosts
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Send no transactions
    #[arg(long)]
    no_load: bool,
    /// Seed of the load
    #[arg(long, value_name = "N", default_value = "1", value_parser = seed)]
    pub(super) seed: u64,
    /// CometBFT's program [default: cometbft on the PATH, or where `go install` puts it]
    #[arg(long, env = "HOLDFASTD_COMETBFT", value_name = "PATH")]
    cometbft: Option<PathBuf>,
}

/// Becomes another program that ends with its parent; used by `localnet`
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct BecomeChildArgs {
    /// Process id of the parent
    parent: u32,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

fn blocks(text: &str) -> Result<u64, String> {
    values::within(text, 1, 1 << 40)
}

fn seed(text: &str) -> Result<u64, String> {
    values::within(text, 0, u64::MAX)
}

/// The program given, or the first one found.
fn find_cometbft(given: Option<&Path>) -> Result<PathBuf> {
    let remedy = "install it with `go install github.com/cometbft/cometbft/cmd/cometbft@v0.38.26`, or give its path \
                  with --cometbft or HOLDFASTD_COMETBFT";
    if let Some(path) = given {
        if path.is_file() {
            return std::path::absolute(path).map_err(|e| io_failure(path, &e));
        }
        return Err(fail(82, "--cometbft", format!("{} is no file; {remedy}", path.display())));
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&on_path).collect();
    folders.extend(std::env::var_os("GOBIN").map(PathBuf::from));
    folders.extend(std::env::var_os("GOPATH").map(|path| PathBuf::from(path).join("bin")));
    folders.extend(std::env::home_dir().map(|home| home.join("go/bin")));
    let found = folders.into_iter().map(|folder| folder.join("cometbft")).find(|path| path.is_file());
    found.ok_or_else(|| fail(82, "cometbft", format!("not found; {remedy}")))
}

pub(crate) fn run(args: &LocalnetArgs, words: &[String]) -> Result<()> {
    if args.gateway.gateway {
        if let Some(dir) = &args.dir {
            let text =
                format!("{}: --gateway makes its own network; give its folder with --home", dir.display());
            return Err(fail(15, "DIR", text));
        }
        return localnet_gateway::run(args, &args.gateway, words);
    }
    let dir = args.dir.as_deref().ok_or_else(|| fail(14, "DIR", "give a folder"))?;
    let cometbft = find_cometbft(args.cometbft.as_deref())?;
    let holdfastd = std::env::current_exe().map_err(|e| io_failure("holdfastd".as_ref(), &e))?;
    if let Some(file) = &args.json
        && file.is_dir()
    {
        return Err(fail(12, "--json", format!("{} is a folder; give a file", file.display())));
    }
    let manifest = if files::is_vacant(dir)? {
        testnet::create(&args.network, dir)?
    } else {
        let manifest = Manifest::read(dir)?;
        testnet::check_ports(manifest.nodes.iter().map(|node| (node.name.as_str(), node.ports)))?;
        manifest
    };
    let dir = std::path::absolute(dir).map_err(|e| io_failure(dir, &e))?;
    let sender = |mnemonic: &str| {
        let key = SecretKey::from_mnemonic(mnemonic, 0);
        let file = || dir.join(testnet::MANIFEST).display().to_string();
        key.map(|key| Sender { key }).map_err(|e| fail(26, file(), e.to_string()))
    };
    let hrp = Hrp::new(&manifest.bech32_prefix);
    let config = LocalnetConfig {
        chain_id: manifest.chain_id.clone(),
        hrp: hrp.map_err(|e| fail(26, "bech32_prefix", e.to_string()))?,
        nodes: manifest
            .nodes
            .iter()
            .map(|node| Node { name: node.name.clone(), home: dir.join(&node.name), ports: node.ports })
            .collect(),
        participants: manifest
            .nodes
            .iter()
            .map(|node| sender(&node.account.mnemonic))
            .collect::<Result<_>>()?,
        gateways: manifest.gateways.iter().map(|account| sender(&account.mnemonic)).collect::<Result<_>>()?,
        holdfastd,
        cometbft,
        until: args.blocks.map(|blocks| i64::try_from(blocks).unwrap_or(i64::MAX)),
        collect: args.json.is_some(),
        load: (!args.no_load).then_some(args.seed),
    };
    let reports = wiring::localnet(&config)?;
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&json!({ "nodes": reports }))? + "\n";
        files::write_whole(file, text.as_bytes(), false)?;
    }
    let shown: Vec<String> =
        reports.iter().map(|report| format!("{} at height {}", report.name, report.height)).collect();
    Ok(crate::say::line(format_args!("stopped: {}", shown.join(", ")))?)
}

#[cfg(unix)]
pub(crate) fn become_child(args: &BecomeChildArgs) -> Result<()> {
    let Some((program, rest)) = args.command.split_first() else {
        return Err(fail(14, "COMMAND", "give a program"));
    };
    let error = crate::localnet::child::become_child(args.parent, program, rest);
    Err(io_failure(Path::new(program), &error))
}
