//! `ValidationParams` as far as the breaker reads them (breaker.md 5).

/// Parameters of one block. Heights and lengths in blocks, `_pct` in per cent, `_bp` in basis points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Blocks a started inference may take; `> 0`.
    pub expiration_blocks: i64,
    /// Rate rule: trips above this share of misses; 0..=100.
    pub health_cb_miss_threshold_pct: u32,
    /// Rate rule: fewest outcomes judged; `>= 1`.
    pub health_cb_min_samples: u64,
    /// Cooldown at level 0; `1..=max`.
    pub health_cb_initial_cooldown_blocks: i64,
    /// Longest cooldown; `initial..=2^40`.
    pub health_cb_max_cooldown_blocks: i64,
    /// Chance of the probe lane; 0..=10000, 0 = each ready probe has weight 1 beside the healthy.
    pub health_cb_probe_share_bp: u32,
    /// The slow breaker's switch.
    pub downtime_sprt_enabled: bool,
    /// p0 in units of 10^-12.
    pub downtime_good_percentage: u64,
    /// p1 in units of 10^-12.
    pub downtime_bad_percentage: u64,
    /// H in units of 10^-12.
    pub downtime_h_threshold: i128,
    /// The fast breaker's switch.
    pub health_cb_enabled: bool,
    /// Compute and emit, filter nothing.
    pub health_cb_shadow: bool,
    /// Sliding window; 0 = since the last change of state, else a multiple of 10.
    pub health_cb_window_blocks: u32,
    /// Streak rule; 0 = off.
    pub health_cb_consecutive_misses: u32,
    /// Trips sooner than this after a restoration raise the level; 0 = never.
    pub health_cb_probation_blocks: i64,
    /// Cap of the excluded share; 1..=100, 100 = none.
    pub health_cb_max_excluded_weight_pct: u32,
    /// Mass failure: refuse all above this tripped share; 0..=100, 0 = off.
    pub health_cb_freeze_pct: u32,
    /// Most a cooldown is shortened by; 0..=50.
    pub health_cb_jitter_pct: u32,
}

impl Params {
    /// The seed's behaviour, apart from the probe share.
    pub fn defaults() -> Self {
        Params {
            expiration_blocks: 20,
            health_cb_miss_threshold_pct: 25,
            health_cb_min_samples: 4,
            health_cb_initial_cooldown_blocks: 50,
            health_cb_max_cooldown_blocks: 500,
            health_cb_probe_share_bp: 500,
            downtime_sprt_enabled: true,
            downtime_good_percentage: 100_000_000_000,
            downtime_bad_percentage: 200_000_000_000,
            downtime_h_threshold: 4_000_000_000_000,
            health_cb_enabled: true,
            health_cb_shadow: false,
            health_cb_window_blocks: 0,
            health_cb_consecutive_misses: 0,
            health_cb_probation_blocks: 0,
            health_cb_max_excluded_weight_pct: 100,
            health_cb_freeze_pct: 0,
            health_cb_jitter_pct: 0,
        }
    }

    /// The additions turned on, the slow breaker off.
    pub fn recommended() -> Self {
        Params {
            downtime_sprt_enabled: false,
            health_cb_window_blocks: 200,
            health_cb_consecutive_misses: 5,
            health_cb_max_excluded_weight_pct: 50,
            health_cb_probation_blocks: 200,
            health_cb_probe_share_bp: 500,
            health_cb_jitter_pct: 10,
            ..Params::defaults()
        }
    }

    /// Names the first field that breaks its rule. The bound by the epoch length is the caller's.
    pub fn check(&self) -> Result<(), &'static str> {
        let ok = [
            ("expiration_blocks", self.expiration_blocks > 0),
            ("health_cb_miss_threshold_pct", self.health_cb_miss_threshold_pct <= 100),
            ("health_cb_min_samples", self.health_cb_min_samples >= 1),
            ("health_cb_initial_cooldown_blocks", self.health_cb_initial_cooldown_blocks >= 1),
            (
                "health_cb_max_cooldown_blocks",
                self.health_cb_max_cooldown_blocks >= self.health_cb_initial_cooldown_blocks
                    && self.health_cb_max_cooldown_blocks <= 1 << 40,
            ),
            ("health_cb_probe_share_bp", self.health_cb_probe_share_bp <= 10_000),
            (
                "downtime_bad_percentage",
                self.downtime_good_percentage > 0
                    && self.downtime_good_percentage < self.downtime_bad_percentage
                    && self.downtime_bad_percentage < crate::sprt::ONE,
            ),
            ("downtime_h_threshold", self.downtime_h_threshold > 0),
            (
                "health_cb_window_blocks",
                self.health_cb_window_blocks.is_multiple_of(10) && self.health_cb_window_blocks <= 1_000_000,
            ),
            ("health_cb_probation_blocks", self.health_cb_probation_blocks >= 0),
            (
                "health_cb_max_excluded_weight_pct",
                (1..=100).contains(&self.health_cb_max_excluded_weight_pct),
            ),
            (
                "health_cb_freeze_pct",
                self.health_cb_freeze_pct <= 100
                    && (self.health_cb_freeze_pct == 0 || self.health_cb_window_blocks > 0),
            ),
            ("health_cb_jitter_pct", self.health_cb_jitter_pct <= 50),
        ];
        match ok.iter().find(|(_, good)| !good) {
            Some((field, _)) => Err(field),
            None => Ok(()),
        }
    }
}
