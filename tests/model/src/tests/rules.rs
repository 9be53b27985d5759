//! Windows, rules and cooldowns (breaker-details 2.1 and 2.2), and the presets.

use super::{addr, window};
use crate::calc::*;
use crate::entry::Entry;
use crate::params::Params;

#[test]
fn outcomes_fall_into_absolute_buckets_and_die_by_whole_buckets() {
    assert_eq!([100, 119, 120].map(|h| bucket_of(h, 20)), [5, 5, 6]);
    let alive = |h| (0..30).filter(|i| *i <= bucket_of(h, 20) && live(*i, h, 20)).collect::<Vec<_>>();
    assert_eq!(alive(299), (5..=14).collect::<Vec<_>>());
    assert_eq!(alive(300), (6..=15).collect::<Vec<_>>());
    assert!(live(0, i64::MAX, 0));
}

#[test]
fn a_window_is_rebuilt_from_its_buckets_when_the_width_changes() {
    let stored = window(20, 125, &[(5, 4, 1), (6, 1, 0)]);
    assert_eq!(remap(&stored, 40), window(40, 125, &[(2, 4, 1), (3, 1, 0)]));
    assert_eq!(remap(&stored, 5), window(5, 125, &[(23, 4, 1), (25, 1, 0)]));
    assert_eq!(remap(&stored, 0), window(0, 125, &[(0, 5, 1)]));
    assert_eq!(remap(&window(0, 1000, &[(0, 5, 1)]), 20), window(20, 1000, &[(50, 5, 1)]));
}

#[test]
fn a_success_in_the_block_resets_the_streak_whatever_else_was_in_it() {
    let mut entry = Entry::default();
    touch(&mut entry, 0, 10, 0, 3);
    assert_eq!(entry.consecutive_misses, 3);
    touch(&mut entry, 0, 11, 0, 2);
    assert_eq!(entry.consecutive_misses, 5);
    touch(&mut entry, 0, 12, 1, 4);
    assert_eq!(entry.consecutive_misses, 0);
    assert_eq!(entry.window, window(0, 12, &[(0, 1, 9)]));
}

#[test]
fn dead_buckets_are_dropped_when_an_entry_is_written() {
    let mut entry = Entry { window: window(20, 125, &[(5, 4, 1), (6, 1, 0)]), ..Entry::default() };
    touch(&mut entry, 200, 300, 0, 1);
    assert_eq!(entry.window, window(20, 300, &[(6, 1, 0), (15, 0, 1)]));
}

#[test]
fn the_rate_is_strict_and_needs_its_samples() {
    let params = Params::defaults();
    let met = |missed: u64, total: u64| rate_met(total - missed, missed, &params);
    assert_eq!([met(1, 3), met(1, 4), met(2, 4), met(2, 7), met(2, 8)], [false, false, true, true, false]);
    let never = Params { health_cb_miss_threshold_pct: 100, ..Params::defaults() };
    assert!(!rate_met(0, u64::MAX, &never));
}

#[test]
fn the_rate_goes_before_the_streak_and_a_streak_of_zero_is_off() {
    let params = Params { health_cb_consecutive_misses: 3, ..Params::defaults() };
    assert_eq!(rule_met(0, 4, 4, &params), Some("rate"));
    assert_eq!(rule_met(100, 3, 3, &params), Some("streak"));
    assert_eq!(rule_met(100, 2, 2, &params), None);
    assert_eq!(rule_met(100, 3, 3, &Params::defaults()), None);
}

#[test]
fn cooldowns_double_up_to_the_maximum() {
    let params = Params::defaults();
    let length = |level| cooldown(&params, level, "m1", &addr(1), 100);
    assert_eq!([0, 1, 2, 3, 4].map(length), [50, 100, 200, 400, 500]);
    assert_eq!(length(63), 500);
}

#[test]
fn jitter_shortens_by_the_documents_numbers() {
    let params = Params { health_cb_jitter_pct: 10, ..Params::defaults() };
    assert_eq!(jitter_draw("m1", &addr(1), 100), 13456062741906458932);
    assert_eq!(jitter_draw("m1", &addr(1), 1000), 5723459846470602710);
    let length = |at, level, k| cooldown(&params, level, "m1", &addr(k), at);
    assert_eq!(length(100, 0, 1), 46);
    assert_eq!(length(100, 1, 1), 95);
    assert_eq!(length(1000, 3, 1), 382);
    assert_eq!(length(1000, 4, 1), 492);
    assert_eq!(length(100, 0, 2), 49);
}

#[test]
fn the_level_rises_only_inside_the_probation() {
    let params = Params { health_cb_probation_blocks: 10, ..Params::defaults() };
    let entry = Entry { backoff_level: 2, restored_at: 100, ..Entry::default() };
    assert_eq!(level_at_trip(&entry, 109, &params), 3);
    assert_eq!(level_at_trip(&entry, 110, &params), 0);
    assert_eq!(level_at_trip(&entry, 101, &Params::defaults()), 0);
    let never = Entry { backoff_level: 2, ..Entry::default() };
    assert_eq!(level_at_trip(&never, 5, &params), 0);
    let top = Entry { backoff_level: 63, restored_at: 1, ..Entry::default() };
    assert_eq!(level_at_trip(&top, 2, &params), 63);
    assert_eq!(level_at_failed_probe(&top), 63);
}

#[test]
fn both_presets_are_valid_and_differ_as_documented() {
    assert_eq!(Params::defaults().check(), Ok(()));
    let recommended = Params::recommended();
    assert_eq!(recommended.check(), Ok(()));
    assert_eq!((recommended.health_cb_window_blocks, recommended.health_cb_consecutive_misses), (200, 5));
    assert!(!recommended.downtime_sprt_enabled);
    let bad = Params { health_cb_freeze_pct: 30, ..Params::defaults() };
    assert_eq!(bad.check(), Err("health_cb_freeze_pct"));
}
