//! The typed collections. All are constants: a place, a key type, a value type.

use std::marker::PhantomData;
use std::ops::ControlFlow;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::{HasPrefix, KeyCodec, KvRead, KvWrite, Order, Prefix, StoreError, TRANSIENT_SPACE, successor};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn decode_value<V: BorshDeserialize>(prefix: &Prefix, bytes: &[u8]) -> Result<V, StoreError> {
    V::try_from_slice(bytes)
        .map_err(|e| StoreError::Decode { collection: prefix.name, reason: e.to_string() })
}

fn encode_value<V: BorshSerialize>(prefix: &Prefix, value: &V) -> Result<Vec<u8>, StoreError> {
    borsh::to_vec(value).map_err(|e| StoreError::Decode { collection: prefix.name, reason: e.to_string() })
}

/// One value.
pub struct Item<V> {
    prefix: Prefix,
    _types: PhantomData<fn() -> V>,
}

impl<V: BorshSerialize + BorshDeserialize> Item<V> {
    /// An item at `prefix`.
    pub const fn new(prefix: Prefix) -> Self {
        Self { prefix, _types: PhantomData }
    }

    /// The value, if set.
    pub fn get(&self, store: &dyn KvRead) -> Result<Option<V>, StoreError> {
        store.get(&self.prefix.bytes())?.map(|b| decode_value(&self.prefix, &b)).transpose()
    }

    /// The value; absent is `NotFound`.
    pub fn load(&self, store: &dyn KvRead) -> Result<V, StoreError> {
        self.get(store)?.ok_or(StoreError::NotFound { collection: self.prefix.name, key: String::new() })
    }

    /// Replaces the value.
    pub fn set(&self, store: &mut dyn KvWrite, value: &V) -> Result<(), StoreError> {
        store.set(&self.prefix.bytes(), &encode_value(&self.prefix, value)?)
    }

    /// Removes the value.
    pub fn remove(&self, store: &mut dyn KvWrite) -> Result<(), StoreError> {
        store.remove(&self.prefix.bytes())
    }

    /// The full key, for proofs and watchers.
    pub fn key(&self) -> Vec<u8> {
        self.prefix.bytes()
    }
}

/// Values by key, in key order.
pub struct Map<K, V> {
    prefix: Prefix,
    transient: bool,
    _types: PhantomData<fn() -> (K, V)>,
}

impl<K: KeyCodec, V: BorshSerialize + BorshDeserialize> Map<K, V> {
    /// A map at `prefix`.
    pub const fn new(prefix: Prefix) -> Self {
        Self { prefix, transient: false, _types: PhantomData }
    }

    fn root(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        if self.transient {
            out.push(TRANSIENT_SPACE);
        }
        out.extend_from_slice(&self.prefix.bytes());
        out
    }

    /// The full key of `key`, for proofs and watchers.
    pub fn key(&self, key: &K) -> Vec<u8> {
        let mut out = self.root();
        key.encode(&mut out);
        out
    }

    /// The full key of every entry, up to and including the key part `part` (`&()` for the whole map).
    pub fn prefix_key<P: KeyCodec>(&self, part: &P) -> Vec<u8> {
        let mut out = self.root();
        part.encode(&mut out);
        out
    }

    /// Decodes a stored value: for pages, which read rows raw.
    pub fn decode_value(&self, value: &[u8]) -> Result<V, StoreError> {
        decode_value(&self.prefix, value)
    }

    /// Decodes a full store key of this map; `None` when the key belongs elsewhere.
    pub fn parse_key(&self, full: &[u8]) -> Option<K> {
        K::from_bytes(full.strip_prefix(self.root().as_slice())?).ok()
    }

    /// The value under `key`.
    pub fn get(&self, store: &dyn KvRead, key: &K) -> Result<Option<V>, StoreError> {
        store.get(&self.key(key))?.map(|b| decode_value(&self.prefix, &b)).transpose()
    }

    /// The value under `key`; absent is `NotFound`.
    pub fn load(&self, store: &dyn KvRead, key: &K) -> Result<V, StoreError> {
        self.get(store, key)?
            .ok_or_else(|| StoreError::NotFound { collection: self.prefix.name, key: hex(&key.to_bytes()) })
    }

    /// Whether `key` is present.
    pub fn has(&self, store: &dyn KvRead, key: &K) -> Result<bool, StoreError> {
        Ok(store.get(&self.key(key))?.is_some())
    }

    /// Puts `value` under `key`.
    pub fn set(&self, store: &mut dyn KvWrite, key: &K, value: &V) -> Result<(), StoreError> {
        store.set(&self.key(key), &encode_value(&self.prefix, value)?)
    }

    /// Removes `key`.
    pub fn remove(&self, store: &mut dyn KvWrite, key: &K) -> Result<(), StoreError> {
        store.remove(&self.key(key))
    }

    /// Removes and returns.
    pub fn take(&self, store: &mut dyn KvWrite, key: &K) -> Result<Option<V>, StoreError> {
        let value = self.get(store, key)?;
        if value.is_some() {
            self.remove(store, key)?;
        }
        Ok(value)
    }

    fn rows<'s>(
        &'s self,
        store: &'s dyn KvRead,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
        order: Order,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 's {
        let skip = self.root();
        store.scan(&start, end.as_deref(), order).map(move |row| {
            let (key, value) = row?;
            let tail = key.strip_prefix(skip.as_slice()).unwrap_or_default();
            let key = K::from_bytes(tail)
                .map_err(|e| StoreError::Decode { collection: self.prefix.name, reason: e.to_string() })?;
            Ok((key, decode_value(&self.prefix, &value)?))
        })
    }

    /// Every entry in `order`.
    pub fn iter<'s>(
        &'s self,
        store: &'s dyn KvRead,
        order: Order,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 's {
        let start = self.root();
        let end = successor(&start);
        self.rows(store, start, end, order)
    }

    /// Entries whose key begins with `part`, in `order`.
    pub fn prefix<'s, P: KeyCodec>(
        &'s self,
        store: &'s dyn KvRead,
        part: &P,
        order: Order,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 's
    where
        K: HasPrefix<P>,
    {
        let mut start = self.root();
        part.encode(&mut start);
        let end = successor(&start);
        self.rows(store, start, end, order)
    }

    /// Ascending entries whose key begins with `part` and is greater than `after`: the shape of a page.
    pub fn prefix_after<'s, P: KeyCodec>(
        &'s self,
        store: &'s dyn KvRead,
        part: &P,
        after: Option<&K>,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 's
    where
        K: HasPrefix<P>,
    {
        let mut start = self.root();
        part.encode(&mut start);
        let end = successor(&start);
        if let Some(after) = after {
            start = self.key(after);
            // Keys are prefix-free, so the next possible key is past this one plus a zero byte.
            start.push(0);
        }
        self.rows(store, start, end, Order::Ascending)
    }

    /// Ascending entries greater than `after`.
    pub fn after<'s>(
        &'s self,
        store: &'s dyn KvRead,
        after: Option<&K>,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 's {
        let end = successor(&self.root());
        let start = match after {
            Some(after) => {
                let mut start = self.key(after);
                start.push(0);
                start
            }
            None => self.root(),
        };
        self.rows(store, start, end, Order::Ascending)
    }

    /// Ascending entries whose first key part is at most `last`: a queue's due rows.
    pub fn up_to<'s, P: KeyCodec>(
        &'s self,
        store: &'s dyn KvRead,
        last: &P,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 's
    where
        K: HasPrefix<P>,
    {
        let start = self.root();
        let mut end = start.clone();
        last.encode(&mut end);
        self.rows(store, start, successor(&end), Order::Ascending)
    }

    /// Removes at most `limit` entries from the front of those that begin with `part`; returns how many.
    pub fn clear_prefix<P: KeyCodec>(
        &self,
        store: &mut dyn KvWrite,
        part: &P,
        limit: usize,
    ) -> Result<usize, StoreError>
    where
        K: HasPrefix<P>,
    {
        let mut start = self.root();
        part.encode(&mut start);
        let end = successor(&start);
        let keys: Vec<_> = store
            .scan(&start, end.as_deref(), Order::Ascending)
            .take(limit)
            .map(|row| row.map(|(key, _)| key))
            .collect::<Result<_, _>>()?;
        for key in &keys {
            store.remove(key)?;
        }
        Ok(keys.len())
    }
}

/// Presence of keys, in key order.
pub struct KeySet<K>(Map<K, ()>);

impl<K: KeyCodec> KeySet<K> {
    /// A key set at `prefix`.
    pub const fn new(prefix: Prefix) -> Self {
        Self(Map::new(prefix))
    }

    /// Adds `key`.
    pub fn insert(&self, store: &mut dyn KvWrite, key: &K) -> Result<(), StoreError> {
        self.0.set(store, key, &())
    }

    /// Removes `key`.
    pub fn remove(&self, store: &mut dyn KvWrite, key: &K) -> Result<(), StoreError> {
        self.0.remove(store, key)
    }

    /// Whether `key` is present.
    pub fn has(&self, store: &dyn KvRead, key: &K) -> Result<bool, StoreError> {
        self.0.has(store, key)
    }

    /// Every key in `order`.
    pub fn iter<'s>(
        &'s self,
        store: &'s dyn KvRead,
        order: Order,
    ) -> impl Iterator<Item = Result<K, StoreError>> + 's {
        self.0.iter(store, order).map(|row| row.map(|(key, ())| key))
    }

    /// Keys that begin with `part`, in `order`.
    pub fn prefix<'s, P: KeyCodec>(
        &'s self,
        store: &'s dyn KvRead,
        part: &P,
        order: Order,
    ) -> impl Iterator<Item = Result<K, StoreError>> + 's
    where
        K: HasPrefix<P>,
    {
        self.0.prefix(store, part, order).map(|row| row.map(|(key, ())| key))
    }

    /// Ascending keys whose first part is at most `last`.
    pub fn up_to<'s, P: KeyCodec>(
        &'s self,
        store: &'s dyn KvRead,
        last: &P,
    ) -> impl Iterator<Item = Result<K, StoreError>> + 's
    where
        K: HasPrefix<P>,
    {
        self.0.up_to(store, last).map(|row| row.map(|(key, ())| key))
    }

    /// The full key of every member begins with this: for pages.
    pub fn prefix_key(&self) -> Vec<u8> {
        self.0.prefix_key(&())
    }

    /// Decodes a full store key of this set.
    pub fn parse_key(&self, full: &[u8]) -> Option<K> {
        self.0.parse_key(full)
    }
}

/// A counter that never gives a number twice.
pub struct Sequence(Item<u64>);

impl Sequence {
    /// A sequence at `prefix`, starting from 0.
    pub const fn new(prefix: Prefix) -> Self {
        Self(Item::new(prefix))
    }

    /// The next number, without taking it.
    pub fn peek(&self, store: &dyn KvRead) -> Result<u64, StoreError> {
        Ok(self.0.get(store)?.unwrap_or(0))
    }

    /// Takes the next number.
    pub fn next(&self, store: &mut dyn KvWrite) -> Result<u64, StoreError> {
        let number = self.peek(store)?;
        let next = number.checked_add(1).ok_or(StoreError::Exhausted { collection: self.0.prefix.name })?;
        self.0.set(store, &next)?;
        Ok(number)
    }

    /// Sets the next number: genesis only.
    pub fn set(&self, store: &mut dyn KvWrite, next: u64) -> Result<(), StoreError> {
        self.0.set(store, &next)
    }
}

/// A secondary index: a key computed from each entry, or none.
pub struct Index<K, V> {
    prefix: Prefix,
    key: fn(&K, &V) -> Option<Vec<u8>>,
    unique: bool,
}

impl<K: KeyCodec, V> Index<K, V> {
    /// Any number of entries may share an index key; rows are `index key ‖ primary key`.
    pub const fn multi(prefix: Prefix, key: fn(&K, &V) -> Option<Vec<u8>>) -> Self {
        Self { prefix, key, unique: false }
    }

    /// At most one entry per index key; a second is `Duplicate`.
    pub const fn unique(prefix: Prefix, key: fn(&K, &V) -> Option<Vec<u8>>) -> Self {
        Self { prefix, key, unique: true }
    }

    fn row(&self, key: &K, value: &V) -> Option<Vec<u8>> {
        let mut row = self.prefix.bytes();
        row.extend_from_slice(&(self.key)(key, value)?);
        if !self.unique {
            key.encode(&mut row);
        }
        Some(row)
    }
}

/// A map whose indexes follow it: the primary is private, so every write goes through here.
pub struct IndexedMap<K: 'static, V: 'static, const N: usize> {
    primary: Map<K, V>,
    indexes: [Index<K, V>; N],
}

impl<K: KeyCodec, V: BorshSerialize + BorshDeserialize, const N: usize> IndexedMap<K, V, N> {
    /// A map at `prefix` with its indexes.
    pub const fn new(prefix: Prefix, indexes: [Index<K, V>; N]) -> Self {
        Self { primary: Map::new(prefix), indexes }
    }

    /// Reads of the primary.
    pub fn get(&self, store: &dyn KvRead, key: &K) -> Result<Option<V>, StoreError> {
        self.primary.get(store, key)
    }

    /// The value under `key`; absent is `NotFound`.
    pub fn load(&self, store: &dyn KvRead, key: &K) -> Result<V, StoreError> {
        self.primary.load(store, key)
    }

    /// Whether `key` is present.
    pub fn has(&self, store: &dyn KvRead, key: &K) -> Result<bool, StoreError> {
        self.primary.has(store, key)
    }

    /// Puts `value` under `key` and moves its index rows.
    pub fn set(&self, store: &mut dyn KvWrite, key: &K, value: &V) -> Result<(), StoreError> {
        let old = self.primary.get(store, key)?;
        for index in &self.indexes {
            let old_row = old.as_ref().and_then(|old| index.row(key, old));
            let new_row = index.row(key, value);
            if old_row == new_row {
                continue;
            }
            if let Some(row) = old_row {
                store.remove(&row)?;
            }
            if let Some(row) = new_row {
                if index.unique && store.get(&row)?.is_some() {
                    return Err(StoreError::Duplicate { collection: index.prefix.name });
                }
                // A unique row must name its entry; a multi row already ends in the primary key.
                store.set(&row, &if index.unique { key.to_bytes() } else { Vec::new() })?;
            }
        }
        self.primary.set(store, key, value)
    }

    /// Removes `key` and its index rows; returns the old value.
    pub fn take(&self, store: &mut dyn KvWrite, key: &K) -> Result<Option<V>, StoreError> {
        let Some(old) = self.primary.take(store, key)? else {
            return Ok(None);
        };
        for row in self.indexes.iter().filter_map(|index| index.row(key, &old)) {
            store.remove(&row)?;
        }
        Ok(Some(old))
    }

    /// The primary for reads: iteration, pages, key parsing.
    pub fn entries(&self) -> MapReader<'_, K, V> {
        MapReader(&self.primary)
    }

    fn index(&self, n: usize) -> Result<&Index<K, V>, StoreError> {
        self.indexes.get(n).ok_or(StoreError::Backend(format!("no index {n}")))
    }

    /// The entry that holds `index_key` in unique index `n`.
    pub fn by_unique<I: KeyCodec>(
        &self,
        store: &dyn KvRead,
        n: usize,
        key: &I,
    ) -> Result<Option<K>, StoreError> {
        let index = self.index(n)?;
        let mut row = index.prefix.bytes();
        key.encode(&mut row);
        let decode = |b: Vec<u8>| {
            K::from_bytes(&b)
                .map_err(|e| StoreError::Decode { collection: index.prefix.name, reason: e.to_string() })
        };
        store.get(&row)?.map(decode).transpose()
    }

    /// Walks multi index `n` in ascending order up to and including index key `last`, calling
    /// `visit(index key, primary key)` until it breaks. `visit` must bound the walk in a block step.
    pub fn walk_up_to<I: KeyCodec>(
        &self,
        store: &dyn KvRead,
        n: usize,
        last: &I,
        mut visit: impl FnMut(I, K) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let index = self.index(n)?;
        let start = index.prefix.bytes();
        let mut end = start.clone();
        last.encode(&mut end);
        for row in store.scan(&start, successor(&end).as_deref(), Order::Ascending) {
            let (row, _) = row?;
            let mut tail = row.strip_prefix(start.as_slice()).unwrap_or_default();
            let (index_key, key) = I::decode(&mut tail)
                .and_then(|i| Ok((i, K::from_bytes(tail)?)))
                .map_err(|e| StoreError::Decode { collection: index.prefix.name, reason: e.to_string() })?;
            if visit(index_key, key).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Read-only face of an [`IndexedMap`]'s primary.
pub struct MapReader<'m, K, V>(&'m Map<K, V>);

impl<'m, K: KeyCodec, V: BorshSerialize + BorshDeserialize> MapReader<'m, K, V> {
    /// See [`Map::iter`].
    pub fn iter(
        self,
        store: &'m dyn KvRead,
        order: Order,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 'm {
        self.0.iter(store, order)
    }

    /// See [`Map::prefix`].
    pub fn prefix<P: KeyCodec>(
        self,
        store: &'m dyn KvRead,
        part: &P,
        order: Order,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 'm
    where
        K: HasPrefix<P>,
    {
        self.0.prefix(store, part, order)
    }

    /// See [`Map::prefix_after`].
    pub fn prefix_after<P: KeyCodec>(
        self,
        store: &'m dyn KvRead,
        part: &P,
        after: Option<&K>,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 'm
    where
        K: HasPrefix<P>,
    {
        self.0.prefix_after(store, part, after)
    }

    /// See [`Map::after`].
    pub fn after(
        self,
        store: &'m dyn KvRead,
        after: Option<&K>,
    ) -> impl Iterator<Item = Result<(K, V), StoreError>> + 'm {
        self.0.after(store, after)
    }

    /// See [`Map::key`].
    pub fn key(self, key: &K) -> Vec<u8> {
        self.0.key(key)
    }

    /// See [`Map::prefix_key`].
    pub fn prefix_key<P: KeyCodec>(self, part: &P) -> Vec<u8> {
        self.0.prefix_key(part)
    }

    /// See [`Map::decode_value`].
    pub fn decode_value(self, value: &[u8]) -> Result<V, StoreError> {
        self.0.decode_value(value)
    }

    /// See [`Map::parse_key`].
    pub fn parse_key(self, full: &[u8]) -> Option<K> {
        self.0.parse_key(full)
    }
}

/// Constructors of per-block collections: same types, below [`TRANSIENT_SPACE`]. They take part in branches
/// like any row and are dropped at commit; the owner drains them at the end of the block, so that a store
/// without a commit step keeps nothing either.
pub struct Transient;

impl Transient {
    /// A map that lives for one block.
    pub const fn map<K: KeyCodec, V>(prefix: Prefix) -> Map<K, V> {
        Map { prefix, transient: true, _types: PhantomData }
    }
}
