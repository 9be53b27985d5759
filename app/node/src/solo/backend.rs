//! What a solo node answers over gRPC: module queries from the app's views, transactions and blocks from the engine.

use std::sync::Arc;

use holdfast_app::app::Shared;
use holdfast_app::grpc::{GrpcBackend, GrpcReply};
use holdfast_app::state::CommitStore;
use holdfast_app::tx::TxHash;
use holdfast_proto::Timestamp;
use holdfast_proto::cosmos::base::abci::v1beta1::TxResponse;
use holdfast_proto::cosmos::tx::v1beta1::BroadcastMode;
use holdfast_proto::tendermint::{p2p, types, version};
use holdfast_types::{QueryError, QueryKind};

use super::blocks::{BlockStoreError, StoredBlock, StoredResult, StoredTx};
use super::engine::Engine;
use crate::node_api::{self, FoundBlock, NodeApi, pb_event};

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
}

impl<S: CommitStore> NodeApi for NodeBackend<S> {
    type Store = S;
    const REMOTE: bool = false;

    fn shared(&self) -> Result<Arc<Shared<S>>, QueryError> {
        Ok(self.engine.shared().clone())
    }

    fn height(&self) -> i64 {
        *self.engine.heights().borrow()
    }

    fn broadcast(&self, raw: &[u8], _mode: BroadcastMode) -> Result<TxResponse, QueryError> {
        Ok(self.engine.broadcast(raw).map_or_else(node_api::refusal, |_| TxResponse::default()))
    }

    fn tx(&self, hash: &TxHash) -> Result<Option<(Vec<u8>, TxResponse)>, QueryError> {
        let blocks = self.engine.blocks();
        let Some(stored) = blocks.tx(hash).map_err(internal)? else { return Ok(None) };
        let Some(block) = blocks.block(stored.height).map_err(internal)? else { return Ok(None) };
        let index = usize::try_from(stored.index).unwrap_or(usize::MAX);
        let response = tx_response(&stored, &block);
        Ok(block.txs.into_iter().nth(index).map(|raw| (raw, response)))
    }

    fn node_info(&self) -> Result<p2p::DefaultNodeInfo, QueryError> {
        Ok(p2p::DefaultNodeInfo {
            protocol_version: Some(p2p::ProtocolVersion { p2p: 0, block: 0, app: 1 }),
            default_node_id: hex::encode(&self.proposer),
            network: self.engine.shared().settings().chain_id.clone(),
            // Clients choose their decoders by it; a solo node speaks the shapes of this line.
            version: "0.38.0-solo".into(),
            moniker: self.moniker.clone(),
            other: Some(p2p::DefaultNodeInfoOther { tx_index: "on".into(), rpc_address: String::new() }),
            ..p2p::DefaultNodeInfo::default()
        })
    }

    fn block(&self, height: Option<i64>) -> Result<FoundBlock, QueryError> {
        let latest = self.height();
        let height = height.unwrap_or(latest);
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
        let settings = self.engine.shared().settings();
        let last = (height > settings.initial_height).then(|| id(stored.last_block_hash));
        let header = types::Header {
            version: Some(version::Consensus { block: 11, app: 1 }),
            chain_id: settings.chain_id.clone(),
            height,
            time: Some(timestamp(stored.time_ns)),
            last_block_id: last.clone(),
            app_hash: stored.app_hash.to_vec(),
            proposer_address: self.proposer.clone(),
            ..types::Header::default()
        };
        let commit = types::Commit { height: height - 1, block_id: last, ..types::Commit::default() };
        Ok(FoundBlock {
            id: id(stored.hash()),
            proposer: hex::encode_upper(&self.proposer),
            block: types::Block {
                header: Some(header),
                data: Some(types::Data { txs: stored.txs }),
                evidence: Some(types::EvidenceList::default()),
                last_commit: Some(commit),
            },
        })
    }
}

impl<S: CommitStore> GrpcBackend for NodeBackend<S> {
    fn call(&self, path: &str, request: &[u8], height: i64) -> Result<GrpcReply, QueryError> {
        node_api::call(self, path, request, height)
    }

    fn is_blocking(&self, path: &str, height: i64) -> bool {
        node_api::is_blocking(self, path, height)
    }
}

fn internal(e: BlockStoreError) -> QueryError {
    QueryError::new(QueryKind::Internal, e.to_string())
}

fn timestamp(time_ns: u64) -> Timestamp {
    let seconds = i64::try_from(time_ns / 1_000_000_000).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: i32::try_from(time_ns % 1_000_000_000).unwrap_or(0) }
}

fn tx_response(stored: &StoredTx, block: &StoredBlock) -> TxResponse {
    let StoredResult { code, codespace, data, log, gas_wanted, gas_used, events } = stored.result.clone();
    TxResponse {
        height: stored.height,
        codespace,
        code,
        data: hex::encode_upper(data),
        raw_log: log,
        gas_wanted: i64::try_from(gas_wanted).unwrap_or(i64::MAX),
        gas_used: i64::try_from(gas_used).unwrap_or(i64::MAX),
        timestamp: timestamp(block.time_ns).to_string(),
        events: events.iter().map(|(kind, attributes)| pb_event(kind, attributes)).collect(),
        ..TxResponse::default()
    }
}
