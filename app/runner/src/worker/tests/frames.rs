//! The rules of the stream protocol, and peers that break them.

use holdfast_proto::holdfast::runner::v1 as pb;
use holdfast_proto::holdfast::runner::v1::worker_client::WorkerClient;
use pb::run_request::Frame as Ask;
use pb::run_response::Frame as Answer;

use super::raw::{Raw, attach_frame, open_frame, step_frame};
use super::*;
use crate::adapter::KeyUsage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_expects_another_model_or_other_layers_is_told() {
    let worker = Worker::start((0, 2)).await;
    let other = RemoteConfig { model: Some([9; 32]), ..config(&worker.authority, 1) };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    assert!(matches!(
        RemoteShard::connect(other, Arc::clone(&clock)).await,
        Err(ConnectError::OtherModel(_))
    ));
    let mut wrong = config(&worker.authority, 1);
    wrong.address = wrong.address.with_layers(0, 4);
    let refused = RemoteShard::connect(wrong, clock).await;
    assert!(matches!(refused, Err(ConnectError::OtherLayers { have: (0, 2), wanted: (0, 4) })));
    for (generation, digest, reason) in
        [(1, vec![9; 32], pb::Refusal::OtherModel), (1, vec![9; 31], pb::Refusal::Malformed)]
    {
        let refused = Raw::with_hello(&worker, generation, digest).await.err().unwrap();
        assert_eq!(refused.reason(), reason);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_leaves_its_session_as_it_is_and_a_new_one_goes_on() {
    let worker = Worker::start((0, 4)).await;
    let info = worker.host.describe();
    let mut raw = Raw::connect(&worker).await;
    let mut run = raw.open(key(1, 0)).await;
    let (at0, bundle) = first(&info, key(1, 0));
    run.send(Ask::Step(step_frame(at0, true, bundle.clone()))).await;
    let Some(Answer::StepDone(done)) = run.next().await else { panic!("a step") };
    drop(run);
    let held = worker.host.usage().keys;
    assert!(matches!(held[..], [KeyUsage { rows: 4, .. }]), "{held:?}");

    let mut again = raw.run().await;
    again.send(attach_frame(key(1, 0))).await;
    assert!(matches!(again.next().await, Some(Answer::Opened(_))));
    again.send(Ask::Step(step_frame(at0, true, bundle.clone()))).await;
    let Some(Answer::StepDone(recorded)) = again.next().await else { panic!("the recorded step") };
    assert_eq!(recorded.out, done.out);
    // The same step with other content.
    let other = StepRef { step: 0, fingerprint: [9; 32] };
    again.send(Ask::Step(step_frame(other, true, bundle))).await;
    assert!(matches!(again.next().await, Some(Answer::StepFailed(_))));
    again.send(Ask::QueryStep(pb::QueryStep { step: 0 })).await;
    let Some(Answer::StepState(state)) = again.next().await else { panic!("a state") };
    let state = convert::state_from(state.state).unwrap();
    assert!(matches!(state, StepState::Done { fingerprint, .. } if fingerprint == at0.fingerprint));
    // The next step, too.
    let at1 = at(&info, key(1, 0), 1, 4, &[8]);
    again.send(Ask::Step(step_frame(at1, false, Bundle::new(4, Payload::Tokens(vec![8]))))).await;
    let Some(Answer::StepDone(second)) = again.next().await else { panic!("the next step") };
    assert!(matches!(convert::out_from(second.out), Ok(StepOut::Token { token: 185, .. })));
    again.send(Ask::Release(pb::Release { cause: 1 })).await;
    assert!(matches!(again.next().await, Some(Answer::ReleaseAck(_))));
    worker.holds_nothing().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_out_of_order_end_their_own_session_with_a_reason() {
    let worker = Worker::start((0, 4)).await;
    let info = worker.host.describe();
    let mut raw = Raw::connect(&worker).await;
    let mut other = raw.open(key(9, 0)).await;
    let (at, bundle) = first(&info, key(9, 0));

    // As the first frame.
    let stop = || Ask::Stop(pb::Stop { cause: 1 });
    let bad_key = pb::KvKey { session: vec![1; 15], epoch: 0 };
    for (frame, kind) in [
        (stop(), 7),
        (Ask::Step(step_frame(at, true, bundle.clone())), 7),
        (Ask::Open(pb::Open::default()), 7),
        (Ask::Open(pb::Open { key: Some(bad_key), plan: None, attach: false }), 3),
        (Ask::Open(pb::Open { key: Some(convert::key_to(key(1, 0))), plan: None, attach: false }), 7),
        (attach_frame(key(1, 0)), 5),
    ] {
        let mut run = raw.run().await;
        run.send(frame.clone()).await;
        assert_eq!(run.refused().await.code(), kind, "{frame:?}");
    }
    // On an open session.
    for (skipped, frame) in [(0, open_frame(key(1, 0))), (1, stop())] {
        let mut run = raw.open(key(1, 0)).await;
        run.seq += skipped;
        run.send(frame).await;
        assert_eq!(run.refused().await.code(), 7);
        worker.host.release(key(1, 0), Cause::Node).await.unwrap();
    }
    let mut run = raw.open(key(2, 0)).await;
    run.out.send(pb::RunRequest { seq: 2, frame: None }).await.unwrap();
    assert_eq!(run.refused().await.code(), 7);
    // Nothing at all.
    let mut silent = raw.run().await;
    assert_eq!(silent.refused().await.code(), 7);
    // A frame that is too long.
    let mut run = raw.open(key(3, 0)).await;
    let long = Bundle::new(0, Payload::Hidden { rows: 1, cols: 1, data: vec![0; 9 << 20] });
    run.send(Ask::Step(step_frame(at, true, long))).await;
    assert_eq!(run.refused().await.code(), 3);

    // A step that cannot be right is answered, and the session goes on.
    let good = step_frame(at, true, bundle);
    let no_payload = pb::Bundle { payload: None, ..good.bundle.clone().unwrap() };
    for bad in [
        pb::Step { fingerprint: vec![1; 31], ..good.clone() },
        pb::Step { bundle: None, ..good.clone() },
        pb::Step { bundle: Some(no_payload), ..good.clone() },
    ] {
        other.send(Ask::Step(bad)).await;
        let Some(Answer::StepFailed(failed)) = other.next().await else { panic!("a refused step") };
        assert_eq!((failed.failure.unwrap().code, failed.mutated), (3, pb::Mutated::No as i32));
    }
    other.send(Ask::Step(good)).await;
    assert!(matches!(other.next().await, Some(Answer::StepDone(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_step_before_the_answer_is_a_conflict_and_the_first_is_answered() {
    let worker = Worker::gated((0, 4)).await;
    let mut raw = Raw::connect(&worker).await;
    let mut run = raw.open(key(1, 0)).await;
    let (at, bundle) = first(&worker.host.describe(), key(1, 0));
    for _ in 0..2 {
        run.send(Ask::Step(step_frame(at, true, bundle.clone()))).await;
    }
    let Some(Answer::StepFailed(failed)) = run.next().await else { panic!("a conflict") };
    assert_eq!((failed.failure.unwrap().code, failed.mutated), (7, pb::Mutated::No as i32));
    // A new stream takes the key over; the step is still in flight for it.
    let mut newer = raw.run().await;
    newer.send(attach_frame(key(1, 0))).await;
    assert!(matches!(newer.next().await, Some(Answer::Opened(_))));
    assert_eq!(run.refused().await.code(), 2);
    newer.send(Ask::Step(step_frame(at, true, bundle.clone()))).await;
    let Some(Answer::StepFailed(failed)) = newer.next().await else { panic!("a conflict") };
    assert_eq!(failed.failure.unwrap().code, 7);
    worker.host.open_gate();
    let begun = Instant::now();
    loop {
        newer.send(Ask::Step(step_frame(at, true, bundle.clone()))).await;
        match newer.next().await {
            Some(Answer::StepDone(done)) => {
                assert!(matches!(convert::out_from(done.out), Ok(StepOut::Token { token: 8, .. })));
                break;
            }
            Some(Answer::StepFailed(_)) => assert!(begun.elapsed() < SOON),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_accepted_hello_no_key_is_opened() {
    let worker = Worker::start((0, 4)).await;
    let client = WorkerClient::connect(format!("http://{}", worker.authority)).await.unwrap();
    let mut rude = Raw::connect(&worker).await;
    rude.client = client;
    let mut run = rude.run().await;
    run.send(open_frame(key(1, 0))).await;
    assert_eq!(run.refused().await.code(), 7);
    // Nor does a control stream live that breaks the rules.
    let beat = pb::control_request::Frame::Beat(pb::Beat { keys: vec![] });
    rude.control.send(pb::ControlRequest { seq: 5, frame: Some(beat) }).await.unwrap();
    loop {
        match soon(rude.beats.message()).await.unwrap().unwrap().frame.unwrap() {
            pb::control_response::Frame::Beat(_) => {}
            pb::control_response::Frame::Refused(refused) => {
                assert_eq!(refused.reason(), pb::Refusal::Malformed);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    worker.holds_nothing().await;
}
