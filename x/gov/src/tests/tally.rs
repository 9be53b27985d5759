//! Each outcome, worked by hand. Voters 1 to 10 have power 10, so 100 in all: the quorum 0.334 needs four of them.

use super::*;

const Y: i32 = 1;
const A: i32 = 2;
const N: i32 = 3;
const V: i32 = 4;

/// Votes, then ends the voting period and the settlement: status, final tally, what is left of the deposit of 11.
fn decided(w: &mut World, id: u64, votes: &[i32]) -> (ProposalStatus, [u128; 4], u128) {
    w.votes(id, votes);
    w.block(2 * DAY);
    let p = w.proposal(id);
    (p.status, [p.tally.yes, p.tally.abstain, p.tally.no, p.tally.no_with_veto], RICH - w.balance(&addr(11)))
}

#[test]
fn every_row_of_the_decision_table_ends_as_worked_by_hand() {
    use ProposalStatus::{Passed, Rejected};
    for (votes, status, tally, lost, why) in [
        (&[][..], Rejected, [0, 0, 0, 0], 0, "nobody voted: the quorum is missed"),
        (&[Y, Y, Y], Rejected, [30, 0, 0, 0], 0, "30 of 100 is below 0.334"),
        (&[Y, Y, Y, Y], Passed, [40, 0, 0, 0], 0, "40 of 100, all yes"),
        (&[A, A, A, A], Rejected, [0, 40, 0, 0], 0, "all abstain"),
        (&[Y, A, A, A], Passed, [10, 30, 0, 0], 0, "1 of 1 not abstaining"),
        (&[Y, Y, N, N], Rejected, [20, 0, 20, 0], 0, "a half is not more than a half"),
        (&[Y, Y, Y, N, N], Passed, [30, 0, 20, 0], 0, "0.6 of those not abstaining"),
        (&[Y, N, N, N], Rejected, [10, 0, 30, 0], 0, "outvoted"),
        (&[Y, Y, V, V], Rejected, [20, 0, 0, 20], MIN, "0.5 veto is above 0.334"),
        (&[Y, Y, V], Rejected, [20, 0, 0, 10], 0, "quorum first, veto not asked"),
        (&[Y, Y, A, V], Passed, [20, 10, 0, 10], 0, "0.25 veto of all; 2 of 3 yes"),
        (&[Y, Y, Y, Y, Y, Y, V, V, V], Passed, [60, 0, 0, 30], 0, "0.3333 veto is not above 0.334"),
        (&[Y, Y, Y, Y, Y, Y, V, V, V, V], Rejected, [60, 0, 0, 40], MIN, "0.4 veto"),
        (&[A, A, A, V, V, V], Rejected, [0, 30, 0, 30], MIN, "abstention counts for the veto's base"),
    ] {
        let mut w = World::new();
        let id = w.voting(vec![test_msg("put:a")]);
        assert_eq!(decided(&mut w, id, votes), (status, tally, lost), "{why}");
        assert_eq!(w.has_row("a"), status == Passed, "{why}");
        assert_eq!(w.held(), 0, "{why}");
    }
}

#[test]
fn nobody_with_power_at_the_end_passes_nothing() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    w.votes(id, &[Y, Y, Y, Y, Y]);
    w.power.of.borrow_mut().clear();
    w.set_params(|p| (p.quorum, p.burn_vote_quorum) = (crate::calc::Share::ZERO, true));
    let events = w.block(2 * DAY);
    assert_eq!(w.status(id), ProposalStatus::Rejected);
    // No power comes before the quorum, whose flag would burn.
    assert_eq!(w.balance(&addr(11)), RICH);
    let log = events.iter().find(|e| e.kind == "active_proposal").unwrap().get("proposal_log");
    assert_eq!(log, Some("nobody has voting power"));
}

#[test]
fn without_a_quorum_nobody_voting_still_passes_nothing() {
    let mut w = World::new();
    w.set_params(|p| p.quorum = crate::calc::Share::ZERO);
    let id = w.voting(vec![]);
    assert_eq!(decided(&mut w, id, &[]).0, ProposalStatus::Rejected);
}

#[test]
fn the_burn_flags_decide_over_the_deposits() {
    for (quorum_burns, veto_burns) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut w = World::new();
        w.set_params(|p| (p.burn_vote_quorum, p.burn_vote_veto) = (quorum_burns, veto_burns));
        let id = w.voting(vec![]);
        assert_eq!(decided(&mut w, id, &[Y, Y]).2, if quorum_burns { MIN } else { 0 });
        let before = w.balance(&addr(11));
        let id = w.voting(vec![]);
        w.votes(id, &[V, V, V, V]);
        w.block(2 * DAY);
        assert_eq!(before - w.balance(&addr(11)), if veto_burns { MIN } else { 0 });
    }
}

#[test]
fn a_vote_weighs_what_its_voter_has_when_it_is_counted() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    w.votes(id, &[Y, Y, Y, N, N, N]);
    // At the end voter 1 has 5 and voter 4 has 6.
    w.power.of.borrow_mut().insert(addr(1), 5);
    w.power.of.borrow_mut().insert(addr(4), 6);
    w.block(2 * DAY);
    let tally = w.proposal(id).tally;
    assert_eq!((tally.yes, tally.no, w.status(id)), (25, 26, ProposalStatus::Rejected));
}

#[test]
fn votes_can_be_changed_till_the_end_and_not_after() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    w.votes(id, &[N, N, N, N, N]);
    w.votes(id, &[Y, Y, Y, Y, Y]);
    w.chain.block.time_ns += 2 * DAY * SECOND - 1;
    w.try_vote(id, 6, N).unwrap();
    w.try_vote(id, 6, Y).unwrap();
    w.chain.block.time_ns += 1;
    assert_eq!(w.try_vote(id, 7, N).unwrap_err().code, 20);
    w.block(0);
    let tally = w.proposal(id).tally;
    assert_eq!((tally.yes, tally.no), (60, 0));
}

#[test]
fn weighted_votes_are_split_exactly_and_rounded_only_in_the_result() {
    let mut w = World::new();
    w.power.of.borrow_mut().insert(addr(1), 7);
    let id = w.voting(vec![]);
    // 7 * 0.5 = 3.5 each; with 10 * 0.05 = 0.5 yes is 4.0 and no 3.5.
    w.weighted(id, 1, &[(Y, "0.5"), (N, "0.5")]).unwrap();
    w.weighted(id, 2, &[(Y, "0.05"), (A, "0.95")]).unwrap();
    w.votes(id, &[]);
    for voter in 3..=5 {
        w.try_vote(id, voter, A).unwrap();
    }
    w.block(2 * DAY);
    let tally = w.proposal(id).tally;
    // 9.5 + 30 abstained.
    assert_eq!((tally.yes, tally.abstain, tally.no, tally.no_with_veto), (4, 39, 3, 0));
    assert_eq!(w.status(id), ProposalStatus::Passed, "4.0 of 7.5 is above a half");
}

#[test]
fn thirds_do_not_add_up_to_one_without_the_last_place() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    let third = "0.333333333333333333";
    let parts = |last: &'static str| vec![(Y, third), (N, third), (A, last)];
    assert_eq!(w.weighted(id, 1, &parts(third)).unwrap_err().code, 7);
    assert_eq!(w.weighted(id, 1, &parts("0.333333333333333335")).unwrap_err().code, 7);
    w.weighted(id, 1, &parts("0.333333333333333334")).unwrap();
}

#[test]
fn a_passed_expedited_proposal_needs_the_higher_threshold() {
    // 0.667 of those not abstaining: 2 of 3 is below, 7 of 10 above.
    let mut w = World::new();
    let id = w.expedited(vec![test_msg("put:a")]);
    w.votes(id, &[Y, Y, Y, Y, Y, Y, Y, N, N, N]);
    assert_eq!(results(&w.block(DAY)), [format!("{id}:proposal_passed")]);
    assert!(w.has_row("a"));
    assert_eq!((w.status(id), w.proposal(id).expedited), (ProposalStatus::Passed, true));
}

#[test]
fn a_failed_expedited_proposal_goes_on_as_a_normal_one_with_its_votes_and_deposits() {
    let mut w = World::new();
    let id = w.expedited(vec![test_msg("put:a")]);
    w.votes(id, &[Y, Y, Y, Y, N, N]);
    let events = w.block(DAY);
    assert_eq!(results(&events), [format!("{id}:expedited_proposal_rejected")]);
    let p = w.proposal(id);
    assert_eq!((p.status, p.expedited, p.tally), (ProposalStatus::VotingPeriod, false, Tally::default()));
    // From the begin of voting, not from now.
    let start = START * SECOND;
    assert_eq!(p.voting, Some(Voting { start_ns: start, end_ns: start + 2 * DAY * SECOND }));
    assert_eq!(w.held(), MIN_EXPEDITED);
    assert!(!w.has_row("a"));
    // 40 of 60 is two thirds: enough for a normal one.
    assert_eq!(results(&w.block(DAY - 1)), [""; 0]);
    assert_eq!(results(&w.block(1)), [format!("{id}:proposal_passed")]);
    assert!(w.has_row("a"));
    assert_eq!(w.balance(&addr(11)), RICH);
}

#[test]
fn a_vetoed_expedited_proposal_is_not_burned_before_its_second_count() {
    let mut w = World::new();
    let id = w.expedited(vec![]);
    w.votes(id, &[V, V, V, V]);
    w.block(DAY);
    assert_eq!((w.status(id), w.held()), (ProposalStatus::VotingPeriod, MIN_EXPEDITED));
    // They change their mind.
    w.votes(id, &[Y, Y, Y, Y]);
    w.block(DAY);
    assert_eq!((w.status(id), w.balance(&addr(11))), (ProposalStatus::Passed, RICH));
}

#[test]
fn a_converted_proposal_whose_normal_period_was_cut_is_counted_in_the_next_block() {
    let mut w = World::new();
    let id = w.expedited(vec![]);
    w.set_params(|p| (p.voting_period_ns, p.expedited_voting_period_ns) = (2 * SECOND, SECOND));
    w.block(DAY);
    assert_eq!(w.status(id), ProposalStatus::VotingPeriod);
    w.block(1);
    assert_eq!(w.status(id), ProposalStatus::Rejected);
}

#[test]
fn random_counts_agree_with_plain_integers() {
    let mut rng = Rng::new(44);
    for round in 0..60 {
        let mut w = World::new();
        let expedited = rng.chance(30);
        let id = if expedited { w.expedited(vec![]) } else { w.voting(vec![]) };
        // Hundredths of power by option.
        let (mut sums, mut total) = ([0_u64; 5], 0);
        for voter in 1..=10_u8 {
            let power = rng.below(40);
            w.power.of.borrow_mut().insert(addr(voter), u128::from(power));
            total += power * 100;
            if power == 0 || rng.chance(30) {
                continue;
            }
            let first = rng.below(99) + 1;
            let (a, b) = (1 + rng.below(4) as i32, 1 + rng.below(4) as i32);
            if a == b {
                w.try_vote(id, voter, a).unwrap();
                sums[a as usize] += power * 100;
            } else {
                let text = |n: u64| format!("0.{n:02}");
                w.weighted(id, voter, &[(a, &text(first)), (b, &text(100 - first))]).unwrap();
                sums[a as usize] += power * first;
                sums[b as usize] += power * (100 - first);
            }
        }
        w.block(if expedited { DAY } else { 2 * DAY });
        let [_, yes, abstain, no, veto] = sums;
        let voted = yes + abstain + no + veto;
        let threshold = if expedited { 667 } else { 500 };
        let passes = total > 0
            && voted * 1_000 >= total * 334
            && voted > abstain
            && veto * 1_000 <= voted * 334
            && yes * 1_000 > (voted - abstain) * threshold;
        let p = w.proposal(id);
        assert_eq!(p.status == ProposalStatus::Passed, passes, "round {round}: {sums:?} of {total}");
        if p.status != ProposalStatus::VotingPeriod {
            let whole = [yes, abstain, no, veto].map(|n| u128::from(n / 100));
            assert_eq!([p.tally.yes, p.tally.abstain, p.tally.no, p.tally.no_with_veto], whole);
        }
    }
}
