//! Every wait of a session bounded by one guard (runner-details 8).
//!
//! ```text
//! new ─► Queued ──prefilling──► Prefilling ──awaiting_first_token──► AwaitingFirstToken ──token──► Decoding ─┐
//!          ▲                        ▲  └──────────────── token ───────────────────────────────────►│  ▲ token │
//!          └─ requeued (any phase)  └─ prefilling (any phase: the next epoch)                       │  └───────┘
//! ```
//!
//! The total limit runs from [`DeadlineGuard::new`] to the end, across epochs; the limit of a phase from the moment
//! the phase began; the heartbeat only while a call to a shard is out, from the later of its start and the last sign
//! of life. A limit is exceeded when it is *reached*. An open socket is no sign of life: nothing here knows of sockets.

use std::fmt;

use crate::failure::{Cause, FailureKind};

/// One of the six limits. Ordered as a tie between them is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// From submission to admission.
    Queue,
    /// From admission until the last chunk of the prompt was handed out.
    Prefill,
    /// From there to the first token.
    FirstToken,
    /// From token to token.
    InterToken,
    /// From submission to the end, over all epochs.
    Total,
    /// Without a sign of life while a call is out.
    Heartbeat,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 6] =
        [Self::Queue, Self::Prefill, Self::FirstToken, Self::InterToken, Self::Total, Self::Heartbeat];

    /// Stable name, the same as the field of [`Deadlines`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue_ms",
            Self::Prefill => "prefill_ms",
            Self::FirstToken => "first_token_ms",
            Self::InterToken => "inter_token_ms",
            Self::Total => "total_ms",
            Self::Heartbeat => "heartbeat_ms",
        }
    }

    /// What reaching it is.
    #[must_use]
    pub const fn kind(self) -> FailureKind {
        match self {
            Self::Heartbeat => FailureKind::HeartbeatLost,
            _ => FailureKind::DeadlineExceeded,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The limits of a node, milliseconds. The default is runner-details 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// See [`Limit::Queue`].
    pub queue_ms: u64,
    /// See [`Limit::Prefill`].
    pub prefill_ms: u64,
    /// See [`Limit::FirstToken`].
    pub first_token_ms: u64,
    /// See [`Limit::InterToken`].
    pub inter_token_ms: u64,
    /// See [`Limit::Total`].
    pub total_ms: u64,
    /// See [`Limit::Heartbeat`].
    pub heartbeat_ms: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            queue_ms: 30_000,
            prefill_ms: 60_000,
            first_token_ms: 60_000,
            inter_token_ms: 20_000,
            total_ms: 300_000,
            heartbeat_ms: 3_000,
        }
    }
}

impl Deadlines {
    /// The value of one limit, milliseconds.
    #[must_use]
    pub const fn get(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Queue => self.queue_ms,
            Limit::Prefill => self.prefill_ms,
            Limit::FirstToken => self.first_token_ms,
            Limit::InterToken => self.inter_token_ms,
            Limit::Total => self.total_ms,
            Limit::Heartbeat => self.heartbeat_ms,
        }
    }

    const fn set(&mut self, limit: Limit, ms: u64) {
        match limit {
            Limit::Queue => self.queue_ms = ms,
            Limit::Prefill => self.prefill_ms = ms,
            Limit::FirstToken => self.first_token_ms = ms,
            Limit::InterToken => self.inter_token_ms = ms,
            Limit::Total => self.total_ms = ms,
            Limit::Heartbeat => self.heartbeat_ms = ms,
        }
    }

    /// The limits of one request, which may only lower them.
    ///
    /// # Errors
    /// [`DeadlineRefused`] names the first limit that the request raises or sets to zero.
    pub fn lowered_by(&self, asked: &DeadlineOverrides) -> Result<SessionDeadlines, DeadlineRefused> {
        let mut session = SessionDeadlines::from(*self);
        for limit in Limit::ALL {
            let (Some(ms), most_ms) = (asked.get(limit), self.get(limit)) else { continue };
            if ms == 0 || ms > most_ms {
                return Err(DeadlineRefused { limit, asked_ms: ms, most_ms });
            }
            session.limits.set(limit, ms);
            session.lowered[limit as usize] = ms < most_ms;
        }
        Ok(session)
    }
}

/// What a request asks for; `None` leaves the node's limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeadlineOverrides {
    /// See [`Limit::Queue`].
    pub queue_ms: Option<u64>,
    /// See [`Limit::Prefill`].
    pub prefill_ms: Option<u64>,
    /// See [`Limit::FirstToken`].
    pub first_token_ms: Option<u64>,
    /// See [`Limit::InterToken`].
    pub inter_token_ms: Option<u64>,
    /// See [`Limit::Total`].
    pub total_ms: Option<u64>,
    /// See [`Limit::Heartbeat`].
    pub heartbeat_ms: Option<u64>,
}

impl DeadlineOverrides {
    const fn get(&self, limit: Limit) -> Option<u64> {
        match limit {
            Limit::Queue => self.queue_ms,
            Limit::Prefill => self.prefill_ms,
            Limit::FirstToken => self.first_token_ms,
            Limit::InterToken => self.inter_token_ms,
            Limit::Total => self.total_ms,
            Limit::Heartbeat => self.heartbeat_ms,
        }
    }
}

/// A request may lower a limit, not raise it, and not to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{limit} may be 1 to {most_ms} milliseconds, not {asked_ms}")]
pub struct DeadlineRefused {
    /// Which limit.
    pub limit: Limit,
    /// What was asked, milliseconds.
    pub asked_ms: u64,
    /// The node's own limit, milliseconds.
    pub most_ms: u64,
}

/// The limits of one session, and which of them its request lowered: those are nobody's fault (runner-details 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionDeadlines {
    limits: Deadlines,
    lowered: [bool; 6],
}

impl SessionDeadlines {
    /// The values.
    #[must_use]
    pub const fn limits(&self) -> &Deadlines {
        &self.limits
    }

    /// Whether the request lowered this one.
    #[must_use]
    pub const fn lowered(&self, limit: Limit) -> bool {
        self.lowered[limit as usize]
    }
}

impl From<Deadlines> for SessionDeadlines {
    fn from(limits: Deadlines) -> Self {
        Self { limits, lowered: [false; 6] }
    }
}

/// Where a session is, as far as its deadlines are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not admitted.
    Queued,
    /// Admitted; the prompt is going in.
    Prefilling,
    /// The last chunk is out; no token yet.
    AwaitingFirstToken,
    /// There is a token.
    Decoding,
}

impl Phase {
    /// The limit of the phase.
    #[must_use]
    pub const fn limit(self) -> Limit {
        match self {
            Self::Queued => Limit::Queue,
            Self::Prefilling => Limit::Prefill,
            Self::AwaitingFirstToken => Limit::FirstToken,
            Self::Decoding => Limit::InterToken,
        }
    }
}

/// Why a stream must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stream terminated: {}{}", kind.as_str(), which.map_or_else(String::new, |limit| format!(" ({limit})")))]
pub struct StreamTerminated {
    /// The kind.
    pub kind: FailureKind,
    /// By whom.
    pub cause: Cause,
    /// The limit that was reached, if one was.
    pub which: Option<Limit>,
    /// Whether the request had lowered that limit.
    pub lowered_by_request: bool,
}

impl StreamTerminated {
    /// A kind that is no limit's.
    #[must_use]
    pub const fn of(kind: FailureKind, cause: Cause) -> Self {
        Self { kind, cause, which: None, lowered_by_request: false }
    }

    /// Whether the node is at fault (runner-details 9).
    #[must_use]
    pub const fn node_at_fault(&self) -> bool {
        self.kind.node_at_fault() && !self.lowered_by_request
    }
}

/// A limit and when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry {
    /// When, on the injected clock.
    pub at_ms: u64,
    /// Which.
    pub limit: Limit,
}

/// Bounds one session, through all its epochs. See the [module](self).
///
/// A clock that goes back counts as one that stands still: the guard takes the largest time it has seen.
#[derive(Debug, Clone)]
pub struct DeadlineGuard {
    deadlines: SessionDeadlines,
    phase: Phase,
    started_ms: u64,
    phase_ms: u64,
    /// The later of the call's start and the last sign of life, while a call is out.
    beat_ms: Option<u64>,
    last_beat_ms: u64,
    seen_ms: u64,
}

impl DeadlineGuard {
    /// A session that was submitted now.
    #[must_use]
    pub fn new(deadlines: impl Into<SessionDeadlines>, now_ms: u64) -> Self {
        Self {
            deadlines: deadlines.into(),
            phase: Phase::Queued,
            started_ms: now_ms,
            phase_ms: now_ms,
            beat_ms: None,
            last_beat_ms: now_ms,
            seen_ms: now_ms,
        }
    }

    fn see(&mut self, now_ms: u64) -> u64 {
        self.seen_ms = self.seen_ms.max(now_ms);
        self.seen_ms
    }

    fn enter(&mut self, phase: Phase, now_ms: u64) {
        self.phase_ms = self.see(now_ms);
        self.phase = phase;
    }

    /// The phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The limits.
    #[must_use]
    pub const fn deadlines(&self) -> &SessionDeadlines {
        &self.deadlines
    }

    /// When the session was submitted.
    #[must_use]
    pub const fn started_ms(&self) -> u64 {
        self.started_ms
    }

    /// Back in the queue, or between two epochs. No call is out.
    pub fn requeued(&mut self, now_ms: u64) {
        self.enter(Phase::Queued, now_ms);
        self.beat_ms = None;
    }

    /// Admitted, or begun again from token zero in the next epoch. No call of an earlier epoch counts any more.
    pub fn prefilling(&mut self, now_ms: u64) {
        self.enter(Phase::Prefilling, now_ms);
        self.beat_ms = None;
    }

    /// The last chunk of the prompt was handed out.
    pub fn awaiting_first_token(&mut self, now_ms: u64) {
        self.enter(Phase::AwaitingFirstToken, now_ms);
    }

    /// A token was committed.
    pub fn token(&mut self, now_ms: u64) {
        self.enter(Phase::Decoding, now_ms);
        self.beat(now_ms);
    }

    /// A call to the shards went out: from now on they owe signs of life.
    pub fn call_started(&mut self, now_ms: u64) {
        self.beat_ms = Some(self.see(now_ms));
    }

    /// The call was answered, well or not. Counts as a sign of life.
    pub fn call_ended(&mut self, now_ms: u64) {
        self.beat(now_ms);
        self.beat_ms = None;
    }

    /// A sign of life at `at_ms`, which may be in the past; an older one than is known changes nothing. With several
    /// shards, give the oldest of their last ones: the session lives as long as each of them does.
    pub fn beat(&mut self, at_ms: u64) {
        self.last_beat_ms = self.last_beat_ms.max(at_ms);
        self.beat_ms = self.beat_ms.map(|since| since.max(at_ms));
    }

    /// When the last sign of life was.
    #[must_use]
    pub const fn last_beat_ms(&self) -> u64 {
        self.last_beat_ms
    }

    fn deadline(&self) -> Expiry {
        let limits = &self.deadlines.limits;
        let limit = self.phase.limit();
        let phase = Expiry { at_ms: self.phase_ms.saturating_add(limits.get(limit)), limit };
        let total = Expiry { at_ms: self.started_ms.saturating_add(limits.total_ms), limit: Limit::Total };
        phase.min(total)
    }

    /// What is reached first if nothing happens. At a tie a deadline comes before the heartbeat.
    #[must_use]
    pub fn next_expiry(&self) -> Expiry {
        let deadline = self.deadline();
        self.beat_ms.map_or(deadline, |since| {
            let at_ms = since.saturating_add(self.deadlines.limits.heartbeat_ms);
            deadline.min(Expiry { at_ms, limit: Limit::Heartbeat })
        })
    }

    /// Milliseconds until [`DeadlineGuard::next_expiry`].
    #[must_use]
    pub fn remaining(&self, now_ms: u64) -> u64 {
        self.next_expiry().at_ms.saturating_sub(self.seen_ms.max(now_ms))
    }

    /// Milliseconds until the next deadline, the heartbeat left aside: what a step may still take.
    #[must_use]
    pub fn deadline_left(&self, now_ms: u64) -> u64 {
        self.deadline().at_ms.saturating_sub(self.seen_ms.max(now_ms))
    }

    /// Milliseconds until the total limit.
    #[must_use]
    pub fn total_left(&self, now_ms: u64) -> u64 {
        self.started_ms
            .saturating_add(self.deadlines.limits.total_ms)
            .saturating_sub(self.seen_ms.max(now_ms))
    }

    /// Whether the stream may go on. Of several limits reached since the last look, the earliest counts.
    ///
    /// # Errors
    /// [`StreamTerminated`] with the limit that was reached.
    pub fn check(&mut self, now_ms: u64) -> Result<(), StreamTerminated> {
        let now_ms = self.see(now_ms);
        let Expiry { at_ms, limit } = self.next_expiry();
        if now_ms < at_ms {
            return Ok(());
        }
        let kind = limit.kind();
        Err(StreamTerminated {
            kind,
            cause: kind.default_cause(),
            which: Some(limit),
            lowered_by_request: self.deadlines.lowered(limit),
        })
    }

    /// What ends the stream when several reasons meet in one moment: cancelled, then a deadline, then the heartbeat,
    /// then the shard's error (runner-details 8).
    ///
    /// # Errors
    /// [`StreamTerminated`] with the reason that counts.
    pub fn decide(
        &mut self,
        now_ms: u64,
        cancelled: Option<Cause>,
        adapter: Option<FailureKind>,
    ) -> Result<(), StreamTerminated> {
        if let Some(cause) = cancelled {
            return Err(StreamTerminated::of(FailureKind::Cancelled, cause));
        }
        self.check(now_ms)?;
        adapter.map_or(Ok(()), |kind| Err(StreamTerminated::of(kind, kind.default_cause())))
    }
}

#[cfg(test)]
mod tests;
