//! Runs the benchmarks and writes the rows as a table and as JSON.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use holdfast_bench::{
    Outcome, Row, chain, consensus, draw, endblock, escrow, gov, runner, signatures, state, store, trace,
    what_if,
};
use serde::Serialize;

const USAGE: &str = "\
usage: holdfast-bench [--json FILE] [--peers DIR] [--trace FILE] [--only NAME] [--quick]

  --json FILE   also write the rows to FILE
  --peers DIR   run the peers in DIR too, after ours, and compare
  --trace FILE  run the devnet on this request trace too, beside the built-in workload
  --only NAME   run one benchmark: signatures, chain, endblock, gov, what_if, draw, trace, store, state,
                runner, escrow or consensus
  --quick       small sizes: a check that everything runs, not a measurement";

/// The benchmarks by name, in the order in which they run.
const NAMES: [&str; 12] = [
    "signatures",
    "chain",
    "endblock",
    "gov",
    "what_if",
    "draw",
    "trace",
    "store",
    "state",
    "runner",
    "escrow",
    "consensus",
];

#[derive(Debug, Default)]
struct Args {
    json: Option<PathBuf>,
    peers: Option<PathBuf>,
    trace: Option<PathBuf>,
    only: Option<String>,
    quick: bool,
    /// Internal: run one of ours in this process and print what it measured.
    child: Option<String>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut args = Self::default();
        while let Some(word) = words.next() {
            let mut next = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
            match word.as_str() {
                "--json" => args.json = Some(next()?.into()),
                "--peers" => args.peers = Some(next()?.into()),
                "--trace" => args.trace = Some(next()?.into()),
                "--only" => args.only = Some(next()?),
                "--child" => args.child = Some(next()?),
                "--quick" => args.quick = true,
                "--help" | "-h" => return Ok(None),
                _ => bail!("unknown argument {word}\n{USAGE}"),
            }
        }
        for name in args.only.iter().chain(&args.child) {
            ensure!(NAMES.contains(&name.as_str()), "unknown benchmark {name}: one of {}", NAMES.join(", "));
        }
        Ok(Some(args))
    }

    fn store_size(&self) -> store::Size {
        if self.quick { store::Size::QUICK } else { store::Size::FULL }
    }
}

/// What the JSON file holds.
#[derive(Serialize)]
struct Report {
    /// Layout of this file.
    version: u32,
    /// Processors of the machine.
    cpus: usize,
    /// Whether the sizes were the small ones.
    quick: bool,
    rows: Vec<Row>,
    /// Everything each run measured, ours first.
    details: serde_json::Value,
}

fn main() -> Result<ExitCode> {
    if std::env::var_os(consensus::AS_NODE).is_some() {
        return Ok(holdfast_node::cli::run());
    }
    let Some(args) = Args::parse(std::env::args().skip(1))? else {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(name) = &args.child {
        // What a benchmark prints itself stands on earlier lines.
        println!("{}", measure(name, &args)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.only.as_deref().is_none_or(|only| only == "consensus") {
        // Told before the minutes that the others take.
        consensus::Programs::find()?;
    }
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    for name in NAMES.into_iter().filter(|name| args.only.as_deref().is_none_or(|only| only == *name)) {
        eprintln!("{name} ...");
        if name == "store" {
            let ours: store::Measured = in_own_process(name, args.quick, None)?;
            let peers = match &args.peers {
                Some(dir) => store::run_peer(dir, args.store_size())?,
                None => Vec::new(),
            };
            rows.extend(store::rows(&ours, &peers)?.into_iter().map(with_store_target));
            details.insert(name.into(), serde_json::json!({ "ours": ours, "peers": peers }));
            continue;
        }
        let mut outcomes: Vec<Outcome> = vec![in_own_process(name, args.quick, None)?];
        if let (Some(file), "trace") = (&args.trace, name) {
            outcomes.push(in_own_process(name, args.quick, Some(file))?);
        }
        if let (Some(dir), "chain") = (&args.peers, name) {
            outcomes.push(chain::run_peer(dir, &outcomes[0], args.quick)?);
        }
        let parts: Vec<serde_json::Value> = outcomes
            .into_iter()
            .map(|outcome| {
                rows.extend(outcome.rows);
                outcome.details
            })
            .collect();
        details.insert(name.into(), parts.into());
    }
    for row in &rows {
        println!("{row}");
    }
    if let Some(path) = &args.json {
        let report = Report {
            version: 1,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            quick: args.quick,
            rows,
            details: details.into(),
        };
        std::fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write {}: give --json a writable file", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is asked of the state database.
fn with_store_target(row: Row) -> Row {
    match row.name.as_str() {
        "store.block_median" => row.at_most(100.0),
        "store.point_read" => row.below(10_000.0),
        "store.proof" => row.below(150.0),
        "store.peak_rss" => row.below(1e9),
        _ => row,
    }
}

/// Runs a benchmark in this process and gives what it measured as JSON.
fn measure(name: &str, args: &Args) -> Result<String> {
    let quick = args.quick;
    let outcome = match name {
        "store" => return Ok(serde_json::to_string(&store::run(args.store_size())?)?),
        "signatures" => {
            signatures::run(if quick { signatures::Size::QUICK } else { signatures::Size::FULL })?
        }
        "chain" => chain::run(&if quick { chain::Size::QUICK } else { chain::Size::FULL })?,
        "endblock" => endblock::run(&if quick { endblock::Size::QUICK } else { endblock::Size::FULL })?,
        "gov" => gov::run(if quick { gov::Size::QUICK } else { gov::Size::FULL })?,
        "what_if" => what_if::run(if quick { what_if::Size::QUICK } else { what_if::Size::FULL })?,
        "state" => state::run(if quick { state::Size::QUICK } else { state::Size::FULL })?,
        "runner" => runner::run(if quick { runner::Size::QUICK } else { runner::Size::FULL })?,
        "escrow" => escrow::run(if quick { escrow::Size::QUICK } else { escrow::Size::FULL })?,
        "consensus" => {
            let size = if quick { consensus::Size::QUICK } else { consensus::Size::FULL };
            consensus::run(&size, &consensus::Programs::find()?)?
        }
        "draw" => draw::run(if quick { draw::Size::QUICK } else { draw::Size::FULL })?,
        "trace" => {
            let size = if quick { trace::Size::QUICK } else { trace::Size::FULL };
            trace::run(size, args.trace.as_deref())?
        }
        other => bail!("unknown benchmark {other}"),
    };
    Ok(serde_json::to_string(&outcome)?)
}

/// A benchmark in a process of its own, so that heaps and peak memory do not carry over, as the peers do.
fn in_own_process<T: serde::de::DeserializeOwned>(
    name: &str,
    quick: bool,
    trace: Option<&Path>,
) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", name]);
    if quick {
        command.arg("--quick");
    }
    if let Some(file) = trace {
        command.arg("--trace").arg(file);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().next_back().with_context(|| format!("{name} printed nothing"))?;
    Ok(serde_json::from_str(last)?)
}
