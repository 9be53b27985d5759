//! A Jellyfish Merkle tree in pages of sixteen.
//!
//! Root hashes and ICS 23 proofs are those of the `jmt` crate (a test compares both); the code is our own for three
//! reasons. A block's updates go through the tree together, so that a page is hashed once per block and not
//! once per key. A page keeps the hashes between its slots and its top, so that one changed slot costs four hashes
//! instead of fifteen. And leaves live in their parent's page, which halves the rows per update.
//!
//! ```text
//!  page at path "3a"            1            nodes[1]       top hash, goes into the parent's slot
//!                        2             3
//!                    4      5      6      7                 hashes in between, recomputed on load
//!                   8 9   10 11  12 13  14 15
//!                 16 ......................... 31           nodes[16 + i] belongs to slot i
//! ```
//!
//! A slot is empty, a leaf (key hash and value hash), or an inner page that holds at least two leaves (its version says
//! at which height it was written). A half that holds one leaf only hashes to that leaf, at any depth.
//! Pages are never changed: a new version is written and the old one recorded as stale.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{StateError, TreeRoot};

pub(crate) type Hash = [u8; 32];

/// Key (inside the module) of the leaf that every tree is born with.
pub const SENTINEL_KEY: &[u8] = b"\xff/holdfast/tree";
/// Value of that leaf.
pub const SENTINEL_VALUE: &[u8] = b"holdfast.state.v1";

/// What stands in the tree for an empty value.
const EMPTY_VALUE: &[u8] = b"holdfast.state.v1.empty";

/// Hash of an empty subtree.
pub(crate) const PLACEHOLDER: Hash = *b"SPARSE_MERKLE_PLACEHOLDER_HASH__";
pub(crate) const LEAF_DOMAIN: &[u8] = b"JMT::LeafNode";
pub(crate) const INNER_DOMAIN: &[u8] = b"JMT::IntrnalNode";

/// Fewer updates than this are not worth a thread.
const MIN_UPDATES_PER_THREAD: usize = 128;

/// The bytes a tree commits to for `value`: the value itself, but for the empty one, which ICS 23 cannot
/// prove. One-to-one: a value that begins with the stand-in gets it once more in front.
pub fn committed_value(value: &[u8]) -> Cow<'_, [u8]> {
    if value.is_empty() || value.starts_with(EMPTY_VALUE) {
        Cow::Owned([EMPTY_VALUE, value].concat())
    } else {
        Cow::Borrowed(value)
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

fn leaf_hash(leaf: &Leaf) -> Hash {
    let mut h = Sha256::new();
    h.update(LEAF_DOMAIN);
    h.update(leaf.key);
    h.update(leaf.value);
    h.finalize().into()
}

fn inner_hash(left: &Hash, right: &Hash) -> Hash {
    let mut h = Sha256::new();
    h.update(INNER_DOMAIN);
    h.update(left);
    h.update(right);
    h.finalize().into()
}

/// The `depth`-th four bits of a key hash, high half first.
fn nibble(key: &Hash, depth: usize) -> usize {
    let byte = key.get(depth / 2).copied().unwrap_or(0);
    usize::from(if depth.is_multiple_of(2) { byte >> 4 } else { byte & 0x0f })
}

/// Place of a page: the first `len` nibbles of every key hash below it; the rest is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Path {
    len: u8,
    bytes: Hash,
}

impl Path {
    pub(crate) fn depth(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn child(&self, nibble: usize) -> Self {
        let mut out = *self;
        let low = u8::try_from(nibble & 0x0f).unwrap_or(0);
        if let Some(byte) = out.bytes.get_mut(self.depth() / 2) {
            *byte |= if self.len.is_multiple_of(2) { low << 4 } else { low };
        }
        out.len = self.len.saturating_add(1);
        out
    }

    /// Length and the bytes in use.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.len);
        out.extend_from_slice(self.bytes.get(..self.depth().div_ceil(2)).unwrap_or_default());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) key: Hash,
    pub(crate) value: Hash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    Empty,
    Leaf(Leaf),
    Inner { version: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Empty,
    Leaf,
    Inner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Node {
    kind: Kind,
    hash: Hash,
}

const EMPTY_NODE: Node = Node { kind: Kind::Empty, hash: PLACEHOLDER };

/// A page being worked on: every slot and every hash in place.
struct OpenPage {
    slots: [Slot; 16],
    /// Heap order, index 0 unused.
    nodes: [Node; 32],
}

impl OpenPage {
    fn empty() -> Self {
        Self { slots: [Slot::Empty; 16], nodes: [EMPTY_NODE; 32] }
    }

    fn node(&self, index: usize) -> Node {
        self.nodes.get(index).copied().unwrap_or(EMPTY_NODE)
    }

    fn put(&mut self, index: usize, slot: Slot, node: Node) {
        if let Some(place) = self.slots.get_mut(index) {
            *place = slot;
        }
        if let Some(place) = self.nodes.get_mut(index.saturating_add(16)) {
            *place = node;
        }
    }

    /// Recomputes what lies above the slots in `dirty`.
    fn rehash(&mut self, dirty: u16) {
        // Bit i of `touched` stands for the i-th node of the row below.
        let mut touched = dirty;
        for row in [8usize, 4, 2, 1] {
            let mut above = 0u16;
            for i in 0..row {
                if touched >> (2 * i) & 0b11 == 0 {
                    continue;
                }
                above |= 1 << i;
                let at = row + i;
                let (left, right) = (self.node(2 * at), self.node(2 * at + 1));
                let node = match (left.kind, right.kind) {
                    (Kind::Empty, Kind::Empty) => EMPTY_NODE,
                    (Kind::Leaf, Kind::Empty) => left,
                    (Kind::Empty, Kind::Leaf) => right,
                    _ => Node { kind: Kind::Inner, hash: inner_hash(&left.hash, &right.hash) },
                };
                if let Some(place) = self.nodes.get_mut(at) {
                    *place = node;
                }
            }
            touched = above;
        }
    }

    fn close(&self) -> Page {
        let (mut leaf_map, mut inner_map) = (0u16, 0u16);
        for (i, slot) in self.slots.iter().enumerate() {
            match slot {
                Slot::Empty => {}
                Slot::Leaf(_) => leaf_map |= 1 << i,
                Slot::Inner { .. } => inner_map |= 1 << i,
            }
        }
        let keep = (leaf_map | inner_map).count_ones() > FEW_SLOTS;
        let mut page = Page { leaf_map, inner_map, top: self.node(1), body: Box::default() };
        let fixed = page.between_at();
        let mut body = Vec::with_capacity(if keep { fixed.saturating_add(15) } else { fixed });
        for (slot, node) in self.slots.iter().zip(self.nodes.iter().skip(16)) {
            if let Slot::Leaf(leaf) = slot {
                body.extend([leaf.key, leaf.value, node.hash]);
            }
        }
        for (slot, node) in self.slots.iter().zip(self.nodes.iter().skip(16)) {
            if let Slot::Inner { version } = slot {
                let mut unit = [0; 32];
                if let Some(head) = unit.first_chunk_mut::<8>() {
                    *head = version.to_be_bytes();
                }
                body.extend([node.hash, unit]);
            }
        }
        if keep {
            body.extend(self.nodes.iter().take(16).skip(1).map(|node| node.hash));
        }
        page.body = body.into_boxed_slice();
        page
    }
}

/// A page with no more slots than this recomputes its inner hashes when they are needed.
const FEW_SLOTS: u32 = 4;

/// A page at rest: only what is occupied, in one piece of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// Bit i: slot i is a leaf.
    leaf_map: u16,
    /// Bit i: slot i is an inner page.
    inner_map: u16,
    top: Node,
    /// Key, value and hash of each leaf; hash and version of each inner page; nodes 1 to 15 of a page with many slots.
    body: Box<[Hash]>,
}

/// How many bits of `map` are set below bit `index`, if bit `index` is.
fn rank(map: u16, index: usize) -> Option<usize> {
    let bit = 1u16.checked_shl(u32::try_from(index).ok()?)?;
    (map & bit != 0).then(|| usize::try_from((map & bit.wrapping_sub(1)).count_ones()).unwrap_or(0))
}

fn ones(map: u16) -> usize {
    usize::try_from(map.count_ones()).unwrap_or(16)
}

impl Page {
    /// Root page of a tree that holds its own leaf only.
    pub(crate) fn birth() -> Self {
        let leaf = Leaf { key: sha256(SENTINEL_KEY), value: sha256(SENTINEL_VALUE) };
        let mut page = OpenPage::empty();
        page.put(nibble(&leaf.key, 0), Slot::Leaf(leaf), Node { kind: Kind::Leaf, hash: leaf_hash(&leaf) });
        page.rehash(u16::MAX);
        page.close()
    }

    /// Where the inner pages begin in the body.
    fn inners_at(&self) -> usize {
        3 * ones(self.leaf_map)
    }

    /// Where the nodes between slots and top begin, in a body that has them.
    fn between_at(&self) -> usize {
        self.inners_at() + 2 * ones(self.inner_map)
    }

    fn entry(&self, index: usize) -> (Slot, Node) {
        if let Some(r) = rank(self.leaf_map, index)
            && let Some([key, value, hash]) = self.body.get(3 * r..3 * r + 3)
        {
            let leaf = Leaf { key: *key, value: *value };
            return (Slot::Leaf(leaf), Node { kind: Kind::Leaf, hash: *hash });
        }
        if let Some(r) = rank(self.inner_map, index) {
            let at = self.inners_at() + 2 * r;
            if let Some([hash, unit]) = self.body.get(at..at + 2) {
                let version = unit.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                return (Slot::Inner { version }, Node { kind: Kind::Inner, hash: *hash });
            }
        }
        (Slot::Empty, EMPTY_NODE)
    }

    /// What node `at` of row `row` is, from what lies below it.
    fn kind(&self, row: usize, at: usize) -> Kind {
        let width = 16 / row;
        let mask = ((1u32 << width) - 1) << ((at - row) * width);
        let mask = u16::try_from(mask).unwrap_or(u16::MAX);
        match (ones(self.leaf_map & mask), ones(self.inner_map & mask)) {
            (0, 0) => Kind::Empty,
            (1, 0) => Kind::Leaf,
            _ => Kind::Inner,
        }
    }

    pub(crate) fn slot(&self, index: usize) -> Slot {
        self.entry(index).0
    }

    /// Hash that slot `index` stands for.
    pub(crate) fn slot_hash(&self, index: usize) -> Hash {
        self.entry(index).1.hash
    }

    pub(crate) fn root_hash(&self) -> Hash {
        self.top.hash
    }

    fn open(&self) -> OpenPage {
        let mut page = OpenPage::empty();
        for index in 0..16 {
            if (self.leaf_map | self.inner_map) >> index & 1 == 1 {
                let (slot, node) = self.entry(index);
                page.put(index, slot, node);
            }
        }
        match self.body.get(self.between_at()..) {
            Some(between) if between.len() == 15 => {
                for row in [1usize, 2, 4, 8] {
                    for at in row..2 * row {
                        if let (Some(place), Some(hash)) = (page.nodes.get_mut(at), between.get(at - 1)) {
                            *place = Node { kind: self.kind(row, at), hash: *hash };
                        }
                    }
                }
            }
            _ => page.rehash(u16::MAX),
        }
        page
    }

    /// Two 16-bit maps (leaves, inner pages; bit i = slot i, big-endian), then 64 bytes per leaf (key hash, value hash)
    /// or 40 per inner page (hash, version), by slot.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * ones(self.leaf_map) + 40 * ones(self.inner_map) + 4);
        out.extend_from_slice(&self.leaf_map.to_be_bytes());
        out.extend_from_slice(&self.inner_map.to_be_bytes());
        for index in 0..16 {
            match self.entry(index) {
                (Slot::Empty, _) => {}
                (Slot::Leaf(leaf), _) => {
                    out.extend_from_slice(&leaf.key);
                    out.extend_from_slice(&leaf.value);
                }
                (Slot::Inner { version }, node) => {
                    out.extend_from_slice(&node.hash);
                    out.extend_from_slice(&version.to_be_bytes());
                }
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (head, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(*head)
        }
        let mut rest = bytes;
        let leaves = u16::from_be_bytes(take(&mut rest)?);
        let inners = u16::from_be_bytes(take(&mut rest)?);
        if leaves & inners != 0 {
            return None;
        }
        let mut page = OpenPage::empty();
        for i in 0..16 {
            if leaves >> i & 1 == 1 {
                let leaf = Leaf { key: take(&mut rest)?, value: take(&mut rest)? };
                page.put(i, Slot::Leaf(leaf), Node { kind: Kind::Leaf, hash: leaf_hash(&leaf) });
            } else if inners >> i & 1 == 1 {
                let hash = take(&mut rest)?;
                let version = u64::from_be_bytes(take(&mut rest)?);
                page.put(i, Slot::Inner { version }, Node { kind: Kind::Inner, hash });
            }
        }
        if !rest.is_empty() {
            return None;
        }
        page.rehash(u16::MAX);
        Some(page.close())
    }
}

/// Where pages come from.
pub(crate) trait PageSource: Sync {
    /// The page of `module` at `path` written at `version`, or `None` when it is not there.
    fn page(&self, module: u16, path: &Path, version: u64) -> Result<Option<Arc<Page>>, StateError>;
}

/// Reads a page and checks it against the hash its parent states, so a damaged page cannot go unnoticed.
pub(crate) fn load(
    source: &dyn PageSource,
    module: u16,
    path: &Path,
    version: u64,
    hash: &Hash,
) -> Result<Arc<Page>, StateError> {
    let page = source.page(module, path, version)?.ok_or_else(|| {
        StateError::corrupt(format!("tree page {module}/{path:?} of height {version} is missing"))
    })?;
    if page.root_hash() != *hash {
        return Err(StateError::corrupt(format!(
            "tree page {module}/{path:?} of height {version} has another hash"
        )));
    }
    Ok(page)
}

/// One key's change: the new value hash, or `None` to remove.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    pub(crate) key: Hash,
    pub(crate) value: Option<Hash>,
    /// The caller's number for it.
    pub(crate) index: usize,
}

/// What an update did; one that did nothing is not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Inserted,
    Changed,
    Removed,
}

#[derive(Debug)]
pub(crate) struct TreeUpdate {
    pub(crate) root: TreeRoot,
    pub(crate) pages: Vec<(Path, Page)>,
    pub(crate) stale: Vec<(Path, u64)>,
    pub(crate) effects: Vec<(usize, Effect)>,
}

#[derive(Default)]
struct Out {
    pages: Vec<(Path, Page)>,
    stale: Vec<(Path, u64)>,
    effects: Vec<(usize, Effect)>,
}

impl Out {
    fn append(&mut self, mut other: Self) {
        self.pages.append(&mut other.pages);
        self.stale.append(&mut other.stale);
        self.effects.append(&mut other.effects);
    }
}

type SlotChange = (usize, Slot, Node);

/// Applies `updates` (distinct keys, any order) to the tree at `root`; new pages get version `at`.
pub(crate) fn update(
    source: &dyn PageSource,
    module: u16,
    root: TreeRoot,
    at: u64,
    mut updates: Vec<Update>,
    threads: usize,
) -> Result<TreeUpdate, StateError> {
    updates.sort_unstable_by_key(|u| u.key);
    let job = Job { source, module, at };
    let path = Path::default();
    let page = load(source, module, &path, root.version, &root.hash)?;

    // The children of the root are independent: cut the updates into runs of whole slots.
    let pieces = threads.min(updates.len() / MIN_UPDATES_PER_THREAD).max(1);
    let mut runs: Vec<&[Update]> = Vec::with_capacity(pieces);
    let mut rest = updates.as_slice();
    for left in (2..=pieces).rev() {
        let aim = rest.len() / left;
        let Some(last) = rest.get(aim.saturating_sub(1)) else { break };
        let cut = rest.partition_point(|u| nibble(&u.key, 0) <= nibble(&last.key, 0));
        let (run, tail) = rest.split_at(cut);
        runs.push(run);
        rest = tail;
    }
    runs.push(rest);

    let mut out = Out::default();
    let mut changes = Vec::new();
    let page_ref: &Page = &page;
    let job_ref = &job;
    let results: Vec<Result<(Vec<SlotChange>, Out), StateError>> = std::thread::scope(|scope| {
        let mut runs = runs.into_iter();
        let own = runs.next().unwrap_or_default();
        let others: Vec<_> = runs
            .map(|run| {
                scope.spawn(move || {
                    let mut out = Out::default();
                    job_ref.slots(&path, page_ref, run, &mut out).map(|c| (c, out))
                })
            })
            .collect();
        let mut out = Out::default();
        let first = job_ref.slots(&path, page_ref, own, &mut out).map(|c| (c, out));
        std::iter::once(first)
            .chain(others.into_iter().map(|t| {
                t.join().unwrap_or_else(|_| Err(StateError::Engine("a tree thread panicked".into())))
            }))
            .collect()
    });
    for result in results {
        let (mut some, part) = result?;
        changes.append(&mut some);
        out.append(part);
    }

    let mut root = root;
    if let Some(new) = replaced(page_ref, &changes) {
        out.stale.push((path, root.version));
        root = TreeRoot { version: at, hash: new.root_hash() };
        out.pages.push((path, new));
    }
    Ok(TreeUpdate { root, pages: out.pages, stale: out.stale, effects: out.effects })
}

/// `page` with `changes`, or `None` when there are none.
fn replaced(page: &Page, changes: &[SlotChange]) -> Option<Page> {
    if changes.is_empty() {
        return None;
    }
    let mut new = page.open();
    let mut dirty = 0u16;
    for (index, slot, node) in changes {
        new.put(*index, *slot, *node);
        dirty |= 1u16.checked_shl(u32::try_from(*index).unwrap_or(u32::MAX)).unwrap_or(0);
    }
    new.rehash(dirty);
    Some(new.close())
}

struct Job<'a> {
    source: &'a dyn PageSource,
    module: u16,
    at: u64,
}

impl Job<'_> {
    /// Changes that sorted `updates` make to the slots of `page`.
    fn slots(
        &self,
        path: &Path,
        page: &Page,
        updates: &[Update],
        out: &mut Out,
    ) -> Result<Vec<SlotChange>, StateError> {
        let depth = path.depth();
        let mut changes = Vec::new();
        for group in updates.chunk_by(|a, b| nibble(&a.key, depth) == nibble(&b.key, depth)) {
            let Some(first) = group.first() else { continue };
            let index = nibble(&first.key, depth);
            let child = path.child(index);
            let (slot, node) = match page.slot(index) {
                Slot::Inner { version } => {
                    let below = load(self.source, self.module, &child, version, &page.slot_hash(index))?;
                    let changes_below = self.slots(&child, &below, group, out)?;
                    let Some(new) = replaced(&below, &changes_below) else { continue };
                    out.stale.push((child, version));
                    self.attach(child, new, out)
                }
                Slot::Empty => match self.merge(None, group, out) {
                    Some(leaves) => self.build(child, &leaves, out),
                    None => continue,
                },
                Slot::Leaf(leaf) => match self.merge(Some(leaf), group, out) {
                    Some(leaves) => self.build(child, &leaves, out),
                    None => continue,
                },
            };
            changes.push((index, slot, node));
        }
        Ok(changes)
    }

    /// Leaves of a slot that held at most one, after `updates`; `None` when nothing changes.
    fn merge(&self, before: Option<Leaf>, updates: &[Update], out: &mut Out) -> Option<Vec<Leaf>> {
        let mut leaves = Vec::with_capacity(updates.len().saturating_add(1));
        let mut changed = false;
        let mut before = before;
        for update in updates {
            if before.is_some_and(|leaf| leaf.key < update.key) {
                leaves.extend(before.take());
            }
            let old = if before.is_some_and(|leaf| leaf.key == update.key) { before.take() } else { None };
            let effect = match (old, update.value) {
                (None, None) => None,
                (Some(leaf), Some(value)) if leaf.value == value => None,
                (Some(_), Some(_)) => Some(Effect::Changed),
                (Some(_), None) => Some(Effect::Removed),
                (None, Some(_)) => Some(Effect::Inserted),
            };
            if let Some(value) = update.value {
                leaves.push(Leaf { key: update.key, value });
            }
            if let Some(effect) = effect {
                changed = true;
                out.effects.push((update.index, effect));
            }
        }
        leaves.extend(before);
        changed.then_some(leaves)
    }

    /// The slot that holds sorted, distinct `leaves`, which share the nibbles of `path`.
    fn build(&self, path: Path, leaves: &[Leaf], out: &mut Out) -> (Slot, Node) {
        match leaves {
            [] => (Slot::Empty, EMPTY_NODE),
            [leaf] => (Slot::Leaf(*leaf), Node { kind: Kind::Leaf, hash: leaf_hash(leaf) }),
            _ => {
                let depth = path.depth();
                let mut page = OpenPage::empty();
                for group in leaves.chunk_by(|a, b| nibble(&a.key, depth) == nibble(&b.key, depth)) {
                    if let Some(first) = group.first() {
                        let index = nibble(&first.key, depth);
                        let (slot, node) = self.build(path.child(index), group, out);
                        page.put(index, slot, node);
                    }
                }
                page.rehash(u16::MAX);
                self.attach(path, page.close(), out)
            }
        }
    }

    /// Hangs `page` into its parent: a page with fewer than two leaves dissolves into the slot.
    fn attach(&self, path: Path, page: Page, out: &mut Out) -> (Slot, Node) {
        let top = page.top;
        match top.kind {
            Kind::Empty => (Slot::Empty, EMPTY_NODE),
            Kind::Leaf => (0..16)
                .map(|i| page.entry(i))
                .find(|(slot, _)| *slot != Slot::Empty)
                .unwrap_or((Slot::Empty, EMPTY_NODE)),
            Kind::Inner => {
                out.pages.push((path, page));
                (Slot::Inner { version: self.at }, top)
            }
        }
    }
}

/// One hash on the way from a leaf to the root: the sibling, and whether it is on the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) sibling: Hash,
    pub(crate) sibling_is_left: bool,
}

/// What a lookup finds.
pub(crate) enum Found {
    /// The leaf and its way up.
    Present(Vec<Step>),
    /// Key hashes of the neighbours.
    Absent { left: Option<Hash>, right: Option<Hash> },
}

/// Looks `key` up in the tree at `root`.
pub(crate) fn find(
    source: &dyn PageSource,
    module: u16,
    root: TreeRoot,
    key: &Hash,
) -> Result<Found, StateError> {
    // Pages from the root down, each with the slot taken.
    let mut way: Vec<(Path, Arc<Page>, usize)> = Vec::with_capacity(8);
    let mut path = Path::default();
    let (mut version, mut hash) = (root.version, root.hash);
    loop {
        let page = load(source, module, &path, version, &hash)?;
        let index = nibble(key, path.depth());
        let slot = page.slot(index);
        hash = page.slot_hash(index);
        way.push((path, page, index));
        match slot {
            Slot::Inner { version: below } => {
                version = below;
                path = path.child(index);
            }
            Slot::Leaf(leaf) if leaf.key == *key => return Ok(Found::Present(steps(&way))),
            Slot::Leaf(leaf) if leaf.key < *key => {
                let right = neighbour(source, module, &way, Side::Right)?;
                return Ok(Found::Absent { left: Some(leaf.key), right });
            }
            Slot::Leaf(leaf) => {
                let left = neighbour(source, module, &way, Side::Left)?;
                return Ok(Found::Absent { left, right: Some(leaf.key) });
            }
            Slot::Empty => {
                let left = neighbour(source, module, &way, Side::Left)?;
                let right = neighbour(source, module, &way, Side::Right)?;
                return Ok(Found::Absent { left, right });
            }
        }
    }
}

fn steps(way: &[(Path, Arc<Page>, usize)]) -> Vec<Step> {
    let mut out = Vec::with_capacity(way.len().saturating_mul(4));
    for (_, page, index) in way.iter().rev() {
        let page = page.open();
        let mut at = 16 + (index & 15);
        while at > 1 {
            // A lone leaf rises without being hashed.
            if page.node(at / 2).kind == Kind::Inner {
                out.push(Step { sibling: page.node(at ^ 1).hash, sibling_is_left: at % 2 == 1 });
            }
            at /= 2;
        }
    }
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

/// Key hash of the nearest leaf beside the end of `way`.
fn neighbour(
    source: &dyn PageSource,
    module: u16,
    way: &[(Path, Arc<Page>, usize)],
    side: Side,
) -> Result<Option<Hash>, StateError> {
    let occupied = |page: &Page, i: &usize| page.slot(*i) != Slot::Empty;
    for (path, page, index) in way.iter().rev() {
        let beside = match side {
            Side::Left => (0..*index).rev().find(|i| occupied(page, i)),
            Side::Right => (index.saturating_add(1)..16).find(|i| occupied(page, i)),
        };
        let Some(mut index) = beside else { continue };
        let (mut path, mut page) = (*path, page.clone());
        loop {
            match page.slot(index) {
                Slot::Leaf(leaf) => return Ok(Some(leaf.key)),
                Slot::Inner { version } => {
                    let hash = page.slot_hash(index);
                    path = path.child(index);
                    page = load(source, module, &path, version, &hash)?;
                    let next = match side {
                        Side::Left => (0..16).rev().find(|i| occupied(&page, i)),
                        Side::Right => (0..16).find(|i| occupied(&page, i)),
                    };
                    index = next.ok_or_else(|| {
                        StateError::corrupt(format!("tree page {module}/{path:?} is empty"))
                    })?;
                }
                Slot::Empty => return Err(StateError::corrupt("an empty slot was chosen")),
            }
        }
    }
    Ok(None)
}
