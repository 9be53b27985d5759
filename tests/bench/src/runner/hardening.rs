//! What hardening costs: one session through the runner beside the bare model.

use super::ledger::raw_syncs;
use super::*;

/// What one kind of generation took, over all rounds.
#[derive(Default)]
pub(super) struct Arm {
    pub(super) gaps: Vec<f64>,
    pub(super) cpu: Vec<f64>,
    pub(super) around: Vec<f64>,
}

impl Arm {
    pub(super) fn add(&mut self, run: Generated, tokens: &mut Option<Vec<u32>>) -> Result<()> {
        ensure!(*tokens.get_or_insert_with(|| run.tokens.clone()) == run.tokens, "other tokens");
        self.gaps.extend(run.gaps);
        self.cpu.push(run.cpu);
        self.around.push(run.around);
        Ok(())
    }

    pub(super) fn gap(&self) -> f64 {
        median(&self.gaps)
    }

    pub(super) fn cpu(&self) -> f64 {
        median(&self.cpu)
    }

    pub(super) fn details(&self) -> Value {
        json!({
            "gap_us": { "p50": self.gap(), "p99": percentile(&self.gaps, 99), "mean": mean(&self.gaps) },
            "cpu_us": self.cpu(),
            "around_ms": median(&self.around),
        })
    }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

pub(super) fn percent(ours: f64, bare: f64) -> f64 {
    (ours / bare - 1.0) * 100.0
}

/// The bare model, calls to its shard, the runner with its ledger in memory, and with it in a folder.
pub(super) struct Hardening {
    pub(super) arms: [Arm; 4],
}

pub(super) fn harden(
    model: u32,
    compute: Compute,
    rounds: usize,
    tokens: u32,
    dir: &Path,
) -> Result<Hardening> {
    let mut arms: [Arm; 4] = Default::default();
    let bare_model = Repeated::whole(model)?;
    one_thread()?.block_on(async {
        let shards = [(); 3].map(|()| Repeated::whole(model).map(|model| local(model, compute)));
        let [called, in_memory, in_folder] = shards;
        let called = called?;
        let folder = tempfile::tempdir_in(dir)?;
        let memory = start(None, Durability::Process, vec![in_memory?])?;
        let file = start(Some(folder.path()), Durability::Process, vec![in_folder?])?;
        let mut expected = None;
        for round in 0..rounds {
            for turn in 0..arms.len() {
                let at = (round + turn) % arms.len();
                let id = round.to_string();
                let run = match at {
                    0 => bare(&bare_model, tokens)?,
                    1 => by_shard(called.as_ref(), round, tokens).await?,
                    2 => by_runner(&memory.handle, &id, tokens).await?,
                    _ => by_runner(&file.handle, &id, tokens).await?,
                };
                arms[at].add(run, &mut expected)?;
                // What the runner still has to do after an end is not the next one's.
                while [&memory, &file]
                    .iter()
                    .any(|runner| runner.handle.usage().iter().any(|(_, usage)| !usage.keys.is_empty()))
                {
                    tokio::task::yield_now().await;
                }
            }
        }
        memory.stop().await?;
        file.stop().await
    })?;
    Ok(Hardening { arms })
}

pub(super) fn hardening(size: Size, slow: u32, dir: &Path, rows: &mut Vec<Row>) -> Result<Value> {
    let mut details = serde_json::Map::new();
    let raw_sync_ms = median(&raw_syncs(dir, FRAME, 101)?) / 1e3;
    let kinds = [
        ("reference", 1, Compute::Inline, size.rounds),
        ("1ms", slow, Compute::Inline, size.slow_rounds),
        ("1ms_threaded", slow, Compute::Threaded, size.slow_rounds),
    ];
    for (name, times, compute, rounds) in kinds {
        let Hardening { arms: [bare, shard, memory, file] } =
            harden(times, compute, rounds, size.tokens, dir)?;
        let row =
            |what: &str, unit: &str, value: f64| Row::new(&format!("runner.{name}.{what}"), unit, value);
        rows.push(row("token", "us", file.gap()).against("bare forward", bare.gap(), Better::Lower));
        rows.push(row("overhead", "%", percent(file.gap(), bare.gap())).below(OVERHEAD));
        rows.push(row("overhead_cpu", "%", percent(file.cpu(), bare.cpu())).below(OVERHEAD));
        if times == 1 {
            rows.push(row("part_shard", "us", shard.gap() - bare.gap()));
            rows.push(row("part_session", "us", memory.gap() - shard.gap()));
            rows.push(row("part_write", "us", file.gap() - memory.gap()));
            let around = median(&file.around) - median(&bare.around);
            rows.push(row("begin_and_end", "ms", around).against(
                "two raw fdatasync",
                2.0 * raw_sync_ms,
                Better::Lower,
            ));
        }
        let all = [("bare", bare), ("shard", shard), ("runner_memory", memory), ("runner", file)];
        details.insert(name.into(), all.map(|(arm, of)| json!({ arm: of.details() })).to_vec().into());
    }
    Ok(details.into())
}
