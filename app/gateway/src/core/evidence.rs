//! Signed words of hosts. Only these raise a flag or a doubt; texts and unsigned claims raise nothing (escrow 3).

use holdfast_escrow::divergence::{Evidence, EvidenceKind};
use holdfast_escrow::session::{Diff, Hash, Signature, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, HostCall, Lane};
use super::store::DIFFS;
use super::{GatewayCore, Purpose};

/// A participant's signature over a root that is not ours, at a nonce that we hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// Where.
    pub(super) nonce: u64,
    /// Our root there.
    pub(super) our_root: Hash,
    /// Its root there.
    pub(super) their_root: Hash,
    /// Its signature.
    pub(super) signature: Signature,
    /// What it signed.
    pub(super) digest: Hash,
}

impl GatewayCore {
    /// Our diff at `nonce`.
    pub(super) fn diff_at(&self, nonce: u64) -> Option<Diff> {
        let bytes = DIFFS.get(self.ledger.durable(), &(self.terms.escrow_id, nonce)).ok()??;
        Diff::from_bytes(&bytes).ok()
    }

    /// The mismatch in a typed error, if its signature stands: a refusal of *our* diff, or a state signature.
    pub(super) fn refusal(&self, participant: &Address, error: &pb::EscrowError) -> Option<Mismatch> {
        let their_root = Hash::try_from(error.root.as_slice()).ok()?;
        let signature = Signature::try_from(error.signature.as_slice()).ok()?;
        let our_root = self.history.root(error.nonce).filter(|ours| *ours != their_root)?;
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let ours = self.diff_at(error.nonce).map(|diff| diff.digest(chain));
        let refused = ours
            .filter(|ours| error.diff_digest == ours[..])
            .map(|ours| digest::refusal(chain, escrow, error.nonce, &ours, &their_root));
        let state = digest::state(chain, escrow, error.nonce, &their_root);
        for signed in refused.into_iter().chain([state]) {
            let signer = recover(&signed, &signature).ok();
            if signer.is_some_and(|signer| self.history.speaks_for(participant, &signer, error.nonce)) {
                return Some(Mismatch {
                    nonce: error.nonce,
                    our_root,
                    their_root,
                    signature,
                    digest: signed,
                });
            }
        }
        None
    }

    /// Whether `diff` is of this escrow and signed by our key.
    pub(super) fn is_ours(&self, diff: &Diff) -> bool {
        diff.escrow_id == self.terms.escrow_id
            && recover(&diff.digest(&self.terms.chain_id), &diff.signature)
                .is_ok_and(|signer| signer == self.terms.gateway)
    }

    /// The evidence, if `theirs` is signed by us and differs from our diff at its nonce.
    pub(super) fn own_fork_by(&self, theirs: &Diff) -> Option<Evidence> {
        let ours = self.diff_at(theirs.nonce)?;
        let chain = &self.terms.chain_id;
        let digest = theirs.digest(chain);
        (ours.digest(chain) != digest && self.is_ours(theirs)).then_some(Evidence {
            kind: EvidenceKind::OwnFork,
            nonce: theirs.nonce,
            our_root: ours.post_state_root,
            their_root: theirs.post_state_root,
            digest,
            signature: theirs.signature,
            generation: 0,
            at_ms: 0,
        })
    }

    /// A host signs another root at a nonce that it has applied: does it hold our diff there? A DiffFork says so only when it
    /// is taught beyond what it shares with us.
    pub(super) fn ask_held(&mut self, participant: &Address, nonce: u64) {
        let known = |(of, purpose): &(Address, Purpose)| of == participant && *purpose == Purpose::Held;
        if self.own_forked(participant) || self.calls.values().any(known) {
            return;
        }
        let request = pb::GetDiffsRequest { escrow_id: self.terms.escrow_id, from: nonce, max: 1 };
        self.call(participant, HostCall::GetDiffs(request), self.cfg.ask_ms, Lane::Free, Purpose::Held);
    }

    /// The answer to [`GatewayCore::ask_held`]. Only another diff with our signature says anything.
    pub(super) fn held_reply(
        &mut self,
        participant: &Address,
        result: Result<pb::GetDiffsResponse, CallError>,
    ) {
        let diffs = result.map(|reply| reply.diffs).unwrap_or_default();
        let held = diffs.first().and_then(|bytes| Diff::from_bytes(bytes).ok());
        if let Some(evidence) = held.and_then(|diff| self.own_fork_by(&diff)) {
            self.own_fork(participant, evidence);
        }
    }

    /// The evidence, if a DiffFork error shows two signatures of ours over different diffs at one nonce.
    pub(super) fn own_fork_shown(&self, error: &pb::EscrowError) -> Option<Evidence> {
        let fork = error.code() == pb::escrow_error::Code::DiffFork;
        Diff::from_bytes(&error.diff).ok().filter(|_| fork).and_then(|diff| self.own_fork_by(&diff))
    }
}
