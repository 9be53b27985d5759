//! From group and health to a table.

use super::*;

fn build(w: &World) -> CandidateTable {
    build_table(&w.store, &w.block, &w.near, &w.near, MODEL).unwrap()
}

fn classes(table: &CandidateTable) -> Vec<(u8, u8, u64)> {
    table.rows().iter().map(|r| (r.address.0[0], r.class, r.since)).collect()
}

fn stand(w: &mut World, n: u8, change: fn(&mut Standing)) {
    change(w.near.standings.get_mut(&(MODEL.to_owned(), who(n))).unwrap());
}

#[test]
fn rows_are_eligible_members_with_their_health_in_address_order() {
    let mut w = World::new();
    w.near.health.insert(who(1), HealthClass::Out);
    w.near.health.insert(who(2), HealthClass::ProbeReady { since: 44 });
    let table = build(&w);
    assert_eq!(classes(&table), [(1, 2, 0), (2, 1, 44), (3, 0, 0)]);
    let header = TableHeader { epoch: 0, model: MODEL.to_owned(), share_bp: 500, poc: false };
    assert_eq!(table.header(), &header);
    assert_eq!(table.row(&who(2)).unwrap().weight, 10);
    assert_eq!(table.row(&who(9)), None);
    assert_eq!(table.empty_reason(), None);
}

#[test]
fn in_shadow_mode_or_switched_off_everyone_is_healthy_but_forced_out_holds() {
    for shadow in [true, false] {
        let mut w = World::new();
        w.near.health.insert(who(1), HealthClass::Out);
        w.near.health.insert(who(2), HealthClass::ProbeReady { since: 44 });
        w.near.health.insert(who(3), HealthClass::ForcedOut);
        w.block.params.health_cb_shadow = shadow;
        w.block.params.health_cb_enabled = shadow;
        assert_eq!(classes(&build(&w)), [(1, 0, 0), (2, 0, 0)]);
    }
}

#[test]
fn in_the_poc_phase_only_preserved_members_are_rows() {
    let mut w = World::new();
    stand(&mut w, 2, |s| s.preserved = true);
    w.near.health.insert(who(2), HealthClass::Out);
    w.block.poc = true;
    let table = build(&w);
    // Eligibility first, health second: the one excluded node that serves now is the fallback.
    assert_eq!(classes(&table), [(2, 2, 0)]);
    assert_eq!(table.draw([0; 32]).unwrap().lane, Lane::Fallback);
    assert_eq!(table.filter_counts(), BTreeMap::from([(Filter::Poc, 2)]));
}

#[test]
fn an_empty_table_names_the_filter_that_removed_the_last_member() {
    let mut w = World::new();
    let reason = |w: &World| build(w).empty_reason();
    w.block.poc = true;
    assert_eq!(reason(&w), Some("poc"));
    for n in 1..=3 {
        stand(&mut w, n, |s| s.in_maintenance = true);
    }
    assert_eq!(reason(&w), Some("maintenance"));
    stand(&mut w, 1, |s| s.in_maintenance = false);
    assert_eq!(reason(&w), Some("poc"), "the last one to go went for the phase");
    for n in 1..=3 {
        w.near.health.insert(who(n), HealthClass::ForcedOut);
    }
    assert_eq!(reason(&w), Some("forced_out"));
    stand(&mut w, 1, |s| s.active = false);
    stand(&mut w, 2, |s| s.weight = 0);
    assert_eq!(reason(&w), Some("forced_out"));
    stand(&mut w, 3, |s| s.active = false);
    assert_eq!(reason(&w), Some("inactive"));
    assert_eq!(build(&w).filter_counts(), BTreeMap::from([(Filter::Inactive, 3)]));
    w.near.standings.clear();
    assert_eq!(reason(&w), Some("no_members"));
}

#[test]
fn an_unknown_model_is_not_found_and_corrupt_health_internal() {
    let mut w = World::new();
    let error = build_table(&w.store, &w.block, &w.near, &w.near, "m9").unwrap_err();
    assert_eq!(error.kind, QueryKind::NotFound);
    w.near.health.insert(who(2), HealthClass::ProbeReady { since: -1 });
    let error = build_table(&w.store, &w.block, &w.near, &w.near, MODEL).unwrap_err();
    assert_eq!(error.kind, QueryKind::Internal);
}

#[test]
fn a_table_changed_row_by_row_equals_one_built_anew() {
    let mut w = World::new();
    for n in 4..=9 {
        w.near.standings.insert((MODEL.to_owned(), who(n)), SERVING);
    }
    let mut table = build(&w);
    let mut random = crate::draw::DrawStream::new([3; 32], [4; 32]);
    for round in 0..300 {
        let mut changes = BTreeMap::new();
        for _ in 0..1 + random.below(3).unwrap() {
            let n = 1 + random.below(12).unwrap() as u8;
            let key = (MODEL.to_owned(), who(n));
            match random.below(7).unwrap() {
                0 => drop(w.near.standings.remove(&key)),
                1 => drop(w.near.standings.insert(key, SERVING)),
                2 => drop(w.near.standings.insert(key, Standing { in_maintenance: true, ..SERVING })),
                3 => drop(w.near.standings.insert(key, Standing { active: false, ..SERVING })),
                4 => drop(w.near.health.insert(who(n), HealthClass::ProbeReady { since: round })),
                5 => drop(w.near.health.insert(who(n), HealthClass::ForcedOut)),
                _ => drop(w.near.health.insert(who(n), HealthClass::Out)),
            }
            let place = candidate_row(&w.store, &w.block, &w.near, &w.near, MODEL, &who(n)).unwrap();
            changes.insert(who(n), place);
        }
        table = table.with_changes(&changes).unwrap();
        let fresh = build(&w);
        assert_eq!(table.digest(), fresh.digest(), "round {round}");
        assert_eq!(table.rows(), fresh.rows());
        assert_eq!(table.filter_counts(), fresh.filter_counts());
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&round.to_be_bytes());
        assert_eq!(table.draw(seed), fresh.draw(seed));
    }
}
