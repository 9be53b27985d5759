//! Where a collection lives.

/// First byte of every transient key. No module name starts with it, so transient rows never reach the disk.
pub const TRANSIENT_SPACE: u8 = b'~';

/// A collection's place: module space, one byte, and a name for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Module name.
    pub space: &'static str,
    /// Collection byte; never reused within a module.
    pub id: u8,
    /// Collection name for docs, errors and debugging.
    pub name: &'static str,
}

impl Prefix {
    /// A prefix in module `space`.
    pub const fn new(space: &'static str, id: u8, name: &'static str) -> Self {
        Self { space, id, name }
    }

    /// `space ‖ "/" ‖ id`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(self.space.as_bytes());
        out.push(b'/');
        out.push(self.id);
        out
    }
}

/// Stops the build when two rows of a module's prefix table share a byte. Use as
/// `const _: () = assert_distinct(TABLE);`.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::panic)] // const evaluation only
pub const fn assert_distinct(table: &[Prefix]) {
    let mut i = 0;
    while i < table.len() {
        let mut j = i + 1;
        while j < table.len() {
            assert!(table[i].id != table[j].id, "duplicate collection prefix");
            j += 1;
        }
        i += 1;
    }
}
