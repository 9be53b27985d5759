//! Start and Finish through FinalizeBlock and Commit, on disk, beside the raw rate of signature verification.
//!
//! FinalizeBlock ends with the state root; Commit writes everything to disk and syncs.
//!
//! Each block holds as many starts as finishes; the finishes answer the starts of the block before. Every gateway and every
//! executor of a block signs once in it. Transactions are signed outside the clock.
//!
//! `own_thread` rows count the processor time of the thread that calls FinalizeBlock, its share of the parallel work included:
//! on an idle machine about what elapses.
//!
//! Two kinds of blocks take turns: in `cold` ones no transaction was seen before, so FinalizeBlock verifies all signatures; in
//! `checked` ones each went through CheckTx before, as it does on a node that had it in its pool.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::measure::{Took, timed};
use crate::scene::{Scene, all_succeeded};
use crate::signatures::{checks, verify_all};
use crate::{Better, Outcome, Row, median};

/// Microseconds a message may take.
const MESSAGE_US: f64 = 200.0;
/// Least share of one thread's verify rate.
const RAW_SHARE: f64 = 0.5;
/// How much more a message may cost with ten times as many participants and still count as flat.
const FLAT: f64 = 1.5;

/// How much to do.
#[derive(Debug, Clone)]
pub struct Size {
    /// Numbers of participants, ascending.
    pub participants: &'static [usize],
    /// Starts in a block, and finishes.
    pub messages: usize,
    /// Blocks before the clock, at least one: its starts are what the next answers.
    pub warm_up: usize,
    /// Blocks of each kind.
    pub blocks: usize,
}

impl Size {
    /// The published one.
    pub const FULL: Self = Self { participants: &[1_000, 10_000], messages: 1_000, warm_up: 3, blocks: 7 };
    /// A check that everything runs.
    pub const QUICK: Self = Self { participants: &[20, 50], messages: 20, warm_up: 1, blocks: 2 };
}

/// What the blocks of one kind took, per message.
#[derive(Debug, Default)]
struct Kind {
    finalize_us: Vec<f64>,
    finalize_cpu_us: Vec<f64>,
    finalize_own_us: Vec<f64>,
    commit_us: Vec<f64>,
    commit_cpu_us: Vec<f64>,
    total_us: Vec<f64>,
    total_cpu_us: Vec<f64>,
    check_us: Vec<f64>,
    check_cpu_us: Vec<f64>,
    raw_us: Vec<f64>,
    raw_cpu_us: Vec<f64>,
    /// Share of the raw rate in FinalizeBlock, block by block: both sides suffer alike from a busy machine.
    share: Vec<f64>,
    /// The same by processor time of the thread that calls.
    share_own: Vec<f64>,
    /// As `share`, with Commit.
    share_with_commit: Vec<f64>,
}

/// Runs every number of participants.
pub fn run(size: &Size) -> Result<Outcome> {
    let mut rows = Vec::new();
    let mut details = serde_json::Map::new();
    let mut first: Option<(usize, [f64; 2])> = None;
    for &participants in size.participants {
        let [cold, checked] = measure(size, participants)?;
        for (name, kind) in [("cold", &cold), ("checked", &checked)] {
            let row = |what: &str, value: f64| {
                Row::new(&format!("chain.{name}.{participants}.{what}"), "us", value)
            };
            let (total, raw) = (median(&kind.total_us), median(&kind.raw_us));
            rows.push(row("message", total).against("raw verify", raw, Better::Lower).below(MESSAGE_US));
            rows.push(row("finalize", median(&kind.finalize_us)));
            rows.push(row("finalize_cpu", median(&kind.finalize_cpu_us)));
            rows.push(row("finalize_own_thread", median(&kind.finalize_own_us)));
            rows.push(row("commit", median(&kind.commit_us)));
            rows.push(row("commit_cpu", median(&kind.commit_cpu_us)));
            rows.push(row("message_cpu", median(&kind.total_cpu_us)).against(
                "raw verify",
                median(&kind.raw_cpu_us),
                Better::Lower,
            ));
            let share = |what: &str, of: &[f64]| {
                Row::new(&format!("chain.{name}.{participants}.{what}"), "share", median(of))
            };
            // Asked of the fewest participants; of more, that they cost no more.
            let judged = |row: Row| if first.is_none() { row.at_least(RAW_SHARE) } else { row };
            rows.push(judged(share("share_of_raw", &kind.share)));
            rows.push(judged(share("share_of_raw_own_thread", &kind.share_own)));
            rows.push(share("share_of_raw_with_commit", &kind.share_with_commit));
            if !kind.check_us.is_empty() {
                rows.push(row("check_tx", median(&kind.check_us)).against("raw verify", raw, Better::Lower));
                rows.push(row("check_tx_cpu", median(&kind.check_cpu_us)));
            }
            let Kind { finalize_us, commit_us, total_us, total_cpu_us, raw_us, share, .. } = kind;
            details.insert(
                format!("{name}.{participants}"),
                serde_json::json!({ "finalize_us": finalize_us, "commit_us": commit_us, "total_us": total_us,
                    "total_cpu_us": total_cpu_us, "raw_us": raw_us, "share": share }),
            );
        }
        let cpu = [median(&cold.total_cpu_us), median(&checked.total_cpu_us)];
        match first {
            None => first = Some((participants, cpu)),
            // By processor time: the sizes run minutes apart.
            Some((few, before)) => {
                for (name, now, before) in [("cold", cpu[0], before[0]), ("checked", cpu[1], before[1])] {
                    let name = format!("chain.{name}.flat_{few}_to_{participants}");
                    rows.push(Row::new(&name, "times", now / before).at_most(FLAT));
                }
            }
        }
    }
    Ok(Outcome { rows, details: details.into() })
}

/// Runs the peer in `peers/txpipe` (Go) out of a copy: 2,000 signed transfers a block through cosmos-sdk's BaseApp, on disk. Gives
/// our messages beside its transactions.
pub fn run_peer(peers: &Path, ours: &Outcome, quick: bool) -> Result<Outcome> {
    let folder = peers.join("txpipe");
    let copied = tempfile::tempdir()?;
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("{} has no txpipe folder", peers.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::write(copied.path().join(entry.file_name()), std::fs::read(entry.path())?)?;
        }
    }
    let mut command = Command::new("go");
    command.args(["run", ".", "-runs", "1", "-backends", "goleveldb"]).current_dir(copied.path());
    if quick {
        command.args(["-txs", "20", "-blocks", "2", "-verifies", "200"]);
    }
    let output = command.output().context("go does not start: install Go, or leave --peers out")?;
    ensure!(output.status.success(), "the peer failed: {}", String::from_utf8_lossy(&output.stderr));
    compare(ours, &String::from_utf8(output.stdout)?)
}

/// Our rows beside the peer's line.
fn compare(ours: &Outcome, text: &str) -> Result<Outcome> {
    let line = text.lines().find(|line| line.starts_with('{')).context("the peer printed no run")?;
    let peer: serde_json::Value = serde_json::from_str(line)?;
    let number = |name: &str| peer[name].as_f64().with_context(|| format!("the peer's line lacks {name}"));
    let pairs = [
        ("message", number("us_per_tx")?),
        ("message_cpu", number("cpu_us_per_tx")?),
        ("share_of_raw_with_commit", number("block_tx_over_verify_limit")?),
        ("check_tx", number("checktx_us_per_tx")?),
    ];
    let mut rows = Vec::new();
    for row in &ours.rows {
        let Some((what, theirs)) = pairs.iter().find(|(what, _)| row.name.rsplit('.').next() == Some(what))
        else {
            continue;
        };
        let better = if *what == "share_of_raw_with_commit" { Better::Higher } else { Better::Lower };
        let name = format!("{}.vs_peer", row.name);
        rows.push(Row::new(&name, &row.unit, row.value).against("cosmos-sdk transfer", *theirs, better));
    }
    Ok(Outcome { rows, details: peer })
}

fn measure(size: &Size, participants: usize) -> Result<[Kind; 2]> {
    let mut scene = Scene::new(size.messages, participants, None)?;
    let raw = checks(size.messages.min(500));
    let mut kinds = [Kind::default(), Kind::default()];
    let mut answered: Vec<(usize, String)> = Vec::new();
    for number in 0..size.warm_up + 2 * size.blocks {
        let started: Vec<(usize, String)> = (0..size.messages)
            .map(|i| ((number * size.messages + i) % participants, format!("bench-{number}-{i}")))
            .collect();
        let mut txs = Vec::with_capacity(2 * size.messages);
        for (i, (executor, id)) in started.iter().enumerate() {
            txs.push(scene.start(i, *executor, id)?);
        }
        for (executor, id) in &answered {
            txs.push(scene.finish(*executor, id)?);
        }
        answered = started;
        let messages = txs.len();
        let block = scene.block(txs);
        let counted = number >= size.warm_up;
        let checked = (number - size.warm_up.min(number)) % 2 == 1;

        let (done, raw_took) = timed(|| verify_all(&raw));
        done?;
        let mut check_took = Took::default();
        if checked {
            let shared = scene.app.shared();
            let (done, took) = timed(|| block.txs.iter().try_for_each(|tx| shared.check_tx(tx).map(|_| ())));
            done.map_err(|e| anyhow::anyhow!("CheckTx: {e}"))?;
            check_took = took;
        }
        let (finalized, finalize) = timed(|| scene.app.finalize_block(&block));
        all_succeeded(&finalized?)?;
        let (committed, commit) = timed(|| scene.app.commit());
        committed?;
        if !counted {
            continue;
        }
        let kind = &mut kinds[usize::from(checked)];
        let total = finalize + commit;
        let raw_us = raw_took.wall_us(raw.len());
        kind.finalize_us.push(finalize.wall_us(messages));
        kind.finalize_cpu_us.push(finalize.cpu_us(messages));
        kind.finalize_own_us.push(finalize.own_us(messages));
        kind.commit_us.push(commit.wall_us(messages));
        kind.commit_cpu_us.push(commit.cpu_us(messages));
        kind.total_us.push(total.wall_us(messages));
        kind.total_cpu_us.push(total.cpu_us(messages));
        kind.raw_us.push(raw_us);
        kind.raw_cpu_us.push(raw_took.cpu_us(raw.len()));
        kind.share.push(raw_us / finalize.wall_us(messages));
        kind.share_own.push(raw_took.own_us(raw.len()) / finalize.own_us(messages));
        kind.share_with_commit.push(raw_us / total.wall_us(messages));
        if checked {
            kind.check_us.push(check_took.wall_us(messages));
            kind.check_cpu_us.push(check_took.cpu_us(messages));
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transaction_of_both_kinds_of_blocks_succeeds() {
        let outcome = run(&Size { participants: &[3, 6], messages: 3, warm_up: 1, blocks: 1 }).unwrap();
        let names: Vec<&str> = outcome.rows.iter().map(|row| row.name.as_str()).collect();
        assert!(
            names.contains(&"chain.cold.3.message") && names.contains(&"chain.checked.flat_3_to_6"),
            "{names:?}"
        );
        assert!(outcome.rows.iter().all(|row| row.value > 0.0));

        let line = r#"{"us_per_tx": 471, "cpu_us_per_tx": 467, "block_tx_over_verify_limit": 0.33, "checktx_us_per_tx": 328}"#;
        let compared = compare(&outcome, &format!("go: note\n{line}\n")).unwrap();
        let row = compared.rows.iter().find(|row| row.name == "chain.checked.6.check_tx.vs_peer").unwrap();
        assert_eq!((row.peer_value, compared.rows.len()), (Some(328.0), 14));
        assert!(compare(&outcome, "{}").is_err() && compare(&outcome, "").is_err());
    }
}
