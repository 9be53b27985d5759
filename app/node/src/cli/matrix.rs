//! `holdfastd matrix`: what becomes of a generation in a clean run and in eight mishaps.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use holdfast_runner::matrix::{self, LocalStage, Matrix, Pace, Row, Stage};
use holdfast_runner::shard::Compute;
use holdfast_runner::{BoundaryAdapter, Clock, TextCodec, VirtualClock};
use serde_json::{Value, json};

use super::backend::{self, Backend, BackendArgs};
use super::error::fail;
use super::output::Io;
use super::{files, wiring};
use crate::stage::ProcessStage;

/// The prompt of a model that knows words.
const PROMPT: &str = "The capital of France is";

/// Runs the failure matrix and prints it: a clean run and eight mishaps, how each attempt ends, and what is billed
#[derive(Debug, clap::Args)]
pub(crate) struct MatrixArgs {
    #[command(flatten)]
    backend: BackendArgs,
    /// Run over N worker processes, each the faulty one in turn, that are really killed, stopped and cut off
    /// [default: in this process, on a virtual clock]
    #[arg(long, value_name = "N", value_parser = backend::workers)]
    workers: Option<u32>,
    /// File for the result
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A pace for real processes on a busy machine.
pub(crate) fn pace(backend: Backend) -> Pace {
    let total_ms = if backend == Backend::Reference { 2_000 } else { 8_000 };
    Pace { step_ms: 0, total_ms, heartbeat_ms: 2_500, hold_ms: 1_000 }
}

pub(crate) fn run(args: &MatrixArgs, io: &mut Io<'_>) -> Result<()> {
    let opened = args.backend.open()?;
    let prompt = match args.backend.backend {
        Backend::Reference => matrix::PROMPT.to_vec(),
        Backend::Candle => opened.codec().encode(PROMPT).map_err(|e| fail(91, "--model", e.to_string()))?,
        Backend::OpenaiHttp => {
            let text = "an upstream's failures are its own; use reference or candle";
            return Err(fail(12, "--backend", text));
        }
    };
    let ran = match args.workers {
        None => {
            let clock = VirtualClock::new();
            let time: Arc<dyn Clock> = Arc::new(clock.clone());
            let shards = |clock: Arc<dyn Clock>| {
                let shard =
                    opened.model("shard", None, clock, Compute::Inline).map_err(|e| format!("{e:#}"))?;
                Ok(vec![shard as Arc<dyn BoundaryAdapter>])
            };
            let mut stage = LocalStage { clock: time, prompt, shards, count: 1, pace: Pace::VIRTUAL };
            clock.run(matrix::run(&mut stage))
        }
        Some(workers) => {
            let layers = opened.ranges(workers)?;
            let command = args.backend.worker_command()?;
            let mut stage = ProcessStage::new(command, layers, prompt, pace(args.backend.backend));
            wiring::children(async { Ok(matrix::run(&mut stage as &mut (dyn Stage + Send)).await) })?
        }
    };
    let ran = ran.map_err(|e| fail(93, "matrix", e.to_string()))?;
    if let Some(file) = &args.json {
        let value = json(&ran, opened.codec().as_ref());
        files::write_whole(file, format!("{value:#}\n").as_bytes(), false)?;
    }
    io.out.write_all(table(&ran).as_bytes())?;
    Ok(())
}

fn json(ran: &Matrix, codec: &dyn TextCodec) -> Value {
    let row = |row: &Row| {
        json!({
            "scenario": row.scenario,
            "status": row.status,
            "failure_kind": row.failure_kind,
            "tokens": row.tokens,
            "restartable": row.restartable,
            "kv": row.kv,
            "kv_entries_left": row.kv_entries_left,
            "epoch": row.epoch,
            "uncertain_step": row.uncertain_step,
            "output": codec.decode(&row.output).unwrap_or_default(),
            "token_ids": row.output,
        })
    };
    json!({ "rows": ran.rows.iter().map(row).collect::<Vec<_>>(), "ledger": ran.ledger.to_json() })
}

/// The table as the source prints it.
fn table(ran: &Matrix) -> String {
    let yes = |value: Option<bool>| value.map_or("–", |value| if value { "yes" } else { "no" }).to_owned();
    let mut rows =
        vec![["scenario", "status", "failure_kind", "tokens", "restartable", "KV"].map(str::to_owned)];
    rows.extend(ran.rows.iter().map(|row| {
        let epoch = if row.epoch > 0 { format!(" (epoch {})", row.epoch) } else { String::new() };
        [
            row.scenario.as_str().to_owned(),
            format!("{}{epoch}", row.status.as_str()),
            row.failure_kind.map_or("–", |kind| kind.as_str()).to_owned(),
            row.tokens.map_or("–".to_owned(), |tokens| tokens.to_string()),
            yes(row.restartable),
            row.kv.as_str().replace('-', " "),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    let left: u64 = ran.rows.iter().map(|row| row.kv_entries_left).sum();
    let ledger = &ran.ledger;
    text.push_str(&format!(
        "\nledger: {{completed: {}, cancelled: {}, failed: {}, unverified: {}}}, {} billable tokens \
         (clean, cancel, worker_death, alpha_failover), {left} KV entries left\n",
        ledger.completed, ledger.cancelled, ledger.failed, ledger.unverified, ledger.billable_tokens
    ));
    text
}
