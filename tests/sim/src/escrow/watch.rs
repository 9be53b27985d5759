//! What must hold at every step. The watch sees calls, replies, diffs and flags as they pass, keeps books of its own, and
//! believes no core.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_escrow::divergence::REASON_OWN_FORK;
use holdfast_escrow::session::settle::{Mode, Settlement, verify};
use holdfast_escrow::session::{Diff, FrozenConfig, Hash, HostStats, Signature, Tx, digest, recover};
use holdfast_gateway::core::{CallError, CallId, ClientEvent, FlagView, HostCall, HostReply, RepairView};
use holdfast_proto::holdfast::host::v1 as pb;
use holdfast_types::Address;

pub(super) use super::law::{Breach, Check, Law, breach};
use super::ledger::{End, Ledger};
use super::totals::Totals;

mod ends;
mod evidence;

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

/// A proof that came since the flags were looked at.
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
    /// Diffs of ours that the log does not hold any more, by nonce: its store is an older one again.
    lost: BTreeMap<u64, Vec<Logged>>,
    /// Who has shown one of these.
    forked: BTreeSet<Address>,
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

/// The books at one time, to stand beside a copy of the gateway's store.
#[derive(Clone)]
pub(super) struct Mark {
    ledger: Ledger,
    flags: BTreeMap<Address, FlagView>,
    since_give_up: BTreeMap<Address, (u64, u64)>,
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

/// Whether a participant is flagged for a fault of ours.
pub(super) fn own_fork(flag: &FlagView) -> bool {
    flag.reason == REASON_OWN_FORK
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
            lost: BTreeMap::new(),
            forked: BTreeSet::new(),
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
        // Taken back from a host: it was judged when it was made, beside the flags of that time.
        let again = self.taken_back(diff.nonce, &digest);
        self.log.insert(diff.nonce, Logged { digest, root: diff.post_state_root });
        let charged = diff.txs.iter().filter(|tx| matches!(tx, Tx::TimeoutInference { .. }));
        let charged = charged.filter_map(|tx| self.terms.executor_of(tx.inference_id()?));
        if !again && charged.into_iter().any(|owner| flags.get(&owner).is_some_and(own_fork)) {
            let text = format!("diff {} charges a host for a fork of our own", diff.nonce);
            return breach(Law::NoChargeWithoutFault, text);
        }
        let active = self.ledger.finalize_nonce == 0;
        if let Err(why) = self.ledger.book(&diff) {
            return breach(Law::CoinsConserved, why);
        }
        if again {
            return Ok(());
        }
        self.totals.diffs += 1;
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

    fn taken_back(&mut self, nonce: u64, digest: &Hash) -> bool {
        let Some(lost) = self.lost.get_mut(&nonce) else { return false };
        let at = lost.iter().position(|lost| lost.digest == *digest);
        at.map(|at| lost.remove(at)).is_some()
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

    /// Beside a copy of the gateway's store.
    pub(super) fn mark(&self) -> Mark {
        let (ledger, flags) = (self.ledger.clone(), self.flags.clone());
        Mark { ledger, flags, since_give_up: self.since_give_up.clone() }
    }

    /// The gateway's store is the one of `mark` again.
    pub(super) fn older(&mut self, mark: Mark) {
        for (nonce, logged) in self.log.split_off(&(mark.ledger.nonce + 1)) {
            self.lost.entry(nonce).or_default().push(logged);
        }
        self.proofs.clear();
        Mark { ledger: self.ledger, flags: self.flags, since_give_up: self.since_give_up } = mark;
    }

    /// The gateway opened its store again; both come from there. `over`: the session was paid, and is let go of with its flags.
    pub(super) fn reopened(
        &mut self,
        flags: &BTreeMap<Address, FlagView>,
        log: &[Vec<u8>],
        over: bool,
    ) -> Check {
        self.totals.gateway_starts += 1;
        for (participant, before) in &self.flags {
            match flags.get(participant) {
                Some(after) if after.generation >= before.generation => {}
                // It died after the commit that cleared the flag, before it told anybody.
                None if self.proven(participant, before) => self.totals.restores += 1,
                None if over => {}
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
        self.proofs.clear();
        self.flags.retain(|participant, _| flags.contains_key(participant));
        log.iter().try_for_each(|bytes| self.diff(bytes, flags))
    }

    /// Whether a proof that takes this flag away came since the flags were looked at.
    fn proven(&self, participant: &Address, flag: &FlagView) -> bool {
        self.proofs.iter().any(|proof| {
            proof.participant == *participant
                && proof.generation == flag.generation
                && proof.nonce >= flag.target
                && proof.nonce >= flag.diverged_nonce
                && proof.challenge != [0; 32]
        })
    }

    /// The flags after a step.
    pub(super) fn step(&mut self, after: BTreeMap<Address, FlagView>) -> Check {
        for (participant, before) in &self.flags {
            if after.contains_key(participant) {
                continue;
            }
            if !self.proven(participant, before) {
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
            let own = own_fork(flag);
            if own && !self.forked.contains(participant) {
                let text = format!("{participant:?} has shown no other diff of ours");
                return breach(Law::NoFlagWithoutEvidence, text);
            }
            self.totals.own_forks += u64::from(own && !before.is_some_and(own_fork));
            if before.is_none() {
                if !self.damaged && !own && !self.guilty.contains(participant) {
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
        self.proofs.clear();
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

    /// Whether a diff with this root stood in the log before its store was an older one again.
    fn was_ours(&self, nonce: u64, root: &[u8]) -> bool {
        self.lost.get(&nonce).is_some_and(|lost| lost.iter().any(|lost| lost.root == root))
    }

    /// An honest host shows its root.
    pub(super) fn honest_root(&self, host: usize, nonce: u64, root: &[u8]) -> Check {
        match self.log.get(&nonce) {
            Some(ours) if ours.root != root && !self.damaged && !self.was_ours(nonce, root) => {
                breach(Law::HonestReplicaAgrees, format!("host{host} has another root at nonce {nonce}"))
            }
            _ => Ok(()),
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
