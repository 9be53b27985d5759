//! A shard with faults at chosen steps.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, Counts, KvKey, OpenPlan, Opened, ReleaseAck,
    ShardInfo, StepOut, StepRef, StepState, StopAck, Usage,
};
use crate::backends::reference::ReferenceModel;
use crate::clock::{Clock, VirtualClock};
use crate::failure::Cause;
use crate::shard::LocalShard;

/// What a shard does at one step of one epoch, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Never answers; KV untouched.
    Block,
    /// Answers this much later.
    Late(u64),
    /// The step happens, then the process is gone.
    Die,
    /// The stream breaks before the step.
    ResetBefore,
    /// The stream breaks after the step.
    ResetAfter,
    /// The KV goes before the step.
    Evict,
    Malformed,
    Panic,
    /// Another token than the model's.
    WrongToken,
}

pub(super) struct Faulty {
    pub(super) shard: LocalShard<ReferenceModel>,
    pub(super) clock: VirtualClock,
    pub(super) faults: Mutex<BTreeMap<(u32, u32), Fault>>,
    pub(super) dead: AtomicBool,
    pub(super) step_ms: u64,
    pub(super) open_full: AtomicU32,
    /// Keys that it takes at most.
    pub(super) most_keys: AtomicUsize,
    pub(super) steps: AtomicU32,
    pub(super) counts: Mutex<Option<Counts>>,
}

impl Faulty {
    pub(super) fn fault(&self, epoch: u32, step: u32, fault: Fault) {
        self.faults.lock().unwrap().insert((epoch, step), fault);
    }

    fn alive(&self) -> Result<(), AdapterError> {
        if self.dead.load(Ordering::Relaxed) {
            return Err(AdapterError::WorkerDeath("killed".to_owned()));
        }
        Ok(())
    }

    async fn step(
        &self,
        key: KvKey,
        step: StepRef,
        prefill: bool,
        bundle: Bundle,
    ) -> Result<StepOut, AdapterError> {
        self.alive()?;
        self.steps.fetch_add(1, Ordering::Relaxed);
        let fault = self.faults.lock().unwrap().remove(&(key.epoch, step.step));
        let ms = if let Some(Fault::Late(ms)) = fault { ms } else { self.step_ms };
        let passed = self.clock.sleep_until(self.clock.now_ms() + ms);
        match fault {
            Some(Fault::Block) => std::future::pending().await,
            Some(Fault::Panic) => panic!("a test's panic"),
            Some(Fault::ResetBefore) => {
                passed.await;
                return Err(AdapterError::StreamReset("cut".to_owned()));
            }
            Some(Fault::Malformed) => return Err(AdapterError::MalformedBundle("digest".to_owned())),
            Some(Fault::Evict) => {
                self.shard.release(key, Cause::Node).await?;
            }
            _ => {}
        }
        let out = if prefill {
            self.shard.prefill(key, step, bundle).await
        } else {
            self.shard.decode(key, step, bundle).await
        };
        passed.await;
        self.alive()?;
        match (fault, out?) {
            (Some(Fault::Die), _) => {
                self.dead.store(true, Ordering::Relaxed);
                Err(AdapterError::WorkerDeath("killed".to_owned()))
            }
            (Some(Fault::ResetAfter), _) => Err(AdapterError::StreamReset("cut".to_owned())),
            (Some(Fault::WrongToken), StepOut::Token { token, logits_digest }) => {
                Ok(StepOut::Token { token: token ^ 1, logits_digest })
            }
            (_, out) => Ok(out),
        }
    }
}

impl BoundaryAdapter for Faulty {
    fn describe(&self) -> ShardInfo {
        self.shard.describe()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        Box::pin(async move {
            self.alive()?;
            let full = self.open_full.load(Ordering::Relaxed);
            if full > 0 {
                self.open_full.store(full - 1, Ordering::Relaxed);
                return Err(AdapterError::Full("another coordinator has the rows".to_owned()));
            }
            if self.shard.usage().keys.len() >= self.most_keys.load(Ordering::Relaxed) {
                return Err(AdapterError::Full("as many keys as there may be".to_owned()));
            }
            self.shard.open(key, plan).await
        })
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.step(key, step, true, bundle))
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.step(key, step, false, bundle))
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        Box::pin(async move {
            self.alive()?;
            self.shard.query_step(key, step).await
        })
    }

    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        Box::pin(async move {
            self.alive()?;
            self.shard.stop(key, cause).await
        })
    }

    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(async move {
            self.alive()?;
            self.shard.release(key, cause).await
        })
    }

    fn beat(&self, keys: &[KvKey]) {
        self.shard.beat(keys);
    }

    fn last_beat_ms(&self) -> Option<u64> {
        None
    }

    fn counts(&self, _: KvKey) -> Option<Counts> {
        *self.counts.lock().unwrap()
    }

    fn usage(&self) -> Usage {
        if self.dead.load(Ordering::Relaxed) { Usage::default() } else { self.shard.usage() }
    }
}
