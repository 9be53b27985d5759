//! Starts that are taken back: bodies that no host can serve, and work that nobody waits for any more.

use super::host::Serves;
use super::world::World;
use crate::core::{ClientEvent, Event, RequestError};

fn all(world: &mut World, serves: Serves) {
    world.hosts.values_mut().for_each(|host| host.serves = serves);
}

/// Finished, missed, errored, released, drained of all hosts.
fn ends(world: &World) -> [u32; 5] {
    let mut sum = [0; 5];
    for row in world.core.state().stats() {
        for (sum, of) in
            sum.iter_mut().zip([row.completed, row.missed, row.errored, row.released, row.drained])
        {
            *sum += of;
        }
    }
    sum
}

fn cancels(world: &World) -> usize {
    world.calls.iter().filter(|(_, call)| *call == "cancel").count()
}

#[test]
fn a_body_that_every_host_refuses_is_the_clients_fault_and_counts_against_nobody() {
    let mut world = World::new(4);
    world.run(100);
    all(&mut world, Serves::Refuses);
    let id = world.ask();
    world.run(1_000);
    let failed = ClientEvent::Failed(RequestError::BodyRefused { attempts: 3 });
    assert_eq!(world.clients[&id].last(), Some(&failed));
    assert_eq!(RequestError::BodyRefused { attempts: 3 }.code(), "invalid_request_error");
    assert_eq!(cancels(&world), 3);
    // Past every timeout: nobody has voted on anything.
    world.run(120_000);
    assert_eq!(ends(&world), [0, 0, 0, 3, 0]);
    assert_eq!(world.core.open_starts().count(), 0);
    assert_eq!(world.core.state().reserved(), 0);
    assert!(world.calls.iter().all(|(_, call)| *call != "vote"));
    all(&mut world, Serves::Well);
    let id = world.ask();
    world.run(50);
    assert!(world.finished(id), "no limiter holds it against them");
}

#[test]
fn in_a_group_of_two_both_refusals_are_every_dispatch() {
    let mut world = World::new(2);
    world.run(100);
    all(&mut world, Serves::Refuses);
    let id = world.ask();
    world.run(60_000);
    let failed = ClientEvent::Failed(RequestError::BodyRefused { attempts: 2 });
    assert_eq!(world.clients[&id].last(), Some(&failed));
    assert_eq!(ends(&world), [0, 0, 0, 2, 0]);
}

#[test]
fn a_refused_start_that_another_host_served_is_taken_back_and_not_run_for_nobody() {
    let mut world = World::new(4);
    world.run(100);
    world.host(1).serves = Serves::Refuses;
    let id = world.ask();
    world.run(1_000);
    assert!(world.finished(id));
    world.run(60_000);
    assert_eq!(cancels(&world), 1);
    assert_eq!(ends(&world), [1, 0, 0, 1, 0]);
    assert_eq!(world.outcomes(1)[4], 1, "{:?}", world.outcomes(1));
    assert!(world.calls.iter().all(|(_, call)| *call != "vote"));
}

#[test]
fn each_failed_dispatch_is_ended_by_its_own_host_or_by_the_votes() {
    let mut world = World::new(4);
    world.run(100);
    all(&mut world, Serves::Refuses);
    world.host(2).serves = Serves::Silent;
    let id = world.ask();
    world.run(60_000);
    let last = world.clients[&id].last();
    assert_eq!(last, Some(&ClientEvent::Failed(RequestError::DispatchesFailed { attempts: 3 })));
    assert_eq!(ends(&world), [0, 1, 0, 2, 0]);
}

#[test]
fn a_client_that_leaves_after_the_first_refusal_costs_its_hosts_nothing() {
    let mut world = World::new(4);
    world.run(100);
    all(&mut world, Serves::Refuses);
    let request_id = world.ask();
    world.run(1);
    let dispatched = |events: &Vec<ClientEvent>| {
        events.iter().filter(|event| matches!(event, ClientEvent::Dispatched { .. })).count() as u32
    };
    let sent = dispatched(&world.clients[&request_id]);
    assert!((1..3).contains(&sent), "{sent}");
    world.send(Event::ClientLeft { request_id });
    world.run(60_000);
    assert_eq!(ends(&world), [0, 0, 0, sent, 0]);
}

#[test]
fn what_was_taken_back_and_not_answered_is_taken_back_again_after_a_restart() {
    let mut world = World::new(4);
    world.run(100);
    all(&mut world, Serves::RefusesOnly);
    world.ask();
    world.run(500);
    assert_eq!((cancels(&world), world.core.open_starts().count()), (3, 3));
    all(&mut world, Serves::Refuses);
    world.restart(true);
    world.run(5_000);
    assert_eq!(cancels(&world), 6);
    assert_eq!(ends(&world), [0, 0, 0, 3, 0]);
}

#[test]
fn a_host_that_never_signs_is_asked_five_times_and_then_voted_on() {
    let mut world = World::new(4);
    world.run(100);
    all(&mut world, Serves::RefusesOnly);
    world.ask();
    world.run(120_000);
    assert_eq!(ends(&world), [0, 3, 0, 0, 0]);
    assert!((9..=18).contains(&cancels(&world)), "{}", cancels(&world));
}

/// A request whose first host cannot be reached and that another one serves.
fn moved_on(refusal_timeout_s: u32) -> World {
    let terms = holdfast_escrow::session::FrozenConfig { refusal_timeout_s, ..super::world::terms(4) };
    let mut world = World::with(terms, Default::default());
    world.run(100);
    world.host(1).serves = Serves::Down;
    let id = world.ask();
    world.run(1_000);
    assert!(world.finished(id));
    assert_eq!(world.field("escrow_start_withdrawn", "nonce"), ["1"]);
    world
}

#[test]
fn a_host_that_is_back_soon_signs_that_it_does_not_run_what_nobody_waits_for() {
    let mut world = moved_on(10);
    world.host(1).serves = Serves::Well;
    world.run(60_000);
    assert_eq!((ends(&world), world.host(1).infers), ([1, 0, 0, 1, 0], 1));
    assert!(world.calls.iter().all(|(_, call)| *call != "vote"));
    assert_eq!((world.core.open_starts().count(), world.core.state().reserved()), (0, 0));
}

#[test]
fn a_host_that_is_back_before_the_votes_is_asked_once_more_and_not_challenged() {
    let mut world = moved_on(60);
    world.run(40_000);
    let before = cancels(&world);
    world.host(1).serves = Serves::Well;
    world.run(30_000);
    assert_eq!((ends(&world), cancels(&world)), ([1, 0, 0, 1, 0], before + 1));
    assert!(world.calls.iter().all(|(_, call)| *call != "vote"));
}

#[test]
fn a_host_that_stays_away_is_voted_missed_although_its_start_was_taken_back() {
    let mut world = moved_on(10);
    world.run(60_000);
    assert_eq!(ends(&world), [1, 1, 0, 0, 0]);
}
