//! `holdfastd status`: what a running node says of itself and how far its chain is.

use anyhow::Result;
use holdfast_proto::cosmos::base::tendermint::v1beta1::{
    GetBlockByHeightRequest, GetBlockByHeightResponse, GetLatestBlockRequest, GetLatestBlockResponse,
    GetNodeInfoRequest,
};
use holdfast_proto::tendermint::types::{BlockId, Header};
use holdfast_proto::{Message, to_json};
use serde_json::{Map, Value, json};

use super::error::fail;
use super::node::{CallFailure, Connect, Node, try_call};
use super::output::{Format, Io};
use super::query::NodeArgs;

const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";
const NODE_INFO_ANSWER: &str = "cosmos.base.tendermint.v1beta1.GetNodeInfoResponse";
const LATEST_BLOCK: &str = "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock";
const BLOCK_BY_HEIGHT: &str = "/cosmos.base.tendermint.v1beta1.Service/GetBlockByHeight";
const SYNCING: &str = "/cosmos.base.tendermint.v1beta1.Service/GetSyncing";

/// gRPC statuses with which a node says that it has no such block.
const NO_BLOCK: [i32; 3] = [3, 5, 11];
/// gRPC status: there is no such method.
const UNIMPLEMENTED: i32 = 12;

/// Asks a node for its name, its version and how far its chain is
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Form of the result
    #[arg(long, short, env = "HOLDFASTD_OUTPUT", value_name = "FORM", default_value = "json")]
    output: Format,
}

pub(crate) fn run(args: &StatusArgs, io: &mut Io<'_>, connect: Connect<'_>) -> Result<()> {
    let mut node = connect(&args.node.grpc_addr)?;
    let value = status(&mut *node)?;
    io.print(&value, args.output)
}

/// A block's hash and header.
type Place = (BlockId, Header);

fn status(node: &mut dyn Node) -> Result<Value> {
    let info = node.unary(NODE_INFO, &GetNodeInfoRequest {}.encode_to_vec(), None);
    let info = info.map_err(|failure| failure.refusal(NODE_INFO))?;
    let no_message = |e: String| fail(47, NODE_INFO.trim_start_matches('/'), e);
    let mut info = to_json(NODE_INFO_ANSWER, &info).map_err(|e| no_message(e.to_string()))?;
    let mut part = |key: &str| info.get_mut(key).map(Value::take).unwrap_or_else(|| json!({}));
    let (mut node_info, application) = (part("default_node_info"), part("application_version"));
    if let Some(fields) = node_info.as_object_mut()
        && let Some(id) = fields.remove("default_node_id")
    {
        // As CometBFT names it.
        fields.insert("id".into(), id);
    }
    let (latest, earliest) = match latest(node)? {
        None => (None, None),
        Some(latest) => {
            let earliest = earliest(node, &latest)?;
            (Some(latest), Some(earliest))
        }
    };
    let catching_up = catching_up(node)?;
    let mut sync_info = Map::new();
    describe(&mut sync_info, "latest", latest.as_ref());
    describe(&mut sync_info, "earliest", earliest.as_ref());
    sync_info.insert("catching_up".into(), json!(catching_up));
    let proposer = latest.map(|(_, header)| hex::encode_upper(header.proposer_address)).unwrap_or_default();
    let id = node_info.get("id").and_then(Value::as_str).unwrap_or_default().to_ascii_uppercase();
    // A node that names itself by its validator's address makes its blocks alone.
    let address = if id == proposer { proposer } else { String::new() };
    Ok(json!({
        "node_info": node_info,
        "application_version": application,
        "sync_info": sync_info,
        "validator_info": { "address": address },
    }))
}

fn describe(sync_info: &mut Map<String, Value>, which: &str, place: Option<&Place>) {
    let (id, header) = place.cloned().unwrap_or_default();
    let mut put = |name: &str, value: Value| sync_info.insert(format!("{which}_{name}"), value);
    put("block_hash", json!(hex::encode_upper(id.hash)));
    put("app_hash", json!(hex::encode_upper(header.app_hash)));
    put("block_height", json!(header.height.to_string()));
    put("block_time", json!(header.time.map(|time| time.to_string()).unwrap_or_default()));
}

/// The last block; none when the chain has not made one yet.
fn latest(node: &mut dyn Node) -> Result<Option<Place>> {
    let answer: Result<GetLatestBlockResponse, CallFailure> =
        try_call(node, LATEST_BLOCK, &GetLatestBlockRequest {})?;
    match answer {
        Ok(answer) => Ok(place(answer.block_id, answer.block.and_then(|block| block.header))),
        Err(failure) if failure.status.is_some_and(|status| NO_BLOCK.contains(&status)) => Ok(None),
        Err(failure) => Err(failure.refusal(LATEST_BLOCK).into()),
    }
}

fn place(id: Option<BlockId>, header: Option<Header>) -> Option<Place> {
    header.map(|header| (id.unwrap_or_default(), header))
}

/// The first block that the node still has. It has all from there on: so each question halves what is left.
fn earliest(node: &mut dyn Node, latest: &Place) -> Result<Place> {
    let mut found = latest.clone();
    let (mut low, mut high) = (1i64, latest.1.height);
    while low < high {
        let height = low.midpoint(high);
        let answer: Result<GetBlockByHeightResponse, CallFailure> =
            try_call(node, BLOCK_BY_HEIGHT, &GetBlockByHeightRequest { height })?;
        match answer {
            Ok(answer) => {
                if let Some(there) = place(answer.block_id, answer.block.and_then(|block| block.header)) {
                    found = there;
                }
                high = height;
            }
            Err(failure) if failure.status.is_some_and(|status| NO_BLOCK.contains(&status)) => {
                low = height.saturating_add(1);
            }
            Err(failure) => return Err(failure.refusal(BLOCK_BY_HEIGHT).into()),
        }
    }
    Ok(found)
}

/// Whether the node is behind; one that cannot say makes its blocks itself.
fn catching_up(node: &mut dyn Node) -> Result<bool> {
    match node.unary(SYNCING, &[], None) {
        // GetSyncingResponse { bool syncing = 1 }
        Ok(answer) => Ok(answer == [8, 1]),
        Err(failure) if failure.status == Some(UNIMPLEMENTED) => Ok(false),
        Err(failure) => Err(failure.refusal(SYNCING).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use holdfast_proto::cosmos::base::tendermint::v1beta1::GetNodeInfoResponse;
    use holdfast_proto::tendermint::p2p::DefaultNodeInfo;
    use holdfast_proto::tendermint::types::Block;
    use holdfast_proto::{Timestamp, decode_strict};

    use super::*;

    /// A node with blocks `first` to `last`.
    struct Chain {
        first: i64,
        last: i64,
        syncing: Option<bool>,
        asked: RefCell<Vec<i64>>,
    }

    fn refuse(status: i32) -> CallFailure {
        CallFailure { status: Some(status), message: "no".into() }
    }

    impl Chain {
        fn block(&self, height: i64) -> Result<(Option<BlockId>, Option<Block>), CallFailure> {
            if !(self.first..=self.last).contains(&height) {
                return Err(refuse(if height > self.last { 11 } else { 5 }));
            }
            let id = BlockId { hash: vec![height as u8; 32], ..BlockId::default() };
            let header = Header {
                height,
                app_hash: vec![0xab, height as u8],
                time: Some(Timestamp { seconds: 1_800_000_000 + height, nanos: 0 }),
                proposer_address: vec![0xcd; 20],
                ..Header::default()
            };
            Ok((Some(id), Some(Block { header: Some(header), ..Block::default() })))
        }
    }

    impl Node for Chain {
        fn unary(&mut self, path: &str, request: &[u8], _: Option<i64>) -> Result<Vec<u8>, CallFailure> {
            match path {
                NODE_INFO => {
                    let info = DefaultNodeInfo {
                        default_node_id: "cd".repeat(20),
                        network: "status-1".into(),
                        moniker: "one".into(),
                        ..DefaultNodeInfo::default()
                    };
                    let default_node_info = Some(info);
                    Ok(GetNodeInfoResponse { default_node_info, ..Default::default() }.encode_to_vec())
                }
                LATEST_BLOCK => {
                    let (block_id, block) = self.block(self.last)?;
                    Ok(GetLatestBlockResponse { block_id, block, ..Default::default() }.encode_to_vec())
                }
                BLOCK_BY_HEIGHT => {
                    let GetBlockByHeightRequest { height } = decode_strict(request).unwrap();
                    self.asked.borrow_mut().push(height);
                    let (block_id, block) = self.block(height)?;
                    Ok(GetBlockByHeightResponse { block_id, block, ..Default::default() }.encode_to_vec())
                }
                SYNCING => match self.syncing {
                    None => Err(refuse(UNIMPLEMENTED)),
                    Some(true) => Ok(vec![8, 1]),
                    Some(false) => Ok(Vec::new()),
                },
                other => panic!("{other}"),
            }
        }
    }

    fn chain(first: i64, last: i64) -> Chain {
        Chain { first, last, syncing: None, asked: RefCell::default() }
    }

    #[test]
    fn the_status_names_the_node_and_both_ends_of_its_chain() {
        for (first, last) in [(1, 1), (1, 2), (1, 1_000), (999, 1_000), (1_000, 1_000), (371, 1_000)] {
            let mut node = chain(first, last);
            let value = status(&mut node).unwrap();
            let sync = &value["sync_info"];
            assert_eq!(sync["latest_block_height"], last.to_string());
            assert_eq!(sync["earliest_block_height"], first.to_string());
            assert!(node.asked.borrow().len() <= 10, "each question halves what is left");
        }
        let value = status(&mut chain(2, 3)).unwrap();
        assert_eq!(value["node_info"]["id"], "cd".repeat(20));
        assert_eq!(value["node_info"]["network"], "status-1");
        assert_eq!(value["node_info"]["moniker"], "one");
        assert_eq!(value["validator_info"]["address"], "CD".repeat(20));
        assert_eq!(
            value["sync_info"],
            json!({
                "latest_block_hash": "03".repeat(32),
                "latest_app_hash": "AB03",
                "latest_block_height": "3",
                "latest_block_time": "2027-01-15T08:00:03Z",
                "earliest_block_hash": "02".repeat(32),
                "earliest_app_hash": "AB02",
                "earliest_block_height": "2",
                "earliest_block_time": "2027-01-15T08:00:02Z",
                "catching_up": false,
            })
        );
    }

    #[test]
    fn a_node_without_blocks_and_one_that_is_behind_say_so() {
        let value = status(&mut chain(1, 0)).unwrap();
        assert_eq!(value["sync_info"]["latest_block_height"], "0");
        assert_eq!(value["sync_info"]["earliest_block_height"], "0");
        for (syncing, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
            let value = status(&mut Chain { syncing, ..chain(1, 5) }).unwrap();
            assert_eq!(value["sync_info"]["catching_up"], expected);
        }
    }
}
