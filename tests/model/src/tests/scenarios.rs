//! Small scenarios: the states of a pair, and the limits on how many are out.

use std::collections::BTreeMap;

use super::scene::{Scene, names};
use super::{M, addr};
use crate::draw::Lane;
use crate::entry::{Claim, Entry, Trip, Window};
use crate::params::Params;
use crate::world::*;

#[test]
fn a_node_goes_around_the_whole_cycle() {
    let mut s = Scene::new(Params::defaults(), &[10, 10, 10]);
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventExecutorExcluded"]);
    let expected = [
        ("epoch", "0"),
        ("model", "m1"),
        ("participant", "0101010101010101010101010101010101010101"),
        ("generation", "1"),
        ("rule", "rate"),
        ("ok", "0"),
        ("missed", "4"),
        ("window_blocks", "0"),
        ("consecutive_misses", "4"),
        ("level", "0"),
        ("cooldown_blocks", "50"),
        ("due_block", "51"),
        ("shadow", "false"),
    ];
    assert_eq!(events[0].attributes, expected.map(|(k, v)| (k, v.to_string())));
    assert_eq!(s.column(1), 'X');
    assert_eq!(s.start(1), Err(10));
    s.step_to(50);
    assert_eq!(s.column(1), 'X');
    s.step();
    assert_eq!((s.column(1), s.entry(1).ready_since, s.entry(1).generation), ('R', 51, 1));
    let id = s.start(1).unwrap();
    assert_eq!(s.entry(1).probe, Some(Claim { inference_id: id.clone(), deadline_block: 91 }));
    assert_eq!(s.start(1), Err(11));
    s.world.miss(&id);
    let events = s.step();
    assert_eq!(names(&events), ["EventProbeOpened", "EventProbeClaimed", "EventExecutorExcluded"]);
    assert_eq!(events[2].get("rule"), Some("probe"));
    assert_eq!((s.entry(1).backoff_level, s.entry(1).cooldown_blocks, s.entry(1).generation), (1, 100, 2));
    s.step_to(151);
    let id = s.start(1).unwrap();
    s.world.finish(&id);
    let e = s.entry(1);
    assert_eq!((e.column(), e.generation, e.restored_at, e.probe_attempts), ('H', 3, 151, 0));
    assert_eq!(e.window, Window::default());
    let events = s.step();
    assert_eq!(events.last().unwrap().get("attempts"), Some("2"));
}

#[test]
fn misses_given_before_an_exclusion_neither_fail_a_probe_nor_a_recovered_node() {
    let mut s = Scene::new(Params { health_cb_initial_cooldown_blocks: 1, ..Params::defaults() }, &[10, 10]);
    let old: Vec<String> = (0..8).map(|_| s.start(1).unwrap()).collect();
    s.miss(1, 4);
    s.step();
    assert_eq!(s.column(1), 'R');
    let probe = s.start(1).unwrap();
    s.world.miss(&old[0]);
    s.world.finish(&old[1]);
    assert_eq!(s.column(1), 'C');
    s.world.finish(&probe);
    for id in &old[2..] {
        s.world.miss(id);
    }
    s.step();
    assert_eq!((s.column(1), s.entry(1).generation), ('H', 2));
    assert_eq!(s.entry(1).window, Window::default());
}

#[test]
fn a_released_probe_goes_to_the_back_of_the_lane_and_a_forgotten_one_is_freed_at_its_deadline() {
    let params = Params { health_cb_initial_cooldown_blocks: 1, expiration_blocks: 3, ..Params::defaults() };
    let mut s = Scene::new(params, &[10, 10]);
    s.miss(1, 4);
    s.step();
    let id = s.start(1).unwrap();
    s.step();
    s.world.release(&id);
    assert_eq!((s.column(1), s.entry(1).ready_since, s.entry(1).backoff_level), ('R', 3, 0));
    let id = s.start(1).unwrap();
    let events = s.step_to(9);
    assert_eq!((s.column(1), s.entry(1).ready_since), ('R', 9));
    assert!(events.is_empty());
    s.world.miss(&id);
    let events = s.step();
    assert_eq!((events[0].get("cause"), events.len()), (Some("deadline"), 1));
    assert_eq!((s.column(1), s.entry(1).probe_attempts), ('R', 2));
}

#[test]
fn the_cap_lets_forty_out_and_refuses_the_next_thirty() {
    let params = Params { health_cb_max_excluded_weight_pct: 50, ..Params::defaults() };
    let mut s = Scene::new(params, &[40, 30, 30]);
    s.miss(1, 5);
    s.miss(2, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventExecutorExcluded", "EventExclusionRefused"]);
    let refused = &events[1];
    assert_eq!(
        ["reason", "rule", "weight", "out_weight", "eligible_weight", "limit_pct"]
            .map(|k| refused.get(k).unwrap()),
        ["cap", "rate", "30", "40", "100", "50"]
    );
    assert_eq!(
        (s.column(2), s.entry(2).refused_at, s.entry(2).trip.clone()),
        ('H', 1, Some(Trip { block: 1, weight: 30 }))
    );
    s.miss(2, 1);
    assert!(s.step().is_empty());
    s.step_to(51);
    s.miss(2, 1);
    assert!(names(&s.step()).contains(&"EventExclusionRefused"));
}

#[test]
fn one_member_is_refused_and_of_two_equal_ones_one_goes() {
    let params = Params { health_cb_max_excluded_weight_pct: 50, ..Params::defaults() };
    let mut s = Scene::new(params.clone(), &[7]);
    s.miss(1, 4);
    assert_eq!(names(&s.step()), ["EventExclusionRefused"]);
    let mut s = Scene::new(params, &[7, 7]);
    s.miss(2, 4);
    s.miss(1, 4);
    assert_eq!(names(&s.step()), ["EventExecutorExcluded", "EventExclusionRefused"]);
    assert_eq!((s.column(1), s.column(2)), ('X', 'H'));
}

#[test]
fn a_mass_failure_freezes_the_first_too_and_thaws_with_age() {
    let params = Params { health_cb_freeze_pct: 30, health_cb_window_blocks: 10, ..Params::defaults() };
    let mut s = Scene::new(params, &[40, 30, 30]);
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventBreakerFrozen", "EventExclusionRefused"]);
    let expected = [
        ("epoch", "0"),
        ("model", "m1"),
        ("frozen", "true"),
        ("tripped_weight", "40"),
        ("eligible_weight", "100"),
        ("freeze_pct", "30"),
    ];
    assert_eq!(events[0].attributes, expected.map(|(k, v)| (k, v.to_string())));
    s.miss(1, 1);
    assert!(s.step().is_empty(), "the same participant counts once");
    assert_eq!(s.world.current_ring(M).unwrap().buckets, BTreeMap::from([(2, 40)]));
    s.step_to(30);
    s.miss(2, 1);
    assert_eq!(names(&s.step()), ["EventBreakerFrozen"]);
}

#[test]
fn a_degraded_model_is_served_without_evidence() {
    let mut s = Scene::new(Params::defaults(), &[10]);
    s.miss(1, 4);
    s.step();
    let call = s.call(1);
    assert!(!s.world.start(&call).unwrap().evidence);
    assert_eq!(s.world.candidates(M).draw([0; 32]), Some((Lane::Fallback, 0)));
}

#[test]
fn a_node_cannot_probe_itself_and_its_own_requests_are_no_evidence() {
    let params = Params { health_cb_initial_cooldown_blocks: 1, ..Params::defaults() };
    let mut s = Scene::new(params, &[10, 10]);
    let mut own = s.call(1);
    own.signer = addr(1);
    assert_eq!(s.world.start(&own), Ok(Stamp { epoch: 0, generation: 0, evidence: false }));
    s.miss(1, 4);
    s.step();
    let mut own = s.call(1);
    own.requester = addr(1);
    assert_eq!(s.world.start(&own), Err(12));
}

#[test]
fn a_finish_before_its_start_counts_or_restores_only_if_it_is_recent() {
    let params = Params { health_cb_initial_cooldown_blocks: 1, ..Params::defaults() };
    let mut s = Scene::new(params, &[10, 10]);
    let mut call = s.call(1);
    call.finished_at = Some(1);
    assert!(s.world.start(&call).unwrap().evidence);
    s.miss(1, 4);
    s.step();
    assert_eq!(s.column(1), 'R');
    let mut stale = s.call(1);
    stale.finished_at = Some(1);
    assert!(!s.world.start(&stale).unwrap().evidence);
    assert_eq!(s.column(1), 'R');
    let mut fresh = s.call(1);
    fresh.finished_at = Some(2);
    assert_eq!(s.world.start(&fresh), Ok(Stamp { epoch: 0, generation: 1, evidence: true }));
    assert_eq!((s.column(1), s.entry(1).generation, s.entry(1).restored_at), ('H', 2, 2));
    assert_eq!(names(&s.step()), ["EventProbeOpened", "EventProbeClaimed", "EventExecutorRestored"]);
}

#[test]
fn escrow_counts_speak_only_for_the_pair_they_were_opened_with() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    let stamp = s.world.stamp(M, &addr(1));
    s.world.escrow_counts(M, &addr(1), stamp, 0, 4);
    s.step();
    assert_eq!(s.column(1), 'X');
    s.world.set_override(M, &addr(1), OverrideTo::Healthy, 3).unwrap();
    s.world.escrow_counts(M, &addr(1), stamp, 0, 4);
    assert!(s.world.tally.is_empty());
}

#[test]
fn shadow_filters_nothing_and_disabled_judges_nothing() {
    let shadow = Params { health_cb_shadow: true, ..Params::defaults() };
    let mut s = Scene::new(shadow, &[10, 10]);
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(events[0].get("shadow"), Some("true"));
    assert_eq!(s.column(1), 'X');
    assert!(s.start(1).is_ok());
    assert!(s.world.candidates(M).rows.iter().all(|row| row.class == 0));
    let off = Params { health_cb_enabled: false, ..Params::defaults() };
    let mut s = Scene::new(off, &[10, 10]);
    s.miss(1, 9);
    assert!(s.step().is_empty());
    assert_eq!(s.entry(1), Entry::default());
}

#[test]
fn in_poc_only_preserved_members_are_candidates_and_count_as_healthy() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.miss(2, 4);
    s.world.end_block();
    s.world.take_events();
    assert_eq!(s.world.healthy(M), 1);
    s.world.begin_block(&BeginBlock { height: 2, poc: true, ..BeginBlock::default() });
    assert_eq!(s.world.healthy(M), 0, "the only healthy member does not serve in PoC");
    assert_eq!(s.world.candidates(M).rows.len(), 1);
    assert!(s.start(2).is_ok(), "so the excluded one is admitted");
    assert_eq!(s.world.tallies(M).healthy_all, 1);
}

#[test]
fn a_cumulative_rate_forgives_a_thousand_good_ones_and_a_streak_does_not() {
    let mut s = Scene::new(Params::recommended(), &[10, 10, 10]);
    for _ in 0..1000 {
        let id = s.start(1).unwrap();
        s.world.finish(&id);
    }
    s.step();
    for _ in 0..4 {
        s.miss(1, 1);
        s.step();
    }
    assert_eq!(s.column(1), 'H');
    s.miss(1, 1);
    let events = s.step();
    assert_eq!(events[0].get("rule"), Some("streak"));
}

#[test]
fn parameters_act_from_the_next_block() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.world.set_params(Params { health_cb_consecutive_misses: 1, ..Params::defaults() });
    s.miss(1, 1);
    s.step();
    assert_eq!(s.column(1), 'H');
    s.miss(1, 1);
    s.step();
    assert_eq!(s.column(1), 'X');
}
