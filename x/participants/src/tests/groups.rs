//! Epoch groups: frozen at the boundary, they only shrink inside (breaker-details 0.2).

use super::*;

#[test]
fn who_joins_in_an_epoch_works_from_the_next() {
    let mut w = World::new(10, 0);
    w.go(7);
    w.join(addr(1), &["a"], 100);
    for height in 7..11 {
        w.go(height);
        assert_eq!(w.standing("a", addr(1)), Standing::default(), "height {height}");
    }
    w.go(11);
    assert_eq!(w.weight("a", addr(1)), 10);
    assert_eq!(
        *w.ears.sums.borrow(),
        Sums::from([("a".into(), (10, 1, 0)), ("b".into(), (0, 0, 0)), ("c".into(), (0, 0, 0))])
    );
    // Joined in the very first block of an epoch: also the next.
    w.join(addr(2), &["a"], 100);
    w.go(20);
    assert_eq!(w.weight("a", addr(2)), 0);
    w.go(21);
    assert_eq!(w.weight("a", addr(2)), 10);
}

#[test]
fn leaving_and_joining_again_in_one_epoch_does_not_bring_the_weight_back() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.go(12);
    w.leave(addr(1)).unwrap();
    w.join(addr(1), &["a", "b"], 500);
    w.ears.seen.take();
    for height in 12..=20 {
        w.go(height);
        assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (0, 0), "height {height}");
        w.check("rejoined");
    }
    assert_eq!(w.ears.seen.take(), []);
    w.go(21);
    assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (50, 50));
    let now = w.stored(addr(1));
    assert_eq!(
        (now.collateral, now.unbonding, now.unbonding_epoch),
        (500, 100, 2),
        "the old bond still unbonds"
    );
}

#[test]
fn dropping_and_adding_a_model_again_in_one_epoch_does_not_bring_its_weight_back() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.go(11);
    w.update(addr(1), &["b"], false).unwrap();
    w.update(addr(1), &["a", "b"], false).unwrap();
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 10, 0)]);
    assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (0, 10));
    w.check("dropped and added");
    w.go(20);
    assert_eq!(w.weight("a", addr(1)), 0);
    w.go(21);
    assert_eq!((w.weight("a", addr(1)), w.weight("b", addr(1))), (10, 10));
}

#[test]
fn a_model_added_counts_from_the_next_epoch() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 100);
    w.go(11);
    w.update(addr(1), &["a", "c"], false).unwrap();
    assert_eq!((w.weight("a", addr(1)), w.weight("c", addr(1))), (10, 0));
    assert_eq!(w.ears.seen.take(), []);
    w.go(21);
    assert_eq!((w.weight("a", addr(1)), w.weight("c", addr(1))), (10, 10));
}

#[test]
fn a_weight_of_zero_is_no_membership() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 9);
    w.go(11);
    assert_eq!(w.standing("a", addr(1)), Standing::default());
    assert!(w.keeper().has_participant(&w.chain.store, &addr(1)).unwrap());
    w.deposit(addr(1), 1).unwrap();
    assert_eq!(w.weight("a", addr(1)), 0);
    w.go(21);
    assert_eq!(w.weight("a", addr(1)), 1);
}

#[test]
fn the_slow_breakers_verdict_lasts_until_the_epoch_ends_and_no_longer() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a", "b"], 100);
    w.join(addr(2), &["a"], 100);
    w.go(15);
    w.deactivate(addr(1)).unwrap();
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 10, 0), hook("b", addr(1), 10, 0)]);
    w.deactivate(addr(1)).unwrap();
    assert_eq!(w.ears.seen.take(), [], "a second verdict tells nobody");
    for height in 15..=20 {
        w.go(height);
        let standing = w.standing("a", addr(1));
        assert_eq!((standing.member, standing.active, standing.eligible()), (true, false, false));
        w.check("inactive");
    }
    w.deposit(addr(1), 50).unwrap();
    w.go(21);
    let standing = w.standing("a", addr(1));
    assert_eq!((standing.active, standing.weight), (true, 15), "back by itself");
    w.check("back");
    assert_eq!(w.ears.seen.take(), [], "the totals of the epoch tell it");
}

#[test]
fn only_a_registered_participant_is_deactivated() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 100);
    w.go(11);
    w.leave(addr(1)).unwrap();
    for nobody in [addr(1), addr(2)] {
        let (space, code, _) = w.refused(|ctx, k, hooks| k.deactivate(ctx, &nobody, hooks));
        assert_eq!((space, code), ("participants", 5));
    }
}

#[test]
fn who_is_inactive_and_leaves_is_not_taken_out_twice() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 100);
    w.go(11);
    w.deactivate(addr(1)).unwrap();
    w.leave(addr(1)).unwrap();
    assert_eq!(w.ears.seen.take(), [hook("a", addr(1), 10, 0)]);
    w.join(addr(1), &["a"], 100);
    w.check("inactive, left, joined");
    assert_eq!(w.standing("a", addr(1)), Standing::default());
    w.go(21);
    assert!(w.standing("a", addr(1)).eligible());
}

#[test]
fn totals_name_every_model_and_leave_out_who_is_in_maintenance() {
    let mut w = World::new(10, 2);
    w.join_as(addr(1), &["a"], 100, true);
    w.join(addr(2), &["a", "b"], 200);
    w.announce(addr(2), 9, 13).unwrap();
    w.go(11);
    // `begin` has compared the totals with a scan; these are the numbers.
    let sums = w.ears.sums.borrow().clone();
    assert_eq!(
        sums,
        Sums::from([("a".into(), (10, 1, 1)), ("b".into(), (0, 0, 0)), ("c".into(), (0, 0, 0))])
    );
    w.go(13);
    let sums = w.ears.sums.borrow().clone();
    assert_eq!(sums["a"], (30, 2, 1));
    assert_eq!(sums["b"], (20, 1, 0));
    assert_eq!(w.ears.seen.take(), [hook("a", addr(2), 0, 20), hook("b", addr(2), 0, 20)]);
}

#[test]
fn reads_tell_models_and_participants_known_from_unknown() {
    let mut w = World::new(10, 0);
    w.join(addr(1), &["a"], 100);
    w.leave(addr(1)).unwrap();
    let (k, store) = (w.keeper(), &w.chain.store);
    assert!(k.has_model(store, "a").unwrap() && !k.has_model(store, "z").unwrap());
    assert!(k.has_participant(store, &addr(1)).unwrap(), "who left is still known");
    assert!(!k.has_participant(store, &addr(2)).unwrap());
    assert_eq!(k.models(store).unwrap(), ["a", "b", "c"]);
}
