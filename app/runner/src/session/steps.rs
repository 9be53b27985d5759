//! Steps of a session: through the shards of its route in layer order, into the ledger, out to the client.

use crate::adapter::{
    AdapterError, Bundle, Counts, Digest, KvKey, Payload, ShardInfo, StepOut, StepRef, StepState, fingerprint,
};
use crate::deadline::StreamTerminated;
use crate::failure::{FailureKind, classify};
use crate::ledger::{Resolution, StepDisposition, StepKey};
use crate::restart::Emit;
use crate::scheduler::{Progress, Slot, Work};
use crate::session::core::{Phase, SessionCore, State, Turn};
use crate::session::{Effect, ShardNo};

/// A step between its intent and its commit.
pub(super) struct Flight {
    pub(super) step: StepRef,
    /// Shard that has it now.
    pub(super) hop: usize,
    work: Work,
    position: u32,
    input: Vec<u32>,
}

impl Flight {
    fn prefill(&self) -> bool {
        matches!(self.work, Work::Prefill { .. })
    }

    /// Whether the client gets a token by it.
    fn gives_token(&self) -> bool {
        matches!(self.work, Work::Decode | Work::Prefill { last: true, .. })
    }
}

impl SessionCore {
    /// A slot of an iteration: the intent, then the first shard.
    pub(super) fn start_step(&mut self, slot: Slot, t: &mut Turn<'_>) {
        let key = slot.key;
        let id = key.session;
        if self.check_guard(id, t) {
            self.scheduler.step_done(key, t.now.ms, false);
            return;
        }
        let ready = self
            .live(key)
            .is_some_and(|attempt| matches!(attempt.phase, Phase::Running) && attempt.flight.is_none());
        let session = self.sessions.get_mut(&id).filter(|_| ready);
        let Some(session) = session else {
            self.scheduler.step_done(key, t.now.ms, false);
            return;
        };
        let State::Live(attempt) = &mut session.state else { return };
        let prompt = &session.request.prompt;
        let (position, input) = match slot.work {
            Work::Prefill { from, len, .. } => {
                let (start, end) = (from as usize, from.saturating_add(len) as usize);
                (from, prompt.get(start..end).map(<[u32]>::to_vec))
            }
            Work::Decode => {
                // The last token has no row yet: it is the input.
                let rows = prompt.len() + attempt.tokens.len().saturating_sub(1);
                (u32::try_from(rows).unwrap_or(u32::MAX), attempt.tokens.last().map(|last| vec![*last]))
            }
        };
        let (Some(input), Some(first)) = (input, attempt.route.first()) else {
            self.internal(key, "a slot without input", t);
            return;
        };
        let step = StepRef {
            step: attempt.next_step,
            fingerprint: fingerprint(
                &first.info.model_digest,
                id,
                position,
                &input,
                session.request.sampling,
            ),
        };
        let first = first.no;
        match t.ledger.begin(StepKey::new(key, step.step), step.fingerprint) {
            Ok(StepDisposition::Fresh) => {}
            Ok(StepDisposition::Replay { token, logits_digest }) => {
                // It ran before: no shard is asked.
                attempt.flight = Some(Flight { step, hop: 0, work: slot.work, position, input });
                self.committed(key, token, logits_digest, true, t);
                return;
            }
            Ok(refused) => {
                self.internal(key, &format!("the ledger refused step {}: {refused:?}", step.step), t);
                return;
            }
            Err(error) => {
                self.internal(key, &format!("the ledger refused step {}: {error}", step.step), t);
                return;
            }
        }
        let bundle = Bundle::new(position, Payload::Tokens(input.clone()));
        let flight = Flight { step, hop: 0, work: slot.work, position, input };
        let prefill = flight.prefill();
        session.guard.call_started(t.now.ms);
        if prefill && flight.gives_token() {
            session.guard.awaiting_first_token(t.now.ms);
        }
        attempt.flight = Some(flight);
        let token = Some(session.token.clone());
        self.with_key(key, t, |group, _| {
            group.step_sent(step.step);
            Vec::new()
        });
        t.effects.push(Effect::Step { shard: first, token, key, step, prefill, bundle });
        self.rearm(id, t.now.ms);
    }

    /// A defect: the session ends, the others never notice.
    fn internal(&mut self, key: KvKey, what: &str, t: &mut Turn<'_>) {
        tracing::error!(session = %key.session, epoch = key.epoch, what, "a session ends by a defect");
        let kind = FailureKind::Internal;
        self.scheduler.step_done(key, t.now.ms, false);
        self.end(key.session, StreamTerminated::of(kind, kind.default_cause()), None, t);
    }

    /// Whether `shard` has this step now. Anything else is late, double or foreign.
    fn expects(&mut self, shard: ShardNo, key: KvKey, step: u32) -> bool {
        self.live(key).is_some_and(|attempt| {
            matches!(attempt.phase, Phase::Running | Phase::Stopping)
                && attempt.flight.as_ref().is_some_and(|flight| {
                    flight.step.step == step
                        && attempt.route.get(flight.hop).is_some_and(|hop| hop.no == shard)
                })
        })
    }

    pub(super) fn step_ended(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        step: u32,
        result: Result<StepOut, AdapterError>,
        counts: Option<Counts>,
        t: &mut Turn<'_>,
    ) {
        if !self.expects(shard, key, step) {
            self.telemetry.stale_event();
            return;
        }
        // A deadline reached by now comes first; the step may still count if its shards are being waited for.
        if self.check_guard(key.session, t) && !self.expects(shard, key, step) {
            self.telemetry.stale_event();
            return;
        }
        let Some(session) = self.sessions.get_mut(&key.session) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        let stopping = matches!(attempt.phase, Phase::Stopping);
        attempt.counts = counts.or(attempt.counts);
        let Some(flight) = &mut attempt.flight else { return };
        let hop = flight.hop;
        let result = result.and_then(|out| check_out(&out, flight, &attempt.route[hop].info).map(|()| out));
        match result {
            Ok(StepOut::Token { token, logits_digest }) => {
                let token = flight.gives_token().then_some(token);
                self.committed(key, token, logits_digest, false, t);
            }
            Ok(StepOut::Hidden(_)) if stopping => {
                // The next shards were told to stop: the step stays half done.
                self.step_lost(key, t);
            }
            Ok(StepOut::Hidden(bundle)) => {
                flight.hop += 1;
                let (step, prefill) = (flight.step, flight.prefill());
                let Some(next) = attempt.route.get(flight.hop).map(|hop| hop.no) else { return };
                session.guard.beat(t.now.ms);
                t.effects.push(Effect::Step { shard: next, token: None, key, step, prefill, bundle });
            }
            Err(error) if stopping => {
                tracing::debug!(%error, session = %key.session, step, "a step failed while it was stopped");
                self.step_lost(key, t);
            }
            Err(error) => self.step_failed(key, error, hop, t),
        }
    }

    fn step_failed(&mut self, key: KvKey, error: AdapterError, hop: usize, t: &mut Turn<'_>) {
        let id = key.session;
        tracing::debug!(%error, session = %id, epoch = key.epoch, hop, "a step failed");
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let most = session.request.max_restarts.min(self.config.max_restarts);
        let may_ask = session.restarts.used() < most;
        let State::Live(attempt) = &mut session.state else { return };
        let Some(flight) = &attempt.flight else { return };
        let step = flight.step.step;
        // A broken stream with its shards alive: they know what became of the step. One question per epoch.
        if matches!(error, AdapterError::StreamReset(_)) && may_ask && !attempt.queried {
            let key_of_step = StepKey::new(key, step);
            if t.ledger.mark_uncertain(key_of_step).is_ok() {
                attempt.queried = true;
                let states = attempt.route.iter().map(|_| None).collect();
                t.effects.extend(attempt.route.iter().map(|hop| Effect::QueryStep {
                    shard: hop.no,
                    key,
                    step,
                }));
                attempt.phase = Phase::Querying { error, hop, states };
                session.guard.call_started(t.now.ms);
                self.rearm(id, t.now.ms);
                return;
            }
        }
        let dead = matches!(error, AdapterError::WorkerDeath(_));
        let kind = classify(&error);
        let why = StreamTerminated::of(kind, kind.default_cause());
        session.guard.call_ended(t.now.ms);
        if dead {
            self.with_key(key, t, |group, now| group.shard_died(hop, now));
        }
        // Its intent stays open, so the ledger marks it as in doubt with the attempt's record.
        self.step_lost(key, t);
        self.end(id, why, Some(hop), t);
    }

    /// Nothing runs for the step in flight any more, and it is not committed.
    pub(super) fn step_lost(&mut self, key: KvKey, t: &mut Turn<'_>) {
        let Some(attempt) = self.live(key) else { return };
        let Some(flight) = attempt.flight.take() else { return };
        attempt.uncertain = Some(flight.step.step);
        self.scheduler.step_done(key, t.now.ms, false);
        self.with_key(key, t, |group, now| group.step_ended(flight.step.step, 0, now).1);
    }

    /// The step in flight is done on every shard.
    fn committed(
        &mut self,
        key: KvKey,
        token: Option<u32>,
        logits_digest: Digest,
        in_ledger: bool,
        t: &mut Turn<'_>,
    ) {
        let id = key.session;
        let now_ms = t.now.ms;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        let stopping = matches!(attempt.phase, Phase::Stopping);
        let Some(flight) = attempt.flight.take() else { return };
        let step = flight.step.step;
        let digest = if token.is_some() { logits_digest } else { [0; 32] };
        if !in_ledger && let Err(error) = t.ledger.commit(StepKey::new(key, step), token, digest) {
            attempt.uncertain = Some(step);
            self.with_key(key, t, |group, now| group.step_ended(step, 0, now).1);
            self.internal(key, &format!("the ledger refused the result of step {step}: {error}"), t);
            return;
        }
        attempt.next_step += 1;
        if let Some(token) = token {
            attempt.tokens.push(token);
            session.guard.token(now_ms);
        }
        session.guard.call_ended(now_ms);
        self.telemetry.step();
        let more = self.scheduler.step_done(key, now_ms, true);
        let tokens = u32::from(token.is_some());
        self.with_key(key, t, |group, now| group.step_ended(step, tokens, now).1);
        // While stopping it is committed and not delivered (runner-details 7).
        let Some(token) = token.filter(|_| !stopping) else { return };
        self.emit(key, token, more == Progress::Enough, t);
    }

    /// Hands a committed token out, unless the client has it, and ends the attempt if it was the last.
    fn emit(&mut self, key: KvKey, token: u32, enough: bool, t: &mut Turn<'_>) {
        let id = key.session;
        let now_ms = t.now.ms;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        let last = enough || session.request.stop_tokens.contains(&token);
        let mismatch = match attempt.check.token(token) {
            Ok(Emit::Silent) => None,
            Ok(Emit::Deliver) => {
                let index = u32::try_from(session.given.len()).unwrap_or(u32::MAX);
                if session.given.is_empty() {
                    self.telemetry.first_token(now_ms.saturating_sub(session.submitted_ms));
                } else {
                    self.telemetry.inter_token(now_ms.saturating_sub(session.last_token_ms));
                }
                session.last_token_ms = now_ms;
                session.given.push(token);
                session.wait_at_ms = now_ms.saturating_add(self.config.wait_ms);
                t.effects.push(Effect::Deliver { session: id, index, token });
                None
            }
            Err(mismatch) => Some(mismatch),
        };
        let mismatch = mismatch.or_else(|| if last { attempt.check.end().err() } else { None });
        if let Some(mismatch) = mismatch {
            tracing::warn!(%mismatch, session = %id, epoch = key.epoch, "the second run differs from the first");
            let kind = FailureKind::PrefixMismatch;
            self.end(id, StreamTerminated::of(kind, kind.default_cause()), None, t);
        } else if last {
            self.complete(id, t);
        }
    }

    /// A cancel came between the intent and the first shard: the step did not happen.
    pub(super) fn step_unsent(&mut self, key: KvKey, step: u32, t: &mut Turn<'_>) {
        let Some(attempt) = self.live(key) else {
            self.telemetry.stale_event();
            return;
        };
        let first = attempt.route.first().map(|hop| hop.no);
        if !first.is_some_and(|first| self.expects(first, key, step)) {
            self.telemetry.stale_event();
            return;
        }
        let Some(attempt) = self.live(key) else { return };
        attempt.flight = None;
        let in_ledger = StepKey::new(key, step);
        let resolved =
            t.ledger.mark_uncertain(in_ledger).and_then(|()| t.ledger.resolve(in_ledger, Resolution::NotRun));
        if let Err(error) = resolved {
            tracing::error!(%error, session = %key.session, step, "the ledger does not take an intent back");
        }
        self.scheduler.step_done(key, t.now.ms, false);
        self.with_key(key, t, |group, now| group.step_ended(step, 0, now).1);
        // Its token is cancelled, so the session ends here if it has not ended yet.
        self.check_guard(key.session, t);
    }

    pub(super) fn query_ended(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        step: u32,
        result: Result<StepState, AdapterError>,
        t: &mut Turn<'_>,
    ) {
        let id = key.session;
        if self.check_guard(id, t) {
            return;
        }
        let Some(attempt) = self.live(key) else {
            self.telemetry.stale_event();
            return;
        };
        let index = attempt.route.iter().position(|hop| hop.no == shard);
        let in_flight = attempt.flight.as_ref().is_some_and(|flight| flight.step.step == step);
        let (Phase::Querying { states, .. }, Some(index), true) = (&mut attempt.phase, index, in_flight)
        else {
            self.telemetry.stale_event();
            return;
        };
        // A shard that does not answer does not know.
        states[index] = Some(result.unwrap_or(StepState::Unknown));
        if states.iter().any(Option::is_none) {
            return;
        }
        let Phase::Querying { error, hop, states } = std::mem::replace(&mut attempt.phase, Phase::Running)
        else {
            return;
        };
        let states: Vec<StepState> = states.into_iter().flatten().collect();
        self.resolve(key, error, hop, &states, t);
    }

    /// All ran the step: it counts. None did: it runs now. Anything else: the next epoch (runner-details 5).
    fn resolve(
        &mut self,
        key: KvKey,
        error: AdapterError,
        hop: usize,
        states: &[StepState],
        t: &mut Turn<'_>,
    ) {
        let id = key.session;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        let Some(flight) = &mut attempt.flight else { return };
        let step = flight.step;
        let in_ledger = StepKey::new(key, step.step);
        let ran = |state: &StepState| matches!(state, StepState::Done { fingerprint, .. } if *fingerprint == step.fingerprint);
        let not_run =
            |state: &StepState| matches!(state, StepState::NotSeen { kv_len } if *kv_len == flight.position);
        let result = match states.last() {
            Some(StepState::Done { out: StepOut::Token { token, logits_digest }, .. }) => {
                Some((*token, *logits_digest))
            }
            _ => None,
        };
        if let Some((token, logits_digest)) = result.filter(|_| states.iter().all(ran)) {
            let token = flight.gives_token().then_some(token);
            let logits_digest = if token.is_some() { logits_digest } else { [0; 32] };
            if t.ledger.resolve(in_ledger, Resolution::Ran { token, logits_digest }).is_ok() {
                self.committed(key, token, logits_digest, true, t);
                return;
            }
        } else if states.iter().all(not_run)
            && t.ledger.resolve(in_ledger, Resolution::NotRun).is_ok()
            && matches!(t.ledger.begin(in_ledger, step.fingerprint), Ok(StepDisposition::Fresh))
        {
            flight.hop = 0;
            let prefill = flight.prefill();
            let bundle = Bundle::new(flight.position, Payload::Tokens(flight.input.clone()));
            let Some(first) = attempt.route.first().map(|hop| hop.no) else { return };
            session.guard.call_started(t.now.ms);
            let token = Some(session.token.clone());
            t.effects.push(Effect::Step { shard: first, token, key, step, prefill, bundle });
            self.rearm(id, t.now.ms);
            return;
        }
        self.step_failed(key, error, hop, t);
    }
}

/// Whether a shard's output can be the input of the next one, or a token of the model.
fn check_out(out: &StepOut, flight: &Flight, shard: &ShardInfo) -> Result<(), AdapterError> {
    let rows = u32::try_from(flight.input.len()).unwrap_or(u32::MAX);
    let fits = match out {
        StepOut::Token { token, .. } => shard.is_last() && *token < shard.vocab,
        StepOut::Hidden(bundle) => {
            let shape = matches!(&bundle.payload, Payload::Hidden { rows: r, cols, .. }
                if *r == rows && *cols == shard.d_model);
            !shard.is_last() && bundle.position == flight.position && shape
        }
    };
    if fits { Ok(()) } else { Err(AdapterError::MalformedBundle("a result of another shape".to_owned())) }
}
