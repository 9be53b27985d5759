//! Maintenance windows: when they open and close, and who is told.

use super::*;
use crate::state::{DUE, IN_MAINTENANCE, WINDOWS};

/// Participants 1 (`a`, `b`, weight 10) and 2 (`a`, weight 20), height 101 of epochs of a hundred blocks.
fn world() -> World {
    let mut w = World::new(100, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.join(addr(2), &["a"], 200);
    w.go(101);
    w.told();
    w
}

fn windows(w: &World) -> Vec<(Address, Height, Height)> {
    let rows = WINDOWS.iter(&w.chain.store, Order::Ascending).map(Result::unwrap);
    rows.map(|((address, start), window)| (address, start, window.end_height)).collect()
}

#[test]
fn a_window_opens_at_its_start_closes_at_its_end_and_each_model_hears_once() {
    let mut w = world();
    let who = w.chain.bech32(&addr(1));
    w.announce(addr(1), 105, 108).unwrap();
    let window = format!("participant={who} start_height=105 end_height=108");
    assert_eq!(w.told(), [format!("EventMaintenanceAnnounced {window}")]);
    w.go(104);
    assert!(w.standing("a", addr(1)).eligible());
    assert_eq!((w.told().len(), w.ears.seen.take().len()), (0, 0));
    w.go(105);
    assert_eq!(w.told(), [format!("EventMaintenanceStarted {window}")]);
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 10, 0), hook("b", addr(1), 10, 0)]);
    let standing = w.standing("a", addr(1));
    assert!(standing.in_maintenance && standing.serving() && !standing.eligible());
    assert_eq!(w.weight("a", addr(1)), 10, "the weight itself is frozen");
    assert!(w.standing("a", addr(2)).eligible());
    w.check("open");
    w.go(107);
    assert!(w.standing("a", addr(1)).in_maintenance);
    assert_eq!((w.told().len(), w.ears.seen.take().len()), (0, 0));
    w.go(108);
    assert_eq!(w.told(), [format!("EventMaintenanceEnded {window}")]);
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 0, 10), hook("b", addr(1), 0, 10)]);
    assert!(w.standing("a", addr(1)).eligible());
    assert_eq!(windows(&w), []);
    assert_eq!(DUE.iter(&w.chain.store, Order::Ascending).count(), 0);
    w.check("closed");
}

#[test]
fn a_window_taken_back_before_it_opens_leaves_no_trace() {
    let mut w = world();
    w.go(102);
    let before = w.chain.store.clone();
    w.announce(addr(1), 105, 108).unwrap();
    w.go(104);
    w.cancel(addr(1), 105).unwrap();
    assert!(w.chain.store == before);
    assert_eq!(w.told()[1].split(' ').next(), Some("EventMaintenanceCancelled"));
    w.go(109);
    assert_eq!((w.told().len(), w.ears.seen.take().len()), (0, 0));
}

#[test]
fn an_open_window_that_is_cancelled_ends_in_that_block() {
    let mut w = world();
    w.announce(addr(1), 105, 120).unwrap();
    w.go(107);
    w.told();
    w.ears.seen.take();
    w.cancel(addr(1), 105).unwrap();
    let who = w.chain.bech32(&addr(1));
    assert_eq!(
        w.told(),
        [format!("EventMaintenanceCancelled participant={who} start_height=105 end_height=120")]
    );
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 0, 10), hook("b", addr(1), 0, 10)]);
    assert!(w.standing("a", addr(1)).eligible());
    w.check("cancelled");
    // Blocks 105 to 107 were maintenance, 108 is not.
    assert_eq!(w.excuse(addr(1), 107, 110), Some(Excuse::Maintenance));
    assert_eq!(w.excuse(addr(1), 108, 110), None);
    w.go(121);
    assert_eq!((w.told().len(), w.ears.seen.take().len()), (0, 0), "its end is no longer due");
}

#[test]
fn a_window_that_follows_at_once_keeps_the_participant_out() {
    let mut w = world();
    w.announce(addr(1), 105, 108).unwrap();
    w.announce(addr(1), 108, 110).unwrap();
    for height in 105..110 {
        w.go(height);
        assert!(w.standing("a", addr(1)).in_maintenance, "height {height}");
        w.check("two windows");
    }
    let names: Vec<_> = w.told().iter().map(|t| t.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names[2..], ["EventMaintenanceStarted", "EventMaintenanceEnded", "EventMaintenanceStarted"]);
    assert_eq!(IN_MAINTENANCE.get(&w.chain.store, &addr(1)).unwrap(), Some(108));
    w.go(110);
    assert!(w.standing("a", addr(1)).eligible());
    assert_eq!(windows(&w), []);
    w.check("both over");
}

#[test]
fn a_window_goes_on_through_leaving_and_joining_again_and_over_the_boundary() {
    let mut w = world();
    w.announce(addr(1), 195, 215).unwrap();
    w.go(196);
    w.ears.seen.take();
    w.update(addr(1), &["a", "c"], false).unwrap();
    w.leave(addr(1)).unwrap();
    assert_eq!(w.ears.seen.take(), [], "who is in maintenance is out already");
    w.check("left in maintenance");
    w.join(addr(1), &["b"], 300);
    w.check("joined in maintenance");
    w.go(201);
    assert!(w.standing("b", addr(1)).in_maintenance);
    w.deactivate(addr(1)).unwrap();
    assert_eq!(w.ears.seen.take(), []);
    w.go(215);
    assert_eq!(w.ears.seen.take(), [], "an inactive one does not come back");
    w.check("inactive after maintenance");
    w.go(301);
    assert!(w.standing("b", addr(1)).eligible());
}

#[test]
fn a_block_opens_a_thousand_windows_and_the_next_works_off_the_rest() {
    let mut w = World::new(100, 0);
    let all: Vec<Address> = (1..=1_010).map(addr_n).collect();
    for address in &all {
        w.join(*address, &["a"], 10);
    }
    w.go(101);
    for address in &all {
        w.announce(*address, 105, 107).unwrap();
    }
    w.go(105);
    let open = |w: &World| IN_MAINTENANCE.iter(&w.chain.store, Order::Ascending).count();
    assert_eq!((open(&w), DUE_ROWS_MAX), (1_000, 1_000));
    assert!(all[..1_000].iter().all(|a| w.standing("a", *a).in_maintenance), "oldest first, by address");
    assert_eq!(w.ears.sums.borrow()["a"], (10, 10, 0));
    w.check("backlog");
    w.go(106);
    assert_eq!((open(&w), w.ears.sums.borrow()["a"]), (1_010, (0, 0, 0)));
    w.go(107);
    assert_eq!((open(&w), w.ears.sums.borrow()["a"]), (10, (1_000, 1_000, 0)));
    w.go(108);
    assert_eq!((open(&w), w.ears.sums.borrow()["a"]), (0, (1_010, 1_010, 0)));
    w.check("worked off");
}

#[test]
fn a_closing_that_waits_behind_a_backlog_does_not_meet_the_next_window() {
    // The opening at 105 waits a block; by then the window's end and the next one's start are due as well.
    let mut w = World::new(100, 0);
    let all: Vec<Address> = (1..=1_001).map(addr_n).collect();
    for address in &all {
        w.join(*address, &["a"], 10);
    }
    w.go(101);
    for address in &all {
        w.announce(*address, 105, 106).unwrap();
    }
    let last = *all.last().unwrap();
    w.announce(last, 106, 109).unwrap();
    w.told();
    for height in 105..=109 {
        w.go(height);
        w.check(&format!("height {height}"));
        assert_eq!(w.standing("a", last).in_maintenance, (106..109).contains(&height), "height {height}");
    }
    assert!(w.told().iter().all(|t| !t.starts_with("EventStepDiscarded")));
    assert_eq!(windows(&w), []);
    assert_eq!(DUE.iter(&w.chain.store, Order::Ascending).count(), 0);
}

#[test]
fn a_row_whose_listener_fails_is_recorded_and_its_neighbours_go_on() {
    let mut w = world();
    w.announce(addr(1), 105, 107).unwrap();
    w.announce(addr(2), 105, 107).unwrap();
    w.told();
    w.ears.fail_for.set(Some(addr(1)));
    w.go(105);
    let who = [addr(1), addr(2)].map(|a| w.chain.bech32(&a));
    assert_eq!(
        w.told(),
        [
            format!(
                "EventStepDiscarded step=maintenance key={}/105 reason=the listener fails (sdk 35)",
                who[0]
            ),
            format!("EventMaintenanceStarted participant={} start_height=105 end_height=107", who[1]),
        ]
    );
    assert!(!w.standing("a", addr(1)).in_maintenance && w.standing("a", addr(2)).in_maintenance);
    w.check("one discarded");
    w.go(108);
    w.check("the other over");
    assert_eq!(windows(&w), [(addr(1), 105, 107)], "it can be taken back");
    w.cancel(addr(1), 105).unwrap();
    assert_eq!(windows(&w), []);
}

#[test]
fn intervals_are_pruned_two_epochs_after_they_end_and_a_thousand_a_block() {
    use crate::state::UNAVAILABILITY;
    let mut w = World::new(10, 0);
    let all: Vec<Address> = (1..=1_003).map(addr_n).collect();
    for address in &all {
        w.join(*address, &["a"], 10);
    }
    w.go(11);
    for address in &all {
        w.leave(*address).unwrap();
    }
    let kept = |w: &World| UNAVAILABILITY.entries().iter(&w.chain.store, Order::Ascending).count();
    // Epoch 1 is 11 to 20; its intervals are kept while epoch 3 lasts.
    w.go(40);
    w.end();
    assert_eq!(kept(&w), 1_003);
    w.begin(41);
    w.end();
    assert_eq!(kept(&w), 3);
    w.begin(42);
    w.end();
    assert_eq!(kept(&w), 0);
}

#[test]
fn an_interval_that_reached_into_an_epoch_is_kept_two_epochs_after_that_one() {
    use crate::state::UNAVAILABILITY;
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 10);
    w.go(21);
    // Blocks 30 and 31; epoch 3 begins with 31.
    w.announce(addr(1), 30, 32).unwrap();
    for (height, kept) in [(51, 1), (60, 1), (61, 0)] {
        w.go(height);
        w.end();
        let rows = UNAVAILABILITY.entries().iter(&w.chain.store, Order::Ascending).count();
        assert_eq!(rows, kept, "height {height}");
    }
}
