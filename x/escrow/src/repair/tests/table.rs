//! Every row and column of the table in escrow-details 6, with the outcome written by hand.

use super::*;
use RepairEvent as E;
use RepairPhase::{GaveUp, Stopped, Teaching, Verifying, Waiting};

/// No flag, W, T, V, G, S.
type Cells = [&'static str; 6];

/// The cell `–`: the repair as it was, counted.
const X: &str = "";

fn check_with(
    name: &str,
    event: &RepairEvent,
    cells: Cells,
    tune: impl Fn(&mut RepairContext<'_>, &mut RepairState),
) {
    let config = RepairConfig::default();
    let phases = [None, Some(Waiting), Some(Teaching), Some(Verifying), Some(GaveUp), Some(Stopped)];
    for (phase, expected) in phases.into_iter().zip(cells) {
        let mut ctx = context(&config);
        let mut state = repair(phase.unwrap_or(Waiting));
        tune(&mut ctx, &mut state);
        let before = phase.map(|_| state);
        let got = match step(&ctx, before.as_ref(), event) {
            Ok(outcome) => show(&outcome),
            Err(error) => format!("error {}", error.code()),
        };
        let untouched = Outcome {
            state: before.clone(),
            cleared: None,
            generation: ctx.generation,
            effects: vec![Effect::Ignored],
        };
        let expected = if expected == X { show(&untouched) } else { expected.to_string() };
        assert_eq!(got, expected, "{name}, in {phase:?}");
    }
}

fn check(name: &str, event: RepairEvent, cells: Cells) {
    check_with(name, &event, cells, |_, _| {});
}

/// 30 s after three quarters and jitter, as the golden vector has it.
const NEXT: &str = "W att3 lvl2 due35924";

fn next(changes: &str, effects_before: &str) -> &'static str {
    let comma = if effects_before.is_empty() { "" } else { ", " };
    let text = format!("{NEXT} {changes} : {effects_before}{comma}release, log RepairAttempt, wake 35924");
    Box::leak(text.into_boxed_str())
}

#[test]
fn a_signed_mismatch_raises_or_voids() {
    let voided = "W gen2 att1 due1000 census =new_mismatch : evidence 44, cancel, release, log RepairAttempt, wake 1000";
    let rest = ["W : evidence 44", voided, voided, "G : evidence 44", "S : evidence 44"];
    let cells = |first| [first, rest[0], rest[1], rest[2], rest[3], rest[4]];
    let mismatch = E::Mismatch { nonce: 44 };
    check(
        "mismatch",
        mismatch.clone(),
        cells(
            "W gen2 att1 lvl0 due500 target0 elapsed0 census : insert, evidence 44, log Blocked, \
             log RepairStarted, wake 500",
        ),
    );
    check_with(
        "mismatch within an hour of a restore",
        &mismatch,
        cells(
            "W gen2 att1 lvl3 due500 target0 elapsed0 census : insert, evidence 44, log Blocked, \
             log RepairStarted, wake 500",
        ),
        |ctx, _| ctx.relapse = true,
    );
    check_with(
        "mismatch outside Active",
        &mismatch,
        cells("S gen2 att1 lvl0 target0 elapsed0 census : insert, evidence 44, log Blocked"),
        |ctx, _| ctx.active = false,
    );
    check_with("mismatch while we doubt ourselves", &mismatch, cells(X), |ctx, _| ctx.self_suspect = true);
}

#[test]
fn a_due_wait_starts_an_attempt_with_a_permit_only() {
    check("due without a permit", E::Due { permit: false }, [X, "W : queue", X, X, X, X]);
    let back =
        |phase: &str| -> &'static str { Box::leak(format!("{phase} : release, –").into_boxed_str()) };
    let cells =
        [back("no"), "T target60 : start 1/2@60, teach 200", back("T"), back("V"), back("G"), back("S")];
    check("due with a permit", E::Due { permit: true }, cells);

    let first = |text| [back("no"), text, back("T"), back("V"), back("G"), back("S")];
    check_with(
        "too early",
        &E::Due { permit: false },
        [X, "W due700 : wake 700", X, X, X, X],
        |ctx, state| {
            if state.phase == Waiting {
                (ctx.since_ms, state.due_in_ms, state.elapsed_ms) = (300, 1_000, 19_700);
            }
        },
    );
    for (name, tune, cell) in [
        (
            "census due",
            (|_, state| state.census_due = true) as fn(&mut RepairContext<'_>, &mut RepairState),
            "T target60 census : start 1/2@60, census, teach 200",
        ),
        ("bind due", |_, state| state.bind_due = true, "T target60 bind : start 1/2@60, bind"),
    ] {
        let config = RepairConfig::default();
        let (mut ctx, mut state) = (context(&config), repair(Waiting));
        tune(&mut ctx, &mut state);
        assert_eq!(show(&step(&ctx, Some(&state), &E::Due { permit: true }).unwrap()), cell, "{name}");
    }
    check_with(
        "too early with a permit",
        &E::Due { permit: true },
        first("W due1000 : release, wake 1000"),
        |_, state| state.due_in_ms = if state.phase == Waiting { 1_000 } else { 0 },
    );
}

#[test]
fn chunks_move_the_cursor_up_to_the_target() {
    let cells = [X, X, "T reached40 : cursor 40, teach 200", X, X, X];
    check("chunk below the target", E::ChunkApplied { nonce: 40 }, cells);
    let cells = [X, X, "V reached50 : cursor 50, ask 50", X, X, X];
    check("chunk at the target", E::ChunkApplied { nonce: 50 }, cells);
    let cells = [X, X, "V reached60 : cursor 60, ask 50", X, X, X];
    check("chunk above the target", E::ChunkApplied { nonce: 60 }, cells);
    check("chunk above our tip", E::ChunkApplied { nonce: 61 }, [X, X, next("=malformed", ""), X, X, X]);

    let config = RepairConfig::default();
    let mut state = repair(Teaching);
    (state.reached, state.progress) = (40, true);
    let outcome = step(&context(&config), Some(&state), &E::ChunkApplied { nonce: 40 }).unwrap();
    assert_eq!(outcome.state.unwrap().last_verdict, Verdict::Malformed, "a chunk that moves nothing");
}

#[test]
fn a_used_budget_with_progress_waits_a_second_at_the_same_level() {
    check("no progress", E::BudgetUsed, [X, X, next("=timed_out", "cancel"), X, X, X]);
    let config = RepairConfig::default();
    let mut state = repair(Teaching);
    (state.reached, state.progress) = (40, true);
    let outcome = step(&context(&config), Some(&state), &E::BudgetUsed).unwrap();
    let expected = "W att3 due1000 reached40 =budget_used : cancel, release, log RepairAttempt, wake 1000";
    assert_eq!(show(&outcome), expected);
}

#[test]
fn an_old_snapshot_is_followed_once() {
    let cells = [X, X, "T reached30 old : cursor 30, teach 200", X, X, X];
    check("first time", E::ChunkBehind { have: 30 }, cells);
    let config = RepairConfig::default();
    let mut state = repair(Teaching);
    (state.reached, state.old_snapshot) = (30, true);
    let outcome = step(&context(&config), Some(&state), &E::ChunkBehind { have: 20 }).unwrap();
    let expected =
        "W att3 lvl2 due35924 reached30 old =behind : cursor 20, release, log RepairAttempt, wake 35924";
    assert_eq!(show(&outcome), expected);
}

#[test]
fn refusals_and_forks_are_evidence() {
    let cells = [X, X, next("=refused", "evidence 44"), X, X, X];
    check("signed refusal", E::ChunkRefused { nonce: 44 }, cells);
    let forked = "W att3 lvl3 due359241 forked =forked : evidence 44, bisect 44, release, \
                  log RepairAttempt, wake 359241";
    check("another root at an applied nonce", E::Forked { nonce: 44 }, [X, X, forked, forked, X, X]);
}

#[test]
fn a_host_without_a_session_is_taught_from_the_first_diff() {
    let lost =
        "W att3 due1000 lost1 bind =session_not_found : cursor 0, release, log RepairAttempt, wake 1000";
    check("once", E::NotFound, [X, X, lost, lost, X, X]);
    let config = RepairConfig::default();
    for phase in [Teaching, Verifying] {
        let mut state = repair(phase);
        state.not_found = 1;
        let twice = step(&context(&config), Some(&state), &E::NotFound).unwrap().state.unwrap();
        assert_eq!((twice.due_in_ms, twice.level, twice.not_found), (1_000, 1, 2), "twice");
        state.not_found = 2;
        let thrice = step(&context(&config), Some(&state), &E::NotFound).unwrap();
        let expected = "W att3 lvl2 due35924 lost3 bind =session_not_found : cursor 0, release, \
                        log RepairAttempt, wake 35924";
        assert_eq!(show(&thrice), expected);
    }
}

#[test]
fn failed_calls_climb_the_ladder() {
    for (failure, name) in [
        (Failure::Unavailable, "=unavailable"),
        (Failure::TimedOut, "=timed_out"),
        (Failure::Policy, "=policy"),
        (Failure::ConfigMismatch, "=config_mismatch"),
        (Failure::Malformed, "=malformed"),
    ] {
        check(name, E::Failed(failure), [X, X, next(name, ""), next(name, ""), X, X]);
    }
    let cells = [X, X, next("chunk100 =too_large", ""), next("=too_large", ""), X, X];
    check("too large halves the chunk", E::Failed(Failure::TooLarge), cells);
    let config = RepairConfig::default();
    let mut state = repair(Teaching);
    state.chunk_diffs = 1;
    let outcome = step(&context(&config), Some(&state), &E::Failed(Failure::TooLarge)).unwrap();
    assert_eq!(outcome.state.unwrap().chunk_diffs, 1, "never below one diff");
    // A new generation may meet a host with another limit.
    let reopened = RepairState { chunk_diffs: 1, ..repair(GaveUp) };
    let outcome = step(&context(&config), Some(&reopened), &E::ForceTeach).unwrap();
    assert_eq!(outcome.state.unwrap().chunk_diffs, 200);
}

#[test]
fn only_a_proof_of_this_generation_and_attempt_clears() {
    let clear = |nonce: u64| -> &'static str {
        let text = format!("no : cursor {nonce}, release, log RepairAttempt, clear, log Unblocked, stop");
        Box::leak(text.into_boxed_str())
    };
    for nonce in [50, 60] {
        let proof = ClearProof::for_test(1, 2, nonce);
        check("proof", E::Proof(proof), [X, X, clear(nonce), clear(nonce), X, X]);
    }
    for (name, proof) in [
        ("older generation", ClearProof::for_test(0, 2, 50)),
        ("newer generation", ClearProof::for_test(2, 2, 50)),
        ("older attempt", ClearProof::for_test(1, 1, 50)),
        ("below the target", ClearProof::for_test(1, 2, 49)),
        ("above the tip", ClearProof::for_test(1, 2, 61)),
    ] {
        check(name, E::Proof(proof), [X; 6]);
    }
    // A proof wins against the deadline.
    check_with(
        "late proof",
        &E::Proof(ClearProof::for_test(1, 2, 50)),
        [X, X, clear(50), clear(50), X, X],
        |_, s| {
            s.elapsed_ms = 1_800_000;
        },
    );
}

#[test]
fn signatures_that_prove_something_else() {
    let cells = [X, X, X, next("=behind", "cursor 40"), X, X];
    check("signature below the target", E::SignedBehind { nonce: 40 }, cells);
    let above = next("=above_tip", "evidence 90");
    let cells = [X, X, above, above, "G : evidence 90", X];
    check("signature above our tip", E::SignedAboveTip { nonce: 90 }, cells);
    check("key not bound", E::KeyNotBound, [X, X, X, next("=key_not_bound", "txs"), X, X]);
}

#[test]
fn a_withheld_signature_is_neither_success_nor_fork() {
    let cells = [X, X, next("=withheld", "txs, cursor 50"), next("=withheld", "txs"), X, X];
    check("withheld at the target", E::Withheld { nonce: 50 }, cells);
    let cells = [X, X, "T reached40 : txs, cursor 40, teach 200", next("=withheld", "txs"), X, X];
    check("withheld on the way", E::Withheld { nonce: 40 }, cells);
    let cells = [X, X, next("=withheld", "txs"), next("=withheld", "txs"), X, X];
    check("withheld above our tip moves no cursor", E::Withheld { nonce: 61 }, cells);
}

#[test]
fn the_deadline_is_tested_when_an_attempt_ends_or_a_wait_is_due() {
    let gone = |changes: &str, effects: &str| -> &'static str {
        let text = format!(
            "G {changes} elapsed1800000 =unavailable : {effects}release, log RepairAttempt, log GaveUp, stop"
        );
        Box::leak(text.into_boxed_str())
    };
    let late = |_: &mut RepairContext<'_>, state: &mut RepairState| state.elapsed_ms = 1_800_000;
    let cells = [X, X, gone("att3 lvl2", ""), gone("att3 lvl2", ""), X, X];
    check_with("attempt ends", &E::Failed(Failure::Unavailable), cells, late);
    let cells = [X, "G elapsed1800000 : log GaveUp, stop", X, X, X, X];
    check_with("wait is due", &E::Due { permit: false }, cells, late);

    let config = RepairConfig::default();
    let ctx = context(&config);
    let mut state = repair(Waiting);
    state.elapsed_ms = 1_800_000;
    let outcome = step(&ctx, Some(&state), &E::Due { permit: true }).unwrap();
    assert_eq!(show(&outcome), "G elapsed1800000 : release, log GaveUp, stop");
    // One millisecond earlier it goes on.
    state.elapsed_ms = 1_799_999;
    assert_eq!(step(&ctx, Some(&state), &E::Due { permit: true }).unwrap().state.unwrap().phase, Teaching);
    state.phase = Teaching;
    let applied = step(&ctx, Some(&state), &E::ChunkApplied { nonce: 40 }).unwrap();
    assert_eq!(applied.state.unwrap().phase, Teaching, "not tested in the middle of an attempt");
}

#[test]
fn the_late_end_of_an_old_dispatch_clears_nothing_and_blames_once() {
    check("answered", E::LateEnd { served: true }, ["no", X, X, X, X, X]);
    let cells = ["no", "W : timeout", "T : timeout", "V : timeout", "G : timeout", "S : timeout"];
    check("failed", E::LateEnd { served: false }, cells);
}

#[test]
fn a_restarted_host_reopens_what_was_given_up() {
    let event = E::Announced { since_reopen_ms: 0 };
    let opened = "W gen2 att1 lvl0 due500 elapsed0 reopened1 census : log RepairStarted, wake 500";
    check("first", event.clone(), [X, X, X, X, opened, X]);
    let again = |reopened: u8, since_reopen_ms: u64| {
        let config = RepairConfig::default();
        let mut state = repair(GaveUp);
        state.reopened = reopened;
        let event = E::Announced { since_reopen_ms };
        step(&context(&config), Some(&state), &event).unwrap().state.unwrap().phase
    };
    assert_eq!(again(1, 599_999), GaveUp, "ten minutes apart");
    assert_eq!(again(1, 600_000), Waiting);
    assert_eq!(again(2, 600_000), Waiting);
    assert_eq!(again(3, 6_000_000), GaveUp, "three times");
}

#[test]
fn operators_verbs() {
    let cells = [
        "error 1",
        "W : wake 0",
        X,
        X,
        "W gen2 att1 lvl0 elapsed0 census : log RepairStarted, wake 0",
        "error 2",
    ];
    check("ForceTeach", E::ForceTeach, cells);
    let config = RepairConfig::default();
    let mut state = repair(Waiting);
    (state.due_in_ms, state.level) = (300_000, 3);
    let forced = step(&context(&config), Some(&state), &E::ForceTeach).unwrap();
    assert_eq!(show(&forced), "W lvl3 : wake 0", "due now, level kept");

    let voided = "G att3 =operator : cancel, release, log RepairAttempt, log GaveUp, stop";
    let cells = ["error 1", "G : release, log GaveUp, stop", voided, voided, X, "error 2"];
    check("GiveUp", E::GiveUp, cells);
    let cells = ["error 1", "W released", "T released", "V released", "G released", "error 2"];
    check("Release", E::Release, cells);
}

#[test]
fn the_end_of_the_session_stops_the_worker() {
    let cancelled = "S att3 =session_ended : cancel, release, log RepairAttempt, stop";
    check("ended", E::SessionEnded, [X, "S : release, stop", cancelled, cancelled, "S : stop", X]);
}

#[test]
fn a_restart_of_the_gateway_is_no_amnesty() {
    let again = "W att3 due2496 =gateway_restarted : wake 2496";
    let cells = [X, "W due4474 : wake 4474", again, again, X, X];
    check("restart", E::Restarted, cells);
    let config = RepairConfig::default();
    let mut ctx = context(&config);
    ctx.since_ms = 1_000_000;
    let mut state = repair(Waiting);
    state.due_in_ms = 300_000;
    let outcome = step(&ctx, Some(&state), &E::Restarted).unwrap();
    assert_eq!(show(&outcome), "W due4474 : wake 4474", "downtime does not count");
}

#[test]
fn our_own_unreadable_store_pauses_all_and_blames_nobody() {
    let voided = "W att3 paused =store_unreadable : cancel, release, log RepairAttempt, wake 1000";
    let cells = [X, "W paused : release, wake 1000", voided, voided, X, X];
    check("unreadable", E::StoreUnreadable, cells);
    check("readable", E::StoreReadable, [X; 6]);

    let config = RepairConfig::default();
    let mut ctx = context(&config);
    ctx.since_ms = 5_000;
    let paused = RepairState { paused: true, due_in_ms: 9_000, ..repair(Waiting) };
    let still = step(&ctx, Some(&paused), &E::StoreUnreadable).unwrap();
    assert_eq!(show(&still), "W due9000 paused : wake 1000", "time stands still");
    for (event, effects) in [
        (E::StoreReadable, "wake 9000"),
        (E::Due { permit: false }, "wake 9000"),
        (E::Due { permit: true }, "release, wake 9000"),
    ] {
        let on = step(&ctx, Some(&paused), &event).unwrap();
        assert_eq!(show(&on), format!("W due9000 : {effects}"), "{event:?}: level and wait kept");
    }
    let voided = RepairState { due_in_ms: 0, ..paused };
    let on = step(&ctx, Some(&voided), &E::Due { permit: false }).unwrap();
    assert_eq!(show(&on), "W : queue");
}

#[test]
fn self_suspicion_stops_ghosts_but_no_repair() {
    // The table's last row: raised = no new flags (see the mismatch row), work goes on, no ghosts.
    let pairs = [(Waiting, NonceUse::Pass), (Teaching, NonceUse::Pass), (Verifying, NonceUse::Pass)];
    for (phase, expected) in pairs.into_iter().chain([(GaveUp, NonceUse::Ghost), (Stopped, NonceUse::Pass)]) {
        assert_eq!(nonce_use(Some(&repair(phase)), false), expected, "{phase:?}");
        assert_eq!(nonce_use(Some(&repair(phase)), true), NonceUse::Pass, "{phase:?}, suspect");
        let forgiven = RepairState { released: Forgiven::Operator, ..repair(phase) };
        assert_eq!(nonce_use(Some(&forgiven), false), NonceUse::Pass, "{phase:?}, forgiven");
    }
    assert_eq!(nonce_use(None, false), NonceUse::Free);
    let config = RepairConfig::default();
    let mut ctx = context(&config);
    ctx.self_suspect = true;
    let outcome = step(&ctx, Some(&repair(Waiting)), &E::Due { permit: true }).unwrap();
    assert_eq!(outcome.state.unwrap().phase, Teaching);
}

#[test]
fn a_fork_of_our_own_is_forgiven_from_the_start_and_repaired_by_a_reset() {
    let config = RepairConfig { allow_reset: true, ..RepairConfig::default() };
    let mut ctx = context(&config);
    ctx.generation = 0;
    ctx.self_suspect = true;
    let event = E::OwnFork { nonce: 44 };
    let raised = step(&ctx, None, &event).unwrap();
    let state = raised.state.unwrap();
    assert_eq!((state.phase, state.forked, state.released), (Waiting, true, Forgiven::OwnFork));
    assert_eq!(raised.generation, 1);
    let expected = [Effect::InsertFlag, Effect::RecordEvidence { nonce: 44 }, Effect::Log(LogStage::Blocked)];
    assert_eq!(raised.effects[..3], expected);
    ctx.generation = 1;
    ctx.since_ms = state.due_in_ms;
    let begun = step(&ctx, Some(&state), &E::Due { permit: true }).unwrap();
    assert_eq!(begun.effects.last(), Some(&Effect::CallReset));
    ctx.since_ms = 0;
    // In any phase of a repair it takes back what was charged, and an operator's word does not hide it.
    for phase in [Waiting, Teaching, Verifying, GaveUp, Stopped] {
        let state = step(&ctx, Some(&repair(phase)), &event).unwrap().state.unwrap();
        assert_eq!((state.forked, state.released), (true, Forgiven::OwnFork), "{phase:?}");
        assert!(!state.phase.in_attempt());
        assert_eq!(nonce_use(Some(&state), false), NonceUse::Pass);
        if phase != Stopped {
            let released = step(&ctx, Some(&state), &E::Release).unwrap().state.unwrap();
            assert_eq!(released.released, Forgiven::OwnFork);
        }
    }
    // A host that does not consent is not asked in a tight loop: the ladder holds.
    let again = RepairState { released: Forgiven::OwnFork, ..repair(Teaching) };
    let waits = step(&ctx, Some(&again), &event).unwrap().state.unwrap();
    assert!(waits.due_in_ms > 10_000, "{}", waits.due_in_ms);
}

#[test]
fn the_target_stays_when_our_tip_moves() {
    let config = RepairConfig::default();
    let mut ctx = context(&config);
    let state = step(&ctx, Some(&repair(Waiting)), &E::Due { permit: true }).unwrap().state.unwrap();
    assert_eq!(state.target, 60);
    ctx.tip = 500;
    let state = step(&ctx, Some(&state), &E::ChunkApplied { nonce: 30 }).unwrap().state.unwrap();
    assert_eq!(state.target, 60);
    let outcome = step(&ctx, Some(&state), &E::ChunkApplied { nonce: 60 }).unwrap();
    assert_eq!(outcome.effects, [Effect::MoveCursor(60), Effect::AskSignature { nonce: 60 }]);
    assert_eq!(outcome.state.unwrap().target, 60);
}

#[test]
fn with_consent_a_forked_host_is_reset_before_it_is_taught() {
    let config = RepairConfig { allow_reset: true, ..RepairConfig::default() };
    let ctx = context(&config);
    let forked = RepairState { forked: true, ..repair(Waiting) };
    let outcome = step(&ctx, Some(&forked), &E::Due { permit: true }).unwrap();
    assert_eq!(show(&outcome), "T target60 forked : start 1/2@60, reset");
    let teaching = outcome.state.unwrap();

    // Policy or Busy: a plain attempt.
    let refused = step(&ctx, Some(&teaching), &E::ResetRefused).unwrap();
    assert_eq!(show(&refused), "T target60 forked : teach 200");
    // Done: an empty host, taught from 1; the next attempt must not drop what was taught.
    let done = step(&ctx, Some(&teaching), &E::ResetDone).unwrap();
    assert_eq!(show(&done), "T target60 bind : cursor 0, bind");
    let bound = step(&ctx, done.state.as_ref(), &E::Bound).unwrap();
    assert_eq!(show(&bound), "T target60 : teach 200");
    // It had none, so there is nothing to reset next time.
    let lost = step(&ctx, Some(&teaching), &E::NotFound).unwrap().state.unwrap();
    assert!(!lost.forked && lost.bind_due);

    // Not without consent, and not for one that is only behind.
    let plain = RepairConfig::default();
    let outcome = step(&context(&plain), Some(&forked), &E::Due { permit: true }).unwrap();
    assert_eq!(show(&outcome), "T target60 forked : start 1/2@60, teach 200");
    let outcome = step(&ctx, Some(&repair(Waiting)), &E::Due { permit: true }).unwrap();
    assert_eq!(show(&outcome), "T target60 : start 1/2@60, teach 200");

    check("reset done elsewhere", E::ResetDone, [X, X, "T bind : cursor 0, bind", X, X, X]);
    check("reset refused elsewhere", E::ResetRefused, [X, X, "T : teach 200", X, X, X]);
    check("bound elsewhere", E::Bound, [X, X, "T : teach 200", X, X, X]);
}

#[test]
fn the_census_is_taken_once_in_a_generation() {
    check("taken", E::CensusTaken, [X, "W", "T", "V", X, X]);
    let config = RepairConfig::default();
    let ctx = context(&config);
    let due = RepairState { census_due: true, ..repair(Waiting) };
    let first = step(&ctx, Some(&due), &E::Due { permit: true }).unwrap();
    assert!(first.effects.contains(&Effect::TakeCensus));
    // It did not come to an end in this attempt: asked again.
    let failed = step(&ctx, first.state.as_ref(), &E::Failed(Failure::Unavailable)).unwrap();
    assert!(failed.state.as_ref().unwrap().census_due);
    let taken = step(&ctx, failed.state.as_ref(), &E::CensusTaken).unwrap().state.unwrap();
    let second = RepairState { due_in_ms: 0, ..taken };
    let second = step(&ctx, Some(&second), &E::Due { permit: true }).unwrap();
    assert!(!second.effects.contains(&Effect::TakeCensus));
}
