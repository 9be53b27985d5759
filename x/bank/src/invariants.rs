//! What must hold in every state. For tests and simulation: O(balances).

use std::collections::BTreeMap;

use holdfast_store::{KvRead, Order};
use holdfast_types::{ModuleError, sdk};

use crate::{BALANCES, SUPPLY};

/// The balances of each denomination add up to its supply, and no row is zero. Fails with `sdk` 35.
pub fn balances_equal_supply(store: &dyn KvRead) -> Result<(), ModuleError> {
    let broken = |text: String| Err(ModuleError::sdk(sdk::LOGIC, text));
    let mut sums: BTreeMap<String, u128> = BTreeMap::new();
    for row in BALANCES.iter(store, Order::Ascending) {
        let ((address, denom), amount) = row?;
        if amount == 0 {
            return broken(format!("a zero balance of {denom} is stored for {}", address.to_hex()));
        }
        let sum = sums.entry(denom.clone()).or_default();
        match sum.checked_add(amount) {
            Some(total) => *sum = total,
            None => return broken(format!("balances of {denom} pass 2^128 - 1")),
        }
    }
    for row in SUPPLY.iter(store, Order::Ascending) {
        let (denom, supply) = row?;
        let sum = sums.remove(&denom).unwrap_or(0);
        if sum != supply || supply == 0 {
            return broken(format!("balances of {denom} add up to {sum}, the supply is {supply}"));
        }
    }
    match sums.first_key_value() {
        Some((denom, sum)) => broken(format!("balances of {denom} add up to {sum}, the supply is 0")),
        None => Ok(()),
    }
}
