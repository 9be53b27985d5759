//! Requests: served, moved, cancelled, refused.

use holdfast_escrow::session::InferenceStatus;

use super::host::Serves;
use super::world::{World, terms};
use crate::core::{ClientEvent, Event, GatewayConfig, RequestError, StartKind, UserRequest};

fn failed(world: &World, id: u64) -> Option<RequestError> {
    match world.clients.get(&id).and_then(|events| events.last()) {
        Some(ClientEvent::Failed(error)) => Some(error.clone()),
        _ => None,
    }
}

#[test]
fn a_request_is_dispatched_streamed_and_its_finish_is_published_without_traffic() {
    let mut world = World::new(4);
    world.run(100);
    let id = world.ask();
    world.run(50);
    let events = &world.clients[&id];
    assert_eq!(events[0], ClientEvent::Dispatched { nonce: 1, executor: world.names[1], slot: 1 },);
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Delta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(text, "hello");
    assert_eq!(
        events.last(),
        Some(&ClientEvent::Finished { finish_reason: "stop".into(), prompt_tokens: 3, completion_tokens: 2 })
    );
    // Receipt and finish wait, and are published by one pass a second later.
    assert_eq!(world.core.status().pending, 2);
    world.run(2_000);
    assert_eq!(world.core.status().nonce, 2);
    assert_eq!(world.core.status().pending, 0);
    let record = world.core.state().record(1).unwrap();
    assert_eq!((record.status, record.cost), (InferenceStatus::Finished, 50));
    assert_eq!(world.core.open_starts().count(), 0);
}

#[test]
fn an_answer_that_is_not_the_one_the_host_signed_for_is_no_success() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Garbles;
    let id = world.ask();
    world.run(50);
    // 2 is stream-reset. The client has text already, so that nobody else is asked.
    assert_eq!(failed(&world, id), Some(RequestError::HostFailed { kind: 2 }));
    assert_eq!(world.clients[&id].iter().filter(|e| matches!(e, ClientEvent::Dispatched { .. })).count(), 1);
    // The host did the work, as far as anybody can tell, and is paid for it.
    world.run(2_000);
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Finished);
}

#[test]
fn an_end_that_nobody_signed_before_the_first_token_moves_the_request_to_another_host() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Unsigned;
    let id = world.ask();
    world.run(1_000);
    assert!(world.finished(id));
    assert_eq!(world.clients[&id].iter().filter(|e| matches!(e, ClientEvent::Dispatched { .. })).count(), 2);
}

#[test]
fn every_slot_gets_its_turn_and_each_answers() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..40 {
        let id = world.ask();
        world.run(20);
        assert!(world.finished(id));
    }
    for index in 0..4 {
        assert_eq!(world.outcomes(index)[0], 10);
    }
}

#[test]
fn a_failure_before_the_first_token_moves_to_another_host_and_three_end_the_request() {
    let mut world = World::new(5);
    world.run(100);
    world.host(1).serves = Serves::Fails;
    let id = world.ask();
    world.run(500);
    assert!(world.finished(id));
    let starts = world.clients[&id].iter().filter(|e| matches!(e, ClientEvent::Dispatched { .. })).count();
    assert_eq!(starts, 2);
    for index in 0..5 {
        world.host(index).serves = Serves::Fails;
    }
    let id = world.ask();
    world.run(500);
    assert_eq!(failed(&world, id), Some(RequestError::HostFailed { kind: 10 }));
    let starts: Vec<_> = world.clients[&id]
        .iter()
        .filter_map(|e| match e {
            ClientEvent::Dispatched { executor, .. } => Some(*executor),
            _ => None,
        })
        .collect();
    assert_eq!(starts.len(), 3);
    assert!(starts[0] != starts[1] && starts[1] != starts[2] && starts[0] != starts[2]);
}

#[test]
fn a_client_that_leaves_cancels_at_the_host_blames_nobody_and_the_record_is_released() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    let id = world.ask();
    world.run(50);
    assert_eq!(world.core.status().in_flight, 1);
    world.send(Event::ClientLeft { request_id: id });
    world.run(3_000);
    assert_eq!(world.core.status().in_flight, 0);
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Released);
    assert!(!world.core.status().participants.iter().any(|p| p.throttled));
    assert!(world.calls.iter().any(|(_, call)| *call == "cancel"));
}

#[test]
fn a_stop_text_ends_the_answer_with_the_hosts_signed_counts() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    let id = world.ask();
    world.run(50);
    world.send(Event::Enough { request_id: id });
    world.run(100);
    assert_eq!(
        world.clients[&id].last(),
        Some(&ClientEvent::Finished { finish_reason: "stop".into(), prompt_tokens: 3, completion_tokens: 1 })
    );
}

#[test]
fn a_cancellation_that_we_did_not_ask_for_is_not_taken() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    world.ask();
    world.run(50);
    let terms = world.terms.clone();
    let sig = {
        let host = world.host(1);
        let signed = holdfast_escrow::session::digest::error(&terms.chain_id, 7, 1, 1, 8, 0, 0);
        host.key.sign_recoverable(signed)
    };
    let tx =
        holdfast_escrow::session::Tx::ReportError { id: 1, kind: 8, input_tokens: 0, output_tokens: 0, sig };
    assert!(!world.core.intake(&tx.to_bytes()));
}

#[test]
fn a_forged_word_never_waits_and_an_honest_one_behind_it_is_paid() {
    use holdfast_escrow::session::{Tx, digest};
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    world.ask();
    world.run(50);
    let root = world.core.state().root();
    let signed = digest::finish("holdfast-test-1", 7, 1, 1, 3, 2, &[9; 32]);
    let finish =
        |sig| Tx::FinishInference { id: 1, input_tokens: 3, output_tokens: 2, response_hash: [9; 32], sig };
    let honest = world.host(1).key.sign_recoverable(signed);
    let mut bent = honest;
    bent[7] ^= 1;
    for forged in [world.host(2).key.sign_recoverable(signed), bent, [0; 65]] {
        assert!(!world.core.intake(&finish(forged).to_bytes()));
        assert_eq!((world.core.status().pending, world.core.state().root()), (1, root));
    }
    assert!(world.core.intake(&finish(honest).to_bytes()));
    assert!(!world.core.intake(&finish(honest).to_bytes()), "it waits already");
    // What waits outlives the process, once its step is over, and is judged anew from its bytes.
    world.send(Event::Tick);
    world.restart(false);
    assert_eq!(world.core.status().pending, 2);
    world.run(4_000);
    let record = world.core.state().record(1).unwrap();
    assert_eq!((record.status, record.cost), (InferenceStatus::Finished, 50));
}

#[test]
fn a_deadline_cancels_and_says_so() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    let id = world.ask_with(2_000);
    world.run(4_000);
    assert_eq!(failed(&world, id), Some(RequestError::Deadline));
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Released);
    assert!(!world.core.status().participants.iter().any(|p| p.throttled));
}

#[test]
fn what_is_too_large_too_dear_or_nonsense_is_refused_before_a_nonce_is_spent() {
    let mut world = World::with(terms(4), GatewayConfig { body_bytes: 1_000, ..GatewayConfig::default() });
    world.run(100);
    let ask = |world: &mut World, id, body: Vec<u8>, output_limit| {
        let deadline_ms = world.now_ms + 1_000;
        let label = String::new();
        world.send(Event::Request(UserRequest {
            request_id: id,
            label,
            body,
            input_limit: 1,
            output_limit,
            deadline_ms,
        }));
        failed(world, id)
    };
    assert_eq!(ask(&mut world, 91, vec![1; 1_001], 1), Some(RequestError::TooLarge { limit: 1_000 }));
    let dear = RequestError::TooDear { reserve: 1_000_010, balance: 989_990 };
    assert_eq!(ask(&mut world, 92, vec![1], 100_000), Some(dear));
    assert!(matches!(ask(&mut world, 93, vec![], 1), Some(RequestError::Invalid(_))));
    assert!(matches!(ask(&mut world, 94, vec![1], 0), Some(RequestError::Invalid(_))));
    assert_eq!(world.core.status().nonce, 0);
    assert!(world.core.takes_requests());
}

#[test]
fn a_throttled_host_is_pinged_and_charged_only_after_a_failed_ping_and_comes_back_by_a_served_one() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Throttled;
    world.ask();
    world.run(100);
    assert!(world.core.status().participants.iter().any(|p| p.throttled));
    for _ in 0..12 {
        world.ask();
        world.run(300);
    }
    let counters =
        world.core.status().participants.iter().find(|p| p.address == world.names[1]).unwrap().counters;
    assert!(counters.ghosts >= 1, "{counters:?}");
    assert!(world.core.open_starts().any(|(_, kind)| kind == StartKind::GhostThrottled));
    world.host(1).serves = Serves::Well;
    world.run(6_000);
    let before = world.host(1).infers;
    for _ in 0..8 {
        world.ask();
        world.run(300);
    }
    assert!(world.host(1).infers > before);
    assert!(!world.core.status().participants.iter().any(|p| p.throttled));
}

#[test]
fn requesters_faults_and_our_own_aborts_never_reach_the_limiter() {
    use crate::core::CallError;
    let mut world = World::new(4);
    world.run(100);
    let who = world.names[2];
    for error in [
        CallError::Status { code: 7, retry_after_ms: 0 },
        CallError::Status { code: 16, retry_after_ms: 0 },
        CallError::Aborted,
    ] {
        world.core.blame(&who, &error);
    }
    assert!(!world.core.status().participants.iter().any(|p| p.throttled));
    world.core.blame(&who, &CallError::Transport);
    assert!(world.core.status().participants.iter().any(|p| p.throttled));
}

#[test]
fn nobody_reachable_is_said_at_once_and_the_pool_heals_by_itself() {
    let mut world = World::new(3);
    world.run(100);
    for index in 0..3 {
        world.host(index).serves = Serves::Down;
    }
    for _ in 0..4 {
        let id = world.ask();
        world.run(2_000);
        assert!(failed(&world, id).is_some());
    }
    for index in 0..3 {
        world.host(index).serves = Serves::Well;
    }
    let mut served = false;
    for _ in 0..12 {
        let id = world.ask();
        world.run(2_000);
        served |= world.finished(id);
    }
    assert!(served);
}

#[test]
fn one_request_causes_at_most_two_rounds_of_passes() {
    let mut world = World::new(4);
    world.run(100);
    let all = world.names.clone();
    world.send(Event::Chain(crate::core::ChainNews::Absent(all[..3].to_vec())));
    world.host(3).serves = Serves::Fails;
    let id = world.ask();
    world.run(3_000);
    assert!(failed(&world, id).is_some());
    assert!(world.core.status().nonce <= 10);
    let passes: u64 = world.core.status().participants.iter().map(|p| p.counters.passes).sum();
    assert!(passes <= 8);
}

#[test]
fn a_host_far_behind_is_taught_in_chunks_before_its_request_is_sent() {
    let cfg = GatewayConfig { chunk_diffs: 10, ..GatewayConfig::default() };
    let mut world = World::with(terms(4), cfg);
    world.run(100);
    let away = world.names[1];
    world.send(Event::Chain(crate::core::ChainNews::Absent(vec![away])));
    for _ in 0..60 {
        world.ask();
        world.run(20);
    }
    world.send(Event::Chain(crate::core::ChainNews::Absent(Vec::new())));
    let before = world.host(1).infers;
    for _ in 0..4 {
        let id = world.ask();
        world.run(50);
        assert!(world.finished(id));
    }
    assert_eq!(world.host(1).infers, before + 1);
    assert!(world.calls.iter().filter(|(p, call)| *p == away && *call == "teach").count() >= 6);
}

#[test]
fn a_thousand_deltas_cost_no_look_at_the_other_streams() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    world.ask();
    world.run(50);
    let call_id = *world
        .core
        .calls
        .iter()
        .find(|(_, (_, p))| matches!(p, crate::core::Purpose::Infer { .. }))
        .unwrap()
        .0;
    let delta = holdfast_proto::holdfast::host::v1::Delta { index: 2, text: "x".into(), token_ids: vec![3] };
    let event = holdfast_proto::holdfast::host::v1::infer_response::Event::Delta(delta);
    let now = world.now();
    let effects = world.core.handle(now, Event::StreamItem { call_id, event });
    assert_eq!(effects.len(), 1);
}

#[test]
fn a_receipt_of_a_time_to_come_is_not_taken() {
    use holdfast_escrow::session::{Tx, digest};
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Silent;
    world.ask();
    world.run(20);
    let record = world.core.state().record(1).unwrap().clone();
    let now = world.now().unix_s();
    let key = super::world::key("host-1");
    let taken = [now + 3_600, u64::MAX].map(|confirmed_at| {
        let signed = digest::receipt(&world.terms.chain_id, 7, &record, confirmed_at);
        let sig = key.sign_recoverable(signed);
        let tx = Tx::ConfirmStart { id: 1, confirmed_at, sig };
        let before = world.core.state().clone();
        let taken = world.core.intake(&tx.to_bytes());
        assert_eq!(before, *world.core.state());
        taken
    });
    assert_eq!(taken, [false, false]);
}
