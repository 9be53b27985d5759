use std::sync::atomic::AtomicU32;

use proptest::prelude::*;

use super::*;
use crate::adapter::SessionId;

const KEY: KvKey = KvKey::new(SessionId([7; 16]), 2);
const LEASE_MS: u64 = 10_000;
const CLIENT: Cause = Cause::Client;

fn stop(shard: usize) -> CancelEffect {
    CancelEffect::SendStop { shard, cause: CLIENT }
}

fn release(shard: usize) -> CancelEffect {
    CancelEffect::SendRelease { shard, cause: CLIENT }
}

const RELEASED: Result<ReleaseAck, AdapterError> = Ok(ReleaseAck::Released { rows: 11, buffers: 1 });
const ABSENT: Result<ReleaseAck, AdapterError> = Ok(ReleaseAck::WasAbsent);
const QUIESCENT: Result<StopAck, AdapterError> = Ok(StopAck::Quiescent);

/// `shards` shards, all open at time 0.
fn open(shards: usize) -> ShardCancellationGroup {
    let mut group = ShardCancellationGroup::new(KEY, shards, LEASE_MS);
    for shard in 0..shards {
        group.open_sent(shard, 0);
        assert_eq!(group.open_answered(shard, 0), []);
    }
    group
}

#[test]
fn a_token_keeps_the_first_cause_and_counts_the_rest() {
    let token = CancellationToken::new(KEY);
    let clone = token.clone();
    assert_eq!((token.cancelled(), token.key()), (None, KEY));
    assert_eq!(clone.cancel(KEY, Cause::Deadline), CancelHit::First);
    assert_eq!(token.cancel(KEY, CLIENT), CancelHit::Again);
    assert_eq!(token.cancel(KEY, CLIENT), CancelHit::Again);
    assert_eq!((token.cancelled(), token.later()), (Some(Cause::Deadline), 2));
}

#[test]
fn a_cancel_of_another_epoch_or_session_hits_nothing() {
    let token = CancellationToken::new(KEY);
    let next = token.next_epoch().expect("not cancelled");
    assert_eq!(next.key(), KvKey::new(KEY.session, 3));
    assert_eq!(next.cancel(KEY, CLIENT), CancelHit::Missed, "meant the epoch before");
    assert_eq!(next.cancel(KvKey::new(SessionId([8; 16]), 3), CLIENT), CancelHit::Missed);
    assert_eq!((next.cancelled(), next.later()), (None, 0));
    assert_eq!(token.cancel(KEY, CLIENT), CancelHit::First);
    assert!(token.next_epoch().is_none(), "a cancelled session opens no new epoch");
    assert!(CancellationToken::new(KvKey::new(KEY.session, u32::MAX)).next_epoch().is_none());
}

#[test]
fn of_many_threads_exactly_one_is_the_first_to_cancel() {
    let token = CancellationToken::new(KEY);
    let hits: Vec<CancelHit> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| token.cancel(KEY, CLIENT))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(hits.iter().filter(|hit| **hit == CancelHit::First).count(), 1);
    assert_eq!(token.later(), 7);
}

#[test]
fn test_shard_cancellation_group_releases_every_shard_and_queued_buffers() {
    let ran = Arc::new(AtomicU32::new(0));
    let mut group = open(3);
    for _ in 0..2 {
        let ran = ran.clone();
        group.add_buffer(move || {
            ran.fetch_add(1, Ordering::Relaxed);
        });
    }
    group.step_sent(4);
    group.delivered(3);
    assert_eq!(group.cancel(100, CLIENT, 20_000), [stop(0), stop(1), stop(2)], "all at once");
    assert_eq!(ran.load(Ordering::Relaxed), 2, "buffers go in phase 1");
    assert_eq!(group.cancel(101, Cause::Deadline, 0), [], "a second cancel does nothing");
    let late = ran.clone();
    group.add_buffer(move || {
        late.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(ran.load(Ordering::Relaxed), 3, "one that comes after goes at once");

    assert_eq!(group.stop_answered(0, &QUIESCENT, 110), []);
    assert_eq!(group.stop_answered(1, &Ok(StopAck::InFlight { step: 4 }), 111), []);
    assert_eq!(group.stop_answered(2, &QUIESCENT, 112), [], "the step is still out");
    assert_eq!(group.phase(), CancelPhase::Quiescing);
    let (in_time, effects) = group.step_ended(4, 1, 120);
    assert!(in_time, "it ends now and is committed");
    assert_eq!(effects, [CancelEffect::Quiesced, release(0), release(1), release(2)]);
    group.delivered(1);

    assert_eq!(group.release_answered(2, &RELEASED, 130), []);
    assert_eq!(group.release_answered(2, &RELEASED, 131), [], "the same answer again counts once");
    assert_eq!(group.release_answered(0, &ABSENT, 132), []);
    assert!(!group.outcome().settled());
    assert_eq!(group.release_answered(1, &RELEASED, 133), [CancelEffect::Settled]);
    let expected = CancellationOutcome {
        key: KEY,
        shards: vec![ShardOutcome::WasAbsent, ShardOutcome::Released, ShardOutcome::Released],
        buffers_released: 5,
        rows_released: 22,
        committed_tokens: 1,
        delivered_tokens: 3,
        uncertain_step: None,
        first_cause: Some(CLIENT),
        later_causes: 1,
    };
    assert_eq!(group.outcome(), &expected);
    assert_eq!((group.phase(), group.next_timer()), (CancelPhase::Done, None));
    assert_eq!(group.cancel(999, CLIENT, 0), []);
    assert_eq!(group.outcome(), &CancellationOutcome { later_causes: 2, ..expected });
}

#[test]
fn unknown_session_is_absent_everywhere_and_has_no_cause_to_record() {
    let outcome = CancellationOutcome::unknown(KEY, 3);
    assert_eq!(outcome.shards, [ShardOutcome::WasAbsent; 3]);
    assert!(outcome.settled() && outcome.first_cause.is_none());
}

#[test]
fn queued_leaves_without_a_call_to_any_shard() {
    for shards in [0, 3] {
        let mut group = ShardCancellationGroup::new(KEY, shards, LEASE_MS);
        assert_eq!(group.cancel(5, CLIENT, 30_000), [CancelEffect::Quiesced, CancelEffect::Settled]);
        assert_eq!(group.outcome().shards, vec![ShardOutcome::WasAbsent; shards]);
    }
}

#[test]
fn opening_waits_for_the_open_to_end_well_or_not_and_calls_no_shard_that_was_not_asked() {
    let mut group = ShardCancellationGroup::new(KEY, 3, LEASE_MS);
    group.open_sent(0, 0);
    group.open_answered(0, 5);
    group.open_sent(1, 5);
    assert_eq!(group.cancel(6, CLIENT, 30_000), [stop(0)], "1 is still opening, 2 was never asked");
    assert_eq!(group.stop_answered(0, &QUIESCENT, 7), []);
    assert_eq!(group.open_answered(1, 8), [stop(1)]);
    let effects = group.stop_answered(1, &QUIESCENT, 9);
    assert_eq!(effects, [CancelEffect::Quiesced, release(0), release(1)]);
    group.release_answered(0, &RELEASED, 10);
    assert_eq!(group.release_answered(1, &ABSENT, 10), [CancelEffect::Settled]);
    let (released, absent) = (ShardOutcome::Released, ShardOutcome::WasAbsent);
    assert_eq!(group.outcome().shards, [released, absent, absent]);
    assert_eq!(group.outcome().committed_tokens, 0);
}

#[test]
fn an_open_that_outlasts_phase_2_is_not_taken_for_absent() {
    let mut group = ShardCancellationGroup::new(KEY, 1, LEASE_MS);
    group.open_sent(0, 0);
    assert_eq!(group.cancel(0, CLIENT, 30_000), []);
    assert_eq!(group.timer(1_000), [CancelEffect::Quiesced, release(0)]);
    assert_eq!(group.release_answered(0, &ABSENT, 1_001), [], "the open may still come");
    assert_eq!(group.open_answered(0, 1_200), []);
    assert_eq!(group.timer(1_500), [release(0)]);
    assert_eq!(group.release_answered(0, &RELEASED, 1_501), [CancelEffect::Settled]);
}

#[test]
fn prefilling_lets_the_chunk_end_and_it_commits_no_token() {
    let mut group = open(1);
    group.step_sent(0);
    assert_eq!(group.cancel(10, CLIENT, 60_000), [stop(0)]);
    assert_eq!(group.stop_answered(0, &Ok(StopAck::InFlight { step: 0 }), 11), []);
    assert_eq!(group.step_ended(0, 0, 50), (true, vec![CancelEffect::Quiesced, release(0)]));
    assert_eq!((group.outcome().committed_tokens, group.outcome().uncertain_step), (0, None));
}

#[test]
fn a_step_that_does_not_end_in_time_is_uncertain_and_its_late_answer_dropped() {
    // The shorter of what the step has left and one second.
    for (step_left_ms, wait_ms) in [(300, 300), (1_000, 1_000), (20_000, 1_000)] {
        let mut group = open(2);
        group.step_sent(5);
        group.step_ended(5, 1, 10);
        group.step_sent(6);
        assert_eq!(group.cancel(100, CLIENT, step_left_ms), [stop(0), stop(1)]);
        group.stop_answered(0, &QUIESCENT, 101);
        group.stop_answered(1, &Ok(StopAck::InFlight { step: 6 }), 101);
        assert_eq!(group.next_timer(), Some(100 + wait_ms));
        assert_eq!(group.timer(99 + wait_ms), []);
        let effects = group.timer(100 + wait_ms);
        let uncertain = CancelEffect::MarkUncertain { step: 6 };
        assert_eq!(effects, [uncertain, CancelEffect::Quiesced, release(0), release(1)]);
        assert_eq!(group.step_ended(6, 1, 101 + wait_ms), (false, vec![]));
        assert_eq!((group.outcome().committed_tokens, group.outcome().uncertain_step), (1, Some(6)));
    }
}

#[test]
fn a_deadline_that_has_passed_leaves_no_time_to_quiesce() {
    let mut group = open(1);
    group.step_sent(2);
    let cause = Cause::Deadline;
    let effects = group.cancel(25, cause, 0);
    let expected = [
        CancelEffect::SendStop { shard: 0, cause },
        CancelEffect::MarkUncertain { step: 2 },
        CancelEffect::Quiesced,
        CancelEffect::SendRelease { shard: 0, cause },
    ];
    assert_eq!(effects, expected);
}

#[test]
fn a_lost_step_is_uncertain_at_once_and_not_waited_for() {
    let mut group = open(2);
    group.step_sent(3);
    assert_eq!(group.step_lost(9, 30), [], "not the one in flight");
    assert_eq!(group.step_lost(3, 30), [CancelEffect::MarkUncertain { step: 3 }]);
    group.shard_died(1, 30);
    assert_eq!(group.cancel(30, CLIENT, 20_000), [stop(0)], "a dead process is not called");
    assert_eq!(group.stop_answered(0, &QUIESCENT, 31), [CancelEffect::Quiesced, release(0)]);
    assert_eq!(group.release_answered(0, &RELEASED, 32), [CancelEffect::Settled]);
    assert_eq!(group.outcome().shards, [ShardOutcome::Released; 2]);
    assert_eq!(group.outcome().uncertain_step, Some(3));
}

#[test]
fn completed_kv_is_reaped_by_the_same_phases() {
    let mut group = open(1);
    group.step_sent(0);
    group.step_ended(0, 1, 10);
    group.delivered(1);
    assert_eq!(group.cancel(15, CLIENT, 0), [stop(0), CancelEffect::Quiesced, release(0)]);
    assert_eq!(group.release_answered(0, &RELEASED, 16), [CancelEffect::Settled]);
}

#[test]
fn release_is_asked_again_each_500_ms_while_busy_or_silent() {
    let mut group = open(2);
    group.cancel(0, CLIENT, 0);
    assert_eq!(group.release_answered(0, &Ok(ReleaseAck::Busy { step: 3 }), 10), []);
    assert_eq!(group.next_timer(), Some(500));
    assert_eq!(group.timer(499), []);
    assert_eq!(group.timer(500), [release(0), release(1)]);
    group.release_answered(0, &RELEASED, 600);
    let reset = Err(AdapterError::StreamReset("cut".into()));
    assert_eq!(group.release_answered(1, &reset, 600), [], "an error is no answer");
    assert_eq!(group.timer(1_000), [release(1)]);
    assert_eq!(group.release_answered(1, &ABSENT, 1_001), [CancelEffect::Settled]);
}

#[test]
fn a_silent_workers_key_is_gone_a_tenth_and_a_second_after_its_lease() {
    assert_eq!(lease_gone_at(0, 10_000), 12_000);
    assert_eq!(lease_gone_at(500, 15), 500 + 15 + 2 + 1_000, "rounded up");
    assert_eq!(lease_gone_at(u64::MAX - 1, 10_000), u64::MAX);
    let mut group = open(2);
    group.beat_sent(0, 4_000);
    group.beat_sent(0, 3_000);
    group.cancel(5_000, CLIENT, 0);
    let mut now_ms = 5_000;
    let mut asked = 1;
    while let Some(at) = group.next_timer() {
        assert!(at > now_ms, "a timer that does not move on would spin");
        now_ms = at;
        let effects = group.timer(now_ms);
        asked += effects.iter().filter(|effect| **effect == release(0)).count();
        let gone = group.outcome().shards[1] == ShardOutcome::LeaseExpired;
        assert_eq!(gone, now_ms >= 12_000, "shard 1 had its last beat at 0");
    }
    assert_eq!(now_ms, 16_000, "shard 0 had one at 4 000");
    assert_eq!(group.outcome().shards, [ShardOutcome::LeaseExpired; 2]);
    assert_eq!(asked, 22, "at 5 000 and each 500 ms before 16 000");
}

#[test]
fn a_fence_or_a_missing_key_means_absent_and_a_death_released() {
    let answers = [
        (AdapterError::StaleEpoch { have: 3 }, ShardOutcome::WasAbsent),
        (AdapterError::CacheMiss("gone".into()), ShardOutcome::WasAbsent),
        (AdapterError::LeaseExpired, ShardOutcome::LeaseExpired),
        (AdapterError::WorkerDeath("killed".into()), ShardOutcome::Released),
    ];
    for (error, expected) in answers {
        let mut group = open(1);
        group.cancel(0, CLIENT, 0);
        assert_eq!(group.release_answered(0, &Err(error), 1), [CancelEffect::Settled]);
        assert_eq!(group.outcome().shards, [expected]);
    }
}

#[test]
fn answers_of_shards_that_are_not_there_are_dropped() {
    let mut group = open(1);
    group.open_sent(9, 0);
    group.beat_sent(9, 0);
    group.cancel(0, CLIENT, 0);
    assert_eq!(group.open_answered(9, 0), []);
    assert_eq!(group.stop_answered(9, &QUIESCENT, 0), []);
    assert_eq!(group.shard_died(9, 0), []);
    assert_eq!(group.release_answered(9, &RELEASED, 0), []);
    assert_eq!(group.outcome().shards, [ShardOutcome::Pending]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is answered, in whatever order: buffers go once, every shard settles within its lease, `Quiesced` and
    /// `Settled` come once and in this order.
    #[test]
    fn every_group_settles(shards in 0_usize..4, calls in proptest::collection::vec((0_u8..12, 0_usize..4, 0_u64..700), 0..60)) {
        let ran = Arc::new(AtomicU32::new(0));
        let mut group = ShardCancellationGroup::new(KEY, shards, LEASE_MS);
        let (mut now_ms, mut buffers, mut effects) = (0, 0, Vec::new());
        for (call, shard, wait_ms) in calls {
            now_ms += wait_ms;
            effects.extend(match call {
                0 => { group.open_sent(shard, now_ms); vec![] }
                1 => group.open_answered(shard, now_ms),
                2 => { group.beat_sent(shard, now_ms); vec![] }
                3 => { group.step_sent(shard as u32); vec![] }
                4 => group.step_ended(shard as u32, 1, now_ms).1,
                5 => group.step_lost(shard as u32, now_ms),
                6 => group.stop_answered(shard, &QUIESCENT, now_ms),
                7 => group.release_answered(shard, &RELEASED, now_ms),
                8 => group.release_answered(shard, &ABSENT, now_ms),
                9 => group.shard_died(shard, now_ms),
                10 => {
                    let ran = ran.clone();
                    group.add_buffer(move || { ran.fetch_add(1, Ordering::Relaxed); });
                    buffers += 1;
                    vec![]
                }
                _ => group.cancel(now_ms, CLIENT, wait_ms),
            });
        }
        effects.extend(group.cancel(now_ms, Cause::Node, 5_000));
        let ends_by = now_ms + QUIESCE_MS + lease_gone_at(0, LEASE_MS);
        while let Some(at) = group.next_timer() {
            now_ms = now_ms.max(at);
            prop_assert!(now_ms <= ends_by, "still waiting at {now_ms}");
            effects.extend(group.timer(now_ms));
        }
        prop_assert_eq!(group.phase(), CancelPhase::Done);
        prop_assert!(group.outcome().settled());
        prop_assert_eq!(ran.load(Ordering::Relaxed), buffers);
        let ends: Vec<&CancelEffect> = effects
            .iter()
            .filter(|effect| matches!(effect, CancelEffect::Quiesced | CancelEffect::Settled))
            .collect();
        prop_assert_eq!(ends, [&CancelEffect::Quiesced, &CancelEffect::Settled]);
        for shard in 0..shards {
            let stops = effects.iter().filter(|e| matches!(e, CancelEffect::SendStop { shard: s, .. } if *s == shard));
            prop_assert!(stops.count() <= 1);
        }
    }
}
