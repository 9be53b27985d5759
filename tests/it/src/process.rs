//! Processes: started with a limit, read to the end, ended whatever happens.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit of a command that answers at once; generous, as the machine may be busy.
pub(crate) const SHORT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(10);

/// The folder Cargo builds this profile into: two above the test program.
pub(crate) fn built() -> PathBuf {
    let program = std::env::current_exe().expect("the test program has a path");
    program.ancestors().nth(2).expect("the test program lies in target/PROFILE/deps").to_path_buf()
}

/// The program under test.
pub(crate) fn holdfastd() -> PathBuf {
    let named = std::env::var_os("HOLDFASTD").map(PathBuf::from);
    let path = named.unwrap_or_else(|| built().join("holdfastd"));
    assert!(path.is_file(), "{} is missing: run `cargo build`, or `cargo xtask test`", path.display());
    path
}

/// grpcurl, as `cargo xtask tools` installs it.
pub(crate) fn grpcurl() -> PathBuf {
    let named = std::env::var_os("GRPCURL").map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        let target = built().parent().map(PathBuf::from).unwrap_or_default();
        target.join("tools/grpcurl/grpcurl")
    });
    assert!(path.is_file(), "{} is missing: run `cargo xtask tools`", path.display());
    path
}

/// `holdfastd` with these arguments and none of the caller's settings.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(holdfastd());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOLDFASTD_") {
            command.env_remove(name);
        }
    }
    command.args(args).env("NO_COLOR", "1");
    command
}

/// What a process did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Standard output of a process that ended well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.out, self.err);
        self.out
    }

    /// The same as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
    }

    /// The error of a process that ended with `code`: one line, which holds all `parts`. A node that was killed before may
    /// warn above it of the record it dropped.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.out, self.err);
        let lines: Vec<&str> = self.err.lines().filter(|line| !line.contains(" WARN ")).collect();
        let line = lines.join("\n");
        assert!(line.starts_with("Error: ") && !line.contains('\n'), "not one line: {}", self.err);
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in: {line}");
        }
        line
    }
}

/// A child that does not outlive its test.
pub(crate) struct Running {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

fn follow(mut from: impl Read + Send + 'static, into: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let into = into.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            into.lock().expect("no reader panics").push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    })
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let (out, err) = (Arc::default(), Arc::default());
        let readers = vec![
            follow(child.stdout.take().expect("piped"), &out),
            follow(child.stderr.take().expect("piped"), &err),
        ];
        Self { child, out, err, readers }
    }

    /// Standard output so far.
    pub(crate) fn out(&self) -> String {
        self.out.lock().expect("no reader panics").clone()
    }

    /// Standard error so far.
    pub(crate) fn err(&self) -> String {
        self.err.lock().expect("no reader panics").clone()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("can be waited for").is_none()
    }

    /// Sends a signal by name, `TERM` for example.
    pub(crate) fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &script]).status().expect("sh is there");
        assert!(status.success(), "{script}: {status}");
    }

    /// Waits for its end; over the limit it is killed and the test fails.
    #[track_caller]
    pub(crate) fn wait(mut self, limit: Duration) -> Ran {
        drop(self.child.stdin.take());
        let until = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("can be waited for") {
                break status;
            }
            if Instant::now() > until {
                let _ = self.child.kill();
                panic!("still running after {limit:?}\n{}\n{}", self.out(), self.err());
            }
            std::thread::sleep(POLL);
        };
        for reader in std::mem::take(&mut self.readers) {
            reader.join().expect("readers do not panic");
        }
        Ran { status, out: self.out(), err: self.err() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(command: &mut Command, limit: Duration) -> Ran {
    Running::start(command).wait(limit)
}

/// The same with a text on standard input.
#[track_caller]
pub(crate) fn run_with(command: &mut Command, input: &str, limit: Duration) -> Ran {
    let mut running = Running::start(command);
    let mut stdin = running.child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("it reads its input");
    drop(stdin);
    running.wait(limit)
}

/// Runs `holdfastd` to its end.
#[track_caller]
pub(crate) fn holdfast(args: &[&str]) -> Ran {
    run(&mut command(args), SHORT)
}

/// Asks until there is an answer; over the limit the test fails with `what`.
#[track_caller]
pub(crate) fn until<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(POLL);
    }
}
