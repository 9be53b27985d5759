//! Fewer items that still show the failure.

use std::time::{Duration, Instant};

/// Leaves out parts of `items`, halves first, as long as `fails` holds of the rest; stops when the time is up.
pub(super) fn shrink(
    items: Vec<usize>,
    limit: Duration,
    mut fails: impl FnMut(&[usize]) -> bool,
) -> Vec<usize> {
    let begun = Instant::now();
    let mut kept = items;
    let mut part = kept.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        let mut left_out = false;
        while at < kept.len() {
            if begun.elapsed() > limit {
                return kept;
            }
            let end = (at + part).min(kept.len());
            let rest: Vec<usize> = kept[..at].iter().chain(&kept[end..]).copied().collect();
            if fails(&rest) {
                kept = rest;
                left_out = true;
            } else {
                at = end;
            }
        }
        if part == 1 && !left_out {
            return kept;
        }
        part = if part == 1 { 1 } else { part / 2 };
    }
    kept
}
