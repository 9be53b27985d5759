//! What one block does at most, and that the rest follows in order.

use std::cell::Cell;

use holdfast_store::{KvIter, KvWrite, MemKv, Order};

use super::*;

/// Gives address `n + 1000` one vote of power 1 on `id`, for each n below `count`.
fn crowd(w: &mut World, id: u64, count: u64, option: VoteOption) {
    let options = vec![WeightedOption { option, weight: crate::calc::Share::ONE }];
    let vote = Vote { options, metadata: String::new() };
    for n in 0..count {
        let voter = addr_n(1_000 + n);
        w.power.of.borrow_mut().insert(voter, 1);
        w.send(|ctx, deps| Ok(Keeper.vote(ctx, deps, id, &voter, &vote)?)).unwrap();
    }
}

fn rows(w: &World, id: u64) -> (usize, usize) {
    let votes = VOTES.prefix(&w.chain.store, &id, Order::Ascending).count();
    (votes, DEPOSITS.prefix(&w.chain.store, &id, Order::Ascending).count())
}

#[test]
fn twenty_five_hundred_votes_take_three_blocks_and_three_more_to_clear_away() {
    let mut w = World::new();
    w.power.of.borrow_mut().clear();
    let id = w.voting(vec![test_msg("put:a")]);
    crowd(&mut w, id, 2_500, VoteOption::Yes);
    let progress = |w: &World| TALLIES.get(&w.chain.store, &id).unwrap().map(|t| t.sums.yes.whole);
    assert_eq!(results(&w.block(2 * DAY)), [""; 0]);
    assert_eq!(progress(&w), Some(1_000));
    let late = addr_n(9_999);
    w.power.of.borrow_mut().insert(late, 50);
    let vote = Vote::single(3, String::new()).unwrap();
    let refused = w.refused(|ctx, deps| Ok(Keeper.vote(ctx, deps, id, &late, &vote)?));
    assert_eq!(refused.1, 20, "no votes once the count has begun");
    assert_eq!(results(&w.block(1)), [""; 0]);
    assert_eq!((progress(&w), w.status(id)), (Some(2_000), ProposalStatus::VotingPeriod));
    let events = w.block(1);
    assert_eq!(results(&events), ["1:proposal_passed"]);
    assert_eq!((progress(&w), w.proposal(id).tally.yes, w.has_row("a")), (None, 2_500, true));
    // One deposit and 999 votes went in the same block.
    assert_eq!(rows(&w, id), (1_501, 0));
    w.block(1);
    assert_eq!(rows(&w, id), (501, 0));
    w.block(1);
    assert_eq!(rows(&w, id), (0, 0));
    assert_eq!(SETTLEMENTS.iter(&w.chain.store, Order::Ascending).count(), 0);
}

#[test]
fn exactly_a_thousand_votes_are_known_to_be_all_in_the_second_block() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    crowd(&mut w, id, 1_000, VoteOption::Yes);
    assert_eq!(results(&w.block(2 * DAY)), [""; 0]);
    assert_eq!(results(&w.block(1)), ["1:proposal_passed"]);
    assert_eq!(w.proposal(id).tally.yes, 1_000);
}

#[test]
fn the_total_is_that_of_the_block_in_which_the_count_began() {
    let mut w = World::new();
    w.power.of.borrow_mut().clear();
    let id = w.voting(vec![]);
    crowd(&mut w, id, 1_500, VoteOption::Yes);
    w.power.total.set(Some(3_000));
    w.block(2 * DAY);
    w.power.total.set(Some(1_000_000));
    assert_eq!(results(&w.block(1)), ["1:proposal_passed"]);
}

#[test]
fn two_crowded_proposals_are_counted_one_after_the_other() {
    let mut w = World::new();
    let (a, b) = (w.voting(vec![]), w.voting(vec![]));
    crowd(&mut w, a, 700, VoteOption::Yes);
    crowd(&mut w, b, 700, VoteOption::No);
    assert_eq!(results(&w.block(2 * DAY)), ["1:proposal_passed"]);
    assert_eq!(TALLIES.load(&w.chain.store, &b).unwrap().sums.no.whole, 300);
    assert_eq!(results(&w.block(1)), ["2:proposal_rejected"]);
    assert_eq!(w.proposal(b).tally.no, 700);
}

#[test]
fn at_most_eight_proposals_are_carried_out_and_a_hundred_dropped_in_one_block() {
    let mut w = World::new();
    for n in 0..10 {
        let id = w.voting(vec![test_msg(&format!("put:{n}"))]);
        w.votes(id, &[1, 1, 1, 1]);
    }
    assert_eq!(results(&w.block(2 * DAY)).len(), 8);
    assert!(w.has_row("7") && !w.has_row("8"));
    assert_eq!(results(&w.block(1)), ["9:proposal_passed", "10:proposal_passed"]);
    for _ in 0..130 {
        let msg = w.submission(12, MIN / 100, vec![]);
        w.submit(msg);
    }
    let dropped = |events: Vec<Event>| events.iter().filter(|e| e.kind == "inactive_proposal").count();
    assert_eq!(dropped(w.block(2 * DAY)), 100);
    assert_eq!(w.held(), 30 * MIN / 100);
    assert_eq!(dropped(w.block(1)), 30);
    assert_eq!((w.held(), w.balance(&addr(12))), (0, RICH));
}

#[test]
fn many_deposits_go_back_a_thousand_a_block() {
    let mut w = World::new();
    w.set_params(|p| p.min_deposit_ratio = crate::calc::Share::ZERO);
    let id = w.voting(vec![]);
    for n in 0..2_100 {
        let who = addr_n(1_000 + n);
        w.chain.ctx(|ctx| BANK.set(ctx, &who, DENOM, 5));
        let coin = holdfast_types::Coin { denom: DENOM.into(), amount: 5 };
        w.send(|ctx, deps| Ok(Keeper.deposit(ctx, deps, id, &who, &[coin])?)).unwrap();
    }
    let mut left = Vec::new();
    w.block(2 * DAY);
    left.push(rows(&w, id).1);
    // A neighbour decided meanwhile waits for its turn and gets it.
    let other = w.voting(vec![]);
    w.cancel(other, 11).unwrap();
    for _ in 0..2 {
        w.block(1);
        left.push(rows(&w, id).1);
    }
    assert_eq!(left, [1_101, 101, 0]);
    assert_eq!((0..2_100).map(|n| w.balance(&addr_n(1_000 + n))).sum::<u128>(), 2_100 * 5);
    assert_eq!((w.held(), w.balance(&addr(11))), (0, RICH - MIN / 2));
}

#[test]
fn a_count_that_fails_fails_its_proposal_alone() {
    let mut w = World::new();
    let (bad, good) = (w.voting(vec![]), w.voting(vec![test_msg("put:a")]));
    w.votes(good, &[1, 1, 1, 1]);
    w.try_vote(bad, 5, 1).unwrap();
    w.power.fail_for.set(Some(addr(5)));
    let events = w.block(2 * DAY);
    assert_eq!(results(&events), ["1:proposal_failed", "2:proposal_passed"]);
    let discarded = events.iter().find(|e| e.kind == "holdfast.gov.v1.EventStepDiscarded").unwrap();
    assert_eq!((discarded.get("step"), discarded.get("key")), (Some("voting_end"), Some("1")));
    assert_eq!(w.proposal(bad).failed_reason, "votes could not be counted");
    assert_eq!(w.balance(&addr(11)), RICH);
}

#[test]
fn powers_beyond_all_bounds_fail_the_proposal_and_not_the_block() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    w.power.total.set(Some(u128::MAX));
    w.votes(id, &[1, 1]);
    for n in 1..=2 {
        w.power.of.borrow_mut().insert(addr(n), u128::MAX);
    }
    assert_eq!(results(&w.block(2 * DAY)), ["1:proposal_failed"]);
    assert_eq!(w.balance(&addr(11)), RICH);
}

#[test]
fn a_deposit_that_cannot_go_back_is_tried_again_after_all_others() {
    let mut w = World::new();
    let (a, b) = (w.voting(vec![]), w.voting(vec![]));
    w.deposit(a, 12, MIN).unwrap();
    // The gov account is short by what 12 gets, as no message could make it.
    w.chain.ctx(|ctx| BANK.set(ctx, &addr(12), DENOM, u128::MAX));
    w.cancel(a, 11).unwrap();
    w.cancel(b, 11).unwrap();
    w.chain.block.height += 1;
    w.chain.take_events();
    let router = Router(&w.power);
    let deps = Deps { bank: &BANK, accounts: &MemAccounts, power: &w.power, router: &router };
    w.chain.ctx(|ctx| abci::end_block(ctx, &deps)).unwrap();
    let discarded: Vec<_> = w
        .chain
        .take_events()
        .into_iter()
        .filter(|e| e.kind == "holdfast.gov.v1.EventStepDiscarded")
        .map(|e| e.get("step").unwrap().to_owned())
        .collect();
    assert_eq!(discarded, ["refund"]);
    let queue: Vec<_> =
        SETTLEMENTS.iter(&w.chain.store, Order::Ascending).map(|row| row.unwrap().0).collect();
    assert_eq!(queue, [(1, a)]);
    assert_eq!((rows(&w, a).1, RICH - w.balance(&addr(11))), (1, MIN), "both of 11 were charged");
    w.chain.ctx(|ctx| BANK.set(ctx, &addr(12), DENOM, 0));
    w.block(1);
    assert_eq!((w.balance(&addr(12)), w.held()), (MIN / 2, 0));
}

/// Counts what is read and written.
struct Counting<'a>(&'a mut MemKv, Cell<u64>);

impl KvRead for Counting<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.1.set(self.1.get() + 1);
        self.0.get(key)
    }
    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        self.1.set(self.1.get() + 1);
        let count = |row| {
            self.1.set(self.1.get() + 1);
            row
        };
        Box::new(self.0.scan(start, end, order).map(count))
    }
}

impl KvWrite for Counting<'_> {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.1.set(self.1.get() + 1);
        self.0.set(key, value)
    }
    fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.1.set(self.1.get() + 1);
        self.0.remove(key)
    }
}

#[test]
fn ten_thousand_open_proposals_due_later_cost_a_block_what_none_cost() {
    let mut w = World::new();
    let cost = |w: &mut World| {
        let router = Router(&w.power);
        let deps = Deps { bank: &BANK, accounts: &MemAccounts, power: &w.power, router: &router };
        let mut store = Counting(&mut w.chain.store, Cell::new(0));
        let mut events = Vec::new();
        abci::end_block(&mut Context::new(&w.chain.block, &mut store, &mut events), &deps).unwrap();
        assert_eq!(events, []);
        store.1.get()
    };
    let empty = cost(&mut w);
    w.chain.ctx(|ctx| BANK.set(ctx, &addr(12), DENOM, 10_000 * MIN));
    let msg = w.submission(12, MIN / 100, vec![]);
    for _ in 0..10_000 {
        let msg = msg.clone();
        let router = Router(&w.power);
        let deps = Deps { bank: &BANK, accounts: &MemAccounts, power: &w.power, router: &router };
        w.chain.ctx(|ctx| msg_server::submit_proposal(ctx, &deps, msg)).unwrap();
    }
    assert_eq!(PROPOSALS.iter(&w.chain.store, Order::Ascending).count(), 10_000);
    w.chain.block.time_ns += DAY * SECOND;
    assert_eq!(cost(&mut w), empty);
    assert!(empty <= 3, "one look at the front of each queue, not {empty}");
}
