//! Weights and bisecting.

use super::*;

#[test]
fn a_census_needs_a_majority_a_third_and_more_against_us() {
    // One fork against two honest hosts of three must not stop us.
    assert_eq!(census(1, 1, 3), SelfVerdict::Trusted);
    assert_eq!(census(0, 1, 3), SelfVerdict::CannotTell);
    assert_eq!(census(0, 2, 3), SelfVerdict::Suspect);
    // 16 slots: 9 must answer, 6 is a third.
    assert_eq!(census(2, 6, 16), SelfVerdict::CannotTell);
    assert_eq!(census(3, 6, 16), SelfVerdict::Suspect);
    assert_eq!(census(6, 6, 16), SelfVerdict::Trusted, "a tie is no majority against us");
    assert_eq!(census(4, 5, 16), SelfVerdict::Trusted, "5 of 16 is below a third");
    assert_eq!(census(5, 6, 16), SelfVerdict::Suspect);
    assert_eq!(census(0, 0, 1), SelfVerdict::CannotTell);
    assert_eq!(census(0, 1, 1), SelfVerdict::Suspect);
    assert_eq!(census(u64::MAX, u64::MAX, 128), SelfVerdict::Trusted);
    // Against the inequality, in fractions, for every census of every group up to 24.
    for n in 1_u64..=24 {
        for agree in 0..=n {
            for disagree in 0..=n - agree {
                let suspect = agree + disagree > n / 2
                    && (disagree as f64) / (n as f64) + 1e-9 >= 1.0 / 3.0
                    && disagree > agree;
                let got = census(agree, disagree, n) == SelfVerdict::Suspect;
                assert_eq!(got, suspect, "{agree} agree, {disagree} disagree of {n}");
            }
        }
    }
}

#[test]
fn quorum_and_what_puts_it_at_risk() {
    let quorums: Vec<u64> = [1, 2, 3, 4, 7, 16, 128].map(quorum).into();
    assert_eq!(quorums, [1, 2, 3, 3, 5, 11, 86]);
    assert_eq!(quorum(u64::MAX), u64::MAX / 3 * 2 + 1);
    // 16 slots settle with 5 missing, not with 6.
    assert!(!quorum_at_risk(5, 16) && quorum_at_risk(6, 16));
    assert!(!quorum_at_risk(0, 3) && quorum_at_risk(1, 3));
    assert!(!suspicion_ends(10, 16) && suspicion_ends(11, 16));
    assert!(!majority_unreachable(8, 16) && majority_unreachable(9, 16));
    assert!(!majority_unreachable(1, 3) && majority_unreachable(2, 3));
}

fn search(first_bad: u64, known_bad: u64) -> Bisect {
    let mut search = Bisect::new(known_bad);
    while let Some(nonce) = search.probe() {
        assert!(nonce > 0 && nonce < known_bad);
        search.answer(if nonce < first_bad { Answer::Ours } else { Answer::Other });
    }
    search
}

#[test]
fn bisecting_finds_the_first_bad_nonce_in_fifteen_calls() {
    for known in 1..=70 {
        for first in 1..=known {
            let found = search(first, known);
            assert!(found.exact() && found.bad() == first, "{first} of {known}: {found:?}");
        }
    }
    for first in [1, 2, 777, 9_999, 10_000, 19_999, 20_000] {
        let found = search(first, 20_000);
        assert_eq!((found.bad(), found.exact()), (first, true));
        assert!(found.calls() <= BISECT_CALLS);
    }
    // 2^15 nonces are what fifteen answers tell apart.
    assert!(search(32_768, 32_768).exact());
    assert!(!search(5, u64::MAX).exact());
    assert_eq!(search(5, u64::MAX).calls(), BISECT_CALLS);
}

#[test]
fn a_host_that_does_not_sign_ends_the_search() {
    let mut search = Bisect::new(1_000);
    assert_eq!(search.probe(), Some(500));
    search.answer(Answer::Other);
    assert_eq!(search.probe(), Some(250));
    search.answer(Answer::Unknown);
    assert_eq!((search.probe(), search.bad(), search.exact(), search.calls()), (None, 500, false, 2));
    search.answer(Answer::Other);
    assert_eq!((search.bad(), search.calls()), (500, 2), "an answer nobody asked for");
    assert_eq!(Bisect::new(0).probe(), None);
    assert!(Bisect::new(1).exact());
}
