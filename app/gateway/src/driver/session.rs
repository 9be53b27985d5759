//! One session from its opening to its end, whatever breaks in between.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use holdfast_types::Address;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::actor::{Actor, End, Input};
use super::calls::Caller;
use super::{
    Ended, Gateway, GatewayError, Glance, Inner, JournalError, Lease, Machine, Result, View, blocking,
    machine,
};
use crate::chain::{EscrowRow, EscrowStatus};
use crate::core::{Effect, FlagView, RequestError, RetireReason};
use crate::settings::Retry;

/// How long the hosts of a session with an empty store may take to say what they have, and between two looks.
const ASK_MS: u64 = 5_000;
const LOOK_MS: u64 = 10;

/// Before a session whose machine panicked, or whose store took no commit, is opened again.
const REOPEN: Retry = Retry { first_ms: 1_000, max_ms: 60_000, attempts: u32::MAX };

/// After so long without trouble the pause before it is opened again begins anew.
const SOUND: Duration = Duration::from_secs(60);

/// The side of a session that others see.
pub(super) struct Session {
    pub(super) escrow_id: u64,
    pub(super) row: EscrowRow,
    /// Unix seconds.
    pub(super) opened_at: u64,
    pub(super) inbox: mpsc::Sender<Input>,
    pub(super) glance: Mutex<Glance>,
    /// When a token came last, on the monotonic clock; 0 = never.
    pub(super) token_at: AtomicU64,
    /// Calls of hosts under way.
    pub(super) calls: AtomicUsize,
    /// No requests yet: its store is empty, and it is not known whether hosts have diffs of ours.
    pub(super) held: AtomicBool,
    /// Why there is no machine now; it is being opened again.
    pub(super) broken: Mutex<Option<RequestError>>,
    /// An operator ended it, or an earlier process: it is not replaced.
    pub(super) dismissed: AtomicBool,
    /// Requests in a row that were refused as too dear, though small beside the whole escrow.
    pub(super) too_dear: AtomicU64,
    pub(super) _lease: Lease,
}

impl Session {
    pub(super) fn look(&self, glance: Glance) {
        *self.glance.lock().unwrap_or_else(PoisonError::into_inner) = glance;
    }

    pub(super) fn glance(&self) -> Glance {
        let glance = *self.glance.lock().unwrap_or_else(PoisonError::into_inner);
        Glance { active: glance.active && !self.held.load(Ordering::Acquire), ..glance }
    }

    /// A store that is empty may be one that was lost. Its hosts are asked first; those that have diffs of ours give
    /// them back, before another diff is signed for one of their nonces. Waits for the answers, or [`ASK_MS`].
    async fn settle_in(&self) {
        let mut waited = 0;
        while self.held.load(Ordering::Acquire) && waited < ASK_MS && self.calls.load(Ordering::Acquire) > 0 {
            sleep(Duration::from_millis(LOOK_MS)).await;
            waited += LOOK_MS;
        }
        self.held.store(false, Ordering::Release);
    }

    /// Whether it takes no more requests for good: it is at its end, or being ended.
    pub(super) fn over(&self) -> bool {
        let glance = *self.glance.lock().unwrap_or_else(PoisonError::into_inner);
        let doubtful = glance.self_suspect || glance.storage_failed || self.held.load(Ordering::Acquire);
        !glance.active && !doubtful && self.broken().is_none()
    }

    /// What its requests are told until it is open again.
    pub(super) fn break_down(&self, why: RequestError) {
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    pub(super) fn broken(&self) -> Option<RequestError> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn alive(&self, mono_ms: u64) {
        self.token_at.store(mono_ms.max(1), Ordering::Relaxed);
    }
}

impl Gateway {
    /// Opens the session of an escrow; one that is open stays.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn open(&self, escrow_id: u64) -> Result<()> {
        self.open_new(escrow_id, false).await
    }

    /// [`Self::open`]; `created` = its escrow was created just now, so that nobody can have a diff of it.
    pub(super) async fn open_new(&self, escrow_id: u64, created: bool) -> Result<()> {
        let inner = &self.0;
        if inner.stopping() {
            return Err(GatewayError::Stopping);
        }
        if inner.session(escrow_id).is_some() {
            return Ok(());
        }
        let row = inner.chain.escrow(escrow_id).await?.ok_or(GatewayError::Unknown(escrow_id))?;
        let found = inner.key.address();
        if row.config.gateway != found {
            return Err(GatewayError::NotOurs { escrow_id, expected: row.config.gateway, found });
        }
        if !inner.models.contains(&row.config.model) {
            return Err(GatewayError::Model { escrow_id, found: row.config.model });
        }
        if row.config.creator != found {
            tracing::warn!(
                escrow = escrow_id,
                "gateway_not_creator: the settlement has to be sent by the creator or an owner of a slot"
            );
        }
        if row.status.is_final() {
            let (end, now_s) = (Ended::Settled, inner.clock.now().unix_s());
            blocking(inner, move |inner| {
                inner.journal.adopt(escrow_id, &row.config.model, now_s)?;
                inner.journal.update(escrow_id, |entry| (entry.ended, entry.owed) = (Some(end), None))
            })
            .await?;
            return Err(GatewayError::Ended(escrow_id));
        }
        let (model, now_s) = (row.config.model.clone(), inner.clock.now().unix_s());
        let known = blocking(inner, move |inner| inner.journal.escrow(escrow_id)).await?;
        let first = known.is_none();
        let entry = blocking(inner, move |inner| inner.journal.adopt(escrow_id, &model, now_s)).await?;
        if entry.ended.is_some() {
            return Err(GatewayError::Ended(escrow_id));
        }
        if row.config.owners().keys().any(|owner| inner.hosts.url(owner).is_none()) {
            inner.hosts.set_urls(inner.chain.host_urls().await?);
        }
        let disputed = row.status == EscrowStatus::Disputed;
        let (inbox, receiver) = mpsc::channel(inner.settings.inbox);
        let session = Arc::new(Session {
            escrow_id,
            opened_at: entry.opened_at,
            inbox,
            glance: Mutex::default(),
            token_at: AtomicU64::new(0),
            calls: AtomicUsize::new(1),
            held: AtomicBool::new(first && !created),
            broken: Mutex::default(),
            dismissed: AtomicBool::new(entry.closing),
            too_dear: AtomicU64::new(0),
            _lease: inner.hosts.lease(row.config.owners().into_keys().collect()),
            row,
        });
        let (machine, effects) = inner.open_machine(&session).await?;
        {
            let mut sessions = inner.sessions();
            if inner.stopping() {
                return Err(GatewayError::Stopping);
            }
            if sessions.contains_key(&escrow_id) {
                return Ok(());
            }
            session.look(machine.glance(inner.clock.now()));
            sessions.insert(escrow_id, Arc::clone(&session));
        }
        inner.unopened().remove(&escrow_id);
        inner
            .spawn("session", supervise(Arc::clone(inner), Arc::clone(&session), receiver, machine, effects));
        session.settle_in().await;
        inner.renewals.send_modify(|renewals| renewals.opened = renewals.opened.wrapping_add(1));
        // The hosts believe that this gateway is gone: a settlement goes before what they brought.
        if disputed { self.finalize(escrow_id).await } else { Ok(()) }
    }
}

impl Inner {
    async fn open_machine(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<(Box<dyn Machine>, Vec<Effect>)> {
        let (escrow_id, frozen) = (session.escrow_id, session.row.config.clone());
        let inner = Arc::clone(self);
        let opened = tokio::task::spawn_blocking(move || {
            let opened = inner.opener.open(frozen, inner.clock.now());
            let (machine, effects) = opened.map_err(|source| GatewayError::Open { escrow_id, source })?;
            inner.reconcile_flags(escrow_id, &machine.view(&inner.hrp))?;
            Ok((machine, effects))
        });
        opened.await.map_err(|error| GatewayError::Internal(error.to_string()))?
    }

    /// A crash may have come between a change of a flag and its row in the log of changes: the row is made up for.
    fn reconcile_flags(&self, escrow_id: u64, view: &View) -> std::result::Result<(), JournalError> {
        let mut logged: BTreeMap<Address, _> = self.journal.logged_flags(escrow_id)?.into_iter().collect();
        let now_s = self.clock.now().unix_s();
        for flag in &view.flags {
            let known = logged.remove(&flag.participant);
            if known.is_none_or(|known| known.generation != flag.generation) {
                self.log_flag(escrow_id, "escrow_participant_state_blocked", now_s, flag)?;
            }
        }
        for (participant, flag) in logged {
            let stage = "escrow_participant_state_unblocked";
            self.journal.event(stage, now_s, flag, (escrow_id, participant), false)?;
        }
        Ok(())
    }

    pub(super) fn log_flag(
        &self,
        escrow_id: u64,
        stage: &str,
        at: u64,
        flag: &FlagView,
    ) -> std::result::Result<u64, JournalError> {
        let set = !stage.ends_with("_unblocked");
        self.journal.event(stage, at, machine::flag(flag, &self.hrp), (escrow_id, flag.participant), set)
    }

    /// A session ended.
    async fn ended(self: &Arc<Self>, escrow_id: u64, reason: RetireReason, last: Vec<u8>) {
        let end = match reason {
            RetireReason::Stopped => return,
            RetireReason::Settled => Ended::Settled,
            RetireReason::SelfCorrupt { nonce } => {
                tracing::error!(
                    escrow = escrow_id,
                    nonce,
                    "gateway_self_corrupt: the escrow is paid by dispute"
                );
                Ended::Retired
            }
        };
        let kept = blocking(self, move |inner| {
            inner.journal.update(escrow_id, |entry| {
                entry.last = last;
                // What is still owed keeps the entry alive until it is paid.
                if end == Ended::Settled {
                    entry.owed = None;
                }
                if entry.owed.is_none() {
                    entry.ended = Some(end);
                }
            })
        });
        if let Err(error) = kept.await {
            tracing::error!(escrow = escrow_id, %error, "gateway_end_not_kept");
        }
    }
}

/// Runs a session to its end; one that broke is opened again from its store.
async fn supervise(
    inner: Arc<Inner>,
    session: Arc<Session>,
    mut inbox: mpsc::Receiver<Input>,
    mut machine: Box<dyn Machine>,
    mut effects: Vec<Effect>,
) {
    let escrow_id = session.escrow_id;
    let mut broken = 0u32;
    loop {
        let caller = Caller {
            hosts: inner.hosts.clone(),
            key: Arc::clone(&inner.key),
            chain_id: inner.chain_id.clone(),
            clock: inner.clock,
            hrp: inner.hrp.clone(),
        };
        let began = Instant::now();
        let actor = Actor::new(Arc::clone(&inner), Arc::clone(&session), inbox, caller);
        let (end, back) = actor.run(machine, effects).await;
        inbox = back;
        match end {
            End::Retired { reason, last } => {
                tracing::info!(escrow = escrow_id, ?reason, "gateway_session_ended");
                inner.ended(escrow_id, reason, last).await;
                break;
            }
            // Troubles that are long over do not make this one wait.
            End::Broken if began.elapsed() > SOUND => broken = 0,
            End::Broken => {}
        }
        loop {
            broken = broken.saturating_add(1);
            sleep(Duration::from_millis(REOPEN.pause_ms(broken))).await;
            match inner.open_machine(&session).await {
                Ok(opened) => {
                    (machine, effects) = opened;
                    *session.broken.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    break;
                }
                // A disk may have room again.
                Err(error) => {
                    tracing::error!(escrow = escrow_id, %error, "gateway_session_not_opened");
                }
            }
        }
    }
    inner.sessions().remove(&escrow_id);
}
