//! The client: many unary calls at once over one HTTP/2 connection.

// See wire.rs.
#![allow(clippy::result_large_err)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use std::{error::Error, fmt};

use bytes::Bytes;
use holdfast_proto::Message;
use http::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::HEIGHT_HEADER;
use super::wire::{Outgoing, frame, receive};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for an answer, unless set.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer, in bytes.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// A connection to a gRPC server, without TLS. Cheap to clone; clones share the connection. Connects anew when a call
/// finds it closed.
#[derive(Clone)]
pub struct GrpcChannel {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    authority: Authority,
    sender: RwLock<SendRequest<Outgoing>>,
    /// Only one call at a time connects anew.
    connecting: tokio::sync::Mutex<()>,
}

impl fmt::Debug for GrpcChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcChannel").field("authority", &self.shared.authority).finish_non_exhaustive()
    }
}

impl GrpcChannel {
    /// Connects to `addr`: `host:port` or `http://host:port`. Needs a tokio runtime, as all calls do.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is none, `UNAVAILABLE` if nobody listens there.
    pub async fn connect(addr: &str) -> Result<Self, Status> {
        let authority = authority(addr)?;
        let sender = dial(&authority).await?;
        let shared =
            Shared { authority, sender: RwLock::new(sender), connecting: tokio::sync::Mutex::new(()) };
        Ok(Self { shared: Arc::new(shared), timeout: CALL_TIMEOUT })
    }

    /// The same connection with another bound on the time a call may take; the default is 60 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Calls the method at `path`, `/package.Service/Method`. `height` is the height to read from, `None` for the
    /// latest. Gives the response and the height it was read from, 0 if the server names none.
    ///
    /// # Errors
    /// The server's status; `UNAVAILABLE` when the connection fails, which leaves open whether the call was served;
    /// `DEADLINE_EXCEEDED` after the timeout; `INTERNAL` for an answer that is no gRPC.
    pub async fn unary<Req: Message, Resp: Message + Default>(
        &self,
        path: &str,
        request: &Req,
        height: Option<i64>,
    ) -> Result<(Resp, i64), Status> {
        // A message only fails to encode into a buffer that is too short; this one grows.
        let framed = frame(request.encoded_len(), |out| request.encode_raw(out))?;
        let (value, height) = self.call(path, framed, height).await?;
        let response =
            Resp::decode(value).map_err(|e| Status::internal(format!("{path}: the response: {e}")))?;
        Ok((response, height))
    }

    /// [`unary`](Self::unary) with messages as bytes.
    ///
    /// # Errors
    /// As `unary`.
    pub async fn unary_raw(
        &self,
        path: &str,
        request: &[u8],
        height: Option<i64>,
    ) -> Result<(Bytes, i64), Status> {
        let framed = frame(request.len(), |out| out.extend_from_slice(request))?;
        self.call(path, framed, height).await
    }

    async fn call(&self, path: &str, framed: Bytes, height: Option<i64>) -> Result<(Bytes, i64), Status> {
        let call = self.call_unbounded(path, framed, height);
        tokio::time::timeout(self.timeout, call).await.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "{path}: no answer from {} in {:?}",
                self.shared.authority, self.timeout
            )))
        })
    }

    async fn call_unbounded(
        &self,
        path: &str,
        framed: Bytes,
        height: Option<i64>,
    ) -> Result<(Bytes, i64), Status> {
        let request = self.request(path, framed, height)?;
        let mut sender = self.sender().await?;
        let response = sender.send_request(request).await.map_err(|e| self.unavailable(&e))?;
        let (head, body) = response.into_parts();
        // An error without a message comes with its status among the headers.
        if let Some(status) = Status::from_header_map(&head.headers)
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        if head.status != http::StatusCode::OK {
            return Err(http_status(head.status, path));
        }
        let height = head.headers.get(HEIGHT_HEADER);
        let height = height.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
        let received =
            receive(body, MAX_RESPONSE_BYTES, None).await.map_err(|status| match status.code() {
                // Broken framing is the caller's fault only when a server says so.
                Code::InvalidArgument => {
                    Status::internal(format!("{path}: the answer: {}", status.message()))
                }
                _ => status,
            })?;
        match received.trailers.as_ref().and_then(Status::from_header_map) {
            Some(status) if status.code() == Code::Ok => {}
            Some(status) => return Err(status),
            None => return Err(Status::internal(format!("{path}: the answer ended without a status"))),
        }
        let value = received
            .message
            .ok_or_else(|| Status::internal(format!("{path}: an answer without a message")))?;
        Ok((value, height))
    }

    fn request(&self, path: &str, framed: Bytes, height: Option<i64>) -> Result<Request<Outgoing>, Status> {
        let path_and_query = PathAndQuery::try_from(path).map_err(|e| {
            Status::invalid_argument(format!("path {path}: {e}; write /package.Service/Method"))
        })?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.shared.authority.clone());
        parts.path_and_query = Some(path_and_query);
        let uri =
            Uri::from_parts(parts).map_err(|e| Status::invalid_argument(format!("path {path}: {e}")))?;
        let mut request = Request::new(Outgoing::Message(framed));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("holdfast/", env!("CARGO_PKG_VERSION"))));
        if let Some(height) = height {
            headers.insert(HEIGHT_HEADER, HeaderValue::from(height));
        }
        Ok(request)
    }

    fn current(&self) -> SendRequest<Outgoing> {
        // Nothing panics while it is held, and a sender is whole at any time.
        self.shared.sender.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn sender(&self) -> Result<SendRequest<Outgoing>, Status> {
        let sender = self.current();
        if !sender.is_closed() {
            return Ok(sender);
        }
        let _connecting = self.shared.connecting.lock().await;
        // Another call may have connected while this one waited.
        let sender = self.current();
        if !sender.is_closed() {
            return Ok(sender);
        }
        let sender = dial(&self.shared.authority).await?;
        *self.shared.sender.write().unwrap_or_else(PoisonError::into_inner) = sender.clone();
        Ok(sender)
    }

    fn unavailable(&self, error: &hyper::Error) -> Status {
        Status::unavailable(format!("{}: {}", self.shared.authority, with_sources(error)))
    }
}

fn authority(addr: &str) -> Result<Authority, Status> {
    let rest = addr.strip_prefix("http://").unwrap_or(addr);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let parsed =
        rest.parse::<Authority>().ok().filter(|a| a.port_u16().is_some() && !a.as_str().contains('@'));
    parsed.ok_or_else(|| {
        Status::invalid_argument(format!("address {addr}: write host:port or http://host:port"))
    })
}

async fn dial(authority: &Authority) -> Result<SendRequest<Outgoing>, Status> {
    let unavailable =
        |what: String| Status::unavailable(format!("{authority}: {what}; is the node running?"));
    let connect = async {
        let socket = TcpStream::connect(authority.as_str()).await.map_err(|e| unavailable(e.to_string()))?;
        socket.set_nodelay(true).map_err(|e| unavailable(e.to_string()))?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20))
            .handshake(TokioIo::new(socket))
            .await
            .map_err(|e| unavailable(with_sources(&e)))?;
        // Ends when the last sender is gone or the server closes; its error reaches the calls under way.
        tokio::spawn(connection);
        Ok(sender)
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
    connected.unwrap_or_else(|_| Err(unavailable(format!("no connection in {CONNECT_TIMEOUT:?}"))))
}

/// hyper keeps the cause out of its text.
fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The code the gRPC specification gives to an answer that has an HTTP status and no gRPC status.
fn http_status(status: http::StatusCode, path: &str) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("{path}: the server answered HTTP {status}: is it a gRPC server?"))
}

/// Makes `calls` calls of `path` with `request`, `streams` of them under way at a time; gives the time they took
/// together. Measures what a call costs.
///
/// # Errors
/// The first failing call's.
pub async fn repeat_call(
    channel: &GrpcChannel,
    path: &'static str,
    request: Bytes,
    streams: usize,
    calls: u64,
) -> Result<Duration, Status> {
    let left = Arc::new(AtomicU64::new(calls));
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for _ in 0..streams.max(1) {
        tasks.spawn(stream_of_calls(channel.clone(), path, request.clone(), Arc::clone(&left)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| Status::internal(e.to_string()))??;
    }
    Ok(start.elapsed())
}

async fn stream_of_calls(
    channel: GrpcChannel,
    path: &'static str,
    request: Bytes,
    left: Arc<AtomicU64>,
) -> Result<(), Status> {
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    while take().is_ok() {
        channel.unary_raw(path, &request, None).await?;
    }
    Ok(())
}
