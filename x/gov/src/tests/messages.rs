//! Every code: the message that meets it, and the field it names.

use std::collections::BTreeSet;

use super::*;

type Spoil = fn(&World, &mut pb::MsgSubmitProposal);

#[test]
fn a_bad_submission_is_refused_by_its_code_and_field() {
    let deep = |w: &World, depth: u32| {
        let mut msg = w.submission(1, 0, vec![]);
        msg.proposer = w.gov();
        for _ in 0..depth {
            let outer = w.submission(1, 0, vec![pack(&msg)]);
            msg = pb::MsgSubmitProposal { proposer: w.gov(), ..outer };
        }
        pack(&msg)
    };
    let mut w = World::new();
    let nested = [deep(&w, 1), deep(&w, 40)];
    let cases: &[(&str, u32, &str, Spoil)] = &[
        ("sdk", 7, "proposer", |_, m| m.proposer = "hold1x".into()),
        ("gov", 5, "title", |_, m| m.title.clear()),
        ("gov", 5, "title", |_, m| m.title = "t".repeat(256)),
        ("gov", 5, "summary", |_, m| m.summary.clear()),
        ("gov", 22, "summary", |_, m| m.summary = "s".repeat(10_201)),
        ("gov", 15, "metadata", |_, m| m.metadata = "m".repeat(256)),
        ("sdk", 10, "initial_deposit[0]", |_, m| m.initial_deposit[0].amount = "0".into()),
        ("sdk", 10, "initial_deposit[0]", |_, m| m.initial_deposit[0].amount = "-1".into()),
        ("sdk", 10, "initial_deposit[1]", |_, m| m.initial_deposit.extend(uhold(1))),
        ("gov", 11, "messages", |_, m| (m.metadata, m.messages) = (String::new(), vec![])),
        ("gov", 25, "messages", |_, m| m.messages = vec![test_msg("x"); 33]),
        ("gov", 25, "messages", |_, m| m.messages = vec![test_msg(&"x".repeat(1 << 20))]),
        ("gov", 23, "initial_deposit", |_, m| m.initial_deposit[0].denom = "uother".into()),
        ("gov", 16, "initial_deposit", |_, m| m.initial_deposit = uhold(99_999)),
        ("gov", 16, "initial_deposit", |_, m| m.initial_deposit.clear()),
        ("gov", 10, "messages[0]", |_, m| m.messages[0].type_url = "/test.Unknown".into()),
        ("gov", 12, "messages[0]", |_, m| m.messages[0] = test_msg("bad")),
        ("gov", 13, "messages[0]", |_, m| m.messages[0] = test_msg("alien")),
        ("gov", 13, "messages[1]", |_, m| m.messages.push(test_msg("both"))),
        ("gov", 13, "messages[0]", |_, m| m.messages[0] = test_msg("nobody")),
        ("gov", 12, "messages[1]", |_, m| m.messages.push(test_msg("fail"))),
        ("gov", 13, "messages[0]", |w, m| {
            m.messages[0] = pack(&pb::MsgVote { voter: w.text(1), ..Default::default() });
        }),
        ("sdk", 5, "", |_, m| m.initial_deposit = uhold(RICH + 1)),
    ];
    for (space, code, field, spoil) in cases {
        let mut msg = w.submission(11, MIN, vec![test_msg("put:a")]);
        spoil(&w, &mut msg);
        let refused = w.refused(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg));
        assert_eq!((refused.0, refused.1), (*space, *code), "{field}: {}", refused.2);
        assert!(refused.2.starts_with(field), "{field}: {}", refused.2);
    }
    for message in nested {
        let msg = w.submission(11, MIN, vec![message]);
        let refused = w.refused(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg));
        assert_eq!((refused.0, refused.1), ("gov", 24));
    }
    // The limits themselves are taken.
    let msg = pb::MsgSubmitProposal {
        title: "t".repeat(255),
        summary: "s".repeat(10_200),
        metadata: "m".repeat(255),
        initial_deposit: uhold(100_000),
        ..w.submission(11, 0, vec![test_msg("x"); 32])
    };
    w.submit(msg);
    // A text alone can be decided on.
    let msg = w.submission(11, MIN, vec![]);
    w.submit(msg);
}

#[test]
fn the_initial_deposit_has_a_share_to_reach() {
    let mut w = World::new();
    w.set_params(|p| {
        p.min_initial_deposit_ratio = crate::calc::Share::per_mille(250);
        p.min_deposit_ratio = crate::calc::Share::ZERO;
    });
    let try_submit = |w: &mut World, amount, expedited| {
        let msg = pb::MsgSubmitProposal { expedited, ..w.submission(11, amount, vec![]) };
        w.send(|ctx, deps| msg_server::submit_proposal(ctx, deps, msg)).map_err(|e| e.code)
    };
    assert_eq!(try_submit(&mut w, MIN / 4 - 1, false).unwrap_err(), 16);
    assert_eq!(try_submit(&mut w, 0, false).unwrap_err(), 16);
    try_submit(&mut w, MIN / 4, false).unwrap();
    assert_eq!(try_submit(&mut w, MIN_EXPEDITED / 4 - 1, true).unwrap_err(), 16);
    try_submit(&mut w, MIN_EXPEDITED / 4, true).unwrap();
}

#[test]
fn with_two_denominations_all_are_needed_and_one_is_enough_for_a_single_deposit() {
    let mut w = World::new();
    let coin = |denom: &str, amount: u128| holdfast_types::Coin { denom: denom.into(), amount };
    w.set_params(|p| {
        p.min_deposit = vec![coin("uabc", 100), coin(DENOM, MIN)];
        p.expedited_min_deposit = vec![coin("uabc", 200), coin(DENOM, 2 * MIN)];
    });
    w.chain.ctx(|ctx| BANK.set(ctx, &addr(12), "uabc", 1_000));
    let msg = w.submission(11, MIN, vec![]);
    let id = w.submit(msg);
    assert_eq!(w.status(id), ProposalStatus::DepositPeriod, "uabc is missing");
    let deposit = |w: &mut World, amount: &str| {
        let amount = vec![PbCoin { denom: "uabc".into(), amount: amount.into() }];
        let msg = pb::MsgDeposit { proposal_id: id, depositor: w.text(12), amount };
        w.send(|ctx, deps| msg_server::deposit(ctx, deps, msg))
    };
    deposit(&mut w, "99").unwrap();
    assert_eq!(w.status(id), ProposalStatus::DepositPeriod);
    deposit(&mut w, "1").unwrap();
    assert_eq!(w.status(id), ProposalStatus::VotingPeriod);
    w.block(2 * DAY);
    assert_eq!(BANK.balance(&w.chain.store, &addr(12), "uabc").unwrap(), 1_000);
}

#[test]
fn a_bad_deposit_is_refused_by_its_code_and_field() {
    let mut w = World::new();
    let msg = w.submission(11, MIN / 2, vec![]);
    let id = w.submit(msg);
    let gov = w.gov();
    let good = pb::MsgDeposit { proposal_id: id, depositor: w.text(12), amount: uhold(MIN / 100) };
    let cases: Vec<(&str, u32, &str, pb::MsgDeposit)> = vec![
        ("sdk", 7, "depositor", pb::MsgDeposit { depositor: String::new(), ..good.clone() }),
        ("sdk", 10, "amount", pb::MsgDeposit { amount: vec![], ..good.clone() }),
        ("gov", 2, "proposal_id", pb::MsgDeposit { proposal_id: 9, ..good.clone() }),
        ("gov", 18, "depositor", pb::MsgDeposit { depositor: gov, ..good.clone() }),
        (
            "gov",
            23,
            "amount",
            pb::MsgDeposit {
                amount: vec![PbCoin { denom: "uother".into(), amount: "1".into() }],
                ..good.clone()
            },
        ),
        ("gov", 16, "amount", pb::MsgDeposit { amount: uhold(MIN / 100 - 1), ..good.clone() }),
        ("sdk", 5, "", pb::MsgDeposit { amount: uhold(RICH + 1), ..good.clone() }),
    ];
    for (space, code, field, msg) in cases {
        let refused = w.refused(|ctx, deps| msg_server::deposit(ctx, deps, msg));
        assert_eq!((refused.0, refused.1), (space, code), "{}", refused.2);
        assert!(refused.2.starts_with(field), "{}", refused.2);
    }
    w.send(|ctx, deps| msg_server::deposit(ctx, deps, good.clone())).unwrap();
    // Not at the end of the period, even before the block has ended it.
    w.chain.block.time_ns += 2 * DAY * SECOND;
    assert_eq!(w.deposit(id, 12, MIN).unwrap_err().code, 3);
    w.block(0);
    assert_eq!(w.deposit(id, 12, MIN).unwrap_err().code, 2, "dropped");
    let id = w.voting(vec![]);
    w.chain.block.time_ns += 2 * DAY * SECOND;
    assert_eq!(w.deposit(id, 12, MIN).unwrap_err().code, 3);
    w.block(0);
    assert_eq!(w.deposit(id, 12, MIN).unwrap_err().code, 3, "decided");
}

#[test]
fn a_bad_vote_is_refused_by_its_code() {
    let mut w = World::new();
    let msg = w.submission(11, MIN / 2, vec![]);
    let waiting = w.submit(msg);
    let id = w.voting(vec![]);
    assert_eq!(w.try_vote(9, 1, 1).unwrap_err().code, 2);
    assert_eq!(w.try_vote(waiting, 1, 1).unwrap_err().code, 3);
    assert_eq!(w.try_vote(id, 11, 1).unwrap_err().code, 26, "no power");
    for option in [0, 5, -1] {
        assert_eq!(w.try_vote(id, 1, option).unwrap_err().code, 7);
    }
    let long = pb::MsgVote { proposal_id: id, voter: w.text(1), option: 1, metadata: "m".repeat(256) };
    assert_eq!(w.refused(|ctx, deps| msg_server::vote(ctx, deps, long)).1, 15);
    let nobody = pb::MsgVote { proposal_id: id, voter: "x".into(), option: 1, metadata: String::new() };
    let refused = w.refused(|ctx, deps| msg_server::vote(ctx, deps, nobody));
    assert_eq!((refused.0, refused.1), ("sdk", 7));
    for parts in [
        &[][..],
        &[(1, "0.5")],
        &[(1, "1.1")],
        &[(1, "0.6"), (2, "0.5")],
        &[(1, "0.5"), (1, "0.5")],
        &[(1, "1"), (2, "0")],
        &[(1, "half"), (2, "0.5")],
        &[(0, "1")],
        &[(1, "")],
    ] {
        assert_eq!(w.weighted(id, 1, parts).unwrap_err().code, 7, "{parts:?}");
    }
    w.block(2 * DAY);
    assert_eq!(w.try_vote(id, 1, 1).unwrap_err().code, 3, "decided");
}

#[test]
fn a_bad_cancellation_is_refused_by_its_code() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    assert_eq!(w.cancel(9, 11).unwrap_err().code, 2);
    assert_eq!(w.cancel(id, 12).unwrap_err().code, 18);
    w.chain.block.time_ns += 2 * DAY * SECOND;
    assert_eq!(w.cancel(id, 11).unwrap_err().code, 20);
    w.block(0);
    assert_eq!(w.cancel(id, 11).unwrap_err().code, 21);
    let msg = pb::MsgCancelProposal { proposal_id: id, proposer: "x".into() };
    assert_eq!(w.refused(|ctx, _| msg_server::cancel_proposal(ctx, msg)).1, 7);
}

#[test]
fn the_response_of_a_cancellation_names_the_block() {
    let mut w = World::new();
    let id = w.voting(vec![]);
    let msg = pb::MsgCancelProposal { proposal_id: id, proposer: w.text(11) };
    let response = w.send(|ctx, _| msg_server::cancel_proposal(ctx, msg)).unwrap();
    let time = response.canceled_time.unwrap();
    assert_eq!((response.proposal_id, response.canceled_height), (id, 100));
    assert_eq!((time.seconds, time.nanos), (START as i64, 0));
}

#[test]
fn the_table_of_codes_is_ascending_and_each_number_is_that_of_an_error() {
    assert!(CODES.is_sorted_by(|a, b| a.0 < b.0));
    let text = String::new;
    let all = [
        GovError::UnknownProposal(1),
        GovError::Inactive { id: 1, why: "" },
        GovError::Content { field: "", rule: text() },
        GovError::Vote { field: text(), rule: text() },
        GovError::Genesis { field: text(), rule: text() },
        GovError::Unroutable { index: 0, reason: text() },
        GovError::NoMessages,
        GovError::InvalidMessage { index: 0, reason: text() },
        GovError::InvalidSigner { field: text(), expected: text(), found: text() },
        GovError::MetadataTooLong { found: 0, most: 0 },
        GovError::DepositTooSmall { field: "", found: text(), needed: text() },
        GovError::Proposer { field: "", rule: text() },
        GovError::VotingEnded(1),
        GovError::NotCancellable(1),
        GovError::SummaryTooLong { found: 0, most: 0 },
        GovError::DepositDenom { field: "", found: text(), accepted: text() },
        GovError::NestedTooDeep(1),
        GovError::TooLarge { found: 0, unit: "", most: 0 },
        GovError::NoPower(text()),
        GovError::NoPlan,
    ];
    let found: BTreeSet<u32> = all.iter().filter_map(GovError::code).collect();
    assert_eq!(found, CODES.iter().map(|row| row.0).collect());
    for (error, code) in [
        (GovError::Corrupt(""), sdk::LOGIC),
        (GovError::Store(StoreError::Backend(text())), sdk::INTERNAL),
        (holdfast_types::FieldError::new("x", "y").into(), sdk::INVALID_REQUEST),
    ] {
        let error = ModuleError::from(error);
        assert_eq!((error.codespace, error.code), ("sdk", code));
    }
}

#[test]
fn the_table_of_signers_names_the_fields_of_the_definitions() {
    // Encoded with only the signer set, the one field's number is in the first byte.
    let first = |bytes: Vec<u8>| u32::from(bytes[0] >> 3);
    let x = || "x".to_owned();
    let found = [
        (
            pb::MsgSubmitProposal::type_url(),
            first(pb::MsgSubmitProposal { proposer: x(), ..Default::default() }.encode_to_vec()),
        ),
        (pb::MsgVote::type_url(), first(pb::MsgVote { voter: x(), ..Default::default() }.encode_to_vec())),
        (
            pb::MsgVoteWeighted::type_url(),
            first(pb::MsgVoteWeighted { voter: x(), ..Default::default() }.encode_to_vec()),
        ),
        (
            pb::MsgDeposit::type_url(),
            first(pb::MsgDeposit { depositor: x(), ..Default::default() }.encode_to_vec()),
        ),
        (
            pb::MsgCancelProposal::type_url(),
            first(pb::MsgCancelProposal { proposer: x(), ..Default::default() }.encode_to_vec()),
        ),
        (
            pb::MsgUpdateParams::type_url(),
            first(pb::MsgUpdateParams { authority: x(), ..Default::default() }.encode_to_vec()),
        ),
        (
            upgrade::MsgSoftwareUpgrade::type_url(),
            first(upgrade::MsgSoftwareUpgrade { authority: x(), plan: None }.encode_to_vec()),
        ),
        (
            upgrade::MsgCancelUpgrade::type_url(),
            first(upgrade::MsgCancelUpgrade { authority: x() }.encode_to_vec()),
        ),
    ];
    let listed: Vec<_> = SIGNERS.iter().map(|(url, number, _)| ((*url).to_owned(), *number)).collect();
    assert_eq!(listed, found);
}
