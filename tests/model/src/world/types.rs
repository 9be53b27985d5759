//! What goes into the world and what it keeps.

use super::*;

/// What an inference remembers of the entry at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Epoch of the start.
    pub epoch: u64,
    /// Generation of the entry at the start.
    pub generation: u32,
    /// Whether the outcome may count.
    pub evidence: bool,
}

/// A member of a model's epoch group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Weight for the whole epoch.
    pub weight: u64,
    /// Serves during PoC.
    pub preserved: bool,
}

/// The first block of an epoch brings this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochInput {
    /// Index of the epoch that begins.
    pub index: u64,
    /// Its groups.
    pub group: BTreeMap<Pair, Member>,
}

/// How a member's availability moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// A maintenance window opens.
    MaintenanceBegins,
    /// A maintenance window closes.
    MaintenanceEnds,
    /// Left, went Inactive or dropped the model: for the rest of the epoch.
    Out,
}

/// What BeginBlock is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeginBlock {
    /// Height of the block.
    pub height: i64,
    /// Present in the first block of an epoch.
    pub epoch: Option<EpochInput>,
    /// Whether this block lies in the PoC phase.
    pub poc: bool,
    /// Maintenance windows that open or close here (B3).
    pub availability: Vec<(Pair, Availability)>,
}

/// A start that has passed the checks of x/inference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartCall {
    /// New id.
    pub inference_id: String,
    /// Model asked for.
    pub model: String,
    /// `requested_by`.
    pub requester: Address,
    /// Who signed.
    pub signer: Address,
    /// `assigned_to`.
    pub executor: Address,
    /// Height of its expiry.
    pub expires_at: i64,
    /// Height of its Finish if that came first.
    pub finished_at: Option<i64>,
}

/// Direction asked for by an override message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideTo {
    /// Clear it.
    None,
    /// Force Healthy.
    Healthy,
    /// Force Excluded.
    Excluded,
}

/// An event of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Bare name, without the package.
    pub name: &'static str,
    /// In the document's order.
    pub attributes: Vec<(&'static str, String)>,
}

impl Event {
    /// One attribute's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_str())
    }
}

/// Outcomes of one entry in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Generation they belong to.
    pub generation: u32,
    /// Successes.
    pub ok: u64,
    /// Misses.
    pub missed: u64,
}

/// Sums over a model's members, always recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Weight of the eligible.
    pub eligible_weight: u128,
    /// Weight of the eligible in X, R or C.
    pub out_weight: u128,
    /// Eligible in H.
    pub healthy_all: u32,
    /// Those of them preserved during PoC.
    pub healthy_poc: u32,
}

/// Trip ring of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Marks before this height are not in it.
    pub since_block: i64,
    /// Blocks in a bucket.
    pub width: u32,
    /// Verdict of the last judgement.
    pub frozen: bool,
    /// index → weight, non-empty buckets only.
    pub buckets: BTreeMap<u64, u128>,
}

/// A live override outside the epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverrideRow {
    /// Direction.
    pub to: ForcedTo,
    /// Height whose BeginBlock ends it.
    pub until_block: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Inference {
    pub(super) model: String,
    pub(super) executor: Address,
    pub(super) stamp: Stamp,
}

/// An entry that met a rule in the block being judged.
pub(super) struct Tripped {
    pub(super) address: Address,
    pub(super) rule: &'static str,
    pub(super) ok: u64,
    pub(super) missed: u64,
    pub(super) weight: u64,
}
