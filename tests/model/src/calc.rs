//! Windows, rules and cooldowns (breaker-details 2.1, 2.2).

use crate::Address;
use crate::entry::{Entry, Window};
use crate::params::Params;
use sha2::{Digest, Sha256};

/// The bucket that holds block `height`.
pub fn bucket_of(height: i64, width: u32) -> u64 {
    if width == 0 { 0 } else { height as u64 / u64::from(width) }
}

/// Whether a bucket still counts at `height`.
pub fn live(index: u64, height: i64, width: u32) -> bool {
    width == 0 || index + 10 > bucket_of(height, width)
}

/// Sums (ok, missed) of the buckets that live at `height`.
pub fn live_counts(window: &Window, height: i64) -> (u64, u64) {
    let alive = window.buckets.iter().filter(|(index, _)| live(**index, height, window.width));
    alive.fold((0, 0), |sum, (_, (ok, missed))| (sum.0 + ok, sum.1 + missed))
}

/// The same outcomes in buckets of another width.
///
/// Reading: "from stored to current in one step": every stored bucket is carried over, also one that the old
/// width would no longer count; only the new width decides what lives.
pub fn remap(window: &Window, new_width: u32) -> Window {
    let mut buckets = std::collections::BTreeMap::new();
    for (index, (ok, missed)) in &window.buckets {
        let last = if window.width == 0 {
            window.touched_at
        } else {
            let width = i64::from(window.width);
            (*index as i64 * width + width - 1).min(window.touched_at)
        };
        let row = buckets.entry(bucket_of(last, new_width)).or_insert((0, 0));
        row.0 += ok;
        row.1 += missed;
    }
    Window { width: new_width, touched_at: window.touched_at, buckets }
}

/// Writes one block's tally into an entry: remap if the width changed, drop the dead, add, move the streak.
pub fn touch(entry: &mut Entry, window_blocks: u32, height: i64, ok: u64, missed: u64) {
    let width = window_blocks / 10;
    if entry.window.width != width {
        entry.window = remap(&entry.window, width);
    }
    entry.window.buckets.retain(|index, _| live(*index, height, width));
    let row = entry.window.buckets.entry(bucket_of(height, width)).or_insert((0, 0));
    row.0 += ok;
    row.1 += missed;
    entry.window.touched_at = height;
    entry.consecutive_misses =
        if ok > 0 { 0 } else { entry.consecutive_misses + u32::try_from(missed).unwrap() };
}

/// The rate rule.
pub fn rate_met(ok: u64, missed: u64, params: &Params) -> bool {
    let total = u128::from(ok) + u128::from(missed);
    total >= u128::from(params.health_cb_min_samples)
        && u128::from(missed) * 100 > total * u128::from(params.health_cb_miss_threshold_pct)
}

/// The streak rule.
pub fn streak_met(streak: u32, params: &Params) -> bool {
    params.health_cb_consecutive_misses > 0 && streak >= params.health_cb_consecutive_misses
}

/// Name of the first rule met, rate before streak.
pub fn rule_met(ok: u64, missed: u64, streak: u32, params: &Params) -> Option<&'static str> {
    if rate_met(ok, missed, params) {
        Some("rate")
    } else if streak_met(streak, params) {
        Some("streak")
    } else {
        None
    }
}

/// Level of a cooldown that begins with a trip from Healthy.
pub fn level_at_trip(entry: &Entry, height: i64, params: &Params) -> u32 {
    let probation = params.health_cb_probation_blocks;
    if probation == 0 || entry.restored_at == 0 || height - entry.restored_at >= probation {
        0
    } else {
        (entry.backoff_level + 1).min(63)
    }
}

/// Level of a cooldown that begins with a failed probe.
pub fn level_at_failed_probe(entry: &Entry) -> u32 {
    (entry.backoff_level + 1).min(63)
}

/// The number that decides the jitter of one exclusion.
pub fn jitter_draw(model: &str, address: &Address, excluded_at: i64) -> u64 {
    let mut bytes = b"holdfast/jitter/v1".to_vec();
    bytes.extend((model.len() as u16).to_be_bytes());
    bytes.extend(model.as_bytes());
    bytes.push(address.len() as u8);
    bytes.extend(address);
    bytes.extend((excluded_at as u64).to_be_bytes());
    let hash = Sha256::digest(&bytes);
    u64::from_be_bytes(hash[..8].try_into().unwrap())
}

/// Cooldown in blocks of an exclusion at `excluded_at`.
pub fn cooldown(params: &Params, level: u32, model: &str, address: &Address, excluded_at: i64) -> i64 {
    let grown = (params.health_cb_initial_cooldown_blocks as u128) << level;
    let base = grown.min(params.health_cb_max_cooldown_blocks as u128);
    let span = base * u128::from(params.health_cb_jitter_pct) / 100;
    let off = u128::from(jitter_draw(model, address, excluded_at)) % (span + 1);
    i64::try_from(base - off).unwrap()
}
