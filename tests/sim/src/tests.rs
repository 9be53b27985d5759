//! Twenty chains in every mode.

use std::ops::RangeInclusive;
use std::process::Command;

use anyhow::Result;

use super::*;

const SEEDS: u64 = 20;
const BLOCKS: u64 = 50;
/// Seeds whose determinism run has child processes too: each costs two processes.
const WITH_CHILDREN: u64 = 2;

/// Names the child of a determinism run started by a test, and what it plays.
const CHILD: &str = "SIM_TEST_CHILD";

/// This test binary, told to run [`child`] alone.
fn launch(seed: u64, blocks: u64) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "tests::child", "--nocapture", "--test-threads", "1"]);
    command.env(CHILD, format!("{seed} {blocks}"));
    Ok(command)
}

/// Nothing by itself: the other side of [`launch`].
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let (seed, blocks) = text.split_once(' ').unwrap();
    speak(seed.parse().unwrap(), blocks.parse().unwrap(), &mut std::io::stdout()).unwrap();
}

fn play(mode: Mode) -> Counts {
    play_seeds(mode, 1..=SEEDS)
}

fn play_seeds(mode: Mode, seeds: RangeInclusive<u64>) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds {
        let launch: Option<Launch<'_>> = if seed <= WITH_CHILDREN { Some(&launch) } else { None };
        match run(&Plan { seed, blocks: BLOCKS, mode, launch }) {
            Ok(found) => counts.add(&found),
            Err(failure) => panic!("{failure}"),
        }
    }
    counts
}

#[test]
fn every_chain_keeps_its_rules_and_every_message_is_carried_out_and_refused() {
    let counts = play(Mode::Full);
    for url in holdfast_app::router::message_types() {
        let tally = counts.messages.get(&url).copied().unwrap_or_default();
        assert!(tally.done > 0, "{url} is never carried out");
        assert!(tally.refused > 0, "{url} is never refused");
    }
    for event in [
        "holdfast.breaker.v1.EventExecutorExcluded",
        "holdfast.breaker.v1.EventExecutorRestored",
        "holdfast.breaker.v1.EventProbeClaimed",
        "holdfast.breaker.v1.EventOverrideSet",
        "holdfast.epochs.v1.EventEpochEnded",
        "holdfast.inference.v1.EventInferenceMissed",
        "holdfast.inference.v1.EventInferenceReleased",
        "holdfast.inference.v1.EventParticipantDeactivated",
        "holdfast.participants.v1.EventMaintenanceStarted",
        "holdfast.participants.v1.EventMaintenanceEnded",
        "holdfast.gov.v1.EventUpgradeApplied",
    ] {
        assert!(counts.events.contains_key(event), "{event} never happens: {:?}", counts.events.keys());
    }
    for code in [("sdk", 2), ("sdk", 4), ("sdk", 5), ("sdk", 6), ("sdk", 11), ("sdk", 32), ("sdk", 34)] {
        assert!(
            counts.codes.contains_key(&(code.0.to_owned(), code.1)),
            "{code:?} never happens: {:?}",
            counts.codes
        );
    }
    for what in ["crash", "restart", "repeat", "round", "imposed block", "upgrade"] {
        assert!(counts.driver.contains_key(what), "{what} never happens: {:?}", counts.driver);
    }
    for how in ["passed", "rejected", "failed", "removed"] {
        assert!(counts.proposals.contains_key(how), "no proposal is {how}: {:?}", counts.proposals);
    }
}

#[test]
fn an_export_imports_to_the_same_bytes_at_random_heights() {
    let counts = play(Mode::ImportExport);
    assert!(counts.driver["import"] >= 2 * SEEDS, "{:?}", counts.driver);
}

#[test]
fn an_imported_chain_goes_on_as_the_one_it_came_from() {
    let counts = play(Mode::AfterImport);
    assert!(counts.driver["block beside the origin"] >= 10 * SEEDS, "{:?}", counts.driver);
}

/// In two halves, beside each other: most of the time goes to waiting for the disk.
fn nodes_agree(seeds: RangeInclusive<u64>) -> Counts {
    let counts = play_seeds(Mode::Determinism, seeds);
    for what in ["crash", "restart", "repeat", "rollback", "prune", "check"] {
        assert!(counts.driver.contains_key(what), "{what} never happens: {:?}", counts.driver);
    }
    counts
}

#[test]
fn nodes_agree_whatever_their_stores_restarts_threads_and_surroundings() {
    let counts = nodes_agree(1..=SEEDS / 2);
    assert_eq!(counts.driver["children"], WITH_CHILDREN);
}

#[test]
fn nodes_agree_whatever_their_stores_restarts_and_threads() {
    nodes_agree(SEEDS / 2 + 1..=SEEDS);
}

#[test]
fn a_failure_names_its_seed_its_block_and_how_to_see_it_again() {
    let failure = Failure {
        seed: 7,
        mode: Mode::AfterImport,
        block: 31,
        what: "the sky fell".into(),
        last: vec!["block 31: MsgSend -> ok 0".into()],
    };
    let text = failure.to_string();
    assert!(text.contains("the sky fell") && text.contains("MsgSend"), "{text}");
    assert!(text.ends_with("cargo xtask sim --mode after-import --seed 7 --blocks 31"), "{text}");
    assert!("sideways".parse::<Mode>().unwrap_err().to_string().contains("determinism"));
}

#[test]
fn the_document_names_every_collection_that_an_import_may_change() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulation.md")).unwrap();
    for (module, collection, reason) in NOT_EQUAL {
        let row = format!("| `{module}` | `{collection}` | {reason} |");
        assert!(page.contains(&row), "{row}");
    }
    assert_eq!(
        page.lines().filter(|line| line.starts_with("| `") && line.matches('`').count() == 4).count(),
        NOT_EQUAL.len()
    );
}

#[test]
fn a_run_that_fails_is_repeated_and_told() {
    let nowhere: Launch<'_> = &|_, _| anyhow::bail!("no such program");
    let plan = Plan { seed: 3, blocks: 2, mode: Mode::Determinism, launch: Some(nowhere) };
    let failure = run(&plan).unwrap_err();
    assert_eq!((failure.seed, failure.block), (3, 0));
    assert!(failure.what.contains("no such program"), "{failure}");
    // A child that plays another chain is found out.
    let other: Launch<'_> = &|seed, blocks| launch(seed + 1, blocks);
    let failure = run(&Plan { launch: Some(other), ..plan }).unwrap_err();
    assert!(failure.what.contains("has other"), "{failure}");
}

#[test]
fn streams_of_a_seed_are_apart_and_repeat() {
    let draw = |seed, name| {
        let mut rng = Rng::new(seed, name);
        (0..4).map(|_| rng.next_u64()).collect::<Vec<_>>()
    };
    assert_eq!(draw(1, "users"), draw(1, "users"));
    assert_ne!(draw(1, "users"), draw(2, "users"));
    assert_ne!(draw(1, "users"), draw(1, "driver"));
    let mut rng = Rng::new(3, "range");
    let values: std::collections::BTreeSet<i64> = (0..200).map(|_| rng.range(-2, 2)).collect();
    assert_eq!(values.into_iter().collect::<Vec<_>>(), [-2, -1, 0, 1, 2]);
    assert_eq!((rng.range(5, 5), rng.range(5, 4), rng.unsigned(9, 9), rng.below(0)), (5, 5, 9, 0));
}
