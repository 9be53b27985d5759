//! The server: accepts connections, sends each call to where it belongs, stops cleanly.

// See wire.rs.
#![allow(clippy::result_large_err)]

use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::pb::v1::server_reflection_server::ServerReflectionServer;
use tower::Service;

use super::accept::{Accepted, serve_connections};
use super::reflection::{Descriptors, Reflection};
use super::wire::{Outgoing, Room, frame, receive};
use super::{GrpcBackend, GrpcLimits, GrpcReply, GrpcServeError, HEIGHT_HEADER, status};

const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION_V1: &str = "/grpc.reflection.v1.ServerReflection/";
const REFLECTION_V1ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";
const REFLECTION_METHOD: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// What every HTTP/2 client sends first (RFC 9113, 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Time between two questions whether a client is still there, and the longest wait for the answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Longest message to health and reflection, in bytes: they take names.
const NAME_BYTES: usize = 64 << 10;

/// Serves `backend`, reflection and health on `listener` until `shutdown` resolves, with the default [`GrpcLimits`].
/// Then takes no more calls, lets those under way end for up to [`GrpcLimits::drain_timeout`], and closes what is left.
/// A blocking call that is still running then ends on its own; its answer goes nowhere.
///
/// # Errors
/// [`GrpcServeError`], before the first connection; a failing connection ends alone.
pub async fn serve(
    listener: TcpListener,
    backend: Arc<dyn GrpcBackend>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GrpcServeError> {
    serve_with(listener, backend, GrpcLimits::default(), shutdown).await
}

/// [`serve`] with other limits.
///
/// # Errors
/// As [`serve`]; also a limit that would let no call through.
pub async fn serve_with(
    listener: TcpListener,
    backend: Arc<dyn GrpcBackend>,
    limits: GrpcLimits,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GrpcServeError> {
    check(&limits)?;
    let server = Arc::new(Server::new(backend, limits).await?);
    let calls = Arc::clone(&server);
    let connection = move |accepted| connection(Arc::clone(&calls), accepted);
    let closing = server.stop_serving();
    let cut = serve_connections(
        listener,
        limits.max_connections,
        shutdown,
        closing,
        limits.drain_timeout,
        connection,
    )
    .await;
    if cut > 0 {
        tracing::warn!(connections = cut, "gRPC: closed connections with calls under way");
    }
    Ok(())
}

/// Destructured in full, so that a new limit forces a decision here.
fn check(limits: &GrpcLimits) -> Result<(), GrpcServeError> {
    let GrpcLimits {
        max_request_bytes,
        max_arriving_bytes,
        max_connections,
        max_streams,
        max_blocking,
        // None in line is a choice.
        max_waiting: _,
        handshake_timeout,
        receive_timeout,
        idle_timeout,
        // No wait is a choice.
        drain_timeout: _,
    } = *limits;
    let limit = |field, problem| Err(GrpcServeError::Limit { field, problem });
    if max_request_bytes == 0 {
        return limit("max_request_bytes", "must be at least 1");
    }
    if max_arriving_bytes < max_request_bytes {
        return limit("max_arriving_bytes", "must be at least max_request_bytes");
    }
    if max_connections == 0 {
        return limit("max_connections", "must be at least 1");
    }
    if max_streams == 0 {
        return limit("max_streams", "must be at least 1");
    }
    if max_blocking == 0 {
        return limit("max_blocking", "must be at least 1");
    }
    if handshake_timeout.is_zero() {
        return limit("handshake_timeout", "must be above zero");
    }
    if receive_timeout.is_zero() {
        return limit("receive_timeout", "must be above zero");
    }
    if idle_timeout.is_zero() {
        return limit("idle_timeout", "must be above zero");
    }
    Ok(())
}

/// Serves one connection; holds its slot to the end.
async fn connection(server: Arc<Server>, Accepted { socket, mut stopped, slot: _slot }: Accepted) {
    let limits = server.limits;
    let (mut reading, writing) = socket.into_split();
    // A client speaks first. One that never does would hold its slot for ever.
    let began = tokio::select! {
        began = tokio::time::timeout(limits.handshake_timeout, preface(&mut reading)) => began.unwrap_or(false),
        _ = stopped.changed() => false,
    };
    if !began {
        return;
    }
    let socket = tokio::io::join(PREFACE.as_slice().chain(reading), writing);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20)
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    let calls = Arc::new(Calls::default());
    let counted = Arc::clone(&calls);
    let service = service_fn(move |request| {
        let (server, open) = (Arc::clone(&server), Open::new(&counted));
        async move { Ok::<_, Infallible>(server.answer(request).await.map(|body| Counted { body, _open: open })) }
    });
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        _ = stopped.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = calls.idle(&limits) => {
            serving.as_mut().graceful_shutdown();
            // A client that does not agree to go is cut off, unless it began a call at this very moment.
            loop {
                match tokio::time::timeout(limits.drain_timeout, serving.as_mut()).await {
                    Ok(ended) => break ended,
                    Err(_) if calls.open.load(Ordering::Relaxed) == 0 => return,
                    Err(_) => {}
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "gRPC: a connection broke off");
    }
}

/// Reads the first bytes of a connection; `false` as soon as they are not those of HTTP/2.
async fn preface(reading: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut bytes = [0; PREFACE.len()];
    let mut filled = 0;
    while let Some(left) = bytes.get_mut(filled..).filter(|left| !left.is_empty()) {
        match reading.read(left).await {
            Ok(read) if read > 0 => filled = filled.saturating_add(read),
            _ => return false,
        }
        if PREFACE.get(..filled) != bytes.get(..filled) {
            return false;
        }
    }
    true
}

/// The calls of one connection.
#[derive(Debug, Default)]
struct Calls {
    /// Under way, to the last byte of the answer.
    open: AtomicUsize,
    /// Ever begun.
    begun: AtomicUsize,
}

impl Calls {
    /// Resolves when the connection has been without a call for too long.
    async fn idle(&self, limits: &GrpcLimits) {
        let (mut wait, mut before) = (limits.receive_timeout, 0);
        loop {
            tokio::time::sleep(wait).await;
            let begun = self.begun.load(Ordering::Relaxed);
            if begun == before && self.open.load(Ordering::Relaxed) == 0 {
                return;
            }
            (wait, before) = (limits.idle_timeout, begun);
        }
    }
}

/// One call that is under way.
struct Open(Arc<Calls>);

impl Open {
    fn new(calls: &Arc<Calls>) -> Self {
        calls.open.fetch_add(1, Ordering::Relaxed);
        calls.begun.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(calls))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer, whose call is open until it is sent or given up.
struct Counted {
    body: Outgoing,
    _open: Open,
}

impl Body for Counted {
    type Data = <Outgoing as Body>::Data;
    type Error = <Outgoing as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What all connections share.
struct Server {
    backend: Arc<dyn GrpcBackend>,
    limits: GrpcLimits,
    room: Room,
    /// Blocking calls that run.
    running: Arc<Semaphore>,
    /// Blocking calls that run or wait.
    admitted: Arc<Semaphore>,
    reflection: ServerReflectionServer<Reflection>,
    health: HealthServer<HealthService>,
    reporter: HealthReporter,
    descriptors: Arc<Descriptors>,
}

impl Server {
    async fn new(backend: Arc<dyn GrpcBackend>, limits: GrpcLimits) -> Result<Self, GrpcServeError> {
        let descriptors = Arc::new(Descriptors::new(&[
            holdfast_proto::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ])?);
        let reporter = HealthReporter::new();
        for service in descriptors.services() {
            reporter.set_service_status(service, ServingStatus::Serving).await;
        }
        let admitted = limits.max_blocking.saturating_add(limits.max_waiting);
        Ok(Self {
            backend,
            limits,
            room: Room::new(limits.max_arriving_bytes),
            running: Arc::new(Semaphore::new(limits.max_blocking.min(Semaphore::MAX_PERMITS))),
            admitted: Arc::new(Semaphore::new(admitted.min(Semaphore::MAX_PERMITS))),
            reflection: ServerReflectionServer::new(Reflection(Arc::clone(&descriptors)))
                .max_decoding_message_size(NAME_BYTES),
            health: HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
                .max_decoding_message_size(NAME_BYTES),
            reporter,
            descriptors,
        })
    }

    /// Tells those who watch the health of a service to go elsewhere.
    async fn stop_serving(&self) {
        for service in self.descriptors.services().chain([""]) {
            self.reporter.set_service_status(service, ServingStatus::NotServing).await;
        }
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response<Outgoing> {
        let path = request.uri().path();
        // One comparison for the calls that matter.
        if path.starts_with("/grpc.") {
            if path.starts_with(HEALTH) {
                return tonic(self.health.clone().call(request).await);
            }
            if path.starts_with(REFLECTION_V1) {
                return tonic(self.reflection.clone().call(request).await);
            }
            if path.starts_with(REFLECTION_V1ALPHA) {
                *request.uri_mut() = Uri::from_static(REFLECTION_METHOD);
                return tonic(self.reflection.clone().call(request).await);
            }
        }
        if let Some(refused) = refuse_http(&request) {
            return refused;
        }
        self.unary(request).await.unwrap_or_else(|status| status.into_http())
    }

    async fn unary(&self, request: Request<Incoming>) -> Result<Response<Outgoing>, Status> {
        let (head, body) = request.into_parts();
        let height = wanted_height(&head.headers)?;
        let receiving = receive(body, self.limits.max_request_bytes, Some(&self.room));
        let received =
            tokio::time::timeout(self.limits.receive_timeout, receiving).await.map_err(|_| {
                Status::deadline_exceeded(format!(
                    "the request did not arrive within {:?}",
                    self.limits.receive_timeout
                ))
            })??;
        let Some(message) = &received.message else {
            return Err(Status::invalid_argument("no request message: send one, which may be empty"));
        };
        let path = head.uri.path();
        let reply = if caught(path, || Ok(self.backend.is_blocking(path, height)))? {
            self.call_blocking(path, message, height).await?
        } else {
            caught(path, || self.backend.call(path, message, height).map_err(status))?
        };
        let body = frame(reply.value.len(), |out| out.extend_from_slice(&reply.value))?;
        let mut response = Response::new(Outgoing::Answer(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(HEIGHT_HEADER, HeaderValue::from(reply.height));
        Ok(response)
    }

    /// Both permits go with the call to its thread: a client that gives up frees its place in line, but not the thread
    /// that already works for it.
    async fn call_blocking(&self, path: &str, message: &Bytes, height: i64) -> Result<GrpcReply, Status> {
        let admitted = Arc::clone(&self.admitted)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many slow queries are waiting: try again later"))?;
        let running = Arc::clone(&self.running)
            .acquire_owned()
            .await
            .map_err(|_| Status::unavailable("the server is stopping"))?;
        let (backend, path, message) = (Arc::clone(&self.backend), path.to_owned(), message.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _permits = (admitted, running);
            caught(&path, || backend.call(&path, &message, height).map_err(status))
        });
        task.await.map_err(|_| Status::unavailable("the server is stopping"))?
    }
}

fn tonic(answered: Result<Response<tonic::body::Body>, Infallible>) -> Response<Outgoing> {
    let Ok(response) = answered;
    response.map(Outgoing::Tonic)
}

/// Runs `call`; a panic becomes `INTERNAL` and its text goes to the log only.
fn caught<T>(path: &str, call: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    // The backend is shared and stays in use: what a panic leaves behind its locks is the backend's to keep whole.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        tracing::error!(path, panic = panic_text(payload.as_ref()), "gRPC: the backend panicked");
        Err(Status::internal("the query failed inside the node; its log says where"))
    })
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// What is no gRPC call gets an HTTP status, as the gRPC specification has it.
fn refuse_http(request: &Request<Incoming>) -> Option<Response<Outgoing>> {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let suffix = kind.strip_prefix(b"application/grpc");
    let code = if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !suffix.is_some_and(|s| s.is_empty() || s.starts_with(b"+proto") || s.starts_with(b";")) {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = Response::new(Outgoing::Empty);
    *response.status_mut() = code;
    Some(response)
}

/// The height asked for; 0 is the latest.
fn wanted_height(headers: &HeaderMap) -> Result<i64, Status> {
    let mut values = headers.get_all(HEIGHT_HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(0);
    };
    if values.next().is_some() {
        return Err(Status::invalid_argument(format!("{HEIGHT_HEADER}: given more than once")));
    }
    let text = value.to_str().unwrap_or_default();
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten().ok_or_else(|| {
        Status::invalid_argument(format!(
            "{HEIGHT_HEADER}: must be a decimal height of at most {}, 0 for the latest",
            i64::MAX
        ))
    })
}
