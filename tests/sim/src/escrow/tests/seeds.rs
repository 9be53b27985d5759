//! Seeds, and what a failure prints.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::escrow::cast::{Cast, Programs};
use crate::escrow::schedule::{Fate, Schedule, Work};
use crate::escrow::shrink::shrink;
use crate::escrow::world::World;
use crate::escrow::{Failure, Totals, run};

const SEEDS: u64 = 300;

#[test]
fn three_hundred_seeds_are_clean_and_all_faults_happen_in_them() {
    let (next, totals, failures) =
        (AtomicU64::new(1), Mutex::new(Totals::default()), Mutex::new(Vec::<String>::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS || !failures.lock().unwrap().is_empty() {
                        return;
                    }
                    match run(seed, Programs::Mixed, None, false) {
                        Ok(found) => totals.lock().unwrap().add(&found),
                        Err(failure) => failures.lock().unwrap().push(failure.to_string()),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let t = totals.into_inner().unwrap();
    println!("{SEEDS} seeds clean, {t}");
    let all = [
        t.completed,
        t.failed,
        t.passes,
        t.dispatches,
        t.ghosts,
        t.executions,
        t.flags,
        t.restores,
        t.give_ups,
        t.own_forks,
        t.gateway_starts,
        t.host_starts,
        t.self_suspects,
        t.resets,
        t.missed,
        t.settled,
        t.disputes,
        t.unsettled,
        t.lost,
        t.faults,
    ];
    assert!(all.iter().all(|count| *count > 0), "{t}");
    assert!(t.settled * 10 > SEEDS * 7, "most sessions settle: {t}");
    assert!(t.restores * 2 > t.flags, "most flags end by proof: {t}");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in [3, 77, 1_000_003] {
        let cast = Cast::draw(seed, Programs::Mixed);
        let schedule = Schedule::draw(&cast);
        let play = || {
            let mut world = World::new(&cast, &schedule, &schedule.numbers(), false);
            let totals = world.play().unwrap();
            (totals, world.watch.log.values().map(|logged| logged.digest).collect::<Vec<_>>())
        };
        let (first, second) = (play(), play());
        assert_eq!(first, second);
        assert!(!first.1.is_empty());
    }
}

#[test]
fn shrinking_leaves_the_items_that_matter_in_their_order() {
    let mut tries = 0;
    let kept = shrink((0..100).collect(), Duration::from_secs(10), |rest| {
        tries += 1;
        [7, 42, 43].iter().all(|needed| rest.contains(needed))
    });
    assert_eq!(kept, [7, 42, 43]);
    assert!(tries < 200, "{tries}");
    assert_eq!(shrink(vec![1, 2], Duration::from_secs(10), |_| true), Vec::<usize>::new());
    assert_eq!(shrink(vec![1, 2, 3], Duration::ZERO, |_| true), [1, 2, 3], "no time, no change");
}

#[test]
fn a_failure_prints_its_seed_its_law_and_how_to_run_it_again() {
    let failure = Failure { seed: 9, what: "\"coins\": 1".into(), story: "slots".into(), kept: vec![3, 8] };
    let text = failure.to_string();
    assert_eq!(
        text,
        "FAILED: seed 9: \"coins\": 1\nslots\nRun it again: cargo xtask sim escrow --start 9 --seeds 1 --keep 3,8"
    );
    let failure = Failure { kept: Vec::new(), ..failure };
    assert!(failure.to_string().ends_with("--keep none"));
}

#[test]
fn a_body_carries_its_work_and_a_foreign_body_is_one_quick_token() {
    for fate in [Fate::Done, Fate::Fails(7), Fate::Never, Fate::Late] {
        let work = Work { tokens: 12, pace_ms: 345, fate };
        assert_eq!(Work::of(&work.body(3, 20)), work);
        assert_ne!(work.body(3, 20), work.body(4, 20), "names differ, so prompts do");
    }
    let ping = Work::of(br#"{"messages":[{"role":"user","content":"ping"}],"max_tokens":1}"#);
    assert_eq!((ping.tokens, ping.fate), (1, Fate::Done));
}
