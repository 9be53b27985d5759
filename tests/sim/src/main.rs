//! Runs simulations from the command line.

use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use holdfast_sim::{Counts, Mode, Plan, run, speak};

/// `println!` that ends the process quietly when nobody reads any more, with the code that a shell gives for that: whether
/// all went well is not known then.
macro_rules! say {
    ($($text:tt)*) => {
        if let Err(error) = writeln!(std::io::stdout(), $($text)*) {
            std::process::exit(if error.kind() == std::io::ErrorKind::BrokenPipe { 128 + 13 } else { 1 });
        }
    };
}

const USAGE: &str = "\
usage: holdfast-sim [--seed S] [--seeds K] [--blocks N] [--mode MODE] [--jobs J] [--minutes M]

  --seed S      first seed (1)
  --seeds K     number of seeds, from S upwards (1)
  --blocks N    blocks of each chain (100)
  --mode MODE   full, import-export, after-import or determinism; all of them when not given
  --jobs J      chains at a time (as many as there are cores)
  --minutes M   start no further seed after so many minutes

usage: holdfast-sim escrow ...   escrow sessions instead of chains; --help lists its arguments";

#[derive(Debug)]
struct Args {
    seed: u64,
    seeds: u64,
    blocks: u64,
    modes: Vec<Mode>,
    jobs: usize,
    minutes: Option<u64>,
    /// Internal: be a child of a determinism run.
    speak: bool,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut args = Self {
            seed: 1,
            seeds: 1,
            blocks: 100,
            modes: Mode::ALL.to_vec(),
            jobs,
            minutes: None,
            speak: false,
        };
        while let Some(word) = words.next() {
            let mut next = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
            let number = |text: String| text.parse::<u64>().with_context(|| format!("{text:?} is no number"));
            match word.as_str() {
                "--seed" => args.seed = number(next()?)?,
                "--seeds" => args.seeds = number(next()?)?,
                "--blocks" => args.blocks = number(next()?)?,
                "--mode" => args.modes = vec![next()?.parse()?],
                "--jobs" => args.jobs = usize::try_from(number(next()?)?)?.clamp(1, 64),
                "--minutes" => args.minutes = Some(number(next()?)?),
                "--speak" => args.speak = true,
                "--help" | "-h" => return Ok(None),
                _ => bail!("unknown argument {word}\n{USAGE}"),
            }
        }
        ensure!(args.seeds >= 1 && args.blocks >= 1, "--seeds and --blocks are at least 1");
        Ok(Some(args))
    }
}

/// This program as a child that tells the hashes of its blocks.
fn launch(seed: u64, blocks: u64) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--speak").args(["--seed", &seed.to_string(), "--blocks", &blocks.to_string()]);
    Ok(command)
}

#[derive(Default)]
struct Outcome {
    counts: Counts,
    runs: u64,
    failures: Vec<String>,
}

fn simulate(args: &Args) -> Outcome {
    let started = Instant::now();
    let limit = args.minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    let (next, outcome) = (AtomicU64::new(0), Mutex::new(Outcome::default()));
    let total = args.seeds.saturating_mul(args.modes.len() as u64);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= total || limit.is_some_and(|limit| started.elapsed() > limit) {
                        return;
                    }
                    let modes = args.modes.len() as u64;
                    let (seed, mode) =
                        (args.seed.wrapping_add(job / modes), args.modes[(job % modes) as usize]);
                    let begun = Instant::now();
                    let done = run(&Plan { seed, blocks: args.blocks, mode, launch: Some(&launch) });
                    let mut outcome = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    outcome.runs += 1;
                    match done {
                        Ok(counts) => {
                            let txs: u64 = counts.codes.values().sum();
                            let good = counts.codes.get(&(String::new(), 0)).copied().unwrap_or_default();
                            let secs = begun.elapsed().as_secs_f64();
                            say!(
                                "seed {seed} {}: {} blocks, {txs} transactions, {good} ok, {secs:.1} s",
                                mode.name(),
                                args.blocks
                            );
                            outcome.counts.add(&counts);
                        }
                        Err(failure) => {
                            say!("{failure}");
                            outcome.failures.push(format!("seed {seed} mode {}", mode.name()));
                        }
                    }
                }
            });
        }
    });
    outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn report(outcome: &Outcome, elapsed: Duration) {
    let counts = &outcome.counts;
    say!("\nmessages, carried out and refused:");
    for (url, tally) in &counts.messages {
        if url.is_ascii() && url.len() < 60 && tally.done + tally.refused > 20 {
            say!("  {:>9} {:>9}  {url}", tally.done, tally.refused);
        }
    }
    let list = |map: &std::collections::BTreeMap<String, u64>| {
        map.iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    };
    say!("proposals: {}", list(&counts.proposals));
    say!("driver: {}", list(&counts.driver));
    say!(
        "codes: {}",
        counts
            .codes
            .iter()
            .map(|((space, code), n)| format!("{space} {code}: {n}"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    say!("{} runs, {} failed, {:.0} s", outcome.runs, outcome.failures.len(), elapsed.as_secs_f64());
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if words.next().is_some_and(|word| word == "escrow") {
        return holdfast_sim::escrow::main(words);
    }
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(Some(args)) => args,
        Ok(None) => {
            say!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::from(2);
        }
    };
    if args.speak {
        return match speak(args.seed, args.blocks, &mut std::io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let started = Instant::now();
    let outcome = simulate(&args);
    report(&outcome, started.elapsed());
    if outcome.failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    say!("failed: {}", outcome.failures.join("; "));
    ExitCode::FAILURE
}
