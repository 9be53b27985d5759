//! Single faults in a plain group, with what must follow from them step by step: the acceptance of the repair loop.

use holdfast_gateway::core::{ClientEvent, Event, FlagView, HostCall, RepairView, RequestError, Verb};

use crate::escrow::cast::{Cast, Programs};
use crate::escrow::ledger::End;
use crate::escrow::schedule::{Fate, Fork, Heal, Mood, Schedule, Store, What, Work};
use crate::escrow::world::{Seen, World};

pub(super) const SECOND: u64 = 1_000;
pub(super) const MINUTE: u64 = 60 * SECOND;
/// The faults of a scenario are those of its own text.
pub(super) const NEVER_MS: u64 = 100 * 60 * MINUTE;
pub(super) const BOTH: [Programs; 2] = [Programs::Model, Programs::Real];

/// A short request.
pub(super) fn request() -> What {
    let work = Work { tokens: 3, pace_ms: 20, fate: Fate::Done };
    What::Request { filling: 20, limits: (64, 8), work, patience_ms: 60 * SECOND }
}

pub(super) fn fork(how: Fork, heal: Heal) -> What {
    What::Fork { host: 1, after: 0, how, heal }
}

/// Plays `scene` in a group of four with the simulator's own hosts, then with the program's.
pub(super) fn with_both(change: impl Fn(&mut Cast), scene: impl Fn(&mut World<'_>)) {
    for programs in BOTH {
        let mut cast = Cast::plain(1, 4, programs);
        change(&mut cast);
        let plan = Schedule { items: Vec::new(), calm_ms: NEVER_MS };
        let mut world = World::new(&cast, &plan, &[], false);
        world.play_until(500).unwrap();
        scene(&mut world);
    }
}

pub(super) fn does(world: &mut World<'_>, what: What) {
    world.now_happens(what).unwrap();
}

/// So many requests, one every `gap_ms`.
pub(super) fn traffic(world: &mut World<'_>, requests: u64, gap_ms: u64) {
    for _ in 0..requests {
        does(world, request());
        let next = world.since() + gap_ms;
        world.play_until(next).unwrap();
    }
}

pub(super) fn plays(world: &mut World<'_>, ms: u64) {
    let until = world.since() + ms;
    world.play_until(until).unwrap();
}

pub(super) fn flag(world: &World<'_>, host: usize) -> Option<FlagView> {
    world.watch.flags.get(&world.nodes[host].member.address).cloned()
}

pub(super) fn calls<'w>(world: &'w World<'_>, host: usize) -> impl Iterator<Item = &'w Seen> {
    world.seen.iter().filter(move |seen| seen.host == host)
}

/// Times of the repair attempts of a host: each begins with a Teach that carries diffs or a challenge.
fn attempts(world: &World<'_>, host: usize, from_ms: u64) -> Vec<u64> {
    let teaches = calls(world, host).filter(|seen| {
        seen.at_ms >= from_ms && matches!(&*seen.call, HostCall::Teach(_) | HostCall::ResetSession(_))
    });
    let mut times: Vec<u64> = teaches.map(|seen| seen.at_ms).collect();
    times.dedup_by_key(|at| *at / SECOND);
    times
}

pub(super) fn infers(world: &World<'_>, host: usize, from_ms: u64) -> usize {
    let infer = |seen: &&Seen| seen.at_ms >= from_ms && matches!(&*seen.call, HostCall::Infer(_));
    calls(world, host).filter(infer).count()
}

pub(super) fn stage(world: &World<'_>, name: &'static str) -> u64 {
    world.stages.get(name).copied().unwrap_or(0)
}

pub(super) fn row(world: &World<'_>, host: usize) -> crate::escrow::ledger::Row {
    world.watch.ledger.rows[host]
}

/// Plays requests until the host is flagged; the time of the flag.
pub(super) fn until_flagged(world: &mut World<'_>, host: usize) -> u64 {
    for _ in 0..60 {
        if flag(world, host).is_some() {
            return world.since();
        }
        does(world, request());
        plays(world, 300);
    }
    panic!("host{host} is never flagged");
}

#[test]
fn a_signed_mismatch_starts_one_repair_of_that_host_alone() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            // Several requests at once: more than one of them meets the mismatch.
            does(world, fork(Fork::Refuses, Heal::Restart));
            for _ in 0..12 {
                does(world, request());
            }
            plays(world, 10 * SECOND);
            assert_eq!(flag(world, 1).map(|flag| flag.generation), Some(1));
            assert_eq!(stage(world, "escrow_participant_state_blocked"), 1);
            assert_eq!(stage(world, "escrow_participant_state_repair_started"), 1);
            assert_eq!((0..4).filter(|host| flag(world, *host).is_some()).count(), 1);
        },
    );
}

#[test]
fn a_host_that_restarts_empty_is_taught_signs_our_root_and_serves_again() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            does(world, fork(Fork::Refuses, Heal::Restart));
            let at = until_flagged(world, 1);
            does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 2 * SECOND });
            traffic(world, 60, SECOND);
            assert_eq!(flag(world, 1), None, "restored");
            assert_eq!(stage(world, "escrow_participant_state_unblocked"), 1);
            // Session not found: it was bound again and taught from the first diff.
            let bound =
                calls(world, 1).any(|seen| seen.at_ms > at && matches!(&*seen.call, HostCall::Bind(_)));
            let from_one = calls(world, 1).any(|seen| match &*seen.call {
                HostCall::Teach(call) => seen.at_ms > at && first_nonce(&call.diffs) == Some(1),
                _ => false,
            });
            assert!(bound && from_one);
            assert!(infers(world, 1, at + 5 * SECOND) > 0, "it is in the rota again");
        },
    );
}

fn first_nonce(diffs: &[Vec<u8>]) -> Option<u64> {
    holdfast_escrow::session::Diff::from_bytes(diffs.first()?).ok().map(|diff| diff.nonce)
}

#[test]
fn a_host_that_comes_back_from_an_older_copy_is_taught_the_rest_and_never_flagged() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            world.nodes[1].back_up();
            traffic(world, 12, 200);
            does(world, What::Crash { host: 1, store: Store::Older, power_cut: false, down_ms: 500 });
            traffic(world, 12, 400);
            plays(world, 3 * SECOND);
            assert_eq!(world.watch.totals.flags, 0);
            let served = world.watch.ledger.entries.iter().rev().find(|(_, entry)| entry.slot == 1);
            assert_eq!(served.and_then(|(_, entry)| entry.end), Some(End::Finished));
        },
    );
}

#[test]
fn a_true_fork_keeps_its_flag_and_gets_no_request_even_if_it_would_answer() {
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Careless, Heal::Never));
            let at = until_flagged(world, 1);
            traffic(world, 120, SECOND);
            let flag = flag(world, 1).expect("still flagged");
            assert!(flag.forked, "it holds another state: {flag:?}");
            assert_eq!(flag.level, 3);
            assert_eq!(infers(world, 1, at + 1), 0);
            assert_eq!(stage(world, "escrow_participant_state_unblocked"), 0);
        },
    );
}

#[test]
fn the_answer_of_a_request_in_flight_does_not_clear_the_flag() {
    with_both(
        |_| {},
        |world| {
            // One long request for each host; then host1 parts from us and shows it to the next one.
            let work = Work { tokens: 8, pace_ms: 500, fate: Fate::Done };
            for _ in 0..4 {
                does(world, What::Request { filling: 0, limits: (64, 16), work, patience_ms: MINUTE });
            }
            plays(world, 200);
            let (first, _) = *world
                .watch
                .ledger
                .entries
                .iter()
                .find(|(_, e)| e.slot == 1)
                .map(|(id, e)| (*id, *e))
                .as_ref()
                .expect("it works on one");
            does(world, fork(Fork::Refuses, Heal::Never));
            until_flagged(world, 1);
            let completed = world.watch.totals.completed;
            plays(world, 8 * SECOND);
            assert!(world.watch.totals.completed > completed, "its client got the answer");
            assert_eq!(world.watch.ledger.entries[&first].end, Some(End::Finished));
            assert!(flag(world, 1).is_some());
            assert_eq!(stage(world, "escrow_participant_state_unblocked"), 0);
        },
    );
}

#[test]
fn a_host_under_repair_is_passed_without_a_start() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            does(world, fork(Fork::Refuses, Heal::Never));
            until_flagged(world, 1);
            let (started, nonce) = (row(world, 1).started, world.watch.ledger.nonce);
            for _ in 0..30 {
                does(world, request());
            }
            plays(world, 60 * SECOND);
            assert!(flag(world, 1).is_some_and(|flag| flag.phase != RepairView::GaveUp));
            assert!(world.watch.ledger.nonce > nonce + 30, "its nonces passed");
            assert_eq!(row(world, 1).started, started);
            // What was sent before counts; the passes do not.
            assert!(row(world, 1).missed <= 1 + started);
        },
    );
}

#[test]
fn the_others_serve_and_are_not_taught_while_one_host_is_repaired() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            does(world, fork(Fork::Refuses, Heal::Never));
            let at = until_flagged(world, 1);
            plays(world, 2 * SECOND);
            let (completed, requests) = (world.watch.totals.completed, world.watch.totals.requests);
            traffic(world, 60, 500);
            plays(world, 5 * SECOND);
            assert_eq!(world.watch.totals.requests - requests, world.watch.totals.completed - completed);
            for host in [0, 2, 3] {
                let challenged = calls(world, host).any(|seen| match &*seen.call {
                    HostCall::Teach(call) => seen.at_ms > at && call.challenge.is_some(),
                    _ => false,
                });
                assert!(!challenged, "host{host} is no business of the repair");
            }
        },
    );
}

#[test]
fn a_stopped_session_makes_no_more_calls_and_gives_its_permits_back() {
    for stop_after in [0, 400, 600, 700, 1_500, 20_000] {
        with_both(
            |_| {},
            |world| {
                does(world, fork(Fork::Refuses, Heal::Never));
                until_flagged(world, 1);
                plays(world, stop_after);
                world.tell(Event::Stop).unwrap();
                plays(world, 2 * SECOND);
                let made = world.seen.len();
                plays(world, 20 * MINUTE);
                assert_eq!(world.seen.len(), made);
                assert_eq!(world.permits.free(), 8);
            },
        );
    }
}

#[test]
fn attempts_come_at_once_then_after_15_s_30_s_1_min_and_5_min_with_jitter() {
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Refuses, Heal::Never));
            let flagged = until_flagged(world, 1);
            plays(world, 20 * MINUTE);
            let times = attempts(world, 1, flagged);
            assert!(times[0] <= flagged + 600, "{times:?} after {flagged}");
            let bases = [15, 30, 60, 300, 300];
            for (pair, base) in times.windows(2).zip(bases) {
                let (waited, base) = (pair[1] - pair[0], base * SECOND);
                // An attempt against this fork takes less than a second.
                assert!(
                    waited >= base * 3 / 4 && waited <= base * 5 / 4 + SECOND,
                    "{times:?}: {waited} for {base}"
                );
            }
        },
    );
}

#[test]
fn events_during_the_backoff_wake_no_attempt_early() {
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Refuses, Heal::Never));
            let flagged = until_flagged(world, 1);
            plays(world, 60 * SECOND);
            let before = attempts(world, 1, flagged);
            // Traffic, clock jumps and announcements while it waits for its one-minute turn.
            for _ in 0..20 {
                does(world, request());
                does(world, What::GatewayClock { by_ms: 50_000 });
                plays(world, 500);
            }
            does(world, What::Crash { host: 1, store: Store::Kept, power_cut: false, down_ms: 100 });
            plays(world, 5 * SECOND);
            let after = attempts(world, 1, flagged);
            assert!(after.len() <= before.len() + 1, "{before:?} {after:?}");
            for pair in after.windows(2) {
                assert!(pair[1] - pair[0] >= 11_250, "{after:?}");
            }
        },
    );
}

#[test]
fn after_the_give_up_its_nonces_are_charged_again_and_nothing_is_sent() {
    with_both(
        |cast| cast.gateway.give_up_ms = 6 * MINUTE,
        |world| {
            does(world, fork(Fork::Refuses, Heal::Never));
            let flagged = until_flagged(world, 1);
            plays(world, 12 * MINUTE);
            assert_eq!(flag(world, 1).map(|flag| flag.phase), Some(RepairView::GaveUp));
            assert_eq!(stage(world, "escrow_participant_state_repair_gave_up"), 1);
            let before = row(world, 1);
            for _ in 0..20 {
                does(world, request());
            }
            plays(world, 60 * SECOND);
            let after = row(world, 1);
            assert!(after.started >= before.started + 4, "{before:?} {after:?}");
            assert_eq!(after.missed - before.missed, after.started - before.started, "each by votes");
            assert_eq!(infers(world, 1, flagged + 1), 0);
        },
    );
}

#[test]
fn the_tripping_nonce_is_missed_by_the_votes_of_the_others() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            does(world, fork(Fork::Refuses, Heal::Restart));
            until_flagged(world, 1);
            let tripping = *world
                .watch
                .sent()
                .iter()
                .rev()
                .find(|(_, whom)| **whom == world.nodes[1].member.address)
                .expect("it was sent something")
                .0;
            // Healed at once: the fault of that nonce stays all the same.
            does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 500 });
            world.nodes[1].mask.moods.push((Mood::Refuses, u64::MAX));
            plays(world, 3 * MINUTE);
            assert_eq!(world.watch.ledger.entries[&tripping].end, Some(End::Missed));
            assert_eq!(flag(world, 1), None);
        },
    );
}

#[test]
fn a_host_that_withholds_is_neither_flagged_nor_restored() {
    with_both(
        |_| {},
        |world| {
            does(world, What::Mood { host: 2, mood: Mood::Withholds, for_ms: NEVER_MS });
            traffic(world, 20, 200);
            assert_eq!(world.watch.totals.flags, 0, "withheld is no fork");
            does(world, fork(Fork::Refuses, Heal::Restart));
            until_flagged(world, 1);
            does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 500 });
            does(world, What::Mood { host: 1, mood: Mood::Withholds, for_ms: 3 * MINUTE });
            plays(world, 2 * MINUTE);
            let held = flag(world, 1).expect("without a signature nothing is proven");
            assert!(!held.forked);
            plays(world, 8 * MINUTE);
            assert_eq!(flag(world, 1), None);
        },
    );
}

#[test]
fn bodies_that_speak_of_divergence_trip_nothing() {
    for mood in [
        Mood::Crafted,
        Mood::Garbage,
        Mood::TooLarge,
        Mood::ForgedFork,
        Mood::ClaimsAhead,
        Mood::BogusTxs,
        Mood::Refuses,
    ] {
        with_both(
            |_| {},
            |world| {
                traffic(world, 6, 200);
                does(world, What::Mood { host: 1, mood, for_ms: NEVER_MS });
                traffic(world, 40, 400);
                plays(world, 30 * SECOND);
                assert_eq!(world.watch.totals.flags, 0, "{mood:?}");
                assert!(world.watch.totals.completed >= 30, "{mood:?}: {}", world.watch.totals);
            },
        );
    }
}

#[test]
fn a_claim_above_our_tip_moves_no_cursor_and_proves_nothing() {
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Refuses, Heal::Restart));
            until_flagged(world, 1);
            does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 200 });
            does(world, What::Mood { host: 1, mood: Mood::ClaimsAhead, for_ms: 2 * MINUTE });
            plays(world, 110 * SECOND);
            assert!(flag(world, 1).is_some());
            plays(world, 10 * MINUTE);
            assert_eq!(flag(world, 1), None);
        },
    );
}

#[test]
fn an_announced_restart_reopens_what_was_given_up() {
    with_both(
        |cast| cast.gateway.give_up_ms = 6 * MINUTE,
        |world| {
            does(world, fork(Fork::Refuses, Heal::Restart));
            until_flagged(world, 1);
            plays(world, 12 * MINUTE);
            assert_eq!(flag(world, 1).map(|flag| flag.phase), Some(RepairView::GaveUp));
            does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: SECOND });
            plays(world, 2 * MINUTE);
            assert_eq!(flag(world, 1), None);
        },
    );
}

#[test]
fn reset_session_heals_a_fork_when_both_sides_allow_it_and_not_otherwise() {
    for (allow, consent) in [(true, true), (true, false), (false, true)] {
        with_both(
            |cast| {
                cast.gateway.allow_reset = allow;
                cast.members[1].consent = consent;
            },
            |world| {
                does(world, fork(Fork::Careless, Heal::Reset));
                until_flagged(world, 1);
                plays(world, 20 * MINUTE);
                assert_eq!(flag(world, 1).is_none(), allow && consent, "allowed {allow}, consent {consent}");
                assert_eq!(world.watch.totals.resets > 0, allow && consent);
            },
        );
    }
}

#[test]
fn force_teach_saves_the_wait_give_up_charges_and_release_forgives() {
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Refuses, Heal::Restart));
            let flagged = until_flagged(world, 1);
            plays(world, 3 * MINUTE);
            does(world, What::Crash { host: 1, store: Store::Empty, power_cut: false, down_ms: 100 });
            plays(world, SECOND);
            assert!(flag(world, 1).is_some(), "its next turn is minutes away");
            let before = attempts(world, 1, flagged).len();
            world.operator(1, Verb::ForceTeach).unwrap();
            plays(world, 4 * SECOND);
            assert!(attempts(world, 1, flagged).len() > before);
            assert_eq!(flag(world, 1), None);
        },
    );
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Refuses, Heal::Never));
            until_flagged(world, 1);
            plays(world, 2 * SECOND);
            world.operator(1, Verb::GiveUp).unwrap();
            assert_eq!(flag(world, 1).map(|flag| flag.phase), Some(RepairView::GaveUp));
            let charged = row(world, 1).started;
            (0..8).for_each(|_| does(world, request()));
            plays(world, 10 * SECOND);
            assert!(row(world, 1).started > charged);
            world.operator(1, Verb::Release).unwrap();
            assert!(flag(world, 1).is_some_and(|flag| flag.released), "only proof removes the flag");
            let forgiven = row(world, 1).started;
            (0..8).for_each(|_| does(world, request()));
            plays(world, 10 * SECOND);
            assert_eq!(row(world, 1).started, forgiven);
        },
    );
}

#[test]
fn a_liar_trips_again_with_the_next_generation() {
    with_both(
        |_| {},
        |world| {
            does(world, fork(Fork::Liar, Heal::Never));
            until_flagged(world, 1);
            traffic(world, 240, SECOND);
            assert!(
                world.watch.totals.flags >= 2 && world.watch.totals.restores >= 1,
                "{}",
                world.watch.totals
            );
            let raised = flag(world, 1).map_or(2, |flag| flag.generation);
            assert!(raised >= 2);
        },
    );
}

#[test]
fn one_fork_against_two_honest_hosts_does_not_stop_us() {
    for programs in BOTH {
        let cast = Cast::plain(1, 3, programs);
        let plan = Schedule { items: Vec::new(), calm_ms: NEVER_MS };
        let mut world = World::new(&cast, &plan, &[], false);
        world.play_until(500).unwrap();
        traffic(&mut world, 6, 200);
        does(&mut world, fork(Fork::Careless, Heal::Never));
        until_flagged(&mut world, 1);
        plays(&mut world, 20 * SECOND);
        assert!(world.core().is_some_and(|core| !core.status().self_suspect));
        let completed = world.watch.totals.completed;
        traffic(&mut world, 6, 300);
        plays(&mut world, 2 * SECOND);
        assert_eq!(world.watch.totals.completed, completed + 6);
    }
}

#[test]
fn when_most_of_the_weight_disagrees_we_suspect_ourselves_and_dispatch_nothing() {
    with_both(
        |_| {},
        |world| {
            traffic(world, 8, 200);
            for host in [0, 1, 2] {
                does(world, What::Fork { host, after: 0, how: Fork::Careless, heal: Heal::Restart });
            }
            for _ in 0..10 {
                does(world, request());
            }
            plays(world, 30 * SECOND);
            assert!(world.core().is_some_and(|core| core.status().self_suspect), "{:?}", world.stages);
            let dispatched = world.watch.totals.dispatches;
            does(world, request());
            plays(world, 5 * SECOND);
            assert_eq!(world.watch.totals.dispatches, dispatched);
            let told = world.told.last().map(|(_, event)| event.clone());
            assert_eq!(told, Some(ClientEvent::Failed(RequestError::SelfSuspect)));
            // They were wrong after all: with a quorum over our root we trust ourselves again.
            for host in [0, 1, 2] {
                does(world, What::Crash { host, store: Store::Empty, power_cut: false, down_ms: 100 });
            }
            plays(world, 20 * MINUTE);
            assert!(world.core().is_some_and(|core| !core.status().self_suspect));
            let completed = world.watch.totals.completed;
            does(world, request());
            plays(world, 5 * SECOND);
            assert_eq!(world.watch.totals.completed, completed + 1);
        },
    );
}
