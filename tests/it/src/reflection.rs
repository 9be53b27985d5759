//! grpcurl, the real one, knowing nothing but the address.

use std::process::Command;

use serde_json::{Value, json};

use crate::chain::{Chain, MODELS, Node, address, module_address};
use crate::client::HEIGHT_HEADER;
use crate::process::{Ran, SHORT, grpcurl, run};
use crate::reads::requests;

/// Every service of a node.
const SERVICES: [&str; 23] = [
    "cosmos.auth.v1beta1.Msg",
    "cosmos.auth.v1beta1.Query",
    "cosmos.bank.v1beta1.Msg",
    "cosmos.bank.v1beta1.Query",
    "cosmos.base.tendermint.v1beta1.Service",
    "cosmos.gov.v1.Msg",
    "cosmos.gov.v1.Query",
    "cosmos.tx.v1beta1.Service",
    "cosmos.upgrade.v1beta1.Msg",
    "cosmos.upgrade.v1beta1.Query",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "holdfast.breaker.v1.Msg",
    "holdfast.breaker.v1.Query",
    "holdfast.epochs.v1.Msg",
    "holdfast.epochs.v1.Query",
    "holdfast.escrow.v1.Msg",
    "holdfast.escrow.v1.Query",
    "holdfast.inference.v1.Msg",
    "holdfast.inference.v1.Query",
    "holdfast.participants.v1.Msg",
    "holdfast.participants.v1.Query",
];

#[track_caller]
fn ask(node: &Node, flags: &[&str], rest: &[&str]) -> Ran {
    let mut command = Command::new(grpcurl());
    command.args(["-plaintext", "-max-time", "30"]).args(flags).arg(&node.addr).args(rest);
    run(&mut command, SHORT)
}

#[track_caller]
fn refused(ran: Ran, code: &str, text: &str) {
    assert!(!ran.status.success(), "{}", ran.out);
    assert!(ran.err.contains(&format!("Code: {code}")) && ran.err.contains(text), "{}", ran.err);
}

/// The value of a response header in what `-v` prints.
fn header(out: &str, name: &str) -> Option<String> {
    let headers = out.split("Response headers received:").nth(1)?.split("Response contents:").next()?;
    headers.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned)
}

#[test]
fn grpcurl_lists_and_describes_every_service_and_every_message_in_it() {
    let chain = Chain::new("list-1", &[1]);
    let node = chain.start("1");
    let listed = ask(&node, &[], &["list"]).ok();
    assert_eq!(listed.lines().collect::<Vec<_>>(), SERVICES);
    let mut methods = 0;
    for service in SERVICES {
        let described = ask(&node, &[], &["describe", service]).ok();
        assert!(described.contains(&format!("{service} is a service:")), "{described}");
        // Comments and custom options came along: the descriptors are whole.
        if service.starts_with("holdfast.") {
            assert!(described.contains("// "), "{described}");
        }
        methods += described.lines().filter(|line| line.trim_start().starts_with("rpc ")).count();
    }
    // 49 queries, 31 messages, 3 calls of tx, 2 of health, 2 of reflection.
    assert_eq!(methods, 87);
    let message = ask(&node, &[], &["describe", "holdfast.inference.v1.MsgStartInference"]).ok();
    assert!(message.contains("option (.cosmos.msg.v1.signer) = \"signer\";"), "{message}");
    assert!(message.contains("bytes prompt_hash = 6;"), "{message}");
}

#[test]
fn grpcurl_calls_every_query_with_json() {
    let chain = Chain::with_executors("call-1", &[1, 2, 9], &[(9, 100)]).with_proposal(1, 9);
    let node = chain.start("0.5");
    node.reach(2);
    let mut answers = std::collections::BTreeMap::new();
    for (path, request) in requests() {
        let ran = ask(&node, &["-emit-defaults", "-d", &request.to_string()], &[path]);
        if path.ends_with("/Inference") {
            refused(ran, "NotFound", "open");
            continue;
        }
        if path.ends_with("/Escrow") {
            refused(ran, "NotFound", "no escrow 1");
            continue;
        }
        answers.insert(path, ran.json());
    }
    let at = |path: &str, pointer: &str| answers[path].pointer(pointer).cloned().unwrap_or(Value::Null);
    let executor = address(9).to_string();
    assert_eq!(at("cosmos.auth.v1beta1.Query/Account", "/account/@type"), "/cosmos.auth.v1beta1.BaseAccount");
    assert_eq!(at("cosmos.auth.v1beta1.Query/Account", "/account/address"), address(1).to_string());
    assert_eq!(at("cosmos.auth.v1beta1.Query/Accounts", "/accounts").as_array().map(Vec::len), Some(3));
    assert_eq!(
        at("cosmos.bank.v1beta1.Query/Balance", "/balance"),
        json!({ "denom": "uhold", "amount": "1000000000" })
    );
    // Three accounts, what the executor has bonded, and a deposit.
    assert_eq!(at("cosmos.bank.v1beta1.Query/SupplyOf", "/amount/amount"), "3010000100");
    assert_eq!(
        at("cosmos.base.tendermint.v1beta1.Service/GetNodeInfo", "/defaultNodeInfo/network"),
        "call-1"
    );
    assert_eq!(at("cosmos.auth.v1beta1.Query/Params", "/params/maxMemoCharacters"), "256");
    let message = "holdfast.participants.v1.MsgRegisterModel";
    for proposal in ["cosmos.gov.v1.Query/Proposal", "cosmos.gov.v1.Query/Proposals"] {
        let from = if proposal.ends_with('s') { "/proposals/0" } else { "/proposal" };
        assert_eq!(at(proposal, &format!("{from}/status")), "PROPOSAL_STATUS_VOTING_PERIOD");
        // grpcurl knows the packed message by reflection alone.
        let packed = at(proposal, &format!("{from}/messages/0/@type"));
        assert!(packed.as_str().is_some_and(|name| name.ends_with(message)), "{packed}");
        assert_eq!(at(proposal, &format!("{from}/messages/0/model/id")), "model-3");
    }
    let yes = json!({ "option": "VOTE_OPTION_YES", "weight": "1.000000000000000000" });
    assert_eq!(at("cosmos.gov.v1.Query/Vote", "/vote/options"), json!([yes]));
    assert_eq!(at("cosmos.gov.v1.Query/Votes", "/votes/0/voter"), executor);
    assert_eq!(at("cosmos.gov.v1.Query/Params", "/params/quorum"), "0.334000000000000000");
    assert_eq!(at("cosmos.gov.v1.Query/Params", "/tallyParams/threshold"), "0.500000000000000000");
    assert_eq!(at("cosmos.gov.v1.Query/Deposit", "/deposit/amount/0/amount"), "10000000");
    assert_eq!(at("cosmos.gov.v1.Query/Deposits", "/deposits/0/depositor"), address(1).to_string());
    assert_eq!(at("cosmos.gov.v1.Query/TallyResult", "/tally/yesCount"), "100");
    assert_eq!(at("cosmos.upgrade.v1beta1.Query/CurrentPlan", "/plan/name"), "v9");
    assert_eq!(at("cosmos.upgrade.v1beta1.Query/AppliedPlan", "/height"), "0");
    let versions = at("cosmos.upgrade.v1beta1.Query/ModuleVersions", "/moduleVersions");
    let version = |name: &str| {
        let rows = versions.as_array().into_iter().flatten();
        rows.filter(|row| row["name"] == name).map(|row| row["version"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((version("gov"), version("participants")), (vec![json!("1")], vec![json!("2")]), "{versions}");
    let gov = module_address("gov").to_string();
    assert_eq!(at("cosmos.upgrade.v1beta1.Query/Authority", "/address"), gov);
    assert_eq!(at("holdfast.escrow.v1.Query/Params", "/params/maxNonce"), "20000");
    assert_eq!(at("holdfast.breaker.v1.Query/CircuitBreaker", "/effectiveState"), "STATE_HEALTHY");
    assert_eq!(at("holdfast.breaker.v1.Query/WhatIf", "/inForce"), true);
    assert_eq!(at("holdfast.breaker.v1.Query/WhatIf", "/agrees"), true);
    assert_eq!(at("holdfast.participants.v1.Query/Validators", "/validators/0/participant"), executor);
    // A thousand for a unit of weight.
    assert_eq!(at("holdfast.participants.v1.Query/Validators", "/validators/0/power"), "100000");
    assert_eq!(at("holdfast.breaker.v1.Query/BreakerSummary", "/eligibleWeight"), "100");
    assert_eq!(at("holdfast.epochs.v1.Query/CurrentEpoch", "/epoch/length"), "25");
    assert_eq!(at("holdfast.inference.v1.Query/GetRandomExecutor", "/executor/address"), executor);
    assert_eq!(at("holdfast.inference.v1.Query/GetRandomExecutor", "/lane"), "LANE_HEALTHY");
    assert_eq!(at("holdfast.inference.v1.Query/CandidateTable", "/rows/0/weight"), "100");
    assert_eq!(at("holdfast.participants.v1.Query/Participant", "/participant/models"), json!(MODELS));
    assert_eq!(at("holdfast.participants.v1.Query/EpochGroup", "/members/0/participant"), executor);

    assert_eq!(ask(&node, &[], &["grpc.health.v1.Health/Check"]).json()["status"], "SERVING");
    let service = json!({ "service": "holdfast.inference.v1.Query" }).to_string();
    assert_eq!(ask(&node, &["-d", &service], &["grpc.health.v1.Health/Check"]).json()["status"], "SERVING");
    let unknown = json!({ "service": "nobody" }).to_string();
    refused(ask(&node, &["-d", &unknown], &["grpc.health.v1.Health/Check"]), "NotFound", "");
    let broken = json!({ "address": "hold1x", "denom": "uhold" }).to_string();
    refused(
        ask(&node, &["-d", &broken], &["cosmos.bank.v1beta1.Query/Balance"]),
        "InvalidArgument",
        "address",
    );
}

#[test]
fn a_query_is_pinned_to_a_height_and_the_answer_says_which() {
    let chain = Chain::with_executors("height-1", &[1], &[(9, 100)]);
    let node = chain.start("0.1");
    node.reach(14);
    let call = |height: &str| {
        let pinned = format!("{HEIGHT_HEADER}: {height}");
        ask(&node, &["-v", "-H", &pinned], &["holdfast.epochs.v1.Query/CurrentEpoch"])
    };
    // The last heights are kept ready, older ones are rebuilt.
    for height in [2, 13, 1] {
        let out = call(&height.to_string()).ok();
        assert_eq!(header(&out, HEIGHT_HEADER), Some(height.to_string()), "{out}");
        assert!(out.contains(&format!("\"height\": \"{height}\"")), "{out}");
        assert!(out.contains(&format!("\"blocksLeft\": \"{}\"", 25 - height)), "{out}");
    }
    for latest in [call("0").ok(), ask(&node, &["-v"], &["holdfast.epochs.v1.Query/CurrentEpoch"]).ok()] {
        let height = header(&latest, HEIGHT_HEADER).expect("the header is always there");
        assert!(height.parse::<i64>().is_ok_and(|height| height >= 14), "{height}");
        assert!(latest.contains(&format!("\"height\": \"{height}\"")), "{latest}");
    }
    refused(call("1000000"), "OutOfRange", "height 1000000 is not reached yet");
    for bad in ["-1", "x", "1.5", "9223372036854775808"] {
        refused(call(bad), "InvalidArgument", HEIGHT_HEADER);
    }
}
