//! A proposal's life: deposits, periods, execution, cancellation, money.

use super::*;

#[test]
fn deposits_bring_a_proposal_to_its_vote_and_a_vote_carries_it_out() {
    let mut w = World::new();
    let msg = w.submission(11, MIN / 4, vec![test_msg("put:a"), test_msg("put:b")]);
    let id = w.submit(msg);
    assert_eq!((id, w.status(1), w.held()), (1, ProposalStatus::DepositPeriod, MIN / 4));
    assert!(!w.has_row("a"), "the rehearsal is not kept");
    w.deposit(id, 12, MIN / 2).unwrap();
    assert_eq!(w.status(id), ProposalStatus::DepositPeriod);
    w.block(DAY);
    w.deposit(id, 12, MIN / 4).unwrap();
    assert_eq!(w.status(id), ProposalStatus::VotingPeriod);
    let start_ns = (START + DAY) * SECOND;
    let voting = Voting { start_ns, end_ns: start_ns + 2 * DAY * SECOND };
    assert_eq!(w.proposal(id).voting, Some(voting), "the period begins with the deposit");
    // More can be put on it during the vote.
    w.deposit(id, 13, MIN).unwrap();
    assert_eq!(w.held(), 2 * MIN);
    w.votes(id, &[1, 1, 1, 1]);
    w.block(2 * DAY - 1);
    assert_eq!(w.status(id), ProposalStatus::VotingPeriod);
    let events = w.block(1);
    assert_eq!(results(&events), ["1:proposal_passed"]);
    assert!(w.has_row("a") && w.has_row("b"));
    assert_eq!(events.iter().filter(|e| e.kind == "test_put").count(), 2);
    assert_eq!([11, 12, 13].map(|n| w.balance(&addr(n))), [RICH; 3]);
    assert_eq!(w.held(), 0);
    let total = [Coin { denom: DENOM.into(), amount: 2 * MIN }];
    assert_eq!(w.proposal(id).total_deposit, total, "the sum stays to be read");
}

use holdfast_types::Coin;

#[test]
fn a_proposal_without_enough_deposits_is_dropped_and_refunded_or_burned() {
    for burn in [false, true] {
        let mut w = World::new();
        w.set_params(|p| p.burn_proposal_deposit_prevote = burn);
        let msg = w.submission(11, MIN - 1, vec![]);
        let id = w.submit(msg);
        w.block(2 * DAY - 1);
        assert_eq!(w.status(id), ProposalStatus::DepositPeriod);
        let events = w.block(1);
        let dropped: Vec<_> = events.iter().filter(|e| e.kind == "inactive_proposal").map(line).collect();
        assert_eq!(dropped, ["inactive_proposal proposal_id=1 proposal_result=proposal_dropped"]);
        assert_eq!(PROPOSALS.get(&w.chain.store, &id).unwrap(), None);
        assert_eq!(CONTENTS.get(&w.chain.store, &id).unwrap(), None);
        assert_eq!(w.balance(&addr(11)), if burn { RICH - MIN + 1 } else { RICH });
        assert_eq!(w.held(), 0);
    }
}

#[test]
fn execution_is_all_or_nothing_and_a_failure_keeps_the_chain_going() {
    for (second, code) in [
        (format!("before:{}", START + DAY), "codespace test, code 8"),
        ("panic".to_owned(), ""),
        ("fail".to_owned(), ""),
    ] {
        let mut w = World::new();
        let third = w.voting(vec![test_msg("put:other")]);
        let messages = vec![test_msg("put:a"), test_msg(&second), test_msg("put:c")];
        if code.is_empty() {
            // These do not even pass the rehearsal.
            let msg = w.submission(11, MIN, messages);
            let refused = w.refused(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg));
            assert_eq!((refused.0, refused.1), ("gov", 12));
            assert!(refused.2.starts_with("messages[1]: would fail now"), "{}", refused.2);
            continue;
        }
        let id = w.voting(messages);
        w.votes(id, &[1, 1, 1, 1]);
        w.votes(third, &[1, 1, 1, 1]);
        let events = w.block(2 * DAY);
        assert_eq!(results(&events), [format!("{third}:proposal_passed"), format!("{id}:proposal_failed")]);
        assert_eq!(w.status(id), ProposalStatus::Failed);
        assert_eq!(w.proposal(id).failed_reason, format!("messages[1] /test.Msg: {code}"));
        let log = events.iter().rev().find(|e| e.kind == "active_proposal").unwrap();
        assert!(log.get("proposal_log").unwrap().contains("too late"), "the text is for people");
        assert!(!w.has_row("a") && !w.has_row("c") && w.has_row("other"));
        assert_eq!(events.iter().filter(|e| e.kind == "test_put").count(), 1);
        assert_eq!(w.balance(&addr(11)), RICH, "a failed one was voted for: its deposit goes back");
    }
}

#[test]
fn a_proposal_that_eats_all_gas_is_refused_and_costs_its_limit_when_it_comes_later() {
    let mut w = World::new();
    let msg = w.submission(11, MIN, vec![test_msg("hungry")]);
    let refused = w.refused(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg));
    assert_eq!((refused.0, refused.1), ("gov", 12));
    // One that was taken in all the same, for what it does depends on state.
    let id = w.voting(vec![test_msg("put:a")]);
    let mut content = CONTENTS.load(&w.chain.store, &id).unwrap();
    content.messages.push(test_msg("hungry").into());
    w.chain.ctx(|ctx| CONTENTS.set(ctx.store, &id, &content)).unwrap();
    w.votes(id, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    assert_eq!(w.proposal(id).failed_reason, "messages[1] /test.Msg: codespace sdk, code 11");
    assert!(!w.has_row("a"));
}

#[test]
fn gas_of_the_transaction_runs_out_as_such_and_not_as_a_bad_message() {
    use holdfast_store::{GasConfig, GasMeter, MeteredKv};
    let mut w = World::new();
    let msg = w.submission(11, MIN, vec![test_msg("hungry")]);
    let refused = w.refused(|ctx, deps| {
        let meter = GasMeter::new(200_000);
        let mut store = MeteredKv::new(&mut *ctx.store, &meter, GasConfig::SDK);
        let mut inner = Context::new(ctx.block, &mut store, &mut *ctx.events);
        msg_server::submit_proposal(&mut inner, deps, msg)
    });
    assert_eq!((refused.0, refused.1), ("sdk", 11));
}

#[test]
fn the_governance_account_cannot_spend_the_deposits_it_holds() {
    let mut w = World::new();
    let send =
        |w: &World| pack(&MsgSend { from_address: w.gov(), to_address: w.text(19), amount: uhold(MIN / 2) });
    let held = w.voting(vec![]);
    let msg = w.submission(11, MIN, vec![send(&w)]);
    let refused = w.refused(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg));
    assert_eq!((refused.0, refused.1), ("gov", 12));
    assert!(refused.2.contains("not its to spend"), "{}", refused.2);
    // What it has beside the deposits it can spend: at submission it had.
    w.chain.ctx(|ctx| BANK.set(ctx, &Address::module("gov"), DENOM, MIN + MIN / 2));
    let msg = w.submission(11, MIN, vec![send(&w)]);
    let id = w.submit(msg);
    w.chain.ctx(|ctx| BANK.set(ctx, &Address::module("gov"), DENOM, 2 * MIN));
    w.votes(id, &[1, 1, 1, 1]);
    w.votes(held, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    assert_eq!(w.status(id), ProposalStatus::Failed);
    assert_eq!(
        w.proposal(id).failed_reason,
        "messages[0] /cosmos.bank.v1beta1.MsgSend: codespace sdk, code 5"
    );
    assert_eq!((w.balance(&addr(19)), w.balance(&addr(11))), (RICH, RICH));
}

#[test]
fn a_proposer_can_cancel_and_loses_the_share() {
    let mut w = World::new();
    let msg = w.submission(11, MIN / 2 + 1, vec![]);
    let id = w.submit(msg);
    w.deposit(id, 12, MIN / 4).unwrap();
    w.chain.take_events();
    w.cancel(id, 11).unwrap();
    let events = w.chain.take_events();
    assert_eq!(
        events.iter().map(line).collect::<Vec<_>>(),
        [format!("cancel_proposal sender={} proposal_id=1", w.text(11))]
    );
    assert_eq!(PROPOSALS.get(&w.chain.store, &id).unwrap(), None);
    w.block(5);
    // Half of 5,000,001 rounded down is taken, and half of 2,500,000.
    assert_eq!([11, 12].map(|n| RICH - w.balance(&addr(n))), [2_500_000, 1_250_000]);
    assert_eq!(w.held(), 0);
    // Nothing of it is due later.
    assert_eq!(w.block(2 * DAY), []);
    assert_eq!(w.cancel(id, 11).unwrap_err().code, 2);
}

#[test]
fn a_cancelled_vote_pays_its_share_to_the_destination_and_forgets_the_votes() {
    let mut w = World::new();
    w.set_params(|p| p.proposal_cancel_dest = Some(addr(77)));
    let id = w.voting(vec![test_msg("put:a")]);
    w.votes(id, &[1, 1, 1, 1]);
    w.cancel(id, 11).unwrap();
    // What was decided at the cancellation holds, whatever the parameters say later.
    w.set_params(|p| p.proposal_cancel_dest = None);
    w.block(1);
    assert_eq!((w.balance(&addr(77)), RICH - w.balance(&addr(11))), (MIN / 2, MIN / 2));
    assert!(MemAccounts.has(&w.chain.store, &addr(77)));
    assert_eq!(VOTES.prefix(&w.chain.store, &id, holdfast_store::Order::Ascending).count(), 0);
    w.block(2 * DAY);
    assert!(!w.has_row("a"));
}

#[test]
fn a_proposal_can_hold_a_proposal_when_nothing_must_be_deposited() {
    use crate::calc::Share;
    let mut w = World::new();
    w.set_params(|p| p.min_deposit_ratio = Share::ZERO);
    let gov = w.gov();
    let inner =
        pb::MsgSubmitProposal { proposer: gov.clone(), ..w.submission(1, 0, vec![test_msg("put:in")]) };
    let id = w.voting(vec![pack(&inner)]);
    w.votes(id, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    assert_eq!(w.status(id), ProposalStatus::Passed);
    let second = w.proposal(2);
    assert_eq!((second.status, second.proposer), (ProposalStatus::DepositPeriod, Address::module("gov")));
    w.deposit(2, 12, MIN).unwrap();
    // It may cancel its own by another proposal, but not the one that is running.
    let cancel = |id| pack(&pb::MsgCancelProposal { proposal_id: id, proposer: gov.clone() });
    let id = w.voting(vec![cancel(2)]);
    w.votes(id, &[1, 1, 1, 1]);
    w.votes(2, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    assert!(w.has_row("in"), "it came first in the queue");
    assert_eq!(
        w.proposal(id).failed_reason,
        "messages[0] /cosmos.gov.v1.MsgCancelProposal: codespace gov, code 21"
    );
    // A deposit of the gov account would be of other people's money.
    let inner = pb::MsgSubmitProposal { initial_deposit: uhold(MIN), ..inner };
    let msg = w.submission(11, MIN, vec![pack(&inner)]);
    let (space, code, text) = w.refused(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg));
    assert_eq!((space, code), ("gov", 12));
    assert!(text.contains("gov 18"), "{text}");
}

#[test]
fn a_proposal_that_cancels_itself_finds_itself_decided() {
    use crate::calc::Share;
    let mut w = World::new();
    w.set_params(|p| p.min_deposit_ratio = Share::ZERO);
    let gov = w.gov();
    // Its id is known before: the next one after the outer.
    let own = pb::MsgCancelProposal { proposal_id: 2, proposer: gov.clone() };
    let inner = pb::MsgSubmitProposal { proposer: gov, ..w.submission(1, 0, vec![]) };
    let outer = w.voting(vec![pack(&inner)]);
    w.votes(outer, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    let mut content = CONTENTS.load(&w.chain.store, &2).unwrap();
    content.messages.push(pack(&own).into());
    w.chain.ctx(|ctx| CONTENTS.set(ctx.store, &2, &content)).unwrap();
    w.deposit(2, 12, MIN).unwrap();
    w.votes(2, &[1, 1, 1, 1]);
    w.block(2 * DAY);
    assert_eq!((w.status(2), w.balance(&addr(12))), (ProposalStatus::Failed, RICH));
}

#[test]
fn events_have_the_names_and_attributes_of_the_sdk() {
    let mut w = World::new();
    w.chain.take_events();
    let msg = w.submission(11, MIN / 2, vec![test_msg("put:a"), test_msg("put:b")]);
    w.submit(msg);
    w.deposit(1, 12, MIN / 2).unwrap();
    w.try_vote(1, 1, 4).unwrap();
    w.weighted(1, 2, &[(1, "0.7"), (2, "0.3")]).unwrap();
    let [p, d, v1, v2] = [11, 12, 1, 2].map(|n| w.text(n));
    let lines: Vec<_> = w.chain.take_events().iter().map(line).collect();
    assert_eq!(
        lines,
        [
            format!(
                "submit_proposal proposal_id=1 proposal_proposer={p} proposal_messages=,/test.Msg,/test.Msg"
            ),
            format!("proposal_deposit depositor={p} amount=5000000uhold proposal_id=1"),
            format!("proposal_deposit depositor={d} amount=5000000uhold proposal_id=1"),
            "proposal_deposit voting_period_start=1".into(),
            format!(
                "proposal_vote voter={v1} option=[{{\"option\":4,\"weight\":\"1.000000000000000000\"}}] proposal_id=1"
            ),
            format!(
                "proposal_vote voter={v2} option=[{{\"option\":1,\"weight\":\"0.700000000000000000\"}},\
                 {{\"option\":2,\"weight\":\"0.300000000000000000\"}}] proposal_id=1"
            ),
        ]
    );
    w.voting(vec![]);
    let last = w.chain.take_events().last().map(line).unwrap();
    assert_eq!(last, "submit_proposal voting_period_start=2");
}
