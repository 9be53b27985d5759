//! `holdfastd devnet`: a small inference network works through a request load while executors fail.

mod clients;
pub mod config;
pub mod driver;
pub mod executors;
pub mod genesis;
pub mod html;
pub mod report;
pub mod svg;
mod terminal;
pub mod trace;
pub mod view;
pub mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result};

use config::{DevnetConfig, Preset, Source};
use report::Report;
use terminal::Terminal;
use workload::Input;

/// Runs the devnet and returns its report, written to `--report` if asked for.
///
/// # Errors
/// Bad input, by file, line and column; a port in use; a folder that cannot be used.
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
    let presets = if config.compare { Preset::ALL.to_vec() } else { vec![config.preset] };
    let mut terminal = Terminal::new(config.headless);
    let mut reports = Vec::new();
    for preset in presets {
        let folder = if config.compare { home.join(preset.name()) } else { home.clone() };
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("--home: cannot make {}", folder.display()))?;
        let result =
            driver::run_arm(config, preset, &input, &folder, |view, recorder| terminal.show(view, recorder))
                .await;
        if result.is_err() {
            terminal.leave();
        }
        reports.push(result?);
    }
    terminal.leave();
    let report = if config.compare {
        Report::compared(reports, config.preset.name()).context("no arm of the preset")?
    } else {
        reports.pop().context("no run")?
    };
    report.check()?;
    terminal::summary(&report);
    if let Some(folder) = &config.report {
        for path in report.write_to(folder)? {
            println!("wrote {}", path.display());
        }
    }
    Ok(report)
}
