//! The draw of an executor: a pure function of a candidate table and a seed (breaker-details 2.4).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use holdfast_types::{Address, Epoch};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Ready probes among which the probe lane draws: the longest waiting.
pub const LANE_WIDTH: usize = 16;
/// Basis points of the whole.
const SHARE_WHOLE: u128 = 10_000;

/// One row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Address.
    pub address: Address,
    /// Weight, above 0.
    pub weight: u64,
    /// 0 healthy, 1 ready for its probe, 2 out.
    pub class: u8,
    /// Height since which a class-1 member waits; 0 in other classes.
    pub since: u64,
}

/// Why a member of the group is no candidate; in the order in which the filters are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// Not active, or without weight.
    Inactive,
    /// Forced out by governance.
    ForcedOut,
    /// Its maintenance window is open.
    Maintenance,
    /// Does not serve in the PoC phase.
    Poc,
}

impl Filter {
    /// Name in the refusal of a draw.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::ForcedOut => "forced_out",
            Self::Maintenance => "maintenance",
            Self::Poc => "poc",
        }
    }
}

/// Which part of the table a draw used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Class 0 by weight.
    Healthy,
    /// Class 1.
    Probe,
    /// All rows by weight: none is healthy or ready.
    Fallback,
}

/// A drawn row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Index into [`CandidateTable::rows`].
    pub row: usize,
    /// How it came about.
    pub lane: Lane,
}

/// What the table's bytes begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableHeader {
    /// Epoch of the group.
    pub epoch: Epoch,
    /// Model.
    pub model: String,
    /// Share of draws that go to the probe lane, basis points; 0 gives each probe the weight 1.
    pub share_bp: u16,
    /// PoC phase.
    pub poc: bool,
}

/// Rows that make no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TableError {
    /// A model id over 65,535 bytes, or 2^32 rows.
    #[error("a candidate table's model id or number of rows is too large")]
    Size,
    /// Rows out of order or twice.
    #[error("a candidate table's rows must ascend by address")]
    Order,
    /// A weight of 0, a class above 2, or a wait outside class 1.
    #[error("a candidate needs a weight above 0, a class of 0 to 2, and a wait in class 1 only")]
    Row,
}

/// Candidates of one model at one height, with what a draw needs to be a binary search.
#[derive(Debug)]
pub struct CandidateTable {
    header: TableHeader,
    rows: Vec<Candidate>,
    filtered: Vec<(Address, Filter)>,
    /// Cumulative weight after each class-0 row, and the row's index.
    healthy: Vec<(u128, usize)>,
    /// Cumulative weight after each row.
    all: Vec<u128>,
    /// Class-1 rows in address order.
    ready: Vec<usize>,
    /// The longest waiting of them, by (since, address).
    lane: Vec<usize>,
    digest: OnceLock<[u8; 32]>,
}

impl CandidateTable {
    /// A table of `rows`, ascending by address. `filtered` are the group's other members, ascending too:
    /// they are in no digest and only explain an empty table.
    pub fn new(
        header: TableHeader,
        rows: Vec<Candidate>,
        filtered: Vec<(Address, Filter)>,
    ) -> Result<Self, TableError> {
        if u16::try_from(header.model.len()).is_err() || u32::try_from(rows.len()).is_err() {
            return Err(TableError::Size);
        }
        if !rows.is_sorted_by(|a, b| a.address < b.address) || !filtered.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(TableError::Order);
        }
        if rows.iter().any(|r| r.weight == 0 || r.class > 2 || (r.class != 1 && r.since != 0)) {
            return Err(TableError::Row);
        }
        let (mut healthy, mut all, mut ready) = (Vec::new(), Vec::with_capacity(rows.len()), Vec::new());
        // Fewer than 2^32 rows of less than 2^64 each: no sum reaches 2^128.
        let (mut healthy_sum, mut all_sum) = (0_u128, 0_u128);
        for (index, row) in rows.iter().enumerate() {
            all_sum = all_sum.saturating_add(row.weight.into());
            all.push(all_sum);
            match row.class {
                0 => {
                    healthy_sum = healthy_sum.saturating_add(row.weight.into());
                    healthy.push((healthy_sum, index));
                }
                1 => ready.push(index),
                _ => {}
            }
        }
        let mut lane = ready.clone();
        // Stable, and `ready` ascends by address: equal waits stay in address order.
        lane.sort_by_key(|index| rows.get(*index).map(|row| row.since));
        lane.truncate(LANE_WIDTH);
        Ok(Self { header, rows, filtered, healthy, all, ready, lane, digest: OnceLock::new() })
    }

    /// The header.
    pub fn header(&self) -> &TableHeader {
        &self.header
    }

    /// Candidates, ascending by address.
    pub fn rows(&self) -> &[Candidate] {
        &self.rows
    }

    /// The candidate with this address.
    pub fn row(&self, address: &Address) -> Option<&Candidate> {
        let index = self.rows.binary_search_by_key(address, |row| row.address).ok()?;
        self.rows.get(index)
    }

    /// How many members each filter removed.
    pub fn filter_counts(&self) -> BTreeMap<Filter, usize> {
        let mut counts = BTreeMap::new();
        for (_, filter) in &self.filtered {
            let count: &mut usize = counts.entry(*filter).or_default();
            *count = count.saturating_add(1);
        }
        counts
    }

    /// Why the table is empty, `None` if it is not: `no_members`, or the name of the filter that removed
    /// the last member.
    pub fn empty_reason(&self) -> Option<&'static str> {
        if !self.rows.is_empty() {
            return None;
        }
        Some(self.filtered.iter().map(|(_, filter)| *filter).max().map_or("no_members", Filter::as_str))
    }

    /// The table with other places for some members; rows not named are copied. O(rows), no decoding.
    pub fn with_changes(&self, changes: &BTreeMap<Address, crate::Place>) -> Result<Self, TableError> {
        let candidate = |place: &crate::Place| match place {
            crate::Place::Candidate(row) => Some(*row),
            _ => None,
        };
        let rows = merge(&self.rows, |row| row.address, changes, |_, place| candidate(place));
        let filtered = merge(
            &self.filtered,
            |row| row.0,
            changes,
            |address, place| match place {
                crate::Place::Filtered(filter) => Some((*address, *filter)),
                _ => None,
            },
        );
        Self::new(self.header.clone(), rows, filtered)
    }

    /// The bytes whose SHA-256 is the digest. No height inside: an unchanged table keeps its digest.
    pub fn bytes(&self) -> Vec<u8> {
        let TableHeader { epoch, model, share_bp, poc } = &self.header;
        let mut out = Vec::with_capacity(self.rows.len().saturating_mul(38).saturating_add(64));
        out.extend_from_slice(b"holdfast/candidates/v1");
        out.extend_from_slice(&epoch.to_be_bytes());
        // Both lengths were checked by the constructor.
        out.extend_from_slice(&u16::try_from(model.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(model.as_bytes());
        out.extend_from_slice(&share_bp.to_be_bytes());
        out.push(u8::from(*poc));
        out.extend_from_slice(&u32::try_from(self.rows.len()).unwrap_or(u32::MAX).to_be_bytes());
        for row in &self.rows {
            out.push(20);
            out.extend_from_slice(&row.address.0);
            out.extend_from_slice(&row.weight.to_be_bytes());
            out.push(row.class);
            out.extend_from_slice(&row.since.to_be_bytes());
        }
        out
    }

    /// SHA-256 of [`Self::bytes`], computed on first use.
    pub fn digest(&self) -> [u8; 32] {
        *self.digest.get_or_init(|| Sha256::digest(self.bytes()).into())
    }

    /// Draws a row in O(log rows); `None` if there is none.
    pub fn draw(&self, seed: [u8; 32]) -> Option<Draw> {
        let mut stream = DrawStream::new(seed, self.digest());
        let healthy_weight = self.healthy.last().map_or(0, |(sum, _)| *sum);
        if self.healthy.is_empty() && self.ready.is_empty() {
            let r = stream.below(*self.all.last()?)?;
            return Some(Draw { row: self.all.partition_point(|sum| *sum <= r), lane: Lane::Fallback });
        }
        if self.header.share_bp == 0 {
            let ready = u128::try_from(self.ready.len()).ok()?;
            let r = stream.below(healthy_weight.checked_add(ready)?)?;
            return match r.checked_sub(healthy_weight) {
                None => self.healthy_at(r),
                Some(n) => Some(Draw { row: *self.ready.get(usize::try_from(n).ok()?)?, lane: Lane::Probe }),
            };
        }
        let probe = match (self.ready.is_empty(), self.healthy.is_empty()) {
            (true, _) => false,
            (false, true) => true,
            (false, false) => stream.below(SHARE_WHOLE)? < u128::from(self.header.share_bp),
        };
        if probe {
            let n = stream.below(u128::try_from(self.lane.len()).ok()?)?;
            return Some(Draw { row: *self.lane.get(usize::try_from(n).ok()?)?, lane: Lane::Probe });
        }
        let r = stream.below(healthy_weight)?;
        self.healthy_at(r)
    }

    /// The class-0 row whose cumulative weight is the first above `r`.
    fn healthy_at(&self, r: u128) -> Option<Draw> {
        let at = self.healthy.partition_point(|(sum, _)| *sum <= r);
        self.healthy.get(at).map(|(_, row)| Draw { row: *row, lane: Lane::Healthy })
    }
}

/// `old` without the keys of `changes`, plus what `make` gives for them, ascending.
fn merge<T: Clone, P>(
    old: &[T],
    key: impl Fn(&T) -> Address,
    changes: &BTreeMap<Address, P>,
    make: impl Fn(&Address, &P) -> Option<T>,
) -> Vec<T> {
    let mut out = Vec::with_capacity(old.len().saturating_add(changes.len()));
    let mut pending = changes.iter().peekable();
    for item in old {
        while let Some((address, change)) = pending.next_if(|(address, _)| **address < key(item)) {
            out.extend(make(address, change));
        }
        match pending.next_if(|(address, _)| **address == key(item)) {
            Some((address, change)) => out.extend(make(address, change)),
            None => out.push(item.clone()),
        }
    }
    out.extend(pending.filter_map(|(address, change)| make(address, change)));
    out
}

/// Numbers from a seed and a table: the first 16 bytes of
/// `sha256("holdfast/draw/v1" ‖ seed ‖ digest ‖ counter)`, counter from 0.
#[derive(Debug, Clone)]
pub struct DrawStream {
    base: Sha256,
    counter: u64,
}

impl DrawStream {
    /// The stream of `seed` over the table with `digest`.
    pub fn new(seed: [u8; 32], digest: [u8; 32]) -> Self {
        let mut base = Sha256::new();
        base.update(b"holdfast/draw/v1");
        base.update(seed);
        base.update(digest);
        Self { base, counter: 0 }
    }

    /// The next 128-bit number; `None` after 2^64 − 1 of them.
    pub fn next_number(&mut self) -> Option<u128> {
        let hash = self.base.clone().chain_update(self.counter.to_be_bytes()).finalize();
        self.counter = self.counter.checked_add(1)?;
        Some(u128::from_be_bytes(*hash.first_chunk::<16>()?))
    }

    /// An unbiased number below `bound`; `None` for 0. Rejects the incomplete last run of `bound` numbers,
    /// so each round succeeds with a chance above one half.
    pub fn below(&mut self, bound: u128) -> Option<u128> {
        let incomplete = u128::MAX.checked_rem(bound)?.checked_add(1)?.checked_rem(bound)?;
        let last = u128::MAX.checked_sub(incomplete)?;
        loop {
            let x = self.next_number()?;
            if x <= last {
                return x.checked_rem(bound);
            }
        }
    }
}
