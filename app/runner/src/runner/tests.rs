//! The runner over shards in this process, on virtual time, with faults at chosen steps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use futures_util::future::{join, join_all};
use proptest::prelude::*;

use super::*;
use crate::adapter::{
    AdapterError, AdapterFuture, BoundaryAdapter, Bundle, Counts, OpenPlan, Opened, ReleaseAck, ShardInfo,
    StepOut, StepRef, StepState, StopAck,
};
use crate::backends::reference::{ReferenceModel, oracle::Oracle};
use crate::clock::VirtualClock;
use crate::deadline::DeadlineOverrides;
use crate::failure::{FailureKind, WorkStatus};
use crate::ledger::{BeginError, LedgerConfig, MemoryDisk, StepKey};
use crate::record::KvOutcome;
use crate::scheduler::SchedulerLimits;
use crate::shard::{LocalShard, ShardSettings};

const PROMPT: [u32; 4] = [7, 3, 9, 1];
/// By hand from the specification.
const GOLDEN: [u32; 8] = [8, 185, 33, 96, 154, 45, 82, 93];

/// What a shard does at one step of one epoch, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
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

struct Faulty {
    shard: LocalShard<ReferenceModel>,
    clock: VirtualClock,
    faults: Mutex<BTreeMap<(u32, u32), Fault>>,
    dead: AtomicBool,
    step_ms: u64,
    open_full: AtomicU32,
    /// Keys that it takes at most.
    most_keys: AtomicUsize,
    steps: AtomicU32,
    counts: Mutex<Option<Counts>>,
}

impl Faulty {
    fn fault(&self, epoch: u32, step: u32, fault: Fault) {
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

#[test]
fn a_shard_that_counts_tokens_itself_is_billed_by_its_count_up_to_what_was_asked_for() {
    for (completion_tokens, billed) in [(5, 5), (8, 8), (9, 8), (u32::MAX, 8)] {
        let (world, shard) = World::single();
        *shard.counts.lock().unwrap() = Some(Counts { prompt_tokens: 3, completion_tokens });
        let (outcome, work) = world.run(async |runner| {
            let outcome = runner.run(request("counted")).await.unwrap();
            (outcome, runner.work().await.unwrap())
        });
        let record = &outcome.records[0];
        assert_eq!((record.prompt_tokens, record.tokens), (3, Some(billed)));
        assert_eq!((work.billable_tokens, outcome.tokens.len()), (u64::from(billed), 8));
    }
}

#[test]
fn clean_run_matches_stateless_reference_and_is_billable() {
    let (world, _) = World::single();
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("clean")).await.unwrap();
        assert_eq!(world.keys_left(), 1);
        // Leases are renewed while the KV is held.
        world.sleep(29_000).await;
        assert_eq!(world.keys_left(), 1);
        world.sleep(1_100).await;
        assert_eq!(world.keys_left(), 0);
        let work = runner.work().await.unwrap();
        assert_eq!((work.completed, work.billable_tokens), (1, 8));
        let telemetry = runner.telemetry().await.unwrap();
        assert_eq!((telemetry.steps, telemetry.done_with(WorkStatus::Completed)), (8, 1));
        assert_eq!((telemetry.load.active, telemetry.load.kv_rows, telemetry.stale_events), (0, 0, 0));
        assert_eq!((telemetry.first_token.sum_ms, telemetry.inter_token.sum_ms), (10, 70));
        outcome
    });
    assert_eq!(outcome.tokens, GOLDEN);
    assert_eq!(outcome.tokens, Oracle::new(13).generate(&PROMPT, 8));
    assert_eq!(row(&outcome), (WorkStatus::Completed, None, Some(8), None, KvOutcome::Held, None));
    let record = &outcome.records[0];
    assert!(record.billable());
    assert_eq!((record.prompt_tokens, record.shards.as_slice()), (4, &["a".to_owned()][..]));
    assert_eq!((record.started_ms, record.ended_ms), (0, 80));
    assert_eq!(outcome.finish_reason, Some(FinishReason::Length));
}

#[test]
fn deadline_terminates_a_blocked_stream_and_releases_kv() {
    let (world, shard) = World::single();
    shard.fault(0, 2, Fault::Block);
    let mut request = request("deadline");
    request.deadlines = DeadlineOverrides { total_ms: Some(25), ..DeadlineOverrides::default() };
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::DeadlineExceeded);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(2), Some(false), KvOutcome::Released, Some(2)));
    assert_eq!(outcome.records[0].ended_ms, 25);
    assert_eq!(outcome.tokens, GOLDEN[..2]);
    // The request itself lowered that limit.
    assert!(outcome.lowered_by_request && !outcome.node_at_fault());
}

#[test]
fn heartbeat_loss_terminates_a_blocked_stream() {
    let (mut world, shard) = World::single();
    world.config.session.deadlines.heartbeat_ms = 15;
    shard.fault(0, 3, Fault::Block);
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("heartbeat")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::HeartbeatLost);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(3), Some(false), KvOutcome::Released, Some(3)));
    // Fired at 45, then one second for the step to end.
    assert_eq!(outcome.records[0].ended_ms, 1_045);
    assert_eq!(outcome.records[0].excluded_node.as_deref(), Some("a"));
}

#[test]
fn cancellation_token_terminates_stream_and_releases_kv() {
    let (world, _) = World::single();
    let outcome = world.run(async |runner| {
        let mut generation = runner.submit(request("cancel")).await.unwrap();
        let outcome = loop {
            match generation.next().await.unwrap() {
                GenerationEvent::Token { index, .. } => {
                    generation.delivered(index + 1);
                    if index == 2 {
                        generation.cancel(Cause::Client);
                    }
                }
                GenerationEvent::Wait => {}
                GenerationEvent::Done(outcome) => break *outcome,
            }
        };
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        let cancelled = runner.cancel(outcome.session, Cause::Node).await.unwrap();
        assert_eq!(cancelled.shards, [crate::cancel::ShardOutcome::Released]);
        assert_eq!((cancelled.committed_tokens, cancelled.rows_released), (3, 6));
        assert_eq!(cancelled.first_cause, Some(Cause::Client));
        outcome
    });
    let kind = Some(FailureKind::Cancelled);
    assert_eq!(row(&outcome), (WorkStatus::Cancelled, kind, Some(3), Some(false), KvOutcome::Released, None));
    assert_eq!((outcome.tokens.as_slice(), outcome.records[0].delivered_tokens), (&GOLDEN[..3], 3));
    assert_eq!(outcome.records[0].ended_ms, 30);
}

#[test]
fn kv_is_given_back_without_waiting_for_the_record_to_be_durable() {
    let (world, _) = World::single();
    world.run(async |runner| {
        let mut generation = runner.submit(request("cancel")).await.unwrap();
        assert!(matches!(generation.next().await, Some(GenerationEvent::Token { index: 0, .. })));
        // In the middle of the next step.
        world.sleep(5).await;
        world.disk.fail_at(world.disk.operations(), std::io::ErrorKind::Other);
        runner.cancel(generation.session(), Cause::Client).await.unwrap();
        assert_eq!(world.keys_left(), 1);
        // The step ends, and with it the runner: the record cannot be written.
        while generation.next().await.is_some() {}
        assert_eq!(world.keys_left(), 0);
    });
}

#[test]
fn idempotent_run_replays_tokens_without_advancing_kv() {
    let (world, shard) = World::single();
    world.run(async |runner| {
        let first = runner.run(request("twice")).await.unwrap();
        let (steps, usage) = (shard.steps.load(Ordering::Relaxed), shard.usage());
        let second = runner.run(request("twice")).await.unwrap();
        assert_eq!(second, first);
        assert_eq!((shard.steps.load(Ordering::Relaxed), shard.usage()), (steps, usage));
        assert_eq!(runner.work().await.unwrap().billable_tokens, 8);
        let other = GenerateRequest { prompt: vec![1, 2], ..request("twice") };
        assert_eq!(runner.run(other).await.unwrap_err().code(), "duplicate-session");
    });
    // And after the node was killed.
    world.disk.crash(crate::ledger::Crash::Keep);
    let steps = shard.steps.load(Ordering::Relaxed);
    let again = world.run(async |runner| runner.run(request("twice")).await.unwrap());
    assert_eq!((again.tokens.as_slice(), shard.steps.load(Ordering::Relaxed)), (&GOLDEN[..], steps));
}

#[test]
fn alpha_failover_restarts_from_token_zero_and_completes_at_every_step() {
    for cut in [&[(0, 4)][..], &[(0, 2), (2, 4)], &[(0, 1), (1, 3), (3, 4)]] {
        for step in 0..8 {
            for faulty in 0..cut.len() {
                let world = World::new();
                for (index, layers) in cut.iter().enumerate() {
                    let shard = world.add(&format!("a{index}"), *layers);
                    world.add(&format!("b{index}"), *layers);
                    if index == faulty {
                        shard.fault(0, step, Fault::Die);
                    }
                }
                let (outcome, old) = world.run(async |runner| {
                    let outcome = runner.run_with_failover(request("failover")).await.unwrap();
                    world.sleep(31_000).await;
                    assert_eq!(world.keys_left(), 0);
                    let mut old = Vec::new();
                    for shard in world.pool.live() {
                        let plan = OpenPlan {
                            max_positions: 1,
                            lease_ms: 1,
                            sampling: request("").sampling,
                            trace: None,
                        };
                        old.push(shard.open(KvKey::new(outcome.session, 0), plan).await.is_err());
                    }
                    (outcome, old)
                });
                assert_eq!(outcome.tokens, GOLDEN, "cut {cut:?}, step {step}, shard {faulty}");
                let [first, second] = &outcome.records[..] else { panic!("{:?}", outcome.records) };
                assert_eq!(first.status, WorkStatus::Unverified);
                assert_eq!(first.uncertain_step, Some(step));
                assert_eq!(first.excluded_node, Some(format!("a{faulty}")));
                assert_eq!(first.tokens, (step > 0).then_some(step));
                assert_eq!(
                    (second.key.epoch, second.tokens, second.status),
                    (1, Some(8), WorkStatus::Completed)
                );
                // Shards that ran both epochs, or the second, are fenced.
                assert!(old.iter().filter(|stale| **stale).count() >= cut.len(), "{old:?}");
            }
        }
    }
}

#[test]
fn failover_refuses_to_import_unverified_kv() {
    let world = World::new();
    let dying = world.add("a", (0, 4));
    let dirty = world.add("b", (0, 4));
    dying.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| {
        let session = request("dirty").session();
        // Somebody put rows of the next epoch there.
        let key = KvKey::new(session, 1);
        let plan =
            OpenPlan { max_positions: 12, lease_ms: 10_000, sampling: request("").sampling, trace: None };
        dirty.shard.open(key, plan).await.unwrap();
        let model = dirty.describe().model_digest;
        let fingerprint = crate::adapter::fingerprint(&model, session, 0, &[5], plan.sampling);
        let bundle = Bundle::new(0, crate::adapter::Payload::Tokens(vec![5]));
        dirty.shard.prefill(key, StepRef { step: 0, fingerprint }, bundle).await.unwrap();
        let outcome = runner.run_with_failover(request("dirty")).await.unwrap();
        world.sleep(2_000).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    assert_eq!((outcome.status, outcome.kind), (WorkStatus::Failed, Some(FailureKind::Internal)));
    assert_eq!(outcome.records.len(), 2, "{:?}", outcome.records);
    assert_eq!((outcome.records[1].tokens, outcome.records[1].restartable), (None, Some(false)));
    assert_eq!(outcome.tokens, GOLDEN[..3]);
}

#[test]
fn non_restartable_failure_is_not_retried() {
    let world = World::new();
    let shard = world.add("a", (0, 4));
    world.add("b", (0, 4));
    shard.fault(0, 2, Fault::Malformed);
    let outcome = world.run(async |runner| runner.run_with_failover(request("malformed")).await.unwrap());
    let kind = Some(FailureKind::MalformedBundle);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(2), Some(false), KvOutcome::Released, Some(2)));
}

#[test]
fn worker_death_midstream_is_unverified_and_marks_step_uncertain() {
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| runner.run(request("death")).await.unwrap());
    let kind = Some(FailureKind::WorkerDeath);
    assert_eq!(
        row(&outcome),
        (WorkStatus::Unverified, kind, Some(3), Some(true), KvOutcome::Released, Some(3))
    );
    let key = KvKey::new(outcome.session, 0);
    assert!(matches!(world.ledger().begin(StepKey::new(key, 3), [0; 32]), Err(BeginError::Uncertain(_))));
}

#[test]
fn stream_reset_is_restartable_failure() {
    let (world, shard) = World::single();
    shard.fault(0, 0, Fault::ResetBefore);
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("reset")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::StreamReset);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, None, Some(true), KvOutcome::Released, Some(0)));
}

#[test]
fn a_broken_stream_is_asked_about_and_the_epoch_goes_on() {
    for fault in [Fault::ResetBefore, Fault::ResetAfter] {
        for step in 0..8 {
            let (world, shard) = World::single();
            shard.fault(0, step, fault);
            let outcome = world.run(async |runner| runner.run_with_failover(request("ask")).await.unwrap());
            assert_eq!(outcome.tokens, GOLDEN);
            assert_eq!(row(&outcome).0, WorkStatus::Completed, "{fault:?} at {step}");
        }
    }
    // Shard 0 ran the step and shard 1 did not: only another epoch helps.
    let world = World::new();
    world.add("a", (0, 2));
    world.add("b", (2, 4)).fault(0, 2, Fault::ResetBefore);
    world.add("c", (2, 4));
    let outcome = world.run(async |runner| runner.run_with_failover(request("ask")).await.unwrap());
    assert_eq!(outcome.tokens, GOLDEN);
    assert_eq!(outcome.records.len(), 2);
    assert_eq!(outcome.records[0].uncertain_step, Some(2));
}

#[test]
fn stale_epoch_reference_is_rejected() {
    let (world, shard) = World::single();
    let outcome = world.run(async |runner| {
        let key = KvKey::new(request("stale").session(), 1);
        let plan =
            OpenPlan { max_positions: 12, lease_ms: 10_000, sampling: request("").sampling, trace: None };
        shard.shard.open(key, plan).await.unwrap();
        shard.shard.release(key, Cause::Node).await.unwrap();
        runner.run_with_failover(request("stale")).await.unwrap()
    });
    let kind = Some(FailureKind::StaleEpoch);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, None, Some(false), KvOutcome::NeverOpened, None));
}

#[test]
fn cache_miss_midstream_is_restartable() {
    let (world, shard) = World::single();
    shard.fault(0, 4, Fault::Evict);
    let outcome = world.run(async |runner| runner.run(request("evicted")).await.unwrap());
    let kind = Some(FailureKind::CacheMiss);
    let kv = KvOutcome::AlreadyEvicted;
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(4), Some(true), kv, Some(4)));
    let world = World::new();
    world.add("a", (0, 4)).fault(0, 4, Fault::Evict);
    world.add("b", (0, 4));
    let outcome = world.run(async |runner| runner.run_with_failover(request("evicted")).await.unwrap());
    assert_eq!((outcome.tokens.as_slice(), outcome.status), (&GOLDEN[..], WorkStatus::Completed));
}

#[test]
fn a_second_run_that_differs_from_what_the_client_has_is_unverified() {
    let world = World::new();
    world.add("a", (0, 4)).fault(0, 5, Fault::Die);
    world.add("b", (0, 4)).fault(1, 3, Fault::WrongToken);
    let outcome = world.run(async |runner| runner.run_with_failover(request("differs")).await.unwrap());
    assert_eq!((outcome.status, outcome.kind), (WorkStatus::Unverified, Some(FailureKind::PrefixMismatch)));
    assert_eq!(outcome.tokens, GOLDEN[..5]);
    assert_eq!(outcome.records.len(), 2);
}

#[test]
fn failover_stops_at_its_budget_and_backs_off() {
    let world = World::new();
    for (epoch, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        world.add(id, (0, 4)).fault(u32::try_from(epoch).unwrap(), 1, Fault::Die);
    }
    let outcome = world.run(async |runner| runner.run_with_failover(request("budget")).await.unwrap());
    assert_eq!((outcome.status, outcome.kind), (WorkStatus::Unverified, Some(FailureKind::WorkerDeath)));
    let times: Vec<(u64, u64)> =
        outcome.records.iter().map(|record| (record.started_ms, record.ended_ms)).collect();
    assert_eq!(times, [(0, 20), (20, 40), (540, 560)]);
}

#[test]
fn a_session_without_a_route_ends_at_its_queue_deadline_with_the_record_it_has() {
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| {
        let outcome = runner.run_with_failover(request("alone")).await.unwrap();
        assert_eq!(world.clock.now_ms(), 30_040);
        let refused = runner.run(request("next")).await.unwrap_err();
        assert_eq!(refused.code(), "no-route");
        outcome
    });
    assert_eq!(row(&outcome).1, Some(FailureKind::WorkerDeath));
    // A restarted worker, under another name, is enough.
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Die);
    let outcome = world.run(async |runner| {
        let restart = async {
            world.sleep(5_000).await;
            world.add("a-again", (0, 4));
        };
        join(runner.run_with_failover(request("alone")), restart).await.0.unwrap()
    });
    assert_eq!((outcome.tokens.as_slice(), outcome.status), (&GOLDEN[..], WorkStatus::Completed));
}

#[test]
fn a_late_answer_of_an_ended_session_is_counted_and_dropped() {
    let (world, shard) = World::single();
    shard.fault(0, 2, Fault::Late(400));
    let mut request = request("late");
    request.deadlines.total_ms = Some(25);
    world.run(async |runner| {
        let outcome = runner.run(request).await.unwrap();
        assert_eq!(outcome.records[0].tokens, Some(2));
        world.sleep(1_000).await;
        assert_eq!(world.keys_left(), 0);
        let telemetry = runner.telemetry().await.unwrap();
        assert_eq!(telemetry.steps, 2);
        let next = runner.run(self::request("next")).await.unwrap();
        assert_eq!(next.tokens, GOLDEN);
    });
}

#[test]
fn a_panicking_adapter_ends_its_session_only() {
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Panic);
    world.run(async |runner| {
        let bad = runner.run(request("bad"));
        let good = async {
            world.sleep(45).await;
            runner.run(request("good")).await
        };
        let (bad, good) = join(bad, good).await;
        let kind = Some(FailureKind::Internal);
        let (status, found, tokens, ..) = row(&bad.unwrap());
        assert_eq!((status, found, tokens), (WorkStatus::Failed, kind, Some(3)));
        assert_eq!(good.unwrap().tokens, GOLDEN);
    });
}

#[test]
fn a_blocked_session_keeps_nobody_back() {
    let (world, shard) = World::single();
    world.run(async |runner| {
        let stuck = async {
            shard.fault(0, 1, Fault::Block);
            let mut request = request("stuck");
            request.deadlines.inter_token_ms = Some(5_000);
            runner.run(request).await.unwrap()
        };
        let others = async {
            world.sleep(25).await;
            let outcomes = join_all((0..8).map(|n| runner.run(request(&format!("free {n}"))))).await;
            assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().tokens == GOLDEN));
            world.clock.now_ms()
        };
        let (stuck, others_end) = join(stuck, others).await;
        assert_eq!(others_end, 25 + 80);
        // No sign of life for three seconds comes before the deadline of five.
        assert_eq!(stuck.kind, Some(FailureKind::HeartbeatLost));
    });
}

#[test]
fn stop_tokens_count_and_end_the_answer() {
    let (world, _) = World::single();
    let outcome = world.run(async |runner| {
        let request = GenerateRequest { stop_tokens: vec![96, 8_u32.pow(2)], ..request("stop") };
        runner.run(request).await.unwrap()
    });
    assert_eq!((outcome.tokens.as_slice(), outcome.finish_reason), (&GOLDEN[..4], Some(FinishReason::Stop)));
    assert_eq!(outcome.records[0].tokens, Some(4));
}

#[test]
fn a_long_prompt_goes_in_chunks_and_gives_the_same_bytes() {
    let prompt: Vec<u32> = (0..150).map(|i| i * 7 % 256).collect();
    let (world, shard) = World::single();
    let outcome =
        world.run(async |runner| runner.run(GenerateRequest::new("long", prompt.clone(), 5)).await.unwrap());
    assert_eq!(outcome.tokens, Oracle::new(13).generate(&prompt, 5));
    // 64 + 64 + 22, then 4 tokens more.
    assert_eq!(shard.steps.load(Ordering::Relaxed), 7);
}

#[test]
fn a_full_shard_is_waited_for_and_the_same_epoch_opens_later() {
    let world = World::new();
    let first = world.add("a", (0, 2));
    let second = world.add("b", (2, 4));
    second.open_full.store(3, Ordering::Relaxed);
    let outcome = world.run(async |runner| runner.run(request("full")).await.unwrap());
    assert_eq!((outcome.tokens.as_slice(), row(&outcome).0), (&GOLDEN[..], WorkStatus::Completed));
    assert_eq!(outcome.records[0].key.epoch, 0);
    assert!(outcome.records[0].ended_ms >= 300 + 160, "{:?}", outcome.records);
    drop(first);
    // For as long as the queue's deadline allows.
    let world = World::new();
    world.add("a", (0, 2));
    world.add("b", (2, 4)).open_full.store(u32::MAX, Ordering::Relaxed);
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("full")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::DeadlineExceeded);
    assert_eq!((row(&outcome).1, row(&outcome).2, outcome.records[0].ended_ms), (kind, None, 30_000));
}

#[test]
fn held_kv_goes_early_when_somebody_waits_for_room() {
    let mut world = World::new();
    world.capacity = 30;
    world.add("a", (0, 4));
    world.run(async |runner| {
        for n in 0..5 {
            // 12 rows each: two fit.
            runner.run(request(&format!("{n}"))).await.unwrap();
        }
        assert_eq!((world.keys_left(), world.clock.now_ms()), (2, 400));
    });
}

#[test]
fn held_kv_goes_early_when_a_shard_is_full_for_a_reason_of_its_own() {
    let (world, shard) = World::single();
    shard.most_keys.store(4, Ordering::Relaxed);
    world.run(async |runner| {
        for n in 0..20 {
            runner.run(request(&format!("{n}"))).await.unwrap();
        }
        // 80 ms each, and 100 ms for each time that it was full; KV is held for 30 s.
        assert!(world.clock.now_ms() <= 20 * (80 + 110), "{} ms", world.clock.now_ms());
        assert!(world.keys_left() <= 4);
    });
}

#[test]
fn a_dropped_generation_is_cancelled_and_a_detached_one_runs_on() {
    let (world, _) = World::single();
    world.run(async |runner| {
        let dropped = runner.submit(request("dropped")).await.unwrap();
        let mut detached = runner.submit(request("detached")).await.unwrap();
        world.sleep(35).await;
        let (a, b) = (dropped.session(), detached.session());
        detached.detach();
        drop((dropped, detached));
        world.sleep(100).await;
        let a = runner.records(a).await.unwrap();
        assert_eq!(
            (a[0].status, a[0].cause, a[0].tokens),
            (WorkStatus::Cancelled, Some(Cause::Client), Some(4))
        );
        assert_eq!(runner.records(b).await.unwrap()[0].status, WorkStatus::Completed);
        assert_eq!(world.keys_left(), 1);
    });
}

#[test]
fn cancel_is_legal_in_every_state() {
    let (world, shard) = World::single();
    world.run(async |runner| {
        let unknown = runner.cancel(request("unknown").session(), Cause::Client).await.unwrap();
        assert_eq!((unknown.first_cause, unknown.shards.len()), (None, 0));
        assert!(runner.records(request("unknown").session()).await.unwrap().is_empty());
        // Prefilling: the chunk ends, and its token is committed, not delivered.
        let mut generation = runner.submit(request("prefill")).await.unwrap();
        world.sleep(5).await;
        let outcome = runner.cancel(generation.session(), Cause::Coordinator).await.unwrap();
        assert_eq!((outcome.first_cause, outcome.settled()), (Some(Cause::Coordinator), false));
        let Some(GenerationEvent::Done(done)) = generation.next().await else { panic!("a token came") };
        assert_eq!(
            (done.status, done.tokens.len(), done.cause),
            (WorkStatus::Cancelled, 0, Some(Cause::Coordinator))
        );
        assert_eq!((done.records[0].tokens, done.records[0].ended_ms), (Some(1), 10));
        // Completed: the record stays, the KV goes.
        let done = runner.run(request("completed")).await.unwrap();
        assert_eq!(world.keys_left(), 1);
        runner.cancel(done.session, Cause::Client).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        assert_eq!(runner.records(done.session).await.unwrap()[0].status, WorkStatus::Completed);
        // Another epoch than the running one is not meant.
        let mut generation = runner.submit(request("epoch")).await.unwrap();
        world.sleep(15).await;
        runner.cancel_epoch(generation.session(), Some(1), Cause::Client).await.unwrap();
        let mut tokens = 0;
        let status = loop {
            match generation.next().await.unwrap() {
                GenerationEvent::Token { .. } => tokens += 1,
                GenerationEvent::Wait => {}
                GenerationEvent::Done(done) => break done.status,
            }
        };
        assert_eq!((tokens, status), (8, WorkStatus::Completed));
        // Between two epochs: the failed one keeps its record and there is no other.
        shard.fault(0, 3, Fault::Die);
        let mut generation = runner.submit(request("between")).await.unwrap();
        world.sleep(100).await;
        runner.cancel(generation.session(), Cause::Client).await.unwrap();
        let done = loop {
            if let GenerationEvent::Done(done) = generation.next().await.unwrap() {
                break done;
            }
        };
        assert_eq!((done.status, done.kind), (WorkStatus::Cancelled, Some(FailureKind::Cancelled)));
        assert_eq!(done.records.len(), 1);
        assert_eq!(done.records[0].status, WorkStatus::Unverified);
    });
}

#[test]
fn a_queued_session_leaves_without_a_shard_being_called() {
    let mut world = World::new();
    world.capacity = 12;
    let shard = world.add("a", (0, 4));
    world.run(async |runner| {
        let first = runner.submit(request("first")).await.unwrap();
        let mut second = runner.submit(request("second")).await.unwrap();
        world.sleep(15).await;
        runner.cancel(second.session(), Cause::Client).await.unwrap();
        let Some(GenerationEvent::Done(done)) = second.next().await else { panic!("not done") };
        let kind = Some(FailureKind::Cancelled);
        assert_eq!(
            row(&done),
            (WorkStatus::Cancelled, kind, None, Some(false), KvOutcome::NeverOpened, None)
        );
        assert_eq!(shard.usage().keys.len(), 1);
        // A queue deadline ends a wait.
        let mut third = request("third");
        third.deadlines.queue_ms = Some(20);
        let done = runner.run(third).await.unwrap();
        assert_eq!((done.kind, done.lowered_by_request), (Some(FailureKind::DeadlineExceeded), true));
        drop(first);
    });
}

#[test]
fn refusals_name_their_reason() {
    let mut world = World::new();
    world.config.session.scheduler = SchedulerLimits { queue_sessions: 2, ..SchedulerLimits::default() };
    world.capacity = 12;
    world.add("a", (0, 4));
    world.run(async |runner| {
        let bad = async |request: GenerateRequest| match runner.submit(request).await.unwrap_err() {
            SubmitError::BadRequest { field, .. } => field,
            other => panic!("{other}"),
        };
        assert_eq!(bad(GenerateRequest { prompt: vec![], ..request("x") }).await, "prompt");
        assert_eq!(bad(GenerateRequest { prompt: vec![256], ..request("x") }).await, "prompt");
        assert_eq!(bad(GenerateRequest { prompt: vec![1; 12], ..request("x") }).await, "prompt");
        assert_eq!(bad(GenerateRequest { max_new: 0, ..request("x") }).await, "max_new");
        assert_eq!(bad(GenerateRequest { max_new: 9, ..request("x") }).await, "max_new");
        assert_eq!(bad(GenerateRequest { stop_tokens: vec![300], ..request("x") }).await, "stop_tokens");
        assert_eq!(bad(request("")).await, "inference_id");
        let mut raised = request("x");
        raised.deadlines.total_ms = Some(300_001);
        assert_eq!(bad(raised).await, "deadlines");
        let running = runner.submit(request("running")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(runner.submit(request("running")).await.unwrap_err().code(), "duplicate-session");
        let _queued =
            (runner.submit(request("1")).await.unwrap(), runner.submit(request("2")).await.unwrap());
        assert_eq!(
            runner.submit(request("3")).await.unwrap_err(),
            SubmitError::QueueFull { retry_after_ms: 1_000 }
        );
        drop(running);
    });
}

#[test]
fn clients_are_told_to_wait_each_five_seconds() {
    let (mut world, shard) = World::single();
    world.config.session.deadlines.heartbeat_ms = 30_000;
    shard.fault(0, 1, Fault::Late(12_000));
    let waits = world.run(async |runner| {
        let mut generation = runner.submit(request("wait")).await.unwrap();
        let mut waits = Vec::new();
        loop {
            match generation.next().await.unwrap() {
                GenerationEvent::Token { .. } => {}
                GenerationEvent::Wait => waits.push(world.clock.now_ms()),
                GenerationEvent::Done(done) => {
                    assert_eq!(done.tokens, GOLDEN);
                    break waits;
                }
            }
        }
    });
    assert_eq!(waits, [5_010, 10_010]);
}

#[test]
fn stop_drains_within_its_bound_and_leaves_nothing() {
    let (world, shard) = World::single();
    shard.fault(0, 4, Fault::Block);
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let (handle, driver) =
        HardenedSessionRunner::new(world.config.clone(), clock, world.ledger(), world.pool.clone());
    world.clock.run(async {
        let work = async {
            let quick = handle.submit(GenerateRequest { max_new: 2, ..request("quick") }).await.unwrap();
            let slow = handle.submit(request("slow")).await.unwrap();
            world.sleep(5).await;
            handle.stop(1_000);
            world.sleep(1).await;
            assert_eq!(handle.submit(request("late")).await.unwrap_err(), SubmitError::Stopped);
            let mut statuses = Vec::new();
            for mut generation in [quick, slow] {
                while let Some(event) = generation.next().await {
                    if let GenerationEvent::Done(done) = event {
                        statuses.push((done.status, done.cause));
                    }
                }
            }
            statuses
        };
        let (ended, statuses) = join(driver, work).await;
        ended.unwrap();
        assert_eq!(statuses, [(WorkStatus::Completed, None), (WorkStatus::Cancelled, Some(Cause::Node))]);
    });
    assert_eq!(world.keys_left(), 0);
    world.clock.run(async { assert_eq!(handle.work().await, Err(Stopped)) });
}

#[test]
fn a_ledger_that_cannot_be_written_stops_everything() {
    let (world, shard) = World::single();
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let (handle, driver) =
        HardenedSessionRunner::new(world.config.clone(), clock, world.ledger(), world.pool.clone());
    world.disk.fail_at(world.disk.operations() + 6, std::io::ErrorKind::Other);
    let (ended, outcome) = world.clock.run(join(driver, handle.run(request("disk"))));
    assert!(matches!(ended, Err(LedgerError::Io(_))), "{ended:?}");
    assert_eq!(outcome, Err(SubmitError::Stopped));
    assert!(shard.steps.load(Ordering::Relaxed) < 8);
}

#[test]
fn records_are_reported_once_and_survive_a_crash() {
    let (world, _) = World::single();
    let session = world.run(async |runner| {
        let outcome = runner.run(request("report")).await.unwrap();
        let report = Report {
            record: outcome.records[0].clone(),
            inference_id: "report".to_owned(),
            tokens: GOLDEN.to_vec(),
        };
        assert_eq!(runner.unsubmitted().await.unwrap(), [report]);
        outcome.session
    });
    world.disk.crash(crate::ledger::Crash::Lose);
    world.run(async |runner| {
        assert_eq!(runner.unsubmitted().await.unwrap().len(), 1);
        let key = KvKey::new(session, 0);
        runner.mark_submitted(key, "tx 1").await.unwrap();
        runner.mark_submitted(key, "tx 1").await.unwrap();
        assert!(runner.unsubmitted().await.unwrap().is_empty());
        runner.mark_closed(session).await.unwrap();
        assert!(runner.mark_closed(request("none").session()).await.is_err());
    });
}

#[test]
fn after_a_crash_an_open_session_goes_on_in_the_next_epoch() {
    let (world, _) = World::single();
    world.run(async |runner| {
        let generation = runner.submit(request("crash")).await.unwrap();
        world.sleep(35).await;
        // The node is killed here.
        drop(generation);
    });
    world.disk.crash(crate::ledger::Crash::Keep);
    world.run(async |runner| {
        let left = runner.records(request("crash").session()).await.unwrap();
        assert_eq!((left[0].status, left[0].cause), (WorkStatus::Unverified, Some(Cause::Node)));
        let outcome = runner.run(request("crash")).await.unwrap();
        assert_eq!((outcome.tokens.as_slice(), outcome.records[0].key.epoch), (&GOLDEN[..], 1));
    });
}

#[test]
fn batch_composition_never_changes_the_bytes_of_a_session() {
    let oracle = Oracle::new(13);
    let prompts: Vec<Vec<u32>> =
        (0..16_u32).map(|n| (0..1 + n * 9 % 80).map(|i| (n * 31 + i * 17) % 256).collect()).collect();
    let world = World::new();
    world.add("a", (0, 1));
    world.add("b", (1, 4));
    let alone: Vec<Vec<u32>> = prompts.iter().map(|prompt| oracle.generate(prompt, 6)).collect();
    let batched = world.run(async |runner| {
        let runs = prompts
            .iter()
            .enumerate()
            .map(|(n, prompt)| runner.run(GenerateRequest::new(format!("batch {n}"), prompt.clone(), 6)));
        join_all(runs).await
    });
    for (n, outcome) in batched.iter().enumerate() {
        assert_eq!(outcome.as_ref().unwrap().tokens, alone[n], "session {n}");
    }
}

#[test]
fn it_runs_on_threads_of_tokio_with_a_ledger_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock::new());
        let store = crate::ledger::FileStore::open(folder.path()).unwrap();
        let (ledger, _) = IdempotencyLedger::open(store, LedgerConfig::default(), clock.as_ref()).unwrap();
        let shard = LocalShard::new(model((0, 4)), ShardSettings::new("a"), clock.clone());
        let pool: Vec<Arc<dyn BoundaryAdapter>> = vec![Arc::new(shard)];
        let (runner, driver) =
            HardenedSessionRunner::new(RunnerConfig::default(), clock, ledger, Arc::new(pool));
        let driver = tokio::spawn(driver);
        let runs = (0..32).map(|n| {
            let runner = runner.clone();
            tokio::spawn(async move { runner.run(request(&format!("thread {n}"))).await })
        });
        for outcome in join_all(runs).await {
            assert_eq!(outcome.unwrap().unwrap().tokens, GOLDEN);
        }
        assert_eq!(runner.work().await.unwrap().billable_tokens, 32 * 8);
        runner.stop(0);
        driver.await.unwrap().unwrap();
        assert!(runner.usage()[0].1.keys.is_empty());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random arrivals, cancels and faults: who completes has the oracle's bytes, who does not has a prefix of them,
    /// and nothing is left anywhere.
    #[test]
    fn random_mixes_give_the_oracles_bytes_and_leave_nothing(
        sessions in prop::collection::vec((1_u32..40, 1_u32..9, 0_u64..400, prop::option::of(0_u64..300)), 1..14),
        faults in prop::collection::vec((0_u32..3, 0_u32..6, 0_usize..7), 0..5),
    ) {
        let kinds = [
            Fault::Block, Fault::Late(60), Fault::Die, Fault::ResetBefore, Fault::ResetAfter, Fault::Evict,
            Fault::Panic,
        ];
        let mut world = World::new();
        world.capacity = 200;
        for (id, layers) in [("a0", (0, 2)), ("b0", (2, 4)), ("a1", (0, 2)), ("b1", (2, 4)), ("c", (0, 4))] {
            let shard = world.add(id, layers);
            for (epoch, step, kind) in &faults {
                if usize::from(id.as_bytes()[0]) % 2 == kind % 2 {
                    shard.fault(*epoch, *step, kinds[*kind]);
                }
            }
        }
        let oracle = Oracle::new(13);
        let outcomes = world.run(async |runner| {
            let runs = sessions.iter().enumerate().map(async |(n, (prompt, max_new, at_ms, cancel_ms))| {
                world.sleep(*at_ms).await;
                let prompt: Vec<u32> = (0..*prompt).map(|i| (i * 5 + n as u32) % 256).collect();
                let request = GenerateRequest::new(format!("{n}"), prompt, *max_new);
                let session = request.session();
                let cancel = async {
                    if let Some(ms) = cancel_ms {
                        world.sleep(*ms).await;
                        runner.cancel(session, Cause::Client).await.unwrap();
                    }
                };
                (request.clone(), join(runner.run_with_failover(request), cancel).await.0)
            });
            let outcomes = join_all(runs).await;
            world.sleep(45_000).await;
            let load = runner.telemetry().await.unwrap().load;
            assert_eq!(load, crate::telemetry::Load::default());
            outcomes
        });
        prop_assert_eq!(world.keys_left(), 0);
        for (request, outcome) in outcomes {
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(SubmitError::NoRoute) => continue,
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            };
            let full = oracle.generate(&request.prompt, request.max_new as usize);
            prop_assert_eq!(&outcome.tokens[..], &full[..outcome.tokens.len()]);
            if outcome.status == WorkStatus::Completed {
                prop_assert_eq!(&outcome.tokens, &full);
            }
            let epochs: Vec<u32> = outcome.records.iter().map(|record| record.key.epoch).collect();
            prop_assert_eq!(epochs, (0..outcome.records.len() as u32).collect::<Vec<_>>());
        }
    }
}
