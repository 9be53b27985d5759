//! A store in memory whose disk can fail: for tests and the simulator.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_store::{KvIter, KvRead, Order, Pair, StoreError, WriteSet};

use super::{DbError, LocalDb, check};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What happens to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and leaves nothing behind; the handle takes no more commits.
    Fail,
    /// The disk is full: the same.
    Full,
    /// The process is gone before the commit.
    CrashBefore,
    /// The process is gone after the commit became durable, before it hears of it.
    CrashAfter,
}

#[derive(Default)]
struct Disk {
    rows: Rows,
    /// What a power cut leaves.
    synced: Rows,
    commits: u64,
    /// Number of the commit, and what happens to it.
    faults: BTreeMap<u64, Fault>,
    /// Handles of an earlier process are dead.
    process: u64,
    broken: Option<DbError>,
}

/// A store in memory. Clones are handles of one process; [`MemDb::reopen`] is the next process on the same disk.
#[derive(Clone, Default)]
pub struct MemDb {
    disk: Arc<Mutex<Disk>>,
    process: u64,
}

impl MemDb {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a fault for the `nth` commit from now, from 1.
    pub fn fault(&self, nth: u64, fault: Fault) {
        let mut disk = self.lock();
        let at = disk.commits.saturating_add(nth);
        disk.faults.insert(at, fault);
    }

    /// Commits so far, failed ones included.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    /// The process ends and the next one opens the disk; handles from before are dead. `power_cut` loses what was not
    /// synced. Planned faults are forgotten.
    #[must_use]
    pub fn reopen(&self, power_cut: bool) -> Self {
        let mut disk = self.lock();
        if power_cut {
            disk.rows = disk.synced.clone();
        } else {
            disk.synced = disk.rows.clone();
        }
        disk.faults.clear();
        disk.broken = None;
        disk.process = disk.process.saturating_add(1);
        Self { disk: self.disk.clone(), process: disk.process }
    }

    /// Another disk with the same content: a backup, or a folder that was copied.
    #[must_use]
    pub fn copy(&self) -> Self {
        let rows = self.lock().rows.clone();
        let disk = Disk { synced: rows.clone(), rows, ..Disk::default() };
        Self { disk: Arc::new(Mutex::new(disk)), process: 0 }
    }

    /// Puts bytes on the disk behind the store's back, or takes a row away: damage.
    pub fn damage(&self, key: &[u8], value: Option<&[u8]>) {
        let mut guard = self.lock();
        let disk = &mut *guard;
        for rows in [&mut disk.rows, &mut disk.synced] {
            match value {
                Some(value) => drop(rows.insert(key.to_vec(), value.to_vec())),
                None => drop(rows.remove(key)),
            }
        }
    }

    /// Every row, by key.
    #[must_use]
    pub fn rows(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.lock().rows.clone()
    }

    fn usable(&self, disk: &Disk) -> Result<(), DbError> {
        if disk.process != self.process {
            return Err(DbError::Failed { what: "the process has ended".into() });
        }
        disk.broken.clone().map_or(Ok(()), Err)
    }
}

impl KvRead for MemDb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.lock().rows.get(key).cloned())
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
        Box::new(Scan { db: self, start: Bound::Included(start.to_vec()), end, order })
    }
}

/// One look at the disk for each row, so that nothing is locked between two.
struct Scan<'a> {
    db: &'a MemDb,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    order: Order,
}

/// Whether nothing lies between the bounds: a map refuses reversed ones.
fn is_empty(start: &Bound<Vec<u8>>, end: &Bound<Vec<u8>>) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Pair, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if is_empty(&self.start, &self.end) {
            return None;
        }
        let disk = self.db.lock();
        let mut range = disk.rows.range((self.start.clone(), self.end.clone()));
        let row = match self.order {
            Order::Ascending => range.next(),
            Order::Descending => range.next_back(),
        };
        let (key, value) = row.map(|(key, value)| (key.clone(), value.clone()))?;
        match self.order {
            Order::Ascending => self.start = Bound::Excluded(key.clone()),
            Order::Descending => self.end = Bound::Excluded(key.clone()),
        }
        Some(Ok((key, value)))
    }
}

impl LocalDb for MemDb {
    fn commit(&self, writes: WriteSet, sync: bool) -> Result<(), DbError> {
        let mut guard = self.lock();
        let disk = &mut *guard;
        self.usable(disk)?;
        check(&writes)?;
        disk.commits = disk.commits.saturating_add(1);
        let fault = disk.faults.remove(&disk.commits);
        let gone = || DbError::Failed { what: "the process has ended".into() };
        let broken = match fault {
            None => None,
            Some(Fault::Fail) => Some(DbError::Failed { what: "a planned fault".into() }),
            Some(Fault::Full) => Some(DbError::Full { what: "a planned fault".into() }),
            Some(Fault::CrashBefore | Fault::CrashAfter) => Some(gone()),
        };
        if matches!(fault, None | Some(Fault::CrashAfter)) {
            for (key, value) in writes {
                match value {
                    Some(value) => drop(disk.rows.insert(key, value)),
                    None => drop(disk.rows.remove(&key)),
                }
            }
            if sync {
                disk.synced = disk.rows.clone();
            }
        }
        disk.broken.clone_from(&broken);
        broken.map_or(Ok(()), Err)
    }
}
