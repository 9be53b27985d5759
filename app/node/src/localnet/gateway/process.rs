//! A process of the network: started through this program, so that it ends with it, and told apart by its name.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::cli::CliError;

/// Longest wait for a process's first line: a model may be loaded before it.
const UP: Duration = Duration::from_secs(120);
/// Longest wait for an orderly end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before a process that ended by itself is started again.
const PAUSE: Duration = Duration::from_millis(300);
/// A process that ended sooner than this did not come up.
const STEADY: Duration = Duration::from_secs(5);
/// So many failed starts in a row end the run.
const FAILURES: u32 = 5;

/// A process that is kept running.
pub(super) struct Process {
    /// For messages: `chain`, `gateway`, `host0`.
    pub(super) name: String,
    holdfastd: PathBuf,
    /// Arguments of `holdfastd`.
    pub(super) args: Vec<String>,
    log: PathBuf,
    running: Option<Running>,
    failures: u32,
    start_at: Instant,
    given_up: bool,
}

/// What became of another start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// It runs.
    Up,
    /// It did not come up; it is tried again.
    Later,
}

struct Running {
    child: Child,
    since: Instant,
    rest: JoinHandle<()>,
    /// It was asked to end; asked twice it would not finish what it does.
    told: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.rest.abort();
    }
}

impl Process {
    pub(super) fn new(name: &str, holdfastd: &Path, args: Vec<String>, log: PathBuf) -> Self {
        let holdfastd = holdfastd.to_path_buf();
        let (name, start_at) = (name.into(), Instant::now());
        Self { name, holdfastd, args, log, running: None, failures: 0, start_at, given_up: false }
    }

    /// Starts it and gives its first line, which it writes once it listens.
    ///
    /// # Errors
    /// It ended before, or said nothing for two minutes; its own last words are in the error.
    pub(super) async fn start(&mut self) -> Result<String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = Command::new(&self.holdfastd);
        command.arg("become-child").arg(std::process::id().to_string()).arg("--").arg(&self.holdfastd);
        for (name, _) in std::env::vars_os() {
            // The caller's settings speak of another node.
            if name.to_string_lossy().starts_with("HOLDFASTD_") {
                command.env_remove(name);
            }
        }
        command
            .args(&self.args)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?)
            // A terminal's ^C goes to this process alone, which then stops the others in order.
            .process_group(0)
            .kill_on_drop(true);
        let mut child =
            command.spawn().with_context(|| format!("cannot run {}", self.holdfastd.display()))?;
        let stdout = child.stdout.take().context("the output is a pipe")?;
        let mut lines = BufReader::new(stdout).lines();
        let Ok(first) = tokio::time::timeout(UP, lines.next_line()).await else {
            return Err(self.failure(&format!("said nothing for {} seconds", UP.as_secs())));
        };
        let Some(first) = first? else {
            let status = child.wait().await?;
            return Err(self.failure(&format!("ended ({status}) before it listened")));
        };
        let mut rest_of_log = tokio::fs::File::from_std(log);
        let rest = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = rest_of_log.write_all(format!("{line}\n").as_bytes()).await;
            }
        });
        self.running = Some(Running { child, since: Instant::now(), rest, told: false });
        Ok(first)
    }

    /// Starts it after it ended.
    ///
    /// # Errors
    /// It failed five times in a row; it is not due any more.
    pub(super) async fn start_again(&mut self) -> Result<Again> {
        let Err(error) = self.start().await else { return Ok(Again::Up) };
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            self.given_up = true;
            return Err(error);
        }
        self.start_at = Instant::now() + PAUSE.saturating_mul(self.failures);
        Ok(Again::Later)
    }

    fn failure(&self, what: &str) -> anyhow::Error {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let last: String = last.chars().take(400).collect();
        let text = format!("{what}; {} ends with: {last}", self.log.display());
        CliError { code: 83, field: self.name.clone(), text }.into()
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Option<u32> {
        self.running.as_ref().and_then(|running| running.child.id())
    }

    /// How it ended, if it just did.
    ///
    /// # Errors
    /// It does not stay up.
    pub(super) fn look(&mut self) -> Result<Option<ExitStatus>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        let Some(status) = running.child.try_wait()? else { return Ok(None) };
        let steady = running.since.elapsed() >= STEADY || killed(status);
        self.running = None;
        self.failures = if steady { 0 } else { self.failures.saturating_add(1) };
        if self.failures >= FAILURES {
            return Err(self.failure(&format!("ended ({status}) right after its start, {FAILURES} times")));
        }
        self.start_at = Instant::now() + PAUSE.saturating_mul(self.failures.max(1));
        Ok(Some(status))
    }

    /// Whether it is down and may be started again.
    pub(super) fn is_due(&self) -> bool {
        self.running.is_none() && !self.given_up && Instant::now() >= self.start_at
    }

    /// Kills it as a crash would.
    pub(super) async fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill().await;
        }
    }

    /// Asks it to end, once.
    pub(super) fn terminate(&mut self) {
        let Some(running) = &mut self.running else { return };
        let pid = running.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid.filter(|_| !std::mem::replace(&mut running.told, true)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Asks it to end, and kills it when it does not.
    pub(super) async fn stop(&mut self) {
        self.terminate();
        let Some(mut running) = self.running.take() else { return };
        if tokio::time::timeout(PATIENCE, running.child.wait()).await.is_err() {
            let _ = running.child.kill().await;
        }
    }
}

/// Whether somebody killed it.
fn killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal().is_some_and(|signal| [Signal::KILL, Signal::TERM].iter().any(|s| s.as_raw() == signal))
}
