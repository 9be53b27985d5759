//! What must hold in every state. For tests and simulation: O(balances).

use std::collections::BTreeMap;

use holdfast_store::{KvRead, Order};

use crate::{BALANCES, SUPPLY};

/// Every invariant of the module. The error names the first that does not hold, and where.
pub fn check(store: &dyn KvRead) -> Result<(), String> {
    balances_equal_supply(store)
}

/// The balances of each denomination add up to its supply, and no row is zero.
pub fn balances_equal_supply(store: &dyn KvRead) -> Result<(), String> {
    let broken = |text: String| Err(format!("bank: {text}"));
    let mut sums: BTreeMap<String, u128> = BTreeMap::new();
    for row in BALANCES.iter(store, Order::Ascending) {
        let ((address, denom), amount) = row.map_err(|e| e.to_string())?;
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
        let (denom, supply) = row.map_err(|e| e.to_string())?;
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
