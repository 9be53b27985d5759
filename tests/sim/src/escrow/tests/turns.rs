//! Whole sessions whose end is wrong on purpose, so that the laws about time are seen to bite.

use crate::escrow::cast::{Cast, Programs};
use crate::escrow::schedule::{Fork, Heal, Item, Schedule, What};
use crate::escrow::watch::Law;
use crate::escrow::world::World;

fn schedule(what: Vec<(u64, What)>) -> Schedule {
    let items = what.into_iter().map(|(at_ms, what)| Item { at_ms, what }).collect();
    Schedule { items, calm_ms: 20_000 }
}

#[test]
fn a_host_that_is_called_healable_and_stays_forked_is_caught() {
    let cast = Cast::plain(1, 4, Programs::Model);
    let fork = What::Fork { host: 1, after: 0, how: Fork::Refuses, heal: Heal::Never };
    let requests = (0..8).map(|n| (1_000 + n * 500, super::scenarios::request()));
    let plan = schedule(std::iter::once((10, fork)).chain(requests).collect());
    let mut world = World::new(&cast, &plan, &plan.numbers(), false);
    world.play_until(19_000).unwrap();
    // The simulator believes that it was healed.
    world.nodes[1].mask.fork.as_mut().unwrap().heal = Heal::Reset;
    world.calm.believe_healed = true;
    assert_eq!(world.play().map_err(|breach| breach.law), Err(Law::EveryHealableRestored));
}

#[test]
fn an_unhealable_host_that_is_not_given_up_in_time_is_caught() {
    let mut cast = Cast::plain(1, 4, Programs::Model);
    cast.gateway.give_up_ms = 5 * 60 * 60_000;
    let fork = What::Fork { host: 1, after: 0, how: Fork::Refuses, heal: Heal::Never };
    let requests = (0..8).map(|n| (1_000 + n * 500, super::scenarios::request()));
    let plan = schedule(std::iter::once((10, fork)).chain(requests).collect());
    let mut world = World::new(&cast, &plan, &plan.numbers(), false);
    assert_eq!(world.play().map_err(|breach| breach.law), Err(Law::EveryUnhealableGivenUp));
}

#[test]
fn a_session_that_hosts_do_not_let_settle_is_caught() {
    let cast = Cast::plain(1, 4, Programs::Model);
    let plan = schedule((0..3).map(|n| (1_000 + n * 500, super::scenarios::request())).collect());
    let mut world = World::new(&cast, &plan, &plan.numbers(), false);
    world.play_until(19_000).unwrap();
    for node in &mut world.nodes {
        node.close();
    }
    assert_eq!(world.play().map_err(|breach| breach.law), Err(Law::SessionSettles));
}
