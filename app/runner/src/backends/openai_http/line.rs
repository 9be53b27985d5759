//! One key's request, as seen from outside its steps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::adapter::{Counts, KvKey};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One key's request, as seen from outside its steps.
pub(super) struct Line {
    pub(super) key: KvKey,
    pub(super) reader: Mutex<Option<AbortHandle>>,
    /// No more steps; the connection is or will be closed.
    pub(super) cut: AtomicBool,
    /// The request is out and its connection open.
    pub(super) asked: AtomicBool,
    /// And its stream has begun: it is part of the load.
    pub(super) answered: AtomicBool,
    /// The upstream got the request and did not say that it ended.
    pub(super) runs: AtomicBool,
    pub(super) queued: AtomicU32,
    pub(super) counts: OnceLock<Counts>,
    /// Whether the request was seen to end, once that is known.
    pub(super) closed: watch::Sender<Option<bool>>,
}

impl Line {
    /// No more steps; the connection closes as soon as its task is dropped.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        if let Some(reader) = &*lock(&self.reader) {
            reader.abort();
        }
    }

    pub(super) fn hung_up(&self) {
        self.asked.store(false, Ordering::Release);
        self.answered.store(false, Ordering::Release);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) && !self.cut.load(Ordering::Acquire)
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire) && self.is_asked()
    }

    /// Waits until the request was seen to end, or not to.
    pub(super) async fn seen_closed(&self) -> bool {
        let mut closed = self.closed.subscribe();
        // The sender is this line's own, so the wait ends with an answer.
        closed.wait_for(Option::is_some).await.is_ok_and(|closed| *closed == Some(true))
    }
}
