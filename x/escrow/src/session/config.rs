//! The terms of an escrow, frozen when it is created.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::Address;
use thiserror::Error;

use super::{Hash, MAX_SLOTS, digest};

/// Rules that an escrow is bound to for its life.
pub const PROTOCOL: &str = "holdfast-escrow/1";

/// The terms of an escrow (escrow-details 2). Amounts in the chain's base denomination; zero never stands for a default.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct FrozenConfig {
    /// Chain that holds the coins.
    pub chain_id: String,
    /// Number of the escrow on that chain.
    pub escrow_id: u64,
    /// Who put the coins in and gets back what is left.
    pub creator: Address,
    /// Signs the diffs.
    pub gateway: Address,
    /// The one model of the escrow.
    pub model: String,
    /// Owner of each slot; 1 to 128.
    pub slots: Vec<Address>,
    /// Coins put in.
    pub amount: u128,
    /// Fee of the creation, spent at nonce 0.
    pub create_fee: u128,
    /// Fee of a diff while the session is Active.
    pub fee_per_nonce: u128,
    /// Price of a token, in and out.
    pub token_price: u128,
    /// Seconds until a Start without receipt is late.
    pub refusal_timeout_s: u32,
    /// Seconds until a Start with receipt and without finish is late.
    pub execution_timeout_s: u32,
    /// Weight above which votes carry, in basis points of the weight that can vote.
    pub vote_threshold_bp: u16,
    /// Share of the price that a cancelled inference costs, in basis points.
    pub cancel_charge_bp: u16,
    /// Nonces after which an ended inference may be folded.
    pub seal_grace_nonces: u32,
    /// Last nonce.
    pub max_nonce: u64,
    /// Records that may be live at once.
    pub max_live: u32,
}

/// Why terms cannot carry a session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// 0 or too many slots.
    #[error("slots: a group has 1 to {MAX_SLOTS} slots, this one {0}")]
    Slots(usize),
    /// The creation costs more than there is.
    #[error("amount: {amount} does not cover the create_fee of {create_fee}; put in more")]
    Amount {
        /// Put in.
        amount: u128,
        /// Asked for.
        create_fee: u128,
    },
    /// No nonce would be left for work.
    #[error(
        "max_nonce: {max_nonce} leaves no room to finalize over {slots} slots; it must be {slots} + 2 at least"
    )]
    MaxNonce {
        /// Given.
        max_nonce: u64,
        /// Size of the group.
        slots: u64,
    },
    /// One owner could block settlement alone.
    #[error("slots: one owner holds {held} slots, and above {limit} it could block settlement alone")]
    Concentrated {
        /// Slots of the owner.
        held: u64,
        /// At most.
        limit: u64,
    },
    /// A basis point value above 10 000.
    #[error("{field}: at most 10000 basis points")]
    BasisPoints {
        /// Name of the field.
        field: &'static str,
    },
    /// A limit or timeout of zero, which would stop the session.
    #[error("{field}: must not be zero")]
    Zero {
        /// Name of the field.
        field: &'static str,
    },
}

impl FrozenConfig {
    /// Checks what a session relies on (escrow-details 2).
    ///
    /// # Errors
    /// The first [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.slots.is_empty() || self.slots.len() > MAX_SLOTS {
            return Err(ConfigError::Slots(self.slots.len()));
        }
        if self.amount < self.create_fee {
            return Err(ConfigError::Amount { amount: self.amount, create_fee: self.create_fee });
        }
        let slots = self.group_size();
        if self.max_nonce < slots.saturating_add(2) {
            return Err(ConfigError::MaxNonce { max_nonce: self.max_nonce, slots });
        }
        let limit = self.max_slots_per_owner();
        if let Some(held) = self.owners().values().map(|slots| slots.len() as u64).find(|held| *held > limit)
        {
            return Err(ConfigError::Concentrated { held, limit });
        }
        for (field, value) in
            [("vote_threshold_bp", self.vote_threshold_bp), ("cancel_charge_bp", self.cancel_charge_bp)]
        {
            if value > 10_000 {
                return Err(ConfigError::BasisPoints { field });
            }
        }
        for (field, value) in [
            ("refusal_timeout_s", self.refusal_timeout_s),
            ("execution_timeout_s", self.execution_timeout_s),
            ("max_live", self.max_live),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        Ok(())
    }

    /// The config digest, which every root contains.
    pub fn digest(&self) -> Hash {
        digest::config(self)
    }

    /// N.
    pub fn group_size(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Slots that must sign a settlement: ⌊2N/3⌋ + 1.
    pub fn quorum(&self) -> u64 {
        (self.group_size().saturating_mul(2) / 3).saturating_add(1)
    }

    /// Slots that one owner may hold: all in a group below 4, else N − quorum (escrow-details 2).
    pub fn max_slots_per_owner(&self) -> u64 {
        max_slots_per_owner(self.group_size())
    }

    /// The slot that executes `nonce`: n mod N.
    pub fn executor_slot(&self, nonce: u64) -> u8 {
        nonce.checked_rem(self.group_size()).and_then(|slot| u8::try_from(slot).ok()).unwrap_or(0)
    }

    /// Owner of a slot.
    pub fn owner_of(&self, slot: u8) -> Option<Address> {
        self.slots.get(usize::from(slot)).copied()
    }

    /// Owner of the slot that executes `nonce`.
    pub fn executor_of(&self, nonce: u64) -> Option<Address> {
        self.owner_of(self.executor_slot(nonce))
    }

    /// Slots of each owner, by address.
    pub fn owners(&self) -> BTreeMap<Address, Vec<u8>> {
        let mut owners: BTreeMap<Address, Vec<u8>> = BTreeMap::new();
        for (slot, owner) in (0..=u8::MAX).zip(&self.slots) {
            owners.entry(*owner).or_default().push(slot);
        }
        owners
    }

    /// Slots of one owner, ascending; none when it is no member.
    pub fn slots_of(&self, owner: &Address) -> Vec<u8> {
        (0..=u8::MAX).zip(&self.slots).filter(|(_, held)| *held == owner).map(|(slot, _)| slot).collect()
    }

    /// Number of slots of one owner.
    pub fn weight(&self, owner: &Address) -> u64 {
        self.slots.iter().filter(|held| *held == owner).count() as u64
    }

    /// How often a slot was the executor up to `nonce`: what bounds its starts at settlement.
    pub fn assigned(&self, slot: u8, nonce: u64) -> u64 {
        let n = self.group_size();
        let rounds = nonce.checked_div(n).unwrap_or(0);
        let rest = nonce.checked_rem(n).unwrap_or(0);
        rounds.saturating_add(u64::from(slot > 0 && u64::from(slot) <= rest))
    }
}

/// Slots that one owner may hold in a group of `group_size`.
pub fn max_slots_per_owner(group_size: u64) -> u64 {
    if group_size < 4 {
        return group_size;
    }
    let quorum = (group_size.saturating_mul(2) / 3).saturating_add(1);
    group_size.saturating_sub(quorum)
}
