//! What hosts say, and what it proves: mismatches that are signed, forks of our own, fresh proofs.

use super::*;

impl Watch {
    /// What a host answers to the gateway, before the gateway hears it.
    pub(in crate::escrow) fn reply(&mut self, call_id: CallId, result: &Result<HostReply, CallError>) {
        let Some(asked) = self.asked.get(&call_id).copied() else { return };
        match result {
            Ok(HostReply::Teach(reply)) => {
                if let Some(applied) = &reply.applied {
                    self.applied(asked, applied);
                }
            }
            Ok(HostReply::GetSignatures(reply)) => {
                self.signed(asked, reply.nonce, &reply.root, &reply.state_signature);
                self.proof(asked, reply.nonce, &reply.state_signature, reply.verification.as_ref());
            }
            Ok(HostReply::GetDiffs(reply)) => {
                reply.diffs.iter().for_each(|bytes| self.held(asked.participant, bytes));
            }
            Err(CallError::Host(error)) => self.refused(asked.participant, error),
            Ok(_) | Err(_) => {}
        }
    }

    /// A piece of a stream, before the gateway hears it.
    pub(in crate::escrow) fn piece(&mut self, call_id: CallId, event: &pb::infer_response::Event) {
        if let (Some(asked), pb::infer_response::Event::Applied(applied)) =
            (self.asked.get(&call_id).copied(), event)
        {
            self.applied(asked, applied);
        }
    }

    /// The end of a stream, before the gateway hears it.
    pub(in crate::escrow) fn stream_end(&mut self, call_id: CallId, result: &Result<(), CallError>) {
        if let (Some(asked), Err(CallError::Host(error))) = (self.asked.get(&call_id).copied(), result) {
            self.refused(asked.participant, error);
        }
    }

    fn applied(&mut self, asked: Asked, applied: &pb::Applied) {
        self.signed(asked, applied.nonce, &applied.root, &applied.state_signature);
        self.proof(asked, applied.nonce, &applied.state_signature, applied.verification.as_ref());
    }

    /// A state signature over another root than ours, at a nonce we hold, is a signed mismatch.
    fn signed(&mut self, asked: Asked, nonce: u64, root: &[u8], signature: &[u8]) {
        let (Some(root), Some(ours)) = (hash(root), self.log.get(&nonce)) else { return };
        if root != ours.root
            && self.speaks_for(&asked.participant, &self.state_digest(nonce, &root), signature)
        {
            self.guilty.insert(asked.participant);
        }
    }

    fn refused(&mut self, participant: Address, error: &pb::EscrowError) {
        match error.code() {
            pb::escrow_error::Code::RootMismatch => {}
            pb::escrow_error::Code::DiffFork => return self.held(participant, &error.diff),
            _ => return,
        }
        let (Some(root), Some(ours)) = (hash(&error.root), self.log.get(&error.nonce)) else { return };
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let refused = digest::refusal(chain, escrow, error.nonce, &ours.digest, &root);
        let stated = self.state_digest(error.nonce, &root);
        let signed = |digest| self.speaks_for(&participant, digest, &error.signature);
        if root != ours.root && (signed(&refused) || signed(&stated)) {
            self.guilty.insert(participant);
        }
    }

    /// A diff that a host holds: another one than ours at its nonce, with our signature, is a fork of our own.
    fn held(&mut self, participant: Address, bytes: &[u8]) {
        let Ok(diff) = Diff::from_bytes(bytes) else { return };
        let digest = diff.digest(&self.terms.chain_id);
        if self.log.get(&diff.nonce).is_some_and(|ours| ours.digest != digest)
            && recover(&digest, &diff.signature).ok() == Some(self.terms.gateway)
        {
            self.forked.insert(participant);
        }
    }

    fn proof(&mut self, asked: Asked, nonce: u64, signature: &[u8], fresh: Option<&pb::Verification>) {
        let (Some(ours), Some(fresh)) = (self.log.get(&nonce), fresh) else { return };
        let Some((generation, challenge)) = asked.challenge else { return };
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let digest = digest::verify(chain, escrow, nonce, &ours.root, generation, &challenge);
        let participant = asked.participant;
        if self.speaks_for(&participant, &self.state_digest(nonce, &ours.root), signature)
            && self.speaks_for(&participant, &digest, &fresh.signature)
        {
            self.proofs.push(Proof { participant, nonce, generation, challenge });
        }
    }
}
