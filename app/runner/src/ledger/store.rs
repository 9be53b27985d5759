//! Where segments are kept: a folder, or memory that can lose what was not synced.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::LedgerError;

/// Makes everything appended so far durable; may run on another thread. Once it failed it fails for ever: the system
/// may report the loss of a page only once.
pub type Syncer = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Longest segment that is read, bytes.
const SEGMENT_READ_MAX: u64 = 64 << 20;

/// A numbered row of append-only segments with one writer. The ledger calls [`LedgerStore::create`] only when all
/// appended bytes are durable, so a crash can hurt no segment but the last.
pub trait LedgerStore: Send + 'static {
    /// What the last [`LedgerStore::raise_generation`] said; 0 at first.
    ///
    /// # Errors
    /// I/O; a broken record of it.
    fn generation(&self) -> io::Result<u64>;

    /// Durable on return.
    ///
    /// # Errors
    /// I/O.
    fn raise_generation(&mut self, to: u64) -> io::Result<()>;

    /// Numbers of the segments, ascending.
    ///
    /// # Errors
    /// I/O.
    fn segments(&self) -> io::Result<Vec<u64>>;

    /// All bytes of a segment.
    ///
    /// # Errors
    /// I/O; a segment that is too long.
    fn read(&self, segment: u64) -> io::Result<Vec<u8>>;

    /// A new segment with `header`, durable on return together with its name; appends go there from now on.
    ///
    /// # Errors
    /// I/O.
    fn create(&mut self, segment: u64, header: &[u8]) -> io::Result<()>;

    /// Cuts a segment to `len` bytes, durable on return; appends go there from now on.
    ///
    /// # Errors
    /// I/O.
    fn resume(&mut self, segment: u64, len: u64) -> io::Result<()>;

    /// One write at the end of the current segment. After an error the segment may end in a part of `bytes`.
    ///
    /// # Errors
    /// I/O.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Syncs the segment that is current when it is called.
    fn syncer(&self) -> Syncer;

    /// Removes a segment, durable on return.
    ///
    /// # Errors
    /// I/O.
    fn remove(&mut self, segment: u64) -> io::Result<()>;
}

/// Name of a segment's file.
#[must_use]
pub fn segment_name(segment: u64) -> String {
    format!("ledger-{segment:016x}.log")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder: segments `ledger-<16 hex>.log`, the file `generation`, and `lock`, held exclusively while the store lives.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    current: Arc<Current>,
    /// Released when closed.
    _lock: File,
}

#[derive(Debug, Default)]
struct Current {
    file: Mutex<Option<Arc<File>>>,
    sync_failed: AtomicBool,
}

impl Current {
    fn sync(&self) -> io::Result<()> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier sync failed"));
        }
        let Some(file) = lock(&self.file).clone() else { return Ok(()) };
        file.sync_data().inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }
}

impl FileStore {
    /// Makes the folder if there is none, and locks it.
    ///
    /// # Errors
    /// [`LedgerError::Locked`] while another process or store has it; I/O.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, LedgerError> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        let lock = folder.join("lock");
        match regular(&lock) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(lock)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder, current: Arc::default(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(LedgerError::Locked(folder.display().to_string())),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.folder.join(segment_name(segment))
    }

    /// Names in the folder are durable.
    fn sync_folder(&self) -> io::Result<()> {
        if cfg!(unix) { File::open(&self.folder)?.sync_all() } else { Ok(()) }
    }

    fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        regular(path)?;
        let mut bytes = Vec::new();
        File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is too long", path.display()),
            ));
        }
        Ok(bytes)
    }
}

/// Opening a pipe would wait for its other end.
fn regular(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is no regular file", path.display())))
}

impl LedgerStore for FileStore {
    fn generation(&self) -> io::Result<u64> {
        let path = self.folder.join("generation");
        let bytes = match Self::read_file(&path, 64) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let broken = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is broken", path.display()));
        let bytes: [u8; 12] = bytes.try_into().map_err(|_| broken())?;
        let (value, crc) = bytes.split_first_chunk::<8>().ok_or_else(broken)?;
        if crc32c::crc32c(value).to_le_bytes() != *crc {
            return Err(broken());
        }
        Ok(u64::from_le_bytes(*value))
    }

    fn raise_generation(&mut self, to: u64) -> io::Result<()> {
        let value = to.to_le_bytes();
        let fresh = self.folder.join("generation.new");
        let mut file = File::create(&fresh)?;
        file.write_all(&value)?;
        file.write_all(&crc32c::crc32c(&value).to_le_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join("generation"))?;
        self.sync_folder()
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            let Some(hex) = name.strip_prefix("ledger-").and_then(|name| name.strip_suffix(".log")) else {
                continue;
            };
            match u64::from_str_radix(hex, 16) {
                Ok(segment) if segment_name(segment) == name => found.push(segment),
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("{name} is no segment's name"),
                    ));
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        Self::read_file(&self.path(segment), SEGMENT_READ_MAX)
    }

    fn create(&mut self, segment: u64, header: &[u8]) -> io::Result<()> {
        let path = self.path(segment);
        // What a crash left of an earlier try has no records in it.
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
        file.write_all(header)?;
        file.sync_all()?;
        self.sync_folder()?;
        let file = OpenOptions::new().append(true).open(&path)?;
        *lock(&self.current.file) = Some(Arc::new(file));
        Ok(())
    }

    fn resume(&mut self, segment: u64, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(self.path(segment))?;
        if file.metadata()?.len() != len {
            file.set_len(len)?;
        }
        // Also when nothing was cut: bytes that only the page cache has were read as good.
        file.sync_all()?;
        *lock(&self.current.file) = Some(Arc::new(file));
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match lock(&self.current.file).clone() {
            Some(file) => (&*file).write_all(bytes),
            None => Err(io::Error::other("no segment is open")),
        }
    }

    fn syncer(&self) -> Syncer {
        let current = self.current.clone();
        Arc::new(move || current.sync())
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        match fs::remove_file(self.path(segment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync_folder(),
        }
    }
}

/// What happens to unsynced bytes when a [`MemoryDisk`] crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// They are gone, as after a power loss.
    Lose,
    /// They stay, as after a killed process.
    Keep,
    /// Only this many of them stay, wherever that cuts.
    Tear(usize),
}

/// A disk in memory that outlives the stores on it.
#[derive(Debug, Clone, Default)]
pub struct MemoryDisk {
    inner: Arc<Mutex<Disk>>,
}

#[derive(Debug, Default)]
struct Disk {
    segments: BTreeMap<u64, Pages>,
    current: Option<u64>,
    generation: u64,
    locked: bool,
    /// Writes and syncs so far.
    operations: u64,
    /// The operation that fails, and as what; every later one fails too.
    fault: Option<(u64, io::ErrorKind)>,
}

#[derive(Debug, Default, Clone)]
struct Pages {
    bytes: Vec<u8>,
    durable: usize,
}

impl Disk {
    /// Counts an operation; `Err` if it is one that must fail, with whether it is the first.
    fn step(&mut self) -> Result<(), (bool, io::Error)> {
        let at = self.operations;
        self.operations += 1;
        match self.fault {
            Some((from, kind)) if at >= from => Err((at == from, io::Error::new(kind, "injected fault"))),
            _ => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.step().map_err(|(_, error)| error)?;
        if let Some(pages) = self.current.and_then(|segment| self.segments.get_mut(&segment)) {
            pages.durable = pages.bytes.len();
        }
        Ok(())
    }
}

impl MemoryDisk {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A store on it.
    ///
    /// # Errors
    /// [`LedgerError::Locked`] while another one lives.
    pub fn store(&self) -> Result<MemoryStore, LedgerError> {
        let mut disk = lock(&self.inner);
        if std::mem::replace(&mut disk.locked, true) {
            return Err(LedgerError::Locked("memory".to_owned()));
        }
        drop(disk);
        Ok(MemoryStore { disk: self.clone() })
    }

    /// Writes and syncs so far, those that failed among them.
    #[must_use]
    pub fn operations(&self) -> u64 {
        lock(&self.inner).operations
    }

    /// Operation number `at` (see [`MemoryDisk::operations`]) and all after it fail as `kind`. A write that fails
    /// first leaves half of its bytes.
    pub fn fail_at(&self, at: u64, kind: io::ErrorKind) {
        lock(&self.inner).fault = Some((at, kind));
    }

    /// The machine or the process stops and starts again. The store that was in use must be dropped.
    pub fn crash(&self, how: Crash) {
        let mut disk = lock(&self.inner);
        disk.fault = None;
        disk.current = None;
        for pages in disk.segments.values_mut() {
            let unsynced = pages.bytes.len() - pages.durable;
            let kept = match how {
                Crash::Lose => 0,
                Crash::Keep => unsynced,
                Crash::Tear(kept) => kept.min(unsynced),
            };
            pages.bytes.truncate(pages.durable + kept);
            pages.durable = pages.bytes.len();
        }
    }

    /// Bytes of the last segment that a power loss would take.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        let disk = lock(&self.inner);
        disk.segments.values().next_back().map_or(0, |pages| pages.bytes.len() - pages.durable)
    }

    /// The segments as a reader sees them.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<u64, Vec<u8>> {
        lock(&self.inner).segments.iter().map(|(segment, pages)| (*segment, pages.bytes.clone())).collect()
    }

    /// Puts other bytes, durable, in a segment's place.
    pub fn overwrite(&self, segment: u64, bytes: Vec<u8>) {
        let durable = bytes.len();
        lock(&self.inner).segments.insert(segment, Pages { bytes, durable });
    }

    /// A disk with the same content, used by nobody.
    #[must_use]
    pub fn copy(&self) -> Self {
        let disk = lock(&self.inner);
        let copy = Disk { segments: disk.segments.clone(), generation: disk.generation, ..Disk::default() };
        Self { inner: Arc::new(Mutex::new(copy)) }
    }
}

/// The store on a [`MemoryDisk`].
#[derive(Debug)]
pub struct MemoryStore {
    disk: MemoryDisk,
}

impl MemoryStore {
    /// On a disk of its own: nothing is durable beyond this process.
    #[must_use]
    pub fn new() -> Self {
        let disk = MemoryDisk::new();
        lock(&disk.inner).locked = true;
        Self { disk }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        lock(&self.disk.inner).locked = false;
    }
}

impl LedgerStore for MemoryStore {
    fn generation(&self) -> io::Result<u64> {
        Ok(lock(&self.disk.inner).generation)
    }

    fn raise_generation(&mut self, to: u64) -> io::Result<()> {
        let mut disk = lock(&self.disk.inner);
        disk.step().map_err(|(_, error)| error)?;
        disk.generation = to;
        Ok(())
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        Ok(lock(&self.disk.inner).segments.keys().copied().collect())
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        let disk = lock(&self.disk.inner);
        disk.segments.get(&segment).map(|pages| pages.bytes.clone()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn create(&mut self, segment: u64, header: &[u8]) -> io::Result<()> {
        let mut disk = lock(&self.disk.inner);
        match disk.step() {
            Ok(()) => {
                let pages = Pages { bytes: header.to_vec(), durable: header.len() };
                disk.segments.insert(segment, pages);
                disk.current = Some(segment);
                Ok(())
            }
            Err((first, error)) => {
                if first {
                    let pages = Pages { bytes: header[..header.len() / 2].to_vec(), durable: 0 };
                    disk.segments.insert(segment, pages);
                }
                Err(error)
            }
        }
    }

    fn resume(&mut self, segment: u64, len: u64) -> io::Result<()> {
        let mut disk = lock(&self.disk.inner);
        disk.step().map_err(|(_, error)| error)?;
        let pages = disk.segments.get_mut(&segment).ok_or(io::ErrorKind::NotFound)?;
        pages.bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        pages.durable = pages.bytes.len();
        disk.current = Some(segment);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut disk = lock(&self.disk.inner);
        let outcome = disk.step();
        let current = disk.current.and_then(|segment| disk.segments.get_mut(&segment));
        let Some(pages) = current else { return Err(io::Error::other("no segment is open")) };
        match outcome {
            Ok(()) => pages.bytes.extend_from_slice(bytes),
            Err((first, error)) => {
                if first {
                    pages.bytes.extend_from_slice(&bytes[..bytes.len() / 2]);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn syncer(&self) -> Syncer {
        let disk = self.disk.clone();
        Arc::new(move || lock(&disk.inner).sync())
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        let mut disk = lock(&self.disk.inner);
        disk.step().map_err(|(_, error)| error)?;
        disk.segments.remove(&segment);
        Ok(())
    }
}
