//! What a devnet run says about itself: `report.json` and the recorder that counts for it.
//!
//! The driver tells a [`Recorder`] what happened, block by block; [`Recorder::finish`] turns that into a
//! [`Report`]. The report counts outcomes itself and reads nothing back from the breaker, so that the two can be
//! held against one another: [`Report::check`] verifies what must add up.
//!
//! Heights are blocks of the run, from 1. Everything but the figures named in `measured` is a function of seed and input,
//! however often the run was killed and resumed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use holdfast_app::files::write_whole;
use serde::{Deserialize, Serialize};

use super::executors::{ExecutorSpec, SpecError};

mod recorder;

pub use recorder::Recorder;

/// The figures that the machine's speed decides, as JSON pointers into a report and into each of its arms.
pub const MEASURED: [&str; 2] = ["/tx/per_second", "/block_ms"];

/// Most transitions a report lists; later ones are counted in `transitions_omitted`.
pub const MAX_TRANSITIONS: usize = 20_000;

/// Most points of a series; a longer run is told in steps of 2, 4, 8 ... blocks.
pub const MAX_POINTS: usize = 2_000;

/// Most outages of one executor that a report lists.
pub const MAX_FAULT_SPANS: usize = 200;

/// Consecutive misses after which an executor counts as failed, for `fifth_consecutive_miss_height`.
const FAILED_AFTER_MISSES: u64 = 5;

/// Code and meaning of every [`ReportError`], for the error table of the documentation.
pub const REPORT_ERROR_CODES: &[(u32, &str)] =
    &[(141, "report cannot be written"), (142, "report does not add up")];

/// Why a report could not be made. [`ReportError::code`] is stable.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file of the report cannot be written.
    #[error(
        "--report: cannot write {file}: {source} (devnet error 141); check the folder and its free space"
    )]
    Write {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The figures contradict one another, which is a defect of the program and not of the input.
    #[error("the report does not add up (devnet error 142): {}", faults.join("; "))]
    Contradiction {
        /// One sentence for each contradiction.
        faults: Vec<String>,
    },
}

impl ReportError {
    /// The stable code, as listed in [`REPORT_ERROR_CODES`].
    pub fn code(&self) -> u32 {
        match self {
            ReportError::Write { .. } => 141,
            ReportError::Contradiction { .. } => 142,
        }
    }
}

/// State of one executor for one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Draws work by weight.
    Healthy,
    /// Waits for one trial request.
    Probe,
    /// A trial request is on its way.
    ProbeClaimed,
    /// Receives nothing until its cooldown ends.
    Excluded,
}

impl State {
    /// The word used in `report.json`.
    pub fn name(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Probe => "probe",
            State::ProbeClaimed => "probe_claimed",
            State::Excluded => "excluded",
        }
    }
}

/// How a started request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered in time.
    Finished,
    /// Expired, or reported failed by its executor.
    Missed,
    /// Ended without fault: cancelled, maintenance, PoC phase, executor gone.
    Released,
}

/// Which part of the candidates a draw came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// By weight among the healthy.
    Healthy,
    /// The probe lane.
    Probe,
    /// Nobody healthy and nobody to probe: the whole eligible set.
    Fallback,
}

/// One run, as `report.json` holds it. With `--compare`, `arms` holds the run of each preset in this same shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the program.
    pub version: String,
    /// The command line that made it.
    pub command: String,
    /// `--seed`.
    pub seed: u64,
    /// `off`, `seed` or `recommended`.
    pub preset: String,
    /// The input.
    pub trace: TraceInfo,
    /// Blocks of the run.
    pub blocks: u64,
    /// `--block-seconds`.
    pub block_seconds: u64,
    /// App hash after the last block, lower-case hex.
    pub app_hash: String,
    /// What became of the requests.
    pub requests: RequestCounts,
    /// 10,000 · missed / (finished + missed), rounded down; 0 if nothing ended.
    pub miss_rate_bp: u64,
    /// Draws of `GetRandomExecutor` by lane.
    pub draws: DrawCounts,
    /// One entry for each executor, in the order of `--executors`.
    pub executors: Vec<ExecutorReport>,
    /// Transactions in blocks.
    pub tx: TxCounts,
    /// Milliseconds a block took.
    pub block_ms: BlockTimes,
    /// How many times an invariant of the chain was checked, and held.
    pub invariant_checks: u64,
    /// Changes of state in order of height, at most [`MAX_TRANSITIONS`].
    pub transitions: Vec<Transition>,
    /// Changes of state beyond that.
    pub transitions_omitted: u64,
    /// The run over time.
    pub series: Series,
    /// Where the machine's times stand: [`MEASURED`].
    #[serde(default)]
    pub measured: Vec<String>,
    /// The runs compared, `off`, `seed`, `recommended`; absent without `--compare`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<Report>,
}

/// The input of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceInfo {
    /// File as it was named, or the built-in workload and its seed.
    pub source: String,
    /// Good rows.
    pub rows: u64,
    /// SHA-256 of the file, or of the workload written as one, lower-case hex.
    pub sha256: String,
    /// Malformed rows left out under `--skip-bad-rows`.
    pub bad_rows: u64,
    /// The first ten of them.
    pub bad_row_samples: Vec<String>,
}

/// Requests. offered = started + refused; started = finished + missed + released + pending.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests of the input that fell into the run.
    pub offered: u64,
    /// Admitted by the chain.
    pub started: u64,
    /// Answered in time.
    pub finished: u64,
    /// Expired or reported failed.
    pub missed: u64,
    /// Ended without fault.
    pub released: u64,
    /// Never admitted, after the last try.
    pub refused: u64,
    /// Still open when the run ended.
    pub pending: u64,
}

/// Draws by lane; retries count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrawCounts {
    /// All.
    pub total: u64,
    /// From the probe lane.
    pub probe: u64,
    /// With the health filter bypassed.
    pub fallback: u64,
}

/// One executor over the run, all its models together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorReport {
    /// Bech32 address.
    pub address: String,
    /// Profile in the short form of `--executors`.
    pub profile: String,
    /// Models served.
    pub models: Vec<String>,
    /// Weight in the epoch group.
    pub weight: u64,
    /// Requests started on it.
    pub assigned: u64,
    /// Answered in time.
    pub finished: u64,
    /// Expired or reported failed.
    pub missed: u64,
    /// Entries into the state Excluded, failed probes included.
    pub exclusions: u64,
    /// Probes that ended in Healthy.
    pub probes_passed: u64,
    /// Probes that ended in Excluded.
    pub probes_failed: u64,
    /// Blocks at whose end it was Excluded for at least one model.
    pub blocks_excluded: u64,
    /// State at the end; the worst over its models.
    pub state: State,
    /// Block in which the profile's fault begins.
    pub first_fault_height: Option<i64>,
    /// Block in which an (epoch, model) entry of it first reached five misses in a row, counted from outcomes.
    pub fifth_consecutive_miss_height: Option<i64>,
    /// Block in which an entry of it was first excluded.
    pub first_exclusion_height: Option<i64>,
    /// Consecutive misses of that entry up to the block before.
    pub misses_before_first_exclusion: Option<u64>,
    /// Spans of blocks in which the fault is present, first and last counted.
    pub fault_spans: Vec<(i64, i64)>,
    /// Where its misses fell: (first block of the step, misses), in steps as long as `series.step` or longer.
    pub misses_at: Vec<(i64, u64)>,
}

/// Transactions in blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxCounts {
    /// In a block, code 0.
    pub delivered: u64,
    /// In a block or refused by CheckTx, any other code.
    pub failed: u64,
    /// Delivered and failed, a second of the machine's time.
    pub per_second: u64,
}

/// Milliseconds, three decimals.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockTimes {
    /// Median of FinalizeBlock.
    pub finalize_p50: f64,
    /// 99th percentile of FinalizeBlock.
    pub finalize_p99: f64,
    /// Median of Commit.
    pub commit_p50: f64,
    /// 99th percentile of Commit.
    pub commit_p99: f64,
}

/// One change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Block.
    pub height: i64,
    /// Position in `executors`, from 0.
    pub executor: usize,
    /// Model of the entry.
    pub model: String,
    /// State before.
    pub from: State,
    /// State after.
    pub to: State,
    /// Why: the rule or the cause that the breaker's event names; `epoch` for the switch of an epoch.
    pub rule: String,
}

/// The run over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// Blocks in one point.
    pub step: u64,
    /// Points in order; one without any request is left out unless states changed in it.
    pub points: Vec<Point>,
}

/// Some consecutive blocks of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// First block.
    pub height: i64,
    /// Requests started.
    pub started: u64,
    /// Requests answered.
    pub finished: u64,
    /// Requests missed.
    pub missed: u64,
    /// Requests refused for good.
    pub refused: u64,
    /// Executors healthy for all their models at the end of the last block.
    pub healthy: u64,
    /// Executors in probe for a model and excluded for none.
    pub probe: u64,
    /// Executors excluded for a model.
    pub excluded: u64,
}

impl Report {
    /// Joins the runs of `--compare`: the one with `preset` leads, `arms` holds all. `None` without such a run.
    pub fn compared(arms: Vec<Report>, preset: &str) -> Option<Report> {
        let mut leading = arms.iter().find(|arm| arm.preset == preset)?.clone();
        leading.arms = arms;
        Some(leading)
    }

    /// Verifies all that must add up, in every arm.
    pub fn check(&self) -> Result<(), ReportError> {
        let mut faults = Vec::new();
        self.check_one("", &mut faults);
        for arm in &self.arms {
            let name = format!("arm {}: ", arm.preset);
            arm.check_one(&name, &mut faults);
            if arm.trace != self.trace || arm.seed != self.seed {
                faults.push(format!("{name}its input or seed differ from the leading run's"));
            }
            if arm.requests.offered != self.requests.offered {
                let (here, there) = (arm.requests.offered, self.requests.offered);
                faults.push(format!("{name}{here} requests offered, {there} in the leading run"));
            }
        }
        if !self.arms.is_empty() && !self.arms.iter().any(|arm| arm.app_hash == self.app_hash) {
            faults.push("no arm has the app hash of the leading run".to_owned());
        }
        if faults.is_empty() { Ok(()) } else { Err(ReportError::Contradiction { faults }) }
    }

    fn check_one(&self, name: &str, faults: &mut Vec<String>) {
        let r = &self.requests;
        let sum = |part: fn(&ExecutorReport) -> u64| self.executors.iter().map(part).sum::<u64>();
        let over_time = |part: fn(&Point) -> u64| self.series.points.iter().map(part).sum::<u64>();
        let equalities = [
            ("requests offered", r.offered, "started + refused", r.started + r.refused),
            (
                "requests started",
                r.started,
                "finished + missed + released + pending",
                r.finished + r.missed + r.released + r.pending,
            ),
            ("requests started", r.started, "the sum of assigned", sum(|e| e.assigned)),
            ("requests finished", r.finished, "the sum over executors", sum(|e| e.finished)),
            ("requests missed", r.missed, "the sum over executors", sum(|e| e.missed)),
            ("requests started", r.started, "the sum over blocks", over_time(|p| p.started)),
            ("requests finished", r.finished, "the sum over blocks", over_time(|p| p.finished)),
            ("requests missed", r.missed, "the sum over blocks", over_time(|p| p.missed)),
            ("requests refused", r.refused, "the sum over blocks", over_time(|p| p.refused)),
            (
                "miss_rate_bp",
                self.miss_rate_bp,
                "10,000 * missed / (finished + missed)",
                miss_rate_bp(r.finished, r.missed),
            ),
        ];
        for (what, value, of, other) in equalities {
            if value != other {
                faults.push(format!("{name}{what} is {value}, but {of} is {other}"));
            }
        }
        if r.offered > self.trace.rows {
            faults.push(format!("{name}{} requests offered from {} rows", r.offered, self.trace.rows));
        }
        let draws = &self.draws;
        if draws.total < r.started || draws.probe + draws.fallback > draws.total {
            faults.push(format!("{name}draws {draws:?} do not cover {} started requests", r.started));
        }
        for (what, digest) in [("app_hash", &self.app_hash), ("trace sha256", &self.trace.sha256)] {
            if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
                faults.push(format!("{name}{what} is no SHA-256 in hex: {digest}"));
            }
        }
        for (index, executor) in self.executors.iter().enumerate() {
            self.check_executor(&format!("{name}executor {index}: "), executor, faults);
        }
    }

    fn check_executor(&self, name: &str, executor: &ExecutorReport, faults: &mut Vec<String>) {
        if executor.finished + executor.missed > executor.assigned {
            faults.push(format!("{name}more requests ended than were assigned"));
        }
        let heights = [
            ("first_fault_height", executor.first_fault_height),
            ("fifth_consecutive_miss_height", executor.fifth_consecutive_miss_height),
            ("first_exclusion_height", executor.first_exclusion_height),
        ];
        for (what, height) in heights {
            if let Some(height) = height
                && !u64::try_from(height).is_ok_and(|height| (1..=self.blocks).contains(&height))
            {
                faults.push(format!("{name}{what} {height} lies outside the run"));
            }
        }
        let excluded = executor.exclusions > 0;
        if executor.first_exclusion_height.is_some() != excluded
            || executor.misses_before_first_exclusion.is_some() != excluded
        {
            faults.push(format!("{name}{} exclusions contradict the first one", executor.exclusions));
        }
        if executor.probes_failed > executor.exclusions || executor.blocks_excluded > self.blocks {
            faults.push(format!("{name}more failed probes than exclusions, or blocks than the run has"));
        }
        let placed: u64 = executor.misses_at.iter().map(|(_, misses)| misses).sum();
        if placed != executor.missed {
            faults.push(format!("{name}{} misses, but {placed} have a block", executor.missed));
        }
    }

    /// The report as JSON with fields in a fixed order, ending in a line end.
    pub fn to_json(&self) -> Result<String, ReportError> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| ReportError::Write { file: "report.json".to_owned(), source: error.into() })?;
        text.push('\n');
        Ok(text)
    }

    /// Writes `report.json`, `timeline.svg` and `report.html` into `folder`, which is made if missing.
    ///
    /// Each file appears whole or not at all.
    pub fn write_to(&self, folder: &Path) -> Result<[PathBuf; 3], ReportError> {
        fs::create_dir_all(folder)
            .map_err(|source| ReportError::Write { file: folder.display().to_string(), source })?;
        let files = [
            (folder.join("report.json"), self.to_json()?),
            (folder.join("timeline.svg"), super::svg::timeline(self)),
            (folder.join("report.html"), super::html::page(self)),
        ];
        for (path, text) in &files {
            write_whole(path, text.as_bytes(), false)
                .map_err(|source| ReportError::Write { file: path.display().to_string(), source })?;
        }
        Ok(files.map(|(path, _)| path))
    }
}

/// 10,000 · missed / (finished + missed), rounded down; 0 if nothing ended.
pub fn miss_rate_bp(finished: u64, missed: u64) -> u64 {
    let ended = u128::from(finished) + u128::from(missed);
    u64::try_from((u128::from(missed) * 10_000).checked_div(ended).unwrap_or(0)).unwrap_or(10_000)
}

/// 1234 in 10,000 as "12.34 %".
pub fn per_cent(basis_points: u64) -> String {
    format!("{}.{:02} %", basis_points / 100, basis_points % 100)
}

/// 1234567 as "1,234,567".
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What a run is, known before its first block.
#[derive(Debug, Clone)]
pub struct RunInfo {
    /// Version of the program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// `--seed`.
    pub seed: u64,
    /// `off`, `seed` or `recommended`.
    pub preset: String,
    /// The input.
    pub trace: TraceInfo,
    /// `--block-seconds`.
    pub block_seconds: u64,
    /// Blocks the run will have.
    pub run_blocks: u64,
}

/// Nearest-rank percentile of microseconds, in milliseconds; 0 without values. Sorts its argument.
fn percentile_ms(values_us: &mut [u32], per_cent: usize) -> f64 {
    values_us.sort_unstable();
    let rank = (values_us.len() * per_cent).div_ceil(100).max(1);
    values_us.get(rank - 1).map_or(0.0, |value| f64::from(*value) / 1000.0)
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
