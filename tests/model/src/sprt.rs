//! Fixed-point logarithm and ratio of the slow breaker (breaker-details 2.5).

/// The unit: 1.0.
pub const ONE: u64 = 1_000_000_000_000;

/// ln(n/d) in units of 10^-12, by the document's own series; `n`, `d` in `1..=ONE`.
pub fn ln(n: u64, d: u64) -> i128 {
    assert!((1..=ONE).contains(&n) && (1..=ONE).contains(&d));
    let bit_length = |x: u64| 64 - i128::from(x.leading_zeros());
    let (mut top, mut bottom) = (i128::from(n), i128::from(d));
    let mut s = bit_length(n) - bit_length(d);
    if s > 0 {
        bottom <<= s;
    } else {
        top <<= -s;
    }
    if top < bottom {
        top *= 2;
        s -= 1;
    }
    let z = ((top - bottom) << 62) / (top + bottom);
    let q = (z * z) >> 62;
    let (mut t, mut a, mut k) = (z, 0i128, 1i128);
    while t > 0 {
        a += t / k;
        t = (t * q) >> 62;
        k += 2;
    }
    let r = 2 * a + s * 3_196_577_161_300_663_914;
    r.signum() * ((r.abs() * i128::from(ONE) + (1 << 61)) >> 62)
}

/// Step of one miss and of one success, for p0 and p1 in units of 10^-12.
pub fn steps(p0: u64, p1: u64) -> (i128, i128) {
    (ln(p1, p0), ln(ONE - p1, ONE - p0))
}

/// Ratio of one participant in one epoch, all models together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sprt {
    /// Log-likelihood ratio, units of 10^-12.
    pub llr: i128,
    /// Successes already counted in.
    pub absorbed_ok: u64,
    /// Misses already counted in.
    pub absorbed_missed: u64,
}

/// What the ratio says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `llr >= H`: Inactive for the rest of the epoch.
    Fail,
    /// `llr <= -H`; resets nothing.
    Pass,
    /// Between the two.
    Undecided,
}

impl Sprt {
    /// Counts in what is new in the epoch's counts; switched off, only remembers that it has seen them.
    pub fn absorb(&mut self, ok: u64, missed: u64, p0: u64, p1: u64, enabled: bool) {
        let new_ok = i128::from(ok) - i128::from(self.absorbed_ok);
        let new_missed = i128::from(missed) - i128::from(self.absorbed_missed);
        assert!(new_ok >= 0 && new_missed >= 0, "counts went back");
        if enabled {
            let (up, down) = steps(p0, p1);
            self.llr += up * new_missed + down * new_ok;
        }
        self.absorbed_ok = ok;
        self.absorbed_missed = missed;
    }

    /// Against the threshold H in units of 10^-12.
    pub fn verdict(&self, h: i128) -> Verdict {
        if self.llr >= h {
            Verdict::Fail
        } else if self.llr <= -h {
            Verdict::Pass
        } else {
            Verdict::Undecided
        }
    }
}
