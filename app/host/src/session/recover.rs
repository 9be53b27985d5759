//! A replica from the store: the newest snapshot that is whole, and the log from there on (escrow 6).

use std::sync::Arc;

use holdfast_escrow::session::{Diff, Hash, State, Tx};
use holdfast_store::{KvRead, Order, StoreError};

use super::replica::Replica;
use super::rows::{JOBS, LOG, PENDING, SNAPSHOTS, SessionRow};
use super::rules::{Place, Rules, Via};

/// Why there is no replica.
#[derive(Debug)]
pub(super) enum Broken {
    /// The store does not answer; it may again.
    Store(StoreError),
    /// What it holds is no log of this session.
    Log(String),
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Decode { .. } => Self::Log(error.to_string()),
            error => Self::Store(error),
        }
    }
}

/// Reads a replica back: every field as it was.
pub(super) fn replica(store: &dyn KvRead, row: &SessionRow, rules: &dyn Rules) -> Result<Replica, Broken> {
    let config = Arc::new(row.config.clone());
    let escrow_id = config.escrow_id;
    let mut replica = Replica::new(State::genesis(config.clone()), row.resets);
    let last = LOG.prefix(store, &escrow_id, Order::Descending).next().transpose()?;
    let last = last.map_or(0, |((_, nonce), _)| nonce);
    if let Some(state) = newest(store, &config, last)? {
        replica.state = state;
    }
    let from = replica.state.nonce();
    let mut expected = 1u64;
    for entry in LOG.prefix(store, &escrow_id, Order::Ascending) {
        let ((_, nonce), entry) = entry?;
        if nonce != expected {
            return Err(Broken::Log(format!("the log has no diff at nonce {expected}")));
        }
        expected = expected.saturating_add(1);
        replica.bytes = replica.bytes.saturating_add(entry.diff.len() as u64);
        if nonce <= from {
            continue;
        }
        let damaged = |what: String| Broken::Log(format!("nonce {nonce}: {what}"));
        let diff = Diff::from_bytes(&entry.diff).map_err(|error| damaged(error.to_string()))?;
        if diff.nonce != nonce || diff.digest(&config.chain_id) != entry.digest {
            return Err(damaged("the diff is not the one that was applied".into()));
        }
        let place = Place { resets: row.resets, via: Via::Replay };
        let applied = rules.apply(place, &replica.state, &diff);
        let (state, root) = applied.map_err(|error| damaged(error.to_string()))?;
        if root != entry.root {
            return Err(damaged("the root is not the one that was signed".into()));
        }
        replica.state = state;
    }
    for entry in PENDING.prefix(store, &escrow_id, Order::Ascending) {
        let ((_, number), entry) = entry?;
        let tx = Tx::from_bytes(&entry.tx).map_err(|error| Broken::Log(format!("pending: {error}")))?;
        replica.next_number = number.saturating_add(1);
        replica.pending.insert(tx.key(), (number, entry));
    }
    for entry in JOBS.prefix(store, &escrow_id, Order::Ascending) {
        let ((_, id), job) = entry?;
        if job.outcome.is_empty() {
            replica.running.insert(id);
        }
    }
    Ok(replica)
}

/// The state at a nonce of the log.
pub(super) fn state_at(
    store: &dyn KvRead,
    row: &SessionRow,
    rules: &dyn Rules,
    nonce: u64,
) -> Result<State, Broken> {
    let config = Arc::new(row.config.clone());
    let escrow_id = config.escrow_id;
    let mut state = newest(store, &config, nonce)?.unwrap_or_else(|| State::genesis(config));
    while state.nonce() < nonce {
        let next = state.nonce().saturating_add(1);
        let damaged = |what: String| Broken::Log(format!("nonce {next}: {what}"));
        let entry = LOG.load(store, &(escrow_id, next))?;
        let diff = Diff::from_bytes(&entry.diff).map_err(|error| damaged(error.to_string()))?;
        let place = Place { resets: row.resets, via: Via::Replay };
        state = rules.apply(place, &state, &diff).map_err(|error| damaged(error.to_string()))?.0;
    }
    Ok(state)
}

/// The newest snapshot at or below `last` that is whole and has the root of the log.
fn newest(
    store: &dyn KvRead,
    config: &Arc<holdfast_escrow::session::FrozenConfig>,
    last: u64,
) -> Result<Option<State>, Broken> {
    let escrow_id = config.escrow_id;
    for entry in SNAPSHOTS.prefix(store, &escrow_id, Order::Descending) {
        let (nonce, row) = match entry {
            Ok(((_, nonce), row)) => (nonce, row),
            Err(StoreError::Decode { reason, .. }) => {
                tracing::warn!(escrow = escrow_id, reason, "a snapshot is damaged; the log is replayed");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if nonce > last {
            continue;
        }
        let known: Option<Hash> = LOG.get(store, &(escrow_id, nonce))?.map(|row| row.root);
        let state = row.bytes().and_then(|bytes| State::from_bytes(config.clone(), bytes).ok());
        match state {
            Some(state) if state.nonce() == nonce && Some(state.root()) == known => {
                return Ok(Some(state));
            }
            _ => tracing::warn!(escrow = escrow_id, nonce, "a snapshot is damaged; the log is replayed"),
        }
    }
    Ok(None)
}
