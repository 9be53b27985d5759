//! Hosts: where they are, connections to them, places in their queues.
//!
//! A host has connections for clients, opened as they are needed and bounded, and one for everything else, so that
//! teaching, proofs and votes never wait behind clients. A host is kept as long as a session or a probe holds a lease.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use holdfast_types::Address;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::{Channel, Endpoint};

use crate::core::{CallError, Lane};
use crate::settings::HostLimits;

/// All hosts of a process. Clones are one.
#[derive(Clone)]
pub struct Hosts(Arc<Shared>);

struct Shared {
    limits: HostLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    urls: BTreeMap<Address, String>,
    hosts: BTreeMap<Address, Entry>,
}

struct Entry {
    leases: usize,
    host: Arc<Host>,
}

/// Between two lines that say that a host is not reached.
const SAID: Duration = Duration::from_secs(60);

/// Where a host is, and whether the last call reached it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// As the chain has it; empty if it has none.
    pub url: String,
    /// None before the first call.
    pub reachable: Option<bool>,
    /// Why it was not reached.
    pub cause: String,
}

/// What is to be said of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It is not reached.
    Lost,
    /// It is reached again.
    Back,
}

/// What calls of a host tell of the way to it.
#[derive(Default)]
struct Contact {
    reachable: Option<bool>,
    cause: String,
    said_at: Option<Instant>,
    /// The line that it is not reached has no line yet that it is back.
    said: bool,
}

impl Contact {
    /// A call reached the host, or did not; gives what is new and not said within [`SAID`].
    fn heard(&mut self, now: Instant, failed: Option<String>) -> Option<News> {
        self.reachable = Some(failed.is_none());
        match failed {
            None => {
                self.cause.clear();
                std::mem::take(&mut self.said).then_some(News::Back)
            }
            Some(cause) => {
                self.cause = cause;
                let lately = self.said_at.is_some_and(|at| now.saturating_duration_since(at) < SAID);
                if self.said || lately {
                    return None;
                }
                (self.said, self.said_at) = (true, Some(now));
                Some(News::Lost)
            }
        }
    }
}

struct Host {
    contact: Mutex<Contact>,
    /// Calls for clients.
    users: Arc<Semaphore>,
    votes: Arc<Semaphore>,
    lines: Mutex<Lines>,
}

/// Connections to one URL.
#[derive(Default)]
struct Lines {
    url: String,
    users: Vec<Line>,
    free: Option<Channel>,
}

struct Line {
    channel: Channel,
    calls: Arc<AtomicUsize>,
}

/// A connection to use for one call.
pub(super) struct Seat {
    pub(super) channel: Channel,
    calls: Option<Arc<AtomicUsize>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(calls) = &self.calls {
            calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Which queue a call waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// Clients'.
    User,
    /// None.
    Free,
    /// Votes of all sessions.
    Vote,
}

impl From<Lane> for Queue {
    fn from(lane: Lane) -> Self {
        match lane {
            Lane::User => Self::User,
            Lane::Free => Self::Free,
        }
    }
}

/// Keeps hosts, and gives them up when dropped.
pub struct Lease {
    hosts: Hosts,
    members: Vec<Address>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.hosts.lock();
        for member in &self.members {
            if let Some(entry) = state.hosts.get_mut(member) {
                entry.leases = entry.leases.saturating_sub(1);
                if entry.leases == 0 {
                    state.hosts.remove(member);
                }
            }
        }
    }
}

impl Hosts {
    /// None yet.
    #[must_use]
    pub fn new(limits: HostLimits) -> Self {
        Self(Arc::new(Shared { limits, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limits(&self) -> &HostLimits {
        &self.0.limits
    }

    /// Replaces what is known of URLs. Connections to a URL that is not the host's any more go.
    pub fn set_urls(&self, urls: BTreeMap<Address, String>) {
        let mut state = self.lock();
        for (address, entry) in &state.hosts {
            let mut lines = entry.host.lines();
            if urls.get(address) != Some(&lines.url) {
                *lines = Lines::default();
            }
        }
        state.urls = urls;
    }

    /// Keeps `members` until the lease is dropped.
    pub fn lease(&self, members: Vec<Address>) -> Lease {
        let mut state = self.lock();
        for member in &members {
            let entry = state.hosts.entry(*member).or_insert_with(|| Entry {
                leases: 0,
                host: Arc::new(Host {
                    contact: Mutex::default(),
                    users: Arc::new(Semaphore::new(
                        self.0
                            .limits
                            .connections
                            .saturating_mul(self.0.limits.streams)
                            .min(Semaphore::MAX_PERMITS),
                    )),
                    votes: Arc::new(Semaphore::new(self.0.limits.votes)),
                    lines: Mutex::default(),
                }),
            });
            entry.leases = entry.leases.saturating_add(1);
        }
        Lease { hosts: self.clone(), members }
    }

    /// The URL of a host, as the chain has it.
    #[must_use]
    pub fn url(&self, member: &Address) -> Option<String> {
        self.lock().urls.get(member).cloned()
    }

    /// Where a host is, and whether the last call reached it.
    #[must_use]
    pub fn reach(&self, member: &Address) -> Reach {
        let state = self.lock();
        let url = state.urls.get(member).cloned().unwrap_or_default();
        let Some(entry) = state.hosts.get(member) else { return Reach { url, ..Reach::default() } };
        let contact = entry.host.contact();
        Reach { url, reachable: contact.reachable, cause: contact.cause.clone() }
    }

    /// A call reached `member`, or failed on the way for this cause; gives what is to be said of it.
    pub(super) fn heard(&self, member: &Address, failed: Option<String>) -> Option<News> {
        let host = self.lock().hosts.get(member).map(|entry| Arc::clone(&entry.host))?;
        host.contact().heard(Instant::now(), failed)
    }

    /// Hosts that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().hosts.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Connections that are kept.
    #[must_use]
    pub fn connections(&self) -> usize {
        let state = self.lock();
        let count = |entry: &Entry| {
            let lines = entry.host.lines();
            lines.users.len().saturating_add(usize::from(lines.free.is_some()))
        };
        state.hosts.values().map(count).sum()
    }

    /// A connection to `member`, after a place in the queue.
    pub(super) async fn seat(&self, member: &Address, queue: Queue) -> Result<Seat, CallError> {
        let (host, url) = {
            let state = self.lock();
            let host = state.hosts.get(member).map(|entry| Arc::clone(&entry.host));
            (host.ok_or(CallError::Aborted)?, state.urls.get(member).cloned().ok_or(CallError::Transport)?)
        };
        let limits = &self.0.limits;
        let place = match queue {
            Queue::User => Some(place(&host.users, limits.admission_ms).await?),
            Queue::Vote => Some(place(&host.votes, limits.vote_wait_ms).await?),
            Queue::Free => None,
        };
        let mut lines = host.lines();
        if lines.url != url {
            *lines = Lines { url, ..Lines::default() };
        }
        if queue != Queue::User {
            let channel = match &lines.free {
                Some(channel) => channel.clone(),
                None => {
                    let channel = dial(&lines.url, limits)?;
                    lines.free.insert(channel).clone()
                }
            };
            return Ok(Seat { channel, calls: None, _place: place });
        }
        let free = |line: &Line| line.calls.load(Ordering::Relaxed) < limits.streams;
        let index = match lines.users.iter().position(free) {
            Some(index) => index,
            None => {
                let channel = dial(&lines.url, limits)?;
                lines.users.push(Line { channel, calls: Arc::default() });
                lines.users.len().saturating_sub(1)
            }
        };
        let line = lines.users.get(index).ok_or(CallError::Aborted)?;
        line.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Seat { channel: line.channel.clone(), calls: Some(Arc::clone(&line.calls)), _place: place })
    }
}

impl Host {
    fn contact(&self) -> MutexGuard<'_, Contact> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in a queue; our own limit blames nobody.
async fn place(queue: &Arc<Semaphore>, wait_ms: u64) -> Result<OwnedSemaphorePermit, CallError> {
    let place = Arc::clone(queue).acquire_owned();
    match tokio::time::timeout(Duration::from_millis(wait_ms), place).await {
        Ok(Ok(place)) => Ok(place),
        Ok(Err(_)) | Err(_) => Err(CallError::Aborted),
    }
}

/// A connection that is made when it is first used, and again after it broke.
fn dial(url: &str, limits: &HostLimits) -> Result<Channel, CallError> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| CallError::Transport)?;
    // Without TLS here: a proxy in front of gateway and host brings it.
    if endpoint.uri().scheme_str() != Some("http") {
        return Err(CallError::Transport);
    }
    let keep_alive = Duration::from_millis(limits.keep_alive_ms);
    let endpoint = endpoint
        .connect_timeout(Duration::from_millis(limits.connect_ms))
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keep_alive_interval(keep_alive)
        .keep_alive_timeout(keep_alive);
    Ok(endpoint.connect_lazy())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Address = Address([1; 20]);
    const B: Address = Address([2; 20]);

    fn hosts(limits: HostLimits) -> Hosts {
        let hosts = Hosts::new(limits);
        hosts.set_urls(BTreeMap::from([
            (A, "http://127.0.0.1:9".to_owned()),
            (B, "https://127.0.0.1:9".to_owned()),
        ]));
        hosts
    }

    #[test]
    fn a_host_that_is_not_reached_is_said_once_and_again_when_it_is_back() {
        let (mut contact, began) = (Contact::default(), Instant::now());
        let mut at = |s, failed: bool| {
            contact.heard(began + Duration::from_secs(s), failed.then(|| "connection refused".to_owned()))
        };
        assert_eq!([at(0, false), at(1, true), at(2, true)], [None, Some(News::Lost), None]);
        assert_eq!([at(500, true), at(501, false), at(502, false)], [None, Some(News::Back), None]);
        // One that comes and goes is said once a minute.
        assert_eq!([at(600, true), at(601, false)], [Some(News::Lost), Some(News::Back)]);
        assert_eq!([at(602, true), at(603, false), at(604, true)], [None, None, None]);
        assert_eq!(at(660, true), Some(News::Lost));
        assert_eq!((contact.reachable, contact.cause.as_str()), (Some(false), "connection refused"));
    }

    #[tokio::test]
    async fn connections_grow_with_calls_and_go_with_the_last_lease() {
        let hosts =
            hosts(HostLimits { connections: 2, streams: 2, admission_ms: 10, ..HostLimits::default() });
        assert!(matches!(hosts.seat(&A, Queue::User).await, Err(CallError::Aborted)), "nobody holds a lease");
        let (first, second) = (hosts.lease(vec![A]), hosts.lease(vec![A, B]));
        let mut seats = Vec::new();
        for wanted in [1, 1, 2, 2] {
            seats.push(hosts.seat(&A, Queue::User).await.unwrap());
            assert_eq!(hosts.connections(), wanted);
        }
        // All places are taken; teaching has its own connection and waits for nobody.
        assert!(matches!(hosts.seat(&A, Queue::User).await, Err(CallError::Aborted)));
        drop(hosts.seat(&A, Queue::Free).await.unwrap());
        assert_eq!(hosts.connections(), 3);
        seats.pop();
        drop(hosts.seat(&A, Queue::User).await.unwrap());
        assert_eq!(hosts.connections(), 3);
        drop(first);
        assert_eq!((hosts.len(), hosts.connections()), (2, 3));
        drop(second);
        assert_eq!((hosts.len(), hosts.connections()), (0, 0));
    }

    #[tokio::test]
    async fn another_url_drops_old_connections_and_one_without_plain_http_is_no_host() {
        let hosts = hosts(HostLimits::default());
        let _lease = hosts.lease(vec![A, B]);
        drop(hosts.seat(&A, Queue::User).await.unwrap());
        assert!(matches!(hosts.seat(&B, Queue::Free).await, Err(CallError::Transport)));
        assert_eq!(hosts.connections(), 1);
        hosts.set_urls(BTreeMap::from([(A, "http://127.0.0.1:10".to_owned())]));
        assert_eq!(hosts.connections(), 0);
        assert!(matches!(hosts.seat(&B, Queue::User).await, Err(CallError::Transport)));
    }
}
