//! Home folders, keys, genesis, and the settings of a start.

use super::*;

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
        crate::cli::devnet::DevnetArgs::from_arg_matches(matches.subcommand_matches("devnet").unwrap())
            .unwrap();
    crate::cli::devnet::config(&args, crate::cli::devnet::command_line(&words)).unwrap()
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

fn start_config(home: &str, more: &[&str]) -> anyhow::Result<crate::cli::StartConfig> {
    use clap::FromArgMatches;
    let words: Vec<&str> =
        ["holdfastd", "start", "--home", home].into_iter().chain(more.iter().copied()).collect();
    let matches = command()?.try_get_matches_from(words)?;
    crate::cli::start::config(&crate::cli::start::StartArgs::from_arg_matches(
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
