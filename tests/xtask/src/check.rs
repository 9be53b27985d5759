//! `cargo xtask check`: what must hold before the tests, cheapest first.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{CANDLE, Run, answer, cargo, counted, minutes};
use crate::{rules, tools};

type Step = (&'static str, fn(&Run) -> Result<()>);

const STEPS: [Step; 8] = [
    ("lock", lock),
    ("rules", dependency_rules),
    ("hygiene", hygiene),
    ("fmt", fmt),
    ("clippy", clippy),
    ("docs", docs),
    ("deny", deny),
    ("proto", proto),
];

/// A file of `x/` with more lines than this is pointed out.
const LONG_FILE_LINES: usize = 800;

/// Runs the named steps, or all of them when none is named.
pub(crate) fn check(run: &Run, names: &[String]) -> Result<()> {
    let mut chosen = Vec::new();
    for name in names {
        match STEPS.iter().find(|(known, _)| known == name) {
            Some(step) => chosen.push(step),
            None => {
                bail!("no check is called `{name}`; there are: {}", STEPS.map(|(known, _)| known).join(" "))
            }
        }
    }
    if chosen.is_empty() {
        chosen.extend(&STEPS);
    }
    for (name, step) in &chosen {
        step(run).with_context(|| format!("check `{name}`"))?;
    }
    let what = if chosen.len() == STEPS.len() { "all " } else { "" };
    println!("\nxtask check: {what}{} passed in {}", counted(chosen.len() as u64, "check"), run.elapsed());
    Ok(())
}

/// The lock file belongs to the manifests, and every crate it names is here, so that later steps need no network.
fn lock(run: &Run) -> Result<()> {
    run.step("lock", &mut cargo(&["fetch", "--locked"]), minutes(10))
}

fn dependency_rules(run: &Run) -> Result<()> {
    println!("\n== rules: the dependency rule, the files of each module");
    let mut found = rules::dependency_violations(run.metadata()?)?;
    found.extend(rules::missing_module_files(run.root()));
    ensure!(found.is_empty(), "{} violations:\n  {}", found.len(), found.join("\n  "));
    println!("== rules: ok");
    Ok(())
}

fn fmt(run: &Run) -> Result<()> {
    run.step("fmt", &mut cargo(&["fmt", "--all", "--check"]), minutes(2))
}

fn clippy(run: &Run) -> Result<()> {
    let args = ["clippy", "--workspace", "--exclude", CANDLE, "--all-targets", "--", "-D", "warnings"];
    run.step("clippy", &mut cargo(&args), minutes(25))
}

fn docs(run: &Run) -> Result<()> {
    let mut doc = cargo(&["doc", "--workspace", "--exclude", CANDLE, "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    run.step("docs", &mut doc, minutes(25))
}

fn deny(run: &Run) -> Result<()> {
    let program = tools::cargo_deny(run)?;
    // Cargo reads the crates of every platform here; they are fetched first, then nothing is.
    run.step("fetch", &mut cargo(&["fetch"]), minutes(10))?;
    let mut deny = Command::new(program);
    deny.args(["--offline", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    run.step("deny", &mut deny, minutes(3))
}

/// buf lint, format and breaking over `proto/`, as `buf.yaml` at the root says.
pub(crate) fn proto(run: &Run) -> Result<()> {
    ensure!(
        run.root().join("buf.yaml").is_file(),
        "buf.yaml is missing: buf would judge proto/ by other rules"
    );
    let buf = tools::buf(run)?;
    run.step("buf lint", Command::new(&buf).arg("lint"), minutes(2))?;
    run.step("buf format", Command::new(&buf).args(["format", "--diff", "--exit-code"]), minutes(2))?;
    match earlier_proto(run)? {
        Baseline::Commit(commit) => {
            let image = run.target()?.join("tools").join("proto-before.tar");
            let mut archive = git(run);
            archive
                .args(["archive", "--format=tar", "--output"])
                .arg(&image)
                .args([&commit, "buf.yaml", "proto"]);
            run.step("earlier proto", &mut archive, minutes(1))?;
            run.step(
                "buf breaking",
                Command::new(&buf).args(["breaking", "--against"]).arg(&image),
                minutes(2),
            )
        }
        Baseline::None(why) => {
            println!("\n== buf breaking: nothing to compare with: {why}");
            Ok(())
        }
    }
}

enum Baseline {
    Commit(String),
    None(String),
}

/// The commit whose `proto/` the present one must not break: where this branch left the main branch; on the main branch
/// itself the last commit if `proto/` has been edited since, else the one before it.
fn earlier_proto(run: &Run) -> Result<Baseline> {
    let ask = |args: &[&str]| answer(git(run).args(args));
    let commit = |name: &str| ask(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
    let Some(head) = commit("HEAD")? else {
        return Ok(Baseline::None("there is no commit yet".into()));
    };
    let main = match commit("origin/main")? {
        Some(main) => Some(main),
        None => commit("main")?,
    };
    let fork = match &main {
        Some(main) => ask(&["merge-base", main, &head])?,
        None => None,
    };
    let base = match fork {
        Some(fork) if fork != head => Some(fork),
        _ if ask(&["diff", "--quiet", "HEAD", "--", "buf.yaml", "proto"])?.is_none() => Some(head),
        _ => commit("HEAD~1")?,
    };
    let Some(base) = base else {
        return Ok(Baseline::None("this is the first commit".into()));
    };
    for path in ["buf.yaml", "proto"] {
        if ask(&["cat-file", "-e", &format!("{base}:{path}")])?.is_none() {
            return Ok(Baseline::None(format!("commit {base} has no {path}")));
        }
    }
    Ok(Baseline::Commit(base))
}

fn git(run: &Run) -> Command {
    let mut git = Command::new("git");
    git.current_dir(run.root());
    git
}

/// Looks through every file that is, or would be, under version control.
fn hygiene(run: &Run) -> Result<()> {
    println!("\n== hygiene: unfinished code, machine paths, long files");
    let listed = answer(git(run).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    let listed = listed.context("git ls-files failed: this step needs git and a clone")?;
    let (mut faults, mut scanned) = (Vec::new(), 0);
    for file in listed.split('\0').filter(|file| !file.is_empty()) {
        // A listed file may be deleted, or not be text.
        let Ok(text) = fs::read_to_string(run.root().join(file)) else {
            continue;
        };
        scanned += 1;
        faults.extend(faults_in(file, &text));
        let lines = text.lines().count();
        if file.starts_with("x/") && file.ends_with(".rs") && lines > LONG_FILE_LINES {
            println!(
                "warning: {file} has {lines} lines; over {LONG_FILE_LINES} a file of x/ is hard to review"
            );
        }
    }
    ensure!(scanned > 0, "no file is under version control");
    ensure!(faults.is_empty(), "{} faults:\n  {}", faults.len(), faults.join("\n  "));
    println!("== hygiene: ok, {scanned} files");
    Ok(())
}

/// Marks of unfinished code, in code; paths of one machine, in any text. Both lists are spelled in halves, as this file
/// is scanned too.
fn faults_in(file: &str, text: &str) -> Vec<String> {
    const UNFINISHED: [&str; 4] =
        [concat!("todo", "!"), concat!("unimple", "mented!"), concat!("TO", "DO"), concat!("FIX", "ME")];
    const MACHINE: [&str; 4] =
        [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    let extension = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
    let code = ["rs", "proto", "toml", "sh", "yaml", "yml", "js", "py"].contains(&extension)
        || file.starts_with(".ci/");
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if code {
            for mark in UNFINISHED {
                if contains_where(line, mark, |before| !before.is_alphanumeric() && before != '_') {
                    faults.push(format!("{file}:{number}: unfinished: `{mark}`"));
                }
            }
        }
        for path in MACHINE {
            // Not the middle of a longer path or of an address.
            if contains_where(line, path, |before| !before.is_alphanumeric() && !"/.-_~}".contains(before)) {
                faults.push(format!("{file}:{number}: a path of one machine: `{path}`"));
            }
        }
    }
    faults
}

/// Whether `line` contains `word` at its start or after a character that `begins` accepts.
fn contains_where(line: &str, word: &str, begins: impl Fn(char) -> bool) -> bool {
    line.match_indices(word).any(|(at, _)| line[..at].chars().next_back().is_none_or(&begins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_code_is_found_with_its_place_and_prose_is_left_alone() {
        let mark = concat!("TO", "DO");
        let text = format!("fn a() {{}}\n// {mark}: later\n");
        assert_eq!(
            faults_in("x/bank/src/lib.rs", &text),
            [format!("x/bank/src/lib.rs:2: unfinished: `{mark}`")]
        );
        assert!(faults_in("docs/style.md", &text).is_empty());
        assert_eq!(faults_in("a.rs", concat!("  todo", "!()")).len(), 1);
        assert!(faults_in("Cargo.toml", "todo = \"deny\"").is_empty());
        assert!(faults_in("a.rs", concat!("const MYTO", "DO: u8 = 1;")).is_empty());
    }

    #[test]
    fn machine_paths_are_found_in_any_text_but_not_inside_other_paths() {
        let line = concat!("see /ho", "me/alice/x");
        assert_eq!(faults_in("docs/a.md", line).len(), 1);
        assert_eq!(faults_in("a.json", concat!("\"/wo", "rk/main\"")).len(), 1);
        for harmless in
            [concat!("https://example.org/wo", "rk/1"), concat!("target/ro", "ot/"), concat!("~/wo", "rk/")]
        {
            assert!(faults_in("docs/a.md", harmless).is_empty(), "{harmless}");
        }
    }

    #[test]
    fn every_check_has_a_name_of_its_own_and_the_help_lists_them() {
        for (i, (name, _)) in STEPS.iter().enumerate() {
            assert!(STEPS[..i].iter().all(|(earlier, _)| earlier != name), "{name} twice");
        }
        assert!(
            crate::HELP.contains(&STEPS.map(|(name, _)| name).join(" ")),
            "the help must list the checks in order"
        );
    }
}
