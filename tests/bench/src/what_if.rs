//! What the record for what-if queries costs a block: FinalizeBlock and Commit without it, with it in memory, and on disk.
//!
//! Three chains take turns with the same blocks, in turning order: all suffer alike from a busy machine. A block holds as many
//! starts as finishes, each an item of the record.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use holdfast_app::app::AppOptions;
use holdfast_app::what_if::Log;

use crate::measure::{Took, timed};
use crate::scene::{Scene, all_succeeded};
use crate::{Better, Outcome, Row, median};

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Starts in a block, and finishes.
    pub messages: usize,
    /// Participants.
    pub participants: usize,
    /// Blocks before the clock, at least one.
    pub warm_up: usize,
    /// Blocks.
    pub blocks: usize,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self { messages: 500, participants: 1_000, warm_up: 3, blocks: 24 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { messages: 20, participants: 50, warm_up: 1, blocks: 3 };
}

/// The three chains.
const NAMES: [&str; 3] = ["none", "in_memory", "on_disk"];

fn log(name: &str, dir: &Path) -> Option<Arc<Log>> {
    match name {
        "in_memory" => Some(Arc::new(Log::in_memory())),
        "on_disk" => Some(Arc::new(Log::on_disk(dir.join("what-if")))),
        _ => None,
    }
}

/// A chain with its record and what its blocks took.
struct Chain {
    scene: Scene,
    log: Option<Arc<Log>>,
    took: Vec<Took>,
}

/// Runs the blocks on all three.
pub fn run(size: Size) -> Result<Outcome> {
    let mut chains = Vec::new();
    for name in NAMES {
        let mut kept = None;
        let scene = Scene::with_options(size.messages, size.participants, None, |dir| {
            kept = log(name, dir);
            AppOptions { what_if: kept.clone(), ..AppOptions::default() }
        })?;
        chains.push(Chain { scene, log: kept, took: Vec::new() });
    }
    let mut answered: Vec<(usize, String)> = Vec::new();
    for number in 0..size.warm_up + size.blocks {
        let started: Vec<(usize, String)> = (0..size.messages)
            .map(|i| ((number * size.messages + i) % size.participants, format!("bench-{number}-{i}")))
            .collect();
        for turn in 0..chains.len() {
            let at = (number + turn) % chains.len();
            let Chain { scene, took, .. } = &mut chains[at];
            let mut txs = Vec::new();
            for (gateway, (executor, id)) in started.iter().enumerate() {
                txs.push(scene.start(gateway, *executor, id)?);
            }
            for (executor, id) in &answered {
                txs.push(scene.finish(*executor, id)?);
            }
            let block = scene.block(txs);
            // As in a running node, where CheckTx has seen the signatures.
            let shared = scene.app.shared();
            for tx in &block.txs {
                shared.check_tx(tx).map_err(|e| anyhow::anyhow!("CheckTx: {e}"))?;
            }
            let (finalized, finalize) = timed(|| scene.app.finalize_block(&block));
            all_succeeded(&finalized?)?;
            let (committed, commit) = timed(|| scene.app.commit());
            committed?;
            if number >= size.warm_up {
                took.push(finalize + commit);
            }
        }
        answered = started;
    }
    for (chain, name) in chains.iter().zip(NAMES) {
        ensure!(chain.scene.app.app_hash() == chains[0].scene.app.app_hash(), "{name}: another app hash");
        if let Some(log) = &chain.log {
            ensure!(log.stopped().is_none(), "{name}: the record stopped: {:?}", log.stopped());
            let last = log.extents().last().map(|extent| extent.to);
            ensure!(last == Some(chain.scene.app.height()), "{name}: recorded up to {last:?}");
        }
    }
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    let ms = |took: &[Took]| -> Vec<f64> { took.iter().map(|took| took.wall_us(1) / 1e3).collect() };
    let cpu = |took: &[Took]| -> Vec<f64> { took.iter().map(|took| took.own_us(1) / 1e3).collect() };
    let without = &chains[0].took;
    for (chain, name) in chains.iter().zip(NAMES) {
        let row = |what: &str, of: &dyn Fn(&[Took]) -> Vec<f64>| {
            let row = Row::new(&format!("what_if.{name}.{what}"), "ms", median(&of(&chain.took)));
            match chain.log {
                Some(_) => row.against("no record", median(&of(without)), Better::Lower),
                None => row,
            }
        };
        rows.push(row("block", &ms));
        rows.push(row("block_own_thread", &cpu));
        if chain.log.is_some() {
            let pairs = chain.took.iter().zip(without);
            let times: Vec<f64> = pairs.map(|(with, without)| with.own_us(1) / without.own_us(1)).collect();
            rows.push(Row::new(&format!("what_if.{name}.cost"), "times", median(&times)));
        }
        details.insert(name.into(), serde_json::json!({ "ms": ms(&chain.took), "own_ms": cpu(&chain.took) }));
    }
    Ok(Outcome { rows, details: details.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_chains_run_and_two_of_them_record() {
        let outcome = run(Size { messages: 4, participants: 5, warm_up: 1, blocks: 2 }).unwrap();
        let costs = outcome.rows.iter().filter(|row| row.name.ends_with(".cost")).count();
        assert_eq!((outcome.rows.len(), costs), (8, 2));
        assert!(outcome.rows.iter().all(|row| row.value > 0.0));
    }
}
