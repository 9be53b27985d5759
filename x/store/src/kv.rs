//! The store seam: two object-safe traits, and the in-memory store.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::StoreError;

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Result of a scan.
pub type KvIter<'a> = Box<dyn Iterator<Item = Result<Pair, StoreError>> + 'a>;

/// Read side of an ordered key-value store. Keys compare as bytes.
pub trait KvRead {
    /// The value under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Pairs with `start <= key < end` (`end = None`: no upper bound). Reversed or empty bounds yield nothing.
    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a>;
}

/// Write side. A write is visible to every later read of the same store.
pub trait KvWrite: KvRead {
    /// Puts `value` under `key`, replacing what was there. Values may be empty, keys may not.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes `key`; absent keys are no error.
    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError>;
}

/// The smallest key greater than every key that starts with `prefix`; `None` when there is none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut out = prefix.to_vec();
    while let Some(last) = out.pop() {
        if let Some(next) = last.checked_add(1) {
            out.push(next);
            return Some(out);
        }
    }
    None
}

/// In-memory store: tests, examples, genesis building.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemKv {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl MemKv {
    /// Every pair in key order.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.map.iter().map(|(k, v)| (k.as_slice(), v.as_slice()))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no key is present.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

type ByteBounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

pub(crate) fn bounds<'k>(start: &'k [u8], end: Option<&'k [u8]>) -> Option<ByteBounds<'k>> {
    match end {
        // BTreeMap panics on reversed bounds.
        Some(end) if end <= start => None,
        Some(end) => Some((Bound::Included(start), Bound::Excluded(end))),
        None => Some((Bound::Included(start), Bound::Unbounded)),
    }
}

impl KvRead for MemKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map.get(key).cloned())
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let Some(bounds) = bounds(start, end) else {
            return Box::new(std::iter::empty());
        };
        let rows = self.map.range::<[u8], _>(bounds).map(|(k, v)| Ok((k.clone(), v.clone())));
        match order {
            Order::Ascending => Box::new(rows),
            Order::Descending => Box::new(rows.rev()),
        }
    }
}

impl KvWrite for MemKv {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.map.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.map.remove(key);
        Ok(())
    }
}
