//! Whose a folder is: one key on one chain. Its records would be reported in another's name otherwise.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The file that names the owner.
const FILE: &str = "owner";
/// Longest file that is read, bytes.
const FILE_MAX: u64 = 512;

/// Why a folder is not this host's. Codes are stable.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// It belongs to another key, or to another chain.
    #[error(
        "{}: belongs to {found}, this host is {wanted}; start with that key and chain, or give another folder",
        folder.display()
    )]
    Other {
        /// The folder.
        folder: PathBuf,
        /// Who has it.
        found: String,
        /// Who asked.
        wanted: String,
    },
    /// It cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl OwnerError {
    /// Stable number.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::Other { .. } => 1,
            Self::Io { .. } => 2,
        }
    }
}

/// Writes into `folder` that it belongs to `executor` (bech32) on `chain_id`, or checks that it does. The folder must be
/// locked by the caller. One from before owners were written becomes the caller's.
///
/// # Errors
/// [`OwnerError`].
pub fn claim(folder: &Path, chain_id: &str, executor: &str) -> Result<(), OwnerError> {
    let path = folder.join(FILE);
    let failed = |error| OwnerError::Io { path: path.clone(), error };
    let wanted = format!("{executor} on {chain_id}");
    let mut found = String::new();
    match File::open(&path) {
        Ok(file) => {
            file.take(FILE_MAX).read_to_string(&mut found).map_err(failed)?;
            let found = found.trim_end().to_owned();
            if found == wanted {
                Ok(())
            } else {
                Err(OwnerError::Other { folder: folder.into(), found, wanted })
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => write(folder, &wanted).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

fn write(folder: &Path, owner: &str) -> io::Result<()> {
    let new = folder.join("owner.new");
    let mut file = File::create(&new)?;
    writeln!(file, "{owner}")?;
    file.sync_all()?;
    fs::rename(&new, folder.join(FILE))?;
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_folder_knows_whose_host_it_is_and_refuses_another_key_and_another_chain() {
        let folder = tempfile::tempdir().unwrap();
        claim(folder.path(), "c-1", "hold1alice").unwrap();
        claim(folder.path(), "c-1", "hold1alice").unwrap();
        for (chain, executor) in [("c-2", "hold1alice"), ("c-1", "hold1bob")] {
            let error = claim(folder.path(), chain, executor).unwrap_err();
            assert_eq!(error.code(), 1);
            let text = error.to_string();
            assert!(text.contains("belongs to hold1alice on c-1"), "{text}");
            assert!(text.contains("or give another folder"), "{text}");
        }
        fs::write(folder.path().join(FILE), "").unwrap();
        assert_eq!(
            claim(folder.path(), "c-1", "hold1alice").unwrap_err().code(),
            1,
            "an empty file is no owner"
        );
        assert_eq!(claim(&folder.path().join("none"), "c-1", "hold1alice").unwrap_err().code(), 2);
    }
}
