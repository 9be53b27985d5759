//! Signature verification: once for each transaction, on all cores.
//!
//! A signature is checked when its transaction first comes in (`check_tx`, or the batch before a block), and found in
//! the [`SignatureCache`] afterwards. Only the work moves: the answer is a function of digest, key and signature, so it
//! is the same with an empty cache, a full one, and any number of threads.

use std::collections::HashSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use secp256k1::ecdsa::Signature;
use secp256k1::{Message, SECP256K1};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::keys::PublicKey;

/// Half of the order of secp256k1, rounded down, big-endian: the largest `s` taken. Both `s` and `order - s` verify, so
/// taking both would give one transaction two hashes.
const HALF_ORDER: [u8; 32] = [
    0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x5d,
    0x57, 0x6e, 0x73, 0x57, 0xa4, 0x50, 0x1d, 0xdf, 0xe9, 0x2f, 0x46, 0x68, 0x1b, 0x20, 0xa0,
];

/// Checks a thread takes at a time. As many or fewer are not worth a second thread.
const CHECKS_AT_A_TIME: usize = 8;

/// Why a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SignatureError {
    /// Not r‖s.
    #[error("a signature has 64 bytes (r and s), this one {0}")]
    Length(usize),
    /// The malleable twin of a signature.
    #[error("s lies in the upper half of the order; send order - s")]
    HighS,
    /// r or s outside the group order.
    #[error("r or s is not below the order of secp256k1")]
    Range,
    /// Of another key, or of other bytes.
    #[error("the signature does not fit key and sign bytes")]
    Mismatch,
}

/// One signature to verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureCheck {
    digest: [u8; 32],
    public_key: PublicKey,
    signature: Vec<u8>,
}

impl SignatureCheck {
    /// Of `signature` by `public_key` over SHA-256 of `sign_bytes`.
    pub fn new(sign_bytes: &[u8], public_key: PublicKey, signature: &[u8]) -> Self {
        Self { digest: Sha256::digest(sign_bytes).into(), public_key, signature: signature.to_vec() }
    }

    /// Verifies, without a cache.
    ///
    /// # Errors
    /// The first [`SignatureError`] in the order of its variants.
    pub fn verify(&self) -> Result<(), SignatureError> {
        let compact = <&[u8; 64]>::try_from(self.signature.as_slice())
            .map_err(|_| SignatureError::Length(self.signature.len()))?;
        let (_, s) = compact.split_at(32);
        if s > HALF_ORDER.as_slice() {
            return Err(SignatureError::HighS);
        }
        let signature = Signature::from_compact(compact).map_err(|_| SignatureError::Range)?;
        SECP256K1
            .verify_ecdsa(Message::from_digest(self.digest), &signature, self.public_key.point())
            .map_err(|_| SignatureError::Mismatch)
    }

    /// Names digest, key and signature together: chain id, account number and sequence are in the digest.
    fn id(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(self.digest)
            .chain_update(self.public_key.to_bytes())
            .chain_update(&self.signature)
            .finalize()
            .into()
    }
}

/// Verifies `checks` on up to `threads` threads. The answer at each index is that of [`SignatureCheck::verify`].
pub fn verify_batch(checks: &[SignatureCheck], threads: NonZero<usize>) -> Vec<Result<(), SignatureError>> {
    let mut results = vec![Ok(()); checks.len()];
    spread(checks, &mut results, threads, CHECKS_AT_A_TIME, |check, result| *result = check.verify());
    results
}

/// Puts `work` of each item into the result of the same index. Up to `threads` threads, this one among them, take `few`
/// items at a time, so that none waits long for another that is held up.
pub(crate) fn spread<T: Sync, R: Send>(
    items: &[T],
    results: &mut [R],
    threads: NonZero<usize>,
    few: usize,
    work: impl Fn(&T, &mut R) + Sync,
) {
    let threads = threads.get().min(items.len().div_ceil(few.max(1)));
    let left = Mutex::new(items.chunks(few.max(1)).zip(results.chunks_mut(few.max(1))));
    let run = || {
        loop {
            // Taken in a statement of its own: the lock is free again while the work is done.
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((items, results)) = next else { break };
            items.iter().zip(results).for_each(|(item, result)| work(item, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}

/// Number of cores, for [`verify_batch`].
pub fn cores() -> NonZero<usize> {
    thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// Remembers good signatures. Bounded: two generations of `capacity` entries; when the young one is full, the old one is
/// forgotten. Refused signatures are not kept, so nobody can fill it with them.
#[derive(Debug)]
pub struct SignatureCache {
    capacity: usize,
    generations: Mutex<Generations>,
    verified: AtomicU64,
    hits: AtomicU64,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashSet<[u8; 32]>,
    old: HashSet<[u8; 32]>,
}

impl SignatureCache {
    /// A cache of at least the last `capacity` good signatures, and at most twice as many (64 bytes or so each).
    pub fn new(capacity: NonZero<usize>) -> Self {
        Self {
            capacity: capacity.get(),
            generations: Mutex::default(),
            verified: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// Verifies unless known to be good.
    ///
    /// # Errors
    /// As [`SignatureCheck::verify`].
    pub fn verify(&self, check: &SignatureCheck) -> Result<(), SignatureError> {
        let id = check.id();
        if self.contains(&id) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.verified.fetch_add(1, Ordering::Relaxed);
        check.verify()?;
        self.insert([id]);
        Ok(())
    }

    /// Verifies on `threads` threads what is not yet known to be good, so that [`SignatureCache::verify`] finds it.
    /// Refused signatures are left for `verify` to refuse again, with their reason.
    pub fn warm(&self, checks: Vec<SignatureCheck>, threads: NonZero<usize>) {
        let unknown: Vec<SignatureCheck> = {
            let known = self.lock();
            checks.into_iter().filter(|check| !known.contains(&check.id())).collect()
        };
        self.verified.fetch_add(u64::try_from(unknown.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let results = verify_batch(&unknown, threads);
        let good = unknown.iter().zip(results).filter(|(_, result)| result.is_ok());
        self.insert(good.map(|(check, _)| check.id()));
    }

    /// Signatures verified by computation so far.
    pub fn verified(&self) -> u64 {
        self.verified.load(Ordering::Relaxed)
    }

    /// Signatures found in the cache so far.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Signatures remembered now.
    pub fn len(&self) -> usize {
        let generations = self.lock();
        generations.young.len().saturating_add(generations.old.len())
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn contains(&self, id: &[u8; 32]) -> bool {
        self.lock().contains(id)
    }

    fn insert(&self, ids: impl IntoIterator<Item = [u8; 32]>) {
        let mut generations = self.lock();
        for id in ids {
            if generations.young.len() >= self.capacity {
                generations.old = std::mem::take(&mut generations.young);
            }
            generations.young.insert(id);
        }
    }

    /// A thread that panicked while holding the lock leaves a set of ids behind, each of them right.
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn contains(&self, id: &[u8; 32]) -> bool {
        self.young.contains(id) || self.old.contains(id)
    }
}

#[cfg(test)]
pub(crate) mod tests;
