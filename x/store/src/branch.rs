//! A write buffer over another store, with commit and discard.

use std::collections::BTreeMap;
use std::iter::Peekable;

use crate::kv::bounds;
use crate::{KvIter, KvRead, KvWrite, Order, Pair, StoreError};

/// Buffered writes: a value, or `None` for a removal, by key.
pub type WriteSet = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Reads through to `base`, keeps writes to itself. Dropping it discards them;
/// [`BranchKv::into_writes`] and [`BranchKv::apply`] hand them on.
pub struct BranchKv<'a> {
    base: &'a dyn KvRead,
    writes: WriteSet,
}

impl<'a> BranchKv<'a> {
    /// An empty branch over `base`.
    pub fn new(base: &'a dyn KvRead) -> Self {
        Self { base, writes: WriteSet::new() }
    }

    /// A branch that already holds `writes`.
    pub fn with_writes(base: &'a dyn KvRead, writes: WriteSet) -> Self {
        Self { base, writes }
    }

    /// The buffered writes so far.
    pub fn writes(&self) -> &WriteSet {
        &self.writes
    }

    /// Ends the branch and returns its writes.
    pub fn into_writes(self) -> WriteSet {
        self.writes
    }

    /// Puts a write set into `target`, in key order.
    pub fn apply(writes: WriteSet, target: &mut dyn KvWrite) -> Result<(), StoreError> {
        for (key, value) in writes {
            match value {
                Some(value) => target.set(&key, &value)?,
                None => target.remove(&key)?,
            }
        }
        Ok(())
    }

    /// Puts a write set into this branch without copying keys or values.
    pub fn absorb(&mut self, writes: WriteSet) {
        if self.writes.is_empty() {
            self.writes = writes;
        } else {
            self.writes.extend(writes);
        }
    }
}

impl KvRead for BranchKv<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.writes.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.base.get(key),
        }
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        let Some(range) = bounds(start, end) else {
            return Box::new(std::iter::empty());
        };
        let own = self.writes.range::<[u8], _>(range);
        let own: Box<dyn Iterator<Item = Buffered<'a>> + 'a> = match order {
            Order::Ascending => Box::new(own),
            Order::Descending => Box::new(own.rev()),
        };
        Box::new(Merge { own: own.peekable(), base: self.base.scan(start, end, order).peekable(), order })
    }
}

impl KvWrite for BranchKv<'_> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.writes.insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.writes.insert(key.to_vec(), None);
        Ok(())
    }
}

type Buffered<'a> = (&'a Vec<u8>, &'a Option<Vec<u8>>);

/// Merges buffered writes with the base's rows; a buffered row hides the base's row of the same key.
struct Merge<'a, I: Iterator<Item = Buffered<'a>>> {
    own: Peekable<I>,
    base: Peekable<KvIter<'a>>,
    order: Order,
}

impl<'a, I: Iterator<Item = Buffered<'a>>> Iterator for Merge<'a, I> {
    type Item = Result<Pair, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let own_first = match (self.own.peek(), self.base.peek()) {
                (None, _) => return self.base.next(),
                (Some(_), None) => true,
                // An error of the base surfaces at once.
                (Some(_), Some(Err(_))) => return self.base.next(),
                (Some((own, _)), Some(Ok((base, _)))) => {
                    let by_key = own.as_slice().cmp(base.as_slice());
                    let by_key = if self.order == Order::Ascending { by_key } else { by_key.reverse() };
                    if by_key.is_eq() {
                        self.base.next();
                    }
                    by_key.is_le()
                }
            };
            if !own_first {
                return self.base.next();
            }
            if let Some((key, Some(value))) = self.own.next() {
                return Some(Ok((key.clone(), value.clone())));
            }
        }
    }
}
