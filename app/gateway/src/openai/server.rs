//! Connections of clients: HTTP/1.1, accepted, bounded, and closed in order.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_app::grpc::accept;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::patience::Patience;
use super::routes::Api;

/// Pause after a failed accept: out of file descriptors is the usual cause, and it does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `api` on `listener` until `shutdown` resolves. Then takes no more requests, lets answers under way end for up to
/// [`Limits::drain`](super::Limits::drain), and closes what is left: those clients count as gone.
pub async fn serve(api: Arc<Api>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let limits = api.config.limits;
    let slots = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            (slot, accepted) = accept(&listener, &slots) => match accepted {
                Ok(socket) => {
                    connections.spawn(connection(Arc::clone(&api), socket, stopped.clone(), slot));
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
    let closed = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.drain, closed).await.is_err() {
        tracing::warn!(connections = connections.len(), "closing connections with answers under way");
        connections.shutdown().await;
    }
}

/// Serves one connection; holds its slot to the end.
async fn connection(
    api: Arc<Api>,
    socket: TcpStream,
    mut stopped: watch::Receiver<()>,
    _slot: Option<OwnedSemaphorePermit>,
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
