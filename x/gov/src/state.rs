//! All state of the module.

use holdfast_store::{Item, KeySet, Map, Sequence};
use holdfast_types::{Address, Coin, Height};

use crate::keys;
use crate::params::Params;
use crate::types::{Content, Plan, Proposal, ProposalId, Settlement, TallyProgress, TimeNs, Vote};

/// Parameters.
pub const PARAMS: Item<Params> = Item::new(keys::PARAMS);

/// Id of the next proposal; ids begin at 1.
pub const NEXT_PROPOSAL_ID: Sequence = Sequence::new(keys::NEXT_PROPOSAL_ID);

/// Proposals, without what they say. One that was dropped or cancelled is gone, a decided one stays.
pub const PROPOSALS: Map<ProposalId, Proposal> = Map::new(keys::PROPOSALS);

/// What the proposals say and would do; apart, for only submission, execution and queries need it.
pub const CONTENTS: Map<ProposalId, Content> = Map::new(keys::CONTENTS);

/// When a deposit period ends: (time, proposal).
pub const DEPOSIT_QUEUE: KeySet<(TimeNs, ProposalId)> = KeySet::new(keys::DEPOSIT_QUEUE);

/// When a voting period ends: (time, proposal).
pub const VOTING_QUEUE: KeySet<(TimeNs, ProposalId)> = KeySet::new(keys::VOTING_QUEUE);

/// Deposits held, by (proposal, depositor); coins by ascending denomination.
pub const DEPOSITS: Map<(ProposalId, Address), Vec<Coin>> = Map::new(keys::DEPOSITS);

/// Votes by (proposal, voter). Kept until the proposal is decided, then cleared away.
pub const VOTES: Map<(ProposalId, Address), Vote> = Map::new(keys::VOTES);

/// Sum of all deposits held, by denomination; no zero rows.
pub const HELD: Map<String, u128> = Map::new(keys::HELD);

/// Counts under way. Their proposals take no votes any more.
pub const TALLIES: Map<ProposalId, TallyProgress> = Map::new(keys::TALLIES);

/// Closed proposals whose deposits and votes are not cleared away yet: (attempt, proposal). One with a row that
/// failed goes to the end of the queue with the next attempt.
pub const SETTLEMENTS: Map<(u32, ProposalId), Settlement> = Map::new(keys::SETTLEMENTS);

/// The planned upgrade.
pub const UPGRADE_PLAN: Item<Plan> = Item::new(keys::UPGRADE_PLAN);

/// Heights of the upgrades done, by name.
pub const APPLIED_UPGRADES: Map<String, Height> = Map::new(keys::APPLIED_UPGRADES);

/// Name of the latest of them.
pub const LAST_APPLIED: Item<String> = Item::new(keys::LAST_APPLIED);

/// Consensus version of each module's stored format.
pub const MODULE_VERSIONS: Map<String, u64> = Map::new(keys::MODULE_VERSIONS);
