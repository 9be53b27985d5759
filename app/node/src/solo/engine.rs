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
    /// The two databases do not belong together.
    #[error("state is at height {state}, the block store at {blocks}: restore both from the same backup")]
    Apart {
        /// App height.
        state: i64,
        /// Block store height.
        blocks: i64,
    },
    /// Executing the last block again gave another state.
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
    /// The engine, with an interrupted block executed again.
    ///
    /// # Errors
    /// Databases that do not belong together, storage.
    pub fn new(mut app: App<S>, blocks: BlockStore, config: MempoolConfig) -> Result<Self, EngineError> {
        let state = app.height();
        let shared = app.shared();
        if let Some(last) = blocks.latest()? {
            if last.height == shared.next_height() {
                let finalized = execute(&mut app, &last)?;
                let hashes: Vec<TxHash> = last.txs.iter().map(|raw| tx_hash(raw)).collect();
                blocks.save_results(last.height, hashes.into_iter().zip(&finalized.tx_results))?;
                app.commit()?;
            } else if last.height != state {
                return Err(EngineError::Apart { state, blocks: last.height });
            }
        } else if state > 0 {
            return Err(EngineError::Apart { state, blocks: 0 });
        }
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
        self.blocks.save_block(&block)?;
        let started = std::time::Instant::now();
        let finalized = execute(&mut app, &block)?;
        let finalize = started.elapsed();
        let hashes: Vec<TxHash> = block.txs.iter().map(|raw| tx_hash(raw)).collect();
        self.blocks.save_results(block.height, hashes.iter().copied().zip(&finalized.tx_results))?;
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

    fn engine(dir: &std::path::Path, accounts: &Accounts, max_txs: usize) -> Engine<MemCommitStore> {
        let doc = document(accounts, &default_executors(), Preset::Off).unwrap();
        let state = MemCommitStore::with_options(&state_spaces(), StateOptions::default()).unwrap();
        let app = App::from_genesis(state, AppOptions::default(), &doc).unwrap();
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
}
