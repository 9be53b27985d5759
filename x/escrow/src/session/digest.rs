//! Every preimage that is hashed or signed: borsh of one struct whose first field is its tag (escrow-details 1, 2).

use std::collections::BTreeMap;

use borsh::BorshSerialize;
use borsh::io::{self, Write};
use holdfast_types::Address;
use sha2::{Digest, Sha256};

use super::live::InferenceRecord;
use super::state::{BoundKey, HostStats};
use super::{FrozenConfig, Hash, PROTOCOL, Tx};

struct Hasher(Sha256);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// SHA-256 over the tag `holdfast.escrow.NAME.v1` and the fields after it.
pub fn tagged<T: BorshSerialize + ?Sized>(name: &str, fields: &T) -> Hash {
    let mut hasher = Hasher(Sha256::new());
    // Neither the hasher nor borsh of lengths below 2^32 can fail, and limits keep every length far below.
    let written = ["holdfast.escrow.", name, ".v1"]
        .concat()
        .serialize(&mut hasher)
        .and_then(|()| fields.serialize(&mut hasher));
    debug_assert!(written.is_ok());
    hasher.0.finalize().into()
}

/// Digest of the terms.
pub fn config(config: &FrozenConfig) -> Hash {
    tagged("config", &(PROTOCOL, config))
}

/// Hash of all rows of outcomes, by slot.
pub fn stats(rows: &[HostStats]) -> Hash {
    tagged("stats", rows)
}

/// Hash of one record.
pub fn leaf(record: &InferenceRecord) -> Hash {
    tagged("leaf", record)
}

/// Hash of up to 32 records with one `id / 32`, ascending.
pub fn bucket(number: u64, leaves: &[(u64, Hash)]) -> Hash {
    tagged("bucket", &(number, leaves))
}

/// Hash of the live set: its buckets, ascending.
pub fn live(buckets: &[(u64, Hash)]) -> Hash {
    tagged("live", buckets)
}

/// Hash of the bound keys, by owner.
pub fn keys(rows: &BTreeMap<Address, BoundKey>) -> Hash {
    let rows: Vec<(Address, Address, u32)> =
        rows.iter().map(|(owner, key)| (*owner, key.warm, key.seq)).collect();
    tagged("keys", &rows)
}

/// The accumulator after one more folded record.
pub fn seal(acc: &Hash, nonce: u64, leaf: &Hash) -> Hash {
    tagged("seal", &(acc, nonce, leaf))
}

/// What a root is made of.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize)]
pub struct RootParts {
    /// Digest of the terms.
    pub config_digest: Hash,
    /// Last nonce.
    pub nonce: u64,
    /// 0 Active, 1 Finalizing, 2 Frozen.
    pub phase: u8,
    /// Nonce of the FinalizeRound; 0 = none.
    pub finalize_nonce: u64,
    /// Coins neither spent nor reserved.
    pub balance: u128,
    /// Fees so far.
    pub fees: u128,
    /// [`stats`].
    pub stats_hash: Hash,
    /// Folded records.
    pub sealed_acc: Hash,
    /// [`live`].
    pub live_hash: Hash,
    /// [`keys`].
    pub keys_hash: Hash,
}

/// The post-state root.
pub fn root(parts: &RootParts) -> Hash {
    tagged("root", parts)
}

/// Identity of a diff; signed by the gateway.
pub fn diff(chain_id: &str, escrow_id: u64, nonce: u64, txs: &[Tx], post_state_root: &Hash) -> Hash {
    tagged("diff", &(chain_id, escrow_id, nonce, txs, post_state_root))
}

/// A host's state signature.
pub fn state(chain_id: &str, escrow_id: u64, nonce: u64, root: &Hash) -> Hash {
    tagged("state", &(chain_id, escrow_id, nonce, root))
}

/// A host's fresh proof for one repair attempt.
pub fn verify(
    chain_id: &str,
    escrow_id: u64,
    nonce: u64,
    root: &Hash,
    generation: u64,
    challenge: &Hash,
) -> Hash {
    tagged("verify", &(chain_id, escrow_id, nonce, root, generation, challenge))
}

/// A host's word that it will not apply a diff, with the root that it computes instead.
pub fn refusal(chain_id: &str, escrow_id: u64, nonce: u64, diff_digest: &Hash, computed: &Hash) -> Hash {
    tagged("refusal", &(chain_id, escrow_id, nonce, diff_digest, computed))
}

/// An executor's receipt: it takes the work of `record`, at `confirmed_at`.
pub fn receipt(chain_id: &str, escrow_id: u64, record: &InferenceRecord, confirmed_at: u64) -> Hash {
    let InferenceRecord { id, executor_slot, prompt_hash, input_limit, output_limit, started_at, .. } =
        record;
    tagged(
        "receipt",
        &(
            chain_id,
            escrow_id,
            id,
            executor_slot,
            prompt_hash,
            input_limit,
            output_limit,
            started_at,
            confirmed_at,
        ),
    )
}

/// An executor's account of a finished inference.
pub fn finish(
    chain_id: &str,
    escrow_id: u64,
    id: u64,
    executor_slot: u8,
    input_tokens: u32,
    output_tokens: u32,
    response_hash: &Hash,
) -> Hash {
    tagged("finish", &(chain_id, escrow_id, id, executor_slot, input_tokens, output_tokens, response_hash))
}

/// An executor's account of an inference that failed; tokens as delivered.
pub fn error(
    chain_id: &str,
    escrow_id: u64,
    id: u64,
    executor_slot: u8,
    kind: u8,
    input_tokens: u32,
    output_tokens: u32,
) -> Hash {
    tagged("error", &(chain_id, escrow_id, id, executor_slot, kind, input_tokens, output_tokens))
}

/// A vote on a timeout.
pub fn vote(chain_id: &str, escrow_id: u64, id: u64, reason: u8, voter_slot: u8, accept: bool) -> Hash {
    tagged("vote", &(chain_id, escrow_id, id, reason, voter_slot, accept))
}

/// Binding of a warm key, signed by the owner's cold key.
pub fn bind(chain_id: &str, escrow_id: u64, owner: &Address, warm: &Address, seq: u32) -> Hash {
    tagged("bind", &(chain_id, escrow_id, owner, warm, seq))
}

/// Seed of a group's draw: of the escrow and the app hash that nobody knew when the message was sent.
pub fn group(chain_id: &str, escrow_id: u64, previous_app_hash: &Hash) -> Hash {
    tagged("group", &(chain_id, escrow_id, previous_app_hash))
}
