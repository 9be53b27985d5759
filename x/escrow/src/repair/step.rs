//! The state machine: every cell of the table in escrow-details 6.

use holdfast_types::Address;
use thiserror::Error;

use super::delay::restart_ms;
use super::{
    Effect, Failure, Forgiven, LogStage, RepairConfig, RepairEvent, RepairPhase, RepairState, Verdict,
    backoff_ms,
};

/// What a step reads beside the stored state.
#[derive(Debug, Clone)]
pub struct RepairContext<'a> {
    /// The operator's choices.
    pub config: &'a RepairConfig,
    /// The escrow.
    pub escrow_id: u64,
    /// The flagged participant.
    pub participant: Address,
    /// The flag's generation; without a flag the last one, 0 = never flagged.
    pub generation: u64,
    /// Raises of this participant in this escrow, the present one included.
    pub raised: u32,
    /// A raise now comes within an hour of a restore.
    pub relapse: bool,
    /// The session's phase is Active.
    pub active: bool,
    /// Our last nonce.
    pub tip: u64,
    /// We doubt ourselves: no new flags.
    pub self_suspect: bool,
    /// More than half of the slot weight is out of our reach: time does not count.
    pub majority_unreachable: bool,
    /// Monotonic ms since the last step of this flag in this process; 0 for the first.
    pub since_ms: u64,
}

/// What a step leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The repair from now on; `None` = there is no flag.
    pub state: Option<RepairState>,
    /// The repair as a proof ended it.
    pub cleared: Option<RepairState>,
    /// Its generation.
    pub generation: u64,
    /// What to do, in this order.
    pub effects: Vec<Effect>,
}

/// An operator's verb that does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RepairError {
    /// The participant is not flagged in this escrow.
    #[error("the participant is not flagged in this escrow")]
    NotFlagged,
    /// The session is no longer Active.
    #[error("the repair is stopped: the session is no longer active")]
    Stopped,
}

impl RepairError {
    /// Stable number.
    pub fn code(&self) -> u32 {
        match self {
            Self::NotFlagged => 1,
            Self::Stopped => 2,
        }
    }
}

/// One step. `state` = `None`: the participant is not flagged.
///
/// # Errors
/// [`RepairError`] for an operator's verb without a repair that it could act on; nothing else fails.
pub fn step(
    ctx: &RepairContext<'_>,
    state: Option<&RepairState>,
    event: &RepairEvent,
) -> Result<Outcome, RepairError> {
    let Some(state) = state else { return unflagged(ctx, event) };
    let mut repair =
        Repair { ctx, state: state.clone(), generation: ctx.generation, cleared: false, effects: Vec::new() };
    repair.count_time(event);
    repair.take(event)?;
    let Repair { state, generation, cleared, effects, .. } = repair;
    let (state, cleared) = if cleared { (None, Some(state)) } else { (Some(state), None) };
    Ok(Outcome { state, cleared, generation, effects })
}

fn unflagged(ctx: &RepairContext<'_>, event: &RepairEvent) -> Result<Outcome, RepairError> {
    let mut outcome = Outcome { state: None, cleared: None, generation: ctx.generation, effects: Vec::new() };
    let own = matches!(event, RepairEvent::OwnFork { .. });
    match *event {
        RepairEvent::ForceTeach | RepairEvent::GiveUp | RepairEvent::Release => {
            return Err(RepairError::NotFlagged);
        }
        // Our doubt is about whose fault a mismatch is. Of a fork of our own that is known.
        RepairEvent::Mismatch { nonce } | RepairEvent::OwnFork { nonce } if own || !ctx.self_suspect => {
            let phase = if ctx.active { RepairPhase::Waiting } else { RepairPhase::Stopped };
            let level = if ctx.relapse { RepairConfig::TOP_LEVEL } else { 0 };
            outcome.effects =
                vec![Effect::InsertFlag, Effect::RecordEvidence { nonce }, Effect::Log(LogStage::Blocked)];
            if ctx.active {
                outcome.effects.push(Effect::Log(LogStage::RepairStarted));
                outcome.effects.push(Effect::WakeIn(ctx.config.first_wait_ms));
            }
            outcome.generation = ctx.generation.saturating_add(1);
            let mut state = RepairState::begin(ctx.config, phase, level);
            if own {
                (state.forked, state.released) = (true, Forgiven::OwnFork);
            }
            outcome.state = Some(state);
        }
        // A permit that comes after the flag has gone goes back.
        RepairEvent::Due { permit: true } => {
            outcome.effects = vec![Effect::ReleasePermit, Effect::Ignored];
        }
        // The ordinary path of a dispatch.
        RepairEvent::LateEnd { .. } => {}
        _ => outcome.effects.push(Effect::Ignored),
    }
    Ok(outcome)
}

/// How long a repair waits after an attempt.
enum Wait {
    /// By the ladder, one level up.
    Next,
    /// Shortly, level kept.
    Short,
}

struct Repair<'a> {
    ctx: &'a RepairContext<'a>,
    state: RepairState,
    generation: u64,
    cleared: bool,
    effects: Vec<Effect>,
}

impl Repair<'_> {
    /// Attempt and backoff time counts; downtime, the wait for a permit and the time in which we reach no majority do
    /// not.
    fn count_time(&mut self, event: &RepairEvent) {
        if self.state.paused || *event == RepairEvent::Restarted {
            return;
        }
        let since = self.ctx.since_ms;
        let counts = match self.state.phase {
            RepairPhase::Waiting => {
                let waited = since.min(self.state.due_in_ms);
                self.state.due_in_ms = self.state.due_in_ms.saturating_sub(waited);
                waited
            }
            RepairPhase::Teaching | RepairPhase::Verifying => since,
            RepairPhase::GaveUp | RepairPhase::Stopped => 0,
        };
        if !self.ctx.majority_unreachable {
            self.state.elapsed_ms = self.state.elapsed_ms.saturating_add(counts);
        }
    }

    fn take(&mut self, event: &RepairEvent) -> Result<(), RepairError> {
        use RepairPhase::{GaveUp, Stopped, Teaching, Verifying, Waiting};
        let phase = self.state.phase;
        match (event, phase) {
            (RepairEvent::Mismatch { nonce }, Teaching | Verifying) => self.mismatch_in_attempt(*nonce),
            (RepairEvent::Mismatch { nonce }, _) => self.evidence(*nonce),

            (RepairEvent::OwnFork { nonce }, _) => self.own_fork(*nonce),

            (RepairEvent::Due { permit }, Waiting) => self.due(*permit),
            (RepairEvent::Due { permit: true }, _) => {
                self.effects.extend([Effect::ReleasePermit, Effect::Ignored]);
            }

            (RepairEvent::Bound, Teaching) => {
                self.state.bind_due = false;
                self.next_call(false);
            }
            (RepairEvent::ResetDone, Teaching) => {
                // The copy that differed is gone: what is taught from here on must not be dropped again.
                self.state.forked = false;
                self.rewind();
                self.next_call(false);
            }
            (RepairEvent::ResetRefused, Teaching) => self.next_call(false),
            (RepairEvent::CensusTaken, Waiting | Teaching | Verifying) => self.state.census_due = false,

            (RepairEvent::ChunkApplied { nonce }, Teaching) => self.applied(*nonce),
            (RepairEvent::ChunkBehind { have }, Teaching) => self.old_snapshot(*have),
            (RepairEvent::ChunkRefused { nonce }, Teaching) => {
                self.evidence(*nonce);
                self.end(Verdict::Refused, Wait::Next);
            }
            (RepairEvent::BudgetUsed, Teaching) => {
                self.effects.push(Effect::Cancel);
                let wait = if self.state.progress { Wait::Short } else { Wait::Next };
                self.end(if self.state.progress { Verdict::Budget } else { Verdict::TimedOut }, wait);
            }
            (RepairEvent::Forked { nonce }, Teaching | Verifying) => {
                self.evidence(*nonce);
                self.state.forked = true;
                self.state.level = RepairConfig::TOP_LEVEL;
                self.effects.push(Effect::FindFirstBad { bad: *nonce });
                self.end(Verdict::Forked, Wait::Next);
            }
            (RepairEvent::NotFound, Teaching | Verifying) => self.not_found(),
            (RepairEvent::Failed(failure), Teaching | Verifying) => self.failed(*failure),

            (RepairEvent::Proof(proof), Teaching | Verifying) => {
                let current = proof.generation() == self.generation
                    && proof.attempt() == self.state.attempt
                    && proof.nonce() >= self.state.target
                    && proof.nonce() <= self.ctx.tip;
                if current {
                    self.clear(proof.nonce());
                } else {
                    self.effects.push(Effect::Ignored);
                }
            }
            (RepairEvent::SignedBehind { nonce }, Verifying) => {
                self.effects.push(Effect::MoveCursor(*nonce));
                self.end(Verdict::Behind, Wait::Next);
            }
            (RepairEvent::SignedAboveTip { nonce }, Teaching | Verifying) => {
                self.evidence(*nonce);
                self.end(Verdict::AboveTip, Wait::Next);
            }
            (RepairEvent::SignedAboveTip { nonce }, GaveUp) => self.evidence(*nonce),
            (RepairEvent::KeyNotBound, Verifying) => {
                self.effects.push(Effect::QueueTxs);
                self.end(Verdict::KeyNotBound, Wait::Next);
            }
            (RepairEvent::Withheld { nonce }, Teaching | Verifying) => self.withheld(*nonce),

            (RepairEvent::LateEnd { served: false }, _) => self.effects.push(Effect::HandleTimeout),

            (RepairEvent::Announced { since_reopen_ms }, GaveUp) => self.announced(*since_reopen_ms),
            (RepairEvent::ForceTeach | RepairEvent::GiveUp | RepairEvent::Release, Stopped) => {
                return Err(RepairError::Stopped);
            }
            (RepairEvent::ForceTeach, Waiting) => self.wait(0),
            (RepairEvent::ForceTeach, GaveUp) => self.reopen(0),
            (RepairEvent::GiveUp, Waiting | Teaching | Verifying) => {
                self.void(Verdict::Operator);
                self.give_up();
            }
            (RepairEvent::Release, _) => {
                self.state.released = self.state.released.max(Forgiven::Operator);
            }

            (RepairEvent::SessionEnded, Waiting | Teaching | Verifying | GaveUp) => {
                self.void(Verdict::SessionEnded);
                self.state.phase = Stopped;
                self.state.due_in_ms = 0;
                self.effects.push(Effect::StopWorker);
            }
            (RepairEvent::Restarted, Waiting | Teaching | Verifying) => self.restarted(),
            (RepairEvent::StoreUnreadable, Waiting | Teaching | Verifying) => {
                if !self.state.paused {
                    self.void(Verdict::StoreUnreadable);
                    self.state.phase = Waiting;
                    self.state.paused = true;
                }
                // The next look; the rest of the wait stands still.
                self.effects.push(Effect::WakeIn(self.ctx.config.short_wait_ms));
            }
            (RepairEvent::StoreReadable, Waiting) if self.state.paused => {
                self.state.paused = false;
                self.wait(self.state.due_in_ms);
            }

            _ => self.effects.push(Effect::Ignored),
        }
        Ok(())
    }

    /// What was held against it is ours. A reset, if the host consents, comes first in the next attempt.
    fn own_fork(&mut self, nonce: u64) {
        self.evidence(nonce);
        let known = self.state.released == Forgiven::OwnFork;
        (self.state.forked, self.state.released) = (true, Forgiven::OwnFork);
        if self.state.phase.in_attempt() {
            self.effects.push(Effect::Cancel);
            self.end(Verdict::Forked, if known { Wait::Next } else { Wait::Short });
        }
    }

    fn evidence(&mut self, nonce: u64) {
        self.effects.push(Effect::RecordEvidence { nonce });
    }

    fn wait(&mut self, ms: u64) {
        self.state.phase = RepairPhase::Waiting;
        self.state.due_in_ms = ms;
        if !self.state.paused {
            self.effects.push(Effect::WakeIn(ms));
        }
    }

    fn deadline_passed(&self) -> bool {
        self.state.elapsed_ms >= self.ctx.config.deadline_ms(self.ctx.raised)
    }

    fn give_up(&mut self) {
        self.state.phase = RepairPhase::GaveUp;
        self.state.due_in_ms = 0;
        self.state.paused = false;
        self.effects.extend([Effect::Log(LogStage::GaveUp), Effect::StopWorker]);
    }

    /// An attempt begins anew, under a generation that no proof exists for.
    fn new_generation(&mut self) {
        self.generation = self.generation.saturating_add(1);
        self.state.attempt = 1;
        self.state.not_found = 0;
        self.state.census_due = true;
        self.state.chunk_diffs = self.ctx.config.chunk_diffs;
    }

    fn due(&mut self, permit: bool) {
        // A driver that can still not read our store says so instead.
        self.state.paused = false;
        let asleep = self.state.due_in_ms > 0;
        if permit && (asleep || self.deadline_passed()) {
            self.effects.push(Effect::ReleasePermit);
        }
        if asleep {
            self.effects.push(Effect::WakeIn(self.state.due_in_ms));
        } else if self.deadline_passed() {
            self.give_up();
        } else if permit {
            self.start();
        } else {
            self.effects.push(Effect::QueueForPermit);
        }
    }

    fn start(&mut self) {
        let state = &mut self.state;
        state.phase = RepairPhase::Teaching;
        state.target = self.ctx.tip;
        state.progress = false;
        state.reached = 0;
        state.old_snapshot = false;
        self.effects.push(Effect::StartAttempt {
            generation: self.generation,
            attempt: state.attempt,
            target: state.target,
        });
        if state.census_due {
            self.effects.push(Effect::TakeCensus);
        }
        self.next_call(true);
    }

    /// The call that the attempt makes now. `reset`: it is its first.
    fn next_call(&mut self, reset: bool) {
        self.effects.push(if reset && self.state.forked && self.ctx.config.allow_reset {
            Effect::CallReset
        } else if self.state.bind_due {
            Effect::SendBind
        } else {
            Effect::Teach { max_diffs: self.state.chunk_diffs }
        });
    }

    /// The host holds nothing: from the first diff on, after a Bind.
    fn rewind(&mut self) {
        self.state.bind_due = true;
        self.effects.push(Effect::MoveCursor(0));
    }

    fn applied(&mut self, nonce: u64) {
        // A host cannot hold what we did not make (unsigned it is no evidence either), and a chunk that moves nothing
        // would be sent for ever.
        if nonce > self.ctx.tip || (nonce <= self.state.reached && nonce < self.state.target) {
            return self.failed(Failure::Malformed);
        }
        self.state.reached = nonce;
        self.state.progress = true;
        self.effects.push(Effect::MoveCursor(nonce));
        if nonce < self.state.target {
            return self.next_call(false);
        }
        self.state.phase = RepairPhase::Verifying;
        self.effects.push(Effect::AskSignature { nonce: self.state.target });
    }

    fn old_snapshot(&mut self, have: u64) {
        self.effects.push(Effect::MoveCursor(have));
        if self.state.old_snapshot {
            return self.end(Verdict::Behind, Wait::Next);
        }
        self.state.old_snapshot = true;
        self.state.reached = have;
        self.next_call(false);
    }

    fn not_found(&mut self) {
        // Whatever it held before is gone with the copy.
        self.state.forked = false;
        self.rewind();
        let wait = if self.state.not_found < 2 { Wait::Short } else { Wait::Next };
        self.state.not_found = self.state.not_found.saturating_add(1);
        self.end(Verdict::NotFound, wait);
    }

    fn failed(&mut self, failure: Failure) {
        if failure == Failure::TooLarge && self.state.phase == RepairPhase::Teaching {
            self.state.chunk_diffs = (self.state.chunk_diffs / 2).max(1);
        }
        self.end(failure.verdict(), Wait::Next);
    }

    fn withheld(&mut self, nonce: u64) {
        self.effects.push(Effect::QueueTxs);
        // Before the target nothing has to be signed: the diffs to come may hold what the host misses.
        if self.state.phase == RepairPhase::Teaching && nonce <= self.ctx.tip {
            if nonce < self.state.target {
                return self.applied(nonce);
            }
            self.effects.push(Effect::MoveCursor(nonce));
        }
        self.end(Verdict::Withheld, Wait::Next);
    }

    fn mismatch_in_attempt(&mut self, nonce: u64) {
        self.evidence(nonce);
        self.effects.push(Effect::Cancel);
        self.end(Verdict::Mismatch, Wait::Short);
        self.new_generation();
    }

    /// The attempt failed: wait for the next one, or give up.
    fn end(&mut self, verdict: Verdict, wait: Wait) {
        let ms = match wait {
            Wait::Short => self.ctx.config.short_wait_ms,
            Wait::Next => {
                let base = self.ctx.config.base_ms(self.state.level);
                self.state.level = self.state.level.saturating_add(1).min(RepairConfig::TOP_LEVEL);
                let (escrow_id, participant) = (self.ctx.escrow_id, self.ctx.participant);
                backoff_ms(base, escrow_id, participant, self.generation, self.state.attempt)
            }
        };
        self.ended(verdict);
        if self.deadline_passed() {
            self.give_up();
        } else {
            self.wait(ms);
        }
    }

    fn ended(&mut self, verdict: Verdict) {
        self.state.last_verdict = verdict;
        self.state.attempt = self.state.attempt.saturating_add(1);
        self.effects.extend([Effect::ReleasePermit, Effect::Log(LogStage::RepairAttempt)]);
    }

    /// Ends what runs without a judgement of the host.
    fn void(&mut self, verdict: Verdict) {
        if self.state.phase.in_attempt() {
            self.effects.push(Effect::Cancel);
            self.ended(verdict);
        } else if self.state.phase == RepairPhase::Waiting {
            self.effects.push(Effect::ReleasePermit);
        }
    }

    fn clear(&mut self, nonce: u64) {
        self.effects.push(Effect::MoveCursor(nonce));
        self.ended(Verdict::Restored);
        self.effects.extend([Effect::ClearFlag, Effect::Log(LogStage::Unblocked), Effect::StopWorker]);
        self.cleared = true;
    }

    fn announced(&mut self, since_reopen_ms: u64) {
        let config = self.ctx.config;
        let early = self.state.reopened > 0 && since_reopen_ms < config.reopen_gap_ms;
        if early || self.state.reopened >= config.reopen_limit {
            return self.effects.push(Effect::Ignored);
        }
        self.state.reopened = self.state.reopened.saturating_add(1);
        self.reopen(config.first_wait_ms);
    }

    /// From GaveUp back to work; the ladder and the deadline begin anew.
    fn reopen(&mut self, wait_ms: u64) {
        self.new_generation();
        self.state.level = 0;
        self.state.elapsed_ms = 0;
        self.effects.push(Effect::Log(LogStage::RepairStarted));
        self.wait(wait_ms);
    }

    fn restarted(&mut self) {
        if self.state.phase.in_attempt() {
            // The permit went with the process.
            self.state.last_verdict = Verdict::Restarted;
            self.state.attempt = self.state.attempt.saturating_add(1);
        }
        self.state.paused = false;
        let spread = self.ctx.config.restart_spread_ms;
        let RepairContext { escrow_id, participant, .. } = *self.ctx;
        self.wait(restart_ms(spread, escrow_id, participant, self.generation, self.state.attempt));
    }
}
