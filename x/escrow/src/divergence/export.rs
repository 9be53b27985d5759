//! Everything at once, for moving a gateway.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_store::{KvRead, KvWrite, Order, StoreError, successor};

use super::journal::{AUDIT_NUMBERS, AUDIT_ROWS, AUDITS_KEPT, CHANGE_NUMBERS, CHANGE_ROWS, CHANGES_KEPT};
use super::keeper::{EVIDENCE_ROWS, FLAG_ROWS, HISTORY_ROWS};
use super::{AuditRow, DivergenceError, DivergenceFlag, Evidence, FlagChange, History, PREFIXES, Subject};
use crate::repair::{RepairConfig, RepairState};

/// Every row of a store. Its borsh bytes are the format of an export file.
#[derive(Debug, Clone, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub struct Export {
    /// By escrow and participant.
    pub flags: Vec<DivergenceFlag>,
    /// By escrow and participant.
    pub histories: Vec<(Subject, History)>,
    /// By escrow, participant and number.
    pub evidence: Vec<(Subject, u32, Evidence)>,
    /// By number.
    pub changes: Vec<(u64, FlagChange)>,
    /// Number of the last change.
    pub last_change: u64,
    /// By number.
    pub audits: Vec<(u64, AuditRow)>,
    /// Number of the last audit row.
    pub last_audit: u64,
}

/// Reads every row.
pub fn export(store: &dyn KvRead) -> Result<Export, DivergenceError> {
    let subject = |(escrow_id, participant)| Subject { escrow_id, participant };
    Ok(Export {
        flags: FLAG_ROWS
            .iter(store, Order::Ascending)
            .map(|row| row.map(|(_, flag)| flag))
            .collect::<Result<_, StoreError>>()?,
        histories: HISTORY_ROWS
            .iter(store, Order::Ascending)
            .map(|row| row.map(|(key, history)| (subject(key), history)))
            .collect::<Result<_, StoreError>>()?,
        evidence: EVIDENCE_ROWS
            .iter(store, Order::Ascending)
            .map(|row| row.map(|((escrow, who, number), row)| (subject((escrow, who)), number, row)))
            .collect::<Result<_, StoreError>>()?,
        changes: CHANGE_ROWS.iter(store, Order::Ascending).collect::<Result<_, StoreError>>()?,
        last_change: CHANGE_NUMBERS.peek(store)?,
        audits: AUDIT_ROWS.iter(store, Order::Ascending).collect::<Result<_, StoreError>>()?,
        last_audit: AUDIT_NUMBERS.peek(store)?,
    })
}

/// Writes every row into an empty store.
///
/// # Errors
/// `NotEmpty`; `Import` for rows out of order or twice, a flag without the history of its generation or with a repair
/// that no step leads to, evidence that its history does not count, and journals that are longer than what is kept or do not end in their last number.
pub fn import(store: &mut dyn KvWrite, export: &Export) -> Result<(), DivergenceError> {
    for prefix in PREFIXES {
        let start = prefix.bytes();
        if store.scan(&start, successor(&start).as_deref(), Order::Ascending).next().transpose()?.is_some() {
            return Err(DivergenceError::NotEmpty);
        }
    }
    check(export)?;
    for flag in &export.flags {
        FLAG_ROWS.set(store, &flag.subject.key(), flag)?;
    }
    for (subject, history) in &export.histories {
        HISTORY_ROWS.set(store, &subject.key(), history)?;
    }
    for (subject, number, row) in &export.evidence {
        EVIDENCE_ROWS.set(store, &(subject.escrow_id, subject.participant, *number), row)?;
    }
    for (seq, change) in &export.changes {
        CHANGE_ROWS.set(store, seq, change)?;
    }
    for (seq, row) in &export.audits {
        AUDIT_ROWS.set(store, seq, row)?;
    }
    if export.last_change > 0 {
        CHANGE_NUMBERS.set(store, export.last_change)?;
    }
    if export.last_audit > 0 {
        AUDIT_NUMBERS.set(store, export.last_audit)?;
    }
    Ok(())
}

fn check(export: &Export) -> Result<(), DivergenceError> {
    let wrong = |what: &str| Err(DivergenceError::Import(what.into()));
    let ascending = export.flags.is_sorted_by(|a, b| a.subject < b.subject)
        && export.histories.is_sorted_by(|a, b| a.0 < b.0)
        && export.evidence.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1));
    if !ascending {
        return wrong("rows are out of order or twice");
    }
    let history = |subject: &Subject| {
        let at = export.histories.binary_search_by(|(other, _)| other.cmp(subject)).ok()?;
        export.histories.get(at).map(|(_, history)| history)
    };
    if export.flags.iter().any(|f| history(&f.subject).is_none_or(|h| h.generation != f.generation)) {
        return wrong("a flag has no history of its generation");
    }
    let sound = |repair: &RepairState| {
        repair.attempt > 0
            && repair.level <= RepairConfig::TOP_LEVEL
            && (1..=RepairConfig::MAX_CHUNK_DIFFS).contains(&repair.chunk_diffs)
    };
    if !export.flags.iter().all(|flag| sound(&flag.repair)) {
        return wrong("a repair is out of range");
    }
    if export.evidence.iter().any(|(subject, n, _)| history(subject).is_none_or(|h| *n >= h.evidence)) {
        return wrong("evidence without a history that counts it");
    }
    let changes = export.changes.iter().map(|(seq, _)| *seq);
    let audits = export.audits.iter().map(|(seq, _)| *seq);
    if !runs_to(changes, export.last_change, CHANGES_KEPT) || !runs_to(audits, export.last_audit, AUDITS_KEPT)
    {
        return wrong("a journal has gaps, or does not end in its last number");
    }
    export.audits.iter().try_for_each(|(_, row)| row.check())
}

/// Whether `numbers` are exactly the last `kept` ones up to `last`.
fn runs_to(numbers: impl Iterator<Item = u64>, last: u64, kept: u64) -> bool {
    numbers.eq(last.saturating_sub(kept).saturating_add(1)..=last)
}
