//! What our log says about every nonce: roots and bound keys. Rebuilt from the log at each start.

use std::collections::BTreeMap;

use holdfast_escrow::session::{Diff, Hash, Tx};
use holdfast_types::Address;

/// Roots and keys by nonce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    roots: Vec<Hash>,
    keys: BTreeMap<(Address, u64), Address>,
}

impl History {
    /// Of the state before the first diff.
    pub(super) fn new(genesis_root: Hash) -> Self {
        Self { roots: vec![genesis_root], keys: BTreeMap::new() }
    }

    /// Appends the diff that follows.
    pub(super) fn push(&mut self, diff: &Diff) {
        self.roots.push(diff.post_state_root);
        for tx in &diff.txs {
            if let Tx::BindWarmKey { owner, warm, .. } = tx {
                self.keys.insert((*owner, diff.nonce), *warm);
            }
        }
    }

    /// Last nonce.
    pub(super) fn tip(&self) -> u64 {
        self.roots.len() as u64 - 1
    }

    /// Our root at `nonce`; `None` above the tip.
    pub(super) fn root(&self, nonce: u64) -> Option<Hash> {
        usize::try_from(nonce).ok().and_then(|nonce| self.roots.get(nonce)).copied()
    }

    /// Whether `signer` speaks for `owner` in our state at `nonce`: its own key or the warm key bound there.
    pub(super) fn speaks_for(&self, owner: &Address, signer: &Address, nonce: u64) -> bool {
        if signer == owner {
            return true;
        }
        let bound = self.keys.range((*owner, 0)..=(*owner, nonce)).next_back().map(|(_, warm)| *warm);
        // Zeros revoke.
        bound.is_some_and(|warm| warm == *signer && warm.0 != [0; 20])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(nonce: u64, owner: Address, warm: Address) -> Diff {
        let tx = Tx::BindWarmKey { owner, warm, seq: 1, sig: [0; 65] };
        Diff { escrow_id: 7, nonce, txs: vec![tx], post_state_root: [nonce as u8; 32], signature: [0; 65] }
    }

    #[test]
    fn a_warm_key_speaks_from_the_nonce_of_its_binding_until_it_is_revoked() {
        let (owner, warm, zeros) = (Address([1; 20]), Address([2; 20]), Address([0; 20]));
        let mut history = History::new([9; 32]);
        history.push(&bind(1, Address([5; 20]), warm));
        history.push(&bind(2, owner, warm));
        history.push(&bind(3, owner, zeros));
        assert!(!history.speaks_for(&owner, &warm, 1));
        assert!(history.speaks_for(&owner, &warm, 2));
        assert!(!history.speaks_for(&owner, &warm, 3));
        assert!(!history.speaks_for(&owner, &zeros, 3));
        assert!(history.speaks_for(&owner, &owner, 3));
        assert_eq!(history.tip(), 3);
        assert_eq!(history.root(2), Some([2; 32]));
        assert_eq!(history.root(4), None);
    }
}
