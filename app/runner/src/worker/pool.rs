//! The workers of a coordinator, each looked for again when it is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::{ConnectError, RemoteConfig, RemoteLimits, RemoteShard, WorkerAddress};
use crate::adapter::{BoundaryAdapter, Digest, ShardInfo};
use crate::clock::Clock;
use crate::restart::ShardPool;

/// First pause before a worker is looked for again; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A worker silent for longer gets no new session (runner-details 8: heartbeat).
const SILENT_MS: u64 = 3_000;

/// What is known of one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolMember {
    /// Where.
    pub address: WorkerAddress,
    /// What answers there now.
    pub shard: Option<ShardInfo>,
    /// Why nothing does, or why the last one went.
    pub problem: Option<String>,
}

/// A set of addresses, each with the worker that answers there now. Ends its tasks when dropped.
pub struct RemotePool {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    slots: Mutex<Vec<Slot>>,
    changed: watch::Sender<()>,
}

struct Slot {
    address: WorkerAddress,
    shard: Option<Arc<RemoteShard>>,
    problem: Option<String>,
}

impl std::fmt::Debug for RemotePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members()).finish()
    }
}

impl RemotePool {
    /// Begins to connect to every address, as the coordinator of `generation`; `model` is what each has to serve, or
    /// whichever it does. Needs a tokio runtime.
    #[must_use]
    pub fn start(
        addresses: Vec<WorkerAddress>,
        generation: u64,
        model: Option<Digest>,
        limits: RemoteLimits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let slots = addresses.iter().cloned().map(|address| Slot { address, shard: None, problem: None });
        let slots = Mutex::new(slots.collect());
        let shared = Arc::new(Shared { clock, slots, changed: watch::Sender::new(()) });
        let mut tasks = JoinSet::new();
        for (index, address) in addresses.into_iter().enumerate() {
            let config = RemoteConfig { address, generation, model, limits };
            tasks.spawn(keep(Arc::clone(&shared), index, config));
        }
        Self { shared, _tasks: tasks }
    }

    /// Every address and how it stands.
    #[must_use]
    pub fn members(&self) -> Vec<PoolMember> {
        let slots = self.shared.lock();
        let member = |slot: &Slot| PoolMember {
            address: slot.address.clone(),
            shard: slot.shard.as_ref().map(|shard| shard.describe()),
            problem: slot.problem.clone(),
        };
        slots.iter().map(member).collect()
    }

    /// The workers that are connected.
    #[must_use]
    pub fn shards(&self) -> Vec<Arc<RemoteShard>> {
        let slots = self.shared.lock();
        slots.iter().filter_map(|slot| slot.shard.clone()).filter(|shard| shard.is_up()).collect()
    }

    /// Waits until every address has a live worker, at most `within`; whether they all have.
    pub async fn ready(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut changed = self.shared.changed.subscribe();
        loop {
            let all = self.shared.lock().len();
            if self.live().len() == all {
                return true;
            }
            match timeout_at(deadline, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return false,
            }
        }
    }
}

impl ShardPool for RemotePool {
    /// Workers that are connected and have shown life within 3 s, in the addresses' order.
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        let now_ms = self.shared.clock.now_ms();
        let fresh = |shard: &&Arc<RemoteShard>| {
            let beat_ms = shard.last_beat_ms();
            shard.is_up() && beat_ms.is_some_and(|beat_ms| now_ms.saturating_sub(beat_ms) <= SILENT_MS)
        };
        let slots = self.shared.lock();
        let shards = slots.iter().filter_map(|slot| slot.shard.as_ref()).filter(fresh);
        shards.map(|shard| Arc::clone(shard) as Arc<dyn BoundaryAdapter>).collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, index: usize, shard: Option<Arc<RemoteShard>>, problem: Option<String>) {
        if let Some(slot) = self.lock().get_mut(index) {
            slot.shard = shard;
            slot.problem = problem;
        }
        self.changed.send_replace(());
    }
}

/// Keeps one address connected.
async fn keep(shared: Arc<Shared>, index: usize, config: RemoteConfig) {
    let mut pause = PAUSE;
    let mut told: Option<ConnectError> = None;
    loop {
        match RemoteShard::connect(config.clone(), Arc::clone(&shared.clock)).await {
            Ok(shard) => {
                tracing::info!(shard = shard.describe().shard_id, "a worker is there");
                (pause, told) = (PAUSE, None);
                shared.set(index, Some(Arc::clone(&shard)), None);
                let error = shard.died().await;
                shared.set(index, None, Some(error.to_string()));
            }
            Err(error) => {
                shared.set(index, None, Some(error.to_string()));
                // The same trouble again and again is said once.
                if told.as_ref() != Some(&error) {
                    tracing::warn!(address = %config.address, %error, "no connection to a worker");
                    told = Some(error);
                }
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
