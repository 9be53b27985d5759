//! A made-up run in which everything happens, for the tests of this folder.

use super::super::executors::{Action, behaviour, default_executors};
use super::super::workload::{Input, SplitMix64, model_of_request};
use super::*;

/// Runs the default executors over the built-in workload with a breaker of a few lines. It is no model of
/// the real one; it only makes every state, rule and outcome occur.
pub(crate) fn report(preset: &str) -> Report {
    const EXPIRATION: i64 = 20;
    let input = Input::builtin(1);
    let blocks = input.last_block(5_000_000) + 21;
    let specs: Vec<(String, ExecutorSpec)> = default_executors()
        .into_iter()
        .enumerate()
        .map(|(index, spec)| (format!("hold1{index:0>38}"), spec))
        .collect();
    let info = RunInfo {
        version: "0.1.0".to_owned(),
        command: "holdfastd devnet --headless --report out".to_owned(),
        seed: 1,
        preset: preset.to_owned(),
        trace: TraceInfo {
            source: input.source(),
            rows: input.rows(),
            sha256: input.sha256().to_owned(),
            bad_rows: 0,
            bad_row_samples: Vec::new(),
        },
        block_seconds: 5,
        run_blocks: blocks,
    };
    let profiles: Vec<_> =
        specs.iter().map(|(_, spec)| spec.profile.resolve(blocks).expect("resolves")).collect();
    let mut recorder = Recorder::new(info, &specs).expect("recorder");
    let limit = match preset {
        "off" => u64::MAX,
        "seed" => 9,
        _ => 5,
    };
    // (executor, model) -> state, end of cooldown, cooldown, misses in a row
    let mut entries = vec![[(State::Healthy, 0i64, 50i64, 0u64); 2]; specs.len()];
    let mut due: BTreeMap<i64, Vec<(usize, usize, bool)>> = BTreeMap::new();
    let mut stream = SplitMix64::new(1);
    let mut requests = input.requests().expect("open").peekable();
    let models = ["model-a", "model-b"];
    let mut open = 0u64;
    for height in 1..=i64::try_from(blocks).expect("small") {
        for (executor, entry) in entries.iter_mut().enumerate() {
            for (model, entry) in entry.iter_mut().enumerate() {
                if entry.0 == State::Excluded && entry.1 <= height {
                    entry.0 = State::Probe;
                    recorder.transition(executor, 0, models[model], State::Probe, "cooldown");
                }
            }
        }
        while let Some(request) = requests.next_if(|request| {
            request.as_ref().expect("row").arrival_us / 5_000_000 + 1 == height.unsigned_abs()
        }) {
            let request = request.expect("row");
            recorder.offered();
            let model = model_of_request(1, request.index, 2);
            let probe = (0..specs.len()).find(|e| entries[*e][model].0 == State::Probe);
            let executor = match probe {
                Some(executor) if stream.below(20) == 0 => {
                    recorder.drawn(Lane::Probe);
                    entries[executor][model].0 = State::ProbeClaimed;
                    recorder.transition(executor, 0, models[model], State::ProbeClaimed, "start");
                    executor
                }
                _ => {
                    recorder.drawn(Lane::Healthy);
                    loop {
                        let executor = usize::try_from(stream.below(20)).expect("small");
                        if entries[executor][model].0 == State::Healthy {
                            break executor;
                        }
                    }
                }
            };
            recorder.transaction(true);
            recorder.started(executor);
            open += 1;
            let (at, ok) = match behaviour(&profiles[executor], height, height + 1, stream.below(10_000)) {
                Action::Answer => (height + 1, true),
                Action::ReportFailure => (height + 1, false),
                _ => (height + EXPIRATION, false),
            };
            due.entry(at).or_default().push((executor, model, ok));
        }
        let ended = due.remove(&height).unwrap_or_default();
        open -= ended.len() as u64;
        for (executor, model, ok) in &ended {
            recorder.transaction(*ok);
            let outcome = if *ok { Outcome::Finished } else { Outcome::Missed };
            recorder.outcome(*executor, models[*model], 0, outcome);
            let entry = &mut entries[*executor][*model];
            entry.3 = if *ok { 0 } else { entry.3 + 1 };
            let to = match (entry.0, *ok) {
                (State::ProbeClaimed, true) => State::Healthy,
                (State::ProbeClaimed, false) => State::Excluded,
                (State::Healthy, false) if entry.3 >= limit => State::Excluded,
                _ => continue,
            };
            let rule = match (entry.0, to) {
                (State::ProbeClaimed, _) => "probe",
                _ => "streak",
            };
            if to == State::Excluded {
                entry.2 = if entry.0 == State::Healthy { 50 } else { (entry.2 * 2).min(500) };
                entry.1 = height + entry.2;
            }
            (entry.0, entry.3) = (to, 0);
            recorder.transition(*executor, 0, models[*model], to, rule);
        }
        recorder.invariants_held(3);
        recorder.end_block(1_500 + stream.below(900), 700 + stream.below(400));
    }
    let report = recorder.finish("ab".repeat(32), open, 12_345);
    report.check().expect("the sample adds up");
    report
}

/// The three arms together.
pub(crate) fn compared() -> Report {
    let arms = ["off", "seed", "recommended"].map(report).to_vec();
    Report::compared(arms, "recommended").expect("leading arm")
}
