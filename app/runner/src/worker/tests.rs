//! Server and client over real sockets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_client::WorkerClient;
use pb::run_request::Frame as Ask;
use pb::run_response::Frame as Answer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::*;
use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, KeyUsage, KvKey, OpenPlan, Opened, Payload,
    ReleaseAck, Sampling, SessionId, ShardInfo, StepOut, StepRef, StepState, StopAck, Usage, fingerprint,
};
use crate::backends::reference::ReferenceModel;
use crate::backends::reference::oracle::Oracle;
use crate::clock::{Clock, SystemClock};
use crate::failure::Cause;
use crate::kv::StaleCoordinator;
use crate::restart::ShardPool;
use crate::shard::{LocalShard, ShardCounters, ShardHost, ShardSettings};

const PROMPT: [u32; 4] = [7, 3, 9, 1];
/// Longest wait for anything in these tests.
const SOON: Duration = Duration::from_secs(5);

/// The reference shard with a gate before each step, and a panic on request.
struct Gated {
    inner: LocalShard<ReferenceModel>,
    gate: Semaphore,
    panics: AtomicBool,
}

impl Gated {
    fn open_gate(&self) {
        self.gate.add_permits(1_000_000);
    }

    async fn pass(&self) {
        self.gate.acquire().await.unwrap().forget();
        assert!(!self.panics.swap(false, Ordering::Relaxed), "asked to");
    }
}

impl BoundaryAdapter for Gated {
    fn describe(&self) -> ShardInfo {
        self.inner.describe()
    }
    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        self.inner.open(key, plan)
    }
    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(async move {
            self.pass().await;
            self.inner.prefill(key, step, bundle).await
        })
    }
    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(async move {
            self.pass().await;
            self.inner.decode(key, step, bundle).await
        })
    }
    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        self.inner.query_step(key, step)
    }
    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        self.inner.stop(key, cause)
    }
    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        self.inner.release(key, cause)
    }
    fn beat(&self, keys: &[KvKey]) {
        self.inner.beat(keys);
    }
    fn last_beat_ms(&self) -> Option<u64> {
        self.inner.last_beat_ms()
    }
    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

impl ShardHost for Gated {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        self.inner.hello(generation)
    }
    fn reap(&self) {
        self.inner.reap();
    }
    fn counters(&self) -> ShardCounters {
        self.inner.counters()
    }
}

/// A worker in this process: its sockets are real.
struct Worker {
    authority: String,
    host: Arc<Gated>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Worker {
    async fn on(listener: TcpListener, layers: (u32, u32), limits: WorkerLimits) -> Self {
        let model = ReferenceModel::new(13, layers).unwrap();
        let inner = LocalShard::new(model, ShardSettings::new("w"), Arc::new(SystemClock::new()));
        let host = Arc::new(Gated { inner, gate: Semaphore::new(0), panics: AtomicBool::new(false) });
        let authority = listener.local_addr().unwrap().to_string();
        let server = WorkerServer::new(host.clone(), "reference", limits).unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve(listener, async {
            let _ = stopped.await;
        }));
        Self { authority, host, stop: Some(stop), task }
    }

    /// With its gate closed.
    async fn gated(layers: (u32, u32)) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), layers, quick()).await
    }

    async fn start(layers: (u32, u32)) -> Self {
        let worker = Self::gated(layers).await;
        worker.host.open_gate();
        worker
    }

    /// As a killed process: every socket closes at once, the port too.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    async fn shard(&self) -> Arc<RemoteShard> {
        connect(&self.authority, 1).await.unwrap()
    }

    async fn holds_nothing(&self) {
        eventually("the worker holds nothing", || self.host.usage().keys.is_empty()).await;
    }
}

/// Short waits, so that tests are short.
fn quick() -> WorkerLimits {
    WorkerLimits {
        first_frame: Duration::from_millis(300),
        slow_reader: Duration::from_millis(300),
        idle: Duration::from_millis(400),
        ..WorkerLimits::default()
    }
}

fn config(authority: &str, generation: u64) -> RemoteConfig {
    let address = WorkerAddress::parse(authority).unwrap();
    RemoteConfig { address, generation, model: None, limits: RemoteLimits::default() }
}

async fn connect(authority: &str, generation: u64) -> Result<Arc<RemoteShard>, ConnectError> {
    RemoteShard::connect(config(authority, generation), Arc::new(SystemClock::new())).await
}

async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !check() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn soon<F: Future>(future: F) -> F::Output {
    timeout(SOON, future).await.expect("a bounded wait")
}

fn key(session: u8, epoch: u32) -> KvKey {
    KvKey::new(SessionId([session; 16]), epoch)
}

fn plan() -> OpenPlan {
    OpenPlan { max_positions: 32, lease_ms: 10_000, sampling: Sampling::GREEDY, trace: None }
}

fn at(info: &ShardInfo, key: KvKey, step: u32, position: u32, input: &[u32]) -> StepRef {
    let fingerprint = fingerprint(&info.model_digest, key.session, position, input, Sampling::GREEDY);
    StepRef { step, fingerprint }
}

/// The prompt's step at a first shard.
fn first(info: &ShardInfo, key: KvKey) -> (StepRef, Bundle) {
    (at(info, key, 0, 0, &PROMPT), Bundle::new(0, Payload::Tokens(PROMPT.to_vec())))
}

/// One step through all shards, in layer order.
async fn step(
    shards: &[Arc<RemoteShard>],
    key: KvKey,
    step: u32,
    position: u32,
    input: &[u32],
) -> Result<u32, AdapterError> {
    let mut bundle = Bundle::new(position, Payload::Tokens(input.to_vec()));
    for shard in shards {
        let at = at(&shard.describe(), key, step, position, input);
        let out = if step == 0 {
            shard.prefill(key, at, bundle).await?
        } else {
            shard.decode(key, at, bundle).await?
        };
        match out {
            StepOut::Hidden(next) => bundle = next,
            StepOut::Token { token, .. } => return Ok(token),
        }
    }
    panic!("the last shard gives a token")
}

async fn generate(shards: &[Arc<RemoteShard>], key: KvKey, count: u32) -> Result<Vec<u32>, AdapterError> {
    for shard in shards {
        assert_eq!(shard.open(key, plan()).await?.kv_len, 0);
    }
    let mut tokens = vec![step(shards, key, 0, 0, &PROMPT).await?];
    for number in 1..count {
        let last = tokens[tokens.len() - 1];
        tokens.push(step(shards, key, number, 3 + number, &[last]).await?);
    }
    for shard in shards {
        let ack = shard.release(key, Cause::Node).await?;
        assert_eq!(ack, ReleaseAck::Released { rows: 3 + count, buffers: 0 });
    }
    Ok(tokens)
}

/// A client of the stream protocol without manners of its own.
struct Raw {
    client: WorkerClient<Channel>,
    /// Keeps the control stream open.
    control: mpsc::Sender<pb::ControlRequest>,
    beats: Streaming<pb::ControlResponse>,
}

struct RawRun {
    out: mpsc::Sender<pb::RunRequest>,
    inbound: Streaming<pb::RunResponse>,
    seq: u64,
}

impl Raw {
    /// Connects; says hello as generation 1 unless told not to.
    async fn connect(worker: &Worker) -> Self {
        Self::with_hello(worker, 1, worker.host.describe().model_digest.to_vec()).await.unwrap()
    }

    async fn with_hello(
        worker: &Worker,
        generation: u64,
        model_digest: Vec<u8>,
    ) -> Result<Self, pb::Refused> {
        let mut client = WorkerClient::connect(format!("http://{}", worker.authority)).await.unwrap();
        let (control, frames) = mpsc::channel(16);
        let hello = pb::control_request::Frame::Hello(pb::Hello { generation, model_digest });
        control.send(pb::ControlRequest { seq: 1, frame: Some(hello) }).await.unwrap();
        let mut beats = client.control(ReceiverStream::new(frames)).await.unwrap().into_inner();
        match soon(beats.message()).await.unwrap().unwrap().frame.unwrap() {
            pb::control_response::Frame::HelloAck(_) => Ok(Self { client, control, beats }),
            pb::control_response::Frame::Refused(refused) => Err(refused),
            other => panic!("{other:?}"),
        }
    }

    async fn run(&mut self) -> RawRun {
        let (out, frames) = mpsc::channel(64);
        let inbound = soon(self.client.run(ReceiverStream::new(frames))).await.unwrap().into_inner();
        RawRun { out, inbound, seq: 0 }
    }

    /// A stream with its key open.
    async fn open(&mut self, key: KvKey) -> RawRun {
        let mut run = self.run().await;
        run.send(open_frame(key)).await;
        assert!(matches!(run.next().await, Some(Answer::Opened(pb::Opened { kv_len: 0 }))));
        run
    }
}

fn open_frame(key: KvKey) -> Ask {
    let (key, plan) = (Some(convert::key_to(key)), Some(convert::plan_to(plan())));
    Ask::Open(pb::Open { key, plan, attach: false })
}

fn attach_frame(key: KvKey) -> Ask {
    Ask::Open(pb::Open { key: Some(convert::key_to(key)), plan: None, attach: true })
}

fn step_frame(at: StepRef, prefill: bool, bundle: Bundle) -> pb::Step {
    let bundle = Some(convert::bundle_to(bundle));
    pb::Step { step: at.step, fingerprint: at.fingerprint.to_vec(), prefill, bundle, deadline_ms: 0 }
}

impl RawRun {
    async fn send(&mut self, frame: Ask) {
        self.seq += 1;
        let _ = self.out.send(pb::RunRequest { seq: self.seq, frame: Some(frame) }).await;
    }

    /// The next answer; `None` at the end, however it came.
    async fn next(&mut self) -> Option<Answer> {
        soon(self.inbound.message()).await.ok().flatten().map(|response| response.frame.unwrap())
    }

    /// The refusal that ends the stream.
    async fn refused(&mut self) -> AdapterError {
        match self.next().await {
            Some(Answer::Failed(failed)) => {
                assert!(self.next().await.is_none(), "nothing follows a refusal");
                convert::failed_from(&failed)
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
}

/// A way to the worker that can be cut.
struct Proxy {
    authority: String,
    /// Where new connections go.
    target: Arc<Mutex<String>>,
    cut: watch::Sender<()>,
}

impl Proxy {
    async fn start(worker: &Worker) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let target = Arc::new(Mutex::new(worker.authority.clone()));
        let cut = watch::Sender::new(());
        let (to, cuts) = (Arc::clone(&target), cut.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let to = to.lock().unwrap().clone();
                let mut cut = cuts.subscribe();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(to).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { authority, target, cut }
    }

    fn cut(&self) {
        self.cut.send_replace(());
    }
}

type Pending<T> = JoinHandle<Result<T, AdapterError>>;

/// A prefill that waits at the gate.
async fn waiting(worker: &Worker, shard: &Arc<RemoteShard>, key: KvKey) -> Pending<StepOut> {
    let (at, bundle) = first(&shard.describe(), key);
    let before = worker_busy(worker);
    let task = {
        let shard = Arc::clone(shard);
        tokio::spawn(async move { shard.prefill(key, at, bundle).await })
    };
    // It is at the gate once the worker has taken it; a query then says so.
    let begun = Instant::now();
    while shard.query_step(key, 0).await != Ok(StepState::Unknown) {
        assert!(begun.elapsed() < SOON);
        sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(worker_busy(worker), before, "the gate is before the model");
    task
}

fn worker_busy(worker: &Worker) -> usize {
    worker.host.counters().busy.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_and_three_workers_give_the_oracles_tokens_and_hold_nothing_after() {
    let expected = Oracle::new(13).generate(&PROMPT, 8);
    assert_eq!(expected, [8, 185, 33, 96, 154, 45, 82, 93]);
    for cuts in [vec![(0, 4)], vec![(0, 2), (2, 4)], vec![(0, 1), (1, 3), (3, 4)]] {
        let mut workers = Vec::new();
        let mut shards = Vec::new();
        for layers in cuts {
            let worker = Worker::start(layers).await;
            shards.push(worker.shard().await);
            workers.push(worker);
        }
        for session in [1, 2] {
            assert_eq!(soon(generate(&shards, key(session, 0), 8)).await, Ok(expected.clone()));
        }
        for (worker, shard) in workers.iter().zip(&shards) {
            worker.holds_nothing().await;
            assert_eq!((shard.usage().keys.len(), shard.dropped_answers()), (0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_says_its_name_with_the_boot_id_and_beats_without_being_asked() {
    let worker = Worker::start((0, 4)).await;
    let clock = Arc::new(SystemClock::new());
    let shard = RemoteShard::connect(config(&worker.authority, 1), clock.clone()).await.unwrap();
    assert_eq!(shard.describe().shard_id, format!("w@{}", &shard.boot_id().to_string()[..8]));
    let connected = shard.last_beat_ms().unwrap();
    let after = |ms: u64| eventually("a beat", move || shard.last_beat_ms().unwrap() > ms);
    after(connected.max(clock.now_ms())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_and_release_are_answered_while_a_step_runs() {
    let worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;

    let asked = Instant::now();
    assert_eq!(shard.stop(key(1, 0), Cause::Client).await, Ok(StopAck::InFlight { step: 0 }));
    assert_eq!(shard.release(key(1, 0), Cause::Client).await, Ok(ReleaseAck::Busy { step: 0 }));
    assert!(asked.elapsed() < Duration::from_millis(500));
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    assert!(matches!(shard.prefill(key(1, 0), at, bundle).await, Err(AdapterError::Conflict(_))));

    worker.host.open_gate();
    // The stop came before the model began, so it does not.
    assert!(matches!(soon(running).await.unwrap(), Err(AdapterError::Conflict(_))));
    assert_eq!(
        shard.release(key(1, 0), Cause::Client).await,
        Ok(ReleaseAck::Released { rows: 0, buffers: 0 })
    );
    assert_eq!(shard.release(key(1, 0), Cause::Client).await, Ok(ReleaseAck::WasAbsent));
    assert_eq!(shard.stop(key(1, 0), Cause::Client).await, Ok(StopAck::Quiescent));
    assert_eq!(shard.query_step(key(1, 0), 0).await, Ok(StepState::Unknown));
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_leaves_its_session_as_it_is_and_a_new_one_goes_on() {
    let worker = Worker::start((0, 4)).await;
    let info = worker.host.describe();
    let mut raw = Raw::connect(&worker).await;
    let mut run = raw.open(key(1, 0)).await;
    let (at0, bundle) = first(&info, key(1, 0));
    run.send(Ask::Step(step_frame(at0, true, bundle.clone()))).await;
    let Some(Answer::StepDone(done)) = run.next().await else { panic!("a step") };
    drop(run);
    let held = worker.host.usage().keys;
    assert!(matches!(held[..], [KeyUsage { rows: 4, .. }]), "{held:?}");

    let mut again = raw.run().await;
    again.send(attach_frame(key(1, 0))).await;
    assert!(matches!(again.next().await, Some(Answer::Opened(_))));
    again.send(Ask::Step(step_frame(at0, true, bundle.clone()))).await;
    let Some(Answer::StepDone(recorded)) = again.next().await else { panic!("the recorded step") };
    assert_eq!(recorded.out, done.out);
    // The same step with other content.
    let other = StepRef { step: 0, fingerprint: [9; 32] };
    again.send(Ask::Step(step_frame(other, true, bundle))).await;
    assert!(matches!(again.next().await, Some(Answer::StepFailed(_))));
    again.send(Ask::QueryStep(pb::QueryStep { step: 0 })).await;
    let Some(Answer::StepState(state)) = again.next().await else { panic!("a state") };
    let state = convert::state_from(state.state).unwrap();
    assert!(matches!(state, StepState::Done { fingerprint, .. } if fingerprint == at0.fingerprint));
    // The next step, too.
    let at1 = at(&info, key(1, 0), 1, 4, &[8]);
    again.send(Ask::Step(step_frame(at1, false, Bundle::new(4, Payload::Tokens(vec![8]))))).await;
    let Some(Answer::StepDone(second)) = again.next().await else { panic!("the next step") };
    assert!(matches!(convert::out_from(second.out), Ok(StepOut::Token { token: 185, .. })));
    again.send(Ask::Release(pb::Release { cause: 1 })).await;
    assert!(matches!(again.next().await, Some(Answer::ReleaseAck(_))));
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_epoch_is_stale_everywhere_and_a_higher_one_frees_it() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    shard.prefill(key(1, 0), at, bundle.clone()).await.unwrap();
    assert_eq!(shard.open(key(1, 1), plan()).await.unwrap().kv_len, 0);
    let stale = AdapterError::StaleEpoch { have: 1 };
    assert_eq!(shard.prefill(key(1, 0), at, bundle).await, Err(stale.clone()));
    assert_eq!(shard.open(key(1, 0), plan()).await, Err(stale.clone()));
    assert_eq!(shard.query_step(key(1, 0), 0).await, Err(stale));
    assert_eq!(shard.release(key(1, 0), Cause::Node).await, Ok(ReleaseAck::WasAbsent));
    let keys: Vec<KvKey> = worker.host.usage().keys.iter().map(|usage| usage.key).collect();
    assert_eq!(keys, [key(1, 1)]);
    assert_eq!(shard.usage().keys.iter().map(|usage| usage.key).collect::<Vec<_>>(), keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_of_a_higher_generation_takes_the_worker_over() {
    let worker = Worker::gated((0, 4)).await;
    let old = worker.shard().await;
    old.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &old, key(1, 0)).await;
    let new = connect(&worker.authority, 2).await.unwrap();
    let refused = soon(running).await.unwrap().unwrap_err();
    assert!(
        matches!(&refused, AdapterError::Internal(why) if why.contains("stale coordinator")),
        "{refused}"
    );
    assert!(matches!(soon(old.died()).await, AdapterError::Internal(_)));
    assert!(matches!(old.open(key(2, 0), plan()).await, Err(AdapterError::Internal(_))));
    assert!(old.usage().keys.is_empty());
    worker.host.open_gate();
    worker.holds_nothing().await;
    assert!(matches!(connect(&worker.authority, 1).await, Err(ConnectError::StaleCoordinator { have: 2 })));
    assert_eq!(soon(generate(&[new], key(1, 1), 2)).await, Ok(vec![8, 185]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_expects_another_model_or_other_layers_is_told() {
    let worker = Worker::start((0, 2)).await;
    let other = RemoteConfig { model: Some([9; 32]), ..config(&worker.authority, 1) };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    assert!(matches!(
        RemoteShard::connect(other, Arc::clone(&clock)).await,
        Err(ConnectError::OtherModel(_))
    ));
    let mut wrong = config(&worker.authority, 1);
    wrong.address = wrong.address.with_layers(0, 4);
    let refused = RemoteShard::connect(wrong, clock).await;
    assert!(matches!(refused, Err(ConnectError::OtherLayers { have: (0, 2), wanted: (0, 4) })));
    for (generation, digest, reason) in
        [(1, vec![9; 32], pb::Refusal::OtherModel), (1, vec![9; 31], pb::Refusal::Malformed)]
    {
        let refused = Raw::with_hello(&worker, generation, digest).await.err().unwrap();
        assert_eq!(refused.reason(), reason);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_out_of_order_end_their_own_session_with_a_reason() {
    let worker = Worker::start((0, 4)).await;
    let info = worker.host.describe();
    let mut raw = Raw::connect(&worker).await;
    let mut other = raw.open(key(9, 0)).await;
    let (at, bundle) = first(&info, key(9, 0));

    // As the first frame.
    let stop = || Ask::Stop(pb::Stop { cause: 1 });
    let bad_key = pb::KvKey { session: vec![1; 15], epoch: 0 };
    for (frame, kind) in [
        (stop(), 7),
        (Ask::Step(step_frame(at, true, bundle.clone())), 7),
        (Ask::Open(pb::Open::default()), 7),
        (Ask::Open(pb::Open { key: Some(bad_key), plan: None, attach: false }), 3),
        (Ask::Open(pb::Open { key: Some(convert::key_to(key(1, 0))), plan: None, attach: false }), 7),
        (attach_frame(key(1, 0)), 5),
    ] {
        let mut run = raw.run().await;
        run.send(frame.clone()).await;
        assert_eq!(run.refused().await.code(), kind, "{frame:?}");
    }
    // On an open session.
    for (skipped, frame) in [(0, open_frame(key(1, 0))), (1, stop())] {
        let mut run = raw.open(key(1, 0)).await;
        run.seq += skipped;
        run.send(frame).await;
        assert_eq!(run.refused().await.code(), 7);
        worker.host.release(key(1, 0), Cause::Node).await.unwrap();
    }
    let mut run = raw.open(key(2, 0)).await;
    run.out.send(pb::RunRequest { seq: 2, frame: None }).await.unwrap();
    assert_eq!(run.refused().await.code(), 7);
    // Nothing at all.
    let mut silent = raw.run().await;
    assert_eq!(silent.refused().await.code(), 7);
    // A frame that is too long.
    let mut run = raw.open(key(3, 0)).await;
    let long = Bundle::new(0, Payload::Hidden { rows: 1, cols: 1, data: vec![0; 9 << 20] });
    run.send(Ask::Step(step_frame(at, true, long))).await;
    assert_eq!(run.refused().await.code(), 3);

    // A step that cannot be right is answered, and the session goes on.
    let good = step_frame(at, true, bundle);
    let no_payload = pb::Bundle { payload: None, ..good.bundle.clone().unwrap() };
    for bad in [
        pb::Step { fingerprint: vec![1; 31], ..good.clone() },
        pb::Step { bundle: None, ..good.clone() },
        pb::Step { bundle: Some(no_payload), ..good.clone() },
    ] {
        other.send(Ask::Step(bad)).await;
        let Some(Answer::StepFailed(failed)) = other.next().await else { panic!("a refused step") };
        assert_eq!((failed.failure.unwrap().code, failed.mutated), (3, pb::Mutated::No as i32));
    }
    other.send(Ask::Step(good)).await;
    assert!(matches!(other.next().await, Some(Answer::StepDone(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_step_before_the_answer_is_a_conflict_and_the_first_is_answered() {
    let worker = Worker::gated((0, 4)).await;
    let mut raw = Raw::connect(&worker).await;
    let mut run = raw.open(key(1, 0)).await;
    let (at, bundle) = first(&worker.host.describe(), key(1, 0));
    for _ in 0..2 {
        run.send(Ask::Step(step_frame(at, true, bundle.clone()))).await;
    }
    let Some(Answer::StepFailed(failed)) = run.next().await else { panic!("a conflict") };
    assert_eq!((failed.failure.unwrap().code, failed.mutated), (7, pb::Mutated::No as i32));
    // A new stream takes the key over; the step is still in flight for it.
    let mut newer = raw.run().await;
    newer.send(attach_frame(key(1, 0))).await;
    assert!(matches!(newer.next().await, Some(Answer::Opened(_))));
    assert_eq!(run.refused().await.code(), 2);
    newer.send(Ask::Step(step_frame(at, true, bundle.clone()))).await;
    let Some(Answer::StepFailed(failed)) = newer.next().await else { panic!("a conflict") };
    assert_eq!(failed.failure.unwrap().code, 7);
    worker.host.open_gate();
    let begun = Instant::now();
    loop {
        newer.send(Ask::Step(step_frame(at, true, bundle.clone()))).await;
        match newer.next().await {
            Some(Answer::StepDone(done)) => {
                assert!(matches!(convert::out_from(done.out), Ok(StepOut::Token { token: 8, .. })));
                break;
            }
            Some(Answer::StepFailed(_)) => assert!(begun.elapsed() < SOON),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_accepted_hello_no_key_is_opened() {
    let worker = Worker::start((0, 4)).await;
    let client = WorkerClient::connect(format!("http://{}", worker.authority)).await.unwrap();
    let mut rude = Raw::connect(&worker).await;
    rude.client = client;
    let mut run = rude.run().await;
    run.send(open_frame(key(1, 0))).await;
    assert_eq!(run.refused().await.code(), 7);
    // Nor does a control stream live that breaks the rules.
    let beat = pb::control_request::Frame::Beat(pb::Beat { keys: vec![] });
    rude.control.send(pb::ControlRequest { seq: 5, frame: Some(beat) }).await.unwrap();
    loop {
        match soon(rude.beats.message()).await.unwrap().unwrap().frame.unwrap() {
            pb::control_response::Frame::Beat(_) => {}
            pb::control_response::Frame::Refused(refused) => {
                assert_eq!(refused.reason(), pb::Refusal::Malformed);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_half_spoken_and_idle_connections_hold_no_place() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Worker::on(listener, (0, 4), WorkerLimits { connections: 3, ..quick() }).await;
    worker.host.open_gate();
    let mut silent = TcpStream::connect(&worker.authority).await.unwrap();
    let mut half = TcpStream::connect(&worker.authority).await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    // Speaks HTTP/2, and asks for nothing after that.
    let mut idle = WorkerClient::connect(format!("http://{}", worker.authority)).await.unwrap();
    idle.describe(pb::DescribeRequest {}).await.unwrap();
    // All places are taken; each is free again within a second.
    let shard = soon(async {
        loop {
            if let Ok(shard) = connect(&worker.authority, 1).await {
                return shard;
            }
        }
    })
    .await;
    assert_eq!(soon(generate(&[shard], key(1, 0), 2)).await, Ok(vec![8, 185]));
    let mut rest = Vec::new();
    assert_eq!(soon(silent.read_to_end(&mut rest)).await.unwrap(), 0);
    // What ends a broken handshake is the server's to choose: closed, or reset.
    let _ = soon(half.read_to_end(&mut rest)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_its_own_connection() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096][..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut socket = TcpStream::connect(&worker.authority).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let _ = soon(socket.read_to_end(&mut Vec::new())).await;
    }
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    assert!(matches!(soon(shard.prefill(key(1, 0), at, bundle)).await, Ok(StepOut::Token { token: 8, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_loses_its_session_and_nobody_else_notices() {
    let worker = Worker::start((0, 2)).await;
    let info = worker.host.describe();
    let mut raw = Raw::connect(&worker).await;
    let mut slow = raw.open(key(1, 0)).await;
    let (at, bundle) = first(&info, key(1, 0));
    slow.send(Ask::Step(step_frame(at, true, bundle))).await;
    // 512 bytes each, until every buffer between the two is full.
    let asking = tokio::spawn(async move {
        for _ in 0..100_000 {
            slow.send(Ask::QueryStep(pb::QueryStep { step: 0 })).await;
            if slow.out.is_closed() {
                return slow;
            }
        }
        slow
    });
    let mut other = raw.open(key(2, 0)).await;
    let (at, bundle) = first(&info, key(2, 0));
    other.send(Ask::Step(step_frame(at, true, bundle))).await;
    assert!(matches!(other.next().await, Some(Answer::StepDone(_))));
    let mut slow = soon(asking).await.unwrap();
    assert!(slow.out.is_closed(), "the worker gave up on it");
    while slow.next().await.is_some() {}
    other.send(Ask::QueryStep(pb::QueryStep { step: 0 })).await;
    assert!(matches!(other.next().await, Some(Answer::StepState(_))));
    assert_eq!(worker.host.usage().keys.len(), 2, "its KV waits for release or the end of its lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_fails_every_key_at_once_wherever_it_is() {
    let worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    let mut running = Vec::new();
    for session in 1..=3 {
        shard.open(key(session, 0), plan()).await.unwrap();
        running.push(waiting(&worker, &shard, key(session, 0)).await);
    }
    shard.open(key(4, 0), plan()).await.unwrap();
    let killed = Instant::now();
    worker.kill().await;
    for step in running {
        assert!(matches!(soon(step).await.unwrap(), Err(AdapterError::WorkerDeath(_))));
    }
    for session in 4..=5 {
        let (at, bundle) = first(&shard.describe(), key(session, 0));
        assert!(matches!(shard.open(key(session, 0), plan()).await, Err(AdapterError::WorkerDeath(_))));
        assert!(matches!(
            shard.prefill(key(session, 0), at, bundle).await,
            Err(AdapterError::WorkerDeath(_))
        ));
        assert!(matches!(shard.stop(key(session, 0), Cause::Peer).await, Err(AdapterError::WorkerDeath(_))));
        assert!(matches!(
            shard.release(key(session, 0), Cause::Peer).await,
            Err(AdapterError::WorkerDeath(_))
        ));
    }
    assert!(killed.elapsed() < Duration::from_millis(1_500), "{:?}", killed.elapsed());
    assert!(!shard.is_up() && shard.usage().keys.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_resets_streams_and_the_same_process_goes_on() {
    let worker = Worker::gated((0, 4)).await;
    let proxy = Proxy::start(&worker).await;
    let shard = connect(&proxy.authority, 1).await.unwrap();
    shard.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;
    proxy.cut();
    assert!(matches!(soon(running).await.unwrap(), Err(AdapterError::StreamReset(_))));
    worker.host.open_gate();
    assert_eq!(soon(generate(std::slice::from_ref(&shard), key(2, 0), 2)).await, Ok(vec![8, 185]));
    let ack = soon(shard.release(key(1, 0), Cause::Peer)).await.unwrap();
    assert!(matches!(ack, ReleaseAck::Released { .. }), "{ack:?}");
    worker.holds_nothing().await;

    // Another process in its place is not the same worker.
    let other = Worker::start((0, 4)).await;
    *proxy.target.lock().unwrap() = other.authority.clone();
    proxy.cut();
    let died = soon(shard.died()).await;
    assert!(matches!(&died, AdapterError::WorkerDeath(why) if why.contains("another process")), "{died}");
    let next = connect(&proxy.authority, 1).await.unwrap();
    assert_ne!(next.describe().shard_id, shard.describe().shard_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_past_its_deadline_is_a_reset_of_that_key_alone() {
    let worker = Worker::gated((0, 4)).await;
    let mut config = config(&worker.authority, 1);
    config.limits.step = Duration::from_millis(200);
    let shard = RemoteShard::connect(config, Arc::new(SystemClock::new())).await.unwrap();
    shard.open(key(1, 0), plan()).await.unwrap();
    shard.open(key(2, 0), plan()).await.unwrap();
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    let begun = Instant::now();
    assert!(matches!(soon(shard.prefill(key(1, 0), at, bundle)).await, Err(AdapterError::StreamReset(_))));
    assert!((150..1_500).contains(&begun.elapsed().as_millis()));
    worker.host.open_gate();
    assert_eq!(soon(generate(std::slice::from_ref(&shard), key(3, 0), 2)).await, Ok(vec![8, 185]));
    let (at, bundle) = first(&shard.describe(), key(2, 0));
    assert!(soon(shard.prefill(key(2, 0), at, bundle)).await.is_ok());
    assert!(matches!(shard.release(key(2, 0), Cause::Node).await, Ok(ReleaseAck::Released { rows: 4, .. })));
    eventually("the late step ends", || worker.host.counters().busy.is_empty()).await;
    assert!(matches!(soon(shard.release(key(1, 0), Cause::Node)).await, Ok(ReleaseAck::Released { .. })));
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_waits_for_is_counted_and_dropped() {
    let worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;
    running.abort();
    let _ = running.await;
    worker.host.open_gate();
    eventually("the late answer", || shard.dropped_answers() == 1).await;
    // The step happened all the same.
    assert!(matches!(shard.query_step(key(1, 0), 0).await, Ok(StepState::Done { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_without_a_coordinator_and_beats_renew_them() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    let short = OpenPlan { lease_ms: 600, ..plan() };
    shard.open(key(1, 0), short).await.unwrap();
    shard.open(key(2, 0), short).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_800) {
        shard.beat(&[key(1, 0)]);
        sleep(Duration::from_millis(100)).await;
    }
    let keys: Vec<KvKey> = worker.host.usage().keys.iter().map(|usage| usage.key).collect();
    assert_eq!(keys, [key(1, 0)]);
    let (at, bundle) = first(&shard.describe(), key(2, 0));
    let late = soon(shard.prefill(key(2, 0), at, bundle)).await;
    // The same for the caller; which one depends on whether its stream has ended too.
    assert!(matches!(late, Err(AdapterError::LeaseExpired | AdapterError::CacheMiss(_))), "{late:?}");
    drop(shard);
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_panics_fails_its_step_and_the_worker_lives() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    worker.host.panics.store(true, Ordering::Relaxed);
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    let failed = soon(shard.prefill(key(1, 0), at, bundle.clone())).await;
    assert!(matches!(failed, Err(AdapterError::Internal(_))), "{failed:?}");
    assert!(matches!(soon(shard.prefill(key(1, 0), at, bundle)).await, Ok(StepOut::Token { token: 8, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_sessions_as_are_allowed_then_full_and_a_released_one_makes_room() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Worker::on(listener, (0, 4), WorkerLimits { runs: 2, ..quick() }).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    shard.open(key(2, 0), plan()).await.unwrap();
    let third = soon(shard.open(key(3, 0), plan())).await;
    assert!(matches!(third, Err(AdapterError::Full(_))), "{third:?}");
    assert_eq!(shard.usage().keys.len(), 2);
    shard.release(key(1, 0), Cause::Node).await.unwrap();
    let begun = Instant::now();
    while shard.open(key(3, 0), plan()).await.is_err() {
        assert!(begun.elapsed() < SOON);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_told_to_stop_ends_its_step_and_takes_nothing_new() {
    let mut worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    shard.open(key(2, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;
    worker.stop.take().unwrap().send(()).unwrap();
    let begun = Instant::now();
    while !matches!(shard.open(key(3, 0), plan()).await, Err(AdapterError::StreamReset(_))) {
        assert!(begun.elapsed() < SOON);
    }
    let (at, bundle) = first(&shard.describe(), key(2, 0));
    assert!(matches!(shard.prefill(key(2, 0), at, bundle).await, Err(AdapterError::StreamReset(_))));
    assert!(!worker.task.is_finished());
    worker.host.open_gate();
    assert!(matches!(soon(running).await.unwrap(), Ok(StepOut::Token { token: 8, .. })));
    soon(&mut worker.task).await.unwrap();
    assert!(matches!(soon(shard.died()).await, AdapterError::WorkerDeath(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_lists_who_is_connected_and_finds_a_restarted_worker_again() {
    let (a, b) = (Worker::start((0, 2)).await, Worker::start((2, 4)).await);
    let authority = b.authority.clone();
    let addresses = from_urls(&[&a.authority, &authority]).unwrap();
    let clock = Arc::new(SystemClock::new());
    let pool = RemotePool::start(addresses, 1, None, RemoteLimits::default(), clock);
    assert!(pool.ready(SOON).await, "{pool:?}");
    let ids = || pool.live().iter().map(|shard| shard.describe().shard_id).collect::<Vec<_>>();
    let before = ids();
    assert_eq!(pool.live().iter().map(|shard| shard.describe().layers).collect::<Vec<_>>(), [(0, 2), (2, 4)]);
    b.kill().await;
    eventually("the dead one is gone", || ids() == before[..1]).await;
    eventually("its end is told", || pool.members()[1].problem.is_some()).await;
    let listener = TcpListener::bind(&authority).await.unwrap();
    let _b = Worker::on(listener, (2, 4), quick()).await;
    assert!(pool.ready(SOON).await, "{pool:?}");
    assert_eq!(ids()[0], before[0]);
    assert_ne!(ids()[1], before[1]);
    drop(pool);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_coordinator_leaves_no_stream_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Worker::on(listener, (0, 4), WorkerLimits { runs: 8, ..quick() }).await;
    let shard = worker.shard().await;
    for session in 1..=8 {
        shard.open(key(session, 0), plan()).await.unwrap();
    }
    let running = waiting(&worker, &shard, key(1, 0)).await;
    let weak = Arc::downgrade(&shard);
    running.abort();
    let _ = running.await;
    drop(shard);
    assert!(weak.upgrade().is_none());
    // Each place for a stream is free again, and the KV waits for the end of its lease.
    let next = worker.shard().await;
    for session in 11..=18 {
        soon(async { while next.open(key(session, 0), plan()).await.is_err() {} }).await;
    }
    assert_eq!(worker.host.usage().keys.len(), 16);
}
