//! Hooks: each one fired through the real app changes its listener's state.

use holdfast_breaker::ModelTally;
use holdfast_proto::holdfast::inference::v1::InferenceStatus;
use holdfast_types::ValidationParams;
use holdfast_types::traits::{EscrowCounts, EscrowHooks};

use super::net::*;
use crate::app::Moment;
use crate::composition::{Policy, STEPS};

fn tally(eligible: u128, out: u128, healthy: u32, poc: u32) -> ModelTally {
    ModelTally { eligible_weight: eligible, out_weight: out, healthy_all: healthy, healthy_poc: poc }
}

#[test]
fn the_steps_of_a_block_stand_in_the_order_of_the_specification() {
    let steps: Vec<_> = STEPS.iter().map(|s| (s.name, s.policy)).collect();
    use Policy::{DiscardAndRecord, Halt};
    assert_eq!(
        steps,
        [
            ("B0 upgrade", Halt),
            ("B1 inference", Halt),
            ("B2 epochs", Halt),
            ("B3 participants", DiscardAndRecord),
            ("B4 breaker", DiscardAndRecord),
            ("E1 inference expiry", DiscardAndRecord),
            ("E1 escrow close", DiscardAndRecord),
            ("E2 inference sprt", DiscardAndRecord),
            ("E3 breaker", DiscardAndRecord),
            ("E4 validators", DiscardAndRecord),
            ("E4 prune", DiscardAndRecord),
            ("E5 gov", DiscardAndRecord),
        ]
    );
    assert!(STEPS.iter().all(|s| !s.reason.is_empty()));
}

#[test]
fn steps_that_meet_in_one_block_run_in_the_written_order() {
    let validation = ValidationParams { downtime_sprt_enabled: true, ..quick() };
    let executors = vec![Executor::new(10); 5];
    let mut net = Net::new(&Spec { validation, executors, ..Spec::default() });
    // Executor 0 is excluded at 2, so its cooldown ends at 7.
    net.exclude(0);
    // At 4 work is given that is due at 7: two pieces to executor 1, six to executor 2.
    net.until(4);
    for (n, executor) in [1, 1, 2, 2, 2, 2, 2, 2].into_iter().enumerate() {
        net.start(&format!("due-{n}"), executor);
    }
    let away = net.executor(3);
    net.push(&away, vec![announce_msg(&away, 7, 9)]);
    net.good();
    net.until(7);
    let done = net.good();
    let missed = ["EventInferenceMissed"; 8];
    let mut expected = vec!["EventMaintenanceStarted", "EventProbeOpened"];
    expected.extend(missed);
    expected.extend(["EventParticipantDeactivated", "EventExecutorExcluded", "EventExecutorExcluded"]);
    assert_eq!(names(&done.events), expected);
    let modes: Vec<_> = done.events.iter().filter_map(|e| e.get("mode")).collect();
    assert!(modes.is_sorted() && modes.len() == done.events.len(), "{modes:?}");
    let begun = done.events.iter().filter(|e| e.get("mode") == Some("BeginBlock"));
    assert_eq!(begun.filter(|e| e.kind.starts_with("holdfast.")).count(), 2);
}

#[test]
fn a_start_claims_the_probe_and_its_finish_restores_the_executor() {
    let mut net = Net::standard();
    assert_eq!(net.tally(), tally(30, 0, 3, 0));
    net.exclude(0);
    assert_eq!(net.tally(), tally(30, 10, 2, 0));
    assert_eq!(net.class(0), Some(2));
    net.blocks(4);
    assert_eq!(net.state(0), "X");
    net.good();
    assert_eq!((net.state(0), net.class(0)), ("R", Some(1)));
    net.start("probe", 0);
    net.good();
    assert_eq!((net.state(0), net.class(0)), ("C", Some(2)));
    let claim = net.entry(0).probe.unwrap();
    assert_eq!((claim.inference_id.as_str(), claim.deadline_block), ("probe", net.height() + 6));
    net.finish("probe", 0);
    let done = net.good();
    assert_eq!((net.state(0), net.class(0)), ("H", Some(0)));
    assert_eq!((net.entry(0).generation, net.entry(0).restored_at), (2, net.height()));
    assert_eq!(net.tally(), tally(30, 0, 3, 0));
    assert_eq!(
        names(&done.tx_results[0].events),
        ["EventInferenceFinished", "EventExecutorRestored"],
        "{:?}",
        done.tx_results[0].events
    );
}

#[test]
fn a_failed_probe_excludes_again_for_twice_as_long_and_a_released_one_stays_ready() {
    let mut net = Net::standard();
    net.make_ready(0);
    net.start("cancelled", 0);
    net.good();
    net.cancel("cancelled");
    net.good();
    assert_eq!((net.state(0), net.entry(0).ready_since), ("R", net.height()));
    net.start("failed", 0);
    net.good();
    net.report("failed", 0);
    net.good();
    assert_eq!((net.state(0), net.entry(0).cooldown_blocks), ("X", 10));
}

#[test]
fn a_miss_at_expiry_excludes_at_the_end_of_that_block() {
    let mut net = Net::standard();
    net.start("a", 0);
    net.start("b", 0);
    net.good();
    net.blocks(2);
    assert_eq!((net.height(), net.state(0)), (3, "H"));
    let done = net.good();
    assert_eq!((net.height(), net.state(0), net.entry(0).excluded_at), (4, "X", 4));
    assert_eq!(
        names(&done.events),
        ["EventInferenceMissed", "EventInferenceMissed", "EventExecutorExcluded"]
    );
    // The payer has everything back.
    assert_eq!(net.balance(&net.gateway(0).address), BALANCE);
}

#[test]
fn an_epoch_resets_the_breaker_and_rolls_the_groups() {
    let mut net = Net::new(&Spec { epoch_length: 20, ..Spec::default() });
    net.exclude(0);
    let who = net.executor(1);
    net.push(&who, vec![deposit_msg(&who, 5)]);
    let new = net.outsider(0);
    net.push(&new, vec![register_msg(&new, &[MODEL], 7)]);
    net.good();
    let old = net.table();
    assert_eq!((net.standing(1).weight, net.tally().eligible_weight), (10, 30));
    net.until(21);
    let done = net.good();
    assert_eq!(names(&done.events), ["EventEpochEnded", "EventEpochStarted", "EventBreakerReset"]);
    assert_eq!(net.entry(0), holdfast_breaker::Entry::default());
    assert_eq!((net.standing(1).weight, net.tally()), (15, tally(42, 0, 4, 0)));
    let table = net.table();
    assert_eq!((table.rows().len(), table.header().epoch), (4, 1));
    assert_ne!(table.digest(), old.digest());
    assert!(table.rows().iter().all(|row| row.class == 0));
}

#[test]
fn maintenance_moves_the_sums_and_the_table() {
    let mut net = Net::standard();
    net.exclude(0);
    let who = net.executor(0);
    net.push(&who, vec![announce_msg(&who, 5, 8)]);
    let who = net.executor(1);
    net.push(&who, vec![announce_msg(&who, 6, 8)]);
    net.good();
    net.until(5);
    assert_eq!(net.tally(), tally(30, 10, 2, 0));
    net.good();
    assert_eq!((net.tally(), net.class(0)), (tally(20, 0, 2, 0), None));
    net.good();
    assert_eq!((net.tally(), net.class(1)), (tally(10, 0, 1, 0), None));
    net.start("away", 1);
    codes(&net.block(), &[("inference", 9)]);
    // At 8 both windows end; the cooldown ended at 7, unseen.
    net.good();
    assert_eq!((net.height(), net.tally()), (8, tally(30, 10, 2, 0)));
    assert_eq!((net.class(0), net.class(1)), (Some(1), Some(0)));
}

#[test]
fn a_verdict_of_the_slow_breaker_takes_the_executor_out_of_the_sums() {
    let validation =
        ValidationParams { downtime_sprt_enabled: true, health_cb_consecutive_misses: 0, ..quick() };
    let mut net = Net::new(&Spec { validation, epoch_length: 30, ..Spec::default() });
    for n in 0..6 {
        net.start(&format!("s{n}"), 0);
    }
    net.good();
    for n in 0..5 {
        net.report(&format!("s{n}"), 0);
    }
    net.good();
    assert!(net.standing(0).active);
    net.report("s5", 0);
    let done = net.good();
    let verdict = find(&done.events, "EventParticipantDeactivated");
    assert_eq!((verdict.len(), verdict[0].get("llr")), (1, Some("4158883083360")));
    assert!(!net.standing(0).active);
    assert_eq!((net.tally(), net.class(0)), (tally(20, 0, 2, 0), None));
    net.start("more", 0);
    codes(&net.block(), &[("inference", 8)]);
    net.until(31);
    net.good();
    assert_eq!((net.tally(), net.class(0)), (tally(30, 0, 3, 0), Some(0)));
}

#[test]
fn leaving_takes_the_executor_out_at_once_and_excuses_its_open_work() {
    let mut net = Net::standard();
    net.exclude(0);
    net.start("left", 1);
    net.good();
    for executor in [0, 1] {
        let who = net.executor(executor);
        net.push(&who, vec![leave_msg(&who)]);
    }
    net.good();
    assert_eq!((net.tally(), net.table().rows().len()), (tally(10, 0, 1, 0), 1));
    net.blocks(2);
    assert_eq!(net.status("left"), InferenceStatus::Released);
    assert_eq!((net.entry(1).consecutive_misses, net.stats(1, 0).missed_requests), (0, 0));
}

#[test]
fn a_dropped_model_counts_for_that_model_only() {
    let executors = vec![Executor::serving(10, &[MODEL, OTHER]); 2];
    let mut net = Net::new(&Spec { executors, ..Spec::default() });
    let who = net.executor(0);
    net.push(&who, vec![serve_msg(&who, &[OTHER], false)]);
    net.good();
    assert_eq!((net.tally(), net.class(0)), (tally(10, 0, 1, 0), None));
    let other = net.shared.view(0).unwrap().table(net.shared.composition(), OTHER).unwrap();
    assert_eq!(other.rows().len(), 2);
}

#[test]
fn the_models_of_one_executor_are_judged_apart() {
    let executors = vec![Executor::serving(10, &[MODEL, OTHER]); 2];
    let mut net = Net::new(&Spec { executors, ..Spec::default() });
    net.exclude(0);
    assert_eq!(net.entry_of(OTHER, 0), holdfast_breaker::Entry::default());
    let msg = net.start_msg(0, "other", OTHER, 0);
    net.push(&net.gateway(0), vec![msg]);
    net.good();
}

#[test]
fn escrow_counts_are_judged_with_the_block_and_settle_no_probe() {
    let mut net = Net::standard();
    let settle = |net: &mut Net, executor: usize, generation: u32, ok: u64, missed: u64| {
        let participant = net.executor(executor).address;
        net.app.authority = Some(Box::new(move |moment, composition, ctx| {
            if moment == Moment::BeforeTransactions {
                let epoch = ctx.block.epoch;
                let stamp = holdfast_types::traits::Stamp { epoch, generation, evidence: true };
                let (assigned, released, earned) = (ok + missed, 0, 0);
                let model = MODEL.to_owned();
                let counts =
                    EscrowCounts { model, participant, stamp, assigned, ok, missed, released, earned };
                composition.with(|hooks| hooks.breaker().after_escrow_settled(ctx, &counts)).unwrap();
            }
        }));
        let block = crate::app::Block { height: net.height() + 1, ..Default::default() };
        net.app.finalize_block(&block).unwrap();
        net.app.commit().unwrap();
        net.app.authority = None;
        net.shared.check_invariants().unwrap();
    };
    settle(&mut net, 0, 1, 0, 9);
    assert_eq!(net.state(0), "H");
    settle(&mut net, 0, 0, 0, 2);
    assert_eq!((net.state(0), net.class(0)), ("X", Some(2)));
    net.blocks(5);
    net.start("probe", 0);
    net.good();
    settle(&mut net, 0, 1, 5, 0);
    assert_eq!(net.state(0), "C");
}
