//! Parameters: what is refused, what a mask changes, and that what is accepted works.

use super::*;
use crate::calc::Share;
use holdfast_proto::Duration;
use holdfast_types::Coin;

type Spoil = fn(&mut pb::Params);

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

/// Each value that no parameter may have, by the field that is named.
const BAD: &[(&str, Spoil)] = &[
    ("min_deposit", |p| p.min_deposit.clear()),
    ("min_deposit", |p| p.min_deposit[0].amount = "0".into()),
    ("min_deposit", |p| p.min_deposit[0].denom = "1".into()),
    ("min_deposit", |p| p.min_deposit.push(p.min_deposit[0].clone())),
    ("max_deposit_period", |p| p.max_deposit_period = None),
    ("max_deposit_period", |p| p.max_deposit_period = seconds(0)),
    ("max_deposit_period", |p| p.max_deposit_period = seconds(-1)),
    ("max_deposit_period", |p| p.max_deposit_period = seconds(31_536_001)),
    ("voting_period", |p| p.voting_period = seconds(i64::MAX)),
    ("voting_period", |p| p.voting_period = Some(Duration { seconds: 0, nanos: 999_999_999 })),
    ("voting_period", |p| p.voting_period = Some(Duration { seconds: 200_000, nanos: 1_000_000_000 })),
    ("quorum", |p| p.quorum.clear()),
    ("quorum", |p| p.quorum = "1.1".into()),
    ("quorum", |p| p.quorum = "-0.1".into()),
    ("threshold", |p| p.threshold = "0".into()),
    ("threshold", |p| p.threshold = "1".into()),
    ("veto_threshold", |p| p.veto_threshold = "0".into()),
    ("veto_threshold", |p| p.veto_threshold = "2".into()),
    ("min_initial_deposit_ratio", |p| p.min_initial_deposit_ratio = "1.5".into()),
    ("proposal_cancel_ratio", |p| p.proposal_cancel_ratio = "x".into()),
    ("proposal_cancel_dest", |p| p.proposal_cancel_dest = "nobody".into()),
    ("proposal_cancel_dest", |p| {
        p.proposal_cancel_dest = Address::module("gov").to_bech32(&Hrp::default());
    }),
    ("expedited_voting_period", |p| p.expedited_voting_period = p.voting_period),
    ("expedited_voting_period", |p| p.expedited_voting_period = seconds(0)),
    ("expedited_threshold", |p| p.expedited_threshold = "0.5".into()),
    ("expedited_threshold", |p| p.expedited_threshold = "1".into()),
    ("expedited_min_deposit", |p| p.expedited_min_deposit = p.min_deposit.clone()),
    ("expedited_min_deposit", |p| p.expedited_min_deposit[0].denom = "uother".into()),
    ("expedited_min_deposit", |p| p.expedited_min_deposit.clear()),
    ("min_deposit_ratio", |p| p.min_deposit_ratio = "1.0000000000000000001".into()),
];

#[test]
fn bad_values_are_refused_by_name_alone_and_with_all_others() {
    let mut w = World::new();
    for (field, spoil) in BAD {
        for mask in [*field, "*"] {
            let mut params = Params::default().to_pb(&Hrp::default());
            spoil(&mut params);
            let msg = w.update_params(params, &[mask]);
            let (space, code, text) = w.refused(|ctx, _| msg_server::update_params(ctx, msg));
            assert_eq!((space, code), ("sdk", 18), "{field}");
            assert!(text.starts_with(&format!("{field}:")), "{field}: {text}");
        }
    }
}

#[test]
fn jointly_bad_values_are_refused_though_each_is_good() {
    let mut w = World::new();
    for (field, mask, params) in [
        ("expedited_threshold", "threshold", pb::Params { threshold: "0.667".into(), ..Default::default() }),
        (
            "expedited_voting_period",
            "voting_period",
            pb::Params { voting_period: seconds(86_400), ..Default::default() },
        ),
        (
            "expedited_min_deposit",
            "min_deposit",
            pb::Params { min_deposit: uhold(MIN_EXPEDITED), ..Default::default() },
        ),
    ] {
        let msg = w.update_params(params, &[mask]);
        let (_, code, text) = w.refused(|ctx, _| msg_server::update_params(ctx, msg));
        assert!(code == 18 && text.starts_with(field), "{text}");
    }
}

#[test]
fn only_governance_changes_parameters_and_the_mask_says_which() {
    let mut w = World::new();
    let given = pb::Params { quorum: "0.4".into(), burn_vote_quorum: true, ..Default::default() };
    let good = w.update_params(given, &["quorum"]);
    let who = w.text(1);
    for (msg, space, code, field) in [
        (pb::MsgUpdateParams { authority: who, ..good.clone() }, "gov", 13, "authority"),
        (pb::MsgUpdateParams { authority: String::new(), ..good.clone() }, "gov", 13, "authority"),
        (pb::MsgUpdateParams { update_mask: None, ..good.clone() }, "sdk", 18, "update_mask"),
        (w.update_params(good.params.clone().unwrap(), &["nothing"]), "sdk", 18, "update_mask"),
        (w.update_params(good.params.clone().unwrap(), &["quorum", "quorum"]), "sdk", 18, "update_mask"),
        (pb::MsgUpdateParams { params: None, ..good.clone() }, "sdk", 18, "params"),
    ] {
        let refused = w.refused(|ctx, _| msg_server::update_params(ctx, msg));
        assert_eq!((refused.0, refused.1), (space, code));
        assert!(refused.2.starts_with(field), "{}", refused.2);
    }
    w.send(|ctx, _| msg_server::update_params(ctx, good)).unwrap();
    // What the mask leaves out stays, given or not.
    let expected = Params { quorum: Share::per_mille(400), ..Params::default() };
    assert_eq!(Keeper.params(&w.chain.store).unwrap(), expected);
    let back = pb::Params { burn_vote_quorum: true, ..expected.to_pb(&Hrp::default()) };
    let msg = w.update_params(back, &["*"]);
    w.send(|ctx, _| msg_server::update_params(ctx, msg)).unwrap();
    assert_eq!(Keeper.params(&w.chain.store).unwrap(), Params { burn_vote_quorum: true, ..expected });
}

#[test]
fn every_field_can_be_named_alone_and_takes_its_value() {
    let hrp = Hrp::default();
    let coin = |amount| vec![Coin { denom: DENOM.into(), amount }];
    let other = Params {
        min_deposit: coin(7),
        max_deposit_period_ns: 3 * SECOND,
        voting_period_ns: 9 * SECOND,
        quorum: Share::per_mille(1),
        threshold: Share::per_mille(2),
        veto_threshold: Share::per_mille(3),
        min_initial_deposit_ratio: Share::per_mille(4),
        proposal_cancel_ratio: Share::per_mille(5),
        proposal_cancel_dest: Some(addr(7)),
        expedited_voting_period_ns: 8 * SECOND,
        expedited_threshold: Share::per_mille(6),
        expedited_min_deposit: coin(8),
        burn_vote_quorum: true,
        burn_proposal_deposit_prevote: true,
        burn_vote_veto: false,
        min_deposit_ratio: Share::per_mille(7),
    };
    other.validate().unwrap();
    let wire = other.to_pb(&hrp);
    assert_eq!(Params::from_pb(&wire, &hrp).unwrap(), other);
    let mut seen = Vec::new();
    for field in crate::params::FIELDS {
        let changed = Params::default().with_fields(&wire, &[field], &hrp).unwrap();
        assert_ne!(changed, Params::default(), "{field}");
        assert!(!seen.contains(&changed), "{field}");
        seen.push(changed);
    }
    assert_eq!(seen.len(), 16);
}

#[test]
fn the_defaults_are_those_of_the_sdk() {
    let p = Params::default().to_pb(&Hrp::default());
    Params::default().validate().unwrap();
    assert_eq!(
        (p.min_deposit[0].amount.as_str(), p.expedited_min_deposit[0].amount.as_str()),
        ("10000000", "50000000")
    );
    assert_eq!(
        [&p.quorum, &p.threshold, &p.veto_threshold, &p.expedited_threshold],
        ["0.334000000000000000", "0.500000000000000000", "0.334000000000000000", "0.667000000000000000"]
    );
    assert_eq!(
        [&p.min_initial_deposit_ratio, &p.min_deposit_ratio, &p.proposal_cancel_ratio],
        ["0.000000000000000000", "0.010000000000000000", "0.500000000000000000"]
    );
    assert_eq!(p.proposal_cancel_dest, "");
    assert_eq!(
        [p.max_deposit_period, p.voting_period, p.expedited_voting_period],
        [seconds(172_800), seconds(172_800), seconds(86_400)]
    );
    assert_eq!((p.burn_vote_quorum, p.burn_proposal_deposit_prevote, p.burn_vote_veto), (false, false, true));
}

/// Any parameters that pass, extreme ones often.
pub(super) fn random_params(rng: &mut Rng) -> Params {
    let share = |rng: &mut Rng| match rng.below(4) {
        0 => Share::ZERO,
        1 => Share::ONE,
        2 => Share::parse("0.000000000000000001").unwrap(),
        _ => Share::per_mille(rng.below(1_001) as u16),
    };
    let period = |rng: &mut Rng| match rng.below(3) {
        0 => SECOND + rng.below(3),
        1 => 31_536_000 * SECOND - rng.below(3),
        _ => SECOND * (1 + rng.below(100)),
    };
    loop {
        let amount = *rng.pick(&[1, 2, 1_000, MIN, u128::MAX - 1]);
        let params = Params {
            min_deposit: vec![Coin { denom: DENOM.into(), amount }],
            max_deposit_period_ns: period(rng),
            voting_period_ns: period(rng),
            quorum: share(rng),
            threshold: share(rng),
            veto_threshold: share(rng),
            min_initial_deposit_ratio: share(rng),
            proposal_cancel_ratio: share(rng),
            proposal_cancel_dest: rng.chance(50).then(|| addr(rng.below(9) as u8)),
            expedited_voting_period_ns: period(rng),
            expedited_threshold: share(rng),
            expedited_min_deposit: vec![Coin {
                denom: DENOM.into(),
                amount: amount.saturating_add(1 + u128::from(rng.below(5))),
            }],
            burn_vote_quorum: rng.chance(50),
            burn_proposal_deposit_prevote: rng.chance(50),
            burn_vote_veto: rng.chance(50),
            min_deposit_ratio: share(rng),
        };
        if params.validate().is_ok() {
            return params;
        }
    }
}

#[test]
fn accepted_parameters_round_trip_and_let_a_unanimous_vote_pass() {
    let mut rng = Rng::new(5);
    let mut passed = 0;
    for _ in 0..300 {
        let params = random_params(&mut rng);
        let hrp = Hrp::default();
        assert_eq!(Params::from_pb(&params.to_pb(&hrp), &hrp).unwrap(), params);
        let min = params.min_deposit[0].amount;
        let mut w = World::with(params.clone());
        if min == u128::MAX - 1 {
            w.chain.ctx(|ctx| BANK.set(ctx, &addr(11), DENOM, min));
        }
        let msg = w.submission(11, min, vec![test_msg("put:a")]);
        let id = w.submit(msg);
        assert_eq!(w.status(id), ProposalStatus::VotingPeriod);
        w.votes(id, &[1; 10]);
        w.chain.block.time_ns += params.voting_period_ns;
        w.block(0);
        assert_eq!(w.status(id), ProposalStatus::Passed, "{params:?}");
        passed += 1;
    }
    assert_eq!(passed, 300);
}
