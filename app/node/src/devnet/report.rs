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

/// Counts a run for its [`Report`]. Between two calls of [`Recorder::end_block`] lies one block, and the order of
/// the other calls inside it does not matter.
#[derive(Debug)]
pub struct Recorder {
    info: RunInfo,
    executors: Vec<ExecutorReport>,
    miss_steps: Vec<Steps<u64>>,
    points: Steps<Point>,
    requests: RequestCounts,
    draws: DrawCounts,
    tx: TxCounts,
    transitions: Vec<Transition>,
    transitions_omitted: u64,
    invariant_checks: u64,
    blocks: u64,
    finalize_us: Vec<u32>,
    commit_us: Vec<u32>,
    /// Entries that are not Healthy.
    states: BTreeMap<(usize, String), State>,
    /// Epoch of the block.
    epoch: u64,
    /// Consecutive misses of each (executor, epoch, model), if any.
    streaks: BTreeMap<(usize, u64, String), u64>,
    /// Finished and missed of each (executor, epoch, model) in this block.
    tallies: BTreeMap<(usize, u64, String), (u64, u64)>,
    now: Point,
    states_changed: bool,
}

impl Recorder {
    /// Begins a run over `executors`, each with its address, in the order of `--executors`.
    ///
    /// Fails as [`Profile::resolve`](super::executors::Profile::resolve) does.
    pub fn new(info: RunInfo, executors: &[(String, ExecutorSpec)]) -> Result<Self, SpecError> {
        let run_blocks = info.run_blocks;
        let executors = executors
            .iter()
            .map(|(address, spec)| {
                let profile = spec.profile.resolve(run_blocks)?;
                Ok(ExecutorReport {
                    address: address.clone(),
                    profile: spec.profile.to_string(),
                    models: spec.models.clone(),
                    weight: spec.weight,
                    assigned: 0,
                    finished: 0,
                    missed: 0,
                    exclusions: 0,
                    probes_passed: 0,
                    probes_failed: 0,
                    blocks_excluded: 0,
                    state: State::Healthy,
                    first_fault_height: profile.first_fault_block(run_blocks),
                    fifth_consecutive_miss_height: None,
                    first_exclusion_height: None,
                    misses_before_first_exclusion: None,
                    fault_spans: profile.fault_spans(run_blocks, MAX_FAULT_SPANS),
                    misses_at: Vec::new(),
                })
            })
            .collect::<Result<Vec<_>, SpecError>>()?;
        Ok(Recorder {
            miss_steps: executors.iter().map(|_| Steps::new()).collect(),
            executors,
            info,
            points: Steps::new(),
            requests: RequestCounts::default(),
            draws: DrawCounts::default(),
            tx: TxCounts::default(),
            transitions: Vec::new(),
            transitions_omitted: 0,
            invariant_checks: 0,
            blocks: 0,
            finalize_us: Vec::new(),
            commit_us: Vec::new(),
            states: BTreeMap::new(),
            epoch: 0,
            streaks: BTreeMap::new(),
            tallies: BTreeMap::new(),
            now: Point::default(),
            states_changed: false,
        })
    }

    /// A request of the input fell into this block; counted once, not for each try.
    pub fn offered(&mut self) {
        self.requests.offered += 1;
    }

    /// `GetRandomExecutor` answered from `lane`.
    pub fn drawn(&mut self, lane: Lane) {
        self.draws.total += 1;
        match lane {
            Lane::Healthy => {}
            Lane::Probe => self.draws.probe += 1,
            Lane::Fallback => self.draws.fallback += 1,
        }
    }

    /// A request was given up after its last try.
    pub fn refused(&mut self) {
        self.requests.refused += 1;
        self.now.refused += 1;
    }

    /// The chain admitted a Start on `executor` (position in the list).
    pub fn started(&mut self, executor: usize) {
        self.requests.started += 1;
        self.now.started += 1;
        if let Some(executor) = self.executors.get_mut(executor) {
            executor.assigned += 1;
        }
    }

    /// A started request of `executor` ended; `epoch` is the one in its stamp.
    pub fn outcome(&mut self, executor: usize, model: &str, epoch: u64, outcome: Outcome) {
        let Some(report) = self.executors.get_mut(executor) else {
            return;
        };
        let tally = match outcome {
            Outcome::Released => {
                self.requests.released += 1;
                return;
            }
            Outcome::Finished => {
                self.requests.finished += 1;
                self.now.finished += 1;
                report.finished += 1;
                (1, 0)
            }
            Outcome::Missed => {
                self.requests.missed += 1;
                self.now.missed += 1;
                report.missed += 1;
                (0, 1)
            }
        };
        let sum = self.tallies.entry((executor, epoch, model.to_owned())).or_default();
        *sum = (sum.0 + tally.0, sum.1 + tally.1);
    }

    /// The breaker moved an entry in this block. `rule` is the rule or cause its event names.
    pub fn transition(&mut self, executor: usize, epoch: u64, model: &str, to: State, rule: &str) {
        let height = self.height();
        let key = (executor, model.to_owned());
        let from = self.states.get(&key).copied().unwrap_or(State::Healthy);
        let Some(report) = self.executors.get_mut(executor) else {
            return;
        };
        match (from, to) {
            (State::ProbeClaimed, State::Healthy) => report.probes_passed += 1,
            (State::ProbeClaimed, State::Excluded) if rule != "override" => report.probes_failed += 1,
            _ => {}
        }
        if to == State::Excluded {
            report.exclusions += 1;
            if report.first_exclusion_height.is_none() {
                // Outcomes of this block enter the streaks at its end, so these are the misses before it.
                let entry = (executor, epoch, model.to_owned());
                report.first_exclusion_height = Some(height);
                report.misses_before_first_exclusion = Some(self.streaks.get(&entry).copied().unwrap_or(0));
            }
        }
        self.note(Transition { height, executor, model: model.to_owned(), from, to, rule: rule.to_owned() });
        if to == State::Healthy {
            self.states.remove(&key);
        } else {
            self.states.insert(key, to);
        }
    }

    /// A new epoch began in this block: every entry is Healthy again. Call it before the block's transitions.
    pub fn epoch_began(&mut self) {
        let height = self.height();
        self.epoch += 1;
        self.streaks.clear();
        for ((executor, model), from) in std::mem::take(&mut self.states) {
            self.note(Transition {
                height,
                executor,
                model,
                from,
                to: State::Healthy,
                rule: "epoch".to_owned(),
            });
        }
    }

    /// A transaction was executed in a block or refused by CheckTx.
    pub fn transaction(&mut self, ok: bool) {
        if ok {
            self.tx.delivered += 1;
        } else {
            self.tx.failed += 1;
        }
    }

    /// Invariants of the chain were checked, and held.
    pub fn invariants_held(&mut self, checks: u64) {
        self.invariant_checks += checks;
    }

    /// Ends the current block; the first call ends block 1.
    pub fn end_block(&mut self, finalize_us: u64, commit_us: u64) {
        self.finalize_us.push(u32::try_from(finalize_us).unwrap_or(u32::MAX));
        self.commit_us.push(u32::try_from(commit_us).unwrap_or(u32::MAX));
        self.end_untimed_block();
    }

    /// The same for a block of which nobody knows how long it took.
    pub fn end_untimed_block(&mut self) {
        let height = self.height();
        for (entry, (finished, missed)) in std::mem::take(&mut self.tallies) {
            let executor = entry.0;
            if missed > 0
                && let Some(steps) = self.miss_steps.get_mut(executor)
            {
                steps.add(height, &missed, |sum, more| *sum += more);
            }
            if entry.1 < self.epoch {
                // Work of an epoch that is over: its entry is gone, nobody could act on it.
                continue;
            }
            if finished > 0 {
                self.streaks.remove(&entry);
                continue;
            }
            let streak = self.streaks.entry(entry).or_default();
            *streak += missed;
            if *streak >= FAILED_AFTER_MISSES
                && let Some(report) = self.executors.get_mut(executor)
            {
                report.fifth_consecutive_miss_height.get_or_insert(height);
            }
        }
        let mut worst: BTreeMap<usize, State> = BTreeMap::new();
        for ((executor, _), state) in &self.states {
            let seen = worst.entry(*executor).or_insert(*state);
            *seen = (*seen).max(*state);
        }
        for (executor, state) in &worst {
            if *state == State::Excluded {
                self.now.excluded += 1;
                if let Some(report) = self.executors.get_mut(*executor) {
                    report.blocks_excluded += 1;
                }
            } else {
                self.now.probe += 1;
            }
        }
        self.now.healthy = self.executors.len() as u64 - self.now.probe - self.now.excluded;
        let busy = self.now.started + self.now.finished + self.now.missed + self.now.refused > 0;
        if busy || self.states_changed || height == 1 {
            self.points.add(height, &self.now, |sum, more| {
                sum.started += more.started;
                sum.finished += more.finished;
                sum.missed += more.missed;
                sum.refused += more.refused;
                (sum.healthy, sum.probe, sum.excluded) = (more.healthy, more.probe, more.excluded);
            });
        }
        self.states_changed = false;
        self.now = Point::default();
        self.blocks += 1;
    }

    /// What has been counted so far, for the live view.
    pub fn requests(&self) -> &RequestCounts {
        &self.requests
    }

    /// Transactions so far.
    pub fn transactions(&self) -> &TxCounts {
        &self.tx
    }

    /// The executors so far; `state` and `misses_at` are filled in by [`Recorder::finish`] only.
    pub fn executors(&self) -> &[ExecutorReport] {
        &self.executors
    }

    /// State of an executor now, the worst over its models.
    pub fn state(&self, executor: usize) -> State {
        let from = (executor, String::new());
        self.states
            .range(from..)
            .take_while(|((at, _), _)| *at == executor)
            .map(|(_, state)| *state)
            .max()
            .unwrap_or(State::Healthy)
    }

    /// The last `count` transitions that the report lists, oldest first.
    pub fn last_transitions(&self, count: usize) -> &[Transition] {
        &self.transitions[self.transitions.len().saturating_sub(count)..]
    }

    /// The changes of state after the first `seen` ones.
    pub fn transitions_since(&self, seen: usize) -> &[Transition] {
        self.transitions.get(seen..).unwrap_or_default()
    }

    /// Ends the run. `pending` is the number of requests the chain still holds open, `elapsed_ms` the machine's
    /// time from the first block to the last.
    pub fn finish(mut self, app_hash: String, pending: u64, elapsed_ms: u64) -> Report {
        self.requests.pending = pending;
        let all = u128::from(self.tx.delivered) + u128::from(self.tx.failed);
        self.tx.per_second = u64::try_from(all * 1000 / u128::from(elapsed_ms.max(1))).unwrap_or(u64::MAX);
        for index in 0..self.executors.len() {
            let state = self.state(index);
            let executor = &mut self.executors[index];
            executor.state = state;
            executor.misses_at =
                self.miss_steps[index].sums.iter().map(|(height, misses)| (*height, *misses)).collect();
        }
        let block_ms = BlockTimes {
            finalize_p50: percentile_ms(&mut self.finalize_us, 50),
            finalize_p99: percentile_ms(&mut self.finalize_us, 99),
            commit_p50: percentile_ms(&mut self.commit_us, 50),
            commit_p99: percentile_ms(&mut self.commit_us, 99),
        };
        let points =
            self.points.sums.iter().map(|(height, point)| Point { height: *height, ..*point }).collect();
        Report {
            version: self.info.version,
            command: self.info.command,
            seed: self.info.seed,
            preset: self.info.preset,
            trace: self.info.trace,
            blocks: self.blocks,
            block_seconds: self.info.block_seconds,
            app_hash,
            miss_rate_bp: miss_rate_bp(self.requests.finished, self.requests.missed),
            requests: self.requests,
            draws: self.draws,
            executors: self.executors,
            tx: self.tx,
            block_ms,
            invariant_checks: self.invariant_checks,
            transitions: self.transitions,
            transitions_omitted: self.transitions_omitted,
            series: Series { step: u64::try_from(self.points.step).unwrap_or(1), points },
            measured: MEASURED.map(str::to_owned).to_vec(),
            arms: Vec::new(),
        }
    }

    fn height(&self) -> i64 {
        i64::try_from(self.blocks).unwrap_or(i64::MAX - 1) + 1
    }

    fn note(&mut self, transition: Transition) {
        self.states_changed = true;
        if self.transitions.len() < MAX_TRANSITIONS {
            self.transitions.push(transition);
        } else {
            self.transitions_omitted += 1;
        }
    }
}

/// Sums over steps of blocks; when there are too many, the steps double.
#[derive(Debug)]
struct Steps<T> {
    step: i64,
    /// By first height of the step.
    sums: BTreeMap<i64, T>,
}

impl<T: Clone> Steps<T> {
    fn new() -> Self {
        Steps { step: 1, sums: BTreeMap::new() }
    }

    fn add(&mut self, height: i64, value: &T, join: fn(&mut T, &T)) {
        Self::add_to(&mut self.sums, self.step, height, value, join);
        while self.sums.len() > MAX_POINTS {
            self.step *= 2;
            for (height, value) in std::mem::take(&mut self.sums) {
                Self::add_to(&mut self.sums, self.step, height, &value, join);
            }
        }
    }

    fn add_to(sums: &mut BTreeMap<i64, T>, step: i64, height: i64, value: &T, join: fn(&mut T, &T)) {
        let first = (height - 1) / step * step + 1;
        match sums.get_mut(&first) {
            Some(sum) => join(sum, value),
            None => {
                sums.insert(first, value.clone());
            }
        }
    }
}

/// Nearest-rank percentile of microseconds, in milliseconds; 0 without values. Sorts its argument.
fn percentile_ms(values_us: &mut [u32], per_cent: usize) -> f64 {
    values_us.sort_unstable();
    let rank = (values_us.len() * per_cent).div_ceil(100).max(1);
    values_us.get(rank - 1).map_or(0.0, |value| f64::from(*value) / 1000.0)
}

/// A made-up run in which everything happens, for the tests of this folder.
#[cfg(test)]
pub(crate) mod sample {
    use super::super::executors::{Action, behaviour, default_executors};
    use super::super::workload::{Input, SplitMix64, model_of_request};
    use super::*;

    /// Runs the default executors over the built-in workload with a breaker of a few lines. It is no model of
    /// the real one; it only makes every state, rule and outcome occur.
    pub(crate) fn report(preset: &str) -> Report {
        const EXPIRATION: i64 = 20;
        let input = Input::builtin(1);
        let blocks = input.last_block(5_000_000) + 21;
        let specs: Vec<(String, ExecutorSpec)> = default_executors()
            .into_iter()
            .enumerate()
            .map(|(index, spec)| (format!("hold1{index:0>38}"), spec))
            .collect();
        let info = RunInfo {
            version: "0.1.0".to_owned(),
            command: "holdfastd devnet --headless --report out".to_owned(),
            seed: 1,
            preset: preset.to_owned(),
            trace: TraceInfo {
                source: input.source(),
                rows: input.rows(),
                sha256: input.sha256().to_owned(),
                bad_rows: 0,
                bad_row_samples: Vec::new(),
            },
            block_seconds: 5,
            run_blocks: blocks,
        };
        let profiles: Vec<_> =
            specs.iter().map(|(_, spec)| spec.profile.resolve(blocks).expect("resolves")).collect();
        let mut recorder = Recorder::new(info, &specs).expect("recorder");
        let limit = match preset {
            "off" => u64::MAX,
            "seed" => 9,
            _ => 5,
        };
        // (executor, model) -> state, end of cooldown, cooldown, misses in a row
        let mut entries = vec![[(State::Healthy, 0i64, 50i64, 0u64); 2]; specs.len()];
        let mut due: BTreeMap<i64, Vec<(usize, usize, bool)>> = BTreeMap::new();
        let mut stream = SplitMix64::new(1);
        let mut requests = input.requests().expect("open").peekable();
        let models = ["model-a", "model-b"];
        let mut open = 0u64;
        for height in 1..=i64::try_from(blocks).expect("small") {
            for (executor, entry) in entries.iter_mut().enumerate() {
                for (model, entry) in entry.iter_mut().enumerate() {
                    if entry.0 == State::Excluded && entry.1 <= height {
                        entry.0 = State::Probe;
                        recorder.transition(executor, 0, models[model], State::Probe, "cooldown");
                    }
                }
            }
            while let Some(request) = requests.next_if(|request| {
                request.as_ref().expect("row").arrival_us / 5_000_000 + 1 == height.unsigned_abs()
            }) {
                let request = request.expect("row");
                recorder.offered();
                let model = model_of_request(1, request.index, 2);
                let probe = (0..specs.len()).find(|e| entries[*e][model].0 == State::Probe);
                let executor = match probe {
                    Some(executor) if stream.below(20) == 0 => {
                        recorder.drawn(Lane::Probe);
                        entries[executor][model].0 = State::ProbeClaimed;
                        recorder.transition(executor, 0, models[model], State::ProbeClaimed, "start");
                        executor
                    }
                    _ => {
                        recorder.drawn(Lane::Healthy);
                        loop {
                            let executor = usize::try_from(stream.below(20)).expect("small");
                            if entries[executor][model].0 == State::Healthy {
                                break executor;
                            }
                        }
                    }
                };
                recorder.transaction(true);
                recorder.started(executor);
                open += 1;
                let (at, ok) = match behaviour(&profiles[executor], height, height + 1, stream.below(10_000))
                {
                    Action::Answer => (height + 1, true),
                    Action::ReportFailure => (height + 1, false),
                    _ => (height + EXPIRATION, false),
                };
                due.entry(at).or_default().push((executor, model, ok));
            }
            let ended = due.remove(&height).unwrap_or_default();
            open -= ended.len() as u64;
            for (executor, model, ok) in &ended {
                recorder.transaction(*ok);
                let outcome = if *ok { Outcome::Finished } else { Outcome::Missed };
                recorder.outcome(*executor, models[*model], 0, outcome);
                let entry = &mut entries[*executor][*model];
                entry.3 = if *ok { 0 } else { entry.3 + 1 };
                let to = match (entry.0, *ok) {
                    (State::ProbeClaimed, true) => State::Healthy,
                    (State::ProbeClaimed, false) => State::Excluded,
                    (State::Healthy, false) if entry.3 >= limit => State::Excluded,
                    _ => continue,
                };
                let rule = match (entry.0, to) {
                    (State::ProbeClaimed, _) => "probe",
                    _ => "streak",
                };
                if to == State::Excluded {
                    entry.2 = if entry.0 == State::Healthy { 50 } else { (entry.2 * 2).min(500) };
                    entry.1 = height + entry.2;
                }
                (entry.0, entry.3) = (to, 0);
                recorder.transition(*executor, 0, models[*model], to, rule);
            }
            recorder.invariants_held(3);
            recorder.end_block(1_500 + stream.below(900), 700 + stream.below(400));
        }
        let report = recorder.finish("ab".repeat(32), open, 12_345);
        report.check().expect("the sample adds up");
        report
    }

    /// The three arms together.
    pub(crate) fn compared() -> Report {
        let arms = ["off", "seed", "recommended"].map(report).to_vec();
        Report::compared(arms, "recommended").expect("leading arm")
    }
}

#[cfg(test)]
mod tests {
    use super::super::executors::parse_spec;
    use super::*;

    fn recorder(spec: &str, run_blocks: u64) -> Recorder {
        let specs: Vec<(String, ExecutorSpec)> =
            parse_spec(spec).expect("spec").into_iter().map(|spec| ("hold1x".to_owned(), spec)).collect();
        let info = RunInfo {
            version: "0".to_owned(),
            command: "holdfastd devnet".to_owned(),
            seed: 1,
            preset: "recommended".to_owned(),
            trace: TraceInfo {
                source: "t.csv".to_owned(),
                rows: 1_000,
                sha256: "0".repeat(64),
                bad_rows: 0,
                bad_row_samples: Vec::new(),
            },
            block_seconds: 5,
            run_blocks,
        };
        Recorder::new(info, &specs).expect("recorder")
    }

    fn start(recorder: &mut Recorder, executor: usize, count: usize) {
        for _ in 0..count {
            recorder.offered();
            recorder.drawn(Lane::Healthy);
            recorder.started(executor);
        }
    }

    fn faults(report: &Report) -> Vec<String> {
        match report.check() {
            Err(ReportError::Contradiction { faults }) => faults,
            Err(other) => panic!("{other}"),
            Ok(()) => Vec::new(),
        }
    }

    #[test]
    fn the_fifth_miss_is_that_of_one_entry_and_a_success_in_the_block_resets_it() {
        let mut run = recorder("dying(2)", 100);
        start(&mut run, 0, 14);
        let miss = |run: &mut Recorder, model: &str, epoch: u64, count: usize| {
            for _ in 0..count {
                run.outcome(0, model, epoch, Outcome::Missed);
            }
        };
        // Block 1: four of model a, four of model b: no entry has five.
        miss(&mut run, "a", 0, 4);
        miss(&mut run, "b", 0, 4);
        run.end_block(1, 1);
        // Block 2: a fifth miss of a, but a success in the same block, in whatever order.
        run.outcome(0, "a", 0, Outcome::Finished);
        miss(&mut run, "a", 0, 1);
        run.end_block(1, 1);
        // Block 3: another epoch's entry begins at nothing.
        miss(&mut run, "b", 1, 2);
        run.end_block(1, 1);
        assert_eq!(run.executors()[0].fifth_consecutive_miss_height, None);
        // Block 4: released work neither adds nor resets; the fifth of b lands.
        run.outcome(0, "b", 0, Outcome::Released);
        miss(&mut run, "b", 0, 1);
        run.end_block(1, 1);
        assert_eq!(run.executors()[0].fifth_consecutive_miss_height, Some(4));
        let report = run.finish("f".repeat(64), 0, 1);
        assert_eq!(faults(&report), Vec::<String>::new());
        assert_eq!(report.requests.missed, 12);
        // 12 of 13: 9230.7 basis points.
        assert_eq!(report.miss_rate_bp, 9_230);
        assert_eq!(report.executors[0].misses_at, [(1, 8), (2, 1), (3, 2), (4, 1)]);
    }

    #[test]
    fn misses_before_the_first_exclusion_leave_out_its_own_block() {
        let mut run = recorder("healthy,dying(2)", 100);
        start(&mut run, 1, 6);
        for _ in 0..4 {
            run.outcome(1, "a", 0, Outcome::Missed);
        }
        run.end_block(1, 1);
        // The order of outcome and transition inside the block makes no difference.
        run.transition(1, 0, "a", State::Excluded, "streak");
        run.outcome(1, "a", 0, Outcome::Missed);
        run.end_block(1, 1);
        run.end_block(1, 1);
        run.transition(1, 0, "a", State::Probe, "cooldown");
        run.end_block(1, 1);
        run.transition(1, 0, "a", State::ProbeClaimed, "start");
        assert_eq!(run.state(1), State::ProbeClaimed);
        run.transition(1, 0, "a", State::Excluded, "probe");
        run.outcome(1, "a", 0, Outcome::Missed);
        run.end_block(1, 1);
        assert_eq!((run.state(0), run.state(1)), (State::Healthy, State::Excluded));
        let report = run.finish("f".repeat(64), 0, 1);
        assert_eq!(faults(&report), Vec::<String>::new());
        let executor = &report.executors[1];
        assert_eq!(executor.first_exclusion_height, Some(2));
        assert_eq!(executor.misses_before_first_exclusion, Some(4));
        assert_eq!(executor.fifth_consecutive_miss_height, Some(2));
        assert_eq!((executor.exclusions, executor.probes_failed, executor.probes_passed), (2, 1, 0));
        // Blocks 2, 3 and 5.
        assert_eq!(executor.blocks_excluded, 3);
        assert_eq!(executor.state, State::Excluded);
        assert_eq!(report.executors[0].first_exclusion_height, None);
        assert_eq!(report.transitions.len(), 4);
        assert_eq!((report.transitions[1].from, report.transitions[1].height), (State::Excluded, 4));
    }

    #[test]
    fn misses_of_an_epoch_that_is_over_are_counted_but_no_fifth_in_a_row() {
        let mut run = recorder("dying(2)", 100);
        start(&mut run, 0, 9);
        for _ in 0..4 {
            run.outcome(0, "a", 0, Outcome::Missed);
        }
        run.end_block(1, 1);
        run.epoch_began();
        for _ in 0..5 {
            run.outcome(0, "a", 0, Outcome::Missed);
        }
        run.end_block(1, 1);
        assert_eq!(run.executors()[0].fifth_consecutive_miss_height, None);
        let report = run.finish("f".repeat(64), 0, 1);
        assert_eq!(
            (report.requests.missed, report.executors[0].misses_at.as_slice()),
            (9, [(1, 4), (2, 5)].as_slice())
        );
    }

    #[test]
    fn a_probe_that_passes_and_an_epoch_switch_both_end_in_healthy() {
        let mut run = recorder("2*healthy", 100);
        run.transition(0, 0, "a", State::Excluded, "rate");
        run.transition(1, 0, "b", State::Excluded, "rate");
        run.end_block(1, 1);
        run.transition(0, 0, "a", State::Probe, "cooldown");
        run.transition(0, 0, "a", State::ProbeClaimed, "start");
        run.transition(0, 0, "a", State::Healthy, "probe");
        run.end_block(1, 1);
        run.epoch_began();
        run.end_block(1, 1);
        let report = run.finish("f".repeat(64), 0, 1);
        assert_eq!(report.executors[0].probes_passed, 1);
        assert_eq!((report.executors[1].state, report.executors[1].blocks_excluded), (State::Healthy, 2));
        let last = report.transitions.last().expect("one");
        assert_eq!((last.height, last.executor, last.rule.as_str()), (3, 1, "epoch"));
        let states: Vec<_> = report.series.points.iter().map(|p| (p.healthy, p.excluded)).collect();
        assert_eq!(states, [(0, 2), (1, 1), (2, 0)]);
    }

    #[test]
    fn every_equality_that_is_broken_is_named() {
        let good = sample::report("recommended");
        assert_eq!(faults(&good), Vec::<String>::new());
        let broken = |change: fn(&mut Report), text: &str| {
            let mut report = good.clone();
            change(&mut report);
            let faults = faults(&report);
            assert!(faults.iter().any(|fault| fault.contains(text)), "{text}: {faults:?}");
        };
        broken(|r| r.requests.offered += 1, "requests offered is");
        broken(|r| r.requests.refused += 1, "but started + refused is");
        broken(|r| r.requests.pending += 1, "but finished + missed + released + pending is");
        broken(|r| r.requests.released += 1, "but finished + missed + released + pending is");
        broken(|r| r.executors[0].assigned += 1, "but the sum of assigned is");
        broken(|r| r.executors[0].finished -= 1, "requests finished is");
        broken(|r| r.executors[12].missed += 1, "requests missed is");
        broken(|r| r.executors[12].misses_at.clear(), "have a block");
        broken(|r| r.miss_rate_bp += 1, "miss_rate_bp is");
        broken(|r| r.series.points[0].started += 1, "the sum over blocks is");
        broken(|r| r.draws.total = 0, "draws");
        broken(|r| r.trace.rows = 1, "from 1 rows");
        broken(|r| r.app_hash.clear(), "app_hash is no SHA-256");
        broken(|r| r.executors[12].first_exclusion_height = Some(100_000), "outside the run");
        broken(|r| r.executors[12].misses_before_first_exclusion = None, "contradict the first one");
        broken(|r| r.executors[12].probes_failed = 1_000, "more failed probes");
        broken(|r| r.executors[0].assigned = 0, "more requests ended than were assigned");
        let mut compared = sample::compared();
        assert_eq!(faults(&compared), Vec::<String>::new());
        compared.arms[0].seed = 2;
        compared.arms[1].miss_rate_bp = 0;
        let found = faults(&compared);
        assert!(found[0].starts_with("arm off: its input or seed differ"), "{found:?}");
        assert!(found[1].starts_with("arm seed: miss_rate_bp is 0"), "{found:?}");
    }

    #[test]
    fn the_json_has_every_required_field_with_its_name_and_null_heights() {
        let report = sample::compared();
        let json: serde_json::Value = serde_json::from_str(&report.to_json().expect("json")).expect("parse");
        for arm in [&json, &json["arms"][0], &json["arms"][2]] {
            for path in [
                "/seed",
                "/preset",
                "/trace/source",
                "/trace/rows",
                "/trace/sha256",
                "/blocks",
                "/app_hash",
                "/requests/offered",
                "/requests/started",
                "/requests/finished",
                "/requests/missed",
                "/requests/released",
                "/requests/refused",
                "/requests/pending",
                "/miss_rate_bp",
                "/draws/total",
                "/draws/probe",
                "/draws/fallback",
                "/tx/delivered",
                "/tx/failed",
                "/tx/per_second",
                "/block_ms/finalize_p50",
                "/block_ms/finalize_p99",
                "/block_ms/commit_p50",
                "/block_ms/commit_p99",
                "/invariant_checks",
                "/version",
                "/trace/bad_rows",
                "/transitions/0/rule",
                "/series/points/0/healthy",
            ] {
                if path.starts_with("/transitions") && arm["preset"] == "off" {
                    continue;
                }
                assert!(arm.pointer(path).is_some(), "{path}");
            }
            for field in [
                "address",
                "profile",
                "models",
                "weight",
                "assigned",
                "finished",
                "missed",
                "exclusions",
                "probes_passed",
                "probes_failed",
                "blocks_excluded",
                "state",
                "first_fault_height",
                "fifth_consecutive_miss_height",
                "first_exclusion_height",
                "misses_before_first_exclusion",
            ] {
                assert!(arm["executors"][19].get(field).is_some(), "{field}");
            }
        }
        assert!(json["executors"][0]["first_fault_height"].is_null());
        assert_eq!(json["executors"][19]["first_fault_height"], 1);
        assert_eq!(json["executors"][0]["state"], "healthy");
        assert!(json["arms"][0].get("arms").is_none());
        let back: Report = serde_json::from_value(json).expect("reads back");
        assert_eq!(back, report);
    }

    #[test]
    fn the_files_are_written_whole_and_nothing_else_stays_behind() {
        let place = tempfile::tempdir().expect("folder");
        let folder = place.path().join("out/deeper");
        let report = sample::report("recommended");
        let files = report.write_to(&folder).expect("written");
        let again = report.write_to(&folder).expect("written over");
        assert_eq!(files, again);
        let mut names: Vec<_> =
            fs::read_dir(&folder).expect("folder").map(|entry| entry.expect("entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["report.html", "report.json", "timeline.svg"]);
        let text = fs::read_to_string(&files[0]).expect("json");
        assert_eq!(text, report.to_json().expect("json"));
        let error = report.write_to(&files[0]).expect_err("a file is no folder");
        assert_eq!(error.code(), 141);
    }

    #[test]
    fn long_runs_are_told_in_longer_steps_without_losing_a_miss() {
        let mut run = recorder("healthy", 10_000);
        for _ in 0..10_000 {
            start(&mut run, 0, 1);
            run.outcome(0, "a", 0, Outcome::Missed);
            run.end_block(1, 1);
        }
        let report = run.finish("f".repeat(64), 0, 1_000);
        assert_eq!(faults(&report).len(), 1, "only the 1,000 rows are too few");
        assert_eq!(report.series.step, 8);
        assert_eq!(report.series.points.len(), 1_250);
        assert_eq!(report.series.points[1].height, 9);
        assert_eq!(report.executors[0].misses_at.len(), 1_250);
        assert_eq!(report.executors[0].misses_at[0], (1, 8));
    }

    #[test]
    fn transitions_beyond_the_limit_are_counted() {
        let mut run = recorder("healthy", 10_000);
        for _ in 0..MAX_TRANSITIONS / 2 + 3 {
            run.transition(0, 0, "a", State::Excluded, "rate");
            run.transition(0, 0, "a", State::Probe, "cooldown");
        }
        run.end_block(1, 1);
        let report = run.finish("f".repeat(64), 0, 1_000);
        assert_eq!((report.transitions.len(), report.transitions_omitted), (MAX_TRANSITIONS, 6));
        assert_eq!(report.executors[0].exclusions, 10_003);
    }

    #[test]
    fn numbers_read_as_a_person_writes_them() {
        assert_eq!(per_cent(0), "0.00 %");
        assert_eq!(per_cent(1_234), "12.34 %");
        assert_eq!(per_cent(10_000), "100.00 %");
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(8_819), "8,819");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(miss_rate_bp(0, 0), 0);
        assert_eq!(miss_rate_bp(2, 1), 3_333);
        assert_eq!(miss_rate_bp(0, u64::MAX), 10_000);
        assert_eq!(percentile_ms(&mut [], 50), 0.0);
        assert_eq!(percentile_ms(&mut [3_000, 1_000, 2_500], 50), 2.5);
        let mut hundred: Vec<u32> = (1..=100).map(|n| n * 1_000).collect();
        assert_eq!(percentile_ms(&mut hundred, 99), 99.0);
    }
}
