//! Exact arithmetic of shares and powers. Nothing is rounded before a comparison.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_proto::Timestamp;
use thiserror::Error;

/// 1.0 in units of 10^-18.
const ONE: u64 = 1_000_000_000_000_000_000;
/// Places after the point.
const PLACES: usize = 18;

/// A share: 0 to 1, held exactly as an integer of 10^-18.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Share(u64);

/// Why a text is no [`Share`] or no [`Power`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not {1}")]
pub struct DecimalError(String, &'static str);

/// Digits before the point and units of 10^-18 after it.
fn parse(text: &str) -> Option<(u128, u64)> {
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, ""),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 39 || fraction.len() > PLACES || !digits(whole) || !digits(fraction)
    {
        return None;
    }
    Some((whole.parse().ok()?, format!("{fraction:0<18}").parse().ok()?))
}

fn refused(text: &str, what: &'static str) -> DecimalError {
    DecimalError(text.chars().take(60).collect(), what)
}

impl Share {
    /// 0.
    pub const ZERO: Self = Self(0);
    /// 1.
    pub const ONE: Self = Self(ONE);

    /// A thousandth times `n`, at most 1.
    pub const fn per_mille(n: u16) -> Self {
        let units = (n as u64).saturating_mul(1_000_000_000_000_000);
        if units > ONE { Self::ONE } else { Self(units) }
    }

    /// Parses `0`, `1` or digits around a point: 0 to 1, at most 18 places.
    pub fn parse(text: &str) -> Result<Self, DecimalError> {
        let units = parse(text).and_then(|(whole, fraction)| {
            u64::try_from(whole).ok()?.checked_mul(ONE)?.checked_add(fraction).filter(|units| *units <= ONE)
        });
        units.map(Self).ok_or_else(|| refused(text, "a decimal from 0 to 1 with at most 18 places"))
    }

    /// Units of 10^-18.
    pub fn units(self) -> u64 {
        self.0
    }

    /// The sum, when it is at most 1.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).filter(|units| *units <= ONE).map(Self)
    }

    /// This share of `amount`, rounded down.
    pub fn of_floor(self, amount: u128) -> u128 {
        // A share is at most 1, so the portion fits.
        Power::portion(amount, self).map_or(amount, |p| p.whole)
    }

    /// This share of `amount`, rounded to the nearest, a half to the even neighbour, as the Cosmos SDK does.
    pub fn of_rounded(self, amount: u128) -> u128 {
        let Some(portion) = Power::portion(amount, self) else { return amount };
        let up = match portion.fraction.cmp(&(ONE / 2)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => portion.whole & 1 == 1,
            std::cmp::Ordering::Greater => true,
        };
        portion.whole.saturating_add(u128::from(up))
    }
}

impl fmt::Display for Share {
    /// All 18 places, as the Cosmos SDK writes decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Power { whole: u128::from(self.0 >= ONE), fraction: if self.0 >= ONE { 0 } else { self.0 } }.fmt(f)
    }
}

/// A sum of portions of voting power, exact: a whole number and units of 10^-18.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Power {
    /// Whole units.
    pub whole: u128,
    /// The rest in units of 10^-18; below 10^18.
    pub fraction: u64,
}

impl Power {
    /// `share` of `power`.
    pub fn portion(power: u128, share: Share) -> Option<Self> {
        // power = high * 10^18 + low, so power * units / 10^18 = high * units + low * units / 10^18;
        // low * units is below 10^36, which fits.
        let (one, units) = (u128::from(ONE), u128::from(share.0));
        let (high, low) = (power.checked_div(one)?, power.checked_rem(one)?);
        let low = low.checked_mul(units)?;
        let whole = high.checked_mul(units)?.checked_add(low.checked_div(one)?)?;
        Some(Self { whole, fraction: u64::try_from(low.checked_rem(one)?).ok()? })
    }

    /// The sum.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let fraction = self.fraction.checked_add(other.fraction)?;
        let (carry, fraction) = match fraction.checked_sub(ONE) {
            Some(rest) => (1, rest),
            None => (0, fraction),
        };
        Some(Self { whole: self.whole.checked_add(other.whole)?.checked_add(carry)?, fraction })
    }

    /// Parses digits, with at most 18 places after a point.
    pub fn parse(text: &str) -> Result<Self, DecimalError> {
        let (whole, fraction) =
            parse(text).ok_or_else(|| refused(text, "a decimal below 2^128 with at most 18 places"))?;
        Ok(Self { whole, fraction })
    }

    /// In units of 10^-18.
    fn units(self) -> Wide {
        Wide::from(self.whole).times(ONE).plus(self.fraction)
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:018}", self.whole, self.fraction)
    }
}

/// 256 bits, the most significant limb first, so that the derived order is the numeric one. Wide enough for a power
/// in units of 10^-18 (188 bits) times a share (60 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wide([u64; 4]);

impl From<u128> for Wide {
    fn from(n: u128) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q] = n.to_be_bytes();
        let high = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let low = u64::from_be_bytes([i, j, k, l, m, o, p, q]);
        Self([0, 0, high, low])
    }
}

impl Wide {
    /// `self * factor + addend`, modulo 2^256.
    fn times_plus(self, factor: u64, addend: u64) -> Self {
        let mut carry = addend;
        let mut limbs = self.0;
        for limb in limbs.iter_mut().rev() {
            // (2^64 - 1)^2 + 2^64 - 1 fits 128 bits.
            let product = u128::from(*limb).wrapping_mul(u128::from(factor)).wrapping_add(u128::from(carry));
            let [_, _, high, low] = Self::from(product).0;
            (*limb, carry) = (low, high);
        }
        Self(limbs)
    }

    fn times(self, factor: u64) -> Self {
        self.times_plus(factor, 0)
    }

    fn plus(self, addend: u64) -> Self {
        self.times_plus(1, addend)
    }
}

/// How `part` compares with `share` of `whole`, exactly.
pub fn compare(part: Power, share: Share, whole: Power) -> std::cmp::Ordering {
    part.units().times(ONE).cmp(&whole.units().times(share.0))
}

/// Power counted by option.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Sums {
    /// For it.
    pub yes: Power,
    /// Abstained.
    pub abstain: Power,
    /// Against it.
    pub no: Power,
    /// Against it with veto.
    pub no_with_veto: Power,
}

/// What a count says, in the order in which it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nobody has voting power: not passed.
    NoPower,
    /// Too few voted: not passed.
    NoQuorum,
    /// Nobody said anything but abstain: not passed.
    AllAbstain,
    /// Vetoed: not passed.
    Vetoed,
    /// Passed.
    Passed,
    /// Too few said yes: not passed.
    TooFewYes,
}

/// Shares that a count is measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Share of all power that must have voted.
    pub quorum: Share,
    /// Share of vetoes among the votes that must not be exceeded.
    pub veto_threshold: Share,
    /// Share of Yes among those not abstaining that must be exceeded.
    pub threshold: Share,
}

/// The outcome of a count. `None` when a sum passes 2^128.
pub fn outcome(sums: &Sums, total_power: u128, limits: &Limits) -> Option<Outcome> {
    if total_power == 0 {
        return Some(Outcome::NoPower);
    }
    let decided = sums.yes.checked_add(sums.no)?.checked_add(sums.no_with_veto)?;
    let voted = decided.checked_add(sums.abstain)?;
    let total = Power { whole: total_power, fraction: 0 };
    Some(if compare(voted, limits.quorum, total).is_lt() {
        Outcome::NoQuorum
    } else if decided == Power::default() {
        Outcome::AllAbstain
    } else if compare(sums.no_with_veto, limits.veto_threshold, voted).is_gt() {
        Outcome::Vetoed
    } else if compare(sums.yes, limits.threshold, decided).is_gt() {
        Outcome::Passed
    } else {
        Outcome::TooFewYes
    })
}

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A block time in wire form.
pub fn timestamp(time_ns: u64) -> Timestamp {
    let seconds = time_ns.checked_div(SECOND).and_then(|s| i64::try_from(s).ok()).unwrap_or(0);
    let nanos = time_ns.checked_rem(SECOND).and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    Timestamp { seconds, nanos }
}

/// A block time from the wire form; `None` when it lies before 1970 or beyond 64 bits of nanoseconds.
pub fn time_ns(time: &Timestamp) -> Option<u64> {
    let nanos = u64::try_from(time.nanos).ok().filter(|nanos| *nanos < SECOND)?;
    u64::try_from(time.seconds).ok()?.checked_mul(SECOND)?.checked_add(nanos)
}
