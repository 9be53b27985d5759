//! The coordinator's end of one Run stream.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_proto::holdfast::runner::v1 as pb;
use pb::run_response::Frame as Answer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::Shared;
use super::connect::QUEUE;
use super::link::{Up, verdict};
use crate::adapter::{AdapterError, KvKey, Opened, ReleaseAck, StepOut, StepState, StopAck};
use crate::worker::convert::{self, Malformed};

type Waiter<T> = oneshot::Sender<Result<T, AdapterError>>;

/// Who waits for what on a stream. Answers of one kind come in the order of their questions.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) open: Option<Waiter<Opened>>,
    pub(super) step: Option<(u32, Waiter<StepOut>)>,
    pub(super) stops: VecDeque<Waiter<StopAck>>,
    pub(super) releases: VecDeque<Waiter<ReleaseAck>>,
    pub(super) queries: VecDeque<(u32, Waiter<StepState>)>,
}

/// One stream.
pub(super) struct Run {
    pub(super) id: u64,
    pub(super) pending: Pending,
    out: mpsc::Sender<pb::RunRequest>,
    seq: u64,
    reader: AbortHandle,
}

impl Run {
    /// Starts a stream; its first frame has to be Open.
    pub(super) fn start(shared: &Arc<Shared>, up: Up, key: KvKey, id: u64) -> Self {
        let (out, frames) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(read(Arc::clone(shared), up, key, id, frames)).abort_handle();
        Self { id, pending: Pending::default(), out, seq: 0, reader }
    }

    /// Queues a frame.
    pub(super) fn send(&mut self, frame: pb::run_request::Frame) -> Result<(), AdapterError> {
        let place = match self.out.try_reserve() {
            Ok(place) => place,
            Err(mpsc::error::TrySendError::Full(())) => {
                return Err(AdapterError::StreamReset("the worker does not read".to_owned()));
            }
            // The reader is about to say how it ended.
            Err(mpsc::error::TrySendError::Closed(())) => return Ok(()),
        };
        self.seq += 1;
        place.send(pb::RunRequest { seq: self.seq, frame: Some(frame) });
        Ok(())
    }

    /// Ends the stream; everybody who waits gets `error`. A stream that answered a release has nobody left.
    pub(super) fn fail(self, error: &AdapterError) {
        self.reader.abort();
        let Pending { open, step, stops, releases, queries } = self.pending;
        // Who gave up waiting needs no answer.
        if let Some(waiter) = open {
            let _ = waiter.send(Err(error.clone()));
        }
        if let Some((_, waiter)) = step {
            let _ = waiter.send(Err(in_flight(error)));
        }
        for waiter in stops {
            let _ = waiter.send(Err(error.clone()));
        }
        for waiter in releases {
            let _ = waiter.send(Err(error.clone()));
        }
        for (_, waiter) in queries {
            let _ = waiter.send(Err(error.clone()));
        }
    }
}

/// What the end of a stream means for a step in flight: the step may have happened, unless the key is known to be gone.
fn in_flight(error: &AdapterError) -> AdapterError {
    match error {
        AdapterError::Conflict(detail) => AdapterError::StreamReset(detail.clone()),
        other => other.clone(),
    }
}

/// How a stream ended.
enum Ended {
    /// The worker said why.
    Failed(AdapterError),
    /// Without a word: of the stream, or of the process.
    Broken,
}

async fn read(shared: Arc<Shared>, mut up: Up, key: KvKey, id: u64, frames: mpsc::Receiver<pb::RunRequest>) {
    let error = match follow(&shared, &mut up, key, id, frames).await {
        Ended::Failed(error) => error,
        Ended::Broken => verdict(&shared, &up).await,
    };
    shared.cut(key, id, &error);
}

fn disorder(what: impl Into<String>) -> Ended {
    Ended::Failed(AdapterError::StreamReset(format!("the worker's answer: {}", what.into())))
}

impl From<Malformed> for Ended {
    fn from(error: Malformed) -> Self {
        disorder(error.0)
    }
}

async fn follow(
    shared: &Shared,
    up: &mut Up,
    key: KvKey,
    id: u64,
    frames: mpsc::Receiver<pb::RunRequest>,
) -> Ended {
    let called = timeout(shared.config.limits.call, up.client.run(ReceiverStream::new(frames))).await;
    let mut inbound = match called {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(_)) => return Ended::Broken,
        Err(_) => return Ended::Failed(AdapterError::StreamReset("no stream in time".to_owned())),
    };
    let mut seq = 0;
    loop {
        let response = match inbound.message().await {
            Ok(Some(response)) => response,
            Ok(None) | Err(_) => return Ended::Broken,
        };
        seq += 1;
        if response.seq != seq {
            return disorder(format!("seq {} where {seq} is next", response.seq));
        }
        let Some(frame) = response.frame else { return disorder("a frame that says nothing") };
        if let Err(ended) = take(shared, key, id, frame) {
            return ended;
        }
    }
}

/// Gives an answer to whom it is for. One that nobody waits for is counted and dropped.
fn take(shared: &Shared, key: KvKey, id: u64, frame: Answer) -> Result<(), Ended> {
    let mut state = shared.lock();
    let Some(pending) = state.runs.get_mut(&key).filter(|run| run.id == id).map(|run| &mut run.pending)
    else {
        state.dropped += 1;
        return Ok(());
    };
    let heard = match frame {
        Answer::Failed(failed) => return Err(Ended::Failed(convert::failed_from(&failed))),
        // After an attach nobody waits for it.
        Answer::Opened(opened) => {
            let waiter = pending.open.take();
            waiter.is_none_or(|waiter| waiter.send(Ok(Opened { kv_len: opened.kv_len })).is_ok())
        }
        Answer::StepDone(ended) => match pending.step.take_if(|(step, _)| *step == ended.step) {
            Some((_, waiter)) => waiter.send(Ok(convert::out_from(ended.out)?)).is_ok(),
            None => false,
        },
        Answer::StepFailed(failed) => match pending.step.take_if(|(step, _)| *step == failed.step) {
            Some((_, waiter)) => {
                let failure = failed.failure.ok_or_else(|| disorder("a failure without a reason"))?;
                waiter.send(Err(convert::failed_from(&failure))).is_ok()
            }
            None => false,
        },
        Answer::StopAck(ack) => {
            let waiter = pending.stops.pop_front();
            waiter.is_some_and(|waiter| waiter.send(Ok(convert::stop_from(&ack))).is_ok())
        }
        Answer::ReleaseAck(ack) => {
            let ack = convert::release_from(&ack)?;
            pending.releases.pop_front().is_some_and(|waiter| waiter.send(Ok(ack)).is_ok())
        }
        Answer::StepState(reply) => match pending.queries.pop_front() {
            Some((step, waiter)) if step == reply.step => {
                waiter.send(Ok(convert::state_from(reply.state)?)).is_ok()
            }
            Some(_) => return Err(disorder("the state of another step")),
            None => false,
        },
    };
    if !heard {
        state.dropped += 1;
    }
    Ok(())
}
