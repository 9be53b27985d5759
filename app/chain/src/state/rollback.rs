//! Taking the latest heights of a closed state database back.
//!
//! Versions hold every kept value by height and stale pages stay for the kept heights, so a height is undone by what it wrote.
//! Each height is one atomic, synced batch: whenever the process ends, the database is at a whole height.

use std::path::{Path as FsPath, PathBuf};

use super::disk::{META_LATEST, META_MODULES, Synced, Tables, check, engine};
use super::table::{self, MARKER_KEY};
use super::tree::{Hash, sha256};
use super::{DiskStore, Modules, StateError, StateOptions};

/// A state database opened for rolling back. The folder is locked meanwhile.
pub struct Rollback {
    tables: Tables,
    path: PathBuf,
    modules: Modules,
    height: i64,
    earliest: i64,
    app_hash: Hash,
}

impl std::fmt::Debug for Rollback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rollback")
            .field("path", &self.path)
            .field("height", &self.height)
            .finish_non_exhaustive()
    }
}

impl Rollback {
    /// Opens the database in `path`, whatever modules it holds.
    ///
    /// Fails with `NoState` when there is none, `Locked`, `Format`, `Corrupt` or `Engine`.
    pub fn open(path: impl AsRef<FsPath>) -> Result<Self, StateError> {
        let path = path.as_ref().to_owned();
        let none = || StateError::NoState { path: path.clone() };
        // The engine would create what is not there.
        let mut entries = std::fs::read_dir(&path).map_err(|_| none())?;
        if entries.next().is_none() {
            return Err(none());
        }
        let options = StateOptions { block_cache_bytes: 8 << 20, ..StateOptions::default() };
        let tables = Tables::open(&path, &options, Box::new(Synced))?;
        if !tables.has_format(&path)? {
            return Err(none());
        }
        let modules = tables.stored_modules()?;
        let (height, earliest, app_hash, _) = check(&tables, &modules, modules.count())?;
        if height == 0 {
            return Err(none());
        }
        Ok(Self { tables, path, modules, height, earliest, app_hash })
    }

    /// Latest height.
    pub fn height(&self) -> i64 {
        self.height
    }

    /// Oldest height it can go back to.
    pub fn earliest(&self) -> i64 {
        self.earliest
    }

    /// App hash after the latest height.
    pub fn app_hash(&self) -> Hash {
        self.app_hash
    }

    /// Undoes the latest height. Returns the height before it, which is the latest one now.
    ///
    /// Fails with `Pruned` when that height is not kept, and then changes nothing.
    pub fn step(&mut self) -> Result<i64, StateError> {
        let (from, to) = (self.height, self.height.saturating_sub(1));
        if to < self.earliest {
            return Err(StateError::Pruned { height: to, earliest: self.earliest });
        }
        let tables = &self.tables;
        let missing = |what: &str| StateError::corrupt(format!("height {from} has no {what}"));
        let changed = tables.changes.get(table::height_key(from)).map_err(engine)?;
        let changed = changed.ok_or_else(|| missing("list of changes"))?;
        let keys = table::read_key_list(&changed)?;
        let mut batch = tables.batch(keys.len().saturating_mul(4));
        for key in keys {
            batch.remove(&tables.versions, table::version_key(key, from));
            let older = table::version_key(key, to)..=table::version_key(key, 0);
            let row = tables.versions.range(older).next();
            let known = row.is_some();
            let value = row.map(|row| row.value()).transpose().map_err(engine)?;
            match value.as_deref().map(table::read_version_value).transpose()?.flatten() {
                Some(value) => batch.insert(&tables.flat, key, value),
                None => batch.remove(&tables.flat, key),
            }
            if !known {
                let (module, rest) = self.modules.split(key)?;
                batch.remove(&tables.preimages, table::preimage_key(module, &sha256(rest)));
            }
        }
        let pages = table::height_key(from).to_vec()..table::height_key(from.saturating_add(1)).to_vec();
        for row in tables.pages.range(pages) {
            batch.remove(&tables.pages, row.key().map_err(engine)?);
        }
        for lists in [&tables.changes, &tables.stale, &tables.commits] {
            batch.remove(lists, table::height_key(from));
        }
        let record = tables.commits.get(table::height_key(to)).map_err(engine)?;
        let record =
            record.ok_or_else(|| StateError::corrupt(format!("height {to} has no commit record")))?;
        let (_, roots) = table::read_commit_record(&record, self.modules.count())?;
        let names = self.modules.numbered.get(..roots.len()).unwrap_or_default();
        let modules = Modules::numbered(names.to_vec())?;
        batch.insert(&tables.flat, MARKER_KEY, table::height_key(to));
        batch.insert(&tables.meta, META_LATEST, table::height_key(to));
        batch.insert(&tables.meta, META_MODULES, modules.numbered.join("/"));
        tables.write(batch)?;
        self.modules = modules;
        (self.height, self.earliest, self.app_hash, _) =
            check(&self.tables, &self.modules, self.modules.count())?;
        Ok(to)
    }
}

impl DiskStore {
    /// Takes the closed database in `path` back to height `to`, one height at a time, and returns its app hash. A call that was
    /// cut short is simply repeated; at `to` already, nothing is done.
    ///
    /// Fails with `Pruned` or `Future` and nothing changed when `to` is not kept, else like [`Rollback::open`].
    pub fn rollback(path: impl AsRef<FsPath>, to: i64) -> Result<Hash, StateError> {
        let mut rollback = Rollback::open(path)?;
        super::check_readable(to, rollback.earliest, rollback.height)?;
        while rollback.height > to {
            rollback.step()?;
        }
        Ok(rollback.app_hash)
    }
}
