//! What the disk store keeps in memory: the latest tree pages and values. Both caches are bounded and only ever save
//! reads; no result depends on them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash as StdHash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Write;
use super::tree::{Page, Path};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A map of two generations: when the young one reaches its limit it becomes the old one and the old one is dropped. What was
/// used recently stays, the size stays below twice the limit.
#[derive(Debug)]
struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    weight: usize,
    limit: usize,
}

impl<K: StdHash + Eq, V> Generations<K, V> {
    fn new(limit: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), weight: 0, limit }
    }

    fn insert(&mut self, key: K, value: V, weight: usize) {
        self.old.remove(&key);
        if self.weight.saturating_add(weight) > self.limit {
            self.old = std::mem::take(&mut self.young);
            self.weight = 0;
        }
        self.weight = self.weight.saturating_add(weight);
        self.young.insert(key, value);
    }
}

/// Module and path, version and page.
type Pages = Generations<(u16, Path), (u64, Arc<Page>)>;

/// The latest page at each path.
#[derive(Debug)]
pub(super) struct PageCache(Mutex<Pages>);

impl PageCache {
    /// A cache of at most `capacity` pages.
    pub(super) fn new(capacity: usize) -> Self {
        Self(Mutex::new(Generations::new((capacity / 2).max(16))))
    }

    pub(super) fn get(&self, module: u16, path: &Path, version: u64) -> Option<Arc<Page>> {
        let mut pages = lock(&self.0);
        let key = (module, *path);
        if let Some((at, page)) = pages.young.get(&key) {
            return (*at == version).then(|| page.clone());
        }
        let (at, page) = pages.old.remove(&key)?;
        let hit = (at == version).then(|| page.clone());
        pages.insert(key, (at, page), 1);
        hit
    }

    /// Keeps a page that was read, unless a newer one is there.
    pub(super) fn put(&self, module: u16, path: &Path, version: u64, page: Arc<Page>) {
        let mut pages = lock(&self.0);
        let key = (module, *path);
        let known = pages.young.get(&key).or_else(|| pages.old.get(&key)).map(|(at, _)| *at);
        if known.is_none_or(|at| at < version) {
            pages.insert(key, (version, page), 1);
        }
    }

    /// A commit at `version`: `new` pages replace what is at their paths, `stale` ones that nothing replaces go.
    /// Both lists are sorted.
    pub(super) fn replace(&self, version: u64, new: Vec<(u16, Path, Page)>, stale: &[(u16, Path, u64)]) {
        let mut pages = lock(&self.0);
        for (module, path, _) in stale {
            if new.binary_search_by(|(m, p, _)| (m, p).cmp(&(module, path))).is_err() {
                let key = (*module, *path);
                pages.young.remove(&key);
                pages.old.remove(&key);
            }
        }
        for (module, path, page) in new {
            pages.insert((module, path), (version, Arc::new(page)), 1);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let pages = lock(&self.0);
        pages.young.len() + pages.old.len()
    }
}

/// Values of keys at the latest height, absent ones too.
///
/// An entry says from which height on its value holds; a commit replaces the entries of the keys that it changes. So an entry is
/// right for every view from that height up to the latest, and a view of an older height passes it by.
/// A view fills the cache only while its height is the latest.
#[derive(Debug)]
pub(super) struct ValueCache {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

/// A value, or its absence, and the height from which on it holds.
type Known = (i64, Option<Box<[u8]>>);

#[derive(Debug)]
struct Shard {
    values: Generations<Box<[u8]>, Known>,
    /// Height that the entries are up to date with.
    height: i64,
}

impl ValueCache {
    const SHARDS: usize = 16;
    /// What an entry costs beyond its bytes.
    const OVERHEAD: usize = 80;

    /// A cache of about `bytes`, filled from a store at `height`.
    pub(super) fn new(bytes: usize, height: i64) -> Self {
        let limit = bytes / 2 / Self::SHARDS;
        let shard = |_| Mutex::new(Shard { values: Generations::new(limit), height });
        Self { shards: (0..Self::SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, key: &[u8]) -> Option<MutexGuard<'_, Shard>> {
        let at = self.hasher.hash_one(key) & 15;
        self.shards.get(usize::try_from(at).ok()?).map(lock)
    }

    /// The value of `key` for a view of `height`, when it is known.
    pub(super) fn get(&self, key: &[u8], height: i64) -> Option<Option<Vec<u8>>> {
        let mut shard = self.shard(key)?;
        if let Some((since, value)) = shard.values.young.get(key) {
            return (*since <= height).then(|| value.as_deref().map(<[u8]>::to_vec));
        }
        let (key, (since, value)) = shard.values.old.remove_entry(key)?;
        let hit = (since <= height).then(|| value.as_deref().map(<[u8]>::to_vec));
        let weight = weight(&key, value.as_deref());
        shard.values.insert(key, (since, value), weight);
        hit
    }

    /// Keeps what a view of `height` has read.
    pub(super) fn put(&self, key: &[u8], value: Option<&[u8]>, height: i64) {
        if let Some(mut shard) = self.shard(key) {
            let weight = weight(key, value);
            if shard.height == height && weight < shard.values.limit {
                shard.values.insert(key.into(), (height, value.map(Box::from)), weight);
            }
        }
    }

    /// Forgets everything: the store went to `height` without a commit.
    pub(super) fn reset(&self, height: i64) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.values = Generations::new(shard.values.limit);
            shard.height = height;
        }
    }

    /// A commit of `height`. Must be called before its state is handed to readers.
    pub(super) fn replace(&self, height: i64, writes: Vec<Write>) {
        for shard in &self.shards {
            lock(shard).height = height;
        }
        for Write { key, value, .. } in writes {
            if let Some(mut shard) = self.shard(&key) {
                let weight = weight(&key, value.as_deref());
                if weight < shard.values.limit {
                    shard.values.insert(key.into(), (height, value.map(Into::into)), weight);
                } else {
                    shard.values.young.remove(key.as_slice());
                    shard.values.old.remove(key.as_slice());
                }
            }
        }
    }
}

fn weight(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len().saturating_add(value.map_or(0, <[u8]>::len)).saturating_add(ValueCache::OVERHEAD)
}

/// Where the first live key of each collection lies.
///
/// A queue is read from its front and its rows are removed there. In the engine, removed rows stay as marks until a compaction
/// reaches them, and every scan from the front would step over all of them again, more with each block.
///
/// An entry says that from a height on no key lies between its start and `until`. A commit that writes a key in between moves
/// `until` down to it, so an entry is right for every view from that height up to the latest.
#[derive(Debug)]
pub(super) struct Fronts(Mutex<(i64, BTreeMap<Vec<u8>, Front>)>);

#[derive(Debug)]
struct Front {
    until: Vec<u8>,
    since: i64,
}

impl Fronts {
    /// Collections there can be at most; more are not remembered.
    const MOST: usize = 1_024;

    /// Nothing known of a store at `height`.
    pub(super) fn new(height: i64) -> Self {
        Self(Mutex::new((height, BTreeMap::new())))
    }

    /// Whether `start` is the root of a collection: module name, `/`, collection byte.
    pub(super) fn is_root(start: &[u8]) -> bool {
        matches!(start.iter().position(|b| *b == b'/'), Some(at) if at.checked_add(2) == Some(start.len()))
    }

    /// Below which key a scan from `start` finds nothing in a view of `height`.
    pub(super) fn get(&self, start: &[u8], height: i64) -> Option<Vec<u8>> {
        let fronts = lock(&self.0);
        fronts.1.get(start).filter(|front| front.since <= height).map(|front| front.until.clone())
    }

    /// Keeps that a view of `height` has no key from `start` up to `until`.
    pub(super) fn put(&self, start: &[u8], until: &[u8], height: i64) {
        let mut fronts = lock(&self.0);
        let (latest, fronts) = &mut *fronts;
        let known = fronts.get(start).map(|front| front.until.as_slice());
        let room = known.is_some() || fronts.len() < Self::MOST;
        if *latest == height && room && known.is_none_or(|known| known < until) {
            fronts.insert(start.to_vec(), Front { until: until.to_vec(), since: height });
        }
    }

    /// Forgets everything: the store went to `height` without a commit.
    pub(super) fn reset(&self, height: i64) {
        *lock(&self.0) = (height, BTreeMap::new());
    }

    /// A commit of `height`; `writes` are sorted. Must be called before its state is handed to readers.
    pub(super) fn replace(&self, height: i64, writes: &[Write]) {
        let mut fronts = lock(&self.0);
        fronts.0 = height;
        for (start, front) in &mut fronts.1 {
            let from = writes.partition_point(|write| write.key.as_slice() < start.as_slice());
            let between = writes.iter().skip(from).take_while(|write| write.key < front.until);
            if let Some(first) = between.into_iter().find(|write| write.value.is_some()) {
                front.until.clone_from(&first.key);
            }
        }
    }
}
