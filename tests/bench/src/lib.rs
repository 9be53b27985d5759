//! Benchmarks of Holdfast against its peers: the same work, the same machine, the same run.
//!
//! ```text
//! cargo run --release -p holdfast-bench -- --json results.json --peers <folder of the peers>
//! ```
//!
//! Each benchmark gives [`Row`]s. A row has a peer's value beside ours when the peer ran too.

pub mod chain;
pub mod consensus;
pub mod draw;
pub mod endblock;
pub mod escrow;
pub mod gov;
pub mod measure;
pub mod runner;
pub mod scene;
pub mod signatures;
pub mod state;
pub mod store;
pub mod trace;
pub mod what_if;
pub mod workload;

use serde::{Deserialize, Serialize};

/// One measured number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Benchmark and quantity, `store.block_median`.
    pub name: String,
    /// Unit of both values.
    pub unit: String,
    /// Ours.
    pub value: f64,
    /// Who the peer is.
    pub peer_name: Option<String>,
    /// The peer's.
    pub peer_value: Option<f64>,
    /// How many times better ours is; below 1 the peer is ahead.
    pub ratio: Option<f64>,
    /// What the value, or the ratio, has to be.
    #[serde(default)]
    pub target: Option<String>,
    /// Whether it is.
    #[serde(default)]
    pub meets: Option<bool>,
}

/// What a benchmark gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Its numbers.
    pub rows: Vec<Row>,
    /// Every single measurement behind them.
    pub details: serde_json::Value,
}

/// Which of two values is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The smaller: times, memory.
    Lower,
    /// The greater: rates.
    Higher,
}

impl Row {
    /// A row without a peer.
    pub fn new(name: &str, unit: &str, value: f64) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            value,
            peer_name: None,
            peer_value: None,
            ratio: None,
            target: None,
            meets: None,
        }
    }

    /// The value has to be below `limit`.
    #[must_use]
    pub fn below(self, limit: f64) -> Self {
        let meets = self.value < limit;
        self.judged(format!("< {limit}"), meets)
    }

    /// The value has to be `limit` or less.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Self {
        let meets = self.value <= limit;
        self.judged(format!("<= {limit}"), meets)
    }

    /// The value has to be `limit` or more.
    #[must_use]
    pub fn at_least(self, limit: f64) -> Self {
        let meets = self.value >= limit;
        self.judged(format!(">= {limit}"), meets)
    }

    fn judged(mut self, target: String, meets: bool) -> Self {
        self.target = Some(target);
        self.meets = Some(meets);
        self
    }

    /// The row with a peer's value beside it.
    #[must_use]
    pub fn against(mut self, peer: &str, value: f64, better: Better) -> Self {
        let ratio = match better {
            Better::Lower => value / self.value,
            Better::Higher => self.value / value,
        };
        self.peer_name = Some(peer.into());
        self.peer_value = Some(value);
        self.ratio = ratio.is_finite().then_some(ratio);
        self
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<44} {:>14} {:<7}", self.name, number(self.value), self.unit)?;
        if let (Some(peer), Some(value)) = (&self.peer_name, self.peer_value) {
            write!(f, " {peer} {:>14}", number(value))?;
        }
        if let Some(ratio) = self.ratio {
            write!(f, "  x{ratio:.2}")?;
        }
        if let (Some(target), Some(meets)) = (&self.target, self.meets) {
            write!(f, "  {target}: {}", if meets { "met" } else { "MISSED" })?;
        }
        Ok(())
    }
}

fn number(value: f64) -> String {
    if value.abs() < 1000.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Median; of an even count the mean of the two middle values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 0 => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}

/// Nearest-rank quantile, `q` in percent.
pub fn percentile(values: &[f64], q: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * q).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank_and_the_even_median_is_the_middle() {
        let fifty: Vec<f64> = (1..=50).rev().map(f64::from).collect();
        assert_eq!(percentile(&fifty, 99), 50.0);
        assert_eq!(percentile(&fifty, 50), 25.0);
        assert_eq!(median(&fifty), 25.5);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!((median(&[]), percentile(&[], 99)), (0.0, 0.0));
    }

    #[test]
    fn the_ratio_says_how_many_times_better_ours_is() {
        assert_eq!(Row::new("t", "ms", 10.0).against("p", 40.0, Better::Lower).ratio, Some(4.0));
        assert_eq!(Row::new("r", "1/s", 10.0).against("p", 40.0, Better::Higher).ratio, Some(0.25));
        assert_eq!(Row::new("z", "ms", 0.0).against("p", 1.0, Better::Lower).ratio, None);
    }

    #[test]
    fn a_row_says_whether_its_value_is_what_it_has_to_be() {
        let row = |value| Row::new("t", "us", value);
        assert_eq!(row(200.0).below(200.0).meets, Some(false));
        assert_eq!(row(1.5).at_most(1.5).meets, Some(true));
        assert_eq!(row(0.79).at_least(0.8).meets, Some(false));
        let text = row(150.0).against("raw", 75.0, Better::Lower).below(200.0).to_string();
        assert!(text.ends_with("raw          75.00  x0.50  < 200: met"), "{text}");
        assert_eq!(row(1.0).meets, None);
    }
}
