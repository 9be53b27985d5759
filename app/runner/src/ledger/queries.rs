//! What the ledger knows.

use super::format::EpochOpened;
use super::index::Attempt;
use super::log::IdempotencyLedger;
use crate::adapter::{KvKey, SessionId};
use crate::record::{WorkLedger, WorkRecord};

impl IdempotencyLedger {
    /// Number of this start: every frame to a worker carries it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Counts over the durable records of all sessions that are still remembered.
    #[must_use]
    pub fn work(&self) -> &WorkLedger {
        &self.work
    }

    /// Sessions it holds.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.index.sessions.len()
    }

    /// Estimate of the memory they take, bytes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.bytes
    }

    fn attempt(&self, key: KvKey) -> Option<&Attempt> {
        self.index.sessions.get(&key.session)?.attempt(key.epoch)
    }

    /// The record of an attempt, durable or not.
    #[must_use]
    pub fn record(&self, key: KvKey) -> Option<&WorkRecord> {
        self.attempt(key)?.terminal.as_deref()
    }

    /// What the attempt began with.
    #[must_use]
    pub fn opened(&self, key: KvKey) -> Option<&EpochOpened> {
        self.attempt(key)?.opened.as_deref()
    }

    /// The session's last epoch.
    #[must_use]
    pub fn last_epoch(&self, session: SessionId) -> Option<u32> {
        Some(self.index.sessions.get(&session)?.last().epoch)
    }

    /// Tokens committed in an attempt, in order. Those of an attempt before the last one may be gone after a restart.
    #[must_use]
    pub fn committed_tokens(&self, session: SessionId, epoch: u32) -> &[u32] {
        self.attempt(KvKey::new(session, epoch)).map_or(&[], |attempt| &attempt.tokens)
    }

    /// Tokens that the session's client has.
    #[must_use]
    pub fn delivered_count(&self, session: SessionId) -> u32 {
        self.index.sessions.get(&session).map_or(0, |session| session.delivered)
    }

    /// Durable records whose report was not taken yet: of each session that is not closed, that of its last epoch. An
    /// attempt that is being restarted is not among them once the next epoch is open.
    pub fn unsubmitted(&self) -> impl Iterator<Item = &WorkRecord> {
        self.index.unsubmitted.iter().filter_map(|session| {
            let attempt = self.index.sessions.get(session)?.last();
            attempt.terminal.as_deref().filter(|_| attempt.terminal_lsn <= self.synced)
        })
    }
}
