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

mod piece;
#[path = "restore.rs"]
mod restore;
mod views;

use piece::Piece;
pub(crate) use restore::Filling;
use views::Prover;
pub use views::{DiskSnapshot, DiskVersioned};

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
