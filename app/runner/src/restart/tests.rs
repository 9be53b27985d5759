use proptest::prelude::*;

use super::*;
use crate::adapter::{KeyUsage, SessionId};

fn info(id: &str, from: u32, to: u32) -> ShardInfo {
    ShardInfo {
        shard_id: id.to_owned(),
        layers: (from, to),
        model_layers: 4,
        model_digest: [1; 32],
        d_model: 32,
        vocab: 256,
        max_positions: 512,
        capacity: 4_096,
        chunk_max: 64,
    }
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn route(infos: &[ShardInfo], wish: &RouteWish) -> Option<Vec<String>> {
    let picked = plan_route(infos, wish).ok()?;
    Some(picked.into_iter().map(|index| infos[index].shard_id.clone()).collect())
}

fn names(ids: &[&str]) -> Option<Vec<String>> {
    Some(ids.iter().map(|id| (*id).to_owned()).collect())
}

#[test]
fn a_route_covers_every_layer_once_with_the_fewest_shards() {
    let any = RouteWish::default();
    let pool = [info("c", 2, 4), info("a", 0, 1), info("b", 1, 3), info("d", 0, 2), info("e", 3, 4)];
    assert_eq!(route(&pool, &any), names(&["d", "c"]));
    assert_eq!(route(&pool[..3], &any), None, "0..1, 1..3 and 2..4 overlap");
    let mut whole = pool.to_vec();
    whole.push(info("z", 0, 4));
    assert_eq!(route(&whole, &any), names(&["z"]));
    assert_eq!(route(&[pool[1].clone(), pool[2].clone(), pool[4].clone()], &any), names(&["a", "b", "e"]));
    let refused = plan_route(&[], &any).unwrap_err();
    assert_eq!(refused, NoRoute { shards: 0, excluded: 0 });
}

#[test]
fn an_excluded_shard_is_never_taken_and_an_avoided_one_only_if_it_must_be() {
    let pool = [info("a", 0, 2), info("b", 2, 4), info("b2", 2, 4), info("w", 0, 4)];
    let excluded = RouteWish { excluded: set(&["w", "b"]), ..RouteWish::default() };
    assert_eq!(route(&pool, &excluded), names(&["a", "b2"]));
    let avoided = RouteWish { avoided: set(&["w", "b"]), ..RouteWish::default() };
    assert_eq!(route(&pool, &avoided), names(&["a", "b2"]), "longer, but without avoided ones");
    let all = RouteWish { avoided: set(&["a", "b", "b2", "w"]), ..RouteWish::default() };
    assert_eq!(route(&pool, &all), names(&["w"]), "one avoided is better than two");
    let none = RouteWish { excluded: set(&["w", "a"]), ..RouteWish::default() };
    assert_eq!(plan_route(&pool, &none), Err(NoRoute { shards: 4, excluded: 2 }));
}

#[test]
fn a_worker_under_a_new_boot_id_is_another_worker() {
    let wish = RouteWish { excluded: set(&["w#1"]), ..RouteWish::default() };
    assert_eq!(route(&[info("w#1", 0, 4)], &wish), None);
    assert_eq!(route(&[info("w#2", 0, 4)], &wish), names(&["w#2"]));
}

#[test]
fn a_route_never_mixes_models_and_keeps_to_the_one_asked_for() {
    let other = |id: &str, from, to| ShardInfo { model_digest: [2; 32], ..info(id, from, to) };
    let mixed = [info("a", 0, 2), other("b", 2, 4)];
    assert_eq!(route(&mixed, &RouteWish::default()), None);
    let both = [other("x", 0, 4), info("a", 0, 2), info("b", 2, 4)];
    assert_eq!(route(&both, &RouteWish::default()), names(&["x"]));
    let wish = RouteWish { model: Some([1; 32]), ..RouteWish::default() };
    assert_eq!(route(&both, &wish), names(&["a", "b"]));
    let narrow = ShardInfo { d_model: 16, ..info("n", 2, 4) };
    assert_eq!(route(&[info("a", 0, 2), narrow], &RouteWish::default()), None, "other shape, same digest");
}

#[test]
fn a_shard_with_impossible_layers_is_passed_over() {
    let pool = [info("empty", 0, 0), info("back", 2, 1), info("long", 0, 5)];
    assert_eq!(route(&pool, &RouteWish::default()), None);
}

/// All ways from `layer` to the end, tried one after the other.
fn all_ways(infos: &[ShardInfo], excluded: &BTreeSet<String>, layer: u32) -> Vec<Vec<usize>> {
    if layer == 4 {
        return vec![vec![]];
    }
    let mut ways = Vec::new();
    for (index, info) in infos.iter().enumerate() {
        if info.layers.0 == layer && info.layers.1 > layer && !excluded.contains(&info.shard_id) {
            for mut rest in all_ways(infos, excluded, info.layers.1) {
                rest.insert(0, index);
                ways.push(rest);
            }
        }
    }
    ways
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_route_is_the_best_of_all_and_does_not_depend_on_the_order(
        shards in proptest::collection::vec((0_u32..4, 1_u32..5, 0_u8..4), 0..10),
        turn in 0_usize..10,
    ) {
        let mut infos: Vec<ShardInfo> = Vec::new();
        let mut wish = RouteWish::default();
        for (index, (from, len, mark)) in shards.iter().enumerate() {
            let id = format!("s{index}");
            match mark {
                0 => drop(wish.excluded.insert(id.clone())),
                1 => drop(wish.avoided.insert(id.clone())),
                _ => {}
            }
            infos.push(info(&id, *from, (*from + *len).min(4)));
        }
        let cost = |way: &[usize]| {
            let ids: Vec<&str> = way.iter().map(|index| infos[*index].shard_id.as_str()).collect();
            (ids.iter().filter(|id| wish.avoided.contains(**id)).count(), ids.len(), ids.join(","))
        };
        let best = all_ways(&infos, &wish.excluded, 0).into_iter().map(|way| cost(&way)).min();
        let planned = plan_route(&infos, &wish).ok().map(|way| cost(&way));
        prop_assert_eq!(&planned, &best);
        let mut turned = infos.clone();
        let by = turn % turned.len().max(1);
        turned.rotate_left(by);
        prop_assert_eq!(route(&turned, &wish), route(&infos, &wish));
    }
}

fn failed(kind: FailureKind) -> FailedAttempt {
    FailedAttempt {
        kind,
        shard_id: Some("w#1".to_owned()),
        delivered: 0,
        reproducible: true,
        total_left_ms: 10_000,
        fence: Fence::Off,
    }
}

const KEY: KvKey = KvKey::new(SessionId([7; 16]), 0);

fn ask(attempt: &FailedAttempt) -> Decision {
    RestartController::new(KEY).may_restart(100, attempt, &mut Inhibitions::new())
}

#[test]
fn only_the_kinds_of_the_table_are_restarted() {
    let restarted: Vec<&str> = FailureKind::ALL
        .into_iter()
        .filter(|kind| matches!(ask(&failed(*kind)), Decision::Restart { epoch: 1, not_before_ms: 100, .. }))
        .map(FailureKind::as_str)
        .collect();
    assert_eq!(restarted, ["worker-death", "stream-reset", "cache-miss"]);
    assert_eq!(ask(&failed(FailureKind::MalformedBundle)), Decision::No { why: NoRestart::Kind });
}

#[test]
fn there_are_two_restarts_the_second_after_half_a_second() {
    let mut controller = RestartController::new(KvKey::new(KEY.session, 4));
    let mut inhibitions = Inhibitions::new();
    let attempt =
        |id: &str| FailedAttempt { shard_id: Some(id.to_owned()), ..failed(FailureKind::WorkerDeath) };
    let first = controller.may_restart(1_000, &attempt("a#1"), &mut inhibitions);
    assert_eq!(first, Decision::Restart { epoch: 5, not_before_ms: 1_000, excluded: set(&["a#1"]) });
    let second = controller.may_restart(2_000, &attempt("b#1"), &mut inhibitions);
    assert_eq!(second, Decision::Restart { epoch: 6, not_before_ms: 2_500, excluded: set(&["a#1", "b#1"]) });
    let third = controller.may_restart(3_000, &attempt("c#1"), &mut inhibitions);
    assert_eq!(third, Decision::No { why: NoRestart::Budget });
    assert_eq!((controller.key().epoch, controller.used()), (6, 2));
    controller.ran_on([1; 32]);
    controller.ran_on([2; 32]);
    let wish = controller.wish(&inhibitions, 6_500);
    assert_eq!(wish.model, Some([1; 32]), "the first epoch's model stays");
    assert_eq!(wish.excluded, set(&["a#1", "b#1", "c#1"]));
    assert_eq!(wish.avoided, set(&["b#1", "c#1"]), "a#1 failed 5 500 ms ago");
}

#[test]
fn no_restart_without_time_or_when_the_client_has_tokens_that_cannot_be_made_again() {
    let base = failed(FailureKind::WorkerDeath);
    let no = |why| Decision::No { why };
    assert_eq!(ask(&FailedAttempt { total_left_ms: 0, ..base.clone() }), no(NoRestart::Time));
    assert!(matches!(ask(&FailedAttempt { total_left_ms: 1, ..base.clone() }), Decision::Restart { .. }));
    let drawn = FailedAttempt { reproducible: false, ..base.clone() };
    assert!(matches!(ask(&drawn), Decision::Restart { .. }), "nothing was delivered");
    assert_eq!(ask(&FailedAttempt { delivered: 1, ..drawn }), no(NoRestart::Sampling));
    assert!(matches!(ask(&FailedAttempt { delivered: 5, ..base.clone() }), Decision::Restart { .. }));

    let mut controller = RestartController::new(KvKey::new(KEY.session, u32::MAX));
    let decision = controller.may_restart(0, &base, &mut Inhibitions::new());
    assert_eq!(decision, no(NoRestart::Epoch));
    let mut controller = RestartController::new(KEY);
    controller.may_restart(0, &base, &mut Inhibitions::new());
    let decision =
        controller.may_restart(0, &FailedAttempt { total_left_ms: 500, ..base }, &mut Inhibitions::new());
    assert_eq!(decision, no(NoRestart::Time), "the second needs 500 ms before it begins");
}

#[test]
fn a_lost_heartbeat_is_restarted_only_behind_a_closed_fence() {
    let attempt = |fence| FailedAttempt { fence, ..failed(FailureKind::HeartbeatLost) };
    assert_eq!(ask(&attempt(Fence::Off)), Decision::No { why: NoRestart::Kind });
    let mut controller = RestartController::new(KEY);
    let mut inhibitions = Inhibitions::new();
    assert_eq!(controller.may_restart(0, &attempt(Fence::Open), &mut inhibitions), Decision::AwaitFence);
    assert_eq!(controller.used(), 0);
    let decision = controller.may_restart(12_000, &attempt(Fence::Closed), &mut inhibitions);
    assert_eq!(decision, Decision::Restart { epoch: 1, not_before_ms: 12_000, excluded: set(&["w#1"]) });
    assert_eq!(inhibitions.avoided(4_999), set(&["w#1"]));
    assert_eq!(inhibitions.avoided(5_000), set(&[]), "asked twice, noted once");
    let stale = FailedAttempt { fence: Fence::Closed, ..failed(FailureKind::StaleEpoch) };
    assert_eq!(ask(&stale), Decision::No { why: NoRestart::Kind }, "a fence helps no other kind");
}

#[test]
fn a_cancel_blames_no_worker() {
    let mut inhibitions = Inhibitions::new();
    let mut controller = RestartController::new(KEY);
    controller.may_restart(0, &failed(FailureKind::Cancelled), &mut inhibitions);
    assert_eq!(inhibitions.avoided(0), set(&[]));
    assert_eq!(controller.wish(&inhibitions, 0), RouteWish::default());
}

#[test]
fn the_list_of_inhibited_workers_is_bounded() {
    let mut inhibitions = Inhibitions::new();
    for n in 0..5_000_u64 {
        inhibitions.note(&format!("w#{n:04}"), n / 10);
    }
    let avoided = inhibitions.avoided(500);
    assert_eq!(avoided.len(), INHIBITED_MAX);
    assert!(avoided.contains("w#4999") && !avoided.contains("w#0000"), "the oldest went first");
    inhibitions.note("w#new", 100_000);
    assert_eq!(inhibitions.until_ms.len(), 1, "what has ended is dropped");
}

fn report(id: &str, kv_len: u32, held: &[(u32, u32)]) -> FreshReport {
    let keys = held
        .iter()
        .map(|(epoch, rows)| KeyUsage {
            key: KvKey::new(KEY.session, *epoch),
            rows: *rows,
            reserved: 12,
            buffers: 0,
            lease_left_ms: 10_000,
        })
        .collect();
    FreshReport { shard_id: id.to_owned(), opened: Some(Opened { kv_len }), usage: Some(Usage { keys }) }
}

#[test]
fn a_fresh_start_has_no_row_and_no_other_epoch_on_any_shard() {
    let key = KvKey::new(KEY.session, 1);
    let good = report("a", 0, &[(1, 0)]);
    assert_eq!(assert_fresh_start(key, std::slice::from_ref(&good)), Ok(()));
    let mut others = good.clone();
    others.usage.as_mut().unwrap().keys.push(KeyUsage {
        key: KvKey::new(SessionId([9; 16]), 0),
        rows: 99,
        reserved: 99,
        buffers: 3,
        lease_left_ms: 1,
    });
    assert_eq!(assert_fresh_start(key, &[good.clone(), others]), Ok(()), "other sessions do not matter");
    let check = |bad: FreshReport| assert_fresh_start(key, &[good.clone(), bad]);
    let shard_id = "b".to_owned();
    assert_eq!(
        check(report("b", 0, &[(0, 5), (1, 0)])),
        Err(NotFresh::OldEpoch { shard_id: shard_id.clone(), epoch: 0 })
    );
    assert_eq!(
        check(report("b", 0, &[(1, 0), (2, 0)])),
        Err(NotFresh::OldEpoch { shard_id: shard_id.clone(), epoch: 2 }),
        "a later epoch is no better"
    );
    let rows = Err(NotFresh::NewRows { shard_id: shard_id.clone(), rows: 4 });
    assert_eq!(check(report("b", 4, &[(1, 0)])), rows);
    assert_eq!(check(report("b", 0, &[(1, 4)])), rows);
    let unknown = Err(NotFresh::Unknown { shard_id });
    assert_eq!(check(FreshReport { opened: None, ..report("b", 0, &[]) }), unknown);
    assert_eq!(check(FreshReport { usage: None, ..report("b", 0, &[]) }), unknown);
    assert_eq!(assert_fresh_start(key, &[]), Err(NotFresh::NoShard));
}

#[test]
fn a_second_run_is_silent_until_it_has_caught_up() {
    let mut check = PrefixCheck::new(vec![8, 185, 33]);
    assert!(!check.caught_up());
    assert_eq!([check.token(8), check.token(185), check.token(33)], [Ok(Emit::Silent); 3]);
    assert!(check.caught_up());
    assert_eq!([check.token(96), check.token(154)], [Ok(Emit::Deliver); 2]);
    assert_eq!(check.end(), Ok(()));
    assert_eq!(PrefixCheck::default().token(8), Ok(Emit::Deliver), "a first run delivers at once");
}

#[test]
fn the_first_different_token_ends_the_stream_and_nothing_is_delivered_after() {
    for at in 0..3 {
        let mut check = PrefixCheck::new(vec![8, 185, 33]);
        for token in [8, 185, 33].into_iter().take(at) {
            assert_eq!(check.token(token), Ok(Emit::Silent));
        }
        let had = [8, 185, 33][at];
        let mismatch = PrefixMismatch { at: at as u32, had, got: Some(7) };
        assert_eq!(check.token(7), Err(mismatch));
        assert_eq!(check.token(7), Err(mismatch), "again and again");
        assert_eq!(check.end(), Err(PrefixMismatch { got: None, ..mismatch }), "nor may it end early");
    }
    assert_eq!(PrefixMismatch::KIND.number(), 9);
}

#[test]
fn a_pool_that_never_changes_gives_the_same_shards() {
    let pool: Vec<Arc<dyn BoundaryAdapter>> = Vec::new();
    assert!(pool.live().is_empty());
}
