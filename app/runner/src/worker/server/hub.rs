//! What all streams of a worker share: whom it obeys, which stream speaks for which key, which steps run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdfast_proto::holdfast::runner::v1 as pb;
use tokio::sync::{Semaphore, oneshot, watch};

use super::WorkerLimits;
use crate::adapter::{AdapterError, Digest, KvKey};
use crate::shard::ShardHost;
use crate::worker::BootId;

/// One connection of a coordinator.
#[derive(Debug, Default)]
pub(super) struct Connection {
    state: Mutex<ConnectionState>,
}

#[derive(Debug)]
struct ConnectionState {
    /// Of the Hello that was accepted on it.
    generation: Option<u64>,
    streams: usize,
    since: Instant,
}

impl Default for ConnectionState {
    fn default() -> Self {
        Self { generation: None, streams: 0, since: Instant::now() }
    }
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long no stream has been open on it.
    pub(super) fn idle_for(&self) -> Duration {
        let state = self.lock();
        if state.streams == 0 { state.since.elapsed() } else { Duration::ZERO }
    }

    /// Counts a stream until what is given back is dropped.
    pub(super) fn enter(self: Arc<Self>) -> OnConnection {
        self.lock().streams += 1;
        OnConnection(self)
    }
}

/// A stream's place on its connection.
#[derive(Debug)]
pub(super) struct OnConnection(Arc<Connection>);

impl OnConnection {
    pub(super) fn generation(&self) -> Option<u64> {
        self.0.lock().generation
    }
}

impl Drop for OnConnection {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.streams -= 1;
        state.since = Instant::now();
    }
}

/// Why a stream is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A newer stream took its place.
    Replaced,
    /// A coordinator of this higher generation came.
    Fenced(u64),
    /// The key holds nothing any more.
    Gone,
    /// The process ends.
    Stopping,
}

/// A coordinator that is not obeyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) reason: pb::Refusal,
    pub(super) detail: String,
    pub(super) generation: u64,
}

impl Refused {
    pub(super) fn new(reason: pb::Refusal, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), generation: 0 }
    }
}

/// Shared by all streams.
pub(super) struct Hub {
    pub(super) host: Arc<dyn ShardHost>,
    pub(super) backend: String,
    pub(super) boot_id: BootId,
    pub(super) limits: WorkerLimits,
    /// Run streams.
    pub(super) runs: Arc<Semaphore>,
    /// Counts ended steps, to wake who beats.
    steps: watch::Sender<u64>,
    /// No new key and no new step.
    stopping: watch::Sender<bool>,
    /// Connections close.
    end: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    generation: Option<u64>,
    next_id: u64,
    /// The control stream that is listened to.
    control: Option<(u64, oneshot::Sender<End>)>,
    runs: BTreeMap<KvKey, Run>,
    /// Steps that run, by key; a stream that breaks leaves its step here until it ends.
    in_flight: BTreeMap<KvKey, u32>,
}

struct Run {
    id: u64,
    end: oneshot::Sender<End>,
    opened: bool,
}

/// A stream's right to speak, and how it is told that it lost it.
pub(super) struct Entered {
    pub(super) id: u64,
    pub(super) end: oneshot::Receiver<End>,
}

impl Hub {
    pub(super) fn new(
        host: Arc<dyn ShardHost>,
        backend: String,
        boot_id: BootId,
        limits: WorkerLimits,
    ) -> Self {
        Self {
            host,
            backend,
            boot_id,
            limits,
            runs: Arc::new(Semaphore::new(limits.runs.min(Semaphore::MAX_PERMITS))),
            steps: watch::Sender::new(0),
            stopping: watch::Sender::new(false),
            end: watch::Sender::new(false),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes after each step.
    pub(super) fn steps(&self) -> watch::Receiver<u64> {
        self.steps.subscribe()
    }

    pub(super) fn ended(&self) -> watch::Receiver<bool> {
        self.end.subscribe()
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Takes the coordinator of a Hello, or refuses it. A higher generation ends every stream of the lower ones and
    /// releases every key.
    pub(super) fn hello(
        &self,
        conn: &OnConnection,
        generation: u64,
        model: &Digest,
    ) -> Result<Entered, Refused> {
        if self.is_stopping() {
            return Err(Refused::new(pb::Refusal::Stopping, "the worker is stopping"));
        }
        let served = self.host.describe().model_digest;
        if *model != served {
            let detail = format!("model {} is served", hex::encode(served));
            return Err(Refused::new(pb::Refusal::OtherModel, detail));
        }
        let mut state = self.lock();
        // Under the lock, so that the two always agree on the highest.
        if let Err(stale) = self.host.hello(generation) {
            return Err(Refused {
                reason: pb::Refusal::StaleCoordinator,
                detail: format!("generation {} is obeyed", stale.have),
                generation: stale.have,
            });
        }
        let higher = state.generation.is_none_or(|known| known < generation);
        state.generation = Some(generation);
        let (end, ended) = oneshot::channel();
        state.next_id += 1;
        let id = state.next_id;
        if let Some((_, old)) = state.control.replace((id, end)) {
            // Whoever has gone already needs no telling, here and below.
            let _ = old.send(if higher { End::Fenced(generation) } else { End::Replaced });
        }
        if higher {
            for (_, run) in std::mem::take(&mut state.runs) {
                let _ = run.end.send(End::Fenced(generation));
            }
        }
        drop(state);
        conn.0.lock().generation = Some(generation);
        Ok(Entered { id, end: ended })
    }

    /// A control stream ended.
    pub(super) fn leave_control(&self, id: u64) {
        let mut state = self.lock();
        if state.control.as_ref().is_some_and(|(known, _)| *known == id) {
            state.control = None;
        }
    }

    /// Makes a stream the one that speaks for `key`; an older one of the key is told to end.
    pub(super) fn enter(&self, conn: &OnConnection, key: KvKey) -> Result<Entered, AdapterError> {
        if self.is_stopping() {
            return Err(stopping());
        }
        let mut state = self.lock();
        match (conn.generation(), state.generation) {
            (Some(given), Some(obeyed)) if given == obeyed => {}
            (Some(given), Some(obeyed)) if given < obeyed => return Err(fenced(obeyed)),
            _ => return Err(AdapterError::Conflict("no Hello was accepted on this connection".to_owned())),
        }
        let (end, ended) = oneshot::channel();
        state.next_id += 1;
        let id = state.next_id;
        if let Some(old) = state.runs.insert(key, Run { id, end, opened: false }) {
            let _ = old.end.send(End::Replaced);
        }
        Ok(Entered { id, end: ended })
    }

    /// The key is open: from here on its stream ends when the key is gone.
    pub(super) fn opened(&self, key: KvKey, id: u64) {
        if let Some(run) = self.lock().runs.get_mut(&key).filter(|run| run.id == id) {
            run.opened = true;
        }
    }

    /// A stream ended, which may speak for its key no longer.
    pub(super) fn leave(&self, key: KvKey, id: u64) {
        let mut state = self.lock();
        if state.runs.get(&key).is_some_and(|run| run.id == id) {
            state.runs.remove(&key);
        }
    }

    /// A step begins; [`AdapterError::Conflict`] while another one of the key runs.
    pub(super) fn begin(self: &Arc<Self>, key: KvKey, step: u32) -> Result<InFlight, AdapterError> {
        if self.is_stopping() {
            return Err(stopping());
        }
        let mut state = self.lock();
        if let Some(running) = state.in_flight.get(&key) {
            return Err(AdapterError::Conflict(format!("step {running} is not answered yet")));
        }
        state.in_flight.insert(key, step);
        Ok(InFlight { hub: Arc::clone(self), key })
    }

    pub(super) fn step_of(&self, key: KvKey) -> Option<u32> {
        self.lock().in_flight.get(&key).copied()
    }

    pub(super) fn steps_in_flight(&self) -> usize {
        self.lock().in_flight.len()
    }

    /// Lets expired leases go, and streams of keys that hold nothing any more.
    pub(super) fn reap(&self) {
        self.host.reap();
        let mut state = self.lock();
        let held = self.host.usage();
        let State { runs, in_flight, .. } = &mut *state;
        let gone: Vec<KvKey> = runs
            .iter()
            .filter(|(key, run)| {
                let holds = held.keys.binary_search_by(|usage| usage.key.cmp(key)).is_ok();
                run.opened && !holds && !in_flight.contains_key(key)
            })
            .map(|(key, _)| *key)
            .collect();
        for run in gone.iter().filter_map(|key| runs.remove(key)) {
            let _ = run.end.send(End::Gone);
        }
    }

    /// No new key and no new step from here on.
    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Ends every stream and then every connection.
    pub(super) fn end_all(&self) {
        let mut state = self.lock();
        let control = state.control.take().map(|(_, end)| end);
        let runs = std::mem::take(&mut state.runs).into_values().map(|run| run.end);
        for end in runs.chain(control) {
            let _ = end.send(End::Stopping);
        }
        drop(state);
        self.end.send_replace(true);
    }
}

pub(super) fn stopping() -> AdapterError {
    AdapterError::StreamReset("the worker is stopping".to_owned())
}

/// The refusal of whatever comes from a coordinator that was replaced.
pub(super) fn fenced(generation: u64) -> AdapterError {
    AdapterError::Internal(format!("stale coordinator: the worker obeys generation {generation}"))
}

/// A step that runs; dropped at its end, however it ends.
pub(super) struct InFlight {
    hub: Arc<Hub>,
    key: KvKey,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.hub.lock().in_flight.remove(&self.key);
        self.hub.steps.send_modify(|steps| *steps = steps.wrapping_add(1));
    }
}
