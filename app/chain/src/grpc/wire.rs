//! Messages on an HTTP/2 stream: a flag byte (1 = compressed), the length as four bytes big-endian, the message.

// `tonic::Status` is what both ends of a call speak; boxing it here would only be undone at once.
#![allow(clippy::result_large_err)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, future};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::HeaderValue;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Flag and length.
pub(super) const PREFIX_BYTES: usize = 5;

/// Unit of the room for arriving messages: permits are taken as a `u32`, bytes might not fit.
const ROOM_UNIT: usize = 1024;

/// One message, its prefix before it. `write` gets a buffer with room for `len` bytes and must append exactly these.
pub(super) fn frame(len: usize, write: impl FnOnce(&mut Vec<u8>)) -> Result<Bytes, Status> {
    let prefix = u32::try_from(len).map_err(|_| {
        Status::resource_exhausted(format!("a message of {len} bytes: gRPC carries at most 2^32 - 1"))
    })?;
    let mut out = Vec::with_capacity(PREFIX_BYTES.saturating_add(len));
    out.push(0);
    out.extend_from_slice(&prefix.to_be_bytes());
    write(&mut out);
    debug_assert_eq!(out.len(), PREFIX_BYTES.saturating_add(len));
    Ok(out.into())
}

/// Room for messages that are still arriving, shared by all calls of a server.
#[derive(Clone)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    units: u32,
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let units = u32::try_from((bytes / ROOM_UNIT).clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self {
            free: Arc::new(Semaphore::new(usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS))),
            units,
        }
    }

    /// Never asks for more than there is, which would wait for ever.
    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX).min(self.units);
        let permit = Arc::clone(&self.free).acquire_many_owned(units).await;
        permit.map_err(|_| Status::unavailable("the server is stopping"))
    }
}

/// A stream read to its end.
pub(super) struct Received {
    /// The message, if one came.
    pub(super) message: Option<Bytes>,
    /// The trailers, if some came.
    pub(super) trailers: Option<HeaderMap>,
    /// Held as long as the message is.
    _room: Option<OwnedSemaphorePermit>,
}

/// Bytes so far. The usual message comes in one piece and is never copied.
enum Pieces {
    One(Bytes),
    Many(BytesMut),
}

impl Pieces {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::One(piece) => piece,
            Self::Many(pieces) => pieces,
        }
    }

    fn push(&mut self, piece: Bytes, expected: usize) {
        match self {
            Self::One(first) if first.is_empty() => *self = Self::One(piece),
            Self::One(first) => {
                let mut joined =
                    BytesMut::with_capacity(expected.max(first.len().saturating_add(piece.len())));
                joined.extend_from_slice(first);
                joined.extend_from_slice(&piece);
                *self = Self::Many(joined);
            }
            Self::Many(joined) => joined.extend_from_slice(&piece),
        }
    }

    fn finish(self) -> Bytes {
        match self {
            Self::One(piece) => piece,
            Self::Many(pieces) => pieces.freeze(),
        }
    }
}

/// Length of prefix and message together, once the prefix is there.
fn expected_len(bytes: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    let Some(&[flag, a, b, c, d]) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    match flag {
        0 => {}
        1 => return Err(Status::unimplemented("compressed message: send it with grpc-encoding: identity")),
        other => return Err(Status::invalid_argument(format!("message prefix: flag {other}, must be 0"))),
    }
    let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if len > limit {
        return Err(Status::resource_exhausted(format!("a message of {len} bytes: at most {limit}")));
    }
    Ok(Some(len.saturating_add(PREFIX_BYTES)))
}

/// Reads `body` to its end: at most one message of at most `limit` bytes. A message in several pieces first waits for
/// `room`, so that many slow senders cannot fill the memory.
pub(super) async fn receive<B>(mut body: B, limit: usize, room: Option<&Room>) -> Result<Received, Status>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    let mut pieces = Pieces::One(Bytes::new());
    let mut expected = None;
    let mut trailers = None;
    let mut held = None;
    // Ends with the stream; every piece adds at least a byte towards a bounded length or is an empty frame, which HTTP/2
    // itself limits.
    while let Some(frame) = future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|e| Status::unavailable(format!("the stream broke off: {e}")))?;
        let piece = match frame.into_data() {
            Ok(piece) => piece,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        pieces.push(piece, expected.unwrap_or(0));
        let have = pieces.as_slice().len();
        if expected.is_none() {
            expected = expected_len(pieces.as_slice(), limit)?;
            if let (Some(whole), Some(room)) = (expected, room)
                && have < whole
            {
                held = Some(room.take(whole).await?);
            }
        }
        if expected.is_some_and(|whole| have > whole) {
            return Err(Status::invalid_argument("bytes after the message: a unary call takes one message"));
        }
    }
    let have = pieces.as_slice().len();
    let message = match expected {
        None if have == 0 => None,
        Some(whole) if have == whole => Some(pieces.finish().slice(PREFIX_BYTES..)),
        _ => {
            return Err(Status::invalid_argument(format!(
                "the stream ended inside a message, after {have} bytes"
            )));
        }
    };
    Ok(Received { message, trailers, _room: held })
}

/// Body of a unary call, either way: at most one framed message, then the trailers; or what tonic's services answer.
#[derive(Default)]
pub(super) enum Outgoing {
    /// Nothing; a status sits in the headers.
    #[default]
    Empty,
    /// A message that ends the stream.
    Message(Bytes),
    /// A message, then `grpc-status: 0`.
    Answer(Bytes),
    /// `grpc-status: 0`.
    Ok,
    /// A stream of health or reflection.
    Tonic(tonic::body::Body),
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Self::Tonic(body) = this {
            return Pin::new(body).poll_frame(cx);
        }
        let (frame, next) = match std::mem::take(this) {
            Self::Message(message) => (Frame::data(message), Self::Empty),
            Self::Answer(message) => (Frame::data(message), Self::Ok),
            Self::Ok => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Self::Empty)
            }
            Self::Empty | Self::Tonic(_) => return Poll::Ready(None),
        };
        *this = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Message(_) | Self::Answer(_) | Self::Ok => false,
            Self::Tonic(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Tonic(body) => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}
