//! Connections of hosts and operators: accepted, bounded, and closed in order.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use holdfast_app::grpc::{Accepted, serve_connections};
use holdfast_proto::FILE_DESCRIPTOR_SET;
use holdfast_proto::holdfast::gateway::v1::gateway_server::GatewayServer;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::{interval, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::service::Routes;

use super::Operators;
use crate::driver::Counted;

/// Calls on one connection at a time.
const CALLS_MAX: u32 = 64;
/// Longest message, bytes: there are no large ones.
const MESSAGE_MAX: usize = 64 << 10;
/// Longest wait for a connection's first byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// Longest life of a connection on which no call is open.
const IDLE: Duration = Duration::from_secs(60);
/// Longest time from a call's headers to the head of its answer.
const CALL: Duration = Duration::from_secs(30);
/// Time between two looks at what has to end.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two questions whether a client is still there, and the longest wait for the answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Time for the last frames of streams when the gateway stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// The descriptor set that reflection serves cannot be read: a defect of the build.
#[derive(Debug, thiserror::Error)]
#[error("reflection: {0}")]
pub struct ReflectionError(String);

/// Serves `operators` and reflection on `listener` until `shutdown` resolves; then lets streams send what they have and
/// closes.
///
/// # Errors
/// [`ReflectionError`], before the first connection.
pub async fn serve(
    operators: Operators,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ReflectionError> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .with_service_name("holdfast.gateway.v1.Gateway")
        .build_v1()
        .map_err(|error| ReflectionError(error.to_string()))?;
    let connections_max = operators.connections;
    let gateway = GatewayServer::new(operators)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(8 << 20);
    let routes = Routes::new(gateway).add_service(reflection).prepare();
    let connection = |accepted| connection(routes.clone(), accepted);
    serve_connections(listener, connections_max, shutdown, ready(()), FAREWELL, connection).await;
    Ok(())
}

/// Serves one connection; holds its slot to the end.
async fn connection(routes: Routes, Accepted { socket, mut stopped, slot: _slot }: Accepted) {
    // A client speaks first. One that never does would hold its slot for ever.
    if !matches!(timeout(FIRST_BYTE, socket.peek(&mut [0])).await, Ok(Ok(1))) {
        return;
    }
    let open = Arc::new(AtomicUsize::new(0));
    let quiet_since = Arc::new(Mutex::new(Instant::now()));
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(16 << 10)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let service = {
        let (open, quiet_since) = (Arc::clone(&open), Arc::clone(&quiet_since));
        service_fn(move |request: http::Request<hyper::body::Incoming>| {
            *quiet_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            let counted = Counted::new(&open);
            let mut routes = routes.clone();
            async move {
                let answer = timeout(CALL, routes.call(request)).await;
                let late = |_| Ok(Status::deadline_exceeded("the call took too long").into_http());
                let answer: Result<http::Response<Body>, Infallible> = answer.unwrap_or_else(late);
                answer.map(|answer| answer.map(|body| Open { body, _counted: counted }))
            }
        })
    };
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    let mut look = interval(LOOK);
    let ended = loop {
        tokio::select! {
            ended = serving.as_mut() => break ended,
            _ = look.tick() => {
                let mut quiet_since = quiet_since.lock().unwrap_or_else(PoisonError::into_inner);
                if open.load(Ordering::Relaxed) > 0 {
                    *quiet_since = Instant::now();
                } else if quiet_since.elapsed() > IDLE {
                    return;
                }
            }
            // Nothing but the end is ever told.
            _ = stopped.changed() => {
                serving.as_mut().graceful_shutdown();
                // Bounded by the caller.
                break serving.await;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// The body of an answer; its call counts as open until it is dropped.
struct Open {
    body: Body,
    _counted: Counted,
}

impl HttpBody for Open {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
