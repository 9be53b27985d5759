//! Blocks and their results on disk: history for queries, and the blocks to run again after a crash.
//!
//! For each block, in this order, each step durable before the next one begins:
//!
//! 1. the block (with its note) in one batch,
//! 2. its execution in memory, then its results in one batch,
//! 3. the state's commit.
//!
//! So the store is at the app's height or one ahead and never behind, and a height that the state has committed has its
//! results here. Whatever is ahead of the state is executed again at start.

use std::io;
use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use holdfast_app::app::{FinalizedBlock, TxResult};
use holdfast_app::files::create_whole;
use holdfast_types::Event;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// A failed access to the block store.
#[derive(Debug, Error)]
pub enum BlockStoreError {
    /// The engine below.
    #[error("block store: {0}; check the disk and that no other process uses this home folder")]
    Engine(#[from] fjall::Error),
    /// A record that does not decode.
    #[error("block store: corrupt record of {what}; restore the home folder from a backup")]
    Corrupt {
        /// Block height or transaction hash.
        what: String,
    },
    /// A new store cannot be put in its place.
    #[error("block store: cannot create {}: {source}; check the folder, its permissions and the free space", path.display())]
    Create {
        /// The store's folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A result of a transaction, as stored.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StoredResult {
    /// 0 = ok.
    pub code: u32,
    /// Codespace of the code.
    pub codespace: String,
    /// Encoded `TxMsgData`.
    pub data: Vec<u8>,
    /// Log.
    pub log: String,
    /// Gas limit.
    pub gas_wanted: u64,
    /// Gas used.
    pub gas_used: u64,
    /// Events: kind and attributes.
    pub events: Vec<(String, Vec<(String, String)>)>,
}

type PlainEvent = (String, Vec<(String, String)>);

fn plain(event: Event) -> PlainEvent {
    (event.kind, event.attributes)
}

fn event((kind, attributes): PlainEvent) -> Event {
    Event { kind, attributes }
}

impl From<StoredResult> for TxResult {
    fn from(stored: StoredResult) -> Self {
        let StoredResult { code, codespace, data, log, gas_wanted, gas_used, events } = stored;
        let events = events.into_iter().map(event).collect();
        Self { code, codespace, data, log, gas_wanted, gas_used, events }
    }
}

impl From<&TxResult> for StoredResult {
    fn from(result: &TxResult) -> Self {
        let TxResult { code, codespace, data, log, gas_wanted, gas_used, events } = result.clone();
        let events = events.into_iter().map(plain).collect();
        Self { code, codespace, data, log, gas_wanted, gas_used, events }
    }
}

/// A block as agreed, before its execution.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StoredBlock {
    /// Height.
    pub height: i64,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Transactions.
    pub txs: Vec<Vec<u8>>,
    /// App hash after the block before.
    pub app_hash: [u8; 32],
    /// Hash of the block before.
    pub last_block_hash: [u8; 32],
}

impl StoredBlock {
    /// SHA-256 over the block's fields. A solo chain has no validator set to commit to, so this is not the hash of a
    /// CometBFT header.
    pub fn hash(&self) -> [u8; 32] {
        // Borsh of owned plain data cannot fail.
        Sha256::digest(borsh::to_vec(self).unwrap_or_default()).into()
    }
}

/// Where a transaction lies.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StoredTx {
    /// Height of its block.
    pub height: i64,
    /// Position in it.
    pub index: u32,
    /// What it did.
    pub result: StoredResult,
}

/// What executing a block gave, apart from the results of its transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct StoredResults {
    /// Hash of the state after the block.
    pub app_hash: [u8; 32],
    /// Events of the begin-block and end-block steps: kind and attributes.
    pub events: Vec<(String, Vec<(String, String)>)>,
}

/// The block store of a home folder.
pub struct BlockStore {
    db: Database,
    blocks: Keyspace,
    notes: Keyspace,
    results: Keyspace,
    txs: Keyspace,
}

impl BlockStore {
    /// Opens or creates the store at `path`.
    ///
    /// # Errors
    /// The engine, among others when another process has the folder open.
    pub fn open(path: &Path) -> Result<Self, BlockStoreError> {
        let failed = |source| BlockStoreError::Create { path: path.to_owned(), source };
        if !path.exists() {
            create_whole(path, |unfinished| Self::open_at(unfinished).map(drop), failed)?;
        }
        Self::open_at(path)
    }

    fn open_at(path: &Path) -> Result<Self, BlockStoreError> {
        let db = Database::builder(path).open()?;
        let keyspace = |name| db.keyspace(name, KeyspaceCreateOptions::default);
        let (blocks, notes) = (keyspace("blocks")?, keyspace("notes")?);
        let (results, txs) = (keyspace("results")?, keyspace("txs")?);
        Ok(Self { db, blocks, notes, results, txs })
    }

    fn decode<T: BorshDeserialize>(what: impl ToString, bytes: &[u8]) -> Result<T, BlockStoreError> {
        borsh::from_slice(bytes).map_err(|_| BlockStoreError::Corrupt { what: what.to_string() })
    }

    /// The highest block.
    pub fn latest(&self) -> Result<Option<StoredBlock>, BlockStoreError> {
        match self.blocks.last_key_value() {
            Some(guard) => Ok(Some(Self::decode("the latest block", &guard.value()?)?)),
            None => Ok(None),
        }
    }

    /// The block at `height`.
    pub fn block(&self, height: i64) -> Result<Option<StoredBlock>, BlockStoreError> {
        let bytes = self.blocks.get(height.to_be_bytes())?;
        bytes.map(|bytes| Self::decode(height, &bytes)).transpose()
    }

    /// Stores a block and waits until it is on disk. `note` is what its maker has to remember about it; none is stored if
    /// it is empty.
    ///
    /// # Errors
    /// The engine.
    pub fn save_block(&self, block: &StoredBlock, note: &[u8]) -> Result<(), BlockStoreError> {
        let key = block.height.to_be_bytes();
        let mut batch = self.db.batch();
        batch.insert(&self.blocks, key, borsh::to_vec(block).unwrap_or_default());
        if !note.is_empty() {
            batch.insert(&self.notes, key, note);
        }
        batch.commit()?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    /// The note stored with the block at `height`.
    ///
    /// # Errors
    /// The engine.
    pub fn note(&self, height: i64) -> Result<Option<Vec<u8>>, BlockStoreError> {
        Ok(self.notes.get(height.to_be_bytes())?.map(|bytes| bytes.to_vec()))
    }

    /// Stores what the block at `height`, whose transactions have these hashes, did, and waits until it is on disk; made
    /// again if the block is executed again.
    ///
    /// # Errors
    /// The engine.
    pub fn save_results(
        &self,
        height: i64,
        hashes: &[[u8; 32]],
        finalized: &FinalizedBlock,
    ) -> Result<(), BlockStoreError> {
        let mut batch = self.db.batch();
        for (index, (hash, result)) in hashes.iter().zip(&finalized.tx_results).enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let stored = StoredTx { height, index, result: result.into() };
            batch.insert(&self.txs, hash, borsh::to_vec(&stored).unwrap_or_default());
        }
        let events = finalized.events.iter().cloned().map(plain).collect();
        let stored = StoredResults { app_hash: finalized.app_hash, events };
        batch.insert(&self.results, height.to_be_bytes(), borsh::to_vec(&stored).unwrap_or_default());
        batch.commit()?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    /// What executing the block at `height` gave, apart from its transactions.
    ///
    /// # Errors
    /// The engine, a corrupt record.
    pub fn results(&self, height: i64) -> Result<Option<StoredResults>, BlockStoreError> {
        let bytes = self.results.get(height.to_be_bytes())?;
        bytes.map(|bytes| Self::decode(format!("the results of block {height}"), &bytes)).transpose()
    }

    /// The transaction with this hash.
    pub fn tx(&self, hash: &[u8; 32]) -> Result<Option<StoredTx>, BlockStoreError> {
        let bytes = self.txs.get(hash)?;
        bytes.map(|bytes| Self::decode(holdfast_app::tx::hash_hex(hash), &bytes)).transpose()
    }
}

#[cfg(test)]
impl BlockStore {
    /// Takes the last block away, as a disk does that lied about what it wrote.
    pub(crate) fn lose_block(&self, height: i64) {
        self.blocks.remove(height.to_be_bytes()).unwrap();
        self.lose_results(height);
    }

    /// The same with its results only.
    pub(crate) fn lose_results(&self, height: i64) {
        self.results.remove(height.to_be_bytes()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;

    use super::*;

    fn block(height: i64) -> StoredBlock {
        StoredBlock { height, time_ns: 7, txs: vec![vec![1, 2, 3]], ..StoredBlock::default() }
    }

    fn finalized() -> FinalizedBlock {
        let begin = Event::new("began").with("mode", "BeginBlock");
        let result = TxResult { code: 5, codespace: "sdk".into(), gas_used: 9, ..TxResult::default() };
        FinalizedBlock {
            tx_results: vec![result],
            events: vec![begin],
            app_hash: [3; 32],
            ..FinalizedBlock::default()
        }
    }

    #[test]
    fn a_block_its_note_and_its_results_come_back_as_they_were_stored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let store = BlockStore::open(&path).unwrap();
        store.save_block(&block(4), b"note").unwrap();
        store.save_block(&block(5), b"").unwrap();
        store.save_results(4, &[[9; 32]], &finalized()).unwrap();
        drop(store);
        let store = BlockStore::open(&path).unwrap();
        assert_eq!(store.latest().unwrap(), Some(block(5)));
        assert_eq!(store.block(4).unwrap(), Some(block(4)));
        assert_eq!(
            (store.note(4).unwrap().as_deref(), store.note(5).unwrap()),
            (Some(b"note".as_slice()), None)
        );
        let results = store.results(4).unwrap().unwrap();
        assert_eq!(results.app_hash, [3; 32]);
        assert_eq!(
            results.events,
            [("began".to_owned(), vec![("mode".to_owned(), "BeginBlock".to_owned())])]
        );
        assert_eq!(store.results(5).unwrap(), None);
        let tx = store.tx(&[9; 32]).unwrap().unwrap();
        assert_eq!((tx.height, tx.index), (4, 0));
        assert_eq!(TxResult::from(tx.result), finalized().tx_results[0]);
    }

    #[test]
    fn what_a_kill_left_of_a_store_being_created_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        // The engine makes its first journal before it marks the folder as a database, and stumbles over it after that.
        let unfinished = dir.path().join("blocks.new");
        fs::create_dir_all(unfinished.join("keyspaces")).unwrap();
        fs::write(unfinished.join("0.jnl"), b"").unwrap();
        assert!(Database::builder(&unfinished).open().is_err(), "the engine would refuse it");
        let store = BlockStore::open(&path).unwrap();
        store.save_block(&block(1), b"").unwrap();
        assert!(!unfinished.exists());
    }

    #[test]
    fn a_torn_end_of_the_journal_costs_no_block_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let store = BlockStore::open(&path).unwrap();
        store.save_block(&block(1), b"one").unwrap();
        drop(store);
        let used = end(&path);
        let store = BlockStore::open(&path).unwrap();
        store.save_block(&block(2), b"two").unwrap();
        drop(store);
        let (longer, end) = (head(&path), end(&path));
        assert!(end > used, "the second block lies behind the first");
        for kept in (used..end).step_by(7) {
            let copied = dir.path().join(kept.to_string());
            copy(&path, &copied);
            fs::write(copied.join(JOURNAL), &longer[..kept]).unwrap();
            let store = BlockStore::open(&copied).unwrap();
            assert_eq!(store.block(1).unwrap(), Some(block(1)), "{kept} of {end} bytes");
            assert_eq!(store.note(1).unwrap().as_deref(), Some(b"one".as_slice()));
            // The second block is gone together with its note, and can be stored anew.
            assert_eq!((store.block(2).unwrap(), store.note(2).unwrap()), (None, None), "{kept} of {end}");
            store.save_block(&block(2), b"again").unwrap();
            assert_eq!(store.note(2).unwrap().as_deref(), Some(b"again".as_slice()));
        }
    }

    const JOURNAL: &str = "0.jnl";

    /// The beginning of the engine's journal, which it makes much longer than it needs.
    fn head(store: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        fs::File::open(store.join(JOURNAL)).unwrap().take(1 << 16).read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// Bytes of the journal in use.
    fn end(store: &Path) -> usize {
        head(store).iter().rposition(|byte| *byte != 0).unwrap() + 1
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &target);
            } else if entry.file_name() != JOURNAL {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}
