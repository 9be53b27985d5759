//! Server and client over real sockets.

mod frames;
mod gated;
mod limits;
mod losses;
mod proxy;
mod raw;
mod sessions;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use self::gated::Gated;
use super::*;

use crate::adapter::{
    AdapterError, BoundaryAdapter, Bundle, KvKey, OpenPlan, Payload, ReleaseAck, Sampling, SessionId,
    ShardInfo, StepOut, StepRef, StepState, fingerprint,
};
use crate::backends::reference::ReferenceModel;
use crate::clock::{Clock, SystemClock};
use crate::failure::Cause;
use crate::shard::{LocalShard, ShardHost, ShardSettings};

const PROMPT: [u32; 4] = [7, 3, 9, 1];
/// Longest wait for anything in these tests.
const SOON: Duration = Duration::from_secs(5);

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
