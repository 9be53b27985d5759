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
//! A commit is one batch over all of them, written to the journal and synced before it returns; a batch with a torn tail is
//! dropped whole when the journal is read back. Opening compares the latest height in `meta`, in `flat` and
//! in `commits`, recomputes the app hash from the roots and the roots from the root pages.

use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable,
    Snapshot,
};
use holdfast_store::{KvIter, KvRead, Order, Pair, StoreError, WriteSet};

use super::cache::{Fronts, PageCache, ValueCache};
use super::proof::{self, ProofSource, StateProof};
use super::table::{self, MARKER_KEY};
use super::tree::{Hash, Page, PageSource, Path};
use super::{
    CommitStore, MAX_KEY_BYTES, Modules, Prepared, StateError, StateOptions, StateView, TreeRoot,
    check_readable, compute, horizon, version,
};

const META_FORMAT: &str = "format";
const META_MODULES: &str = "modules";
const META_LATEST: &str = "latest";
const META_EARLIEST: &str = "earliest";

struct Tables {
    db: Database,
    flat: Keyspace,
    versions: Keyspace,
    pages: Keyspace,
    stale: Keyspace,
    preimages: Keyspace,
    commits: Keyspace,
    changes: Keyspace,
    meta: Keyspace,
}

fn engine(error: fjall::Error) -> StateError {
    StateError::Engine(error.to_string())
}

fn backend(error: fjall::Error) -> StoreError {
    StoreError::Backend(error.to_string())
}

fn corrupt(error: StateError) -> StoreError {
    StoreError::Backend(error.to_string())
}

impl Tables {
    fn open(path: &FsPath, options: &StateOptions) -> Result<Self, StateError> {
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
        let db = Database::builder(path).cache_size(options.block_cache_bytes).open().map_err(open)?;
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
        })
    }

    fn batch(&self, capacity: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.db.clone(), capacity).durability(Some(PersistMode::SyncAll))
    }
}

struct Head {
    earliest: i64,
    latest: DiskSnapshot,
}

struct Shared {
    tables: Arc<Tables>,
    modules: Modules,
    options: StateOptions,
    cache: PageCache,
    values: Arc<ValueCache>,
    fronts: Arc<Fronts>,
    head: RwLock<Head>,
    writer: Mutex<()>,
    path: PathBuf,
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
    /// `modules` are fixed at creation. Fails with `Locked`, `Format`, `Modules`, `ModuleList`, `Corrupt` or `Engine`.
    pub fn open<S: AsRef<str>>(
        path: impl AsRef<FsPath>,
        modules: &[S],
        options: StateOptions,
    ) -> Result<Self, StateError> {
        let path = path.as_ref().to_owned();
        let modules = Modules::new(modules)?;
        let tables = Tables::open(&path, &options)?;
        let given = modules.0.join("/");
        match tables.meta.get(META_FORMAT).map_err(engine)? {
            None => create(&tables, &modules)?,
            Some(found) if *found == table::FORMAT.to_be_bytes() => {}
            Some(found) => {
                return Err(StateError::Format {
                    path,
                    found: <[u8; 4]>::try_from(&*found)
                        .map_or_else(|_| "unknown".into(), |bytes| u32::from_be_bytes(bytes).to_string()),
                    expected: table::FORMAT,
                });
            }
        }
        let stored = tables.meta.get(META_MODULES).map_err(engine)?.unwrap_or_default();
        if *stored != *given.as_bytes() {
            let stored = String::from_utf8_lossy(&stored).replace('/', ", ");
            return Err(StateError::Modules { stored, given: modules.0.join(", ") });
        }
        let (height, earliest, app_hash, roots) = check(&tables, &modules)?;
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
            head: RwLock::new(Head { earliest, latest }),
            writer: Mutex::new(()),
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
        let head = self.0.head.read().unwrap_or_else(PoisonError::into_inner);
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
        let (app_hash, roots) = table::read_commit_record(&row, self.0.modules.0.len())?;
        Ok(DiskVersioned { latest, height, app_hash, roots: roots.into() })
    }
}

/// Writes the first rows: format, modules, and the trees' birth pages.
fn create(tables: &Tables, modules: &Modules) -> Result<(), StateError> {
    if tables.flat.first_key_value().is_some() || tables.commits.first_key_value().is_some() {
        return Err(StateError::corrupt("there is state, but no format mark"));
    }
    let birth = Page::birth().encode();
    let mut batch = tables.batch(modules.0.len().saturating_add(2));
    for module in (0u16..).take(modules.0.len()) {
        batch.insert(&tables.pages, table::page_key(module, &Path::default(), 0), birth.clone());
    }
    batch.insert(&tables.meta, META_MODULES, modules.0.join("/"));
    batch.insert(&tables.meta, META_FORMAT, table::FORMAT.to_be_bytes());
    batch.commit().map_err(engine)
}

/// Reads the latest height, the earliest one, app hash and roots, and checks that all tables agree on them.
fn check(tables: &Tables, modules: &Modules) -> Result<(i64, i64, Hash, Vec<TreeRoot>), StateError> {
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
        table::read_commit_record(&row, modules.0.len())?
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
    let Some(row) = row else { return Ok(None) };
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
        if is_marker(key) || key.is_empty() || is_too_long(key) {
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
        let Some((start, end)) = flat_range(start, end) else {
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
        &self.0.modules.0
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
        let _writer = shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let (earliest, latest) = self.head();
        let Prepared { height, base, app_hash, roots, writes, pages, stale } = prepared;
        if base != latest.height {
            return Err(StateError::Stale { height, base, latest: latest.height });
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
        batch.commit().map_err(engine)?;

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
        let mut head = shared.head.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *head, Head { earliest, latest });
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
        let _writer = shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // The window shrinks before anything goes: a reader that still got in holds a snapshot from before.
        let target = {
            let mut head = shared.head.write().unwrap_or_else(PoisonError::into_inner);
            head.earliest = horizon(shared.options.keep_recent, head.earliest, head.latest.height);
            head.earliest
        };
        let Some(after) = target.checked_add(1) else { return Ok(0) };
        let mut removed = 0usize;
        let mut batch =
            OwnedWriteBatch::with_capacity(tables.db.clone(), limit.saturating_mul(2).min(65_536));

        removed = take_from_lists(&tables.stale, &mut batch, after, limit, removed, |batch, _, page| {
            batch.remove(&tables.pages, page);
            Ok(())
        })?;
        removed =
            take_from_lists(&tables.changes, &mut batch, after, limit, removed, |batch, height, key| {
                self.prune_key(batch, key, height)
            })?;
        for row in tables.commits.range(..table::height_key(target).to_vec()) {
            if removed >= limit {
                break;
            }
            batch.remove(&tables.commits, row.key().map_err(engine)?);
            removed = removed.saturating_add(1);
        }
        if removed > 0 {
            batch.insert(&tables.meta, META_EARLIEST, table::height_key(target));
            batch.commit().map_err(engine)?;
        }
        Ok(removed)
    }
}

/// Hands the keys listed below height `until` to `each`, oldest first, up to `limit` in all, and shortens the lists by them.
/// `removed` is the count so far; returns the new one.
fn take_from_lists(
    lists: &Keyspace,
    batch: &mut OwnedWriteBatch,
    until: i64,
    limit: usize,
    mut removed: usize,
    mut each: impl FnMut(&mut OwnedWriteBatch, i64, &[u8]) -> Result<(), StateError>,
) -> Result<usize, StateError> {
    for row in lists.range(..table::height_key(until).to_vec()) {
        if removed >= limit {
            break;
        }
        let (at, list) = row.into_inner().map_err(engine)?;
        let height = table::read_height(&at)?;
        let keys = table::read_key_list(&list)?;
        let (now, later) = keys.split_at(keys.len().min(limit.saturating_sub(removed)));
        for key in now {
            each(batch, height, key)?;
        }
        removed = removed.saturating_add(now.len().max(1));
        if later.is_empty() {
            batch.remove(lists, at);
        } else {
            let mut rest = Vec::with_capacity(list.len());
            later.iter().for_each(|key| table::put_key(&mut rest, key));
            batch.insert(lists, at, rest);
        }
    }
    Ok(removed)
}

impl DiskStore {
    /// Removes what `height` superseded of `key`: older versions, and a removal that nothing older needs.
    fn prune_key(&self, batch: &mut OwnedWriteBatch, key: &[u8], height: i64) -> Result<(), StateError> {
        let tables = &*self.0.tables;
        let all = table::version_key(key, i64::MAX)..=table::version_key(key, 0);
        for (nth, row) in tables.versions.range(all).enumerate() {
            let (row_key, value) = row.into_inner().map_err(engine)?;
            let (_, at) = table::split_version_key(&row_key)?;
            let gone = at == height && table::read_version_value(&value)?.is_none();
            if gone && nth == 0 {
                let (module, rest) = self.0.modules.split(key)?;
                batch.remove(&tables.preimages, table::preimage_key(module, &super::tree::sha256(rest)));
            }
            if at < height || gone {
                batch.remove(&tables.versions, row_key);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl DiskStore {
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
