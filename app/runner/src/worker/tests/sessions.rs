//! Steps, stops, epochs and generations, as a coordinator sees them.

use super::*;
use crate::adapter::StopAck;
use crate::backends::reference::oracle::Oracle;
use crate::clock::Clock;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_and_three_workers_give_the_oracles_tokens_and_hold_nothing_after() {
    let expected = Oracle::new(13).generate(&PROMPT, 8);
    assert_eq!(expected, [8, 185, 33, 96, 154, 45, 82, 93]);
    for cuts in [vec![(0, 4)], vec![(0, 2), (2, 4)], vec![(0, 1), (1, 3), (3, 4)]] {
        let mut workers = Vec::new();
        let mut shards = Vec::new();
        for layers in cuts {
            let worker = Worker::start(layers).await;
            shards.push(worker.shard().await);
            workers.push(worker);
        }
        for session in [1, 2] {
            assert_eq!(soon(generate(&shards, key(session, 0), 8)).await, Ok(expected.clone()));
        }
        for (worker, shard) in workers.iter().zip(&shards) {
            worker.holds_nothing().await;
            assert_eq!((shard.usage().keys.len(), shard.dropped_answers()), (0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_says_its_name_with_the_boot_id_and_beats_without_being_asked() {
    let worker = Worker::start((0, 4)).await;
    let clock = Arc::new(SystemClock::new());
    let shard = RemoteShard::connect(config(&worker.authority, 1), clock.clone()).await.unwrap();
    assert_eq!(shard.describe().shard_id, format!("w@{}", &shard.boot_id().to_string()[..8]));
    let connected = shard.last_beat_ms().unwrap();
    let after = |ms: u64| eventually("a beat", move || shard.last_beat_ms().unwrap() > ms);
    after(connected.max(clock.now_ms())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_and_release_are_answered_while_a_step_runs() {
    let worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;

    let asked = Instant::now();
    assert_eq!(shard.stop(key(1, 0), Cause::Client).await, Ok(StopAck::InFlight { step: 0 }));
    assert_eq!(shard.release(key(1, 0), Cause::Client).await, Ok(ReleaseAck::Busy { step: 0 }));
    assert!(asked.elapsed() < Duration::from_millis(500));
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    assert!(matches!(shard.prefill(key(1, 0), at, bundle).await, Err(AdapterError::Conflict(_))));

    worker.host.open_gate();
    // The stop came before the model began, so it does not.
    assert!(matches!(soon(running).await.unwrap(), Err(AdapterError::Conflict(_))));
    assert_eq!(
        shard.release(key(1, 0), Cause::Client).await,
        Ok(ReleaseAck::Released { rows: 0, buffers: 0 })
    );
    assert_eq!(shard.release(key(1, 0), Cause::Client).await, Ok(ReleaseAck::WasAbsent));
    assert_eq!(shard.stop(key(1, 0), Cause::Client).await, Ok(StopAck::Quiescent));
    assert_eq!(shard.query_step(key(1, 0), 0).await, Ok(StepState::Unknown));
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_epoch_is_stale_everywhere_and_a_higher_one_frees_it() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    shard.prefill(key(1, 0), at, bundle.clone()).await.unwrap();
    assert_eq!(shard.open(key(1, 1), plan()).await.unwrap().kv_len, 0);
    let stale = AdapterError::StaleEpoch { have: 1 };
    assert_eq!(shard.prefill(key(1, 0), at, bundle).await, Err(stale.clone()));
    assert_eq!(shard.open(key(1, 0), plan()).await, Err(stale.clone()));
    assert_eq!(shard.query_step(key(1, 0), 0).await, Err(stale));
    assert_eq!(shard.release(key(1, 0), Cause::Node).await, Ok(ReleaseAck::WasAbsent));
    let keys: Vec<KvKey> = worker.host.usage().keys.iter().map(|usage| usage.key).collect();
    assert_eq!(keys, [key(1, 1)]);
    assert_eq!(shard.usage().keys.iter().map(|usage| usage.key).collect::<Vec<_>>(), keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_of_a_higher_generation_takes_the_worker_over() {
    let worker = Worker::gated((0, 4)).await;
    let old = worker.shard().await;
    old.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &old, key(1, 0)).await;
    let new = connect(&worker.authority, 2).await.unwrap();
    let refused = soon(running).await.unwrap().unwrap_err();
    assert!(
        matches!(&refused, AdapterError::Internal(why) if why.contains("stale coordinator")),
        "{refused}"
    );
    assert!(matches!(soon(old.died()).await, AdapterError::Internal(_)));
    assert!(matches!(old.open(key(2, 0), plan()).await, Err(AdapterError::Internal(_))));
    assert!(old.usage().keys.is_empty());
    worker.host.open_gate();
    worker.holds_nothing().await;
    assert!(matches!(connect(&worker.authority, 1).await, Err(ConnectError::StaleCoordinator { have: 2 })));
    assert_eq!(soon(generate(&[new], key(1, 1), 2)).await, Ok(vec![8, 185]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_without_a_coordinator_and_beats_renew_them() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    let short = OpenPlan { lease_ms: 600, ..plan() };
    shard.open(key(1, 0), short).await.unwrap();
    shard.open(key(2, 0), short).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_800) {
        shard.beat(&[key(1, 0)]);
        sleep(Duration::from_millis(100)).await;
    }
    let keys: Vec<KvKey> = worker.host.usage().keys.iter().map(|usage| usage.key).collect();
    assert_eq!(keys, [key(1, 0)]);
    let (at, bundle) = first(&shard.describe(), key(2, 0));
    let late = soon(shard.prefill(key(2, 0), at, bundle)).await;
    // The same for the caller; which one depends on whether its stream has ended too.
    assert!(matches!(late, Err(AdapterError::LeaseExpired | AdapterError::CacheMiss(_))), "{late:?}");
    drop(shard);
    worker.holds_nothing().await;
}
