//! Why an expired inference is no miss (breaker-details 3, "At expiry"): any block of its life counts, both ends
//! included.

use super::*;

/// Participant 1 serves `a` with weight 10; the schedule is `length`, `poc_length`; epoch 1 has begun.
fn world(length: i64, poc_length: i64, preserved: bool) -> World {
    let mut w = World::new(length, poc_length);
    w.join_as(addr(1), &["a"], 100, preserved);
    w.go(length + 1);
    w
}

#[test]
fn nothing_excuses_an_executor_that_was_there() {
    let mut w = world(100, 0, false);
    w.go(190);
    assert_eq!(w.excuse(addr(1), 150, 170), None);
    assert_eq!(w.excuse(addr(1), 101, 190), None);
    w.go(201);
    assert_eq!(w.excuse(addr(1), 150, 201), None, "nor one that is in the next group as well");
}

#[test]
fn maintenance_excuses_from_its_first_block_to_its_last() {
    // The window is 140 to 149: it ends before 150.
    let mut w = world(100, 0, false);
    w.announce(addr(1), 140, 150).unwrap();
    w.go(190);
    for (from, to, excused) in [
        (120, 139, false),
        (120, 140, true),
        (120, 141, true),
        (120, 170, true),
        (141, 148, true),
        (148, 170, true),
        (149, 170, true),
        (150, 170, false),
        (151, 170, false),
    ] {
        let expected = excused.then_some(Excuse::Maintenance);
        assert_eq!(w.excuse(addr(1), from, to), expected, "{from} to {to}");
    }
    assert_eq!(w.excuse(addr(2), 120, 170), None, "of another participant");
}

#[test]
fn maintenance_that_is_still_open_excuses() {
    let mut w = world(100, 0, false);
    w.announce(addr(1), 140, 180).unwrap();
    w.go(145);
    assert_eq!(w.excuse(addr(1), 125, 145), Some(Excuse::Maintenance));
    assert_eq!(w.excuse(addr(1), 119, 139), None);
}

#[test]
fn maintenance_announced_with_the_start_or_after_it_does_not_excuse() {
    let mut w = world(100, 0, false);
    w.go(130);
    w.announce(addr(1), 140, 150).unwrap();
    w.go(170);
    assert_eq!(w.excuse(addr(1), 131, 151), Some(Excuse::Maintenance), "announced one block before");
    assert_eq!(w.excuse(addr(1), 130, 150), None, "announced in the block of the start");
    assert_eq!(w.excuse(addr(1), 129, 149), None, "announced after it");
}

#[test]
fn a_poc_phase_excuses_from_its_first_block_to_its_last_unless_preserved() {
    // Epoch 1 is 101 to 200, its PoC phase 181 to 200.
    for preserved in [false, true] {
        let mut w = world(100, 20, preserved);
        w.go(240);
        for (from, to, excused) in [
            (160, 180, false),
            (160, 181, true),
            (160, 182, true),
            (185, 190, true),
            (199, 220, true),
            (200, 220, true),
            (201, 221, false),
            (202, 222, false),
        ] {
            let expected = (excused && !preserved).then_some(Excuse::Poc);
            assert_eq!(w.excuse(addr(1), from, to), expected, "{from} to {to}, preserved {preserved}");
        }
    }
}

#[test]
fn a_poc_phase_of_sixty_blocks_inside_a_life_of_a_hundred_and_fifty_is_seen() {
    // Epoch 1 is 301 to 600, PoC 541 to 600; both ends of the life lie outside it.
    for (preserved, expected) in [(false, Some(Excuse::Poc)), (true, None)] {
        let mut w = world(300, 60, preserved);
        w.go(651);
        assert_eq!(w.excuse(addr(1), 500, 650), expected);
        // As E1 asks: in the block of the expiry itself.
        let mut w = world(300, 60, preserved);
        w.go(650);
        assert_eq!(w.excuse(addr(1), 500, 650), expected);
    }
}

#[test]
fn each_epochs_poc_phase_is_judged_by_the_flag_of_that_epoch() {
    // Preserved in epoch 1 (PoC 181 to 200), not in epoch 2 (PoC 281 to 300), again in epoch 3.
    let mut w = world(100, 20, true);
    w.update(addr(1), &["a"], false).unwrap();
    w.go(240);
    assert_eq!(w.excuse(addr(1), 190, 210), None, "seen from epoch 2, in epoch 1 it was preserved");
    w.update(addr(1), &["a"], true).unwrap();
    w.go(290);
    assert_eq!(w.excuse(addr(1), 190, 290), Some(Excuse::Poc));
    assert_eq!(w.excuse(addr(1), 190, 280), None);
    w.go(310);
    assert_eq!(w.excuse(addr(1), 290, 310), Some(Excuse::Poc), "seen from epoch 3, in epoch 2 it was not");
    assert_eq!(w.excuse(addr(1), 301, 310), None);
    w.go(395);
    assert_eq!(w.excuse(addr(1), 310, 395), None);
}

#[test]
fn who_leaves_drops_the_model_or_is_taken_out_is_excused_from_that_block_to_the_end_of_the_epoch() {
    type Step = fn(&mut World) -> Result<(), ModuleError>;
    let ways: [(&str, Step); 4] = [
        ("leave", |w| w.leave(addr(1))),
        ("drop", |w| w.update(addr(1), &["b"], false)),
        ("drop and add again", |w| {
            w.update(addr(1), &["b"], false)?;
            w.update(addr(1), &["a"], false)
        }),
        ("inactive", |w| w.deactivate(addr(1))),
    ];
    for (name, step) in ways {
        let mut w = world(100, 0, false);
        w.go(150);
        step(&mut w).unwrap();
        w.go(199);
        for (from, to, excused) in [
            (129, 149, false),
            (130, 150, true),
            (131, 151, true),
            (149, 169, true),
            (150, 170, true),
            (151, 170, true),
            (170, 199, true),
        ] {
            let expected = excused.then_some(Excuse::Left);
            assert_eq!(w.excuse(addr(1), from, to), expected, "{name}: {from} to {to}");
        }
        if name == "drop and add again" || name == "inactive" {
            w.go(230);
            assert_eq!(w.excuse(addr(1), 201, 221), None, "{name}: back in the next epoch");
            assert_eq!(w.excuse(addr(1), 200, 220), Some(Excuse::Left), "{name}: the last block out");
        }
    }
}

#[test]
fn who_leaves_in_maintenance_that_does_not_excuse_has_left_all_the_same() {
    let mut w = world(100, 0, false);
    w.announce(addr(1), 110, 120).unwrap();
    w.go(112);
    w.leave(addr(1)).unwrap();
    w.go(125);
    assert_eq!(w.excuse(addr(1), 101, 111), None, "announced in the block of the start");
    assert_eq!(w.excuse(addr(1), 101, 121), Some(Excuse::Left));
}

#[test]
fn dropping_one_model_is_no_excuse_for_another() {
    let mut w = World::new(100, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.go(150);
    w.update(addr(1), &["a"], false).unwrap();
    w.go(190);
    let of_b = w.keeper().excuse(&w.chain.store, &w.chain.block, "b", &addr(1), 140, 160).unwrap();
    assert_eq!((w.excuse(addr(1), 140, 160), of_b), (None, Some(Excuse::Left)));
}

#[test]
fn who_is_absent_from_the_next_epochs_group_is_excused_once_the_life_reaches_it() {
    // Nothing is left of the weight in epoch 2, which begins at 201.
    let mut w = world(100, 0, false);
    w.withdraw(addr(1), 100).unwrap();
    w.go(225);
    assert_eq!(w.excuse(addr(1), 180, 200), None, "inside the epoch it still worked");
    assert_eq!(w.excuse(addr(1), 181, 201), Some(Excuse::Left));
    assert_eq!(w.excuse(addr(1), 200, 220), Some(Excuse::Left));
}

#[test]
fn the_first_reason_wins_maintenance_then_poc_then_left() {
    let mut w = world(100, 20, false);
    w.announce(addr(1), 185, 190).unwrap();
    w.go(195);
    w.leave(addr(1)).unwrap();
    w.go(199);
    assert_eq!(w.excuse(addr(1), 180, 199), Some(Excuse::Maintenance));
    assert_eq!(w.excuse(addr(1), 191, 199), Some(Excuse::Left), "who left is no member whose PoC counts");
    let mut w = world(100, 20, false);
    w.deactivate(addr(1)).unwrap();
    w.go(199);
    assert_eq!(w.excuse(addr(1), 150, 199), Some(Excuse::Poc));
    assert_eq!(w.excuse(addr(1), 150, 160), Some(Excuse::Left));
}

#[test]
fn an_excuse_of_the_epoch_before_is_still_known_in_a_late_block() {
    // A backlog of expiries answers long after the expiry.
    let mut w = world(100, 0, false);
    w.announce(addr(1), 140, 150).unwrap();
    w.go(301);
    w.end();
    assert_eq!(w.excuse(addr(1), 135, 155), Some(Excuse::Maintenance));
}
