//! Composing diffs, and looking ahead.

use holdfast_types::Signature;

use super::apply::{check_position, check_reserve, check_size, encoded_len, name};
use super::signers::{Recovered, Signers};
use super::{ApplyError, Diff, Hash, MAX_DIFF_BYTES, MAX_TXS, State, Tx, digest};

/// A diff that the gateway has yet to sign and to persist.
#[derive(Debug, Clone)]
pub struct Composed {
    /// Its nonce.
    pub nonce: u64,
    /// State after it.
    pub state: State,
    /// Root after it.
    pub root: Hash,
    /// Its transactions.
    pub txs: Vec<Tx>,
    /// Transactions of hosts that do not apply. Their keys become free, so that an honest one can follow.
    pub dropped: Vec<(Tx, ApplyError)>,
    /// Transactions of hosts for which the diff had no room.
    pub deferred: Vec<Tx>,
}

impl Composed {
    /// What the gateway signs.
    pub fn digest(&self) -> Hash {
        let config = self.state.config();
        digest::diff(&config.chain_id, config.escrow_id, self.nonce, &self.txs, &self.root)
    }

    /// The diff, with the gateway's signature over [`Composed::digest`].
    pub fn into_diff(self, signature: Signature) -> (Diff, State) {
        let escrow_id = self.state.config().escrow_id;
        let Self { nonce, state, root, txs, .. } = self;
        (Diff { escrow_id, nonce, txs, post_state_root: root, signature }, state)
    }
}

/// The next diff: what hosts contributed, receipts first, as far as it applies, then `own` (escrow-details 3).
///
/// # Errors
/// [`ApplyError`] of the first of `own` that does not apply, or of the diff as a whole.
pub fn compose(state: &State, host_txs: Vec<Tx>, own: Vec<Tx>) -> Result<Composed, ApplyError> {
    let unseen = |txs: Vec<Tx>| txs.into_iter().map(Recovered::from).collect();
    compose_recovered(state, unseen(host_txs), unseen(own))
}

/// [`compose`] of transactions whose signers are known. The same rules, in the same order.
///
/// # Errors
/// As [`compose`].
pub fn compose_recovered(
    state: &State,
    mut host_txs: Vec<Recovered>,
    own: Vec<Recovered>,
) -> Result<Composed, ApplyError> {
    let nonce = state.nonce.checked_add(1).ok_or(ApplyError::Overflow("nonce"))?;
    check_position(state, nonce)?;
    let (own, mut signers): (Vec<Tx>, Vec<Signers>) =
        own.into_iter().map(|Recovered { tx, signers }| (tx, signers)).unzip();
    check_size(&own)?;
    check_reserve(state, nonce, &own)?;

    let mut next = state.clone();
    let mut composed = Vec::new();
    let (mut dropped, mut deferred) = (Vec::new(), Vec::new());
    let mut room = MAX_DIFF_BYTES.saturating_sub(encoded_len(&own));
    let mut places = MAX_TXS.saturating_sub(own.len());
    host_txs.sort_by_key(|host| host.tx.rank().unwrap_or(u8::MAX));
    for Recovered { tx, mut signers } in host_txs {
        let Some(_) = tx.rank() else {
            let tx_name = name(&tx);
            dropped.push((tx, ApplyError::WrongPhase { tx: tx_name, phase: state.phase }));
            continue;
        };
        let size = tx.to_bytes().len();
        if places == 0 || size > room {
            deferred.push(tx);
            continue;
        }
        match next.apply_tx(nonce, &tx, &mut signers) {
            Ok(()) => {
                room = room.saturating_sub(size);
                places = places.saturating_sub(1);
                composed.push(tx);
            }
            Err(error) => dropped.push((tx, error)),
        }
    }
    let last = own.len().saturating_sub(1);
    for (position, (tx, signers)) in own.iter().zip(&mut signers).enumerate() {
        if position != last && matches!(tx, Tx::StartInference { .. } | Tx::FinalizeRound) {
            return Err(ApplyError::NotLast);
        }
        next.apply_tx(nonce, tx, signers)?;
    }
    composed.extend(own);
    let root = next.close(nonce)?;
    Ok(Composed { nonce, state: next, root, txs: composed, dropped, deferred })
}

/// Whether one transaction alone would apply in the next diff.
///
/// # Errors
/// [`ApplyError`].
pub fn check_tx(state: &State, tx: &Tx) -> Result<(), ApplyError> {
    check_next(state, [(tx, &mut Signers::default())])
}

/// Whether `txs` would apply in the next diff, in this order.
pub(super) fn check_next<'a>(
    state: &State,
    txs: impl IntoIterator<Item = (&'a Tx, &'a mut Signers)>,
) -> Result<(), ApplyError> {
    let nonce = state.nonce.checked_add(1).ok_or(ApplyError::Overflow("nonce"))?;
    check_position(state, nonce)?;
    let mut next = state.clone();
    txs.into_iter().try_for_each(|(tx, signers)| next.apply_tx(nonce, tx, signers))
}
