//! The store on disk, over fjall: the table `rows`, and the table `meta` with what the folder is for.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use holdfast_app::state::{StateError, mend_journal};
use holdfast_store::{KvIter, KvRead, Order, StoreError, WriteSet};

use super::{DbError, LocalDb, check};

/// Version of the folder's layout.
pub const FORMAT: u32 = 1;

/// Row of `meta` with the format and the purpose.
const PURPOSE: &str = "purpose";
/// Bytes of closed journals from which on the engine writes tables: what is in a journal is read back at each start.
const JOURNALS_BYTES: u64 = 64 << 20;
/// Blocks kept in memory, bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// Newest rows kept in memory until they become a table, bytes.
const MEMTABLE_BYTES: u64 = 8 << 20;

/// Where batches become durable. The seam at which tests let the disk fail.
pub(super) trait Sink: Send + Sync {
    /// All of the batch, or nothing.
    fn write(&self, batch: OwnedWriteBatch, mode: PersistMode) -> fjall::Result<()>;
}

/// Journal and fsync of the engine.
struct Journal;

impl Sink for Journal {
    fn write(&self, batch: OwnedWriteBatch, mode: PersistMode) -> fjall::Result<()> {
        batch.durability(Some(mode)).commit()
    }
}

/// A store in a folder that one process has at a time.
pub struct FjallDb {
    db: Database,
    rows: Keyspace,
    sink: Box<dyn Sink>,
    failed: AtomicBool,
}

fn full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn failure(error: &fjall::Error) -> DbError {
    match error {
        fjall::Error::Io(error) if full(error) => DbError::Full { what: error.to_string() },
        fjall::Error::Storage(fjall::LsmError::Io(error)) if full(error) => {
            DbError::Full { what: error.to_string() }
        }
        error => DbError::Failed { what: words(error) },
    }
}

/// What an error of the engine is to an operator: its own text is its Rust source.
fn words(error: &fjall::Error) -> String {
    use fjall::{Error, LsmError};
    match error {
        Error::Io(error) | Error::Storage(LsmError::Io(error)) => error.to_string(),
        Error::Storage(LsmError::ChecksumMismatch { .. }) => "a block of a table has a wrong checksum".into(),
        Error::Storage(LsmError::InvalidVersion(version)) => {
            format!("a table of the unknown version {version}")
        }
        Error::Storage(LsmError::InvalidHeader(name)) => format!("a damaged header ({name})"),
        Error::Storage(LsmError::InvalidTrailer) => "the end of a table is damaged".into(),
        Error::Storage(_) => "tables are damaged or missing".into(),
        Error::JournalRecovery(_) | Error::InvalidTrailer | Error::InvalidTag(_) => {
            "the journal is damaged".into()
        }
        Error::Decompress(_) => "a block cannot be decompressed".into(),
        Error::InvalidVersion(_) => "the version of its files is not readable".into(),
        Error::Poisoned => "an earlier write failed".into(),
        Error::KeyspaceDeleted => "a table was deleted".into(),
        Error::Locked => "another process has it open".into(),
        _ => "files are damaged or missing".into(),
    }
}

fn backend(error: fjall::Error) -> StoreError {
    StoreError::Backend(words(&error))
}

/// What the files of a folder tell before the engine opens them.
#[derive(PartialEq, Eq)]
enum Used {
    /// A store was made, and its journal is gone, without which the engine would begin another.
    NoJournal,
    /// Something was committed.
    Written,
}

/// `None` for a folder in which nothing was ever committed.
fn used(folder: &Path) -> io::Result<Option<Used>> {
    // The last file that the engine makes.
    if !folder.join("version").try_exists()? {
        return Ok(None);
    }
    let mut used = Some(Used::NoJournal);
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "jnl") {
            continue;
        }
        let mut first = [0];
        let begun = File::open(&path)?.read(&mut first)? == 1 && first != [0];
        // A journal is only followed by another when it is full.
        if begun || path.file_stem().is_some_and(|number| number != "0") {
            return Ok(Some(Used::Written));
        }
        used = None;
    }
    Ok(used)
}

impl FjallDb {
    /// Opens the store of `purpose` (such as `host`) in `folder`, or makes one.
    ///
    /// # Errors
    /// `Locked`, `Corrupt`, `Format`, `Full`, `Failed`.
    pub fn open(folder: &Path, purpose: &str) -> Result<Self, DbError> {
        Self::open_with(folder, purpose, Box::new(Journal))
    }

    pub(super) fn open_with(folder: &Path, purpose: &str, sink: Box<dyn Sink>) -> Result<Self, DbError> {
        let path = folder.to_owned();
        let open = |error: fjall::Error| match error {
            fjall::Error::Locked => DbError::Locked { path: path.clone() },
            fjall::Error::InvalidVersion(found) => DbError::Format {
                path: path.clone(),
                found: match found {
                    Some(version) => format!("a store in version {version} of the engine's files"),
                    None => "a file `version` that is no store's".into(),
                },
                expected: format!("{purpose} store {FORMAT}"),
            },
            // The engine makes a new store where its file `version` is missing, and finds the rest of an old one.
            fjall::Error::Io(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                DbError::Corrupt { what: format!("{}: some of its files are missing", path.display()) }
            }
            fjall::Error::Io(error)
                if !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound) =>
            {
                failure(&fjall::Error::Io(error))
            }
            error => DbError::Corrupt { what: format!("{}: {}", path.display(), words(&error)) },
        };
        mend_journal(folder).map_err(|error| match error {
            StateError::Locked { .. } => DbError::Locked { path: path.clone() },
            StateError::Corrupt { .. } => DbError::Corrupt { what: format!("{}: {error}", path.display()) },
            error => DbError::Failed { what: error.to_string() },
        })?;
        let lost = |what: &str| DbError::Corrupt { what: format!("{}: {what}", folder.display()) };
        let used = used(folder).map_err(|error| failure(&fjall::Error::Io(error)))?;
        if used == Some(Used::NoJournal) {
            return Err(lost("its journal is missing"));
        }
        let db = Database::builder(folder)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNALS_BYTES)
            .open()
            .map_err(&open)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let meta = db.keyspace("meta", options).map_err(&open)?;
        let rows = db.keyspace("rows", options).map_err(&open)?;
        let expected = format!("{purpose} store {FORMAT}");
        match meta.get(PURPOSE).map_err(&open)? {
            Some(found) if *found == *expected.as_bytes() => {}
            Some(found) => {
                let found = String::from_utf8_lossy(&found).into_owned();
                return Err(DbError::Format { path, found, expected });
            }
            None if !rows.is_empty().map_err(&open)? => {
                return Err(lost("rows without a word what they are"));
            }
            // The engine begins anew where its tables are gone, and drops the rows that a journal has for them.
            None if used == Some(Used::Written) => return Err(lost("tables are missing")),
            None => {
                let mut batch = OwnedWriteBatch::with_capacity(db.clone(), 1);
                batch.insert(&meta, PURPOSE, expected);
                sink.write(batch, PersistMode::SyncAll).map_err(|error| failure(&error))?;
            }
        }
        Ok(Self { db, rows, sink, failed: AtomicBool::new(false) })
    }
}

impl KvRead for FjallDb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.rows.get(key).map_err(backend)?.map(|value| value.to_vec()))
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        if end.is_some_and(|end| end <= start) {
            return Box::new(std::iter::empty());
        }
        let rows = match end {
            Some(end) => self.rows.range(start.to_vec()..end.to_vec()),
            None => self.rows.range(start.to_vec()..),
        };
        let pair = |row: fjall::Guard| {
            let (key, value) = row.into_inner().map_err(backend)?;
            Ok((key.to_vec(), value.to_vec()))
        };
        match order {
            Order::Ascending => Box::new(rows.map(pair)),
            Order::Descending => Box::new(rows.rev().map(pair)),
        }
    }
}

impl LocalDb for FjallDb {
    fn commit(&self, writes: WriteSet, sync: bool) -> Result<(), DbError> {
        check(&writes)?;
        if self.failed.load(Ordering::Acquire) {
            return Err(DbError::Failed { what: "an earlier write failed".into() });
        }
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), writes.len());
        for (key, value) in writes {
            match value {
                Some(value) => batch.insert(&self.rows, key, value),
                None => batch.remove(&self.rows, key),
            }
        }
        let mode = if sync { PersistMode::SyncAll } else { PersistMode::Buffer };
        self.sink.write(batch, mode).map_err(|error| {
            self.failed.store(true, Ordering::Release);
            failure(&error)
        })
    }
}
