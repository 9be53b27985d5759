use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::adapter::{Digest, Sampling};

const LIMITS: KvLimits = KvLimits { capacity: 100, max_positions: 64, fences: 3 };
const LEASE_MS: u64 = 10_000;

/// KV that can be counted: one strong reference for each that exists.
type Kv = Arc<()>;

struct Bed {
    kv: HotKvStateManager<Kv>,
    made: Kv,
}

fn bed() -> Bed {
    Bed { kv: HotKvStateManager::new(LIMITS), made: Arc::new(()) }
}

fn key(session: u8, epoch: u32) -> KvKey {
    KvKey::new(SessionId([session; 16]), epoch)
}

fn plan(rows: u32) -> OpenPlan {
    OpenPlan { max_positions: rows, lease_ms: LEASE_MS, sampling: Sampling::GREEDY, trace: None }
}

fn step(step: u32) -> StepRef {
    StepRef { step, fingerprint: fingerprint(step, 0) }
}

fn fingerprint(step: u32, content: u8) -> Digest {
    let mut digest = [content; 32];
    digest[0] = step as u8;
    digest
}

fn token(token: u32) -> StepOut {
    StepOut::Token { token, logits_digest: [0; 32] }
}

impl Bed {
    fn open(&mut self, key: KvKey, rows: u32, now_ms: u64) -> Result<Opened, AdapterError> {
        self.kv.open(key, plan(rows), now_ms, || self.made.clone())
    }

    fn begin(
        &mut self,
        key: KvKey,
        at: u32,
        position: u32,
        rows: u32,
        now_ms: u64,
    ) -> Result<Kv, AdapterError> {
        match self.kv.begin(key, step(at), position, rows, now_ms)? {
            Begin::Run { kv, .. } => Ok(kv),
            Begin::Replay(out) => panic!("replayed {out:?}"),
        }
    }

    /// Runs step `at` of `rows` rows to its end; it gives token 100 + `at`.
    fn run(&mut self, key: KvKey, at: u32, position: u32, rows: u32, now_ms: u64) {
        let kv = self.begin(key, at, position, rows, now_ms).unwrap();
        self.kv.finish(key, kv, &token(100 + at), now_ms).unwrap();
    }

    /// KV objects that exist, whoever holds them.
    fn alive(&self) -> usize {
        Arc::strong_count(&self.made) - 1
    }

    fn rows(&self, key: KvKey) -> Option<u32> {
        self.kv.usage(0).keys.iter().find(|usage| usage.key == key).map(|usage| usage.rows)
    }
}

fn stale(have: u32) -> AdapterError {
    AdapterError::StaleEpoch { have }
}

fn is_conflict<T: std::fmt::Debug>(result: Result<T, AdapterError>) -> bool {
    matches!(result, Err(AdapterError::Conflict(_)))
}

fn is_miss<T: std::fmt::Debug>(result: Result<T, AdapterError>) -> bool {
    matches!(result, Err(AdapterError::CacheMiss(_)))
}

fn is_full<T: std::fmt::Debug>(result: Result<T, AdapterError>) -> bool {
    matches!(result, Err(AdapterError::Full(_)))
}

fn is_malformed<T: std::fmt::Debug>(result: Result<T, AdapterError>) -> bool {
    matches!(result, Err(AdapterError::MalformedBundle(_)))
}

#[test]
fn open_reserves_the_worst_case_at_once() {
    let mut bed = bed();
    assert_eq!(bed.open(key(1, 0), 60, 0), Ok(Opened { kv_len: 0 }));
    let usage = bed.kv.usage(4_000);
    assert_eq!(
        usage.keys,
        [KeyUsage { key: key(1, 0), rows: 0, reserved: 60, buffers: 0, lease_left_ms: 6_000 }]
    );
    assert_eq!(bed.kv.free_rows(), 40);
}

#[test]
fn a_plan_that_does_not_fit_is_full_and_takes_nothing() {
    let mut bed = bed();
    bed.open(key(1, 0), 60, 0).unwrap();
    assert!(is_full(bed.open(key(2, 0), 41, 0)));
    assert_eq!((bed.kv.free_rows(), bed.alive()), (40, 1));
    assert_eq!(bed.open(key(3, 0), 40, 0), Ok(Opened { kv_len: 0 }));
    assert_eq!(bed.kv.free_rows(), 0);
}

#[test]
fn a_plan_of_no_rows_or_more_than_the_model_has_is_full() {
    let mut bed = bed();
    for rows in [0, 65, u32::MAX] {
        assert!(is_full(bed.open(key(1, 0), rows, 0)), "{rows}");
    }
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
}

#[test]
fn a_second_open_with_an_equal_plan_changes_nothing() {
    let mut bed = bed();
    bed.open(key(1, 0), 10, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    assert_eq!(bed.open(key(1, 0), 10, 5_000), Ok(Opened { kv_len: 4 }));
    assert_eq!((bed.kv.free_rows(), bed.alive()), (90, 1));
    assert_eq!(bed.kv.usage(5_000).keys[0].lease_left_ms, 5_000, "only a beat renews a lease");
}

#[test]
fn a_second_open_with_another_plan_is_a_conflict() {
    let mut bed = bed();
    bed.open(key(1, 0), 10, 0).unwrap();
    assert!(is_conflict(bed.open(key(1, 0), 11, 0)));
    let seeded = OpenPlan { sampling: Sampling { greedy: false, seed: 1 }, ..plan(10) };
    assert!(is_conflict(bed.kv.open(key(1, 0), seeded, 0, || panic!("no KV is made"))));
    assert_eq!(bed.kv.free_rows(), 90);
}

#[test]
fn sessions_do_not_see_each_other() {
    let mut bed = bed();
    bed.open(key(1, 0), 10, 0).unwrap();
    bed.open(key(2, 0), 10, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    assert_eq!((bed.rows(key(1, 0)), bed.rows(key(2, 0))), (Some(4), Some(0)));
    assert_eq!(bed.kv.release(key(1, 0), 0), ReleaseAck::Released { rows: 4, buffers: 0 });
    bed.run(key(2, 0), 0, 0, 3, 0);
    assert_eq!(bed.rows(key(2, 0)), Some(3));
}

#[test]
fn a_step_for_a_key_never_opened_is_a_cache_miss() {
    let mut bed = bed();
    assert!(is_miss(bed.begin(key(1, 0), 0, 0, 4, 0)));
    bed.open(key(1, 3), 10, 0).unwrap();
    assert!(is_miss(bed.begin(key(1, 4), 0, 0, 4, 0)), "a future epoch was never opened");
    assert_eq!(bed.rows(key(1, 3)), Some(0));
}

#[test]
fn an_epoch_below_the_fence_is_stale_for_open_step_and_query() {
    let mut bed = bed();
    bed.open(key(1, 2), 10, 0).unwrap();
    assert_eq!(bed.open(key(1, 1), 10, 0), Err(stale(2)));
    assert_eq!(bed.begin(key(1, 0), 0, 0, 4, 0), Err(stale(2)));
    assert_eq!(bed.kv.query(key(1, 1), 0, 0), Err(stale(2)));
    assert_eq!((bed.rows(key(1, 2)), bed.alive()), (Some(0), 1));
}

#[test]
fn a_higher_epoch_releases_the_lower_one_first_and_so_fits_in_its_rows() {
    let mut bed = bed();
    bed.open(key(1, 0), 60, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    assert_eq!(bed.open(key(1, 1), 60, 0), Ok(Opened { kv_len: 0 }));
    assert_eq!((bed.rows(key(1, 0)), bed.rows(key(1, 1))), (None, Some(0)));
    assert_eq!((bed.kv.free_rows(), bed.alive()), (40, 1));
    assert_eq!(bed.begin(key(1, 0), 1, 4, 1, 0), Err(stale(1)));
}

#[test]
fn a_lower_epoch_whose_step_runs_keeps_its_rows_until_the_step_ends() {
    let mut bed = bed();
    bed.open(key(1, 0), 30, 0).unwrap();
    let kv = bed.begin(key(1, 0), 0, 0, 4, 0).unwrap();
    bed.open(key(1, 1), 30, 0).unwrap();
    assert_eq!((bed.kv.free_rows(), bed.kv.busy()), (40, vec![key(1, 0)]));
    assert_eq!(bed.kv.finish(key(1, 0), kv, &token(1), 0), Err(stale(1)), "its result is nobody's");
    assert_eq!((bed.kv.free_rows(), bed.alive()), (70, 1));
    assert_eq!(bed.rows(key(1, 1)), Some(0));
}

#[test]
fn the_fence_outlives_release_by_ten_minutes() {
    let mut bed = bed();
    bed.open(key(1, 1), 10, 0).unwrap();
    bed.kv.release(key(1, 1), 1_000);
    bed.kv.reap(600_999);
    assert_eq!(bed.open(key(1, 0), 10, 600_999), Err(stale(1)));
    bed.kv.reap(601_000);
    assert_eq!(bed.kv.fenced(), 0);
    assert_eq!(bed.open(key(1, 0), 10, 601_000), Ok(Opened { kv_len: 0 }));
}

#[test]
fn the_fence_of_a_live_key_never_goes_however_long_it_lives() {
    let mut bed = bed();
    bed.open(key(1, 1), 10, 0).unwrap();
    for beat in 1..=700 {
        bed.kv.renew(&[key(1, 1)], beat * 1_000);
    }
    assert_eq!(bed.open(key(1, 0), 10, 700_000), Err(stale(1)));
}

#[test]
fn too_many_fences_drop_the_one_released_first_and_never_a_live_one() {
    let mut bed = bed();
    bed.open(key(9, 1), 10, 0).unwrap();
    for session in 1..=4 {
        bed.open(key(session, 1), 10, 0).unwrap();
    }
    for (now_ms, session) in [(1, 2), (2, 1), (3, 4), (4, 3)] {
        bed.kv.release(key(session, 1), now_ms);
    }
    assert_eq!(bed.kv.fenced(), 4, "three released and the live one");
    assert_eq!(bed.open(key(9, 0), 10, 5), Err(stale(1)));
    assert_eq!(bed.open(key(1, 0), 10, 5), Err(stale(1)));
    assert_eq!(bed.open(key(2, 0), 10, 5), Ok(Opened { kv_len: 0 }), "released first");
}

#[test]
fn a_full_open_raises_the_fence_all_the_same() {
    let mut bed = bed();
    bed.open(key(1, 0), 60, 0).unwrap();
    bed.open(key(2, 0), 40, 0).unwrap();
    assert!(is_full(bed.open(key(2, 1), 41, 0)));
    assert_eq!(bed.rows(key(2, 0)), None, "the lower epoch went first");
    assert_eq!(bed.open(key(2, 0), 1, 0), Err(stale(1)));
}

#[test]
fn a_duplicate_step_gives_the_recorded_output_and_touches_nothing() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    bed.run(key(1, 0), 1, 4, 1, 0);
    let again = bed.kv.begin(key(1, 0), step(0), 0, 4, 0).unwrap();
    assert!(matches!(again, Begin::Replay(out) if out == token(100)));
    assert_eq!(bed.rows(key(1, 0)), Some(5));
    bed.run(key(1, 0), 2, 5, 1, 0);
}

#[test]
fn the_same_step_with_other_content_is_a_conflict() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    let other = StepRef { step: 0, fingerprint: fingerprint(0, 7) };
    assert!(is_conflict(bed.kv.begin(key(1, 0), other, 0, 4, 0)));
    assert_eq!(bed.rows(key(1, 0)), Some(4));
}

#[test]
fn only_the_last_four_outputs_are_kept() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    for at in 0..6 {
        bed.run(key(1, 0), at, at, 1, 0);
    }
    for old in [0, 1] {
        assert!(is_conflict(bed.kv.begin(key(1, 0), step(old), old, 1, 0)), "{old}");
        assert_eq!(bed.kv.query(key(1, 0), old, 0), Ok(StepState::Unknown));
    }
    for kept in 2..6 {
        let again = bed.kv.begin(key(1, 0), step(kept), kept, 1, 0).unwrap();
        assert!(matches!(again, Begin::Replay(out) if out == token(100 + kept)));
    }
}

#[test]
fn a_step_beyond_the_next_is_a_cache_miss() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    for at in [2, u32::MAX] {
        assert!(is_miss(bed.begin(key(1, 0), at, 4, 1, 0)), "{at}");
    }
    bed.run(key(1, 0), 1, 4, 1, 0);
}

#[test]
fn a_position_that_is_not_the_number_of_rows_is_malformed() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    for position in [0, 3, 5, u32::MAX] {
        assert!(is_malformed(bed.begin(key(1, 0), 1, position, 1, 0)), "{position}");
    }
    assert_eq!(bed.rows(key(1, 0)), Some(4));
    bed.run(key(1, 0), 1, 4, 1, 0);
}

#[test]
fn rows_beyond_the_plan_are_malformed_also_at_the_ends_of_u32() {
    let mut bed = bed();
    bed.open(key(1, 0), 5, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    for rows in [2, u32::MAX] {
        assert!(is_malformed(bed.begin(key(1, 0), 1, 4, rows, 0)), "{rows}");
    }
    bed.run(key(1, 0), 1, 4, 1, 0);
}

#[test]
fn one_step_runs_at_a_time() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    let kv = bed.begin(key(1, 0), 0, 0, 4, 0).unwrap();
    assert!(is_conflict(bed.begin(key(1, 0), 0, 0, 4, 0)));
    assert_eq!(bed.kv.query(key(1, 0), 0, 0), Ok(StepState::Unknown));
    let usage = bed.kv.usage(0).keys[0];
    assert_eq!((usage.rows, usage.buffers), (0, 1), "rows count when the step is done");
    bed.kv.finish(key(1, 0), kv, &token(100), 0).unwrap();
    assert_eq!(bed.rows(key(1, 0)), Some(4));
}

#[test]
fn a_failed_step_leaves_the_rows_and_may_come_again() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    let kv = bed.begin(key(1, 0), 0, 0, 4, 0).unwrap();
    bed.kv.fail(key(1, 0), kv, 0);
    assert_eq!(bed.kv.query(key(1, 0), 0, 0), Ok(StepState::NotSeen { kv_len: 0 }));
    bed.run(key(1, 0), 0, 0, 4, 0);
}

#[test]
fn a_lost_step_takes_its_key_with_it_and_frees_the_rows() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    drop(bed.begin(key(1, 0), 0, 0, 4, 0).unwrap());
    bed.kv.lose(key(1, 0), 0);
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
    assert!(is_miss(bed.begin(key(1, 0), 0, 0, 4, 0)));
}

#[test]
fn query_tells_what_ran_what_did_not_and_what_cannot_be_said() {
    let mut bed = bed();
    assert_eq!(bed.kv.query(key(1, 0), 0, 0), Ok(StepState::Unknown));
    bed.open(key(1, 0), 20, 0).unwrap();
    assert_eq!(bed.kv.query(key(1, 0), 0, 0), Ok(StepState::NotSeen { kv_len: 0 }));
    bed.run(key(1, 0), 0, 0, 4, 0);
    let done = StepState::Done { fingerprint: fingerprint(0, 0), out: token(100) };
    assert_eq!(bed.kv.query(key(1, 0), 0, 0), Ok(done));
    assert_eq!(bed.kv.query(key(1, 0), 1, 0), Ok(StepState::NotSeen { kv_len: 4 }));
    bed.kv.release(key(1, 0), 0);
    assert_eq!(bed.kv.query(key(1, 0), 0, 0), Ok(StepState::Unknown));
}

#[test]
fn after_a_stop_no_new_step_begins_but_what_ran_is_still_told() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 0);
    assert_eq!(bed.kv.stop(key(1, 0)), StopAck::Quiescent);
    assert!(is_conflict(bed.begin(key(1, 0), 1, 4, 1, 0)));
    assert!(matches!(bed.kv.begin(key(1, 0), step(0), 0, 4, 0), Ok(Begin::Replay(_))));
    assert!(is_conflict(bed.open(key(1, 0), 20, 0)));
}

#[test]
fn a_stop_during_a_step_names_it_and_the_step_still_counts() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    let kv = bed.begin(key(1, 0), 0, 0, 4, 0).unwrap();
    assert_eq!(bed.kv.stop(key(1, 0)), StopAck::InFlight { step: 0 });
    bed.kv.finish(key(1, 0), kv, &token(100), 0).unwrap();
    assert_eq!(bed.kv.stop(key(1, 0)), StopAck::Quiescent);
    assert_eq!(bed.kv.release(key(1, 0), 0), ReleaseAck::Released { rows: 4, buffers: 0 });
}

#[test]
fn stop_and_release_are_legal_for_keys_never_seen_released_or_fenced() {
    let mut bed = bed();
    assert_eq!(bed.kv.stop(key(1, 0)), StopAck::Quiescent);
    assert_eq!(bed.kv.release(key(1, 0), 0), ReleaseAck::WasAbsent);
    assert_eq!(bed.kv.fenced(), 0, "and leave no trace");
    bed.open(key(1, 1), 20, 0).unwrap();
    assert_eq!(bed.kv.release(key(1, 0), 0), ReleaseAck::WasAbsent);
    assert_eq!(bed.kv.release(key(1, 1), 0), ReleaseAck::Released { rows: 0, buffers: 0 });
    assert_eq!(bed.kv.release(key(1, 1), 0), ReleaseAck::WasAbsent);
}

#[test]
fn a_release_during_a_step_is_busy_and_no_step_follows() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    let kv = bed.begin(key(1, 0), 0, 0, 4, 0).unwrap();
    assert_eq!(bed.kv.release(key(1, 0), 0), ReleaseAck::Busy { step: 0 });
    assert_eq!(bed.kv.free_rows(), 80, "never reused while a writer is at work");
    bed.kv.finish(key(1, 0), kv, &token(100), 0).unwrap();
    assert!(is_conflict(bed.begin(key(1, 0), 1, 4, 1, 0)));
    assert_eq!(bed.kv.release(key(1, 0), 0), ReleaseAck::Released { rows: 4, buffers: 0 });
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
}

#[test]
fn a_step_after_the_lease_is_refused_and_the_kv_is_gone() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.run(key(1, 0), 0, 0, 4, 9_999);
    assert_eq!(bed.begin(key(1, 0), 1, 4, 1, 10_000), Err(AdapterError::LeaseExpired));
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
    assert_eq!(
        bed.begin(key(1, 0), 1, 4, 1, 10_001),
        Err(AdapterError::LeaseExpired),
        "and so the next time"
    );
}

#[test]
fn a_beat_renews_only_the_keys_it_names() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.open(key(2, 0), 20, 0).unwrap();
    bed.kv.renew(&[key(1, 0), key(7, 7)], 9_000);
    bed.kv.reap(10_000);
    assert_eq!((bed.rows(key(1, 0)), bed.rows(key(2, 0))), (Some(0), None));
    bed.kv.reap(19_000);
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
}

#[test]
fn a_beat_that_comes_too_late_revives_nothing() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.kv.renew(&[key(1, 0)], 60_000);
    assert_eq!((bed.rows(key(1, 0)), bed.alive()), (None, 0));
    assert_eq!(bed.begin(key(1, 0), 0, 0, 4, 60_000), Err(AdapterError::LeaseExpired));
}

#[test]
fn a_lease_that_ends_during_a_step_frees_the_rows_when_the_step_ends() {
    let mut bed = bed();
    bed.open(key(1, 0), 20, 0).unwrap();
    let kv = bed.begin(key(1, 0), 0, 0, 4, 0).unwrap();
    bed.kv.reap(10_000);
    bed.kv.renew(&[key(1, 0)], 10_001);
    assert_eq!((bed.kv.free_rows(), bed.alive()), (80, 1));
    assert_eq!(bed.kv.finish(key(1, 0), kv, &token(1), 10_002), Err(AdapterError::LeaseExpired));
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
}

#[test]
fn no_lease_is_longer_than_ten_minutes_and_no_time_overflows() {
    let mut bed = bed();
    let endless = OpenPlan { lease_ms: u64::MAX, ..plan(20) };
    bed.kv.open(key(1, 0), endless, 5, || Arc::new(())).unwrap();
    assert_eq!(bed.kv.usage(5).keys[0].lease_left_ms, LEASE_MAX_MS);
    bed.kv.reap(5 + LEASE_MAX_MS);
    assert_eq!(bed.kv.free_rows(), 100);
    bed.kv.open(key(2, 0), endless, u64::MAX - 1, || Arc::new(())).unwrap();
    bed.kv.renew(&[key(2, 0)], u64::MAX - 1);
    bed.kv.reap(u64::MAX);
    assert_eq!(bed.kv.free_rows(), 100);
}

#[test]
fn the_reaper_needs_no_admission() {
    let mut bed = bed();
    bed.open(key(1, 0), 60, 0).unwrap();
    bed.open(key(2, 0), 40, 0).unwrap();
    bed.kv.reap(10_000);
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
}

#[test]
fn a_higher_generation_releases_every_key_of_the_lower_ones() {
    let mut bed = bed();
    bed.kv.hello(1, 0).unwrap();
    bed.open(key(1, 0), 20, 0).unwrap();
    bed.open(key(2, 0), 20, 0).unwrap();
    let kv = bed.begin(key(2, 0), 0, 0, 4, 0).unwrap();
    bed.kv.hello(2, 0).unwrap();
    assert_eq!((bed.kv.free_rows(), bed.alive()), (80, 1), "a running step ends first");
    assert!(is_miss(bed.kv.finish(key(2, 0), kv, &token(1), 0)));
    assert_eq!((bed.kv.free_rows(), bed.alive()), (100, 0));
    assert!(is_miss(bed.begin(key(1, 0), 0, 0, 4, 0)));
    assert_eq!(bed.open(key(1, 1), 20, 0), Ok(Opened { kv_len: 0 }));
}

#[test]
fn a_lower_generation_is_refused_and_the_same_one_may_come_back() {
    let mut bed = bed();
    bed.kv.hello(5, 0).unwrap();
    bed.open(key(1, 0), 20, 0).unwrap();
    assert_eq!(bed.kv.hello(4, 0), Err(StaleCoordinator { have: 5 }));
    assert_eq!(bed.kv.hello(5, 0), Ok(()));
    assert_eq!((bed.kv.generation(), bed.rows(key(1, 0))), (5, Some(0)));
}

/// What a [`HotKvStateManager`] should do, told as one list and no index.
#[derive(Default)]
struct Naive {
    now_ms: u64,
    generation: u64,
    live: Vec<NaiveKey>,
    fences: Vec<(SessionId, u32, u64)>,
}

struct NaiveKey {
    key: KvKey,
    rows: u32,
    reserved: u32,
    lease_end_ms: u64,
    next: u32,
    running: Option<u32>,
    stopped: bool,
    doomed: bool,
}

impl Naive {
    fn get(&mut self, key: KvKey) -> Option<&mut NaiveKey> {
        self.live.iter_mut().find(|live| live.key == key)
    }

    fn doom(&mut self, which: impl Fn(&NaiveKey) -> bool) {
        let now_ms = self.now_ms;
        self.live.iter_mut().filter(|live| which(live)).for_each(|live| live.doomed = true);
        let fences = &mut self.fences;
        self.live.retain(|live| {
            let stays = !live.doomed || live.running.is_some();
            if !stays {
                // Idle since now, if this was the last one; corrected below while another is live.
                for fence in fences.iter_mut().filter(|fence| fence.0 == live.key.session) {
                    fence.2 = now_ms;
                }
            }
            stays
        });
    }

    fn bound(&mut self) {
        loop {
            let mut idle: Vec<(u64, SessionId)> = self
                .fences
                .iter()
                .filter(|fence| self.live.iter().all(|live| live.key.session != fence.0))
                .map(|fence| (fence.2, fence.0))
                .collect();
            idle.sort_unstable();
            let over = idle.len() > LIMITS.fences;
            match idle.first() {
                Some((_, session)) if over => self.fences.retain(|fence| fence.0 != *session),
                _ => break,
            }
        }
    }

    fn reap(&mut self) {
        let now_ms = self.now_ms;
        self.doom(|live| live.lease_end_ms <= now_ms);
        let live: Vec<SessionId> = self.live.iter().map(|live| live.key.session).collect();
        self.fences.retain(|fence| live.contains(&fence.0) || now_ms - fence.2 < FENCE_KEPT_MS);
        self.bound();
    }

    fn stale(&self, key: KvKey) -> bool {
        self.fences.iter().any(|fence| fence.0 == key.session && key.epoch < fence.1)
    }

    /// Code of the error, if it is one.
    fn open(&mut self, key: KvKey, rows: u32, lease_ms: u64) -> Result<(), u32> {
        if self.stale(key) {
            return Err(4);
        }
        self.reap();
        let now_ms = self.now_ms;
        if let Some(live) = self.get(key) {
            return if live.doomed || live.stopped || live.reserved != rows { Err(7) } else { Ok(()) };
        }
        self.doom(|live| live.key.session == key.session);
        self.fences.retain(|fence| fence.0 != key.session);
        self.fences.push((key.session, key.epoch, now_ms));
        let used: u32 = self.live.iter().map(|live| live.reserved).sum();
        if rows == 0 || rows > LIMITS.max_positions || used + rows > LIMITS.capacity {
            return Err(6);
        }
        self.live.push(NaiveKey {
            key,
            rows: 0,
            reserved: rows,
            lease_end_ms: now_ms + lease_ms,
            next: 0,
            running: None,
            stopped: false,
            doomed: false,
        });
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Op {
    Open(KvKey, u32),
    Begin(KvKey, u32, u32),
    End(u8, u8),
    Stop(KvKey),
    Release(KvKey),
    Renew(Vec<KvKey>),
    Reap,
    Hello(u64),
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Op> {
    let keys = || (0_u8..5, 0_u32..3).prop_map(|(session, epoch)| key(session, epoch));
    prop_oneof![
        6 => (keys(), prop_oneof![Just(0), Just(20), Just(30), Just(65)]).prop_map(|(key, rows)| Op::Open(key, rows)),
        8 => (keys(), 0_u32..4, 1_u32..9).prop_map(|(key, step, rows)| Op::Begin(key, step, rows)),
        8 => (any::<u8>(), 0_u8..6).prop_map(|(which, how)| Op::End(which, how)),
        2 => keys().prop_map(Op::Stop),
        3 => keys().prop_map(Op::Release),
        3 => proptest::collection::vec(keys(), 0..6).prop_map(Op::Renew),
        1 => Just(Op::Reap),
        1 => (0_u64..4).prop_map(Op::Hello),
        4 => prop_oneof![9 => 0_u64..6_000, 1 => 0_u64..700_000].prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_in_use_is_what_live_keys_own_after_every_operation(
        ops in proptest::collection::vec(ops(), 1..120)
    ) {
        let mut bed = bed();
        let mut naive = Naive::default();
        let mut out: Vec<(KvKey, Kv)> = Vec::new();
        for op in ops {
            let now_ms = naive.now_ms;
            match op {
                Op::Open(key, rows) => {
                    let got = bed.open(key, rows, now_ms).map(|_| ()).map_err(|error| error.code());
                    // Leases are all of one length, so an equal number of rows is an equal plan.
                    prop_assert_eq!(got, naive.open(key, rows, LEASE_MS));
                }
                Op::Begin(key, at, rows) => {
                    let position = naive.get(key).map_or(0, |live| live.rows);
                    let got = bed.kv.begin(key, step(at), position, rows, now_ms);
                    let stale = naive.stale(key);
                    if !stale {
                        naive.doom(|live| live.key == key && live.lease_end_ms <= now_ms);
                    }
                    let ran = match naive.get(key) {
                        Some(live) if !stale && !live.doomed => {
                            if at < live.next {
                                prop_assert!(matches!(got, Ok(Begin::Replay(_)) | Err(AdapterError::Conflict(_))));
                                false
                            } else if at == live.next
                                && live.running.is_none()
                                && !live.stopped
                                && live.rows + rows <= live.reserved
                            {
                                live.running = Some(rows);
                                true
                            } else {
                                prop_assert!(got.is_err());
                                false
                            }
                        }
                        _ => {
                            let right = matches!(
                                (stale, got.as_ref().unwrap_err()),
                                (true, AdapterError::StaleEpoch { .. })
                                    | (false, AdapterError::CacheMiss(_) | AdapterError::LeaseExpired)
                            );
                            prop_assert!(right);
                            false
                        }
                    };
                    match got {
                        Ok(Begin::Run { kv, .. }) => {
                            prop_assert!(ran);
                            out.push((key, kv));
                        }
                        _ => prop_assert!(!ran),
                    }
                }
                Op::End(which, how) if !out.is_empty() => {
                    let (key, kv) = out.swap_remove(usize::from(which) % out.len());
                    match how {
                        0 => {
                            drop(kv);
                            bed.kv.lose(key, now_ms);
                        }
                        1 => bed.kv.fail(key, kv, now_ms),
                        _ => {
                            let kept = bed.kv.finish(key, kv, &token(1), now_ms).is_ok();
                            prop_assert_eq!(kept, !naive.get(key).unwrap().doomed);
                        }
                    }
                    let live = naive.get(key).unwrap();
                    let rows = live.running.take().unwrap();
                    live.doomed |= how == 0;
                    if how > 1 {
                        live.rows += rows;
                        live.next += 1;
                    }
                    naive.doom(|_| false);
                }
                Op::End(..) => {}
                Op::Stop(key) => {
                    let expected = naive.get(key).is_some_and(|live| live.running.is_some());
                    prop_assert_eq!(matches!(bed.kv.stop(key), StopAck::InFlight { .. }), expected);
                    if let Some(live) = naive.get(key) {
                        live.stopped = true;
                    }
                }
                Op::Release(key) => {
                    let got = bed.kv.release(key, now_ms);
                    match naive.get(key) {
                        None => prop_assert_eq!(got, ReleaseAck::WasAbsent),
                        Some(live) if live.running.is_some() => {
                            live.stopped = true;
                            prop_assert_eq!(got, ReleaseAck::Busy { step: live.next });
                        }
                        Some(live) => {
                            prop_assert_eq!(got, ReleaseAck::Released { rows: live.rows, buffers: 0 });
                            naive.doom(|live| live.key == key);
                        }
                    }
                }
                Op::Renew(keys) => {
                    bed.kv.renew(&keys, now_ms);
                    naive.reap();
                    for live in naive.live.iter_mut().filter(|live| !live.doomed && keys.contains(&live.key)) {
                        live.lease_end_ms = now_ms + LEASE_MS;
                    }
                }
                Op::Reap => {
                    bed.kv.reap(now_ms);
                    naive.reap();
                }
                Op::Hello(generation) => {
                    let got = bed.kv.hello(generation, now_ms);
                    prop_assert_eq!(got.is_err(), generation < naive.generation);
                    if generation > naive.generation {
                        naive.generation = generation;
                        naive.doom(|_| true);
                    }
                }
                Op::Wait(ms) => naive.now_ms += ms,
            }
            naive.bound();
            let mut expected: Vec<KeyUsage> = naive.live.iter().map(|live| KeyUsage {
                key: live.key,
                rows: live.rows,
                reserved: live.reserved,
                buffers: u32::from(live.running.is_some()),
                lease_left_ms: live.lease_end_ms.saturating_sub(naive.now_ms),
            }).collect();
            expected.sort_by_key(|usage| usage.key);
            prop_assert_eq!(&bed.kv.usage(naive.now_ms).keys, &expected);
            prop_assert_eq!(bed.alive(), expected.len());
            prop_assert_eq!(u64::from(LIMITS.capacity - bed.kv.free_rows()), bed.kv.usage(0).reserved());
            prop_assert_eq!(bed.kv.busy().len(), out.len());
            prop_assert_eq!(bed.kv.fenced(), naive.fences.len());
        }
        for (key, kv) in out.drain(..) {
            bed.kv.fail(key, kv, naive.now_ms);
        }
        bed.kv.reap(naive.now_ms + LEASE_MS);
        prop_assert_eq!((bed.kv.free_rows(), bed.alive()), (LIMITS.capacity, 0));
    }
}
