//! Queries read: what they answer, what they refuse, and that they change nothing.

use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_proto::holdfast::breaker::v1 as pb;
use holdfast_types::{QueryError, QueryKind};

use super::scene::{M, Scene};
use crate::Keeper;
use crate::query_server::{breaker_summary, circuit_breaker, circuit_breakers, overrides};

/// 1 is claimed, 2 excluded, 3 ready, 4 forced out, 5 and 6 healthy; 5 has a stored entry.
fn busy() -> Scene {
    let members: Vec<(u8, u64)> = (1..=6).map(|n| (n, 10)).collect();
    let mut s = Scene::new(holdfast_types::ValidationParams::default(), &members);
    s.trip(3);
    s.trip(1);
    s.go(s.entry(1).due().unwrap());
    s.start(1);
    s.trip(2);
    s.good(5, 1);
    s.force(4, pb::OverrideTo::Excluded, 300);
    s.next();
    s
}

fn one(s: &Scene, participant: &str, model: &str) -> Result<pb::QueryCircuitBreakerResponse, QueryError> {
    let req = pb::QueryCircuitBreakerRequest { participant: participant.into(), model: model.into() };
    circuit_breaker(&Keeper::new(&s.group), s.chain.query(), req)
}

fn list(
    s: &Scene,
    req: pb::QueryCircuitBreakersRequest,
) -> Result<pb::QueryCircuitBreakersResponse, QueryError> {
    circuit_breakers(&Keeper::new(&s.group), s.chain.query(), req)
}

fn summary(s: &Scene, model: &str) -> Result<pb::QueryBreakerSummaryResponse, QueryError> {
    let req = pb::QueryBreakerSummaryRequest { model: model.into() };
    breaker_summary(&Keeper::new(&s.group), s.chain.query(), req)
}

fn name(s: &Scene, n: u8) -> String {
    s.chain.bech32(&holdfast_testkit::addr(n))
}

#[test]
fn one_entry_is_answered_with_its_effective_state_and_an_absent_one_is_healthy() {
    let s = busy();
    let found = one(&s, &name(&s, 2), M).unwrap();
    assert_eq!(found.effective_state(), pb::State::Excluded);
    assert_eq!((found.height, found.epoch), (s.height(), 0));
    assert_eq!(found.entry.unwrap().cooldown_blocks, 50);
    let found = one(&s, &name(&s, 6), M).unwrap();
    assert_eq!(found.effective_state(), pb::State::Healthy);
    let zero = pb::CircuitBreakerEntry { window: Some(Default::default()), ..Default::default() };
    assert_eq!(found.entry.unwrap(), zero);
    let claim = one(&s, &name(&s, 1), M).unwrap().entry.unwrap().probe.unwrap();
    assert_eq!(claim.deadline_block, s.entry(1).due().unwrap());
}

#[test]
fn bad_requests_are_invalid_and_unknown_names_are_not_found() {
    let s = busy();
    let kind = |result: Result<(), QueryError>, field: &str| {
        let error = result.unwrap_err();
        assert!(error.message.starts_with(field), "{error:?}");
        error.kind
    };
    let gone = name(&s, 99);
    let first = name(&s, 1);
    assert_eq!(kind(one(&s, "", M).map(drop), "participant: "), QueryKind::InvalidArgument);
    assert_eq!(kind(one(&s, "nobody", M).map(drop), "participant: "), QueryKind::InvalidArgument);
    assert_eq!(kind(one(&s, &first, "").map(drop), "model: "), QueryKind::InvalidArgument);
    assert_eq!(kind(one(&s, &first, "m9").map(drop), "model: "), QueryKind::NotFound);
    assert_eq!(kind(one(&s, &gone, M).map(drop), "participant: "), QueryKind::NotFound);
    assert_eq!(kind(summary(&s, "").map(drop), "model: "), QueryKind::InvalidArgument);
    assert_eq!(kind(summary(&s, "m9").map(drop), "model: "), QueryKind::NotFound);
    let req = pb::QueryCircuitBreakersRequest::default;
    let bad = pb::QueryCircuitBreakersRequest { model: "m9".into(), ..req() };
    assert_eq!(kind(list(&s, bad).map(drop), "model: "), QueryKind::NotFound);
    let bad = pb::QueryCircuitBreakersRequest { state: Some(3), ..req() };
    assert_eq!(kind(list(&s, bad).map(drop), "state: "), QueryKind::InvalidArgument);
    let bad = pb::QueryCircuitBreakersRequest { participant: "x".into(), ..req() };
    assert_eq!(kind(list(&s, bad).map(drop), "participant: "), QueryKind::InvalidArgument);
    let page = PageRequest { limit: 1_001, ..Default::default() };
    let bad = pb::QueryCircuitBreakersRequest { pagination: Some(page.clone()), ..req() };
    assert_eq!(kind(list(&s, bad).map(drop), "pagination.limit: "), QueryKind::InvalidArgument);
    let bad = pb::QueryOverridesRequest { pagination: Some(page) };
    let result = overrides(s.chain.query(), bad).map(drop);
    assert_eq!(kind(result, "pagination.limit: "), QueryKind::InvalidArgument);
}

#[test]
fn lists_filter_by_model_state_and_participant_and_page_in_key_order() {
    let s = busy();
    let names = |req| -> Vec<String> {
        list(&s, req).unwrap().entries.into_iter().map(|row| row.participant).collect()
    };
    let all = pb::QueryCircuitBreakersRequest::default();
    assert_eq!(names(all.clone()), [1, 2, 3, 4, 5].map(|n| name(&s, n)));
    let of = |state: pb::State| pb::QueryCircuitBreakersRequest { state: Some(state.into()), ..all.clone() };
    assert_eq!(names(of(pb::State::Healthy)), [name(&s, 5)]);
    assert_eq!(names(of(pb::State::Excluded)), [2, 4].map(|n| name(&s, n)));
    assert_eq!(names(of(pb::State::Probe)), [1, 3].map(|n| name(&s, n)));
    let of_3 = pb::QueryCircuitBreakersRequest { participant: name(&s, 3), model: M.into(), ..all.clone() };
    assert_eq!(names(of_3), [name(&s, 3)]);
    let mut key = Vec::new();
    let mut seen = Vec::new();
    loop {
        let pagination = Some(PageRequest { key, limit: 2, ..Default::default() });
        let page = list(&s, pb::QueryCircuitBreakersRequest { pagination, ..all.clone() }).unwrap();
        seen.extend(page.entries.into_iter().map(|row| row.participant));
        key = page.pagination.unwrap().next_key;
        if key.is_empty() {
            break;
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5].map(|n| name(&s, n)));
    let mut s = s;
    s.next_epoch();
    let rows = list(&s, all).unwrap().entries;
    assert_eq!(rows.len(), 1, "rows of the old epoch are invisible, the override was applied again");
}

#[test]
fn a_summary_counts_states_and_says_whether_the_breaker_can_fire() {
    let mut s = busy();
    let found = summary(&s, M).unwrap();
    let counts = (found.healthy, found.excluded, found.probe_ready, found.probe_claimed, found.forced);
    assert_eq!(counts, (2, 2, 1, 1, 1), "4 is forced out, and excluded");
    assert_eq!((found.eligible_weight.as_str(), found.out_weight.as_str()), ("50", "30"));
    assert_eq!((found.excluded_share_bp, found.can_fire, found.can_fire_reason.as_str()), (6_000, true, ""));
    let reason = |s: &Scene| summary(s, M).unwrap().can_fire_reason;
    s.set(|p| p.health_cb_max_excluded_weight_pct = 79);
    assert!(reason(&s).contains("cap"), "30 + 10 of 50 is 80 %");
    s.set(|p| p.health_cb_max_excluded_weight_pct = 80);
    assert_eq!(reason(&s), "");
    s.set(|p| p.health_cb_miss_threshold_pct = 100);
    assert!(reason(&s).contains("never trips"));
    s.set(|p| p.health_cb_consecutive_misses = 5);
    assert_eq!(reason(&s), "");
    s.set(|p| p.health_cb_shadow = true);
    assert!(reason(&s).contains("health_cb_shadow"));
    s.set(|p| p.health_cb_enabled = false);
    assert!(reason(&s).contains("health_cb_enabled"));
    s.set(|p| (p.health_cb_enabled, p.health_cb_shadow) = (true, false));
    for n in [5, 6] {
        s.avail(n, |standing| standing.active = false);
    }
    assert!(reason(&s).contains("no healthy eligible member"));
    let mut s = Scene::new(
        holdfast_types::ValidationParams {
            health_cb_window_blocks: 200,
            health_cb_freeze_pct: 10,
            ..Default::default()
        },
        &[(1, 10), (2, 10)],
    );
    s.trip_refused(1);
    let found = summary(&s, M).unwrap();
    assert!(found.frozen && !found.can_fire && found.can_fire_reason.starts_with("frozen"));
}

#[test]
fn overrides_are_listed_and_no_query_ever_changes_the_store() {
    let s = busy();
    let all = || overrides(s.chain.query(), pb::QueryOverridesRequest::default()).unwrap().overrides;
    let expected = pb::Override { model: M.into(), participant: name(&s, 4), to: 2, until_block: 300 };
    assert_eq!(all(), [expected]);
    let before = s.chain.clone();
    for _ in 0..1_000 {
        for n in [1, 2, 3, 4, 6] {
            one(&s, &name(&s, n), M).unwrap();
        }
        list(&s, pb::QueryCircuitBreakersRequest::default()).unwrap();
        summary(&s, M).unwrap();
        all();
    }
    assert!(s.chain.store == before.store);
    assert_eq!(s.chain.events, before.events);
}
