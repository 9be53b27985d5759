//! Worker processes of this program, on loopback ports, that end with it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Longest wait for a worker's first line: a model is loaded before it.
const UP: Duration = Duration::from_secs(120);

/// How workers are started.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// `holdfastd`.
    pub program: PathBuf,
    /// Flags of `holdfastd worker` that say what computes.
    pub backend: Vec<String>,
}

/// A running worker. Killed when dropped, and when this process ends.
pub struct WorkerProcess {
    child: Child,
    addr: SocketAddr,
    stalled: watch::Receiver<bool>,
    reader: JoinHandle<()>,
}

impl WorkerProcess {
    /// Starts a worker for `layers` at `listen` and waits until it listens. Its name is that of its layers.
    ///
    /// # Errors
    /// It did not come up; its own words are in the error.
    pub async fn start(
        command: &WorkerCommand,
        listen: SocketAddr,
        layers: (u32, u32),
        faults: &[String],
    ) -> Result<Self> {
        let mut worker = Command::new(&command.program);
        worker
            .arg("become-child")
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(&command.program)
            .args(["worker", "--output", "json", "--log-level", "error"])
            .args(["--listen", &listen.to_string()])
            .args(["--layers", &format!("{}..{}", layers.0, layers.1)])
            .args(["--name", &format!("layers-{}-{}", layers.0, layers.1)])
            .args(&command.backend)
            .args(faults.iter().flat_map(|fault| ["--fault", fault]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = worker.spawn().context("a worker cannot be started")?;
        let stdout = child.stdout.take().context("the worker's output is a pipe")?;
        let mut lines = BufReader::new(stdout).lines();
        let first =
            tokio::time::timeout(UP, lines.next_line()).await.context("the worker says nothing")??;
        let Some(first) = first else {
            let output = child.wait_with_output().await?;
            bail!("the worker ended: {}", String::from_utf8_lossy(&output.stderr).trim());
        };
        let said: serde_json::Value = serde_json::from_str(&first).context("the worker's first line")?;
        let addr =
            said["address"].as_str().and_then(|addr| addr.parse().ok()).context("the worker's address")?;
        let (sender, stalled) = watch::channel(false);
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if line.contains("\"stalled\"") {
                    sender.send_replace(true);
                }
            }
        });
        Ok(Self { child, addr, stalled, reader })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Tells when a step is held back by a fault.
    #[must_use]
    pub fn stalled(&self) -> watch::Receiver<bool> {
        self.stalled.clone()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()))
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Sends a signal to a worker; one that has ended gets none.
pub fn signal(pid: Option<Pid>, signal: Signal) {
    if let Some(pid) = pid {
        let _ = kill_process(pid, signal);
    }
}
