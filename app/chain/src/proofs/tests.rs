use holdfast_proto::Message;
use holdfast_store::WriteSet;
use ics23::commitment_proof::Proof;
use ics23::{
    CommitmentProof, HostFunctionsManager, tendermint_spec, verify_membership, verify_non_membership,
};

use super::*;
use crate::state::{DiskStore, MemCommitStore, StateOptions, StateView, jmt_spec};

const MODULES: [&str; 4] = ["auth", "bank", "breaker", "gov"];

fn commit<S: CommitStore>(store: &S, height: i64, rows: &[(&[u8], Option<&[u8]>)]) {
    let block: WriteSet = rows.iter().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect();
    store.commit(store.prepare(height, &block).unwrap()).unwrap();
}

fn keys<S: CommitStore>(store: &S) {
    for height in 1..=5u8 {
        let rows: [(&[u8], Option<&[u8]>); 4] = [
            (b"breaker/\x01model\0addr", Some(&[height; 9])),
            (b"breaker/\x02\xff\0/key", if height == 3 { None } else { Some(b"x") }),
            (b"bank/\x01set", Some(b"")),
            (&[b"bank/\x03", &[height][..]].concat(), Some(b"holdfast.state.v1.empty")),
        ];
        commit(store, i64::from(height), &rows);
    }
}

fn ask<S: CommitStore>(
    store: &S,
    path: &str,
    key: &[u8],
    height: i64,
    prove: bool,
) -> Result<KeyAnswer, ProofError> {
    query(store, &KeyRequest { path, key, height, prove })
}

/// What a light client does that knows the app hash and the two specifications, and nothing of this crate: it walks the
/// operations from the key to the root.
fn walk(answer: &KeyAnswer, module: &str, value: Option<&[u8]>, app_hash: &[u8; 32]) -> bool {
    let [tree, map] = answer.ops.as_slice() else { panic!("two operations") };
    assert_eq!((tree.op_type, map.op_type), ("ics23:jmt", "ics23:simple"));
    assert_eq!((&tree.key, map.key.as_slice()), (&answer.key, module.as_bytes()));
    let decode = |op: &ProofOp| CommitmentProof::decode(op.data.as_slice()).unwrap();
    let (tree, map) = (decode(tree), decode(map));
    let root = match map.proof.clone() {
        Some(Proof::Exist(exist)) => exist.value,
        other => panic!("{other:?}"),
    };
    let up = verify_membership::<HostFunctionsManager>(
        &map,
        &tendermint_spec(),
        &app_hash.to_vec(),
        module.as_bytes(),
        &root,
    );
    up && match value {
        Some(value) => {
            verify_membership::<HostFunctionsManager>(&tree, &jmt_spec(), &root, &answer.key, value)
        }
        None => verify_non_membership::<HostFunctionsManager>(&tree, &jmt_spec(), &root, &answer.key),
    }
}

fn proven<S: CommitStore>(store: &S) {
    keys(store);
    let at = |height| store.snapshot_at(height).unwrap();
    type Case<'a> = (&'a str, &'a [u8], i64, Option<&'a [u8]>);
    let cases: [Case<'_>; 9] = [
        ("breaker", b"\x01model\0addr", 1, Some(&[1; 9])),
        ("breaker", b"\x01model\0addr", 5, Some(&[5; 9])),
        ("breaker", b"\x01model", 5, None),
        ("breaker", b"\x02\xff\0/key", 2, Some(b"x")),
        ("breaker", b"\x02\xff\0/key", 3, None),
        ("bank", b"\x01set", 4, Some(b"")),
        ("bank", b"\x03\x04", 3, None),
        ("bank", b"\x03\x04", 4, Some(b"holdfast.state.v1.empty")),
        ("auth", b"\x01", 5, None),
    ];
    for (module, key, height, value) in cases {
        let path = format!("/store/{module}/key");
        let plain = ask(store, &path, key, height, false).unwrap();
        assert_eq!(
            (plain.height, plain.value.as_deref(), plain.ops.len()),
            (height, value, 0),
            "{path} {key:?}"
        );
        let answer = ask(store, &path, key, height, true).unwrap();
        assert_eq!((answer.height, answer.value.as_deref(), answer.key.as_slice()), (height, value, key));
        let compared = answer.proven_value().map(Cow::into_owned);
        let (app_hash, next) =
            (at(height).app_hash(), at(if height == 5 { 4 } else { height + 1 }).app_hash());
        assert!(walk(&answer, module, compared.as_deref(), &app_hash), "{path} {key:?} at {height}");
        // Not against another height, not with another value, not as its opposite.
        assert!(!walk(&answer, module, compared.as_deref(), &next));
        assert!(!walk(&answer, module, Some(b"lie"), &app_hash));
        assert!(!walk(&answer, module, if value.is_some() { None } else { Some(b"x") }, &app_hash));
    }
    // What an operation compares differs from the value only where ICS 23 has no proof of it.
    let answer = ask(store, "/store/bank/key", b"\x01set", 0, true).unwrap();
    assert_eq!((answer.height, answer.value.as_deref()), (5, Some(&[][..])));
    assert_eq!(answer.proven_value().as_deref(), Some(&b"holdfast.state.v1.empty"[..]));
    // The tree's own leaf is one answer, with a proof and without.
    let own = |prove| ask(store, "/store/gov/key", SENTINEL_KEY, 2, prove).unwrap();
    assert_eq!(own(true).value.as_deref(), Some(SENTINEL_VALUE));
    assert_eq!(own(false).value, own(true).value);
}

#[test]
fn presence_and_absence_verify_against_the_app_hash_of_their_height_and_no_other() {
    proven(&MemCommitStore::new(&MODULES).unwrap());
    let dir = tempfile::tempdir().unwrap();
    proven(&DiskStore::open(dir.path(), &MODULES, StateOptions::default()).unwrap());
}

#[test]
fn what_has_no_answer_is_refused_by_its_own_code() {
    let options = StateOptions { keep_recent: 3, threads: 1, ..StateOptions::default() };
    let store = MemCommitStore::with_options(&MODULES, options).unwrap();
    let code = |path: &str, key: &[u8], height, prove| {
        let error = ask(&store, path, key, height, prove).unwrap_err();
        assert!(!error.to_string().contains('\n') && error.to_string().len() < 300, "{error}");
        error.code()
    };
    const KEY: &str = "/store/breaker/key";
    for prove in [true, false] {
        assert_eq!(code(KEY, b"x", 0, prove), ("sdk", 26), "no block yet");
    }
    keys(&store);
    while store.prune(100).unwrap() > 0 {}
    for prove in [true, false] {
        assert_eq!(code(KEY, b"x", 6, prove), ("sdk", 26), "future");
        assert_eq!(code(KEY, b"x", i64::MAX, prove), ("sdk", 26));
        assert_eq!(
            code("/store/nobody/key", b"x", i64::MAX, prove),
            ("sdk", 26),
            "which stores it has nobody knows"
        );
        assert_eq!(code(KEY, b"x", -1, prove), ("sdk", 18), "negative");
        assert_eq!(code(KEY, b"x", i64::MIN, prove), ("sdk", 18));
        assert_eq!(code(KEY, b"x", 2, prove), ("state", 7), "pruned is not absent");
        assert_eq!(code(KEY, b"", 5, prove), ("sdk", 18), "empty key");
        let long = format!("/store/{}/key", "x".repeat(100_000));
        for path in ["/store/nobody/key", "/store//key", "/store/Bank/key", &long] {
            assert_eq!(code(path, b"x", 5, prove), ("sdk", 6), "{}", &path[..12]);
        }
        for path in [
            "",
            "/",
            "/store",
            "/store/bank",
            "/store/bank/subspace",
            "/store/bank/keys",
            "/store/bank/key/x",
        ] {
            assert_eq!(code(path, b"x", 5, prove), ("sdk", 6), "{path}");
        }
        assert!(ask(&store, KEY, b"x", 3, prove).is_ok(), "the oldest kept height");
    }
    assert!(ask(&store, "store/bank/key", b"x", 0, true).is_ok(), "the first slash may be missing");
    assert!(ask(&store, KEY, &[7; 100_000], 0, true).unwrap().value.is_none(), "longer than any key");
    let text = ask(&store, "/store/bank/subspace", b"x", 0, false).unwrap_err().to_string();
    assert!(text.contains("only single keys are served"), "{text}");
    let text = ask(&store, "/store/nobody/key", b"x", 0, false).unwrap_err().to_string();
    assert!(text.ends_with("known are auth, bank, breaker, gov"), "{text}");
    for (path, ours) in [
        ("/store/x/key", true),
        ("store", true),
        ("/stores/x", false),
        ("/cosmos.bank.v1beta1.Query/Balance", false),
    ] {
        assert_eq!(is_store_path(path), ours, "{path}");
    }
}
