//! `holdfastd devnet`: its flags, checked into a [`DevnetConfig`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::error::{fail, io_failure};
use super::{files, values, wiring};
use crate::devnet::config::{DevnetConfig, Preset, Source};
use crate::devnet::executors::{self, MAX_BLOCKS};
use crate::devnet::resume::{Stored, StoredSource, UNFINISHED};
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
    /// Seconds of the load in a block, 1 to 3600 [default: 5]
    #[arg(long, value_name = "S", value_parser = block_seconds)]
    block_seconds: Option<u64>,
    /// Executors such as '11*healthy,degraded(20),dying(40%)@weight=120', or a .toml file [default: 20, 9 of them faulty]
    #[arg(long, env = "HOLDFASTD_EXECUTORS", value_name = "SPEC")]
    executors: Option<String>,
    /// Parameters of the breaker [default: recommended]
    #[arg(long, env = "HOLDFASTD_PRESET", value_name = "NAME")]
    preset: Option<PresetArg>,
    /// Run off, seed and recommended on the same input and set them side by side
    #[arg(long)]
    compare: bool,
    /// Seed of the draws and of the misses [default: 1]
    #[arg(long, env = "HOLDFASTD_SEED", value_name = "N", value_parser = seed)]
    seed: Option<u64>,
    /// New or empty folder for the state [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// Go on with the run in --home where it stopped, with its settings; start one if there is none
    #[arg(long, requires = "home")]
    resume: bool,
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
    /// Executors run the reference model for real, prompts cut to 64 tokens and answers to 32; profiles kill, stall or cut their
    /// workers. Real time decides then: two runs need not have one app hash, and none can be gone on with
    #[arg(long, conflicts_with = "home")]
    runner: bool,
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

/// Checks what clap cannot: files, folders, the executor list. Under `--resume` a flag that is not given is as it was when
/// the run began; whether the given ones are too is found out when the input is read. `command` is the command line as typed.
pub(crate) fn config(args: &DevnetArgs, command: String) -> Result<DevnetConfig> {
    let begun = begun(args)?;
    let begun = begun.as_ref();
    let source = match (&args.trace, args.workload, begun.map(|run| &run.source)) {
        (Some(path), _, begun) => {
            let skip_bad_rows =
                args.skip_bad_rows || matches!(begun, Some(StoredSource::Trace { skip_bad_rows: true, .. }));
            trace(path, skip_bad_rows)?
        }
        (None, None, Some(StoredSource::Trace { path, skip_bad_rows, .. })) => trace(path, *skip_bad_rows)?,
        (None, None, Some(StoredSource::Workload { seed })) => Source::Workload { seed: *seed },
        (None, seed, _) => Source::Workload { seed: seed.unwrap_or(DEFAULT_WORKLOAD_SEED) },
    };
    let executors = match (&args.executors, begun) {
        (Some(spec), _) => executors::load(spec)?,
        (None, Some(run)) => run.executors()?,
        (None, None) => executors::default_executors(),
    };
    let preset = args.preset.map(|preset| match preset {
        PresetArg::Off => Preset::Off,
        PresetArg::Seed => Preset::Seed,
        PresetArg::Recommended => Preset::Recommended,
    });
    let report = args.report.clone().or_else(|| begun.and_then(|run| run.report.clone()));
    if let Some(dir) = &report {
        is_folder("--report", dir)?;
    }
    Ok(DevnetConfig {
        source,
        blocks: args.blocks.or_else(|| begun.and_then(|run| run.blocks)),
        block_seconds: args.block_seconds.or(begun.map(|run| run.block_seconds)).unwrap_or(5),
        executors,
        preset: preset.or_else(|| begun.and_then(Stored::preset)).unwrap_or(Preset::Recommended),
        compare: args.compare || begun.is_some_and(|run| run.compare),
        seed: args.seed.or(begun.map(|run| run.seed)).unwrap_or(1),
        home: args.home.clone(),
        listen: args.listen,
        report,
        headless: args.headless,
        realtime: args.realtime,
        runner: args.runner,
        command,
    })
}

fn trace(path: &Path, skip_bad_rows: bool) -> Result<Source> {
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|e| {
        fail(12, "--trace", format!("cannot read {shown}: {e}; check the path and its permissions"))
    })?;
    if meta.is_dir() {
        return Err(fail(12, "--trace", format!("{shown} is a folder; give the .csv file itself")));
    }
    Ok(Source::Trace { path: path.to_owned(), skip_bad_rows })
}

/// The run in `--home` that is to go on. Without `--resume` the folder has to be new or empty.
fn begun(args: &DevnetArgs) -> Result<Option<Stored>> {
    let Some(dir) = &args.home else { return Ok(None) };
    is_folder("--home", dir)?;
    let shown = dir.display();
    if !args.resume {
        if files::is_vacant(dir)? {
            return Ok(None);
        }
        let text =
            format!("{shown} is not empty; give a new or empty folder, or --resume to go on with its run");
        return Err(fail(22, "--home", text));
    }
    let run = Stored::read(dir)?;
    if run.is_none() && !files::is_vacant(dir)? && !only_unfinished(dir)? {
        let text =
            format!("{shown} is not empty and holds no devnet run; give a run's folder or an empty one");
        return Err(fail(22, "--home", text));
    }
    Ok(run)
}

/// Whether all that is in a folder is what a kill left of the first file of a run.
fn only_unfinished(dir: &Path) -> Result<bool> {
    let failed = |e: std::io::Error| io_failure(dir, &e);
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        if entry.map_err(failed)?.file_name() != UNFINISHED {
            return Ok(false);
        }
    }
    Ok(true)
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
