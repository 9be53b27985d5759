//! The sessions of a process: one task for each, calls of hosts, clients, the chain.
//!
//! | part | what it is |
//! |---|---|
//! | `actor` | the task that owns a session |
//! | `calls`, `hosts` | calls of hosts; connections and places in their queues |
//! | `requests` | requests of the HTTP API, over all sessions |
//! | `settle` | what is owed to the chain, until it is paid |
//! | `watch` | news of the chain |
//! | [`Journal`] | what is kept beside the sessions |
//!
//! Everything that runs is counted ([`Gateway::counts`]); after a session nothing of it is left.

mod actor;
mod calls;
mod clock;
mod hosts;
mod journal;
mod machine;
mod requests;
mod settle;
#[cfg(test)]
pub(crate) mod tests;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use holdfast_app::keys::SecretKey;
use holdfast_host::chain::ChainError;
use holdfast_types::{Address, Hrp};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::chain::{Chain, DeliverError, EscrowRow, NewEscrow, Order, TX_LIFE_BLOCKS, deliver_until};
use crate::core::{Event, FlagView, OpenError, RetireReason, Verb, VerbError};
use crate::metrics;
use crate::rotation::Standing;
use crate::settings::{Retry, Settings};
use actor::{Actor, End, Input};
use calls::Caller;

pub use clock::Clock;
pub use hosts::{Hosts, Lease};
pub use journal::{Audit, Ended, EscrowEntry, Intent, Journal, JournalError, Owed};
pub(crate) use machine::flag;
pub use machine::{CoreOpener, Glance, Machine, Opener, View};

/// How long the hosts of a session with an empty store may take to say what they have, and between two looks.
const ASK_MS: u64 = 5_000;
const LOOK_MS: u64 = 10;

/// Before a session whose machine panicked, or whose store took no commit, is opened again.
const REOPEN: Retry = Retry { first_ms: 1_000, max_ms: 60_000, attempts: u32::MAX };

/// What is alive in the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions.
    pub sessions: usize,
    /// Requests of clients.
    pub requests: usize,
    /// Calls of hosts.
    pub calls: usize,
    /// Tasks beside these: upkeep, settlements, probes.
    pub tasks: usize,
    /// Hosts that are kept.
    pub hosts: usize,
    /// Connections to them.
    pub connections: usize,
}

/// Why the gateway does not do it. Codes are stable.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A transaction.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// The session.
    #[error("escrow {escrow_id}: {source}")]
    Open {
        /// Which.
        escrow_id: u64,
        /// Why.
        source: OpenError,
    },
    /// What is kept beside the sessions.
    #[error("gateway journal: {0}")]
    Journal(#[from] JournalError),
    /// The chain knows no such escrow.
    #[error("escrow_unknown: the chain has no escrow {0}")]
    Unknown(u64),
    /// Another gateway's.
    #[error("wrong_key: escrow {escrow_id} names the gateway {expected:?}, this one's key is {found:?}")]
    NotOurs {
        /// Which.
        escrow_id: u64,
        /// As in its terms.
        expected: Address,
        /// Ours.
        found: Address,
    },
    /// It is over.
    #[error("escrow_ended: escrow {0} is over")]
    Ended(u64),
    /// It is for another model.
    #[error("wrong_model: escrow {escrow_id} is for {found}, which this gateway does not serve")]
    Model {
        /// Which.
        escrow_id: u64,
        /// Its model.
        found: String,
    },
    /// No session of it here.
    #[error("no_session: this gateway has no session of escrow {0}")]
    NoSession(u64),
    /// The process stops.
    #[error("stopping: the gateway stops")]
    Stopping,
    /// A verb.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// A defect.
    #[error("internal: {0}")]
    Internal(String),
}

type Result<T> = std::result::Result<T, GatewayError>;

/// Counts something while it lives.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Alive {
    requests: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    tasks: Arc<AtomicUsize>,
}

/// The side of a session that others see.
struct Session {
    escrow_id: u64,
    row: EscrowRow,
    /// Unix seconds.
    opened_at: u64,
    inbox: mpsc::Sender<Input>,
    glance: Mutex<Glance>,
    /// When a token came last, on the monotonic clock; 0 = never.
    token_at: AtomicU64,
    /// Calls of hosts under way.
    calls: AtomicUsize,
    /// No requests yet: its store is empty, and it is not known whether hosts have diffs of ours.
    held: AtomicBool,
    _lease: Lease,
}

impl Session {
    fn look(&self, glance: Glance) {
        *self.glance.lock().unwrap_or_else(PoisonError::into_inner) = glance;
    }

    fn glance(&self) -> Glance {
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

    fn alive(&self, mono_ms: u64) {
        self.token_at.store(mono_ms.max(1), Ordering::Relaxed);
    }
}

/// What a gateway is made of.
pub struct Parts {
    /// Limits and waits.
    pub settings: Settings,
    /// The chain.
    pub chain: Arc<dyn Chain>,
    /// Its id.
    pub chain_id: String,
    /// Prefix of addresses.
    pub hrp: Hrp,
    /// Signs diffs, calls and transactions.
    pub key: Arc<SecretKey>,
    /// Opens sessions.
    pub opener: Arc<dyn Opener>,
    /// What is kept beside them.
    pub journal: Arc<Journal>,
    /// Models that are served; escrows of others are refused.
    pub models: Vec<String>,
    /// The clocks that sessions are opened with.
    pub clock: Clock,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) chain: Arc<dyn Chain>,
    pub(crate) chain_id: String,
    pub(crate) hrp: Hrp,
    pub(crate) key: Arc<SecretKey>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) models: Vec<String>,
    pub(crate) clock: Clock,
    pub(crate) hosts: Hosts,
    opener: Arc<dyn Opener>,
    sessions: Mutex<BTreeMap<u64, Arc<Session>>>,
    /// Escrows whose payment is under way.
    settling: Mutex<BTreeSet<u64>>,
    alive: Alive,
    tasks: Mutex<JoinSet<()>>,
    next_request: AtomicU64,
    stopping: AtomicBool,
    /// One creation at a time, so that an intent names one transaction.
    creating: tokio::sync::Mutex<()>,
}

/// All sessions of a process. Clones are one.
#[derive(Clone)]
pub struct Gateway(pub(crate) Arc<Inner>);

impl Gateway {
    /// Without sessions, and with nothing running.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { settings, chain, chain_id, hrp, key, opener, journal, models, clock } = parts;
        Self(Arc::new(Inner {
            hosts: Hosts::new(settings.hosts.clone()),
            settings,
            chain,
            chain_id,
            hrp,
            key,
            journal,
            models,
            clock,
            opener,
            sessions: Mutex::default(),
            settling: Mutex::default(),
            alive: Alive::default(),
            tasks: Mutex::default(),
            next_request: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            creating: tokio::sync::Mutex::default(),
        }))
    }

    /// Takes up what an earlier process left: escrows, payments, an escrow under way. One that cannot be opened is
    /// left out and said; the others go on.
    ///
    /// # Errors
    /// The journal, or the chain.
    pub async fn resume(&self) -> Result<()> {
        let inner = &self.0;
        inner.hosts.set_urls(inner.chain.host_urls().await?);
        inner.settle_intent().await?;
        for (id, entry) in blocking(inner, |inner| inner.journal.escrows()).await? {
            if entry.ended.is_some() {
                continue;
            }
            if let Some(owed) = entry.owed {
                inner.owe(id, owed);
            }
            match self.open(id).await {
                Ok(()) if entry.closing => self.finalize(id).await?,
                Ok(()) | Err(GatewayError::Ended(_)) => {}
                Err(GatewayError::Chain(error)) => return Err(error.into()),
                Err(error) => tracing::error!(escrow = id, %error, "gateway_session_not_opened"),
            }
        }
        Ok(())
    }

    /// Begins upkeep: news of the chain, rotation, probes.
    pub fn begin(&self) {
        let inner = &self.0;
        inner.spawn("watch", watch::run(Arc::clone(inner)));
        inner.spawn("rotation", crate::rotation::run(self.clone()));
        if inner.settings.prober.budget > 0 {
            inner.spawn("prober", crate::prober::run(Arc::clone(inner)));
        }
    }

    /// Opens the session of an escrow; one that is open stays.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn open(&self, escrow_id: u64) -> Result<()> {
        self.open_new(escrow_id, false).await
    }

    /// [`Self::open`]; `created` = its escrow was created just now, so that nobody can have a diff of it.
    async fn open_new(&self, escrow_id: u64, created: bool) -> Result<()> {
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
        let disputed = row.status == crate::chain::EscrowStatus::Disputed;
        let (inbox, receiver) = mpsc::channel(inner.settings.inbox);
        let session = Arc::new(Session {
            escrow_id,
            opened_at: entry.opened_at,
            inbox,
            glance: Mutex::default(),
            token_at: AtomicU64::new(0),
            calls: AtomicUsize::new(1),
            held: AtomicBool::new(first && !created),
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
        inner
            .spawn("session", supervise(Arc::clone(inner), Arc::clone(&session), receiver, machine, effects));
        session.settle_in().await;
        // The hosts believe that this gateway is gone: a settlement goes before what they brought.
        if disputed { self.finalize(escrow_id).await } else { Ok(()) }
    }

    /// Creates an escrow and opens its session; `budget` is a budget that pays it.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn create(&self, new: NewEscrow, budget: Option<(&'static str, u128)>) -> Result<u64> {
        let inner = &self.0;
        let _one = inner.creating.lock().await;
        inner.finish_intent(budget.map(|(name, _)| name)).await?;
        let from = inner.chain.height().await?;
        let until = from.saturating_add(TX_LIFE_BLOCKS);
        let intent = Intent { model: new.model.clone(), amount: new.amount, from, until };
        blocking(inner, move |inner| inner.journal.intend(&intent, budget)).await?;
        let delivered = deliver_until(&*inner.chain, Order::Create(new), inner.poll(), until).await;
        let refund = budget.map(|(name, _)| name);
        let escrow_id = match delivered {
            Ok(outcome) => match outcome.escrow_id {
                Some(id) => id,
                // In a block, without its event: the rows tell.
                None => inner.finish_intent(refund).await?.ok_or_else(|| {
                    GatewayError::Internal("an escrow was created that nobody finds".into())
                })?,
            },
            // Nothing was done, for certain.
            Err(error @ (DeliverError::Void { .. } | DeliverError::Chain(ChainError::Refused { .. }))) => {
                blocking(inner, move |inner| inner.journal.give_up_intent(refund)).await?;
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        self.open_new(escrow_id, true).await?;
        Ok(escrow_id)
    }

    /// No more requests; the session is ended and settled, also after a restart.
    ///
    /// # Errors
    /// [`GatewayError::NoSession`], or the journal.
    pub async fn finalize(&self, escrow_id: u64) -> Result<()> {
        let session = self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        blocking(&self.0, move |inner| inner.journal.update(escrow_id, |entry| entry.closing = true)).await?;
        self.0.send(&session, Input::Event(Event::Finalize)).await
    }

    /// [`Self::finalize`] for an operator; the audit row comes first. Gives its number.
    ///
    /// # Errors
    /// As `finalize`.
    pub async fn finalize_audited(&self, audit: Audit) -> Result<u64> {
        let escrow_id = audit.escrow_id;
        self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        let seq = blocking(&self.0, move |inner| inner.journal.audit(&audit)).await?;
        self.finalize(escrow_id).await?;
        Ok(seq)
    }

    /// A verb of an operator; its audit row comes first. Gives its number and the flag after it.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn operate(&self, audit: Audit, verb: Verb) -> Result<(u64, Box<FlagView>)> {
        let escrow_id = audit.escrow_id;
        let session = self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        let participant = audit.participant.ok_or(VerbError::NotFlagged)?;
        let seq = blocking(&self.0, move |inner| inner.journal.audit(&audit)).await?;
        let (done, result) = oneshot::channel();
        self.0.send(&session, Input::Operator { participant, verb, done }).await?;
        let flag = result.await.map_err(|_| GatewayError::NoSession(escrow_id))??;
        Ok((seq, flag))
    }

    /// A host said, signed by `signer`, that its process started; gives whether the signer may say so.
    ///
    /// # Errors
    /// [`GatewayError::NoSession`].
    pub async fn announce(
        &self,
        escrow_id: u64,
        participant: Address,
        signer: Address,
        boot_id: String,
    ) -> Result<bool> {
        let session = self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        let (done, known) = oneshot::channel();
        self.0.send(&session, Input::Announce { participant, signer, boot_id, done }).await?;
        known.await.map_err(|_| GatewayError::NoSession(escrow_id))
    }

    /// A session as the service shows it.
    ///
    /// # Errors
    /// [`GatewayError::NoSession`].
    pub async fn view(&self, escrow_id: u64) -> Result<View> {
        let session = self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        let (done, view) = oneshot::channel();
        self.0.send(&session, Input::View(done)).await?;
        view.await.map_err(|_| GatewayError::NoSession(escrow_id))
    }

    /// Whether a session of `model` takes requests.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        self.0.sessions().values().any(|session| session.row.config.model == model && session.glance().active)
    }

    /// Ids of open sessions, ascending.
    #[must_use]
    pub fn escrows(&self) -> Vec<u64> {
        self.0.sessions().keys().copied().collect()
    }

    /// Open sessions as rotation sees them, at a height.
    pub(crate) fn standings(&self, height: u64) -> Vec<Standing> {
        let standing = |session: &Arc<Session>| {
            let config = &session.row.config;
            Standing {
                escrow_id: session.escrow_id,
                model: config.model.clone(),
                amount: config.amount,
                max_nonce: config.max_nonce,
                slots: u32::try_from(config.slots.len()).unwrap_or(u32::MAX),
                fee_per_nonce: config.fee_per_nonce,
                blocks_left: session.row.expires_at.saturating_sub(height),
                glance: session.glance(),
            }
        };
        self.0.sessions().values().map(standing).collect()
    }

    /// What is alive.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let inner = &self.0;
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Counts {
            sessions: inner.sessions().len(),
            requests: read(&inner.alive.requests),
            calls: read(&inner.alive.calls),
            tasks: read(&inner.alive.tasks),
            hosts: inner.hosts.len(),
            connections: inner.hosts.connections(),
        }
    }

    /// Ends all sessions and tasks; what is not done in time is broken off. Nothing of a session is lost: what it has
    /// told anybody is on disk.
    pub async fn stop(&self) {
        let inner = &self.0;
        inner.stopping.store(true, Ordering::Release);
        let sessions: Vec<_> = inner.sessions().values().cloned().collect();
        for session in sessions {
            // An inbox that is full is drained by the session.
            let _ =
                tokio::time::timeout(Duration::from_secs(1), session.inbox.send(Input::Event(Event::Stop)))
                    .await;
        }
        let ended = async {
            while inner.sessions().values().next().is_some() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(Duration::from_millis(inner.settings.stop_ms), ended).await.is_err() {
            tracing::warn!("gateway_stop_timeout: sessions are broken off");
        }
        let mut tasks = std::mem::take(&mut *inner.tasks());
        tasks.shutdown().await;
        inner.sessions().clear();
    }
}

impl Inner {
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Between two looks at the chain.
    pub(crate) fn poll(&self) -> Duration {
        Duration::from_millis(self.settings.poll_ms)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, escrow_id: u64) -> Option<Arc<Session>> {
        self.sessions().get(&escrow_id).cloned()
    }

    async fn send(&self, session: &Session, input: Input) -> Result<()> {
        let sent = session.inbox.send(input).await;
        sent.map_err(|_| GatewayError::NoSession(session.escrow_id))
    }

    /// Runs a task that ends with the gateway; a panic in it is counted and said.
    pub(crate) fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_counted(name, Counted::new(&self.alive.tasks), task);
    }

    fn spawn_counted(
        &self,
        name: &'static str,
        counted: Counted,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
        if self.stopping() {
            return;
        }
        tasks.spawn(async move {
            let _counted = counted;
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                metrics::panicked(name);
                tracing::error!(task = name, "gateway_task_panicked");
            }
        });
    }

    async fn open_machine(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<(Box<dyn Machine>, Vec<crate::core::Effect>)> {
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

    fn log_flag(
        &self,
        escrow_id: u64,
        stage: &str,
        at: u64,
        flag: &FlagView,
    ) -> std::result::Result<u64, JournalError> {
        let set = !stage.ends_with("_unblocked");
        self.journal.event(stage, at, machine::flag(flag, &self.hrp), (escrow_id, flag.participant), set)
    }

    /// Waits until it is known what became of an escrow that an earlier process was about to create; opens nothing.
    async fn settle_intent(self: &Arc<Self>) -> Result<()> {
        let _one = self.creating.lock().await;
        self.finish_intent(Some("rotation")).await.map(drop)
    }

    /// The escrow of the intent, if there is one: found among the chain's rows, or given up once its transaction is
    /// void. `refund` is the budget that gets its coins back then.
    async fn finish_intent(self: &Arc<Self>, refund: Option<&'static str>) -> Result<Option<u64>> {
        loop {
            let Some(intent) = blocking(self, |inner| inner.journal.intent()).await? else { return Ok(None) };
            // The height first: at `until + 1` or above the rows are complete.
            let height = self.chain.height().await?;
            let known: BTreeSet<u64> = blocking(self, |inner| inner.journal.escrows())
                .await?
                .into_iter()
                .map(|(id, _)| id)
                .collect();
            let rows = self.chain.own_open(&intent.model).await?;
            let found = rows.iter().find(|row| {
                row.created_at > intent.from
                    && row.config.amount == intent.amount
                    && !known.contains(&row.config.escrow_id)
            });
            if let Some(row) = found {
                let (id, model, now_s) = (row.config.escrow_id, intent.model, self.clock.now().unix_s());
                blocking(self, move |inner| inner.journal.adopt(id, &model, now_s)).await?;
                return Ok(Some(id));
            }
            if height > intent.until {
                blocking(self, move |inner| inner.journal.give_up_intent(refund)).await?;
                return Ok(None);
            }
            sleep(self.poll()).await;
        }
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

/// Runs something of the journal where it may block.
pub(crate) async fn blocking<T: Send + 'static>(
    inner: &Arc<Inner>,
    work: impl FnOnce(&Inner) -> std::result::Result<T, JournalError> + Send + 'static,
) -> Result<T> {
    let inner = Arc::clone(inner);
    let done = tokio::task::spawn_blocking(move || work(&inner)).await;
    Ok(done.map_err(|error| GatewayError::Internal(error.to_string()))??)
}

/// Runs a session to its end; one that broke is opened again from its store.
async fn supervise(
    inner: Arc<Inner>,
    session: Arc<Session>,
    mut inbox: mpsc::Receiver<Input>,
    mut machine: Box<dyn Machine>,
    mut effects: Vec<crate::core::Effect>,
) {
    let escrow_id = session.escrow_id;
    let mut broken = 0u32;
    loop {
        let caller = Caller {
            hosts: inner.hosts.clone(),
            key: Arc::clone(&inner.key),
            chain_id: inner.chain_id.clone(),
            clock: inner.clock,
        };
        let actor = Actor::new(Arc::clone(&inner), Arc::clone(&session), inbox, caller);
        let (end, back) = actor.run(machine, effects).await;
        inbox = back;
        match end {
            End::Retired { reason, last } => {
                tracing::info!(escrow = escrow_id, ?reason, "gateway_session_ended");
                inner.ended(escrow_id, reason, last).await;
                break;
            }
            End::Broken => loop {
                broken = broken.saturating_add(1);
                sleep(Duration::from_millis(REOPEN.pause_ms(broken))).await;
                match inner.open_machine(&session).await {
                    Ok(opened) => {
                        (machine, effects) = opened;
                        break;
                    }
                    // A disk may have room again.
                    Err(error) => {
                        tracing::error!(escrow = escrow_id, %error, "gateway_session_not_opened");
                    }
                }
            },
        }
    }
    inner.sessions().remove(&escrow_id);
}
