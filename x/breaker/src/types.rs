//! Stored types. Their borsh bytes are consensus: a change needs a new consensus version and a migration.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_types::Height;

/// State of an entry. Probe is *ready* without a claim and *claimed* with one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum State {
    /// Receives work by weight.
    #[default]
    Healthy,
    /// Receives none until its cooldown has passed.
    Excluded,
    /// Gets one inference to prove itself.
    Probe,
}

/// One entry (breaker-details 1). Heights of 0 mean "never".
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Entry {
    /// State.
    pub state: State,
    /// Raised at every exclusion and restoration; outcomes of an older generation are ignored.
    pub generation: u32,
    /// Last exclusion.
    pub excluded_at: Height,
    /// Length of the current or last cooldown.
    pub cooldown_blocks: i64,
    /// Since when the probe waits (or last waited).
    pub ready_since: Height,
    /// Last restoration.
    pub restored_at: Height,
    /// Last refused exclusion that was reported.
    pub refused_at: Height,
    /// Claims since the last restoration.
    pub probe_attempts: u32,
    /// Exponent of the current cooldown.
    pub backoff_level: u32,
    /// Misses in a row, block by block.
    pub consecutive_misses: u32,
    /// The claim, in Probe.
    pub probe: Option<ProbeClaim>,
    /// Outcomes of this generation.
    pub window: Window,
    /// Last time a rule was met.
    pub trip: Option<Trip>,
    /// Governance override in force.
    pub forced: Option<Forced>,
}

/// The inference that decides a probe.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ProbeClaim {
    /// Only its outcome speaks.
    pub inference_id: String,
    /// Without a verdict the claim ends in this block.
    pub deadline_block: Height,
}

/// Outcomes in buckets of `width` blocks; width 0 keeps one bucket for ever.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Window {
    /// A tenth of the window, blocks.
    pub width: u32,
    /// Block of the latest outcome.
    pub touched_at: Height,
    /// At most ten, ascending, none empty.
    pub buckets: Vec<Bucket>,
}

/// Outcomes of blocks `index·width ..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Bucket {
    /// Block height divided by the width.
    pub index: u64,
    /// Finished.
    pub ok: u64,
    /// Missed.
    pub missed: u64,
}

/// A rule was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Trip {
    /// When.
    pub block: Height,
    /// The weight it put into the ring.
    pub weight: u64,
}

/// Direction of an override; stored as 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum ForcedTo {
    /// Stays in whatever it does.
    Healthy,
    /// Stays out, also of the fallback.
    Excluded,
}

impl ForcedTo {
    /// Name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Excluded => "excluded",
        }
    }
}

/// An override on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Forced {
    /// Direction.
    pub to: ForcedTo,
    /// Ends in this block.
    pub until_block: Height,
}

/// An override as governance set it.
pub type Override = Forced;

/// Sums over a model's members (breaker-details 2.3). Eligible: in the group, active, weight above 0, not in
/// maintenance, not forced out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ModelTally {
    /// Weight of the eligible.
    pub eligible_weight: u128,
    /// Weight of those among them that are not Healthy.
    pub out_weight: u128,
    /// Number of Healthy eligible members.
    pub healthy_all: u32,
    /// Of them, those that serve during PoC.
    pub healthy_poc: u32,
}

impl ModelTally {
    /// The column of the phase.
    pub fn healthy(&self, poc: bool) -> u32 {
        if poc { self.healthy_poc } else { self.healthy_all }
    }
}

/// Outcomes of one block for one entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Tally {
    /// Generation they were started under.
    pub generation: u32,
    /// Finished.
    pub ok: u64,
    /// Missed.
    pub missed: u64,
}

/// Tripped weight by bucket, aged like a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TripRing {
    /// Marks older than this are not in the ring.
    pub since_block: Height,
    /// Blocks per bucket.
    pub width: u32,
    /// Whether the last judgement refused everything.
    pub frozen: bool,
    /// Ascending, none empty.
    pub buckets: Vec<RingBucket>,
}

/// Tripped weight of blocks `index·width ..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RingBucket {
    /// Block height divided by the width.
    pub index: u64,
    /// Sum of weights.
    pub weight: u128,
}

impl Entry {
    /// Whether the probe slot is free.
    pub fn is_ready(&self) -> bool {
        self.state == State::Probe && self.probe.is_none()
    }

    /// Whether governance holds it out.
    pub fn is_forced_out(&self) -> bool {
        self.forced.is_some_and(|f| f.to == ForcedTo::Excluded)
    }

    /// The block in which it changes by itself.
    pub fn due(&self) -> Option<Height> {
        match (&self.forced, self.state, &self.probe) {
            (Some(forced), _, _) => Some(forced.until_block),
            (None, State::Excluded, _) => Some(self.excluded_at.saturating_add(self.cooldown_blocks)),
            (None, State::Probe, Some(claim)) => Some(claim.deadline_block),
            _ => None,
        }
    }

    /// State as it will be once block `height` has begun (breaker.md 2): an exclusion whose cooldown has passed
    /// is a probe. Equal to the stored state after begin-block.
    pub fn effective_state(&self, height: Height) -> State {
        match self.due() {
            Some(due) if self.state == State::Excluded && height >= due => State::Probe,
            _ => self.state,
        }
    }
}
