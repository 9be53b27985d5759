//! The state database under the peers' block workload.
//!
//! Keys and values are made outside the clock. A block's time runs from its first write, into a branch over the latest
//! snapshot, to the return of the synced commit. Tree, flat table and history are all written, nothing is pruned.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_app::state::{CommitStore, DiskStore, StateOptions, StateView};
use holdfast_store::{BranchKv, KvRead, KvWrite, Order};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::workload::{SEED, Workload, Write};
use crate::{Better, Row, median, percentile};

const MODULE: &str = "bench";
const UPDATES: usize = 1_000;
const LOAD_BATCH: u64 = 100_000;
const READS: usize = 200_000;
const PROOFS: usize = 2_000;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Keys to load.
    pub keys: u64,
    /// Blocks of a thousand updates.
    pub blocks: usize,
}

impl Size {
    /// A million keys and fifty blocks: the published one.
    pub const FULL: Self = Self { keys: 1_000_000, blocks: 50 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { keys: 20_000, blocks: 5 };
}

/// What a run measured. Times are wall clock. Field names are the peers'.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Median time of a block.
    pub block_ms_median: f64,
    /// Nearest-rank 99th percentile.
    pub block_ms_p99: f64,
    /// Processor time of this process per block, background work included.
    pub block_cpu_ms_mean: f64,
    /// Share of the machine that other processes used meanwhile, 0 to 1.
    pub others_busy_in_blocks: f64,
    /// Append 4 KiB and sync: the floor under a durable commit.
    pub fsync_probe_ms_median: f64,
    /// The load, commits included.
    pub load_s: f64,
    /// Mean point read.
    pub point_read_ns: f64,
    /// Mean proof.
    pub proof_us: f64,
    /// One ascending pass.
    pub iterate_keys_per_s: f64,
    /// Database files at the end.
    pub disk_bytes: f64,
    /// Bytes handed to write calls during the blocks.
    pub written_bytes_in_blocks: f64,
    /// Peak resident memory.
    pub peak_rss_bytes: f64,
    /// Keys present at the end.
    pub final_keys: u64,
    /// Over every write in order.
    pub workload_sha256: String,
    /// Over the final state in key order.
    pub state_sha256: String,
    /// Median time spent on computing the trees; the peers have no such split.
    #[serde(default)]
    pub prepare_ms_median: f64,
}

/// Runs the workload on a fresh database in a temporary folder.
pub fn run(size: Size) -> Result<Measured> {
    let dir = tempfile::Builder::new().prefix("holdfast-bench-").tempdir()?;
    let fsync_probe_ms_median = fsync_probe(dir.path())?;
    let store = DiskStore::open(dir.path().join("state"), &[MODULE], StateOptions::default())?;
    let mut work = Workload::new(SEED);
    let mut all = Sha256::new();
    let mut height = 0;

    let mut load = Duration::ZERO;
    while work.count < size.keys {
        let batch: Vec<Write> =
            (work.count..size.keys.min(work.count + LOAD_BATCH)).map(|_| work.next_load()).collect();
        record(&mut all, &batch);
        height += 1;
        let (took, _) = block(&store, height, &batch)?;
        load += took;
    }
    settle(dir.path());

    let written_before = proc_number("/proc/self/io", "wchar");
    let (mut times, mut prepares) = (Vec::new(), Vec::new());
    let (mut cpu, mut others) = (0.0, Vec::new());
    for _ in 0..size.blocks {
        let batch: Vec<Write> = (0..UPDATES).map(|_| work.next_update()).collect();
        record(&mut all, &batch);
        height += 1;
        let before = Sample::take();
        let (took, prepare) = block(&store, height, &batch)?;
        let (own, busy) = before.since();
        cpu += own;
        others.push(busy);
        times.push(ms(took));
        prepares.push(ms(prepare));
    }
    settle(dir.path());
    let written_bytes_in_blocks = proc_number("/proc/self/io", "wchar") - written_before;

    // Point reads and proofs of keys that are present.
    let view = store.snapshot();
    let keys: Vec<[u8; 32]> = (0..READS).map(|_| work.next_read()).collect();
    let full: Vec<Vec<u8>> = keys.iter().map(full_key).collect();
    let begun = Instant::now();
    for key in &full {
        ensure!(view.get(key)?.is_some_and(|v| v.len() == 40), "a key that was written is not there");
    }
    let point_read_ns = begun.elapsed().as_nanos() as f64 / READS as f64;
    let begun = Instant::now();
    for key in keys.iter().take(PROOFS) {
        ensure!(store.prove(height, MODULE, key)?.value.is_some(), "no proof of presence");
    }
    let proof_us = begun.elapsed().as_nanos() as f64 / 1e3 / PROOFS as f64;
    store.prove(height, MODULE, &keys[0])?.verify(&view.app_hash())?;

    let begun = Instant::now();
    let mut seen = 0u64;
    for row in view.scan(b"", None, Order::Ascending) {
        std::hint::black_box(row?);
        seen += 1;
    }
    let iterate_keys_per_s = seen as f64 / begun.elapsed().as_secs_f64();
    ensure!(seen == work.count, "iterated {seen} keys of {}", work.count);

    let mut state = Sha256::new();
    for row in view.scan(b"", None, Order::Ascending) {
        let (key, value) = row?;
        state.update(key.strip_prefix(b"bench/").context("a key of another module")?);
        state.update(value);
    }
    Ok(Measured {
        block_ms_median: median(&times),
        block_ms_p99: percentile(&times, 99),
        block_cpu_ms_mean: cpu / size.blocks.max(1) as f64,
        others_busy_in_blocks: others.iter().sum::<f64>() / others.len().max(1) as f64,
        fsync_probe_ms_median,
        load_s: load.as_secs_f64(),
        point_read_ns,
        proof_us,
        iterate_keys_per_s,
        disk_bytes: folder_bytes(dir.path()) as f64,
        written_bytes_in_blocks,
        peak_rss_bytes: proc_number("/proc/self/status", "VmHWM") * 1024.0,
        final_keys: work.count,
        workload_sha256: hex::encode(all.finalize()),
        state_sha256: hex::encode(state.finalize()),
        prepare_ms_median: median(&prepares),
    })
}

fn full_key(key: &[u8; 32]) -> Vec<u8> {
    [b"bench/".as_slice(), key].concat()
}

fn record(all: &mut Sha256, batch: &[Write]) {
    for write in batch {
        all.update(write.key);
        all.update(write.value);
    }
}

/// One block; total time and the part that computed the trees.
fn block(store: &DiskStore, height: i64, batch: &[Write]) -> Result<(Duration, Duration)> {
    let keys: Vec<Vec<u8>> = batch.iter().map(|w| full_key(&w.key)).collect();
    let begun = Instant::now();
    let view = store.snapshot();
    let mut branch = BranchKv::new(&view);
    for (key, write) in keys.iter().zip(batch) {
        branch.set(key, &write.value)?;
    }
    let writes = branch.into_writes();
    let at = Instant::now();
    let prepared = store.prepare(height, &writes)?;
    let prepare = at.elapsed();
    store.commit(prepared)?;
    Ok((begun.elapsed(), prepare))
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// Median time to append 4 KiB and sync, in the folder that holds the database.
pub fn fsync_probe(dir: &Path) -> Result<f64> {
    let path = dir.join("probe");
    let mut file = File::create(&path)?;
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_all()?;
        times.push(ms(begun.elapsed()));
    }
    fs::remove_file(path)?;
    Ok(median(&times))
}

/// Waits until the folder's size has been still for three seconds, at most 90: background work of the load is done.
pub(crate) fn settle(dir: &Path) {
    let (mut last, mut still) = (u64::MAX, 0);
    for _ in 0..90 {
        if still == 3 {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        let now = folder_bytes(dir);
        still = if now == last { still + 1 } else { 0 };
        last = now;
    }
}

pub(crate) fn folder_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The number behind `name:` in a file of `/proc`; 0 where there is none.
fn proc_number(file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

/// Processor time of this process and of the machine, in milliseconds.
struct Sample {
    at: Instant,
    own: f64,
    busy: f64,
}

impl Sample {
    /// The kernel counts in hundredths of a second.
    const TICK_MS: f64 = 10.0;

    fn take() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The command name, in parentheses, may hold blanks. User and system time are fields 14 and 15 of the line.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let own: f64 = after.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum();
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = machine.lines().next().unwrap_or_default();
        // cpu user nice system idle iowait irq softirq steal: all but idle and iowait.
        let busy: f64 = line
            .split_whitespace()
            .enumerate()
            .filter(|(i, _)| matches!(i, 1..=3 | 6..=8))
            .filter_map(|(_, f)| f.parse::<f64>().ok())
            .sum();
        Self { at: Instant::now(), own: own * Self::TICK_MS, busy: busy * Self::TICK_MS }
    }

    /// Own milliseconds since, and the share of the machine that others used.
    fn since(&self) -> (f64, f64) {
        let now = Self::take();
        let own = now.own - self.own;
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let wall = ms(now.at - self.at) * cpus;
        (own, ((now.busy - self.busy - own) / wall.max(1e-9)).max(0.0))
    }
}

/// A peer's run: its name and what it measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peer {
    /// Program, layer and backend.
    pub peer_name: String,
    /// Its numbers.
    #[serde(flatten)]
    pub measured: Measured,
}

/// Runs the peer in `peers/store` (Go) out of a copy: the folder may be read-only.
pub fn run_peer(peers: &Path, size: Size) -> Result<Vec<Peer>> {
    let copied = tempfile::tempdir()?;
    for entry in fs::read_dir(peers.join("store"))
        .with_context(|| format!("{} has no store folder", peers.display()))?
    {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::write(copied.path().join(entry.file_name()), fs::read(entry.path())?)?;
        }
    }
    let output = Command::new("go")
        .args(["run", ".", "-runs", "1", "-configs", "iavl/goleveldb"])
        .args(["-keys", &size.keys.to_string(), "-blocks", &size.blocks.to_string()])
        .current_dir(copied.path())
        .output()
        .context("go does not start: install Go, or leave --peers out")?;
    if !output.status.success() {
        bail!("the peer failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    parse_peer(&String::from_utf8(output.stdout)?)
}

/// Reads the peer's JSON lines.
fn parse_peer(text: &str) -> Result<Vec<Peer>> {
    let mut out = Vec::new();
    for line in text.lines().filter(|l| l.starts_with('{')) {
        let value: serde_json::Value = serde_json::from_str(line)?;
        if value["kind"] != "run" {
            continue;
        }
        let word = |name: &str| value[name].as_str().unwrap_or("?").to_owned();
        out.push(Peer {
            peer_name: format!("{} {}/{}", word("peer"), word("layer"), word("backend")),
            measured: serde_json::from_value(value.clone()).context("the peer's line lacks a field")?,
        });
    }
    ensure!(!out.is_empty(), "the peer printed no run");
    Ok(out)
}

/// Rows of our run, beside each peer's. Fails when a peer did other work than we did.
pub fn rows(ours: &Measured, peers: &[Peer]) -> Result<Vec<Row>> {
    for peer in peers {
        let same = peer.measured.workload_sha256 == ours.workload_sha256
            && peer.measured.state_sha256 == ours.state_sha256
            && peer.measured.final_keys == ours.final_keys;
        ensure!(same, "{} did other work: its digests differ", peer.peer_name);
    }
    type Field = (&'static str, &'static str, Better, fn(&Measured) -> f64);
    let fields: [Field; 11] = [
        ("store.block_median", "ms", Better::Lower, |m| m.block_ms_median),
        ("store.block_p99", "ms", Better::Lower, |m| m.block_ms_p99),
        ("store.block_cpu", "ms", Better::Lower, |m| m.block_cpu_ms_mean),
        ("store.point_read", "ns", Better::Lower, |m| m.point_read_ns),
        ("store.proof", "us", Better::Lower, |m| m.proof_us),
        ("store.iterate", "keys/s", Better::Higher, |m| m.iterate_keys_per_s),
        ("store.load", "s", Better::Lower, |m| m.load_s),
        ("store.disk", "bytes", Better::Lower, |m| m.disk_bytes),
        ("store.written_in_blocks", "bytes", Better::Lower, |m| m.written_bytes_in_blocks),
        ("store.peak_rss", "bytes", Better::Lower, |m| m.peak_rss_bytes),
        ("store.fsync_probe", "ms", Better::Lower, |m| m.fsync_probe_ms_median),
    ];
    let mut out = Vec::new();
    for (name, unit, better, field) in fields {
        let row = Row::new(name, unit, field(ours));
        if peers.is_empty() {
            out.push(row);
        } else {
            out.extend(peers.iter().map(|p| row.clone().against(&p.peer_name, field(&p.measured), better)));
        }
    }
    out.push(Row::new("store.prepare_median", "ms", ours.prepare_ms_median));
    out.push(Row::new("store.others_busy", "share", ours.others_busy_in_blocks));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_does_the_published_work() {
        let measured = run(Size { keys: 1_000, blocks: 1 }).unwrap();
        assert_eq!(measured.final_keys, 1_110);
        assert_eq!(
            measured.workload_sha256,
            "0dd4158114a6f6622d5eb67a06881079e771959caf8f46e7bbaae2b6d8fc0af4"
        );
        assert_eq!(measured.state_sha256, "1447e75b1fa932f399933ba3bebaccb13dae6521681cabcbf293f30f0bf5652e");
        assert!(measured.block_ms_median > 0.0 && measured.disk_bytes > 0.0);

        // The peer's lines are read whole, and other work is not compared.
        let mut line = serde_json::to_value(&measured).unwrap();
        for (name, word) in
            [("kind", "run"), ("peer", "iavl v1"), ("layer", "iavl"), ("backend", "goleveldb")]
        {
            line[name] = word.into();
        }
        let peers = parse_peer(&format!("go: note\n{line}\n")).unwrap();
        assert_eq!(peers[0].peer_name, "iavl v1 iavl/goleveldb");
        let compared = rows(&measured, &peers).unwrap();
        assert_eq!(compared[0].name, "store.block_median");
        // The peer's time went through decimal text and may have lost its last bit.
        assert!(compared[0].ratio.is_some_and(|ratio| (ratio - 1.0).abs() < 1e-9), "{:?}", compared[0].ratio);
        let mut other = peers;
        other[0].measured.state_sha256.clear();
        assert!(rows(&measured, &other).is_err());
        assert!(parse_peer("").is_err());
    }
}
