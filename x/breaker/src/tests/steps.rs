//! Block steps: order, bounds, and what corrupt state does to its neighbours.

use holdfast_store::Order;
use holdfast_testkit::{addr, addr_n};

use super::scene::{M, Scene, values};
use crate::state::{DUE, ENTRIES, TALLIES, TRIP_RINGS};
use crate::{DUE_ROWS_MAX, Entry, RingBucket, State, Tally, Trip, TripRing, calc};

#[test]
fn due_rows_run_oldest_first_and_at_most_five_thousand_in_a_block() {
    let mut s = Scene::three();
    let limit = u64::try_from(DUE_ROWS_MAX).unwrap();
    let excluded =
        |due| Entry { state: State::Excluded, excluded_at: 1, cooldown_blocks: due - 1, ..Entry::default() };
    let mut put = |n: u64, due: i64| {
        ENTRIES.set(&mut s.chain.store, &(0, M.into(), addr_n(n)), &excluded(due)).unwrap();
        DUE.insert(&mut s.chain.store, &(due, 0, M.into(), addr_n(n))).unwrap();
    };
    for n in 0..limit {
        put(n, 10);
    }
    put(limit, 9);
    s.chain.block.height = 9;
    s.next();
    let ready =
        |s: &Scene, n: u64| ENTRIES.load(&s.chain.store, &(0, M.into(), addr_n(n))).unwrap().is_ready();
    assert!(ready(&s, limit), "the oldest is not starved by lower addresses");
    assert!(ready(&s, limit - 2));
    assert!(!ready(&s, limit - 1), "the last of the younger waits");
    s.next();
    assert!(ready(&s, limit - 1));
}

#[test]
fn a_corrupt_due_row_is_recorded_and_stops_no_neighbour() {
    let mut s = Scene::three();
    let at = s.trip(2);
    DUE.insert(&mut s.chain.store, &(at + 50, 0, M.into(), addr(1))).unwrap();
    DUE.insert(&mut s.chain.store, &(at + 49, 0, M.into(), addr(2))).unwrap();
    for _ in 0..50 {
        s.chain.block.height += 1;
        s.run(|k, ctx| k.begin_block(ctx)).unwrap();
    }
    assert_eq!(s.letter(2), 'R');
    s.check();
    let events = s.events("EventStepDiscarded");
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|e| e.get("step") == Some("due")));
}

#[test]
fn a_model_with_corrupt_state_is_recorded_and_stops_no_other_model() {
    let mut s = Scene::three();
    s.set(|p| (p.health_cb_window_blocks, p.health_cb_freeze_pct) = (200, 90));
    s.next_epoch_with(|g| {
        g.add_member("m2", addr(1), 10);
        g.add_member("m2", addr(2), 10);
    });
    // A mark that the ring does not hold.
    let key = s.key(1);
    let marked = Entry { trip: Some(Trip { block: s.height(), weight: 9 }), ..Entry::default() };
    ENTRIES.set(&mut s.chain.store, &key, &marked).unwrap();
    let bucket = RingBucket { index: calc::bucket_index(s.height(), 20), weight: 8 };
    let ring = TripRing { since_block: 1, width: 20, frozen: false, buckets: vec![bucket] };
    TRIP_RINGS.set(&mut s.chain.store, &(1, M.into()), &ring).unwrap();
    let tally = Tally { generation: 0, ok: 0, missed: 4 };
    for model in [M, "m2"] {
        TALLIES.set(&mut s.chain.store, &(model.into(), addr(1)), &tally).unwrap();
    }
    s.end();
    let excluded = s.chain.events.iter().filter(|e| e.get("rule") == Some("rate")).count();
    assert_eq!(excluded, 1, "of m2");
    let discarded = s.events("EventStepDiscarded");
    assert_eq!(values(&discarded[0], &["step", "key"]), ["judge", M]);
    assert_eq!(s.entry(1), marked, "nothing of the model's judgement stays");
    assert_eq!(TALLIES.iter(&s.chain.store, Order::Ascending).count(), 0, "and nothing is judged twice");
}
