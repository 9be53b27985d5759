//! Connections of clients: HTTP/1.1, accepted, bounded, and closed in order.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::errors::ApiError;
use super::patience::Patience;
use super::routes::Api;

/// Pause after a failed accept: out of file descriptors is the usual cause, and it does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that are told at a time that there are too many; more are closed without a word.
const TURNED_AWAY: usize = 32;
/// Longest time for clients to take that their answer was ended.
pub const LAST_WORD: Duration = Duration::from_secs(2);
/// Longest time to tell one.
const TURN_AWAY: Duration = Duration::from_secs(1);

/// Serves `api` on `listener` until `shutdown` resolves. Then takes no more requests, and lets answers under way end for up
/// to [`Limits::drain`](super::Limits::drain). Then awaits `ending`, which ends them at the backend, so that each client
/// is told; who does not take that in two seconds is closed.
pub async fn serve(
    api: Arc<Api>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
    ending: impl Future<Output = ()>,
) {
    let limits = api.config.limits;
    let slots = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let doors = Arc::new(Semaphore::new(TURNED_AWAY));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    // Frames are small and wait for each other. A socket that is gone already says so when it is read.
                    let _ = socket.set_nodelay(true);
                    if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
                        connections.spawn(connection(Arc::clone(&api), socket, stopped.clone(), slot));
                    } else if let Ok(door) = Arc::clone(&doors).try_acquire_owned() {
                        // In the backlog it would wait for others to leave, without an end.
                        connections.spawn(turn_away(socket, door));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    drop(stopped);
    // Fails only when no connection is left to hear it.
    let _ = stop.send(());
    if timeout(limits.drain, closed(&mut connections)).await.is_ok() {
        return;
    }
    tracing::warn!(connections = connections.len(), "ending answers under way");
    ending.await;
    let _ = timeout(LAST_WORD, closed(&mut connections)).await;
    connections.shutdown().await;
}

async fn closed(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// Serves one connection; holds its slot to the end.
async fn connection(
    api: Arc<Api>,
    socket: TcpStream,
    mut stopped: watch::Receiver<()>,
    _slot: OwnedSemaphorePermit,
) {
    let limits = api.config.limits;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_header_size(limits.head.0)
        .max_headers(limits.head.1);
    let service = service_fn(move |request: Request<Incoming>| {
        let api = Arc::clone(&api);
        async move { Ok::<_, Infallible>(api.answer(request).await) }
    });
    let socket = TokioIo::new(Patience::new(socket, limits.write_time));
    let mut serving = pin!(http.serve_connection(socket, service));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        // Nothing but the end is ever told.
        _ = stopped.changed() => {
            serving.as_mut().graceful_shutdown();
            // Bounded by the caller.
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// Answers the first request with 503 and closes.
async fn turn_away(socket: TcpStream, _door: OwnedSemaphorePermit) {
    let service = service_fn(|_: Request<Incoming>| async {
        let error = ApiError::too_many_connections();
        let mut response = http::Response::new(Full::new(Bytes::from(error.body())));
        *response.status_mut() = error.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok::<_, Infallible>(response)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).keep_alive(false).header_read_timeout(TURN_AWAY);
    // Whoever does not take it in time is closed as well.
    let _ = timeout(TURN_AWAY, http.serve_connection(TokioIo::new(socket), service)).await;
}
