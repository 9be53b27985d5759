//! The worked numbers of breaker-details 2.1 to 2.3.

use holdfast_testkit::addr;
use holdfast_types::ValidationParams;

use super::scene::{M, Scene, values};
use crate::state::TRIP_RINGS;
use crate::{Bucket, RingBucket, Tally, Window, calc};

// ---- 2.3: cap and freeze, worked ----

#[test]
fn weights_40_30_30_under_a_cap_of_half_lose_the_worst_only() {
    let mut s = Scene::three();
    s = Scene::new(
        ValidationParams { health_cb_max_excluded_weight_pct: 50, ..s.committed },
        &[(1, 30), (2, 40), (3, 30)],
    );
    s.bad(1, 4);
    s.bad(2, 5);
    s.next();
    assert_eq!([1, 2, 3].map(|n| s.letter(n)), ['H', 'X', 'H'], "4000 ≤ 5000, then 7000");
    let events = s.events("EventExclusionRefused");
    let names = ["reason", "rule", "missed", "weight", "out_weight", "eligible_weight", "limit_pct"];
    assert_eq!(values(&events[0], &names), ["cap", "rate", "4", "30", "40", "100", "50"]);
    assert_eq!(
        (s.entry(1).consecutive_misses, s.entry(1).generation),
        (4, 0),
        "only its event and mark are new"
    );
    assert_eq!(s.tally().out_weight, 40);
}

#[test]
fn a_cap_keeps_the_only_member_and_one_of_two_equal_ones() {
    let capped = ValidationParams { health_cb_max_excluded_weight_pct: 50, ..ValidationParams::default() };
    let mut s = Scene::new(capped.clone(), &[(1, 10)]);
    s.bad(1, 4);
    s.next();
    assert_eq!(s.letter(1), 'H');
    let mut s = Scene::new(capped, &[(1, 10), (2, 10)]);
    s.bad(1, 4);
    s.bad(2, 4);
    s.next();
    assert_eq!([1, 2].map(|n| s.letter(n)), ['X', 'H'], "equally bad: by address");
}

#[test]
fn the_worse_share_goes_first_then_the_larger_number_of_misses() {
    let capped = ValidationParams { health_cb_max_excluded_weight_pct: 50, ..ValidationParams::default() };
    let mut s = Scene::new(capped.clone(), &[(1, 10), (2, 10)]);
    s.bad(1, 40);
    s.good(1, 60);
    s.bad(2, 3);
    s.good(2, 1);
    s.next();
    assert_eq!([1, 2].map(|n| s.letter(n)), ['H', 'X'], "75 % before 40 %");
    let mut s = Scene::new(capped, &[(1, 10), (2, 10)]);
    s.bad(1, 4);
    s.bad(2, 5);
    s.next();
    assert_eq!([1, 2].map(|n| s.letter(n)), ['H', 'X'], "5 of 5 before 4 of 4");
}

#[test]
fn leavers_can_push_the_share_above_the_cap_and_nobody_is_released() {
    let capped = ValidationParams { health_cb_max_excluded_weight_pct: 50, ..ValidationParams::default() };
    let mut s = Scene::new(capped, &[(1, 40), (2, 30), (3, 30)]);
    s.trip(1);
    s.avail(3, |standing| standing.active = false);
    s.next();
    assert_eq!((s.tally().out_weight, s.tally().eligible_weight), (40, 70));
    assert_eq!(s.letter(1), 'X');
    let probe = {
        s.go(s.entry(1).due().unwrap());
        s.start(1)
    };
    s.miss(&probe);
    assert_eq!(s.letter(1), 'X', "a failed probe is never refused");
}

#[test]
fn a_frozen_model_refuses_everybody_also_the_first_and_thaws() {
    let mut s = Scene::new(
        ValidationParams {
            health_cb_freeze_pct: 30,
            health_cb_window_blocks: 200,
            ..ValidationParams::default()
        },
        &[(1, 40), (2, 30), (3, 30)],
    );
    s.bad(1, 4);
    s.next();
    assert_eq!(s.letter(1), 'H', "40 of 100 is above 30");
    let frozen = s.chain.events.iter().find(|e| e.kind.ends_with("EventBreakerFrozen")).unwrap();
    let names = ["frozen", "tripped_weight", "eligible_weight", "freeze_pct"];
    assert_eq!(values(frozen, &names), ["true", "40", "100", "30"]);
    let refused = s.events("EventExclusionRefused");
    assert_eq!(values(&refused[0], &["reason", "limit_pct"]), ["freeze", "30"]);
    s.bad(1, 4);
    s.next();
    let ring = TRIP_RINGS.get(&s.chain.store, &(0, M.into())).unwrap().unwrap();
    assert_eq!(ring.buckets, [RingBucket { index: 0, weight: 40 }], "each participant counts once");
    s.go(200);
    s.good(2, 1);
    s.next();
    assert_eq!(values(&s.events("EventBreakerFrozen")[0], &["frozen", "tripped_weight"]), ["false", "0"]);
    s.bad(2, 4);
    s.next();
    assert_eq!(s.letter(2), 'X', "30 of 100 is not above 30");
}

#[test]
fn trips_of_small_members_inside_one_window_add_up_to_a_freeze() {
    let mut s = Scene::new(
        ValidationParams {
            health_cb_freeze_pct: 30,
            health_cb_window_blocks: 200,
            ..ValidationParams::default()
        },
        &[(1, 20), (2, 20), (3, 60)],
    );
    s.trip(1);
    s.trip_refused(2);
    let refused = s.events("EventExclusionRefused");
    assert_eq!(values(&refused[0], &["reason", "weight", "out_weight"]), ["freeze", "20", "20"]);
    assert_eq!(s.letter(1), 'X', "who is out stays out");
}

#[test]
fn a_streak_ends_with_any_success_and_has_no_window() {
    let mut s =
        Scene::new(ValidationParams { health_cb_consecutive_misses: 5, ..Default::default() }, &[(1, 10)]);
    s.good(1, 100);
    s.bad(1, 4);
    s.next();
    s.bad(1, 4);
    s.good(1, 1);
    s.next();
    assert_eq!(s.entry(1).consecutive_misses, 0);
    s.bad(1, 4);
    s.go(s.height() + 100);
    assert_eq!(s.letter(1), 'H');
    s.bad(1, 1);
    s.next();
    assert_eq!(s.letter(1), 'X');
    assert_eq!(s.events("EventExecutorExcluded")[0].get("rule"), Some("streak"));
}

// ---- 2.1 and 2.2: worked ----

fn window(width: u32, touched_at: i64, buckets: &[(u64, u64, u64)]) -> Window {
    let buckets = buckets.iter().map(|&(index, ok, missed)| Bucket { index, ok, missed }).collect();
    Window { width, touched_at, buckets }
}

#[test]
fn buckets_are_absolute_and_live_for_ten() {
    assert_eq!(calc::width(200), 20);
    assert_eq!([100, 119, 120].map(|h| calc::bucket_index(h, 20)), [5, 5, 6]);
    let live = |h| (0..30).filter(move |i| calc::is_live(*i, h, 20)).take_while(move |i| *i <= h as u64 / 20);
    assert_eq!(live(299).collect::<Vec<_>>(), (5..=14).collect::<Vec<_>>());
    assert_eq!(live(300).collect::<Vec<_>>(), (6..=15).collect::<Vec<_>>());
    assert!(calc::is_live(0, i64::MAX, 0), "width 0 never ages");
    let old = window(20, 125, &[(5, 4, 1), (6, 1, 0)]);
    assert_eq!(calc::totals(&old, 299), (5, 1));
    assert_eq!(calc::totals(&old, 300), (1, 0));
    let tally = Tally { generation: 0, ok: 0, missed: 2 };
    assert_eq!(calc::record(&old, 300, 20, &tally), window(20, 300, &[(6, 1, 0), (15, 0, 2)]));
}

#[test]
fn a_changed_width_moves_buckets_by_their_last_block() {
    let old = window(20, 125, &[(5, 4, 1), (6, 1, 0)]);
    assert_eq!(calc::remap(&old, 40), window(40, 125, &[(2, 4, 1), (3, 1, 0)]));
    assert_eq!(calc::remap(&old, 5), window(5, 125, &[(23, 4, 1), (25, 1, 0)]));
    assert_eq!(calc::remap(&old, 0), window(0, 125, &[(0, 5, 1)]));
    let endless = window(0, 1_000, &[(0, 7, 2)]);
    assert_eq!(calc::remap(&endless, 20), window(20, 1_000, &[(50, 7, 2)]));
}

#[test]
fn the_rate_is_strict_and_the_streak_is_not() {
    let p = ValidationParams::default();
    let rate = |missed, total| calc::met_rule(&p, total - missed, missed, 0).is_some();
    assert_eq!(
        [rate(1, 3), rate(1, 4), rate(2, 4), rate(2, 7), rate(2, 8)],
        [false, false, true, true, false]
    );
    let never = ValidationParams { health_cb_miss_threshold_pct: 100, ..p.clone() };
    assert_eq!(calc::met_rule(&never, 0, u64::MAX, u32::MAX), None, "100 % never trips, streak 0 is off");
    let streak = ValidationParams { health_cb_consecutive_misses: 5, ..never };
    assert_eq!(calc::met_rule(&streak, 1_000, 4, 4), None);
    assert_eq!(calc::met_rule(&streak, 1_000, 5, 5), Some(calc::Rule::Streak));
    let both = ValidationParams { health_cb_consecutive_misses: 4, ..p };
    assert_eq!(calc::met_rule(&both, 0, 4, 4), Some(calc::Rule::Rate), "rate is tested first");
    let tally = |ok, missed| Tally { generation: 0, ok, missed };
    assert_eq!(calc::streak(4, &tally(1, 9)), 0, "any success in the block resets");
    assert_eq!(calc::streak(4, &tally(0, 9)), 13);
}

#[test]
fn cooldowns_are_the_documents_vectors() {
    let p = ValidationParams::default();
    let plain = [0, 1, 2, 3, 4, 63, u32::MAX].map(|level| calc::cooldown(&p, level, M, &addr(1), 100));
    assert_eq!(plain, [50, 100, 200, 400, 500, 500, 500]);
    assert_eq!(calc::jitter(M, &addr(1), 100), 13_456_062_741_906_458_932);
    assert_eq!(calc::jitter(M, &addr(1), 1_000), 5_723_459_846_470_602_710);
    let p = ValidationParams { health_cb_jitter_pct: 10, ..p };
    let cooldown = |at, level| calc::cooldown(&p, level, M, &addr(1), at);
    assert_eq!(
        [cooldown(100, 0), cooldown(100, 1), cooldown(1_000, 3), cooldown(1_000, 4)],
        [46, 95, 382, 492]
    );
    assert_eq!(calc::cooldown(&p, 0, M, &addr(2), 100), 49);
}

#[test]
fn the_level_of_a_trip_follows_probation() {
    let off = ValidationParams::default();
    assert_eq!(calc::level_at_trip(&off, 101, 100, 3), 0);
    let on = ValidationParams { health_cb_probation_blocks: 200, ..off };
    assert_eq!(calc::level_at_trip(&on, 299, 100, 3), 4);
    assert_eq!(calc::level_at_trip(&on, 300, 100, 3), 0, "probation served");
    assert_eq!(calc::level_at_trip(&on, 10, 0, 3), 0, "never restored");
    assert_eq!(calc::level_at_trip(&on, 101, 100, 63), 63);
}
