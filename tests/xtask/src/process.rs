//! Running commands: printed, timed, limited.

use std::cell::OnceCell;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The package that compiles candle: minutes of work that only `cargo xtask test --candle` asks for.
pub(crate) const CANDLE: &str = "holdfast-compat-candle";

/// How often a running command is looked at.
const POLL: Duration = Duration::from_millis(20);

/// One run of a task: where it works and when it began.
pub(crate) struct Run {
    root: PathBuf,
    started: Instant,
    metadata: OnceCell<Value>,
}

impl Run {
    pub(crate) fn new(root: PathBuf) -> Result<Self> {
        ensure!(
            root.join("Cargo.toml").is_file(),
            "{} is not the workspace: it has no Cargo.toml",
            root.display()
        );
        Ok(Self { root, started: Instant::now(), metadata: OnceCell::new() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Time since the task began, for its closing line.
    pub(crate) fn elapsed(&self) -> String {
        seconds(self.started.elapsed())
    }

    /// What Cargo says about the packages of this workspace, without their dependencies.
    pub(crate) fn metadata(&self) -> Result<&Value> {
        if let Some(known) = self.metadata.get() {
            return Ok(known);
        }
        let read = cargo_metadata(&self.root)?;
        Ok(self.metadata.get_or_init(|| read))
    }

    /// Where Cargo builds, whatever the environment or a configuration file says.
    pub(crate) fn target(&self) -> Result<PathBuf> {
        let target = self.metadata()?["target_directory"].as_str();
        Ok(PathBuf::from(target.context("cargo metadata names no target_directory")?))
    }

    /// Runs one command as a step; its output goes straight through. Relative to the root unless the command says otherwise.
    pub(crate) fn step(&self, name: &str, command: &mut Command, limit: Duration) -> Result<()> {
        self.step_reading(name, command, limit, None)
    }

    /// As [`Run::step`], with each line of the command's standard output shown to `read` first, which says whether it is
    /// printed.
    pub(crate) fn step_lines(
        &self,
        name: &str,
        command: &mut Command,
        limit: Duration,
        read: &mut (dyn FnMut(&str) -> bool + Send),
    ) -> Result<()> {
        self.step_reading(name, command, limit, Some(read))
    }

    fn step_reading(
        &self,
        name: &str,
        command: &mut Command,
        limit: Duration,
        read: Option<&mut (dyn FnMut(&str) -> bool + Send)>,
    ) -> Result<()> {
        if command.get_current_dir().is_none() {
            command.current_dir(&self.root);
        }
        println!("\n== {name}: {}", line(command));
        std::io::stdout().flush()?;
        let began = Instant::now();
        let status = run_limited(command, limit, read).with_context(|| format!("step `{name}`"))?;
        ensure!(status.success(), "step `{name}`: {} ended with {status}", command.get_program().display());
        println!("== {name}: ok in {}", seconds(began.elapsed()));
        Ok(())
    }
}

/// Reads `cargo metadata` of the workspace at `root`, without touching the network.
pub(crate) fn cargo_metadata(root: &Path) -> Result<Value> {
    let out = cargo(&["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo metadata")?;
    ensure!(out.status.success(), "cargo metadata ended with {}", out.status);
    serde_json::from_slice(&out.stdout).context("cargo metadata is not JSON")
}

/// A Cargo command, by the Cargo that started this task.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

pub(crate) const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

/// Looks a program up on PATH; if it is absent the error says what to install.
pub(crate) fn need(program: &str, install: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
        return Ok(());
    }
    bail!("`{program}` is not on PATH; install {install}, then run this again")
}

/// What a command printed, trimmed, or `None` if it failed. For questions whose "no" is an answer.
pub(crate) fn answer(command: &mut Command) -> Result<Option<String>> {
    let out =
        command.stderr(Stdio::null()).output().with_context(|| format!("cannot run {}", line(command)))?;
    Ok(out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string()))
}

fn run_limited(
    command: &mut Command,
    limit: Duration,
    read: Option<&mut (dyn FnMut(&str) -> bool + Send)>,
) -> Result<ExitStatus> {
    // Without a terminal the command leads a group of its own, so that the limit also ends what it started. At a terminal
    // it stays in ours, where Ctrl-C reaches all of it.
    let own_group = !std::io::stdin().is_terminal();
    #[cfg(unix)]
    if own_group {
        use std::os::unix::process::CommandExt;
        command.process_group(0);
    }
    if read.is_some() {
        command.stdout(Stdio::piped());
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {}", line(command)))?;
    let Some(read) = read else {
        return wait(&mut child, limit, own_group);
    };
    let out = child.stdout.take().context("the command's output is not connected")?;
    std::thread::scope(|scope| {
        // A child of the command can hold the pipe open; after the limit those are gone too, so this ends.
        let reader = scope.spawn(move || -> Result<()> {
            let mut out = BufReader::new(out);
            let mut bytes = Vec::new();
            while out.read_until(b'\n', &mut bytes)? > 0 {
                let text = String::from_utf8_lossy(&bytes);
                if read(text.trim_end_matches(['\n', '\r'])) {
                    print!("{text}");
                    std::io::stdout().flush()?;
                }
                bytes.clear();
            }
            Ok(())
        });
        let status = wait(&mut child, limit, own_group)?;
        match reader.join() {
            Ok(read) => read?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(status)
    })
}

fn wait(child: &mut Child, limit: Duration, own_group: bool) -> Result<ExitStatus> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if began.elapsed() >= limit {
            // The command's children first: one left over would keep the output open, and a port or a file with it.
            let id = child.id();
            let _ = if own_group {
                Command::new("kill").args(["-KILL", "--", &format!("-{id}")]).status()
            } else {
                Command::new("pkill").args(["-KILL", "-P", &id.to_string()]).status()
            };
            let _ = child.kill();
            let _ = child.wait();
            bail!("still running after its limit of {}, stopped", seconds(limit));
        }
        std::thread::sleep(POLL);
    }
}

/// The command as a person would type it.
fn line(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}={}", key.display(), quoted(&value?.to_string_lossy()))))
        .collect();
    let program = Path::new(command.get_program());
    words.push(program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains(|c: char| c.is_whitespace() || "\"'$&|;<>*".contains(c)) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.to_string()
    }
}

/// `1 test`, `2 tests`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn seconds(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    if tenths < 1_200 {
        format!("{}.{} s", tenths / 10, tenths % 10)
    } else {
        format!("{} min {} s", tenths / 600, tenths / 10 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_are_read_and_the_status_is_reported() {
        let mut seen = Vec::new();
        let mut read = |l: &str| {
            seen.push(l.to_string());
            false
        };
        let status =
            run_limited(&mut sh("echo one; echo two; exit 3"), minutes(1), Some(&mut read)).expect("runs");
        assert_eq!(status.code(), Some(3));
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn a_command_over_its_limit_is_stopped_and_the_limit_named() {
        let began = Instant::now();
        let error =
            run_limited(&mut sh("exec sleep 60"), Duration::from_millis(100), None).expect_err("too slow");
        assert!(error.to_string().contains("limit of 0.1 s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_limit_also_ends_what_the_command_started() {
        let began = Instant::now();
        let mut read = |_: &str| false;
        let slow = run_limited(&mut sh("sleep 60; echo late"), Duration::from_millis(200), Some(&mut read));
        assert!(slow.is_err());
        assert!(began.elapsed() < Duration::from_secs(30), "waited for a child that held the output");
    }

    #[test]
    fn a_missing_program_is_an_error_that_says_what_to_install() {
        let error = need("no-such-program-of-ours", "Node.js 18 or newer").expect_err("absent");
        assert!(error.to_string().contains("install Node.js 18 or newer"), "{error}");
        need("sh", "a shell").expect("every machine has one");
    }

    #[test]
    fn a_printed_command_can_be_typed_again() {
        let mut command = sh("echo it's");
        command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(line(&command), r"RUSTDOCFLAGS='-D warnings' sh -c 'echo it'\''s'");
    }

    #[test]
    fn times_are_written_in_seconds_then_in_minutes() {
        assert_eq!(seconds(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(135)), "2 min 15 s");
    }
}
