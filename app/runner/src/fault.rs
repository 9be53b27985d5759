//! Faults on purpose: a shard that dies, stalls, resets or lies at a given step.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, Counts, KvKey, OpenPlan, Opened, Payload,
    ReleaseAck, ShardInfo, StepOut, StepRef, StepState, StopAck, Usage,
};
use crate::clock::Clock;
use crate::failure::Cause;
use crate::kv::StaleCoordinator;
use crate::restart::ShardPool;
use crate::shard::{ShardCounters, ShardHost};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The step runs, then the worker dies before it answers. It comes back with another id and empty.
    Die,
    /// The worker dies before the step runs.
    DieBefore,
    /// The step does not run and is not answered until its key is stopped; then it is a reset.
    Stall,
    /// The step runs and is not answered until its key is stopped.
    StallAfter,
    /// The step does not run, and its stream breaks.
    Reset,
    /// The step runs, and its stream breaks.
    ResetAfter,
    /// The bundle is damaged on its way to the shard.
    Malformed,
    /// The key's KV is gone before the step.
    Evict,
    /// The answer is changed on its way back.
    Lie,
}

impl FaultKind {
    /// All kinds with their names.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Die, "die"),
        (Self::DieBefore, "die-before"),
        (Self::Stall, "stall"),
        (Self::StallAfter, "stall-after"),
        (Self::Reset, "reset"),
        (Self::ResetAfter, "reset-after"),
        (Self::Malformed, "malformed"),
        (Self::Evict, "evict"),
        (Self::Lie, "lie"),
    ];
}

/// One fault, once: in words `KIND@STEP` for epoch 0 or `KIND@STEP/EPOCH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// At which step.
    pub step: u32,
    /// Of which epoch.
    pub epoch: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FaultKind::ALL.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name);
        write!(f, "{name}@{}/{}", self.step, self.epoch)
    }
}

/// A text that is no [`Fault`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "fault {text:?}: write KIND@STEP or KIND@STEP/EPOCH, KIND one of die, die-before, stall, stall-after, reset, reset-after, malformed, evict, lie"
)]
pub struct FaultError {
    text: String,
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let parse = || {
            let (name, at) = text.split_once('@')?;
            let (step, epoch) = at.split_once('/').unwrap_or((at, "0"));
            let (kind, _) = FaultKind::ALL.iter().find(|(_, known)| *known == name)?;
            Some(Self { kind: *kind, step: step.parse().ok()?, epoch: epoch.parse().ok()? })
        };
        parse().ok_or_else(|| FaultError { text: text.chars().take(64).collect() })
    }
}

/// A shard behind which faults happen, each once. Its steps take a set time on the clock.
pub struct FaultyAdapter {
    inner: Arc<dyn BoundaryAdapter>,
    clock: Arc<dyn Clock>,
    /// What a step takes before it runs.
    call_ms: u64,
    faults: Mutex<Vec<Fault>>,
    /// How often the process was started again: part of its id.
    boots: u32,
    dead: AtomicBool,
    stalled: AtomicBool,
    /// Steps that are held back, by key; a stop lets them go.
    held_back: Mutex<BTreeMap<KvKey, oneshot::Sender<()>>>,
}

impl FaultyAdapter {
    /// `inner`, each of whose steps takes `call_ms` on `clock`, with `faults` to come.
    pub fn new(
        inner: Arc<dyn BoundaryAdapter>,
        clock: Arc<dyn Clock>,
        call_ms: u64,
        faults: impl IntoIterator<Item = Fault>,
    ) -> Self {
        Self {
            inner,
            clock,
            call_ms,
            faults: Mutex::new(faults.into_iter().collect()),
            boots: 0,
            dead: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            held_back: Mutex::default(),
        }
    }

    /// The process, started again: another one, with the faults that are still to come.
    fn reborn(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            clock: self.clock.clone(),
            call_ms: self.call_ms,
            faults: Mutex::new(self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            boots: self.boots.saturating_add(1),
            dead: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            held_back: Mutex::default(),
        }
    }

    /// Whether a step is held back or was, so that a test may act on its process.
    #[must_use]
    pub fn stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Takes the fault of this step out of the plan.
    fn fault(&self, key: KvKey, step: u32) -> Option<FaultKind> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let at = faults.iter().position(|fault| fault.step == step && fault.epoch == key.epoch)?;
        Some(faults.remove(at).kind)
    }

    /// Holds a step back until its key is stopped, as a backend that hangs does: the step of a key that nobody wants
    /// comes to its end some day.
    async fn hold_back(&self, key: KvKey) {
        let (go, gone) = oneshot::channel();
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner).insert(key, go);
        self.stalled.store(true, Ordering::Release);
        // Dropped is as good as sent.
        let _ = gone.await;
    }

    fn let_go(&self, key: KvKey) {
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    fn alive(&self) -> Result<(), AdapterError> {
        if self.dead.load(Ordering::Acquire) { Err(death()) } else { Ok(()) }
    }

    /// Everything in the process is gone with it.
    async fn die(&self) {
        self.dead.store(true, Ordering::Release);
        for used in self.inner.usage().keys {
            // Its steps end with it; this one has none left.
            let _ = self.inner.stop(used.key, Cause::Peer).await;
            let _ = self.inner.release(used.key, Cause::Peer).await;
        }
    }

    async fn run(
        &self,
        key: KvKey,
        step: StepRef,
        bundle: Bundle,
        prefill: bool,
    ) -> Result<StepOut, AdapterError> {
        let inner = |bundle| {
            if prefill { self.inner.prefill(key, step, bundle) } else { self.inner.decode(key, step, bundle) }
        };
        self.alive()?;
        let fault = self.fault(key, step.step);
        if matches!(fault, Some(FaultKind::Stall)) {
            self.hold_back(key).await;
            return Err(reset());
        }
        if self.call_ms > 0 {
            self.clock.sleep_until(self.clock.now_ms().saturating_add(self.call_ms)).await;
        }
        match fault {
            None | Some(FaultKind::Stall) => inner(bundle).await,
            Some(FaultKind::Die) => {
                // What it computed dies with it.
                let _ = inner(bundle).await;
                self.die().await;
                Err(death())
            }
            Some(FaultKind::DieBefore) => {
                self.die().await;
                Err(death())
            }
            Some(FaultKind::StallAfter) => {
                let result = inner(bundle).await;
                self.hold_back(key).await;
                result
            }
            Some(FaultKind::Reset) => Err(reset()),
            Some(FaultKind::ResetAfter) => {
                let _ = inner(bundle).await;
                Err(reset())
            }
            Some(FaultKind::Malformed) => {
                let mut bundle = bundle;
                bundle.digest[0] ^= 1;
                inner(bundle).await
            }
            Some(FaultKind::Evict) => {
                self.inner.release(key, Cause::Node).await?;
                inner(bundle).await
            }
            Some(FaultKind::Lie) => Ok(lie(inner(bundle).await?)),
        }
    }
}

fn death() -> AdapterError {
    AdapterError::WorkerDeath("the process is gone".into())
}

fn reset() -> AdapterError {
    AdapterError::StreamReset("the stream broke".into())
}

/// Another answer that looks right.
fn lie(out: StepOut) -> StepOut {
    match out {
        StepOut::Token { token, logits_digest } => StepOut::Token { token: token ^ 1, logits_digest },
        StepOut::Hidden(Bundle { position, payload: Payload::Hidden { rows, cols, mut data }, .. }) => {
            // The sign of the last row's last value: still finite.
            if let Some(last) = data.last_mut() {
                *last ^= 0x80;
            }
            StepOut::Hidden(Bundle::new(position, Payload::Hidden { rows, cols, data }))
        }
        StepOut::Hidden(bundle) => StepOut::Hidden(bundle),
    }
}

impl BoundaryAdapter for FaultyAdapter {
    fn describe(&self) -> ShardInfo {
        let mut info = self.inner.describe();
        if self.boots > 0 {
            info.shard_id = format!("{}#{}", info.shard_id, self.boots);
        }
        info
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        Box::pin(async move {
            self.alive()?;
            self.inner.open(key, plan).await
        })
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.run(key, step, bundle, true))
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.run(key, step, bundle, false))
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        Box::pin(async move {
            self.alive()?;
            self.inner.query_step(key, step).await
        })
    }

    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        Box::pin(async move {
            self.alive()?;
            self.let_go(key);
            self.inner.stop(key, cause).await
        })
    }

    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(async move {
            self.alive()?;
            self.inner.release(key, cause).await
        })
    }

    fn beat(&self, keys: &[KvKey]) {
        self.inner.beat(keys);
    }

    /// Its results are its only sign of life, so that a stall is one.
    fn last_beat_ms(&self) -> Option<u64> {
        None
    }

    fn counts(&self, key: KvKey) -> Option<Counts> {
        self.inner.counts(key)
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

/// A shard behind which faults happen, in a worker process of its own.
pub struct FaultyHost {
    host: Arc<dyn ShardHost>,
    faulty: FaultyAdapter,
}

impl FaultyHost {
    /// `host`, with `faults` to come.
    pub fn new(
        host: Arc<dyn ShardHost>,
        clock: Arc<dyn Clock>,
        faults: impl IntoIterator<Item = Fault>,
    ) -> Self {
        Self { faulty: FaultyAdapter::new(host.clone(), clock, 0, faults), host }
    }

    /// See [`FaultyAdapter::stalled`].
    #[must_use]
    pub fn stalled(&self) -> bool {
        self.faulty.stalled()
    }
}

impl BoundaryAdapter for FaultyHost {
    fn describe(&self) -> ShardInfo {
        self.faulty.describe()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        self.faulty.open(key, plan)
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.faulty.prefill(key, step, bundle)
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.faulty.decode(key, step, bundle)
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        self.faulty.query_step(key, step)
    }

    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        self.faulty.stop(key, cause)
    }

    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        self.faulty.release(key, cause)
    }

    fn beat(&self, keys: &[KvKey]) {
        self.faulty.beat(keys);
    }

    fn last_beat_ms(&self) -> Option<u64> {
        self.host.last_beat_ms()
    }

    fn counts(&self, key: KvKey) -> Option<Counts> {
        self.faulty.counts(key)
    }

    fn usage(&self) -> Usage {
        self.faulty.usage()
    }
}

impl ShardHost for FaultyHost {
    fn hello(&self, generation: u64) -> Result<(), StaleCoordinator> {
        self.host.hello(generation)
    }

    fn reap(&self) {
        self.host.reap();
    }

    fn counters(&self) -> ShardCounters {
        self.host.counters()
    }
}

/// Shards of which one is faulty; it is started again whenever it died.
pub struct FaultyPool {
    others: Vec<Arc<dyn BoundaryAdapter>>,
    faulty: Mutex<Arc<FaultyAdapter>>,
}

impl FaultyPool {
    /// `faulty` among `others`.
    pub fn new(others: Vec<Arc<dyn BoundaryAdapter>>, faulty: FaultyAdapter) -> Self {
        Self { others, faulty: Mutex::new(Arc::new(faulty)) }
    }
}

impl ShardPool for FaultyPool {
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        let mut faulty = self.faulty.lock().unwrap_or_else(PoisonError::into_inner);
        if faulty.dead.load(Ordering::Acquire) {
            *faulty = Arc::new(faulty.reborn());
        }
        let mut live = self.others.clone();
        live.push(faulty.clone());
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        for (kind, name) in FaultKind::ALL {
            let fault = Fault { kind, step: 3, epoch: 1 };
            assert_eq!(format!("{name}@3/1").parse(), Ok(fault));
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        assert_eq!("die@4".parse(), Ok(Fault { kind: FaultKind::Die, step: 4, epoch: 0 }));
        for text in ["", "die", "die@", "die@x", "dye@1", "die@1/", "die@-1", "die@4294967296"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
