//! The laws, and how a breach of one is told.

use std::fmt;

/// What a run must never show. The names stand in the text of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Law {
    /// A start was sent to a flagged participant.
    NoStartToFlagged,
    /// A flag went without a fresh, verified signature over our root.
    NoClearWithoutProof,
    /// A start in the log for a participant under repair.
    NoGhostWhileRepairing,
    /// Coins or outcomes differ from the books.
    CoinsConserved,
    /// Two diffs at one nonce, or one that was told is gone.
    NonceSignedOnce,
    /// A host ran an inference twice.
    OneExecution,
    /// A start that nobody ended.
    DispatchEnds,
    /// A client was told its end twice, or never, or after it left.
    OneEndPerRequest,
    /// A restart lost a flag.
    FlagsSurvive,
    /// A flag without a signed mismatch.
    NoFlagWithoutEvidence,
    /// A host without a fault was charged.
    NoChargeWithoutFault,
    /// The settlement differs from the books.
    SettlementExact,
    /// An honest host signed another root than ours.
    HonestReplicaAgrees,
    /// A repair does not advance, or an honest host stays out.
    EveryHealableRestored,
    /// A host that cannot be healed is neither given up nor charged.
    EveryUnhealableGivenUp,
    /// The session does not end although a quorum could sign.
    SessionSettles,
    /// Requests wait for ever.
    QueueDrains,
    /// More steps than time allows: a loop.
    NoBusyLoop,
    /// The gateway does not open its own store.
    GatewayOpens,
}

impl Law {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoStartToFlagged => "no start is sent to a flagged participant",
            Self::NoClearWithoutProof => "no flag is cleared without a verified signature over our root",
            Self::NoGhostWhileRepairing => "no accountable ghost while a repair is running",
            Self::CoinsConserved => "coins are conserved at each nonce",
            Self::NonceSignedOnce => "a nonce is never signed twice with different content",
            Self::OneExecution => "an inference is executed once at a host",
            Self::DispatchEnds => "every dispatched nonce ends in a terminal status",
            Self::OneEndPerRequest => "a request of a client gets exactly one end",
            Self::FlagsSurvive => "flags survive restarts",
            Self::NoFlagWithoutEvidence => "no flag without a typed, signed mismatch",
            Self::NoChargeWithoutFault => "a host without a fault is never charged",
            Self::SettlementExact => "the settlement pays exactly",
            Self::HonestReplicaAgrees => "an honest replica computes our root",
            Self::EveryHealableRestored => "every healable host is restored within the bound",
            Self::EveryUnhealableGivenUp => "every unhealable host is given up and charged again",
            Self::SessionSettles => "the session settles when a quorum is honest",
            Self::QueueDrains => "the queue drains",
            Self::NoBusyLoop => "steps are bounded by time",
            Self::GatewayOpens => "the gateway opens its own undamaged store",
        }
    }
}

/// A law that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Breach {
    pub(super) law: Law,
    pub(super) detail: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": {}", self.law.name(), self.detail)
    }
}

pub(super) type Check = Result<(), Breach>;

pub(super) fn breach<T>(law: Law, detail: impl Into<String>) -> Result<T, Breach> {
    Err(Breach { law, detail: detail.into() })
}
