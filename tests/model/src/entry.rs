//! The stored entry of one `(epoch, model, participant)` and its bytes (breaker-details 1).

use std::collections::BTreeMap;

/// Persisted state. A probe is ready without, claimed with a [`Claim`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// H, byte 0.
    #[default]
    Healthy,
    /// X, byte 1.
    Excluded,
    /// R or C, byte 2.
    Probe,
}

/// The inference that holds the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its id.
    pub inference_id: String,
    /// Height whose BeginBlock frees the claim.
    pub deadline_block: i64,
}

/// Outcomes since the last change of state, by bucket index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Blocks in a bucket; 0 = one bucket that never ages.
    pub width: u32,
    /// Height of the last outcome written.
    pub touched_at: i64,
    /// index → (ok, missed), non-empty buckets only.
    pub buckets: BTreeMap<u64, (u64, u64)>,
}

/// The last time a rule was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trip {
    /// Height.
    pub block: i64,
    /// Weight counted into the ring then.
    pub weight: u64,
}

/// Direction of an override in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForcedTo {
    /// Byte 0.
    Healthy,
    /// Byte 1.
    Excluded,
}

impl ForcedTo {
    /// As events print it.
    ///
    /// Reading: section 6 gives no spelling for `to`; lower case like every other word in its table.
    pub fn word(self) -> &'static str {
        match self {
            ForcedTo::Healthy => "healthy",
            ForcedTo::Excluded => "excluded",
        }
    }
}

/// An override in force on this entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    /// Direction.
    pub to: ForcedTo,
    /// Height whose BeginBlock ends it.
    pub until_block: i64,
}

/// One entry; the default is what an absent one means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Persisted state.
    pub state: State,
    /// Counts exclusions and restorations.
    pub generation: u32,
    /// Height of the last exclusion, 0 = never.
    pub excluded_at: i64,
    /// Length of the last cooldown in blocks.
    pub cooldown_blocks: i64,
    /// Height at which the probe last became ready.
    pub ready_since: i64,
    /// Height of the last restoration.
    pub restored_at: i64,
    /// Height of the last refusal that was evented.
    pub refused_at: i64,
    /// Claims since the last good probe.
    pub probe_attempts: u32,
    /// Exponent of the current cooldown.
    pub backoff_level: u32,
    /// Misses since the last success.
    pub consecutive_misses: u32,
    /// The claim, in C only.
    pub probe: Option<Claim>,
    /// Evidence.
    pub window: Window,
    /// Mark in the model's trip ring.
    pub trip: Option<Trip>,
    /// Override in force.
    pub forced: Option<Forced>,
}

impl Entry {
    /// Letter of the transition table's column.
    pub fn column(&self) -> char {
        match (self.state, &self.probe) {
            (State::Healthy, None) => 'H',
            (State::Excluded, None) => 'X',
            (State::Probe, None) => 'R',
            (State::Probe, Some(_)) => 'C',
            other => panic!("a claim outside Probe: {other:?}"),
        }
    }

    /// True under a governance exclusion.
    pub fn forced_out(&self) -> bool {
        self.forced.as_ref().is_some_and(|f| f.to == ForcedTo::Excluded)
    }

    /// Height of the entry's one due row, if its state has one.
    pub fn due(&self) -> Option<i64> {
        if let Some(forced) = &self.forced {
            return Some(forced.until_block);
        }
        match self.column() {
            'X' => Some(self.excluded_at + self.cooldown_blocks),
            'C' => Some(self.probe.as_ref().unwrap().deadline_block),
            _ => None,
        }
    }

    /// `gen+`: the next generation with a fresh window.
    ///
    /// Reading: "a fresh window (no buckets, streak 0)" is the window of an entry never touched, so its width
    /// and `touched_at` are 0 too. Everything else a row does not name keeps its value (`refused_at`, `trip`,
    /// `probe_attempts` and `backoff_level` survive a change of generation).
    pub fn next_generation(&mut self) {
        self.generation += 1;
        self.window = Window::default();
        self.consecutive_misses = 0;
    }

    /// The stored bytes: borsh, fields in declared order.
    ///
    /// Reading: `forced.to` is 0 for Healthy and 1 for Excluded, the order in which breaker.md 2 lists them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.state as u8];
        out.extend(self.generation.to_le_bytes());
        for height in
            [self.excluded_at, self.cooldown_blocks, self.ready_since, self.restored_at, self.refused_at]
        {
            out.extend(height.to_le_bytes());
        }
        for count in [self.probe_attempts, self.backoff_level, self.consecutive_misses] {
            out.extend(count.to_le_bytes());
        }
        out.push(self.probe.is_some() as u8);
        if let Some(claim) = &self.probe {
            out.extend((claim.inference_id.len() as u32).to_le_bytes());
            out.extend(claim.inference_id.as_bytes());
            out.extend(claim.deadline_block.to_le_bytes());
        }
        out.extend(self.window.width.to_le_bytes());
        out.extend(self.window.touched_at.to_le_bytes());
        out.extend((self.window.buckets.len() as u32).to_le_bytes());
        for (index, (ok, missed)) in &self.window.buckets {
            for number in [index, ok, missed] {
                out.extend(number.to_le_bytes());
            }
        }
        out.push(self.trip.is_some() as u8);
        if let Some(trip) = &self.trip {
            out.extend(trip.block.to_le_bytes());
            out.extend(trip.weight.to_le_bytes());
        }
        out.push(self.forced.is_some() as u8);
        if let Some(forced) = &self.forced {
            out.push(forced.to as u8);
            out.extend(forced.until_block.to_le_bytes());
        }
        out
    }
}

/// The state an entry has at `height` (breaker.md 2): an exclusion whose cooldown has passed is a probe.
pub fn effective_state(entry: &Entry, height: i64) -> State {
    if entry.state == State::Excluded && height >= entry.excluded_at + entry.cooldown_blocks {
        State::Probe
    } else {
        entry.state
    }
}
