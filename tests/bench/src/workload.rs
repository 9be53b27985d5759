//! The block workload that the store peers run too, bit for bit: seeded keys and values, inserts and overwrites.

/// Seed of every published number.
pub const SEED: u64 = 42;

const TAG_KEY: u64 = 0x4B45_5900_0000_0000;
const TAG_VALUE: u64 = 0x5641_4C55_4500_0000;
const TAG_UPDATE: u64 = 0x5550_4441_5445_0000;
const TAG_READ: u64 = 0x5245_4144_0000_0000;

/// SplitMix64. All arithmetic wraps.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator with this state.
    pub fn new(state: u64) -> Self {
        Self(state)
    }

    /// Next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// `N` bytes, little-endian words of a generator that starts at the first output of state `x`.
fn fill<const N: usize>(x: u64) -> [u8; N] {
    let mut words = SplitMix64(SplitMix64(x).next_u64());
    let mut out = [0; N];
    for chunk in out.chunks_exact_mut(8) {
        chunk.copy_from_slice(&words.next_u64().to_le_bytes());
    }
    out
}

/// Key of the `index`-th insertion, from 0.
pub fn key(seed: u64, index: u64) -> [u8; 32] {
    fill((seed ^ TAG_KEY).wrapping_add(index))
}

/// Value of the `n`-th write, from 0.
pub fn value(seed: u64, n: u64) -> [u8; 40] {
    fill((seed ^ TAG_VALUE).wrapping_add(n))
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Key.
    pub key: [u8; 32],
    /// Value.
    pub value: [u8; 40],
}

/// The writes and reads in order.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: u64,
    /// Keys present.
    pub count: u64,
    writes: u64,
    updates: SplitMix64,
    reads: SplitMix64,
}

impl Workload {
    /// The workload of `seed`, at its start.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            count: 0,
            writes: 0,
            updates: SplitMix64(seed ^ TAG_UPDATE),
            reads: SplitMix64(seed ^ TAG_READ),
        }
    }

    fn emit(&mut self, index: u64) -> Write {
        let write = Write { key: key(self.seed, index), value: value(self.seed, self.writes) };
        self.writes += 1;
        write
    }

    /// Next write of the load: a new key.
    pub fn next_load(&mut self) -> Write {
        let index = self.count;
        self.count += 1;
        self.emit(index)
    }

    /// Next update: one in ten inserts, the others overwrite. Needs a key to be present.
    pub fn next_update(&mut self) -> Write {
        if self.updates.next_u64() % 10 == 9 {
            return self.next_load();
        }
        let index = self.updates.next_u64() % self.count;
        self.emit(index)
    }

    /// Key of the next point read.
    pub fn next_read(&mut self) -> [u8; 32] {
        key(self.seed, self.reads.next_u64() % self.count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_generator_gives_its_published_first_outputs() {
        let first = |state, n| {
            let mut g = SplitMix64::new(state);
            (0..n).map(|_| g.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(first(0, 3), [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
        assert_eq!(first(1_234_567, 3), [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn keys_and_values_are_those_of_the_peers() {
        let key_of = |i| hex::encode(key(SEED, i));
        assert_eq!(key_of(0), "43fa2a93477209149e2ef2aa21a54f82dda08bed4e4d5b8ad5a23e047ce04754");
        assert_eq!(key_of(999_999), "ee110f6f1cd0d590c86376d18a6dc8ba955c83e2755286d36ab76b7b0197d8a2");
        assert_eq!(
            hex::encode(value(SEED, 0)),
            "4e6d6a0f32b74c6fc874c224adca92f2c2296fa12665fc010b8350de10732d4b34369e840d7565b0"
        );
    }

    /// Keys present, digest over every write, digest over the final state in key order.
    fn digests(keys: u64, updates: u64) -> (u64, String, String) {
        let mut w = Workload::new(SEED);
        let (mut all, mut state) = (Sha256::new(), BTreeMap::new());
        for n in 0..keys + updates {
            let write = if n < keys { w.next_load() } else { w.next_update() };
            all.update(write.key);
            all.update(write.value);
            state.insert(write.key, write.value);
        }
        let mut last = Sha256::new();
        for (key, value) in &state {
            last.update(key);
            last.update(value);
        }
        assert_eq!(state.len() as u64, w.count);
        (w.count, hex::encode(all.finalize()), hex::encode(last.finalize()))
    }

    #[test]
    fn both_digests_come_out_as_published() {
        let (count, all, state) = digests(1_000, 1_000);
        assert_eq!(count, 1_110);
        assert_eq!(all, "0dd4158114a6f6622d5eb67a06881079e771959caf8f46e7bbaae2b6d8fc0af4");
        assert_eq!(state, "1447e75b1fa932f399933ba3bebaccb13dae6521681cabcbf293f30f0bf5652e");
        let (count, all, state) = digests(20_000, 5_000);
        assert_eq!(count, 20_500);
        assert_eq!(all, "8e9a1298eb233a1bc36a3496f003a1eeecbe326742469840dce735ece06218cf");
        assert_eq!(state, "676d4e1e2e03209f2515cf67184571b74f52df03af5da3de88463cfba915c1cb");
    }
}
