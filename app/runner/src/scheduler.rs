//! Continuous batching over a bounded queue (runner-details 12). Pure: time and capacity are arguments.
//!
//! ```text
//!            submit            admit             opened               last chunk
//!  (refused) ◄──── │ ───► Queued ───► Opening ───────► Prefilling ───────────► Decoding
//!                           │  ▲         │ ▲ put_back/   │     requeue (epoch + 1)  │
//!                           │  └─────────┘ └─────────────┴──────────────────────────┤
//!                           │ cancel          finish, cancel                        │
//!                           └──────────────► Done{reason} ◄─────────────────────────┘
//! ```
//!
//! Admission reserves the worst case, prompt + max_new KV rows; [`ContinuousBatchScheduler::rows_freed`] gives exactly
//! them back, once, when the shards really have let go: a session that is done may still hold rows (KV kept after
//! completion, a release that is not acknowledged). Reserved rows are the sum over the sessions that hold some, after
//! every call.
//!
//! A prompt is cut at multiples of the chunk whatever else is in the batch, so the steps of two epochs compare.

use std::collections::{BTreeMap, VecDeque};

use crate::adapter::{CHUNK_MAX, KvKey, SessionId};
use crate::failure::WorkStatus;

/// The limits. The default is runner-details 12.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Sessions in the queue.
    pub queue_sessions: usize,
    /// Prompt tokens in the queue.
    pub queue_tokens: u64,
    /// Rows, prompt + max_new, that one session may ask for.
    pub session_rows: u32,
    /// Bytes of a client's name.
    pub client_bytes: usize,
    /// Admitted sessions.
    pub active_sessions: usize,
    /// Sessions of an iteration, at least 2.
    pub batch_sessions: usize,
    /// Tokens of an iteration, at least a chunk and one more.
    pub batch_tokens: u32,
    /// Tokens of a prefill chunk, 1 to [`CHUNK_MAX`].
    pub chunk: u32,
    /// What a client may admit in one turn, tokens (prompt + max_new).
    pub quantum: u32,
    /// How long smaller sessions may pass one that does not fit, milliseconds.
    pub pass_ms: u64,
    /// Ended sessions whose reason is remembered.
    pub done_sessions: usize,
}

impl Default for SchedulerLimits {
    fn default() -> Self {
        Self {
            queue_sessions: 256,
            queue_tokens: 65_536,
            session_rows: 65_536,
            client_bytes: 128,
            active_sessions: 1_024,
            batch_sessions: 16,
            batch_tokens: 256,
            chunk: CHUNK_MAX,
            quantum: 256,
            pass_ms: 5_000,
            done_sessions: 4_096,
        }
    }
}

/// A session that wants to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Session and epoch it starts with.
    pub key: KvKey,
    /// Whose it is: between clients the scheduler is fair.
    pub client: String,
    /// Tokens of the prompt, at least 1.
    pub prompt_len: u32,
    /// Most new tokens, at least 1.
    pub max_new: u32,
}

/// Why a session was not queued. Nothing is remembered of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("queue full: try again in {retry_after_ms} ms")]
    QueueFull {
        /// About when there may be room, milliseconds.
        retry_after_ms: u64,
    },
    /// The session is known: ids are never used again (runner-details 1).
    #[error("session {0} was submitted before")]
    Duplicate(SessionId),
    /// No prompt, no token to make, or more rows than a session may ever hold.
    #[error("prompt {prompt_len} + {max_new} new tokens: both at least 1, together at most {most}")]
    Size {
        /// Tokens of the prompt.
        prompt_len: u32,
        /// Most new tokens.
        max_new: u32,
        /// [`SchedulerLimits::session_rows`].
        most: u32,
    },
    /// The client's name is too long.
    #[error("a client's name has at most {most} bytes")]
    Client {
        /// [`SchedulerLimits::client_bytes`].
        most: usize,
    },
}

impl SubmitError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue-full",
            Self::Duplicate(_) => "duplicate-session",
            Self::Size { .. } => "bad-size",
            Self::Client { .. } => "bad-client",
        }
    }
}

/// How a session ended: the status of its last record.
pub type DoneReason = WorkStatus;

/// A cancelled session is never counted as completed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cancel cannot have the reason completed")]
pub struct NotACancel;

/// Where a cancel met its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelledFrom {
    /// In the queue: it held nothing, and no shard need be called.
    Queued,
    /// Admitted: its rows stay reserved until [`ContinuousBatchScheduler::rows_freed`].
    Active,
    /// It had ended before; that reason stands.
    Done(DoneReason),
    /// Never seen, or forgotten.
    Unknown,
}

/// What a session does in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A chunk of the prompt.
    Prefill {
        /// First token of the chunk, from 0.
        from: u32,
        /// Tokens.
        len: u32,
        /// Whether the prompt ends with it: then the step gives the first token.
        last: bool,
    },
    /// One token more.
    Decode,
}

impl Work {
    /// Tokens that go in.
    #[must_use]
    pub const fn tokens(&self) -> u32 {
        match self {
            Self::Prefill { len, .. } => *len,
            Self::Decode => 1,
        }
    }
}

/// One session's part of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The session and the epoch it is in.
    pub key: KvKey,
    /// What it does.
    pub work: Work,
}

/// What a step's end leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More of the prompt, or more tokens, will be picked.
    More,
    /// It has all the tokens it may have; the caller ends it.
    Enough,
    /// The step failed; the session is not picked until it is requeued or ended.
    Halted,
    /// Of a session that is not active, of another epoch, or without a step out: counted, nothing else.
    Stale,
}

/// Waits in the queue, of the last admitted sessions, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitSummary {
    /// Sessions admitted since the start.
    pub admitted: u64,
    /// Half waited no longer.
    pub p50_ms: u64,
    /// 99 of 100 waited no longer.
    pub p99_ms: u64,
    /// Longest since the start.
    pub max_ms: u64,
}

/// What the scheduler holds and has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerTelemetry {
    /// Sessions in the queue.
    pub queued_sessions: usize,
    /// Prompt tokens in the queue.
    pub queued_tokens: u64,
    /// Admitted sessions that have not ended.
    pub active_sessions: usize,
    /// Sessions that have ended and still hold rows.
    pub holding_sessions: usize,
    /// KV rows reserved on each shard.
    pub reserved_rows: u64,
    /// Sessions that ended with each reason, since the start.
    pub completed_sessions: u64,
    /// See [`DoneReason::Cancelled`].
    pub cancelled_sessions: u64,
    /// See [`DoneReason::Failed`].
    pub failed_sessions: u64,
    /// See [`DoneReason::Unverified`].
    pub unverified_sessions: u64,
    /// Submissions refused because the queue was full.
    pub refused_sessions: u64,
    /// Iterations that were not empty.
    pub iterations: u64,
    /// Tokens put into iterations.
    pub scheduled_tokens: u64,
    /// Step ends that met no step (see [`Progress::Stale`]).
    pub stale_steps: u64,
    /// Time in the queue.
    pub queue_wait: WaitSummary,
}

/// How many waits [`WaitSummary`] looks back on.
const WAITS_KEPT: usize = 1_024;
/// Least and most of a retry hint.
const RETRY_MS: (u64, u64) = (1_000, 30_000);

#[derive(Debug)]
struct Queued {
    key: KvKey,
    prompt_len: u32,
    max_new: u32,
    since_ms: u64,
    /// Since when it had its turn and did not fit.
    blocked_ms: Option<u64>,
}

impl Queued {
    fn rows(&self) -> u32 {
        self.prompt_len.saturating_add(self.max_new)
    }
}

#[derive(Debug, Default)]
struct ClientQueue {
    waiting: VecDeque<Queued>,
    /// Tokens it may still admit in this turn.
    deficit: u64,
}

#[derive(Debug)]
struct Active {
    epoch: u32,
    client: String,
    since_ms: u64,
    prompt_len: u32,
    max_new: u32,
    chunk: u32,
    /// Order of admission.
    order: u64,
    opened: bool,
    halted: bool,
    /// Tokens of the prompt that are in.
    prefilled: u32,
    /// Tokens made.
    made: u32,
    last_token_ms: u64,
    out: Option<Work>,
}

impl Active {
    fn idle(&self) -> bool {
        self.opened && !self.halted && self.out.is_none() && self.made < self.max_new
    }

    fn prefilling(&self) -> bool {
        self.prefilled < self.prompt_len
    }

    fn next_chunk(&self) -> Work {
        let left = self.prompt_len - self.prefilled;
        let len = left.min(self.chunk);
        Work::Prefill { from: self.prefilled, len, last: len == left }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ContinuousBatchScheduler {
    limits: SchedulerLimits,
    now_ms: u64,
    clients: BTreeMap<String, ClientQueue>,
    /// Clients with waiting sessions, the one whose turn it is first.
    ring: VecDeque<String>,
    /// Whether the first of the ring has had its quantum for this turn.
    turn_begun: bool,
    /// Client of each waiting session.
    queued: BTreeMap<SessionId, String>,
    queued_tokens: u64,
    active: BTreeMap<SessionId, Active>,
    /// Rows of every session that holds some, active or ended.
    rows: BTreeMap<SessionId, u32>,
    reserved_rows: u64,
    done: BTreeMap<SessionId, DoneReason>,
    done_order: VecDeque<SessionId>,
    next_order: u64,
    waits: VecDeque<u64>,
    counts: SchedulerTelemetry,
}

impl ContinuousBatchScheduler {
    /// An empty one. Limits that could not work are brought to the nearest that can.
    #[must_use]
    pub fn new(mut limits: SchedulerLimits) -> Self {
        limits.chunk = limits.chunk.clamp(1, CHUNK_MAX);
        limits.batch_sessions = limits.batch_sessions.max(2);
        limits.batch_tokens = limits.batch_tokens.max(limits.chunk + 1);
        limits.quantum = limits.quantum.max(1);
        Self { limits, ..Self::default() }
    }

    /// The limits.
    #[must_use]
    pub const fn limits(&self) -> &SchedulerLimits {
        &self.limits
    }

    fn see(&mut self, now_ms: u64) -> u64 {
        self.now_ms = self.now_ms.max(now_ms);
        self.now_ms
    }

    /// Queues a session.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has changed then but the count of refusals.
    pub fn submit(&mut self, now_ms: u64, request: Request) -> Result<(), SubmitError> {
        let since_ms = self.see(now_ms);
        let Request { key, client, prompt_len, max_new } = request;
        let most = self.limits.session_rows;
        if prompt_len == 0 || max_new == 0 || prompt_len.checked_add(max_new).is_none_or(|rows| rows > most) {
            return Err(SubmitError::Size { prompt_len, max_new, most });
        }
        if client.len() > self.limits.client_bytes {
            return Err(SubmitError::Client { most: self.limits.client_bytes });
        }
        let session = key.session;
        if self.queued.contains_key(&session)
            || self.active.contains_key(&session)
            || self.rows.contains_key(&session)
            || self.done.contains_key(&session)
        {
            return Err(SubmitError::Duplicate(session));
        }
        if self.queued.len() >= self.limits.queue_sessions
            || self.queued_tokens + u64::from(prompt_len) > self.limits.queue_tokens
        {
            self.counts.refused_sessions += 1;
            return Err(SubmitError::QueueFull { retry_after_ms: self.retry_after_ms() });
        }
        self.enqueue(client, Queued { key, prompt_len, max_new, since_ms, blocked_ms: None }, false);
        Ok(())
    }

    /// Half of the sessions admitted of late waited this long; a full queue is hardly faster.
    fn retry_after_ms(&self) -> u64 {
        self.wait_summary().p50_ms.clamp(RETRY_MS.0, RETRY_MS.1)
    }

    fn enqueue(&mut self, client: String, queued: Queued, in_front: bool) {
        self.queued_tokens += u64::from(queued.prompt_len);
        self.queued.insert(queued.key.session, client.clone());
        let queue = self.clients.entry(client.clone()).or_default();
        if queue.waiting.is_empty() {
            self.ring.push_back(client);
        }
        if in_front {
            queue.waiting.push_front(queued);
        } else {
            queue.waiting.push_back(queued);
        }
    }

    /// Takes a session out of its client's queue; a client without sessions leaves the ring and its credit.
    fn dequeue(&mut self, session: SessionId) -> Option<(String, Queued)> {
        let client = self.queued.remove(&session)?;
        let queue = self.clients.get_mut(&client)?;
        let at = queue.waiting.iter().position(|queued| queued.key.session == session)?;
        let queued = queue.waiting.remove(at)?;
        self.queued_tokens -= u64::from(queued.prompt_len);
        if queue.waiting.is_empty() {
            self.clients.remove(&client);
            if self.ring.front() == Some(&client) {
                self.turn_begun = false;
            }
            self.ring.retain(|other| *other != client);
        }
        Some((client, queued))
    }

    /// Admits what fits into `capacity_rows`, the KV rows of the smallest shard of the route, reservations included.
    /// Gives the sessions in the order of their admission; the caller opens them on the shards.
    ///
    /// Between clients deficit round-robin, first come first served inside a client. A session that has its turn and
    /// does not fit keeps its place; other clients' may pass it for [`SchedulerLimits::pass_ms`], then nobody does. One
    /// that is larger than the whole capacity holds no other client up; the queue's deadline ends it.
    pub fn admit(&mut self, now_ms: u64, capacity_rows: u64) -> Vec<KvKey> {
        let now_ms = self.see(now_ms);
        let mut admitted = Vec::new();
        while self.active.len() < self.limits.active_sessions {
            let free = capacity_rows.saturating_sub(self.reserved_rows);
            let session = match self.overdue(now_ms, capacity_rows) {
                Some((rows, _)) if u64::from(rows) > free => break,
                Some((_, session)) => Some(session),
                None => self.next_in_turn(now_ms, free, capacity_rows),
            };
            let Some((client, queued)) = session.and_then(|session| self.dequeue(session)) else { break };
            let rows = queued.rows();
            if let Some(queue) = self.clients.get_mut(&client) {
                queue.deficit = queue.deficit.saturating_sub(u64::from(rows));
            }
            self.reserve(queued.key.session, rows);
            self.note_wait(now_ms - queued.since_ms);
            let active = Active {
                epoch: queued.key.epoch,
                client,
                since_ms: queued.since_ms,
                prompt_len: queued.prompt_len,
                max_new: queued.max_new,
                chunk: self.limits.chunk,
                order: self.next_order,
                opened: false,
                halted: false,
                prefilled: 0,
                made: 0,
                last_token_ms: now_ms,
                out: None,
            };
            self.next_order += 1;
            self.active.insert(queued.key.session, active);
            admitted.push(queued.key);
        }
        admitted
    }

    /// The session that has been passed for long enough, the longest first.
    fn overdue(&self, now_ms: u64, capacity_rows: u64) -> Option<(u32, SessionId)> {
        self.clients
            .values()
            .filter_map(|queue| queue.waiting.front())
            .filter(|head| u64::from(head.rows()) <= capacity_rows)
            .filter_map(|head| Some((head.blocked_ms?, head)))
            .filter(|(since_ms, _)| now_ms - since_ms >= self.limits.pass_ms)
            .min_by_key(|(since_ms, head)| (*since_ms, head.key.session))
            .map(|(_, head)| (head.rows(), head.key.session))
    }

    /// Deficit round-robin. A turn gives the quantum once and lasts while the credit does; a client whose first session
    /// has credit enough and does not fit is passed, and keeps the credit.
    fn next_in_turn(&mut self, now_ms: u64, free: u64, capacity_rows: u64) -> Option<SessionId> {
        let mut passed = 0;
        while passed < self.ring.len() {
            let queue = self.clients.get_mut(self.ring.front()?)?;
            let head = queue.waiting.front_mut()?;
            let rows = u64::from(head.rows());
            if queue.deficit < rows && !self.turn_begun {
                queue.deficit += u64::from(self.limits.quantum);
            }
            self.turn_begun = true;
            if queue.deficit >= rows {
                if rows <= free {
                    return Some(head.key.session);
                }
                if rows <= capacity_rows {
                    head.blocked_ms.get_or_insert(now_ms);
                }
                passed += 1;
            } else {
                // Credit grows each round and a session's rows are limited, so this ends.
                passed = 0;
            }
            self.ring.rotate_left(1);
            self.turn_begun = false;
        }
        None
    }

    fn reserve(&mut self, session: SessionId, rows: u32) {
        self.rows.insert(session, rows);
        self.reserved_rows += u64::from(rows);
    }

    fn note_wait(&mut self, wait_ms: u64) {
        if self.waits.len() == WAITS_KEPT {
            self.waits.pop_front();
        }
        self.waits.push_back(wait_ms);
        self.counts.queue_wait.admitted += 1;
        self.counts.queue_wait.max_ms = self.counts.queue_wait.max_ms.max(wait_ms);
    }

    fn wait_summary(&self) -> WaitSummary {
        let mut waits: Vec<u64> = self.waits.iter().copied().collect();
        waits.sort_unstable();
        // The smallest value that at least `percent` of a hundred do not exceed.
        let rank = |percent: usize| {
            let at = (waits.len() * percent).div_ceil(100).saturating_sub(1);
            waits.get(at).copied().unwrap_or(0)
        };
        WaitSummary { p50_ms: rank(50), p99_ms: rank(99), ..self.counts.queue_wait }
    }

    /// The shards have opened the session; it may be picked. `chunk_max` is the smallest of the route's. Gives whether
    /// the session is active in this epoch.
    pub fn opened(&mut self, key: KvKey, chunk_max: u32) -> bool {
        let most = self.limits.chunk;
        let Some(active) = self.active.get_mut(&key.session).filter(|active| active.epoch == key.epoch)
        else {
            return false;
        };
        active.opened = true;
        active.chunk = chunk_max.clamp(1, most);
        true
    }

    /// Back to the front of its client's queue, when the shards had no room after all and hold nothing of it: its rows
    /// are free at once. Only before it was opened, whatever the queue's limits, which hold at submission. Gives whether
    /// it was so.
    pub fn put_back(&mut self, key: KvKey) -> bool {
        let session = key.session;
        if self.active.get(&session).is_none_or(|active| active.epoch != key.epoch || active.opened) {
            return false;
        }
        let Some(active) = self.active.remove(&session) else { return false };
        self.rows_freed(session);
        let Active { client, since_ms, prompt_len, max_new, .. } = active;
        self.enqueue(client, Queued { key, prompt_len, max_new, since_ms, blocked_ms: None }, true);
        true
    }

    /// Puts an iteration together: one token for each decoding session, the oldest last token first; then chunks of
    /// prompts, in the order of admission. While a prompt waits, room for one chunk is kept for it. A session whose step
    /// is still out is not picked, and keeps nobody back. Each slot is answered by [`ContinuousBatchScheduler::step_done`].
    pub fn next_iteration(&mut self, now_ms: u64) -> Vec<Slot> {
        self.see(now_ms);
        let mut decoding = Vec::new();
        let mut prefilling = Vec::new();
        for (session, active) in self.active.iter().filter(|(_, active)| active.idle()) {
            let key = KvKey::new(*session, active.epoch);
            if active.prefilling() {
                prefilling.push((active.order, Slot { key, work: active.next_chunk() }));
            } else {
                decoding.push(((active.last_token_ms, active.order), Slot { key, work: Work::Decode }));
            }
        }
        decoding.sort_unstable_by_key(|(age, _)| *age);
        prefilling.sort_unstable_by_key(|(order, _)| *order);

        let (mut sessions, mut tokens) = (self.limits.batch_sessions, self.limits.batch_tokens);
        let kept = if prefilling.is_empty() { (0, 0) } else { (1, self.limits.chunk) };
        let mut slots = Vec::new();
        for (_, slot) in decoding {
            if sessions <= kept.0 || tokens <= kept.1 {
                break;
            }
            sessions -= 1;
            tokens -= 1;
            slots.push(slot);
        }
        for (_, slot) in prefilling {
            // A chunk is never cut to what is left: where a prompt is cut depends on the prompt alone.
            if sessions == 0 || slot.work.tokens() > tokens {
                continue;
            }
            sessions -= 1;
            tokens -= slot.work.tokens();
            slots.push(slot);
        }
        for slot in &slots {
            if let Some(active) = self.active.get_mut(&slot.key.session) {
                active.out = Some(slot.work);
            }
        }
        self.counts.iterations += u64::from(!slots.is_empty());
        self.counts.scheduled_tokens += u64::from(self.limits.batch_tokens - tokens);
        slots
    }

    /// The step of a slot has ended; `committed` if it is in the ledger.
    pub fn step_done(&mut self, key: KvKey, now_ms: u64, committed: bool) -> Progress {
        let now_ms = self.see(now_ms);
        let active = self.active.get_mut(&key.session).filter(|active| active.epoch == key.epoch);
        let Some((active, work)) = active.and_then(|active| active.out.take().map(|work| (active, work)))
        else {
            self.counts.stale_steps += 1;
            return Progress::Stale;
        };
        if !committed {
            active.halted = true;
            return Progress::Halted;
        }
        if let Work::Prefill { len, last, .. } = work {
            active.prefilled += len;
            if !last {
                return Progress::More;
            }
        }
        active.made += 1;
        active.last_token_ms = now_ms;
        if active.made < active.max_new { Progress::More } else { Progress::Enough }
    }

    /// Failover: the session starts again from token zero in `epoch`, with the rows it has. It is not picked until
    /// [`ContinuousBatchScheduler::opened`]; what is still out of an earlier epoch is stale. Gives whether the session
    /// is active in an earlier epoch.
    pub fn requeue(&mut self, key: KvKey) -> bool {
        let Some(active) = self.active.get_mut(&key.session).filter(|active| active.epoch < key.epoch) else {
            return false;
        };
        active.epoch = key.epoch;
        active.opened = false;
        active.halted = false;
        active.prefilled = 0;
        active.made = 0;
        active.out = None;
        true
    }

    /// Ends a session. Gives whether it was waiting or active; a second end changes nothing: the first reason stands.
    pub fn finish(&mut self, session: SessionId, reason: DoneReason) -> bool {
        if self.dequeue(session).is_none() && self.active.remove(&session).is_none() {
            return false;
        }
        if self.done_order.len() >= self.limits.done_sessions.max(1)
            && let Some(oldest) = self.done_order.pop_front()
        {
            self.done.remove(&oldest);
        }
        self.done.insert(session, reason);
        self.done_order.push_back(session);
        match reason {
            DoneReason::Completed => self.counts.completed_sessions += 1,
            DoneReason::Cancelled => self.counts.cancelled_sessions += 1,
            DoneReason::Failed => self.counts.failed_sessions += 1,
            DoneReason::Unverified => self.counts.unverified_sessions += 1,
        }
        true
    }

    /// Withdraws a session, in whatever state: from here on it gets no step.
    ///
    /// # Errors
    /// [`NotACancel`] for the reason completed.
    pub fn cancel(&mut self, session: SessionId, reason: DoneReason) -> Result<CancelledFrom, NotACancel> {
        if reason == DoneReason::Completed {
            return Err(NotACancel);
        }
        let from = if self.queued.contains_key(&session) {
            CancelledFrom::Queued
        } else if self.active.contains_key(&session) {
            CancelledFrom::Active
        } else {
            self.done.get(&session).map_or(CancelledFrom::Unknown, |reason| CancelledFrom::Done(*reason))
        };
        self.finish(session, reason);
        Ok(from)
    }

    /// The shards have let go of an ended session's KV: its rows are free. Gives whether it held any; an active session
    /// keeps its rows.
    pub fn rows_freed(&mut self, session: SessionId) -> bool {
        if self.active.contains_key(&session) {
            return false;
        }
        let Some(rows) = self.rows.remove(&session) else { return false };
        self.reserved_rows -= u64::from(rows);
        true
    }

    /// Whether there may be anything to admit.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// How a session ended, while it is remembered.
    #[must_use]
    pub fn done_reason(&self, session: SessionId) -> Option<DoneReason> {
        self.done.get(&session).copied()
    }

    /// What it holds and has done.
    #[must_use]
    pub fn telemetry(&self) -> SchedulerTelemetry {
        SchedulerTelemetry {
            queued_sessions: self.queued.len(),
            queued_tokens: self.queued_tokens,
            active_sessions: self.active.len(),
            holding_sessions: self.rows.keys().filter(|session| !self.active.contains_key(session)).count(),
            reserved_rows: self.reserved_rows,
            queue_wait: self.wait_summary(),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests;
