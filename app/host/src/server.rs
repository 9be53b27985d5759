//! Connections of clients: accepted, bounded, and closed in order.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use holdfast_app::grpc::{Accepted, serve_connections};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::{interval, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::host::Host;
use crate::intake::{Held, Metered};
use crate::tape::READER_GRACE;

/// Connections at a time; more wait in the backlog.
const CONNECTIONS_MAX: usize = 512;
/// Calls on one connection at a time.
const CALLS_MAX: u32 = 128;
/// Bytes of a call that arrive before they are read and counted.
const STREAM_WINDOW: u32 = 64 << 10;
/// Of all calls on one connection.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Longest wait for a connection's first byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// Longest wait for a connection's first call.
const FIRST_CALL: Duration = Duration::from_secs(15);
/// Longest life of a connection after its last call began: no stream lasts that long.
const IDLE: Duration = Duration::from_secs(READER_GRACE.as_secs() + 60);
/// Longest time from a call's headers to its stream: the message has to arrive, and its Start to be there.
const CALL: Duration = Duration::from_secs(60);
/// Time between two looks at what has to end.
const LOOK: Duration = Duration::from_secs(5);
/// Time between two questions whether a client is still there, and the longest wait for the answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Time for the last frames of streams when the host stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// Serves `host` on `listener` until `shutdown` resolves; then lets streams send what they have and closes.
pub async fn serve(host: &Host, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let connection = |accepted| connection(host.clone(), accepted);
    serve_connections(listener, CONNECTIONS_MAX, shutdown, ready(()), FAREWELL, connection).await;
}

/// Serves one connection; holds its slot to the end.
async fn connection(host: Host, Accepted { socket, mut stopped, slot: _slot }: Accepted) {
    // A client speaks first. One that never does would hold its slot for ever.
    if !matches!(timeout(FIRST_BYTE, socket.peek(&mut [0])).await, Ok(Ok(1))) {
        return;
    }
    let ends_at = Arc::new(Mutex::new(Instant::now() + FIRST_CALL));
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(CALLS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(16 << 10)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let service = {
        let ends_at = Arc::clone(&ends_at);
        let (calls, budget) = (host.service(), host.budget());
        service_fn(move |request: http::Request<hyper::body::Incoming>| {
            *ends_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + IDLE;
            let admitted = host.admit(request.uri().path(), request.headers());
            let (mut calls, budget) = (calls.clone(), budget.clone());
            async move {
                let rule = match admitted {
                    Ok(rule) => rule,
                    // The message is not read.
                    Err(status) => return Ok(status.into_http()),
                };
                // Held until the call has its answer.
                let held = Held::default();
                let request = request.map(|body| Metered::new(body, rule, budget, held.clone()));
                let answer = timeout(CALL, calls.call(request)).await;
                let late =
                    |_| Ok(Status::deadline_exceeded("the message did not arrive in time").into_http());
                let answer: Result<http::Response<Body>, Infallible> = answer.unwrap_or_else(late);
                answer
            }
        })
    };
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    let mut look = interval(LOOK);
    let ended = loop {
        tokio::select! {
            ended = serving.as_mut() => break ended,
            _ = look.tick() => {
                if Instant::now() > *ends_at.lock().unwrap_or_else(PoisonError::into_inner) {
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
