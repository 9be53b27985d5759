//! The window, the way back, and modules that come in later.

use std::collections::BTreeMap;

use holdfast_store::{KvRead, WriteSet};
use holdfast_testkit::Rng;

use super::tests::{
    MODULES, Rows, assert_proves, assert_view, commit, disk, jmt_tree, keep, module_rows, random_blocks,
    writes,
};
use super::*;

fn prune_all<S: CommitStore>(store: &S, limit: usize) {
    while store.prune(limit).unwrap() > 0 {}
}

// ---- pins ----

fn pinned<S: CommitStore>(store: &S) {
    for height in 1..=9 {
        commit(store, height, &writes(&[("bank/a", Some(&height.to_string()))]));
    }
    assert!(matches!(store.pin(10), Err(StateError::Future { .. })));
    let (first, second, again) = (store.pin(4).unwrap(), store.pin(6).unwrap(), store.pin(4).unwrap());
    assert_eq!(first.height(), 4);
    prune_all(store, 3);
    assert_eq!(store.earliest_height(), 4, "eight is due, four is pinned");
    drop(first);
    prune_all(store, 3);
    assert_eq!(store.earliest_height(), 4, "pinned twice");
    assert_eq!(store.snapshot_at(4).unwrap().get(b"bank/a").unwrap(), Some(b"4".to_vec()));
    drop(again);
    prune_all(store, 3);
    assert_eq!(store.earliest_height(), 6);
    assert!(matches!(store.pin(5), Err(StateError::Pruned { height: 5, earliest: 6 })));
    commit(store, 10, &writes(&[("bank/a", None)]));
    assert_eq!(store.snapshot_at(6).unwrap().get(b"bank/a").unwrap(), Some(b"6".to_vec()));
    drop(second);
    prune_all(store, 3);
    assert_eq!(store.earliest_height(), 9);
}

#[test]
fn a_pinned_height_and_all_above_it_stay_readable() {
    pinned(&MemCommitStore::with_options(&MODULES, keep(2)).unwrap());
    let dir = tempfile::tempdir().unwrap();
    pinned(&disk(dir.path(), keep(2)));
}

#[test]
fn keys_that_come_and_go_while_pieces_are_pruned_stay_provable() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path(), keep(2));
    let whole = MemCommitStore::new(&MODULES).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut state = Rows::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                store.prune(7).unwrap();
            }
        });
        let mut rng = Rng::new(77);
        for height in 1..=150 {
            // Few keys, removed and written again all the time.
            let mut block = WriteSet::new();
            for _ in 0..30 {
                let key = format!("gov/{}", rng.below(40)).into_bytes();
                let value = if rng.chance(50) { None } else { Some(vec![height as u8]) };
                block.insert(key, value);
            }
            for (key, value) in &block {
                match value {
                    Some(value) => state.insert(key.clone(), value.clone()),
                    None => state.remove(key),
                };
            }
            assert_eq!(commit(&store, height, &block), commit(&whole, height, &block), "height {height}");
            assert_proves(&store, height, &whole.app_hash(), &state);
        }
        done.store(true, std::sync::atomic::Ordering::Release);
    });
    commit(&store, 151, &WriteSet::new());
    commit(&store, 152, &WriteSet::new());
    prune_all(&store, 100);
    let rows = store.row_counts();
    assert_eq!((rows["versions"], rows["preimages"]), (state.len(), state.len()));
    // What was pruned in an earlier run is not met again, and what was not is.
    drop(store);
    let store = disk(dir.path(), keep(2));
    assert_eq!((store.prune(100).unwrap(), store.earliest_height()), (0, 151));
    commit(&store, 153, &writes(&[("gov/1", Some("x"))]));
    assert!(store.prune(100).unwrap() > 0);
    assert_eq!(store.earliest_height(), 152);
}

#[test]
fn what_a_kill_left_of_a_new_database_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let (path, left) = (dir.path().join("state"), dir.path().join("state.new"));
    std::fs::create_dir_all(left.join("keyspaces/3")).unwrap();
    std::fs::write(left.join("lock"), b"").unwrap();
    std::fs::write(left.join("0.jnl"), b"\x01half").unwrap();
    let store = disk(&path, keep(0));
    commit(&store, 1, &writes(&[("bank/a", Some("1"))]));
    drop(store);
    assert_eq!(disk(&path, keep(0)).latest_height(), 1);
    assert!(!left.exists());
}

// ---- rollback ----

#[test]
fn after_a_rollback_the_database_is_what_it_was_and_the_blocks_give_the_same_hashes_again() {
    let blocks = random_blocks(51, 24, 40);
    for to in [23, 22, 14, 1] {
        let (dir, twin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = disk(dir.path(), keep(0));
        let hashes: Vec<_> =
            (1..).zip(&blocks).map(|(height, (block, _))| commit(&store, height, block)).collect();
        store.flush();
        drop(store);
        assert_eq!(DiskStore::rollback(dir.path(), to).unwrap(), hashes[to as usize - 1]);
        // A database that never saw the later blocks has the same rows.
        let twin = disk(twin.path(), keep(0));
        for (height, (block, _)) in (1..=to).zip(&blocks) {
            commit(&twin, height, block);
        }
        let store = disk(dir.path(), keep(0));
        assert_eq!((store.latest_height(), store.app_hash()), (to, twin.app_hash()));
        assert_eq!(store.row_counts(), twin.row_counts(), "back at {to}");
        for (height, (_, state)) in (1..=to).zip(&blocks) {
            assert_view(&store.snapshot_at(height).unwrap(), state, height as u64);
            assert_proves(&store, height, &hashes[height as usize - 1], state);
        }
        for (height, (block, state)) in (1..).zip(&blocks).skip(to as usize) {
            assert_eq!(commit(&store, height, block), hashes[height as usize - 1]);
            assert_view(&store.snapshot(), state, 3);
        }
        // Another history on top is as good.
        drop(store);
        DiskStore::rollback(dir.path(), to).unwrap();
        let (store, twin) = (disk(dir.path(), keep(0)), twin);
        for (height, (block, _)) in (to + 1..to + 6).zip(&random_blocks(52, 5, 40)) {
            assert_eq!(commit(&store, height, block), commit(&twin, height, block));
        }
        assert_eq!(store.row_counts(), twin.row_counts());
    }
}

#[test]
fn a_rollback_below_the_window_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Rollback::open(dir.path().join("none")), Err(StateError::NoState { .. })));
    assert!(matches!(Rollback::open(dir.path()), Err(StateError::NoState { .. })));
    let blocks = random_blocks(53, 20, 25);
    let store = disk(dir.path(), keep(4));
    assert!(matches!(Rollback::open(dir.path()), Err(StateError::Locked { .. })));
    let hashes: Vec<_> =
        (1..).zip(&blocks).map(|(height, (block, _))| commit(&store, height, block)).collect();
    prune_all(&store, 50);
    let before = store.row_counts();
    drop(store);
    let error = DiskStore::rollback(dir.path(), 16).unwrap_err();
    assert!(matches!(error, StateError::Pruned { height: 16, earliest: 17 }), "{error}");
    assert!(matches!(DiskStore::rollback(dir.path(), 21), Err(StateError::Future { .. })));
    assert_eq!(DiskStore::rollback(dir.path(), 20).unwrap(), hashes[19], "there already");
    assert_eq!(disk(dir.path(), keep(4)).row_counts(), before);

    assert_eq!(DiskStore::rollback(dir.path(), 17).unwrap(), hashes[16], "the oldest kept height");
    let mut rollback = Rollback::open(dir.path()).unwrap();
    assert_eq!((rollback.height(), rollback.earliest(), rollback.app_hash()), (17, 17, hashes[16]));
    assert!(matches!(rollback.step(), Err(StateError::Pruned { height: 16, earliest: 17 })));
    drop(rollback);
    let store = disk(dir.path(), keep(4));
    assert_proves(&store, 17, &hashes[16], &blocks[16].1);
    for height in 18..=20usize {
        assert_eq!(commit(&store, height as i64, &blocks[height - 1].0), hashes[height - 1]);
    }
    prune_all(&store, 50);
    assert_eq!((store.earliest_height(), store.row_counts()), (17, before));
}

// ---- modules ----

const OLD: [&str; 3] = ["auth", "bank", "gov"];
const NEW: [&str; 4] = ["auth", "bank", "breaker", "gov"];

fn open(dir: &std::path::Path, modules: &[&str], added: &[&str]) -> Result<DiskStore, StateError> {
    let added_modules = added.iter().map(|name| (*name).to_owned()).collect();
    DiskStore::open(dir, modules, StateOptions { added_modules, ..keep(0) })
}

/// The app hash out of the `jmt` crate's trees.
fn independent_hash(modules: &[&str], state: &Rows) -> Hash {
    module_map_root(modules.iter().map(|name| (*name, jmt_tree(module_rows(state, name)).0)))
}

fn apply(state: &mut Rows, block: &WriteSet) {
    for (key, value) in block {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

fn assert_proof(
    store: &DiskStore,
    height: i64,
    module: &str,
    key: &str,
    app_hash: &Hash,
    value: Option<&str>,
) {
    let proof = store.prove(height, module, key.as_bytes()).unwrap();
    assert_eq!(proof.value.as_deref(), value.map(str::as_bytes), "{module}/{key} at {height}");
    proof.verify(app_hash).unwrap();
}

#[test]
fn a_declared_module_begins_with_the_block_after_the_upgrade_and_older_heights_stay_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut states = vec![Rows::new()];
    let mut step = |block: &WriteSet| {
        let mut state = states.last().unwrap().clone();
        apply(&mut state, block);
        states.push(state.clone());
        state
    };
    let store = open(dir.path(), &OLD, &[]).unwrap();
    let block = writes(&[("auth/x", Some("1")), ("bank/a", Some("1")), ("gov/p", Some(""))]);
    let first = commit(&store, 1, &block);
    assert_eq!(first, independent_hash(&OLD, &step(&block)));
    let block = writes(&[("bank/a", Some("2")), ("bank/b", Some("2"))]);
    let second = commit(&store, 2, &block);
    assert_eq!(second, independent_hash(&OLD, &step(&block)));
    drop(store);

    let error = open(dir.path(), &NEW, &[]).unwrap_err();
    assert!(matches!(error, StateError::Modules { .. }), "undeclared: {error}");
    let error = open(dir.path(), &NEW, &["escrow"]).unwrap_err();
    assert!(error.to_string().contains("added module \"escrow\" is not in the list"), "{error}");

    // Declared: the hash that the network agreed on stays.
    let store = open(dir.path(), &NEW, &["breaker"]).unwrap();
    assert_eq!((store.latest_height(), store.app_hash()), (2, second));
    assert_eq!(store.modules(), NEW);
    assert!(matches!(store.prove(2, "breaker", b"e"), Err(StateError::UnknownModule { .. })));
    assert_proof(&store, 2, "gov", "p", &second, Some(""));
    assert_eq!(
        store.prepare(3, &WriteSet::new()).unwrap().app_hash(),
        independent_hash(&NEW, &states_at(&states, 2))
    );
    drop(store);
    // Started too early, the new program leaves no trace.
    drop(open(dir.path(), &OLD, &[]).unwrap());

    let store = open(dir.path(), &NEW, &["breaker"]).unwrap();
    let block = writes(&[("breaker/e", Some("open")), ("bank/b", None), ("gov/q", Some("3"))]);
    let mut state = states_at(&states, 2);
    apply(&mut state, &block);
    let third = commit(&store, 3, &block);
    assert_eq!(third, independent_hash(&NEW, &state));
    for (key, value) in [("e", Some("open")), ("f", None)] {
        assert_proof(&store, 3, "breaker", key, &third, value);
    }
    assert_proof(&store, 3, "bank", "b", &third, None);
    assert_proof(&store, 2, "bank", "b", &second, Some("2"));
    assert_proof(&store, 1, "auth", "x", &first, Some("1"));
    drop(store);

    // From then on it is a module like any other.
    assert!(matches!(open(dir.path(), &OLD, &[]), Err(StateError::Modules { .. })), "removed");
    let renamed = ["auth", "bank", "circuit", "gov"];
    assert!(matches!(open(dir.path(), &renamed, &["circuit"]), Err(StateError::Modules { .. })), "renamed");
    let store = open(dir.path(), &NEW, &[]).unwrap();
    assert_eq!(store.app_hash(), third);
    drop(store);

    // A second one, first by name, untouched in its first block.
    let more = ["accounts", "auth", "bank", "breaker", "gov"];
    let store = open(dir.path(), &more, &["accounts", "breaker"]).unwrap();
    let fourth = commit(&store, 4, &WriteSet::new());
    assert_eq!(fourth, independent_hash(&more, &state));
    assert_proof(&store, 4, "accounts", "none", &fourth, None);
    let block = writes(&[("accounts/n", Some("7")), ("breaker/e", None)]);
    apply(&mut state, &block);
    let fifth = commit(&store, 5, &block);
    assert_eq!(fifth, independent_hash(&more, &state));
    drop(store);
    let store = open(dir.path(), &more, &[]).unwrap();
    assert_proof(&store, 5, "accounts", "n", &fifth, Some("7"));
    assert_proof(&store, 5, "breaker", "e", &fifth, None);
    assert_proof(&store, 3, "breaker", "e", &third, Some("open"));
    drop(store);

    // And back: the old program finds its database again.
    assert_eq!(DiskStore::rollback(dir.path(), 2).unwrap(), second);
    let store = open(dir.path(), &OLD, &[]).unwrap();
    assert_eq!(store.app_hash(), second);
    assert_proof(&store, 2, "bank", "a", &second, Some("2"));
}

fn states_at(states: &[Rows], height: usize) -> Rows {
    states[height].clone()
}

#[test]
fn a_database_whose_modules_came_one_by_one_prunes_to_the_rows_of_one_that_had_them_all() {
    let names: [&[&str]; 3] = [&["gov"], &["bank", "gov"], &["auth", "bank", "gov"]];
    let dir = tempfile::tempdir().unwrap();
    let mut state = BTreeMap::new();
    let mut height = 0;
    for modules in names {
        let options = StateOptions { added_modules: vec![modules[0].into()], ..keep(1) };
        let store = DiskStore::open(dir.path(), modules, options).unwrap();
        for seed in 0..6 {
            let mut rng = Rng::new(seed + 10 * modules.len() as u64);
            let mut block = WriteSet::new();
            for _ in 0..30 {
                let key = format!("{}/{}", rng.pick(modules), rng.below(60)).into_bytes();
                block.insert(key, if rng.chance(30) { None } else { Some(vec![rng.below(9) as u8]) });
            }
            apply(&mut state, &block);
            height += 1;
            assert_eq!(commit(&store, height, &block), independent_hash(modules, &state));
        }
        prune_all(&store, 500);
    }
    let store = DiskStore::open(dir.path(), names[2], keep(1)).unwrap();
    let other = tempfile::tempdir().unwrap();
    let fresh = DiskStore::open(other.path(), names[2], keep(1)).unwrap();
    commit(&fresh, 1, &state.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect());
    prune_all(&fresh, 500);
    assert_eq!(store.app_hash(), fresh.app_hash());
    assert_eq!(store.row_counts(), fresh.row_counts());
}
