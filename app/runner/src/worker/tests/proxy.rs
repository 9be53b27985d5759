//! A network that can be cut.

use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Worker;

/// A way to the worker that can be cut.
pub(super) struct Proxy {
    pub(super) authority: String,
    /// Where new connections go.
    pub(super) target: Arc<Mutex<String>>,
    pub(super) cut: watch::Sender<()>,
}

impl Proxy {
    pub(super) async fn start(worker: &Worker) -> Self {
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

    pub(super) fn cut(&self) {
        self.cut.send_replace(());
    }
}
