//! What must hold at every step. The watch sees calls, replies, diffs and flags as they pass, keeps books of its own, and
//! believes no core.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_escrow::session::settle::{Mode, Settlement, verify};
use holdfast_escrow::session::{Diff, FrozenConfig, Hash, HostStats, Signature, Tx, digest, recover};
use holdfast_gateway::core::{CallError, CallId, ClientEvent, FlagView, HostCall, HostReply, RepairView};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

pub(super) use super::law::{Breach, Check, Law, breach};
use super::ledger::{End, Ledger};
use super::totals::Totals;

/// A diff that was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Logged {
    pub(super) digest: Hash,
    pub(super) root: Hash,
}

/// A repair call on its way.
#[derive(Debug, Clone, Copy)]
struct Asked {
    participant: Address,
    challenge: Option<(u64, Hash)>,
}

/// A client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Waits {
        until_ms: u64,
    },
    Left,
    Ended,
    /// The gateway died below it.
    Lost,
}

/// A proof that came with the event of this step.
#[derive(Debug, Clone, Copy)]
struct Proof {
    participant: Address,
    nonce: u64,
    generation: u64,
    challenge: Hash,
}

/// See the module.
pub(super) struct Watch {
    terms: Arc<FrozenConfig>,
    pub(super) ledger: Ledger,
    pub(super) log: BTreeMap<u64, Logged>,
    pub(super) flags: BTreeMap<Address, FlagView>,
    asked: BTreeMap<CallId, Asked>,
    proofs: Vec<Proof>,
    /// Who has shown a signed mismatch.
    pub(super) guilty: BTreeSet<Address>,
    #[cfg(test)]
    sent: BTreeMap<u64, Address>,
    clients: BTreeMap<u64, Client>,
    runs: BTreeMap<(usize, u64, u64), u32>,
    /// Own nonces of each participant since it was given up: starts, all.
    since_give_up: BTreeMap<Address, (u64, u64)>,
    /// The gateway's own store was damaged: what hosts sign may differ from what it believes.
    pub(super) damaged: bool,
    pub(super) totals: Totals,
}

/// What the gateway's state says, to be compared with the books.
pub(super) struct Books<'a> {
    pub(super) nonce: u64,
    pub(super) balance: u128,
    pub(super) fees: u128,
    pub(super) reserved: u128,
    pub(super) stats: &'a [HostStats],
}

fn sig(bytes: &[u8]) -> Option<Signature> {
    bytes.try_into().ok()
}

fn hash(bytes: &[u8]) -> Option<Hash> {
    bytes.try_into().ok()
}

impl Watch {
    pub(super) fn new(terms: Arc<FrozenConfig>) -> Self {
        Self {
            ledger: Ledger::new(&terms),
            terms,
            log: BTreeMap::new(),
            flags: BTreeMap::new(),
            asked: BTreeMap::new(),
            proofs: Vec::new(),
            guilty: BTreeSet::new(),
            #[cfg(test)]
            sent: BTreeMap::new(),
            clients: BTreeMap::new(),
            runs: BTreeMap::new(),
            since_give_up: BTreeMap::new(),
            damaged: false,
            totals: Totals::default(),
        }
    }

    fn speaks_for(&self, owner: &Address, digest: &Hash, bytes: &[u8]) -> bool {
        let Some(signer) = sig(bytes).and_then(|sig| recover(digest, &sig).ok()) else { return false };
        signer == *owner || self.ledger.warm.get(owner).is_some_and(|warm| *warm == signer)
    }

    fn state_digest(&self, nonce: u64, root: &Hash) -> Hash {
        digest::state(&self.terms.chain_id, self.terms.escrow_id, nonce, root)
    }

    /// A diff stands in the gateway's log. `flags` are those after the step that wrote it.
    pub(super) fn diff(&mut self, bytes: &[u8], flags: &BTreeMap<Address, FlagView>) -> Check {
        let Ok(diff) = Diff::from_bytes(bytes) else {
            return breach(Law::NonceSignedOnce, "the gateway's log holds bytes that are no diff");
        };
        let digest = diff.digest(&self.terms.chain_id);
        if let Some(known) = self.log.get(&diff.nonce) {
            return if known.digest == digest {
                Ok(())
            } else {
                breach(Law::NonceSignedOnce, format!("nonce {} has a second diff", diff.nonce))
            };
        }
        if recover(&digest, &diff.signature).ok() != Some(self.terms.gateway) {
            return breach(Law::NonceSignedOnce, format!("diff {} is not signed by the gateway", diff.nonce));
        }
        self.log.insert(diff.nonce, Logged { digest, root: diff.post_state_root });
        self.totals.diffs += 1;
        let active = self.ledger.finalize_nonce == 0;
        if let Err(why) = self.ledger.book(&diff) {
            return breach(Law::CoinsConserved, why);
        }
        let owner = self.terms.executor_of(diff.nonce).unwrap_or(Address([0; 20]));
        let started = diff.start().is_some();
        let flag = flags.get(&owner);
        let given_up = flag.is_some_and(|flag| flag.phase == RepairView::GaveUp && !flag.released);
        if started && let Some(flag) = flag.filter(|_| !given_up) {
            return breach(
                Law::NoGhostWhileRepairing,
                format!("diff {} starts work for a participant that is {:?}", diff.nonce, flag.phase),
            );
        }
        if given_up && active && !matches!(diff.txs.last(), Some(Tx::FinalizeRound)) {
            let counts = self.since_give_up.entry(owner).or_default();
            counts.0 += u64::from(started);
            counts.1 += 1;
            self.totals.ghosts += u64::from(started);
        }
        self.totals.passes += u64::from(!started);
        Ok(())
    }

    /// The gateway's state beside the books.
    pub(super) fn books(&self, state: &Books<'_>) -> Check {
        let ledger = &self.ledger;
        let ours = (ledger.nonce, ledger.balance, ledger.fees, ledger.reserved());
        let theirs = (state.nonce, state.balance, state.fees, state.reserved);
        if ours != theirs {
            let text = format!("nonce, balance, fees, reserved: books {ours:?}, state {theirs:?}");
            return breach(Law::CoinsConserved, text);
        }
        for (slot, (ours, theirs)) in ledger.rows.iter().zip(state.stats).enumerate() {
            let counts = [
                (ours.started, theirs.started),
                (ours.completed, theirs.completed),
                (ours.missed, theirs.missed),
                (ours.errored, theirs.errored),
                (ours.released, theirs.released),
                (ours.drained, theirs.drained),
            ];
            if counts.iter().any(|(a, b)| *a != u64::from(*b)) || ours.cost != theirs.cost {
                return breach(Law::CoinsConserved, format!("slot {slot}: books {ours:?}, state {theirs:?}"));
            }
        }
        Ok(())
    }

    /// A call leaves the gateway. `flags` are those after the step that sent it.
    pub(super) fn call(
        &mut self,
        call_id: CallId,
        participant: Address,
        call: &HostCall,
        flags: &BTreeMap<Address, FlagView>,
    ) -> Check {
        let (diffs, challenge): (&[Vec<u8>], _) = match call {
            HostCall::Infer(request) => {
                self.totals.dispatches += 1;
                if flags.contains_key(&participant) {
                    let nonce = request.target_nonce;
                    return breach(Law::NoStartToFlagged, format!("start {nonce} goes out"));
                }
                if self.terms.executor_of(request.target_nonce) != Some(participant) {
                    return breach(
                        Law::NoStartToFlagged,
                        format!("start {} goes to another than its executor", request.target_nonce),
                    );
                }
                #[cfg(test)]
                self.sent.insert(request.target_nonce, participant);
                (&request.diffs, None)
            }
            HostCall::Teach(request) => (&request.diffs, request.challenge.as_ref()),
            HostCall::VoteTimeout(request) => (&request.diffs, None),
            HostCall::GetSignatures(request) => (&[], request.challenge.as_ref()),
            _ => (&[], None),
        };
        for bytes in diffs {
            let Ok(diff) = Diff::from_bytes(bytes) else {
                return breach(Law::NonceSignedOnce, "a call carries bytes that are no diff");
            };
            let digest = diff.digest(&self.terms.chain_id);
            if self.log.get(&diff.nonce).is_none_or(|known| known.digest != digest) {
                let text = format!("a call carries diff {}, which is not that of the log", diff.nonce);
                return breach(Law::NonceSignedOnce, text);
            }
        }
        let challenge = challenge.and_then(|asked| Some((asked.generation, hash(&asked.challenge)?)));
        self.asked.insert(call_id, Asked { participant, challenge });
        Ok(())
    }

    /// A new process of the gateway: what it asked before is forgotten.
    pub(super) fn rebooted(&mut self) {
        self.asked.clear();
        for client in self.clients.values_mut() {
            if matches!(client, Client::Waits { .. } | Client::Left) {
                *client = Client::Lost;
            }
        }
    }

    /// The gateway opened its store again. Both come from the store.
    pub(super) fn reopened(&mut self, flags: &BTreeMap<Address, FlagView>, log: &[Vec<u8>]) -> Check {
        self.totals.gateway_starts += 1;
        for (participant, before) in &self.flags {
            match flags.get(participant) {
                Some(after) if after.generation >= before.generation => {}
                other => {
                    let now = other.map(|flag| flag.generation);
                    let text = format!("generation {} of {participant:?} became {now:?}", before.generation);
                    return breach(Law::FlagsSurvive, text);
                }
            }
        }
        if (log.len() as u64) < self.ledger.nonce {
            let text = format!("{} diffs were told, {} are left", self.ledger.nonce, log.len());
            return breach(Law::NonceSignedOnce, text);
        }
        log.iter().try_for_each(|bytes| self.diff(bytes, flags))
    }

    /// What a host answers to the gateway, before the gateway hears it.
    pub(super) fn reply(&mut self, call_id: CallId, result: &Result<HostReply, CallError>) {
        self.proofs.clear();
        let Some(asked) = self.asked.get(&call_id).copied() else { return };
        match result {
            Ok(HostReply::Teach(reply)) => {
                if let Some(applied) = &reply.applied {
                    self.applied(asked, applied);
                }
            }
            Ok(HostReply::GetSignatures(reply)) => {
                self.signed(asked, reply.nonce, &reply.root, &reply.state_signature);
                self.proof(asked, reply.nonce, &reply.state_signature, reply.verification.as_ref());
            }
            Err(CallError::Host(error)) => self.refused(asked.participant, error),
            Ok(_) | Err(_) => {}
        }
    }

    /// A piece of a stream, before the gateway hears it.
    pub(super) fn piece(&mut self, call_id: CallId, event: &pb::infer_response::Event) {
        self.proofs.clear();
        if let (Some(asked), pb::infer_response::Event::Applied(applied)) =
            (self.asked.get(&call_id).copied(), event)
        {
            self.applied(asked, applied);
        }
    }

    /// The end of a stream, before the gateway hears it.
    pub(super) fn stream_end(&mut self, call_id: CallId, result: &Result<(), CallError>) {
        self.proofs.clear();
        if let (Some(asked), Err(CallError::Host(error))) = (self.asked.get(&call_id).copied(), result) {
            self.refused(asked.participant, error);
        }
    }

    /// Any other event: it proves nothing.
    pub(super) fn silence(&mut self) {
        self.proofs.clear();
    }

    fn applied(&mut self, asked: Asked, applied: &pb::Applied) {
        self.signed(asked, applied.nonce, &applied.root, &applied.state_signature);
        self.proof(asked, applied.nonce, &applied.state_signature, applied.verification.as_ref());
    }

    /// A state signature over another root than ours, at a nonce we hold, is a signed mismatch.
    fn signed(&mut self, asked: Asked, nonce: u64, root: &[u8], signature: &[u8]) {
        let (Some(root), Some(ours)) = (hash(root), self.log.get(&nonce)) else { return };
        if root != ours.root
            && self.speaks_for(&asked.participant, &self.state_digest(nonce, &root), signature)
        {
            self.guilty.insert(asked.participant);
        }
    }

    fn refused(&mut self, participant: Address, error: &pb::EscrowError) {
        if error.code() != pb::escrow_error::Code::RootMismatch {
            return;
        }
        let (Some(root), Some(ours)) = (hash(&error.root), self.log.get(&error.nonce)) else { return };
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let refused = digest::refusal(chain, escrow, error.nonce, &ours.digest, &root);
        let stated = self.state_digest(error.nonce, &root);
        let signed = |digest| self.speaks_for(&participant, digest, &error.signature);
        if root != ours.root && (signed(&refused) || signed(&stated)) {
            self.guilty.insert(participant);
        }
    }

    fn proof(&mut self, asked: Asked, nonce: u64, signature: &[u8], fresh: Option<&pb::Verification>) {
        let (Some(ours), Some(fresh)) = (self.log.get(&nonce), fresh) else { return };
        let Some((generation, challenge)) = asked.challenge else { return };
        let (chain, escrow) = (&self.terms.chain_id, self.terms.escrow_id);
        let digest = digest::verify(chain, escrow, nonce, &ours.root, generation, &challenge);
        let participant = asked.participant;
        if self.speaks_for(&participant, &self.state_digest(nonce, &ours.root), signature)
            && self.speaks_for(&participant, &digest, &fresh.signature)
        {
            self.proofs.push(Proof { participant, nonce, generation, challenge });
        }
    }

    /// The flags after a step.
    pub(super) fn step(&mut self, after: BTreeMap<Address, FlagView>) -> Check {
        for (participant, before) in &self.flags {
            if after.contains_key(participant) {
                continue;
            }
            let proven = self.proofs.iter().any(|proof| {
                proof.participant == *participant
                    && proof.generation == before.generation
                    && proof.nonce >= before.target
                    && proof.nonce >= before.diverged_nonce
                    && proof.challenge != [0; 32]
            });
            if !proven {
                let text = format!(
                    "the flag of {participant:?}, generation {}, target {}, is gone",
                    before.generation, before.target
                );
                return breach(Law::NoClearWithoutProof, text);
            }
            self.totals.restores += 1;
        }
        for (participant, flag) in &after {
            let before = self.flags.get(participant);
            if before.is_none() {
                if !self.damaged && !self.guilty.contains(participant) {
                    let text = format!("{participant:?} is flagged at nonce {}", flag.diverged_nonce);
                    return breach(Law::NoFlagWithoutEvidence, text);
                }
                self.totals.flags += 1;
            }
            let was = before.is_some_and(|flag| flag.phase == RepairView::GaveUp);
            if flag.phase == RepairView::GaveUp && !was {
                self.totals.give_ups += 1;
            }
            if flag.phase != RepairView::GaveUp {
                self.since_give_up.remove(participant);
            }
        }
        self.flags = after;
        Ok(())
    }

    /// A client asks; it waits until then at most.
    pub(super) fn request(&mut self, request_id: u64, until_ms: u64) {
        self.totals.requests += 1;
        self.clients.insert(request_id, Client::Waits { until_ms });
    }

    /// A client is gone.
    pub(super) fn left(&mut self, request_id: u64) {
        if let Some(client @ Client::Waits { .. }) = self.clients.get_mut(&request_id) {
            *client = Client::Left;
        }
    }

    /// Whether the client is still there.
    pub(super) fn waits(&self, request_id: u64) -> bool {
        matches!(self.clients.get(&request_id), Some(Client::Waits { .. }))
    }

    /// A client is told something.
    pub(super) fn client(&mut self, request_id: u64, event: &ClientEvent) -> Check {
        let law = Law::OneEndPerRequest;
        match self.clients.get_mut(&request_id) {
            None => breach(law, format!("request {request_id} was never made")),
            Some(Client::Left) => breach(law, format!("request {request_id} left, and is told {event:?}")),
            Some(Client::Ended | Client::Lost) => {
                breach(law, format!("request {request_id} has ended, and is told {event:?}"))
            }
            Some(client @ Client::Waits { .. }) => {
                match event {
                    ClientEvent::Finished { .. } => {
                        *client = Client::Ended;
                        self.totals.completed += 1;
                    }
                    ClientEvent::Failed(_) => {
                        *client = Client::Ended;
                        self.totals.failed += 1;
                    }
                    ClientEvent::Dispatched { .. } | ClientEvent::Delta { .. } => {}
                }
                Ok(())
            }
        }
    }

    /// Requests whose time is up by `slack_ms`.
    pub(super) fn overdue(&self, now_ms: u64, slack_ms: u64) -> Check {
        for (request_id, client) in &self.clients {
            if let Client::Waits { until_ms } = client
                && until_ms.saturating_add(slack_ms) < now_ms
            {
                return breach(Law::QueueDrains, format!("request {request_id} has no end at {now_ms} ms"));
            }
        }
        Ok(())
    }

    /// A host begins to compute. `memory` counts how often it lost its store.
    pub(super) fn run(&mut self, host: usize, memory: u64, id: u64) -> Check {
        let runs = self.runs.entry((host, memory, id)).or_default();
        *runs += 1;
        self.totals.executions += 1;
        if *runs > 1 {
            return breach(Law::OneExecution, format!("host{host} runs inference {id} again"));
        }
        Ok(())
    }

    /// An honest host shows its root.
    pub(super) fn honest_root(&self, host: usize, nonce: u64, root: &[u8]) -> Check {
        match self.log.get(&nonce) {
            Some(ours) if ours.root != root && !self.damaged => {
                breach(Law::HonestReplicaAgrees, format!("host{host} has another root at nonce {nonce}"))
            }
            _ => Ok(()),
        }
    }

    /// A settlement leaves the gateway.
    pub(super) fn settlement(&mut self, settlement: &Settlement) -> Check {
        let law = Law::SettlementExact;
        let payout = match verify(&self.terms, settlement, Mode::Settle) {
            Ok(payout) => payout,
            Err(error) => return breach(law, error.to_string()),
        };
        let ledger = &self.ledger;
        let mut earned: BTreeMap<Address, u128> = BTreeMap::new();
        for (row, owner) in ledger.rows.iter().zip(&self.terms.slots) {
            *earned.entry(*owner).or_default() += row.cost;
        }
        let sum = payout.earned.values().sum::<u128>() + payout.fees + payout.refund;
        if (&payout.earned, payout.fees, payout.refund, sum)
            != (&earned, ledger.fees, ledger.balance, self.terms.amount)
        {
            return breach(law, format!("paid {payout:?}, the books say {earned:?}"));
        }
        for (owner, outcomes) in &payout.outcomes {
            let rows = ledger.rows.iter().zip(&self.terms.slots).filter(|(_, held)| *held == owner);
            let ours = rows.fold([0u64; 6], |mut sum, (row, _)| {
                let counts = [row.started, row.completed, row.missed, row.errored, row.released, row.drained];
                sum.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
                sum
            });
            let theirs = [
                outcomes.started,
                outcomes.completed,
                outcomes.missed,
                outcomes.errored,
                outcomes.released,
                outcomes.drained,
            ];
            if ours != theirs {
                return breach(law, format!("{owner:?}: counts {theirs:?}, the books say {ours:?}"));
            }
        }
        self.totals.settled += 1;
        Ok(())
    }

    /// A summary for a dispute leaves the gateway.
    pub(super) fn dispute(&self, settlement: &Settlement) -> Check {
        match verify(&self.terms, settlement, Mode::Dispute) {
            Ok(payout) => {
                let sum = payout.earned.values().sum::<u128>() + payout.fees + payout.refund;
                if sum == self.terms.amount {
                    return Ok(());
                }
                breach(Law::SettlementExact, format!("a dispute pays {sum}"))
            }
            Err(error) => breach(Law::SettlementExact, format!("a dispute: {error}")),
        }
    }

    /// Owners who never had a fault were never charged: nothing missed, nothing failed but what the request asked for.
    pub(super) fn charges(&self, blameless: &BTreeSet<Address>, asked_to_fail: &BTreeSet<Hash>) -> Check {
        for (id, entry) in &self.ledger.entries {
            let owner = self.terms.slots[entry.slot];
            if blameless.contains(&owner)
                && matches!(entry.end, Some(End::Missed | End::Errored))
                && !asked_to_fail.contains(&entry.prompt_hash)
            {
                return breach(
                    Law::NoChargeWithoutFault,
                    format!("start {id} of {owner:?}, which had no fault, ended {:?}", entry.end),
                );
            }
        }
        Ok(())
    }

    /// All starts before `id` have ended.
    pub(super) fn ended(&self, from: u64, before: u64) -> Check {
        let open = self.ledger.entries.range(from..before).find(|(_, entry)| entry.end.is_none());
        match open {
            Some((id, entry)) => breach(Law::DispatchEnds, format!("start {id} is open: {entry:?}")),
            None => Ok(()),
        }
    }

    /// Starts and nonces of a participant since it was given up.
    pub(super) fn charged_again(&self, participant: &Address) -> (u64, u64) {
        self.since_give_up.get(participant).copied().unwrap_or_default()
    }

    /// Starts that were really sent.
    #[cfg(test)]
    pub(super) fn sent(&self) -> &BTreeMap<u64, Address> {
        &self.sent
    }
}
