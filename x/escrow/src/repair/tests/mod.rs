//! The table by hand, an independent model, proofs with real keys, and the arithmetic around them.

mod judge;
mod ladder;
mod model;
mod proofs;
mod table;

use holdfast_types::Address;

use super::*;

/// Address of the key SHA-256("holdfast-test-key:host-2"), computed with another implementation.
pub(super) fn host_2() -> Address {
    let bytes = hex::decode("f0ef2bae7d13b9b56583bf7548dd7438ef00c4ab").unwrap();
    Address::from_slice(&bytes).unwrap()
}

/// Escrow 7, host-2, generation 1, tip 60: an Active session without trouble.
pub(super) fn context(config: &RepairConfig) -> RepairContext<'_> {
    RepairContext {
        config,
        escrow_id: 7,
        participant: host_2(),
        generation: 1,
        raised: 1,
        relapse: false,
        active: true,
        tip: 60,
        self_suspect: false,
        majority_unreachable: false,
        since_ms: 0,
    }
}

/// Second attempt of generation 1, aimed at nonce 50, 20 s in.
pub(super) fn repair(phase: RepairPhase) -> RepairState {
    RepairState {
        phase,
        attempt: 2,
        level: 1,
        forked: false,
        target: 50,
        elapsed_ms: 20_000,
        reopened: 0,
        not_found: 0,
        last_verdict: Verdict::None,
        due_in_ms: 0,
        paused: false,
        released: Forgiven::No,
        census_due: false,
        bind_due: false,
        chunk_diffs: 200,
        progress: false,
        reached: 0,
        old_snapshot: false,
    }
}

/// A state as its differences from [`repair`], and the effects; `no` = no flag.
pub(super) fn show(outcome: &Outcome) -> String {
    let mut words = vec![];
    match &outcome.state {
        None => words.push("no".into()),
        Some(state) => {
            let base = repair(state.phase);
            words.push(format!("{:?}", state.phase)[..1].to_string());
            let mut number = |name: &str, now: u64, was: u64| {
                if now != was {
                    words.push(format!("{name}{now}"));
                }
            };
            number("gen", outcome.generation, 1);
            number("att", state.attempt.into(), base.attempt.into());
            number("lvl", state.level.into(), base.level.into());
            number("due", state.due_in_ms, base.due_in_ms);
            number("target", state.target, base.target);
            number("elapsed", state.elapsed_ms, base.elapsed_ms);
            number("reopened", state.reopened.into(), base.reopened.into());
            number("lost", state.not_found.into(), base.not_found.into());
            number("chunk", state.chunk_diffs.into(), base.chunk_diffs.into());
            number("reached", state.reached, base.reached);
            let flags = [
                ("forked", state.forked),
                ("paused", state.paused),
                ("released", state.released != Forgiven::No),
                ("census", state.census_due),
                ("bind", state.bind_due),
                ("old", state.old_snapshot),
            ];
            words.extend(flags.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_string()));
            if state.last_verdict != Verdict::None {
                words.push(format!("={}", state.last_verdict.as_str()));
            }
            assert_eq!(
                state.progress,
                state.reached > 0 && !state.old_snapshot,
                "progress follows the chunks"
            );
        }
    }
    if outcome.effects.is_empty() {
        return words.join(" ");
    }
    let effects: Vec<String> = outcome.effects.iter().map(show_effect).collect();
    format!("{} : {}", words.join(" "), effects.join(", "))
}

fn show_effect(effect: &Effect) -> String {
    match effect {
        Effect::InsertFlag => "insert".into(),
        Effect::ClearFlag => "clear".into(),
        Effect::RecordEvidence { nonce } => format!("evidence {nonce}"),
        Effect::MoveCursor(nonce) => format!("cursor {nonce}"),
        Effect::QueueTxs => "txs".into(),
        Effect::HandleTimeout => "timeout".into(),
        Effect::WakeIn(ms) => format!("wake {ms}"),
        Effect::QueueForPermit => "queue".into(),
        Effect::ReleasePermit => "release".into(),
        Effect::StartAttempt { generation, attempt, target } => {
            format!("start {generation}/{attempt}@{target}")
        }
        Effect::TakeCensus => "census".into(),
        Effect::CallReset => "reset".into(),
        Effect::SendBind => "bind".into(),
        Effect::Teach { max_diffs } => format!("teach {max_diffs}"),
        Effect::AskSignature { nonce } => format!("ask {nonce}"),
        Effect::FindFirstBad { bad } => format!("bisect {bad}"),
        Effect::Cancel => "cancel".into(),
        Effect::StopWorker => "stop".into(),
        Effect::Log(stage) => format!("log {stage:?}"),
        Effect::Ignored => "–".into(),
    }
}
