//! What breaker.md 9 promises, line by line, then the rows of breaker-details 1.
//! The first six names begin as in the list of seed 002.

use holdfast_model::draw::{Lane, Row, Table};
use holdfast_model::driver::Driver;
use holdfast_model::history::{genesis, random_history};
use holdfast_proto::holdfast::breaker::v1::OverrideTo;
use holdfast_store::{KvWrite, MemKv, Order};
use holdfast_testkit::{Rng, StaticMember, addr};
use holdfast_types::traits::{HealthClass, InferenceHooks, InferenceOutcome};
use holdfast_types::{BlockContext, Context, Module, ValidationParams};

use super::model::{Real, real_text};
use super::scene::{M, REQUESTER, SIGNER, Scene, attempt, values};
use crate::state::{DUE, ENTRIES, MODEL_TALLIES, TALLIES};
use crate::{BreakerModule, Entry, Keeper, State, Window};

// ---- the seed's list ----

#[test]
fn exclusion_takes_more_than_a_quarter_missed_of_at_least_four() {
    let mut s = Scene::three();
    s.bad(1, 1);
    s.good(1, 2);
    s.next();
    assert_eq!(s.letter(1), 'H', "1 of 3: too few samples");
    s.good(1, 1);
    s.next();
    assert_eq!(s.letter(1), 'H', "1 of 4 is not above 25 %");
    s.chain.take_events();
    let at = s.height();
    s.bad(1, 1);
    s.next();
    assert_eq!(s.letter(1), 'X', "2 of 5 is");
    assert_eq!(s.health(1), HealthClass::Out, "not in the draw");
    assert_eq!(s.health(2), HealthClass::Healthy, "its neighbours are");
    let events = s.events("EventExecutorExcluded");
    assert_eq!(events.len(), 1);
    let names = ["generation", "rule", "ok", "missed", "level", "cooldown_blocks", "due_block", "shadow"];
    let due = (at + 50).to_string();
    assert_eq!(values(&events[0], &names), ["1", "rate", "3", "2", "0", "50", &due, "false"]);
}

#[test]
fn probe_promotion_comes_in_the_block_in_which_the_cooldown_ends_without_any_message() {
    let mut s = Scene::three();
    let at = s.trip(1);
    s.go(at + 49);
    assert_eq!(s.letter(1), 'X');
    assert_eq!(s.entry(1).effective_state(at + 49), State::Excluded);
    assert_eq!(
        s.entry(1).effective_state(at + 50),
        State::Probe,
        "the pure function agrees with the next block"
    );
    s.chain.take_events();
    s.next();
    assert_eq!(s.letter(1), 'R');
    assert_eq!(s.health(1), HealthClass::ProbeReady { since: at + 50 });
    let events = s.events("EventProbeOpened");
    assert_eq!(values(&events[0], &["cause", "generation"]), ["cooldown", "1"]);
}

#[test]
fn probe_success_restores_healthy_and_resets_the_cooldown() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    assert_eq!(s.health(1), HealthClass::Out, "claimed: not a candidate");
    s.finish(&probe);
    let entry = s.entry(1);
    assert_eq!((s.letter(1), entry.generation, entry.probe_attempts), ('H', 2, 0));
    assert_eq!(entry.restored_at, s.height());
    assert_eq!(entry.window, Window::default(), "the probe enters no window");
    s.next();
    s.trip(1);
    assert_eq!((s.entry(1).backoff_level, s.entry(1).cooldown_blocks), (0, 50));
}

#[test]
fn probe_fail_backoff_doubles_the_cooldown_up_to_the_maximum() {
    let mut s = Scene::three();
    s.trip(1);
    let mut lengths = vec![s.entry(1).cooldown_blocks];
    for level in 1..=5 {
        s.go(s.entry(1).due().unwrap());
        let probe = s.start(1);
        s.miss(&probe);
        let entry = s.entry(1);
        assert_eq!((s.letter(1), entry.backoff_level, entry.excluded_at), ('X', level, s.height()));
        assert_eq!(entry.generation, level + 1);
        assert_eq!(entry.probe_attempts, level, "attempts since the last restoration");
        lengths.push(entry.cooldown_blocks);
        s.next();
    }
    assert_eq!(lengths, [50, 100, 200, 400, 500, 500]);
}

#[test]
fn all_degraded_fallback_serves_the_whole_eligible_set_and_the_gate_lets_it_through() {
    let mut s = Scene::three();
    for n in 1..=3 {
        s.bad(n, 4);
    }
    s.next();
    let row = |n: u8| match s.health(n) {
        HealthClass::Out => Row { address: [n; 20], weight: 10, class: 2, since: 0 },
        other => panic!("{other:?}"),
    };
    let rows = (1..=3).map(row).collect();
    let table = Table { epoch: 0, model: M.into(), share_bp: 500, poc: false, rows };
    let mut hit = [false; 3];
    for seed in 0..64 {
        let (lane, index) = table.draw([seed; 32]).unwrap();
        assert_eq!(lane, Lane::Fallback);
        hit[index] = true;
    }
    assert_eq!(hit, [true; 3], "each of the eligible is drawn");
    for n in 1..=3 {
        let before = s.entry(n);
        let (id, admission) = s.admit(n).unwrap();
        assert!(!admission.claim && !admission.stamp.evidence);
        s.finish(&id);
        assert_eq!(s.entry(n), before, "work under the fallback is no evidence");
    }
}

#[test]
fn epoch_reset_clears_every_state_at_once_and_prunes_the_rows() {
    let mut s = Scene::new(ValidationParams::default(), &[(1, 10), (2, 10), (3, 10), (4, 10)]);
    let probe = s.claimed(1);
    s.trip(2);
    s.go(s.entry(2).due().unwrap());
    s.trip(3);
    s.go(s.entry(3).due().unwrap() - 1);
    assert_eq!([1, 2, 3, 4].map(|n| s.letter(n)), ['R', 'R', 'X', 'H'], "the claim of 1 met its deadline");
    let probe_2 = s.start(2);
    s.chain.take_events();
    s.next_epoch();
    for n in 1..=4 {
        assert_eq!(s.entry(n), Entry::default());
        assert_eq!(s.health(n), HealthClass::Healthy);
    }
    let events = s.events("EventBreakerReset");
    assert_eq!(
        (events.len(), values(&events[0], &["epoch", "from_epoch"])),
        (1, vec!["1".into(), "0".into()])
    );
    for id in [probe, probe_2] {
        s.miss(&id);
    }
    s.next();
    assert_eq!([1, 2].map(|n| s.entry(n)), [Entry::default(), Entry::default()]);
    assert_eq!(ENTRIES.iter(&s.chain.store, Order::Ascending).count(), 0, "pruned");
    assert_eq!(DUE.iter(&s.chain.store, Order::Ascending).count(), 0);
    assert_eq!(MODEL_TALLIES.iter(&s.chain.store, Order::Ascending).count(), 1, "only the new epoch's");
}

// ---- beyond the seed's list ----

/// Misses until exclusion when `good` answers came first, ten in a block, then one miss in each.
fn misses_until_excluded(params: ValidationParams, good: usize) -> usize {
    let mut s = Scene::new(params, &[(1, 10), (2, 10), (3, 10)]);
    for _ in 0..good / 10 {
        s.good(1, 10);
        s.next();
    }
    for n in 1.. {
        s.bad(1, 1);
        s.next();
        if s.letter(1) == 'X' {
            return n;
        }
        assert!(n < 1_000);
    }
    unreachable!()
}

#[test]
fn the_cumulative_rate_trap_is_closed_under_recommended_and_open_under_default() {
    // By hand: 100·m > 25·(good + m) ⇔ m > good/3, so 34, 167, 334.
    for (good, cumulative) in [(100, 34), (500, 167), (1_000, 334)] {
        assert_eq!(misses_until_excluded(ValidationParams::default(), good), cumulative);
        assert_eq!(misses_until_excluded(ValidationParams::recommended(), good), 5);
    }
}

#[test]
fn a_recovered_node_stays_healthy_for_a_whole_epoch_of_good_work() {
    for params in [ValidationParams::default(), ValidationParams::recommended()] {
        let mut s = Scene::new(params, &[(1, 10), (2, 10), (3, 10)]);
        let probe = s.claimed(1);
        s.finish(&probe);
        let generation = s.entry(1).generation;
        for block in 0..600 {
            assert_eq!((s.letter(1), s.entry(1).generation), ('H', generation), "N + {block}");
            assert_eq!(s.health(1), HealthClass::Healthy);
            s.good(1, 1);
            s.next();
        }
    }
}

#[test]
fn misses_that_arrive_150_blocks_late_fail_no_probe_and_no_recovered_node() {
    let mut s = Scene::three();
    s.set(|p| p.expiration_blocks = 150);
    let before: Vec<String> = (0..12).map(|_| s.start(1)).collect();
    let at = s.trip(1);
    s.miss(&before[0]);
    assert_eq!(s.entry(1).excluded_at, at, "while excluded");
    s.go(at + 50);
    s.miss(&before[1]);
    assert_eq!(s.letter(1), 'R', "while ready");
    let probe = s.start(1);
    s.go(1 + 150);
    for late in &before[2..6] {
        s.miss(late);
    }
    s.next();
    assert_eq!((s.letter(1), s.entry(1).backoff_level), ('C', 0), "while claimed");
    s.finish(&before[6]);
    assert_eq!(s.letter(1), 'C', "an old success passes no probe");
    s.finish(&probe);
    for late in &before[7..] {
        s.miss(late);
    }
    s.next();
    assert_eq!((s.letter(1), s.entry(1).window), ('H', Window::default()), "after the restoration");
}

#[test]
fn two_probes_are_never_in_flight_for_one_key() {
    let mut s = Scene::three();
    s.ready(1);
    let deadline = s.height() + 20 + 20;
    let mut admitted = Vec::new();
    for _ in 0..20 {
        match s.admit(1) {
            Ok((id, admission)) => admitted.push((id, admission.claim)),
            Err(error) => {
                assert_eq!((error.codespace, error.code), ("breaker", 11));
                assert!(error.message.contains(&format!("height {deadline} ")), "{error}");
            }
        }
    }
    assert_eq!(admitted.len(), 1, "the losers are refused and may ask again");
    assert!(admitted[0].1);
    s.release(&admitted[0].0);
    let (_, admission) = s.admit(1).unwrap();
    assert!(admission.claim, "the slot is free again");
    assert!(s.admit(1).is_err());
}

#[test]
fn a_forged_finish_changes_nothing() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    let before = s.chain.store.clone();
    let stamp = s.stamp(1);
    let outcome = |id: &str, executor: u8| InferenceOutcome {
        inference_id: id.into(),
        model: M.into(),
        executor: addr(executor),
        stamp,
    };
    for forged in [outcome("other", 1), outcome(&probe, 2), outcome(&probe.to_uppercase(), 1)] {
        s.run(|k, ctx| k.after_inference_finished(ctx, &forged)).unwrap();
        s.run(|k, ctx| k.after_inference_missed(ctx, &forged)).unwrap();
        s.run(|k, ctx| k.after_inference_released(ctx, &forged)).unwrap();
    }
    assert!(s.chain.store == before);
    let mut stale = outcome(&probe, 1);
    for change in [(1, 0, true), (0, 1, true), (0, 0, false)] {
        stale.stamp.epoch = stamp.epoch + change.0;
        stale.stamp.generation = stamp.generation - change.1;
        stale.stamp.evidence = change.2;
        s.run(|k, ctx| k.after_inference_finished(ctx, &stale)).unwrap();
        assert!(s.chain.store == before, "{stale:?}");
    }
    s.finish(&probe);
    assert_eq!(s.letter(1), 'H');
}

#[test]
fn the_gate_reads_the_column_of_the_phase() {
    let mut s = Scene::three();
    s.next_epoch_with(|g| g.put(M, addr(1), StaticMember { weight: 10, preserved: true }));
    assert_eq!((s.tally().healthy_all, s.tally().healthy_poc), (3, 1));
    s.trip(1);
    assert_eq!((s.tally().healthy_all, s.tally().healthy_poc), (2, 0));
    assert_eq!(s.admit(1).unwrap_err().code, 10, "outside PoC two others are healthy");
    s.chain.block.poc = true;
    let (_, admission) = s.admit(1).unwrap();
    assert!(!admission.claim && !admission.stamp.evidence, "in PoC nobody healthy serves");
    s.chain.block.poc = false;
    assert_eq!(s.admit(1).unwrap_err().code, 10);
    assert_eq!(s.tally().out_weight, 10, "the sums ignore the phase");
}

#[test]
fn changed_parameters_act_on_the_next_judgement_and_leave_running_cooldowns_and_deadlines_row_17() {
    let mut s = Scene::three();
    s.bad(1, 1);
    s.good(1, 3);
    let probe = s.claimed(2);
    let due_2 = s.entry(2).due();
    s.trip(3);
    let due_3 = s.entry(3).due();
    s.set(|p| {
        p.health_cb_miss_threshold_pct = 20;
        p.expiration_blocks = 5;
        p.health_cb_initial_cooldown_blocks = 7;
        p.health_cb_max_cooldown_blocks = 9;
        p.health_cb_window_blocks = 400;
    });
    s.next();
    assert_eq!(s.letter(1), 'H', "1 of 4 is above 20 % but nothing touched it");
    assert_eq!((s.entry(2).due(), s.entry(3).due()), (due_2, due_3));
    // Touched: 1 of 5 would not do, 2 of 5 does. The old bucket moves to the width of 40 blocks.
    let at = s.height();
    s.bad(1, 1);
    s.end();
    let events = s.events("EventExecutorExcluded");
    assert_eq!(values(&events[2], &["ok", "missed", "window_blocks"]), ["3", "2", "400"]);
    assert_eq!((s.entry(1).excluded_at, s.entry(1).cooldown_blocks), (at, 7));
    s.miss(&probe);
    assert_eq!(s.entry(2).cooldown_blocks, 9, "14 blocks, but never above the lowered maximum");
}

#[test]
fn a_disabled_breaker_judges_nothing_and_filters_nothing_row_21() {
    let mut s = Scene::new(ValidationParams::default(), &[(1, 10), (2, 10), (3, 10), (4, 10)]);
    s.ready(3);
    s.trip(2);
    let probe = {
        s.trip(4);
        s.go(s.entry(4).due().unwrap());
        s.start(4)
    };
    let due = s.trip(1) + 50;
    s.set(|p| p.health_cb_enabled = false);
    assert_eq!([1, 2, 3, 4].map(|n| s.letter(n)), ['X', 'R', 'R', 'C']);
    for n in 1..=4 {
        assert_eq!(s.health(n), HealthClass::Healthy);
        let (_, admission) = s.admit(n).unwrap();
        assert!(!admission.claim && !admission.stamp.evidence, "bypass");
    }
    assert!(!s.attempt(&attempt(3, 3, 3, None)).unwrap().1.claim, "a self-request too");
    s.finish(&probe);
    assert_eq!(s.letter(4), 'H', "the verdict of a claim still counts");
    let (id, admission) = s.admit(4).unwrap();
    assert!(admission.stamp.evidence, "on H it is stamped as always");
    s.miss(&id);
    s.bad(4, 9);
    s.escrow(4, s.stamp(4), 0, 50);
    s.go(due);
    assert_eq!((s.letter(4), s.entry(4).window), ('H', Window::default()), "tallies are not kept");
    assert_eq!(s.letter(1), 'R', "due rows still run");
}

#[test]
fn shadow_mode_computes_everything_and_filters_nothing_row_22() {
    let mut s = Scene::three();
    s.set(|p| p.health_cb_shadow = true);
    s.trip(1);
    let events = s.events("EventExecutorExcluded");
    assert_eq!(values(&events[0], &["rule", "shadow"]), ["rate", "true"]);
    assert_eq!(s.health(1), HealthClass::Healthy);
    assert!(!s.admit(1).unwrap().1.stamp.evidence, "X: bypass");
    s.go(s.entry(1).due().unwrap());
    assert_eq!(s.health(1), HealthClass::Healthy);
    assert!(!s.attempt(&attempt(1, 1, SIGNER, None)).unwrap().1.claim, "R, self-request: bypass");
    let (probe, admission) = s.admit(1).unwrap();
    assert!(admission.claim, "R: as row 1");
    assert!(!s.admit(1).unwrap().1.stamp.evidence, "C: bypass");
    s.finish(&probe);
    assert_eq!(s.letter(1), 'H');
}

#[test]
fn an_epoch_switch_in_the_block_of_a_trip_a_probe_result_or_an_expiry_begins_clean() {
    let mut s = Scene::new(ValidationParams::default(), &[(1, 10), (2, 10), (3, 10), (4, 10), (5, 10)]);
    s.trip(5);
    let probes = {
        s.trip(2);
        s.go(s.entry(2).due().unwrap());
        let probe_2 = s.start(2);
        s.trip(3);
        s.go(s.entry(3).due().unwrap());
        [probe_2, s.start(3)]
    };
    // The trip is judged in the last block of the old epoch; four more start and end in the new one.
    let late: Vec<String> = (0..8).map(|_| s.start(1)).collect();
    for id in &late[..4] {
        s.miss(id);
    }
    let fresh: Vec<String> = (0..4).map(|_| s.start(4)).collect();
    s.next_epoch();
    assert_eq!(s.letter(1), 'H');
    for id in &late[4..] {
        s.miss(id);
    }
    for id in &fresh {
        s.miss(id);
    }
    s.finish(&probes[0]);
    s.miss(&probes[1]);
    s.next();
    for n in 1..=5 {
        assert_eq!(s.entry(n), Entry::default(), "executor {n}");
    }
    // Work of the new epoch counts in its first block.
    let mut s = Scene::three();
    s.next_epoch();
    s.bad(1, 4);
    s.next();
    assert_eq!(s.letter(1), 'X');
}

#[test]
fn a_cooldown_that_ends_with_the_epoch_opens_no_probe() {
    let mut s = Scene::three();
    let at = s.trip(1);
    s.go(at + 49);
    s.chain.take_events();
    s.next_epoch();
    assert_eq!(s.height(), at + 50);
    assert_eq!(s.letter(1), 'H');
    assert!(s.events("EventProbeOpened").is_empty());
}

fn export(real: &Real) -> Vec<u8> {
    let module = BreakerModule(real.group.clone());
    module.export_genesis(&real.store, &real.block.hrp).unwrap()
}

#[test]
fn export_and_import_at_random_heights_are_byte_identical_and_change_no_later_block() {
    for seed in 1..=60 {
        let start = genesis(seed);
        let mut through = Driver::new(Real::new(seed), &start);
        let mut moved = Driver::new(Real::new(seed), &start);
        let mut rng = Rng::new(seed);
        for ops in random_history(seed, 150) {
            let at = format!("seed {seed}, block {}", ops.height);
            assert_eq!(moved.run_block(&ops), through.run_block(&ops), "answers, {at}");
            let (a, b) = (&mut through.circuit, &mut moved.circuit);
            assert_eq!(real_text(a), real_text(b), "events, {at}");
            assert!(export(a) == export(b), "state, {at}");
            // At least fifty blocks are left after the last move.
            if ops.height <= 100 && rng.chance(10) {
                let bytes = export(b);
                let module = BreakerModule(b.group.clone());
                module.validate_genesis(&bytes, &b.block.hrp).unwrap_or_else(|e| panic!("{e}, {at}"));
                b.store = MemKv::default();
                let mut ctx = Context::new(&b.block, &mut b.store, &mut b.events);
                module.init_genesis(&mut ctx, &bytes).unwrap();
                assert!(export(b) == bytes, "round trip, {at}");
                crate::invariants::check(&Keeper::new(&b.group), &b.store, &b.block).unwrap();
            }
        }
    }
}

#[test]
fn replicas_with_different_restarts_hold_equal_bytes() {
    for seed in 101..=130 {
        let start = genesis(seed);
        let mut replicas = [(); 2].map(|()| Driver::new(Real::new(seed), &start));
        let mut restarts = [Rng::new(seed), Rng::new(seed + 1_000)];
        for ops in random_history(seed, 120) {
            for (replica, rng) in replicas.iter_mut().zip(&mut restarts) {
                replica.run_block(&ops);
                if rng.chance(15) {
                    let real = &mut replica.circuit;
                    let mut store = MemKv::default();
                    for (key, value) in real.store.pairs() {
                        store.set(key, value).unwrap();
                    }
                    real.store = store;
                    let block = BlockContext::new(real.block.height, real.committed.clone());
                    real.block = BlockContext { epoch: real.block.epoch, poc: real.block.poc, ..block };
                }
            }
            let [a, b] = &mut replicas;
            assert!(a.circuit.store == b.circuit.store, "seed {seed}, block {}", ops.height);
            assert_eq!(real_text(&mut a.circuit), real_text(&mut b.circuit));
        }
    }
}

// ---- one block, one entry (breaker-details 1) ----

#[test]
fn a_finish_of_the_claim_and_then_a_start_is_normal_work_under_the_new_generation() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    s.finish(&probe);
    let (id, admission) = s.admit(1).unwrap();
    assert_eq!((admission.claim, admission.stamp.evidence, admission.stamp.generation), (false, true, 2));
    s.miss(&id);
    s.next();
    assert_eq!(s.entry(1).consecutive_misses, 1);
}

#[test]
fn an_override_by_message_makes_the_tally_of_its_block_stale() {
    let mut s = Scene::three();
    s.bad(1, 4);
    let until = s.height() + 100;
    s.force(1, OverrideTo::Healthy, until);
    s.next();
    let entry = s.entry(1);
    assert_eq!((s.letter(1), entry.generation, entry.window), ('H', 1, Window::default()));
    assert!(s.events("EventExclusionRefused").is_empty());
}

#[test]
fn an_override_by_governance_after_the_judge_replaces_the_fresh_exclusion() {
    let mut s = Scene::three();
    s.bad(1, 4);
    s.end();
    assert_eq!(s.letter(1), 'X');
    let until = s.height() + 100;
    s.force(1, OverrideTo::Healthy, until);
    s.check();
    assert_eq!((s.letter(1), s.entry(1).generation, s.entry(1).due()), ('H', 2, Some(until)));
}

#[test]
fn five_misses_of_one_block_are_one_tally_one_judgement_and_one_exclusion() {
    let mut s = Scene::three();
    s.bad(1, 5);
    assert_eq!(TALLIES.iter(&s.chain.store, Order::Ascending).count(), 1);
    s.next();
    let events = s.events("EventExecutorExcluded");
    assert_eq!(events.len(), 1);
    assert_eq!(values(&events[0], &["missed", "consecutive_misses", "generation"]), ["5", "5", "1"]);
    assert_eq!(TALLIES.iter(&s.chain.store, Order::Ascending).count(), 0, "drained");
}

#[test]
fn a_finish_in_the_block_of_the_deadline_finds_the_claim_released() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    let deadline = s.entry(1).due().unwrap();
    assert_eq!(deadline, s.height() + 40, "expires_at + expiration_blocks");
    s.go(deadline - 1);
    assert_eq!(s.letter(1), 'C');
    s.chain.take_events();
    s.next();
    assert_eq!((s.letter(1), s.entry(1).ready_since, s.entry(1).generation), ('R', deadline, 1));
    assert_eq!(s.events("EventProbeOpened")[0].get("cause"), Some("deadline"));
    s.finish(&probe);
    s.next();
    assert_eq!(s.letter(1), 'R', "paid and ignored");
}

#[test]
fn a_finish_at_the_expiry_height_passes_the_probe() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    s.go(s.height() + 20);
    s.finish(&probe);
    // The record is closed, so its expiry in this block fires nothing.
    s.next();
    assert_eq!(s.letter(1), 'H');
}

#[test]
fn a_cooldown_that_ends_during_maintenance_or_poc_opens_the_probe_on_time() {
    for poc in [false, true] {
        let mut s = Scene::three();
        let at = s.trip(1);
        if poc {
            s.chain.block.poc = true;
        } else {
            s.avail(1, |standing| standing.in_maintenance = true);
            assert_eq!((s.tally().out_weight, s.tally().eligible_weight), (0, 20), "row 18");
        }
        s.go(at + 50);
        assert_eq!((s.letter(1), s.entry(1).ready_since), ('R', at + 50));
        if !poc {
            s.avail(1, |standing| standing.in_maintenance = false);
            assert_eq!((s.tally().out_weight, s.tally().eligible_weight), (10, 30), "row 19");
            assert_eq!(s.letter(1), 'R', "the state stays");
        }
    }
}

// ---- other rows ----

#[test]
fn a_self_request_is_no_evidence_and_claims_no_probe_row_2() {
    let mut s = Scene::three();
    for (requester, signer) in [(1, SIGNER), (REQUESTER, 1), (1, 1)] {
        let (id, admission) = s.attempt(&attempt(1, requester, signer, None)).unwrap();
        assert!(!admission.stamp.evidence);
        s.miss(&id);
    }
    s.next();
    assert_eq!(s.entry(1), Entry::default());
    s.ready(1);
    for (requester, signer) in [(1, SIGNER), (REQUESTER, 1), (1, 1)] {
        assert_eq!(s.attempt(&attempt(1, requester, signer, None)).unwrap_err().code, 12);
    }
    assert_eq!(s.letter(1), 'R');
}

#[test]
fn a_released_probe_goes_to_the_back_of_the_lane_with_its_cooldown_row_5() {
    let mut s = Scene::three();
    s.ready(1);
    let probe = s.start(1);
    s.miss(&probe);
    s.go(s.entry(1).due().unwrap());
    let probe = s.start(1);
    s.go(s.height() + 3);
    s.release(&probe);
    let entry = s.entry(1);
    assert_eq!((s.letter(1), entry.ready_since, entry.backoff_level), ('R', s.height(), 1));
    assert_eq!((entry.cooldown_blocks, entry.generation, entry.probe_attempts), (100, 2, 2));
    let probe = s.start(1);
    s.miss(&probe);
    assert_eq!(s.entry(1).cooldown_blocks, 200);
}

#[test]
fn a_finish_that_came_first_is_never_refused_and_counts_only_from_the_present_state_on() {
    let mut s = Scene::three();
    s.ready(1);
    let since = s.entry(1).ready_since;
    let old = s.attempt(&attempt(1, REQUESTER, SIGNER, Some(since - 1))).unwrap().1;
    assert!(!old.claim && !old.stamp.evidence, "done before the probe was ready");
    let own = s.attempt(&attempt(1, 1, SIGNER, Some(since))).unwrap().1;
    assert!(!own.claim && !own.stamp.evidence, "a self-request");
    let (id, admission) = s.attempt(&attempt(1, REQUESTER, SIGNER, Some(since))).unwrap();
    assert!(admission.claim && admission.stamp.evidence);
    s.finish(&id);
    assert_eq!(s.letter(1), 'H');
    let restored = s.height();
    s.next();
    let before = s.attempt(&attempt(1, REQUESTER, SIGNER, Some(restored - 1))).unwrap().1;
    assert!(!before.stamp.evidence, "done before the restoration");
    assert!(s.attempt(&attempt(1, REQUESTER, SIGNER, Some(restored))).unwrap().1.stamp.evidence);
    s.trip(1);
    let out = s.attempt(&attempt(1, REQUESTER, SIGNER, Some(s.height()))).unwrap().1;
    assert!(!out.claim && !out.stamp.evidence, "on X it is a bypass");
}

#[test]
fn escrow_counts_are_evidence_of_the_stamp_and_never_settle_a_probe_row_23() {
    let mut s = Scene::three();
    let stamp = s.stamp(1);
    s.escrow(1, stamp, 0, 0);
    s.end();
    assert_eq!(s.entry(1), Entry::default(), "no outcome");
    s.escrow(1, stamp, 5, 5);
    s.next();
    assert_eq!(s.letter(1), 'X', "5 of 10");
    s.go(s.entry(1).due().unwrap());
    let probe = s.start(1);
    s.escrow(1, s.stamp(1), 9, 0);
    s.escrow(1, stamp, 9, 0);
    s.next();
    assert_eq!(s.letter(1), 'C');
    s.finish(&probe);
    s.escrow(1, stamp, 0, 99);
    s.next();
    assert_eq!(s.letter(1), 'H', "a stamp of before the exclusion is stale");
}

#[test]
fn overrides_force_both_ways_and_end_at_their_height_rows_14_to_16() {
    let mut s = Scene::three();
    let until = s.height() + 30;
    s.force(1, OverrideTo::Excluded, until);
    let entry = s.entry(1);
    assert_eq!((s.letter(1), entry.generation, entry.cooldown_blocks), ('X', 1, 30));
    assert_eq!(s.health(1), HealthClass::ForcedOut);
    assert_eq!((s.tally().eligible_weight, s.tally().out_weight), (20, 0), "not eligible");
    s.set(|p| p.health_cb_shadow = true);
    assert_eq!(s.health(1), HealthClass::ForcedOut, "in shadow mode too");
    s.set(|p| (p.health_cb_shadow, p.health_cb_enabled) = (false, false));
    assert_eq!(s.health(1), HealthClass::ForcedOut, "and with the breaker off");
    assert_eq!(s.admit(1).unwrap_err().code, 13);
    s.set(|p| p.health_cb_enabled = true);
    s.force(2, OverrideTo::Healthy, until);
    s.bad(2, 50);
    s.next();
    assert_eq!(s.letter(2), 'H');
    let events = s.events("EventExclusionRefused");
    assert_eq!(values(&events[0], &["reason", "rule", "missed", "limit_pct"]), ["forced", "rate", "50", "0"]);
    s.go(until);
    assert_eq!([1, 2].map(|n| s.letter(n)), ['R', 'H']);
    assert_eq!((s.entry(1).ready_since, s.entry(1).generation), (until, 1));
    assert_eq!((s.entry(2).generation, s.entry(2).window), (2, Window::default()));
    let causes: Vec<_> = s.events("EventOverrideEnded").iter().map(|e| values(e, &["to", "cause"])).collect();
    assert_eq!(causes, [["excluded", "height"], ["healthy", "height"]]);
}

#[test]
fn a_forced_state_replaces_a_probe_and_is_replaced_and_cleared() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    s.miss(&probe);
    assert_eq!(s.entry(1).backoff_level, 1);
    s.go(s.entry(1).due().unwrap());
    let probe = s.start(1);
    let until = s.height() + 30;
    s.force(1, OverrideTo::Excluded, until);
    assert_eq!((s.letter(1), s.entry(1).backoff_level, s.entry(1).generation), ('X', 1, 3), "level kept");
    s.finish(&probe);
    assert_eq!(s.letter(1), 'X', "the claim is gone");
    s.force(1, OverrideTo::Healthy, until + 5);
    assert_eq!((s.letter(1), s.entry(1).backoff_level, s.entry(1).generation), ('H', 0, 4), "level 0");
    assert_eq!(s.entry(1).due(), Some(until + 5));
    s.force(1, OverrideTo::None, 0);
    assert_eq!((s.letter(1), s.entry(1).generation, s.entry(1).due()), ('H', 5, None));
    s.force(1, OverrideTo::Excluded, until);
    s.force(1, OverrideTo::None, 0);
    assert_eq!((s.letter(1), s.entry(1).ready_since), ('R', s.height()));
    s.check();
}

#[test]
fn live_overrides_outlast_the_epoch_and_others_do_not() {
    let mut s = Scene::three();
    s.go(10);
    s.force(1, OverrideTo::Excluded, 30);
    s.force(2, OverrideTo::Healthy, 11);
    s.next_epoch();
    assert_eq!((s.letter(1), s.entry(1).cooldown_blocks, s.entry(1).due()), ('X', 19, Some(30)));
    assert_eq!(s.health(1), HealthClass::ForcedOut);
    assert_eq!(s.entry(2), Entry::default());
    s.go(30);
    assert_eq!(s.letter(1), 'R');
}

#[test]
fn a_member_that_leaves_keeps_its_state_and_weighs_nothing_row_18() {
    let mut s = Scene::three();
    let probe = s.claimed(1);
    s.avail(1, |standing| standing.active = false);
    assert_eq!(s.letter(1), 'C');
    s.check();
    s.release(&probe);
    assert_eq!(s.letter(1), 'R', "its expiry is a release");
    s.avail(2, |standing| standing.active = false);
    s.bad(2, 4);
    s.next();
    assert_eq!(s.letter(2), 'X', "weight 0 is excluded untested");
}
