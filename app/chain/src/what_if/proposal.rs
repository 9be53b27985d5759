//! The parameters to try, over those that were in force.

use holdfast_inference::Params;
use holdfast_proto::holdfast::breaker::v1::QueryWhatIfRequest;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_types::{Coin, QueryError, ValidationParams};

/// Fields whose effect a record cannot show: work expires, is drawn and is stopped by the slow breaker as recorded.
const NOT_REPLAYED: &[&str] = &[
    "expiration_blocks",
    "health_cb_probe_share_bp",
    "downtime_sprt_enabled",
    "downtime_good_percentage",
    "downtime_bad_percentage",
    "downtime_h_threshold",
];

/// Parameters to try; none = those in force.
pub(super) struct Proposal {
    new: Option<(inference::Params, Vec<String>)>,
}

impl Proposal {
    pub(super) fn of(request: &QueryWhatIfRequest) -> Result<Self, QueryError> {
        let mask = request.update_mask.as_ref().map(|mask| mask.paths.as_slice()).unwrap_or_default();
        let Some(params) = &request.params else {
            return match mask {
                [] => Ok(Self { new: None }),
                _ => Err(QueryError::invalid("update_mask: names fields of params; give params too")),
            };
        };
        let paths = match mask {
            [] => vec!["validation".to_owned()],
            [all] if all == "*" => vec!["validation".to_owned()],
            fields => fields.iter().map(|field| format!("validation.{field}")).collect(),
        };
        let new = inference::Params { validation: Some(params.clone()), token_price: None };
        Ok(Self { new: Some((new, paths)) })
    }

    /// The parameters of a block in which `in_force` were in force.
    pub(super) fn over(&self, in_force: &ValidationParams) -> Result<ValidationParams, String> {
        let Some((new, paths)) = &self.new else { return Ok(in_force.clone()) };
        // Only `validation` is changed; the price is not asked for.
        let token_price = Coin { denom: "unused".into(), amount: 0 };
        let old = Params { validation: in_force.clone(), token_price };
        Ok(old.updated(new, paths).map_err(|e| e.to_string())?.validation)
    }
}

/// What the replay judges by: the record keeps its own timing.
pub(super) fn replayed(tried: &ValidationParams, in_force: &ValidationParams) -> ValidationParams {
    ValidationParams { expiration_blocks: in_force.expiration_blocks, ..tried.clone() }
}

/// Names of the fields in which the two differ.
pub(super) fn differing(a: &ValidationParams, b: &ValidationParams) -> Vec<&'static str> {
    macro_rules! compare {
        ($($field:ident),* $(,)?) => {{
            // Destructured so that a new field forces a decision here.
            let ValidationParams { $($field: _),* } = a;
            let mut out = Vec::new();
            $(if a.$field != b.$field { out.push(stringify!($field)); })*
            out
        }};
    }
    compare!(
        expiration_blocks,
        health_cb_enabled,
        health_cb_shadow,
        health_cb_miss_threshold_pct,
        health_cb_min_samples,
        health_cb_initial_cooldown_blocks,
        health_cb_max_cooldown_blocks,
        health_cb_probe_share_bp,
        health_cb_window_blocks,
        health_cb_consecutive_misses,
        health_cb_probation_blocks,
        health_cb_max_excluded_weight_pct,
        health_cb_freeze_pct,
        health_cb_jitter_pct,
        downtime_sprt_enabled,
        downtime_good_percentage,
        downtime_bad_percentage,
        downtime_h_threshold,
    )
}

/// Whether a record can show what changing `field` does.
pub(super) fn is_replayed(field: &str) -> bool {
    !NOT_REPLAYED.contains(&field)
}
