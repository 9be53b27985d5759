//! What the ledger keeps over a crash, and a ledger that cannot be written.

use futures_util::future::join;

use super::*;

#[test]
fn idempotent_run_replays_tokens_without_advancing_kv() {
    let (world, shard) = World::single();
    world.run(async |runner| {
        let first = runner.run(request("twice")).await.unwrap();
        let (steps, usage) = (shard.steps.load(Ordering::Relaxed), shard.usage());
        let second = runner.run(request("twice")).await.unwrap();
        assert_eq!(second, first);
        assert_eq!((shard.steps.load(Ordering::Relaxed), shard.usage()), (steps, usage));
        assert_eq!(runner.work().await.unwrap().billable_tokens, 8);
        let other = GenerateRequest { prompt: vec![1, 2], ..request("twice") };
        assert_eq!(runner.run(other).await.unwrap_err().code(), "duplicate-session");
    });
    // And after the node was killed.
    world.disk.crash(crate::ledger::Crash::Keep);
    let steps = shard.steps.load(Ordering::Relaxed);
    let again = world.run(async |runner| runner.run(request("twice")).await.unwrap());
    assert_eq!((again.tokens.as_slice(), shard.steps.load(Ordering::Relaxed)), (&GOLDEN[..], steps));
}

#[test]
fn kv_is_given_back_without_waiting_for_the_record_to_be_durable() {
    let (world, _) = World::single();
    world.run(async |runner| {
        let mut generation = runner.submit(request("cancel")).await.unwrap();
        assert!(matches!(generation.next().await, Some(GenerationEvent::Token { index: 0, .. })));
        // In the middle of the next step.
        world.sleep(5).await;
        world.disk.fail_at(world.disk.operations(), std::io::ErrorKind::Other);
        runner.cancel(generation.session(), Cause::Client).await.unwrap();
        assert_eq!(world.keys_left(), 1);
        // The step ends, and with it the runner: the record cannot be written.
        while generation.next().await.is_some() {}
        assert_eq!(world.keys_left(), 0);
    });
}

#[test]
fn a_ledger_that_cannot_be_written_stops_everything() {
    let (world, shard) = World::single();
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let (handle, driver) =
        HardenedSessionRunner::new(world.config.clone(), clock, world.ledger(), world.pool.clone());
    world.disk.fail_at(world.disk.operations() + 6, std::io::ErrorKind::Other);
    let (ended, outcome) = world.clock.run(join(driver, handle.run(request("disk"))));
    assert!(matches!(ended, Err(LedgerError::Io(_))), "{ended:?}");
    assert_eq!(outcome, Err(SubmitError::Stopped));
    assert!(shard.steps.load(Ordering::Relaxed) < 8);
}

#[test]
fn records_are_reported_once_and_survive_a_crash() {
    let (world, _) = World::single();
    let session = world.run(async |runner| {
        let outcome = runner.run(request("report")).await.unwrap();
        let report = Report {
            record: outcome.records[0].clone(),
            inference_id: "report".to_owned(),
            tokens: GOLDEN.to_vec(),
        };
        assert_eq!(runner.unsubmitted().await.unwrap(), [report]);
        outcome.session
    });
    world.disk.crash(crate::ledger::Crash::Lose);
    world.run(async |runner| {
        assert_eq!(runner.unsubmitted().await.unwrap().len(), 1);
        let key = KvKey::new(session, 0);
        runner.mark_submitted(key, "tx 1").await.unwrap();
        runner.mark_submitted(key, "tx 1").await.unwrap();
        assert!(runner.unsubmitted().await.unwrap().is_empty());
        runner.mark_closed(session).await.unwrap();
        assert!(runner.mark_closed(request("none").session()).await.is_err());
    });
}

#[test]
fn after_a_crash_an_open_session_goes_on_in_the_next_epoch() {
    let (world, _) = World::single();
    world.run(async |runner| {
        let generation = runner.submit(request("crash")).await.unwrap();
        world.sleep(35).await;
        // The node is killed here.
        drop(generation);
    });
    world.disk.crash(crate::ledger::Crash::Keep);
    world.run(async |runner| {
        let left = runner.records(request("crash").session()).await.unwrap();
        assert_eq!((left[0].status, left[0].cause), (WorkStatus::Unverified, Some(Cause::Node)));
        let outcome = runner.run(request("crash")).await.unwrap();
        assert_eq!((outcome.tokens.as_slice(), outcome.records[0].key.epoch), (&GOLDEN[..], 1));
    });
}
