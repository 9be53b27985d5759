//! A module space: everything below one byte prefix, seen as a store of its own.

use crate::{KvIter, KvRead, KvWrite, Order, StoreError, successor};

/// Puts `prefix` before each key on the way in and takes it off on the way out. It lets an embedder keep
/// Holdfast's state below a prefix of its own store, and lets a query or an export see one module alone.
pub struct SpaceKv<S> {
    inner: S,
    prefix: Vec<u8>,
}

impl<S> SpaceKv<S> {
    /// The space of `prefix` inside `inner`.
    pub fn new(inner: S, prefix: impl Into<Vec<u8>>) -> Self {
        Self { inner, prefix: prefix.into() }
    }

    fn full(&self, key: &[u8]) -> Vec<u8> {
        let mut out = self.prefix.clone();
        out.extend_from_slice(key);
        out
    }
}

impl<S: std::ops::Deref<Target: KvRead>> KvRead for SpaceKv<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(&self.full(key))
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let end = match end {
            Some(end) => Some(self.full(end)),
            None => successor(&self.prefix),
        };
        let rows = self.inner.scan(&self.full(start), end.as_deref(), order);
        Box::new(rows.map(|row| {
            row.map(|(key, value)| {
                (key.strip_prefix(self.prefix.as_slice()).map(<[u8]>::to_vec).unwrap_or(key), value)
            })
        }))
    }
}

impl<S: std::ops::DerefMut<Target: KvWrite>> KvWrite for SpaceKv<S> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let key = self.full(key);
        self.inner.set(&key, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        let key = self.full(key);
        self.inner.remove(&key)
    }
}
