//! Kills of the gateway and of hosts while a repair runs: the same repair goes on.

use holdfast_gateway::core::{FlagView, RepairView};

use super::scenarios::{
    MINUTE, NEVER_MS, SECOND, does, flag, fork, plays, stage, traffic, until_flagged, with_both,
};
use crate::escrow::ledger::End;
use crate::escrow::schedule::{Commit, Fork, Heal, Mood, Store, What};
use crate::escrow::world::World;

#[test]
fn kills_of_the_gateway_in_each_state_of_a_repair_resume_the_same_repair() {
    for (kill_at, power_cut) in
        [(1, true), (490, false), (505, true), (515, false), (530, true), (14_000, true)]
    {
        with_both(
            |cast| cast.gateway.chunk_diffs = 2,
            |world| {
                traffic(world, 12, 200);
                does(world, fork(Fork::Refuses, Heal::Restart));
                until_flagged(world, 1);
                does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 100 });
                plays(world, kill_at);
                let held = flag(world, 1);
                does(world, What::Kill { power_cut, down_ms: 3 * SECOND });
                plays(world, 4 * SECOND);
                if let Some(before) = held {
                    let after = flag(world, 1);
                    assert!(
                        after.as_ref().is_none_or(|flag| flag.generation == before.generation),
                        "{after:?}"
                    );
                }
                plays(world, 3 * MINUTE);
                assert_eq!(flag(world, 1), None, "killed {kill_at} ms after the flag");
                traffic(world, 12, 300);
                plays(world, 3 * SECOND);
                let last = world.watch.ledger.entries.iter().rev().find(|(_, entry)| entry.slot == 1);
                assert_eq!(last.and_then(|(_, entry)| entry.end), Some(End::Finished));
            },
        );
    }
}

#[test]
fn kills_of_the_host_in_each_state_of_its_repair_end_restored() {
    for kill_at in [100, 500, 520, 540, 800] {
        with_both(
            |cast| cast.gateway.chunk_diffs = 2,
            |world| {
                traffic(world, 12, 200);
                does(world, fork(Fork::Refuses, Heal::Restart));
                until_flagged(world, 1);
                does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 50 });
                plays(world, kill_at);
                does(world, What::Crash { host: 1, store: Store::Kept, power_cut: true, down_ms: SECOND });
                plays(world, 5 * MINUTE);
                assert_eq!(flag(world, 1), None);
            },
        );
    }
}

#[test]
fn a_given_up_host_stays_given_up_over_a_restart_of_the_gateway() {
    with_both(
        |cast| cast.gateway.give_up_ms = 6 * MINUTE,
        |world| {
            does(world, fork(Fork::Refuses, Heal::Never));
            until_flagged(world, 1);
            plays(world, 12 * MINUTE);
            does(world, What::Kill { power_cut: true, down_ms: SECOND });
            plays(world, 2 * SECOND);
            let held = flag(world, 1).expect("no amnesty");
            assert_eq!((held.phase, held.generation), (RepairView::GaveUp, 1));
            plays(world, 20 * MINUTE);
            assert_eq!(flag(world, 1).map(|flag| flag.phase), Some(RepairView::GaveUp));
        },
    );
}

/// Plays until the repair of host1, which is sound again and proves nothing while it is taught, asks for the proof.
fn until_verifying(world: &mut World<'_>) -> FlagView {
    traffic(world, 12, 200);
    does(world, fork(Fork::Refuses, Heal::Restart));
    until_flagged(world, 1);
    does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 100 });
    does(world, What::Mood { host: 1, mood: Mood::Terse, for_ms: NEVER_MS });
    for _ in 0..MINUTE {
        plays(world, 1);
        let held = flag(world, 1).expect("it has proven nothing yet");
        if held.phase == RepairView::Verifying {
            return held;
        }
    }
    panic!("host1 is never asked for the proof");
}

#[test]
fn a_kill_of_the_gateway_while_it_verifies_goes_on_with_the_same_repair() {
    for power_cut in [false, true] {
        with_both(
            |_| {},
            |world| {
                let before = until_verifying(world);
                does(world, What::Kill { power_cut, down_ms: 3 * SECOND });
                plays(world, 3 * SECOND);
                // Waiting, due in 0 to 5 seconds: the attempt that was cut short is the failed one.
                let after = flag(world, 1).expect("a restart is no amnesty");
                let next = (before.generation, before.attempt + 1, before.elapsed_ms, RepairView::Waiting);
                assert_eq!((after.generation, after.attempt, after.elapsed_ms, after.phase), next);
                assert_eq!(after.level, before.level);
                plays(world, 6 * SECOND);
                assert_eq!(flag(world, 1), None, "the next attempt proves it");
                assert_eq!(stage(world, "escrow_participant_state_blocked"), 1);
                assert_eq!(stage(world, "escrow_participant_state_unblocked"), 1);
            },
        );
    }
}

#[test]
fn a_kill_of_the_host_while_it_is_to_prove_goes_on_with_the_same_repair() {
    for power_cut in [false, true] {
        with_both(
            |_| {},
            |world| {
                let before = until_verifying(world);
                does(world, What::Crash { host: 1, store: Store::Kept, power_cut, down_ms: SECOND });
                plays(world, SECOND);
                let after = flag(world, 1).expect("nothing is proven");
                let next = (before.generation, before.attempt + 1, RepairView::Waiting);
                assert_eq!((after.generation, after.attempt, after.phase), next);
                plays(world, 10 * MINUTE);
                assert_eq!(flag(world, 1), None);
                assert_eq!(stage(world, "escrow_participant_state_blocked"), 1);
                assert_eq!(stage(world, "escrow_participant_state_unblocked"), 1);
            },
        );
    }
}

/// The proof was good and is on disk; nobody was told of it before the process died.
#[test]
fn a_gateway_that_dies_after_the_commit_that_clears_a_flag_has_not_lost_it() {
    let silent = std::cell::Cell::new(0);
    for nth in 1..24 {
        with_both(
            |_| {},
            |world| {
                traffic(world, 8, 200);
                does(world, fork(Fork::Refuses, Heal::Restart));
                until_flagged(world, 1);
                does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 50 });
                let how = Commit::DiesAfter;
                does(world, What::CommitFault { nth, how, power_cut: true, down_ms: SECOND });
                plays(world, 3 * MINUTE);
                assert_eq!(flag(world, 1), None, "commit {nth}");
                assert_eq!(world.watch.totals.restores, 1, "commit {nth}");
                silent.set(silent.get() + u64::from(stage(world, "escrow_participant_state_unblocked") == 0));
            },
        );
    }
    assert!(silent.get() > 0, "no commit was the one that clears the flag");
}
