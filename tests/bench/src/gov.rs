//! The end of a block while ten thousand proposals are open whose deposits fall due later, against none.
//!
//! | rows | what is timed |
//! |---|---|
//! | `keeper` | x/gov's own step, over a store in memory |
//! | `app` | all steps of the application's end of a block, on disk |
//! | `app_block` | FinalizeBlock of a block without transactions, on disk |
//!
//! Two chains take turns, one with the proposals and one without: both suffer alike from a busy machine.

use anyhow::{Result, ensure};
use holdfast_gov::{Deps, GovModule, Keeper, Submission, abci, state::DEPOSIT_QUEUE};
use holdfast_proto::Any;
use holdfast_store::{BranchKv, KvRead, Order, StoreError};
use holdfast_testkit::{MemAccounts, MemBank, TestChain, addr};
use holdfast_types::traits::{MessageRouter, VotingPower};
use holdfast_types::{Address, BlockContext, Coin, Context, Hrp, Module, ModuleError, sdk};

use crate::endblock::{end_block, run_block};
use crate::measure::{Took, timed};
use crate::scene::Scene;
use crate::{Better, Outcome, Row, median};

/// How much more the step may take with the proposals than without.
const FLAT: f64 = 1.5;
/// Proposals submitted in a block, each by an account of its own.
const IN_A_BLOCK: usize = 1_000;
/// Participants of the application's chains.
const PARTICIPANTS: usize = 100;
/// Calls of x/gov's own step that are timed together: one takes about a microsecond.
const CALLS: usize = 1_000;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Open proposals.
    pub proposals: usize,
    /// Blocks measured, of which the median counts.
    pub blocks: usize,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self { proposals: 10_000, blocks: 101 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { proposals: 200, blocks: 3 };
}

/// Neighbours that are never asked: nothing is due.
struct Nobody;

impl VotingPower for Nobody {
    fn power(&self, _: &dyn KvRead, _: &BlockContext, _: &Address) -> Result<u128, StoreError> {
        Ok(0)
    }

    fn total_power(&self, _: &dyn KvRead, _: &BlockContext) -> Result<u128, StoreError> {
        Ok(0)
    }
}

impl Nobody {
    fn refuse<T>() -> Result<T, ModuleError> {
        Err(ModuleError::sdk(sdk::UNKNOWN_REQUEST, "no module takes messages here"))
    }
}

impl MessageRouter for Nobody {
    fn check(&self, _: &Any) -> Result<(), ModuleError> {
        Self::refuse()
    }

    fn signers(&self, _: &Any, _: &Hrp) -> Result<Vec<Address>, ModuleError> {
        Self::refuse()
    }

    fn deliver(&self, _: &mut Context<'_>, _: &Any) -> Result<Any, ModuleError> {
        Self::refuse()
    }
}

/// Runs both.
pub fn run(size: Size) -> Result<Outcome> {
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    let [keeper_none, keeper_many] = keeper(size)?;
    let App { end, block } = app(size)?;
    for (name, per, [none, many]) in
        [("keeper", CALLS, [keeper_none, keeper_many]), ("app", 1, end), ("app_block", 1, block)]
    {
        let us = |took: &[Took]| -> Vec<f64> { took.iter().map(|took| took.wall_us(per)).collect() };
        let own = |took: &[Took]| -> Vec<f64> { took.iter().map(|took| took.own_us(per)).collect() };
        let open = size.proposals;
        rows.push(Row::new(&format!("gov.{name}.{open}_open"), "us", median(&us(&many))).against(
            "none open",
            median(&us(&none)),
            Better::Lower,
        ));
        // By processor time of the thread that runs the step.
        let flat = median(&own(&many)) / median(&own(&none));
        rows.push(Row::new(&format!("gov.{name}.flat_0_to_{open}"), "times", flat).at_most(FLAT));
        details.insert(name.into(), serde_json::json!({ "none_us": us(&none), "open_us": us(&many) }));
    }
    Ok(Outcome { rows, details: details.into() })
}

/// Times of x/gov's step without and with the proposals.
fn keeper(size: Size) -> Result<[Vec<Took>; 2]> {
    let deps = Deps { bank: &MemBank, accounts: &MemAccounts, power: &Nobody, router: &Nobody };
    let mut chains = [TestChain::new(1), TestChain::new(1)];
    for (chain, proposals) in chains.iter_mut().zip([0, size.proposals]) {
        chain.block.time_ns = 1_700_000_000_000_000_000;
        let module = GovModule { bank: &MemBank };
        chain.ctx(|ctx| module.init_genesis(ctx, &module.default_genesis()))?;
        let proposer = addr(1);
        chain.ctx(|ctx| MemBank.set(ctx, &proposer, "uhold", u128::MAX));
        for number in 0..proposals {
            let submission = Submission {
                proposer,
                messages: Vec::new(),
                deposit: vec![Coin { denom: "uhold".into(), amount: 1_000_000 }],
                title: format!("Proposal {number}"),
                summary: "What it is about".into(),
                metadata: "text only".into(),
                expedited: false,
            };
            let (_, voting) = chain.message(|ctx| Keeper.submit(ctx, &deps, submission))?;
            ensure!(!voting, "the deposit opened a vote");
        }
        let open = DEPOSIT_QUEUE.iter(&chain.store, Order::Ascending).count();
        ensure!(open == proposals, "{open} proposals are open instead of {proposals}");
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..size.blocks {
        for (chain, times) in chains.iter_mut().zip(&mut times) {
            chain.block.height += 1;
            chain.block.time_ns += 1_000_000_000;
            // On the block's branch, as in the application.
            let mut branch = BranchKv::new(&chain.store);
            let mut events = Vec::new();
            let mut ctx = Context::new(&chain.block, &mut branch, &mut events);
            let (done, took) = timed(|| (0..CALLS).try_for_each(|_| abci::end_block(&mut ctx, &deps)));
            done?;
            ensure!(events.is_empty() && branch.into_writes().is_empty(), "something was due");
            times.push(took);
        }
    }
    Ok(times)
}

/// Times without and with the proposals.
struct App {
    end: [Vec<Took>; 2],
    block: [Vec<Took>; 2],
}

fn app(size: Size) -> Result<App> {
    let accounts = size.proposals.clamp(1, IN_A_BLOCK);
    let mut scenes = [Scene::new(accounts, PARTICIPANTS, None)?, Scene::new(accounts, PARTICIPANTS, None)?];
    let mut left = size.proposals;
    while left > 0 {
        let now = left.min(accounts);
        let mut txs = Vec::new();
        for gateway in 0..now {
            txs.push(scenes[1].propose(gateway, &format!("Proposal {}", left - gateway))?);
        }
        run_block(&mut scenes[0], Vec::new())?;
        run_block(&mut scenes[1], txs)?;
        left -= now;
    }
    if size.proposals == 0 {
        run_block(&mut scenes[0], Vec::new())?;
    }
    for (scene, proposals) in scenes.iter().zip([0, size.proposals]) {
        let view = scene.app.shared().view(0)?;
        let open = DEPOSIT_QUEUE.iter(view.query().store, Order::Ascending).count();
        ensure!(open == proposals, "{open} proposals are open instead of {proposals}");
    }
    let mut times = App { end: Default::default(), block: Default::default() };
    for _ in 0..size.blocks {
        for (at, scene) in scenes.iter_mut().enumerate() {
            let block = scene.block(Vec::new());
            times.end[at].push(end_block(scene, &block, &[])?);
            let (done, took) = timed(|| scene.app.finalize_block(&block));
            done?;
            scene.app.commit()?;
            times.block[at].push(took);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proposals_are_open_and_nothing_of_them_is_due() {
        let outcome = run(Size { proposals: 30, blocks: 2 }).unwrap();
        let names: Vec<&str> = outcome.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), 6);
        assert!(
            names.contains(&"gov.keeper.flat_0_to_30") && names.contains(&"gov.app.30_open"),
            "{names:?}"
        );
        assert!(outcome.rows.iter().all(|row| row.value > 0.0));
    }
}
