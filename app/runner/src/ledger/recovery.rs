//! Opening a ledger: the log is read, what a crash left is cut, what was left open ends.

use std::collections::VecDeque;

use super::attempts::output_digest;
use super::error::LedgerError;
use super::format::{BadHeader, HEADER_BYTES, Header, Read, Record, StepKey, read_record};
use super::index::{Impossible, Index, StepMark};
use super::log::{IdempotencyLedger, LedgerConfig};
use super::store::{LedgerStore, segment_name};
use crate::adapter::KvKey;
use crate::clock::Clock;
use crate::failure::{Cause, FailureKind, WorkStatus};
use crate::record::{KvOutcome, WorkLedger, WorkRecord};

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

    fn apply(&mut self, record: Record, segment: u64, now_ms: u64) -> Result<(), Impossible> {
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
}
