//! The command line against a node that runs.

use serde_json::json;

use crate::chain::{Chain, DENOM, FUNDS, MODELS, address};
use crate::process::{Ran, SHORT, command, holdfast, run_with};

/// The phrase whose first address, `cosmos19rl4...`, every Cosmos wallet knows.
const ABANDON: &str =
    "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about\n";
fn bytes_of(address: &str) -> Vec<u8> {
    address.parse::<cosmrs::AccountId>().expect("an address").to_bytes()
}

#[test]
fn keys_transfers_and_queries_work_from_the_command_line() {
    let chain = Chain::with_executors("cli-1", &[1, 9], &[(9, 100)]);
    let home = chain.home();

    let made = holdfast(&["keys", "add", "alice", "--home", &home]).json();
    let alice = made["address"].as_str().expect("an address").to_owned();
    assert_eq!(made["mnemonic"].as_str().expect("a phrase").split(' ').count(), 24);
    let recovered =
        run_with(&mut command(&["keys", "add", "bob", "--recover", "--home", &home]), ABANDON, SHORT).json();
    let bob = recovered["address"].as_str().expect("an address").to_owned();
    assert_eq!(bytes_of(&bob), bytes_of("cosmos19rl4cm2hmr8afy4kldpxz3fka4jguq0auqdal4"));
    let listed = holdfast(&["keys", "list", "--home", &home]).json();
    let names: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|k| k["name"].as_str()).collect();
    assert_eq!(names, ["alice", "bob"]);
    let shown = holdfast(&["keys", "show", "alice", "--home", &home]).json();
    assert_eq!((&shown["address"], shown.get("mnemonic")), (&made["address"], None));
    assert_eq!(holdfast(&["keys", "show", "alice", "--address", "--home", &home]).ok().trim(), alice);
    holdfast(&["keys", "show", "carol", "--home", &home])
        .refused(1, &["carol", "keys list", "(cli error 33)"]);
    holdfast(&["keys", "add", "alice", "--home", &home]).refused(1, &["alice", "(cli error 32)"]);

    holdfast(&["genesis", "add-account", "alice", &format!("{FUNDS}{DENOM}"), "--home", &home]).ok();
    let node = chain.start("0.2");
    let addr = node.addr.clone();
    let tx = |words: &[&str]| -> Ran {
        let mut args = vec!["tx"];
        args.extend(words);
        args.extend(["--home", &home, "--grpc-addr", &addr]);
        holdfast(&args)
    };
    let query = |words: &[&str]| -> Ran {
        let mut args = vec!["query"];
        args.extend(words);
        args.extend(["--grpc-addr", &addr]);
        holdfast(&args)
    };
    let balance = |of: &str| {
        let answer = query(&["bank", "balance", "--address", of, "--denom", DENOM]).json();
        answer["balance"]["amount"].as_str().and_then(|a| a.parse::<u128>().ok()).expect("an amount")
    };

    // A transfer, in a block when the command returns.
    let send = ["bank", "send", "--from", "alice", "--to-address", &bob, "--amount", "700uhold"];
    let sent =
        tx(&[&send[..], &["--fees", "300uhold", "--memo", "hello", "--yes", "--wait"]].concat()).json();
    let hash = sent["txhash"].as_str().expect("a hash").to_owned();
    assert_eq!((sent["code"].as_u64(), sent["gas_wanted"].as_str()), (Some(0), Some("200000")), "{sent}");
    assert_eq!((balance(&alice), balance(&bob)), (FUNDS - 1_000, 700));
    let found = query(&["tx", &hash]).json();
    assert_eq!(found["tx"]["body"]["memo"], "hello");
    assert_eq!(found["tx"]["body"]["messages"][0]["@type"], "/cosmos.bank.v1beta1.MsgSend");
    let height = found["tx_response"]["height"].as_str().expect("a height").to_owned();

    // Gas from a simulation; a second transaction of the same account.
    let sent = tx(&[&send[..], &["--gas", "auto", "--yes", "--wait=30"]].concat()).json();
    assert_eq!(sent["code"].as_u64(), Some(0), "{sent}");
    let number = |name: &str| sent[name].as_str().and_then(|n| n.parse::<u64>().ok()).expect("a number");
    assert!(number("gas_used") <= number("gas_wanted") && number("gas_wanted") < 200_000, "{sent}");
    assert_eq!((balance(&alice), balance(&bob)), (FUNDS - 1_700, 1_400));

    // Three steps on three machines: draft, sign, broadcast.
    let file = |name: &str, text: String| {
        let path = chain.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.to_str().expect("UTF-8").to_owned()
    };
    let draft = file("draft.json", tx(&[&send[..], &["--generate-only"]].concat()).ok());
    let signed = file("signed.json", tx(&["sign", &draft, "--from", "alice"]).ok());
    let sent = tx_broadcast(&signed, &addr).json();
    assert_eq!(sent["code"].as_u64(), Some(0), "{sent}");
    assert_eq!(balance(&bob), 2_100);
    tx_broadcast(&signed, &addr).refused(1, &["tx already exists in cache", "19"]);

    // Queries, the draw among them, at the last height and at an older one.
    let drawn = query(&["inference", "get-random-executor", "--model", MODELS[0]]).json();
    assert_eq!(drawn["executor"]["address"], address(9).to_string());
    assert_eq!((&drawn["lane"], &drawn["eligible_count"]), (&json!("LANE_HEALTHY"), &json!(1)));
    let old = query(&["bank", "balance", "--address", &bob, "--denom", DENOM, "--height", &height]).json();
    assert_eq!(old["balance"]["amount"], "700");
    let before = (height.parse::<i64>().expect("a number") - 1).to_string();
    let old = query(&["bank", "balance", "--address", &bob, "--denom", DENOM, "--height", &before]).json();
    assert_eq!(old["balance"]["amount"], "0");
    let text =
        query(&["participants", "participant", "--participant", address(9).as_ref(), "-o", "text"]).ok();
    assert!(text.contains("collateral: \"100\"") && text.contains("- model-1"), "{text}");
    query(&["inference", "get-random-executor", "--model", "none"])
        .refused(1, &["GetRandomExecutor", "not registered", "not found", "(cli error 42)"]);
    query(&["bank", "balance", "--address", &bob, "--denom", DENOM, "--height", "1000000"])
        .refused(1, &["not reached yet", "out of range", "(cli error 42)"]);

    // A refusal by the chain keeps its codespace and code, and costs nothing.
    let before = balance(&alice);
    let much = ["bank", "send", "--from", "alice", "--to-address", &bob, "--amount", "1uhold"];
    let refused = tx(&[&much[..], &["--fees", "2000000000uhold", "--yes"]].concat());
    refused.refused(1, &["sdk", "5", "(cli error 43)"]);
    tx(&[&much[..], &["--sequence", "99", "--yes"]].concat())
        .refused(1, &["account sequence mismatch, expected 3, got 99", "(cli error 43)"]);
    assert_eq!(balance(&alice), before);
    assert_eq!(node.stop("TERM").status.code(), Some(0));
    query(&["bank", "total-supply"]).refused(1, &["--grpc-addr", "start a node", "(cli error 41)"]);
}

/// Broadcasting needs no home folder.
fn tx_broadcast(file: &str, addr: &str) -> Ran {
    holdfast(&["tx", "broadcast", file, "--grpc-addr", addr, "--wait"])
}

#[test]
fn version_completion_and_help_need_no_node() {
    assert_eq!(holdfast(&["version"]).ok().trim(), env!("CARGO_PKG_VERSION"));
    let long = holdfast(&["version", "--long", "--output", "json"]).json();
    assert_eq!(long["server_name"], "holdfastd");
    let script = holdfast(&["completion", "bash"]).ok();
    assert!(
        script.contains("complete -F _holdfastd") && script.contains("get-random-executor"),
        "no bash script"
    );
    let help = holdfast(&["--help"]).ok();
    for verb in ["init", "start", "devnet", "keys", "genesis", "tx", "query", "version", "completion"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is not in:\n{help}");
    }
    holdfast(&["qery"]).refused(2, &["query", "(cli error 11)"]);
}

#[test]
fn a_command_whose_reader_has_gone_ends_without_a_word_and_without_failure() {
    let chain = Chain::with_executors("pipe-1", &[1, 9], &[(9, 100)]);
    let home = chain.home();
    for words in [
        &["version"][..],
        &["--help"],
        &["query", "breaker", "--help"],
        &["completion", "bash"],
        &["keys", "list", "--home", &home],
        &["snapshot", "list", "--home", &home],
        &["genesis", "validate", "--home", &home],
        &["devnet", "--headless", "--blocks", "3", "--executors", "2*healthy"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ended = command(words).stdout(writer).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && said.is_empty(), "{words:?}: {}: {said}", ended.status);
    }
}
