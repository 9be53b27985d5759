//! `holdfastd devnet`: its flags, checked into a [`DevnetConfig`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::error::fail;
use super::{files, values, wiring};
use crate::devnet::config::{DevnetConfig, Preset, Source};
use crate::devnet::executors::{self, MAX_BLOCKS};
use crate::devnet::workload::DEFAULT_WORKLOAD_SEED;

/// Runs a small inference network through a request load and reports what the breaker saved
#[derive(Debug, clap::Args)]
pub(crate) struct DevnetArgs {
    /// Requests from a file with the columns TIMESTAMP,ContextTokens,GeneratedTokens
    #[arg(long, env = "HOLDFASTD_TRACE", value_name = "FILE", conflicts_with = "workload")]
    trace: Option<PathBuf>,
    /// Requests from the built-in workload with this seed [default: 1]
    #[arg(long, env = "HOLDFASTD_WORKLOAD", value_name = "SEED", value_parser = seed)]
    workload: Option<u64>,
    /// Leave malformed rows of the trace out, and report them
    #[arg(long, requires = "trace")]
    skip_bad_rows: bool,
    /// Blocks to run [default: until the last request is decided]
    #[arg(long, env = "HOLDFASTD_BLOCKS", value_name = "N", value_parser = blocks)]
    blocks: Option<u64>,
    /// Seconds of the load in a block, 1 to 3600
    #[arg(long, value_name = "S", default_value = "5", value_parser = block_seconds)]
    block_seconds: u64,
    /// Executors such as '11*healthy,degraded(20),dying(40%)@weight=120', or a .toml file [default: 20, 9 of them faulty]
    #[arg(long, env = "HOLDFASTD_EXECUTORS", value_name = "SPEC")]
    executors: Option<String>,
    /// Parameters of the breaker
    #[arg(long, env = "HOLDFASTD_PRESET", value_name = "NAME", default_value = "recommended")]
    preset: PresetArg,
    /// Run off, seed and recommended on the same input and set them side by side
    #[arg(long)]
    compare: bool,
    /// Seed of the draws and of the misses
    #[arg(long, env = "HOLDFASTD_SEED", value_name = "N", default_value = "1", value_parser = seed)]
    seed: u64,
    /// New or empty folder for the state [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// IP and port of the gRPC server; port 0 takes a free one
    #[arg(long, env = "HOLDFASTD_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = values::listen)]
    listen: SocketAddr,
    /// Folder for report.json, timeline.svg and report.html
    #[arg(long, env = "HOLDFASTD_REPORT", value_name = "DIR")]
    report: Option<PathBuf>,
    /// Plain lines instead of the live view
    #[arg(long)]
    headless: bool,
    /// A block every --block-seconds instead of as fast as possible
    #[arg(long)]
    realtime: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PresetArg {
    /// No breaker
    Off,
    /// The cumulative rule of the source document
    Seed,
    /// The recommended rules
    Recommended,
}

fn seed(text: &str) -> Result<u64, String> {
    values::within(text, 0, u64::MAX)
}

fn blocks(text: &str) -> Result<u64, String> {
    values::within(text, 1, MAX_BLOCKS)
}

fn block_seconds(text: &str) -> Result<u64, String> {
    values::within(text, 1, 3600)
}

/// Checks what clap cannot: files, folders, the executor list. `command` is the command line as typed.
pub(crate) fn config(args: &DevnetArgs, command: String) -> Result<DevnetConfig> {
    let source = match &args.trace {
        Some(path) => {
            let shown = path.display();
            let meta = std::fs::metadata(path).map_err(|e| {
                fail(12, "--trace", format!("cannot read {shown}: {e}; check the path and its permissions"))
            })?;
            if meta.is_dir() {
                return Err(fail(12, "--trace", format!("{shown} is a folder; give the .csv file itself")));
            }
            Source::Trace { path: path.clone(), skip_bad_rows: args.skip_bad_rows }
        }
        None => Source::Workload { seed: args.workload.unwrap_or(DEFAULT_WORKLOAD_SEED) },
    };
    let executors = match &args.executors {
        Some(spec) => executors::load(spec)?,
        None => executors::default_executors(),
    };
    if let Some(dir) = &args.home {
        is_folder("--home", dir)?;
        if !files::is_vacant(dir)? {
            let text = format!("{} is not empty; give a new or empty folder", dir.display());
            return Err(fail(22, "--home", text));
        }
    }
    if let Some(dir) = &args.report {
        is_folder("--report", dir)?;
    }
    Ok(DevnetConfig {
        source,
        blocks: args.blocks,
        block_seconds: args.block_seconds,
        executors,
        preset: match args.preset {
            PresetArg::Off => Preset::Off,
            PresetArg::Seed => Preset::Seed,
            PresetArg::Recommended => Preset::Recommended,
        },
        compare: args.compare,
        seed: args.seed,
        home: args.home.clone(),
        listen: args.listen,
        report: args.report.clone(),
        headless: args.headless,
        realtime: args.realtime,
        command,
    })
}

/// A path that is a folder or nothing yet.
fn is_folder(flag: &str, path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || (path.exists() && !path.is_dir()) {
        return Err(fail(12, flag, format!("{:?} is no folder; give a folder", path.display().to_string())));
    }
    Ok(())
}

/// Words as a shell would need them.
pub(crate) fn command_line(words: &[String]) -> String {
    let quoted = words.iter().enumerate().map(|(position, word)| {
        let plain =
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./:=,@+%".contains(&b));
        match word {
            // Where the program lies says nothing about the run.
            _ if position == 0 => "holdfastd".to_owned(),
            word if plain => word.clone(),
            word => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

pub(crate) fn run(args: &DevnetArgs, words: &[String]) -> Result<()> {
    wiring::devnet(config(args, command_line(words))?)
}
