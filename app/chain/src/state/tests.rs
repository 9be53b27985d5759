use std::collections::BTreeMap;
use std::path::Path as FsPath;

use holdfast_proto::Message;
use holdfast_store::{KvIter, KvRead, KvWrite, Order, SpaceKv, StoreError, WriteSet};
use holdfast_testkit::{Rng, conformance};
use ics23::CommitmentProof;
use jmt::mock::MockTreeStore;
use jmt::{KeyHash, Sha256Jmt};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::cache::{PageCache, ValueCache};
use super::proof::{map_leaf, simple_root};
use super::tree::{Page, Path};
use super::*;

pub(super) const MODULES: [&str; 5] = ["auth", "bank", "breaker", "escrow", "gov"];

pub(super) fn disk(path: &FsPath, options: StateOptions) -> DiskStore {
    DiskStore::open(path, &MODULES, options).expect("open")
}

pub(super) fn keep(keep_recent: u64) -> StateOptions {
    StateOptions { keep_recent, ..StateOptions::default() }
}

/// Runs a generic case on the in-memory and on the disk store.
macro_rules! on_both {
    ($($(#[$doc:meta])* $name:ident($options:expr) => $case:ident;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $case(&MemCommitStore::with_options(&MODULES, $options).unwrap());
            let dir = tempfile::tempdir().unwrap();
            $case(&disk(dir.path(), $options));
        }
    )*};
}

on_both! {
    heights_follow_each_other_and_errors_say_which(keep(0)) => heights;
    keys_outside_the_modules_are_refused_and_transient_ones_dropped(keep(0)) => keys;
    a_write_that_changes_nothing_leaves_no_trace(keep(0)) => no_op_writes;
    a_prepared_block_is_invisible_until_committed_and_stale_after_another(keep(0)) => prepared;
    a_snapshot_never_sees_later_commits(keep(0)) => snapshots;
    every_height_reads_as_it_was(keep(0)) => history;
    presence_and_absence_are_provable_at_every_height(keep(0)) => proofs;
    a_module_without_state_proves_absence(keep(0)) => empty_module;
    pruning_keeps_the_window_and_only_the_window(keep(4)) => pruning;
    pruning_is_bounded_by_its_limit(keep(1)) => bounded_pruning;
    the_store_passes_the_key_value_suite(keep(0)) => key_value_suite;
    a_key_longer_than_any_is_absent_and_bounds_a_scan(keep(0)) => endless_keys;
}

pub(super) fn commit<S: CommitStore>(store: &S, height: i64, writes: &WriteSet) -> Hash {
    let prepared = store.prepare(height, writes).unwrap();
    let hash = prepared.app_hash();
    store.commit(prepared).unwrap();
    assert_eq!((store.latest_height(), store.app_hash()), (height, hash));
    hash
}

pub(super) fn writes(pairs: &[(&str, Option<&str>)]) -> WriteSet {
    pairs.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.map(|v| v.as_bytes().to_vec()))).collect()
}

pub(super) fn rows(view: &dyn KvRead, order: Order) -> Vec<(Vec<u8>, Vec<u8>)> {
    view.scan(b"", None, order).collect::<Result<_, _>>().unwrap()
}

fn heights<S: CommitStore>(store: &S) {
    let empty = WriteSet::new();
    assert_eq!((store.latest_height(), store.earliest_height()), (0, 0));
    assert!(matches!(store.prepare(0, &empty), Err(StateError::InvalidHeight { height: 0 })));
    assert!(matches!(store.snapshot_at(1), Err(StateError::Future { height: 1, latest: 0 })));
    let born = store.app_hash();
    // A chain may begin at any height.
    assert_eq!(commit(store, 7, &empty), born, "an empty block changes no root");
    assert_eq!(store.earliest_height(), 7);
    let error = store.prepare(9, &empty).unwrap_err();
    assert!(matches!(error, StateError::NotContiguous { height: 9, latest: 7 }));
    assert_eq!(
        error.to_string(),
        "height 9 does not follow the latest committed height 7: replay the blocks in between first"
    );
    assert!(store.prepare(7, &empty).is_err());
    commit(store, 8, &empty);
    assert!(matches!(store.snapshot_at(6), Err(StateError::Pruned { height: 6, earliest: 7 })));
    assert!(matches!(store.snapshot_at(9), Err(StateError::Future { height: 9, latest: 8 })));
    assert!(matches!(store.snapshot_at(-1), Err(StateError::InvalidHeight { height: -1 })));
    assert!(matches!(store.prove(9, "bank", b"x"), Err(StateError::Future { .. })));
    assert_eq!(store.snapshot_at(7).unwrap().height(), 7);
}

fn keys<S: CommitStore>(store: &S) {
    let born = store.app_hash();
    for (key, code) in [("nobody/x", 12), ("bank", 12), ("/x", 12), ("bank/", 13), ("Bank/x", 12)] {
        let error = store.prepare(1, &writes(&[(key, Some("v"))])).unwrap_err();
        assert_eq!(error.code(), code, "{key}: {error}");
    }
    let own = [b"bank/".as_slice(), SENTINEL_KEY].concat();
    assert_eq!(store.prepare(1, &WriteSet::from([(own, None)])).unwrap_err().code(), 13);
    let long = [b"bank/".as_slice(), &[7; MAX_KEY_BYTES]].concat();
    assert_eq!(store.prepare(1, &WriteSet::from([(long, None)])).unwrap_err().code(), 13);
    let longest = [b"bank/".as_slice(), &vec![0; MAX_KEY_BYTES - 5]].concat();

    assert_eq!(commit(store, 1, &writes(&[("~breaker/x", Some("v")), ("~x", Some("v"))])), born);
    assert_eq!(rows(&store.snapshot(), Order::Ascending), []);
    commit(store, 2, &WriteSet::from([(longest.clone(), Some(vec![1]))]));
    commit(store, 3, &WriteSet::new());
    assert_eq!(store.snapshot_at(2).unwrap().get(&longest).unwrap(), Some(vec![1]));
    assert_eq!(store.snapshot().get(&[0]).unwrap(), None, "bookkeeping rows are not state");
    assert_eq!(store.modules(), MODULES);
}

fn endless_keys<S: CommitStore>(store: &S) {
    let longest = [b"bank/".as_slice(), &[7; MAX_KEY_BYTES - 5]].concat();
    let written = WriteSet::from([(longest.clone(), Some(vec![1])), (b"bank/z".to_vec(), Some(vec![2]))]);
    commit(store, 1, &written);
    commit(store, 2, &writes(&[("bank/z", Some("later"))]));
    // The engine below panics from 65,536 bytes on; a model's name in a message can be as long as the message.
    let endless = [b"bank/".as_slice(), &[7; 100_000]].concat();
    let check = |view: &dyn KvRead| {
        assert_eq!(view.get(&endless).unwrap(), None);
        let keys = |start: &[u8], end: Option<&[u8]>, order| -> Vec<Vec<u8>> {
            view.scan(start, end, order).map(|row| row.unwrap().0).collect()
        };
        for order in [Order::Ascending, Order::Descending] {
            assert_eq!(keys(&endless, None, order), [b"bank/z".to_vec()]);
            assert_eq!(keys(b"bank/", Some(&endless), order), std::slice::from_ref(&longest));
            assert!(keys(&endless, Some(&[endless.as_slice(), &[0]].concat()), order).is_empty());
        }
    };
    check(&store.snapshot());
    check(&store.snapshot_at(1).unwrap());
}

fn no_op_writes<S: CommitStore>(store: &S) {
    let block = writes(&[("bank/a", Some("1")), ("bank/b", Some("2")), ("gov/p", Some(""))]);
    let hash = commit(store, 1, &block);
    let again = store.prepare(2, &block).unwrap();
    assert_eq!(again.app_hash(), hash, "the same set written again keeps the root");
    assert_eq!(again.changes().count(), 0);
    assert!(again.pages.is_empty() && again.stale.is_empty());
    store.commit(again).unwrap();
    let absent = store.prepare(3, &writes(&[("auth/x", None), ("bank/c", None)])).unwrap();
    assert_eq!(
        (absent.app_hash(), absent.changes().count()),
        (hash, 0),
        "removing what is not there is nothing"
    );
    // One module's write leaves the others' trees alone.
    let one = store.prepare(3, &writes(&[("bank/a", Some("9")), ("bank/b", Some("2"))])).unwrap();
    let bank = MODULES.iter().position(|m| *m == "bank").unwrap();
    for (module, root) in one.roots.iter().enumerate() {
        assert_eq!(root.version == 3, module == bank);
    }
    assert_eq!(one.changes().collect::<Vec<_>>(), [(b"bank/a".as_slice(), Some(b"9".as_slice()))]);
}

fn prepared<S: CommitStore>(store: &S) {
    commit(store, 1, &writes(&[("bank/a", Some("1"))]));
    let hash = store.app_hash();
    let first = store.prepare(2, &writes(&[("bank/a", Some("2"))])).unwrap();
    let second = store.prepare(2, &writes(&[("bank/a", Some("3"))])).unwrap();
    assert_eq!((store.latest_height(), store.app_hash()), (1, hash));
    assert_eq!(store.snapshot().get(b"bank/a").unwrap(), Some(b"1".to_vec()));
    assert_ne!(first.app_hash(), second.app_hash());
    store.commit(second).unwrap();
    assert!(matches!(store.commit(first), Err(StateError::Stale { height: 2, base: 1, latest: 2 })));
    assert_eq!(store.snapshot().get(b"bank/a").unwrap(), Some(b"3".to_vec()));
}

fn snapshots<S: CommitStore>(store: &S) {
    commit(store, 1, &writes(&[("bank/a", Some("1")), ("bank/b", Some("1"))]));
    let before = store.snapshot();
    let scan_across: Vec<_> = {
        let mut scan = before.scan(b"bank/", Some(b"bank0"), Order::Ascending);
        let first = scan.next().unwrap().unwrap();
        commit(store, 2, &writes(&[("bank/a", None), ("bank/b", Some("2")), ("bank/c", Some("2"))]));
        std::iter::once(Ok(first)).chain(scan).map(|r| r.unwrap()).collect()
    };
    assert_eq!(scan_across, [(b"bank/a".to_vec(), b"1".to_vec()), (b"bank/b".to_vec(), b"1".to_vec())]);
    assert_eq!((before.height(), before.get(b"bank/b").unwrap()), (1, Some(b"1".to_vec())));
    assert_eq!(before.app_hash(), store.snapshot_at(1).unwrap().app_hash());
    assert_eq!(store.snapshot().get(b"bank/a").unwrap(), None);

    // Readers in other threads see one height each, whole.
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..60 {
                        let view = store.snapshot();
                        let all = rows(&view, Order::Ascending);
                        if view.height() >= 3 {
                            let height = view.height().to_string().into_bytes();
                            assert!(
                                all.iter().filter(|(k, _)| k.starts_with(b"gov/")).all(|(_, v)| *v == height)
                            );
                        }
                    }
                })
            })
            .collect();
        for height in 3..23 {
            let value = height.to_string();
            let block: Vec<_> =
                ["gov/1", "gov/2", "gov/3"].iter().map(|k| (*k, Some(value.as_str()))).collect();
            commit(store, height, &writes(&block));
        }
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
}

pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Random blocks over few keys, with the state after each.
pub(super) fn random_blocks(seed: u64, blocks: i64, per_block: u64) -> Vec<(WriteSet, Rows)> {
    let mut rng = Rng::new(seed);
    let mut state = BTreeMap::new();
    let mut out = Vec::new();
    for _ in 0..blocks {
        let mut block = WriteSet::new();
        for _ in 0..rng.below(per_block + 1) {
            let mut key = [*rng.pick(&MODULES[1..]), "/"].concat().into_bytes();
            for _ in 0..=rng.below(3) {
                key.push(*rng.pick(&[0, 1, b'/', b'a', 0xff]));
            }
            let value =
                if rng.chance(30) { None } else { Some(vec![rng.below(256) as u8; rng.below(4) as usize]) };
            block.insert(key, value);
        }
        for (key, value) in &block {
            match value {
                Some(value) => state.insert(key.clone(), value.clone()),
                None => state.remove(key),
            };
        }
        out.push((block, state.clone()));
    }
    out
}

/// Every read that a view offers, against the model.
pub(super) fn assert_view(view: &dyn KvRead, model: &Rows, seed: u64) {
    let mut all: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(rows(view, Order::Ascending), all);
    all.reverse();
    assert_eq!(rows(view, Order::Descending), all);
    all.reverse();
    let mut rng = Rng::new(seed);
    for _ in 0..20 {
        let bound = |rng: &mut Rng| {
            [b"bank/".as_slice(), &[*rng.pick(&[0, 1, b'a', 0xff])], &[0; 2][..rng.below(3) as usize]]
                .concat()
        };
        let (start, end) = (bound(&mut rng), bound(&mut rng));
        let inside: Vec<_> = all.iter().filter(|(k, _)| *k >= start && *k < end).cloned().collect();
        assert_eq!(
            view.scan(&start, Some(&end), Order::Ascending).collect::<Result<Vec<_>, _>>().unwrap(),
            inside
        );
        assert_eq!(view.get(&start).unwrap(), model.get(&start).cloned());
    }
}

fn history<S: CommitStore>(store: &S) {
    let blocks = random_blocks(11, 25, 12);
    for (height, (block, _)) in (1..).zip(&blocks) {
        commit(store, height, block);
    }
    for (height, (_, state)) in (1..).zip(&blocks) {
        assert_view(&store.snapshot_at(height).unwrap(), state, height as u64);
    }
    assert_view(&store.snapshot(), &blocks.last().unwrap().1, 99);
}

pub(super) fn assert_proves<S: CommitStore>(store: &S, height: i64, app_hash: &Hash, state: &Rows) {
    let mut asked: Vec<(&str, Vec<u8>)> = vec![("bank", b"never".to_vec()), ("auth", b"x".to_vec())];
    for key in state.keys().take(20) {
        let slash = key.iter().position(|b| *b == b'/').unwrap();
        let module = MODULES.iter().find(|m| m.as_bytes() == &key[..slash]).unwrap();
        asked.push((module, key[slash + 1..].to_vec()));
        asked.push((module, [&key[slash + 1..], b"?"].concat()));
    }
    for (module, key) in asked {
        let proof = store.prove(height, module, &key).unwrap();
        let full = [module.as_bytes(), b"/", &key].concat();
        assert_eq!(proof.value.as_ref(), state.get(&full), "{module} {key:?}");
        proof.verify(app_hash).unwrap();
        assert_eq!((proof.ops[0].op_type, proof.ops[1].op_type), ("ics23:jmt", "ics23:simple"));
        assert_eq!((&proof.ops[0].key, proof.ops[1].key.as_slice()), (&key, module.as_bytes()));

        // A lie does not verify: another value, the opposite, another key, another hash.
        let lie = StateProof { value: Some(b"lie".to_vec()), ..proof.clone() };
        assert_eq!(lie.verify(app_hash).unwrap_err().code(), 14);
        let lie = StateProof { value: proof.value.is_none().then(Vec::new), ..proof.clone() };
        assert!(lie.verify(app_hash).is_err());
        // (A proof of absence covers every key between the same neighbours.)
        let lie = StateProof { key: [&key[..], b"!"].concat(), ..proof.clone() };
        assert!(proof.value.is_none() || lie.verify(app_hash).is_err());
        let mut other = *app_hash;
        other[0] ^= 1;
        assert!(proof.verify(&other).is_err());
    }
}

fn proofs<S: CommitStore>(store: &S) {
    let blocks = random_blocks(5, 8, 40);
    let hashes: Vec<_> =
        (1..).zip(&blocks).map(|(height, (block, _))| commit(store, height, block)).collect();
    for (height, ((_, state), hash)) in (1..).zip(blocks.iter().zip(&hashes)) {
        assert_proves(store, height, hash, state);
    }
    assert!(matches!(store.prove(1, "nobody", b"x"), Err(StateError::UnknownModule { .. })));
    assert!(matches!(store.prove(1, "bank", b""), Err(StateError::Key { .. })));
}

fn empty_module<S: CommitStore>(store: &S) {
    let hash = commit(store, 1, &WriteSet::new());
    let proof = store.prove(1, "gov", b"p").unwrap();
    assert_eq!(proof.value, None);
    proof.verify(&hash).unwrap();
    // A key set's entry has an empty value, as a neighbour and by itself.
    let hash = commit(store, 2, &writes(&[("gov/p", Some(""))]));
    for key in [b"p".as_slice(), b"q", b"r", b"s", b"t"] {
        store.prove(2, "gov", key).unwrap().verify(&hash).unwrap();
    }
    assert_eq!(store.prove(2, "gov", b"p").unwrap().value, Some(vec![]));
    // Emptied again it is the tree it was.
    let born = commit(store, 3, &writes(&[("gov/p", None)]));
    assert_eq!(born, store.snapshot_at(1).unwrap().app_hash());
}

fn pruning<S: CommitStore>(store: &S) {
    let whole = MemCommitStore::new(&MODULES).unwrap();
    let blocks = random_blocks(3, 30, 15);
    for (height, (block, _)) in (1..).zip(&blocks) {
        assert_eq!(commit(store, height, block), commit(&whole, height, block));
        if height % 3 == 0 {
            while store.prune(7).unwrap() > 0 {}
            let earliest = (height - 3).max(1);
            assert_eq!(store.earliest_height(), earliest);
            for at in 1..earliest {
                let error = store.snapshot_at(at).map(|_| ()).unwrap_err();
                assert!(matches!(error, StateError::Pruned { .. }), "{error}");
                assert!(matches!(store.prove(at, "bank", b"a"), Err(StateError::Pruned { .. })));
            }
            for at in earliest..=height {
                let (state, hash) = (&blocks[at as usize - 1].1, whole.snapshot_at(at).unwrap().app_hash());
                assert_view(&store.snapshot_at(at).unwrap(), state, at as u64);
                assert_proves(store, at, &hash, state);
            }
        }
    }
}

fn bounded_pruning<S: CommitStore>(store: &S) {
    let block = |n: u64| {
        (0..50u64).map(|i| (format!("bank/{i}").into_bytes(), Some(n.to_be_bytes().to_vec()))).collect()
    };
    commit(store, 1, &block(1));
    commit(store, 2, &block(2));
    let view = store.snapshot_at(1).unwrap();
    let mut calls = 0;
    loop {
        let removed = store.prune(10).unwrap();
        assert!(removed <= 10, "{removed}");
        if removed == 0 {
            break;
        }
        calls += 1;
    }
    // A view taken before keeps reading its height, whether pruning waits for it or not.
    assert_eq!(view.get(b"bank/7").unwrap(), Some(1u64.to_be_bytes().to_vec()));
    drop(view);
    while store.prune(10).unwrap() > 0 {
        calls += 1;
    }
    assert!(calls > 5, "{calls} calls of ten rows for more than fifty");
    assert!(matches!(store.snapshot_at(1), Err(StateError::Pruned { height: 1, earliest: 2 })));
    assert_eq!(store.snapshot_at(2).unwrap().get(b"bank/7").unwrap(), Some(2u64.to_be_bytes().to_vec()));
}

/// Each write is a block; reads go to the latest snapshot.
struct BlockPerWrite<'a, S: CommitStore> {
    store: &'a S,
    view: S::Snapshot,
}

impl<S: CommitStore> BlockPerWrite<'_, S> {
    fn block(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        let block = WriteSet::from([(key.to_vec(), value.map(<[u8]>::to_vec))]);
        commit(self.store, self.store.latest_height() + 1, &block);
        self.view = self.store.snapshot();
        Ok(())
    }
}

impl<S: CommitStore> KvRead for BlockPerWrite<'_, S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.view.get(key)
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        self.view.scan(start, end, order)
    }
}

impl<S: CommitStore> KvWrite for BlockPerWrite<'_, S> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.block(key, Some(value))
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.block(key, None)
    }
}

fn wipe<S: CommitStore>(store: &S) {
    let all: WriteSet =
        rows(&store.snapshot(), Order::Ascending).into_iter().map(|(key, _)| (key, None)).collect();
    commit(store, store.latest_height() + 1, &all);
}

fn key_value_suite<S: CommitStore>(store: &S) {
    conformance::run_write_suite(&mut |case| {
        wipe(store);
        let mut each = BlockPerWrite { view: store.snapshot(), store };
        case(&mut SpaceKv::new(&mut each, "bank/"));
    });
    conformance::run_read_suite(&mut |model, case| {
        wipe(store);
        let height = store.latest_height() + 1;
        let block = |value: &dyn Fn(&Vec<u8>) -> Option<Vec<u8>>| -> WriteSet {
            model.iter().map(|(k, v)| ([b"bank/".as_slice(), k].concat(), value(v))).collect()
        };
        commit(store, height, &block(&|_| Some(b"old".to_vec())));
        commit(store, height + 1, &block(&|v| Some(v.clone())));
        let mut latest = BlockPerWrite { view: store.snapshot(), store };
        case(&SpaceKv::new(&mut latest, "bank/"));
        commit(store, height + 2, &block(&|_| None));
        // The same rows through the height's history.
        let mut view = PastView(store.snapshot_at(height + 1).unwrap());
        case(&SpaceKv::new(&mut view, "bank/"));
    });
}

/// A past height behind the write trait, for the space decorator.
struct PastView<V: StateView>(V);

impl<V: StateView> KvRead for PastView<V> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(key)
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        self.0.scan(start, end, order)
    }
}

impl<V: StateView> KvWrite for PastView<V> {
    fn set(&mut self, _: &[u8], _: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::ReadOnly)
    }

    fn remove(&mut self, _: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::ReadOnly)
    }
}

// ---- the commitment, against other implementations ----

/// Root of the module's final set out of the `jmt` crate, built in one go, and the store it sits in.
pub(super) fn jmt_tree<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> (Hash, MockTreeStore) {
    let store = MockTreeStore::default();
    let sentinel = (SENTINEL_KEY.to_vec(), SENTINEL_VALUE.to_vec());
    let set: Vec<_> = pairs
        .map(|(k, v)| (k.to_vec(), committed_value(v).into_owned()))
        .chain(std::iter::once(sentinel))
        .collect();
    for (key, _) in &set {
        store.put_key_preimage(KeyHash::with::<Sha256>(key), key);
    }
    let (root, batch) = Sha256Jmt::new(&store)
        .put_value_set(set.into_iter().map(|(k, v)| (KeyHash::with::<Sha256>(&k), Some(v))), 0)
        .unwrap();
    store.write_tree_update_batch(batch).unwrap();
    (root.0, store)
}

pub(super) fn module_rows<'a>(
    state: &'a Rows,
    module: &'a str,
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    state.iter().filter_map(move |(key, value)| {
        let rest = key.strip_prefix(module.as_bytes())?.strip_prefix(b"/")?;
        Some((rest, value.as_slice()))
    })
}

fn naive_app_hash(state: &Rows) -> Hash {
    module_map_root(MODULES.iter().map(|m| (*m, jmt_tree(module_rows(state, m)).0)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_app_hash_is_that_of_a_fresh_tree_over_the_final_set(
        seed in any::<u64>(), blocks in 1i64..6, per_block in 0u64..120, threads in 1usize..4,
    ) {
        let options = StateOptions { threads, ..StateOptions::default() };
        let store = MemCommitStore::with_options(&MODULES, options).unwrap();
        for (height, (block, state)) in (1..).zip(random_blocks(seed, blocks, per_block)) {
            let hash = commit(&store, height, &block);
            prop_assert_eq!(hash, naive_app_hash(&state));
        }
    }

    #[test]
    fn order_and_split_of_the_writes_do_not_show_in_the_app_hash(
        pairs in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..5), proptest::collection::vec(any::<u8>(), 0..4), 0..80),
        order in any::<u64>(), cut in 1usize..9, detours in 0usize..40,
    ) {
        let full = |k: &Vec<u8>| [b"bank/".as_slice(), k].concat();
        let once = MemCommitStore::new(&MODULES).unwrap();
        let all: WriteSet = pairs.iter().map(|(k, v)| (full(k), Some(v.clone()))).collect();
        let expected = commit(&once, 1, &all);

        // The same pairs shuffled and cut into blocks, with keys that come and go in between.
        let mut rng = Rng::new(order);
        let mut list: Vec<_> = all.iter().collect();
        for i in (1..list.len()).rev() {
            list.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let other = MemCommitStore::new(&MODULES).unwrap();
        let mut height = 0;
        let mut extra = Vec::new();
        for part in list.chunks(cut) {
            let mut block: WriteSet = part.iter().map(|(k, v)| ((*k).clone(), (*v).clone())).collect();
            for key in extra.drain(..) {
                block.entry(key).or_insert(None);
            }
            if extra.is_empty() && rng.below(40) < detours as u64 {
                let key = full(&vec![rng.below(256) as u8, 9, 9, 9, 9]);
                if !all.contains_key(&key) {
                    block.insert(key.clone(), Some(b"detour".to_vec()));
                    extra.push(key);
                }
            }
            height += 1;
            commit(&other, height, &block);
        }
        let last: WriteSet = extra.into_iter().map(|k| (k, None)).collect();
        prop_assert_eq!(commit(&other, height + 1, &last), expected);
    }
}

#[test]
fn disk_and_memory_agree_on_every_app_hash_with_any_cache_and_threads() {
    let blocks = random_blocks(77, 20, 300);
    let memory = MemCommitStore::new(&MODULES).unwrap();
    let hashes: Vec<_> =
        (1..).zip(&blocks).map(|(height, (block, _))| commit(&memory, height, block)).collect();
    for (threads, page_cache) in [(1, 0), (3, 100_000), (8, 40)] {
        let dir = tempfile::tempdir().unwrap();
        let store = disk(dir.path(), StateOptions { threads, page_cache, ..StateOptions::default() });
        for (height, ((block, _), hash)) in (1..).zip(blocks.iter().zip(&hashes)) {
            assert_eq!(commit(&store, height, block), *hash);
        }
    }
}

#[test]
fn a_large_block_computed_by_many_threads_has_the_same_root_and_effects() {
    let block: WriteSet =
        (0..3000u32).map(|i| (format!("bank/{i}").into_bytes(), Some(i.to_be_bytes().to_vec()))).collect();
    let state = block.iter().map(|(k, v)| (k.clone(), v.clone().unwrap())).collect();
    for threads in [1, 2, 5, 16, 64] {
        let options = StateOptions { threads, ..StateOptions::default() };
        let store = MemCommitStore::with_options(&MODULES, options).unwrap();
        let prepared = store.prepare(1, &block).unwrap();
        assert_eq!(prepared.app_hash(), naive_app_hash(&state));
        assert_eq!(prepared.changes().count(), 3000);
    }
}

#[test]
fn proofs_are_byte_for_byte_those_of_the_jmt_crate() {
    let (block, state) = random_blocks(8, 1, 400).remove(0);
    let store = MemCommitStore::new(&MODULES).unwrap();
    commit(&store, 1, &block);
    for module in MODULES {
        let (root, reference) = jmt_tree(module_rows(&state, module));
        let tree = Sha256Jmt::new(&reference);
        let mut asked: Vec<Vec<u8>> = module_rows(&state, module).map(|(k, _)| k.to_vec()).collect();
        asked.extend((0..60u8).map(|i| vec![b'?', i]));
        for key in asked {
            let ours = store.prove(1, module, &key).unwrap();
            let (_, theirs) = tree.get_with_ics23_proof(key.clone(), 0).unwrap();
            assert_eq!(
                CommitmentProof::decode(ours.ops[0].data.as_slice()).unwrap(),
                theirs,
                "{module} {key:?}"
            );
            let spec = jmt::ics23_spec();
            if let Some(value) = &ours.value {
                let value = committed_value(value);
                assert!(ics23::verify_membership::<ics23::HostFunctionsManager>(
                    &theirs,
                    &spec,
                    &root.to_vec(),
                    &key,
                    &value
                ));
            }
        }
    }
    assert_eq!(jmt_spec(), jmt::ics23_spec());
}

#[test]
fn the_module_map_root_is_that_of_the_sdk() {
    // Vectors of the SDK's own test of its Merkle map.
    let root = |pairs: &[(&str, &str)]| {
        hex::encode(simple_root(&pairs.iter().map(|(k, v)| map_leaf(k, v.as_bytes())).collect::<Vec<_>>()))
    };
    assert_eq!(
        root(&[("key1", "value1")]),
        "a44d3cc7daba1a4600b00a2434b30f8b970652169810d6dfa9fb1793a2189324"
    );
    assert_eq!(
        root(&[("key1", "value1"), ("key2", "value2")]),
        "8fd19b19e7bb3f2b3ee0574027d8a5a4cec370464ea2db2fbfa5c7d35bb0cff3"
    );
    assert_eq!(
        root(&[("key1", "value1"), ("key2", "value2"), ("key3", "value3")]),
        "1dd674ec6782a0d586a903c9c63326a41cbe56b3bba33ed6ff5b527af6efb3dc"
    );
    assert_eq!(module_map_root([]), <Hash>::from(Sha256::digest([])));
    // Names are sorted, whatever order they come in; five need an uneven tree.
    let pair = |n: u8| (MODULES[usize::from(n)], [n; 32]);
    assert_eq!(module_map_root([4, 2, 0, 1, 3].map(pair)), module_map_root([0, 1, 2, 3, 4].map(pair)));
}

#[test]
fn committed_values_are_one_to_one_and_never_empty() {
    let stand_in = committed_value(b"").into_owned();
    assert!(!stand_in.is_empty());
    let twice = [stand_in.as_slice(), &stand_in].concat();
    let values: [&[u8]; 6] = [b"", b"x", b"\0", &stand_in, &twice, &stand_in[1..]];
    let mut images: Vec<_> = values.iter().map(|v| committed_value(v).into_owned()).collect();
    images.sort();
    images.dedup();
    assert_eq!(images.len(), values.len());
    assert_eq!(&*committed_value(b"x"), b"x", "an ordinary value stands for itself");
}

#[test]
fn pages_survive_encoding_and_damage_is_noticed() {
    let store = MemCommitStore::new(&MODULES).unwrap();
    let block: WriteSet = (0..400u32).map(|i| (format!("gov/{i}").into_bytes(), Some(vec![1]))).collect();
    let prepared = store.prepare(1, &block).unwrap();
    assert!(prepared.pages.len() > 17, "a root, sixteen children, some below");
    for (_, _, page) in &prepared.pages {
        let bytes = page.encode();
        assert_eq!(Page::decode(&bytes).as_ref(), Some(page));
        assert_eq!(Page::decode(&bytes[1..]), None);
        assert_eq!(Page::decode(&[&bytes[..], &[0]].concat()), None);
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let damaged = Page::decode(&damaged).unwrap();
        // The version is the one part that a parent's hash does not cover; a wrong one is a missing page.
        assert!(damaged.root_hash() != page.root_hash() || damaged != *page);
    }
    assert_eq!(Page::decode(&[0xff; 4]), None, "a slot is a leaf or a page, not both");
}

#[test]
fn the_page_cache_is_bounded_and_keeps_what_is_used() {
    let cache = PageCache::new(64);
    let page = std::sync::Arc::new(Page::birth());
    let hot = Path::default();
    cache.put(0, &hot, 1, page.clone());
    for module in 1..500u16 {
        cache.put(module, &hot, 1, page.clone());
        assert!(cache.get(0, &hot, 1).is_some(), "used every time, so it stays");
        assert!(cache.len() <= 64);
    }
    assert!(cache.get(1, &hot, 1).is_none());
    cache.put(0, &hot, 0, page.clone());
    assert!(cache.get(0, &hot, 0).is_none(), "an older page does not displace a newer one");
    cache.put(0, &hot, 2, page);
    assert!(cache.get(0, &hot, 1).is_none() && cache.get(0, &hot, 2).is_some());
}

#[test]
fn the_value_cache_never_serves_a_view_what_it_must_not_see() {
    let write = |value: Option<&[u8]>| {
        let (key, value) = (b"bank/a".to_vec(), value.map(<[u8]>::to_vec));
        vec![Write { key, value, module: 1, key_hash: [0; 32], inserted: false }]
    };
    let cache = ValueCache::new(1 << 20, 5);
    let get = |height| cache.get(b"bank/a", height);
    assert_eq!(get(5), None);
    cache.put(b"bank/a", None, 5);
    assert_eq!(get(5), Some(None), "absence is known too");
    assert_eq!(get(4), None, "an older view must look for itself");
    cache.replace(6, write(Some(b"6")));
    assert_eq!((get(5), get(6)), (None, Some(Some(b"6".to_vec()))));
    cache.put(b"bank/b", Some(b"old"), 5);
    assert_eq!(cache.get(b"bank/b", 6), None, "a view of a past height fills nothing in");
    cache.replace(7, vec![]);
    assert_eq!(get(7), Some(Some(b"6".to_vec())), "an unchanged value holds on");
    cache.replace(8, write(None));
    assert_eq!((get(7), get(8)), (None, Some(None)));
    // Too large to keep: the entry before it must go.
    let cache = ValueCache::new(16 * 2 * 200, 1);
    cache.replace(2, write(Some(b"small")));
    cache.replace(3, write(Some(&[7; 5000])));
    assert_eq!(cache.get(b"bank/a", 3), None);
}

// ---- the disk ----

/// A queue that is filled anywhere and worked off from its front, read through the latest and through older views.
#[test]
fn a_scan_from_the_front_of_a_collection_never_misses_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mem) = (disk(dir.path(), keep(0)), MemCommitStore::with_options(&MODULES, keep(0)).unwrap());
    let mut rng = Rng::new(41);
    let mut views = Vec::new();
    let root = b"bank/\x07".to_vec();
    let key = |n: u64| [root.as_slice(), &n.to_be_bytes()].concat();
    for height in 1..=120 {
        let mut block = WriteSet::new();
        for _ in 0..rng.below(4) {
            // Mostly at the back, at times before everything that is left.
            let n = if rng.chance(15) { rng.below(1_000) } else { height as u64 * 10 + rng.below(9) };
            block.insert(key(n), Some(vec![1]));
        }
        let end = key(height as u64 * 10);
        let front: Vec<_> = store.snapshot().scan(&root, Some(&end), Order::Ascending).take(3).collect();
        for row in front {
            block.entry(row.unwrap().0).or_insert(None);
        }
        assert_eq!(commit(&store, height, &block), commit(&mem, height, &block), "height {height}");
        views.push((store.snapshot(), mem.snapshot()));
        // Older views are asked after newer ones have moved the front.
        let back = views.len().saturating_sub(6);
        for (ours, model) in views[back..].iter().rev() {
            for end in [Some(key(rng.below(1_300))), Some(b"bank/\x08".to_vec()), None] {
                let all = |view: &dyn KvRead| -> Vec<_> {
                    view.scan(&root, end.as_deref(), Order::Ascending).map(Result::unwrap).collect()
                };
                assert_eq!(all(ours), all(model), "height {height}, end {end:?}");
                let first = |view: &dyn KvRead| view.scan(&root, end.as_deref(), Order::Ascending).next();
                assert_eq!(first(ours).transpose().unwrap(), first(model).transpose().unwrap());
            }
        }
    }
}

#[test]
fn state_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let memory = MemCommitStore::new(&MODULES).unwrap();
    let blocks = random_blocks(21, 12, 60);
    for (height, (block, _)) in (1..).zip(&blocks) {
        let store = disk(dir.path(), StateOptions { page_cache: 16, ..keep(0) });
        assert_eq!(store.app_hash(), memory.app_hash());
        assert_eq!(commit(&store, height, block), commit(&memory, height, block));
    }
    let store = disk(dir.path(), keep(0));
    for (height, (_, state)) in (1..).zip(&blocks) {
        assert_view(&store.snapshot_at(height).unwrap(), state, 1);
        assert_proves(&store, height, &memory.snapshot_at(height).unwrap().app_hash(), state);
    }
    assert!(store.disk_bytes().unwrap() > 0);
    assert_eq!(store.path(), dir.path());
}

#[test]
fn everything_unreachable_is_gone_after_pruning() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path(), keep(1));
    let blocks = random_blocks(9, 40, 30);
    for (height, (block, _)) in (1..).zip(&blocks) {
        commit(&store, height, block);
    }
    while store.prune(1000).unwrap() > 0 {}
    let tables = store.row_counts();
    let state = &blocks.last().unwrap().1;
    // A fresh store that got the final set in one block has the same rows: trees are canonical.
    let fresh_dir = tempfile::tempdir().unwrap();
    let fresh = disk(fresh_dir.path(), keep(1));
    commit(&fresh, 1, &state.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect());
    while fresh.prune(1000).unwrap() > 0 {}
    assert_eq!(fresh.app_hash(), store.app_hash());
    assert_eq!(tables, fresh.row_counts());
    assert_eq!(tables["versions"], state.len());
    assert_eq!(tables["preimages"], state.len());
    assert_eq!((tables["stale"], tables["changes"], tables["commits"]), (0, 0, 1));
}

pub(super) fn copy(from: &FsPath, to: &FsPath) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The journal: the file that a commit appends to.
pub(super) fn journal(dir: &FsPath) -> std::path::PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "jnl"))
        .collect();
    found.sort();
    found.pop().expect("a journal file")
}

/// Length without the zeros that a journal is preallocated with.
pub(super) fn used(file: &FsPath) -> usize {
    let bytes = std::fs::read(file).unwrap();
    bytes.len() - bytes.iter().rev().take_while(|b| **b == 0).count()
}

#[test]
fn a_power_cut_anywhere_in_a_commit_leaves_the_block_before_or_the_block() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = random_blocks(31, 4, 25);
    let mut hashes = vec![];
    let store = disk(dir.path(), keep(0));
    let mut before = 0;
    for (height, (block, _)) in (1..).zip(&blocks) {
        before = used(&journal(dir.path()));
        hashes.push(commit(&store, height, block));
    }
    let after = used(&journal(dir.path()));
    assert!(after > before + 500, "the last commit is in the journal");
    let step = ((after - before) / 40).max(1);
    let (mut whole, mut cut) = (0, 0);
    for end in (before..=after).step_by(step).chain([after, after - 1]) {
        let copied = tempfile::tempdir().unwrap();
        copy(dir.path(), copied.path());
        let file = journal(copied.path());
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..end]).unwrap();
        let recovered = disk(copied.path(), keep(0));
        let height = recovered.latest_height();
        if height == 4 {
            whole += 1
        } else {
            cut += 1
        }
        assert!(
            height == 3 || (height == 4 && end >= after - 1),
            "cut at {end} of {before}..{after}: height {height}"
        );
        assert_eq!(recovered.app_hash(), hashes[height as usize - 1]);
        assert_view(&recovered.snapshot(), &blocks[height as usize - 1].1, 1);
        if height == 3 {
            assert_eq!(
                commit(&recovered, 4, &blocks[3].0),
                hashes[3],
                "the block replays to the same app hash"
            );
        }
    }
    assert!(whole >= 1 && cut >= 30, "{whole} whole, {cut} cut");
}

#[test]
fn a_folder_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path(), keep(0));
    let error = DiskStore::open(dir.path(), &MODULES, keep(0)).unwrap_err();
    assert!(matches!(error, StateError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("stop the other node"));
    let view = store.snapshot();
    drop(store);
    drop(view);
    disk(dir.path(), keep(0));
}

#[test]
fn another_format_or_other_modules_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    commit(&disk(dir.path(), keep(0)), 1, &writes(&[("bank/a", Some("1"))]));
    let error = DiskStore::open(dir.path(), &["auth", "bank"], keep(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "state database holds modules [auth, bank, breaker, escrow, gov], this program has [auth, bank]: \
         start the program version that matches the chain"
    );
    for bad in [vec![], vec!["a", "a"], vec!["a/b"], vec!["~t"], vec![""], vec!["ü"]] {
        let other = tempfile::tempdir().unwrap();
        assert!(
            matches!(DiskStore::open(other.path(), &bad, keep(0)), Err(StateError::ModuleList { .. })),
            "{bad:?}"
        );
    }
    tamper(dir.path(), "meta", b"format", Some(&7u32.to_be_bytes()));
    let error = DiskStore::open(dir.path(), &MODULES, keep(0)).unwrap_err();
    assert!(error.to_string().contains("has format 7, this program reads format 1"), "{error}");
}

/// Changes one row behind the store's back.
fn tamper(dir: &FsPath, table: &str, key: &[u8], value: Option<&[u8]>) {
    let db = fjall::Database::builder(dir).open().unwrap();
    let table = db.keyspace(table, fjall::KeyspaceCreateOptions::default).unwrap();
    match value {
        Some(value) => table.insert(key, value).unwrap(),
        None => table.remove(key).unwrap(),
    }
    db.persist(fjall::PersistMode::SyncAll).unwrap();
}

#[test]
fn contradictions_on_disk_are_found_when_opening() {
    let h = |n: u64| n.to_be_bytes();
    let root_page = super::table::page_key(1, &Path::default(), 2);
    let record = |n: usize| [vec![3; 32], vec![0; 40 * n]].concat();
    let (good, short) = (record(5), record(4));
    type Case<'a> = (&'a str, &'a [u8], Option<&'a [u8]>, &'a str);
    let cases: [Case<'_>; 7] = [
        ("flat", &[0], None, "flat table is at 0"),
        ("flat", &[0], Some(&h(1)), "flat table is at 1"),
        ("meta", b"latest", Some(&h(1)), "latest height is 1"),
        ("commits", &h(2), None, "commit records end at 1"),
        ("commits", &h(2), Some(&short), "malformed"),
        ("commits", &h(2), Some(&good), "do not give its app hash"),
        ("pages", &root_page, None, "is missing"),
    ];
    for (table, key, value, said) in cases {
        let dir = tempfile::tempdir().unwrap();
        {
            let store = disk(dir.path(), keep(0));
            commit(&store, 1, &writes(&[("bank/a", Some("1"))]));
            commit(&store, 2, &writes(&[("bank/a", Some("2"))]));
        }
        tamper(dir.path(), table, key, value);
        let error = DiskStore::open(dir.path(), &MODULES, keep(0)).unwrap_err();
        assert!(matches!(error, StateError::Corrupt { .. }), "{table}: {error}");
        assert!(error.to_string().contains(said), "{table}: {error}");
        assert!(error.to_string().contains("restore a backup"));
    }
}

#[test]
fn a_damaged_page_stops_the_block_that_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let block: WriteSet = (0..100u32).map(|i| (format!("gov/{i}").into_bytes(), Some(vec![1]))).collect();
    let store = disk(dir.path(), keep(0));
    let prepared = store.prepare(1, &block).unwrap();
    let (module, path, page) = prepared.pages.iter().find(|p| p.1.depth() == 1).cloned().unwrap();
    store.commit(prepared).unwrap();
    drop(store);
    let mut bytes = page.encode();
    bytes[10] ^= 1;
    tamper(dir.path(), "pages", &super::table::page_key(module, &path, 1), Some(&bytes));
    let store = disk(dir.path(), keep(0));
    let all: WriteSet = block.into_keys().map(|k| (k, Some(vec![2]))).collect();
    let error = store.prepare(2, &all).unwrap_err();
    assert!(error.to_string().contains("has another hash"), "{error}");
}
