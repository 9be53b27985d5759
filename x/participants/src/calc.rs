//! The arithmetic of validator power: no store, no block.

use std::collections::BTreeMap;

/// Power of one unit of weight, so that a share of the power can move in the smallest set too.
pub const POWER_PER_WEIGHT: u64 = 1_000;
/// Most power of all validators together: what CometBFT can count, (2^63 − 1) / 8.
pub const TOTAL_POWER_MAX: u64 = 1_152_921_504_606_846_975;
/// A set taken over from the engine's genesis is given at least this much power, shares unchanged.
const ADOPTED_POWER_MIN: u64 = 1_000_000;

/// Power by consensus key; no row at 0.
pub(crate) type Powers = BTreeMap<Vec<u8>, u64>;

/// Sum of all powers.
pub(crate) fn total(powers: &Powers) -> u128 {
    powers.values().fold(0, |sum, power| sum.saturating_add(u128::from(*power)))
}

/// Powers of `weights`: [`POWER_PER_WEIGHT`] each, all halved until the sum is at most [`TOTAL_POWER_MAX`], and
/// each at least 1.
pub(crate) fn powers(weights: &[u64]) -> Vec<u64> {
    for shift in 0..u128::BITS {
        let scaled: Vec<u128> = weights
            .iter()
            .map(|weight| {
                let power = u128::from(*weight).saturating_mul(u128::from(POWER_PER_WEIGHT));
                power.checked_shr(shift).unwrap_or(0).max(1)
            })
            .collect();
        let sum = scaled.iter().fold(0_u128, |sum, power| sum.saturating_add(*power));
        if sum <= u128::from(TOTAL_POWER_MAX) {
            return scaled.into_iter().map(|power| u64::try_from(power).unwrap_or(TOTAL_POWER_MAX)).collect();
        }
    }
    vec![1; weights.len()]
}

/// Powers of a set taken over: times the least power of ten that makes their sum a million.
pub(crate) fn adopted(mut powers: Powers) -> Powers {
    while !powers.is_empty() && total(&powers) < u128::from(ADOPTED_POWER_MIN) {
        for power in powers.values_mut() {
            *power = power.saturating_mul(10).max(1);
        }
    }
    powers
}

/// A key on its way: what it has and what it should have.
struct Move<'k> {
    key: &'k Vec<u8>,
    from: u64,
    to: u64,
}

/// The set after one epoch on the way from `old` to `target`.
///
/// At most `permille` thousandths of the old total move, rises and falls counted together, so that with less than
/// a third two thirds of the old power stay as they are. Falls take the first half: who goes, the smallest first,
/// then who shrinks, by how much. Rises, by how much, take what is left, and falls what they leave. Ties by key.
/// A newcomer enters while there are fewer than `limit` keys. From an empty set everything moves at once; to an
/// empty one nothing.
///
/// The total never exceeds that of both sets: falls that are not all done outweigh the rises.
pub(crate) fn step(old: &Powers, target: &Powers, permille: u32, limit: usize) -> Powers {
    if target.is_empty() {
        return old.clone();
    }
    if old.is_empty() {
        return target.clone();
    }
    let share = total(old).saturating_mul(u128::from(permille)).checked_div(1_000).unwrap_or(0);
    let budget = u64::try_from(share).unwrap_or(u64::MAX);
    let (mut gone, mut shrunk, mut grown) = (Vec::new(), Vec::new(), Vec::new());
    for (key, from) in old {
        let to = target.get(key).copied().unwrap_or(0);
        let change = Move { key, from: *from, to };
        match to {
            0 => gone.push(change),
            to if to < *from => shrunk.push(change),
            to if to > *from => grown.push(change),
            _ => {}
        }
    }
    for (key, to) in target.iter().filter(|(key, _)| !old.contains_key(*key)) {
        grown.push(Move { key, from: 0, to: *to });
    }
    // Stable, over rows in key order.
    gone.sort_by_key(|change| change.from);
    shrunk.sort_by_key(|change| std::cmp::Reverse(change.from.saturating_sub(change.to)));
    grown.sort_by_key(|change| std::cmp::Reverse(change.to.saturating_sub(change.from)));
    gone.append(&mut shrunk);
    let mut next = old.clone();
    let half = budget.div_ceil(2);
    let budget = budget.saturating_sub(lower(&mut next, &gone, half));
    let budget = budget.saturating_sub(raise(&mut next, &grown, budget, limit));
    lower(&mut next, &gone, budget);
    next
}

/// Takes power away, at most `budget`; returns how much.
fn lower(powers: &mut Powers, moves: &[Move<'_>], budget: u64) -> u64 {
    let mut left = budget;
    for Move { key, to, .. } in moves {
        let Some(power) = powers.get_mut(*key) else { continue };
        let taken = power.saturating_sub(*to).min(left);
        *power = power.saturating_sub(taken);
        left = left.saturating_sub(taken);
        if *power == 0 {
            powers.remove(*key);
        }
    }
    budget.saturating_sub(left)
}

/// Gives power, at most `budget`; returns how much.
fn raise(powers: &mut Powers, moves: &[Move<'_>], budget: u64, limit: usize) -> u64 {
    let mut left = budget;
    for Move { key, from, to } in moves {
        if left == 0 {
            break;
        }
        if *from == 0 && powers.len() >= limit {
            continue;
        }
        let given = to.saturating_sub(*from).min(left);
        powers.insert((*key).clone(), from.saturating_add(given));
        left = left.saturating_sub(given);
    }
    budget.saturating_sub(left)
}
