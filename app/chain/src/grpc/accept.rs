//! Connections of a gRPC server: accepted, bounded, and closed in order.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Pause after a failed accept: out of file descriptors is the usual cause, and it does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection to serve.
#[derive(Debug)]
pub struct Accepted {
    /// It.
    pub socket: TcpStream,
    /// Changes once, when the server stops.
    pub stopped: watch::Receiver<()>,
    /// Its place among the connections; to be held to its end.
    pub slot: Option<OwnedSemaphorePermit>,
}

/// Runs `connection` for each connection on `listener`, `connections_max` at a time, until `shutdown` resolves; more wait
/// in the backlog. Then accepts no more, awaits `closing`, tells the connections, and gives them `drain` to end. Returns
/// how many it cut off.
pub async fn serve_connections<F>(
    listener: TcpListener,
    connections_max: usize,
    shutdown: impl Future<Output = ()>,
    closing: impl Future<Output = ()>,
    drain: Duration,
    mut connection: impl FnMut(Accepted) -> F,
) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
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
                    connections.spawn(connection(Accepted { socket, stopped: stopped.clone(), slot }));
                }
                Err(error) => {
                    tracing::warn!(%error, "gRPC: a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    closing.await;
    drop(stopped);
    // Fails only when no connection is left to hear it.
    let _ = stop.send(());
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, drained).await.is_ok() {
        return 0;
    }
    let cut = connections.len();
    connections.shutdown().await;
    cut
}

/// A slot first, then a connection: with no slot free, connections wait in the listener's backlog. The slot goes with
/// the connection.
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
