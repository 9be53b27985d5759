//! The server: accepts connections, bounds what each may hold, stops cleanly.

mod control;
mod hub;
mod run;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_server as generated;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service;
use tonic::{Request, Response, Status, Streaming};

use self::hub::{Connection, Hub};
use super::{BootId, FRAME_BYTES_MAX, convert};
use crate::adapter::{AdapterError, ShardInfo};
use crate::shard::ShardHost;

/// Pause after a failed accept: out of file descriptors is the usual cause, and it does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The reaper's and the beats' period (runner-details 6 and 8).
const TICK: Duration = Duration::from_secs(1);
/// Time for last frames and goodbyes once no step runs any more.
const FAREWELL: Duration = Duration::from_secs(1);
/// Frames of one stream that wait for a reader.
const QUEUE: usize = 8;

/// Limits of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Connections at a time; more wait in the backlog.
    pub connections: usize,
    /// Run streams at a time, over all connections; one more is refused as full.
    pub runs: usize,
    /// Longest wait for a connection's first byte and for a stream's first frame.
    pub first_frame: Duration,
    /// Longest life of a connection without a stream.
    pub idle: Duration,
    /// Longest wait for a reader that does not read; then its stream ends.
    pub slow_reader: Duration,
    /// Longest wait, at the end, for steps in flight.
    pub drain: Duration,
}

impl Default for WorkerLimits {
    /// 64 connections, 256 runs, 5 s for first frames, 15 s idle, 5 s for slow readers, 10 s at the end.
    fn default() -> Self {
        Self {
            connections: 64,
            runs: 256,
            first_frame: Duration::from_secs(5),
            idle: Duration::from_secs(15),
            slow_reader: Duration::from_secs(5),
            drain: Duration::from_secs(10),
        }
    }
}

/// Why a worker cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The system gives no randomness for the boot id.
    #[error("no randomness: {0}")]
    Randomness(String),
    /// A limit that would let nothing through.
    #[error("limit {0}: must be above zero")]
    Limit(&'static str),
}

/// Serves one shard to coordinators (runner-details 6).
///
/// It obeys the coordinator of the highest generation it has seen: a higher one releases all keys, a lower one is
/// refused. Every wait of it has a limit, every stream a bounded queue; a reaper lets expired leases go each second.
pub struct WorkerServer {
    hub: Arc<Hub>,
}

impl std::fmt::Debug for WorkerServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerServer").field("boot_id", &self.hub.boot_id).finish_non_exhaustive()
    }
}

impl WorkerServer {
    /// A server that has not begun; `backend` names what computes.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub fn new(
        host: Arc<dyn ShardHost>,
        backend: impl Into<String>,
        limits: WorkerLimits,
    ) -> Result<Self, WorkerError> {
        // Destructured in full, so that a new limit forces a decision here.
        let WorkerLimits { connections, runs, first_frame, idle, slow_reader, drain: _ } = limits;
        let counts = [("connections", connections), ("runs", runs)];
        let waits = [("first_frame", first_frame), ("idle", idle), ("slow_reader", slow_reader)];
        let waits = waits.map(|(name, wait)| (name, usize::from(!wait.is_zero())));
        if let Some((name, _)) = counts.into_iter().chain(waits).find(|(_, value)| *value == 0) {
            return Err(WorkerError::Limit(name));
        }
        let mut boot_id = [0; 16];
        getrandom::fill(&mut boot_id).map_err(|e| WorkerError::Randomness(e.to_string()))?;
        Ok(Self { hub: Arc::new(Hub::new(host, backend.into(), BootId(boot_id), limits)) })
    }

    /// This start of the worker.
    #[must_use]
    pub fn boot_id(&self) -> BootId {
        self.hub.boot_id
    }

    /// The shard it serves.
    #[must_use]
    pub fn info(&self) -> ShardInfo {
        self.hub.host.describe()
    }

    /// Serves until `shutdown` resolves. Then takes nothing new, lets steps in flight end for up to
    /// [`WorkerLimits::drain`], tells every stream, and closes all connections.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let hub = self.hub;
        let slots = Arc::new(Semaphore::new(hub.limits.connections.min(Semaphore::MAX_PERMITS)));
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut reaper = interval(TICK);
        reaper.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                _ = reaper.tick() => hub.reap(),
                (slot, accepted) = accept(&listener, &slots) => match accepted {
                    Ok(socket) => drop(connections.spawn(connection(Arc::clone(&hub), socket, slot))),
                    Err(error) => {
                        tracing::warn!(%error, "worker: a connection was not accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        hub.stop();
        let drained = async {
            while hub.steps_in_flight() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(hub.limits.drain, drained).await.is_err() {
            tracing::warn!(
                steps = hub.steps_in_flight(),
                "worker: steps are still in flight; exits without them"
            );
        }
        hub.end_all();
        let closed = async { while connections.join_next().await.is_some() {} };
        if timeout(FAREWELL, closed).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// A slot first, then a connection: with no slot free, connections wait in the listener's backlog.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (Option<OwnedSemaphorePermit>, io::Result<TcpStream>) {
    // Nobody closes the semaphore; were it closed, connections would come without a bound rather than not at all.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    let accepted = listener.accept().await.and_then(|(socket, _)| {
        // Frames are small and wait for each other; Nagle's delay would cost more than the packets it saves.
        socket.set_nodelay(true)?;
        Ok(socket)
    });
    (slot, accepted)
}

/// Serves one connection; holds its slot to the end.
async fn connection(hub: Arc<Hub>, socket: TcpStream, _slot: Option<OwnedSemaphorePermit>) {
    let limits = hub.limits;
    // A client speaks first. One that never does would hold its slot for ever.
    if !matches!(timeout(limits.first_frame, socket.peek(&mut [0])).await, Ok(Ok(1))) {
        return;
    }
    let streams = u32::try_from(limits.runs).unwrap_or(u32::MAX).saturating_add(8);
    let mut http = http2::Builder::new(Streams);
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(streams)
        .max_header_list_size(16 << 10)
        .initial_stream_window_size(1 << 20)
        // One session whose frames are not read must not stop the others of its coordinator.
        .initial_connection_window_size(16 << 20)
        .keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10));
    let conn = Arc::new(Connection::default());
    let worker = generated::WorkerServer::new(Rpc(Arc::clone(&hub)))
        .max_decoding_message_size(frame_bytes(&hub.host.describe()))
        .max_encoding_message_size(FRAME_BYTES_MAX);
    let service = {
        let conn = Arc::clone(&conn);
        service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(Arc::clone(&conn));
            let mut worker = worker.clone();
            // Only the stream's own task, which polls this, is under its kill.
            async move {
                if let Ok(kill) = KILL.try_with(Clone::clone) {
                    request.extensions_mut().insert(kill);
                }
                Ok::<_, Infallible>(worker.call(request).await.unwrap_or_else(|never| match never {}))
            }
        })
    };
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    // Also bounds a handshake that does not come to its end.
    let mut look = interval((limits.idle / 4).max(Duration::from_millis(1)));
    let mut stopped = hub.ended();
    if *stopped.borrow_and_update() {
        return;
    }
    let ended = loop {
        tokio::select! {
            ended = serving.as_mut() => break ended,
            _ = look.tick() => if conn.idle_for() > limits.idle {
                return;
            },
            // Nothing but the end is ever told.
            _ = stopped.changed() => {
                serving.as_mut().graceful_shutdown();
                // Bounded by the caller.
                break serving.await;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "worker: a connection broke off");
    }
}

tokio::task_local! {
    static KILL: Kill;
}

/// Ends a stream from outside, with a reset. A body that waits for a reader who does not read cannot end itself.
#[derive(Debug, Clone, Default)]
struct Kill(Arc<Notify>);

impl Kill {
    /// Follows a stream to its end, and resets it if nobody read what it said.
    async fn unless_heard(self, stream: impl Future<Output = Heard>) {
        if stream.await == Heard::No {
            self.0.notify_one();
        }
    }
}

/// Whether a stream's last frames were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Yes,
    No,
}

/// Runs the streams of a connection, each under its own [`Kill`].
#[derive(Debug, Clone, Copy)]
struct Streams;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let kill = Kill::default();
        tokio::spawn(KILL.scope(kill.clone(), async move {
            tokio::select! {
                () = stream => {}
                () = kill.0.notified() => {}
            }
        }));
    }
}

/// The generated trait on the hub.
struct Rpc(Arc<Hub>);

type Frames<T> = Pin<Box<ReceiverStream<Result<T, Status>>>>;

/// Longest frame a shard has use for: a chunk of activations of its model, but room for beats. Frames that never become
/// whole are held in memory, for every stream one.
fn frame_bytes(shard: &ShardInfo) -> usize {
    let chunk = u64::from(shard.chunk_max) * u64::from(shard.d_model) * 4 + (64 << 10);
    usize::try_from(chunk).unwrap_or(usize::MAX).clamp(1 << 20, FRAME_BYTES_MAX)
}

/// The connection that a call came on, as [`connection`] has put it there.
fn connection_of<T>(request: &Request<T>) -> Arc<Connection> {
    request.extensions().get::<Arc<Connection>>().cloned().unwrap_or_default()
}

#[tonic::async_trait]
impl generated::Worker for Rpc {
    type ControlStream = Frames<pb::ControlResponse>;
    type RunStream = Frames<pb::RunResponse>;

    async fn describe(
        &self,
        _: Request<pb::DescribeRequest>,
    ) -> Result<Response<pb::DescribeResponse>, Status> {
        let hub = &self.0;
        Ok(Response::new(pb::DescribeResponse {
            boot_id: hub.boot_id.0.to_vec(),
            shard: Some(convert::info_to(hub.host.describe())),
            backend: hub.backend.clone(),
        }))
    }

    async fn control(
        &self,
        request: Request<Streaming<pb::ControlRequest>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let conn = connection_of(&request);
        let kill = request.extensions().get::<Kill>().cloned().unwrap_or_default();
        let (out, frames) = mpsc::channel(QUEUE);
        let control = control::serve(Arc::clone(&self.0), conn.enter(), request.into_inner(), out);
        tokio::spawn(kill.unless_heard(control));
        Ok(Response::new(Box::pin(ReceiverStream::new(frames))))
    }

    async fn run(
        &self,
        request: Request<Streaming<pb::RunRequest>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let conn = connection_of(&request);
        let kill = request.extensions().get::<Kill>().cloned().unwrap_or_default();
        let (out, frames) = mpsc::channel(QUEUE);
        match Arc::clone(&self.0.runs).try_acquire_owned() {
            Ok(permit) => {
                let run = run::serve(Arc::clone(&self.0), conn.enter(), permit, request.into_inner(), out);
                tokio::spawn(kill.unless_heard(run));
            }
            Err(_) => {
                let full = AdapterError::Full("as many sessions as this worker takes are open".to_owned());
                let frame = pb::run_response::Frame::Failed(convert::failed_to(&full));
                // The queue is empty.
                let _ = out.try_send(Ok(pb::RunResponse { seq: 1, frame: Some(frame) }));
            }
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(frames))))
    }
}
