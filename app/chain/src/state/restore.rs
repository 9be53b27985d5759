//! Filling an empty database with the state of one height, as a snapshot brings it.
//!
//! `meta` says so first, durably, and no longer says so in the batch that makes the height visible. Until then commits
//! are refused, and opening the database empties it. Rows are those of a database that pruned everything below the
//! height, but for the versions of its pages: every page has the height as its version.

use super::*;
use crate::settings::SETTINGS;
use crate::state::committed_value;
use crate::state::tree::{self, Update};

const META_RESTORING: &str = "restoring";

/// Keys whose leaves go into the trees together: 40 MB with their pages.
const LEAVES_AT_A_TIME: usize = 262_144;
/// Rows and bytes of a batch.
const BATCH_ROWS: usize = 32_768;
const BATCH_BYTES: usize = 8 << 20;

impl DiskVersioned {
    /// Modules of that height by name, each with the root hash of its tree.
    pub(crate) fn module_roots(&self, store: &DiskStore) -> Vec<(String, Hash)> {
        let names = store.0.modules.numbered.iter().cloned();
        let mut out: Vec<_> = names.zip(self.roots.iter().map(|root| root.hash)).collect();
        out.sort();
        out
    }
}

/// Refuses when a snapshot is being restored into the database.
pub(super) fn refuse_while_filling(tables: &Tables) -> Result<(), StateError> {
    match tables.meta.get(META_RESTORING).map_err(engine)? {
        None => Ok(()),
        Some(_) => Err(StateError::Restoring),
    }
}

/// Empties a database into which a snapshot was being restored.
pub(super) fn empty_if_filling(tables: &Tables) -> Result<(), StateError> {
    if tables.meta.get(META_RESTORING).map_err(engine)?.is_none() {
        return Ok(());
    }
    let mut batch = Rows::new(tables);
    // Birth pages, of version 0, stay.
    for row in tables.pages.range(1u64.to_be_bytes()..) {
        batch.remove(&tables.pages, row.key().map_err(engine)?.to_vec())?;
    }
    for table in
        [&tables.flat, &tables.versions, &tables.stale, &tables.preimages, &tables.commits, &tables.changes]
    {
        for row in table.iter() {
            batch.remove(table, row.key().map_err(engine)?.to_vec())?;
        }
    }
    batch.write()?;
    let mut last = tables.batch(1);
    last.remove(&tables.meta, META_RESTORING);
    tables.write(last)
}

/// A batch that is written whenever it is large.
struct Rows<'a> {
    tables: &'a Tables,
    batch: OwnedWriteBatch,
    bytes: usize,
}

impl<'a> Rows<'a> {
    fn new(tables: &'a Tables) -> Self {
        Self { tables, batch: tables.batch(1024), bytes: 0 }
    }

    fn insert(&mut self, table: &Keyspace, key: Vec<u8>, value: Vec<u8>) -> Result<(), StateError> {
        self.bytes = self.bytes.saturating_add(key.len()).saturating_add(value.len());
        self.batch.insert(table, key, value);
        self.write_if_large()
    }

    fn remove(&mut self, table: &Keyspace, key: Vec<u8>) -> Result<(), StateError> {
        self.bytes = self.bytes.saturating_add(key.len());
        self.batch.remove(table, key);
        self.write_if_large()
    }

    fn write_if_large(&mut self) -> Result<(), StateError> {
        if self.batch.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StateError> {
        self.bytes = 0;
        let batch = std::mem::replace(&mut self.batch, self.tables.batch(BATCH_ROWS));
        if batch.is_empty() { Ok(()) } else { self.tables.write(batch) }
    }
}

impl DiskStore {
    /// Begins to fill the empty database with the state of `height`.
    ///
    /// Fails with `InvalidHeight`, `Stale` when there is state, `Restoring` when it is being filled already.
    pub(crate) fn begin_filling(&self, height: i64) -> Result<Filling, StateError> {
        let shared = &*self.0;
        let _writer = lock(&shared.writer);
        let tables = &*shared.tables;
        if height < 1 {
            return Err(StateError::InvalidHeight { height });
        }
        let latest = self.latest_height();
        if latest != 0 {
            return Err(StateError::Stale { height, base: 0, latest });
        }
        refuse_while_filling(tables)?;
        let mut batch = tables.batch(1);
        batch.insert(&tables.meta, META_RESTORING, table::height_key(height));
        tables.write(batch)?;
        Ok(Filling {
            store: self.clone(),
            height,
            at: version(height)?,
            roots: shared.modules.birth_roots(),
            leaves: Vec::new(),
            pending: Vec::new(),
            pending_bytes: 0,
        })
    }

    fn module_number(&self, place: usize) -> Result<u16, StateError> {
        let modules = &self.0.modules;
        let name = modules.sorted.get(place).map_or("", String::as_str);
        modules.index(name.as_bytes()).ok_or_else(|| modules.unknown(name.to_owned()))
    }
}

/// An empty database being filled. Keys come module by module, ascending. Modules are told by their place among the names
/// in order.
pub(crate) struct Filling {
    store: DiskStore,
    height: i64,
    at: u64,
    roots: Vec<TreeRoot>,
    /// Leaves of the module that its tree has not yet.
    leaves: Vec<Update>,
    /// Full keys and values that are not yet in the tables, each with module number and key hash.
    pending: Vec<(Vec<u8>, Vec<u8>, u16, Hash)>,
    pending_bytes: usize,
}

impl std::fmt::Debug for Filling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filling").field("height", &self.height).finish_non_exhaustive()
    }
}

impl Filling {
    /// Adds a key, given without `module/`, and its value.
    ///
    /// Fails with `Key` for one that no commit would take, or `Engine`.
    pub(crate) fn put(&mut self, place: usize, rest: &[u8], value: &[u8]) -> Result<(), StateError> {
        let module = self.store.module_number(place)?;
        let key = self.store.0.modules.full_key(module, rest);
        self.store.0.modules.split(&key)?;
        let key_hash = tree::sha256(rest);
        let leaf = Update {
            key: key_hash,
            value: Some(tree::sha256(&committed_value(value))),
            index: self.leaves.len(),
        };
        self.leaves.push(leaf);
        self.pending_bytes = self.pending_bytes.saturating_add(key.len()).saturating_add(value.len());
        self.pending.push((key, value.to_vec(), module, key_hash));
        if self.pending.len() >= BATCH_ROWS || self.pending_bytes >= BATCH_BYTES {
            self.write_pending()?;
        }
        if self.leaves.len() >= LEAVES_AT_A_TIME {
            self.grow(module)?;
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), StateError> {
        let tables = &*self.store.0.tables;
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let mut batch = tables.batch(pending.len().saturating_mul(3));
        for (key, value, module, key_hash) in pending {
            let (_, rest) = self.store.0.modules.split(&key)?;
            batch.insert(&tables.preimages, table::preimage_key(module, &key_hash), rest);
            let versioned = table::version_value(Some(&value));
            batch.insert(&tables.versions, table::version_key(&key, self.height), versioned);
            batch.insert(&tables.flat, key, value);
        }
        if batch.is_empty() {
            return Ok(());
        }
        tables.write(batch)?;
        self.let_go();
        Ok(())
    }

    /// Gives the store's view of the empty database a newer snapshot of the engine, which keeps in memory all that was
    /// written after the oldest one.
    fn let_go(&self) {
        let shared = &*self.store.0;
        let newer = shared.tables.db.snapshot();
        let old = std::mem::replace(&mut shared.head_mut().latest.snapshot, newer);
        drop(old);
    }

    /// Puts the leaves into the tree. Its pages are all of one version: a page that grows again replaces itself.
    fn grow(&mut self, module: u16) -> Result<(), StateError> {
        let leaves = std::mem::take(&mut self.leaves);
        if leaves.is_empty() {
            return Ok(());
        }
        let shared = &*self.store.0;
        let tables = &*shared.tables;
        let root = self.roots.get_mut(usize::from(module));
        let root = root.ok_or_else(|| StateError::corrupt(format!("module {module} has no root")))?;
        let source = LatestPages { tables, cache: None };
        let mut grown = tree::update(&source, module, *root, self.at, leaves, shared.options.threads)?;
        *root = grown.root;
        // In the order of their keys.
        grown.pages.sort_unstable_by_key(|page| page.0);
        let mut rows = Rows::new(tables);
        for (path, page) in grown.pages {
            rows.insert(&tables.pages, table::page_key(module, &path, self.at), page.encode())?;
        }
        rows.write()?;
        self.let_go();
        Ok(())
    }

    /// Ends a module: all its keys are there. Returns the root of its tree.
    ///
    /// Fails with `Engine`.
    pub(crate) fn close_module(&mut self, place: usize) -> Result<Hash, StateError> {
        let module = self.store.module_number(place)?;
        self.write_pending()?;
        self.grow(module)?;
        let root = self.roots.get(usize::from(module));
        root.map(|root| root.hash).ok_or_else(|| StateError::corrupt(format!("module {module} has no root")))
    }

    fn view(&self, app_hash: Hash) -> DiskSnapshot {
        let shared = &*self.store.0;
        DiskSnapshot {
            snapshot: shared.tables.db.snapshot(),
            tables: shared.tables.clone(),
            values: shared.values.clone(),
            fronts: shared.fronts.clone(),
            height: self.height,
            app_hash,
            roots: self.roots.as_slice().into(),
        }
    }

    /// Chain id of the state so far, when it holds a chain.
    pub(crate) fn chain_id(&self) -> Result<Option<String>, StateError> {
        // Caches of its own: those of the store are still of the empty database.
        let view = DiskSnapshot {
            values: Arc::new(ValueCache::new(0, self.height)),
            fronts: Arc::new(Fronts::new(self.height)),
            ..self.view([0; 32])
        };
        Ok(SETTINGS.get(&view)?.map(|settings| settings.chain_id))
    }

    /// Makes the height the database's only one, visible and durable at once.
    ///
    /// Fails with `Corrupt` when the state has another app hash, or `Engine`.
    pub(crate) fn finish(&self, app_hash: &Hash) -> Result<(), StateError> {
        let shared = &*self.store.0;
        let _writer = lock(&shared.writer);
        if shared.modules.app_hash(&self.roots) != *app_hash {
            return Err(StateError::corrupt("the restored state has another app hash"));
        }
        let tables = &*shared.tables;
        let mut batch = tables.batch(self.roots.len().saturating_add(8));
        for (module, root) in (0u16..).zip(&self.roots) {
            // The page that the tree was born with, as pruning would have removed it.
            if root.version != 0 {
                batch.remove(&tables.pages, table::page_key(module, &Path::default(), 0));
            }
        }
        let height = table::height_key(self.height);
        batch.insert(&tables.commits, height, table::commit_record(app_hash, &self.roots));
        batch.insert(&tables.flat, MARKER_KEY, height);
        batch.insert(&tables.meta, META_LATEST, height);
        batch.insert(&tables.meta, META_EARLIEST, height);
        batch.insert(&tables.meta, META_MODULES, shared.modules.numbered.join("/"));
        batch.remove(&tables.meta, META_RESTORING);
        tables.write(batch)?;

        // What was absent in the empty database may be there now.
        shared.values.reset(self.height);
        shared.fronts.reset(self.height);
        let latest = self.view(*app_hash);
        let mut head = shared.head_mut();
        head.earliest = self.height;
        let old = std::mem::replace(&mut head.latest, latest);
        drop(head);
        drop(old);
        Ok(())
    }

    /// Empties the database again.
    ///
    /// Fails with `Engine`; opening the database does it then.
    pub(crate) fn abandon(self) -> Result<(), StateError> {
        let _writer = lock(&self.store.0.writer);
        empty_if_filling(&self.store.0.tables)
    }
}

#[cfg(test)]
impl DiskStore {
    /// Rows of each table, for the tests of snapshots.
    pub(crate) fn counted_rows(&self) -> BTreeMap<&'static str, usize> {
        self.row_counts()
    }
}
