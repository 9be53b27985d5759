//! The draw (breaker-details 2.4).

use std::collections::BTreeSet;

use super::addr;
use crate::draw::{Lane, Row, Stream, Table};
use crate::hex;

fn table(share_bp: u16, rows: &[(u8, u64, char, u64)]) -> Table {
    let rows = rows.iter().map(|(k, weight, column, since)| Row {
        address: addr(*k),
        weight: *weight,
        class: match column {
            'H' => 0,
            'R' => 1,
            _ => 2,
        },
        since: *since,
    });
    Table { epoch: 7, model: "m1".into(), share_bp, poc: false, rows: rows.collect() }
}

const T: [(u8, u64, char, u64); 5] = [
    (1, 1_000_000, 'H', 0),
    (2, 2_500_000, 'H', 0),
    (3, 400, 'R', 150),
    (4, 3_000_000, 'X', 0),
    (5, 7, 'R', 120),
];

fn drawn(table: &Table, seed: u8) -> (Lane, u8) {
    let (lane, index) = table.draw([seed; 32]).unwrap();
    (lane, table.rows[index].address[0])
}

#[test]
fn table_t_has_its_size_and_digest_and_draws() {
    let t = table(500, &T);
    assert_eq!(t.bytes().len(), 231);
    assert_eq!(hex(&t.digest()), "ae5784a2dc16a2e2b0ed6b91328a4a35a9f704a73c2335fb843ea633906fa2df");
    let mut stream = Stream::new([0; 32], t.digest());
    assert_eq!(stream.below(10_000), 2437);
    assert_eq!(stream.below(3_500_000), 1_502_900);
    assert_eq!(drawn(&t, 0), (Lane::Healthy, 2));
    let mut stream = Stream::new([0x35; 32], t.digest());
    assert_eq!(stream.below(10_000), 27);
    assert_eq!(stream.below(2), 1);
    assert_eq!(drawn(&t, 0x35), (Lane::Probe, 3));
}

#[test]
fn a_share_of_zero_gives_each_probe_the_weight_of_one() {
    let t = table(0, &T);
    assert_eq!(hex(&t.digest()), "f2f8466e7616b94eac721404ca24fe51e95206c6821a7ce7674208a4c8bda927");
    assert_eq!(Stream::new([0; 32], t.digest()).below(3_500_002), 2_791_598);
    assert_eq!(drawn(&t, 0), (Lane::Healthy, 2));
    let small = table(0, &[(1, 1, 'H', 0), (2, 2, 'H', 0), (3, 9, 'R', 10)]);
    assert_eq!(hex(&small.digest()), "adcc7867589932ae515806ed59433cc7680857389ab6b223ba703f8584055ee3");
    assert_eq!(Stream::new([2; 32], small.digest()).below(4), 3);
    assert_eq!(drawn(&small, 2), (Lane::Probe, 3));
}

#[test]
fn with_nobody_healthy_or_ready_all_are_drawn_by_weight() {
    let rows = T.map(|(k, weight, _, _)| (k, weight, 'X', 0));
    let t = table(500, &rows);
    assert_eq!(hex(&t.digest()), "ece24c9470dc9ef365de6519fb34da5676dad98f37bfa2f8ab09d6b8fb826787");
    assert_eq!(Stream::new([0; 32], t.digest()).below(6_500_407), 501_990);
    assert_eq!(drawn(&t, 0), (Lane::Fallback, 1));
    assert_eq!(table(500, &[]).draw([0; 32]), None);
}

#[test]
fn with_nobody_healthy_the_ready_probes_are_always_drawn() {
    let rows =
        T.map(|(k, weight, column, since)| (k, weight, if column == 'H' { 'X' } else { column }, since));
    let t = table(500, &rows);
    assert_eq!(hex(&t.digest()), "2d17438bfa68e532633cf98bc2e8a4ff8afa20417e43df790dd032467250d651");
    assert_eq!(Stream::new([0; 32], t.digest()).below(2), 1);
    assert_eq!(drawn(&t, 0), (Lane::Probe, 3));
}

#[test]
fn below_rejects_what_would_bias_it() {
    let mut stream = Stream::new([0; 32], [0; 32]);
    assert_eq!(stream.take(), 0xef9459c921f6f4aa61fcad981455297c);
    assert_eq!(stream.take(), 0xcc757567013a1734d35543aeaeceb4fd);
    let mut stream = Stream::new([0; 32], [0; 32]);
    assert_eq!(stream.below((1 << 127) + 1), 122994560744996099555529362910083202123);
    let mut stream = Stream::new([0; 32], [0; 32]);
    assert_eq!([0; 5].map(|_| stream.below(10_000)), [6364, 4605, 2123, 5255, 5764]);
}

#[test]
fn only_the_sixteen_longest_waiting_probes_are_in_the_lane() {
    let rows: Vec<(u8, u64, char, u64)> = (1..=20).map(|k| (k, 5, 'R', 100 - u64::from(k))).collect();
    let t = table(500, &rows);
    let seen: BTreeSet<u8> = (0..=255).map(|seed| drawn(&t, seed).1).collect();
    assert_eq!(seen, (5..=20).collect());
}
