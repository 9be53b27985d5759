//! Overrides: who is forced out or in, and until when.

use std::collections::BTreeSet;

use super::scene::{Scene, names};
use super::{M, addr};
use crate::Pair;
use crate::entry::{Entry, Window};
use crate::params::Params;
use crate::world::*;

#[test]
fn forced_out_holds_in_shadow_disabled_and_without_a_healthy_member() {
    for params in [
        Params { health_cb_shadow: true, ..Params::defaults() },
        Params { health_cb_enabled: false, ..Params::defaults() },
        Params::defaults(),
    ] {
        let mut s = Scene::new(params, &[10]);
        s.world.set_override(M, &addr(1), OverrideTo::Excluded, 5).unwrap();
        assert_eq!(s.start(1), Err(13));
        assert!(s.world.candidates(M).rows.is_empty());
        assert_eq!(s.world.tallies(M), Tallies::default());
        let events = s.step();
        assert_eq!(names(&events), ["EventOverrideSet", "EventExecutorExcluded"]);
        s.step_to(5);
        assert_eq!((s.column(1), s.entry(1).ready_since, s.entry(1).generation), ('R', 5, 1));
        let events = s.step();
        assert_eq!(names(&events), ["EventOverrideEnded", "EventProbeOpened"]);
    }
}

#[test]
fn a_forced_healthy_node_is_judged_but_stays() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.miss(1, 4);
    s.step();
    s.world.set_override(M, &addr(1), OverrideTo::Healthy, 10).unwrap();
    s.miss(1, 4);
    let events = s.step();
    assert_eq!(names(&events), ["EventOverrideSet", "EventExecutorRestored", "EventExclusionRefused"]);
    assert_eq!(events[2].get("reason"), Some("forced"));
    s.step_to(10);
    assert_eq!((s.column(1), s.entry(1).generation, s.entry(1).forced.clone()), ('H', 3, None));
}

#[test]
fn an_override_by_message_drops_the_blocks_tally_and_one_by_governance_replaces_the_exclusion() {
    let mut s = Scene::new(Params::defaults(), &[10, 10]);
    s.miss(1, 4);
    s.world.set_override(M, &addr(1), OverrideTo::Healthy, 3).unwrap();
    s.world.judge();
    assert_eq!((s.column(1), s.entry(1).window.clone()), ('H', Window::default()));
    s.step();
    s.miss(2, 4);
    s.world.judge();
    assert_eq!(s.column(2), 'X');
    s.world.set_override(M, &addr(2), OverrideTo::Healthy, 9).unwrap();
    assert_eq!((s.column(2), s.entry(2).generation), ('H', 2));
}

#[test]
fn overrides_are_refused_with_their_codes() {
    let pairs: BTreeSet<Pair> = (0..300u16)
        .map(|k| {
            let mut address = addr(9);
            address[..2].copy_from_slice(&k.to_be_bytes());
            (M.to_string(), address)
        })
        .collect();
    let mut world = World::new(Params::defaults(), "gov", pairs.clone());
    world.begin_block(&BeginBlock { height: 1, epoch: Some(EpochInput::default()), ..BeginBlock::default() });
    let pairs: Vec<Pair> = pairs.into_iter().collect();
    assert_eq!(world.set_override("m9", &pairs[0].1, OverrideTo::Healthy, 5), Err(3));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::Healthy, 1), Err(3));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::Healthy, 1_000_002), Err(3));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::None, 5), Err(5));
    for pair in &pairs[..256] {
        assert_eq!(world.set_override(M, &pair.1, OverrideTo::Excluded, 1_000_001), Ok(()));
    }
    assert_eq!(world.set_override(M, &pairs[256].1, OverrideTo::Excluded, 5), Err(4));
    assert_eq!(world.set_override(M, &pairs[0].1, OverrideTo::Healthy, 5), Ok(()));
    assert_eq!(world.set_override(M, &pairs[1].1, OverrideTo::None, 0), Ok(()));
    assert_eq!(world.set_override(M, &pairs[256].1, OverrideTo::Excluded, 5), Ok(()));
}

#[test]
fn an_epoch_begins_clean_but_with_its_live_overrides() {
    let mut s = Scene::new(Params::defaults(), &[10, 10, 10]);
    let late = s.start(3).unwrap();
    s.miss(1, 4);
    s.world.set_override(M, &addr(2), OverrideTo::Excluded, 4).unwrap();
    s.world.set_override(M, &addr(3), OverrideTo::Healthy, 2).unwrap();
    s.world.end_block();
    s.world.take_events();
    s.begin_epoch(1, &[10, 10, 10]);
    assert_eq!(s.entry(1), Entry::default());
    assert_eq!((s.column(2), s.entry(2).cooldown_blocks, s.entry(2).excluded_at), ('X', 2, 2));
    assert_eq!(s.entry(3), Entry::default());
    assert_eq!(s.world.overrides.len(), 1);
    s.world.miss(&late);
    let events = s.step();
    assert_eq!(names(&events), ["EventBreakerReset", "EventOverrideSet", "EventExecutorExcluded"]);
    assert_eq!(events[0].attributes, [("epoch", "1".to_string()), ("from_epoch", "0".to_string())]);
    assert_eq!(s.entry(3), Entry::default(), "an outcome of the old epoch says nothing");
    assert!(s.world.entries.keys().all(|key| key.0 == 1), "old rows are pruned");
}
