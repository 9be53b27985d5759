//! Places, buffers and waits that nobody holds for ever.

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_client::WorkerClient;
use pb::run_request::Frame as Ask;
use pb::run_response::Frame as Answer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::raw::{Raw, step_frame};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_half_spoken_and_idle_connections_hold_no_place() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Worker::on(listener, (0, 4), WorkerLimits { connections: 3, ..quick() }).await;
    worker.host.open_gate();
    let mut silent = TcpStream::connect(&worker.authority).await.unwrap();
    let mut half = TcpStream::connect(&worker.authority).await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    // Speaks HTTP/2, and asks for nothing after that.
    let mut idle = WorkerClient::connect(format!("http://{}", worker.authority)).await.unwrap();
    idle.describe(pb::DescribeRequest {}).await.unwrap();
    // All places are taken; each is free again within a second.
    let shard = soon(async {
        loop {
            if let Ok(shard) = connect(&worker.authority, 1).await {
                return shard;
            }
        }
    })
    .await;
    assert_eq!(soon(generate(&[shard], key(1, 0), 2)).await, Ok(vec![8, 185]));
    let mut rest = Vec::new();
    assert_eq!(soon(silent.read_to_end(&mut rest)).await.unwrap(), 0);
    // What ends a broken handshake is the server's to choose: closed, or reset.
    let _ = soon(half.read_to_end(&mut rest)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_its_own_connection() {
    let worker = Worker::start((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096][..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut socket = TcpStream::connect(&worker.authority).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let _ = soon(socket.read_to_end(&mut Vec::new())).await;
    }
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    assert!(matches!(soon(shard.prefill(key(1, 0), at, bundle)).await, Ok(StepOut::Token { token: 8, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_loses_its_session_and_nobody_else_notices() {
    let worker = Worker::start((0, 2)).await;
    let info = worker.host.describe();
    let mut raw = Raw::connect(&worker).await;
    let mut slow = raw.open(key(1, 0)).await;
    let (at, bundle) = first(&info, key(1, 0));
    slow.send(Ask::Step(step_frame(at, true, bundle))).await;
    // 512 bytes each, until every buffer between the two is full.
    let asking = tokio::spawn(async move {
        for _ in 0..100_000 {
            slow.send(Ask::QueryStep(pb::QueryStep { step: 0 })).await;
            if slow.out.is_closed() {
                return slow;
            }
        }
        slow
    });
    let mut other = raw.open(key(2, 0)).await;
    let (at, bundle) = first(&info, key(2, 0));
    other.send(Ask::Step(step_frame(at, true, bundle))).await;
    assert!(matches!(other.next().await, Some(Answer::StepDone(_))));
    let mut slow = soon(asking).await.unwrap();
    assert!(slow.out.is_closed(), "the worker gave up on it");
    while slow.next().await.is_some() {}
    other.send(Ask::QueryStep(pb::QueryStep { step: 0 })).await;
    assert!(matches!(other.next().await, Some(Answer::StepState(_))));
    assert_eq!(worker.host.usage().keys.len(), 2, "its KV waits for release or the end of its lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_past_its_deadline_is_a_reset_of_that_key_alone() {
    let worker = Worker::gated((0, 4)).await;
    let mut config = config(&worker.authority, 1);
    config.limits.step = Duration::from_millis(200);
    let shard = RemoteShard::connect(config, Arc::new(SystemClock::new())).await.unwrap();
    shard.open(key(1, 0), plan()).await.unwrap();
    shard.open(key(2, 0), plan()).await.unwrap();
    let (at, bundle) = first(&shard.describe(), key(1, 0));
    let begun = Instant::now();
    assert!(matches!(soon(shard.prefill(key(1, 0), at, bundle)).await, Err(AdapterError::StreamReset(_))));
    assert!((150..1_500).contains(&begun.elapsed().as_millis()));
    worker.host.open_gate();
    assert_eq!(soon(generate(std::slice::from_ref(&shard), key(3, 0), 2)).await, Ok(vec![8, 185]));
    let (at, bundle) = first(&shard.describe(), key(2, 0));
    assert!(soon(shard.prefill(key(2, 0), at, bundle)).await.is_ok());
    assert!(matches!(shard.release(key(2, 0), Cause::Node).await, Ok(ReleaseAck::Released { rows: 4, .. })));
    eventually("the late step ends", || worker.host.counters().busy.is_empty()).await;
    assert!(matches!(soon(shard.release(key(1, 0), Cause::Node)).await, Ok(ReleaseAck::Released { .. })));
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_waits_for_is_counted_and_dropped() {
    let worker = Worker::gated((0, 4)).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    let running = waiting(&worker, &shard, key(1, 0)).await;
    running.abort();
    let _ = running.await;
    worker.host.open_gate();
    eventually("the late answer", || shard.dropped_answers() == 1).await;
    // The step happened all the same.
    assert!(matches!(shard.query_step(key(1, 0), 0).await, Ok(StepState::Done { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_sessions_as_are_allowed_then_full_and_a_released_one_makes_room() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Worker::on(listener, (0, 4), WorkerLimits { runs: 2, ..quick() }).await;
    let shard = worker.shard().await;
    shard.open(key(1, 0), plan()).await.unwrap();
    shard.open(key(2, 0), plan()).await.unwrap();
    let third = soon(shard.open(key(3, 0), plan())).await;
    assert!(matches!(third, Err(AdapterError::Full(_))), "{third:?}");
    assert_eq!(shard.usage().keys.len(), 2);
    shard.release(key(1, 0), Cause::Node).await.unwrap();
    let begun = Instant::now();
    while shard.open(key(3, 0), plan()).await.is_err() {
        assert!(begun.elapsed() < SOON);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_coordinator_leaves_no_stream_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Worker::on(listener, (0, 4), WorkerLimits { runs: 8, ..quick() }).await;
    let shard = worker.shard().await;
    for session in 1..=8 {
        shard.open(key(session, 0), plan()).await.unwrap();
    }
    let running = waiting(&worker, &shard, key(1, 0)).await;
    let weak = Arc::downgrade(&shard);
    running.abort();
    let _ = running.await;
    drop(shard);
    assert!(weak.upgrade().is_none());
    // Each place for a stream is free again, and the KV waits for the end of its lease.
    let next = worker.shard().await;
    for session in 11..=18 {
        soon(async { while next.open(key(session, 0), plan()).await.is_err() {} }).await;
    }
    assert_eq!(worker.host.usage().keys.len(), 16);
}
