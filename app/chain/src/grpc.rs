//! gRPC over HTTP/2: one server for every unary method, and the client that fits it.
//!
//! No server code is generated. A call's path `/package.Service/Method` and its request bytes go to a [`GrpcBackend`],
//! which answers with the response's bytes and the height of the state they were read from. A new query needs a line in
//! the backend and nothing here.
//!
//! ```text
//! socket → HTTP/2 → /grpc.health.v1.Health/…            tonic-health
//!                   /grpc.reflection.{v1,v1alpha}.…     the descriptors of holdfast-proto, byte for byte
//!                   anything else → unframe → GrpcBackend::call → frame
//!                                             on the connection's worker, or on the blocking pool if is_blocking
//! ```
//!
//! | condition | status |
//! |---|---|
//! | [`HEIGHT_HEADER`] is not a decimal from 0 to 2^63 - 1, or is given twice | `INVALID_ARGUMENT` |
//! | no message, several messages, a length that does not match | `INVALID_ARGUMENT` |
//! | message above [`GrpcLimits::max_request_bytes`] | `RESOURCE_EXHAUSTED` |
//! | [`GrpcLimits::max_waiting`] blocking calls wait already | `RESOURCE_EXHAUSTED` |
//! | message not whole within [`GrpcLimits::receive_timeout`] | `DEADLINE_EXCEEDED` |
//! | compressed message, or a path the backend does not know | `UNIMPLEMENTED` |
//! | the backend panics | `INTERNAL`; the server lives on |
//! | the backend's [`QueryError`] | by its kind, see [`status`] |
//!
//! Height headers and limits follow ARCHITECTURE and chain.md 6, which follow the Cosmos SDK's conventions.

use std::sync::Arc;
use std::time::Duration;

use holdfast_types::{QueryError, QueryKind};
use thiserror::Error;
use tonic::{Code, Status};

use crate::echo::{MESSAGE_CHARS, cut};

mod accept;
mod chain;
pub mod client;
mod reflection;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use accept::{Accepted, serve_connections};
pub use chain::{ChainClient, ChainError, ChainFuture, Gas, Sender, TX_LIFE_BLOCKS};
pub use client::{GrpcChannel, repeat_call};
pub use server::{serve, serve_with};

/// Metadata key, both ways: which height to read from, and which one was read. Decimal; absent or 0 asks for the latest.
pub const HEIGHT_HEADER: &str = "x-cosmos-block-height";

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcReply {
    /// The encoded response message.
    pub value: Vec<u8>,
    /// Height of the state it was read from; goes out as [`HEIGHT_HEADER`].
    pub height: i64,
}

/// Answers unary calls. Shared by all connections, called from many threads at once.
pub trait GrpcBackend: Send + Sync + 'static {
    /// Answers the method at `path`, written `/package.Service/Method`.
    ///
    /// `request` is the encoded request message, not yet checked. `height` is 0 for the latest state, else the height
    /// asked for, never negative. The reply must name the height of the very snapshot it was read from, also when the
    /// latest was asked for.
    ///
    /// Runs on a worker of the async runtime and holds it up, so it must be quick unless
    /// [`is_blocking`](Self::is_blocking) says otherwise.
    ///
    /// # Errors
    /// [`QueryKind::Unimplemented`] for a path it does not know; else the query's own.
    fn call(&self, path: &str, request: &[u8], height: i64) -> Result<GrpcReply, QueryError>;

    /// Whether the call may take long, such as one that rebuilds an old height. Such calls run on the blocking pool,
    /// [`GrpcLimits::max_blocking`] at a time.
    fn is_blocking(&self, path: &str, height: i64) -> bool {
        let _ = (path, height);
        false
    }
}

/// Bounds of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcLimits {
    /// Longest request message, in bytes.
    pub max_request_bytes: usize,
    /// Most bytes of requests that are still arriving, over all connections. At least `max_request_bytes`.
    pub max_arriving_bytes: usize,
    /// Most open connections; more wait in the listener's backlog.
    pub max_connections: usize,
    /// Most calls under way on one connection; a client holds back the rest.
    pub max_streams: u32,
    /// Most blocking calls that run at once.
    pub max_blocking: usize,
    /// Most blocking calls that wait for their turn; more are refused.
    pub max_waiting: usize,
    /// Longest time from a connection to the 24 bytes with which every HTTP/2 client begins.
    pub handshake_timeout: Duration,
    /// Longest time a request message may take to arrive, and a new connection to its first call.
    pub receive_timeout: Duration,
    /// A connection without a call is closed after once to twice this time; a client then connects anew.
    pub idle_timeout: Duration,
    /// Longest wait, after the stop signal, for calls under way.
    pub drain_timeout: Duration,
}

impl Default for GrpcLimits {
    /// 10 MiB a request, 64 MiB arriving, 1,024 connections of 256 calls, 2 blocking calls with 256 in line, 5 s to begin,
    /// 30 s to arrive, 5 min without a call, 5 s to drain.
    fn default() -> Self {
        Self {
            max_request_bytes: 10 << 20,
            max_arriving_bytes: 64 << 20,
            max_connections: 1024,
            max_streams: 256,
            max_blocking: 2,
            max_waiting: 256,
            handshake_timeout: Duration::from_secs(5),
            receive_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a server could not start.
#[derive(Debug, Error)]
pub enum GrpcServeError {
    /// A limit that would let no call through.
    #[error("{field}: {problem}")]
    Limit {
        /// Field of [`GrpcLimits`].
        field: &'static str,
        /// What it must be.
        problem: &'static str,
    },
    /// The descriptors built into the program cannot be read.
    #[error("the built-in protobuf descriptors: {0}")]
    Descriptors(String),
}

/// The gRPC status of a failed query. One kind, one code:
///
/// ```
/// use holdfast_app::grpc::status;
/// use holdfast_types::{QueryError, QueryKind};
/// let status = status(QueryError::new(QueryKind::OutOfRange, "height 9: the latest is 7"));
/// assert_eq!(status.code(), tonic::Code::OutOfRange);
/// assert_eq!(status.message(), "height 9: the latest is 7");
/// ```
pub fn status(error: QueryError) -> Status {
    let code = match error.kind {
        QueryKind::InvalidArgument => Code::InvalidArgument,
        QueryKind::NotFound => Code::NotFound,
        QueryKind::FailedPrecondition => Code::FailedPrecondition,
        QueryKind::OutOfRange => Code::OutOfRange,
        QueryKind::Unimplemented => Code::Unimplemented,
        QueryKind::Unavailable => Code::Unavailable,
        QueryKind::Internal => Code::Internal,
    };
    // The message travels in a header, which clients take up to some kilobytes only.
    Status::new(code, cut(&error.message, MESSAGE_CHARS))
}

/// Answers every path with the request itself, at height 1 or the height asked for: what a call costs without a query.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoBackend;

impl EchoBackend {
    /// One to share with a server.
    pub fn shared() -> Arc<dyn GrpcBackend> {
        Arc::new(Self)
    }
}

impl GrpcBackend for EchoBackend {
    fn call(&self, _path: &str, request: &[u8], height: i64) -> Result<GrpcReply, QueryError> {
        Ok(GrpcReply { value: request.to_vec(), height: height.max(1) })
    }
}
