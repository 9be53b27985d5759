//! Sessions that a deadline, a missing sign of life or a panic ends, and those beside them.

use futures_util::future::{join, join_all};

use super::*;

#[test]
fn deadline_terminates_a_blocked_stream_and_releases_kv() {
    let (world, shard) = World::single();
    shard.fault(0, 2, Fault::Block);
    let mut request = request("deadline");
    request.deadlines = DeadlineOverrides { total_ms: Some(25), ..DeadlineOverrides::default() };
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::DeadlineExceeded);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(2), Some(false), KvOutcome::Released, Some(2)));
    assert_eq!(outcome.records[0].ended_ms, 25);
    assert_eq!(outcome.tokens, GOLDEN[..2]);
    // The request itself lowered that limit.
    assert!(outcome.lowered_by_request && !outcome.node_at_fault());
}

#[test]
fn heartbeat_loss_terminates_a_blocked_stream() {
    let (mut world, shard) = World::single();
    world.config.session.deadlines.heartbeat_ms = 15;
    shard.fault(0, 3, Fault::Block);
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("heartbeat")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::HeartbeatLost);
    assert_eq!(row(&outcome), (WorkStatus::Failed, kind, Some(3), Some(false), KvOutcome::Released, Some(3)));
    // Fired at 45, then one second for the step to end.
    assert_eq!(outcome.records[0].ended_ms, 1_045);
    assert_eq!(outcome.records[0].excluded_node.as_deref(), Some("a"));
}

#[test]
fn a_late_answer_of_an_ended_session_is_counted_and_dropped() {
    let (world, shard) = World::single();
    shard.fault(0, 2, Fault::Late(400));
    let mut request = request("late");
    request.deadlines.total_ms = Some(25);
    world.run(async |runner| {
        let outcome = runner.run(request).await.unwrap();
        assert_eq!(outcome.records[0].tokens, Some(2));
        world.sleep(1_000).await;
        assert_eq!(world.keys_left(), 0);
        let telemetry = runner.telemetry().await.unwrap();
        assert_eq!(telemetry.steps, 2);
        let next = runner.run(self::request("next")).await.unwrap();
        assert_eq!(next.tokens, GOLDEN);
    });
}

#[test]
fn a_panicking_adapter_ends_its_session_only() {
    let (world, shard) = World::single();
    shard.fault(0, 3, Fault::Panic);
    world.run(async |runner| {
        let bad = runner.run(request("bad"));
        let good = async {
            world.sleep(45).await;
            runner.run(request("good")).await
        };
        let (bad, good) = join(bad, good).await;
        let kind = Some(FailureKind::Internal);
        let (status, found, tokens, ..) = row(&bad.unwrap());
        assert_eq!((status, found, tokens), (WorkStatus::Failed, kind, Some(3)));
        assert_eq!(good.unwrap().tokens, GOLDEN);
    });
}

#[test]
fn a_blocked_session_keeps_nobody_back() {
    let (world, shard) = World::single();
    world.run(async |runner| {
        let stuck = async {
            shard.fault(0, 1, Fault::Block);
            let mut request = request("stuck");
            request.deadlines.inter_token_ms = Some(5_000);
            runner.run(request).await.unwrap()
        };
        let others = async {
            world.sleep(25).await;
            let outcomes = join_all((0..8).map(|n| runner.run(request(&format!("free {n}"))))).await;
            assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().tokens == GOLDEN));
            world.clock.now_ms()
        };
        let (stuck, others_end) = join(stuck, others).await;
        assert_eq!(others_end, 25 + 80);
        // No sign of life for three seconds comes before the deadline of five.
        assert_eq!(stuck.kind, Some(FailureKind::HeartbeatLost));
    });
}
