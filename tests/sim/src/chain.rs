//! A simulated network: users who send transactions, a proposer who orders them, and the nodes that execute the decided
//! blocks. The driver stands where CometBFT stands (cosmos-conventions 1.3): any number of rounds of a proposal and its
//! check, then the block is executed, once or more, and committed.

use std::collections::VecDeque;

use anyhow::{Context as _, Result, bail, ensure};
use holdfast_app::app::{Block, FinalizedBlock, PANIC};
use holdfast_app::composition::Composition;
use holdfast_app::genesis::GenesisDoc;
use holdfast_types::sdk;

use crate::cast::{self, Cast};
use crate::load::{self, Load};
use crate::memory::Memory;
use crate::node::{Habits, Node, Setup};
use crate::ops::Scene;
use crate::rng::Rng;
use crate::trace::{Trace, ValidatorSet};

/// Operations kept for the report of a failure.
const LAST_OPERATIONS: usize = 25;
/// Time of genesis, nanoseconds since the Unix epoch.
const GENESIS_TIME_NS: u64 = 1_750_000_000_000_000_000;

/// See the module.
pub(crate) struct Chain {
    pub(crate) seed: u64,
    pub(crate) cast: Cast,
    pub(crate) genesis: GenesisDoc,
    /// The node whose state users see.
    pub(crate) primary: Box<dyn Node>,
    /// Nodes that must agree with it.
    pub(crate) replicas: Vec<Box<dyn Node>>,
    pub(crate) memory: Memory,
    /// Decided blocks: what a node that fell behind is given.
    pub(crate) blocks: Vec<Block>,
    pub(crate) traces: Vec<Trace>,
    /// Outcome of the last block.
    pub(crate) done: FinalizedBlock,
    /// What the users sent last and what came of it.
    pub(crate) last: VecDeque<String>,
    users: Rng,
    driver: Rng,
    time_ns: u64,
    validators: ValidatorSet,
}

impl Chain {
    /// A fresh chain.
    pub(crate) fn new(seed: u64, habits: Habits) -> Result<Self> {
        let (cast, genesis) = cast::genesis(seed)?;
        let setup = Setup {
            name: "primary",
            seed,
            genesis: &genesis,
            engine: &cast.engine,
            habits,
            check_tables: true,
            upgrades: Vec::new(),
        };
        let primary = setup.in_memory(0)?;
        let validators = ValidatorSet::new(&primary.validators()?)?;
        Ok(Self {
            seed,
            cast,
            genesis,
            primary,
            replicas: Vec::new(),
            memory: Memory::default(),
            blocks: Vec::new(),
            traces: Vec::new(),
            done: FinalizedBlock::default(),
            last: VecDeque::new(),
            users: Rng::new(seed, "users"),
            driver: Rng::new(seed, "driver"),
            time_ns: GENESIS_TIME_NS,
            validators,
        })
    }

    /// Height of the block to come.
    pub(crate) fn next_height(&self) -> i64 {
        self.blocks.last().map_or(self.genesis.initial_height, |block| block.height + 1)
    }

    /// One more block on all nodes.
    pub(crate) fn step(&mut self) -> Result<()> {
        let height = self.next_height();
        let load = self.load(height)?;
        self.time_ns += self.users.unsigned(1, 8_000) * 1_000_000;
        let txs = self.decide(&load)?;
        let block = Block { height, time_ns: self.time_ns, txs };
        let done = self.primary.play(&block)?;
        self.judge(&block, &done, &load)?;
        self.primary.check_invariants()?;
        let trace = Trace::new(height, &done);
        for replica in &mut self.replicas {
            let theirs = replica.play(&block).with_context(|| format!("replica {}", replica.name()))?;
            crate::node::same(&done, &theirs).with_context(|| format!("replica {}", replica.name()))?;
            trace.compare(&Trace::new(height, &theirs), replica.name())?;
        }
        for node in std::iter::once(&mut self.primary).chain(&mut self.replicas) {
            for entry in node.diary() {
                self.memory.counts.note(entry);
            }
        }
        self.blocks.push(block);
        self.traces.push(trace);
        self.done = done;
        Ok(())
    }

    fn load(&mut self, height: i64) -> Result<Load> {
        let view = self.primary.view()?;
        let composition = Composition::default();
        let mut scene = Scene {
            rng: &mut self.users,
            cast: &self.cast,
            memory: &mut self.memory,
            view: &view,
            composition: &composition,
            height,
        };
        Ok(load::load(&mut scene))
    }

    /// The rounds of a height. Proposals are made by the primary and checked by all; the last one is decided. Now and
    /// then a block is decided that no proposer of ours made, as in a replay: any transactions in any order.
    fn decide(&mut self, load: &Load) -> Result<Vec<Vec<u8>>> {
        let mut txs: Vec<Vec<u8>> = load.iter().map(|(raw, _)| raw.clone()).collect();
        if self.driver.percent(40) {
            if self.driver.percent(25) {
                self.driver.shuffle(&mut txs);
            }
            // Any answer is right, as long as there is one.
            let _ = self.primary.process(&txs);
            self.memory.counts.note("imposed block");
            return Ok(txs);
        }
        let mut proposal = Vec::new();
        for _ in 0..*self.driver.pick(&[1, 1, 1, 2, 3]) {
            self.driver.shuffle(&mut txs);
            let max_bytes = if self.driver.percent(80) { 22_000_000 } else { self.driver.below(4_000) };
            proposal = self.primary.prepare(&txs, max_bytes);
            let bytes: usize = proposal.iter().map(Vec::len).sum();
            ensure!(bytes <= max_bytes, "a proposal of {bytes} bytes, {max_bytes} allowed");
            for node in std::iter::once(&self.primary).chain(&self.replicas) {
                ensure!(node.process(&proposal), "{} refuses an honest proposal", node.name());
            }
            self.memory.counts.note("round");
        }
        Ok(proposal)
    }

    /// What must hold of every block, whatever was sent.
    fn judge(&mut self, block: &Block, done: &FinalizedBlock, load: &Load) -> Result<()> {
        let (asked, answered) = (block.txs.len(), done.tx_results.len());
        ensure!(asked == answered, "{answered} results for {asked} transactions");
        for (raw, result) in block.txs.iter().zip(&done.tx_results) {
            let messages =
                load.iter().find(|(sent, _)| sent == raw).map_or(&[][..], |(_, messages)| messages);
            let kinds: Vec<&str> =
                messages.iter().map(|m| m.type_url.rsplit('.').next().unwrap_or_default()).collect();
            self.last.push_back(format!(
                "block {}: {} -> {} {} {}",
                block.height,
                if kinds.is_empty() { "(bytes)".to_owned() } else { kinds.join(" + ") },
                if result.code == 0 { "ok" } else { &result.codespace },
                result.code,
                result.log.chars().take(160).collect::<String>(),
            ));
            self.memory.observe(&self.cast, messages, result);
            let code = (result.codespace.as_str(), result.code);
            // A panic, or state that no message can have made.
            let broken = [PANIC, (sdk::CODESPACE, sdk::INTERNAL), (sdk::CODESPACE, sdk::LOGIC)];
            ensure!(!broken.contains(&code), "{} {}: {}", code.0, code.1, result.log);
            ensure!(
                result.code == 0 || result.data.is_empty(),
                "a failed transaction with data: {} {}",
                code.0,
                code.1
            );
        }
        self.last.drain(..self.last.len().saturating_sub(LAST_OPERATIONS));
        let own = done.tx_results.iter().flat_map(|result| &result.events);
        for event in done.events.iter().chain(own) {
            *self.memory.counts.events.entry(event.kind.clone()).or_default() += 1;
            if event.kind.ends_with(".EventStepDiscarded") {
                bail!("a block step failed: {:?}", event.attributes);
            }
        }
        self.validators.apply(&done.validator_updates)
    }
}
