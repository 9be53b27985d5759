//! Arithmetic of a creation (escrow-details 2, 4).

use holdfast_types::Height;

use crate::session::settle::Payout;
use crate::session::{Hash, digest, max_slots_per_owner};
use crate::types::HostTally;

/// What decides the draw of a group: the chain, the escrow, and a hash that nobody knew before the block.
pub(crate) fn group_seed(chain_id: &str, escrow_id: u64, previous_app_hash: &Hash) -> Hash {
    digest::group(chain_id, escrow_id, previous_app_hash)
}

/// Most slots of one owner in a group of `slots`: what leaves a quorum without it, and no more than
/// `max_slots_per_owner` unless that is 0.
pub(crate) fn slot_cap(slots: u8, params_cap: u32) -> u8 {
    let by_quorum = u8::try_from(max_slots_per_owner(u64::from(slots))).unwrap_or(slots);
    match params_cap {
        0 => by_quorum,
        cap => u8::try_from(cap).unwrap_or(u8::MAX).min(by_quorum),
    }
}

/// `lifetime` blocks from `height`, but at most the last block of the next epoch. `this_end` is the first height after the
/// present epoch.
pub(crate) fn expires_at(height: Height, lifetime: i64, this_end: Height, next_length: i64) -> Height {
    let last = this_end.saturating_add(next_length).saturating_sub(1);
    height.saturating_add(lifetime).min(last)
}

/// One row for each owner, ascending.
pub(crate) fn tallies(payout: &Payout) -> Vec<HostTally> {
    let cost = |owner| payout.earned.get(owner).copied().unwrap_or(0);
    payout.outcomes.iter().map(|(owner, row)| HostTally::new(*owner, row, cost(owner))).collect()
}

/// Sum of what the hosts earned; `None` past 2^128 − 1.
pub(crate) fn cost_of(hosts: &[HostTally]) -> Option<u128> {
    hosts.iter().try_fold(0_u128, |sum, host| sum.checked_add(host.cost))
}
