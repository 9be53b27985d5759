//! Files of the home folder: where they are, and writing them whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::error::{fail, io_failure};

/// The folder of a node, of which every path below is made.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HomeArgs {
    /// Folder with configuration, keys and data [default: .holdfastd in the user's home folder]
    #[arg(long, env = "HOLDFASTD_HOME", value_name = "DIR")]
    home: Option<PathBuf>,
}

impl HomeArgs {
    pub(crate) fn home(&self) -> Result<Home> {
        let dir = match &self.home {
            Some(dir) if dir.as_os_str().is_empty() => None,
            Some(dir) => Some(dir.clone()),
            None => std::env::home_dir().map(|dir| dir.join(".holdfastd")),
        };
        dir.map(Home).ok_or_else(|| {
            fail(14, "--home", "no home folder is known; give --home DIR or set HOLDFASTD_HOME")
        })
    }
}

/// Paths below a node's folder.
#[derive(Debug, Clone)]
pub(crate) struct Home(pub(crate) PathBuf);

impl Home {
    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("config")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    pub(crate) fn app_toml(&self) -> PathBuf {
        self.config().join("app.toml")
    }

    pub(crate) fn genesis(&self) -> PathBuf {
        self.config().join("genesis.json")
    }

    pub(crate) fn validator_key(&self) -> PathBuf {
        self.config().join("priv_validator_key.json")
    }

    pub(crate) fn validator_state(&self) -> PathBuf {
        self.data().join("priv_validator_state.json")
    }

    pub(crate) fn keyring(&self) -> PathBuf {
        self.0.join("keyring-test")
    }

    /// The file's text; a missing one points to `init`.
    pub(crate) fn read(&self, path: &Path) -> Result<String> {
        fs::read_to_string(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => fail(
                23,
                path.display().to_string(),
                "not found; run `holdfastd init MONIKER --chain-id ID` first, or give the right --home",
            ),
            _ => io_failure(path, &e),
        })
    }
}

/// Creates a folder and those above it.
pub(crate) fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|e| io_failure(path, &e))
}

/// Whether there is nothing at `path`, or an empty folder.
pub(crate) fn is_vacant(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(io_failure(path, &e)),
    }
}

/// Writes a file as [`holdfast_app::files::write_whole`] does; the error names it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], secret: bool) -> Result<()> {
    holdfast_app::files::write_whole(path, bytes, secret).map_err(|e| io_failure(path, &e))
}
