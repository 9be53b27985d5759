//! What one call of `prune` removes.

use super::*;

/// What one call of `prune` removes.
pub(super) struct Piece {
    pub(super) batch: OwnedWriteBatch,
    /// Rows it may still take.
    pub(super) left: usize,
    /// Keys that were removed for good, unless they came back: the key, the row of its preimage, the height of the removal.
    pub(super) removed: Vec<(Vec<u8>, Vec<u8>, i64)>,
}

impl Piece {
    pub(super) fn new(batch: OwnedWriteBatch, limit: usize) -> Self {
        Self { batch, left: limit, removed: Vec::new() }
    }

    pub(super) fn spend(&mut self, rows: usize) {
        self.left = self.left.saturating_sub(rows);
    }

    /// Hands the keys listed for `heights` to `each`, oldest first, and shortens the lists by them. Returns the first height that
    /// still has a list.
    pub(super) fn take(
        &mut self,
        lists: &Keyspace,
        heights: std::ops::Range<i64>,
        mut each: impl FnMut(&mut Self, i64, &[u8]) -> Result<(), StateError>,
    ) -> Result<i64, StateError> {
        if heights.is_empty() {
            return Ok(heights.start);
        }
        let rows = table::height_key(heights.start).to_vec()..table::height_key(heights.end).to_vec();
        for row in lists.range(rows) {
            let (at, list) = row.into_inner().map_err(engine)?;
            let height = table::read_height(&at)?;
            if self.left == 0 {
                return Ok(height);
            }
            let keys = table::read_key_list(&list)?;
            let (now, later) = keys.split_at(keys.len().min(self.left));
            for key in now {
                each(self, height, key)?;
            }
            self.spend(now.len().max(1));
            if later.is_empty() {
                self.batch.remove(lists, at);
            } else {
                let mut rest = Vec::with_capacity(list.len());
                later.iter().for_each(|key| table::put_key(&mut rest, key));
                self.batch.insert(lists, at, rest);
                return Ok(height);
            }
        }
        Ok(heights.end)
    }
}

impl DiskStore {
    /// Removes what `height` superseded of `key`: older versions, and a removal that nothing older needs.
    pub(super) fn prune_key(&self, piece: &mut Piece, key: &[u8], height: i64) -> Result<(), StateError> {
        let tables = &*self.0.tables;
        let all = table::version_key(key, i64::MAX)..=table::version_key(key, 0);
        for (nth, row) in tables.versions.range(all).enumerate() {
            let (row_key, value) = row.into_inner().map_err(engine)?;
            let (_, at) = table::split_version_key(&row_key)?;
            let gone = at == height && table::read_version_value(&value)?.is_none();
            if gone && nth == 0 {
                let (module, rest) = self.0.modules.split(key)?;
                let preimage = table::preimage_key(module, &crate::state::tree::sha256(rest));
                piece.removed.push((key.to_vec(), preimage, height));
            }
            if at < height || gone {
                piece.batch.remove(&tables.versions, row_key);
            }
        }
        Ok(())
    }

    /// Height of the last change of `key`.
    pub(super) fn newest_version(&self, key: &[u8]) -> Result<Option<i64>, StateError> {
        let all = table::version_key(key, i64::MAX)..=table::version_key(key, 0);
        let Some(row) = self.0.tables.versions.range(all).next() else { return Ok(None) };
        let key = row.key().map_err(engine)?;
        Ok(Some(table::split_version_key(&key)?.1))
    }
}
