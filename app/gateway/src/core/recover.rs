//! Opening a session: fresh, or as it was when the process ended. What is recovered equals what was live, in every
//! field; a broken snapshot costs a replay, a gap in the log is said, and a store that fails is neither.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_escrow::divergence::DivergenceKeeper;
use holdfast_escrow::session::{Diff, FrozenConfig, State, Tx, apply};
use holdfast_host::store::LocalDb;
use holdfast_store::{Order, StoreError};

use super::GatewayCore;
use super::api::{Effect, Entropy, Now, OpenError, Signer};
use super::census::Suspicion;
use super::config::GatewayConfig;
use super::finalize::Closing;
use super::history::History;
use super::members::{Member, group};
use super::pending::Pending;
use super::permits::PermitPool;
use super::store::{DIFFS, DUES, Ledger, MEMBERS, META, Meta, PENDING, SIGNATURES, SNAPSHOTS};
use super::timeouts::Due;

/// How long a session that was opened waits for hosts that may know a longer log of ours.
const SETTLE_MS: u64 = 2_000;

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Storage(error.to_string())
    }
}

/// The log as it was read.
struct Log {
    state: State,
    history: History,
    /// First nonce that does not replay, with what was wrong.
    corrupt: Option<(u64, String)>,
}

fn read_log(ledger: &Ledger, terms: &Arc<FrozenConfig>) -> Result<Log, OpenError> {
    let genesis = State::genesis(terms.clone());
    let mut history = History::new(genesis.root());
    let mut diffs = Vec::new();
    let mut corrupt = None;
    for (nonce, row) in (1u64..).zip(DIFFS.prefix(ledger.durable(), &ledger.escrow, Order::Ascending)) {
        let ((_, found), bytes) = match row {
            Ok(row) => row,
            // Bytes that no writer of ours makes are damage, not a failure of the store.
            Err(StoreError::Decode { reason, .. }) => {
                corrupt = Some((nonce, reason));
                break;
            }
            Err(error) => return Err(error.into()),
        };
        if found != nonce {
            return Err(OpenError::Gap { nonce });
        }
        match Diff::from_bytes(&bytes) {
            Ok(diff) if diff.nonce == nonce => {
                history.push(&diff);
                diffs.push(diff);
            }
            Ok(_) | Err(_) => {
                corrupt = Some((nonce, "not a diff of this nonce".to_owned()));
                break;
            }
        }
    }
    let mut state = genesis;
    for nonce in ledger.snapshots()? {
        // Any fault of a snapshot is no more than a longer replay.
        let Ok(Some(row)) = SNAPSHOTS.get(ledger.durable(), &(ledger.escrow, nonce)) else { continue };
        if let Ok(there) = State::from_bytes(terms.clone(), &row.state)
            && there.nonce() == nonce
            && history.root(nonce) == Some(there.root())
        {
            state = there;
            break;
        }
    }
    let first = usize::try_from(state.nonce()).unwrap_or(usize::MAX);
    for diff in diffs.iter().skip(first) {
        match apply(&state, diff) {
            Ok((next, _)) => state = next,
            Err(error) => {
                corrupt = Some((diff.nonce, error.to_string()));
                break;
            }
        }
    }
    if corrupt.is_some() && history.tip() > state.nonce() {
        // Nothing after the last good nonce is ours to speak of.
        let mut good = History::new(State::genesis(terms.clone()).root());
        for diff in diffs.iter().take_while(|diff| diff.nonce <= state.nonce()) {
            good.push(diff);
        }
        history = good;
    }
    Ok(Log { state, history, corrupt })
}

impl GatewayCore {
    /// Opens the session of `terms` over `db`: begins it when the store is empty, resumes it otherwise. The effects are
    /// those of the first step.
    ///
    /// # Errors
    /// [`OpenError`]: other terms, a foreign key, a gap in the log, a store that fails. A log that does not replay opens
    /// a retired session that only collects signatures for a dispute.
    #[allow(clippy::too_many_arguments)]
    pub fn open(
        db: Box<dyn LocalDb>,
        cfg: GatewayConfig,
        terms: FrozenConfig,
        signer: Box<dyn Signer>,
        entropy: Box<dyn Entropy>,
        permits: PermitPool,
        now: Now,
    ) -> Result<(Self, Vec<Effect>), OpenError> {
        terms.validate().map_err(|error| OpenError::Config(error.to_string()))?;
        if signer.address() != terms.gateway {
            return Err(OpenError::WrongKey { expected: terms.gateway, found: signer.address() });
        }
        let terms = Arc::new(terms);
        let escrow = terms.escrow_id;
        let mut ledger = Ledger::new(db, escrow);
        let config_digest = terms.digest();
        let stored = META.get(ledger.durable(), &escrow)?;
        let fresh = stored.is_none();
        let meta = match stored {
            Some(meta) if meta.config_digest == config_digest => meta,
            Some(_) => return Err(OpenError::Config("the store was begun with other terms".to_owned())),
            None => {
                let meta = Meta { config_digest, ..Meta::default() };
                ledger.set(&META, &escrow, &meta);
                ledger.commit(&BTreeMap::new(), true)?;
                meta
            }
        };
        let log = read_log(&ledger, &terms)?;
        let mut pending = Pending::default();
        for row in PENDING.prefix(ledger.durable(), &escrow, Order::Ascending) {
            let ((_, number), bytes) = row?;
            if let Ok(tx) = Tx::from_bytes(&bytes) {
                pending.restore(number, tx, now.mono_ms);
            }
        }
        let mut dues = BTreeMap::new();
        for row in DUES.prefix(ledger.durable(), &escrow, Order::Ascending) {
            let ((_, id), row) = row?;
            dues.insert(id, Due::new(row));
        }
        let mut members = group(terms.owners(), cfg.chunk_diffs);
        for (participant, member) in &mut members {
            if let Some(row) = MEMBERS.get(ledger.durable(), &(escrow, *participant))? {
                *member = Member::new(std::mem::take(&mut member.slots), row, cfg.chunk_diffs);
            }
        }
        let mut kept: BTreeMap<u64, BTreeMap<_, _>> = BTreeMap::new();
        for row in SIGNATURES.prefix(ledger.durable(), &escrow, Order::Ascending) {
            let ((_, nonce, participant), sig) = row?;
            kept.entry(nonce).or_default().insert(participant, sig);
        }
        let flags = DivergenceKeeper
            .flags(ledger.durable(), escrow)
            .map_err(|error| OpenError::Storage(error.to_string()))?
            .into_iter()
            .map(|flag| (flag.subject.participant, flag))
            .collect();
        let settled = meta.settled;
        let suspected = meta.suspect_at > 0;
        let mut core = Self {
            cfg,
            terms,
            signer,
            entropy,
            permits,
            ledger,
            now,
            opened_ms: now.mono_ms,
            state: log.state,
            history: log.history,
            pending,
            meta,
            members,
            queue: Default::default(),
            flights: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            dues,
            ripe: BTreeMap::new(),
            kept,
            calls: BTreeMap::new(),
            next_call: 1,
            staged: None,
            flags,
            workers: BTreeMap::new(),
            resetting: Default::default(),
            censuses: BTreeMap::new(),
            suspicion: Suspicion::default(),
            corrupt: None,
            above_until_ms: None,
            above_asked: BTreeMap::new(),
            closing: Closing::default(),
            checkpoint: Default::default(),
            totals: BTreeMap::new(),
            // An empty store may be a lost one.
            settle_until_ms: now.mono_ms.saturating_add(SETTLE_MS),
            alive_ms: None,
            stopping: false,
            over: None,
            urgent: false,
            wake_ms: None,
            out: Vec::new(),
            held: Vec::new(),
        };
        core.log(
            if fresh { "escrow_opened" } else { "escrow_recovered" },
            false,
            None,
            vec![("nonce", core.state.nonce().to_string()), ("flags", core.flags.len().to_string())],
        );
        if settled {
            core.end(super::api::RetireReason::Settled);
        } else if let Some((nonce, reason)) = log.corrupt {
            core.log("escrow_log_broken", true, None, vec![("nonce", nonce.to_string()), ("reason", reason)]);
            let good = core.state.clone();
            core.self_corrupt(nonce, good);
        } else {
            if suspected {
                core.suspicion = Suspicion::replaying(State::genesis(core.terms.clone()));
            }
            core.resume_repairs();
            core.resume_withdrawn(None);
            let all: Vec<_> = core.members.keys().copied().collect();
            for participant in all {
                core.bind(&participant);
            }
        }
        core.run();
        let effects = core.finish_step();
        Ok((core, effects))
    }
}
