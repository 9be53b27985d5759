//! Runs the benchmarks and writes the rows as a table and as JSON.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use holdfast_bench::{Row, store};
use serde::Serialize;

const USAGE: &str = "\
usage: holdfast-bench [--json FILE] [--peers DIR] [--only NAME] [--quick]

  --json FILE   also write the rows to FILE
  --peers DIR   run the peers in DIR too, after ours, and compare
  --only NAME   run one benchmark: store
  --quick       small sizes: a check that everything runs, not a measurement";

/// The benchmarks by name.
const NAMES: [&str; 1] = ["store"];

#[derive(Debug, Default)]
struct Args {
    json: Option<PathBuf>,
    peers: Option<PathBuf>,
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

fn main() -> Result<()> {
    let Some(args) = Args::parse(std::env::args().skip(1))? else {
        println!("{USAGE}");
        return Ok(());
    };
    if args.child.is_some() {
        println!("{}", serde_json::to_string(&store::run(args.store_size())?)?);
        return Ok(());
    }
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    if args.only.as_deref().is_none_or(|only| only == "store") {
        let ours: store::Measured = in_own_process("store", args.quick)?;
        let peers = match &args.peers {
            Some(dir) => store::run_peer(dir, args.store_size())?,
            None => Vec::new(),
        };
        rows.extend(store::rows(&ours, &peers)?);
        details.insert("store".into(), serde_json::json!({ "ours": ours, "peers": peers }));
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
    Ok(())
}

/// A benchmark in a process of its own, so that heaps and peak memory do not carry over, as the peers do.
fn in_own_process<T: serde::de::DeserializeOwned>(name: &str, quick: bool) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", name]);
    if quick {
        command.arg("--quick");
    }
    let output = command.output()?;
    ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}
