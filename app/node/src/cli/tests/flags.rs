//! Every flag refuses a bad value by its name.

use super::*;

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
