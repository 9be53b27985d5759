//! KV by session and epoch: fences, leases, capacity (runner-details 2 and 4).
//!
//! [`HotKvStateManager`] has no clock and does no I/O: time comes in as `now_ms`, KV goes out for the length of a step
//! and comes back with its result. Rows are reserved for the worst case when a key is opened and are free when its
//! entry is gone, never between: rows reserved = the sum over live keys, after every call.
//!
//! ```text
//!            open              begin                finish, fail
//!  (absent) ──────▶ idle ───────────────▶ running ───────────────▶ idle
//!     ▲              │  ▲                  │    │
//!     │   release,   │  └── stop: no new   │    └ lease over, higher epoch or generation: doomed,
//!     │   lease over │      step from here │      still in use
//!     └──────────────┴─────────────────────┴──▶ gone when the step ends
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::adapter::{
    AdapterError, KeyUsage, KvKey, OpenPlan, Opened, ReleaseAck, SessionId, StepOut, StepRef, StepState,
    StopAck, Usage,
};

/// Recorded outputs kept for each key (runner-details 2).
pub const STEPS_KEPT: usize = 4;
/// How long a fence outlives its session's last key, milliseconds (runner-details 4).
pub const FENCE_KEPT_MS: u64 = 600_000;
/// No key outlives this without a renewal, whatever its plan asks for, milliseconds.
pub const LEASE_MAX_MS: u64 = 600_000;

/// Bounds of a [`HotKvStateManager`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Rows of all keys together.
    pub capacity: u32,
    /// Rows of one key.
    pub max_positions: u32,
    /// Fences kept for sessions without a live key; the one released first goes first.
    pub fences: usize,
}

/// A coordinator of a lower generation than one seen before (runner-details 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stale coordinator: generation {have} was here")]
pub struct StaleCoordinator {
    /// Highest generation seen.
    pub have: u64,
}

/// What [`HotKvStateManager::begin`] orders.
#[derive(Debug)]
pub enum Begin<K> {
    /// The step ran before: this is what it gave.
    Replay(StepOut),
    /// Run it with this KV. The caller MUST end it with `finish`, `fail` or `lose`.
    Run {
        /// The key's KV.
        kv: K,
        /// The plan it was opened with.
        plan: OpenPlan,
    },
}

/// KV of this process by (session, epoch). `K` is what a model keeps for one session.
#[derive(Debug)]
pub struct HotKvStateManager<K> {
    limits: KvLimits,
    generation: u64,
    entries: BTreeMap<KvKey, Entry<K>>,
    fences: BTreeMap<SessionId, Fence>,
    /// Sessions without a live key, by the time their last key went.
    idle_fences: BTreeSet<(u64, SessionId)>,
    reserved: u32,
}

#[derive(Debug)]
struct Fence {
    /// Highest epoch seen.
    epoch: u32,
    /// When the last key went; `None` while one is live.
    idle_since_ms: Option<u64>,
    /// The key of `epoch` went because its lease ended.
    expired: bool,
}

#[derive(Debug)]
struct Entry<K> {
    plan: OpenPlan,
    lease_end_ms: u64,
    /// `None` while a step runs.
    kv: Option<K>,
    rows: u32,
    running: Option<Running>,
    /// No new step.
    stopped: bool,
    /// Goes when the running step ends.
    doomed: bool,
    next_step: u32,
    recorded: VecDeque<(StepRef, StepOut)>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    step: StepRef,
    rows: u32,
}

/// Why a key goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    Released,
    Expired,
}

impl<K> HotKvStateManager<K> {
    /// Holds nothing, generation 0.
    #[must_use]
    pub fn new(limits: KvLimits) -> Self {
        Self {
            limits,
            generation: 0,
            entries: BTreeMap::new(),
            fences: BTreeMap::new(),
            idle_fences: BTreeSet::new(),
            reserved: 0,
        }
    }

    /// Highest generation of a coordinator seen.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Rows that no key has reserved.
    #[must_use]
    pub fn free_rows(&self) -> u32 {
        self.limits.capacity - self.reserved
    }

    /// Keys with a running step, ascending.
    #[must_use]
    pub fn busy(&self) -> Vec<KvKey> {
        self.entries.iter().filter(|(_, entry)| entry.running.is_some()).map(|(key, _)| *key).collect()
    }

    /// Sessions with a fence, live or not.
    #[must_use]
    pub fn fenced(&self) -> usize {
        self.fences.len()
    }

    /// What live keys hold. A running step holds one buffer, its input.
    #[must_use]
    pub fn usage(&self, now_ms: u64) -> Usage {
        let keys = self.entries.iter().map(|(key, entry)| KeyUsage {
            key: *key,
            rows: entry.rows,
            reserved: entry.plan.max_positions,
            buffers: u32::from(entry.running.is_some()),
            lease_left_ms: entry.lease_end_ms.saturating_sub(now_ms),
        });
        Usage { keys: keys.collect() }
    }

    /// A coordinator says hello. A higher generation releases every key of the lower ones.
    ///
    /// # Errors
    /// [`StaleCoordinator`] for a lower generation; nothing changes.
    pub fn hello(&mut self, generation: u64, now_ms: u64) -> Result<(), StaleCoordinator> {
        if generation < self.generation {
            return Err(StaleCoordinator { have: self.generation });
        }
        if generation > self.generation {
            self.generation = generation;
            let keys: Vec<KvKey> = self.entries.keys().copied().collect();
            keys.into_iter().for_each(|key| self.evict(key, Gone::Released, now_ms));
        }
        self.check();
        Ok(())
    }

    /// Reserves the plan's rows; `new_kv` makes the KV. A higher epoch releases the lower ones of its session first and
    /// is the new fence, even if it then does not fit. One whose step still runs keeps its rows until that ends.
    ///
    /// # Errors
    /// [`AdapterError::StaleEpoch`]; [`AdapterError::Conflict`] for a live key with another plan or one that is
    /// stopping; [`AdapterError::Full`] if the rows are not free, or a plan of no rows or more than the model has.
    pub fn open(
        &mut self,
        key: KvKey,
        plan: OpenPlan,
        now_ms: u64,
        new_kv: impl FnOnce() -> K,
    ) -> Result<Opened, AdapterError> {
        self.fence(key)?;
        self.reap(now_ms);
        if let Some(entry) = self.entries.get(&key) {
            return if entry.plan != plan {
                Err(AdapterError::Conflict("the key is open with another plan".to_owned()))
            } else if entry.stopped || entry.doomed {
                Err(AdapterError::Conflict("the key is stopping".to_owned()))
            } else {
                Ok(Opened { kv_len: entry.rows })
            };
        }
        for epoch in self.live_epochs(key.session) {
            self.remove(KvKey::new(key.session, epoch), Gone::Released);
        }
        let result = if !(1..=self.limits.max_positions).contains(&plan.max_positions) {
            Err(AdapterError::Full(format!(
                "a plan of {} rows where 1 to {} are possible",
                plan.max_positions, self.limits.max_positions
            )))
        } else if plan.max_positions > self.free_rows() {
            Err(AdapterError::Full(format!(
                "{} rows wanted, {} are free",
                plan.max_positions,
                self.free_rows()
            )))
        } else {
            let kv = Some(new_kv());
            self.reserved += plan.max_positions;
            self.entries.insert(
                key,
                Entry {
                    plan,
                    lease_end_ms: lease_end(now_ms, plan.lease_ms),
                    kv,
                    rows: 0,
                    running: None,
                    stopped: false,
                    doomed: false,
                    next_step: 0,
                    recorded: VecDeque::new(),
                },
            );
            Ok(Opened { kv_len: 0 })
        };
        let fence = self.fences.entry(key.session).or_insert(Fence {
            epoch: key.epoch,
            idle_since_ms: None,
            expired: false,
        });
        fence.epoch = key.epoch;
        fence.expired = false;
        if let Some(since_ms) = fence.idle_since_ms.take() {
            self.idle_fences.remove(&(since_ms, key.session));
        }
        self.settle_fence(key.session, now_ms);
        self.check();
        result
    }

    /// Takes the key's KV out for a step of `rows` rows, or gives what the step gave before. The bundle's own checks come
    /// first and are the caller's; here are epoch, key, lease, step order and last the position.
    ///
    /// # Errors
    /// [`AdapterError::StaleEpoch`], [`AdapterError::CacheMiss`], [`AdapterError::LeaseExpired`],
    /// [`AdapterError::Conflict`] (other fingerprint, too old, in flight or stopped) and
    /// [`AdapterError::MalformedBundle`] (position, or rows beyond the plan). KV is untouched in each.
    pub fn begin(
        &mut self,
        key: KvKey,
        step: StepRef,
        position: u32,
        rows: u32,
        now_ms: u64,
    ) -> Result<Begin<K>, AdapterError> {
        self.fence(key)?;
        self.expire(key, now_ms);
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| !entry.doomed) else {
            return Err(self.miss(key));
        };
        if step.step < entry.next_step {
            return match entry.recorded.iter().find(|(kept, _)| kept.step == step.step) {
                Some((kept, out)) if kept.fingerprint == step.fingerprint => Ok(Begin::Replay(out.clone())),
                Some(_) => Err(AdapterError::Conflict(format!("step {} ran with other input", step.step))),
                None => Err(AdapterError::Conflict(format!("step {} is no longer kept", step.step))),
            };
        }
        if step.step > entry.next_step {
            return Err(AdapterError::CacheMiss(format!(
                "step {} where {} is next",
                step.step, entry.next_step
            )));
        }
        if entry.running.is_some() {
            return Err(AdapterError::Conflict(format!("step {} is in flight", step.step)));
        }
        if entry.stopped {
            return Err(AdapterError::Conflict("the key is stopped".to_owned()));
        }
        if position != entry.rows {
            return Err(AdapterError::MalformedBundle(format!(
                "position {position} where {} rows are",
                entry.rows
            )));
        }
        if entry.rows.checked_add(rows).is_none_or(|end| end > entry.plan.max_positions) {
            return Err(AdapterError::MalformedBundle(format!(
                "{rows} rows at {position} of a plan of {}",
                entry.plan.max_positions
            )));
        }
        let Some(kv) = entry.kv.take() else {
            return Err(AdapterError::Internal("a key without KV".to_owned()));
        };
        entry.running = Some(Running { step, rows });
        let plan = entry.plan;
        self.check();
        Ok(Begin::Run { kv, plan })
    }

    /// A step gave `out`: its rows count and its output is recorded.
    ///
    /// # Errors
    /// What a call with the key gives now, if the key went while the step ran; its KV is dropped.
    pub fn finish(&mut self, key: KvKey, kv: K, out: &StepOut, now_ms: u64) -> Result<(), AdapterError> {
        self.end(key, Some(kv), Some(out), now_ms)
    }

    /// A step gave nothing and `kv` is as before it; the same step may come again.
    pub fn fail(&mut self, key: KvKey, kv: K, now_ms: u64) {
        // Whether the key went meanwhile does not change the step's own error.
        let _ = self.end(key, Some(kv), None, now_ms);
    }

    /// A step was torn down together with its KV: the key goes.
    pub fn lose(&mut self, key: KvKey, now_ms: u64) {
        let _ = self.end(key, None, None, now_ms);
    }

    fn end(
        &mut self,
        key: KvKey,
        kv: Option<K>,
        out: Option<&StepOut>,
        now_ms: u64,
    ) -> Result<(), AdapterError> {
        let Some(entry) = self.entries.get_mut(&key) else {
            return Err(self.miss(key));
        };
        let Some(running) = entry.running.take() else {
            return Err(AdapterError::Internal("no step runs for the key".to_owned()));
        };
        if entry.doomed || kv.is_none() {
            let gone =
                if kv.is_some() && entry.lease_end_ms <= now_ms { Gone::Expired } else { Gone::Released };
            self.evict(key, gone, now_ms);
            self.check();
            self.fence(key)?;
            return Err(self.miss(key));
        }
        entry.kv = kv;
        if let Some(out) = out {
            entry.rows += running.rows;
            entry.next_step = entry.next_step.saturating_add(1);
            if entry.recorded.len() == STEPS_KEPT {
                entry.recorded.pop_front();
            }
            entry.recorded.push_back((running.step, out.clone()));
        }
        self.check();
        Ok(())
    }

    /// What is known of a step.
    ///
    /// # Errors
    /// [`AdapterError::StaleEpoch`].
    pub fn query(&mut self, key: KvKey, step: u32, now_ms: u64) -> Result<StepState, AdapterError> {
        self.fence(key)?;
        self.expire(key, now_ms);
        let Some(entry) = self.entries.get(&key).filter(|entry| !entry.doomed) else {
            return Ok(StepState::Unknown);
        };
        let recorded = entry.recorded.iter().find(|(kept, _)| kept.step == step);
        Ok(match recorded {
            Some((kept, out)) => StepState::Done { fingerprint: kept.fingerprint, out: out.clone() },
            None if step < entry.next_step || entry.running.is_some() => StepState::Unknown,
            None => StepState::NotSeen { kv_len: entry.rows },
        })
    }

    /// No new step for the key from here on. Legal in every state, also for keys never seen.
    pub fn stop(&mut self, key: KvKey) -> StopAck {
        let Some(entry) = self.entries.get_mut(&key) else {
            return StopAck::Quiescent;
        };
        entry.stopped = true;
        entry.running.map_or(StopAck::Quiescent, |running| StopAck::InFlight { step: running.step.step })
    }

    /// Frees the key's rows, unless a step runs: that is [`ReleaseAck::Busy`], and the key is stopped. Legal in every
    /// state, also for keys never seen or fenced.
    pub fn release(&mut self, key: KvKey, now_ms: u64) -> ReleaseAck {
        let Some(entry) = self.entries.get_mut(&key) else {
            return ReleaseAck::WasAbsent;
        };
        if let Some(running) = entry.running {
            entry.stopped = true;
            return ReleaseAck::Busy { step: running.step.step };
        }
        let rows = entry.rows;
        self.evict(key, Gone::Released, now_ms);
        self.check();
        ReleaseAck::Released { rows, buffers: 0 }
    }

    /// Renews the leases of the live keys among `keys`. What has expired by now goes first: a renewal that comes too
    /// late, as in a process that was stopped, brings nothing back.
    pub fn renew(&mut self, keys: &[KvKey], now_ms: u64) {
        self.reap(now_ms);
        for key in keys {
            if let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.doomed) {
                entry.lease_end_ms = lease_end(now_ms, entry.plan.lease_ms);
            }
        }
    }

    /// Lets keys whose lease is over go, and fences that have been kept long enough. Never waits for an admission.
    pub fn reap(&mut self, now_ms: u64) {
        let over = self.entries.iter().filter(|(_, entry)| entry.lease_end_ms <= now_ms);
        let over: Vec<KvKey> = over.map(|(key, _)| *key).collect();
        over.into_iter().for_each(|key| self.evict(key, Gone::Expired, now_ms));
        while let Some((since_ms, session)) = self.idle_fences.first().copied() {
            if now_ms.saturating_sub(since_ms) < FENCE_KEPT_MS {
                break;
            }
            self.idle_fences.pop_first();
            self.fences.remove(&session);
        }
        self.check();
    }

    fn fence(&self, key: KvKey) -> Result<(), AdapterError> {
        match self.fences.get(&key.session) {
            Some(fence) if key.epoch < fence.epoch => Err(AdapterError::StaleEpoch { have: fence.epoch }),
            _ => Ok(()),
        }
    }

    /// What a call with a key that is not live gets.
    fn miss(&self, key: KvKey) -> AdapterError {
        match self.fences.get(&key.session) {
            Some(fence) if fence.epoch == key.epoch && fence.expired => AdapterError::LeaseExpired,
            _ => AdapterError::CacheMiss("the key is not open".to_owned()),
        }
    }

    fn live_epochs(&self, session: SessionId) -> Vec<u32> {
        let range = KvKey::new(session, 0)..=KvKey::new(session, u32::MAX);
        self.entries.range(range).map(|(key, _)| key.epoch).collect()
    }

    fn expire(&mut self, key: KvKey, now_ms: u64) {
        if self.entries.get(&key).is_some_and(|entry| entry.lease_end_ms <= now_ms) {
            self.evict(key, Gone::Expired, now_ms);
        }
    }

    fn evict(&mut self, key: KvKey, gone: Gone, now_ms: u64) {
        self.remove(key, gone);
        self.settle_fence(key.session, now_ms);
    }

    /// The one way out of `entries`: at once, or, while a step runs, at its end.
    fn remove(&mut self, key: KvKey, gone: Gone) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.doomed = true;
        let busy = entry.running.is_some();
        if let Some(fence) = self.fences.get_mut(&key.session)
            && fence.epoch == key.epoch
        {
            fence.expired |= gone == Gone::Expired;
        }
        if !busy && let Some(entry) = self.entries.remove(&key) {
            self.reserved -= entry.plan.max_positions;
        }
    }

    /// Starts the fence's last ten minutes when no key of its session is live, and holds the bound on such fences.
    fn settle_fence(&mut self, session: SessionId, now_ms: u64) {
        if self.live_epochs(session).is_empty()
            && let Some(fence) = self.fences.get_mut(&session)
            && fence.idle_since_ms.is_none()
        {
            fence.idle_since_ms = Some(now_ms);
            self.idle_fences.insert((now_ms, session));
        }
        while self.idle_fences.len() > self.limits.fences
            && let Some((_, oldest)) = self.idle_fences.pop_first()
        {
            self.fences.remove(&oldest);
        }
    }

    /// Nothing is held that no live key owns, and nothing a live key owns is missing.
    fn check(&self) {
        debug_assert_eq!(
            u64::from(self.reserved),
            self.entries.values().map(|entry| u64::from(entry.plan.max_positions)).sum::<u64>(),
            "rows reserved are those of live keys"
        );
        debug_assert!(self.reserved <= self.limits.capacity);
        debug_assert!(self.entries.iter().all(|(key, entry)| {
            entry.kv.is_none() == entry.running.is_some()
                && entry.rows <= entry.plan.max_positions
                && (!entry.doomed || entry.running.is_some())
                && self.fences.get(&key.session).is_some_and(|fence| fence.idle_since_ms.is_none())
        }));
        debug_assert!(self.idle_fences.len() <= self.limits.fences);
    }
}

fn lease_end(now_ms: u64, lease_ms: u64) -> u64 {
    now_ms.saturating_add(lease_ms.min(LEASE_MAX_MS))
}
