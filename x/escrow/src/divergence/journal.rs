//! What the whole gateway numbers: changes of flags, and what operators asked for.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::{KvRead, KvWrite, Map, Sequence};

use super::keys::{AUDIT_SEQ, AUDITS, CHANGE_SEQ, CHANGES};
use super::{AuditRow, DivergenceError, FlagChange};

/// Changes that are kept.
pub const CHANGES_KEPT: u64 = 10_000;
/// Rows of the audit log that are kept.
pub const AUDITS_KEPT: u64 = 100_000;

pub(super) const CHANGE_ROWS: Map<u64, FlagChange> = Map::new(CHANGES);
pub(super) const CHANGE_NUMBERS: Sequence = Sequence::new(CHANGE_SEQ);
pub(super) const AUDIT_ROWS: Map<u64, AuditRow> = Map::new(AUDITS);
pub(super) const AUDIT_NUMBERS: Sequence = Sequence::new(AUDIT_SEQ);

/// Two bounded logs, each with a sequence of its own that ascends from 1 without a gap. Sessions that write at one time
/// hand their rows to a single writer, or two would take one number.
#[derive(Debug, Clone, Copy, Default)]
pub struct DivergenceJournal;

fn append<V: BorshSerialize + BorshDeserialize>(
    store: &mut dyn KvWrite,
    rows: &Map<u64, V>,
    numbers: &Sequence,
    kept: u64,
    row: &V,
) -> Result<u64, DivergenceError> {
    let seq = numbers.next(store)?.saturating_add(1);
    rows.set(store, &seq, row)?;
    if let Some(oldest) = seq.checked_sub(kept).filter(|seq| *seq > 0) {
        rows.remove(store, &oldest)?;
    }
    Ok(seq)
}

fn page<V: BorshSerialize + BorshDeserialize>(
    store: &dyn KvRead,
    rows: &Map<u64, V>,
    from: u64,
    limit: usize,
) -> Result<Vec<(u64, V)>, DivergenceError> {
    let after = from.checked_sub(1);
    Ok(rows.after(store, after.as_ref()).take(limit.min(1_000)).collect::<Result<_, _>>()?)
}

impl DivergenceJournal {
    /// Appends a change; returns its number. Only the last [`CHANGES_KEPT`] stay.
    pub fn append(&self, store: &mut dyn KvWrite, change: &FlagChange) -> Result<u64, DivergenceError> {
        append(store, &CHANGE_ROWS, &CHANGE_NUMBERS, CHANGES_KEPT, change)
    }

    /// Changes from number `from` on (0 or a number that is gone: from the oldest kept), at most `limit` and 1 000.
    pub fn changes(
        &self,
        store: &dyn KvRead,
        from: u64,
        limit: usize,
    ) -> Result<Vec<(u64, FlagChange)>, DivergenceError> {
        page(store, &CHANGE_ROWS, from, limit)
    }

    /// Number of the last change; 0 = none yet.
    pub fn last_change(&self, store: &dyn KvRead) -> Result<u64, DivergenceError> {
        Ok(CHANGE_NUMBERS.peek(store)?)
    }

    /// Writes what an operator asks for; returns its number. Make it durable before the verb takes effect. Only the last
    /// [`AUDITS_KEPT`] stay.
    ///
    /// # Errors
    /// `Field` for an operator or reason of a wrong length.
    pub fn audit(&self, store: &mut dyn KvWrite, row: &AuditRow) -> Result<u64, DivergenceError> {
        row.check()?;
        append(store, &AUDIT_ROWS, &AUDIT_NUMBERS, AUDITS_KEPT, row)
    }

    /// Rows of the audit log from number `from` on, at most `limit` and 1 000.
    pub fn audits(
        &self,
        store: &dyn KvRead,
        from: u64,
        limit: usize,
    ) -> Result<Vec<(u64, AuditRow)>, DivergenceError> {
        page(store, &AUDIT_ROWS, from, limit)
    }
}

impl AuditRow {
    /// Checks the lengths of operator and reason.
    pub(super) fn check(&self) -> Result<(), DivergenceError> {
        if !(1..=128).contains(&self.operator.len()) {
            return Err(DivergenceError::Field { field: "operator", rule: "1 to 128 bytes" });
        }
        if !(1..=512).contains(&self.reason.len()) {
            return Err(DivergenceError::Field { field: "reason", rule: "1 to 512 bytes" });
        }
        Ok(())
    }
}
