//! The critical section: compose, preview, sign, persist, and only then install (escrow 5).
//!
//! A failed commit may or may not have reached the disk. So the signed bytes stay staged, nothing else is signed for
//! that nonce, and only the same bytes are tried again; until then the session is as it was.

use holdfast_escrow::session::{
    ApplyError, Diff, Phase, Recovered, State, Tx, TxKey, apply, compose_recovered,
};
use holdfast_host::session::AHEAD_S;
use holdfast_store::{BranchKv, KvRead, StoreError, WriteSet};
use sha2::{Digest, Sha256};

use super::GatewayCore;
use super::api::Effect;
use super::queue::Asking;
use super::store::{BODIES, DIFFS, DUES, DueRow, PENDING, SIGNATURES, SNAPSHOTS, Snapshot, StartKind};

/// Wait before the same bytes are tried again.
const RETRY_MS: u64 = 1_000;
/// Timeouts in one diff: their votes are the longest transactions.
const MAX_TIMEOUTS: usize = 8;

/// What the next diff is for.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Pending transactions, or none.
    Pass,
    /// A start.
    Start {
        /// Tokens of the prompt.
        input_limit: u32,
        /// Tokens of the answer.
        output_limit: u32,
        /// What the executor gets, and the voters.
        body: Vec<u8>,
        /// Whether it is sent.
        kind: StartKind,
        /// Who asked for it.
        asking: Option<Asking>,
    },
    /// No more starts.
    Finalize,
}

impl Step {
    fn into_asking(self) -> Option<Asking> {
        match self {
            Self::Start { asking, .. } => asking,
            Self::Pass | Self::Finalize => None,
        }
    }
}

/// Why no diff was made. Nothing changed.
#[derive(Debug)]
pub(super) enum StepError {
    /// The store refused, or a staged diff waits. What was asked for is given back, or staged (`None`).
    Storage(Option<Box<Asking>>),
    /// The state machine refuses.
    Refused(ApplyError),
}

/// A signed diff that is not known to be durable.
pub(super) struct Staged {
    diff: Diff,
    state: State,
    rows: WriteSet,
    gone: Vec<TxKey>,
    ended: Vec<u64>,
    pub(super) start: Option<(StartKind, Option<Asking>)>,
    due: Option<DueRow>,
    pub(super) retry_at_ms: u64,
}

impl GatewayCore {
    /// Makes the next diff.
    pub(super) fn advance(&mut self, step: Step) -> Result<u64, StepError> {
        if self.staged.is_some() {
            return Err(StepError::Storage(step.into_asking().map(Box::new)));
        }
        let (own, start, body) = match step {
            Step::Pass => (None, None, None),
            Step::Finalize => (Some(Tx::FinalizeRound), None, None),
            Step::Start { input_limit, output_limit, body, kind, asking } => {
                let prompt_hash = Sha256::digest(&body).into();
                let started_at = self.now.unix_s();
                let tx = Tx::StartInference { prompt_hash, input_limit, output_limit, started_at };
                (Some(tx), Some((kind, asking)), Some(body))
            }
        };
        let timeouts = self.ripe_timeouts();
        let mut txs = timeouts.clone();
        txs.extend(own.clone().map(Recovered::from));
        let composed = match compose_recovered(&self.state, self.pending.batch(), txs) {
            Ok(composed) => Ok(composed),
            // A timeout that the state does not take is dropped, and its votes are asked for again.
            Err(_) if !timeouts.is_empty() => {
                for timeout in timeouts {
                    let id = timeout.tx().inference_id();
                    if timeout.check(&self.state, None).is_err() {
                        self.timeout_refused(id);
                    }
                }
                let own = own.map(Recovered::from).into_iter().collect();
                compose_recovered(&self.state, self.pending.batch(), own)
            }
            Err(error) => Err(error),
        };
        let composed = match composed {
            Ok(composed) => composed,
            Err(error) => return Err(StepError::Refused(error)),
        };
        let signature = self.signer.sign(composed.digest());
        let keys = composed.txs.iter().chain(composed.dropped.iter().map(|(tx, _)| tx)).map(Tx::key);
        let gone = keys.collect();
        let due =
            start.as_ref().map(|(kind, _)| DueRow { kind: *kind, cancelled: false, rounds: 0, reason: 0 });
        for (tx, error) in &composed.dropped {
            let fields = vec![("tx", format!("{:?}", tx.key())), ("error", error.to_string())];
            self.log("escrow_pending_tx_dropped", false, None, fields);
        }
        let (diff, state) = composed.into_diff(signature);
        let mut staged = Staged {
            diff,
            state,
            rows: WriteSet::new(),
            gone,
            ended: Vec::new(),
            start,
            due,
            retry_at_ms: 0,
        };
        match self.rows_of(&mut staged, body) {
            Ok(rows) => staged.rows = rows,
            Err(error) => {
                self.storage_failed(&error);
                let asking = staged.start.and_then(|(_, asking)| asking);
                return Err(StepError::Storage(asking.map(Box::new)));
            }
        }
        let nonce = staged.diff.nonce;
        if self.persist(staged) { Ok(nonce) } else { Err(StepError::Storage(None)) }
    }

    /// Takes a diff of ours that a host kept and our store lost. It is signed already; nothing is composed.
    pub(super) fn adopt(&mut self, diff: Diff) -> Result<(), String> {
        if self.staged.is_some() {
            return Err("a staged diff waits".to_owned());
        }
        let (state, _) = apply(&self.state, &diff).map_err(|error| error.to_string())?;
        let start = diff.start().map(|_| (StartKind::Sent, None));
        // Whether we cancelled it is lost too. Nobody waits for it, so its host is believed that we did, and asked to end it.
        let due =
            start.as_ref().map(|(kind, _)| DueRow { kind: *kind, cancelled: true, rounds: 0, reason: 0 });
        let gone = diff.txs.iter().map(Tx::key).collect();
        let rows = WriteSet::new();
        let mut staged = Staged { diff, state, rows, gone, ended: Vec::new(), start, due, retry_at_ms: 0 };
        staged.rows = self.rows_of(&mut staged, None).map_err(|error| error.to_string())?;
        if self.persist(staged) { Ok(()) } else { Err("the store refused".to_owned()) }
    }

    /// Every row that must become durable with the diff.
    fn rows_of(&mut self, staged: &mut Staged, body: Option<Vec<u8>>) -> Result<WriteSet, StoreError> {
        let escrow = self.terms.escrow_id;
        let nonce = staged.diff.nonce;
        let bytes = staged.diff.to_bytes();
        let ended: Vec<u64> = self
            .dues
            .keys()
            .filter(|id| !staged.state.record(**id).is_some_and(|record| record.status.is_open()))
            .copied()
            .collect();
        let old =
            if nonce.is_multiple_of(self.cfg.snapshot_every) { Some(self.ledger.snapshots()?) } else { None };
        let signatures = self
            .members
            .iter()
            .filter_map(|(participant, member)| member.signed.map(|(at, sig)| (*participant, at, sig)))
            .collect();
        let ledger = &self.ledger;
        let store: &dyn KvRead = ledger.durable();
        if let Some(there) = DIFFS.get(store, &(escrow, nonce))? {
            // Identical bytes are a repeated append. Others mean that two gateways write one log.
            if there != bytes {
                return Err(StoreError::Backend(format!(
                    "fork: the log holds another diff at nonce {nonce}"
                )));
            }
        }
        let mut branch = BranchKv::new(store);
        DIFFS.set(&mut branch, &(escrow, nonce), &bytes)?;
        for key in &staged.gone {
            if let Some(number) = self.pending.number(key) {
                PENDING.remove(&mut branch, &(escrow, number))?;
            }
        }
        for id in &ended {
            DUES.remove(&mut branch, &(escrow, *id))?;
            BODIES.remove(&mut branch, &(escrow, *id))?;
        }
        if let Some(due) = &staged.due {
            DUES.set(&mut branch, &(escrow, nonce), due)?;
            BODIES.set(&mut branch, &(escrow, nonce), &body.unwrap_or_default())?;
        }
        if let Some(old) = old {
            let snapshot = Snapshot { state: staged.state.to_bytes(), signatures };
            SNAPSHOTS.set(&mut branch, &(escrow, nonce), &snapshot)?;
            for nonce in old.into_iter().skip(1) {
                SNAPSHOTS.remove(&mut branch, &(escrow, nonce))?;
            }
        }
        staged.ended = ended;
        Ok(branch.into_writes())
    }

    /// Commits and installs, or keeps staged.
    fn persist(&mut self, mut staged: Staged) -> bool {
        self.note_members();
        match self.ledger.commit(&staged.rows, true) {
            Ok(()) => {
                self.install(staged);
                true
            }
            Err(error) => {
                staged.retry_at_ms = self.now.mono_ms.saturating_add(RETRY_MS);
                self.staged = Some(staged);
                self.storage_failed(&error);
                false
            }
        }
    }

    /// Tries the staged bytes again.
    pub(super) fn retry_staged(&mut self) {
        if self.staged.as_ref().is_some_and(|staged| staged.retry_at_ms <= self.now.mono_ms)
            && let Some(staged) = self.staged.take()
        {
            self.persist(staged);
        }
    }

    fn install(&mut self, staged: Staged) {
        let Staged { diff, state, gone, ended, start, due, .. } = staged;
        let nonce = diff.nonce;
        self.state = state;
        self.history.push(&diff);
        for key in gone {
            self.pending.remove(&key);
        }
        for tx in &diff.txs {
            if let Tx::TimeoutInference { id, reason, .. } = tx {
                self.timeout_applied(*id, *reason);
            }
        }
        for id in ended {
            self.dues.remove(&id);
            self.ripe.remove(&id);
        }
        if let Some(due) = due {
            self.dues.insert(nonce, super::timeouts::Due::new(due));
        }
        self.metric_count("gateway_diffs_total", None, 1);
        if let Some((kind, asking)) = start {
            match (kind, asking) {
                (StartKind::Sent, Some(asking)) => self.start_flight(nonce, asking),
                (StartKind::Sent, None) => {}
                (StartKind::GhostThrottled | StartKind::GhostCapability, _) => self.count_ghost(nonce, kind),
            }
        }
    }

    /// The store failed: said loudly, and waiting clients are told at once. Nothing was spent.
    pub(super) fn storage_failed(&mut self, error: &StoreError) {
        self.log("gateway_storage_failed", true, None, vec![("error", error.to_string())]);
        self.fail_queue(super::api::RequestError::Storage);
    }

    /// Verifies a transaction of a host against our state and what waits, and lets it wait. Nothing that would not
    /// apply gets in, so no bogus one can stand before an honest one.
    pub(super) fn intake(&mut self, bytes: &[u8]) -> bool {
        let Ok(tx) = Tx::from_bytes(bytes) else { return false };
        if !tx.from_host() || self.pending.has(&tx.key()) || self.state.phase() == Phase::Frozen {
            return false;
        }
        if let Tx::ReportError { id, kind: holdfast_escrow::session::KIND_CANCELLED, .. } = &tx {
            // Nobody but us can cancel: a host that invents a cancellation would escape its miss.
            if !self.dues.get(id).is_some_and(|due| due.row.cancelled) {
                return false;
            }
        }
        if let Tx::ConfirmStart { confirmed_at, .. } = &tx
            && *confirmed_at > self.now.unix_s().saturating_add(AHEAD_S)
        {
            // It would never be late.
            return false;
        }
        // A finish or error may need the receipt that waits beside it.
        let receipt = tx.inference_id().and_then(|id| self.pending.get(&TxKey::Confirm(id)));
        let Ok(tx) = Recovered::from(tx).check(&self.state, receipt) else { return false };
        let since = self.now.mono_ms;
        match self.pending.insert(tx, since) {
            Some(number) => {
                self.ledger.set(&PENDING, &(self.terms.escrow_id, number), &bytes.to_vec());
                true
            }
            None => false,
        }
    }

    /// Whether the balance does not cover another diff.
    pub(super) fn broke(&self) -> bool {
        self.state.phase() == Phase::Active && self.state.balance() < self.terms.fee_per_nonce
    }

    /// Timeouts with enough votes, at most a few; none of an inference that somebody just spoke of.
    fn ripe_timeouts(&self) -> Vec<Recovered> {
        self.ripe
            .iter()
            .filter(|(id, _)| !self.pending.speaks_of(**id))
            .map(|(_, (tx, _))| tx.clone())
            .take(MAX_TIMEOUTS)
            .collect()
    }

    /// Stores a verified signature over our root at `nonce`.
    pub(super) fn keep_signature(
        &mut self,
        nonce: u64,
        participant: holdfast_types::Address,
        sig: holdfast_escrow::session::Signature,
    ) {
        if self.kept.entry(nonce).or_default().insert(participant, sig).is_none() {
            self.ledger.set(&SIGNATURES, &(self.terms.escrow_id, nonce, participant), &sig);
        }
    }

    /// Pushes an effect.
    pub(super) fn emit(&mut self, effect: Effect) {
        self.out.push(effect);
    }
}
