//! A host with the real runner and the reference model, its sessions behind the service, and peers on sockets.

use std::sync::Mutex;

use holdfast_app::grpc::{ChainError, ChainFuture};
use holdfast_escrow::session::settle::{Mode, verify};
use holdfast_escrow::session::{KIND_CANCELLED, Tx, check_tx};
use holdfast_proto::holdfast::gateway::v1 as gateway;
use holdfast_proto::holdfast::gateway::v1::gateway_server::{Gateway as GatewayService, GatewayServer};
use holdfast_proto::holdfast::host::v1::cancel_inference_response::State as CancelState;
use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
use holdfast_proto::holdfast::host::v1::host_client::HostClient;
use holdfast_proto::holdfast::host::v1::host_server::Host as _;
use holdfast_proto::holdfast::host::v1::infer_response::Event;
use holdfast_runner::adapter::SessionId;
use holdfast_runner::backends::reference::oracle::Oracle;
use holdfast_runner::backends::reference::{DEFAULT_SEED, ReferenceModel, decode};
use holdfast_runner::fault::{FaultyAdapter, FaultyPool};
use holdfast_runner::ledger::{Crash, LedgerConfig, MemoryDisk};
use holdfast_runner::shard::{LocalShard, ShardSettings};
use holdfast_runner::{
    ByteCodec, FailureKind, HardenedSessionRunner, IdempotencyLedger, RunnerConfig, ShardPool, SystemClock,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Response};

use super::*;
use crate::chain::Chain;
use crate::client::signed;
use crate::escrows::{EscrowInfo, MemoryEscrows, Overdue};
use crate::outbox::response_hash;
use crate::session::rules::{Honest, Lie, Rules};
use crate::session::tests::scene::{self, CHAIN, ESCROW, addr, key, tx};
use crate::session::{CoreConfig, Terms};
use crate::store::MemDb;
use crate::{Host, HostConfig, Pace, server};

const PROMPT: &str = "Hold";
const LIMIT: Duration = Duration::from_secs(20);

fn body() -> String {
    format!(r#"{{"prompt":"{PROMPT}","max_tokens":8}}"#)
}

/// What the model says, by the model without KV.
fn expected(count: usize) -> String {
    let prompt: Vec<u32> = PROMPT.bytes().map(u32::from).collect();
    decode(&Oracle::new(DEFAULT_SEED).generate(&prompt, count))
}

/// A chain on which nothing is.
struct NoChain;

impl Chain for NoChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async { Ok(1) })
    }

    fn inference<'a>(
        &'a self,
        _: &'a str,
    ) -> ChainFuture<'a, Option<holdfast_proto::holdfast::inference::v1::Inference>> {
        Box::pin(async { Ok(None) })
    }

    fn broadcast(&self, _: Vec<holdfast_proto::Any>) -> ChainFuture<'_, Vec<Result<String, ChainError>>> {
        Box::pin(async { panic!("a session reports nothing to the chain") })
    }
}

/// The disks of a host, and the chain that all hosts share.
struct World {
    name: &'static str,
    ledger: MemoryDisk,
    db: MemDb,
    escrows: Arc<MemoryEscrows>,
    step_ms: u64,
    mute: bool,
}

/// A process of the host.
struct Process {
    host: Host,
    runner: RunnerHandle,
    tasks: JoinSet<()>,
}

impl World {
    fn new(name: &'static str, escrows: &Arc<MemoryEscrows>) -> Self {
        let (ledger, db) = (MemoryDisk::new(), MemDb::new());
        Self { name, ledger, db, escrows: escrows.clone(), step_ms: 0, mute: false }
    }

    async fn start(&self) -> Process {
        self.start_with(Box::new(Honest)).await
    }

    async fn start_with(&self, rules: Box<dyn Rules>) -> Process {
        let process = self.unbound(rules);
        process.bind().await.unwrap();
        process
    }

    fn unbound(&self, rules: Box<dyn Rules>) -> Process {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let model = ReferenceModel::new(DEFAULT_SEED, (0, 4)).unwrap();
        let shard = LocalShard::new(model, ShardSettings::new("shard"), clock.clone());
        let faulty = FaultyAdapter::new(Arc::new(shard), clock.clone(), self.step_ms, []);
        let pool: Arc<dyn ShardPool> = Arc::new(FaultyPool::new(Vec::new(), faulty));
        let store = self.ledger.store().unwrap();
        let (ledger, _) = IdempotencyLedger::open(store, LedgerConfig::default(), clock.as_ref()).unwrap();
        let (runner, driver) =
            HardenedSessionRunner::new(RunnerConfig::default(), clock.clone(), ledger, pool);
        let ms = Duration::from_millis;
        let pace = Pace { look: ms(5), beat: ms(200), watch: ms(50), busy: ms(10), idle: ms(20) };
        let codec: Arc<dyn TextCodec> = Arc::new(ByteCodec);
        let admission = RunnerAdmission::new(runner.clone(), codec.clone(), 256);
        let (key, owner) = (key(self.name), addr(self.name));
        let config =
            CoreConfig { allow_reset: true, mute: self.mute, ..CoreConfig::new(CHAIN, owner, "boot-1") };
        let core = HostCore::open(
            Box::new(self.db.clone()),
            key.clone(),
            config,
            rules,
            Box::new(admission.clone()),
        );
        let sessions = Sessions::new(
            SessionsConfig { hrp: Hrp::default(), beat: ms(200), delay: Duration::ZERO },
            core.unwrap(),
            key,
            admission,
            clock.clone(),
            self.escrows.clone(),
        );
        let config = HostConfig {
            chain_id: CHAIN.into(),
            hrp: Hrp::default(),
            executor: owner,
            models: Vec::new(),
            max_tokens: 256,
            pace,
        };
        let host = Host::new(config, runner.clone(), Arc::new(NoChain), codec, clock).with_sessions(sessions);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(driver.await) });
        let background = host.clone();
        tasks.spawn(async move { background.background().await });
        Process { host, runner, tasks }
    }

    /// The process is killed; the next one finds what was on its disks.
    async fn kill(&mut self, mut process: Process) {
        process.tasks.shutdown().await;
        drop(process);
        self.db = self.db.reopen(true);
        self.ledger.crash(Crash::Keep);
    }
}

fn now() -> u64 {
    SystemClock::new().unix_ms()
}

fn as_gateway<T: Message>(method: &str, request: T) -> Request<T> {
    signed(&key("gateway"), CHAIN, ESCROW, method, request, now())
}

impl Process {
    async fn bind(&self) -> Result<pb::BindResponse, Status> {
        self.host.bind(as_gateway("Bind", scene::bind())).await.map(Response::into_inner)
    }

    async fn infer(&self, gateway: &scene::Gateway, id: u64) -> Result<Events, Status> {
        let request = scene::infer(gateway, 0, id, &body());
        Ok(self.host.infer(Request::new(request)).await?.into_inner())
    }

    async fn pending(&self) -> Vec<Tx> {
        let request = as_gateway("GetPending", pb::GetPendingRequest { escrow_id: ESCROW });
        let reply = self.host.get_pending(request).await.unwrap().into_inner();
        reply.txs.iter().map(|bytes| tx(bytes)).collect()
    }

    /// Waits until so many transactions wait for a diff.
    async fn pending_are(&self, count: usize) -> Vec<Tx> {
        timeout(LIMIT, async {
            loop {
                let txs = self.pending().await;
                if txs.len() == count {
                    return txs;
                }
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("in time")
    }

    async fn listen(&mut self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let host = self.host.clone();
        self.tasks.spawn(async move { server::serve(&host, listener, std::future::pending()).await });
        url
    }
}

type Events = ReceiverStream<Result<pb::InferResponse, Status>>;

/// A stream, read to its end; beats are passed over.
struct Read {
    applied: pb::Applied,
    receipt: Vec<u8>,
    text: String,
    tokens: usize,
    end: Event,
}

async fn read(mut events: Events) -> Read {
    let mut next = async || timeout(LIMIT, events.next()).await.unwrap().unwrap().unwrap().event.unwrap();
    let Event::Applied(applied) = next().await else { panic!("first the replica") };
    let Event::Receipt(receipt) = next().await else { panic!("then the receipt") };
    let (mut text, mut tokens) = (String::new(), 0);
    loop {
        match next().await {
            Event::Delta(delta) => {
                assert_eq!(delta.index as usize, tokens);
                text.push_str(&delta.text);
                tokens += delta.token_ids.len();
            }
            Event::Beat(_) => {}
            end => return Read { applied, receipt: receipt.tx, text, tokens, end },
        }
    }
}

fn chain() -> Arc<MemoryEscrows> {
    let escrows = MemoryEscrows::default();
    let terms = Terms { config: scene::terms(), status: EscrowStatus::Open };
    escrows.put(EscrowInfo { terms, gateway_url: String::new() });
    Arc::new(escrows)
}

/// A gateway with inference 1 for host-1.
fn started() -> scene::Gateway {
    let mut gateway = scene::Gateway::new(scene::terms());
    gateway.step(Vec::new(), vec![scene::start(&body())]);
    gateway
}

#[tokio::test]
async fn an_inference_is_taken_streamed_and_finished_and_its_transactions_go_into_the_log() {
    let world = World::new("host-1", &chain());
    let process = world.start().await;
    let mut gateway = started();
    let read = read(process.infer(&gateway, 1).await.unwrap()).await;
    assert_eq!((read.applied.nonce, read.applied.root), (1, gateway.state.root().to_vec()));
    assert_eq!(
        read.applied.pending,
        std::slice::from_ref(&read.receipt),
        "it is on disk before the receipt leaves"
    );
    assert_eq!((read.text.as_str(), read.tokens), (expected(8).as_str(), 8));
    let Event::Finished(finished) = read.end else { panic!("{:?}", read.end) };
    assert_eq!(finished.finish_reason, "length");
    assert_eq!(finished.usage, Some(pb::Usage { prompt_tokens: 4, completion_tokens: 8 }));
    let finish = tx(&finished.tx);
    let hash = response_hash(&expected(8));
    assert!(
        matches!(finish, Tx::FinishInference { input_tokens: 4, output_tokens: 8, response_hash, .. } if response_hash == hash)
    );
    assert_eq!(process.pending().await, [tx(&read.receipt), finish.clone()]);
    gateway.step(vec![tx(&read.receipt), finish], Vec::new());
    let taught = process.host.teach(Request::new(gateway.teach(1))).await.unwrap().into_inner();
    assert!(taught.applied.unwrap().pending.is_empty());
    // The chain hears nothing of it, and nothing is left to report.
    assert!(process.host.drain(LIMIT, LIMIT).await);
    assert!(process.runner.unsubmitted().await.unwrap().is_empty());
    let draining = process.infer(&gateway, 1).await;
    assert!(draining.is_ok(), "what ran is still given");
}

#[tokio::test]
async fn a_mute_host_lets_whoever_challenges_it_wait_and_answers_all_else() {
    let world = World { mute: true, ..World::new("host-1", &chain()) };
    let process = world.start().await;
    let ask = |challenge: Option<pb::Challenge>| {
        let request = pb::GetSignaturesRequest { escrow_id: ESCROW, nonce: 0, challenge };
        process.host.get_signatures(as_gateway("GetSignatures", request))
    };
    assert_eq!(ask(None).await.unwrap().into_inner().state_signature.len(), 65);
    let challenge = pb::Challenge { generation: 1, challenge: vec![7; 32] };
    assert!(timeout(Duration::from_millis(200), ask(Some(challenge))).await.is_err());
    assert_eq!(ask(None).await.unwrap().into_inner().have_nonce, 0);
}

#[tokio::test]
async fn a_client_that_leaves_does_not_stop_the_run_and_whoever_comes_again_hears_all_of_it() {
    let world = World { step_ms: 5, ..World::new("host-1", &chain()) };
    let process = world.start().await;
    let gateway = started();
    drop(process.infer(&gateway, 1).await.unwrap());
    let late = pb::InferRequest { deadline_ms: 1, ..scene::infer(&gateway, 0, 1, &body()) };
    let mut late = process.host.infer(Request::new(late)).await.unwrap().into_inner();
    while let Some(event) = timeout(LIMIT, late.next()).await.unwrap() {
        assert!(!matches!(event.unwrap().event, Some(Event::Finished(_))), "its deadline ends the stream");
    }
    let (one, two) = tokio::join!(process.infer(&gateway, 1), process.infer(&gateway, 1));
    for events in [one.unwrap(), two.unwrap()] {
        let read = read(events).await;
        assert_eq!((read.text, read.tokens), (expected(8), 8));
        assert!(matches!(read.end, Event::Finished(_)));
    }
    let session = SessionId::new(CHAIN, ESCROW, "1");
    assert_eq!(process.runner.records(session).await.unwrap().len(), 1, "it ran once");
}

#[tokio::test]
async fn the_gateways_cancellation_ends_run_and_stream_with_a_report_of_what_was_delivered() {
    let world = World { step_ms: 40, ..World::new("host-1", &chain()) };
    let process = world.start().await;
    let gateway = started();
    let mut events = process.infer(&gateway, 1).await.unwrap();
    while !matches!(events.next().await.unwrap().unwrap().event.unwrap(), Event::Delta(_)) {}
    let (request, _) = scene::cancel(1);
    let unsigned = process.host.cancel_inference(Request::new(request.clone())).await.unwrap_err();
    assert_eq!(unsigned.code(), Code::Unauthenticated);
    let thief = signed(&key("host-0"), CHAIN, ESCROW, "CancelInference", request.clone(), now());
    let thief = process.host.cancel_inference(thief).await.unwrap_err();
    assert_eq!(wire::escrow_error(&thief).code(), Cause::Policy);
    let call = as_gateway("CancelInference", request.clone());
    let reply = process.host.cancel_inference(call).await.unwrap().into_inner();
    assert_eq!(reply.state(), CancelState::Cancelled);
    assert!((1..8).contains(&reply.delivered_tokens), "{}", reply.delivered_tokens);
    let end = timeout(LIMIT, async {
        loop {
            match events.next().await.unwrap().unwrap().event.unwrap() {
                Event::Delta(_) | Event::Beat(_) => {}
                end => return end,
            }
        }
    });
    let Event::Failed(failed) = end.await.unwrap() else { panic!() };
    let report = tx(&failed.tx);
    assert!(
        matches!(report, Tx::ReportError { kind: KIND_CANCELLED, input_tokens: 4, output_tokens, .. } if output_tokens == reply.delivered_tokens)
    );
    assert_eq!(check_tx(&gateway.state, &report), Ok(()));
    let session = SessionId::new(CHAIN, ESCROW, "1");
    timeout(LIMIT, async {
        while process.runner.records(session).await.unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the runner stops");
    let again = process.host.cancel_inference(as_gateway("CancelInference", request)).await.unwrap();
    assert_eq!(again.into_inner().delivered_tokens, reply.delivered_tokens);
    assert_eq!(process.pending().await.len(), 2);
}

#[tokio::test]
async fn a_stop_text_ends_the_answer_and_only_what_was_sent_is_paid() {
    let world = World::new("host-1", &chain());
    let process = world.start().await;
    let whole = expected(8);
    let stop: String = whole.chars().skip(3).take(2).collect();
    let at = whole.find(&stop).unwrap();
    let body = serde_json::json!({ "prompt": PROMPT, "max_tokens": 8, "stop": [stop] }).to_string();
    let mut gateway = scene::Gateway::new(scene::terms());
    gateway.step(Vec::new(), vec![scene::start(&body)]);
    let request = scene::infer(&gateway, 0, 1, &body);
    let read = read(process.host.infer(Request::new(request)).await.unwrap().into_inner()).await;
    assert_eq!(read.text, whole[..at]);
    let Event::Finished(finished) = read.end else { panic!("{:?}", read.end) };
    assert_eq!(finished.finish_reason, "stop");
    let hash = response_hash(&whole[..at]);
    let tokens = u32::try_from(at + 2).unwrap();
    assert!(
        matches!(tx(&finished.tx), Tx::FinishInference { output_tokens, response_hash, .. } if output_tokens == tokens && response_hash == hash)
    );
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_run_is_reported_by_the_next_process_and_never_run_again() {
    let mut world = World { step_ms: 40, ..World::new("host-1", &chain()) };
    let process = world.start().await;
    let gateway = started();
    let mut events = process.infer(&gateway, 1).await.unwrap();
    while !matches!(events.next().await.unwrap().unwrap().event.unwrap(), Event::Delta(_)) {}
    world.kill(process).await;
    let process = world.start().await;
    let pending = process.pending_are(2).await;
    let kind = u8::try_from(FailureKind::WorkerDeath.number()).unwrap();
    assert!(matches!(pending[1], Tx::ReportError { kind: found, .. } if found == kind), "{pending:?}");
    let read = read(process.infer(&gateway, 1).await.unwrap()).await;
    assert!(read.text.is_empty() && matches!(read.end, Event::Failed(_)));
    // An empty store of sessions does not make it run again either: the ledger knows.
    assert!(process.host.drain(LIMIT, LIMIT).await, "nothing is left to mark");
    world.kill(process).await;
    world.db = MemDb::new();
    let process = world.start().await;
    let again = self::read(process.infer(&gateway, 1).await.unwrap()).await;
    assert!(again.text.is_empty() && matches!(again.end, Event::Failed(_)), "{:?}", again.end);
    let session = SessionId::new(CHAIN, ESCROW, "1");
    assert_eq!(process.runner.records(session).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_finish_that_waits_survives_a_kill_and_its_text_is_given_again() {
    let mut world = World::new("host-1", &chain());
    let process = world.start().await;
    let gateway = started();
    let first = read(process.infer(&gateway, 1).await.unwrap()).await;
    world.kill(process).await;
    let process = world.start().await;
    let pending = process.pending_are(2).await;
    let again = read(process.infer(&gateway, 1).await.unwrap()).await;
    assert_eq!((&again.text, &again.receipt, &again.end), (&first.text, &first.receipt, &first.end));
    assert!(matches!(again.end, Event::Finished(finished) if tx(&finished.tx) == pending[1]));
}

#[tokio::test]
async fn a_run_that_ended_while_its_outcome_could_not_be_kept_is_finished_by_the_next_process() {
    let mut world = World::new("host-1", &chain());
    let process = world.start().await;
    let gateway = started();
    // The receipt's commit passes; the outcome's does not, and the store is dead from then on.
    world.db.fault(2, crate::store::Fault::Full);
    let _events = process.infer(&gateway, 1).await.unwrap();
    let session = SessionId::new(CHAIN, ESCROW, "1");
    timeout(LIMIT, async {
        while process.runner.records(session).await.unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it runs");
    sleep(Duration::from_millis(50)).await;
    let refused = process.host.teach(Request::new(gateway.teach(0))).await;
    assert!(refused.is_ok(), "reading goes on");
    world.kill(process).await;
    let process = world.start().await;
    let pending = process.pending_are(2).await;
    let hash = response_hash(&expected(8));
    assert!(
        matches!(pending[1], Tx::FinishInference { output_tokens: 8, response_hash, .. } if response_hash == hash)
    );
}

#[tokio::test]
async fn a_voter_challenges_the_executor_over_the_wire() {
    let escrows = chain();
    let (voter, executor) = (World::new("host-2", &escrows), World::new("host-1", &escrows));
    let process = voter.start().await;
    let gateway = started();
    let request = || {
        Request::new(pb::VoteTimeoutRequest {
            escrow_id: ESCROW,
            inference_id: 1,
            reason: 1,
            diffs: gateway.diffs.clone(),
            body: body().into_bytes(),
        })
    };
    // Nobody listens: late. The chain out of reach: no vote.
    let silent = process.host.vote_timeout(request()).await.unwrap().into_inner();
    assert!(silent.accept);
    escrows.put_host(addr("host-1"), "http://127.0.0.1:1");
    assert!(process.host.vote_timeout(request()).await.unwrap().into_inner().accept);
    escrows.set_unreachable(true);
    let cut = process.host.vote_timeout(request()).await.unwrap_err();
    assert_eq!(wire::escrow_error(&cut).code(), Cause::Unavailable);
    escrows.set_unreachable(false);
    // No gateway has told the executor of the session: it takes the terms from the chain, and the diffs from the voter.
    let mut taking = executor.unbound(Box::new(Honest));
    escrows.put_host(addr("host-1"), taking.listen().await);
    let bare = pb::VoteTimeoutRequest { diffs: Vec::new(), ..request().into_inner() };
    let vote = process.host.vote_timeout(Request::new(bare)).await.unwrap().into_inner();
    assert!(!vote.accept);
    assert_eq!(vote.executor_txs.len(), 1);
    // It really works now.
    let pending = taking.pending_are(2).await;
    assert_eq!(pending[0], tx(&vote.executor_txs[0]));
    assert!(matches!(pending[1], Tx::FinishInference { .. }));
}

#[tokio::test]
async fn typed_errors_cross_the_wire_and_what_is_not_signed_is_refused_by_its_headers() {
    let world = World::new("host-1", &chain());
    let mut process = world.start_with(Box::new(Lie { from: 1 })).await;
    let url = process.listen().await;
    let mut client = HostClient::connect(url).await.unwrap();
    let gateway = started();
    let lied = client.infer(scene::infer(&gateway, 0, 1, &body())).await.unwrap_err();
    let error = wire::escrow_error(&lied);
    assert_eq!((lied.code(), error.code(), error.nonce), (Code::Aborted, Cause::RootMismatch, 1));
    assert_eq!((error.signature.len(), error.root.len()), (65, 32));
    let missing = client.teach(pb::TeachRequest { escrow_id: 9, ..Default::default() }).await.unwrap_err();
    assert_eq!(wire::escrow_error(&missing).code(), Cause::SessionNotFound);
    let pending = pb::GetPendingRequest { escrow_id: ESCROW };
    assert_eq!(client.get_pending(pending).await.unwrap_err().code(), Code::Unauthenticated);
    assert!(client.get_pending(as_gateway("GetPending", pending)).await.is_ok());
    let other = signed(&key("gateway"), CHAIN, 8, "GetPending", pending, now());
    assert!(client.get_pending(other).await.is_err(), "signed for another escrow");
    // Three megabytes without a signature: nothing of it is read.
    let serve = pb::ServeRequest { inference_id: "i".into(), body: vec![7; 3 << 20], deadline_ms: 0 };
    assert_eq!(client.serve(serve).await.unwrap_err().code(), Code::Unauthenticated);
    let large = pb::TeachRequest { diffs: vec![vec![0; 9 << 20]], ..Default::default() };
    let large = client.teach(large).await.unwrap_err();
    assert_eq!(
        (wire::escrow_error(&large).code(), wire::escrow_error(&large).limit),
        (Cause::TooLarge, 8 << 20)
    );
    assert_eq!(process.host.budget().free(), crate::intake::BUDGET, "all of it is given back");
}

#[tokio::test]
async fn hosts_that_their_gateway_left_have_the_last_nonce_paid() {
    let escrows = chain();
    let worlds = ["host-0", "host-1", "host-2"].map(|name| World::new(name, &escrows));
    let mut hosts = Vec::new();
    for world in &worlds {
        let mut process = world.start().await;
        escrows.put_host(addr(world.name), process.listen().await);
        hosts.push(process);
    }
    // host-3 is gone. host-1 works, and nothing of it is published: it withholds.
    escrows.put_host(addr("host-3"), "http://127.0.0.1:1");
    let mut gateway = started();
    drop(read(hosts[1].infer(&gateway, 1).await.unwrap()).await);
    gateway.pass(20);
    hosts[0].host.teach(Request::new(gateway.teach(0))).await.unwrap();
    let applied = hosts[1].host.teach(Request::new(gateway.teach(1))).await.unwrap().into_inner().applied;
    assert!(applied.unwrap().withheld);
    let look = async |n: usize| hosts[n].host.sessions.as_ref().unwrap().dispute_left().await;
    look(0).await;
    assert_eq!(escrows.disputes(), [], "its time is not over");
    let overdue = |height, brought| Overdue { from: 100, height, brought };
    escrows.put_overdue(ESCROW, overdue(100, 0));
    look(0).await;
    assert_eq!(escrows.disputes(), [], "two of four slots sign");
    // Slot 1 waits five blocks for slot 0, but withholds no more.
    look(1).await;
    look(0).await;
    let brought = escrows.disputes();
    let [settlement] = brought.as_slice() else { panic!("{brought:?}") };
    assert_eq!((settlement.nonce, settlement.signatures.len()), (21, 3));
    let payout = verify(&scene::terms(), settlement, Mode::Dispute).unwrap();
    assert_eq!(payout.root, gateway.state.root());
    // All others find it brought already.
    escrows.put_overdue(ESCROW, overdue(400, 21));
    for n in 0..3 {
        look(n).await;
    }
    assert_eq!(escrows.disputes().len(), 1);
    // The gateway gives host-2 another diff than the others: they agree up to the one before it.
    let mut other = scene::Gateway { state: gateway.state.clone(), diffs: gateway.diffs.clone() };
    gateway.step(Vec::new(), vec![scene::start("a")]);
    other.step(Vec::new(), vec![scene::start("b")]);
    for (n, log) in [(0, &gateway), (1, &gateway), (2, &other)] {
        hosts[n].host.teach(Request::new(log.teach(21))).await.unwrap();
    }
    escrows.put_overdue(ESCROW, overdue(105, 20));
    look(0).await;
    assert_eq!(escrows.disputes().iter().map(|one| one.nonce).collect::<Vec<_>>(), [21, 21]);
    // An older state was brought: it is bettered.
    escrows.put_overdue(ESCROW, overdue(105, 20));
    look(2).await;
    assert_eq!(escrows.disputes().len(), 2, "not its turn");
    look(1).await;
    assert_eq!(escrows.disputes().len(), 3);
}

#[tokio::test]
async fn a_settled_escrow_is_let_go_of() {
    let escrows = chain();
    let world = World::new("host-1", &escrows);
    let process = world.start().await;
    let terms = Terms { config: scene::terms(), status: EscrowStatus::Closed };
    escrows.put(EscrowInfo { terms, gateway_url: String::new() });
    process.host.sessions.as_ref().unwrap().close_settled().await;
    let closed = process.host.teach(Request::new(started().teach(0))).await.unwrap_err();
    assert_eq!(wire::escrow_error(&closed).code(), Cause::SessionClosed);
    assert_eq!(wire::escrow_error(&process.bind().await.unwrap_err()).code(), Cause::SessionClosed);
}

/// A gateway that only hears announcements.
#[derive(Default)]
struct Ear(Mutex<Vec<(gateway::AnnounceRequest, Address)>>);

type Unheard<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl GatewayService for &'static Ear {
    type WatchDivergenceStream = ReceiverStream<Result<gateway::WatchDivergenceResponse, Status>>;

    async fn announce(&self, call: Request<gateway::AnnounceRequest>) -> Unheard<gateway::AnnounceResponse> {
        let credential = credential(call.metadata());
        let request = call.into_inner();
        let who = auth::verify(credential.as_deref(), CHAIN, request.escrow_id, "Announce", &request, now());
        self.0.lock().unwrap().push((request, who.unwrap()));
        Ok(Response::new(gateway::AnnounceResponse {}))
    }

    async fn divergence(
        &self,
        _: Request<gateway::DivergenceRequest>,
    ) -> Unheard<gateway::DivergenceResponse> {
        Err(Status::unimplemented(""))
    }

    async fn divergences(
        &self,
        _: Request<gateway::DivergencesRequest>,
    ) -> Unheard<gateway::DivergencesResponse> {
        Err(Status::unimplemented(""))
    }

    async fn watch_divergence(
        &self,
        _: Request<gateway::WatchDivergenceRequest>,
    ) -> Unheard<Self::WatchDivergenceStream> {
        Err(Status::unimplemented(""))
    }

    async fn force_teach(
        &self,
        _: Request<gateway::ForceTeachRequest>,
    ) -> Unheard<gateway::ForceTeachResponse> {
        Err(Status::unimplemented(""))
    }

    async fn give_up(&self, _: Request<gateway::GiveUpRequest>) -> Unheard<gateway::GiveUpResponse> {
        Err(Status::unimplemented(""))
    }

    async fn release(&self, _: Request<gateway::ReleaseRequest>) -> Unheard<gateway::ReleaseResponse> {
        Err(Status::unimplemented(""))
    }

    async fn finalize(&self, _: Request<gateway::FinalizeRequest>) -> Unheard<gateway::FinalizeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn escrows(&self, _: Request<gateway::EscrowsRequest>) -> Unheard<gateway::EscrowsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn escrow(&self, _: Request<gateway::EscrowRequest>) -> Unheard<gateway::EscrowResponse> {
        Err(Status::unimplemented(""))
    }
}

#[tokio::test]
async fn a_host_that_starts_tells_the_gateways_of_its_sessions() {
    let escrows = chain();
    let mut world = World::new("host-1", &escrows);
    let process = world.start().await;
    world.kill(process).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway_url = format!("http://{}", listener.local_addr().unwrap());
    let ear: &'static Ear = Box::leak(Box::default());
    let server = tonic::transport::Server::builder().add_service(GatewayServer::new(ear));
    let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let terms = Terms { config: scene::terms(), status: EscrowStatus::Open };
    escrows.put(EscrowInfo { terms, gateway_url });
    let _process = world.start().await;
    timeout(LIMIT, async {
        while ear.0.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it announces itself");
    let heard = ear.0.lock().unwrap()[0].clone();
    assert_eq!((heard.0.escrow_id, heard.0.boot_id.as_str(), heard.1), (ESCROW, "boot-1", addr("host-1")));
    assert_eq!(heard.0.participant, addr("host-1").to_bech32(&Hrp::default()));
    serving.abort();
}
