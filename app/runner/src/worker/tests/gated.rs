//! The shard of these tests: no step runs before its gate is open.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;

use crate::adapter::{
    AdapterFuture, BoundaryAdapter, Bundle, KvKey, OpenPlan, Opened, ReleaseAck, ShardInfo, StepOut, StepRef,
    StepState, StopAck, Usage,
};
use crate::backends::reference::ReferenceModel;
use crate::failure::Cause;
use crate::kv::StaleCoordinator;
use crate::shard::{LocalShard, ShardCounters, ShardHost};

/// The reference shard with a gate before each step, and a panic on request.
pub(super) struct Gated {
    pub(super) inner: LocalShard<ReferenceModel>,
    pub(super) gate: Semaphore,
    pub(super) panics: AtomicBool,
}

impl Gated {
    pub(super) fn open_gate(&self) {
        self.gate.add_permits(1_000_000);
    }

    async fn pass(&self) {
        self.gate.acquire().await.unwrap().forget();
        assert!(!self.panics.swap(false, Ordering::Relaxed), "asked to");
    }
}

impl BoundaryAdapter for Gated {
    fn describe(&self) -> ShardInfo {
        self.inner.describe()
    }
    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        self.inner.open(key, plan)
    }
    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(async move {
            self.pass().await;
            self.inner.prefill(key, step, bundle).await
        })
    }
    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(async move {
            self.pass().await;
            self.inner.decode(key, step, bundle).await
        })
    }
    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        self.inner.query_step(key, step)
    }
    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        self.inner.stop(key, cause)
    }
    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        self.inner.release(key, cause)
    }
    fn beat(&self, keys: &[KvKey]) {
        self.inner.beat(keys);
    }
    fn last_beat_ms(&self) -> Option<u64> {
        self.inner.last_beat_ms()
    }
    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

impl ShardHost for Gated {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        self.inner.hello(generation)
    }
    fn reap(&self) {
        self.inner.reap();
    }
    fn counters(&self) -> ShardCounters {
        self.inner.counters()
    }
}
