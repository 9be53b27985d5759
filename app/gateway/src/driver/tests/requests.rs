//! Requests and their ways to end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_proto::holdfast::runner::v1::FailureKind;

use super::{Scene, ask, submission, until, whole, within};
use crate::openai::{Event, Failure, FinishReason, Sessions, Usage};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_comes_back_with_its_counts_and_the_trace_reaches_the_host() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let (text, end) = ask(&gateway).await;
    assert_eq!(text, "w0 w1 w2 w3 ");
    let usage = Usage { prompt_tokens: 3, completion_tokens: 4 };
    assert_eq!(end, Some(Event::Finished { finish_reason: FinishReason::Stop, usage }));
    // Nonce 1 is slot 1's.
    let trace = scene.hosts[1].manner.traceparent.lock().unwrap().clone().unwrap();
    assert!(trace.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && trace.ends_with("-01"), "{trace}");
    assert!(!trace.contains("00f067aa0ba902b7"), "the span is the gateway's own: {trace}");
    assert!(gateway.ready().is_ready());
    gateway.stop().await;
    assert_eq!(gateway.counts(), super::nothing());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_after_a_token_ends_its_request_and_no_other() {
    let scene = Scene::new().await;
    scene.hosts[1].manner.breaks_after.store(2, Ordering::Relaxed);
    let gateway = scene.open().await;
    let (text, end) = ask(&gateway).await;
    assert_eq!(
        (text.as_str(), end),
        ("w0 w1 ", Some(Event::Failed(Failure::Host(FailureKind::StreamReset))))
    );
    let (text, end) = ask(&gateway).await;
    assert_eq!(text, "w0 w1 w2 w3 ");
    assert!(matches!(end, Some(Event::Finished { .. })));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_is_given_up_and_slows_nobody() {
    let scene = Scene::new().await;
    scene.hosts.iter().for_each(|host| host.manner.pieces.store(4_000, Ordering::Relaxed));
    let gateway = scene.open().await;
    let mut wide = submission();
    wide.output_limit = 5_000;
    let mut slow = gateway.submit(wide.clone());
    assert!(matches!(within(slow.events.recv()).await, Some(Event::Dispatched(_))));
    // Meanwhile another client reads all of its 4,000 pieces.
    let (text, end) = whole(gateway.submit(wide)).await;
    assert_eq!(text.split_whitespace().count(), 4_000);
    assert!(matches!(end, Some(Event::Finished { .. })));
    // The slow one got what fits into its channels, and its host was told to stop.
    let host = &scene.hosts[1].manner;
    until("the slow client's inference is cancelled", || host.cancels.load(Ordering::Relaxed) == 1).await;
    let mut pieces = 0;
    while let Some(event) = within(slow.events.recv()).await {
        assert!(matches!(event, Event::Delta { .. }), "{event:?}");
        pieces += 1;
    }
    assert!(pieces < 2_000, "{pieces}");
    until("its request is over", || gateway.counts().requests == 0).await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_or_has_enough_cancels_at_the_host_by_a_signed_call() {
    let scene = Scene::new().await;
    for host in &scene.hosts {
        host.manner.pieces.store(1_000, Ordering::Relaxed);
        host.manner.pause_ms.store(20, Ordering::Relaxed);
    }
    let gateway = scene.open().await;
    let cancels = || -> usize { scene.hosts.iter().map(|h| h.manner.cancels.load(Ordering::Relaxed)).sum() };
    let mut wide = submission();
    wide.output_limit = 1_000;
    let mut answer = gateway.submit(wide.clone());
    while !matches!(within(answer.events.recv()).await, Some(Event::Delta { .. })) {}
    drop(answer);
    until("the first is cancelled", || cancels() == 1).await;
    let mut answer = gateway.submit(wide);
    while !matches!(within(answer.events.recv()).await, Some(Event::Delta { .. })) {}
    answer.enough.send(()).unwrap();
    until("the second is cancelled", || cancels() == 2).await;
    while within(answer.events.recv()).await.is_some() {}
    until("nothing runs", || gateway.counts().requests == 0).await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_to_an_escrow_that_can_pay_for_it() {
    let scene = Scene::new().await;
    let terms = scene.chain.world().rows[&1].config.clone();
    scene.add(holdfast_escrow::session::FrozenConfig { escrow_id: 2, amount: 120, ..terms.clone() });
    let gateway = scene.open().await;
    gateway.open(2).await.unwrap();
    for _ in 0..3 {
        let mut answer = gateway.submit(submission());
        let Some(Event::Dispatched(dispatch)) = within(answer.events.recv()).await else { panic!("none") };
        assert_eq!(dispatch.escrow, 1);
        assert!(matches!(whole(answer).await.1, Some(Event::Finished { .. })));
    }
    let mut dear = submission();
    dear.output_limit = 2_000_000;
    // What the richer one has: 1,000,000 less the creation's 10 and what three requests took.
    let Some(Event::Failed(Failure::InsufficientBalance { asked, left })) =
        whole(gateway.submit(dear)).await.1
    else {
        panic!("it was not refused as too dear")
    };
    assert!(asked == 2_000_130 && (990_000..999_990).contains(&left), "{asked} {left}");
    let unknown = crate::openai::Submission { model: "m2".into(), ..submission() };
    assert!(matches!(
        whole(gateway.submit(unknown)).await.1,
        Some(Event::Failed(Failure::EscrowExhausted { .. }))
    ));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_has_no_answer_ends_with_the_session_and_leaves_nothing() {
    let scene = Scene::new().await;
    for host in &scene.hosts {
        host.manner.pieces.store(10_000, Ordering::Relaxed);
        host.manner.pause_ms.store(50, Ordering::Relaxed);
    }
    let gateway = scene.open().await;
    let mut wide = submission();
    wide.output_limit = 10_000;
    let answers: Vec<_> = (0..20).map(|_| gateway.submit(wide.clone())).collect();
    until("all run", || gateway.counts().calls >= 20).await;
    within(gateway.stop()).await;
    for answer in answers {
        let (_, end) = whole(answer).await;
        assert!(matches!(end, None | Some(Event::Failed(_) | Event::Dispatched(_))), "{end:?}");
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(gateway.counts(), super::nothing());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_has_enough_gets_all_of_it() {
    let scene = Scene::new().await;
    let gateway = scene.open().await;
    let crate::openai::Answer { mut events, enough } = gateway.submit(submission());
    drop(enough);
    let mut last = None;
    while let Some(event) = within(events.recv()).await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Finished { .. })), "{last:?}");
    gateway.stop().await;
}
