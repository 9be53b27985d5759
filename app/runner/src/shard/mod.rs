//! A shard in this process: checks, step order, and a model behind them.
//!
//! The lock is held for bookkeeping only. A step takes its KV out and computes without it, so that stop, release, beat
//! and usage never wait for a step, and a step that is torn down takes no rows with it.

mod model;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

pub use self::model::{
    Input, ModelError, ModelFacts, Output, ShardModel, exp_f32, exp_lanes, pick, splitmix64,
};
use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, CHUNK_MAX, KvKey, OpenPlan, Opened, Payload,
    ReleaseAck, ShardInfo, StepOut, StepRef, StepState, StopAck, Usage,
};
use crate::clock::Clock;
use crate::failure::Cause;
use crate::kv::{Begin, HotKvStateManager, KvLimits, StaleCoordinator};

/// What a process that serves a shard needs beyond [`BoundaryAdapter`].
pub trait ShardHost: BoundaryAdapter {
    /// A coordinator says hello: a higher generation releases every key of the lower ones.
    ///
    /// # Errors
    /// [`StaleCoordinator`] for a lower one.
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator>;

    /// Lets keys whose lease is over go. Called on a timer of its own, each second.
    fn reap(&self);

    /// For the worker's beats.
    fn counters(&self) -> ShardCounters;
}

/// What a worker tells in each beat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardCounters {
    /// Steps computed since the start.
    pub steps_done: u64,
    /// Keys with a running step, ascending.
    pub busy: Vec<KvKey>,
    /// KV rows that no key has reserved.
    pub free_rows: u32,
}

/// Where a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// When its future is polled: for models whose step is shorter than a change of threads.
    Inline,
    /// On tokio's threads for blocking work. A dropped future does not stop the step; its result is recorded.
    Threaded,
}

/// Settings of a [`LocalShard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSettings {
    /// Name of the shard.
    pub shard_id: String,
    /// KV rows of all keys together.
    pub capacity: u32,
    /// Most rows of a step; more than [`CHUNK_MAX`] is [`CHUNK_MAX`].
    pub chunk_max: u32,
    /// Where steps compute.
    pub compute: Compute,
    /// Fences kept for sessions without a live key.
    pub fences: usize,
}

impl ShardSettings {
    /// 16 384 rows, chunks of 64, 100 000 fences, inline.
    #[must_use]
    pub fn new(shard_id: impl Into<String>) -> Self {
        Self {
            shard_id: shard_id.into(),
            capacity: 16_384,
            chunk_max: CHUNK_MAX,
            compute: Compute::Inline,
            fences: 100_000,
        }
    }
}

/// A shard that computes in this process.
#[derive(Debug)]
pub struct LocalShard<M: ShardModel> {
    inner: Arc<Inner<M>>,
}

struct Inner<M: ShardModel> {
    info: ShardInfo,
    compute: Compute,
    model: M,
    kv: Mutex<HotKvStateManager<M::Kv>>,
    clock: Arc<dyn Clock>,
    steps_done: AtomicU64,
}

impl<M: ShardModel> std::fmt::Debug for Inner<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("info", &self.info)
            .field("compute", &self.compute)
            .finish_non_exhaustive()
    }
}

impl<M: ShardModel> LocalShard<M> {
    /// A shard of `model`, holding nothing.
    #[must_use]
    pub fn new(model: M, settings: ShardSettings, clock: Arc<dyn Clock>) -> Self {
        let facts = model.facts();
        let info = ShardInfo {
            shard_id: settings.shard_id,
            layers: facts.layers,
            model_layers: facts.model_layers,
            model_digest: facts.model_digest,
            d_model: facts.d_model,
            vocab: facts.vocab,
            max_positions: facts.max_positions,
            capacity: settings.capacity,
            chunk_max: settings.chunk_max.min(CHUNK_MAX),
        };
        let limits = KvLimits {
            capacity: settings.capacity,
            max_positions: facts.max_positions,
            fences: settings.fences,
        };
        let kv = Mutex::new(HotKvStateManager::new(limits));
        let compute = settings.compute;
        Self { inner: Arc::new(Inner { info, compute, model, kv, clock, steps_done: AtomicU64::new(0) }) }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &M {
        &self.inner.model
    }

    fn step(&self, key: KvKey, step: StepRef, bundle: Bundle, rows_max: u32) -> AdapterFuture<'_, StepOut> {
        Box::pin(async move {
            let inner = &self.inner;
            inner.check(&bundle, rows_max)?;
            let begun = inner.lock().begin(
                key,
                step,
                bundle.position,
                bundle.payload.rows(),
                inner.clock.now_ms(),
            )?;
            let (kv, plan) = match begun {
                Begin::Replay(out) => return Ok(out),
                Begin::Run { kv, plan } => (kv, plan),
            };
            let taken = Taken { inner: inner.clone(), key, kv: Some(kv) };
            match inner.compute {
                Compute::Inline => taken.run(&bundle, plan),
                Compute::Threaded => {
                    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
                        return Err(AdapterError::Internal(
                            "threaded compute needs a tokio runtime".to_owned(),
                        ));
                    };
                    runtime.spawn_blocking(move || taken.run(&bundle, plan)).await.unwrap_or_else(|error| {
                        Err(AdapterError::Internal(format!("the step was torn down: {error}")))
                    })
                }
            }
        })
    }
}

impl<M: ShardModel> Inner<M> {
    /// A panic elsewhere leaves the bookkeeping whole: every change is made before or after a call that could panic.
    fn lock(&self) -> MutexGuard<'_, HotKvStateManager<M::Kv>> {
        self.kv.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What can be said of a bundle without its key (runner-details 2, in that order).
    fn check(&self, bundle: &Bundle, rows_max: u32) -> Result<(), AdapterError> {
        let malformed = |what: String| Err(AdapterError::MalformedBundle(what));
        if bundle.digest != Bundle::digest_of(bundle.position, &bundle.payload) {
            return malformed("digest".to_owned());
        }
        let rows = bundle.payload.rows();
        let rows_fit = |what: &str| {
            if (1..=rows_max).contains(&rows) {
                Ok(())
            } else {
                malformed(format!("{rows} {what} where 1 to {rows_max} are taken"))
            }
        };
        match &bundle.payload {
            Payload::Tokens(_) if !self.info.is_first() => {
                malformed("tokens for a shard that takes activations".to_owned())
            }
            Payload::Hidden { .. } if self.info.is_first() => {
                malformed("activations for a shard that takes tokens".to_owned())
            }
            Payload::Tokens(ids) => {
                rows_fit("tokens")?;
                match ids.iter().find(|id| **id >= self.info.vocab) {
                    Some(id) => malformed(format!("token {id} of a vocabulary of {}", self.info.vocab)),
                    None => Ok(()),
                }
            }
            Payload::Hidden { cols, data, .. } => {
                rows_fit("rows")?;
                if *cols != self.info.d_model {
                    return malformed(format!("{cols} columns where {} are taken", self.info.d_model));
                }
                if data.len() as u64 != u64::from(rows) * u64::from(*cols) * 4 {
                    return malformed(format!("{} bytes for {rows} rows of {cols}", data.len()));
                }
                match floats(data).position(|value| !value.is_finite()) {
                    Some(at) => malformed(format!("value {at} is not finite")),
                    None => Ok(()),
                }
            }
        }
    }

    fn compute(&self, kv: &mut M::Kv, bundle: &Bundle, plan: OpenPlan) -> Result<StepOut, ModelError> {
        let values: Vec<f32>;
        let input = match &bundle.payload {
            Payload::Tokens(ids) => Input::Tokens(ids),
            Payload::Hidden { data, .. } => {
                values = floats(data).collect();
                Input::Hidden(&values)
            }
        };
        let wrong = |what: &str| Err(ModelError::Compute(what.to_owned()));
        let rows = bundle.payload.rows();
        let out = self.model.forward(kv, bundle.position, input, plan.sampling)?;
        if Some(self.model.rows(kv)) != bundle.position.checked_add(rows) {
            return wrong("the model holds other rows than it was given");
        }
        match out {
            Output::Token { token, logits } if self.info.is_last() && token < self.info.vocab => {
                Ok(StepOut::Token { token, logits_digest: Sha256::digest(bytes(&logits)).into() })
            }
            Output::Hidden(values) if !self.info.is_last() => {
                let cols = self.info.d_model;
                if values.len() as u64 != u64::from(rows) * u64::from(cols) {
                    return wrong("the model gave other rows than it was given");
                }
                if values.iter().any(|value| !value.is_finite()) {
                    return wrong("an activation is not finite");
                }
                let payload = Payload::Hidden { rows, cols, data: bytes(&values) };
                Ok(StepOut::Hidden(Bundle::new(bundle.position, payload)))
            }
            _ => wrong("the model gave what another part of it gives"),
        }
    }
}

fn floats(data: &[u8]) -> impl Iterator<Item = f32> {
    data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// KV that is out for a step. Dropped before its end, as by a panic or a runtime that shuts down, the key goes.
struct Taken<M: ShardModel> {
    inner: Arc<Inner<M>>,
    key: KvKey,
    kv: Option<M::Kv>,
}

impl<M: ShardModel> Taken<M> {
    fn run(mut self, bundle: &Bundle, plan: OpenPlan) -> Result<StepOut, AdapterError> {
        let inner = self.inner.clone();
        let Some(kv) = self.kv.as_mut() else {
            return Err(AdapterError::Internal("a step without KV".to_owned()));
        };
        let result = inner.compute(kv, bundle, plan);
        if result.is_err() {
            inner.model.truncate(kv, bundle.position);
            if inner.model.rows(kv) != bundle.position {
                return Err(AdapterError::Internal(
                    "the model could not undo a step; its KV is gone".to_owned(),
                ));
            }
        }
        let Some(kv) = self.kv.take() else {
            return Err(AdapterError::Internal("a step without KV".to_owned()));
        };
        let now_ms = inner.clock.now_ms();
        match result {
            Ok(out) => {
                inner.steps_done.fetch_add(1, Ordering::Relaxed);
                inner.lock().finish(self.key, kv, &out, now_ms)?;
                Ok(out)
            }
            Err(error) => {
                inner.lock().fail(self.key, kv, now_ms);
                Err(AdapterError::Internal(error.to_string()))
            }
        }
    }
}

impl<M: ShardModel> Drop for Taken<M> {
    fn drop(&mut self) {
        if self.kv.is_some() {
            self.inner.lock().lose(self.key, self.inner.clock.now_ms());
        }
    }
}

impl<M: ShardModel> BoundaryAdapter for LocalShard<M> {
    fn describe(&self) -> ShardInfo {
        self.inner.info.clone()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        Box::pin(async move {
            let inner = &self.inner;
            let new_kv = || inner.model.new_kv(plan.max_positions);
            inner.lock().open(key, plan, inner.clock.now_ms(), new_kv)
        })
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.step(key, step, bundle, self.inner.info.chunk_max)
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.step(key, step, bundle, 1)
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        Box::pin(async move { self.inner.lock().query(key, step, self.inner.clock.now_ms()) })
    }

    fn stop(&self, key: KvKey, _cause: Cause) -> AdapterFuture<'_, StopAck> {
        Box::pin(async move { Ok(self.inner.lock().stop(key)) })
    }

    fn release(&self, key: KvKey, _cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(async move { Ok(self.inner.lock().release(key, self.inner.clock.now_ms())) })
    }

    fn beat(&self, keys: &[KvKey]) {
        self.inner.lock().renew(keys, self.inner.clock.now_ms());
    }

    fn last_beat_ms(&self) -> Option<u64> {
        Some(self.inner.clock.now_ms())
    }

    fn usage(&self) -> Usage {
        self.inner.lock().usage(self.inner.clock.now_ms())
    }
}

impl<M: ShardModel> ShardHost for LocalShard<M> {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        self.inner.lock().hello(generation, self.inner.clock.now_ms())
    }

    fn reap(&self) {
        self.inner.lock().reap(self.inner.clock.now_ms());
    }

    fn counters(&self) -> ShardCounters {
        let kv = self.inner.lock();
        ShardCounters {
            steps_done: self.inner.steps_done.load(Ordering::Relaxed),
            busy: kv.busy(),
            free_rows: kv.free_rows(),
        }
    }
}
