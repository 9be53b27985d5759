//! The engine's journal after a power cut, looked at before the engine opens it.
//!
//! Every batch is synced before the next one begins, so a power cut can tear the last one only. The engine drops it when it just
//! breaks off. But it does not open a database at all whose last batch has its end on disk and a page in the middle not;
//! and a damaged byte among acknowledged batches it takes for the end, and drops what follows. So the last
//! batch is cut off here when it is damaged and nothing whole follows; when something does, the database is corrupt and
//! stays as it is.
//!
//! ```text
//! batch = 01 ‖ items (4) ‖ sequence (8) ‖ item × items ‖ 03 ‖ xxh3 of the items (8) ‖ "FJL" 03
//! item  = 02 ‖ type ‖ compression ‖ keyspace (8) ‖ key length (2) ‖ value length (4) ‖ stored length (4) ‖ key ‖ value
//!       | 04 ‖ keyspace (8)                                                                        (little-endian)
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::StateError;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";
/// The file whose lock the engine holds while it is open.
const LOCK: &str = "lock";

/// Takes bytes off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(*self.take(1)?.first()?)
    }

    fn number<const N: usize>(&mut self) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.get_mut(..N)?.copy_from_slice(self.take(N)?);
        Some(u64::from_le_bytes(bytes))
    }

    fn length<const N: usize>(&mut self) -> Option<usize> {
        usize::try_from(self.number::<N>()?).ok()
    }
}

/// Length of the whole batch that `bytes` begin with, or `None` when there is none.
fn batch(bytes: &[u8]) -> Option<usize> {
    let mut reader = Reader(bytes);
    if reader.byte()? != START {
        return None;
    }
    let items = reader.number::<4>()?;
    reader.number::<8>()?;
    let body = reader.0;
    for _ in 0..items {
        match reader.byte()? {
            ITEM => {
                reader.take(2)?;
                reader.number::<8>()?;
                let key = reader.length::<2>()?;
                reader.number::<4>()?;
                let value = reader.length::<4>()?;
                reader.take(key)?;
                reader.take(value)?;
            }
            CLEAR => {
                reader.number::<8>()?;
            }
            _ => return None,
        }
    }
    let hashed = body.get(..body.len().checked_sub(reader.0.len())?)?;
    let end = reader.byte()? == END && reader.number::<8>()? == xxh3_64(hashed) && reader.take(4)? == TRAILER;
    if end { bytes.len().checked_sub(reader.0.len()) } else { None }
}

/// Bytes of whole batches at the front.
fn whole(bytes: &[u8]) -> usize {
    let mut at = 0usize;
    while let Some(len) = bytes.get(at..).and_then(batch) {
        at = at.saturating_add(len);
    }
    at
}

/// Whether a whole batch begins anywhere in `bytes`.
fn holds_a_batch(bytes: &[u8]) -> bool {
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == START);
    { starts }.any(|(at, _)| bytes.get(at..).is_some_and(|rest| batch(rest).is_some()))
}

fn journals(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path.extension().filter(|e| *e == "jnl").and(path.file_stem()).and_then(|s| s.to_str());
        if let Some(number) = number.and_then(|s| s.parse().ok()) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Cuts a torn last batch off the newest journal of the database in `folder`.
///
/// For every store over the engine whose batches are synced one by one. A folder without journals is left alone.
///
/// # Errors
/// `Locked`, `Corrupt` or `Engine`.
pub fn mend(folder: &Path) -> Result<(), StateError> {
    let failed = |error: io::Error| StateError::Engine(format!("journal: {error}"));
    let journals = match journals(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    let Some((newest, _)) = journals.last() else { return Ok(()) };
    let _owner = lock(folder)?;
    for (number, path) in &journals {
        let bytes = fs::read(path).map_err(failed)?;
        let good = whole(&bytes);
        let rest = bytes.get(good..).unwrap_or_default();
        // A journal is made longer than it needs to be.
        if rest.iter().all(|byte| *byte == 0) {
            continue;
        }
        if number != newest || holds_a_batch(rest) {
            let what = format!("journal {number} is damaged at byte {good}, in front of whole records");
            return Err(StateError::corrupt(what));
        }
        tracing::warn!(
            journal = number,
            at = good,
            cut = rest.len(),
            "dropped a record that was never finished"
        );
        cut(path, good).map_err(failed)?;
    }
    Ok(())
}

/// Makes sure that nobody has the database open, for as long as the file is: whoever has is writing the end of the journal.
/// `None` when there is no file to lock yet.
///
/// Fails with `Locked` or `Engine`.
pub(super) fn lock(folder: &Path) -> Result<Option<File>, StateError> {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(folder.join(LOCK)) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Err(StateError::Locked { path: folder.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(StateError::Engine(format!("lock: {error}"))),
    }
}

fn cut(path: &Path, len: usize) -> io::Result<()> {
    let file: File = OpenOptions::new().write(true).open(path)?;
    file.set_len(u64::try_from(len).unwrap_or(u64::MAX))?;
    file.sync_all()
}
