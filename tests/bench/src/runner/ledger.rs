//! What the ledger writes and syncs.

use super::scheduler::scheduled;
use super::*;

pub(super) fn raw_file(dir: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).append(true).open(dir.join("raw"))?)
}

/// Microseconds of `count` appends of `bytes`, each synced.
pub(super) fn raw_syncs(dir: &Path, bytes: usize, count: u32) -> Result<Vec<f64>> {
    let mut file = raw_file(dir)?;
    let block = vec![0x5a; bytes];
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Iterations in a second of `batch` sessions: results of the last one and intents of this one, one flush.
pub(super) struct Iterations {
    pub(super) ledger: IdempotencyLedger,
    pub(super) sessions: Vec<KvKey>,
    pub(super) step: u32,
}

impl Iterations {
    pub(super) fn new(folder: &Path, batch: usize, durability: Durability) -> Result<Self> {
        let settings = LedgerConfig { durability, ..LedgerConfig::default() };
        let (mut ledger, _) = IdempotencyLedger::open(FileStore::open(folder)?, settings, clock().as_ref())?;
        let sessions: Vec<KvKey> = (0..batch).map(|number| KvKey::new(session(number), 0)).collect();
        for key in &sessions {
            ledger.epoch_opened(EpochOpened {
                key: *key,
                generation: ledger.generation(),
                inference_id: "bench".to_owned(),
                model_digest: [1; 32],
                prompt_digest: [2; 32],
                prompt_tokens: PROMPT,
                sampling: Sampling::GREEDY,
                shards: vec!["bench".to_owned()],
            })?;
        }
        ledger.flush()?;
        Ok(Self { ledger, sessions, step: 0 })
    }

    pub(super) fn rate(&mut self, count: u32) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..count {
            for key in &self.sessions {
                if let Some(last) = self.step.checked_sub(1) {
                    self.ledger.commit(StepKey::new(*key, last), Some(last % 256), digest(last))?;
                }
                self.ledger.begin(StepKey::new(*key, self.step), digest(self.step))?;
            }
            self.ledger.flush()?;
            self.step += 1;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }
}

pub(super) fn digest(step: u32) -> Digest {
    let mut digest = [0x5a; 32];
    digest[..4].copy_from_slice(&step.to_le_bytes());
    digest
}

pub(super) fn ledger(size: Size, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let mut details = serde_json::Map::new();
    for batch in [1_usize, 16] {
        for (name, durability, count) in
            [("process", Durability::Process, size.iterations), ("power", Durability::Power, size.syncs)]
        {
            let folder = tempfile::tempdir_in(dir)?;
            let mut iterations = Iterations::new(folder.path(), batch, durability)?;
            // What an iteration writes: from the second on they are alike.
            iterations.rate(1)?;
            let before = folder_bytes(folder.path());
            iterations.rate(1)?;
            let bytes = (folder_bytes(folder.path()) - before) as usize;
            let mut raw = raw_file(folder.path())?;
            let block = vec![0x5a; bytes];
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..size.ledger_rounds {
                ours.push(iterations.rate(count)?);
                let begun = Instant::now();
                for _ in 0..count {
                    raw.write_all(&block)?;
                    if durability == Durability::Power {
                        raw.sync_data()?;
                    }
                }
                theirs.push(f64::from(count) / begun.elapsed().as_secs_f64());
            }
            let peer = if durability == Durability::Power { "raw fdatasync" } else { "raw write" };
            let steps = |rates: &[f64]| median(rates) * batch as f64;
            rows.push(Row::new(&format!("ledger.{name}.batch_{batch}"), "steps/s", steps(&ours)).against(
                peer,
                steps(&theirs),
                Better::Higher,
            ));
            details.insert(
                format!("{name}_{batch}"),
                json!({ "bytes": bytes, "iterations_per_s": ours, "raw_per_s": theirs }),
            );
        }
    }
    // The whole runner, each iteration synced.
    let ours = scheduled(Repeated::whole(1)?, AT_ONCE, size.tokens.min(32), Durability::Power, dir)?;
    let raw = 1e6 / median(&raw_syncs(dir, 16 * 2 * FRAME, 101)?);
    rows.push(Row::new("ledger.power.runner_64_sessions", "steps/s", ours.rate).against(
        "raw fdatasync",
        raw,
        Better::Higher,
    ));
    Ok(details.into())
}
