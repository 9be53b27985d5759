//! Queries read and nothing else: a thousand calls of each leave a chain as it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cosmrs::proto::cosmos::base::tendermint::v1beta1 as base;
use cosmrs::proto::cosmos::tx::v1beta1 as tx;
use holdfast_proto::cosmos::base::v1beta1::Coin;
use holdfast_proto::holdfast::escrow::v1 as escrow;
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_proto::{Message, from_json, pool};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tonic::Code;

use crate::chain::{Chain, DENOM, MODELS, address};
use crate::client::{Client, Wallet, any, block_on};

/// A request for every query of a chain that has the accounts 1 and 2, the executor 9 and a proposal of account 1.
pub(crate) fn requests() -> Vec<(&'static str, Value)> {
    let (account, executor, model) = (address(1).to_string(), address(9).to_string(), MODELS[0]);
    let seed = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
    vec![
        ("cosmos.auth.v1beta1.Query/Account", json!({ "address": account })),
        ("cosmos.auth.v1beta1.Query/Accounts", json!({ "pagination": { "limit": "3" } })),
        ("cosmos.auth.v1beta1.Query/ModuleAccountByName", json!({ "name": "inference" })),
        ("cosmos.auth.v1beta1.Query/Params", json!({})),
        ("cosmos.bank.v1beta1.Query/Balance", json!({ "address": account, "denom": DENOM })),
        ("cosmos.bank.v1beta1.Query/AllBalances", json!({ "address": account })),
        ("cosmos.bank.v1beta1.Query/SupplyOf", json!({ "denom": DENOM })),
        ("cosmos.bank.v1beta1.Query/TotalSupply", json!({})),
        ("cosmos.base.tendermint.v1beta1.Service/GetNodeInfo", json!({})),
        ("cosmos.base.tendermint.v1beta1.Service/GetLatestBlock", json!({})),
        ("cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight", json!({ "height": "1" })),
        ("cosmos.gov.v1.Query/Proposal", json!({ "proposal_id": "1" })),
        ("cosmos.gov.v1.Query/Proposals", json!({ "voter": executor })),
        ("cosmos.gov.v1.Query/Vote", json!({ "proposal_id": "1", "voter": executor })),
        ("cosmos.gov.v1.Query/Votes", json!({ "proposal_id": "1" })),
        ("cosmos.gov.v1.Query/Params", json!({ "params_type": "tallying" })),
        ("cosmos.gov.v1.Query/Deposit", json!({ "proposal_id": "1", "depositor": account })),
        ("cosmos.gov.v1.Query/Deposits", json!({ "proposal_id": "1" })),
        ("cosmos.gov.v1.Query/TallyResult", json!({ "proposal_id": "1" })),
        ("cosmos.upgrade.v1beta1.Query/CurrentPlan", json!({})),
        ("cosmos.upgrade.v1beta1.Query/AppliedPlan", json!({ "name": "v1" })),
        ("cosmos.upgrade.v1beta1.Query/ModuleVersions", json!({})),
        ("cosmos.upgrade.v1beta1.Query/Authority", json!({})),
        ("holdfast.breaker.v1.Query/CircuitBreaker", json!({ "participant": executor, "model": model })),
        ("holdfast.breaker.v1.Query/CircuitBreakers", json!({ "model": model })),
        ("holdfast.breaker.v1.Query/BreakerSummary", json!({ "model": model })),
        ("holdfast.breaker.v1.Query/Overrides", json!({})),
        ("holdfast.breaker.v1.Query/WhatIf", json!({ "model": model })),
        ("holdfast.epochs.v1.Query/Params", json!({})),
        ("holdfast.epochs.v1.Query/CurrentEpoch", json!({})),
        ("holdfast.epochs.v1.Query/Epoch", json!({ "index": "0" })),
        ("holdfast.escrow.v1.Query/Params", json!({})),
        ("holdfast.escrow.v1.Query/Escrow", json!({ "escrow_id": "1" })),
        ("holdfast.escrow.v1.Query/Escrows", json!({ "status": "ESCROW_STATUS_OPEN" })),
        ("holdfast.escrow.v1.Query/EscrowsByParticipant", json!({ "participant": executor })),
        ("holdfast.inference.v1.Query/Params", json!({})),
        ("holdfast.inference.v1.Query/Inference", json!({ "inference_id": "open" })),
        ("holdfast.inference.v1.Query/Inferences", json!({ "executor": executor })),
        ("holdfast.inference.v1.Query/ParticipantStats", json!({ "participant": executor })),
        ("holdfast.inference.v1.Query/Sprt", json!({ "participant": executor })),
        ("holdfast.inference.v1.Query/GetRandomExecutor", json!({ "model": model, "seed": seed })),
        ("holdfast.inference.v1.Query/CandidateTable", json!({ "model": model })),
        ("holdfast.participants.v1.Query/Params", json!({})),
        ("holdfast.participants.v1.Query/Participant", json!({ "participant": executor })),
        ("holdfast.participants.v1.Query/Participants", json!({})),
        ("holdfast.participants.v1.Query/Models", json!({})),
        ("holdfast.participants.v1.Query/EpochGroup", json!({ "model": model })),
        ("holdfast.participants.v1.Query/Maintenance", json!({ "participant": executor })),
        ("holdfast.participants.v1.Query/Validators", json!({})),
    ]
}

/// Every query of the descriptor set, as `package.Service/Method`, with the name of its request.
pub(crate) fn queries() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for service in pool().expect("descriptors").services() {
        if service.name() == "Query" || service.package_name() == "cosmos.base.tendermint.v1beta1" {
            for method in service.methods() {
                let path = format!("{}/{}", service.full_name(), method.name());
                found.insert(path, method.input().full_name().to_owned());
            }
        }
    }
    found
}

#[test]
fn the_list_of_requests_has_every_query_of_the_chain() {
    let mut listed: Vec<String> = requests().into_iter().map(|(path, _)| path.to_owned()).collect();
    listed.sort();
    assert_eq!(listed, queries().into_keys().collect::<Vec<_>>());
}

/// SHA-256 over names and contents of all files below a folder.
fn digest(folder: &Path) -> String {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    assert!(files.len() > 2, "{} holds the databases", folder.display());
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.to_string_lossy().as_bytes());
        hash.update(Sha256::digest(std::fs::read(&file).expect("readable")));
    }
    hex::encode(hash.finalize())
}

/// The digest once the database has done what it does after it is opened.
fn settled(folder: &Path) -> String {
    let mut before = digest(folder);
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(300));
        let now = digest(folder);
        if now == before {
            return now;
        }
        before = now;
    }
    panic!("{} does not come to rest", folder.display());
}

const CALLS: usize = 1_000;
/// Calls under way at a time.
const LANES: usize = 8;

/// Calls a query [`CALLS`] times; every answer must be the first one, byte for byte.
async fn call_often(client: &Client, path: &str, request: &[u8]) {
    let (first, _) = client.raw(path, request.to_vec(), None).await.unwrap_or_else(|e| panic!("{path}: {e}"));
    let shared = Arc::new((path.to_owned(), request.to_vec(), first));
    let lane = |_| {
        let (client, shared) = (client.clone(), shared.clone());
        tokio::spawn(async move {
            let (path, request, first) = &*shared;
            for _ in 0..CALLS / LANES {
                let answer = client.raw(path, request.clone(), None).await;
                let (answer, _) = answer.unwrap_or_else(|e| panic!("{path}: {e}"));
                assert!(answer == *first, "{path} answers differently with nothing changed");
            }
        })
    };
    for lane in (0..LANES).map(lane).collect::<Vec<_>>() {
        lane.await.expect("no call fails");
    }
}

#[test]
fn a_thousand_calls_of_each_query_leave_app_hash_and_files_as_they_were() {
    let chain = Chain::with_executors("reads-1", &[1, 2, 9], &[(9, 100)]).with_proposal(1, 9);
    let node = chain.start("0.1");
    let hash = block_on(async {
        let client = Client::connect(&node.addr).await;
        let mut gateway = Wallet::open(&client, chain.id, 1).await;
        let start = pb::MsgStartInference {
            signer: gateway.id.to_string(),
            requested_by: gateway.id.to_string(),
            inference_id: "open".into(),
            model: MODELS[0].into(),
            assigned_to: address(9).to_string(),
            prompt_hash: vec![1; 32],
            prompt_tokens: 10,
            max_tokens: 20,
        };
        let result = gateway.send(any(&start)).await;
        assert_eq!(result.code, 0, "{}", result.raw_log);
        let escrow = escrow::MsgCreateEscrow {
            creator: gateway.id.to_string(),
            gateway: gateway.id.to_string(),
            gateway_url: String::new(),
            model: MODELS[0].into(),
            amount: Some(Coin { denom: DENOM.into(), amount: "5000".into() }),
            slots: 1,
        };
        let created = gateway.send(any(&escrow)).await;
        assert_eq!(created.code, 0, "{}", created.raw_log);
        result.txhash
    });
    assert_eq!(node.stop("TERM").status.code(), Some(0));

    // One block at once, the next one in an hour.
    let node = chain.start("3600");
    crate::process::until(crate::process::SHORT, "the one block", || node.committed().pop());
    let before = node.committed();
    let files = settled(&chain.path().join("data"));
    block_on(async {
        let client = Client::connect(&node.addr).await;
        let queries = queries();
        for (path, request) in requests() {
            let request = from_json(&queries[path], &request).expect("a request");
            call_often(&client, &format!("/{path}"), &request).await;
        }
        // A simulation runs messages, on a state of its own.
        let gateway = Wallet::open(&client, chain.id, 1).await;
        let cancel =
            pb::MsgCancelInference { requested_by: gateway.id.to_string(), inference_id: "open".into() };
        let simulate = tx::SimulateRequest {
            tx_bytes: gateway.draft(vec![any(&cancel)]).sign(&gateway.key),
            ..Default::default()
        };
        call_often(&client, "/cosmos.tx.v1beta1.Service/Simulate", &simulate.encode_to_vec()).await;
        let get_tx = tx::GetTxRequest { hash };
        call_often(&client, "/cosmos.tx.v1beta1.Service/GetTx", &get_tx.encode_to_vec()).await;
        // Without a seed the node draws one, and the answers may differ.
        let draw = pb::QueryGetRandomExecutorRequest { model: MODELS[0].into(), seed: Vec::new() };
        let path = "/holdfast.inference.v1.Query/GetRandomExecutor";
        for _ in 0..CALLS {
            let answer: pb::QueryGetRandomExecutorResponse =
                client.call(path, &draw).await.expect("an executor");
            assert_eq!(answer.executor.expect("an executor").address, address(9).to_string());
        }
        let none = pb::QueryGetRandomExecutorRequest { model: "none".into(), seed: Vec::new() };
        let refused = client.raw(path, none.encode_to_vec(), None).await.expect_err("no such model");
        assert_eq!(refused.code(), Code::NotFound);
    });
    assert_eq!(node.committed(), before, "a block was made meanwhile");
    assert_eq!(digest(&chain.path().join("data")), files, "a file of the databases changed");
    let (height, app_hash) = before.last().cloned().expect("a block");
    assert_eq!(node.stop("TERM").status.code(), Some(0));

    let node = chain.start("3600");
    node.reach(height + 1);
    block_on(async {
        let client = Client::connect(&node.addr).await;
        let path = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
        let latest: base::GetLatestBlockResponse =
            client.call(path, &base::GetLatestBlockRequest {}).await.expect("a block");
        let header = latest.sdk_block.and_then(|block| block.header).expect("a header");
        assert_eq!((header.height, hex::encode_upper(header.app_hash)), (height + 1, app_hash));
    });
}
