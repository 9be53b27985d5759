use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use holdfast_app::app::{AppOptions, state_spaces};
use holdfast_app::keys::SecretKey;
use holdfast_app::snapshots::{Restorer, SnapshotStore};
use holdfast_app::state::{CommitStore, DiskStore, MemCommitStore, StateOptions};
use holdfast_app::tx::{TxBuilder, pack};
use holdfast_proto::Message;
use holdfast_proto::cosmos::bank::v1beta1::{MsgSend, QueryBalanceRequest, QueryBalanceResponse};
use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
use holdfast_types::{Coin, Hrp};
use tendermint_proto::google::protobuf::Timestamp;
use tendermint_proto::v0_38::abci::{self as pb, request::Value as Q, response::Value as R};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::keys::Ed25519Key;
use super::server::{Frame, frame};
use super::*;
use crate::devnet::genesis::DENOM;
use crate::localnet::genesis::{Chain, Member};

const CHAIN: &str = "test-1";
const TIME: Timestamp = Timestamp { seconds: 1_769_860_800, nanos: 0 };

/// Answers by what the request says; stands in for an application that misbehaves.
struct Fake;

impl Application for Fake {
    fn handle(&self, request: Q) -> Result<R> {
        match request {
            Q::Query(query) if query.path == "panic" => panic!("a bug in a query"),
            Q::Query(query) if query.path == "slow" => {
                std::thread::sleep(Duration::from_millis(1_500));
                Ok(R::Query(pb::ResponseQuery::default()))
            }
            Q::Query(query) if query.path == "big" => Ok(R::Query(pb::ResponseQuery {
                value: Bytes::from(vec![7; MAX_REPLY_BYTES + 1]),
                ..Default::default()
            })),
            Q::Query(_) => anyhow::bail!("refused"),
            Q::FinalizeBlock(block) if block.height == 13 => panic!("a bug in a block"),
            Q::FinalizeBlock(_) => anyhow::bail!("this block cannot be"),
            Q::Info(_) => Ok(R::Info(pb::ResponseInfo { data: "fake".into(), ..Default::default() })),
            other => anyhow::bail!("no answer to {:?}", Method::of(&other)),
        }
    }
}

struct Served {
    addr: ProxyAddr,
    stop: watch::Sender<bool>,
    ended: JoinHandle<Result<()>>,
}

async fn served(addr: &ProxyAddr, app: Arc<dyn Application>) -> Served {
    let listener = ProxyListener::bind(addr).await.unwrap();
    let addr = listener.addr().clone();
    let (stop, stopped) = watch::channel(false);
    Served { addr, stop, ended: tokio::spawn(serve(listener, app, stopped)) }
}

async fn tcp(app: impl Application) -> Served {
    served(&ProxyAddr::Tcp("127.0.0.1:0".into()), Arc::new(app)).await
}

async fn connect(served: &Served) -> TcpStream {
    match &served.addr {
        ProxyAddr::Tcp(addr) => TcpStream::connect(addr).await.unwrap(),
        ProxyAddr::Unix(_) => panic!("a TCP server"),
    }
}

fn framed(request: Q) -> Vec<u8> {
    pb::Request { value: Some(request) }.encode_length_delimited_to_vec()
}

fn flush() -> Q {
    Q::Flush(pb::RequestFlush {})
}

fn echo(message: &str) -> Q {
    Q::Echo(pb::RequestEcho { message: message.into() })
}

fn query(path: &str, height: i64) -> Q {
    Q::Query(pb::RequestQuery { path: path.into(), height, ..Default::default() })
}

/// One answer; `None` when the server has closed the connection.
async fn next(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<R> {
    let mut bytes = Vec::new();
    loop {
        if let Frame::Whole(head, length) = frame(&bytes).unwrap() {
            assert_eq!(bytes.len(), head + length);
            return pb::Response::decode(&bytes[head..]).unwrap().value;
        }
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_u8()).await.expect("no answer");
        bytes.push(read.ok()?);
    }
}

async fn ask(stream: &mut TcpStream, request: Q) -> R {
    stream.write_all(&framed(request)).await.unwrap();
    stream.write_all(&framed(flush())).await.unwrap();
    let answer = next(stream).await.expect("an answer");
    assert!(matches!(next(stream).await, Some(R::Flush(_))));
    answer
}

#[test]
fn a_frame_is_found_however_its_bytes_arrive() {
    let bytes = framed(echo(&"x".repeat(300)));
    assert_eq!(frame(&[]), Ok(Frame::Partial(1)));
    // Two bytes of prefix, as the message is longer than 127.
    assert_eq!(frame(&bytes[..1]), Ok(Frame::Partial(2)));
    for cut in 2..bytes.len() {
        assert_eq!(frame(&bytes[..cut]), Ok(Frame::Partial(bytes.len())), "{cut}");
    }
    assert_eq!(frame(&bytes), Ok(Frame::Whole(2, bytes.len() - 2)));
    let two = [bytes.as_slice(), &bytes].concat();
    assert_eq!(frame(&two), Ok(Frame::Whole(2, bytes.len() - 2)));
    assert_eq!(frame(&[0]), Ok(Frame::Whole(1, 0)));
    // 128 MiB is the most: 2^27 is 80 80 80 40, one more is 81 80 80 40.
    assert_eq!(frame(&[0x80, 0x80, 0x80, 0x40]), Ok(Frame::Partial(4 + (128 << 20))));
    assert!(frame(&[0x81, 0x80, 0x80, 0x40]).unwrap_err().contains("too long"));
    assert!(frame(&[0xff; 10]).unwrap_err().contains("varint"));
    assert!(frame(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
    assert_eq!(frame(&[0xff; 9]), Ok(Frame::Partial(10)));
}

#[test]
fn addresses_are_read_as_cometbft_writes_them() {
    let tcp = |text: &str| ProxyAddr::Tcp(text.into());
    for (text, addr) in [
        ("tcp://127.0.0.1:26658", tcp("127.0.0.1:26658")),
        ("localhost:0", tcp("localhost:0")),
        ("tcp://[::1]:26658", tcp("[::1]:26658")),
        ("unix:///run/app.sock", ProxyAddr::Unix("/run/app.sock".into())),
    ] {
        assert_eq!(ProxyAddr::parse(text), Ok(addr), "{text}");
    }
    for text in ["", "tcp://", "tcp://host", "tcp://:1", "tcp://host:65536", "unix://app.sock", "a b:1"] {
        assert!(ProxyAddr::parse(text).is_err(), "{text}");
    }
    assert_eq!(ProxyAddr::Unix("/run/app.sock".into()).to_string(), "unix:///run/app.sock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_come_in_order_and_requests_may_come_in_pieces() {
    let served = tcp(Fake).await;
    let mut stream = connect(&served).await;
    let mut bytes = Vec::new();
    for number in 0..50 {
        bytes.extend(framed(echo(&format!("{number}"))));
        bytes.extend(framed(query("refused", 0)));
    }
    bytes.extend(framed(flush()));
    for piece in bytes.chunks(7) {
        stream.write_all(piece).await.unwrap();
    }
    for number in 0..50 {
        assert!(matches!(next(&mut stream).await, Some(R::Echo(e)) if e.message == number.to_string()));
        assert!(matches!(next(&mut stream).await, Some(R::Query(q)) if q.code == 1 && q.log == "refused"));
    }
    assert!(matches!(next(&mut stream).await, Some(R::Flush(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_answered_and_does_no_harm() {
    let served = tcp(Fake).await;
    let mut stream = connect(&served).await;
    // No protobuf; no value; a method of another version.
    for bytes in [vec![3, 0xff, 0xff, 0xff], vec![0], vec![3, 0xca, 0x06, 0x00], vec![2, 0x9a, 0x01]] {
        stream.write_all(&bytes).await.unwrap();
        let answer = next(&mut stream).await;
        assert!(matches!(answer, Some(R::Exception(_))), "{bytes:?}: {answer:?}");
        assert!(matches!(ask(&mut stream, echo("alive")).await, R::Echo(_)));
    }
    for prefix in [vec![0xff; 10], vec![0x81, 0x80, 0x80, 0x40], vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x20]] {
        let mut stream = connect(&served).await;
        stream.write_all(&prefix).await.unwrap();
        assert!(matches!(next(&mut stream).await, Some(R::Exception(_))), "{prefix:?}");
        assert_eq!(next(&mut stream).await, None);
    }
    // One that announces much and sends little costs no memory and holds up nobody.
    let mut silent = connect(&served).await;
    silent.write_all(&[0x80, 0x80, 0x80, 0x40, 1, 2, 3]).await.unwrap();
    assert!(matches!(ask(&mut stream, echo("alive")).await, R::Echo(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_or_a_huge_answer_of_a_query_is_an_answer() {
    let served = tcp(Fake).await;
    let mut stream = connect(&served).await;
    let R::Query(answer) = ask(&mut stream, query("panic", 0)).await else { panic!("a query's answer") };
    assert_eq!((answer.codespace.as_str(), answer.code), ("undefined", 111_222));
    assert!(answer.log.contains("a bug in a query"), "{}", answer.log);
    let R::Query(answer) = ask(&mut stream, query("big", 0)).await else { panic!("a query's answer") };
    assert_eq!((answer.codespace.as_str(), answer.code), ("sdk", 18));
    assert!(answer.value.is_empty());
    // Each method says no in its own words.
    let proposal = Q::ProcessProposal(pb::RequestProcessProposal::default());
    assert!(matches!(ask(&mut stream, proposal).await, R::ProcessProposal(p) if p.status == 2));
    let check = Q::CheckTx(pb::RequestCheckTx::default());
    assert!(matches!(ask(&mut stream, check).await, R::CheckTx(c) if c.code == 1));
    let offer = Q::OfferSnapshot(pb::RequestOfferSnapshot::default());
    assert!(matches!(ask(&mut stream, offer).await, R::OfferSnapshot(o) if o.result == 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_block_is_told_and_ends_the_server_with_the_reason() {
    for (height, text) in [(12, "this block cannot be"), (13, "a bug in a block")] {
        let served = tcp(Fake).await;
        let mut stream = connect(&served).await;
        let block = pb::RequestFinalizeBlock { height, ..Default::default() };
        stream.write_all(&framed(Q::FinalizeBlock(block))).await.unwrap();
        let answer = next(&mut stream).await;
        assert!(matches!(&answer, Some(R::Exception(e)) if e.error.contains(text)), "{answer:?}");
        let error = served.ended.await.unwrap().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_query_holds_up_its_own_connection_only() {
    let served = tcp(Fake).await;
    let (mut slow, mut quick) = (connect(&served).await, connect(&served).await);
    slow.write_all(&framed(query("slow", 0))).await.unwrap();
    let began = std::time::Instant::now();
    for _ in 0..20 {
        assert!(matches!(ask(&mut quick, Q::Info(pb::RequestInfo::default())).await, R::Info(_)));
    }
    assert!(began.elapsed() < Duration::from_millis(1_200), "{:?}", began.elapsed());
    assert!(matches!(next(&mut slow).await, Some(R::Query(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_closed_and_a_freed_place_is_taken_again() {
    let served = tcp(Fake).await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = connect(&served).await;
        ask(&mut stream, echo("in")).await;
        open.push(stream);
    }
    assert_eq!(next(&mut connect(&served).await).await, None);
    open.pop();
    tokio::time::sleep(Duration::from_millis(100)).await;
    ask(&mut connect(&served).await, echo("in")).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_left_behind_is_replaced_and_one_in_use_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let addr = ProxyAddr::Unix(path.clone());
    // Dropping a std listener leaves its file, as a crash does.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let first = served(&addr, Arc::new(Fake)).await;
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(&framed(echo("there"))).await.unwrap();
    assert!(matches!(next(&mut stream).await, Some(R::Echo(_))));
    let again = ProxyListener::bind(&addr).await.unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
    first.stop.send(true).unwrap();
    first.ended.await.unwrap().unwrap();
    assert_eq!(next(&mut stream).await, None);
    assert!(!path.exists());
    // What is no socket is nobody's to remove.
    std::fs::write(&path, "mine").unwrap();
    assert!(ProxyListener::bind(&addr).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

/// An adapter over an empty database, and the key of an account with coins.
pub(super) struct Net {
    pub(super) adapter: Adapter<MemCommitStore>,
    gateway: SecretKey,
    state: Bytes,
    dir: tempfile::TempDir,
}

fn adapter(dir: &Path, store: MemCommitStore) -> Adapter<MemCommitStore> {
    let config = AdapterConfig {
        genesis: dir.join("genesis.json"),
        options: AppOptions::default(),
        min_retain_blocks: 0,
        snapshot_heights: 0,
        restorer: None,
        snapshots: None,
        metered: false,
        after_commit: Box::new(|_| {}),
    };
    Adapter::new(store, config).unwrap()
}

fn net() -> Net {
    let dir = tempfile::tempdir().unwrap();
    let key = |label: &str| SecretKey::from_seed_label(b"comet", label);
    let gateway = key("gateway");
    let chain = Chain {
        chain_id: CHAIN.into(),
        hrp: Hrp::default(),
        genesis_time: "2026-01-31T12:00:00Z".into(),
        epoch_length: 100,
        members: vec![Member {
            address: key("validator").address(),
            validator_key: Ed25519Key::from_seed([1; 32]).public_key(),
        }],
        gateways: vec![gateway.address()],
        ..Chain::default()
    };
    let doc = chain.document().unwrap();
    std::fs::write(dir.path().join("genesis.json"), doc.to_json().unwrap()).unwrap();
    let state = serde_json::to_vec(&doc.app_state).unwrap().into();
    let store = MemCommitStore::with_options(&state_spaces(), StateOptions::default()).unwrap();
    Net { adapter: adapter(dir.path(), store), gateway, state, dir }
}

fn run_block<S: CommitStore>(
    adapter: &Adapter<S>,
    height: i64,
    txs: Vec<Vec<u8>>,
) -> pb::ResponseFinalizeBlock {
    let time = Some(Timestamp { seconds: TIME.seconds + height, nanos: 5 });
    let txs = txs.into_iter().map(Bytes::from).collect();
    let request = pb::RequestFinalizeBlock { height, time, txs, ..Default::default() };
    let answer = adapter.handle(Q::FinalizeBlock(request)).unwrap();
    let R::FinalizeBlock(block) = answer else { panic!("{answer:?}") };
    assert!(matches!(adapter.handle(Q::Commit(pb::RequestCommit {})).unwrap(), R::Commit(_)));
    block
}

/// A chain after `height` empty blocks.
pub(super) fn chain_at(height: i64) -> Net {
    let net = net();
    net.adapter.handle(Q::InitChain(net.init())).unwrap();
    for height in 1..=height {
        net.block(height, Vec::new());
    }
    net
}

impl Net {
    fn init(&self) -> pb::RequestInitChain {
        pb::RequestInitChain {
            time: Some(TIME),
            chain_id: CHAIN.into(),
            app_state_bytes: self.state.clone(),
            initial_height: 1,
            ..Default::default()
        }
    }

    fn info(&self) -> pb::ResponseInfo {
        let answer = self.adapter.handle(Q::Info(pb::RequestInfo::default())).unwrap();
        let R::Info(info) = answer else { panic!("{answer:?}") };
        info
    }

    fn block(&self, height: i64, txs: Vec<Vec<u8>>) -> pb::ResponseFinalizeBlock {
        run_block(&self.adapter, height, txs)
    }

    fn check(&self, tx: &[u8], kind: i32) -> pb::ResponseCheckTx {
        let request = pb::RequestCheckTx { tx: Bytes::copy_from_slice(tx), r#type: kind };
        let answer = self.adapter.handle(Q::CheckTx(request)).unwrap();
        let R::CheckTx(checked) = answer else { panic!("{answer:?}") };
        checked
    }

    fn query(&self, path: &str, data: &[u8], height: i64, prove: bool) -> pb::ResponseQuery {
        let data = Bytes::copy_from_slice(data);
        let request = pb::RequestQuery { data, path: path.into(), height, prove };
        let answer = self.adapter.handle(Q::Query(request)).unwrap();
        let R::Query(found) = answer else { panic!("{answer:?}") };
        found
    }

    fn send(&self, sequence: u64) -> Vec<u8> {
        let address = self.gateway.address().to_bech32(&Hrp::default());
        let amount = vec![PbCoin { denom: DENOM.into(), amount: "5".into() }];
        let send = MsgSend { from_address: address.clone(), to_address: address, amount };
        TxBuilder {
            chain_id: CHAIN.into(),
            // The one validator has number 0.
            account_number: 1,
            sequence,
            fee: Coin { denom: DENOM.into(), amount: 7 },
            gas_limit: 200_000,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![pack(&send)],
        }
        .sign(&self.gateway)
    }
}

#[test]
fn init_chain_answers_all_parameter_groups_and_the_participants_and_may_come_again() {
    let net = net();
    assert_eq!((net.info().last_block_height, net.info().last_block_app_hash.len()), (0, 0));
    let first = net.adapter.handle(Q::InitChain(net.init())).unwrap();
    let R::InitChain(reply) = &first else { panic!("{first:?}") };
    let params = reply.consensus_params.clone().unwrap();
    assert_eq!(params.block.unwrap().max_bytes, 22_020_096);
    assert_eq!(params.block.unwrap().max_gas, -1);
    assert_eq!(params.validator.unwrap().pub_key_types, ["ed25519", "secp256k1"]);
    assert_eq!(params.version.unwrap().app, 1);
    assert_eq!(params.abci.unwrap().vote_extensions_enable_height, 0);
    assert_eq!(params.evidence.unwrap().max_age_num_blocks, 100_000);
    assert_eq!(reply.validators.len(), 1);
    assert!(reply.validators[0].power > 0);
    assert_eq!(reply.app_hash.len(), 32);
    // Nothing of it is durable: it comes again after a crash, with the same answer, also with an initial height of 0.
    assert_eq!(net.info().last_block_height, 0);
    let again = pb::RequestInitChain { initial_height: 0, ..net.init() };
    assert_eq!(net.adapter.handle(Q::InitChain(again)).unwrap(), first);
    net.block(1, Vec::new());
    let late = net.adapter.handle(Q::InitChain(net.init())).unwrap_err().to_string();
    assert!(late.contains("at height 1 already"), "{late}");
}

#[test]
fn init_chain_with_another_genesis_names_the_field() {
    let net = net();
    type Change = fn(&mut pb::RequestInitChain);
    let changes: [(&str, Change); 6] = [
        ("chain_id", |r| r.chain_id = "test-2".into()),
        ("initial_height", |r| r.initial_height = 2),
        ("genesis_time", |r| r.time = Some(Timestamp { nanos: 1, ..TIME })),
        ("genesis_time", |r| r.time = None),
        ("app_state", |r| r.app_state_bytes = Bytes::from_static(b"{}")),
        ("app_state", |r| r.app_state_bytes = Bytes::from_static(b"no json")),
    ];
    for (field, change) in changes {
        let mut request = net.init();
        change(&mut request);
        let text = net.adapter.handle(Q::InitChain(request)).unwrap_err().to_string();
        assert!(text.contains(field) && text.contains("genesis.json"), "{field}: {text}");
    }
    // Those of the document are wrong only when they differ.
    let key = |n: u8| {
        let update = holdfast_types::ValidatorUpdate { public_key: vec![n; 32], power: 5 };
        convert::validator(update).unwrap()
    };
    let request = pb::RequestInitChain { validators: vec![key(1)], ..net.init() };
    let text = net.adapter.handle(Q::InitChain(request)).unwrap_err().to_string();
    assert!(text.contains("validators"), "{text}");
    assert!(matches!(net.adapter.handle(Q::InitChain(net.init())), Ok(R::InitChain(_))));
}

#[test]
fn before_the_chain_starts_every_call_has_an_answer_or_a_reason() {
    let net = net();
    assert_eq!(net.query("/cosmos.bank.v1beta1.Query/Balance", b"", 0, false).code, 18);
    assert_eq!(net.query("/store/bank/key", b"x", 0, true).code, 18);
    assert_eq!(net.query("/app/version", b"", 0, false).value.as_ref(), env!("CARGO_PKG_VERSION").as_bytes());
    assert_eq!(net.check(b"tx", 0).code, 1);
    let block =
        Q::FinalizeBlock(pb::RequestFinalizeBlock { height: 1, time: Some(TIME), ..Default::default() });
    let text = net.adapter.handle(block).unwrap_err().to_string();
    assert!(text.contains("InitChain"), "{text}");
    let offer = net.adapter.handle(Q::OfferSnapshot(pb::RequestOfferSnapshot::default())).unwrap();
    assert!(matches!(offer, R::OfferSnapshot(o) if o.result == 3));
}

#[test]
fn a_block_is_visible_after_its_commit_and_checks_begin_anew() {
    let net = net();
    net.adapter.handle(Q::InitChain(net.init())).unwrap();
    let (first, second) = (net.send(0), net.send(1));
    assert_eq!(net.check(&second, 0).code, 32);
    let good = net.check(&first, 0);
    assert_eq!((good.code, good.gas_wanted), (0, 200_000), "{}", good.log);
    // The second builds on the first.
    assert_eq!(net.check(&second, 0).code, 0);
    assert_eq!(net.check(b"garbage", 0).code, 2);
    assert_eq!(net.check(&first, 7).code, 1);
    let done = net.block(1, vec![first.clone(), b"garbage".to_vec()]);
    assert_eq!(done.tx_results.iter().map(|r| r.code).collect::<Vec<_>>(), [0, 2]);
    assert!(done.tx_results[0].gas_used > 0 && done.tx_results[0].gas_wanted == 200_000);
    assert_eq!(net.info().last_block_height, 1);
    assert_eq!(net.info().last_block_app_hash, done.app_hash);
    // What was executed is refused, what waits passes again.
    assert_eq!(net.check(&first, 1).code, 32);
    assert_eq!(net.check(&second, 1).code, 0);
    let done = net.block(2, vec![second]);
    assert_eq!(done.tx_results[0].code, 0);
    let text = net.adapter.handle(Q::Commit(pb::RequestCommit {})).unwrap_err().to_string();
    assert!(text.contains("no finalized block"), "{text}");
    // Nothing goes on after that.
    let more =
        Q::FinalizeBlock(pb::RequestFinalizeBlock { height: 3, time: Some(TIME), ..Default::default() });
    assert!(net.adapter.handle(more).is_err());
}

#[test]
fn a_block_out_of_turn_or_time_is_an_error() {
    for (height, seconds) in [(2, TIME.seconds), (0, TIME.seconds), (-1, TIME.seconds), (1, -1)] {
        let net = net();
        net.adapter.handle(Q::InitChain(net.init())).unwrap();
        let time = Some(Timestamp { seconds, nanos: 0 });
        let block = pb::RequestFinalizeBlock { height, time, ..Default::default() };
        assert!(net.adapter.handle(Q::FinalizeBlock(block)).is_err(), "{height} {seconds}");
    }
}

#[test]
fn queries_have_the_codes_that_clients_know() {
    let net = net();
    net.adapter.handle(Q::InitChain(net.init())).unwrap();
    net.block(1, Vec::new());
    net.block(2, Vec::new());
    let address = net.gateway.address().to_bech32(&Hrp::default());
    let ask = QueryBalanceRequest { address: address.clone(), denom: DENOM.into() }.encode_to_vec();
    let balance = "/cosmos.bank.v1beta1.Query/Balance";
    let found = net.query(balance, &ask, 0, false);
    assert_eq!((found.code, found.height), (0, 2), "{}", found.log);
    let reply = QueryBalanceResponse::decode(found.value).unwrap();
    assert_eq!(reply.balance.unwrap().amount, "1000000000000000000");
    assert_eq!(net.query(balance, &ask, 1, false).height, 1);
    let cases: &[(&str, &[u8], i64, u32)] = &[
        (balance, &ask, -1, 18),
        (balance, &ask, i64::MIN, 18),
        (balance, &ask, 3, 26),
        (balance, &ask, i64::MAX, 26),
        (balance, b"\xff", 0, 18),
        ("", &ask, 0, 6),
        ("/", &ask, 0, 6),
        ("/no.such.Service/Method", b"", 0, 6),
        ("/store/bank/subspace", b"x", 0, 6),
        ("/store/none/key", b"x", 0, 6),
        ("/store/bank/key", b"", 0, 18),
        ("/store/bank/key", b"x", -1, 18),
        ("/store/bank/key", b"x", 3, 26),
        ("/store/none/key", b"x", i64::MAX, 26),
        ("/cosmos.tx.v1beta1.Service/Simulate", b"\xff", 0, 18),
        ("/cosmos.tx.v1beta1.Service/BroadcastTx", b"", 0, 18),
        ("/app/simulate", b"garbage", 0, 18),
        ("/p2p/filter/addr/1.2.3.4:5", b"", 0, 0),
        ("/p2p/filter/id/ab", b"", 0, 0),
        ("/p2p/filter/other/ab", b"", 0, 6),
    ];
    for (path, data, height, code) in cases {
        let found = net.query(path, data, *height, false);
        assert_eq!(found.code, *code, "{path} at {height}: {}", found.log);
    }
    let undecodable = net.query("/cosmos.tx.v1beta1.Service/Simulate", b"\xff", 0, false).log;
    assert!(undecodable.starts_with("data: is no cosmos.tx.v1beta1.SimulateRequest: "), "{undecodable}");
    let long = "x".repeat(100_000);
    for path in
        [format!("/{long}"), format!("/a.b/{long}"), format!("/store/{long}/key"), format!("/store/{long}")]
    {
        let found = net.query(&path, b"x", 0, false);
        assert!(found.code == 6 && found.log.len() < 400, "{} bytes", found.log.len());
    }
    let account = holdfast_proto::cosmos::auth::v1beta1::QueryAccountRequest {
        address: holdfast_types::Address([9; 20]).to_bech32(&Hrp::default()),
    };
    let found = net.query("/cosmos.auth.v1beta1.Query/Account", &account.encode_to_vec(), 0, false);
    assert_eq!((found.codespace.as_str(), found.code), ("sdk", 22));
    assert!(found.log.starts_with("rpc error: code = NotFound desc = "), "{}", found.log);
}

#[test]
fn simulation_answers_as_protobuf_and_as_json() {
    let net = net();
    net.adapter.handle(Q::InitChain(net.init())).unwrap();
    net.block(1, Vec::new());
    let tx = net.send(0);
    let call =
        holdfast_proto::cosmos::tx::v1beta1::SimulateRequest { tx_bytes: tx.clone(), ..Default::default() };
    let found = net.query("/cosmos.tx.v1beta1.Service/Simulate", &call.encode_to_vec(), 0, false);
    let reply = holdfast_proto::cosmos::tx::v1beta1::SimulateResponse::decode(found.value).unwrap();
    let used = reply.gas_info.unwrap().gas_used;
    let found = net.query("/app/simulate", &tx, 0, false);
    let json: serde_json::Value = serde_json::from_slice(&found.value).unwrap();
    assert_eq!(json["gas_info"]["gas_used"], used.to_string());
    assert!(used > 0);
}

#[test]
fn a_key_comes_with_a_proof_against_the_app_hash_of_its_height() {
    let net = net();
    net.adapter.handle(Q::InitChain(net.init())).unwrap();
    net.block(1, Vec::new());
    let absent = net.query("/store/bank/key", b"no such key", 1, true);
    assert_eq!((absent.code, absent.height, absent.value.len()), (0, 1, 0), "{}", absent.log);
    let ops = absent.proof_ops.unwrap().ops;
    assert_eq!(ops.iter().map(|op| op.r#type.as_str()).collect::<Vec<_>>(), ["ics23:jmt", "ics23:simple"]);
    assert_eq!(
        (ops[0].key.as_slice(), ops[1].key.as_slice()),
        (b"no such key".as_slice(), b"bank".as_slice())
    );
    assert!(net.query("/store/bank/key", b"no such key", 1, false).proof_ops.is_none());
}

#[test]
fn proposals_are_made_within_the_limit_and_judged() {
    let net = net();
    net.adapter.handle(Q::InitChain(net.init())).unwrap();
    let txs: Vec<Bytes> = [net.send(0), net.send(1), b"garbage".to_vec()].map(Bytes::from).to_vec();
    let size = txs[0].len() as i64;
    let prepare = |max_tx_bytes| {
        let request = pb::RequestPrepareProposal { max_tx_bytes, txs: txs.clone(), ..Default::default() };
        net.adapter.handle(Q::PrepareProposal(request))
    };
    let made = |max| match prepare(max).unwrap() {
        R::PrepareProposal(made) => made.txs,
        other => panic!("{other:?}"),
    };
    assert_eq!(made(1_000_000), txs[..2]);
    // Tag and length take three bytes more.
    assert_eq!(made(size + 3), txs[..1]);
    assert_eq!(made(size + 2), Vec::<Bytes>::new());
    assert!(prepare(-1).is_err());
    let judged = |txs: &[Bytes]| {
        let request = pb::RequestProcessProposal { txs: txs.to_vec(), ..Default::default() };
        match net.adapter.handle(Q::ProcessProposal(request)).unwrap() {
            R::ProcessProposal(judged) => judged.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((judged(&txs[..2]), judged(&[]), judged(&txs)), (1, 1, 2));
    let verify = Q::VerifyVoteExtension(pb::RequestVerifyVoteExtension::default());
    assert!(matches!(net.adapter.handle(verify).unwrap(), R::VerifyVoteExtension(v) if v.status == 1));
    let extend = Q::ExtendVote(pb::RequestExtendVote::default());
    assert!(matches!(net.adapter.handle(extend).unwrap(), R::ExtendVote(e) if e.vote_extension.is_empty()));
}

#[test]
fn chunks_that_nobody_has_are_empty_whatever_the_numbers() {
    let net = net();
    for height in [0, 1, 1 << 63, u64::MAX] {
        let request = pb::RequestLoadSnapshotChunk { height, format: u32::MAX, chunk: u32::MAX };
        let answer = net.adapter.handle(Q::LoadSnapshotChunk(request)).unwrap();
        assert!(matches!(answer, R::LoadSnapshotChunk(c) if c.chunk.is_empty()));
    }
    let answer = net.adapter.handle(Q::ApplySnapshotChunk(pb::RequestApplySnapshotChunk::default())).unwrap();
    assert!(matches!(answer, R::ApplySnapshotChunk(a) if a.result == 2));
}

/// An adapter over a database on disk, with what state sync needs.
fn on_disk(net: &Net, dir: &Path) -> (Adapter<DiskStore>, DiskStore, SnapshotStore) {
    let store = DiskStore::open(dir.join("state"), &state_spaces(), StateOptions::default()).unwrap();
    let snapshots = SnapshotStore::open(dir.join("snapshots")).unwrap();
    let config = AdapterConfig {
        genesis: net.dir.path().join("genesis.json"),
        options: AppOptions::default(),
        min_retain_blocks: 0,
        snapshot_heights: 0,
        restorer: Some(Restorer::new(store.clone(), Some(CHAIN))),
        snapshots: Some(snapshots.clone()),
        metered: false,
        after_commit: Box::new(|_| {}),
    };
    (Adapter::new(store.clone(), config).unwrap(), store, snapshots)
}

#[test]
fn a_node_joins_by_a_snapshot_without_init_chain_and_lying_peers_are_found_out() {
    let net = net();
    let dir = tempfile::tempdir().unwrap();
    let (old, store, snapshots) = on_disk(&net, &dir.path().join("old"));
    old.handle(Q::InitChain(net.init())).unwrap();
    run_block(&old, 1, vec![net.send(0)]);
    let trusted = run_block(&old, 2, vec![net.send(1)]).app_hash;
    snapshots.create(&store, 2).unwrap();
    let third = run_block(&old, 3, vec![net.send(2)]).app_hash;
    let R::ListSnapshots(listed) = old.handle(Q::ListSnapshots(pb::RequestListSnapshots {})).unwrap() else {
        panic!("a list")
    };
    let snapshot = listed.snapshots[0].clone();
    assert_eq!((listed.snapshots.len(), snapshot.height), (1, 2));
    let request = pb::RequestLoadSnapshotChunk { height: 2, format: snapshot.format, chunk: 0 };
    let R::LoadSnapshotChunk(loaded) = old.handle(Q::LoadSnapshotChunk(request)).unwrap() else {
        panic!("a chunk")
    };

    let (new, ..) = on_disk(&net, &dir.path().join("new"));
    let offer = |adapter: &Adapter<DiskStore>, snapshot: &pb::Snapshot, app_hash: &Bytes| {
        let request =
            pb::RequestOfferSnapshot { snapshot: Some(snapshot.clone()), app_hash: app_hash.clone() };
        match adapter.handle(Q::OfferSnapshot(request)).unwrap() {
            R::OfferSnapshot(answer) => answer.result,
            other => panic!("{other:?}"),
        }
    };
    let apply = |chunk: &[u8]| {
        let chunk = Bytes::copy_from_slice(chunk);
        let request = pb::RequestApplySnapshotChunk { index: 0, chunk, sender: "peer".into() };
        match new.handle(Q::ApplySnapshotChunk(request)).unwrap() {
            R::ApplySnapshotChunk(answer) => answer,
            other => panic!("{other:?}"),
        }
    };
    // Abort 2, reject 3, reject format 4, reject sender 5.
    assert_eq!(apply(&loaded.chunk).result, 2);
    assert_eq!(offer(&new, &snapshot, &third), 3);
    assert_eq!(offer(&new, &pb::Snapshot { format: 9, ..snapshot.clone() }, &trusted), 4);
    assert_eq!(offer(&new, &pb::Snapshot { hash: Bytes::new(), ..snapshot.clone() }, &trusted), 5);
    assert_eq!(offer(&new, &snapshot, &trusted), 1);
    let mut lie = loaded.chunk.to_vec();
    lie[5] ^= 1;
    let answer = apply(&lie);
    assert_eq!(
        (answer.result, answer.refetch_chunks, answer.reject_senders),
        (3, vec![0], vec!["peer".into()])
    );
    assert_eq!(new.height(), 0);
    assert_eq!(apply(&loaded.chunk).result, 1);
    let R::Info(info) = new.handle(Q::Info(pb::RequestInfo::default())).unwrap() else { panic!("Info") };
    assert_eq!((info.last_block_height, &info.last_block_app_hash), (2, &trusted));
    assert_eq!(offer(&new, &snapshot, &trusted), 2);
    assert!(new.handle(Q::InitChain(net.init())).unwrap_err().to_string().contains("at height 2 already"));
    assert_eq!(run_block(&new, 3, vec![net.send(2)]).app_hash, third);
}

#[test]
fn blocks_are_kept_for_evidence_and_for_joining_peers() {
    assert_eq!(convert::retain_height(1_000_000, 0, 0), 0);
    assert_eq!(convert::retain_height(1_000_000, 100, 0), 900_000);
    assert_eq!(convert::retain_height(1_000_000, 250_000, 0), 750_000);
    assert_eq!(convert::retain_height(1_000_000, 100, 400_000), 600_000);
    assert_eq!(convert::retain_height(50_000, 100, 0), 0);
    assert_eq!(convert::retain_height(i64::MAX, u64::MAX, 0), 0);
}

#[test]
fn times_are_nanoseconds_from_1970_to_2500() {
    let ns = |seconds, nanos| convert::time_ns(Some(&Timestamp { seconds, nanos })).ok();
    assert_eq!(ns(0, 0), Some(0));
    assert_eq!(ns(1_769_860_800, 5), Some(1_769_860_800_000_000_005));
    assert_eq!((ns(-1, 0), ns(0, -1), ns(0, 1_000_000_000), ns(i64::MAX, 0)), (None, None, None, None));
    assert!(convert::time_ns(None).is_err());
}
