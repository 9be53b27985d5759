//! Shares and powers against numbers worked by hand, and against plain integers where those suffice.

use std::cmp::Ordering;

use super::*;
use crate::calc::*;

#[test]
fn shares_are_read_exactly_and_written_with_eighteen_places() {
    for (text, units, written) in [
        ("0", 0, "0.000000000000000000"),
        ("1", 1_000_000_000_000_000_000, "1.000000000000000000"),
        ("1.0", 1_000_000_000_000_000_000, "1.000000000000000000"),
        ("0.334", 334_000_000_000_000_000, "0.334000000000000000"),
        ("0.000000000000000001", 1, "0.000000000000000001"),
        ("0.999999999999999999", 999_999_999_999_999_999, "0.999999999999999999"),
    ] {
        let share = Share::parse(text).unwrap();
        assert_eq!((share.units(), share.to_string().as_str()), (units, written));
        assert_eq!(Share::parse(written).unwrap(), share);
    }
    let long = "0".repeat(40);
    for bad in [
        "",
        ".5",
        "1.",
        "-0.1",
        "+1",
        "1.000000000000000001",
        "2",
        "0.0000000000000000001",
        "1e-1",
        " 1",
        &long,
    ] {
        assert!(Share::parse(bad).is_err(), "{bad:?}");
    }
    assert_eq!(Share::parse("0.6").unwrap().checked_add(Share::parse("0.5").unwrap()), None);
    assert_eq!(Share::per_mille(334), Share::parse("0.334").unwrap());
    assert_eq!(Share::per_mille(2_000), Share::ONE);
}

#[test]
fn a_share_of_an_amount_rounds_down_or_to_the_even_neighbour() {
    let half = Share::per_mille(500);
    // 0.5, 1.5, 2.5, 3.5: down is 0 1 1 2 3; to even is 0 2 2 4.
    assert_eq!([1, 3, 5, 7].map(|n| half.of_floor(n)), [0, 1, 2, 3]);
    assert_eq!([1, 3, 5, 7].map(|n| half.of_rounded(n)), [0, 2, 2, 4]);
    // 0.334 of 1000000 is 334000; of 10 is 3.34; of 5 is 1.67.
    let quorum = Share::per_mille(334);
    assert_eq!([1_000_000, 10, 5].map(|n| quorum.of_floor(n)), [334_000, 3, 1]);
    assert_eq!([1_000_000, 10, 5].map(|n| quorum.of_rounded(n)), [334_000, 3, 2]);
    assert_eq!(Share::ONE.of_floor(u128::MAX), u128::MAX);
    assert_eq!(Share::ZERO.of_rounded(u128::MAX), 0);
}

#[test]
fn powers_keep_every_place() {
    let third = Share::parse("0.333333333333333333").unwrap();
    let part = Power::portion(10, third).unwrap();
    assert_eq!(part.to_string(), "3.333333333333333330");
    // 2^128 - 1 = 340282366920938463463374607431768211455; a tenth has one place.
    let tenth = Power::portion(u128::MAX, Share::per_mille(100)).unwrap();
    assert_eq!(tenth.to_string(), "34028236692093846346337460743176821145.500000000000000000");
    let sum = Power::parse("0.7").unwrap().checked_add(Power::parse("0.4").unwrap()).unwrap();
    assert_eq!(sum.to_string(), "1.100000000000000000");
    assert_eq!(Power::parse(&tenth.to_string()).unwrap(), tenth);
    assert!(Power::parse("340282366920938463463374607431768211456").is_err());
    let most = Power { whole: u128::MAX, fraction: 999_999_999_999_999_999 };
    assert_eq!(most.checked_add(Power { whole: 0, fraction: 1 }), None);
}

#[test]
fn comparisons_are_exact_at_the_border_and_at_full_width() {
    let power = |whole| Power { whole, fraction: 0 };
    let third = Share::parse("0.333333333333333333").unwrap();
    // 1 of 3 is a third, which is more than 0.333333333333333333.
    assert_eq!(compare(power(1), third, power(3)), Ordering::Greater);
    assert_eq!(compare(power(334), Share::per_mille(334), power(1_000)), Ordering::Equal);
    let less = Power { whole: 333, fraction: 999_999_999_999_999_999 };
    assert_eq!(compare(less, Share::per_mille(334), power(1_000)), Ordering::Less);
    assert_eq!(compare(power(u128::MAX), Share::ONE, power(u128::MAX)), Ordering::Equal);
    assert_eq!(compare(power(u128::MAX - 1), Share::ONE, power(u128::MAX)), Ordering::Less);
    assert_eq!(compare(power(u128::MAX / 2), Share::per_mille(500), power(u128::MAX)), Ordering::Less);
    assert_eq!(compare(power(u128::MAX / 2 + 1), Share::per_mille(500), power(u128::MAX)), Ordering::Greater);
}

#[test]
fn comparisons_agree_with_plain_integers_on_small_numbers() {
    let mut rng = Rng::new(7);
    for _ in 0..5_000 {
        // Parts and wholes in thousandths, shares in thousandths: both sides fit 128 bits.
        let (part, whole, share) = (rng.below(5_000_000), rng.below(5_000_000), rng.below(1_001) as u16);
        let power = |thousandths: u64| Power {
            whole: u128::from(thousandths / 1_000),
            fraction: thousandths % 1_000 * 1_000_000_000_000_000,
        };
        let expected = (u128::from(part) * 1_000).cmp(&(u128::from(whole) * u128::from(share)));
        assert_eq!(compare(power(part), Share::per_mille(share), power(whole)), expected);
    }
}

#[test]
fn block_times_cross_the_wire_unchanged() {
    for time in [0, 1, 999_999_999, 1_700_000_000_123_456_789, u64::MAX] {
        assert_eq!(time_ns(&timestamp(time)), Some(time));
    }
    let at = |seconds, nanos| time_ns(&holdfast_proto::Timestamp { seconds, nanos });
    assert_eq!([at(-1, 0), at(0, -1), at(0, 1_000_000_000), at(i64::MAX, 0)], [None; 4]);
}
