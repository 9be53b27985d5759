//! `holdfastd matrix`: the same nine rows in one process and over workers that are killed, stopped and cut off.

use std::time::Duration;

use serde_json::{Value, json};

use super::GOLDEN;
use crate::process::{command, run};

/// The table as the source gives it: scenario, status, kind, tokens, restartable, KV, epoch, and the step in doubt.
fn rows() -> Value {
    let row = |scenario: &str,
               status: &str,
               kind: Option<&str>,
               tokens: Option<u32>,
               restartable: Option<bool>,
               kv: &str,
               uncertain: Option<u32>| {
        let output = &GOLDEN[..tokens.unwrap_or(0) as usize];
        let text: String = output.iter().filter_map(|id| char::from_u32(0x20 + id % 95)).collect();
        json!({
            "scenario": scenario,
            "status": status,
            "failure_kind": kind,
            "tokens": tokens,
            "restartable": restartable,
            "kv": kv,
            "kv_entries_left": 0,
            "epoch": u32::from(scenario == "alpha_failover"),
            "uncertain_step": uncertain,
            "output": text,
            "token_ids": output,
        })
    };
    let (yes, no) = (Some(true), Some(false));
    json!([
        row("clean", "completed", None, Some(8), None, "held", None),
        row("deadline", "failed", Some("deadline-exceeded"), Some(2), no, "released", Some(2)),
        row("heartbeat_loss", "failed", Some("heartbeat-lost"), Some(3), no, "released", Some(3)),
        row("cancel", "cancelled", Some("cancelled"), Some(3), no, "released", None),
        row("worker_death", "unverified", Some("worker-death"), Some(3), yes, "released", Some(3)),
        row("stream_reset", "failed", Some("stream-reset"), None, yes, "released", Some(0)),
        row("stale_epoch", "failed", Some("stale-epoch"), None, no, "never-opened", None),
        row("cache_miss", "failed", Some("cache-miss"), Some(4), yes, "already-evicted", Some(4)),
        row("alpha_failover", "completed", None, Some(8), None, "held", None),
    ])
}

fn matrix(words: &[&str], limit: Duration) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("matrix.json");
    let file = file.to_str().expect("a name in UTF-8");
    let out = run(&mut command(&[&["matrix", "--json", file][..], words].concat()), limit).ok();
    let ledger = "ledger: {completed: 2, cancelled: 1, failed: 0, unverified: 2}, 16 billable tokens \
                  (clean, cancel, worker_death, alpha_failover), 0 KV entries left\n";
    assert!(out.ends_with(ledger), "{out}");
    assert_eq!(out.lines().next().map(|line| line.split_whitespace().count()), Some(6), "{out}");
    let text = std::fs::read_to_string(file).expect("the result");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    for (found, wanted) in
        found["rows"].as_array().expect("rows").iter().zip(rows().as_array().expect("rows"))
    {
        assert_eq!(found, wanted);
    }
    let ledger = json!({"completed": 2, "cancelled": 1, "failed": 0, "unverified": 2, "billable_tokens": 16});
    assert_eq!(found, json!({"rows": rows(), "ledger": ledger}));
}

#[test]
fn the_matrix_in_one_process_has_the_nine_rows_and_sixteen_billable_tokens() {
    matrix(&[], Duration::from_secs(30));
}

#[test]
fn the_matrix_over_one_worker_process_has_the_same_rows() {
    matrix(&["--workers", "1"], Duration::from_secs(120));
}

#[test]
fn the_matrix_over_three_worker_processes_has_the_same_rows_whichever_fails() {
    matrix(&["--workers", "3"], Duration::from_secs(300));
}
