//! A view that refuses writes: what a query handler gets.

use crate::{KvIter, KvRead, KvWrite, Order, StoreError};

/// Reads pass through; every write is [`StoreError::ReadOnly`].
pub struct ReadOnlyKv<'a>(&'a dyn KvRead);

impl<'a> ReadOnlyKv<'a> {
    /// A read-only view of `base`.
    pub fn new(base: &'a dyn KvRead) -> Self {
        Self(base)
    }
}

impl KvRead for ReadOnlyKv<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(key)
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        self.0.scan(start, end, order)
    }
}

impl KvWrite for ReadOnlyKv<'_> {
    fn set(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::ReadOnly)
    }

    fn remove(&mut self, _key: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::ReadOnly)
    }
}
