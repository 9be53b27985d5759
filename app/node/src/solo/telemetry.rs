//! Prometheus metrics of a node. They follow committed blocks; nothing reads them back.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `holdfast_block_height` | gauge | |
//! | `holdfast_mempool_txs` | gauge; solo engine only, CometBFT has its own | |
//! | `holdfast_txs_total` | counter | `result`: ok, failed |
//! | `holdfast_block_finalize_seconds`, `holdfast_block_commit_seconds` | histogram (summary) | |
//! | `holdfast_breaker_executors` | gauge | `model`, `state`: healthy, excluded, probe_ready, probe_claimed, forced |
//! | `holdfast_breaker_out_weight_ratio` | gauge | `model` |
//! | `holdfast_breaker_exclusions_total` | counter | `model`, `rule`: rate, streak, probe, override |
//! | `holdfast_breaker_refusals_total` | counter | `model`, `reason`: cap, freeze, forced |
//! | `holdfast_breaker_restorations_total` | counter | `model`, `cause`: probe, override |
//! | `holdfast_inference_outcomes_total` | counter | `outcome`: finished, missed, released |

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use holdfast_app::app::{FinalizedBlock, Shared};
use holdfast_app::state::CommitStore;
use holdfast_breaker::State;
use holdfast_breaker::state::{ENTRIES, MODEL_TALLIES};
use holdfast_store::Order;
use holdfast_types::Event;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::engine::{BlockTimes, Engine, ProducedBlock};

/// Entries looked at for the gauges of one block; a chain beyond that still counts its transitions.
const ENTRIES_MAX: usize = 100_000;

/// Serves `/metrics` on `addr`. Call inside a tokio runtime.
///
/// # Errors
/// A port in use, or a second call in the same process.
pub fn install(addr: SocketAddr) -> Result<()> {
    PrometheusBuilder::new()
        .with_http_listener(addr)
        .install()
        .map_err(|e| crate::cli::in_use("--metrics-listen", addr, &e))
}

/// Takes in a committed block.
///
/// # Errors
/// Corrupt state.
pub fn record<S: CommitStore>(engine: &Engine<S>, produced: &ProducedBlock) -> Result<()> {
    gauge!("holdfast_mempool_txs").set(engine.waiting() as f64);
    block(engine.shared(), produced.block.height, &produced.finalized, produced.times)
}

/// Takes in a committed block of any engine; the pool is the engine's own to count.
///
/// # Errors
/// Corrupt state.
pub fn block<S: CommitStore>(
    shared: &Shared<S>,
    height: i64,
    finalized: &FinalizedBlock,
    times: BlockTimes,
) -> Result<()> {
    // Heights stay exact far beyond any chain's age.
    gauge!("holdfast_block_height").set(height as f64);
    histogram!("holdfast_block_finalize_seconds").record(times.finalize);
    histogram!("holdfast_block_commit_seconds").record(times.commit);
    for result in &finalized.tx_results {
        counter!("holdfast_txs_total", "result" => if result.code == 0 { "ok" } else { "failed" })
            .increment(1);
        result.events.iter().for_each(event);
    }
    finalized.events.iter().for_each(event);
    states(shared)
}

fn event(event: &Event) {
    let get = |name: &str| event.get(name).unwrap_or_default().to_owned();
    let model = || get("model");
    match event.kind.as_str() {
        "holdfast.breaker.v1.EventExecutorExcluded" => {
            counter!("holdfast_breaker_exclusions_total", "model" => model(), "rule" => get("rule"))
                .increment(1);
        }
        "holdfast.breaker.v1.EventExclusionRefused" => {
            counter!("holdfast_breaker_refusals_total", "model" => model(), "reason" => get("reason"))
                .increment(1);
        }
        "holdfast.breaker.v1.EventExecutorRestored" => {
            let cause = get("cause");
            counter!("holdfast_breaker_restorations_total", "model" => model(), "cause" => cause)
                .increment(1);
        }
        "holdfast.inference.v1.EventInferenceFinished" => outcome("finished"),
        "holdfast.inference.v1.EventInferenceMissed" => outcome("missed"),
        "holdfast.inference.v1.EventInferenceReleased" => outcome("released"),
        _ => {}
    }
}

fn outcome(name: &'static str) {
    counter!("holdfast_inference_outcomes_total", "outcome" => name).increment(1);
}

/// Gauges by model and state, from the view that queries read.
fn states<S: CommitStore>(shared: &Shared<S>) -> Result<()> {
    let view = shared.view(0)?;
    let q = view.query();
    let mut counts: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
    for row in MODEL_TALLIES.prefix(q.store, &q.block.epoch, Order::Ascending) {
        let ((_, model), tally) = row?;
        let share = if tally.eligible_weight == 0 {
            0.0
        } else {
            tally.out_weight as f64 / tally.eligible_weight as f64
        };
        gauge!("holdfast_breaker_out_weight_ratio", "model" => model.clone()).set(share);
        counts.insert((model.clone(), "healthy"), tally.healthy_all.into());
        for state in ["excluded", "probe_ready", "probe_claimed", "forced"] {
            counts.insert((model.clone(), state), 0);
        }
    }
    for row in ENTRIES.prefix(q.store, &q.block.epoch, Order::Ascending).take(ENTRIES_MAX) {
        let ((_, model, _), entry) = row?;
        let mut add = |state| *counts.entry((model.clone(), state)).or_default() += 1;
        match (entry.state, &entry.probe) {
            (State::Healthy, _) => {}
            (State::Excluded, _) => add("excluded"),
            (State::Probe, None) => add("probe_ready"),
            (State::Probe, Some(_)) => add("probe_claimed"),
        }
        if entry.forced.is_some() {
            add("forced");
        }
    }
    for ((model, state), count) in counts {
        gauge!("holdfast_breaker_executors", "model" => model, "state" => state).set(count as f64);
    }
    Ok(())
}
