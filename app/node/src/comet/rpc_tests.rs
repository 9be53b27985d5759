//! The gRPC backend and the RPC client against answers of a real CometBFT 0.38.26, taken down from a network of
//! one.

use std::sync::Arc;

use holdfast_app::grpc::{GrpcBackend, GrpcReply};
use holdfast_proto::Message;
use holdfast_proto::cosmos::base::tendermint::v1beta1 as base;
use holdfast_proto::cosmos::tx::v1beta1 as tx;
use holdfast_types::{QueryError, QueryKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::tests::{Net, chain_at};
use super::{CometBackend, Rpc, RpcError};

const TX: &str = "CosBCogBChwvY29zbW9zLmJhbmsudjFiZXRhMS5Nc2dTZW5kEmgKK2hvbGQxZDRlZGdyaHh6dWt4aGs4MjgzbTV1dTl6cnhxZXRmbTdtY3ZuOXYSK2hvbGQxMDh5ZTd0emRxbTc4bWh1cXBhNHhrcmg0enlxMmx5M2hqYzk0NHcaDAoFdWhvbGQSAzUyNBJnClAKRgofL2Nvc21vcy5jcnlwdG8uc2VjcDI1NmsxLlB1YktleRIjCiED8606WCxvHXygp5QNssS75F9jgO19Ko3waXM0HUKyoSwSBAoCCAEYBBITCg0KBXVob2xkEgQxMDAwEMCEPRpAjoII1FShhSkiNwFUSf4BPWT3eAkLhHprSHPclIIENAUYljUATw2DdndxYQWITDn2UI/xuvoxsc2QBeW5uXGXTA==";
const TX_HASH: &str = "40710FDE96E0BC4ACC5EDB4A0C836DF17E14F49E591F43AB657D8EFEEB04A847";
const PROPOSER: &str = "22C2AE6C20804B2ABA27B8F92C37F1F0CB8E06DB";
const LAST_BLOCK: &str = "38AC41C98BEE19F21710151D8D01BA6FDF204E695B1499CA43F9F228321FE677";
const EMPTY_HASH: &str = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";

fn block() -> Value {
    let last = json!({
        "hash": LAST_BLOCK,
        "parts": { "total": 1, "hash": "609A24A89C02F580E725032C8925EA7C0AE562F43995254EF1AD4C6F6B96593B" },
    });
    json!({
        "block_id": {
            "hash": "A7BBA0DDA1D1F8F998BD59F78F8010F515CEAA768BD14D30F9143CA46632E8D8",
            "parts": { "total": 1, "hash": "61F846846A6147D9C5F6F9BFF4464157A287035152E03E755EA2D72556343296" },
        },
        "block": {
            "header": {
                "version": { "block": "11", "app": "1" },
                "chain_id": "holdfast-local-1",
                "height": "5",
                "time": "2026-11-30T04:24:52.856048921Z",
                "last_block_id": last,
                "last_commit_hash": EMPTY_HASH,
                "data_hash": EMPTY_HASH,
                "validators_hash": EMPTY_HASH,
                "next_validators_hash": EMPTY_HASH,
                "consensus_hash": EMPTY_HASH,
                "app_hash": "E959CA72C45DE7086B389F3EE63BF5F535CCE87E496CA4C799C676A69A3B4DD2",
                "last_results_hash": EMPTY_HASH,
                "evidence_hash": EMPTY_HASH,
                "proposer_address": PROPOSER,
            },
            "data": { "txs": [TX] },
            "evidence": { "evidence": null },
            "last_commit": {
                "height": "4",
                "round": 0,
                "block_id": last,
                "signatures": [
                    {
                        "block_id_flag": 2,
                        "validator_address": PROPOSER,
                        "timestamp": "2026-11-30T04:24:52.856048921Z",
                        "signature": "Lemtam+qZ9dShhfWIw750CQ5ZkWzc2sb2S8YMyfV8+7ZXGBwUuSe2+Wbms0kMfZAmrr0j7GWCatjLl4U+lSbBA==",
                    },
                    {
                        "block_id_flag": 1,
                        "validator_address": "",
                        "timestamp": "0001-01-01T00:00:00Z",
                        "signature": null,
                    },
                ],
            },
        },
    })
}

/// What the node answers to a method: the result, or the error.
fn answer(method: &str, params: &Value) -> Result<Value, Value> {
    let refused = |data: &str| json!({ "code": -32603, "message": "Internal error", "data": data });
    match method {
        "block" if params["height"] == "99" => {
            Err(refused("height 99 must be less than or equal to the current blockchain height 17"))
        }
        "block" if params["height"] == "2" => Err(refused("height 2 is not available, lowest height is 4")),
        "block" if params["height"] == "3" => {
            let mut odd = block();
            odd["block"]["header"]["height"] = json!("three");
            Ok(odd)
        }
        "block" => Ok(block()),
        "header" => Ok(json!({ "header": { "time": "2026-11-30T04:24:52.856048921Z" } })),
        "tx" if params["hash"] == "QHEP3pbgvErMXttKDINt8X4U9J5ZH0OrZX2O/usEqEc=" => Ok(json!({
            "hash": TX_HASH,
            "height": "5",
            "index": 0,
            "tx_result": {
                "code": 0,
                "data": "EiYKJC9jb3Ntb3MuYmFuay52MWJldGExLk1zZ1NlbmRSZXNwb25zZQ==",
                "log": "",
                "info": "",
                "gas_wanted": "1000000",
                "gas_used": "30601",
                "events": [
                    { "type": "tx", "attributes": [{ "key": "fee", "value": "1000uhold", "index": true }] },
                    { "type": "bare", "attributes": null },
                ],
                "codespace": "",
            },
            "tx": TX,
        })),
        "tx" => Err(refused("tx (AAAA) not found")),
        "broadcast_tx_sync" => match params["tx"].as_str() {
            Some("AQ==") => {
                Ok(json!({ "code": 5, "data": "", "log": "too poor", "codespace": "sdk", "hash": "AB" }))
            }
            Some("Aw==") => Err(refused("error reading request body: http: request body too large")),
            _ => Err(refused("tx already exists in cache")),
        },
        "broadcast_tx_async" => Err(refused("mempool is full: number of txs 5000 (max: 5000)")),
        "status" => Ok(json!({
            "node_info": {
                "protocol_version": { "p2p": "8", "block": "11", "app": "1" },
                "id": "e5d287d5c26af130ebe6ad69019fdc10c201822d",
                "listen_addr": "tcp://127.0.0.1:26656",
                "network": "holdfast-local-1",
                "version": "0.38.26",
                "channels": "40202122233038606100",
                "moniker": "node0",
                "other": { "tx_index": "on", "rpc_address": "tcp://127.0.0.1:26657" },
            },
        })),
        _ => Err(json!({ "code": -32601, "message": "Method not found", "data": "" })),
    }
}

/// A server that answers as CometBFT does, errors with HTTP's 500 too; gives its address.
async fn node() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                loop {
                    let mut bytes = [0; 4096];
                    let read = stream.read(&mut bytes).await.unwrap();
                    request.extend_from_slice(&bytes[..read]);
                    let text = String::from_utf8_lossy(&request);
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    if body.len() < length.unwrap_or(0) {
                        continue;
                    }
                    let call: Value = serde_json::from_str(body).unwrap();
                    let (status, reply) = match answer(call["method"].as_str().unwrap(), &call["params"]) {
                        Ok(result) => ("200 OK", json!({ "jsonrpc": "2.0", "id": 1, "result": result })),
                        Err(error) => (
                            "500 Internal Server Error",
                            json!({ "jsonrpc": "2.0", "id": 1, "error": error }),
                        ),
                    };
                    let body = reply.to_string();
                    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                    return;
                }
            });
        }
    });
    addr
}

/// A backend of a chain at height 5.
async fn backend(addr: String) -> Arc<CometBackend<holdfast_app::state::MemCommitStore>> {
    let Net { adapter, .. } = chain_at(5);
    Arc::new(CometBackend::new(Arc::new(adapter), Rpc::new(addr), tokio::runtime::Handle::current()))
}

async fn call(
    backend: &Arc<CometBackend<holdfast_app::state::MemCommitStore>>,
    path: &'static str,
    request: impl Message + 'static,
) -> Result<GrpcReply, QueryError> {
    let backend = backend.clone();
    assert!(backend.is_blocking(path, 0));
    tokio::task::spawn_blocking(move || backend.call(path, &request.encode_to_vec(), 0)).await.unwrap()
}

const BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";
const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_comes_over_field_by_field() {
    let backend = backend(node().await).await;
    let at = |height| base::GetBlockByHeightRequest { height };
    let reply = call(&backend, BLOCK, at(5)).await.unwrap();
    let reply = base::GetBlockByHeightResponse::decode(reply.value.as_slice()).unwrap();
    assert_eq!(hex::encode_upper(&reply.block_id.unwrap().hash)[..8], *"A7BBA0DD");
    let block = reply.block.unwrap();
    let header = block.header.unwrap();
    assert_eq!((header.height, header.chain_id.as_str()), (5, "holdfast-local-1"));
    assert_eq!(header.time.unwrap().nanos, 856_048_921);
    assert_eq!(hex::encode_upper(header.last_block_id.unwrap().hash), LAST_BLOCK);
    assert_eq!(hex::encode_upper(header.app_hash)[..8], *"E959CA72");
    assert_eq!(hex::encode_upper(header.proposer_address), PROPOSER);
    assert_eq!(block.data.unwrap().txs.len(), 1);
    let commit = block.last_commit.unwrap();
    assert_eq!((commit.height, commit.signatures.len()), (4, 2));
    assert_eq!((commit.signatures[0].block_id_flag, commit.signatures[0].signature.len()), (2, 64));
    // An absent vote has neither time nor signature.
    assert_eq!((commit.signatures[1].block_id_flag, commit.signatures[1].timestamp), (1, None));
    let proposer = reply.sdk_block.unwrap().header.unwrap().proposer_address;
    assert!(proposer.starts_with("holdvalcons1"), "{proposer}");
    let kind = async |height| call(&backend, BLOCK, at(height)).await.unwrap_err().kind;
    assert_eq!(kind(0).await, QueryKind::InvalidArgument);
    assert_eq!(kind(99).await, QueryKind::OutOfRange);
    assert_eq!(kind(2).await, QueryKind::NotFound);
    let odd = call(&backend, BLOCK, at(3)).await.unwrap_err();
    assert!(odd.kind == QueryKind::Internal && odd.message.contains(".block.header.height"), "{odd}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_comes_with_its_result_and_an_unknown_one_is_not_found() {
    let backend = backend(node().await).await;
    let ask = |hash: &str| tx::GetTxRequest { hash: hash.into() };
    let reply = call(&backend, GET_TX, ask(TX_HASH)).await.unwrap();
    let reply = tx::GetTxResponse::decode(reply.value.as_slice()).unwrap();
    let result = reply.tx_response.unwrap();
    assert_eq!((result.height, result.gas_wanted, result.gas_used), (5, 1_000_000, 30_601));
    assert_eq!(
        (result.txhash.as_str(), result.timestamp.as_str()),
        (TX_HASH, "2026-11-30T04:24:52.856048921Z")
    );
    assert!(result.data.starts_with("12260A242F636F736D6F73"), "{}", result.data);
    assert_eq!((result.events.len(), result.events[0].attributes[0].value.as_str()), (2, "1000uhold"));
    assert_eq!(reply.tx.unwrap().body.unwrap().messages[0].type_url, "/cosmos.bank.v1beta1.MsgSend");
    let absent = call(&backend, GET_TX, ask(&"A".repeat(64))).await.unwrap_err();
    assert_eq!(
        (absent.kind, absent.message),
        (QueryKind::NotFound, format!("tx not found: {}", "A".repeat(64)))
    );
    assert_eq!(call(&backend, GET_TX, ask("xy")).await.unwrap_err().kind, QueryKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broadcast_keeps_the_code_of_the_check_and_gives_the_pool_the_sdks() {
    let backend = backend(node().await).await;
    let send = async |tx_bytes: &[u8], mode: tx::BroadcastMode| {
        let request = tx::BroadcastTxRequest { tx_bytes: tx_bytes.to_vec(), mode: mode.into() };
        let reply = call(&backend, BROADCAST, request).await?;
        let reply = tx::BroadcastTxResponse::decode(reply.value.as_slice()).unwrap().tx_response.unwrap();
        Ok::<_, QueryError>((reply.codespace, reply.code, reply.raw_log))
    };
    use tx::BroadcastMode::{Async, Sync, Unspecified};
    assert_eq!(send(&[1], Sync).await.unwrap(), ("sdk".into(), 5, "too poor".into()));
    let (codespace, code, log) = send(&[2], Sync).await.unwrap();
    assert_eq!((codespace.as_str(), code), ("sdk", 19));
    assert!(log.contains("tx already exists in cache"), "{log}");
    assert_eq!(send(&[2], Async).await.unwrap().1, 20);
    // Above CometBFT's limit for a request, and above the chain's for a transaction, which is not sent on.
    let (codespace, code, _) = send(&[3], Sync).await.unwrap();
    assert_eq!((codespace.as_str(), code), ("sdk", 21));
    let (codespace, code, log) = send(&vec![3; (1 << 20) + 1], Sync).await.unwrap();
    assert_eq!(
        (codespace.as_str(), code, log.as_str()),
        ("sdk", 21, "tx too large: 1048577 bytes, at most 1048576")
    );
    assert_eq!(send(&[], Sync).await.unwrap_err().kind, QueryKind::InvalidArgument);
    assert_eq!(send(&[1], Unspecified).await.unwrap_err().kind, QueryKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_says_who_it_is_and_one_that_is_away_is_unavailable() {
    const INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
    let addr = node().await;
    let there = backend(addr.clone()).await;
    let reply = call(&there, INFO, base::GetNodeInfoRequest {}).await.unwrap();
    let info = base::GetNodeInfoResponse::decode(reply.value.as_slice()).unwrap().default_node_info.unwrap();
    assert_eq!((info.version.as_str(), info.moniker.as_str()), ("0.38.26", "node0"));
    assert_eq!((info.channels.len(), info.protocol_version.unwrap().p2p), (10, 8));
    let error = Rpc::new(addr).call("no_such_method", json!({})).await.unwrap_err();
    assert!(matches!(error, RpcError::Refused { code: -32601, .. }), "{error}");
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let error = call(&backend(free).await, INFO, base::GetNodeInfoRequest {}).await.unwrap_err();
    assert!(error.kind == QueryKind::Unavailable && error.message.contains("rpc.laddr"), "{error}");
}
