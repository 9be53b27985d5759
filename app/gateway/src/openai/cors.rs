//! Cross-origin requests of browsers: refused by default, as a browser does when it is told nothing.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue};

const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, x-holdfast-escrow, x-holdfast-nonce, x-holdfast-executor, retry-after, x-should-retry, idempotent-replayed",
);
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST");
/// Any: a list would have to follow what the official clients send. `*` does not stand for `authorization`.
const HEADERS: HeaderValue = HeaderValue::from_static("authorization, *");
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// The origin of a request, if it is one of `allowed`.
pub(crate) fn origin(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    allowed.iter().any(|one| one.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

/// Lets the page of `origin` read the reply.
pub(crate) fn allow(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.insert(VARY, HeaderValue::from_static("origin"));
}

/// Answers the question that a browser asks before such a request.
pub(crate) fn preflight(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
}
