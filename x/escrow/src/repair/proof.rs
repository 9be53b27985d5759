//! The one thing that clears a flag: a fresh signature over our root.

use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use crate::session::{Hash, Signature, digest, recover};

/// What the running attempt has to see proved.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The chain.
    pub chain_id: &'a str,
    /// The escrow.
    pub escrow_id: u64,
    /// The flag's generation.
    pub generation: u64,
    /// Number of the attempt.
    pub attempt: u32,
    /// Nonce it aims at.
    pub target: u64,
    /// Our last nonce.
    pub tip: u64,
    /// 32 random bytes, drawn when the attempt began.
    pub challenge: Hash,
}

/// Answer to a challenge, as it came in.
#[derive(Debug, Clone, Copy)]
pub struct Verification<'a> {
    /// Generation it was made for.
    pub generation: u64,
    /// Challenge it was made for.
    pub challenge: &'a [u8],
    /// Over the `verify` digest.
    pub signature: &'a [u8],
}

/// What a host says about one nonce, in a reply to Teach or GetSignatures. Nothing in it is checked.
#[derive(Debug, Clone, Copy)]
pub struct ProofReply<'a> {
    /// Nonce of the root.
    pub nonce: u64,
    /// The root.
    pub root: &'a [u8],
    /// Over the `state` digest; empty = none.
    pub state_signature: &'a [u8],
    /// The host signs nothing for now.
    pub withheld: bool,
    /// Answer to the challenge.
    pub verification: Option<Verification<'a>>,
}

impl<'a> From<&'a pb::Verification> for Verification<'a> {
    fn from(reply: &'a pb::Verification) -> Self {
        Self { generation: reply.generation, challenge: &reply.challenge, signature: &reply.signature }
    }
}

impl<'a> From<&'a pb::Applied> for ProofReply<'a> {
    fn from(reply: &'a pb::Applied) -> Self {
        Self {
            nonce: reply.nonce,
            root: &reply.root,
            state_signature: &reply.state_signature,
            withheld: reply.withheld,
            verification: reply.verification.as_ref().map(Into::into),
        }
    }
}

impl<'a> From<&'a pb::GetSignaturesResponse> for ProofReply<'a> {
    fn from(reply: &'a pb::GetSignaturesResponse) -> Self {
        Self {
            nonce: reply.nonce,
            root: &reply.root,
            state_signature: &reply.state_signature,
            withheld: reply.withheld,
            verification: reply.verification.as_ref().map(Into::into),
        }
    }
}

/// What we hold at a nonce.
pub struct OurPoint<'a> {
    /// Our root.
    pub root: Hash,
    /// Whether an address may sign for the participant in our state there
    /// ([`crate::session::State::speaks_for`]).
    pub authorised: &'a dyn Fn(&Address) -> bool,
}

/// Proof that a host holds our state, for one attempt of one generation. Made by [`verify_proof`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClearProof {
    generation: u64,
    attempt: u32,
    nonce: u64,
}

impl ClearProof {
    /// Generation it is for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Attempt it is for.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Nonce at which the host holds our root.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    #[cfg(test)]
    pub(crate) fn for_test(generation: u64, attempt: u32, nonce: u64) -> Self {
        Self { generation, attempt, nonce }
    }
}

/// Why a reply shows nothing either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The host withholds its signature; its root is ours.
    Withheld,
    /// The host withholds its signature, and says that its root is another. What it waits for may never be in its own
    /// log, so its word is enough to call it forked: that costs nobody but itself.
    WithheldElsewhere,
    /// The right root at a sufficient nonce, signed by a key that our state does not bind.
    KeyNotBound(
        /// Address of that key.
        Address,
    ),
    /// No state signature, not a signature, or not one of the participant.
    Unsigned,
    /// The state is signed, but no answer to this attempt's challenge came with it.
    NotFresh,
    /// Our own root at that nonce cannot be read.
    OurRootUnknown,
}

/// What a reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofVerdict {
    /// The host holds our state, now.
    Verified(ClearProof),
    /// The host holds our state at a nonce below the target.
    Behind {
        /// That nonce.
        nonce: u64,
    },
    /// The host signed another root than ours: evidence.
    Diverged {
        /// Nonce of the root.
        nonce: u64,
        /// Its root.
        root: Hash,
        /// Digest that it signed.
        digest: Hash,
        /// Its signature.
        signature: Signature,
    },
    /// The host signed a nonce that we never made: evidence.
    AboveTip {
        /// That nonce.
        nonce: u64,
        /// Its root.
        root: Hash,
        /// Digest that it signed.
        digest: Hash,
        /// Its signature.
        signature: Signature,
    },
    /// Nothing is shown.
    CannotTell(Doubt),
}

impl ProofVerdict {
    /// The event for a repair in the phase Verifying (or after the last chunk).
    pub fn event(&self, reply_nonce: u64) -> super::RepairEvent {
        use super::{Failure, RepairEvent};
        match *self {
            Self::Verified(proof) => RepairEvent::Proof(proof),
            Self::Behind { nonce } => RepairEvent::SignedBehind { nonce },
            Self::Diverged { nonce, .. } => RepairEvent::Forked { nonce },
            Self::AboveTip { nonce, .. } => RepairEvent::SignedAboveTip { nonce },
            Self::CannotTell(Doubt::Withheld) => RepairEvent::Withheld { nonce: reply_nonce },
            Self::CannotTell(Doubt::WithheldElsewhere) => RepairEvent::Forked { nonce: reply_nonce },
            Self::CannotTell(Doubt::KeyNotBound(_)) => RepairEvent::KeyNotBound,
            Self::CannotTell(Doubt::Unsigned | Doubt::NotFresh) => RepairEvent::Failed(Failure::Malformed),
            Self::CannotTell(Doubt::OurRootUnknown) => RepairEvent::StoreUnreadable,
        }
    }
}

/// Judges a reply of `participant`'s host for the running attempt (escrow-details 6): Verified iff at a nonce v with
/// target ≤ v ≤ tip both the `state` signature and the `verify` signature over this generation and challenge are valid
/// over **our** root at v, by keys that our state at v authorises. `ours(v)` gives our root and keys at v ≤ tip.
pub fn verify_proof<'p>(
    attempt: &Attempt<'_>,
    reply: &ProofReply<'_>,
    ours: impl FnOnce(u64) -> Option<OurPoint<'p>>,
) -> ProofVerdict {
    let nonce = reply.nonce;
    let Ok(root) = Hash::try_from(reply.root) else { return ProofVerdict::CannotTell(Doubt::Unsigned) };
    // Above our tip there is no root of ours; the keys are those of the tip.
    let Some(ours) = ours(nonce.min(attempt.tip)) else {
        return ProofVerdict::CannotTell(Doubt::OurRootUnknown);
    };
    let same = nonce <= attempt.tip && root == ours.root;
    let signed = digest::state(attempt.chain_id, attempt.escrow_id, nonce, &root);
    let signature = Signature::try_from(reply.state_signature).ok();
    let signer = signature.and_then(|signature| recover(&signed, &signature).ok());
    let (Some(signature), Some(signer)) = (signature, signer) else {
        let doubt = match reply.withheld && nonce <= attempt.tip {
            true if same => Doubt::Withheld,
            true => Doubt::WithheldElsewhere,
            false => Doubt::Unsigned,
        };
        return ProofVerdict::CannotTell(doubt);
    };
    if !(ours.authorised)(&signer) {
        // Over another root any bytes recover to some address: that is noise, not a key.
        let doubt = if same { Doubt::KeyNotBound(signer) } else { Doubt::Unsigned };
        return ProofVerdict::CannotTell(doubt);
    }
    if nonce > attempt.tip {
        return ProofVerdict::AboveTip { nonce, root, digest: signed, signature };
    }
    if !same {
        return ProofVerdict::Diverged { nonce, root, digest: signed, signature };
    }
    if nonce < attempt.target {
        return ProofVerdict::Behind { nonce };
    }
    let fresh = reply.verification.as_ref().is_some_and(|answer| {
        let Ok(signature) = Signature::try_from(answer.signature) else { return false };
        // Checked over what we asked for: what the reply says about itself decides nothing.
        let asked = digest::verify(
            attempt.chain_id,
            attempt.escrow_id,
            nonce,
            &ours.root,
            attempt.generation,
            &attempt.challenge,
        );
        recover(&asked, &signature).is_ok_and(|signer| (ours.authorised)(&signer))
    });
    if !fresh {
        return ProofVerdict::CannotTell(Doubt::NotFresh);
    }
    ProofVerdict::Verified(ClearProof { generation: attempt.generation, attempt: attempt.attempt, nonce })
}
