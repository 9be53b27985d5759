//! One node of the simulated network: an app over a store, with its own habits of stopping and starting again.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use holdfast_app::app::{App, Block, FinalizedBlock, Shared, TxResult, state_spaces};
use holdfast_app::genesis::GenesisDoc;
use holdfast_app::state::{CommitStore, DiskStore, MemCommitStore, StateOptions};
use holdfast_app::views::QueryView;
use holdfast_types::{Event, ValidatorUpdate};

use crate::binary;
use crate::rng::Rng;

/// How a node lives. Per cents of blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Habits {
    /// Executes a block twice before it commits.
    pub(crate) repeats: usize,
    /// Dies between executing and committing.
    pub(crate) dies: usize,
    /// Stops after a commit and starts again.
    pub(crate) restarts: usize,
    /// Removes old state after a commit.
    pub(crate) prunes: usize,
    /// Goes back a block or two after a commit and executes them again. Only with a store on disk.
    pub(crate) rolls_back: usize,
    /// Checks transactions before a block, and again after it.
    pub(crate) checks: usize,
}

/// A node as the driver sees it.
pub(crate) trait Node {
    /// For messages.
    fn name(&self) -> &str;
    /// Executes and commits a block, with whatever comes between.
    fn play(&mut self, block: &Block) -> Result<FinalizedBlock>;
    /// Best of `txs` for a block of at most `max_bytes`.
    fn prepare(&self, txs: &[Vec<u8>], max_bytes: usize) -> Vec<Vec<u8>>;
    /// Whether it would vote for a block of these transactions.
    fn process(&self, txs: &[Vec<u8>]) -> bool;
    /// Last committed state; genesis before the first commit.
    fn view(&self) -> Result<Arc<QueryView>>;
    /// Genesis document of a retained height; 0 = latest.
    fn export(&self, height: i64) -> Result<GenesisDoc>;
    /// Every invariant of every module.
    fn check_invariants(&self) -> Result<()>;
    /// Validators at genesis.
    fn validators(&self) -> Result<Vec<ValidatorUpdate>>;
    /// Names of the upgrades carried out so far.
    fn upgrades(&self) -> Vec<String>;
    /// What the node went through since the last call.
    fn diary(&mut self) -> Vec<&'static str>;
}

/// A node over stores of type `S`.
struct Machine<S: CommitStore> {
    name: String,
    app: Option<App<S>>,
    open: Box<dyn Fn() -> Result<S>>,
    /// Folder of the store on disk.
    folder: Option<PathBuf>,
    /// The last blocks, and the app hash after each.
    recent: VecDeque<(Block, [u8; 32])>,
    genesis: GenesisDoc,
    engine: Vec<ValidatorUpdate>,
    check_tables: bool,
    /// Names and heights.
    upgrades: Vec<(String, i64)>,
    habits: Habits,
    rng: Rng,
    diary: Vec<&'static str>,
}

/// What starts a node.
pub(crate) struct Setup<'a> {
    pub(crate) name: &'a str,
    pub(crate) seed: u64,
    pub(crate) genesis: &'a GenesisDoc,
    /// Validators of the consensus engine's own genesis.
    pub(crate) engine: &'a [ValidatorUpdate],
    pub(crate) habits: Habits,
    pub(crate) check_tables: bool,
    /// Upgrades that the chain has behind it.
    pub(crate) upgrades: Vec<String>,
}

impl Setup<'_> {
    /// A node with its state in memory.
    pub(crate) fn in_memory(self, keep_recent: u64) -> Result<Box<dyn Node>> {
        let options = StateOptions { threads: 1, keep_recent, ..StateOptions::default() };
        let store = MemCommitStore::with_options(&state_spaces(), options)?;
        self.start(None, Box::new(move || Ok(store.clone())))
    }

    /// A node with its state in folder `path`.
    pub(crate) fn on_disk(self, path: PathBuf, options: StateOptions) -> Result<Box<dyn Node>> {
        let folder = Some(path.clone());
        self.start(folder, Box::new(move || Ok(DiskStore::open(&path, &state_spaces(), options.clone())?)))
    }

    fn start<S: CommitStore>(
        self,
        folder: Option<PathBuf>,
        open: Box<dyn Fn() -> Result<S>>,
    ) -> Result<Box<dyn Node>> {
        let mut machine = Machine {
            name: self.name.to_owned(),
            app: None,
            open,
            folder,
            recent: VecDeque::new(),
            genesis: self.genesis.clone(),
            engine: self.engine.to_vec(),
            check_tables: self.check_tables,
            upgrades: self.upgrades.into_iter().map(|name| (name, 0)).collect(),
            habits: self.habits,
            rng: Rng::new(self.seed, self.name),
            diary: Vec::new(),
        };
        machine.start()?;
        Ok(Box::new(machine))
    }
}

/// Everything of an outcome that nodes agree on, and the texts besides.
pub(crate) fn same(a: &FinalizedBlock, b: &FinalizedBlock) -> Result<()> {
    ensure!(
        a.tx_results.len() == b.tx_results.len(),
        "{} results against {}",
        a.tx_results.len(),
        b.tx_results.len()
    );
    for (index, (a, b)) in a.tx_results.iter().zip(&b.tx_results).enumerate() {
        let short = |r: &TxResult| {
            format!(
                "{} {} {}, gas {} of {}, {} bytes",
                r.codespace,
                r.code,
                r.log,
                r.gas_used,
                r.gas_wanted,
                r.data.len()
            )
        };
        let events = |r: &TxResult| TxResult { events: Vec::new(), ..r.clone() };
        ensure!(events(a) == events(b), "result {index} differs:\n  {}\n  {}", short(a), short(b));
        same_events(&format!("result {index}"), &a.events, &b.events)?;
    }
    same_events("the block", &a.events, &b.events)?;
    ensure!(
        a.validator_updates == b.validator_updates,
        "validator updates differ:\n  {:?}\n  {:?}",
        a.validator_updates,
        b.validator_updates
    );
    let (a, b) = (hex::encode(a.app_hash), hex::encode(b.app_hash));
    ensure!(a == b, "app hash {a} against {b}");
    Ok(())
}

fn same_events(whose: &str, a: &[Event], b: &[Event]) -> Result<()> {
    let at = (0..a.len().max(b.len())).find(|index| a.get(*index) != b.get(*index));
    let Some(at) = at else { return Ok(()) };
    bail!("event {at} of {whose} differs:\n  {:?}\n  {:?}", a.get(at), b.get(at))
}

impl<S: CommitStore> Machine<S> {
    fn app(&self) -> Result<&App<S>> {
        self.app.as_ref().context("the node is down")
    }

    fn upgrade_names(&self) -> Vec<String> {
        self.upgrades.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Gives up the last block or two, as an operator does after a bad one, and executes them again.
    fn roll_back(&mut self) -> Result<()> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let most = self.recent.len().saturating_sub(1).min(2);
        let count = if most > 1 { 1 + self.rng.below(most) } else { most };
        let Some(kept) = self.recent.len().checked_sub(count + 1) else { return Ok(()) };
        let (to, expected) = (self.recent[kept].0.height, self.recent[kept].1);
        if count == 0 || self.shared()?.store().earliest_height() > to {
            return Ok(());
        }
        self.app = None;
        let hash = DiskStore::rollback(&folder, to).with_context(|| format!("rollback to {to}"))?;
        ensure!(hash == expected, "a rollback to {to} gives another app hash");
        self.diary.push("rollback");
        // The binary that had not yet come.
        self.upgrades.retain(|(_, height)| *height <= to + 1);
        self.start().with_context(|| format!("start after a rollback to {to}"))?;
        for (block, hash) in self.recent.iter().skip(kept + 1).cloned().collect::<Vec<_>>() {
            let done = self.finalize(&block)?;
            ensure!(done.app_hash == hash, "block {} has another app hash after a rollback", block.height);
            self.app.as_mut().context("the node is down")?.commit()?;
        }
        Ok(())
    }

    fn shared(&self) -> Result<Arc<Shared<S>>> {
        Ok(self.app()?.shared())
    }

    /// Opens the store and goes on from it; from genesis while nothing is committed, as `Info` at height 0 asks for.
    fn open_app(&self) -> Result<App<S>> {
        let store = (self.open)()?;
        let options = binary::options(&self.upgrade_names(), self.check_tables);
        Ok(if store.latest_height() == 0 {
            App::from_genesis_with(store, options, &self.genesis, &self.engine)?
        } else {
            App::open(store, options)?
        })
    }

    fn start(&mut self) -> Result<()> {
        self.app = None;
        let opened = self.open_app();
        // The next block is the upgrade's: a binary without it does not even start.
        let plan = opened.as_ref().err().and_then(|error| binary::needed(error.downcast_ref()?));
        let app = match plan {
            None => opened?,
            Some((name, height)) => {
                self.upgrades.push((name, height));
                self.diary.push("upgrade at the start");
                self.open_app()?
            }
        };
        self.app = Some(app);
        Ok(())
    }

    /// Stops and starts again; last height and app hash must be those of the last commit.
    fn restart(&mut self) -> Result<()> {
        let app = self.app()?;
        let before = (app.height(), app.app_hash());
        self.start().with_context(|| format!("restart at height {}", before.0))?;
        let app = self.app()?;
        let after = (app.height(), app.app_hash());
        ensure!(before == after, "a restart changed height or app hash: {before:?}, now {after:?}");
        Ok(())
    }

    fn finalize(&mut self, block: &Block) -> Result<FinalizedBlock> {
        let app = self.app.as_mut().context("the node is down")?;
        let error = match app.finalize_block(block) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        // The one planned reason to stop: the binary is replaced by one with the upgrade.
        let Some((name, height)) = binary::needed(&error) else {
            bail!("block {}: {error}", block.height);
        };
        ensure!(height == block.height, "block {}: {error}", block.height);
        self.upgrades.push((name, height));
        self.diary.push("upgrade");
        self.restart()?;
        let app = self.app.as_mut().context("the node is down")?;
        app.finalize_block(block).with_context(|| format!("block {} after its upgrade", block.height))
    }
}

impl<S: CommitStore> Node for Machine<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn play(&mut self, block: &Block) -> Result<FinalizedBlock> {
        if self.rng.percent(self.habits.checks) {
            let shared = self.shared()?;
            for raw in &block.txs {
                if self.rng.percent(60) {
                    let _ = shared.check_tx(raw);
                } else if self.rng.percent(30) {
                    let _ = shared.simulate(raw);
                }
            }
            self.diary.push("check");
        }
        let done = self.finalize(block)?;
        if self.rng.percent(self.habits.repeats) {
            self.diary.push("repeat");
            same(&done, &self.finalize(block)?).context("the same block executed again")?;
        }
        if self.rng.percent(self.habits.dies) {
            self.diary.push("crash");
            self.restart()?;
            same(&done, &self.finalize(block)?).context("the same block replayed after a crash")?;
        }
        let app = self.app.as_mut().context("the node is down")?;
        app.commit()?;
        ensure!(app.height() == block.height, "height {} after block {}", app.height(), block.height);
        ensure!(app.app_hash() == done.app_hash, "the committed app hash is not the announced one");
        if self.rng.percent(self.habits.checks) {
            let shared = self.shared()?;
            for raw in &block.txs {
                let _ = shared.recheck_tx(raw);
            }
        }
        if self.rng.percent(self.habits.prunes) {
            self.diary.push("prune");
            let limit = 1 + self.rng.below(2_000);
            self.shared()?.store().prune(limit)?;
        }
        self.recent.push_back((block.clone(), done.app_hash));
        if self.recent.len() > 4 {
            self.recent.pop_front();
        }
        if self.rng.percent(self.habits.rolls_back) {
            self.roll_back()?;
        }
        if self.rng.percent(self.habits.restarts) {
            self.diary.push("restart");
            self.restart()?;
        }
        Ok(done)
    }

    fn prepare(&self, txs: &[Vec<u8>], max_bytes: usize) -> Vec<Vec<u8>> {
        self.app.as_ref().map(|app| app.prepare_proposal(txs, max_bytes)).unwrap_or_default()
    }

    fn process(&self, txs: &[Vec<u8>]) -> bool {
        self.app.as_ref().is_some_and(|app| app.process_proposal(txs))
    }

    fn view(&self) -> Result<Arc<QueryView>> {
        Ok(self.shared()?.view(0)?)
    }

    fn export(&self, height: i64) -> Result<GenesisDoc> {
        Ok(self.app()?.export(height)?)
    }

    fn check_invariants(&self) -> Result<()> {
        match self.shared()?.check_invariants() {
            Ok(_) => Ok(()),
            Err(text) => bail!("invariant: {text}"),
        }
    }

    fn validators(&self) -> Result<Vec<ValidatorUpdate>> {
        Ok(self.app()?.genesis_validators()?)
    }

    fn upgrades(&self) -> Vec<String> {
        self.upgrade_names()
    }

    fn diary(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.diary)
    }
}
