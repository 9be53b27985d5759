//! The gateway is gone: what the hosts signed is paid, or nothing is.

use super::world::*;
use crate::{Dispute, Status, calc};

/// Nonce 2, with 240 reserved for each of two open inferences: 10 200 of fees.
fn two_open(w: &World, id: u64) -> crate::session::State {
    step(&step(&session(w, id), vec![start()]), vec![start()])
}

#[test]
fn a_dispute_waits_for_the_expiry_and_is_paid_when_its_window_is_over() {
    let mut w = World::new();
    let id = w.create();
    let low = signed(&two_open(&w, id), &THREE);
    w.at(199);
    assert_eq!(w.dispute_refused("host-0", &low), 9);
    w.at(200);
    w.dispute("host-0", &low);
    let dispute = w.row(id).dispute.unwrap();
    let Dispute { nonce, sender, fees, opened_at, closes_at, ref hosts } = dispute;
    assert_eq!((nonce, sender, fees, opened_at, closes_at), (2, addr("host-0"), 10_200, 200, 220));
    assert_eq!((hosts.len(), calc::cost_of(hosts), w.status(id)), (4, Some(0), Status::Disputed));
    w.end(219);
    assert_eq!((w.status(id), w.held_at(&crate::module_account())), (Status::Disputed, AMOUNT));
    w.end(220);
    // What was reserved goes back to the creator with the balance.
    let outcome = w.row(id).outcome.unwrap();
    assert_eq!((outcome.nonce, outcome.paid, outcome.fees, outcome.refunded), (2, 0, 10_200, 989_800));
    assert_eq!((w.status(id), w.row(id).dispute), (Status::Settled, None));
    assert_eq!((w.collected(), w.held("creator"), w.all_coins()), (10_200, RICH - 10_200, RICH));
    // Two inferences were given and did not end: assigned, neither answered nor missed.
    let heard = w.near.heard.take();
    let sums = heard
        .iter()
        .fold((0, 0, 0, 0), |(a, o, m, r), c| (a + c.assigned, o + c.ok, m + c.missed, r + c.released));
    assert_eq!(sums, (2, 0, 0, 0));
}

#[test]
fn a_higher_nonce_replaces_a_lower_one_and_keeps_the_window() {
    let mut w = World::new();
    let id = w.create();
    let low = two_open(&w, id);
    let higher = step(&low, vec![confirm(&low, 1, "host-1")]);
    let highest = step(&higher, vec![finish(&higher, 1, (4, 8), "host-1")]);
    w.at(205);
    w.dispute("host-0", &signed(&higher, &THREE));
    assert_eq!(w.dispute_refused("host-1", &signed(&higher, &THREE)), 11);
    assert_eq!(w.dispute_refused("host-1", &signed(&low, &THREE)), 11);
    // In the last block of the window, 225.
    w.end(224);
    w.at(225);
    w.dispute("creator", &signed(&highest, &THREE));
    let dispute = w.row(id).dispute.unwrap();
    assert_eq!((dispute.nonce, dispute.opened_at, dispute.closes_at), (4, 205, 225));
    w.end(225);
    // Four diffs: 10 400 of fees; host-1 has 120; 240 were open.
    assert_eq!((w.held("host-1"), w.collected()), (120, 10_400));
    assert_eq!((w.held("creator"), w.all_coins()), (RICH - 10_400 - 120, RICH));
}

#[test]
fn a_settlement_ends_a_dispute() {
    let mut w = World::new();
    let id = w.create();
    w.at(201);
    w.dispute("host-0", &signed(&two_open(&w, id), &THREE));
    w.at(210);
    w.settle("creator", &signed(&vectors(&w, id), &THREE));
    assert_eq!((w.status(id), w.held("host-1"), w.collected()), (Status::Settled, 120, 10_400));
    w.end(221);
    w.end(222);
    assert_eq!((w.held("host-1"), w.all_coins()), (120, RICH));
    assert_eq!(w.dispute_refused("host-0", &signed(&vectors(&w, id), &THREE)), 8);
}

#[test]
fn a_frozen_session_can_be_disputed_too() {
    let mut w = World::new();
    let id = w.create();
    w.at(220);
    w.dispute("host-1", &signed(&vectors(&w, id), &THREE));
    w.end(240);
    assert_eq!((w.held("host-1"), w.collected(), w.held("creator")), (120, 10_400, RICH - 10_520));
}

#[test]
fn nobody_disputes_an_escrow_and_the_creation_fee_is_all_it_costs() {
    let mut w = World::new();
    let id = w.create();
    w.chain.take_events();
    w.end(219);
    assert_eq!((w.status(id), w.kinds().len()), (Status::Open, 0));
    w.end(220);
    let outcome = w.row(id).outcome.unwrap();
    assert_eq!((w.status(id), outcome.nonce, outcome.hosts.len()), (Status::Expired, 0, 0));
    assert_eq!((outcome.paid, outcome.fees, outcome.refunded), (0, 10_000, 990_000));
    assert_eq!((w.collected(), w.held("creator"), w.all_coins()), (10_000, RICH - 10_000, RICH));
    assert_eq!(w.kinds(), ["EventEscrowExpired"]);
    assert_eq!(w.near.heard.take(), []);
}

#[test]
fn a_dispute_comes_too_late_after_the_window_that_begins_with_the_expiry() {
    let mut w = World::new();
    let id = w.create();
    // The end of block 220 closes it; had that been held up by a backlog, the answer would be the same in substance.
    w.at(221);
    assert_eq!(w.dispute_refused("host-0", &signed(&two_open(&w, id), &THREE)), 10);
    w.at(220);
    w.dispute("host-0", &signed(&two_open(&w, id), &THREE));
    assert_eq!(w.row(id).due_at(), Some(240));
    w.at(241);
    let more = step(&two_open(&w, id), vec![]);
    assert_eq!(w.dispute_refused("host-0", &signed(&more, &THREE)), 10);
}

#[test]
fn a_dispute_is_checked_as_a_settlement_is_but_for_the_phase() {
    let mut w = World::new();
    let id = w.create();
    w.at(200);
    let state = two_open(&w, id);
    let good = signed(&state, &THREE);
    assert_eq!(w.settle_refused("host-0", &good), 13);
    let mut more = good.clone();
    more.balance += 480;
    // Within the amount, but not what was signed; and above it.
    assert_eq!(w.dispute_refused("host-0", &more), 14);
    more.balance += 1;
    assert_eq!(w.dispute_refused("host-0", &more), 12);
    assert_eq!(w.dispute_refused("host-0", &signed(&state, &THREE[..2])), 15);
    assert_eq!(w.dispute_refused("gateway", &good), 2);
    let mut other = good.clone();
    other.escrow_id = 9;
    assert_eq!(w.dispute_refused("host-0", &other), 7);
    // The state before the first diff is one, too.
    w.dispute("creator", &signed(&session(&w, id), &THREE));
    w.end(220);
    assert_eq!((w.collected(), w.held("creator")), (10_000, RICH - 10_000));
}

#[test]
fn a_change_of_parameters_leaves_open_escrows_as_they_are() {
    let mut w = World::new();
    let id = w.create();
    w.set_params(|p| (p.dispute_window_blocks, p.create_fee, p.denom) = (1, 1, "uatom".into()));
    w.end(219);
    assert_eq!(w.status(id), Status::Open);
    w.end(220);
    assert_eq!((w.collected(), w.all_coins()), (10_000, RICH));
}
