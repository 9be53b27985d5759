//! Groups of escrows, and what their settlement leaves in the statistics.

use std::collections::BTreeMap;

use super::*;

fn row(n: u8, weight: u64, class: u8, since: u64) -> Candidate {
    Candidate { address: who(n), weight, class, since }
}

/// Healthy: 1, 2, 3 and 6 with weights 10, 30, 60 and 5. 4 is out, 5 waits for its probe.
fn table() -> CandidateTable {
    let rows = vec![
        row(1, 10, 0, 0),
        row(2, 30, 0, 0),
        row(3, 60, 0, 0),
        row(4, 1_000, 2, 0),
        row(5, 7, 1, 120),
        row(6, 5, 0, 0),
    ];
    let header = TableHeader { epoch: 7, model: MODEL.to_owned(), share_bp: 500, poc: false };
    CandidateTable::new(header, rows, Vec::new()).unwrap()
}

/// Drawn with seed 07…07.
fn drawn(slots: u8, cap: u8) -> Option<Vec<u8>> {
    table().draw_group([7; 32], slots, cap).map(|group| group.iter().map(|a| a.0[0]).collect())
}

#[test]
fn a_group_is_drawn_as_an_independent_program_draws_it() {
    // Another implementation, in Python over hashlib, of table bytes, stream and capped draw.
    let digest: String = table().digest().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digest, "c50b7d86ed9e9fd277a29e30aa0f81cb38f4671cd0e16a71937977428542a148");
    assert_eq!(drawn(8, 2), Some(vec![2, 3, 3, 2, 6, 1, 1, 6]));
    assert_eq!(drawn(4, 1), Some(vec![2, 3, 1, 6]));
    assert_eq!(drawn(12, 12), Some(vec![2, 3, 3, 3, 3, 3, 3, 2, 3, 2, 2, 6]));
    assert_eq!(drawn(7, 3), Some(vec![2, 3, 3, 3, 2, 2, 1]));
}

#[test]
fn too_few_healthy_rows_make_no_group() {
    assert_eq!((drawn(5, 1), drawn(9, 2)), (None, None));
    let header = table().header().clone();
    let nobody = CandidateTable::new(header, vec![row(4, 9, 2, 0)], Vec::new()).unwrap();
    assert_eq!(nobody.draw_group([0; 32], 1, 1), None);
}

#[test]
fn slots_fall_about_by_weight_and_never_to_the_unhealthy() {
    let (table, mut seen) = (table(), BTreeMap::new());
    for n in 0..20_000_u32 {
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&n.to_be_bytes());
        for owner in table.draw_group(seed, 1, 1).unwrap() {
            *seen.entry(owner.0[0]).or_insert(0_u32) += 1;
        }
    }
    // Of 105: 1,905, 5,714, 11,429 and 952 expected; six deviations of a binomial law allowed.
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 6]);
    for (n, expected, off) in [(1, 1_905, 250), (2, 5_714, 390), (3, 11_429, 430), (6, 952, 190)] {
        assert!(seen[&n].abs_diff(expected) < off, "{seen:?}");
    }
}

#[test]
fn the_group_of_a_model_leaves_out_who_is_away_or_not_healthy() {
    let mut w = World::new();
    let request = |cap| GroupRequest { model: MODEL, seed: [9; 32], slots: 3, cap };
    let draw = |w: &World, request: &GroupRequest<'_>| {
        let groups = Groups { participants: &w.near, breaker: &w.near };
        groups.draw_group(&w.store, &w.block, request).unwrap()
    };
    let all = |drawn: DrawnGroup| match drawn {
        DrawnGroup::Slots(mut slots) => {
            slots.sort();
            slots.iter().map(|a| a.0[0]).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(all(draw(&w, &request(1))), [1, 2, 3]);
    let away = Standing { in_maintenance: true, ..SERVING };
    w.near.standings.insert((MODEL.to_owned(), who(1)), away);
    assert_eq!(draw(&w, &request(1)), DrawnGroup::TooFew { owners: 2 });
    assert!(all(draw(&w, &request(2))).iter().all(|n| [2, 3].contains(n)));
    w.near.health.insert(who(2), HealthClass::ProbeReady { since: 1 });
    assert_eq!(draw(&w, &request(2)), DrawnGroup::TooFew { owners: 1 });
    assert_eq!(all(draw(&w, &request(3))), [3, 3, 3]);
    w.near.health.insert(who(3), HealthClass::Out);
    assert_eq!(draw(&w, &request(3)), DrawnGroup::TooFew { owners: 0 });
    let unknown = GroupRequest { model: "none", ..request(1) };
    assert_eq!(draw(&w, &unknown), DrawnGroup::ModelUnknown);
}

fn counts(n: u8, epoch: Epoch, ok: u64, missed: u64) -> EscrowCounts {
    EscrowCounts {
        model: MODEL.to_owned(),
        participant: who(n),
        stamp: Stamp { epoch, generation: 0, evidence: true },
        assigned: ok + missed + 3,
        ok,
        missed,
        released: 2,
        earned: 700,
    }
}

fn settle(w: &mut World, counts: &EscrowCounts) {
    w.run(|ctx, _| Keeper.after_escrow_settled(ctx, counts)).unwrap();
}

#[test]
fn counts_of_an_escrow_are_statistics_of_the_epoch_it_was_created_in() {
    let mut w = World::new();
    w.go(150);
    settle(&mut w, &counts(1, 0, 5, 4));
    settle(&mut w, &counts(1, 0, 1, 0));
    settle(&mut w, &counts(1, 1, 2, 1));
    let stats = |assigned, ok, missed, released, earned| EpochStats {
        assigned,
        inference_count: ok,
        missed_requests: missed,
        released,
        prompt_tokens: 0,
        completion_tokens: 0,
        earned,
    };
    assert_eq!(w.stats(0, 1), stats(16, 6, 4, 4, 1_400));
    assert_eq!(w.stats(1, 1), stats(6, 2, 1, 2, 700));
    // Nothing given leaves no row; an epoch whose rows are gone gets none.
    let nothing = EscrowCounts { assigned: 0, released: 0, earned: 0, ..counts(2, 1, 0, 0) };
    settle(&mut w, &nothing);
    w.go(350);
    settle(&mut w, &counts(2, 0, 1, 1));
    let rows = crate::state::STATS.iter(&w.store, holdfast_store::Order::Ascending);
    assert!(rows.map(Result::unwrap).all(|((_, owner), _)| owner == who(1)));
}

#[test]
fn the_slow_breaker_hears_the_counts_of_this_epoch_and_of_no_other() {
    let mut w = World::new();
    w.go(150);
    // 12 misses pass H = 4 by far: 12 · ln 2 = 8.3.
    settle(&mut w, &counts(1, 0, 0, 12));
    w.end();
    invariants::nothing_is_due(&w.store, 150).unwrap();
    assert_eq!(w.near.deactivated.take(), []);
    w.begin(151);
    settle(&mut w, &counts(1, 1, 0, 12));
    settle(&mut w, &counts(2, 1, 40, 5));
    w.end();
    invariants::nothing_is_due(&w.store, 151).unwrap();
    assert_eq!(w.near.deactivated.take(), [who(1)]);
    let ratio = crate::state::SPRT.get(&w.store, &(1, who(1))).unwrap().unwrap();
    assert_eq!((ratio.absorbed_ok, ratio.absorbed_missed), (0, 12));
}
