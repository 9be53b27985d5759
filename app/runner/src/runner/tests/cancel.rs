//! Cancellation in every state, and the stop of the whole runner.

use futures_util::future::join;

use super::*;

#[test]
fn cancellation_token_terminates_stream_and_releases_kv() {
    let (world, _) = World::single();
    let outcome = world.run(async |runner| {
        let mut generation = runner.submit(request("cancel")).await.unwrap();
        let outcome = loop {
            match generation.next().await.unwrap() {
                GenerationEvent::Token { index, .. } => {
                    generation.delivered(index + 1);
                    if index == 2 {
                        generation.cancel(Cause::Client);
                    }
                }
                GenerationEvent::Wait => {}
                GenerationEvent::Done(outcome) => break *outcome,
            }
        };
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        let cancelled = runner.cancel(outcome.session, Cause::Node).await.unwrap();
        assert_eq!(cancelled.shards, [crate::cancel::ShardOutcome::Released]);
        assert_eq!((cancelled.committed_tokens, cancelled.rows_released), (3, 6));
        assert_eq!(cancelled.first_cause, Some(Cause::Client));
        outcome
    });
    let kind = Some(FailureKind::Cancelled);
    assert_eq!(row(&outcome), (WorkStatus::Cancelled, kind, Some(3), Some(false), KvOutcome::Released, None));
    assert_eq!((outcome.tokens.as_slice(), outcome.records[0].delivered_tokens), (&GOLDEN[..3], 3));
    assert_eq!(outcome.records[0].ended_ms, 30);
}

#[test]
fn a_dropped_generation_is_cancelled_and_a_detached_one_runs_on() {
    let (world, _) = World::single();
    world.run(async |runner| {
        let dropped = runner.submit(request("dropped")).await.unwrap();
        let mut detached = runner.submit(request("detached")).await.unwrap();
        world.sleep(35).await;
        let (a, b) = (dropped.session(), detached.session());
        detached.detach();
        drop((dropped, detached));
        world.sleep(100).await;
        let a = runner.records(a).await.unwrap();
        assert_eq!(
            (a[0].status, a[0].cause, a[0].tokens),
            (WorkStatus::Cancelled, Some(Cause::Client), Some(4))
        );
        assert_eq!(runner.records(b).await.unwrap()[0].status, WorkStatus::Completed);
        assert_eq!(world.keys_left(), 1);
    });
}

#[test]
fn cancel_is_legal_in_every_state() {
    let (world, shard) = World::single();
    world.run(async |runner| {
        let unknown = runner.cancel(request("unknown").session(), Cause::Client).await.unwrap();
        assert_eq!((unknown.first_cause, unknown.shards.len()), (None, 0));
        assert!(runner.records(request("unknown").session()).await.unwrap().is_empty());
        // Prefilling: the chunk ends, and its token is committed, not delivered.
        let mut generation = runner.submit(request("prefill")).await.unwrap();
        world.sleep(5).await;
        let outcome = runner.cancel(generation.session(), Cause::Coordinator).await.unwrap();
        assert_eq!((outcome.first_cause, outcome.settled()), (Some(Cause::Coordinator), false));
        let Some(GenerationEvent::Done(done)) = generation.next().await else { panic!("a token came") };
        assert_eq!(
            (done.status, done.tokens.len(), done.cause),
            (WorkStatus::Cancelled, 0, Some(Cause::Coordinator))
        );
        assert_eq!((done.records[0].tokens, done.records[0].ended_ms), (Some(1), 10));
        // Completed: the record stays, the KV goes.
        let done = runner.run(request("completed")).await.unwrap();
        assert_eq!(world.keys_left(), 1);
        runner.cancel(done.session, Cause::Client).await.unwrap();
        world.sleep(1).await;
        assert_eq!(world.keys_left(), 0);
        assert_eq!(runner.records(done.session).await.unwrap()[0].status, WorkStatus::Completed);
        // Another epoch than the running one is not meant.
        let mut generation = runner.submit(request("epoch")).await.unwrap();
        world.sleep(15).await;
        runner.cancel_epoch(generation.session(), Some(1), Cause::Client).await.unwrap();
        let mut tokens = 0;
        let status = loop {
            match generation.next().await.unwrap() {
                GenerationEvent::Token { .. } => tokens += 1,
                GenerationEvent::Wait => {}
                GenerationEvent::Done(done) => break done.status,
            }
        };
        assert_eq!((tokens, status), (8, WorkStatus::Completed));
        // Between two epochs: the failed one keeps its record and there is no other.
        shard.fault(0, 3, Fault::Die);
        let mut generation = runner.submit(request("between")).await.unwrap();
        world.sleep(100).await;
        runner.cancel(generation.session(), Cause::Client).await.unwrap();
        let done = loop {
            if let GenerationEvent::Done(done) = generation.next().await.unwrap() {
                break done;
            }
        };
        assert_eq!((done.status, done.kind), (WorkStatus::Cancelled, Some(FailureKind::Cancelled)));
        assert_eq!(done.records.len(), 1);
        assert_eq!(done.records[0].status, WorkStatus::Unverified);
    });
}

#[test]
fn a_queued_session_leaves_without_a_shard_being_called() {
    let mut world = World::new();
    world.capacity = 12;
    let shard = world.add("a", (0, 4));
    world.run(async |runner| {
        let first = runner.submit(request("first")).await.unwrap();
        let mut second = runner.submit(request("second")).await.unwrap();
        world.sleep(15).await;
        runner.cancel(second.session(), Cause::Client).await.unwrap();
        let Some(GenerationEvent::Done(done)) = second.next().await else { panic!("not done") };
        let kind = Some(FailureKind::Cancelled);
        assert_eq!(
            row(&done),
            (WorkStatus::Cancelled, kind, None, Some(false), KvOutcome::NeverOpened, None)
        );
        assert_eq!(shard.usage().keys.len(), 1);
        // A queue deadline ends a wait.
        let mut third = request("third");
        third.deadlines.queue_ms = Some(20);
        let done = runner.run(third).await.unwrap();
        assert_eq!((done.kind, done.lowered_by_request), (Some(FailureKind::DeadlineExceeded), true));
        drop(first);
    });
}

#[test]
fn stop_drains_within_its_bound_and_leaves_nothing() {
    let (world, shard) = World::single();
    shard.fault(0, 4, Fault::Block);
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let (handle, driver) =
        HardenedSessionRunner::new(world.config.clone(), clock, world.ledger(), world.pool.clone());
    world.clock.run(async {
        let work = async {
            let quick = handle.submit(GenerateRequest { max_new: 2, ..request("quick") }).await.unwrap();
            let slow = handle.submit(request("slow")).await.unwrap();
            world.sleep(5).await;
            handle.stop(1_000);
            world.sleep(1).await;
            assert_eq!(handle.submit(request("late")).await.unwrap_err(), SubmitError::Stopped);
            let mut statuses = Vec::new();
            for mut generation in [quick, slow] {
                while let Some(event) = generation.next().await {
                    if let GenerationEvent::Done(done) = event {
                        statuses.push((done.status, done.cause));
                    }
                }
            }
            statuses
        };
        let (ended, statuses) = join(driver, work).await;
        ended.unwrap();
        assert_eq!(statuses, [(WorkStatus::Completed, None), (WorkStatus::Cancelled, Some(Cause::Node))]);
    });
    assert_eq!(world.keys_left(), 0);
    world.clock.run(async { assert_eq!(handle.work().await, Err(Stopped)) });
}
