use holdfast_types::{Decimal12, ONE};

use super::*;
use crate::sprt::{Verdict, advance, increments, ln, verdict};

const WHOLE: u64 = 1_000_000_000_000;

fn d(text: &str) -> Decimal12 {
    Decimal12::parse(text).unwrap()
}

#[test]
fn logarithms_are_those_of_the_specification() {
    assert_eq!(ln(2, 1), Some(693_147_180_560));
    assert_eq!(ln(3, 2), Some(405_465_108_108));
    assert_eq!(ln(1, WHOLE - 1), Some(-27_631_021_115_928));
    assert_eq!(ln(WHOLE - 1, WHOLE - 2), Some(1));
    assert_eq!(ln(7, 7), Some(0));
}

#[test]
fn a_logarithm_outside_its_range_is_refused() {
    for (n, d) in [(0, 1), (1, 0), (WHOLE + 1, 1), (1, WHOLE + 1)] {
        assert_eq!(ln(n, d), None);
    }
    assert_eq!(ln(WHOLE, 1), Some(27_631_021_115_929), "12 ln 10 = 27.63102111592854…");
}

#[test]
fn a_logarithm_is_near_the_real_one_and_antisymmetric_within_one_unit() {
    // A check by other means: floats, which the module itself may not use.
    for (n, d) in [(1, 3), (999, 1000), (123_456_789, 987_654_321), (WHOLE, 7), (5, WHOLE - 3)] {
        let ours = ln(n, d).unwrap();
        let real = (n as f64 / d as f64).ln() * 1e12;
        assert!((ours as f64 - real).abs() < 16.0, "ln({n}/{d}) {ours} {real}");
        assert!((ours + ln(d, n).unwrap()).abs() <= 1);
    }
}

#[test]
fn increments_at_ten_and_twenty_per_cent() {
    assert_eq!(increments(d("0.10"), d("0.20")), Some((693_147_180_560, -117_783_035_656)));
    assert_eq!(increments(d("0.98"), d("0.99")), Some((10_152_371_464, -693_147_180_560)));
}

#[test]
fn increments_need_rates_in_order_inside_zero_and_one() {
    for (p0, p1) in [("0.2", "0.1"), ("0.1", "0.1"), ("0", "0.1"), ("0.1", "1"), ("-0.1", "0.1")] {
        assert_eq!(increments(d(p0), d(p1)), None, "{p0} {p1}");
    }
}

#[test]
fn verdicts_at_the_defaults_fall_where_the_specification_says() {
    let by = increments(d("0.10"), d("0.20")).unwrap();
    let h = d("4");
    let check = |ok, missed, llr, expected| {
        assert_eq!(advance(0, by, ok, missed), Some(llr));
        assert_eq!(verdict(llr, h), expected, "{ok} ok, {missed} missed");
    };
    check(0, 5, 3_465_735_902_800, Verdict::Undecided);
    check(0, 6, 4_158_883_083_360, Verdict::Fail);
    check(33, 0, -3_886_840_176_648, Verdict::Undecided);
    check(34, 0, -4_004_623_212_304, Verdict::Pass);
    check(50, 14, 3_814_908_745_040, Verdict::Undecided);
    check(50, 15, 4_508_055_925_600, Verdict::Fail);
    check(50, 6, -1_730_268_699_440, Verdict::Undecided);
}

#[test]
fn a_wide_test_needs_9850_misses() {
    let by = increments(d("0.98"), d("0.99")).unwrap();
    let after = |missed| verdict(advance(0, by, 0, missed).unwrap(), d("100"));
    assert_eq!(after(9_849), Verdict::Undecided);
    assert_eq!(after(9_850), Verdict::Fail);
}

#[test]
fn the_ratio_does_not_depend_on_batching_and_never_wraps() {
    let by = increments(d("0.10"), d("0.20")).unwrap();
    let one_by_one =
        (0..56).try_fold(0, |llr, i| advance(llr, by, u64::from(i % 8 != 0), u64::from(i % 8 == 0)));
    assert_eq!(one_by_one, advance(0, by, 49, 7));
    assert_eq!(advance(i128::MAX, by, 0, 1), None);
    assert!(advance(0, by, u64::MAX, u64::MAX).is_some());
    assert_eq!(verdict(4 * ONE, d("4")), Verdict::Fail);
    assert_eq!(verdict(-4 * ONE, d("4")), Verdict::Pass);
}

#[test]
fn six_misses_then_fifty_answers_fail_across_blocks_but_not_in_one() {
    let run = |split: bool| {
        let mut w = World::new();
        for i in 0..56 {
            w.start(&format!("i{i}"), 1).unwrap();
        }
        for i in 0..6 {
            w.report(&format!("i{i}"), 1).unwrap();
        }
        if split {
            w.go(2);
        }
        for i in 6..56 {
            w.finish(&format!("i{i}"), 1).unwrap();
        }
        w.end();
        let state = crate::state::SPRT.load(&w.store, &(0, who(1))).unwrap();
        assert_eq!(state, SprtState { llr: -1_730_268_699_440, absorbed_ok: 50, absorbed_missed: 6 });
        w.near.deactivated.take()
    };
    assert_eq!(run(true), [who(1)]);
    assert_eq!(run(false), []);
}

#[test]
fn the_sixth_miss_deactivates_once_and_the_event_says_why() {
    let mut w = World::new();
    for i in 0..8 {
        w.start(&format!("i{i}"), 1).unwrap();
    }
    for i in 0..5 {
        w.report(&format!("i{i}"), 1).unwrap();
    }
    w.go(2);
    assert_eq!(w.near.deactivated.borrow().len(), 0);
    w.report("i5", 1).unwrap();
    w.kinds();
    w.go(3);
    assert_eq!(w.near.deactivated.borrow().as_slice(), [who(1)]);
    let event = w.events.pop().unwrap();
    assert_eq!(event.kind, "holdfast.inference.v1.EventParticipantDeactivated");
    let names: Vec<_> = event.attributes.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let me = text(1);
    let expected = [
        ("epoch", "0"),
        ("participant", me.as_str()),
        ("llr", "4158883083360"),
        ("h", "4000000000000"),
        ("ok", "0"),
        ("missed", "6"),
    ];
    assert_eq!(names, expected);
    w.report("i6", 1).unwrap();
    w.go(4);
    assert_eq!(w.near.deactivated.borrow().len(), 1, "a late miss does not deactivate again");
    refused(w.start("after", 1), 8);
}

#[test]
fn while_switched_off_counts_are_absorbed_and_the_ratio_rests() {
    let mut w = World::new();
    let mut params = Params::load(&w.store).unwrap();
    params.validation.downtime_sprt_enabled = false;
    crate::state::PARAMS.set(&mut w.store, &params).unwrap();
    w.go(2);
    for i in 0..7 {
        w.start(&format!("i{i}"), 1).unwrap();
        w.report(&format!("i{i}"), 1).unwrap();
    }
    w.go(3);
    let state = |w: &World| crate::state::SPRT.load(&w.store, &(0, who(1))).unwrap();
    assert_eq!(state(&w), SprtState { llr: 0, absorbed_ok: 0, absorbed_missed: 7 });
    params.validation.downtime_sprt_enabled = true;
    crate::state::PARAMS.set(&mut w.store, &params).unwrap();
    w.go(4);
    w.start("x", 1).unwrap();
    w.finish("x", 1).unwrap();
    w.go(5);
    assert_eq!(state(&w), SprtState { llr: -117_783_035_656, absorbed_ok: 1, absorbed_missed: 7 });
    assert!(w.near.deactivated.borrow().is_empty());
}

#[test]
fn the_logarithms_follow_the_parameters_in_begin_block() {
    let mut w = World::new();
    let cached = |w: &World| crate::state::SPRT_INCREMENTS.load(&w.store).unwrap();
    assert_eq!((cached(&w).up, cached(&w).down), (693_147_180_560, -117_783_035_656));
    let mut params = Params::load(&w.store).unwrap();
    params.validation.downtime_good_percentage = d("0.98");
    params.validation.downtime_bad_percentage = d("0.99");
    crate::state::PARAMS.set(&mut w.store, &params).unwrap();
    assert_eq!(cached(&w).up, 693_147_180_560);
    w.go(2);
    assert_eq!((cached(&w).up, cached(&w).down), (10_152_371_464, -693_147_180_560));
}

#[test]
fn counts_that_run_backwards_are_recorded_and_neighbours_still_judged() {
    let mut w = World::new();
    for (n, id) in [(1, "a"), (2, "b")] {
        w.start(id, n).unwrap();
        w.finish(id, n).unwrap();
    }
    let corrupt = SprtState { llr: 0, absorbed_ok: 5, absorbed_missed: 0 };
    crate::state::SPRT.set(&mut w.store, &(0, who(1)), &corrupt).unwrap();
    w.kinds();
    w.end();
    assert_eq!(w.kinds(), ["EventStepDiscarded"]);
    let state = |n| crate::state::SPRT.load(&w.store, &(0, who(n))).unwrap();
    assert_eq!(state(1), corrupt);
    assert_eq!(state(2).absorbed_ok, 1);
    invariants::nothing_is_due(&w.store, 1).unwrap();
}
