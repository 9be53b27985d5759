//! Counters and gauges of the runner, fed by the session core and shown through the `metrics` facade.
//!
//! | metric | what it counts |
//! |---|---|
//! | `holdfast_runner_queued`, `_active`, `_held` | sessions that wait, that run, whose KV is kept after completion |
//! | `holdfast_runner_kv_rows` | rows reserved by this node's keys, over all shards |
//! | `holdfast_runner_done_total{status,kind}` | ended attempts |
//! | `holdfast_runner_steps_total` | committed steps |
//! | `holdfast_runner_stale_events_total` | late, double and foreign answers that were dropped |
//! | `holdfast_runner_cancels_total{cause}` | cancels asked for, later ones of a session included |
//! | `holdfast_runner_restarts_total` | epochs opened after a failed one |
//! | `holdfast_runner_queue_wait_seconds`, `_first_token_seconds`, `_inter_token_seconds` | waits |

use std::collections::{BTreeMap, VecDeque};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use serde::Serialize;

use crate::failure::{Cause, FailureKind, WorkStatus};

/// Samples of a [`Spread`] that quantiles are taken from.
const SAMPLES: usize = 1024;

/// How long something took: all of it in sum, the latest samples one by one.
#[derive(Debug, Clone, Default)]
pub struct Spread {
    /// Times it happened.
    pub count: u64,
    /// All times together, milliseconds.
    pub sum_ms: u64,
    /// The longest, milliseconds.
    pub max_ms: u64,
    latest: VecDeque<u64>,
}

impl Spread {
    fn record(&mut self, ms: u64) {
        self.count += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
        self.max_ms = self.max_ms.max(ms);
        if self.latest.len() == SAMPLES {
            self.latest.pop_front();
        }
        self.latest.push_back(ms);
    }

    /// The value that `percent` of the latest 1,024 samples do not exceed (nearest rank), milliseconds; 0 without
    /// samples.
    #[must_use]
    pub fn percentile_ms(&self, percent: u8) -> u64 {
        let mut sorted: Vec<u64> = self.latest.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (sorted.len() * usize::from(percent.min(100))).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

/// What the runner holds at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Sessions that wait for admission or for another epoch.
    pub queued: u64,
    /// Sessions with an open epoch.
    pub active: u64,
    /// Completed keys whose KV is still kept.
    pub held: u64,
    /// Ended keys whose KV is not yet free everywhere.
    pub releasing: u64,
    /// Rows reserved by this node's keys, over all shards.
    pub kv_rows: u64,
}

/// A copy of all counters.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Held now.
    pub load: Load,
    /// Ended attempts by status and kind.
    pub done: BTreeMap<(WorkStatus, Option<u32>), u64>,
    /// Committed steps.
    pub steps: u64,
    /// Answers that were dropped: late, double or foreign.
    pub stale_events: u64,
    /// Cancels asked for.
    pub cancels: u64,
    /// Epochs opened after a failed one.
    pub restarts: u64,
    /// From submission to admission.
    pub queue_wait: Spread,
    /// From submission to the first token.
    pub first_token: Spread,
    /// Between two tokens of a session.
    pub inter_token: Spread,
}

impl Snapshot {
    /// Ended attempts of a status.
    #[must_use]
    pub fn done_with(&self, status: WorkStatus) -> u64 {
        self.done.iter().filter(|((of, _), _)| *of == status).map(|(_, count)| count).sum()
    }
}

/// The counters. Handles of the metrics are taken at construction: install the recorder first.
pub(crate) struct Telemetry {
    now: Snapshot,
    queued: Gauge,
    active: Gauge,
    held: Gauge,
    kv_rows: Gauge,
    steps: Counter,
    stale_events: Counter,
    restarts: Counter,
    queue_wait: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float; nothing is decided by it")]
fn float(value: u64) -> f64 {
    value as f64
}

impl Telemetry {
    pub(crate) fn new() -> Self {
        Self {
            now: Snapshot::default(),
            queued: gauge!("holdfast_runner_queued"),
            active: gauge!("holdfast_runner_active"),
            held: gauge!("holdfast_runner_held"),
            kv_rows: gauge!("holdfast_runner_kv_rows"),
            steps: counter!("holdfast_runner_steps_total"),
            stale_events: counter!("holdfast_runner_stale_events_total"),
            restarts: counter!("holdfast_runner_restarts_total"),
            queue_wait: histogram!("holdfast_runner_queue_wait_seconds"),
            first_token: histogram!("holdfast_runner_first_token_seconds"),
            inter_token: histogram!("holdfast_runner_inter_token_seconds"),
        }
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.now
    }

    pub(crate) fn load(&mut self, load: Load) {
        if load != self.now.load {
            self.queued.set(float(load.queued));
            self.active.set(float(load.active));
            self.held.set(float(load.held));
            self.kv_rows.set(float(load.kv_rows));
            self.now.load = load;
        }
    }

    pub(crate) fn ended(&mut self, status: WorkStatus, kind: Option<FailureKind>) {
        *self.now.done.entry((status, kind.map(FailureKind::number))).or_default() += 1;
        let kind = kind.map_or("none", FailureKind::as_str);
        counter!("holdfast_runner_done_total", "status" => status.as_str(), "kind" => kind).increment(1);
    }

    pub(crate) fn cancel(&mut self, cause: Cause) {
        self.now.cancels += 1;
        let cause = match cause {
            Cause::Client => "client",
            Cause::Deadline => "deadline",
            Cause::Node => "node",
            Cause::Peer => "peer",
            Cause::Coordinator => "coordinator",
        };
        counter!("holdfast_runner_cancels_total", "cause" => cause).increment(1);
    }

    pub(crate) fn step(&mut self) {
        self.now.steps += 1;
        self.steps.increment(1);
    }

    pub(crate) fn stale_event(&mut self) {
        self.now.stale_events += 1;
        self.stale_events.increment(1);
    }

    pub(crate) fn restart(&mut self) {
        self.now.restarts += 1;
        self.restarts.increment(1);
    }

    pub(crate) fn queue_wait(&mut self, ms: u64) {
        self.now.queue_wait.record(ms);
        self.queue_wait.record(float(ms) / 1000.0);
    }

    pub(crate) fn first_token(&mut self, ms: u64) {
        self.now.first_token.record(ms);
        self.first_token.record(float(ms) / 1000.0);
    }

    pub(crate) fn inter_token(&mut self, ms: u64) {
        self.now.inter_token.record(ms);
        self.inter_token.record(float(ms) / 1000.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks_of_the_latest_samples() {
        let mut spread = Spread::default();
        assert_eq!(spread.percentile_ms(99), 0);
        for ms in (1..=200).rev() {
            spread.record(ms);
        }
        // 99 % of 200 is rank 198 of 1..=200.
        assert_eq!([0, 50, 99, 100].map(|percent| spread.percentile_ms(percent)), [1, 100, 198, 200]);
        assert_eq!((spread.count, spread.sum_ms, spread.max_ms), (200, 20_100, 200));
        for _ in 0..SAMPLES {
            spread.record(7);
        }
        assert_eq!((spread.percentile_ms(100), spread.max_ms), (7, 200));
    }
}
