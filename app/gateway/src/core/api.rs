//! What goes into a session and what comes out: events, effects, settings.

pub use super::errors::{CallError, OpenError, RequestError, VerbError};
use super::status::FlagView;
use holdfast_app::keys::SecretKey;
use holdfast_escrow::divergence::FlagChange;
use holdfast_escrow::session::settle::Settlement;
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

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
