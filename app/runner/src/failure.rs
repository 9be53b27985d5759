//! What can go wrong, and what follows from each kind (runner-details 9).

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::adapter::AdapterError;

/// What ended an attempt. Strings and numbers are stable.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum FailureKind {
    /// A worker process died; a step in flight may have happened.
    WorkerDeath = 1,
    /// A stream ended before its answer.
    StreamReset = 2,
    /// A bundle that cannot be right.
    MalformedBundle = 3,
    /// An epoch below the fence.
    StaleEpoch = 4,
    /// The KV that a step needs is not there.
    CacheMiss = 5,
    /// A deadline passed.
    DeadlineExceeded = 6,
    /// No sign of life for too long.
    HeartbeatLost = 7,
    /// Somebody withdrew it.
    Cancelled = 8,
    /// The second run differs from what the client already has.
    PrefixMismatch = 9,
    /// A defect, or an order the node cannot follow.
    Internal = 10,
}

impl FailureKind {
    /// All kinds, by number.
    pub const ALL: [Self; 10] = [
        Self::WorkerDeath,
        Self::StreamReset,
        Self::MalformedBundle,
        Self::StaleEpoch,
        Self::CacheMiss,
        Self::DeadlineExceeded,
        Self::HeartbeatLost,
        Self::Cancelled,
        Self::PrefixMismatch,
        Self::Internal,
    ];

    /// Stable number, also of `MsgReportFailure.kind`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Stable string.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WorkerDeath => "worker-death",
            Self::StreamReset => "stream-reset",
            Self::MalformedBundle => "malformed-bundle",
            Self::StaleEpoch => "stale-epoch",
            Self::CacheMiss => "cache-miss",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::HeartbeatLost => "heartbeat-lost",
            Self::Cancelled => "cancelled",
            Self::PrefixMismatch => "prefix-mismatch",
            Self::Internal => "internal",
        }
    }

    /// Whether another epoch may be tried. Heartbeat loss is restartable only with `restart_after_fence`, which the
    /// [restart rules](crate) decide, not the kind.
    #[must_use]
    pub const fn restartable(self) -> bool {
        matches!(self, Self::WorkerDeath | Self::StreamReset | Self::CacheMiss)
    }

    /// Whether the node is at fault. A deadline that the request itself lowered is nobody's.
    #[must_use]
    pub const fn node_at_fault(self) -> bool {
        !matches!(self, Self::Cancelled)
    }

    /// Who is named when nothing better is known.
    #[must_use]
    pub const fn default_cause(self) -> Cause {
        match self {
            Self::WorkerDeath | Self::StreamReset | Self::MalformedBundle | Self::HeartbeatLost => {
                Cause::Peer
            }
            Self::StaleEpoch | Self::Internal => Cause::Coordinator,
            Self::CacheMiss | Self::PrefixMismatch => Cause::Node,
            Self::DeadlineExceeded => Cause::Deadline,
            Self::Cancelled => Cause::Client,
        }
    }
}

/// Who or what ended an attempt. Numbers are stable.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Cause {
    /// The client.
    Client = 1,
    /// A deadline.
    Deadline = 2,
    /// This node.
    Node = 3,
    /// Another process: a worker or an upstream server.
    Peer = 4,
    /// The coordinator.
    Coordinator = 5,
}

/// How an attempt ended. Numbers are stable.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum WorkStatus {
    /// All tokens are there; the only status that is billed.
    Completed = 1,
    /// Withdrawn.
    Cancelled = 2,
    /// It did not work out, and nothing is in doubt.
    Failed = 3,
    /// It did not work out, and what the workers did is in doubt.
    Unverified = 4,
}

impl WorkStatus {
    /// Stable string.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Unverified => "unverified",
        }
    }
}

/// The kind of a shard's refusal.
#[must_use]
pub const fn classify(error: &AdapterError) -> FailureKind {
    match error {
        AdapterError::WorkerDeath(_) => FailureKind::WorkerDeath,
        AdapterError::StreamReset(_) => FailureKind::StreamReset,
        AdapterError::MalformedBundle(_) => FailureKind::MalformedBundle,
        AdapterError::StaleEpoch { .. } => FailureKind::StaleEpoch,
        AdapterError::CacheMiss(_) | AdapterError::LeaseExpired => FailureKind::CacheMiss,
        AdapterError::Full(_) | AdapterError::Conflict(_) | AdapterError::Internal(_) => {
            FailureKind::Internal
        }
    }
}

/// The status that follows from a kind alone.
#[must_use]
pub const fn work_status_for(kind: FailureKind) -> WorkStatus {
    match kind {
        FailureKind::WorkerDeath | FailureKind::PrefixMismatch => WorkStatus::Unverified,
        FailureKind::Cancelled => WorkStatus::Cancelled,
        _ => WorkStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_number_status_restart_blame_and_cause() {
        use Cause as C;
        use WorkStatus as S;
        // runner-details 9, line by line.
        let table = [
            ("worker-death", 1, S::Unverified, true, true, C::Peer),
            ("stream-reset", 2, S::Failed, true, true, C::Peer),
            ("malformed-bundle", 3, S::Failed, false, true, C::Peer),
            ("stale-epoch", 4, S::Failed, false, true, C::Coordinator),
            ("cache-miss", 5, S::Failed, true, true, C::Node),
            ("deadline-exceeded", 6, S::Failed, false, true, C::Deadline),
            ("heartbeat-lost", 7, S::Failed, false, true, C::Peer),
            ("cancelled", 8, S::Cancelled, false, false, C::Client),
            ("prefix-mismatch", 9, S::Unverified, false, true, C::Node),
            ("internal", 10, S::Failed, false, true, C::Coordinator),
        ];
        let found = FailureKind::ALL.map(|kind| {
            let blame = (kind.node_at_fault(), kind.default_cause());
            (kind.as_str(), kind.number(), work_status_for(kind), kind.restartable(), blame.0, blame.1)
        });
        assert_eq!(found, table);
    }

    #[test]
    fn each_error_of_a_shard_has_its_kind() {
        let text = String::new;
        for (error, kind) in [
            (AdapterError::WorkerDeath(text()), FailureKind::WorkerDeath),
            (AdapterError::StreamReset(text()), FailureKind::StreamReset),
            (AdapterError::MalformedBundle(text()), FailureKind::MalformedBundle),
            (AdapterError::StaleEpoch { have: 1 }, FailureKind::StaleEpoch),
            (AdapterError::CacheMiss(text()), FailureKind::CacheMiss),
            (AdapterError::LeaseExpired, FailureKind::CacheMiss),
            (AdapterError::Conflict(text()), FailureKind::Internal),
            (AdapterError::Internal(text()), FailureKind::Internal),
        ] {
            assert_eq!(classify(&error), kind, "{error}");
        }
    }
}
