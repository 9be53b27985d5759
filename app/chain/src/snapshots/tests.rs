use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use holdfast_store::{BranchKv, KvRead, Order, WriteSet};
use holdfast_testkit::Rng;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::format::{Reader, Row};
use super::*;
use crate::app::{App, AppOptions, Block, state_spaces};
use crate::genesis::GenesisDoc;
use crate::settings::{ChainSettings, SETTINGS};
use crate::state::{
    CommitStore, DiskStore, MAX_KEY_BYTES, SENTINEL_KEY, StateError, StateOptions, StateView, module_map_root,
};

const MODULES: [&str; 4] = ["app", "auth", "bank", "breaker"];
const CHAIN: &str = "snap-1";

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn settings(chain_id: &str) -> WriteSet {
    let nothing = holdfast_store::MemKv::default();
    let mut branch = BranchKv::new(&nothing);
    let settings = ChainSettings {
        chain_id: chain_id.into(),
        bech32_prefix: "hold".into(),
        fee_denom: "uhold".into(),
        initial_height: 1,
        max_block_bytes: 1_000_000,
        max_block_gas: None,
    };
    SETTINGS.set(&mut branch, &settings).unwrap();
    branch.into_writes()
}

/// Blocks of random writes and removals over few keys, the first with the chain's settings.
fn blocks(seed: u64, count: usize, per_block: u64) -> Vec<WriteSet> {
    let mut rng = Rng::new(seed);
    let mut out = vec![settings(CHAIN)];
    while out.len() < count {
        let mut block = WriteSet::new();
        for _ in 0..rng.below(per_block + 1) {
            let mut key = [*rng.pick(&MODULES[1..]), "/"].concat().into_bytes();
            for _ in 0..=rng.below(4) {
                key.push(*rng.pick(&[0, 1, b'/', b'a', 0xff]));
            }
            let value = match rng.below(10) {
                0..3 => None,
                3 => Some(Vec::new()),
                4 => Some(b"holdfast.state.v1.empty".to_vec()),
                _ => Some((0..rng.below(200)).map(|_| rng.below(256) as u8).collect()),
            };
            block.insert(key, value);
        }
        out.push(block);
    }
    out
}

struct Node {
    dir: TempDir,
    options: StateOptions,
    store: Option<DiskStore>,
    snapshots: SnapshotStore,
}

impl Node {
    fn new(options: StateOptions, chunk_bytes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Some(DiskStore::open(dir.path().join("state"), &MODULES, options.clone()).unwrap());
        let snapshots = SnapshotStore::with_chunk_bytes(&dir.path().join("snapshots"), chunk_bytes).unwrap();
        Self { dir, options, store, snapshots }
    }

    fn small(chunk_bytes: u32) -> Self {
        Self::new(StateOptions::default(), chunk_bytes)
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn store(&self) -> &DiskStore {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(DiskStore::open(self.state_dir(), &MODULES, self.options.clone()).unwrap());
    }

    fn commit(&self, height: i64, block: &WriteSet) -> [u8; 32] {
        let prepared = self.store().prepare(height, block).unwrap();
        let hash = prepared.app_hash();
        self.store().commit(prepared).unwrap();
        hash
    }

    /// Commits `blocks` from `height` on.
    fn play(&self, height: i64, blocks: &[WriteSet]) -> Vec<[u8; 32]> {
        (height..).zip(blocks).map(|(height, block)| self.commit(height, block)).collect()
    }

    fn snapshot(&self, height: i64) -> (SnapshotInfo, Vec<Vec<u8>>) {
        let info = self.snapshots.create(self.store(), height).unwrap();
        let chunks = (0..info.chunks).map(|index| self.snapshots.load_chunk(info.height, FORMAT, index));
        let chunks = chunks.map(|chunk| chunk.unwrap().unwrap()).collect();
        (info, chunks)
    }

    fn rows(&self) -> Rows {
        rows(&self.store().snapshot())
    }
}

fn rows(view: &dyn KvRead) -> Rows {
    view.scan(b"", None, Order::Ascending).collect::<Result<_, _>>().unwrap()
}

fn options(threads: usize, caches: usize, keep_recent: u64) -> StateOptions {
    StateOptions {
        threads,
        page_cache: caches,
        value_cache_bytes: caches,
        keep_recent,
        ..StateOptions::default()
    }
}

/// Restores, all going well.
#[track_caller]
fn restore(store: &DiskStore, info: &SnapshotInfo, chunks: &[Vec<u8>]) {
    let trusted = info.check().unwrap().app_hash;
    let mut restorer = Restorer::new(store.clone(), Some(CHAIN));
    assert_eq!(restorer.offer(info, &trusted), Offer::Accept);
    for (index, chunk) in (0u32..).zip(chunks) {
        assert_eq!(restorer.progress(), Some((index, info.chunks)));
        let last = index + 1 == info.chunks;
        let expected = if last { Apply::Complete } else { Apply::Accept };
        assert_eq!(restorer.apply_chunk(index, chunk, "peer"), expected);
    }
    assert_eq!(restorer.progress(), None);
    assert_eq!(store.app_hash(), trusted);
}

/// Rows and app hash of a database that was just created.
fn born() -> &'static (BTreeMap<&'static str, usize>, [u8; 32]) {
    static BORN: OnceLock<(BTreeMap<&'static str, usize>, [u8; 32])> = OnceLock::new();
    BORN.get_or_init(|| {
        let fresh = Node::small(700);
        (fresh.store().counted_rows(), fresh.store().app_hash())
    })
}

#[track_caller]
fn assert_empty(store: &DiskStore) {
    assert_eq!((store.counted_rows(), store.app_hash()), *born());
    assert_eq!((store.latest_height(), store.earliest_height()), (0, 0));
    assert_eq!(rows(&store.snapshot()), Rows::new());
}

/// The fields of a snapshot whose metadata was made by hand.
fn offered(metadata: &Metadata) -> SnapshotInfo {
    let encoded = metadata.encode().unwrap();
    SnapshotInfo {
        height: metadata.height.unsigned_abs(),
        format: FORMAT,
        chunks: metadata.chunks.len() as u32,
        hash: Sha256::digest(&encoded).to_vec(),
        metadata: encoded,
    }
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let node = Node::small(CHUNK_BYTES);
    let mut block = settings("abc");
    let value = block.values().next().unwrap().clone().unwrap();
    let long = vec![b'v'; 200];
    for (key, value) in
        [("bank/a1", "x".as_bytes()), ("bank/a1b", b""), ("bank/b", &long), ("breaker/\0", b"y")]
    {
        block.insert(key.as_bytes().to_vec(), Some(value.to_vec()));
    }
    let app_hash = node.commit(7, &block);
    let (info, chunks) = node.snapshot(7);

    // The settings are at app/01, 32 bytes or so: a length of one byte.
    let mut stream = vec![1, 0, 1, 1, value.len() as u8];
    stream.extend_from_slice(&value);
    stream.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 1]);
    stream.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0]);
    stream.extend_from_slice(&[1, 0, 2, b'a', b'1', 1, b'x']);
    stream.extend_from_slice(&[1, 2, 1, b'b', 0]);
    stream.extend_from_slice(&[1, 0, 1, b'b', 0xc8, 0x01]);
    stream.extend_from_slice(&long);
    stream.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 3]);
    stream.extend_from_slice(&[1, 0, 1, 0, 1, b'y']);
    stream.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(chunks, [stream.clone()]);

    let roots = node.store().snapshot_at(7).unwrap().module_roots(node.store());
    let mut metadata = b"holdfast.snap.v1\x03abc\0\0\0\0\0\0\0\x07".to_vec();
    metadata.extend_from_slice(&app_hash);
    metadata.extend_from_slice(&[0, 4]);
    for (name, root) in &roots {
        metadata.push(name.len() as u8);
        metadata.extend_from_slice(name.as_bytes());
        metadata.extend_from_slice(root);
    }
    metadata.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 5]);
    metadata.extend_from_slice(&(stream.len() as u64).to_be_bytes());
    metadata.extend_from_slice(&[0, 0x98, 0x96, 0x80, 0, 0, 0, 1]);
    metadata.extend_from_slice(&Sha256::digest(&stream));
    let seal = Sha256::digest(&metadata);
    metadata.extend_from_slice(&seal);
    assert_eq!(info.metadata, metadata);
    assert_eq!(info.hash, Sha256::digest(&metadata).to_vec());
    assert_eq!((info.height, info.format, info.chunks), (7, 1, 1));
    assert_eq!(module_map_root(roots.iter().map(|(name, root)| (name.as_str(), *root))), app_hash);
}

#[test]
fn every_node_writes_the_same_bytes_whatever_its_history() {
    let blocks = blocks(21, 40, 60);
    let plain = Node::new(options(1, 32, 0), 700);
    plain.play(1, &blocks);
    let expected = plain.snapshot(30);
    assert!(expected.0.chunks > 5, "{} chunks", expected.0.chunks);

    // Taken at the height itself, with other threads and caches, pruned after each block.
    let pruned = Node::new(options(4, 1 << 20, 3), 700);
    for (height, block) in (1..=30).zip(&blocks) {
        pruned.commit(height, block);
        while pruned.store().prune(7).unwrap() > 0 {}
    }
    assert_eq!(pruned.snapshot(30), expected);

    // Stopped and started, and taken from behind.
    let mut restarted = Node::new(options(2, 0, 5), 700);
    for (height, block) in (1..=33).zip(&blocks) {
        restarted.commit(height, block);
        if height % 4 == 0 {
            restarted.reopen();
        }
    }
    while restarted.store().prune(50).unwrap() > 0 {}
    assert_eq!(restarted.snapshot(30), expected);

    // Come from a snapshot of another node, itself one of a restored node.
    let (info, chunks) = plain.snapshot(12);
    let second = Node::small(700);
    restore(second.store(), &info, &chunks);
    second.play(13, &blocks[12..20]);
    let (info, chunks) = second.snapshot(20);
    let third = Node::small(700);
    restore(third.store(), &info, &chunks);
    third.play(21, &blocks[20..31]);
    assert_eq!(third.snapshot(30), expected);
}

#[test]
fn a_module_that_came_in_later_is_in_the_snapshots_from_then_on() {
    let blocks = blocks(2, 12, 40);
    let mut old = Node::small(700);
    old.play(1, &blocks[..10]);
    let before = old.snapshot(10);
    // Its name sorts between the others; on disk it stands behind them.
    const MORE: [&str; 5] = ["app", "auth", "authz", "bank", "breaker"];
    let added = StateOptions { added_modules: vec!["authz".into()], ..StateOptions::default() };
    old.store = None;
    old.store = Some(DiskStore::open(old.state_dir(), &MORE, added).unwrap());
    let grant: WriteSet = [(b"authz/grant".to_vec(), Some(b"yes".to_vec()))].into();
    old.commit(11, &grant);
    let app_hash = old.commit(12, &blocks[10]);
    fs::remove_dir_all(old.snapshots.dir().join("10")).unwrap();
    assert_eq!(old.snapshot(10), before);

    let (info, chunks) = old.snapshot(12);
    assert!(info.check().unwrap().module_names().eq(MORE));
    let refused = Restorer::new(Node::small(700).store().clone(), Some(CHAIN)).offer(&info, &app_hash);
    assert!(matches!(refused, Offer::Reject(_)), "{refused:?}");
    let dir = tempfile::tempdir().unwrap();
    let open = || DiskStore::open(dir.path(), &MORE, StateOptions::default()).unwrap();
    restore(&open(), &info, &chunks);
    let store = open();
    assert_eq!((store.latest_height(), store.app_hash()), (12, app_hash));
    assert_eq!(rows(&store.snapshot()), old.rows());
    assert_proves(&store, 12, &app_hash);
    let (a, b) = (store.prepare(13, &blocks[11]).unwrap(), old.store().prepare(13, &blocks[11]).unwrap());
    assert_eq!(a.app_hash(), b.app_hash());
}

#[test]
fn what_is_restored_is_what_was_there() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let chunk_bytes = 64 + rng.below(3_000) as u32;
        println!("seed {seed}, chunks of {chunk_bytes} bytes");
        let mut blocks = blocks(seed, 6, 80);
        // The longest key that can be, and a value longer than several chunks.
        let longest = [b"bank/".as_slice(), &vec![0; MAX_KEY_BYTES - 5]].concat();
        blocks[3].insert(longest, Some(vec![7; rng.below(20_000) as usize]));
        let source = Node::new(options(1, 1 << 16, 1), chunk_bytes);
        source.play(1, &blocks);
        while source.store().prune(1_000).unwrap() > 0 {}
        let (info, chunks) = source.snapshot(6);

        let mut target = Node::small(chunk_bytes);
        // What was asked of the empty database is not remembered.
        for key in source.rows().keys() {
            assert_eq!(target.store().snapshot().get(key).unwrap(), None);
        }
        assert_eq!(rows(&target.store().snapshot()), Rows::new());
        let before = target.store().snapshot();
        restore(target.store(), &info, &chunks);
        assert_eq!(rows(&before), Rows::new(), "a view does not change");
        drop(before);
        for _ in 0..2 {
            let store = target.store();
            assert_eq!((store.latest_height(), store.earliest_height()), (6, 6));
            assert_eq!(target.rows(), source.rows());
            for (key, value) in source.rows() {
                assert_eq!(store.snapshot().get(&key).unwrap(), Some(value));
            }
            assert_eq!(rows(&store.snapshot_at(6).unwrap()), source.rows());
            assert!(matches!(store.snapshot_at(5), Err(StateError::Pruned { height: 5, earliest: 6 })));
            assert_eq!(store.counted_rows(), source.store().counted_rows(), "as after pruning");
            target.reopen();
        }
    }
}

/// Proves presence of what is there and absence of its neighbours.
#[track_caller]
fn assert_proves(store: &DiskStore, height: i64, app_hash: &[u8; 32]) {
    let state = rows(&store.snapshot_at(height).unwrap());
    for (key, value) in &state {
        let slash = key.iter().position(|b| *b == b'/').unwrap();
        let module = std::str::from_utf8(&key[..slash]).unwrap();
        let proof = store.prove(height, module, &key[slash + 1..]).unwrap();
        assert_eq!(proof.value.as_ref(), Some(value));
        proof.verify(app_hash).unwrap();
        let absent = [&key[slash + 1..], b"?"].concat();
        let proof = store.prove(height, module, &absent).unwrap();
        assert_eq!(proof.value, None);
        proof.verify(app_hash).unwrap();
    }
}

#[test]
fn a_restored_node_goes_on_as_the_others_do() {
    let blocks = blocks(5, 40, 40);
    let source = Node::new(options(1, 256, 0), 500);
    let hashes = source.play(1, &blocks);
    let (info, chunks) = source.snapshot(20);
    for (keep_recent, restart) in [(0, false), (1, true), (4, true)] {
        let mut target = Node::new(options(2, 64, keep_recent), 500);
        restore(target.store(), &info, &chunks);
        assert_proves(target.store(), 20, &hashes[19]);
        for (height, block) in (21..=40).zip(&blocks[20..]) {
            assert_eq!(target.commit(height, block), hashes[height as usize - 1], "height {height}");
            while target.store().prune(9).unwrap() > 0 {}
            if restart && height % 3 == 0 {
                target.reopen();
            }
            let earliest = target.store().earliest_height();
            let window = if keep_recent == 0 { 20 } else { (height - keep_recent as i64 + 1).max(20) };
            assert_eq!(earliest, window);
            for at in earliest..=height {
                let view = target.store().snapshot_at(at).unwrap();
                assert_eq!(view.app_hash(), hashes[at as usize - 1]);
                assert_eq!(rows(&view), rows(&source.store().snapshot_at(at).unwrap()));
            }
        }
        let earliest = target.store().earliest_height();
        assert_proves(target.store(), earliest, &hashes[earliest as usize - 1]);
        assert_proves(target.store(), 40, &hashes[39]);
        if keep_recent == 1 {
            let twin = Node::new(options(1, 64, 1), 500);
            twin.play(1, &blocks);
            while twin.store().prune(1_000).unwrap() > 0 {}
            assert_eq!(target.store().counted_rows(), twin.store().counted_rows(), "nothing stays behind");
        }
    }
}

#[test]
fn a_chunk_that_is_not_the_snapshots_changes_nothing_and_its_sender_is_named() {
    let source = Node::small(400);
    source.play(1, &blocks(9, 5, 40));
    let (info, chunks) = source.snapshot(5);
    assert!(chunks.len() >= 4);
    let target = Node::small(400);
    let trusted = source.store().app_hash();
    let mut restorer = Restorer::new(target.store().clone(), Some(CHAIN));
    assert!(matches!(restorer.apply_chunk(0, &chunks[0], "x"), Apply::Abort(_)), "nothing was accepted");
    assert_eq!(restorer.offer(&info, &trusted), Offer::Accept);
    for (index, chunk) in (0u32..).zip(&chunks) {
        let at = index as usize;
        let mut lies = vec![
            Vec::new(),
            chunk[1..].to_vec(),
            [chunk.as_slice(), &[0]].concat(),
            vec![0; chunk.len()],
            vec![0xff; 20_000_000],
            chunks[(at + 1) % chunks.len()].clone(),
        ];
        for bit in [0, chunk.len() * 4, chunk.len() * 8 - 1] {
            let mut lie = chunk.clone();
            lie[bit / 8] ^= 1 << (bit % 8);
            lies.push(lie);
        }
        let before = target.store().counted_rows();
        for lie in lies {
            match restorer.apply_chunk(index, &lie, "liar") {
                Apply::Retry { refetch, reject_sender, .. } => {
                    assert_eq!((refetch, reject_sender.as_deref()), (vec![index], Some("liar")));
                }
                other => panic!("{other:?}"),
            }
        }
        // Out of turn, twice, beyond the end: no lie, and nothing happens.
        let ahead = restorer.apply_chunk(index + 1, chunks.get(at + 1).unwrap_or(chunk), "x");
        assert!(
            matches!(&ahead, Apply::Retry { refetch, reject_sender: None, .. } if refetch.contains(&index)),
            "{ahead:?}"
        );
        let beyond = restorer.apply_chunk(u32::MAX, chunk, "x");
        assert!(matches!(&beyond, Apply::Retry { refetch, .. } if *refetch == [index]), "{beyond:?}");
        if let Some(earlier) = at.checked_sub(1) {
            assert_eq!(restorer.apply_chunk(index - 1, &chunks[earlier], "x"), Apply::Accept);
        }
        assert_eq!(restorer.progress(), Some((index, info.chunks)));
        assert_eq!(target.store().counted_rows(), before);
        let last = at + 1 == chunks.len();
        assert_eq!(
            restorer.apply_chunk(index, chunk, "x"),
            if last { Apply::Complete } else { Apply::Accept }
        );
    }
    assert!(matches!(restorer.apply_chunk(0, &chunks[0], "x"), Apply::Abort(_)));
    assert!(matches!(restorer.offer(&info, &trusted), Offer::Abort(_)), "there is a chain now");
    assert_eq!(target.rows(), source.rows());
}

#[test]
fn an_offer_that_cannot_be_true_is_refused_before_a_chunk_is_fetched() {
    let source = Node::small(400);
    source.play(1, &blocks(9, 5, 40));
    let (info, _) = source.snapshot(5);
    let trusted = source.store().app_hash();
    let good = info.check().unwrap();
    let target = Node::small(400);
    let offer = |info: &SnapshotInfo, trusted: &[u8]| {
        Restorer::new(target.store().clone(), Some(CHAIN)).offer(info, trusted)
    };
    let changed = |change: &dyn Fn(&mut SnapshotInfo)| {
        let mut info = info.clone();
        change(&mut info);
        offer(&info, &trusted)
    };
    for format in [0, 2, 3, u32::MAX] {
        assert!(matches!(changed(&|i| i.format = format), Offer::RejectFormat(_)));
    }
    for height in [0, 4, 6, 1 << 63, u64::MAX] {
        assert!(matches!(changed(&|i| i.height = height), Offer::Reject(_)), "{height}");
    }
    for chunks in [0, info.chunks - 1, info.chunks + 1, u32::MAX] {
        assert!(matches!(changed(&|i| i.chunks = chunks), Offer::Reject(_)), "{chunks}");
    }
    assert!(matches!(changed(&|i| i.hash[3] ^= 1), Offer::RejectSender(_)));
    assert!(matches!(changed(&|i| i.hash.clear()), Offer::RejectSender(_)));
    assert!(matches!(changed(&|i| i.metadata[40] ^= 1), Offer::RejectSender(_)));
    assert!(matches!(changed(&|i| i.metadata = vec![0; METADATA_BYTES_MAX + 1]), Offer::RejectSender(_)));
    // Metadata cut anywhere, continued, or changed in any byte, under a hash that fits.
    let with = |metadata: Vec<u8>| {
        let hash = Sha256::digest(&metadata).to_vec();
        offer(&SnapshotInfo { metadata, hash, ..info.clone() }, &trusted)
    };
    for cut in 0..info.metadata.len() {
        assert!(matches!(with(info.metadata[..cut].to_vec()), Offer::Reject(_)), "cut at {cut}");
    }
    assert!(matches!(with([info.metadata.as_slice(), &[0]].concat()), Offer::Reject(_)));
    for bit in 0..info.metadata.len() * 8 {
        let mut metadata = info.metadata.clone();
        metadata[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(with(metadata), Offer::Reject(_)), "bit {bit}");
    }
    // The same by a liar who knows what belongs at the end.
    let end = info.metadata.len() - 32;
    let hashes_at = end - 32 * info.chunks as usize;
    let counts_at = hashes_at - 24;
    for at in 0..hashes_at {
        if (counts_at..counts_at + 8).contains(&at) {
            continue; // The number of keys is compared when they are all there.
        }
        let mut metadata = info.metadata[..end].to_vec();
        metadata[at] ^= 0x81;
        let seal = Sha256::digest(&metadata);
        metadata.extend_from_slice(&seal);
        let answer = with(metadata);
        // A length of the stream that gives the same number of chunks comes out with the last one.
        let length = (counts_at + 8..counts_at + 16).contains(&at);
        assert!(
            matches!(answer, Offer::Reject(_)) || length && answer == Offer::Accept,
            "byte {at}: {answer:?}"
        );
    }
    // Another app hash is trusted, of whatever length.
    for trusted in [&[0; 32][..], &trusted[..31], b""] {
        assert!(matches!(offer(&info, trusted), Offer::Reject(_)));
    }
    let other = Restorer::new(target.store().clone(), Some("snap-2")).offer(&info, &trusted);
    assert_eq!(other, Offer::Reject("it is of chain snap-1, this node is of snap-2".into()));
    // A program with other modules.
    let dir = tempfile::tempdir().unwrap();
    let newer =
        DiskStore::open(dir.path(), &["app", "auth", "bank", "breaker", "gov"], StateOptions::default())
            .unwrap();
    let answer = Restorer::new(newer, Some(CHAIN)).offer(&info, &trusted);
    assert!(
        matches!(&answer, Offer::Reject(text) if text.contains("has modules [app, auth, bank, breaker], this program has [app, auth, bank, breaker, gov]")),
        "{answer:?}"
    );
    // An unlimited claim costs nothing.
    let mut huge = good.clone();
    huge.bytes = u64::MAX;
    assert!(matches!(offer(&offered(&huge), &trusted), Offer::Reject(_)));
    assert_eq!(offer(&info, &trusted), Offer::Accept);
    assert_empty(target.store());
}

#[test]
fn metadata_stays_within_what_a_message_carries() {
    let roots = vec![ModuleRoot { name: "bank".into(), root: [1; 32] }];
    let app_hash = module_map_root(roots.iter().map(|m| (m.name.as_str(), m.root)));
    let chunks = 121_000;
    let mut metadata = Metadata {
        chain_id: "c".into(),
        height: 1,
        app_hash,
        modules: roots,
        items: 0,
        bytes: chunks * u64::from(CHUNK_BYTES),
        chunk_bytes: CHUNK_BYTES,
        chunks: vec![[9; 32]; chunks as usize],
    };
    // 1.2 TB of state.
    let encoded = metadata.encode().unwrap();
    assert!(encoded.len() < 4_000_000);
    assert_eq!(Metadata::decode(&encoded).unwrap(), metadata);
    metadata.chunks = vec![[9; 32]; 122_000];
    assert!(matches!(metadata.encode(), Err(SnapshotError::TooLarge { .. })));
    metadata.chunks.truncate(121_000);
    // The next block's height still has to be one at which a chain can begin.
    for (height, encodes) in [(4_611_686_018_427_387_902, true), (4_611_686_018_427_387_903, false)] {
        metadata.height = height;
        assert_eq!(metadata.encode().is_ok(), encodes, "{height}");
    }
    const { assert!(CHUNK_BYTES < 16_000_000) };
    assert_eq!(metadata.chunk_len(u32::MAX), None);
}

/// Makes a snapshot of `stream` that contradicts nothing but the state, and feeds it.
fn lie(target: &DiskStore, good: &Metadata, stream: &[u8], items: u64) -> Apply {
    let mut metadata = good.clone();
    metadata.bytes = stream.len() as u64;
    metadata.items = items;
    let chunks: Vec<&[u8]> = stream.chunks(good.chunk_bytes as usize).collect();
    metadata.chunks = chunks.iter().map(|chunk| Sha256::digest(chunk).into()).collect();
    let mut restorer = Restorer::new(target.clone(), Some(CHAIN));
    assert_eq!(restorer.offer(&offered(&metadata), &good.app_hash), Offer::Accept);
    for (index, chunk) in (0u32..).zip(chunks) {
        match restorer.apply_chunk(index, chunk, "liar") {
            Apply::Accept => {}
            other => return other,
        }
    }
    panic!("neither refused nor complete");
}

#[test]
fn a_snapshot_whose_keys_do_not_give_the_trusted_app_hash_leaves_an_empty_database() {
    let source = Node::small(300);
    let mut blocks = blocks(3, 6, 40);
    blocks[5].insert(b"breaker/\xff\xff\xff\xff\xff\xff".to_vec(), Some(b"last".to_vec()));
    source.play(1, &blocks);
    let (info, chunks) = source.snapshot(6);
    let good = info.check().unwrap();
    let stream = chunks.concat();
    let target = Node::small(300);
    let refuse = |name: &str, stream: &[u8], items: u64, text: &str| {
        match lie(target.store(), &good, stream, items) {
            Apply::RejectSnapshot(said) => assert!(said.contains(text), "{name}: {said}"),
            other => panic!("{name}: {other:?}"),
        }
        assert_empty(target.store());
    };
    // The last module's last value byte, before 00 and its count.
    let mut other = stream.clone();
    let at = other.len() - 10;
    other[at] ^= 1;
    refuse("value", &other, good.items, "breaker do not give its root");
    refuse("key count", &stream, good.items + 1, "its metadata says");
    refuse("trailing", &[stream.as_slice(), &[0]].concat(), good.items, "behind its last module");
    refuse("trailing chunk", &[stream.as_slice(), &[1; 900]].concat(), good.items, "behind its last module");
    refuse("cut", &stream[..stream.len() - 1], good.items, "ends before");
    refuse("cut in a chunk before", &stream[..stream.len() - 400], good.items, "ends before");
    refuse("nothing", &[0], 0, "ends before");
    let none = [0; 9];
    refuse("no keys", &none.repeat(4), 0, "app do not give its root");
    let row = |bytes: &[u8], rest: usize| [bytes, &vec![b'k'; rest]].concat();
    refuse("kind", &[2], 0, "no known kind");
    refuse("count", &[0, 0, 0, 0, 0, 0, 0, 0, 1], 0, "miscounts");
    refuse("shared", &[1, 1, 1, b'a', 0], 0, "shares more");
    refuse("empty key", &[1, 0, 0, 0], 0, "key twice");
    refuse("same key", &[1, 0, 1, b'b', 0, 1, 1, 0, 0], 0, "key twice");
    refuse("order", &[1, 0, 1, b'b', 0, 1, 0, 1, b'a', 0], 0, "out of order");
    refuse("share not full", &[1, 0, 1, b'b', 0, 1, 0, 2, b'b', b'a', 0], 0, "out of order");
    refuse("length spelt long", &[1, 0x80, 0, 1, b'a', 0], 0, "shortest form");
    refuse("length without end", &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 0, "shortest form");
    refuse("endless key", &row(&[1, 0, 0x81, 0x80, 0x01], 400), 0, "key that is too long");
    refuse(
        "key too long by the module's name",
        &[&row(&[1, 0, 0x80, 0x80, 0x01], 16_384)[..], &[0]].concat(),
        0,
        "longer than 16384",
    );
    refuse("endless value", &[1, 0, 1, b'a', 0xff, 0xff, 0xff, 0xff, 0x0f], 0, "value that is too long");
    let own = [&[1, 0, SENTINEL_KEY.len() as u8], SENTINEL_KEY, &[0]].concat();
    refuse("the tree's own leaf", &own, 0, "own leaf");
    // After all these the true one.
    restore(target.store(), &info, &chunks);
    assert_eq!(target.rows(), source.rows());
}

#[test]
fn a_snapshot_under_another_chains_name_is_refused() {
    let source = Node::small(300);
    source.play(1, &blocks(3, 6, 40));
    let (info, chunks) = source.snapshot(6);
    let mut metadata = info.check().unwrap();
    metadata.chain_id = "snap-9".into();
    let target = Node::small(300);
    let mut restorer = Restorer::new(target.store().clone(), None);
    assert_eq!(restorer.offer(&offered(&metadata), &metadata.app_hash), Offer::Accept);
    let answers: Vec<Apply> =
        (0u32..).zip(&chunks).map(|(index, chunk)| restorer.apply_chunk(index, chunk, "x")).collect();
    let last = "snapshot refused: its state is of snap-1, its metadata says snap-9";
    assert_eq!(answers.last(), Some(&Apply::RejectSnapshot(last.into())));
    assert_empty(target.store());
}

#[test]
fn the_stream_reads_the_same_however_it_is_cut() {
    let node = Node::small(CHUNK_BYTES);
    node.play(1, &blocks(8, 4, 30));
    let (info, chunks) = node.snapshot(4);
    let stream = chunks.concat();
    for piece in [1, 2, 3, 7, 64, stream.len()] {
        let mut reader = Reader::new(MODULES.len());
        let mut read = Rows::new();
        for bytes in stream.chunks(piece) {
            let each = |row: Row<'_>| {
                if let Row::Item { module, key, value } = row {
                    let key = [MODULES[module].as_bytes(), b"/", key].concat();
                    assert_eq!(read.insert(key, value.to_vec()), None);
                }
                Ok(())
            };
            reader.feed(bytes, each).unwrap();
        }
        assert_eq!(reader.finish().unwrap(), info.check().unwrap().items);
        assert_eq!(read, node.rows());
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).unwrap();
        }
    }
}

#[test]
fn a_crash_in_the_middle_of_a_restore_leaves_an_empty_database() {
    let source = Node::small(1_500);
    let blocks = blocks(14, 12, 60);
    source.play(1, &blocks);
    let (info, chunks) = source.snapshot(10);
    let trusted = info.check().unwrap().app_hash;
    let target = Node::small(1_500);
    let mut restorer = Restorer::new(target.store().clone(), Some(CHAIN));
    assert_eq!(restorer.offer(&info, &trusted), Offer::Accept);
    for (index, chunk) in (0u32..).zip(&chunks) {
        // The files as a crash would leave them.
        let crashed = tempfile::tempdir().unwrap();
        copy(&target.state_dir(), crashed.path());
        // Nothing of it is a chain: neither readable nor open to a commit.
        assert_eq!((target.store().latest_height(), target.rows()), (0, Rows::new()));
        let prepared = target.store().prepare(1, &blocks[0]).unwrap();
        assert!(matches!(target.store().commit(prepared), Err(StateError::Restoring)));

        let reopened = DiskStore::open(crashed.path(), &MODULES, StateOptions::default()).unwrap();
        assert_empty(&reopened);
        if index % 3 == 1 {
            restore(&reopened, &info, &chunks);
            assert_eq!(rows(&reopened.snapshot()), rows(&source.store().snapshot_at(10).unwrap()));
        }
        restorer.apply_chunk(index, chunk, "x");
    }
    let crashed = tempfile::tempdir().unwrap();
    copy(&target.state_dir(), crashed.path());
    let reopened = DiskStore::open(crashed.path(), &MODULES, StateOptions::default()).unwrap();
    assert_eq!((reopened.latest_height(), reopened.app_hash()), (10, trusted));
}

#[test]
fn a_snapshot_given_up_leaves_room_for_another() {
    let source = Node::small(300);
    let blocks = blocks(4, 8, 40);
    source.play(1, &blocks);
    let (old, old_chunks) = source.snapshot(5);
    let (new, chunks) = source.snapshot(8);
    let trusted = |info: &SnapshotInfo| info.check().unwrap().app_hash;
    let target = Node::small(300);
    let mut restorer = Restorer::new(target.store().clone(), Some(CHAIN));
    assert_eq!(restorer.offer(&old, &trusted(&old)), Offer::Accept);
    for (index, chunk) in (0u32..).zip(&old_chunks[..old_chunks.len() - 1]) {
        assert_eq!(restorer.apply_chunk(index, chunk, "x"), Apply::Accept);
    }
    // Two at a time do not mix.
    let mut second = Restorer::new(target.store().clone(), None);
    assert!(matches!(second.offer(&new, &trusted(&new)), Offer::Abort(_)));
    // A refused offer gives up the one before it, too.
    assert!(matches!(restorer.offer(&old, &[0; 32]), Offer::Reject(_)));
    assert_empty(target.store());
    assert_eq!(restorer.offer(&old, &trusted(&old)), Offer::Accept);
    restorer.apply_chunk(0, &old_chunks[0], "x");
    drop(restorer);
    assert_empty(target.store());
    restore(target.store(), &new, &chunks);
    assert_eq!(target.rows(), source.rows());
}

#[test]
fn the_store_lists_serves_and_removes_whole_snapshots_only() {
    let node = Node::small(300);
    node.play(1, &blocks(6, 9, 40));
    let store = &node.snapshots;
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(store.create_until(node.store(), 9, &|| true).unwrap(), None, "given up");
    assert_eq!(fs::read_dir(store.dir()).unwrap().count(), 1, "nothing but the lock");
    let made: Vec<SnapshotInfo> = [3, 9, 5].map(|height| store.create(node.store(), height).unwrap()).into();
    assert_eq!(store.create(node.store(), 9).unwrap(), made[1], "a second time it is found");
    let listed = store.list().unwrap();
    assert_eq!(listed.iter().map(|info| info.height).collect::<Vec<_>>(), [9, 5, 3]);
    assert_eq!(listed[0], made[1]);
    assert_eq!(list(store.dir()).unwrap().len(), 3, "beside the store that has it open");

    // Whatever a peer asks for.
    for (height, format, chunk) in [
        (0, 1, 0),
        (4, 1, 0),
        (u64::MAX, 1, 0),
        (9, 0, 0),
        (9, 2, 0),
        (9, u32::MAX, 0),
        (9, 1, made[1].chunks),
        (9, 1, u32::MAX),
    ] {
        assert_eq!(store.load_chunk(height, format, chunk).unwrap(), None, "{height}/{format}/{chunk}");
    }
    for (height, error) in [(0, 9), (-1, 9), (10, 8), (i64::MIN, 9)] {
        assert_eq!(store.create(node.store(), height).unwrap_err().code(), 100 + error);
    }
    assert!(matches!(SnapshotStore::open(store.dir()), Err(SnapshotError::Locked { .. })));

    // Files that changed on disk are noticed, and not given to anybody.
    let place = |height: i64| store.dir().join(height.to_string()).join("1");
    let chunk = fs::read(place(5).join("1")).unwrap();
    fs::write(place(5).join("1"), vec![0; chunk.len()]).unwrap();
    assert!(matches!(store.load_chunk(5, 1, 1), Err(SnapshotError::Damaged { .. })));
    fs::write(place(5).join("1"), b"short").unwrap();
    assert!(matches!(store.load_chunk(5, 1, 1), Err(SnapshotError::Damaged { .. })));
    assert!(matches!(store.folder(5, 1), Err(SnapshotError::Damaged { .. })));
    fs::remove_file(place(5).join("1")).unwrap();
    let missing = store.folder(5, 1).unwrap_err();
    assert!(
        matches!(&missing, SnapshotError::Damaged { path, .. } if *path == place(5).join("1")),
        "{missing}"
    );
    fs::write(place(3).join("metadata"), b"holdfast").unwrap();
    assert_eq!(store.list().unwrap(), [made[1].clone()]);
    fs::remove_file(place(3).join("metadata")).unwrap();
    let missing = store.folder(3, 1).unwrap_err();
    assert!(
        matches!(&missing, SnapshotError::Damaged { path, .. } if *path == place(3).join("metadata")),
        "{missing}"
    );
    assert_eq!(store.list().unwrap(), [made[1].clone()]);
    // Made again, it is whole again.
    assert_eq!(store.create(node.store(), 5).unwrap(), made[2]);
    assert_eq!(store.load_chunk(5, 1, 1).unwrap(), Some(chunk));
    store.delete(3, 1).unwrap();
    assert!(matches!(store.delete(3, 1), Err(SnapshotError::Missing { height: 3, format: 1 })));
    assert!(!store.dir().join("3").exists());

    assert_eq!(store.prune(0).unwrap(), 0);
    assert_eq!(store.prune(2).unwrap(), 0);
    assert_eq!(store.prune(1).unwrap(), 1);
    assert_eq!(store.list().unwrap(), [made[1].clone()]);
}

#[test]
fn what_an_interrupted_creation_left_is_removed_and_never_listed() {
    let mut node = Node::small(300);
    node.play(1, &blocks(6, 4, 40));
    let info = node.snapshots.create(node.store(), 4).unwrap();
    let dir = node.snapshots.dir().to_owned();
    let left = dir.join(".unfinished-4-1");
    copy(&dir.join("4/1"), &left);
    fs::create_dir_all(dir.join("5/1")).unwrap();
    fs::write(dir.join("5/1/0"), b"no metadata").unwrap();
    fs::create_dir_all(dir.join("06/1")).unwrap();
    fs::write(dir.join("lost+found"), b"").unwrap();
    assert_eq!(node.snapshots.list().unwrap(), std::slice::from_ref(&info));
    node.snapshots = SnapshotStore::with_chunk_bytes(&node.dir.path().join("other"), 300).unwrap();
    let again = SnapshotStore::open(&dir).unwrap();
    assert!(!left.exists());
    assert_eq!(again.list().unwrap(), [info]);
}

#[test]
fn a_database_without_a_chain_has_no_snapshot() {
    let node = Node::small(300);
    node.commit(1, &WriteSet::from([(b"bank/x".to_vec(), Some(vec![1]))]));
    assert_eq!(node.snapshots.create_until(node.store(), 1, &|| true).unwrap_err().code(), 8);
    let error = node.snapshots.create(node.store(), 1).unwrap_err();
    assert!(matches!(error, SnapshotError::NoChain { height: 1 }), "{error}");
    assert_eq!(fs::read_dir(node.snapshots.dir()).unwrap().count(), 1, "nothing but the lock");
}

#[test]
fn an_app_restored_from_a_folder_executes_the_same_blocks() {
    let source = tempfile::tempdir().unwrap();
    let open =
        |dir: &Path| DiskStore::open(dir.join("state"), &state_spaces(), StateOptions::default()).unwrap();
    let hrp = holdfast_types::Hrp::new("hold").unwrap();
    let doc = GenesisDoc::default_for(CHAIN, &hrp).unwrap();
    let store = open(source.path());
    let mut app = App::from_genesis(store.clone(), AppOptions::default(), &doc).unwrap();
    let block =
        |height: i64| Block { height, time_ns: 1_000_000_000 * height.unsigned_abs(), txs: Vec::new() };
    let play = |app: &mut App<DiskStore>, height: i64| {
        let done = app.finalize_block(&block(height)).unwrap();
        app.commit().unwrap();
        done
    };
    (1..=10).for_each(|height| drop(play(&mut app, height)));
    let snapshots = SnapshotStore::open(source.path().join("snapshots")).unwrap();
    snapshots.create(&store, 10).unwrap();

    let target = tempfile::tempdir().unwrap();
    let restored = open(target.path());
    // As a node waits for state sync: the app stands on genesis, its database is empty.
    let waiting = App::from_genesis(restored.clone(), AppOptions::default(), &doc).unwrap();
    let mut seen = Vec::new();
    let folder = snapshots.folder(10, FORMAT).unwrap();
    restore_folder(&folder, &restored, Some(CHAIN), &mut |done, all| seen.push((done, all))).unwrap();
    assert_eq!(seen, [(1, 1)]);
    let again = restore_folder(&folder, &restored, Some(CHAIN), &mut |_, _| {});
    assert!(matches!(again, Err(SnapshotError::NotEmpty { height: 10 })));
    drop(waiting);
    let mut twin = App::open(restored, AppOptions { check_tables: true, ..AppOptions::default() }).unwrap();
    assert_eq!((twin.height(), twin.app_hash()), (10, app.app_hash()));
    for height in 11..=30 {
        assert_eq!(play(&mut twin, height), play(&mut app, height), "height {height}");
    }
    twin.shared().check_invariants().unwrap();
    assert_eq!(twin.export(0).unwrap(), app.export(0).unwrap());
}
