//! The state database: committed state by height, its app hash, and proofs (chain.md 2).
//!
//! # Commitment
//!
//! Writes are full keys, `module ‖ "/" ‖ rest`. Each module has one Merkle tree over
//! `sha256(rest) → sha256(committed value)` with the shape and hashing of a Jellyfish Merkle tree (jmt), so its root
//! depends on the final set of pairs only: not on the order of writes, not on how they were split into blocks,
//! not on the height. The app hash is the Cosmos SDK's simple Merkle map of module name → tree root. A proof has
//! two operations, `ics23:jmt` ([`jmt_spec`]) and `ics23:simple` (`ics23::tendermint_spec`).
//!
//! * Each tree is born with one leaf of its own, [`SENTINEL_KEY`] → [`SENTINEL_VALUE`], so that absence can be proven in a
//!   module without state too: ICS 23 has no proof in an empty tree.
//! * ICS 23 refuses empty values, which key sets are made of: the tree commits to [`committed_value`], which is the
//!   raw value except for the empty one.
//! * Keys in the transient space (`~`) are dropped.
//! * A write that changes nothing leaves no trace; a module that is not touched keeps its tree and costs nothing.
//!
//! # Reading
//!
//! Consensus, queries and `CheckTx` each read a [`CommitStore::snapshot`] of their own, which later commits do not
//! change. Past heights inside the retention window are read with [`CommitStore::snapshot_at`].
//!
//! # Writing
//!
//! [`CommitStore::prepare`] computes the app hash of a block in memory (`FinalizeBlock`);
//! [`CommitStore::commit`] makes it durable in one atomic, synced batch (`Commit`).
//! [`CommitStore::prune`] removes what left the window, a bounded piece at a time and outside the commit;
//! [`Pruning`] says how wide the window is, [`CommitStore::pin`] keeps a height in it for a while.
//! [`Rollback`] takes the latest height of a closed database back.
//!
//! A write that failed is neither visible nor acknowledged, and the database takes no other one: the node has to stop.
//! What the failed write left in the journal decides whether the next start finds the height before it or the whole of it.
//!
//! [`DiskStore`] keeps state on disk, [`MemCommitStore`] in memory; both give the same app hashes.

mod cache;
mod disk;
mod errors;
mod journal;
mod mem;
mod proof;
mod pruning;
mod rollback;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_disk;
#[cfg(test)]
mod tests_faults;
mod tree;

use std::any::Any;
use std::collections::BTreeMap;

use holdfast_store::{KvRead, TRANSIENT_SPACE, WriteSet};

pub(crate) use disk::Filling;
pub use disk::{DiskSnapshot, DiskStore, DiskVersioned};
pub use errors::StateError;
pub use journal::mend as mend_journal;
pub use mem::{MemCommitStore, MemView};
pub use proof::{ProofOp, StateProof, jmt_spec, module_map_root};
pub use pruning::{Pruning, PruningError};
pub use rollback::Rollback;
pub use tree::{SENTINEL_KEY, SENTINEL_VALUE, committed_value};

use errors::hex_key;
use tree::{Effect, Hash, PageSource, Path, Update};

/// Longest full key in bytes. The engine's limit is 65,536 for the escaped key and its height.
pub const MAX_KEY_BYTES: usize = 16_384;

/// A read view of one committed height. Height, app hash and pairs belong together.
pub trait StateView: KvRead + Send + Sync + 'static {
    /// Height of the view; 0 before the first commit.
    fn height(&self) -> i64;

    /// App hash after that height: what the header of the next block carries.
    fn app_hash(&self) -> Hash;
}

/// Committed state: the seam between the app and a state database.
///
/// Methods take `&self`; an implementation orders commits itself. A read sees the state before or after a commit, never
/// half of one.
pub trait CommitStore: Send + Sync + 'static {
    /// View of the latest committed state.
    type Snapshot: StateView;
    /// View of a retained height.
    type Versioned: StateView;

    /// Latest committed height; 0 before the first commit.
    fn latest_height(&self) -> i64;

    /// Oldest height that [`Self::snapshot_at`] and [`Self::prove`] serve; 0 before the first commit.
    fn earliest_height(&self) -> i64;

    /// App hash after the latest committed height.
    fn app_hash(&self) -> Hash;

    /// Names of the modules, sorted.
    fn modules(&self) -> &[String];

    /// View of the latest committed state. Constant time.
    fn snapshot(&self) -> Self::Snapshot;

    /// View of `height`.
    ///
    /// Fails with `InvalidHeight`, `Pruned` or `Future`.
    fn snapshot_at(&self, height: i64) -> Result<Self::Versioned, StateError>;

    /// Computes the state after `writes` on top of the latest committed height. Nothing becomes durable or visible;
    /// may be called any number of times for a height.
    ///
    /// The first height is any from 1 up (a chain's initial height), each later one follows its predecessor. Fails with
    /// `NotContiguous`, `InvalidHeight`, `UnknownModule`, `Key`, or a read error.
    fn prepare(&self, height: i64, writes: &WriteSet) -> Result<Prepared, StateError>;

    /// Makes `prepared` the latest committed state. On return it is on stable storage.
    ///
    /// Fails with `Stale` when another commit came in between. After any other failure nothing of it is visible and no
    /// later commit is taken: stop. A restart finds the height before it or, when all of it had reached the disk, the height
    /// itself; never a part of it.
    fn commit(&self, prepared: Prepared) -> Result<(), StateError>;

    /// Proves presence or absence of `key` (the part after `module/`) at `height`.
    ///
    /// The proof verifies against the app hash after `height`, the one in the header of the next block.
    fn prove(&self, height: i64, module: &str, key: &[u8]) -> Result<StateProof, StateError>;

    /// Removes up to about `limit` rows that left the retention window. Returns how many; 0 means done.
    ///
    /// Changes no app hash. A commit waits for it at most for as long as one batch of `limit` rows takes to write.
    fn prune(&self, limit: usize) -> Result<usize, StateError>;

    /// Keeps `height` and all above it in the window for as long as the guard lives.
    ///
    /// Fails like [`Self::snapshot_at`].
    fn pin(&self, height: i64) -> Result<Pin, StateError>;
}

/// Keeps a height readable: pruning stops below it until this is dropped.
pub struct Pin {
    height: i64,
    _hold: Box<dyn Any + Send + Sync>,
}

impl Pin {
    fn new(height: i64, hold: impl Any + Send + Sync) -> Self {
        Self { height, _hold: Box::new(hold) }
    }

    /// The height it keeps.
    pub fn height(&self) -> i64 {
        self.height
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("height", &self.height).finish_non_exhaustive()
    }
}

/// Settings of a state database.
#[derive(Debug, Clone)]
pub struct StateOptions {
    /// How many of the latest heights stay readable; 0 keeps all.
    pub keep_recent: u64,
    /// Tree pages kept in memory at most, about half a kilobyte each; half as many are sure to stay. A tree of a
    /// million keys has 330,000.
    pub page_cache: usize,
    /// Latest values kept in memory, in bytes.
    pub value_cache_bytes: usize,
    /// Block cache of the engine in bytes.
    pub block_cache_bytes: u64,
    /// Threads that compute a block's trees, this one included. The result does not depend on it.
    pub threads: usize,
    /// Modules that an upgrade brings: a database without them takes them in. The app hash of the height it is at stays,
    /// the next commit is the first with their trees, and until then a program without them can open it again.
    /// A module that is missing in the database and here is refused. Only [`DiskStore`] reads it.
    pub added_modules: Vec<String>,
}

impl Default for StateOptions {
    fn default() -> Self {
        Self {
            keep_recent: 0,
            page_cache: 700_000,
            value_cache_bytes: 96 * 1024 * 1024,
            block_cache_bytes: 32 * 1024 * 1024,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get().min(4)),
            added_modules: Vec::new(),
        }
    }
}

/// Root of one module's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeRoot {
    /// Height at which the root page was written: the last one that changed the module.
    pub(crate) version: u64,
    /// Root hash.
    pub(crate) hash: Hash,
}

impl TreeRoot {
    /// Root of a tree that holds nothing but its own leaf.
    fn birth() -> Self {
        Self { version: 0, hash: tree::Page::birth().root_hash() }
    }
}

/// A block's state, computed and not yet committed.
#[derive(Debug)]
pub struct Prepared {
    height: i64,
    base: i64,
    app_hash: Hash,
    roots: Vec<TreeRoot>,
    /// Effective writes in key order: the ones that change something.
    writes: Vec<Write>,
    pages: Vec<(u16, Path, tree::Page)>,
    stale: Vec<(u16, Path, u64)>,
}

impl Prepared {
    /// Height this state is for.
    pub fn height(&self) -> i64 {
        self.height
    }

    /// App hash after the block.
    pub fn app_hash(&self) -> Hash {
        self.app_hash
    }

    /// Keys whose value the block changed, in order, with the new value or `None` for removed.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.writes.iter().map(|w| (w.key.as_slice(), w.value.as_deref()))
    }
}

#[derive(Debug)]
struct Write {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    module: u16,
    key_hash: Hash,
    /// The key was not in the tree before: its preimage has to be recorded.
    inserted: bool,
}

/// The module names. A module has a number, which the rows on disk carry: its place in the list at creation, which is sorted,
/// and behind that the order in which modules came in later.
#[derive(Debug, Clone)]
struct Modules {
    /// Names by number.
    numbered: Vec<String>,
    /// Names in order.
    sorted: Vec<String>,
}

impl Modules {
    /// Numbers by order of name.
    fn new<S: AsRef<str>>(names: &[S]) -> Result<Self, StateError> {
        let mut list: Vec<String> = names.iter().map(|n| n.as_ref().to_owned()).collect();
        list.sort();
        Self::numbered(list)
    }

    /// Numbers by place in the list.
    fn numbered(numbered: Vec<String>) -> Result<Self, StateError> {
        let mut sorted = numbered.clone();
        sorted.sort();
        let bad = |reason: String| Err(StateError::ModuleList { reason });
        if sorted.is_empty() || u16::try_from(sorted.len()).is_err() {
            return bad(format!("{} names", sorted.len()));
        }
        if sorted.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
            return bad("a name appears twice".into());
        }
        for name in &sorted {
            let ok = name.len() <= 64
                && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
                && name.bytes().next().is_some_and(|b| b != TRANSIENT_SPACE);
            if !ok {
                return bad(format!("{name:?} is not a module name"));
            }
        }
        Ok(Self { numbered, sorted })
    }

    /// The numbers of a database that holds the modules `stored`, for a program with the modules of `self`, of which
    /// `added` may be new to it.
    fn over(&self, stored: &Modules, added: &[String]) -> Result<Self, StateError> {
        if let Some(stray) = added.iter().find(|name| !self.sorted.contains(name)) {
            return Err(StateError::ModuleList {
                reason: format!("added module {stray:?} is not in the list"),
            });
        }
        let new: Vec<&String> = self.sorted.iter().filter(|name| !stored.sorted.contains(name)).collect();
        let gone = stored.sorted.iter().any(|name| !self.sorted.contains(name));
        if gone || new.iter().any(|name| !added.contains(name)) {
            return Err(StateError::Modules {
                stored: stored.sorted.join(", "),
                given: self.sorted.join(", "),
            });
        }
        Self::numbered(stored.numbered.iter().chain(new).cloned().collect())
    }

    fn count(&self) -> usize {
        self.numbered.len()
    }

    fn index(&self, name: &[u8]) -> Option<u16> {
        let at = self.numbered.iter().position(|known| known.as_bytes() == name)?;
        u16::try_from(at).ok()
    }

    fn unknown(&self, key: String) -> StateError {
        StateError::UnknownModule { key, modules: self.sorted.join(", ") }
    }

    /// Module number and key inside the module.
    fn split<'k>(&self, key: &'k [u8]) -> Result<(u16, &'k [u8]), StateError> {
        let refuse = |reason| Err(StateError::Key { key: hex_key(key), reason });
        let Some(slash) = key.iter().position(|b| *b == b'/') else {
            return Err(self.unknown(hex_key(key)));
        };
        let (name, rest) = key.split_at(slash);
        let Some(module) = self.index(name) else {
            return Err(self.unknown(hex_key(key)));
        };
        let rest = rest.get(1..).unwrap_or_default();
        if rest.is_empty() {
            return refuse("it has nothing after the module name");
        }
        if rest == SENTINEL_KEY {
            return refuse("it is the tree's own leaf");
        }
        if key.len() > MAX_KEY_BYTES {
            return refuse("it is longer than 16384 bytes");
        }
        Ok((module, rest))
    }

    fn full_key(&self, module: u16, rest: &[u8]) -> Vec<u8> {
        let name = self.numbered.get(usize::from(module)).map_or("", String::as_str);
        let mut key = Vec::with_capacity(name.len().saturating_add(rest.len()).saturating_add(1));
        key.extend_from_slice(name.as_bytes());
        key.push(b'/');
        key.extend_from_slice(rest);
        key
    }

    /// Roots of trees that hold nothing but their own leaf.
    fn birth_roots(&self) -> Vec<TreeRoot> {
        vec![TreeRoot::birth(); self.count()]
    }

    /// App hash of the modules with a number below the count of `roots`.
    fn app_hash(&self, roots: &[TreeRoot]) -> Hash {
        module_map_root(self.numbered.iter().zip(roots).map(|(name, root)| (name.as_str(), root.hash)))
    }
}

/// `height` as a tree version.
fn version(height: i64) -> Result<u64, StateError> {
    u64::try_from(height).map_err(|_| StateError::InvalidHeight { height })
}

/// Whether `height` may follow `latest`.
fn check_next(height: i64, latest: i64) -> Result<(), StateError> {
    if height < 1 {
        return Err(StateError::InvalidHeight { height });
    }
    if latest != 0 && latest.checked_add(1) != Some(height) {
        return Err(StateError::NotContiguous { height, latest });
    }
    Ok(())
}

/// Whether `height` can be read.
fn check_readable(height: i64, earliest: i64, latest: i64) -> Result<(), StateError> {
    if height < 1 {
        Err(StateError::InvalidHeight { height })
    } else if height > latest {
        Err(StateError::Future { height, latest })
    } else if height < earliest {
        Err(StateError::Pruned { height, earliest })
    } else {
        Ok(())
    }
}

/// Oldest height to keep.
fn horizon(keep_recent: u64, earliest: i64, latest: i64) -> i64 {
    let keep = i64::try_from(keep_recent).unwrap_or(i64::MAX);
    if keep == 0 {
        return earliest;
    }
    earliest.max(latest.saturating_sub(keep).saturating_add(1)).min(latest)
}

/// The computation behind every [`CommitStore::prepare`].
fn compute(
    modules: &Modules,
    source: &dyn PageSource,
    roots: &[TreeRoot],
    latest: i64,
    height: i64,
    writes: &WriteSet,
    threads: usize,
) -> Result<Prepared, StateError> {
    check_next(height, latest)?;
    let at = version(height)?;

    let mut kept = Vec::with_capacity(writes.len());
    let mut by_module: BTreeMap<u16, Vec<Update>> = BTreeMap::new();
    for (key, value) in writes {
        if key.first() == Some(&TRANSIENT_SPACE) {
            continue;
        }
        let (module, rest) = modules.split(key)?;
        let key_hash = tree::sha256(rest);
        by_module.entry(module).or_default().push(Update {
            key: key_hash,
            value: value.as_deref().map(|v| tree::sha256(&committed_value(v))),
            index: kept.len(),
        });
        kept.push((key, value, module, key_hash));
    }

    let mut out = Prepared {
        height,
        base: latest,
        app_hash: [0; 32],
        roots: roots.to_vec(),
        writes: Vec::with_capacity(kept.len()),
        pages: Vec::new(),
        stale: Vec::new(),
    };
    // Modules that came in after the latest commit begin here.
    out.roots.resize(modules.count(), TreeRoot::birth());
    let mut effects: Vec<Option<Effect>> = vec![None; kept.len()];
    for (module, updates) in by_module {
        let Some(root) = out.roots.get_mut(usize::from(module)) else {
            return Err(StateError::corrupt(format!("module {module} has no root")));
        };
        let update = tree::update(source, module, *root, at, updates, threads)?;
        for (index, effect) in update.effects {
            if let Some(slot) = effects.get_mut(index) {
                *slot = Some(effect);
            }
        }
        *root = update.root;
        out.pages.extend(update.pages.into_iter().map(|(path, page)| (module, path, page)));
        out.stale.extend(update.stale.into_iter().map(|(path, version)| (module, path, version)));
    }
    for ((key, value, module, key_hash), effect) in kept.into_iter().zip(effects) {
        if let Some(effect) = effect {
            out.writes.push(Write {
                key: key.clone(),
                value: value.clone(),
                module,
                key_hash,
                inserted: effect == Effect::Inserted,
            });
        }
    }
    // Ascending keys: the engine's tables are sorted.
    out.pages.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    out.stale.sort();
    out.app_hash = modules.app_hash(&out.roots);
    Ok(out)
}
