//! Two diffs of ours at one nonce: a store that was brought back from a backup while a host could not be reached.

use holdfast_escrow::session::FrozenConfig;

use super::host::Serves;
use super::world::World;
use crate::core::{Event, GatewayConfig, StartKind};

/// Four hosts; the store is eight nonces old again and host 1 alone holds the ninth, which went to it.
fn restored(allow_reset: bool) -> World {
    let cfg = GatewayConfig { allow_reset, snapshot_every: 16, ..GatewayConfig::default() };
    let mut world = World::with(FrozenConfig { max_live: 512, ..super::world::terms(4) }, cfg);
    world.run(100);
    for _ in 0..8 {
        world.ask();
        world.run(50);
    }
    world.run(3_000);
    // Up to the turn of host 1.
    while !world.core.status().nonce.is_multiple_of(4) {
        let id = world.ask();
        world.run(50);
        assert!(world.finished(id));
    }
    let backup = world.db.copy();
    world.ask();
    world.run(20);
    assert_eq!(world.host(1).nonce(), world.core.status().nonce);
    world.db = backup;
    world.host(1).serves = Serves::Down;
    world.restart(false);
    world.run(31_000);
    world
}

fn serve(world: &mut World, requests: usize) {
    for _ in 0..requests {
        let id = world.ask();
        world.run(700);
        assert!(world.finished(id), "{:?}", world.clients[&id]);
    }
}

fn x_is_flagged(world: &World) -> bool {
    world.core.flag(&world.names[1]).is_some()
}

/// Nobody is dispatched to X, nothing is charged to it, and nobody is refused.
#[test]
fn a_fork_of_our_own_passes_its_host_without_a_charge_and_serves_every_client() {
    let mut world = restored(false);
    serve(&mut world, 6);
    world.host(1).serves = Serves::Well;
    let missed = world.outcomes(1)[2];
    serve(&mut world, 24);
    world.run(600_000);
    serve(&mut world, 8);
    let flag = world.core.flag(&world.names[1]).unwrap();
    assert_eq!((flag.reason, flag.released, flag.forked), ("escrow_own_fork", true, true));
    assert_eq!(world.stage_count("escrow_self_suspect"), 0);
    assert!(
        world.outcomes(1)[2] <= missed + 2,
        "only what failed while it was away: {:?}",
        world.outcomes(1)
    );
    let late = world.outcomes(1);
    world.run(3_600_000);
    serve(&mut world, 12);
    assert_eq!(world.outcomes(1), late, "given up or not, it is passed");
    assert!(world.core.open_starts().all(|(_, kind)| kind != StartKind::GhostCapability));
    assert!(!world.core.quorum_at_risk());
    // Neither a restart nor the end forgets whose fault it is.
    world.restart(true);
    world.run(5_000);
    assert_eq!(world.core.flag(&world.names[1]).unwrap().reason, "escrow_own_fork");
    serve(&mut world, 8);
    world.send(Event::Finalize);
    world.run(60_000);
    assert_eq!(world.settlements.len(), 1);
    assert_eq!(world.outcomes(1)[2], late[2]);
}

#[test]
fn a_host_that_consents_to_a_reset_comes_back_and_signs_what_was_taken_back() {
    let mut world = restored(true);
    world.host(1).allows_reset = true;
    serve(&mut world, 6);
    world.host(1).serves = Serves::Well;
    serve(&mut world, 12);
    world.run(30_000);
    assert!(!x_is_flagged(&world), "{:?}", world.core.flag(&world.names[1]));
    assert!(world.stages.contains(&"escrow_participant_state_unblocked"));
    serve(&mut world, 8);
    world.run(5_000);
    assert_eq!(world.core.open_starts().count(), 0);
    assert!(world.outcomes(1)[1] > 2, "{:?}", world.outcomes(1));
}

#[test]
fn a_host_that_is_further_on_in_the_other_log_shows_the_fork_and_not_a_doubt() {
    let mut world = World::new(4);
    world.run(100);
    serve(&mut world, 4);
    let backup = world.db.copy();
    // Its log goes on alone: host 1 is taught everything of it.
    for _ in 0..4 {
        for index in [0, 2, 3] {
            world.host(index).serves = Serves::Down;
        }
        world.ask();
        world.run(10);
    }
    let (ahead, kept) = (world.host(1).nonce(), world.core.status().nonce);
    assert!(ahead > 4 && ahead <= kept);
    for index in [0, 2, 3] {
        world.host(index).serves = Serves::Well;
    }
    world.host(1).serves = Serves::Down;
    world.db = backup;
    world.restart(false);
    world.run(31_000);
    let id = world.ask();
    world.run(100);
    assert!(world.finished(id));
    world.host(1).serves = Serves::Well;
    world.run(60_000);
    serve(&mut world, 8);
    assert_eq!(world.core.flag(&world.names[1]).unwrap().reason, "escrow_own_fork");
    assert_eq!(world.stage_count("escrow_self_suspect"), 0);
}
