//! What a node does after its commits, in a thread of its own: old heights are removed piece by piece, and snapshots are
//! made when they are due.
//!
//! ```text
//!  consensus ── committed(height) ──▶ [latest height, pinned snapshot height] ──▶ thread: snapshot, then prune
//! ```
//!
//! Consensus only leaves a height; it never waits for a snapshot, and for pruning at most as long as one piece takes to
//! write. A height whose snapshot is due is pinned at once, so that it is still there when the thread comes to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use holdfast_app::state::{CommitStore, Pin, Pruning};

/// Rows removed at a time.
const PIECE: usize = 2_000;

/// Says whether a piece of upkeep has to end early.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether the node is stopping.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Makes the snapshot of a height, which stays readable meanwhile. Returns early when the flag is set.
pub type MakeSnapshot = Box<dyn FnMut(i64, &StopFlag) -> anyhow::Result<()> + Send>;

/// When snapshots are made and how.
pub struct SnapshotDuty {
    /// Heights between two snapshots.
    pub interval: std::num::NonZero<u64>,
    /// Makes one.
    pub make: MakeSnapshot,
}

impl std::fmt::Debug for SnapshotDuty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotDuty").field("interval", &self.interval).finish_non_exhaustive()
    }
}

/// What waits for the thread.
#[derive(Default)]
struct Waiting {
    /// Pruning is due.
    prune: bool,
    /// A height whose snapshot is due, and which is kept for it.
    snapshot: Option<Pin>,
    /// A snapshot is being made.
    busy: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    stop: StopFlag,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The upkeep of one state database. Ends with [`Upkeep::stop`], or when it is dropped.
pub struct Upkeep<S: CommitStore> {
    store: S,
    pruning: Pruning,
    every: Option<std::num::NonZero<u64>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl<S: CommitStore> std::fmt::Debug for Upkeep<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upkeep")
            .field("pruning", &self.pruning)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

impl<S: CommitStore + Clone> Upkeep<S> {
    /// Starts the thread over `store`, which was opened with [`Pruning::keep_recent`] of the same policy. What a run before
    /// left to remove is removed now.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(store: S, pruning: Pruning, snapshots: Option<SnapshotDuty>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.waiting().prune = pruning.interval().is_some();
        let (every, make) = snapshots.map(|duty| (duty.interval, duty.make)).unzip();
        let (own, theirs) = (store.clone(), shared.clone());
        let thread =
            std::thread::Builder::new().name("upkeep".into()).spawn(move || work(&own, &theirs, make))?;
        Ok(Self { store, pruning, every, shared, thread: Some(thread) })
    }

    /// Tells that `height` is committed. Returns at once.
    pub fn committed(&self, height: i64) {
        let prune = self.pruning.is_due(height);
        let place = u64::try_from(height).unwrap_or(0);
        let snapshot = height > 0 && self.every.is_some_and(|every| place.is_multiple_of(every.get()));
        if !prune && !snapshot {
            return;
        }
        let mut waiting = self.shared.waiting();
        waiting.prune |= prune;
        if snapshot {
            if waiting.busy || waiting.snapshot.is_some() {
                tracing::warn!(
                    height,
                    "no snapshot: the one before is still being made; raise snapshot-interval"
                );
            } else {
                match self.store.pin(height) {
                    Ok(pin) => waiting.snapshot = Some(pin),
                    Err(error) => tracing::error!(height, %error, "no snapshot"),
                }
            }
        }
        drop(waiting);
        self.shared.wake.notify_one();
    }

    /// Ends the thread: after the piece of pruning under way, and as soon as a snapshot under way has seen the flag.
    pub fn stop(mut self) {
        self.end();
    }
}

impl<S: CommitStore> Upkeep<S> {
    fn end(&mut self) {
        self.shared.stop.set();
        // Under the lock: between its look at the flag and its sleep the thread would miss the call.
        drop(self.shared.waiting());
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the upkeep thread had panicked");
        }
    }
}

impl<S: CommitStore> Drop for Upkeep<S> {
    fn drop(&mut self) {
        self.end();
    }
}

fn work<S: CommitStore>(store: &S, shared: &Shared, mut make: Option<MakeSnapshot>) {
    loop {
        let (snapshot, prune) = {
            let mut waiting = shared.waiting();
            loop {
                if shared.stop.is_set() {
                    return;
                }
                if waiting.prune || waiting.snapshot.is_some() {
                    break;
                }
                waiting = shared.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            waiting.busy = waiting.snapshot.is_some();
            (waiting.snapshot.take(), std::mem::take(&mut waiting.prune))
        };
        if let (Some(pin), Some(make)) = (snapshot, make.as_mut()) {
            let height = pin.height();
            match make(height, &shared.stop) {
                Ok(()) if shared.stop.is_set() => {}
                Ok(()) => tracing::info!(height, "made a snapshot"),
                Err(error) => tracing::error!(height, error = format!("{error:#}"), "no snapshot"),
            }
            drop(pin);
            shared.waiting().busy = false;
        }
        if prune {
            remove(store, &shared.stop);
        }
    }
}

/// Removes what left the window, until all is gone or the node stops.
fn remove<S: CommitStore>(store: &S, stop: &StopFlag) {
    let mut rows = 0usize;
    while !stop.is_set() {
        match store.prune(PIECE) {
            Ok(0) => break,
            Ok(removed) => rows = rows.saturating_add(removed),
            Err(error) => {
                // The next commit fails as well and stops the node; here nothing is lost.
                tracing::error!(%error, "pruning");
                return;
            }
        }
    }
    if rows > 0 {
        tracing::debug!(rows, earliest = store.earliest_height(), "pruned");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use holdfast_app::state::{DiskStore, StateError, StateOptions};
    use holdfast_store::{KvRead, WriteSet};

    use super::*;

    const MODULES: [&str; 2] = ["bank", "gov"];

    fn open(dir: &std::path::Path, pruning: Pruning) -> DiskStore {
        let options =
            StateOptions { keep_recent: pruning.keep_recent(), threads: 1, ..StateOptions::default() };
        DiskStore::open(dir, &MODULES, options).unwrap()
    }

    fn block(height: i64) -> WriteSet {
        let row = |n: i64| (format!("bank/{}", n % 40).into_bytes(), Some(height.to_be_bytes().to_vec()));
        (height..height + 20).map(row).collect()
    }

    fn commit(store: &DiskStore, upkeep: Option<&Upkeep<DiskStore>>, height: i64) -> [u8; 32] {
        let prepared = store.prepare(height, &block(height)).unwrap();
        let hash = prepared.app_hash();
        store.commit(prepared).unwrap();
        if let Some(upkeep) = upkeep {
            upkeep.committed(height);
        }
        hash
    }

    /// Waits for what another thread does.
    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn old_heights_go_in_the_background_and_no_app_hash_changes() {
        let (kept, pruned) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let policy = Pruning::custom(3, 10).unwrap();
        let (whole, store) = (open(kept.path(), Pruning::Nothing), open(pruned.path(), policy));
        let upkeep = Upkeep::start(store.clone(), policy, None).unwrap();
        for height in 1..=95 {
            assert_eq!(
                commit(&store, Some(&upkeep), height),
                commit(&whole, None, height),
                "height {height}"
            );
        }
        until("pruned to the last multiple of ten", || store.earliest_height() >= 88);
        let earliest = store.earliest_height();
        assert!((88..=93).contains(&earliest), "between 90 - 3 + 1 and 95 - 3 + 1: {earliest}");
        let error = store.snapshot_at(earliest - 1).unwrap_err();
        assert!(matches!(error, StateError::Pruned { .. }), "{error}");
        for height in earliest..=95 {
            let (a, b) = (store.snapshot_at(height).unwrap(), whole.snapshot_at(height).unwrap());
            assert_eq!(a.get(b"bank/7").unwrap(), b.get(b"bank/7").unwrap());
        }
        upkeep.stop();
        drop(store);
        // What was left over is removed after the next start.
        let store = open(pruned.path(), policy);
        let _upkeep = Upkeep::start(store.clone(), policy, None).unwrap();
        until("pruned at the start", || store.earliest_height() == 93);
        assert_eq!(store.app_hash(), whole.app_hash());
    }

    #[test]
    fn the_height_of_a_snapshot_stays_until_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let policy = Pruning::Everything;
        let store = open(dir.path(), policy);
        let (begun, begins) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let read = store.clone();
        let make: MakeSnapshot = Box::new(move |height, _| {
            begun.send(height)?;
            gone.recv()?;
            let view = read.snapshot_at(height)?;
            anyhow::ensure!(view.get(format!("bank/{}", height % 40).as_bytes())?.is_some());
            begun.send(-height)?;
            Ok(())
        });
        let duty = SnapshotDuty { interval: std::num::NonZero::new(7).unwrap(), make };
        let upkeep = Upkeep::start(store.clone(), policy, Some(duty)).unwrap();
        for height in 1..=40 {
            commit(&store, Some(&upkeep), height);
        }
        let soon = Duration::from_secs(60);
        assert_eq!(
            begins.recv_timeout(soon).unwrap(),
            7,
            "the first one that is due; 14 to 35 come while it is made"
        );
        assert!(store.earliest_height() <= 7, "pinned, though only two heights are kept");
        go.send(()).unwrap();
        assert_eq!(begins.recv_timeout(soon).unwrap(), -7);
        until("pruned behind it", || store.earliest_height() == 39);
        for height in 41..=50 {
            commit(&store, Some(&upkeep), height);
        }
        assert_eq!(begins.recv_timeout(soon).unwrap(), 42);
        assert!(store.earliest_height() <= 42);
        go.send(()).unwrap();
        until("and behind the next one", || store.earliest_height() == 49);
        upkeep.stop();
    }

    #[test]
    fn a_snapshot_under_way_does_not_hold_up_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), Pruning::Nothing);
        let (begun, begins) = mpsc::channel();
        let make: MakeSnapshot = Box::new(move |height, stop| {
            begun.send(height)?;
            while !stop.is_set() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let duty = SnapshotDuty { interval: std::num::NonZero::new(2).unwrap(), make };
        let upkeep = Upkeep::start(store.clone(), Pruning::Nothing, Some(duty)).unwrap();
        commit(&store, Some(&upkeep), 1);
        commit(&store, Some(&upkeep), 2);
        assert_eq!(begins.recv_timeout(Duration::from_secs(60)).unwrap(), 2);
        upkeep.stop();
        drop(store);
        // Thread and pin are gone with it: the folder is free.
        drop(open(dir.path(), Pruning::Nothing));
    }
}
