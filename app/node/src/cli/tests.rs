//! The command line from words to bytes, with a node that answers from a table.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::rc::Rc;

use holdfast_app::keys::SecretKey;
use holdfast_app::tx::DecodedTx;
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::bank::v1beta1::{MsgSend, QueryAllBalancesRequest, QueryBalanceResponse};
use holdfast_proto::cosmos::base::abci::v1beta1::{GasInfo, TxResponse};
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::cosmos::base::tendermint::v1beta1::{
    GetBlockByHeightRequest, GetBlockByHeightResponse, GetNodeInfoResponse,
};
use holdfast_proto::cosmos::base::v1beta1::Coin;
use holdfast_proto::cosmos::tx::v1beta1::{
    BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse, SimulateResponse,
};
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::tendermint::p2p::DefaultNodeInfo;
use holdfast_proto::{Any, Message, Name, decode_strict, pool};
use holdfast_types::Hrp;
use prost_reflect::Kind;
use serde_json::{Value, json};

use super::catalog::kebab;
use super::node::{CallFailure, NOT_FOUND, Node};
use super::output::Io;
use super::{CLI_ERROR_CODES, Stop, command, execute, told};

/// The phrase of the BIP39 list whose first Cosmos address every wallet knows.
const ABANDON: &str =
    "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
const ABANDON_ADDRESS: &str = "cosmos19rl4cm2hmr8afy4kldpxz3fka4jguq0auqdal4";

type Answer = Result<Vec<u8>, CallFailure>;
type Calls = Rc<RefCell<Vec<(String, Vec<u8>, Option<i64>)>>>;

/// Answers each path with its list in order, the last one for ever; notes what it was asked.
#[derive(Clone, Default)]
struct FakeNode {
    answers: Rc<RefCell<BTreeMap<String, Vec<Answer>>>>,
    calls: Calls,
}

impl FakeNode {
    fn on(self, path: &str, answer: Answer) -> Self {
        self.answers.borrow_mut().entry(path.to_owned()).or_default().push(answer);
        self
    }

    fn requests(&self, path: &str) -> Vec<Vec<u8>> {
        self.calls.borrow().iter().filter(|call| call.0 == path).map(|call| call.1.clone()).collect()
    }
}

impl Node for FakeNode {
    fn unary(&mut self, path: &str, request: &[u8], height: Option<i64>) -> Answer {
        self.calls.borrow_mut().push((path.to_owned(), request.to_vec(), height));
        let mut answers = self.answers.borrow_mut();
        let list = answers.get_mut(path).unwrap_or_else(|| panic!("{path} was not expected"));
        if list.len() > 1 { list.remove(0) } else { list[0].clone() }
    }
}

/// What a command line gave.
struct Ended {
    out: String,
    err: String,
    /// The line on standard error and the exit code.
    failure: Option<(String, u8)>,
}

impl Ended {
    fn json(&self) -> Value {
        assert_eq!(self.failure, None);
        serde_json::from_str(&self.out).unwrap()
    }

    fn refused(&self, code: u32, parts: &[&str]) {
        let (line, exit) = self.failure.as_ref().unwrap_or_else(|| panic!("accepted: {}", self.out));
        assert!(line.ends_with(&format!("(cli error {code})")), "{code}: {line}");
        assert!(!line.contains('\n') && line.starts_with("Error: "), "{line}");
        assert_eq!(*exit, if (11..=15).contains(&code) { 2 } else { 1 }, "{line}");
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in: {line}");
        }
    }
}

fn run_with(words: &[&str], input: &str, terminal: bool, node: &FakeNode) -> Ended {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let words: Vec<_> = ["holdfastd"].iter().chain(words).map(Into::into).collect();
    let mut io = Io { out: &mut out, err: &mut err, input: &mut input.as_bytes(), terminal };
    let connect = |_: &str| -> anyhow::Result<Box<dyn Node>> { Ok(Box::new(node.clone())) };
    let failure = match execute(&words, &mut io, &connect) {
        Ok(()) => None,
        Err(Stop::Printed(text)) => {
            out.extend(text.into_bytes());
            None
        }
        Err(Stop::Help(text)) => Some((text, 2)),
        Err(Stop::Failed(error)) => Some(told(&error)),
    };
    Ended { out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap(), failure }
}

fn run(words: &[&str]) -> Ended {
    run_with(words, "", false, &FakeNode::default())
}

fn home() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node").to_str().unwrap().to_owned();
    (dir, path)
}

/// A home with the known key under the name `alice`, prefix `cosmos`.
fn home_of_alice() -> (tempfile::TempDir, String) {
    let (dir, home) = home();
    run_with(
        &["keys", "add", "alice", "--recover", "--home", &home, "--bech32-prefix", "cosmos"],
        ABANDON,
        false,
        &FakeNode::default(),
    )
    .json();
    (dir, home)
}

/// A command of the tree by its path.
fn at<'c>(tree: &'c clap::Command, path: &[&str]) -> &'c clap::Command {
    path.iter()
        .fold(tree, |at, name| at.find_subcommand(name).unwrap_or_else(|| panic!("no command {path:?}")))
}

fn built() -> clap::Command {
    let mut tree = command().unwrap();
    tree.build();
    tree
}

fn module_of(package: &str) -> String {
    // cosmos.bank.v1beta1 -> bank
    package.split('.').rev().nth(1).unwrap().to_owned()
}

#[test]
fn the_command_tree_is_sound_and_every_help_renders() {
    command().unwrap().debug_assert();
    fn walk(command: &mut clap::Command, seen: &mut usize) {
        assert!(command.get_about().is_some(), "{} has no text", command.get_name());
        assert!(!command.get_about().unwrap().to_string().starts_with("Flags of"), "{}", command.get_name());
        assert!(!command.render_long_help().to_string().is_empty());
        *seen += 1;
        for inner in command.get_subcommands_mut() {
            walk(inner, seen);
        }
    }
    let mut seen = 0;
    let mut tree = command().unwrap();
    walk(&mut tree, &mut seen);
    assert!(seen > 60, "{seen} commands");
}

#[test]
fn every_message_of_the_descriptor_set_has_a_command_with_a_flag_for_every_field_but_its_signer() {
    let tree = built();
    let mut found = BTreeSet::new();
    for service in pool().unwrap().services().filter(|service| service.name() == "Msg") {
        for method in service.methods() {
            let leaf = at(&tree, &["tx", &module_of(service.package_name()), &kebab(method.name())]);
            let flags: BTreeSet<&str> = leaf.get_arguments().filter_map(clap::Arg::get_long).collect();
            let signer = holdfast_app::tx::signer_field(&format!("/{}", method.input().full_name()));
            for field in method.input().fields() {
                let flag = kebab(field.name());
                assert_eq!(
                    flags.contains(flag.as_str()),
                    u64::from(field.number()) != signer,
                    "{} {flag}",
                    method.full_name()
                );
            }
            found.insert(method.input().full_name().to_owned());
        }
    }
    // No request is left out: every MsgDoX of the set belongs to one of these services.
    let requests: BTreeSet<String> = pool()
        .unwrap()
        .all_messages()
        .filter(|m| m.name().starts_with("Msg") && !m.name().ends_with("Response") && m.name() != "MsgData")
        .map(|m| m.full_name().to_owned())
        .collect();
    assert_eq!(found, requests);
    assert!(found.len() >= 18, "{found:?}");
    for path in [
        "bank send",
        "inference start-inference",
        "participants announce-maintenance",
        "breaker set-breaker-override",
    ] {
        let path: Vec<&str> = ["tx"].into_iter().chain(path.split(' ')).collect();
        at(&tree, &path);
    }
}

#[test]
fn every_query_of_the_descriptor_set_has_a_command_with_a_flag_for_every_field() {
    let tree = built();
    let mut count = 0;
    for service in pool().unwrap().services() {
        if service.name() != "Query" && service.full_name() != "cosmos.base.tendermint.v1beta1.Service" {
            continue;
        }
        for method in service.methods() {
            let leaf = at(&tree, &["query", &module_of(service.package_name()), &kebab(method.name())]);
            let flags: BTreeSet<&str> = leaf.get_arguments().filter_map(clap::Arg::get_long).collect();
            assert!(flags.contains("height") && flags.contains("grpc-addr") && flags.contains("output"));
            for field in method.input().fields() {
                if field.name() == "pagination" {
                    for flag in ["page-key", "offset", "limit", "count-total", "reverse"] {
                        assert!(flags.contains(flag), "{} {flag}", method.full_name());
                    }
                } else {
                    assert!(
                        flags.contains(kebab(field.name()).as_str()),
                        "{} {}",
                        method.full_name(),
                        field.name()
                    );
                }
            }
            count += 1;
        }
    }
    assert!(count >= 30, "{count} queries");
    for path in ["inference get-random-executor", "tendermint get-block-by-height", "auth account", "tx"] {
        let path: Vec<&str> = ["query"].into_iter().chain(path.split(' ')).collect();
        at(&tree, &path);
    }
}

#[test]
fn names_of_rpcs_become_words() {
    for (name, words) in [
        ("GetRandomExecutor", "get-random-executor"),
        ("Sprt", "sprt"),
        ("ABCIQuery", "abci-query"),
        ("V2Params", "v2-params"),
        ("max_tokens", "max-tokens"),
    ] {
        assert_eq!(kebab(name), words);
    }
}

#[test]
fn a_bad_value_of_any_field_is_refused_by_the_name_of_its_flag() {
    let (_dir, home) = home_of_alice();
    let mut tried = 0;
    for service in pool().unwrap().services() {
        let verb = match service.name() {
            "Msg" => "tx",
            "Query" => "query",
            _ if service.package_name() == "cosmos.base.tendermint.v1beta1" => "query",
            _ => continue,
        };
        let module = module_of(service.package_name());
        for method in service.methods() {
            for field in method.input().fields() {
                let is_mask =
                    field.kind().as_message().is_some_and(|m| m.full_name() == "google.protobuf.FieldMask");
                // Any text is a text; what the chain thinks of it is tested there.
                if field.kind() == Kind::String || is_mask || (verb == "tx" && field.number() == 1) {
                    continue;
                }
                let flags = if field.name() == "pagination" {
                    ["page-key", "offset", "limit", "count-total", "reverse"].map(str::to_owned).to_vec()
                } else {
                    vec![kebab(field.name())]
                };
                for flag in flags {
                    let flag = format!("--{flag}");
                    let name = kebab(method.name());
                    let mut words = vec![verb, &module, &name, &flag, "~1"];
                    if verb == "tx" {
                        words.extend(["--from", "alice", "--home", &home, "--generate-only"]);
                    }
                    run(&words).refused(12, &[&flag, "~1", "give"]);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 50, "{tried} flags");
}

/// Command lines with one bad value: flag, its bad value, the rest.
const BAD_VALUES: &[(&str, &str, &str)] = &[
    ("--chain-id", "ab", "init n"),
    ("--chain-id", "has space", "init n"),
    ("--chain-id", "dotted.id", "init n"),
    ("--bech32-prefix", "UP", "init n --chain-id test-1"),
    ("--output", "xml", "init n --chain-id test-1"),
    ("--index", "2147483648", "keys add a"),
    ("--bech32-prefix", "", "keys list"),
    ("--output", "xml", "keys show a"),
    ("--grpc-listen", "9090", "start"),
    ("--block-seconds", "0", "start"),
    ("--block-seconds", "1.2345", "start"),
    ("--minimum-gas-prices", "cheap", "start"),
    ("--metrics-listen", "26660", "start"),
    ("--log-level", "a=loud", "start"),
    ("--engine", "paxos", "start"),
    ("--proxy-app", "unix://app.sock", "start --engine comet"),
    ("--proxy-app", "tcp://127.0.0.1", "start --engine comet"),
    ("--rpc-laddr", "nowhere", "start --engine comet"),
    ("--min-retain-blocks", "-1", "start --engine comet"),
    ("--unsafe-skip-upgrades", "ten", "start"),
    ("--validators", "0", "testnet --output x"),
    ("--validators", "33", "localnet x"),
    ("--base-port", "65536", "testnet --output x"),
    ("--epoch-length", "0", "testnet --output x"),
    ("--timeout-commit", "0", "testnet --output x"),
    ("--voting-period", "1", "testnet --output x"),
    ("--snapshot-interval", "-1", "testnet --output x"),
    ("--key-seed", "one", "testnet --output x"),
    ("--format", "xml", "testnet --output x"),
    ("--blocks", "0", "localnet x"),
    ("--seed", "x", "localnet x"),
    ("--hosts", "0", "localnet --gateway"),
    ("--hosts", "65", "localnet --gateway"),
    ("--requests", "many", "localnet --gateway"),
    ("--clients", "0", "localnet --gateway"),
    ("--rate", "0", "localnet --gateway"),
    ("--backend", "openai-http", "localnet --gateway"),
    ("--cancel-every", "1", "localnet --gateway"),
    ("--fault", "spoon:host1@nonce4", "localnet --gateway"),
    ("--fault", "fork:host1@nonce0", "localnet --gateway"),
    ("--workers", "5", "localnet --gateway"),
    ("--http", "8080", "localnet --gateway"),
    ("--block-seconds", "0", "localnet --gateway"),
    ("--workload", "-1", "devnet"),
    ("--blocks", "0", "devnet"),
    ("--block-seconds", "3601", "devnet"),
    ("--preset", "best", "devnet"),
    ("--seed", "x", "devnet"),
    ("--listen", "somewhere:1", "devnet"),
    ("--total-ms", "300001", "generate hello"),
    ("--token-ms", "-1", "upstream"),
    ("--fault", "nothing@all", "upstream"),
    ("--fees", "10", "tx bank send --from a"),
    ("--gas", "0", "tx bank send --from a"),
    ("--gas", "9223372036854775808", "tx bank send --from a"),
    ("--gas-adjustment", "0.9", "tx bank send --from a"),
    ("--timeout-height", "-1", "tx bank send --from a"),
    ("--wait", "0", "tx bank send --from a"),
    ("--account-number", "one", "tx bank send --from a"),
    ("--sequence", "18446744073709551616", "tx bank send --from a"),
    ("--chain-id", "~", "tx bank send --from a"),
    ("--bech32-prefix", "~", "tx bank send --from a"),
    ("--grpc-addr", "nowhere", "tx bank send --from a"),
    ("--grpc-addr", "host:0", "query bank total-supply"),
    ("--height", "0", "query bank total-supply"),
    ("--height", "-4", "query bank total-supply"),
    ("--output", "yaml", "query bank total-supply"),
    ("--output", "yaml", "version --long"),
    ("--output", "yaml", "genesis validate"),
    ("--collateral", "much", "genesis add-participant a --models m"),
    ("--validator-key", "02", "genesis add-participant a --models m --collateral 1uhold"),
    ("--backend", "none", "worker"),
    ("--capacity", "0", "worker"),
    ("--layers", "2..1", "worker"),
    ("--name", "a/b", "worker"),
    ("--fault", "dye@1", "worker"),
    ("--upstream-slots", "0", "worker"),
    ("--upstream-context", "1", "worker"),
    ("--dtype", "f8", "worker make-model --out x"),
    ("--layers", "0", "worker make-model --out x"),
    ("--fault", "bad-luck", "generate hello"),
    ("--faulty-shard", "one", "generate hello --fault clean"),
    ("--max-tokens", "0", "generate hello"),
    ("--workers", "0", "generate hello"),
    ("--worker-url", "ftp://h:1", "generate hello"),
    ("--workers", "17", "matrix"),
    ("--workers", "0", "host --from a"),
    ("--max-tokens", "0", "host --from a"),
    ("--fees", "10", "host --from a"),
    ("--listen", "somewhere:1", "host --from a"),
    ("--grpc-addr", "nowhere", "host --from a"),
    ("--escrow", "0", "gateway --from a --models m"),
    ("--create", "0", "gateway --from a --models m"),
    ("--slots", "129", "gateway --from a --models m"),
    ("--http", "8080", "gateway --from a --models m"),
    ("--grpc", "nowhere", "gateway --from a --models m"),
    ("--gateway-url", "https://x", "gateway --from a --models m"),
    ("--rotation-budget", "-1", "gateway --from a --models m"),
    ("--probe-budget", "much", "gateway --from a --models m"),
    ("--context-length", "0", "gateway --from a --models m"),
    ("--token-bytes-max", "1025", "gateway --from a --models m"),
    ("--deadline", "0", "gateway --from a --models m"),
    ("--cors-origins", "*", "gateway --from a --models m"),
    ("--give-up", "0", "gateway --from a --models m"),
    ("--gateway", "nowhere", "gateway escrows"),
    ("--from-seq", "-1", "gateway watch-divergence"),
    ("--operator", "", "gateway finalize 7 --reason x --operator-token-file f"),
    ("--reason", "", "gateway finalize 7 --operator x --operator-token-file f"),
    ("--host", "nowhere", "infer --from a --inference-id i --body x"),
    ("--drill", "spoon@nonce4", "host --from a --models m"),
    ("--deadline-ms", "-1", "infer --from a --inference-id i --body x"),
];

#[test]
fn a_bad_value_of_any_flag_is_refused_by_its_name() {
    for (flag, value, rest) in BAD_VALUES {
        let given = format!("{flag}={value}");
        let words: Vec<&str> = rest.split(' ').chain([given.as_str()]).collect();
        run(&words).refused(12, &[flag]);
    }
    let long = format!("--memo={}", "m".repeat(257));
    run(&["tx", "bank", "send", "--from", "a", &long]).refused(12, &["--memo", "256"]);
    for moniker in ["", " spaced", "tab\tbed", &"m".repeat(71)] {
        run(&["init", moniker, "--chain-id", "test-1"]).refused(12, &["MONIKER", "1 to 70"]);
    }
    for name in ["", ".hidden", "a/b", "ä", &"n".repeat(65)] {
        run(&["keys", "show", name]).refused(12, &["NAME", "1 to 64"]);
    }
    run(&["query", "tx", "abc"]).refused(12, &["HASH", "64"]);
    run(&["completion", "tcsh"]).refused(12, &["SHELL", "elvish"]);
    run(&["genesis", "add-account", "a", "0uhold"]).refused(12, &["COINS", "uhold"]);
    run(&["genesis", "add-account", "a", "1uhold,2uhold"]).refused(12, &["COINS", "twice"]);
}

#[test]
fn every_flag_that_takes_a_value_has_a_bad_one_in_these_tests() {
    fn walk(command: &clap::Command, flags: &mut BTreeSet<String>) {
        for arg in command.get_arguments() {
            let takes_value = arg.get_num_args().is_some_and(|range| range.takes_values());
            if takes_value && !arg.get_id().as_str().starts_with("field.") {
                flags.extend(arg.get_long().map(|long| format!("--{long}")));
            }
        }
        command.get_subcommands().for_each(|inner| walk(inner, flags));
    }
    let mut flags = BTreeSet::new();
    walk(&built(), &mut flags);
    let tested: BTreeSet<String> = BAD_VALUES.iter().map(|(flag, ..)| (*flag).to_owned()).collect();
    // Each of these has a test of its own below or above.
    let own = [
        "--memo",
        "--home",
        "--trace",
        "--executors",
        "--report",
        "--from",
        "--json",
        "--json-file",
        "--models",
        "--host-url",
        "--cometbft",
        "--output-document",
        "--body",
        "--inference-id",
        "--ledger",
        "--sessions",
        "--data",
        "--api-keys",
        "--operator-token-file",
        "--upstream",
        // Whatever their text is, it is a file's name, a key or a model's name.
        "--model",
        "--out",
        "--upstream-key",
        "--upstream-model",
        // Words for another command line, which judges them.
        "--gateway-arg",
        "--host-arg",
    ];
    let known: BTreeSet<String> = tested.into_iter().chain(own.map(str::to_owned)).collect();
    assert_eq!(flags, known);
}

#[test]
fn devnet_flags_that_name_files_are_checked_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let (file, folder) = (file.to_str().unwrap(), dir.path().to_str().unwrap());
    let absent = format!("{folder}/absent.csv");
    run(&["devnet", "--trace", &absent]).refused(12, &["--trace", "absent.csv", "check the path"]);
    run(&["devnet", "--trace", folder]).refused(12, &["--trace", "folder"]);
    run(&["devnet", "--home", file]).refused(12, &["--home", "give a folder"]);
    run(&["devnet", "--home", folder]).refused(22, &["--home", "not empty"]);
    run(&["devnet", "--report", file]).refused(12, &["--report", "give a folder"]);
    run(&["devnet", "--trace", file, "--workload", "1"]).refused(15, &["--trace", "--workload"]);
    run(&["devnet", "--skip-bad-rows"]).refused(14, &["--trace"]);
    let (line, exit) = run(&["devnet", "--executors", "healthy,zombie"]).failure.unwrap();
    assert!(
        line.starts_with("Error: --executors: character 9") && line.ends_with("(devnet error 122)"),
        "{line}"
    );
    assert_eq!(exit, 1);
}

fn devnet_config(words: &str) -> crate::devnet::config::DevnetConfig {
    use clap::FromArgMatches;
    let words: Vec<String> =
        ["holdfastd", "devnet"].into_iter().chain(words.split_whitespace()).map(str::to_owned).collect();
    let matches = command().unwrap().try_get_matches_from(&words).unwrap();
    let args =
        super::devnet::DevnetArgs::from_arg_matches(matches.subcommand_matches("devnet").unwrap()).unwrap();
    super::devnet::config(&args, super::devnet::command_line(&words)).unwrap()
}

#[test]
fn devnet_without_flags_is_the_run_of_the_documents() {
    use crate::devnet::config::{DevnetConfig, Preset, Source};
    let expected = DevnetConfig {
        source: Source::Workload { seed: 1 },
        blocks: None,
        block_seconds: 5,
        executors: crate::devnet::executors::default_executors(),
        preset: Preset::Recommended,
        compare: false,
        seed: 1,
        home: None,
        listen: "127.0.0.1:0".parse().unwrap(),
        report: None,
        headless: false,
        realtime: false,
        runner: false,
        command: "holdfastd devnet".into(),
    };
    assert_eq!(devnet_config(""), expected);
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.csv");
    fs::write(&trace, "x").unwrap();
    let words = format!(
        "--trace {} --skip-bad-rows --blocks 7 --block-seconds 2 --executors 2*healthy,liar --preset seed --compare \
         --seed 9 --home {}/h --listen localhost:9999 --report {}/r --headless --realtime",
        trace.display(),
        dir.path().display(),
        dir.path().display()
    );
    let config = devnet_config(&words);
    assert_eq!(config.source, Source::Trace { path: trace, skip_bad_rows: true });
    assert_eq!(
        (config.blocks, config.block_seconds, config.executors.len(), config.seed),
        (Some(7), 2, 3, 9)
    );
    assert_eq!((config.preset, config.compare), (Preset::Seed, true));
    assert_eq!((config.headless, config.realtime), (true, true));
    assert_eq!(config.listen, "127.0.0.1:9999".parse().unwrap());
    assert_eq!((config.home, config.report), (Some(dir.path().join("h")), Some(dir.path().join("r"))));
    assert!(config.command.contains("--executors '2*healthy,liar' --preset seed"), "{}", config.command);
}

#[test]
fn init_makes_a_home_and_refuses_a_second_run() {
    let (_dir, home) = home();
    let words = ["init", "first", "--home", &home, "--chain-id", "test-1", "--bech32-prefix", "fast"];
    let made = run(&words).json();
    assert_eq!((&made["moniker"], &made["chain_id"]), (&json!("first"), &json!("test-1")));
    let read = |name: &str| fs::read_to_string(Path::new(&home).join(name)).unwrap();
    let genesis: Value = serde_json::from_str(&read("config/genesis.json")).unwrap();
    assert_eq!((&genesis["chain_id"], &genesis["bech32_prefix"]), (&json!("test-1"), &json!("fast")));
    assert!(!genesis["genesis_time"].as_str().unwrap().starts_with("1970"));
    assert!(Path::new(&home).join("data").is_dir());
    let key = read("config/priv_validator_key.json");
    let key_json: Value = serde_json::from_str(&key).unwrap();
    assert_eq!(key_json["address"], made["validator_address"]);
    assert_eq!(run(&["genesis", "validate", "--home", &home]).json()["valid"], json!(true));
    assert_mode(&Path::new(&home).join("config/priv_validator_key.json"));
    // The same home serves CometBFT, which wants the record of votes to be there.
    assert_eq!(key_json["pub_key"]["type"], json!("tendermint/PubKeyEd25519"));
    let votes: Value = serde_json::from_str(&read("data/priv_validator_state.json")).unwrap();
    assert_eq!(votes, json!({ "height": "0", "round": 0, "step": 0 }));

    run(&words).refused(22, &["genesis.json", "--force"]);
    assert_eq!(read("config/priv_validator_key.json"), key);
    let forced = ["init", "second", "--home", &home, "--chain-id", "test-2", "--force"];
    assert_eq!(run(&forced).json()["validator_address"], key_json["address"]);
    assert!(read("config/app.toml").contains("moniker = \"second\""));
    assert!(read("config/genesis.json").contains("\"chain_id\": \"test-2\""));

    // A chain that has begun is not overwritten, not even by force.
    fs::write(Path::new(&home).join("data/state"), "x").unwrap();
    run(&forced).refused(22, &["data", "holds a chain"]);
}

#[test]
fn init_writes_nothing_when_it_refuses() {
    let (dir, home) = home();
    run(&["init", "n", "--home", &home, "--chain-id", "a"]).refused(12, &["--chain-id"]);
    run(&["init", "n", "--home", &home]).refused(14, &["--chain-id"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // A home that cannot be made.
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let below = format!("{}/node", file.display());
    run(&["init", "n", "--home", &below, "--chain-id", "test-1"])
        .refused(21, &["file/node", "check the path"]);
}

#[cfg(unix)]
fn assert_mode(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
}

#[cfg(not(unix))]
fn assert_mode(_: &Path) {}

fn start_config(home: &str, more: &[&str]) -> anyhow::Result<super::StartConfig> {
    use clap::FromArgMatches;
    let words: Vec<&str> =
        ["holdfastd", "start", "--home", home].into_iter().chain(more.iter().copied()).collect();
    let matches = command()?.try_get_matches_from(words)?;
    super::start::config(&super::start::StartArgs::from_arg_matches(
        matches.subcommand_matches("start").unwrap(),
    )?)
}

#[test]
fn start_reads_app_toml_and_flags_go_before_it() {
    let (_dir, home) = home();
    run(&["init", "n\u{00e4}me \"x\"", "--home", &home, "--chain-id", "test-1"]).json();
    let config = start_config(&home, &[]).unwrap();
    assert_eq!(config.moniker, "n\u{00e4}me \"x\"");
    assert_eq!(config.grpc_listen, "127.0.0.1:9090".parse().unwrap());
    assert_eq!((config.block_time.as_millis(), config.min_gas_price), (5000, 0));
    assert_eq!(config.mempool, holdfast_app::mempool::MempoolConfig::default());
    let flags =
        ["--grpc-listen", "0.0.0.0:7", "--block-seconds", "0.25", "--minimum-gas-prices", "0.025uhold"];
    let config = start_config(&home, &flags).unwrap();
    assert_eq!(config.grpc_listen, "0.0.0.0:7".parse().unwrap());
    assert_eq!((config.block_time.as_millis(), config.min_gas_price), (250, 25_000_000_000));
    let other = start_config(&home, &["--minimum-gas-prices", "1uatom"]).unwrap_err().to_string();
    assert!(other.contains("minimum-gas-prices") && other.contains("uhold"), "{other}");
}

#[test]
fn a_bad_key_of_app_toml_is_named_with_the_file() {
    let (_dir, home) = home();
    run(&["init", "n", "--home", &home, "--chain-id", "test-1"]).json();
    let path = Path::new(&home).join("config/app.toml");
    let whole = fs::read_to_string(&path).unwrap();
    let refused = |from: &str, to: &str, code: u32, parts: &[&str]| {
        assert!(whole.contains(from), "{from}");
        fs::write(&path, whole.replace(from, to)).unwrap();
        let ended = run(&["start", "--home", &home]);
        ended.refused(code, parts);
        ended.refused(code, &["app.toml"]);
    };
    refused("address = ", "adress = ", 25, &["grpc.adress", "grpc.address"]);
    refused("[mempool]", "[mempol]", 25, &["mempol.max-bytes", "mempool.max-bytes"]);
    refused("[solo]", "[extra]\n[solo]", 25, &["extra"]);
    refused("[grpc]", "[grpc", 24, &["app.toml:", "correct the line"]);
    refused("moniker = \"n\"", "moniker = \"\"", 26, &["moniker", "1 to 70"]);
    refused("moniker = \"n\"", "moniker = true", 26, &["moniker", "give a text"]);
    refused("= \"0uhold\"", "= \"\"", 26, &["minimum-gas-prices", "0.025uhold"]);
    refused("= \"0uhold\"", "= \"0.0000000000001uhold\"", 26, &["minimum-gas-prices", "12 digits"]);
    refused("minimum-gas-prices = ", "# ", 26, &["minimum-gas-prices", "must be set"]);
    refused("127.0.0.1:9090", "9090", 26, &["grpc.address", "IP:PORT"]);
    refused("= 5.0", "= 0", 26, &["solo.block-seconds", "0.01"]);
    refused("= 5.0", "= \"soon\"", 26, &["solo.block-seconds", "3600"]);
    for key in ["max-txs", "max-bytes", "max-per-signer"] {
        refused(&format!("{key} = "), &format!("{key} = -"), 26, &[&format!("mempool.{key}"), "above 0"]);
    }
}

#[test]
fn start_without_a_home_says_how_to_make_one_and_a_damaged_one_is_refused() {
    let (_dir, home) = home();
    run(&["start", "--home", &home]).refused(23, &["app.toml", "holdfastd init"]);
    run(&["init", "n", "--home", &home, "--chain-id", "test-1"]).json();
    let key = Path::new(&home).join("config/priv_validator_key.json");
    let text = fs::read_to_string(&key).unwrap();
    for (from, to, field) in [
        ("PrivKeyEd25519", "PrivKeySr25519", "priv_key.type"),
        ("PrivKeyEd25519", "PrivKeySecp256k1", "priv_key.value"),
        ("\"address\": \"", "\"address\": \"00", "address"),
        ("{", "", "JSON"),
    ] {
        fs::write(&key, text.replacen(from, to, 1)).unwrap();
        run(&["start", "--home", &home]).refused(28, &["priv_validator_key.json", field]);
    }
    fs::write(&key, &text).unwrap();
    let genesis = Path::new(&home).join("config/genesis.json");
    let text = fs::read_to_string(&genesis).unwrap();
    fs::write(&genesis, text.replace("\"chain_id\"", "\"chainid\"")).unwrap();
    run(&["start", "--home", &home]).refused(27, &["genesis.json", "chainid"]);
    run(&["genesis", "validate", "--home", &home]).refused(27, &["chainid"]);
}

#[test]
fn a_recovered_key_is_the_one_that_wallets_show_and_comes_back_from_its_file() {
    let (_dir, home) = home();
    let node = FakeNode::default();
    let words = ["keys", "add", "alice", "--recover", "--home", &home, "--bech32-prefix", "cosmos"];
    // Over two lines, as some wallets print it.
    let added = run_with(
        &words,
        &format!("{}\n", ABANDON.replacen("abandon abandon", "abandon\n abandon", 1)),
        false,
        &node,
    )
    .json();
    assert_eq!(added["address"], json!(ABANDON_ADDRESS));
    assert_eq!(added.get("mnemonic"), None);
    let pubkey: Value = serde_json::from_str(added["pubkey"].as_str().unwrap()).unwrap();
    assert_eq!(pubkey["@type"], json!("/cosmos.crypto.secp256k1.PubKey"));
    let show = run(&["keys", "show", "alice", "--home", &home, "--bech32-prefix", "cosmos"]);
    assert_eq!(show.json(), added);
    let address = run(&["keys", "show", "alice", "-a", "--home", &home, "--bech32-prefix", "cosmos"]);
    assert_eq!(address.out, format!("{ABANDON_ADDRESS}\n"));
    assert!(run(&["keys", "show", "alice", "-a", "--home", &home]).out.starts_with("hold1"));
    assert_mode(&Path::new(&home).join("keyring-test/alice.json"));

    run_with(&words, ABANDON, false, &node).refused(32, &["alice", "another name"]);
    run_with(&["keys", "add", "bob", "--recover", "--home", &home], "abandon about", false, &node)
        .refused(35, &["--recover", "mnemonic", "12, 15, 18, 21 or 24 words"]);
    run(&["keys", "show", "bob", "--home", &home]).refused(33, &["bob", "keys list"]);
}

#[test]
fn a_new_key_shows_its_mnemonic_once_and_the_mnemonic_gives_it_back() {
    let (_dir, home) = home();
    assert_eq!(run(&["keys", "list", "--home", &home]).json(), json!([]));
    let made = run(&["keys", "add", "zoe", "--home", &home]);
    assert!(made.err.contains("not encrypted"), "{}", made.err);
    let made = made.json();
    let mnemonic = made["mnemonic"].as_str().unwrap();
    assert_eq!(mnemonic.split(' ').count(), 24);
    let words = ["keys", "add", "again", "--recover", "--home", &home];
    let again = run_with(&words, mnemonic, false, &FakeNode::default()).json();
    assert_eq!(again["address"], made["address"]);
    let other = run(&["keys", "add", "abe", "--home", &home, "--index", "1", "-o", "text"]);
    assert!(other.out.contains("name: abe\n") && other.out.contains("mnemonic: "), "{}", other.out);
    let list = run(&["keys", "list", "--home", &home]);
    let names: Vec<Value> = list.json().as_array().unwrap().iter().map(|key| key["name"].clone()).collect();
    assert_eq!(names, ["abe", "again", "zoe"]);
    assert!(!list.out.contains("mnemonic") && !list.out.contains("secret"));
}

#[test]
fn a_damaged_key_file_is_refused_by_field() {
    let (_dir, home) = home_of_alice();
    let path = Path::new(&home).join("keyring-test/alice.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, field) in [
        ("\"secret_key\": \"", "\"secret_key\": \"0", "secret_key"),
        ("\"address\": \"", "\"address\": \"0", "address"),
        ("{", "", "JSON"),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        run(&["keys", "show", "alice", "--home", &home]).refused(34, &["alice.json", field]);
    }
}

#[test]
fn genesis_accounts_keep_the_file_sorted_and_the_supply_true() {
    let (_dir, home) = home();
    run(&["init", "n", "--home", &home, "--chain-id", "test-1"]).json();
    let mut addresses = Vec::new();
    for name in ["a", "b", "c"] {
        let key = run(&["keys", "add", name, "--home", &home]).json();
        addresses.push(key["address"].as_str().unwrap().to_owned());
    }
    let add = |account: &str, coins: &str| run(&["genesis", "add-account", account, coins, "--home", &home]);
    assert_eq!(add("a", "5uhold,3uatom").failure, None);
    assert_eq!(add(&addresses[1], "7uhold").failure, None);
    assert_eq!(add("c", "1uhold").failure, None);
    assert_eq!(add("a", "10uhold").failure, None);
    let doc: Value =
        serde_json::from_str(&fs::read_to_string(Path::new(&home).join("config/genesis.json")).unwrap())
            .unwrap();
    let bank = &doc["app_state"]["bank"];
    assert_eq!(
        bank["supply"],
        json!([{"denom": "uatom", "amount": "3"}, {"denom": "uhold", "amount": "23"}])
    );
    let of_a = bank["balances"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["address"] == json!(addresses[0]))
        .unwrap();
    assert_eq!(of_a["coins"], json!([{"denom": "uatom", "amount": "3"}, {"denom": "uhold", "amount": "15"}]));
    assert_eq!(doc["app_state"]["auth"]["next_account_number"], json!("3"));
    assert_eq!(doc["app_state"]["auth"]["accounts"].as_array().unwrap().len(), 3);
    assert_eq!(run(&["genesis", "validate", "--home", &home]).failure, None);

    let too_much = format!("{}uhold", u128::MAX);
    add("a", &too_much).refused(27, &["bank", "2^128"]);
    add("nobody", "1uhold").refused(33, &["nobody"]);
    let wrong = addresses[0].replacen("hold1", "hold1q", 1);
    add(&wrong, "1uhold").refused(12, &["ACCOUNT", "bech32"]);
}

#[test]
fn genesis_participants_bring_their_models_their_weight_and_their_collateral() {
    let (_dir, home) = home();
    run(&["init", "n", "--home", &home, "--chain-id", "test-1"]).json();
    let mut addresses = Vec::new();
    for name in ["a", "b"] {
        let key = run(&["keys", "add", name, "--home", &home]).json();
        addresses.push(key["address"].as_str().unwrap().to_owned());
    }
    let path = Path::new(&home).join("config/genesis.json");
    // Two coins a unit of weight, so that weight and collateral cannot be mixed up.
    let mut doc: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let params = &mut doc["app_state"]["participants"]["params"];
    params["collateral_per_weight"] = json!("2");
    params["collateral_denom"] = json!("uhold");
    fs::write(&path, doc.to_string()).unwrap();
    let add = |account: &str, more: &[&str]| {
        let words = ["genesis", "add-participant", account, "--home", &home];
        run(&[&words[..], more].concat())
    };
    assert_eq!(run(&["genesis", "add-model", "z", "--home", &home]).failure, None);
    assert_eq!(add("a", &["--models", "m,k", "--collateral", "21uhold"]).failure, None);
    assert_eq!(
        add("b", &["--models", "m", "--collateral", "8uhold", "--host-url", "http://b:1"]).failure,
        None
    );
    assert_eq!(run(&["genesis", "validate", "--home", &home]).failure, None);
    let text = fs::read_to_string(&path).unwrap();
    let doc: Value = serde_json::from_str(&text).unwrap();
    let state = &doc["app_state"]["participants"];
    assert_eq!(state["models"], json!([{"id": "k"}, {"id": "m"}, {"id": "z"}]));
    let mut weights: Vec<(Value, Value, Value)> = state["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["model"].clone(), row["participant"].clone(), row["weight"].clone()))
        .collect();
    weights.sort_by_key(|row| (row.0.to_string(), row.2.to_string()));
    let (a, b) = (&addresses[0], &addresses[1]);
    let expected = [("k", a, "10"), ("m", a, "10"), ("m", b, "4")];
    assert_eq!(weights, expected.map(|(model, who, weight)| (json!(model), json!(who), json!(weight))));
    assert_eq!(doc["app_state"]["bank"]["supply"], json!([{"denom": "uhold", "amount": "29"}]));
    assert_eq!(doc["app_state"]["bank"]["balances"].as_array().unwrap().len(), 1);
    assert_eq!(doc["app_state"]["auth"]["next_account_number"], json!("2"));

    add("a", &["--models", "m", "--collateral", "2uhold"]).refused(12, &["ACCOUNT", "already"]);
    let fresh = run(&["keys", "add", "c", "--home", &home]).json();
    let fresh = fresh["address"].as_str().unwrap();
    add(fresh, &["--models", "m", "--collateral", "2uhold"]).refused(14, &["--validator-key"]);
    add("c", &["--models", "m", "--collateral", "1uhold"]).refused(12, &["--collateral", "at least 2"]);
    add("c", &["--models", "m", "--collateral", "2uatom"]).refused(12, &["--collateral", "uhold"]);
    add("c", &["--models", "no model", "--collateral", "2uhold"]).refused(27, &["participants", "models"]);
    let long = "u".repeat(2000);
    add("c", &["--models", "m", "--collateral", "2uhold", "--host-url", &long]).refused(27, &["host_url"]);
    run(&["genesis", "add-model", "no model", "--home", &home]).refused(27, &["participants", "models"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

fn account_answer(number: u64, sequence: u64) -> Answer {
    let account =
        BaseAccount { address: ABANDON_ADDRESS.into(), pub_key: None, account_number: number, sequence };
    let any = Any { type_url: "/cosmos.auth.v1beta1.BaseAccount".into(), value: account.encode_to_vec() };
    Ok(QueryAccountResponse { account: Some(any) }.encode_to_vec())
}

fn broadcast_answer(code: u32, log: &str) -> Answer {
    let codespace = if code == 0 { "" } else { "sdk" };
    let answer = TxResponse {
        txhash: "AB".repeat(32),
        code,
        codespace: codespace.into(),
        raw_log: log.into(),
        ..TxResponse::default()
    };
    Ok(BroadcastTxResponse { tx_response: Some(answer) }.encode_to_vec())
}

fn not_found() -> Answer {
    Err(CallFailure { status: Some(NOT_FOUND), message: "not there".into() })
}

const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";
const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";

fn node_with_account() -> FakeNode {
    let info = DefaultNodeInfo { network: "test-1".into(), ..DefaultNodeInfo::default() };
    let info = GetNodeInfoResponse { default_node_info: Some(info), application_version: None };
    FakeNode::default().on(ACCOUNT, account_answer(4, 9)).on(NODE_INFO, Ok(info.encode_to_vec()))
}

/// The transaction that reached the node.
fn broadcast(node: &FakeNode) -> (Vec<u8>, DecodedTx) {
    let requests = node.requests(BROADCAST);
    let request: BroadcastTxRequest = decode_strict(requests.last().unwrap()).unwrap();
    assert_eq!(request.mode, 2);
    let tx = DecodedTx::decode(&request.tx_bytes, &Hrp::new("cosmos").unwrap()).unwrap();
    (request.tx_bytes, tx)
}

fn tx_words<'w>(home: &'w str, message: &'w [&'w str], more: &'w [&'w str]) -> Vec<&'w str> {
    let signing = ["--from", "alice", "--home", home, "--bech32-prefix", "cosmos"];
    ["tx"].into_iter().chain(message.iter().copied()).chain(signing).chain(more.iter().copied()).collect()
}

const SEND: [&str; 6] = ["bank", "send", "--to-address", "cosmos1to", "--amount", "7uhold,5uatom"];

#[test]
fn a_transfer_is_signed_for_chain_number_and_sequence_of_the_node_and_broadcast() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(0, ""));
    let more = ["--fees", "10uhold", "--gas", "90000", "--memo", "hi", "--timeout-height", "77", "-y"];
    let answer = run_with(&tx_words(&home, &SEND, &more), "", false, &node).json();
    assert_eq!(answer["txhash"], json!("AB".repeat(32)));
    let asked: QueryAccountRequest = decode_strict(&node.requests(ACCOUNT)[0]).unwrap();
    assert_eq!(asked.address, ABANDON_ADDRESS);

    let (_, tx) = broadcast(&node);
    let coin = |amount: &str, denom: &str| Coin { denom: denom.into(), amount: amount.into() };
    let expected = MsgSend {
        from_address: ABANDON_ADDRESS.into(),
        to_address: "cosmos1to".into(),
        amount: vec![coin("5", "uatom"), coin("7", "uhold")],
    };
    assert_eq!(tx.messages(), [Any { type_url: MsgSend::type_url(), value: expected.encode_to_vec() }]);
    assert_eq!((tx.gas_limit(), tx.memo(), tx.timeout_height()), (90_000, "hi", 77));
    assert_eq!((tx.fee()[0].amount, tx.fee()[0].denom.as_str()), (10, "uhold"));
    assert_eq!(tx.signer_infos()[0].sequence, 9);
    let key = SecretKey::from_mnemonic(ABANDON, 0).unwrap();
    // RFC 6979 leaves one signature for these bytes.
    assert_eq!(tx.signatures(), [key.sign(&tx.sign_bytes("test-1", 4)).to_vec()]);
    assert_eq!(tx.signer_infos()[0].public_key, Some(key.public_key()));
}

#[test]
fn generate_sign_broadcast_in_three_steps_gives_the_bytes_of_one_and_offline_too() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(0, ""));
    let fees = ["--fees", "10uhold", "--memo", "m"];
    run_with(&tx_words(&home, &SEND, &[&fees[..], &["-y"]].concat()), "", false, &node).json();
    let (direct, _) = broadcast(&node);

    let silent = FakeNode::default();
    let unsigned =
        run_with(&tx_words(&home, &SEND, &[&fees[..], &["--generate-only"]].concat()), "", false, &silent);
    let value = unsigned.json();
    assert_eq!(value["body"]["messages"][0]["@type"], json!("/cosmos.bank.v1beta1.MsgSend"));
    assert_eq!((&value["signatures"], &value["auth_info"]["signer_infos"]), (&json!([]), &json!([])));
    let identity = ["--chain-id", "test-1", "--account-number", "4", "--sequence", "9"];
    let signed = run_with(&tx_words(&home, &["sign", "-"], &identity), &unsigned.out, false, &silent);
    let stepwise = FakeNode::default().on(BROADCAST, broadcast_answer(0, ""));
    run_with(&["tx", "broadcast", "-"], &signed.out, false, &stepwise).json();
    assert_eq!(broadcast(&stepwise).0, direct);

    let offline = run_with(
        &tx_words(&home, &SEND, &[&fees[..], &["--offline"], &identity].concat()),
        "",
        false,
        &silent,
    );
    assert_eq!(offline.json(), signed.json());
    assert!(silent.calls.borrow().is_empty());
    for (missing, flag) in [(0, "--chain-id"), (2, "--account-number"), (4, "--sequence")] {
        let rest = [&identity[..missing], &identity[missing + 2..], &["--offline"]].concat();
        run_with(&tx_words(&home, &SEND, &rest), "", false, &silent).refused(14, &[flag, "--offline"]);
    }
    run_with(&["tx", "broadcast", "-"], "{\"body\": 1}", false, &silent).refused(46, &["body"]);
    run_with(&["tx", "broadcast", "no-such-file"], "", false, &silent).refused(21, &["no-such-file"]);
}

#[test]
fn a_message_as_json_is_the_message_as_flags() {
    let (_dir, home) = home_of_alice();
    let make = |words: &[&str]| run(&tx_words(&home, words, &["--generate-only"]));
    let hash = "ab".repeat(32);
    let flags = [
        "inference",
        "start-inference",
        "--requested-by",
        "r",
        "--inference-id",
        "i1",
        "--model",
        "m",
        "--assigned-to",
        "e",
        "--prompt-hash",
        &hash,
        "--prompt-tokens",
        "18446744073709551615",
        "--max-tokens",
        "2",
    ];
    let by_flags = make(&flags).json();
    let message = inference::MsgStartInference {
        signer: ABANDON_ADDRESS.into(),
        requested_by: "r".into(),
        inference_id: "i1".into(),
        model: "m".into(),
        assigned_to: "e".into(),
        prompt_hash: vec![0xab; 32],
        prompt_tokens: u64::MAX,
        max_tokens: 2,
    };
    let as_json =
        holdfast_proto::to_json(&inference::MsgStartInference::full_name(), &message.encode_to_vec())
            .unwrap();
    let mut shown = by_flags["body"]["messages"][0].clone();
    shown.as_object_mut().unwrap().remove("@type");
    assert_eq!(shown, as_json);
    let text = as_json.to_string();
    assert_eq!(make(&["inference", "start-inference", "--json", &text]).json(), by_flags);
    let words = tx_words(&home, &["inference", "start-inference", "--json-file", "-"], &["--generate-only"]);
    assert_eq!(run_with(&words, &text, false, &FakeNode::default()).json(), by_flags);

    let refused = |json: &str, code: u32, parts: &[&str]| {
        make(&["inference", "start-inference", "--json", json]).refused(code, parts)
    };
    refused("{\"modle\": \"m\"}", 13, &["--json", "modle", "signer, requested_by, inference_id, model"]);
    refused("{\"signer\": \"cosmos1other\"}", 12, &["signer must be", ABANDON_ADDRESS]);
    refused("{\"max_tokens\": \"x\"}", 12, &["--json", "max_tokens"]);
    refused("[]", 12, &["--json", "JSON object"]);
    refused("{", 12, &["--json", "JSON object"]);
    make(&["inference", "start-inference", "--json", "{}", "--model", "m"])
        .refused(15, &["--json", "--model"]);
    make(&["inference", "start-inference", "--json-file", "no-such-file"]).refused(21, &["no-such-file"]);
    make(&["inference", "start-inference", "--json", "{}", "--json-file", "x"])
        .refused(15, &["--json", "--json-file"]);
    make(&["inference", "start-inference", "--promt-hash", "00"])
        .refused(13, &["--promt-hash", "--prompt-hash", "--max-tokens"]);
    make(&["inference", "start-inference", "--model", "a", "--model", "b"]).refused(12, &["--model", "once"]);
}

#[test]
fn nested_repeated_enum_mask_and_negative_values_come_through_flags() {
    let (_dir, home) = home_of_alice();
    let message = |words: &[&str]| {
        run(&tx_words(&home, words, &["--generate-only"])).json()["body"]["messages"][0].clone()
    };
    let registered = message(&[
        "participants",
        "register-participant",
        "--validator-key",
        "0x0102",
        "--host-url",
        "http://h",
        "--workers",
        r#"{"url": "http://w1", "last_layer": 3}"#,
        "--workers",
        r#"{"url": "http://w2"}"#,
        "--models",
        "m1",
        "--models",
        "m2",
        "--poc-preserved",
        "--collateral",
        "12uhold",
    ]);
    assert_eq!(registered["participant"], json!(ABANDON_ADDRESS));
    assert_eq!(registered["validator_key"], json!("AQI="));
    assert_eq!(registered["workers"][0]["last_layer"], json!(3));
    assert_eq!(registered["workers"][1]["url"], json!("http://w2"));
    assert_eq!((&registered["models"], &registered["poc_preserved"]), (&json!(["m1", "m2"]), &json!(true)));
    assert_eq!(registered["collateral"], json!({"denom": "uhold", "amount": "12"}));
    let as_array = message(&[
        "participants",
        "update-participant",
        "--models",
        r#"["m1", "m2"]"#,
        "--poc-preserved",
        "false",
    ]);
    assert_eq!((&as_array["models"], &as_array["poc_preserved"]), (&json!(["m1", "m2"]), &json!(false)));
    assert_eq!(participants::MsgUpdateParticipant::type_url(), as_array["@type"].as_str().unwrap());

    for name in ["excluded", "EXCLUDED", "OVERRIDE_TO_EXCLUDED", "override-to-excluded"] {
        let forced = message(&["breaker", "set-breaker-override", "--to", name, "--until-block", "-1"]);
        assert_eq!((&forced["to"], &forced["until_block"]), (&json!("OVERRIDE_TO_EXCLUDED"), &json!("-1")));
    }
    let params = message(&[
        "epochs",
        "update-params",
        "--params",
        r#"{"epoch_length": "9"}"#,
        "--update-mask",
        "epoch_length, poc_length",
    ]);
    assert_eq!(params["params"]["epoch_length"], json!("9"));
    assert_eq!(params["update_mask"], json!("epochLength,pocLength"));
    let unknown = run(&tx_words(
        &home,
        &["epochs", "update-params", "--params", r#"{"epoch_lenght": 9}"#],
        &["--generate-only"],
    ));
    unknown.refused(12, &["--params", "epoch_lenght"]);
}

#[test]
fn gas_auto_asks_a_simulation_and_adds_the_adjustment() {
    let (_dir, home) = home_of_alice();
    let simulated =
        SimulateResponse { gas_info: Some(GasInfo { gas_wanted: 0, gas_used: 70_001 }), result: None };
    let node = node_with_account()
        .on(SIMULATE, Ok(simulated.encode_to_vec()))
        .on(BROADCAST, broadcast_answer(0, ""));
    run_with(&tx_words(&home, &SEND, &["--gas", "auto", "-y"]), "", false, &node).json();
    // 70,001 · 1.3 = 91,001.3, rounded up.
    assert_eq!(broadcast(&node).1.gas_limit(), 91_002);
    run_with(&tx_words(&home, &SEND, &["--gas", "auto", "--gas-adjustment", "2", "-y"]), "", false, &node)
        .json();
    assert_eq!(broadcast(&node).1.gas_limit(), 140_002);
    let words =
        ["--gas", "auto", "--offline", "--chain-id", "test-1", "--account-number", "1", "--sequence", "1"];
    run_with(&tx_words(&home, &SEND, &words), "", false, &node).refused(15, &["--gas", "--offline"]);
}

#[test]
fn nothing_is_sent_before_it_is_confirmed() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(0, ""));
    run_with(&tx_words(&home, &SEND, &[]), "y\n", false, &node).refused(45, &["--yes", "-y"]);
    run_with(&tx_words(&home, &SEND, &[]), "n\n", true, &node).refused(45, &["not confirmed"]);
    assert!(node.requests(BROADCAST).is_empty());
    let sent = run_with(&tx_words(&home, &SEND, &[]), "y\n", true, &node);
    assert!(sent.err.contains("to_address: cosmos1to") && sent.err.contains("[y/N]"), "{}", sent.err);
    assert_eq!(node.requests(BROADCAST).len(), 1);
}

#[test]
fn wait_looks_until_the_transaction_is_in_a_block_and_fails_with_its_code() {
    let (_dir, home) = home_of_alice();
    let failed = TxResponse {
        height: 12,
        code: 5,
        codespace: "bank".into(),
        raw_log: "too\nlittle".into(),
        txhash: "AB".repeat(32),
        ..TxResponse::default()
    };
    let failed = GetTxResponse { tx: None, tx_response: Some(failed) }.encode_to_vec();
    let node = node_with_account()
        .on(BROADCAST, broadcast_answer(0, ""))
        .on(GET_TX, not_found())
        .on(GET_TX, Ok(failed));
    let ended = run_with(&tx_words(&home, &SEND, &["-y", "--wait=5"]), "", false, &node);
    ended.refused(43, &["too little", "codespace bank, code 5"]);
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(shown["height"], json!("12"));
    let asked: GetTxRequest = decode_strict(&node.requests(GET_TX)[0]).unwrap();
    assert_eq!(asked.hash, "AB".repeat(32));
    assert_eq!(node.requests(GET_TX).len(), 2);

    let never = node_with_account().on(BROADCAST, broadcast_answer(0, "")).on(GET_TX, not_found());
    run_with(&tx_words(&home, &SEND, &["-y", "--wait=1"]), "", false, &never)
        .refused(44, &["--wait", "query tx ABAB"]);
}

#[test]
fn refusals_of_the_node_keep_codespace_code_or_status() {
    let (_dir, home) = home_of_alice();
    let node = node_with_account().on(BROADCAST, broadcast_answer(32, "account sequence mismatch"));
    run_with(&tx_words(&home, &SEND, &["-y"]), "", false, &node)
        .refused(43, &["account sequence mismatch", "codespace sdk, code 32"]);
    let empty = FakeNode::default().on(ACCOUNT, not_found());
    run_with(&tx_words(&home, &SEND, &["-y", "--chain-id", "test-1"]), "", false, &empty)
        .refused(42, &["--from", ABANDON_ADDRESS, "send it coins"]);
    let away = Err(CallFailure { status: None, message: "refused".into() });
    let away = FakeNode::default().on("/cosmos.bank.v1beta1.Query/TotalSupply", away);
    run_with(&["query", "bank", "total-supply"], "", false, &away)
        .refused(41, &["--grpc-addr", "start a node"]);
    run(&["tx", "bank", "send", "--from", "nobody", "--home", &home]).refused(33, &["nobody"]);
    run(&["tx", "bank", "send"]).refused(14, &["--from"]);
}

#[test]
fn a_query_sends_its_fields_page_and_height_and_prints_the_answer() {
    let path = "/cosmos.bank.v1beta1.Query/Balance";
    let answer = QueryBalanceResponse { balance: Some(Coin { denom: "uhold".into(), amount: "5".into() }) };
    let node = FakeNode::default().on(path, Ok(answer.encode_to_vec()));
    let words = ["query", "bank", "balance", "--address", "a", "--denom", "uhold", "--height", "33"];
    assert_eq!(
        run_with(&words, "", false, &node).json(),
        json!({"balance": {"denom": "uhold", "amount": "5"}})
    );
    assert_eq!(node.calls.borrow()[0].2, Some(33));
    let text = run_with(&[&words[..], &["-o", "text"]].concat(), "", false, &node).out;
    assert_eq!(text, "balance:\n  amount: \"5\"\n  denom: uhold\n");

    let path = "/cosmos.bank.v1beta1.Query/AllBalances";
    let node = FakeNode::default().on(path, Ok(Vec::new()));
    let words =
        ["q", "bank", "all-balances", "--address", "a", "--page-key", "AQI=", "--limit", "3", "--reverse"];
    run_with(&words, "", false, &node).json();
    let page = PageRequest { key: vec![1, 2], offset: 0, limit: 3, count_total: false, reverse: true };
    let expected =
        QueryAllBalancesRequest { address: "a".into(), pagination: Some(page), resolve_denom: false };
    assert_eq!(decode_strict::<QueryAllBalancesRequest>(&node.requests(path)[0]), Ok(expected));
    assert_eq!(node.calls.borrow()[0].2, None);

    let node = FakeNode::default().on(path, Ok(vec![0xff]));
    run_with(&["q", "bank", "all-balances"], "", false, &node).refused(47, &["AllBalances"]);
}

#[test]
fn an_optional_field_is_sent_when_given_even_if_it_is_zero() {
    let path = "/holdfast.inference.v1.Query/ParticipantStats";
    let node = FakeNode::default().on(path, Ok(Vec::new()));
    run_with(&["query", "inference", "participant-stats", "--epoch", "0"], "", false, &node).json();
    run_with(&["query", "inference", "participant-stats"], "", false, &node).json();
    let sent: Vec<Option<u64>> = node
        .requests(path)
        .iter()
        .map(|bytes| decode_strict::<inference::QueryParticipantStatsRequest>(bytes).unwrap().epoch)
        .collect();
    assert_eq!(sent, [Some(0), None]);
}

#[test]
fn the_height_of_a_block_query_is_its_field_and_a_transaction_is_found_by_hash() {
    let path = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";
    let node = FakeNode::default().on(path, Ok(GetBlockByHeightResponse::default().encode_to_vec()));
    run_with(&["query", "tendermint", "get-block-by-height", "--height", "8"], "", false, &node).json();
    assert_eq!(decode_strict(&node.requests(path)[0]), Ok(GetBlockByHeightRequest { height: 8 }));
    assert_eq!(node.calls.borrow()[0].2, None);

    let node = FakeNode::default().on(GET_TX, not_found());
    let hash = "0x".to_owned() + &"ab".repeat(32);
    run_with(&["query", "tx", &hash], "", false, &node)
        .refused(42, &["GetTx", "not there", "status 5 not found"]);
    assert_eq!(decode_strict(&node.requests(GET_TX)[0]), Ok(GetTxRequest { hash: "AB".repeat(32) }));
}

#[test]
fn completion_scripts_know_every_kind_of_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = run(&["completion", shell]);
        assert_eq!(script.failure, None);
        for word in ["start-inference", "get-random-executor", "skip-bad-rows", "chain-id"] {
            assert!(script.out.contains(word), "{shell} lacks {word}");
        }
        // The generator for fish knows no flags at the third level.
        assert_eq!(script.out.contains("prompt-hash"), shell != "fish", "{shell}");
    }
}

#[test]
fn version_is_one_line_and_long_says_more() {
    assert_eq!(run(&["version"]).out, format!("{}\n", env!("CARGO_PKG_VERSION")));
    let long = run(&["version", "--long", "--output", "json"]).json();
    assert_eq!(
        (&long["server_name"], &long["version"]),
        (&json!("holdfastd"), &json!(env!("CARGO_PKG_VERSION")))
    );
    assert!(run(&["version", "--long"]).out.contains("name: holdfast\n"));
    assert!(run(&["--version"]).out.starts_with("holdfastd "));
}

#[test]
fn unknown_commands_list_those_that_exist() {
    run(&["tx", "bankk"])
        .refused(11, &["bankk", "auth, bank, breaker, epochs, escrow, gov, inference, participants"]);
    run(&["query", "inference", "get-random"]).refused(11, &["get-random-executor", "sprt"]);
    run(&["frobnicate"]).refused(
        11,
        &["init, start, devnet, testnet, localnet, worker, host, infer, gateway, generate, matrix, keys"],
    );
    let (help, exit) = run(&["tx"]).failure.unwrap();
    assert!(help.contains("inference") && exit == 2);
}

#[test]
fn text_is_indented_and_quotes_what_would_read_as_something_else() {
    let value = json!({
        "list": [{"a": 1, "b": [true, "true"]}, "x", [], {}],
        "none": null,
        "number": "12",
        "path": "/a/b c",
        "empty": "",
    });
    let expected = "empty: \"\"\nlist:\n- a: 1\n  b:\n  - true\n  - \"true\"\n- x\n- []\n- {}\nnone: null\nnumber: \"12\"\npath: /a/b c\n";
    assert_eq!(super::output::text(&value), expected);
}

#[test]
fn error_codes_are_ascending_and_none_is_used_twice() {
    let codes: Vec<u32> = CLI_ERROR_CODES.iter().map(|(code, _)| *code).collect();
    assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
}

#[test]
fn a_worker_is_told_which_layers_and_addresses_there_are() {
    for layers in ["", "2", "2..2", "3..2", "a..b", "0..+1", "-1..2", "0..", "..4", "0..=3", "0..99999999999"]
    {
        run(&["worker", &format!("--layers={layers}")]).refused(12, &["--layers", "A..B"]);
    }
    run(&["worker", "--layers", "3..5"]).refused(12, &["--layers", "0..4"]);
    run(&["worker", "--backend", "none"]).refused(12, &["--backend", "reference"]);
    run(&["worker", "--capacity", "0"]).refused(12, &["--capacity", "1 to 16777216"]);
    run(&["worker", "--name", "a b"]).refused(12, &["--name"]);
    run(&["worker", "--listen", "somewhere:1"]).refused(12, &["--listen", "IP:PORT"]);
    run(&["worker", "--listen", "192.0.2.1:0"]).refused(92, &["--listen", "192.0.2.1:0"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(&["worker", "--listen", &address]).refused(81, &["--listen", &address]);
}

#[test]
fn the_code_table_of_the_documentation_is_that_of_the_command_line() {
    let doc = include_str!("../../../../docs/codes.md");
    let section = doc.split_once("\n## Command line\n").unwrap().1.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| code"));
    let rows: Vec<String> = rows.map(str::to_owned).collect();
    let expected: Vec<String> =
        CLI_ERROR_CODES.iter().map(|(code, text)| format!("| {code} | {text} |")).collect();
    assert_eq!(rows, expected);
}

#[test]
fn a_wrong_number_is_a_wrong_value_whatever_its_sign() {
    for words in [
        &["testnet", "--output", "x", "--base-port", "0"][..],
        &["testnet", "--output", "x", "--base-port", "-1"],
        &["testnet", "--output", "x", "--validators", "-1"],
        &["testnet", "--output", "x", "--snapshot-interval", "-1"],
        &["localnet", "x", "--blocks", "-5"],
        &["devnet", "--blocks", "-1"],
        &["start", "--min-retain-blocks", "-1"],
        &["start", "--block-seconds", "-1"],
        &["start", "--unsafe-skip-upgrades", "-1.5"],
        &["rollback", "--height", "-1"],
        &["snapshot", "restore", "-1", "1"],
        &["snapshot", "delete", "1", "-1"],
        &["snapshot", "create", "--height", "-1"],
        &["export", "--height", "-1"],
        &["query", "bank", "total-supply", "--height", "-1"],
        &["query", "epochs", "epoch", "--index", "-1"],
        &["query", "bank", "total-supply", "--limit", "-1"],
    ] {
        let error = run(words);
        let number =
            words.iter().find(|word| word.starts_with('-') && !word.starts_with("--")).unwrap_or(&"0");
        error.refused(12, &[number]);
    }
    run(&["testnet", "--output", "x", "--base-port", "0"]).refused(12, &["--base-port", "from 1 to 65535"]);
}

#[test]
fn no_error_repeats_more_than_a_part_of_what_was_typed() {
    let long = "x".repeat(100_000);
    for words in [
        &["status", "--grpc-addr", &long][..],
        &["export", "--home", &long],
        &["rollback", "--home", &long],
        &["keys", "show", &long],
        &["init", &long, "--chain-id", "a-1"],
        &["devnet", "--trace", &long],
        &["localnet", &long],
        &["snapshot", "restore", "--from", &long],
        &["query", "breaker", "what-if", "--params", &long],
        &["query", "bank", "balance", "--address", &long, "--nothing"],
        &[&long],
    ] {
        let (line, _) = run(words).failure.unwrap();
        assert!(line.chars().count() < 5_000, "{words:.20?}: {} characters", line.chars().count());
    }
}

#[test]
fn a_test_network_is_whole_reproducible_by_its_seed_and_not_made_twice() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let make = |name: &str, more: &[&str]| {
        let output = place(name);
        let words = ["testnet", "--output", &output, "--validators", "3", "--base-port", "23000"];
        run(&[&words[..], more].concat())
    };
    let made = make("one", &["--key-seed", "7", "--voting-period", "20", "--snapshot-interval", "9"]).json();
    assert_eq!(
        (made["nodes"].as_array().unwrap().len(), &made["nodes"][2]["rpc"]),
        (3, &json!("127.0.0.1:23021"))
    );
    let read = |name: &str| fs::read_to_string(place(name)).unwrap();
    let toml: toml::Table = read("one/node1/config/config.toml").parse().unwrap();
    assert_eq!(toml["proxy_app"].as_str(), Some("tcp://127.0.0.1:23012"));
    let peers = toml["p2p"]["persistent_peers"].as_str().unwrap();
    assert!(peers.contains("@127.0.0.1:23000,") && peers.ends_with("@127.0.0.1:23020"), "{peers}");
    let app = read("one/node1/config/app.toml");
    assert!(app.contains("\"127.0.0.1:23013\"") && app.contains("snapshot-interval = 9"), "{app}");
    let genesis: Value = serde_json::from_str(&read("one/node0/config/genesis.json")).unwrap();
    assert_eq!(genesis["app_state"]["participants"]["participants"].as_array().unwrap().len(), 3);
    assert_eq!(genesis["app_state"]["gov"]["params"]["voting_period"], json!("20s"));
    assert_eq!(read("one/node0/config/genesis.json"), read("one/node2/config/genesis.json"));
    let home = place("one/node2");
    assert_eq!(run(&["genesis", "validate", "--home", &home]).json()["valid"], json!(true));
    let shown = run(&["keys", "show", "validator2", "--address", "--home", &home]).out;
    assert_eq!(json!(shown.trim()), made["accounts"][2]["address"]);
    assert_mode(&Path::new(&home).join("config/node_key.json"));
    assert_mode(Path::new(&place("one/testnet.json")));

    make("one", &[]).refused(22, &["is not empty"]);
    assert_eq!(make("two", &["--key-seed", "7"]).json()["accounts"], made["accounts"]);
    assert_ne!(make("three", &[]).json()["accounts"], made["accounts"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:23012").unwrap();
    make("four", &[]).refused(81, &["127.0.0.1:23012", "node1", "abci", "--base-port"]);
    drop(taken);
    assert!(!Path::new(&place("four")).exists());
    let output = place("five");
    let high = ["testnet", "--output", &output, "--base-port", "65530"];
    run(&high).refused(12, &["--base-port", "65535"]);
}

#[test]
fn a_local_network_needs_cometbft_and_a_folder_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    run(&["localnet", &at("net"), "--cometbft", &at("none")]).refused(82, &["--cometbft", "go install"]);
    fs::create_dir(dir.path().join("other")).unwrap();
    fs::write(dir.path().join("other/file"), "x").unwrap();
    fs::write(dir.path().join("cometbft"), "").unwrap();
    let (comet, other) = (at("cometbft"), at("other"));
    run(&["localnet", &other, "--cometbft", &comet]).refused(23, &["testnet.json", "no test network"]);
    run(&["localnet", &at("net"), "--cometbft", &comet, "--json", &other]).refused(12, &["--json", "folder"]);
}

#[test]
fn a_gateways_network_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(at("full")).unwrap();
    for file in ["full/x", "file"] {
        fs::write(at(file), "x").unwrap();
    }
    run(&["localnet"]).refused(14, &["<DIR>", "localnet --help"]);
    run(&["localnet", "x", "--gateway"]).refused(15, &["DIR", "--gateway", "--home"]);
    run(&["localnet", "x", "--hosts", "3"]).refused(14, &["--gateway"]);
    let net = |more: &[&str]| run(&[&["localnet", "--gateway"], more].concat());
    net(&["--home", &at("full")]).refused(22, &["full", "empty folder"]);
    net(&["--home", &at("file")]).refused(12, &["--home", "is no folder"]);
    net(&["--json", &at("full")]).refused(12, &["--json", "folder"]);
    net(&["--report", &at("file/x")]).refused(21, &["file/x"]);
    let home = at("new");
    net(&["--home", &home, "--hosts", "3", "--fault", "fork:host3@nonce4"]).refused(12, &["host0 to host2"]);
    assert!(!dir.path().join("new").exists(), "nothing was written");
}

#[test]
fn a_host_and_its_client_say_what_they_lack() {
    let (dir, home) = home_of_alice();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    let prefix = ["--bech32-prefix", "cosmos", "--home", &home];
    let host = |words: &[&str]| run(&[&["host"], words, &prefix[..]].concat());
    host(&[]).refused(14, &["--from"]);
    host(&["--from", "bob"]).refused(33, &["bob", "keys list"]);
    host(&["--from", "alice", "--backend", "openai-http"]).refused(14, &["--upstream"]);
    host(&["--from", "alice", "--ledger", file]).refused(95, &["--ledger", file]);
    host(&["--from", "alice", "--workers", "2", "--worker-from-chain"]).refused(15, &["--workers"]);
    host(&["--from", "alice", "--worker-url", "h:1", "--worker-from-chain"]).refused(15, &["--worker-url"]);
    // Nobody listens on a port that was free just now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    host(&["--from", "alice", "--grpc-addr", &free]).refused(41, &["--grpc-addr", "start a node"]);

    let infer = |words: &[&str]| {
        let all =
            [&["infer", "--from", "alice", "--chain-id", "test-1", "--host", &free], words, &prefix[..]];
        run(&all.concat())
    };
    infer(&["--inference-id", "i"]).refused(14, &["--body"]);
    infer(&["--body", "{}"]).refused(14, &["--inference-id"]);
    infer(&["--inference-id", "i", "--body", "@/no/such/file"]).refused(21, &["/no/such/file"]);
    infer(&["--inference-id", "i", "--body", "{}"]).refused(41, &["--host", &free]);
    let words = ["infer", "--from", "alice", "--inference-id", "i", "--body", "{}"];
    run(&[&words[..], &prefix[..]].concat()).refused(14, &["--chain-id"]);
}
