use super::*;

const FULL: u128 = 30;

#[test]
fn a_finish_pays_the_work_done_and_refunds_the_rest() {
    let mut w = World::new();
    w.near.generation = 4;
    w.near.claim = true;
    w.start("a", 1).unwrap();
    assert_eq!((w.held(51), w.escrow()), (RICH - FULL, FULL));
    assert_eq!(w.status("a"), Some(Status::Started));
    assert_eq!(w.record("a").unwrap().expires_at, 21);
    w.go(3);
    w.finish("a", 1).unwrap();
    assert_eq!((w.held(51), w.held(1), w.escrow()), (RICH - 15, 15, 0));
    let record = w.record("a").unwrap();
    assert_eq!(
        (record.status, record.paid, record.refunded, record.end_height),
        (Status::Finished, 15, 15, 3)
    );
    let stats = EpochStats {
        assigned: 1,
        inference_count: 1,
        prompt_tokens: 10,
        completion_tokens: 5,
        earned: 15,
        ..Default::default()
    };
    assert_eq!(w.stats(0, 1), stats);
    assert_eq!(w.heard(), ["started a 0 claim", "finished a 0"]);
    let event = w.events.first().unwrap();
    let executor = text(1);
    let expected = [
        ("inference_id", "a"),
        ("model", "m1"),
        ("assigned_to", executor.as_str()),
        ("epoch", "0"),
        ("generation", "4"),
        ("evidence", "true"),
    ];
    let names: Vec<_> = event.attributes.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(names, expected);
    assert_eq!(w.kinds(), ["EventInferenceStarted", "EventInferenceFinished"]);
}

#[test]
fn a_signer_may_pay_for_another_requester_and_gets_the_refund() {
    let mut w = World::new();
    w.send_start(pb::MsgStartInference { requested_by: text(52), ..start_msg("a", 1) }).unwrap();
    assert_eq!(w.near.attempts.take(), [(who(52), who(51), None)]);
    refused(w.cancel("a", 51), 2);
    w.cancel("a", 52).unwrap();
    assert_eq!((w.held(51), w.held(52)), (RICH, RICH));
}

#[test]
fn a_finish_never_costs_more_than_was_paid_in() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    let msg =
        pb::MsgFinishInference { prompt_tokens: u64::MAX, completion_tokens: u64::MAX, ..finish_msg("a", 1) };
    w.run(|ctx, deps| msg_server::finish_inference(ctx, deps, msg)).unwrap();
    assert_eq!((w.held(51), w.held(1), w.escrow()), (RICH - FULL, FULL, 0));
    w.start("b", 1).unwrap();
    w.finish("b", 1).unwrap();
    assert_eq!(w.stats(0, 1).prompt_tokens, u64::MAX, "stops there, does not wrap");
    assert_eq!(w.stats(0, 1).earned, FULL + 15);
}

#[test]
fn the_price_stands_in_the_record_and_a_change_acts_from_the_next_block() {
    let mut w = World::new();
    w.start("old", 1).unwrap();
    let mut params = Params::load(&w.store).unwrap();
    params.token_price.amount = 3;
    crate::state::PARAMS.set(&mut w.store, &params).unwrap();
    w.start("same block", 1).unwrap_err();
    w.start("same-block", 1).unwrap();
    w.go(2);
    w.start("new", 1).unwrap();
    assert_eq!(w.escrow(), 30 + 30 + 90);
    for id in ["old", "same-block", "new"] {
        w.finish(id, 1).unwrap();
    }
    assert_eq!((w.held(1), w.held(51), w.escrow()), (15 + 15 + 45, RICH - 75, 0));
}

#[test]
fn a_report_is_a_miss_whatever_its_kind_and_refunds_all() {
    let mut w = World::new();
    for kind in [0, 7, u32::MAX] {
        let id = format!("k{kind}");
        w.start(&id, 1).unwrap();
        let msg = pb::MsgReportFailure { executor: text(1), inference_id: id.clone(), kind };
        w.run(|ctx, deps| msg_server::report_failure(ctx, deps, msg)).unwrap();
        let record = w.record(&id).unwrap();
        assert_eq!((record.status, record.failure_kind, record.refunded), (Status::Failed, kind, FULL));
    }
    assert_eq!((w.held(51), w.escrow()), (RICH, 0));
    assert_eq!(w.stats(0, 1).missed_requests, 3);
    assert_eq!(w.heard()[1], "missed k0 0");
    assert_eq!(w.kinds()[1], "EventInferenceMissed reported");
}

#[test]
fn a_cancel_is_no_miss_and_refunds_all() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.cancel("a", 51).unwrap();
    assert_eq!((w.status("a"), w.held(51), w.escrow()), (Some(Status::Cancelled), RICH, 0));
    let stats = w.stats(0, 1);
    assert_eq!((stats.assigned, stats.released, stats.missed_requests), (1, 1, 0));
    assert_eq!(w.heard(), ["started a 0", "released a 0"]);
    assert_eq!(w.kinds()[1], "EventInferenceReleased cancelled");
    w.end();
    assert!(crate::state::SPRT.get(&w.store, &(0, who(1))).unwrap().is_none(), "nothing to judge");
}

#[test]
fn finish_before_start_gives_the_same_record_balances_and_counts_as_after() {
    let run = |finish_first: bool| {
        let mut w = World::new();
        if finish_first {
            w.finish("a", 1).unwrap();
            assert_eq!(w.status("a"), Some(Status::FinishedFirst));
            assert_eq!((w.heard().len(), w.stats(0, 1)), (0, EpochStats::default()), "nothing counts yet");
            w.start("a", 1).unwrap();
        } else {
            w.start("a", 1).unwrap();
            w.finish("a", 1).unwrap();
        }
        let seen = w.near.attempts.take();
        assert_eq!(seen, [(who(51), who(51), finish_first.then_some(1))]);
        w.end();
        let heard = w.heard();
        (w.record("a"), w.held(51), w.held(1), w.escrow(), w.stats(0, 1), heard, w.kinds(), w.store)
    };
    let (first, after) = (run(true), run(false));
    assert_eq!(first.5, ["started a 0", "finished a 0"]);
    assert_eq!(
        (&first.0, first.1, first.2, first.3, &first.4),
        (&after.0, after.1, after.2, after.3, &after.4)
    );
    assert_eq!((first.5, first.6), (after.5, after.6));
    let rows = |s: &MemKv| {
        s.scan(b"", None, holdfast_store::Order::Ascending).map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(rows(&first.7), rows(&after.7), "every stored byte");
}

#[test]
fn a_start_some_blocks_after_its_finish_settles_at_once_and_keeps_both_heights() {
    let mut w = World::new();
    w.finish("a", 1).unwrap();
    w.go(21);
    w.near.claim = true;
    w.start("a", 1).unwrap();
    let record = w.record("a").unwrap();
    assert_eq!(record.status, Status::Finished);
    assert_eq!((record.answer.unwrap().height, record.start.unwrap().height, record.end_height), (1, 21, 21));
    assert_eq!((w.held(1), w.held(51), w.escrow()), (15, RICH - 15, 0));
    assert_eq!(w.heard(), ["started a 0 claim", "finished a 0"]);
    w.go(60);
    assert_eq!(w.status("a"), Some(Status::Finished), "no timeout row was left");
}

#[test]
fn a_waiting_finish_without_start_is_removed_when_its_time_is_over() {
    let mut w = World::new();
    w.finish("a", 1).unwrap();
    w.go(21);
    assert_eq!(w.status("a"), Some(Status::FinishedFirst), "height 1 + 20 still counts");
    w.go(22);
    assert_eq!(w.status("a"), None);
    assert_eq!((w.heard().len(), w.kinds().len(), w.stats(0, 1)), (0, 0, EpochStats::default()));
    w.start("a", 2).unwrap();
    assert_eq!(w.status("a"), Some(Status::Started), "the id is free again");
}

#[test]
fn a_waiting_finish_is_forgotten_in_time_even_behind_a_backlog_of_timeouts() {
    for again in [false, true] {
        let mut w = World::new();
        w.finish("a", 1).unwrap();
        // No end of a block so far: the timeout is still in the queue.
        w.begin(22);
        assert_eq!(w.status("a"), Some(Status::FinishedFirst));
        if again {
            w.finish("a", 2).unwrap();
            assert_eq!(w.record("a").map(|r| r.expires_at), Some(42), "a new wait");
        } else {
            w.start("a", 2).unwrap();
            assert_eq!(w.status("a"), Some(Status::Started), "not settled by the old answer");
        }
        // The old timeout is gone with the old record.
        w.end();
        assert!(w.status("a").is_some());
        w.go(42);
        w.go(43);
        assert_eq!(w.status("a"), (!again).then_some(Status::Expired));
    }
}

#[test]
fn a_start_for_another_executor_than_the_one_who_finished_is_refused() {
    let mut w = World::new();
    w.finish("a", 2).unwrap();
    refused(w.start("a", 1), 14);
    w.start("a", 2).unwrap();
    assert_eq!(w.held(2), 15);
}

#[test]
fn a_second_finish_first_is_closed_and_a_strangers_is_a_mismatch() {
    let mut w = World::new();
    w.finish("a", 1).unwrap();
    refused(w.finish("a", 1), 12);
    refused(w.finish("a", 2), 14);
    refused(w.report("a", 1), 11);
    refused(w.cancel("a", 51), 11);
}

#[test]
fn a_finish_by_another_changes_nothing() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    let before = w.record("a");
    refused(w.finish("a", 2), 14);
    refused(w.report("a", 2), 14);
    assert_eq!(w.record("a"), before);
    assert_eq!((w.held(2), w.stats(0, 2), w.heard().len()), (0, EpochStats::default(), 1));
    w.finish("a", 1).unwrap();
}

#[test]
fn a_finish_at_expires_at_counts_and_one_block_later_is_refused() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.start("b", 1).unwrap();
    w.go(21);
    w.finish("a", 1).unwrap();
    w.go(22);
    refused(w.finish("b", 1), 13);
    assert_eq!((w.status("a"), w.status("b")), (Some(Status::Finished), Some(Status::Expired)));
    assert_eq!((w.stats(0, 1).inference_count, w.stats(0, 1).missed_requests), (1, 1));
    assert_eq!(w.held(1), 15, "no pay for the late one");
    let heard = w.heard();
    assert_eq!(heard[2..], ["finished a 0", "missed b 0"]);
}

#[test]
fn a_message_that_fails_late_leaves_nothing_behind() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.kinds();
    let before = w.store.clone();
    w.near.deaf_to.borrow_mut().extend(["a".to_owned(), "b".to_owned()]);
    let error = w.finish("a", 1).unwrap_err();
    assert_eq!((error.codespace, error.code), ("breaker", 99));
    w.start("b", 1).unwrap_err();
    w.report("a", 1).unwrap_err();
    w.cancel("a", 51).unwrap_err();
    let rows = |s: &MemKv| {
        s.scan(b"", None, holdfast_store::Order::Ascending).map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(rows(&w.store), rows(&before), "money, record, counts, index rows");
    assert_eq!(w.kinds(), [] as [&str; 0]);
}

#[test]
fn a_refund_that_fails_keeps_the_inference_open_and_unpaid() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.near.bank_closed.set(true);
    assert_eq!(w.finish("a", 1).unwrap_err().codespace, "bank");
    assert_eq!(w.start("b", 1).unwrap_err().codespace, "bank", "only a lack of funds is code 10");
    w.near.bank_closed.set(false);
    assert_eq!((w.status("a"), w.stats(0, 1).inference_count), (Some(Status::Started), 0));
    w.finish("a", 1).unwrap();
}

#[test]
fn an_outcome_of_a_past_epoch_counts_there_and_not_for_the_slow_breaker() {
    let mut w = World::new();
    w.go(95);
    for id in ["late", "good"] {
        w.start(id, 1).unwrap();
    }
    w.go(101);
    assert_eq!(w.block.epoch, 1);
    w.finish("good", 1).unwrap();
    w.go(116);
    assert_eq!(w.status("late"), Some(Status::Expired));
    let (old, new) = (w.stats(0, 1), w.stats(1, 1));
    assert_eq!((old.assigned, old.inference_count, old.missed_requests, old.earned), (2, 1, 1, 15));
    assert_eq!(new, EpochStats::default());
    assert!(crate::state::SPRT.get(&w.store, &(1, who(1))).unwrap().is_none());
    assert_eq!(w.heard()[2..], ["finished good 0", "missed late 0"], "listeners judge by the stamp");
}

#[test]
fn an_outcome_older_than_the_kept_statistics_brings_no_row_back() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    // 300 blocks on, without the steps in between: a chain that raised expiration_blocks far enough.
    let mut record = w.record("a").unwrap();
    record.expires_at = 400;
    crate::state::INFERENCES.set(&mut w.store, &"a".to_owned(), &record).unwrap();
    w.begin(301);
    w.end();
    assert_eq!(w.stats(0, 1), EpochStats::default(), "pruned");
    w.begin(302);
    w.finish("a", 1).unwrap();
    assert_eq!((w.stats(0, 1), w.held(1)), (EpochStats::default(), 15));
}
