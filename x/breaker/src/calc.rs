//! Pure arithmetic of the breaker (breaker-details 2.1, 2.2). No storage.

use std::cmp::Ordering;

use holdfast_types::{Address, Height, ValidationParams};
use sha2::{Digest, Sha256};

use crate::types::{Bucket, Tally, Window};

/// Buckets in a window.
pub const BUCKETS: u64 = 10;

/// Highest backoff level; doubling has long met the cap by then.
pub const LEVEL_MAX: u32 = 63;

/// Blocks per bucket of a window of `window_blocks`, 0 for an endless one.
pub fn width(window_blocks: i64) -> u32 {
    window_blocks.checked_div(10).and_then(|w| u32::try_from(w).ok()).unwrap_or(0)
}

/// Bucket of block `height`; width 0 has bucket 0 only.
pub fn bucket_index(height: Height, width: u32) -> u64 {
    u64::try_from(height).unwrap_or(0).checked_div(u64::from(width)).unwrap_or(0)
}

/// Whether a bucket still counts at `height`.
pub fn is_live(index: u64, height: Height, width: u32) -> bool {
    width == 0 || index.saturating_add(BUCKETS) > bucket_index(height, width)
}

/// Sums over the live buckets: (ok, missed).
pub fn totals(window: &Window, height: Height) -> (u64, u64) {
    let live = window.buckets.iter().filter(|b| is_live(b.index, height, window.width));
    live.fold((0_u64, 0_u64), |(ok, missed), b| (ok.saturating_add(b.ok), missed.saturating_add(b.missed)))
}

fn add(buckets: &mut Vec<Bucket>, index: u64, ok: u64, missed: u64) {
    match buckets.binary_search_by_key(&index, |b| b.index) {
        Ok(at) => {
            if let Some(bucket) = buckets.get_mut(at) {
                bucket.ok = bucket.ok.saturating_add(ok);
                bucket.missed = bucket.missed.saturating_add(missed);
            }
        }
        Err(at) => buckets.insert(at, Bucket { index, ok, missed }),
    }
}

/// The window under another width: each bucket moves by the last block it can hold (breaker-details 2.1).
pub fn remap(window: &Window, width_new: u32) -> Window {
    let mut out = Window { width: width_new, touched_at: window.touched_at, buckets: Vec::new() };
    let width_old = i64::from(window.width);
    for bucket in &window.buckets {
        let first = i64::try_from(bucket.index).unwrap_or(i64::MAX).saturating_mul(width_old);
        let last = first.saturating_add(width_old).saturating_sub(1);
        let last = if width_old == 0 { window.touched_at } else { last.min(window.touched_at) };
        add(&mut out.buckets, bucket_index(last, width_new), bucket.ok, bucket.missed);
    }
    out
}

/// The window after a block's outcomes at `height`, under the width of this block's parameters.
pub fn record(window: &Window, height: Height, width: u32, tally: &Tally) -> Window {
    let mut out = if window.width == width { window.clone() } else { remap(window, width) };
    add(&mut out.buckets, bucket_index(height, width), tally.ok, tally.missed);
    out.buckets.retain(|b| is_live(b.index, height, width) && (b.ok > 0 || b.missed > 0));
    out.touched_at = height;
    out
}

/// The streak after a block's outcomes: order inside a block does not matter, so any success ends it.
pub fn streak(before: u32, tally: &Tally) -> u32 {
    if tally.ok > 0 { 0 } else { before.saturating_add(u32::try_from(tally.missed).unwrap_or(u32::MAX)) }
}

/// Which rule made an exclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Share of misses.
    Rate,
    /// Misses in a row.
    Streak,
    /// A failed probe.
    Probe,
    /// Governance.
    Override,
}

impl Rule {
    /// Name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Streak => "streak",
            Self::Probe => "probe",
            Self::Override => "override",
        }
    }
}

/// The rule that `ok`, `missed` and `streak` meet, rate first (breaker-details 2.1).
pub fn met_rule(params: &ValidationParams, ok: u64, missed: u64, streak: u32) -> Option<Rule> {
    let (ok, missed) = (u128::from(ok), u128::from(missed));
    let total = ok.saturating_add(missed);
    // Both products stay below 2^73.
    let rate =
        missed.saturating_mul(100) > total.saturating_mul(u128::from(params.health_cb_miss_threshold_pct));
    if total >= u128::from(params.health_cb_min_samples) && rate {
        return Some(Rule::Rate);
    }
    let limit = params.health_cb_consecutive_misses;
    (limit > 0 && streak >= limit).then_some(Rule::Streak)
}

/// Worst first: share of misses, then number of misses.
pub fn worse(a: (u64, u64), b: (u64, u64)) -> Ordering {
    let wide =
        |(ok, missed): (u64, u64)| (u128::from(missed), u128::from(ok).saturating_add(u128::from(missed)));
    let ((a_missed, a_total), (b_missed, b_total)) = (wide(a), wide(b));
    // missed ≤ 2^64 and total ≤ 2^65 never overflow in practice: counts are bounded by messages.
    let (left, right) = (a_missed.saturating_mul(b_total), b_missed.saturating_mul(a_total));
    right.cmp(&left).then(b_missed.cmp(&a_missed))
}

/// Backoff level of an exclusion from Healthy (breaker-details 2.2).
pub fn level_at_trip(params: &ValidationParams, height: Height, restored_at: Height, level: u32) -> u32 {
    let probation = params.health_cb_probation_blocks;
    if probation == 0 || restored_at == 0 || height.saturating_sub(restored_at) >= probation {
        0
    } else {
        level_up(level)
    }
}

/// One level more, at most [`LEVEL_MAX`].
pub fn level_up(level: u32) -> u32 {
    level.saturating_add(1).min(LEVEL_MAX)
}

/// Cooldown in blocks: `initial·2^level`, capped, then shortened by the jitter of this exclusion.
pub fn cooldown(
    params: &ValidationParams,
    level: u32,
    model: &str,
    participant: &Address,
    excluded_at: Height,
) -> i64 {
    let initial = u128::try_from(params.health_cb_initial_cooldown_blocks).unwrap_or(1);
    let max = u128::try_from(params.health_cb_max_cooldown_blocks).unwrap_or(1);
    let factor = 1_u128.checked_shl(level.min(LEVEL_MAX)).unwrap_or(u128::MAX);
    let base = initial.saturating_mul(factor).min(max);
    let span = base.saturating_mul(u128::from(params.health_cb_jitter_pct)).checked_div(100).unwrap_or(0);
    let shorter =
        u128::from(jitter(model, participant, excluded_at)).checked_rem(span.saturating_add(1)).unwrap_or(0);
    i64::try_from(base.saturating_sub(shorter)).unwrap_or(i64::MAX)
}

/// The draw behind the jitter: same for everybody, different for each exclusion.
pub fn jitter(model: &str, participant: &Address, excluded_at: Height) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"holdfast/jitter/v1");
    hash.update(u16::try_from(model.len()).unwrap_or(u16::MAX).to_be_bytes());
    hash.update(model.as_bytes());
    hash.update([u8::try_from(participant.0.len()).unwrap_or(u8::MAX)]);
    hash.update(participant.0);
    hash.update(u64::try_from(excluded_at).unwrap_or(0).to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().map_or(0, |head| u64::from_be_bytes(*head))
}

/// Whether `part` is more than `pct` per cent of `whole`.
pub fn exceeds_pct(part: u128, whole: u128, pct: u32) -> bool {
    part.saturating_mul(100) > whole.saturating_mul(u128::from(pct))
}
