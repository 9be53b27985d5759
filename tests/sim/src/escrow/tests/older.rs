//! A gateway that is started from an older copy of its store: what it signed since then is signed, and is its own fault.

use holdfast_escrow::divergence::REASON_OWN_FORK;
use holdfast_gateway::core::{Event, RepairView};

use super::scenarios::{MINUTE, SECOND, does, flag, infers, plays, request, row, stage, traffic, with_both};
use crate::escrow::ledger::End;
use crate::escrow::schedule::{Fate, What, Work};
use crate::escrow::world::World;

/// The store is some nonces old again, and the host that alone holds the last ones of these cannot be reached for half a
/// minute: the others go on without them. The host.
fn older(world: &mut World<'_>) -> usize {
    traffic(world, 9, 300);
    plays(world, 3 * SECOND);
    world.copy_gateway();
    let before = world.watch.ledger.nonce;
    // One request, so that its diffs went to one host alone.
    does(world, request());
    plays(world, 40);
    let nonces: Vec<u64> =
        world.nodes.iter_mut().map(|n| n.replica.as_mut().unwrap().nonce().unwrap()).collect();
    let ahead = (0..4).max_by_key(|host| nonces[*host]).unwrap();
    assert_eq!(
        nonces.iter().filter(|nonce| **nonce > before).count(),
        1,
        "{nonces:?}, the copy is at {before}"
    );
    does(world, What::Older { down_ms: 500, away_ms: 30 * SECOND });
    plays(world, 5 * SECOND);
    traffic(world, 6, 400);
    // A chunk that was lost on the way holds its turn for a minute.
    plays(world, 90 * SECOND);
    ahead
}

#[test]
fn a_host_that_holds_what_an_older_store_lost_is_passed_and_charged_nothing() {
    // In small chunks it is taught what it shares with us and signs its other root, in one it is shown the fork.
    for chunk in [2, 200] {
        passed_and_charged_nothing(chunk);
    }
}

fn passed_and_charged_nothing(chunk: usize) {
    with_both(
        |cast| cast.gateway.chunk_diffs = chunk,
        |world| {
            let host = older(world);
            let missed = row(world, host).missed;
            traffic(world, 12, 500);
            let held = flag(world, host).expect("it has shown another diff of ours");
            assert_eq!((held.reason, held.released), (REASON_OWN_FORK, true));
            let (at, nonce, started) = (world.since(), world.watch.ledger.nonce, row(world, host).started);
            traffic(world, 40, 500);
            plays(world, 40 * MINUTE);
            traffic(world, 20, 500);
            assert_eq!(flag(world, host).map(|flag| flag.phase), Some(RepairView::GaveUp));
            assert_eq!(infers(world, host, at), 0);
            assert!(world.watch.ledger.nonce > nonce + 60);
            assert_eq!((row(world, host).started, row(world, host).missed), (started, missed));
            assert_eq!(stage(world, "escrow_self_suspect"), 0);
            // The others are a quorum; the coins are those of the log that goes on.
            world.tell(Event::Finalize).unwrap();
            plays(world, 5 * MINUTE);
            assert_eq!(world.watch.totals.settled, 1);
        },
    );
}

#[test]
fn a_host_that_holds_what_an_older_store_lost_and_consents_is_reset_and_serves_again() {
    with_both(
        |cast| {
            (cast.gateway.allow_reset, cast.gateway.chunk_diffs) = (true, 2);
            cast.members.iter_mut().for_each(|member| member.consent = true);
        },
        |world| {
            let host = older(world);
            traffic(world, 12, 500);
            plays(world, 10 * MINUTE);
            assert_eq!(flag(world, host), None);
            assert_eq!((world.watch.totals.own_forks, world.watch.totals.resets), (1, 1));
            let (missed, at) = (row(world, host).missed, world.since());
            traffic(world, 12, 500);
            assert!(infers(world, host, at) > 0, "it is in the rota again");
            assert_eq!(row(world, host).missed, missed);
        },
    );
}

#[test]
fn an_older_store_takes_back_what_hosts_that_answer_still_hold() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 300);
            world.copy_gateway();
            traffic(world, 8, 300);
            let told = world.watch.ledger.nonce;
            does(world, What::Older { down_ms: 500, away_ms: 0 });
            assert!(world.watch.ledger.nonce < told);
            plays(world, 5 * SECOND);
            assert!(stage(world, "escrow_tail_recovered") > 0);
            assert!(world.watch.ledger.nonce >= told - 1, "what went to somebody is there again");
            traffic(world, 8, 300);
            assert_eq!(world.watch.totals.flags, 0);
            assert!(row(world, 1).missed == 0 && world.watch.totals.own_forks == 0);
        },
    );
}

#[test]
fn what_a_client_left_after_the_copy_is_not_held_against_its_host() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 4, 300);
            plays(world, 3 * SECOND);
            world.copy_gateway();
            let work = Work { tokens: 8, pace_ms: 500, fate: Fate::Done };
            does(world, What::Request { filling: 0, limits: (64, 16), work, patience_ms: MINUTE });
            let (name, id) = (world.last_request(), world.watch.ledger.nonce);
            plays(world, 1_200);
            world.watch.left(name);
            world.tell(Event::ClientLeft { request_id: name }).unwrap();
            plays(world, 300);
            // Its host has signed that it was cancelled; the store knows neither of the Start nor of that.
            does(world, What::Older { down_ms: 500, away_ms: 0 });
            plays(world, 3 * MINUTE);
            assert_eq!(world.watch.ledger.entries[&id].end, Some(End::Released));
        },
    );
}

#[test]
fn an_escrow_that_expires_is_disputed_with_everything_that_hosts_have_told() {
    for killed in [false, true] {
        with_both(
            |_| {},
            |world| {
                traffic(world, 10, 300);
                does(world, What::Expires);
                if killed {
                    does(world, What::Kill { power_cut: true, down_ms: SECOND });
                }
                plays(world, 4 * SECOND);
                let (nonce, dispatched) = (world.watch.ledger.nonce, world.watch.totals.dispatches);
                let ends: Vec<_> = world.watch.ledger.entries.values().map(|entry| entry.end).collect();
                assert_eq!(ends, [Some(End::Finished); 10]);
                does(world, request());
                plays(world, 2 * MINUTE);
                assert_eq!((world.watch.ledger.nonce, world.watch.totals.dispatches), (nonce, dispatched));
                // The watch holds it against its books, as it is one of the tip.
                assert!(world.watch.totals.disputes >= 1);
                assert_eq!((world.watch.totals.settled, world.watch.totals.flags), (0, 0));
            },
        );
    }
}
