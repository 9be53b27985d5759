//! Random histories, and proof that they reach every rule.

use std::collections::BTreeMap;

use crate::Driver;
use crate::calc::{bucket_of, live};
use crate::entry::Window;
use crate::history::{self, SplitMix64};
use crate::world::World;

#[test]
fn the_random_stream_is_splitmix64() {
    let mut rng = SplitMix64(1234567);
    assert_eq!(
        [rng.next_u64(), rng.next_u64(), rng.next_u64()],
        [6457827717110365317, 3203168211198807973, 9817491932198370423]
    );
}

#[test]
fn a_history_follows_from_its_seed_and_grows_at_its_end() {
    assert_eq!(history::random_history(7, 60), history::random_history(7, 60));
    assert_eq!(history::random_history(7, 60)[..40], history::random_history(7, 40)[..]);
    assert_ne!(history::random_history(7, 60), history::random_history(8, 60));
}

/// Cells of the transition table (row, column, outcome) and events with their variants; each must occur.
/// PoC ends with its epoch, so what it ends on are the fresh entries and the reapplied overrides: no R, no C.
const CELLS: &str = "
1H 1X-refused 1X-bypass 1R 1C-refused 1C-bypass
2H 2X-refused 2X-bypass 2R-refused 2R-bypass 2C-refused 2C-bypass
3C 4C 5C 6H-ok 6H-missed 6R 6C
7H 7X 7R 7C 7-release-H 7-release-X 7-release-R 7-release-C
8H-rate 8H-streak 8H-weightless 8-dropped-H 8-dropped-X
9H-cap 9H-freeze 9H-forced 9H-silent 10H 11X 12C
13H 13X 13R 13C
14H 14X 14R 14C 15H 15X 15R 15C
16-height-H 16-height-X 16-cleared-H 16-cleared-X
17H 17X 17R 17C
18-maintenance-H 18-maintenance-X 18-maintenance-R 18-maintenance-C 18-out-H 18-out-X 18-out-R 18-out-C
19H 19X 19R 19C
20-starts-H 20-starts-X 20-starts-R 20-starts-C 20-ends-H 20-ends-X
21H 21X 21R 21C 21X-due 21C-verdict
22X 22R 22R-claim 22C
23H 23X 23R 23C 23-disabled 23-stale-H 23-stale-X 23-stale-R 23-stale-C
first-H first-R first-bypass-X first-bypass-R first-bypass-C first-bypass-self first-bypass-stale
again-healthy again-excluded again-dead start-forced-out
override-unknown override-nothing override-until override-replaced
EventExecutorExcluded EventExclusionRefused EventProbeOpened EventProbeClaimed EventExecutorRestored
EventOverrideSet EventOverrideEnded EventBreakerFrozen EventBreakerReset
";

const VARIANTS: [&str; 18] = [
    "EventExecutorExcluded rule=rate",
    "EventExecutorExcluded rule=streak",
    "EventExecutorExcluded rule=probe",
    "EventExecutorExcluded rule=override",
    "EventExclusionRefused reason=cap",
    "EventExclusionRefused reason=freeze",
    "EventExclusionRefused reason=forced",
    "EventExclusionRefused rule=rate",
    "EventExclusionRefused rule=streak",
    "EventProbeOpened cause=cooldown",
    "EventProbeOpened cause=released",
    "EventProbeOpened cause=deadline",
    "EventProbeOpened cause=override_ended",
    "EventExecutorRestored cause=probe",
    "EventExecutorRestored cause=override",
    "EventOverrideEnded cause=height",
    "EventOverrideEnded cause=cleared",
    "EventBreakerFrozen frozen=true",
];

/// What must hold after every block, whatever happened.
fn check_invariants(world: &World) {
    for ((model, participant), entry) in world.current_entries() {
        let column = entry.column();
        let due = entry.due().is_some();
        assert_eq!(due, column == 'X' || column == 'C' || entry.forced.is_some());
        assert!(entry.due().is_none_or(|height| height > world.height), "nothing is overdue");
        assert_eq!(entry.forced.is_some(), world.overrides.contains_key(&(model.clone(), participant)));
        assert!(entry.window.buckets.len() <= 10);
        assert!(column == 'H' || entry.window == Window::default(), "only the healthy keep evidence");
    }
    for model in world.models() {
        let eligible = world.members(&model).iter().filter(|(a, _)| world.eligible(&model, a)).count();
        let table = world.candidates(&model);
        assert_eq!(table.draw([world.height as u8; 32]).is_none(), table.rows.is_empty());
        assert!(table.rows.len() <= eligible && (world.poc || table.rows.len() == eligible));
        if let Some(ring) = world.current_ring(&model) {
            let marked: u128 = world
                .members(&model)
                .iter()
                .filter_map(|(a, _)| world.entry(&model, a).trip)
                .filter(|t| {
                    t.block >= ring.since_block
                        && live(bucket_of(t.block, ring.width), world.height, ring.width)
                })
                .map(|t| u128::from(t.weight))
                .sum();
            assert_eq!(marked, ring.buckets.values().sum::<u128>(), "the ring is the sum of the marks");
        }
    }
}

#[test]
fn five_hundred_histories_reach_every_cell_of_the_table_and_every_event() {
    let mut coverage: BTreeMap<String, u64> = BTreeMap::new();
    let mut refusals: BTreeMap<String, u64> = BTreeMap::new();
    let mut lanes: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..500 {
        let genesis = history::genesis(seed);
        let world = World::new(genesis.params.clone(), "gov", genesis.pairs());
        let mut driver = Driver::new(world, &genesis);
        for block in history::random_history(seed, 120) {
            let report = driver.run_block(&block);
            for refusal in report.messages.iter().chain(&report.gov).filter_map(|r| r.err()) {
                *refusals.entry(format!("{refusal:?}")).or_insert(0) += 1;
            }
            if block.height % 4 == 0 || block.epoch.is_some() {
                check_invariants(&driver.circuit);
                for model in driver.circuit.models() {
                    if let Some((lane, _)) = driver.circuit.candidates(&model).draw([seed as u8; 32]) {
                        *lanes.entry(format!("{lane:?}")).or_insert(0) += 1;
                    }
                }
            }
        }
        for (cell, count) in driver.circuit.coverage {
            *coverage.entry(cell).or_insert(0) += count;
        }
    }
    println!("{coverage:#?}\n{refusals:#?}\n{lanes:#?}");
    let cells = CELLS.split_whitespace().chain(VARIANTS).chain(["EventBreakerFrozen frozen=false"]);
    let missing: Vec<&str> = cells.filter(|cell| coverage.get(*cell).copied().unwrap_or(0) < 5).collect();
    assert!(missing.is_empty(), "reached less than five times: {missing:?}");
    for refusal in [
        "Inference(2)",
        "Inference(7)",
        "Inference(8)",
        "Inference(9)",
        "Inference(11)",
        "Inference(12)",
        "Inference(13)",
        "Inference(14)",
        "Breaker(3)",
        "Breaker(5)",
        "Breaker(10)",
        "Breaker(11)",
        "Breaker(12)",
        "Breaker(13)",
    ] {
        assert!(refusals.contains_key(refusal), "{refusal} never came");
    }
    assert_eq!(lanes.keys().collect::<Vec<_>>(), ["Fallback", "Healthy", "Probe"]);
}
