//! One Control stream: Hello, then beats both ways.

use std::sync::Arc;
use std::time::Instant;

use holdfast_proto::holdfast::runner::v1 as pb;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Code, Status, Streaming};

use super::hub::{End, Hub, OnConnection, Refused};
use super::{Heard, TICK};
use crate::adapter::KvKey;
use crate::worker::convert;

type Out = mpsc::Sender<Result<pb::ControlResponse, Status>>;

/// Serves a stream to its end.
pub(super) async fn serve(
    hub: Arc<Hub>,
    conn: OnConnection,
    inbound: Streaming<pb::ControlRequest>,
    out: Out,
) -> Heard {
    let mut stream = Stream { inbound, out, given: 0, taken: 0, heard: Heard::Yes };
    let refused = match follow(&hub, &conn, &mut stream).await {
        Ok(()) => return stream.heard,
        Err(refused) => refused,
    };
    tracing::info!(reason = ?refused.reason, detail = refused.detail, "worker: a coordinator is refused");
    let frame = pb::control_response::Frame::Refused(pb::Refused {
        reason: refused.reason as i32,
        detail: refused.detail,
        generation: refused.generation,
    });
    stream.give(&hub, frame).await;
    stream.heard
}

struct Stream {
    inbound: Streaming<pb::ControlRequest>,
    out: Out,
    given: u64,
    taken: u64,
    heard: Heard,
}

fn malformed(detail: impl Into<String>) -> Refused {
    Refused::new(pb::Refusal::Malformed, detail)
}

impl Stream {
    /// The next frame; `None` at the end of the stream.
    async fn take(&mut self) -> Result<Option<pb::control_request::Frame>, Refused> {
        let request = match self.inbound.message().await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(None),
            // The connection went, which coordinators do all the time.
            Err(status) if matches!(status.code(), Code::Cancelled | Code::Unavailable | Code::Unknown) => {
                tracing::debug!(detail = status.message(), "worker: a coordinator's connection ended");
                return Ok(None);
            }
            Err(status) => return Err(malformed(status.message())),
        };
        self.taken += 1;
        if request.seq != self.taken {
            return Err(malformed(format!("seq {} where {} is next", request.seq, self.taken)));
        }
        request.frame.map(Some).ok_or_else(|| malformed("a frame that says nothing"))
    }

    fn number(&mut self, frame: pb::control_response::Frame) -> pb::ControlResponse {
        self.given += 1;
        pb::ControlResponse { seq: self.given, frame: Some(frame) }
    }

    /// Sends; false when the reader is gone or does not read.
    async fn give(&mut self, hub: &Hub, frame: pb::control_response::Frame) -> bool {
        let response = self.number(frame);
        let sent = matches!(timeout(hub.limits.slow_reader, self.out.send(Ok(response))).await, Ok(Ok(())));
        if !sent {
            self.heard = Heard::No;
        }
        sent
    }
}

async fn follow(hub: &Arc<Hub>, conn: &OnConnection, stream: &mut Stream) -> Result<(), Refused> {
    let first = timeout(hub.limits.first_frame, stream.take()).await;
    let hello = match first.map_err(|_| malformed("no Hello in time"))?? {
        Some(pb::control_request::Frame::Hello(hello)) => hello,
        Some(_) => return Err(malformed("the first frame is not Hello")),
        None => return Ok(()),
    };
    let model =
        convert::digest("model_digest", &hello.model_digest).map_err(|error| malformed(error.to_string()))?;
    let mut entered = hub.hello(conn, hello.generation, &model)?;
    tracing::info!(generation = hello.generation, "worker: obeys a coordinator");
    let ack = pb::control_response::Frame::HelloAck(pb::HelloAck {
        boot_id: hub.boot_id.0.to_vec(),
        shard: Some(convert::info_to(hub.host.describe())),
    });
    let ended = if stream.give(hub, ack).await { beats(hub, stream, &mut entered.end).await } else { Ok(()) };
    hub.leave_control(entered.id);
    ended
}

async fn beats(
    hub: &Arc<Hub>,
    stream: &mut Stream,
    end: &mut tokio::sync::oneshot::Receiver<End>,
) -> Result<(), Refused> {
    let mut steps = hub.steps();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let out = stream.out.clone();
    let mut full_since: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            ended = &mut *end => return match ended {
                Ok(End::Fenced(generation)) => Err(Refused {
                    reason: pb::Refusal::StaleCoordinator,
                    detail: format!("generation {generation} came"),
                    generation,
                }),
                Ok(End::Stopping) => Err(Refused::new(pb::Refusal::Stopping, "the worker is stopping")),
                Ok(End::Replaced) => {
                    Err(Refused::new(pb::Refusal::Replaced, "a newer control stream took over"))
                }
                Ok(End::Gone) | Err(_) => Ok(()),
            },
            () = out.closed() => return Ok(()),
            frame = stream.take() => match frame? {
                Some(pb::control_request::Frame::Beat(beat)) => {
                    let keys: Result<Vec<KvKey>, _> = beat.keys.iter().map(convert::key_from).collect();
                    hub.host.beat(&keys.map_err(|error| malformed(error.to_string()))?);
                    continue;
                }
                Some(pb::control_request::Frame::Hello(_)) => return Err(malformed("a second Hello")),
                None => return Ok(()),
            },
            changed = steps.changed() => if changed.is_err() { return Ok(()) },
            _ = tick.tick() => {}
        }
        steps.mark_unchanged();
        let counters = hub.host.counters();
        let beat = pb::control_response::Frame::Beat(pb::WorkerBeat {
            steps_done: counters.steps_done,
            busy: counters.busy.into_iter().map(convert::key_to).collect(),
            free_rows: counters.free_rows,
        });
        // A beat is worth only as much as the next one: with the queue full it is left out, and a reader that takes
        // none for long is gone.
        match out.try_reserve() {
            Ok(place) => {
                full_since = None;
                place.send(Ok(stream.number(beat)));
            }
            Err(mpsc::error::TrySendError::Full(())) => {
                let since = *full_since.get_or_insert_with(Instant::now);
                if since.elapsed() > hub.limits.slow_reader {
                    stream.heard = Heard::No;
                    return Ok(());
                }
            }
            Err(mpsc::error::TrySendError::Closed(())) => return Ok(()),
        }
    }
}
