//! kill -9 at random instants: what was acknowledged stays, and the chain is the one an unkilled twin has.
//!
//! `HOLDFAST_KILLS` is the number of kills of a node, 10 if it is not set, and a devnet is killed half as often;
//! `HOLDFAST_SEED` is the seed of the instants, from the clock if it is not set. A failing test shows the seed, though a
//! machine that is busier or less busy then stops the program elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cosmrs::proto::cosmos::tx::v1beta1::{BroadcastMode, BroadcastTxRequest, GetTxRequest};
use holdfast_proto::cosmos::base::tendermint::v1beta1::{GetBlockByHeightRequest, GetBlockByHeightResponse};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use tonic::Code;

use crate::chain::{Chain, DENOM, address, committed};
use crate::client::{Client, Wallet, block_on, coin};
use crate::process::{Ran, Running, SHORT, command, run, until};

const BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";
/// Accounts that send.
const SENDERS: [u8; 3] = [1, 2, 3];
/// Transactions of one account that wait for a block at most.
const WAITING: usize = 20;

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: no number")))
}

/// Numbers from a seed that is shown with a failure.
pub(crate) struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let seed = number("HOLDFAST_SEED", u64::from(now.subsec_nanos()) ^ now.as_secs());
        println!("HOLDFAST_SEED={seed}");
        Self { seed, thrown: 0 }
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.thrown += 1;
        let digest = Sha256::digest([self.seed.to_be_bytes(), self.thrown.to_be_bytes()].concat());
        u64::from_be_bytes(digest[..8].try_into().expect("eight bytes")) % bound
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Copies a folder with all in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("readable").map(|entry| entry.expect("readable")) {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("writable");
        }
    }
}

/// What the clients were told: transactions in a block, by hash, with its height.
type Acknowledged = BTreeMap<String, i64>;

/// Sends transfers of 1 from an account as fast as blocks take them, until the node is gone; what it saw in a block.
async fn send_until_gone(mut wallet: Wallet, to: u8) -> Acknowledged {
    let mut seen = Acknowledged::new();
    let mut waiting = VecDeque::new();
    let message = {
        use cosmrs::tx::Msg;
        let (from_address, to_address) = (wallet.id.clone(), address(to));
        let send = cosmrs::bank::MsgSend { from_address, to_address, amount: vec![coin(1, DENOM)] };
        send.to_any().expect("cosmrs packs it")
    };
    loop {
        if waiting.len() < WAITING {
            let raw = wallet.draft(vec![message.clone()]).sign(&wallet.key);
            let request = BroadcastTxRequest { tx_bytes: raw, mode: BroadcastMode::Sync.into() };
            let Ok(answer) = wallet.client.tx().broadcast_tx(request).await else { return seen };
            let response = answer.into_inner().tx_response.expect("a response");
            assert_eq!(response.code, 0, "{}", response.raw_log);
            wallet.account.sequence += 1;
            waiting.push_back(response.txhash);
        } else {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let Some(hash) = waiting.front() else { continue };
        match wallet.client.tx().get_tx(GetTxRequest { hash: hash.clone() }).await {
            Ok(answer) => {
                let response = answer.into_inner().tx_response.expect("a response");
                assert_eq!(response.code, 0, "{}", response.raw_log);
                seen.insert(response.txhash, response.height);
                waiting.pop_front();
            }
            Err(status) if status.code() == Code::NotFound => {}
            Err(_) => return seen,
        }
    }
}

/// What was acknowledged is there, where it was.
async fn check_acknowledged(client: &Client, acknowledged: &Acknowledged) {
    for (hash, height) in acknowledged {
        let answer = client.tx().get_tx(GetTxRequest { hash: hash.clone() }).await;
        let answer = answer.unwrap_or_else(|status| panic!("{hash} of block {height} is lost: {status}"));
        let response = answer.into_inner().tx_response.expect("a response");
        assert_eq!((response.code, response.height), (0, *height), "{hash}");
    }
}

/// The app hash after each height below `last`, as the next block's header has it; every block follows the one before.
async fn app_hashes(client: &Client, last: i64) -> (BTreeMap<i64, String>, usize) {
    let (mut hashes, mut txs, mut before) = (BTreeMap::new(), 0, None);
    for height in 1..=last {
        let request = GetBlockByHeightRequest { height };
        let answer: GetBlockByHeightResponse =
            client.call(BLOCK, &request).await.expect("the block is there");
        let block = answer.block.expect("a block");
        let header = block.header.expect("a header");
        assert_eq!(header.height, height);
        assert_eq!(header.last_block_id.map(|id| id.hash), before, "block {height} follows another block");
        hashes.insert(height - 1, hex::encode_upper(header.app_hash));
        txs += block.data.expect("data").txs.len();
        before = Some(answer.block_id.expect("an id").hash);
    }
    hashes.remove(&0);
    (hashes, txs)
}

#[test]
fn a_node_killed_at_random_instants_loses_nothing_it_acknowledged_and_has_the_app_hashes_of_a_twin() {
    let mut dice = Dice::new();
    let chain = Chain::new("crash-1", &SENDERS);
    let home = chain.home();
    let mut told: BTreeMap<i64, String> = BTreeMap::new();
    let mut acknowledged = Acknowledged::new();
    let mut recent = Acknowledged::new();
    let mut tell = |log: &str| {
        for (height, hash) in committed(log) {
            let before = told.insert(height, hash.clone());
            assert!(before.is_none_or(|before| before == hash), "two app hashes of block {height}");
        }
    };
    for kill in 0..number("HOLDFAST_KILLS", 10) {
        if dice.below(4) == 0 {
            // While it starts: databases being made or opened, a block being executed again.
            let args = ["start", "--home", &home, "--grpc-listen", "127.0.0.1:0", "--block-seconds", "0.05"];
            let mut starting = command(&args);
            starting.args(["--log-level", "holdfast_node=info"]);
            let running = Running::start(&mut starting);
            std::thread::sleep(dice.millis(0, 250));
            running.signal("KILL");
            let killed = running.wait(SHORT);
            assert_eq!(killed.status.code(), None, "kill {kill}: it ended by itself: {}", killed.err);
            tell(&killed.err);
            continue;
        }
        let node = chain.start("0.05");
        let delay = dice.millis(0, 700);
        let seen = block_on(async {
            let client = Client::connect(&node.addr).await;
            check_acknowledged(&client, &recent).await;
            let mut senders = JoinSet::new();
            for sender in SENDERS {
                let wallet = Wallet::open(&client, chain.id, sender).await;
                senders.spawn(send_until_gone(wallet, sender % 3 + 1));
            }
            tokio::time::sleep(delay).await;
            node.running.signal("KILL");
            let mut seen = Acknowledged::new();
            while let Some(joined) = senders.join_next().await {
                seen.append(&mut joined.expect("a sender ends with the node"));
            }
            seen
        });
        let killed = node.running.wait(SHORT);
        assert_eq!(killed.status.code(), None, "kill {kill}: it ended by itself: {}", killed.err);
        tell(&killed.err);
        acknowledged.extend(seen.clone());
        recent = seen;
    }
    assert!(!acknowledged.is_empty(), "nothing was ever acknowledged");

    let node = chain.start("0.1");
    node.reach(2);
    let last = node.height();
    let (mut hashes, txs) = block_on(async {
        let client = Client::connect(&node.addr).await;
        check_acknowledged(&client, &acknowledged).await;
        let (hashes, txs) = app_hashes(&client, last).await;
        let mut sequences = 0;
        for sender in SENDERS {
            sequences += Wallet::open(&client, chain.id, sender).await.account.sequence;
        }
        assert_eq!(sequences, txs as u64, "each transaction in a block counts once");
        (hashes, txs)
    });
    assert!(txs >= acknowledged.len(), "{txs} transactions, {} acknowledged", acknowledged.len());
    let stopped = node.stop("TERM");
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.err);
    tell(&stopped.err);
    hashes.insert(last, told[&last].clone());
    for (height, hash) in told.range(..=last) {
        assert_eq!(hash, &hashes[height], "what the node said of block {height}");
    }

    // The twin has the genesis and the blocks, and executes all of them without a stop.
    let twin = Chain { dir: tempfile::tempdir().expect("a folder"), id: chain.id };
    copy(&chain.path().join("config"), &twin.path().join("config"));
    copy(&chain.path().join("data/blocks"), &twin.path().join("data/blocks"));
    let twin_home = twin.home();
    let args = ["start", "--home", &twin_home, "--grpc-listen", "127.0.0.1:0", "--block-seconds", "60"];
    let mut starting = command(&args);
    starting.args(["--log-level", "holdfast_node=info"]);
    let mut running = Running::start(&mut starting);
    until(Duration::from_secs(600), "the twin has executed all blocks", || {
        assert!(running.runs(), "the twin ended: {}", running.err());
        running.out().contains("gRPC listens on ").then_some(())
    });
    running.signal("TERM");
    let twins: BTreeMap<i64, String> = committed(&running.wait(SHORT).err).into_iter().collect();
    for (height, hash) in &hashes {
        assert_eq!(twins.get(height), Some(hash), "app hash of the twin after block {height}");
    }
    let size = acknowledged.len();
    println!("{last} blocks, {txs} transactions, {size} acknowledged, app hash {}", hashes[&last]);
}

/// A devnet run in `dir`, whose words are the same wherever that is.
fn devnet(dir: &Path, args: &[&str]) -> Command {
    let mut all = vec!["devnet", "--headless"];
    all.extend(args);
    let mut command = command(&all);
    command.current_dir(dir);
    command
}

/// The report without the figures that it says were measured, and the picture.
fn report(dir: &Path) -> (Value, String) {
    let read = |name: &str| fs::read_to_string(dir.join("out").join(name)).expect("it was written");
    let mut report: Value = serde_json::from_str(&read("report.json")).expect("report.json is JSON");
    let forget = |run: &mut Value| {
        let measured: Vec<String> = serde_json::from_value(run["measured"].clone()).expect("a list");
        assert!(!measured.is_empty());
        for pointer in measured {
            *run.pointer_mut(&pointer).unwrap_or_else(|| panic!("{pointer} is measured but missing")) =
                Value::Null;
        }
    };
    forget(&mut report);
    if let Some(arms) = report.get_mut("arms").and_then(Value::as_array_mut) {
        arms.iter_mut().for_each(forget);
    }
    assert!(read("report.html").trim_end().ends_with("</html>"));
    (report, read("timeline.svg"))
}

/// Runs to the end in one go; how long it took.
fn unkilled(dir: &Path, args: &[&str]) -> Duration {
    let began = Instant::now();
    run(&mut devnet(dir, args), Duration::from_secs(200)).ok();
    let took = began.elapsed();
    println!("unkilled: {} ms", took.as_millis());
    took
}

/// Starts and kills `kills` times, each within `within`, then lets the run end. Each second process has the folder only, and
/// the settings from there.
fn killed_again_and_again(dir: &Path, args: &[&str], dice: &mut Dice, kills: u64, within: Duration) -> Ran {
    let bare = ["--home", "home", "--resume"];
    for kill in 0..kills {
        // A process killed too early left not even the settings.
        let begun = dir.join("home/devnet.json").exists();
        let args: &[&str] = if begun && kill % 2 == 1 { &bare } else { args };
        // The very first moments are tried once.
        let most = if kill == 0 { 60 } else { u64::try_from(within.as_millis()).expect("short").max(50) };
        let running = Running::start(&mut devnet(dir, args));
        std::thread::sleep(dice.millis(0, most));
        running.signal("KILL");
        let ran = running.wait(SHORT);
        assert!(ran.status.code().is_none_or(|code| code == 0), "kill {kill}: {}", ran.err);
        let said = ran.out.lines().rfind(|line| line.contains("block")).unwrap_or("nothing");
        println!("kill {kill}: {}; said last: {said}", ran.status);
    }
    run(&mut devnet(dir, args), Duration::from_secs(200))
}

#[test]
fn a_devnet_killed_at_random_instants_ends_with_the_report_and_app_hash_of_an_unkilled_one() {
    let mut dice = Dice::new();
    let dir = tempfile::tempdir().expect("a folder");
    let one = dir.path().join("one");
    fs::create_dir(&one).expect("writable");
    // Misses, retries, late and false answers, a fault in the middle, and the invariants of block 50.
    let executors = "4*healthy,dying(40%),late(25),refusing,liar,degraded(30)";
    let args = ["--resume", "--home", "home", "--report", "out", "--blocks", "56", "--seed", "5"];
    let args = [&args[..], &["--executors", executors]].concat();
    let took = unkilled(&one, &args);
    let (expected, picture) = report(&one);
    let mut two = one.clone();
    for round in 0..number("HOLDFAST_KILLS", 10).div_ceil(10) {
        two = dir.path().join(format!("killed-{round}"));
        fs::create_dir(&two).expect("writable");
        let ended = killed_again_and_again(&two, &args, &mut dice, 5, took / 2).ok();
        assert_eq!(report(&two), (expected.clone(), picture.clone()), "round {round}");
        assert!(ended.contains(expected["app_hash"].as_str().expect("a hash")), "{ended}");
    }
    for pointer in ["/requests/finished", "/requests/missed", "/tx/failed", "/invariant_checks"] {
        assert!(expected.pointer(pointer).and_then(Value::as_u64).is_some_and(|n| n > 0), "{pointer}");
    }

    // A complete run writes its report again, for a folder that was given when it began.
    fs::remove_dir_all(two.join("out")).expect("it is there");
    let bare = ["--resume", "--home", "home"];
    let said = run(&mut devnet(&two, &bare), SHORT).ok();
    assert!(said.contains("was complete after block 56 of 56"), "{said}");
    assert_eq!(report(&two), (expected.clone(), picture.clone()));
    // So it does when the state is gone: the blocks are executed again.
    fs::remove_dir_all(two.join("home/state")).expect("it is there");
    run(&mut devnet(&two, &bare), Duration::from_secs(200)).ok();
    assert_eq!(report(&two), (expected, picture));
    // Other settings are refused by name, and a run is not run over.
    let refused = |more: &[&str]| run(&mut devnet(&two, &[&bare[..], more].concat()), SHORT);
    refused(&["--seed", "6"]).refused(1, &["--seed: the run has 5, not 6", "(devnet error 152)"]);
    refused(&["--blocks", "57"]).refused(1, &["--blocks: the run has 56, not 57"]);
    refused(&["--compare"]).refused(1, &["--compare"]);
    refused(&["--executors", "9*healthy"]).refused(1, &["--executors: #4", "dying(40%)"]);
    run(&mut devnet(&two, &["--home", "home"]), SHORT)
        .refused(1, &["not empty", "--resume", "(cli error 22)"]);
    run(&mut devnet(&two, &["--home", ".", "--resume"]), SHORT)
        .refused(1, &["no devnet run", "(cli error 22)"]);
    run(&mut devnet(&two, &["--resume"]), SHORT).refused(2, &["--home", "(cli error 14)"]);
}

#[test]
fn a_comparison_goes_on_in_the_run_in_which_it_was_killed_and_knows_its_trace_by_content() {
    let mut dice = Dice::new();
    let dir = tempfile::tempdir().expect("a folder");
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    for dir in [&one, &two] {
        fs::create_dir(dir).expect("writable");
        let rows = (0..120).map(|n| {
            format!("2023-11-16 18:{:02}:{:02}.0000000,{},{}\n", n / 60, n % 60, 100 + n, 5 + n % 50)
        });
        let rows = rows.collect::<String>() + "nothing\n";
        fs::write(dir.join("t.csv"), format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"))
            .expect("writable");
    }
    let args =
        ["--trace", "t.csv", "--skip-bad-rows", "--compare", "--executors", "3*healthy,dying(1),refusing"];
    let args =
        [&args[..], &["--home", "home", "--report", "out", "--resume", "--block-seconds", "6"]].concat();
    let took = unkilled(&one, &args);
    killed_again_and_again(&two, &args, &mut dice, 3, took).ok();
    let expected = report(&one);
    assert_eq!(expected.0["arms"].as_array().map(Vec::len), Some(3));
    assert_eq!(report(&two), expected);
    // The same rows elsewhere are the same input; other rows are not.
    fs::rename(two.join("t.csv"), two.join("moved.csv")).expect("it is there");
    let moved = ["--home", "home", "--resume", "--trace", "moved.csv"];
    run(&mut devnet(&two, &moved), SHORT).ok();
    assert_eq!(report(&two), expected);
    let text = fs::read_to_string(two.join("moved.csv")).expect("it is there");
    fs::write(two.join("moved.csv"), text.replacen(",100,", ",101,", 1)).expect("writable");
    run(&mut devnet(&two, &moved), SHORT).refused(1, &["--trace", "SHA-256", "(devnet error 152)"]);
}
