//! What the ledger knows, in memory: the fold of its records.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::format::{EpochOpened, Record, StepKey};
use crate::adapter::{Digest, KvKey, SessionId};
use crate::record::WorkRecord;

// What an entry takes with its place in the maps, bytes.
const SESSION_COST: usize = 512;
const ATTEMPT_COST: usize = 256;
const RECORD_COST: usize = 512;
const STEP_COST: usize = std::mem::size_of::<Step>() + std::mem::size_of::<u32>();

/// A record that cannot follow those before it.
pub(super) type Impossible = &'static str;

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) sessions: HashMap<SessionId, Session>,
    /// Attempts without a terminal record.
    pub(super) open: BTreeSet<KvKey>,
    /// Sessions whose last attempt ended and was not submitted.
    pub(super) unsubmitted: BTreeSet<SessionId>,
    /// Sessions by a segment that none of their records is older than.
    pub(super) homes: BTreeMap<u64, BTreeSet<SessionId>>,
    /// Estimate of the memory in use.
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct Session {
    /// By epoch; never empty.
    pub(super) attempts: Vec<Attempt>,
    /// Of the last attempt.
    pub(super) steps: Vec<Step>,
    pub(super) delivered: u32,
    pub(super) closed: bool,
    home: u64,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) epoch: u32,
    /// Absent when it ended before it began.
    pub(super) opened: Option<Box<EpochOpened>>,
    pub(super) tokens: Vec<u32>,
    pub(super) terminal: Option<Box<WorkRecord>>,
    /// End of the terminal record in the row of all bytes appended.
    pub(super) terminal_lsn: u64,
    pub(super) submitted: Option<String>,
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) fingerprint: Digest,
    pub(super) state: StepMark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepMark {
    /// It may be running.
    Open,
    /// Nobody knows.
    Uncertain,
    /// It ran everywhere, but its result is not here yet.
    Ran,
    /// It ran nowhere and may run.
    NotRun,
    /// It ran.
    Committed { token: Option<u32>, logits_digest: Digest },
}

impl Session {
    fn new(home: u64) -> Self {
        Self { attempts: Vec::new(), steps: Vec::new(), delivered: 0, closed: false, home, bytes: 0 }
    }

    pub(super) fn last(&self) -> &Attempt {
        self.attempts.last().expect("a session begins with an attempt")
    }

    pub(super) fn attempt(&self, epoch: u32) -> Option<&Attempt> {
        self.attempts.binary_search_by_key(&epoch, |attempt| attempt.epoch).ok().map(|at| &self.attempts[at])
    }

    /// The attempt with this epoch, made if there is none.
    fn attempt_mut(&mut self, epoch: u32) -> &mut Attempt {
        let at = match self.attempts.binary_search_by_key(&epoch, |attempt| attempt.epoch) {
            Ok(at) => at,
            Err(at) => {
                if at == self.attempts.len() {
                    // Steps of an attempt that a later one fenced are never asked for again.
                    self.steps = Vec::new();
                }
                let attempt = Attempt {
                    epoch,
                    opened: None,
                    tokens: Vec::new(),
                    terminal: None,
                    terminal_lsn: 0,
                    submitted: None,
                };
                self.attempts.insert(at, attempt);
                at
            }
        };
        &mut self.attempts[at]
    }

    fn cost(&self) -> usize {
        let strings = |list: &[String]| list.iter().map(|text| 24 + text.len()).sum::<usize>();
        let attempts = self.attempts.iter().map(|attempt| {
            let opened = attempt.opened.as_ref();
            let opened =
                opened.map_or(0, |opened| ATTEMPT_COST + opened.inference_id.len() + strings(&opened.shards));
            let record = attempt.terminal.as_ref();
            let record = record.map_or(0, |record| {
                RECORD_COST
                    + strings(&record.shards)
                    + record.excluded_node.as_ref().map_or(0, String::len)
                    + attempt.submitted.as_ref().map_or(0, String::len)
            });
            ATTEMPT_COST + opened + record + attempt.tokens.len() * std::mem::size_of::<u32>()
        });
        SESSION_COST + self.steps.len() * STEP_COST + attempts.sum::<usize>()
    }

    pub(super) fn step_mut(&mut self, step: u32) -> Option<&mut Step> {
        self.steps.get_mut(usize::try_from(step).ok()?)
    }
}

impl Index {
    fn session_mut(&mut self, session: SessionId, home: u64) -> &mut Session {
        self.sessions.entry(session).or_insert_with(|| {
            self.homes.entry(home).or_default().insert(session);
            Session::new(home)
        })
    }

    /// Brings the estimate of the session's memory up to date.
    fn weigh(&mut self, session: SessionId) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            let bytes = entry.cost();
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
    }

    pub(super) fn open_epoch(&mut self, opened: EpochOpened, home: u64) -> Result<(), Impossible> {
        let key = opened.key;
        let session = self.session_mut(key.session, home);
        let attempt = session.attempt_mut(key.epoch);
        match &attempt.opened {
            Some(other) if **other != opened => return Err("another opening of an attempt"),
            Some(_) => return Ok(()),
            None => attempt.opened = Some(Box::new(opened)),
        }
        let live = attempt.terminal.is_none();
        let last = session.last().epoch == key.epoch;
        if live {
            self.open.insert(key);
            if last {
                self.unsubmitted.remove(&key.session);
            }
        }
        self.weigh(key.session);
        Ok(())
    }

    /// The session, if `epoch` is its last.
    fn current(&mut self, key: &StepKey) -> Result<&mut Session, Impossible> {
        let session = self.sessions.get_mut(&key.session).ok_or("a step of an unknown session")?;
        if session.last().epoch == key.epoch { Ok(session) } else { Err("a step of another epoch") }
    }

    pub(super) fn intent(&mut self, key: StepKey, fingerprint: Digest) -> Result<(), Impossible> {
        let session = self.current(&key)?;
        let next = session.steps.len();
        match session.step_mut(key.step) {
            Some(step) if step.state == StepMark::NotRun => {
                *step = Step { fingerprint, state: StepMark::Open };
            }
            Some(step) if step.fingerprint == fingerprint => {}
            Some(_) => return Err("another intent of a step"),
            None if usize::try_from(key.step) == Ok(next) => {
                session.steps.push(Step { fingerprint, state: StepMark::Open });
                session.bytes += STEP_COST;
                self.bytes += STEP_COST;
            }
            None => return Err("a step was left out"),
        }
        Ok(())
    }

    pub(super) fn committed(
        &mut self,
        key: StepKey,
        token: Option<u32>,
        logits_digest: Digest,
    ) -> Result<(), Impossible> {
        let session = self.current(&key)?;
        let step = session.step_mut(key.step).ok_or("a result without an intent")?;
        let committed = StepMark::Committed { token, logits_digest };
        match step.state {
            StepMark::Open | StepMark::Ran => {
                step.state = committed;
                let attempt = session.attempts.last_mut().expect("a session begins with an attempt");
                attempt.tokens.extend(token);
                Ok(())
            }
            state if state == committed => Ok(()),
            StepMark::Committed { .. } => Err("another result of a step"),
            StepMark::Uncertain | StepMark::NotRun => Err("a result of a step that was given up"),
        }
    }

    pub(super) fn uncertain(&mut self, key: StepKey) -> Result<(), Impossible> {
        let step = self.current(&key)?.step_mut(key.step).ok_or("doubt about a step without an intent")?;
        match step.state {
            StepMark::Open | StepMark::Uncertain => {
                step.state = StepMark::Uncertain;
                Ok(())
            }
            _ => Err("doubt about a step that was settled"),
        }
    }

    pub(super) fn resolved(&mut self, key: StepKey, committed: bool) -> Result<(), Impossible> {
        let step = self.current(&key)?.step_mut(key.step).ok_or("an answer without an intent")?;
        let to = if committed { StepMark::Ran } else { StepMark::NotRun };
        match step.state {
            StepMark::Uncertain => {
                step.state = to;
                Ok(())
            }
            state if state == to => Ok(()),
            _ => Err("an answer about a step that was not in doubt"),
        }
    }

    pub(super) fn delivered(&mut self, session: SessionId, count: u32) -> Result<(), Impossible> {
        let session = self.sessions.get_mut(&session).ok_or("delivery to an unknown session")?;
        session.delivered = session.delivered.max(count);
        Ok(())
    }

    /// Whether it was new.
    pub(super) fn terminal(&mut self, record: WorkRecord, lsn: u64, home: u64) -> Result<bool, Impossible> {
        let key = record.key;
        let session = self.session_mut(key.session, home);
        let attempt = session.attempt_mut(key.epoch);
        match &attempt.terminal {
            Some(other) if **other != record => return Err("a second record of an attempt"),
            Some(_) => return Ok(false),
            None => attempt.terminal = Some(Box::new(record)),
        }
        attempt.terminal_lsn = lsn;
        if session.last().epoch == key.epoch {
            self.unsubmitted.insert(key.session);
        }
        self.open.remove(&key);
        self.weigh(key.session);
        Ok(true)
    }

    pub(super) fn submitted(&mut self, key: KvKey, reference: String) -> Result<(), Impossible> {
        let session = self.sessions.get_mut(&key.session).ok_or("a report of an unknown session")?;
        if session.attempt(key.epoch).is_none_or(|attempt| attempt.terminal.is_none()) {
            return Err("a report of an attempt without a record");
        }
        let last = session.last().epoch == key.epoch;
        let attempt = session.attempt_mut(key.epoch);
        match &attempt.submitted {
            Some(other) if *other != reference => return Err("a second report of an attempt"),
            Some(_) => {}
            None => attempt.submitted = Some(reference),
        }
        if last {
            self.unsubmitted.remove(&key.session);
        }
        self.weigh(key.session);
        Ok(())
    }

    pub(super) fn closed(&mut self, session: SessionId) -> Result<(), Impossible> {
        self.sessions.get_mut(&session).ok_or("the end of an unknown session")?.closed = true;
        self.unsubmitted.remove(&session);
        Ok(())
    }

    /// Forgets a session.
    pub(super) fn remove(&mut self, session: SessionId) -> Option<Session> {
        let entry = self.sessions.remove(&session)?;
        self.bytes -= entry.bytes;
        self.leave_home(session, entry.home);
        self.unsubmitted.remove(&session);
        Some(entry)
    }

    fn leave_home(&mut self, session: SessionId, home: u64) {
        if let Some(at_home) = self.homes.get_mut(&home) {
            at_home.remove(&session);
            if at_home.is_empty() {
                self.homes.remove(&home);
            }
        }
    }

    /// From now on none of the session's records in segments before `home` is needed.
    pub(super) fn move_home(&mut self, session: SessionId, home: u64) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            let old = std::mem::replace(&mut entry.home, home);
            self.leave_home(session, old);
            self.homes.entry(home).or_default().insert(session);
        }
    }

    /// Records that lead to the session's state, whether or not those that led to it are still there.
    pub(super) fn records(&self, session: SessionId) -> Vec<Record> {
        let Some(entry) = self.sessions.get(&session) else { return Vec::new() };
        let mut records = Vec::new();
        let last = entry.last().epoch;
        for attempt in &entry.attempts {
            records.extend(attempt.opened.clone().map(Record::EpochOpened));
            let steps = if attempt.epoch == last { &entry.steps[..] } else { &[] };
            for (step, number) in steps.iter().zip(0..) {
                let key = StepKey { session, epoch: attempt.epoch, step: number };
                records.push(Record::StepIntent { key, fingerprint: step.fingerprint });
                match step.state {
                    StepMark::Open => {}
                    StepMark::Uncertain => records.push(Record::StepUncertain { key }),
                    StepMark::Ran | StepMark::NotRun => {
                        let committed = step.state == StepMark::Ran;
                        records.push(Record::StepUncertain { key });
                        records.push(Record::StepResolved { key, committed });
                    }
                    StepMark::Committed { token, logits_digest } => {
                        records.push(Record::StepCommitted { key, token, logits_digest });
                    }
                }
            }
            if entry.delivered > 0 && attempt.epoch == last {
                records.push(Record::Delivered { session, count: entry.delivered });
            }
            records.extend(attempt.terminal.clone().map(Record::Terminal));
            let key = KvKey::new(session, attempt.epoch);
            records.extend(attempt.submitted.clone().map(|reference| Record::Submitted { key, reference }));
        }
        if entry.closed {
            records.push(Record::Closed { session });
        }
        records
    }
}
