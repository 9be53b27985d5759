//! A wire that can be cut: a TCP relay between a coordinator and a worker.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the wire does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Carries everything.
    Whole,
    /// Carries nothing and closes nothing: each side sees an open socket that is silent.
    HalfOpen,
    /// Every connection is reset, new ones too.
    Cut,
}

/// A relay on a port of its own; gone when dropped.
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<watch::Sender<Wire>>,
    task: JoinHandle<()>,
}

/// Most connections at a time; a coordinator needs one.
const CONNECTIONS_MAX: usize = 64;
/// Longest wait for the other end.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Proxy {
    /// A whole wire to `target`, on a loopback port that the system picks.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(watch::Sender::new(Wire::Whole));
        let task = tokio::spawn(accept(listener, target, state.clone()));
        Ok(Self { addr, state, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes what the wire does from now on.
    pub fn set(&self, wire: Wire) {
        self.state.send_replace(wire);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: Arc<watch::Sender<Wire>>) {
    let mut relays = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) if relays.len() < CONNECTIONS_MAX => {
                    relays.spawn(relay(socket, target, state.subscribe()));
                }
                // Over the limit, or out of descriptors for a moment.
                Ok(_) => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = relays.join_next() => {}
        }
    }
}

async fn relay(near: TcpStream, target: SocketAddr, state: watch::Receiver<Wire>) {
    if *state.borrow() == Wire::Cut {
        let _ = near.set_zero_linger();
        return;
    }
    let far = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
        Ok(Ok(far)) => far,
        _ => return,
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let mut cut = state.clone();
    tokio::select! {
        () = one_way(&mut near_read, &mut far_write, state.clone()) => {}
        () = one_way(&mut far_read, &mut near_write, state) => {}
        _ = cut.wait_for(|wire| *wire == Wire::Cut) => {
            // A reset to both sides: no orderly end of what was written, which dropping the halves would make.
            for half in [near_write, far_write] {
                let _ = half.as_ref().set_zero_linger();
                half.forget();
            }
        }
    }
}

async fn one_way(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, mut state: watch::Receiver<Wire>) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        // A half-open wire takes nothing in either.
        if state.wait_for(|wire| *wire == Wire::Whole).await.is_err() {
            return;
        }
        let count = tokio::select! {
            count = from.read(&mut bytes) => match count {
                Ok(count @ 1..) => count,
                _ => return,
            },
            changed = state.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        if state.wait_for(|wire| *wire == Wire::Whole).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each byte with its successor.
    async fn successor() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while let Ok(byte) = socket.read_u8().await {
                        if socket.write_u8(byte + 1).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        addr
    }

    #[tokio::test]
    async fn a_wire_carries_goes_silent_carries_again_and_is_reset() {
        let proxy = Proxy::start(successor().await).await.unwrap();
        let mut socket = TcpStream::connect(proxy.addr()).await.unwrap();
        socket.write_u8(7).await.unwrap();
        assert_eq!(socket.read_u8().await.unwrap(), 8);

        proxy.set(Wire::HalfOpen);
        socket.write_u8(9).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(100), socket.read_u8()).await;
        assert!(silent.is_err(), "{silent:?}");

        proxy.set(Wire::Whole);
        assert_eq!(socket.read_u8().await.unwrap(), 10);

        proxy.set(Wire::Cut);
        let error = socket.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let mut again = TcpStream::connect(proxy.addr()).await.unwrap();
        assert!(again.read_u8().await.is_err());
    }
}
