//! A coordinator that is killed at each write and each sync of its ledger, and started again on what it left.
//!
//! The coordinator is this program again. It runs two sessions and reports each to a receiver that knows an answer it
//! has heard before; every step that its shard computes is noted in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_runner::adapter::{
    AdapterFuture, OpenPlan, Opened, ReleaseAck, ShardInfo, StepState, StopAck, Usage,
};
use holdfast_runner::backends::reference::{DEFAULT_SEED, ReferenceModel};
use holdfast_runner::ledger::{FileStore, LedgerConfig, LedgerStore, Syncer};
use holdfast_runner::shard::{LocalShard, ShardSettings};
use holdfast_runner::{
    BoundaryAdapter, Bundle, Cause, Clock, FailureKind, GenerateRequest, HardenedSessionRunner,
    IdempotencyLedger, KvKey, RunnerConfig, RunnerHandle, StepOut, StepRef, SystemClock, WorkStatus,
};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;

use super::{Fixed, GOLDEN, PROMPT, all, child};
use crate::crash::Dice;
use crate::process::{Ran, Running, SHORT, command, run, until};

const FOLDER: &str = "HOLDFAST_IT_LEDGER";
const KILL: &str = "HOLDFAST_IT_KILL";
const SESSIONS: [&str; 2] = ["one", "two"];

/// When, at an operation of the store, the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    /// A write that is half done.
    Half,
    After,
}

/// A folder's store in a process that is killed at a certain operation.
struct Deadly {
    inner: FileStore,
    fate: Arc<Fate>,
}

struct Fate {
    kill: Option<(u64, When)>,
    operations: Mutex<Vec<&'static str>>,
    /// All that was appended, for who asks what came before.
    written: Mutex<Vec<u8>>,
}

impl Fate {
    fn around<T>(&self, what: &'static str, operation: impl FnOnce() -> T) -> T {
        let number = {
            let mut operations = self.operations.lock().expect("no panic");
            operations.push(what);
            operations.len() as u64 - 1
        };
        let kill = self.kill.filter(|(at, _)| *at == number).map(|(_, when)| when);
        if kill == Some(When::Before) {
            die();
        }
        let value = operation();
        if kill.is_some() {
            die();
        }
        value
    }
}

fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

impl LedgerStore for Deadly {
    fn generation(&self) -> io::Result<u64> {
        self.inner.generation()
    }

    fn raise_generation(&mut self, to: u64) -> io::Result<()> {
        self.fate.clone().around("raise", || self.inner.raise_generation(to))
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        self.inner.segments()
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        self.inner.read(segment)
    }

    fn create(&mut self, segment: u64, header: &[u8]) -> io::Result<()> {
        self.fate.clone().around("create", || self.inner.create(segment, header))
    }

    fn resume(&mut self, segment: u64, len: u64) -> io::Result<()> {
        self.fate.clone().around("resume", || self.inner.resume(segment, len))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fate = self.fate.clone();
        let half = matches!(fate.kill, Some((_, When::Half)));
        fate.clone().around("append", || {
            let now = fate.operations.lock().expect("no panic").len() as u64 - 1;
            let torn = half && fate.kill.is_some_and(|(at, _)| at == now);
            let bytes = if torn { &bytes[..bytes.len() / 2] } else { bytes };
            fate.written.lock().expect("no panic").extend_from_slice(bytes);
            self.inner.append(bytes)
        })
    }

    fn syncer(&self) -> Syncer {
        let (fate, inner) = (self.fate.clone(), self.inner.syncer());
        Arc::new(move || fate.around("sync", || inner()))
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        self.fate.clone().around("remove", || self.inner.remove(segment))
    }
}

/// A shard whose steps are noted before they are computed.
struct Noted {
    inner: LocalShard<ReferenceModel>,
    fate: Arc<Fate>,
    notes: PathBuf,
}

impl Noted {
    fn note(&self, key: KvKey, step: &StepRef) {
        let written = self.fate.written.lock().expect("no panic");
        let intent = written.windows(32).any(|bytes| bytes == step.fingerprint);
        assert!(intent, "step {} of {key:?} runs without its intent", step.step);
        append(&self.notes, &format!("{} {} {}", key.session, key.epoch, step.step));
    }
}

fn append(file: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).expect("writable");
    file.write_all(format!("{line}\n").as_bytes()).expect("writable");
}

impl BoundaryAdapter for Noted {
    fn describe(&self) -> ShardInfo {
        self.inner.describe()
    }

    fn open(&self, key: KvKey, plan: OpenPlan) -> AdapterFuture<'_, Opened> {
        self.inner.open(key, plan)
    }

    fn prefill(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.note(key, &step);
        self.inner.prefill(key, step, bundle)
    }

    fn decode(&self, key: KvKey, step: StepRef, bundle: Bundle) -> AdapterFuture<'_, StepOut> {
        self.note(key, &step);
        self.inner.decode(key, step, bundle)
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

fn request(id: &str) -> GenerateRequest {
    GenerateRequest::new(id, PROMPT.to_vec(), 8)
}

/// Reports what is completed and not known to be reported.
async fn report(handle: &RunnerHandle, receiver: &Path) {
    for record in handle.unsubmitted().await.expect("the runner runs") {
        if record.status == WorkStatus::Completed {
            let tokens = record.tokens.expect("it is completed");
            append(receiver, &format!("{} {} {tokens}", record.key.session, record.key.epoch));
            handle.mark_submitted(record.key, "receipt").await.expect("it is accepted");
        }
    }
}

/// The coordinator, in a process of its own.
#[test]
fn a_coordinator_to_be_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let kill = std::env::var(KILL).ok().map(|text| {
        let (at, when) = text.split_once(' ').expect("a number and a word");
        let when = match when {
            "Before" => When::Before,
            "Half" => When::Half,
            _ => When::After,
        };
        (at.parse().expect("a number"), when)
    });
    let fate = Arc::new(Fate { kill, operations: Mutex::default(), written: Mutex::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store =
            Deadly { inner: FileStore::open(folder.join("ledger")).expect("free"), fate: fate.clone() };
        let ledger = IdempotencyLedger::open(store, LedgerConfig::default(), clock.as_ref());
        let (ledger, _) = ledger.expect("a ledger that a killed process left");
        let model = ReferenceModel::new(DEFAULT_SEED, (0, 4)).expect("the model");
        let inner = LocalShard::new(model, ShardSettings::new("shard"), clock.clone());
        let shard = Noted { inner, fate: fate.clone(), notes: folder.join("steps") };
        let pool = Arc::new(Fixed(vec![Arc::new(shard)]));
        let (handle, driver) = HardenedSessionRunner::new(RunnerConfig::default(), clock, ledger, pool);
        let driver = tokio::spawn(driver);
        let receiver = folder.join("receiver");
        report(&handle, &receiver).await;
        for id in SESSIONS {
            let outcome = handle.run_with_failover(request(id)).await.expect("it is taken");
            assert_eq!(outcome.tokens, GOLDEN, "{outcome:?}");
            report(&handle, &receiver).await;
        }
        handle.stop(0);
        driver.await.expect("no panic").expect("the disk holds");
    });
    let operations = fate.operations.lock().expect("no panic").join(" ");
    fs::write(folder.join("operations"), operations).expect("writable");
}

/// Runs the coordinator in `folder`, to be killed there or to end; gives what it was.
fn coordinator(folder: &Path, kill: Option<(u64, When)>) -> Ran {
    let mut settings = vec![(FOLDER, folder.display().to_string())];
    settings.extend(kill.map(|(at, when)| (KILL, format!("{at} {when:?}"))));
    run(&mut child("runner::ledger::a_coordinator_to_be_killed", &settings), SHORT)
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The records of a ledger as another program reads them: kind, session and epoch, body.
fn records(folder: &Path) -> Vec<(u8, String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "log")) {
        let bytes = fs::read(file).expect("readable");
        let mut rest = &bytes[32..];
        while let [a, b, c, d, _, _, _, _, body @ ..] = rest {
            let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let (body, after) = body.split_at(length);
            found.push((body[0], hex::encode(&body[1..21]), body.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty(), "the last start cut what was torn");
    }
    found
}

/// Nothing ran twice, nothing was reported twice or not at all, and each attempt has one record.
fn check(folder: &Path, what: &str) {
    let steps = lines(&folder.join("steps"));
    let once: BTreeSet<&String> = steps.iter().collect();
    assert_eq!(once.len(), steps.len(), "{what}: a step ran twice: {steps:?}");
    let reported: BTreeSet<String> = lines(&folder.join("receiver")).into_iter().collect();
    let sessions: BTreeSet<&str> = reported.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!((reported.len(), sessions.len()), (2, 2), "{what}: {reported:?}");
    assert!(reported.iter().all(|line| line.ends_with(" 8")), "{what}: {reported:?}");

    let log = records(&folder.join("ledger"));
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut opened = BTreeSet::new();
    let mut intents = BTreeSet::new();
    let mut commits = BTreeSet::new();
    for (kind, key, body) in &log {
        let step = || (key.clone(), body.get(21..25).map(<[u8]>::to_vec));
        match kind {
            1 => assert!(opened.insert(key.as_str()), "{what}: an epoch was opened twice"),
            2 => assert!(intents.insert(step()), "{what}: a step was begun twice"),
            3 => assert!(intents.contains(&step()) && commits.insert(step()), "{what}: a commit of nothing"),
            7 => *ends.entry(key).or_default() += 1,
            _ => {}
        }
    }
    assert_eq!(ends.keys().copied().collect::<BTreeSet<_>>(), opened, "{what}");
    assert!(ends.values().all(|count| *count == 1), "{what}: {ends:?}");
    for line in &steps {
        let [session, epoch, step] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let number = |text: &str| text.parse::<u32>().expect("a number").to_le_bytes();
        let begun = (format!("{session}{}", hex::encode(number(epoch))), Some(number(step).to_vec()));
        assert!(intents.contains(&begun), "{what}: {line} ran without an intent");
    }

    let store = FileStore::open(folder.join("ledger")).expect("nobody has it any more");
    let opened = IdempotencyLedger::open(store, LedgerConfig::default(), &SystemClock::new());
    let (ledger, recovery) = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(recovery.terminated.is_empty() && recovery.cut.is_none(), "{what}: {recovery:?}");
    assert_eq!((ledger.work().completed, ledger.work().billable_tokens), (2, 16), "{what}");
    assert_eq!(ledger.work().unverified + 2, ends.len() as u64, "{what}");
    assert!(ledger.unsubmitted().all(|record| record.status != WorkStatus::Completed), "{what}");
    for id in SESSIONS {
        let session = request(id).session();
        let last = ledger.last_epoch(session).expect("it ran");
        for epoch in 0..=last {
            let record = ledger.record(KvKey::new(session, epoch)).expect("each attempt has one");
            let found = (record.status, record.failure_kind, record.cause);
            if epoch == last {
                assert_eq!((found, record.tokens), ((WorkStatus::Completed, None, None), Some(8)), "{what}");
            } else {
                let wanted = (WorkStatus::Unverified, Some(FailureKind::WorkerDeath), Some(Cause::Node));
                assert_eq!(found, wanted, "{what}: {record:?}");
            }
        }
        assert_eq!(ledger.committed_tokens(session, last), GOLDEN, "{what}");
    }
}

#[test]
fn a_coordinator_killed_at_any_write_or_sync_replays_nothing_and_bills_everything_once() {
    let clean = tempfile::tempdir().expect("a temporary folder");
    coordinator(clean.path(), None).ok();
    check(clean.path(), "not killed");
    let operations = fs::read_to_string(clean.path().join("operations")).expect("the operations");
    let operations: Vec<&str> = operations.split(' ').collect();
    assert!(operations.iter().filter(|what| **what == "sync").count() >= 6, "{operations:?}");

    let mut dice = Dice::new();
    let mut kills = Vec::new();
    for (at, what) in operations.iter().enumerate() {
        let write = *what == "append";
        if !write || all() || dice.below(8) == 0 {
            kills.extend([When::Before, When::After].map(|when| (at as u64, when)));
        }
        if write && (all() || dice.below(4) == 0) {
            kills.push((at as u64, When::Half));
        }
    }
    let mut again: Vec<Option<(u64, When)>> = vec![None];
    again.extend(
        (0..5).flat_map(|at| [Some((at, When::Before)), Some((at, When::Half)), Some((at, When::After))]),
    );
    let (total, mut missed) = (kills.len(), 0);
    for kill in kills {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let second = again[dice.below(again.len() as u64) as usize];
        let what = format!("killed at {kill:?} {}, then {second:?}", operations[kill.0 as usize]);
        let first = coordinator(folder.path(), Some(kill));
        match first.status.signal() {
            Some(9) => {}
            // Turns fell otherwise than in the run that was counted, and it had ended before.
            None if first.status.success() => missed += 1,
            _ => panic!("{what}: {first:?}"),
        }
        if let Some(second) = second {
            coordinator(folder.path(), Some(second));
        }
        let last = coordinator(folder.path(), None);
        assert!(last.status.success(), "{what}: {last:?}");
        check(folder.path(), &what);
    }
    println!("{total} kills, {missed} of them after the end");
    assert!(missed * 10 <= total, "{missed} of {total} were not killed");
}

/// Waits for the first line of a process as JSON.
fn first_line(running: &Running, what: &str) -> Value {
    let line = until(SHORT, what, || running.out().split_once('\n').map(|(line, _)| line.to_owned()));
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{what}: {error}: {line}"))
}

#[test]
fn a_ledger_belongs_to_one_coordinator_and_a_killed_one_leaves_an_unverified_attempt() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ledger = folder.path().to_str().expect("a name in UTF-8");
    let words = ["worker", "--listen", "127.0.0.1:0", "--output", "json", "--fault", "stall-after@3"];
    let worker = Running::start(&mut command(&words));
    let address =
        first_line(&worker, "the worker's address")["address"].as_str().expect("an address").to_owned();
    let url = format!("http://{address}");
    let generate = ["generate", "abcd", "--ledger", ledger, "--output", "json"];
    let mut first = Running::start(&mut command(&[&generate[..], &["--worker-url", &url]].concat()));
    until(SHORT, "the step is held back", || worker.out().contains("stalled").then_some(()));

    let second = run(&mut command(&generate), Duration::from_secs(20));
    second.refused(1, &["--ledger", "in use by another process", "(cli error 95)"]);
    assert!(first.runs());
    first.signal("KILL");
    assert!(!first.wait(SHORT).status.success());

    let third = run(&mut command(&generate), SHORT).json();
    assert_eq!(third["status"], "completed");
    let work = &third["ledger"];
    assert_eq!((&work["completed"], &work["unverified"]), (&1.into(), &1.into()), "{work}");
    assert_eq!(work["billable_tokens"], 32, "{work}");
    let log = records(folder.path());
    let ends = log.iter().filter(|(kind, ..)| *kind == 7).map(|(_, key, _)| key).collect::<BTreeSet<_>>();
    assert_eq!((ends.len(), log.iter().filter(|(kind, ..)| *kind == 7).count()), (2, 2));
    // The killed one's epoch, with its three committed steps and the fourth in doubt.
    let of_first = |kind: u8| log.iter().filter(|(found, key, _)| *found == kind && *key == log[0].1).count();
    assert_eq!((log[0].0, of_first(2), of_first(3), of_first(7)), (1, 4, 3, 1));
}
