//! The disk fails: torn writes, writes lost before their sync, a sync that fails, no room.
//!
//! Whatever happens, a database that opens again is at a height that was acknowledged last, or at the one whose commit was under
//! way, whole. Every case names its seed.

use std::fs;
use std::path::Path as FsPath;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use fjall::OwnedWriteBatch;
use holdfast_store::WriteSet;
use holdfast_testkit::Rng;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::disk::{Sink, Synced};
use super::tests::{
    MODULES, Rows, assert_proves, assert_view, commit, copy, disk, journal, keep, random_blocks, used,
};
use super::*;

/// What the next write meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Fault {
    None = 0,
    /// Nothing gets through.
    Full = 1,
    /// All is written, the sync fails: it may be on disk or not.
    Sync = 2,
}

struct Faulty(Arc<AtomicU8>);

impl Sink for Faulty {
    fn write(&self, batch: OwnedWriteBatch) -> fjall::Result<()> {
        let failed = |kind| Err(fjall::Error::Io(std::io::Error::from(kind)));
        match self.0.load(Ordering::Acquire) {
            0 => Synced.write(batch),
            1 => failed(std::io::ErrorKind::StorageFull),
            _ => {
                batch.durability(Some(fjall::PersistMode::Buffer)).commit()?;
                failed(std::io::ErrorKind::Other)
            }
        }
    }
}

/// The end of the journal after a power cut: everything behind `synced` is at the disk's mercy.
fn at_the_disks_mercy(file: &FsPath, synced: usize, rng: &mut Rng) -> &'static str {
    let mut bytes = fs::read(file).unwrap();
    let end = used(file);
    assert!(end >= synced);
    let loose = end - synced;
    if loose == 0 {
        return "nothing was under way";
    }
    let at = synced + rng.below(loose as u64) as usize;
    let what = match rng.below(6) {
        0 => {
            bytes.truncate(synced);
            "all of it is lost"
        }
        1 => {
            bytes.truncate(at);
            "it breaks off"
        }
        2 => {
            bytes[at..end].fill(0);
            "the rest of the file was never written"
        }
        3 => {
            // Pages reach the disk in any order.
            for page in (0..end).step_by(512) {
                let (from, to) = (page.max(synced), (page + 512).min(end));
                if from < to && rng.chance(40) {
                    bytes[from..to].fill(0);
                }
            }
            "some sectors are missing"
        }
        4 => {
            let till = (at + 64).min(end);
            bytes[at..till].iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
            "a piece is garbage"
        }
        _ => "all of it is there",
    };
    fs::write(file, bytes).unwrap();
    what
}

fn seen(seed: u64, acknowledged: i64) -> String {
    format!("seed {seed}, acknowledged {acknowledged}")
}

fn faults(seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let blocks = random_blocks(seed, 60, 25);
    let whole = MemCommitStore::new(&MODULES).unwrap();
    let hashes: Vec<_> =
        (1..).zip(&blocks).map(|(height, (block, _))| commit(&whole, height, block)).collect();
    let empty = (Rows::new(), MemCommitStore::new(&MODULES).unwrap().app_hash());
    let at = |height: i64| match usize::try_from(height - 1) {
        Ok(place) if height > 0 => (&blocks[place].1, hashes[place]),
        _ => (&empty.0, empty.1),
    };
    let mut acknowledged = 0i64;
    while acknowledged < 50 {
        let fault = Arc::new(AtomicU8::new(Fault::None as u8));
        let options = StateOptions { page_cache: 32, threads: 1, ..keep(6) };
        let store = DiskStore::open_with(dir.path(), &MODULES, options, Box::new(Faulty(fault.clone())))
            .unwrap_or_else(|error| panic!("{}: {error}", seen(seed, acknowledged)));
        let height = store.latest_height();
        assert!(
            height == acknowledged || height == acknowledged + 1,
            "{}: opened at {height}",
            seen(seed, acknowledged)
        );
        let (state, hash) = at(height);
        assert_eq!(store.app_hash(), hash, "{}", seen(seed, acknowledged));
        assert_view(&store.snapshot(), state, seed);
        if height > 0 {
            assert_proves(&store, height, &hash, state);
        }
        acknowledged = height;
        for _ in 0..rng.below(8) {
            let next = acknowledged + 1;
            assert_eq!(commit(&store, next, &blocks[next as usize - 1].0), hashes[next as usize - 1]);
            acknowledged = next;
            if rng.chance(30) {
                store.prune(rng.below(40) as usize + 1).unwrap();
            }
            if rng.chance(10) {
                store.flush();
            }
        }
        let synced = used(&journal(dir.path()));
        let met = *rng.pick(&[Fault::Full, Fault::Sync, Fault::Sync]);
        fault.store(met as u8, Ordering::Release);
        let next = acknowledged + 1;
        let block = &blocks[next as usize - 1].0;
        let error = if rng.chance(25) && store.earliest_height() < acknowledged - 6 {
            store.prune(1000).unwrap_err()
        } else {
            store.commit(store.prepare(next, block).unwrap()).unwrap_err()
        };
        assert!(matches!(error, StateError::Engine(_)), "{}: {error}", seen(seed, acknowledged));
        // It is not visible, and nothing comes on top of it.
        assert_eq!(
            (store.latest_height(), store.app_hash()),
            (acknowledged, at(acknowledged).1),
            "{}",
            seen(seed, acknowledged)
        );
        assert_view(&store.snapshot(), at(acknowledged).0, seed);
        fault.store(Fault::None as u8, Ordering::Release);
        let again = store.commit(store.prepare(next, block).unwrap()).unwrap_err();
        assert!(again.to_string().contains("an earlier write failed"), "{again}");
        assert!(store.prune(10).is_err());
        drop(store);
        let left = at_the_disks_mercy(&journal(dir.path()), synced, &mut rng);
        eprintln!("{}: {met:?}, {left}", seen(seed, acknowledged));
    }
}

#[test]
fn no_fault_of_the_disk_loses_what_was_acknowledged_or_leaves_half_a_block() {
    for seed in [1, 2, 3, 4, 5, 6] {
        faults(seed);
    }
}

/// A store at height 4; the bytes of the journal before and after the last commit; the blocks and their hashes.
type Four = (tempfile::TempDir, usize, usize, Vec<(WriteSet, Rows)>, Vec<Hash>);

fn four(seed: u64) -> Four {
    let dir = tempfile::tempdir().unwrap();
    let blocks = random_blocks(seed, 4, 25);
    let store = disk(dir.path(), keep(0));
    let (mut before, mut hashes) = (0, vec![]);
    for (height, (block, _)) in (1..).zip(&blocks) {
        before = used(&journal(dir.path()));
        hashes.push(commit(&store, height, block));
    }
    drop(store);
    let after = used(&journal(dir.path()));
    (dir, before, after, blocks, hashes)
}

#[test]
fn any_damage_to_the_last_record_leaves_the_block_before_it() {
    let (dir, before, after, blocks, hashes) = four(31);
    let step = ((after - before) / 60).max(1);
    let damages: [fn(u8) -> u8; 3] = [|byte| byte ^ 0x10, |_| 0, |_| 0xff];
    let mut dropped = 0;
    for (nth, at) in (before..after).step_by(step).chain([after - 1]).enumerate() {
        let copied = tempfile::tempdir().unwrap();
        copy(dir.path(), copied.path());
        let file = journal(copied.path());
        let mut bytes = fs::read(&file).unwrap();
        let damaged = damages[nth % 3](bytes[at]);
        if damaged == bytes[at] {
            continue;
        }
        bytes[at] = damaged;
        fs::write(&file, bytes).unwrap();
        let store = disk(copied.path(), keep(0));
        assert_eq!(
            (store.latest_height(), store.app_hash()),
            (3, hashes[2]),
            "damage at {at} of {before}..{after}"
        );
        assert_view(&store.snapshot(), &blocks[2].1, 1);
        assert_eq!(commit(&store, 4, &blocks[3].0), hashes[3], "the block replays to the same app hash");
        drop(store);
        assert_eq!(disk(copied.path(), keep(0)).app_hash(), hashes[3]);
        dropped += 1;
    }
    assert!(dropped > 40, "{dropped}");
}

#[test]
fn damage_in_front_of_whole_records_is_no_torn_end_and_is_refused_untouched() {
    let (dir, before, ..) = four(32);
    for at in [0, before / 3, before / 2, before - 1] {
        let copied = tempfile::tempdir().unwrap();
        copy(dir.path(), copied.path());
        let file = journal(copied.path());
        let mut bytes = fs::read(&file).unwrap();
        bytes[at] ^= 0x20;
        fs::write(&file, &bytes).unwrap();
        let error = DiskStore::open(copied.path(), &MODULES, keep(0)).unwrap_err();
        assert!(matches!(error, StateError::Corrupt { .. }), "{at}: {error}");
        assert!(error.to_string().contains("in front of whole records: restore a backup"), "{error}");
        assert!(fs::read(&file).unwrap() == bytes, "nothing is cut away");
    }
}

#[test]
fn a_power_cut_in_a_rollback_leaves_the_height_or_the_one_before() {
    let (dir, _, before, blocks, hashes) = four(33);
    let mut rollback = Rollback::open(dir.path()).unwrap();
    assert_eq!(rollback.step().unwrap(), 3);
    drop(rollback);
    let after = used(&journal(dir.path()));
    assert!(after > before + 100);
    let mut found = [0; 5];
    for end in (before..after).step_by(((after - before) / 25).max(1)).chain([after - 1, after]) {
        let copied = tempfile::tempdir().unwrap();
        copy(dir.path(), copied.path());
        let file = journal(copied.path());
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..end]).unwrap();
        let store = disk(copied.path(), keep(0));
        let height = store.latest_height() as usize;
        found[height] += 1;
        assert_eq!((store.app_hash(), end == after), (hashes[height - 1], height == 3), "cut at {end}");
        assert_view(&store.snapshot(), &blocks[height - 1].1, 1);
        drop(store);
        // The command is given again.
        assert_eq!(DiskStore::rollback(copied.path(), 3).unwrap(), hashes[2]);
    }
    assert!(found[4] > 20 && found[3] == 1, "{found:?}");
}

/// Names the folder to the child of the next test.
const FULL_DISK: &str = "HOLDFAST_TEST_FULL_DISK";

fn wide_block(height: i64) -> WriteSet {
    let row = |n: i64| (format!("bank/{}", n % 300).into_bytes(), Some(vec![height as u8; 400]));
    (7 * height..7 * height + 60).map(row).collect()
}

/// In the child: commits until a file may not grow any more.
fn fill_up(dir: &FsPath) {
    let store = disk(&dir.join("state"), keep(0));
    commit(&store, 1, &wide_block(1));
    let limit = used(&journal(&dir.join("state"))) as u64 + 700_000;
    setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    for height in 2..200 {
        let prepared = store.prepare(height, &wide_block(height)).unwrap();
        match store.commit(prepared) {
            Ok(()) => fs::write(dir.join("acknowledged"), height.to_string()).unwrap(),
            Err(error) => {
                assert!(matches!(error, StateError::Engine(_)), "{error}");
                assert_eq!(store.latest_height(), height - 1);
                let again = store.commit(store.prepare(height, &wide_block(height)).unwrap()).unwrap_err();
                fs::write(dir.join("refused"), format!("{error}; {again}")).unwrap();
                return;
            }
        }
    }
}

#[test]
fn a_disk_that_is_full_stops_the_node_and_loses_nothing() {
    if let Some(dir) = std::env::var_os(FULL_DISK) {
        return fill_up(FsPath::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    // The limit's signal would end the child; the shell has it ignored, so that writes fail instead.
    let name = "state::tests_faults::a_disk_that_is_full_stops_the_node_and_loses_nothing";
    let child = Command::new("sh")
        .args(["-c", r#"trap '' XFSZ; exec "$@""#, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(FULL_DISK, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr).into_owned() + &String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    let read =
        |file| fs::read_to_string(dir.path().join(file)).unwrap_or_else(|e| panic!("{file}: {e}\n{said}"));
    let (acknowledged, refused): (i64, _) = (read("acknowledged").parse().unwrap(), read("refused"));
    assert!(acknowledged > 3, "some went through first: {acknowledged}");
    assert!(refused.contains("an earlier write failed"), "{refused}");

    let store = disk(&dir.path().join("state"), keep(0));
    let height = store.latest_height();
    assert!(height == acknowledged || height == acknowledged + 1, "{height} after {acknowledged}");
    let whole = MemCommitStore::new(&MODULES).unwrap();
    for height in 1..=height {
        commit(&whole, height, &wide_block(height));
    }
    assert_eq!(store.app_hash(), whole.app_hash());
    assert_eq!(
        commit(&store, height + 1, &wide_block(height + 1)),
        commit(&whole, height + 1, &wide_block(height + 1))
    );
}
