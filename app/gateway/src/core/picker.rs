//! What becomes of the next nonce (escrow-details 5). Pure: one function, first match wins.

use super::api::RequestError;
use super::limiter::Verdict;
use super::store::StartKind;

/// How the owner of the next nonce stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing against it.
    Clear,
    /// Flagged with a living worker, forgiven, or excused by the chain.
    Passed,
    /// Flagged and given up.
    GaveUp,
}

/// What the picker looks at, inside the critical section.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// Requests wait.
    pub(super) queued: bool,
    /// A pending transaction is older than the flush age.
    pub(super) flush_due: bool,
    /// When the oldest one will be.
    pub(super) flush_at_ms: Option<u64>,
    /// Row 2: why every request is refused.
    pub(super) refuse: Option<RequestError>,
    /// How the owner stands.
    pub(super) standing: Standing,
    /// What its limiter says.
    pub(super) limiter: Verdict,
    /// First request of the queue that may use it.
    pub(super) candidate: Option<usize>,
    /// When the oldest request has waited for the hold.
    pub(super) hold_until_ms: u64,
    /// No record is free; the log must fold some first.
    pub(super) live_full: bool,
    /// Now.
    pub(super) now_ms: u64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pick {
    /// Nothing, until then.
    Hold(Option<u64>),
    /// A diff without a start; nobody is charged.
    Pass,
    /// Answer every request with this; nothing is spent.
    Refuse(RequestError),
    /// A start that is not sent; accountable.
    Ghost(StartKind),
    /// Ping the owner, then hold until then.
    Ping(u64),
    /// A start for this request of the queue.
    Dispatch(usize),
}

/// Rows 1 to 7.
pub(super) fn pick(look: &Look, hold_ms: u64) -> Pick {
    // Row 1.
    if !look.queued {
        return if look.flush_due { Pick::Pass } else { Pick::Hold(look.flush_at_ms) };
    }
    // Row 2.
    if let Some(error) = &look.refuse {
        return Pick::Refuse(error.clone());
    }
    match look.standing {
        // Row 3.
        Standing::Passed => return Pick::Pass,
        // Row 4. Without a free record there is nothing to charge.
        Standing::GaveUp if look.live_full => return Pick::Pass,
        Standing::GaveUp => return Pick::Ghost(StartKind::GhostCapability),
        Standing::Clear => {}
    }
    // Row 5.
    match look.limiter {
        Verdict::Closed => {}
        Verdict::PingDue => return Pick::Ping(look.now_ms.saturating_add(hold_ms)),
        Verdict::PingOut { until_ms } => return Pick::Hold(Some(until_ms)),
        Verdict::Undecided => return Pick::Pass,
        Verdict::Failed if look.live_full => return Pick::Pass,
        Verdict::Failed => return Pick::Ghost(StartKind::GhostThrottled),
    }
    // A pass would fold ended records in time; a queue that only waits would stand still.
    if look.live_full {
        return if look.now_ms < look.hold_until_ms {
            Pick::Hold(Some(look.hold_until_ms))
        } else {
            Pick::Pass
        };
    }
    // Row 6.
    if let Some(index) = look.candidate {
        return Pick::Dispatch(index);
    }
    // Row 7.
    if look.now_ms < look.hold_until_ms { Pick::Hold(Some(look.hold_until_ms)) } else { Pick::Pass }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look() -> Look {
        Look {
            queued: true,
            flush_due: false,
            flush_at_ms: None,
            refuse: None,
            standing: Standing::Clear,
            limiter: Verdict::Closed,
            candidate: Some(0),
            hold_until_ms: 200,
            live_full: false,
            now_ms: 0,
        }
    }

    #[test]
    fn row_1_an_empty_queue_holds_and_an_old_pending_transaction_is_published_by_a_pass() {
        let idle = Look { queued: false, flush_at_ms: Some(1_000), ..look() };
        assert_eq!(pick(&idle, 200), Pick::Hold(Some(1_000)));
        assert_eq!(pick(&Look { flush_due: true, ..idle }, 200), Pick::Pass);
    }

    #[test]
    fn row_2_refuses_before_anything_is_spent_also_when_the_owner_is_flagged() {
        let refused = Look { refuse: Some(RequestError::SelfSuspect), standing: Standing::GaveUp, ..look() };
        assert_eq!(pick(&refused, 200), Pick::Refuse(RequestError::SelfSuspect));
    }

    #[test]
    fn row_3_a_repairing_forgiven_or_excused_owner_is_passed_whatever_its_limiter_says() {
        let passed = Look { standing: Standing::Passed, limiter: Verdict::Failed, ..look() };
        assert_eq!(pick(&passed, 200), Pick::Pass);
    }

    #[test]
    fn row_4_a_given_up_owner_gets_an_accountable_ghost_without_a_ping() {
        let gave_up = Look { standing: Standing::GaveUp, limiter: Verdict::PingDue, ..look() };
        assert_eq!(pick(&gave_up, 200), Pick::Ghost(StartKind::GhostCapability));
    }

    #[test]
    fn row_5_an_open_limiter_is_pinged_held_and_charged_only_after_a_failed_ping() {
        let at = |limiter| pick(&Look { limiter, ..look() }, 200);
        assert_eq!(at(Verdict::PingDue), Pick::Ping(200));
        assert_eq!(at(Verdict::PingOut { until_ms: 150 }), Pick::Hold(Some(150)));
        assert_eq!(at(Verdict::Undecided), Pick::Pass);
        assert_eq!(at(Verdict::Failed), Pick::Ghost(StartKind::GhostThrottled));
        assert_eq!(at(Verdict::Closed), Pick::Dispatch(0));
    }

    #[test]
    fn row_6_the_first_request_that_may_use_the_owner_is_dispatched() {
        assert_eq!(pick(&Look { candidate: Some(3), ..look() }, 200), Pick::Dispatch(3));
    }

    #[test]
    fn row_7_a_queue_that_excludes_the_owner_holds_for_the_hold_time_and_passes_then() {
        let excluded = Look { candidate: None, ..look() };
        assert_eq!(pick(&excluded, 200), Pick::Hold(Some(200)));
        assert_eq!(pick(&Look { now_ms: 200, ..excluded }, 200), Pick::Pass);
    }
}
