//! How a run goes on after it was killed.
//!
//! A home folder begins with [`FILE`], the settings of the run in it: they decide everything a run does, so whoever goes on
//! must have the same ones. From them the driver is led over the stored blocks again, without a network and without
//! executing anything: it signs what it signed then, takes results and events from the block store, and stands
//! where it stood. Two things cannot be found in a block: which lane a draw came from (and that a draw found nobody), and
//! the machine's time. Both are in the note that is stored in one batch with the block, before it is executed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_app::files::write_whole;
use serde::{Deserialize, Serialize};

use super::config::{DevnetConfig, Preset, Source};
use super::executors::{ExecutorSpec, SpecError, parse_spec};
use super::report::{Lane, TraceInfo};
use super::workload::Input;

/// The settings of a run, in its home folder.
pub const FILE: &str = "devnet.json";
/// What the file is called until it is whole.
pub const UNFINISHED: &str = "devnet.json.part";
/// Version of the file and of the notes.
const FORMAT: u32 = 1;
/// Largest settings file: the most executors, with the most models each.
const MAX_BYTES: u64 = 32 << 20;

/// Code and meaning of every [`RunError`], for the error table of the documentation.
pub const RUN_ERROR_CODES: &[(u32, &str)] = &[
    (151, "run folder cannot be read or written"),
    (152, "run folder holds a run with other settings"),
    (153, "settings of a run folder malformed"),
    (154, "stored blocks do not follow from the run's settings"),
];

/// Why a run cannot go on. [`RunError::code`] is stable.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings cannot be read or written.
    #[error("--home: {}: {source} (devnet error 151); check the folder, its permissions and the free space", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A run with other settings.
    #[error(
        "--resume: the run in {} has other settings: {}; leave those flags out or give another --home (devnet error 152)",
        home.display(), differences.join("; ")
    )]
    Other {
        /// The folder.
        home: PathBuf,
        /// One clause for each setting that differs.
        differences: Vec<String>,
    },
    /// A settings file that no program of this version wrote.
    #[error("--home: {}: {found} (devnet error 153); give the folder of a devnet run, or a new one", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        found: String,
    },
    /// The settings do not lead to the blocks.
    #[error(
        "--resume: stored block {height} does not follow from the run's settings: {found} (devnet error 154); begin in a new --home"
    )]
    Blocks {
        /// The block.
        height: u64,
        /// What is wrong.
        found: String,
    },
}

impl RunError {
    /// The stable code, as listed in [`RUN_ERROR_CODES`].
    pub fn code(&self) -> u32 {
        match self {
            Self::Io { .. } => 151,
            Self::Other { .. } => 152,
            Self::Malformed { .. } => 153,
            Self::Blocks { .. } => 154,
        }
    }
}

/// Where the requests of a stored run come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StoredSource {
    /// `--workload`.
    Workload {
        /// Its seed.
        seed: u64,
    },
    /// `--trace`.
    Trace {
        /// The file as it was named.
        name: String,
        /// Where it is.
        path: PathBuf,
        /// What it held.
        sha256: String,
        /// `--skip-bad-rows`.
        skip_bad_rows: bool,
    },
}

/// The settings of a run that decide what it does, and two that its report needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    format: u32,
    version: String,
    /// The command line that began it.
    pub command: String,
    /// `--report`, from the root.
    pub report: Option<PathBuf>,
    /// `--trace` or `--workload`.
    pub source: StoredSource,
    /// `--blocks`.
    pub blocks: Option<u64>,
    /// `--block-seconds`.
    pub block_seconds: u64,
    /// `--seed`.
    pub seed: u64,
    /// `--preset`.
    pub preset: String,
    /// `--compare`.
    pub compare: bool,
    /// Each executor in the short form.
    executors: Vec<String>,
}

fn short_form(spec: &ExecutorSpec) -> String {
    format!("{}@weight={}@models={}", spec.profile, spec.weight, spec.models.join("+"))
}

impl Stored {
    /// The settings of a run that `config` asks for.
    ///
    /// # Errors
    /// The working folder is gone.
    pub fn of(config: &DevnetConfig, input: &Input) -> Result<Self, RunError> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|source| RunError::Io { file: path.to_owned(), source })
        };
        let source = match &config.source {
            Source::Workload { seed } => StoredSource::Workload { seed: *seed },
            Source::Trace { path, skip_bad_rows } => StoredSource::Trace {
                name: path.display().to_string(),
                path: absolute(path)?,
                sha256: input.sha256().to_owned(),
                skip_bad_rows: *skip_bad_rows,
            },
        };
        Ok(Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: config.command.clone(),
            report: config.report.as_deref().map(absolute).transpose()?,
            source,
            blocks: config.blocks,
            block_seconds: config.block_seconds,
            seed: config.seed,
            preset: config.preset.name().to_owned(),
            compare: config.compare,
            executors: config.executors.iter().map(short_form).collect(),
        })
    }

    /// The settings in `home`; `None` if no run began there.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of ours.
    pub fn read(home: &Path) -> Result<Option<Self>, RunError> {
        let file = home.join(FILE);
        let size = match fs::metadata(&file) {
            Ok(meta) => meta.len(),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(source) => return Err(RunError::Io { file, source }),
        };
        if size > MAX_BYTES {
            let found = format!("{size} bytes are more than settings can have");
            return Err(RunError::Malformed { file, found });
        }
        let bytes = fs::read(&file).map_err(|source| RunError::Io { file: file.clone(), source })?;
        let stored: Self = match serde_json::from_slice(&bytes) {
            Ok(stored) => stored,
            Err(error) => return Err(RunError::Malformed { file, found: error.to_string() }),
        };
        if stored.format != FORMAT {
            let found = format!("format {}, this program knows {FORMAT}", stored.format);
            return Err(RunError::Malformed { file, found });
        }
        let bad = |found: String| RunError::Malformed { file: file.clone(), found };
        stored.executors().map_err(|error| bad(error.to_string()))?;
        stored.preset().ok_or_else(|| bad(format!("preset {:?}", stored.preset)))?;
        Ok(Some(stored))
    }

    /// The settings of the run in `home`: those stored there, which must equal `self` in all that matters; or `self`,
    /// stored now.
    ///
    /// # Errors
    /// A run with other settings, a folder that cannot be read or written.
    pub fn settle(self, home: &Path) -> Result<Self, RunError> {
        if let Some(stored) = Self::read(home)? {
            let differences = stored.differences(&self);
            if differences.is_empty() {
                return Ok(stored);
            }
            return Err(RunError::Other { home: home.to_owned(), differences });
        }
        let file = home.join(FILE);
        let failed = |source| RunError::Io { file: file.clone(), source };
        fs::create_dir_all(home).map_err(failed)?;
        // Fails for a path that is no text only.
        let text = serde_json::to_string_pretty(&self).map_err(|error| failed(error.into()))? + "\n";
        write_whole(&file, text.as_bytes(), false).map_err(failed)?;
        Ok(self)
    }

    /// The executors.
    ///
    /// # Errors
    /// A list that this program did not write.
    pub fn executors(&self) -> Result<Vec<ExecutorSpec>, SpecError> {
        parse_spec(&self.executors.join(","))
    }

    /// The preset; `None` for a name that is none.
    pub fn preset(&self) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == self.preset)
    }

    /// The input as the report of this run tells of it, wherever the file is now.
    pub fn trace(&self, input: &Input) -> TraceInfo {
        let (bad_rows, samples) = input.bad_rows();
        let now = input.source();
        let source = match &self.source {
            StoredSource::Trace { name, .. } => name.clone(),
            StoredSource::Workload { .. } => now.clone(),
        };
        let renamed = samples.iter().map(|sample| match sample.strip_prefix(&now) {
            Some(rest) => format!("{source}{rest}"),
            None => sample.clone(),
        });
        let bad_row_samples = renamed.collect();
        let (rows, sha256) = (input.rows(), input.sha256().to_owned());
        TraceInfo { source, rows, sha256, bad_rows, bad_row_samples }
    }

    /// What `given` asks for otherwise than this run, a clause each.
    fn differences(&self, given: &Self) -> Vec<String> {
        let mut all = Vec::new();
        let mut differ = |flag: &str, has: String, given: String| {
            if has != given {
                all.push(format!("{flag}: the run has {has}, not {given}"));
            }
        };
        differ("holdfastd", format!("version {}", self.version), format!("version {}", given.version));
        let kind = |source: &StoredSource| match source {
            StoredSource::Workload { seed } => format!("workload {seed}"),
            StoredSource::Trace { sha256, .. } => format!("a trace with SHA-256 {sha256}"),
        };
        let flag = match (&self.source, &given.source) {
            (StoredSource::Workload { .. }, StoredSource::Workload { .. }) => "--workload",
            _ => "--trace",
        };
        differ(flag, kind(&self.source), kind(&given.source));
        let skips = |source: &StoredSource| match source {
            StoredSource::Trace { skip_bad_rows: true, .. } => "bad rows skipped".to_owned(),
            _ => "none skipped".to_owned(),
        };
        differ("--skip-bad-rows", skips(&self.source), skips(&given.source));
        let blocks = |blocks: Option<u64>| blocks.map_or("as many as it takes".into(), |n| n.to_string());
        differ("--blocks", blocks(self.blocks), blocks(given.blocks));
        differ("--block-seconds", self.block_seconds.to_string(), given.block_seconds.to_string());
        let counts = (self.executors.len(), given.executors.len());
        let unlike = self.executors.iter().zip(&given.executors).enumerate().find(|(_, (a, b))| a != b);
        match unlike {
            Some((index, (has, given))) => {
                differ(&format!("--executors: #{index}"), has.clone(), given.clone())
            }
            None => differ("--executors", format!("{}", counts.0), format!("{}", counts.1)),
        }
        differ("--preset", self.preset.clone(), given.preset.clone());
        let arms = |compare: bool| if compare { "all presets" } else { "one preset" }.to_owned();
        differ("--compare", arms(self.compare), arms(given.compare));
        differ("--seed", self.seed.to_string(), given.seed.to_string());
        all
    }
}

/// What the driver remembers about a block besides the block.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Note {
    /// Executor (position) and lane of each draw for this block, in order; `None`: nobody was eligible.
    pub draws: Vec<Option<(u32, u8)>>,
    /// How the block before ended; `None` for the first.
    pub before: Option<Ended>,
}

/// What is known of a block only after its commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Ended {
    /// Microseconds of FinalizeBlock and Commit; `None` when a kill came before they were noted.
    pub times_us: Option<(u64, u64)>,
    /// The machine's time at work on the run so far, microseconds.
    pub elapsed_us: u64,
    /// Invariants checked, all of which held.
    pub invariant_checks: u64,
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Borsh of owned plain data cannot fail.
        borsh::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        borsh::from_slice(bytes).ok()
    }
}

/// A lane as a note has it.
pub(crate) fn lane_number(lane: Lane) -> u8 {
    match lane {
        Lane::Healthy => 0,
        Lane::Probe => 1,
        Lane::Fallback => 2,
    }
}

/// And back.
pub(crate) fn numbered_lane(number: u8) -> Option<Lane> {
    [Lane::Healthy, Lane::Probe, Lane::Fallback].get(usize::from(number)).copied()
}

#[cfg(test)]
mod tests {
    use super::super::executors::default_executors;
    use super::*;

    fn config() -> DevnetConfig {
        DevnetConfig {
            source: Source::Workload { seed: 1 },
            blocks: Some(40),
            block_seconds: 5,
            executors: default_executors(),
            preset: Preset::Recommended,
            compare: false,
            seed: 1,
            home: None,
            listen: ([127, 0, 0, 1], 0).into(),
            report: Some("out".into()),
            headless: true,
            realtime: false,
            runner: false,
            command: "holdfastd devnet".into(),
        }
    }

    #[test]
    fn settings_come_back_as_they_were_stored_and_the_first_command_stays() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        assert_eq!(Stored::read(&home).unwrap(), None);
        let input = Input::builtin(1);
        let first = Stored::of(&config(), &input).unwrap();
        assert_eq!(first.clone().settle(&home).unwrap(), first);
        // Left behind by a kill at the very start; it is nobody's.
        fs::write(home.join(UNFINISHED), "{").unwrap();
        let again = DevnetConfig { command: "holdfastd devnet --resume".into(), report: None, ..config() };
        let stored = Stored::of(&again, &input).unwrap().settle(&home).unwrap();
        assert_eq!(stored, first);
        assert!(stored.report.as_ref().unwrap().is_absolute());
        assert_eq!(stored.executors().unwrap(), default_executors());
        assert_eq!(stored.preset(), Some(Preset::Recommended));
    }

    #[test]
    fn every_setting_that_differs_is_named_with_both_values() {
        let dir = tempfile::tempdir().unwrap();
        let input = Input::builtin(1);
        Stored::of(&config(), &input).unwrap().settle(dir.path()).unwrap();
        let refused = |config: DevnetConfig| {
            let given = Stored::of(&config, &Input::builtin(1)).unwrap();
            let error = given.settle(dir.path()).unwrap_err();
            assert_eq!(error.code(), 152);
            error.to_string()
        };
        let cases: [(DevnetConfig, &str); 8] = [
            (DevnetConfig { seed: 2, ..config() }, "--seed: the run has 1, not 2"),
            (DevnetConfig { blocks: Some(41), ..config() }, "--blocks: the run has 40, not 41"),
            (DevnetConfig { blocks: None, ..config() }, "--blocks: the run has 40, not as many as it takes"),
            (DevnetConfig { block_seconds: 6, ..config() }, "--block-seconds: the run has 5, not 6"),
            (DevnetConfig { preset: Preset::Off, ..config() }, "--preset: the run has recommended, not off"),
            (
                DevnetConfig { compare: true, ..config() },
                "--compare: the run has one preset, not all presets",
            ),
            (
                DevnetConfig { source: Source::Workload { seed: 3 }, ..config() },
                "--workload: the run has workload 1, not workload 3",
            ),
            (
                DevnetConfig { executors: default_executors()[..19].to_vec(), ..config() },
                "--executors: the run has 20, not 19",
            ),
        ];
        for (config, clause) in cases {
            let text = refused(config);
            assert!(text.contains(clause), "{clause:?} is not in: {text}");
            assert_eq!(text.matches("the run has").count(), 1, "{text}");
        }
        let mut executors = default_executors();
        executors[3].weight = 7;
        let text = refused(DevnetConfig { executors, seed: 9, ..config() });
        let clause =
            "--executors: #3: the run has healthy@weight=90@models=model-a+model-b, not healthy@weight=7";
        assert!(text.contains(clause) && text.contains("--seed: the run has 1, not 9"), "{text}");
    }

    #[test]
    fn a_trace_is_known_by_what_it_holds_and_not_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n";
        let trace = |name: &str, rows: &str| {
            let path = dir.path().join(name);
            fs::write(&path, rows).unwrap();
            let input = Input::trace(&path, true).unwrap();
            let source = Source::Trace { path, skip_bad_rows: true };
            (Stored::of(&DevnetConfig { source, ..config() }, &input).unwrap(), input)
        };
        let home = dir.path().join("home");
        let (first, _) = trace("a.csv", &format!("{rows}bad\n"));
        first.settle(&home).unwrap();
        let (moved, input) = trace("b.csv", &format!("{rows}bad\n"));
        let info = moved.settle(&home).unwrap().trace(&input);
        let name = dir.path().join("a.csv").display().to_string();
        assert_eq!((info.source.as_str(), info.bad_rows), (name.as_str(), 1));
        assert!(info.bad_row_samples[0].starts_with(&format!("{name}:3:")), "{info:?}");
        let (changed, input) = trace("a.csv", rows);
        let text = changed.settle(&home).unwrap_err().to_string();
        let clause = format!("not a trace with SHA-256 {}", input.sha256());
        assert!(text.contains("--trace: the run has a trace") && text.contains(&clause), "{text}");
        let builtin = Stored::of(&config(), &Input::builtin(1)).unwrap().settle(&home).unwrap_err();
        assert!(builtin.to_string().contains("not workload 1"), "{builtin}");
    }

    #[test]
    fn a_settings_file_of_somebody_else_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let stored = Stored::of(&config(), &Input::builtin(1)).unwrap();
        let good = serde_json::to_value(&stored).unwrap();
        for (field, value, found) in [
            ("format", 2.into(), "format 2"),
            ("preset", "best".into(), "best"),
            ("executors", serde_json::json!(["helthy"]), "helthy"),
            ("speed", 3.into(), "speed"),
            ("seed", "x".into(), "seed"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            fs::write(dir.path().join(FILE), bad.to_string()).unwrap();
            let error = Stored::read(dir.path()).unwrap_err();
            assert_eq!(error.code(), 153, "{error}");
            let text = error.to_string();
            assert!(text.contains(FILE) && (field == "seed" || text.contains(found)), "{text}");
        }
    }

    #[test]
    fn a_note_comes_back_as_it_was_and_is_never_empty() {
        let ended = Ended { times_us: Some((1, 2)), elapsed_us: 3, invariant_checks: 5 };
        let draws = vec![Some((7, lane_number(Lane::Probe))), None];
        let note = Note { draws, before: Some(ended) };
        assert_eq!(Note::decode(&note.encode()), Some(note));
        assert!(!Note::default().encode().is_empty());
        assert_eq!(Note::decode(b"nonsense"), None);
        for lane in [Lane::Healthy, Lane::Probe, Lane::Fallback] {
            assert_eq!(numbered_lane(lane_number(lane)), Some(lane));
        }
        assert_eq!(numbered_lane(3), None);
    }
}
