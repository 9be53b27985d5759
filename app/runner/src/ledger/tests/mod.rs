use std::io;

use super::*;
use crate::adapter::{Digest, KvKey, Sampling, SessionId};
use crate::clock::VirtualClock;
use crate::failure::{Cause, FailureKind, WorkStatus};
use crate::record::{KvOutcome, WorkLedger, WorkRecord};

mod crash;
mod format;
mod model;
mod rules;

pub(super) fn session(n: u8) -> SessionId {
    SessionId([n; 16])
}

pub(super) fn key(n: u8, epoch: u32) -> KvKey {
    KvKey::new(session(n), epoch)
}

pub(super) fn step(n: u8, epoch: u32, step: u32) -> StepKey {
    StepKey::new(key(n, epoch), step)
}

pub(super) fn opened(n: u8, epoch: u32) -> EpochOpened {
    EpochOpened {
        key: key(n, epoch),
        generation: 1,
        inference_id: format!("inference-{n}"),
        model_digest: [7; 32],
        prompt_digest: [8; 32],
        prompt_tokens: 4,
        sampling: Sampling::GREEDY,
        shards: vec!["s0".to_owned()],
    }
}

/// Fingerprint of a step, by its number.
pub(super) fn fp(step: u32) -> Digest {
    let mut digest = [1; 32];
    digest[..4].copy_from_slice(&step.to_le_bytes());
    digest
}

pub(super) const LOGITS: Digest = [3; 32];

pub(super) fn ended(n: u8, epoch: u32, kind: Option<FailureKind>, tokens: u32) -> WorkRecord {
    WorkRecord {
        key: key(n, epoch),
        status: kind.map_or(WorkStatus::Completed, crate::failure::work_status_for),
        failure_kind: kind,
        cause: kind.map(FailureKind::default_cause),
        tokens: (tokens > 0).then_some(tokens),
        delivered_tokens: tokens,
        prompt_tokens: 4,
        restartable: kind.map(FailureKind::restartable),
        kv: KvOutcome::Released,
        uncertain_step: None,
        excluded_node: None,
        shards: vec!["s0".to_owned()],
        output_digest: [0; 32],
        started_ms: 10,
        ended_ms: 20,
    }
}

pub(super) fn try_open(
    disk: &MemoryDisk,
    config: LedgerConfig,
) -> Result<(IdempotencyLedger, Recovery), LedgerError> {
    IdempotencyLedger::open(disk.store()?, config, &VirtualClock::new())
}

pub(super) fn open(disk: &MemoryDisk) -> (IdempotencyLedger, Recovery) {
    try_open(disk, LedgerConfig::default()).expect("the ledger opens")
}

/// A step that runs well.
pub(super) fn run_step(ledger: &mut IdempotencyLedger, key: StepKey) -> Result<(), LedgerError> {
    match ledger.begin(key, fp(key.step)) {
        Ok(StepDisposition::Fresh) => {}
        Err(BeginError::Ledger(error)) => return Err(error),
        other => panic!("{other:?}"),
    }
    ledger.flush()?;
    ledger.commit(key, Some(100 + key.step), LOGITS)?;
    ledger.flush()
}

/// All records of a disk, in order.
pub(super) fn records(disk: &MemoryDisk) -> Vec<Record> {
    let mut records = Vec::new();
    for bytes in disk.contents().values() {
        let mut offset = HEADER_BYTES;
        while let Read::Record(record, end) = read_record(bytes, offset) {
            records.push(record);
            offset = end;
        }
    }
    records
}
