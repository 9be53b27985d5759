//! Faults of the gateway's side and of clients, and how sessions end.

use std::rc::Rc;

use holdfast_gateway::core::{Event, HostCall};

use super::scenarios::{MINUTE, SECOND, does, infers, plays, request, traffic, with_both};
use crate::escrow::ledger::End;
use crate::escrow::schedule::{Commit, Damage, Fate, Fork, Heal, What, Work};
use crate::escrow::world::Seen;

#[test]
fn damage_of_our_own_store_blames_nobody() {
    for damage in [Damage::Diff, Damage::Snapshot, Damage::Gap] {
        with_both(
            |_| {},
            |world| {
                traffic(world, 30, 200);
                does(world, What::Damage(damage));
                plays(world, 5 * SECOND);
                assert_eq!(world.watch.totals.flags, 0, "{damage:?}");
                if damage == Damage::Snapshot {
                    let completed = world.watch.totals.completed;
                    does(world, request());
                    plays(world, 5 * SECOND);
                    assert_eq!(world.watch.totals.completed, completed + 1, "replayed from the log");
                }
            },
        );
    }
}

#[test]
fn a_full_disk_spends_nothing_twice_and_is_said() {
    for how in [Commit::Full, Commit::Fails, Commit::DiesBefore, Commit::DiesAfter] {
        for nth in 1..12 {
            with_both(
                |_| {},
                |world| {
                    traffic(world, 6, 200);
                    does(world, What::CommitFault { nth, how, power_cut: true, down_ms: SECOND });
                    traffic(world, 6, 300);
                    plays(world, 10 * SECOND);
                    let completed = world.watch.totals.completed;
                    traffic(world, 4, 300);
                    plays(world, 2 * SECOND);
                    assert_eq!(world.watch.totals.completed, completed + 4, "commit {nth} {how:?}");
                },
            );
        }
    }
}

#[test]
fn a_client_that_leaves_costs_its_host_nothing() {
    with_both(
        |_| {},
        |world| {
            for _ in 0..8 {
                let work = Work { tokens: 8, pace_ms: 500, fate: Fate::Done };
                let what = What::Request { filling: 0, limits: (64, 16), work, patience_ms: MINUTE };
                does(world, what);
                let id = world.last_request();
                plays(world, 1_200);
                world.watch.left(id);
                world.tell(Event::ClientLeft { request_id: id }).unwrap();
                plays(world, SECOND);
            }
            plays(world, 2 * MINUTE);
            let ends: Vec<_> = world.watch.ledger.entries.values().map(|entry| entry.end).collect();
            assert_eq!(ends.len(), 8);
            assert!(ends.iter().all(|end| *end == Some(End::Released)), "{ends:?}");
            assert!(world.core().unwrap().status().participants.iter().all(|member| !member.throttled));
        },
    );
}

#[test]
fn a_request_without_followers_is_published_within_the_flush_time() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 1, 5 * SECOND);
            let entry = world.watch.ledger.entries[&1];
            assert_eq!(entry.end, Some(End::Finished), "no other request had to come");
            assert!(world.watch.ledger.nonce <= 3);
        },
    );
}

#[test]
fn a_session_that_is_killed_between_its_last_diff_and_its_payment_is_paid() {
    for after_ms in [1, 6, 12, 20, 500, 1_600] {
        with_both(
            |_| {},
            |world| {
                traffic(world, 10, 200);
                does(world, What::Finalize);
                plays(world, after_ms);
                does(world, What::Kill { power_cut: true, down_ms: SECOND });
                plays(world, 2 * MINUTE);
                assert!(world.watch.totals.settled >= 1, "killed after {after_ms} ms");
            },
        );
    }
}

#[test]
fn one_rejected_host_does_not_stop_the_settlement() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 10, 200);
            does(world, What::Fork { host: 1, after: 0, how: Fork::Careless, heal: Heal::Never });
            does(world, What::Finalize);
            plays(world, 3 * MINUTE);
            assert_eq!(world.watch.totals.settled, 1);
        },
    );
}

#[test]
fn terms_that_differ_are_said_before_the_first_diff_and_raise_no_flag() {
    with_both(
        |cast| cast.members[1].wrong_terms = true,
        |world| {
            traffic(world, 12, 300);
            assert_eq!(world.watch.totals.flags, 0);
            assert_eq!(infers(world, 1, 0), 0, "a host with other terms gets no work");
            assert!(world.watch.totals.completed >= 12);
        },
    );
}

#[test]
fn a_start_that_never_reached_its_host_is_not_held_against_it() {
    with_both(
        |cast| cast.gateway.chunk_diffs = 2,
        |world| {
            // Far behind, so that it is taught first; the gateway dies before the work itself is sent.
            for _ in 0..3 {
                traffic(world, 1, 2_500);
            }
            let mut tries = 0;
            while tries < 40 {
                tries += 1;
                does(world, request());
                let nonce = world.watch.ledger.nonce;
                if !world.watch.sent().contains_key(&nonce) {
                    break;
                }
                plays(world, 2_500);
            }
            let id = world.watch.ledger.nonce;
            does(world, What::Kill { power_cut: true, down_ms: SECOND });
            plays(world, 3 * MINUTE);
            let end = world.watch.ledger.entries[&id].end;
            assert_eq!(end, Some(End::Finished), "the voters brought it what it lacked; {tries} tries");
        },
    );
}

#[test]
fn the_scenarios_see_calls_in_their_order() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 4, 300);
            let seen: Vec<&Seen> = world.seen.iter().collect();
            assert!(seen.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
            assert!(matches!(&*Rc::clone(&seen[0].call), HostCall::Bind(_)));
        },
    );
}
