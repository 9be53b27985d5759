//! Queries read, and nothing else.

use super::*;
use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
use holdfast_types::QueryError;

/// Five in group `a` of epoch 1, one of them without weight; the second in maintenance, the third inactive.
fn world() -> World {
    let mut w = World::new(100, 20);
    for n in 1..=5 {
        w.join_as(addr(n), &["a"], if n == 4 { 9 } else { 10 * u128::from(n) }, n == 1);
    }
    w.join(addr(6), &["b"], 10);
    w.go(101);
    w.announce(addr(2), 103, 110).unwrap();
    w.announce(addr(2), 120, 130).unwrap();
    w.go(103);
    w.deactivate(addr(3)).unwrap();
    w.leave(addr(6)).unwrap();
    w
}

fn kind<T>(result: Result<T, QueryError>) -> QueryKind {
    result.err().expect("the query was answered").kind
}

fn page(limit: u64, key: Vec<u8>) -> Option<PageRequest> {
    Some(PageRequest { limit, key, ..Default::default() })
}

#[test]
fn each_query_a_thousand_times_leaves_the_state_as_it_was() {
    let w = world();
    let store = w.chain.store.clone();
    let who = w.chain.bech32(&addr(2));
    let k = w.keeper();
    for _ in 0..1_000 {
        let q = w.chain.query();
        query_server::params(q, pb::QueryParamsRequest {}).unwrap();
        query_server::participant(q, pb::QueryParticipantRequest { participant: who.clone() }).unwrap();
        query_server::participants(q, pb::QueryParticipantsRequest::default()).unwrap();
        query_server::models(q, pb::QueryModelsRequest::default()).unwrap();
        let group = pb::QueryEpochGroupRequest { model: "a".into(), pagination: None };
        query_server::epoch_group(&k, q, group).unwrap();
        query_server::maintenance(q, pb::QueryMaintenanceRequest { participant: who.clone() }).unwrap();
    }
    assert!(w.chain.store == store);
}

#[test]
fn params_are_those_in_force() {
    let w = world();
    let params = query_server::params(w.chain.query(), pb::QueryParamsRequest {}).unwrap().params.unwrap();
    assert_eq!(Params::from_pb(&params).unwrap(), small_params());
}

#[test]
fn a_participant_is_shown_with_its_status() {
    use pb::ParticipantStatus as S;
    let mut w = world();
    let show = |w: &World, n: u8| {
        let req = pb::QueryParticipantRequest { participant: w.chain.bech32(&addr(n)) };
        query_server::participant(w.chain.query(), req).unwrap().participant.unwrap()
    };
    let three = show(&w, 3);
    let expected = pb::Participant {
        address: w.chain.bech32(&addr(3)),
        validator_key: register_msg(&w.chain, addr(3)).validator_key,
        models: vec!["a".into()],
        collateral: "30".into(),
        unbonding: "0".into(),
        status: S::Inactive.into(),
        inactive_epoch: 1,
        joined_epoch: 1,
        ..Default::default()
    };
    assert_eq!(three, expected);
    assert_eq!(show(&w, 1).status(), S::Active);
    assert!(show(&w, 1).poc_preserved);
    let six = show(&w, 6);
    assert_eq!((six.status(), six.unbonding.as_str(), six.unbonding_epoch), (S::Left, "10", 2));
    w.go(201);
    assert_eq!(show(&w, 3).status(), S::Active, "the verdict was for epoch 1");
}

#[test]
fn lists_come_in_order_and_in_pages() {
    let w = world();
    let q = w.chain.query();
    let all = query_server::participants(q, pb::QueryParticipantsRequest::default()).unwrap();
    let names: Vec<_> = all.participants.iter().map(|p| p.address.clone()).collect();
    assert_eq!(names, (1..=6).map(|n| w.chain.bech32(&addr(n))).collect::<Vec<_>>());
    assert_eq!(all.pagination.unwrap().total, 6);
    let ids = |r: pb::QueryModelsResponse| r.models.into_iter().map(|m| m.id).collect::<Vec<_>>().concat();
    assert_eq!(ids(query_server::models(q, pb::QueryModelsRequest::default()).unwrap()), "abc");
    let first = query_server::models(q, pb::QueryModelsRequest { pagination: page(2, Vec::new()) }).unwrap();
    let key = first.pagination.clone().unwrap().next_key;
    assert_eq!(ids(first), "ab");
    let rest = query_server::models(q, pb::QueryModelsRequest { pagination: page(2, key) }).unwrap();
    assert!(rest.pagination.clone().unwrap().next_key.is_empty());
    assert_eq!(ids(rest), "c");
}

#[test]
fn a_group_is_paged_over_its_members_only() {
    let w = world();
    let (k, q) = (w.keeper(), w.chain.query());
    let ask = |pagination| {
        let req = pb::QueryEpochGroupRequest { model: "a".into(), pagination };
        query_server::epoch_group(&k, q, req).unwrap()
    };
    let all = ask(None);
    assert_eq!((all.epoch, all.model.as_str(), all.pagination.unwrap().total), (1, "a", 4));
    let member = |n: u8| pb::Member {
        participant: w.chain.bech32(&addr(n)),
        weight: n.into(),
        preserved: n == 1,
        in_maintenance: n == 2,
        active: n != 3,
    };
    assert_eq!(all.members, [1, 2, 3, 5].map(member));
    let (mut key, mut pages) = (Vec::new(), Vec::new());
    loop {
        let reply = ask(page(2, key));
        pages.push(reply.members.iter().map(|m| m.weight).collect::<Vec<_>>());
        key = reply.pagination.unwrap().next_key;
        if key.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [vec![1, 2], vec![3, 5]]);
    let reverse = ask(Some(PageRequest { limit: 2, reverse: true, ..Default::default() }));
    assert_eq!(reverse.members, [5, 3].map(member));
    let skip = ask(Some(PageRequest { limit: 10, offset: 3, count_total: true, ..Default::default() }));
    assert_eq!((skip.members, skip.pagination.unwrap().total), (vec![member(5)], 4));
    let empty = pb::QueryEpochGroupRequest { model: "c".into(), pagination: None };
    assert_eq!(query_server::epoch_group(&k, q, empty).unwrap().members, []);
}

#[test]
fn windows_are_listed_until_they_end() {
    let mut w = world();
    let participant = w.chain.bech32(&addr(2));
    let ask = |w: &World| {
        let req = pb::QueryMaintenanceRequest { participant: participant.clone() };
        query_server::maintenance(w.chain.query(), req).unwrap().windows
    };
    let window = |start_height, end_height| pb::MaintenanceWindow {
        participant: participant.clone(),
        start_height,
        end_height,
        announced_at: 101,
    };
    assert_eq!(ask(&w), [window(103, 110), window(120, 130)]);
    w.go(110);
    assert_eq!(ask(&w), [window(120, 130)]);
    w.go(130);
    assert_eq!(ask(&w), []);
}

#[test]
fn what_is_malformed_and_what_is_absent_have_their_kinds() {
    let w = world();
    let (k, q) = (w.keeper(), w.chain.query());
    let participant =
        |text: String| query_server::participant(q, pb::QueryParticipantRequest { participant: text });
    for bad in ["", "x", "HOLD1", "cosmos10d07y265gmmuvt4z0w9aw880jnsr700j6zn9kn"] {
        let error = participant(bad.into()).unwrap_err();
        assert_eq!(error.kind, QueryKind::InvalidArgument);
        assert!(error.message.starts_with("participant:"), "{error}");
        let req = pb::QueryMaintenanceRequest { participant: bad.into() };
        assert_eq!(kind(query_server::maintenance(q, req)), QueryKind::InvalidArgument);
    }
    assert_eq!(kind(participant(w.chain.bech32(&addr(9)))), QueryKind::NotFound);
    let stranger = pb::QueryMaintenanceRequest { participant: w.chain.bech32(&addr(9)) };
    assert_eq!(query_server::maintenance(q, stranger).unwrap().windows, [], "nobody has no windows");
    let group = |model: &str, pagination| {
        let req = pb::QueryEpochGroupRequest { model: model.into(), pagination };
        query_server::epoch_group(&k, q, req)
    };
    assert_eq!(kind(group("", None)), QueryKind::InvalidArgument);
    assert_eq!(kind(group("z", None)), QueryKind::NotFound);
    let both = Some(PageRequest { key: vec![1], offset: 1, ..Default::default() });
    assert_eq!(kind(group("a", both.clone())), QueryKind::InvalidArgument);
    let long = page(1_001, Vec::new());
    assert_eq!(kind(group("a", long.clone())), QueryKind::InvalidArgument);
    let req = pb::QueryParticipantsRequest { pagination: both };
    assert_eq!(kind(query_server::participants(q, req)), QueryKind::InvalidArgument);
    let req = pb::QueryModelsRequest { pagination: long };
    assert_eq!(kind(query_server::models(q, req)), QueryKind::InvalidArgument);
}
