//! The sessions of a process: one task for each, calls of hosts, clients, the chain.
//!
//! | part | what it is |
//! |---|---|
//! | `session`, `actor` | a session from its opening to its end; the task that owns it |
//! | `create` | escrows that this gateway creates |
//! | `folder` | what a folder of data tells of a journal that was lost |
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
mod create;
mod errors;
mod folder;
mod hosts;
mod journal;
mod machine;
mod replies;
mod requests;
mod session;
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
use holdfast_types::{Address, Hrp};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::chain::Chain;
use crate::core::{Event, FlagView, Verb, VerbError};
use crate::metrics;
use crate::rotation::Standing;
use crate::settings::Settings;
use actor::Input;
use session::Session;

pub use clock::Clock;
pub use errors::GatewayError;
pub use folder::{StraysError, strays};
pub use hosts::{Hosts, Lease, Reach};
pub use journal::{Audit, Ended, EscrowEntry, Intent, Journal, JournalError, Owed};
pub(crate) use machine::flag;
pub use machine::{CoreOpener, Glance, Machine, Opener, View};

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

/// Tokens that the smallest request reserves: a prompt of a byte, 64 for its frame, an answer of one.
const SMALLEST_TOKENS: u32 = 66;

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

/// How escrows are being replaced; requests that wait for a new one watch it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewals {
    /// Models of which the last attempt to open the next escrow failed.
    pub(crate) failed: BTreeSet<String>,
    /// Sessions opened so far.
    pub(crate) opened: u64,
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
    /// Escrows of the journal whose session could not be opened, and their models.
    unopened: Mutex<BTreeMap<u64, String>>,
    /// How escrows are being replaced.
    pub(crate) renewals: tokio::sync::watch::Sender<Renewals>,
    /// A request found no escrow that takes it: rotation looks at once.
    pub(crate) wanted: tokio::sync::Notify,
    /// The next escrow of a model is being opened.
    pub(crate) renewing: AtomicBool,
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
            unopened: Mutex::default(),
            renewals: tokio::sync::watch::Sender::default(),
            wanted: tokio::sync::Notify::new(),
            renewing: AtomicBool::new(false),
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
                Err(error) => {
                    tracing::error!(escrow = id, %error, "gateway_session_not_opened");
                    inner.unopened().insert(id, entry.model);
                }
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

    /// No more requests; the session is ended and settled, also after a restart.
    ///
    /// # Errors
    /// [`GatewayError::NoSession`], or the journal.
    pub async fn finalize(&self, escrow_id: u64) -> Result<()> {
        let session = self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        let entry = blocking(&self.0, move |inner| {
            inner.journal.update(escrow_id, |entry| entry.closing = true)?;
            inner.journal.escrow(escrow_id)
        })
        .await?;
        // A payment that was given up begins anew.
        if let Some(owed) = entry.and_then(|entry| entry.owed) {
            self.0.owe(escrow_id, owed);
        }
        self.0.send(&session, Input::Event(Event::Finalize)).await
    }

    /// [`Self::finalize`] for an operator; the audit row comes first. Gives its number.
    ///
    /// # Errors
    /// As `finalize`.
    pub async fn finalize_audited(&self, audit: Audit) -> Result<u64> {
        let escrow_id = audit.escrow_id;
        let session = self.0.session(escrow_id).ok_or(GatewayError::NoSession(escrow_id))?;
        let seq = blocking(&self.0, move |inner| inner.journal.audit(&audit)).await?;
        session.dismissed.store(true, Ordering::Release);
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
        let mut view = view.await.map_err(|_| GatewayError::NoSession(escrow_id))?;
        view.session.expires_at = session.row.expires_at;
        for row in &mut view.session.participants {
            let Ok(address) = Address::parse(&row.address, &self.0.hrp) else { continue };
            let Reach { url, reachable, cause } = self.0.hosts.reach(&address);
            (row.url, row.reachable, row.unreachable_cause) = (url, reachable, cause);
        }
        Ok(view)
    }

    /// Whether a session of `model` takes requests.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        self.0.sessions().values().any(|session| session.row.config.model == model && session.glance().active)
    }

    /// Escrows of `model` that are this gateway's and not over, but whose session could not be opened; ascending.
    #[must_use]
    pub fn unopened(&self, model: &str) -> Vec<u64> {
        let unopened = self.0.unopened();
        unopened.iter().filter(|(_, of)| *of == model).map(|(id, _)| *id).collect()
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
                blocks_left: session.row.expires_at.saturating_sub(height),
                glance: session.glance(),
                smallest: config
                    .token_price
                    .saturating_mul(SMALLEST_TOKENS.min(self.0.settings.offer.context_length).into())
                    .saturating_add(config.fee_per_nonce),
                too_dear: session.too_dear.load(Ordering::Relaxed),
                over: session.over(),
                dismissed: session.dismissed.load(Ordering::Acquire),
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

    fn unopened(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.unopened.lock().unwrap_or_else(PoisonError::into_inner)
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
