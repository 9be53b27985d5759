//! Search of the first nonce at which a forked host differs.

/// Most probes of one search: enough for 2^15 nonces.
pub const BISECT_CALLS: u8 = 15;

/// What a probe showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A valid signature over our root at that nonce.
    Ours,
    /// A valid signature over another root.
    Other,
    /// No valid signature: the search ends.
    Unknown,
}

/// The search: [`Bisect::probe`] names a nonce, [`Bisect::answer`] takes what GetSignatures showed there. A root binds
/// its whole past, so one that differs is never followed by one that is equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bisect {
    good: u64,
    bad: u64,
    calls: u8,
    ended: bool,
}

impl Bisect {
    /// Between nonce 0, which the terms of the session fix, and `bad`, known to differ.
    pub fn new(bad: u64) -> Self {
        Self { good: 0, bad, calls: 0, ended: bad == 0 }
    }

    /// The nonce to ask for; `None` = the search is over.
    pub fn probe(&self) -> Option<u64> {
        let gap = self.bad.saturating_sub(self.good);
        (!self.ended && gap > 1 && self.calls < BISECT_CALLS).then(|| self.good.saturating_add(gap / 2))
    }

    /// Takes the answer to [`Bisect::probe`].
    pub fn answer(&mut self, answer: Answer) {
        let Some(nonce) = self.probe() else { return };
        self.calls = self.calls.saturating_add(1);
        match answer {
            Answer::Ours => self.good = nonce,
            Answer::Other => self.bad = nonce,
            Answer::Unknown => self.ended = true,
        }
    }

    /// The lowest nonce known to differ; the first one at all if [`Bisect::exact`].
    pub fn bad(&self) -> u64 {
        self.bad
    }

    /// Whether the nonce before [`Bisect::bad`] is known to be equal.
    pub fn exact(&self) -> bool {
        self.bad.saturating_sub(self.good) == 1
    }

    /// Probes so far.
    pub fn calls(&self) -> u8 {
        self.calls
    }
}
