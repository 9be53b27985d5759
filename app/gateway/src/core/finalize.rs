//! The end of a session: drain, FinalizeRound, N diffs, a quorum's signatures, settlement (escrow 2 and 6). Every
//! phase follows from what is stored, so a restart goes on where it was.

use std::collections::BTreeMap;

use holdfast_escrow::divergence::DivergenceKeeper;
use holdfast_escrow::session::settle::{Settlement, SlotSignature};
use holdfast_escrow::session::{Phase, Signature, State};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, ChainNews, Effect, HostCall, Lane, RequestError, RetireReason};
use super::members::Then;
use super::sequencer::Step;
use super::{GatewayCore, Purpose};

/// Rounds of questions before the last drain diff, so that late words of hosts reach the log.
const GATHER_MS: u64 = 2_000;

/// Rounds of questions after which a dispute makes do with an older nonce that a quorum signed.
const DISPUTE_ROUNDS: u32 = 30;

/// Rounds of questions after which it is said who has not signed, and between two times of saying it: half a minute and ten
/// minutes with the usual wait.
const MISSING_ROUNDS: (u32, u32) = (15, 300);

/// What the collection of signatures is for.
#[derive(Debug, Clone)]
pub(super) struct Collect {
    state: State,
    dispute: bool,
    asked_ms: Option<u64>,
    rounds: u32,
    done: bool,
}

/// Where finalization stands in this process.
#[derive(Debug, Default)]
pub(super) struct Closing {
    since_ms: Option<u64>,
    gathered_ms: Option<u64>,
    pub(super) collect: Option<Collect>,
}

impl GatewayCore {
    /// No new requests from now on.
    pub(super) fn finalize(&mut self) {
        if !self.meta.closing {
            self.meta.closing = true;
            self.note_meta();
            self.urgent = true;
            self.log(
                "escrow_finalize_requested",
                false,
                None,
                vec![("nonce", self.state.nonce().to_string())],
            );
        }
        self.fail_queue(RequestError::EscrowExhausted);
    }

    pub(super) fn chain_news(&mut self, news: ChainNews) {
        match news {
            ChainNews::Absent(list) => {
                for (participant, member) in &mut self.members {
                    member.absent = list.contains(participant);
                }
            }
            ChainNews::Expired => {
                if !self.meta.expired {
                    self.meta.expired = true;
                    self.note_meta();
                    self.urgent = true;
                    self.log("escrow_expired", true, None, Vec::new());
                }
                self.fail_queue(RequestError::EscrowExhausted);
                self.stop_repairs();
            }
            ChainNews::Settled => {
                self.meta.settled = true;
                self.note_meta();
                self.fail_queue(RequestError::EscrowExhausted);
                self.end(RetireReason::Settled);
                self.forget_divergences();
            }
        }
    }

    pub(super) fn collect_for_dispute(&mut self, state: State) {
        let rounds = self.closing.collect.as_ref().map_or(0, |collect| collect.rounds);
        self.closing.collect = Some(Collect { state, dispute: true, asked_ms: None, rounds, done: false });
    }

    /// The nonce that hosts are brought up to: our tip, or the last good one of a log that broke.
    pub(super) fn teach_tip(&self) -> u64 {
        match (&self.closing.collect, self.corrupt) {
            (Some(collect), Some(_)) => collect.state.nonce(),
            _ => self.state.nonce(),
        }
    }

    /// Whether signatures at `nonce` are kept for a settlement.
    pub(super) fn keeps(&self, nonce: u64) -> bool {
        match &self.closing.collect {
            Some(collect) => collect.state.nonce() == nonce,
            None => {
                self.state.phase() == Phase::Frozen && self.state.nonce() == nonce
                    || nonce > 0 && self.checkpoint.nonce == nonce
            }
        }
    }

    /// One look at the end of the session.
    pub(super) fn run_closing(&mut self) {
        if self.staged.is_some() || self.stopping || self.settling_in() {
            return;
        }
        if self.corrupt.is_none() && self.meta.expired {
            // What hosts have told us belongs into what is paid: also what comes while they are asked to sign, for until it is
            // published they withhold.
            let asked = self.closing.collect.as_ref().map(|collect| (collect.done, collect.state.nonce()));
            if asked.is_none() && self.pending.len() > 0 && self.may_flush() {
                drop(self.advance(Step::Pass));
            }
            if asked.is_none_or(|(done, nonce)| !done && nonce < self.state.nonce()) {
                self.collect_for_dispute(self.state.clone());
            }
        }
        if self.corrupt.is_none() && !self.meta.expired && !self.suspected() {
            if self.state.phase() == Phase::Active
                && !self.meta.closing
                && (self.state.must_finalize() || self.broke())
            {
                self.log("escrow_used_up", true, None, vec![("nonce", self.state.nonce().to_string())]);
                self.finalize();
            }
            if self.meta.closing && self.state.phase() == Phase::Active {
                self.drain();
            }
            if self.state.phase() == Phase::Finalizing {
                self.end_rounds();
            }
            if self.state.phase() == Phase::Frozen && self.closing.collect.is_none() {
                let state = self.state.clone();
                self.closing.collect =
                    Some(Collect { state, dispute: false, asked_ms: None, rounds: 0, done: false });
                for (participant, member) in &self.members {
                    if let Some((nonce, sig)) =
                        member.signed.filter(|(nonce, _)| *nonce == self.state.nonce())
                    {
                        self.kept.entry(nonce).or_default().insert(*participant, sig);
                    }
                }
            }
        }
        self.collect();
    }

    /// Waits for requests in flight and for votes that may still end records; bounded.
    fn drain(&mut self) {
        let now = self.now.mono_ms;
        let since = *self.closing.since_ms.get_or_insert(now);
        // What waits is published by a flush before the end; when none can follow, FinalizeRound and the diffs after it,
        // which cost nothing, carry it.
        let flushes = !self.state.must_finalize() && !self.broke();
        let waits = self.pending.len() > 0 || !self.ripe.is_empty();
        let busy = !self.flights.is_empty() || self.votes_pending() || waits && flushes;
        if busy && now < since.saturating_add(self.cfg.drain_ms) {
            return;
        }
        if self.advance(Step::Finalize).is_ok() {
            self.log("escrow_finalizing", false, None, vec![("nonce", self.state.nonce().to_string())]);
            self.stop_repairs();
        }
    }

    /// The N diffs after FinalizeRound. Before the last one every host is asked for what it still has.
    fn end_rounds(&mut self) {
        let now = self.now.mono_ms;
        if self.closing.gathered_ms.is_none() {
            self.closing.gathered_ms = Some(now);
            // Workers that a restart woke end with the phase.
            self.stop_repairs();
            let all: Vec<Address> = self.members.keys().copied().collect();
            for participant in all {
                self.poll_pending(&participant);
            }
        }
        let last = self.state.finalize_nonce().saturating_add(self.terms.group_size());
        while self.state.phase() == Phase::Finalizing {
            let next = self.state.nonce().saturating_add(1);
            let gathering = self.closing.gathered_ms.is_some_and(|at| now < at.saturating_add(GATHER_MS));
            if next >= last && gathering && self.gathering() {
                return;
            }
            if self.advance(Step::Pass).is_err() {
                return;
            }
        }
        self.log("escrow_frozen", false, None, vec![("nonce", self.state.nonce().to_string())]);
    }

    fn gathering(&self) -> bool {
        self.calls.values().any(|(_, purpose)| matches!(purpose, Purpose::Poll))
    }

    /// Asks for signatures at the final nonce until a quorum is there.
    fn collect(&mut self) {
        let now = self.now.mono_ms;
        let Some(collect) = self.closing.collect.clone().filter(|collect| !collect.done) else { return };
        let nonce = collect.state.nonce();
        let signed = self.kept.get(&nonce).cloned().unwrap_or_default();
        let weight: u64 = signed.keys().map(|participant| self.terms.weight(participant)).sum();
        if weight < self.terms.quorum()
            && collect.dispute
            && collect.rounds >= DISPUTE_ROUNDS
            && let Some((state, signed)) = self.last_signed(nonce)
        {
            return self.dispute_ready(&state, &signed);
        }
        if weight >= self.terms.quorum() {
            if collect.dispute {
                return self.dispute_ready(&collect.state, &signed);
            }
            if let Some(collect) = self.closing.collect.as_mut() {
                collect.done = true;
            }
            let settlement = Box::new(Settlement::of(&collect.state, self.slot_signatures(&signed)));
            let fields = vec![("nonce", nonce.to_string()), ("weight", weight.to_string())];
            self.log("escrow_settlement_ready", false, None, fields);
            self.emit(Effect::SettlementReady(settlement));
            return;
        }
        if collect.asked_ms.is_some_and(|asked| now < asked.saturating_add(self.cfg.collect_ms)) {
            return;
        }
        if let Some(collect) = self.closing.collect.as_mut() {
            collect.asked_ms = Some(now);
            collect.rounds = collect.rounds.saturating_add(1);
        }
        let missing: Vec<Address> =
            self.members.keys().filter(|participant| !signed.contains_key(*participant)).copied().collect();
        if collect.rounds % MISSING_ROUNDS.1 == MISSING_ROUNDS.0 {
            self.say_missing(nonce, weight, &missing);
        }
        for participant in missing {
            self.bring(&participant, Then::Sign(nonce));
        }
    }

    /// The nonce whose signatures the end of the session waits for.
    pub(super) fn signing_nonce(&self) -> Option<u64> {
        let frozen = || (self.state.phase() == Phase::Frozen).then(|| self.state.nonce());
        self.closing.collect.as_ref().map(|collect| collect.state.nonce()).or_else(frozen)
    }

    /// Whether a verified signature of `participant` at `nonce` is kept for the settlement.
    pub(super) fn has_signed(&self, participant: &Address, nonce: u64) -> bool {
        self.kept.get(&nonce).is_some_and(|signed| signed.contains_key(participant))
    }

    /// Who keeps the session from being paid, why, and what helps: one line for each.
    fn say_missing(&mut self, nonce: u64, have: u64, missing: &[Address]) {
        for participant in missing {
            let Some(member) = self.members.get(participant) else { continue };
            let (why, remedy) = if self.flagged(participant) {
                (
                    "flagged",
                    "\"its state is another: stop it, empty its --sessions folder, start it: it is taught and signs\"",
                )
            } else if member.limiter.is_open(self.now.mono_ms) {
                ("not_reached", "\"start it, or mend the way to it\"")
            } else {
                ("no_signature", "\"see its log\"")
            };
            let fields = vec![
                ("nonce", nonce.to_string()),
                ("have", have.to_string()),
                ("need", self.terms.quorum().to_string()),
                ("slots", member.slots.len().to_string()),
                ("why", why.to_owned()),
                ("remedy", remedy.to_owned()),
            ];
            self.log("escrow_signature_missing", true, Some(*participant), fields);
        }
    }

    fn dispute_ready(&mut self, state: &State, signed: &BTreeMap<Address, Signature>) {
        if let Some(collect) = self.closing.collect.as_mut() {
            collect.done = true;
        }
        let fields = vec![("nonce", state.nonce().to_string()), ("signers", signed.len().to_string())];
        self.log("escrow_dispute_ready", true, None, fields);
        let settlement = Settlement::of(state, self.slot_signatures(signed));
        self.emit(Effect::DisputeReady(Box::new(settlement)));
        if let Some(nonce) = self.corrupt {
            self.end(RetireReason::SelfCorrupt { nonce });
        }
    }

    /// What was paid needs no flags any more. What they came to stays to be shown while the session is at hand.
    fn forget_divergences(&mut self) {
        self.totals = self.members.keys().map(|p| (*p, self.repair_totals(p))).collect();
        let escrow = self.terms.escrow_id;
        let mut failed = None;
        let written = self.ledger.write(|store| {
            DivergenceKeeper.remove_escrow(store, escrow).map_err(|error| {
                failed = Some(error.to_string());
                holdfast_store::StoreError::ReadOnly
            })
        });
        if let Some(error) = failed.or_else(|| written.err().map(|error| error.to_string())) {
            tracing::warn!(escrow, error, "the flags of an escrow that is paid were not removed");
        }
    }

    fn slot_signatures(&self, signed: &BTreeMap<Address, Signature>) -> Vec<SlotSignature> {
        // One slot of each signer: its signature counts for all of its slots.
        signed
            .iter()
            .filter_map(|(participant, sig)| {
                let slot = *self.members.get(participant)?.slots.first()?;
                Some(SlotSignature { slot, sig: *sig })
            })
            .collect()
    }

    /// Asks for a signature at `nonce`: with the diffs that lead there, or alone.
    pub(super) fn send_sign(&mut self, participant: &Address, nonce: u64, diffs: Vec<Vec<u8>>) {
        let escrow_id = self.terms.escrow_id;
        let free = self.members.get(participant).is_some_and(|m| m.gate.is_none() && !m.gate_repair);
        let (call, timeout_ms) = if diffs.is_empty() || !free {
            let request = pb::GetSignaturesRequest { escrow_id, nonce, challenge: None };
            (HostCall::GetSignatures(request), self.cfg.ask_ms)
        } else {
            (HostCall::Teach(pb::TeachRequest { escrow_id, diffs, challenge: None }), self.cfg.teach_ms)
        };
        let teach = matches!(call, HostCall::Teach(_));
        let id = self.call(participant, call, timeout_ms, Lane::Free, Purpose::Sign);
        if teach && let Some(member) = self.member(participant) {
            member.gate = Some(id);
        }
    }

    /// The answer to [`GatewayCore::send_sign`].
    pub(super) fn signed(
        &mut self,
        participant: &Address,
        call_id: super::api::CallId,
        result: Result<super::api::HostReply, CallError>,
    ) {
        use super::api::HostReply;
        let mut freed = false;
        if let Some(member) = self.member(participant)
            && member.gate == Some(call_id)
        {
            member.gate = None;
            freed = true;
        }
        match result {
            Ok(HostReply::Teach(reply)) => {
                self.absorb(participant, &reply.applied.unwrap_or_default());
            }
            Ok(HostReply::GetSignatures(reply)) => {
                let shown = self.judge(participant, reply.nonce, &reply.root, &reply.state_signature);
                if let super::members::Shown::Mismatch(mismatch) = shown {
                    self.trip(participant, &mismatch);
                }
                if reply.withheld && self.history.root(reply.nonce).is_some_and(|ours| reply.root == ours[..])
                {
                    self.suspect_withheld(participant, reply.nonce);
                }
                for tx in reply.stale.iter().take(super::pending::OFFERED_MAX) {
                    self.intake(tx);
                }
                // It is behind what we thought: the next round teaches it.
                let cursor = self.members.get(participant).map_or(0, |member| member.cursor);
                if reply.have_nonce < cursor && !self.flagged(participant) {
                    self.set_cursor(participant, reply.have_nonce);
                }
            }
            Ok(_) => {}
            Err(CallError::Host(error)) => match error.code() {
                pb::escrow_error::Code::Behind => {
                    self.set_cursor(participant, error.have_nonce.min(self.state.nonce()));
                }
                pb::escrow_error::Code::SessionNotFound => {
                    self.set_cursor(participant, 0);
                    self.bind(participant);
                }
                // A host that refuses is skipped; others make the quorum.
                _ => self.host_error(participant, &error),
            },
            Err(_) => {}
        }
        if freed {
            self.resume_waiting(participant);
        }
    }

    /// When the end of the session needs a look.
    pub(super) fn closing_at(&self) -> Option<u64> {
        let now = self.now.mono_ms;
        if self.staged.is_some() || self.settling_in() {
            return None;
        }
        if let Some(collect) = self.closing.collect.as_ref().filter(|collect| !collect.done) {
            return Some(collect.asked_ms.map_or(now, |asked| asked.saturating_add(self.cfg.collect_ms)));
        }
        if self.suspected() || self.meta.expired {
            return None;
        }
        if self.state.phase() == Phase::Finalizing {
            return self.closing.gathered_ms.map(|at| at.saturating_add(GATHER_MS));
        }
        if self.meta.closing && self.state.phase() == Phase::Active {
            return self.closing.since_ms.map(|since| since.saturating_add(self.cfg.drain_ms));
        }
        None
    }

    /// The session is over for this process.
    pub(super) fn end(&mut self, reason: RetireReason) {
        if self.over.is_none() {
            self.stop_repairs();
            self.over = Some(reason);
            self.emit(Effect::Retired { reason });
        }
    }
}
