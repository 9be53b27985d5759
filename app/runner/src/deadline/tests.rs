use super::*;

fn guard(limits: Deadlines) -> DeadlineGuard {
    DeadlineGuard::new(limits, 0)
}

fn reached(guard: &mut DeadlineGuard, now_ms: u64) -> Option<(FailureKind, Option<Limit>)> {
    guard.check(now_ms).err().map(|end| (end.kind, end.which))
}

const LATE: FailureKind = FailureKind::DeadlineExceeded;
const LOST: FailureKind = FailureKind::HeartbeatLost;

#[test]
fn test_deadline_guard_reports_remaining_and_resets_on_heartbeat() {
    let mut g = guard(Deadlines { heartbeat_ms: 100, ..Deadlines::default() });
    g.prefilling(0);
    g.call_started(0);
    assert_eq!(g.next_expiry(), Expiry { at_ms: 100, limit: Limit::Heartbeat });
    assert_eq!((g.remaining(0), g.remaining(70)), (100, 30));
    g.beat(80);
    assert_eq!(g.remaining(90), 90);
    assert_eq!(g.check(179), Ok(()));
    assert_eq!(g.remaining(179), 1);
    assert_eq!(reached(&mut g, 180), Some((LOST, Some(Limit::Heartbeat))));
    assert_eq!(g.remaining(500), 0);
}

#[test]
fn each_phase_has_its_own_limit_and_it_is_exceeded_when_reached() {
    let mut g = guard(Deadlines::default());
    assert_eq!((g.check(29_999), reached(&mut g, 30_000)), (Ok(()), Some((LATE, Some(Limit::Queue)))));
    let mut g = guard(Deadlines::default());
    g.prefilling(29_000);
    assert_eq!((g.check(88_999), reached(&mut g, 89_000)), (Ok(()), Some((LATE, Some(Limit::Prefill)))));
    let mut g = guard(Deadlines::default());
    g.prefilling(1_000);
    g.awaiting_first_token(2_000);
    assert_eq!((g.check(61_999), reached(&mut g, 62_000)), (Ok(()), Some((LATE, Some(Limit::FirstToken)))));
    let mut g = guard(Deadlines::default());
    g.prefilling(0);
    for now_ms in [1_000, 20_999, 40_000] {
        assert_eq!(g.check(now_ms), Ok(()));
        g.token(now_ms);
    }
    assert_eq!((g.check(59_999), reached(&mut g, 60_000)), (Ok(()), Some((LATE, Some(Limit::InterToken)))));
}

#[test]
fn the_total_limit_runs_on_through_failovers() {
    let mut g = guard(Deadlines::default());
    for epoch in 0..6 {
        g.prefilling(epoch * 50_000);
        g.token(epoch * 50_000 + 10);
        g.requeued(epoch * 50_000 + 20_000);
    }
    g.prefilling(275_000);
    assert_eq!(g.total_left(275_000), 25_000);
    assert_eq!(g.deadline_left(275_000), 25_000);
    assert_eq!((g.check(299_999), reached(&mut g, 300_000)), (Ok(()), Some((LATE, Some(Limit::Total)))));
}

#[test]
fn a_session_without_a_call_out_owes_no_sign_of_life() {
    let mut g = guard(Deadlines::default());
    g.prefilling(0);
    assert_eq!(g.check(10_000), Ok(()));
    g.call_started(10_000);
    g.call_ended(12_000);
    assert_eq!(g.check(30_000), Ok(()), "it waits for its turn in the batch");
    g.call_started(30_000);
    assert_eq!(reached(&mut g, 33_000), Some((LOST, Some(Limit::Heartbeat))));
}

#[test]
fn an_old_sign_of_life_does_not_shorten_and_none_before_the_call_counts() {
    let mut g = guard(Deadlines::default());
    g.prefilling(0);
    g.call_started(5_000);
    g.beat(6_000);
    g.beat(5_500);
    g.beat(100);
    assert_eq!((g.next_expiry().at_ms, g.last_beat_ms()), (9_000, 6_000));
    g.call_ended(7_000);
    g.call_started(7_500);
    assert_eq!(g.next_expiry().at_ms, 10_500);
}

#[test]
fn the_rows_of_the_failure_matrix_fire_where_it_says() {
    // Prefill and each decode take 10 ms; total 25 ms: two tokens are there, the third blocks from 20 to 25.
    let run = |limits: Deadlines| {
        let mut g = guard(limits);
        g.prefilling(0);
        let mut tokens = 0;
        loop {
            let now_ms = tokens * 10;
            g.call_started(now_ms);
            let end = g.next_expiry().at_ms;
            if end < now_ms + 10 || (tokens == 3 && limits.heartbeat_ms < 1_000) {
                return (tokens, end, reached(&mut g, end));
            }
            g.call_ended(now_ms + 10);
            g.token(now_ms + 10);
            tokens += 1;
        }
    };
    let total = run(Deadlines { total_ms: 25, ..Deadlines::default() });
    assert_eq!(total, (2, 25, Some((LATE, Some(Limit::Total)))));
    let heartbeat = run(Deadlines { heartbeat_ms: 15, ..Deadlines::default() });
    assert_eq!(heartbeat, (3, 45, Some((LOST, Some(Limit::Heartbeat)))));
}

#[test]
fn in_one_moment_cancel_beats_deadline_beats_heartbeat_beats_the_shards_error() {
    let limits = Deadlines { prefill_ms: 100, heartbeat_ms: 100, ..Deadlines::default() };
    let error = Some(FailureKind::StreamReset);
    let start = |limits| {
        let mut g = guard(limits);
        g.prefilling(0);
        g.call_started(0);
        g
    };
    let end = start(limits).decide(100, Some(Cause::Client), error).unwrap_err();
    assert_eq!((end.kind, end.cause, end.which), (FailureKind::Cancelled, Cause::Client, None));
    let end = start(limits).decide(100, None, error).unwrap_err();
    assert_eq!((end.kind, end.which), (LATE, Some(Limit::Prefill)));
    let end = start(Deadlines { prefill_ms: 101, ..limits }).decide(100, None, error).unwrap_err();
    assert_eq!((end.kind, end.cause), (LOST, Cause::Peer));
    let end = start(limits).decide(99, None, error).unwrap_err();
    assert_eq!((end.kind, end.cause), (FailureKind::StreamReset, Cause::Peer));
    assert_eq!(start(limits).decide(99, None, None), Ok(()));
}

#[test]
fn of_several_limits_that_passed_unseen_the_earliest_counts() {
    let mut g = guard(Deadlines { prefill_ms: 50, ..Deadlines::default() });
    g.prefilling(0);
    g.call_started(0);
    assert_eq!(reached(&mut g, 1_000_000), Some((LATE, Some(Limit::Prefill))));
    let mut g = guard(Deadlines { prefill_ms: 3_001, ..Deadlines::default() });
    g.prefilling(0);
    g.call_started(0);
    assert_eq!(reached(&mut g, 1_000_000), Some((LOST, Some(Limit::Heartbeat))));
}

#[test]
fn a_clock_that_goes_back_neither_ends_nor_extends_a_wait() {
    let mut g = guard(Deadlines::default());
    g.prefilling(50_000);
    assert_eq!(g.check(10), Ok(()));
    assert_eq!(g.remaining(10), 60_000);
    g.token(20);
    assert_eq!(g.next_expiry().at_ms, 70_000, "the token came at 50 000, as far as is known");
    assert_eq!(g.check(u64::MAX).unwrap_err().which, Some(Limit::InterToken));
    let mut g = DeadlineGuard::new(Deadlines::default(), u64::MAX - 5);
    assert_eq!(g.check(u64::MAX - 1), Ok(()), "no overflow at the end of time");
}

#[test]
fn a_request_may_lower_each_limit_and_raise_none() {
    let node = Deadlines::default();
    let set = |limit: Limit, ms: u64| {
        let mut asked = DeadlineOverrides::default();
        match limit {
            Limit::Queue => asked.queue_ms = Some(ms),
            Limit::Prefill => asked.prefill_ms = Some(ms),
            Limit::FirstToken => asked.first_token_ms = Some(ms),
            Limit::InterToken => asked.inter_token_ms = Some(ms),
            Limit::Total => asked.total_ms = Some(ms),
            Limit::Heartbeat => asked.heartbeat_ms = Some(ms),
        }
        asked
    };
    for limit in Limit::ALL {
        let most_ms = node.get(limit);
        let lowered = node.lowered_by(&set(limit, most_ms - 1)).unwrap();
        assert_eq!(lowered.limits().get(limit), most_ms - 1);
        for other in Limit::ALL {
            assert_eq!(lowered.lowered(other), other == limit);
        }
        let same = node.lowered_by(&set(limit, most_ms)).unwrap();
        assert_eq!(same, SessionDeadlines::from(node), "the node's own value lowers nothing");
        for asked_ms in [0, most_ms + 1, u64::MAX] {
            let refused = node.lowered_by(&set(limit, asked_ms)).unwrap_err();
            assert_eq!(refused, DeadlineRefused { limit, asked_ms, most_ms });
            assert!(refused.to_string().starts_with(limit.as_str()), "{refused}");
        }
    }
}

#[test]
fn a_limit_that_the_request_lowered_is_nobodys_fault() {
    let asked = DeadlineOverrides { total_ms: Some(40), ..DeadlineOverrides::default() };
    let mut g = DeadlineGuard::new(Deadlines::default().lowered_by(&asked).unwrap(), 0);
    let end = g.check(40).unwrap_err();
    assert!(end.lowered_by_request && !end.node_at_fault());
    assert_eq!(end.to_string(), "stream terminated: deadline-exceeded (total_ms)");
    let end = guard(Deadlines::default()).check(30_000).unwrap_err();
    assert!(!end.lowered_by_request && end.node_at_fault());
}
