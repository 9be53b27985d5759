//! The same chain in a process of its own, in other surroundings: time zone, language, home, wall clock, cores.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};

use crate::chain::Chain;
use crate::node::Habits;
use crate::trace::Trace;

/// Begins each line that the child writes for its parent.
const MARK: &str = "trace: ";

/// Source of the library that shifts a process's wall clock.
const CLOCK: &str = include_str!("clock.c");

/// What a child process lives in.
struct Surroundings {
    name: &'static str,
    zone: &'static str,
    language: &'static str,
    /// Seconds that its wall clock is ahead.
    ahead: i64,
    one_core: bool,
}

const SURROUNDINGS: [Surroundings; 2] = [
    Surroundings {
        name: "a child nine years ahead on one core",
        zone: "Pacific/Kiritimati",
        language: "tr_TR.UTF-8",
        ahead: 9 * 31_557_600,
        one_core: true,
    },
    Surroundings {
        name: "a child in 1995",
        zone: "America/St_Johns",
        language: "C",
        ahead: -31 * 31_557_600,
        one_core: false,
    },
];

/// Makes the command that comes to [`speak`] with this seed and number of blocks.
pub type Launch<'a> = &'a dyn Fn(u64, u64) -> Result<Command>;

/// Children at work.
pub(crate) struct Children {
    running: Vec<(&'static Surroundings, Child)>,
    _folder: tempfile::TempDir,
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Compiles the clock library with the C compiler that also links this program.
fn clock_library(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, CLOCK)?;
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
    let built = built.context("cc is needed to shift the clock of a child process")?;
    ensure!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
    Ok(library)
}

fn seconds() -> Result<i64> {
    let now = SystemTime::now();
    Ok(match now.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs())?,
        Err(before) => -i64::try_from(before.duration().as_secs())?,
    })
}

impl Children {
    /// Starts one child in each of the surroundings.
    pub(crate) fn start(launch: Launch<'_>, seed: u64, blocks: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let library = clock_library(folder.path())?;
        let mut running = Vec::new();
        for around in &SURROUNDINGS {
            let home = folder.path().join(around.zone.replace('/', "-"));
            std::fs::create_dir(&home)?;
            let mut command = launch(seed, blocks)?;
            command
                .env("TZ", around.zone)
                .env("LANG", around.language)
                .env("LC_ALL", around.language)
                .env("HOME", &home)
                .env("LD_PRELOAD", &library)
                .env("CLOCK_SHIFT", around.ahead.to_string())
                .env("SIM_ONE_CORE", if around.one_core { "1" } else { "0" })
                .current_dir(&home)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            running.push((around, command.spawn().with_context(|| format!("{command:?}"))?));
        }
        Ok(Self { running, _folder: folder })
    }

    /// Waits for all of them and compares, block by block.
    pub(crate) fn compare(mut self, traces: &[Trace]) -> Result<()> {
        for (around, child) in std::mem::take(&mut self.running) {
            let out = child.wait_with_output()?;
            let text = String::from_utf8_lossy(&out.stdout);
            if !out.status.success() {
                bail!("{}: {}\n{text}{}", around.name, out.status, String::from_utf8_lossy(&out.stderr));
            }
            // A test harness writes the beginning of a line of its own.
            let mut lines = text.lines().filter_map(|line| Some(line.split_once(MARK)?.1));
            let clock: i64 = lines.next().context("a child without a word")?.parse()?;
            let shift = clock - seconds()?;
            ensure!(
                (shift - around.ahead).abs() < 3_600,
                "{}: its clock is {shift} s ahead, not {}",
                around.name,
                around.ahead
            );
            let theirs: Vec<Trace> = lines.map(str::parse).collect::<Result<_>>()?;
            ensure!(theirs.len() == traces.len(), "{}: {} blocks", around.name, theirs.len());
            for (ours, theirs) in traces.iter().zip(&theirs) {
                ours.compare(theirs, around.name)?;
            }
        }
        Ok(())
    }
}

/// The child's side: plays the chain of `seed` and writes what it came to.
///
/// # Errors
/// What the chain fails with.
pub fn speak(seed: u64, blocks: u64, out: &mut dyn Write) -> Result<()> {
    if std::env::var("SIM_ONE_CORE").is_ok_and(|value| value == "1") {
        let mut cores = rustix::thread::CpuSet::new();
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_set(*core));
        cores.set(first.context("no core to run on")?);
        rustix::thread::sched_setaffinity(None, &cores)?;
    }
    writeln!(out, "{MARK}{}", seconds()?)?;
    let mut chain = Chain::new(seed, Habits::default())?;
    for _ in 0..blocks {
        chain.step()?;
    }
    for trace in &chain.traces {
        writeln!(out, "{MARK}{trace}")?;
    }
    Ok(())
}
