//! What queries read: a committed height as one value, with its candidate tables (breaker-details 4).
//!
//! A [`QueryView`] is built after a commit is durable and published behind one atomic pointer. A reader takes it
//! once per call, so state, tables and the height in the reply agree. Tables follow the block's committed keys,
//! reread from the snapshot; nothing depends on events or hooks, which could be forgotten.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use arc_swap::ArcSwapOption;
use holdfast_inference::{CandidateTable, build_table, candidate_row};
use holdfast_store::{KvIter, KvRead, Order, StoreError, WriteSet};
use holdfast_types::{Address, BlockContext, QueryContext, QueryError, QueryKind};

use crate::composition::Composition;
use crate::state::{CommitStore, StateError, StateView};

/// Latest views kept ready.
pub const RECENT_VIEWS: usize = 8;
/// Views of older heights kept once rebuilt.
pub const OLD_VIEWS: usize = 16;

type Tables = BTreeMap<String, OnceLock<Arc<CandidateTable>>>;

/// One committed height.
pub struct QueryView {
    /// State after that height.
    pub state: Arc<dyn StateView>,
    /// Height, epoch, phase, and the params committed at that height.
    pub block: BlockContext,
    tables: Tables,
}

fn internal(e: impl ToString) -> QueryError {
    QueryError::new(QueryKind::Internal, e.to_string())
}

impl QueryView {
    fn store(&self) -> &dyn KvRead {
        &*self.state
    }

    /// For a query handler.
    pub fn query(&self) -> QueryContext<'_> {
        QueryContext { block: &self.block, store: self.store() }
    }

    /// Candidate table of `model`.
    ///
    /// # Errors
    /// `NotFound` for an unknown model, `Internal` for corrupt state.
    pub fn table(&self, composition: &Composition, model: &str) -> Result<Arc<CandidateTable>, QueryError> {
        let slot = self
            .tables
            .get(model)
            .ok_or_else(|| QueryError::not_found(format!("model: {model:?} is not registered")))?;
        if let Some(table) = slot.get() {
            return Ok(table.clone());
        }
        let table = Arc::new(self.build(composition, model)?);
        Ok(slot.get_or_init(|| table).clone())
    }

    fn build(&self, composition: &Composition, model: &str) -> Result<CandidateTable, QueryError> {
        composition.with(|hooks| {
            build_table(self.store(), &self.block, &hooks.participants, &hooks.breaker(), model)
        })
    }
}

/// Genesis state seen as the height before the first block.
struct GenesisView {
    writes: WriteSet,
    height: i64,
}

impl KvRead for GenesisView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.writes.get(key).cloned().flatten())
    }

    fn scan<'a>(&'a self, start: &[u8], end: Option<&[u8]>, order: Order) -> KvIter<'a> {
        if end.is_some_and(|end| end <= start) {
            return Box::new(std::iter::empty());
        }
        let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
        let rows = self.writes.range::<[u8], _>(bounds);
        let rows = rows.filter_map(|(key, value)| value.clone().map(|value| Ok((key.clone(), value))));
        match order {
            Order::Ascending => Box::new(rows),
            Order::Descending => Box::new(rows.rev()),
        }
    }
}

impl StateView for GenesisView {
    fn height(&self) -> i64 {
        self.height
    }

    fn app_hash(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The published views.
pub struct Views<S> {
    store: Arc<S>,
    composition: Composition,
    latest: ArcSwapOption<QueryView>,
    recent: RwLock<VecDeque<Arc<QueryView>>>,
    old: Mutex<VecDeque<Arc<QueryView>>>,
    /// Rebuild every table after each commit and compare: tests and simulation.
    check: bool,
}

impl<S: CommitStore> Views<S> {
    /// No view yet.
    pub fn new(store: Arc<S>, composition: Composition, check: bool) -> Self {
        Self {
            store,
            composition,
            latest: ArcSwapOption::empty(),
            recent: RwLock::default(),
            old: Mutex::default(),
            check,
        }
    }

    /// The latest view.
    ///
    /// # Errors
    /// `Unavailable` before genesis.
    pub fn latest(&self) -> Result<Arc<QueryView>, QueryError> {
        self.latest
            .load_full()
            .ok_or_else(|| QueryError::new(QueryKind::Unavailable, "the chain has no block yet"))
    }

    /// The view of `height`; 0 = latest.
    ///
    /// # Errors
    /// `NotFound` when pruned, `OutOfRange` when not reached yet, `InvalidArgument` when negative.
    pub fn at(&self, height: i64) -> Result<Arc<QueryView>, QueryError> {
        let latest = self.latest()?;
        if height == 0 || height == latest.block.height {
            return Ok(latest);
        }
        if height < 0 {
            return Err(QueryError::invalid("height: must not be negative"));
        }
        if height > latest.block.height {
            let text = format!("height {height} is not reached yet, the latest is {}", latest.block.height);
            return Err(QueryError::new(QueryKind::OutOfRange, text));
        }
        let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = recent.iter().find(|view| view.block.height == height) {
            return Ok(view.clone());
        }
        drop(recent);
        let mut old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = old.iter().find(|view| view.block.height == height) {
            return Ok(view.clone());
        }
        let state = self.store.snapshot_at(height).map_err(|e| match e {
            StateError::Pruned { .. } => QueryError::not_found(e.to_string()),
            StateError::Future { .. } => QueryError::new(QueryKind::OutOfRange, e.to_string()),
            e => internal(e),
        })?;
        let view = Arc::new(self.view(Arc::new(state), &latest.block)?);
        old.push_back(view.clone());
        if old.len() > OLD_VIEWS {
            old.pop_front();
        }
        Ok(view)
    }

    /// A view whose tables are still to be built.
    fn view(&self, state: Arc<dyn StateView>, chain: &BlockContext) -> Result<QueryView, QueryError> {
        let height = state.height();
        let params = holdfast_inference::Keeper.params(&*state)?;
        let position = holdfast_epochs::Keeper.position(&*state, height).map_err(internal)?;
        let block = BlockContext {
            height,
            previous_app_hash: state.app_hash(),
            epoch: position.epoch,
            poc: position.poc,
            params: params.validation,
            ..chain.clone()
        };
        let models =
            holdfast_types::traits::ParticipantsRead::models(&self.composition.participants(), &*state)?;
        let tables = models.into_iter().map(|model| (model, OnceLock::new())).collect();
        Ok(QueryView { state, block, tables })
    }

    /// Publishes genesis state as height `height`, the one before the first block, so that clients can ask for accounts
    /// and executors before it.
    ///
    /// # Errors
    /// `Internal` for corrupt state.
    pub fn publish_genesis(
        &self,
        chain: &BlockContext,
        height: i64,
        writes: WriteSet,
    ) -> Result<(), QueryError> {
        let view = self.view(Arc::new(GenesisView { writes, height }), chain)?;
        self.latest.store(Some(Arc::new(view)));
        Ok(())
    }

    /// Publishes the latest committed height. `changed` are the keys its block changed, at least those that can move a
    /// place in a table; without them (after a restart or a rollback) every table is rebuilt.
    ///
    /// # Errors
    /// `Internal` for corrupt state; nothing is published then.
    pub fn publish(&self, chain: &BlockContext, changed: Option<&[Vec<u8>]>) -> Result<(), QueryError> {
        let before = self.latest.load_full();
        let mut view = self.view(Arc::new(self.store.snapshot()), chain)?;
        let reusable = before.as_ref().filter(|b| same_selection(&b.block, &view.block)).zip(changed);
        match reusable {
            Some((before, changed)) => self.carry_over(before, &mut view, changed)?,
            None => {
                for (model, slot) in &view.tables {
                    let _ = slot.set(Arc::new(view.build(&self.composition, model)?));
                }
            }
        }
        if self.check {
            for (model, slot) in &view.tables {
                let rebuilt = view.build(&self.composition, model)?;
                let kept = slot.get().ok_or_else(|| internal("a table is missing"))?;
                if rebuilt.digest() != kept.digest() || rebuilt.filter_counts() != kept.filter_counts() {
                    return Err(internal(format!(
                        "candidate table of {model} at {} drifted",
                        view.block.height
                    )));
                }
            }
        }
        let view = Arc::new(view);
        let mut recent = self.recent.write().unwrap_or_else(PoisonError::into_inner);
        recent.push_back(view.clone());
        if recent.len() > RECENT_VIEWS {
            recent.pop_front();
        }
        self.latest.store(Some(view));
        Ok(())
    }

    /// Tables of `before` with the places that `changed` can have moved; the others are shared.
    fn carry_over(
        &self,
        before: &QueryView,
        view: &mut QueryView,
        changed: &[Vec<u8>],
    ) -> Result<(), QueryError> {
        let mut touched: BTreeMap<String, BTreeSet<Address>> = BTreeMap::new();
        for key in changed {
            if let Some((epoch, model, participant)) = holdfast_breaker::state::ENTRIES.parse_key(key) {
                if epoch == view.block.epoch {
                    touched.entry(model).or_default().insert(participant);
                }
            } else if let Some(watched) = holdfast_participants::watched(key) {
                let models: Vec<String> = match watched.model {
                    Some(model) => vec![model],
                    None => view.tables.keys().cloned().collect(),
                };
                for model in models {
                    touched.entry(model).or_default().insert(watched.participant);
                }
            }
        }
        for (model, slot) in &view.tables {
            let old = before.tables.get(model).and_then(OnceLock::get);
            let table = match (old, touched.get(model)) {
                (None, _) => Arc::new(view.build(&self.composition, model)?),
                (Some(old), None) => old.clone(),
                (Some(old), Some(addresses)) => {
                    let places = self.composition.with(|hooks| {
                        let breaker = hooks.breaker();
                        let place = |address: &Address| {
                            let (store, block) = (view.store(), &view.block);
                            let place =
                                candidate_row(store, block, &hooks.participants, &breaker, model, address)?;
                            Ok::<_, StoreError>((*address, place))
                        };
                        addresses.iter().map(place).collect::<Result<BTreeMap<_, _>, _>>()
                    })?;
                    Arc::new(old.with_changes(&places).map_err(internal)?)
                }
            };
            let _ = slot.set(table);
        }
        Ok(())
    }
}

/// Whether a change of `key` can move a place in a candidate table: places are read from these two modules' state only.
pub(crate) fn moves_places(key: &[u8]) -> bool {
    let is_of = |module: &str| key.strip_prefix(module.as_bytes()).and_then(<[u8]>::first) == Some(&b'/');
    is_of(holdfast_breaker::keys::MODULE) || is_of(holdfast_participants::MODULE_NAME)
}

/// Whether two heights select under the same epoch, phase and parameters.
fn same_selection(a: &BlockContext, b: &BlockContext) -> bool {
    a.epoch == b.epoch && a.poc == b.poc && a.params == b.params
}
