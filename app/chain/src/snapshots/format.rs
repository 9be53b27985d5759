//! The bytes of format 1: metadata and stream, both ways.

use sha2::{Digest, Sha256};

use super::{CHUNK_BYTES, METADATA_BYTES_MAX, SnapshotError, VALUE_BYTES_MAX};
use crate::genesis::INITIAL_HEIGHT_MAX;
use crate::state::{MAX_KEY_BYTES, module_map_root};

const MAGIC: &[u8; 16] = b"holdfast.snap.v1";
/// Shortest chunk of a snapshot with more than one.
const CHUNK_BYTES_MIN: u32 = 64;
const CHAIN_ID_MAX: usize = 50;
const MODULE_NAME_MAX: usize = 64;

const ITEM: u8 = 1;
const MODULE_END: u8 = 0;

pub(super) type Hash = [u8; 32];

pub(super) fn sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// A module and the root of its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleRoot {
    /// Name.
    pub name: String,
    /// Root hash of its tree.
    pub root: [u8; 32],
}

/// What a snapshot says of itself; see the module's documentation for the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Chain id.
    pub chain_id: String,
    /// Height, from 1 up.
    pub height: i64,
    /// App hash after that height.
    pub app_hash: [u8; 32],
    /// Modules by name, each with the root of its tree.
    pub modules: Vec<ModuleRoot>,
    /// Number of keys.
    pub items: u64,
    /// Length of the stream, the sum of all chunks.
    pub bytes: u64,
    /// Length of every chunk but the last.
    pub chunk_bytes: u32,
    /// SHA-256 of each chunk.
    pub chunks: Vec<[u8; 32]>,
}

impl Metadata {
    /// The bytes.
    ///
    /// # Errors
    /// `TooLarge` when there are more than [`METADATA_BYTES_MAX`], or the height is none that a chain can go on from.
    pub fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        let too_large = |what: &str| SnapshotError::TooLarge { what: what.to_owned() };
        if self.height >= INITIAL_HEIGHT_MAX {
            return Err(too_large("height"));
        }
        let mut out = Vec::with_capacity(self.chunks.len().saturating_mul(32).saturating_add(1024));
        out.extend_from_slice(MAGIC);
        put_text(&mut out, &self.chain_id, CHAIN_ID_MAX).ok_or_else(|| too_large("chain id"))?;
        out.extend_from_slice(&self.height.to_be_bytes());
        out.extend_from_slice(&self.app_hash);
        let modules = u16::try_from(self.modules.len()).map_err(|_| too_large("number of modules"))?;
        out.extend_from_slice(&modules.to_be_bytes());
        for module in &self.modules {
            put_text(&mut out, &module.name, MODULE_NAME_MAX).ok_or_else(|| too_large("module name"))?;
            out.extend_from_slice(&module.root);
        }
        out.extend_from_slice(&self.items.to_be_bytes());
        out.extend_from_slice(&self.bytes.to_be_bytes());
        out.extend_from_slice(&self.chunk_bytes.to_be_bytes());
        let chunks = u32::try_from(self.chunks.len()).map_err(|_| too_large("number of chunks"))?;
        out.extend_from_slice(&chunks.to_be_bytes());
        self.chunks.iter().for_each(|hash| out.extend_from_slice(hash));
        let seal = sha256(&out);
        out.extend_from_slice(&seal);
        if out.len() > METADATA_BYTES_MAX {
            let text = format!("{chunks} chunks need more than {METADATA_BYTES_MAX} bytes of metadata");
            return Err(SnapshotError::TooLarge { what: text });
        }
        Ok(out)
    }

    /// Reads metadata and checks it against itself: the hash at its end, limits, order of the modules, their roots against the app hash,
    /// the number of chunks against the length of the stream.
    ///
    /// # Errors
    /// `Malformed`, with what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.len() > METADATA_BYTES_MAX {
            return Err(SnapshotError::malformed(format!("metadata: over {METADATA_BYTES_MAX} bytes")));
        }
        // No other field has a second opinion on the height.
        let (fields, seal) = bytes.split_last_chunk::<32>().unwrap_or((bytes, &[0; 32]));
        if !fields.starts_with(MAGIC) {
            return Err(SnapshotError::malformed("metadata: is none of this format"));
        }
        if sha256(fields) != *seal {
            return Err(SnapshotError::malformed("metadata: the hash at its end is not that of its bytes"));
        }
        let metadata =
            Self::read(fields).ok_or_else(|| SnapshotError::malformed("metadata: cannot be read"))?;
        metadata.check()?;
        Ok(metadata)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        if take::<16>(&mut rest)? != *MAGIC {
            return None;
        }
        let chain_id = take_text(&mut rest)?;
        let height = i64::from_be_bytes(take(&mut rest)?);
        let app_hash = take(&mut rest)?;
        let count = u16::from_be_bytes(take(&mut rest)?);
        let mut modules = Vec::new();
        for _ in 0..count {
            modules.push(ModuleRoot { name: take_text(&mut rest)?, root: take(&mut rest)? });
        }
        let items = u64::from_be_bytes(take(&mut rest)?);
        let stream = u64::from_be_bytes(take(&mut rest)?);
        let chunk_bytes = u32::from_be_bytes(take(&mut rest)?);
        let count = usize::try_from(u32::from_be_bytes(take(&mut rest)?)).ok()?;
        let (chunks, tail) = rest.as_chunks::<32>();
        let whole = tail.is_empty() && chunks.len() == count;
        let chunks = chunks.to_vec();
        whole.then_some(Self {
            chain_id,
            height,
            app_hash,
            modules,
            items,
            bytes: stream,
            chunk_bytes,
            chunks,
        })
    }

    fn check(&self) -> Result<(), SnapshotError> {
        let bad = |what: &str| Err(SnapshotError::malformed(format!("metadata: {what}")));
        if !(1..=CHAIN_ID_MAX).contains(&self.chain_id.len()) {
            return bad("chain id has not 1 to 50 bytes");
        }
        if !(1..INITIAL_HEIGHT_MAX).contains(&self.height) {
            return bad("height is out of range");
        }
        let ordered = self.modules.windows(2).all(|pair| matches!(pair, [a, b] if a.name < b.name));
        if self.modules.is_empty() || !ordered {
            return bad("modules are not distinct and in order");
        }
        if self.modules.iter().any(|m| !(1..=MODULE_NAME_MAX).contains(&m.name.len())) {
            return bad("a module name has not 1 to 64 bytes");
        }
        if module_map_root(self.modules.iter().map(|m| (m.name.as_str(), m.root))) != self.app_hash {
            return bad("the modules' roots do not give the app hash");
        }
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES).contains(&self.chunk_bytes) {
            return bad("length of a chunk is out of range");
        }
        let chunks = self.bytes.div_ceil(u64::from(self.chunk_bytes));
        if self.bytes == 0 || u64::try_from(self.chunks.len()).ok() != Some(chunks) {
            return bad("number of chunks does not fit the length of the stream");
        }
        Ok(())
    }

    /// Length of chunk `index`; `None` when there is none.
    pub fn chunk_len(&self, index: u32) -> Option<usize> {
        let at = usize::try_from(index).ok()?;
        self.chunks.get(at)?;
        let before = u64::from(index).checked_mul(u64::from(self.chunk_bytes))?;
        let left = self.bytes.checked_sub(before)?;
        usize::try_from(left.min(u64::from(self.chunk_bytes))).ok()
    }

    /// Module names, in order.
    pub fn module_names(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(|m| m.name.as_str())
    }
}

fn put_text(out: &mut Vec<u8>, text: &str, most: usize) -> Option<()> {
    let length = u8::try_from(text.len()).ok().filter(|_| text.len() <= most)?;
    out.push(length);
    out.extend_from_slice(text.as_bytes());
    Some(())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// Printable ASCII behind its length.
fn take_text(rest: &mut &[u8]) -> Option<String> {
    let [length] = take::<1>(rest)?;
    let (text, tail) = rest.split_at_checked(usize::from(length))?;
    *rest = tail;
    let text = std::str::from_utf8(text).ok()?;
    text.bytes().all(|b| b.is_ascii_graphic()).then(|| text.to_owned())
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let mut left = length;
    while left >= 0x80 {
        out.push(u8::try_from(left & 0x7f).unwrap_or(0) | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).unwrap_or(0));
}

/// Appends the row of `key`, without its value, which follows. `previous` is the key before it in the module.
pub(super) fn put_item(out: &mut Vec<u8>, previous: &[u8], key: &[u8], value_len: usize) {
    let shared = previous.iter().zip(key).take_while(|(a, b)| a == b).count();
    let rest = key.get(shared..).unwrap_or_default();
    out.push(ITEM);
    put_length(out, shared);
    put_length(out, rest.len());
    out.extend_from_slice(rest);
    put_length(out, value_len);
}

/// Appends the end of a module of `count` keys.
pub(super) fn put_module_end(out: &mut Vec<u8>, count: u64) {
    out.push(MODULE_END);
    out.extend_from_slice(&count.to_be_bytes());
}

/// What the stream holds next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row<'a> {
    /// A key and its value.
    Item { module: usize, key: &'a [u8], value: &'a [u8] },
    /// The module is complete.
    ModuleEnd { module: usize },
}

/// Why reading ends early.
#[derive(Debug)]
enum Stop {
    /// More bytes are needed.
    Short,
    /// No stream of this format.
    Bad(&'static str),
}

/// Reads a stream piece by piece. Keeps at most one unfinished row.
#[derive(Debug)]
pub(super) struct Reader {
    modules: usize,
    module: usize,
    /// Last key of the module, empty before the first.
    key: Vec<u8>,
    /// Keys of the module so far.
    count: u64,
    items: u64,
    /// The unfinished row.
    rest: Vec<u8>,
}

impl Reader {
    pub(super) fn new(modules: usize) -> Self {
        Self { modules, module: 0, key: Vec::new(), count: 0, items: 0, rest: Vec::new() }
    }

    /// Reads on; `each` gets every complete row.
    ///
    /// # Errors
    /// `Malformed`, or what `each` gives.
    pub(super) fn feed(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(Row<'_>) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let before = left;
            match self.row(&mut left) {
                Ok(Some(value)) => {
                    each(Row::Item { module: self.module, key: &self.key, value })?;
                }
                Ok(None) => {
                    each(Row::ModuleEnd { module: self.module })?;
                    self.module = self.module.saturating_add(1);
                    self.key.clear();
                    self.count = 0;
                }
                Err(Stop::Short) => {
                    self.rest = before.to_vec();
                    return Ok(());
                }
                Err(Stop::Bad(what)) => return Err(SnapshotError::malformed(format!("stream: {what}"))),
            }
        }
        Ok(())
    }

    /// Checks that the stream ended where a stream ends; returns the number of keys.
    ///
    /// # Errors
    /// `Malformed`.
    pub(super) fn finish(&self) -> Result<u64, SnapshotError> {
        if self.module < self.modules || !self.rest.is_empty() {
            return Err(SnapshotError::malformed("stream: ends before its last module does"));
        }
        Ok(self.items)
    }

    /// One row: the value of an item, whose key is then in `self.key`, or `None` at a module's end. Nothing changes
    /// when it is not all there.
    fn row<'a>(&mut self, left: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Stop> {
        if self.module >= self.modules {
            return Err(Stop::Bad("goes on behind its last module"));
        }
        let [tag] = take::<1>(left).ok_or(Stop::Short)?;
        if tag == MODULE_END {
            let count = u64::from_be_bytes(take(left).ok_or(Stop::Short)?);
            return if count == self.count { Ok(None) } else { Err(Stop::Bad("miscounts a module's keys")) };
        }
        if tag != ITEM {
            return Err(Stop::Bad("has a row of no known kind"));
        }
        let shared = length(left, self.key.len(), "shares more of a key than there is")?;
        let rest = length(left, MAX_KEY_BYTES.saturating_sub(shared), "has a key that is too long")?;
        let (rest, tail) = left.split_at_checked(rest).ok_or(Stop::Short)?;
        *left = tail;
        let first = *rest.first().ok_or(Stop::Bad("has a key twice"))?;
        // Ascending, and not one byte more could be shared.
        if self.key.get(shared).is_some_and(|before| *before >= first) {
            return Err(Stop::Bad("has keys out of order"));
        }
        let most = usize::try_from(VALUE_BYTES_MAX).unwrap_or(usize::MAX);
        let value = length(left, most, "has a value that is too long")?;
        let (value, tail) = left.split_at_checked(value).ok_or(Stop::Short)?;
        *left = tail;
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        self.count = self.count.saturating_add(1);
        self.items = self.items.saturating_add(1);
        Ok(Some(value))
    }
}

/// A length of at most `most` in its shortest form.
fn length(left: &mut &[u8], most: usize, too_much: &'static str) -> Result<usize, Stop> {
    let mut value = 0u64;
    for shift in [0u32, 7, 14, 21, 28] {
        let [byte] = take::<1>(left).ok_or(Stop::Short)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err(Stop::Bad("has a length that is not in its shortest form"));
            }
            return usize::try_from(value).ok().filter(|v| *v <= most).ok_or(Stop::Bad(too_much));
        }
    }
    Err(Stop::Bad("has a length that is not in its shortest form"))
}
