//! The durable work ledger (runner-details 5): what was about to run, what ran, what is in doubt, how each attempt
//! ended and what was reported of it. Format: `docs/ledger.md`.
//!
//! ```text
//!          begin                 commit
//! unknown ───────► open ───────────────────────────► committed
//!    ▲              │ mark_uncertain, terminal,           ▲
//!    │              ▼ restart                             │
//!    │          uncertain ── resolve(Ran) ────────────────┘
//!    └──────────────┴─────── resolve(NotRun)
//! ```
//!
//! Calls change memory and fill a buffer. Nothing may be done about them in the world until [`IdempotencyLedger::flush`]
//! returned `Ok`. After a write or a sync failed the ledger refuses everything: what is on the disk is known again only
//! after it was opened again.

mod format;
mod index;
mod store;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;

pub use format::{
    BODY_MAX, BadHeader, EpochOpened, HEADER_BYTES, Header, PREFIX_BYTES, Read, Record, StepKey, VERSION,
    read_record,
};
use index::{Attempt, Index, Session, Step, StepMark};
use sha2::{Digest as _, Sha256};
pub use store::{Crash, FileStore, LedgerStore, MemoryDisk, MemoryStore, Syncer, segment_name};

use crate::adapter::{Digest, KvKey, SessionId};
use crate::clock::Clock;
use crate::failure::{Cause, FailureKind, WorkStatus};
use crate::record::{KvOutcome, WorkLedger, WorkRecord};

/// Most bytes of a name in a record: inference, shard, worker, reference.
pub const NAME_MAX: usize = 1024;
/// Most shards of an attempt.
pub const SHARDS_MAX: usize = 256;
/// Memory of the buffer that is kept between writes, bytes.
const PENDING_KEPT: usize = 1 << 20;
/// Most sessions that one [`IdempotencyLedger::retire`] forgets or moves.
const RETIRE_MAX: usize = 256;

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

/// Why the ledger refused. Codes are stable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Another process has the folder.
    #[error("the ledger in {0} is in use by another process")]
    Locked(String),
    /// Reading or writing failed.
    #[error("ledger I/O: {0}")]
    Io(String),
    /// No room on the disk.
    #[error("ledger I/O: the disk is full: {0}")]
    DiskFull(String),
    /// A record or header that no crash explains. The node must not work with this ledger.
    #[error("LedgerCorrupt: {file} at offset {offset}: {what}")]
    Corrupt {
        /// Name of the segment.
        file: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Written by another version of this program.
    #[error("{file} has version {version} of the format; this program knows {VERSION}")]
    UnknownVersion {
        /// Name of the segment.
        file: String,
        /// Its version.
        version: u16,
    },
    /// A write or sync failed before; open the ledger again.
    #[error("the ledger stopped after: {0}")]
    Stopped(String),
    /// No room for a new session until others are closed and their time is over.
    #[error("LedgerFull: {sessions} sessions, {bytes} bytes")]
    Full {
        /// Sessions it holds.
        sessions: usize,
        /// Memory they take, bytes.
        bytes: usize,
    },
    /// Something is too long, or contradicts itself.
    #[error("invalid record: {0}")]
    Invalid(&'static str),
    /// The attempt has its record.
    #[error("session {} epoch {} has a terminal record", .0.session, .0.epoch)]
    DuplicateTerminal(KvKey),
    /// The session is at this epoch or a later one.
    #[error("stale epoch: the session is at {have}")]
    StaleEpoch {
        /// Its last epoch.
        have: u32,
    },
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// No such session or attempt.
    #[error("the attempt was never opened")]
    NotOpened,
    /// The attempt has no terminal record yet.
    #[error("epoch {epoch} of the session has no terminal record")]
    Unfinished {
        /// The attempt.
        epoch: u32,
    },
    /// The step has no intent that this could end.
    #[error("step {0} is not in that state")]
    WrongStep(u32),
}

impl LedgerError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::Locked(_) => 1,
            Self::Io(_) => 2,
            Self::DiskFull(_) => 3,
            Self::Corrupt { .. } => 4,
            Self::UnknownVersion { .. } => 5,
            Self::Stopped(_) => 6,
            Self::Full { .. } => 7,
            Self::Invalid(_) => 8,
            Self::DuplicateTerminal(_) => 9,
            Self::StaleEpoch { .. } => 10,
            Self::Closed => 11,
            Self::NotOpened => 12,
            Self::Unfinished { .. } => 13,
            Self::WrongStep(_) => 14,
        }
    }
}

impl From<io::Error> for LedgerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}

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

/// What opening the ledger found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// This start.
    pub generation: u64,
    /// Records that were read.
    pub records: u64,
    /// Sessions that are remembered.
    pub sessions: usize,
    /// What the end of the last segment lost, if a record there was not whole.
    pub cut: Option<Cut>,
    /// Attempts that the last run left open, with the record each got now.
    pub terminated: Vec<WorkRecord>,
    /// Steps of these attempts that may have run.
    pub uncertain: Vec<StepKey>,
    /// Records of sessions whose beginning was removed with an old segment.
    pub orphans: u64,
}

/// A cut at the end of the last segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Name of the segment.
    pub file: String,
    /// Length it has now; 0 when it had no whole header and was removed.
    pub offset: u64,
    /// Bytes that went.
    pub bytes: u64,
}

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

/// How far a write came; given back with the result of the sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncTicket(u64);

/// The ledger. One owner; no I/O but in [`open`](Self::open), [`flush`](Self::flush),
/// [`write_pending`](Self::write_pending) and [`retire`](Self::retire).
pub struct IdempotencyLedger {
    store: Box<dyn LedgerStore>,
    syncer: Syncer,
    config: LedgerConfig,
    generation: u64,
    index: Index,
    /// First and last segment, and the length of each, oldest first.
    first: u64,
    lengths: VecDeque<u64>,
    /// Records not written yet.
    pending: Vec<u8>,
    // Ends in the row of all bytes appended since the ledger was opened.
    appended: u64,
    written: u64,
    synced: u64,
    /// What has to be durable before anything follows from it.
    sync_wanted: u64,
    /// Records that are not durable yet, by their ends.
    undurable: VecDeque<(u64, WorkLedger)>,
    work: WorkLedger,
    /// Closed sessions by the time they are forgotten, with the ends of their last records.
    closing: VecDeque<(u64, u64, SessionId)>,
    /// The copies out of the oldest segment end here.
    moved_to: u64,
    stopped: Option<String>,
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

fn corrupt(segment: u64, offset: usize, what: impl Into<String>) -> LedgerError {
    LedgerError::Corrupt { file: segment_name(segment), offset: offset as u64, what: what.into() }
}

impl IdempotencyLedger {
    /// Reads everything, raises the generation, cuts what a crash left at the end, and gives every attempt that was
    /// left open its record: unverified, worker-death, by the node. All of it is durable on return.
    ///
    /// # Errors
    /// [`LedgerError::Corrupt`] for damage anywhere but at the end of the last segment; an unknown version; I/O.
    pub fn open(
        store: impl LedgerStore,
        config: LedgerConfig,
        clock: &dyn Clock,
    ) -> Result<(Self, Recovery), LedgerError> {
        let store: Box<dyn LedgerStore> = Box::new(store);
        let mut ledger = Self {
            syncer: store.syncer(),
            generation: store.generation()?,
            store,
            config,
            index: Index::default(),
            first: 0,
            lengths: VecDeque::new(),
            pending: Vec::new(),
            appended: 0,
            written: 0,
            synced: 0,
            sync_wanted: 0,
            undurable: VecDeque::new(),
            work: WorkLedger::default(),
            closing: VecDeque::new(),
            moved_to: 0,
            stopped: None,
        };
        let mut recovery = Recovery::default();
        ledger.replay(&mut recovery, clock.now_ms())?;
        ledger.generation = ledger
            .generation
            .checked_add(1)
            .ok_or_else(|| corrupt(ledger.first, 20, "no generation is left"))?;
        ledger.store.raise_generation(ledger.generation)?;
        match ledger.lengths.back() {
            Some(len) => ledger.store.resume(ledger.last_segment(), *len)?,
            None => ledger.create(ledger.first)?,
        }
        recovery.generation = ledger.generation;
        ledger.end_open_attempts(&mut recovery, clock.unix_ms())?;
        recovery.sessions = ledger.index.sessions.len();
        Ok((ledger, recovery))
    }

    fn replay(&mut self, recovery: &mut Recovery, now_ms: u64) -> Result<(), LedgerError> {
        let segments = self.store.segments()?;
        self.first = segments.first().copied().unwrap_or(0);
        let last = segments.last().copied();
        // Numbers begin at 0; one this high was never given, and would leave no room for the next.
        if let Some(last) = last.filter(|last| *last > u64::MAX / 2) {
            return Err(corrupt(last, 0, "no ledger has so many segments"));
        }
        let mut generation = 0;
        for (&segment, expected) in segments.iter().zip(self.first..) {
            if segment != expected {
                return Err(corrupt(expected, 0, "the segment is missing"));
            }
            let bytes = self.store.read(segment)?;
            let is_last = Some(segment) == last;
            let header = match Header::decode(&bytes) {
                Ok(header) => header,
                // The header is durable before the first record is written.
                Err(BadHeader::Broken) if is_last && bytes.len() <= HEADER_BYTES => {
                    self.store.remove(segment)?;
                    recovery.cut =
                        Some(Cut { file: segment_name(segment), offset: 0, bytes: bytes.len() as u64 });
                    if self.lengths.is_empty() {
                        self.first = segment;
                    }
                    break;
                }
                Err(BadHeader::Broken) => return Err(corrupt(segment, 0, "wrong header")),
                Err(BadHeader::Version(version)) => {
                    return Err(LedgerError::UnknownVersion { file: segment_name(segment), version });
                }
            };
            if header.segment != segment || header.generation < generation {
                return Err(corrupt(segment, 0, "the header is another segment's"));
            }
            generation = header.generation;
            self.generation = self.generation.max(generation);
            let mut offset = HEADER_BYTES;
            loop {
                match read_record(&bytes, offset) {
                    Read::End => break,
                    Read::Record(record, end) => {
                        recovery.records += 1;
                        if let Err(what) = self.apply(record, segment, now_ms) {
                            // Only a segment that was removed can explain it.
                            if self.first == 0 {
                                return Err(corrupt(segment, offset, what));
                            }
                            recovery.orphans += 1;
                        }
                        offset = end;
                    }
                    Read::Bad(what) if is_last && self.was_durable(&bytes, offset) => {
                        return Err(corrupt(segment, offset, format!("{what}, and it was durable once")));
                    }
                    Read::Bad(_) if is_last => {
                        let bytes = (bytes.len() - offset) as u64;
                        let file = segment_name(segment);
                        recovery.cut = Some(Cut { file, offset: offset as u64, bytes });
                        break;
                    }
                    Read::Bad(what) => return Err(corrupt(segment, offset, what)),
                }
            }
            self.lengths.push_back(offset as u64);
        }
        Ok(())
    }

    /// Whether a record behind the damage at `offset` proves that no crash did it: a step is written only when the
    /// opening of its attempt is durable, and so are all bytes before that, and a report only when the attempt's end is.
    fn was_durable(&self, bytes: &[u8], offset: usize) -> bool {
        let mut at = offset + 1;
        while at < bytes.len() {
            let Read::Record(record, end) = read_record(bytes, at) else {
                at += 1;
                continue;
            };
            let proof = match record {
                Record::StepIntent { key, .. } | Record::StepCommitted { key, .. } => {
                    self.opened(key.kv()).is_none()
                }
                Record::Submitted { key, .. } => self.record(key).is_none(),
                _ => false,
            };
            if proof {
                return true;
            }
            at = end;
        }
        false
    }

    fn apply(&mut self, record: Record, segment: u64, now_ms: u64) -> Result<(), index::Impossible> {
        match record {
            Record::EpochOpened(opened) => {
                self.generation = self.generation.max(opened.generation);
                self.index.open_epoch(*opened, segment)
            }
            Record::StepIntent { key, fingerprint } => self.index.intent(key, fingerprint),
            Record::StepCommitted { key, token, logits_digest } => {
                self.index.committed(key, token, logits_digest)
            }
            Record::StepUncertain { key } => self.index.uncertain(key),
            Record::StepResolved { key, committed } => self.index.resolved(key, committed),
            Record::Delivered { session, count } => self.index.delivered(session, count),
            Record::Terminal(record) => {
                let counts = WorkLedger::counts(&record);
                if self.index.terminal(*record, 0, segment)? {
                    self.work.merge(counts);
                }
                Ok(())
            }
            Record::Submitted { key, reference } => self.index.submitted(key, reference),
            Record::Closed { session } => {
                let known = self.index.sessions.get(&session).is_some_and(|session| session.closed);
                self.index.closed(session)?;
                if !known {
                    // When it was closed is not written; to remember it longer is safe.
                    let due = now_ms.saturating_add(self.config.retention_ms);
                    self.closing.push_back((due, 0, session));
                }
                Ok(())
            }
        }
    }

    fn end_open_attempts(&mut self, recovery: &mut Recovery, unix_ms: u64) -> Result<(), LedgerError> {
        let open: Vec<KvKey> = self.index.open.iter().copied().collect();
        for key in open {
            let Some(session) = self.index.sessions.get(&key.session) else { continue };
            let Some(attempt) = session.attempt(key.epoch) else { continue };
            let last = session.last().epoch == key.epoch;
            let in_doubt = session.steps.iter().zip(0..).find(|(step, _)| {
                last && matches!(step.state, StepMark::Open | StepMark::Uncertain | StepMark::Ran)
            });
            let uncertain_step = in_doubt.map(|(_, step)| step);
            let opened = attempt.opened.as_ref();
            let tokens = u32::try_from(attempt.tokens.len()).unwrap_or(u32::MAX);
            let record = WorkRecord {
                key,
                status: WorkStatus::Unverified,
                failure_kind: Some(FailureKind::WorkerDeath),
                cause: Some(Cause::Node),
                tokens: (tokens > 0).then_some(tokens),
                delivered_tokens: session.delivered,
                prompt_tokens: opened.map_or(0, |opened| opened.prompt_tokens),
                restartable: Some(FailureKind::WorkerDeath.restartable()),
                // The generation that was raised just now fences whatever is left of it.
                kv: KvOutcome::Stale,
                uncertain_step,
                excluded_node: None,
                shards: opened.map_or_else(Vec::new, |opened| opened.shards.clone()),
                output_digest: output_digest(&attempt.tokens),
                started_ms: unix_ms,
                ended_ms: unix_ms,
            };
            recovery.uncertain.extend(uncertain_step.map(|step| StepKey::new(key, step)));
            recovery.terminated.push(record.clone());
            self.terminal(record)?;
        }
        self.flush()
    }

    fn last_segment(&self) -> u64 {
        self.first + (self.lengths.len() as u64).saturating_sub(1)
    }

    fn create(&mut self, segment: u64) -> io::Result<()> {
        let header = Header { segment, generation: self.generation }.encode();
        self.store.create(segment, &header)?;
        self.lengths.push_back(HEADER_BYTES as u64);
        Ok(())
    }

    fn usable(&self) -> Result<(), LedgerError> {
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

    fn append(&mut self, record: &Record) -> Result<(), LedgerError> {
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

    /// Whether a session that is new would be taken now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.check_room().is_ok()
    }

    fn check_room(&self) -> Result<(), LedgerError> {
        let (sessions, bytes) = (self.index.sessions.len(), self.index.bytes);
        if sessions >= self.config.sessions_max || bytes >= self.config.index_bytes_max {
            return Err(LedgerError::Full { sessions, bytes });
        }
        Ok(())
    }

    fn check_names<'a>(
        shards: &'a [String],
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), LedgerError> {
        if shards.len() > SHARDS_MAX {
            return Err(LedgerError::Invalid("too many shards"));
        }
        if shards.iter().chain(names).any(|name| name.len() > NAME_MAX) {
            return Err(LedgerError::Invalid("a name is too long"));
        }
        Ok(())
    }

    /// An attempt begins. Flush before any shard hears of it.
    ///
    /// # Errors
    /// An epoch that is not above the session's last; a last epoch without a record; closed; no room.
    pub fn epoch_opened(&mut self, opened: EpochOpened) -> Result<(), LedgerError> {
        self.usable()?;
        Self::check_names(&opened.shards, [&opened.inference_id])?;
        let key = opened.key;
        match self.index.sessions.get(&key.session) {
            Some(session) if session.closed => return Err(LedgerError::Closed),
            Some(session) if session.last().epoch >= key.epoch => {
                return Err(LedgerError::StaleEpoch { have: session.last().epoch });
            }
            Some(session) if session.last().terminal.is_none() => {
                return Err(LedgerError::Unfinished { epoch: session.last().epoch });
            }
            Some(_) => {}
            None => self.check_room()?,
        }
        let record = Record::EpochOpened(Box::new(opened));
        self.append(&record)?;
        if let Record::EpochOpened(opened) = record {
            self.index.open_epoch(*opened, self.last_segment()).map_err(LedgerError::Invalid)?;
        }
        Ok(())
    }

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

    /// The session's client has `count` tokens by now, over all epochs. A count that is not above the last is no news.
    ///
    /// # Errors
    /// An unknown or closed session.
    pub fn delivered(&mut self, session: SessionId, count: u32) -> Result<(), LedgerError> {
        self.usable()?;
        match self.index.sessions.get(&session) {
            None => return Err(LedgerError::NotOpened),
            Some(session) if session.closed => return Err(LedgerError::Closed),
            Some(session) if session.delivered >= count => return Ok(()),
            Some(_) => {}
        }
        self.append(&Record::Delivered { session, count })?;
        self.index.delivered(session, count).map_err(LedgerError::Invalid)
    }

    /// An attempt ended; the first record stands. Its open intent, if any, becomes uncertain, and the record names it
    /// unless it names a step already. An attempt that ended before it was opened may have a record too. Flush before
    /// any count is reported.
    ///
    /// # Errors
    /// A second record; a completed attempt with an open step; a later epoch while the last has no record; closed; no
    /// room for a session that is new.
    pub fn terminal(&mut self, mut record: WorkRecord) -> Result<(), LedgerError> {
        self.usable()?;
        Self::check_names(&record.shards, &record.excluded_node)?;
        let key = record.key;
        let mut open = None;
        match self.index.sessions.get(&key.session) {
            None => self.check_room()?,
            Some(session) => {
                if session.attempt(key.epoch).is_some_and(|attempt| attempt.terminal.is_some()) {
                    return Err(LedgerError::DuplicateTerminal(key));
                }
                if session.closed {
                    return Err(LedgerError::Closed);
                }
                let last = session.last();
                if key.epoch > last.epoch && last.terminal.is_none() {
                    return Err(LedgerError::Unfinished { epoch: last.epoch });
                }
                if key.epoch == last.epoch {
                    let state = session.steps.last().map(|step| step.state);
                    if state == Some(StepMark::Open) {
                        open = u32::try_from(session.steps.len() - 1).ok();
                    }
                }
            }
        }
        if let Some(step) = open {
            if record.status == WorkStatus::Completed {
                return Err(LedgerError::Invalid("a completed attempt has an open step"));
            }
            record.uncertain_step.get_or_insert(step);
            let key = StepKey::new(key, step);
            self.append(&Record::StepUncertain { key })?;
            self.index.uncertain(key).map_err(LedgerError::Invalid)?;
        }
        let counts = WorkLedger::counts(&record);
        let record = Record::Terminal(Box::new(record));
        self.append(&record)?;
        if let Record::Terminal(record) = record {
            let home = self.last_segment();
            self.index.terminal(*record, self.appended, home).map_err(LedgerError::Invalid)?;
            self.undurable.push_back((self.appended, counts));
        }
        Ok(())
    }

    /// The receiver took the report of an attempt; its answer "known already" counts. Again: nothing happens.
    ///
    /// # Errors
    /// An attempt without a record; a closed session.
    pub fn submitted(&mut self, session: SessionId, epoch: u32, reference: &str) -> Result<(), LedgerError> {
        self.usable()?;
        if reference.len() > NAME_MAX {
            return Err(LedgerError::Invalid("a name is too long"));
        }
        let entry = self.index.sessions.get(&session).ok_or(LedgerError::NotOpened)?;
        let attempt = entry.attempt(epoch).ok_or(LedgerError::NotOpened)?;
        if attempt.submitted.is_some() {
            return Ok(());
        }
        if entry.closed {
            return Err(LedgerError::Closed);
        }
        if attempt.terminal.is_none() {
            return Err(LedgerError::Unfinished { epoch });
        }
        let key = KvKey::new(session, epoch);
        self.append(&Record::Submitted { key, reference: reference.to_owned() })?;
        self.index.submitted(key, reference.to_owned()).map_err(LedgerError::Invalid)
    }

    /// Nothing more will come: the session is forgotten when its time is over. Again: nothing happens.
    ///
    /// # Errors
    /// An unknown session; a last epoch without a record.
    pub fn closed(&mut self, session: SessionId, now_ms: u64) -> Result<(), LedgerError> {
        self.usable()?;
        let entry = self.index.sessions.get(&session).ok_or(LedgerError::NotOpened)?;
        if entry.closed {
            return Ok(());
        }
        if entry.last().terminal.is_none() {
            return Err(LedgerError::Unfinished { epoch: entry.last().epoch });
        }
        self.append(&Record::Closed { session })?;
        self.index.closed(session).map_err(LedgerError::Invalid)?;
        let due = now_ms.saturating_add(self.config.retention_ms);
        self.closing.push_back((due, self.appended, session));
        Ok(())
    }

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

/// SHA-256 of tokens as little-endian 32-bit ids (runner-details 9).
#[must_use]
pub fn output_digest(tokens: &[u32]) -> Digest {
    let mut hash = Sha256::new();
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    hash.finalize().into()
}
