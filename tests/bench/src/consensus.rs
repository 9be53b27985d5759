//! Blocks and transactions a second through real CometBFT, beside its own kvstore application in the same run.
//!
//! Ours are signed bank transfers through `holdfastd start --engine comet`, a process beside each CometBFT, on disk. The
//! kvstore's are `key=value` of the same length; it runs inside CometBFT (`--proxy_app kvstore`), in memory, and checks
//! nothing: what is left of it is CometBFT and this machine. Both networks have the same keys, ports and settings, among
//! them timeout_commit, which the rows name: with 1 ms blocks follow each other as fast as they can, with more a block
//! gathers transactions meanwhile.
//!
//! Transfers are signed before the clock and sent in batches of `broadcast_tx_async`, as many as keep every node's mempool
//! filled. Only those whose result in the block is 0 count.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_app::keys::SecretKey;
use holdfast_app::tx::{TxBuilder, pack};
use holdfast_node::devnet::genesis::DENOM;
use holdfast_node::localnet::Ports;
use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_types::Coin;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Better, Outcome, Row};

/// Set for a process of this program that is to be `holdfastd`.
pub const AS_NODE: &str = "HOLDFAST_BENCH_AS_NODE";

const GAS_LIMIT: u64 = 200_000;
const FEE: u128 = 1_000;
/// Transactions in one request.
const BATCH: usize = 100;
/// Longest wait for a network's second block.
const START: Duration = Duration::from_secs(90);
/// Longest wait for one answer.
const CALL: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// How much to do.
#[derive(Debug, Clone)]
pub struct Size {
    /// Numbers of validators.
    pub validators: &'static [usize],
    /// Settings of timeout_commit in milliseconds, at least 1.
    pub timeouts_ms: &'static [u64],
    /// Transactions signed for each network.
    pub txs: usize,
    /// A node's mempool is filled up to here, and a batch more.
    pub backlog: u64,
    /// Load before the clock.
    pub warm_up: Duration,
    /// What is measured.
    pub window: Duration,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self {
        validators: &[1, 4],
        timeouts_ms: &[1, 100],
        txs: 60_000,
        backlog: 2_000,
        warm_up: Duration::from_secs(3),
        window: Duration::from_secs(12),
    };
    /// A check that everything runs.
    pub const QUICK: Self = Self {
        validators: &[1],
        timeouts_ms: &[20],
        txs: 4_000,
        backlog: 20,
        warm_up: Duration::from_millis(100),
        window: Duration::from_millis(1_000),
    };
}

/// The programs that run.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `holdfastd`, or this program.
    pub node: PathBuf,
    /// CometBFT.
    pub cometbft: PathBuf,
}

impl Programs {
    /// This program and the CometBFT there is.
    ///
    /// # Errors
    /// No CometBFT, with how to get it.
    pub fn find() -> Result<Self> {
        Ok(Self { node: std::env::current_exe()?, cometbft: find_cometbft()? })
    }

    /// A node's program; it never outlives this one, not even when this one is killed.
    fn supervised(&self, program: &Path) -> Command {
        let mut command = self.node_command();
        command.arg("become-child").arg(std::process::id().to_string()).arg(program);
        command
    }

    /// `holdfastd`, without settings of the caller's own node.
    fn node_command(&self) -> Command {
        let mut command = Command::new(&self.node);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HOLDFASTD_") {
                command.env_remove(name);
            }
        }
        command.env(AS_NODE, "1").stdin(Stdio::null());
        command
    }
}

/// CometBFT of `HOLDFASTD_COMETBFT`, of `cargo xtask tools`, of the path, or where `go install` puts it.
fn find_cometbft() -> Result<PathBuf> {
    const REMEDY: &str = "`cargo xtask tools` installs it; or give the path of cometbft 0.38 in HOLDFASTD_COMETBFT; or run \
                          the other benchmarks with --only";
    if let Some(path) = std::env::var_os("HOLDFASTD_COMETBFT").map(PathBuf::from) {
        ensure!(path.is_file(), "HOLDFASTD_COMETBFT: {} is no file; {REMEDY}", path.display());
        return Ok(std::path::absolute(path)?);
    }
    let exe = std::env::current_exe()?;
    let mut places: Vec<PathBuf> =
        exe.ancestors().map(|above| above.join("tools/cometbft/cometbft")).collect();
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&on_path).map(|folder| folder.join("cometbft")));
    places.extend(std::env::home_dir().map(|home| home.join("go/bin/cometbft")));
    places.into_iter().find(|path| path.is_file()).with_context(|| format!("cometbft not found: {REMEDY}"))
}

/// Whose application a network runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Holdfast,
    Kvstore,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::Kvstore => "kvstore",
        }
    }
}

/// What of `testnet.json` is of use here.
#[derive(Debug, Deserialize)]
struct Manifest {
    chain_id: String,
    nodes: Vec<ManifestNode>,
    gateways: Vec<ManifestAccount>,
}

#[derive(Debug, Deserialize)]
struct ManifestNode {
    name: String,
    ports: Ports,
    account: ManifestAccount,
}

#[derive(Debug, Clone, Deserialize)]
struct ManifestAccount {
    address: String,
    mnemonic: String,
}

/// A process of a network; ends with this value.
struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(name: String, mut command: Command, log: PathBuf) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&log)?;
        command.stderr(file.try_clone()?).stdout(file);
        let child = command.spawn().with_context(|| format!("{name} does not start"))?;
        Ok(Self { name, child, log })
    }

    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read(&self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(5)..].join("\n");
            bail!("{} ended ({status}); its log ends with:\n{tail}", self.name);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing can be done about a process that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network that runs.
struct Network {
    manifest: Manifest,
    // Stopped in this order: a CometBFT takes the end of its application for a failure.
    comets: Vec<Running>,
    apps: Vec<Running>,
    // Goes last.
    _dir: TempDir,
}

impl Network {
    fn start(programs: &Programs, kind: Kind, validators: usize, timeout_ms: u64) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?;
        let net = dir.path().join("net");
        let mut testnet = programs.node_command();
        testnet.args(["testnet", "--validators", &validators.to_string(), "--key-seed", "1"]);
        testnet.args(["--timeout-commit", &timeout_ms.to_string(), "--epoch-length", "100000"]);
        testnet.args(["--base-port", &free_ports(validators)?.to_string(), "--output"]).arg(&net);
        let made = testnet.output().context("holdfastd does not start")?;
        ensure!(made.status.success(), "testnet failed: {}", String::from_utf8_lossy(&made.stderr));
        let manifest: Manifest = serde_json::from_slice(&fs::read(net.join("testnet.json"))?)?;
        let homes: Vec<PathBuf> = manifest.nodes.iter().map(|node| net.join(&node.name)).collect();
        for home in &homes {
            let path = home.join("config/config.toml");
            let settings = fs::read_to_string(&path)?;
            let rpc = format!("[rpc]\nmax_request_batch_size = {BATCH}\n");
            let settings = settings.replacen("[rpc]\n", &rpc, 1);
            fs::write(path, settings + "\n[mempool]\nsize = 20000\ncache_size = 100000\n")?;
        }
        let mut apps = Vec::new();
        if kind == Kind::Kvstore {
            let genesis = kvstore_genesis(&manifest, &homes)?.to_string();
            for home in &homes {
                fs::write(home.join("config/genesis.json"), &genesis)?;
            }
        } else {
            for (node, home) in manifest.nodes.iter().zip(&homes) {
                let mut command = programs.supervised(&programs.node);
                command.args(["start", "--engine", "comet", "--log-level", "warn", "--home"]).arg(home);
                apps.push(Running::start(format!("{} app", node.name), command, home.join("app.log"))?);
            }
            // CometBFT would try again only after three seconds.
            for (node, app) in manifest.nodes.iter().zip(&mut apps) {
                let begun = Instant::now();
                while TcpStream::connect(("127.0.0.1", node.ports.abci)).is_err() {
                    app.check()?;
                    ensure!(begun.elapsed() < START, "{} does not listen after {START:?}", app.name);
                    std::thread::sleep(POLL);
                }
            }
        }
        let mut comets = Vec::new();
        for (node, home) in manifest.nodes.iter().zip(&homes) {
            let mut command = programs.supervised(&programs.cometbft);
            command.args(["node", "--log_level", "error", "--home"]).arg(home);
            if kind == Kind::Kvstore {
                command.args(["--proxy_app", "kvstore"]);
            }
            let log = home.join("cometbft.log");
            comets.push(Running::start(format!("{} cometbft", node.name), command, log)?);
        }
        let mut network = Self { manifest, comets, apps, _dir: dir };
        let begun = Instant::now();
        for at in 0..validators {
            while network.height(at).unwrap_or(0) < 2 {
                network.check()?;
                ensure!(begun.elapsed() < START, "{}: no second block after {START:?}", kind.name());
                std::thread::sleep(POLL);
            }
        }
        Ok(network)
    }

    fn check(&mut self) -> Result<()> {
        self.apps.iter_mut().chain(&mut self.comets).try_for_each(Running::check)
    }

    fn rpc(&self, at: usize) -> Result<SocketAddr> {
        let node = self.manifest.nodes.get(at).context("no such node")?;
        Ok(SocketAddr::from(([127, 0, 0, 1], node.ports.rpc)))
    }

    fn height(&self, at: usize) -> Result<i64> {
        let status = call(self.rpc(at)?, "status", json!({}))?;
        number(&status["sync_info"]["latest_block_height"])
    }
}

/// A port from which on those of all nodes are free.
fn free_ports(validators: usize) -> Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let all = (0..validators).map(|at| Ports::of(first, at));
        let free = |ports: Ports| {
            ports.all().iter().all(|(_, port)| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        };
        if all.into_iter().all(|ports| ports.is_some_and(free)) {
            return Ok(first);
        }
    }
    bail!("no row of {} free ports was found on 127.0.0.1; stop programs that listen there", 10 * validators)
}

/// CometBFT's own genesis for the keys that are in the homes: the kvstore names no validators itself.
fn kvstore_genesis(manifest: &Manifest, homes: &[PathBuf]) -> Result<Value> {
    let mut validators = Vec::new();
    for home in homes {
        let key: Value = serde_json::from_slice(&fs::read(home.join("config/priv_validator_key.json"))?)?;
        validators
            .push(json!({ "address": key["address"], "pub_key": key["pub_key"], "power": "10", "name": "" }));
    }
    let ours: Value =
        serde_json::from_slice(&fs::read(homes.first().context("no nodes")?.join("config/genesis.json"))?)?;
    Ok(json!({ "genesis_time": ours["genesis_time"], "chain_id": manifest.chain_id, "initial_height": "1",
        "validators": validators, "app_hash": "" }))
}

fn number(value: &Value) -> Result<i64> {
    let text = value.as_str().with_context(|| format!("{value} is no number"))?;
    Ok(text.parse()?)
}

/// Sends a JSON-RPC body. HTTP/1.0: the answer ends with the connection.
fn post(addr: SocketAddr, body: &str) -> Result<Value> {
    let mut stream = TcpStream::connect_timeout(&addr, CALL)?;
    stream.set_read_timeout(Some(CALL))?;
    stream.set_write_timeout(Some(CALL))?;
    let head = format!(
        "POST / HTTP/1.0\r\nHost: {addr}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let at =
        answer.windows(4).position(|window| window == b"\r\n\r\n").context("an answer without a body")?;
    let (head, body) = answer.split_at(at + 4);
    let status = String::from_utf8_lossy(head).lines().next().unwrap_or_default().to_owned();
    serde_json::from_slice(body).with_context(|| format!("CometBFT answered {status}"))
}

/// The result of one call.
fn call(addr: SocketAddr, method: &str, params: Value) -> Result<Value> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let mut answer = post(addr, &body)?;
    ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
    Ok(answer["result"].take())
}

/// One request for each of `txs`, in their order.
fn batch(txs: &[Vec<u8>]) -> String {
    let mut body = String::from("[");
    for (id, tx) in txs.iter().enumerate() {
        if id > 0 {
            body.push(',');
        }
        body.push_str(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"broadcast_tx_async","params":{{"tx":"{}"}}}}"#,
            STANDARD.encode(tx)
        ));
    }
    body.push(']');
    body
}

/// Transactions for each node, in the order in which to send them: those of an account all go to one node.
fn transfers(manifest: &Manifest, count: usize) -> Result<Vec<Vec<Vec<u8>>>> {
    // Account numbers follow this order.
    let accounts: Vec<&ManifestAccount> =
        manifest.nodes.iter().map(|node| &node.account).chain(&manifest.gateways).collect();
    let keys: Vec<SecretKey> = accounts
        .iter()
        .map(|account| Ok(SecretKey::from_mnemonic(&account.mnemonic, 0)?))
        .collect::<Result<_>>()?;
    let mut out: Vec<Vec<Vec<u8>>> = manifest.nodes.iter().map(|_| Vec::new()).collect();
    let nodes = out.len();
    for number in 0..count {
        let (from, sequence) = (number % accounts.len(), number / accounts.len());
        let send = MsgSend {
            from_address: accounts[from].address.clone(),
            to_address: accounts[(from + 1) % accounts.len()].address.clone(),
            amount: vec![PbCoin { denom: DENOM.into(), amount: "1".into() }],
        };
        let builder = TxBuilder {
            chain_id: manifest.chain_id.clone(),
            account_number: from as u64,
            sequence: sequence as u64,
            fee: Coin { denom: DENOM.into(), amount: FEE },
            gas_limit: GAS_LIMIT,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![pack(&send)],
        };
        out[from % nodes].push(builder.sign(&keys[from]));
    }
    Ok(out)
}

/// `key=value`, as long as a transfer.
fn pairs(nodes: usize, count: usize, length: usize) -> Vec<Vec<Vec<u8>>> {
    let mut out: Vec<Vec<Vec<u8>>> = (0..nodes).map(|_| Vec::new()).collect();
    for number in 0..count {
        let mut tx = format!("{number:016x}=").into_bytes();
        tx.resize(length.max(tx.len() + 1), b'v');
        out[number % nodes].push(tx);
    }
    out
}

/// Keeps a node's mempool filled until told to stop; whether transactions ran out.
fn feed(addr: SocketAddr, txs: &[Vec<u8>], backlog: u64, stop: &AtomicBool) -> Result<bool> {
    for txs in txs.chunks(BATCH) {
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let waiting = call(addr, "num_unconfirmed_txs", json!({}))?;
            if number(&waiting["total"])?.unsigned_abs() < backlog {
                break;
            }
            std::thread::sleep(POLL);
        }
        let answers = post(addr, &batch(txs))?;
        let answers = answers.as_array().with_context(|| format!("no batch of answers: {answers}"))?;
        for answer in answers {
            ensure!(answer["error"].is_null(), "broadcast_tx_async: {}", answer["error"]);
        }
    }
    Ok(true)
}

/// What a network did.
#[derive(Debug, Clone, serde::Serialize)]
struct Rates {
    blocks_per_s: f64,
    txs_per_s: f64,
    blocks: i64,
    txs: u64,
    failed: u64,
    seconds: f64,
    tx_bytes: usize,
    ran_out: bool,
}

/// Waits for the next block; its height and the moment at which it was seen.
fn next_block(network: &mut Network, after: i64) -> Result<(i64, Instant)> {
    let begun = Instant::now();
    loop {
        let height = network.height(0)?;
        if height > after {
            return Ok((height, Instant::now()));
        }
        network.check()?;
        ensure!(begun.elapsed() < START, "no block after {after} in {START:?}");
        std::thread::sleep(POLL);
    }
}

/// Results of a block; CometBFT names the height of one that it is still executing.
fn block_results(addr: SocketAddr, height: i64) -> Result<Value> {
    let begun = Instant::now();
    loop {
        match call(addr, "block_results", json!({ "height": height.to_string() })) {
            Err(_) if begun.elapsed() < CALL => std::thread::sleep(POLL),
            done => return done,
        }
    }
}

fn measure(
    programs: &Programs,
    kind: Kind,
    size: &Size,
    validators: usize,
    timeout_ms: u64,
) -> Result<Rates> {
    let mut network = Network::start(programs, kind, validators, timeout_ms)?;
    let length = transfers(&network.manifest, 1)?[0][0].len();
    let txs = match kind {
        Kind::Holdfast => transfers(&network.manifest, size.txs)?,
        Kind::Kvstore => pairs(validators, size.txs, length),
    };
    let addrs: Vec<SocketAddr> = (0..validators).map(|at| network.rpc(at)).collect::<Result<_>>()?;
    let (stop, out) = (AtomicBool::new(false), AtomicBool::new(false));
    let (first, last) = std::thread::scope(|scope| -> Result<_> {
        let feeders: Vec<_> = addrs
            .iter()
            .zip(&txs)
            .map(|(addr, txs)| {
                let (stop, out) = (&stop, &out);
                scope.spawn(move || -> Result<()> {
                    let ran_out = feed(*addr, txs, size.backlog, stop);
                    if !matches!(ran_out, Ok(false)) {
                        out.store(true, Ordering::Relaxed);
                    }
                    ran_out.map(|_| ())
                })
            })
            .collect();
        let mut watch = || -> Result<_> {
            let warm = Instant::now();
            while warm.elapsed() < size.warm_up {
                network.check()?;
                std::thread::sleep(POLL);
            }
            let height = network.height(0)?;
            let first = next_block(&mut network, height)?;
            let mut last = next_block(&mut network, first.0)?;
            // Without load there is nothing more to see.
            while first.1.elapsed() < size.window && !out.load(Ordering::Relaxed) {
                last = next_block(&mut network, last.0)?;
            }
            Ok((first, last))
        };
        let seen = watch();
        stop.store(true, Ordering::Relaxed);
        for feeder in feeders {
            feeder.join().map_err(|_| anyhow::anyhow!("a feeder panicked"))??;
        }
        seen
    })?;
    let (mut good, mut failed) = (0_u64, 0_u64);
    for height in first.0 + 1..=last.0 {
        let results = block_results(addrs[0], height)?;
        for result in results["txs_results"].as_array().into_iter().flatten() {
            match result["code"].as_u64() {
                None | Some(0) => good += 1,
                Some(_) => failed += 1,
            }
        }
    }
    ensure!(good > 0, "{}: no transaction succeeded, {failed} failed", kind.name());
    let (blocks, seconds) = (last.0 - first.0, (last.1 - first.1).as_secs_f64());
    Ok(Rates {
        blocks_per_s: blocks as f64 / seconds,
        txs_per_s: good as f64 / seconds,
        blocks,
        txs: good,
        failed,
        seconds,
        tx_bytes: length,
        ran_out: out.load(Ordering::Relaxed),
    })
}

/// Runs both applications on every network.
pub fn run(size: &Size, programs: &Programs) -> Result<Outcome> {
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    for &validators in size.validators {
        for &timeout_ms in size.timeouts_ms {
            let ours = measure(programs, Kind::Holdfast, size, validators, timeout_ms)?;
            let theirs = measure(programs, Kind::Kvstore, size, validators, timeout_ms)?;
            let name = format!("consensus.{validators}_validators.commit_{timeout_ms}ms");
            let row = |what: &str, ours: f64, theirs: f64| {
                Row::new(&format!("{name}.{what}"), "1/s", ours).against("kvstore", theirs, Better::Higher)
            };
            rows.push(row("blocks", ours.blocks_per_s, theirs.blocks_per_s));
            rows.push(row("txs", ours.txs_per_s, theirs.txs_per_s));
            details.insert(name, json!({ "holdfast": ours, "kvstore": theirs }));
        }
    }
    Ok(Outcome { rows, details: details.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_request_for_each_transaction_in_order() {
        let parsed: Value = serde_json::from_str(&batch(&[b"a=b".to_vec(), vec![0xff, 0xfe]])).unwrap();
        assert_eq!(parsed[0]["params"]["tx"], "YT1i");
        assert_eq!((&parsed[1]["params"]["tx"], &parsed[1]["id"]), (&json!("//4="), &json!(1)));
    }

    #[test]
    fn pairs_are_as_long_as_transfers_and_all_different() {
        let pairs = pairs(2, 5, 300);
        assert_eq!((pairs[0].len(), pairs[1].len()), (3, 2));
        let mut all: Vec<Vec<u8>> = pairs.concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 5);
        for tx in &all {
            assert_eq!((tx.len(), tx.iter().filter(|byte| **byte == b'=').count()), (300, 1));
            assert!(tx.last() != Some(&b'='));
        }
    }

    /// With the programs that the tests of the whole workspace are given, on one validator.
    #[test]
    fn both_applications_make_blocks_with_transactions() {
        let Some(node) = std::env::var_os("HOLDFASTD").map(PathBuf::from) else {
            println!("not run: HOLDFASTD names no holdfastd; `cargo xtask test` sets it");
            return;
        };
        let programs = Programs { node, cometbft: find_cometbft().unwrap() };
        let outcome = run(&Size::QUICK, &programs).unwrap();
        assert_eq!(outcome.rows.len(), 2);
        assert!(outcome.rows.iter().all(|row| row.value > 0.0 && row.ratio.is_some()), "{:?}", outcome.rows);
        let ours = &outcome.details["consensus.1_validators.commit_20ms"]["holdfast"];
        assert_eq!(ours["failed"], 0, "{ours}");
    }
}
