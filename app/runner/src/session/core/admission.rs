//! From a request to the first step of an attempt.

use super::*;

impl SessionCore {
    pub(super) fn submit(&mut self, ticket: u64, request: Box<GenerateRequest>, t: &mut Turn<'_>) {
        if let Err(error) = self.try_submit(ticket, request, t) {
            t.effects.push(Effect::Refused { ticket, error });
        }
    }

    pub(super) fn try_submit(
        &mut self,
        ticket: u64,
        request: Box<GenerateRequest>,
        t: &mut Turn<'_>,
    ) -> Result<(), SubmitError> {
        if self.draining {
            return Err(SubmitError::Stopped);
        }
        check_shape(&request)?;
        let id = request.session();
        if self.sessions.contains_key(&id) {
            return Err(SubmitError::Duplicate { session: id, state: "runs now" });
        }
        let prompt_digest = output_digest(&request.prompt);
        let last = t.ledger.last_epoch(id);
        if let Some(epoch) = last {
            let key = KvKey::new(id, epoch);
            if let Some(record) = t.ledger.record(key).filter(|record| record.status == WorkStatus::Completed)
            {
                let record = record.clone();
                return Self::replay(ticket, &request, &prompt_digest, record, t);
            }
        }
        let epoch = match last {
            None => 0,
            Some(last) => last
                .checked_add(1)
                .ok_or(SubmitError::Duplicate { session: id, state: "has no epoch left" })?,
        };
        let key = KvKey::new(id, epoch);
        let restarts = RestartController::new(key);
        let deadlines =
            self.config.deadlines.lowered_by(&request.deadlines).map_err(|refused| {
                SubmitError::BadRequest { field: "deadlines", reason: refused.to_string() }
            })?;
        let route = plan_route(&self.infos, &restarts.wish(&self.inhibitions, t.now.ms))
            .map_err(|_| SubmitError::NoRoute)?;
        for index in &route {
            check_fit(&request, &self.infos[*index])?;
        }
        if last.is_none() && !t.ledger.has_room() {
            return Err(SubmitError::LedgerFull);
        }
        let queued = scheduler::Request {
            key,
            client: request.client.clone(),
            prompt_len: u32::try_from(request.prompt.len()).unwrap_or(u32::MAX),
            max_new: request.max_new,
        };
        self.scheduler.submit(t.now.ms, queued).map_err(|error| refusal(id, error))?;
        let token = CancellationToken::new(key);
        t.effects.push(Effect::Accepted { ticket, session: id, max_new: request.max_new });
        t.effects.push(Effect::Attempt { token: token.clone() });
        let session = Session {
            prompt_digest,
            submitted_ms: t.now.ms,
            guard: DeadlineGuard::new(deadlines, t.now.ms),
            restarts,
            token,
            given: Vec::new(),
            delivered: 0,
            records: Vec::new(),
            failed: None,
            was_open: false,
            state: State::Queued(None),
            last_token_ms: t.now.ms,
            wait_at_ms: t.now.ms.saturating_add(self.config.wait_ms),
            armed_ms: None,
            request,
        };
        self.sessions.insert(id, session);
        self.load_changed = true;
        self.rearm(id, t.now.ms);
        Ok(())
    }

    /// The answer of a session that completed before, from the ledger.
    pub(super) fn replay(
        ticket: u64,
        request: &GenerateRequest,
        prompt_digest: &Digest,
        record: WorkRecord,
        t: &mut Turn<'_>,
    ) -> Result<(), SubmitError> {
        let id = record.key.session;
        let tokens = t.ledger.committed_tokens(id, record.key.epoch).to_vec();
        let same = t.ledger.opened(record.key).is_some_and(|opened| {
            opened.prompt_digest == *prompt_digest && opened.sampling == request.sampling
        });
        if !same || tokens.len() > request.max_new as usize {
            return Err(SubmitError::Duplicate { session: id, state: "completed with other content" });
        }
        t.effects.push(Effect::Accepted { ticket, session: id, max_new: request.max_new });
        for (index, token) in (0..).zip(&tokens) {
            t.effects.push(Effect::Deliver { session: id, index, token: *token });
        }
        let records =
            (0..=record.key.epoch).filter_map(|epoch| t.ledger.record(KvKey::new(id, epoch)).cloned());
        let outcome = completed(id, request, records.collect(), tokens);
        t.effects.push(Effect::Done { outcome: Box::new(outcome) });
        Ok(())
    }

    // ── admission and epochs ────────────────────────────────────────────────────────────────────────────────────────

    pub(super) fn admit(&mut self, t: &mut Turn<'_>) {
        if !self.scheduler.has_queued() {
            return;
        }
        if t.now.ms < self.admit_after_ms {
            self.arm_admission();
            return;
        }
        let wish = RouteWish { avoided: self.inhibitions.avoided(t.now.ms), ..RouteWish::default() };
        let Ok(route) = plan_route(&self.infos, &wish) else { return };
        let capacity = route.iter().map(|index| self.infos[*index].capacity).min().unwrap_or(0);
        for key in self.scheduler.admit(t.now.ms, capacity.into()) {
            self.begin_attempt(key.session, t);
        }
        if self.scheduler.has_queued() {
            // Somebody waits for room: completed sessions' KV goes, one key for each that waits.
            let waiting =
                self.sessions.values().filter(|session| matches!(session.state, State::Queued(_))).count();
            for _ in 0..waiting {
                let Some(key) = self.held.front().copied() else { break };
                self.reap(key, Cause::Node, t);
            }
            // Time lets sessions pass each other, and ends that.
            self.admit_after_ms = t.now.ms;
        }
    }

    pub(super) fn hold_admission(&mut self, now_ms: u64) {
        self.admit_after_ms = now_ms.saturating_add(self.config.full_retry_ms);
        self.arm_admission();
    }

    pub(super) fn arm_admission(&mut self) {
        if !std::mem::replace(&mut self.admission_armed, true) {
            self.timers.insert((self.admit_after_ms, Timer::Admission));
        }
    }

    /// Opens the session's next epoch, if there is a route for it.
    pub(super) fn begin_attempt(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let now_ms = t.now.ms;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = session.restarts.key();
        let failing_over = matches!(session.state, State::Between { .. });
        let (route, in_ledger): (Route, bool) = match &session.state {
            State::Queued(Some(route)) => (route.clone(), true),
            State::Queued(None) | State::Between { .. } => {
                let planned = plan_route(&self.infos, &session.restarts.wish(&self.inhibitions, now_ms)).ok();
                let planned = planned.filter(|route| {
                    route.iter().all(|index| check_fit(&session.request, &self.infos[*index]).is_ok())
                });
                let Some(planned) = planned else {
                    // Between epochs the session waits for a shard as long as its deadlines let it.
                    if !failing_over {
                        self.scheduler.put_back(key);
                        self.hold_admission(now_ms);
                    }
                    return;
                };
                (planned.into_iter().map(|index| self.shards[index].clone()).collect(), false)
            }
            State::Retreating(_) | State::AwaitingFence(_) | State::Live(_) => return,
        };
        let Some(first) = route.first() else { return };
        if !in_ledger {
            let opened = EpochOpened {
                key,
                generation: t.ledger.generation(),
                inference_id: session.request.inference_id.clone(),
                model_digest: first.info.model_digest,
                prompt_digest: session.prompt_digest,
                prompt_tokens: prompt_tokens(&session.request),
                sampling: session.request.sampling,
                shards: route.iter().map(|hop| hop.info.shard_id.clone()).collect(),
            };
            if let Err(error) = t.ledger.epoch_opened(opened) {
                self.ledger_refused(id, &error, t);
                return;
            }
        }
        self.between.remove(&id);
        session.restarts.ran_on(first.info.model_digest);
        if failing_over {
            self.telemetry.restart();
        } else if !in_ledger {
            self.telemetry.queue_wait(now_ms.saturating_sub(session.submitted_ms));
        }
        let rows = prompt_tokens(&session.request).saturating_add(session.request.max_new);
        self.holdings.insert(
            key,
            Holding {
                group: ShardCancellationGroup::new(key, route.len(), self.config.lease_ms),
                route: route.clone(),
                rows,
                hold_until_ms: None,
                forgotten: vec![false; route.len()],
                armed_ms: None,
            },
        );
        session.state = State::Live(Box::new(Attempt {
            key,
            route,
            started_unix_ms: t.now.unix_ms,
            phase: Phase::Fencing,
            tokens: Vec::new(),
            next_step: 0,
            flight: None,
            counts: None,
            check: PrefixCheck::new(session.given.clone()),
            end: None,
            uncertain: None,
            opened: 0,
            queried: false,
        }));
        self.load_changed = true;
        self.open_if_fenced(id, t);
    }

    /// Opens the epoch on its shards as soon as none of them may still hold an older one.
    pub(super) fn open_if_fenced(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        if !matches!(attempt.phase, Phase::Fencing) {
            return;
        }
        let key = attempt.key;
        let older = self.holdings.range(KvKey::new(id, 0)..key).any(|(_, holding)| {
            let pending = holding.group.outcome().shards.iter().zip(holding.route.iter());
            let mut pending =
                pending.filter(|(shard, _)| **shard == ShardOutcome::Pending).map(|(_, hop)| hop.no);
            pending.any(|no| attempt.route.iter().any(|hop| hop.no == no))
        });
        if older {
            return;
        }
        attempt.phase = Phase::Opening(attempt.route.iter().map(|_| None).collect());
        session.guard.call_started(t.now.ms);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let plan = OpenPlan {
            max_positions: holding.rows,
            lease_ms: self.config.lease_ms,
            sampling: session.request.sampling,
            trace: session.request.trace,
        };
        for (index, hop) in attempt.route.iter().enumerate() {
            holding.group.open_sent(index, t.now.ms);
            t.effects.push(Effect::Open { shard: hop.no, key, plan });
        }
        self.rearm(id, t.now.ms);
    }

    pub(super) fn opened(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        result: Result<Opened, AdapterError>,
        held: Vec<KeyUsage>,
        t: &mut Turn<'_>,
    ) {
        let Some(holding) = self.holdings.get_mut(&key) else {
            self.telemetry.stale_event();
            if result.is_ok() {
                // It came to life after it was given up.
                t.effects.push(Effect::Release { shard, key, cause: Cause::Coordinator });
            }
            return;
        };
        let Some(index) = holding.route.iter().position(|hop| hop.no == shard) else {
            self.telemetry.stale_event();
            return;
        };
        if let Some(attempt) = self.live(key)
            // A broken stream may have lost no more than the answer.
            && matches!(result, Ok(_) | Err(AdapterError::StreamReset(_)))
        {
            attempt.opened += 1;
        }
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        if result.is_ok() {
            // The lease runs from the moment the shard opened, which is not later than this.
            holding.group.beat_sent(index, t.now.ms);
        }
        let mut effects = holding.group.open_answered(index, t.now.ms);
        if matches!(result, Err(AdapterError::WorkerDeath(_))) {
            effects.extend(holding.group.shard_died(index, t.now.ms));
        }
        self.group_effects(key, effects, t);
        let id = key.session;
        if self.check_guard(id, t) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        let Phase::Opening(answers) = &mut attempt.phase else {
            self.telemetry.stale_event();
            return;
        };
        if attempt.key != key || answers[index].is_some() {
            self.telemetry.stale_event();
            return;
        }
        session.guard.beat(t.now.ms);
        if let Err(error) = &result
            && !matches!(error, AdapterError::Full(_))
        {
            let kind = classify(error);
            tracing::debug!(%error, session = %id, epoch = key.epoch, "a shard did not open");
            self.end(id, StreamTerminated::of(kind, kind.default_cause()), Some(index), t);
            return;
        }
        answers[index] = Some(OpenAnswer { result, held });
        if answers.iter().any(Option::is_none) {
            return;
        }
        session.guard.call_ended(t.now.ms);
        if answers.iter().flatten().any(|answer| answer.result.is_err()) {
            self.retreat(id, t);
            return;
        }
        let reports: Vec<FreshReport> = std::mem::take(answers)
            .into_iter()
            .zip(attempt.route.iter())
            .map(|(answer, hop)| FreshReport {
                shard_id: hop.info.shard_id.clone(),
                opened: answer.as_ref().and_then(|answer| answer.result.as_ref().ok().copied()),
                usage: answer.map(|answer| crate::adapter::Usage { keys: answer.held }),
            })
            .collect();
        attempt.phase = Phase::Running;
        if let Err(error) = assert_fresh_start(key, &reports) {
            tracing::warn!(%error, session = %id, epoch = key.epoch, "the epoch does not start clean");
            let kind = FailureKind::Internal;
            self.end(id, StreamTerminated::of(kind, kind.default_cause()), None, t);
            return;
        }
        let chunk = attempt.route.iter().map(|hop| hop.info.chunk_max).min().unwrap_or(1);
        session.guard.prefilling(t.now.ms);
        self.scheduler.opened(key, chunk);
        self.rearm(id, t.now.ms);
    }

    /// No room on a shard: what opened is released, then the session goes back to the front of the queue.
    pub(super) fn retreat(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &session.state else { return };
        let key = attempt.key;
        session.was_open |= attempt.opened > 0;
        session.state = State::Retreating(attempt.route.clone());
        self.load_changed = true;
        // What is only kept may be what fills the shard, for a reason that its capacity does not tell: as many sessions as it
        // takes are open. A part of it goes, so that not each session has to find it full.
        for _ in 0..self.held.len().div_ceil(4) {
            let Some(held) = self.held.front().copied() else { break };
            self.reap(held, Cause::Node, t);
        }
        self.hold_admission(t.now.ms);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let effects = holding.group.cancel(t.now.ms, Cause::Node, 0);
        self.group_effects(key, effects, t);
        self.rearm(id, t.now.ms);
    }

    /// The ledger does not take the epoch: there is nothing to record, and nothing runs without it.
    pub(super) fn ledger_refused(&mut self, id: SessionId, error: &LedgerError, t: &mut Turn<'_>) {
        tracing::error!(%error, session = %id, "the ledger refused an epoch");
        let kind = FailureKind::Internal;
        self.finish(id, StreamTerminated::of(kind, kind.default_cause()), t);
    }

    // ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────
}

fn bad(field: &'static str, reason: impl Into<String>) -> SubmitError {
    SubmitError::BadRequest { field, reason: reason.into() }
}

/// What can be said without a model.
fn check_shape(request: &GenerateRequest) -> Result<(), SubmitError> {
    for (field, name) in [("chain_id", &request.chain_id), ("client", &request.client)] {
        if name.len() > NAME_MAX {
            return Err(bad(field, format!("at most {NAME_MAX} bytes")));
        }
    }
    if !(1..=NAME_MAX).contains(&request.inference_id.len()) {
        return Err(bad("inference_id", format!("1 to {NAME_MAX} bytes")));
    }
    if request.prompt.is_empty() {
        return Err(bad("prompt", "at least one token"));
    }
    if request.max_new == 0 {
        return Err(bad("max_new", "at least one token"));
    }
    if request.stop_tokens.len() > STOP_TOKENS_MAX {
        return Err(bad("stop_tokens", format!("at most {STOP_TOKENS_MAX}")));
    }
    Ok(())
}

/// Whether a shard could ever run the request.
fn check_fit(request: &GenerateRequest, shard: &ShardInfo) -> Result<(), SubmitError> {
    let prompt = request.prompt.len() as u64;
    let rows = prompt + u64::from(request.max_new);
    let most = u64::from(shard.max_positions.min(shard.capacity));
    if prompt >= most {
        return Err(bad("prompt", format!("{prompt} tokens where less than {most} are possible")));
    }
    if rows > most {
        return Err(bad(
            "max_new",
            format!("prompt and answer have {rows} tokens where {most} are possible"),
        ));
    }
    if let Some(id) = request.prompt.iter().find(|id| **id >= shard.vocab) {
        return Err(bad("prompt", format!("token {id} is not below {}", shard.vocab)));
    }
    if let Some(id) = request.stop_tokens.iter().find(|id| **id >= shard.vocab) {
        return Err(bad("stop_tokens", format!("token {id} is not below {}", shard.vocab)));
    }
    Ok(())
}

fn refusal(id: SessionId, error: scheduler::SubmitError) -> SubmitError {
    match error {
        scheduler::SubmitError::QueueFull { retry_after_ms } => SubmitError::QueueFull { retry_after_ms },
        scheduler::SubmitError::Duplicate(_) => {
            SubmitError::Duplicate { session: id, state: "has ended here" }
        }
        scheduler::SubmitError::Size { .. } => bad("max_new", error.to_string()),
        scheduler::SubmitError::Client { .. } => bad("client", error.to_string()),
    }
}
