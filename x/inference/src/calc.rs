//! Payment arithmetic (breaker-details 5). Amounts are base units of the price's denomination.

/// What a start pays in: `(prompt_tokens + max_tokens) · price`; `None` past 2^128 − 1.
pub(crate) fn escrow(prompt_tokens: u64, max_tokens: u64, price: u128) -> Option<u128> {
    u128::from(prompt_tokens).checked_add(u128::from(max_tokens))?.checked_mul(price)
}

/// What an answer earns: `(prompt_tokens + completion_tokens) · price`, at most `escrowed`.
pub(crate) fn earned(prompt_tokens: u64, completion_tokens: u64, price: u128, escrowed: u128) -> u128 {
    // A product past 2^128 is above any escrow, so saturation gives the exact minimum.
    u128::from(prompt_tokens)
        .saturating_add(u128::from(completion_tokens))
        .saturating_mul(price)
        .min(escrowed)
}
