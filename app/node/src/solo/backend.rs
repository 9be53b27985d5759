//! What a solo node answers over gRPC: module queries from the app's views, transactions and blocks from the engine.

use std::sync::Arc;

use holdfast_app::app::Shared;
use holdfast_app::grpc::{GrpcBackend, GrpcReply};
use holdfast_app::state::CommitStore;
use holdfast_app::tx::{TxHash, hash_hex};
use holdfast_proto::cosmos::base::abci::v1beta1::{GasInfo, Result as TxOutcome, TxMsgData, TxResponse};
use holdfast_proto::cosmos::base::tendermint::v1beta1 as base;
use holdfast_proto::cosmos::tx::v1beta1 as pb;
use holdfast_proto::tendermint::abci::{Event as PbEvent, EventAttribute};
use holdfast_proto::tendermint::{p2p, types, version};
use holdfast_proto::{Any, Message, Name, Timestamp, decode_strict, type_url};
use holdfast_types::{QueryError, QueryKind};

use super::blocks::{BlockStoreError, StoredBlock, StoredResult, StoredTx};
use super::engine::Engine;

/// Path of the simulation, which every engine answers by [`simulate`].
pub(crate) const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";
const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const LATEST_BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
const SUMMARY: &str = "/holdfast.breaker.v1.Query/BreakerSummary";
const BLOCK_BY_HEIGHT: &str = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";

/// Heights this close to the latest are at hand.
const RECENT: i64 = holdfast_app::views::RECENT_VIEWS as i64 - 1;

/// Paths this backend answers beside the module queries.
pub const NODE_PATHS: &[&str] = &[SIMULATE, BROADCAST, GET_TX, NODE_INFO, LATEST_BLOCK, BLOCK_BY_HEIGHT];

/// A node's answers.
pub struct NodeBackend<S> {
    engine: Arc<Engine<S>>,
    moniker: String,
    proposer: Vec<u8>,
}

impl<S: CommitStore> NodeBackend<S> {
    /// Answers for `engine`; `proposer` is the validator's address.
    pub fn new(engine: Arc<Engine<S>>, moniker: &str, proposer: &[u8]) -> Self {
        Self { engine, moniker: moniker.to_owned(), proposer: proposer.to_vec() }
    }

    fn node_call(&self, path: &str, request: &[u8]) -> Result<Vec<u8>, QueryError> {
        Ok(match path {
            SIMULATE => simulate(self.engine.shared(), decode(request)?)?.encode_to_vec(),
            BROADCAST => self.broadcast(&decode(request)?)?.encode_to_vec(),
            GET_TX => self.get_tx(&decode(request)?)?.encode_to_vec(),
            NODE_INFO => self.node_info().encode_to_vec(),
            LATEST_BLOCK => {
                let height = *self.engine.heights().borrow();
                let (block_id, block, sdk_block) = self.block(height)?;
                base::GetLatestBlockResponse { block_id, block, sdk_block }.encode_to_vec()
            }
            BLOCK_BY_HEIGHT => {
                let request: base::GetBlockByHeightRequest = decode(request)?;
                let (block_id, block, sdk_block) = self.block(request.height)?;
                base::GetBlockByHeightResponse { block_id, block, sdk_block }.encode_to_vec()
            }
            _ => return Err(QueryError::new(QueryKind::Unimplemented, format!("no method {path:?}"))),
        })
    }

    fn broadcast(&self, request: &pb::BroadcastTxRequest) -> Result<pb::BroadcastTxResponse, QueryError> {
        match pb::BroadcastMode::try_from(request.mode) {
            Ok(pb::BroadcastMode::Sync | pb::BroadcastMode::Async) => {}
            _ => return Err(QueryError::invalid("mode: use BROADCAST_MODE_SYNC or BROADCAST_MODE_ASYNC")),
        }
        if request.tx_bytes.is_empty() {
            return Err(QueryError::invalid("tx_bytes: give the transaction"));
        }
        let hash = holdfast_app::tx::tx_hash(&request.tx_bytes);
        let mut response = TxResponse { txhash: hash_hex(&hash), ..TxResponse::default() };
        if let Err(error) = self.engine.broadcast(&request.tx_bytes) {
            response.code = error.code;
            response.codespace = error.codespace.to_owned();
            response.raw_log = error.message;
        }
        Ok(pb::BroadcastTxResponse { tx_response: Some(response) })
    }

    fn get_tx(&self, request: &pb::GetTxRequest) -> Result<pb::GetTxResponse, QueryError> {
        let hash: Option<TxHash> = hex::decode(&request.hash).ok().and_then(|bytes| bytes.try_into().ok());
        let hash = hash.ok_or_else(|| QueryError::invalid("hash: give 64 hexadecimal digits"))?;
        let blocks = self.engine.blocks();
        let absent = || QueryError::not_found(format!("tx not found: {}", hash_hex(&hash)));
        // Results are stored just before their block is committed; until then queries do not see what they tell.
        let latest = *self.engine.heights().borrow();
        let stored =
            blocks.tx(&hash).map_err(internal)?.filter(|tx| tx.height <= latest).ok_or_else(absent)?;
        let block = blocks.block(stored.height).map_err(internal)?.ok_or_else(absent)?;
        let index = usize::try_from(stored.index).unwrap_or(usize::MAX);
        let raw = block.txs.get(index).ok_or_else(absent)?;
        let tx = decode_tx(raw);
        let response = tx_response(&hash, &stored, tx.as_ref(), &block);
        Ok(pb::GetTxResponse { tx, tx_response: Some(response) })
    }

    fn node_info(&self) -> base::GetNodeInfoResponse {
        let network = self.engine.shared().settings().chain_id.clone();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        base::GetNodeInfoResponse {
            default_node_info: Some(p2p::DefaultNodeInfo {
                protocol_version: Some(p2p::ProtocolVersion { p2p: 0, block: 0, app: 1 }),
                default_node_id: hex::encode(&self.proposer),
                network,
                // Clients choose their decoders by it; a solo node speaks the shapes of this line.
                version: "0.38.0-solo".into(),
                moniker: self.moniker.clone(),
                other: Some(p2p::DefaultNodeInfoOther { tx_index: "on".into(), rpc_address: String::new() }),
                ..p2p::DefaultNodeInfo::default()
            }),
            application_version: Some(base::VersionInfo {
                name: "holdfast".into(),
                app_name: "holdfastd".into(),
                version,
                ..base::VersionInfo::default()
            }),
        }
    }

    #[allow(clippy::type_complexity)]
    fn block(
        &self,
        height: i64,
    ) -> Result<(Option<types::BlockId>, Option<types::Block>, Option<base::Block>), QueryError> {
        if height <= 0 {
            return Err(QueryError::invalid("height: must be at least 1"));
        }
        let latest = *self.engine.heights().borrow();
        if height > latest {
            let text = format!("height {height} is not reached yet, the latest is {latest}");
            return Err(QueryError::new(QueryKind::OutOfRange, text));
        }
        let stored = self.engine.blocks().block(height).map_err(internal)?;
        let stored = stored.ok_or_else(|| QueryError::not_found(format!("no block at height {height}")))?;
        let id = |hash: [u8; 32]| types::BlockId {
            hash: hash.to_vec(),
            part_set_header: Some(types::PartSetHeader { total: 1, hash: hash.to_vec() }),
        };
        let last =
            (height > self.engine.shared().settings().initial_height).then(|| id(stored.last_block_hash));
        let version = Some(version::Consensus { block: 11, app: 1 });
        let chain_id = self.engine.shared().settings().chain_id.clone();
        let (time, app_hash) = (Some(timestamp(stored.time_ns)), stored.app_hash.to_vec());
        let header = types::Header {
            version,
            chain_id: chain_id.clone(),
            height,
            time,
            last_block_id: last.clone(),
            app_hash: app_hash.clone(),
            proposer_address: self.proposer.clone(),
            ..types::Header::default()
        };
        let sdk_header = base::Header {
            version,
            chain_id,
            height,
            time,
            last_block_id: last.clone(),
            app_hash,
            proposer_address: hex::encode_upper(&self.proposer),
            ..base::Header::default()
        };
        let (data, evidence) = (types::Data { txs: stored.txs.clone() }, types::EvidenceList::default());
        let commit = types::Commit { height: height - 1, block_id: last, ..types::Commit::default() };
        let (data, evidence, last_commit) = (Some(data), Some(evidence), Some(commit));
        let block = types::Block {
            header: Some(header),
            data: data.clone(),
            evidence: evidence.clone(),
            last_commit: last_commit.clone(),
        };
        let sdk_block = base::Block { header: Some(sdk_header), data, evidence, last_commit };
        Ok((Some(id(stored.hash())), Some(block), Some(sdk_block)))
    }
}

impl<S: CommitStore> GrpcBackend for NodeBackend<S> {
    fn call(&self, path: &str, request: &[u8], height: i64) -> Result<GrpcReply, QueryError> {
        if NODE_PATHS.contains(&path) {
            let value = self.node_call(path, request)?;
            return Ok(GrpcReply { value, height: *self.engine.heights().borrow() });
        }
        let (value, height) = self.engine.shared().query(path, request, height)?;
        Ok(GrpcReply { value, height })
    }

    fn is_blocking(&self, path: &str, height: i64) -> bool {
        // Simulation runs messages, a summary reads every member, what-if replays an epoch; an older height may have to be rebuilt.
        matches!(path, SIMULATE | SUMMARY | holdfast_app::what_if::PATH)
            || (height != 0 && height.saturating_add(RECENT) < *self.engine.heights().borrow())
    }
}

/// Simulates a transaction on the last commit.
///
/// # Errors
/// `InvalidArgument` with the transaction's codespace and code at the end of the text.
pub(crate) fn simulate<S: CommitStore>(
    shared: &Shared<S>,
    request: pb::SimulateRequest,
) -> Result<pb::SimulateResponse, QueryError> {
    let raw = match (request.tx_bytes.is_empty(), request.tx) {
        (false, _) => request.tx_bytes,
        (true, Some(tx)) => raw_of(tx),
        (true, None) => return Err(QueryError::invalid("tx_bytes: give the transaction")),
    };
    let result = shared.simulate(&raw).map_err(|e| {
        // The text carries the code: clients read both from it.
        QueryError::new(QueryKind::InvalidArgument, format!("{} [{} {}]", e.message, e.codespace, e.code))
    })?;
    let gas_info = GasInfo { gas_wanted: result.gas_wanted, gas_used: result.gas_used };
    let responses = TxMsgData::decode(result.data.as_slice()).unwrap_or_default().msg_responses;
    let outcome = TxOutcome {
        data: result.data,
        log: result.log,
        events: result.events.iter().map(|e| pb_event(&e.kind, &e.attributes)).collect(),
        msg_responses: responses,
    };
    Ok(pb::SimulateResponse { gas_info: Some(gas_info), result: Some(outcome) })
}

fn internal(e: BlockStoreError) -> QueryError {
    QueryError::new(QueryKind::Internal, e.to_string())
}

pub(crate) fn decode<M: Message + Name + Default>(request: &[u8]) -> Result<M, QueryError> {
    decode_strict(request).map_err(|e| QueryError::invalid(e.to_string()))
}

fn raw_of(tx: pb::Tx) -> Vec<u8> {
    let body_bytes = tx.body.unwrap_or_default().encode_to_vec();
    let auth_info_bytes = tx.auth_info.unwrap_or_default().encode_to_vec();
    pb::TxRaw { body_bytes, auth_info_bytes, signatures: tx.signatures }.encode_to_vec()
}

pub(crate) fn decode_tx(raw: &[u8]) -> Option<pb::Tx> {
    let raw = pb::TxRaw::decode(raw).ok()?;
    Some(pb::Tx {
        body: pb::TxBody::decode(raw.body_bytes.as_slice()).ok(),
        auth_info: pb::AuthInfo::decode(raw.auth_info_bytes.as_slice()).ok(),
        signatures: raw.signatures,
    })
}

pub(crate) fn pb_event(kind: &str, attributes: &[(String, String)]) -> PbEvent {
    let attribute = |(key, value): &(String, String)| EventAttribute {
        key: key.clone(),
        value: value.clone(),
        index: true,
    };
    PbEvent { r#type: kind.to_owned(), attributes: attributes.iter().map(attribute).collect() }
}

fn timestamp(time_ns: u64) -> Timestamp {
    let seconds = i64::try_from(time_ns / 1_000_000_000).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: i32::try_from(time_ns % 1_000_000_000).unwrap_or(0) }
}

fn tx_response(hash: &TxHash, stored: &StoredTx, tx: Option<&pb::Tx>, block: &StoredBlock) -> TxResponse {
    let StoredResult { code, codespace, data, log, gas_wanted, gas_used, events } = stored.result.clone();
    TxResponse {
        height: stored.height,
        txhash: hash_hex(hash),
        codespace,
        code,
        data: hex::encode_upper(data),
        raw_log: log,
        gas_wanted: i64::try_from(gas_wanted).unwrap_or(i64::MAX),
        gas_used: i64::try_from(gas_used).unwrap_or(i64::MAX),
        tx: tx.map(|tx| Any { type_url: type_url::<pb::Tx>(), value: tx.encode_to_vec() }),
        timestamp: timestamp(block.time_ns).to_string(),
        events: events.iter().map(|(kind, attributes)| pb_event(kind, attributes)).collect(),
        ..TxResponse::default()
    }
}
