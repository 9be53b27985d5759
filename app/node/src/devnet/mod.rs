//! `holdfastd devnet`: a small inference network works through a request load while executors fail.

pub(crate) mod clients;
pub mod config;
pub mod driver;
pub mod executors;
mod generation;
pub mod genesis;
pub mod html;
pub mod report;
pub mod resume;
pub mod svg;
pub(crate) mod terminal;
pub mod trace;
pub mod view;
pub mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result};

use config::{DevnetConfig, Preset, Source};
use report::Report;
use resume::Stored;
use terminal::Terminal;
use workload::Input;

/// Runs the devnet and returns its report, written to `--report` if asked for. A run that the home folder holds already
/// goes on where it stopped.
///
/// # Errors
/// Bad input, by file, line and column; a port in use; a folder that cannot be used, or holds a run with other settings.
pub async fn run(config: &DevnetConfig) -> Result<Report> {
    let input = match &config.source {
        Source::Trace { path, skip_bad_rows } => Input::trace(path, *skip_bad_rows)?,
        Source::Workload { seed } => Input::builtin(*seed),
    };
    if let Some(folder) = &config.report {
        // Found out now, not after the run.
        std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder)).with_context(|| {
            format!("--report: cannot write into {}; choose another folder", folder.display())
        })?;
    }
    let temporary = match &config.home {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("holdfast-devnet-").tempdir()?),
    };
    let home = config.home.clone().or_else(|| temporary.as_ref().map(|dir| dir.path().to_path_buf()));
    let home: PathBuf = home.context("no home folder")?;
    let stored = Stored::of(config, &input)?.settle(&home)?;
    let presets = if config.compare { Preset::ALL.to_vec() } else { vec![config.preset] };
    let mut terminal = Terminal::new(config.headless);
    let (mut reports, mut work) = (Vec::new(), Vec::new());
    for preset in presets {
        let folder = if config.compare { home.join(preset.name()) } else { home.clone() };
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("--home: cannot make {}", folder.display()))?;
        let result = driver::run_arm(config, &stored, preset, &input, &folder, |view, recorder| {
            Ok(terminal.show(view, recorder)?)
        })
        .await;
        if result.is_err() {
            terminal.leave();
        }
        let (report, done) = result?;
        work.extend(done.map(|done| (preset.name(), done)));
        reports.push(report);
    }
    terminal.leave();
    let report = if config.compare {
        Report::compared(reports, config.preset.name()).context("no arm of the preset")?
    } else {
        reports.pop().context("no run")?
    };
    report.check()?;
    terminal::summary(&report)?;
    for (preset, work) in work {
        crate::say::line(format_args!("work ledger ({preset}): {}", work.to_json()))?;
    }
    if let Some(folder) = &config.report {
        for path in report.write_to(folder)? {
            crate::say::line(format_args!("wrote {}", path.display()))?;
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::solo::BlockStore;

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &target);
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }

    fn config(home: &Path) -> DevnetConfig {
        DevnetConfig {
            source: Source::Workload { seed: 1 },
            blocks: Some(9),
            block_seconds: 1,
            executors: executors::parse_spec("2*healthy,refusing,liar,dying(3)").unwrap(),
            preset: Preset::Recommended,
            compare: false,
            seed: 4,
            home: Some(home.to_owned()),
            listen: ([127, 0, 0, 1], 0).into(),
            report: None,
            headless: true,
            realtime: false,
            runner: false,
            command: "holdfastd devnet".into(),
        }
    }

    async fn ended(home: &Path) -> Report {
        let mut report = run(&config(home)).await.unwrap();
        report.block_ms = report::BlockTimes::default();
        report.tx.per_second = 0;
        report
    }

    #[tokio::test]
    async fn a_run_of_which_only_the_first_blocks_are_left_ends_like_the_whole() {
        let dir = tempfile::tempdir().unwrap();
        let whole = dir.path().join("whole");
        let expected = ended(&whole).await;
        assert!(expected.requests.finished > 0 && expected.tx.failed > 0 && expected.requests.started > 20);
        assert_eq!(ended(&whole).await, expected, "of a complete run");
        for (kept, results) in [(1, true), (4, false), (5, true), (8, false), (8, true), (9, false)] {
            let home = dir.path().join(format!("{kept}-{results}"));
            copy(&whole, &home);
            // A state that is behind executes the blocks again; it must not be ahead.
            fs::remove_dir_all(home.join("state")).unwrap();
            let blocks = BlockStore::open(&home.join("blocks")).unwrap();
            for height in kept + 1..=9 {
                blocks.lose_block(height);
            }
            if !results {
                blocks.lose_results(kept);
            }
            drop(blocks);
            assert_eq!(ended(&home).await, expected, "{kept} blocks, results of the last: {results}");
        }
    }

    #[tokio::test]
    async fn blocks_that_do_not_follow_from_the_settings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        ended(dir.path()).await;
        let file = dir.path().join(resume::FILE);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("\"seed\": 4", "\"seed\": 5")).unwrap();
        let error = run(&DevnetConfig { seed: 5, ..config(dir.path()) }).await.unwrap_err().to_string();
        assert!(error.contains("does not follow") && error.contains("(devnet error 154)"), "{error}");
    }
}
