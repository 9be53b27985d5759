//! Reads: the latest height, older ones, and proofs over them.

use super::*;

/// View of the latest height of a [`DiskStore`], unchanged by later commits. Cheap to clone.
#[derive(Clone)]
pub struct DiskSnapshot {
    pub(super) tables: Arc<Tables>,
    pub(super) snapshot: Snapshot,
    pub(super) values: Arc<ValueCache>,
    pub(super) fronts: Arc<Fronts>,
    pub(super) height: i64,
    pub(super) app_hash: Hash,
    pub(super) roots: Arc<[TreeRoot]>,
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
pub(super) fn is_marker(key: &[u8]) -> bool {
    key.starts_with(MARKER_KEY)
}

/// Whether no row can have this key. The engine panics on keys beyond its limit, and whoever asks may have made the key
/// from a message or a request.
pub(super) fn is_too_long(key: &[u8]) -> bool {
    key.len() > MAX_KEY_BYTES
}

/// `bound` cut to a length the engine takes. One byte more than the longest key keeps it on the same side of every key.
pub(super) fn cut(bound: &[u8]) -> &[u8] {
    bound.get(..=MAX_KEY_BYTES).unwrap_or(bound)
}

/// `start` and `end` as bounds of the flat table, behind its marker row; `None` for an empty range.
pub(super) fn flat_range(start: &[u8], end: Option<&[u8]>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    const FIRST: &[u8] = &[1];
    let (start, end) = (cut(start.max(FIRST)), end.map(cut));
    if end.is_some_and(|end| end <= start) {
        return None;
    }
    Some((start.to_vec(), end.map(<[u8]>::to_vec)))
}

pub(super) fn range_of(
    start: Vec<u8>,
    end: Option<Vec<u8>>,
) -> (std::ops::Bound<Vec<u8>>, std::ops::Bound<Vec<u8>>) {
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
pub(super) struct FrontScan<'a, I> {
    pub(super) rows: I,
    pub(super) view: &'a DiskSnapshot,
    /// Bounds of the scan until it has given its first row.
    pub(super) ahead: Option<(Vec<u8>, Option<Vec<u8>>)>,
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
    pub(super) latest: DiskSnapshot,
    pub(super) height: i64,
    pub(super) app_hash: Hash,
    pub(super) roots: Arc<[TreeRoot]>,
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
pub(super) struct VersionScan {
    pub(super) rows: fjall::Iter,
    pub(super) height: i64,
    pub(super) order: Order,
    /// Ascending: prefix of the key whose row is already chosen; its older rows are skipped.
    pub(super) settled: Vec<u8>,
    /// Descending: the best row so far of the key being read, which comes oldest first.
    pub(super) open: Option<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) done: bool,
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
pub(super) struct Prover<'a> {
    pub(super) view: &'a DiskVersioned,
    pub(super) cache: &'a PageCache,
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
