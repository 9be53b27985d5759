//! The log under the ledger: what is appended is written in one piece, made durable in one sync, and goes on in the
//! next segment when one is full.

use std::collections::VecDeque;
use std::io;

use super::error::LedgerError;
use super::format::{self, HEADER_BYTES, Header, Record};
use super::index::Index;
use super::store::{LedgerStore, Syncer};
use crate::adapter::SessionId;
use crate::record::WorkLedger;

/// Memory of the buffer that is kept between writes, bytes.
const PENDING_KEPT: usize = 1 << 20;

/// What a power loss may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Steps after the last durable record; a killed process loses nothing. The next start fences them.
    #[default]
    Process,
    /// Nothing that a shard has seen: each flush with an intent syncs.
    Power,
}

/// Limits and durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerConfig {
    /// What a power loss may take.
    pub durability: Durability,
    /// Memory beyond which no new session is taken, bytes.
    pub index_bytes_max: usize,
    /// Sessions beyond which no new one is taken.
    pub sessions_max: usize,
    /// How long a closed session is remembered, milliseconds.
    pub retention_ms: u64,
    /// Longest segment, bytes.
    pub segment_bytes: u64,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            durability: Durability::Process,
            index_bytes_max: 64 << 20,
            sessions_max: 100_000,
            retention_ms: 600_000,
            segment_bytes: 16 << 20,
        }
    }
}

/// How far a write came; given back with the result of the sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncTicket(u64);

/// The ledger. One owner; no I/O but in [`open`](Self::open), [`flush`](Self::flush),
/// [`write_pending`](Self::write_pending) and [`retire`](Self::retire).
pub struct IdempotencyLedger {
    pub(super) store: Box<dyn LedgerStore>,
    pub(super) syncer: Syncer,
    pub(super) config: LedgerConfig,
    pub(super) generation: u64,
    pub(super) index: Index,
    /// First and last segment, and the length of each, oldest first.
    pub(super) first: u64,
    pub(super) lengths: VecDeque<u64>,
    /// Records not written yet.
    pub(super) pending: Vec<u8>,
    // Ends in the row of all bytes appended since the ledger was opened.
    pub(super) appended: u64,
    pub(super) written: u64,
    pub(super) synced: u64,
    /// What has to be durable before anything follows from it.
    pub(super) sync_wanted: u64,
    /// Records that are not durable yet, by their ends.
    pub(super) undurable: VecDeque<(u64, WorkLedger)>,
    pub(super) work: WorkLedger,
    /// Closed sessions by the time they are forgotten, with the ends of their last records.
    pub(super) closing: VecDeque<(u64, u64, SessionId)>,
    /// The copies out of the oldest segment end here.
    pub(super) moved_to: u64,
    pub(super) stopped: Option<String>,
}

impl std::fmt::Debug for IdempotencyLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLedger")
            .field("generation", &self.generation)
            .field("sessions", &self.index.sessions.len())
            .field("pending_bytes", &self.pending.len())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl IdempotencyLedger {
    pub(super) fn usable(&self) -> Result<(), LedgerError> {
        match &self.stopped {
            None => Ok(()),
            Some(why) => Err(LedgerError::Stopped(why.clone())),
        }
    }

    fn stop(&mut self, error: io::Error) -> LedgerError {
        tracing::error!(%error, "the ledger stops: a write or sync failed");
        self.stopped = Some(error.to_string());
        error.into()
    }

    pub(super) fn append(&mut self, record: &Record) -> Result<(), LedgerError> {
        let before = self.pending.len();
        if !record.encode(&mut self.pending) {
            return Err(LedgerError::Invalid("too long"));
        }
        self.appended += (self.pending.len() - before) as u64;
        if record.needs_sync()
            || (self.config.durability == Durability::Power && matches!(record, Record::StepIntent { .. }))
        {
            self.sync_wanted = self.appended;
        }
        Ok(())
    }

    pub(super) fn last_segment(&self) -> u64 {
        self.first + (self.lengths.len() as u64).saturating_sub(1)
    }

    pub(super) fn create(&mut self, segment: u64) -> io::Result<()> {
        let header = Header { segment, generation: self.generation }.encode();
        self.store.create(segment, &header)?;
        self.lengths.push_back(HEADER_BYTES as u64);
        Ok(())
    }

    /// Whether something that was appended has to become durable before anything follows from it.
    #[must_use]
    pub fn needs_sync(&self) -> bool {
        self.sync_wanted > self.synced
    }

    /// Makes everything appended since the last call visible on the disk in one write, and durable in one sync if a
    /// record among it needs that.
    ///
    /// # Errors
    /// I/O, after which the ledger has stopped and nothing of this batch may be acted on.
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        let ticket = self.write_pending()?;
        if self.needs_sync() {
            let outcome = (self.syncer)();
            self.sync_done(ticket, outcome)?;
        }
        Ok(())
    }

    /// The first half of [`flush`](Self::flush): if [`needs_sync`](Self::needs_sync) is true afterwards, call the
    /// [`syncer`](Self::syncer), on any thread, and give its result to [`sync_done`](Self::sync_done) with this ticket.
    /// More may be appended and written meanwhile.
    ///
    /// # Errors
    /// As for a flush.
    pub fn write_pending(&mut self) -> Result<SyncTicket, LedgerError> {
        self.usable()?;
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            let len = self.lengths.back().copied().unwrap_or(u64::MAX);
            let room = usize::try_from(self.config.segment_bytes.saturating_sub(len)).unwrap_or(usize::MAX);
            let fresh = len == HEADER_BYTES as u64;
            let now = whole_records(rest, room, fresh);
            if now == 0 {
                self.rotate().map_err(|error| self.stop(error))?;
                continue;
            }
            let (head, tail) = rest.split_at(now);
            self.store.append(head).map_err(|error| self.stop(error))?;
            self.written += now as u64;
            if let Some(len) = self.lengths.back_mut() {
                *len += now as u64;
            }
            rest = tail;
        }
        self.pending = pending;
        self.pending.clear();
        // One turn of many sessions does not keep its memory.
        self.pending.shrink_to(PENDING_KEPT);
        Ok(SyncTicket(self.written))
    }

    /// A full segment is durable before the next one exists, so that only the last can be cut.
    fn rotate(&mut self) -> io::Result<()> {
        (self.syncer)()?;
        self.settle(self.written);
        self.create(self.last_segment() + 1)
    }

    /// Syncs what was written; may be called on another thread.
    #[must_use]
    pub fn syncer(&self) -> Syncer {
        self.syncer.clone()
    }

    /// The result of a sync that began after the write which gave `ticket`.
    ///
    /// # Errors
    /// The sync's own error, after which the ledger has stopped.
    pub fn sync_done(&mut self, ticket: SyncTicket, outcome: io::Result<()>) -> Result<(), LedgerError> {
        self.usable()?;
        outcome.map_err(|error| self.stop(error))?;
        self.settle(ticket.0);
        Ok(())
    }

    /// Everything up to `lsn` is durable.
    fn settle(&mut self, lsn: u64) {
        self.synced = self.synced.max(lsn);
        while let Some((end, counts)) = self.undurable.front()
            && *end <= self.synced
        {
            self.work.merge(*counts);
            self.undurable.pop_front();
        }
    }
}

/// Length of the whole records at the start of `bytes` that fit in `room`; at least one if `force`.
fn whole_records(bytes: &[u8], room: usize, force: bool) -> usize {
    if bytes.len() <= room {
        return bytes.len();
    }
    let mut end = 0;
    while let Ok((_, next)) = format::frame(bytes, end) {
        if next > room && !(force && end == 0) {
            break;
        }
        end = next;
    }
    end
}
