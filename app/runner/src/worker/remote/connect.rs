//! One connection to a worker: TCP, HTTP/2, and a Hello that was accepted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_client::WorkerClient;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::RemoteConfig;
use crate::adapter::ShardInfo;
use crate::worker::{BootId, FRAME_BYTES_MAX, convert};

/// Frames of one stream that wait to be sent.
pub(super) const QUEUE: usize = 16;

/// Why there is no connection to a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens there: the process is gone.
    #[error("{0}: connection refused")]
    NotListening(String),
    /// The machine or the network.
    #[error("{address}: {detail}")]
    Unreachable {
        /// The worker.
        address: String,
        /// What the system says.
        detail: String,
    },
    /// No answer in time.
    #[error("{0}: no answer in time")]
    Timeout(String),
    /// A coordinator of a higher generation was there.
    #[error("stale coordinator: the worker obeys generation {have}")]
    StaleCoordinator {
        /// Generation that the worker obeys.
        have: u64,
    },
    /// The worker serves another model.
    #[error("other model: {0}")]
    OtherModel(String),
    /// The worker holds other layers than it is said to.
    #[error("the worker holds layers {}..{}, not {}..{}", have.0, have.1, wanted.0, wanted.1)]
    OtherLayers {
        /// What it holds.
        have: (u32, u32),
        /// What was expected.
        wanted: (u32, u32),
    },
    /// The worker is about to exit.
    #[error("the worker is stopping")]
    Stopping,
    /// Another coordinator of the same generation said hello.
    #[error("another coordinator of the same generation took over")]
    Replaced,
    /// What answers is no worker, or is in disorder.
    #[error("no worker's answer: {0}")]
    Protocol(String),
}

/// A connection whose Hello was accepted.
pub(super) struct Connected {
    pub(super) client: WorkerClient<Channel>,
    pub(super) control: mpsc::Sender<pb::ControlRequest>,
    pub(super) inbound: Streaming<pb::ControlResponse>,
    pub(super) boot_id: BootId,
    pub(super) info: ShardInfo,
}

/// Gives its one socket once: a connection that broke is not replaced behind the caller's back.
struct Once(Option<TcpStream>);

impl Service<Uri> for Once {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection is gone");
        std::future::ready(self.0.take().map(TokioIo::new).ok_or_else(gone))
    }
}

/// Connects and says hello; bounded by `limits.connect`.
pub(super) async fn connect(config: &RemoteConfig) -> Result<Connected, ConnectError> {
    let connecting: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(connect_unbounded(config));
    let late = |_| ConnectError::Timeout(config.address.to_string());
    timeout(config.limits.connect, connecting).await.map_err(late)?
}

async fn connect_unbounded(config: &RemoteConfig) -> Result<Connected, ConnectError> {
    let address = config.address.to_string();
    let unreachable = |detail: String| ConnectError::Unreachable { address: address.clone(), detail };
    let socket =
        TcpStream::connect(config.address.authority()).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => ConnectError::NotListening(address.clone()),
            _ => unreachable(error.to_string()),
        })?;
    socket.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
    let endpoint = Endpoint::from_shared(address.clone())
        .map_err(|error| ConnectError::Protocol(error.to_string()))?
        .initial_stream_window_size(1 << 20)
        // One session whose frames are not read must not stop the others.
        .initial_connection_window_size(16 << 20)
        .http2_max_header_list_size(16 << 10)
        // Finds a half-open socket. Much sooner, the coordinator's own guard misses the worker's beats.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    let channel = endpoint
        .connect_with_connector(Once(Some(socket)))
        .await
        .map_err(|error| unreachable(chain(&error)))?;
    let mut client = WorkerClient::new(channel)
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(FRAME_BYTES_MAX);
    let failed = |status: Status| match status.code() {
        tonic::Code::Unknown | tonic::Code::Unavailable | tonic::Code::Cancelled => {
            unreachable(status.message().to_owned())
        }
        _ => ConnectError::Protocol(status.message().to_owned()),
    };
    let malformed = |error: convert::Malformed| ConnectError::Protocol(error.0);

    let model = match config.model {
        Some(model) => model,
        None => {
            let described = client.describe(pb::DescribeRequest {}).await.map_err(failed)?.into_inner();
            convert::info_from(described.shard).map_err(malformed)?.model_digest
        }
    };
    let (control, frames) = mpsc::channel(QUEUE);
    let hello = pb::Hello { generation: config.generation, model_digest: model.to_vec() };
    let hello = pb::ControlRequest { seq: 1, frame: Some(pb::control_request::Frame::Hello(hello)) };
    control.try_send(hello).map_err(|error| ConnectError::Protocol(error.to_string()))?;
    let mut inbound = client.control(ReceiverStream::new(frames)).await.map_err(failed)?.into_inner();
    let first = inbound.message().await.map_err(failed)?;
    let (seq, frame) = first.map(|first| (first.seq, first.frame)).unwrap_or_default();
    let ack = match frame {
        Some(pb::control_response::Frame::HelloAck(ack)) if seq == 1 => ack,
        Some(pb::control_response::Frame::Refused(refused)) => return Err(refusal(&refused)),
        _ => return Err(ConnectError::Protocol("the first frame is not HelloAck".to_owned())),
    };
    let info = convert::info_from(ack.shard).map_err(malformed)?;
    let boot_id = convert::boot_id(&ack.boot_id).map_err(malformed)?;
    if info.model_digest != model {
        return Err(ConnectError::OtherModel(hex::encode(info.model_digest)));
    }
    match config.address.layers() {
        Some(wanted) if wanted != info.layers => {
            return Err(ConnectError::OtherLayers { have: info.layers, wanted });
        }
        _ => {}
    }
    Ok(Connected { client, control, inbound, boot_id, info })
}

/// What a refusal of the worker means.
pub(super) fn refusal(refused: &pb::Refused) -> ConnectError {
    let detail = convert::cut(&refused.detail, 512).to_owned();
    match refused.reason() {
        pb::Refusal::StaleCoordinator => ConnectError::StaleCoordinator { have: refused.generation },
        pb::Refusal::OtherModel => ConnectError::OtherModel(detail),
        pb::Refusal::Stopping => ConnectError::Stopping,
        pb::Refusal::Replaced => ConnectError::Replaced,
        pb::Refusal::Malformed | pb::Refusal::Unspecified => ConnectError::Protocol(detail),
    }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
