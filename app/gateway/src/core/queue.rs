//! Requests that wait, and what becomes of the next nonce: the picker inside the critical section.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_escrow::session::Phase;
use holdfast_types::Address;

use super::GatewayCore;
use super::api::{ClientEvent, RequestError, UserRequest};
use super::limiter::Verdict;
use super::members::Bound;
use super::picker::{Look, Pick, Standing, pick};
use super::sequencer::{Step, StepError};
use super::store::StartKind;

/// Body of a ghost. It can be run: a voter may challenge it.
pub(super) const GHOST_BODY: &[u8] = br#"{"messages":[{"role":"user","content":"ping"}],"max_tokens":1}"#;
/// Limits of a ghost: tokens of prompt and answer.
pub(super) const GHOST_LIMITS: (u32, u32) = (64, 1);
/// Steps of the picker per event. Each makes a diff durable, and what was dispatched leaves only after the event.
const MAX_STEPS: usize = 16;

/// Nonces of a request whose hosts said that nobody can serve its body; `None` once a dispatch ended otherwise.
pub(super) type Refused = Option<BTreeMap<u64, Address>>;

/// A request on its way to a host.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    pub(super) request: UserRequest,
    /// Participants that had it.
    pub(super) excluded: BTreeSet<Address>,
    pub(super) dispatches: u32,
    /// Passes and ghosts that it caused.
    pub(super) burned: u64,
    pub(super) since_ms: u64,
    /// Kind of the last signed failure.
    pub(super) kind: Option<i32>,
    pub(super) refused: Refused,
    /// The client left while its Start was staged.
    pub(super) gone: bool,
}

impl GatewayCore {
    /// A client asks.
    pub(super) fn request(&mut self, request: UserRequest) {
        let id = request.request_id;
        let known = self.queue.iter().any(|asking| asking.request.request_id == id)
            || self.flights.values().any(|f| f.asking.as_ref().is_some_and(|a| a.request.request_id == id));
        let price = self.terms.token_price;
        let tokens = u128::from(request.input_limit) + u128::from(request.output_limit);
        let reserve = tokens.saturating_mul(price);
        let free = self.state.balance().saturating_sub(self.terms.fee_per_nonce);
        let error = if known {
            Some(RequestError::Invalid("the request id is in use"))
        } else if request.body.is_empty() || request.input_limit == 0 || request.output_limit == 0 {
            Some(RequestError::Invalid("an empty body or a limit of zero tokens"))
        } else if request.body.len() > self.cfg.body_bytes {
            Some(RequestError::TooLarge { limit: self.cfg.body_bytes as u64 })
        } else if request.deadline_ms <= self.now.mono_ms {
            Some(RequestError::Deadline)
        } else if let Some(error) = self.closed() {
            Some(error)
        } else if self.queue.len() >= self.cfg.queue {
            Some(RequestError::QueueFull)
        } else if reserve > free {
            Some(RequestError::TooDear { reserve, balance: free })
        } else {
            None
        };
        if let Some(error) = error {
            return self.tell(id, ClientEvent::Failed(error));
        }
        self.queue.push_back(Asking {
            since_ms: self.now.mono_ms,
            request,
            excluded: BTreeSet::new(),
            dispatches: 0,
            burned: 0,
            kind: None,
            refused: Some(BTreeMap::new()),
            gone: false,
        });
    }

    /// Why no request is taken now, whoever sends it.
    pub(super) fn closed(&self) -> Option<RequestError> {
        if self.stopping {
            return Some(RequestError::Stopping);
        }
        if self.staged.is_some() || self.ledger.failed {
            return Some(RequestError::Storage);
        }
        if self.suspected() {
            return Some(RequestError::SelfSuspect);
        }
        let smallest = self.terms.token_price.saturating_mul(2).saturating_add(self.terms.fee_per_nonce);
        let over = self.meta.closing
            || self.meta.expired
            || self.state.phase() != Phase::Active
            || self.state.must_finalize()
            || self.state.balance() < smallest && self.state.reserved() == 0;
        over.then_some(RequestError::EscrowExhausted)
    }

    /// Answers everyone who waits.
    pub(super) fn fail_queue(&mut self, error: RequestError) {
        for asking in std::mem::take(&mut self.queue) {
            self.end_asking(asking, error.clone());
        }
    }

    /// A request that no host has now fails.
    pub(super) fn end_asking(&mut self, asking: Asking, error: RequestError) {
        self.tell(asking.request.request_id, ClientEvent::Failed(error));
    }

    /// Runs the picker until it holds.
    pub(super) fn pick_all(&mut self) {
        for _ in 0..MAX_STEPS {
            if self.staged.is_some() || self.settling_in() || self.stopping || self.over.is_some() {
                return;
            }
            let Some(look) = self.look() else { return };
            match pick(&look, self.cfg.hold_ms) {
                Pick::Hold(until) => return self.wake_at(until),
                Pick::Pass => {
                    if !self.pass() {
                        return;
                    }
                }
                Pick::Refuse(error) => {
                    self.ping_throttled();
                    self.fail_queue(error);
                }
                Pick::Ghost(kind) => {
                    if !self.ghost(kind) {
                        return;
                    }
                }
                Pick::Ping(until) => {
                    if let Some(owner) = self.next_owner() {
                        self.ping(&owner);
                    }
                    return self.wake_at(Some(until));
                }
                Pick::Dispatch(index) => {
                    if !self.dispatch(index) {
                        return;
                    }
                }
            }
        }
        // More is to be done, but not in this event.
        self.wake_at(Some(self.now.mono_ms.saturating_add(1)));
    }

    pub(super) fn next_owner(&self) -> Option<Address> {
        self.terms.executor_of(self.state.nonce().saturating_add(1))
    }

    /// What the picker looks at; `None` when no diff can follow.
    pub(super) fn look(&mut self) -> Option<Look> {
        self.end_hopeless();
        let queued = !self.queue.is_empty();
        let now = self.now.mono_ms;
        let flush_at_ms = self.flush_at();
        if !queued && !self.may_flush() {
            return None;
        }
        let owner = self.next_owner()?;
        let member = self.members.get(&owner)?;
        let hold_until_ms = self.queue.front().map_or(now, |a| a.since_ms.saturating_add(self.cfg.hold_ms));
        let candidate = self.queue.iter().position(|asking| {
            let tokens = u128::from(asking.request.input_limit) + u128::from(asking.request.output_limit);
            let needed =
                tokens.saturating_mul(self.terms.token_price).saturating_add(self.terms.fee_per_nonce);
            !asking.excluded.contains(&owner) && needed <= self.state.balance()
        });
        Some(Look {
            queued,
            flush_due: flush_at_ms.is_some_and(|at| at <= now),
            flush_at_ms,
            refuse: self.closed().or_else(|| self.nobody()),
            standing: self.standing(&owner),
            limiter: member.limiter.verdict(now, self.cfg.ping_ms, self.cfg.hold_ms),
            candidate,
            hold_until_ms,
            live_full: self.state.live_len() >= self.terms.max_live,
            now_ms: now,
        })
    }

    /// Whether a pass may follow when nobody asks. Who doubts itself signs nothing that nobody asked for.
    pub(super) fn may_flush(&self) -> bool {
        self.state.phase() == Phase::Active
            && !self.state.must_finalize()
            && !self.broke()
            && (!self.suspected() || self.may_untie())
            && !self.settling_in()
            && self.staged.is_none()
            && self.corrupt.is_none()
    }

    /// When the oldest pending transaction or timeout is to be published without traffic.
    pub(super) fn flush_at(&self) -> Option<u64> {
        let ripe = self.ripe.values().map(|(_, since)| *since).min();
        let oldest = self.pending.oldest_ms().into_iter().chain(ripe).min();
        oldest.map(|since| since.saturating_add(self.cfg.flush_ms))
    }

    /// Whether a participant can be sent anything: not flagged, not excused, not open, not of other terms.
    pub(super) fn usable(&self, participant: &Address) -> bool {
        self.members.get(participant).is_some_and(|member| {
            !member.absent
                && member.bound != Bound::Differs
                && !member.limiter.is_open(self.now.mono_ms)
                && !self.flagged(participant)
        })
    }

    /// Row 2: no unflagged reachable participant. A participant whose ping is due or out is not unreachable yet.
    pub(super) fn nobody(&self) -> Option<RequestError> {
        let now = self.now.mono_ms;
        let some = self.members.iter().any(|(participant, member)| {
            let open = matches!(
                member.limiter.verdict(now, self.cfg.ping_ms, self.cfg.hold_ms),
                Verdict::Failed | Verdict::Undecided
            );
            !open && !member.absent && member.bound != Bound::Differs && !self.flagged(participant)
        });
        (!some).then_some(RequestError::NoAvailableHost)
    }

    pub(super) fn standing(&self, owner: &Address) -> Standing {
        use holdfast_escrow::repair::NonceUse;
        let absent = self.members.get(owner).is_some_and(|m| m.absent || m.bound == Bound::Differs);
        match self.nonce_use(owner) {
            _ if absent => Standing::Passed,
            NonceUse::Pass => Standing::Passed,
            NonceUse::Ghost => Standing::GaveUp,
            NonceUse::Free => Standing::Clear,
        }
    }

    /// Ends requests that nobody is left for: 2·N passes and ghosts, or every usable participant tried.
    pub(super) fn end_hopeless(&mut self) {
        let budget = self.terms.group_size().saturating_mul(2);
        let usable: Vec<Address> = self.members.keys().filter(|p| self.usable(p)).copied().collect();
        let hopeless = |asking: &Asking| {
            asking.burned >= budget
                || !asking.excluded.is_empty() && usable.iter().all(|p| asking.excluded.contains(p))
        };
        if !self.queue.iter().any(hopeless) {
            return;
        }
        let (gone, rest) = std::mem::take(&mut self.queue).into_iter().partition(hopeless);
        self.queue = rest;
        let gone: VecDeque<Asking> = gone;
        for asking in gone {
            let error = self.last_error(&asking);
            self.end_asking(asking, error);
        }
    }

    pub(super) fn last_error(&self, asking: &Asking) -> RequestError {
        if let Some(refused) = asking.refused.as_ref().filter(|refused| !refused.is_empty()) {
            let attempts = u32::try_from(refused.len()).unwrap_or(u32::MAX);
            return RequestError::BodyRefused { attempts };
        }
        match (asking.kind, asking.dispatches) {
            (Some(kind), _) => RequestError::HostFailed { kind },
            (None, 0) => RequestError::NoAvailableHost,
            (None, attempts) => RequestError::DispatchesFailed { attempts },
        }
    }

    /// The oldest request pays for a nonce that serves nobody.
    pub(super) fn burn(&mut self) {
        if let Some(asking) = self.queue.front_mut() {
            asking.burned += 1;
        }
    }

    pub(super) fn pass(&mut self) -> bool {
        let owner = self.next_owner();
        let counted = !self.queue.is_empty();
        match self.advance(Step::Pass) {
            Ok(_) => {
                if counted {
                    self.burn();
                    if let Some(member) = owner.and_then(|owner| self.members.get_mut(&owner)) {
                        member.counters.passes += 1;
                        member.dirty = true;
                    }
                }
                true
            }
            Err(StepError::Refused(error)) => {
                self.log("escrow_pass_refused", true, None, vec![("error", error.to_string())]);
                self.fail_queue(RequestError::EscrowExhausted);
                false
            }
            Err(StepError::Storage(_)) => false,
        }
    }

    pub(super) fn ghost(&mut self, kind: StartKind) -> bool {
        let (input_limit, output_limit) = GHOST_LIMITS;
        let body = GHOST_BODY.to_vec();
        match self.advance(Step::Start { input_limit, output_limit, body, kind, asking: None }) {
            Ok(_) => {
                self.burn();
                true
            }
            // Without coins for a ghost the nonce is passed.
            Err(StepError::Refused(..)) => self.pass(),
            Err(StepError::Storage(_)) => false,
        }
    }

    pub(super) fn count_ghost(&mut self, nonce: u64, kind: StartKind) {
        let Some(owner) = self.terms.executor_of(nonce) else { return };
        let repairing = self.repairing(&owner);
        if let Some(member) = self.member(&owner) {
            member.counters.ghosts += 1;
            member.counters.accountable_ghosts_during_repair += u64::from(repairing);
            member.dirty = true;
        }
        self.metric_count("gateway_ghosts_total", Some(owner), 1);
        self.log(
            "escrow_ghost",
            false,
            Some(owner),
            vec![("nonce", nonce.to_string()), ("kind", format!("{kind:?}"))],
        );
    }

    pub(super) fn dispatch(&mut self, index: usize) -> bool {
        let Some(mut asking) = self.queue.remove(index) else { return false };
        asking.dispatches += 1;
        let body = asking.request.body.clone();
        let (input_limit, output_limit) = (asking.request.input_limit, asking.request.output_limit);
        let (kind, id) = (StartKind::Sent, asking.request.request_id);
        let step = Step::Start { input_limit, output_limit, body, kind, asking: Some(asking) };
        match self.advance(step) {
            Ok(_) => true,
            Err(StepError::Refused(error)) => {
                self.log("escrow_start_refused", true, None, vec![("error", error.to_string())]);
                self.tell(id, ClientEvent::Failed(RequestError::EscrowExhausted));
                true
            }
            Err(StepError::Storage(given_back)) => {
                if given_back.is_some() {
                    self.tell(id, ClientEvent::Failed(RequestError::Storage));
                }
                false
            }
        }
    }
}
