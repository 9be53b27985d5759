//! Transactions that wait for a block.
//!
//! The order of a block is a function of what waits, never of when it came:
//!
//! - a transaction is *ready* when it is the first one waiting for each of its signers;
//! - of the ready ones, the one with the highest gas price comes next, ties by address of the first signer, then by
//!   sequence; taking it may make its successors ready.
//!
//! So an account's sequences go up inside a block, and a well-paid transaction never overtakes a cheap one of the same
//! account. Where an account's sequences have a gap, what lies behind the gap waits.
//!
//! When the pool is full, a newcomer pushes out *tails* (last of each of their signers) that pay less, cheapest first.
//! Tails only: pushing out from the middle would leave transactions that cannot be executed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use holdfast_types::{Address, ModuleError, sdk};

use crate::tx::{TxHash, tx_hash};

/// Limits of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Most transactions.
    pub max_txs: usize,
    /// Most bytes of all transactions together.
    pub max_bytes: usize,
    /// Most transactions that name the same account as a signer.
    pub max_per_signer: usize,
}

impl Default for MempoolConfig {
    /// 10,000 transactions, 64 MiB, 1,000 an account.
    fn default() -> Self {
        Self { max_txs: 10_000, max_bytes: 64 << 20, max_per_signer: 1000 }
    }
}

/// A waiting transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MempoolTx {
    raw: Arc<[u8]>,
    hash: TxHash,
    signers: Vec<(Address, u64)>,
    gas_wanted: u64,
    price: u128,
}

impl MempoolTx {
    /// A transaction that passed [`crate::ante::ante`] in check mode; `signers` with the sequences they signed for, the
    /// one who pays first, and `price` come from its outcome.
    pub fn new(
        raw: impl Into<Arc<[u8]>>,
        signers: Vec<(Address, u64)>,
        gas_wanted: u64,
        price: u128,
    ) -> Self {
        let raw = raw.into();
        Self { hash: tx_hash(&raw), raw, signers, gas_wanted, price }
    }

    /// The bytes.
    pub fn raw(&self) -> &Arc<[u8]> {
        &self.raw
    }

    /// SHA-256 of the bytes.
    pub fn hash(&self) -> &TxHash {
        &self.hash
    }

    /// Signers and the sequences they signed for; the first pays.
    pub fn signers(&self) -> &[(Address, u64)] {
        &self.signers
    }

    /// Gas limit.
    pub fn gas_wanted(&self) -> u64 {
        self.gas_wanted
    }

    /// Gas price, in the unit of [`crate::ante::AnteOutcome::price`].
    pub fn price(&self) -> u128 {
        self.price
    }

    /// Smaller comes first in a block.
    fn rank(&self) -> Rank {
        let (sender, sequence) = self.signers.first().copied().unwrap_or((Address([0; 20]), 0));
        (Reverse(self.price), sender, sequence, self.hash)
    }
}

/// The hash only makes keys of the index distinct: two waiting transactions never share a sender and sequence.
type Rank = (Reverse<u128>, Address, u64, TxHash);

/// Bytes a transaction takes in a block: a repeated `bytes` field costs a tag and a length beside its value.
pub fn bytes_in_block(size: usize) -> usize {
    let bits = usize::BITS.saturating_sub(size.leading_zeros()).max(1);
    let length_bytes = usize::try_from(bits.div_ceil(7)).unwrap_or(usize::MAX);
    size.saturating_add(length_bytes).saturating_add(1)
}

/// The pool. Insertion and removal are O(log n) for each signer, [`Mempool::reap`] O(log n) for each transaction it
/// looks at.
#[derive(Debug, Default)]
pub struct Mempool {
    config: MempoolConfig,
    txs: BTreeMap<TxHash, Arc<MempoolTx>>,
    by_signer: BTreeMap<Address, BTreeMap<u64, TxHash>>,
    /// First of each of their signers.
    heads: BTreeSet<Rank>,
    /// Last of each of their signers.
    tails: BTreeSet<Rank>,
    bytes: usize,
}

impl Mempool {
    /// An empty pool.
    pub fn new(config: MempoolConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Transactions waiting.
    pub fn len(&self) -> usize {
        self.txs.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.txs.is_empty()
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A waiting transaction.
    pub fn get(&self, hash: &TxHash) -> Option<&Arc<MempoolTx>> {
        self.txs.get(hash)
    }

    /// Refuses bytes that wait already. To be called before the ante steps, which would report a wrong sequence instead.
    ///
    /// # Errors
    /// `sdk` 19 "tx already exists in cache", the text clients of the SDK look for.
    pub fn check_absent(&self, hash: &TxHash) -> Result<(), ModuleError> {
        if self.txs.contains_key(hash) {
            return Err(ModuleError::sdk(sdk::TX_IN_MEMPOOL, "tx already exists in cache"));
        }
        Ok(())
    }

    /// Adds a transaction. When the pool is full, tails that pay strictly less and share no signer with the newcomer
    /// make room, and are returned.
    ///
    /// # Errors
    /// Codespace `sdk`, and the pool is as before: 18 without a signer or with one named twice, 19 the same bytes wait
    /// already, 32 another transaction of the same account and sequence waits (the first one stays, whatever it pays),
    /// 20 no room.
    pub fn insert(&mut self, tx: MempoolTx) -> Result<Vec<Arc<MempoolTx>>, ModuleError> {
        self.check_absent(&tx.hash)?;
        let distinct: BTreeSet<&Address> = tx.signers.iter().map(|(signer, _)| signer).collect();
        if tx.signers.is_empty() || distinct.len() != tx.signers.len() {
            return Err(ModuleError::sdk(sdk::INVALID_REQUEST, "signers: name at least one, each once"));
        }
        for (signer, sequence) in &tx.signers {
            let Some(waiting) = self.by_signer.get(signer) else { continue };
            if waiting.contains_key(sequence) {
                let text = format!(
                    "account sequence {sequence} is taken by a waiting transaction; use the next one"
                );
                return Err(ModuleError::sdk(sdk::WRONG_SEQUENCE, text));
            }
            if waiting.len() >= self.config.max_per_signer {
                let limit = self.config.max_per_signer;
                return Err(full(format!(
                    "{limit} transactions of this account wait; send more when they are in"
                )));
            }
        }
        if tx.raw.len() > self.config.max_bytes || self.config.max_txs == 0 {
            return Err(full("the transaction alone is over the limit of this node".to_owned()));
        }
        let evicted = self.make_room(&tx)?;
        self.link(Arc::new(tx));
        Ok(evicted)
    }

    fn make_room(&mut self, tx: &MempoolTx) -> Result<Vec<Arc<MempoolTx>>, ModuleError> {
        let mut evicted = Vec::new();
        loop {
            let bytes = self.bytes.saturating_add(tx.raw.len());
            if self.txs.len() < self.config.max_txs && bytes <= self.config.max_bytes {
                return Ok(evicted);
            }
            // A newcomer's own accounts have at most one tail each, so few are passed over.
            let cheaper = self.tails.iter().rev().take_while(|(Reverse(price), ..)| *price < tx.price);
            let victim = cheaper.filter_map(|(.., hash)| self.txs.get(hash)).find(|victim| {
                let shared = |(signer, _): &(Address, u64)| tx.signers.iter().any(|(own, _)| own == signer);
                !victim.signers.iter().any(shared)
            });
            let Some(victim) = victim.cloned() else {
                for victim in evicted {
                    self.link(victim);
                }
                return Err(full(
                    "no waiting transaction pays less; raise the fee or try again later".to_owned(),
                ));
            };
            self.unlink(&victim);
            evicted.push(victim);
        }
    }

    /// Removes transactions, those of a committed block for example. Unknown hashes are passed over.
    pub fn remove<'h>(&mut self, hashes: impl IntoIterator<Item = &'h TxHash>) {
        for hash in hashes {
            if let Some(tx) = self.txs.get(hash).cloned() {
                self.unlink(&tx);
            }
        }
    }

    /// After a commit: removes the block's transactions, then everything that an account's new sequence has overtaken.
    /// `next_sequence` tells an account's sequence in the committed state.
    pub fn remove_committed<'h>(
        &mut self,
        hashes: impl IntoIterator<Item = &'h TxHash>,
        mut next_sequence: impl FnMut(&Address) -> u64,
    ) {
        let committed: Vec<Arc<MempoolTx>> =
            hashes.into_iter().filter_map(|hash| self.txs.get(hash).cloned()).collect();
        let mut signers = BTreeSet::new();
        for tx in committed {
            signers.extend(tx.signers.iter().map(|(signer, _)| *signer));
            self.unlink(&tx);
        }
        for signer in signers {
            let next = next_sequence(&signer);
            let stale: Vec<TxHash> = match self.by_signer.get(&signer) {
                Some(waiting) => waiting.range(..next).map(|(_, hash)| *hash).collect(),
                None => continue,
            };
            self.remove(&stale);
        }
    }

    /// Runs `check` on every waiting transaction in block order, those behind a gap last, and removes the ones it
    /// refuses. Returns them with the reason.
    pub fn recheck(
        &mut self,
        mut check: impl FnMut(&MempoolTx) -> Result<(), ModuleError>,
    ) -> Vec<(Arc<MempoolTx>, ModuleError)> {
        let mut order = self.reap_txs(usize::MAX, u64::MAX);
        let reaped: BTreeSet<TxHash> = order.iter().map(|tx| tx.hash).collect();
        let mut rest: Vec<_> = self.txs.values().filter(|tx| !reaped.contains(&tx.hash)).cloned().collect();
        rest.sort_by_cached_key(|tx| (tx.signers.clone(), tx.hash));
        order.append(&mut rest);
        let mut refused = Vec::new();
        for tx in order {
            if let Err(error) = check(&tx) {
                self.unlink(&tx);
                refused.push((tx, error));
            }
        }
        refused
    }

    /// Transactions for a block, in its order: at most `max_bytes` as counted by [`bytes_in_block`] and `max_gas` in
    /// sum. What does not fit is passed over together with its signers' later ones; smaller ones may still fit.
    pub fn reap(&self, max_bytes: usize, max_gas: u64) -> Vec<Arc<[u8]>> {
        self.reap_txs(max_bytes, max_gas).iter().map(|tx| tx.raw.clone()).collect()
    }

    fn reap_txs(&self, max_bytes: usize, max_gas: u64) -> Vec<Arc<MempoolTx>> {
        let (mut bytes_left, mut gas_left) = (max_bytes, max_gas);
        let mut heads = self.heads.iter().peekable();
        // Successors of what was taken; heads stay in their index and are merged in.
        let mut ready: BinaryHeap<Reverse<Rank>> = BinaryHeap::new();
        let mut taken: BTreeMap<Address, u64> = BTreeMap::new();
        let mut block = Vec::new();
        loop {
            let from_heads = match (heads.peek(), ready.peek()) {
                (Some(head), Some(Reverse(successor))) => *head < successor,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => return block,
            };
            let next = if from_heads { heads.next().copied() } else { ready.pop().map(|Reverse(rank)| rank) };
            let Some(tx) = next.and_then(|(.., hash)| self.txs.get(&hash)) else { continue };
            let fits =
                bytes_left.checked_sub(bytes_in_block(tx.raw.len())).zip(gas_left.checked_sub(tx.gas_wanted));
            let Some(left) = fits else { continue };
            (bytes_left, gas_left) = left;
            block.push(tx.clone());
            taken.extend(tx.signers.iter().copied());
            // A successor of two signers of this transaction must not be pushed twice.
            let successors: BTreeSet<Rank> = tx
                .signers
                .iter()
                .filter_map(|at| self.successor(at))
                .filter(|s| self.is_ready(s, &taken))
                .map(|s| s.rank())
                .collect();
            ready.extend(successors.into_iter().map(Reverse));
        }
    }

    /// Whether every signer's previous transaction is taken, without a gap.
    fn is_ready(&self, tx: &MempoolTx, taken: &BTreeMap<Address, u64>) -> bool {
        tx.signers.iter().all(|(signer, sequence)| match taken.get(signer) {
            Some(last) => last.checked_add(1) == Some(*sequence),
            None => self.predecessor(&(*signer, *sequence)).is_none(),
        })
    }

    fn successor(&self, (signer, sequence): &(Address, u64)) -> Option<&Arc<MempoolTx>> {
        let from = sequence.checked_add(1)?;
        self.txs.get(self.by_signer.get(signer)?.range(from..).next()?.1)
    }

    fn predecessor(&self, (signer, sequence): &(Address, u64)) -> Option<&Arc<MempoolTx>> {
        self.txs.get(self.by_signer.get(signer)?.range(..sequence).next_back()?.1)
    }

    fn link(&mut self, tx: Arc<MempoolTx>) {
        for (signer, sequence) in &tx.signers {
            self.by_signer.entry(*signer).or_default().insert(*sequence, tx.hash);
        }
        self.bytes = self.bytes.saturating_add(tx.raw.len());
        self.txs.insert(tx.hash, tx.clone());
        self.refresh(&tx);
        self.refresh_neighbours(&tx);
    }

    fn unlink(&mut self, tx: &MempoolTx) {
        if self.txs.remove(&tx.hash).is_none() {
            return;
        }
        for (signer, sequence) in &tx.signers {
            if let Some(waiting) = self.by_signer.get_mut(signer) {
                waiting.remove(sequence);
                if waiting.is_empty() {
                    self.by_signer.remove(signer);
                }
            }
        }
        self.bytes = self.bytes.saturating_sub(tx.raw.len());
        self.heads.remove(&tx.rank());
        self.tails.remove(&tx.rank());
        self.refresh_neighbours(tx);
    }

    fn refresh_neighbours(&mut self, tx: &MempoolTx) {
        for at in &tx.signers {
            for neighbour in
                [self.predecessor(at).cloned(), self.successor(at).cloned()].into_iter().flatten()
            {
                self.refresh(&neighbour);
            }
        }
    }

    /// Brings the two indexes in step with where `tx` stands now.
    fn refresh(&mut self, tx: &MempoolTx) {
        let rank = tx.rank();
        if tx.signers.iter().all(|at| self.predecessor(at).is_none()) {
            self.heads.insert(rank);
        } else {
            self.heads.remove(&rank);
        }
        if tx.signers.iter().all(|at| self.successor(at).is_none()) {
            self.tails.insert(rank);
        } else {
            self.tails.remove(&rank);
        }
    }
}

fn full(reason: String) -> ModuleError {
    ModuleError::sdk(sdk::MEMPOOL_FULL, format!("mempool is full: {reason}"))
}

#[cfg(test)]
mod tests;
