//! Expiry and pruning. The slow breaker's step is tested beside its arithmetic.

use holdfast_store::{KeyCodec, KvWrite};

use super::*;

#[test]
fn an_unexcused_expiry_is_one_miss_and_refunds() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.go(21);
    assert_eq!(w.status("a"), Some(Status::Started));
    w.go(22);
    let record = w.record("a").unwrap();
    assert_eq!((record.status, record.refunded, record.end_height), (Status::Expired, 30, 21));
    assert_eq!((w.held(51), w.escrow(), w.stats(0, 1).missed_requests), (RICH, 0, 1));
    w.go(60);
    assert_eq!(w.heard(), ["started a 0", "missed a 0"], "exactly once");
    assert_eq!(w.kinds(), ["EventInferenceStarted", "EventInferenceMissed expired"]);
}

#[test]
fn an_excused_expiry_is_a_release_with_the_cause_and_refunds() {
    for (excuse, cause) in
        [(Excuse::Maintenance, "maintenance"), (Excuse::Poc, "poc"), (Excuse::Left, "left")]
    {
        let mut w = World::new();
        w.go(3);
        w.start("a", 1).unwrap();
        w.near.excuses.insert(who(1), excuse);
        w.go(24);
        assert_eq!(w.status("a"), Some(Status::Released));
        assert_eq!(w.kinds()[1], format!("EventInferenceReleased {cause}"));
        assert_eq!(w.heard()[1], "released a 0");
        let stats = w.stats(0, 1);
        assert_eq!((stats.missed_requests, stats.released, w.held(51)), (0, 1, RICH));
        assert_eq!(w.near.asked.take(), [(3, 23)], "its whole life, both ends included");
    }
}

#[test]
fn an_executor_that_is_gone_is_not_blamed_and_the_refund_comes() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.near.unregistered.insert(who(1));
    w.go(22);
    assert_eq!((w.status("a"), w.held(51), w.escrow()), (Some(Status::Released), RICH, 0));
    assert_eq!(w.stats(0, 1).missed_requests, 0);
    assert_eq!(w.kinds()[1], "EventInferenceReleased left");
}

#[test]
fn after_each_block_no_open_row_is_due() {
    let mut w = World::new();
    for height in 1..60 {
        w.start(&format!("s{height}"), 1).unwrap();
        w.finish(&format!("f{height}"), 2).unwrap();
        if height % 3 == 0 {
            w.finish(&format!("s{height}"), 1).unwrap();
        }
        w.end();
        invariants::nothing_is_due(&w.store, height).unwrap();
        // The slow breaker takes executor 1 out for its misses; here only the queue matters.
        w.near.deactivated.take();
        w.begin(height + 1);
    }
    w.go(90);
    let prefix = crate::keys::INFERENCES_BY_TIMEOUT.bytes();
    let end = holdfast_store::successor(&prefix);
    assert_eq!(w.store.scan(&prefix, end.as_deref(), holdfast_store::Order::Ascending).count(), 0);
}

#[test]
fn changing_expiration_blocks_moves_new_inferences_only() {
    let mut w = World::new();
    w.start("old", 1).unwrap();
    let mut params = Params::load(&w.store).unwrap();
    params.validation.expiration_blocks = 5;
    crate::state::PARAMS.set(&mut w.store, &params).unwrap();
    w.start("same-block", 1).unwrap();
    w.go(2);
    w.start("new", 1).unwrap();
    let at = |w: &World, id| w.record(id).unwrap().expires_at;
    assert_eq!((at(&w, "old"), at(&w, "same-block"), at(&w, "new")), (21, 21, 7));
    w.go(8);
    assert_eq!((w.status("new"), w.status("old")), (Some(Status::Expired), Some(Status::Started)));
}

#[test]
fn a_backlog_waits_in_order_and_changes_no_answer() {
    let mut w = World::new();
    for i in 0..EXPIRE_MAX + 2 {
        w.start(&format!("i{i:05}"), 1).unwrap();
    }
    w.near.attempts.take();
    w.block.height = 21;
    w.run(expire).unwrap();
    assert_eq!((w.status("i04999"), w.status("i05000")), (Some(Status::Expired), Some(Status::Started)));
    w.block.height = 22;
    refused(w.finish("i05001", 1), 13);
    refused(w.cancel("i05001", 51), 13);
    w.run(expire).unwrap();
    let record = w.record("i05001").unwrap();
    assert_eq!((record.status, record.end_height), (Status::Expired, 22));
    assert_eq!(w.near.asked.take().last(), Some(&(1, 21)), "excuses are asked for its own life");
    assert_eq!((w.stats(0, 1).missed_requests, w.escrow()), (5_002, 0));
}

#[test]
fn a_listener_that_fails_never_stops_the_neighbours_and_never_keeps_the_money() {
    let mut w = World::new();
    for id in ["a", "b", "c"] {
        w.start(id, 1).unwrap();
    }
    w.near.deaf_to.borrow_mut().insert("b".to_owned());
    w.kinds();
    w.go(22);
    let kinds = w.kinds();
    assert_eq!(kinds, ["EventInferenceMissed expired", "EventStepDiscarded", "EventInferenceMissed expired"]);
    assert_eq!(w.status("b"), Some(Status::Released), "refunded, nobody blamed");
    assert_eq!((w.stats(0, 1).missed_requests, w.stats(0, 1).released), (2, 1));
    assert_eq!((w.held(51), w.escrow()), (RICH, 0));
    invariants::nothing_is_due(&w.store, 21).unwrap();
}

#[test]
fn when_even_the_refund_fails_the_row_is_removed_and_the_books_still_balance() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.near.bank_closed.set(true);
    w.go(22);
    w.near.bank_closed.set(false);
    assert_eq!((w.status("a"), w.escrow()), (Some(Status::Started), 30));
    invariants::escrow_is_backed(&w.store, &w.near, DENOM).unwrap();
    refused(w.finish("a", 1), 13);
    w.kinds();
    w.go(30);
    assert_eq!(w.kinds(), [] as [&str; 0], "not tried again block after block");
}

#[test]
fn a_record_that_cannot_be_read_is_taken_off_the_queue() {
    let mut w = World::new();
    for id in ["a", "b"] {
        w.start(id, 1).unwrap();
    }
    let key = crate::state::INFERENCES.entries().key(&"a".to_owned());
    w.store.set(&key, &[0xFF]).unwrap();
    w.store.set(&crate::state::index_row(crate::keys::INFERENCES_BY_TIMEOUT, 5, "ghost"), &[]).unwrap();
    w.go(22);
    assert_eq!(w.status("b"), Some(Status::Expired));
    let kinds = w.kinds();
    assert_eq!(kinds.iter().filter(|k| *k == "EventStepDiscarded").count(), 2, "{kinds:?}");
    w.go(25);
    assert_eq!(w.kinds(), [] as [&str; 0]);
}

#[test]
fn inferences_are_pruned_two_epochs_after_their_end_and_statistics_after_three() {
    let mut w = World::new();
    w.go(50);
    w.start("finished", 1).unwrap();
    w.finish("finished", 1).unwrap();
    w.go(95);
    w.start("ends-in-1", 1).unwrap();
    w.go(201);
    assert_eq!(w.status("finished"), Some(Status::Finished), "its second epoch after the end only begins");
    w.go(202);
    assert_eq!((w.status("finished"), w.status("ends-in-1")), (None, Some(Status::Expired)));
    assert_eq!(w.stats(0, 1).assigned, 2);
    w.go(301);
    assert_eq!(w.stats(0, 1).assigned, 2);
    assert!(crate::state::SPRT.has(&w.store, &(0, who(1))).unwrap());
    w.go(302);
    assert_eq!(w.stats(0, 1), EpochStats::default());
    assert!(!crate::state::SPRT.has(&w.store, &(0, who(1))).unwrap());
    assert_eq!(w.status("ends-in-1"), None);
    let inference_rows = w.store.scan(b"inference/", None, holdfast_store::Order::Ascending).filter(|row| {
        let (key, _) = row.as_ref().unwrap();
        key.starts_with(b"inference/") && ![1, 7].contains(&key[10])
    });
    assert_eq!(inference_rows.count(), 0, "no index row is left");
}

#[test]
fn pruning_takes_at_most_its_limit_from_the_front() {
    let mut w = World::new();
    for i in 0..PRUNE_MAX + 3 {
        let id = format!("i{i:05}");
        w.start(&id, 1).unwrap();
        w.cancel(&id, 51).unwrap();
    }
    w.begin(201);
    w.run(|ctx, deps| prune(ctx, deps.epochs)).unwrap();
    assert_eq!((w.status("i00999"), w.status("i01000")), (None, Some(Status::Cancelled)));
    w.run(|ctx, deps| prune(ctx, deps.epochs)).unwrap();
    assert_eq!(w.status("i01002"), None);
}

#[test]
fn pruning_in_the_first_two_epochs_or_without_a_schedule_removes_nothing() {
    let mut w = World::new();
    w.start("a", 1).unwrap();
    w.finish("a", 1).unwrap();
    w.go(200);
    assert!(w.record("a").is_some());
    w.near.schedule.clear();
    w.begin(350);
    w.end();
    assert!(w.record("a").is_some());
}

#[test]
fn the_timeout_index_sorts_by_height_first() {
    let row = |at: Height, id: &str| crate::state::index_row(crate::keys::INFERENCES_BY_TIMEOUT, at, id);
    assert!(row(9, "z") < row(10, "a"));
    assert_eq!(row(1, "a")[11..], [1_i64.to_bytes(), "a".to_owned().to_bytes()].concat());
}
