//! A simulator of escrow sessions: one gateway core and a group of host cores on virtual time and a virtual network, with
//! faults and traffic drawn from a seed. After each step everything that must hold is checked; when the
//! faults have stopped, everything that must come about within a bound. See `docs/simulation.md`.
//!
//! ```text
//! seed ─ cast (group, terms) ─ schedule (requests, faults) ─► world: queue of events by (time, number)
//!                                                              │ gateway core ◄─ lines ─► masks ─ hosts (real, model)
//!                                                              └─ watch: own books, laws        calm: what must come about
//! ```

// The error is the message of the wire, however large it is.
#![allow(clippy::result_large_err)]

mod calm;
mod cast;
mod cli;
mod law;
mod ledger;
mod mask;
mod model;
mod node;
mod real;
mod replica;
mod schedule;
mod shrink;
#[cfg(test)]
mod tests;
mod totals;
mod watch;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use cast::Programs;
pub use cli::main;
pub use totals::Totals;

use cast::Cast;
use schedule::Schedule;
use shrink::shrink;
use world::World;

/// How long a failure is shrunk.
const SHRINK: Duration = Duration::from_secs(60);

/// A run that broke a law.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Of the run.
    pub seed: u64,
    /// The law, and how it was broken.
    pub what: String,
    /// The cast and the shrunk schedule.
    pub story: String,
    /// Items of the shrunk schedule.
    pub kept: Vec<usize>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept: Vec<String> = self.kept.iter().map(usize::to_string).collect();
        write!(
            f,
            "FAILED: seed {}: {}\n{}\nRun it again: cargo xtask sim escrow --start {} --seeds 1 --keep {}",
            self.seed,
            self.what,
            self.story,
            self.seed,
            if kept.is_empty() { "none".into() } else { kept.join(",") }
        )
    }
}

fn attempt(
    cast: &Cast,
    schedule: &Schedule,
    numbers: &[usize],
    trace: bool,
) -> Result<Totals, (String, String)> {
    let played = catch_unwind(AssertUnwindSafe(|| World::new(cast, schedule, numbers, trace).play()));
    match played {
        Ok(Ok(totals)) => Ok(totals),
        Ok(Err(breach)) => Err((breach.law.name().into(), breach.to_string())),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            Err(("panic".into(), format!("panic: {text}")))
        }
    }
}

/// Plays a seed; with `keep` only those items of its schedule.
///
/// # Errors
/// [`Failure`], with a schedule that was shrunk unless `keep` names its items.
pub fn run(
    seed: u64,
    programs: Programs,
    keep: Option<&[usize]>,
    trace: bool,
) -> Result<Totals, Box<Failure>> {
    let cast = Cast::draw(seed, programs);
    let schedule = Schedule::draw(&cast);
    let numbers = keep.map_or_else(|| schedule.numbers(), <[usize]>::to_vec);
    let (law, first) = match attempt(&cast, &schedule, &numbers, trace) {
        Ok(totals) => return Ok(totals),
        Err(failed) => failed,
    };
    let mut what = first;
    let kept = if keep.is_some() {
        numbers
    } else {
        shrink(numbers, SHRINK, |rest| match attempt(&cast, &schedule, rest, false) {
            Err((other, text)) if other == law => {
                what = text;
                true
            }
            _ => false,
        })
    };
    let items = schedule.keep(&kept);
    let mut story = cast.to_string();
    for (number, item) in items {
        story.push_str(&format!("\n{number:>4} {item}"));
    }
    story.push_str(&format!("\n     {:>9.3} s  faults stop", schedule.calm_ms as f64 / 1000.0));
    Err(Box::new(Failure { seed, what, story, kept }))
}
