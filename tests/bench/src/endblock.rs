//! The end of a block with a hundred touched entries, among more and more participants.
//!
//! | rows | what is timed |
//! |---|---|
//! | `keeper` | the breaker's own step, over a store in memory that holds an entry of every participant |
//! | `app` | all steps of the application's end of a block, on disk, after a hundred finishes |
//! | `expiry` | the same steps when a hundred inferences expire in them: refunds and excuses too |
//! | `expiry_finalize` | FinalizeBlock of that block, which has no transactions: the new state root too |
//!
//! The same hundred participants in each block, spread evenly. The parameters let no rule be met, so that every block does the
//! same.

use anyhow::{Result, ensure};
use holdfast_app::app::Block;
use holdfast_app::state::CommitStore;
use holdfast_breaker::Keeper;
use holdfast_proto::Any;
use holdfast_store::BranchKv;
use holdfast_testkit::{StaticGroup, TestChain, addr_n};
use holdfast_types::traits::{InferenceHooks, InferenceOutcome, Stamp};
use holdfast_types::{Address, BlockContext, Context, ValidationParams};

use crate::measure::{Took, timed};
use crate::scene::{MODEL, Scene, all_succeeded};
use crate::{Outcome, Row, median};

/// Entries touched in a block.
const TOUCHED: usize = 100;
/// How much more the step may take among the most participants than among the fewest.
const FLAT: f64 = 1.5;

/// How much to do.
#[derive(Debug, Clone)]
pub struct Size {
    /// Numbers of participants for the keeper, ascending.
    pub keeper: &'static [usize],
    /// Numbers of participants for the application, ascending.
    pub app: &'static [usize],
    /// Blocks measured, of which the median counts.
    pub blocks: usize,
}

impl Size {
    /// The published one.
    pub const FULL: Self =
        Self { keeper: &[100, 1_000, 10_000, 100_000], app: &[100, 1_000, 10_000, 100_000], blocks: 41 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { keeper: &[100, 1_000], app: &[100, 200], blocks: 3 };
}

fn lenient() -> ValidationParams {
    ValidationParams {
        health_cb_consecutive_misses: 0,
        health_cb_min_samples: u64::MAX,
        ..ValidationParams::recommended()
    }
}

/// Runs both, every number of participants.
pub fn run(size: &Size) -> Result<Outcome> {
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    let mut add = |name: &str, took: &[Took]| -> f64 {
        let wall: Vec<f64> = took.iter().map(|t| t.wall_us(1)).collect();
        let cpu: Vec<f64> = took.iter().map(|t| t.cpu_us(1)).collect();
        rows.push(Row::new(&format!("endblock.{name}"), "us", median(&wall)));
        rows.push(Row::new(&format!("endblock.{name}.cpu"), "us", median(&cpu)));
        details.insert(name.into(), serde_json::json!({ "wall_us": wall, "cpu_us": cpu }));
        median(&cpu)
    };
    let (mut of_keeper, mut of_app) = (Vec::new(), Vec::new());
    for &count in size.keeper {
        of_keeper.push(add(&format!("keeper.{count}"), &keeper(count, size.blocks)?));
    }
    for &count in size.app {
        let times = app(count, size.blocks)?;
        of_app.push(add(&format!("app.{count}"), &times.outcomes));
        add(&format!("expiry.{count}"), &times.expiry);
        add(&format!("expiry_finalize.{count}"), &times.finalize);
    }
    for (name, participants, cpu) in [("keeper", size.keeper, of_keeper), ("app", size.app, of_app)] {
        if let (Some(first), Some(few), Some(many)) = (cpu.first(), participants.first(), participants.last())
        {
            let worst = cpu.iter().copied().fold(0.0, f64::max) / first;
            rows.push(
                Row::new(&format!("endblock.{name}.flat_{few}_to_{many}"), "times", worst).at_most(FLAT),
            );
        }
    }
    Ok(Outcome { rows, details: details.into() })
}

/// What the application's blocks took.
#[derive(Debug, Default)]
struct Times {
    outcomes: Vec<Took>,
    expiry: Vec<Took>,
    finalize: Vec<Took>,
}

/// The participants touched: spread evenly, the same in each block, as among a hundred it cannot be otherwise.
fn touched(participants: usize) -> impl Iterator<Item = usize> {
    let step = (participants / TOUCHED).max(1);
    (0..TOUCHED).map(move |i| i * step % participants)
}

fn keeper(participants: usize, blocks: usize) -> Result<Vec<Took>> {
    let address = |i: usize| -> Address { addr_n(i as u64 + 1) };
    let mut group = StaticGroup::new();
    for i in 0..participants {
        group.add_member(MODEL, address(i), 80 + 10 * (i as u64 % 5));
    }
    let breaker = Keeper::new(&group);
    let mut chain = TestChain::new(1);
    chain.block.params = lenient();
    chain.ctx(|ctx| breaker.start_epoch(ctx, &group.totals()))?;
    let outcome = |i: usize| InferenceOutcome {
        inference_id: format!("i{i}"),
        model: MODEL.into(),
        executor: address(i),
        stamp: Stamp { epoch: 0, generation: 0, evidence: true },
    };
    // An entry of everybody first.
    chain.ctx(|ctx| -> Result<()> {
        for i in 0..participants {
            breaker.after_inference_finished(ctx, &outcome(i))?;
        }
        Ok(breaker.end_block(ctx)?)
    })?;
    let mut times = Vec::new();
    for _ in 0..blocks {
        chain.block.height += 1;
        // On the block's branch, as in the application.
        let mut branch = BranchKv::new(&chain.store);
        let mut events = Vec::new();
        let mut ctx = Context::new(&chain.block, &mut branch, &mut events);
        for (at, i) in touched(participants).enumerate() {
            match at % 5 {
                0 => breaker.after_inference_missed(&mut ctx, &outcome(i))?,
                _ => breaker.after_inference_finished(&mut ctx, &outcome(i))?,
            }
        }
        let (done, took) = timed(|| breaker.end_block(&mut ctx));
        done?;
        ensure!(events.is_empty(), "a rule was met");
        times.push(took);
        BranchKv::apply(branch.into_writes(), &mut chain.store)?;
    }
    Ok(times)
}

fn app(participants: usize, blocks: usize) -> Result<Times> {
    let params = lenient();
    let wait = usize::try_from(params.expiration_blocks)?;
    let mut scene = Scene::new(TOUCHED, participants, Some(params))?;
    let mut times = Times::default();
    for number in 0..blocks {
        let started = starts(&mut scene, participants, &format!("finished-{number}"))?;
        let answers: Vec<Any> = started
            .iter()
            .map(|(executor, id)| scene.finish_message(*executor, id))
            .collect::<Result<_>>()?;
        let block = scene.block(Vec::new());
        times.outcomes.push(end_block(&scene, &block, &answers)?);
        let mut txs = Vec::new();
        for (executor, id) in &started {
            txs.push(scene.finish(*executor, id)?);
        }
        run_block(&mut scene, txs)?;
    }
    // Starts of several blocks in a row; blocks that wait; then the blocks in which they expire.
    let in_a_row = (wait / 2).min(blocks.max(1));
    while times.expiry.len() < blocks {
        for _ in 0..in_a_row {
            let label = format!("expired-{}", scene.app.height());
            starts(&mut scene, participants, &label)?;
        }
        for _ in in_a_row..wait {
            run_block(&mut scene, Vec::new())?;
        }
        for _ in 0..in_a_row {
            let block = scene.block(Vec::new());
            times.expiry.push(end_block(&scene, &block, &[])?);
            let (finalized, took) = timed(|| scene.app.finalize_block(&block));
            let expired = "holdfast.inference.v1.EventInferenceMissed";
            let misses = finalized?.events.iter().filter(|event| event.kind == expired).count();
            ensure!(misses == TOUCHED, "{misses} inferences expired instead of {TOUCHED}");
            scene.app.commit()?;
            times.finalize.push(took);
        }
    }
    Ok(times)
}

/// A block of starts, one on each touched participant; gives executors and ids.
fn starts(scene: &mut Scene, participants: usize, label: &str) -> Result<Vec<(usize, String)>> {
    let started: Vec<(usize, String)> =
        touched(participants).enumerate().map(|(at, executor)| (executor, format!("{label}-{at}"))).collect();
    let mut txs = Vec::new();
    for (at, (executor, id)) in started.iter().enumerate() {
        txs.push(scene.start(at, *executor, id)?);
    }
    run_block(scene, txs)?;
    Ok(started)
}

pub(crate) fn run_block(scene: &mut Scene, txs: Vec<Vec<u8>>) -> Result<()> {
    let block = scene.block(txs);
    all_succeeded(&scene.app.finalize_block(&block)?)?;
    Ok(scene.app.commit()?)
}

/// The end of `block` by itself, after these messages, on a branch of the last commit that is dropped.
pub(crate) fn end_block(scene: &Scene, block: &Block, messages: &[Any]) -> Result<Took> {
    let shared = scene.app.shared();
    let snapshot = shared.store().snapshot();
    let mut branch = BranchKv::new(&snapshot);
    let mut events = Vec::new();
    let context = BlockContext {
        height: block.height,
        time_ns: block.time_ns,
        previous_app_hash: scene.app.app_hash(),
        ..shared.view(0)?.block.clone()
    };
    let composition = shared.composition();
    let context = composition.begin_block(&mut Context::new(&context, &mut branch, &mut events))?;
    for message in messages {
        composition.deliver(&mut Context::new(&context, &mut branch, &mut events), message)?;
    }
    let (done, took) = timed(|| composition.end_block(&mut Context::new(&context, &mut branch, &mut events)));
    done?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_entries_are_touched_in_keeper_and_application() {
        let outcome = run(&Size { keeper: &[100, 300], app: &[100], blocks: 1 }).unwrap();
        assert!(outcome.rows.iter().all(|row| row.value > 0.0));
        assert!(outcome.rows.iter().any(|row| row.name == "endblock.keeper.flat_100_to_300"));
        let mut seen: Vec<usize> = touched(1_000).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), TOUCHED);
    }
}
