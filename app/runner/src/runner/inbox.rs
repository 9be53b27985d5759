//! Commands on their way to the driver. Repeated ones of a session fold into one, so the number is bounded by the
//! sessions and the callers that wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::sync::oneshot;

use crate::adapter::{KvKey, SessionId};
use crate::cancel::{CancellationOutcome, CancellationToken};
use crate::failure::Cause;
use crate::ledger::LedgerError;
use crate::record::{WorkLedger, WorkRecord};
use crate::runner::{Generation, Report};
use crate::session::{GenerateRequest, SubmitError};
use crate::telemetry::Snapshot;

/// Most submissions that wait for the driver's next turn.
const SUBMITS_MAX: usize = 1_024;

/// An answer to one caller.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// What callers want of the ledger and the counters.
#[derive(Debug)]
pub(crate) enum Question {
    Telemetry(Reply<Snapshot>),
    Work(Reply<WorkLedger>),
    Records(SessionId, Reply<Vec<WorkRecord>>),
    Unsubmitted(Reply<Vec<Report>>),
    MarkSubmitted { record: KvKey, reference: String, reply: Reply<Result<(), LedgerError>> },
    MarkClosed(SessionId, Reply<Result<(), LedgerError>>),
}

/// A cancel and who waits for its outcome.
#[derive(Debug)]
pub(crate) struct Cancel {
    pub(crate) session: SessionId,
    pub(crate) epoch: Option<u32>,
    pub(crate) cause: Cause,
    pub(crate) reply: Option<Reply<CancellationOutcome>>,
}

/// What came in since the last turn.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    pub(crate) submits: VecDeque<(GenerateRequest, Reply<Result<Generation, SubmitError>>)>,
    pub(crate) cancels: Vec<Cancel>,
    pub(crate) delivered: BTreeMap<SessionId, u32>,
    pub(crate) questions: Vec<Question>,
    /// Stop within so many milliseconds; the least that was asked for.
    pub(crate) stop_ms: Option<u64>,
}

impl Commands {
    fn is_empty(&self) -> bool {
        self.submits.is_empty()
            && self.cancels.is_empty()
            && self.delivered.is_empty()
            && self.questions.is_empty()
            && self.stop_ms.is_none()
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    commands: Commands,
    waker: Option<Waker>,
    /// Of the current epoch of each session.
    tokens: BTreeMap<SessionId, CancellationToken>,
    closed: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives whether there is a driver to read it.
    fn add(&self, change: impl FnOnce(&mut Commands)) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        change(&mut state.commands);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    pub(crate) fn submit(
        &self,
        request: GenerateRequest,
        reply: Reply<Result<Generation, SubmitError>>,
    ) -> Result<(), SubmitError> {
        let mut full = false;
        let open = self.add(|commands| {
            full = commands.submits.len() >= SUBMITS_MAX;
            if !full {
                commands.submits.push_back((request, reply));
            }
        });
        match (open, full) {
            (false, _) => Err(SubmitError::Stopped),
            (true, true) => Err(SubmitError::QueueFull { retry_after_ms: 1_000 }),
            (true, false) => Ok(()),
        }
    }

    /// The session's epoch is cancelled at once; what follows from it is the driver's. A cancel nobody waits for folds
    /// into an earlier one of the same session: the first cause wins anyway.
    pub(crate) fn cancel(
        &self,
        session: SessionId,
        epoch: Option<u32>,
        cause: Cause,
        reply: Option<Reply<CancellationOutcome>>,
    ) {
        if let Some(token) = self.lock().tokens.get(&session) {
            let key = token.key();
            token.cancel(epoch.map_or(key, |epoch| KvKey::new(session, epoch)), cause);
        }
        self.add(|commands| {
            let known =
                commands.cancels.iter().any(|other| other.session == session && other.epoch.is_none());
            if reply.is_some() || !known {
                commands.cancels.push(Cancel { session, epoch, cause, reply });
            }
        });
    }

    pub(crate) fn delivered(&self, session: SessionId, count: u32) {
        self.add(|commands| {
            let most = commands.delivered.entry(session).or_default();
            *most = count.max(*most);
        });
    }

    pub(crate) fn ask(&self, question: Question) -> bool {
        self.add(|commands| commands.questions.push(question))
    }

    pub(crate) fn stop(&self, within_ms: u64) {
        self.add(|commands| commands.stop_ms = Some(commands.stop_ms.unwrap_or(u64::MAX).min(within_ms)));
    }

    /// Takes what is there, or has the driver woken when something comes.
    pub(crate) fn take(&self, context: &Context<'_>) -> Option<Commands> {
        let mut state = self.lock();
        if state.commands.is_empty() {
            state.waker = Some(context.waker().clone());
            return None;
        }
        Some(std::mem::take(&mut state.commands))
    }

    /// A session has this token now.
    pub(crate) fn attempt(&self, token: CancellationToken) {
        self.lock().tokens.insert(token.key().session, token);
    }

    /// A session is over.
    pub(crate) fn ended(&self, session: SessionId) {
        self.lock().tokens.remove(&session);
    }

    /// Nobody reads any more: who waits for an answer gets none.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        drop(commands);
    }
}
