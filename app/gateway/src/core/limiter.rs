//! Whether a participant may be sent requests, by how its last ones went. Pure.
//!
//! Only its own doing counts: broken connections, time-outs, throttling. Our refusals, cancellations and whatever is
//! the requester's fault never reach this file (escrow 5).

use borsh::{BorshDeserialize, BorshSerialize};

/// Open for this long after a broken connection.
pub(super) const TRANSPORT_MS: u64 = 30 * 60_000;
/// Open for this long after it said that it is overloaded.
pub(super) const THROTTLED_MS: u64 = 60 * 60_000;
/// Good answers that end a probation.
const PROBATION: u8 = 2;

/// What survives a restart: a restart is no amnesty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct LimiterRow {
    /// Open when it was written.
    open: bool,
    /// Good answers still owed.
    probation: u8,
}

/// A ping of a participant whose limiter is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ping {
    /// When it was sent.
    pub(super) at_ms: u64,
    /// Its verdict.
    pub(super) served: Option<bool>,
}

/// The limiter of one participant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limiter {
    open_until_ms: Option<u64>,
    probation: u8,
    pub(super) ping: Option<Ping>,
}

/// What the limiter says about the next nonce of its participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// May be used.
    Closed,
    /// No ping within the window: send one.
    PingDue,
    /// A ping is out for less than the hold.
    PingOut {
        /// When to look again.
        until_ms: u64,
    },
    /// A ping is out for longer than the hold: nobody can be blamed yet.
    Undecided,
    /// The last ping failed.
    Failed,
}

impl Limiter {
    /// As it was written; what was open begins anew in probation.
    pub(super) fn from_row(row: LimiterRow) -> Self {
        let probation = if row.open { PROBATION } else { row.probation };
        Self { open_until_ms: None, probation, ping: None }
    }

    pub(super) fn row(&self) -> LimiterRow {
        LimiterRow { open: self.open_until_ms.is_some(), probation: self.probation }
    }

    pub(super) fn is_open(&self, now_ms: u64) -> bool {
        self.open_until_ms.is_some_and(|until| now_ms < until)
    }

    pub(super) fn verdict(&self, now_ms: u64, ping_ms: u64, hold_ms: u64) -> Verdict {
        if !self.is_open(now_ms) {
            return Verdict::Closed;
        }
        match self.ping {
            None => Verdict::PingDue,
            Some(ping) if now_ms.saturating_sub(ping.at_ms) >= ping_ms => Verdict::PingDue,
            Some(Ping { served: Some(false), .. }) => Verdict::Failed,
            // A served ping closes the limiter; that it is open again means that it failed since.
            Some(Ping { served: Some(true), .. }) => Verdict::PingDue,
            Some(ping) if now_ms < ping.at_ms.saturating_add(hold_ms) => {
                Verdict::PingOut { until_ms: ping.at_ms.saturating_add(hold_ms) }
            }
            Some(_) => Verdict::Undecided,
        }
    }

    /// The connection broke, or nothing came in time.
    pub(super) fn transport_failed(&mut self, now_ms: u64) {
        self.open(now_ms, TRANSPORT_MS);
    }

    /// It said that it has too much to do.
    pub(super) fn throttled(&mut self, now_ms: u64, retry_after_ms: u64) {
        self.open(now_ms, if retry_after_ms == 0 { THROTTLED_MS } else { retry_after_ms.min(THROTTLED_MS) });
    }

    fn open(&mut self, now_ms: u64, for_ms: u64) {
        let until = now_ms.saturating_add(for_ms);
        self.open_until_ms = Some(self.open_until_ms.map_or(until, |old| old.max(until)));
        self.probation = PROBATION;
    }

    /// It answered a request as it should.
    pub(super) fn served(&mut self) {
        if self.open_until_ms.is_none() {
            self.probation = self.probation.saturating_sub(1);
        }
    }

    pub(super) fn pinged(&mut self, now_ms: u64) {
        self.ping = Some(Ping { at_ms: now_ms, served: None });
    }

    /// The ping that was sent last ended.
    pub(super) fn ping_done(&mut self, served: bool) {
        if let Some(ping) = &mut self.ping {
            ping.served = Some(served);
        }
        if served {
            self.open_until_ms = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_limiter_asks_for_one_ping_per_window_and_is_closed_by_a_served_one() {
        let mut limiter = Limiter::default();
        assert_eq!(limiter.verdict(0, 5_000, 200), Verdict::Closed);
        limiter.transport_failed(1_000);
        assert_eq!(limiter.verdict(1_000, 5_000, 200), Verdict::PingDue);
        limiter.pinged(1_000);
        assert_eq!(limiter.verdict(1_100, 5_000, 200), Verdict::PingOut { until_ms: 1_200 });
        assert_eq!(limiter.verdict(1_200, 5_000, 200), Verdict::Undecided);
        limiter.ping_done(false);
        assert_eq!(limiter.verdict(1_300, 5_000, 200), Verdict::Failed);
        assert_eq!(limiter.verdict(6_000, 5_000, 200), Verdict::PingDue);
        limiter.pinged(6_000);
        limiter.ping_done(true);
        assert_eq!(limiter.verdict(6_001, 5_000, 200), Verdict::Closed);
    }

    #[test]
    fn throttling_lasts_as_long_as_the_host_asked_and_an_hour_otherwise() {
        let mut limiter = Limiter::default();
        limiter.throttled(0, 7_000);
        assert!(limiter.is_open(6_999) && !limiter.is_open(7_000));
        limiter.throttled(7_000, 0);
        assert!(limiter.is_open(7_000 + 3_599_999) && !limiter.is_open(7_000 + 3_600_000));
    }

    #[test]
    fn a_restart_turns_an_open_limiter_into_a_probation_of_two_answers() {
        let mut limiter = Limiter::default();
        limiter.transport_failed(0);
        let mut after = Limiter::from_row(limiter.row());
        assert!(!after.is_open(0));
        assert_eq!(after.row().probation, 2);
        after.served();
        after.served();
        assert_eq!(after.row(), LimiterRow::default());
    }
}
