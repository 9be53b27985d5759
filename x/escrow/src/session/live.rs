//! The live set: records by id in buckets of 32, of which only changed ones are hashed again.

use std::collections::BTreeMap;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};

use super::{Hash, digest};

/// Where an inference stands. All from [`InferenceStatus::Finished`] on are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum InferenceStatus {
    /// Given out; no receipt.
    Pending = 0,
    /// The executor signed a receipt.
    Started = 1,
    /// Done and paid.
    Finished = 2,
    /// Timed out by votes.
    Missed = 3,
    /// Failed, by the executor's own word.
    Errored = 4,
    /// Cancelled by our side.
    Released = 5,
    /// Open when the session froze; paid in full.
    Drained = 6,
}

impl InferenceStatus {
    /// Pending or Started.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Started)
    }
}

/// One inference of the session (escrow-details 2).
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct InferenceRecord {
    /// Nonce of its Start.
    pub id: u64,
    /// Where it stands.
    pub status: InferenceStatus,
    /// Slot that executes it.
    pub executor_slot: u8,
    /// SHA-256 of the request body.
    pub prompt_hash: Hash,
    /// Tokens of the prompt, at most.
    pub input_limit: u32,
    /// Tokens of the answer, at most.
    pub output_limit: u32,
    /// Taken from the balance at the Start.
    pub reserved: u128,
    /// Unix seconds by the gateway's clock.
    pub started_at: u64,
    /// Unix seconds by the executor's clock; 0 = no receipt.
    pub confirmed_at: u64,
    /// SHA-256 of the answer's text; zeros = none.
    pub response_hash: Hash,
    /// Tokens of the prompt as reported.
    pub input_tokens: u32,
    /// Tokens of the answer as reported.
    pub output_tokens: u32,
    /// What it cost.
    pub cost: u128,
}

const BUCKET: u64 = 32;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Bucket {
    records: BTreeMap<u64, (InferenceRecord, Hash)>,
    hash: Hash,
}

/// Records by id; a clone shares every bucket until it is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Live {
    buckets: BTreeMap<u64, Arc<Bucket>>,
    len: u32,
}

impl Live {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn get(&self, id: u64) -> Option<&InferenceRecord> {
        Some(&self.buckets.get(&(id / BUCKET))?.records.get(&id)?.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &InferenceRecord> {
        self.buckets.values().flat_map(|bucket| bucket.records.values().map(|(record, _)| record))
    }

    pub(super) fn put(&mut self, record: InferenceRecord) {
        let number = record.id / BUCKET;
        let bucket = Arc::make_mut(self.buckets.entry(number).or_default());
        let leaf = digest::leaf(&record);
        if bucket.records.insert(record.id, (record, leaf)).is_none() {
            self.len = self.len.saturating_add(1);
        }
        bucket.rehash(number);
    }

    /// Takes out every record that `which` accepts, ascending, with its leaf hash.
    pub(super) fn take(&mut self, mut which: impl FnMut(&InferenceRecord) -> bool) -> Vec<Hash> {
        let mut taken = Vec::new();
        let mut empty = Vec::new();
        for (number, shared) in &mut self.buckets {
            if !shared.records.values().any(|(record, _)| which(record)) {
                continue;
            }
            let bucket = Arc::make_mut(shared);
            bucket.records.retain(|_, (record, leaf)| {
                let out = which(record);
                if out {
                    taken.push(*leaf);
                }
                !out
            });
            if bucket.records.is_empty() {
                empty.push(*number);
            } else {
                bucket.rehash(*number);
            }
        }
        for number in empty {
            self.buckets.remove(&number);
        }
        self.len = self.len.saturating_sub(u32::try_from(taken.len()).unwrap_or(u32::MAX));
        taken
    }

    pub(super) fn hash(&self) -> Hash {
        let buckets: Vec<(u64, Hash)> =
            self.buckets.iter().map(|(number, bucket)| (*number, bucket.hash)).collect();
        digest::live(&buckets)
    }
}

impl Bucket {
    fn rehash(&mut self, number: u64) {
        let leaves: Vec<(u64, Hash)> = self.records.iter().map(|(id, (_, leaf))| (*id, *leaf)).collect();
        self.hash = digest::bucket(number, &leaves);
    }
}
