//! Four validators beside real CometBFT processes: kills, a node that joins late, votes, proofs, an upgrade.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_app::state::jmt_spec;
use holdfast_proto::Message;
use ics23::HostFunctionsManager;
use serde_json::{Value, json};
use tendermint::block::signed_header::SignedHeader;
use tendermint::validator;
use tendermint_light_client_verifier::options::Options;
use tendermint_light_client_verifier::types::{TrustThreshold, TrustedBlockState, UntrustedBlockState};
use tendermint_light_client_verifier::{ProdVerifier, Verdict, Verifier};

use crate::process::{self, Running, built, until};

/// Limit of whatever needs some blocks; the machine may be busy.
const BLOCKS: Duration = Duration::from_secs(180);
const CHAIN: &str = "holdfast-local-1";
/// Outcomes that the breaker of genesis waits for before it judges by their rate.
const SAMPLES: i64 = 1_000;
/// What the network is made of.
const NETWORK: [&str; 10] = [
    "--validators",
    "4",
    "--voting-period",
    "15",
    "--snapshot-interval",
    "10",
    "--timeout-commit",
    "200",
    "--key-seed",
    "7",
];
/// The governance account under the prefix `hold`.
const GOV: &str = "hold10d07y265gmmuvt4z0w9aw880jnsr700j20qjjm";

fn cometbft() -> PathBuf {
    let named = std::env::var_os("HOLDFASTD_COMETBFT").map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        built().parent().map(PathBuf::from).unwrap_or_default().join("tools/cometbft/cometbft")
    });
    assert!(path.is_file(), "{} is missing: run `cargo xtask tools`", path.display());
    path
}

/// The binary with one upgrade more.
fn next() -> PathBuf {
    let path = std::env::var_os("HOLDFASTD_NEXT").map(PathBuf::from);
    let path = path.unwrap_or_else(|| built().join("holdfastd-next"));
    assert!(path.is_file(), "{} is missing: run `cargo build`, or `cargo xtask test`", path.display());
    path
}

/// A port from which on sixty are free, below those that the system gives out itself. Each call begins to look elsewhere: tests
/// run beside each other, and a network binds its ports only some time after it was given them.
fn free_ports() -> u16 {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let first = (std::process::id() % 180) as u16 + 60 * call;
    let bases = (0..60_u16).map(|n| 20_000 + (first + n) % 180 * 60);
    let free = |base: &u16| (*base..base + 60).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    bases.into_iter().find(free).expect("sixty free ports in a row")
}

/// Asks CometBFT's RPC; `None` while it does not answer.
fn rpc(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let body = text.split_once("\r\n\r\n")?.1;
    let mut answer: Value = serde_json::from_str(body).ok()?;
    assert!(answer["error"].is_null(), "{path}: {}", answer["error"]);
    Some(answer["result"].take())
}

fn number(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no number: {value}"))
}

fn height(port: u16) -> i64 {
    rpc(port, "/status").map_or(0, |status| number(&status["sync_info"]["latest_block_height"]))
}

#[track_caller]
fn reach(port: u16, at: i64) {
    until(BLOCKS, &format!("height {at} at port {port}"), || (height(port) >= at).then_some(()));
}

/// The app hash after `height`, as the header of the next block has it.
fn app_hash(port: u16, height: i64) -> String {
    let path = format!("/commit?height={}", height + 1);
    let commit = until(BLOCKS, &path, || rpc(port, &path));
    commit["signed_header"]["header"]["app_hash"].as_str().expect("a hash").to_owned()
}

struct Network {
    dir: tempfile::TempDir,
    base: u16,
    supervisor: Option<Running>,
}

impl Network {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut network = Self { dir, base: free_ports(), supervisor: None };
        let (path, base) = (network.path().display().to_string(), network.base.to_string());
        let made = ["testnet", "--output", &path, "--base-port", &base];
        process::holdfast(&[&made[..], &NETWORK].concat()).ok();
        (0..4).for_each(|n| network.patient(n));
        network.run(&process::holdfastd(), &[]);
        network
    }

    /// Genesis of a node with a breaker that waits for more outcomes than there will be: kills and a busy machine cost the
    /// load answers, and how many is not for this test to foresee. And with one that holds nobody in.
    fn patient(&self, n: usize) {
        let path = self.node(n).join("config/genesis.json");
        let text = std::fs::read_to_string(&path).expect("genesis");
        let mut genesis: Value = serde_json::from_str(&text).expect("JSON");
        let validation = &mut genesis["app_state"]["inference"]["params"]["validation"];
        for (field, value) in [
            ("health_cb_min_samples", json!(SAMPLES.to_string())),
            ("health_cb_consecutive_misses", json!(0)),
            ("health_cb_max_excluded_weight_pct", json!(100)),
        ] {
            let set = &mut validation[field];
            assert!(!set.is_null(), "{field} is not in {}", path.display());
            *set = value;
        }
        std::fs::write(&path, genesis.to_string()).expect("genesis");
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("net")
    }

    fn node(&self, n: usize) -> PathBuf {
        self.path().join(format!("node{n}"))
    }

    fn rpc(&self, n: usize) -> u16 {
        self.base + 10 * n as u16 + 1
    }

    fn grpc(&self, n: usize) -> String {
        format!("127.0.0.1:{}", self.base + 10 * n as u16 + 3)
    }

    /// Supervises the network with `program`.
    fn run(&mut self, program: &Path, more: &[&str]) {
        let mut command = Command::new(program);
        command.arg("localnet").arg(self.path());
        command.args(more).env("HOLDFASTD_COMETBFT", cometbft()).env("NO_COLOR", "1");
        self.supervisor = Some(Running::start(&mut command));
    }

    /// Processes of a node: `start` of the app, or `node` of CometBFT.
    fn pids(&self, n: usize, verb: &str) -> Vec<u32> {
        let home = self.node(n).display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("a process table").flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let words: Vec<_> = line.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
            if words.iter().any(|word| *word == home) && words.get(1).is_some_and(|word| word == verb) {
                found.push(pid);
            }
        }
        found
    }

    fn kill(&self, n: usize, verb: &str) {
        for pid in self.pids(n, verb) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }

    /// A transaction of the validator behind node `n`, in a block.
    #[track_caller]
    fn tx(&self, n: usize, from: &str, words: &[&str]) -> Value {
        let (home, grpc) = (self.node(n).display().to_string(), self.grpc(n));
        let mut args = vec!["tx"];
        args.extend(words);
        args.extend(["--from", from, "--home", &home, "--grpc-addr", &grpc]);
        args.extend(["--gas", "auto", "-y", "--wait=60", "-o", "json"]);
        // The load uses these accounts too, so a sequence may be taken in between; clients ask again and sign anew.
        let started = Instant::now();
        loop {
            let ran = process::run(&mut process::command(&args), BLOCKS);
            let taken = [&ran.out, &ran.err].iter().any(|text| text.contains("account sequence mismatch"));
            if !taken || started.elapsed() > BLOCKS {
                let answer = ran.json();
                assert_eq!(answer["code"], 0, "{answer}");
                return answer;
            }
        }
    }

    #[track_caller]
    fn query(&self, n: usize, words: &[&str]) -> Value {
        let grpc = self.grpc(n);
        let mut args = vec!["query"];
        args.extend(words);
        args.extend(["--grpc-addr", &grpc, "-o", "json"]);
        process::run(&mut process::command(&args), BLOCKS).json()
    }

    fn min_samples(&self, n: usize, at: i64) -> i64 {
        let params = self.query(n, &["inference", "params", "--height", &at.to_string()]);
        number(&params["params"]["validation"]["health_cb_min_samples"])
    }

    /// Address of an account of `testnet.json`.
    fn address(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path().join("testnet.json")).expect("testnet.json");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let rows = all["nodes"].as_array().expect("nodes").iter().map(|node| &node["account"]);
        let rows = rows.chain(all["accounts"].as_array().into_iter().flatten());
        let mut rows = rows.chain(all["gateways"].as_array().into_iter().flatten());
        let row = rows.find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {all}"));
        row["address"].as_str().expect("an address").to_owned()
    }

    /// A proposal of these messages, voted for by all; the height at which it is decided.
    #[track_caller]
    fn pass(&self, id: i64, messages: &Value) -> i64 {
        let messages = messages.to_string();
        let deposit = ["--initial-deposit", "10000000uhold", "--title", "T", "--summary", "S"];
        let mut words = vec!["gov", "submit-proposal", "--messages", &messages, "--metadata", "M"];
        words.extend(deposit);
        let made = number(&self.tx(0, "validator0", &words)["height"]);
        // A node that has stored a block may still be executing it; with the next one it has committed it.
        (0..4).for_each(|n| reach(self.rpc(n), made + 1));
        let id = id.to_string();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (id, voter) = (&id, format!("validator{n}"));
                scope.spawn(move || {
                    self.tx(n, &voter, &["gov", "vote", "--proposal-id", id, "--option", "yes"])
                });
            }
        });
        until(BLOCKS, "the vote is decided", || {
            let status = self.query(0, &["gov", "proposal", "--proposal-id", &id]);
            let status = status["proposal"]["status"].as_str().expect("a status").to_owned();
            if status == "PROPOSAL_STATUS_PASSED" {
                return Some(());
            }
            assert_eq!(status, "PROPOSAL_STATUS_VOTING_PERIOD");
            std::thread::sleep(Duration::from_millis(300));
            None
        });
        // The block that decided: the first one after which the proposal has passed.
        let mut decided = height(self.rpc(0));
        let passed = |at: i64| {
            let at = at.to_string();
            let proposal = self.query(0, &["gov", "proposal", "--proposal-id", &id, "--height", &at]);
            proposal["proposal"]["status"] == "PROPOSAL_STATUS_PASSED"
        };
        while passed(decided - 1) {
            decided -= 1;
        }
        decided
    }

    /// An executor gets one inference and reports that it failed; the block of the report.
    #[track_caller]
    fn fail_once(&self, id: &str, n: usize) -> i64 {
        let (executor, gateway) = (format!("validator{n}"), self.address("gateway0"));
        let assigned = self.address(&executor);
        let hash = "07".repeat(32);
        let start = [
            "inference",
            "start-inference",
            "--requested-by",
            &gateway,
            "--inference-id",
            id,
            "--model",
            "model-a",
            "--assigned-to",
            &assigned,
            "--prompt-hash",
            &hash,
            "--prompt-tokens",
            "10",
            "--max-tokens",
            "10",
        ];
        let started = self.tx(0, "gateway0", &start);
        reach(self.rpc(n), number(&started["height"]) + 1);
        let reported =
            self.tx(n, &executor, &["inference", "report-failure", "--inference-id", id, "--kind", "1"]);
        number(&reported["height"])
    }

    fn state_of(&self, n: usize, executor: usize, at: i64) -> String {
        let address = self.address(&format!("validator{executor}"));
        let at = at.to_string();
        let words =
            ["breaker", "circuit-breaker", "--participant", &address, "--model", "model-a", "--height", &at];
        let answer = self.query(n, &words);
        answer["entry"]["state"].as_str().or(answer["state"].as_str()).unwrap_or("").to_owned()
    }
}

/// A failed run tells what its processes said last.
impl Drop for Network {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let tail = |text: &str| text.lines().rev().take(5).map(str::to_owned).collect::<Vec<_>>();
        let show = |name: String, text: &str| {
            println!("== {name}");
            tail(text).iter().rev().for_each(|line| println!("{line}"));
        };
        if let Some(supervisor) = &self.supervisor {
            show("localnet".into(), &supervisor.out());
            show("localnet, errors".into(), &supervisor.err());
        }
        for n in 0..4 {
            for log in ["app.log", "cometbft.log"] {
                let text = std::fs::read(self.node(n).join(log)).unwrap_or_default();
                show(format!("node{n}/{log}"), &String::from_utf8_lossy(&text));
            }
        }
    }
}

/// A fifth node: no validator, joined from the others' snapshots.
struct Late {
    home: PathBuf,
    app: Running,
    comet: Running,
    rpc: u16,
}

impl Late {
    fn join(network: &Network) -> Self {
        let home = network.path().join("late");
        let text = home.display().to_string();
        process::holdfast(&["init", "late", "--home", &text, "--chain-id", CHAIN]).ok();
        let config = home.join("config");
        std::fs::copy(network.node(0).join("config/genesis.json"), config.join("genesis.json"))
            .expect("genesis");
        let base = network.base + 50;
        let trusted = until(BLOCKS, "a block to trust", || rpc(network.rpc(0), "/commit?height=2"));
        let hash =
            trusted["signed_header"]["commit"]["block_id"]["hash"].as_str().expect("a hash").to_owned();
        let peers: Vec<String> = (0..4)
            .map(|n| {
                let status = rpc(network.rpc(n), "/status").expect("it runs");
                let id = status["node_info"]["id"].as_str().expect("an id").to_owned();
                format!("{id}@127.0.0.1:{}", network.base + 10 * n as u16)
            })
            .collect();
        let toml = format!(
            "proxy_app = \"tcp://127.0.0.1:{}\"\nmoniker = \"late\"\n[rpc]\nladdr = \"tcp://127.0.0.1:{}\"\n[p2p]\n\
             laddr = \"tcp://127.0.0.1:{base}\"\npersistent_peers = \"{}\"\nallow_duplicate_ip = true\n\
             addr_book_strict = false\n[statesync]\nenable = true\nrpc_servers = \"127.0.0.1:{},127.0.0.1:{}\"\n\
             trust_height = 2\ntrust_hash = \"{hash}\"\ndiscovery_time = \"5s\"\n",
            base + 2,
            base + 1,
            peers.join(","),
            network.rpc(0),
            network.rpc(1),
        );
        std::fs::write(config.join("config.toml"), toml).expect("config.toml");
        let grpc = format!("127.0.0.1:{}", base + 3);
        let start = ["start", "--engine", "comet", "--home", &text, "--grpc-listen", &grpc];
        let gas = ["--minimum-gas-prices", "0uhold"];
        let app = Running::start(process::command(&start).args(gas));
        let comet = Running::start(Command::new(cometbft()).args(["node", "--home", &text]));
        Self { home, app, comet, rpc: base + 1 }
    }
}

/// Header, votes and validators of a height, as a light client fetches them.
fn light_block(port: u16, at: i64) -> (SignedHeader, validator::Set, validator::Set) {
    let validators = |at: i64| {
        let path = format!("/validators?height={at}&per_page=100");
        let rows = until(BLOCKS, &path, || rpc(port, &path));
        let infos: Vec<validator::Info> =
            serde_json::from_value(rows["validators"].clone()).expect("validators");
        validator::Set::without_proposer(infos)
    };
    let path = format!("/commit?height={at}");
    let commit = until(BLOCKS, &path, || rpc(port, &path).filter(|commit| commit["canonical"] == true));
    let header = serde_json::from_value(commit["signed_header"].clone()).expect("a signed header");
    (header, validators(at), validators(at + 1))
}

/// The app hash after `at`, believed only because the validators trusted at height 2 lead to the header that has it.
fn verified_app_hash(port: u16, at: i64) -> Vec<u8> {
    let (trusted, _, trusted_next) = light_block(port, 2);
    let (header, validators, next) = light_block(port, at + 1);
    let options = Options {
        trust_threshold: TrustThreshold::TWO_THIRDS,
        trusting_period: Duration::from_secs(86_400),
        clock_drift: Duration::from_secs(10),
    };
    let verify = |header: &SignedHeader| {
        ProdVerifier::default().verify_update_header(
            UntrustedBlockState {
                signed_header: header,
                validators: &validators,
                next_validators: Some(&next),
            },
            TrustedBlockState {
                chain_id: &trusted.header.chain_id,
                header_time: trusted.header.time,
                height: trusted.header.height,
                next_validators: &trusted_next,
                next_validators_hash: trusted.header.next_validators_hash,
            },
            &options,
            tendermint::Time::now(),
        )
    };
    assert_eq!(verify(&header), Verdict::Success, "header {}", at + 1);
    // A header whose app hash was changed does not pass.
    let mut forged = header.clone();
    forged.header.app_hash = vec![7; 32].try_into().expect("a hash");
    assert_ne!(verify(&forged), Verdict::Success);
    header.header.app_hash.as_bytes().to_vec()
}

/// Key of a breaker entry: collection 01, epoch, model with its end mark, address.
fn entry_key(model: &str, address: &str) -> Vec<u8> {
    let address: cosmrs::AccountId = address.parse().expect("an address");
    [&[1][..], &0_u64.to_be_bytes(), model.as_bytes(), &[0, 1], &address.to_bytes()].concat()
}

/// Asks the node for a value with its proof and believes it only if the proof leads to `app_hash`.
#[track_caller]
fn proven(port: u16, key: &[u8], at: i64, app_hash: &[u8]) -> Option<Vec<u8>> {
    let path =
        format!("/abci_query?path=\"/store/breaker/key\"&data=0x{}&height={at}&prove=true", hex::encode(key));
    let answer = until(BLOCKS, &path, || rpc(port, &path));
    let response = &answer["response"];
    assert_eq!(response["code"], 0, "{response}");
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64");
    let ops = response["proofOps"]["ops"].as_array().expect("two operations");
    let kinds: Vec<_> = ops.iter().map(|op| op["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds, ["ics23:jmt", "ics23:simple"]);
    let proof =
        |n: usize| ics23::CommitmentProof::decode(bytes(&ops[n]["data"]).as_slice()).expect("a proof");
    let (leaf, module) = (proof(0), proof(1));
    let root = |proof: &ics23::ExistenceProof| {
        ics23::calculate_existence_root::<HostFunctionsManager>(proof).expect("a root")
    };
    use ics23::commitment_proof::Proof;
    let tree = match leaf.proof.as_ref().expect("a proof") {
        Proof::Exist(proof) => root(proof),
        Proof::Nonexist(proof) => root(proof.left.as_ref().or(proof.right.as_ref()).expect("a neighbour")),
        other => panic!("{other:?}"),
    };
    let (spec, app_hash) = (ics23::tendermint_spec(), app_hash.to_vec());
    assert!(ics23::verify_membership::<HostFunctionsManager>(&module, &spec, &app_hash, b"breaker", &tree));
    let value = bytes(&response["value"]);
    if value.is_empty() {
        assert!(ics23::verify_non_membership::<HostFunctionsManager>(&leaf, &jmt_spec(), &tree, key));
        return None;
    }
    assert!(ics23::verify_membership::<HostFunctionsManager>(&leaf, &jmt_spec(), &tree, key, &value));
    Some(value)
}

fn kills() -> usize {
    std::env::var("HOLDFAST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Blocks the network makes at least; 200 in the long run.
fn least_blocks() -> i64 {
    std::env::var("HOLDFAST_BLOCKS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn four_validators_go_through_kills_votes_proofs_and_an_upgrade_with_one_state() {
    let mut network = Network::start();
    until(BLOCKS, "the network is set up", || network.path().join("testnet.json").is_file().then_some(()));
    for n in 0..4 {
        reach(network.rpc(n), 3);
    }

    // One validator gone with all it has, and one application alone: both come back by a restart and nothing else.
    network.kill(3, "start");
    network.kill(3, "node");
    let during = height(network.rpc(0));
    reach(network.rpc(0), during + 3);
    network.kill(2, "start");
    for n in [2, 3] {
        reach(network.rpc(n), height(network.rpc(0)));
    }

    // Kills of one application at any instant, while the others go on.
    let mut random = u64::from(std::process::id()) | 1;
    println!("seed {random}");
    for _ in 0..kills() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(50 + (random >> 33) % 850));
        network.kill(1, "start");
    }
    reach(network.rpc(1), height(network.rpc(0)));

    // The fifth one finds a snapshot; it never executes the first blocks.
    reach(network.rpc(0), 14);
    let mut late = Late::join(&network);
    let started = Instant::now();
    until(BLOCKS, "the late node follows", || {
        if started.elapsed() > BLOCKS - Duration::from_secs(5) {
            panic!("{}\n{}", late.app.err(), late.comet.out());
        }
        assert!(late.app.runs() && late.comet.runs(), "{}\n{}", late.app.err(), late.comet.out());
        let status = rpc(late.rpc, "/status")?;
        let synced = status["sync_info"]["catching_up"] == false;
        (synced && number(&status["sync_info"]["latest_block_height"]) > 10).then_some(())
    });
    let status = rpc(late.rpc, "/status").expect("it runs");
    assert!(number(&status["sync_info"]["earliest_block_height"]) > 1, "{status}");

    // A bad change does not get as far as a vote.
    let change = |samples: i64| {
        json!([{
            "@type": "/holdfast.inference.v1.MsgUpdateParams",
            "authority": GOV,
            "params": {"validation": {"health_cb_min_samples": samples.to_string(), "health_cb_miss_threshold_pct": 0}},
            "update_mask": "validation.healthCbMinSamples,validation.healthCbMissThresholdPct",
        }])
    };
    let (home, grpc) = (network.node(0).display().to_string(), network.grpc(0));
    let bad = change(0).to_string();
    let words = [
        "tx",
        "gov",
        "submit-proposal",
        "--messages",
        &bad,
        "--title",
        "T",
        "--summary",
        "S",
        "--metadata",
        "M",
        "--initial-deposit",
        "10000000uhold",
        "--from",
        "validator0",
        "--home",
        &home,
        "--grpc-addr",
        &grpc,
        "--gas",
        "auto",
        "-y",
    ];
    process::holdfast(&words).refused(1, &["gov 12", "health_cb_min_samples"]);

    // No failure is too much before the vote. After it any miss is: the executor is out with the first outcome that is judged
    // under the new rule, in one block on every node.
    let failed = network.fail_once("before-the-vote", 2);
    let decided = network.pass(1, &change(1));
    assert!(failed <= decided);
    let out = |n: usize, at: i64| network.state_of(n, 2, at).contains("EXCLUDED");
    let mut after = until(BLOCKS, "an exclusion under the new rule", || {
        let now = height(network.rpc(0)) - 1;
        out(0, now).then_some(now)
    });
    while out(0, after - 1) {
        after -= 1;
    }
    assert!(after > decided, "excluded at {after}, decided at {decided}");
    for n in 0..4 {
        reach(network.rpc(n), after + 2);
        assert_eq!(network.min_samples(n, decided - 1), SAMPLES, "node{n}");
        assert_eq!(network.min_samples(n, decided), 1, "node{n}");
        assert!(!out(n, after - 1) && out(n, after), "node{n}: not in block {after}");
    }
    let what_if = network.query(0, &["breaker", "what-if"]);
    assert_eq!(what_if["agrees"], true, "{what_if}");
    assert!(what_if.to_string().contains(&network.address("validator2")), "{what_if}");

    // What a light client believes of it.
    let app_hash_after = verified_app_hash(network.rpc(0), after);
    let excluded = network.address("validator2");
    assert!(proven(network.rpc(0), &entry_key("model-a", &excluded), after, &app_hash_after).is_some());
    let nobody = network.address("gateway0");
    assert_eq!(proven(network.rpc(0), &entry_key("model-a", &nobody), after, &app_hash_after), None);

    // The upgrade: decided by vote, early binaries refused, a halt, other binaries, on. A vote takes about as many blocks as
    // the last one, however fast this machine makes them.
    let at = (height(network.rpc(0)) + (decided - failed) + 15).max(least_blocks());
    let plan = json!([{
        "@type": "/cosmos.upgrade.v1beta1.MsgSoftwareUpgrade",
        "authority": GOV,
        "plan": {"name": "v3", "height": at.to_string(), "info": "https://example.org/v3"},
    }]);
    let planned = network.pass(2, &plan);
    assert!(planned < at, "decided at {planned}");
    reach(late.rpc, planned + 1);
    let late_hash = app_hash(late.rpc, planned - 1);
    assert_eq!(late_hash, app_hash(network.rpc(0), planned - 1));
    late.app.signal("KILL");
    drop(late.comet);
    drop(late.app);
    let late_home = late.home.display().to_string();
    let start = |program: &Path, home: &str| {
        let args = ["start", "--engine", "comet", "--home", home, "--minimum-gas-prices", "0uhold"];
        process::run(Command::new(program).args(args), BLOCKS)
    };
    start(&next(), &late_home).refused(1, &["BINARY UPDATED BEFORE TRIGGER! UPGRADE \"v3\""]);

    // The first node to stop ends the supervisor, which ends the others; each of them says the same at its next start.
    let halted = network.supervisor.take().expect("it runs").wait(BLOCKS);
    let needed = format!("UPGRADE \"v3\" NEEDED at height: {at}: https://example.org/v3");
    assert!(!halted.status.success() && halted.err.contains(&needed), "{}", halted.err);
    let home = network.node(0).display().to_string();
    for n in 0..4 {
        let home = network.node(n).display().to_string();
        start(&process::holdfastd(), &home).refused(1, &[&needed]);
        let info = std::fs::read_to_string(network.node(n).join("data/upgrade-info.json")).expect("the file");
        let info: Value = serde_json::from_str(&info).expect("JSON");
        assert_eq!((&info["name"], &info["height"]), (&json!("v3"), &json!(at)));
    }

    let (last, out) = (at + 8, network.dir.path().join("out.json"));
    let (last_text, out_text) = (last.to_string(), out.display().to_string());
    network.run(&next(), &["--blocks", &last_text, "--json", &out_text]);
    network.supervisor.take().expect("it runs").wait(BLOCKS).ok();
    start(&process::holdfastd(), &home).refused(1, &["too old", "v3"]);

    // One state: every hash of every node, from the first block to the last.
    let out: Value = serde_json::from_str(&std::fs::read_to_string(&out).expect("the result")).expect("JSON");
    let nodes = out["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 4);
    for node in nodes {
        assert_eq!(
            (node["height"].as_i64(), node["first_height"].as_i64()),
            (Some(last), Some(1)),
            "{}",
            node["name"]
        );
        assert_eq!(node["app_hashes"].as_array().map(Vec::len), usize::try_from(last).ok());
        assert_eq!(node["app_hashes"], nodes[0]["app_hashes"], "{}", node["name"]);
    }
    // The upgrade's own change is in the state, which one command reads without a node.
    let exported = process::run(Command::new(next()).args(["export", "--home", &home]), BLOCKS).json();
    assert_eq!(exported["app_state"]["inference"]["params"]["validation"]["health_cb_min_samples"], "7");
}

#[test]
fn a_program_that_ends_at_once_without_an_error_is_not_started_for_ever() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("net").display().to_string();
    let mut command = process::command(&["localnet", &path, "--validators", "1", "--blocks", "3"]);
    command.args(["--base-port", &free_ports().to_string(), "--cometbft", "/bin/true"]);
    let named = ["node0 cometbft", "/bin/true", "exit status: 0", "cli error 83"];
    process::run(&mut command, BLOCKS).refused(1, &named);
}

#[test]
fn a_port_in_use_is_named_before_anything_starts() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let base = free_ports();
    let taken = TcpListener::bind(("127.0.0.1", base + 12)).expect("a free port");
    let path = dir.path().join("net").display().to_string();
    let mut command = process::command(&["localnet", &path, "--validators", "2", "--blocks", "3"]);
    command.args(["--base-port", &base.to_string()]).env("HOLDFASTD_COMETBFT", cometbft());
    let port = (base + 12).to_string();
    process::run(&mut command, BLOCKS).refused(1, &[&port, "in use", "cli error 81"]);
    drop(taken);
}
