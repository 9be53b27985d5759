//! What every engine answers over gRPC beside the module queries: the Cosmos SDK's transaction and node services. An engine
//! says where transactions, blocks and its identity come from ([`NodeApi`]); requests, limits and forms are here.

use std::sync::Arc;

use holdfast_app::app::Shared;
use holdfast_app::echo::{MESSAGE_CHARS, cut, shown};
use holdfast_app::grpc::GrpcReply;
use holdfast_app::state::CommitStore;
use holdfast_app::tx::{TxHash, check_size, hash_hex, tx_hash};
use holdfast_proto::cosmos::base::abci::v1beta1::{GasInfo, Result as TxOutcome, TxMsgData, TxResponse};
use holdfast_proto::cosmos::base::tendermint::v1beta1 as base;
use holdfast_proto::cosmos::tx::v1beta1 as pb;
use holdfast_proto::tendermint::abci::{Event as PbEvent, EventAttribute};
use holdfast_proto::tendermint::{p2p, types};
use holdfast_proto::{Any, Message, Name, decode_strict, type_url};
use holdfast_types::{ModuleError, QueryError, QueryKind};

/// Path of the simulation, which CometBFT's queries reach too.
pub(crate) const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";
const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const LATEST_BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
const BLOCK_BY_HEIGHT: &str = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";
const SUMMARY: &str = "/holdfast.breaker.v1.Query/BreakerSummary";

/// Heights this close to the latest are at hand.
const RECENT: i64 = holdfast_app::views::RECENT_VIEWS as i64 - 1;

/// Paths answered beside the module queries.
const NODE_PATHS: &[&str] = &[SIMULATE, BROADCAST, GET_TX, NODE_INFO, LATEST_BLOCK, BLOCK_BY_HEIGHT];

/// A block as an engine has it.
pub(crate) struct FoundBlock {
    pub(crate) id: types::BlockId,
    pub(crate) block: types::Block,
    /// The proposer's address as the SDK shows it.
    pub(crate) proposer: String,
}

/// An engine's side of the node's calls.
pub(crate) trait NodeApi {
    /// State database.
    type Store: CommitStore;

    /// Whether its calls wait for another process.
    const REMOTE: bool;

    /// Checks and queries.
    fn shared(&self) -> Result<Arc<Shared<Self::Store>>, QueryError>;

    /// Height of the last commit.
    fn height(&self) -> i64;

    /// Gives a transaction to the pool. A refusal is a code in the answer.
    fn broadcast(&self, raw: &[u8], mode: pb::BroadcastMode) -> Result<TxResponse, QueryError>;

    /// A committed transaction: its bytes, and its response but for hash and transaction. `None`: there is none.
    fn tx(&self, hash: &TxHash) -> Result<Option<(Vec<u8>, TxResponse)>, QueryError>;

    /// Who this node is.
    fn node_info(&self) -> Result<p2p::DefaultNodeInfo, QueryError>;

    /// The block of `height`, which is at least 1, or the latest.
    fn block(&self, height: Option<i64>) -> Result<FoundBlock, QueryError>;
}

/// Answers a call to `engine` at `path`; `height` pins module queries.
pub(crate) fn call<E: NodeApi>(
    engine: &E,
    path: &str,
    request: &[u8],
    height: i64,
) -> Result<GrpcReply, QueryError> {
    if NODE_PATHS.contains(&path) {
        let value = node_call(engine, path, request)?;
        return Ok(GrpcReply { value, height: engine.height() });
    }
    let (value, height) = engine.shared()?.query(path, request, height)?;
    Ok(GrpcReply { value, height })
}

/// Whether a call takes long enough to need a thread of its own.
pub(crate) fn is_blocking<E: NodeApi>(engine: &E, path: &str, height: i64) -> bool {
    // Simulation runs messages, a summary reads every member, what-if replays an epoch; an older height may have to be rebuilt.
    (E::REMOTE && NODE_PATHS.contains(&path))
        || matches!(path, SIMULATE | SUMMARY | holdfast_app::what_if::PATH)
        || (height != 0 && height.saturating_add(RECENT) < engine.height())
}

fn node_call<E: NodeApi>(engine: &E, path: &str, request: &[u8]) -> Result<Vec<u8>, QueryError> {
    Ok(match path {
        SIMULATE => simulate(&*engine.shared()?, decode(request)?)?.encode_to_vec(),
        BROADCAST => broadcast(engine, &decode(request)?)?.encode_to_vec(),
        GET_TX => get_tx(engine, &decode(request)?)?.encode_to_vec(),
        NODE_INFO => base::GetNodeInfoResponse {
            default_node_info: Some(engine.node_info()?),
            application_version: Some(base::VersionInfo {
                name: "holdfast".into(),
                app_name: "holdfastd".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                ..base::VersionInfo::default()
            }),
        }
        .encode_to_vec(),
        LATEST_BLOCK => {
            let (block_id, block, sdk_block) = block(engine, None)?;
            base::GetLatestBlockResponse { block_id, block, sdk_block }.encode_to_vec()
        }
        BLOCK_BY_HEIGHT => {
            let request: base::GetBlockByHeightRequest = decode(request)?;
            let (block_id, block, sdk_block) = block(engine, Some(request.height))?;
            base::GetBlockByHeightResponse { block_id, block, sdk_block }.encode_to_vec()
        }
        _ => return Err(QueryError::new(QueryKind::Unimplemented, format!("no method {:?}", shown(path)))),
    })
}

fn broadcast<E: NodeApi>(
    engine: &E,
    request: &pb::BroadcastTxRequest,
) -> Result<pb::BroadcastTxResponse, QueryError> {
    let mode = match pb::BroadcastMode::try_from(request.mode) {
        Ok(mode @ (pb::BroadcastMode::Sync | pb::BroadcastMode::Async)) => mode,
        _ => return Err(QueryError::invalid("mode: use BROADCAST_MODE_SYNC or BROADCAST_MODE_ASYNC")),
    };
    if request.tx_bytes.is_empty() {
        return Err(QueryError::invalid("tx_bytes: give the transaction"));
    }
    // Here, because what carries it to another process may have a limit of its own.
    let response = match check_size(&request.tx_bytes) {
        Ok(()) => engine.broadcast(&request.tx_bytes, mode)?,
        Err(error) => refusal(error),
    };
    let txhash = hash_hex(&tx_hash(&request.tx_bytes));
    Ok(pb::BroadcastTxResponse { tx_response: Some(TxResponse { txhash, ..response }) })
}

/// The answer to a transaction that the pool does not take.
pub(crate) fn refusal(error: ModuleError) -> TxResponse {
    TxResponse {
        code: error.code,
        codespace: error.codespace.to_owned(),
        raw_log: error.message,
        ..TxResponse::default()
    }
}

fn get_tx<E: NodeApi>(engine: &E, request: &pb::GetTxRequest) -> Result<pb::GetTxResponse, QueryError> {
    let hash: Option<TxHash> = hex::decode(&request.hash).ok().and_then(|bytes| bytes.try_into().ok());
    let hash = hash.ok_or_else(|| QueryError::invalid("hash: give 64 hexadecimal digits"))?;
    let txhash = hash_hex(&hash);
    let found = engine.tx(&hash)?.filter(|(_, response)| response.height <= engine.height());
    // A result is known just before its block is committed; until then queries do not see what it tells.
    let (raw, response) = found.ok_or_else(|| QueryError::not_found(format!("tx not found: {txhash}")))?;
    let tx = decode_tx(&raw);
    let packed = tx.as_ref().map(|tx| Any { type_url: type_url::<pb::Tx>(), value: tx.encode_to_vec() });
    Ok(pb::GetTxResponse { tx, tx_response: Some(TxResponse { txhash, tx: packed, ..response }) })
}

type Blocks = (Option<types::BlockId>, Option<types::Block>, Option<base::Block>);

fn block<E: NodeApi>(engine: &E, height: Option<i64>) -> Result<Blocks, QueryError> {
    if height.is_some_and(|height| height <= 0) {
        return Err(QueryError::invalid("height: must be at least 1"));
    }
    let FoundBlock { id, block, proposer } = engine.block(height)?;
    let sdk_block = base::Block {
        header: block.header.clone().map(|header| sdk_header(header, proposer)),
        data: block.data.clone(),
        evidence: block.evidence.clone(),
        last_commit: block.last_commit.clone(),
    };
    Ok((Some(id), Some(block), Some(sdk_block)))
}

/// The header as the SDK has it: the proposer is a text.
fn sdk_header(header: types::Header, proposer_address: String) -> base::Header {
    base::Header {
        version: header.version,
        chain_id: header.chain_id,
        height: header.height,
        time: header.time,
        last_block_id: header.last_block_id,
        last_commit_hash: header.last_commit_hash,
        data_hash: header.data_hash,
        validators_hash: header.validators_hash,
        next_validators_hash: header.next_validators_hash,
        consensus_hash: header.consensus_hash,
        app_hash: header.app_hash,
        last_results_hash: header.last_results_hash,
        evidence_hash: header.evidence_hash,
        proposer_address,
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
        let said = cut(&e.message, MESSAGE_CHARS / 2);
        QueryError::new(QueryKind::InvalidArgument, format!("{said} [{} {}]", e.codespace, e.code))
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

fn decode<M: Message + Name + Default>(request: &[u8]) -> Result<M, QueryError> {
    decode_strict(request).map_err(|e| QueryError::invalid(e.to_string()))
}

fn raw_of(tx: pb::Tx) -> Vec<u8> {
    let body_bytes = tx.body.unwrap_or_default().encode_to_vec();
    let auth_info_bytes = tx.auth_info.unwrap_or_default().encode_to_vec();
    pb::TxRaw { body_bytes, auth_info_bytes, signatures: tx.signatures }.encode_to_vec()
}

fn decode_tx(raw: &[u8]) -> Option<pb::Tx> {
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
