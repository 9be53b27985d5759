//! The connection to one start of a worker process, kept until the process is known to be gone.

use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_client::WorkerClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::Streaming;
use tonic::transport::Channel;

use super::Shared;
use super::connect::{self, ConnectError, Connected};
use crate::adapter::AdapterError;

/// Pause between two attempts to be back.
const RETRY: Duration = Duration::from_millis(100);
/// Longest wait for a sign that a connection still lives.
const PROBE: Duration = Duration::from_secs(1);

/// Where the connection stands.
#[derive(Debug, Clone)]
pub(super) enum Link {
    Up(Up),
    /// Being looked for; short.
    Broken,
    /// For good.
    Dead(AdapterError),
}

/// A connection that works, as far as is known.
#[derive(Debug, Clone)]
pub(super) struct Up {
    pub(super) client: WorkerClient<Channel>,
    pub(super) control: mpsc::Sender<pb::ControlRequest>,
    /// Counts connections to this start of the process.
    pub(super) incarnation: u64,
}

/// What senders need and what the link listens to.
pub(super) fn split(connected: Connected, incarnation: u64) -> (Up, Streaming<pb::ControlResponse>) {
    let Connected { client, control, inbound, .. } = connected;
    (Up { client, control, incarnation }, inbound)
}

/// Follows the connection until the process is gone.
pub(super) async fn follow(shared: Arc<Shared>, mut inbound: Streaming<pb::ControlResponse>) {
    let mut incarnation = 1;
    loop {
        let refused = listen(&shared, &mut inbound).await;
        // The stream's end, before the connection is looked for: the old one must not linger.
        drop(inbound);
        shared.link.send_replace(Link::Broken);
        match refused {
            Some(ConnectError::StaleCoordinator { have }) => return shared.die(stale(have)),
            // Coming back would only take turns with it.
            Some(ConnectError::Replaced) => {
                let twin = "stale coordinator: another one of this generation took the worker over";
                return shared.die(AdapterError::Internal(twin.to_owned()));
            }
            _ => {}
        }
        match back(&shared).await {
            Ok(connected) => {
                incarnation += 1;
                let (up, next) = split(connected, incarnation);
                inbound = next;
                shared.lock().control_seq = 1;
                shared.link.send_replace(Link::Up(up));
            }
            Err(error) => {
                tracing::info!(address = %shared.config.address, boot_id = %shared.boot_id, %error, "a worker is gone");
                shared.die(error);
                return;
            }
        }
    }
}

fn stale(have: u64) -> AdapterError {
    AdapterError::Internal(format!("stale coordinator: the worker obeys generation {have}"))
}

/// Takes the worker's beats until the stream breaks; gives the refusal if it ends with one.
async fn listen(shared: &Shared, inbound: &mut Streaming<pb::ControlResponse>) -> Option<ConnectError> {
    let mut seq = 1;
    loop {
        let response = tokio::select! {
            response = inbound.message() => response.ok()??,
            () = shared.suspect.notified() => return None,
        };
        seq += 1;
        if response.seq != seq {
            return None;
        }
        match response.frame? {
            pb::control_response::Frame::Beat(beat) => {
                let mut state = shared.lock();
                state.beat_ms = Some(shared.clock.now_ms());
                state.free_rows = Some(beat.free_rows);
            }
            pb::control_response::Frame::Refused(refused) => return Some(connect::refusal(&refused)),
            pb::control_response::Frame::HelloAck(_) => return None,
        }
    }
}

/// The same process again, or what it died of (runner-details 6).
async fn back(shared: &Shared) -> Result<Connected, AdapterError> {
    let death = |why: String| Err(AdapterError::WorkerDeath(why));
    let deadline = Instant::now() + shared.config.limits.reconnect;
    loop {
        match timeout_at(deadline, connect::connect(&shared.config)).await {
            Ok(Ok(connected)) if connected.boot_id == shared.boot_id => return Ok(connected),
            Ok(Ok(connected)) => {
                return death(format!("another process answers, boot {}", connected.boot_id.short()));
            }
            Ok(Err(ConnectError::StaleCoordinator { have })) => return Err(stale(have)),
            Ok(Err(ConnectError::Unreachable { .. } | ConnectError::Timeout(_)))
                if Instant::now() < deadline =>
            {
                sleep(RETRY).await;
            }
            Ok(Err(error)) => return death(error.to_string()),
            Err(_) => return death(format!("{}: not back in time", shared.config.address)),
        }
    }
}

/// What a Run stream that broke under `up` means: the stream alone, or the process. Bounded: by the probe, and by how
/// long the link may stay broken.
pub(super) async fn verdict(shared: &Shared, up: &Up) -> AdapterError {
    let reset = || AdapterError::StreamReset("the stream broke".to_owned());
    let mut link = shared.link.subscribe();
    if matches!(&*link.borrow_and_update(), Link::Up(now) if now.incarnation == up.incarnation) {
        let mut client = up.client.clone();
        match timeout(PROBE, client.describe(pb::DescribeRequest {})).await {
            // The connection lives, or is silent, which the coordinator's guard is there to find.
            Ok(Ok(_)) | Err(_) => return reset(),
            Ok(Err(_)) => {
                if matches!(&*shared.link.borrow(), Link::Up(now) if now.incarnation == up.incarnation) {
                    shared.suspect.notify_one();
                }
            }
        }
    }
    loop {
        match &*link.borrow_and_update() {
            Link::Up(now) if now.incarnation == up.incarnation => {}
            Link::Up(_) => return reset(),
            Link::Dead(error) => return error.clone(),
            Link::Broken => {}
        }
        if link.changed().await.is_err() {
            return reset();
        }
    }
}
