//! Messages that only a proposal can have carried out.

use holdfast_app::tx::pack;
use holdfast_proto::cosmos::auth::v1beta1 as auth;
use holdfast_proto::cosmos::gov::v1 as gov;
use holdfast_proto::cosmos::upgrade::v1beta1 as upgrade;
use holdfast_proto::holdfast::{breaker, epochs, inference, participants};
use holdfast_proto::{Any, FieldMask};

use super::scene::{Scene, field_names};
use crate::cast::DENOM;
use crate::params;

pub(super) fn epochs_params(scene: &mut Scene<'_>) -> Any {
    let (mut epoch_length, poc_length) = params::epochs(scene.rng);
    if scene.wrong() {
        epoch_length = *scene.rng.pick(&[0, -1, i64::MAX]);
    }
    pack(&epochs::v1::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(epochs::v1::Params { epoch_length, poc_length }),
        update_mask: scene.mask(&["epoch_length", "poc_length"]),
    })
}

pub(super) fn register_model(scene: &mut Scene<'_>) -> Any {
    let id = if scene.wrong() { "no model id!".into() } else { scene.rng.pick(&scene.cast.models).clone() };
    let model = Some(participants::v1::Model { id });
    pack(&participants::v1::MsgRegisterModel { authority: scene.authority(), model })
}

pub(super) fn participants_params(scene: &mut Scene<'_>) -> Any {
    let mut new = params::participants(scene.rng, &scene.cast.collateral_denom);
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => new.collateral_denom = "uother".into(),
            1 => new.collateral_per_weight = 0,
            2 => new.max_models = 1_000,
            _ => new.max_maintenance_blocks = i64::MAX,
        }
    }
    // The denomination is fixed at genesis.
    let fields = field_names::<participants::v1::Params>("").split_off(1);
    pack(&participants::v1::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(new.to_pb()),
        update_mask: scene.mask(&fields),
    })
}

pub(super) fn inference_params(scene: &mut Scene<'_>) -> Any {
    let cooldown_max = scene.rng.range(1, 40);
    let mut validation = params::validation(scene.rng, cooldown_max);
    if scene.wrong() {
        match scene.rng.below(4) {
            0 => validation.health_cb_window_blocks = 15,
            1 => validation.health_cb_max_cooldown_blocks = i64::MAX,
            2 => validation.expiration_blocks = 0,
            _ => validation.downtime_good_percentage = validation.downtime_bad_percentage,
        }
    }
    let denom = if scene.rng.percent(5) { scene.cast.collateral_denom.clone() } else { DENOM.to_owned() };
    let token_price = params::token_price(scene.rng, &denom);
    let mut fields = vec!["token_price".to_owned()];
    fields.extend(field_names::<inference::v1::ValidationParams>("validation."));
    let update_mask = if scene.rng.percent(40) {
        Some(FieldMask { paths: vec!["validation".into()] })
    } else {
        scene.mask(&fields)
    };
    let params = Some(holdfast_inference::Params { validation, token_price }.to_pb());
    pack(&inference::v1::MsgUpdateParams { authority: scene.authority(), params, update_mask })
}

pub(super) fn breaker_override(scene: &mut Scene<'_>) -> Any {
    let executor = scene.executor();
    let last = if scene.wrong() { 3 } else { 2 };
    let to = scene.rng.range(0, last) as i32;
    // It is carried out some blocks from now.
    let until_block = scene.height + scene.rng.range(3, 70);
    pack(&breaker::v1::MsgSetBreakerOverride {
        authority: scene.authority(),
        model: scene.model(),
        participant: scene.name(executor),
        to,
        until_block,
    })
}

pub(super) fn auth_params(scene: &mut Scene<'_>) -> Any {
    let mut new = params::auth(scene.rng);
    if scene.wrong() {
        new.tx_sig_limit = 0;
    }
    pack(&auth::MsgUpdateParams {
        authority: scene.authority(),
        params: Some((&new).into()),
        update_mask: scene.mask(holdfast_auth::PARAMS_FIELDS),
    })
}

pub(super) fn gov_params(scene: &mut Scene<'_>) -> Any {
    let mut params = scene.gov_params();
    let voting = scene.rng.range(8, 60);
    if let Some(period) = &mut params.voting_period {
        period.seconds = voting;
    }
    if let Some(period) = &mut params.expedited_voting_period {
        period.seconds = scene.rng.range(3, voting - 1);
    }
    if let Some(period) = &mut params.max_deposit_period {
        period.seconds = if scene.wrong() { -1 } else { scene.rng.range(5, 60) };
    }
    params.quorum = (*scene.rng.pick(&["0.01", "0.334", "0.5", "1"])).into();
    params.veto_threshold = (*scene.rng.pick(&["0.334", "0.2", "1"])).into();
    params.threshold = (*scene.rng.pick(&["0.5", "0.3", "0.6"])).into();
    params.min_deposit_ratio = (*scene.rng.pick(&["0", "0.01", "1"])).into();
    params.min_initial_deposit_ratio = (*scene.rng.pick(&["0", "0.1", "1"])).into();
    params.proposal_cancel_ratio = (*scene.rng.pick(&["0", "0.5", "1"])).into();
    if scene.wrong() {
        params.threshold = (*scene.rng.pick(&["1.5", "0", "", "-1", "0.9"])).into();
    }
    let fields = [
        "max_deposit_period",
        "quorum",
        "threshold",
        "veto_threshold",
        "min_deposit_ratio",
        "min_initial_deposit_ratio",
        "proposal_cancel_ratio",
        "burn_vote_quorum",
    ];
    pack(&gov::MsgUpdateParams {
        authority: scene.authority(),
        params: Some(params),
        update_mask: scene.mask(&fields),
    })
}

pub(super) fn software_upgrade(scene: &mut Scene<'_>) -> Any {
    scene.memory.upgrades += 1;
    let name = format!("sim-{}", scene.memory.upgrades);
    let height = if scene.wrong() { scene.height - 1 } else { scene.height + scene.rng.range(8, 26) };
    let plan = upgrade::Plan { name, height, info: "{}".into(), ..upgrade::Plan::default() };
    pack(&upgrade::MsgSoftwareUpgrade { authority: scene.authority(), plan: Some(plan) })
}

pub(super) fn cancel_upgrade(scene: &mut Scene<'_>) -> Any {
    pack(&upgrade::MsgCancelUpgrade { authority: scene.authority() })
}
