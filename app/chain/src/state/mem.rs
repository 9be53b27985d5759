//! The in-memory state database: tests, examples, and embedders that keep no history on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use holdfast_store::{KvIter, KvRead, Order, Pair, StoreError, WriteSet};

use super::proof::{self, ProofSource, StateProof};
use super::tree::{Hash, Page, PageSource, Path};
use super::{
    CommitStore, Modules, Pin, Prepared, StateError, StateOptions, StateView, TreeRoot, check_readable,
    compute, horizon, version,
};

/// Rows a scan copies under one lock.
const SCAN_CHUNK: usize = 64;

/// Height and value (`None`: removed), oldest first.
type History = Vec<(i64, Option<Vec<u8>>)>;

#[derive(Debug, Default)]
struct Mem {
    height: i64,
    earliest: i64,
    app_hash: Hash,
    roots: Vec<TreeRoot>,
    rows: BTreeMap<Vec<u8>, History>,
    pages: BTreeMap<(u16, Path, u64), Arc<Page>>,
    stale: BTreeSet<(u64, u16, Path, u64)>,
    preimages: BTreeMap<(u16, Hash), Vec<u8>>,
    commits: BTreeMap<i64, (Hash, Vec<TreeRoot>)>,
    changes: BTreeMap<i64, Vec<Vec<u8>>>,
    /// Heights that live views read, with how many do.
    pins: BTreeMap<i64, usize>,
}

fn at(history: &History, height: i64) -> Option<&Vec<u8>> {
    let newer = history.partition_point(|(h, _)| *h <= height);
    history.get(newer.checked_sub(1)?)?.1.as_ref()
}

#[derive(Debug)]
struct Shared {
    modules: Modules,
    options: StateOptions,
    mem: RwLock<Mem>,
    writer: Mutex<()>,
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Mem> {
        self.mem.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Mem> {
        self.mem.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In-memory [`CommitStore`]. Clones share the state.
#[derive(Debug, Clone)]
pub struct MemCommitStore(Arc<Shared>);

impl MemCommitStore {
    /// An empty store for `modules`, keeping every height.
    ///
    /// Fails with `ModuleList`.
    pub fn new<S: AsRef<str>>(modules: &[S]) -> Result<Self, StateError> {
        Self::with_options(modules, StateOptions { threads: 1, ..StateOptions::default() })
    }

    /// An empty store for `modules`. Of the options, `keep_recent` and `threads` matter.
    pub fn with_options<S: AsRef<str>>(modules: &[S], options: StateOptions) -> Result<Self, StateError> {
        let modules = Modules::new(modules)?;
        let mut mem = Mem { roots: modules.birth_roots(), ..Mem::default() };
        mem.app_hash = modules.app_hash(&mem.roots);
        let birth = Arc::new(Page::birth());
        for module in (0u16..).take(modules.count()) {
            mem.pages.insert((module, Path::default(), 0), birth.clone());
        }
        Ok(Self(Arc::new(Shared { modules, options, mem: RwLock::new(mem), writer: Mutex::new(()) })))
    }

    fn view(&self, mem: &mut Mem, height: i64, app_hash: Hash) -> MemView {
        let pins = mem.pins.entry(height).or_default();
        *pins = pins.saturating_add(1);
        MemView { shared: self.0.clone(), height, app_hash }
    }
}

/// View of one height of a [`MemCommitStore`]. Pruning waits for it.
#[derive(Debug)]
pub struct MemView {
    shared: Arc<Shared>,
    height: i64,
    app_hash: Hash,
}

impl Drop for MemView {
    fn drop(&mut self) {
        let mut mem = self.shared.write();
        if let Some(count) = mem.pins.get_mut(&self.height) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                mem.pins.remove(&self.height);
            }
        }
    }
}

impl StateView for MemView {
    fn height(&self) -> i64 {
        self.height
    }

    fn app_hash(&self) -> Hash {
        self.app_hash
    }
}

impl KvRead for MemView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.shared.read().rows.get(key).and_then(|history| at(history, self.height)).cloned())
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        Box::new(Scan {
            view: self,
            lower: Bound::Included(start.to_vec()),
            upper: end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec())),
            order,
            chunk: Vec::new().into_iter(),
            done: end.is_some_and(|end| end <= start),
        })
    }
}

struct Scan<'a> {
    view: &'a MemView,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    order: Order,
    chunk: std::vec::IntoIter<Pair>,
    done: bool,
}

impl Scan<'_> {
    /// Copies the next rows and moves the bound behind them.
    fn refill(&mut self) {
        let mem = self.view.shared.read();
        let height = self.view.height;
        let mut seen = 0usize;
        let mut last = None;
        let mut chunk = Vec::new();
        let mut rows = mem.rows.range::<Vec<u8>, _>((self.lower.as_ref(), self.upper.as_ref()));
        while seen < SCAN_CHUNK {
            let row = match self.order {
                Order::Ascending => rows.next(),
                Order::Descending => rows.next_back(),
            };
            let Some((key, history)) = row else {
                self.done = true;
                break;
            };
            seen = seen.saturating_add(1);
            last = Some(key);
            if let Some(value) = at(history, height) {
                chunk.push((key.clone(), value.clone()));
            }
        }
        if let Some(key) = last {
            match self.order {
                Order::Ascending => self.lower = Bound::Excluded(key.clone()),
                Order::Descending => self.upper = Bound::Excluded(key.clone()),
            }
            // The map panics when both bounds exclude one key.
            if let (Bound::Excluded(a) | Bound::Included(a), Bound::Excluded(b)) = (&self.lower, &self.upper)
            {
                self.done |= a >= b;
            }
        }
        self.chunk = chunk.into_iter();
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Pair, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.chunk.next() {
                return Some(Ok(pair));
            }
            if self.done {
                return None;
            }
            self.refill();
        }
    }
}

struct MemPages<'a>(&'a Mem);

impl PageSource for MemPages<'_> {
    fn page(&self, module: u16, path: &Path, version: u64) -> Result<Option<Arc<Page>>, StateError> {
        Ok(self.0.pages.get(&(module, *path, version)).cloned())
    }
}

struct MemProof<'a> {
    pages: MemPages<'a>,
    height: i64,
}

impl ProofSource for MemProof<'_> {
    fn pages(&self) -> &dyn PageSource {
        &self.pages
    }

    fn preimage(&self, module: u16, key_hash: &Hash) -> Result<Option<Vec<u8>>, StateError> {
        Ok(self.pages.0.preimages.get(&(module, *key_hash)).cloned())
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        Ok(self.pages.0.rows.get(key).and_then(|history| at(history, self.height)).cloned())
    }
}

impl CommitStore for MemCommitStore {
    type Snapshot = MemView;
    type Versioned = MemView;

    fn latest_height(&self) -> i64 {
        self.0.read().height
    }

    fn earliest_height(&self) -> i64 {
        self.0.read().earliest
    }

    fn app_hash(&self) -> Hash {
        self.0.read().app_hash
    }

    fn modules(&self) -> &[String] {
        &self.0.modules.sorted
    }

    fn snapshot(&self) -> MemView {
        let mut mem = self.0.write();
        let (height, app_hash) = (mem.height, mem.app_hash);
        self.view(&mut mem, height, app_hash)
    }

    fn snapshot_at(&self, height: i64) -> Result<MemView, StateError> {
        let mut mem = self.0.write();
        check_readable(height, mem.earliest, mem.height)?;
        let app_hash = mem.commits.get(&height).map(|c| c.0);
        let app_hash =
            app_hash.ok_or_else(|| StateError::corrupt(format!("height {height} has no commit record")))?;
        Ok(self.view(&mut mem, height, app_hash))
    }

    fn prepare(&self, height: i64, writes: &WriteSet) -> Result<Prepared, StateError> {
        let mem = self.0.read();
        let threads = self.0.options.threads;
        compute(&self.0.modules, &MemPages(&mem), &mem.roots, mem.height, height, writes, threads)
    }

    fn commit(&self, prepared: Prepared) -> Result<(), StateError> {
        let _writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.0.write();
        let mem = &mut *guard;
        let Prepared { height, base, app_hash, roots, writes, pages, stale } = prepared;
        if base != mem.height {
            return Err(StateError::Stale { height, base, latest: mem.height });
        }
        let at = version(height)?;
        let mut changed = Vec::with_capacity(writes.len());
        for write in writes {
            if write.inserted {
                let (_, rest) = self.0.modules.split(&write.key)?;
                mem.preimages.insert((write.module, write.key_hash), rest.to_vec());
            }
            changed.push(write.key.clone());
            mem.rows.entry(write.key).or_default().push((height, write.value));
        }
        mem.changes.insert(height, changed);
        for (module, path, page) in pages {
            mem.pages.insert((module, path, at), Arc::new(page));
        }
        mem.stale.extend(stale.into_iter().map(|(module, path, version)| (at, module, path, version)));
        mem.commits.insert(height, (app_hash, roots.clone()));
        if mem.height == 0 {
            mem.earliest = height;
        }
        mem.height = height;
        mem.app_hash = app_hash;
        mem.roots = roots;
        Ok(())
    }

    fn prove(&self, height: i64, module: &str, key: &[u8]) -> Result<StateProof, StateError> {
        let mem = self.0.read();
        check_readable(height, mem.earliest, mem.height)?;
        let roots = mem.commits.get(&height).map(|c| c.1.as_slice()).unwrap_or_default();
        let source = MemProof { pages: MemPages(&mem), height };
        proof::prove(&self.0.modules, &source, roots, height, module, key)
    }

    fn prune(&self, limit: usize) -> Result<usize, StateError> {
        let _writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.0.write();
        let mem = &mut *guard;
        let mut target = horizon(self.0.options.keep_recent, mem.earliest, mem.height);
        if let Some((pinned, _)) = mem.pins.first_key_value() {
            target = target.min((*pinned).max(mem.earliest));
        }
        mem.earliest = target;
        let until = version(target)?;
        let mut removed = 0usize;
        while removed < limit {
            let Some(first) = mem.stale.first().copied().filter(|(since, ..)| *since <= until) else { break };
            let (_, module, path, version) = first;
            mem.stale.remove(&first);
            mem.pages.remove(&(module, path, version));
            removed = removed.saturating_add(1);
        }
        while removed < limit {
            let Some(mut entry) = mem.changes.first_entry().filter(|e| *e.key() <= target) else { break };
            let height = *entry.key();
            let Some(key) = entry.get_mut().pop() else {
                entry.remove();
                removed = removed.saturating_add(1);
                continue;
            };
            removed = removed.saturating_add(1);
            let Some(history) = mem.rows.get_mut(&key) else { continue };
            history.retain(|(h, value)| *h > height || (*h == height && value.is_some()));
            if history.is_empty() {
                mem.rows.remove(&key);
                let (module, rest) = self.0.modules.split(&key)?;
                mem.preimages.remove(&(module, super::tree::sha256(rest)));
            }
        }
        while removed < limit {
            let Some(entry) = mem.commits.first_entry().filter(|e| *e.key() < target) else { break };
            entry.remove();
            removed = removed.saturating_add(1);
        }
        Ok(removed)
    }
    fn pin(&self, height: i64) -> Result<Pin, StateError> {
        // A view holds its height as it is.
        Ok(Pin::new(height, self.snapshot_at(height)?))
    }
}
