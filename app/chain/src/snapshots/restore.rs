//! Restoring a snapshot into an empty state database, chunk by chunk, from peers that may lie.

use crate::state::{CommitStore, DiskStore, Filling, StateError};

use super::format::{self, Metadata, Reader, Row};
use super::{FORMAT, METADATA_BYTES_MAX, SnapshotError, SnapshotFolder, SnapshotInfo};

/// Answer to an offered snapshot, as in ABCI; the text says why, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// Chunks are awaited, from 0 on.
    Accept,
    /// No snapshot can be restored here.
    Abort(String),
    /// Not this snapshot.
    Reject(String),
    /// No snapshot of this format.
    RejectFormat(String),
    /// Nothing from the senders of this one: what they sent contradicts itself.
    RejectSender(String),
}

/// Answer to a chunk, as in ABCI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Apply {
    /// Taken; the next one is awaited.
    Accept,
    /// Taken, and it was the last: the database holds the chain at the snapshot's height, durably. `ACCEPT` in ABCI.
    Complete,
    /// Not what the snapshot says: fetch `refetch` again. Nothing changed.
    Retry {
        /// Chunks to fetch again.
        refetch: Vec<u32>,
        /// Peer to take nothing more from; `None` when the sender did nothing wrong.
        reject_sender: Option<String>,
        /// Why.
        reason: String,
    },
    /// The snapshot is a lie; the database is empty again.
    RejectSnapshot(String),
    /// This node cannot go on: no snapshot was accepted, or its own database failed.
    Abort(String),
}

/// Restores snapshots into one database, one at a time. Give it the trusted app hash and whatever peers send.
///
/// The database has to be empty and nobody may commit to it meanwhile (a commit is refused). After [`Apply::Complete`]
/// the same [`DiskStore`] serves the restored height and takes the next block. Dropping a restorer in the middle of
/// a snapshot empties the database.
#[derive(Debug)]
pub struct Restorer {
    store: DiskStore,
    chain_id: Option<String>,
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    metadata: Metadata,
    hash: Vec<u8>,
    next: u32,
    reader: Reader,
    filling: Filling,
}

impl Restorer {
    /// For `store`. With `chain_id`, the one of the node's genesis file, snapshots of other chains are refused.
    pub fn new(store: DiskStore, chain_id: Option<&str>) -> Self {
        Self { store, chain_id: chain_id.map(str::to_owned), active: None }
    }

    /// The database.
    pub fn store(&self) -> &DiskStore {
        &self.store
    }

    /// Chunks taken and chunks in all, of the accepted snapshot.
    pub fn progress(&self) -> Option<(u32, u32)> {
        let active = self.active.as_ref()?;
        Some((active.next, u32::try_from(active.metadata.chunks.len()).unwrap_or(u32::MAX)))
    }

    /// Decides on a snapshot. `trusted_app_hash` is the one that the light client verified for its height. A snapshot that
    /// was accepted before and is not complete is given up.
    pub fn offer(&mut self, snapshot: &SnapshotInfo, trusted_app_hash: &[u8]) -> Offer {
        if let Err(error) = self.abandon() {
            return Offer::Abort(error.to_string());
        }
        let height = self.store.latest_height();
        if height != 0 {
            return Offer::Abort(SnapshotError::NotEmpty { height }.to_string());
        }
        if snapshot.format != FORMAT {
            return Offer::RejectFormat(format!("format {} is not {FORMAT}", snapshot.format));
        }
        if snapshot.metadata.len() > METADATA_BYTES_MAX {
            return Offer::RejectSender(format!("metadata has over {METADATA_BYTES_MAX} bytes"));
        }
        if snapshot.hash != format::sha256(&snapshot.metadata) {
            return Offer::RejectSender("the hash is not the one of the metadata".into());
        }
        let metadata = match snapshot.check() {
            Ok(metadata) => metadata,
            Err(error) => return Offer::Reject(error.to_string()),
        };
        if metadata.app_hash != trusted_app_hash {
            let (says, trusted) = (hex::encode_upper(metadata.app_hash), hex::encode_upper(trusted_app_hash));
            return Offer::Reject(format!("app hash {says} is not the trusted {trusted}"));
        }
        if let Some(chain_id) = &self.chain_id
            && *chain_id != metadata.chain_id
        {
            return Offer::Reject(format!(
                "it is of chain {}, this node is of {chain_id}",
                metadata.chain_id
            ));
        }
        if !metadata.module_names().eq(self.store.modules().iter().map(String::as_str)) {
            let theirs: Vec<&str> = metadata.module_names().collect();
            let (theirs, ours) = (theirs.join(", "), self.store.modules().join(", "));
            return Offer::Reject(format!(
                "it has modules [{theirs}], this program has [{ours}]: use the program version of that height"
            ));
        }
        let filling = match self.store.begin_filling(metadata.height) {
            Ok(filling) => filling,
            Err(error) => return Offer::Abort(error.to_string()),
        };
        let reader = Reader::new(metadata.modules.len());
        self.active = Some(Active { metadata, hash: snapshot.hash.clone(), next: 0, reader, filling });
        Offer::Accept
    }

    /// Takes chunk `index`, which `sender` sent. Not one byte of it is used before its hash is checked.
    pub fn apply_chunk(&mut self, index: u32, bytes: &[u8], sender: &str) -> Apply {
        let Some(active) = &mut self.active else {
            return Apply::Abort("no snapshot was accepted".into());
        };
        let expected = usize::try_from(index).ok().and_then(|at| active.metadata.chunks.get(at));
        let Some(expected) = expected else {
            let reason = format!("there is no chunk {index}");
            return Apply::Retry { refetch: vec![active.next], reject_sender: None, reason };
        };
        // The length first: a wrong one costs no hashing.
        let same =
            Some(bytes.len()) == active.metadata.chunk_len(index) && format::sha256(bytes) == *expected;
        if !same {
            let reason = format!("chunk {index} is not the one of the snapshot");
            let reject_sender = (!sender.is_empty()).then(|| sender.to_owned());
            return Apply::Retry { refetch: vec![index], reject_sender, reason };
        }
        if index < active.next {
            return Apply::Accept;
        }
        if index > active.next {
            let reason = format!("chunk {index} came before chunk {}", active.next);
            return Apply::Retry { refetch: vec![active.next, index], reject_sender: None, reason };
        }
        match active.take(bytes) {
            Ok(false) => Apply::Accept,
            Ok(true) => {
                self.active = None;
                Apply::Complete
            }
            Err(error) => {
                let emptied = self.abandon();
                match (error, emptied) {
                    (SnapshotError::State(error), _) => Apply::Abort(error.to_string()),
                    (_, Err(error)) => Apply::Abort(error.to_string()),
                    (error, Ok(())) => Apply::RejectSnapshot(error.to_string()),
                }
            }
        }
    }

    /// Gives up the accepted snapshot, if there is one, and empties the database.
    ///
    /// # Errors
    /// `State`: the database then says that it is being restored, and the next opening empties it.
    pub fn abandon(&mut self) -> Result<(), SnapshotError> {
        match self.active.take() {
            None => Ok(()),
            Some(active) => {
                tracing::info!(hash = hex::encode(&active.hash), "snapshot given up, state database emptied");
                Ok(active.filling.abandon()?)
            }
        }
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        if let Err(error) = self.abandon() {
            tracing::warn!(%error, "the half restored state database is emptied when it is opened again");
        }
    }
}

impl Active {
    /// Puts a verified chunk into the database; `true` when it was the last and all is well.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, SnapshotError> {
        let Self { metadata, reader, filling, .. } = self;
        reader.feed(bytes, |row| match row {
            Row::Item { module, key, value } => {
                filling.put(module, key, value).map_err(|error| match error {
                    StateError::Key { .. } | StateError::UnknownModule { .. } => {
                        SnapshotError::malformed(format!("stream: {error}"))
                    }
                    error => error.into(),
                })
            }
            Row::ModuleEnd { module } => {
                let root = filling.close_module(module)?;
                match metadata.modules.get(module) {
                    Some(expected) if expected.root == root => Ok(()),
                    _ => {
                        let name = metadata.modules.get(module).map_or("", |m| m.name.as_str());
                        let what = format!("the keys of module {name} do not give its root");
                        Err(SnapshotError::Refused { what })
                    }
                }
            }
        })?;
        self.next = self.next.saturating_add(1);
        if usize::try_from(self.next).ok() != Some(self.metadata.chunks.len()) {
            return Ok(false);
        }
        let items = self.reader.finish()?;
        if items != self.metadata.items {
            let what = format!("it has {items} keys, its metadata says {}", self.metadata.items);
            return Err(SnapshotError::Refused { what });
        }
        let chain_id = self.filling.chain_id()?;
        if chain_id.as_ref() != Some(&self.metadata.chain_id) {
            let found = chain_id.as_deref().unwrap_or("no chain");
            let what = format!("its state is of {found}, its metadata says {}", self.metadata.chain_id);
            return Err(SnapshotError::Refused { what });
        }
        self.filling.finish(&self.metadata.app_hash)?;
        Ok(true)
    }
}

/// Restores the snapshot in `folder` into an empty `store`: the operator vouches for it. `progress` gets chunks done and
/// chunks in all.
///
/// # Errors
/// `NotEmpty`, `Refused`, `Damaged`, `Io`, `State`; the database is empty again.
pub fn restore_folder(
    folder: &SnapshotFolder,
    store: &DiskStore,
    chain_id: Option<&str>,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<(), SnapshotError> {
    let height = store.latest_height();
    if height != 0 {
        return Err(SnapshotError::NotEmpty { height });
    }
    let mut restorer = Restorer::new(store.clone(), chain_id);
    let refused = |what: String| SnapshotError::Refused { what };
    match restorer.offer(folder.info(), &folder.metadata().app_hash) {
        Offer::Accept => {}
        Offer::Abort(what) | Offer::Reject(what) | Offer::RejectFormat(what) | Offer::RejectSender(what) => {
            return Err(refused(what));
        }
    }
    let chunks = folder.info().chunks;
    for index in 0..chunks {
        let bytes = folder.chunk(index)?;
        let bytes = bytes.ok_or_else(|| refused(format!("it has no chunk {index}")))?;
        match restorer.apply_chunk(index, &bytes, "") {
            Apply::Accept => progress(index.saturating_add(1), chunks),
            Apply::Complete => {
                progress(chunks, chunks);
                return Ok(());
            }
            Apply::Retry { reason: what, .. } | Apply::RejectSnapshot(what) | Apply::Abort(what) => {
                return Err(refused(what));
            }
        }
    }
    Err(refused("it ends before its state does".into()))
}
