//! Fixed-point decimals with twelve places: the unit of the slow breaker (breaker-details 2.5).

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use thiserror::Error;

/// 1.0 in units of 10^-12.
pub const ONE: i128 = 1_000_000_000_000;

/// A decimal held exactly as an integer of 10^-12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Decimal12(pub i128);

/// Why a text is no [`Decimal12`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a decimal with at most 18 digits before and 12 after the point")]
pub struct DecimalError(pub String);

impl Decimal12 {
    /// Parses `[-]digits[.digits]`; more than twelve places must be zeros, so nothing is rounded.
    pub fn parse(text: &str) -> Result<Self, DecimalError> {
        Self::parse_exact(text).ok_or_else(|| DecimalError(text.chars().take(40).collect()))
    }

    fn parse_exact(text: &str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = match digits.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (digits, ""),
        };
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 18
            || fraction.len() > 30
            || !all_digits(whole)
            || !all_digits(fraction)
        {
            return None;
        }
        let (kept, lost) = fraction.split_at_checked(12).unwrap_or((fraction, ""));
        if lost.bytes().any(|b| b != b'0') {
            return None;
        }
        let fraction: i128 = format!("{kept:0<12}").parse().ok()?;
        let units = whole.parse::<i128>().ok()?.checked_mul(ONE)?.checked_add(fraction)?;
        Some(Self(if negative { units.checked_neg()? } else { units }))
    }
}

impl fmt::Display for Decimal12 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.0.unsigned_abs();
        let one = ONE.unsigned_abs();
        let (whole, fraction) = (units.checked_div(one).unwrap_or(0), units.checked_rem(one).unwrap_or(0));
        let fraction = format!("{fraction:012}");
        let fraction = fraction.trim_end_matches('0');
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if fraction.is_empty() { write!(f, "{whole}.0") } else { write!(f, "{whole}.{fraction}") }
    }
}
