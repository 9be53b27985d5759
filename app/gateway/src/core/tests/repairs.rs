//! Flags and repairs: the acceptance sketch of the proposal, line by line.

use holdfast_escrow::repair::{RepairEvent, RepairPhase};

use super::host::Serves;
use super::world::{World, terms};
use crate::core::repair::Brought;
use crate::core::{ClientEvent, Event, GatewayConfig, RepairView, Verb, VerbError};

/// A session in which host 2 diverged at nonce 2.
fn diverged(cfg: GatewayConfig) -> World {
    let mut world = World::with(terms(4), cfg);
    world.run(100);
    world.host(2).fork_at = Some(2);
    for _ in 0..3 {
        world.ask();
        world.run(20);
    }
    world
}

fn phase(world: &World) -> Option<RepairView> {
    world.core.flag(&world.names[2]).map(|flag| flag.phase)
}

#[test]
fn a_signed_mismatch_withholds_at_once_and_the_request_is_served_by_another() {
    let mut world = diverged(GatewayConfig::default());
    let flag = world.core.flag(&world.names[2]).unwrap();
    assert_eq!((flag.diverged_nonce, flag.generation), (2, 1));
    assert!(world.finished(2));
    assert_eq!(
        world.stages[..2],
        ["escrow_participant_state_blocked", "escrow_participant_state_repair_started"]
    );
    let infers = world.host(2).infers;
    for _ in 0..30 {
        let id = world.ask();
        world.run(50);
        assert!(world.finished(id));
    }
    assert_eq!(world.host(2).infers, infers);
    // Its nonces were passed: no start, no ghost, nothing to time out but what was really sent.
    let status = world.core.status();
    let it = status.participants.iter().find(|p| p.address == world.names[2]).unwrap();
    assert_eq!((it.counters.ghosts, it.outcomes[0]), (0, 1));
    assert!(it.counters.passes >= 7);
}

#[test]
fn a_crafted_body_with_the_words_of_a_divergence_raises_no_flag() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Crafted;
    let id = world.ask();
    world.run(500);
    assert!(world.finished(id));
    assert!(world.core.flags().is_empty());
}

#[test]
fn a_host_that_restarts_empty_is_taught_verified_and_restored() {
    let mut world = diverged(GatewayConfig::default());
    let host = world.host(2);
    host.wipe();
    host.fork_at = None;
    world.run(60_000);
    assert_eq!(phase(&world), None);
    assert_eq!(world.stage_count("escrow_participant_state_unblocked"), 1);
    let before = world.host(2).infers;
    for _ in 0..8 {
        world.ask();
        world.run(50);
    }
    assert!(world.host(2).infers > before);
    assert_eq!(world.core.repair_totals(&world.names[2]).restored, 1);
}

#[test]
fn a_host_that_keeps_its_fork_stays_flagged_is_given_up_and_then_charged() {
    let cfg = GatewayConfig { give_up_ms: 120_000, give_up_floor_ms: 60_000, ..GatewayConfig::default() };
    let mut world = diverged(cfg);
    world.run(800_000);
    assert_eq!(phase(&world), Some(RepairView::GaveUp));
    assert_eq!(world.stage_count("escrow_participant_state_repair_gave_up"), 1);
    assert!(world.stage_count("escrow_participant_state_repair_attempt") >= 1);
    let infers = world.host(2).infers;
    for _ in 0..8 {
        world.ask();
        world.run(50);
    }
    let ghosts = world
        .core
        .status()
        .participants
        .iter()
        .find(|p| p.address == world.names[2])
        .unwrap()
        .counters
        .ghosts;
    assert!(ghosts >= 2);
    assert_eq!(world.host(2).infers, infers);
    // The ghosts end as misses of that host.
    world.run(60_000);
    assert_eq!(world.outcomes(2)[2], 1 + ghosts as u32);
}

#[test]
fn a_success_on_chat_does_not_clear_and_the_tripping_nonce_is_timed_out() {
    let mut world = diverged(GatewayConfig::default());
    // It would answer now; nobody asks it.
    world.host(2).fork_at = Some(2);
    world.run(30_000);
    assert!(phase(&world).is_some());
    assert_eq!(world.outcomes(2)[2], 1, "the dispatch that tripped went through the votes");
    assert!(world.field("escrow_timeout", "status").contains(&"applied".to_owned()));
}

#[test]
fn a_host_that_withholds_its_signature_is_neither_cleared_nor_forked() {
    let mut world = diverged(GatewayConfig::default());
    let host = world.host(2);
    host.wipe();
    (host.fork_at, host.withholds) = (None, true);
    world.run(60_000);
    let flag = world.core.flag(&world.names[2]).unwrap();
    assert!(!flag.forked);
    assert_eq!(flag.last_verdict, "withheld");
    world.host(2).withholds = false;
    world.run(120_000);
    assert_eq!(phase(&world), None);
}

#[test]
fn a_reset_heals_a_true_fork_when_both_sides_allow_it() {
    let cfg = GatewayConfig { allow_reset: true, ..GatewayConfig::default() };
    let mut world = World::with(terms(4), cfg);
    world.run(100);
    for _ in 0..8 {
        world.ask();
        world.run(20);
    }
    // It holds another state from nonce 5 on.
    let host = world.host(2);
    (host.fork_at, host.allows_reset) = (Some(5), true);
    for _ in 0..4 {
        world.ask();
        world.run(20);
    }
    assert!(phase(&world).is_some());
    world.run(700_000);
    assert_eq!(phase(&world), None);
    assert!(world.calls.iter().any(|(_, call)| *call == "reset"));
    assert_eq!(world.field("escrow_first_bad_nonce", "nonce"), ["5"]);
}

/// A fork that waits for transactions which its own log will never hold signs nothing, not even that it is forked.
#[test]
fn a_fork_that_withholds_its_signature_is_reset_all_the_same() {
    for tells_in_teaching in [true, false] {
        let cfg = GatewayConfig { allow_reset: true, ..GatewayConfig::default() };
        let mut world = World::with(terms(4), cfg);
        world.run(100);
        for _ in 0..8 {
            world.ask();
            world.run(20);
        }
        let host = world.host(2);
        (host.fork_at, host.allows_reset, host.withholds) = (Some(5), true, tells_in_teaching);
        for _ in 0..4 {
            world.ask();
            world.run(20);
        }
        assert!(phase(&world).is_some());
        world.host(2).withholds = true;
        world.run(700_000);
        assert!(world.calls.iter().any(|(_, call)| *call == "reset"), "{tells_in_teaching}");
        assert_eq!(phase(&world), None, "{tells_in_teaching}");
    }
}

#[test]
fn a_restart_of_the_gateway_is_no_amnesty_and_resumes_the_same_repair() {
    let mut world = diverged(GatewayConfig::default());
    world.run(1_000);
    let before = world.core.flag(&world.names[2]).unwrap();
    world.restart(true);
    let after = world.core.flag(&world.names[2]).unwrap();
    assert_eq!(after.generation, before.generation);
    assert_eq!(after.diverged_nonce, before.diverged_nonce);
    let host = world.host(2);
    host.wipe();
    host.fork_at = None;
    world.run(60_000);
    assert_eq!(phase(&world), None);
}

#[test]
fn operators_force_give_up_and_forgive_but_only_proof_clears() {
    let mut world = diverged(GatewayConfig::default());
    let who = world.names[2];
    let verb = |world: &mut World, verb| {
        world.others.clear();
        world.send(Event::Operator { op_id: 9, participant: who, verb });
        match world.others.iter().find(|e| matches!(e, crate::core::Effect::OperatorDone { .. })) {
            Some(crate::core::Effect::OperatorDone { result, .. }) => result.clone(),
            _ => panic!("no answer"),
        }
    };
    world.run(2_000);
    assert_eq!(verb(&mut world, Verb::GiveUp).unwrap().phase, RepairView::GaveUp);
    let released = verb(&mut world, Verb::Release).unwrap();
    assert!(released.released && phase(&world) == Some(RepairView::GaveUp));
    for _ in 0..8 {
        world.ask();
        world.run(50);
    }
    let it = world.core.status().participants.iter().find(|p| p.address == who).unwrap().clone();
    assert_eq!(it.counters.ghosts, 0);
    assert_eq!(verb(&mut world, Verb::ForceTeach).unwrap().generation, 2);
    let host = world.host(2);
    host.wipe();
    host.fork_at = None;
    world.run(60_000);
    assert_eq!(phase(&world), None);
    assert_eq!(verb(&mut world, Verb::ForceTeach), Err(VerbError::NotFlagged));
}

#[test]
fn a_host_that_was_released_is_not_charged_although_it_is_given_up_afterwards() {
    // What eight nonces in turn come to, two of them the host's.
    let charged = |verbs: &[Verb]| {
        let mut world = diverged(GatewayConfig::default());
        let who = world.names[2];
        world.run(2_000);
        for verb in verbs {
            world.send(Event::Operator { op_id: 9, participant: who, verb: *verb });
        }
        assert_eq!(phase(&world), Some(RepairView::GaveUp));
        for _ in 0..6 {
            world.ask();
            world.run(50);
        }
        let it = world.core.status().participants.iter().find(|p| p.address == who).unwrap().clone();
        (it.counters.ghosts, it.counters.passes)
    };
    let (ghosts, passes) = charged(&[Verb::GiveUp]);
    assert_eq!((ghosts, passes), (2, 0));
    for verbs in [[Verb::Release, Verb::GiveUp], [Verb::GiveUp, Verb::Release]] {
        assert_eq!(charged(&verbs), (0, 2), "{verbs:?}");
    }
}

#[test]
fn an_announced_restart_reopens_what_was_given_up() {
    let cfg = GatewayConfig { give_up_ms: 60_000, give_up_floor_ms: 60_000, ..GatewayConfig::default() };
    let mut world = diverged(cfg);
    world.run(800_000);
    assert_eq!(phase(&world), Some(RepairView::GaveUp));
    let host = world.host(2);
    host.wipe();
    host.fork_at = None;
    let participant = world.names[2];
    world.send(Event::Announce { participant, boot_id: "boot-2".into() });
    world.run(10_000);
    assert_eq!(phase(&world), None);
}

#[test]
fn other_hosts_are_served_at_once_while_one_is_repaired() {
    let mut world = diverged(GatewayConfig::default());
    for _ in 0..40 {
        let id = world.ask();
        let at = world.now_ms;
        world.run(10);
        assert!(world.finished(id), "at {at}");
    }
    assert!(phase(&world).is_some());
}

#[test]
fn one_fork_against_two_honest_hosts_does_not_stop_us_but_two_of_three_do() {
    let mut world = World::with(terms(3), GatewayConfig::default());
    world.run(100);
    world.host(2).fork_at = Some(2);
    for _ in 0..3 {
        world.ask();
        world.run(50);
    }
    world.run(2_000);
    assert!(!world.core.status().self_suspect);
    assert_eq!(world.stage_count("escrow_census"), 1);

    let mut world = World::with(terms(3), GatewayConfig::default());
    world.run(100);
    for _ in 0..6 {
        world.ask();
        world.run(20);
    }
    world.run(2_000);
    // Two of three hold another root from nonce 2 on: one is asked for work, the other one in the census.
    for index in [1, 2] {
        world.host(index).fork_at = Some(2);
    }
    for _ in 0..3 {
        world.ask();
        world.run(20);
    }
    world.run(2_000);
    assert!(world.core.status().self_suspect, "{:?}", world.field("escrow_census", "verdict"));
    let id = world.ask();
    assert_eq!(world.clients[&id].last(), Some(&ClientEvent::Failed(crate::core::RequestError::SelfSuspect)));
    // They come to their senses: a quorum signs our root, and the doubt ends.
    for index in [1, 2] {
        world.host(index).wipe();
        world.host(index).fork_at = None;
    }
    world.run(900_000);
    assert!(!world.core.status().self_suspect);
}

#[test]
fn no_repair_outlives_the_session() {
    let mut world = diverged(GatewayConfig { drain_ms: 1_000, ..GatewayConfig::default() });
    world.send(Event::Finalize);
    world.run(10_000);
    assert_eq!(phase(&world), Some(RepairView::Stopped));
    assert_eq!(world.permits.free(), 8);
    assert_eq!(world.settlements.len(), 1);
    let teaches = world.calls.iter().filter(|(p, call)| *p == world.names[2] && *call == "teach").count();
    world.run(100_000);
    let after = world.calls.iter().filter(|(p, call)| *p == world.names[2] && *call == "teach").count();
    assert_eq!(teaches, after);
}

#[test]
fn an_attempt_whose_time_is_over_while_it_waits_for_a_proof_wakes_nobody() {
    let cfg = GatewayConfig { attempt_ms: 50, ..GatewayConfig::default() };
    let mut world = diverged(cfg);
    let host = world.host(2);
    host.wipe();
    (host.fork_at, host.mute) = (None, true);
    // The world fails when it is woken more often than it needs.
    for _ in 0..20 {
        world.run(3_000);
    }
    let verifying = world.core.flags.values().any(|flag| flag.repair.phase == RepairPhase::Verifying);
    assert!(verifying, "{:?}", phase(&world));
    assert!(world.core.repairs_at().is_none_or(|at| at > world.now_ms));
}

#[test]
fn a_repair_takes_its_permit_only_when_its_host_is_free() {
    let mut world = diverged(GatewayConfig::default());
    let participant = world.names[2];
    let host = world.host(2);
    host.wipe();
    host.fork_at = None;
    world.core.members.get_mut(&participant).unwrap().gate = Some(u64::MAX);
    // Its first wait is over, and the gate is still another's.
    for _ in 0..300 {
        world.run(100);
        let worker = &world.core.workers[&participant];
        if worker.running.is_none() {
            assert_eq!(world.permits.free(), 8);
        }
    }
    assert!(world.core.workers[&participant].ticket.is_some());
    world.core.members.get_mut(&participant).unwrap().gate = None;
    world.run(60_000);
    assert_eq!((phase(&world), world.permits.free()), (None, 8));
}

#[test]
fn a_store_that_one_repair_cannot_read_pauses_every_repair_of_the_session() {
    let mut world = World::new(7);
    world.run(100);
    for index in [2, 3] {
        world.host(index).fork_at = Some(2);
    }
    for _ in 0..4 {
        world.ask();
        world.run(20);
    }
    for index in [2, 3] {
        let host = world.host(index);
        host.wipe();
        (host.fork_at, host.mute) = (None, true);
    }
    let both = [world.names[2], world.names[3]];
    let running = |world: &World| {
        both.map(|participant| world.core.workers.get(&participant).is_some_and(|w| w.running.is_some()))
    };
    for _ in 0..600 {
        world.run(100);
        if running(&world) == [true, true] {
            break;
        }
    }
    assert_eq!(running(&world), [true, true]);
    world.core.repair_event(&both[0], RepairEvent::StoreUnreadable, Brought::default());
    assert_eq!(running(&world), [false, false]);
    assert!(both.iter().all(|participant| world.core.flags[participant].repair.paused));
    assert_eq!(world.permits.free(), 8);
}
