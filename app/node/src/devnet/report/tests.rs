//! Tests of the report.

use super::super::executors::parse_spec;
use super::*;

fn recorder(spec: &str, run_blocks: u64) -> Recorder {
    let specs: Vec<(String, ExecutorSpec)> =
        parse_spec(spec).expect("spec").into_iter().map(|spec| ("hold1x".to_owned(), spec)).collect();
    let info = RunInfo {
        version: "0".to_owned(),
        command: "holdfastd devnet".to_owned(),
        seed: 1,
        preset: "recommended".to_owned(),
        trace: TraceInfo {
            source: "t.csv".to_owned(),
            rows: 1_000,
            sha256: "0".repeat(64),
            bad_rows: 0,
            bad_row_samples: Vec::new(),
        },
        block_seconds: 5,
        run_blocks,
    };
    Recorder::new(info, &specs).expect("recorder")
}

fn start(recorder: &mut Recorder, executor: usize, count: usize) {
    for _ in 0..count {
        recorder.offered();
        recorder.drawn(Lane::Healthy);
        recorder.started(executor);
    }
}

fn faults(report: &Report) -> Vec<String> {
    match report.check() {
        Err(ReportError::Contradiction { faults }) => faults,
        Err(other) => panic!("{other}"),
        Ok(()) => Vec::new(),
    }
}

#[test]
fn the_fifth_miss_is_that_of_one_entry_and_a_success_in_the_block_resets_it() {
    let mut run = recorder("dying(2)", 100);
    start(&mut run, 0, 14);
    let miss = |run: &mut Recorder, model: &str, epoch: u64, count: usize| {
        for _ in 0..count {
            run.outcome(0, model, epoch, Outcome::Missed);
        }
    };
    // Block 1: four of model a, four of model b: no entry has five.
    miss(&mut run, "a", 0, 4);
    miss(&mut run, "b", 0, 4);
    run.end_block(1, 1);
    // Block 2: a fifth miss of a, but a success in the same block, in whatever order.
    run.outcome(0, "a", 0, Outcome::Finished);
    miss(&mut run, "a", 0, 1);
    run.end_block(1, 1);
    // Block 3: another epoch's entry begins at nothing.
    miss(&mut run, "b", 1, 2);
    run.end_block(1, 1);
    assert_eq!(run.executors()[0].fifth_consecutive_miss_height, None);
    // Block 4: released work neither adds nor resets; the fifth of b lands.
    run.outcome(0, "b", 0, Outcome::Released);
    miss(&mut run, "b", 0, 1);
    run.end_block(1, 1);
    assert_eq!(run.executors()[0].fifth_consecutive_miss_height, Some(4));
    let report = run.finish("f".repeat(64), 0, 1);
    assert_eq!(faults(&report), Vec::<String>::new());
    assert_eq!(report.requests.missed, 12);
    // 12 of 13: 9230.7 basis points.
    assert_eq!(report.miss_rate_bp, 9_230);
    assert_eq!(report.executors[0].misses_at, [(1, 8), (2, 1), (3, 2), (4, 1)]);
}

#[test]
fn misses_before_the_first_exclusion_leave_out_its_own_block() {
    let mut run = recorder("healthy,dying(2)", 100);
    start(&mut run, 1, 6);
    for _ in 0..4 {
        run.outcome(1, "a", 0, Outcome::Missed);
    }
    run.end_block(1, 1);
    // The order of outcome and transition inside the block makes no difference.
    run.transition(1, 0, "a", State::Excluded, "streak");
    run.outcome(1, "a", 0, Outcome::Missed);
    run.end_block(1, 1);
    run.end_block(1, 1);
    run.transition(1, 0, "a", State::Probe, "cooldown");
    run.end_block(1, 1);
    run.transition(1, 0, "a", State::ProbeClaimed, "start");
    assert_eq!(run.state(1), State::ProbeClaimed);
    run.transition(1, 0, "a", State::Excluded, "probe");
    run.outcome(1, "a", 0, Outcome::Missed);
    run.end_block(1, 1);
    assert_eq!((run.state(0), run.state(1)), (State::Healthy, State::Excluded));
    let report = run.finish("f".repeat(64), 0, 1);
    assert_eq!(faults(&report), Vec::<String>::new());
    let executor = &report.executors[1];
    assert_eq!(executor.first_exclusion_height, Some(2));
    assert_eq!(executor.misses_before_first_exclusion, Some(4));
    assert_eq!(executor.fifth_consecutive_miss_height, Some(2));
    assert_eq!((executor.exclusions, executor.probes_failed, executor.probes_passed), (2, 1, 0));
    // Blocks 2, 3 and 5.
    assert_eq!(executor.blocks_excluded, 3);
    assert_eq!(executor.state, State::Excluded);
    assert_eq!(report.executors[0].first_exclusion_height, None);
    assert_eq!(report.transitions.len(), 4);
    assert_eq!((report.transitions[1].from, report.transitions[1].height), (State::Excluded, 4));
}

#[test]
fn misses_of_an_epoch_that_is_over_are_counted_but_no_fifth_in_a_row() {
    let mut run = recorder("dying(2)", 100);
    start(&mut run, 0, 9);
    for _ in 0..4 {
        run.outcome(0, "a", 0, Outcome::Missed);
    }
    run.end_block(1, 1);
    run.epoch_began();
    for _ in 0..5 {
        run.outcome(0, "a", 0, Outcome::Missed);
    }
    run.end_block(1, 1);
    assert_eq!(run.executors()[0].fifth_consecutive_miss_height, None);
    let report = run.finish("f".repeat(64), 0, 1);
    assert_eq!(
        (report.requests.missed, report.executors[0].misses_at.as_slice()),
        (9, [(1, 4), (2, 5)].as_slice())
    );
}

#[test]
fn a_probe_that_passes_and_an_epoch_switch_both_end_in_healthy() {
    let mut run = recorder("2*healthy", 100);
    run.transition(0, 0, "a", State::Excluded, "rate");
    run.transition(1, 0, "b", State::Excluded, "rate");
    run.end_block(1, 1);
    run.transition(0, 0, "a", State::Probe, "cooldown");
    run.transition(0, 0, "a", State::ProbeClaimed, "start");
    run.transition(0, 0, "a", State::Healthy, "probe");
    run.end_block(1, 1);
    run.epoch_began();
    run.end_block(1, 1);
    let report = run.finish("f".repeat(64), 0, 1);
    assert_eq!(report.executors[0].probes_passed, 1);
    assert_eq!((report.executors[1].state, report.executors[1].blocks_excluded), (State::Healthy, 2));
    let last = report.transitions.last().expect("one");
    assert_eq!((last.height, last.executor, last.rule.as_str()), (3, 1, "epoch"));
    let states: Vec<_> = report.series.points.iter().map(|p| (p.healthy, p.excluded)).collect();
    assert_eq!(states, [(0, 2), (1, 1), (2, 0)]);
}

#[test]
fn every_equality_that_is_broken_is_named() {
    let good = sample::report("recommended");
    assert_eq!(faults(&good), Vec::<String>::new());
    let broken = |change: fn(&mut Report), text: &str| {
        let mut report = good.clone();
        change(&mut report);
        let faults = faults(&report);
        assert!(faults.iter().any(|fault| fault.contains(text)), "{text}: {faults:?}");
    };
    broken(|r| r.requests.offered += 1, "requests offered is");
    broken(|r| r.requests.refused += 1, "but started + refused is");
    broken(|r| r.requests.pending += 1, "but finished + missed + released + pending is");
    broken(|r| r.requests.released += 1, "but finished + missed + released + pending is");
    broken(|r| r.executors[0].assigned += 1, "but the sum of assigned is");
    broken(|r| r.executors[0].finished -= 1, "requests finished is");
    broken(|r| r.executors[12].missed += 1, "requests missed is");
    broken(|r| r.executors[12].misses_at.clear(), "have a block");
    broken(|r| r.miss_rate_bp += 1, "miss_rate_bp is");
    broken(|r| r.series.points[0].started += 1, "the sum over blocks is");
    broken(|r| r.draws.total = 0, "draws");
    broken(|r| r.trace.rows = 1, "from 1 rows");
    broken(|r| r.app_hash.clear(), "app_hash is no SHA-256");
    broken(|r| r.executors[12].first_exclusion_height = Some(100_000), "outside the run");
    broken(|r| r.executors[12].misses_before_first_exclusion = None, "contradict the first one");
    broken(|r| r.executors[12].probes_failed = 1_000, "more failed probes");
    broken(|r| r.executors[0].assigned = 0, "more requests ended than were assigned");
    let mut compared = sample::compared();
    assert_eq!(faults(&compared), Vec::<String>::new());
    compared.arms[0].seed = 2;
    compared.arms[1].miss_rate_bp = 0;
    let found = faults(&compared);
    assert!(found[0].starts_with("arm off: its input or seed differ"), "{found:?}");
    assert!(found[1].starts_with("arm seed: miss_rate_bp is 0"), "{found:?}");
}

#[test]
fn the_json_has_every_required_field_with_its_name_and_null_heights() {
    let report = sample::compared();
    let json: serde_json::Value = serde_json::from_str(&report.to_json().expect("json")).expect("parse");
    for arm in [&json, &json["arms"][0], &json["arms"][2]] {
        for path in [
            "/seed",
            "/preset",
            "/trace/source",
            "/trace/rows",
            "/trace/sha256",
            "/blocks",
            "/app_hash",
            "/requests/offered",
            "/requests/started",
            "/requests/finished",
            "/requests/missed",
            "/requests/released",
            "/requests/refused",
            "/requests/pending",
            "/miss_rate_bp",
            "/draws/total",
            "/draws/probe",
            "/draws/fallback",
            "/tx/delivered",
            "/tx/failed",
            "/tx/per_second",
            "/block_ms/finalize_p50",
            "/block_ms/finalize_p99",
            "/block_ms/commit_p50",
            "/block_ms/commit_p99",
            "/invariant_checks",
            "/version",
            "/trace/bad_rows",
            "/transitions/0/rule",
            "/series/points/0/healthy",
        ] {
            if path.starts_with("/transitions") && arm["preset"] == "off" {
                continue;
            }
            assert!(arm.pointer(path).is_some(), "{path}");
        }
        for field in [
            "address",
            "profile",
            "models",
            "weight",
            "assigned",
            "finished",
            "missed",
            "exclusions",
            "probes_passed",
            "probes_failed",
            "blocks_excluded",
            "state",
            "first_fault_height",
            "fifth_consecutive_miss_height",
            "first_exclusion_height",
            "misses_before_first_exclusion",
        ] {
            assert!(arm["executors"][19].get(field).is_some(), "{field}");
        }
    }
    assert!(json["executors"][0]["first_fault_height"].is_null());
    assert_eq!(json["executors"][19]["first_fault_height"], 1);
    assert_eq!(json["executors"][0]["state"], "healthy");
    assert!(json["arms"][0].get("arms").is_none());
    let back: Report = serde_json::from_value(json).expect("reads back");
    assert_eq!(back, report);
}

#[test]
fn the_files_are_written_whole_and_nothing_else_stays_behind() {
    let place = tempfile::tempdir().expect("folder");
    let folder = place.path().join("out/deeper");
    let report = sample::report("recommended");
    let files = report.write_to(&folder).expect("written");
    let again = report.write_to(&folder).expect("written over");
    assert_eq!(files, again);
    let mut names: Vec<_> =
        fs::read_dir(&folder).expect("folder").map(|entry| entry.expect("entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["report.html", "report.json", "timeline.svg"]);
    let text = fs::read_to_string(&files[0]).expect("json");
    assert_eq!(text, report.to_json().expect("json"));
    let error = report.write_to(&files[0]).expect_err("a file is no folder");
    assert_eq!(error.code(), 141);
}

#[test]
fn long_runs_are_told_in_longer_steps_without_losing_a_miss() {
    let mut run = recorder("healthy", 10_000);
    for _ in 0..10_000 {
        start(&mut run, 0, 1);
        run.outcome(0, "a", 0, Outcome::Missed);
        run.end_block(1, 1);
    }
    let report = run.finish("f".repeat(64), 0, 1_000);
    assert_eq!(faults(&report).len(), 1, "only the 1,000 rows are too few");
    assert_eq!(report.series.step, 8);
    assert_eq!(report.series.points.len(), 1_250);
    assert_eq!(report.series.points[1].height, 9);
    assert_eq!(report.executors[0].misses_at.len(), 1_250);
    assert_eq!(report.executors[0].misses_at[0], (1, 8));
}

#[test]
fn transitions_beyond_the_limit_are_counted() {
    let mut run = recorder("healthy", 10_000);
    for _ in 0..MAX_TRANSITIONS / 2 + 3 {
        run.transition(0, 0, "a", State::Excluded, "rate");
        run.transition(0, 0, "a", State::Probe, "cooldown");
    }
    run.end_block(1, 1);
    let report = run.finish("f".repeat(64), 0, 1_000);
    assert_eq!((report.transitions.len(), report.transitions_omitted), (MAX_TRANSITIONS, 6));
    assert_eq!(report.executors[0].exclusions, 10_003);
}

#[test]
fn numbers_read_as_a_person_writes_them() {
    assert_eq!(per_cent(0), "0.00 %");
    assert_eq!(per_cent(1_234), "12.34 %");
    assert_eq!(per_cent(10_000), "100.00 %");
    assert_eq!(thousands(0), "0");
    assert_eq!(thousands(999), "999");
    assert_eq!(thousands(8_819), "8,819");
    assert_eq!(thousands(1_234_567), "1,234,567");
    assert_eq!(miss_rate_bp(0, 0), 0);
    assert_eq!(miss_rate_bp(2, 1), 3_333);
    assert_eq!(miss_rate_bp(0, u64::MAX), 10_000);
    assert_eq!(percentile_ms(&mut [], 50), 0.0);
    assert_eq!(percentile_ms(&mut [3_000, 1_000, 2_500], 50), 2.5);
    let mut hundred: Vec<u32> = (1..=100).map(|n| n * 1_000).collect();
    assert_eq!(percentile_ms(&mut hundred, 99), 99.0);
}
