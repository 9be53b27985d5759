//! What commands ask of a node, as a trait: tests answer in its place.

use anyhow::Result;
use holdfast_proto::{Message, decode_strict, prost};

use super::error::{CliError, fail, one_line, refusal};

/// gRPC status: there is no such thing.
pub(crate) const NOT_FOUND: i32 = 5;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallFailure {
    /// gRPC status code; `None` when the node was not reached.
    pub(crate) status: Option<i32>,
    /// What was said.
    pub(crate) message: String,
}

impl CallFailure {
    /// The failure of a call of `path`, as the user sees it.
    pub(crate) fn refusal(&self, path: &str) -> CliError {
        let said = one_line(&self.message);
        match self.status {
            None => refusal(41, "--grpc-addr", format!("{said}; start a node, or give the address of one")),
            Some(code) => refusal(
                42,
                path.trim_start_matches('/'),
                format!("{said} (gRPC status {code} {})", status_name(code)),
            ),
        }
    }
}

/// Name of a gRPC status code.
fn status_name(code: i32) -> &'static str {
    const NAMES: [&str; 17] = [
        "ok",
        "cancelled",
        "unknown",
        "invalid argument",
        "deadline exceeded",
        "not found",
        "already exists",
        "permission denied",
        "resource exhausted",
        "failed precondition",
        "aborted",
        "out of range",
        "unimplemented",
        "internal",
        "unavailable",
        "data loss",
        "unauthenticated",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code)).copied().unwrap_or("of no known meaning")
}

/// A node.
pub(crate) trait Node {
    /// One call, at a height or at the last one.
    fn unary(&mut self, path: &str, request: &[u8], height: Option<i64>) -> Result<Vec<u8>, CallFailure>;
}

/// Connects to HOST:PORT.
pub(crate) type Connect<'a> = &'a dyn Fn(&str) -> Result<Box<dyn Node>>;

/// A typed call at the last height; the failure is left to the caller.
pub(crate) fn try_call<Q: Message, A: Message + prost::Name + Default>(
    node: &mut dyn Node,
    path: &str,
    request: &Q,
) -> Result<Result<A, CallFailure>> {
    match node.unary(path, &request.encode_to_vec(), None) {
        Ok(bytes) => {
            Ok(Ok(decode_strict(&bytes).map_err(|e| fail(47, path.trim_start_matches('/'), e.to_string()))?))
        }
        Err(failure) => Ok(Err(failure)),
    }
}

/// A typed call at the last height.
pub(crate) fn call<Q: Message, A: Message + prost::Name + Default>(
    node: &mut dyn Node,
    path: &str,
    request: &Q,
) -> Result<A> {
    Ok(try_call(node, path, request)?.map_err(|failure| failure.refusal(path))?)
}
