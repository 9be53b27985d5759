//! `ValidationParams`: the breaker's and the inference life cycle's parameters (breaker.md 5).
//!
//! They live here because two modules read them: x/inference stores them, x/breaker judges by them.

use borsh::{BorshDeserialize, BorshSerialize};
use thiserror::Error;

use crate::{Decimal12, ONE};

/// A field that fails validation, with the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {rule}")]
pub struct FieldError {
    /// Field name as in the protobuf message.
    pub field: &'static str,
    /// What is allowed.
    pub rule: String,
}

impl FieldError {
    /// A refusal of `field`.
    pub fn new(field: &'static str, rule: impl Into<String>) -> Self {
        Self { field, rule: rule.into() }
    }
}

/// Parameters of executor health and inference expiry. Block counts are blocks, shares as named.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ValidationParams {
    /// An inference not finished this many blocks after its start is a miss.
    pub expiration_blocks: i64,
    /// The circuit breaker's switch.
    pub health_cb_enabled: bool,
    /// Judge and emit, filter nothing.
    pub health_cb_shadow: bool,
    /// Rate rule: trips above this share of misses, per cent, strictly.
    pub health_cb_miss_threshold_pct: u32,
    /// Rate rule: outcomes needed before it speaks.
    pub health_cb_min_samples: u64,
    /// First cooldown.
    pub health_cb_initial_cooldown_blocks: i64,
    /// Longest cooldown.
    pub health_cb_max_cooldown_blocks: i64,
    /// Share of draws that go to the probe lane, basis points; 0 gives each probe literal weight 1.
    pub health_cb_probe_share_bp: u32,
    /// Sliding evidence window; 0 = everything since the last change of state.
    pub health_cb_window_blocks: i64,
    /// Streak rule: misses in a row; 0 = off.
    pub health_cb_consecutive_misses: u32,
    /// The backoff level survives a restoration for this long; 0 = resets at once.
    pub health_cb_probation_blocks: i64,
    /// Exclusions stop at this share of a model's eligible weight; 100 = no cap.
    pub health_cb_max_excluded_weight_pct: u32,
    /// No exclusions while more than this share met a rule within one window; 0 = off.
    pub health_cb_freeze_pct: u32,
    /// Cooldowns are shortened by up to this share; 0 = off.
    pub health_cb_jitter_pct: u32,
    /// The slow breaker's switch.
    pub downtime_sprt_enabled: bool,
    /// p0: miss rate of a good participant.
    pub downtime_good_percentage: Decimal12,
    /// p1: miss rate of a bad one.
    pub downtime_bad_percentage: Decimal12,
    /// H: log-likelihood ratio at which the slow breaker decides.
    pub downtime_h_threshold: Decimal12,
}

impl Default for ValidationParams {
    /// The behaviour of seed 002, but for the probe share (breaker.md 5).
    fn default() -> Self {
        Self {
            expiration_blocks: 20,
            health_cb_enabled: true,
            health_cb_shadow: false,
            health_cb_miss_threshold_pct: 25,
            health_cb_min_samples: 4,
            health_cb_initial_cooldown_blocks: 50,
            health_cb_max_cooldown_blocks: 500,
            health_cb_probe_share_bp: 500,
            health_cb_window_blocks: 0,
            health_cb_consecutive_misses: 0,
            health_cb_probation_blocks: 0,
            health_cb_max_excluded_weight_pct: 100,
            health_cb_freeze_pct: 0,
            health_cb_jitter_pct: 0,
            downtime_sprt_enabled: true,
            downtime_good_percentage: Decimal12(ONE / 10),
            downtime_bad_percentage: Decimal12(ONE / 5),
            downtime_h_threshold: Decimal12(4 * ONE),
        }
    }
}

impl ValidationParams {
    /// The preset with the additions on and the slow breaker off (breaker.md 5).
    pub fn recommended() -> Self {
        Self {
            health_cb_window_blocks: 200,
            health_cb_consecutive_misses: 5,
            health_cb_max_excluded_weight_pct: 50,
            health_cb_probation_blocks: 200,
            health_cb_probe_share_bp: 500,
            health_cb_jitter_pct: 10,
            downtime_sprt_enabled: false,
            ..Self::default()
        }
    }

    /// Every rule that needs no other state. Genesis, messages and migrations all come through here.
    pub fn validate(&self) -> Result<(), FieldError> {
        // Destructured so that a new field forces a decision here.
        let Self {
            expiration_blocks,
            health_cb_enabled: _,
            health_cb_shadow: _,
            health_cb_miss_threshold_pct,
            health_cb_min_samples,
            health_cb_initial_cooldown_blocks: initial,
            health_cb_max_cooldown_blocks: max,
            health_cb_probe_share_bp,
            health_cb_window_blocks: window,
            health_cb_consecutive_misses: _,
            health_cb_probation_blocks,
            health_cb_max_excluded_weight_pct,
            health_cb_freeze_pct,
            health_cb_jitter_pct,
            downtime_sprt_enabled: _,
            downtime_good_percentage: Decimal12(p0),
            downtime_bad_percentage: Decimal12(p1),
            downtime_h_threshold: Decimal12(h),
        } = self;
        let check = |ok: bool, field, rule: &str| if ok { Ok(()) } else { Err(FieldError::new(field, rule)) };
        check((1..=1_000_000).contains(expiration_blocks), "expiration_blocks", "must be 1 to 1000000")?;
        check(*health_cb_miss_threshold_pct <= 100, "health_cb_miss_threshold_pct", "must be 0 to 100")?;
        check(*health_cb_min_samples >= 1, "health_cb_min_samples", "must be at least 1")?;
        check(*initial >= 1, "health_cb_initial_cooldown_blocks", "must be at least 1")?;
        check(
            initial <= max,
            "health_cb_max_cooldown_blocks",
            "must be at least health_cb_initial_cooldown_blocks",
        )?;
        check(*max <= 1 << 40, "health_cb_max_cooldown_blocks", "must be at most 2^40")?;
        check(*health_cb_probe_share_bp <= 10_000, "health_cb_probe_share_bp", "must be 0 to 10000")?;
        check(
            *window == 0 || ((10..=1_000_000).contains(window) && window.checked_rem(10) == Some(0)),
            "health_cb_window_blocks",
            "must be 0 or a multiple of 10 from 10 to 1000000",
        )?;
        check(
            (0..=1 << 40).contains(health_cb_probation_blocks),
            "health_cb_probation_blocks",
            "must be 0 to 2^40",
        )?;
        check(
            (1..=100).contains(health_cb_max_excluded_weight_pct),
            "health_cb_max_excluded_weight_pct",
            "must be 1 to 100; 100 turns the cap off",
        )?;
        check(*health_cb_freeze_pct <= 100, "health_cb_freeze_pct", "must be 0 to 100; 0 turns it off")?;
        check(
            *health_cb_freeze_pct == 0 || *window > 0,
            "health_cb_freeze_pct",
            "needs health_cb_window_blocks above 0",
        )?;
        check(*health_cb_jitter_pct <= 50, "health_cb_jitter_pct", "must be 0 to 50")?;
        check(*p0 > 0, "downtime_good_percentage", "must be above 0")?;
        check(p0 < p1, "downtime_bad_percentage", "must be above downtime_good_percentage")?;
        check(*p1 < ONE, "downtime_bad_percentage", "must be below 1")?;
        check(*h > 0, "downtime_h_threshold", "must be above 0")?;
        check(*h <= ONE.saturating_mul(1_000_000_000_000), "downtime_h_threshold", "must be at most 10^12")
    }
}

/// Which fields an update names: `*` alone for all, else one or more of `known`, none twice.
pub fn apply_mask(mask: &[String], known: &[&'static str]) -> Result<Vec<&'static str>, FieldError> {
    let bad = |rule: String| Err(FieldError::new("update_mask", rule));
    match mask {
        [] => return bad("must name at least one field, or * for all".into()),
        [all] if all == "*" => return Ok(known.to_vec()),
        _ => {}
    }
    let mut fields = Vec::new();
    for path in mask {
        match known.iter().find(|k| **k == path.as_str()) {
            None => return bad(format!("has no field {path:?}; fields are {}", known.join(", "))),
            Some(field) if fields.contains(field) => return bad(format!("names {field} twice")),
            Some(field) => fields.push(*field),
        }
    }
    Ok(fields)
}
