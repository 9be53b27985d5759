use crate::*;

fn key<K: KeyCodec>(k: &K) -> Vec<u8> {
    k.to_bytes()
}

#[test]
fn signed_keys_sort_negative_first() {
    let mut numbers = [5_i64, -1, i64::MIN, 0, i64::MAX, -300];
    let mut encoded: Vec<_> = numbers.iter().map(key).collect();
    numbers.sort_unstable();
    encoded.sort();
    assert_eq!(encoded, numbers.iter().map(key).collect::<Vec<_>>());
    assert_eq!(key(&0_i64), [0x80, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn strings_sort_as_strings_and_never_prefix_each_other() {
    let words = ["", "a", "a\0", "a\0b", "aa", "b", "\0", "\0\0", "ab"].map(String::from);
    for a in &words {
        assert_eq!(&String::from_bytes(&key(a)).unwrap(), a);
        for b in &words {
            assert_eq!(a.cmp(b), key(a).cmp(&key(b)), "{a:?} {b:?}");
            assert!(a == b || !key(b).starts_with(&key(a)), "{a:?} begins {b:?}");
        }
    }
    assert_eq!(key(&"a\0".to_string()), [b'a', 0, 0xFF, 0, 1]);
}

#[test]
fn a_key_with_trailing_bytes_or_a_bad_escape_is_refused() {
    assert_eq!(u32::from_bytes(&[0, 0, 0, 1, 9]), Err(KeyError::Trailing));
    assert_eq!(u32::from_bytes(&[0, 0, 1]), Err(KeyError::Short));
    assert_eq!(String::from_bytes(&[b'x', 0, 2]), Err(KeyError::Invalid));
    assert_eq!(bool::from_bytes(&[2]), Err(KeyError::Invalid));
}

#[test]
fn the_successor_of_all_ff_is_none() {
    assert_eq!(successor(&[1, 0xFF]), Some(vec![2]));
    assert_eq!(successor(&[0xFF, 0xFF]), None);
}

const ROWS: Map<(i64, String), u64> = Map::new(Prefix::new("test", 1, "rows"));

#[test]
fn up_to_yields_due_rows_only_and_in_order() {
    let mut s = MemKv::default();
    for (h, id) in [(3, "b"), (1, "z"), (3, "a"), (4, "c")] {
        ROWS.set(&mut s, &(h, id.into()), &7).unwrap();
    }
    let due: Vec<_> = ROWS.up_to(&s, &3).map(|r| r.unwrap().0).collect();
    assert_eq!(due, [(1, "z".into()), (3, "a".into()), (3, "b".into())]);
    let page: Vec<_> = ROWS.prefix_after(&s, &3, Some(&(3, "a".into()))).map(|r| r.unwrap().0.1).collect();
    assert_eq!(page, ["b"]);
}

#[test]
fn borsh_refuses_unsorted_map_bytes() {
    // `de_strict_order` is pinned in the workspace; without it two byte strings would mean one state.
    let unsorted = [2, 0, 0, 0, 2, 1];
    assert!(borsh::from_slice::<std::collections::BTreeSet<u8>>(&unsorted).is_err());
    let value: Result<u8, _> = borsh::from_slice(&[1, 2]);
    assert!(value.is_err(), "trailing bytes");
}

#[test]
fn a_corrupt_value_is_an_error_and_never_a_default() {
    let mut s = MemKv::default();
    s.set(&ROWS.key(&(1, "a".into())), &[1, 2, 3]).unwrap();
    assert!(matches!(ROWS.get(&s, &(1, "a".into())), Err(StoreError::Decode { collection: "rows", .. })));
}

#[derive(borsh::BorshSerialize, borsh::BorshDeserialize, Clone, PartialEq, Debug)]
struct Entry {
    due: Option<i64>,
    owner: u8,
}

const ENTRIES: IndexedMap<String, Entry, 2> = IndexedMap::new(
    Prefix::new("test", 2, "entries"),
    [
        Index::multi(Prefix::new("test", 3, "entries_by_due"), |_, v| v.due.map(|d| d.to_bytes())),
        Index::unique(Prefix::new("test", 4, "entries_by_owner"), |_, v| Some(v.owner.to_bytes())),
    ],
);

#[test]
fn an_index_follows_its_entry_and_leaves_nothing_behind() {
    let mut s = MemKv::default();
    let put = |s: &mut MemKv, id: &str, due, owner| ENTRIES.set(s, &id.to_string(), &Entry { due, owner });
    put(&mut s, "a", Some(5), 1).unwrap();
    put(&mut s, "b", Some(4), 2).unwrap();
    put(&mut s, "a", Some(3), 1).unwrap();
    assert_eq!(put(&mut s, "c", None, 2), Err(StoreError::Duplicate { collection: "entries_by_owner" }));
    let mut seen = Vec::new();
    ENTRIES
        .walk_up_to(&s, 0, &4_i64, |due, id| {
            seen.push((due, id));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, [(3, "a".to_string()), (4, "b".to_string())]);
    assert_eq!(ENTRIES.by_unique(&s, 1, &2_u8).unwrap(), Some("b".to_string()));
    ENTRIES.take(&mut s, &"a".into()).unwrap();
    ENTRIES.take(&mut s, &"b".into()).unwrap();
    assert!(s.is_empty());
}

#[test]
fn gas_is_charged_by_the_sdk_table_and_stops_at_the_limit() {
    let mut s = MemKv::default();
    let meter = GasMeter::new(5000);
    let mut m = MeteredKv::new(&mut s, &meter, GasConfig::SDK);
    m.set(b"ab", b"cde").unwrap();
    assert_eq!(meter.used(), 2000 + 5 * 30);
    let mut m = MeteredKv::new(&mut s, &meter, GasConfig::SDK);
    assert_eq!(m.get(b"ab").unwrap(), Some(b"cde".to_vec()));
    assert_eq!(meter.used(), 2150 + 1000 + 15);
    assert!(matches!(m.set(b"x", b"y"), Err(StoreError::OutOfGas { limit: 5000, .. })));
    assert_eq!(s.get(b"x").unwrap(), None, "a refused write leaves nothing");
}
