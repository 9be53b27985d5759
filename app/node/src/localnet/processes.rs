//! One process of the network, kept running.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use super::{LocalnetConfig, Node};
use crate::cli::CliError;
use crate::say;

/// Pause before a process is started again.
const PAUSE: Duration = Duration::from_millis(300);
/// A process that ended sooner than this did not come up.
const UP: Duration = Duration::from_secs(5);
/// So many failed starts in a row end the run.
const FAILURES: u32 = 6;
/// Longest wait for an orderly end.
const PATIENCE: Duration = Duration::from_secs(15);

/// How far the network is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Everything.
    Run,
    /// Applications only.
    StopComet,
    /// Nothing.
    StopAll,
}

/// What to run.
pub(super) struct Process {
    /// For messages: `node0 app`.
    name: String,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    holdfastd: PathBuf,
    /// Phase in which it stops.
    stops: Phase,
    /// How often the node's application has ended.
    app_ends: Arc<AtomicU32>,
}

impl Process {
    /// The two processes of a node.
    pub(super) fn of(config: &LocalnetConfig, node: &Node) -> [Self; 2] {
        let app_ends = Arc::new(AtomicU32::new(0));
        [Self::app(config, node, Arc::clone(&app_ends)), Self::comet(config, node, app_ends)]
    }

    /// The node's application.
    fn app(config: &LocalnetConfig, node: &Node, app_ends: Arc<AtomicU32>) -> Self {
        let home = node.home.display().to_string();
        let args = ["start", "--engine", "comet", "--home", &home].map(str::to_owned).to_vec();
        Self {
            name: format!("{} app", node.name),
            program: config.holdfastd.clone(),
            args,
            log: node.home.join("app.log"),
            holdfastd: config.holdfastd.clone(),
            stops: Phase::StopAll,
            app_ends,
        }
    }

    /// The node's CometBFT.
    fn comet(config: &LocalnetConfig, node: &Node, app_ends: Arc<AtomicU32>) -> Self {
        let home = node.home.display().to_string();
        Self {
            name: format!("{} cometbft", node.name),
            program: config.cometbft.clone(),
            args: ["node", "--home", &home].map(str::to_owned).to_vec(),
            log: node.home.join("cometbft.log"),
            holdfastd: config.holdfastd.clone(),
            stops: Phase::StopComet,
            app_ends,
        }
    }

    fn spawn(&self) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = Command::new(&self.holdfastd);
        command
            .arg("become-child")
            .arg(std::process::id().to_string())
            .arg(&self.program)
            .args(&self.args)
            // Settings come from the home folders; the caller's variables speak of another node.
            .env_remove("HOLDFASTD_PROXY_APP")
            .env_remove("HOLDFASTD_GRPC_LISTEN")
            .env_remove("HOLDFASTD_RPC_LADDR")
            .env_remove("HOLDFASTD_METRICS_LISTEN")
            .env_remove("HOLDFASTD_ENGINE")
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log)
            // A terminal's ^C goes to this process alone, which then stops the others in order.
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot run {}", self.holdfastd.display()))
    }

    fn failure(&self, status: ExitStatus) -> anyhow::Error {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let last: String = last.chars().take(400).collect();
        let log = self.log.display();
        let program = self.program.display();
        let text = format!(
            "{program} ended {FAILURES} times right after its start ({status}); {log} ends with: {last}"
        );
        CliError { code: 83, field: self.name.clone(), text }.into()
    }
}

/// Whether a process that ended early had a reason outside itself: somebody stopped it, or it left in order when its
/// application went (`with_app`).
fn excused(status: ExitStatus, with_app: bool) -> bool {
    #[cfg(unix)]
    let stopped = {
        use rustix::process::Signal;
        use std::os::unix::process::ExitStatusExt;
        let signals = [Signal::KILL, Signal::TERM, Signal::INT];
        status.signal().is_some_and(|signal| signals.iter().any(|known| known.as_raw() == signal))
    };
    #[cfg(not(unix))]
    let stopped = false;
    stopped || (status.success() && with_app)
}

async fn stop(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Keeps a process running until its phase comes. Whatever its exit code, it is started again, unless it does not come up.
pub(super) async fn keep(
    process: Process,
    mut phases: watch::Receiver<Phase>,
    failed: mpsc::Sender<anyhow::Error>,
) {
    let mut failures = 0_u32;
    while *phases.borrow() < process.stops {
        let (started, app_ends) = (Instant::now(), process.app_ends.load(Ordering::Relaxed));
        let mut child = match process.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = failed.send(error).await;
                return;
            }
        };
        let ended = tokio::select! {
            ended = child.wait() => Some(ended),
            _ = phases.wait_for(|phase| *phase >= process.stops) => None,
        };
        let status = match ended {
            None => return stop(&mut child).await,
            Some(Ok(status)) => status,
            Some(Err(error)) => {
                let _ = failed.send(error.into()).await;
                return;
            }
        };
        let with_app = process.app_ends.load(Ordering::Relaxed) != app_ends;
        if process.stops == Phase::StopAll {
            process.app_ends.fetch_add(1, Ordering::Relaxed);
        }
        let failed_start = started.elapsed() < UP && !excused(status, with_app);
        failures = if failed_start { failures.saturating_add(1) } else { 0 };
        if failures >= FAILURES {
            let _ = failed.send(process.failure(status)).await;
            return;
        }
        say::notice(format_args!("{} ended ({status}); starting it again", process.name));
        // Longer after each failed start: what it needs may take its time.
        let pause = PAUSE.saturating_mul(failures.saturating_mul(failures).max(1));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = phases.wait_for(|phase| *phase >= process.stops) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_process_that_ends_at_once_by_itself_has_failed_to_start_whatever_its_exit() {
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        let signal = ExitStatus::from_raw;
        assert!(!excused(exit(0), false), "/bin/true is no node");
        assert!(excused(exit(0), true), "CometBFT leaves with its application");
        assert!(!excused(exit(1), true));
        // A crash is its own doing, a kill is not.
        assert!(!excused(signal(11), false) && !excused(signal(6), true));
        assert!(excused(signal(9), false) && excused(signal(15), false) && excused(signal(2), false));
    }
}
