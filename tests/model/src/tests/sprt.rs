//! The slow breaker (breaker-details 2.5).

use crate::sprt::{self, ONE, Sprt, Verdict};

#[test]
fn logarithms_are_the_documents() {
    assert_eq!(sprt::ln(2, 1), 693147180560);
    assert_eq!(sprt::ln(3, 2), 405465108108);
    assert_eq!(sprt::ln(1, ONE - 1), -27631021115928);
    assert_eq!(sprt::ln(ONE - 1, ONE - 2), 1);
    assert_eq!(sprt::ln(ONE, ONE), 0);
    assert_eq!(sprt::steps(ONE / 10, ONE / 5), (693147180560, -117783035656));
    assert_eq!(sprt::steps(ONE / 100 * 98, ONE / 100 * 99), (10152371464, -693147180560));
}

fn judged(ok: u64, missed: u64) -> (i128, Verdict) {
    let mut sprt = Sprt::default();
    sprt.absorb(ok, missed, ONE / 10, ONE / 5, true);
    (sprt.llr, sprt.verdict(4 * i128::from(ONE)))
}

#[test]
fn the_slow_breaker_fails_and_passes_at_the_documents_counts() {
    assert_eq!(judged(0, 5), (3465735902800, Verdict::Undecided));
    assert_eq!(judged(0, 6), (4158883083360, Verdict::Fail));
    assert_eq!(judged(33, 0), (-3886840176648, Verdict::Undecided));
    assert_eq!(judged(34, 0), (-4004623212304, Verdict::Pass));
    assert_eq!(judged(50, 14), (3814908745040, Verdict::Undecided));
    assert_eq!(judged(50, 15), (4508055925600, Verdict::Fail));
    assert_eq!(judged(50, 6), (-1730268699440, Verdict::Undecided));
    let h = 100 * i128::from(ONE);
    let wide = |missed| {
        let mut sprt = Sprt::default();
        sprt.absorb(0, missed, ONE / 100 * 98, ONE / 100 * 99, true);
        sprt.verdict(h)
    };
    assert_eq!((wide(9849), wide(9850)), (Verdict::Undecided, Verdict::Fail));
}

#[test]
fn counts_seen_while_the_slow_breaker_is_off_never_count() {
    let mut sprt = Sprt::default();
    sprt.absorb(0, 6, ONE / 10, ONE / 5, false);
    assert_eq!(sprt, Sprt { llr: 0, absorbed_ok: 0, absorbed_missed: 6 });
    sprt.absorb(0, 7, ONE / 10, ONE / 5, true);
    assert_eq!(sprt.llr, 693147180560);
}
