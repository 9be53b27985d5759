//! Rows, their bytes, and what outlives a flag.

mod bytes;
mod journal;
mod rows;

use holdfast_store::MemKv;
use holdfast_types::Address;

use super::*;
use crate::repair::{ClearProof, RepairConfig, RepairEvent, RepairPhase};

/// 2023-11-14, in ms.
pub(super) const NOW: u64 = 1_700_000_000_000;

pub(super) fn subject(escrow_id: u64, participant: u8) -> Subject {
    Subject { escrow_id, participant: Address([participant; 20]) }
}

pub(super) fn evidence(nonce: u64) -> Evidence {
    Evidence {
        kind: EvidenceKind::Refusal,
        nonce,
        our_root: [0x11; 32],
        their_root: [u8::try_from(nonce % 251).unwrap(); 32],
        digest: [0x33; 32],
        signature: [0x44; 65],
        generation: 0,
        at_ms: 0,
    }
}

/// A store with the clock of its process.
pub(super) struct Scene {
    pub(super) store: MemKv,
    pub(super) config: RepairConfig,
    pub(super) at_ms: u64,
    pub(super) since_ms: u64,
    pub(super) active: bool,
    pub(super) tip: u64,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self {
            store: MemKv::default(),
            config: RepairConfig::default(),
            at_ms: NOW,
            since_ms: 0,
            active: true,
            tip: 60,
        }
    }

    pub(super) fn try_step(
        &mut self,
        subject: Subject,
        event: &RepairEvent,
        evidence: Option<&Evidence>,
    ) -> Result<Advance, DivergenceError> {
        let moment = Moment {
            config: &self.config,
            active: self.active,
            tip: self.tip,
            self_suspect: false,
            majority_unreachable: false,
            since_ms: self.since_ms,
            at_ms: self.at_ms,
        };
        DivergenceKeeper.advance(&mut self.store, &subject, &moment, event, evidence)
    }

    pub(super) fn step(&mut self, subject: Subject, event: RepairEvent) -> Advance {
        self.try_step(subject, &event, None).unwrap()
    }

    pub(super) fn raise(&mut self, subject: Subject, nonce: u64) -> Advance {
        self.try_step(subject, &RepairEvent::Mismatch { nonce }, Some(&evidence(nonce))).unwrap()
    }

    pub(super) fn start(&mut self, subject: Subject) {
        let due = DivergenceKeeper.flag(&self.store, &subject).unwrap().unwrap().repair.due_in_ms;
        self.since_ms = due;
        let flag = self.step(subject, RepairEvent::Due { permit: true }).flag.unwrap();
        self.since_ms = 0;
        assert_eq!(flag.repair.phase, RepairPhase::Teaching);
    }

    /// Raises, teaches and clears `ms` later.
    pub(super) fn raise_and_restore(&mut self, subject: Subject, ms: u64) -> Advance {
        let flag = self.raise(subject, 44).flag.unwrap();
        self.start(subject);
        self.at_ms += ms;
        self.step(subject, RepairEvent::Proof(ClearProof::for_test(flag.generation, 1, 60)))
    }
}
