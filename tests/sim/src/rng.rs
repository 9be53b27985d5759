//! The one source of chance: everything in a run follows from its seed.

/// The generator of the modules' tests, with a stream for each purpose and the draws that chains need.
#[derive(Debug, Clone)]
pub struct Rng(holdfast_testkit::Rng);

impl Rng {
    /// The stream `name` of `seed`. Streams of one seed do not influence each other: drawing more for the driver leaves
    /// the transactions as they are.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name, then mixed with the seed.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mixed = holdfast_testkit::Rng::new(hash).next_u64();
        Self(holdfast_testkit::Rng::new(mixed ^ seed.wrapping_mul(0x2545_f491_4f6c_dd1d)))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `n`; 0 for `n` = 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next_u64() % (n.max(1) as u64)).unwrap_or(0)
    }

    /// In `low ..= high`; `low` when the range is empty.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        if high <= low {
            return low;
        }
        let span = high.abs_diff(low).saturating_add(1);
        low.saturating_add_unsigned(self.next_u64() % span)
    }

    /// As [`Rng::range`], unsigned.
    pub fn unsigned(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + self.next_u64() % (high - low).saturating_add(1) }
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, pct: usize) -> bool {
        self.below(100) < pct
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// One of a list, `None` when it is empty.
    pub fn maybe<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        if list.is_empty() { None } else { Some(self.pick(list)) }
    }

    /// Index by weight; the weights' sum is above 0.
    pub fn weighted(&mut self, weights: impl Iterator<Item = u32> + Clone) -> usize {
        let sum: u64 = weights.clone().map(u64::from).sum();
        let mut left = self.next_u64() % sum.max(1);
        for (index, weight) in weights.enumerate() {
            match left.checked_sub(u64::from(weight)) {
                None => return index,
                Some(rest) => left = rest,
            }
        }
        0
    }

    /// Random bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next_u64().to_le_bytes()[0]).collect()
    }

    /// Changes the order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// A random part of a list, in its order.
    pub fn part<T: Clone>(&mut self, list: &[T]) -> Vec<T> {
        let pct = self.below(101);
        list.iter().filter(|_| self.percent(pct)).cloned().collect()
    }
}
