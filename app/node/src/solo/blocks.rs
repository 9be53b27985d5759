//! Blocks and transaction results on disk: history for queries, and the block to run again after a crash.
//!
//! A block is stored, synced, before the app commits it. So the store is at the app's height or one ahead,
//! and in the second case the block is executed again at start.

use std::path::Path;

use borsh::{BorshDeserialize, BorshSerialize};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use holdfast_app::app::TxResult;
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

impl From<&TxResult> for StoredResult {
    fn from(result: &TxResult) -> Self {
        let TxResult { code, codespace, data, log, gas_wanted, gas_used, events } = result.clone();
        let events = events.into_iter().map(|event| (event.kind, event.attributes)).collect();
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

/// The block store of a home folder.
pub struct BlockStore {
    db: Database,
    blocks: Keyspace,
    txs: Keyspace,
}

impl BlockStore {
    /// Opens or creates the store at `path`.
    pub fn open(path: &Path) -> Result<Self, BlockStoreError> {
        let db = Database::builder(path).open()?;
        let blocks = db.keyspace("blocks", KeyspaceCreateOptions::default)?;
        let txs = db.keyspace("txs", KeyspaceCreateOptions::default)?;
        Ok(Self { db, blocks, txs })
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

    /// Stores a block and waits until it is on disk.
    pub fn save_block(&self, block: &StoredBlock) -> Result<(), BlockStoreError> {
        let bytes = borsh::to_vec(block).unwrap_or_default();
        self.blocks.insert(block.height.to_be_bytes(), bytes)?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    /// Stores the results of a block's transactions and waits until they are on disk; made again if the block is executed
    /// again.
    pub fn save_results<'a>(
        &self,
        height: i64,
        results: impl Iterator<Item = ([u8; 32], &'a TxResult)>,
    ) -> Result<(), BlockStoreError> {
        let mut batch = self.db.batch();
        for (index, (hash, result)) in results.enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let stored = StoredTx { height, index, result: result.into() };
            batch.insert(&self.txs, hash, borsh::to_vec(&stored).unwrap_or_default());
        }
        if batch.is_empty() {
            return Ok(());
        }
        batch.commit()?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    /// The transaction with this hash.
    pub fn tx(&self, hash: &[u8; 32]) -> Result<Option<StoredTx>, BlockStoreError> {
        let bytes = self.txs.get(hash)?;
        bytes.map(|bytes| Self::decode(holdfast_app::tx::hash_hex(hash), &bytes)).transpose()
    }
}
