//! The two logs, and moving everything.

use super::*;
use crate::repair::LogStage;

fn audit(operator: &str, reason: &str) -> AuditRow {
    AuditRow {
        subject: subject(7, 1),
        operator: operator.into(),
        verb: Verb::Release,
        reason: reason.into(),
        at_ms: NOW,
    }
}

#[test]
fn changes_are_numbered_from_one_without_a_gap() {
    let mut scene = Scene::new();
    let journal = DivergenceJournal;
    assert_eq!(journal.last_change(&scene.store), Ok(0));
    let changes = scene.raise(subject(7, 1), 44).changes;
    for (number, change) in (1..).zip(&changes) {
        assert_eq!(journal.append(&mut scene.store, change), Ok(number));
    }
    let rows = journal.changes(&scene.store, 0, 10).unwrap();
    assert_eq!(
        rows.iter().map(|(seq, row)| (*seq, row.stage)).collect::<Vec<_>>(),
        [(1, LogStage::Blocked), (2, LogStage::RepairStarted)]
    );
    assert_eq!(journal.changes(&scene.store, 2, 10).unwrap(), rows[1..]);
    assert_eq!(journal.changes(&scene.store, 1, 1).unwrap(), rows[..1]);
    assert_eq!(journal.changes(&scene.store, 3, 10).unwrap(), []);
    assert_eq!(journal.last_change(&scene.store), Ok(2));
}

#[test]
fn only_the_last_ten_thousand_changes_stay() {
    let mut scene = Scene::new();
    let change = scene.raise(subject(7, 1), 44).changes.remove(0);
    for _ in 0..CHANGES_KEPT + 3 {
        DivergenceJournal.append(&mut scene.store, &change).unwrap();
    }
    let rows = DivergenceJournal.changes(&scene.store, 0, usize::MAX).unwrap();
    assert_eq!((rows.len(), rows[0].0), (1_000, 4), "a page of the oldest kept");
    let tail = DivergenceJournal.changes(&scene.store, CHANGES_KEPT, 10).unwrap();
    assert_eq!(tail.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [10_000, 10_001, 10_002, 10_003]);
    let all = export(&scene.store).unwrap();
    assert_eq!((all.changes.len(), all.last_change), (10_000, 10_003));
    let mut copy = MemKv::default();
    import(&mut copy, &all).unwrap();
    assert_eq!(copy, scene.store);
}

#[test]
fn the_audit_log_names_operator_and_reason() {
    let mut scene = Scene::new();
    let journal = DivergenceJournal;
    assert_eq!(journal.audit(&mut scene.store, &audit("ann", "known disk fault")), Ok(1));
    assert_eq!(journal.audit(&mut scene.store, &audit(&"a".repeat(128), &"b".repeat(512))), Ok(2));
    for (operator, reason, field) in [
        ("", "x", "operator"),
        (&*"a".repeat(129), "x", "operator"),
        ("ann", "", "reason"),
        ("ann", &"b".repeat(513), "reason"),
    ] {
        let error = journal.audit(&mut scene.store, &audit(operator, reason)).unwrap_err();
        assert!(matches!(error, DivergenceError::Field { field: f, .. } if f == field), "{error}");
    }
    let rows = journal.audits(&scene.store, 0, 10).unwrap();
    assert_eq!(rows.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(rows[0].1, audit("ann", "known disk fault"));
}

fn full() -> Scene {
    let mut scene = Scene::new();
    for (escrow, participant) in [(7, 1), (7, 2), (8, 1)] {
        for change in scene.raise(subject(escrow, participant), 44).changes {
            DivergenceJournal.append(&mut scene.store, &change).unwrap();
        }
    }
    scene.start(subject(7, 1));
    for change in scene.raise(subject(7, 1), 50).changes {
        DivergenceJournal.append(&mut scene.store, &change).unwrap();
    }
    scene.raise_and_restore(subject(9, 4), 5_000);
    DivergenceJournal.audit(&mut scene.store, &audit("ann", "why not")).unwrap();
    scene
}

#[test]
fn an_import_of_the_exported_bytes_is_the_same_store() {
    let scene = full();
    let bytes = borsh::to_vec(&export(&scene.store).unwrap()).unwrap();
    let mut copy = MemKv::default();
    import(&mut copy, &borsh::from_slice(&bytes).unwrap()).unwrap();
    assert_eq!(copy, scene.store);
    assert_eq!(import(&mut copy, &Export::default()), Err(DivergenceError::NotEmpty));
    let mut empty = MemKv::default();
    import(&mut empty, &export(&MemKv::default()).unwrap()).unwrap();
    assert!(empty.is_empty());
}

#[test]
fn an_import_that_contradicts_itself_writes_nothing() {
    let good = export(&full().store).unwrap();
    let refuse = |what: &str, change: &dyn Fn(&mut Export)| {
        let mut bad = good.clone();
        change(&mut bad);
        let mut store = MemKv::default();
        let error = import(&mut store, &bad).unwrap_err();
        assert!(matches!(error.code(), 12 | 14), "{what}: {error}");
        assert!(store.is_empty(), "{what}");
    };
    refuse("a flag twice", &|e| e.flags.push(e.flags[2].clone()));
    refuse("flags out of order", &|e| e.flags.swap(0, 1));
    refuse("a flag without a history", &|e| {
        e.histories.remove(0);
    });
    refuse("a flag of an older generation", &|e| e.flags[0].generation = 1);
    refuse("chunks of nothing", &|e| e.flags[0].repair.chunk_diffs = 0);
    refuse("a level above the ladder", &|e| e.flags[0].repair.level = 4);
    refuse("an attempt before the first", &|e| e.flags[0].repair.attempt = 0);
    refuse("a history twice", &|e| e.histories.insert(0, e.histories[0].clone()));
    refuse("evidence that nobody counts", &|e| e.evidence[0].1 = 99);
    refuse("evidence out of order", &|e| e.evidence.swap(0, 1));
    refuse("a change is missing", &|e| {
        e.changes.remove(2);
    });
    refuse("the last change is missing", &|e| {
        e.changes.pop();
    });
    refuse("the number of the last change", &|e| e.last_change += 1);
    refuse("the number of the last audit row", &|e| e.last_audit = 0);
    refuse("an audit row without a reason", &|e| e.audits[0].1.reason.clear());
}
