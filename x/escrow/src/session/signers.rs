//! Signers that were recovered once.

use std::collections::BTreeMap;

use holdfast_types::{Address, Signature, recover};

use super::compose::check_next;
use super::{ApplyError, Hash, State, Tx};

/// Who signed what. A signer is a function of digest and signature alone, so what was recovered once holds for good; what
/// the digest is of, and whether the signer may speak for a slot, is asked of the state each time.
#[derive(Debug, Clone, Default)]
pub struct Signers(BTreeMap<(Hash, Signature), Address>);

impl Signers {
    /// The signer of `digest`; `None` when the signature is none.
    pub fn recover(&mut self, digest: &Hash, signature: &Signature) -> Option<Address> {
        if let Some(signer) = self.0.get(&(*digest, *signature)) {
            return Some(*signer);
        }
        let signer = recover(digest, signature).ok()?;
        self.0.insert((*digest, *signature), signer);
        Some(signer)
    }

    /// A memory that lies, to see who asks it.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, digest: Hash, signature: Signature, signer: Address) {
        self.0.insert((digest, signature), signer);
    }

    /// Takes what `others` knows.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// A transaction with the signers that were recovered for it, so that the next check of it needs no curve arithmetic.
/// It says nothing of whether the transaction applies, to any state.
#[derive(Debug, Clone)]
pub struct Recovered {
    pub(super) tx: Tx,
    pub(super) signers: Signers,
}

impl Recovered {
    /// `tx`, and what is known of its signatures.
    pub fn new(tx: Tx, signers: Signers) -> Self {
        Self { tx, signers }
    }

    /// The transaction.
    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Whether it would apply in the next diff, alone or behind `after`; with what was recovered on the way.
    ///
    /// # Errors
    /// [`ApplyError`], of either.
    pub fn check(mut self, state: &State, after: Option<&Self>) -> Result<Self, ApplyError> {
        let mut before = after.cloned();
        let before = before.as_mut().map(|before| (&before.tx, &mut before.signers));
        check_next(state, before.into_iter().chain([(&self.tx, &mut self.signers)]))?;
        Ok(self)
    }
}

impl From<Tx> for Recovered {
    fn from(tx: Tx) -> Self {
        Self::new(tx, Signers::default())
    }
}
