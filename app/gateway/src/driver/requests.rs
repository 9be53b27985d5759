//! Requests of the HTTP API: which escrow serves them, and their way back.
//!
//! A request goes to the escrow of its model that takes requests, can pay for it and has the fewest waiting. When that
//! one cannot after all, before a token came, the next is asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_proto::holdfast::runner::v1::FailureKind;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::actor::Input;
use super::{Counted, Gateway, Inner, Renewals, Session};
use crate::core::{ClientEvent, Event, RequestError, UserRequest};
use crate::openai;

/// Events that may wait for the HTTP side. More wait on the session's side.
const EVENTS: usize = 64;
/// How long after its deadline a request that nobody ended is ended here.
const GRACE: Duration = Duration::from_secs(10);
/// Longest wait for an escrow that is being opened in place of one that is used up.
const RENEWAL: Duration = Duration::from_secs(30);
/// A token within this time is a sign of life, milliseconds.
const SIGN_OF_LIFE_MS: u64 = 60_000;
/// When to try again, milliseconds.
const SOON_MS: u64 = 1_000;
const LATER_MS: u64 = 5_000;

impl openai::Sessions for Gateway {
    fn models(&self) -> Vec<openai::ModelInfo> {
        let inner = &self.0;
        let sessions = inner.sessions();
        let created = |model: &str| {
            let of_model = sessions.values().filter(|session| session.row.config.model == model);
            of_model.map(|session| session.opened_at).min()
        };
        // One that an operator ends takes no more requests, and is not replaced.
        let open = |model: &str| {
            let mut of_model = sessions.values().filter(|session| session.row.config.model == model);
            of_model.any(|session| !session.dismissed.load(Ordering::Acquire))
        };
        let offer = &inner.settings.offer;
        let info = |id: &String| {
            Some(openai::ModelInfo {
                id: id.clone(),
                created: created(id)?,
                open: open(id),
                context_length: offer.context_length,
                token_bytes_max: offer.token_bytes_max,
            })
        };
        inner.models.iter().filter_map(info).collect()
    }

    fn ready(&self) -> openai::Readiness {
        let inner = &self.0;
        let now = inner.clock.now().mono_ms;
        let mut ready = openai::Readiness { active_escrow: false, self_suspect: false, sign_of_life: false };
        let mut sound = false;
        for session in inner.sessions().values() {
            let glance = session.glance();
            ready.self_suspect |= glance.self_suspect;
            if glance.active {
                let token_at = session.token_at.load(Ordering::Relaxed);
                ready.active_escrow = true;
                sound |= !glance.self_suspect;
                ready.sign_of_life |=
                    glance.sign_of_life || (token_at > 0 && now.saturating_sub(token_at) <= SIGN_OF_LIFE_MS);
            }
        }
        // One sound escrow is enough.
        ready.self_suspect &= !sound;
        ready.active_escrow &= !inner.stopping();
        ready
    }

    fn submit(&self, submission: openai::Submission) -> openai::Answer {
        let (sender, events) = mpsc::channel(EVENTS);
        let (enough, had_enough) = oneshot::channel();
        let inner = &self.0;
        let counted = Counted::new(&inner.alive.requests);
        let relay = Relay {
            request_id: inner.next_request.fetch_add(1, Ordering::Relaxed),
            deadline_ms: inner.clock.now().mono_ms.saturating_add(submission.deadline_ms),
            inner: Arc::clone(inner),
            submission,
            out: sender,
        };
        inner.spawn_counted("request", counted, relay.run(had_enough));
        openai::Answer { events, enough }
    }
}

/// How one escrow took the request.
enum Tried {
    /// It ended, or the client did.
    Over,
    /// Nothing was sent to the client yet; another escrow may do better.
    Next(RequestError),
}

struct Relay {
    inner: Arc<Inner>,
    request_id: u64,
    submission: openai::Submission,
    deadline_ms: u64,
    out: mpsc::Sender<openai::Event>,
}

impl Relay {
    async fn run(self, enough: oneshot::Receiver<()>) {
        let mut enough = Some(enough);
        let mut renewals = self.inner.renewals.subscribe();
        let waits_until = Instant::now() + RENEWAL;
        let mut tried = BTreeSet::new();
        let failure = loop {
            renewals.mark_unchanged();
            let mut last = None;
            while let Some(session) = self.choose(&tried) {
                tried.insert(session.escrow_id);
                match self.ask(&session, &mut enough).await {
                    Tried::Over => return,
                    // A small refusal says more than a later one of an escrow that is at its end.
                    Tried::Next(error) => last = Some(worse(last, error)),
                }
            }
            let error = match last {
                Some(error) => error,
                None if self.inner.stopping() => RequestError::Stopping,
                None => self.nobody(),
            };
            let used_up = matches!(error, RequestError::EscrowExhausted | RequestError::TooDear { .. });
            if !used_up || !self.renewed(&mut renewals, waits_until).await {
                break self.told(&error);
            }
            if self.out.is_closed() {
                return;
            }
        };
        let _ = self.out.send(openai::Event::Failed(failure)).await;
    }

    /// The API's word for it; an escrow that an operator ends is not used up.
    fn told(&self, error: &RequestError) -> openai::Failure {
        let sessions = self.inner.sessions();
        let mut of_model =
            sessions.values().filter(|session| session.row.config.model == self.submission.model).peekable();
        let ended =
            of_model.peek().is_some() && of_model.all(|session| session.dismissed.load(Ordering::Acquire));
        match error {
            RequestError::EscrowExhausted if ended => {
                openai::Failure::EscrowEnding { retry_after_ms: LATER_MS }
            }
            error => failure(error),
        }
    }

    /// Waits for the next escrow of the model, if one is to be opened; gives whether sessions may have changed.
    async fn renewed(&self, renewals: &mut watch::Receiver<Renewals>, until: Instant) -> bool {
        let (inner, model) = (&self.inner, &self.submission.model);
        if Instant::now() >= until || self.inner.stopping() || renewals.borrow().failed.contains(model) {
            return false;
        }
        if !crate::rotation::renews(inner, model).await {
            return false;
        }
        inner.wanted.notify_one();
        let end = inner.clock.instant(self.deadline_ms).min(until);
        tokio::select! {
            changed = renewals.changed() => changed.is_ok(),
            () = self.out.closed() => true,
            () = tokio::time::sleep_until(end) => false,
        }
    }

    /// Why no escrow was even asked.
    fn nobody(&self) -> RequestError {
        let sessions = self.inner.sessions();
        let of_model =
            || sessions.values().filter(|session| session.row.config.model == self.submission.model);
        if of_model().any(|session| session.glance().self_suspect) {
            return RequestError::SelfSuspect;
        }
        // One that is being opened again is not used up.
        of_model().find_map(|session| session.broken()).unwrap_or(RequestError::EscrowExhausted)
    }

    /// The next escrow to ask: one that can pay first, then the fewest waiting, then the oldest.
    fn choose(&self, tried: &BTreeSet<u64>) -> Option<Arc<Session>> {
        let Relay { submission, inner, .. } = self;
        if inner.stopping() {
            return None;
        }
        let tokens = u128::from(submission.input_limit).saturating_add(submission.output_limit.into());
        let rank = |session: &Arc<Session>| {
            let (config, glance) = (&session.row.config, session.glance());
            let open = config.model == submission.model && glance.active && !glance.self_suspect;
            let price = tokens.saturating_mul(config.token_price).saturating_add(config.fee_per_nonce);
            (open && !tried.contains(&session.escrow_id)).then_some((
                price > glance.balance,
                glance.queued,
                session.escrow_id,
            ))
        };
        let sessions = inner.sessions();
        let ranked = sessions.values().filter_map(|session| Some((rank(session)?, session)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, session)| Arc::clone(session))
    }

    async fn ask(&self, session: &Session, enough: &mut Option<oneshot::Receiver<()>>) -> Tried {
        let Relay { submission, .. } = self;
        let (sender, mut events) = mpsc::channel(self.inner.settings.client_events);
        let request = UserRequest {
            request_id: self.request_id,
            label: submission.request_id.clone(),
            body: submission.body.to_vec(),
            input_limit: submission.input_limit,
            output_limit: submission.output_limit,
            deadline_ms: self.deadline_ms,
        };
        let traceparent = submission.traceparent.clone();
        match session.inbox.try_send(Input::Submit { request, traceparent, events: sender }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Tried::Next(RequestError::QueueFull),
            Err(TrySendError::Closed(_)) => return Tried::Next(RequestError::Stopping),
        }
        let end = self.inner.clock.instant(self.deadline_ms) + GRACE;
        let mut begun = false;
        loop {
            let event = tokio::select! {
                biased;
                event = events.recv() => event,
                () = self.out.closed() => return self.left(session).await,
                said = had_enough(enough) => match said {
                    true => return self.left(session).await,
                    false => {
                        *enough = None;
                        continue;
                    }
                },
                () = tokio::time::sleep_until(end) => {
                    let _ = self.out.try_send(openai::Event::Failed(openai::Failure::DeadlineExceeded));
                    return self.left(session).await;
                }
            };
            let Some(event) = event else {
                // The session went, or we were too slow for it.
                if begun || self.out.is_closed() {
                    return Tried::Over;
                }
                return Tried::Next(RequestError::Stopping);
            };
            let over = matches!(event, ClientEvent::Finished { .. } | ClientEvent::Failed(_));
            if let ClientEvent::Failed(error) = &event
                && !begun
                && passes_on(error)
            {
                // What others have reserved may come back.
                if let RequestError::TooDear { reserve, .. } = error
                    && session.glance().reserved == 0
                    && crate::rotation::ordinary(
                        *reserve,
                        session.row.config.amount,
                        &self.inner.settings.rotation,
                    )
                {
                    session.too_dear.fetch_add(1, Ordering::Relaxed);
                }
                return Tried::Next(error.clone());
            }
            begun |= matches!(event, ClientEvent::Delta { .. });
            if matches!(event, ClientEvent::Dispatched { .. }) {
                session.too_dear.store(0, Ordering::Relaxed);
            }
            let event = self.event(session, event);
            // The reader may be slow; meanwhile events wait on the session's side, bounded.
            tokio::select! {
                biased;
                sent = self.out.send(event) => {
                    if sent.is_err() {
                        return if over { Tried::Over } else { self.left(session).await };
                    }
                }
                () = tokio::time::sleep_until(end) => return self.left(session).await,
            }
            if over {
                return Tried::Over;
            }
        }
    }

    async fn left(&self, session: &Session) -> Tried {
        let event = Event::ClientLeft { request_id: self.request_id };
        // Fails only when the session is over.
        let _ = session.inbox.send(Input::Event(event)).await;
        Tried::Over
    }

    fn event(&self, session: &Session, event: ClientEvent) -> openai::Event {
        match event {
            ClientEvent::Dispatched { nonce, executor, slot: _ } => {
                openai::Event::Dispatched(openai::Dispatch { escrow: session.escrow_id, nonce, executor })
            }
            ClientEvent::Delta { index: _, text, token_ids } => openai::Event::Delta { text, token_ids },
            ClientEvent::Finished { finish_reason, prompt_tokens, completion_tokens } => {
                let finish_reason = match finish_reason.as_str() {
                    "length" => openai::FinishReason::Length,
                    _ => openai::FinishReason::Stop,
                };
                let usage = openai::Usage { prompt_tokens, completion_tokens };
                openai::Event::Finished { finish_reason, usage }
            }
            ClientEvent::Failed(error) => openai::Event::Failed(failure(&error)),
        }
    }
}

/// Whether the client has all it wants; one that was dropped says no, and is not to be asked again.
async fn had_enough(enough: &mut Option<oneshot::Receiver<()>>) -> bool {
    match enough {
        Some(said) => said.await.is_ok(),
        None => std::future::pending().await,
    }
}

/// Whether another escrow of the model may serve what this one cannot.
fn passes_on(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::EscrowExhausted
            | RequestError::SelfSuspect
            | RequestError::TooDear { .. }
            | RequestError::QueueFull
            | RequestError::Storage
            | RequestError::Stopping
            | RequestError::NoAvailableHost
    )
}

/// Of two refusals the one that tells the client more.
fn worse(last: Option<RequestError>, error: RequestError) -> RequestError {
    let rank = |error: &RequestError| match error {
        RequestError::TooDear { .. } => 0,
        RequestError::QueueFull => 1,
        RequestError::NoAvailableHost => 2,
        RequestError::SelfSuspect => 3,
        RequestError::EscrowExhausted => 4,
        _ => 5,
    };
    match (&last, &error) {
        // The escrow that could pay most.
        (Some(RequestError::TooDear { balance: other, .. }), RequestError::TooDear { balance, .. })
            if balance > other =>
        {
            return error;
        }
        _ => {}
    }
    match last {
        Some(last) if rank(&last) <= rank(&error) => last,
        _ => error,
    }
}

/// The API's word for a failure.
fn failure(error: &RequestError) -> openai::Failure {
    use openai::Failure;
    match error {
        RequestError::NoAvailableHost => Failure::NoAvailableHost { retry_after_ms: SOON_MS },
        RequestError::Stopping => Failure::NoAvailableHost { retry_after_ms: LATER_MS },
        RequestError::EscrowExhausted => Failure::EscrowExhausted { retry_after_ms: LATER_MS },
        RequestError::SelfSuspect => Failure::SelfSuspect { retry_after_ms: LATER_MS },
        RequestError::TooDear { reserve, balance } => {
            Failure::InsufficientBalance { asked: *reserve, left: *balance }
        }
        RequestError::TooLarge { .. } => Failure::ContextLengthExceeded,
        RequestError::QueueFull => Failure::QueueFull { retry_after_ms: SOON_MS },
        RequestError::DispatchesFailed { .. } => Failure::Host(FailureKind::StreamReset),
        RequestError::HostFailed { kind } => Failure::Host(host_failure(*kind)),
        RequestError::BodyRefused { .. } => Failure::BodyRefused,
        RequestError::Deadline => Failure::DeadlineExceeded,
        RequestError::Storage => Failure::Storage { retry_after_ms: LATER_MS },
        RequestError::Invalid(_) => Failure::Internal,
    }
}

fn host_failure(kind: i32) -> FailureKind {
    match FailureKind::try_from(kind) {
        Ok(FailureKind::Unspecified) | Err(_) => FailureKind::StreamReset,
        Ok(kind) => kind,
    }
}
