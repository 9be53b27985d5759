//! `holdfast-sim escrow`.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Programs, Totals, run};

const USAGE: &str = "\
usage: holdfast-sim escrow [--seeds N] [--start S] [--jobs J] [--minutes M] [--hosts WHICH]
                                [--keep LIST] [--trace]

  --seeds N     number of seeds (300)
  --start S     first seed (1)
  --jobs J      seeds at a time (as many as there are cores)
  --minutes M   start no further seed after so many minutes
  --hosts WHICH mixed, real or model: the program's hosts, the simulator's own, or drawn for each host (mixed)
  --keep LIST   with one seed: only these items of its schedule, as 3,8,12, or none
  --trace       with one seed: print what happens";

struct Args {
    seeds: u64,
    start: u64,
    jobs: usize,
    minutes: Option<u64>,
    programs: Programs,
    keep: Option<Vec<usize>>,
    trace: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Args>> {
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let programs = Programs::Mixed;
    let mut args = Args { seeds: 300, start: 1, jobs, minutes: None, programs, keep: None, trace: false };
    while let Some(word) = words.next() {
        let mut next = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
        let number = |text: String| text.parse::<u64>().with_context(|| format!("{text:?} is no number"));
        match word.as_str() {
            "--seeds" => args.seeds = number(next()?)?,
            "--start" | "--seed" => args.start = number(next()?)?,
            "--jobs" => args.jobs = usize::try_from(number(next()?)?)?.clamp(1, 64),
            "--minutes" => args.minutes = Some(number(next()?)?),
            "--hosts" => {
                args.programs = match next()?.as_str() {
                    "mixed" => Programs::Mixed,
                    "real" => Programs::Real,
                    "model" => Programs::Model,
                    other => bail!("--hosts is mixed, real or model, not {other:?}"),
                };
            }
            "--trace" => args.trace = true,
            "--keep" => {
                let list = next()?;
                let items = list.split(',').filter(|item| *item != "none");
                let items: Result<Vec<usize>, _> = items.map(str::parse).collect();
                args.keep = Some(items.with_context(|| format!("{list:?} is no list of numbers"))?);
            }
            "--help" | "-h" => return Ok(None),
            _ => bail!("unknown argument {word}\n{USAGE}"),
        }
    }
    ensure!(args.seeds >= 1, "--seeds is at least 1");
    ensure!(args.seeds == 1 || (args.keep.is_none() && !args.trace), "--keep and --trace go with --seeds 1");
    Ok(Some(args))
}

#[derive(Default)]
struct Outcome {
    totals: Totals,
    clean: u64,
    failed: Vec<u64>,
}

fn simulate(args: &Args) -> Outcome {
    let begun = Instant::now();
    let limit = args.minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    let (next, outcome) = (AtomicU64::new(0), Mutex::new(Outcome::default()));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let late = limit.is_some_and(|limit| begun.elapsed() > limit);
                    let enough = |outcome: &Outcome| outcome.failed.len() >= 5;
                    if number >= args.seeds || late || outcome.lock().is_ok_and(|held| enough(&held)) {
                        return;
                    }
                    let seed = args.start.wrapping_add(number);
                    let done = run(seed, args.programs, args.keep.as_deref(), args.trace);
                    let mut outcome = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match done {
                        Ok(totals) => {
                            outcome.clean += 1;
                            outcome.totals.add(&totals);
                        }
                        Err(failure) => {
                            println!("{failure}\n");
                            outcome.failed.push(seed);
                        }
                    }
                }
            });
        }
    });
    outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs the simulator from the command line; `words` are those after `escrow`.
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    let args = match parse(words) {
        Ok(Some(args)) => args,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::from(2);
        }
    };
    // A panic is a failure of its seed and told as such.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let outcome = simulate(&args);
    let secs = begun.elapsed().as_secs_f64();
    let out = &mut std::io::stdout();
    let told = if outcome.failed.is_empty() {
        writeln!(out, "{} seeds clean, {}, {secs:.1} s", outcome.clean, outcome.totals)
    } else {
        writeln!(out, "failed seeds: {:?}; {} clean, {secs:.1} s", outcome.failed, outcome.clean)
    };
    if told.is_err() || !outcome.failed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
