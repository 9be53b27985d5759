//! No dead parameters: each field that the breaker reads changes an outcome.

use holdfast_types::ValidationParams;

use super::scene::{Scene, values};

fn three(params: ValidationParams) -> Scene {
    Scene::new(params, &[(1, 10), (2, 10), (3, 10)])
}

/// State of executor 1 after `good` answers, some quiet blocks, and `missed` misses.
fn state(params: ValidationParams, good: usize, quiet: i64, missed: usize) -> String {
    let mut s = three(params);
    s.good(1, good);
    s.go(1 + quiet);
    s.bad(1, missed);
    s.next();
    s.letter(1).to_string()
}

fn deadline_of_a_claim(params: ValidationParams) -> String {
    let mut s = three(params);
    s.claimed(1);
    (s.entry(1).due().unwrap() - s.height()).to_string()
}

fn health_after_a_trip(params: ValidationParams) -> String {
    let mut s = three(params);
    s.trip(1);
    format!("{:?}", s.health(1))
}

fn first_cooldown(params: ValidationParams) -> String {
    let mut s = three(params);
    s.go(100);
    s.trip(1);
    s.entry(1).cooldown_blocks.to_string()
}

fn second_cooldown(params: ValidationParams) -> String {
    let mut s = three(params);
    let probe = s.claimed(1);
    s.miss(&probe);
    s.entry(1).cooldown_blocks.to_string()
}

fn cooldown_after_a_restoration(params: ValidationParams) -> String {
    let mut s = three(params);
    let probe = s.claimed(1);
    s.finish(&probe);
    s.next();
    s.trip(1);
    s.entry(1).cooldown_blocks.to_string()
}

type Case =
    (&'static str, fn(ValidationParams) -> String, &'static str, fn(&mut ValidationParams), &'static str);

#[test]
fn every_parameter_the_breaker_reads_changes_an_outcome() {
    let cases: [Case; 13] = [
        ("expiration_blocks", deadline_of_a_claim, "40", |p| p.expiration_blocks = 30, "60"),
        ("health_cb_enabled", |p| state(p, 0, 0, 4), "X", |p| p.health_cb_enabled = false, "H"),
        ("health_cb_shadow", health_after_a_trip, "Out", |p| p.health_cb_shadow = true, "Healthy"),
        (
            "health_cb_miss_threshold_pct",
            |p| state(p, 3, 0, 1),
            "H",
            |p| p.health_cb_miss_threshold_pct = 24,
            "X",
        ),
        ("health_cb_min_samples", |p| state(p, 0, 0, 3), "H", |p| p.health_cb_min_samples = 3, "X"),
        (
            "health_cb_initial_cooldown_blocks",
            first_cooldown,
            "50",
            |p| p.health_cb_initial_cooldown_blocks = 60,
            "60",
        ),
        (
            "health_cb_max_cooldown_blocks",
            second_cooldown,
            "100",
            |p| p.health_cb_max_cooldown_blocks = 80,
            "80",
        ),
        ("health_cb_window_blocks", |p| state(p, 12, 30, 4), "H", |p| p.health_cb_window_blocks = 10, "X"),
        (
            "health_cb_consecutive_misses",
            |p| state(p, 100, 1, 3),
            "H",
            |p| p.health_cb_consecutive_misses = 3,
            "X",
        ),
        (
            "health_cb_probation_blocks",
            cooldown_after_a_restoration,
            "50",
            |p| p.health_cb_probation_blocks = 200,
            "100",
        ),
        (
            "health_cb_max_excluded_weight_pct",
            |p| state(p, 0, 0, 4),
            "X",
            |p| p.health_cb_max_excluded_weight_pct = 33,
            "H",
        ),
        (
            "health_cb_freeze_pct",
            |p| state(p, 0, 0, 4),
            "X",
            |p| (p.health_cb_window_blocks, p.health_cb_freeze_pct) = (200, 33),
            "H",
        ),
        // The document's vector: model m1, address 1, excluded at 100.
        ("health_cb_jitter_pct", first_cooldown, "50", |p| p.health_cb_jitter_pct = 10, "46"),
    ];
    for (field, scenario, before, change, after) in &cases {
        let mut params = ValidationParams::default();
        assert_eq!(scenario(params.clone()), *before, "{field}, default");
        change(&mut params);
        assert_eq!(scenario(params), *after, "{field}, changed");
    }
    // Destructured so that a new field forces a decision here; `_` belong to x/inference.
    let ValidationParams {
        expiration_blocks,
        health_cb_enabled,
        health_cb_shadow,
        health_cb_miss_threshold_pct,
        health_cb_min_samples,
        health_cb_initial_cooldown_blocks,
        health_cb_max_cooldown_blocks,
        health_cb_probe_share_bp: _,
        health_cb_window_blocks,
        health_cb_consecutive_misses,
        health_cb_probation_blocks,
        health_cb_max_excluded_weight_pct,
        health_cb_freeze_pct,
        health_cb_jitter_pct,
        downtime_sprt_enabled: _,
        downtime_good_percentage: _,
        downtime_bad_percentage: _,
        downtime_h_threshold: _,
    } = ValidationParams::default();
    let read = [
        expiration_blocks != 0,
        health_cb_enabled,
        !health_cb_shadow,
        health_cb_miss_threshold_pct != 0,
        health_cb_min_samples != 0,
        health_cb_initial_cooldown_blocks != 0,
        health_cb_max_cooldown_blocks != 0,
        health_cb_window_blocks == 0,
        health_cb_consecutive_misses == 0,
        health_cb_probation_blocks == 0,
        health_cb_max_excluded_weight_pct == 100,
        health_cb_freeze_pct == 0,
        health_cb_jitter_pct == 0,
    ];
    assert_eq!((read.len(), read.iter().all(|on| *on)), (cases.len(), true));
}

#[test]
fn a_refusal_is_reported_at_most_once_in_an_initial_cooldown() {
    let capped = ValidationParams { health_cb_max_excluded_weight_pct: 10, ..ValidationParams::default() };
    let mut s = three(capped);
    let mut reported = Vec::new();
    for _ in 0..120 {
        s.bad(1, 4);
        s.end();
        for event in s.events("EventExclusionRefused") {
            reported.push((s.height(), values(&event, &["missed"])[0].clone()));
        }
        s.next();
    }
    assert_eq!(reported, [(1, "4".into()), (51, "204".into()), (101, "404".into())]);
    assert_eq!(s.entry(1).trip.unwrap().block, 120, "the mark follows every block");
}

#[test]
fn a_window_of_ten_buckets_forgets_a_bucket_at_a_time() {
    let params = ValidationParams { health_cb_window_blocks: 100, ..ValidationParams::default() };
    let mut s = three(params);
    s.go(5);
    s.good(1, 12);
    s.go(99);
    s.bad(1, 3);
    s.next();
    assert_eq!(s.letter(1), 'H', "3 of 15");
    s.bad(1, 1);
    s.next();
    assert_eq!(s.letter(1), 'X', "block 5 lies in bucket 0, gone at 100: 4 of 4");
    assert_eq!(s.entry(1).excluded_at, 100);
}
