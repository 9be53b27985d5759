//! What goes into a session and what comes out: events, effects, settings.

use holdfast_app::keys::SecretKey;
use holdfast_escrow::divergence::FlagChange;
use holdfast_escrow::session::settle::Settlement;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;
use thiserror::Error;

use super::status::FlagView;

/// Names a request of a client inside one process.
pub type RequestId = u64;
/// Names a call to a host inside one process. Never used twice, also not after a restart of the core in one process
/// as long as the driver drops what an older core asked for.
pub type CallId = u64;

/// The two clocks, read by the driver once per event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a monotonic clock: waits, deadlines, backoff.
    pub mono_ms: u64,
    /// Unix milliseconds: what is written into diffs and compared with them.
    pub unix_ms: u64,
}

impl Now {
    /// Unix seconds.
    pub fn unix_s(&self) -> u64 {
        self.unix_ms / 1000
    }
}

/// A request of a client, checked and normalised by the HTTP side.
#[derive(Debug, Clone)]
pub struct UserRequest {
    /// Its name; a second request of the same name is refused.
    pub request_id: RequestId,
    /// For the logs of both sides (W3C trace context or an own id).
    pub label: String,
    /// The bytes that the host gets; their SHA-256 is the prompt hash.
    pub body: Vec<u8>,
    /// Tokens reserved for the prompt.
    pub input_limit: u32,
    /// Tokens reserved for the answer.
    pub output_limit: u32,
    /// When the client stops waiting, on the monotonic clock.
    pub deadline_ms: u64,
}

/// Something happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client asks.
    Request(UserRequest),
    /// The client is gone; nothing more is sent to it.
    ClientLeft {
        /// Its request.
        request_id: RequestId,
    },
    /// The client has all that it wants (a stop text was found): the inference is cancelled, and the client gets
    /// [`ClientEvent::Finished`] with the host's signed counts.
    Enough {
        /// Its request.
        request_id: RequestId,
    },
    /// A call other than Infer ended.
    CallDone {
        /// The call.
        call_id: CallId,
        /// What came back.
        result: Result<HostReply, CallError>,
    },
    /// An Infer call sent a piece.
    StreamItem {
        /// The call.
        call_id: CallId,
        /// The piece.
        event: pb::infer_response::Event,
    },
    /// An Infer call ended; after it no more pieces come.
    StreamEnded {
        /// The call.
        call_id: CallId,
        /// `Ok` = the host closed the stream.
        result: Result<(), CallError>,
    },
    /// A wake-up that was asked for, or any other look at the clock.
    Tick,
    /// A verb of an operator; the driver has written its audit row.
    Operator {
        /// Comes back in [`Effect::OperatorDone`].
        op_id: u64,
        /// Whom it is about.
        participant: Address,
        /// What to do.
        verb: Verb,
    },
    /// A host said, signed and verified by the driver, that its process started.
    Announce {
        /// The host.
        participant: Address,
        /// Differs after each start.
        boot_id: String,
    },
    /// News of the chain.
    Chain(ChainNews),
    /// End the session: no new requests, wait for those in flight (bounded), finalize, collect signatures.
    Finalize,
    /// The process stops. Workers and calls end; nothing of the session is lost.
    Stop,
}

/// What the chain says about this escrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainNews {
    /// The row is settled: the session is over.
    Settled,
    /// The row is expired and can only be paid by dispute: no new requests.
    Expired,
    /// Members that the chain excuses now (PoC, maintenance): their nonces are passed. Replaces the last list.
    Absent(Vec<Address>),
}

/// Verbs of an operator (escrow-details 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Teach now; reopens what was given up.
    ForceTeach,
    /// No more attempts; the host is charged again.
    GiveUp,
    /// Ghosts become passes; the flag stays until proof.
    Release,
}

/// Why a verb did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VerbError {
    /// No flag is set for this participant.
    #[error("not_flagged: the participant has no divergence flag in this escrow")]
    NotFlagged,
    /// The phase of the repair has no use for the verb.
    #[error("wrong_phase: the repair is in a phase in which this verb does nothing")]
    WrongPhase,
    /// The store refused; nothing changed.
    #[error("storage: the store refused the change")]
    Storage,
}

/// A call to a host. Diffs and transactions inside are the signed borsh bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum HostCall {
    /// Compare the terms.
    Bind(pb::BindRequest),
    /// Bring diffs.
    Teach(pb::TeachRequest),
    /// Bring a Start and its prompt; a stream.
    Infer(pb::InferRequest),
    /// End an inference. Needs the `rpc` signature of the gateway.
    Cancel(pb::CancelInferenceRequest),
    /// A signature at one nonce.
    GetSignatures(pb::GetSignaturesRequest),
    /// Waiting transactions; also the ping of a throttled host.
    GetPending(pb::GetPendingRequest),
    /// Diffs of the host's log.
    GetDiffs(pb::GetDiffsRequest),
    /// A vote.
    VoteTimeout(pb::VoteTimeoutRequest),
    /// Drop the replica.
    ResetSession(pb::ResetSessionRequest),
}

/// What a call brought.
#[derive(Debug, Clone, PartialEq)]
pub enum HostReply {
    /// Of Bind.
    Bind(pb::BindResponse),
    /// Of Teach.
    Teach(pb::TeachResponse),
    /// Of CancelInference.
    Cancel(pb::CancelInferenceResponse),
    /// Of GetSignatures.
    GetSignatures(pb::GetSignaturesResponse),
    /// Of GetPending.
    GetPending(pb::GetPendingResponse),
    /// Of GetDiffs.
    GetDiffs(pb::GetDiffsResponse),
    /// Of VoteTimeout.
    VoteTimeout(pb::VoteTimeoutResponse),
    /// Of ResetSession.
    ResetSession(pb::ResetSessionResponse),
}

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum CallError {
    /// The host's own typed error. Only this can carry a signed mismatch.
    Host(Box<pb::EscrowError>),
    /// A status without a typed error: `code` is the gRPC code. 16 and 7 (unauthenticated, denied) are the
    /// requester's fault, 8 and 14 mean throttled; bodies are never read.
    Status {
        /// gRPC code.
        code: i32,
        /// What the host asked to wait, 0 = nothing.
        retry_after_ms: u64,
    },
    /// No connection, or it broke.
    Transport,
    /// The call's time was up.
    Timeout,
    /// Aborted on our side: by [`Effect::AbortCall`] or the driver's own limits. Blames nobody.
    Aborted,
}

/// Which limits of the driver apply to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// For a client: through the driver's connection limits.
    User,
    /// Teaching, proofs, votes, finalization: admission-free, never waits behind users.
    Free,
}

/// What the driver shall do, in this order.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Call a host. All that it tells is durable already. Exactly one end comes back for each, also for those that the
    /// driver gives up: [`Event::CallDone`], for Infer [`Event::StreamEnded`].
    Call {
        /// Comes back in the events.
        call_id: CallId,
        /// Whom.
        participant: Address,
        /// What.
        call: HostCall,
        /// Time for the whole call; for Infer the time until the last piece.
        timeout_ms: u64,
        /// Which limits apply.
        lane: Lane,
    },
    /// Drop a call. An end event may still come and is ignored.
    AbortCall {
        /// The call.
        call_id: CallId,
    },
    /// Tell a client.
    ToClient {
        /// Its request.
        request_id: RequestId,
        /// What.
        event: ClientEvent,
    },
    /// Send [`Event::Tick`] at this time at the latest; replaces the last wish.
    WakeAt {
        /// On the monotonic clock.
        mono_ms: u64,
    },
    /// Answer of [`Event::Operator`].
    OperatorDone {
        /// As in the event.
        op_id: u64,
        /// The flag after it.
        result: Result<Box<FlagView>, VerbError>,
    },
    /// The frozen state with a quorum's signatures: put it on the chain with MsgSettleEscrow.
    SettlementReady(Box<Settlement>),
    /// The last state that a quorum signed, to be paid by MsgDisputeEscrow from expiry on.
    DisputeReady(Box<Settlement>),
    /// A row of the log.
    Log(LogLine),
    /// A number of the metrics.
    Metric(Metric),
    /// A flag changed: a row of WatchDivergence.
    FlagChanged {
        /// The log stage, as `escrow_participant_state_unblocked`.
        stage: &'static str,
        /// Unix seconds.
        at: u64,
        /// The flag after it; after an unblock, as it was.
        flag: Box<FlagView>,
        /// The row for the journal of changes.
        change: Box<FlagChange>,
    },
    /// The session is over; nothing more comes. Drop the core.
    Retired {
        /// Why.
        reason: RetireReason,
    },
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetireReason {
    /// The chain paid it.
    Settled,
    /// [`Event::Stop`].
    Stopped,
    /// The log replays to another root than the one stored at this nonce.
    SelfCorrupt {
        /// First nonce with another root.
        nonce: u64,
    },
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientEvent {
    /// Its Start is durable and on its way. Up to three times, before the first [`ClientEvent::Delta`].
    Dispatched {
        /// Id of the inference.
        nonce: u64,
        /// Who computes.
        executor: Address,
        /// Its slot.
        slot: u8,
    },
    /// Text.
    Delta {
        /// Number of the first token, from 0.
        index: u32,
        /// The text.
        text: String,
        /// Its token ids.
        token_ids: Vec<u32>,
    },
    /// All of it came; the signed outcome is queued for a diff.
    Finished {
        /// `stop` or `length`.
        finish_reason: String,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens of the answer.
        completion_tokens: u32,
    },
    /// It did not work out.
    Failed(RequestError),
}

/// Why a request failed. `code` is that of escrow-details 9.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Nobody may serve it: flagged, throttled, absent, or its 2·N nonces are used up.
    #[error("no_available_host: no host can serve this request now")]
    NoAvailableHost,
    /// The escrow has no nonces or coins left, or it is being settled.
    #[error("escrow_exhausted: the escrow takes no more requests")]
    EscrowExhausted,
    /// The gateway may itself be wrong.
    #[error("gateway_self_suspect: the gateway doubts its own state")]
    SelfSuspect,
    /// Dearer than what is left, while smaller requests still fit.
    #[error("insufficient_quota: the request reserves {reserve}, the escrow has {balance}")]
    TooDear {
        /// Coins that the Start would reserve.
        reserve: u128,
        /// Coins that are free.
        balance: u128,
    },
    /// More bytes than a host takes.
    #[error("request_too_large: the body is above {limit} bytes")]
    TooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// Limits of zero tokens, an empty body, or a name that is in use.
    #[error("invalid_request_error: {0}")]
    Invalid(&'static str),
    /// The queue is full.
    #[error("rate_limit_exceeded: too many requests wait")]
    QueueFull,
    /// Three dispatches failed.
    #[error("upstream_failed: {attempts} hosts failed")]
    DispatchesFailed {
        /// How many.
        attempts: u32,
    },
    /// Every host that got it said that nobody can serve this body: an empty prompt, or one beyond the context. The client's
    /// fault; their Starts are taken back.
    #[error("body_refused: {attempts} hosts say that the body cannot be served")]
    BodyRefused {
        /// How many.
        attempts: u32,
    },
    /// The host signed a failure, or its stream broke after the first token.
    #[error("host_failed: the host failed with kind {kind}")]
    HostFailed {
        /// `FailureKind` of the runner.
        kind: i32,
    },
    /// Its time is up.
    #[error("deadline_exceeded: the request's time is up")]
    Deadline,
    /// The store refused; nothing was spent.
    #[error("storage: the gateway cannot write its log")]
    Storage,
    /// The session stops.
    #[error("stopping: the gateway stops")]
    Stopping,
}

impl RequestError {
    /// The stable code, as in the error objects of the HTTP API.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoAvailableHost => "no_available_host",
            Self::EscrowExhausted => "escrow_exhausted",
            Self::SelfSuspect => "gateway_self_suspect",
            Self::TooDear { .. } => "insufficient_quota",
            Self::TooLarge { .. } => "request_too_large",
            Self::Invalid(_) => "invalid_request_error",
            Self::QueueFull => "rate_limit_exceeded",
            Self::DispatchesFailed { .. } => "upstream_failed",
            Self::BodyRefused { .. } => "invalid_request_error",
            Self::HostFailed { .. } => "host_failed",
            Self::Deadline => "deadline_exceeded",
            Self::Storage => "storage",
            Self::Stopping => "stopping",
        }
    }
}

/// A row of the log: the driver hands it to tracing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Stable name, as `escrow_participant_state_repair_attempt`.
    pub stage: &'static str,
    /// Whether somebody should look.
    pub alarm: bool,
    /// Whom it is about.
    pub participant: Option<Address>,
    /// Name and value.
    pub fields: Vec<(&'static str, String)>,
}

/// A number of the metrics, by (escrow, participant) only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Add to a counter.
    Count {
        /// Name without the prefix `holdfast_`.
        name: &'static str,
        /// Label.
        participant: Option<Address>,
        /// How much.
        add: u64,
    },
    /// Set a gauge.
    Gauge {
        /// Name without the prefix `holdfast_`.
        name: &'static str,
        /// Label.
        participant: Option<Address>,
        /// Value.
        value: u64,
    },
    /// Milliseconds for a histogram.
    Time {
        /// Name without the prefix `holdfast_`.
        name: &'static str,
        /// Label.
        participant: Option<Address>,
        /// How long.
        ms: u64,
    },
}

/// Signs with the key of the gateway.
pub trait Signer: Send {
    /// Its address.
    fn address(&self) -> Address;
    /// 65 bytes r‖s‖v over `digest`; the same digest gives the same bytes (RFC 6979).
    fn sign(&self, digest: [u8; 32]) -> [u8; 65];
}

impl Signer for SecretKey {
    fn address(&self) -> Address {
        SecretKey::address(self)
    }

    fn sign(&self, digest: [u8; 32]) -> [u8; 65] {
        self.sign_recoverable(digest)
    }
}

/// Where challenges come from.
pub trait Entropy: Send {
    /// 32 bytes that nobody can guess.
    fn draw(&mut self) -> [u8; 32];
}

impl<F: FnMut() -> [u8; 32] + Send> Entropy for F {
    fn draw(&mut self) -> [u8; 32] {
        self()
    }
}

/// Why a session cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store failed. Try again; nothing was concluded.
    #[error("storage: {0}")]
    Storage(String),
    /// Diffs are missing from the log: the escrow can only be paid by dispute.
    #[error("log_gap: no diff at nonce {nonce}")]
    Gap {
        /// First nonce that is missing.
        nonce: u64,
    },
    /// A row of the log is not a diff that follows from the one before.
    #[error("self_corrupt: the log does not replay at nonce {nonce}: {reason}")]
    SelfCorrupt {
        /// First such nonce.
        nonce: u64,
        /// What is wrong.
        reason: String,
    },
    /// The terms are not those that the store was begun with, or not valid.
    #[error("config_mismatch: {0}")]
    Config(String),
    /// The key is not the one that this escrow names.
    #[error("wrong_key: the escrow's gateway is {expected:?}, the key is {found:?}")]
    WrongKey {
        /// As in the terms.
        expected: Address,
        /// Of the signer.
        found: Address,
    },
}
