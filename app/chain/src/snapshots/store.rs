//! Snapshots on disk: writing, listing, reading chunks, deleting.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_store::Order;
use sha2::{Digest, Sha256};

use super::format::{self, Hash, Metadata, ModuleRoot};
use super::{CHUNK_BYTES, FORMAT, METADATA_BYTES_MAX, SnapshotError, SnapshotInfo, VALUE_BYTES_MAX};
use crate::files::sync_folder;
use crate::settings::SETTINGS;
use crate::state::{CommitStore, DiskStore, StateView};

const LOCK: &str = "lock";
const METADATA: &str = "metadata";
/// How the name of an unfinished or half deleted snapshot begins.
const UNFINISHED: &str = ".unfinished-";

/// One snapshot in a folder of its own, wherever that is.
#[derive(Debug, Clone)]
pub struct SnapshotFolder {
    path: PathBuf,
    info: SnapshotInfo,
    metadata: Metadata,
}

impl SnapshotFolder {
    /// Reads the metadata of the snapshot in `path` and checks that every chunk is there in its length.
    ///
    /// # Errors
    /// `Io`, `Damaged`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        let folder = Self::read(path.as_ref())?;
        for index in 0..folder.info.chunks {
            let file = folder.path.join(index.to_string());
            let found = fs::metadata(&file).map_err(of_snapshot(&file))?.len();
            if usize::try_from(found).ok() != folder.metadata.chunk_len(index) {
                let what = format!("it has {found} bytes, which the metadata does not say");
                return Err(SnapshotError::Damaged { path: file, what });
            }
        }
        Ok(folder)
    }

    /// Without a look at the chunks.
    fn read(path: &Path) -> Result<Self, SnapshotError> {
        let file = path.join(METADATA);
        let damaged = |what: String| SnapshotError::Damaged { path: file.clone(), what };
        // A folder that is not there is no damaged snapshot.
        fs::read_dir(path).map_err(SnapshotError::io(path))?;
        let encoded = read_up_to(&file, METADATA_BYTES_MAX)?
            .ok_or_else(|| damaged(format!("it has over {METADATA_BYTES_MAX} bytes")))?;
        let metadata = Metadata::decode(&encoded).map_err(|e| damaged(e.to_string()))?;
        let info = SnapshotInfo {
            height: metadata.height.unsigned_abs(),
            format: FORMAT,
            chunks: u32::try_from(metadata.chunks.len()).unwrap_or(u32::MAX),
            hash: format::sha256(&encoded).to_vec(),
            metadata: encoded,
        };
        Ok(Self { path: path.to_owned(), info, metadata })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is offered to peers.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// What the metadata says.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Chunk `index`, checked against its hash; `None` when there is none.
    ///
    /// # Errors
    /// `Io`, `Damaged`.
    pub fn chunk(&self, index: u32) -> Result<Option<Vec<u8>>, SnapshotError> {
        let (Some(length), Some(hash)) = (
            self.metadata.chunk_len(index),
            self.metadata.chunks.get(usize::try_from(index).unwrap_or(usize::MAX)),
        ) else {
            return Ok(None);
        };
        let path = self.path.join(index.to_string());
        match read_up_to(&path, length)? {
            Some(bytes) if format::sha256(&bytes) == *hash => Ok(Some(bytes)),
            _ => Err(SnapshotError::Damaged {
                path,
                what: "it has another hash than the metadata says".into(),
            }),
        }
    }
}

/// For `map_err` beside the reading of a file that belongs to a snapshot: a missing one is damage.
fn of_snapshot(path: &Path) -> impl FnOnce(std::io::Error) -> SnapshotError {
    |error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            SnapshotError::Damaged { path: path.to_owned(), what: "it is missing".into() }
        }
        _ => SnapshotError::io(path)(error),
    }
}

/// The file's bytes, or `None` when there are more than `most`.
fn read_up_to(path: &Path, most: usize) -> Result<Option<Vec<u8>>, SnapshotError> {
    let file = File::open(path).map_err(of_snapshot(path))?;
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(SnapshotError::io(path))?;
    Ok((bytes.len() <= most).then_some(bytes))
}

/// The complete snapshots in `dir`, highest first, without taking the folder: for a look beside a running node. Damaged
/// ones and those of other formats are left out.
///
/// # Errors
/// `Io`.
pub fn list(dir: &Path) -> Result<Vec<SnapshotFolder>, SnapshotError> {
    let mut heights: Vec<u64> = numbers(dir)?;
    heights.sort_unstable_by(|a, b| b.cmp(a));
    let mut found = Vec::new();
    for height in heights {
        let path = place(dir, height, FORMAT);
        if !path.is_dir() {
            continue;
        }
        match SnapshotFolder::open(&path) {
            Ok(folder) if folder.info.height == height => found.push(folder),
            Ok(_) => tracing::warn!(path = %path.display(), "snapshot of another height left out"),
            Err(error) => tracing::warn!(%error, "snapshot left out"),
        }
    }
    Ok(found)
}

/// Names in `dir` that are numbers as this program writes them; none when the folder is missing.
fn numbers(dir: &Path) -> Result<Vec<u64>, SnapshotError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(SnapshotError::io(dir)(e)),
    };
    let mut out = Vec::new();
    for entry in entries {
        let name = entry.map_err(SnapshotError::io(dir))?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.parse::<u64>().ok())
            && name.to_str() == Some(number.to_string().as_str())
        {
            out.push(number);
        }
    }
    Ok(out)
}

fn place(dir: &Path, height: u64, format: u32) -> PathBuf {
    dir.join(height.to_string()).join(format.to_string())
}

/// Makes the names in a folder durable.
fn sync_dir(path: &Path) -> Result<(), SnapshotError> {
    sync_folder(path).map_err(SnapshotError::io(path))
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    chunk_bytes: u32,
    /// Held by whoever creates or deletes.
    writer: Mutex<()>,
    /// Locked as long as the store is open.
    _lock: File,
}

/// The snapshots of a node, in `data/snapshots` of its home. Clones share the folder, which one process can have open.
///
/// Chunks can be read while another thread creates or deletes.
#[derive(Debug, Clone)]
pub struct SnapshotStore(Arc<Inner>);

impl SnapshotStore {
    /// Opens the folder, creating it when there is none, and removes what an interrupted creation or deletion left.
    ///
    /// # Errors
    /// `Locked`, `Io`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        Self::with_chunk_bytes(dir.as_ref(), CHUNK_BYTES)
    }

    /// With another length of chunks than the format's writers use.
    pub(super) fn with_chunk_bytes(dir: &Path, chunk_bytes: u32) -> Result<Self, SnapshotError> {
        fs::create_dir_all(dir).map_err(SnapshotError::io(dir))?;
        let path = dir.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(SnapshotError::io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(SnapshotError::Locked { path: dir.to_owned() }),
            Err(fs::TryLockError::Error(e)) => return Err(SnapshotError::io(&path)(e)),
        }
        for entry in fs::read_dir(dir).map_err(SnapshotError::io(dir))? {
            let entry = entry.map_err(SnapshotError::io(dir))?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(SnapshotError::io(&path))?;
            }
        }
        let inner = Inner { dir: dir.to_owned(), chunk_bytes, writer: Mutex::new(()), _lock: lock };
        Ok(Self(Arc::new(inner)))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Writes the snapshot of `height`, or finds the one that is there. The view of the height is taken at once: commits
    /// and pruning may go on meanwhile. Memory stays bounded, whatever the state's size.
    ///
    /// # Errors
    /// `State` for a height that is not there, `NoChain`, `TooLarge`, `Io`; nothing is left behind.
    pub fn create(&self, state: &DiskStore, height: i64) -> Result<SnapshotInfo, SnapshotError> {
        let made = self.create_until(state, height, &|| false)?;
        made.ok_or(SnapshotError::Missing { height: height.unsigned_abs(), format: FORMAT })
    }

    /// As [`SnapshotStore::create`], and gives up as soon as `stop` says so: `None` then, and nothing is left behind.
    ///
    /// # Errors
    /// The same.
    pub fn create_until(
        &self,
        state: &DiskStore,
        height: i64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<SnapshotInfo>, SnapshotError> {
        let view = state.snapshot_at(height)?;
        let inner = &*self.0;
        let _writer = inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let chain_id = SETTINGS.get(&view)?.ok_or(SnapshotError::NoChain { height })?.chain_id;
        let roots = view.module_roots(state).into_iter();
        let modules = roots.map(|(name, root)| ModuleRoot { name, root });
        let metadata = Metadata {
            chain_id,
            height,
            app_hash: view.app_hash(),
            modules: modules.collect(),
            items: 0,
            bytes: 0,
            chunk_bytes: inner.chunk_bytes,
            chunks: Vec::new(),
        };
        let to = place(&inner.dir, height.unsigned_abs(), FORMAT);
        if to.is_dir() {
            if let Ok(there) = SnapshotFolder::open(&to)
                && there.metadata.app_hash == metadata.app_hash
            {
                return Ok(Some(there.info));
            }
            self.remove(&to)?;
        }
        let from = inner.dir.join(format!("{UNFINISHED}{height}-{FORMAT}"));
        let written = write(&view, metadata, &from, stop).and_then(|complete| {
            if !complete {
                fs::remove_dir_all(&from).map_err(SnapshotError::io(&from))?;
                return Ok(None);
            }
            let parent = to.parent().unwrap_or(&inner.dir);
            fs::create_dir_all(parent).map_err(SnapshotError::io(parent))?;
            sync_dir(&inner.dir)?;
            fs::rename(&from, &to).map_err(SnapshotError::io(&to))?;
            sync_dir(parent)?;
            Ok(Some(SnapshotFolder::open(&to)?.info))
        });
        if written.is_err() {
            // The error that matters is the first one.
            let _ = fs::remove_dir_all(&from);
        }
        written
    }

    /// The complete snapshots, highest first.
    ///
    /// # Errors
    /// `Io`.
    pub fn list(&self) -> Result<Vec<SnapshotInfo>, SnapshotError> {
        Ok(list(&self.0.dir)?.into_iter().map(|folder| folder.info).collect())
    }

    /// The snapshot of a height and format.
    ///
    /// # Errors
    /// `Missing`, `Damaged`, `Io`.
    pub fn folder(&self, height: u64, format: u32) -> Result<SnapshotFolder, SnapshotError> {
        SnapshotFolder::open(self.find(height, format)?.path)
    }

    /// The snapshot of a height and format, without a look at the chunks.
    fn find(&self, height: u64, format: u32) -> Result<SnapshotFolder, SnapshotError> {
        let path = place(&self.0.dir, height, format);
        if format != FORMAT || !path.is_dir() {
            return Err(SnapshotError::Missing { height, format });
        }
        let folder = SnapshotFolder::read(&path)?;
        if folder.info.height != height {
            let what = format!("it is of height {}", folder.info.height);
            return Err(SnapshotError::Damaged { path: path.join(METADATA), what });
        }
        Ok(folder)
    }

    /// A chunk for a peer, checked against its hash; `None` when there is no such snapshot or chunk. The numbers may be
    /// anything.
    ///
    /// # Errors
    /// `Damaged`, `Io`.
    pub fn load_chunk(&self, height: u64, format: u32, index: u32) -> Result<Option<Vec<u8>>, SnapshotError> {
        match self.find(height, format) {
            Ok(folder) => folder.chunk(index),
            Err(SnapshotError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a snapshot, a damaged one too.
    ///
    /// # Errors
    /// `Missing`, `Io`.
    pub fn delete(&self, height: u64, format: u32) -> Result<(), SnapshotError> {
        let _writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let path = place(&self.0.dir, height, format);
        if !path.is_dir() {
            return Err(SnapshotError::Missing { height, format });
        }
        self.remove(&path)
    }

    /// Removes all but the `keep_recent` highest snapshots; 0 keeps all. Returns how many went.
    ///
    /// # Errors
    /// `Io`.
    pub fn prune(&self, keep_recent: u32) -> Result<usize, SnapshotError> {
        if keep_recent == 0 {
            return Ok(0);
        }
        let keep = usize::try_from(keep_recent).unwrap_or(usize::MAX);
        let mut removed = 0usize;
        for old in self.list()?.into_iter().skip(keep) {
            self.delete(old.height, old.format)?;
            removed = removed.saturating_add(1);
        }
        Ok(removed)
    }

    /// Under another name first: a crash in the middle leaves no half snapshot.
    fn remove(&self, path: &Path) -> Result<(), SnapshotError> {
        let dir = &self.0.dir;
        let away = dir.join(format!("{UNFINISHED}deleted"));
        if away.exists() {
            fs::remove_dir_all(&away).map_err(SnapshotError::io(&away))?;
        }
        fs::rename(path, &away).map_err(SnapshotError::io(path))?;
        if let Some(parent) = path.parent() {
            sync_dir(parent)?;
            // Fails while snapshots of other formats are in it.
            let _ = fs::remove_dir(parent);
        }
        fs::remove_dir_all(&away).map_err(SnapshotError::io(&away))?;
        sync_dir(dir)
    }
}

/// Writes the whole snapshot into folder `to`; `false` when it was stopped before the end.
fn write<V: StateView>(
    view: &V,
    mut metadata: Metadata,
    to: &Path,
    stop: &dyn Fn() -> bool,
) -> Result<bool, SnapshotError> {
    if to.exists() {
        fs::remove_dir_all(to).map_err(SnapshotError::io(to))?;
    }
    fs::create_dir_all(to).map_err(SnapshotError::io(to))?;
    let mut chunks = Chunks::new(to, metadata.chunk_bytes);
    let mut row = Vec::with_capacity(256);
    for module in &metadata.modules {
        // The first key behind all keys that begin with `module/`.
        let (start, end) = (format!("{}/", module.name), format!("{}0", module.name));
        let mut previous: Vec<u8> = Vec::new();
        let mut count = 0u64;
        for pair in view.scan(start.as_bytes(), Some(end.as_bytes()), Order::Ascending) {
            let (key, value) = pair?;
            let rest = key.get(start.len()..).unwrap_or_default();
            if u32::try_from(value.len()).map_or(true, |length| length > VALUE_BYTES_MAX) {
                let key = hex::encode(rest.get(..64).unwrap_or(rest));
                let what = format!("value of {}/{key} has over {VALUE_BYTES_MAX} bytes", module.name);
                return Err(SnapshotError::TooLarge { what });
            }
            row.clear();
            format::put_item(&mut row, &previous, rest, value.len());
            row.extend_from_slice(&value);
            chunks.write(&row)?;
            previous.clear();
            previous.extend_from_slice(rest);
            count = count.saturating_add(1);
            if count.is_multiple_of(1024) && stop() {
                return Ok(false);
            }
        }
        if stop() {
            return Ok(false);
        }
        row.clear();
        format::put_module_end(&mut row, count);
        chunks.write(&row)?;
        metadata.items = metadata.items.saturating_add(count);
    }
    (metadata.bytes, metadata.chunks) = chunks.finish()?;
    let path = to.join(METADATA);
    let encoded = metadata.encode()?;
    File::create(&path)
        .and_then(|mut file| file.write_all(&encoded).and_then(|()| file.sync_all()))
        .map_err(SnapshotError::io(&path))?;
    sync_dir(to)?;
    Ok(true)
}

/// Cuts a stream into files.
struct Chunks<'a> {
    dir: &'a Path,
    chunk_bytes: usize,
    open: Option<Chunk>,
    bytes: u64,
    hashes: Vec<Hash>,
}

struct Chunk {
    path: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    /// Bytes it can still take.
    room: usize,
}

impl<'a> Chunks<'a> {
    fn new(dir: &'a Path, chunk_bytes: u32) -> Self {
        let chunk_bytes = usize::try_from(chunk_bytes).unwrap_or(usize::MAX);
        Self { dir, chunk_bytes, open: None, bytes: 0, hashes: Vec::new() }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let mut left = bytes;
        while !left.is_empty() {
            let mut chunk = match self.open.take() {
                Some(chunk) => chunk,
                None => self.start()?,
            };
            let (now, later) = left.split_at(left.len().min(chunk.room));
            chunk.file.write_all(now).map_err(SnapshotError::io(&chunk.path))?;
            chunk.hash.update(now);
            chunk.room = chunk.room.saturating_sub(now.len());
            self.bytes = self.bytes.saturating_add(u64::try_from(now.len()).unwrap_or(0));
            left = later;
            if chunk.room == 0 {
                self.close(chunk)?;
            } else {
                self.open = Some(chunk);
            }
        }
        Ok(())
    }

    fn start(&self) -> Result<Chunk, SnapshotError> {
        let path = self.dir.join(self.hashes.len().to_string());
        let file = File::create(&path).map_err(SnapshotError::io(&path))?;
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(Chunk { path, file, hash: Sha256::new(), room: self.chunk_bytes })
    }

    fn close(&mut self, chunk: Chunk) -> Result<(), SnapshotError> {
        let Chunk { path, file, hash, .. } = chunk;
        let file = file.into_inner().map_err(|e| SnapshotError::io(&path)(e.into_error()))?;
        file.sync_all().map_err(SnapshotError::io(&path))?;
        self.hashes.push(hash.finalize().into());
        Ok(())
    }

    fn finish(mut self) -> Result<(u64, Vec<Hash>), SnapshotError> {
        if let Some(chunk) = self.open.take() {
            self.close(chunk)?;
        }
        Ok((self.bytes, self.hashes))
    }
}
