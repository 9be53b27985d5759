//! The runner on real processes: workers, coordinators and upstream servers that are killed, stopped and cut off.
//!
//! `HOLDFAST_ALL=1` runs every case where a seeded choice of them runs otherwise; `HOLDFAST_SEED` is the seed, from the
//! clock if it is not set, and shown with a failure; `HOLDFAST_CASE` picks blows by a part of their description.

mod blows;
mod cases;
mod ledger;
mod matrix;
mod soak;
mod upstream;

use std::process::Command;
use std::sync::Arc;

use holdfast_runner::{BoundaryAdapter, ShardPool};

/// The prompt and the answer of the reference model, seed 13.
const PROMPT: [u32; 4] = [7, 3, 9, 1];
const GOLDEN: [u32; 8] = [8, 185, 33, 96, 154, 45, 82, 93];

fn all() -> bool {
    std::env::var_os("HOLDFAST_ALL").is_some_and(|value| value != "0")
}

/// This program once more, as the process that `test` is when `settings` are in its environment.
fn child(test: &str, settings: &[(&str, String)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test program has a path"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.envs(settings.iter().map(|(name, value)| (name, value)));
    command
}

/// Shards that are always there.
struct Fixed(Vec<Arc<dyn BoundaryAdapter>>);

impl ShardPool for Fixed {
    fn live(&self) -> Vec<Arc<dyn BoundaryAdapter>> {
        self.0.clone()
    }
}
