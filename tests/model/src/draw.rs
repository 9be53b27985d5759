//! Candidate table bytes and the draw (breaker-details 2.4).

use crate::Address;
use sha2::{Digest, Sha256};

/// One eligible member as the draw sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Raw address.
    pub address: Address,
    /// Weight, > 0.
    pub weight: u64,
    /// 0 healthy, 1 ready probe, 2 excluded or claimed.
    pub class: u8,
    /// `ready_since` of class 1, else 0.
    pub since: u64,
}

/// Header and rows, ascending address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Effective epoch.
    pub epoch: u64,
    /// Model.
    pub model: String,
    /// Probe share, basis points.
    pub share_bp: u16,
    /// PoC phase.
    pub poc: bool,
    /// Candidates.
    pub rows: Vec<Row>,
}

/// Where a draw landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// By weight among the healthy.
    Healthy,
    /// Among the ready probes.
    Probe,
    /// By weight among all: nobody is healthy or ready.
    Fallback,
}

impl Table {
    /// The bytes that are hashed.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"holdfast/candidates/v1".to_vec();
        out.extend(self.epoch.to_be_bytes());
        out.extend((self.model.len() as u16).to_be_bytes());
        out.extend(self.model.as_bytes());
        out.extend(self.share_bp.to_be_bytes());
        out.push(self.poc as u8);
        out.extend((self.rows.len() as u32).to_be_bytes());
        for row in &self.rows {
            out.push(row.address.len() as u8);
            out.extend(row.address);
            out.extend(row.weight.to_be_bytes());
            out.push(row.class);
            out.extend(row.since.to_be_bytes());
        }
        out
    }

    /// sha256 of [`Table::bytes`].
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.bytes()).into()
    }

    /// Draws one row: its lane and its index in `rows`. `None` for an empty table.
    pub fn draw(&self, seed: [u8; 32]) -> Option<(Lane, usize)> {
        if self.rows.is_empty() {
            return None;
        }
        let mut stream = Stream::new(seed, self.digest());
        let of_class = |class: u8| -> Vec<usize> {
            (0..self.rows.len()).filter(|i| self.rows[*i].class == class).collect()
        };
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let healthy = of_class(0);
        let ready = of_class(1);

        if healthy.is_empty() && ready.is_empty() {
            let r = stream.below(self.sum(&all));
            return Some((Lane::Fallback, self.walk(&all, r)));
        }
        if self.share_bp == 0 {
            let healthy_weight = self.sum(&healthy);
            let r = stream.below(healthy_weight + ready.len() as u128);
            return Some(if r < healthy_weight {
                (Lane::Healthy, self.walk(&healthy, r))
            } else {
                (Lane::Probe, ready[(r - healthy_weight) as usize])
            });
        }
        let to_probe = if ready.is_empty() {
            false
        } else if healthy.is_empty() {
            true
        } else {
            stream.below(10_000) < u128::from(self.share_bp)
        };
        if to_probe {
            let mut waiting = ready;
            waiting.sort_by_key(|i| (self.rows[*i].since, self.rows[*i].address));
            waiting.truncate(16);
            let index = stream.below(waiting.len() as u128) as usize;
            Some((Lane::Probe, waiting[index]))
        } else {
            let r = stream.below(self.sum(&healthy));
            Some((Lane::Healthy, self.walk(&healthy, r)))
        }
    }

    fn sum(&self, indices: &[usize]) -> u128 {
        indices.iter().map(|i| u128::from(self.rows[*i].weight)).sum()
    }

    fn walk(&self, indices: &[usize], r: u128) -> usize {
        let mut cumulative = 0;
        for i in indices {
            cumulative += u128::from(self.rows[*i].weight);
            if cumulative > r {
                return *i;
            }
        }
        panic!("{r} lies beyond the total weight {cumulative}")
    }
}

/// The sha256 counter stream of one draw.
pub struct Stream {
    seed: [u8; 32],
    digest: [u8; 32],
    next: u64,
}

impl Stream {
    /// Starts at block 0.
    pub fn new(seed: [u8; 32], digest: [u8; 32]) -> Self {
        Stream { seed, digest, next: 0 }
    }

    /// The next 128 bits.
    pub fn take(&mut self) -> u128 {
        let mut bytes = b"holdfast/draw/v1".to_vec();
        bytes.extend(self.seed);
        bytes.extend(self.digest);
        bytes.extend(self.next.to_be_bytes());
        self.next += 1;
        u128::from_be_bytes(Sha256::digest(&bytes)[..16].try_into().unwrap())
    }

    /// A number below `bound`, each equally likely.
    pub fn below(&mut self, bound: u128) -> u128 {
        let rem = ((u128::MAX % bound) + 1) % bound;
        loop {
            let x = self.take();
            if x <= u128::MAX - rem {
                return x % bound;
            }
        }
    }
}
