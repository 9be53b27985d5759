//! Stored types. Their borsh bytes are consensus.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::{Address, Epoch, Height};

/// A worker process of a participant and the layers it holds.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Worker {
    /// Where it listens.
    pub url: String,
    /// First layer.
    pub first_layer: u32,
    /// Last layer, inclusive.
    pub last_layer: u32,
}

/// A registered participant.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Participant {
    /// Consensus key: 32 bytes ed25519 or 33 bytes secp256k1.
    pub validator_key: Vec<u8>,
    /// Where its host listens; may be empty.
    pub host_url: String,
    /// Its workers.
    pub workers: Vec<Worker>,
    /// Models it serves from the next epoch on, ascending.
    pub models: Vec<String>,
    /// Serves during PoC phases, from the next epoch on.
    pub poc_preserved: bool,
    /// Bonded collateral, base units: backs the next epoch's weight.
    pub collateral: u128,
    /// Collateral on its way out.
    pub unbonding: u128,
    /// Epoch from which `unbonding` can be claimed.
    pub unbonding_epoch: Epoch,
    /// It left and may register again.
    pub left: bool,
    /// First epoch it works in.
    pub joined_epoch: Epoch,
}

/// Weight of a participant for a model over three epochs. Rolls by reading: nothing is written at the boundary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct MemberRecord {
    /// Epoch that `weight` is for.
    pub epoch: Epoch,
    /// Weight in `epoch`; 0 = not in the group, or out of it since.
    pub weight: u64,
    /// Serves during the PoC phase of `epoch`.
    pub preserved: bool,
    /// Weight in the epoch before, as it ended.
    pub prev_weight: u64,
    /// The flag in the epoch before.
    pub prev_preserved: bool,
    /// Weight in every later epoch.
    pub next_weight: u64,
    /// The flag in every later epoch.
    pub next_preserved: bool,
}

impl MemberRecord {
    /// The record seen from `epoch`, which is its own or a later one.
    #[must_use]
    pub fn at(&self, epoch: Epoch) -> Self {
        let Some(passed) = epoch.checked_sub(self.epoch).filter(|passed| *passed > 0) else { return *self };
        let (prev_weight, prev_preserved) =
            if passed == 1 { (self.weight, self.preserved) } else { (self.next_weight, self.next_preserved) };
        Self {
            epoch,
            weight: self.next_weight,
            preserved: self.next_preserved,
            prev_weight,
            prev_preserved,
            ..*self
        }
    }
}

/// Sums of a model's next epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct NextTotals {
    /// Weight.
    pub eligible_weight: u128,
    /// Members with weight.
    pub members: u32,
    /// Of them, those that serve during PoC.
    pub preserved: u32,
}

/// A validator, as the consensus engine has been told; its key is the row's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Validator {
    /// Who is behind the key; nobody for a validator of the engine's genesis that is no participant.
    pub participant: Option<Address>,
    /// Power, at least 1.
    pub power: u64,
}

/// What a participant weighs in the next epoch, and the key it would validate with.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct NextWeight {
    /// The largest of its weights for a model: they are equal, unless a genesis says otherwise.
    pub weight: u64,
    /// Consensus key.
    pub validator_key: Vec<u8>,
}

impl NextWeight {
    /// Only ed25519 keys: an engine set up as usual stops for good at a validator with a key of another type.
    #[must_use]
    pub fn can_validate(&self) -> bool {
        self.validator_key.len() == 32
    }
}

/// Sums over all participants, each counted once. Rolls by reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct PowerTotals {
    /// Epoch that `weight` is for.
    pub epoch: Epoch,
    /// Weight in `epoch`.
    pub weight: u128,
    /// Weight in every later epoch.
    pub next_weight: u128,
}

impl PowerTotals {
    /// The sums seen from `epoch`, which is their own or a later one.
    #[must_use]
    pub fn at(self, epoch: Epoch) -> Self {
        if epoch > self.epoch { Self { epoch, weight: self.next_weight, ..self } } else { self }
    }
}

/// An announced maintenance window: blocks `start .. end_height`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Window {
    /// First block after it.
    pub end_height: Height,
    /// Block of the announcement.
    pub announced_at: Height,
}

/// Why a participant could not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum Cause {
    /// Announced maintenance.
    Maintenance,
    /// It left.
    Left,
    /// The slow breaker.
    Inactive,
    /// It dropped the model.
    ModelDropped,
}

impl Cause {
    /// Byte in keys.
    pub fn byte(self) -> u8 {
        match self {
            Self::Maintenance => 1,
            Self::Left => 2,
            Self::Inactive => 3,
            Self::ModelDropped => 4,
        }
    }

    /// From the byte in keys.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Maintenance, Self::Left, Self::Inactive, Self::ModelDropped]
            .into_iter()
            .find(|c| c.byte() == byte)
    }
}

/// An interval of unavailability; its first height, model and cause are in the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Interval {
    /// Last height, inclusive.
    pub to_height: Height,
    /// Block of the announcement; the first height where nothing was announced.
    pub announced_at: Height,
}
