//! The life of a session: its attempts begin and end, are reported, and are forgotten some time after it was closed.

use sha2::{Digest as _, Sha256};

use super::error::LedgerError;
use super::format::{EpochOpened, Record, StepKey};
use super::index::StepMark;
use super::log::IdempotencyLedger;
use crate::adapter::{Digest, KvKey, SessionId};
use crate::failure::WorkStatus;
use crate::record::{WorkLedger, WorkRecord};

/// Most bytes of a name in a record: inference, shard, worker, reference.
pub const NAME_MAX: usize = 1024;
/// Most shards of an attempt.
pub const SHARDS_MAX: usize = 256;

impl IdempotencyLedger {
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
