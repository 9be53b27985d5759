//! Sessions whose time is over are forgotten, and segments that nothing needs are removed.

use super::error::LedgerError;
use super::log::IdempotencyLedger;
use crate::adapter::SessionId;

/// Most sessions that one [`IdempotencyLedger::retire`] forgets or moves.
const RETIRE_MAX: usize = 256;

/// What [`IdempotencyLedger::retire`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retired {
    /// Sessions forgotten.
    pub sessions: usize,
    /// Sessions copied out of the oldest segment.
    pub moved: usize,
    /// Segments removed.
    pub segments: usize,
}

impl IdempotencyLedger {
    /// Forgets closed sessions whose time is over, and removes the oldest segments that no session needs. When the log
    /// is much longer than what is alive in it, sessions are copied out of the oldest segment. A bounded amount of
    /// work; the next call goes on, after a flush.
    ///
    /// # Errors
    /// Stopped; I/O while a segment is removed, which may be tried again.
    pub fn retire(&mut self, now_ms: u64) -> Result<Retired, LedgerError> {
        self.usable()?;
        let mut retired = Retired::default();
        while let Some(&(due, lsn, session)) = self.closing.front() {
            if due > now_ms || retired.sessions == RETIRE_MAX {
                break;
            }
            if lsn > self.synced {
                // A session is forgotten for good or not at all.
                self.sync_wanted = self.sync_wanted.max(lsn);
                break;
            }
            self.closing.pop_front();
            if let Some(session) = self.index.remove(session) {
                let records = session.attempts.iter().filter_map(|attempt| attempt.terminal.as_deref());
                records.for_each(|record| self.work.remove(record));
            }
            retired.sessions += 1;
        }
        if self.mostly_dead() {
            retired.moved = self.move_out_of_first()?;
        }
        while self.lengths.len() > 1
            && self.moved_to <= self.synced
            && self.index.homes.keys().next().is_none_or(|home| *home > self.first)
        {
            self.store.remove(self.first)?;
            self.lengths.pop_front();
            self.first += 1;
            retired.segments += 1;
        }
        Ok(retired)
    }

    /// Copying is worth it: more than four segments, and less than a quarter of them alive.
    fn mostly_dead(&self) -> bool {
        let log: u64 = self.lengths.iter().sum();
        log > self.config.segment_bytes.saturating_mul(4) && log / 4 > self.index.bytes as u64
    }

    fn move_out_of_first(&mut self) -> Result<usize, LedgerError> {
        let last = self.last_segment();
        let Some(at_home) = self.index.homes.get(&self.first).filter(|_| last > self.first) else {
            return Ok(0);
        };
        let sessions: Vec<SessionId> = at_home.iter().take(RETIRE_MAX).copied().collect();
        for session in &sessions {
            for record in self.index.records(*session) {
                self.append(&record)?;
            }
            self.index.move_home(*session, last);
        }
        self.moved_to = self.appended;
        self.sync_wanted = self.appended;
        Ok(sessions.len())
    }
}
