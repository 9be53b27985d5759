//! `cargo xtask test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{CANDLE, Run, cargo, counted, minutes};
use crate::{model, readme, tools};

/// Which tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but those of the candle backend.
    Whole,
    /// Unit tests of the libraries only.
    Quick,
    /// Those of the candle backend only.
    Candle,
}

/// Runs a part of the tests.
pub(crate) fn test(run: &Run, part: Part) -> Result<()> {
    let mut tally = Tally::default();
    if part == Part::Candle {
        return candle(run, tally);
    }
    if part == Part::Quick {
        let args = [
            "test",
            "--workspace",
            "--exclude",
            CANDLE,
            "--lib",
            "--exclude",
            "holdfast-it",
            "--exclude",
            "holdfast-bench",
            "--no-fail-fast",
        ];
        run_tests(run, &mut cargo(&args), &mut tally)?;
        println!(
            "\nxtask test --quick: passed: {} in {}; not run: scenarios, doc-tests, documents",
            tally.line(),
            run.elapsed()
        );
        return Ok(());
    }

    let (grpcurl, cometbft) = (tools::grpcurl(run)?, tools::cometbft(run)?);
    let Built { holdfastd, next, examples: programs } = build(run)?;
    let environment: Vec<(&str, PathBuf)> = vec![
        ("HOLDFASTD", holdfastd),
        ("HOLDFASTD_NEXT", next),
        ("GRPCURL", grpcurl),
        ("HOLDFASTD_COMETBFT", cometbft),
        ("ICS23_GO", tools::ics23_go(run)?),
        ("ICS23_JS", tools::ics23_js(run)?),
        ("OPENAI_JS", tools::openai_js(run)?),
        ("OPENAI_PYTHON", tools::openai_python(run)?),
    ];
    let mut tests = cargo(&["test", "--workspace", "--exclude", CANDLE, "--no-fail-fast"]);
    tests.envs(environment.iter().map(|(k, v)| (k, v)));
    run_tests(run, &mut tests, &mut tally)?;

    let examples = run_examples(run, &programs)?;
    let blocks = run_documents(run)?;
    println!(
        "\nxtask test: passed: {}, {}, {} in {}",
        tally.line(),
        counted(examples as u64, "example"),
        counted(blocks as u64, "document block"),
        run.elapsed()
    );
    Ok(())
}

/// Lints and tests what is only compiled with candle. An unoptimised candle is too slow to test, so it is built for
/// release; more than one thread makes small models slower on a machine that does something else too.
fn candle(run: &Run, mut tally: Tally) -> Result<()> {
    let weights = model::model(run)?;
    let with = [
        "--release",
        "--package",
        CANDLE,
        "--package",
        "holdfast-node",
        "--features",
        "holdfast-node/candle",
    ];
    let mut lints = cargo(&["clippy"]);
    lints.args(with).args(["--all-targets", "--", "-D", "warnings"]);
    run.step("clippy", &mut lints, minutes(40))?;
    let mut tests = cargo(&["test", "--release", "--package", CANDLE, "--no-fail-fast"]);
    tests.env("HOLDFAST_SMOLLM2", weights).env("RAYON_NUM_THREADS", "1");
    run_tests(run, &mut tests, &mut tally)?;
    println!("\nxtask test --candle: passed: {} in {}", tally.line(), run.elapsed());
    Ok(())
}

/// The programs that the tests start.
struct Built {
    holdfastd: PathBuf,
    /// The binary after it, for the rehearsal of an upgrade.
    next: PathBuf,
    examples: Vec<PathBuf>,
}

/// Builds all that the tests use in one go: the same packages with the same features as `cargo test`, so that nothing is
/// compiled twice.
fn build(run: &Run) -> Result<Built> {
    let (mut holdfastd, mut next) = (None, None);
    let mut examples = Vec::new();
    let mut read = |line: &str| {
        if let Ok(message) = serde_json::from_str::<Value>(line)
            && let Some(path) = message["executable"].as_str()
            && message["profile"]["test"] == false
        {
            let kinds = &message["target"]["kind"];
            if kinds[0] == "example" {
                examples.push(PathBuf::from(path));
            } else if kinds[0] == "bin" && message["target"]["name"] == "holdfastd" {
                holdfastd = Some(PathBuf::from(path));
            } else if kinds[0] == "bin" && message["target"]["name"] == "holdfastd-next" {
                next = Some(PathBuf::from(path));
            }
        }
        false
    };
    let args = [
        "build",
        "--workspace",
        "--exclude",
        CANDLE,
        "--lib",
        "--bins",
        "--tests",
        "--examples",
        "--message-format=json-render-diagnostics",
    ];
    run.step_lines("build", &mut cargo(&args), minutes(40), &mut read)?;
    let holdfastd = holdfastd.context("the build made no program `holdfastd` (package holdfast-node)")?;
    let next = next.context("the build made no program `holdfastd-next` (package holdfast-it)")?;
    examples.sort();
    Ok(Built { holdfastd, next, examples })
}

fn run_tests(run: &Run, command: &mut Command, tally: &mut Tally) -> Result<()> {
    let result = run.step_lines("tests", command, minutes(40), &mut |line| {
        tally.read(line);
        true
    });
    if !tally.failures.is_empty() {
        eprintln!("\nfailed tests:\n  {}", tally.failures.join("\n  "));
    }
    result?;
    ensure!(tally.passed > 0, "step `tests`: no test ran");
    Ok(())
}

/// Each example of a library is a program that must end well on its own.
fn run_examples(run: &Run, programs: &[PathBuf]) -> Result<usize> {
    for program in programs {
        let name = program.file_stem().unwrap_or_default().display();
        run.step(&format!("example {name}"), &mut Command::new(program), minutes(5))?;
    }
    Ok(programs.len())
}

fn run_documents(run: &Run) -> Result<usize> {
    let mut ran = 0;
    for file in documents(run.root())? {
        let text =
            fs::read_to_string(run.root().join(&file)).with_context(|| format!("cannot read {file}"))?;
        let blocks = readme::blocks(&file, &text)?;
        ensure!(
            file != "README.md" || !blocks.is_empty(),
            "README.md has no block marked `<!-- ci -->`: its quick start would go untested"
        );
        for block in &blocks {
            let mut sh = Command::new("sh");
            sh.args(["-c", &format!("set -eu\n{}", block.script)]);
            run.step(&format!("{file}:{}", block.line), &mut sh, minutes(20))?;
        }
        ran += blocks.len();
    }
    Ok(ran)
}

/// README.md and the Markdown files of docs/, as paths from the root.
fn documents(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join("docs")).context("docs/ is missing")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            files.push(format!("docs/{name}"));
        }
    }
    files.sort();
    files.insert(0, "README.md".into());
    Ok(files)
}

/// What libtest printed, added up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    failures: Vec<String>,
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            for part in counts.split(['.', ';']) {
                let mut words = part.split_whitespace();
                let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse::<u64>), words.next())
                else {
                    continue;
                };
                match what {
                    "passed" => self.passed += count,
                    "failed" => self.failed += count,
                    "ignored" => self.ignored += count,
                    _ => {}
                }
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_string());
        }
    }

    fn line(&self) -> String {
        let ignored = if self.ignored > 0 { format!(" ({} ignored)", self.ignored) } else { String::new() };
        counted(self.passed, "test") + &ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_binaries_add_up_and_failures_keep_their_names() {
        let mut tally = Tally::default();
        for line in [
            "test a::b ... ok",
            "test keeper::tests::a_miss_counts ... FAILED",
            "test result: FAILED. 11 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.01s",
            "test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.50s",
        ] {
            tally.read(line);
        }
        let expected = Tally {
            passed: 41,
            failed: 1,
            ignored: 2,
            failures: vec!["keeper::tests::a_miss_counts".into()],
        };
        assert_eq!(tally, expected);
        assert_eq!(tally.line(), "41 tests (2 ignored)");
        assert_eq!(counted(1, "example"), "1 example");
    }
}
