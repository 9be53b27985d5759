//! What is written down of a block: everything the breaker heard in it, and every transition it made.
//!
//! Read from the block's own events and from the state before and after it, when the block is executed. Nothing in the
//! block's execution knows of it.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_breaker::state::{ENTRIES, MODEL_TALLIES, OVERRIDES, TRIP_RINGS};
use holdfast_breaker::{Entry, Forced, ModelTally, TripRing};
use holdfast_store::{KvRead, Order, StoreError, WriteSet};
use holdfast_types::traits::{Eligibility, ParticipantsRead, Stamp, Standing};
use holdfast_types::{Address, BlockContext, Epoch, Event, Height, Hrp, ValidationParams};

use crate::composition::Composition;

/// How a recorded inference ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Verdict {
    /// Answered in time.
    Finished,
    /// A miss.
    Missed,
    /// Without fault.
    Released,
}

/// What the breaker heard.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Input {
    /// Work was given.
    Start {
        /// Its id.
        id: String,
        /// Model.
        model: String,
        /// `assigned_to`.
        executor: Address,
        /// Requester or signer is the executor.
        by_itself: bool,
        /// Height of a finish that had arrived in an earlier block.
        finished_at: Option<Height>,
        /// Last height at which it can be finished.
        expires_at: Height,
    },
    /// Work ended.
    Outcome {
        /// Its id.
        id: String,
        /// Model.
        model: String,
        /// `assigned_to`.
        executor: Address,
        /// The stamp of its start; used when that lies before the record.
        stamp: Stamp,
        /// How.
        verdict: Verdict,
    },
    /// Governance set (`Some`) or cleared an override.
    Override {
        /// Model.
        model: String,
        /// Participant.
        participant: Address,
        /// Direction and end.
        forced: Option<Forced>,
    },
    /// An escrow took the stamps of its owners.
    Stamped {
        /// Its id.
        escrow_id: u64,
        /// Model.
        model: String,
        /// Owners of its slots.
        owners: Vec<Address>,
    },
    /// An escrow was paid: the counts of one owner.
    Counts {
        /// Its id.
        escrow_id: u64,
        /// Model.
        model: String,
        /// The owner.
        participant: Address,
        /// The stamp of its creation; used when that lies before the record.
        stamp: Stamp,
        /// Answered.
        ok: u64,
        /// Missed, or failed by its own report.
        missed: u64,
    },
}

impl Input {
    /// The model it is about.
    pub fn model(&self) -> &str {
        match self {
            Self::Start { model, .. }
            | Self::Outcome { model, .. }
            | Self::Override { model, .. }
            | Self::Stamped { model, .. }
            | Self::Counts { model, .. } => model,
        }
    }
}

/// A transition as its event tells it: name without package, attributes in order.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Transition {
    /// `EventExecutorExcluded` and so on.
    pub name: String,
    /// Name and value, in order.
    pub attributes: Vec<(String, String)>,
}

const BREAKER: &str = "holdfast.breaker.v1.";
const INFERENCE: &str = "holdfast.inference.v1.";
const ESCROW: &str = "holdfast.escrow.v1.";

impl Transition {
    /// The transition that `event` tells of, without what the block adds to every event.
    pub fn of(event: &Event) -> Option<Self> {
        let name = event.kind.strip_prefix(BREAKER).filter(|name| *name != "EventStepDiscarded")?;
        let own = event.attributes.iter().filter(|(name, _)| name != "mode" && name != "msg_index");
        Some(Self { name: name.to_owned(), attributes: own.cloned().collect() })
    }

    /// Value of an attribute.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// One line of a block, in the order in which it came about.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Item {
    /// Heard before the judge of this block.
    Heard(Input),
    /// Heard after it: what governance executes at the end of a block.
    HeardAfter(Input),
    /// Done.
    Made(Transition),
}

/// A member's weight that counts, and whether it serves during PoC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Place {
    /// 0 = not eligible.
    pub weight: u64,
    /// Serves during the PoC phase.
    pub preserved: bool,
}

impl From<Standing> for Place {
    fn from(standing: Standing) -> Self {
        let Eligibility { weight, preserved } = standing.eligibility();
        Self { weight, preserved }
    }
}

/// Members by model.
pub type GroupRows = Vec<(String, Vec<(Address, Place)>)>;
/// Overrides in key order.
pub type OverrideRows = Vec<((String, Address), Forced)>;

/// The breaker's state behind the block before a record that begins inside an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Checkpoint {
    /// Members.
    pub group: GroupRows,
    /// Overrides.
    pub overrides: OverrideRows,
    /// Entries of the epoch.
    pub entries: Vec<((String, Address), Entry)>,
    /// Sums of the epoch by model.
    pub tallies: Vec<(String, ModelTally)>,
    /// Trip rings of the epoch by model.
    pub rings: Vec<(String, TripRing)>,
}

impl Checkpoint {
    /// Of the state in `store` behind `block`.
    ///
    /// # Errors
    /// Storage.
    pub fn take(
        store: &dyn KvRead,
        block: &BlockContext,
        composition: &Composition,
    ) -> Result<Self, StoreError> {
        let epoch = block.epoch;
        let mut out = Self {
            group: group(store, block, composition)?,
            overrides: overrides(store)?,
            ..Self::default()
        };
        for row in ENTRIES.prefix(store, &epoch, Order::Ascending) {
            let ((_, model, participant), entry) = row?;
            out.entries.push(((model, participant), entry));
        }
        for row in MODEL_TALLIES.prefix(store, &epoch, Order::Ascending) {
            let ((_, model), tally) = row?;
            out.tallies.push((model, tally));
        }
        for row in TRIP_RINGS.prefix(store, &epoch, Order::Ascending) {
            let ((_, model), ring) = row?;
            out.rings.push((model, ring));
        }
        Ok(out)
    }
}

fn group(
    store: &dyn KvRead,
    block: &BlockContext,
    composition: &Composition,
) -> Result<GroupRows, StoreError> {
    let participants = composition.participants();
    let mut out = Vec::new();
    for model in participants.models(store)? {
        let members = participants.members(store, block, &model)?;
        out.push((model, members.into_iter().map(|(who, standing)| (who, standing.into())).collect()));
    }
    Ok(out)
}

fn overrides(store: &dyn KvRead) -> Result<OverrideRows, StoreError> {
    OVERRIDES.iter(store, Order::Ascending).collect()
}

/// What an epoch begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EpochStart {
    /// Members, as they stand at the end of the epoch's first block.
    pub group: GroupRows,
    /// Overrides as they were before it.
    pub overrides: OverrideRows,
}

/// A block.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct BlockRecord {
    /// Height.
    pub height: Height,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whether it lies in the PoC phase.
    pub poc: bool,
    /// Parameters of this block, when others than those of the block before.
    pub params: Option<ValidationParams>,
    /// Present in the first block of an epoch.
    pub epoch_start: Option<EpochStart>,
    /// Members that a write of this block can have moved, as they stand at its end. Sums are the same as if the move had been
    /// first in the block: nothing judges before its end.
    pub places: Vec<(String, Address, Place)>,
    /// What was heard and done, in order.
    pub items: Vec<Item>,
}

/// A block as it was executed.
pub(crate) struct Executed<'a> {
    /// Its context, epoch and phase included.
    pub(crate) block: &'a BlockContext,
    /// State before.
    pub(crate) before: &'a dyn KvRead,
    /// State after.
    pub(crate) after: &'a dyn KvRead,
    /// Events of the begin-block steps.
    pub(crate) begin: &'a [Event],
    /// Events of everything until the last transaction.
    pub(crate) deliver: Vec<&'a [Event]>,
    /// Events of the end-block steps.
    pub(crate) end: &'a [Event],
    /// What the block wrote.
    pub(crate) written: &'a WriteSet,
    /// Who is asked.
    pub(crate) composition: &'a Composition,
}

impl Executed<'_> {
    /// Writes the block down.
    ///
    /// # Errors
    /// Storage, or an event that lacks an attribute.
    pub(crate) fn record(self) -> Result<BlockRecord, String> {
        let (block, after) = (self.block, self.after);
        let text = |e: StoreError| e.to_string();
        let mut items: Vec<Item> = self.begin.iter().filter_map(Transition::of).map(Item::Made).collect();
        for event in self.deliver.into_iter().flatten() {
            read(event, false, after, &block.hrp, &mut items)?;
        }
        for event in self.end {
            read(event, true, after, &block.hrp, &mut items)?;
        }
        let starts = self.begin.iter().any(|event| event.kind == "holdfast.epochs.v1.EventEpochStarted");
        let mut places = Vec::new();
        let epoch_start = if starts {
            let group = group(after, block, self.composition).map_err(text)?;
            Some(EpochStart { group, overrides: overrides(self.before).map_err(text)? })
        } else {
            let participants = self.composition.participants();
            let mut moved = BTreeSet::new();
            for watched in self.written.keys().filter_map(|key| holdfast_participants::watched(key)) {
                match watched.model {
                    Some(model) => drop(moved.insert((model, watched.participant))),
                    None => {
                        let models = participants.models(after).map_err(text)?;
                        moved.extend(models.into_iter().map(|model| (model, watched.participant)));
                    }
                }
            }
            for (model, who) in moved {
                let standing = participants.standing(after, block, &model, &who).map_err(text)?;
                places.push((model, who, standing.into()));
            }
            None
        };
        let params = Some(block.params.clone());
        let (height, epoch, poc) = (block.height, block.epoch, block.poc);
        Ok(BlockRecord { height, epoch, poc, params, epoch_start, places, items })
    }
}

/// Reads one event of a transaction or of the end of the block.
fn read(
    event: &Event,
    at_end: bool,
    after: &dyn KvRead,
    hrp: &Hrp,
    items: &mut Vec<Item>,
) -> Result<(), String> {
    let attribute = |name: &str| {
        event.get(name).map(str::to_owned).ok_or_else(|| format!("event {} has no {name}", event.kind))
    };
    let address = |name: &str| {
        Address::parse(&attribute(name)?, hrp).map_err(|e| format!("event {}: {name}: {e}", event.kind))
    };
    let number = |name: &str| -> Result<u64, String> {
        attribute(name)?.parse().map_err(|e| format!("{}: {name}: {e}", event.kind))
    };
    if let Some(name) = event.kind.strip_prefix(INFERENCE) {
        let verdict = match name {
            "EventInferenceStarted" => None,
            "EventInferenceFinished" => Some(Verdict::Finished),
            "EventInferenceMissed" => Some(Verdict::Missed),
            "EventInferenceReleased" => Some(Verdict::Released),
            _ => return Ok(()),
        };
        let id = attribute("inference_id")?;
        let Some(verdict) = verdict else {
            let input = start(id, after)?;
            items.push(if at_end { Item::HeardAfter(input) } else { Item::Heard(input) });
            return Ok(());
        };
        let epoch = number("epoch")?;
        let generation = u32::try_from(number("generation")?).map_err(|e| e.to_string())?;
        let stamp = Stamp { epoch, generation, evidence: attribute("evidence")? == "true" };
        // At the end of a block, expiry comes before the judge; what messages cause comes with governance, after it.
        let by_message =
            verdict == Verdict::Finished || matches!(event.get("cause"), Some("reported" | "cancelled"));
        let input = Input::Outcome {
            id,
            model: attribute("model")?,
            executor: address("assigned_to")?,
            stamp,
            verdict,
        };
        items.push(if at_end && by_message { Item::HeardAfter(input) } else { Item::Heard(input) });
        return Ok(());
    }
    match event.kind.strip_prefix(ESCROW) {
        Some("EventEscrowCreated") => {
            let escrow_id = number("escrow_id")?;
            let escrow = holdfast_escrow::Keeper.escrow(after, escrow_id).map_err(|e| e.to_string())?;
            let escrow = escrow.ok_or_else(|| format!("escrow {escrow_id} was created but has no record"))?;
            let owners = escrow.stamps.into_iter().map(|(owner, _)| owner).collect();
            let input = Input::Stamped { escrow_id, model: escrow.config.model, owners };
            items.push(if at_end { Item::HeardAfter(input) } else { Item::Heard(input) });
            return Ok(());
        }
        Some("EventHostSettled") => {
            let generation = u32::try_from(number("generation")?).map_err(|e| e.to_string())?;
            let evidence = attribute("evidence")? == "true";
            let input = Input::Counts {
                escrow_id: number("escrow_id")?,
                model: attribute("model")?,
                participant: address("participant")?,
                stamp: Stamp { epoch: number("epoch")?, generation, evidence },
                ok: number("completed")?,
                missed: number("missed")?,
            };
            // At the end of a block disputes are paid before the judge; nobody but their parties brings settlements.
            items.push(Item::Heard(input));
            return Ok(());
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let Some(transition) = Transition::of(event) else { return Ok(()) };
    let forced = match transition.name.as_str() {
        "EventOverrideSet" => {
            let to = match transition.get("to") {
                Some("healthy") => holdfast_breaker::ForcedTo::Healthy,
                _ => holdfast_breaker::ForcedTo::Excluded,
            };
            let until = attribute("until_block")?;
            let until_block = until.parse().map_err(|e| format!("event {}: until_block: {e}", event.kind))?;
            Some(Some(Forced { to, until_block }))
        }
        "EventOverrideEnded" if transition.get("cause") == Some("cleared") => Some(None),
        _ => None,
    };
    if let Some(forced) = forced {
        let input =
            Input::Override { model: attribute("model")?, participant: address("participant")?, forced };
        items.push(if at_end { Item::HeardAfter(input) } else { Item::Heard(input) });
    }
    items.push(Item::Made(transition));
    Ok(())
}

/// A start, from the record that it left in state: the event does not say who asked.
fn start(id: String, after: &dyn KvRead) -> Result<Input, String> {
    let record = holdfast_inference::Keeper.inference(after, &id).map_err(|e| e.to_string())?;
    let record = record.ok_or_else(|| format!("inference {id} started but has no record"))?;
    let start = record.start.ok_or_else(|| format!("inference {id} started but its record has no start"))?;
    let by_itself = start.requested_by == start.assigned_to || start.payer == start.assigned_to;
    // A finish in the block of its start counts like one after it.
    let finished_at = record.answer.map(|answer| answer.height).filter(|at| *at < start.height);
    let (executor, expires_at) = (start.assigned_to, record.expires_at);
    Ok(Input::Start { id, model: start.model, executor, by_itself, finished_at, expires_at })
}
