//! Doubt about ourselves: the census, the alarm, the replay of our own log, and tails that our store lost.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_escrow::repair::{SelfVerdict, census, quorum_at_risk, suspicion_ends};
use holdfast_escrow::session::{Diff, State, apply};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

use super::api::{CallError, CallId, HostCall, HostReply, Lane, RequestError};
use super::evidence::Mismatch;
use super::members::{Shown, Then};
use super::store::META;
use super::{GatewayCore, Purpose};

/// Diffs that one look replays.
const REPLAY_STEP: u64 = 100;
/// Between two questions for our root while we doubt ourselves.
const ASK_MS: u64 = 1_000;
/// How long a claim about a longer log of ours may hold the sequencer.
const ABOVE_MS: u64 = 2_000;
/// Between two such claims of one participant.
const ABOVE_GAP_MS: u64 = 60_000;

/// A census about one flag.
#[derive(Debug)]
pub(super) struct Census {
    nonce: u64,
    waiting: BTreeSet<Address>,
    agree: BTreeSet<Address>,
    disagree: BTreeSet<Address>,
    /// Flags that are raised when the census does not turn against us.
    held: Vec<(Address, Mismatch)>,
    until_ms: u64,
}

/// The alarm, and what is done about it.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    asked_ms: Option<u64>,
    replay: Option<State>,
    /// Who signed our root, by nonce.
    signed: BTreeMap<u64, BTreeSet<Address>>,
    /// Who showed our root at our tip and withholds its signature, and at which tip.
    shown: BTreeMap<Address, u64>,
}

impl Suspicion {
    /// A doubt whose replay begins now.
    pub(super) fn replaying(genesis: State) -> Self {
        Self { replay: Some(genesis), ..Self::default() }
    }
}

impl GatewayCore {
    pub(super) fn suspected(&self) -> bool {
        self.meta.suspect_at > 0
    }

    /// Asks every other unflagged participant for its signature at the flag's nonce.
    pub(super) fn take_census(&mut self, about: &Address) {
        let Some(nonce) = self.flags.get(about).map(|flag| flag.diverged_nonce) else { return };
        let asked: BTreeSet<Address> =
            self.members.keys().filter(|p| *p != about && !self.flagged(p)).copied().collect();
        let until_ms = self.now.mono_ms.saturating_add(self.cfg.ask_ms);
        let entry = Census {
            nonce,
            waiting: asked.clone(),
            agree: BTreeSet::new(),
            disagree: BTreeSet::new(),
            held: Vec::new(),
            until_ms,
        };
        self.censuses.insert(*about, entry);
        for participant in asked {
            let escrow_id = self.terms.escrow_id;
            let purpose = Purpose::Census { about: *about, nonce };
            // Who has not come so far yet is brought there: its own turn of the rota may be to come.
            let free = self.members.get(&participant).is_some_and(|m| m.gate.is_none() && !m.gate_repair);
            let tail =
                self.chunk(&participant, nonce).filter(|(diffs, end)| free && *end && !diffs.is_empty());
            if let Some((diffs, _)) = tail {
                let call = HostCall::Teach(pb::TeachRequest { escrow_id, diffs, challenge: None });
                let id = self.call(&participant, call, self.cfg.ask_ms, Lane::Free, purpose);
                if let Some(member) = self.member(&participant) {
                    member.gate = Some(id);
                }
            } else {
                let request = pb::GetSignaturesRequest { escrow_id, nonce, challenge: None };
                self.call(
                    &participant,
                    HostCall::GetSignatures(request),
                    self.cfg.ask_ms,
                    Lane::Free,
                    purpose,
                );
            }
        }
        self.close_census(about);
    }

    /// What an answer to a census says at `nonce`: agreement, a mismatch, or nothing.
    fn census_word(
        &mut self,
        participant: &Address,
        nonce: u64,
        result: Result<HostReply, CallError>,
    ) -> (bool, Option<Mismatch>) {
        let (at, root, signature) = match result {
            Ok(HostReply::GetSignatures(reply)) => (reply.nonce, reply.root, reply.state_signature),
            Ok(HostReply::Teach(reply)) => {
                let applied = reply.applied.unwrap_or_default();
                for tx in applied.pending.iter().take(super::pending::OFFERED_MAX) {
                    self.intake(tx);
                }
                (applied.nonce, applied.root, applied.state_signature)
            }
            Err(CallError::Host(error)) if error.code() == pb::escrow_error::Code::RootMismatch => {
                let mismatch = self.refusal(participant, &error).filter(|mismatch| mismatch.nonce <= nonce);
                return (false, mismatch);
            }
            Ok(_) | Err(_) => return (false, None),
        };
        match self.judge(participant, at, &root, &signature) {
            Shown::Ours(_) => {
                let ours = self.history.root(at).unwrap_or_default();
                let signed = self.state_signature(participant, at, &ours, &signature).is_some();
                let cursor = self.members.get(participant).map_or(0, |member| member.cursor);
                self.set_cursor(participant, cursor.max(at));
                // A root binds its whole past: a later one that is ours agrees as well.
                (signed && at >= nonce, None)
            }
            Shown::Mismatch(mismatch) => (false, (mismatch.nonce <= nonce).then_some(*mismatch)),
            Shown::Above(_) | Shown::Garbage => (false, None),
        }
    }

    /// An answer to a census.
    pub(super) fn census_reply(
        &mut self,
        participant: &Address,
        about: &Address,
        nonce: u64,
        call_id: CallId,
        result: Result<HostReply, CallError>,
    ) {
        let own = match &result {
            Err(CallError::Host(error)) => self.own_fork_shown(error),
            _ => None,
        };
        let (agree, mismatch) = self.census_word(participant, nonce, result);
        if let Some(member) = self.member(participant)
            && member.gate == Some(call_id)
        {
            member.gate = None;
            self.resume_waiting(participant);
        }
        let Some(census) = self.censuses.get_mut(about) else { return };
        if !census.waiting.remove(participant) {
            return;
        }
        if agree {
            census.agree.insert(*participant);
        }
        if let Some(evidence) = own {
            if evidence.nonce <= nonce {
                census.disagree.insert(*participant);
            }
            self.own_fork(participant, evidence);
        }
        let Some(census) = self.censuses.get_mut(about) else { return };
        if let Some(mismatch) = mismatch {
            census.disagree.insert(*participant);
            census.held.push((*participant, mismatch));
        }
        self.close_census(about);
    }

    fn close_census(&mut self, about: &Address) {
        let now = self.now.mono_ms;
        let over = self.censuses.get(about).is_some_and(|c| c.waiting.is_empty() || c.until_ms <= now);
        if !over {
            return;
        }
        let Some(taken) = self.censuses.remove(about) else { return };
        // Who is flagged for this nonce or an earlier one has signed that it disagrees, whatever it said before.
        let flagged = self
            .flags
            .iter()
            .filter(|(participant, flag)| *participant == about || flag.diverged_nonce <= taken.nonce)
            .map(|(participant, _)| *participant);
        let disagreeing: BTreeSet<Address> = taken.disagree.iter().copied().chain(flagged).collect();
        let weight = |participant: &Address| self.terms.weight(participant);
        let agree: u64 = taken.agree.difference(&disagreeing).map(weight).sum();
        let disagree: u64 = disagreeing.iter().map(weight).sum();
        let verdict = census(agree, disagree, self.terms.group_size());
        self.log(
            "escrow_census",
            verdict == SelfVerdict::Suspect,
            Some(*about),
            vec![
                ("nonce", taken.nonce.to_string()),
                ("agree", agree.to_string()),
                ("disagree", disagree.to_string()),
                ("verdict", format!("{verdict:?}")),
            ],
        );
        if verdict == SelfVerdict::Suspect {
            self.raise_suspicion("census");
            // Two logs of ours would explain it.
            for (participant, mismatch) in taken.held {
                self.ask_held(&participant, mismatch.nonce);
            }
        } else {
            for (participant, mismatch) in taken.held {
                self.trip(&participant, &mismatch);
            }
        }
        self.census_taken(about);
    }

    /// Withhold from everyone, blame nobody, say so.
    pub(super) fn raise_suspicion(&mut self, why: &'static str) {
        if self.suspected() {
            return;
        }
        self.meta.suspect_at = self.state.nonce().max(1);
        self.note_meta();
        self.suspicion = Suspicion::replaying(State::genesis(self.terms.clone()));
        self.log(
            "escrow_self_suspect",
            true,
            None,
            vec![("why", why.to_owned()), ("nonce", self.meta.suspect_at.to_string())],
        );
        self.gauge("gateway_self_suspect", None, 1);
        self.fail_queue(RequestError::SelfSuspect);
    }

    /// A verified signature over our root: enough weight at one nonce ends the doubt.
    pub(super) fn suspect_signature(&mut self, participant: &Address, nonce: u64) {
        if !self.suspected() || nonce < self.meta.suspect_at.min(self.state.nonce()) {
            return;
        }
        let signers = self.suspicion.signed.entry(nonce).or_default();
        signers.insert(*participant);
        let weight: u64 =
            signers.iter().filter_map(|p| self.members.get(p)).map(super::members::Member::weight).sum();
        while self.suspicion.signed.len() > 64 {
            self.suspicion.signed.pop_first();
        }
        if suspicion_ends(weight, self.terms.group_size()) && self.corrupt.is_none() {
            self.meta.suspect_at = 0;
            self.note_meta();
            self.suspicion = Suspicion::default();
            self.log("escrow_self_suspect_cleared", true, None, vec![("nonce", nonce.to_string())]);
            self.gauge("gateway_self_suspect", None, 0);
        }
    }

    /// A host shows our root at our tip, unsigned, because its transactions are left out.
    pub(super) fn suspect_withheld(&mut self, participant: &Address, nonce: u64) {
        if self.suspected() && nonce == self.state.nonce() {
            self.suspicion.shown.insert(*participant, nonce);
        }
    }

    /// Hosts withhold until their transactions are published, and we publish nothing while we doubt: when the log has
    /// replayed and a quorum stands at our tip with our root, a pass with what is pending unties that. It dispatches nothing.
    pub(super) fn may_untie(&self) -> bool {
        let tip = self.state.nonce();
        let doubt = &self.suspicion;
        let signed = doubt.signed.get(&tip);
        let stands = |p: &Address| {
            doubt.shown.get(p) == Some(&tip) || signed.is_some_and(|signers| signers.contains(p))
        };
        let weight: u64 =
            self.members.iter().filter(|(p, _)| stands(p)).map(|(_, member)| member.weight()).sum();
        self.corrupt.is_none()
            && doubt.replay.is_none()
            && !doubt.shown.is_empty()
            && suspicion_ends(weight, self.terms.group_size())
    }

    /// Goes on with censuses, the replay and the questions.
    pub(super) fn run_doubts(&mut self) {
        let open: Vec<Address> = self.censuses.keys().copied().collect();
        for about in open {
            self.close_census(&about);
        }
        if !self.suspected() || self.corrupt.is_some() {
            return;
        }
        self.replay();
        let now = self.now.mono_ms;
        let due = self.suspicion.asked_ms.is_none_or(|asked| now >= asked.saturating_add(ASK_MS));
        if due && self.corrupt.is_none() {
            self.suspicion.asked_ms = Some(now);
            // A pass that unties moves the tip, and hosts sign again only once they have it.
            let nonce = self.state.nonce();
            let all: Vec<Address> = self.members.keys().copied().collect();
            for participant in all {
                if self.flagged(&participant) {
                    self.send_sign(&participant, nonce, Vec::new());
                } else {
                    self.bring(&participant, Then::Sign(nonce));
                }
            }
        }
    }

    /// When the doubts need a look.
    pub(super) fn doubts_at(&self) -> Option<u64> {
        let census = self.censuses.values().map(|census| census.until_ms).min();
        let doubt = self.suspected() && self.corrupt.is_none();
        let replay = (doubt && self.suspicion.replay.is_some()).then_some(self.now.mono_ms.saturating_add(1));
        let ask =
            doubt.then(|| self.suspicion.asked_ms.map_or(self.now.mono_ms, |at| at.saturating_add(ASK_MS)));
        census
            .into_iter()
            .chain(replay)
            .chain(ask)
            .chain(self.above_until_ms.filter(|at| *at > self.now.mono_ms))
            .min()
    }

    fn replay(&mut self) {
        let Some(mut state) = self.suspicion.replay.take() else { return };
        for _ in 0..REPLAY_STEP {
            let nonce = state.nonce().saturating_add(1);
            if nonce > self.state.nonce() {
                let same = state.root() == self.state.root();
                if same {
                    self.log("escrow_self_replay", false, None, vec![("nonce", state.nonce().to_string())]);
                } else {
                    self.self_corrupt(state.nonce(), state);
                }
                return;
            }
            let next = self.diff_at(nonce).map(|diff| apply(&state, &diff));
            match next {
                Some(Ok((after, root))) if self.history.root(nonce) == Some(root) => state = after,
                _ => return self.self_corrupt(nonce, state),
            }
        }
        self.suspicion.replay = Some(state);
    }

    /// Our log does not replay: the escrow is retired, and paid by dispute at the last nonce that holds.
    pub(super) fn self_corrupt(&mut self, nonce: u64, good: State) {
        self.log("escrow_self_corrupt", true, None, vec![("nonce", nonce.to_string())]);
        self.corrupt = Some(nonce);
        self.fail_queue(RequestError::EscrowExhausted);
        self.stop_repairs();
        self.collect_for_dispute(good);
    }

    /// A host says that it holds a nonce above our tip. Only diffs with our own signature show that our store lost them.
    /// An unsigned word holds the sequencer only while the session is being opened.
    pub(super) fn look_above(&mut self, participant: &Address, signed: bool) {
        let now = self.now.mono_ms;
        if self.corrupt.is_some() {
            return;
        }
        let asked = self.above_asked.get(participant).copied();
        if asked.is_some_and(|asked| now < asked.saturating_add(ABOVE_GAP_MS)) || self.staged.is_some() {
            return;
        }
        self.above_asked.insert(*participant, now);
        if signed || now < self.settle_until_ms {
            // Nothing is signed at a nonce that may be used already.
            self.above_until_ms = Some(now.saturating_add(ABOVE_MS));
        }
        self.ask_above(participant);
    }

    fn ask_above(&mut self, participant: &Address) {
        let request = pb::GetDiffsRequest {
            escrow_id: self.terms.escrow_id,
            from: self.state.nonce().saturating_add(1),
            max: 200,
        };
        self.call(participant, HostCall::GetDiffs(request), self.cfg.ask_ms, Lane::Free, Purpose::Above);
    }

    /// Diffs above our tip came back.
    pub(super) fn above_reply(
        &mut self,
        participant: &Address,
        result: Result<pb::GetDiffsResponse, CallError>,
    ) {
        let mut taken = 0u64;
        for bytes in result.map(|reply| reply.diffs).unwrap_or_default().iter().take(200) {
            let Ok(diff) = Diff::from_bytes(bytes) else { break };
            if !self.is_ours(&diff) {
                break;
            }
            if diff.nonce <= self.state.nonce() {
                if let Some(evidence) = self.own_fork_by(&diff) {
                    self.own_fork(participant, evidence);
                    break;
                }
                continue;
            }
            match self.adopt(diff) {
                Ok(()) => taken += 1,
                Err(error) => {
                    self.log("escrow_tail_refused", true, Some(*participant), vec![("error", error)]);
                    self.ask_below(participant);
                    break;
                }
            }
        }
        if taken > 0 {
            let fields = vec![("diffs", taken.to_string()), ("tip", self.state.nonce().to_string())];
            self.log("escrow_tail_recovered", true, Some(*participant), fields);
            self.above_until_ms = Some(self.now.mono_ms.saturating_add(ABOVE_MS));
            self.distrust_cancellations();
            self.ask_above(participant);
        } else if !self.calls.values().any(|(_, purpose)| *purpose == Purpose::Above) {
            // Hosts hold logs of different length: the longest one counts.
            self.above_until_ms = None;
        }
    }

    /// A diff of ours does not follow from our state: where do the two logs part?
    fn ask_below(&mut self, participant: &Address) {
        let from = self.members.get(participant).map_or(0, |member| member.cursor).saturating_add(1);
        let request = pb::GetDiffsRequest { escrow_id: self.terms.escrow_id, from, max: 200 };
        self.call(participant, HostCall::GetDiffs(request), self.cfg.ask_ms, Lane::Free, Purpose::Below);
    }

    /// The answer to [`GatewayCore::ask_below`]. Without two diffs at one nonce it is our state that is in doubt.
    pub(super) fn below_reply(
        &mut self,
        participant: &Address,
        result: Result<pb::GetDiffsResponse, CallError>,
    ) {
        let diffs = result.map(|reply| reply.diffs).unwrap_or_default();
        let fork = diffs
            .iter()
            .take(200)
            .map_while(|bytes| Diff::from_bytes(bytes).ok())
            .find_map(|diff| self.own_fork_by(&diff));
        match fork {
            Some(evidence) => self.own_fork(participant, evidence),
            None => self.raise_suspicion("a diff of ours does not follow from our state"),
        }
    }

    /// A DiffFork error; whether it shows another diff that we signed.
    pub(super) fn fork_shown(&mut self, participant: &Address, error: &pb::EscrowError) -> bool {
        if let Some(evidence) = self.own_fork_shown(error) {
            self.own_fork(participant, evidence);
            return true;
        }
        if let Ok(diff) = Diff::from_bytes(&error.diff)
            && diff.nonce > self.state.nonce()
            && self.is_ours(&diff)
        {
            self.look_above(participant, true);
            return true;
        }
        false
    }

    /// Whether the sequencer waits: for hosts that may know a longer log of ours.
    pub(super) fn settling_in(&self) -> bool {
        let now = self.now.mono_ms;
        let binding = now < self.settle_until_ms
            && self.members.values().any(|member| member.bound == super::members::Bound::Asking);
        binding || self.above_until_ms.is_some_and(|until| now < until)
    }

    /// Whether a settlement needs a repair first.
    pub fn quorum_at_risk(&self) -> bool {
        let flagged: u64 =
            self.flags.keys().filter_map(|p| self.members.get(p)).map(super::members::Member::weight).sum();
        quorum_at_risk(flagged, self.terms.group_size())
    }

    pub(super) fn note_meta(&mut self) {
        let meta = self.meta.clone();
        self.urgent = true;
        self.ledger.set(&META, &self.terms.escrow_id, &meta);
    }
}
