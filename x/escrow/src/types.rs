//! Stored types. Their borsh bytes are consensus.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::traits::Stamp;
use holdfast_types::{Address, Epoch, Height};

use crate::session::FrozenConfig;
use crate::session::settle::Outcomes;

/// Number of an escrow.
pub type EscrowId = u64;

/// Where an escrow stands on the chain; numbers as in `EscrowStatus`.
///
/// ```text
///          settle                              expires_at reached, dispute
///  Open ───────────▶ Settled ◀──────────┐   ┌───────────────── Open
///    │               settle, or the     │   ▼
///    │               window is over     └─ Disputed ◀─┐
///    │ nobody came by the end of the window   └───────┘ a higher nonce
///    └──────────────▶ Expired
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Status {
    /// Its session runs; coins are held.
    Open = 1,
    /// Its gateway is gone; the highest state brought so far is paid when the window is over.
    Disputed = 2,
    /// Paid.
    Settled = 3,
    /// Paid back without the creation fee.
    Expired = 4,
}

impl Status {
    /// The module account holds its coins.
    pub fn holds_coins(self) -> bool {
        matches!(self, Self::Open | Self::Disputed)
    }

    /// Name in error texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Disputed => "disputed",
            Self::Settled => "settled",
            Self::Expired => "expired",
        }
    }

    /// The number on the wire.
    pub fn to_pb(self) -> pb::EscrowStatus {
        match self {
            Self::Open => pb::EscrowStatus::Open,
            Self::Disputed => pb::EscrowStatus::Disputed,
            Self::Settled => pb::EscrowStatus::Settled,
            Self::Expired => pb::EscrowStatus::Expired,
        }
    }

    /// From the number on the wire; 0 and unknown ones are `None`.
    pub fn from_pb(number: i32) -> Option<Self> {
        match pb::EscrowStatus::try_from(number).ok()? {
            pb::EscrowStatus::Unspecified => None,
            pb::EscrowStatus::Open => Some(Self::Open),
            pb::EscrowStatus::Disputed => Some(Self::Disputed),
            pb::EscrowStatus::Settled => Some(Self::Settled),
            pb::EscrowStatus::Expired => Some(Self::Expired),
        }
    }
}

/// What one owner did and earned through all of its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct HostTally {
    /// The owner.
    pub owner: Address,
    /// Inferences given to it.
    pub started: u64,
    /// Answered.
    pub completed: u64,
    /// Missed.
    pub missed: u64,
    /// Failed by its own report.
    pub errored: u64,
    /// Cancelled by the gateway.
    pub released: u64,
    /// Still open when the session was frozen.
    pub drained: u64,
    /// Earned, base units.
    pub cost: u128,
}

impl HostTally {
    /// The row of `owner`.
    pub(crate) fn new(owner: Address, outcomes: &Outcomes, cost: u128) -> Self {
        let Outcomes { started, completed, missed, errored, released, drained } = *outcomes;
        Self { owner, started, completed, missed, errored, released, drained, cost }
    }
}

/// The highest state that was brought after the expiry.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Dispute {
    /// Nonce of the state.
    pub nonce: u64,
    /// Who brought it.
    pub sender: Address,
    /// Fees of the state, base units.
    pub fees: u128,
    /// One for each owner, ascending.
    pub hosts: Vec<HostTally>,
    /// Height of the first dispute.
    pub opened_at: Height,
    /// Height at whose end it is paid.
    pub closes_at: Height,
}

/// How an escrow ended.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Outcome {
    /// Nonce of the state that was paid; 0 for an expiry.
    pub nonce: u64,
    /// To hosts, base units.
    pub paid: u128,
    /// To the fee collector, base units.
    pub fees: u128,
    /// To the creator, base units.
    pub refunded: u128,
    /// One for each owner, ascending; none for an expiry.
    pub hosts: Vec<HostTally>,
    /// Height of the payment.
    pub end_height: Height,
}

/// An escrow.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Escrow {
    /// Where it stands.
    pub status: Status,
    /// What its session runs by.
    pub config: FrozenConfig,
    /// Denomination of all its amounts.
    pub denom: String,
    /// Where hosts reach the gateway; empty when nowhere.
    pub gateway_url: String,
    /// Epoch of the creation.
    pub epoch: Epoch,
    /// Height of the creation.
    pub created_at: Height,
    /// Height from which a dispute is taken.
    pub expires_at: Height,
    /// Blocks of the window for a first dispute, and of that for a higher one.
    pub dispute_window: i64,
    /// Breaker state of each owner at the creation, by ascending address.
    pub stamps: Vec<(Address, Stamp)>,
    /// Set while disputed.
    pub dispute: Option<Dispute>,
    /// Set when ended.
    pub outcome: Option<Outcome>,
}

impl Escrow {
    /// Height at whose end it is paid without a message; `None` when it has ended.
    pub fn due_at(&self) -> Option<Height> {
        match (self.status, &self.dispute) {
            (Status::Open, _) => Some(self.expires_at.saturating_add(self.dispute_window)),
            (Status::Disputed, Some(dispute)) => Some(dispute.closes_at),
            _ => None,
        }
    }

    /// Whether `address` may bring a state: the creator, or the owner of a slot.
    pub fn is_party(&self, address: &Address) -> bool {
        self.config.creator == *address || self.config.slots.contains(address)
    }
}
