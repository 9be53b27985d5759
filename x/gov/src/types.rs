//! Stored types. Their borsh bytes are consensus.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::Any;
use holdfast_types::{Address, Coin, Height};

use crate::calc::{Power, Share, Sums};

/// Number of a proposal.
pub type ProposalId = u64;

/// Block time, nanoseconds since the Unix epoch.
pub type TimeNs = u64;

/// Where a proposal stands.
///
/// ```text
///            deposit reached            Yes above the threshold, messages ran
/// DepositPeriod ───────▶ VotingPeriod ──┬──────────▶ Passed
///      │ time is over         ▲         ├──────────▶ Failed    a message failed
///      ▼                      │         └──────────▶ Rejected  anything else
///   (dropped)                 └── expedited and not passed: voted on as a normal one
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum ProposalStatus {
    /// Collects deposits.
    DepositPeriod,
    /// Collects votes.
    VotingPeriod,
    /// Passed; its messages ran.
    Passed,
    /// Voted down.
    Rejected,
    /// Passed; a message failed and nothing of it was kept.
    Failed,
}

impl ProposalStatus {
    /// Takes deposits.
    pub fn is_open(self) -> bool {
        matches!(self, Self::DepositPeriod | Self::VotingPeriod)
    }
}

/// A voting period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Voting {
    /// Begin.
    pub start_ns: TimeNs,
    /// End: votes of a block at or after it come too late.
    pub end_ns: TimeNs,
}

/// Power by option, whole units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Tally {
    /// For it.
    pub yes: u128,
    /// Abstained.
    pub abstain: u128,
    /// Against it.
    pub no: u128,
    /// Against it with veto.
    pub no_with_veto: u128,
}

/// A proposal, without what it says.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Proposal {
    /// Where it stands.
    pub status: ProposalStatus,
    /// Who submitted it.
    pub proposer: Address,
    /// Shorter period, higher threshold.
    pub expedited: bool,
    /// Time of its block.
    pub submit_ns: TimeNs,
    /// End of the deposit period.
    pub deposit_end_ns: TimeNs,
    /// Set when voting begins.
    pub voting: Option<Voting>,
    /// Sum of its deposits by ascending denomination; stays as it was when they have gone back.
    pub total_deposit: Vec<Coin>,
    /// Final count.
    pub tally: Tally,
    /// Which message failed with which code; empty unless failed. Never the text of an error, which is not consensus.
    pub failed_reason: String,
}

/// A packed message.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StoredMessage {
    /// Type.
    pub type_url: String,
    /// Its encoding.
    pub value: Vec<u8>,
}

impl From<Any> for StoredMessage {
    fn from(any: Any) -> Self {
        Self { type_url: any.type_url, value: any.value }
    }
}

impl From<StoredMessage> for Any {
    fn from(message: StoredMessage) -> Self {
        Self { type_url: message.type_url, value: message.value }
    }
}

/// What a proposal says and would do.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Content {
    /// To be run in this order.
    pub messages: Vec<StoredMessage>,
    /// Title.
    pub title: String,
    /// What it is about.
    pub summary: String,
    /// Free text.
    pub metadata: String,
}

/// What a voter can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum VoteOption {
    /// For it.
    Yes,
    /// Counts for the quorum only.
    Abstain,
    /// Against it.
    No,
    /// Against it with veto.
    NoWithVeto,
}

/// Part of a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct WeightedOption {
    /// What it says.
    pub option: VoteOption,
    /// Its share of the voter's power.
    pub weight: Share,
}

/// A vote.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Vote {
    /// Parts, each option at most once, as given; weights add up to 1.
    pub options: Vec<WeightedOption>,
    /// Free text.
    pub metadata: String,
}

/// A count under way.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TallyProgress {
    /// Last voter counted.
    pub last_voter: Option<Address>,
    /// Power of all voters when the count began.
    pub total_power: u128,
    /// Counted so far.
    pub sums: Sums,
}

/// What becomes of the deposits of a closed proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum SettlementKind {
    /// They go back.
    Refund,
    /// They are burned.
    Burn,
    /// A share is taken, the rest goes back.
    Charge {
        /// The share, rounded down for each coin.
        ratio: Share,
        /// Who gets it; nobody = it is burned.
        destination: Option<Address>,
    },
}

/// A closed proposal whose deposits and votes are being cleared away.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Settlement {
    /// What becomes of the deposits.
    pub kind: SettlementKind,
    /// Last depositor dealt with.
    pub last_depositor: Option<Address>,
    /// A row before that failed and was left.
    pub left_over: bool,
}

/// A planned upgrade.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Plan {
    /// Name.
    pub name: String,
    /// First height that the new software executes.
    pub height: Height,
    /// Free text for operators and cosmovisor.
    pub info: String,
}

impl Sums {
    /// Adds the parts of a vote of `power`. `None` when a sum passes 2^128.
    pub fn add_vote(&mut self, power: u128, vote: &Vote) -> Option<()> {
        for part in &vote.options {
            let sum = match part.option {
                VoteOption::Yes => &mut self.yes,
                VoteOption::Abstain => &mut self.abstain,
                VoteOption::No => &mut self.no,
                VoteOption::NoWithVeto => &mut self.no_with_veto,
            };
            *sum = sum.checked_add(Power::portion(power, part.weight)?)?;
        }
        Some(())
    }

    /// Whole units.
    pub fn to_tally(self) -> Tally {
        Tally {
            yes: self.yes.whole,
            abstain: self.abstain.whole,
            no: self.no.whole,
            no_with_veto: self.no_with_veto.whole,
        }
    }
}
