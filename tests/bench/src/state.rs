//! Recovery, snapshots and proofs of a chain with a million keys: one database for the three.
//!
//! | rows | what is timed |
//! |---|---|
//! | `recovery` | the way from the files that a kill -9 leaves to the first answer: database, application, a read |
//! | `snapshot` | writing a snapshot, and filling an empty database from it, beside a synced copy of the same bytes |
//! | `proof` | the query `/store/<module>/key` with a proof of presence and of absence, beside the same without |
//!
//! The files are copied while the database is open and at rest, so its journal is as a killed process leaves it. In `cold`
//! rows the system is told to forget them first; it may have kept some.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_app::app::{App, AppOptions, Block, state_spaces};
use holdfast_app::proofs::{KeyRequest, query};
use holdfast_app::snapshots::{FORMAT, SnapshotStore, restore_folder};
use holdfast_app::state::{CommitStore, DiskStore, StateOptions};
use holdfast_store::{BranchKv, KvWrite};

use crate::scene::Scene;
use crate::store::{folder_bytes, fsync_probe, settle};
use crate::workload::{SEED, Workload, Write};
use crate::{Better, Outcome, Row, median, percentile};

const MODULE: &str = "bank";
/// A collection that the module does not use.
const COLLECTION: u8 = 0xfd;
const LOAD_BATCH: u64 = 100_000;
const UPDATES: usize = 1_000;
const RECOVERY_MS: f64 = 2_000.0;
const PROOF_US: f64 = 150.0;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Keys.
    pub keys: u64,
    /// Blocks of a thousand updates behind the load: what the journal holds.
    pub blocks: usize,
    /// Recoveries, of which the median counts.
    pub recoveries: usize,
    /// Proofs of each kind, and plain reads.
    pub proofs: usize,
    /// Whether to wait until background work of the load is done.
    pub settle: bool,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self { keys: 1_000_000, blocks: 50, recoveries: 3, proofs: 5_000, settle: true };
    /// A check that everything runs.
    pub const QUICK: Self = Self { keys: 20_000, blocks: 3, recoveries: 1, proofs: 200, settle: false };
}

/// Key inside the module.
fn module_key(key: &[u8; 32]) -> Vec<u8> {
    [&[COLLECTION], key.as_slice()].concat()
}

fn full_key(key: &[u8; 32]) -> Vec<u8> {
    [MODULE.as_bytes(), b"/", &module_key(key)].concat()
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// Runs all three.
pub fn run(size: Size) -> Result<Outcome> {
    let mut scene = Scene::new(4, 100, None)?;
    let block = scene.block(Vec::new());
    scene.app.finalize_block(&block)?;
    scene.app.commit()?;
    let Scene { app, dir, .. } = scene;
    let store = app.shared().store().clone();
    drop(app);
    let mut work = Workload::new(SEED);
    while work.count < size.keys {
        let until = size.keys.min(work.count + LOAD_BATCH);
        let batch: Vec<Write> = (work.count..until).map(|_| work.next_load()).collect();
        commit(&store, &batch)?;
    }
    for _ in 0..size.blocks {
        let batch: Vec<Write> = (0..UPDATES).map(|_| work.next_update()).collect();
        commit(&store, &batch)?;
    }
    if size.settle {
        settle(dir.path());
    }
    let mut rows = Vec::new();
    let recovery = recovery(size, &store, dir.path(), block.time_ns, &work, &mut rows)?;
    let proof = proof(size, &store, &mut work, &mut rows)?;
    let snapshot = snapshot(&store, dir.path(), &mut rows)?;
    let details = serde_json::json!({ "recovery": recovery, "proof": proof, "snapshot": snapshot });
    Ok(Outcome { rows, details })
}

fn commit(store: &DiskStore, batch: &[Write]) -> Result<()> {
    let view = store.snapshot();
    let mut branch = BranchKv::new(&view);
    for write in batch {
        branch.set(&full_key(&write.key), &write.value)?;
    }
    let prepared = store.prepare(store.latest_height() + 1, &branch.into_writes())?;
    Ok(store.commit(prepared)?)
}

/// Copies a folder, each file synced.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
            File::open(&target)?.sync_all()?;
        }
    }
    Ok(())
}

/// Tells the system that nobody will read these files soon.
fn forget(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget(&entry.path())?;
        } else {
            #[cfg(target_os = "linux")]
            rustix::fs::fadvise(File::open(entry.path())?, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

fn recovery(
    size: Size,
    store: &DiskStore,
    dir: &Path,
    begun_ns: u64,
    work: &Workload,
    rows: &mut Vec<Row>,
) -> Result<serde_json::Value> {
    let mut details = serde_json::Map::new();
    details.insert("state_bytes".into(), folder_bytes(&dir.join("state")).into());
    details.insert("fsync_probe_ms".into(), fsync_probe(dir)?.into());
    for (suffix, cold) in [("", false), ("_cold", true)] {
        let (mut opens, mut apps, mut readies, mut blocks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..size.recoveries {
            let left = dir.join("left");
            copy(&dir.join("state"), &left)?;
            if cold {
                forget(&left)?;
            }
            let mut reads = work.clone();
            let begun = Instant::now();
            let opened = DiskStore::open(&left, &state_spaces(), StateOptions::default())?;
            opens.push(ms(begun.elapsed()));
            let mut app = App::open(opened, AppOptions::default())?;
            apps.push(ms(begun.elapsed()));
            let shared = app.shared();
            let value = shared.view(0)?.query().store.get(&full_key(&reads.next_read()))?;
            readies.push(ms(begun.elapsed()));
            ensure!(value.is_some_and(|value| value.len() == 40), "a key that was written is not there");
            ensure!(app.app_hash() == store.app_hash(), "recovered to another app hash");
            let height = shared.next_height();
            let block =
                Block { height, time_ns: begun_ns + 5_000_000_000 * height.unsigned_abs(), txs: Vec::new() };
            let begun = Instant::now();
            app.finalize_block(&block)?;
            app.commit()?;
            blocks.push(ms(begun.elapsed()));
            drop((shared, app));
            fs::remove_dir_all(&left)?;
        }
        let row = |what: &str, of: &[f64]| Row::new(&format!("recovery.{what}{suffix}"), "ms", median(of));
        rows.push(row("ready", &readies).below(RECOVERY_MS));
        rows.push(row("open", &opens));
        rows.push(row("first_block", &blocks));
        let all =
            serde_json::json!({ "open_ms": opens, "app_ms": apps, "ready_ms": readies, "block_ms": blocks });
        details.insert(if cold { "cold" } else { "warm" }.into(), all);
    }
    Ok(details.into())
}

fn proof(
    size: Size,
    store: &DiskStore,
    work: &mut Workload,
    rows: &mut Vec<Row>,
) -> Result<serde_json::Value> {
    let path = format!("/store/{MODULE}/key");
    let present: Vec<Vec<u8>> = (0..size.proofs).map(|_| module_key(&work.next_read())).collect();
    // Keys that the load would write next.
    let mut next = work.clone();
    let absent: Vec<Vec<u8>> = (0..size.proofs).map(|_| module_key(&next.next_load().key)).collect();
    let mut details = serde_json::Map::new();
    let mut measure = |name: &str, keys: &[Vec<u8>], prove: bool, there: bool| -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(keys.len());
        for key in keys {
            let request = KeyRequest { path: &path, key, height: 0, prove };
            let begun = Instant::now();
            let answer = query(store, &request)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            ensure!(answer.value.is_some() == there && answer.ops.is_empty() != prove, "{name}: {answer:?}");
        }
        details.insert(
            name.into(),
            serde_json::json!({ "mean_us": mean(&times), "p50_us": median(&times), "p99_us": percentile(&times, 99) }),
        );
        Ok(times)
    };
    // The first pass warms what the second finds.
    measure("read_first", &present, false, true)?;
    let read = measure("read", &present, false, true)?;
    let absent_read = measure("read_absent", &absent, false, false)?;
    let proven = measure("present", &present, true, true)?;
    let absent_proven = measure("absent", &absent, true, false)?;
    let height = store.latest_height();
    for (key, there) in present.iter().zip(&absent).take(100).flat_map(|(p, a)| [(p, true), (a, false)]) {
        let proof = store.prove(height, MODULE, key)?;
        proof.verify(&store.app_hash())?;
        ensure!(proof.value.is_some() == there, "a proof of the wrong kind");
    }
    let plain = "plain query";
    rows.push(
        Row::new("proof.present", "us", mean(&proven))
            .against(plain, mean(&read), Better::Lower)
            .below(PROOF_US),
    );
    rows.push(Row::new("proof.present_p99", "us", percentile(&proven, 99)).against(
        plain,
        percentile(&read, 99),
        Better::Lower,
    ));
    rows.push(
        Row::new("proof.absent", "us", mean(&absent_proven))
            .against(plain, mean(&absent_read), Better::Lower)
            .below(PROOF_US),
    );
    Ok(details.into())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn snapshot(store: &DiskStore, dir: &Path, rows: &mut Vec<Row>) -> Result<serde_json::Value> {
    let height = store.latest_height();
    let snapshots = SnapshotStore::open(dir.join("snapshots"))?;
    let begun = Instant::now();
    let info = snapshots.create(store, height)?;
    let create = begun.elapsed().as_secs_f64();
    let folder = snapshots.folder(info.height, FORMAT)?;
    let (bytes, keys) = (folder.metadata().bytes as f64, folder.metadata().items as f64);

    let begun = Instant::now();
    copy(folder.path(), &dir.join("copied"))?;
    let raw = begun.elapsed().as_secs_f64();

    let empty = DiskStore::open(dir.join("restored"), &state_spaces(), StateOptions::default())?;
    let begun = Instant::now();
    restore_folder(&folder, &empty, None, &mut |_, _| {})?;
    let restore = begun.elapsed().as_secs_f64();
    ensure!(empty.app_hash() == store.app_hash(), "restored to another app hash");
    App::open(empty, AppOptions::default()).context("the restored state is no chain")?;

    for (name, took) in [("create", create), ("restore", restore)] {
        rows.push(Row::new(&format!("snapshot.{name}"), "MB/s", bytes / 1e6 / took).against(
            "synced copy",
            bytes / 1e6 / raw,
            Better::Higher,
        ));
        rows.push(Row::new(&format!("snapshot.{name}_keys"), "keys/s", keys / took));
        rows.push(Row::new(&format!("snapshot.{name}_time"), "s", took));
    }
    Ok(serde_json::json!({ "bytes": bytes, "keys": keys, "chunks": info.chunks,
        "create_s": create, "restore_s": restore, "copy_s": raw }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_database_recovers_a_snapshot_restores_and_proofs_verify() {
        let size = Size { keys: 2_000, blocks: 1, recoveries: 1, proofs: 20, settle: false };
        let outcome = run(size).unwrap();
        let names: Vec<&str> = outcome.rows.iter().map(|row| row.name.as_str()).collect();
        for name in ["recovery.ready", "recovery.ready_cold", "proof.present", "snapshot.restore"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(outcome.rows.iter().all(|row| row.value > 0.0));
        // The load, the update's inserts, and what genesis wrote.
        assert!(outcome.details["snapshot"]["keys"].as_f64().unwrap() > 2_100.0);
    }
}
