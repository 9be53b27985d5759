//! Parameters: limits, and changes by mask.

use holdfast_proto::FieldMask;
use holdfast_proto::holdfast::escrow::v1 as pb;
use holdfast_types::{Address, Hrp};

use super::world::*;
use crate::errors::CODES;
use crate::params::FIELDS;
use crate::{EscrowError, Keeper, Params, msg_server};

/// A value other than the default in every field.
fn other() -> pb::Params {
    pb::Params {
        denom: "uother".into(),
        create_fee: "1".into(),
        fee_per_nonce: "2".into(),
        token_price: "340282366920938463463374607431768211455".into(),
        refusal_timeout_s: 3,
        execution_timeout_s: 4,
        vote_threshold_bp: 5,
        cancel_charge_bp: 6,
        seal_grace_rounds: 7,
        max_nonce: 8,
        max_live: 9,
        max_slots_per_owner: 10,
        max_slots: 11,
        max_lifetime_blocks: 12,
        dispute_window_blocks: 13,
    }
}

fn update(params: pb::Params, paths: &[&str]) -> pb::MsgUpdateParams {
    pb::MsgUpdateParams {
        authority: Address::module("gov").to_bech32(&Hrp::default()),
        params: Some(params),
        update_mask: Some(FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() }),
    }
}

#[test]
fn each_field_is_changed_by_its_name_alone() {
    let all = Params::from_pb(&other()).unwrap();
    assert_eq!(all.to_pb(), other());
    let mut params = Params::default();
    for field in FIELDS {
        let changed = params.updated(&other(), &[(*field).to_owned()]).unwrap();
        assert_ne!(changed, params, "{field}");
        params = changed;
    }
    assert_eq!(params, all);
    assert_eq!(Params::default().updated(&other(), &["*".to_owned()]).unwrap(), all);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    type Change = Box<dyn Fn(&mut pb::Params)>;
    let cases: Vec<(&str, Change)> = vec![
        ("denom", Box::new(|p| p.denom = "1x".into())),
        ("create_fee", Box::new(|p| p.create_fee = "340282366920938463463374607431768211456".into())),
        ("fee_per_nonce", Box::new(|p| p.fee_per_nonce = "-1".into())),
        ("token_price", Box::new(|p| p.token_price.clear())),
        ("refusal_timeout_s", Box::new(|p| p.refusal_timeout_s = 0)),
        ("execution_timeout_s", Box::new(|p| p.execution_timeout_s = 86_401)),
        ("vote_threshold_bp", Box::new(|p| p.vote_threshold_bp = 10_000)),
        ("vote_threshold_bp", Box::new(|p| p.vote_threshold_bp = 65_536)),
        ("cancel_charge_bp", Box::new(|p| p.cancel_charge_bp = 10_001)),
        ("seal_grace_rounds", Box::new(|p| p.seal_grace_rounds = 0)),
        ("max_nonce", Box::new(|p| p.max_nonce = 2)),
        ("max_live", Box::new(|p| p.max_live = 65_537)),
        ("max_slots_per_owner", Box::new(|p| p.max_slots_per_owner = 129)),
        ("max_slots", Box::new(|p| p.max_slots = 0)),
        ("max_slots", Box::new(|p| p.max_slots = 129)),
        ("max_lifetime_blocks", Box::new(|p| p.max_lifetime_blocks = 0)),
        ("dispute_window_blocks", Box::new(|p| p.dispute_window_blocks = 1_000_001)),
    ];
    for (field, change) in cases {
        let mut params = Params::default().to_pb();
        change(&mut params);
        assert_eq!(Params::from_pb(&params).unwrap_err().field, field);
    }
    Params::default().validate().unwrap();
}

#[test]
fn only_governance_changes_parameters_and_only_what_it_names() {
    let mut w = World::new();
    let mut foreign = update(other(), &["*"]);
    foreign.authority = text("creator");
    assert_eq!(w.refused(|ctx, _| msg_server::update_params(ctx, foreign)), 2);
    let bad: [&[&str]; 4] = [&[], &["nothing"], &["max_live", "max_live"], &["*", "max_live"]];
    for mask in bad {
        assert_eq!(w.refused(|ctx, _| msg_server::update_params(ctx, update(other(), mask))), 3, "{mask:?}");
    }
    let mut absent = update(other(), &["*"]);
    absent.params = None;
    assert_eq!(w.refused(|ctx, _| msg_server::update_params(ctx, absent)), 3);
    w.ok(|ctx, _| msg_server::update_params(ctx, update(other(), &["max_live", "create_fee"])));
    let expected = Params { max_live: 9, create_fee: 1, ..prices() };
    assert_eq!(Keeper.params(&w.chain.store).unwrap(), expected);
    let id = w.create();
    assert_eq!((w.row(id).config.max_live, w.row(id).config.create_fee), (9, 1));
}

#[test]
fn every_code_is_listed_once_in_order() {
    let codes: Vec<u32> = CODES.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, (2..=16).collect::<Vec<_>>());
    assert_eq!(EscrowError::genesis("x", "y").code(), Some(16));
    assert_eq!(EscrowError::Corrupt("x").code(), None);
}
