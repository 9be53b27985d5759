//! What a devnet run is asked to do, checked.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::executors::ExecutorSpec;

/// Where the requests come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file in the Azure LLM inference trace format.
    Trace {
        /// The file; existed when the flags were read.
        path: PathBuf,
        /// Count and report malformed rows instead of failing at the first.
        skip_bad_rows: bool,
    },
    /// The built-in workload.
    Workload {
        /// Its seed.
        seed: u64,
    },
}

/// Parameters of the circuit breaker at genesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// No breaker.
    Off,
    /// The cumulative rule of seed 002.
    Seed,
    /// The recommended rules.
    Recommended,
}

impl Preset {
    /// All of them, in the order in which `--compare` runs and lists them.
    pub const ALL: [Self; 3] = [Self::Off, Self::Seed, Self::Recommended];

    /// As written after `--preset` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Seed => "seed",
            Self::Recommended => "recommended",
        }
    }
}

/// A devnet run. Every value lies within the limits of its flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevnetConfig {
    /// Requests.
    pub source: Source,
    /// Blocks to run, 1 to [`super::executors::MAX_BLOCKS`]; `None`: until the last request is decided.
    pub blocks: Option<u64>,
    /// Seconds of the trace in a block, 1 to 3,600.
    pub block_seconds: u64,
    /// Executors, at least one.
    pub executors: Vec<ExecutorSpec>,
    /// Breaker parameters; with `compare` those of the run that the report is about.
    pub preset: Preset,
    /// Run every preset on the same input.
    pub compare: bool,
    /// Seed of draws and misses.
    pub seed: u64,
    /// Folder for the state: new, empty, or with a run of the same settings, which then goes on; `None`: a temporary one
    /// that goes when the run ends.
    pub home: Option<PathBuf>,
    /// Where the gRPC server listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Folder for the report; `None`: no files.
    pub report: Option<PathBuf>,
    /// Plain lines instead of the live view.
    pub headless: bool,
    /// One block every `block_seconds` of real time instead of as fast as possible.
    pub realtime: bool,
    /// Executors run the reference model for real. Such a run cannot be gone on with: `home` is `None`.
    pub runner: bool,
    /// The command line, for the report.
    pub command: String,
}
