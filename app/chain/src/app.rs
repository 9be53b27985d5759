//! The application: ABCI-shaped plain functions over a state database. It owns no socket and starts no server.
//!
//! ```text
//!            App (one owner: consensus)                Shared (any number of clones)
//!   init_chain ─ finalize_block ─ commit               check_tx ─ simulate ─ query ─ recheck
//!        │             │            │                        ▲
//!        └─ branch over the last commit ── durable ── publishes the next view
//! ```

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_proto::cosmos::base::abci::v1beta1::TxMsgData;
use holdfast_proto::{Message, decode_strict};
use holdfast_store::{BranchKv, GasConfig, GasMeter, KvRead, MeteredKv, StoreError, WriteSet};
use holdfast_types::{
    BlockContext, Context, Event, Height, Hrp, ModuleError, QueryError, QueryKind, ValidationParams,
    ValidatorUpdate, sdk,
};
use thiserror::Error;

use crate::ante::{AnteEnv, AnteMode, AnteOutcome, ante, gas_price, signature_checks};
use crate::composition::{APP_SPACE, Composition, MODULE_NAMES};
use crate::genesis::{GenesisDoc, GenesisError};
use crate::mempool::{Mempool, MempoolConfig, MempoolTx, bytes_in_block};
use crate::query::SeedSource;
use crate::router;
use crate::settings::{ChainSettings, SETTINGS};
use crate::signatures::{SignatureCache, cores, spread};
use crate::state::{CommitStore, Prepared, StateError};
use crate::tx::DecodedTx;
use crate::upgrades::{self, UpgradeError, Upgrades};
use crate::views::{QueryView, Views, moves_places};
use crate::what_if;

/// Codespace and code of a panic inside a transaction, as the Cosmos SDK numbers it.
pub const PANIC: (&str, u32) = ("undefined", 111_222);

/// Signatures remembered between `check_tx` and the block.
const SIGNATURES_KEPT: std::num::NonZero<usize> = std::num::NonZero::new(100_000).unwrap();

/// Transactions a thread decodes at a time. As many or fewer are not worth a second thread.
const DECODES_AT_A_TIME: usize = 32;

/// Why a consensus step cannot go on. All are fatal for the node: the chain stands still rather than guess.
#[derive(Debug, Error)]
pub enum AppError {
    /// State database.
    #[error(transparent)]
    State(#[from] StateError),
    /// Storage below a collection.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Genesis document.
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    /// A step whose policy is to halt, or a module's genesis.
    #[error("{0}")]
    Module(#[from] ModuleError),
    /// A view could not be built.
    #[error("query view: {0}")]
    View(#[from] QueryError),
    /// A block out of turn.
    #[error("block {found} out of turn, expected {expected}")]
    Height {
        /// Height to come.
        expected: Height,
        /// Height given.
        found: Height,
    },
    /// `commit` without `finalize_block`.
    #[error("no finalized block to commit")]
    NothingToCommit,
    /// A database of a chain without settings.
    #[error("the state database holds no chain; start from genesis in an empty folder")]
    NoChain,
    /// The binary is not the one the chain needs now.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
    /// A genesis for a chain that runs already.
    #[error("the chain is at height {0} already; genesis is for an empty state database")]
    AlreadyStarted(Height),
}

/// What the binary is, and node-local choices, which change nothing of what a block does.
#[derive(Clone, Default)]
pub struct AppOptions {
    /// The embedder's modules.
    pub composition: Composition,
    /// Upgrades that this binary can carry out.
    pub upgrades: Upgrades,
    /// Least gas price for `check_tx`, 10^-12 base units.
    pub min_gas_price: u128,
    /// Compare every candidate table with a rebuilt one after each commit.
    pub check_tables: bool,
    /// Where what-if queries have their record; none = no record.
    pub what_if: Option<Arc<what_if::Log>>,
}

/// Result of one transaction. `code`, `data`, `gas_wanted`, `gas_used` are consensus.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxResult {
    /// 0 = ok.
    pub code: u32,
    /// Whose code.
    pub codespace: String,
    /// Encoded `TxMsgData`.
    pub data: Vec<u8>,
    /// Text for people; not consensus.
    pub log: String,
    /// Gas limit.
    pub gas_wanted: u64,
    /// Gas used.
    pub gas_used: u64,
    /// Events of the ante steps, and of the messages if all succeeded.
    pub events: Vec<Event>,
}

impl TxResult {
    fn failed(error: &ModuleError, gas_wanted: u64, gas_used: u64, events: Vec<Event>) -> Self {
        Self {
            code: error.code,
            codespace: error.codespace.to_owned(),
            data: Vec::new(),
            log: error.message.clone(),
            gas_wanted,
            gas_used,
            events,
        }
    }
}

/// A block to execute.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Height.
    pub height: Height,
    /// Consensus time, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Raw transactions in order.
    pub txs: Vec<Vec<u8>>,
}

/// What a block did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinalizedBlock {
    /// One per transaction, same order.
    pub tx_results: Vec<TxResult>,
    /// Events of begin-block and end-block steps, each with attribute `mode`.
    pub events: Vec<Event>,
    /// Changes of the validator set; the consensus engine applies them two blocks later.
    pub validator_updates: Vec<ValidatorUpdate>,
    /// Hash of the state after this block.
    pub app_hash: [u8; 32],
}

struct CheckState {
    writes: WriteSet,
}

/// The part of the app that needs no turn: checks, simulation, queries.
pub struct Shared<S> {
    store: Arc<S>,
    options: AppOptions,
    settings: ChainSettings,
    chain: BlockContext,
    cache: SignatureCache,
    check: Mutex<CheckState>,
    views: Views<S>,
}

struct Pending {
    prepared: Prepared,
    /// Changed keys that candidate tables follow.
    changed: Vec<Vec<u8>>,
    /// For the what-if log.
    record: Option<what_if::BlockRecord>,
}

/// Where in a block a test speaks for the authority.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeTransactions,
    AfterEndBlock,
}

/// What a test does inside a block.
#[cfg(test)]
pub(crate) type Authority = Box<dyn FnMut(Moment, &Composition, &mut Context<'_>) + Send>;

/// The application over a state database.
pub struct App<S> {
    shared: Arc<Shared<S>>,
    pending: Option<Pending>,
    /// Genesis state until the first block commits it together with its own writes.
    genesis: WriteSet,
    /// Stands in for x/gov: nobody can sign for the authority.
    #[cfg(test)]
    pub(crate) authority: Option<Authority>,
}

/// Spaces of the state database: the modules and the app's own.
pub fn state_spaces() -> Vec<&'static str> {
    MODULE_NAMES.iter().copied().chain([APP_SPACE]).collect()
}

fn chain_context(settings: &ChainSettings) -> Result<BlockContext, ModuleError> {
    let hrp = settings.hrp().map_err(|e| ModuleError::sdk(sdk::LOGIC, e.to_string()))?;
    let block = BlockContext::new(0, ValidationParams::default());
    Ok(BlockContext { chain_id: settings.chain_id.clone(), hrp, ..block })
}

impl<S: CommitStore> App<S> {
    /// Opens the chain that `store` holds.
    ///
    /// # Errors
    /// `NoChain` for an empty database: use [`App::from_genesis`]. `Upgrade` when the binary is too old or too new for the
    /// state, or comes before or after the height of its upgrade.
    pub fn open(store: S, options: AppOptions) -> Result<Self, AppError> {
        let snapshot = store.snapshot();
        let settings = SETTINGS.get(&snapshot)?.ok_or(AppError::NoChain)?;
        let next = store.latest_height().saturating_add(1);
        options.upgrades.check_start(&options.composition, &snapshot, next)?;
        drop(snapshot);
        Self::with_settings(store, options, settings, WriteSet::new())
    }

    fn with_settings(
        store: S,
        options: AppOptions,
        settings: ChainSettings,
        genesis: WriteSet,
    ) -> Result<Self, AppError> {
        let store = Arc::new(store);
        let chain = chain_context(&settings)?;
        let views = Views::new(store.clone(), options.composition.clone(), options.check_tables);
        if store.latest_height() > 0 {
            views.publish(&chain, None)?;
        } else {
            views.publish_genesis(&chain, settings.initial_height.saturating_sub(1), genesis.clone())?;
        }
        if let Some(log) = &options.what_if {
            let view = views.latest()?;
            log.attach(view.query().store, &view.block, &options.composition);
        }
        let shared = Shared {
            store,
            options,
            settings,
            chain,
            cache: SignatureCache::new(SIGNATURES_KEPT),
            check: Mutex::new(CheckState { writes: genesis.clone() }),
            views,
        };
        Ok(Self {
            shared: Arc::new(shared),
            pending: None,
            genesis,
            #[cfg(test)]
            authority: None,
        })
    }

    /// Starts a chain: validates the document and builds every module's state in memory. The first block commits it
    /// with its own writes, so a crash before that leaves an empty database and the start is simply repeated.
    ///
    /// # Errors
    /// A bad document, or a database that holds a chain already.
    pub fn from_genesis(store: S, options: AppOptions, doc: &GenesisDoc) -> Result<Self, AppError> {
        Self::from_genesis_with(store, options, doc, &[])
    }

    /// The same beside a consensus engine whose own genesis names `validators`: where no participant of the document has
    /// weight they stay the first ones, and their power passes to participants in bounded steps.
    ///
    /// # Errors
    /// As [`App::from_genesis`]; validators with keys or powers that cannot be.
    pub fn from_genesis_with(
        store: S,
        options: AppOptions,
        doc: &GenesisDoc,
        validators: &[ValidatorUpdate],
    ) -> Result<Self, AppError> {
        let height = store.latest_height();
        if height > 0 {
            return Err(AppError::AlreadyStarted(height));
        }
        let states = doc.states(&options.composition)?;
        let settings = doc.settings()?;
        let initial_height = settings.initial_height;
        let mut block = BlockContext { height: initial_height, ..chain_context(&settings)? };
        let snapshot = store.snapshot();
        let mut branch = BranchKv::new(&snapshot);
        let mut events = Vec::new();
        for (module, genesis) in options.composition.modules().iter().zip(&states) {
            let mut ctx = Context::new(&block, &mut branch, &mut events);
            module.init_genesis(&mut ctx, genesis)?;
            if module.name() == "epochs" {
                // Later modules count members and entries of the epoch the state stands in.
                holdfast_epochs::Keeper.start(&mut ctx, initial_height)?;
                let last = initial_height.saturating_sub(1);
                block.epoch = holdfast_epochs::Keeper.position(&branch, last)?.epoch;
            }
        }
        for name in MODULE_NAMES.iter().chain(&[crate::ante::FEE_COLLECTOR]) {
            holdfast_auth::Keeper.ensure_module_account(&mut branch, name)?;
        }
        let mut ctx = Context::new(&block, &mut branch, &mut events);
        options.composition.participants().adopt_validators(&mut ctx, validators)?;
        holdfast_gov::Keeper.set_module_versions(&mut ctx, &upgrades::versions(&options.composition))?;
        SETTINGS.set(&mut branch, &settings)?;
        let genesis = branch.into_writes();
        Self::with_settings(store, options, settings, genesis)
    }

    /// Handle for checks and queries.
    pub fn shared(&self) -> Arc<Shared<S>> {
        self.shared.clone()
    }

    /// Height of the last commit.
    pub fn height(&self) -> Height {
        self.shared.store.latest_height()
    }

    /// App hash of the last commit.
    pub fn app_hash(&self) -> [u8; 32] {
        self.shared.store.app_hash()
    }

    /// The validators that genesis gives: what `InitChain` answers. Empty when no participant has weight; then those of the
    /// consensus engine's own genesis stay.
    ///
    /// # Errors
    /// Corrupt state.
    pub fn genesis_validators(&self) -> Result<Vec<ValidatorUpdate>, AppError> {
        let snapshot = self.shared.store.snapshot();
        let state = BranchKv::with_writes(&snapshot, self.genesis.clone());
        Ok(self.shared.options.composition.participants().genesis_validators(&state)?)
    }

    /// Orders `txs` for a proposal and drops what the block cannot hold or what would fail its ante steps: by gas price,
    /// ties by sender and sequence, never by arrival. Of two that use one sequence of one account the better paid one
    /// stays, provided its signatures are good.
    pub fn prepare_proposal(&self, txs: &[Vec<u8>], max_bytes: usize) -> Vec<Vec<u8>> {
        let shared = &self.shared;
        let snapshot = shared.store.snapshot();
        let mut branch = BranchKv::with_writes(&snapshot, self.genesis.clone());
        shared.warm(&branch, &decode_all(txs, &shared.chain.hrp));
        let mut waiting: Vec<_> = txs.iter().filter_map(|raw| shared.candidate(&branch, raw)).collect();
        waiting.sort_by_key(|(good, tx)| (!*good, Reverse(tx.price()), *tx.hash()));
        let size = txs.len().max(1);
        let mut pool =
            Mempool::new(MempoolConfig { max_txs: size, max_bytes: usize::MAX, max_per_signer: size });
        for (_, tx) in waiting {
            // What the pool refuses cannot be ordered beside the others; it waits for another block.
            let _ = pool.insert(tx);
        }
        let block = BlockContext { height: shared.next_height(), ..shared.chain.clone() };
        let _ = pool.recheck(|tx| {
            let mut events = Vec::new();
            let mut ctx = Context::new(&block, &mut branch, &mut events);
            shared.run_ante(&mut ctx, AnteMode::Deliver, tx.raw()).map(|_| ())
        });
        let most = usize::try_from(shared.settings.max_block_bytes).unwrap_or(usize::MAX);
        let gas = shared.settings.max_block_gas.unwrap_or(u64::MAX);
        pool.reap(max_bytes.min(most), gas).iter().map(|raw| raw.to_vec()).collect()
    }

    /// Whether a proposed block is acceptable: within the limits, every transaction decodable. Pure function of the block
    /// and the chain's settings, and true for everything [`App::prepare_proposal`] makes.
    pub fn process_proposal(&self, txs: &[Vec<u8>]) -> bool {
        let settings = &self.shared.settings;
        let (mut bytes, mut gas) = (0_u64, 0_u64);
        for raw in txs {
            let Ok(tx) = DecodedTx::decode(raw, &self.shared.chain.hrp) else { return false };
            bytes = bytes.saturating_add(u64::try_from(bytes_in_block(raw.len())).unwrap_or(u64::MAX));
            gas = gas.saturating_add(tx.gas_limit());
        }
        bytes <= settings.max_block_bytes && settings.max_block_gas.is_none_or(|max| gas <= max)
    }

    /// Executes a block on a branch of the last commit. Nothing is durable or visible until [`App::commit`]; calling it
    /// again for the same height replaces the result.
    ///
    /// # Errors
    /// Fatal only: a block out of turn, a halting step, storage. A bad transaction is a result, never an error.
    pub fn finalize_block(&mut self, block: &Block) -> Result<FinalizedBlock, AppError> {
        let shared = self.shared.clone();
        let expected = shared.next_height();
        if block.height != expected {
            return Err(AppError::Height { expected, found: block.height });
        }
        self.pending = None;
        let snapshot = shared.store.snapshot();
        let mut branch = BranchKv::with_writes(&snapshot, self.genesis.clone());
        let mut events = Vec::new();
        let composition = &shared.options.composition;
        let mut context = BlockContext {
            height: block.height,
            time_ns: block.time_ns,
            previous_app_hash: shared.store.app_hash(),
            ..shared.chain.clone()
        };
        let due = shared.options.upgrades.due(&branch, block.height)?;
        upgrades::run(composition, &mut Context::new(&context, &mut branch, &mut events), due)?;
        context.params = holdfast_inference::Keeper.params(&branch)?.validation;
        let context = composition.begin_block(&mut Context::new(&context, &mut branch, &mut events))?;
        let mut block_events = with_mode(&mut events, "BeginBlock");
        let txs = decode_all(&block.txs, &context.hrp);
        shared.warm(&branch, &txs);
        #[cfg(test)]
        self.run_authority(Moment::BeforeTransactions, &context, &mut branch, &mut events);
        // Events ahead of the transactions: none but those of a test's authority.
        let ahead = events.len();
        let mut gas_left = shared.settings.max_block_gas;
        let mut tx_results = Vec::with_capacity(txs.len());
        for tx in &txs {
            let result = shared.deliver(&context, &mut branch, tx, gas_left);
            gas_left = gas_left.map(|left| left.saturating_sub(result.gas_used));
            tx_results.push(result);
        }
        let validator_updates =
            composition.end_block(&mut Context::new(&context, &mut branch, &mut events))?;
        #[cfg(test)]
        self.run_authority(Moment::AfterEndBlock, &context, &mut branch, &mut events);
        let record = shared.options.what_if.as_ref().and_then(|log| {
            let (ahead, end) = events.split_at_checked(ahead).unwrap_or_default();
            let txs = tx_results.iter().map(|result: &TxResult| result.events.as_slice());
            let executed = what_if::Executed {
                block: &context,
                before: &BranchKv::with_writes(&snapshot, self.genesis.clone()),
                after: &branch,
                begin: &block_events,
                deliver: std::iter::once(ahead).chain(txs).collect(),
                end,
                written: branch.writes(),
                composition,
            };
            executed.record().map_err(|reason| log.stop(block.height, &reason)).ok()
        });
        block_events.extend(with_mode(&mut events, "EndBlock"));
        let prepared = shared.store.prepare(block.height, &branch.into_writes())?;
        let app_hash = prepared.app_hash();
        let changed = prepared.changes().map(|(key, _)| key).filter(|key| moves_places(key));
        let changed = changed.map(<[u8]>::to_vec).collect();
        self.pending = Some(Pending { prepared, changed, record });
        Ok(FinalizedBlock { tx_results, events: block_events, validator_updates, app_hash })
    }

    #[cfg(test)]
    fn run_authority(
        &mut self,
        moment: Moment,
        block: &BlockContext,
        branch: &mut BranchKv<'_>,
        events: &mut Vec<Event>,
    ) {
        if let Some(run) = &mut self.authority {
            run(moment, &self.shared.options.composition, &mut Context::new(block, branch, events));
        }
    }

    /// Makes the finalized block durable, then visible.
    ///
    /// # Errors
    /// Fatal: nothing finalized, storage.
    pub fn commit(&mut self) -> Result<(), AppError> {
        let Pending { prepared, changed, record } = self.pending.take().ok_or(AppError::NothingToCommit)?;
        let shared = &self.shared;
        if let Some((log, record)) = shared.options.what_if.as_ref().zip(record) {
            log.append(record);
        }
        shared.store.commit(prepared)?;
        self.genesis.clear();
        shared.views.publish(&shared.chain, Some(&changed))?;
        shared.lock_check().writes.clear();
        Ok(())
    }

    /// The genesis document of the present state: importing it gives the same state.
    ///
    /// # Errors
    /// Corrupt state.
    pub fn export(&self, height: Height) -> Result<GenesisDoc, AppError> {
        let shared = &self.shared;
        let view = shared.views.at(height)?;
        let mut doc = GenesisDoc::default_for(&shared.settings.chain_id, &shared.chain.hrp)?;
        doc.initial_height = view.block.height.saturating_add(1);
        doc.fee_denom.clone_from(&shared.settings.fee_denom);
        let block = &mut doc.consensus.params.block;
        block.max_bytes = i64::try_from(shared.settings.max_block_bytes).unwrap_or(i64::MAX);
        block.max_gas =
            shared.settings.max_block_gas.map_or(-1, |gas| i64::try_from(gas).unwrap_or(i64::MAX));
        for module in shared.options.composition.modules() {
            doc.set_module(module.name(), &module.export_genesis(&*view.state, &shared.chain.hrp)?)?;
        }
        Ok(doc)
    }
}

fn with_mode(events: &mut Vec<Event>, mode: &str) -> Vec<Event> {
    std::mem::take(events).into_iter().map(|event| event.with("mode", mode)).collect()
}

/// Decodes transactions on all cores, each once for the whole block: decompressing its keys is most of the work.
fn decode_all(txs: &[Vec<u8>], hrp: &Hrp) -> Vec<Result<DecodedTx, ModuleError>> {
    let mut decoded: Vec<Option<_>> = txs.iter().map(|_| None).collect();
    spread(txs, &mut decoded, cores(), DECODES_AT_A_TIME, |raw, decoded| {
        *decoded = Some(DecodedTx::decode(raw, hrp))
    });
    // All are there; the other arm costs nothing and needs no promise.
    let decoded = decoded.into_iter().zip(txs);
    decoded.map(|(decoded, raw)| decoded.unwrap_or_else(|| DecodedTx::decode(raw, hrp))).collect()
}

impl<S: CommitStore> Shared<S> {
    /// Chain settings.
    pub fn settings(&self) -> &ChainSettings {
        &self.settings
    }

    /// Module composition.
    pub fn composition(&self) -> &Composition {
        &self.options.composition
    }

    /// The state database.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Signatures verified so far, and answers given from the cache.
    pub fn signature_counts(&self) -> (u64, u64) {
        (self.cache.verified(), self.cache.hits())
    }

    /// Height of the next block.
    pub fn next_height(&self) -> Height {
        match self.store.latest_height() {
            0 => self.settings.initial_height,
            height => height.saturating_add(1),
        }
    }

    fn lock_check(&self) -> MutexGuard<'_, CheckState> {
        self.check.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Verifies the signatures of `txs` that are not known yet, on all cores.
    fn warm(&self, store: &dyn KvRead, txs: &[Result<DecodedTx, ModuleError>]) {
        let checks = txs
            .iter()
            .flatten()
            .flat_map(|tx| signature_checks(store, &self.settings.chain_id, tx))
            .collect();
        self.cache.warm(checks, cores());
    }

    /// A transaction as the pool orders it, by what it says of itself, and whether its signatures are good on `store`.
    fn candidate(&self, store: &dyn KvRead, raw: &[u8]) -> Option<(bool, MempoolTx)> {
        let tx = DecodedTx::decode(raw, &self.chain.hrp).ok()?;
        let sequences = tx.signer_infos().iter().map(|info| info.sequence);
        let signers = tx.signers().iter().copied().zip(sequences).collect();
        let checks = signature_checks(store, &self.settings.chain_id, &tx);
        let good = checks.len() == tx.signers().len() && checks.iter().all(|c| self.cache.verify(c).is_ok());
        let price = gas_price(tx.fee().first(), tx.gas_limit());
        Some((good, MempoolTx::new(raw, signers, tx.gas_limit(), price)))
    }

    fn env(&self) -> AnteEnv<'_> {
        AnteEnv {
            bank: &holdfast_bank::Keeper,
            fee_denom: &self.settings.fee_denom,
            min_gas_price: self.options.min_gas_price,
            max_block_gas: self.settings.max_block_gas,
            cache: &self.cache,
        }
    }

    fn run_ante(
        &self,
        ctx: &mut Context<'_>,
        mode: AnteMode,
        raw: &[u8],
    ) -> Result<(DecodedTx, AnteOutcome), ModuleError> {
        let tx = DecodedTx::decode(raw, &ctx.block.hrp)?;
        for message in tx.messages() {
            router::check_message(message)?;
        }
        let meter = GasMeter::new(tx.gas_limit());
        let outcome = ante(ctx, mode, &tx, &self.env(), &meter)?;
        Ok((tx, outcome))
    }

    /// Runs one transaction on `branch`: ante effects stay when they passed, messages' effects only when all of them did. A
    /// panic is an error of this transaction.
    fn deliver(
        &self,
        block: &BlockContext,
        branch: &mut BranchKv<'_>,
        tx: &Result<DecodedTx, ModuleError>,
        gas_left: Option<u64>,
    ) -> TxResult {
        let tx = match tx {
            Ok(tx) => tx,
            Err(error) => return TxResult::failed(error, 0, 0, Vec::new()),
        };
        let wanted = tx.gas_limit();
        if gas_left == Some(0) {
            let error = ModuleError::sdk(sdk::OUT_OF_GAS, "no block gas left to run tx");
            return TxResult::failed(&error, wanted, 0, Vec::new());
        }
        let meter = GasMeter::new(wanted);
        let mut events = Vec::new();
        let guarded = AssertUnwindSafe(|| {
            let mut ctx = Context::new(block, branch, &mut events);
            ante(&mut ctx, AnteMode::Deliver, tx, &self.env(), &meter)
        });
        if let Err(error) = catch_unwind(guarded).unwrap_or_else(|panic| Err(panic_error(&*panic))) {
            return TxResult::failed(&error, wanted, meter.used(), Vec::new());
        }
        let guarded = AssertUnwindSafe(|| self.run_messages(block, &*branch, tx, &meter));
        match catch_unwind(guarded).unwrap_or_else(|panic| Err(panic_error(&*panic))) {
            Ok((writes, mut message_events, data)) => {
                branch.absorb(writes);
                events.append(&mut message_events);
                let data = data.encode_to_vec();
                let (gas_wanted, gas_used) = (wanted, meter.used());
                TxResult { data, gas_wanted, gas_used, events, ..TxResult::default() }
            }
            Err(error) => TxResult::failed(&error, wanted, meter.used(), events),
        }
    }

    /// All messages of a transaction on one branch.
    fn run_messages(
        &self,
        block: &BlockContext,
        base: &dyn KvRead,
        tx: &DecodedTx,
        meter: &GasMeter,
    ) -> Result<(WriteSet, Vec<Event>, TxMsgData), ModuleError> {
        let mut branch = BranchKv::new(base);
        let mut events = Vec::new();
        let mut data = TxMsgData::default();
        for (index, message) in tx.messages().iter().enumerate() {
            let mut metered = MeteredKv::new(&mut branch, meter, GasConfig::SDK);
            let mut own = vec![Event::new("message").with("action", &message.type_url)];
            let mut ctx = Context::new(block, &mut metered, &mut own);
            let response = self.options.composition.deliver(&mut ctx, message).map_err(|mut error| {
                error.message = format!("message {index}: {}", error.message);
                error
            })?;
            data.msg_responses.push(response);
            events.extend(own.into_iter().map(|event| event.with("msg_index", index)));
        }
        Ok((branch.into_writes(), events, data))
    }

    /// Whether a transaction may wait for a block: ante steps on the state as earlier checks left it.
    ///
    /// # Errors
    /// The code the transaction would get.
    pub fn check_tx(&self, raw: &[u8]) -> Result<MempoolTx, ModuleError> {
        self.check_tx_into(raw, Ok)
    }

    /// As [`Shared::check_tx`], and gives the transaction to `pool`. Later checks build on it only if that takes it: else an
    /// account's next sequence would pass here and fail in the block.
    ///
    /// # Errors
    /// The code the transaction would get, or that of `pool`.
    pub fn check_tx_into<T>(
        &self,
        raw: &[u8],
        pool: impl FnOnce(MempoolTx) -> Result<T, ModuleError>,
    ) -> Result<T, ModuleError> {
        self.check(AnteMode::Check, raw, pool)
    }

    /// The same for a transaction that waits already, after a commit.
    ///
    /// # Errors
    /// The code the transaction would get now.
    pub fn recheck_tx(&self, raw: &[u8]) -> Result<MempoolTx, ModuleError> {
        self.check(AnteMode::Recheck, raw, Ok)
    }

    /// Gives back the sequences of a transaction that the pool pushed out, the last waiting one of each of its signers. Its
    /// fee stays taken until the next commit: that refuses too much for a block, and nothing that could run passes for it.
    ///
    /// # Errors
    /// Storage.
    pub fn uncheck_tx(&self, tx: &MempoolTx) -> Result<(), ModuleError> {
        let mut check = self.lock_check();
        let snapshot = self.store.snapshot();
        let mut branch = BranchKv::with_writes(&snapshot, std::mem::take(&mut check.writes));
        let given_back = tx.signers().iter().try_for_each(|(address, sequence)| {
            let Some(account) = holdfast_auth::Keeper.account(&branch, address)? else { return Ok(()) };
            let account = holdfast_auth::Account { sequence: *sequence, ..account };
            holdfast_auth::Keeper.set_account(&mut branch, address, &account)
        });
        check.writes = branch.into_writes();
        Ok(given_back?)
    }

    fn check<T>(
        &self,
        mode: AnteMode,
        raw: &[u8],
        pool: impl FnOnce(MempoolTx) -> Result<T, ModuleError>,
    ) -> Result<T, ModuleError> {
        let mut check = self.lock_check();
        let block = BlockContext { height: self.next_height(), ..self.chain.clone() };
        let snapshot = self.store.snapshot();
        let mut branch = BranchKv::with_writes(&snapshot, std::mem::take(&mut check.writes));
        let mut own = BranchKv::new(&branch);
        let guarded = AssertUnwindSafe(|| {
            let mut events = Vec::new();
            self.run_ante(&mut Context::new(&block, &mut own, &mut events), mode, raw)
        });
        let checked = catch_unwind(guarded).unwrap_or_else(|panic| Err(panic_error(&*panic)));
        let taken = checked.and_then(|(_, outcome)| {
            pool(MempoolTx::new(raw.to_vec(), outcome.signers, outcome.gas_wanted, outcome.price))
        });
        let own = own.into_writes();
        if taken.is_ok() {
            branch.absorb(own);
        }
        check.writes = branch.into_writes();
        taken
    }

    /// Runs a transaction on the last commit and drops the result: the gas it would use. Signatures may be missing.
    ///
    /// # Errors
    /// The code the transaction would get.
    pub fn simulate(&self, raw: &[u8]) -> Result<TxResult, ModuleError> {
        let view = self.views.latest().map_err(|e| ModuleError::sdk(sdk::INVALID_HEIGHT, e.message))?;
        let block = BlockContext { height: self.next_height(), ..view.block.clone() };
        let tx = DecodedTx::decode(raw, &block.hrp)?;
        let meter = GasMeter::new(self.settings.max_block_gas.unwrap_or(u64::MAX));
        let mut branch = BranchKv::new(&*view.state);
        let mut events = Vec::new();
        let guarded = AssertUnwindSafe(|| {
            let mut ctx = Context::new(&block, &mut branch, &mut events);
            ante(&mut ctx, AnteMode::Simulate, &tx, &self.env(), &meter)?;
            self.run_messages(&block, &branch, &tx, &meter)
        });
        let (_, mut message_events, data) =
            catch_unwind(guarded).unwrap_or_else(|panic| Err(panic_error(&*panic)))?;
        events.append(&mut message_events);
        let (gas_wanted, gas_used) = (tx.gas_limit(), meter.used());
        Ok(TxResult { data: data.encode_to_vec(), gas_wanted, gas_used, events, ..TxResult::default() })
    }

    /// The view of `height`; 0 = latest.
    ///
    /// # Errors
    /// See [`Views::at`].
    pub fn view(&self, height: Height) -> Result<Arc<QueryView>, QueryError> {
        self.views.at(height)
    }

    /// Answers a module query by gRPC path at `height` (0 = latest); returns the height used.
    ///
    /// # Errors
    /// By kind.
    pub fn query(&self, path: &str, request: &[u8], height: Height) -> Result<(Vec<u8>, Height), QueryError> {
        let view = self.views.at(height)?;
        if path == what_if::PATH {
            let request = decode_strict(request).map_err(|e| QueryError::invalid(e.to_string()))?;
            let log = self.options.what_if.as_deref();
            let reply = what_if::answer(log, &view, &self.options.composition, &request)?;
            return Ok((reply.encode_to_vec(), view.block.height));
        }
        let seeds: &SeedSource = &random_seed;
        let value = self.options.composition.query(&view, path, request, seeds)?;
        Ok((value, view.block.height))
    }

    /// Checks every module's invariants at the last commit; returns how many.
    ///
    /// # Errors
    /// The one that fails, in words.
    pub fn check_invariants(&self) -> Result<u64, String> {
        let view = self.views.latest().map_err(|e| e.to_string())?;
        self.options.composition.check_invariants(&*view.state, &view.block)
    }
}

/// The query layer's own draw, outside consensus.
fn random_seed() -> Result<[u8; 32], QueryError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|e| QueryError::new(QueryKind::Unavailable, format!("no randomness: {e}")))?;
    Ok(seed)
}

pub(crate) fn panic_error(panic: &(dyn std::any::Any + Send)) -> ModuleError {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    ModuleError::new(PANIC.0, PANIC.1, format!("panic while executing the transaction: {text}"))
}
