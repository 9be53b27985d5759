//! Waits and limits of the state machine.

use thiserror::Error;

const MINUTE_MS: u64 = 60_000;

/// Waits and limits of repairs. The defaults are the protocol's (escrow-details 6). Limits of bytes and of the time of
/// calls are the driver's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairConfig {
    /// `elapsed_ms` at which a repair gives up; halves with each further raise.
    pub give_up_ms: u64,
    /// The halved deadline never falls below this, or below `give_up_ms` when that is less.
    pub give_up_floor_ms: u64,
    /// Whether a forked host is asked to drop its copy.
    pub allow_reset: bool,
    /// Backoff before jitter, by level.
    pub backoff_ms: [u64; 4],
    /// From the flag to the first attempt.
    pub first_wait_ms: u64,
    /// Wait after an end that is no failure of the ladder: progress, an empty host, a new generation.
    pub short_wait_ms: u64,
    /// After a restart of the gateway the waits are spread over this.
    pub restart_spread_ms: u64,
    /// Diffs in one chunk at most; at least 1.
    pub chunk_diffs: u32,
    /// A repair that gave up is reopened by its host so often at most.
    pub reopen_limit: u8,
    /// From one such reopening to the next at least.
    pub reopen_gap_ms: u64,
    /// A raise so soon after a restore starts at the last level of the backoff.
    pub relapse_ms: u64,
}

impl Default for RepairConfig {
    fn default() -> Self {
        Self {
            give_up_ms: 1_800_000,
            give_up_floor_ms: 300_000,
            allow_reset: false,
            backoff_ms: [15_000, 30_000, MINUTE_MS, 300_000],
            first_wait_ms: 500,
            short_wait_ms: 1_000,
            restart_spread_ms: 5_000,
            chunk_diffs: 200,
            reopen_limit: 3,
            reopen_gap_ms: 600_000,
            relapse_ms: 3_600_000,
        }
    }
}

/// A setting that would stop or flood the repairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("repair: {field} must be {rule}")]
pub struct ConfigError {
    /// Field of [`RepairConfig`].
    pub field: &'static str,
    /// What it must be.
    pub rule: &'static str,
}

impl RepairConfig {
    /// Last level of the backoff.
    pub const TOP_LEVEL: u8 = 3;
    /// Diffs in one chunk, whatever is configured.
    pub const MAX_CHUNK_DIFFS: u32 = 200;

    /// Checks each field; the deadline is mandatory.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let day_ms = 86_400_000;
        let rows = [
            ("give_up_ms", (1_000..=day_ms).contains(&self.give_up_ms), "1 second to 1 day"),
            ("give_up_floor_ms", (1_000..=day_ms).contains(&self.give_up_floor_ms), "1 second to 1 day"),
            (
                "backoff_ms",
                self.backoff_ms.is_sorted()
                    && self.backoff_ms.iter().all(|wait| (10..=3_600_000).contains(wait)),
                "ascending, 10 ms to 1 hour each",
            ),
            ("first_wait_ms", self.first_wait_ms <= MINUTE_MS, "at most 1 minute"),
            ("short_wait_ms", (10..=MINUTE_MS).contains(&self.short_wait_ms), "10 ms to 1 minute"),
            ("restart_spread_ms", self.restart_spread_ms <= MINUTE_MS, "at most 1 minute"),
            ("chunk_diffs", (1..=Self::MAX_CHUNK_DIFFS).contains(&self.chunk_diffs), "1 to 200"),
        ];
        rows.iter()
            .find(|(_, ok, _)| !ok)
            .map_or(Ok(()), |&(field, _, rule)| Err(ConfigError { field, rule }))
    }

    /// The give-up deadline in ms of `elapsed_ms`, after `raised` raises of this participant in this escrow.
    pub fn deadline_ms(&self, raised: u32) -> u64 {
        let halved = self.give_up_ms.checked_shr(raised.saturating_sub(1)).unwrap_or(0);
        halved.max(self.give_up_floor_ms.min(self.give_up_ms))
    }

    /// Backoff of `level` before jitter, in ms; levels above the last are the last.
    pub fn base_ms(&self, level: u8) -> u64 {
        let [.., last] = self.backoff_ms;
        self.backoff_ms.get(usize::from(level)).copied().unwrap_or(last)
    }
}
