//! Parameters: x/inference stores those of both breakers (breaker.md 5).

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::holdfast::inference::v1 as pb;
use holdfast_store::{KvRead, StoreError};
use holdfast_types::{Coin, CoinError, Decimal12, ValidationParams, apply_mask};

use crate::errors::InferenceError;
use crate::state::PARAMS;

/// All parameters of the module.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Params {
    /// How executors are judged.
    pub validation: ValidationParams,
    /// Price of one token; an amount of 0 makes inference free.
    pub token_price: Coin,
}

impl Default for Params {
    /// Seed 002's behaviour at 1 `uhold` a token.
    fn default() -> Self {
        let token_price = Coin { denom: "uhold".to_owned(), amount: 1 };
        Self { validation: ValidationParams::default(), token_price }
    }
}

/// All of `validation`.
const VALIDATION: &str = "validation";
const TOKEN_PRICE: &str = "token_price";

/// Paths an update mask may name.
pub(crate) const PATHS: &[&str] = &[
    TOKEN_PRICE,
    VALIDATION,
    "validation.expiration_blocks",
    "validation.health_cb_enabled",
    "validation.health_cb_shadow",
    "validation.health_cb_miss_threshold_pct",
    "validation.health_cb_min_samples",
    "validation.health_cb_initial_cooldown_blocks",
    "validation.health_cb_max_cooldown_blocks",
    "validation.health_cb_probe_share_bp",
    "validation.health_cb_window_blocks",
    "validation.health_cb_consecutive_misses",
    "validation.health_cb_probation_blocks",
    "validation.health_cb_max_excluded_weight_pct",
    "validation.health_cb_freeze_pct",
    "validation.health_cb_jitter_pct",
    "validation.downtime_sprt_enabled",
    "validation.downtime_good_percentage",
    "validation.downtime_bad_percentage",
    "validation.downtime_h_threshold",
];

impl Params {
    /// The parameters committed in `store`: what B1 copies into the block context.
    pub fn load(store: &dyn KvRead) -> Result<Self, StoreError> {
        PARAMS.load(store)
    }

    /// Every rule that needs no other state.
    pub fn validate(&self) -> Result<(), InferenceError> {
        // Destructured so that a new field forces a decision here.
        let Self { validation, token_price } = self;
        Coin::new(&token_price.denom, token_price.amount).map_err(price_error)?;
        Ok(validation.validate()?)
    }

    /// The protobuf form.
    pub fn to_pb(&self) -> pb::Params {
        pb::Params {
            validation: Some(validation_to_pb(&self.validation)),
            token_price: Some((&self.token_price).into()),
        }
    }

    /// Reads and validates the protobuf form.
    pub fn from_pb(pb: &pb::Params) -> Result<Self, InferenceError> {
        let mut params = Self::default();
        params.merge_field(pb, TOKEN_PRICE)?;
        params.merge_field(pb, VALIDATION)?;
        params.validate()?;
        Ok(params)
    }

    /// These parameters with the fields named by `mask` taken from `new`, validated as a whole. Fields not
    /// named are not read.
    pub fn updated(&self, new: &pb::Params, mask: &[String]) -> Result<Self, InferenceError> {
        let fields = apply_mask(mask, PATHS)?;
        let all = mask.iter().any(|path| path == "*");
        if !all && fields.contains(&VALIDATION) && fields.iter().any(|f| f.starts_with("validation.")) {
            let rule = "names validation and one of its fields; name either";
            return Err(InferenceError::invalid("update_mask", rule));
        }
        let mut params = self.clone();
        for field in fields {
            params.merge_field(new, field)?;
        }
        params.validate()?;
        Ok(params)
    }

    fn merge_field(&mut self, new: &pb::Params, path: &'static str) -> Result<(), InferenceError> {
        if path == TOKEN_PRICE {
            let price = new
                .token_price
                .as_ref()
                .ok_or_else(|| InferenceError::invalid(TOKEN_PRICE, "must be given"))?;
            self.token_price = price.try_into().map_err(price_error)?;
            return Ok(());
        }
        let from =
            new.validation.as_ref().ok_or_else(|| InferenceError::invalid(VALIDATION, "must be given"))?;
        let Some(field) = path.strip_prefix("validation.") else {
            self.validation = validation_from_pb(from)?;
            return Ok(());
        };
        let to = &mut self.validation;
        match field {
            "expiration_blocks" => to.expiration_blocks = from.expiration_blocks,
            "health_cb_enabled" => to.health_cb_enabled = from.health_cb_enabled,
            "health_cb_shadow" => to.health_cb_shadow = from.health_cb_shadow,
            "health_cb_miss_threshold_pct" => {
                to.health_cb_miss_threshold_pct = from.health_cb_miss_threshold_pct
            }
            "health_cb_min_samples" => to.health_cb_min_samples = from.health_cb_min_samples,
            "health_cb_initial_cooldown_blocks" => {
                to.health_cb_initial_cooldown_blocks = from.health_cb_initial_cooldown_blocks;
            }
            "health_cb_max_cooldown_blocks" => {
                to.health_cb_max_cooldown_blocks = from.health_cb_max_cooldown_blocks;
            }
            "health_cb_probe_share_bp" => to.health_cb_probe_share_bp = from.health_cb_probe_share_bp,
            "health_cb_window_blocks" => to.health_cb_window_blocks = from.health_cb_window_blocks,
            "health_cb_consecutive_misses" => {
                to.health_cb_consecutive_misses = from.health_cb_consecutive_misses
            }
            "health_cb_probation_blocks" => to.health_cb_probation_blocks = from.health_cb_probation_blocks,
            "health_cb_max_excluded_weight_pct" => {
                to.health_cb_max_excluded_weight_pct = from.health_cb_max_excluded_weight_pct;
            }
            "health_cb_freeze_pct" => to.health_cb_freeze_pct = from.health_cb_freeze_pct,
            "health_cb_jitter_pct" => to.health_cb_jitter_pct = from.health_cb_jitter_pct,
            "downtime_sprt_enabled" => to.downtime_sprt_enabled = from.downtime_sprt_enabled,
            "downtime_good_percentage" => {
                to.downtime_good_percentage = decimal(P0, &from.downtime_good_percentage)?;
            }
            "downtime_bad_percentage" => {
                to.downtime_bad_percentage = decimal(P1, &from.downtime_bad_percentage)?
            }
            "downtime_h_threshold" => to.downtime_h_threshold = decimal(H, &from.downtime_h_threshold)?,
            _ => return Err(InferenceError::invalid("update_mask", format!("has no field {path}"))),
        }
        Ok(())
    }
}

const P0: &str = "downtime_good_percentage";
const P1: &str = "downtime_bad_percentage";
const H: &str = "downtime_h_threshold";

fn price_error(error: CoinError) -> InferenceError {
    InferenceError::invalid(TOKEN_PRICE, error.to_string())
}

fn decimal(field: &'static str, text: &str) -> Result<Decimal12, InferenceError> {
    Decimal12::parse(text).map_err(|e| InferenceError::invalid(field, e.to_string()))
}

fn validation_to_pb(params: &ValidationParams) -> pb::ValidationParams {
    pb::ValidationParams {
        expiration_blocks: params.expiration_blocks,
        health_cb_enabled: params.health_cb_enabled,
        health_cb_shadow: params.health_cb_shadow,
        health_cb_miss_threshold_pct: params.health_cb_miss_threshold_pct,
        health_cb_min_samples: params.health_cb_min_samples,
        health_cb_initial_cooldown_blocks: params.health_cb_initial_cooldown_blocks,
        health_cb_max_cooldown_blocks: params.health_cb_max_cooldown_blocks,
        health_cb_probe_share_bp: params.health_cb_probe_share_bp,
        health_cb_window_blocks: params.health_cb_window_blocks,
        health_cb_consecutive_misses: params.health_cb_consecutive_misses,
        health_cb_probation_blocks: params.health_cb_probation_blocks,
        health_cb_max_excluded_weight_pct: params.health_cb_max_excluded_weight_pct,
        health_cb_freeze_pct: params.health_cb_freeze_pct,
        health_cb_jitter_pct: params.health_cb_jitter_pct,
        downtime_sprt_enabled: params.downtime_sprt_enabled,
        downtime_good_percentage: params.downtime_good_percentage.to_string(),
        downtime_bad_percentage: params.downtime_bad_percentage.to_string(),
        downtime_h_threshold: params.downtime_h_threshold.to_string(),
    }
}

fn validation_from_pb(pb: &pb::ValidationParams) -> Result<ValidationParams, InferenceError> {
    Ok(ValidationParams {
        expiration_blocks: pb.expiration_blocks,
        health_cb_enabled: pb.health_cb_enabled,
        health_cb_shadow: pb.health_cb_shadow,
        health_cb_miss_threshold_pct: pb.health_cb_miss_threshold_pct,
        health_cb_min_samples: pb.health_cb_min_samples,
        health_cb_initial_cooldown_blocks: pb.health_cb_initial_cooldown_blocks,
        health_cb_max_cooldown_blocks: pb.health_cb_max_cooldown_blocks,
        health_cb_probe_share_bp: pb.health_cb_probe_share_bp,
        health_cb_window_blocks: pb.health_cb_window_blocks,
        health_cb_consecutive_misses: pb.health_cb_consecutive_misses,
        health_cb_probation_blocks: pb.health_cb_probation_blocks,
        health_cb_max_excluded_weight_pct: pb.health_cb_max_excluded_weight_pct,
        health_cb_freeze_pct: pb.health_cb_freeze_pct,
        health_cb_jitter_pct: pb.health_cb_jitter_pct,
        downtime_sprt_enabled: pb.downtime_sprt_enabled,
        downtime_good_percentage: decimal(P0, &pb.downtime_good_percentage)?,
        downtime_bad_percentage: decimal(P1, &pb.downtime_bad_percentage)?,
        downtime_h_threshold: decimal(H, &pb.downtime_h_threshold)?,
    })
}
