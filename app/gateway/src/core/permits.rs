//! Permits that the sessions of a process share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Pool {
    free: usize,
    next: u64,
    waiting: Vec<u64>,
}

/// Permits that all sessions of a process share: first come, first served.
#[derive(Debug, Clone)]
pub struct PermitPool(Arc<Mutex<Pool>>);

impl PermitPool {
    /// `permits` of them; 8 in a gateway.
    pub fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(Pool { free: permits, next: 0, waiting: Vec::new() })))
    }

    /// A place in the queue.
    pub fn ticket(&self) -> Ticket {
        let mut pool = self.lock();
        let number = pool.next;
        pool.next = pool.next.wrapping_add(1);
        pool.waiting.push(number);
        Ticket { pool: self.clone(), number, held: false }
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

#[cfg(test)]
mod tests {
    use super::*;

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
