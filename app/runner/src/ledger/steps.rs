//! The steps of an attempt: each runs once, or nobody knows.

use super::error::LedgerError;
use super::format::{Record, StepKey};
use super::index::{Session, Step, StepMark};
use super::log::IdempotencyLedger;
use crate::adapter::Digest;

/// What to do with a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepDisposition {
    /// It is new: its intent is in the buffer, run it after the flush.
    Fresh,
    /// It ran: this is its result.
    Replay {
        /// Its token; none for a prefill chunk before the last.
        token: Option<u32>,
        /// SHA-256 of the logits; zeros where there is no token.
        logits_digest: Digest,
    },
    /// It ran with other content.
    Conflict,
    /// A later attempt has begun.
    StaleEpoch {
        /// The session's last epoch.
        have: u32,
    },
    /// The session was closed.
    Closed,
}

/// A step may have run and may not be run again: ask every shard ([`IdempotencyLedger::resolve`]) or open the next
/// epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody knows whether step {} of session {} epoch {} ran", .0.step, .0.session, .0.epoch)]
pub struct UncertainMutationError(pub StepKey);

/// Why a step may not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// Its intent is open or in doubt.
    #[error(transparent)]
    Uncertain(#[from] UncertainMutationError),
    /// Its attempt has a terminal record, and the step is not in it.
    #[error("the attempt has ended")]
    Terminated,
    /// Not the next step, or the one before it did not end.
    #[error("step {step} is out of order: the next one is {next}")]
    OutOfOrder {
        /// The step.
        step: u32,
        /// The one that may begin, once those before it ended.
        next: u32,
    },
    /// The ledger's own refusal: never opened, stopped.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What all shards say of an uncertain step (runner-details 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// All ran it, with the fingerprint of its intent.
    Ran {
        /// Its token; none for a prefill chunk before the last.
        token: Option<u32>,
        /// SHA-256 of the logits; zeros where there is no token.
        logits_digest: Digest,
    },
    /// None ran it, and all are at its position.
    NotRun,
}

impl IdempotencyLedger {
    /// What to do with a step. For [`StepDisposition::Fresh`], flush before the first shard sees it.
    ///
    /// # Errors
    /// [`UncertainMutationError`] while its intent is open or in doubt; see [`BeginError`].
    pub fn begin(&mut self, key: StepKey, fingerprint: Digest) -> Result<StepDisposition, BeginError> {
        self.usable()?;
        let session = self.index.sessions.get_mut(&key.session).ok_or(LedgerError::NotOpened)?;
        if session.closed {
            return Ok(StepDisposition::Closed);
        }
        let next = u32::try_from(session.steps.len()).unwrap_or(u32::MAX);
        let attempt = session.last();
        if key.epoch < attempt.epoch {
            return Ok(StepDisposition::StaleEpoch { have: attempt.epoch });
        }
        if key.epoch > attempt.epoch {
            return Err(LedgerError::NotOpened.into());
        }
        let ended = attempt.terminal.is_some();
        match session.step_mut(key.step).map(|step| (step.fingerprint, step.state)) {
            Some((recorded, StepMark::Committed { token, logits_digest })) => {
                return Ok(if recorded == fingerprint {
                    StepDisposition::Replay { token, logits_digest }
                } else {
                    StepDisposition::Conflict
                });
            }
            Some((_, StepMark::Open | StepMark::Uncertain | StepMark::Ran)) => {
                return Err(UncertainMutationError(key).into());
            }
            Some((_, StepMark::NotRun)) | None if ended => return Err(BeginError::Terminated),
            Some((_, StepMark::NotRun)) => {}
            None => {
                let before = session.steps.last();
                let done = before.is_none_or(|step| matches!(step.state, StepMark::Committed { .. }));
                if key.step != next || !done {
                    let next = if done { next } else { next.saturating_sub(1) };
                    return Err(BeginError::OutOfOrder { step: key.step, next });
                }
            }
        }
        self.append(&Record::StepIntent { key, fingerprint })?;
        self.index.intent(key, fingerprint).map_err(LedgerError::Invalid)?;
        Ok(StepDisposition::Fresh)
    }

    /// The session and step of `key`, whose attempt is live.
    fn live_step(&mut self, key: StepKey) -> Result<&mut Step, LedgerError> {
        self.usable()?;
        let session: &mut Session =
            self.index.sessions.get_mut(&key.session).ok_or(LedgerError::NotOpened)?;
        let attempt = session.last();
        if session.closed {
            return Err(LedgerError::Closed);
        }
        if key.epoch < attempt.epoch {
            return Err(LedgerError::StaleEpoch { have: attempt.epoch });
        }
        if key.epoch > attempt.epoch {
            return Err(LedgerError::NotOpened);
        }
        if attempt.terminal.is_some() {
            return Err(LedgerError::WrongStep(key.step));
        }
        session.step_mut(key.step).ok_or(LedgerError::WrongStep(key.step))
    }

    /// A step ran on every shard. `logits_digest` is zeros where there is no token. Flush before the token leaves the
    /// runner.
    ///
    /// # Errors
    /// A step without an open intent: a late answer about a step that was given up is refused.
    pub fn commit(
        &mut self,
        key: StepKey,
        token: Option<u32>,
        logits_digest: Digest,
    ) -> Result<(), LedgerError> {
        if self.live_step(key)?.state != StepMark::Open {
            return Err(LedgerError::WrongStep(key.step));
        }
        self.append(&Record::StepCommitted { key, token, logits_digest })?;
        self.index.committed(key, token, logits_digest).map_err(LedgerError::Invalid)
    }

    /// Nobody knows whether a step ran. Again: nothing happens.
    ///
    /// # Errors
    /// A step without an open intent.
    pub fn mark_uncertain(&mut self, key: StepKey) -> Result<(), LedgerError> {
        match self.live_step(key)?.state {
            StepMark::Open => {}
            StepMark::Uncertain => return Ok(()),
            _ => return Err(LedgerError::WrongStep(key.step)),
        }
        self.append(&Record::StepUncertain { key })?;
        self.index.uncertain(key).map_err(LedgerError::Invalid)
    }

    /// All shards agree about an uncertain step.
    ///
    /// # Errors
    /// A step that is not uncertain.
    pub fn resolve(&mut self, key: StepKey, resolution: Resolution) -> Result<(), LedgerError> {
        if self.live_step(key)?.state != StepMark::Uncertain {
            return Err(LedgerError::WrongStep(key.step));
        }
        let committed = matches!(resolution, Resolution::Ran { .. });
        self.append(&Record::StepResolved { key, committed })?;
        self.index.resolved(key, committed).map_err(LedgerError::Invalid)?;
        if let Resolution::Ran { token, logits_digest } = resolution {
            self.append(&Record::StepCommitted { key, token, logits_digest })?;
            self.index.committed(key, token, logits_digest).map_err(LedgerError::Invalid)?;
        }
        Ok(())
    }
}
