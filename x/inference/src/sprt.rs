//! The slow breaker's arithmetic: a sequential probability ratio test in integers of 10^-12
//! (breaker-details 2.5). Pure.

use holdfast_types::{Decimal12, ONE};

/// ln 2 in units of 2^-62.
const LN2_Q62: i128 = 3_196_577_161_300_663_914;

/// What the ratio says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// At most −H: a good participant. Nothing follows from it.
    Pass,
    /// Between.
    Undecided,
    /// At least H: a bad participant.
    Fail,
}

/// `ln(n / d)` in units of 10^-12, for `n`, `d` in 1..=10^12; `None` outside. The algorithm, floors
/// included, is the definition: another "better" logarithm would be another chain.
pub fn ln(n: u64, d: u64) -> Option<i128> {
    let range = 1..=1_000_000_000_000;
    if !range.contains(&n) || !range.contains(&d) {
        return None;
    }
    let bits = |x: u64| u64::BITS.checked_sub(x.leading_zeros());
    let mut s = i128::from(bits(n)?).checked_sub(i128::from(bits(d)?))?;
    let shift = u32::try_from(s.unsigned_abs()).ok()?;
    let (mut n, mut d) = (i128::from(n), i128::from(d));
    if s < 0 {
        n = n.checked_shl(shift)?;
    } else {
        d = d.checked_shl(shift)?;
    }
    if n < d {
        n = n.checked_mul(2)?;
        s = s.checked_sub(1)?;
    }
    let one: i128 = 1 << 62;
    // From here 1 ≤ n/d < 2, so 0 ≤ z < 2^62 / 3 and no product passes 2^125.
    let z = n.checked_sub(d)?.checked_mul(one)?.checked_div(n.checked_add(d)?)?;
    let q = z.checked_mul(z)?.checked_div(one)?;
    let (mut t, mut a, mut k) = (z, 0_i128, 1_i128);
    while t > 0 {
        // t shrinks ninefold at least: at most 20 rounds.
        a = a.checked_add(t.checked_div(k)?)?;
        t = t.checked_mul(q)?.checked_div(one)?;
        k = k.checked_add(2)?;
    }
    let r = a.checked_mul(2)?.checked_add(s.checked_mul(LN2_Q62)?)?;
    let magnitude = r.checked_abs()?.checked_mul(ONE)?.checked_add(1 << 61)?.checked_div(one)?;
    r.signum().checked_mul(magnitude)
}

/// What a miss adds (above 0) and what an answer adds (below 0): `ln(p1/p0)` and
/// `ln((1 − p1)/(1 − p0))`; `None` unless `0 < p0 < p1 < 1`.
pub fn increments(p0: Decimal12, p1: Decimal12) -> Option<(i128, i128)> {
    if !(0 < p0.0 && p0.0 < p1.0 && p1.0 < ONE) {
        return None;
    }
    let units = |x: i128| u64::try_from(x).ok();
    let up = ln(units(p1.0)?, units(p0.0)?)?;
    let down = ln(units(ONE.checked_sub(p1.0)?)?, units(ONE.checked_sub(p0.0)?)?)?;
    Some((up, down))
}

/// `llr + up · missed + down · ok`; `None` on overflow.
pub fn advance(llr: i128, (up, down): (i128, i128), ok: u64, missed: u64) -> Option<i128> {
    llr.checked_add(up.checked_mul(i128::from(missed))?)?.checked_add(down.checked_mul(i128::from(ok))?)
}

/// The verdict at threshold `h`.
pub fn verdict(llr: i128, h: Decimal12) -> Verdict {
    if llr >= h.0 {
        Verdict::Fail
    } else if h.0.checked_neg().is_some_and(|pass| llr <= pass) {
        Verdict::Pass
    } else {
        Verdict::Undecided
    }
}
