//! The end of a session that its gateway left: what its hosts bring to the chain (escrow-details 4).

use holdfast_escrow::session::settle::{Mode, Settlement, SlotSignature, verify};
use holdfast_escrow::session::{Hash, Signature, State, digest, recover};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::recover::{Broken, state_at};
use super::{HostCore, errors, read};

impl HostCore {
    /// The escrow is past its expiry: what the gateway left out of the log can come into it no more, and a signature that is
    /// withheld for it would leave all hosts without pay.
    pub fn expire(&mut self, escrow_id: u64) {
        if self.rows.contains_key(&escrow_id) {
            self.expired.insert(escrow_id);
        }
    }

    /// Whether signatures are withheld while own transactions are left out.
    pub(super) fn withholds(&self, escrow_id: u64) -> bool {
        self.config.withhold && !self.expired.contains(&escrow_id)
    }

    /// Diffs of the log from `from` on, as many as a call carries.
    ///
    /// # Errors
    /// As any call of the session.
    pub fn diffs_from(&mut self, escrow_id: u64, from: u64) -> Result<Vec<Vec<u8>>, pb::EscrowError> {
        self.replica(escrow_id)?;
        self.log(escrow_id, from, super::GET_DIFFS_MAX)
    }

    /// The summary of the state at `nonce` with what the owners in `given` signed over it, and this host; `None` if those that
    /// stand do not make a quorum.
    ///
    /// # Errors
    /// As any call of the session; Behind for a nonce that is not held.
    pub fn summary(
        &mut self,
        escrow_id: u64,
        nonce: u64,
        given: &[(Address, Vec<u8>)],
    ) -> Result<Option<Settlement>, pb::EscrowError> {
        let have = self.replica(escrow_id)?.state.nonce();
        if nonce > have {
            return Err(errors::behind(have));
        }
        let Some(row) = self.rows.get(&escrow_id) else { return Err(errors::not_found(escrow_id)) };
        let state = state_at(read(self.db.as_ref()), row, self.rules.as_ref(), nonce);
        let state = state.map_err(|broken| match broken {
            Broken::Store(error) => errors::store(&error),
            Broken::Log(what) => errors::unavailable(what),
        })?;
        let signed = digest::state(&self.config.chain_id, escrow_id, nonce, &state.root());
        let own = (self.config.owner, self.sign(signed));
        let rows = given.iter().chain([&own]);
        let signatures = rows.filter_map(|(owner, bytes)| slot_signature(&state, owner, bytes, &signed));
        let settlement = Settlement::of(&state, signatures.collect());
        let stands = verify(state.config(), &settlement, Mode::Dispute);
        if let Err(error) = &stands {
            tracing::debug!(escrow = escrow_id, nonce, %error, "no quorum for a dispute");
        }
        Ok(stands.is_ok().then_some(settlement))
    }
}

/// A signature under the first slot of its owner, which counts for all of them; `None` unless it is by a key of the owner.
fn slot_signature(state: &State, owner: &Address, bytes: &[u8], signed: &Hash) -> Option<SlotSignature> {
    let sig = Signature::try_from(bytes).ok()?;
    let signer = recover(signed, &sig).ok()?;
    let slot = *state.config().slots_of(owner).first()?;
    state.authorised(slot, &signer).then_some(SlotSignature { slot, sig })
}
