//! Flags, histories, evidence and pages.

use super::*;
use crate::repair::{Effect, Failure, LogStage, RepairError, Verdict};

#[test]
fn the_first_mismatch_inserts_and_the_next_only_adds_evidence() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    let first = scene.raise(who, 44);
    assert_eq!(first.effects.first(), Some(&Effect::InsertFlag));
    let stages: Vec<LogStage> = first.changes.iter().map(|change| change.stage).collect();
    assert_eq!(stages, [LogStage::Blocked, LogStage::RepairStarted]);
    let flag = first.flag.unwrap();
    assert_eq!((flag.generation, flag.diverged_nonce, flag.flagged_at_ms), (1, 44, NOW));
    assert_eq!(DivergenceKeeper.flag(&scene.store, &who), Ok(Some(flag.clone())));

    // Lower: it becomes the flag's. Higher: kept beside it.
    let lower = scene.raise(who, 30);
    assert!(!lower.effects.contains(&Effect::InsertFlag) && lower.changes.is_empty());
    let flag = lower.flag.unwrap();
    assert_eq!((flag.generation, flag.diverged_nonce, flag.their_root), (1, 30, [30; 32]));
    assert_eq!(scene.raise(who, 50).flag.unwrap().diverged_nonce, 30);
    let nonces: Vec<u64> =
        DivergenceKeeper.evidence(&scene.store, &who).unwrap().iter().map(|row| row.nonce).collect();
    assert_eq!(nonces, [44, 30, 50]);
    let history = DivergenceKeeper.history(&scene.store, &who).unwrap();
    assert_eq!((history.raised, history.generation, history.evidence), (1, 1, 3));
}

#[test]
fn a_flag_is_not_raised_without_its_evidence() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    let event = RepairEvent::Mismatch { nonce: 44 };
    let above = Evidence { kind: EvidenceKind::AboveTip, ..evidence(44) };
    let diff = Evidence { kind: EvidenceKind::DiffFork, ..evidence(44) };
    for wrong in [None, Some(&evidence(45)), Some(&above), Some(&diff)] {
        assert_eq!(scene.try_step(who, &event, wrong), Err(DivergenceError::NoEvidence));
    }
    assert!(scene.store.is_empty());
}

#[test]
fn a_fork_of_our_own_has_a_reason_of_its_own_that_survives_a_lower_mismatch() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    let event = RepairEvent::OwnFork { nonce: 44 };
    assert_eq!(scene.try_step(who, &event, Some(&evidence(44))), Err(DivergenceError::NoEvidence));
    let own = Evidence { kind: EvidenceKind::OwnFork, ..evidence(44) };
    let flag = scene.try_step(who, &event, Some(&own)).unwrap().flag.unwrap();
    assert_eq!((flag.diverged_nonce, flag.reason()), (44, "escrow_own_fork"));
    let flag = scene.raise(who, 30).flag.unwrap();
    assert_eq!((flag.diverged_nonce, flag.reason()), (30, "escrow_own_fork"));
    assert_eq!(DivergenceKeeper.flag(&scene.store, &who).unwrap(), Some(flag));
    let other = subject(7, 2);
    let flag = scene.raise(other, 44).flag.unwrap();
    assert_eq!((flag.reason(), flag.own_fork()), ("escrow_state_root_diverged", false));
}

#[test]
fn clearing_compares_generation_and_attempt_and_the_history_survives() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    scene.raise(who, 44);
    scene.start(who);
    // A new mismatch during the attempt wins against the proof that is on its way.
    let voided = scene.raise(who, 50).flag.unwrap();
    assert_eq!((voided.generation, voided.repair.phase), (2, RepairPhase::Waiting));
    scene.start(who);
    let stale = scene.step(who, RepairEvent::Proof(ClearProof::for_test(1, 1, 60)));
    assert_eq!(stale.effects, [Effect::Ignored]);
    assert!(stale.flag.is_some());
    scene.at_ms += 90_000;
    let cleared = scene.step(who, RepairEvent::Proof(ClearProof::for_test(2, 1, 60)));
    assert_eq!(cleared.flag, None);
    let unblocked = cleared.changes.last().unwrap();
    assert_eq!((unblocked.stage, unblocked.at_ms), (LogStage::Unblocked, NOW + 90_000));
    assert_eq!((unblocked.flag.generation, unblocked.flag.diverged_nonce), (2, 44), "as it was");
    assert_eq!(unblocked.flag.repair.last_verdict, Verdict::Restored);

    assert_eq!(DivergenceKeeper.flag(&scene.store, &who), Ok(None));
    let history = DivergenceKeeper.history(&scene.store, &who).unwrap();
    let expected = History {
        generation: 2,
        raised: 1,
        restored: 1,
        gave_up: 0,
        attempts: 2,
        blocked_ms: 90_000,
        raised_at_ms: NOW,
        restored_at_ms: NOW + 90_000,
        evidence: 2,
    };
    assert_eq!(history, expected);
    // The next flag goes on with the next generation; an old proof means nothing to it.
    let again = scene.raise(who, 55).flag.unwrap();
    assert_eq!(again.generation, 3);
}

#[test]
fn a_relapse_starts_at_the_last_level_and_halves_the_deadline() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    scene.raise_and_restore(who, 1_000);
    scene.at_ms += 3_599_999;
    assert_eq!(scene.raise(who, 44).flag.unwrap().repair.level, 3);
    let other = subject(7, 2);
    scene.raise_and_restore(other, 1_000);
    scene.at_ms += 3_600_000;
    assert_eq!(scene.raise(other, 44).flag.unwrap().repair.level, 0);
    // A clock that was set back hides no relapse.
    let third = subject(7, 3);
    scene.raise_and_restore(third, 1_000);
    scene.at_ms -= 3_000_000;
    assert_eq!(scene.raise(third, 44).flag.unwrap().repair.level, 3);

    // Nor does a clock that starts at zero make one.
    let mut young = Scene::new();
    young.at_ms = 1_000;
    assert_eq!(young.raise(who, 44).flag.unwrap().repair.level, 0);

    // Second raise: 15 minutes.
    scene.start(who);
    scene.since_ms = 899_499;
    let flag = scene.step(who, RepairEvent::Failed(Failure::Unavailable)).flag.unwrap();
    assert_eq!((flag.repair.phase, flag.repair.elapsed_ms), (RepairPhase::Waiting, 899_999));
    // The five minutes of backoff count too: at their end it is over.
    scene.since_ms = flag.repair.due_in_ms;
    let gone = scene.step(who, RepairEvent::Due { permit: false });
    assert_eq!(gone.flag.unwrap().repair.phase, RepairPhase::GaveUp);
    assert_eq!(gone.changes.last().unwrap().stage, LogStage::GaveUp);
    assert_eq!(DivergenceKeeper.history(&scene.store, &who).unwrap().gave_up, 1);
}

#[test]
fn release_forgives_and_removes_nothing() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    scene.raise(who, 44);
    let flag = scene.step(who, RepairEvent::Release).flag.unwrap();
    assert_eq!(flag.repair.released, crate::repair::Forgiven::Operator);
    assert_eq!(DivergenceKeeper.flag(&scene.store, &who), Ok(Some(flag)));
    for event in [RepairEvent::Release, RepairEvent::ForceTeach, RepairEvent::GiveUp] {
        let error = scene.try_step(subject(7, 2), &event, None).unwrap_err();
        assert_eq!((error.code(), error), (1, DivergenceError::Repair(RepairError::NotFlagged)));
    }
    scene.step(who, RepairEvent::SessionEnded);
    let error = scene.try_step(who, &RepairEvent::ForceTeach, None).unwrap_err();
    assert_eq!((error.code(), error), (2, DivergenceError::Repair(RepairError::Stopped)));
}

#[test]
fn events_of_an_unflagged_participant_write_nothing() {
    let mut scene = Scene::new();
    for event in [RepairEvent::NotFound, RepairEvent::LateEnd { served: false }, RepairEvent::Restarted] {
        assert_eq!(scene.step(subject(7, 1), event).flag, None);
    }
    assert!(scene.store.is_empty());
}

#[test]
fn of_the_evidence_the_first_and_the_last_rows_stay() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    for nonce in 100..150 {
        scene.raise(who, nonce);
    }
    let nonces: Vec<u64> =
        DivergenceKeeper.evidence(&scene.store, &who).unwrap().iter().map(|row| row.nonce).collect();
    let expected: Vec<u64> = [100].into_iter().chain(119..150).collect();
    assert_eq!(nonces, expected);
    assert_eq!(nonces.len(), usize::try_from(EVIDENCE_KEPT).unwrap());
}

#[test]
fn the_first_bad_nonce_is_stored_for_its_generation_only() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    assert_eq!(DivergenceKeeper.set_first_bad(&mut scene.store, &who, 1, 12), Ok(false));
    scene.raise(who, 44);
    assert_eq!(DivergenceKeeper.set_first_bad(&mut scene.store, &who, 2, 12), Ok(false));
    assert_eq!(DivergenceKeeper.set_first_bad(&mut scene.store, &who, 1, 12), Ok(true));
    assert_eq!(DivergenceKeeper.flag(&scene.store, &who).unwrap().unwrap().first_bad_nonce, 12);
}

#[test]
fn evidence_above_our_tip_is_kept_but_is_not_where_it_diverged() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    scene.raise(who, 44);
    scene.start(who);
    let above = Evidence { kind: EvidenceKind::AboveTip, ..evidence(90) };
    let event = RepairEvent::SignedAboveTip { nonce: 90 };
    let flag = scene.try_step(who, &event, Some(&above)).unwrap().flag.unwrap();
    assert_eq!((flag.diverged_nonce, flag.repair.last_verdict), (44, Verdict::AboveTip));
    let rows = DivergenceKeeper.evidence(&scene.store, &who).unwrap();
    assert_eq!(
        (rows.len(), rows[1].kind, rows[1].generation, rows[1].at_ms),
        (2, EvidenceKind::AboveTip, 1, NOW)
    );
}

#[test]
fn a_nonce_above_a_tip_that_fell_is_not_where_it_diverged() {
    let mut scene = Scene::new();
    let who = subject(7, 1);
    scene.raise(who, 44);
    scene.tip = 30;
    scene.start(who);
    let above = Evidence { kind: EvidenceKind::AboveTip, ..evidence(35) };
    let event = RepairEvent::SignedAboveTip { nonce: 35 };
    assert_eq!(scene.try_step(who, &event, Some(&above)).unwrap().flag.unwrap().diverged_nonce, 44);
}

#[test]
fn pages_go_by_escrow_and_participant_and_filter_by_phase() {
    let mut scene = Scene::new();
    for (escrow, participant) in [(7, 3), (7, 1), (9, 2), (7, 2), (8, 1)] {
        scene.raise(subject(escrow, participant), 44);
    }
    scene.step(subject(7, 2), RepairEvent::GiveUp);
    scene.step(subject(9, 2), RepairEvent::GiveUp);
    let page = |escrow, phase, after: Option<Subject>, limit| {
        let page = DivergenceKeeper.page(&scene.store, escrow, phase, after.as_ref(), limit).unwrap();
        (page.flags.iter().map(|flag| flag.subject).collect::<Vec<_>>(), page.next)
    };
    let all = [subject(7, 1), subject(7, 2), subject(7, 3), subject(8, 1), subject(9, 2)];
    assert_eq!(page(None, None, None, 100), (all.to_vec(), None));
    assert_eq!(page(None, None, None, 2), (all[..2].to_vec(), Some(all[1])));
    assert_eq!(page(None, None, Some(all[1]), 3), (all[2..].to_vec(), None));
    assert_eq!(page(Some(7), None, None, 2), (all[..2].to_vec(), Some(all[1])));
    assert_eq!(page(Some(7), None, Some(all[1]), 2), (vec![all[2]], None));
    assert_eq!(page(Some(6), None, None, 2), (vec![], None));
    let gone = Some(RepairPhase::GaveUp);
    assert_eq!(page(None, gone, None, 100), (vec![all[1], all[4]], None));
    assert_eq!(page(None, gone, None, 1), (vec![all[1]], Some(all[1])));
    assert_eq!(page(None, gone, Some(all[1]), 1), (vec![all[4]], None));
    assert_eq!(page(Some(7), Some(RepairPhase::Waiting), None, 0), (vec![all[0]], Some(all[0])));
    let of_7: Vec<Subject> =
        DivergenceKeeper.flags(&scene.store, 7).unwrap().iter().map(|flag| flag.subject).collect();
    assert_eq!(of_7, all[..3]);
}

#[test]
fn a_page_is_never_longer_than_its_limit() {
    let mut scene = Scene::new();
    for escrow in 0..120 {
        scene.raise(subject(escrow, 1), 44);
    }
    let page = DivergenceKeeper.page(&scene.store, None, None, None, 10_000).unwrap();
    assert_eq!((page.flags.len(), page.next), (PAGE_MAX, Some(subject(99, 1))));
}

#[test]
fn a_removed_escrow_leaves_nothing_of_its_own() {
    let mut scene = Scene::new();
    scene.raise(subject(7, 1), 44);
    let before = scene.store.clone();
    scene.raise(subject(8, 1), 44);
    scene.raise_and_restore(subject(8, 2), 1_000);
    DivergenceKeeper.remove_escrow(&mut scene.store, 8).unwrap();
    assert_eq!(scene.store, before);
}

#[test]
fn corrupt_rows_are_errors_and_no_defaults() {
    use holdfast_store::{KvWrite, StoreError};
    let mut scene = Scene::new();
    let who = subject(7, 1);
    scene.raise(who, 44);
    let key = scene.store.pairs().next().unwrap().0.to_vec();
    scene.store.set(&key, b"garbage").unwrap();
    let error = scene.try_step(who, &RepairEvent::Due { permit: false }, None).unwrap_err();
    assert!(matches!(error, DivergenceError::Store(StoreError::Decode { .. })), "{error}");
    assert_eq!(error.code(), 10);
}
