//! Nonces at which hosts sign while the session runs, so that a dispute has a state that a quorum signed also when too
//! few of them are left at its end.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_escrow::session::{Phase, Signature, State, apply};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{HostCall, Lane};
use super::store::{SIGNATURES, SNAPSHOTS};
use super::{GatewayCore, Purpose};

/// The latest nonce of which a snapshot is taken.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    pub(super) nonce: u64,
    /// Whom its signature was asked of.
    asked: BTreeSet<Address>,
    /// A quorum signed it.
    done: bool,
}

impl GatewayCore {
    /// Asks those who have the latest checkpoint for their signature, each once, until a quorum signed it. Whoever is
    /// behind is not taught for it: dispatches bring the diffs.
    pub(super) fn run_checkpoint(&mut self) {
        let every = self.cfg.snapshot_every.max(1);
        let nonce = self.state.nonce() / every * every;
        if nonce != self.checkpoint.nonce {
            self.checkpoint = Checkpoint { nonce, ..Checkpoint::default() };
        }
        if nonce == 0 || self.checkpoint.done || self.state.phase() != Phase::Active || self.suspected() {
            return;
        }
        if self.signed_weight(nonce) >= self.terms.quorum() {
            self.checkpoint.done = true;
            return self.forget_signatures(nonce);
        }
        let now = self.now.mono_ms;
        let signed = self.kept.get(&nonce);
        let ask: Vec<Address> = self
            .members
            .iter()
            .filter(|(participant, member)| {
                member.cursor >= nonce
                    && !member.limiter.is_open(now)
                    && !self.checkpoint.asked.contains(*participant)
                    && !self.flagged(participant)
                    && !signed.is_some_and(|signed| signed.contains_key(*participant))
            })
            .map(|(participant, _)| *participant)
            .collect();
        for participant in ask {
            self.checkpoint.asked.insert(participant);
            let request =
                pb::GetSignaturesRequest { escrow_id: self.terms.escrow_id, nonce, challenge: None };
            let call = HostCall::GetSignatures(request);
            self.call(&participant, call, self.cfg.ask_ms, Lane::Free, Purpose::Sign);
        }
    }

    pub(super) fn signed_weight(&self, nonce: u64) -> u64 {
        let signers = self.kept.get(&nonce).into_iter().flat_map(BTreeMap::keys);
        signers.map(|participant| self.terms.weight(participant)).sum()
    }

    /// Signatures below `nonce` are of no use any more.
    fn forget_signatures(&mut self, nonce: u64) {
        let newer = self.kept.split_off(&nonce);
        let escrow = self.terms.escrow_id;
        for (nonce, signed) in std::mem::replace(&mut self.kept, newer) {
            for participant in signed.into_keys() {
                // A row that stays is read and forgotten again.
                if let Err(error) =
                    self.ledger.write(|store| SIGNATURES.remove(store, &(escrow, nonce, participant)))
                {
                    tracing::warn!(%error, "a signature was not removed");
                }
            }
        }
    }

    /// The highest nonce up to `most` that a quorum signed: our state there, and the signatures.
    pub(super) fn last_signed(&self, most: u64) -> Option<(State, BTreeMap<Address, Signature>)> {
        // The weight first: a state is replayed from the log.
        let quorum = |nonce: &u64| self.signed_weight(*nonce) >= self.terms.quorum();
        let mut held = self.kept.range(..=most).rev().filter(|(nonce, _)| quorum(nonce));
        held.find_map(|(nonce, signed)| Some((self.state_at(*nonce)?, signed.clone())))
    }

    /// Our state at a nonce of the log, from the nearest snapshot below it.
    fn state_at(&self, nonce: u64) -> Option<State> {
        let held = |state: &State| self.history.root(state.nonce()) == Some(state.root());
        let read = |at: u64| {
            let row = SNAPSHOTS.get(self.ledger.durable(), &(self.terms.escrow_id, at)).ok()??;
            State::from_bytes(self.terms.clone(), &row.state).ok()
        };
        let snapshots = self.ledger.snapshots().unwrap_or_default();
        let nearest = snapshots.into_iter().filter(|at| *at <= nonce).filter_map(read).find(held);
        let mut state = nearest.unwrap_or_else(|| State::genesis(self.terms.clone()));
        while state.nonce() < nonce {
            let diff = self.diff_at(state.nonce().saturating_add(1))?;
            state = apply(&state, &diff).ok()?.0;
        }
        Some(state).filter(held)
    }
}
