//! Keys and values as they are on disk. A change here needs a migration of every gateway's store.

use super::*;

fn hex_at(store: &MemKv, id: u8) -> Vec<(String, String)> {
    let prefix = [SPACE.as_bytes(), b"/", &[id]].concat();
    let rows = store.pairs().filter(|(key, _)| key.starts_with(&prefix));
    rows.map(|(key, value)| (hex::encode(&key[prefix.len()..]), hex::encode(value))).collect()
}

#[test]
fn the_rows_of_a_fresh_flag() {
    let mut scene = Scene::new();
    let change = scene.raise(subject(7, 0xAB), 44).changes.remove(0);
    DivergenceJournal.append(&mut scene.store, &change).unwrap();
    let row = AuditRow {
        subject: subject(7, 0xAB),
        operator: "ann".into(),
        verb: Verb::Release,
        reason: "ok".into(),
        at_ms: NOW,
    };
    DivergenceJournal.audit(&mut scene.store, &row).unwrap();

    let who = "ab".repeat(20);
    let key = format!("0000000000000007{who}");
    let now = "0068e5cf8b010000"; // 1 700 000 000 000
    let roots = format!("{}{}", "11".repeat(32), "2c".repeat(32));
    let repair = [
        "00",               // Waiting
        "01000000",         // attempt 1
        "00",               // level
        "00",               // forked
        "0000000000000000", // target
        "0000000000000000", // elapsed
        "00",               // reopened
        "00",               // not found
        "00",               // no verdict
        "f401000000000000", // due in 500 ms
        "00",               // paused
        "00",               // released
        "01",               // census due
        "00",               // bind due
        "c8000000",         // 200 diffs
        "00",               // progress
        "0000000000000000", // reached
        "00",               // old snapshot
    ]
    .concat();
    let flag = [
        "0700000000000000",
        &who,
        "2c00000000000000", // nonce 44
        &roots,
        &"33".repeat(32),
        &"44".repeat(65),
        "0100000000000000", // generation 1
        now,
        "0000000000000000", // first bad nonce not known
        &repair,
    ]
    .concat();
    assert_eq!(hex_at(&scene.store, 1), [(key.clone(), flag.clone())]);

    let history = [
        "0100000000000000", // generation
        "01000000",         // raised
        "00000000",         // restored
        "00000000",         // gave up
        "0000000000000000", // attempts
        "0000000000000000", // blocked
        now,
        "0000000000000000", // never restored
        "01000000",         // evidence rows
    ]
    .concat();
    assert_eq!(hex_at(&scene.store, 2), [(key.clone(), history)]);

    let evidence = [
        "00", // a refusal
        "2c00000000000000",
        &roots,
        &"33".repeat(32),
        &"44".repeat(65),
        "0100000000000000",
        now,
    ]
    .concat();
    assert_eq!(hex_at(&scene.store, 3), [(format!("{key}00000000"), evidence)]);

    let first = "0000000000000001";
    assert_eq!(hex_at(&scene.store, 4), [(first.into(), format!("00{now}{flag}"))]);
    assert_eq!(hex_at(&scene.store, 5), [(String::new(), "0100000000000000".into())]);
    let audit = ["0700000000000000", &who, "03000000", "616e6e", "02", "02000000", "6f6b", now].concat();
    assert_eq!(hex_at(&scene.store, 6), [(first.into(), audit)]);
    assert_eq!(hex_at(&scene.store, 7), [(String::new(), "0100000000000000".into())]);
    assert_eq!(scene.store.len(), 7, "nothing outside the table");
}

#[test]
fn stored_enumerations_keep_their_numbers() {
    use crate::repair::{LogStage, Verdict};
    fn bytes<T: borsh::BorshSerialize>(values: &[T]) -> Vec<u8> {
        values.iter().flat_map(|value| borsh::to_vec(value).unwrap()).collect()
    }
    use RepairPhase::*;
    assert_eq!(bytes(&[Waiting, Teaching, Verifying, GaveUp, Stopped]), [0, 1, 2, 3, 4]);
    use EvidenceKind::*;
    assert_eq!(bytes(&[Refusal, State, AboveTip, DiffFork]), [0, 1, 2, 3]);
    assert_eq!(bytes(&[Verb::ForceTeach, Verb::GiveUp, Verb::Release]), [0, 1, 2]);
    let stages = [
        (LogStage::Blocked, "escrow_participant_state_blocked"),
        (LogStage::RepairStarted, "escrow_participant_state_repair_started"),
        (LogStage::RepairAttempt, "escrow_participant_state_repair_attempt"),
        (LogStage::Unblocked, "escrow_participant_state_unblocked"),
        (LogStage::GaveUp, "escrow_participant_state_repair_gave_up"),
    ];
    assert_eq!(bytes(&stages.map(|(stage, _)| stage)), [0, 1, 2, 3, 4]);
    assert!(stages.iter().all(|(stage, name)| stage.as_str() == *name));
    let verdicts = [
        (Verdict::None, "none"),
        (Verdict::Unavailable, "unavailable"),
        (Verdict::TimedOut, "timed_out"),
        (Verdict::Policy, "policy"),
        (Verdict::ConfigMismatch, "config_mismatch"),
        (Verdict::Malformed, "malformed"),
        (Verdict::TooLarge, "too_large"),
        (Verdict::Behind, "behind"),
        (Verdict::Refused, "refused"),
        (Verdict::Forked, "forked"),
        (Verdict::NotFound, "session_not_found"),
        (Verdict::Withheld, "withheld"),
        (Verdict::KeyNotBound, "key_not_bound"),
        (Verdict::AboveTip, "above_tip"),
        (Verdict::Budget, "budget_used"),
        (Verdict::Mismatch, "new_mismatch"),
        (Verdict::Restarted, "gateway_restarted"),
        (Verdict::StoreUnreadable, "store_unreadable"),
        (Verdict::Operator, "operator"),
        (Verdict::SessionEnded, "session_ended"),
        (Verdict::Restored, "restored"),
    ];
    assert_eq!(bytes(&verdicts.map(|(verdict, _)| verdict)), (0..21).collect::<Vec<u8>>());
    assert!(verdicts.iter().all(|(verdict, name)| verdict.as_str() == *name));
    assert_eq!(REASON, "escrow_state_root_diverged");
}
