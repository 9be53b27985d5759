//! The solo engine: one validator in this process. It takes the waiting transactions in the mempool's order,
//! stores the block, executes and commits it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_app::app::{App, AppError, Block, FinalizedBlock, Shared};
use holdfast_app::mempool::{Mempool, MempoolConfig};
use holdfast_app::state::CommitStore;
use holdfast_app::tx::{TxHash, tx_hash};
use holdfast_types::{ModuleError, sdk};
use thiserror::Error;
use tokio::sync::watch;

use super::blocks::{BlockStore, BlockStoreError, StoredBlock};

/// Why the engine stands still.
#[derive(Debug, Error)]
pub enum EngineError {
    /// Execution or commit.
    #[error(transparent)]
    App(#[from] AppError),
    /// Block store.
    #[error(transparent)]
    Blocks(#[from] BlockStoreError),
    /// The state committed blocks that the block store does not have.
    #[error(
        "state is at height {state}, the block store at {blocks}: blocks are on disk before they are executed, so \
         the block store lost its end; take the state back with `holdfastd rollback --height {blocks}`, or restore \
         both from the same backup"
    )]
    Ahead {
        /// App height.
        state: i64,
        /// Block store height.
        blocks: i64,
    },
    /// The state committed blocks, and the block store holds none.
    #[error(
        "state is at height {0}, but the block store is empty: a solo node cannot go on without its blocks; restore \
         state and blocks from the same backup"
    )]
    NoBlocks(i64),
    /// A block that the state needs next is not in the block store, though later ones are.
    #[error(
        "the block store ends at {blocks} but lacks block {height}, which the state needs next: restore state and \
         blocks from the same backup"
    )]
    Gap {
        /// The missing block.
        height: i64,
        /// Block store height.
        blocks: i64,
    },
    /// State and blocks tell different histories.
    #[error(
        "after height {height} the state has app hash {state}, by the block store it should have {blocks}: they are \
         of different chains, or one is damaged; restore both from the same backup"
    )]
    Foreign {
        /// The height.
        height: i64,
        /// App hash of the state, hex.
        state: String,
        /// App hash in the block store, hex.
        blocks: String,
    },
    /// A committed block whose results are gone.
    #[error(
        "the block store has no results of block {0}, which the state has committed: run `holdfastd rollback` once, \
         and the next start executes the block again"
    )]
    NoResults(i64),
    /// Executing a stored block again gave another state.
    #[error("executing block {0} again gave another app hash: the binary or its settings changed")]
    Replay(i64),
}

/// How long parts of a block took.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockTimes {
    /// Execution.
    pub finalize: std::time::Duration,
    /// Durable commit.
    pub commit: std::time::Duration,
}

/// A block the engine made.
#[derive(Debug)]
pub struct ProducedBlock {
    /// The block.
    pub block: StoredBlock,
    /// Hashes of its transactions.
    pub hashes: Vec<TxHash>,
    /// What it did.
    pub finalized: FinalizedBlock,
    /// Timing.
    pub times: BlockTimes,
}

/// The engine over a state database.
pub struct Engine<S> {
    app: Mutex<App<S>>,
    shared: Arc<Shared<S>>,
    mempool: Mutex<Mempool>,
    blocks: BlockStore,
    height: watch::Sender<i64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: CommitStore> Engine<S> {
    /// The engine, with every stored block executed that the state has not committed: an interrupted one, or those after
    /// a rollback of the state.
    ///
    /// # Errors
    /// Databases that do not belong together, storage.
    pub fn new(mut app: App<S>, blocks: BlockStore, config: MempoolConfig) -> Result<Self, EngineError> {
        let shared = app.shared();
        handshake(&mut app, &blocks)?;
        let height = watch::Sender::new(app.height());
        let mempool = Mutex::new(Mempool::new(config));
        Ok(Self { app: Mutex::new(app), shared, mempool, blocks, height })
    }

    /// Checks and queries.
    pub fn shared(&self) -> &Arc<Shared<S>> {
        &self.shared
    }

    /// Blocks and transactions.
    pub fn blocks(&self) -> &BlockStore {
        &self.blocks
    }

    /// Last committed height, as it changes.
    pub fn heights(&self) -> watch::Receiver<i64> {
        self.height.subscribe()
    }

    /// Transactions waiting.
    pub fn waiting(&self) -> usize {
        lock(&self.mempool).len()
    }

    /// App hash of the last commit.
    pub fn app_hash(&self) -> [u8; 32] {
        lock(&self.app).app_hash()
    }

    /// The present state as a genesis document.
    ///
    /// # Errors
    /// Corrupt state, a height that is gone.
    pub fn export(&self, height: i64) -> Result<holdfast_app::genesis::GenesisDoc, AppError> {
        lock(&self.app).export(height)
    }

    /// Takes a transaction in (BroadcastTx SYNC).
    ///
    /// # Errors
    /// The code its check gave; 19 when the same bytes wait or were executed, 20 when the pool is full.
    pub fn broadcast(&self, raw: &[u8]) -> Result<TxHash, ModuleError> {
        let hash = tx_hash(raw);
        let mut mempool = lock(&self.mempool);
        mempool.check_absent(&hash)?;
        let known = self.blocks.tx(&hash).map_err(|e| ModuleError::sdk(sdk::INTERNAL, e.to_string()))?;
        let evicted = self.shared.check_tx_into(raw, |tx| mempool.insert(tx)).map_err(|error| {
            // One that failed its ante steps in a block used up no sequence: it may come again, and then passes here.
            if known.is_some() {
                ModuleError::sdk(sdk::TX_IN_MEMPOOL, "tx already exists in cache")
            } else {
                error
            }
        })?;
        for tx in evicted {
            self.shared.uncheck_tx(&tx)?;
        }
        Ok(hash)
    }

    /// Makes the next block at `time_ns` from what waits, and commits it.
    ///
    /// # Errors
    /// Fatal: the node must stop.
    pub fn produce(&self, time_ns: u64) -> Result<ProducedBlock, EngineError> {
        self.produce_noted(time_ns, &[])
    }

    /// The same; `note` is stored with the block, see [`BlockStore::save_block`].
    ///
    /// # Errors
    /// Fatal: the node must stop.
    pub fn produce_noted(&self, time_ns: u64, note: &[u8]) -> Result<ProducedBlock, EngineError> {
        let mut app = lock(&self.app);
        let settings = self.shared.settings();
        let (bytes, gas) = (settings.max_block_bytes, settings.max_block_gas.unwrap_or(u64::MAX));
        let txs = lock(&self.mempool).reap(usize::try_from(bytes).unwrap_or(usize::MAX), gas);
        let block = StoredBlock {
            height: self.shared.next_height(),
            time_ns,
            txs: txs.iter().map(|raw| raw.to_vec()).collect(),
            app_hash: app.app_hash(),
            last_block_hash: self.blocks.latest()?.map_or([0; 32], |last| last.hash()),
        };
        self.blocks.save_block(&block, note)?;
        let started = std::time::Instant::now();
        let finalized = execute(&mut app, &block)?;
        let finalize = started.elapsed();
        let hashes: Vec<TxHash> = block.txs.iter().map(|raw| tx_hash(raw)).collect();
        self.blocks.save_results(block.height, &hashes, &finalized)?;
        let started = std::time::Instant::now();
        // Under the pool's lock: a transaction checked against the old state must not enter after it is gone.
        let mut mempool = lock(&self.mempool);
        app.commit()?;
        let commit = started.elapsed();
        mempool.remove(&hashes);
        for (tx, error) in mempool.recheck(|tx| self.shared.recheck_tx(tx.raw()).map(|_| ())) {
            tracing::debug!(hash = holdfast_app::tx::hash_hex(tx.hash()), %error, "dropped after recheck");
        }
        drop(mempool);
        self.height.send_replace(block.height);
        Ok(ProducedBlock { block, hashes, finalized, times: BlockTimes { finalize, commit } })
    }
}

/// Brings the state to the height of the block store (cosmos-conventions 1.4 for a node that is its own consensus).
///
/// | state, block store | what happened | what is done |
/// |---|---|---|
/// | both 0 | a new chain, or a kill before the first block was stored | nothing |
/// | equal | an orderly stop, or a kill after the commit | the app hashes are compared |
/// | state one behind | a kill between the block's write and the commit | the block is executed again |
/// | state further behind | a rollback, or a new state database | the blocks are executed again, in order |
/// | state ahead | the block store lost what it had synced | refused |
/// | genesis begins behind the last block | another genesis file | refused |
///
/// Every block that is executed again must find the app hash its maker found, and give the one that was stored with its
/// results, if they were.
fn handshake<S: CommitStore>(app: &mut App<S>, blocks: &BlockStore) -> Result<(), EngineError> {
    let state = app.height();
    let last = blocks.latest()?.map_or(0, |block| block.height);
    let next = app.shared().next_height();
    if last < next {
        if state == 0 && last == 0 {
            return Ok(());
        }
        if state == 0 {
            return Err(EngineError::Gap { height: next, blocks: last });
        }
        if last == 0 {
            return Err(EngineError::NoBlocks(state));
        }
        if state != last {
            return Err(EngineError::Ahead { state, blocks: last });
        }
        let stored = blocks.results(last)?.ok_or(EngineError::NoResults(last))?;
        return same(last, app.app_hash(), stored.app_hash);
    }
    for height in next..=last {
        let block = blocks.block(height)?.ok_or(EngineError::Gap { height, blocks: last })?;
        same(height.saturating_sub(1), app.app_hash(), block.app_hash)?;
        let finalized = execute(app, &block)?;
        if blocks.results(height)?.is_some_and(|stored| stored.app_hash != finalized.app_hash) {
            return Err(EngineError::Replay(height));
        }
        let hashes: Vec<TxHash> = block.txs.iter().map(|raw| tx_hash(raw)).collect();
        blocks.save_results(height, &hashes, &finalized)?;
        app.commit()?;
        let app_hash = hex::encode_upper(finalized.app_hash);
        tracing::info!(height, txs = hashes.len(), app_hash, "committed block again, from the block store");
    }
    Ok(())
}

fn same(height: i64, state: [u8; 32], blocks: [u8; 32]) -> Result<(), EngineError> {
    if state == blocks {
        return Ok(());
    }
    let (state, blocks) = (hex::encode_upper(state), hex::encode_upper(blocks));
    Err(EngineError::Foreign { height, state, blocks })
}

fn execute<S: CommitStore>(app: &mut App<S>, block: &StoredBlock) -> Result<FinalizedBlock, EngineError> {
    let StoredBlock { height, time_ns, txs, .. } = block.clone();
    Ok(app.finalize_block(&Block { height, time_ns, txs })?)
}

#[cfg(test)]
mod tests {
    use holdfast_app::app::{App, AppOptions, state_spaces};
    use holdfast_app::mempool::MempoolConfig;
    use holdfast_app::state::{MemCommitStore, StateOptions};
    use holdfast_app::tx::{TxBuilder, pack};
    use holdfast_proto::cosmos::bank::v1beta1::MsgSend;
    use holdfast_proto::cosmos::base::v1beta1::Coin as PbCoin;
    use holdfast_types::{Coin, Hrp};

    use super::*;
    use crate::devnet::config::Preset;
    use crate::devnet::executors::default_executors;
    use crate::devnet::genesis::{Account, Accounts, CHAIN_ID, DENOM, document};

    const BALANCE: u128 = 1_000_000_000_000_000_000;

    fn send(from: &Account, to: &Account, sequence: u64, amount: u128, fee: u128) -> Vec<u8> {
        let hrp = Hrp::default();
        let message = MsgSend {
            from_address: from.address.to_bech32(&hrp),
            to_address: to.address.to_bech32(&hrp),
            amount: vec![PbCoin { denom: DENOM.into(), amount: amount.to_string() }],
        };
        let fee = Coin { denom: DENOM.into(), amount: fee };
        let builder = TxBuilder {
            chain_id: CHAIN_ID.into(),
            account_number: from.number,
            sequence,
            fee,
            gas_limit: 200_000,
            memo: String::new(),
            timeout_height: 0,
            msgs: vec![pack(&message)],
        };
        builder.sign(&from.key)
    }

    fn genesis(accounts: &Accounts) -> App<MemCommitStore> {
        let doc = document(accounts, &default_executors(), Preset::Off).unwrap();
        let state = MemCommitStore::with_options(&state_spaces(), StateOptions::default()).unwrap();
        App::from_genesis(state, AppOptions::default(), &doc).unwrap()
    }

    fn engine(dir: &std::path::Path, accounts: &Accounts, max_txs: usize) -> Engine<MemCommitStore> {
        let app = genesis(accounts);
        let config = MempoolConfig { max_txs, ..MempoolConfig::default() };
        Engine::new(app, BlockStore::open(dir).unwrap(), config).unwrap()
    }

    #[test]
    fn bytes_that_used_up_no_sequence_in_a_block_may_come_again() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = Accounts::derive(1, default_executors().len());
        let engine = engine(dir.path(), &accounts, 100);
        let [a, b, ..] = accounts.gateways.as_slice() else { panic!("two gateways") };
        let drains = send(a, b, 0, BALANCE - 10, 10);
        let poor = send(a, b, 1, 1, 10);
        engine.broadcast(&drains).unwrap();
        engine.broadcast(&poor).unwrap();
        let done = engine.produce(1).unwrap();
        assert_eq!(done.finalized.tx_results.iter().map(|r| r.code).collect::<Vec<_>>(), [0, 5]);
        // Executed ones are known for good.
        assert_eq!(engine.broadcast(&drains).unwrap_err().code, 19);
        assert_eq!(engine.broadcast(&poor).unwrap_err().code, 19);
        engine.broadcast(&send(b, a, 0, 1_000, 10)).unwrap();
        engine.produce(2).unwrap();
        let hash = engine.broadcast(&poor).unwrap();
        assert_eq!(engine.produce(3).unwrap().finalized.tx_results[0].code, 0);
        assert_eq!(engine.blocks().tx(&hash).unwrap().unwrap().height, 3);
        assert_eq!(engine.broadcast(&poor).unwrap_err().code, 19);
    }

    #[test]
    fn a_full_pool_lets_no_transaction_in_that_cannot_run() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = Accounts::derive(1, default_executors().len());
        let engine = engine(dir.path(), &accounts, 1);
        let [a, b, ..] = accounts.gateways.as_slice() else { panic!("two gateways") };
        engine.broadcast(&send(a, b, 0, 1, 5)).unwrap();
        assert_eq!(engine.broadcast(&send(b, a, 0, 1, 1)).unwrap_err().code, 20);
        assert_eq!(engine.broadcast(&send(b, a, 1, 1, 9)).unwrap_err().code, 32);
        engine.broadcast(&send(b, a, 0, 1, 9)).unwrap();
        assert_eq!(engine.broadcast(&send(a, b, 1, 1, 20)).unwrap_err().code, 32);
        engine.broadcast(&send(a, b, 0, 1, 20)).unwrap();
        let done = engine.produce(1).unwrap();
        assert_eq!(done.finalized.tx_results.iter().map(|r| r.code).collect::<Vec<_>>(), [0]);
    }

    /// A chain of five blocks with a transfer in each, its blocks in `dir` and the app hash after each of them.
    fn five_blocks(dir: &std::path::Path, accounts: &Accounts) -> Vec<[u8; 32]> {
        let engine = engine(dir, accounts, 100);
        let [a, b, ..] = accounts.gateways.as_slice() else { panic!("two gateways") };
        let made = (0..5).map(|n| {
            engine.broadcast(&send(a, b, n, 7, 10)).unwrap();
            let note = [u8::try_from(n).unwrap() + 1];
            engine.produce_noted(n + 1, &note).unwrap().finalized.app_hash
        });
        made.collect()
    }

    /// An app that has executed and committed the first `height` blocks in `blocks`.
    fn app_at(height: i64, blocks: &BlockStore, accounts: &Accounts) -> App<MemCommitStore> {
        let mut app = genesis(accounts);
        for height in 1..=height {
            execute(&mut app, &blocks.block(height).unwrap().unwrap()).unwrap();
            app.commit().unwrap();
        }
        app
    }

    fn start(app: App<MemCommitStore>, blocks: BlockStore) -> Result<Engine<MemCommitStore>, EngineError> {
        Engine::new(app, blocks, MempoolConfig::default())
    }

    #[test]
    fn a_state_any_number_of_blocks_behind_catches_up_to_the_same_app_hash_and_results() {
        let accounts = Accounts::derive(1, default_executors().len());
        let dir = tempfile::tempdir().unwrap();
        let hashes = five_blocks(dir.path(), &accounts);
        // A new state database, a rollback by some blocks, one block not committed, nothing missing.
        for behind in [5, 4, 2, 1, 0] {
            let blocks = BlockStore::open(dir.path()).unwrap();
            let before: Vec<_> = (1..=5).map(|height| blocks.results(height).unwrap()).collect();
            let app = app_at(5 - behind, &blocks, &accounts);
            let engine = start(app, blocks).unwrap();
            assert_eq!(engine.app_hash(), hashes[4], "{behind} behind");
            assert_eq!(*engine.heights().borrow(), 5);
            let after: Vec<_> = (1..=5).map(|height| engine.blocks().results(height).unwrap()).collect();
            assert_eq!(before, after);
        }
    }

    #[test]
    fn a_block_that_was_stored_but_left_no_results_is_executed_and_gets_them() {
        let accounts = Accounts::derive(1, default_executors().len());
        let dir = tempfile::tempdir().unwrap();
        let hashes = five_blocks(dir.path(), &accounts);
        let blocks = BlockStore::open(dir.path()).unwrap();
        let stored = blocks.results(5).unwrap();
        blocks.lose_results(5);
        let engine = start(app_at(4, &blocks, &accounts), blocks).unwrap();
        assert_eq!((engine.app_hash(), engine.blocks().results(5).unwrap()), (hashes[4], stored));
        assert_eq!(engine.blocks().note(5).unwrap(), Some(vec![5]), "the note stays");
    }

    #[test]
    fn databases_that_do_not_belong_together_are_refused_with_what_to_do() {
        let accounts = Accounts::derive(1, default_executors().len());
        let dir = tempfile::tempdir().unwrap();
        five_blocks(dir.path(), &accounts);
        let refused = |app, blocks| start(app, blocks).err().expect("refused").to_string();
        // The block store lost a block that the state has.
        let blocks = BlockStore::open(dir.path()).unwrap();
        let app = app_at(5, &blocks, &accounts);
        blocks.lose_block(5);
        let text = refused(app, blocks);
        assert!(text.contains("at height 5") && text.contains("at 4") && text.contains("rollback"), "{text}");
        // All of it.
        let empty = tempfile::tempdir().unwrap();
        let blocks = BlockStore::open(dir.path()).unwrap();
        let text = refused(app_at(4, &blocks, &accounts), BlockStore::open(empty.path()).unwrap());
        assert!(text.contains("at height 4, but the block store is empty"), "{text}");
        // Results that the state committed.
        let app = app_at(4, &blocks, &accounts);
        blocks.lose_results(4);
        let text = refused(app, blocks);
        assert!(text.contains("no results of block 4") && text.contains("rollback"), "{text}");
        // A hole.
        let blocks = BlockStore::open(dir.path()).unwrap();
        let app = app_at(1, &blocks, &accounts);
        blocks.lose_block(2);
        let text = refused(app, blocks);
        assert!(text.contains("ends at 4") && text.contains("lacks block 2"), "{text}");
        // Another chain at the same height, and one block behind.
        let other = Accounts::derive(2, default_executors().len());
        let strange = tempfile::tempdir().unwrap();
        five_blocks(strange.path(), &other);
        for behind in [0, 1] {
            let theirs = BlockStore::open(strange.path()).unwrap();
            let app = app_at(5 - behind, &theirs, &other);
            drop(theirs);
            let mine = tempfile::tempdir().unwrap();
            five_blocks(mine.path(), &accounts);
            let text = refused(app, BlockStore::open(mine.path()).unwrap());
            assert!(text.contains(&format!("after height {}", 5 - behind)), "{text}");
            assert!(text.contains("different chains"), "{text}");
        }
    }
}
