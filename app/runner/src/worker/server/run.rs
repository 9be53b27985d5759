//! One Run stream: one key, opened or taken up, and its frames in order.
//!
//! ```text
//!          Open            Step            StepEnded, StepFailed
//!  (start) ────▶  Open  ──────────▶ Busy ────────────────────────▶ Open
//!     │            │  Stop, Release, QueryStep are answered in both; a Step while Busy is a conflict
//!     ▼            ▼
//!   Failed       ended; a key that is not released waits for a new stream, or the end of its lease
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use holdfast_proto::holdfast::runner::v1 as pb;
use pb::run_request::Frame as Ask;
use pb::run_response::Frame as Answer;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status, Streaming};

use super::Heard;
use super::hub::{End, Entered, Hub, InFlight, OnConnection, fenced, stopping};
use crate::adapter::{AdapterError, KvKey, Opened, ReleaseAck, StepOut, StepRef, StepState, StopAck};
use crate::worker::convert::{self, Malformed};

type Out = mpsc::Sender<Result<pb::RunResponse, Status>>;

/// Longest wait that a Step may ask for; a longer one is cut to it.
const STEP_MAX: Duration = Duration::from_secs(600);

/// Serves a stream to its end.
pub(super) async fn serve(
    hub: Arc<Hub>,
    conn: OnConnection,
    _permit: OwnedSemaphorePermit,
    inbound: Streaming<pb::RunRequest>,
    out: Out,
) -> Heard {
    let mut stream = Stream { hub: Arc::clone(&hub), inbound, out, given: 0, taken: 0, heard: Heard::Yes };
    let (key, mut entered) = match open(&hub, &conn, &mut stream).await {
        Ok(Some(opened)) => opened,
        Ok(None) => return stream.heard,
        Err(error) => {
            stream.fail(&error).await;
            return stream.heard;
        }
    };
    let mut session = Session { hub, key, id: entered.id, step: None, deadline: None, released: false };
    let ended = session.follow(&mut stream, &mut entered.end).await;
    // The key stays as it is for who takes it up on a new stream, until its lease ends.
    session.hub.leave(key, session.id);
    match ended {
        Ended::Broken => {}
        Ended::Failed(error) => stream.fail(&error).await,
        Ended::Late => {
            let late = Status::deadline_exceeded("the step did not end within its deadline");
            let _ = timeout(stream.hub.limits.slow_reader, stream.out.send(Err(late))).await;
        }
        Ended::Told(End::Gone) if session.released => {}
        Ended::Told(end) => {
            let error = match end {
                End::Replaced => AdapterError::StreamReset("a newer stream took the key over".to_owned()),
                End::Fenced(generation) => fenced(generation),
                End::Gone => AdapterError::LeaseExpired,
                End::Stopping => stopping(),
            };
            stream.fail(&error).await;
        }
    }
    stream.heard
}

struct Stream {
    hub: Arc<Hub>,
    inbound: Streaming<pb::RunRequest>,
    out: Out,
    given: u64,
    taken: u64,
    heard: Heard,
}

/// The reader is gone or does not read.
struct Unheard;

impl Stream {
    /// The next frame; `None` when the stream is over. What cannot be understood is an error, for this stream alone.
    async fn take(&mut self) -> Result<Option<Ask>, AdapterError> {
        let request = match self.inbound.message().await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(None),
            // A message too long, or bytes that are none.
            Err(status) if matches!(status.code(), Code::OutOfRange | Code::Internal) => {
                return Err(AdapterError::MalformedBundle(format!("frame: {}", status.message())));
            }
            Err(_) => return Ok(None),
        };
        self.taken += 1;
        if request.seq != self.taken {
            return Err(conflict(format!("seq {} where {} is next", request.seq, self.taken)));
        }
        request.frame.map(Some).ok_or_else(|| conflict("a frame that asks nothing"))
    }

    async fn give(&mut self, frame: Answer) -> Result<(), Unheard> {
        self.given += 1;
        let response = pb::RunResponse { seq: self.given, frame: Some(frame) };
        match timeout(self.hub.limits.slow_reader, self.out.send(Ok(response))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                self.heard = Heard::No;
                Err(Unheard)
            }
        }
    }

    async fn fail(&mut self, error: &AdapterError) {
        // Whether it is heard makes no difference: the stream ends.
        let _ = self.give(Answer::Failed(convert::failed_to(error))).await;
    }
}

fn conflict(detail: impl Into<String>) -> AdapterError {
    AdapterError::Conflict(detail.into())
}

fn not_understood(error: Malformed) -> AdapterError {
    AdapterError::MalformedBundle(error.0)
}

/// Waits for Open and does it. `None`: the stream ended before.
async fn open(
    hub: &Arc<Hub>,
    conn: &OnConnection,
    stream: &mut Stream,
) -> Result<Option<(KvKey, Entered)>, AdapterError> {
    let first = timeout(hub.limits.first_frame, stream.take()).await;
    let open = match first.map_err(|_| conflict("no Open in time"))?? {
        Some(Ask::Open(open)) => open,
        Some(_) => return Err(conflict("the first frame is not Open")),
        None => return Ok(None),
    };
    let key = open.key.as_ref().ok_or_else(|| conflict("Open without a key"))?;
    let key = convert::key_from(key).map_err(not_understood)?;
    let entered = hub.enter(conn, key)?;
    let opened = if open.attach { attach(hub, key).await } else { begin(hub, key, open.plan).await };
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) => {
            hub.leave(key, entered.id);
            return Err(error);
        }
    };
    hub.opened(key, entered.id);
    if stream.give(Answer::Opened(pb::Opened { kv_len: opened.kv_len })).await.is_err() {
        hub.leave(key, entered.id);
        return Ok(None);
    }
    Ok(Some((key, entered)))
}

async fn begin(hub: &Hub, key: KvKey, plan: Option<pb::OpenPlan>) -> Result<Opened, AdapterError> {
    let plan = plan.ok_or_else(|| conflict("Open without a plan"))?;
    let plan = convert::plan_from(&plan).map_err(not_understood)?;
    if let Some(trace) = plan.trace {
        tracing::info!(%trace, session = %key.session, epoch = key.epoch, "worker: opens a session");
    }
    hub.host.open(key, plan).await
}

async fn attach(hub: &Hub, key: KvKey) -> Result<Opened, AdapterError> {
    let usage = hub.host.usage();
    if let Some(held) = usage.keys.iter().find(|held| held.key == key) {
        return Ok(Opened { kv_len: held.rows });
    }
    // A fenced epoch says so itself.
    hub.host.query_step(key, 0).await?;
    Err(AdapterError::CacheMiss("the key is not open".to_owned()))
}

/// How a session's stream came to its end.
enum Ended {
    Broken,
    Failed(AdapterError),
    /// A step passed its deadline.
    Late,
    Told(End),
}

impl From<Unheard> for Ended {
    fn from(_: Unheard) -> Self {
        Self::Broken
    }
}

/// What a step gave, and the time it took.
type Computed = (Result<StepOut, AdapterError>, Duration);

struct Session {
    hub: Arc<Hub>,
    key: KvKey,
    id: u64,
    /// The step that this stream waits for.
    step: Option<(u32, oneshot::Receiver<Computed>)>,
    deadline: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
    released: bool,
}

/// Waits for what may not be there.
async fn there<F: Future + Unpin>(future: Option<&mut F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

impl Session {
    async fn follow(&mut self, stream: &mut Stream, end: &mut oneshot::Receiver<End>) -> Ended {
        let out = stream.out.clone();
        loop {
            let done = tokio::select! {
                biased;
                ended = &mut *end => return Ended::Told(ended.unwrap_or(End::Stopping)),
                () = out.closed() => return Ended::Broken,
                computed = there(self.step.as_mut().map(|(_, computed)| computed)) => {
                    self.answer(stream, computed.ok()).await
                }
                () = there(self.deadline.as_mut()) => return Ended::Late,
                frame = stream.take() => match frame {
                    Ok(Some(frame)) => self.handle(stream, frame).await,
                    Ok(None) => return Ended::Broken,
                    Err(error) => return Ended::Failed(error),
                },
            };
            if let Err(ended) = done {
                return ended;
            }
        }
    }

    /// Sends what a step gave; `None`: its task is gone with it.
    async fn answer(&mut self, stream: &mut Stream, computed: Option<Computed>) -> Result<(), Ended> {
        self.deadline = None;
        let Some((step, _)) = self.step.take() else { return Ok(()) };
        let lost = || (Err(AdapterError::Internal("the step was torn down".to_owned())), Duration::ZERO);
        let (result, took) = computed.unwrap_or_else(lost);
        let frame = match result {
            Ok(out) => Answer::StepDone(pb::StepEnded {
                step,
                out: Some(convert::out_to(out)),
                compute_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            }),
            Err(error) => step_failed(step, &error),
        };
        Ok(stream.give(frame).await?)
    }

    async fn handle(&mut self, stream: &mut Stream, frame: Ask) -> Result<(), Ended> {
        let host = Arc::clone(&self.hub.host);
        let key = self.key;
        let frame = match frame {
            Ask::Open(_) => return Err(Ended::Failed(conflict("a second Open"))),
            Ask::Step(step) => {
                let number = step.step;
                match self.begin(step) {
                    Ok(()) => return Ok(()),
                    Err(error) => step_failed(number, &error),
                }
            }
            Ask::Stop(stop) => {
                let ack = match host.stop(key, convert::cause_from(stop.cause)).await {
                    Ok(ack) => ack,
                    Err(AdapterError::StaleEpoch { .. }) => StopAck::Quiescent,
                    Err(error) => return Err(Ended::Failed(error)),
                };
                // A step that was taken but not begun yet counts as one that runs.
                let ack = match (ack, self.hub.step_of(key)) {
                    (StopAck::Quiescent, Some(step)) => StopAck::InFlight { step },
                    (ack, _) => ack,
                };
                Answer::StopAck(convert::stop_to(ack))
            }
            Ask::Release(release) => {
                let ack = match self.hub.step_of(key) {
                    Some(step) => {
                        let _ = host.stop(key, convert::cause_from(release.cause)).await;
                        Ok(ReleaseAck::Busy { step })
                    }
                    None => host.release(key, convert::cause_from(release.cause)).await,
                };
                let ack = match ack {
                    Ok(ack) => ack,
                    Err(AdapterError::StaleEpoch { .. }) => ReleaseAck::WasAbsent,
                    Err(error) => return Err(Ended::Failed(error)),
                };
                self.released |= !matches!(ack, ReleaseAck::Busy { .. });
                Answer::ReleaseAck(convert::release_to(ack))
            }
            Ask::QueryStep(query) => {
                let state = if self.hub.step_of(key).is_some_and(|step| step <= query.step) {
                    StepState::Unknown
                } else {
                    host.query_step(key, query.step).await.map_err(Ended::Failed)?
                };
                let state = Some(convert::state_to(state));
                Answer::StepState(pb::StepStateReply { step: query.step, state })
            }
        };
        Ok(stream.give(frame).await?)
    }

    /// Checks a Step and has it computed beside the stream, which goes on listening.
    fn begin(&mut self, step: pb::Step) -> Result<(), AdapterError> {
        let fingerprint = convert::digest("fingerprint", &step.fingerprint).map_err(not_understood)?;
        let bundle =
            step.bundle.ok_or_else(|| AdapterError::MalformedBundle("bundle: missing".to_owned()))?;
        let bundle = convert::bundle_from(bundle).map_err(not_understood)?;
        if let Some((running, _)) = &self.step {
            return Err(conflict(format!("step {running} is not answered yet")));
        }
        let guard = self.hub.begin(self.key, step.step)?;
        let (done, computed) = oneshot::channel();
        let (host, key) = (Arc::clone(&self.hub.host), self.key);
        let at = StepRef { step: step.step, fingerprint };
        let prefill = step.prefill;
        tokio::spawn(async move {
            let started = Instant::now();
            let work = async {
                if prefill { host.prefill(key, at, bundle).await } else { host.decode(key, at, bundle).await }
            };
            let result = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(step = at.step, "worker: the backend panicked");
                Err(AdapterError::Internal("the backend failed; the worker's log says where".to_owned()))
            });
            let took = started.elapsed();
            // Before the answer: the next step may follow on its heels.
            drop::<InFlight>(guard);
            // A stream that broke has nobody who listens.
            let _ = done.send((result, took));
        });
        self.step = Some((step.step, computed));
        self.deadline = (step.deadline_ms > 0)
            .then(|| Box::pin(sleep(Duration::from_millis(step.deadline_ms).min(STEP_MAX))));
        Ok(())
    }
}

fn step_failed(step: u32, error: &AdapterError) -> Answer {
    let mutated = if error.is_uncertain() { pb::Mutated::Unspecified } else { pb::Mutated::No };
    Answer::StepFailed(pb::StepFailed {
        step,
        failure: Some(convert::failed_to(error)),
        mutated: mutated as i32,
    })
}
