use std::collections::BTreeMap;

use super::*;
use crate::draw::{DrawStream, TableError};

fn row(n: u8, weight: u64, class: u8, since: u64) -> Candidate {
    Candidate { address: who(n), weight, class, since }
}

fn table(share_bp: u16, rows: &[Candidate]) -> CandidateTable {
    let header = TableHeader { epoch: 7, model: MODEL.to_owned(), share_bp, poc: false };
    CandidateTable::new(header, rows.to_vec(), Vec::new()).unwrap()
}

fn t(share_bp: u16) -> CandidateTable {
    table(
        share_bp,
        &[
            row(1, 1_000_000, 0, 0),
            row(2, 2_500_000, 0, 0),
            row(3, 400, 1, 150),
            row(4, 3_000_000, 2, 0),
            row(5, 7, 1, 120),
        ],
    )
}

fn recolour(class_of: impl Fn(&Candidate) -> u8) -> CandidateTable {
    let rows: Vec<_> = t(500)
        .rows()
        .iter()
        .map(|r| {
            let class = class_of(r);
            Candidate { class, since: if class == 1 { r.since } else { 0 }, ..*r }
        })
        .collect();
    table(500, &rows)
}

fn digest(table: &CandidateTable) -> String {
    table.digest().iter().map(|b| format!("{b:02x}")).collect()
}

#[track_caller]
fn draws(table: &CandidateTable, seed: u8, numbers: &[(u128, u128)], lane: Lane, executor: u8) {
    let mut stream = DrawStream::new([seed; 32], table.digest());
    for (bound, number) in numbers {
        assert_eq!(stream.below(*bound), Some(*number));
    }
    let draw = table.draw([seed; 32]).unwrap();
    assert_eq!((draw.lane, table.rows()[draw.row].address), (lane, who(executor)));
}

#[test]
fn the_table_of_the_specification_has_its_bytes_and_digest() {
    assert_eq!(t(500).bytes().len(), 231);
    assert_eq!(digest(&t(500)), "ae5784a2dc16a2e2b0ed6b91328a4a35a9f704a73c2335fb843ea633906fa2df");
}

#[test]
fn a_healthy_member_is_drawn_by_weight() {
    draws(&t(500), 0x00, &[(10_000, 2437), (3_500_000, 1_502_900)], Lane::Healthy, 2);
}

#[test]
fn below_the_share_the_draw_goes_to_the_probe_lane_longest_wait_first() {
    // Lane by wait: 5 (since 120), 3 (since 150).
    draws(&t(500), 0x35, &[(10_000, 27), (2, 1)], Lane::Probe, 3);
}

#[test]
fn with_share_zero_each_probe_has_the_weight_one() {
    let zero = t(0);
    assert_eq!(digest(&zero), "f2f8466e7616b94eac721404ca24fe51e95206c6821a7ce7674208a4c8bda927");
    draws(&zero, 0x00, &[(3_500_002, 2_791_598)], Lane::Healthy, 2);
    let small = table(0, &[row(1, 1, 0, 0), row(2, 2, 0, 0), row(3, 9, 1, 10)]);
    assert_eq!(digest(&small), "adcc7867589932ae515806ed59433cc7680857389ab6b223ba703f8584055ee3");
    draws(&small, 0x02, &[(4, 3)], Lane::Probe, 3);
}

#[test]
fn with_everyone_out_the_whole_table_is_walked_and_says_fallback() {
    let out = recolour(|_| 2);
    assert_eq!(digest(&out), "ece24c9470dc9ef365de6519fb34da5676dad98f37bfa2f8ab09d6b8fb826787");
    draws(&out, 0x00, &[(6_500_407, 501_990)], Lane::Fallback, 1);
}

#[test]
fn without_a_healthy_member_the_draw_is_a_probe() {
    let ready = recolour(|r| if r.class == 0 { 2 } else { r.class });
    assert_eq!(digest(&ready), "2d17438bfa68e532633cf98bc2e8a4ff8afa20417e43df790dd032467250d651");
    draws(&ready, 0x00, &[(2, 1)], Lane::Probe, 3);
}

#[test]
fn numbers_in_the_incomplete_last_run_are_rejected() {
    let mut blocks = DrawStream::new([0; 32], [0; 32]);
    assert_eq!(
        blocks.next_number().map(u128::to_be_bytes),
        Some(0xef9459c921f6f4aa61fcad981455297c_u128.to_be_bytes())
    );
    assert_eq!(blocks.next_number(), Some(0xcc757567013a1734d35543aeaeceb4fd));
    let mut stream = DrawStream::new([0; 32], [0; 32]);
    assert_eq!(stream.below((1 << 127) + 1), Some(122_994_560_744_996_099_555_529_362_910_083_202_123));
    let third = blocks.next_number().unwrap();
    assert_eq!(third % ((1 << 127) + 1), 122_994_560_744_996_099_555_529_362_910_083_202_123);
    let mut stream = DrawStream::new([0; 32], [0; 32]);
    let five: Vec<_> = (0..5).map(|_| stream.below(10_000).unwrap()).collect();
    assert_eq!(five, [6364, 4605, 2123, 5255, 5764]);
    assert_eq!(stream.below(0), None);
    assert_eq!(stream.below(1), Some(0));
}

#[test]
fn the_binary_search_agrees_with_the_walk_of_the_specification() {
    // The rules once more, by walking, on tables of all mixtures of classes.
    fn walk(table: &CandidateTable, seed: [u8; 32]) -> (Lane, Address) {
        let rows = table.rows();
        let of = |class: u8| rows.iter().filter(move |r| r.class == class);
        let mut stream = DrawStream::new(seed, table.digest());
        let pick = |rows: &mut dyn Iterator<Item = &Candidate>, r: u128| {
            let mut sum = 0;
            for row in rows {
                sum += u128::from(row.weight);
                if sum > r {
                    return row.address;
                }
            }
            panic!("r is past the last row");
        };
        let healthy: u128 = of(0).map(|r| u128::from(r.weight)).sum();
        let ready = of(1).count();
        if healthy == 0 && ready == 0 {
            let r = stream.below(rows.iter().map(|r| u128::from(r.weight)).sum()).unwrap();
            return (Lane::Fallback, pick(&mut rows.iter(), r));
        }
        if table.header().share_bp == 0 {
            let r = stream.below(healthy + ready as u128).unwrap();
            if r < healthy {
                return (Lane::Healthy, pick(&mut of(0), r));
            }
            return (Lane::Probe, of(1).nth((r - healthy) as usize).unwrap().address);
        }
        let probe = ready > 0
            && (healthy == 0 || stream.below(10_000).unwrap() < u128::from(table.header().share_bp));
        if probe {
            let mut lane: Vec<_> = of(1).map(|r| (r.since, r.address)).collect();
            lane.sort();
            lane.truncate(16);
            return (Lane::Probe, lane[stream.below(lane.len() as u128).unwrap() as usize].1);
        }
        let r = stream.below(healthy).unwrap();
        (Lane::Healthy, pick(&mut of(0), r))
    }
    let mut random = DrawStream::new([1; 32], [2; 32]);
    let mut lanes = BTreeMap::new();
    for round in 0..3000_u32 {
        let n = 1 + random.below(40).unwrap() as u8;
        let modes = 1 + random.below(7).unwrap();
        let rows: Vec<_> = (1..=n)
            .map(|i| {
                let class = loop {
                    let class = random.below(3).unwrap() as u8;
                    if modes >> class & 1 == 1 {
                        break class;
                    }
                };
                let since = if class == 1 { 1 + random.below(9).unwrap() as u64 } else { 0 };
                row(i, 1 + random.below(50).unwrap() as u64, class, since)
            })
            .collect();
        let share = [0, 500, 5000, 10_000][round as usize % 4];
        let table = table(share, &rows);
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&round.to_be_bytes());
        let draw = table.draw(seed).unwrap();
        assert_eq!((draw.lane, table.rows()[draw.row].address), walk(&table, seed), "round {round}");
        *lanes.entry(format!("{:?}", draw.lane)).or_insert(0) += 1;
    }
    assert_eq!(lanes.len(), 3, "all lanes were drawn: {lanes:?}");
}

#[test]
fn every_member_with_weight_can_be_drawn_and_about_by_weight() {
    let rows: Vec<_> = (1..=200).map(|n| row(n, u64::from(n), 0, 0)).collect();
    let table = table(500, &rows);
    let mut seen = vec![0_u64; 200];
    for i in 0..60_000_u64 {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&i.to_be_bytes());
        seen[table.draw(seed).unwrap().row] += 1;
    }
    // Weight n of 20,100: expected 60,000·n / 20,100, about 3 for the lightest and 597 for the heaviest.
    assert!(seen.iter().all(|n| *n > 0 || seen[0] == 0), "{seen:?}");
    assert!((497..=697).contains(&seen[199]), "{}", seen[199]);
    let heavy: u64 = seen[100..].iter().sum();
    assert!((44_400..=45_500).contains(&heavy), "15,050 of 20,100: {heavy}");
}

#[test]
fn only_the_sixteen_longest_waiting_probes_are_in_the_lane() {
    let rows: Vec<_> = (1..=40).map(|n| row(n, 1, 1, 100 - u64::from(n))).collect();
    let table = table(500, &rows);
    for n in 0..500_u16 {
        let mut seed = [0; 32];
        seed[..2].copy_from_slice(&n.to_be_bytes());
        let draw = table.draw(seed).unwrap();
        assert_eq!(draw.lane, Lane::Probe);
        assert!(draw.row >= 24, "row {} waits since {}", draw.row, table.rows()[draw.row].since);
    }
}

#[test]
fn an_empty_table_draws_nobody() {
    assert_eq!(table(500, &[]).draw([0; 32]), None);
    assert_eq!(table(500, &[]).empty_reason(), Some("no_members"));
}

#[test]
fn rows_that_make_no_table_are_refused() {
    let new = |rows: Vec<Candidate>| CandidateTable::new(t(0).header().clone(), rows, Vec::new()).err();
    assert_eq!(new(vec![row(2, 1, 0, 0), row(1, 1, 0, 0)]), Some(TableError::Order));
    assert_eq!(new(vec![row(1, 1, 0, 0), row(1, 1, 0, 0)]), Some(TableError::Order));
    assert_eq!(new(vec![row(1, 0, 0, 0)]), Some(TableError::Row));
    assert_eq!(new(vec![row(1, 1, 3, 0)]), Some(TableError::Row));
    assert_eq!(new(vec![row(1, 1, 2, 5)]), Some(TableError::Row));
    let header = TableHeader { model: "m".repeat(65_536), ..t(0).header().clone() };
    assert_eq!(CandidateTable::new(header, Vec::new(), Vec::new()).err(), Some(TableError::Size));
}
