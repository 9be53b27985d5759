//! The lines of breaker.md 9 that need the chain.

use holdfast_proto::holdfast::breaker::v1::OverrideTo;
use holdfast_proto::holdfast::inference::v1::{InferenceStatus, Lane};
use holdfast_types::{QueryKind, ValidationParams};

use super::net::*;
use crate::app::Moment;

#[test]
fn in_the_poc_phase_preserved_members_are_filtered_by_health_and_nobody_else_is_drawn() {
    let executors = vec![Executor::preserved(10), Executor::preserved(20), Executor::new(40)];
    let spec = Spec { executors, epoch_length: 20, poc_length: 8, ..Spec::default() };
    let mut net = Net::new(&spec);
    // PoC is 13 to 20. Executor 0 is excluded at 11, so it stays out until 16.
    net.until(10);
    net.exclude(0);
    assert_eq!(net.height(), 11);
    assert_eq!(net.table().rows().len(), 3);
    net.blocks(2);
    let mut rng = Rng(1);
    assert_eq!((net.class(0), net.class(1), net.class(2)), (Some(2), Some(0), None));
    for _ in 0..100 {
        let drawn = net.draw(MODEL, rng.seed()).unwrap();
        assert_eq!((drawn.lane(), drawn.eligible_count), (Lane::Healthy, 2));
        assert_eq!(net.index_of(&drawn.executor.unwrap().address), 1);
    }
    net.start("not in poc", 2);
    codes(&net.block(), &[("inference", 3)]);
    net.start("not-in-poc", 2);
    net.start("excluded", 0);
    codes(&net.block(), &[("inference", 9), ("breaker", 10)]);
    // With the last healthy preserved member out, the fallback is the preserved ones, not the healthy others.
    net.start("a", 1);
    net.start("b", 1);
    net.good();
    net.report("a", 1);
    net.report("b", 1);
    let authority = override_msg(MODEL, &net.executor(0), OverrideTo::Excluded, 19);
    net.good();
    assert_eq!(net.height(), 17);
    // Executor 0 is ready by now and takes the lane alone.
    assert_eq!((net.class(0), net.class(1)), (Some(1), Some(2)));
    assert_eq!(net.draw(MODEL, [1; 32]).unwrap().lane(), Lane::Probe);
    net.govern(Moment::AfterEndBlock, authority);
    net.good();
    assert_eq!((net.class(0), net.class(1), net.class(2)), (None, Some(2), None));
    let drawn = net.draw(MODEL, [1; 32]).unwrap();
    assert_eq!((drawn.lane(), drawn.fallback, drawn.eligible_count), (Lane::Fallback, true, 1));
    assert_eq!(net.index_of(&drawn.executor.unwrap().address), 1);
    net.start("fallback", 1);
    net.good();
    assert!(!net.inference("fallback").stamp.unwrap().evidence);
}

#[test]
fn a_poc_phase_without_preserved_members_draws_nobody_and_says_why() {
    let mut net = Net::new(&Spec { epoch_length: 20, poc_length: 8, ..Spec::default() });
    net.until(13);
    assert!(net.draw(MODEL, [0; 32]).is_ok());
    net.good();
    let error = net.draw(MODEL, [0; 32]).unwrap_err();
    assert_eq!(error.kind, QueryKind::FailedPrecondition);
    assert!(error.message.ends_with(": poc"), "{error}");
    net.until(21);
    net.good();
    assert!(net.draw(MODEL, [0; 32]).is_ok());
}

#[test]
fn with_everybody_excluded_the_draw_falls_back_to_the_eligible_and_the_start_is_admitted() {
    let mut net = Net::standard();
    for executor in 0..3 {
        for n in ["a", "b"] {
            net.start(&format!("{executor}{n}"), executor);
        }
    }
    net.good();
    for executor in 0..3 {
        for n in ["a", "b"] {
            net.report(&format!("{executor}{n}"), executor);
        }
    }
    net.good();
    assert_eq!([0, 1, 2].map(|n| net.state(n)), ["X"; 3]);
    let mut rng = Rng(2);
    let mut drawn = [0; 3];
    for _ in 0..60 {
        let reply = net.draw(MODEL, rng.seed()).unwrap();
        assert!(reply.fallback && reply.lane() == Lane::Fallback && reply.eligible_count == 3);
        drawn[net.index_of(&reply.executor.unwrap().address)] += 1;
    }
    assert!(drawn.iter().all(|n| *n > 0), "{drawn:?}");
    net.start("fallback", 1);
    net.good();
    assert!(!net.inference("fallback").stamp.unwrap().evidence);
    net.finish("fallback", 1);
    net.good();
    // Work of the fallback restores nobody and blames nobody.
    assert_eq!((net.state(1), net.entry(1).generation), ("X", 1));
    // Once one is healthy again, the others are refused.
    net.until(7);
    net.good();
    assert_eq!(net.state(0), "R");
    net.start("probe", 0);
    net.good();
    net.finish("probe", 0);
    net.good();
    net.start("probe-1", 1);
    net.good();
    net.start("again", 1);
    codes(&net.block(), &[("breaker", 11)]);
}

#[test]
fn finishes_forged_by_another_executor_change_nothing() {
    let mut net = Net::standard();
    net.make_ready(0);
    net.start("probe", 0);
    net.start("plain", 1);
    net.good();
    let (entry, tally) = (net.entry(0), net.tally());
    let (probe, plain) = (net.inference("probe"), net.inference("plain"));
    let money = net.balance(&net.executor(2).address);
    net.finish("probe", 2);
    net.finish("plain", 2);
    net.finish("probe", 1);
    codes(&net.block(), &[("inference", 14); 3]);
    assert_eq!((net.entry(0), net.tally()), (entry, tally));
    assert_eq!((net.inference("probe"), net.inference("plain")), (probe, plain));
    assert_eq!(net.balance(&net.executor(2).address), money);
    assert_eq!(net.stats(2, 0).inference_count, 0);
}

#[test]
fn a_finish_at_the_last_height_wins_over_expiry_and_one_later_is_refused() {
    let mut net = Net::standard();
    net.start("in-time", 0);
    net.start("late", 0);
    net.good();
    assert_eq!(net.inference("late").expires_at, 4);
    net.until(4);
    net.finish("in-time", 0);
    let done = net.good();
    assert_eq!(net.height(), 4);
    assert_eq!(find(&done.events, "EventInferenceMissed").len(), 1);
    assert_eq!(net.status("in-time"), InferenceStatus::Finished);
    assert_eq!(net.status("late"), InferenceStatus::Expired);
    // One block with a success: the streak is reset, whatever the order.
    assert_eq!(net.entry(0).consecutive_misses, 0);
    net.finish("late", 0);
    net.report("late", 0);
    net.cancel("late");
    codes(&net.block(), &[("inference", 13); 3]);
}

#[test]
fn of_two_starts_in_one_block_on_one_probe_the_second_is_refused() {
    let mut net = Net::standard();
    net.make_ready(0);
    net.start("first", 0);
    let msg = net.start_msg(1, "second", MODEL, 0);
    net.push(&net.gateway(1), vec![msg]);
    codes(&net.block(), &[("", 0), ("breaker", 11)]);
    assert_eq!(net.entry(0).probe.unwrap().inference_id, "first");
    assert_eq!(net.balance(&net.gateway(1).address), BALANCE);
}

#[test]
fn a_failed_transaction_leaves_no_claim() {
    let mut net = Net::standard();
    net.make_ready(0);
    let claim = net.start_msg(0, "claim", MODEL, 0);
    let broken = net.start_msg(0, "broken", "no-such-model", 1);
    net.push(&net.gateway(0), vec![claim, broken]);
    codes(&net.block(), &[("inference", 4)]);
    assert_eq!((net.state(0), net.entry(0).probe_attempts), ("R", 0));
    net.start("claim", 0);
    net.good();
    assert_eq!(net.state(0), "C");
}

/// Epochs of ten blocks: the second begins with block 11.
fn short() -> Net {
    Net::new(&Spec { epoch_length: 10, ..Spec::default() })
}

#[test]
fn a_trip_in_the_first_block_of_an_epoch_counts_for_the_old_one_only() {
    let mut net = short();
    net.until(10);
    net.start("a", 0);
    net.start("b", 0);
    net.good();
    net.report("a", 0);
    net.report("b", 0);
    let done = net.good();
    assert_eq!(net.height(), 11);
    assert_eq!(find(&all_events(&done), "EventInferenceMissed").len(), 2);
    assert!(find(&done.events, "EventExecutorExcluded").is_empty());
    assert_eq!(net.entry(0), holdfast_breaker::Entry::default());
    assert_eq!((net.stats(0, 0).missed_requests, net.stats(0, 1).missed_requests), (2, 0));
    // Two misses given inside the new epoch do count.
    net.exclude(0);
}

#[test]
fn a_trip_in_the_last_block_of_an_epoch_is_gone_with_it() {
    let mut net = short();
    net.until(9);
    net.exclude(0);
    assert_eq!(net.height(), 10);
    let done = net.good();
    assert_eq!(names(&done.events), ["EventEpochEnded", "EventEpochStarted", "EventBreakerReset"]);
    assert_eq!((net.state(0), net.class(0)), ("H", Some(0)));
    // Its cooldown would have ended at 15.
    net.until(15);
    let done = net.good();
    assert!(names(&done.events).is_empty());
}

#[test]
fn a_probe_settled_in_the_first_block_of_an_epoch_is_nobodys_probe() {
    for finish in [true, false] {
        let mut net = short();
        net.until(3);
        net.make_ready(0);
        net.start("probe", 0);
        net.good();
        assert_eq!((net.height(), net.state(0)), (10, "C"));
        if finish {
            net.finish("probe", 0);
        } else {
            net.report("probe", 0);
        }
        let done = net.good();
        let events = all_events(&done);
        assert!(find(&events, "EventExecutorRestored").is_empty());
        assert!(find(&events, "EventExecutorExcluded").is_empty());
        assert_eq!(net.entry(0), holdfast_breaker::Entry::default());
        // The deadline of the old claim would have been 16.
        net.until(16);
        assert!(names(&net.good().events).is_empty());
    }
}

#[test]
fn an_expiry_in_the_first_block_of_an_epoch_is_a_miss_of_the_old_one() {
    let mut net = short();
    net.until(8);
    net.start("a", 0);
    net.start("b", 0);
    net.good();
    net.until(11);
    let done = net.good();
    assert_eq!(find(&done.events, "EventInferenceMissed").len(), 2);
    assert_eq!(names(&done.events)[..3], ["EventEpochEnded", "EventEpochStarted", "EventBreakerReset"]);
    assert_eq!(net.entry(0), holdfast_breaker::Entry::default());
    assert_eq!(net.stats(0, 0).missed_requests, 2);
}

#[test]
fn a_start_in_the_first_block_of_an_epoch_belongs_to_it() {
    let mut net = short();
    net.until(9);
    net.exclude(0);
    net.start("new", 0);
    net.good();
    let stamp = net.inference("new").stamp.unwrap();
    assert_eq!((stamp.epoch, stamp.generation, stamp.evidence), (1, 0, true));
}

#[test]
fn misses_of_work_given_before_an_exclusion_do_not_fail_the_recovered_executor() {
    let mut validation = ValidationParams { expiration_blocks: 30, ..quick() };
    validation.health_cb_probation_blocks = 100;
    let mut net = Net::new(&Spec { validation, ..Spec::default() });
    for n in 0..5 {
        net.start(&format!("old-{n}"), 0);
    }
    net.exclude(0);
    net.blocks(5);
    net.start("probe", 0);
    net.good();
    net.finish("probe", 0);
    net.good();
    assert_eq!((net.height(), net.state(0)), (9, "H"));
    // The five old ones expire at 31.
    net.until(31);
    let done = net.good();
    assert_eq!(find(&done.events, "EventInferenceMissed").len(), 5);
    for height in 31..60 {
        assert_eq!((net.state(0), net.entry(0).consecutive_misses), ("H", 0), "{height}");
        let id = format!("good-{height}");
        net.start(&id, 0);
        net.good();
        net.finish(&id, 0);
        net.good();
    }
    assert_eq!(net.entry(0).generation, 2);
}

#[test]
fn parameters_that_change_during_a_cooldown_or_a_claim_leave_it_as_it_is() {
    let mut net = Net::standard();
    net.exclude(0);
    let due = net.entry(0).due();
    let new = ValidationParams {
        health_cb_initial_cooldown_blocks: 1,
        health_cb_max_cooldown_blocks: 2,
        expiration_blocks: 9,
        ..quick()
    };
    let paths = [
        "validation.health_cb_initial_cooldown_blocks",
        "validation.health_cb_max_cooldown_blocks",
        "validation.expiration_blocks",
    ];
    net.govern(Moment::AfterEndBlock, validation_msg(new, 1, &paths));
    net.good();
    assert_eq!(net.entry(0).due(), due);
    net.until(7);
    assert_eq!(net.state(0), "X");
    net.good();
    assert_eq!(net.state(0), "R");
    net.start("probe", 0);
    net.good();
    assert_eq!(net.entry(0).probe.unwrap().deadline_block, 8 + 9 + 9);
    let back = ValidationParams { expiration_blocks: 3, ..quick() };
    net.govern(Moment::AfterEndBlock, validation_msg(back, 1, &paths[2..]));
    net.good();
    assert_eq!(net.entry(0).probe.unwrap().deadline_block, 26);
    net.report("probe", 0);
    net.good();
    assert_eq!((net.state(0), net.entry(0).cooldown_blocks), ("X", 2));
}

#[test]
fn an_override_outlives_the_epoch_and_holds_in_the_table() {
    let mut net = short();
    let who = net.executor(0);
    net.govern(Moment::AfterEndBlock, override_msg(MODEL, &who, OverrideTo::Excluded, 15));
    net.good();
    assert_eq!((net.class(0), net.tally().eligible_weight), (None, 20));
    net.start("forced", 0);
    codes(&net.block(), &[("breaker", 13)]);
    net.until(11);
    let done = net.good();
    assert_eq!(
        names(&done.events),
        [
            "EventEpochEnded",
            "EventEpochStarted",
            "EventBreakerReset",
            "EventOverrideSet",
            "EventExecutorExcluded"
        ]
    );
    assert_eq!((net.class(0), net.tally().eligible_weight), (None, 20));
    net.until(15);
    net.good();
    assert_eq!((net.state(0), net.class(0)), ("R", Some(1)));
    assert_eq!(net.tally().eligible_weight, 30);
}
