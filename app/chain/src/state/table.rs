//! Rows of the disk store: key and value encodings, all big-endian so that byte order is numeric order.

use super::tree::{Hash, Path};
use super::{StateError, TreeRoot};

/// Version of everything in this file and of the page encoding.
pub(super) const FORMAT: u32 = 1;

/// Rows that begin with this byte are ours, not the state's: no module name begins with it.
pub(super) const MARKER_KEY: &[u8] = &[0];

/// End of an escaped key. Sorts below every continuation, so a key sorts before its extensions.
const END: [u8; 2] = [0, 1];
/// What a zero byte inside a key becomes.
const ESCAPED_ZERO: [u8; 2] = [0, 0xff];

/// `escape(key) ‖ 00 01`: order-preserving and self-delimiting; all versions of a key share it.
pub(super) fn version_prefix(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len().saturating_add(16));
    for byte in key {
        if *byte == 0 {
            out.extend_from_slice(&ESCAPED_ZERO);
        } else {
            out.push(*byte);
        }
    }
    out.extend_from_slice(&END);
    out
}

/// Row of a key's value at a height: the prefix and the height's complement, so the newest comes first.
pub(super) fn version_key(key: &[u8], height: i64) -> Vec<u8> {
    let mut out = version_prefix(key);
    out.extend_from_slice(&descending(height));
    out
}

pub(super) fn descending(height: i64) -> [u8; 8] {
    (!height.cast_unsigned()).to_be_bytes()
}

/// Prefix and height of a version row's key.
pub(super) fn split_version_key(row: &[u8]) -> Result<(&[u8], i64), StateError> {
    let (prefix, height) =
        row.split_last_chunk::<8>().ok_or_else(|| StateError::corrupt("a version row has a short key"))?;
    Ok((prefix, (!u64::from_be_bytes(*height)).cast_signed()))
}

/// The key behind a prefix.
pub(super) fn unescape(prefix: &[u8]) -> Result<Vec<u8>, StateError> {
    let bad = || StateError::corrupt("a version row has a malformed key");
    let body = prefix.strip_suffix(&END).ok_or_else(bad)?;
    let mut out = Vec::with_capacity(body.len());
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        if *byte == 0 && bytes.next() != Some(&0xff) {
            return Err(bad());
        }
        out.push(*byte);
    }
    Ok(out)
}

/// `01 ‖ value`, or `00` for a removed key.
pub(super) fn version_value(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        Some(value) => {
            let mut out = Vec::with_capacity(value.len().saturating_add(1));
            out.push(1);
            out.extend_from_slice(value);
            out
        }
        None => vec![0],
    }
}

pub(super) fn read_version_value(row: &[u8]) -> Result<Option<&[u8]>, StateError> {
    match row {
        [0] => Ok(None),
        [1, value @ ..] => Ok(Some(value)),
        _ => Err(StateError::corrupt("a version row has a malformed value")),
    }
}

/// `version ‖ module ‖ path`: new pages sort last, so writing them merges nothing.
pub(super) fn page_key(module: u16, path: &Path, version: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(48);
    put_page_key(&mut out, module, path, version);
    out
}

/// Replaces `out` by a page key.
pub(super) fn put_page_key(out: &mut Vec<u8>, module: u16, path: &Path, version: u64) {
    out.clear();
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&module.to_be_bytes());
    path.encode(out);
}

/// `module ‖ key hash`.
pub(super) fn preimage_key(module: u16, key_hash: &Hash) -> Vec<u8> {
    let mut out = Vec::with_capacity(34);
    out.extend_from_slice(&module.to_be_bytes());
    out.extend_from_slice(key_hash);
    out
}

pub(super) fn height_key(height: i64) -> [u8; 8] {
    height.cast_unsigned().to_be_bytes()
}

pub(super) fn read_height(bytes: &[u8]) -> Result<i64, StateError> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| StateError::corrupt("a height row is malformed"))?;
    Ok(u64::from_be_bytes(bytes).cast_signed())
}

/// Commit record: `app hash`, then `version ‖ root` per module by number. Modules that came in later have none.
pub(super) fn commit_record(app_hash: &Hash, roots: &[TreeRoot]) -> Vec<u8> {
    let mut out = Vec::with_capacity(roots.len().saturating_mul(40).saturating_add(32));
    out.extend_from_slice(app_hash);
    for root in roots {
        out.extend_from_slice(&root.version.to_be_bytes());
        out.extend_from_slice(&root.hash);
    }
    out
}

/// `modules` is how many there are by now.
pub(super) fn read_commit_record(row: &[u8], modules: usize) -> Result<(Hash, Vec<TreeRoot>), StateError> {
    let bad = || StateError::corrupt("a commit record is malformed");
    let (app_hash, mut rest) = row.split_first_chunk::<32>().ok_or_else(bad)?;
    let mut roots = Vec::with_capacity(modules);
    while let Some((version, tail)) = rest.split_first_chunk::<8>() {
        let (hash, tail) = tail.split_first_chunk::<32>().ok_or_else(bad)?;
        roots.push(TreeRoot { version: u64::from_be_bytes(*version), hash: *hash });
        rest = tail;
    }
    if !rest.is_empty() || roots.is_empty() || roots.len() > modules {
        return Err(bad());
    }
    Ok((*app_hash, roots))
}

/// Appends a key to a list: each stands behind its length in four bytes.
pub(super) fn put_key(list: &mut Vec<u8>, key: &[u8]) {
    list.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes());
    list.extend_from_slice(key);
}

pub(super) fn read_key_list(row: &[u8]) -> Result<Vec<&[u8]>, StateError> {
    let bad = || StateError::corrupt("a list of keys is malformed");
    let mut rest = row;
    let mut out = Vec::new();
    while let Some((len, tail)) = rest.split_first_chunk::<4>() {
        let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| bad())?;
        let (key, tail) = tail.split_at_checked(len).ok_or_else(bad)?;
        out.push(key);
        rest = tail;
    }
    if rest.is_empty() { Ok(out) } else { Err(bad()) }
}
