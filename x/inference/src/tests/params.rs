use holdfast_proto::FieldMask;

use super::*;

fn gov() -> String {
    Address::module("gov").to_bech32(&Hrp::default())
}

fn update(
    w: &mut World,
    paths: &[&str],
    change: impl FnOnce(&mut pb::ValidationParams, &mut pb::Params),
) -> Result<(), ModuleError> {
    let mut params = Params::load(&w.store).unwrap().to_pb();
    let mut validation = params.validation.take().unwrap();
    change(&mut validation, &mut params);
    params.validation = Some(validation);
    let update_mask = Some(FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() });
    let msg = pb::MsgUpdateParams { authority: gov(), params: Some(params), update_mask };
    w.run(|ctx, deps| msg_server::update_params(ctx, deps, msg)).map(|_| ())
}

#[test]
fn only_the_gov_module_account_changes_parameters() {
    let mut w = World::new();
    for authority in [text(51), module_account().to_bech32(&Hrp::default()), String::new()] {
        let msg = pb::MsgUpdateParams { authority, params: None, update_mask: None };
        refused(w.run(|c, d| msg_server::update_params(c, d, msg)).map(|_| ()), 2);
    }
}

#[test]
fn a_mask_changes_what_it_names_and_nothing_else() {
    let mut w = World::new();
    let before = Params::load(&w.store).unwrap();
    update(&mut w, &["validation.health_cb_min_samples"], |v, p| {
        *v = pb::ValidationParams { health_cb_min_samples: 9, ..Default::default() };
        p.token_price = None;
    })
    .unwrap();
    let mut expected = before.clone();
    expected.validation.health_cb_min_samples = 9;
    assert_eq!(Params::load(&w.store).unwrap(), expected);
    let price = holdfast_proto::cosmos::base::v1beta1::Coin { denom: "uatom".into(), amount: "7".into() };
    update(&mut w, &["token_price"], |v, p| {
        *v = Default::default();
        p.token_price = Some(price);
    })
    .unwrap();
    assert_eq!(Params::load(&w.store).unwrap().token_price, Coin { denom: "uatom".into(), amount: 7 });
    update(&mut w, &["*"], |v, _| v.expiration_blocks = 33).unwrap();
    update(&mut w, &["validation"], |v, _| v.health_cb_shadow = true).unwrap();
    let after = Params::load(&w.store).unwrap();
    assert_eq!((after.validation.expiration_blocks, after.validation.health_cb_shadow), (33, true));
}

#[test]
fn every_field_can_be_changed_alone() {
    // A preset that differs from the default in each field.
    let other = ValidationParams {
        expiration_blocks: 21,
        health_cb_enabled: false,
        health_cb_shadow: true,
        health_cb_miss_threshold_pct: 26,
        health_cb_min_samples: 5,
        health_cb_initial_cooldown_blocks: 51,
        health_cb_max_cooldown_blocks: 91,
        health_cb_probe_share_bp: 501,
        health_cb_window_blocks: 10,
        health_cb_consecutive_misses: 1,
        health_cb_probation_blocks: 1,
        health_cb_max_excluded_weight_pct: 99,
        health_cb_freeze_pct: 1,
        health_cb_jitter_pct: 1,
        downtime_sprt_enabled: false,
        downtime_good_percentage: Decimal12::parse("0.11").unwrap(),
        downtime_bad_percentage: Decimal12::parse("0.21").unwrap(),
        downtime_h_threshold: Decimal12::parse("5").unwrap(),
    };
    let target = Params { validation: other, token_price: Coin { denom: "uother".into(), amount: 2 } };
    let mut w = World::new();
    let mut seen = vec![Params::load(&w.store).unwrap()];
    for path in crate::params::PATHS.iter().filter(|p| **p != "validation") {
        let msg = pb::MsgUpdateParams {
            authority: gov(),
            params: Some(target.to_pb()),
            update_mask: Some(FieldMask { paths: vec![(*path).to_owned()] }),
        };
        w.run(|c, d| msg_server::update_params(c, d, msg)).unwrap();
        let now = Params::load(&w.store).unwrap();
        assert!(!seen.contains(&now), "{path} changed nothing");
        seen.push(now);
    }
    assert_eq!(seen.last(), Some(&target), "the paths cover every field");
}

#[test]
fn a_bad_mask_or_value_is_code_3_and_changes_nothing() {
    let mut w = World::new();
    let before = Params::load(&w.store).unwrap();
    for paths in [
        &[][..],
        &["nothing"],
        &["validation.nothing"],
        &["token_price", "token_price"],
        &["*", "token_price"],
        &["validation", "validation.expiration_blocks"],
    ] {
        let error = update(&mut w, paths, |_, _| ()).unwrap_err();
        assert_eq!((error.code, error.message.split(':').next()), (3, Some("update_mask")), "{error}");
    }
    type Bad = fn(&mut pb::ValidationParams, &mut pb::Params);
    let cases: &[(&str, Bad)] = &[
        ("expiration_blocks", |v, _| v.expiration_blocks = 0),
        ("health_cb_miss_threshold_pct", |v, _| v.health_cb_miss_threshold_pct = 101),
        ("health_cb_min_samples", |v, _| v.health_cb_min_samples = 0),
        ("health_cb_initial_cooldown_blocks", |v, _| v.health_cb_initial_cooldown_blocks = 0),
        ("health_cb_max_cooldown_blocks", |v, _| v.health_cb_max_cooldown_blocks = 49),
        ("health_cb_max_cooldown_blocks", |v, _| v.health_cb_max_cooldown_blocks = 101),
        ("health_cb_probe_share_bp", |v, _| v.health_cb_probe_share_bp = 10_001),
        ("health_cb_window_blocks", |v, _| v.health_cb_window_blocks = 15),
        ("health_cb_probation_blocks", |v, _| v.health_cb_probation_blocks = -1),
        ("health_cb_max_excluded_weight_pct", |v, _| v.health_cb_max_excluded_weight_pct = 0),
        ("health_cb_freeze_pct", |v, _| v.health_cb_freeze_pct = 5),
        ("health_cb_jitter_pct", |v, _| v.health_cb_jitter_pct = 51),
        ("downtime_good_percentage", |v, _| v.downtime_good_percentage = "0".into()),
        ("downtime_good_percentage", |v, _| v.downtime_good_percentage = "0.0000000000001".into()),
        ("downtime_bad_percentage", |v, _| v.downtime_bad_percentage = "0.1".into()),
        ("downtime_bad_percentage", |v, _| v.downtime_bad_percentage = "x".into()),
        ("downtime_h_threshold", |v, _| v.downtime_h_threshold = "-4".into()),
        ("token_price", |_, p| p.token_price = None),
        ("token_price", |_, p| p.token_price.as_mut().unwrap().amount = "-1".into()),
        ("token_price", |_, p| p.token_price.as_mut().unwrap().denom = "u".into()),
    ];
    for (field, spoil) in cases {
        let error = update(&mut w, &["*"], spoil).unwrap_err();
        assert_eq!((error.codespace, error.code), ("inference", 3), "{error}");
        assert!(error.message.starts_with(field), "{field}: {error}");
    }
    let msg = pb::MsgUpdateParams {
        authority: gov(),
        params: None,
        update_mask: Some(FieldMask { paths: vec!["validation".into()] }),
    };
    refused(w.run(|c, d| msg_server::update_params(c, d, msg)).map(|_| ()), 3);
    assert_eq!(Params::load(&w.store).unwrap(), before);
}

#[test]
fn the_longest_cooldown_fits_the_epoch_only_when_it_changes() {
    let mut w = World::new();
    update(&mut w, &["validation.health_cb_max_cooldown_blocks"], |v, _| {
        v.health_cb_max_cooldown_blocks = 100
    })
    .unwrap();
    // A shorter epoch comes: other fields can still be changed.
    w.near.schedule.iter_mut().for_each(|e| e.length = 60);
    update(&mut w, &["validation.expiration_blocks"], |v, _| v.expiration_blocks = 30).unwrap();
    update(&mut w, &["*"], |v, _| v.expiration_blocks = 31).unwrap();
    let error = update(&mut w, &["*"], |v, _| v.health_cb_max_cooldown_blocks = 61).unwrap_err();
    assert_eq!(error.code, 3);
    update(&mut w, &["*"], |v, _| v.health_cb_max_cooldown_blocks = 60).unwrap();
}
