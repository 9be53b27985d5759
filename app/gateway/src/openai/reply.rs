//! From a run to the bytes of its answer, whole or streamed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::stream::unfold;
use holdfast_types::Hrp;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::backend::{Dispatch, Failure, FinishReason, Usage};
use super::errors::ApiError;
use super::idempotency::{REPLY_BYTES_MAX, Running, StoredReply};
use super::keys::Turn;
use super::parse::Endpoint;
use super::record::Record;
use super::run::{Run, Step};
use super::sse::{self, Reply};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// Bytes to a client.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;

/// A request that runs.
pub(crate) struct Task {
    pub(crate) run: Run,
    pub(crate) record: Record,
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    pub(crate) context_length: u32,
    pub(crate) include_usage: bool,
    pub(crate) running: Option<Running>,
    pub(crate) hrp: Hrp,
    /// Longest wait for the first text before the head of a stream goes out without it.
    pub(crate) head_after: Duration,
    /// Time between two comments.
    pub(crate) keep_alive: Duration,
    pub(crate) _held: Held,
}

/// What a request has until its last byte: its place among those of its key and of all, and its body's memory.
pub(crate) struct Held {
    pub(crate) _turn: Option<Turn>,
    pub(crate) _slot: OwnedSemaphorePermit,
    pub(crate) _memory: Option<OwnedSemaphorePermit>,
}

impl Task {
    /// Fixed with the first text; none before.
    fn reply(&mut self) -> Option<(Reply, Dispatch)> {
        let dispatch = self.run.dispatch()?;
        self.record.dispatch = Some(dispatch);
        let created = unix_ms() / 1000;
        Some((Reply::new(self.endpoint, dispatch, created, &self.model, self.include_usage), dispatch))
    }

    fn headers(&self, content_type: &str, dispatch: Option<Dispatch>) -> Vec<(String, String)> {
        let mut headers = vec![(CONTENT_TYPE.to_string(), content_type.to_owned())];
        if let Some(Dispatch { escrow, nonce, executor }) = dispatch {
            headers.push(("x-holdfast-escrow".into(), escrow.to_string()));
            headers.push(("x-holdfast-nonce".into(), nonce.to_string()));
            headers.push(("x-holdfast-executor".into(), executor.to_bech32(&self.hrp)));
        }
        headers
    }

    fn error(&self, failure: Failure) -> ApiError {
        ApiError::of(failure, self.endpoint.prompt_field(), self.context_length)
    }

    /// Waits for the whole answer.
    pub(crate) async fn whole(mut self) -> Result<Response<ReplyBody>, ApiError> {
        let mut text = String::new();
        loop {
            match self.run.step().await {
                Step::Text(piece) => {
                    self.record.first_text();
                    text.push_str(&piece);
                }
                Step::Failed(failure) => {
                    let error = self.error(failure);
                    self.record.end(error.status.as_u16(), error.code);
                    return Err(error);
                }
                Step::Done(reason, usage) => {
                    // A run ends well only after a dispatch.
                    let (reply, dispatch) = self.reply().ok_or_else(ApiError::internal)?;
                    let body = reply.whole(&text, reason, usage);
                    let headers = self.headers(JSON, Some(dispatch));
                    if let Some(running) = self.running.take() {
                        running.finish(headers.clone(), body.to_vec(), unix_ms());
                    }
                    self.record.end(200, reason.as_str());
                    return Ok(response(StatusCode::OK, &headers, full(body)));
                }
            }
        }
    }

    /// Waits for the first text, so that what fails before it still has its status; then streams.
    ///
    /// When nothing comes for a while the head goes out alone, and without the headers of a dispatch that may not be the
    /// last one; a failure is then told in the stream.
    pub(crate) async fn stream(mut self) -> Result<Response<ReplyBody>, ApiError> {
        let first = tokio::select! {
            step = self.run.step() => Some(step),
            () = sleep(self.head_after) => None,
        };
        if let Some(Step::Failed(failure)) = first {
            let error = self.error(failure);
            self.record.end(error.status.as_u16(), error.code);
            return Err(error);
        }
        let dispatch = first.as_ref().and_then(|_| self.run.dispatch());
        let headers = self.headers(EVENTS, dispatch);
        let kept = self.running.as_ref().map(|_| Vec::new());
        let mut stream = Stream { task: self, reply: None, waiting: VecDeque::new(), kept, ended: false };
        match first {
            Some(step) => stream.take(step),
            None => stream.waiting.push_back(sse::WAIT),
        }
        let frames = unfold(stream, |mut stream| async {
            let frame = stream.next().await?;
            Some((Ok(Frame::data(frame)), stream))
        });
        Ok(response(StatusCode::OK, &headers, StreamBody::new(frames).boxed_unsync()))
    }
}

/// A stream under way. Dropping it, as the server does when the client leaves, drops the run.
struct Stream {
    task: Task,
    reply: Option<(Reply, Dispatch)>,
    waiting: VecDeque<Bytes>,
    /// Frames so far, for the idempotency key.
    kept: Option<Vec<u8>>,
    ended: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            if self.ended {
                return None;
            }
            tokio::select! {
                step = self.task.run.step() => self.take(step),
                () = sleep(self.task.keep_alive) => return Some(sse::WAIT),
            }
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Text(text) => {
                self.task.record.first_text();
                self.open();
                let frame = self.reply.as_ref().map(|(reply, _)| reply.text(&text));
                self.send(frame);
            }
            Step::Done(reason, usage) => self.done(reason, usage),
            Step::Failed(failure) => {
                let error = self.task.error(failure);
                self.task.record.end(200, error.code);
                self.waiting.push_back(sse::error(&error));
                self.ended = true;
            }
        }
    }

    fn done(&mut self, reason: FinishReason, usage: Usage) {
        self.ended = true;
        self.open();
        // A run ends well only after a dispatch.
        let Some((reply, dispatch)) = &self.reply else {
            self.waiting.push_back(sse::error(&ApiError::internal()));
            return;
        };
        let (frames, dispatch) = (reply.closing(reason, usage), *dispatch);
        self.send(frames);
        self.send([sse::DONE]);
        // Kept before its last frames are handed to the socket.
        if let (Some(running), Some(kept)) = (self.task.running.take(), self.kept.take()) {
            running.finish(self.task.headers(EVENTS, Some(dispatch)), kept, unix_ms());
        }
        self.task.record.end(200, reason.as_str());
    }

    /// The first time, fixes what all frames share and sends the opening one.
    fn open(&mut self) {
        if self.reply.is_none() {
            self.reply = self.task.reply();
            let opening = self.reply.as_ref().and_then(|(reply, _)| reply.opening());
            self.send(opening);
        }
    }

    fn send(&mut self, frames: impl IntoIterator<Item = Bytes>) {
        for frame in frames {
            // One byte above the limit is enough for it not to be kept.
            if let Some(kept) = self.kept.as_mut().filter(|kept| kept.len() <= REPLY_BYTES_MAX) {
                kept.extend_from_slice(&frame);
            }
            self.waiting.push_back(frame);
        }
    }
}

/// A stored answer, byte for byte.
pub(crate) fn replay(stored: StoredReply) -> Response<ReplyBody> {
    let mut response = response(StatusCode::OK, &stored.headers, full(stored.body));
    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

/// An answer that is known as a whole.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<ReplyBody> {
    response(status, &[(CONTENT_TYPE.to_string(), JSON.into())], full(body))
}

/// Text for people and Prometheus.
pub(crate) fn plain(body: String) -> Response<ReplyBody> {
    response(StatusCode::OK, &[(CONTENT_TYPE.to_string(), "text/plain; version=0.0.4".into())], full(body))
}

/// An error, with the headers that belong to it.
pub(crate) fn error(error: &ApiError) -> Response<ReplyBody> {
    let mut response = json(error.status, error.body());
    let headers: &mut HeaderMap = response.headers_mut();
    if let Some(seconds) = error.retry_after_s {
        headers.insert(http::header::RETRY_AFTER, seconds.into());
    }
    if error.final_answer {
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    match error.status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The rest of the body is not read.
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
            headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

fn full(body: impl Into<Bytes>) -> ReplyBody {
    Full::new(body.into()).boxed_unsync()
}

fn response(status: StatusCode, headers: &[(String, String)], body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in headers {
        // All are made here, or were when they were stored; a store that brings others is not obeyed.
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Wall clock.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
