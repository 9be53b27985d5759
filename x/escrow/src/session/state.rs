//! The state of one session.

use std::collections::BTreeMap;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::{Address, Signature, recover};
use thiserror::Error;

use super::digest::{self, RootParts};
use super::live::{InferenceRecord, Live};
use super::{FrozenConfig, Hash};

/// Phase of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Phase {
    /// Takes work.
    Active = 0,
    /// Takes no new work; N more diffs end what is open.
    Finalizing = 1,
    /// Takes nothing; can be settled.
    Frozen = 2,
}

/// Outcomes of one slot. `started` is the sum of the others and of its open inferences.
#[derive(Debug, Clone, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub struct HostStats {
    /// The slot.
    pub slot: u8,
    /// Given out.
    pub started: u32,
    /// Done.
    pub completed: u32,
    /// Timed out by votes.
    pub missed: u32,
    /// Failed by its own word.
    pub errored: u32,
    /// Cancelled by our side.
    pub released: u32,
    /// Open when the session froze.
    pub drained: u32,
    /// Earned.
    pub cost: u128,
}

/// The warm key of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct BoundKey {
    /// The key's address; zeros = revoked.
    pub warm: Address,
    /// Counts its bindings.
    pub seq: u32,
    /// Of the owner's own key, over [`digest::bind`]. No part of the root: it is what shows the row to one who has not
    /// seen the log.
    pub sig: Signature,
}

impl BoundKey {
    /// What `owner` signs for this binding.
    pub(super) fn digest(&self, config: &FrozenConfig, owner: &Address) -> Hash {
        digest::bind(&config.chain_id, config.escrow_id, owner, &self.warm, self.seq)
    }

    /// Whether `owner` itself made this binding.
    pub fn is_by(&self, config: &FrozenConfig, owner: &Address) -> bool {
        recover(&self.digest(config, owner), &self.sig).ok() == Some(*owner)
    }
}

/// Bound keys and the hash over them, which changes seldom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) rows: BTreeMap<Address, BoundKey>,
    pub(super) hash: Hash,
}

/// The state of one session: everything that `apply` reads. A clone is cheap: parts are shared until written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub(super) config: Arc<FrozenConfig>,
    pub(super) config_digest: Hash,
    pub(super) nonce: u64,
    pub(super) phase: Phase,
    pub(super) finalize_nonce: u64,
    pub(super) balance: u128,
    pub(super) fees: u128,
    pub(super) stats: Vec<HostStats>,
    pub(super) live: Live,
    pub(super) sealed_acc: Hash,
    pub(super) keys: Arc<Keys>,
    /// Sum over open records; follows from `live`.
    pub(super) reserved: u128,
}

/// Why bytes are no snapshot of this session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// Not borsh of a state.
    #[error("not the borsh encoding of a state")]
    Malformed,
    /// Of other terms.
    #[error("the snapshot is of other terms: config digests differ")]
    WrongConfig,
    /// Does not add up.
    #[error("the snapshot is inconsistent: {0}")]
    Inconsistent(String),
}

#[derive(BorshSerialize, BorshDeserialize)]
struct Snapshot {
    config_digest: Hash,
    nonce: u64,
    phase: Phase,
    finalize_nonce: u64,
    balance: u128,
    fees: u128,
    stats: Vec<HostStats>,
    live: Vec<InferenceRecord>,
    sealed_acc: Hash,
    keys: BTreeMap<Address, BoundKey>,
}

impl State {
    /// The state before the first diff: the creation fee is spent, nothing else.
    pub fn genesis(config: Arc<FrozenConfig>) -> Self {
        let stats = (0..=u8::MAX)
            .zip(&config.slots)
            .map(|(slot, _)| HostStats { slot, ..HostStats::default() })
            .collect();
        let rows = BTreeMap::new();
        Self {
            config_digest: config.digest(),
            nonce: 0,
            phase: Phase::Active,
            finalize_nonce: 0,
            balance: config.amount.saturating_sub(config.create_fee),
            fees: config.create_fee.min(config.amount),
            stats,
            live: Live::default(),
            sealed_acc: [0; 32],
            keys: Arc::new(Keys { hash: digest::keys(&rows), rows }),
            reserved: 0,
            config,
        }
    }

    /// The terms.
    pub fn config(&self) -> &Arc<FrozenConfig> {
        &self.config
    }

    /// Digest of the terms.
    pub fn config_digest(&self) -> Hash {
        self.config_digest
    }

    /// Last nonce applied; 0 = none.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Nonce of the FinalizeRound; 0 = none.
    pub fn finalize_nonce(&self) -> u64 {
        self.finalize_nonce
    }

    /// Whether the next diff must carry FinalizeRound: the last N + 1 nonces are for finalizing, and a pass would eat them
    /// as a start does.
    pub fn must_finalize(&self) -> bool {
        let end = self.nonce.saturating_add(self.config.group_size()).saturating_add(2);
        self.phase == Phase::Active && end > self.config.max_nonce
    }

    /// Coins neither spent nor reserved.
    pub fn balance(&self) -> u128 {
        self.balance
    }

    /// Fees so far.
    pub fn fees(&self) -> u128 {
        self.fees
    }

    /// Outcomes, by slot.
    pub fn stats(&self) -> &[HostStats] {
        &self.stats
    }

    /// Sum of what slots have earned.
    pub fn cost(&self) -> u128 {
        self.stats.iter().fold(0, |sum: u128, row| sum.saturating_add(row.cost))
    }

    /// Coins that open inferences hold.
    pub fn reserved(&self) -> u128 {
        self.reserved
    }

    /// A record that is not folded.
    pub fn record(&self, id: u64) -> Option<&InferenceRecord> {
        self.live.get(id)
    }

    /// Records that are not folded, by id.
    pub fn live(&self) -> impl Iterator<Item = &InferenceRecord> {
        self.live.iter()
    }

    /// Number of records that are not folded.
    pub fn live_len(&self) -> u32 {
        self.live.len()
    }

    /// Folded records.
    pub fn sealed_acc(&self) -> Hash {
        self.sealed_acc
    }

    /// Bound keys, by owner.
    pub fn keys(&self) -> &BTreeMap<Address, BoundKey> {
        &self.keys.rows
    }

    /// Whether `address` may sign for `slot`: its owner, or the owner's bound warm key (escrow-details 1).
    pub fn authorised(&self, slot: u8, address: &Address) -> bool {
        self.config.owner_of(slot).is_some_and(|owner| self.speaks_for(&owner, address))
    }

    /// Whether `address` may sign for the slots of `owner`, a member.
    pub fn speaks_for(&self, owner: &Address, address: &Address) -> bool {
        owner == address
            || self
                .keys
                .rows
                .get(owner)
                .is_some_and(|key| key.warm == *address && key.warm != Address([0; 20]))
    }

    /// What the root is made of.
    pub fn root_parts(&self) -> RootParts {
        RootParts {
            config_digest: self.config_digest,
            nonce: self.nonce,
            phase: self.phase as u8,
            finalize_nonce: self.finalize_nonce,
            balance: self.balance,
            fees: self.fees,
            stats_hash: digest::stats(&self.stats),
            sealed_acc: self.sealed_acc,
            live_hash: self.live.hash(),
            keys_hash: self.keys.hash,
        }
    }

    /// The post-state root.
    pub fn root(&self) -> Hash {
        digest::root(&self.root_parts())
    }

    /// Checks, from the records, that no coin and no outcome is lost (escrow-details 3). For tests and snapshots.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check_conservation(&self) -> Result<(), String> {
        let open = || self.live.iter().filter(|record| record.status.is_open());
        let reserved = open().fold(0u128, |sum, record| sum.saturating_add(record.reserved));
        if reserved != self.reserved {
            return Err(format!("open inferences hold {reserved}, the state says {}", self.reserved));
        }
        let sum = [self.balance, reserved, self.cost(), self.fees]
            .into_iter()
            .try_fold(0u128, u128::checked_add)
            .ok_or("the coins overflow")?;
        if sum != self.config.amount {
            return Err(format!("{sum} coins are accounted for, {} were put in", self.config.amount));
        }
        for row in &self.stats {
            let open = open().filter(|record| record.executor_slot == row.slot).count() as u64;
            let ended = [row.completed, row.missed, row.errored, row.released, row.drained]
                .into_iter()
                .fold(open, |sum, count| sum.saturating_add(u64::from(count)));
            if ended != u64::from(row.started) {
                return Err(format!("slot {}: {} started, {ended} accounted for", row.slot, row.started));
            }
        }
        Ok(())
    }

    /// A snapshot; borsh.
    pub fn to_bytes(&self) -> Vec<u8> {
        let snapshot = Snapshot {
            config_digest: self.config_digest,
            nonce: self.nonce,
            phase: self.phase,
            finalize_nonce: self.finalize_nonce,
            balance: self.balance,
            fees: self.fees,
            stats: self.stats.clone(),
            live: self.live.iter().cloned().collect(),
            sealed_acc: self.sealed_acc,
            keys: self.keys.rows.clone(),
        };
        borsh::to_vec(&snapshot).unwrap_or_default()
    }

    /// From a snapshot of the same session. Compare its root with one that is known: bytes prove nothing.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn from_bytes(config: Arc<FrozenConfig>, bytes: &[u8]) -> Result<Self, SnapshotError> {
        let snapshot: Snapshot = borsh::from_slice(bytes).map_err(|_| SnapshotError::Malformed)?;
        let mut state = Self::genesis(config);
        if snapshot.config_digest != state.config_digest {
            return Err(SnapshotError::WrongConfig);
        }
        if snapshot.stats.iter().map(|row| row.slot).ne(state.stats.iter().map(|row| row.slot)) {
            return Err(SnapshotError::Inconsistent("its rows of outcomes are not one a slot".into()));
        }
        let before = snapshot.live.iter().zip(snapshot.live.iter().skip(1));
        if before.into_iter().any(|(a, b)| a.id >= b.id) {
            return Err(SnapshotError::Inconsistent("its records do not ascend".into()));
        }
        let Snapshot { config_digest: _, nonce, phase, finalize_nonce, balance, fees, stats, live, .. } =
            snapshot;
        for record in live {
            if record.status.is_open() {
                state.reserved = state.reserved.saturating_add(record.reserved);
            }
            state.live.put(record);
        }
        state.keys = Arc::new(Keys { hash: digest::keys(&snapshot.keys), rows: snapshot.keys });
        state.sealed_acc = snapshot.sealed_acc;
        (state.nonce, state.phase, state.finalize_nonce) = (nonce, phase, finalize_nonce);
        (state.balance, state.fees, state.stats) = (balance, fees, stats);
        state.check_conservation().map_err(SnapshotError::Inconsistent)?;
        Ok(state)
    }
}
