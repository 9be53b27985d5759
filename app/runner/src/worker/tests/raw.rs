//! The stream protocol spoken frame by frame.

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_client::WorkerClient;
use pb::run_request::Frame as Ask;
use pb::run_response::Frame as Answer;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::super::convert;
use super::{Worker, plan, soon};
use crate::adapter::{AdapterError, BoundaryAdapter, Bundle, KvKey, StepRef};

/// A client of the stream protocol without manners of its own.
pub(super) struct Raw {
    pub(super) client: WorkerClient<Channel>,
    /// Keeps the control stream open.
    pub(super) control: mpsc::Sender<pb::ControlRequest>,
    pub(super) beats: Streaming<pb::ControlResponse>,
}

pub(super) struct RawRun {
    pub(super) out: mpsc::Sender<pb::RunRequest>,
    pub(super) inbound: Streaming<pb::RunResponse>,
    pub(super) seq: u64,
}

impl Raw {
    /// Connects; says hello as generation 1 unless told not to.
    pub(super) async fn connect(worker: &Worker) -> Self {
        Self::with_hello(worker, 1, worker.host.describe().model_digest.to_vec()).await.unwrap()
    }

    pub(super) async fn with_hello(
        worker: &Worker,
        generation: u64,
        model_digest: Vec<u8>,
    ) -> Result<Self, pb::Refused> {
        let mut client = WorkerClient::connect(format!("http://{}", worker.authority)).await.unwrap();
        let (control, frames) = mpsc::channel(16);
        let hello = pb::control_request::Frame::Hello(pb::Hello { generation, model_digest });
        control.send(pb::ControlRequest { seq: 1, frame: Some(hello) }).await.unwrap();
        let mut beats = client.control(ReceiverStream::new(frames)).await.unwrap().into_inner();
        match soon(beats.message()).await.unwrap().unwrap().frame.unwrap() {
            pb::control_response::Frame::HelloAck(_) => Ok(Self { client, control, beats }),
            pb::control_response::Frame::Refused(refused) => Err(refused),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn run(&mut self) -> RawRun {
        let (out, frames) = mpsc::channel(64);
        let inbound = soon(self.client.run(ReceiverStream::new(frames))).await.unwrap().into_inner();
        RawRun { out, inbound, seq: 0 }
    }

    /// A stream with its key open.
    pub(super) async fn open(&mut self, key: KvKey) -> RawRun {
        let mut run = self.run().await;
        run.send(open_frame(key)).await;
        assert!(matches!(run.next().await, Some(Answer::Opened(pb::Opened { kv_len: 0 }))));
        run
    }
}

pub(super) fn open_frame(key: KvKey) -> Ask {
    let (key, plan) = (Some(convert::key_to(key)), Some(convert::plan_to(plan())));
    Ask::Open(pb::Open { key, plan, attach: false })
}

pub(super) fn attach_frame(key: KvKey) -> Ask {
    Ask::Open(pb::Open { key: Some(convert::key_to(key)), plan: None, attach: true })
}

pub(super) fn step_frame(at: StepRef, prefill: bool, bundle: Bundle) -> pb::Step {
    let bundle = Some(convert::bundle_to(bundle));
    pb::Step { step: at.step, fingerprint: at.fingerprint.to_vec(), prefill, bundle, deadline_ms: 0 }
}

impl RawRun {
    pub(super) async fn send(&mut self, frame: Ask) {
        self.seq += 1;
        let _ = self.out.send(pb::RunRequest { seq: self.seq, frame: Some(frame) }).await;
    }

    /// The next answer; `None` at the end, however it came.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        soon(self.inbound.message()).await.ok().flatten().map(|response| response.frame.unwrap())
    }

    /// The refusal that ends the stream.
    pub(super) async fn refused(&mut self) -> AdapterError {
        match self.next().await {
            Some(Answer::Failed(failed)) => {
                assert!(self.next().await.is_none(), "nothing follows a refusal");
                convert::failed_from(&failed)
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
}
