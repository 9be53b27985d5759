//! The state database on disk, over fjall.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `flat` | full key | latest value |
//! | `versions` | escaped full key, descending height | value at that height, or removed |
//! | `pages` | height, module, path | tree page |
//! | `stale` | height | keys of the pages that the height replaced |
//! | `preimages` | module, key hash | key inside the module |
//! | `commits` | height | app hash, root of every tree |
//! | `changes` | height | keys that the height changed |
//! | `meta` | name | format, modules, latest and earliest height |
//!
//! Every write is one batch, appended to the journal and synced before it returns, so that at most the last one can be torn;
//! a torn one is dropped whole when the journal is read back. Opening compares the latest height in `meta`, in `flat` and
//! in `commits`, recomputes the app hash from the roots and the roots from the root pages. It scans no table.

use std::collections::BTreeMap;
use std::path::{Path as FsPath, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable,
    Snapshot,
};
use holdfast_store::{KvIter, KvRead, Order, Pair, StoreError, WriteSet};

use crate::files;

use super::cache::{Fronts, PageCache, ValueCache};
use super::journal;
use super::proof::{self, ProofSource, StateProof};
use super::table::{self, MARKER_KEY};
use super::tree::{Hash, Page, PageSource, Path};
use super::{
    CommitStore, MAX_KEY_BYTES, Modules, Pin, Prepared, StateError, StateOptions, StateView, TreeRoot,
    check_readable, compute, horizon, version,
};

#[path = "restore.rs"]
mod restore;

pub(crate) use restore::Filling;

pub(super) const META_FORMAT: &str = "format";
pub(super) const META_MODULES: &str = "modules";
pub(super) const META_LATEST: &str = "latest";
pub(super) const META_EARLIEST: &str = "earliest";

/// Bytes of closed journals from which on the engine writes out the tables that hold them. What is in a journal is read back at
/// start; the engine's own limit, eight times as much, would take seconds.
const JOURNALS_BYTES: u64 = 64 << 20;

/// Where batches become durable. The seam at which tests let the disk fail.
pub(super) trait Sink: Send + Sync {
    /// Writes `batch` to stable storage, all of it or nothing.
    fn write(&self, batch: OwnedWriteBatch) -> fjall::Result<()>;
}

/// Journal and fsync of the engine.
pub(super) struct Synced;

impl Sink for Synced {
    fn write(&self, batch: OwnedWriteBatch) -> fjall::Result<()> {
        batch.durability(Some(PersistMode::SyncAll)).commit()
    }
}

pub(super) struct Tables {
    pub(super) db: Database,
    pub(super) flat: Keyspace,
    pub(super) versions: Keyspace,
    pub(super) pages: Keyspace,
    pub(super) stale: Keyspace,
    pub(super) preimages: Keyspace,
    pub(super) commits: Keyspace,
    pub(super) changes: Keyspace,
    pub(super) meta: Keyspace,
    sink: Box<dyn Sink>,
    /// A write failed: what is on disk is no longer known.
    failed: AtomicBool,
}

pub(super) fn engine(error: fjall::Error) -> StateError {
    StateError::Engine(error.to_string())
}

fn backend(error: fjall::Error) -> StoreError {
    StoreError::Backend(error.to_string())
}

fn corrupt(error: StateError) -> StoreError {
    StoreError::Backend(error.to_string())
}

impl Tables {
    pub(super) fn open(
        path: &FsPath,
        options: &StateOptions,
        sink: Box<dyn Sink>,
    ) -> Result<Self, StateError> {
        let open = |error| match error {
            fjall::Error::Locked => StateError::Locked { path: path.to_owned() },
            fjall::Error::InvalidVersion(found) => StateError::Format {
                path: path.to_owned(),
                found: found.map_or("unknown".into(), |v| format!("of engine {v:?}")),
                expected: table::FORMAT,
            },
            fjall::Error::Io(error) => StateError::Engine(error.to_string()),
            other => StateError::corrupt(other.to_string()),
        };
        journal::mend(path)?;
        let db = Database::builder(path)
            .cache_size(options.block_cache_bytes)
            .max_journaling_size(JOURNALS_BYTES)
            .open()
            .map_err(open)?;
        // Keys and pages are hashes for the most part: compression finds nothing in them. Lookups mostly hit.
        let found = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(32 * 1024 * 1024)
                .expect_point_read_hits(true)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        };
        // Read in order or not at all: no filters.
        let walked = || {
            KeyspaceCreateOptions::default()
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::None))
                .max_memtable_size(16 * 1024 * 1024)
        };
        // Looked up by exact key, often absent.
        let sparse = || {
            KeyspaceCreateOptions::default().filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
                BloomConstructionPolicy::BitsPerKey(10.0),
            )))
        };
        Ok(Self {
            flat: db.keyspace("flat", found).map_err(open)?,
            versions: db.keyspace("versions", walked).map_err(open)?,
            pages: db.keyspace("pages", found).map_err(open)?,
            stale: db.keyspace("stale", walked).map_err(open)?,
            preimages: db.keyspace("preimages", found).map_err(open)?,
            commits: db.keyspace("commits", sparse).map_err(open)?,
            changes: db.keyspace("changes", walked).map_err(open)?,
            meta: db.keyspace("meta", sparse).map_err(open)?,
            db,
            sink,
            failed: AtomicBool::new(false),
        })
    }

    pub(super) fn batch(&self, capacity: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.db.clone(), capacity)
    }

    /// Makes a batch durable. After the first failure every write is refused: nobody can say any more what is on disk.
    pub(super) fn write(&self, batch: OwnedWriteBatch) -> Result<(), StateError> {
        self.usable()?;
        self.sink.write(batch).map_err(|error| {
            self.failed.store(true, Ordering::Release);
            engine(error)
        })
    }

    fn usable(&self) -> Result<(), StateError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(StateError::Engine("an earlier write failed, so none is taken any more".into()));
        }
        Ok(())
    }

    /// Whether `path` holds a database of this format, by its mark.
    pub(super) fn has_format(&self, path: &FsPath) -> Result<bool, StateError> {
        match self.meta.get(META_FORMAT).map_err(engine)? {
            None => Ok(false),
            Some(found) if *found == table::FORMAT.to_be_bytes() => Ok(true),
            Some(found) => Err(StateError::Format {
                path: path.to_owned(),
                found: <[u8; 4]>::try_from(&*found)
                    .map_or_else(|_| "unknown".into(), |bytes| u32::from_be_bytes(bytes).to_string()),
                expected: table::FORMAT,
            }),
        }
    }

    /// The modules on disk.
    pub(super) fn stored_modules(&self) -> Result<Modules, StateError> {
        let stored = self.meta.get(META_MODULES).map_err(engine)?.unwrap_or_default();
        let names = String::from_utf8_lossy(&stored).split('/').map(str::to_owned).collect();
        Modules::numbered(names).map_err(|error| StateError::corrupt(error.to_string()))
    }
}

struct Head {
    earliest: i64,
    latest: DiskSnapshot,
    /// Heights that must stay, with how many want them.
    pins: BTreeMap<i64, usize>,
}

/// How far pruning has come: the lists of all lower heights are gone. Kept so that a piece does not begin with the marks
/// of all rows that earlier pieces removed.
#[derive(Debug, Clone, Copy, Default)]
struct Swept {
    stale: i64,
    changes: i64,
    commits: i64,
}

struct Shared {
    tables: Arc<Tables>,
    modules: Modules,
    options: StateOptions,
    cache: PageCache,
    values: Arc<ValueCache>,
    fronts: Arc<Fronts>,
    head: RwLock<Head>,
    /// Whoever writes. Held by pruning for the write of a batch only.
    writer: Mutex<()>,
    swept: Mutex<Swept>,
    path: PathBuf,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn head(&self) -> RwLockReadGuard<'_, Head> {
        self.head.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn head_mut(&self) -> RwLockWriteGuard<'_, Head> {
        self.head.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One wish for a height in `Head::pins`.
struct PinnedHeight {
    shared: Arc<Shared>,
    height: i64,
}

impl Drop for PinnedHeight {
    fn drop(&mut self) {
        let mut head = self.shared.head_mut();
        if let Some(count) = head.pins.get_mut(&self.height) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                head.pins.remove(&self.height);
            }
        }
    }
}

/// [`CommitStore`] on disk. Clones share the database; the folder is free again when the last clone and view are gone.
#[derive(Clone)]
pub struct DiskStore(Arc<Shared>);

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore")
            .field("path", &self.0.path)
            .field("height", &self.latest_height())
            .finish()
    }
}

impl DiskStore {
    /// Opens the database in folder `path`, creating it when there is none.
    ///
    /// `modules` are fixed at creation, but for [`StateOptions::added_modules`]. Fails with `Locked`, `Format`, `Modules`,
    /// `ModuleList`, `Corrupt` or `Engine`.
    pub fn open<S: AsRef<str>>(
        path: impl AsRef<FsPath>,
        modules: &[S],
        options: StateOptions,
    ) -> Result<Self, StateError> {
        Self::open_with(path.as_ref(), modules, options, Box::new(Synced))
    }

    pub(super) fn open_with<S: AsRef<str>>(
        path: &FsPath,
        modules: &[S],
        options: StateOptions,
        sink: Box<dyn Sink>,
    ) -> Result<Self, StateError> {
        let path = path.to_owned();
        let given = Modules::new(modules)?;
        if is_vacant(&path) {
            create_whole(&path, &given, &options)?;
        }
        let tables = Tables::open(&path, &options, sink)?;
        if !tables.has_format(&path)? {
            create(&tables, &given)?;
        }
        restore::empty_if_filling(&tables)?;
        let stored = tables.stored_modules()?;
        let modules = given.over(&stored, &options.added_modules)?;
        let (height, earliest, app_hash, roots) = check(&tables, &modules, stored.count())?;
        let tables = Arc::new(tables);
        let values = Arc::new(ValueCache::new(options.value_cache_bytes, height));
        let fronts = Arc::new(Fronts::new(height));
        let latest = DiskSnapshot {
            snapshot: tables.db.snapshot(),
            tables: tables.clone(),
            values: values.clone(),
            fronts: fronts.clone(),
            height,
            app_hash,
            roots: roots.into(),
        };
        Ok(Self(Arc::new(Shared {
            cache: PageCache::new(options.page_cache),
            values,
            fronts,
            tables,
            modules,
            options,
            head: RwLock::new(Head { earliest, latest, pins: BTreeMap::new() }),
            writer: Mutex::new(()),
            swept: Mutex::default(),
            path,
        })))
    }

    /// Folder of the database.
    pub fn path(&self) -> &FsPath {
        &self.0.path
    }

    /// Bytes the database holds on disk.
    pub fn disk_bytes(&self) -> Result<u64, StateError> {
        self.0.tables.db.disk_space().map_err(engine)
    }

    fn head(&self) -> (i64, DiskSnapshot) {
        let head = self.0.head();
        (head.earliest, head.latest.clone())
    }

    /// The view of `height`, with the roots of that height.
    fn at(&self, height: i64) -> Result<DiskVersioned, StateError> {
        let (earliest, latest) = self.head();
        check_readable(height, earliest, latest.height)?;
        if height == latest.height {
            return Ok(DiskVersioned {
                height,
                app_hash: latest.app_hash,
                roots: latest.roots.clone(),
                latest,
            });
        }
        let row = latest.snapshot.get(&latest.tables.commits, table::height_key(height)).map_err(engine)?;
        let row = row.ok_or_else(|| StateError::corrupt(format!("height {height} has no commit record")))?;
        let (app_hash, roots) = table::read_commit_record(&row, self.0.modules.count())?;
        Ok(DiskVersioned { latest, height, app_hash, roots: roots.into() })
    }
}

/// Whether there is nothing at `path`, or an empty folder.
fn is_vacant(path: &FsPath) -> bool {
    std::fs::read_dir(path).map_or(!path.exists(), |mut entries| entries.next().is_none())
}

/// Creates the database, whole or not at all. Another process may be at it.
fn create_whole(path: &FsPath, modules: &Modules, options: &StateOptions) -> Result<(), StateError> {
    let failed =
        |error: std::io::Error| StateError::Engine(format!("cannot create {}: {error}", path.display()));
    let fresh = files::unfinished(path);
    if fresh.exists() {
        drop(journal::lock(&fresh)?);
    }
    let make = |fresh: &FsPath| create(&Tables::open(fresh, options, Box::new(Synced))?, modules);
    files::create_whole(path, make, failed)
}

/// Writes the first rows: format, modules, and the trees' birth pages.
fn create(tables: &Tables, modules: &Modules) -> Result<(), StateError> {
    if tables.flat.first_key_value().is_some() || tables.commits.first_key_value().is_some() {
        return Err(StateError::corrupt("there is state, but no format mark"));
    }
    let birth = Page::birth().encode();
    let mut batch = tables.batch(modules.count().saturating_add(2));
    for module in (0u16..).take(modules.count()) {
        batch.insert(&tables.pages, table::page_key(module, &Path::default(), 0), birth.clone());
    }
    batch.insert(&tables.meta, META_MODULES, modules.numbered.join("/"));
    batch.insert(&tables.meta, META_FORMAT, table::FORMAT.to_be_bytes());
    tables.write(batch)
}

/// Reads the latest height, the earliest one, app hash and roots, and checks that all tables agree on them. Of `modules` the
/// first `stored` are in the database.
pub(super) fn check(
    tables: &Tables,
    modules: &Modules,
    stored: usize,
) -> Result<(i64, i64, Hash, Vec<TreeRoot>), StateError> {
    let height_of = |row: Option<fjall::UserValue>| row.map_or(Ok(0), |row| table::read_height(&row));
    let latest = height_of(tables.meta.get(META_LATEST).map_err(engine)?)?;
    let earliest = height_of(tables.meta.get(META_EARLIEST).map_err(engine)?)?;
    let marked = height_of(tables.flat.get(MARKER_KEY).map_err(engine)?)?;
    if latest != marked {
        return Err(StateError::corrupt(format!(
            "latest height is {latest}, but the flat table is at {marked}"
        )));
    }
    if latest < 0 || earliest > latest {
        return Err(StateError::corrupt(format!("heights {earliest} to {latest} are no window")));
    }
    if let Some(last) = tables.commits.last_key_value() {
        let last = table::read_height(&last.key().map_err(engine)?)?;
        if last != latest {
            return Err(StateError::corrupt(format!(
                "latest height is {latest}, but commit records end at {last}"
            )));
        }
    }
    let (app_hash, roots) = if latest == 0 {
        let roots = modules.birth_roots();
        (modules.app_hash(&roots), roots)
    } else {
        let row = tables.commits.get(table::height_key(latest)).map_err(engine)?;
        let row = row.ok_or_else(|| StateError::corrupt(format!("height {latest} has no commit record")))?;
        let record = table::read_commit_record(&row, stored)?;
        if record.1.len() != stored {
            return Err(StateError::corrupt("a commit record is malformed"));
        }
        record
    };
    if modules.app_hash(&roots) != app_hash {
        return Err(StateError::corrupt(format!(
            "the tree roots of height {latest} do not give its app hash"
        )));
    }
    for (module, root) in (0u16..).zip(&roots) {
        super::tree::load(
            &LatestPages { tables, cache: None },
            module,
            &Path::default(),
            root.version,
            &root.hash,
        )?;
    }
    Ok((latest, earliest, app_hash, roots))
}

/// Pages straight from the table: right for the latest state, whose pages are never pruned.
struct LatestPages<'a> {
    tables: &'a Tables,
    cache: Option<&'a PageCache>,
}

impl PageSource for LatestPages<'_> {
    fn page(&self, module: u16, path: &Path, version: u64) -> Result<Option<Arc<Page>>, StateError> {
        if let Some(page) = self.cache.and_then(|c| c.get(module, path, version)) {
            return Ok(Some(page));
        }
        let row = self.tables.pages.get(table::page_key(module, path, version)).map_err(engine)?;
        read_page(row, self.cache, module, path, version)
    }
}

fn read_page(
    row: Option<fjall::UserValue>,
    cache: Option<&PageCache>,
    module: u16,
    path: &Path,
    version: u64,
) -> Result<Option<Arc<Page>>, StateError> {
    let Some(row) = row else {
        // The tree of a module that came in later was never written as it was born.
        let born = version == 0 && *path == Path::default();
        return Ok(born.then(|| Arc::new(Page::birth())));
    };
    let page = Page::decode(&row).ok_or_else(|| {
        StateError::corrupt(format!("tree page {module}/{path:?} of height {version} is malformed"))
    })?;
    let page = Arc::new(page);
    if let Some(cache) = cache {
        cache.put(module, path, version, page.clone());
    }
    Ok(Some(page))
}

/// View of the latest height of a [`DiskStore`], unchanged by later commits. Cheap to clone.
#[derive(Clone)]
pub struct DiskSnapshot {
    tables: Arc<Tables>,
    snapshot: Snapshot,
    values: Arc<ValueCache>,
    fronts: Arc<Fronts>,
    height: i64,
    app_hash: Hash,
    roots: Arc<[TreeRoot]>,
}

impl std::fmt::Debug for DiskSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskSnapshot").field("height", &self.height).finish_non_exhaustive()
    }
}

impl StateView for DiskSnapshot {
    fn height(&self) -> i64 {
        self.height
    }

    fn app_hash(&self) -> Hash {
        self.app_hash
    }
}

/// Whether a key could be one of ours.
fn is_marker(key: &[u8]) -> bool {
    key.starts_with(MARKER_KEY)
}

/// Whether no row can have this key. The engine panics on keys beyond its limit, and whoever asks may have made the key
/// from a message or a request.
fn is_too_long(key: &[u8]) -> bool {
    key.len() > MAX_KEY_BYTES
}

/// `bound` cut to a length the engine takes. One byte more than the longest key keeps it on the same side of every key.
fn cut(bound: &[u8]) -> &[u8] {
    bound.get(..=MAX_KEY_BYTES).unwrap_or(bound)
}

/// `start` and `end` as bounds of the flat table, behind its marker row; `None` for an empty range.
fn flat_range(start: &[u8], end: Option<&[u8]>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    const FIRST: &[u8] = &[1];
    let (start, end) = (cut(start.max(FIRST)), end.map(cut));
    if end.is_some_and(|end| end <= start) {
        return None;
    }
    Some((start.to_vec(), end.map(<[u8]>::to_vec)))
}

fn range_of(start: Vec<u8>, end: Option<Vec<u8>>) -> (std::ops::Bound<Vec<u8>>, std::ops::Bound<Vec<u8>>) {
    use std::ops::Bound;
    (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded))
}

impl KvRead for DiskSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        // Height 0 is empty, also while a snapshot's rows come in.
        if self.height == 0 || is_marker(key) || key.is_empty() || is_too_long(key) {
            return Ok(None);
        }
        if let Some(value) = self.values.get(key, self.height) {
            return Ok(value);
        }
        let value = self.snapshot.get(&self.tables.flat, key).map_err(backend)?.map(|v| v.to_vec());
        self.values.put(key, value.as_deref(), self.height);
        Ok(value)
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let Some((start, end)) = flat_range(start, end).filter(|_| self.height != 0) else {
            return Box::new(std::iter::empty());
        };
        let pair = |row: fjall::Guard| -> Result<Pair, StoreError> {
            let (key, value) = row.into_inner().map_err(backend)?;
            Ok((key.to_vec(), value.to_vec()))
        };
        if order == Order::Descending {
            return Box::new(self.snapshot.range(&self.tables.flat, range_of(start, end)).rev().map(pair));
        }
        if !Fronts::is_root(&start) {
            return Box::new(self.snapshot.range(&self.tables.flat, range_of(start, end)).map(pair));
        }
        let from = self.fronts.get(&start, self.height).unwrap_or_else(|| start.clone());
        if end.as_ref().is_some_and(|end| *end <= from) {
            return Box::new(std::iter::empty());
        }
        let rows = self.snapshot.range(&self.tables.flat, range_of(from, end.clone())).map(pair);
        Box::new(FrontScan { rows, view: self, ahead: Some((start, end)) })
    }
}

/// An ascending scan from the root of a collection, which remembers where the first row was.
struct FrontScan<'a, I> {
    rows: I,
    view: &'a DiskSnapshot,
    /// Bounds of the scan until it has given its first row.
    ahead: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

impl<I: Iterator<Item = Result<Pair, StoreError>>> Iterator for FrontScan<'_, I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next();
        if let Some((start, end)) = self.ahead.take() {
            let first = match &row {
                Some(Ok((key, _))) => Some(key),
                Some(Err(_)) => None,
                None => end.as_ref(),
            };
            if let Some(first) = first {
                self.view.fronts.put(&start, first, self.view.height);
            }
        }
        row
    }
}

/// View of one height of a [`DiskStore`], taken while the height was in the window.
#[derive(Clone)]
pub struct DiskVersioned {
    latest: DiskSnapshot,
    height: i64,
    app_hash: Hash,
    roots: Arc<[TreeRoot]>,
}

impl std::fmt::Debug for DiskVersioned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskVersioned").field("height", &self.height).finish_non_exhaustive()
    }
}

impl StateView for DiskVersioned {
    fn height(&self) -> i64 {
        self.height
    }

    fn app_hash(&self) -> Hash {
        self.app_hash
    }
}

impl KvRead for DiskVersioned {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if self.height == self.latest.height {
            return self.latest.get(key);
        }
        if is_too_long(key) {
            return Ok(None);
        }
        // Newest first: the first row from the height on down is the one.
        let rows = self.latest.snapshot.range(
            &self.latest.tables.versions,
            table::version_key(key, self.height)..=table::version_key(key, 0),
        );
        match { rows }.next() {
            None => Ok(None),
            Some(row) => {
                let row = row.value().map_err(backend)?;
                Ok(table::read_version_value(&row).map_err(corrupt)?.map(<[u8]>::to_vec))
            }
        }
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        if self.height == self.latest.height {
            return self.latest.scan(start, end, order);
        }
        let Some((start, end)) = flat_range(start, end) else {
            return Box::new(std::iter::empty());
        };
        let bounds = range_of(table::version_prefix(&start), end.map(|end| table::version_prefix(&end)));
        let rows = self.latest.snapshot.range(&self.latest.tables.versions, bounds);
        Box::new(VersionScan {
            rows,
            height: self.height,
            order,
            settled: Vec::new(),
            open: None,
            done: false,
        })
    }
}

/// One row per key out of all its versions: the newest at or below `height`.
struct VersionScan {
    rows: fjall::Iter,
    height: i64,
    order: Order,
    /// Ascending: prefix of the key whose row is already chosen; its older rows are skipped.
    settled: Vec<u8>,
    /// Descending: the best row so far of the key being read, which comes oldest first.
    open: Option<(Vec<u8>, Option<Vec<u8>>)>,
    done: bool,
}

/// Escaped key, height, value.
type VersionRow = (Vec<u8>, i64, Option<Vec<u8>>);

impl VersionScan {
    fn row(row: fjall::Guard) -> Result<VersionRow, StateError> {
        let (key, value) = row.into_inner().map_err(engine)?;
        let (prefix, height) = table::split_version_key(&key)?;
        Ok((prefix.to_vec(), height, table::read_version_value(&value)?.map(<[u8]>::to_vec)))
    }

    fn step(&mut self) -> Result<Option<Pair>, StateError> {
        while !self.done {
            let next = match self.order {
                Order::Ascending => self.rows.next(),
                Order::Descending => self.rows.next_back(),
            };
            let Some(row) = next else {
                self.done = true;
                break;
            };
            let (prefix, height, value) = Self::row(row)?;
            match self.order {
                Order::Ascending => {
                    if height > self.height || prefix == self.settled {
                        continue;
                    }
                    let pair = value.map(|value| Ok((table::unescape(&prefix)?, value)));
                    self.settled = prefix;
                    if let Some(pair) = pair {
                        return pair.map(Some);
                    }
                }
                Order::Descending => {
                    let same = self.open.as_ref().is_some_and(|(open, _)| *open == prefix);
                    let closed = if same { None } else { self.open.take() };
                    if height <= self.height {
                        self.open = Some((prefix, value));
                    }
                    if let Some((prefix, Some(value))) = closed {
                        return Ok(Some((table::unescape(&prefix)?, value)));
                    }
                }
            }
        }
        match self.open.take() {
            Some((prefix, Some(value))) => Ok(Some((table::unescape(&prefix)?, value))),
            _ => Ok(None),
        }
    }
}

impl Iterator for VersionScan {
    type Item = Result<Pair, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(pair) => pair.map(Ok),
            Err(error) => {
                self.done = true;
                Some(Err(corrupt(error)))
            }
        }
    }
}

/// A height's pages through the cache, preimages and values.
struct Prover<'a> {
    view: &'a DiskVersioned,
    cache: &'a PageCache,
}

impl PageSource for Prover<'_> {
    fn page(&self, module: u16, path: &Path, version: u64) -> Result<Option<Arc<Page>>, StateError> {
        if let Some(page) = self.cache.get(module, path, version) {
            return Ok(Some(page));
        }
        // Through the view's snapshot: pruning may go on meanwhile.
        let latest = &self.view.latest;
        let row = latest
            .snapshot
            .get(&latest.tables.pages, table::page_key(module, path, version))
            .map_err(engine)?;
        read_page(row, Some(self.cache), module, path, version)
    }
}

impl ProofSource for Prover<'_> {
    fn pages(&self) -> &dyn PageSource {
        self
    }

    fn preimage(&self, module: u16, key_hash: &Hash) -> Result<Option<Vec<u8>>, StateError> {
        let latest = &self.view.latest;
        let row = latest.snapshot.get(&latest.tables.preimages, table::preimage_key(module, key_hash));
        Ok(row.map_err(engine)?.map(|key| key.to_vec()))
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        Ok(self.view.get(key)?)
    }
}

impl CommitStore for DiskStore {
    type Snapshot = DiskSnapshot;
    type Versioned = DiskVersioned;

    fn latest_height(&self) -> i64 {
        self.head().1.height
    }

    fn earliest_height(&self) -> i64 {
        self.head().0
    }

    fn app_hash(&self) -> Hash {
        self.head().1.app_hash
    }

    fn modules(&self) -> &[String] {
        &self.0.modules.sorted
    }

    fn snapshot(&self) -> DiskSnapshot {
        self.head().1
    }

    fn snapshot_at(&self, height: i64) -> Result<DiskVersioned, StateError> {
        self.at(height)
    }

    fn prepare(&self, height: i64, writes: &WriteSet) -> Result<Prepared, StateError> {
        let shared = &*self.0;
        let latest = self.head().1;
        let source = LatestPages { tables: &shared.tables, cache: Some(&shared.cache) };
        compute(
            &shared.modules,
            &source,
            &latest.roots,
            latest.height,
            height,
            writes,
            shared.options.threads,
        )
    }

    fn commit(&self, prepared: Prepared) -> Result<(), StateError> {
        let shared = &*self.0;
        let _writer = lock(&shared.writer);
        let (earliest, latest) = self.head();
        let Prepared { height, base, app_hash, roots, writes, pages, stale } = prepared;
        if base != latest.height {
            return Err(StateError::Stale { height, base, latest: latest.height });
        }
        if base == 0 {
            restore::refuse_while_filling(&shared.tables)?;
        }
        let at = version(height)?;
        let earliest = if base == 0 { height } else { earliest };
        let tables = &*shared.tables;
        let rows = writes.len().saturating_mul(3).saturating_add(pages.len());
        let mut batch = tables.batch(rows.saturating_add(8));
        let mut list = Vec::with_capacity(writes.len().saturating_mul(48));
        let mut key = Vec::with_capacity(128);

        for write in &writes {
            table::put_key(&mut list, &write.key);
            batch.insert(
                &tables.versions,
                table::version_key(&write.key, height),
                table::version_value(write.value.as_deref()),
            );
            if write.inserted {
                let (_, rest) = shared.modules.split(&write.key)?;
                batch.insert(&tables.preimages, table::preimage_key(write.module, &write.key_hash), rest);
            }
            match &write.value {
                Some(value) => batch.insert(&tables.flat, &write.key, value),
                None => batch.remove(&tables.flat, &write.key),
            }
        }
        batch.insert(&tables.changes, table::height_key(height), list.as_slice());
        for (module, path, page) in &pages {
            table::put_page_key(&mut key, *module, path, at);
            batch.insert(&tables.pages, &key, page.encode());
        }
        list.clear();
        for (module, path, old) in &stale {
            table::put_page_key(&mut key, *module, path, *old);
            table::put_key(&mut list, &key);
        }
        batch.insert(&tables.stale, table::height_key(height), list.as_slice());
        batch.insert(&tables.commits, table::height_key(height), table::commit_record(&app_hash, &roots));
        batch.insert(&tables.flat, MARKER_KEY, table::height_key(height));
        batch.insert(&tables.meta, META_LATEST, table::height_key(height));
        batch.insert(&tables.meta, META_EARLIEST, table::height_key(earliest));
        if latest.roots.len() < roots.len() {
            batch.insert(&tables.meta, META_MODULES, shared.modules.numbered.join("/"));
        }
        tables.write(batch)?;

        shared.cache.replace(at, pages, &stale);
        shared.fronts.replace(height, &writes);
        shared.values.replace(height, writes);
        let latest = DiskSnapshot {
            snapshot: tables.db.snapshot(),
            tables: shared.tables.clone(),
            values: shared.values.clone(),
            fronts: shared.fronts.clone(),
            height,
            app_hash,
            roots: roots.into(),
        };
        let mut head = shared.head_mut();
        head.earliest = earliest;
        let old = std::mem::replace(&mut head.latest, latest);
        drop(head);
        drop(old);
        Ok(())
    }

    fn prove(&self, height: i64, module: &str, key: &[u8]) -> Result<StateProof, StateError> {
        let view = self.at(height)?;
        let source = Prover { view: &view, cache: &self.0.cache };
        proof::prove(&self.0.modules, &source, &view.roots, height, module, key)
    }

    fn prune(&self, limit: usize) -> Result<usize, StateError> {
        let shared = &*self.0;
        let tables = &*shared.tables;
        let mut swept = lock(&shared.swept);
        // The window shrinks before anything goes: a reader that still got in holds a snapshot from before.
        let target = {
            let _writer = lock(&shared.writer);
            tables.usable()?;
            let mut head = shared.head_mut();
            let mut target = horizon(shared.options.keep_recent, head.earliest, head.latest.height);
            if let Some((pinned, _)) = head.pins.first_key_value() {
                target = target.min(*pinned).max(head.earliest);
            }
            head.earliest = target;
            target
        };
        let mut piece = Piece::new(tables.batch(limit.saturating_mul(2).min(65_536)), limit);
        let Some(after) = target.checked_add(1) else { return Ok(0) };
        let stale = piece.take(&tables.stale, swept.stale..after, |piece, _, page| {
            piece.batch.remove(&tables.pages, page);
            Ok(())
        })?;
        let changes = piece.take(&tables.changes, swept.changes..after, |piece, height, key| {
            self.prune_key(piece, key, height)
        })?;
        let mut commits = swept.commits;
        let rows = table::height_key(commits.min(target)).to_vec()..table::height_key(target).to_vec();
        for row in tables.commits.range(rows) {
            if piece.left == 0 {
                break;
            }
            let key = row.key().map_err(engine)?;
            commits = table::read_height(&key)?.saturating_add(1);
            piece.batch.remove(&tables.commits, key);
            piece.spend(1);
        }
        let removed = limit.saturating_sub(piece.left);
        if removed > 0 {
            let Piece { mut batch, removed: gone, .. } = piece;
            batch.insert(&tables.meta, META_EARLIEST, table::height_key(target));
            let _writer = lock(&shared.writer);
            for (key, preimage, height) in gone {
                // A block may have brought the key back since the piece was put together.
                if self.newest_version(&key)? == Some(height) {
                    batch.remove(&tables.preimages, preimage);
                }
            }
            tables.write(batch)?;
        }
        *swept = Swept { stale, changes, commits };
        Ok(removed)
    }

    fn pin(&self, height: i64) -> Result<Pin, StateError> {
        let mut head = self.0.head_mut();
        check_readable(height, head.earliest, head.latest.height)?;
        let count = head.pins.entry(height).or_default();
        *count = count.saturating_add(1);
        drop(head);
        Ok(Pin::new(height, PinnedHeight { shared: self.0.clone(), height }))
    }
}

/// What one call of `prune` removes.
struct Piece {
    batch: OwnedWriteBatch,
    /// Rows it may still take.
    left: usize,
    /// Keys that were removed for good, unless they came back: the key, the row of its preimage, the height of the removal.
    removed: Vec<(Vec<u8>, Vec<u8>, i64)>,
}

impl Piece {
    fn new(batch: OwnedWriteBatch, limit: usize) -> Self {
        Self { batch, left: limit, removed: Vec::new() }
    }

    fn spend(&mut self, rows: usize) {
        self.left = self.left.saturating_sub(rows);
    }

    /// Hands the keys listed for `heights` to `each`, oldest first, and shortens the lists by them. Returns the first height that
    /// still has a list.
    fn take(
        &mut self,
        lists: &Keyspace,
        heights: std::ops::Range<i64>,
        mut each: impl FnMut(&mut Self, i64, &[u8]) -> Result<(), StateError>,
    ) -> Result<i64, StateError> {
        if heights.is_empty() {
            return Ok(heights.start);
        }
        let rows = table::height_key(heights.start).to_vec()..table::height_key(heights.end).to_vec();
        for row in lists.range(rows) {
            let (at, list) = row.into_inner().map_err(engine)?;
            let height = table::read_height(&at)?;
            if self.left == 0 {
                return Ok(height);
            }
            let keys = table::read_key_list(&list)?;
            let (now, later) = keys.split_at(keys.len().min(self.left));
            for key in now {
                each(self, height, key)?;
            }
            self.spend(now.len().max(1));
            if later.is_empty() {
                self.batch.remove(lists, at);
            } else {
                let mut rest = Vec::with_capacity(list.len());
                later.iter().for_each(|key| table::put_key(&mut rest, key));
                self.batch.insert(lists, at, rest);
                return Ok(height);
            }
        }
        Ok(heights.end)
    }
}

impl DiskStore {
    /// Removes what `height` superseded of `key`: older versions, and a removal that nothing older needs.
    fn prune_key(&self, piece: &mut Piece, key: &[u8], height: i64) -> Result<(), StateError> {
        let tables = &*self.0.tables;
        let all = table::version_key(key, i64::MAX)..=table::version_key(key, 0);
        for (nth, row) in tables.versions.range(all).enumerate() {
            let (row_key, value) = row.into_inner().map_err(engine)?;
            let (_, at) = table::split_version_key(&row_key)?;
            let gone = at == height && table::read_version_value(&value)?.is_none();
            if gone && nth == 0 {
                let (module, rest) = self.0.modules.split(key)?;
                let preimage = table::preimage_key(module, &super::tree::sha256(rest));
                piece.removed.push((key.to_vec(), preimage, height));
            }
            if at < height || gone {
                piece.batch.remove(&tables.versions, row_key);
            }
        }
        Ok(())
    }

    /// Height of the last change of `key`.
    fn newest_version(&self, key: &[u8]) -> Result<Option<i64>, StateError> {
        let all = table::version_key(key, i64::MAX)..=table::version_key(key, 0);
        let Some(row) = self.0.tables.versions.range(all).next() else { return Ok(None) };
        let key = row.key().map_err(engine)?;
        Ok(Some(table::split_version_key(&key)?.1))
    }
}

#[cfg(test)]
impl DiskStore {
    /// Moves what the engine has in memory into its files, as it does by itself when there is more of it.
    pub(super) fn flush(&self) {
        let t = &self.0.tables;
        for table in [&t.flat, &t.versions, &t.pages, &t.stale, &t.preimages, &t.commits, &t.changes, &t.meta]
        {
            table.rotate_memtable_and_wait().expect("flush");
        }
    }

    /// Rows of each table, bookkeeping rows left out.
    pub(super) fn row_counts(&self) -> std::collections::BTreeMap<&'static str, usize> {
        let t = &self.0.tables;
        [
            ("flat", &t.flat),
            ("versions", &t.versions),
            ("pages", &t.pages),
            ("stale", &t.stale),
            ("preimages", &t.preimages),
            ("commits", &t.commits),
            ("changes", &t.changes),
        ]
        .map(|(name, table)| (name, table.len().expect("count")))
        .into_iter()
        .collect()
    }
}
