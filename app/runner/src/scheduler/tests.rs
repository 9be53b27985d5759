use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Far more than any test reserves.
const ROOM: u64 = 1_000_000;

fn id(n: u32) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    SessionId(bytes)
}

fn key(n: u32) -> KvKey {
    KvKey::new(id(n), 0)
}

fn numbers(keys: &[KvKey]) -> Vec<u32> {
    keys.iter().map(|key| u32::from_be_bytes(key.session.0[..4].try_into().unwrap())).collect()
}

fn request(n: u32, client: &str, prompt_len: u32, max_new: u32) -> Request {
    Request { key: key(n), client: client.to_owned(), prompt_len, max_new }
}

fn scheduler() -> ContinuousBatchScheduler {
    ContinuousBatchScheduler::new(SchedulerLimits::default())
}

/// Admits all there is, opens it, and runs `n` iterations in which every step is committed.
fn decoding(scheduler: &mut ContinuousBatchScheduler, sessions: std::ops::Range<u32>) {
    for n in sessions {
        scheduler.submit(0, request(n, "a", 1, 100)).unwrap();
    }
    for key in scheduler.admit(0, ROOM) {
        assert!(scheduler.opened(key, 64));
    }
    loop {
        let slots = scheduler.next_iteration(0);
        let prefills = slots.iter().filter(|slot| slot.work != Work::Decode).count();
        for slot in slots {
            scheduler.step_done(slot.key, 0, true);
        }
        if prefills == 0 {
            break;
        }
    }
}

#[test]
fn a_session_goes_from_the_queue_through_prefill_and_decode_to_done() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 4, 3)).unwrap();
    assert!(s.has_queued());
    assert_eq!(s.next_iteration(0), []);
    assert_eq!(s.admit(5, ROOM), [key(1)]);
    assert_eq!(s.next_iteration(5), [], "not before it is open on the shards");
    assert!(s.opened(key(1), 64));
    let prefill = Slot { key: key(1), work: Work::Prefill { from: 0, len: 4, last: true } };
    assert_eq!(s.next_iteration(5), [prefill]);
    assert_eq!(s.step_done(key(1), 10, true), Progress::More, "the last chunk gives token 1");
    let decode = Slot { key: key(1), work: Work::Decode };
    assert_eq!(s.next_iteration(10), [decode]);
    assert_eq!(s.step_done(key(1), 20, true), Progress::More);
    assert_eq!(s.next_iteration(20), [decode]);
    assert_eq!(s.step_done(key(1), 30, true), Progress::Enough, "three tokens are two decodes");
    assert_eq!(s.next_iteration(30), []);
    assert!(s.finish(id(1), DoneReason::Completed));
    assert_eq!(s.done_reason(id(1)), Some(DoneReason::Completed));
    let telemetry = s.telemetry();
    assert_eq!((telemetry.completed_sessions, telemetry.iterations, telemetry.scheduled_tokens), (1, 3, 6));
}

#[test]
fn the_queue_refuses_session_257_with_a_hint_and_remembers_nothing_of_it() {
    let mut s = scheduler();
    for n in 0..256 {
        s.submit(0, request(n, "a", 1, 1)).unwrap();
    }
    let before = s.telemetry();
    let refused = s.submit(0, request(256, "b", 1, 1)).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { retry_after_ms: 1_000 });
    assert_eq!(refused.code(), "queue-full");
    assert_eq!(s.telemetry(), SchedulerTelemetry { refused_sessions: 1, ..before });
    assert_eq!(s.cancel(id(256), DoneReason::Cancelled), Ok(CancelledFrom::Unknown));
    assert_eq!(s.admit(7_000, 2).len(), 1);
    s.submit(7_000, request(256, "b", 1, 1)).expect("one has left, and the refused id is still new");
    let refused = s.submit(7_000, request(257, "b", 1, 1)).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { retry_after_ms: 7_000 }, "as long as the median waited");
}

#[test]
fn the_queue_refuses_prompt_token_65537() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 65_000, 1)).unwrap();
    s.submit(0, request(2, "a", 536, 1)).unwrap();
    assert!(matches!(s.submit(0, request(3, "b", 1, 1)), Err(SubmitError::QueueFull { .. })));
    assert_eq!(s.cancel(id(2), DoneReason::Cancelled), Ok(CancelledFrom::Queued));
    s.submit(0, request(3, "b", 536, 1)).unwrap();
    assert_eq!(s.telemetry().queued_tokens, 65_536);
}

#[test]
fn a_session_id_is_refused_while_queued_active_holding_and_done() {
    let mut s = scheduler();
    let again = Err(SubmitError::Duplicate(id(1)));
    s.submit(0, request(1, "a", 4, 4)).unwrap();
    assert_eq!(s.submit(0, request(1, "b", 9, 9)), again);
    s.admit(0, ROOM);
    assert_eq!(s.submit(0, request(1, "a", 4, 4)), again);
    s.finish(id(1), DoneReason::Failed);
    assert_eq!(s.submit(0, request(1, "a", 4, 4)), again);
    s.rows_freed(id(1));
    assert_eq!(s.submit(0, request(1, "a", 4, 4)), again);
}

#[test]
fn a_submission_without_prompt_or_tokens_or_beyond_the_limits_is_refused() {
    let mut s = scheduler();
    for (prompt_len, max_new) in [(0, 1), (1, 0), (65_536, 1), (u32::MAX, u32::MAX)] {
        let refused = s.submit(0, request(1, "a", prompt_len, max_new)).unwrap_err();
        assert_eq!(refused, SubmitError::Size { prompt_len, max_new, most: 65_536 });
    }
    let refused = s.submit(0, request(1, &"x".repeat(129), 1, 1)).unwrap_err();
    assert_eq!(refused, SubmitError::Client { most: 128 });
    s.submit(0, request(1, &"x".repeat(128), 65_535, 1)).unwrap();
}

#[test]
fn admission_reserves_prompt_and_new_rows_or_waits() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 10, 30)).unwrap();
    s.submit(0, request(2, "a", 10, 30)).unwrap();
    assert_eq!(numbers(&s.admit(0, 79)), [1]);
    assert_eq!(s.telemetry().reserved_rows, 40);
    assert_eq!(s.admit(1, 79), [], "39 rows are not 40");
    assert_eq!(numbers(&s.admit(2, 80)), [2]);
    assert_eq!(s.telemetry().reserved_rows, 80);
    assert_eq!(s.admit(3, 0), [], "a capacity below what is reserved admits nothing");
}

#[test]
fn rows_are_freed_once_and_only_after_the_end() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 10, 30)).unwrap();
    s.submit(0, request(2, "a", 10, 30)).unwrap();
    assert!(!s.rows_freed(id(1)), "it has none yet");
    s.admit(0, 40);
    assert!(!s.rows_freed(id(1)), "it is active");
    s.finish(id(1), DoneReason::Completed);
    assert_eq!(s.admit(0, 40), [], "KV kept after completion still holds its rows");
    assert_eq!((s.telemetry().holding_sessions, s.telemetry().reserved_rows), (1, 40));
    assert!(s.rows_freed(id(1)));
    assert!(!s.rows_freed(id(1)));
    assert_eq!(s.telemetry().reserved_rows, 0);
    assert_eq!(numbers(&s.admit(0, 40)), [2]);
}

#[test]
fn an_iteration_has_at_most_16_sessions_and_256_tokens() {
    let mut s = scheduler();
    decoding(&mut s, 0..40);
    assert_eq!(s.next_iteration(1).len(), 16);
    let mut s = scheduler();
    for n in 0..20 {
        s.submit(0, request(n, "a", 64, 1)).unwrap();
    }
    for key in s.admit(0, ROOM) {
        s.opened(key, 64);
    }
    let slots = s.next_iteration(0);
    assert_eq!(slots.iter().map(|slot| slot.work.tokens()).collect::<Vec<_>>(), [64; 4]);
}

#[test]
fn decoding_sessions_come_first_and_among_them_the_oldest_last_token() {
    let mut s = scheduler();
    decoding(&mut s, 0..3);
    s.submit(0, request(9, "b", 5, 5)).unwrap();
    s.admit(0, ROOM);
    s.opened(key(9), 64);
    s.next_iteration(0);
    for (n, at) in [(2, 10), (0, 20), (1, 30)] {
        s.step_done(key(n), at, true);
    }
    s.step_done(key(9), 40, true);
    s.submit(40, request(10, "b", 5, 5)).unwrap();
    s.admit(40, ROOM);
    s.opened(key(10), 64);
    let keys: Vec<KvKey> = s.next_iteration(40).iter().map(|slot| slot.key).collect();
    assert_eq!(numbers(&keys), [2, 0, 1, 9, 10]);
}

#[test]
fn a_waiting_prompt_gets_a_chunk_in_every_iteration_however_many_decode() {
    let mut s = scheduler();
    decoding(&mut s, 0..100);
    s.submit(0, request(200, "b", 200, 1)).unwrap();
    s.admit(0, ROOM);
    s.opened(key(200), 64);
    let mut seen = BTreeSet::new();
    for (now_ms, (from, len)) in [(0, 64), (64, 64), (128, 64), (192, 8)].into_iter().enumerate() {
        let slots = s.next_iteration(now_ms as u64 + 1);
        assert_eq!(slots.len(), 16);
        assert!(slots[..15].iter().all(|slot| slot.work == Work::Decode));
        assert_eq!(slots[15].work, Work::Prefill { from, len, last: from == 192 });
        for slot in slots {
            seen.insert(slot.key);
            s.step_done(slot.key, now_ms as u64 + 1, true);
        }
    }
    assert_eq!(seen.len(), 61, "four times 15 different ones decoded meanwhile");
}

#[test]
fn a_prompt_is_cut_at_the_same_places_whatever_else_is_in_the_batch() {
    let cuts = |decoders: u32| {
        let mut s = scheduler();
        decoding(&mut s, 0..decoders);
        for n in 300..303 {
            s.submit(0, request(n, "b", 150, 1)).unwrap();
        }
        for key in s.admit(0, ROOM) {
            s.opened(key, 64);
        }
        let mut cuts: BTreeMap<KvKey, Vec<u32>> = BTreeMap::new();
        for _ in 0..12 {
            for slot in s.next_iteration(1) {
                if let Work::Prefill { len, .. } = slot.work {
                    cuts.entry(slot.key).or_default().push(len);
                }
                s.step_done(slot.key, 1, true);
            }
        }
        cuts.into_values().collect::<Vec<_>>()
    };
    let expected = vec![vec![64, 64, 22]; 3];
    assert_eq!(cuts(0), expected);
    assert_eq!(cuts(13), expected);
    assert_eq!(cuts(60), expected);
}

#[test]
fn a_route_with_smaller_chunks_gets_smaller_chunks() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 20, 1)).unwrap();
    s.admit(0, ROOM);
    assert!(s.opened(key(1), 16));
    assert_eq!(s.next_iteration(0)[0].work, Work::Prefill { from: 0, len: 16, last: false });
    s.step_done(key(1), 0, true);
    assert_eq!(s.next_iteration(0)[0].work, Work::Prefill { from: 16, len: 4, last: true });
}

#[test]
fn a_session_whose_step_is_out_is_not_picked_and_keeps_nobody_back() {
    let mut s = scheduler();
    decoding(&mut s, 0..3);
    assert_eq!(s.next_iteration(1).len(), 3);
    s.step_done(key(0), 2, true);
    s.step_done(key(2), 2, true);
    for now_ms in 3..50 {
        let slots = s.next_iteration(now_ms);
        assert_eq!(slots.iter().map(|slot| slot.key).collect::<Vec<_>>(), [key(0), key(2)]);
        for slot in slots {
            s.step_done(slot.key, now_ms, true);
        }
    }
}

#[test]
fn a_session_whose_step_failed_leaves_the_batch_alone() {
    let mut s = scheduler();
    decoding(&mut s, 0..2);
    s.next_iteration(1);
    assert_eq!(s.step_done(key(0), 2, false), Progress::Halted);
    assert_eq!(s.step_done(key(1), 2, true), Progress::More);
    let slots = s.next_iteration(3);
    assert_eq!(slots, [Slot { key: key(1), work: Work::Decode }]);
}

#[test]
fn failover_begins_again_from_token_zero_with_the_same_rows() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 70, 5)).unwrap();
    s.admit(0, ROOM);
    s.opened(key(1), 64);
    for _ in 0..3 {
        s.next_iteration(0);
        s.step_done(key(1), 0, true);
    }
    s.next_iteration(1);
    let next = KvKey::new(id(1), 1);
    assert!(s.requeue(next), "also while a step is out that never comes back");
    assert!(!s.requeue(next), "an epoch only rises");
    assert_eq!(s.telemetry().reserved_rows, 75);
    assert_eq!(s.next_iteration(2), []);
    assert!(!s.opened(key(1), 64), "the old epoch opens nothing");
    assert!(s.opened(next, 64));
    assert_eq!(
        s.next_iteration(2)[0],
        Slot { key: next, work: Work::Prefill { from: 0, len: 64, last: false } }
    );
    assert_eq!(s.step_done(key(1), 3, true), Progress::Stale, "the old epoch's answer moves nothing");
    assert_eq!(s.step_done(next, 3, true), Progress::More);
    assert_eq!(s.next_iteration(3)[0].work, Work::Prefill { from: 64, len: 6, last: true });
    let mut made = 0;
    while s.step_done(next, 4, true) != Progress::Enough {
        made += 1;
        s.next_iteration(4);
    }
    assert_eq!(made, 4, "all five tokens are made again");
}

#[test]
fn inside_a_client_the_first_come_is_the_first_served() {
    let mut s = scheduler();
    for n in [5, 3, 9, 1] {
        s.submit(0, request(n, "a", 100, 100)).unwrap();
    }
    assert_eq!(numbers(&s.admit(0, ROOM)), [5, 3, 9, 1]);
    let mut s = scheduler();
    s.submit(0, request(1, "a", 60, 60)).unwrap();
    s.submit(0, request(2, "a", 1, 1)).unwrap();
    assert_eq!(s.admit(0, 119), [], "the small one waits behind its own client's large one");
}

#[test]
fn a_flooding_client_does_not_delay_another() {
    let mut s = scheduler();
    for n in 0..200 {
        s.submit(0, request(n, "flood", 64, 64)).unwrap();
    }
    s.submit(1, request(500, "quiet", 64, 64)).unwrap();
    s.submit(1, request(501, "quiet", 64, 64)).unwrap();
    // Room for four sessions of 128 rows: a quantum of 256 tokens is two for each client.
    assert_eq!(numbers(&s.admit(2, 512)), [0, 1, 500, 501]);
}

#[test]
fn clients_share_by_tokens_and_not_by_sessions() {
    let mut s = scheduler();
    for n in 0..10 {
        s.submit(0, request(n, "large", 256, 256)).unwrap();
    }
    for n in 100..200 {
        s.submit(0, request(n, "small", 16, 16)).unwrap();
    }
    let admitted = numbers(&s.admit(0, 4_096));
    let large = admitted.iter().filter(|n| **n < 10).count() * 512;
    let small = admitted.iter().filter(|n| **n >= 100).count() * 32;
    assert_eq!((large, small), (2_048, 2_048));
}

#[test]
fn each_client_has_its_turn_in_the_order_they_came() {
    let mut s = scheduler();
    for (n, client) in [(1, "c"), (2, "a"), (3, "b")] {
        s.submit(0, request(n, client, 100, 100)).unwrap();
    }
    assert_eq!(numbers(&s.admit(0, ROOM)), [1, 2, 3]);
}

#[test]
fn a_client_gathers_no_credit_while_its_session_does_not_fit() {
    let mut s = scheduler();
    s.submit(0, request(1, "b", 500, 500)).unwrap();
    assert_eq!(numbers(&s.admit(0, 1_000)), [1]);
    s.submit(0, request(2, "a", 128, 128)).unwrap();
    for n in 10..30 {
        s.submit(0, request(n, "a", 64, 64)).unwrap();
    }
    for now_ms in 1..100 {
        assert_eq!(s.admit(now_ms, 1_000), [], "all rows are taken");
    }
    for n in 40..60 {
        s.submit(100, request(n, "b", 64, 64)).unwrap();
    }
    s.finish(id(1), DoneReason::Completed);
    s.rows_freed(id(1));
    // A quantum is 256 tokens: 2 is all of one; then two sessions for each in turn, 256 + 5 × 128 rows.
    assert_eq!(numbers(&s.admit(101, 1_000)), [2, 40, 41, 10, 11, 42]);
}

#[test]
fn smaller_sessions_pass_one_that_does_not_fit_for_five_seconds_and_no_longer() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 50, 50)).unwrap();
    assert_eq!(numbers(&s.admit(0, 100)), [1]);
    s.submit(0, request(2, "b", 45, 45)).unwrap();
    s.finish(id(1), DoneReason::Completed);
    s.rows_freed(id(1));
    s.submit(1_000, request(3, "c", 10, 10)).unwrap();
    // 100 rows: 2 wants 90; while 3 or others hold 20 it does not fit.
    s.submit(1_000, request(4, "d", 10, 10)).unwrap();
    assert_eq!(numbers(&s.admit(1_000, 89)), [3, 4], "2 is larger than 89 in all and holds nobody up");
    s.finish(id(4), DoneReason::Completed);
    s.rows_freed(id(4));
    assert_eq!(s.admit(2_000, 100), [], "2 has its turn now, and 20 rows are taken");
    s.submit(6_998, request(5, "d", 10, 10)).unwrap();
    assert_eq!(numbers(&s.admit(6_999, 100)), [5], "4 999 ms: still passed");
    s.submit(7_000, request(6, "e", 10, 10)).unwrap();
    assert_eq!(s.admit(7_000, 100), [], "5 000 ms: no more");
    for n in [3, 5] {
        s.finish(id(n), DoneReason::Completed);
        s.rows_freed(id(n));
    }
    assert_eq!(numbers(&s.admit(7_001, 100)), [2], "the first to go in");
    assert_eq!(numbers(&s.admit(7_002, 110)), [6], "and then the next");
}

#[test]
fn no_stream_of_small_sessions_starves_a_large_one() {
    // Each small session lives 1 s and takes a tenth of the rows; five arrive each second, for ever.
    let mut s = scheduler();
    let mut live: VecDeque<(u64, SessionId)> = VecDeque::new();
    let mut next = 10;
    let mut admitted_at = None;
    for now_ms in (0..20_000).step_by(100) {
        while live.front().is_some_and(|(end, _)| *end <= now_ms) {
            let (_, session) = live.pop_front().unwrap();
            s.finish(session, DoneReason::Completed);
            s.rows_freed(session);
        }
        if now_ms == 1_000 {
            s.submit(now_ms, request(1, "large", 500, 500)).unwrap();
        }
        if now_ms % 200 == 0 {
            s.submit(now_ms, request(next, &format!("small-{}", next % 3), 50, 50)).unwrap();
            next += 1;
        }
        for key in s.admit(now_ms, 1_000) {
            if key.session == id(1) {
                admitted_at = Some(now_ms);
            }
            live.push_back((now_ms + 1_000, key.session));
        }
    }
    // It has its turn when it comes, is passed for 5 s, and the last that passed it live 1 s more.
    assert!(admitted_at.is_some_and(|at| (6_000..=7_200).contains(&at)), "{admitted_at:?}");
}

#[test]
fn test_scheduler_cancel_drains_queue_and_releases_active_kv() {
    let mut s = scheduler();
    decoding(&mut s, 0..1);
    s.submit(0, request(7, "b", 1_000, 1)).unwrap();
    assert_eq!(s.cancel(id(7), DoneReason::Cancelled), Ok(CancelledFrom::Queued));
    assert_eq!((s.telemetry().queued_sessions, s.telemetry().queued_tokens), (0, 0));
    assert_eq!(s.cancel(id(0), DoneReason::Failed), Ok(CancelledFrom::Active));
    assert_eq!(s.next_iteration(1), []);
    assert!(s.rows_freed(id(0)));
    let telemetry = s.telemetry();
    assert_eq!((telemetry.active_sessions, telemetry.reserved_rows), (0, 0));
    let counted = (telemetry.completed_sessions, telemetry.cancelled_sessions, telemetry.failed_sessions);
    assert_eq!(counted, (0, 1, 1));
    assert_eq!(s.done_reason(id(0)), Some(DoneReason::Failed));
}

#[test]
fn test_scheduler_cancel_rejects_a_completed_reason() {
    let mut s = scheduler();
    decoding(&mut s, 0..1);
    let before = s.telemetry();
    assert_eq!(s.cancel(id(0), DoneReason::Completed), Err(NotACancel));
    assert_eq!(s.telemetry(), before);
    assert_eq!(s.next_iteration(1).len(), 1);
}

#[test]
fn a_cancel_just_before_and_just_after_admission_leaves_nothing_behind() {
    for after in [false, true] {
        let mut s = scheduler();
        s.submit(0, request(1, "a", 50, 50)).unwrap();
        s.submit(0, request(2, "a", 50, 50)).unwrap();
        if after {
            assert_eq!(numbers(&s.admit(0, 100)), [1]);
            assert_eq!(s.cancel(id(1), DoneReason::Cancelled), Ok(CancelledFrom::Active));
            assert!(!s.opened(key(1), 64), "an open that ends now opens nothing");
            assert!(s.rows_freed(id(1)));
        } else {
            assert_eq!(s.cancel(id(1), DoneReason::Cancelled), Ok(CancelledFrom::Queued));
            assert!(!s.rows_freed(id(1)));
        }
        assert_eq!(numbers(&s.admit(0, 100)), [2], "the place is free, after: {after}");
    }
}

#[test]
fn a_cancel_of_the_ended_or_unknown_changes_nothing() {
    let mut s = scheduler();
    decoding(&mut s, 0..1);
    s.finish(id(0), DoneReason::Completed);
    let before = s.telemetry();
    for _ in 0..2 {
        let from = s.cancel(id(0), DoneReason::Cancelled);
        assert_eq!(from, Ok(CancelledFrom::Done(DoneReason::Completed)));
        assert_eq!(s.cancel(id(9), DoneReason::Cancelled), Ok(CancelledFrom::Unknown));
    }
    assert_eq!(s.telemetry(), before);
}

#[test]
fn late_answers_are_counted_and_dropped() {
    let mut s = scheduler();
    decoding(&mut s, 0..2);
    s.next_iteration(1);
    s.cancel(id(0), DoneReason::Cancelled).unwrap();
    assert_eq!(s.step_done(key(0), 2, true), Progress::Stale);
    assert_eq!(s.step_done(key(9), 2, true), Progress::Stale);
    assert_eq!(s.step_done(key(1), 2, true), Progress::More);
    assert_eq!(s.step_done(key(1), 2, true), Progress::Stale, "the same answer a second time");
    assert_eq!(s.telemetry().stale_steps, 3);
}

#[test]
fn a_session_without_room_on_the_shards_goes_back_to_the_front() {
    let mut s = scheduler();
    s.submit(0, request(1, "a", 50, 50)).unwrap();
    s.submit(0, request(2, "a", 50, 50)).unwrap();
    s.admit(1, 100);
    assert!(s.put_back(key(1)));
    assert!(!s.put_back(key(1)));
    assert_eq!((s.telemetry().reserved_rows, s.telemetry().queued_sessions), (0, 2));
    assert_eq!(numbers(&s.admit(3, 100)), [1]);
    s.opened(key(1), 64);
    assert!(!s.put_back(key(1)), "an open session stays");
}

#[test]
fn the_done_set_is_bounded_and_the_oldest_goes_first() {
    let limits = SchedulerLimits { done_sessions: 3, ..SchedulerLimits::default() };
    let mut s = ContinuousBatchScheduler::new(limits);
    for n in 0..5 {
        s.submit(0, request(n, "a", 1, 1)).unwrap();
        s.finish(id(n), DoneReason::Failed);
    }
    let known: Vec<u32> = (0..5).filter(|n| s.done_reason(id(*n)).is_some()).collect();
    assert_eq!(known, [2, 3, 4]);
    assert_eq!(s.telemetry().failed_sessions, 5);
}

#[test]
fn the_wait_in_the_queue_is_summed_up() {
    let mut s = scheduler();
    // Waits of 1, 2, … 100 ms.
    for n in 1..=100_u32 {
        let at = u64::from(n) * 1_000;
        s.submit(at, request(n, "a", 1, 1)).unwrap();
        s.admit(at + u64::from(n), ROOM);
    }
    let expected = WaitSummary { admitted: 100, p50_ms: 50, p99_ms: 99, max_ms: 100 };
    assert_eq!(s.telemetry().queue_wait, expected);
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut s = scheduler();
    s.submit(10_000, request(1, "a", 1, 1)).unwrap();
    assert_eq!(s.admit(3_000, ROOM).len(), 1);
    assert_eq!(s.telemetry().queue_wait.max_ms, 0);
}

#[test]
fn limits_that_cannot_work_are_brought_to_ones_that_can() {
    let zero =
        SchedulerLimits { batch_sessions: 0, batch_tokens: 0, chunk: 0, quantum: 0, ..Default::default() };
    let mut s = ContinuousBatchScheduler::new(zero);
    s.submit(0, request(1, "a", 3, 2)).unwrap();
    s.admit(0, ROOM);
    s.opened(key(1), 64);
    let mut steps = 0;
    while !s.next_iteration(0).is_empty() {
        steps += 1;
        s.step_done(key(1), 0, true);
    }
    assert_eq!(steps, 4, "three chunks of one token, one decode");
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Queued,
    Active,
    Ended,
    Freed,
}

/// What a plain bookkeeper knows of a session.
#[derive(Debug, Clone)]
struct Known {
    place: Place,
    epoch: u32,
    client: u64,
    prompt: u32,
    max_new: u32,
    opened: bool,
    out: Option<Work>,
    /// Tokens of the prompt that are in, and tokens made.
    done: (u32, u32),
    halted: bool,
}

/// Random operations against the bookkeeper; everything is checked after each.
fn random_run(seed: u64, operations: u32) {
    const CAPACITY: u64 = 2_000;
    let limits = SchedulerLimits { queue_sessions: 12, queue_tokens: 1_500, ..SchedulerLimits::default() };
    let mut s = ContinuousBatchScheduler::new(limits.clone());
    let mut random = Random(seed);
    let mut known: BTreeMap<u32, Known> = BTreeMap::new();
    let mut order: Vec<u32> = Vec::new();
    let mut now_ms = 0;
    let check = |s: &ContinuousBatchScheduler, known: &BTreeMap<u32, Known>, at: &str| {
        let telemetry = s.telemetry();
        let sum = |places: &[Place], of: fn(&Known) -> u64| -> u64 {
            known.values().filter(|k| places.contains(&k.place)).map(of).sum()
        };
        let rows: fn(&Known) -> u64 = |k| u64::from(k.prompt + k.max_new);
        let context = format!("seed {seed}, {at}");
        assert_eq!(telemetry.reserved_rows, sum(&[Place::Active, Place::Ended], rows), "rows: {context}");
        assert!(telemetry.reserved_rows <= CAPACITY, "capacity: {context}");
        assert_eq!(telemetry.queued_sessions as u64, sum(&[Place::Queued], |_| 1), "queue: {context}");
        let tokens = sum(&[Place::Queued], |k| u64::from(k.prompt));
        assert_eq!(telemetry.queued_tokens, tokens, "tokens: {context}");
        assert_eq!(telemetry.active_sessions as u64, sum(&[Place::Active], |_| 1), "active: {context}");
        assert_eq!(telemetry.holding_sessions as u64, sum(&[Place::Ended], |_| 1), "holding: {context}");
        let ended = telemetry.completed_sessions
            + telemetry.cancelled_sessions
            + telemetry.failed_sessions
            + telemetry.unverified_sessions;
        let all = ended + telemetry.active_sessions as u64 + telemetry.queued_sessions as u64;
        assert_eq!(all, known.len() as u64, "none lost: {context}");
    };
    let admit = |s: &mut ContinuousBatchScheduler,
                 known: &mut BTreeMap<u32, Known>,
                 order: &mut Vec<u32>,
                 now_ms: u64| {
        for n in numbers(&s.admit(now_ms, CAPACITY)) {
            let client = known[&n].client;
            let first = order.iter().find(|m| known[*m].client == client).copied();
            assert_eq!(first, Some(n), "first come, first served inside a client: seed {seed}");
            order.retain(|m| *m != n);
            known.get_mut(&n).unwrap().place = Place::Active;
        }
    };
    for operation in 0..operations {
        now_ms += random.below(400);
        let pick = u32::try_from(random.below(known.len() as u64 + 1)).unwrap();
        let at = format!("operation {operation}");
        match random.below(12) {
            0..3 => {
                let n = known.len() as u32;
                let (prompt, max_new) = (1 + random.below(300) as u32, 1 + random.below(20) as u32);
                let client = random.below(4);
                let before = s.telemetry();
                let fits = before.queued_sessions < limits.queue_sessions
                    && before.queued_tokens + u64::from(prompt) <= limits.queue_tokens;
                let result = s.submit(now_ms, request(n, &client.to_string(), prompt, max_new));
                assert_eq!(result.is_ok(), fits, "seed {seed}, {at}");
                if fits {
                    let place = Place::Queued;
                    let fresh = Known {
                        place,
                        epoch: 0,
                        client,
                        prompt,
                        max_new,
                        opened: false,
                        out: None,
                        done: (0, 0),
                        halted: false,
                    };
                    known.insert(n, fresh);
                    order.push(n);
                }
            }
            3 => admit(&mut s, &mut known, &mut order, now_ms),
            4 => {
                for (n, k) in &mut known {
                    let ok = s.opened(KvKey::new(id(*n), k.epoch), 64);
                    assert_eq!(ok, k.place == Place::Active, "seed {seed}, {at}");
                    k.opened |= ok;
                }
            }
            5..8 => {
                let slots = s.next_iteration(now_ms);
                assert!(slots.len() <= 16, "seed {seed}, {at}");
                assert!(slots.iter().map(|slot| slot.work.tokens()).sum::<u32>() <= 256, "seed {seed}, {at}");
                let ready = |k: &Known| {
                    k.place == Place::Active
                        && k.opened
                        && !k.halted
                        && k.out.is_none()
                        && k.done.1 < k.max_new
                };
                let waits = known.values().any(|k| ready(k) && k.done.0 < k.prompt);
                let chunks = slots.iter().any(|slot| slot.work != Work::Decode);
                assert_eq!(waits, chunks, "a chunk if one waits: seed {seed}, {at}");
                for (slot, n) in
                    slots.iter().zip(numbers(&slots.iter().map(|slot| slot.key).collect::<Vec<_>>()))
                {
                    let k = known.get_mut(&n).unwrap();
                    assert!(ready(k) && k.epoch == slot.key.epoch, "seed {seed}, {at}");
                    let len = (k.prompt - k.done.0).min(64);
                    let expected = if len == 0 {
                        Work::Decode
                    } else {
                        Work::Prefill { from: k.done.0, len, last: k.done.0 + len == k.prompt }
                    };
                    assert_eq!(slot.work, expected, "seed {seed}, {at}");
                    k.out = Some(slot.work);
                }
            }
            8 => {
                for (n, k) in &mut known {
                    if random.below(3) == 0 {
                        continue;
                    }
                    let committed = random.below(20) > 0;
                    let progress = s.step_done(KvKey::new(id(*n), k.epoch), now_ms, committed);
                    let out = k.out.take().filter(|_| k.place == Place::Active);
                    if let (Some(work), true) = (out, committed) {
                        let last = match work {
                            Work::Prefill { last, .. } => last,
                            Work::Decode => true,
                        };
                        k.done.0 += if work == Work::Decode { 0 } else { work.tokens() };
                        k.done.1 += u32::from(last);
                    }
                    let expected = match (out, committed) {
                        (None, _) => Progress::Stale,
                        (_, false) => Progress::Halted,
                        _ if k.done.1 == k.max_new => Progress::Enough,
                        _ => Progress::More,
                    };
                    k.halted |= expected == Progress::Halted;
                    assert_eq!(progress, expected, "seed {seed}, {at}");
                }
            }
            9 => {
                let reason = [DoneReason::Cancelled, DoneReason::Failed, DoneReason::Unverified]
                    [random.below(3) as usize];
                let from = s.cancel(id(pick), reason).unwrap();
                match known.get_mut(&pick) {
                    None => assert_eq!(from, CancelledFrom::Unknown, "seed {seed}, {at}"),
                    Some(k) if k.place == Place::Queued => {
                        assert_eq!(from, CancelledFrom::Queued, "seed {seed}, {at}");
                        k.place = Place::Freed;
                        order.retain(|n| *n != pick);
                    }
                    Some(k) if k.place == Place::Active => {
                        assert_eq!(from, CancelledFrom::Active, "seed {seed}, {at}");
                        k.place = Place::Ended;
                    }
                    Some(_) => assert!(matches!(from, CancelledFrom::Done(_)), "seed {seed}, {at}"),
                }
            }
            10 => {
                let freed = s.rows_freed(id(pick));
                let held = known.get(&pick).is_some_and(|k| k.place == Place::Ended);
                assert_eq!(freed, held, "seed {seed}, {at}");
                if let Some(k) = known.get_mut(&pick).filter(|_| held) {
                    k.place = Place::Freed;
                }
            }
            _ => {
                if let Some(k) = known.get_mut(&pick) {
                    let put_back = random.below(2) == 0;
                    if put_back {
                        let ok = s.put_back(KvKey::new(id(pick), k.epoch));
                        assert_eq!(ok, k.place == Place::Active && !k.opened, "seed {seed}, {at}");
                        if ok {
                            k.place = Place::Queued;
                            order.insert(0, pick);
                        }
                    } else {
                        let ok = s.requeue(KvKey::new(id(pick), k.epoch + 1));
                        assert_eq!(ok, k.place == Place::Active, "seed {seed}, {at}");
                        if ok {
                            *k = Known {
                                epoch: k.epoch + 1,
                                opened: false,
                                out: None,
                                done: (0, 0),
                                halted: false,
                                ..*k
                            };
                        }
                    }
                }
            }
        }
        check(&s, &known, &at);
    }
    // Whatever happened: once every end frees its rows, every waiting session gets in, and nothing is left.
    for round in 0.. {
        assert!(round < 1_000, "sessions left over: seed {seed}");
        now_ms += 100;
        for (n, k) in &mut known {
            if k.place == Place::Active {
                s.finish(id(*n), DoneReason::Completed);
                k.place = Place::Ended;
            }
            if k.place == Place::Ended {
                assert!(s.rows_freed(id(*n)), "seed {seed}");
                k.place = Place::Freed;
            }
        }
        check(&s, &known, "drain");
        if order.is_empty() {
            break;
        }
        admit(&mut s, &mut known, &mut order, now_ms);
    }
    assert_eq!(s.telemetry().reserved_rows, 0, "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_calls_loses_a_session_or_a_row(seed in any::<u64>(), operations in 1_u32..400) {
        random_run(seed, operations);
    }
}
