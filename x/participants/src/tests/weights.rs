//! Weights that change without a message, and the bounded sweep that asks for them again.

use super::*;
use crate::state::{MEMBERS, REFRESH_CURSOR};

/// `n` participants in `a`, weight 1 each, height 101.
fn world(n: u64, polled: bool) -> World {
    let mut w = World::new(100, 0);
    for n in 1..=n {
        w.join(addr_n(n), &["a"], 10);
    }
    w.source.polled.set(polled);
    w.go(101);
    w.told();
    w
}

fn next_weight(w: &World, n: u64) -> u64 {
    MEMBERS.get(&w.chain.store, &("a".into(), addr_n(n))).unwrap().unwrap().next_weight
}

#[test]
fn a_polled_source_is_asked_for_everybody_within_n_over_256_blocks() {
    for (n, blocks) in [(1, 1), (255, 1), (256, 1), (257, 2), (600, 3)] {
        // From any point of a round, for the first, a middle and the last participant.
        for offset in 0..3 {
            let mut w = world(n, true);
            w.go(110 + offset);
            for who in [1, n.div_ceil(2), n] {
                w.source.given.borrow_mut().insert(addr_n(who), 7);
            }
            w.go(110 + offset + blocks);
            for who in [1, n.div_ceil(2), n] {
                assert_eq!(next_weight(&w, who), 7, "{who} of {n}, offset {offset}");
                assert_eq!(w.weight("a", addr_n(who)), 1, "the running epoch keeps its weight");
            }
            w.check("polled");
            if n == 600 {
                w.go(201);
                assert_eq!(w.weight("a", addr_n(n)), 7);
            }
        }
    }
}

#[test]
fn a_source_that_is_not_polled_is_asked_only_with_a_message() {
    let mut w = world(2, false);
    w.source.given.borrow_mut().insert(addr_n(1), 7);
    w.go(201);
    assert_eq!(w.weight("a", addr_n(1)), 1);
    w.deposit(addr_n(1), 1).unwrap();
    w.go(301);
    assert_eq!(w.weight("a", addr_n(1)), 7);
}

#[test]
fn a_new_price_of_weight_reaches_everybody_256_a_block_and_then_rests() {
    let mut w = world(600, false);
    w.set_params(&Params { collateral_per_weight: 5, ..small_params() }, &["collateral_per_weight"]).unwrap();
    let swept = |w: &World| (1..=600).filter(|n| next_weight(w, *n) == 2).count();
    assert_eq!((swept(&w), REFRESH_MAX), (0, 256));
    for (height, expected) in [(102, 256), (103, 512), (104, 600)] {
        w.go(height);
        assert_eq!(swept(&w), expected, "height {height}");
        w.check("sweep");
    }
    assert_eq!(REFRESH_CURSOR.get(&w.chain.store).unwrap(), None, "the sweep is over");
    let store = w.chain.store.clone();
    w.go(110);
    assert!(w.chain.store == store);
    assert_eq!(w.weight("a", addr_n(600)), 1);
    w.go(201);
    assert_eq!(w.ears.sums.borrow()["a"], (1_200, 600, 0));
}

#[test]
fn a_second_price_during_a_sweep_starts_it_again() {
    let mut w = world(300, false);
    w.set_params(&Params { collateral_per_weight: 5, ..small_params() }, &["*"]).unwrap();
    w.go(102);
    w.set_params(&Params { collateral_per_weight: 2, ..small_params() }, &["*"]).unwrap();
    w.go(104);
    assert!((1..=300).all(|n| next_weight(&w, n) == 5));
    // The same price again starts nothing.
    w.set_params(&Params { collateral_per_weight: 2, ..small_params() }, &["*"]).unwrap();
    assert_eq!(REFRESH_CURSOR.get(&w.chain.store).unwrap(), None);
}

#[test]
fn a_participant_whose_weight_cannot_be_had_keeps_it_and_holds_up_nobody() {
    let mut w = world(3, true);
    w.source.fail_for.set(Some(addr_n(2)));
    w.source.given.borrow_mut().extend([(addr_n(2), 7), (addr_n(3), 7)]);
    w.announce(addr_n(1), 104, 106).unwrap();
    w.told();
    w.go(102);
    assert_eq!((next_weight(&w, 2), next_weight(&w, 3)), (1, 7));
    let who = w.chain.bech32(&addr_n(2));
    let told = w.told();
    assert!(told[0].starts_with(&format!("EventStepDiscarded step=weights key={who} reason=")), "{told:?}");
    assert!(told[0].contains("no weight today") && told.len() == 1, "{told:?}");
    w.go(104);
    assert!(w.standing("a", addr_n(1)).in_maintenance, "windows open all the same");
    w.check("failing source");
}

#[test]
fn a_failing_source_refuses_the_message_that_asks_it() {
    let mut w = world(1, false);
    w.source.fail_for.set(Some(addr_n(1)));
    let msg = pb::MsgDepositCollateral { participant: w.chain.bech32(&addr_n(1)), amount: Some(coin(1)) };
    let (space, code, _) = w.refused(|ctx, k, _| msg_server::deposit_collateral(ctx, k, &BANK, msg));
    assert_eq!((space, code), ("sdk", sdk::INTERNAL));
}

#[test]
fn collateral_gives_weight_rounded_down_and_stops_at_the_largest() {
    let mut w = world(1, false);
    let weight = |w: &World, bonded| CollateralWeight.weight(&w.chain.store, &addr(1), bonded).unwrap();
    assert_eq!([0, 9, 10, 19, 20].map(|bonded| weight(&w, bonded)), [0, 0, 1, 1, 2]);
    w.set_params(&Params { collateral_per_weight: 1, ..small_params() }, &["*"]).unwrap();
    let most = u128::from(u64::MAX);
    assert_eq!(
        (weight(&w, most), weight(&w, most + 1), weight(&w, u128::MAX)),
        (u64::MAX, u64::MAX, u64::MAX)
    );
    assert!(!CollateralWeight.polled());
}
