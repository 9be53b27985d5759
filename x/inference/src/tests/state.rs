//! Bytes on disk and genesis.

use holdfast_proto::Message;
use holdfast_store::{KvWrite, Order};

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[track_caller]
fn golden<T: borsh::BorshSerialize + borsh::BorshDeserialize + PartialEq + std::fmt::Debug>(
    value: &T,
    parts: &[&str],
) {
    let bytes = borsh::to_vec(value).unwrap();
    assert_eq!(hex(&bytes), parts.concat());
    assert_eq!(&T::try_from_slice(&bytes).unwrap(), value);
}

fn finished() -> Inference {
    Inference {
        status: Status::Finished,
        expires_at: 21,
        start: Some(Start {
            model: "m1".into(),
            requested_by: who(0x51),
            payer: who(0x52),
            assigned_to: who(1),
            prompt_hash: [8; 32],
            prompt_tokens: 10,
            max_tokens: 20,
            token_price: Coin { denom: "uhold".into(), amount: 3 },
            escrowed: 90,
            height: 1,
            stamp: Stamp { epoch: 2, generation: 4, evidence: true },
        }),
        answer: Some(Answer {
            executed_by: who(1),
            response_hash: [9; 32],
            prompt_tokens: 10,
            completion_tokens: 5,
            height: 3,
        }),
        paid: 45,
        refunded: 45,
        end_height: 3,
        failure_kind: 0,
    }
}

#[test]
fn a_finished_inference_has_its_golden_bytes() {
    let (r, p, e) = ("51".repeat(20), "52".repeat(20), "01".repeat(20));
    let (prompt, response) = ("08".repeat(32), "09".repeat(32));
    golden(
        &finished(),
        &[
            "02",
            "1500000000000000",
            "01",
            "020000006d31",
            &r,
            &p,
            &e,
            &prompt,
            "0a00000000000000",
            "1400000000000000",
            "0500000075686f6c64",
            "03000000000000000000000000000000",
            "5a000000000000000000000000000000",
            "0100000000000000",
            "0200000000000000",
            "04000000",
            "01",
            "01",
            &e,
            &response,
            "0a00000000000000",
            "0500000000000000",
            "0300000000000000",
            "2d000000000000000000000000000000",
            "2d000000000000000000000000000000",
            "0300000000000000",
            "00000000",
        ],
    );
}

#[test]
fn statistics_ratio_and_increments_have_their_golden_bytes() {
    let stats = EpochStats {
        assigned: 1,
        inference_count: 2,
        missed_requests: 3,
        released: 4,
        prompt_tokens: 5,
        completion_tokens: 6,
        earned: 7,
    };
    let u64s: String = (1..=6).map(|n| format!("{n:02x}00000000000000")).collect();
    golden(&stats, &[&u64s, "07000000000000000000000000000000"]);
    golden(
        &SprtState { llr: -2, absorbed_ok: 1, absorbed_missed: 2 },
        &["feffffffffffffffffffffffffffffff", "0100000000000000", "0200000000000000"],
    );
    golden(
        &SprtIncrements { p0: Decimal12(1), p1: Decimal12(2), up: 3, down: -1 },
        &[
            "01000000000000000000000000000000",
            "02000000000000000000000000000000",
            "03000000000000000000000000000000",
            "ffffffffffffffffffffffffffffffff",
        ],
    );
}

#[test]
fn parameters_have_their_golden_bytes() {
    golden(
        &Params::default(),
        &[
            "1400000000000000",
            "01",
            "00",
            "19000000",
            "0400000000000000",
            "3200000000000000",
            "f401000000000000",
            "f4010000",
            "0000000000000000",
            "00000000",
            "0000000000000000",
            "64000000",
            "00000000",
            "00000000",
            "01",
            "00e87648170000000000000000000000",
            "00d0ed902e0000000000000000000000",
            "00409452a30300000000000000000000",
            "0500000075686f6c64",
            "01000000000000000000000000000000",
        ],
    );
}

#[test]
fn an_unknown_status_byte_is_corrupt_state() {
    for byte in [0, 8] {
        let mut bytes = borsh::to_vec(&finished()).unwrap();
        bytes[0] = byte;
        assert!(borsh::from_slice::<Inference>(&bytes).is_err());
    }
}

#[test]
fn keys_are_the_module_name_a_collection_byte_and_the_key() {
    assert_eq!(crate::state::PARAMS.key(), b"inference/\x01");
    let key = crate::state::STATS.key(&(2, who(1)));
    assert_eq!(hex(&key), ["696e666572656e63652f", "05", "0000000000000002", &"01".repeat(20)].concat());
    assert!(crate::state::CHANGED.key(&who(1)).starts_with(&[holdfast_store::TRANSIENT_SPACE]));
    assert!(check_prefix_table(&InferenceModule));
}

/// One inference in each status, counts and ratios in two epochs.
fn lived() -> World {
    let mut w = World::new();
    w.go(60);
    for (id, n) in [("expired", 1), ("failed", 1), ("finished", 2), ("cancelled", 2), ("excused", 3)] {
        w.start(id, n).unwrap();
    }
    w.near.excuses.insert(who(3), Excuse::Poc);
    w.report("failed", 1).unwrap();
    w.finish("finished", 2).unwrap();
    w.cancel("cancelled", 51).unwrap();
    w.go(110);
    w.start("open", 1).unwrap();
    w.finish("waiting", 2).unwrap();
    w.start("recent", 1).unwrap();
    w.finish("recent", 1).unwrap();
    w.end();
    w
}

fn import(genesis: &[u8]) -> World {
    let mut w = World::new();
    w.store = MemKv::default();
    w.run(|ctx, _| InferenceModule.init_genesis(ctx, genesis)).unwrap();
    w
}

#[test]
fn export_and_import_are_byte_identical_with_open_inferences_statistics_and_ratios() {
    let w = lived();
    let hrp = Hrp::default();
    let genesis = InferenceModule.export_genesis(&w.store, &hrp).unwrap();
    InferenceModule.validate_genesis(&genesis, &hrp).unwrap();
    let state = pb::GenesisState::decode(genesis.as_slice()).unwrap();
    let mut statuses: Vec<_> = state.inferences.iter().map(|i| i.status).collect();
    statuses.sort_unstable();
    statuses.dedup();
    assert_eq!(statuses, [1, 2, 3, 4, 5, 6, 7], "the case covers every status");
    assert!(state.stats.len() >= 4 && state.sprt.len() >= 3);

    let back = import(&genesis);
    assert_eq!(InferenceModule.export_genesis(&back.store, &hrp).unwrap(), genesis);
    let rows = |s: &MemKv| {
        let rows = s.scan(b"inference/", Some(b"inference0"), Order::Ascending);
        rows.map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(rows(&back.store), rows(&w.store), "indexes and cached logarithms too");
}

#[test]
fn an_imported_open_inference_still_expires_and_refunds() {
    let w = lived();
    let genesis = InferenceModule.export_genesis(&w.store, &Hrp::default()).unwrap();
    let mut back = import(&genesis);
    // The bank's state travels in the bank's genesis.
    let coins = w.store.scan(b"testbank/", Some(b"testbank0"), Order::Ascending);
    for (key, value) in coins.map(Result::unwrap).collect::<Vec<_>>() {
        back.store.set(&key, &value).unwrap();
    }
    back.begin(111);
    back.go(131);
    assert_eq!((back.status("open"), back.status("waiting")), (Some(Status::Expired), None));
    assert_eq!((back.held(51), back.escrow()), (RICH - 30, 0));
}

#[test]
fn the_default_genesis_is_valid_and_imports() {
    let genesis = InferenceModule.default_genesis();
    InferenceModule.validate_genesis(&genesis, &Hrp::default()).unwrap();
    let w = import(&genesis);
    assert_eq!(Params::load(&w.store).unwrap(), Params::default());
    assert_eq!(InferenceModule.export_genesis(&w.store, &Hrp::default()).unwrap(), genesis);
}

type Spoil = fn(&mut pb::GenesisState);

fn named<'g>(g: &'g mut pb::GenesisState, id: &str) -> &'g mut pb::Inference {
    g.inferences.iter_mut().find(|i| i.inference_id == id).unwrap()
}

#[test]
fn each_bad_genesis_field_is_refused() {
    let hrp = Hrp::default();
    let w = lived();
    let genesis = InferenceModule.export_genesis(&w.store, &hrp).unwrap();
    let cases: &[(&str, Spoil)] = &[
        ("params: must be given", |g| g.params = None),
        ("validation", |g| g.params.as_mut().unwrap().validation = None),
        ("expiration_blocks", |g| {
            g.params.as_mut().unwrap().validation.as_mut().unwrap().expiration_blocks = 0;
        }),
        ("token_price", |g| g.params.as_mut().unwrap().token_price.as_mut().unwrap().denom = "1".into()),
        ("inference_id", |g| named(g, "open").inference_id = "a b".into()),
        ("inferences.status", |g| named(g, "open").status = 0),
        ("inferences.status", |g| named(g, "open").status = 8),
        ("inferences.requested_by", |g| named(g, "open").requested_by = "x".into()),
        ("inferences.payer", |g| named(g, "open").payer = "x".into()),
        ("inferences.assigned_to", |g| named(g, "open").assigned_to = String::new()),
        ("inferences.prompt_hash", |g| named(g, "open").prompt_hash = vec![1]),
        ("inferences.token_price", |g| named(g, "open").token_price = None),
        ("inferences.token_price", |g| named(g, "open").token_price.as_mut().unwrap().amount = "01".into()),
        ("inferences.escrowed", |g| named(g, "open").escrowed = "-1".into()),
        ("escrowed must be", |g| named(g, "open").escrowed = "31".into()),
        ("model must not", |g| named(g, "open").model = String::new()),
        ("start_height", |g| named(g, "open").start_height = 0),
        ("start_height", |g| named(g, "open").start_height = 1000),
        ("expires_at", |g| named(g, "waiting").expires_at = 0),
        ("end_height", |g| named(g, "open").end_height = 5),
        ("end_height", |g| named(g, "finished").end_height = 0),
        ("paid and refunded", |g| named(g, "open").refunded = "30".into()),
        ("paid and refunded", |g| named(g, "finished").paid = "16".into()),
        ("paid and refunded", |g| named(g, "failed").refunded = "0".into()),
        ("inferences.paid", |g| named(g, "open").paid = String::new()),
        ("inferences.refunded", |g| named(g, "open").refunded = "x".into()),
        ("failure_kind", |g| named(g, "finished").failure_kind = 1),
        ("start and answer", |g| named(g, "finished").status = 1),
        ("start and answer", |g| named(g, "open").status = 2),
        ("inferences.executed_by", |g| named(g, "waiting").executed_by = "x".into()),
        ("executed_by must be", |g| named(g, "finished").executed_by = text(1)),
        ("finish_height", |g| named(g, "waiting").finish_height = 0),
        ("inferences.response_hash", |g| named(g, "waiting").response_hash = Vec::new()),
        ("has fields that its status leaves empty", |g| named(g, "waiting").model = MODEL.into()),
        ("has fields that its status leaves empty", |g| named(g, "open").completion_tokens = 1),
        ("inferences: must ascend", |g| g.inferences.reverse()),
        ("inferences: must ascend", |g| g.inferences.push(g.inferences.last().unwrap().clone())),
        ("stats: must ascend", |g| g.stats.reverse()),
        ("stats.participant", |g| g.stats[0].participant = String::new()),
        ("stats.assigned", |g| g.stats[0].assigned = 0),
        ("stats.earned", |g| g.stats[0].earned = "1.0".into()),
        ("sprt: must ascend", |g| g.sprt.reverse()),
        ("sprt.participant", |g| g.sprt[0].participant = "x".into()),
        ("sprt.llr", |g| g.sprt[0].llr = "+1".into()),
        ("sprt: has absorbed", |g| g.sprt[0].absorbed_missed += 1),
    ];
    for (expected, spoil) in cases {
        let mut state = pb::GenesisState::decode(genesis.as_slice()).unwrap();
        spoil(&mut state);
        let bytes = state.encode_to_vec();
        let error = InferenceModule.validate_genesis(&bytes, &hrp).expect_err(expected);
        assert!(error.message.contains(expected), "wanted {expected:?}: {error}");
        let mut w = World::new();
        w.store = MemKv::default();
        w.run(|ctx, _| InferenceModule.init_genesis(ctx, &bytes)).unwrap_err();
        assert!(w.store.is_empty());
    }
    assert!(InferenceModule.validate_genesis(&[0xFF, 1], &hrp).is_err());
}
