//! What others may see of a session: the gateway's service, tests, the simulator.

use holdfast_escrow::divergence::{DivergenceFlag, DivergenceKeeper, Subject};
use holdfast_escrow::repair::{Forgiven, RepairPhase};
use holdfast_escrow::session::{FrozenConfig, Hash, Phase, Signature, State, Tx};
use holdfast_proto::holdfast::gateway::v1 as gw;
use holdfast_types::{Address, Hrp};

use super::GatewayCore;
use super::api::RetireReason;
use super::store::{Counters, StartKind};

/// Silence of every host after which the session is not ready.
const ALIVE_MS: u64 = 60_000;

/// A divergence flag as the service shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagView {
    /// The escrow.
    pub escrow_id: u64,
    /// Whom.
    pub participant: Address,
    /// First nonce known to differ.
    pub diverged_nonce: u64,
    /// Our root there.
    pub our_root: [u8; 32],
    /// Its root there.
    pub their_root: [u8; 32],
    /// Its signature.
    pub signature: Vec<u8>,
    /// Digest that it signed.
    pub signed_digest: [u8; 32],
    /// Counts flags and reopenings.
    pub generation: u64,
    /// Unix seconds.
    pub flagged_at: u64,
    /// Where its repair stands.
    pub phase: RepairView,
    /// Attempts of this generation.
    pub attempt: u32,
    /// 0 to 3.
    pub level: u8,
    /// It holds another state at a nonce that it applied.
    pub forked: bool,
    /// Nonce that the attempt aims at.
    pub target: u64,
    /// Time towards giving up.
    pub elapsed_ms: u64,
    /// How the last attempt ended.
    pub last_verdict: String,
    /// Why it is flagged.
    pub reason: &'static str,
    /// Nothing is charged for it.
    pub released: bool,
    /// First nonce with another root; 0 = unknown.
    pub first_bad_nonce: u64,
    /// How often restored in this escrow.
    pub restored: u64,
}

impl FlagView {
    /// As the gateway's service answers it.
    pub fn to_proto(&self, hrp: &Hrp) -> gw::DivergenceFlag {
        let phase = match self.phase {
            RepairView::Waiting => gw::RepairPhase::Waiting,
            RepairView::Teaching => gw::RepairPhase::Teaching,
            RepairView::Verifying => gw::RepairPhase::Verifying,
            RepairView::GaveUp => gw::RepairPhase::GaveUp,
            RepairView::Stopped => gw::RepairPhase::Stopped,
        };
        gw::DivergenceFlag {
            escrow_id: self.escrow_id,
            participant: self.participant.to_bech32(hrp),
            reason: self.reason.to_owned(),
            diverged_nonce: self.diverged_nonce,
            our_root: self.our_root.to_vec(),
            their_root: self.their_root.to_vec(),
            signature: self.signature.clone(),
            signed_digest: self.signed_digest.to_vec(),
            generation: self.generation,
            flagged_at: self.flagged_at,
            phase: phase as i32,
            attempt: self.attempt,
            level: u32::from(self.level),
            forked: self.forked,
            target: self.target,
            elapsed_ms: self.elapsed_ms,
            last_verdict: self.last_verdict.clone(),
            released: self.released,
            first_bad_nonce: self.first_bad_nonce,
            restored: self.restored,
        }
    }
}

/// Phases of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairView {
    /// Waits for its next attempt.
    Waiting,
    /// Brings diffs.
    Teaching,
    /// Asks for a fresh signature.
    Verifying,
    /// No more attempts.
    GaveUp,
    /// The session ended.
    Stopped,
}

/// One participant of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParticipantStatus {
    /// Who.
    pub address: Address,
    /// Its slots.
    pub slots: Vec<u8>,
    /// Highest nonce that it confirmed.
    pub cursor: u64,
    /// Whether it is flagged.
    pub flagged: bool,
    /// Whether its limiter is open.
    pub throttled: bool,
    /// Whether the chain excuses it.
    pub absent: bool,
    /// Outcomes over its slots: started, completed, missed, errored, released, drained.
    pub outcomes: [u32; 6],
    /// Earned.
    pub cost: u128,
    /// It signed the state that the end of the session waits for.
    pub signed: bool,
    /// Counts.
    pub counters: Counters,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// The escrow.
    pub escrow_id: u64,
    /// Its model.
    pub model: String,
    /// `active`, `ending`, `finalizing`, `frozen`, `settled`, `retired`.
    pub phase: &'static str,
    /// Last durable nonce.
    pub nonce: u64,
    /// Root there.
    pub root: Hash,
    /// Coins put in.
    pub amount: u128,
    /// Not spent.
    pub balance: u128,
    /// Reserved by open inferences.
    pub reserved: u128,
    /// Earned by hosts.
    pub cost: u128,
    /// Fees.
    pub fees: u128,
    /// Live records.
    pub live: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Streams that run.
    pub in_flight: u32,
    /// Transactions that wait for a diff.
    pub pending: u32,
    /// Starts whose record is open.
    pub open_starts: u32,
    /// Nothing is dispatched: the gateway may itself be wrong.
    pub self_suspect: bool,
    /// Settlement needs a repair.
    pub quorum_at_risk: bool,
    /// The store took no commit: restart on a store that works.
    pub storage_failed: bool,
    /// No new requests.
    pub closing: bool,
    /// Slots whose owners signed the last state, and slots that a settlement needs; none before it is frozen.
    pub signatures: Option<(u64, u64)>,
    /// By address.
    pub participants: Vec<ParticipantStatus>,
}

impl GatewayCore {
    /// The session as it is.
    pub fn status(&self) -> SessionStatus {
        let phase =
            match (self.meta.settled, self.over.is_some() || self.corrupt.is_some(), self.state.phase()) {
                (true, ..) => "settled",
                (_, true, _) => "retired",
                (_, _, Phase::Active) if self.meta.closing => "ending",
                (_, _, Phase::Active) => "active",
                (_, _, Phase::Finalizing) => "finalizing",
                (_, _, Phase::Frozen) => "frozen",
            };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        SessionStatus {
            escrow_id: self.terms.escrow_id,
            model: self.terms.model.clone(),
            phase,
            nonce: self.state.nonce(),
            root: self.state.root(),
            amount: self.terms.amount,
            balance: self.state.balance(),
            reserved: self.state.reserved(),
            cost: self.state.cost(),
            fees: self.state.fees(),
            live: self.state.live_len(),
            queued: count(self.queue.len()),
            in_flight: count(self.flights.len()),
            pending: count(self.pending.len()),
            open_starts: count(self.dues.len()),
            self_suspect: self.suspected(),
            quorum_at_risk: self.quorum_at_risk(),
            storage_failed: self.staged.is_some() || self.ledger.failed,
            closing: self.meta.closing,
            signatures: self.signing_nonce().map(|nonce| (self.signed_weight(nonce), self.terms.quorum())),
            participants: self.members.keys().filter_map(|p| self.participant(p)).collect(),
        }
    }

    fn participant(&self, address: &Address) -> Option<ParticipantStatus> {
        let member = self.members.get(address)?;
        let mut outcomes = [0u32; 6];
        let mut cost = 0u128;
        for row in self.state.stats().iter().filter(|row| member.slots.contains(&row.slot)) {
            let counts = [row.started, row.completed, row.missed, row.errored, row.released, row.drained];
            for (sum, count) in outcomes.iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
            cost = cost.saturating_add(row.cost);
        }
        Some(ParticipantStatus {
            address: *address,
            slots: member.slots.clone(),
            cursor: member.cursor,
            flagged: self.flagged(address),
            throttled: member.limiter.is_open(self.now.mono_ms),
            absent: member.absent,
            outcomes,
            cost,
            signed: self.signing_nonce().is_some_and(|nonce| self.has_signed(address, nonce)),
            counters: member.counters,
        })
    }

    /// What survives the flags of `participant`: attempts, restores, give-ups, time blocked (ms).
    pub fn repair_totals(&self, participant: &Address) -> RepairTotals {
        if let Some(totals) = self.totals.get(participant) {
            return *totals;
        }
        let subject = Subject { escrow_id: self.terms.escrow_id, participant: *participant };
        let history = self.ledger.read(|store| DivergenceKeeper.history(store, &subject)).unwrap_or_default();
        RepairTotals {
            attempts: history.attempts,
            raised: u64::from(history.raised),
            restored: u64::from(history.restored),
            gave_up: u64::from(history.gave_up),
            blocked_ms: history.blocked_ms(self.flags.get(participant), self.now.unix_ms),
        }
    }

    /// As the gateway's service answers it.
    pub fn to_proto(&self, hrp: &Hrp) -> gw::EscrowSession {
        let status = self.status();
        let participants = status.participants.iter().map(|p| {
            let totals = self.repair_totals(&p.address);
            let [started, completed, missed, errored, released, drained] = p.outcomes;
            gw::Participant {
                address: p.address.to_bech32(hrp),
                slots: p.slots.iter().map(|slot| u32::from(*slot)).collect(),
                cursor: p.cursor,
                flagged: p.flagged,
                started,
                completed,
                missed,
                errored,
                released,
                drained,
                cost: p.cost.to_string(),
                starts_while_flagged: p.counters.starts_while_flagged,
                ghosts: p.counters.ghosts,
                accountable_ghosts_during_repair: p.counters.accountable_ghosts_during_repair,
                passes: p.counters.passes,
                blocked_ms: totals.blocked_ms,
                repair_attempts: totals.attempts,
                restored: totals.restored,
                gave_up: totals.gave_up,
                signed: p.signed,
                // What the driver knows of the host.
                ..gw::Participant::default()
            }
        });
        let signatures = status.signatures.unwrap_or_default();
        let slots = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        gw::EscrowSession {
            escrow_id: status.escrow_id,
            model: status.model.clone(),
            phase: status.phase.to_owned(),
            nonce: status.nonce,
            root: status.root.to_vec(),
            amount: status.amount.to_string(),
            balance: status.balance.to_string(),
            reserved: status.reserved.to_string(),
            cost: status.cost.to_string(),
            fees: status.fees.to_string(),
            live: status.live,
            queued: status.queued,
            self_suspect: status.self_suspect,
            quorum_at_risk: status.quorum_at_risk,
            participants: participants.collect(),
            signatures_have: slots(signatures.0),
            signatures_need: slots(signatures.1),
            // The chain's row has it.
            expires_at: 0,
        }
    }

    /// The flag of `participant`.
    pub fn flag(&self, participant: &Address) -> Option<FlagView> {
        self.flags.get(participant).map(|flag| self.view(flag))
    }

    /// Every flag, by participant.
    pub fn flags(&self) -> Vec<FlagView> {
        self.flags.values().map(|flag| self.view(flag)).collect()
    }

    pub(super) fn view(&self, flag: &DivergenceFlag) -> FlagView {
        let totals = self.repair_totals(&flag.subject.participant);
        FlagView {
            escrow_id: flag.subject.escrow_id,
            participant: flag.subject.participant,
            diverged_nonce: flag.diverged_nonce,
            our_root: flag.our_root,
            their_root: flag.their_root,
            signature: flag.signature.to_vec(),
            signed_digest: flag.signed_digest,
            generation: flag.generation,
            flagged_at: flag.flagged_at_ms / 1000,
            phase: match flag.repair.phase {
                RepairPhase::Waiting => RepairView::Waiting,
                RepairPhase::Teaching => RepairView::Teaching,
                RepairPhase::Verifying => RepairView::Verifying,
                RepairPhase::GaveUp => RepairView::GaveUp,
                RepairPhase::Stopped => RepairView::Stopped,
            },
            attempt: flag.repair.attempt,
            level: flag.repair.level,
            forked: flag.repair.forked,
            target: flag.repair.target,
            elapsed_ms: flag.repair.elapsed_ms,
            last_verdict: flag.repair.last_verdict.as_str().to_owned(),
            reason: flag.reason(),
            released: flag.repair.released != Forgiven::No,
            first_bad_nonce: flag.first_bad_nonce,
            restored: totals.restored,
        }
    }

    /// The state after the last durable diff.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The terms.
    pub fn terms(&self) -> &FrozenConfig {
        &self.terms
    }

    /// Our root at `nonce`.
    pub fn root_at(&self, nonce: u64) -> Option<Hash> {
        self.history.root(nonce)
    }

    /// Signed diffs from `from` on, at most `max`.
    pub fn diffs(&self, from: u64, max: usize) -> Vec<Vec<u8>> {
        self.ledger.diffs(from.max(1), self.state.nonce(), max, usize::MAX).unwrap_or_default()
    }

    /// Transactions of hosts that wait for a diff.
    pub fn pending_txs(&self) -> impl Iterator<Item = &Tx> {
        self.pending.txs()
    }

    /// Open starts: id, and whether it was sent.
    pub fn open_starts(&self) -> impl Iterator<Item = (u64, StartKind)> {
        self.dues.iter().map(|(id, due)| (*id, due.row.kind))
    }

    /// Verified signatures over our root at `nonce` that are kept for a settlement.
    pub fn signatures_at(&self, nonce: u64) -> Vec<(Address, Signature)> {
        self.kept.get(&nonce).into_iter().flatten().map(|(p, sig)| (*p, *sig)).collect()
    }

    /// First nonce at which our own log did not replay.
    pub fn corrupt_at(&self) -> Option<u64> {
        self.corrupt
    }

    /// Why the session ended, if it did.
    pub fn retired(&self) -> Option<RetireReason> {
        self.over
    }

    /// Whether it takes requests now.
    pub fn takes_requests(&self) -> bool {
        self.over.is_none() && self.corrupt.is_none() && self.closed().is_none()
    }

    /// For `/readyz`: it takes requests, and a token or an answered ping came within a minute.
    pub fn ready(&self, now_ms: u64) -> bool {
        self.takes_requests() && self.alive_ms.is_some_and(|at| now_ms < at.saturating_add(ALIVE_MS))
    }
}

/// What survives the flags of a participant in one escrow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairTotals {
    /// Attempts begun.
    pub attempts: u64,
    /// Flags raised.
    pub raised: u64,
    /// Flags cleared by proof.
    pub restored: u64,
    /// Repairs given up.
    pub gave_up: u64,
    /// Time flagged, ms; the present flag included.
    pub blocked_ms: u64,
}
