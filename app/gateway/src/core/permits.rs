//! Permits that the sessions of a process share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_types::Address;

/// Votes asked of one participant at a time, over all sessions (escrow-details 7).
const VOTES: usize = 8;

#[derive(Debug)]
struct Pool {
    free: usize,
    next: u64,
    waiting: Vec<u64>,
    /// Votes that are out, by voter.
    votes: BTreeMap<Address, usize>,
}

/// What all sessions of a process share: permits of repairs, first come, first served, and eight votes at a time of each
/// voter.
#[derive(Debug, Clone)]
pub struct PermitPool(Arc<Mutex<Pool>>);

impl PermitPool {
    /// `permits` of repairs; 8 in a gateway.
    pub fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(Pool {
            free: permits,
            next: 0,
            waiting: Vec::new(),
            votes: BTreeMap::new(),
        })))
    }

    /// A place in the queue.
    pub fn ticket(&self) -> Ticket {
        let mut pool = self.lock();
        let number = pool.next;
        pool.next = pool.next.wrapping_add(1);
        pool.waiting.push(number);
        Ticket { pool: self.clone(), number, held: false }
    }

    /// Leave to ask `voter` for a vote, until it is dropped; `None` while it has as many as it may.
    pub fn vote(&self, voter: &Address) -> Option<VotePermit> {
        let mut pool = self.lock();
        let out = pool.votes.entry(*voter).or_default();
        if *out >= VOTES {
            return None;
        }
        *out += 1;
        drop(pool);
        Some(VotePermit { pool: self.clone(), voter: *voter })
    }

    /// Permits that nobody holds.
    pub fn free(&self) -> usize {
        self.lock().free
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue of a [`PermitPool`], later a permit. Dropping it gives either back.
#[derive(Debug)]
pub struct Ticket {
    pool: PermitPool,
    number: u64,
    held: bool,
}

impl Ticket {
    /// Whether the permit is ours now. Asked again at each tick.
    pub fn try_acquire(&mut self) -> bool {
        if !self.held {
            let mut pool = self.pool.lock();
            let place = pool.waiting.iter().position(|n| *n == self.number);
            if place.is_some_and(|place| place < pool.free) {
                pool.waiting.retain(|n| *n != self.number);
                pool.free -= 1;
                self.held = true;
            }
        }
        self.held
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        if self.held {
            pool.free += 1;
        } else {
            pool.waiting.retain(|n| *n != self.number);
        }
    }
}

/// Leave to ask a voter, see [`PermitPool::vote`]. Dropping it gives it back.
#[derive(Debug)]
pub struct VotePermit {
    pool: PermitPool,
    voter: Address,
}

impl Drop for VotePermit {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        if let Some(out) = pool.votes.get_mut(&self.voter) {
            *out = out.saturating_sub(1);
            if *out == 0 {
                pool.votes.remove(&self.voter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_has_eight_votes_at_a_time_over_all_that_share_the_pool() {
        let pool = PermitPool::new(1);
        let other = pool.clone();
        let (voter, second) = (Address([1; 20]), Address([2; 20]));
        let mut held: Vec<VotePermit> = (0..5).map(|_| pool.vote(&voter).unwrap()).collect();
        held.extend((0..3).map(|_| other.vote(&voter).unwrap()));
        assert!(pool.vote(&voter).is_none() && other.vote(&voter).is_none());
        assert!(other.vote(&second).is_some(), "each voter has its own");
        held.pop();
        assert!(pool.vote(&voter).is_some());
        drop(held);
        assert!(pool.lock().votes.is_empty());
    }

    #[test]
    fn permits_go_by_the_order_of_the_queue_and_come_back_when_dropped() {
        let pool = PermitPool::new(1);
        let (mut first, mut second, mut third) = (pool.ticket(), pool.ticket(), pool.ticket());
        assert!(!second.try_acquire());
        assert!(first.try_acquire() && first.try_acquire());
        assert_eq!(pool.free(), 0);
        drop(first);
        assert!(!third.try_acquire());
        drop(second);
        assert!(third.try_acquire());
        drop(third);
        assert_eq!(pool.free(), 1);
    }
}
