//! How attempts and sessions end, and what they leave behind.

use super::*;

impl SessionCore {
    pub(super) fn cancel(&mut self, id: SessionId, epoch: Option<u32>, cause: Cause, t: &mut Turn<'_>) {
        self.telemetry.cancel(cause);
        let Some(session) = self.sessions.get(&id) else {
            // Completed: its KV goes now. Ended otherwise: it is going.
            let held = self
                .held
                .iter()
                .find(|key| key.session == id && epoch.is_none_or(|epoch| epoch == key.epoch));
            if let Some(key) = held.copied() {
                self.reap(key, cause, t);
            }
            return;
        };
        let key = session.restarts.key();
        if epoch.is_some_and(|epoch| epoch != key.epoch) {
            self.telemetry.stale_event();
            return;
        }
        session.token.cancel(key, cause);
        let cause = session.token.cancelled().unwrap_or(cause);
        self.end(id, StreamTerminated::of(FailureKind::Cancelled, cause), None, t);
    }

    /// Ends what the session is doing, at whatever point it is. The first reason stands.
    pub(in crate::session) fn end(
        &mut self,
        id: SessionId,
        why: StreamTerminated,
        at_fault: Option<usize>,
        t: &mut Turn<'_>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (key, asking) = match &mut session.state {
            State::Live(attempt) => {
                let asking = matches!(attempt.phase, Phase::Querying { .. });
                attempt.end.get_or_insert((why, at_fault));
                attempt.phase = Phase::Stopping;
                (attempt.key, asking)
            }
            State::Queued(_) | State::Retreating(_) => return self.end_queued(id, why, t),
            State::Between { .. } | State::AwaitingFence(_) => {
                // The failed attempt keeps its own record, and no new epoch was opened.
                let why = session.failed.filter(|_| why.kind != FailureKind::Cancelled).unwrap_or(why);
                return self.finish(id, why, t);
            }
        };
        let left = session.guard.deadline_left(t.now.ms);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let effects = holding.group.cancel(t.now.ms, why.cause, left);
        self.group_effects(key, effects, t);
        if asking {
            // The step itself is over; what the shards would say of it comes too late.
            self.step_lost(key, t);
        }
    }

    /// Ends a session that holds no KV.
    pub(super) fn end_queued(&mut self, id: SessionId, why: StreamTerminated, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = session.restarts.key();
        let shards = match &session.state {
            State::Queued(Some(route)) | State::Retreating(route) => shard_ids(route),
            _ => Vec::new(),
        };
        let record = WorkRecord {
            key,
            status: work_status_for(why.kind),
            failure_kind: Some(why.kind),
            cause: Some(why.cause),
            tokens: None,
            delivered_tokens: session.delivered,
            prompt_tokens: prompt_tokens(&session.request),
            restartable: Some(why.kind.restartable()),
            kv: if session.was_open { KvOutcome::Released } else { KvOutcome::NeverOpened },
            uncertain_step: None,
            excluded_node: None,
            shards,
            output_digest: output_digest(&[]),
            started_ms: t.now.unix_ms,
            ended_ms: t.now.unix_ms,
        };
        if !self.holdings.contains_key(&key) {
            let mut group = ShardCancellationGroup::new(key, 0, self.config.lease_ms);
            group.cancel(t.now.ms, why.cause, 0);
            self.remember(group.outcome().clone());
        }
        self.record(id, record, t);
        self.finish(id, why, t);
    }

    /// Writes the one record of an attempt.
    pub(super) fn record(&mut self, id: SessionId, record: WorkRecord, t: &mut Turn<'_>) {
        let key = record.key;
        self.telemetry.ended(record.status, record.failure_kind);
        let record = match t.ledger.terminal(record.clone()) {
            // The ledger adds a step in doubt.
            Ok(()) => t.ledger.record(key).cloned().unwrap_or(record),
            Err(error) => {
                tracing::error!(%error, session = %id, epoch = key.epoch, "the ledger refused a record");
                return;
            }
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.records.push(record);
        }
    }

    /// All tokens are there.
    pub(in crate::session) fn complete(&mut self, id: SessionId, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &session.state else { return };
        let key = attempt.key;
        // Who counts for himself is believed up to what was asked for (runner-details 14).
        let counted = attempt.counts.unwrap_or(Counts {
            prompt_tokens: prompt_tokens(&session.request),
            completion_tokens: u32::try_from(attempt.tokens.len()).unwrap_or(u32::MAX),
        });
        let tokens = counted.completion_tokens.min(session.request.max_new);
        let record = WorkRecord {
            key,
            status: WorkStatus::Completed,
            failure_kind: None,
            cause: None,
            tokens: Some(tokens),
            delivered_tokens: session.delivered,
            prompt_tokens: counted.prompt_tokens,
            restartable: None,
            kv: KvOutcome::Held,
            uncertain_step: None,
            excluded_node: None,
            shards: shard_ids(&attempt.route),
            output_digest: output_digest(&attempt.tokens),
            started_ms: attempt.started_unix_ms,
            ended_ms: t.now.unix_ms,
        };
        self.record(id, record, t);
        if let Some(holding) = self.holdings.get_mut(&key) {
            holding.hold_until_ms = Some(t.now.ms.saturating_add(self.config.hold_ms));
            self.held.push_back(key);
            self.rearm_holding(key);
        }
        let Some(session) = self.take_session(id) else { return };
        self.scheduler.finish(id, WorkStatus::Completed);
        let outcome = completed(id, &session.request, session.records, session.given);
        t.effects.push(Effect::Done { outcome: Box::new(outcome) });
    }

    /// Gives the KV of a completed session back.
    pub(super) fn reap(&mut self, key: KvKey, cause: Cause, t: &mut Turn<'_>) {
        self.held.retain(|held| *held != key);
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        holding.hold_until_ms = None;
        let effects = holding.group.cancel(t.now.ms, cause, 0);
        self.group_effects(key, effects, t);
    }

    /// Phase 2 of an attempt is over: its record is due, and then its next epoch or its end.
    pub(super) fn quiesced(&mut self, key: KvKey, t: &mut Turn<'_>) {
        let id = key.session;
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let State::Live(attempt) = &mut session.state else { return };
        if attempt.key != key {
            return;
        }
        let Some((why, at_fault)) = attempt.end else { return };
        let at_fault =
            at_fault.and_then(|index| attempt.route.get(index)).map(|hop| hop.info.shard_id.clone());
        let kind = why.kind;
        let tokens = u32::try_from(attempt.tokens.len()).unwrap_or(u32::MAX);
        let kv = match kind {
            _ if attempt.opened == 0 => KvOutcome::NeverOpened,
            FailureKind::CacheMiss => KvOutcome::AlreadyEvicted,
            FailureKind::StaleEpoch => KvOutcome::Stale,
            _ => KvOutcome::Released,
        };
        let fence = self.config.restart_after_fence && kind == FailureKind::HeartbeatLost;
        let record = WorkRecord {
            key,
            status: work_status_for(kind),
            failure_kind: Some(kind),
            cause: Some(why.cause),
            tokens: (tokens > 0).then_some(tokens),
            delivered_tokens: session.delivered,
            prompt_tokens: prompt_tokens(&session.request),
            restartable: Some(kind.restartable() || fence),
            kv,
            uncertain_step: attempt.uncertain,
            excluded_node: at_fault.clone(),
            shards: shard_ids(&attempt.route),
            output_digest: output_digest(&attempt.tokens),
            started_ms: attempt.started_unix_ms,
            ended_ms: t.now.unix_ms,
        };
        let slot_out = attempt.flight.take().is_some();
        let failed = FailedAttempt {
            kind,
            shard_id: at_fault,
            delivered: u32::try_from(session.given.len()).unwrap_or(u32::MAX),
            // Greedy, or drawn from the seed of the request.
            reproducible: true,
            total_left_ms: session.guard.total_left(t.now.ms),
            fence: if fence { Fence::Open } else { Fence::Off },
        };
        session.failed = Some(why);
        session.was_open = false;
        session.guard.requeued(t.now.ms);
        session.state = State::Between { not_before_ms: u64::MAX };
        self.load_changed = true;
        if slot_out {
            self.scheduler.step_done(key, t.now.ms, false);
        }
        self.record(id, record, t);
        if kind == FailureKind::Cancelled {
            self.finish(id, why, t);
        } else {
            self.restart_or_finish(id, failed, why, t);
        }
    }

    pub(super) fn restart_or_finish(
        &mut self,
        id: SessionId,
        failed: FailedAttempt,
        why: StreamTerminated,
        t: &mut Turn<'_>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let most = session.request.max_restarts.min(self.config.max_restarts);
        if session.restarts.used() >= most || self.draining {
            if let Some(shard_id) = failed.shard_id.as_ref().filter(|_| failed.kind.node_at_fault()) {
                self.inhibitions.note(shard_id, t.now.ms);
            }
            return self.finish(id, why, t);
        }
        match session.restarts.may_restart(t.now.ms, &failed, &mut self.inhibitions) {
            Decision::Restart { epoch, not_before_ms, excluded } => {
                let Some(token) = session.token.next_epoch() else {
                    let cause = session.token.cancelled().unwrap_or(Cause::Client);
                    return self.finish(id, StreamTerminated::of(FailureKind::Cancelled, cause), t);
                };
                tracing::debug!(session = %id, epoch, ?excluded, kind = failed.kind.as_str(), "the session fails over");
                session.token = token.clone();
                session.state = State::Between { not_before_ms };
                self.between.insert(id);
                self.scheduler.requeue(KvKey::new(id, epoch));
                t.effects.push(Effect::Attempt { token });
                self.rearm(id, t.now.ms);
            }
            Decision::AwaitFence => {
                session.state = State::AwaitingFence(failed);
                self.rearm(id, t.now.ms);
                self.fence_closed(id, t);
            }
            Decision::No { .. } => self.finish(id, why, t),
        }
    }

    /// Asks again about a restart once no shard may hold an old epoch of the session.
    pub(super) fn fence_closed(&mut self, id: SessionId, t: &mut Turn<'_>) {
        if self.holds(id) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (State::AwaitingFence(failed), Some(why)) = (&session.state, session.failed) else { return };
        let mut failed = failed.clone();
        failed.fence = Fence::Closed;
        failed.total_left_ms = session.guard.total_left(t.now.ms);
        self.restart_or_finish(id, failed, why, t);
    }

    pub(super) fn holds(&self, id: SessionId) -> bool {
        self.holdings.range(KvKey::new(id, 0)..=KvKey::new(id, u32::MAX)).next().is_some()
    }

    pub(super) fn take_session(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        if let Some(armed) = session.armed_ms {
            self.timers.remove(&(armed, Timer::Session(id)));
        }
        self.between.remove(&id);
        self.load_changed = true;
        Some(session)
    }

    /// The session is over, and did not complete.
    pub(super) fn finish(&mut self, id: SessionId, why: StreamTerminated, t: &mut Turn<'_>) {
        let Some(session) = self.take_session(id) else { return };
        let status = work_status_for(why.kind);
        match self.scheduler.cancel(id, status) {
            Ok(
                CancelledFrom::Queued
                | CancelledFrom::Active
                | CancelledFrom::Done(_)
                | CancelledFrom::Unknown,
            ) => {}
            Err(refused) => tracing::error!(%refused, session = %id, "a failed session cannot be completed"),
        }
        self.free_rows(id);
        let outcome = Outcome {
            session: id,
            status,
            kind: Some(why.kind),
            cause: Some(why.cause),
            lowered_by_request: why.lowered_by_request,
            records: session.records,
            finish_reason: None,
            tokens: session.given,
        };
        t.effects.push(Effect::Done { outcome: Box::new(outcome) });
    }

    pub(super) fn free_rows(&mut self, id: SessionId) {
        if !self.sessions.contains_key(&id) && !self.holds(id) {
            self.scheduler.rows_freed(id);
        }
    }

    pub(super) fn remember(&mut self, outcome: CancellationOutcome) {
        let id = outcome.key.session;
        if self.ended.insert(id, outcome).is_none() {
            self.ended_order.push_back(id);
        }
        if self.ended_order.len() > ENDED_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    /// The attempt of a key, while it has no record.
    pub(in crate::session) fn live(&mut self, key: KvKey) -> Option<&mut Attempt> {
        match &mut self.sessions.get_mut(&key.session)?.state {
            State::Live(attempt) if attempt.key == key => Some(attempt),
            _ => None,
        }
    }

    // ── shards of a key ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Lets an answer of a shard change the group of its key.
    pub(super) fn with_group(
        &mut self,
        shard: ShardNo,
        key: KvKey,
        t: &mut Turn<'_>,
        change: impl FnOnce(&mut ShardCancellationGroup, usize, u64) -> Vec<CancelEffect>,
    ) {
        let holding = self.holdings.get_mut(&key);
        let found = holding.and_then(|holding| {
            let index = holding.route.iter().position(|hop| hop.no == shard)?;
            Some((index, holding))
        });
        let Some((index, holding)) = found else {
            self.telemetry.stale_event();
            return;
        };
        let effects = change(&mut holding.group, index, t.now.ms);
        self.group_effects(key, effects, t);
        // One shard more may have let go of an older epoch.
        self.open_if_fenced(key.session, t);
    }

    /// Changes the group of a live key and does what follows.
    pub(in crate::session) fn with_key(
        &mut self,
        key: KvKey,
        t: &mut Turn<'_>,
        change: impl FnOnce(&mut ShardCancellationGroup, u64) -> Vec<CancelEffect>,
    ) {
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let effects = change(&mut holding.group, t.now.ms);
        if !effects.is_empty() {
            self.group_effects(key, effects, t);
        }
    }

    pub(super) fn group_effects(&mut self, key: KvKey, effects: Vec<CancelEffect>, t: &mut Turn<'_>) {
        let Some(holding) = self.holdings.get_mut(&key) else { return };
        let route = holding.route.clone();
        // A call that is still open at a shard that has let go must not bring the key to life again.
        for (index, outcome) in holding.group.outcome().shards.iter().enumerate() {
            if *outcome != ShardOutcome::Pending && !std::mem::replace(&mut holding.forgotten[index], true) {
                t.effects.push(Effect::Forget { shard: route[index].no, key });
            }
        }
        for effect in effects {
            match effect {
                CancelEffect::SendStop { shard, cause } => {
                    t.effects.push(Effect::Stop { shard: route[shard].no, key, cause });
                }
                CancelEffect::MarkUncertain { step } => {
                    if let Some(attempt) = self.live(key) {
                        attempt.uncertain = Some(step);
                    }
                }
                CancelEffect::Quiesced => self.quiesced(key, t),
                CancelEffect::SendRelease { shard, cause } => {
                    t.effects.push(Effect::Release { shard: route[shard].no, key, cause });
                }
                CancelEffect::Settled => self.settled(key, t),
            }
        }
        self.rearm_holding(key);
    }

    /// No shard holds anything of the key any more.
    pub(super) fn settled(&mut self, key: KvKey, t: &mut Turn<'_>) {
        let Some(holding) = self.holdings.remove(&key) else { return };
        if let Some(armed) = holding.armed_ms {
            self.timers.remove(&(armed, Timer::Holding(key)));
        }
        self.held.retain(|held| *held != key);
        self.remember(holding.group.outcome().clone());
        self.load_changed = true;
        let id = key.session;
        self.free_rows(id);
        let gone = !self.holds(id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match &session.state {
            State::Retreating(route) if gone => {
                let key = session.restarts.key();
                session.state = State::Queued(Some(route.clone()));
                self.scheduler.put_back(key);
            }
            State::AwaitingFence(_) => self.fence_closed(id, t),
            State::Live(_) => self.open_if_fenced(id, t),
            _ => {}
        }
    }

    pub(super) fn delivered(&mut self, id: SessionId, count: u32, t: &mut Turn<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let count = count.min(u32::try_from(session.given.len()).unwrap_or(u32::MAX));
        let more = count.saturating_sub(session.delivered);
        if more == 0 {
            return;
        }
        session.delivered = count;
        if let Err(error) = t.ledger.delivered(id, count) {
            tracing::warn!(%error, session = %id, "the ledger does not take a delivery");
        }
        let key = session.restarts.key();
        if let Some(holding) = self.holdings.get_mut(&key) {
            holding.group.delivered(more);
        }
    }
}
