//! A [`BoundaryAdapter`] over one worker process.

mod connect;
mod link;
mod run;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::Message;
use holdfast_proto::holdfast::runner::v1 as pb;
use pb::run_request::Frame as Ask;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub use self::connect::ConnectError;
use self::link::{Link, Up};
use self::run::{Pending, Run};
use super::{BootId, FRAME_BYTES_MAX, WorkerAddress, convert};
use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, Digest, KeyUsage, KvKey, OpenPlan, Opened,
    ReleaseAck, ShardInfo, StepOut, StepRef, StepState, StopAck, Usage,
};
use crate::clock::Clock;
use crate::failure::Cause;

/// Longest waits for a worker. What passes them is a [`AdapterError::StreamReset`] of that key alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// For a connection and the answer to Hello.
    pub connect: Duration,
    /// For the same process to be back after a connection broke.
    pub reconnect: Duration,
    /// For the result of a step; told to the worker too.
    pub step: Duration,
    /// For every other answer.
    pub call: Duration,
}

impl Default for RemoteLimits {
    /// 2 s to connect, 2 s to be back, 60 s for a step, 2 s for the rest.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            reconnect: Duration::from_secs(2),
            step: Duration::from_secs(60),
            call: Duration::from_secs(2),
        }
    }
}

/// How a coordinator reaches a worker.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// Where.
    pub address: WorkerAddress,
    /// The coordinator's generation, raised at each of its starts.
    pub generation: u64,
    /// The model that is expected; `None`: whichever the worker serves.
    pub model: Option<Digest>,
    /// Longest waits.
    pub limits: RemoteLimits,
}

/// One start of a worker process, as the coordinator sees it.
///
/// ```text
///            control stream broke           same boot id
///   Up ─────────────────────────▶ Broken ───────────────▶ Up
///                                   │ refused, other boot id, or not back in time
///                                   ▼
///                                 Dead: WorkerDeath for every key, at once and for ever
/// ```
///
/// A process that came back under another boot id is another shard; [`super::RemotePool`] makes one of it. Needs a tokio
/// runtime with time and I/O; ends its tasks when dropped.
#[derive(Debug)]
pub struct RemoteShard {
    shared: Arc<Shared>,
    link: AbortHandle,
}

struct Shared {
    config: RemoteConfig,
    clock: Arc<dyn Clock>,
    boot_id: BootId,
    info: ShardInfo,
    link: watch::Sender<Link>,
    /// Asks the link to look whether its connection still lives.
    suspect: tokio::sync::Notify,
    state: Mutex<State>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("address", &self.config.address)
            .field("boot_id", &self.boot_id)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    runs: BTreeMap<KvKey, Run>,
    held: BTreeMap<KvKey, Held>,
    next_id: u64,
    /// Frames sent on the control stream of this incarnation.
    control_seq: u64,
    beat_ms: Option<u64>,
    free_rows: Option<u32>,
    dropped: u64,
}

/// What the coordinator believes the worker holds for a key.
struct Held {
    plan: OpenPlan,
    rows: u32,
    /// When the last beat that named it was sent.
    beat_sent_ms: u64,
}

impl Held {
    /// When even a slow clock over there has let the key go (runner-details 4).
    fn gone_ms(&self) -> u64 {
        let lease_ms = self.plan.lease_ms;
        self.beat_sent_ms.saturating_add(lease_ms).saturating_add(lease_ms / 10).saturating_add(1_000)
    }
}

impl RemoteShard {
    /// Connects and says hello.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(config: RemoteConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>, ConnectError> {
        let connected = connect::connect(&config).await?;
        let boot_id = connected.boot_id;
        let mut info = connected.info.clone();
        info.shard_id = format!("{}@{}", info.shard_id, boot_id.short());
        let (up, inbound) = link::split(connected, 1);
        let state = State { beat_ms: Some(clock.now_ms()), control_seq: 1, ..State::default() };
        let shared = Arc::new(Shared {
            config,
            clock,
            boot_id,
            info,
            link: watch::Sender::new(Link::Up(up)),
            suspect: tokio::sync::Notify::new(),
            state: Mutex::new(state),
        });
        let link = tokio::spawn(link::follow(Arc::clone(&shared), inbound)).abort_handle();
        Ok(Arc::new(Self { shared, link }))
    }

    /// The start of the process.
    #[must_use]
    pub fn boot_id(&self) -> BootId {
        self.shared.boot_id
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> &WorkerAddress {
        &self.shared.config.address
    }

    /// Whether it is connected now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(*self.shared.link.borrow(), Link::Up(_))
    }

    /// Waits until it is dead for good; gives what it died of.
    pub async fn died(&self) -> AdapterError {
        let mut link = self.shared.link.subscribe();
        loop {
            if let Link::Dead(error) = &*link.borrow_and_update() {
                return error.clone();
            }
            if link.changed().await.is_err() {
                return AdapterError::WorkerDeath("the shard was dropped".to_owned());
            }
        }
    }

    /// KV rows that nobody has reserved at the worker, as its last beat said.
    #[must_use]
    pub fn free_rows(&self) -> Option<u32> {
        self.shared.lock().free_rows
    }

    /// Answers that nobody waited for: of a step that is not in flight, or whose caller gave up.
    #[must_use]
    pub fn dropped_answers(&self) -> u64 {
        self.shared.lock().dropped
    }
}

impl Drop for RemoteShard {
    fn drop(&mut self) {
        self.link.abort();
        self.shared.die(AdapterError::WorkerDeath("the coordinator let the worker go".to_owned()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end: every wait gets `error` now, and nothing is held there any more.
    fn die(&self, error: AdapterError) {
        self.link.send_if_modified(|link| {
            let first = !matches!(link, Link::Dead(_));
            if first {
                *link = Link::Dead(error.clone());
            }
            first
        });
        let runs = {
            let mut state = self.lock();
            state.held.clear();
            std::mem::take(&mut state.runs)
        };
        for run in runs.into_values() {
            run.fail(&error);
        }
    }

    /// The connection, once there is one; bounded, as the link does not stay broken.
    async fn up(&self) -> Result<Up, AdapterError> {
        let mut link = self.link.subscribe();
        loop {
            match &*link.borrow_and_update() {
                Link::Up(up) => return Ok(up.clone()),
                Link::Dead(error) => return Err(error.clone()),
                Link::Broken => {}
            }
            if link.changed().await.is_err() {
                return Err(AdapterError::WorkerDeath("the shard was dropped".to_owned()));
            }
        }
    }

    /// Ends the key's stream, if it is still this one; whoever waits for it gets `error`.
    fn cut(&self, key: KvKey, id: u64, error: &AdapterError) {
        let mut state = self.lock();
        if state.runs.get(&key).is_some_and(|run| run.id == id)
            && let Some(run) = state.runs.remove(&key)
        {
            drop(state);
            run.fail(error);
        }
    }

    /// Sends a frame on the key's stream, taking the key up on a new one where there is none, and waits for the answer
    /// whose place `queue` keeps.
    async fn ask<T>(
        self: &Arc<Self>,
        key: KvKey,
        frame: Ask,
        limit: Duration,
        queue: impl FnOnce(&mut Pending, oneshot::Sender<Result<T, AdapterError>>) -> Result<(), AdapterError>,
    ) -> Result<T, AdapterError> {
        let (answer, answered) = oneshot::channel();
        let new = matches!(frame, Ask::Open(_)) || !self.lock().runs.contains_key(&key);
        let up = if new { Some(self.up().await?) } else { None };
        let id = self.queue(key, frame, up, |pending| queue(pending, answer))?;
        match timeout(limit, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(AdapterError::StreamReset("the stream ended".to_owned())),
            Err(_) => {
                let error = AdapterError::StreamReset(format!("no answer within {} ms", limit.as_millis()));
                self.cut(key, id, &error);
                Err(error)
            }
        }
    }

    /// Puts a frame on the key's stream, a new one on `up` where there is none; gives the stream's id.
    fn queue(
        self: &Arc<Self>,
        key: KvKey,
        frame: Ask,
        up: Option<Up>,
        place: impl FnOnce(&mut Pending) -> Result<(), AdapterError>,
    ) -> Result<u64, AdapterError> {
        let opens = matches!(frame, Ask::Open(_));
        let ended = || AdapterError::StreamReset("the stream ended".to_owned());
        let mut state = self.lock();
        if opens || !state.runs.contains_key(&key) {
            state.next_id += 1;
            let mut run = Run::start(self, up.ok_or_else(ended)?, key, state.next_id);
            if !opens {
                let attach = pb::Open { key: Some(convert::key_to(key)), plan: None, attach: true };
                run.send(Ask::Open(attach))?;
            }
            if let Some(old) = state.runs.insert(key, run) {
                // A second open begins anew; the worker lets the older stream go.
                old.fail(&AdapterError::StreamReset("the key was opened again".to_owned()));
            }
        }
        let run = state.runs.get_mut(&key).ok_or_else(ended)?;
        place(&mut run.pending)?;
        run.send(frame)?;
        Ok(run.id)
    }

    async fn step(
        self: &Arc<Self>,
        key: KvKey,
        step: StepRef,
        prefill: bool,
        bundle: Bundle,
    ) -> Result<StepOut, AdapterError> {
        let rows = bundle.payload.rows();
        let end = bundle.position.saturating_add(rows);
        let limit = self.config.limits.step;
        let frame = pb::Step {
            step: step.step,
            fingerprint: step.fingerprint.to_vec(),
            prefill,
            bundle: Some(convert::bundle_to(bundle)),
            deadline_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        };
        let size = frame.encoded_len();
        // The frame around it has a few bytes of its own.
        if size > FRAME_BYTES_MAX - 64 {
            return Err(AdapterError::MalformedBundle(format!("a frame of {size} bytes")));
        }
        let result = self
            .ask(key, Ask::Step(frame), limit, |pending, answer| match &pending.step {
                Some((running, _)) => {
                    Err(AdapterError::Conflict(format!("step {running} is not answered yet")))
                }
                None => {
                    pending.step = Some((step.step, answer));
                    Ok(())
                }
            })
            .await;
        let mut state = self.lock();
        match &result {
            Ok(_) => {
                if let Some(held) = state.held.get_mut(&key) {
                    held.rows = held.rows.max(end);
                }
            }
            Err(AdapterError::LeaseExpired | AdapterError::StaleEpoch { .. }) => {
                state.held.remove(&key);
            }
            Err(_) => {}
        }
        result
    }

    async fn open(self: &Arc<Self>, key: KvKey, plan: OpenPlan) -> Result<Opened, AdapterError> {
        let known = {
            let mut state = self.lock();
            let known = state.held.contains_key(&key);
            let beat_sent_ms = self.clock.now_ms();
            state.held.entry(key).or_insert(Held { plan, rows: 0, beat_sent_ms });
            known
        };
        let frame =
            pb::Open { key: Some(convert::key_to(key)), plan: Some(convert::plan_to(plan)), attach: false };
        let opened = self
            .ask(key, Ask::Open(frame), self.config.limits.call, |pending, answer| {
                pending.open = Some(answer);
                Ok(())
            })
            .await;
        let mut state = self.lock();
        match &opened {
            Ok(opened) => {
                if let Some(held) = state.held.get_mut(&key) {
                    held.rows = opened.kv_len;
                }
                // The worker has let lower epochs go.
                let lower = KvKey::new(key.session, 0)..key;
                let gone: Vec<KvKey> = state.held.range(lower.clone()).map(|(key, _)| *key).collect();
                for key in gone {
                    state.held.remove(&key);
                }
                let gone: Vec<KvKey> = state.runs.range(lower).map(|(key, _)| *key).collect();
                for run in gone.iter().filter_map(|key| state.runs.remove(key)) {
                    run.fail(&AdapterError::StaleEpoch { have: key.epoch });
                }
            }
            // What was not opened is not held. Where that is in doubt it counts as held until its lease is over.
            Err(error) if !known && !error.is_uncertain() => {
                state.held.remove(&key);
            }
            Err(_) => {}
        }
        opened
    }

    async fn release(self: &Arc<Self>, key: KvKey, cause: Cause) -> Result<ReleaseAck, AdapterError> {
        let frame = Ask::Release(pb::Release { cause: cause as i32 });
        let ack = self
            .ask(key, frame, self.config.limits.call, |pending, answer| {
                pending.releases.push_back(answer);
                Ok(())
            })
            .await;
        let ack = absent_if_gone(ack, ReleaseAck::WasAbsent)?;
        if !matches!(ack, ReleaseAck::Busy { .. }) {
            let mut state = self.lock();
            state.held.remove(&key);
            if let Some(run) = state.runs.remove(&key) {
                run.fail(&AdapterError::CacheMiss("the key was released".to_owned()));
            }
        }
        Ok(ack)
    }
}

/// A key that cannot be taken up because it is not there has nothing to stop or to release.
fn absent_if_gone<T>(result: Result<T, AdapterError>, absent: T) -> Result<T, AdapterError> {
    match result {
        Err(AdapterError::CacheMiss(_) | AdapterError::LeaseExpired | AdapterError::StaleEpoch { .. }) => {
            Ok(absent)
        }
        other => other,
    }
}

impl BoundaryAdapter for RemoteShard {
    /// Its name has the boot id's first 8 hex digits behind an `@`.
    fn describe(&self) -> ShardInfo {
        self.shared.info.clone()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        Box::pin(self.shared.open(key, plan))
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.shared.step(key, step, true, bundle))
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        Box::pin(self.shared.step(key, step, false, bundle))
    }

    fn query_step(&self, key: KvKey, step: u32) -> AdapterFuture<'_, StepState> {
        Box::pin(async move {
            let frame = Ask::QueryStep(pb::QueryStep { step });
            let state = self
                .shared
                .ask(key, frame, self.shared.config.limits.call, |pending, answer| {
                    pending.queries.push_back((step, answer));
                    Ok(())
                })
                .await;
            match state {
                Err(AdapterError::CacheMiss(_) | AdapterError::LeaseExpired) => Ok(StepState::Unknown),
                other => other,
            }
        })
    }

    fn stop(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, StopAck> {
        Box::pin(async move {
            let frame = Ask::Stop(pb::Stop { cause: cause as i32 });
            let ack = self
                .shared
                .ask(key, frame, self.shared.config.limits.call, |pending, answer| {
                    pending.stops.push_back(answer);
                    Ok(())
                })
                .await;
            absent_if_gone(ack, StopAck::Quiescent)
        })
    }

    fn release(&self, key: KvKey, cause: Cause) -> AdapterFuture<'_, ReleaseAck> {
        Box::pin(self.shared.release(key, cause))
    }

    /// Sends the beat; one that finds the way blocked is left out, as the next one says more.
    fn beat(&self, keys: &[KvKey]) {
        let Link::Up(up) = self.shared.link.borrow().clone() else { return };
        let now_ms = self.shared.clock.now_ms();
        let mut state = self.shared.lock();
        let Ok(place) = up.control.try_reserve() else { return };
        state.control_seq += 1;
        let frame = pb::control_request::Frame::Beat(pb::Beat {
            keys: keys.iter().map(|key| convert::key_to(*key)).collect(),
        });
        place.send(pb::ControlRequest { seq: state.control_seq, frame: Some(frame) });
        for key in keys {
            if let Some(held) = state.held.get_mut(key) {
                held.beat_sent_ms = now_ms;
            }
        }
    }

    fn last_beat_ms(&self) -> Option<u64> {
        self.shared.lock().beat_ms
    }

    fn usage(&self) -> Usage {
        // A dead process counts as released.
        if matches!(*self.shared.link.borrow(), Link::Dead(_)) {
            return Usage::default();
        }
        let now_ms = self.shared.clock.now_ms();
        let mut state = self.shared.lock();
        state.held.retain(|_, held| held.gone_ms() > now_ms);
        let keys = state.held.iter().map(|(key, held)| KeyUsage {
            key: *key,
            rows: held.rows,
            reserved: held.plan.max_positions,
            buffers: 0,
            lease_left_ms: held.gone_ms().saturating_sub(now_ms),
        });
        Usage { keys: keys.collect() }
    }
}
