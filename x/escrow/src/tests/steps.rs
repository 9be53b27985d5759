//! Block steps: bounds, bad rows, pruning.

use super::world::*;
use crate::state::{BY_OWNER, ESCROWS};
use crate::{CLOSE_MAX, PRUNE_MAX, Status};

fn count(w: &World, status: Status) -> usize {
    let rows = ESCROWS.entries().iter(&w.chain.store, holdfast_store::Order::Ascending);
    rows.filter(|row| row.as_ref().unwrap().1.status == status).count()
}

#[test]
fn a_block_closes_and_prunes_a_bounded_number_and_the_next_goes_on() {
    let mut w = World::new();
    w.give("creator", 120 * AMOUNT);
    for _ in 0..120 {
        w.create();
    }
    assert_eq!((CLOSE_MAX, PRUNE_MAX), (50, 50));
    let steps: Vec<_> = (220..223)
        .map(|height| {
            w.end(height);
            (count(&w, Status::Open), count(&w, Status::Expired))
        })
        .collect();
    assert_eq!(steps, [(70, 50), (20, 100), (0, 120)]);
    assert_eq!((w.collected(), w.held("creator")), (120 * 10_000, 120 * 990_000));
    // They ended in epoch 2, so epoch 4 prunes them.
    w.end(400);
    assert_eq!(count(&w, Status::Expired), 120);
    let left: Vec<_> = (401..404)
        .map(|height| {
            w.end(height);
            count(&w, Status::Expired)
        })
        .collect();
    assert_eq!(left, [70, 20, 0]);
    assert_eq!(BY_OWNER.iter(&w.chain.store, holdfast_store::Order::Ascending).count(), 0);
    // Their ids are not given again.
    assert_eq!(w.create(), 121);
}

#[test]
fn a_listener_that_fails_does_not_keep_the_coins_nor_the_neighbours() {
    let mut w = World::new();
    let (one, two) = (w.create(), w.create());
    w.at(200);
    for id in [one, two] {
        let state = step(&session(&w, id), vec![start()]);
        let state = step(&state, vec![confirm(&state, 1, "host-1")]);
        w.dispute("host-0", &signed(&step(&state, vec![finish(&state, 1, (4, 8), "host-1")]), &THREE));
    }
    w.chain.take_events();
    w.near.deaf_to.borrow_mut().insert(addr("host-1"));
    w.end(220);
    assert_eq!((w.status(one), w.status(two)), (Status::Settled, Status::Settled));
    assert_eq!((w.held("host-1"), w.all_coins()), (240, RICH));
    let kinds = w.kinds();
    assert_eq!(
        kinds,
        ["EventStepDiscarded", "EventEscrowSettled", "EventStepDiscarded", "EventEscrowSettled"]
    );
    // A message fails with its listener.
    let id = w.create();
    let good = signed(&vectors(&w, id), &THREE);
    let msg = settle_msg("creator", &good);
    let Err(error) = w.chain.message(|ctx| crate::msg_server::settle_escrow(ctx, &deps(&w.near), msg)) else {
        panic!("accepted")
    };
    assert_eq!((error.codespace, error.code, w.status(id)), ("breaker", 99, Status::Open));
}

#[test]
fn coins_that_cannot_be_paid_stay_and_can_be_settled_later() {
    let mut w = World::new();
    let (one, two) = (w.create(), w.create());
    let good = signed(&vectors(&w, one), &THREE);
    // Somebody robbed the module account of one escrow.
    w.chain.ctx(|ctx| {
        holdfast_testkit::MemBank.set(ctx, &crate::module_account(), DENOM, AMOUNT - 1);
    });
    w.at(220);
    let near = std::mem::take(&mut w.near);
    w.chain.take_events();
    let close = |w: &mut World, near: &Near| {
        w.chain.ctx(|ctx| {
            crate::close(ctx, &deps(near)).unwrap();
        });
    };
    close(&mut w, &near);
    assert_eq!((w.status(one), w.status(two)), (Status::Open, Status::Open));
    assert_eq!(w.kinds(), ["EventStepDiscarded", "EventStepDiscarded"]);
    // Off the queue: the next block does not try again.
    w.at(221);
    close(&mut w, &near);
    assert_eq!(w.kinds(), [] as [String; 0]);
    w.near = near;
    w.chain.ctx(|ctx| holdfast_testkit::MemBank.set(ctx, &crate::module_account(), DENOM, 2 * AMOUNT));
    w.settle("creator", &good);
    assert_eq!(w.status(one), Status::Settled);
}

#[test]
fn an_ended_escrow_is_kept_for_two_epochs() {
    let mut w = World::new();
    let id = w.create();
    w.at(150);
    w.settle("creator", &signed(&vectors(&w, id), &THREE));
    // Ended in epoch 1: kept in epochs 1 and 2, pruned with epoch 3.
    w.end(300);
    assert_eq!(w.status(id), Status::Settled);
    w.end(301);
    assert!(crate::Keeper.escrow(&w.chain.store, id).unwrap().is_none());
}
