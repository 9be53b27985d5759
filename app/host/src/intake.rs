//! What may come in: a call is looked at by its headers first, and the bytes of all messages on their way in are counted
//! together.
//!
//! A message says how long it is in its first five bytes; one that is too long ends there. Room is taken for each frame as
//! it comes, so that nobody holds any by announcing bytes, and given back when the call has its answer. Whoever finds none
//! is sent away and does not wait: two half messages would wait for each other. So no number of connections and streams
//! makes this process hold more than the budget, and no connection more than its share.

// A status is what tonic's services return, however large it is.
#![allow(clippy::result_large_err)]

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_proto::holdfast::host::v1::escrow_error::Code as Cause;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::auth;
use crate::body::BODY_MAX;
use crate::wire;

/// Bytes of messages on their way in, of all connections.
pub const BUDGET: usize = 64 << 20;
/// Of these, bytes of one connection.
pub const SHARE: usize = BUDGET / 4;
/// Largest message with diffs or a prompt of a session (escrow-details 8).
pub const MESSAGE_MAX: usize = 8 << 20;
/// Largest message without either.
pub const SMALL_MAX: usize = 4 << 10;
/// What a Serve has beside its body.
const SERVE_MAX: usize = BODY_MAX + (1 << 10);
/// Unit of the budget, bytes: a semaphore counts no further than it must.
const UNIT: usize = 1 << 10;
/// When to try again if the budget is used up, milliseconds.
const RETRY_MS: u64 = 500;
/// In front of a message: a byte for compression, four for the length.
const PREFIX: usize = 5;

/// What a call may bring, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Largest message.
    limit: usize,
    /// Whether somebody must have signed the call. The others carry signed diffs.
    signed: bool,
}

/// The rule of a path; unknown methods get the narrowest.
pub(crate) fn rule(path: &str) -> Rule {
    match path.strip_prefix("/holdfast.host.v1.Host/") {
        Some("Serve") => Rule { limit: SERVE_MAX, signed: true },
        Some("Teach" | "Infer" | "VoteTimeout") => Rule { limit: MESSAGE_MAX, signed: false },
        Some("ChallengeStart") => Rule { limit: MESSAGE_MAX, signed: true },
        Some(_) => Rule { limit: SMALL_MAX, signed: true },
        None => Rule { limit: SMALL_MAX, signed: false },
    }
}

impl Rule {
    /// Whether the headers are such that the message is worth reading.
    ///
    /// # Errors
    /// UNAUTHENTICATED.
    pub(crate) fn admit(self, headers: &http::HeaderMap, now_ms: u64) -> Result<(), Box<Status>> {
        if !self.signed {
            return Ok(());
        }
        let metadata = MetadataMap::from_headers(headers.clone());
        let credential = metadata.get_bin(auth::METADATA).and_then(|value| value.to_bytes().ok());
        auth::check_form(credential.as_deref(), now_ms)
            .map_err(|error| Box::new(Status::unauthenticated(error.to_string())))
    }

    fn too_long(self, length: usize) -> Status {
        let text = format!("a message of {length} bytes; this call takes at most {}", self.limit);
        if self.limit == SERVE_MAX {
            return Status::invalid_argument(format!("body: at most {BODY_MAX} bytes: {text}"));
        }
        wire::status(pb::EscrowError {
            code: Cause::TooLarge.into(),
            limit: self.limit as u64,
            message: text,
            ..pb::EscrowError::default()
        })
    }
}

/// Room for messages: of all connections, and of one.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    connection: Arc<Semaphore>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(BUDGET / UNIT)), connection: Self::share() }
    }

    fn share() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(SHARE / UNIT))
    }

    /// The budget of a new connection.
    pub(crate) fn connection(&self) -> Self {
        Self { all: self.all.clone(), connection: Self::share() }
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.all.available_permits() * UNIT
    }
}

/// What one call holds of the budget; given back when dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Vec<OwnedSemaphorePermit>>>);

impl Held {
    /// Takes room; false if there is none.
    fn take(&self, budget: &Budget, units: usize) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(units) = u32::try_from(units) else { return false };
        for room in [&budget.connection, &budget.all] {
            let Ok(permit) = room.clone().try_acquire_many_owned(units) else { return false };
            match held.iter_mut().find(|held| Arc::ptr_eq(held.semaphore(), room)) {
                Some(held) => held.merge(permit),
                None => held.push(permit),
            }
        }
        true
    }
}

/// The body of a call, read within the budget.
pub(crate) struct Metered<B> {
    body: B,
    rule: Rule,
    budget: Budget,
    held: Held,
    prefix: [u8; PREFIX],
    seen: usize,
    /// Bytes that may still come.
    left: usize,
    /// Bytes that there is room for already.
    room: usize,
}

impl<B> Metered<B> {
    /// A body that is held in `held` while the call runs.
    pub(crate) fn new(body: B, rule: Rule, budget: Budget, held: Held) -> Self {
        Self { body, rule, budget, held, prefix: [0; PREFIX], seen: 0, left: PREFIX, room: 0 }
    }

    /// Counts a frame.
    fn count(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let mut rest = bytes;
        while self.seen < PREFIX {
            let Some((first, others)) = rest.split_first() else { break };
            if let Some(byte) = self.prefix.get_mut(self.seen) {
                *byte = *first;
            }
            self.seen += 1;
            self.left = self.left.saturating_sub(1);
            rest = others;
            if self.seen == PREFIX {
                let [_, a, b, c, d] = self.prefix;
                let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
                if length > self.rule.limit {
                    return Err(self.rule.too_long(length));
                }
                self.left = length;
            }
        }
        self.left = self
            .left
            .checked_sub(rest.len())
            .ok_or_else(|| Status::invalid_argument("more bytes than one message of the said length"))?;
        if rest.len() > self.room {
            let units = (rest.len() - self.room).div_ceil(UNIT);
            if !self.held.take(&self.budget, units) {
                return Err(wire::status(pb::EscrowError {
                    code: Cause::Unavailable.into(),
                    retry_after_ms: RETRY_MS,
                    message: "too many bytes on their way in; try again".into(),
                    ..pb::EscrowError::default()
                }));
            }
            self.room += units * UNIT;
        }
        self.room -= rest.len();
        Ok(())
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Metered<B>
where
    B::Error: std::fmt::Display,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Some(Err(Status::unavailable(format!("the call broke off: {error}")))));
            }
            Poll::Ready(Some(Ok(frame))) => frame,
        };
        let counted = frame.data_ref().map_or(Ok(()), |bytes| this.count(bytes));
        Poll::Ready(Some(counted.map(|()| frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use holdfast_app::keys::SecretKey;
    use tonic::Code;

    use super::*;

    struct Frames(VecDeque<Bytes>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    fn message(length: u32, sent: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![7; sent]);
        bytes
    }

    fn read(path: &str, bytes: &[u8], piece: usize, budget: &Budget, held: &Held) -> Result<usize, Status> {
        let frames = Frames(bytes.chunks(piece).map(Bytes::copy_from_slice).collect());
        let mut body = Metered::new(frames, rule(path), budget.clone(), held.clone());
        let mut total = 0;
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Ready(Some(frame)) => total += frame?.into_data().map_or(0, |bytes| bytes.len()),
                Poll::Ready(None) => return Ok(total),
                Poll::Pending => unreachable!(),
            }
        }
    }

    const SERVE: &str = "/holdfast.host.v1.Host/Serve";
    const TEACH: &str = "/holdfast.host.v1.Host/Teach";
    const PENDING: &str = "/holdfast.host.v1.Host/GetPending";

    #[test]
    fn thirty_messages_of_eight_megabytes_hold_no_more_than_the_share_of_their_connection() {
        let all = Budget::new();
        let length = u32::try_from(MESSAGE_MAX).unwrap();
        // All of each but its last byte arrives; then it hangs.
        let bytes = message(length, MESSAGE_MAX - 1);
        let hang = |budget: &Budget| {
            let held: Vec<Held> = (0..30).map(|_| Held::default()).collect();
            let taken = held.iter().filter(|held| read(TEACH, &bytes, 1 << 14, budget, held).is_ok()).count();
            (held, taken)
        };
        let one = all.connection();
        let (held, taken) = hang(&one);
        assert_eq!((taken, all.free()), (SHARE / MESSAGE_MAX, BUDGET - SHARE));
        let status = read(TEACH, &message(9_000, 9_000), 4_096, &one, &Held::default()).unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.metadata().get(wire::RETRY_AFTER).is_some());
        let others: Vec<_> = (0..5).map(|_| hang(&all.connection())).collect();
        assert_eq!(others.iter().map(|(_, taken)| taken).sum::<usize>(), (BUDGET - SHARE) / MESSAGE_MAX);
        assert_eq!(all.free(), 0);
        drop((held, others));
        assert_eq!(all.free(), BUDGET, "what was held is given back");
        let announced = Held::default();
        assert!(read(TEACH, &message(length, 1), 4, &one, &announced).is_ok());
        assert!(all.free() >= BUDGET - UNIT, "a length alone holds nothing");
    }

    #[test]
    fn a_message_is_refused_by_its_length_before_it_arrives_and_may_not_be_longer_than_it_said() {
        let budget = Budget::new();
        let held = Held::default();
        for (path, limit, code) in [
            (SERVE, SERVE_MAX, Code::InvalidArgument),
            (TEACH, MESSAGE_MAX, Code::ResourceExhausted),
            (PENDING, SMALL_MAX, Code::ResourceExhausted),
        ] {
            let above = u32::try_from(limit + 1).unwrap();
            for piece in [1, 3, 64] {
                let refused = read(path, &message(above, 20), piece, &budget, &held).unwrap_err();
                assert_eq!(refused.code(), code, "{path}");
            }
        }
        assert_eq!(budget.free(), BUDGET);
        for piece in [1, 5, 7, 100] {
            assert_eq!(read(PENDING, &message(90, 90), piece, &budget, &Held::default()).unwrap(), 95);
            let longer = read(PENDING, &message(90, 91), piece, &budget, &Held::default()).unwrap_err();
            assert_eq!(longer.code(), Code::InvalidArgument);
        }
        assert_eq!(read(PENDING, &[], 1, &budget, &held).unwrap(), 0);
    }

    #[test]
    fn a_call_that_must_be_signed_is_refused_by_its_headers() {
        let now = 1_700_000_000_000;
        let key = SecretKey::from_seed_label(b"intake", "caller");
        let good = auth::sign(&key, "c", 0, "Serve", &pb::ServeRequest::default(), now);
        let headers = |bytes: Option<&[u8]>| {
            let mut metadata = MetadataMap::new();
            if let Some(bytes) = bytes {
                metadata.insert_bin(auth::METADATA, tonic::metadata::MetadataValue::from_bytes(bytes));
            }
            metadata.into_headers()
        };
        assert!(rule(SERVE).admit(&headers(Some(&good)), now).is_ok());
        assert!(rule(TEACH).admit(&headers(None), now).is_ok(), "its diffs are signed");
        let mut garbled = http::HeaderMap::new();
        garbled.insert(auth::METADATA, http::HeaderValue::from_static("%%%"));
        for bad in [headers(None), headers(Some(&good[1..])), garbled] {
            for path in [SERVE, PENDING, "/holdfast.host.v1.Host/ChallengeStart"] {
                assert_eq!(rule(path).admit(&bad, now).unwrap_err().code(), Code::Unauthenticated);
            }
        }
        let late = rule(SERVE).admit(&headers(Some(&good)), now + auth::WINDOW_MS + 1).unwrap_err();
        assert_eq!(late.code(), Code::Unauthenticated);
    }
}
