//! Operating characteristics, computed exactly: the numbers of the README's parameter table.

use holdfast_types::ValidationParams;

use crate::{Tally, Window, calc};

/// Misses until a rule is met when an executor dies after `good` answers; one outcome in a block.
fn misses_until_met(params: &ValidationParams, good: u64) -> u64 {
    let width = calc::width(params.health_cb_window_blocks);
    let (mut window, mut streak, mut height) = (Window::default(), 0, 1_000);
    for n in 1..=good + 10_000 {
        let missed = u64::from(n > good);
        let tally = Tally { generation: 0, ok: 1 - missed, missed };
        window = calc::record(&window, height, width, &tally);
        streak = calc::streak(streak, &tally);
        let (ok, all_missed) = calc::totals(&window, height);
        if calc::met_rule(params, ok, all_missed, streak).is_some() {
            return n - good;
        }
        height += 1;
    }
    panic!("never met")
}

/// Chance that misses of independent chance `p` come `length` in a row somewhere in `outcomes`: the exact chain
/// over the present streak, the last state absorbing.
fn streak_by_chance(p: f64, length: usize, outcomes: usize) -> f64 {
    let mut at = vec![0.0; length + 1];
    at[0] = 1.0;
    for _ in 0..outcomes {
        let mut next = vec![0.0; length + 1];
        next[length] = at[length];
        for streak in 0..length {
            next[0] += at[streak] * (1.0 - p);
            next[streak + 1] += at[streak] * p;
        }
        at = next;
    }
    at[length]
}

/// Chance that the rate rule is met somewhere in the first `outcomes` of a fresh endless window, judged after
/// each: the exact chain over the number of misses.
fn rate_by_chance(params: &ValidationParams, p: f64, outcomes: usize) -> f64 {
    let (mut at, mut met) = (vec![1.0], 0.0);
    for total in 1..=outcomes {
        let mut next = vec![0.0; total + 1];
        for (missed, chance) in at.iter().enumerate() {
            next[missed] += chance * (1.0 - p);
            next[missed + 1] += chance * p;
        }
        for (missed, chance) in next.iter_mut().enumerate() {
            if calc::met_rule(params, (total - missed) as u64, missed as u64, 0).is_some() {
                met += std::mem::take(chance);
            }
        }
        at = next;
    }
    met
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-3, "{found:e}, expected {expected:e}");
}

#[test]
fn a_dying_executor_is_out_after_this_many_misses() {
    let seed = ValidationParams::default();
    let windowed = ValidationParams { health_cb_window_blocks: 200, ..seed.clone() };
    let recommended = ValidationParams::recommended();
    for (good, cumulative, in_window) in [(100, 34, 34), (500, 167, 47), (1_000, 334, 47)] {
        assert_eq!(misses_until_met(&seed, good), cumulative, "rate, endless window, {good}");
        assert_eq!(misses_until_met(&windowed, good), in_window, "rate, window 200, {good}");
        assert_eq!(misses_until_met(&recommended, good), 5, "streak 5, {good}");
    }
}

#[test]
fn a_sound_executor_is_out_by_chance_this_often_in_a_thousand_inferences() {
    let seed = ValidationParams::default();
    for (p, streak, rate) in [
        (0.005, 3.0970e-9, 5.2201e-4),
        (0.02, 3.1235e-6, 8.2104e-3),
        (0.05, 2.9566e-4, 4.9595e-2),
        (0.10, 8.9254e-3, 1.8753e-1),
    ] {
        near(streak_by_chance(p, 5, 1_000), streak);
        near(rate_by_chance(&seed, p, 1_000), rate);
        // All but a thousandth of it falls into the first 200 outcomes after a change of state.
        near(rate_by_chance(&seed, p, 200), rate);
    }
    let twenty = ValidationParams { health_cb_min_samples: 20, ..seed };
    near(rate_by_chance(&twenty, 0.005, 1_000), 1.4838e-09);
    near(rate_by_chance(&twenty, 0.05, 1_000), 8.4977e-04);
}

#[test]
fn a_run_of_two_in_four_checked_by_hand() {
    // 16 sequences of 4 fair coins: 8 hold two misses in a row.
    near(streak_by_chance(0.5, 2, 4), 0.5);
    // Out after exactly 4 when 2, 3 or 4 of them missed: 6 + 4 + 1 of 16.
    near(rate_by_chance(&ValidationParams::default(), 0.5, 4), 11.0 / 16.0);
}
