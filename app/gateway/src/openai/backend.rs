//! What the API asks of the sessions behind it.

use bytes::Bytes;
use holdfast_proto::holdfast::runner::v1::FailureKind;
use holdfast_types::Address;
use tokio::sync::{mpsc, oneshot};

/// The sessions that serve requests. The driver implements it; tests bring a fake.
pub trait Sessions: Send + Sync + 'static {
    /// Models that an escrow of this gateway is for, each once, also while its escrow is being replaced.
    fn models(&self) -> Vec<ModelInfo>;

    /// Whether requests can be served now.
    fn ready(&self) -> Readiness;

    /// Queues a request. Never waits: what cannot be queued is answered with [`Event::Failed`].
    ///
    /// Events in this order, at most one of the last two, and nothing after it:
    ///
    /// ```text
    /// (Dispatched)*  Delta*  (Finished | Failed)
    /// ```
    ///
    /// A further dispatch may follow only before the first delta. A channel that closes without an end counts as
    /// [`Failure::Host`] with [`FailureKind::StreamReset`].
    fn submit(&self, submission: Submission) -> Answer;
}

/// A model on offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its name, as the escrow has it.
    pub id: String,
    /// Unix seconds since which this gateway offers it.
    pub created: u64,
    /// Whether it is offered: an escrow of it is not being ended by an operator.
    pub open: bool,
    /// Prompt and answer together, tokens.
    pub context_length: u32,
    /// Most bytes of text that one token stands for: 1 for a byte vocabulary, 0 if unknown. With it a prompt that
    /// cannot fit is refused before anything is spent.
    pub token_bytes_max: u32,
}

/// Whether requests can be served (escrow-details 9, `/readyz`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// An escrow is Active.
    pub active_escrow: bool,
    /// The gateway may itself be wrong, and dispatches nothing.
    pub self_suspect: bool,
    /// A token or an answered ping within 60 s.
    pub sign_of_life: bool,
}

impl Readiness {
    /// All three.
    #[must_use]
    pub fn is_ready(self) -> bool {
        self.active_escrow && !self.self_suspect && self.sign_of_life
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// A model of [`Sessions::models`].
    pub model: String,
    /// The exact bytes for the host; their SHA-256 is the prompt hash. A JSON object of `messages` or `prompt`,
    /// `max_tokens` (always, = `output_limit`), `stop`, `seed` and `temperature`: what `holdfast_host::body` reads.
    pub body: Bytes,
    /// For the Start: min(content bytes + 64 per message + 64, context length), tokens.
    pub input_limit: u32,
    /// For the Start, tokens.
    pub output_limit: u32,
    /// Longest time from now to the end of the answer, ms. Then [`Failure::DeadlineExceeded`].
    pub deadline_ms: u64,
    /// Names the request in the logs of both sides: 1 to 128 ASCII letters, digits and `._-`.
    pub request_id: String,
    /// W3C trace context to pass on: the client's, or a new one.
    pub traceparent: String,
}

/// The two ends that the API holds of a request.
///
/// Dropping it means that the client left: the driver, which sees [`mpsc::Sender::closed`], takes the request from the
/// queue or cancels the inference (`client_left`). The deadline stays the driver's.
#[derive(Debug)]
pub struct Answer {
    /// Events; bounded, so that a slow reader slows its own stream only.
    pub events: mpsc::Receiver<Event>,
    /// Sent when a stop text came that the host let through: the client has all it wants. The driver cancels the
    /// inference at its host and answers with [`Event::Finished`], in which the counts of the host's `ReportError` stand. If it does not within
    /// 2 s, or closes the channel, the API does without and drops the rest.
    pub enough: oneshot::Sender<()>,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A Start was sent.
    Dispatched(Dispatch),
    /// Text.
    Delta {
        /// UTF-8; may be empty when a token ends in half a character.
        text: String,
        /// Its tokens.
        token_ids: Vec<u32>,
    },
    /// All of it.
    Finished {
        /// Why it ends.
        finish_reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// It did not work out.
    Failed(Failure),
}

/// Where a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// The escrow that pays.
    pub escrow: u64,
    /// Nonce of the Start, which is the inference's id.
    pub nonce: u64,
    /// The host.
    pub executor: Address,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop text.
    Stop,
    /// `output_limit` or the context ended it.
    Length,
}

impl FinishReason {
    /// As in a reply.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the answer.
    pub completion_tokens: u32,
}

/// Why a request fails; each has a row in the table of escrow-details 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Prompt and answer do not fit the model: the host's count, which blames nobody.
    ContextLengthExceeded,
    /// Every host that got it says that nobody can serve the body.
    BodyRefused,
    /// Dearer than the balance of every escrow of the model.
    InsufficientBalance {
        /// What it could cost, base units.
        asked: u128,
        /// Most that an escrow of the model has left.
        left: u128,
    },
    /// Too many wait.
    QueueFull {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// Nobody to serve: all flagged or unreachable, or 2·N nonces brought none.
    NoAvailableHost {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// No escrow of the model has balance or nonces left.
    EscrowExhausted {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// Every escrow of the model is being ended by an operator, and is not replaced.
    EscrowEnding {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The gateway may itself be wrong.
    SelfSuspect {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// Three dispatches failed, the host signed a failure, or it broke off after the first token. Also a host's own
    /// refusal, whatever its status: `Internal`.
    Host(FailureKind),
    /// The deadline passed.
    DeadlineExceeded,
    /// A store of the gateway takes no writes; it is opened again by itself.
    Storage {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The gateway's own fault. The reason is in its log.
    Internal,
}
