//! Decisions by slot weight: are we wrong ourselves, can we still settle.

/// What the other hosts say of our root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelfVerdict {
    /// Enough answered, and they do not make us doubt.
    Trusted,
    /// More of them disagree than agree: stop dispatching, blame nobody.
    Suspect,
    /// Too few answered to tell.
    CannotTell,
}

/// Judges a census over `n` slots: weights with a verified signature over our root, and over another one
/// (escrow-details 6).
pub fn census(agree: u64, disagree: u64, n: u64) -> SelfVerdict {
    let answered = agree.saturating_add(disagree);
    if answered <= n / 2 {
        SelfVerdict::CannotTell
    } else if disagree.saturating_mul(3) >= n && disagree > agree {
        SelfVerdict::Suspect
    } else {
        SelfVerdict::Trusted
    }
}

/// Slots that a settlement needs, of `n`.
pub fn quorum(n: u64) -> u64 {
    (u128::from(n) * 2 / 3).try_into().unwrap_or(u64::MAX).saturating_add(1)
}

/// Whether the suspicion of ourselves ends: so much weight signed our root at one nonce, not below the alarm's.
pub fn suspicion_ends(agree: u64, n: u64) -> bool {
    agree >= quorum(n)
}

/// Whether a settlement needs a repair first.
pub fn quorum_at_risk(flagged: u64, n: u64) -> bool {
    flagged > n.saturating_sub(quorum(n))
}

/// Whether more than half of the weight is out of reach, so that repair time does not count.
pub fn majority_unreachable(unreachable: u64, n: u64) -> bool {
    u128::from(unreachable) * 2 > u128::from(n)
}
