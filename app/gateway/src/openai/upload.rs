//! A request's body: bounded in bytes, in time, and over all clients together.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::errors::ApiError;

/// Unit of the memory that bodies share, bytes.
pub(crate) const UNIT: usize = 1024;
/// When to try again after too many at once, ms.
const AGAIN_MS: u64 = 1000;
/// Longest wait for a part of it.
const MEMORY_TIME: Duration = Duration::from_secs(2);
/// What is read and thrown away of a body that is not wanted, bytes: a sender that is cut off in the middle does not get to
/// read why.
const DISCARD_BYTES: usize = 16 << 20;
/// Longest time for that.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// A body, and its part of the shared memory.
pub(crate) struct Upload {
    pub(crate) bytes: Bytes,
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

/// Reads the JSON body of a request. What it refuses is left to be [`discard`]ed.
///
/// # Errors
/// 400 when it is not said to be JSON or breaks off, 408, 413, 429 when the bodies of others take all memory.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: &mut Incoming,
    limit: usize,
    time: Duration,
    memory: &Arc<Semaphore>,
) -> Result<Upload, ApiError> {
    check_type(headers)?;
    if body.size_hint().lower() > limit as u64 {
        return Err(ApiError::too_large(limit));
    }
    let read = timeout(time, collect(body, limit, memory)).await;
    read.map_err(|_| ApiError::slow_body())?
}

/// A page of another origin can send text without asking first, but not JSON.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::bad_field("Content-Type", "send application/json"));
    }
    match headers.get(CONTENT_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Err(ApiError::bad_field("Content-Encoding", "send the body as it is"))
        }
        _ => Ok(()),
    }
}

async fn collect(body: &mut Incoming, limit: usize, memory: &Arc<Semaphore>) -> Result<Upload, ApiError> {
    let mut bytes = BytesMut::new();
    let mut held: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::bad_request("the body broke off"))?;
        // Trailers say nothing here.
        let Ok(data) = frame.into_data() else { continue };
        let len = bytes.len().saturating_add(data.len());
        if len > limit {
            return Err(ApiError::too_large(limit));
        }
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let lack = u32::try_from(len.div_ceil(UNIT).saturating_sub(have)).unwrap_or(u32::MAX);
        if lack > 0 {
            let more = timeout(MEMORY_TIME, Arc::clone(memory).acquire_many_owned(lack)).await;
            let busy = |_| ApiError::rate_limit("too many bytes of requests at a time", AGAIN_MS);
            // Nobody closes the semaphore.
            let more = more.map_err(busy)?.map_err(|_| ApiError::internal())?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Upload { bytes: bytes.freeze(), memory: held })
}

/// Reads what is left of a body, within bounds, and throws it away.
pub(crate) async fn discard(headers: &HeaderMap, mut body: Incoming) {
    // A client that asks first has sent nothing yet, and is not told to.
    if body.is_end_stream() || headers.contains_key(EXPECT) {
        return;
    }
    let mut left = DISCARD_BYTES;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let len = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(len) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whatever was read: the answer is the same.
    let _ = timeout(DISCARD_TIME, reading).await;
}
