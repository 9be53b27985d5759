//! The client's end of a generation: a place for its tokens that the driver fills and never waits for.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::adapter::SessionId;
use crate::failure::Cause;
use crate::runner::inbox::Inbox;
use crate::session::Outcome;

/// What a client sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GenerationEvent {
    /// A token. Each index comes once, in order, whatever the number of epochs.
    Token {
        /// From 0.
        index: u32,
        /// The id.
        token: u32,
    },
    /// Still working: five seconds without a token.
    Wait,
    /// Nothing follows.
    Done(Box<Outcome>),
}

/// Tokens on their way to a client: at most as many as it asked for, one wait, one end.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: VecDeque<(u32, u32)>,
    wait: bool,
    done: Option<Box<Outcome>>,
    /// Nothing follows: the end was taken, or the driver is gone.
    closed: bool,
    waker: Option<Waker>,
}

impl Outbox {
    fn with(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn token(&self, index: u32, token: u32) {
        self.with(|state| {
            state.wait = false;
            state.tokens.push_back((index, token));
        });
    }

    pub(crate) fn wait(&self) {
        self.with(|state| state.wait = true);
    }

    pub(crate) fn done(&self, outcome: Box<Outcome>) {
        self.with(|state| state.done = Some(outcome));
    }

    pub(crate) fn close(&self) {
        self.with(|state| state.closed = true);
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((index, token)) = state.tokens.pop_front() {
            return Poll::Ready(Some(GenerationEvent::Token { index, token }));
        }
        if let Some(outcome) = state.done.take() {
            state.closed = true;
            return Poll::Ready(Some(GenerationEvent::Done(outcome)));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut state.wait) {
            return Poll::Ready(Some(GenerationEvent::Wait));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A running generation. Dropping it before its end cancels the session, cause client, unless it was
/// [detached](Generation::detach).
#[derive(Debug)]
pub struct Generation {
    session: SessionId,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
    delivered: u32,
    attached: bool,
}

impl Generation {
    pub(crate) fn new(session: SessionId, outbox: Arc<Outbox>, inbox: Arc<Inbox>) -> Self {
        Self { session, outbox, inbox, delivered: 0, attached: true }
    }

    /// Its session.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// The next event; `None` after [`GenerationEvent::Done`], and when the runner ended without one.
    /// Cancellation-safe.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        let event = poll_fn(|context| self.outbox.poll(context)).await;
        if matches!(event, None | Some(GenerationEvent::Done(_))) {
            self.attached = false;
        }
        event
    }

    /// The bytes of so many tokens, from the first on, were handed to the client's socket. Not less than before.
    pub fn delivered(&mut self, count: u32) {
        if count > self.delivered {
            self.delivered = count;
            self.inbox.delivered(self.session, count);
        }
    }

    /// Withdraws the session now, without waiting for an answer.
    pub fn cancel(&self, cause: Cause) {
        self.inbox.cancel(self.session, None, cause, None);
    }

    /// From now on the session runs to its end even if this is dropped.
    pub fn detach(&mut self) {
        self.attached = false;
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.attached {
            self.cancel(Cause::Client);
        }
    }
}
