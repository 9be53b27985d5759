//! Where records lie: a file for each epoch, or memory. Two epochs long, bounded, never in the way of a block.
//!
//! ```text
//! DIR/e12-h3601.rec = "hfwi0001" ‖ frame(head) ‖ frame(block 3601) ‖ frame(block 3602) ‖ …
//! frame(x)          = u32 length ‖ first 8 bytes of sha256(borsh(x)) ‖ borsh(x)
//! ```
//!
//! A block is appended just before its commit. What a crash tears off is cut on the next start, and so is a block whose commit
//! did not happen. If the record then ends before the state does, blocks are missing: a new file begins there, with the
//! breaker's state of that height, and the answer says what is lacking. Files are not synced: a power failure can cost the
//! last blocks of the record, never one of the chain.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::KvRead;
use holdfast_types::{BlockContext, Epoch, Height, QueryError, QueryKind, ValidationParams};
use sha2::{Digest, Sha256};

use super::record::{BlockRecord, Checkpoint};
use crate::composition::Composition;

/// Most bytes of an epoch's record; what comes after is lacking.
pub const EPOCH_BYTES_MAX: u64 = 512 << 20;
/// The same for a record in memory.
pub const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Answers made at a time; who asks meanwhile is told to ask again.
pub const AT_A_TIME: usize = 2;
/// Most bytes of one frame.
const FRAME_MAX: u32 = 64 << 20;
const MAGIC: &[u8; 8] = b"hfwi0001";
const FRAME_HEAD: usize = 12;
const EXTENSION: &str = "rec";

/// What a record begins with.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Head {
    /// Chain.
    pub chain_id: String,
    /// Epoch of its blocks.
    pub epoch: Epoch,
    /// The height before its first block.
    pub height: Height,
    /// Parameters of its first block.
    pub params: ValidationParams,
    /// State behind `height`; `None` when the first block begins the epoch and brings all there is.
    pub checkpoint: Option<Checkpoint>,
}

enum Backing {
    Memory(Vec<Arc<Vec<u8>>>),
    Disk { path: PathBuf, file: File },
}

struct Segment {
    head: Head,
    last: Height,
    /// Of the last block.
    params: ValidationParams,
    bytes: u64,
    /// The limit was reached: nothing more until the next epoch.
    full: bool,
    backing: Backing,
}

#[derive(Default)]
struct Inner {
    chain_id: String,
    segments: Vec<Segment>,
    stopped: Option<String>,
}

/// The log. Node-local: no block depends on it, and none of its failures is one of the chain.
pub struct Log {
    dir: Option<PathBuf>,
    most: u64,
    inner: Mutex<Inner>,
    running: AtomicUsize,
}

/// A place among those that are answered.
pub(super) struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Which blocks a record holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Epoch.
    pub epoch: Epoch,
    /// First block.
    pub from: Height,
    /// Last block; below `from` when there is none.
    pub to: Height,
    /// Whether the limit of bytes ended it.
    pub full: bool,
}

impl Segment {
    fn extent(&self) -> Extent {
        let from = self.head.height.saturating_add(1);
        Extent { epoch: self.head.epoch, from, to: self.last, full: self.full }
    }
}

fn frame(payload: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok().filter(|length| *length <= FRAME_MAX);
    let length = length.ok_or_else(|| io::Error::other("a block's record is larger than 64 MiB"))?;
    let mut out = Vec::with_capacity(payload.len().saturating_add(FRAME_HEAD));
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&checksum(payload));
    out.extend_from_slice(payload);
    Ok(out)
}

fn checksum(payload: &[u8]) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(payload).into();
    digest.first_chunk().copied().unwrap_or_default()
}

/// The next frame's payload; `None` at the end, and where the file is torn.
fn read_frame(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; FRAME_HEAD];
    let mut got = 0;
    while let Some(rest) = head.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => return Ok(None),
            Ok(n) => got = got.saturating_add(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let Some((length, sum)) = head.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length);
    if length > FRAME_MAX {
        return Ok(None);
    }
    let mut payload = Vec::new();
    let read = from.by_ref().take(u64::from(length)).read_to_end(&mut payload)?;
    let whole = u32::try_from(read) == Ok(length) && checksum(&payload) == sum;
    Ok(whole.then_some(payload))
}

fn encode(value: &impl BorshSerialize) -> io::Result<Vec<u8>> {
    frame(&borsh::to_vec(value)?)
}

/// Blocks of a record up to a height, in order.
pub struct Blocks {
    source: Source,
    until: Height,
}

enum Source {
    Memory(std::vec::IntoIter<Arc<Vec<u8>>>),
    Disk(BufReader<io::Take<File>>),
}

impl Source {
    fn payload(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory(frames) => match frames.next() {
                Some(frame) => read_frame(&mut frame.as_slice()),
                None => Ok(None),
            },
            Self::Disk(file) => read_frame(file),
        }
    }
}

impl Iterator for Blocks {
    type Item = io::Result<BlockRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let payload = match self.source.payload() {
            Ok(payload) => payload?,
            Err(e) => return Some(Err(e)),
        };
        match borsh::from_slice::<BlockRecord>(&payload) {
            Ok(block) if block.height > self.until => None,
            other => Some(other),
        }
    }
}

impl Log {
    /// In memory, [`MEMORY_BYTES_MAX`] an epoch: for embedders without a folder, and tests. Empty after a restart.
    pub fn in_memory() -> Self {
        Self::new(None, MEMORY_BYTES_MAX)
    }

    /// In files below `dir`, which is made when needed.
    pub fn on_disk(dir: impl Into<PathBuf>) -> Self {
        Self::new(Some(dir.into()), EPOCH_BYTES_MAX)
    }

    pub(crate) fn new(dir: Option<PathBuf>, most: u64) -> Self {
        Self { dir, most, inner: Mutex::default(), running: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up the record where the state stands: `block` and `store` are those of the last commit. Blocks beyond it go; when
    /// blocks before it are missing, a new record begins here. A failure stops the recording, with its reason in every answer.
    pub fn attach(&self, store: &dyn KvRead, block: &BlockContext, composition: &Composition) {
        let mut inner = self.lock();
        *inner = Inner { chain_id: block.chain_id.clone(), ..Inner::default() };
        if let Err(reason) = self.take_up(&mut inner, store, block, composition) {
            stop(&mut inner, reason);
        }
    }

    fn take_up(
        &self,
        inner: &mut Inner,
        store: &dyn KvRead,
        block: &BlockContext,
        composition: &Composition,
    ) -> Result<(), String> {
        if let Some(dir) = &self.dir {
            inner.segments = open_all(dir, &block.chain_id, block.height).map_err(|e| told(dir, &e))?;
        }
        keep_two(inner, block.epoch);
        let last = inner.segments.last().map(|segment| (segment.head.epoch, segment.last));
        if last == Some((block.epoch, block.height)) {
            return Ok(());
        }
        let checkpoint = Checkpoint::take(store, block, composition).map_err(|e| e.to_string())?;
        let head = Head {
            chain_id: block.chain_id.clone(),
            epoch: block.epoch,
            height: block.height,
            params: block.params.clone(),
            checkpoint: Some(checkpoint),
        };
        self.begin(inner, head).map_err(|e| self.told(&e))
    }

    fn told(&self, error: &io::Error) -> String {
        self.dir.as_deref().map_or_else(|| error.to_string(), |dir| told(dir, error))
    }

    /// A new record; others of the same epoch are of before a gap, or of before its beginning, and go.
    fn begin(&self, inner: &mut Inner, head: Head) -> io::Result<()> {
        remove(inner, |segment| segment.head.epoch >= head.epoch);
        let first = encode(&head)?;
        let bytes = u64::try_from(first.len().saturating_add(MAGIC.len())).unwrap_or(u64::MAX);
        let backing = match &self.dir {
            None => Backing::Memory(vec![Arc::new(first)]),
            Some(dir) => {
                fs::create_dir_all(dir)?;
                let path =
                    dir.join(format!("e{}-h{}.{EXTENSION}", head.epoch, head.height.saturating_add(1)));
                let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
                file.write_all(&[MAGIC.as_slice(), &first].concat())?;
                Backing::Disk { path, file }
            }
        };
        let (last, params) = (head.height, head.params.clone());
        inner.segments.push(Segment { head, last, params, bytes, full: false, backing });
        Ok(())
    }

    /// Appends a block that is about to be committed. Never fails: what goes wrong stops the recording.
    pub(crate) fn append(&self, record: BlockRecord) {
        let mut inner = self.lock();
        if inner.stopped.is_some() {
            return;
        }
        let height = record.height;
        if let Err(e) = self.try_append(&mut inner, record) {
            let reason = format!("block {height}: {}", self.told(&e));
            stop(&mut inner, reason);
        }
    }

    fn try_append(&self, inner: &mut Inner, mut record: BlockRecord) -> io::Result<()> {
        if let Some(params) = record.params.as_ref().filter(|_| record.epoch_start.is_some()) {
            let head = Head {
                chain_id: inner.chain_id.clone(),
                epoch: record.epoch,
                height: record.height.saturating_sub(1),
                params: params.clone(),
                checkpoint: None,
            };
            keep_two(inner, record.epoch);
            self.begin(inner, head)?;
        }
        let most = self.most;
        let Some(segment) = inner.segments.last_mut() else {
            return Err(io::Error::other("there is no record to go on with"));
        };
        if segment.full {
            return Ok(());
        }
        if record.height != segment.last.saturating_add(1) || record.epoch != segment.head.epoch {
            let text = format!("out of turn after block {} of epoch {}", segment.last, segment.head.epoch);
            return Err(io::Error::other(text));
        }
        if record.params.as_ref() == Some(&segment.params) && segment.last > segment.head.height {
            record.params = None;
        }
        let frame = encode(&record)?;
        let bytes = segment.bytes.saturating_add(u64::try_from(frame.len()).unwrap_or(u64::MAX));
        if bytes > most {
            segment.full = true;
            return Ok(());
        }
        match &mut segment.backing {
            Backing::Memory(frames) => frames.push(Arc::new(frame)),
            Backing::Disk { file, .. } => file.write_all(&frame)?,
        }
        segment.bytes = bytes;
        segment.last = record.height;
        if let Some(params) = record.params {
            segment.params = params;
        }
        Ok(())
    }

    /// Stops the recording until the next start.
    pub(crate) fn stop(&self, height: Height, reason: &str) {
        stop(&mut self.lock(), format!("block {height}: {reason}"));
    }

    /// A turn to be answered.
    ///
    /// # Errors
    /// `Unavailable` when [`AT_A_TIME`] others have one.
    pub(super) fn turn(&self) -> Result<Turn<'_>, QueryError> {
        let turn = self.running.fetch_add(1, Ordering::SeqCst);
        // Given back also when refused.
        let taken = Turn(&self.running);
        if turn < AT_A_TIME {
            return Ok(taken);
        }
        let text = format!("{AT_A_TIME} what-if queries are being answered; ask again");
        Err(QueryError::new(QueryKind::Unavailable, text))
    }

    /// What is kept, oldest first.
    pub fn extents(&self) -> Vec<Extent> {
        self.lock().segments.iter().map(Segment::extent).collect()
    }

    /// Why nothing is recorded any more.
    pub fn stopped(&self) -> Option<String> {
        self.lock().stopped.clone()
    }

    /// The record of an epoch up to block `until`; `None` when there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(
        &self,
        epoch: Epoch,
        until: Height,
    ) -> Result<Option<(Head, Extent, Blocks)>, io::Error> {
        let inner = self.lock();
        let Some(segment) = inner.segments.iter().find(|segment| segment.head.epoch == epoch) else {
            return Ok(None);
        };
        let source = match &segment.backing {
            Backing::Memory(frames) => {
                let mut frames = frames.clone().into_iter();
                frames.next();
                Source::Memory(frames)
            }
            Backing::Disk { path, .. } => {
                let mut file = File::open(path)?;
                file.read_exact(&mut [0; MAGIC.len()])?;
                let left = segment.bytes.saturating_sub(u64::try_from(MAGIC.len()).unwrap_or(0));
                let mut file = BufReader::new(file.take(left));
                read_frame(&mut file)?;
                Source::Disk(file)
            }
        };
        Ok(Some((segment.head.clone(), segment.extent(), Blocks { source, until })))
    }
}

fn told(dir: &Path, error: &io::Error) -> String {
    format!("{}: {error}; check the folder and its disk, then restart the node", dir.display())
}

fn stop(inner: &mut Inner, reason: String) {
    tracing::warn!(%reason, "the what-if record stops");
    inner.stopped.get_or_insert(reason);
}

/// Drops the records that `gone` names. A file that cannot be removed is in nobody's way: the next start tries again.
fn remove(inner: &mut Inner, gone: impl Fn(&Segment) -> bool) {
    inner.segments.retain(|segment| {
        let goes = gone(segment);
        if let (true, Backing::Disk { path, .. }) = (goes, &segment.backing) {
            let _ = fs::remove_file(path);
        }
        !goes
    });
}

/// Keeps `epoch` and the one before.
fn keep_two(inner: &mut Inner, epoch: Epoch) {
    remove(inner, |segment| segment.head.epoch.saturating_add(1) < epoch || segment.head.epoch > epoch);
}

/// Every readable record of this chain below `dir`, cut at `height`, by epoch. Others are removed.
fn open_all(dir: &Path, chain_id: &str, height: Height) -> io::Result<Vec<Segment>> {
    let mut segments: Vec<Segment> = Vec::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(segments),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        match open(&path, height)? {
            Some(segment) if segment.head.chain_id == chain_id => segments.push(segment),
            _ => fs::remove_file(&path)?,
        }
    }
    segments.sort_by_key(|segment| (segment.head.epoch, segment.head.height));
    // Two of one epoch: the earlier one ended in a gap.
    let mut out: Vec<Segment> = Vec::new();
    for segment in segments {
        if out.last().is_some_and(|before| before.head.epoch == segment.head.epoch)
            && let Some(Segment { backing: Backing::Disk { path, .. }, .. }) = out.pop()
        {
            fs::remove_file(path)?;
        }
        out.push(segment);
    }
    Ok(out)
}

/// A record, cut behind its last whole block up to `height`; `None` when it is none or begins later.
fn open(path: &Path, height: Height) -> io::Result<Option<Segment>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut from = BufReader::new(file.try_clone()?);
    let mut magic = [0; MAGIC.len()];
    if from.read_exact(&mut magic).is_err() || magic != *MAGIC {
        return Ok(None);
    }
    let Some(payload) = read_frame(&mut from)? else { return Ok(None) };
    let length =
        |payload: &Vec<u8>| u64::try_from(payload.len().saturating_add(FRAME_HEAD)).unwrap_or(u64::MAX);
    let mut bytes = u64::try_from(MAGIC.len()).unwrap_or(0).saturating_add(length(&payload));
    let Some(head) = borsh::from_slice::<Head>(&payload).ok().filter(|head| head.height <= height) else {
        return Ok(None);
    };
    let (mut last, mut params) = (head.height, head.params.clone());
    while let Some(payload) = read_frame(&mut from)? {
        let Ok(block) = borsh::from_slice::<BlockRecord>(&payload) else { break };
        if block.height > height || block.height != last.saturating_add(1) || block.epoch != head.epoch {
            break;
        }
        (last, bytes) = (block.height, bytes.saturating_add(length(&payload)));
        if let Some(new) = block.params {
            params = new;
        }
    }
    // Without its first block a record that has no state of its own says nothing.
    if head.checkpoint.is_none() && last == head.height {
        return Ok(None);
    }
    file.set_len(bytes)?;
    let file = OpenOptions::new().append(true).open(path)?;
    let backing = Backing::Disk { path: path.to_owned(), file };
    Ok(Some(Segment { head, last, params, bytes, full: false, backing }))
}
