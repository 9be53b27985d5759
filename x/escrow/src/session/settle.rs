//! What the chain checks before it pays (escrow-details 4).

use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::{Address, Signature, recover};
use thiserror::Error;

use super::digest::{self, RootParts};
use super::{BoundKey, FrozenConfig, Hash, HostStats, Phase, State};

/// The summary of a session that its root can be computed from, with the signatures over that root.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Settlement {
    /// The escrow.
    pub escrow_id: u64,
    /// Last nonce.
    pub nonce: u64,
    /// Phase at that nonce.
    pub phase: Phase,
    /// Nonce of the FinalizeRound; 0 = none.
    pub finalize_nonce: u64,
    /// Coins neither spent nor reserved.
    pub balance: u128,
    /// Fees.
    pub fees: u128,
    /// Outcomes, one row a slot.
    pub stats: Vec<HostStats>,
    /// Folded records.
    pub sealed_acc: Hash,
    /// Hash of the live set.
    pub live_hash: Hash,
    /// Bound keys, by owner, each with the owner's signature.
    pub keys: BTreeMap<Address, BoundKey>,
    /// Over the `state` digest of nonce and root; one a slot at most.
    pub signatures: Vec<SlotSignature>,
}

/// A signature that names one slot of its signer.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct SlotSignature {
    /// The slot.
    pub slot: u8,
    /// Over the `state` digest.
    pub sig: Signature,
}

/// Which rules a summary has to meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The frozen end of a session, by its gateway.
    Settle,
    /// The highest nonce that a quorum signed, when the gateway is gone.
    Dispute,
}

/// Who gets what. The parts sum up to the amount of the escrow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payout {
    /// Earned, by owner.
    pub earned: BTreeMap<Address, u128>,
    /// To the fee collector.
    pub fees: u128,
    /// To the creator: what is left, and in a dispute what open inferences held.
    pub refund: u128,
    /// Outcomes over an owner's slots.
    pub outcomes: BTreeMap<Address, Outcomes>,
    /// The root that was signed.
    pub root: Hash,
}

/// Outcomes of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcomes {
    /// Given out.
    pub started: u64,
    /// Done.
    pub completed: u64,
    /// Timed out.
    pub missed: u64,
    /// Failed by its own word.
    pub errored: u64,
    /// Cancelled.
    pub released: u64,
    /// Open at the end.
    pub drained: u64,
}

/// Why a summary is not paid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettleError {
    /// Of another escrow.
    #[error("escrow_id: expected {expected}, got {got}")]
    WrongEscrow {
        /// This one.
        expected: u64,
        /// In the summary.
        got: u64,
    },
    /// Not at its end.
    #[error(
        "phase: a settlement needs a frozen session with nonce = finalize_nonce + {slots}; before that, wait or dispute"
    )]
    NotFrozen {
        /// Size of the group.
        slots: u64,
    },
    /// Beyond the terms.
    #[error("nonce: {nonce} is above max_nonce {max}")]
    NonceLimit {
        /// In the summary.
        nonce: u64,
        /// Of the terms.
        max: u64,
    },
    /// A frozen session has no live records.
    #[error("live_hash: a frozen session has no live inferences")]
    LiveLeft,
    /// Not one row a slot, in order.
    #[error("stats: one row for each of {0} slots, ascending")]
    StatsRows(usize),
    /// Outcomes that do not add up.
    #[error("stats: slot {slot}: {started} started and {ended} ended do not fit")]
    StatsSum {
        /// The slot.
        slot: u8,
        /// Started.
        started: u64,
        /// Sum of its outcomes.
        ended: u64,
    },
    /// More than the rota gave it.
    #[error("stats: slot {slot}: {started} started, but nonces gave it {assigned}")]
    StatsAssigned {
        /// The slot.
        slot: u8,
        /// Started.
        started: u64,
        /// At most.
        assigned: u64,
    },
    /// Coins from nowhere, or lost.
    #[error("coins: cost, fees and balance sum up to {sum}, the escrow holds {amount}")]
    Coins {
        /// Sum of the summary.
        sum: u128,
        /// Of the escrow.
        amount: u128,
    },
    /// A key of nobody.
    #[error("keys: {0:?} holds no slot of this escrow")]
    ForeignKey(Address),
    /// A key that its owner did not bind.
    #[error("keys: the binding of {0:?} is not signed by its own key")]
    UnboundKey(Address),
    /// The slot signed before.
    #[error("signatures: slot {0} is listed twice")]
    DuplicateSlot(u8),
    /// Not by a key of the slot, or over another root.
    #[error("signatures: slot {0}: not by a key of that slot over the root of this summary")]
    BadSignature(u8),
    /// Too few.
    #[error("signatures: slots of the signers: {signed}, needed: {quorum}")]
    ShortSigned {
        /// Slots of the signers.
        signed: u64,
        /// Needed.
        quorum: u64,
    },
    /// More coins than an integer holds.
    #[error("coins: out of range")]
    Overflow,
}

impl Settlement {
    /// The summary of `state`.
    pub fn of(state: &State, signatures: Vec<SlotSignature>) -> Self {
        let parts = state.root_parts();
        Self {
            escrow_id: state.config().escrow_id,
            nonce: state.nonce(),
            phase: state.phase(),
            finalize_nonce: state.finalize_nonce(),
            balance: state.balance(),
            fees: state.fees(),
            stats: state.stats().to_vec(),
            sealed_acc: parts.sealed_acc,
            live_hash: parts.live_hash,
            keys: state.keys().clone(),
            signatures,
        }
    }

    /// Root of the summary under terms with `config_digest`.
    pub fn root(&self, config_digest: Hash) -> Hash {
        digest::root(&RootParts {
            config_digest,
            nonce: self.nonce,
            phase: self.phase as u8,
            finalize_nonce: self.finalize_nonce,
            balance: self.balance,
            fees: self.fees,
            stats_hash: digest::stats(&self.stats),
            sealed_acc: self.sealed_acc,
            live_hash: self.live_hash,
            keys_hash: digest::keys(&self.keys),
        })
    }
}

/// Checks a summary and says who gets what.
///
/// # Errors
/// The first [`SettleError`], cheap checks before signatures.
pub fn verify(config: &FrozenConfig, settlement: &Settlement, mode: Mode) -> Result<Payout, SettleError> {
    if settlement.escrow_id != config.escrow_id {
        return Err(SettleError::WrongEscrow { expected: config.escrow_id, got: settlement.escrow_id });
    }
    let (nonce, slots) = (settlement.nonce, config.group_size());
    if nonce > config.max_nonce {
        return Err(SettleError::NonceLimit { nonce, max: config.max_nonce });
    }
    let frozen = settlement.phase == Phase::Frozen;
    let at_end = settlement.finalize_nonce > 0 && settlement.finalize_nonce.checked_add(slots) == Some(nonce);
    // Any other phase only a dispute may bring.
    if (mode == Mode::Settle && !frozen) || (frozen && !at_end) {
        return Err(SettleError::NotFrozen { slots });
    }
    if frozen && settlement.live_hash != digest::live(&[]) {
        return Err(SettleError::LiveLeft);
    }
    let cost = check_stats(config, settlement, frozen)?;
    let spent = cost.checked_add(settlement.fees).and_then(|sum| sum.checked_add(settlement.balance));
    let sum = spent.ok_or(SettleError::Overflow)?;
    let residual = config.amount.checked_sub(sum);
    let residual = match residual {
        Some(rest) if rest == 0 || !frozen => rest,
        _ => return Err(SettleError::Coins { sum, amount: config.amount }),
    };
    if let Some(owner) = settlement.keys.keys().find(|owner| config.weight(owner) == 0) {
        return Err(SettleError::ForeignKey(*owner));
    }
    // The chain has not seen the log: were a row taken on trust, the summary would name the keys that vouch for it.
    if let Some((owner, _)) = settlement.keys.iter().find(|(owner, key)| !key.is_by(config, owner)) {
        return Err(SettleError::UnboundKey(*owner));
    }
    let root = settlement.root(config.digest());
    check_signatures(config, settlement, &root)?;

    let mut earned: BTreeMap<Address, u128> = BTreeMap::new();
    let mut outcomes: BTreeMap<Address, Outcomes> = BTreeMap::new();
    for (row, owner) in settlement.stats.iter().zip(&config.slots) {
        let coins = earned.entry(*owner).or_default();
        *coins = coins.checked_add(row.cost).ok_or(SettleError::Overflow)?;
        let of = outcomes.entry(*owner).or_default();
        for (total, count) in [
            (&mut of.started, row.started),
            (&mut of.completed, row.completed),
            (&mut of.missed, row.missed),
            (&mut of.errored, row.errored),
            (&mut of.released, row.released),
            (&mut of.drained, row.drained),
        ] {
            *total = total.saturating_add(u64::from(count));
        }
    }
    let refund = settlement.balance.checked_add(residual).ok_or(SettleError::Overflow)?;
    Ok(Payout { earned, fees: settlement.fees, refund, outcomes, root })
}

fn check_stats(config: &FrozenConfig, settlement: &Settlement, frozen: bool) -> Result<u128, SettleError> {
    let in_order = settlement.stats.iter().map(|row| usize::from(row.slot)).eq(0..config.slots.len());
    if !in_order {
        return Err(SettleError::StatsRows(config.slots.len()));
    }
    let mut cost = 0u128;
    for row in &settlement.stats {
        let started = u64::from(row.started);
        let ended = [row.completed, row.missed, row.errored, row.released, row.drained]
            .into_iter()
            .fold(0u64, |sum, count| sum.saturating_add(u64::from(count)));
        if ended > started || (frozen && ended != started) {
            return Err(SettleError::StatsSum { slot: row.slot, started, ended });
        }
        let assigned = config.assigned(row.slot, settlement.nonce);
        if started > assigned {
            return Err(SettleError::StatsAssigned { slot: row.slot, started, assigned });
        }
        cost = cost.checked_add(row.cost).ok_or(SettleError::Overflow)?;
    }
    Ok(cost)
}

fn check_signatures(config: &FrozenConfig, settlement: &Settlement, root: &Hash) -> Result<(), SettleError> {
    let digest = digest::state(&config.chain_id, config.escrow_id, settlement.nonce, root);
    let mut listed = BTreeSet::new();
    let mut signers = BTreeSet::new();
    for SlotSignature { slot, sig } in &settlement.signatures {
        if !listed.insert(*slot) {
            return Err(SettleError::DuplicateSlot(*slot));
        }
        let owner = config.owner_of(*slot).ok_or(SettleError::BadSignature(*slot))?;
        let signer = recover(&digest, sig).map_err(|_| SettleError::BadSignature(*slot))?;
        let warm = settlement.keys.get(&owner).map(|key| key.warm);
        if signer != owner && (warm != Some(signer) || signer == Address([0; 20])) {
            return Err(SettleError::BadSignature(*slot));
        }
        signers.insert(owner);
    }
    let signed = signers.iter().fold(0u64, |sum, owner| sum.saturating_add(config.weight(owner)));
    let quorum = config.quorum();
    if signed < quorum {
        return Err(SettleError::ShortSigned { signed, quorum });
    }
    Ok(())
}
