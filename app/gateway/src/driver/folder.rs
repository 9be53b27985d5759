//! What a folder of data tells of a journal that was lost: each session has a folder, each escrow an entry.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use super::{Journal, JournalError};

/// Escrows that have a folder of a session in `home` and no entry in the journal, ascending. An entry is on disk before the
/// folder is made, so the journal is not the one of this folder, or was lost or damaged.
///
/// # Errors
/// The folder cannot be read, or the journal.
pub fn strays(home: &Path, journal: &Journal) -> Result<Vec<u64>, StraysError> {
    let known: BTreeSet<u64> = journal.escrows()?.into_iter().map(|(id, _)| id).collect();
    let mut strays = BTreeSet::new();
    for entry in fs::read_dir(home)? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("escrow-")).and_then(|id| id.parse().ok());
        strays.extend(id.filter(|id| !known.contains(id)));
    }
    Ok(strays.into_iter().collect())
}

/// Why nothing can be told of a folder.
#[derive(Debug, thiserror::Error)]
pub enum StraysError {
    /// It cannot be read.
    #[error(transparent)]
    Folder(#[from] io::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

#[cfg(test)]
mod tests {
    use holdfast_host::store::{FjallDb, MemDb};

    use super::*;

    #[test]
    fn sessions_without_an_entry_in_the_journal_are_found_and_nothing_else_is() {
        let home = tempfile::tempdir().unwrap();
        for name in ["journal", "escrow-2", "escrow-11", "escrow-7", "escrow-x", "escrow-"] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        let journal = Journal::open(Box::new(MemDb::new())).unwrap();
        journal.adopt(7, "m", 1).unwrap();
        assert_eq!(strays(home.path(), &journal).unwrap(), [2, 11]);
        assert!(strays(&home.path().join("none"), &journal).is_err());
    }

    #[test]
    fn a_journal_that_was_deleted_or_zeroed_leaves_strays_and_a_damaged_one_does_not_open() {
        for spoil in ["folder", "file", "zeros", "start", "middle"] {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join("journal");
            let open =
                || FjallDb::open(&folder, "gateway journal").map(|db| Journal::open(Box::new(db)).unwrap());
            let journal = open().unwrap();
            for id in 1..=20 {
                journal.adopt(id, "m", 1).unwrap();
            }
            assert!(strays(home.path(), &journal).unwrap().is_empty());
            drop(journal);
            fs::create_dir(home.path().join("escrow-2")).unwrap();
            let file = folder.join("0.jnl");
            let bytes = fs::read(&file).unwrap();
            let flip = |range: std::ops::Range<usize>| {
                let mut bytes = bytes.clone();
                bytes[range].iter_mut().for_each(|byte| *byte ^= 0xff);
                fs::write(&file, bytes).unwrap();
            };
            match spoil {
                "folder" => fs::remove_dir_all(&folder).unwrap(),
                "file" => fs::remove_file(&file).unwrap(),
                "zeros" => fs::write(&file, vec![0; bytes.len()]).unwrap(),
                "start" => flip(0..200),
                _ => flip(100..400),
            }
            match open() {
                Ok(journal) => assert_eq!(strays(home.path(), &journal).unwrap(), [2], "{spoil}"),
                Err(error) => assert_eq!(error.code(), 2, "{spoil}: {error}"),
            }
        }
    }
}
