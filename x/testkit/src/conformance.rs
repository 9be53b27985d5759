//! The contract of a store, as code. An implementation is right when it passes; a failed expectation panics.
//!
//! `make` is called once for each case, with the case as its argument; it builds a store, calls the case with it
//! and cleans up:
//!
//! ```
//! use holdfast_store::MemKv;
//! holdfast_testkit::conformance::run_write_suite(&mut |case| case(&mut MemKv::default()));
//! ```

use std::collections::BTreeMap;

use holdfast_store::{KvRead, KvWrite, Order, StoreError, successor};

use crate::Rng;

/// Rows by key: what a store should hold.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A step of the suite over a store that can be written.
pub type WriteCase<'c> = &'c mut dyn FnMut(&mut dyn KvWrite);

/// A step of the suite over a store that is only read.
pub type ReadCase<'c> = &'c mut dyn FnMut(&dyn KvRead);

/// Seeds of the random histories: fixed, so that a failure repeats.
const SEEDS: [u64; 6] = [1, 2, 3, 42, 1_000_003, u64::MAX];
/// Operations of one random history.
const STEPS: usize = 400;

/// Everything a [`KvWrite`] must do. `make` must hand over a store that shows no row.
pub fn run_write_suite(make: &mut dyn FnMut(WriteCase<'_>)) {
    for case in
        [point_access, empty_values_are_values, odd_bytes_sort_as_bytes, bounds_of_scans, prefix_scans]
    {
        make(&mut |store: &mut dyn KvWrite| {
            assert_eq!(rows(store, b"", None, Order::Ascending), [], "the suite needs a store without rows");
            case(store);
        });
    }
    run_history_suite(make);
}

/// Random histories against a `BTreeMap`. `make` may hand over a store that already shows rows.
pub fn run_history_suite(make: &mut dyn FnMut(WriteCase<'_>)) {
    for seed in SEEDS {
        make(&mut |store: &mut dyn KvWrite| history(store, seed));
    }
}

/// Everything a [`KvRead`] must do. `make` is given the rows its store must show.
pub fn run_read_suite(make: &mut dyn FnMut(&Rows, ReadCase<'_>)) {
    for seed in SEEDS {
        let mut rng = Rng::new(seed);
        let model: Rows = (0..60).map(|_| (key(&mut rng), value(&mut rng))).collect();
        make(&model, &mut |store: &dyn KvRead| {
            for _ in 0..STEPS {
                compare(store, &model, &mut rng, seed);
            }
        });
    }
    make(&Rows::new(), &mut |store: &dyn KvRead| {
        assert_eq!(rows(store, b"", None, Order::Descending), []);
        assert_eq!(store.get(b"k").expect("get"), None);
    });
}

/// A view that must refuse writes: each is [`StoreError::ReadOnly`] and changes nothing.
pub fn run_refusal_suite(store: &mut dyn KvWrite) {
    let before = rows(store, b"", None, Order::Ascending);
    assert_eq!(store.set(b"k", b"v"), Err(StoreError::ReadOnly));
    assert_eq!(store.remove(b"k"), Err(StoreError::ReadOnly));
    if let Some((key, _)) = before.first() {
        assert_eq!(store.set(key, b"other"), Err(StoreError::ReadOnly));
        assert_eq!(store.remove(key), Err(StoreError::ReadOnly));
    }
    assert_eq!(rows(store, b"", None, Order::Ascending), before, "a refused write changed the store");
}

fn rows(store: &dyn KvRead, start: &[u8], end: Option<&[u8]>, order: Order) -> Vec<(Vec<u8>, Vec<u8>)> {
    store.scan(start, end, order).collect::<Result<_, _>>().expect("scan")
}

fn keys(store: &dyn KvRead, start: &[u8], end: Option<&[u8]>, order: Order) -> Vec<Vec<u8>> {
    rows(store, start, end, order).into_iter().map(|(key, _)| key).collect()
}

fn fill(store: &mut dyn KvWrite, keys: &[&[u8]]) {
    for key in keys {
        store.set(key, key).expect("set");
    }
}

fn point_access(store: &mut dyn KvWrite) {
    assert_eq!(store.get(b"a").unwrap(), None, "an absent key reads as none");
    store.set(b"a", b"1").unwrap();
    assert_eq!(store.get(b"a").unwrap(), Some(b"1".to_vec()), "a write is seen at once");
    store.set(b"a", b"22").unwrap();
    assert_eq!(store.get(b"a").unwrap(), Some(b"22".to_vec()), "a second write replaces the first");
    assert_eq!(
        rows(store, b"", None, Order::Ascending),
        [(b"a".to_vec(), b"22".to_vec())],
        "one key, one row"
    );
    store.remove(b"a").unwrap();
    assert_eq!(store.get(b"a").unwrap(), None, "a removed key is gone");
    assert_eq!(rows(store, b"", None, Order::Ascending), [], "and leaves no row");
    store.remove(b"a").unwrap();
    store.remove(b"never").unwrap();
    store.set(b"a", b"3").unwrap();
    assert_eq!(store.get(b"a").unwrap(), Some(b"3".to_vec()), "a removed key can come back");
    assert_eq!(store.get(b"").unwrap(), None, "the empty key is never present");
}

fn empty_values_are_values(store: &mut dyn KvWrite) {
    store.set(b"e", b"").unwrap();
    assert_eq!(store.get(b"e").unwrap(), Some(Vec::new()), "an empty value is not an absent one");
    assert_eq!(rows(store, b"", None, Order::Ascending), [(b"e".to_vec(), Vec::new())]);
    store.set(b"e", b"x").unwrap();
    store.set(b"e", b"").unwrap();
    assert_eq!(store.get(b"e").unwrap(), Some(Vec::new()));
}

fn odd_bytes_sort_as_bytes(store: &mut dyn KvWrite) {
    let sorted: [&[u8]; 12] = [
        &[0],
        &[0, 0],
        &[0, 0xFF],
        &[0, 0xFF, 1],
        &[1],
        b"a",
        &[b'a', 0],
        &[b'a', 0, 1],
        &[b'a', 0xFF],
        &[b'a', 0xFF, 0xFF],
        b"b",
        &[0xFF, 0xFF, 0xFF],
    ];
    for n in [5, 11, 0, 7, 2, 9, 1, 10, 3, 8, 6, 4] {
        store.set(sorted[n], &[n as u8]).unwrap();
    }
    assert_eq!(keys(store, b"", None, Order::Ascending), sorted);
    let mut backwards = sorted;
    backwards.reverse();
    assert_eq!(keys(store, b"", None, Order::Descending), backwards);
    for (n, key) in sorted.iter().enumerate() {
        assert_eq!(store.get(key).unwrap(), Some(vec![n as u8]));
    }
    let long = vec![0xFF; 300];
    store.set(&long, &vec![7; 100_000]).unwrap();
    assert_eq!(
        store.get(&long).unwrap().map(|v| v.len()),
        Some(100_000),
        "long keys and values are kept whole"
    );
    assert_eq!(keys(store, &[0xFF, 0xFF, 0xFF, 0], None, Order::Ascending), [long]);
}

fn bounds_of_scans(store: &mut dyn KvWrite) {
    fill(store, &[b"a", b"b", b"c", b"d"]);
    for order in [Order::Ascending, Order::Descending] {
        let got = |start: &[u8], end: Option<&[u8]>| {
            let mut got = keys(store, start, end, order);
            if order == Order::Descending {
                got.reverse();
            }
            got.concat()
        };
        assert_eq!(got(b"", None), b"abcd");
        assert_eq!(got(b"b", None), b"bcd", "the start is included");
        assert_eq!(got(b"b", Some(b"d")), b"bc", "the end is not");
        assert_eq!(got(b"aa", Some(b"cc")), b"bc", "bounds need not be keys");
        assert_eq!(got(b"", Some(b"b")), b"a");
        assert_eq!(got(b"b", Some(b"b")), b"", "equal bounds are empty");
        assert_eq!(got(b"c", Some(b"a")), b"", "reversed bounds are empty");
        assert_eq!(got(b"", Some(b"")), b"", "an empty end is below every key");
        assert_eq!(got(b"e", None), b"");
        assert_eq!(got(b"d\0", None), b"", "the next possible key is past the last");
    }
    let first: Vec<_> = store.scan(b"", None, Order::Ascending).take(2).map(|r| r.unwrap().0).collect();
    assert_eq!(first.concat(), b"ab", "a scan can be left early");
}

fn prefix_scans(store: &mut dyn KvWrite) {
    fill(
        store,
        &[b"p", b"p\0", b"pa", b"p\xFF", b"p\xFF\xFF", b"q", b"\xFF", b"\xFF\xFF", b"\xFF\xFF\x01", b"o\xFF"],
    );
    let below = |prefix: &[u8]| {
        let ascending = keys(store, prefix, successor(prefix).as_deref(), Order::Ascending);
        let mut descending = keys(store, prefix, successor(prefix).as_deref(), Order::Descending);
        descending.reverse();
        assert_eq!(ascending, descending, "both directions show the same rows");
        assert!(ascending.iter().all(|k| k.starts_with(prefix)));
        ascending
    };
    assert_eq!(below(b"p"), [&b"p"[..], b"p\0", b"pa", b"p\xFF", b"p\xFF\xFF"]);
    assert_eq!(below(b"p\xFF"), [&b"p\xFF"[..], b"p\xFF\xFF"]);
    assert_eq!(below(b"\xFF"), [&b"\xFF"[..], b"\xFF\xFF", b"\xFF\xFF\x01"]);
    assert_eq!(below(b"\xFF\xFF"), [&b"\xFF\xFF"[..], b"\xFF\xFF\x01"]);
    assert_eq!(below(b"x"), [] as [&[u8]; 0]);
}

/// Short keys over few bytes, so that histories meet again and keys are prefixes of each other.
fn key(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.below(4);
    (0..len).map(|_| *rng.pick(&[0, 1, b'a', b'b', 0xFE, 0xFF])).collect()
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(6);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

fn history(store: &mut dyn KvWrite, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model: Rows = rows(store, b"", None, Order::Ascending).into_iter().collect();
    for _ in 0..STEPS {
        match rng.below(10) {
            0..=4 => {
                let (key, value) = (key(&mut rng), value(&mut rng));
                store.set(&key, &value).expect("set");
                model.insert(key, value);
            }
            5 | 6 => {
                let key = key(&mut rng);
                store.remove(&key).expect("remove");
                model.remove(&key);
            }
            7 => {
                // A key that is there, when there is one: plain chance seldom hits.
                let at = rng.below(model.len().max(1) as u64) as usize;
                if let Some(key) = model.keys().nth(at).cloned() {
                    store.remove(&key).expect("remove");
                    model.remove(&key);
                }
            }
            _ => compare(store, &model, &mut rng, seed),
        }
    }
    let all: Vec<_> = model.into_iter().collect();
    assert_eq!(rows(store, b"", None, Order::Ascending), all, "seed {seed}");
}

fn compare(store: &dyn KvRead, model: &Rows, rng: &mut Rng, seed: u64) {
    let wanted = key(rng);
    assert_eq!(store.get(&wanted).expect("get"), model.get(&wanted).cloned(), "seed {seed}, get {wanted:?}");
    let start = if rng.chance(20) { Vec::new() } else { key(rng) };
    let end = match rng.below(4) {
        0 => None,
        1 => successor(&start),
        _ => Some(key(rng)),
    };
    let order = if rng.chance(50) { Order::Ascending } else { Order::Descending };
    let inside = model.iter().filter(|(k, _)| **k >= start && end.as_ref().is_none_or(|end| *k < end));
    let mut expected: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
    if order == Order::Descending {
        expected.reverse();
    }
    let got = rows(store, &start, end.as_deref(), order);
    assert_eq!(got, expected, "seed {seed}, scan {start:?}..{end:?} {order:?}");
}
