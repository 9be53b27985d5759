//! The command line from words to bytes, with a node that answers from a table.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::rc::Rc;

use holdfast_app::keys::SecretKey;
use holdfast_app::tx::DecodedTx;
use holdfast_proto::cosmos::auth::v1beta1::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use holdfast_proto::cosmos::bank::v1beta1::{MsgSend, QueryAllBalancesRequest, QueryBalanceResponse};
use holdfast_proto::cosmos::base::abci::v1beta1::{GasInfo, TxResponse};
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::cosmos::base::tendermint::v1beta1::{
    GetBlockByHeightRequest, GetBlockByHeightResponse, GetNodeInfoResponse,
};
use holdfast_proto::cosmos::base::v1beta1::Coin;
use holdfast_proto::cosmos::tx::v1beta1::{
    BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse, SimulateResponse,
};
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::tendermint::p2p::DefaultNodeInfo;
use holdfast_proto::{Any, Message, Name, decode_strict, pool};
use holdfast_types::Hrp;
use prost_reflect::Kind;
use serde_json::{Value, json};

use super::catalog::kebab;
use super::node::{CallFailure, NOT_FOUND, Node};
use super::output::Io;
use super::{CLI_ERROR_CODES, Stop, command, execute, told};

mod catalog;
mod flags;
mod homes;
mod programs;
mod query;
mod tx;

/// The phrase of the BIP39 list whose first Cosmos address every wallet knows.
const ABANDON: &str =
    "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
const ABANDON_ADDRESS: &str = "cosmos19rl4cm2hmr8afy4kldpxz3fka4jguq0auqdal4";

type Answer = Result<Vec<u8>, CallFailure>;
type Calls = Rc<RefCell<Vec<(String, Vec<u8>, Option<i64>)>>>;

/// Answers each path with its list in order, the last one for ever; notes what it was asked.
#[derive(Clone, Default)]
struct FakeNode {
    answers: Rc<RefCell<BTreeMap<String, Vec<Answer>>>>,
    calls: Calls,
}

impl FakeNode {
    fn on(self, path: &str, answer: Answer) -> Self {
        self.answers.borrow_mut().entry(path.to_owned()).or_default().push(answer);
        self
    }

    fn requests(&self, path: &str) -> Vec<Vec<u8>> {
        self.calls.borrow().iter().filter(|call| call.0 == path).map(|call| call.1.clone()).collect()
    }
}

impl Node for FakeNode {
    fn unary(&mut self, path: &str, request: &[u8], height: Option<i64>) -> Answer {
        self.calls.borrow_mut().push((path.to_owned(), request.to_vec(), height));
        let mut answers = self.answers.borrow_mut();
        let list = answers.get_mut(path).unwrap_or_else(|| panic!("{path} was not expected"));
        if list.len() > 1 { list.remove(0) } else { list[0].clone() }
    }
}

/// What a command line gave.
struct Ended {
    out: String,
    err: String,
    /// The line on standard error and the exit code.
    failure: Option<(String, u8)>,
}

impl Ended {
    fn json(&self) -> Value {
        assert_eq!(self.failure, None);
        serde_json::from_str(&self.out).unwrap()
    }

    fn refused(&self, code: u32, parts: &[&str]) {
        let (line, exit) = self.failure.as_ref().unwrap_or_else(|| panic!("accepted: {}", self.out));
        assert!(line.ends_with(&format!("(cli error {code})")), "{code}: {line}");
        assert!(!line.contains('\n') && line.starts_with("Error: "), "{line}");
        assert_eq!(*exit, if (11..=15).contains(&code) { 2 } else { 1 }, "{line}");
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in: {line}");
        }
    }
}

fn run_with(words: &[&str], input: &str, terminal: bool, node: &FakeNode) -> Ended {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let words: Vec<_> = ["holdfastd"].iter().chain(words).map(Into::into).collect();
    let mut io = Io { out: &mut out, err: &mut err, input: &mut input.as_bytes(), terminal };
    let connect = |_: &str| -> anyhow::Result<Box<dyn Node>> { Ok(Box::new(node.clone())) };
    let failure = match execute(&words, &mut io, &connect) {
        Ok(()) => None,
        Err(Stop::Printed(text)) => {
            out.extend(text.into_bytes());
            None
        }
        Err(Stop::Help(text)) => Some((text, 2)),
        Err(Stop::Failed(error)) => Some(told(&error)),
    };
    Ended { out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap(), failure }
}

fn run(words: &[&str]) -> Ended {
    run_with(words, "", false, &FakeNode::default())
}

fn home() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node").to_str().unwrap().to_owned();
    (dir, path)
}

/// A home with the known key under the name `alice`, prefix `cosmos`.
fn home_of_alice() -> (tempfile::TempDir, String) {
    let (dir, home) = home();
    run_with(
        &["keys", "add", "alice", "--recover", "--home", &home, "--bech32-prefix", "cosmos"],
        ABANDON,
        false,
        &FakeNode::default(),
    )
    .json();
    (dir, home)
}

/// A command of the tree by its path.
fn at<'c>(tree: &'c clap::Command, path: &[&str]) -> &'c clap::Command {
    path.iter()
        .fold(tree, |at, name| at.find_subcommand(name).unwrap_or_else(|| panic!("no command {path:?}")))
}

fn built() -> clap::Command {
    let mut tree = command().unwrap();
    tree.build();
    tree
}

fn module_of(package: &str) -> String {
    // cosmos.bank.v1beta1 -> bank
    package.split('.').rev().nth(1).unwrap().to_owned()
}

fn account_answer(number: u64, sequence: u64) -> Answer {
    let account =
        BaseAccount { address: ABANDON_ADDRESS.into(), pub_key: None, account_number: number, sequence };
    let any = Any { type_url: "/cosmos.auth.v1beta1.BaseAccount".into(), value: account.encode_to_vec() };
    Ok(QueryAccountResponse { account: Some(any) }.encode_to_vec())
}

fn broadcast_answer(code: u32, log: &str) -> Answer {
    let codespace = if code == 0 { "" } else { "sdk" };
    let answer = TxResponse {
        txhash: "AB".repeat(32),
        code,
        codespace: codespace.into(),
        raw_log: log.into(),
        ..TxResponse::default()
    };
    Ok(BroadcastTxResponse { tx_response: Some(answer) }.encode_to_vec())
}

fn not_found() -> Answer {
    Err(CallFailure { status: Some(NOT_FOUND), message: "not there".into() })
}

const ACCOUNT: &str = "/cosmos.auth.v1beta1.Query/Account";
const BROADCAST: &str = "/cosmos.tx.v1beta1.Service/BroadcastTx";
const GET_TX: &str = "/cosmos.tx.v1beta1.Service/GetTx";
const SIMULATE: &str = "/cosmos.tx.v1beta1.Service/Simulate";
const NODE_INFO: &str = "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo";

fn node_with_account() -> FakeNode {
    let info = DefaultNodeInfo { network: "test-1".into(), ..DefaultNodeInfo::default() };
    let info = GetNodeInfoResponse { default_node_info: Some(info), application_version: None };
    FakeNode::default().on(ACCOUNT, account_answer(4, 9)).on(NODE_INFO, Ok(info.encode_to_vec()))
}

/// The transaction that reached the node.
fn broadcast(node: &FakeNode) -> (Vec<u8>, DecodedTx) {
    let requests = node.requests(BROADCAST);
    let request: BroadcastTxRequest = decode_strict(requests.last().unwrap()).unwrap();
    assert_eq!(request.mode, 2);
    let tx = DecodedTx::decode(&request.tx_bytes, &Hrp::new("cosmos").unwrap()).unwrap();
    (request.tx_bytes, tx)
}

fn tx_words<'w>(home: &'w str, message: &'w [&'w str], more: &'w [&'w str]) -> Vec<&'w str> {
    let signing = ["--from", "alice", "--home", home, "--bech32-prefix", "cosmos"];
    ["tx"].into_iter().chain(message.iter().copied()).chain(signing).chain(more.iter().copied()).collect()
}

#[cfg(unix)]
fn assert_mode(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
}

#[cfg(not(unix))]
fn assert_mode(_: &Path) {}
