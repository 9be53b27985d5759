//! What is done with a simulated chain.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use holdfast_app::composition::Composition;
use holdfast_app::genesis::GenesisDoc;
use holdfast_app::state::StateOptions;
use holdfast_proto::holdfast::escrow::v1::MsgCreateEscrow;
use holdfast_proto::type_url;

use crate::chain::Chain;
use crate::child::{Children, Launch};
use crate::diff;
use crate::memory::Counts;
use crate::node::{self, Habits, Node, Setup};
use crate::rng::Rng;
use crate::trace::Trace;

/// A way to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The chain runs; everything that must hold of a block is checked.
    Full,
    /// At random heights the state is exported, validated, imported and exported again: equal bytes, equal stores.
    ImportExport,
    /// The chain goes on from an import, beside the chain it came from.
    AfterImport,
    /// Nodes that differ in everything that must not matter.
    Determinism,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Full, Self::ImportExport, Self::AfterImport, Self::Determinism];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::ImportExport => "import-export",
            Self::AfterImport => "after-import",
            Self::Determinism => "determinism",
        }
    }
}

impl FromStr for Mode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        let names = Self::ALL.map(Self::name).join(", ");
        found.with_context(|| format!("--mode {text:?}: use one of {names}"))
    }
}

/// One run.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// Everything follows from it.
    pub seed: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// What is done.
    pub mode: Mode,
    /// How [`Mode::Determinism`] starts processes; `None` = no processes.
    pub launch: Option<Launch<'a>>,
}

/// A run that came to something it must not.
#[derive(Debug)]
pub struct Failure {
    /// Seed.
    pub seed: u64,
    /// What was done.
    pub mode: Mode,
    /// Number of the block, from 1; as many blocks show the failure again.
    pub block: u64,
    /// What happened.
    pub what: String,
    /// What users sent last and what came of it.
    pub last: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, mode, block, what, last } = self;
        let mode = mode.name();
        writeln!(f, "FAILED: seed {seed}, mode {mode}, block number {block}\n{what}\nLast operations:")?;
        for line in last {
            writeln!(f, "  {line}")?;
        }
        write!(f, "Run it again: cargo xtask sim --mode {mode} --seed {seed} --blocks {block}")
    }
}

/// Runs a plan to its end or its first failure. A failure is repeated with as few blocks as show it.
///
/// # Errors
/// The failure, boxed for its size.
pub fn run(plan: &Plan<'_>) -> Result<Counts, Box<Failure>> {
    let first = match play(plan, false) {
        Ok(counts) => return Ok(counts),
        Err(failure) => failure,
    };
    let short = Plan { blocks: first.block, ..*plan };
    match play(&short, true) {
        Err(again) => Err(again),
        Ok(_) => {
            let what = format!("{}\nIt did not happen again when the run was repeated.", first.what);
            Err(Box::new(Failure { what, ..*first }))
        }
    }
}

fn play(plan: &Plan<'_>, thorough: bool) -> Result<Counts, Box<Failure>> {
    let failure =
        |block, what: String, last| Box::new(Failure { seed: plan.seed, mode: plan.mode, block, what, last });
    let habits = match plan.mode {
        Mode::Full => Habits { repeats: 10, dies: 6, restarts: 6, checks: 15, ..Habits::default() },
        _ => Habits::default(),
    };
    let started = guarded(|| {
        let mut chain = Chain::new(plan.seed, habits)?;
        let task = Task::start(plan, &mut chain, thorough)?;
        Ok((chain, task))
    });
    let (mut chain, mut task) = match started {
        Ok(started) => started,
        Err(error) => return Err(failure(0, format!("{error:#}"), Vec::new())),
    };
    for block in 1..=plan.blocks {
        let done = guarded(|| {
            chain.step()?;
            task.after_block(&mut chain, block == plan.blocks)
        });
        if let Err(error) = done {
            return Err(failure(block, format!("{error:#}"), chain.last.into()));
        }
    }
    if let Err(error) = guarded(|| task.end(&mut chain)) {
        return Err(failure(plan.blocks, format!("{error:#}"), chain.last.into()));
    }
    chain.memory.counts.driver.insert("blocks".into(), plan.blocks);
    Ok(chain.memory.counts)
}

/// A panic is an error like every other: its seed must be told.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            bail!("panic: {}", text.unwrap_or_default())
        }
    }
}

/// What a mode does besides running the chain.
enum Task {
    Full,
    ImportExport {
        rng: Rng,
        /// At every block, to find the first that fails.
        thorough: bool,
    },
    AfterImport {
        rng: Rng,
        /// The chain from which the present one was imported.
        origin: Option<Box<dyn Node>>,
    },
    Determinism {
        children: Option<Children>,
        _folder: tempfile::TempDir,
    },
}

impl Task {
    fn start(plan: &Plan<'_>, chain: &mut Chain, thorough: bool) -> Result<Self> {
        let rng = Rng::new(plan.seed, plan.mode.name());
        Ok(match plan.mode {
            Mode::Full => Self::Full,
            Mode::ImportExport => Self::ImportExport { rng, thorough },
            Mode::AfterImport => Self::AfterImport { rng, origin: None },
            Mode::Determinism => {
                let folder = tempfile::tempdir()?;
                let launch = plan.launch;
                let children = launch.map(|launch| Children::start(launch, plan.seed, plan.blocks));
                chain.replicas = replicas(chain, folder.path())?;
                Self::Determinism { children: children.transpose()?, _folder: folder }
            }
        })
    }

    fn after_block(&mut self, chain: &mut Chain, last: bool) -> Result<()> {
        match self {
            Self::Full | Self::Determinism { .. } => Ok(()),
            Self::ImportExport { rng, thorough } => {
                let now = rng.percent(8);
                let back = if rng.percent(60) { 0 } else { rng.range(0, 6) };
                // Where parameters changed or an epoch ended, and now and then elsewhere.
                let eventful = rng.percent(30)
                    && chain.done.events.iter().any(|event| {
                        event.kind == "active_proposal" || event.kind.ends_with(".EventEpochEnded")
                    });
                if now || last || eventful || *thorough {
                    let height = chain.next_height() - 1;
                    let height = (height - back).max(chain.genesis.initial_height);
                    import(chain, height).with_context(|| format!("export of height {height}"))?;
                }
                Ok(())
            }
            Self::AfterImport { rng, origin } => {
                if drew_a_group(chain) {
                    // By the app hash, which is another one there: the two chains part.
                    *origin = None;
                }
                if let Some(origin) = origin {
                    beside(chain, origin.as_mut()).context("beside the chain that was exported")?;
                }
                if rng.percent(6) {
                    let height = chain.next_height() - 1;
                    let (doc, node) =
                        import(chain, height).with_context(|| format!("export of height {height}"))?;
                    chain.genesis = doc;
                    *origin = Some(std::mem::replace(&mut chain.primary, node));
                }
                Ok(())
            }
        }
    }

    fn end(self, chain: &mut Chain) -> Result<()> {
        let Self::Determinism { children, _folder: folder } = self else { return Ok(()) };
        chain.replicas.clear();
        late(chain)?;
        if let Some(children) = children {
            children.compare(&chain.traces)?;
            chain.memory.counts.note("children");
        }
        drop(folder);
        Ok(())
    }
}

/// Nodes with other stores, caches, threads, pruning, and other habits.
fn replicas(chain: &Chain, folder: &std::path::Path) -> Result<Vec<Box<dyn Node>>> {
    let setup = |name: &'static str, habits| Setup {
        name,
        seed: chain.seed,
        genesis: &chain.genesis,
        engine: &chain.cast.engine,
        habits,
        check_tables: false,
        upgrades: Vec::new(),
    };
    let restless = Habits { repeats: 20, dies: 15, restarts: 20, prunes: 60, ..Habits::default() };
    let small = StateOptions {
        keep_recent: 3,
        page_cache: 16,
        value_cache_bytes: 2_048,
        block_cache_bytes: 1 << 16,
        threads: 3,
        ..StateOptions::default()
    };
    let frugal = Habits { repeats: 0, dies: 5, restarts: 5, prunes: 30, rolls_back: 5, checks: 30 };
    let large = StateOptions {
        page_cache: 20_000,
        value_cache_bytes: 4 << 20,
        block_cache_bytes: 4 << 20,
        threads: 2,
        ..StateOptions::default()
    };
    let steady = Habits { checks: 50, ..Habits::default() };
    let on_disk = if chain.seed.is_multiple_of(2) {
        setup("frugal on disk", frugal).on_disk(folder.join("small"), small)?
    } else {
        setup("steady on disk", steady).on_disk(folder.join("large"), large)?
    };
    Ok(vec![setup("restless in memory", restless).in_memory(1)?, on_disk])
}

/// A node that joins at the end and is given every block from the first.
fn late(chain: &mut Chain) -> Result<()> {
    let setup = Setup {
        name: "late",
        seed: chain.seed,
        genesis: &chain.genesis,
        engine: &chain.cast.engine,
        habits: Habits::default(),
        check_tables: false,
        upgrades: Vec::new(),
    };
    let mut node = setup.in_memory(2)?;
    for (block, trace) in chain.blocks.iter().zip(&chain.traces) {
        let done = node.play(block).context("a node that replays all blocks")?;
        trace.compare(&Trace::new(block.height, &done), "a node that replays all blocks")?;
    }
    Ok(())
}

/// Exports `height`, validates and imports the text, exports again. Returns the document and the node that has it.
fn import(chain: &mut Chain, height: i64) -> Result<(GenesisDoc, Box<dyn Node>)> {
    let latest = chain.next_height() - 1;
    let first = chain.primary.export(height)?;
    let text = first.to_json()?;
    let parsed = GenesisDoc::parse(text.as_bytes()).context("the exported document")?;
    parsed.validate(&Composition::default()).context("the exported document")?;
    ensure!(parsed.initial_height == height + 1, "initial height {} after {height}", parsed.initial_height);
    let setup = Setup {
        name: "imported",
        seed: chain.seed ^ height.unsigned_abs(),
        genesis: &parsed,
        engine: &chain.cast.engine,
        habits: Habits { dies: 10, restarts: 5, ..Habits::default() },
        check_tables: true,
        upgrades: chain.primary.upgrades(),
    };
    let node = setup.in_memory(0).context("import")?;
    node.check_invariants().context("after the import")?;
    let again = node.export(0)?.to_json()?;
    if again != text {
        let lines = text.lines().zip(again.lines()).enumerate().find(|(_, (a, b))| a != b);
        bail!("the imported chain exports other bytes; first difference, line and texts: {lines:?}");
    }
    if height == latest {
        let excused = diff::compare(chain.primary.view()?.as_ref(), node.view()?.as_ref());
        for place in excused.context("stores after the import")? {
            chain.memory.counts.note(&format!("other {place}"));
        }
    }
    chain.memory.counts.note("import");
    Ok((parsed, node))
}

/// Whether the group of an escrow was drawn in the last block, if only by a transaction that failed afterwards.
fn drew_a_group(chain: &Chain) -> bool {
    let url = type_url::<MsgCreateEscrow>();
    let mut txs = chain.blocks.last().into_iter().flat_map(|block| &block.txs);
    txs.any(|tx| tx.windows(url.len()).any(|part| part == url.as_bytes()))
}

/// The exported chain executes the block that the imported one did: all but the app hash is equal, as is the state.
fn beside(chain: &mut Chain, origin: &mut dyn Node) -> Result<()> {
    let Some(block) = chain.blocks.last() else { return Ok(()) };
    let mut done = origin.play(block)?;
    // It began elsewhere: its settings, and with them its app hashes, are others.
    done.app_hash = chain.done.app_hash;
    node::same(&done, &chain.done)?;
    diff::compare(origin.view()?.as_ref(), chain.primary.view()?.as_ref())?;
    chain.memory.counts.note("block beside the origin");
    Ok(())
}
