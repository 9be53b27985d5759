//! The documents' own numbers, small scenarios, and proof that the histories reach every rule.

mod draw;
mod driver;
mod entry;
mod histories;
mod overrides;
mod rules;
mod scenarios;
mod scene;
mod sprt;

use crate::Address;
use crate::entry::Window;

fn addr(k: u8) -> Address {
    [k; 20]
}

fn window(width: u32, touched_at: i64, buckets: &[(u64, u64, u64)]) -> Window {
    let buckets = buckets.iter().map(|(i, ok, missed)| (*i, (*ok, *missed))).collect();
    Window { width, touched_at, buckets }
}

const M: &str = "m1";
