//! Completion, versions, texts, codes, and programs that need more than a home.

use super::*;

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
    assert_eq!(crate::cli::output::text(&value), expected);
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
    let doc = include_str!("../../../../../docs/codes.md");
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
