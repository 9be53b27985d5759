//! The built-in workload: seeded requests fitted to a published trace.
//!
//! Source of every fitted figure below: the `code` trace of the Azure Public Dataset, AzureLLMInferenceTrace
//! 2023, licensed CC-BY 4.0, described in Patel et al., "Splitwise: Efficient Generative LLM Inference Using
//! Phase Splitting", ISCA 2024. Only the summary figures are used; no row of the trace is in this project.
//!
//! The trace holds 8,819 requests in 3,436 seconds, that is 688 blocks of 5 seconds. Work comes in bursts: 430
//! of the blocks are empty, the 258 others form 49 runs, and the fullest holds 268 requests. Prompt and answer
//! lengths show no correlation with one another nor from row to row, so each is drawn on its own.
//!
//! Exact for every seed, by construction: [`ROWS`], [`BLOCKS`], [`EMPTY_BLOCKS`], [`PEAK_BLOCK_REQUESTS`] (and
//! that only one block reaches it), the number of runs, the first row at 0 and the last row in the last block.
//! Fitted, so close but not equal: lengths of runs and of pauses, requests in each other block, token counts.
//!
//! All arithmetic is on integers and the generator is [`SplitMix64`], so a seed gives the same bytes everywhere.

use std::io::{self, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::trace::{HEADER, Request, TraceError, TraceFile};

/// The seed used when neither `--trace` nor `--workload` is given.
pub const DEFAULT_WORKLOAD_SEED: u64 = 1;

/// Requests in a workload.
pub const ROWS: u64 = 8_819;

/// Length of one block of the plan, in microseconds.
pub const BLOCK_US: u64 = 5_000_000;

/// Blocks from the first row to the last, both counted.
pub const BLOCKS: usize = 688;

/// Blocks of them without a request.
pub const EMPTY_BLOCKS: usize = 430;

/// Requests in the fullest block.
pub const PEAK_BLOCK_REQUESTS: u64 = 268;

/// Most requests in any other block; the second fullest of the trace.
const OTHER_BLOCK_MAX: u64 = 163;

/// Runs of consecutive blocks with requests. The plan begins and ends with one.
const BURSTS: usize = 49;

/// Quantiles as (parts per million, value), linear in between.
type Quantiles = [(u64, u64)];

/// Length of a run of busy blocks, in blocks.
#[rustfmt::skip]
const BURST_BLOCKS: &Quantiles = &[
    (0, 1), (100_000, 2), (200_000, 3), (300_000, 3), (400_000, 4), (500_000, 4), (600_000, 5),
    (700_000, 6), (800_000, 6), (900_000, 11), (950_000, 12), (980_000, 13), (1_000_000, 18),
];

/// Length of a pause between two runs, in blocks.
#[rustfmt::skip]
const PAUSE_BLOCKS: &Quantiles = &[
    (0, 1), (100_000, 1), (200_000, 2), (300_000, 3), (400_000, 4), (500_000, 6), (600_000, 7),
    (700_000, 9), (800_000, 15), (900_000, 24), (950_000, 32), (980_000, 33), (1_000_000, 42),
];

/// Requests in the first or last block of a run, which the burst covers only in part.
#[rustfmt::skip]
const EDGE_REQUESTS: &Quantiles = &[
    (0, 2), (100_000, 4), (200_000, 6), (300_000, 9), (400_000, 12), (500_000, 17), (600_000, 21),
    (700_000, 25), (800_000, 30), (900_000, 40), (950_000, 45), (980_000, 65), (1_000_000, 88),
];

/// Requests in a block inside a run, the fullest one left out.
#[rustfmt::skip]
const INNER_REQUESTS: &Quantiles = &[
    (0, 1), (100_000, 13), (200_000, 20), (300_000, 26), (400_000, 31), (500_000, 35),
    (600_000, 40), (700_000, 44), (800_000, 61), (900_000, 73), (950_000, 104), (980_000, 116),
    (1_000_000, 163),
];

/// Prompt length in tokens.
#[rustfmt::skip]
const CONTEXT_TOKENS: &Quantiles = &[
    (0, 3), (10_000, 17), (25_000, 44), (50_000, 75), (100_000, 147), (150_000, 232),
    (200_000, 386), (250_000, 578), (300_000, 770), (350_000, 938), (400_000, 1_075),
    (450_000, 1_261), (500_000, 1_469), (550_000, 1_690), (600_000, 1_909), (650_000, 2_164),
    (700_000, 2_433), (750_000, 2_745), (800_000, 3_192), (850_000, 3_919), (900_000, 5_186),
    (925_000, 6_097), (950_000, 7_302), (975_000, 7_435), (990_000, 7_436), (995_000, 7_436),
    (999_000, 7_437), (1_000_000, 7_437),
];

/// Answer length in tokens.
#[rustfmt::skip]
const GENERATED_TOKENS: &Quantiles = &[
    (0, 6), (10_000, 6), (25_000, 6), (50_000, 6), (100_000, 7), (150_000, 7), (200_000, 8),
    (250_000, 9), (300_000, 9), (350_000, 10), (400_000, 11), (450_000, 12), (500_000, 13),
    (550_000, 14), (600_000, 16), (650_000, 18), (700_000, 20), (750_000, 24), (800_000, 29),
    (850_000, 39), (900_000, 55), (925_000, 69), (950_000, 90), (975_000, 145), (990_000, 252),
    (995_000, 361), (999_000, 824), (1_000_000, 1_899),
];

/// Sebastiano Vigna's SplitMix64: a 64-bit counter stepped by the golden ratio, then mixed.
///
/// The only random generator of the devnet. It decides test traffic and faults; nothing of it reaches the
/// state machine other than through signed messages.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A stream from a seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64 { state: seed }
    }

    /// A stream of its own for each list of numbers, e.g. `[seed, request, attempt]`.
    ///
    /// Lists that differ in one number or in length give unrelated streams, so that a decision depends on what
    /// it is about and never on how many decisions came before it.
    pub fn keyed(parts: &[u64]) -> Self {
        let mut state = parts.len() as u64;
        for part in parts {
            state = SplitMix64::new(state ^ SplitMix64::new(*part).next_u64()).next_u64();
        }
        SplitMix64 { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound` - 1, each equally likely; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Draws under this are the incomplete last round of residues.
        let uneven = bound.wrapping_neg() % bound;
        loop {
            let draw = self.next_u64();
            if draw >= uneven {
                return draw % bound;
            }
        }
    }

    /// 32 bytes, for draw seeds.
    pub fn next_bytes32(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_be_bytes());
        }
        bytes
    }

    fn shuffle(&mut self, items: &mut [u64]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(last);
            items.swap(last, other);
        }
    }
}

/// Which of `models` models a request asks for: the first in 60 of 100, the others equally often.
///
/// Depends on the seed and the request only. 0 if there are fewer than two models.
pub fn model_of_request(seed: u64, request_index: u64, models: usize) -> usize {
    if models < 2 {
        return 0;
    }
    let mut stream = SplitMix64::keyed(&[seed, MODEL_STREAM, request_index]);
    if stream.below(100) < 60 {
        return 0;
    }
    usize::try_from(stream.below(models as u64 - 1)).map_or(0, |other| other + 1)
}

// Stream names: the second part of a key, so that uses of one seed stay apart.
const PLAN_STREAM: u64 = 1;
const ROW_STREAM: u64 = 2;
const MODEL_STREAM: u64 = 3;

/// Value at `at` parts per million, rounded to the nearest.
fn quantile(table: &Quantiles, at: u64) -> u64 {
    let mut low = (0, 0);
    for high in table {
        if at <= high.0 {
            let width = high.0 - low.0;
            if width == 0 {
                return high.1;
            }
            return low.1 + ((high.1 - low.1) * (at - low.0) + width / 2) / width;
        }
        low = *high;
    }
    low.1
}

/// `count` draws, one from each of `count` equal parts of the distribution, in random order.
///
/// Independent draws would follow the table only on average; 49 of them can miss the long pauses altogether.
fn stratified(stream: &mut SplitMix64, table: &Quantiles, count: usize) -> Vec<u64> {
    let parts = count as u64;
    let mut values: Vec<u64> = (0..parts)
        .map(|part| quantile(table, (part * 1_000_000 + stream.below(1_000_000)) / parts))
        .collect();
    stream.shuffle(&mut values);
    values
}

/// Changes `values` by one at a time, in turn, until they sum to `total`, each staying in `1..=max`.
///
/// Ends because the callers' totals lie between the number of values and that number times `max`.
fn fit_sum(values: &mut [u64], total: u64, max: u64) {
    let mut sum: u64 = values.iter().sum();
    while sum != total {
        for value in values.iter_mut() {
            if sum < total && *value < max {
                *value += 1;
                sum += 1;
            } else if sum > total && *value > 1 {
                *value -= 1;
                sum -= 1;
            }
        }
    }
}

/// Requests in each of the [`BLOCKS`] blocks.
fn plan(seed: u64) -> Vec<u64> {
    let mut stream = SplitMix64::keyed(&[seed, PLAN_STREAM]);
    let busy_blocks = (BLOCKS - EMPTY_BLOCKS) as u64;
    let mut bursts = stratified(&mut stream, BURST_BLOCKS, BURSTS);
    fit_sum(&mut bursts, busy_blocks, busy_blocks);
    let mut pauses = stratified(&mut stream, PAUSE_BLOCKS, BURSTS - 1);
    fit_sum(&mut pauses, EMPTY_BLOCKS as u64, EMPTY_BLOCKS as u64);

    // 258 blocks in 49 runs leave at least 160 blocks inside runs, so the fullest one has a place.
    let edges: u64 = bursts.iter().map(|blocks| (*blocks).min(2)).sum();
    let edges = usize::try_from(edges).unwrap_or(BLOCKS);
    let mut counts = stratified(&mut stream, EDGE_REQUESTS, edges);
    counts.extend(stratified(&mut stream, INNER_REQUESTS, BLOCKS - EMPTY_BLOCKS - edges - 1));
    fit_sum(&mut counts, ROWS - PEAK_BLOCK_REQUESTS, OTHER_BLOCK_MAX);
    let mut inner = counts.split_off(edges);
    inner.push(PEAK_BLOCK_REQUESTS);
    stream.shuffle(&mut inner);

    let (mut edge, mut inner) = (counts.into_iter(), inner.into_iter());
    let mut blocks = Vec::with_capacity(BLOCKS);
    let mut pauses = pauses.into_iter();
    for burst in bursts {
        for position in 0..burst {
            let at_edge = position == 0 || position + 1 == burst;
            blocks.extend(if at_edge { edge.next() } else { inner.next() });
        }
        blocks.extend((0..pauses.next().unwrap_or(0)).map(|_| 0));
    }
    blocks
}

/// What a workload holds, in the shape of a trace summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadSummary {
    /// The seed it came from.
    pub seed: u64,
    /// Requests.
    pub rows: u64,
    /// SHA-256 of [`Workload::write_csv`]'s bytes, lower-case hex.
    pub sha256: String,
    /// Blocks of 5 seconds from the first row to the last, both counted.
    pub blocks: u64,
    /// Blocks of them without a request.
    pub empty_blocks: u64,
    /// Requests in the fullest block.
    pub peak_block_requests: u64,
    /// Microseconds from the first row to the last.
    pub span_us: u64,
}

/// The built-in workload of one seed.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: u64,
    blocks: Vec<u64>,
}

impl Workload {
    /// Plans the workload of `seed`; requests are made while they are read.
    pub fn new(seed: u64) -> Self {
        Workload { seed, blocks: plan(seed) }
    }

    /// The requests in order of arrival; holds at most one block of them.
    pub fn requests(&self) -> WorkloadRequests<'_> {
        WorkloadRequests {
            blocks: &self.blocks,
            block: 0,
            arrivals: Vec::new().into_iter(),
            index: 0,
            stream: SplitMix64::keyed(&[self.seed, ROW_STREAM]),
        }
    }

    /// Counts and hashes all requests.
    pub fn summary(&self) -> WorkloadSummary {
        struct Hasher(Sha256);
        impl Write for Hasher {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.update(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut hasher = Hasher(Sha256::new());
        // Hashing cannot fail, so neither can the write.
        let written = self.write_csv(&mut hasher);
        debug_assert!(written.is_ok());
        WorkloadSummary {
            seed: self.seed,
            rows: self.blocks.iter().sum(),
            sha256: hex::encode(hasher.0.finalize()),
            blocks: self.blocks.len() as u64,
            empty_blocks: self.blocks.iter().filter(|requests| **requests == 0).count() as u64,
            peak_block_requests: self.blocks.iter().copied().max().unwrap_or(0),
            span_us: self.requests().last().map_or(0, |request| request.arrival_us),
        }
    }

    /// Writes the workload as a trace that [`scan`](super::trace::scan) accepts.
    ///
    /// Time begins at 2000-01-01 00:00:00, a date no measured trace of language models can bear.
    pub fn write_csv<W: Write>(&self, out: &mut W) -> io::Result<()> {
        writeln!(out, "{HEADER}")?;
        for request in self.requests() {
            let (seconds, micros) = (request.arrival_us / 1_000_000, request.arrival_us % 1_000_000);
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            writeln!(
                out,
                "2000-01-01 {hours:02}:{minutes:02}:{:02}.{micros:06},{},{}",
                seconds % 60,
                request.context_tokens,
                request.generated_tokens
            )?;
        }
        Ok(())
    }
}

/// Iterator over the requests of a [`Workload`].
#[derive(Debug, Clone)]
pub struct WorkloadRequests<'a> {
    blocks: &'a [u64],
    block: u64,
    arrivals: std::vec::IntoIter<u64>,
    index: u64,
    stream: SplitMix64,
}

impl Iterator for WorkloadRequests<'_> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let arrival_us = loop {
            if let Some(arrival_us) = self.arrivals.next() {
                break arrival_us;
            }
            let (requests, rest) = self.blocks.split_first()?;
            self.blocks = rest;
            let begin = self.block * BLOCK_US;
            let mut arrivals: Vec<u64> =
                (0..*requests).map(|_| begin + self.stream.below(BLOCK_US)).collect();
            arrivals.sort_unstable();
            // Time is counted from the first row, so that one is at 0.
            if self.block == 0
                && let Some(first) = arrivals.first_mut()
            {
                *first = 0;
            }
            self.block += 1;
            self.arrivals = arrivals.into_iter();
        };
        let mut tokens = |table: &Quantiles| {
            u32::try_from(quantile(table, self.stream.below(1_000_001))).unwrap_or(u32::MAX)
        };
        let (context_tokens, generated_tokens) = (tokens(CONTEXT_TOKENS), tokens(GENERATED_TOKENS));
        let request = Request { index: self.index, arrival_us, context_tokens, generated_tokens };
        self.index += 1;
        Some(request)
    }
}

/// Where the requests of a run come from: a trace file or the built-in workload.
#[derive(Debug, Clone)]
pub enum Input {
    /// `--trace FILE`.
    Trace(TraceFile),
    /// `--workload SEED`, and the default.
    Builtin(Workload, WorkloadSummary),
}

impl Input {
    /// Scans a trace file.
    pub fn trace(path: &Path, skip_bad_rows: bool) -> Result<Input, TraceError> {
        TraceFile::scan(path, skip_bad_rows).map(Input::Trace)
    }

    /// Plans and counts the workload of `seed`.
    pub fn builtin(seed: u64) -> Input {
        let workload = Workload::new(seed);
        let summary = workload.summary();
        Input::Builtin(workload, summary)
    }

    /// What the report calls it: the file as it was named, or "built-in workload, seed N".
    pub fn source(&self) -> String {
        match self {
            Input::Trace(file) => file.path.display().to_string(),
            Input::Builtin(workload, _) => format!("built-in workload, seed {}", workload.seed),
        }
    }

    /// Requests.
    pub fn rows(&self) -> u64 {
        match self {
            Input::Trace(file) => file.summary.rows,
            Input::Builtin(_, summary) => summary.rows,
        }
    }

    /// SHA-256 of the file, or of the workload written as one.
    pub fn sha256(&self) -> &str {
        match self {
            Input::Trace(file) => &file.summary.sha256,
            Input::Builtin(_, summary) => &summary.sha256,
        }
    }

    /// Rows left out, and the texts of the first ones.
    pub fn bad_rows(&self) -> (u64, &[String]) {
        match self {
            Input::Trace(file) => (file.summary.bad_rows, &file.summary.bad_row_samples),
            Input::Builtin(..) => (0, &[]),
        }
    }

    /// The block of the last request, counted from 1, with blocks of `block_us` microseconds (at least 1).
    pub fn last_block(&self, block_us: u64) -> u64 {
        let span_us = match self {
            Input::Trace(file) => file.summary.span_us,
            Input::Builtin(_, summary) => summary.span_us,
        };
        span_us / block_us.max(1) + 1
    }

    /// The requests from the first row, in bounded memory.
    pub fn requests(&self) -> Result<Requests<'_>, TraceError> {
        Ok(match self {
            Input::Trace(file) => Box::new(file.requests()?),
            Input::Builtin(workload, _) => Box::new(workload.requests().map(Ok)),
        })
    }
}

/// The requests of an [`Input`].
pub type Requests<'a> = Box<dyn Iterator<Item = Result<Request, TraceError>> + Send + 'a>;

#[cfg(test)]
mod tests {
    use super::super::trace::{TraceReader, scan_bytes};
    use super::*;

    const SEEDS: [u64; 8] = [DEFAULT_WORKLOAD_SEED, 0, 2, 3, 42, 1_000_003, u64::MAX - 1, u64::MAX];

    fn per_block(requests: impl Iterator<Item = Request>) -> Vec<u64> {
        let mut blocks = Vec::new();
        for request in requests {
            let block = usize::try_from(request.arrival_us / BLOCK_US).expect("small");
            blocks.resize(blocks.len().max(block + 1), 0);
            blocks[block] += 1;
        }
        blocks
    }

    fn percentile(sorted: &[u32], per_cent: usize) -> u32 {
        sorted[(sorted.len() - 1) * per_cent / 100]
    }

    #[test]
    fn split_mix_gives_the_published_values() {
        let mut stream = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..5).map(|_| stream.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn below_stays_below_and_reaches_every_value_about_equally() {
        let mut stream = SplitMix64::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[usize::try_from(stream.below(6)).expect("small")] += 1;
        }
        assert!(seen.iter().all(|count| (9_500..10_500).contains(count)), "{seen:?}");
        assert_eq!(stream.below(0), 0);
        assert_eq!(stream.below(1), 0);
    }

    #[test]
    fn keyed_streams_differ_by_each_part_order_and_length() {
        let keys: [&[u64]; 7] = [&[], &[0], &[0, 0], &[1, 2], &[2, 1], &[1, 2, 0], &[1, 3]];
        let mut firsts: Vec<u64> = keys.iter().map(|key| SplitMix64::keyed(key).next_u64()).collect();
        assert_eq!(firsts, keys.map(|key| SplitMix64::keyed(key).next_u64()));
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), keys.len());
    }

    #[test]
    fn every_seed_has_the_exact_shape_of_the_trace() {
        for seed in SEEDS {
            let workload = Workload::new(seed);
            let blocks = per_block(workload.requests());
            assert_eq!(blocks, workload.blocks, "seed {seed}");
            assert_eq!(blocks.len(), 688, "seed {seed}");
            assert_eq!(blocks.iter().filter(|requests| **requests == 0).count(), 430, "seed {seed}");
            assert_eq!(blocks.iter().sum::<u64>(), 8_819, "seed {seed}");
            assert_eq!(blocks.iter().filter(|requests| **requests >= 164).count(), 1, "seed {seed}");
            assert_eq!(blocks.iter().max(), Some(&268), "seed {seed}");
            let runs = blocks.split(|requests| *requests == 0).filter(|run| !run.is_empty()).count();
            assert_eq!(runs, 49, "seed {seed}");
            let first = workload.requests().next().expect("first");
            assert_eq!((first.index, first.arrival_us), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn token_counts_and_bursts_are_close_to_the_fitted_figures() {
        for seed in SEEDS {
            let workload = Workload::new(seed);
            let mut context: Vec<u32> = workload.requests().map(|request| request.context_tokens).collect();
            let mut generated: Vec<u32> =
                workload.requests().map(|request| request.generated_tokens).collect();
            context.sort_unstable();
            generated.sort_unstable();
            let mean = |values: &[u32]| values.iter().map(|v| u64::from(*v)).sum::<u64>() * 100 / ROWS;
            let (context_mean, generated_mean) = (mean(&context), mean(&generated));
            let mut busy: Vec<u64> = workload.blocks.iter().copied().filter(|n| *n > 0).collect();
            busy.sort_unstable();
            let longest_pause =
                workload.blocks.split(|requests| *requests > 0).map(<[u64]>::len).max().unwrap_or(0);
            println!(
                "seed {seed}: context mean {context_mean} (204785) median {} (1469) p90 {} (5186); \
                 generated mean {generated_mean} (2788) median {} (13) p95 {} (90) p99 {} (252); \
                 busy block median {} (28) p90 {} (67); longest pause {longest_pause} (42)",
                percentile(&context, 50),
                percentile(&context, 90),
                percentile(&generated, 50),
                percentile(&generated, 95),
                percentile(&generated, 99),
                busy[busy.len() / 2],
                busy[busy.len() * 9 / 10],
            );
            assert!((196_000..214_000).contains(&context_mean), "seed {seed}");
            assert!((1_350..1_590).contains(&percentile(&context, 50)), "seed {seed}");
            assert!((4_900..5_500).contains(&percentile(&context, 90)), "seed {seed}");
            assert!((2_550..3_250).contains(&generated_mean), "seed {seed}");
            assert!((12..=14).contains(&percentile(&generated, 50)), "seed {seed}");
            assert!((76..=108).contains(&percentile(&generated, 95)), "seed {seed}");
            assert!((200..=340).contains(&percentile(&generated, 99)), "seed {seed}");
            assert!((25..=32).contains(&busy[busy.len() / 2]), "seed {seed}");
            assert!((58..=76).contains(&busy[busy.len() * 9 / 10]), "seed {seed}");
            assert!((30..=50).contains(&longest_pause), "seed {seed}");
            assert!(context[0] >= 3 && context[context.len() - 1] <= 7_437);
            assert!(generated[0] >= 6 && generated[generated.len() - 1] <= 1_899);
        }
    }

    #[test]
    fn requests_are_in_order_numbered_and_the_same_each_time() {
        let workload = Workload::new(5);
        let requests: Vec<Request> = workload.requests().collect();
        assert!(requests.windows(2).all(|pair| pair[0].arrival_us <= pair[1].arrival_us));
        assert!((0u64..).zip(&requests).all(|(index, request)| request.index == index));
        assert_eq!(requests, Workload::new(5).requests().collect::<Vec<_>>());
        assert_ne!(requests, Workload::new(6).requests().collect::<Vec<_>>());
    }

    #[test]
    fn the_default_seed_gives_the_same_bytes_on_every_platform() {
        let summary = Workload::new(DEFAULT_WORKLOAD_SEED).summary();
        assert_eq!(summary.sha256, "66708697ff37c73efab8ef324434780a981cdfc6a657e379afc951b08250477c");
        assert_eq!((summary.rows, summary.blocks, summary.empty_blocks), (8_819, 688, 430));
        assert_eq!(summary.peak_block_requests, 268);
        assert_eq!(summary.span_us / BLOCK_US, 687);
    }

    #[test]
    fn the_written_trace_reads_back_as_the_same_requests_and_digest() {
        let workload = Workload::new(9);
        let mut csv = Vec::new();
        workload.write_csv(&mut csv).expect("write");
        let summary = scan_bytes("w.csv", csv.as_slice(), false).expect("scan");
        assert_eq!(summary.sha256, workload.summary().sha256);
        assert_eq!(summary.span_us, workload.summary().span_us);
        let read: Vec<Request> = TraceReader::from_bytes("w.csv", csv.as_slice(), &summary, false)
            .expect("open")
            .collect::<Result<_, _>>()
            .expect("rows");
        assert_eq!(read, workload.requests().collect::<Vec<_>>());
    }

    #[test]
    fn an_input_gives_the_same_requests_from_a_file_and_from_the_generator() {
        let builtin = Input::builtin(9);
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("workload.csv");
        let mut csv = Vec::new();
        Workload::new(9).write_csv(&mut csv).expect("write");
        std::fs::write(&path, csv).expect("file");
        let file = Input::trace(&path, false).expect("scan");
        let read = |input: &Input| -> Vec<Request> {
            input.requests().expect("open").collect::<Result<_, _>>().expect("rows")
        };
        assert_eq!(read(&file), read(&builtin));
        assert_eq!(file.sha256(), builtin.sha256());
        assert_eq!((file.rows(), builtin.rows()), (8_819, 8_819));
        assert_eq!((file.last_block(BLOCK_US), builtin.last_block(BLOCK_US)), (688, 688));
        assert_eq!(builtin.last_block(0), builtin.last_block(1));
        assert_eq!(builtin.source(), "built-in workload, seed 9");
        assert_eq!(builtin.bad_rows().0, 0);
    }

    #[test]
    fn six_in_ten_requests_ask_for_the_first_model() {
        let first = (0..10_000).filter(|request| model_of_request(1, *request, 2) == 0).count();
        assert!((5_850..6_150).contains(&first), "{first}");
        let mut of_three = [0u32; 3];
        for request in 0..10_000 {
            of_three[model_of_request(1, request, 3)] += 1;
        }
        assert!(of_three[1].abs_diff(of_three[2]) < 300, "{of_three:?}");
        assert_eq!(model_of_request(1, 5, 1), 0);
        assert_eq!(model_of_request(1, 5, 0), 0);
    }

    /// Prints the same figures for a real trace: `HOLDFAST_TRACE=FILE cargo test -- --ignored --nocapture real_trace`.
    #[test]
    #[ignore = "needs a trace file named in HOLDFAST_TRACE; none is shipped"]
    fn figures_of_a_real_trace() {
        let path = std::env::var_os("HOLDFAST_TRACE").expect("HOLDFAST_TRACE names a trace file");
        let file = super::super::trace::TraceFile::scan(path.as_ref(), false).expect("scan");
        let requests: Vec<Request> = file.requests().expect("open").collect::<Result<_, _>>().expect("rows");
        let blocks = per_block(requests.into_iter());
        let empty = blocks.iter().filter(|requests| **requests == 0).count();
        println!("{:?}", file.summary);
        println!("blocks {} empty {empty} peak {:?}", blocks.len(), blocks.iter().max());
        assert_eq!(blocks.iter().sum::<u64>(), file.summary.rows);
    }
}
