//! Who gets in: refusals, full shards, and KV that is held for nobody.

use super::*;
use crate::scheduler::SchedulerLimits;

#[test]
fn refusals_name_their_reason() {
    let mut world = World::new();
    world.config.session.scheduler = SchedulerLimits { queue_sessions: 2, ..SchedulerLimits::default() };
    world.capacity = 12;
    world.add("a", (0, 4));
    world.run(async |runner| {
        let bad = async |request: GenerateRequest| match runner.submit(request).await.unwrap_err() {
            SubmitError::BadRequest { field, .. } => field,
            other => panic!("{other}"),
        };
        assert_eq!(bad(GenerateRequest { prompt: vec![], ..request("x") }).await, "prompt");
        assert_eq!(bad(GenerateRequest { prompt: vec![256], ..request("x") }).await, "prompt");
        assert_eq!(bad(GenerateRequest { prompt: vec![1; 12], ..request("x") }).await, "prompt");
        assert_eq!(bad(GenerateRequest { max_new: 0, ..request("x") }).await, "max_new");
        assert_eq!(bad(GenerateRequest { max_new: 9, ..request("x") }).await, "max_new");
        assert_eq!(bad(GenerateRequest { stop_tokens: vec![300], ..request("x") }).await, "stop_tokens");
        assert_eq!(bad(request("")).await, "inference_id");
        let mut raised = request("x");
        raised.deadlines.total_ms = Some(300_001);
        assert_eq!(bad(raised).await, "deadlines");
        let running = runner.submit(request("running")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(runner.submit(request("running")).await.unwrap_err().code(), "duplicate-session");
        let _queued =
            (runner.submit(request("1")).await.unwrap(), runner.submit(request("2")).await.unwrap());
        assert_eq!(
            runner.submit(request("3")).await.unwrap_err(),
            SubmitError::QueueFull { retry_after_ms: 1_000 }
        );
        drop(running);
    });
}

#[test]
fn a_full_shard_is_waited_for_and_the_same_epoch_opens_later() {
    let world = World::new();
    let first = world.add("a", (0, 2));
    let second = world.add("b", (2, 4));
    second.open_full.store(3, Ordering::Relaxed);
    let outcome = world.run(async |runner| runner.run(request("full")).await.unwrap());
    assert_eq!((outcome.tokens.as_slice(), row(&outcome).0), (&GOLDEN[..], WorkStatus::Completed));
    assert_eq!(outcome.records[0].key.epoch, 0);
    assert!(outcome.records[0].ended_ms >= 300 + 160, "{:?}", outcome.records);
    drop(first);
    // For as long as the queue's deadline allows.
    let world = World::new();
    world.add("a", (0, 2));
    world.add("b", (2, 4)).open_full.store(u32::MAX, Ordering::Relaxed);
    let outcome = world.run(async |runner| {
        let outcome = runner.run(request("full")).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        outcome
    });
    let kind = Some(FailureKind::DeadlineExceeded);
    assert_eq!((row(&outcome).1, row(&outcome).2, outcome.records[0].ended_ms), (kind, None, 30_000));
}

#[test]
fn held_kv_goes_early_when_somebody_waits_for_room() {
    let mut world = World::new();
    world.capacity = 30;
    world.add("a", (0, 4));
    world.run(async |runner| {
        for n in 0..5 {
            // 12 rows each: two fit.
            runner.run(request(&format!("{n}"))).await.unwrap();
        }
        assert_eq!((world.keys_left(), world.clock.now_ms()), (2, 400));
    });
}

#[test]
fn held_kv_goes_early_when_a_shard_is_full_for_a_reason_of_its_own() {
    let (world, shard) = World::single();
    shard.most_keys.store(4, Ordering::Relaxed);
    world.run(async |runner| {
        for n in 0..20 {
            runner.run(request(&format!("{n}"))).await.unwrap();
        }
        // 80 ms each, and 100 ms for each time that it was full; KV is held for 30 s.
        assert!(world.clock.now_ms() <= 20 * (80 + 110), "{} ms", world.clock.now_ms());
        assert!(world.keys_left() <= 4);
    });
}
