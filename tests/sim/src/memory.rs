//! What the simulated users remember of what they did. It follows from blocks and their results only.

use std::collections::BTreeMap;

use holdfast_app::app::TxResult;
use holdfast_app::router;
use holdfast_proto::cosmos::base::abci::v1beta1::TxMsgData;
use holdfast_proto::cosmos::gov::v1 as gov;
use holdfast_proto::holdfast::inference::v1 as inference;
use holdfast_proto::holdfast::participants::v1 as participants;
use holdfast_proto::{Any, Message, Name};

use crate::cast::Cast;

/// Inferences remembered as open; beyond that the oldest is forgotten and left to expire.
const OPEN_MAX: usize = 60;
/// Proposals followed at a time.
const PROPOSALS_MAX: usize = 12;

/// An inference that was started.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) id: String,
    pub(crate) gateway: usize,
    pub(crate) executor: usize,
}

/// A proposal that was submitted.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    pub(crate) id: u64,
    pub(crate) proposer: usize,
    pub(crate) messages: Vec<Any>,
}

/// How often a type of message was carried out and refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// In a transaction or a proposal that succeeded.
    pub done: u64,
    /// In one that did not.
    pub refused: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.done += other.done;
        self.refused += other.refused;
    }
}

/// Counts of a run.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// By type URL.
    pub messages: BTreeMap<String, Tally>,
    /// By codespace and code; `("", 0)` is success.
    pub codes: BTreeMap<(String, u32), u64>,
    /// Events by type.
    pub events: BTreeMap<String, u64>,
    /// Proposals by how they ended.
    pub proposals: BTreeMap<String, u64>,
    /// Everything else worth knowing: crashes, replays, imports.
    pub driver: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts one more `what`.
    pub(crate) fn note(&mut self, what: &str) {
        *self.driver.entry(what.to_owned()).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        fn sum<K: Clone + Ord>(to: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            for (key, n) in from {
                *to.entry(key.clone()).or_default() += n;
            }
        }
        for (url, tally) in &other.messages {
            self.messages.entry(url.clone()).or_default().add(*tally);
        }
        sum(&mut self.codes, &other.codes);
        sum(&mut self.events, &other.events);
        sum(&mut self.proposals, &other.proposals);
        sum(&mut self.driver, &other.driver);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) open: Vec<Open>,
    /// Finishes that were sent before their start: id and executor.
    pub(crate) early: Vec<(String, usize)>,
    /// Maintenance windows announced: executor and first height.
    pub(crate) windows: Vec<(usize, i64)>,
    pub(crate) proposals: Vec<Proposal>,
    /// Names of upgrades proposed so far.
    pub(crate) upgrades: u64,
    pub(crate) next_id: u64,
    pub(crate) counts: Counts,
}

fn read<M: Message + Name + Default>(message: &Any) -> Option<M> {
    router::unpack(message)
}

impl Memory {
    pub(crate) fn id(&mut self) -> String {
        self.next_id += 1;
        format!("i-{}", self.next_id)
    }

    /// Learns what a transaction with these messages came to.
    pub(crate) fn observe(&mut self, cast: &Cast, messages: &[Any], result: &TxResult) {
        let done = result.code == 0;
        *self.counts.codes.entry((result.codespace.clone(), result.code)).or_default() += 1;
        for message in messages {
            let tally = self.counts.messages.entry(message.type_url.clone()).or_default();
            tally.add(Tally { done: done.into(), refused: (!done).into() });
        }
        if !done {
            // Over before the answer came, or another's.
            if result.codespace == "inference" && matches!(result.code, 11..=14) {
                for message in messages {
                    let msg = read::<inference::MsgFinishInference>(message).map(|msg| msg.inference_id);
                    let msg =
                        msg.or_else(|| Some(read::<inference::MsgReportFailure>(message)?.inference_id));
                    self.open.retain(|open| Some(&open.id) != msg.as_ref());
                }
            }
            return;
        }
        let responses = TxMsgData::decode(result.data.as_slice()).unwrap_or_default().msg_responses;
        for (message, response) in messages.iter().zip(&responses) {
            self.succeeded(cast, message, response);
        }
        let forgotten = self.open.len().saturating_sub(OPEN_MAX);
        self.open.drain(..forgotten);
    }

    fn succeeded(&mut self, cast: &Cast, message: &Any, response: &Any) {
        if let Some(msg) = read::<inference::MsgStartInference>(message) {
            let found = (cast.index_of(&msg.requested_by), cast.index_of(&msg.assigned_to));
            if let (Some(gateway), Some(executor)) = found {
                self.early.retain(|(id, _)| *id != msg.inference_id);
                self.open.push(Open { id: msg.inference_id, gateway, executor });
            }
        } else if let Some(msg) = read::<inference::MsgFinishInference>(message) {
            let known = self.open.iter().any(|open| open.id == msg.inference_id);
            match cast.index_of(&msg.executed_by) {
                Some(executor) if !known => self.early.push((msg.inference_id, executor)),
                _ => self.open.retain(|open| open.id != msg.inference_id),
            }
        } else if let Some(msg) = read::<inference::MsgReportFailure>(message) {
            self.open.retain(|open| open.id != msg.inference_id);
        } else if let Some(msg) = read::<inference::MsgCancelInference>(message) {
            self.open.retain(|open| open.id != msg.inference_id);
        } else if let Some(msg) = read::<participants::MsgAnnounceMaintenance>(message) {
            self.windows.extend(cast.index_of(&msg.participant).map(|index| (index, msg.start_height)));
        } else if let Some(msg) = read::<gov::MsgSubmitProposal>(message) {
            let id = read::<gov::MsgSubmitProposalResponse>(response).map(|response| response.proposal_id);
            if let (Some(id), Some(proposer)) = (id, cast.index_of(&msg.proposer)) {
                self.proposals.push(Proposal { id, proposer, messages: msg.messages });
                let forgotten = self.proposals.len().saturating_sub(PROPOSALS_MAX);
                self.proposals.drain(..forgotten);
            }
        }
        let forgotten = self.early.len().saturating_sub(8);
        self.early.drain(..forgotten);
        let forgotten = self.windows.len().saturating_sub(8);
        self.windows.drain(..forgotten);
    }
}
