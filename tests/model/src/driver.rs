//! The inference life cycle around the breaker: turns [`Op`]s into the calls of a [`Circuit`].
//!
//! It keeps its own groups, maintenance windows and parameters, so that what it asks of a circuit never depends
//! on the circuit; the same history drives the model and the real keeper with equal calls as long as both
//! answer `start` alike.

use crate::history::{BlockOps, Genesis, Op};
use crate::params::Params;
use crate::world::{
    Availability, BeginBlock, EpochInput, Event, Member, OverrideTo, Stamp, StartCall, World,
};
use crate::{Address, Pair};
use std::collections::{BTreeMap, BTreeSet};

/// What a breaker offers to the chain around it. Outcomes name an inference admitted by `start` (without
/// `finished_at`); each gets exactly one.
pub trait Circuit {
    /// B1 to B4.
    fn begin_block(&mut self, block: &BeginBlock);
    /// Admission, code of codespace `breaker` if refused.
    fn start(&mut self, call: &StartCall) -> Result<Stamp, u32>;
    /// Paid.
    fn finish(&mut self, inference_id: &str);
    /// Expired or reported.
    fn miss(&mut self, inference_id: &str);
    /// Ended without fault.
    fn release(&mut self, inference_id: &str);
    /// Pair an escrow stores at its creation.
    fn stamp(&mut self, model: &str, participant: &Address) -> Stamp;
    /// Settled counts.
    fn escrow_counts(&mut self, model: &str, participant: &Address, stamp: Stamp, ok: u64, missed: u64);
    /// Message of the authority, code of codespace `breaker` if refused.
    fn set_override(
        &mut self,
        model: &str,
        participant: &Address,
        to: OverrideTo,
        until_block: i64,
    ) -> Result<(), u32>;
    /// Commits parameters for the next block.
    fn set_params(&mut self, params: Params);
    /// Availability moved inside the block.
    fn set_availability(&mut self, model: &str, participant: &Address, change: Availability);
    /// E3.
    fn judge(&mut self);
    /// E4.
    fn prune(&mut self);
    /// Events of the block, in order.
    fn take_events(&mut self) -> Vec<Event>;
}

impl Circuit for World {
    fn begin_block(&mut self, block: &BeginBlock) {
        World::begin_block(self, block);
    }
    fn start(&mut self, call: &StartCall) -> Result<Stamp, u32> {
        World::start(self, call)
    }
    fn finish(&mut self, inference_id: &str) {
        World::finish(self, inference_id);
    }
    fn miss(&mut self, inference_id: &str) {
        World::miss(self, inference_id);
    }
    fn release(&mut self, inference_id: &str) {
        World::release(self, inference_id);
    }
    fn stamp(&mut self, model: &str, participant: &Address) -> Stamp {
        World::stamp(self, model, participant)
    }
    fn escrow_counts(&mut self, model: &str, participant: &Address, stamp: Stamp, ok: u64, missed: u64) {
        World::escrow_counts(self, model, participant, stamp, ok, missed);
    }
    fn set_override(
        &mut self,
        model: &str,
        participant: &Address,
        to: OverrideTo,
        until_block: i64,
    ) -> Result<(), u32> {
        World::set_override(self, model, participant, to, until_block)
    }
    fn set_params(&mut self, params: Params) {
        World::set_params(self, params);
    }
    fn set_availability(&mut self, model: &str, participant: &Address, change: Availability) {
        World::set_availability(self, model, participant, change);
    }
    fn judge(&mut self) {
        World::judge(self);
    }
    fn prune(&mut self) {
        World::prune(self);
    }
    fn take_events(&mut self) -> Vec<Event> {
        World::take_events(self)
    }
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Code of codespace `inference`.
    Inference(u32),
    /// Code of codespace `breaker`.
    Breaker(u32),
    /// Not a chain rule: the history names an escrow that is not open.
    NoSuchEscrow,
}

/// What one block did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockReport {
    /// Answers to the messages, in their order.
    pub messages: Vec<Result<(), Refusal>>,
    /// Stamps of the starts admitted, by id.
    pub stamps: BTreeMap<String, Stamp>,
    /// Answers to the governance steps, in their order.
    pub gov: Vec<Result<(), Refusal>>,
    /// Events of the breaker.
    pub events: Vec<Event>,
}

/// Where an inference stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Open.
    Started,
    /// Finish came first and waits for its Start.
    FinishedFirst,
    /// Finished, reported or cancelled.
    Closed,
    /// Expired.
    Expired,
}

/// One inference as x/inference would keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Model; empty while the Finish waits.
    pub model: String,
    /// `requested_by`; all zero while the Finish waits.
    pub requester: Address,
    /// `assigned_to`, or `executed_by` of a waiting Finish.
    pub executor: Address,
    /// Height of the Start, or of the waiting Finish.
    pub since: i64,
    /// Last height at which a Finish is accepted (a Start, for a waiting Finish).
    pub expires_at: i64,
    /// Where it stands.
    pub status: Status,
}

#[derive(Clone, Debug)]
struct MaintenanceWindow {
    participant: Address,
    announced_at: i64,
    from: i64,
    until: i64,
}

/// Runs blocks of a history against a circuit.
pub struct Driver<C> {
    /// The circuit driven.
    pub circuit: C,
    /// Every inference seen.
    pub records: BTreeMap<String, Record>,
    models: Vec<String>,
    participants: Vec<Address>,
    params: Params,
    committed: Params,
    height: i64,
    poc: bool,
    group: BTreeMap<Pair, Member>,
    out: BTreeSet<Pair>,
    windows: Vec<MaintenanceWindow>,
    /// Blocks in which a pair did not serve although nobody was at fault, maintenance apart.
    excused: BTreeSet<(String, Address, i64)>,
    delays: BTreeMap<String, i64>,
    escrows: BTreeMap<String, (String, Address, Stamp)>,
}

impl<C: Circuit> Driver<C> {
    /// A driver before the first block.
    pub fn new(circuit: C, genesis: &Genesis) -> Self {
        Driver {
            circuit,
            records: BTreeMap::new(),
            models: genesis.models.clone(),
            participants: genesis.participants.clone(),
            params: genesis.params.clone(),
            committed: genesis.params.clone(),
            height: 0,
            poc: false,
            group: BTreeMap::new(),
            out: BTreeSet::new(),
            windows: Vec::new(),
            excused: BTreeSet::new(),
            delays: BTreeMap::new(),
            escrows: BTreeMap::new(),
        }
    }

    /// Runs one block from B1 to E5.
    pub fn run_block(&mut self, block: &BlockOps) -> BlockReport {
        let mut report = BlockReport::default();
        self.begin(block);
        for op in &block.messages {
            let answer = self.message(op, &mut report.stamps);
            report.messages.push(answer);
        }
        self.note_excused();
        self.expire();
        for participant in &block.deactivated {
            for model in self.models.clone() {
                self.take_out(&model, participant);
            }
        }
        self.note_excused();
        self.circuit.judge();
        self.circuit.prune();
        for op in &block.gov {
            let answer = self.message(op, &mut report.stamps);
            report.gov.push(answer);
        }
        report.events = self.circuit.take_events();
        report
    }

    fn begin(&mut self, block: &BlockOps) {
        self.height = block.height;
        self.params = self.committed.clone();
        self.poc = block.poc;
        if let Some(epoch) = &block.epoch {
            self.group = epoch.group.clone();
            self.out.clear();
        }
        let mut availability = Vec::new();
        for participant in &self.participants {
            let change = match (
                self.in_maintenance(participant, self.height - 1),
                self.in_maintenance(participant, self.height),
            ) {
                (false, true) => Availability::MaintenanceBegins,
                (true, false) => Availability::MaintenanceEnds,
                _ => continue,
            };
            for model in &self.models {
                availability.push(((model.clone(), *participant), change));
            }
        }
        let epoch: Option<EpochInput> = block.epoch.clone();
        self.circuit.begin_block(&BeginBlock { height: block.height, epoch, poc: block.poc, availability });
    }

    fn in_maintenance(&self, participant: &Address, height: i64) -> bool {
        self.windows.iter().any(|w| w.participant == *participant && w.from <= height && height < w.until)
    }

    fn serving(&self, pair: &Pair) -> Option<&Member> {
        self.group.get(pair).filter(|member| member.weight > 0 && !self.out.contains(pair))
    }

    fn take_out(&mut self, model: &str, participant: &Address) {
        let pair = (model.to_string(), *participant);
        if self.group.contains_key(&pair) && self.out.insert(pair) {
            self.circuit.set_availability(model, participant, Availability::Out);
        }
    }

    /// Remembers who is out of the group, or unpreserved in PoC, in this block.
    fn note_excused(&mut self) {
        for model in &self.models {
            for participant in &self.participants {
                let pair = (model.clone(), *participant);
                let fine = match self.group.get(&pair) {
                    None => false,
                    Some(member) => !self.out.contains(&pair) && (!self.poc || member.preserved),
                };
                if !fine {
                    self.excused.insert((model.clone(), *participant, self.height));
                }
            }
        }
    }

    /// Whether an expiry is a Release (breaker-details 3).
    ///
    /// Reading: "announced before start" is a lower height; histories hold no start of an executor in the block
    /// of its announcement.
    fn excuses(&self, record: &Record) -> bool {
        (record.since..=record.expires_at).any(|height| {
            self.excused.contains(&(record.model.clone(), record.executor, height))
                || self.windows.iter().any(|w| {
                    w.participant == record.executor
                        && w.announced_at < record.since
                        && w.from <= height
                        && height < w.until
                })
        })
    }

    /// E1, oldest first.
    fn expire(&mut self) {
        let mut due: Vec<(i64, String)> = Vec::new();
        for (id, record) in &self.records {
            let waits = matches!(record.status, Status::Started | Status::FinishedFirst);
            let late = self.delays.get(id).copied().unwrap_or(0);
            if waits && record.expires_at + late <= self.height {
                due.push((record.expires_at, id.clone()));
            }
        }
        due.sort();
        for (_, id) in due {
            let record = self.records[&id].clone();
            if record.status == Status::FinishedFirst {
                self.records.remove(&id);
                continue;
            }
            self.records.get_mut(&id).unwrap().status = Status::Expired;
            if self.excuses(&record) {
                self.circuit.release(&id);
            } else {
                self.circuit.miss(&id);
            }
        }
    }

    fn message(&mut self, op: &Op, stamps: &mut BTreeMap<String, Stamp>) -> Result<(), Refusal> {
        match op {
            Op::Start { id, model, requester, signer, executor } => {
                self.start(id, model, requester, signer, executor, stamps)
            }
            Op::Finish { id, executed_by } => self.finish(id, executed_by),
            Op::ReportFailure { id, executor } => {
                let record = self.records.get(id).ok_or(Refusal::Inference(11))?;
                self.open(record, record.executor == *executor, 14)?;
                self.records.get_mut(id).unwrap().status = Status::Closed;
                self.circuit.miss(id);
                Ok(())
            }
            Op::Cancel { id, requested_by } => {
                let record = self.records.get(id).ok_or(Refusal::Inference(11))?;
                self.open(record, record.requester == *requested_by, 2)?;
                self.records.get_mut(id).unwrap().status = Status::Closed;
                self.circuit.release(id);
                Ok(())
            }
            Op::DelayExpiry { id, blocks } => {
                self.delays.insert(id.clone(), *blocks);
                Ok(())
            }
            Op::OpenEscrow { escrow, model, participant } => {
                let stamp = self.circuit.stamp(model, participant);
                self.escrows.insert(escrow.clone(), (model.clone(), *participant, stamp));
                Ok(())
            }
            Op::SettleEscrow { escrow, ok, missed } => {
                let (model, participant, stamp) = self.escrows.remove(escrow).ok_or(Refusal::NoSuchEscrow)?;
                self.circuit.escrow_counts(&model, &participant, stamp, *ok, *missed);
                Ok(())
            }
            Op::Leave { participant } => {
                for model in self.models.clone() {
                    self.take_out(&model, participant);
                }
                Ok(())
            }
            Op::DropModel { model, participant } => {
                self.take_out(model, participant);
                Ok(())
            }
            Op::AnnounceMaintenance { participant, from, until } => {
                self.windows.push(MaintenanceWindow {
                    participant: *participant,
                    announced_at: self.height,
                    from: *from,
                    until: *until,
                });
                Ok(())
            }
            Op::SetOverride { model, participant, to, until_block } => {
                self.circuit.set_override(model, participant, *to, *until_block).map_err(Refusal::Breaker)
            }
            Op::SetParams(params) => {
                self.committed = params.clone();
                self.circuit.set_params(params.clone());
                Ok(())
            }
        }
    }

    /// The checks of ReportFailure and Cancel after the id is known.
    fn open(&self, record: &Record, author: bool, author_code: u32) -> Result<(), Refusal> {
        match record.status {
            Status::FinishedFirst => Err(Refusal::Inference(11)),
            _ if !author => Err(Refusal::Inference(author_code)),
            Status::Closed => Err(Refusal::Inference(12)),
            Status::Expired => Err(Refusal::Inference(13)),
            Status::Started if self.height > record.expires_at => Err(Refusal::Inference(13)),
            Status::Started => Ok(()),
        }
    }

    fn start(
        &mut self,
        id: &str,
        model: &str,
        requester: &Address,
        signer: &Address,
        executor: &Address,
        stamps: &mut BTreeMap<String, Stamp>,
    ) -> Result<(), Refusal> {
        let mut finished_at = None;
        match self.records.get(id) {
            Some(record) if record.status != Status::FinishedFirst => {
                return Err(Refusal::Inference(7));
            }
            Some(record) if record.executor != *executor => return Err(Refusal::Inference(14)),
            Some(record) => finished_at = Some(record.since),
            None => {}
        }
        let pair = (model.to_string(), *executor);
        let Some(member) = self.serving(&pair) else {
            return Err(Refusal::Inference(8));
        };
        if self.in_maintenance(executor, self.height) || (self.poc && !member.preserved) {
            return Err(Refusal::Inference(9));
        }
        let expires_at = self.height + self.params.expiration_blocks;
        let call = StartCall {
            inference_id: id.to_string(),
            model: model.to_string(),
            requester: *requester,
            signer: *signer,
            executor: *executor,
            expires_at,
            finished_at,
        };
        let stamp = self.circuit.start(&call).map_err(Refusal::Breaker)?;
        stamps.insert(id.to_string(), stamp);
        let status = if finished_at.is_some() { Status::Closed } else { Status::Started };
        let record = Record {
            model: model.to_string(),
            requester: *requester,
            executor: *executor,
            since: self.height,
            expires_at,
            status,
        };
        self.records.insert(id.to_string(), record);
        Ok(())
    }

    fn finish(&mut self, id: &str, executed_by: &Address) -> Result<(), Refusal> {
        let Some(record) = self.records.get_mut(id) else {
            let record = Record {
                model: String::new(),
                requester: [0; 20],
                executor: *executed_by,
                since: self.height,
                expires_at: self.height + self.params.expiration_blocks,
                status: Status::FinishedFirst,
            };
            self.records.insert(id.to_string(), record);
            return Ok(());
        };
        if record.executor != *executed_by {
            return Err(Refusal::Inference(14));
        }
        match record.status {
            Status::Closed | Status::FinishedFirst => Err(Refusal::Inference(12)),
            Status::Expired => Err(Refusal::Inference(13)),
            Status::Started if self.height > record.expires_at => Err(Refusal::Inference(13)),
            Status::Started => {
                record.status = Status::Closed;
                self.circuit.finish(id);
                Ok(())
            }
        }
    }
}
