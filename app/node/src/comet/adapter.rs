//! ABCI methods over [`App`]. Thin: every rule of the chain is in the app, the same one that the solo engine runs.
//!
//! | method | by | lock |
//! |---|---|---|
//! | Info | the last commit, noted here | none |
//! | InitChain, PrepareProposal, ProcessProposal, FinalizeBlock, Commit | [`App`] | consensus |
//! | OfferSnapshot, ApplySnapshotChunk | the restore, while there is no chain yet | consensus |
//! | CheckTx | [`Shared`], its own check state, dropped at each commit | that of the check state |
//! | Query | [`Shared`], the view of a height | none |
//! | ListSnapshots, LoadSnapshotChunk | files | none |
//! | ExtendVote, VerifyVoteExtension | nothing: empty, accepted | none |
//!
//! So a query of five seconds holds up the queries behind it on its connection and no block. CheckTx and Commit meet only
//! where the check state is dropped; CometBFT holds its mempool's lock there anyway.
//!
//! Until `InitChain` or a restored snapshot there is a state database and no [`App`]: genesis stays in memory until the
//! first block commits it with its own writes, so `InitChain` may come any number of times.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use holdfast_app::app::{App, AppError, AppOptions, Block, FinalizedBlock, Shared};
use holdfast_app::genesis::GenesisDoc;
use holdfast_app::snapshots::{Apply, Offer, Restorer, SnapshotInfo, SnapshotStore};
use holdfast_app::state::CommitStore;
use holdfast_proto::Timestamp;
use holdfast_types::{ModuleError, ValidatorUpdate, sdk};
use tendermint_proto::v0_38::abci::{self as pb, request::Value as Q, response::Value as R};

use super::convert;
use super::server::{Application, Method, refusal};
use crate::solo::{BlockTimes, telemetry};

/// What the adapter needs beside the state database.
pub struct AdapterConfig {
    /// `config/genesis.json`, read at InitChain.
    pub genesis: PathBuf,
    /// Options of the app.
    pub options: AppOptions,
    /// Blocks that CometBFT keeps at least; 0 keeps all.
    pub min_retain_blocks: u64,
    /// Heights for which a snapshot of this node may be in use by a joining peer; 0 without snapshots.
    pub snapshot_heights: u64,
    /// Fills the state database from a snapshot; over the same database as the adapter.
    pub restorer: Option<Restorer>,
    /// Snapshots to serve.
    pub snapshots: Option<SnapshotStore>,
    /// Whether metrics are kept.
    pub metered: bool,
    /// Called after each durable commit with its height; must be quick.
    pub after_commit: Box<dyn Fn(i64) + Send + Sync>,
}

/// CometBFT tells a peer of ten at most.
const SNAPSHOTS_LISTED: usize = 10;

enum Stage<S> {
    /// A database without a chain.
    Empty(S),
    /// A chain, perhaps before its first block.
    Running(Box<App<S>>),
    /// A step took the state and failed; the process is ending.
    Broken,
}

/// The application that CometBFT talks to.
pub struct Adapter<S: CommitStore> {
    config: AdapterConfig,
    restorer: Mutex<Option<Restorer>>,
    /// The block that is finalized and not committed, for metrics.
    finalized: Mutex<Option<(FinalizedBlock, Duration)>>,
    stage: Mutex<Stage<S>>,
    shared: RwLock<Option<Arc<Shared<S>>>>,
    /// Height and app hash of the last commit; one value, so that Info never mixes two blocks.
    last: RwLock<(i64, [u8; 32])>,
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn owned(txs: Vec<Bytes>) -> Vec<Vec<u8>> {
    txs.into_iter().map(Vec::from).collect()
}

/// Why a call finds no chain.
pub(crate) const NOT_STARTED: &str =
    "the chain has not started on this node yet: try again after its first block";

impl<S: CommitStore> Adapter<S> {
    /// Over `store`, which holds a chain or nothing.
    ///
    /// # Errors
    /// A chain that this binary cannot run.
    pub fn new(store: S, mut config: AdapterConfig) -> Result<Self, AppError> {
        let stage = if store.latest_height() > 0 {
            Stage::Running(Box::new(App::open(store, config.options.clone())?))
        } else {
            Stage::Empty(store)
        };
        let restorer = config.restorer.take();
        let adapter = Self {
            config,
            restorer: Mutex::new(restorer),
            finalized: Mutex::new(None),
            stage: Mutex::new(Stage::Broken),
            shared: RwLock::new(None),
            last: RwLock::new((0, [0; 32])),
        };
        adapter.enter(&mut adapter.lock(), stage);
        Ok(adapter)
    }

    fn lock(&self) -> MutexGuard<'_, Stage<S>> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Option<(FinalizedBlock, Duration)>> {
        self.finalized.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn restorer(&self) -> MutexGuard<'_, Option<Restorer>> {
        self.restorer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a stage to the calls that take no lock.
    fn enter(&self, slot: &mut Stage<S>, stage: Stage<S>) {
        if let Stage::Running(app) = &stage {
            *write(&self.last) = (app.height(), app.app_hash());
            *write(&self.shared) = Some(app.shared());
        }
        *slot = stage;
    }

    /// Checks and queries; `None` until there is a chain.
    pub fn shared(&self) -> Option<Arc<Shared<S>>> {
        read(&self.shared).clone()
    }

    /// Height of the last commit; 0 before the first.
    pub fn height(&self) -> i64 {
        read(&self.last).0
    }

    fn info(&self) -> pb::ResponseInfo {
        let (height, hash) = *read(&self.last);
        pb::ResponseInfo {
            data: "holdfast".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            app_version: convert::APP_VERSION,
            last_block_height: height,
            // Before the first commit there is nothing to compare.
            last_block_app_hash: if height == 0 { Bytes::new() } else { Bytes::copy_from_slice(&hash) },
        }
    }

    /// The node's own genesis, after a check that CometBFT started from the same one.
    fn genesis(&self, request: &pb::RequestInitChain) -> Result<GenesisDoc> {
        let (path, doc) = (self.config.genesis.display(), crate::open::genesis(&self.config.genesis)?);
        let same = |field: &str, own: &str, given: &str| {
            ensure!(
                own == given,
                "InitChain: {field}: CometBFT says {given:?}, {path} says {own:?}; both must use the same genesis.json"
            );
            Ok(())
        };
        same("chain_id", &doc.chain_id, &request.chain_id)?;
        // 0 stands for 1 there.
        let initial = request.initial_height.max(1);
        same("initial_height", &doc.initial_height.to_string(), &initial.to_string())?;
        let own_time: Timestamp =
            doc.genesis_time.parse().with_context(|| format!("{path}: genesis_time"))?;
        let time = request.time.unwrap_or_default();
        let time = Timestamp { seconds: time.seconds, nanos: time.nanos };
        same("genesis_time", &own_time.to_string(), &time.to_string())?;
        let state: serde_json::Value = serde_json::from_slice(&request.app_state_bytes)
            .context("InitChain: app_state: is no JSON; both must use the same genesis.json")?;
        ensure!(
            state.as_object() == Some(&doc.app_state),
            "InitChain: app_state: differs from that of {path}; both must use the same genesis.json"
        );
        Ok(doc)
    }

    fn init_chain(&self, request: &pb::RequestInitChain) -> Result<pb::ResponseInitChain> {
        let doc = self.genesis(request)?;
        let engine = request.validators.iter().map(convert::validator_update).collect::<Result<Vec<_>>>()?;
        let mut stage = self.lock();
        if let Some(restorer) = &mut *self.restorer() {
            // CometBFT gave up on snapshots.
            restorer.abandon()?;
        }
        if let Stage::Empty(_) = &*stage
            && let Stage::Empty(store) = std::mem::replace(&mut *stage, Stage::Broken)
        {
            // Taken over only where the document names none: then their power passes to participants step by step.
            let app = App::from_genesis_with(store, self.config.options.clone(), &doc, &engine)?;
            self.enter(&mut stage, Stage::Running(Box::new(app)));
        }
        let Stage::Running(app) = &*stage else { bail!("the state was lost in an earlier failure: restart") };
        // Else it is repeated, before the first commit.
        ensure!(app.height() == 0, "InitChain: the chain is at height {} already", app.height());
        let validators = app.genesis_validators()?;
        if !validators.is_empty() && !engine.is_empty() {
            // Keys only: adopted powers are a multiple of those given, and the engine takes what is answered.
            fn keys(of: &[ValidatorUpdate]) -> BTreeSet<&[u8]> {
                of.iter().map(|validator| &*validator.public_key).collect()
            }
            ensure!(
                keys(&engine) == keys(&validators),
                "InitChain: validators: those of CometBFT's genesis are not the participants of app_state; leave them out there"
            );
        }
        ensure!(
            !validators.is_empty() || !engine.is_empty(),
            "InitChain: validators: nobody validates; register a participant with collateral in genesis.json \
             (holdfastd genesis add-participant)"
        );
        let settings = app.shared().settings().clone();
        Ok(pb::ResponseInitChain {
            consensus_params: Some(convert::consensus_params(&settings)),
            validators: validators.into_iter().map(convert::validator).collect::<Result<_>>()?,
            app_hash: Bytes::copy_from_slice(&app.app_hash()),
        })
    }

    fn with_app<T>(&self, act: impl FnOnce(&mut App<S>) -> Result<T>) -> Result<T> {
        match &mut *self.lock() {
            Stage::Running(app) => act(app),
            Stage::Empty(_) => bail!("there is no chain yet: InitChain or a snapshot must come first"),
            Stage::Broken => bail!("the state was lost in an earlier failure: restart"),
        }
    }

    /// As `with_app` for a step that must not fail: if it does, nothing runs on what it left.
    fn step<T>(&self, act: impl FnOnce(&mut App<S>) -> Result<T>) -> Result<T> {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::Broken) {
            Stage::Running(mut app) => {
                let done = act(&mut app)?;
                *stage = Stage::Running(app);
                Ok(done)
            }
            other => {
                *stage = other;
                drop(stage);
                self.with_app(act)
            }
        }
    }

    fn check_tx(&self, request: &pb::RequestCheckTx) -> R {
        let Some(shared) = self.shared() else {
            return refusal(Method::CheckTx, sdk::CODESPACE, sdk::INTERNAL, NOT_STARTED.into());
        };
        let checked = match pb::CheckTxType::try_from(request.r#type) {
            Ok(pb::CheckTxType::New) => shared.check_tx(&request.tx),
            Ok(pb::CheckTxType::Recheck) => shared.recheck_tx(&request.tx),
            Err(_) => {
                let text = format!("CheckTx: type {}: 0 (new) and 1 (recheck) are known", request.r#type);
                Err(ModuleError::sdk(sdk::INTERNAL, text))
            }
        };
        match checked {
            Ok(tx) => R::CheckTx(pb::ResponseCheckTx {
                gas_wanted: i64::try_from(tx.gas_wanted()).unwrap_or(i64::MAX),
                ..Default::default()
            }),
            Err(e) => refusal(Method::CheckTx, e.codespace, e.code, e.message),
        }
    }

    fn prepare_proposal(&self, request: pb::RequestPrepareProposal) -> Result<R> {
        let most =
            usize::try_from(request.max_tx_bytes).context("PrepareProposal: max_tx_bytes is negative")?;
        let txs = owned(request.txs);
        let txs = self.with_app(|app| Ok(app.prepare_proposal(&txs, most)))?;
        let txs = txs.into_iter().map(Bytes::from).collect();
        Ok(R::PrepareProposal(pb::ResponsePrepareProposal { txs }))
    }

    fn process_proposal(&self, request: pb::RequestProcessProposal) -> Result<R> {
        use pb::response_process_proposal::ProposalStatus;
        let txs = owned(request.txs);
        let good = self.with_app(|app| Ok(app.process_proposal(&txs)))?;
        if !good {
            let (height, txs) = (request.height, txs.len());
            tracing::warn!(height, txs, "proposal refused: over the block's limits, or undecodable");
        }
        let status = if good { ProposalStatus::Accept } else { ProposalStatus::Reject };
        Ok(R::ProcessProposal(pb::ResponseProcessProposal { status: status.into() }))
    }

    fn finalize_block(&self, request: pb::RequestFinalizeBlock) -> Result<R> {
        let time_ns = convert::time_ns(request.time.as_ref()).context("FinalizeBlock")?;
        let block = Block { height: request.height, time_ns, txs: owned(request.txs) };
        let started = Instant::now();
        let finalized = self.step(|app| Ok(app.finalize_block(&block)?))?;
        if self.config.metered {
            *self.pending() = Some((finalized.clone(), started.elapsed()));
        }
        let (height, txs) = (block.height, block.txs.len());
        let app_hash = hex::encode_upper(finalized.app_hash);
        tracing::info!(height, txs, app_hash, "finalized block");
        Ok(R::FinalizeBlock(convert::finalized(finalized)?))
    }

    fn list_snapshots(&self) -> Result<R> {
        let listed = self.config.snapshots.as_ref().map_or_else(|| Ok(Vec::new()), SnapshotStore::list)?;
        let snapshot = |info: SnapshotInfo| pb::Snapshot {
            height: info.height,
            format: info.format,
            chunks: info.chunks,
            hash: info.hash.into(),
            metadata: info.metadata.into(),
        };
        let snapshots = listed.into_iter().take(SNAPSHOTS_LISTED).map(snapshot).collect();
        Ok(R::ListSnapshots(pb::ResponseListSnapshots { snapshots }))
    }

    fn load_chunk(&self, request: pb::RequestLoadSnapshotChunk) -> Result<R> {
        let pb::RequestLoadSnapshotChunk { height, format, chunk } = request;
        let loaded = match &self.config.snapshots {
            Some(snapshots) => snapshots.load_chunk(height, format, chunk)?,
            None => None,
        };
        Ok(R::LoadSnapshotChunk(pb::ResponseLoadSnapshotChunk { chunk: loaded.unwrap_or_default().into() }))
    }

    fn offer_snapshot(&self, request: pb::RequestOfferSnapshot) -> R {
        use pb::response_offer_snapshot::Result as Answer;
        let (stage, mut restorer) = (self.lock(), self.restorer());
        let offer = match (&*stage, &mut *restorer, request.snapshot) {
            (_, _, None) => Offer::Reject("no snapshot in the request".into()),
            (Stage::Empty(_), Some(restorer), Some(snapshot)) => {
                let pb::Snapshot { height, format, chunks, hash, metadata } = snapshot;
                let (hash, metadata) = (hash.to_vec(), metadata.to_vec());
                restorer.offer(&SnapshotInfo { height, format, chunks, hash, metadata }, &request.app_hash)
            }
            _ => Offer::Abort("there is a chain already; empty the data folder to join by a snapshot".into()),
        };
        let (result, reason) = match offer {
            Offer::Accept => (Answer::Accept, None),
            Offer::Abort(reason) => (Answer::Abort, Some(reason)),
            Offer::Reject(reason) => (Answer::Reject, Some(reason)),
            Offer::RejectFormat(reason) => (Answer::RejectFormat, Some(reason)),
            Offer::RejectSender(reason) => (Answer::RejectSender, Some(reason)),
        };
        tracing::info!(?result, reason, "snapshot offered");
        R::OfferSnapshot(pb::ResponseOfferSnapshot { result: result.into() })
    }

    fn apply_chunk(&self, request: pb::RequestApplySnapshotChunk) -> R {
        use pb::response_apply_snapshot_chunk::Result as Answer;
        let mut stage = self.lock();
        let applied = match &mut *self.restorer() {
            Some(restorer) => restorer.apply_chunk(request.index, &request.chunk, &request.sender),
            None => Apply::Abort("no snapshot was accepted".into()),
        };
        let mut response = pb::ResponseApplySnapshotChunk::default();
        let (result, reason) = match applied {
            Apply::Accept => (Answer::Accept, None),
            Apply::Complete => match self.open_restored(&mut stage) {
                Ok(()) => (Answer::Accept, None),
                Err(error) => (Answer::Abort, Some(format!("{error:#}"))),
            },
            Apply::Retry { refetch, reject_sender, reason } => {
                response.refetch_chunks = refetch;
                response.reject_senders = reject_sender.into_iter().collect();
                (Answer::Retry, Some(reason))
            }
            Apply::RejectSnapshot(reason) => (Answer::RejectSnapshot, Some(reason)),
            Apply::Abort(reason) => (Answer::Abort, Some(reason)),
        };
        if let Some(reason) = reason {
            tracing::warn!(?result, reason, chunk = request.index, sender = request.sender, "snapshot chunk");
        }
        response.result = result.into();
        R::ApplySnapshotChunk(response)
    }

    /// Opens the chain that the restorer has put into the database. No InitChain follows.
    fn open_restored(&self, stage: &mut Stage<S>) -> Result<()> {
        let Stage::Empty(store) = std::mem::replace(stage, Stage::Broken) else {
            bail!("there is a chain already");
        };
        let app = App::open(store, self.config.options.clone())?;
        tracing::info!(
            height = app.height(),
            app_hash = hex::encode_upper(app.app_hash()),
            "restored a snapshot"
        );
        self.enter(stage, Stage::Running(Box::new(app)));
        Ok(())
    }

    fn commit(&self) -> Result<R> {
        let started = Instant::now();
        let height = self.step(|app| {
            app.commit()?;
            *write(&self.last) = (app.height(), app.app_hash());
            Ok(app.height())
        })?;
        if let Some(((finalized, finalize), shared)) = self.pending().take().zip(self.shared()) {
            let times = BlockTimes { finalize, commit: started.elapsed() };
            // The block stands whatever its numbers are.
            if let Err(error) = telemetry::block(&shared, height, &finalized, times) {
                tracing::error!(%error, "no metrics of this block");
            }
        }
        (self.config.after_commit)(height);
        let AdapterConfig { min_retain_blocks, snapshot_heights, .. } = self.config;
        let retain_height = convert::retain_height(height, min_retain_blocks, snapshot_heights);
        Ok(R::Commit(pb::ResponseCommit { retain_height }))
    }
}

impl<S: CommitStore> Application for Adapter<S> {
    fn handle(&self, request: Q) -> Result<R> {
        Ok(match request {
            Q::Echo(echo) => R::Echo(pb::ResponseEcho { message: echo.message }),
            Q::Flush(_) => R::Flush(pb::ResponseFlush {}),
            Q::Info(_) => R::Info(self.info()),
            Q::InitChain(request) => R::InitChain(self.init_chain(&request)?),
            Q::Query(request) => R::Query(super::query::answer(self.shared().as_deref(), &request)),
            Q::CheckTx(request) => self.check_tx(&request),
            Q::PrepareProposal(request) => self.prepare_proposal(request)?,
            Q::ProcessProposal(request) => self.process_proposal(request)?,
            Q::FinalizeBlock(request) => self.finalize_block(request)?,
            Q::Commit(_) => self.commit()?,
            Q::ListSnapshots(_) => self.list_snapshots()?,
            Q::LoadSnapshotChunk(request) => self.load_chunk(request)?,
            Q::OfferSnapshot(request) => self.offer_snapshot(request),
            Q::ApplySnapshotChunk(request) => self.apply_chunk(request),
            // Vote extensions stay off; a peer's is no reason to refuse its vote.
            Q::ExtendVote(_) => R::ExtendVote(pb::ResponseExtendVote::default()),
            Q::VerifyVoteExtension(_) => R::VerifyVoteExtension(pb::ResponseVerifyVoteExtension {
                status: pb::response_verify_vote_extension::VerifyStatus::Accept.into(),
            }),
        })
    }
}
