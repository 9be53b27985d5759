//! What a node beside CometBFT answers over gRPC: module queries from the app's views; transactions, blocks and the node's
//! identity from CometBFT's RPC.
//!
//! CometBFT writes 64-bit numbers as texts, hashes in upper-case hex, everything else binary in base64, and `null` for an
//! empty list (cosmos-conventions 7).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use holdfast_app::app::Shared;
use holdfast_app::grpc::{GrpcBackend, GrpcReply};
use holdfast_app::state::CommitStore;
use holdfast_app::tx::TxHash;
use holdfast_proto::Timestamp;
use holdfast_proto::cosmos::base::abci::v1beta1::TxResponse;
use holdfast_proto::cosmos::tx::v1beta1::BroadcastMode;
use holdfast_proto::tendermint::{p2p, types, version};
use holdfast_types::{Hrp, QueryError, QueryKind, sdk};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::adapter::{Adapter, NOT_STARTED};
use super::rpc::{Rpc, RpcError};
use crate::node_api::{self, FoundBlock, NodeApi, pb_event};

/// A node's answers. Calls that go to CometBFT block the thread they run on; the server runs them on its blocking pool.
pub struct CometBackend<S: CommitStore> {
    adapter: Arc<Adapter<S>>,
    rpc: Rpc,
    runtime: Handle,
}

impl<S: CommitStore> CometBackend<S> {
    /// Answers for `adapter` and the CometBFT behind `rpc`. `runtime` drives the calls to it.
    pub fn new(adapter: Arc<Adapter<S>>, rpc: Rpc, runtime: Handle) -> Self {
        Self { adapter, rpc, runtime }
    }

    fn ask(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        self.runtime.block_on(self.rpc.call(method, params))
    }
}

impl<S: CommitStore> NodeApi for CometBackend<S> {
    type Store = S;
    const REMOTE: bool = true;

    fn shared(&self) -> Result<Arc<Shared<S>>, QueryError> {
        self.adapter.shared().ok_or_else(|| QueryError::new(QueryKind::Unavailable, NOT_STARTED))
    }

    fn height(&self) -> i64 {
        self.adapter.height()
    }

    fn broadcast(&self, raw: &[u8], mode: BroadcastMode) -> Result<TxResponse, QueryError> {
        let method = match mode {
            BroadcastMode::Async => "broadcast_tx_async",
            _ => "broadcast_tx_sync",
        };
        let mut response = TxResponse::default();
        match self.ask(method, json!({ "tx": STANDARD.encode(raw) })) {
            Ok(answer) => {
                let answer = Json::new(answer);
                response.code = answer.at("code").number()?;
                response.codespace = answer.at("codespace").text()?;
                response.raw_log = answer.at("log").text()?;
                response.data = hex::encode_upper(answer.at("data").bytes()?);
            }
            Err(error) => {
                // What the mempool or the server refuses by itself has no code there; these are the SDK's.
                let text = error.to_string();
                let known = [
                    ("tx already exists in cache", sdk::TX_IN_MEMPOOL),
                    ("mempool is full", sdk::MEMPOOL_FULL),
                    ("Tx too large", sdk::TX_TOO_LARGE),
                    ("tx too large", sdk::TX_TOO_LARGE),
                    // Its rpc.max_body_bytes.
                    ("request body too large", sdk::TX_TOO_LARGE),
                ];
                let Some((_, code)) = known.into_iter().find(|(words, _)| text.contains(words)) else {
                    return Err(failed(error));
                };
                response.code = code;
                response.codespace = sdk::CODESPACE.into();
                response.raw_log = text;
            }
        }
        Ok(response)
    }

    fn tx(&self, hash: &TxHash) -> Result<Option<(Vec<u8>, TxResponse)>, QueryError> {
        let found = match self.ask("tx", json!({ "hash": STANDARD.encode(hash), "prove": false })) {
            Ok(found) => Json::new(found),
            Err(RpcError::Refused { data, .. }) if data.contains("not found") => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let height: i64 = found.at("height").number()?;
        let header = self.ask("header", json!({ "height": height.to_string() })).map_err(failed)?;
        let result = found.at("tx_result");
        let mut events = Vec::new();
        for event in result.at("events").list()? {
            let mut attributes = Vec::new();
            for attribute in event.at("attributes").list()? {
                attributes.push((attribute.at("key").text()?, attribute.at("value").text()?));
            }
            events.push(pb_event(&event.at("type").text()?, &attributes));
        }
        let response = TxResponse {
            height,
            codespace: result.at("codespace").text()?,
            code: result.at("code").number()?,
            data: hex::encode_upper(result.at("data").bytes()?),
            raw_log: result.at("log").text()?,
            info: result.at("info").text()?,
            gas_wanted: result.at("gas_wanted").number()?,
            gas_used: result.at("gas_used").number()?,
            timestamp: Json::new(header).at("header").at("time").text()?,
            events,
            ..TxResponse::default()
        };
        Ok(Some((found.at("tx").bytes()?, response)))
    }

    fn node_info(&self) -> Result<p2p::DefaultNodeInfo, QueryError> {
        node_info(&Json::new(self.ask("status", json!({})).map_err(failed)?))
    }

    fn block(&self, height: Option<i64>) -> Result<FoundBlock, QueryError> {
        let params = height.map_or_else(|| json!({}), |height| json!({ "height": height.to_string() }));
        let answer = match self.ask("block", params) {
            Ok(answer) => Json::new(answer),
            Err(RpcError::Refused { data, .. }) if data.contains("must be less than or equal to") => {
                return Err(QueryError::new(QueryKind::OutOfRange, data));
            }
            Err(RpcError::Refused { data, .. }) if data.contains("is not available") => {
                return Err(QueryError::not_found(data));
            }
            Err(error) => return Err(failed(error)),
        };
        let prefix = self.shared().map(|shared| shared.settings().bech32_prefix.clone()).unwrap_or_default();
        let (id, block) = (block_id(&answer.at("block_id"))?, block(&answer.at("block"))?);
        let proposer = block.header.as_ref().map_or(&[][..], |header| &header.proposer_address);
        let proposer = consensus_address(proposer, &prefix);
        Ok(FoundBlock { id, block, proposer })
    }
}

impl<S: CommitStore> GrpcBackend for CometBackend<S> {
    fn call(&self, path: &str, request: &[u8], height: i64) -> Result<GrpcReply, QueryError> {
        node_api::call(self, path, request, height)
    }

    fn is_blocking(&self, path: &str, height: i64) -> bool {
        node_api::is_blocking(self, path, height)
    }
}

fn failed(error: RpcError) -> QueryError {
    let kind = match error {
        RpcError::Unreachable { .. } => QueryKind::Unavailable,
        RpcError::Refused { .. } | RpcError::Malformed { .. } => QueryKind::Internal,
    };
    QueryError::new(kind, error.to_string())
}

/// A place in CometBFT's answer; knows its path for errors.
struct Json {
    path: String,
    value: Value,
}

impl Json {
    fn new(value: Value) -> Self {
        Self { path: String::new(), value }
    }

    fn at(&self, key: &str) -> Self {
        Self { path: format!("{}.{key}", self.path), value: self.value[key].clone() }
    }

    fn bad(&self, what: &str) -> QueryError {
        let text = format!("CometBFT's answer: {}: {} is no {what}", self.path, self.value);
        QueryError::new(QueryKind::Internal, text)
    }

    /// A text; what is left out is empty.
    fn text(&self) -> Result<String, QueryError> {
        match &self.value {
            Value::String(text) => Ok(text.clone()),
            Value::Null => Ok(String::new()),
            _ => Err(self.bad("text")),
        }
    }

    /// A number, or a text of one; what is left out is 0.
    fn number<N: std::str::FromStr + Default>(&self) -> Result<N, QueryError> {
        match &self.value {
            Value::Number(number) => number.to_string().parse().map_err(|_| self.bad("number in range")),
            Value::String(text) => text.parse().map_err(|_| self.bad("number in range")),
            Value::Null => Ok(N::default()),
            _ => Err(self.bad("number")),
        }
    }

    /// Base64.
    fn bytes(&self) -> Result<Vec<u8>, QueryError> {
        STANDARD.decode(self.text()?).map_err(|_| self.bad("base64"))
    }

    /// Hex.
    fn hash(&self) -> Result<Vec<u8>, QueryError> {
        hex::decode(self.text()?).map_err(|_| self.bad("hash in hex"))
    }

    fn time(&self) -> Result<Timestamp, QueryError> {
        self.text()?.parse().map_err(|_| self.bad("time"))
    }

    /// A list; `null` is empty.
    fn list(&self) -> Result<Vec<Self>, QueryError> {
        match &self.value {
            Value::Array(rows) => {
                let rows = rows.iter().enumerate();
                Ok(rows
                    .map(|(at, row)| Self { path: format!("{}[{at}]", self.path), value: row.clone() })
                    .collect())
            }
            Value::Null => Ok(Vec::new()),
            _ => Err(self.bad("list")),
        }
    }
}

fn node_info(status: &Json) -> Result<p2p::DefaultNodeInfo, QueryError> {
    let info = status.at("node_info");
    let (versions, other) = (info.at("protocol_version"), info.at("other"));
    Ok(p2p::DefaultNodeInfo {
        protocol_version: Some(p2p::ProtocolVersion {
            p2p: versions.at("p2p").number()?,
            block: versions.at("block").number()?,
            app: versions.at("app").number()?,
        }),
        default_node_id: info.at("id").text()?,
        listen_addr: info.at("listen_addr").text()?,
        network: info.at("network").text()?,
        version: info.at("version").text()?,
        channels: info.at("channels").hash()?,
        moniker: info.at("moniker").text()?,
        other: Some(p2p::DefaultNodeInfoOther {
            tx_index: other.at("tx_index").text()?,
            rpc_address: other.at("rpc_address").text()?,
        }),
    })
}

fn block_id(id: &Json) -> Result<types::BlockId, QueryError> {
    let parts = id.at("parts");
    Ok(types::BlockId {
        hash: id.at("hash").hash()?,
        part_set_header: Some(types::PartSetHeader {
            total: parts.at("total").number()?,
            hash: parts.at("hash").hash()?,
        }),
    })
}

fn block(block: &Json) -> Result<types::Block, QueryError> {
    let from = block.at("header");
    let id = block_id(&from.at("last_block_id"))?;
    let header = types::Header {
        version: Some(version::Consensus {
            block: from.at("version").at("block").number()?,
            app: from.at("version").at("app").number()?,
        }),
        chain_id: from.at("chain_id").text()?,
        height: from.at("height").number()?,
        time: Some(from.at("time").time()?),
        // The first block has none before it.
        last_block_id: (!id.hash.is_empty()).then_some(id),
        last_commit_hash: from.at("last_commit_hash").hash()?,
        data_hash: from.at("data_hash").hash()?,
        validators_hash: from.at("validators_hash").hash()?,
        next_validators_hash: from.at("next_validators_hash").hash()?,
        consensus_hash: from.at("consensus_hash").hash()?,
        app_hash: from.at("app_hash").hash()?,
        last_results_hash: from.at("last_results_hash").hash()?,
        evidence_hash: from.at("evidence_hash").hash()?,
        proposer_address: from.at("proposer_address").hash()?,
    };
    let txs = block.at("data").at("txs").list()?.iter().map(Json::bytes).collect::<Result<_, _>>()?;
    // The entries' kinds are not defined on our side; their number is kept.
    let evidence = block.at("evidence").at("evidence").list()?;
    let evidence = evidence.iter().map(|_| types::Evidence::default()).collect();
    Ok(types::Block {
        header: Some(header),
        data: Some(types::Data { txs }),
        evidence: Some(types::EvidenceList { evidence }),
        last_commit: Some(commit(&block.at("last_commit"))?),
    })
}

fn commit(from: &Json) -> Result<types::Commit, QueryError> {
    let signature = |row: &Json| {
        let time = row.at("timestamp").text()?;
        Ok::<_, QueryError>(types::CommitSig {
            block_id_flag: row.at("block_id_flag").number()?,
            validator_address: row.at("validator_address").hash()?,
            // Go's zero time stands for an absent vote.
            timestamp: if time.starts_with("0001-") { None } else { Some(row.at("timestamp").time()?) },
            signature: row.at("signature").bytes()?,
        })
    };
    Ok(types::Commit {
        height: from.at("height").number()?,
        round: from.at("round").number()?,
        block_id: Some(block_id(&from.at("block_id"))?),
        signatures: from.at("signatures").list()?.iter().map(signature).collect::<Result<_, _>>()?,
    })
}

/// A consensus address in the SDK's form; hex when the prefix leaves no room for it.
fn consensus_address(raw: &[u8], prefix: &str) -> String {
    let hrp = Hrp::new(&format!("{prefix}valcons")).ok();
    let address = holdfast_types::Address::from_slice(raw).ok();
    hrp.zip(address).map_or_else(|| hex::encode_upper(raw), |(hrp, address)| address.to_bech32(&hrp))
}
