//! Thousands of requests that are withdrawn at random, over shards in one process: in the end nothing is held, and
//! memory is what it was.
//!
//! The runner is this program again, so that no other test's memory counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_runner::backends::reference::{DEFAULT_SEED, ReferenceModel};
use holdfast_runner::ledger::{FileStore, LedgerConfig};
use holdfast_runner::shard::{LocalShard, ShardSettings};
use holdfast_runner::{
    BoundaryAdapter, Cause, Clock, GenerateRequest, Generation, GenerationEvent, HardenedSessionRunner,
    IdempotencyLedger, KvKey, Outcome, RunnerConfig, RunnerHandle, SessionId, SubmitError, SystemClock,
    WorkStatus,
};
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout};

use super::{Fixed, all, child};
use crate::crash::Dice;
use crate::process::run;

const SOAK: &str = "HOLDFAST_IT_SOAK";
/// Clients at a time.
const CLIENTS: u64 = 48;
/// KV rows of each shard: fewer than the clients want together.
const CAPACITY: u32 = 768;
/// Sessions that the ledger remembers at most.
const SESSIONS_MAX: usize = 2_500;
/// Growth of the second half that noise explains, KiB.
const GROWTH_KIB: u64 = 6 << 10;

/// Memory of this process, KiB.
fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4
}

/// What request number `index` is and what becomes of it, from the seed alone.
struct Throw {
    bytes: [u8; 32],
}

impl Throw {
    fn new(seed: u64, index: u64) -> Self {
        Self { bytes: Sha256::digest([seed.to_be_bytes(), index.to_be_bytes()].concat()).into() }
    }

    fn below(&self, at: usize, bound: u32) -> u32 {
        u32::from(u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])) % bound
    }

    fn request(&self, index: u64) -> GenerateRequest {
        let length = 1 + self.below(0, 24) as usize;
        let prompt = self.bytes.iter().cycle().take(length).map(|byte| u32::from(*byte)).collect();
        let mut request = GenerateRequest::new(format!("soak-{index}"), prompt, 1 + self.below(2, 16));
        request.client = format!("client-{}", self.below(4, 7));
        request
    }
}

/// What the clients saw.
#[derive(Default)]
struct Seen {
    next: AtomicU64,
    taken: AtomicU64,
    completed: AtomicU64,
    tokens: AtomicU64,
}

/// Takes tokens until the end, or only so many.
async fn take(generation: &mut Generation, most: u32) -> Option<Outcome> {
    let mut taken = 0;
    while taken < most {
        match generation.next().await.expect("the runner runs") {
            GenerationEvent::Token { index, .. } => {
                assert_eq!(index, taken, "each token once, in order");
                taken += 1;
                generation.delivered(taken);
            }
            GenerationEvent::Wait => {}
            GenerationEvent::Done(outcome) => return Some(*outcome),
        }
    }
    None
}

async fn one(handle: &RunnerHandle, seed: u64, index: u64, seen: &Seen) {
    let throw = Throw::new(seed, index);
    let request = throw.request(index);
    let (session, max_new) = (request.session(), request.max_new);
    let mut generation = loop {
        match handle.submit(request.clone()).await {
            Ok(generation) => break generation,
            Err(SubmitError::QueueFull { .. } | SubmitError::LedgerFull) => {
                sleep(Duration::from_millis(20)).await
            }
            Err(error) => panic!("{error}"),
        }
    };
    seen.taken.fetch_add(1, Ordering::Relaxed);
    let most = throw.below(6, max_new);
    let outcome = match throw.below(8, 8) {
        0..=2 => take(&mut generation, u32::MAX).await,
        3 => {
            let outcome = take(&mut generation, most).await;
            generation.cancel(Cause::Client);
            if outcome.is_some() { outcome } else { take_rest(&mut generation).await }
        }
        // Its end is nobody's.
        4 => {
            take(&mut generation, most).await;
            drop(generation);
            None
        }
        5 => {
            handle.cancel_epoch(session, Some(0), Cause::Client).await.expect("the runner runs");
            take_rest(&mut generation).await
        }
        6 => {
            sleep(Duration::from_micros(u64::from(throw.below(10, 3_000)))).await;
            generation.cancel(Cause::Client);
            handle.cancel(SessionId([0xee; 16]), Cause::Client).await.expect("of nobody");
            take_rest(&mut generation).await
        }
        _ => {
            take(&mut generation, most).await;
            let twice = [Cause::Client, Cause::Node].map(|cause| handle.cancel(session, cause));
            join_all(twice).await;
            take_rest(&mut generation).await
        }
    };
    let records = loop {
        let records = handle.records(session).await.expect("the runner runs");
        if !records.is_empty() {
            break records;
        }
        sleep(Duration::from_millis(2)).await;
    };
    let [record] = &records[..] else { panic!("{records:?}") };
    match record.status {
        WorkStatus::Completed => {
            assert_eq!(record.tokens, Some(max_new), "{record:?}");
            seen.completed.fetch_add(1, Ordering::Relaxed);
            seen.tokens.fetch_add(max_new.into(), Ordering::Relaxed);
        }
        WorkStatus::Cancelled => assert!(record.tokens.unwrap_or(0) <= max_new, "{record:?}"),
        _ => panic!("{record:?}"),
    }
    if let Some(outcome) = outcome {
        assert_eq!(outcome.records, records);
        assert!(outcome.tokens.len() <= record.tokens.unwrap_or(0) as usize, "{outcome:?}");
    }
    handle.mark_submitted(KvKey::new(session, 0), "receipt").await.expect("it has a record");
    handle.mark_closed(session).await.expect("it is over");
}

/// The end, whatever comes before.
async fn take_rest(generation: &mut Generation) -> Option<Outcome> {
    loop {
        match generation.next().await.expect("the runner runs") {
            GenerationEvent::Done(outcome) => return Some(*outcome),
            GenerationEvent::Token { .. } | GenerationEvent::Wait => {}
        }
    }
}

async fn soak(count: u64, seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let limits = LedgerConfig {
        retention_ms: 200,
        sessions_max: SESSIONS_MAX,
        segment_bytes: 256 << 10,
        ..LedgerConfig::default()
    };
    let store = FileStore::open(folder.path()).expect("a new folder");
    let (ledger, _) = IdempotencyLedger::open(store, limits, clock.as_ref()).expect("a new ledger");
    let shards: Vec<Arc<dyn BoundaryAdapter>> = [(0, 1), (1, 3), (3, 4)]
        .map(|layers| {
            let model = ReferenceModel::new(DEFAULT_SEED, layers).expect("the model");
            let settings = ShardSettings { capacity: CAPACITY, ..ShardSettings::new(format!("{layers:?}")) };
            Arc::new(LocalShard::new(model, settings, clock.clone())) as Arc<dyn BoundaryAdapter>
        })
        .to_vec();
    let mut config = RunnerConfig::default();
    config.session.hold_ms = 20;
    let pool = Arc::new(Fixed(shards.clone()));
    let (handle, driver) = HardenedSessionRunner::new(config, clock.clone(), ledger, pool);
    let driver = tokio::spawn(driver);

    let seen = Arc::new(Seen::default());
    let mut resident = Vec::new();
    for half in [count / 2, count] {
        let clients = (0..CLIENTS).map(|_| {
            let (handle, seen) = (handle.clone(), seen.clone());
            tokio::spawn(async move {
                loop {
                    let index = seen.next.fetch_add(1, Ordering::Relaxed);
                    if index >= half {
                        return;
                    }
                    let ended = timeout(Duration::from_secs(60), one(&handle, seed, index, &seen)).await;
                    ended.unwrap_or_else(|_| panic!("request {index} hangs"));
                }
            })
        });
        for client in join_all(clients).await {
            client.expect("no client panics");
        }
        seen.next.store(half, Ordering::Relaxed);
        resident.push(resident_kib());
    }

    // Within the hold of completed KV and the reaper's period nothing is left.
    let idle = async {
        loop {
            let load = handle.telemetry().await.expect("the runner runs").load;
            let held = load.queued + load.active + load.held + load.releasing + load.kv_rows;
            if held == 0 && shards.iter().all(|shard| shard.usage().keys.is_empty()) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), idle).await.expect("everything is released");
    let telemetry = handle.telemetry().await.expect("the runner runs");
    let taken = seen.taken.load(Ordering::Relaxed);
    assert_eq!(taken, count);
    assert_eq!(telemetry.done.values().sum::<u64>(), taken, "one record for each: {:?}", telemetry.done);
    let completed = seen.completed.load(Ordering::Relaxed);
    assert_eq!(telemetry.done_with(WorkStatus::Completed), completed);
    assert!(completed >= count / 4 && completed <= count * 9 / 10, "{completed} of {count} completed");
    handle.stop(0);
    timeout(Duration::from_secs(10), driver)
        .await
        .expect("it ends")
        .expect("no panic")
        .expect("the disk holds");

    // Every session was closed, so that the ledger forgets them all.
    let store = FileStore::open(folder.path()).expect("nobody has it any more");
    let (mut ledger, recovery) = IdempotencyLedger::open(store, limits, clock.as_ref()).expect("its ledger");
    assert!(recovery.terminated.is_empty(), "{recovery:?}");
    let remembered = ledger.sessions();
    assert!(remembered <= SESSIONS_MAX, "{remembered}");
    for _ in 0..count {
        let retired = ledger.retire(clock.now_ms() + 1_000).expect("the disk holds");
        ledger.flush().expect("the disk holds");
        if retired.sessions + retired.moved + retired.segments == 0 {
            break;
        }
    }
    assert_eq!((ledger.sessions(), ledger.index_bytes()), (0, 0));
    assert_eq!(ledger.work().billable_tokens, 0);
    let segments = std::fs::read_dir(folder.path()).expect("readable").count();
    println!(
        "{taken} taken, {completed} completed, {remembered} remembered, {segments} files, resident {resident:?} KiB"
    );
    let [first, second] = resident[..] else { panic!("{resident:?}") };
    assert!(second <= first + GROWTH_KIB, "memory grew from {first} to {second} KiB");
}

/// The runner, in a process of its own.
#[test]
fn a_runner_to_be_soaked() {
    let Ok(text) = std::env::var(SOAK) else { return };
    let (count, seed) = text.split_once(' ').expect("two numbers");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime
        .expect("a runtime")
        .block_on(soak(count.parse().expect("a number"), seed.parse().expect("a number")));
}

#[test]
fn thousands_of_requests_withdrawn_at_random_leave_nothing_and_memory_stays_flat() {
    let count = if all() { 5_000 } else { 2_000 };
    let seed = Dice::new().below(u64::MAX);
    let mut soak = child("runner::soak::a_runner_to_be_soaked", &[(SOAK, format!("{count} {seed}"))]);
    let out = run(&mut soak, Duration::from_secs(if all() { 900 } else { 120 })).ok();
    println!("{}", out.lines().find(|line| line.contains(" taken, ")).unwrap_or(&out));
}
