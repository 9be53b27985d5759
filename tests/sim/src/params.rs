//! Random parameters: each value that is given here is one that its module accepts by itself. A few are at the very ends
//! of what is allowed.

use holdfast_types::{Coin, Decimal12, ONE, ValidationParams};

use crate::rng::Rng;

/// Parameters of both breakers; no cooldown is longer than `cooldown_max`.
pub(crate) fn validation(rng: &mut Rng, cooldown_max: i64) -> ValidationParams {
    let cooldown_max = cooldown_max.max(1);
    let initial = rng.range(1, cooldown_max.min(12));
    let window = if rng.percent(40) { 0 } else { 10 * rng.range(1, 12) };
    let good = rng.range(1, 400);
    let bad = rng.range(good + 1, 999);
    let mut params = ValidationParams {
        expiration_blocks: rng.range(1, 12),
        health_cb_enabled: rng.percent(90),
        health_cb_shadow: rng.percent(12),
        health_cb_miss_threshold_pct: rng.range(0, 100) as u32,
        health_cb_min_samples: rng.unsigned(1, 6),
        health_cb_initial_cooldown_blocks: initial,
        health_cb_max_cooldown_blocks: rng.range(initial, cooldown_max),
        health_cb_probe_share_bp: *rng.pick(&[0, 1, 500, 2_000, 10_000]),
        health_cb_window_blocks: window,
        health_cb_consecutive_misses: rng.range(0, 4) as u32,
        health_cb_probation_blocks: rng.range(0, 60),
        health_cb_max_excluded_weight_pct: *rng.pick(&[1, 30, 50, 70, 100]),
        health_cb_freeze_pct: if window == 0 { 0 } else { *rng.pick(&[0, 0, 1, 40, 60, 100]) },
        health_cb_jitter_pct: *rng.pick(&[0, 0, 10, 50]),
        downtime_sprt_enabled: rng.percent(60),
        downtime_good_percentage: Decimal12(i128::from(good) * ONE / 1_000),
        downtime_bad_percentage: Decimal12(i128::from(bad) * ONE / 1_000),
        downtime_h_threshold: Decimal12(*rng.pick(&[1, 3, 10, 20, 50]) * ONE / 10),
    };
    if rng.percent(12) {
        match rng.below(8) {
            0 => params.expiration_blocks = 1_000_000,
            1 => params.health_cb_min_samples = u64::MAX,
            2 => params.health_cb_consecutive_misses = u32::MAX,
            3 => params.health_cb_probation_blocks = 1 << 40,
            4 => params.downtime_h_threshold = Decimal12(ONE * 1_000_000_000_000),
            5 => params.downtime_h_threshold = Decimal12(1),
            6 => {
                params.downtime_good_percentage = Decimal12(1);
                params.downtime_bad_percentage = Decimal12(ONE - 1);
            }
            _ => {
                params.downtime_good_percentage = Decimal12(ONE / 2);
                params.downtime_bad_percentage = Decimal12(ONE / 2 + 1);
            }
        }
    }
    debug_assert!(params.validate().is_ok(), "{params:?}");
    params
}

/// Price of a token in `denom`.
pub(crate) fn token_price(rng: &mut Rng, denom: &str) -> Coin {
    let amount = match rng.below(30) {
        0 => 0,
        1 => u128::MAX / 1_000_000,
        _ => rng.unsigned(1, 4).into(),
    };
    Coin { denom: denom.to_owned(), amount }
}

/// Epoch and PoC length.
pub(crate) fn epochs(rng: &mut Rng) -> (i64, i64) {
    let length = match rng.below(12) {
        0 => 1,
        1 => 2,
        2 => 1 << 40,
        _ => rng.range(5, 40),
    };
    let poc = match rng.below(4) {
        0 => 0,
        1 => length - 1,
        _ => rng.range(0, (length - 1).min(8)),
    };
    (length, poc)
}

/// Parameters of x/participants with collateral in `denom`.
pub(crate) fn participants(rng: &mut Rng, denom: &str) -> holdfast_participants::Params {
    let params = holdfast_participants::Params {
        collateral_denom: denom.to_owned(),
        collateral_per_weight: match rng.below(20) {
            0 => u128::MAX,
            1 => 1_000,
            _ => rng.unsigned(1, 3).into(),
        },
        max_models: rng.range(1, 6) as u32,
        min_announce_blocks: rng.range(1, 4),
        max_maintenance_blocks: *rng.pick(&[1, 3, 6, 12, 1_000_000]),
        max_maintenance_windows: rng.range(1, 4) as u32,
        max_validators: *rng.pick(&[1, 2, 4, 100, 500]),
        max_validator_change_permille: *rng.pick(&[10, 50, 200, 333]),
    };
    debug_assert!(params.validate().is_ok(), "{params:?}");
    params
}

/// Parameters of x/escrow: lives and windows short enough to end within a run.
pub(crate) fn escrow(rng: &mut Rng, denom: &str) -> holdfast_escrow::Params {
    let params = holdfast_escrow::Params {
        denom: denom.to_owned(),
        create_fee: rng.unsigned(0, 300).into(),
        fee_per_nonce: rng.unsigned(0, 20).into(),
        token_price: if rng.percent(5) { u128::MAX } else { rng.unsigned(0, 4).into() },
        cancel_charge_bp: *rng.pick(&[0, 5_000, 10_000]),
        seal_grace_rounds: rng.range(1, 4) as u32,
        max_nonce: *rng.pick(&[3, 8, 40, 20_000]),
        max_live: *rng.pick(&[1, 4, 1_024]),
        max_slots_per_owner: rng.range(0, 2) as u32,
        max_slots: *rng.pick(&[2, 5, 128]),
        max_lifetime_blocks: *rng.pick(&[1, 3, 6, 12, 1 << 40]),
        dispute_window_blocks: *rng.pick(&[1, 3, 8]),
        ..holdfast_escrow::Params::default()
    };
    debug_assert!(params.validate().is_ok(), "{params:?}");
    params
}

/// Parameters of x/auth.
pub(crate) fn auth(rng: &mut Rng) -> holdfast_auth::Params {
    let params = holdfast_auth::Params {
        max_memo_characters: *rng.pick(&[0, 16, 256, 65_536]),
        tx_sig_limit: rng.unsigned(1, 7),
        tx_size_cost_per_byte: *rng.pick(&[1, 10, 10, 50]),
        sig_verify_cost_secp256k1: *rng.pick(&[1, 1_000, 5_000]),
    };
    debug_assert!(params.validate().is_ok(), "{params:?}");
    params
}
