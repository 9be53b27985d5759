//! Flags, histories and evidence. The keeper holds no state.

use holdfast_store::{KvRead, KvWrite, Map, Order};
use holdfast_types::Address;

use super::keys::{EVIDENCE, FLAGS, HISTORIES};
use super::{
    DivergenceError, DivergenceFlag, EVIDENCE_KEPT, Evidence, EvidenceKind, FlagChange, History, Subject,
};
use crate::repair::{
    Effect, LogStage, Outcome, RepairConfig, RepairContext, RepairEvent, RepairPhase, RepairState, step,
};

pub(super) const FLAG_ROWS: Map<(u64, Address), DivergenceFlag> = Map::new(FLAGS);
pub(super) const HISTORY_ROWS: Map<(u64, Address), History> = Map::new(HISTORIES);
pub(super) const EVIDENCE_ROWS: Map<(u64, Address, u32), Evidence> = Map::new(EVIDENCE);

/// Flags of one page, at most.
pub const PAGE_MAX: usize = 100;
/// Rows that one page looks at, at most.
const SCAN_MAX: usize = 10_000;

/// What is true at a step beside the stored rows.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The operator's choices.
    pub config: &'a RepairConfig,
    /// The session's phase is Active.
    pub active: bool,
    /// Our last nonce.
    pub tip: u64,
    /// We doubt ourselves: no new flags.
    pub self_suspect: bool,
    /// More than half of the slot weight is out of our reach.
    pub majority_unreachable: bool,
    /// Monotonic ms since the last step of this subject in this process; 0 for the first.
    pub since_ms: u64,
    /// Unix ms: for rows that people read, and for the hour after a restore.
    pub at_ms: u64,
}

/// What a step led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The flag from now on; `None` = not flagged.
    pub flag: Option<DivergenceFlag>,
    /// What to do once the writes are durable, in this order.
    pub effects: Vec<Effect>,
    /// Changes for the log and for [`super::DivergenceJournal::append`].
    pub changes: Vec<FlagChange>,
}

/// Some flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagPage {
    /// By escrow and participant.
    pub flags: Vec<DivergenceFlag>,
    /// Where the next page goes on (exclusive); `None` = the end.
    pub next: Option<Subject>,
}

/// Access to the rows of [`super`].
#[derive(Debug, Clone, Copy, Default)]
pub struct DivergenceKeeper;

impl DivergenceKeeper {
    /// The flag of a participant.
    pub fn flag(
        &self,
        store: &dyn KvRead,
        subject: &Subject,
    ) -> Result<Option<DivergenceFlag>, DivergenceError> {
        Ok(FLAG_ROWS.get(store, &subject.key())?)
    }

    /// Its history; zeros if it was never flagged.
    pub fn history(&self, store: &dyn KvRead, subject: &Subject) -> Result<History, DivergenceError> {
        Ok(HISTORY_ROWS.get(store, &subject.key())?.unwrap_or_default())
    }

    /// Its evidence, oldest first: at most [`EVIDENCE_KEPT`] rows.
    pub fn evidence(&self, store: &dyn KvRead, subject: &Subject) -> Result<Vec<Evidence>, DivergenceError> {
        let rows = EVIDENCE_ROWS.prefix(store, &subject.key(), Order::Ascending);
        Ok(rows.map(|row| row.map(|(_, evidence)| evidence)).collect::<Result<_, _>>()?)
    }

    /// Every flag of an escrow, by participant: at most one per slot.
    pub fn flags(&self, store: &dyn KvRead, escrow_id: u64) -> Result<Vec<DivergenceFlag>, DivergenceError> {
        let rows = FLAG_ROWS.prefix(store, &escrow_id, Order::Ascending);
        Ok(rows.map(|row| row.map(|(_, flag)| flag)).collect::<Result<_, _>>()?)
    }

    /// Flags after `after`, of one escrow or of all, in one phase or in any; at most `limit` and [`PAGE_MAX`].
    pub fn page(
        &self,
        store: &dyn KvRead,
        escrow_id: Option<u64>,
        phase: Option<RepairPhase>,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<FlagPage, DivergenceError> {
        let limit = limit.clamp(1, PAGE_MAX);
        let mut page = FlagPage { flags: Vec::new(), next: None };
        let key = after.map(Subject::key);
        let rows: Box<dyn Iterator<Item = _> + '_> = match &escrow_id {
            Some(escrow_id) => Box::new(FLAG_ROWS.prefix_after(store, escrow_id, key.as_ref())),
            None => Box::new(FLAG_ROWS.after(store, key.as_ref())),
        };
        let mut last = None;
        for (scanned, row) in rows.enumerate() {
            let (_, flag) = row?;
            if page.flags.len() >= limit || scanned >= SCAN_MAX {
                page.next = last;
                break;
            }
            last = Some(flag.subject);
            if phase.is_none_or(|phase| phase == flag.repair.phase) {
                page.flags.push(flag);
            }
        }
        Ok(page)
    }

    /// One step of a subject's repair, and the writes that belong to it. `evidence` is what the event brought: a flag is
    /// not raised without, and later evidence is kept as it comes.
    ///
    /// # Errors
    /// `Repair` for a verb that does not apply, `NoEvidence`, `Store`. The caller then drops the writes.
    pub fn advance(
        &self,
        store: &mut dyn KvWrite,
        subject: &Subject,
        moment: &Moment<'_>,
        event: &RepairEvent,
        evidence: Option<&Evidence>,
    ) -> Result<Advance, DivergenceError> {
        let before = self.flag(store, subject)?;
        let mut history = self.history(store, subject)?;
        let ctx = RepairContext {
            config: moment.config,
            escrow_id: subject.escrow_id,
            participant: subject.participant,
            generation: history.generation,
            raised: history.raised,
            relapse: history.is_relapse(moment.at_ms, moment.config.relapse_ms),
            active: moment.active,
            tip: moment.tip,
            self_suspect: moment.self_suspect,
            majority_unreachable: moment.majority_unreachable,
            since_ms: moment.since_ms,
        };
        let outcome = step(&ctx, before.as_ref().map(|flag| &flag.repair), event)?;
        let Outcome { state, cleared, generation, effects } = outcome;
        let known = history.clone();
        history.generation = generation;

        let mut flag = match (before.clone(), &state) {
            (None, Some(state)) => {
                let evidence = evidence.filter(|e| proves(e, event)).ok_or(DivergenceError::NoEvidence)?;
                history.raised = history.raised.saturating_add(1);
                history.raised_at_ms = moment.at_ms;
                Some(raise(*subject, evidence, generation, state.clone(), moment.at_ms))
            }
            (flag, _) => flag,
        };
        if let (Some(flag), Some(repair)) = (&mut flag, state.as_ref().or(cleared.as_ref())) {
            flag.generation = generation;
            flag.repair = repair.clone();
        }
        for effect in &effects {
            match effect {
                Effect::StartAttempt { .. } => history.attempts = history.attempts.saturating_add(1),
                Effect::Log(LogStage::GaveUp) => history.gave_up = history.gave_up.saturating_add(1),
                Effect::RecordEvidence { nonce } => {
                    if let Some(evidence) = evidence.filter(|e| e.nonce == *nonce) {
                        self.keep(store, subject, &mut history, evidence, moment.at_ms)?;
                        if let Some(flag) = &mut flag {
                            lower(flag, evidence);
                        }
                    }
                }
                Effect::ClearFlag => {
                    history.restored = history.restored.saturating_add(1);
                    history.restored_at_ms = moment.at_ms;
                    history.blocked_ms = history.blocked_ms(flag.as_ref(), moment.at_ms);
                }
                _ => {}
            }
        }
        let changes = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Log(stage) => {
                    flag.clone().map(|flag| FlagChange { stage: *stage, at_ms: moment.at_ms, flag })
                }
                _ => None,
            })
            .collect();
        if state.is_none() {
            flag = None;
        }
        if flag != before {
            match &flag {
                Some(flag) => FLAG_ROWS.set(store, &subject.key(), flag)?,
                None => FLAG_ROWS.remove(store, &subject.key())?,
            }
        }
        if history != known {
            HISTORY_ROWS.set(store, &subject.key(), &history)?;
        }
        Ok(Advance { flag, effects, changes })
    }

    /// Stores the first nonce that differs, as bisecting found it, if the flag still has `generation`; whether it had.
    pub fn set_first_bad(
        &self,
        store: &mut dyn KvWrite,
        subject: &Subject,
        generation: u64,
        nonce: u64,
    ) -> Result<bool, DivergenceError> {
        let flag = self.flag(store, subject)?.filter(|flag| flag.generation == generation);
        let Some(mut flag) = flag else { return Ok(false) };
        flag.first_bad_nonce = nonce;
        FLAG_ROWS.set(store, &subject.key(), &flag)?;
        Ok(true)
    }

    /// Forgets an escrow that is settled: its flags, histories and evidence. The journal keeps what it has.
    pub fn remove_escrow(&self, store: &mut dyn KvWrite, escrow_id: u64) -> Result<(), DivergenceError> {
        FLAG_ROWS.clear_prefix(store, &escrow_id, usize::MAX)?;
        HISTORY_ROWS.clear_prefix(store, &escrow_id, usize::MAX)?;
        EVIDENCE_ROWS.clear_prefix(store, &escrow_id, usize::MAX)?;
        Ok(())
    }

    fn keep(
        &self,
        store: &mut dyn KvWrite,
        subject: &Subject,
        history: &mut History,
        evidence: &Evidence,
        at_ms: u64,
    ) -> Result<(), DivergenceError> {
        let number = history.evidence;
        let row = Evidence { generation: history.generation, at_ms, ..evidence.clone() };
        EVIDENCE_ROWS.set(store, &(subject.escrow_id, subject.participant, number), &row)?;
        // The first one tripped the flag and stays.
        let old = number.saturating_sub(EVIDENCE_KEPT.saturating_sub(1));
        if old > 0 {
            EVIDENCE_ROWS.remove(store, &(subject.escrow_id, subject.participant, old))?;
        }
        history.evidence = number.saturating_add(1);
        Ok(())
    }
}

/// Whether evidence is of the kind and nonce that the event speaks of.
fn proves(evidence: &Evidence, event: &RepairEvent) -> bool {
    match *event {
        RepairEvent::Mismatch { nonce } => {
            evidence.nonce == nonce && matches!(evidence.kind, EvidenceKind::Refusal | EvidenceKind::State)
        }
        RepairEvent::OwnFork { nonce } => evidence.nonce == nonce && evidence.kind == EvidenceKind::OwnFork,
        _ => false,
    }
}

fn raise(
    subject: Subject,
    evidence: &Evidence,
    generation: u64,
    repair: RepairState,
    at_ms: u64,
) -> DivergenceFlag {
    DivergenceFlag {
        subject,
        diverged_nonce: evidence.nonce,
        our_root: evidence.our_root,
        their_root: evidence.their_root,
        signed_digest: evidence.digest,
        signature: evidence.signature,
        generation,
        flagged_at_ms: at_ms,
        first_bad_nonce: 0,
        repair,
    }
}

/// The flag shows the lowest nonce known to differ.
fn lower(flag: &mut DivergenceFlag, evidence: &Evidence) {
    if evidence.nonce < flag.diverged_nonce && evidence.kind != EvidenceKind::AboveTip {
        flag.diverged_nonce = evidence.nonce;
        flag.our_root = evidence.our_root;
        flag.their_root = evidence.their_root;
        flag.signed_digest = evidence.digest;
        flag.signature = evidence.signature;
    }
}
