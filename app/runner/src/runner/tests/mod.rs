//! The runner over shards in this process, on virtual time, with faults at chosen steps.

mod admission;
mod answers;
mod cancel;
mod deadlines;
mod durable;
mod failover;
mod faulty;
mod mixes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use self::faulty::{Fault, Faulty};
use super::*;

use crate::adapter::{BoundaryAdapter, Counts};
use crate::backends::reference::{ReferenceModel, oracle::Oracle};
use crate::clock::VirtualClock;
use crate::deadline::DeadlineOverrides;
use crate::failure::{FailureKind, WorkStatus};
use crate::ledger::{LedgerConfig, MemoryDisk};
use crate::record::KvOutcome;
use crate::shard::{LocalShard, ShardSettings};

const PROMPT: [u32; 4] = [7, 3, 9, 1];
/// By hand from the specification.
const GOLDEN: [u32; 8] = [8, 185, 33, 96, 154, 45, 82, 93];

/// Dead shards leave the pool.
#[derive(Default)]
struct Pool(Mutex<Vec<Arc<Faulty>>>);

impl ShardPool for Pool {
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        let shards = self.0.lock().unwrap();
        let live = shards.iter().filter(|shard| !shard.dead.load(Ordering::Relaxed));
        live.map(|shard| shard.clone() as Arc<dyn BoundaryAdapter>).collect()
    }
}

fn model(layers: (u32, u32)) -> ReferenceModel {
    static MODELS: OnceLock<Mutex<BTreeMap<(u32, u32), ReferenceModel>>> = OnceLock::new();
    let mut models = MODELS.get_or_init(Mutex::default).lock().unwrap();
    models.entry(layers).or_insert_with(|| ReferenceModel::new(13, layers).unwrap()).clone()
}

struct World {
    clock: VirtualClock,
    disk: MemoryDisk,
    pool: Arc<Pool>,
    config: RunnerConfig,
    capacity: u32,
}

impl World {
    fn new() -> Self {
        Self {
            clock: VirtualClock::new(),
            disk: MemoryDisk::new(),
            pool: Arc::default(),
            config: RunnerConfig::default(),
            capacity: 4_096,
        }
    }

    /// One whole shard, and the world with it.
    fn single() -> (Self, Arc<Faulty>) {
        let world = Self::new();
        let shard = world.add("a", (0, 4));
        (world, shard)
    }

    fn add(&self, id: &str, layers: (u32, u32)) -> Arc<Faulty> {
        let settings = ShardSettings { capacity: self.capacity, ..ShardSettings::new(id) };
        let shard = Arc::new(Faulty {
            shard: LocalShard::new(model(layers), settings, Arc::new(self.clock.clone())),
            clock: self.clock.clone(),
            faults: Mutex::default(),
            dead: AtomicBool::new(false),
            step_ms: 10,
            open_full: AtomicU32::new(0),
            most_keys: AtomicUsize::new(usize::MAX),
            steps: AtomicU32::new(0),
            counts: Mutex::default(),
        });
        self.pool.0.lock().unwrap().push(shard.clone());
        shard
    }

    fn ledger(&self) -> IdempotencyLedger {
        IdempotencyLedger::open(self.disk.store().unwrap(), LedgerConfig::default(), &self.clock).unwrap().0
    }

    /// A runner for as long as `work` takes.
    fn run<T>(&self, work: impl AsyncFnOnce(RunnerHandle) -> T) -> T {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let (handle, driver) =
            HardenedSessionRunner::new(self.config.clone(), clock, self.ledger(), self.pool.clone());
        self.clock.run(drive_while(driver, work(handle)))
    }

    async fn sleep(&self, ms: u64) {
        self.clock.sleep_until(self.clock.now_ms() + ms).await;
    }

    fn keys_left(&self) -> usize {
        self.pool.0.lock().unwrap().iter().map(|shard| shard.usage().keys.len()).sum()
    }
}

fn request(id: &str) -> GenerateRequest {
    GenerateRequest::new(id, PROMPT.to_vec(), 8)
}

/// Status, kind, tokens, restartable, KV and step in doubt of a session's only record.
type Row = (WorkStatus, Option<FailureKind>, Option<u32>, Option<bool>, KvOutcome, Option<u32>);

fn row(outcome: &Outcome) -> Row {
    assert_eq!(outcome.records.len(), 1, "{:?}", outcome.records);
    let record = &outcome.records[0];
    assert_eq!(outcome.status, record.status);
    (record.status, record.failure_kind, record.tokens, record.restartable, record.kv, record.uncertain_step)
}
