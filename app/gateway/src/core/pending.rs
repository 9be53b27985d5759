//! Transactions of hosts that wait for a diff. Each was verified against our state before it came here, and brings the
//! signers that were recovered for that: the diff that takes it checks every rule again, and computes no signer twice.

use std::collections::BTreeMap;

use holdfast_escrow::session::{Recovered, Tx, TxKey};

/// Most that wait: one receipt, finish and error for every live record, and some bindings.
pub(super) const MAX_PENDING: usize = 4096;
/// Transactions taken from one reply of a host: each costs a signature check. Hosts list no more, waiting and stale.
pub(super) const OFFERED_MAX: usize = 2 * holdfast_host::session::PENDING_LISTED;
/// Most in one diff: room is left for timeouts and a Start.
pub(super) const MAX_IN_DIFF: usize = 200;

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) tx: Recovered,
    /// Row of the store.
    pub(super) number: u64,
    /// When it came, on the monotonic clock of this process.
    pub(super) since_ms: u64,
}

/// All of them, by what they say.
#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    by_key: BTreeMap<TxKey, Waiting>,
    next: u64,
}

impl Pending {
    /// Takes `tx`; the row number to store it under, `None` when something says the same or the room is used up.
    pub(super) fn insert(&mut self, tx: Recovered, since_ms: u64) -> Option<u64> {
        let key = tx.tx().key();
        if self.by_key.contains_key(&key) || self.by_key.len() >= MAX_PENDING {
            return None;
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.by_key.insert(key, Waiting { tx, number, since_ms });
        Some(number)
    }

    /// Puts back a row of the store. Bytes on a disk prove nothing: its signer is recovered anew.
    pub(super) fn restore(&mut self, number: u64, tx: Tx, since_ms: u64) {
        self.next = self.next.max(number.wrapping_add(1));
        self.by_key.insert(tx.key(), Waiting { tx: tx.into(), number, since_ms });
    }

    /// Forgets what says this; its row number.
    pub(super) fn remove(&mut self, key: &TxKey) -> Option<u64> {
        self.by_key.remove(key).map(|waiting| waiting.number)
    }

    pub(super) fn has(&self, key: &TxKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn get(&self, key: &TxKey) -> Option<&Recovered> {
        self.by_key.get(key).map(|waiting| &waiting.tx)
    }

    /// Row number of what says this.
    pub(super) fn number(&self, key: &TxKey) -> Option<u64> {
        self.by_key.get(key).map(|waiting| waiting.number)
    }

    /// What the next diff takes: the oldest.
    pub(super) fn batch(&self) -> Vec<Recovered> {
        let mut all: Vec<&Waiting> = self.by_key.values().collect();
        all.sort_by_key(|waiting| waiting.number);
        all.into_iter().take(MAX_IN_DIFF).map(|waiting| waiting.tx.clone()).collect()
    }

    /// Whether a receipt, finish or error of `id` waits.
    pub(super) fn speaks_of(&self, id: u64) -> bool {
        [TxKey::Confirm(id), TxKey::Finish(id), TxKey::Error(id)].iter().any(|key| self.has(key))
    }

    /// When the oldest came.
    pub(super) fn oldest_ms(&self) -> Option<u64> {
        self.by_key.values().map(|waiting| waiting.since_ms).min()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Transactions by key, for comparisons and the status.
    pub(super) fn txs(&self) -> impl Iterator<Item = &Tx> {
        self.by_key.values().map(|waiting| waiting.tx.tx())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_kind_waits_and_the_oldest_go_first() {
        let error = |id| Tx::ReportError { id, kind: 1, input_tokens: 0, output_tokens: 0, sig: [0; 65] };
        let mut pending = Pending::default();
        assert_eq!(pending.insert(error(9).into(), 10), Some(0));
        assert_eq!(pending.insert(error(2).into(), 20), Some(1));
        assert_eq!(pending.insert(error(9).into(), 30), None);
        let batch: Vec<Tx> = pending.batch().iter().map(|waiting| waiting.tx().clone()).collect();
        assert_eq!(batch, vec![error(9), error(2)]);
        assert_eq!(pending.oldest_ms(), Some(10));
        assert!(pending.speaks_of(2) && !pending.speaks_of(3));
        assert_eq!(pending.remove(&TxKey::Error(9)), Some(0));
        assert_eq!(pending.len(), 1);
    }
}
