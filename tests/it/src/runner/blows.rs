//! Each worker of a route of three is killed, stopped, cut off or silenced at each step; a further worker stands by.
//!
//! The worker holds the step back, before or after it computed, until the blow has landed, so that it lands there.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use holdfast_node::stage::rows_held;
use holdfast_node::workers::{WorkerCommand, WorkerProcess, signal};
use holdfast_runner::adapter::{Bundle, Payload, StepRef};
use holdfast_runner::ledger::{LedgerConfig, MemoryStore};
use holdfast_runner::proxy::{Proxy, Wire};
use holdfast_runner::worker::{RemoteLimits, RemotePool, WorkerAddress};
use holdfast_runner::{
    AdapterError, BoundaryAdapter, Clock, FailureKind, GenerateRequest, HardenedSessionRunner,
    IdempotencyLedger, KvKey, KvOutcome, Outcome, RunnerConfig, ShardPool, SystemClock, WorkLedger,
    WorkRecord, WorkStatus,
};
use rustix::process::Signal;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::{GOLDEN, PROMPT, all};
use crate::crash::Dice;
use crate::process::holdfastd;

/// Layers of the three shards.
const LAYERS: [(u32, u32); 3] = [(0, 1), (1, 3), (3, 4)];
/// Width of the reference model's activations.
const WIDTH: u32 = 32;
/// Longest silence of a worker, milliseconds.
const HEARTBEAT_MS: u64 = 2_500;
/// How long a shard keeps a key without a beat, milliseconds.
const LEASE_MS: u64 = 3_000;
/// How long a wire stays cut.
const CUT: Duration = Duration::from_millis(50);
/// Within this every case has its outcome.
const LIMIT: Duration = Duration::from_secs(45);
/// Within this nothing is held any more.
const SETTLE: Duration = Duration::from_secs(20);
/// Cases at a time.
const LANES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT when it is all over.
    Stop,
    /// The connection is reset.
    Cut,
    /// The connection goes silent, and speaks again when it is all over.
    HalfOpen,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    blow: Blow,
    victim: usize,
    step: u32,
    /// Whether the victim has computed the step.
    ran: bool,
    /// Whether a lost heartbeat may be made good in another epoch.
    fence: bool,
}

impl Case {
    fn silent(&self) -> bool {
        matches!(self.blow, Blow::Stop | Blow::HalfOpen)
    }
}

/// Workers that nothing happens to, for one case after the other.
struct Lane {
    steady: Vec<WorkerProcess>,
    generation: u64,
}

/// The route, and one worker more as soon as the blow fell.
struct Spared {
    route: RemotePool,
    spare: RemotePool,
    fell: AtomicBool,
}

impl ShardPool for Spared {
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        let mut live = self.route.live();
        if self.fell.load(Ordering::Acquire) {
            live.extend(self.spare.live());
        }
        live
    }
}

fn worker_command() -> WorkerCommand {
    WorkerCommand { program: holdfastd(), backend: vec!["--backend".into(), "reference".into()] }
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

impl Lane {
    async fn new() -> Self {
        let mut steady = Vec::new();
        for layers in LAYERS {
            let worker = WorkerProcess::start(&worker_command(), any_port(), layers, &[]).await;
            steady.push(worker.expect("a worker comes up"));
        }
        Self { steady, generation: 0 }
    }

    async fn run(&mut self, case: Case) {
        let fault = format!("{}@{}", if case.ran { "stall-after" } else { "stall" }, case.step);
        let victim = WorkerProcess::start(&worker_command(), any_port(), LAYERS[case.victim], &[fault]).await;
        let victim = victim.expect("a worker comes up");
        let wire = Proxy::start(victim.addr()).await.expect("a port");
        self.generation += 1;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let pool = |addrs: Vec<SocketAddr>| {
            let address =
                |addr: SocketAddr| WorkerAddress::parse(&format!("http://{addr}")).expect("an address");
            let addresses = addrs.into_iter().map(address).collect();
            RemotePool::start(addresses, self.generation, None, RemoteLimits::default(), clock.clone())
        };
        let addr = |index: usize| if index == case.victim { wire.addr() } else { self.steady[index].addr() };
        let pool = Arc::new(Spared {
            route: pool((0..LAYERS.len()).map(addr).collect()),
            spare: pool(vec![self.steady[case.victim].addr()]),
            fell: AtomicBool::new(false),
        });
        let (route, spare) = join(pool.route.ready(LIMIT), pool.spare.ready(LIMIT)).await;
        assert!(route && spare, "{case:?}: {:?}", pool.route);
        let struck =
            pool.route.shards().into_iter().find(|shard| shard.describe().layers == LAYERS[case.victim]);
        let struck = struck.expect("it is connected").describe().shard_id;

        let mut config = RunnerConfig::default();
        config.session.hold_ms = 200;
        config.session.restart_after_fence = case.fence;
        if case.silent() {
            config.session.lease_ms = LEASE_MS;
        }
        let ledger = IdempotencyLedger::open(MemoryStore::default(), LedgerConfig::default(), clock.as_ref());
        let ledger = ledger.expect("a ledger in memory").0;
        let (handle, driver) = HardenedSessionRunner::new(config, clock.clone(), ledger, pool.clone());
        let driver = tokio::spawn(driver);
        // A session of its own: the workers remember the epochs of the ones before.
        let id = format!("blow-{}", self.generation);
        let mut request = GenerateRequest::new(id, PROMPT.to_vec(), 8);
        request.deadlines.heartbeat_ms = Some(HEARTBEAT_MS);

        let blow = async {
            let mut stalled = victim.stalled();
            stalled.wait_for(|stalled| *stalled).await.expect("the worker lives until the blow");
            pool.fell.store(true, Ordering::Release);
            match case.blow {
                Blow::Kill => signal(victim.pid(), Signal::KILL),
                Blow::Stop => signal(victim.pid(), Signal::STOP),
                Blow::HalfOpen => wire.set(Wire::HalfOpen),
                Blow::Cut => {
                    wire.set(Wire::Cut);
                    sleep(CUT).await;
                    wire.set(Wire::Whole);
                }
            }
        };
        let ended = timeout(LIMIT, join(handle.run_with_failover(request), blow)).await;
        let (outcome, ()) = ended.unwrap_or_else(|_| {
            let held_back = *victim.stalled().borrow();
            panic!("{case:?}: no end within {LIMIT:?}, step held back: {held_back}, {:?}", pool.route);
        });
        let outcome = outcome.expect("the request is taken");
        let work = check(&case, &outcome, &struck);

        // The victim wakes up and finds its key fenced, by its own clock if by nothing else.
        if case.silent() {
            sleep(Duration::from_millis(LEASE_MS)).await;
            signal(victim.pid(), Signal::CONT);
            wire.set(Wire::Whole);
        }
        if case.blow != Blow::Kill {
            let refused = timeout(SETTLE, fenced(&pool.route, &case, outcome.session)).await;
            refused.unwrap_or_else(|_| panic!("{case:?}: the old key still takes steps"));
        }
        let free = async {
            while rows_held(&pool.route, clock.as_ref()).await + rows_held(&pool.spare, clock.as_ref()).await
                > 0
            {}
        };
        timeout(SETTLE, free).await.unwrap_or_else(|_| panic!("{case:?}: KV is left"));
        assert_eq!(
            pool.route.shards().len(),
            LAYERS.len() - usize::from(case.blow == Blow::Kill),
            "{case:?}"
        );
        assert!(
            handle.usage().iter().all(|(_, usage)| usage.keys.is_empty()),
            "{case:?}: {:?}",
            handle.usage()
        );
        assert_eq!(handle.work().await, Ok(work), "{case:?}");
        handle.stop(0);
        let ended =
            timeout(SETTLE, driver).await.unwrap_or_else(|_| panic!("{case:?}: the runner does not end"));
        ended.expect("no panic").expect("the ledger in memory can be written");
    }
}

/// Whether the outcome is as specified; gives what the ledger has to say.
fn check(case: &Case, outcome: &Outcome, struck: &str) -> WorkLedger {
    let (kind, status) = match case.blow {
        Blow::Kill => (FailureKind::WorkerDeath, WorkStatus::Unverified),
        Blow::Cut => (FailureKind::StreamReset, WorkStatus::Failed),
        Blow::Stop | Blow::HalfOpen => (FailureKind::HeartbeatLost, WorkStatus::Failed),
    };
    let again = !case.silent() || case.fence;
    let records = &outcome.records;
    // Workers that are all there, and agree on what became of the step, let the epoch go on.
    let goes_on = case.blow == Blow::Cut && records.len() == 1;
    if !goes_on {
        let first = &records[0];
        let found = (first.key.epoch, first.status, first.failure_kind, first.tokens, first.uncertain_step);
        let tokens = (case.step > 0).then_some(case.step);
        assert_eq!(found, (0, status, Some(kind), tokens, Some(case.step)), "{case:?}: {records:?}");
        assert_eq!(
            (first.kv, first.restartable),
            (KvOutcome::Released, Some(again)),
            "{case:?}: {records:?}"
        );
        assert_eq!(first.excluded_node.as_deref(), Some(struck), "{case:?}: {records:?}");
        assert!(first.delivered_tokens <= case.step, "{case:?}: {records:?}");
    }
    if again {
        assert_eq!(outcome.tokens, GOLDEN, "{case:?}: {records:?}");
        assert_eq!((outcome.status, outcome.kind), (WorkStatus::Completed, None), "{case:?}: {records:?}");
        let last = records.last().expect("it is completed");
        assert_eq!(last.key.epoch, u32::from(!goes_on), "{case:?}: {records:?}");
        assert_eq!((last.status, last.tokens), (WorkStatus::Completed, Some(8)), "{case:?}: {records:?}");
        assert_eq!(records.len(), 2 - usize::from(goes_on), "{case:?}: {records:?}");
        assert!(goes_on || !last.shards.iter().any(|shard| shard == struck), "{case:?}: {records:?}");
    } else {
        assert_eq!(outcome.tokens, GOLDEN[..case.step as usize], "{case:?}: {records:?}");
        assert_eq!((outcome.status, outcome.kind), (status, Some(kind)), "{case:?}: {records:?}");
        assert_eq!(records.len(), 1, "{case:?}: {records:?}");
    }
    let work: WorkLedger = records.iter().collect();
    let count = |status| records.iter().filter(|record: &&WorkRecord| record.status == status).count() as u64;
    let wanted = WorkLedger {
        completed: u64::from(again),
        cancelled: 0,
        failed: count(WorkStatus::Failed),
        unverified: u64::from(case.blow == Blow::Kill),
        billable_tokens: if again { 8 } else { 0 },
    };
    assert_eq!(work, wanted, "{case:?}");
    work
}

/// Waits until the struck worker is there again, and refuses a step of the first epoch as one without KV.
async fn fenced(route: &RemotePool, case: &Case, session: holdfast_runner::SessionId) {
    let key = KvKey::new(session, 0);
    let position = if case.step == 0 { 0 } else { 3 + case.step };
    let payload = if case.victim == 0 {
        Payload::Tokens(vec![7])
    } else {
        Payload::Hidden { rows: 1, cols: WIDTH, data: vec![0; WIDTH as usize * 4] }
    };
    let at = StepRef { step: case.step, fingerprint: [7; 32] };
    loop {
        let shards = route.shards();
        let shard = shards.iter().find(|shard| shard.describe().layers == LAYERS[case.victim]);
        if let Some(shard) = shard {
            let bundle = Bundle::new(position, payload.clone());
            match shard.decode(key, at, bundle).await {
                Err(
                    AdapterError::StaleEpoch { .. } | AdapterError::CacheMiss(_) | AdapterError::LeaseExpired,
                ) => return,
                // On its way back, or the stalled step has not come to its end.
                Err(AdapterError::StreamReset(_) | AdapterError::Conflict(_)) => {}
                other => panic!("{case:?}: {other:?}"),
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn run(cases: Vec<Case>) {
    // On this thread alone: the workers end with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cases = Mutex::new(VecDeque::from(cases));
        let lane = || async {
            let mut lane = Lane::new().await;
            loop {
                let Some(case) = cases.lock().await.pop_front() else { return };
                println!("{case:?}");
                lane.run(case).await;
            }
        };
        join_all((0..LANES).map(|_| lane())).await;
    });
}

#[test]
fn a_blow_to_any_worker_at_any_step_ends_as_specified_and_leaves_nothing() {
    let mut dice = Dice::new();
    let mut cases = Vec::new();
    for blow in [Blow::HalfOpen, Blow::Stop, Blow::Kill, Blow::Cut] {
        for victim in 0..LAYERS.len() {
            let steps = if all() { (0..8).collect() } else { vec![dice.below(8) as u32] };
            for step in steps {
                let (ran, fence) = (dice.below(2) == 1, dice.below(2) == 1);
                cases.push(Case { blow, victim, step, ran, fence });
            }
        }
    }
    if let Ok(name) = std::env::var("HOLDFAST_CASE") {
        cases.retain(|case| format!("{case:?}").contains(&name));
    }
    run(cases);
}
