//! Snapshots: one committed height as a list of chunks, byte-identical on every node (chain.md 2).
//!
//! A snapshot depends on the state at its height and on nothing else: not on caches, threads, pruning, nor on how the
//! node came to that height. The tree roots and with them the app hash are part of its metadata, so an offered snapshot is
//! checked against the trusted app hash before one chunk is fetched, each chunk against its hash before one byte of it is
//! used, and each module's tree against its root when its last key is in.
//!
//! # Format 1
//!
//! All integers big-endian, except the lengths inside the stream, which are LEB128 in their shortest form.
//!
//! **Metadata** (at most [`METADATA_BYTES_MAX`] bytes, nothing behind it):
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `holdfast.snap.v1` |
//! | 1 + n | chain id: length 1 to 50, text |
//! | 8 | height, below [`INITIAL_HEIGHT_MAX`](crate::genesis::INITIAL_HEIGHT_MAX) |
//! | 32 | app hash after that height |
//! | 2 | number of modules |
//! | 1 + n + 32 each | module: length 1 to 64, name, root of its tree; by name |
//! | 8 | number of keys |
//! | 8 | length of the stream |
//! | 4 | length of every chunk but the last, always 10,000,000 |
//! | 4 | number of chunks |
//! | 32 each | SHA-256 of the chunk |
//! | 32 | SHA-256 of all bytes before it |
//!
//! **Hash** of the snapshot: SHA-256 of the metadata, which holds the hash of every chunk.
//!
//! **Stream**, of which the chunks are consecutive pieces, not compressed: a compressor's next version would give other
//! bytes. For each module of the list, in its order:
//!
//! | bytes | what |
//! |---|---|
//! | for each key, ascending: | |
//! | 1 | `01` |
//! | 1–5 | how many bytes the key shares with the one before it in the module, as many as possible; 0 for the first |
//! | 1–5 | length of the rest of the key, at least 1 |
//! | n | rest of the key; the key is the part behind `module/` |
//! | 1–5 | length of the value, at most [`VALUE_BYTES_MAX`] |
//! | n | value |
//! | after the last key: | |
//! | 1 | `00` |
//! | 8 | number of the module's keys |
//!
//! Nothing stands behind the last module. Each state has exactly one stream; a reader refuses every other spelling.
//!
//! # On disk
//!
//! `<height>/<format>/` holds `metadata` and the chunks `0`, `1`, …; it is written under another name, synced and
//! renamed, so a crash leaves no half snapshot. [`SnapshotStore::open`] removes what is left of an interrupted one.
//!
//! # Restoring
//!
//! [`Restorer`] fills an empty [`DiskStore`](crate::state::DiskStore) in place. Until the last chunk is in, the database
//! says that it is being restored: it takes no commit, and the next opening empties it.

mod errors;
mod format;
mod restore;
mod store;
#[cfg(test)]
mod tests;

pub use errors::SnapshotError;
pub use format::{Metadata, ModuleRoot};
pub use restore::{Apply, Offer, Restorer, restore_folder};
pub use store::{SnapshotFolder, SnapshotStore, list};

/// Number of the format described above.
pub const FORMAT: u32 = 1;

/// Length of every chunk but the last, bytes. CometBFT carries at most 16,000,000 in a message.
pub const CHUNK_BYTES: u32 = 10_000_000;

/// Longest metadata, bytes: CometBFT carries at most 4,000,000 in the message that has it.
pub const METADATA_BYTES_MAX: usize = 3_900_000;

/// Longest value that a snapshot can hold, bytes.
pub const VALUE_BYTES_MAX: u32 = 64 << 20;

/// A snapshot as nodes list and offer it to each other: the fields of ABCI's `Snapshot`.
///
/// One that came from a peer holds anything; [`SnapshotInfo::check`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Height.
    pub height: u64,
    /// Format number, [`FORMAT`].
    pub format: u32,
    /// Number of chunks.
    pub chunks: u32,
    /// SHA-256 of the metadata.
    pub hash: Vec<u8>,
    /// Encoded [`Metadata`].
    pub metadata: Vec<u8>,
}

impl SnapshotInfo {
    /// Decodes the metadata and compares it with the other fields.
    ///
    /// # Errors
    /// `Malformed`, with what is wrong.
    pub fn check(&self) -> Result<Metadata, SnapshotError> {
        let bad = |what: String| Err(SnapshotError::Malformed { what });
        if self.format != FORMAT {
            return bad(format!("format: is {}, this program reads format {FORMAT}", self.format));
        }
        if self.hash != format::sha256(&self.metadata) {
            return bad("hash: is not the SHA-256 of the metadata".into());
        }
        let metadata = Metadata::decode(&self.metadata)?;
        if u64::try_from(metadata.height).ok() != Some(self.height) {
            return bad(format!("height: is {}, the metadata says {}", self.height, metadata.height));
        }
        if u32::try_from(metadata.chunks.len()).ok() != Some(self.chunks) {
            return bad(format!("chunks: is {}, the metadata says {}", self.chunks, metadata.chunks.len()));
        }
        Ok(metadata)
    }
}
