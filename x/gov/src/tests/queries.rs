//! Queries: answers, filters, pages, refusals.

use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;

use super::*;

fn world() -> World {
    let mut w = World::new();
    let msg = w.submission(12, MIN / 2, vec![test_msg("put:a")]);
    w.submit(msg);
    let voted = w.voting(vec![]);
    w.votes(voted, &[1, 2, 3, 4]);
    w.weighted(voted, 5, &[(1, "0.5"), (2, "0.5")]).unwrap();
    w.voting(vec![]);
    w.try_vote(3, 1, 1).unwrap();
    w
}

#[test]
fn a_proposal_is_told_with_all_it_says() {
    let w = world();
    let get = |id| query_server::proposal(w.chain.query(), pb::QueryProposalRequest { proposal_id: id });
    let time = |s: u64| Some(holdfast_proto::Timestamp { seconds: s as i64, nanos: 0 });
    let zero = || "0".to_owned();
    let expected = pb::Proposal {
        id: 1,
        messages: vec![test_msg("put:a")],
        status: 1,
        final_tally_result: Some(pb::TallyResult {
            yes_count: zero(),
            abstain_count: zero(),
            no_count: zero(),
            no_with_veto_count: zero(),
        }),
        submit_time: time(START),
        deposit_end_time: time(START + 2 * DAY),
        total_deposit: uhold(MIN / 2),
        voting_start_time: None,
        voting_end_time: None,
        metadata: "ipfs://x".into(),
        title: "A title".into(),
        summary: "What it is about".into(),
        proposer: w.text(12),
        expedited: false,
        failed_reason: String::new(),
    };
    assert_eq!(get(1).unwrap().proposal, Some(expected));
    assert_eq!(get(2).unwrap().proposal.unwrap().voting_end_time, time(START + 2 * DAY));
    assert_eq!(get(9).unwrap_err().kind, QueryKind::NotFound);
    assert_eq!(get(0).unwrap_err().kind, QueryKind::InvalidArgument);
}

#[test]
fn proposals_are_filtered_by_status_voter_and_depositor_and_paged() {
    let w = world();
    let ask = |proposal_status, voter: &str, depositor: &str, pagination: Option<PageRequest>| {
        let (voter, depositor) = (voter.to_owned(), depositor.to_owned());
        let req = pb::QueryProposalsRequest { proposal_status, voter, depositor, pagination };
        query_server::proposals(w.chain.query(), req)
    };
    let ids = |r: pb::QueryProposalsResponse| r.proposals.iter().map(|p| p.id).collect::<Vec<_>>();
    let (v1, v2, d12) = (w.text(1), w.text(2), w.text(12));
    assert_eq!(ids(ask(0, "", "", None).unwrap()), [1, 2, 3]);
    assert_eq!(ids(ask(2, "", "", None).unwrap()), [2, 3]);
    assert_eq!(ids(ask(0, &v1, "", None).unwrap()), [2, 3]);
    assert_eq!(ids(ask(0, &v2, "", None).unwrap()), [2]);
    assert_eq!(ids(ask(0, "", &d12, None).unwrap()), [1]);
    assert_eq!(ids(ask(2, "", &d12, None).unwrap()), [0; 0]);
    let page = ask(2, "", "", Some(PageRequest { limit: 1, ..Default::default() })).unwrap();
    let key = page.pagination.clone().unwrap().next_key;
    assert_eq!(ids(page), [2]);
    let page = ask(2, "", "", Some(PageRequest { key, limit: 1, ..Default::default() })).unwrap();
    assert_eq!(ids(page), [3]);
    assert_eq!(ask(9, "", "", None).unwrap_err().kind, QueryKind::InvalidArgument);
    assert_eq!(ask(0, "x", "", None).unwrap_err().kind, QueryKind::InvalidArgument);
}

#[test]
fn votes_and_deposits_are_told_one_by_one_and_in_pages() {
    let w = world();
    let q = w.chain.query();
    let vote = |voter: String| query_server::vote(q, pb::QueryVoteRequest { proposal_id: 2, voter });
    let five = vote(w.text(5)).unwrap().vote.unwrap();
    let half = |option| pb::WeightedVoteOption { option, weight: "0.500000000000000000".into() };
    assert_eq!((five.options, five.voter), (vec![half(1), half(2)], w.text(5)));
    assert_eq!(vote(w.text(6)).unwrap_err().kind, QueryKind::NotFound);
    let votes = query_server::votes(q, pb::QueryVotesRequest { proposal_id: 2, pagination: None }).unwrap();
    let voters: Vec<_> = votes.votes.iter().map(|v| v.voter.clone()).collect();
    assert_eq!(voters, [1, 2, 3, 4, 5].map(|n| w.text(n)));
    assert_eq!(votes.pagination.unwrap().total, 5);
    let deposit =
        |depositor: String| query_server::deposit(q, pb::QueryDepositRequest { proposal_id: 1, depositor });
    assert_eq!(deposit(w.text(12)).unwrap().deposit.unwrap().amount, uhold(MIN / 2));
    assert_eq!(deposit(w.text(11)).unwrap_err().kind, QueryKind::NotFound);
    let req = pb::QueryDepositsRequest { proposal_id: 2, pagination: None };
    let deposits = query_server::deposits(q, req).unwrap().deposits;
    assert_eq!(deposits, [pb::Deposit { proposal_id: 2, depositor: w.text(11), amount: uhold(MIN) }]);
}

#[test]
fn the_tally_is_counted_while_voting_is_open_and_kept_after() {
    let mut w = world();
    let tally = |w: &World, id| {
        let req = pb::QueryTallyResultRequest { proposal_id: id };
        query_server::tally_result(w.chain.query(), &w.power, req).map(|r| {
            let t = r.tally.unwrap();
            [t.yes_count, t.abstain_count, t.no_count, t.no_with_veto_count]
        })
    };
    assert_eq!(tally(&w, 1).unwrap(), ["0", "0", "0", "0"]);
    assert_eq!(tally(&w, 2).unwrap(), ["15", "15", "10", "10"]);
    assert_eq!(tally(&w, 9).unwrap_err().kind, QueryKind::NotFound);
    w.block(2 * DAY);
    w.power.of.borrow_mut().clear();
    assert_eq!(tally(&w, 2).unwrap(), ["15", "15", "10", "10"]);
}

#[test]
fn a_tally_too_large_for_a_query_is_refused_and_not_cut() {
    let mut w = world();
    let vote = Vote::single(1, String::new()).unwrap();
    w.chain.ctx(|ctx| {
        for n in 0..10_001 {
            VOTES.set(ctx.store, &(2, addr_n(1_000_000 + n)), &vote).unwrap();
        }
    });
    let req = pb::QueryTallyResultRequest { proposal_id: 2 };
    let error = query_server::tally_result(w.chain.query(), &w.power, req).unwrap_err();
    assert_eq!(error.kind, QueryKind::FailedPrecondition);
}

#[test]
fn parameters_come_whole_with_the_older_group_that_was_asked_for() {
    let w = world();
    let ask = |kind: &str| {
        query_server::params(w.chain.query(), pb::QueryParamsRequest { params_type: kind.into() })
    };
    let all = Params::default().to_pb(&w.chain.block.hrp);
    for kind in ["", "deposit", "voting", "tallying"] {
        let r = ask(kind).unwrap();
        assert_eq!(r.params.as_ref(), Some(&all));
        assert_eq!(
            [r.deposit_params.is_some(), r.voting_params.is_some(), r.tally_params.is_some()],
            [kind == "deposit", kind == "voting", kind == "tallying"]
        );
    }
    assert_eq!(ask("deposit").unwrap().deposit_params.unwrap().min_deposit, all.min_deposit);
    assert_eq!(ask("voting").unwrap().voting_params.unwrap().voting_period, all.voting_period);
    assert_eq!(ask("tallying").unwrap().tally_params.unwrap().quorum, all.quorum);
    assert_eq!(ask("other").unwrap_err().kind, QueryKind::InvalidArgument);
}

#[test]
fn the_authority_is_the_gov_account_and_no_plan_is_no_error() {
    let w = world();
    let q = w.chain.query();
    assert_eq!(query_server::authority(q, upgrade::QueryAuthorityRequest {}).unwrap().address, w.gov());
    // The address under the Cosmos prefix is known to every wallet.
    let cosmos = Address::module("gov").to_bech32(&Hrp::new("cosmos").unwrap());
    assert_eq!(cosmos, "cosmos10d07y265gmmuvt4z0w9aw880jnsr700j6zn9kn");
    let plan = query_server::current_plan(q, upgrade::QueryCurrentPlanRequest {}).unwrap().plan;
    assert_eq!(plan, None);
}
