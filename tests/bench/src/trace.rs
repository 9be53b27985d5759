//! The whole devnet, headless, one arm: requests over gRPC, signed transactions, blocks on disk, in one process of its own.

use std::path::Path;

use anyhow::Result;
use holdfast_node::devnet::config::{DevnetConfig, Preset, Source};
use holdfast_node::devnet::executors::default_executors;

use crate::measure::{cpu_so_far, peak_rss_bytes, timed};
use crate::{Outcome, Row};

/// Seconds the run may take.
const SECONDS: f64 = 60.0;
/// Megabytes of memory it may take.
const MEGABYTES: f64 = 500.0;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Blocks; `None`: the whole input.
    pub blocks: Option<u64>,
}

impl Size {
    /// All of it.
    pub const FULL: Self = Self { blocks: None };
    /// A check that everything runs.
    pub const QUICK: Self = Self { blocks: Some(30) };
}

/// Runs the trace in `file`, or the built-in workload. Peak memory is the process's: run nothing else in it.
pub fn run(size: Size, file: Option<&Path>) -> Result<Outcome> {
    let (name, source) = match file {
        Some(path) => ("trace", Source::Trace { path: path.to_owned(), skip_bad_rows: false }),
        None => ("workload", Source::Workload { seed: 1 }),
    };
    let config = DevnetConfig {
        source,
        blocks: size.blocks,
        block_seconds: 5,
        executors: default_executors(),
        preset: Preset::Recommended,
        compare: false,
        seed: 1,
        home: None,
        listen: ([127, 0, 0, 1], 0).into(),
        report: None,
        headless: true,
        realtime: false,
        runner: false,
        command: "holdfast-bench".into(),
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let (report, took) = timed(|| runtime.block_on(holdfast_node::devnet::run(&config)));
    let report = report?;
    let row = |what: &str, unit: &str, value: f64| Row::new(&format!("{name}.{what}"), unit, value);
    let rows = vec![
        row("total", "s", took.wall.as_secs_f64()).below(SECONDS),
        row("total_cpu", "s", cpu_so_far().as_secs_f64()),
        row("peak_rss", "MB", peak_rss_bytes() / 1e6).below(MEGABYTES),
        row("finalize_p50", "ms", report.block_ms.finalize_p50),
        row("finalize_p99", "ms", report.block_ms.finalize_p99),
        row("commit_p50", "ms", report.block_ms.commit_p50),
        row("commit_p99", "ms", report.block_ms.commit_p99),
        row("requests", "1", report.requests.offered as f64),
        row("blocks", "1", report.blocks as f64),
    ];
    let details = serde_json::json!({ "app_hash": report.app_hash, "requests": report.requests, "tx": report.tx,
        "miss_rate_bp": report.miss_rate_bp });
    Ok(Outcome { rows, details })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_offers_requests_and_reports_its_memory() {
        let outcome = run(Size { blocks: Some(6) }, None).unwrap();
        let value = |name: &str| outcome.rows.iter().find(|row| row.name == name).unwrap().value;
        assert_eq!(value("workload.blocks"), 6.0);
        assert!(value("workload.peak_rss") > 1.0 && value("workload.total") > 0.0);
    }
}
