//! One cancel for all shards of an attempt (runner-details 7). Pure: acknowledgements and time go in, typed effects
//! come out.
//!
//! ```text
//!            cancel                  all quiescent, or the wait is over           all shards settled
//!  Running ─────────► Quiescing ──────────────────────────────────────► Releasing ─────────────────► Done
//!   (1 stop: SendStop everywhere,   (2: a step that ends now counts,   (3: SendRelease everywhere, again
//!    buffers given back at once)     one that does not is uncertain)    each 500 ms while unanswered)
//! ```
//!
//! Every end of an attempt, not only a cancel, runs these phases. A later cancel changes nothing but a count.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::adapter::{AdapterError, KvKey, ReleaseAck, StopAck};
use crate::failure::Cause;

/// Longest wait for shards to become quiescent, milliseconds.
pub const QUIESCE_MS: u64 = 1_000;
/// Time between two releases of a shard that has not let go, milliseconds.
pub const RELEASE_RETRY_MS: u64 = 500;

/// When the key of a silent worker counts as gone: a tenth more than the lease, and a second, after the last beat that
/// was *sent* (runner-details 4).
#[must_use]
pub const fn lease_gone_at(last_beat_sent_ms: u64, lease_ms: u64) -> u64 {
    last_beat_sent_ms.saturating_add(lease_ms).saturating_add(lease_ms.div_ceil(10)).saturating_add(1_000)
}

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelHit {
    /// It is the first: its cause stands.
    First,
    /// There was one before; this one is counted.
    Again,
    /// It meant another session or epoch: nothing happened.
    Missed,
}

#[derive(Debug)]
struct TokenState {
    key: KvKey,
    cause: OnceLock<Cause>,
    later: AtomicU64,
}

/// Tells one attempt that it is not wanted any more. Clones are the same token; it stays cancelled.
#[derive(Debug, Clone)]
pub struct CancellationToken {
    state: Arc<TokenState>,
}

impl CancellationToken {
    /// The token of an attempt.
    #[must_use]
    pub fn new(key: KvKey) -> Self {
        Self { state: Arc::new(TokenState { key, cause: OnceLock::new(), later: AtomicU64::new(0) }) }
    }

    /// The attempt.
    #[must_use]
    pub fn key(&self) -> KvKey {
        self.state.key
    }

    /// Cancels the attempt, if it is `key`'s.
    pub fn cancel(&self, key: KvKey, cause: Cause) -> CancelHit {
        if key != self.state.key {
            return CancelHit::Missed;
        }
        if self.state.cause.set(cause).is_ok() {
            return CancelHit::First;
        }
        self.state.later.fetch_add(1, Ordering::Relaxed);
        CancelHit::Again
    }

    /// Who cancelled first, if anybody did.
    #[must_use]
    pub fn cancelled(&self) -> Option<Cause> {
        self.state.cause.get().copied()
    }

    /// Cancels after the first.
    #[must_use]
    pub fn later(&self) -> u64 {
        self.state.later.load(Ordering::Relaxed)
    }

    /// The token of the session's next attempt. A cancelled session gets none: no new epoch is opened.
    #[must_use]
    pub fn next_epoch(&self) -> Option<Self> {
        let KvKey { session, epoch } = self.state.key;
        let next = KvKey::new(session, epoch.checked_add(1)?);
        self.cancelled().is_none().then(|| Self::new(next))
    }
}

/// How a shard let go of the attempt's KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardOutcome {
    /// Not yet.
    Pending,
    /// It gave the KV back, or its process is dead.
    Released,
    /// It held nothing.
    WasAbsent,
    /// It never answered; its lease has ended.
    LeaseExpired,
}

/// What a cancel did, so far or in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancellationOutcome {
    /// The attempt.
    pub key: KvKey,
    /// For each shard, in layer order.
    pub shards: Vec<ShardOutcome>,
    /// Queued buffers given back, here and on the shards.
    pub buffers_released: u64,
    /// KV rows that the shards gave back, over all shards.
    pub rows_released: u64,
    /// Tokens committed in this epoch.
    pub committed_tokens: u32,
    /// Tokens delivered to the client.
    pub delivered_tokens: u32,
    /// A step whose outcome is not known.
    pub uncertain_step: Option<u32>,
    /// Who ended the attempt; `None` if nobody has.
    pub first_cause: Option<Cause>,
    /// Causes after the first.
    pub later_causes: u64,
}

impl CancellationOutcome {
    /// Of a session that nobody knows: absent everywhere, and no record is due.
    #[must_use]
    pub fn unknown(key: KvKey, shards: usize) -> Self {
        Self {
            key,
            shards: vec![ShardOutcome::WasAbsent; shards],
            buffers_released: 0,
            rows_released: 0,
            committed_tokens: 0,
            delivered_tokens: 0,
            uncertain_step: None,
            first_cause: None,
            later_causes: 0,
        }
    }

    /// Whether every shard has let go: only then the rows are free.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.shards.iter().all(|shard| *shard != ShardOutcome::Pending)
    }
}

/// What the host must do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelEffect {
    /// Call `stop` on this shard, and bring the answer to [`ShardCancellationGroup::stop_answered`]. No further step
    /// may be sent for the key, and no further token delivered.
    SendStop {
        /// Index of the shard.
        shard: usize,
        /// Who ended the attempt.
        cause: Cause,
    },
    /// Record the step as uncertain; drop its late answer.
    MarkUncertain {
        /// The step.
        step: u32,
    },
    /// Phase 2 is over: write the terminal record if one is due, and leave the key out of beats from now on, so that
    /// its lease can end.
    Quiesced,
    /// Call `release` on this shard, and bring the answer to [`ShardCancellationGroup::release_answered`].
    SendRelease {
        /// Index of the shard.
        shard: usize,
        /// Who ended the attempt.
        cause: Cause,
    },
    /// Phase 3 is over: the rows are free. See [`ShardCancellationGroup::outcome`].
    Settled,
}

/// Phase of a group. Ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CancelPhase {
    /// Not cancelled.
    Running,
    /// Phase 2.
    Quiescing,
    /// Phase 3.
    Releasing,
    /// Every shard has let go.
    Done,
}

/// What a shard has of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// It was never asked to open.
    NotAsked,
    /// It was asked.
    Opening,
    /// It may hold KV.
    Open,
    /// Its process is gone.
    Dead,
}

#[derive(Debug)]
struct Shard {
    hold: Hold,
    stop_sent: bool,
    stopped: bool,
    beat_sent_ms: u64,
    retry_ms: u64,
}

type Callback = Box<dyn FnOnce() + Send>;

/// The shards of one attempt, and what is queued for them, from opening to the last acknowledgement.
/// See the [module](self).
pub struct ShardCancellationGroup {
    lease_ms: u64,
    shards: Vec<Shard>,
    buffers: Vec<Callback>,
    step: Option<u32>,
    phase: CancelPhase,
    quiesce_until_ms: u64,
    now_ms: u64,
    outcome: CancellationOutcome,
}

impl fmt::Debug for ShardCancellationGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardCancellationGroup")
            .field("phase", &self.phase)
            .field("step", &self.step)
            .field("buffers", &self.buffers.len())
            .field("shards", &self.shards)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

impl ShardCancellationGroup {
    /// The group of an attempt over `shards` shards, none of which was asked to open. A queued session has one over 0.
    #[must_use]
    pub fn new(key: KvKey, shards: usize, lease_ms: u64) -> Self {
        let shard =
            || Shard { hold: Hold::NotAsked, stop_sent: false, stopped: false, beat_sent_ms: 0, retry_ms: 0 };
        let mut outcome = CancellationOutcome::unknown(key, shards);
        outcome.shards.fill(ShardOutcome::Pending);
        Self {
            lease_ms,
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            buffers: Vec::new(),
            step: None,
            phase: CancelPhase::Running,
            quiesce_until_ms: 0,
            now_ms: 0,
            outcome,
        }
    }

    /// The attempt.
    #[must_use]
    pub fn key(&self) -> KvKey {
        self.outcome.key
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> CancelPhase {
        self.phase
    }

    /// Something waits for the attempt; `release` gives it back. It runs exactly once: in phase 1, or now if that has
    /// passed.
    pub fn add_buffer(&mut self, release: impl FnOnce() + Send + 'static) {
        if self.phase == CancelPhase::Running {
            self.buffers.push(Box::new(release));
        } else {
            release();
            self.outcome.buffers_released += 1;
        }
    }

    /// What waited went its way without a cancel: the callbacks are forgotten, not run.
    pub fn clear_buffers(&mut self) {
        self.buffers.clear();
    }

    /// `open` was called on the shard. Its lease may run from here.
    pub fn open_sent(&mut self, shard: usize, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if let Some(shard) = self.shards.get_mut(shard).filter(|shard| shard.hold == Hold::NotAsked) {
            shard.hold = Hold::Opening;
            shard.beat_sent_ms = self.now_ms;
        }
    }

    /// `open` was answered, well or not: an open that failed may still have happened, so the shard is released either
    /// way.
    pub fn open_answered(&mut self, shard: usize, now_ms: u64) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        if let Some(shard) = self.shards.get_mut(shard).filter(|shard| shard.hold == Hold::Opening) {
            shard.hold = Hold::Open;
        }
        self.advance()
    }

    /// A beat that names the key was sent to the shard.
    pub fn beat_sent(&mut self, shard: usize, at_ms: u64) {
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.beat_sent_ms = shard.beat_sent_ms.max(at_ms);
        }
    }

    /// A step went out. Once stopping, none may; one that does is ignored.
    pub fn step_sent(&mut self, step: u32) {
        if self.phase == CancelPhase::Running {
            self.step = Some(step);
        }
    }

    /// The step in flight ended on all shards, or failed in a way that leaves nothing running; `tokens` were committed
    /// by it, 0 or 1. After phase 2 the answer is late: it changes nothing, and must not be committed. Gives whether it
    /// came in time.
    pub fn step_ended(&mut self, step: u32, tokens: u32, now_ms: u64) -> (bool, Vec<CancelEffect>) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.step != Some(step) {
            return (false, Vec::new());
        }
        self.step = None;
        self.outcome.committed_tokens = self.outcome.committed_tokens.saturating_add(tokens);
        (true, self.advance())
    }

    /// The step in flight will have no answer, or one that leaves in doubt what it did: it is uncertain at once, in
    /// whatever phase, and waited for no longer.
    pub fn step_lost(&mut self, step: u32, now_ms: u64) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        if self.step != Some(step) {
            return Vec::new();
        }
        self.step = None;
        self.outcome.uncertain_step = Some(step);
        let mut effects = vec![CancelEffect::MarkUncertain { step }];
        effects.append(&mut self.advance());
        effects
    }

    /// Tokens were handed to the client, in this epoch or, told at its begin, in earlier ones. Not while stopping.
    pub fn delivered(&mut self, tokens: u32) {
        if self.phase == CancelPhase::Running {
            self.outcome.delivered_tokens = self.outcome.delivered_tokens.saturating_add(tokens);
        }
    }

    /// Ends the attempt, at whatever point it is. `step_left_ms` is what the step in flight may still take. The first
    /// cause stands; later ones are counted, and give no effects.
    pub fn cancel(&mut self, now_ms: u64, cause: Cause, step_left_ms: u64) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        if self.outcome.first_cause.is_some() {
            self.outcome.later_causes += 1;
            return Vec::new();
        }
        self.outcome.first_cause = Some(cause);
        self.phase = CancelPhase::Quiescing;
        self.quiesce_until_ms = self.now_ms.saturating_add(step_left_ms.min(QUIESCE_MS));
        for release in std::mem::take(&mut self.buffers) {
            release();
            self.outcome.buffers_released += 1;
        }
        for (shard, outcome) in self.shards.iter().zip(&mut self.outcome.shards) {
            if shard.hold == Hold::NotAsked {
                *outcome = ShardOutcome::WasAbsent;
            }
        }
        self.advance()
    }

    /// A shard answered `stop`. An error stands for no answer: whatever runs there is waited for no longer than phase 2
    /// lasts, unless the error says that nothing runs.
    pub fn stop_answered(
        &mut self,
        shard: usize,
        answer: &Result<StopAck, AdapterError>,
        now_ms: u64,
    ) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        match answer {
            Err(AdapterError::WorkerDeath(_)) => return self.shard_died(shard, now_ms),
            // In flight or not, the step's own end is awaited beside this.
            Ok(StopAck::Quiescent | StopAck::InFlight { .. })
            | Err(
                AdapterError::StaleEpoch { .. } | AdapterError::CacheMiss(_) | AdapterError::LeaseExpired,
            ) => {
                if let Some(shard) = self.shards.get_mut(shard) {
                    shard.stopped = true;
                }
            }
            Err(_) => {}
        }
        self.advance()
    }

    /// A shard answered `release`. An answer before phase 3 or after the shard has settled changes nothing.
    pub fn release_answered(
        &mut self,
        shard: usize,
        answer: &Result<ReleaseAck, AdapterError>,
        now_ms: u64,
    ) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        if self.phase != CancelPhase::Releasing || !self.pending(shard) {
            return Vec::new();
        }
        match answer {
            Ok(ReleaseAck::Released { rows, buffers }) => {
                self.outcome.rows_released += u64::from(*rows);
                self.outcome.buffers_released += u64::from(*buffers);
                self.settle(shard, ShardOutcome::Released);
            }
            // Absent because it has not come yet: the open is still under way, so ask again.
            Ok(ReleaseAck::WasAbsent) if self.hold(shard) == Some(Hold::Opening) => {}
            // A fence above the epoch, or no such key: nothing of it is held there.
            Ok(ReleaseAck::WasAbsent) | Err(AdapterError::StaleEpoch { .. } | AdapterError::CacheMiss(_)) => {
                self.settle(shard, ShardOutcome::WasAbsent);
            }
            Err(AdapterError::LeaseExpired) => self.settle(shard, ShardOutcome::LeaseExpired),
            Err(AdapterError::WorkerDeath(_)) => return self.shard_died(shard, now_ms),
            Ok(ReleaseAck::Busy { .. }) | Err(_) => {}
        }
        self.advance()
    }

    /// The shard's process is gone, and its KV with it.
    pub fn shard_died(&mut self, shard: usize, now_ms: u64) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        if let Some(state) = self.shards.get_mut(shard)
            && state.hold != Hold::NotAsked
        {
            state.hold = Hold::Dead;
            state.stopped = true;
        }
        self.advance()
    }

    /// When [`ShardCancellationGroup::timer`] has something to do; `None` when nothing is waited for.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        match self.phase {
            CancelPhase::Running | CancelPhase::Done => None,
            CancelPhase::Quiescing => Some(self.quiesce_until_ms),
            CancelPhase::Releasing => self
                .shards
                .iter()
                .zip(&self.outcome.shards)
                .filter(|(_, outcome)| **outcome == ShardOutcome::Pending)
                .map(|(shard, _)| shard.retry_ms.min(lease_gone_at(shard.beat_sent_ms, self.lease_ms)))
                .min(),
        }
    }

    /// Time has passed.
    pub fn timer(&mut self, now_ms: u64) -> Vec<CancelEffect> {
        self.now_ms = self.now_ms.max(now_ms);
        self.advance()
    }

    /// What it has done so far; final when the phase is [`CancelPhase::Done`].
    #[must_use]
    pub fn outcome(&self) -> &CancellationOutcome {
        &self.outcome
    }

    fn hold(&self, shard: usize) -> Option<Hold> {
        self.shards.get(shard).map(|shard| shard.hold)
    }

    fn pending(&self, shard: usize) -> bool {
        self.outcome.shards.get(shard) == Some(&ShardOutcome::Pending)
    }

    fn settle(&mut self, shard: usize, outcome: ShardOutcome) {
        if let Some(slot) = self.outcome.shards.get_mut(shard) {
            *slot = outcome;
        }
    }

    /// Moves through the phases as far as what is known allows.
    fn advance(&mut self) -> Vec<CancelEffect> {
        let mut effects = Vec::new();
        let Some(cause) = self.outcome.first_cause else { return effects };
        let now_ms = self.now_ms;
        if self.phase == CancelPhase::Quiescing {
            for (index, shard) in self.shards.iter_mut().enumerate() {
                // A shard that is still opening is stopped when it has opened.
                if shard.hold == Hold::Open && !shard.stop_sent {
                    shard.stop_sent = true;
                    effects.push(CancelEffect::SendStop { shard: index, cause });
                }
            }
            let quiescent = self.step.is_none()
                && self.shards.iter().all(|shard| shard.stopped || shard.hold == Hold::NotAsked);
            if quiescent || now_ms >= self.quiesce_until_ms {
                if let Some(step) = self.step.take() {
                    self.outcome.uncertain_step = Some(step);
                    effects.push(CancelEffect::MarkUncertain { step });
                }
                effects.push(CancelEffect::Quiesced);
                self.phase = CancelPhase::Releasing;
                for shard in &mut self.shards {
                    shard.retry_ms = now_ms;
                }
            }
        }
        if self.phase == CancelPhase::Releasing {
            let pending = self.shards.iter_mut().zip(&mut self.outcome.shards).enumerate();
            for (index, (shard, outcome)) in pending {
                if *outcome != ShardOutcome::Pending {
                    continue;
                }
                if shard.hold == Hold::Dead {
                    *outcome = ShardOutcome::Released;
                } else if now_ms >= lease_gone_at(shard.beat_sent_ms, self.lease_ms) {
                    *outcome = ShardOutcome::LeaseExpired;
                } else if now_ms >= shard.retry_ms {
                    shard.retry_ms = now_ms.saturating_add(RELEASE_RETRY_MS);
                    effects.push(CancelEffect::SendRelease { shard: index, cause });
                }
            }
            if self.outcome.settled() {
                self.phase = CancelPhase::Done;
                effects.push(CancelEffect::Settled);
            }
        }
        effects
    }
}

#[cfg(test)]
mod tests;
