//! Parameters: what is refused, and what each one changes.

use super::*;

#[test]
fn only_governance_changes_parameters_and_the_mask_says_which() {
    let mut w = World::new(100, 0);
    let gov = w.chain.bech32(&Address::module("gov"));
    let params = Params { max_models: 3, max_maintenance_blocks: 9, ..small_params() }.to_pb();
    let msg = |authority: &str, paths: &[&str]| pb::MsgUpdateParams {
        authority: authority.into(),
        params: Some(params.clone()),
        update_mask: Some(FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() }),
    };
    let who = w.chain.bech32(&addr(1));
    let good = msg(&gov, &["max_models"]);
    for (bad, code, field) in [
        (msg(&who, &["*"]), 2, "authority"),
        (msg("", &["*"]), 2, "authority"),
        (msg(&gov, &[]), 3, "update_mask"),
        (pb::MsgUpdateParams { update_mask: None, ..good.clone() }, 3, "update_mask"),
        (msg(&gov, &["nothing"]), 3, "update_mask"),
        (msg(&gov, &["*", "max_models"]), 3, "update_mask"),
        (msg(&gov, &["max_models", "max_models"]), 3, "update_mask"),
        (pb::MsgUpdateParams { params: None, ..good.clone() }, 3, "params"),
    ] {
        let (space, found, text) = w.refused(|ctx, k, _| msg_server::update_params(ctx, k, bad));
        assert_eq!((space, found), ("participants", code));
        assert!(text.starts_with(&format!("{field}:")), "{text}");
    }
    w.send(|ctx, k, _| msg_server::update_params(ctx, k, good)).unwrap();
    assert_eq!(w.keeper().params(&w.chain.store).unwrap(), Params { max_models: 3, ..small_params() });
    // A value outside the mask is not even looked at.
    let mut rest = params.clone();
    (rest.collateral_per_weight, rest.collateral_denom, rest.min_announce_blocks) =
        ("".into(), "".into(), -1);
    let msg = pb::MsgUpdateParams { params: Some(rest), ..msg(&gov, &["max_maintenance_blocks"]) };
    w.send(|ctx, k, _| msg_server::update_params(ctx, k, msg)).unwrap();
    let now = w.keeper().params(&w.chain.store).unwrap();
    assert_eq!(now, Params { max_models: 3, max_maintenance_blocks: 9, ..small_params() });
}

type Spoil = fn(&mut pb::Params);

/// Each value that no parameter may have, by field.
pub(crate) const BAD: &[(&str, Spoil)] = &[
    ("collateral_denom", |p| p.collateral_denom.clear()),
    ("collateral_denom", |p| p.collateral_denom = "1x".into()),
    ("collateral_per_weight", |p| p.collateral_per_weight = "0".into()),
    ("collateral_per_weight", |p| p.collateral_per_weight.clear()),
    ("collateral_per_weight", |p| p.collateral_per_weight = "-1".into()),
    ("collateral_per_weight", |p| p.collateral_per_weight = format!("{}0", u128::MAX)),
    ("max_models", |p| p.max_models = 0),
    ("max_models", |p| p.max_models = 65),
    ("min_announce_blocks", |p| p.min_announce_blocks = 0),
    ("min_announce_blocks", |p| p.min_announce_blocks = 1_000_001),
    ("min_announce_blocks", |p| p.min_announce_blocks = i64::MIN),
    ("max_maintenance_blocks", |p| p.max_maintenance_blocks = 0),
    ("max_maintenance_blocks", |p| p.max_maintenance_blocks = 1_000_001),
    ("max_maintenance_windows", |p| p.max_maintenance_windows = 0),
    ("max_maintenance_windows", |p| p.max_maintenance_windows = 65),
    ("max_validators", |p| p.max_validators = 0),
    ("max_validators", |p| p.max_validators = 501),
    ("max_validator_change_permille", |p| p.max_validator_change_permille = 9),
    ("max_validator_change_permille", |p| p.max_validator_change_permille = 0),
    ("max_validator_change_permille", |p| p.max_validator_change_permille = 334),
];

#[test]
fn bad_values_are_refused_by_name_alone_and_with_all_others() {
    let mut w = World::new(100, 0);
    let gov = w.chain.bech32(&Address::module("gov"));
    for (field, spoil) in BAD {
        for mask in [*field, "*"] {
            let mut params = small_params().to_pb();
            spoil(&mut params);
            let msg = pb::MsgUpdateParams {
                authority: gov.clone(),
                params: Some(params),
                update_mask: Some(FieldMask { paths: vec![mask.into()] }),
            };
            let (space, code, text) = w.refused(|ctx, k, _| msg_server::update_params(ctx, k, msg));
            assert_eq!((space, code), ("participants", 3), "{field}");
            assert!(text.starts_with(&format!("{field}:")), "{text}");
        }
    }
    let limits = Params {
        collateral_per_weight: u128::MAX,
        max_models: 64,
        min_announce_blocks: 1_000_000,
        max_maintenance_blocks: 1_000_000,
        max_maintenance_windows: 64,
        max_validators: 500,
        max_validator_change_permille: 333,
        ..small_params()
    };
    w.set_params(&limits, &["*"]).unwrap();
    let least = Params {
        collateral_per_weight: 1,
        max_models: 1,
        min_announce_blocks: 1,
        max_maintenance_blocks: 1,
        max_maintenance_windows: 1,
        max_validators: 1,
        max_validator_change_permille: 10,
        ..small_params()
    };
    w.set_params(&least, &["*"]).unwrap();
}

#[test]
fn the_denomination_of_collateral_is_fixed_at_genesis_and_decides_what_is_bonded() {
    let mut w = World::new(100, 0);
    let other = Params { collateral_denom: "uother".into(), ..small_params() };
    for mask in ["*", "collateral_denom"] {
        let error = w.set_params(&other, &[mask]).unwrap_err();
        assert_eq!(error.code, 3);
        assert!(error.message.starts_with("collateral_denom:"), "{error}");
    }
    w.set_params(&small_params(), &["collateral_denom"]).unwrap();
    let genesis = pb::GenesisState { params: Some(other.to_pb()), ..Default::default() };
    let mut w = World::from_genesis(100, 0, 1, &genesis);
    w.rich(addr(1));
    let msg =
        |chain: &TestChain| pb::MsgRegisterParticipant { models: Vec::new(), ..register_msg(chain, addr(1)) };
    let uhold = msg(&w.chain);
    let (_, code, text) = w.refused(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, uhold));
    assert!(code == 3 && text.contains("uother"), "{text}");
    w.chain.ctx(|ctx| BANK.set(ctx, &addr(1), "uother", 7));
    let collateral = Some(PbCoin { denom: "uother".into(), amount: "7".into() });
    let uother = pb::MsgRegisterParticipant { collateral, ..msg(&w.chain) };
    w.send(|ctx, k, _| msg_server::register_participant(ctx, k, &BANK, uother)).unwrap();
    w.leave(addr(1)).unwrap();
    w.go(101);
    assert_eq!(w.claim(addr(1)).unwrap(), PbCoin { denom: "uother".into(), amount: "7".into() });
}

#[test]
fn the_price_of_weight_changes_weights() {
    let weight = |collateral_per_weight| {
        let mut w = World::new(100, 0);
        w.join(addr(1), &["a"], 100);
        w.set_params(&Params { collateral_per_weight, ..small_params() }, &["collateral_per_weight"])
            .unwrap();
        w.go(101);
        w.weight("a", addr(1))
    };
    assert_eq!((weight(10), weight(33), weight(101)), (10, 3, 0));
}

#[test]
fn the_limit_of_models_refuses_the_next_one() {
    let mut w = World::new(100, 0);
    let gov = w.chain.bech32(&Address::module("gov"));
    let msg = pb::MsgRegisterModel { authority: gov, model: Some(pb::Model { id: "d".into() }) };
    for max_models in [3, 1] {
        w.set_params(&Params { max_models, ..small_params() }, &["max_models"]).unwrap();
        let msg = msg.clone();
        assert_eq!(w.refused(|ctx, k, _| msg_server::register_model(ctx, k, msg)).1, 14);
    }
    w.set_params(&Params { max_models: 4, ..small_params() }, &["max_models"]).unwrap();
    w.send(|ctx, k, _| msg_server::register_model(ctx, k, msg)).unwrap();
}

#[test]
fn each_parameter_of_maintenance_moves_its_border() {
    let mut w = World::new(100, 0);
    w.join(addr(1), &["a"], 100);
    assert_eq!(w.announce(addr(1), 2, 12).unwrap_err().code, 10);
    w.set_params(&Params { min_announce_blocks: 1, ..small_params() }, &["min_announce_blocks"]).unwrap();
    w.announce(addr(1), 2, 12).unwrap();
    assert_eq!(w.announce(addr(1), 20, 71).unwrap_err().code, 10);
    w.set_params(&Params { max_maintenance_blocks: 51, ..small_params() }, &["max_maintenance_blocks"])
        .unwrap();
    w.announce(addr(1), 20, 71).unwrap();
    let two = Params { max_maintenance_windows: 2, ..small_params() };
    w.set_params(&two, &["max_maintenance_windows"]).unwrap();
    assert_eq!(w.announce(addr(1), 80, 81).unwrap_err().code, 11);
    w.set_params(&Params { max_maintenance_windows: 3, ..two }, &["max_maintenance_windows"]).unwrap();
    w.announce(addr(1), 80, 81).unwrap();
}

#[test]
fn the_defaults_are_valid() {
    Params::default().validate().unwrap();
    let w = World::new(10, 0);
    let module = ParticipantsModule { keeper: w.keeper() };
    module.validate_genesis(&module.default_genesis(), &w.chain.block.hrp).unwrap();
}
