//! What happens to a repair, and what must be done about it.

use super::{ClearProof, Verdict};

/// Why a call of an attempt came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection, no detail in the error, busy.
    Unavailable,
    /// The call's own time limit.
    TimedOut,
    /// The host will not, or says that the session is closed.
    Policy,
    /// The host holds other terms.
    ConfigMismatch,
    /// Nonsense, or a signature that proves nothing.
    Malformed,
    /// Above the host's limit of bytes.
    TooLarge,
}

impl Failure {
    /// The verdict of an attempt that ends so.
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Unavailable => Verdict::Unavailable,
            Self::TimedOut => Verdict::TimedOut,
            Self::Policy => Verdict::Policy,
            Self::ConfigMismatch => Verdict::ConfigMismatch,
            Self::Malformed => Verdict::Malformed,
            Self::TooLarge => Verdict::TooLarge,
        }
    }
}

/// An input of [`super::step`]: the rows of the table in escrow-details 6. Results of calls are those of the running
/// attempt; a driver drops the result of a call that it cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairEvent {
    /// A request, a vote or the finalization brought a signature by an authorised key over another root than ours, at a
    /// nonce we hold. Not for replies to Teach and GetSignatures of the repair itself.
    Mismatch {
        /// Nonce of that root.
        nonce: u64,
    },
    /// It holds another diff of ours at a nonce we hold: our own fault, so nothing is charged from here on. From
    /// wherever it comes, the repair included.
    OwnFork {
        /// Nonce of the two diffs.
        nonce: u64,
    },
    /// The wait ended, or a permit came.
    Due {
        /// Whether one of the permits and the participant's teach gate come with this event.
        permit: bool,
    },
    /// Bind succeeded.
    Bound,
    /// ResetSession succeeded.
    ResetDone,
    /// ResetSession was answered with Policy or Busy.
    ResetRefused,
    /// The census of this generation was taken.
    CensusTaken,
    /// Teach: applied up to `nonce`, root ours, nothing withheld.
    ChunkApplied {
        /// Last nonce that the host applied.
        nonce: u64,
    },
    /// Teach: the host is at `have`, below the cursor.
    ChunkBehind {
        /// Last nonce that the host applied.
        have: u64,
    },
    /// Teach: a valid signed refusal.
    ChunkRefused {
        /// Nonce of the refused diff.
        nonce: u64,
    },
    /// The attempt's time or bytes are used up by Teach; GetSignatures has a time limit of its own.
    BudgetUsed,
    /// A valid signature over another root at a nonce the host applied, or a DiffFork whose diff is not signed by us.
    Forked {
        /// Nonce of that root or diff.
        nonce: u64,
    },
    /// The host has no copy of the session.
    NotFound,
    /// A call came to nothing.
    Failed(Failure),
    /// The proof of [`super::verify_proof`].
    Proof(ClearProof),
    /// A valid signature over our root, below the target.
    SignedBehind {
        /// Nonce of that root.
        nonce: u64,
    },
    /// A valid signature at a nonce above our tip.
    SignedAboveTip {
        /// That nonce.
        nonce: u64,
    },
    /// The right root, signed by a key that our state does not bind.
    KeyNotBound,
    /// The root is ours, the signature is withheld.
    Withheld {
        /// Last nonce that the host applied.
        nonce: u64,
    },
    /// A dispatch from before the flag ended.
    LateEnd {
        /// Whether the client got its answer.
        served: bool,
    },
    /// The host says, signed, that it started anew.
    Announced {
        /// Monotonic ms since the last reopening of this flag, or since this process started if that was later.
        since_reopen_ms: u64,
    },
    /// Operator: teach now.
    ForceTeach,
    /// Operator: stop teaching.
    GiveUp,
    /// Operator: charge nothing.
    Release,
    /// The session left the phase Active, or the escrow is stopped or retired.
    SessionEnded,
    /// First event after a restart of the gateway.
    Restarted,
    /// Our root or store cannot be read: for every repair, and again instead of `Due` while it lasts.
    StoreUnreadable,
    /// Our store can be read again. Optional: the next `Due` says it too.
    StoreReadable,
}

/// A stage of the log, and of the stream of changes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, borsh::BorshSerialize, borsh::BorshDeserialize,
)]
pub enum LogStage {
    /// The flag is set.
    Blocked,
    /// Its worker begins, for the first time or again.
    RepairStarted,
    /// An attempt ended; `last_verdict` says how.
    RepairAttempt,
    /// The flag is removed.
    Unblocked,
    /// No more attempts.
    GaveUp,
}

impl LogStage {
    /// The stage's name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "escrow_participant_state_blocked",
            Self::RepairStarted => "escrow_participant_state_repair_started",
            Self::RepairAttempt => "escrow_participant_state_repair_attempt",
            Self::Unblocked => "escrow_participant_state_unblocked",
            Self::GaveUp => "escrow_participant_state_repair_gave_up",
        }
    }
}

/// What a driver does after a step, in this order, once the step's writes are durable. The result of a call comes back
/// as a [`RepairEvent`]. `InsertFlag`, `RecordEvidence` and `ClearFlag` are writes that
/// [`crate::divergence::DivergenceKeeper::advance`] has then done; a driver withholds or frees the participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Store the new flag with the evidence that tripped it; withhold the participant from now on.
    InsertFlag,
    /// Remove the flag, compared by generation; the participant is in the rota again.
    ClearFlag,
    /// Keep what the event brought (roots, digest, signature) as an evidence row; a lower nonce becomes the flag's.
    RecordEvidence {
        /// Nonce that differs.
        nonce: u64,
    },
    /// Set the participant's cursor, for all of its slots.
    MoveCursor(u64),
    /// Put the stale, or the BindWarmKey, transactions of the reply into the pool for the next diff, if they check.
    QueueTxs,
    /// Send the dispatch through HandleTimeout, and do nothing else about it.
    HandleTimeout,
    /// (Re)arm the one timer of this repair; when it fires: [`RepairEvent::Due`].
    WakeIn(
        /// ms; 0 = at once.
        u64,
    ),
    /// Stand in the queue for a permit and the participant's teach gate, first come first served; once only. When both
    /// are there: [`RepairEvent::Due`] with `permit`.
    QueueForPermit,
    /// Give the permit and the gate back, or leave the queue.
    ReleasePermit,
    /// An attempt begins: draw its challenge and start the clock and byte count of its budget.
    StartAttempt {
        /// Generation to be proved.
        generation: u64,
        /// Number of the attempt.
        attempt: u32,
        /// Nonce it aims at.
        target: u64,
    },
    /// Ask every other unflagged participant for its signature at the flag's nonce (10 s), in parallel to the attempt;
    /// judge by [`super::census`]; then [`RepairEvent::CensusTaken`].
    TakeCensus,
    /// Call ResetSession: [`RepairEvent::ResetDone`], `ResetRefused`, `NotFound` or `Failed`.
    CallReset,
    /// Call Bind: [`RepairEvent::Bound`], or `Failed`.
    SendBind,
    /// Send the next chunk from the cursor, up to the target, with the attempt's challenge in the last one. With the
    /// cursor at the target it is empty: the reply says where the host is.
    Teach {
        /// At most so many diffs, and the chunk's bytes.
        max_diffs: u32,
    },
    /// Call GetSignatures with the attempt's challenge and judge the reply by [`super::verify_proof`].
    AskSignature {
        /// Nonce to ask for.
        nonce: u64,
    },
    /// Search the first bad nonce by [`super::Bisect`], below `bad`, unless the flag names it already; store it
    /// in the flag ([`crate::divergence::DivergenceKeeper::set_first_bad`]).
    FindFirstBad {
        /// Nonce known to differ.
        bad: u64,
    },
    /// Cancel the call that runs and drop its result.
    Cancel,
    /// The worker ends: no timer, no place in a queue, no call.
    StopWorker,
    /// Log the stage; append the change that `advance` returns for it to the stream of changes.
    Log(LogStage),
    /// The event meant nothing here: count it.
    Ignored,
}
