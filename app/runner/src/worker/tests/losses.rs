//! Workers that die, stop, panic or are cut off.

use std::sync::atomic::Ordering;

use super::proxy::Proxy;
use super::*;
use crate::restart::ShardPool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_fails_every_key_at_once_wherever_it_is() {
    let worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    let mut running = Vec::new();
    for session in 1..=3 {
        shard.open(key(session, 0), plan()).await.unwrap();
        running.push(waiting(&worker, &shard, key(session, 0)).await);
    }
    shard.open(key(4, 0), plan()).await.unwrap();
    let killed = Instant::now();
    worker.kill().await;
    for step in running {
        assert!(matches!(soon(step).await.unwrap(), Err(AdapterError::WorkerDeath(_))));
    }
    for session in 4..=5 {
        let (at, bundle) = first(&shard.describe(), key(session, 0));
        assert!(matches!(shard.open(key(session, 0), plan()).await, Err(AdapterError::WorkerDeath(_))));
        assert!(matches!(
            shard.prefill(key(session, 0), at, bundle).await,
            Err(AdapterError::WorkerDeath(_))
        ));
        assert!(matches!(shard.stop(key(session, 0), Cause::Peer).await, Err(AdapterError::WorkerDeath(_))));
        assert!(matches!(
            shard.release(key(session, 0), Cause::Peer).await,
            Err(AdapterError::WorkerDeath(_))
        ));
    }
    assert!(killed.elapsed() < Duration::from_millis(1_500), "{:?}", killed.elapsed());
    assert!(!shard.is_up() && shard.usage().keys.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_resets_streams_and_the_same_process_goes_on() {
    let worker = Worker::gated((0, 4)).await;
    let proxy = Proxy::start(&worker).await;
    let shard = connect(&proxy.authority, 1).await.unwrap();
    shard.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;
    proxy.cut();
    assert!(matches!(soon(running).await.unwrap(), Err(AdapterError::StreamReset(_))));
    worker.host.open_gate();
    assert_eq!(soon(generate(std::slice::from_ref(&shard), key(2, 0), 2)).await, Ok(vec![8, 185]));
    let ack = soon(shard.release(key(1, 0), Cause::Peer)).await.unwrap();
    assert!(matches!(ack, ReleaseAck::Released { .. }), "{ack:?}");
    worker.holds_nothing().await;

    // Another process in its place is not the same worker.
    let other = Worker::start((0, 4)).await;
    *proxy.target.lock().unwrap() = other.authority.clone();
    proxy.cut();
    let died = soon(shard.died()).await;
    assert!(matches!(&died, AdapterError::WorkerDeath(why) if why.contains("another process")), "{died}");
    let next = connect(&proxy.authority, 1).await.unwrap();
    assert_ne!(next.describe().shard_id, shard.describe().shard_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_panics_fails_its_step_and_the_worker_lives() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    worker.host.panics.store(true, Ordering::Relaxed);
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    let failed = soon(shard.prefill(key(1, 0), at, bundle.clone())).await;
    assert!(matches!(failed, Err(AdapterError::Internal(_))), "{failed:?}");
    assert!(matches!(soon(shard.prefill(key(1, 0), at, bundle)).await, Ok(StepOut::Token { token: 8, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_told_to_stop_ends_its_step_and_takes_nothing_new() {
    let mut worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    shard.open(key(2, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;
    worker.stop.take().unwrap().send(()).unwrap();
    let begun = Instant::now();
    while !matches!(shard.open(key(3, 0), plan()).await, Err(AdapterError::StreamReset(_))) {
        assert!(begun.elapsed() < SOON);
    }
    let (at, bundle) = first(&shard.describe(), key(2, 0));
    assert!(matches!(shard.prefill(key(2, 0), at, bundle).await, Err(AdapterError::StreamReset(_))));
    assert!(!worker.task.is_finished());
    worker.host.open_gate();
    assert!(matches!(soon(running).await.unwrap(), Ok(StepOut::Token { token: 8, .. })));
    soon(&mut worker.task).await.unwrap();
    assert!(matches!(soon(shard.died()).await, AdapterError::WorkerDeath(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_lists_who_is_connected_and_finds_a_restarted_worker_again() {
    let (a, b) = (Worker::start((0, 2)).await, Worker::start((2, 4)).await);
    let authority = b.authority.clone();
    let addresses = from_urls(&[&a.authority, &authority]).unwrap();
    let clock = Arc::new(SystemClock::new());
    let pool = RemotePool::start(addresses, 1, None, RemoteLimits::default(), clock);
    assert!(pool.ready(SOON).await, "{pool:?}");
    let ids = || pool.live().iter().map(|shard| shard.describe().shard_id).collect::<Vec<_>>();
    let before = ids();
    assert_eq!(pool.live().iter().map(|shard| shard.describe().layers).collect::<Vec<_>>(), [(0, 2), (2, 4)]);
    b.kill().await;
    eventually("the dead one is gone", || ids() == before[..1]).await;
    eventually("its end is told", || pool.members()[1].problem.is_some()).await;
    let listener = TcpListener::bind(&authority).await.unwrap();
    let _b = Worker::on(listener, (2, 4), quick()).await;
    assert!(pool.ready(SOON).await, "{pool:?}");
    assert_eq!(ids()[0], before[0]);
    assert_ne!(ids()[1], before[1]);
    drop(pool);
}
