//! A host with the real runner and the reference model, beside a chain in memory that can be out of reach, lose answers,
//! and be late.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use holdfast_app::grpc::{ChainError, ChainFuture, TX_LIFE_BLOCKS};
use holdfast_app::keys::SecretKey;
use holdfast_proto::Any;
use holdfast_proto::holdfast::inference::v1::{MsgFinishInference, MsgReportFailure};
use holdfast_runner::adapter::SessionId;
use holdfast_runner::backends::reference::oracle::Oracle;
use holdfast_runner::backends::reference::{DEFAULT_SEED, ReferenceModel, decode};
use holdfast_runner::fault::{FaultyAdapter, FaultyPool};
use holdfast_runner::ledger::{Crash, LedgerConfig, MemoryDisk};
use holdfast_runner::shard::{LocalShard, ShardSettings};
use holdfast_runner::{
    ByteCodec, HardenedSessionRunner, IdempotencyLedger, RunnerConfig, ShardPool, SystemClock,
};
use holdfast_types::Hrp;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::metadata::MetadataValue;

use super::*;
use crate::config::Pace;
use crate::outbox::response_hash;

const CHAIN_ID: &str = "test-1";
const PROMPT: &str = "Holdfast";
const BLOCK: Duration = Duration::from_millis(15);
const LIMIT: Duration = Duration::from_secs(15);

// ── the chain ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone, PartialEq, Eq)]
enum Report {
    Finished { id: String, prompt: u64, completion: u64, hash: Vec<u8> },
    Failed { id: String, kind: u32 },
}

#[derive(Default)]
struct ChainState {
    height: u64,
    inferences: BTreeMap<String, Inference>,
    /// Transactions in no block yet, with the height from which they are void.
    pool: Vec<(u64, Any)>,
    reports: Vec<Report>,
    /// Reports that were executed and refused.
    refused: usize,
    broadcasts: usize,
    unreachable: bool,
    /// What is sent is taken, and no answer comes back.
    lose_answers: bool,
    /// Blocks are empty.
    hold: bool,
}

#[derive(Default)]
struct FakeChain {
    state: Mutex<ChainState>,
}

impl FakeChain {
    fn lock(&self) -> MutexGuard<'_, ChainState> {
        self.state.lock().unwrap()
    }

    fn block(&self) {
        let mut state = self.lock();
        state.height += 1;
        let height = state.height;
        state.pool.retain(|(void_at, _)| *void_at > height);
        if state.hold {
            return;
        }
        for (_, message) in std::mem::take(&mut state.pool) {
            state.execute(&message);
        }
    }

    fn reach(&self) -> Result<MutexGuard<'_, ChainState>, ChainError> {
        let state = self.lock();
        if state.unreachable { Err(ChainError::Unreachable("cut".into())) } else { Ok(state) }
    }

    fn set(&self, id: &str, status: InferenceStatus) {
        self.lock().inferences.get_mut(id).unwrap().status = status.into();
    }
}

impl ChainState {
    fn execute(&mut self, message: &Any) {
        let decoded = |name: &str| message.type_url.ends_with(name).then_some(message.value.as_slice());
        let report = if let Some(bytes) = decoded("MsgFinishInference") {
            let msg = <MsgFinishInference as holdfast_proto::Message>::decode(bytes).unwrap();
            Report::Finished {
                id: msg.inference_id,
                prompt: msg.prompt_tokens,
                completion: msg.completion_tokens,
                hash: msg.response_hash,
            }
        } else {
            let bytes = decoded("MsgReportFailure").expect("a host sends nothing else");
            let msg = <MsgReportFailure as holdfast_proto::Message>::decode(bytes).unwrap();
            Report::Failed { id: msg.inference_id, kind: msg.kind }
        };
        let (id, status) = match &report {
            Report::Finished { id, .. } => (id, InferenceStatus::Finished),
            Report::Failed { id, .. } => (id, InferenceStatus::Failed),
        };
        match self.inferences.get_mut(id).filter(|known| known.status() == InferenceStatus::Started) {
            Some(inference) => {
                inference.status = status.into();
                self.reports.push(report);
            }
            None => self.refused += 1,
        }
    }
}

impl Chain for FakeChain {
    fn height(&self) -> ChainFuture<'_, u64> {
        Box::pin(async { Ok(self.reach()?.height) })
    }

    fn inference<'a>(&'a self, id: &'a str) -> ChainFuture<'a, Option<Inference>> {
        Box::pin(async { Ok(self.reach()?.inferences.get(id).cloned()) })
    }

    fn broadcast(&self, messages: Vec<Any>) -> ChainFuture<'_, Vec<Result<String, ChainError>>> {
        Box::pin(async {
            let mut state = self.reach()?;
            let void_at = state.height + TX_LIFE_BLOCKS + 1;
            state.broadcasts += messages.len();
            let results = messages.iter().map(|_| Ok("hash".to_owned())).collect();
            state.pool.extend(messages.into_iter().map(|message| (void_at, message)));
            if state.lose_answers { Err(ChainError::Unreachable("no answer".into())) } else { Ok(results) }
        })
    }
}

// ── the world ───────────────────────────────────────────────────────────────────────────────────────────────────────

fn requester() -> SecretKey {
    SecretKey::from_seed_label(b"host", "requester")
}

fn executor() -> Address {
    SecretKey::from_seed_label(b"host", "executor").address()
}

fn body(max_tokens: u32) -> Vec<u8> {
    format!(r#"{{"prompt":"{PROMPT}","max_tokens":{max_tokens}}}"#).into_bytes()
}

/// What the model says, by the model without KV.
fn expected(count: usize) -> String {
    let prompt: Vec<u32> = PROMPT.bytes().map(u32::from).collect();
    decode(&Oracle::new(DEFAULT_SEED).generate(&prompt, count))
}

fn finished(id: &str, count: usize) -> Report {
    let hash = response_hash(&expected(count)).to_vec();
    Report::Finished { id: id.into(), prompt: PROMPT.len() as u64, completion: count as u64, hash }
}

struct World {
    chain: Arc<FakeChain>,
    disk: MemoryDisk,
    config: RunnerConfig,
    /// What each step takes, milliseconds.
    step_ms: u64,
    faults: Vec<&'static str>,
}

/// A process of the host.
struct Process {
    host: Host,
    runner: RunnerHandle,
    tasks: JoinSet<()>,
}

impl World {
    fn new() -> Self {
        let (chain, disk) = (Arc::new(FakeChain::default()), MemoryDisk::new());
        Self { chain, disk, config: RunnerConfig::default(), step_ms: 0, faults: Vec::new() }
    }

    /// Puts a started inference on the chain.
    fn start_inference(&self, id: &str, body: &[u8]) {
        let inference = Inference {
            inference_id: id.into(),
            status: InferenceStatus::Started.into(),
            requested_by: requester().address().to_bech32(&Hrp::default()),
            assigned_to: executor().to_bech32(&Hrp::default()),
            model: "m2".into(),
            prompt_hash: Sha256::digest(body).to_vec(),
            max_tokens: 64,
            ..Inference::default()
        };
        self.chain.lock().inferences.insert(id.into(), inference);
    }

    fn start(&self) -> Process {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let model = ReferenceModel::new(DEFAULT_SEED, (0, 4)).unwrap();
        let shard = LocalShard::new(model, ShardSettings::new("shard"), clock.clone());
        let faults = self.faults.iter().map(|fault| fault.parse().unwrap());
        let faulty = FaultyAdapter::new(Arc::new(shard), clock.clone(), self.step_ms, faults);
        let pool: Arc<dyn ShardPool> = Arc::new(FaultyPool::new(Vec::new(), faulty));
        let store = self.disk.store().unwrap();
        let (ledger, _) = IdempotencyLedger::open(store, LedgerConfig::default(), clock.as_ref()).unwrap();
        let (runner, driver) = HardenedSessionRunner::new(self.config.clone(), clock.clone(), ledger, pool);
        let ms = Duration::from_millis;
        let config = HostConfig {
            chain_id: CHAIN_ID.into(),
            hrp: Hrp::default(),
            executor: executor(),
            models: vec!["m1".into(), "m2".into()],
            max_tokens: 256,
            pace: Pace { look: ms(5), beat: ms(30), watch: ms(10), busy: ms(10), idle: ms(10) },
        };
        let host = Host::new(config, runner.clone(), self.chain.clone(), Arc::new(ByteCodec), clock);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(driver.await) });
        let (background, chain) = (host.clone(), self.chain.clone());
        tasks.spawn(async move { background.background().await });
        tasks.spawn(async move {
            loop {
                sleep(BLOCK).await;
                chain.block();
            }
        });
        Process { host, runner, tasks }
    }

    /// The process is killed.
    async fn kill(&self, mut process: Process) {
        process.tasks.shutdown().await;
        drop(process);
        self.disk.crash(Crash::Keep);
    }

    /// Waits for the first report, and then some blocks for another one.
    async fn only_report(&self) -> Report {
        until("a report", || !self.chain.lock().reports.is_empty()).await;
        let height = self.chain.lock().height;
        until("more blocks", || self.chain.lock().height > height + 8).await;
        let mut reports = self.chain.lock().reports.clone();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    timeout(LIMIT, async {
        while !done() {
            sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn call(request: pb::ServeRequest, key: &SecretKey, at_ms: u64) -> Request<pb::ServeRequest> {
    let credential = auth::sign(key, CHAIN_ID, 0, "Serve", &request, at_ms);
    let mut call = Request::new(request);
    call.metadata_mut().insert_bin(auth::METADATA, MetadataValue::from_bytes(&credential));
    call
}

fn request(id: &str, body: &[u8]) -> pb::ServeRequest {
    pb::ServeRequest { inference_id: id.into(), body: body.to_vec(), deadline_ms: 0 }
}

type Events = ReceiverStream<Result<pb::ServeResponse, Status>>;

impl Process {
    async fn serve_as(&self, key: &SecretKey, request: pb::ServeRequest) -> Result<Events, Status> {
        let now = SystemClock::new().unix_ms();
        self.host.serve_chain(call(request, key, now)).await
    }

    async fn serve(&self, id: &str, body: &[u8]) -> Result<Events, Status> {
        self.serve_as(&requester(), request(id, body)).await
    }

    async fn refused(&self, id: &str, body: &[u8]) -> Status {
        self.serve(id, body).await.expect_err("refused")
    }
}

/// Text, token ids, and the end of a stream; beats are passed over.
async fn read(mut events: Events) -> (String, Vec<u32>, Event) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let all = async {
        loop {
            match events.next().await.expect("an end").unwrap().event.unwrap() {
                Event::Delta(delta) => {
                    assert_eq!(delta.index as usize, tokens.len());
                    text.push_str(&delta.text);
                    tokens.extend(delta.token_ids);
                }
                Event::Beat(_) => {}
                end => return end,
            }
        }
    };
    let end = timeout(LIMIT, all).await.expect("in time");
    assert!(events.next().await.is_none());
    (text, tokens, end)
}

fn usage(end: &Event) -> (u32, u32, &str) {
    let Event::Finished(finished) = end else { panic!("{end:?}") };
    let usage = finished.usage.unwrap();
    (usage.prompt_tokens, usage.completion_tokens, &finished.finish_reason)
}

// ── tests ───────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_completed_inference_is_streamed_and_finished_with_its_counts_and_the_hash_of_its_text() {
    let world = World::new();
    world.start_inference("i-1", &body(8));
    let process = world.start();
    let (text, tokens, end) = read(process.serve("i-1", &body(8)).await.unwrap()).await;
    assert_eq!((text.as_str(), tokens.len()), (expected(8).as_str(), 8));
    assert_eq!(usage(&end), (8, 8, "length"));
    assert_eq!(world.only_report().await, finished("i-1", 8));
    until("it is marked", || world.chain.lock().pool.is_empty()).await;
    assert!(process.host.drain(LIMIT, LIMIT).await);
    assert!(process.runner.unsubmitted().await.unwrap().is_empty());
    // Whoever was cut off before the end asks again, also of the next process.
    world.kill(process).await;
    let process = world.start();
    let again = read(process.serve("i-1", &body(8)).await.unwrap()).await;
    assert_eq!(again.0, expected(8));
    world.only_report().await;
}

#[tokio::test]
async fn the_answer_is_as_long_as_was_paid_for_and_as_the_model_can() {
    let world = World::new();
    let process = world.start();
    let count = async |id: &str, body: &[u8], max_tokens| {
        world.start_inference(id, body);
        world.chain.lock().inferences.get_mut(id).unwrap().max_tokens = max_tokens;
        let (_, tokens, end) = read(process.serve(id, body).await.unwrap()).await;
        assert_eq!(usage(&end).1 as usize, tokens.len());
        tokens.len()
    };
    assert_eq!(count("i-1", &body(8), 5).await, 5);
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(506));
    assert_eq!(count("i-2", long.as_bytes(), 1_000).await, 512 - 506);
    let beyond = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(512));
    world.start_inference("i-3", beyond.as_bytes());
    assert_eq!(process.refused("i-3", beyond.as_bytes()).await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_failure_is_reported_with_its_number_and_only_that_of_the_last_epoch() {
    for (faults, kind) in [
        (vec!["malformed@2"], FailureKind::MalformedBundle),
        (vec!["die@1", "die@1/1", "die@1/2"], FailureKind::WorkerDeath),
    ] {
        let world = World { faults, ..World::new() };
        world.start_inference("i-1", &body(8));
        let process = world.start();
        let (_, _, end) = read(process.serve("i-1", &body(8)).await.unwrap()).await;
        assert_eq!(end, failed(Some(kind)));
        assert_eq!(world.only_report().await, Report::Failed { id: "i-1".into(), kind: kind.number() });
        // A retry is another inference: this one is not run again, by the next process neither.
        assert_eq!(read(process.serve("i-1", &body(8)).await.unwrap()).await.2, end);
        world.kill(process).await;
        let process = world.start();
        assert_eq!(read(process.serve("i-1", &body(8)).await.unwrap()).await.2, end);
        assert_eq!(world.chain.lock().broadcasts, 1);
    }
}

#[tokio::test]
async fn an_epoch_that_is_restarted_is_not_reported() {
    let world = World { faults: vec!["die@3", "die@1/1"], step_ms: 2, ..World::new() };
    world.start_inference("i-1", &body(8));
    let process = world.start();
    let (text, tokens, _) = read(process.serve("i-1", &body(8)).await.unwrap()).await;
    assert_eq!((text, tokens.len()), (expected(8), 8));
    assert_eq!(world.only_report().await, finished("i-1", 8));
    let session = SessionId::new(CHAIN_ID, 0, "i-1");
    assert_eq!(process.runner.records(session).await.unwrap().len(), 3);
    assert_eq!(world.chain.lock().broadcasts, 1);
}

#[tokio::test]
async fn the_requesters_message_on_the_chain_stops_the_run_and_nothing_is_reported() {
    let world = World { step_ms: 20, ..World::new() };
    world.start_inference("i-1", &body(64));
    let process = world.start();
    let mut events = process.serve("i-1", &body(64)).await.unwrap();
    while !matches!(events.next().await.unwrap().unwrap().event.unwrap(), Event::Delta(_)) {}
    world.chain.set("i-1", InferenceStatus::Cancelled);
    let end = timeout(LIMIT, async {
        loop {
            match events.next().await.unwrap().unwrap().event.unwrap() {
                Event::Delta(_) | Event::Beat(_) => {}
                end => return end,
            }
        }
    });
    assert_eq!(end.await.unwrap(), failed(Some(FailureKind::Cancelled)));
    assert!(process.host.drain(LIMIT, LIMIT).await);
    let session = SessionId::new(CHAIN_ID, 0, "i-1");
    let records = process.runner.records(session).await.unwrap();
    assert_eq!((records[0].status, records[0].cause), (WorkStatus::Cancelled, Some(Cause::Client)));
    assert!(records[0].tokens.is_some_and(|tokens| tokens < 64));
    assert_eq!(world.chain.lock().broadcasts, 0);
}

#[tokio::test]
async fn a_stream_that_is_dropped_or_read_slowly_or_out_of_time_does_not_stop_the_run() {
    let world = World { step_ms: 2, ..World::new() };
    let process = world.start();
    for id in ["dropped", "slow", "limit"] {
        world.start_inference(id, &body(48));
        world.chain.lock().reports.clear();
        let deadline_ms = if id == "limit" { 20 } else { 0 };
        let request = pb::ServeRequest { deadline_ms, ..request(id, &body(48)) };
        let mut events = process.serve_as(&requester(), request).await.unwrap();
        match id {
            "dropped" => {
                events.next().await.unwrap().unwrap();
                drop(events);
                assert_eq!(world.only_report().await, finished(id, 48));
            }
            "slow" => {
                // More pieces than the way to the client holds.
                assert_eq!(world.only_report().await, finished(id, 48));
                assert_eq!(read(events).await.0, expected(48));
            }
            _ => {
                assert_eq!(read(events).await.2, failed(Some(FailureKind::DeadlineExceeded)));
                assert_eq!(world.only_report().await, finished(id, 48));
            }
        }
    }
}

#[tokio::test]
async fn a_second_call_gets_the_same_stream_from_the_first_token_on() {
    let world = World { step_ms: 5, ..World::new() };
    world.start_inference("i-1", &body(32));
    let process = world.start();
    let long = body(32);
    let (first, second) = tokio::join!(process.serve("i-1", &long), process.serve("i-1", &long));
    let mut third = process.serve("i-1", &body(32)).await.unwrap();
    third.next().await.unwrap().unwrap();
    let late = process.serve("i-1", &body(32)).await.unwrap();
    for events in [first.unwrap(), second.unwrap(), late] {
        let (text, tokens, end) = read(events).await;
        assert_eq!((text, tokens.len(), usage(&end).1), (expected(32), 32, 32));
    }
    assert_eq!(world.only_report().await, finished("i-1", 32));
    let session = SessionId::new(CHAIN_ID, 0, "i-1");
    assert_eq!(process.runner.records(session).await.unwrap().len(), 1, "it ran once");
}

#[tokio::test]
async fn only_the_requester_is_served_with_the_body_it_started_by_the_executor_it_chose() {
    let world = World::new();
    world.start_inference("i-1", &body(8));
    world.start_inference("i-2", &body(8));
    world.chain.lock().inferences.get_mut("i-2").unwrap().assigned_to =
        requester().address().to_bech32(&Hrp::default());
    world.start_inference("i-3", &body(8));
    world.chain.lock().inferences.get_mut("i-3").unwrap().model = "m3".into();
    let process = world.start();
    let thief = SecretKey::from_seed_label(b"host", "thief");
    for round in 0..2 {
        let stolen = process.serve_as(&thief, request("i-1", &body(8))).await.unwrap_err();
        assert_eq!(stolen.code(), Code::PermissionDenied, "{round}: {stolen}");
        let other = process.refused("i-1", &body(9)).await;
        assert_eq!(other.code(), Code::PermissionDenied, "{round}: {other}");
        for (id, word) in [("i-2", "given to"), ("i-3", "model m3")] {
            let not_ours = process.refused(id, &body(8)).await;
            assert_eq!(not_ours.code(), Code::PermissionDenied);
            assert!(not_ours.message().contains(word), "{not_ours}");
        }
        // The second round asks for an answer that is there.
        read(process.serve("i-1", &body(8)).await.unwrap()).await;
    }
    for (id, bad, code) in [
        ("i-1", br#"{"prompt":""}"#.to_vec(), Code::InvalidArgument),
        ("i-1", br#"{"prompt":"a","stop":"b"}"#.to_vec(), Code::InvalidArgument),
        ("", body(8), Code::InvalidArgument),
        (&"i".repeat(65), body(8), Code::InvalidArgument),
        ("i-4", vec![b' '; BODY_MAX + 1], Code::InvalidArgument),
    ] {
        let id = if id == "i-1" { "i-4" } else { id };
        assert_eq!(process.refused(id, &bad).await.code(), code);
    }
}

#[tokio::test]
async fn a_call_without_a_fresh_signature_is_not_served() {
    let world = World::new();
    world.start_inference("i-1", &body(8));
    let process = world.start();
    let now = SystemClock::new().unix_ms();
    let request = || request("i-1", &body(8));
    let bare = process.host.serve_chain(Request::new(request())).await.unwrap_err();
    assert_eq!(bare.code(), Code::Unauthenticated);
    for at_ms in [now - auth::WINDOW_MS - 1_000, now + auth::WINDOW_MS + 1_000] {
        let off = process.host.serve_chain(call(request(), &requester(), at_ms)).await.unwrap_err();
        assert_eq!(off.code(), Code::Unauthenticated, "{off}");
    }
    let mut garbage = Request::new(request());
    garbage.metadata_mut().insert_bin(auth::METADATA, MetadataValue::from_bytes(&[7; 73]));
    assert_eq!(process.host.serve_chain(garbage).await.unwrap_err().code(), Code::Unauthenticated);
    // Signed for another request.
    let mut moved = call(request(), &requester(), now);
    moved.get_mut().deadline_ms = 1;
    assert_eq!(process.host.serve_chain(moved).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(world.chain.lock().broadcasts, 0);
}

#[tokio::test]
async fn an_inference_is_waited_for_two_blocks_and_one_that_is_over_is_not_served() {
    let world = World::new();
    let process = world.start();
    let height = world.chain.lock().height;
    assert_eq!(process.refused("i-1", &body(8)).await.code(), Code::NotFound);
    assert!(world.chain.lock().height >= height + START_BLOCKS);
    // The body comes before the Start.
    let prompt = body(8);
    let (served, ()) = tokio::join!(process.serve("i-1", &prompt), async {
        sleep(BLOCK).await;
        world.start_inference("i-1", &body(8));
    });
    assert_eq!(read(served.unwrap()).await.0, expected(8));
    for (id, status) in [
        ("i-2", InferenceStatus::Expired),
        ("i-3", InferenceStatus::Cancelled),
        ("i-4", InferenceStatus::Finished),
    ] {
        world.start_inference(id, &body(8));
        world.chain.set(id, status);
        let over = process.refused(id, &body(8)).await;
        assert_eq!(over.code(), Code::FailedPrecondition);
        assert!(over.message().contains(status.as_str_name()), "{over}");
    }
    world.chain.lock().unreachable = true;
    assert_eq!(process.refused("i-5", &body(8)).await.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_call_that_finds_the_queue_full_is_told_when_to_come_again() {
    let mut world = World { step_ms: 30, ..World::new() };
    world.config.session.scheduler.queue_sessions = 1;
    world.config.session.scheduler.active_sessions = 1;
    let process = world.start();
    let mut full = None;
    for number in 0..4 {
        let id = format!("i-{number}");
        world.start_inference(&id, &body(32));
        match process.serve(&id, &body(32)).await {
            Ok(_) => {}
            Err(status) => full = Some(status),
        }
    }
    let full = full.expect("four are too many");
    assert_eq!(full.code(), Code::ResourceExhausted);
    let retry: u64 = full.metadata().get("retry-after-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!(retry > 0);
}

#[tokio::test]
async fn a_crash_before_the_report_or_before_it_was_marked_leaves_exactly_one_report() {
    // Out of reach: nothing is sent before the crash. Held: it is sent, and in no block before the crash. Lost: sent,
    // executed, and the host never hears.
    for case in ["unreachable", "hold", "lose"] {
        let world = World::new();
        world.start_inference("i-1", &body(8));
        let process = world.start();
        let events = process.serve("i-1", &body(8)).await.unwrap();
        let set = |on| {
            let mut state = world.chain.lock();
            match case {
                "unreachable" => state.unreachable = on,
                "hold" => state.hold = on,
                _ => state.lose_answers = on,
            }
        };
        set(true);
        read(events).await;
        let session = SessionId::new(CHAIN_ID, 0, "i-1");
        let records = process.runner.records(session).await.unwrap();
        assert_eq!(records[0].status, WorkStatus::Completed);
        if case != "unreachable" {
            until("it is sent", || world.chain.lock().broadcasts > 0).await;
        }
        world.kill(process).await;
        assert!(case != "unreachable" || world.chain.lock().broadcasts == 0);
        set(false);
        let process = world.start();
        assert_eq!(world.only_report().await, finished("i-1", 8), "{case}");
        assert!(process.host.drain(LIMIT, LIMIT).await);
        // And what is marked stays marked.
        let broadcasts = world.chain.lock().broadcasts;
        world.kill(process).await;
        let process = world.start();
        sleep(Duration::from_millis(60)).await;
        assert!(process.runner.unsubmitted().await.unwrap().is_empty());
        assert_eq!(world.chain.lock().broadcasts, broadcasts);
    }
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_run_is_reported_as_a_failure_by_the_next_process() {
    let world = World { step_ms: 20, ..World::new() };
    world.start_inference("i-1", &body(64));
    let process = world.start();
    let mut events = process.serve("i-1", &body(64)).await.unwrap();
    while !matches!(events.next().await.unwrap().unwrap().event.unwrap(), Event::Delta(_)) {}
    world.kill(process).await;
    let process = world.start();
    let kind = FailureKind::WorkerDeath;
    assert_eq!(world.only_report().await, Report::Failed { id: "i-1".into(), kind: kind.number() });
    let (_, tokens, end) = read(process.serve("i-1", &body(64)).await.unwrap()).await;
    assert_eq!((tokens.len(), end), (0, failed(Some(kind))));
}

#[tokio::test]
async fn a_report_in_no_block_in_time_is_sent_again_and_counts_once() {
    let world = World::new();
    world.start_inference("i-1", &body(8));
    let process = world.start();
    world.chain.lock().hold = true;
    read(process.serve("i-1", &body(8)).await.unwrap()).await;
    until("it is sent again", || world.chain.lock().broadcasts == 2).await;
    assert_eq!(world.chain.lock().pool.len(), 1, "the first one is void");
    world.chain.lock().hold = false;
    assert_eq!(world.only_report().await, finished("i-1", 8));
    assert!(process.host.drain(LIMIT, LIMIT).await);
    assert_eq!(world.chain.lock().refused, 0);
}

#[tokio::test]
async fn a_chain_that_has_forgotten_the_inference_gets_no_report() {
    let world = World::new();
    world.start_inference("i-1", &body(8));
    let process = world.start();
    let events = process.serve("i-1", &body(8)).await.unwrap();
    world.chain.lock().inferences.clear();
    read(events).await;
    let height = world.chain.lock().height;
    assert!(process.host.drain(LIMIT, LIMIT).await);
    assert!(world.chain.lock().height >= height + TX_LIFE_BLOCKS - 1, "a node may be behind for some blocks");
    assert_eq!(world.chain.lock().broadcasts, 0);
}

#[tokio::test]
async fn a_host_that_stops_takes_nothing_new_and_reports_what_it_had_to_break_off() {
    let world = World { step_ms: 30, ..World::new() };
    world.start_inference("i-1", &body(64));
    world.start_inference("i-2", &body(8));
    let process = world.start();
    let events = process.serve("i-1", &body(64)).await.unwrap();
    let (reported, ()) = tokio::join!(process.host.drain(Duration::from_millis(200), LIMIT), async {
        sleep(Duration::from_millis(50)).await;
        assert_eq!(process.refused("i-2", &body(8)).await.code(), Code::Unavailable);
    });
    assert!(reported);
    let kind = FailureKind::Cancelled;
    assert_eq!(read(events).await.2, failed(Some(kind)));
    let reports = world.chain.lock().reports.clone();
    assert_eq!(reports, [Report::Failed { id: "i-1".into(), kind: kind.number() }]);
}
