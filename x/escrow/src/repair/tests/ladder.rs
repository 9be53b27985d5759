//! Backoff, jitter, deadline and the counting of time.

use proptest::prelude::*;

use super::*;
use RepairEvent as E;
use RepairPhase::{GaveUp, Teaching, Verifying, Waiting};

#[test]
fn the_jitter_is_the_golden_one() {
    assert_eq!(backoff_ms(30_000, 7, host_2(), 1, 2), 35_924);
    // From an implementation in another language.
    for (base, attempt, expected) in [(15_000, 1, 18_604), (60_000, 3, 59_978), (300_000, 4, 277_452)] {
        assert_eq!(backoff_ms(base, 7, host_2(), 1, attempt), expected);
    }
}

#[test]
fn failures_wait_15_30_60_and_then_300_seconds() {
    let config = RepairConfig { give_up_ms: 86_400_000, ..RepairConfig::default() };
    let mut ctx = context(&config);
    let raised = step(&ctx, None, &E::Mismatch { nonce: 44 }).unwrap();
    assert_eq!(raised.effects.last(), Some(&Effect::WakeIn(500)));
    let mut state = raised.state.unwrap();
    // Generation 1 in spite of the raise, for the numbers of the other implementation.
    let mut waits = vec![];
    for _ in 0..6 {
        ctx.since_ms = state.due_in_ms;
        let started = step(&ctx, Some(&state), &E::Due { permit: true }).unwrap();
        assert_eq!(started.state.as_ref().unwrap().phase, Teaching);
        ctx.since_ms = 0;
        let failed = step(&ctx, started.state.as_ref(), &E::Failed(Failure::Unavailable)).unwrap();
        state = failed.state.unwrap();
        waits.push((state.level, state.due_in_ms));
    }
    let expected = [(1, 18_604), (2, 35_924), (3, 59_978), (3, 277_452), (3, 293_673), (3, 260_515)];
    assert_eq!(waits, expected);
}

#[test]
fn events_wake_no_worker_early_and_inflate_no_backoff() {
    let config = RepairConfig::default();
    let ctx = context(&config);
    let mut state = repair(Waiting);
    state.due_in_ms = 9_000;
    for event in [
        E::Mismatch { nonce: 44 },
        E::Due { permit: false },
        E::LateEnd { served: true },
        E::LateEnd { served: false },
        E::Announced { since_reopen_ms: u64::MAX },
        E::NotFound,
        E::Failed(Failure::Unavailable),
    ] {
        let after = step(&ctx, Some(&state), &event).unwrap().state.unwrap();
        assert_eq!(after, state, "{event:?}");
    }
}

#[test]
fn the_deadline_halves_with_each_raise_down_to_five_minutes() {
    let config = RepairConfig::default();
    let minutes: Vec<u64> = [1, 2, 3, 4, 5, 64, 65, u32::MAX].map(|n| config.deadline_ms(n) / 60_000).into();
    assert_eq!(minutes, [30, 15, 7, 5, 5, 5, 5, 5]);
    assert_eq!(config.deadline_ms(3), 450_000);
    // A short deadline of the operator is not made longer by the floor.
    let short = RepairConfig { give_up_ms: 60_000, ..RepairConfig::default() };
    assert_eq!((short.deadline_ms(1), short.deadline_ms(2)), (60_000, 60_000));

    let mut ctx = context(&config);
    let state = RepairState { elapsed_ms: 900_000, ..repair(Teaching) };
    let fail = E::Failed(Failure::Unavailable);
    assert_eq!(step(&ctx, Some(&state), &fail).unwrap().state.unwrap().phase, Waiting);
    ctx.raised = 2;
    assert_eq!(step(&ctx, Some(&state), &fail).unwrap().state.unwrap().phase, GaveUp);
}

#[test]
fn only_attempts_and_backoff_count_towards_giving_up() {
    let config = RepairConfig::default();
    let mut ctx = context(&config);
    let elapsed = |ctx: &RepairContext<'_>, state: &RepairState, event: E| {
        step(ctx, Some(state), &event).unwrap().state.map(|s| s.elapsed_ms)
    };
    ctx.since_ms = 7_000;
    let nothing = E::LateEnd { served: true };
    // 3 s of the wait were left; the other 4 s are the wait for a permit.
    let waiting = RepairState { due_in_ms: 3_000, ..repair(Waiting) };
    assert_eq!(elapsed(&ctx, &waiting, E::Due { permit: false }), Some(23_000));
    assert_eq!(elapsed(&ctx, &repair(Waiting), E::Due { permit: false }), Some(20_000));
    assert_eq!(elapsed(&ctx, &repair(Teaching), nothing.clone()), Some(27_000));
    assert_eq!(elapsed(&ctx, &repair(Verifying), nothing.clone()), Some(27_000));
    assert_eq!(elapsed(&ctx, &repair(GaveUp), nothing.clone()), Some(20_000));
    assert_eq!(elapsed(&ctx, &repair(RepairPhase::Stopped), nothing.clone()), Some(20_000));
    let paused = RepairState { paused: true, ..waiting.clone() };
    assert_eq!(elapsed(&ctx, &paused, nothing.clone()), Some(20_000));
    assert_eq!(elapsed(&ctx, &waiting, E::Restarted), Some(20_000));
    ctx.majority_unreachable = true;
    assert_eq!(elapsed(&ctx, &repair(Teaching), nothing.clone()), Some(20_000));
    // The wait itself goes on.
    let outcome = step(&ctx, Some(&waiting), &E::Due { permit: false }).unwrap();
    assert_eq!(
        (outcome.state.as_ref().unwrap().elapsed_ms, &outcome.effects[..]),
        (20_000, &[Effect::QueueForPermit][..])
    );
}

#[test]
fn settings_out_of_range_are_named() {
    assert_eq!(RepairConfig::default().validate(), Ok(()));
    let field = |config: RepairConfig| config.validate().unwrap_err().field;
    let base = RepairConfig::default;
    assert_eq!(field(RepairConfig { give_up_ms: 0, ..base() }), "give_up_ms", "the deadline is mandatory");
    assert_eq!(field(RepairConfig { give_up_ms: u64::MAX, ..base() }), "give_up_ms");
    assert_eq!(field(RepairConfig { give_up_floor_ms: 0, ..base() }), "give_up_floor_ms");
    assert_eq!(field(RepairConfig { backoff_ms: [15_000, 10_000, 60_000, 300_000], ..base() }), "backoff_ms");
    assert_eq!(field(RepairConfig { backoff_ms: [0, 0, 0, 0], ..base() }), "backoff_ms");
    assert_eq!(field(RepairConfig { short_wait_ms: 0, ..base() }), "short_wait_ms");
    assert_eq!(field(RepairConfig { first_wait_ms: 60_001, ..base() }), "first_wait_ms");
    assert_eq!(field(RepairConfig { restart_spread_ms: 60_001, ..base() }), "restart_spread_ms");
    assert_eq!(field(RepairConfig { chunk_diffs: 0, ..base() }), "chunk_diffs");
    assert_eq!(field(RepairConfig { chunk_diffs: 201, ..base() }), "chunk_diffs");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_jittered_wait_is_three_to_five_quarters_of_its_base(
        level in 0_u8..=9, escrow: u64, who: [u8; 20], generation: u64, attempt: u32,
    ) {
        let base = RepairConfig::default().base_ms(level);
        prop_assert_eq!(base, [15_000, 30_000, 60_000, 300_000][usize::from(level.min(3))]);
        let wait = backoff_ms(base, escrow, Address(who), generation, attempt);
        prop_assert!((base * 3 / 4..base * 5 / 4).contains(&wait));
    }

    #[test]
    fn no_setting_overflows(base: u64, escrow: u64, generation: u64, attempt: u32) {
        let wait = backoff_ms(base, escrow, host_2(), generation, attempt);
        prop_assert!(wait >= base / 2 || base > u64::MAX / 65_536);
    }
}
