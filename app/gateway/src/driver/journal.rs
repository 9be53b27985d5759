//! What the gateway keeps beside its sessions: which escrows it has, what is owed to the chain, what operators asked for,
//! changes of flags, what API keys spent, replies, budgets. One folder, one process.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_escrow::session::settle::Settlement;
use holdfast_host::store::{DbError, LocalDb};
use holdfast_proto::Message;
use holdfast_proto::holdfast::gateway::v1 as pb;
use holdfast_store::{BranchKv, Item, KvRead, Map, Order, Prefix, Sequence, StoreError, assert_distinct};
use holdfast_types::Address;
use tokio::sync::watch;

use crate::openai::{ReplyId, ReplyMark, StoredReply};

const SPACE: &str = "gatewayd";
const P_ESCROWS: Prefix = Prefix::new(SPACE, 1, "escrows");
const P_INTENT: Prefix = Prefix::new(SPACE, 2, "intent");
const P_EVENTS: Prefix = Prefix::new(SPACE, 3, "events");
const P_EVENT_SEQ: Prefix = Prefix::new(SPACE, 4, "event numbers");
const P_LAST: Prefix = Prefix::new(SPACE, 5, "last events");
const P_AUDITS: Prefix = Prefix::new(SPACE, 6, "audits");
const P_AUDIT_SEQ: Prefix = Prefix::new(SPACE, 7, "audit numbers");
const P_SPENT: Prefix = Prefix::new(SPACE, 8, "budgets");
const P_PROBES: Prefix = Prefix::new(SPACE, 9, "probes");
const P_KEYS: Prefix = Prefix::new(SPACE, 10, "API keys");
const P_REPLIES: Prefix = Prefix::new(SPACE, 11, "replies");
const P_MARKS: Prefix = Prefix::new(SPACE, 12, "reply marks");
const P_TRIED: Prefix = Prefix::new(SPACE, 13, "a write that is tried");
const _: () = assert_distinct(&[
    P_ESCROWS,
    P_INTENT,
    P_EVENTS,
    P_EVENT_SEQ,
    P_LAST,
    P_AUDITS,
    P_AUDIT_SEQ,
    P_SPENT,
    P_PROBES,
    P_KEYS,
    P_REPLIES,
    P_MARKS,
    P_TRIED,
]);

const ESCROWS: Map<u64, EscrowEntry> = Map::new(P_ESCROWS);
const INTENT: Item<Intent> = Item::new(P_INTENT);
/// Rows of WatchDivergence as protobuf.
const EVENTS: Map<u64, Vec<u8>> = Map::new(P_EVENTS);
const EVENT_SEQ: Sequence = Sequence::new(P_EVENT_SEQ);
/// The last of them for each flag that is set.
const LAST: Map<(u64, Address), Vec<u8>> = Map::new(P_LAST);
const AUDITS: Map<u64, Audit> = Map::new(P_AUDITS);
const AUDIT_SEQ: Sequence = Sequence::new(P_AUDIT_SEQ);
const SPENT: Map<String, u128> = Map::new(P_SPENT);
/// By model and member: the cooldown that was probed last.
const PROBES: Map<(String, Address), (u64, u32, u32)> = Map::new(P_PROBES);
pub(super) const KEYS: Map<String, u64> = Map::new(P_KEYS);
pub(super) const REPLIES: Map<ReplyId, StoredReply> = Map::new(P_REPLIES);
pub(super) const MARKS: Map<ReplyId, ReplyMark> = Map::new(P_MARKS);
/// Written to find out whether the store takes writes.
pub(super) const TRIED: Item<u64> = Item::new(P_TRIED);

/// Between the failure of the store and an attempt to open it again, and between two attempts.
const REOPEN: Duration = Duration::from_secs(1);

/// Changes of flags that are kept.
const EVENTS_KEPT: u64 = 10_000;
/// Rows of the audit log that are kept.
const AUDITS_KEPT: u64 = 100_000;

/// An escrow of this gateway.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EscrowEntry {
    /// Its model.
    pub model: String,
    /// Unix seconds of its first opening here.
    pub opened_at: u64,
    /// It is to be finalized, whatever happens to the process.
    pub closing: bool,
    /// What is owed to the chain.
    pub owed: Option<Owed>,
    /// How it ended.
    pub ended: Option<Ended>,
    /// Its session when it ended, as protobuf; empty before.
    pub last: Vec<u8>,
}

impl EscrowEntry {
    /// The session as the service shows it when it is over.
    #[must_use]
    pub(crate) fn shown(&self, escrow_id: u64) -> pb::EscrowSession {
        let last = pb::EscrowSession::decode(self.last.as_slice()).unwrap_or_default();
        let phase = match self.ended {
            Some(Ended::Settled) => "settled",
            Some(Ended::Retired) => "retired",
            // Its session is over; the chain has yet to pay.
            None if self.owed.is_some() => "owed",
            // The chain holds its coins, and it is not open here: the log says why.
            None => "not_opened",
        };
        pb::EscrowSession { escrow_id, model: self.model.clone(), phase: phase.into(), ..last }
    }
}

/// A summary that the chain has not paid yet.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Owed {
    /// By MsgDisputeEscrow, from expiry on; otherwise by MsgSettleEscrow.
    pub dispute: bool,
    /// The summary.
    pub settlement: Settlement,
}

/// How an escrow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Ended {
    /// The chain paid it.
    Settled,
    /// Its log is not what was signed, and nothing is owed any more or nothing can be proved.
    Retired,
}

/// An escrow that may be under way.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Intent {
    /// Its model.
    pub model: String,
    /// Coins.
    pub amount: u128,
    /// Height before it was sent.
    pub from: u64,
    /// Last height at which its transaction is good.
    pub until: u64,
}

/// What an operator asked for.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Audit {
    /// The escrow.
    pub escrow_id: u64,
    /// Whom it is about, if it is about one.
    pub participant: Option<Address>,
    /// `force_teach`, `give_up`, `release`, `finalize`.
    pub verb: String,
    /// Who.
    pub operator: String,
    /// Why.
    pub reason: String,
    /// Unix milliseconds.
    pub at_ms: u64,
}

/// Why the journal does not do it. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The store.
    #[error(transparent)]
    Db(#[from] DbError),
    /// A row that does not decode.
    #[error("the store is corrupt: {0}")]
    Row(#[from] StoreError),
    /// A budget would be exceeded.
    #[error("budget `{name}`: {spent} of {budget} are spent, {wanted} more are wanted")]
    Budget {
        /// Which.
        name: &'static str,
        /// So far.
        spent: u128,
        /// At most.
        budget: u128,
        /// More.
        wanted: u128,
    },
}

/// Opens the store of a journal.
type Reopen = Box<dyn Fn() -> std::result::Result<Box<dyn LocalDb>, DbError> + Send + Sync>;

enum Store {
    Open(Arc<dyn LocalDb>),
    /// A commit failed: what is on disk is not known until it is opened again.
    Closed {
        error: DbError,
        at: Instant,
    },
}

/// The journal. Calls block for a disk's sync. After a commit that failed every call fails, until a later one could open the
/// store again.
pub struct Journal {
    store: Mutex<Store>,
    /// Without it a store that failed stays as it is.
    reopen: Option<Reopen>,
    last_event: watch::Sender<u64>,
}

/// The open store; nobody else has it meanwhile.
pub(super) struct Opened<'a> {
    db: Arc<dyn LocalDb>,
    store: MutexGuard<'a, Store>,
}

impl Deref for Opened<'_> {
    type Target = dyn LocalDb;

    fn deref(&self) -> &Self::Target {
        &*self.db
    }
}

type Result<T> = std::result::Result<T, JournalError>;

impl Journal {
    /// Over a store that nobody else writes to.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(db: Box<dyn LocalDb>) -> Result<Self> {
        let last = EVENT_SEQ.peek(&*db)?;
        let store = Mutex::new(Store::Open(Arc::from(db)));
        Ok(Self { store, reopen: None, last_event: watch::Sender::new(last) })
    }

    /// Over the store that `open` opens, now and after a commit failed, as of a disk that was full.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn reopening(
        open: impl Fn() -> std::result::Result<Box<dyn LocalDb>, DbError> + Send + Sync + 'static,
    ) -> Result<Self> {
        let journal = Self::open(open()?)?;
        Ok(Self { reopen: Some(Box::new(open)), ..journal })
    }

    pub(super) fn db(&self) -> Result<Opened<'_>> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let db = match &*store {
            Store::Open(db) => Arc::clone(db),
            Store::Closed { error, at } => match &self.reopen {
                Some(reopen) if at.elapsed() >= REOPEN => match reopen() {
                    Ok(db) => {
                        tracing::info!("gateway_journal_reopened");
                        let db: Arc<dyn LocalDb> = Arc::from(db);
                        *store = Store::Open(Arc::clone(&db));
                        db
                    }
                    Err(again) => {
                        if again != *error {
                            tracing::error!(error = %again, "gateway_journal_failed");
                        }
                        *store = Store::Closed { error: again.clone(), at: Instant::now() };
                        return Err(again.into());
                    }
                },
                _ => return Err(error.clone().into()),
            },
        };
        Ok(Opened { db, store })
    }

    /// A commit failed.
    fn close(&self, opened: Opened<'_>, error: &DbError) {
        tracing::error!(%error, "gateway_journal_failed: it is opened again");
        let Opened { db, mut store } = opened;
        if self.reopen.is_some() {
            drop(db);
            // The last handle goes with it, and the lock of the folder with that.
            *store = Store::Closed { error: error.clone(), at: Instant::now() };
        }
    }

    /// Runs `step` over the store and commits what it wrote.
    pub(super) fn step<T>(&self, sync: bool, step: impl FnOnce(&mut BranchKv<'_>) -> Result<T>) -> Result<T> {
        let db = self.db()?;
        let base: &dyn KvRead = &*db;
        let mut branch = BranchKv::new(base);
        let out = step(&mut branch)?;
        let writes = branch.into_writes();
        if writes.is_empty() {
            return Ok(out);
        }
        match db.commit(writes, sync) {
            Ok(()) => Ok(out),
            Err(error) => {
                if matches!(error, DbError::Full { .. } | DbError::Failed { .. }) {
                    self.close(db, &error);
                }
                Err(error.into())
            }
        }
    }

    /// Escrows by id.
    ///
    /// # Errors
    /// [`JournalError`], as of every method here.
    pub fn escrows(&self) -> Result<Vec<(u64, EscrowEntry)>> {
        let db = self.db()?;
        Ok(ESCROWS.iter(&*db, Order::Ascending).collect::<std::result::Result<_, _>>()?)
    }

    /// One escrow.
    pub fn escrow(&self, id: u64) -> Result<Option<EscrowEntry>> {
        Ok(ESCROWS.get(&*self.db()?, &id)?)
    }

    /// Notes that an escrow is this gateway's; an entry that is there stays. Ends an intent to create it.
    pub fn adopt(&self, id: u64, model: &str, now_s: u64) -> Result<EscrowEntry> {
        self.step(true, |store| {
            if INTENT.get(store)?.is_some_and(|intent| intent.model == model) {
                INTENT.remove(store)?;
            }
            if let Some(entry) = ESCROWS.get(store, &id)? {
                return Ok(entry);
            }
            let entry = EscrowEntry {
                model: model.to_owned(),
                opened_at: now_s,
                closing: false,
                owed: None,
                ended: None,
                last: Vec::new(),
            };
            ESCROWS.set(store, &id, &entry)?;
            Ok(entry)
        })
    }

    /// Changes an entry; one that is not there is left alone.
    pub fn update(&self, id: u64, change: impl FnOnce(&mut EscrowEntry)) -> Result<()> {
        self.step(true, |store| {
            if let Some(mut entry) = ESCROWS.get(store, &id)? {
                let before = entry.clone();
                change(&mut entry);
                if entry != before {
                    ESCROWS.set(store, &id, &entry)?;
                }
            }
            Ok(())
        })
    }

    /// The escrow that may be under way.
    pub fn intent(&self) -> Result<Option<Intent>> {
        Ok(INTENT.get(&*self.db()?)?)
    }

    /// Notes that an escrow is about to be created, and takes `wanted` from the budget `name` in the same step.
    pub fn intend(&self, intent: &Intent, budget: Option<(&'static str, u128)>) -> Result<()> {
        self.step(true, |store| {
            INTENT.set(store, intent)?;
            if let Some((name, budget)) = budget {
                take(store, name, budget, intent.amount)?;
            }
            Ok(())
        })
    }

    /// The intent came to nothing; `back` goes back into the budget.
    pub fn give_up_intent(&self, back: Option<&'static str>) -> Result<()> {
        self.step(true, |store| {
            if let Some(intent) = INTENT.get(store)? {
                INTENT.remove(store)?;
                if let Some(name) = back {
                    let spent = SPENT.get(store, &name.to_owned())?.unwrap_or(0);
                    SPENT.set(store, &name.to_owned(), &spent.saturating_sub(intent.amount))?;
                }
            }
            Ok(())
        })
    }

    /// What a budget has cost so far.
    pub fn spent(&self, name: &'static str) -> Result<u128> {
        Ok(SPENT.get(&*self.db()?, &name.to_owned())?.unwrap_or(0))
    }

    /// Whether this cooldown of a member was probed already.
    pub fn probed(&self, model: &str, member: &Address, cooldown: (u64, u32, u32)) -> Result<bool> {
        Ok(PROBES.get(&*self.db()?, &(model.to_owned(), *member))? == Some(cooldown))
    }

    /// Notes a probe before it is sent, and takes its price from the budget.
    pub fn probe(
        &self,
        model: &str,
        member: &Address,
        cooldown: (u64, u32, u32),
        price: u128,
        budget: u128,
    ) -> Result<()> {
        self.step(true, |store| {
            take(store, "probe", budget, price)?;
            PROBES.set(store, &(model.to_owned(), *member), &cooldown)?;
            Ok(())
        })
    }

    /// Writes what an operator asks for; gives its number.
    pub fn audit(&self, row: &Audit) -> Result<u64> {
        self.step(true, |store| {
            let seq = AUDIT_SEQ.next(store)?.saturating_add(1);
            AUDITS.set(store, &seq, row)?;
            if let Some(oldest) = seq.checked_sub(AUDITS_KEPT) {
                AUDITS.remove(store, &oldest)?;
            }
            Ok(seq)
        })
    }

    /// Rows of the audit log from `from` on, at most `limit`.
    pub fn audits(&self, from: u64, limit: usize) -> Result<Vec<(u64, Audit)>> {
        let db = self.db()?;
        let rows = AUDITS.after(&*db, from.checked_sub(1).as_ref());
        Ok(rows.take(limit).collect::<std::result::Result<_, _>>()?)
    }

    /// Appends a change of a flag; `set` = the flag is still there after it.
    pub fn event(
        &self,
        stage: &str,
        at: u64,
        flag: pb::DivergenceFlag,
        who: (u64, Address),
        set: bool,
    ) -> Result<u64> {
        let seq = self.step(true, |store| {
            let seq = EVENT_SEQ.next(store)?.saturating_add(1);
            let row = pb::WatchDivergenceResponse { seq, at, stage: stage.to_owned(), flag: Some(flag) };
            let bytes = row.encode_to_vec();
            EVENTS.set(store, &seq, &bytes)?;
            if let Some(oldest) = seq.checked_sub(EVENTS_KEPT) {
                EVENTS.remove(store, &oldest)?;
            }
            match set {
                true => LAST.set(store, &who, &bytes)?,
                false => LAST.remove(store, &who)?,
            }
            Ok(seq)
        })?;
        self.last_event.send_replace(seq);
        Ok(seq)
    }

    /// Changes from `from` on (0 or one that is gone: from the oldest kept), at most `limit`.
    pub fn events(&self, from: u64, limit: usize) -> Result<Vec<pb::WatchDivergenceResponse>> {
        let db = self.db()?;
        let mut rows = Vec::new();
        for row in EVENTS.after(&*db, from.checked_sub(1).as_ref()).take(limit) {
            let (_, bytes) = row?;
            rows.push(pb::WatchDivergenceResponse::decode(bytes.as_slice()).map_err(corrupt)?);
        }
        Ok(rows)
    }

    /// Flags of an escrow as the log of changes has them.
    pub fn logged_flags(&self, escrow_id: u64) -> Result<Vec<(Address, pb::DivergenceFlag)>> {
        let db = self.db()?;
        let mut rows = Vec::new();
        for row in LAST.prefix(&*db, &escrow_id, Order::Ascending) {
            let ((_, participant), bytes) = row?;
            let row = pb::WatchDivergenceResponse::decode(bytes.as_slice()).map_err(corrupt)?;
            rows.push((participant, row.flag.unwrap_or_default()));
        }
        Ok(rows)
    }

    /// Number of the last change, and of each later one.
    pub fn last_event(&self) -> watch::Receiver<u64> {
        self.last_event.subscribe()
    }
}

fn take(store: &mut BranchKv<'_>, name: &'static str, budget: u128, wanted: u128) -> Result<()> {
    let spent = SPENT.get(store, &name.to_owned())?.unwrap_or(0);
    match spent.checked_add(wanted).filter(|sum| *sum <= budget) {
        Some(sum) => Ok(SPENT.set(store, &name.to_owned(), &sum)?),
        None => Err(JournalError::Budget { name, spent, budget, wanted }),
    }
}

fn corrupt(error: holdfast_proto::prost::DecodeError) -> JournalError {
    JournalError::Row(StoreError::Backend(error.to_string()))
}

#[cfg(test)]
mod tests {
    use holdfast_host::store::{Fault, MemDb};

    use super::*;

    fn journal() -> Journal {
        Journal::open(Box::new(MemDb::default())).unwrap()
    }

    fn audit(verb: &str) -> Audit {
        Audit {
            escrow_id: 7,
            participant: Some(Address([1; 20])),
            verb: verb.into(),
            operator: "ops".into(),
            reason: "because".into(),
            at_ms: 5,
        }
    }

    #[test]
    fn a_journal_whose_disk_was_full_is_opened_again_when_there_is_room_and_takes_nothing_before() {
        use crate::openai::{KeyBudgets, ReplyStore};
        let disk = MemDb::new();
        let (opened, times) = (Mutex::new(disk), std::sync::atomic::AtomicU32::new(0));
        let journal = Journal::reopening(move || {
            let mut db = opened.lock().unwrap();
            *db = db.reopen(false);
            match times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                // The third commit finds no room, nor does the first after it was opened again.
                0 => db.fault(3, Fault::Full),
                1 => db.fault(1, Fault::Full),
                _ => {}
            }
            Ok(Box::new(db.clone()) as Box<dyn LocalDb>)
        })
        .unwrap();
        journal.set_spent("app", 5).unwrap();
        ReplyStore::ready(&journal).unwrap();
        assert!(journal.set_spent("app", 6).is_err());
        // Closed: nothing is read or written, so nobody is charged or served by what is not known.
        assert!(journal.spent("app").is_err() && ReplyStore::ready(&journal).is_err());
        assert!(matches!(journal.escrows(), Err(JournalError::Db(DbError::Full { .. }))));
        std::thread::sleep(REOPEN);
        assert_eq!(KeyBudgets::spent(&journal, "app").unwrap(), 5);
        assert!(ReplyStore::ready(&journal).is_err(), "still no room");
        std::thread::sleep(REOPEN);
        ReplyStore::ready(&journal).unwrap();
        journal.set_spent("app", 7).unwrap();
        assert_eq!(KeyBudgets::spent(&journal, "app").unwrap(), 7);
    }

    #[test]
    fn an_escrow_that_is_not_open_here_is_shown_as_that_and_not_as_ended() {
        let journal = journal();
        journal.adopt(7, "m", 1).unwrap();
        assert_eq!(journal.escrow(7).unwrap().unwrap().shown(7).phase, "not_opened");
        journal.update(7, |entry| entry.ended = Some(Ended::Settled)).unwrap();
        assert_eq!(journal.escrow(7).unwrap().unwrap().shown(7).phase, "settled");
    }

    #[test]
    fn changes_are_numbered_from_1_and_a_watcher_resumes_at_any_of_them() {
        let journal = journal();
        let who = (7, Address([2; 20]));
        let watched = journal.last_event();
        for (n, set) in [(1, true), (2, true), (3, false)] {
            let flag = pb::DivergenceFlag { generation: n, ..Default::default() };
            assert_eq!(journal.event("stage", n, flag, who, set).unwrap(), n);
            assert_eq!(journal.logged_flags(7).unwrap().len(), usize::from(set));
        }
        assert_eq!(*watched.borrow(), 3);
        let seqs = |from, limit| -> Vec<u64> {
            journal.events(from, limit).unwrap().iter().map(|row| row.seq).collect()
        };
        assert_eq!(seqs(0, 10), [1, 2, 3]);
        assert_eq!(seqs(2, 10), [2, 3]);
        assert_eq!(seqs(2, 1), [2]);
        assert_eq!(seqs(4, 10), [0; 0]);
    }

    #[test]
    fn a_budget_is_never_exceeded_and_an_intent_that_came_to_nothing_gives_its_coins_back() {
        let journal = journal();
        let intent = |amount| Intent { model: "m".into(), amount, from: 3, until: 13 };
        journal.intend(&intent(60), Some(("rotation", 100))).unwrap();
        assert!(matches!(
            journal.intend(&intent(41), Some(("rotation", 100))),
            Err(JournalError::Budget { spent: 60, wanted: 41, .. })
        ));
        assert_eq!(journal.intent().unwrap(), Some(intent(60)));
        journal.give_up_intent(Some("rotation")).unwrap();
        assert_eq!((journal.spent("rotation").unwrap(), journal.intent().unwrap()), (0, None));
        journal.intend(&intent(100), Some(("rotation", 100))).unwrap();
        journal.adopt(9, "m", 1_700_000_000).unwrap();
        assert_eq!((journal.spent("rotation").unwrap(), journal.intent().unwrap()), (100, None));
    }

    #[test]
    fn a_cooldown_is_probed_once() {
        let journal = journal();
        let member = Address([3; 20]);
        journal.probe("m", &member, (1, 1, 0), 70, 100).unwrap();
        assert!(journal.probed("m", &member, (1, 1, 0)).unwrap());
        assert!(!journal.probed("m", &member, (1, 1, 1)).unwrap());
        assert!(journal.probe("m", &member, (1, 1, 1), 31, 100).is_err());
        assert!(!journal.probed("m", &member, (1, 1, 1)).unwrap());
    }

    #[test]
    fn audit_rows_are_numbered_and_entries_change_in_place() {
        let journal = journal();
        assert_eq!(journal.audit(&audit("release")).unwrap(), 1);
        assert_eq!(journal.audit(&audit("give_up")).unwrap(), 2);
        assert_eq!(journal.audits(2, 10).unwrap(), [(2, audit("give_up"))]);
        journal.adopt(7, "m", 5).unwrap();
        journal.update(7, |entry| entry.ended = Some(Ended::Settled)).unwrap();
        journal.update(8, |entry| entry.closing = true).unwrap();
        // Adopting again keeps how it ended.
        assert_eq!(journal.adopt(7, "m", 9).unwrap().ended, Some(Ended::Settled));
        assert_eq!(journal.escrows().unwrap().len(), 1);
    }
}
