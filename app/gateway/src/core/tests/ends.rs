//! Timeouts and the end of the session.

use holdfast_escrow::divergence::DivergenceKeeper;
use holdfast_escrow::session::settle::Mode;
use holdfast_escrow::session::{InferenceStatus, Phase};

use super::host::Serves;
use super::world::{World, terms};
use crate::core::{ChainNews, ClientEvent, Effect, Event, GatewayConfig, RequestError};

#[test]
fn a_start_without_a_receipt_is_voted_out_and_refunded() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Silent;
    world.ask();
    world.run(12_000);
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Pending);
    world.run(6_000);
    let record = world.core.state().record(1).unwrap();
    assert_eq!((record.status, record.cost, record.confirmed_at), (InferenceStatus::Missed, 0, 0));
    assert_eq!(world.field("escrow_timeout", "status"), ["applied"]);
}

#[test]
fn a_receipt_without_a_finish_is_voted_out_after_the_execution_time() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::OnlyReceipt;
    world.ask();
    world.run(30_000);
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Started);
    world.run(40_000);
    let record = world.core.state().record(1).unwrap();
    assert_eq!(record.status, InferenceStatus::Missed);
    assert!(record.confirmed_at > 0);
}

#[test]
fn a_finish_that_the_stream_lost_is_fetched_before_anybody_votes() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::OnlyReceipt;
    world.ask();
    world.run(5_000);
    let terms = world.terms.clone();
    world.host(1).finish_now(&terms, 1);
    world.run(70_000);
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Finished);
    assert_eq!(world.outcomes(1)[2], 0);
}

fn asked_pending(world: &World, index: usize) -> usize {
    let who = world.names[index];
    world.calls.iter().filter(|(to, call)| *to == who && *call == "pending").count()
}

#[test]
fn the_end_of_what_no_stream_speaks_of_is_asked_for_more_and_more_seldom() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::OnlyReceipt;
    world.ask();
    // At once when the stream is lost, then after 2, 4, 8 and 16 seconds, of which the last is at 30.
    for (ms, count) in [(100, 1), (1_950, 2), (4_000, 3), (8_000, 4), (16_000, 5)] {
        world.run(ms);
        assert_eq!(asked_pending(&world, 1), count, "at {} ms", world.now_ms);
    }
    // The next at 60 seconds; at 65 the votes, before which it is asked once more.
    world.run(50_000);
    assert_eq!((asked_pending(&world, 1), world.outcomes(1)[2]), (7, 1));
    world.run(600_000);
    assert_eq!(asked_pending(&world, 1), 7);
    assert!([0, 2, 3].iter().all(|index| asked_pending(&world, *index) == 0));
}

#[test]
fn a_finish_is_fetched_soon_after_its_stream_was_lost_or_the_gateway_was_killed() {
    for kill in [false, true] {
        let mut world = World::new(4);
        world.run(100);
        world.host(1).serves = if kill { Serves::Slow } else { Serves::OnlyReceipt };
        world.ask();
        world.run(3_000);
        if kill {
            world.restart(false);
        }
        world.run(2_000);
        let terms = world.terms.clone();
        world.host(1).finish_now(&terms, 1);
        world.run(8_000);
        assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Finished, "{kill}");
    }
}

#[test]
fn a_session_that_can_pay_no_further_diff_ends_at_once_and_counts_the_finish_that_waits() {
    // One request of 24 tokens at 10 and one fee of 10; what is left pays no other.
    let mut terms = terms(4);
    terms.amount = terms.create_fee + 255;
    let mut world = World::with(terms.clone(), GatewayConfig::default());
    world.run(2_500);
    let id = world.ask();
    world.run(50);
    assert!(world.finished(id));
    world.run(3_000);
    assert_eq!(world.core.state().phase(), Phase::Frozen);
    // One Start, FinalizeRound and four more.
    assert_eq!((world.core.status().nonce, world.outcomes(1)), (6, [1, 1, 0, 0, 0, 0]));
    let settlement = world.settlements[0].clone();
    world.pays(&settlement, Mode::Settle);
    assert_eq!((settlement.balance, settlement.fees), (195, terms.create_fee + 10));
}

#[test]
fn a_session_that_can_pay_no_further_diff_still_waits_for_the_answer_under_way() {
    let mut terms = terms(4);
    terms.amount = terms.create_fee + 255;
    let mut world = World::with(terms, GatewayConfig::default());
    world.run(2_500);
    world.host(1).serves = Serves::Slow;
    let id = world.ask_with(20_000);
    world.run(15_000);
    assert_eq!((world.core.state().phase(), world.core.status().in_flight), (Phase::Active, 1));
    world.send(Event::Enough { request_id: id });
    world.run(5_000);
    assert_eq!((world.core.state().phase(), world.outcomes(1)[4]), (Phase::Frozen, 1));
}

#[test]
fn the_last_nonces_carry_the_finish_that_waits_without_a_minute_of_drain() {
    let mut terms = terms(4);
    terms.max_nonce = 20;
    let mut world = World::with(terms, GatewayConfig::default());
    world.run(2_500);
    // Nonce 15 is the last before FinalizeRound: 15 + 4 + 2 > 20.
    for _ in 0..15 {
        let id = world.ask();
        world.run(20);
        assert!(world.finished(id));
    }
    world.run(5_000);
    assert_eq!((world.core.state().phase(), world.core.status().nonce), (Phase::Frozen, 20));
    assert_eq!(world.core.state().stats().iter().map(|row| row.completed).sum::<u32>(), 15);
}

#[test]
fn votes_of_too_few_end_as_insufficient_after_two_rounds_and_the_drain_decides() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Silent;
    world.ask();
    world.run(50);
    for index in [0, 2, 3] {
        world.host(index).serves = Serves::Down;
    }
    world.run(200_000);
    assert_eq!(world.core.state().record(1).unwrap().status, InferenceStatus::Pending);
    let statuses = world.field("escrow_timeout", "status");
    assert_eq!(statuses, ["vote_collection_failed", "insufficient_votes"]);
}

#[test]
fn a_session_is_finalized_signed_and_paid_exactly() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..20 {
        world.ask();
        world.run(20);
    }
    world.send(Event::Finalize);
    let late = world.ask();
    assert_eq!(world.clients[&late].last(), Some(&ClientEvent::Failed(RequestError::EscrowExhausted)));
    world.run(20_000);
    assert_eq!(world.core.state().phase(), Phase::Frozen);
    assert_eq!(world.settlements.len(), 1);
    let settlement = world.settlements[0].clone();
    world.pays(&settlement, Mode::Settle);
    assert_eq!(world.core.state().stats().iter().map(|row| row.completed).sum::<u32>(), 20);
    world.send(Event::Chain(ChainNews::Settled));
    assert!(world.others.iter().any(|effect| matches!(effect, Effect::Retired { .. })));
    assert_eq!(world.core.status().phase, "settled");
    world.restart(true);
    assert_eq!(world.core.status().phase, "settled");
}

#[test]
fn a_session_that_lacks_a_signature_says_whose_and_is_paid_once_that_host_is_emptied() {
    let mut world = World::new(3);
    world.run(100);
    world.host(2).fork_at = Some(2);
    for _ in 0..3 {
        world.ask();
        world.run(20);
    }
    assert_eq!((world.core.status().phase, world.core.status().signatures), ("active", None));
    world.send(Event::Finalize);
    world.run(1);
    assert_eq!(world.core.status().phase, "ending");
    world.run(180_000);
    // Three slots need all three; the forked one signs another root.
    assert_eq!((world.core.status().phase, world.core.status().signatures), ("frozen", Some((2, 3))));
    let signed = |world: &World, index: usize| {
        let rows = world.core.status().participants;
        rows.iter().find(|row| row.address == world.names[index]).unwrap().signed
    };
    assert_eq!([0, 1, 2].map(|index| signed(&world, index)), [true, true, false]);
    let said: Vec<_> =
        world.logs.iter().filter(|line| line.stage == "escrow_signature_missing").cloned().collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((said[0].participant, said[0].alarm), (Some(world.names[2]), true));
    let field = |name: &str| world.field("escrow_signature_missing", name);
    assert_eq!([field("have"), field("need"), field("why")], [["2"], ["3"], ["flagged"]]);
    assert!(world.settlements.is_empty());
    // What the line advises.
    world.host(2).fork_at = None;
    world.host(2).wipe();
    world.run(20_000);
    assert_eq!(world.core.status().signatures, Some((3, 3)));
    let settlement = world.settlements[0].clone();
    world.pays(&settlement, Mode::Settle);
}

#[test]
fn requests_in_flight_end_before_the_session_does() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Slow;
    let id = world.ask_with(8_000);
    world.run(20);
    world.send(Event::Finalize);
    world.run(2_000);
    assert_eq!(world.core.state().phase(), Phase::Active);
    world.run(20_000);
    assert_eq!(world.clients[&id].last(), Some(&ClientEvent::Failed(RequestError::Deadline)));
    assert_eq!(world.core.state().phase(), Phase::Frozen);
}

#[test]
fn finalization_survives_a_restart_in_each_of_its_phases() {
    for crash_after in [0, 1, 2, 3, 5, 2_100, 2_500, 4_000] {
        let mut world = World::new(4);
        world.run(100);
        for _ in 0..10 {
            world.ask();
            world.run(20);
        }
        world.send(Event::Finalize);
        world.run(crash_after);
        world.restart(true);
        world.run(30_000);
        assert!(!world.settlements.is_empty(), "crash after {crash_after} ms");
        let settlement = world.settlements.last().unwrap().clone();
        world.pays(&settlement, Mode::Settle);
        // And once more: between finalize and settle nothing is lost.
        world.settlements.clear();
        world.restart(true);
        world.run(10_000);
        assert_eq!(world.settlements.last(), Some(&settlement), "crash after {crash_after} ms");
    }
}

#[test]
fn a_host_that_is_away_or_refuses_is_skipped_at_the_end() {
    let mut world = World::with(terms(4), GatewayConfig { drain_ms: 1_000, ..GatewayConfig::default() });
    world.run(100);
    for _ in 0..10 {
        world.ask();
        world.run(20);
    }
    world.host(3).serves = Serves::Down;
    world.send(Event::Finalize);
    world.run(20_000);
    assert_eq!(world.settlements.len(), 1);
    assert_eq!(world.settlements[0].signatures.len(), 3);
}

#[test]
fn without_a_quorum_nothing_is_settled_until_hosts_come_back() {
    let mut world = World::with(terms(4), GatewayConfig { drain_ms: 1_000, ..GatewayConfig::default() });
    world.run(100);
    world.ask();
    world.run(50);
    for index in [2, 3] {
        world.host(index).serves = Serves::Down;
    }
    world.send(Event::Finalize);
    world.run(60_000);
    assert!(world.settlements.is_empty());
    world.host(2).serves = Serves::Well;
    world.run(10_000);
    assert_eq!(world.settlements.len(), 1);
}

#[test]
fn a_session_whose_nonces_are_used_up_ends_itself_in_time() {
    let mut terms = terms(4);
    terms.max_nonce = 20;
    let mut world = World::with(terms, GatewayConfig::default());
    world.run(100);
    let mut refused = false;
    for _ in 0..30 {
        let id = world.ask();
        world.run(200);
        refused |=
            matches!(world.clients[&id].last(), Some(ClientEvent::Failed(RequestError::EscrowExhausted)));
    }
    assert!(refused);
    world.run(300_000);
    assert_eq!(world.core.state().phase(), Phase::Frozen);
    assert!(world.core.status().nonce <= 20);
    assert_eq!(world.settlements.len(), 1);
}

#[test]
fn an_expired_escrow_is_made_ready_for_a_dispute() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..10 {
        world.ask();
        world.run(20);
    }
    let told = world.core.pending_txs().count();
    world.send(Event::Chain(ChainNews::Expired));
    world.run(10_000);
    assert_eq!(world.disputes.len(), 1);
    // What the last hosts told is in it.
    assert!(told > 0);
    assert_eq!(world.disputes[0].nonce, world.core.status().nonce);
    assert_eq!(world.core.pending_txs().count(), 0);
    world.pays(&world.disputes[0].clone(), Mode::Dispute);
    let id = world.ask();
    assert_eq!(world.clients[&id].last(), Some(&ClientEvent::Failed(RequestError::EscrowExhausted)));
}

#[test]
fn one_participant_with_several_slots_has_one_cursor_one_flag_and_votes_once() {
    let mut terms = terms(7);
    let twice = terms.slots[1];
    terms.slots[4] = twice;
    let mut world = World::with(terms, GatewayConfig::default());
    world.run(100);
    world.hosts.get_mut(&twice).unwrap().fork_at = Some(1);
    for _ in 0..14 {
        let id = world.ask();
        world.run(100);
        assert!(world.finished(id));
    }
    assert_eq!(world.core.flags().len(), 1);
    assert_eq!(world.hosts[&twice].infers, 1);
    world.run(20_000);
    let it = world.core.status().participants.into_iter().find(|p| p.address == twice).unwrap();
    assert_eq!(it.outcomes[2], 1);
}

#[test]
fn a_dispute_without_a_quorum_at_the_tip_takes_the_last_checkpoint_that_one_signed() {
    let mut world = World::new(4);
    world.run(100);
    for _ in 0..40 {
        world.ask();
        world.run(20);
    }
    assert!(world.core.status().nonce >= 40);
    // The rest of the session has two signers of four.
    for index in [2, 3] {
        world.host(index).serves = Serves::Down;
    }
    world.restart(true);
    world.send(Event::Chain(ChainNews::Expired));
    world.run(30_000);
    assert!(world.disputes.is_empty(), "the tip may still be signed");
    world.run(60_000);
    let [dispute] = world.disputes.as_slice() else { panic!("{:?}", world.disputes.len()) };
    assert_eq!(dispute.nonce, 32, "of every sixteenth nonce the last");
    world.pays(&dispute.clone(), Mode::Dispute);
}

#[test]
fn an_escrow_that_is_paid_leaves_no_flags_behind_and_still_shows_what_they_came_to() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).fork_at = Some(1);
    for _ in 0..8 {
        world.ask();
        world.run(50);
    }
    let host = world.names[1];
    let before = world.core.repair_totals(&host);
    assert_eq!((world.core.flags().len(), before.raised), (1, 1));
    let rows = |world: &World| DivergenceKeeper.flags(&world.db, 7).unwrap().len();
    assert_eq!(rows(&world), 1);
    world.send(Event::Chain(ChainNews::Settled));
    assert_eq!(rows(&world), 0);
    assert_eq!(world.core.repair_totals(&host).raised, before.raised);
}

#[test]
fn a_voter_that_is_busy_for_other_sessions_is_asked_when_it_has_room() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Silent;
    let others: Vec<_> = (0..4)
        .filter(|index| *index != 1)
        .flat_map(|index| (0..8).map(move |_| index))
        .map(|index| world.permits.vote(&world.names[index]).unwrap())
        .collect();
    world.ask();
    world.run(40_000);
    assert!(world.calls.iter().all(|(_, call)| *call != "vote"));
    drop(others);
    world.run(1_000);
    assert_eq!(world.calls.iter().filter(|(_, call)| *call == "vote").count(), 3);
    world.run(5_000);
    assert_eq!(world.outcomes(1)[2], 1);
}
