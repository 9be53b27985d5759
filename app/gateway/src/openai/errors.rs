//! Errors as OpenAI's clients know them: the table of escrow-details 9.

use holdfast_proto::holdfast::runner::v1::FailureKind;
use http::StatusCode;
use serde::Serialize;

use super::backend::Failure;

/// Longest `Retry-After`, seconds.
const RETRY_MAX_S: u64 = 3600;

/// When to try again after the store failed.
const STORAGE_AGAIN_MS: u64 = 5000;

/// Why nobody serves a request, and who knows more.
const NOBODY: &str = "no host can take the request now: each is withheld, busy or not reached; the gateway's operator sees \
                      which by `holdfastd gateway escrows`";

/// Most characters of a client's own words in an error.
const ECHO_CHARS: usize = 128;

/// A request that fails: its status and its error object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status} {code}: {message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// Which exception the clients raise for it depends on the status; this is for people and logs.
    pub(crate) kind: &'static str,
    pub(crate) code: &'static str,
    /// The field at fault, such as `messages[0].role`.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    pub(crate) retry_after_s: Option<u64>,
    /// `x-should-retry: false`: the official clients would otherwise repeat what cannot succeed.
    pub(crate) final_answer: bool,
}

/// The name of a host's failure, as the runner and its ledger write it.
const fn kind_code(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::WorkerDeath => "worker-death",
        FailureKind::StreamReset => "stream-reset",
        FailureKind::MalformedBundle => "malformed-bundle",
        FailureKind::StaleEpoch => "stale-epoch",
        FailureKind::CacheMiss => "cache-miss",
        FailureKind::DeadlineExceeded => "deadline-exceeded",
        FailureKind::HeartbeatLost => "heartbeat-lost",
        FailureKind::Cancelled => "cancelled",
        FailureKind::PrefixMismatch => "prefix-mismatch",
        FailureKind::Internal | FailureKind::Unspecified => "internal",
    }
}

/// What a client sent, for an error: no longer than it needs to be recognised.
fn cut(text: &str) -> String {
    match text.char_indices().nth(ECHO_CHARS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[derive(Serialize)]
struct Wire<'a> {
    error: Object<'a>,
}

#[derive(Serialize)]
struct Object<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, kind, code, param: None, message, retry_after_s: None, final_answer: false }
    }

    fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Rounded up to seconds, 1 to [`RETRY_MAX_S`].
    fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_s = Some(ms.div_ceil(1000).clamp(1, RETRY_MAX_S));
        self
    }

    /// Not JSON, or not the JSON object that the endpoint takes.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        let kind = "invalid_request_error";
        Self::new(StatusCode::BAD_REQUEST, kind, kind, message)
    }

    /// A field with a value that is none.
    pub(crate) fn bad_field(param: impl AsRef<str>, remedy: impl std::fmt::Display) -> Self {
        let param = cut(param.as_ref());
        Self::bad_request(format!("{param}: {remedy}")).with_param(param)
    }

    /// A field that would change the answer, and that no host obeys.
    pub(crate) fn unsupported(param: impl AsRef<str>, remedy: impl std::fmt::Display) -> Self {
        let param = cut(param.as_ref());
        let message = format!("{param} is not supported: {remedy}");
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "unsupported_parameter", message)
            .with_param(param)
    }

    pub(crate) fn context_length(param: &str, context: u32) -> Self {
        let message = format!(
            "prompt and answer do not fit the model's context of {context} tokens; shorten the prompt or ask for less"
        );
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "context_length_exceeded", message)
            .with_param(param)
    }

    pub(crate) fn unauthenticated(message: &str) -> Self {
        let kind = "authentication_error";
        Self::new(StatusCode::UNAUTHORIZED, kind, kind, message)
    }

    pub(crate) fn forbidden(model: &str) -> Self {
        let kind = "permission_error";
        let message = format!("this key may not use the model `{model}`");
        Self::new(StatusCode::FORBIDDEN, kind, kind, message).with_param("model")
    }

    pub(crate) fn model_not_found(model: &str) -> Self {
        let model = cut(model);
        let message = format!(
            "no open escrow here is for a model `{model}`; GET /v1/models lists those that are served"
        );
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "model_not_found", message)
            .with_param("model")
    }

    pub(crate) fn no_route(path: &str) -> Self {
        let message = format!("nothing is at {}", cut(path));
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "not_found", message)
    }

    pub(crate) fn method(allowed: &str) -> Self {
        let message = format!("use {allowed}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", message)
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body is above {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "request_too_large", message)
    }

    /// A coding of the message that nobody here reads.
    pub(crate) fn transfer_encoding() -> Self {
        let message = "Transfer-Encoding: send the body as it is, or as chunks";
        let kind = "invalid_request_error";
        Self::new(StatusCode::NOT_IMPLEMENTED, kind, "not_implemented", message)
            .with_param("Transfer-Encoding")
    }

    pub(crate) fn slow_body() -> Self {
        let message = "the body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "request_timeout", message)
    }

    pub(crate) fn key_spent(asked: u64, left: u64) -> Self {
        let message = format!(
            "the request could take {asked} tokens, of this key's budget {left} are left; shorten the prompt, ask for \
             less with max_tokens, or have the key's budget raised"
        );
        Self::new(StatusCode::PAYMENT_REQUIRED, "insufficient_quota", "insufficient_quota", message)
    }

    pub(crate) fn rate_limit(message: &str, retry_after_ms: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", message)
            .retry_after_ms(retry_after_ms)
    }

    pub(crate) fn idempotency_conflict() -> Self {
        let message = "this Idempotency-Key came with another request before; take a new key";
        let mut error = Self::new(StatusCode::CONFLICT, "idempotency_error", "idempotency_conflict", message);
        error.final_answer = true;
        error
    }

    pub(crate) fn idempotency_in_progress() -> Self {
        let message = "the request of this Idempotency-Key still runs; ask again for its answer";
        Self::new(StatusCode::CONFLICT, "idempotency_error", "idempotency_in_progress", message)
            .retry_after_ms(1000)
    }

    /// What the gateway has to keep cannot be kept now.
    pub(crate) fn storage() -> Self {
        Self::of_storage(STORAGE_AGAIN_MS)
    }

    fn of_storage(retry_after_ms: u64) -> Self {
        let message = "the gateway's store takes no writes now, as when its disk is full; its log says why";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "storage_unavailable", message)
            .retry_after_ms(retry_after_ms)
    }

    /// More connections than the gateway serves.
    pub(crate) fn too_many_connections() -> Self {
        let message = "too many connections; use those that are open, or come again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "too_many_connections", message)
            .retry_after_ms(1000)
    }

    pub(crate) fn internal() -> Self {
        let message = "the gateway failed; its log says why";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error", message)
    }

    /// What a [`Failure`] is to the client. `param` is the field that holds the prompt, `context` the model's length.
    pub(crate) fn of(failure: Failure, param: &str, context: u32) -> Self {
        let unavailable = |code, message: &str, ms| {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", code, message).retry_after_ms(ms)
        };
        match failure {
            Failure::ContextLengthExceeded => Self::context_length(param, context),
            Failure::BodyRefused => {
                let remedy =
                    "no host can serve this prompt; it must not be empty, and fit the model's context";
                Self::bad_field(param, format!("{remedy} of {context} tokens together with its answer"))
            }
            Failure::InsufficientBalance { asked, left } => {
                let message = format!(
                    "the request could cost {asked} base units, no escrow of this model has more than {left} left; shorten the \
                     prompt, ask for less with max_tokens, or have a larger escrow opened"
                );
                Self::new(StatusCode::PAYMENT_REQUIRED, "insufficient_quota", "insufficient_quota", message)
            }
            Failure::QueueFull { retry_after_ms } => {
                Self::rate_limit("too many requests wait", retry_after_ms)
            }
            Failure::NoAvailableHost { retry_after_ms } => {
                unavailable("no_available_host", NOBODY, retry_after_ms)
            }
            Failure::EscrowExhausted { retry_after_ms } => {
                let message = "the escrow of this model is used up: its coins, nonces or time";
                unavailable("escrow_exhausted", message, retry_after_ms)
            }
            Failure::EscrowEnding { retry_after_ms } => {
                let message = "the operator ends the escrow of this model, and no other one is open: it takes no more requests";
                unavailable("escrow_exhausted", message, retry_after_ms)
            }
            Failure::SelfSuspect { retry_after_ms } => {
                let message = "the gateway may itself be wrong and dispatches nothing";
                unavailable("gateway_self_suspect", message, retry_after_ms)
            }
            Failure::Host(kind) => {
                let code = kind_code(kind);
                let message = format!("the hosts failed: {code}");
                Self::new(StatusCode::BAD_GATEWAY, "server_error", code, message)
            }
            Failure::DeadlineExceeded => {
                let message = "the answer was not whole in time";
                Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "deadline_exceeded", message)
            }
            Failure::Storage { retry_after_ms } => Self::of_storage(retry_after_ms),
            Failure::Internal => Self::internal(),
        }
    }

    /// `{"error":{"message","type","param","code"}}`.
    pub(crate) fn body(&self) -> Vec<u8> {
        let object =
            Object { message: &self.message, kind: self.kind, param: self.param.as_deref(), code: self.code };
        // Strings always become JSON.
        serde_json::to_vec(&Wire { error: object }).unwrap_or_default()
    }
}
