//! Amounts of a denomination.

use borsh::{BorshDeserialize, BorshSerialize};
use thiserror::Error;

/// An amount in base units.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Coin {
    /// Denomination, 3 to 128 characters, a letter first, then letters, digits or `/ : . _ -`.
    pub denom: String,
    /// Base units.
    pub amount: u128,
}

/// Why a coin is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CoinError {
    /// Bad denomination.
    #[error("denom {0:?}: use 3 to 128 characters, a letter first, then letters, digits or / : . _ -")]
    Denom(String),
    /// Bad amount.
    #[error(
        "amount {0:?}: write a decimal integer of base units, 0 to 2^128 - 1, without sign or leading zeros"
    )]
    Amount(String),
}

impl Coin {
    /// A coin; the denomination is checked.
    pub fn new(denom: &str, amount: u128) -> Result<Self, CoinError> {
        let rest_ok = |b: u8| b.is_ascii_alphanumeric() || b"/:._-".contains(&b);
        let ok = (3..=128).contains(&denom.len())
            && denom.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && denom.bytes().all(rest_ok);
        if !ok {
            return Err(CoinError::Denom(denom.chars().take(140).collect()));
        }
        Ok(Self { denom: denom.to_owned(), amount })
    }

    /// From the two text fields of the wire form.
    pub fn parse(denom: &str, amount: &str) -> Result<Self, CoinError> {
        Self::new(denom, Self::parse_amount(amount)?)
    }

    /// Parses a decimal integer amount.
    pub fn parse_amount(amount: &str) -> Result<u128, CoinError> {
        let digits = !amount.is_empty() && amount.bytes().all(|b| b.is_ascii_digit());
        let canonical = amount == "0" || !amount.starts_with('0');
        if digits
            && canonical
            && let Ok(amount) = amount.parse()
        {
            return Ok(amount);
        }
        Err(CoinError::Amount(amount.chars().take(50).collect()))
    }
}
